//! Receiving: matching, eager arrival, unexpected messages.

use super::context::{Cx, SharedState};
use super::core::{Core, UNTAGGED};
use super::effects::{Arrival, Effects, Ended};
use super::matching::{Kept, MatchEnvelope, Selector};
use super::multi::Multi;
use super::operation::{NO_REMOTE, NO_SESSION, Operation, OperationState};
use super::operations::Operations;
use super::peers::PeerTable;
use super::session::rendezvous::Offered;
use super::session::send::SendRefusal;
use super::session::{ControlFrame, Session};
use super::table::Id;
use super::unexpected::{Kind, Waiting};
use crate::wire::done::STATUS_ABANDONED;
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

/// A receive, or another operation, that has matched a long message, which is to be pulled.
pub(super) struct LongMatch {
    pub(super) id: Id,
    pub(super) offered: Offered,
    pub(super) arrival: Arrival,
}

/// Result of a frame that may match a long message.
pub(super) type LongMatched = Result<Option<LongMatch>, FrameError>;

impl ReceiveRequest {
    /// Returns what it accepts, and the slot of the session of its source.
    #[inline(always)]
    pub(super) fn selector(&self, peers: &PeerTable) -> Result<(Selector, u32), SendRefusal> {
        let (source, session) = match self.peer {
            Some(peer) => {
                let remote = peers.get(peer).ok_or(SendRefusal::UnknownPeer)?;
                (Some(peer.index() as u32), remote.session)
            }
            None => (None, NO_SESSION),
        };
        let Self { context, tag, ignore, .. } = *self;
        Ok((Selector { source, context, tag, ignore }, session))
    }
}

impl Operations {
    /// Ends a receive that has not matched, and is not posted any more.
    pub(super) fn end_unmatched(
        &mut self,
        id: Id,
        peers: &PeerTable,
        ended: Ended,
        effects: &mut impl Effects,
    ) {
        let Some(receive) = self.receive(id) else {
            debug_assert!(false, "{id:?} is no receive");
            return;
        };
        let Selector { source, context, tag, .. } = receive.selector();
        self.remove_receive(id);
        effects.unmatched(id, source.and_then(|it| peers.id_at(it)), (context, tag));
        effects.complete(id, ended);
    }
}

impl SharedState {
    /// Creates an operation for a receive. Start it with [`Core::start_receive`] when its buffer is
    /// ready.
    pub(crate) fn new_receive(&mut self, request: &ReceiveRequest) -> Result<Id, SendRefusal> {
        let (mut selector, session) = request.selector(&self.peers)?;
        if planted!(IgnoreSource) {
            selector.source = None;
        }
        let &ReceiveRequest { endpoint, context, tag, capacity, min_free, .. } = request;
        let inserted = match min_free {
            None => self.operations.insert_receive(endpoint, &selector, capacity),
            Some(min_free) => {
                let remote = selector.source.unwrap_or(NO_REMOTE);
                let state = OperationState::AwaitMessages(Multi::new(min_free));
                let new = Operation::new(endpoint, session, remote, state);
                let multi = Operation { context, tag, length: capacity, ..new };
                self.operations.insert_multi(&selector, multi)
            }
        };
        inserted.ok_or(SendRefusal::OPERATIONS)
    }

    /// Cancels a receive that has not matched. Returns `false` if it has, and will complete. A
    /// multi-receive matches no more, and ends as cancelled when its matched messages have ended.
    pub(crate) fn cancel_receive(&mut self, id: Id, effects: &mut impl Effects) -> bool {
        let Self { endpoints, operations, .. } = self;
        if operations.get(id).is_some() {
            let is_open = operations.takes_slices(id);
            if is_open {
                operations.fail_multi(endpoints, id, Ended::Cancelled, effects);
            }
            return is_open;
        }
        let is_posted = endpoints.withdraw(operations, id);
        if is_posted {
            operations.remove_receive(id);
            effects.complete(id, Ended::Cancelled);
        }
        is_posted
    }

