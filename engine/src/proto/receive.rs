//! Receiving: matching, eager arrival, unexpected messages.

use super::core::{Action, Core, REQUESTS, UNTAGGED};
use super::effects::{Arrival, Effects, Ended};
use super::hint::Hint;
use super::matching::{Kept, MatchEnvelope, Selector};
use super::multi::Multi;
use super::operation::{Cause, NO_REMOTE, NO_SESSION, Operation, OperationState};
use super::pulls::Offered;
use super::send::SendRefusal;
use super::session::ControlFrame;
use super::table::Id;
use super::unexpected::{Kind, Waiting};
use crate::wire::CmaSource;
use crate::wire::cma_source::FLAG_CMA;
use crate::wire::{Eager, FrameError, Rts, eager};

/// A receive to post.
#[derive(Clone, Copy, Debug)]
pub struct ReceiveRequest {
    /// Local endpoint.
    pub(crate) endpoint: u16,
    /// The source; `None`: any.
    pub(crate) peer: Option<Id>,
    /// Context, with [`UNTAGGED`] for untagged messages.
    pub(crate) context: u64,
    /// Tag.
    pub(crate) tag: u64,
    /// Bits of the tag that are not compared.
    pub(crate) ignore: u64,
    /// Length of the buffer in bytes.
    pub(crate) capacity: u64,
    /// Makes it a multi-receive, until fewer bytes than this are free: see [`super::multi`].
    pub(crate) min_free: Option<u64>,
}

impl ReceiveRequest {
    /// Returns the operation of the receive; `session` is that of its source.
    #[inline]
    fn operation(&self, selector: &Selector, session: u32, state: OperationState) -> Operation {
        let remote = selector.source.unwrap_or(NO_REMOTE);
        Operation {
            context: self.context,
            tag: self.tag,
            length: self.capacity,
            ..Operation::new(self.endpoint, session, remote, state)
        }
    }
}

#[inline]
pub(super) fn context_of(context: u32, flags: u8) -> u64 {
    let untagged = if flags & eager::FLAG_UNTAGGED != 0 { UNTAGGED } else { 0 };
    u64::from(context) | untagged
}

/// Splits the bytes of an RTS: the first bytes of the message, or where it can be read.
#[inline]
fn first_bytes(came: &[u8], has_source: bool) -> (&[u8], Option<CmaSource>) {
    if !has_source {
        return (came, None);
    }
    (&[], CmaSource::of_frame(came))
}

impl Core {
    pub(super) fn selector(
        &self,
        request: &ReceiveRequest,
    ) -> Result<(Selector, u32), SendRefusal> {
        let (source, session) = match request.peer {
            Some(peer) => {
                let remote = self.remotes.get(peer).ok_or(SendRefusal::UnknownPeer)?;
                (Some(peer.index() as u32), remote.session)
            }
            None => (None, NO_SESSION),
        };
        let ReceiveRequest { context, tag, ignore, .. } = *request;
        Ok((Selector { source, context, tag, ignore }, session))
    }

    /// Creates an operation for a receive. Start it with [`Self::start_receive`] when its buffer is
    /// ready.
    pub(crate) fn new_receive(&mut self, request: &ReceiveRequest) -> Result<Id, SendRefusal> {
        let (selector, session) = self.selector(request)?;
        let state = match request.min_free {
            None => OperationState::Posted { key: None, ignore: request.ignore },
            Some(min_free) => OperationState::Multi(Multi::new(request.ignore, min_free)),
        };
        let operation = request.operation(&selector, session, state);
        self.operations.insert(operation).map_err(|_| SendRefusal::OPERATIONS)
    }

