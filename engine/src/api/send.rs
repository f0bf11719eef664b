//! Sends.

use super::endpoint::Endpoint;
use super::engine_ref::EngineRef;
use super::mode::Attached;
use super::operation::Operation;
use super::options::SendOptions;
use crate::memory::{Buffer, RawSpan, raw_shape};
use crate::progress::completions::PostedTo;
use crate::progress::post::{Memory, Posted, Refused};
use crate::proto::effects::CompletionLevel;
use crate::proto::send::SendRequest;
use crate::types::{Completed, Envelope, Error, Failed, OperationId, Peer};

impl<M: Attached> Endpoint<M> {
    #[inline]
    pub(super) fn send_request(
        &self,
        peer: Peer,
        envelope: Envelope,
        length: usize,
        options: &SendOptions,
    ) -> SendRequest {
        let open = self.open();
        let (context, tag) = envelope.parts();
        // What has no tag has no context either.
        let hint = open.hints.of(u32::try_from(context).ok(), options.hint);
        let (endpoint, level) = (open.number, options.level);
        let (length, data, fence) = (length as u64, options.data, options.fence);
        SendRequest { endpoint, peer: peer.0, context, tag, length, level, hint, data, fence }
    }

    #[inline]
    fn sent_to(&self, options: &SendOptions) -> PostedTo<&<M::Engine as EngineRef>::Queue> {
        let (user_data, silent) = (options.user_data, options.silent);
        PostedTo { queue: &self.open().queues.transmit, user_data, silent }
    }

    /// Sends a message; the operation owns the buffer until it ends.
    ///
    /// # Errors
    ///
    /// [`Failed`] gives the buffer back: [`Error::WouldBlock`] at a bound, [`Error::Peer`] when
    /// the peer has failed.
    pub fn send(
        &self,
        peer: Peer,
        envelope: Envelope,
        buffer: impl Into<Buffer>,
        options: SendOptions,
    ) -> Result<Operation<M>, Failed> {
        let memory = memory_of(buffer.into())?;
        let request = self.send_request(peer, envelope, memory.shape.len(), &options);
        let engine = &self.open().engine;
        let posted = engine.start_send(&request, memory, options.more).map_err(refused)?;
        Ok(match posted {
            Posted::Sent(status, buffer) => Operation::ready(Completed {
                status,
                buffer: buffer.unwrap_or_else(|| Buffer::Heap(Vec::new())),
            }),
            Posted::Pending(handle) => Operation::pending(engine.clone(), handle),
        })
    }

    /// Like [`Self::send`], but the end goes to the completion queue, with
    /// [`SendOptions::user_data`]. `None`: the send is over already; its completion is in the
    /// queue, unless it is a silent one.
    ///
    /// # Errors
    ///
    /// As for [`Self::send`].
    #[inline]
    pub fn post_send(
        &self,
        peer: Peer,
        envelope: Envelope,
        buffer: impl Into<Buffer>,
        options: SendOptions,
    ) -> Result<Option<OperationId>, Failed> {
        let memory = memory_of(buffer.into())?;
        let request = self.send_request(peer, envelope, memory.shape.len(), &options);
        let posted =
            self.open().engine.post_send(&request, memory, self.sent_to(&options), options.more);
        posted.map_err(refused)
    }

    /// Sends a copy of `bytes`, which can be reused on return. There is no completion unless the
    /// message fails later (`fi_inject`). The level is [`CompletionLevel::Inject`], whatever the
    /// options say. The bytes of a send with [`Hint::Bulk`](crate::Hint::Bulk), too, are copied at
    /// once.
    ///
    /// # Errors
    ///
    /// [`Error::WouldBlock`] when they cannot go out now (no connection yet, or no credit): make
    /// progress and try again, or use [`Self::send_blocking`]. [`Error::Misuse`] when they are
    /// longer than `inject_limit_bytes`, [`Error::Peer`] when the peer has failed.
    #[inline]
    pub fn inject(
        &self,
        peer: Peer,
        envelope: Envelope,
        bytes: &[u8],
        options: SendOptions,
    ) -> Result<(), Error> {
        let options = SendOptions { level: CompletionLevel::Inject, silent: true, ..options };
        let request = self.send_request(peer, envelope, bytes.len(), &options);
        self.open().engine.inject(&request, bytes, self.sent_to(&options), options.more)
    }

    /// Sends the bytes of `pieces`, any number of them, in order; otherwise as
    /// [`Self::post_send`].
    ///
    /// # Safety
    ///
    /// The memory stays valid and unchanged until the operation has ended: this returned an error
    /// or `Ok(None)`, its completion was taken from the queue, or the drop of the endpoint
    /// returned, whichever comes first (see [`Endpoint`], *Closing*). An endpoint that is forgotten
    /// (`mem::forget`) never closes.
    ///
    /// # Errors
    ///
    /// As for [`Self::send`].
    pub unsafe fn post_send_raw(
        &self,
        peer: Peer,
        envelope: Envelope,
        pieces: &[RawSpan],
        options: SendOptions,
    ) -> Result<Option<OperationId>, Error> {
        // SAFETY: the caller promises that the memory is valid.
        let shape = unsafe { raw_shape(pieces) }?;
        let request = self.send_request(peer, envelope, shape.len(), &options);
        let memory = Memory { buffer: None, shape };
        let open = self.open();
        open.guard.note_borrowed();
        let posted = open.engine.post_send(&request, memory, self.sent_to(&options), options.more);
        posted.map_err(|(error, _)| error)
    }
}

/// What is left of a refused post.
pub(super) fn refused((error, memory): Refused) -> Failed {
    Failed::new((error, memory.buffer))
}

/// The memory of a send.
#[inline]
pub(super) fn memory_of(mut buffer: Buffer) -> Result<Memory, Failed> {
    match buffer.shape_for_send() {
        Ok(shape) => Ok(Memory { buffer: Some(buffer), shape }),
        Err(error) => Err(Failed { error: error.into(), buffer }),
    }
}
