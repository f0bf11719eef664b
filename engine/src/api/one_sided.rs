//! Operations on the memory of peers.

use super::blocking::BlockingCall;
use super::endpoint::Endpoint;
use super::engine_ref::EngineRef;
use super::mode::Attached;
use super::operation::Operation;
use super::options::SendOptions;
use super::receive::memory_of;
use super::region::RemoteAddress;
use super::send::refused;
use crate::memory::{Buffer, RawSpan, Shape, raw_shape};
use crate::progress::completions::PostedTo;
use crate::progress::post::{Memory, Posted};
use crate::proto::one_sided::Verb;
use crate::proto::one_sided::origin::OneSidedRequest;
use crate::types::{AtomicOp, Datatype, Envelope, Error, Failed, OperationId, Peer, Status};
use crate::wire::one_sided::{FLAG_COMPARE, FLAG_FETCH, FLAG_NO_OPERANDS};

/// An atomic operation on elements of the memory of a peer. The elements are in the byte order of
/// the target. It has [`ATOMIC_BYTES_MAX`] bytes of elements at the most.
///
/// [`ATOMIC_BYTES_MAX`]: Self::BYTES_MAX
#[derive(Clone, Copy, Debug)]
pub struct Atomic<'a> {
    /// What is done to each element.
    pub op: AtomicOp,
    /// Of what type they are.
    pub datatype: Datatype,
    /// An operand for each element; [`AtomicOp::Read`] takes none.
    pub operands: &'a [u8],
    /// What to compare with, for those that compare; of [`AtomicOp::MaskedSwap`] the mask.
    pub compare: &'a [u8],
}

impl<'a> Atomic<'a> {
    /// Most bytes of elements that one operation is on.
    pub const BYTES_MAX: usize = crate::wire::one_sided::ATOMIC_BYTES_MAX;

    /// An operation that compares nothing.
    pub const fn new(op: AtomicOp, datatype: Datatype, operands: &'a [u8]) -> Self {
        Self { op, datatype, operands, compare: &[] }
    }

    /// The verb, the bytes of the peer's memory, and what goes with it; `fetched` bytes come back.
    fn parts(&self, fetched: usize) -> Result<(Verb, u64, Box<[u8]>), Error> {
        let Self { op, datatype, operands, compare } = *self;
        let length = if op.takes_operands() { operands.len() } else { fetched };
        let compared = if op.takes_compare() { length } else { 0 };
        let given = if op.takes_operands() { length } else { 0 };
        if !op.is_valid_for(datatype) {
            let text = format!("{op:?} is not defined for elements of type {datatype:?}");
            return Err(Error::misuse(text));
        }
        let fits = length > 0
            && length.is_multiple_of(datatype.size())
            && operands.len() == given
            && compare.len() == compared
            && (fetched == 0 || fetched == length);
        if !fits {
            let text = format!(
                "{op:?} of type {datatype:?} with {} bytes of operands, {} to compare with and \
                 {fetched} for results: as many elements of each that it takes",
                operands.len(),
                compare.len(),
            );
            return Err(Error::misuse(text));
        }
        let mut flags = if fetched > 0 { FLAG_FETCH } else { 0 };
        flags |= if compared > 0 { FLAG_COMPARE } else { 0 };
        flags |= if given == 0 { FLAG_NO_OPERANDS } else { 0 };
        let verb = Verb::Atomic { atomic: op.code(), datatype: datatype.code(), flags };
        Ok((verb, length as u64, [compare, operands].concat().into()))
    }
}

