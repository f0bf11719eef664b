//! One-sided operations.

use std::sync::Arc;

use super::at_once::Departure;
use super::completions::{CompletionRoute, PostedTo, Posting};
use super::counters::CounterEvents;
use super::engine::Engine;
use super::outside::Ticket;
use super::post::{COMPLETIONS, Memory, PostResult, Refused, beyond_inject_limit};
use crate::proto::session::one_sided::Verb;
use crate::proto::session::one_sided::origin::OneSidedRequest;
use crate::proto::session::segments::PostedPut;
use crate::proto::session::send::SendDestination;
use crate::proto::table::Id;
use crate::types::{Envelope, Error, OperationKind, Peer};
use crate::wire::MESSAGE_BYTES_MAX;
use crate::wire::one_sided::ATOMIC_BYTES_MAX;

pub(super) fn kind_of(verb: Verb) -> OperationKind {
    match verb {
        Verb::Put => OperationKind::Put,
        Verb::Get => OperationKind::Get,
        Verb::Atomic { .. } => OperationKind::Atomic,
        Verb::Flush => OperationKind::Flush,
    }
}

fn check_length(request: &OneSidedRequest) -> Result<(), Error> {
    let (most, what) = match request.verb {
        Verb::Atomic { .. } => (ATOMIC_BYTES_MAX as u64, "an atomic operation"),
        _ => (MESSAGE_BYTES_MAX, "an operation on memory"),
    };
    if request.length > most {
        return Err(Error::misuse(format!("{what} has at most {most} bytes; post several")));
    }
    Ok(())
}

impl Engine {
    /// Posts a one-sided operation.
    pub(crate) fn post_one_sided(
        &mut self,
        request: OneSidedRequest,
        memory: Memory,
        route: CompletionRoute,
        more: bool,
    ) -> Result<Id, Refused> {
        if let Err(error) = check_length(&request) {
            return Err((error, memory));
        }
        if !self.state.completions.has_room(route) {
            return Err((Error::WouldBlock(COMPLETIONS), memory));
        }
        let peer = Some(Peer(request.peer));
        let (kind, endpoint) = (kind_of(request.verb), request.endpoint);
        let length = memory.shape.len() as u64;
        match self.state.core.new_one_sided(request, length) {
            Ok(id) => {
                self.start_new_one_sided(id, (kind, endpoint, peer), memory, route, more);
                Ok(id)
            }
            Err(refusal) => Err((self.state.error_of(peer, refusal), memory)),
        }
    }

    fn start_new_one_sided(
        &mut self,
        id: Id,
        (kind, endpoint, peer): (OperationKind, u16, Option<Peer>),
        memory: Memory,
        route: CompletionRoute,
        more: bool,
    ) {
        let state = &mut *self.state;
        let envelope = Envelope::UNTAGGED;
        state.completions.insert(id, Posting { kind, route, memory, peer, envelope });
        state.completions.count_for(id, endpoint);
        state.core.enqueue_one_sided(id, state.now_ns);
        if !more {
            self.work();
        }
    }

    /// Posts the flush before a fenced operation: puts without a reply get one with it. The
    /// completion of the flush goes to `to`, if it fails.
    fn flush_before(&mut self, request: &OneSidedRequest, to: PostedTo) -> Result<(), Error> {
        if !request.fence || request.verb == Verb::Flush {
            return Ok(());
        }
        let flush = OneSidedRequest {
            verb: Verb::Flush,
            key: 0,
            offset: 0,
            length: 0,
            data: None,
            fence: false,
            invalidates: false,
            operands: Box::default(),
            ..*request
        };
        let route = PostedTo { silent: true, ..to }.route();
        let posted = self.post_one_sided(flush, Memory::nothing(), route, true);
        posted.map(drop).map_err(|(error, _)| error)
    }

    /// Posts a one-sided operation, and a flush before one with a fence. Completions go to a queue.
    pub(crate) fn post_one_sided_to(
        &mut self,
        request: OneSidedRequest,
        memory: Memory,
        to: PostedTo,
        more: bool,
    ) -> Result<Id, Refused> {
        match self.flush_before(&request, to) {
            Ok(()) => self.post_one_sided(request, memory, to.route(), more),
            Err(error) => Err((error, memory)),
        }
    }

    /// Posts one with a new handle, which gets the completion, or `ticket` does. A failed flush is
    /// reported to `flushed_to`.
    pub(crate) fn start_one_sided(
        &mut self,
        request: OneSidedRequest,
        memory: Memory,
        more: bool,
        flushed_to: PostedTo,
        ticket: Option<&Arc<Ticket>>,
    ) -> Result<PostResult, Refused> {
        if let Err(error) = self.flush_before(&request, flushed_to) {
            return Err((error, memory));
        }
        let Some(handle) = self.state.completions.new_handle(ticket) else {
            return Err((Error::WouldBlock(COMPLETIONS), memory));
        };
        let posted = self.post_one_sided(request, memory, CompletionRoute::Handle(handle), more);
        if posted.is_err() {
            self.state.completions.remove_handle(handle);
        }
        posted.map(|_| PostResult::Pending(handle))
    }

