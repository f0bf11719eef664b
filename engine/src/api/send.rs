//! Sends.

use std::rc::Rc;

use super::endpoint::{Endpoint, Owned};
use super::operation::Operation;
use super::options::{Rejected, SendOptions};
use crate::memory::{Buffer, RawSpan, raw_shape};
use crate::progress::completions::Route;
use crate::progress::post::{Memory, Posted};
use crate::proto::core::UNTAGGED;
use crate::proto::effects::CompletionLevel;
use crate::proto::send::SendRequest;
use crate::types::{Envelope, Error, Hint, OperationId, Outcome, Peer};

impl Endpoint<Owned> {
    #[inline]
    pub(super) fn send_request(
        &self,
        peer: Peer,
        context: u64,
        tag: u64,
        length: usize,
        (level, said): (CompletionLevel, Option<Hint>),
    ) -> SendRequest {
        let (endpoint, length) = (self.mode.endpoint, length as u64);
        // What has no tag has no context either.
        let hint = self.mode.hints.of(u32::try_from(context).ok(), said);
        SendRequest { endpoint, peer: peer.0, context, tag, length, level, hint }
    }

    fn post_owned(
        &self,
        peer: Peer,
        (context, tag): (u64, u64),
        mut buffer: Buffer,
        options: SendOptions,
        route: Route,
    ) -> Result<Posted, Rejected> {
        let shape = match buffer.shape_for_send() {
            Ok(shape) => shape,
            Err(error) => return Err(Rejected { error: error.into(), buffer }),
        };
        let request =
            self.send_request(peer, context, tag, shape.len(), (options.level, options.hint));
        let memory = Memory { buffer: Some(buffer), shape };
        let mut engine = self.mode.engine.borrow_mut();
        engine.post_send(&request, memory, route, options.more).map_err(rejected)
    }

    fn send_with_handle(
        &self,
        peer: Peer,
        label: (u64, u64),
        buffer: Buffer,
        options: SendOptions,
    ) -> Result<Operation, Rejected> {
        let Some(handle) = self.mode.engine.borrow_mut().new_handle() else {
            return Err(Rejected { error: Error::WouldBlock("cq_entries"), buffer });
        };
        let posted = self.post_owned(peer, label, buffer, options, Route::Handle(handle));
        if !matches!(posted, Ok(Posted::Pending(_))) {
            self.mode.engine.borrow_mut().state.completions.handles.remove(handle);
        }
        Ok(match posted? {
            Posted::Sent(status, buffer) => Operation::ready(Outcome {
                result: Ok(status),
                buffer: buffer.unwrap_or_else(|| Buffer::Heap(Vec::new())),
            }),
            Posted::Pending(_) => Operation::pending(Rc::clone(&self.mode.engine), handle),
        })
    }

    /// Sends a tagged message; the operation owns the buffer until it ends.
    ///
    /// # Errors
    ///
    /// [`Rejected`] gives the buffer back: [`Error::WouldBlock`] at a bound, [`Error::Peer`] when
    /// the peer has failed.
    pub fn send(
        &self,
        peer: Peer,
        envelope: Envelope,
        buffer: impl Into<Buffer>,
        options: SendOptions,
    ) -> Result<Operation, Rejected> {
        let label = (context_of(envelope), envelope.tag);
        self.send_with_handle(peer, label, buffer.into(), options)
    }

    /// Sends a message without tag, for [`Self::receive_untagged`].
    ///
    /// # Errors
    ///
    /// As for [`Self::send`].
    pub fn send_untagged(
        &self,
        peer: Peer,
        buffer: impl Into<Buffer>,
        options: SendOptions,
    ) -> Result<Operation, Rejected> {
        self.send_with_handle(peer, (UNTAGGED, 0), buffer.into(), options)
    }

    /// Like [`Self::send`], but the end goes to the completion queue, with `context`. `None`: the
    /// send is over already; its completion is in the queue, unless it is a silent one.
    ///
    /// # Errors
    ///
    /// As for [`Self::send`].
    pub fn post_send(
        &self,
        peer: Peer,
        envelope: Envelope,
        buffer: impl Into<Buffer>,
        options: SendOptions,
        context: u64,
    ) -> Result<Option<OperationId>, Rejected> {
        let label = (context_of(envelope), envelope.tag);
        let route = self.queue_route(context, options);
        let posted = self.post_owned(peer, label, buffer.into(), options, route)?;
        Ok(self.report_posted(posted, options, context))
    }

