//! Receives.

use super::endpoint::Endpoint;
use super::engine_ref::EngineRef;
use super::mode::Attached;
use super::operation::Operation;
use super::options::ReceiveOptions;
use super::send::refused;
use crate::memory::{Buffer, RawSpan, raw_shape};
use crate::progress::completions::{PostedTo, ReceiveMemory};
use crate::progress::post::Memory;
use crate::progress::posting::PostTarget;
use crate::proto::receive::ReceiveRequest;
use crate::types::{Error, Failed, OperationId, Selector};

impl<M: Attached> Endpoint<M> {
    #[inline]
    pub(super) fn receive_request(&self, selector: &Selector, capacity: usize) -> ReceiveRequest {
        let (endpoint, peer) = (self.open().number, selector.source.map(|peer| peer.0));
        let ((context, tag), ignore) = (selector.envelope.parts(), selector.ignore);
        let (capacity, min_free) = (capacity as u64, None);
        ReceiveRequest { endpoint, peer, context, tag, ignore, capacity, min_free }
    }

    #[inline]
    pub(super) fn received_to(&self, options: &ReceiveOptions) -> PostedTo {
        let (user_data, silent) = (options.user_data, options.silent);
        PostedTo { queue: M::Engine::number_of(&self.open().queues.receive), user_data, silent }
    }

    /// Receives a message into a buffer that the operation owns until it ends.
    ///
    /// If the message is longer than the buffer, the operation ends with [`Error::Truncated`], and
    /// the buffer contains the beginning.
    ///
    /// # Cancel safety
    ///
    /// Dropping the operation loses no message that has arrived completely: see [`Operation`],
    /// *Dropping*. It is **not** cancel-safe while a message is being received that takes several
    /// packets (longer than [`Endpoint::eager_limit_bytes`]): in a `select!`, keep the operation
    /// and poll it by reference.
    ///
    /// # Errors
    ///
    /// [`Failed`] returns the buffer.
    pub fn receive(
        &self,
        selector: Selector,
        buffer: impl Into<Buffer>,
    ) -> Result<Operation<M>, Failed> {
        let memory = memory_of(buffer.into())?;
        let request = self.receive_request(&selector, memory.shape.len());
        let engine = &self.open().engine;
        let handle = engine.posts().start_receive(&request, memory).map_err(refused)?;
        Ok(Operation::receiving(engine.clone(), handle, request.endpoint))
    }

    /// Like [`Self::receive`], but it completes in the completion queue, with
    /// [`ReceiveOptions::user_data`].
    ///
    /// # Errors
    ///
    /// [`Failed`] returns the buffer.
    #[inline]
    pub fn post_receive(
        &self,
        selector: Selector,
        buffer: impl Into<Buffer>,
        options: ReceiveOptions,
    ) -> Result<OperationId, Failed> {
        let (engine, to) = (&self.open().engine, self.received_to(&options));
        match ReceiveMemory::of(buffer.into()) {
            Ok(mut memory) => {
                let request = self.receive_request(&selector, memory.len());
                match engine.posts().post_into(&request, &mut memory, to) {
                    Ok(posted) => Ok(posted),
                    Err(error) => Err(Failed::new((error, memory.into_buffer()))),
                }
            }
            Err(buffer) => {
                let memory = memory_of(buffer)?;
                let request = self.receive_request(&selector, memory.shape.len());
                engine.posts().post_receive(&request, memory, to).map_err(refused)
            }
        }
    }

    /// Receives several messages into one buffer, one after the other (`FI_MULTI_RECV`).
    ///
    /// It keeps its place among the posted receives, and matches each message that `selector`
    /// accepts until fewer than `min_free` bytes (at least 1) are free. Each message completes as a
    /// receive, with [`Completion::offset`](crate::Completion::offset) and without a buffer; one
    /// that is longer than the free space is truncated ([`Error::Truncated`]). After the last of
    /// them a completion of kind
    /// [`OperationKind::MultiReceive`](crate::OperationKind::MultiReceive) returns the buffer; it
    /// comes earlier if the completion queue has no room for another message, which then waits for
    /// the next receive. All completions have the same `user_data`. [`Self::cancel`] ends it after
    /// the messages that it has matched.
    ///
    /// # Errors
    ///
    /// [`Failed`] returns the buffer. [`Error::Misuse`] for a buffer of 4 GiB or more.
    pub fn post_receive_many(
        &self,
        selector: Selector,
        buffer: impl Into<Buffer>,
        min_free: usize,
        options: ReceiveOptions,
    ) -> Result<OperationId, Failed> {
        let memory = memory_of(buffer.into())?;
        let mut request = self.receive_request(&selector, memory.shape.len());
        request.min_free = Some(min_free as u64);
        let posted =
            self.open().engine.posts().post_receive(&request, memory, self.received_to(&options));
        posted.map_err(refused)
    }

    /// Receives several messages into `pieces`, which count as one buffer; otherwise like
    /// [`Self::post_receive_many`].
    ///
    /// # Safety
    ///
    /// As for [`Self::post_receive_raw`], until its completion of kind
    /// [`OperationKind::MultiReceive`](crate::OperationKind::MultiReceive) was read.
    ///
    /// # Errors
    ///
    /// As for [`Self::post_receive_many`].
    pub unsafe fn post_receive_many_raw(
        &self,
        selector: Selector,
        pieces: &[RawSpan],
        min_free: usize,
        options: ReceiveOptions,
    ) -> Result<OperationId, Error> {
        // SAFETY: the caller guarantees that the memory is valid.
        let shape = unsafe { raw_shape(pieces) }?;
        let mut request = self.receive_request(&selector, shape.len());
        request.min_free = Some(min_free as u64);
        let memory = Memory { buffer: None, shape };
        let open = self.open();
        open.guard.note_borrowed();
        let posted = open.engine.posts().post_receive(&request, memory, self.received_to(&options));
        posted.map_err(|(error, _)| error)
    }

    /// Receives into any number of `pieces`, in order (`fi_recvv`); otherwise like
    /// [`Self::post_receive`].
    ///
    /// # Safety
    ///
    /// The memory stays valid, and is not accessed otherwise, until the operation has ended: this
    /// returned an error, its completion was read from the queue, or the drop of the endpoint has
    /// returned, whichever comes first (see [`Endpoint`], *Closing*). A silent receive that
    /// succeeds has no completion: the program has to learn of its end by a later message. An
    /// endpoint that is leaked (`mem::forget`) never closes.
    ///
    /// # Errors
    ///
    /// As for [`Self::receive`].
    pub unsafe fn post_receive_raw(
        &self,
        selector: Selector,
        pieces: &[RawSpan],
        options: ReceiveOptions,
    ) -> Result<OperationId, Error> {
        // SAFETY: the caller guarantees that the memory is valid.
        let shape = unsafe { raw_shape(pieces) }?;
        let request = self.receive_request(&selector, shape.len());
        let (open, to) = (self.open(), self.received_to(&options));
        open.guard.note_borrowed();
        if let Some(span) = shape.as_span() {
            return open.engine.posts().post_into(&request, &mut ReceiveMemory::borrowed(span), to);
        }
        let posted = open.engine.posts().post_receive(&request, Memory { buffer: None, shape }, to);
        posted.map_err(|(error, _)| error)
    }
}

/// The memory of a receive.
#[inline]
pub(super) fn memory_of(mut buffer: Buffer) -> Result<Memory, Failed> {
    match buffer.shape_for_recv() {
        Ok(shape) => Ok(Memory { buffer: Some(buffer), shape }),
        Err(error) => Err(Failed { error: error.into(), buffer }),
    }
}