    /// Ends a receive or multi-receive that takes no message, or no more of them.
    pub(super) fn end_unposted(&mut self, id: Id, ended: Ended, effects: &mut impl Effects) {
        let Self { endpoints, operations, peers, .. } = self;
        if operations.get(id).is_some() {
            operations.fail_multi(endpoints, id, ended, effects);
        } else {
            operations.end_unmatched(id, peers, ended, effects);
        }
    }
}

impl Core {
    /// Creates and starts a receive for which no message can wait. `None`: one may, or there is an
    /// error; use the general path.
    #[inline(always)]
    pub(crate) fn post_fast(&mut self, request: &ReceiveRequest) -> Option<Id> {
        if request.min_free.is_some() {
            return None;
        }
        let SharedState { peers, endpoints, operations, .. } = &mut self.shared;
        let (selector, session) = request.selector(peers).ok()?;
        let known = self.sessions.at(session as usize);
        let failed = known.is_some_and(|it| it.ending().to_report().is_some());
        let (matcher, needs_peers) = endpoints.with_needs(request.endpoint)?;
        let may_not_wait = failed || needs_peers || matcher.unexpected_len() > 0;
        if may_not_wait || planted!(IgnoreSource) || !shortcut!("a receive that waits at once") {
            return None;
        }
        matcher.post(&mut operations.slots, request.endpoint, &selector, request.capacity)
    }

    /// Matches a new receive with the oldest unexpected message it accepts, or posts it. A
    /// multi-receive gets all of these that it has space for.
    pub(crate) fn start_receive(&mut self, id: Id, effects: &mut impl Effects) {
        let SharedState { endpoints, operations, .. } = &mut self.shared;
        let Some(slot) = operations.slots.get(id) else {
            debug_assert!(false, "a receive is started when it is created");
            return;
        };
        let (endpoint, selector) = (slot.endpoint(), slot.selector());
        if operations.get(id).is_some() {
            if !self.fill_multi(id, (endpoint, &selector), effects) {
                return;
            }
        } else if let Some(matcher) = endpoints.get_mut(endpoint) {
            if planted!(MatchYoungest)
                && let Some(kept) = matcher.take_unexpected(&selector)
            {
                matcher.insert_unexpected(&kept.envelope, kept.message);
            }
            if matcher.unexpected_len() > 0
                && let Some(kept) = matcher.take_unexpected(&selector)
            {
                return self.deliver(id, &kept, effects);
            }
        }
        let SharedState { endpoints, operations, peers, .. } = &mut self.shared;
        let Some((matcher, needs_peers)) = endpoints.with_needs(endpoint) else {
            return self.shared.end_unposted(id, Ended::Cancelled, effects);
        };
        // A lost peer sends nothing any more; its earlier messages were checked first.
        let remote = selector.source.unwrap_or(NO_REMOTE);
        let source = peers.at(remote).and_then(|it| self.sessions.at_mut(it.session as usize));
        if let Some(source) = source
            && let Some(failure) = source.ending_mut().report()
        {
            let ended = Ended::Failed(failure, source.peer().name_of(peers, remote));
            return self.shared.end_unposted(id, ended, effects);
        }
        matcher.insert_posted(&mut operations.slots, id.index() as u32);
        if needs_peers {
            self.end_receives_without_sender(effects);
        }
    }

