//! Sends.

use super::endpoint::Endpoint;
use super::engine_ref::EngineRef;
use super::mode::Attached;
use super::operation::Operation;
use super::options::SendOptions;
use crate::memory::{Buffer, RawSpan, Span, raw_shape};
use crate::progress::completions::PostedTo;
use crate::progress::post::{Memory, PostResult, Refused};
use crate::progress::posting::PostTarget;
use crate::proto::effects::CompletionLevel;
use crate::proto::session::send::SendRequest;
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
        // Untagged messages have no context.
        let hint = open.hints.of(u32::try_from(context).ok(), options.hint);
        let (endpoint, level) = (open.number, options.level);
        let (length, data, fence) = (length as u64, options.data, options.fence);
        SendRequest { endpoint, peer: peer.0, context, tag, length, level, hint, data, fence }
    }

    #[inline]
    fn sent_to(&self, options: &SendOptions) -> PostedTo {
        let (user_data, silent) = (options.user_data, options.silent);
        PostedTo { queue: M::Engine::number_of(&self.open().queues.transmit), user_data, silent }
    }

    /// Sends a message; the operation owns the buffer until it ends.
    ///
    /// # Errors
    ///
    /// [`Failed`] returns the buffer: [`Error::WouldBlock`] at a limit, [`Error::Peer`] if the peer
    /// has failed.
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
        let posted = engine.posts().start_send(&request, memory, options.more).map_err(refused)?;
        Ok(match posted {
            PostResult::Sent(status, buffer) => Operation::ready(Completed {
                status,
                buffer: buffer.unwrap_or_else(|| Buffer::Heap(Vec::new())),
            }),
            PostResult::Pending(handle) => Operation::pending(engine.clone(), handle),
        })
    }

    /// Like [`Self::send`], but it completes in the completion queue, with
    /// [`SendOptions::user_data`]. `None`: the send is complete already; its completion is in the
    /// queue, unless it is silent.
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
        let posted = self.open().engine.posts().post_send(
            &request,
            memory,
            self.sent_to(&options),
            options.more,
        );
        posted.map_err(refused)
    }

    /// Sends a copy of `bytes`, which can be reused on return (`fi_inject`). There is no completion
    /// unless the message fails later. The level is [`CompletionLevel::Inject`]; that of the
    /// options is ignored.
    ///
    /// # Errors
    ///
    /// [`Error::WouldBlock`] if the message cannot be sent now (no connection yet, or no credit):
    /// make progress and try again, or use [`Self::send_blocking`]. [`Error::Misuse`] if it is
    /// longer than `inject_limit_bytes`, [`Error::Peer`] if the peer has failed.
    #[inline]
    pub fn inject(
        &self,
        peer: Peer,
        envelope: Envelope,
        bytes: &[u8],
        options: SendOptions,
    ) -> Result<(), Error> {
        let options = options.level(CompletionLevel::Inject).silent(true);
        let request = self.send_request(peer, envelope, bytes.len(), &options);
        self.open().engine.posts().inject(&request, bytes, self.sent_to(&options), options.more)
    }

    /// Sends the bytes of any number of `pieces`, in order (`fi_sendv`); otherwise like
    /// [`Self::post_send`].
    ///
    /// # Safety
    ///
    /// The memory stays valid and unchanged until the operation has ended: this returned an error
    /// or `Ok(None)`, its completion was read from the queue, or the drop of the endpoint has
    /// returned, whichever comes first (see [`Endpoint`], *Closing*). An endpoint that is leaked
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
        // SAFETY: the caller guarantees that the memory is valid.
        let shape = unsafe { raw_shape(pieces) }?;
        let request = self.send_request(peer, envelope, shape.len(), &options);
        let (open, to) = (self.open(), self.sent_to(&options));
        open.guard.note_borrowed();
        let posts = open.engine.posts();
        if let Some(Span { ptr, len }) = shape.as_span() {
            return posts.post_send_from(&request, RawSpan { ptr, len }, to, options.more);
        }
        let posted = posts.post_send(&request, Memory { buffer: None, shape }, to, options.more);
        posted.map_err(|(error, _)| error)
    }
}

/// The error and the buffer of a refused post.
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
