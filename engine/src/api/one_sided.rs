//! One-sided operations: put, get, and atomics on the memory of peers.

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
use crate::progress::post::{Memory, PostResult, Refused};
use crate::progress::posting::PostTarget;
use crate::proto::session::one_sided::Verb;
use crate::proto::session::one_sided::origin::OneSidedRequest;
use crate::types::{AtomicOp, Datatype, Envelope, Error, Failed, OperationId, Peer, Status};
use crate::wire::one_sided::{FLAG_COMPARE, FLAG_FETCH, FLAG_NO_OPERANDS};

/// An atomic operation on elements in the memory of a peer, in the byte order of the target; at
/// most [`Self::BYTES_MAX`] bytes of elements.
///
/// ```
/// # let settings = ringrail::settings::Settings::isolated().set("listen_address", "127.0.0.1");
/// # let domain = ringrail::Domain::with_settings(settings.insecure(true).build()?)?;
/// # let (left, right) = (domain.endpoint()?.share()?, domain.endpoint()?.share()?);
/// # let peer = left.insert_peer(&right.address())?;
/// use ringrail::{Access, Atomic, AtomicOp, Datatype, KeyOptions, SendOptions};
///
/// let region = right.allocate_region(64)?;
/// // An operation that fetches also needs the right to read.
/// let key = region.key(&KeyOptions::new(Access::REMOTE_ATOMIC | Access::REMOTE_READ))?;
/// // Adds to two elements at once, and fetches their previous values.
/// let operands = [5_u64, 7].map(u64::to_ne_bytes).concat();
/// let add = Atomic::new(AtomicOp::Sum, Datatype::U64, &operands);
/// let mut previous = [1; 16];
/// left.atomic_blocking(peer, key.at(0), &add, &mut previous, SendOptions::new())?;
/// assert_eq!(previous, [0; 16]);
/// let mut values = [0; 8];
/// region.read(8, &mut values)?;
/// assert_eq!(u64::from_ne_bytes(values), 7);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Atomic<'a> {
    /// The operation on each element.
    pub op: AtomicOp,
    /// The type of the elements.
    pub datatype: Datatype,
    /// One operand for each element; none for [`AtomicOp::Read`].
    pub operands: &'a [u8],
    /// One comparand for each element, for operations that compare; the mask for
    /// [`AtomicOp::MaskedSwap`].
    pub compare: &'a [u8],
}

impl<'a> Atomic<'a> {
    /// Maximum bytes of elements of one operation.
    pub const BYTES_MAX: usize = crate::wire::one_sided::ATOMIC_BYTES_MAX;

    /// An operation without comparands.
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

/// # One-sided operations
///
/// They need no call at the target: its engine executes them in any call that makes progress, in
/// the thread of a shared or dedicated engine, or, after a millisecond without a call, in the
/// background thread of the process (long transfers wait for the owner).
///
/// *Completion.* A put or a non-fetching atomic operation at
/// [`CompletionLevel::Inject`](crate::CompletionLevel::Inject) completes when its buffer may be
/// reused; [`Self::flush`] reports how many of them the target refused. At each other level it
/// completes when it is executed at the target, or with [`Error::Refused`]. Gets and fetching
/// operations complete when the result has arrived. A long put (pulled by the target) completes
/// when it is executed, at all levels.
///
/// *Order.* Operations are not ordered with each other or with messages, except by completion,
/// fences and [`Self::flush`].
///
/// An operation with a fence ([`SendOptions::fence`]) starts when all earlier operations on the
/// memory of that peer are executed, as after a flush; if some of these were refused, it is
/// reported in its completion as by a flush.
///
/// *Failures.* If the session with the peer fails, operations that have not completed end with
/// [`Error::Peer`]; they may or may not have been executed, and the bytes of such a put at its
/// target are undefined. None is executed twice.
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

    fn ends_at(&self, options: &SendOptions) -> PostedTo {
        let (user_data, silent) = (options.user_data, options.silent);
        PostedTo { queue: M::Engine::number_of(&self.open().queues.transmit), user_data, silent }
    }

    /// Posts an operation that ends in the queue of this endpoint.
    #[inline]
    fn post_one_sided(
        &self,
        request: OneSidedRequest,
        memory: Memory,
        options: &SendOptions,
    ) -> Result<OperationId, Refused> {
        let to = self.ends_at(options);
        self.open().engine.posts().post_one_sided(request, memory, to, options.more)
    }

    /// Waits for the end of an operation, in the call of this name.
    fn block_on_one_sided(
        &self,
        call: &'static str,
        peer: Peer,
        request: OneSidedRequest,
        memory: Memory,
        options: &SendOptions,
    ) -> Result<Status, Error> {
        self.block_on(options.timeout, BlockingCall::new(call, Some(peer)), |engine| {
            engine.posts().start_one_sided(request, memory, options.more, self.ends_at(options))
        })
    }