    /// Puts a copy of `bytes`, of which only a failure is reported.
    pub(crate) fn inject_put(
        &mut self,
        request: OneSidedRequest,
        bytes: &[u8],
        to: PostedTo,
        more: bool,
    ) -> Result<(), Error> {
        let limit = self.state.core.shared().eager().inject_max() as usize;
        if bytes.len() > limit {
            return Err(beyond_inject_limit(bytes.len(), limit));
        }
        if request.fence {
            self.flush_before(&request, to)?;
        }
        let peer = Some(Peer(request.peer));
        let target = self.state.core.destination(request.peer);
        let target = target.map_err(|refusal| self.state.error_of(peer, refusal))?;
        if self.put_now(target, &request, bytes, more) {
            return Ok(());
        }
        self.inject_put_late(target, request, bytes, to, more)
    }

    /// Injects a put that could not be staged: frees space for it, or posts it.
    #[cold]
    fn inject_put_late(
        &mut self,
        target: SendDestination,
        request: OneSidedRequest,
        bytes: &[u8],
        to: PostedTo,
        more: bool,
    ) -> Result<(), Error> {
        // Full segments are freed when they are sent and acknowledged.
        let is_flushed = self.flush(target.session);
        self.driver.flush_datagrams();
        if is_flushed {
            self.state.stage_waiting();
            if self.put_now(target, &request, bytes, more) {
                return Ok(());
            }
        }
        // For lack of space alone it need not be copied and queued: a later attempt finds some.
        let core = &self.state.core;
        let session = core.session(target.session);
        if session.is_some_and(|it| it.is_plain_put(&request)) {
            return Err(Error::WouldBlock("space in segments, or earlier operations"));
        }
        let route = PostedTo { silent: true, ..to }.route();
        let posted = self.post_one_sided(request, Memory::copy_of(bytes), route, more);
        posted.map(drop).map_err(|(error, _)| error)
    }

    /// Puts a copy that its poster has admitted: only the limit on operations refuses it, unless it
    /// has a fence, or a failed peer. Returns the operation, if it has to wait.
    pub(crate) fn inject_admitted_put(
        &mut self,
        request: OneSidedRequest,
        bytes: &[u8],
        to: PostedTo,
        more: bool,
    ) -> Result<Option<Id>, Error> {
        let peer = Some(Peer(request.peer));
        if request.fence {
            let (memory, to) = (Memory::copy_of(bytes), PostedTo { silent: true, ..to });
            let posted = self.post_one_sided_to(request, memory, to, more);
            return posted.map(Some).map_err(|(error, _)| error);
        }
        let target = self.state.core.destination(request.peer);
        let target = target.map_err(|refusal| self.state.error_of(peer, refusal))?;
        if self.put_now(target, &request, bytes, more) {
            return Ok(None);
        }
        let (endpoint, length) = (request.endpoint, bytes.len() as u64);
        let id = self.state.core.new_admitted_one_sided(request, length);
        let id = id.map_err(|refusal| self.state.error_of(peer, refusal))?;
        let route = self.state.admitted_route(to);
        let of_it = (OperationKind::Put, endpoint, peer);
        self.start_new_one_sided(id, of_it, Memory::copy_of(bytes), route, more);
        Ok(Some(id))
    }

    /// Stages a put that completes at once.
    #[inline]
    fn put_now(
        &mut self,
        SendDestination { session, endpoint }: SendDestination,
        request: &OneSidedRequest,
        bytes: &[u8],
        more: bool,
    ) -> bool {
        let frame = PostedPut { request, target: endpoint, bytes };
        let departure = self.state.departure(session, request.hint, more);
        if departure == Departure::Alone && self.send_at_once(session, &frame) {
            self.state.completions.count_copied(bytes.len() as u64);
            self.state.completions.count(request.endpoint, CounterEvents::WRITE, true);
            return true;
        }
        let entered = self.state.core.enter(session);
        let entered = debug_assert_some!(entered, "the session of a destination is in the table");
        let staged = entered.and_then(|(it, cx)| it.stage_put_now(cx, endpoint, request));
        let Some(room) = staged else { return false };
        room.copy_from_slice(bytes);
        self.state.completions.count_copied(bytes.len() as u64);
        self.state.completions.count(request.endpoint, CounterEvents::WRITE, true);
        if departure != Departure::WithOthers {
            self.flush_posted(session, request.hint);
        }
        true
    }
}