    /// Delivers an unexpected message to the receive that matched it.
    pub(super) fn deliver(&mut self, id: Id, kept: &Kept, effects: &mut impl Effects) {
        let SharedState { unexpected, operations, peers, .. } = &mut self.shared;
        let (message, capacity) = (unexpected.take(kept.message), operations.length(id));
        let (Some(message), Some(capacity), Some(peer)) =
            (message, capacity, peers.id_at(kept.envelope.source))
        else {
            debug_assert!(false, "a message that waits is kept, and its source is known");
            return;
        };
        let arrival = message.arrival(peer, &kept.envelope);
        let came = message.first_bytes();
        effects.place(id, 0, &came[..capacity.min(came.len() as u64) as usize]);
        self.return_credit_of(&message);
        if message.put_back() != 0 {
            effects.order(id, message.put_back());
        }
        match message.kind {
            Kind::Eager { report, .. } => {
                let matched = self.shared.operations.remove_matched(id);
                if report != 0 && !planted!(LoseMatched) {
                    let matched = ControlFrame::matched(report);
                    self.with(message.session, |it, mut cx| it.send_control(&mut cx, matched));
                }
                let slice_of = matched.slice_of;
                let ended = Ended::Received(arrival);
                self.shared.operations.end_receive(id, slice_of, ended, effects);
            }
            Kind::Rendezvous { send_operation, flags, .. } => {
                let (offered, _) = Offered::of_rts(send_operation, flags, message.payload());
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
        let SharedState { peers, endpoints, unexpected, .. } = &mut self.shared;
        let (selector, session) = request.selector(peers)?;
        let matcher = endpoints.get_mut(request.endpoint);
        let Some(kept) = matcher.and_then(|matcher| matcher.peek_unexpected(&selector)) else {
            let session = self.sessions.at(session as usize);
            let failure = session.and_then(|it| it.ending().to_report().cloned());
            return failure.map_or(Ok(None), |failure| Err(SendRefusal::Failed(failure)));
        };
        let found = unexpected.at(kept.message).zip(peers.id_at(kept.envelope.source));
        debug_assert!(found.is_some(), "a message that waits is kept, and its source is known");
        Ok(found.map(|(message, peer)| message.arrival(peer, &kept.envelope)))
    }

    /// Calls `handle` with the session in a slot, and pulls the long message that has matched.
    pub(super) fn pull_matched<E: Effects>(
        &mut self,
        slot: u32,
        effects: &mut E,
        handle: impl FnOnce(&mut Session, &mut Cx<'_>, &mut E) -> LongMatched,
    ) -> Result<(), FrameError> {
        let (session, mut cx) = self.enter_receiving(slot)?;
        let matched = handle(session, &mut cx, effects)?;
        self.pull_long(slot, matched, effects);
        Ok(())
    }

    /// Pulls a long message that has matched.
    pub(super) fn pull_long(
        &mut self,
        slot: u32,
        matched: Option<LongMatch>,
        effects: &mut impl Effects,
    ) {
        if let Some(LongMatch { id, offered, arrival }) = matched {
            self.pull(id, slot, offered, arrival, effects);
        }
    }
}

impl Session {
    /// Checks the preconditions of every message whose credit is charged: its source, its target.
    /// Returns the remote endpoint; `Ok(None)`: the target is not open, and credit was returned.
    ///
    /// RR-MATCH-3.
    #[inline]
    fn admit(
        &mut self,
        cx: &mut Cx<'_>,
        target: u16,
        source: u16,
        payload_bytes: usize,
    ) -> Result<Option<Id>, FrameError> {
        let remote = cx.shared.peers.remote_of(cx.slot, self.peer_mut(), source);
        let Some(peer) = remote.and_then(|remote| cx.shared.peers.id_at(remote)) else {
            self.return_credit(cx, payload_bytes);
            return Err(FrameError::UnknownSource(source));
        };
        if !cx.shared.endpoints.is_open(target) {
            cx.shared.note_unknown_endpoint();
            self.return_credit(cx, payload_bytes);
            return Ok(None);
        }
        Ok(Some(peer))
    }

    /// Keeps a message that no receive accepts yet: it waits for one, or for the connection
    /// manager.
    fn keep_unexpected(
        &mut self,
        cx: &mut Cx<'_>,
        target: u16,
        envelope: &MatchEnvelope,
        (kind, data): (Kind, Option<u64>),
        bytes: &[u8],
    ) -> Result<(), FrameError> {
        let message = Waiting { came_by: (cx.slot, self.epoch()), data, kind };
        debug_assert!(cx.shared.endpoints.is_open(target), "messages are for open endpoints");
        if !cx.shared.keep_unexpected(target, envelope, message, bytes) {
            return Err(FrameError::NoCredit("unexpected message"));
        }
        self.note_matched(bytes.len() as u64, false);
        let engine = self.peer().id();
        cx.extend_windows(self.segments_mut().receive_credits_mut(), engine);
        Ok(())
    }

    /// Takes a whole message, with its remote data, whose turn it is and whose credit is charged.
    #[inline]
    pub(super) fn take_eager(
        &mut self,
        cx: &mut Cx<'_>,
        header: &Eager,
        data: Option<u64>,
        payload: &[u8],
        now_ns: u64,
        effects: &mut impl Effects,
    ) -> Result<(), FrameError> {
        let report = header.operation.get();
        let target = header.target_endpoint.get();
        let source = header.source_endpoint.get();
        let Some(peer) = self.admit(cx, target, source, payload.len())? else {
            if report != 0 {
                self.send_control(cx, ControlFrame::done(report, STATUS_ABANDONED, 0));
            }
            return Ok(());
        };
        self.segments_mut().note_message(now_ns);
        let context = context_of(header.context.get(), header.flags);
        let tag = header.tag.get();
        let envelope = MatchEnvelope { source: peer.index() as u32, context, tag };
        let length = payload.len() as u64;
        let SharedState { endpoints, operations, .. } = &mut *cx.shared;
        let matched = endpoints.match_arrival(operations, target, &envelope, length, effects);
        let Some(id) = matched else {
            let kind = Kind::Eager { report, put_back: 0 };
            return self.keep_unexpected(cx, target, &envelope, (kind, data), payload);
        };
        self.return_credit(cx, payload.len());
        if report != 0 {
            self.send_control(cx, ControlFrame::matched(report));
        }
        let matched = cx.shared.operations.remove_matched(id);
        let bytes = &payload[..matched.capacity.min(length) as usize];
        let arrival = Arrival { peer, context, tag, length, data };
        effects.deliver(id, bytes, arrival);
        if let Some(multi) = matched.slice_of {
            cx.shared.operations.note_slice_ended(multi, effects);
        }
        Ok(())
    }

    /// Takes a request to send, with the remote data of its message, whose turn it is and whose
    /// credit is charged.
    pub(super) fn take_rts(
        &mut self,
        cx: &mut Cx<'_>,
        header: &Rts,
        data: Option<u64>,
        first: &[u8],
        effects: &mut impl Effects,
    ) -> LongMatched {
        let send_operation = header.operation.get();
        let target = header.target_endpoint.get();
        let source = header.source_endpoint.get();
        let Some(peer) = self.admit(cx, target, source, first.len())? else {
            self.send_control(cx, ControlFrame::done(send_operation, STATUS_ABANDONED, 0));
            return Ok(None);
        };
        let context = context_of(header.context.get(), header.flags);
        let (tag, length) = (header.tag.get(), header.length.get());
        let envelope = MatchEnvelope { source: peer.index() as u32, context, tag };
        let SharedState { endpoints, operations, .. } = &mut *cx.shared;
        let matched = endpoints.match_arrival(operations, target, &envelope, length, effects);
        self.note_matched(length, matched.is_some());
        let Some(id) = matched else {
            let kind = Kind::Rendezvous { send_operation, length, flags: header.flags };
            self.keep_unexpected(cx, target, &envelope, (kind, data), first)?;
            return Ok(None);
        };
        self.return_credit(cx, first.len());
        let capacity = cx.shared.operations.length(id);
        let capacity = debug_assert_some!(capacity, "a receive that has matched is kept");
        let (offered, first) = Offered::of_rts(send_operation, header.flags, first);
        let fits = capacity.unwrap_or(0).min(first.len() as u64) as usize;
        effects.place(id, 0, &first[..fits]);
        let arrival = Arrival { peer, context, tag, length, data };
        Ok(Some(LongMatch { id, offered, arrival }))
    }
}