    /// Creates and starts a receive for which no message can wait. `None`: one may, or there is an
    /// error; use the general path.
    #[inline]
    pub(crate) fn post_fast(&mut self, request: &ReceiveRequest) -> Option<Id> {
        if request.min_free.is_some() {
            return None;
        }
        let (selector, session) = self.selector(request).ok()?;
        let known = self.sessions.at(session as usize);
        let failed = known.is_some_and(|it| it.failure_to_report().is_some());
        let (matcher, needs_peers) = self.endpoints.with_needs(request.endpoint)?;
        let may_not_wait = failed || needs_peers || matcher.unexpected_len() > 0;
        if may_not_wait || planted!(IgnoreSource) || !shortcut!("a receive that waits at once") {
            return None;
        }
        self.operations.reuse_for(|id| {
            let key = matcher.insert_posted(&selector, id.index() as u32);
            let state = OperationState::Posted { key: Some(key), ignore: request.ignore };
            request.operation(&selector, session, state)
        })
    }

    /// Matches a new receive with the oldest unexpected message it accepts, or posts it.
    pub(crate) fn start_receive(&mut self, id: Id, effects: &mut impl Effects) {
        let Some(operation) = self.operations.get_mut(id) else { return };
        let ignore = match &operation.state {
            OperationState::Posted { ignore, .. } => *ignore,
            OperationState::Multi(multi) => multi.ignore,
            _ => return,
        };
        let source = (operation.remote != NO_REMOTE).then_some(operation.remote);
        let source = if planted!(IgnoreSource) { None } else { source };
        let selector = Selector { source, context: operation.context, tag: operation.tag, ignore };
        if matches!(operation.state, OperationState::Multi(_)) {
            self.start_multi(id, &selector, effects);
            return;
        }
        let Some((matcher, needs_peers)) = self.endpoints.with_needs(operation.endpoint) else {
            return;
        };
        if planted!(MatchYoungest)
            && let Some(kept) = matcher.take_unexpected(&selector)
        {
            matcher.insert_unexpected(&kept.envelope, kept.message);
        }
        if matcher.unexpected_len() > 0
            && let Some(kept) = matcher.take_unexpected(&selector)
        {
            self.deliver(id, &kept, effects);
            return;
        }
        // A lost peer sends nothing any more; its earlier messages were checked first.
        let session = self.sessions.at_mut(operation.session as usize);
        if let Some(session) = session
            && let Some(failure) = session.failure_to_report().cloned()
        {
            session.unreported = None;
            let remote = operation.remote;
            self.operations.remove(id);
            effects.complete(id, Ended::Failed(failure, self.name_of(remote)));
            return;
        }
        let key = matcher.insert_posted(&selector, id.index() as u32);
        operation.state = OperationState::Posted { key: Some(key), ignore };
        if needs_peers {
            self.end_receives_without_sender(effects);
        }
    }

    /// Delivers an unexpected message to the receive that matched it.
    pub(super) fn deliver(&mut self, id: Id, kept: &Kept, effects: &mut impl Effects) {
        let Some(message) = self.unexpected.take(kept.message) else { return };
        let Some(operation) = self.operations.get(id) else { return };
        let Some(peer) = self.remotes.id_at(kept.envelope.source as usize) else { return };
        let arrival = message.arrival(peer, &kept.envelope);
        let slice_of = operation.slice_of;
        if !matches!(message.kind, Kind::Rendezvous { has_source: true, .. }) {
            let fits = (operation.length.min(message.payload().len() as u64)) as usize;
            effects.place(id, 0, &message.payload()[..fits]);
        }
        self.return_credit_of(&message);
        if message.put_back() != 0 {
            effects.order(id, message.put_back());
        }
        match message.kind {
            Kind::Eager { report, .. } => {
                self.operations.remove(id);
                if report != 0 && !planted!(LoseMatched) {
                    self.push_control(message.session, ControlFrame::matched(report));
                }
                self.end_receive(id, slice_of, Ended::Received(arrival), effects);
            }
            Kind::Rendezvous { send_operation, hint, has_source, .. } => {
                let (first, source) = first_bytes(message.payload(), has_source);
                let offered = Offered { send_operation, hint, first: first.len() as u64, source };
                self.pull(id, message.session, offered, arrival, effects);
            }
        }
        self.unexpected.recycle(message);
    }

