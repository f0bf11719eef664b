//! Receives.

use std::rc::Rc;

use super::endpoint::{Endpoint, Owned};
use super::operation::Operation;
use super::options::Rejected;
use super::send::{context_of, rejected};
use crate::memory::{Buffer, RawSpan, raw_shape};
use crate::progress::completions::Route;
use crate::progress::post::Memory;
use crate::proto::core::UNTAGGED;
use crate::proto::receive::ReceiveRequest;
use crate::types::{Error, OperationId, Peer, Selector};

impl Endpoint<Owned> {
    #[inline]
    pub(super) fn receive_request(
        &self,
        source: Option<Peer>,
        context: u64,
        tag: u64,
        ignore: u64,
        capacity: usize,
    ) -> ReceiveRequest {
        let (endpoint, peer) = (self.mode.endpoint, source.map(|peer| peer.0));
        let capacity = capacity as u64;
        ReceiveRequest { endpoint, peer, context, tag, ignore, capacity, min_free: None }
    }

    #[inline]
    fn post_receive_owned(
        &self,
        source: Option<Peer>,
        (context, tag, ignore): (u64, u64, u64),
        mut buffer: Buffer,
        route: Route,
    ) -> Result<OperationId, Rejected> {
        let shape = match buffer.shape_for_recv() {
            Ok(shape) => shape,
            Err(error) => return Err(Rejected { error: error.into(), buffer }),
        };
        let request = self.receive_request(source, context, tag, ignore, shape.len());
        let memory = Memory { buffer: Some(buffer), shape };
        let mut engine = self.mode.engine.borrow_mut();
        let id = engine.post_receive(&request, memory, route).map_err(rejected)?;
        Ok(OperationId(id))
    }

    fn receive_with_handle(
        &self,
        source: Option<Peer>,
        label: (u64, u64, u64),
        buffer: Buffer,
    ) -> Result<Operation, Rejected> {
        let Some(handle) = self.mode.engine.borrow_mut().new_handle() else {
            return Err(Rejected { error: Error::WouldBlock("cq_entries"), buffer });
        };
        match self.post_receive_owned(source, label, buffer, Route::Handle(handle)) {
            Ok(_) => Ok(Operation::pending(Rc::clone(&self.mode.engine), handle)),
            Err(rejected) => {
                self.mode.engine.borrow_mut().state.completions.handles.remove(handle);
                Err(rejected)
            }
        }
    }

    /// Receives a tagged message into a buffer that the operation owns until it ends.
    ///
    /// A message that is longer than the buffer ends in [`Error::Truncated`] with its beginning in
    /// the buffer.
    ///
    /// # Errors
    ///
    /// [`Rejected`] gives the buffer back.
    pub fn receive(
        &self,
        selector: Selector,
        buffer: impl Into<Buffer>,
    ) -> Result<Operation, Rejected> {
        let label = label_of(&selector);
        self.receive_with_handle(selector.source, label, buffer.into())
    }

    /// Receives a message that was sent without tag.
    ///
    /// # Errors
    ///
    /// [`Rejected`] gives the buffer back.
    pub fn receive_untagged(
        &self,
        source: Option<Peer>,
        buffer: impl Into<Buffer>,
    ) -> Result<Operation, Rejected> {
        self.receive_with_handle(source, (UNTAGGED, 0, 0), buffer.into())
    }

    /// Like [`Self::receive`], but the end goes to the completion queue, with `context`.
    ///
    /// # Errors
    ///
    /// [`Rejected`] gives the buffer back.
    pub fn post_receive(
        &self,
        selector: Selector,
        buffer: impl Into<Buffer>,
        context: u64,
    ) -> Result<OperationId, Rejected> {
        let route = Route::Queue { queue: self.mode.queue, context, on_error_only: false };
        self.post_receive_owned(selector.source, label_of(&selector), buffer.into(), route)
    }

    /// Receives into `pieces`, any number of them, in order.
    ///
    /// # Safety
    ///
    /// The memory stays valid, and nothing else touches it, until the operation has ended: this
    /// returned an error, its completion was taken from the queue, or the drop of the endpoint
    /// returned, whichever comes first (see [`Endpoint`], *Closing*). An endpoint that is forgotten
    /// (`mem::forget`) never closes.
    ///
    /// # Errors
    ///
    /// As for [`Self::receive`].
    pub unsafe fn post_receive_raw(
        &self,
        selector: Selector,
        pieces: &[RawSpan],
        context: u64,
    ) -> Result<OperationId, Error> {
        // SAFETY: the caller promises that the memory is valid.
        let shape = unsafe { raw_shape(pieces) }?;
        let (label, tag, ignore) = label_of(&selector);
        let request = self.receive_request(selector.source, label, tag, ignore, shape.len());
        let route = Route::Queue { queue: self.mode.queue, context, on_error_only: false };
        let memory = Memory { buffer: None, shape };
        self.mode.guard.note_borrowed();
        let mut engine = self.mode.engine.borrow_mut();
        let posted = engine.post_receive(&request, memory, route);
        posted.map(OperationId).map_err(|(error, _)| error)
    }
}

#[inline]
pub(super) fn label_of(selector: &Selector) -> (u64, u64, u64) {
    (context_of(selector.envelope), selector.envelope.tag, selector.ignore)
}