    fn queue_route(&self, context: u64, options: SendOptions) -> Route {
        Route::Queue { queue: self.mode.queue, context, on_error_only: options.silent }
    }

    fn report_posted(
        &self,
        posted: Posted,
        options: SendOptions,
        context: u64,
    ) -> Option<OperationId> {
        match posted {
            Posted::Pending(id) => Some(OperationId(id)),
            Posted::Sent(..) if options.silent => None,
            Posted::Sent(status, buffer) => {
                let completions = &mut self.mode.engine.borrow_mut().state.completions;
                completions.push_sent(self.mode.queue, context, status, buffer);
                None
            }
        }
    }

    /// Sends bytes that can be reused on return, without a completion (`fi_tinject`).
    ///
    /// # Errors
    ///
    /// [`Error::WouldBlock`] when they cannot go out now (no connection yet, or no credit): make
    /// progress and try again, or use [`Self::send_blocking`]. [`Error::Misuse`] when they are
    /// longer than `inject_limit_bytes`, [`Error::Peer`] when the peer has failed.
    #[inline]
    pub fn inject(&self, peer: Peer, envelope: Envelope, bytes: &[u8]) -> Result<(), Error> {
        self.inject_posted(peer, envelope, bytes, (None, false))
    }

    /// Like [`Self::inject`]; `more`: others follow at once, do not hurry this one.
    ///
    /// # Errors
    ///
    /// As for [`Self::inject`].
    #[inline]
    pub fn inject_with(
        &self,
        peer: Peer,
        envelope: Envelope,
        bytes: &[u8],
        more: bool,
    ) -> Result<(), Error> {
        self.inject_posted(peer, envelope, bytes, (None, more))
    }

    /// Like [`Self::inject_with`], of a message that says what it is for. The bytes of one of
    /// [`Hint::Bulk`], too, are copied at once.
    ///
    /// # Errors
    ///
    /// As for [`Self::inject`].
    #[inline]
    pub fn inject_hinted(
        &self,
        peer: Peer,
        envelope: Envelope,
        bytes: &[u8],
        hint: Hint,
        more: bool,
    ) -> Result<(), Error> {
        self.inject_posted(peer, envelope, bytes, (Some(hint), more))
    }

    #[inline]
    fn inject_posted(
        &self,
        peer: Peer,
        envelope: Envelope,
        bytes: &[u8],
        (hint, more): (Option<Hint>, bool),
    ) -> Result<(), Error> {
        let context = context_of(envelope);
        let posted = (CompletionLevel::Inject, hint);
        let request = self.send_request(peer, context, envelope.tag, bytes.len(), posted);
        let mut engine = self.mode.engine.borrow_mut();
        let route = Route::Queue { queue: self.mode.queue, context: 0, on_error_only: true };
        engine.inject(&request, bytes, route, more)
    }

    /// Sends the bytes of `pieces`, any number of them, in order.
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
        context: u64,
    ) -> Result<Option<OperationId>, Error> {
        // SAFETY: the caller promises that the memory is valid.
        let shape = unsafe { raw_shape(pieces) }?;
        let label = context_of(envelope);
        let request = self.send_request(
            peer,
            label,
            envelope.tag,
            shape.len(),
            (options.level, options.hint),
        );
        let route = self.queue_route(context, options);
        let memory = Memory { buffer: None, shape };
        self.mode.guard.note_borrowed();
        let posted = self
            .mode
            .engine
            .borrow_mut()
            .post_send(&request, memory, route, options.more)
            .map_err(|(error, _)| error)?;
        Ok(self.report_posted(posted, options, context))
    }
}

#[inline]
pub(super) fn context_of(envelope: Envelope) -> u64 {
    u64::from(envelope.context)
}

pub(super) fn rejected((error, buffer): (Error, Option<Buffer>)) -> Rejected {
    Rejected { error, buffer: buffer.unwrap_or_else(|| Buffer::Heap(Vec::new())) }
}