    /// Returns the oldest unexpected message that a receive would get now, without removing it, or
    /// the failure that the receive would end with.
    ///
    /// RR-END-2.
    pub(crate) fn peek(
        &mut self,
        request: &ReceiveRequest,
    ) -> Result<Option<Arrival>, SendRefusal> {
        let (selector, session) = self.selector(request)?;
        let matcher = self.endpoints.get_mut(request.endpoint);
        let kept = matcher.and_then(|matcher| matcher.peek_unexpected(&selector));
        let found = kept.and_then(|kept| Some((kept, self.unexpected.at(kept.message)?)));
        let Some((kept, message)) = found else {
            let session = self.sessions.at(session as usize);
            let failure = session.and_then(|it| it.failure_to_report().cloned());
            return failure.map_or(Ok(None), |failure| Err(SendRefusal::Failed(failure)));
        };
        let peer = self.remotes.id_at(kept.envelope.source as usize);
        Ok(peer.map(|peer| message.arrival(peer, &kept.envelope)))
    }

    /// Cancels a receive that has not matched. Returns `false` if it has, and will complete. A
    /// multi-receive matches no more, and ends as cancelled when its matched messages have ended.
    pub(crate) fn cancel_receive(&mut self, id: Id, effects: &mut impl Effects) -> bool {
        let Some(operation) = self.operations.get(id) else { return false };
        if let OperationState::Multi(multi) = &operation.state {
            let is_open = !multi.is_closed();
            if is_open {
                self.fail_multi(id, &Cause::Closed, effects);
            }
            return is_open;
        }
        let OperationState::Posted { key: Some(key), .. } = operation.state else { return false };
        let Some(matcher) = self.endpoints.get_mut(operation.endpoint) else { return false };
        if matcher.cancel_posted(key).is_none() {
            return false;
        }
        self.operations.remove(id);
        effects.complete(id, Ended::Cancelled);
        true
    }

    /// Checks the preconditions of every message whose credit is charged: its source, its target.
    /// Returns the remote endpoint and the session's epoch; `Ok(None)`: the endpoint is not open,
    /// and credit was returned.
    ///
    /// RR-MATCH-3.
    #[inline]
    pub(super) fn admit(
        &mut self,
        slot: u32,
        target: u16,
        source: u16,
        payload_bytes: usize,
    ) -> Result<Option<(u32, u32)>, FrameError> {
        let Some(session) = self.sessions.at_mut(slot as usize) else { return Ok(None) };
        let epoch = session.epoch;
        let known = session.remotes.get(usize::from(source)).copied().unwrap_or(u32::MAX);
        let remote = if known != u32::MAX {
            known
        } else if let Some(made) = self.remote_of(slot, source) {
            made
        } else {
            self.return_credit(slot, payload_bytes);
            return Err(FrameError::UnknownSource(source));
        };
        if !self.endpoints.is_open(target) {
            self.counters.unknown_endpoint += 1;
            self.return_credit(slot, payload_bytes);
            return Ok(None);
        }
        Ok(Some((remote, epoch)))
    }

    /// Notes that a message waits for its receive, or for the connection manager.
    pub(super) fn note_unexpected(&mut self, slot: u32, context: u64) {
        self.counters.unexpected_messages += 1;
        self.extend_windows(slot);
        if context == REQUESTS && self.actions.back() != Some(&Action::Requests) {
            self.actions.push_back(Action::Requests);
        }
    }