    pub(super) fn start(
        &self,
        request: OneSidedRequest,
        memory: Memory,
        options: &SendOptions,
    ) -> Result<Operation<M>, Failed> {
        let engine = &self.open().engine;
        let to = self.ends_at(options);
        match engine.posts().start_one_sided(request, memory, options.more, to).map_err(refused)? {
            PostResult::Pending(handle) => Ok(Operation::pending(engine.clone(), handle)),
            PostResult::Sent(..) => {
                unreachable!("an operation on memory is posted with its handle")
            }
        }
    }

    /// Writes `buffer` to the memory of a peer.
    ///
    /// # Errors
    ///
    /// [`Failed`] returns the buffer.
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

    /// Like [`Self::put`], but it completes in the completion queue.
    ///
    /// # Errors
    ///
    /// [`Failed`] returns the buffer.
    pub fn post_put(
        &self,
        peer: Peer,
        at: RemoteAddress,
        buffer: impl Into<Buffer>,
        options: SendOptions,
    ) -> Result<OperationId, Failed> {
        let memory = super::send::memory_of(buffer.into())?;
        let request = self.one_sided(peer, Verb::Put, at, memory.shape.len() as u64, &options);
        self.post_one_sided(request, memory, &options).map_err(refused)
    }

    /// Like [`Self::post_put`], and invalidates the key (iWARP's send with invalidate, as a put; it
    /// may be empty). The key needs [`Access::REMOTE_INVALIDATE`](crate::Access::REMOTE_INVALIDATE)
    /// besides write access. Operations in progress go on. Earlier operations of this engine with
    /// the key are refused if they arrive later: set a fence ([`SendOptions::fence`]), or flush
    /// before.
    ///
    /// # Errors
    ///
    /// [`Failed`] returns the buffer.
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
        self.post_one_sided(request, memory, &options).map_err(refused)
    }

    /// Writes any number of `pieces` to the memory of a peer (`fi_writev`); it completes in the
    /// completion queue.
    ///
    /// # Safety
    ///
    /// As for [`Self::post_send_raw`].
    ///
    /// # Errors
    ///
    /// The cause, if it was not posted.
    pub unsafe fn post_put_raw(
        &self,
        peer: Peer,
        at: RemoteAddress,
        pieces: &[RawSpan],
        options: SendOptions,
    ) -> Result<OperationId, Error> {
        // SAFETY: the caller guarantees that the memory is valid.
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
        self.open().guard.note_borrowed();
        let posted = self.post_one_sided(request, Memory { buffer: None, shape }, options);
        posted.map_err(|(error, _)| error)
    }

    /// Writes a copy of `bytes` to the memory of a peer (`fi_inject_write`). Only a failure of the
    /// session is reported; [`Self::flush`] reports refusals.
    ///
    /// # Errors
    ///
    /// The cause, if it was not posted. [`Error::WouldBlock`] if too many operations are
    /// outstanding: make progress, and try again.
    #[inline]
    pub fn inject_put(
        &self,
        peer: Peer,
        at: RemoteAddress,
        bytes: &[u8],
        options: SendOptions,
    ) -> Result<(), Error> {
        let request = self.one_sided(peer, Verb::Put, at, bytes.len() as u64, &options);
        self.open().engine.posts().inject_put(request, bytes, self.ends_at(&options), options.more)
    }

    /// Writes bytes to the memory of a peer, and waits until the put has completed.
    ///
    /// # Errors
    ///
    /// The error of the operation. [`Error::TimedOut`], as for [`Self::send_blocking`].
    pub fn put_blocking(
        &self,
        peer: Peer,
        at: RemoteAddress,
        bytes: &[u8],
        options: SendOptions,
    ) -> Result<Status, Error> {
        let shape = Shape::contiguous(bytes.as_ptr().cast_mut(), bytes.len());
        let request = self.one_sided(peer, Verb::Put, at, bytes.len() as u64, &options);
        self.block_on_one_sided(
            "put_blocking",
            peer,
            request,
            Memory { buffer: None, shape },
            &options,
        )
    }

    /// Reads memory of a peer into `buffer`.
    ///
    /// # Errors
    ///
    /// [`Failed`] returns the buffer.
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

    /// Like [`Self::get`], but it completes in the completion queue.
    ///
    /// # Errors
    ///
    /// [`Failed`] returns the buffer.
    pub fn post_get(
        &self,
        peer: Peer,
        at: RemoteAddress,
        buffer: impl Into<Buffer>,
        options: SendOptions,
    ) -> Result<OperationId, Failed> {
        let memory = memory_of(buffer.into())?;
        let request = self.one_sided(peer, Verb::Get, at, memory.shape.len() as u64, &options);
        self.post_one_sided(request, memory, &options).map_err(refused)
    }

    /// Reads memory of a peer into any number of `pieces` (`fi_readv`); it completes in the
    /// completion queue.
    ///
    /// # Safety
    ///
    /// As for [`Self::post_receive_raw`].
    ///
    /// # Errors
    ///
    /// The cause, if it was not posted.
    pub unsafe fn post_get_raw(
        &self,
        peer: Peer,
        at: RemoteAddress,
        pieces: &[RawSpan],
        options: SendOptions,
    ) -> Result<OperationId, Error> {
        // SAFETY: the caller guarantees that the memory is valid.
        let shape = unsafe { raw_shape(pieces) }?;
        let request = self.one_sided(peer, Verb::Get, at, shape.len() as u64, &options);
        self.post_raw(request, shape, &options)
    }

    /// Reads memory of a peer into `into`, and waits for it.
    ///
    /// # Errors
    ///
    /// The error of the operation. [`Error::TimedOut`], as for [`Self::send_blocking`].
    pub fn get_blocking(
        &self,
        peer: Peer,
        at: RemoteAddress,
        into: &mut [u8],
        options: SendOptions,
    ) -> Result<Status, Error> {
        let shape = Shape::contiguous(into.as_mut_ptr(), into.len());
        let request = self.one_sided(peer, Verb::Get, at, into.len() as u64, &options);
        self.block_on_one_sided(
            "get_blocking",
            peer,
            request,
            Memory { buffer: None, shape },
            &options,
        )
    }

    /// Applies an atomic operation to memory of a peer, without fetching; it completes in the
    /// completion queue.
    ///
    /// # Errors
    ///
    /// The cause, if it was not posted.
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
        let posted = self.post_one_sided(request, Memory::nothing(), &options);
        posted.map_err(|(error, _)| error)
    }

    /// Applies an atomic operation to memory of a peer and fetches the previous values into
    /// `buffer`; it completes in the completion queue.
    ///
    /// # Errors
    ///
    /// [`Failed`] returns the buffer.
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
        self.post_one_sided(request, memory, &options).map_err(refused)
    }

    /// Like [`Self::post_fetch_atomic`], into any number of `pieces`.
    ///
    /// # Safety
    ///
    /// As for [`Self::post_receive_raw`].
    ///
    /// # Errors
    ///
    /// The cause, if it was not posted.
    pub unsafe fn post_fetch_atomic_raw(
        &self,
        peer: Peer,
        at: RemoteAddress,
        atomic: &Atomic<'_>,
        pieces: &[RawSpan],
        options: SendOptions,
    ) -> Result<OperationId, Error> {
        // SAFETY: the caller guarantees that the memory is valid.
        let shape = unsafe { raw_shape(pieces) }?;
        let (verb, length, operands) = atomic.parts(shape.len())?;
        let request = self.one_sided(peer, verb, at, length, &options);
        self.post_raw(OneSidedRequest { operands, ..request }, shape, &options)
    }

    /// Applies an atomic operation to memory of a peer, waits for it, and fetches the previous
    /// values into `fetched`, unless that is empty.
    ///
    /// # Errors
    ///
    /// The error of the operation. [`Error::TimedOut`], as for [`Self::send_blocking`].
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
        let memory = Memory { buffer: None, shape };
        self.block_on_one_sided("atomic_blocking", peer, request, memory, &options).map(drop)
    }

    /// Adds to a 64-bit word of a peer, and returns its previous value.
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

    /// Writes `new` to a 64-bit word of a peer if its value is `expected`, and returns the previous
    /// value: it was written if that is `expected`.
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

    /// Waits until all earlier operations on the memory of a peer are executed there.
    ///
    /// # Errors
    ///
    /// [`Error::Unflushed`] with the number of operations at
    /// [`CompletionLevel::Inject`](crate::CompletionLevel::Inject), of all endpoints of this
    /// engine, that the peer has refused since the last flush; else the error of the flush itself.
    pub fn flush(&self, peer: Peer, options: SendOptions) -> Result<(), Error> {
        let at = RemoteAddress { key: super::region::RemoteKey(0), offset: 0 };
        let request = self.one_sided(peer, Verb::Flush, at, 0, &options);
        self.block_on_one_sided("flush", peer, request, Memory::nothing(), &options).map(drop)
    }

    /// Like [`Self::flush`], without waiting: it completes in the completion queue.
    ///
    /// # Errors
    ///
    /// The cause, if it was not posted.
    pub fn post_flush(&self, peer: Peer, options: SendOptions) -> Result<OperationId, Error> {
        let at = RemoteAddress { key: super::region::RemoteKey(0), offset: 0 };
        let request = self.one_sided(peer, Verb::Flush, at, 0, &options);
        let posted = self.post_one_sided(request, Memory::nothing(), &options);
        posted.map_err(|(error, _)| error)
    }
}
