//! Receiving: matching, eager arrival, unexpected messages.

use super::core::{Action, Core, REQUESTS, UNTAGGED};
use super::effects::{Arrival, Effects, Ended};
use super::hint::Hint;
use super::matching::{Kept, MatchEnvelope, OperationSlot, Selector};
use super::multi::Multi;
use super::operation::{Cause, NO_REMOTE, NO_SESSION, Operation, OperationState};
use super::rendezvous::Offered;
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
    #[inline(always)]
    pub(super) fn selector(
        &self,
        request: &ReceiveRequest,
    ) -> Result<(Selector, u32), SendRefusal> {
        let (source, session) = match request.peer {
            Some(peer) => {
                let remote = self.shared.peers.get(peer).ok_or(SendRefusal::UnknownPeer)?;
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
        let (mut selector, session) = self.selector(request)?;
        if planted!(IgnoreSource) {
            selector.source = None;
        }
        let &ReceiveRequest { endpoint, context, tag, capacity, min_free, .. } = request;
        let inserted = match min_free {
            None => self.shared.operations.insert_receive(endpoint, &selector, capacity),
            Some(min_free) => {
                let remote = selector.source.unwrap_or(NO_REMOTE);
                let state = OperationState::Multi(Multi::new(min_free));
                let new = Operation::new(endpoint, session, remote, state);
                let multi = Operation { context, tag, length: capacity, ..new };
                self.shared.operations.insert_multi(&selector, multi)
            }
        };
        inserted.ok_or(SendRefusal::OPERATIONS)
    }

    /// Creates and starts a receive for which no message can wait. `None`: one may, or there is an
    /// error; use the general path.
    #[inline(always)]
    pub(crate) fn post_fast(&mut self, request: &ReceiveRequest) -> Option<Id> {
        if request.min_free.is_some() {
            return None;
        }
        let (selector, session) = self.selector(request).ok()?;
        let known = self.sessions.at(session as usize);
        let failed = known.is_some_and(|it| it.failure_to_report().is_some());
        let (matcher, needs_peers) = self.shared.endpoints.with_needs(request.endpoint)?;
        let may_not_wait = failed || needs_peers || matcher.unexpected_len() > 0;
        if may_not_wait || planted!(IgnoreSource) || !shortcut!("a receive that waits at once") {
            return None;
        }
        let operations = &mut self.shared.operations;
        let id = operations.insert_receive(request.endpoint, &selector, request.capacity)?;
        matcher.insert_posted(&mut operations.slots, id.index() as u32);
        Some(id)
    }

    /// Matches a new receive with the oldest unexpected message it accepts, or posts it.
    pub(crate) fn start_receive(&mut self, id: Id, effects: &mut impl Effects) {
        if self.shared.operations.get(id).is_some() {
            return self.start_multi(id, effects);
        }
        let Some(receive) = self.shared.operations.receive(id) else { return };
        let selector = receive.selector();
        let Some((matcher, needs_peers)) = self.shared.endpoints.with_needs(receive.endpoint())
        else {
            return self.end_unmatched(id, Cause::Closed, effects);
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
        let remote = selector.source.unwrap_or(NO_REMOTE);
        let slot = self.shared.peers.at(remote).map_or(NO_SESSION, |remote| remote.session);
        if let Some(session) = self.sessions.at_mut(slot as usize)
            && let Some(failure) = session.failure_to_report().cloned()
        {
            session.unreported = None;
            self.end_unmatched(id, Cause::Peer(failure), effects);
            return;
        }
        matcher.insert_posted(&mut self.shared.operations.slots, id.index() as u32);
        if needs_peers {
            self.end_receives_without_sender(effects);
        }
    }

    /// Delivers an unexpected message to the receive that matched it.
    pub(super) fn deliver(&mut self, id: Id, kept: &Kept, effects: &mut impl Effects) {
        let Some(message) = self.shared.unexpected.take(kept.message) else { return };
        let Some(capacity) = self.shared.operations.length(id) else { return };
        let Some(peer) = self.shared.peers.id_at(kept.envelope.source) else { return };
        let arrival = message.arrival(peer, &kept.envelope);
        if !matches!(message.kind, Kind::Rendezvous { has_source: true, .. }) {
            let fits = (capacity.min(message.payload().len() as u64)) as usize;
            effects.place(id, 0, &message.payload()[..fits]);
        }
        self.return_credit_of(&message);
        if message.put_back() != 0 {
            effects.order(id, message.put_back());
        }
        match message.kind {
            Kind::Eager { report, .. } => {
                let slice_of = self.shared.operations.remove_matched(id).and_then(|it| it.slice_of);
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
        self.shared.unexpected.recycle(message);
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
        let matcher = self.shared.endpoints.get_mut(request.endpoint);
        let kept = matcher.and_then(|matcher| matcher.peek_unexpected(&selector));
        let found = kept.and_then(|kept| Some((kept, self.shared.unexpected.at(kept.message)?)));
        let Some((kept, message)) = found else {
            let session = self.sessions.at(session as usize);
            let failure = session.and_then(|it| it.failure_to_report().cloned());
            return failure.map_or(Ok(None), |failure| Err(SendRefusal::Failed(failure)));
        };
        let peer = self.shared.peers.id_at(kept.envelope.source);
        Ok(peer.map(|peer| message.arrival(peer, &kept.envelope)))
    }

    /// Cancels a receive that has not matched. Returns `false` if it has, and will complete. A
    /// multi-receive matches no more, and ends as cancelled when its matched messages have ended.
    pub(crate) fn cancel_receive(&mut self, id: Id, effects: &mut impl Effects) -> bool {
        if let Some(operation) = self.shared.operations.get(id) {
            let is_open = matches!(&operation.state, OperationState::Multi(it) if !it.is_closed());
            if is_open {
                self.fail_multi(id, &Cause::Closed, effects);
            }
            return is_open;
        }
        let is_posted = self.withdraw_receive(id);
        if is_posted {
            self.shared.operations.remove_receive(id);
            effects.complete(id, Ended::Cancelled);
        }
        is_posted
    }

    /// Removes a receive or multi-receive from those that are posted. Returns whether it was.
    pub(super) fn withdraw_receive(&mut self, id: Id) -> bool {
        let receives = &mut self.shared.operations.slots;
        let endpoint = receives.get(id).filter(|it| it.is_posted()).map(OperationSlot::endpoint);
        let matcher = endpoint.and_then(|endpoint| self.shared.endpoints.get_mut(endpoint));
        matcher.is_some_and(|matcher| matcher.cancel_posted(receives, id.index() as u32))
    }

    /// Ends a receive that has not matched, and is not posted any more.
    pub(super) fn end_unmatched(&mut self, id: Id, cause: Cause, effects: &mut impl Effects) {
        let Some(receive) = self.shared.operations.receive(id) else { return };
        let Selector { source, context, tag, .. } = receive.selector();
        let remote = source.unwrap_or(NO_REMOTE);
        let (peer, name) = (self.shared.peers.id_at(remote), self.name_of(remote));
        self.shared.operations.remove_receive(id);
        effects.unmatched(id, peer, (context, tag));
        effects.complete(id, cause.ended(name));
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
        let Some(remote) = self.shared.peers.remote_of(slot, session, source) else {
            self.with(slot, |it, mut cx| it.return_credit(&mut cx, payload_bytes));
            return Err(FrameError::UnknownSource(source));
        };
        if !self.shared.endpoints.is_open(target) {
            self.shared.counters.unknown_endpoint += 1;
            self.with(slot, |it, mut cx| it.return_credit(&mut cx, payload_bytes));
            return Ok(None);
        }
        Ok(Some((remote, epoch)))
    }

    /// Notes that a message waits for its receive, or for the connection manager.
    pub(super) fn note_unexpected(&mut self, slot: u32, context: u64) {
        self.shared.counters.unexpected_messages += 1;
        self.with(slot, |it, mut cx| it.extend_windows(&mut cx));
        if context == REQUESTS && self.shared.actions.back() != Some(&Action::Requests) {
            self.shared.actions.push_back(Action::Requests);
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
            let message = self.shared.unexpected.insert(message, payload);
            let message = message.ok_or(FrameError::NoCredit("unexpected message"))?;
            if let Some(matcher) = self.shared.endpoints.get_mut(target) {
                matcher.insert_unexpected(&envelope, message.index() as u32);
            }
            self.note_unexpected(slot, context);
            return Ok(());
        };
        self.with(slot, |it, mut cx| it.return_credit(&mut cx, payload.len()));
        if report != 0 {
            self.push_control(slot, ControlFrame::matched(report));
        }
        let Some(peer) = self.shared.peers.id_at(remote) else { return Ok(()) };
        let Some(matched) = self.shared.operations.remove_matched(id) else { return Ok(()) };
        let bytes = &payload[..matched.capacity.min(length) as usize];
        let arrival = Arrival { peer, context, tag, length, data };
        effects.deliver(id, bytes, arrival);
        if let Some(multi) = matched.slice_of {
            self.note_slice_ended(multi, effects);
        }
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
            let message = self.shared.unexpected.insert(message, first);
            let message = message.ok_or(FrameError::NoCredit("unexpected message"))?;
            if let Some(matcher) = self.shared.endpoints.get_mut(target) {
                matcher.insert_unexpected(&envelope, message.index() as u32);
            }
            self.note_unexpected(slot, context);
            return Ok(());
        };
        self.with(slot, |it, mut cx| it.return_credit(&mut cx, first.len()));
        let (first, source) = first_bytes(first, has_source);
        let capacity = self.shared.operations.length(id).unwrap_or(0);
        let fits = capacity.min(first.len() as u64) as usize;
        effects.place(id, 0, &first[..fits]);
        let Some(peer) = self.shared.peers.id_at(remote) else { return Ok(()) };
        let arrival = Arrival { peer, context, tag, length, data };
        let offered = Offered { send_operation, hint, first: first.len() as u64, source };
        self.pull(id, slot, offered, arrival, effects);
        Ok(())
    }
}