/// # Operations on the memory of peers
///
/// What is asked of a peer's memory needs no call there: its engine does it, in any call that makes
/// progress, by the thread of a shared or dedicated engine, or, after a millisecond without a call,
/// by the thread that answers for engines of one thread (long transfers wait for their owner).
///
/// *Completion.* A put or a non-fetching atomic operation at
/// [`CompletionLevel::Inject`](crate::CompletionLevel::Inject) completes when its memory may be
/// reused; whether the target refused it [`Self::flush`] tells, by a count. At every other level it
/// completes when it is done at the target, or with [`Error::Refused`]. Gets and fetching
/// operations complete when the bytes are here. A long put (pulled by the target) completes when it
/// is done, at all levels.
///
/// *Order.* None, between any two operations, and between operations and messages, but by
/// completion, fences and [`Self::flush`].
///
/// A fence ([`SendOptions::fence`]) lets an operation start when all earlier ones on the memory of
/// that peer are done, as a flush would tell; the completion of a flush that failed says that some
/// of these were refused.
///
/// *Failures.* If the session with the peer fails, operations that have not completed end with
/// [`Error::Peer`]: whether they were done is unknown. None is ever done twice.
impl<M: Attached> Endpoint<M> {
    pub(super) fn one_sided(
        &self,
        peer: Peer,
        verb: Verb,
        at: RemoteAddress,
        length: u64,
        options: &SendOptions,
    ) -> OneSidedRequest {
        let message = self.send_request(peer, Envelope::UNTAGGED, 0, options);
        OneSidedRequest {
            endpoint: message.endpoint,
            peer: peer.0,
            verb,
            key: at.key.0,
            offset: at.offset,
            length,
            level: options.level,
            hint: message.hint,
            data: options.data.filter(|_| verb == Verb::Put),
            fence: options.fence,
            invalidates: false,
            operands: Box::default(),
        }
    }

    #[allow(clippy::type_complexity, reason = "the queue is that of the engine reference")]
    fn ends_at(&self, options: &SendOptions) -> PostedTo<&<M::Engine as EngineRef>::Queue> {
        let (user_data, silent) = (options.user_data, options.silent);
        PostedTo { queue: &self.open().queues.transmit, user_data, silent }
    }

    pub(super) fn start(
        &self,
        request: OneSidedRequest,
        memory: Memory,
        options: &SendOptions,
    ) -> Result<Operation<M>, Failed> {
        let engine = &self.open().engine;
        let to = self.ends_at(options);
        match engine.start_one_sided(request, memory, options.more, to).map_err(refused)? {
            Posted::Pending(handle) => Ok(Operation::pending(engine.clone(), handle)),
            Posted::Sent(..) => unreachable!("an operation on memory is posted with its handle"),
        }
    }

    /// Writes `buffer` to the memory of a peer.
    ///
    /// # Errors
    ///
    /// [`Failed`] gives the buffer back.
    pub fn put(
        &self,
        peer: Peer,
        at: RemoteAddress,
        buffer: impl Into<Buffer>,
        options: SendOptions,
    ) -> Result<Operation<M>, Failed> {
        let memory = super::send::memory_of(buffer.into())?;
        let request = self.one_sided(peer, Verb::Put, at, memory.shape.len() as u64, &options);
        self.start(request, memory, &options)
    }

    /// Like [`Self::put`], but the end goes to the completion queue.
    ///
    /// # Errors
    ///
    /// [`Failed`] gives the buffer back.
    pub fn post_put(
        &self,
        peer: Peer,
        at: RemoteAddress,
        buffer: impl Into<Buffer>,
        options: SendOptions,
    ) -> Result<OperationId, Failed> {
        let memory = super::send::memory_of(buffer.into())?;
        let request = self.one_sided(peer, Verb::Put, at, memory.shape.len() as u64, &options);
        let to = self.ends_at(&options);
        self.open().engine.post_one_sided(request, memory, to, options.more).map_err(refused)
    }

    /// Like [`Self::post_put`], and the key opens nothing from then on: the last access that the
    /// target has given away (iWARP's send with invalidate, as a put; it may be empty). The key
    /// needs [`Access::REMOTE_INVALIDATE`](crate::Access::REMOTE_INVALIDATE) beside writing. What
    /// began by it before goes on. What this engine posted by it before and may still be on its way
    /// is refused where it comes later: fence the put ([`SendOptions::fence`]), or flush before.
    ///
    /// # Errors
    ///
    /// [`Failed`] gives the buffer back.
    pub fn post_put_invalidate(
        &self,
        peer: Peer,
        at: RemoteAddress,
        buffer: impl Into<Buffer>,
        options: SendOptions,
    ) -> Result<OperationId, Failed> {
        let memory = super::send::memory_of(buffer.into())?;
        let request = self.one_sided(peer, Verb::Put, at, memory.shape.len() as u64, &options);
        let request = OneSidedRequest { invalidates: true, ..request };
        let to = self.ends_at(&options);
        self.open().engine.post_one_sided(request, memory, to, options.more).map_err(refused)
    }