    /// Takes a whole message, with its remote data, whose turn it is and whose credit is charged.
    #[inline]
    pub(super) fn take_eager(
        &mut self,
        slot: u32,
        header: &Eager,
        data: Option<u64>,
        payload: &[u8],
        now_ns: u64,
        effects: &mut impl Effects,
    ) -> Result<(), FrameError> {
        let report = header.operation.get();
        let target = header.target_endpoint.get();
        let source = header.source_endpoint.get();
        let admitted = self.admit(slot, target, source, payload.len())?;
        let Some((remote, epoch)) = admitted else {
            if report != 0 {
                let status = crate::wire::done::STATUS_ABANDONED;
                self.push_control(slot, ControlFrame::done(report, status, 0));
            }
            return Ok(());
        };
        if let Some(session) = self.sessions.at_mut(slot as usize) {
            session.message_ns = now_ns;
        }
        let context = context_of(header.context.get(), header.flags);
        let tag = header.tag.get();
        let envelope = MatchEnvelope { source: remote, context, tag };
        let length = payload.len() as u64;
        let Some(id) = self.match_arrival(target, &envelope, length, effects) else {
            let kind = Kind::Eager { report, put_back: 0 };
            let message = Waiting { came_by: (slot, epoch), data, kind };
            let message = self.unexpected.insert(message, payload);
            let message = message.ok_or(FrameError::NoCredit("unexpected message"))?;
            if let Some(matcher) = self.endpoints.get_mut(target) {
                matcher.insert_unexpected(&envelope, message.index() as u32);
            }
            self.note_unexpected(slot, context);
            return Ok(());
        };
        self.return_credit(slot, payload.len());
        if report != 0 {
            self.push_control(slot, ControlFrame::matched(report));
        }
        let Some(operation) = self.operations.remove(id) else { return Ok(()) };
        let fits = operation.length.min(length) as usize;
        effects.place(id, 0, &payload[..fits]);
        let Some(peer) = self.remotes.id_at(remote as usize) else { return Ok(()) };
        let arrival = Arrival { peer, context, tag, length, data };
        self.end_receive(id, operation.slice_of, Ended::Received(arrival), effects);
        Ok(())
    }

    /// Takes a request to send, with the remote data of its message, whose turn it is and whose
    /// credit is charged.
    pub(super) fn take_rts(
        &mut self,
        slot: u32,
        header: &Rts,
        data: Option<u64>,
        first: &[u8],
        effects: &mut impl Effects,
    ) -> Result<(), FrameError> {
        let send_operation = header.operation.get();
        let target = header.target_endpoint.get();
        let source = header.source_endpoint.get();
        let admitted = self.admit(slot, target, source, first.len())?;
        let Some((remote, epoch)) = admitted else {
            let status = crate::wire::done::STATUS_ABANDONED;
            self.push_control(slot, ControlFrame::done(send_operation, status, 0));
            return Ok(());
        };
        let context = context_of(header.context.get(), header.flags);
        let (tag, length) = (header.tag.get(), header.length.get());
        let hint = Hint::of_flags(header.flags);
        let has_source = header.flags & FLAG_CMA != 0;
        let envelope = MatchEnvelope { source: remote, context, tag };
        let Some(id) = self.match_arrival(target, &envelope, length, effects) else {
            let kind = Kind::Rendezvous { send_operation, length, hint, has_source };
            let message = Waiting { came_by: (slot, epoch), data, kind };
            let message = self.unexpected.insert(message, first);
            let message = message.ok_or(FrameError::NoCredit("unexpected message"))?;
            if let Some(matcher) = self.endpoints.get_mut(target) {
                matcher.insert_unexpected(&envelope, message.index() as u32);
            }
            self.note_unexpected(slot, context);
            return Ok(());
        };
        self.return_credit(slot, first.len());
        let (first, source) = first_bytes(first, has_source);
        let capacity = self.operations.get(id).map_or(0, |operation| operation.length);
        let fits = capacity.min(first.len() as u64) as usize;
        effects.place(id, 0, &first[..fits]);
        let Some(peer) = self.remotes.id_at(remote as usize) else { return Ok(()) };
        let arrival = Arrival { peer, context, tag, length, data };
        let offered = Offered { send_operation, hint, first: first.len() as u64, source };
        self.pull(id, slot, offered, arrival, effects);
        Ok(())
    }
}