    /// Writes `pieces`, any number of them, to the memory of a peer; the end goes to the completion
    /// queue.
    ///
    /// # Safety
    ///
    /// As for [`Self::post_send_raw`].
    ///
    /// # Errors
    ///
    /// Why it was not posted.
    pub unsafe fn post_put_raw(
        &self,
        peer: Peer,
        at: RemoteAddress,
        pieces: &[RawSpan],
        options: SendOptions,
    ) -> Result<OperationId, Error> {
        // SAFETY: the caller promises that the memory is valid.
        let shape = unsafe { raw_shape(pieces) }?;
        let request = self.one_sided(peer, Verb::Put, at, shape.len() as u64, &options);
        self.post_raw(request, shape, &options)
    }

    fn post_raw(
        &self,
        request: OneSidedRequest,
        shape: Shape,
        options: &SendOptions,
    ) -> Result<OperationId, Error> {
        let open = self.open();
        open.guard.note_borrowed();
        let (memory, to) = (Memory { buffer: None, shape }, self.ends_at(options));
        let posted = open.engine.post_one_sided(request, memory, to, options.more);
        posted.map_err(|(error, _)| error)
    }

    /// Writes a copy of `bytes` to the memory of a peer (`fi_inject_write`). Nothing is reported
    /// but a failure of the session; [`Self::flush`] tells whether it was refused.
    ///
    /// # Errors
    ///
    /// Why it was not posted: nothing will be written. [`Error::WouldBlock`]: too much is under
    /// way; make progress, and ask again.
    #[inline]
    pub fn inject_put(
        &self,
        peer: Peer,
        at: RemoteAddress,
        bytes: &[u8],
        options: SendOptions,
    ) -> Result<(), Error> {
        let request = self.one_sided(peer, Verb::Put, at, bytes.len() as u64, &options);
        self.open().engine.inject_put(request, bytes, self.ends_at(&options), options.more)
    }

    /// Writes bytes to the memory of a peer, and waits until the put has completed.
    ///
    /// # Errors
    ///
    /// How it failed. [`Error::TimedOut`], as for
    /// [`Self::send_blocking`].
    pub fn put_blocking(
        &self,
        peer: Peer,
        at: RemoteAddress,
        bytes: &[u8],
        options: SendOptions,
    ) -> Result<Status, Error> {
        let shape = Shape::contiguous(bytes.as_ptr().cast_mut(), bytes.len());
        let request = self.one_sided(peer, Verb::Put, at, bytes.len() as u64, &options);
        self.block_on(options.timeout, BlockingCall::new("put_blocking", Some(peer)), |engine| {
            engine.start_one_sided(
                request,
                Memory { buffer: None, shape },
                options.more,
                self.ends_at(&options),
            )
        })
    }

    /// Fills `buffer` with memory of a peer.
    ///
    /// # Errors
    ///
    /// [`Failed`] gives the buffer back.
    pub fn get(
        &self,
        peer: Peer,
        at: RemoteAddress,
        buffer: impl Into<Buffer>,
        options: SendOptions,
    ) -> Result<Operation<M>, Failed> {
        let memory = memory_of(buffer.into())?;
        let request = self.one_sided(peer, Verb::Get, at, memory.shape.len() as u64, &options);
        self.start(request, memory, &options)
    }

    /// Like [`Self::get`], but the end goes to the completion queue.
    ///
    /// # Errors
    ///
    /// [`Failed`] gives the buffer back.
    pub fn post_get(
        &self,
        peer: Peer,
        at: RemoteAddress,
        buffer: impl Into<Buffer>,
        options: SendOptions,
    ) -> Result<OperationId, Failed> {
        let memory = memory_of(buffer.into())?;
        let request = self.one_sided(peer, Verb::Get, at, memory.shape.len() as u64, &options);
        let to = self.ends_at(&options);
        self.open().engine.post_one_sided(request, memory, to, options.more).map_err(refused)
    }

    /// Fills `pieces`, any number of them, with memory of a peer; the end goes to the completion
    /// queue.
    ///
    /// # Safety
    ///
    /// As for [`Self::post_receive_raw`].
    ///
    /// # Errors
    ///
    /// Why it was not posted.
    pub unsafe fn post_get_raw(
        &self,
        peer: Peer,
        at: RemoteAddress,
        pieces: &[RawSpan],
        options: SendOptions,
    ) -> Result<OperationId, Error> {
        // SAFETY: the caller promises that the memory is valid.
        let shape = unsafe { raw_shape(pieces) }?;
        let request = self.one_sided(peer, Verb::Get, at, shape.len() as u64, &options);
        self.post_raw(request, shape, &options)
    }

    /// Fills `into` with memory of a peer, and waits for that.
    ///
    /// # Errors
    ///
    /// How it failed. [`Error::TimedOut`], as for
    /// [`Self::send_blocking`].
    pub fn get_blocking(
        &self,
        peer: Peer,
        at: RemoteAddress,
        into: &mut [u8],
        options: SendOptions,
    ) -> Result<Status, Error> {
        let shape = Shape::contiguous(into.as_mut_ptr(), into.len());
        let request = self.one_sided(peer, Verb::Get, at, into.len() as u64, &options);
        self.block_on(options.timeout, BlockingCall::new("get_blocking", Some(peer)), |engine| {
            engine.start_one_sided(
                request,
                Memory { buffer: None, shape },
                options.more,
                self.ends_at(&options),
            )
        })
    }

    /// Applies an atomic operation to memory of a peer, without fetching; the end goes to the
    /// completion queue.
    ///
    /// # Errors
    ///
    /// Why it was not posted.
    pub fn post_atomic(
        &self,
        peer: Peer,
        at: RemoteAddress,
        atomic: &Atomic<'_>,
        options: SendOptions,
    ) -> Result<OperationId, Error> {
        let (verb, length, operands) = atomic.parts(0)?;
        let request = self.one_sided(peer, verb, at, length, &options);
        let request = OneSidedRequest { operands, ..request };
        let to = self.ends_at(&options);
        let posted =
            self.open().engine.post_one_sided(request, Memory::nothing(), to, options.more);
        posted.map_err(|(error, _)| error)
    }

    /// Applies an atomic operation to memory of a peer and fetches the values of before into
    /// `buffer`; the end goes to the completion queue.
    ///
    /// # Errors
    ///
    /// [`Failed`] gives the buffer back.
    pub fn post_fetch_atomic(
        &self,
        peer: Peer,
        at: RemoteAddress,
        atomic: &Atomic<'_>,
        buffer: impl Into<Buffer>,
        options: SendOptions,
    ) -> Result<OperationId, Failed> {
        let memory = memory_of(buffer.into())?;
        let parts = atomic.parts(memory.shape.len());
        let (verb, length, operands) = match parts {
            Ok(parts) => parts,
            Err(error) => return Err(refused((error, memory))),
        };
        let request = self.one_sided(peer, verb, at, length, &options);
        let request = OneSidedRequest { operands, ..request };
        let to = self.ends_at(&options);
        self.open().engine.post_one_sided(request, memory, to, options.more).map_err(refused)
    }

    /// Like [`Self::post_fetch_atomic`], into `pieces`, any number of them.
    ///
    /// # Safety
    ///
    /// As for [`Self::post_receive_raw`].
    ///
    /// # Errors
    ///
    /// Why it was not posted.
    pub unsafe fn post_fetch_atomic_raw(
        &self,
        peer: Peer,
        at: RemoteAddress,
        atomic: &Atomic<'_>,
        pieces: &[RawSpan],
        options: SendOptions,
    ) -> Result<OperationId, Error> {
        // SAFETY: the caller promises that the memory is valid.
        let shape = unsafe { raw_shape(pieces) }?;
        let (verb, length, operands) = atomic.parts(shape.len())?;
        let request = self.one_sided(peer, verb, at, length, &options);
        self.post_raw(OneSidedRequest { operands, ..request }, shape, &options)
    }

    /// Applies an atomic operation to memory of a peer, waits for it, and fetches the values of
    /// before into `fetched`, unless that is empty.
    ///
    /// # Errors
    ///
    /// How it failed. [`Error::TimedOut`], as for
    /// [`Self::send_blocking`].
    pub fn atomic_blocking(
        &self,
        peer: Peer,
        at: RemoteAddress,
        atomic: &Atomic<'_>,
        fetched: &mut [u8],
        options: SendOptions,
    ) -> Result<(), Error> {
        let (verb, length, operands) = atomic.parts(fetched.len())?;
        let request = self.one_sided(peer, verb, at, length, &options);
        let request = OneSidedRequest { operands, ..request };
        let shape = Shape::contiguous(fetched.as_mut_ptr(), fetched.len());
        let status = self.block_on(
            options.timeout,
            BlockingCall::new("atomic_blocking", Some(peer)),
            |engine| {
                engine.start_one_sided(
                    request,
                    Memory { buffer: None, shape },
                    options.more,
                    self.ends_at(&options),
                )
            },
        );
        status.map(drop)
    }

    /// Adds to a 64-bit word of a peer and gives its value of before.
    ///
    /// # Errors
    ///
    /// As for [`Self::atomic_blocking`].
    pub fn fetch_add(&self, peer: Peer, at: RemoteAddress, value: u64) -> Result<u64, Error> {
        let operand = value.to_ne_bytes();
        let mut before = [0; 8];
        let atomic = Atomic::new(AtomicOp::Sum, Datatype::U64, &operand);
        self.atomic_blocking(peer, at, &atomic, &mut before, SendOptions::new())?;
        Ok(u64::from_ne_bytes(before))
    }

    /// Writes `new` to a 64-bit word of a peer where that is `expected`, and gives its value of
    /// before: it was written if that is `expected`.
    ///
    /// # Errors
    ///
    /// As for [`Self::atomic_blocking`].
    pub fn compare_swap(
        &self,
        peer: Peer,
        at: RemoteAddress,
        expected: u64,
        new: u64,
    ) -> Result<u64, Error> {
        let (compare, operands) = (expected.to_ne_bytes(), new.to_ne_bytes());
        let mut before = [0; 8];
        let atomic = Atomic {
            op: AtomicOp::CompareSwap,
            datatype: Datatype::U64,
            operands: &operands,
            compare: &compare,
        };
        self.atomic_blocking(peer, at, &atomic, &mut before, SendOptions::new())?;
        Ok(u64::from_ne_bytes(before))
    }

    /// Waits until all operations on the memory of a peer that were posted before are done there.
    ///
    /// # Errors
    ///
    /// [`Error::Unflushed`] counts operations without an answer that the peer refused since the
    /// last flush, by any endpoint of this engine. How it failed else.
    pub fn flush(&self, peer: Peer, options: SendOptions) -> Result<(), Error> {
        let at = RemoteAddress { key: super::region::RemoteKey(0), offset: 0 };
        let request = self.one_sided(peer, Verb::Flush, at, 0, &options);
        let flushed =
            self.block_on(options.timeout, BlockingCall::new("flush", Some(peer)), |engine| {
                engine.start_one_sided(
                    request,
                    Memory::nothing(),
                    options.more,
                    self.ends_at(&options),
                )
            });
        flushed.map(drop)
    }

    /// Like [`Self::flush`], without waiting: the end goes to the completion queue.
    ///
    /// # Errors
    ///
    /// Why it was not posted.
    pub fn post_flush(&self, peer: Peer, options: SendOptions) -> Result<OperationId, Error> {
        let at = RemoteAddress { key: super::region::RemoteKey(0), offset: 0 };
        let request = self.one_sided(peer, Verb::Flush, at, 0, &options);
        let to = self.ends_at(&options);
        let posted =
            self.open().engine.post_one_sided(request, Memory::nothing(), to, options.more);
        posted.map_err(|(error, _)| error)
    }
}
