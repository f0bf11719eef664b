//! Rendezvous: the receiver pulls messages by grants.
//!
//! ```text
//!  sender                                   receiver
//!    │ RTS(envelope, length, first bytes)      │
//!    ├──────────────── control ───────────────>│ match
//!    │                      GRANT(lane, range) │
//!    │<─────────────── control ────────────────┤ recv [chunk header | user's buffer]
//!    │ chunk header, bytes                     │
//!    ├───────────────── bulk ─────────────────>│ in place
//!    │                                    DONE │ no recv targets the buffer any more
//!    │<─────────────── control ────────────────┤ the receive completes
//!    │ completes, once the kernel has released │
//!    │ the last chunk                          │
//! ```
//!
//! How the bytes of a granted range travel is chosen for each message
//! ([`SendProtocol::pull_method`](super::segments::SendProtocol::pull_method)):
//!
//! | method | granted | queue | module |
//! |---|---|---|---|
//! | TCP lanes | a chunk at a time, on the lane that delivers it first | of the lane | [`chunks`] |
//! | datagrams, without lanes | a chunk at a time, in one window | [`granted`] | [`datagrams`] |
//! | a ring in shared memory | all of it at once | [`granted`] | [`ring`] |
//! | cross-memory read | nothing: the receiver reads it itself | none | [`cma`] |
//!
//! The queue has the granted ranges at the sender, until they are sent.
//!
//! A receive changes its method where a ring begins or ends, or memory cannot be read
//! ([`PullState`]). [`queue`] has the order in which messages are granted,
//! [`granting`] the grants.

use std::collections::VecDeque;

use super::late::{Late, LateQueue};
use super::{ControlFrame, Session};
use crate::proto::context::Cx;
use crate::proto::core::Core;
use crate::proto::effects::{Arrival, Effects, Ended};
use crate::proto::failure::PeerFailure;
use crate::proto::hint::{Hint, Hinted};
use crate::proto::operation::{Cause, Operation, OperationState};
use crate::proto::operations::Operations;
use crate::proto::ready::Work;
use crate::proto::table::Id;
#[cfg(any(test, feature = "sim"))]
use crate::proto::table::Table;
use crate::wire::done::{STATUS_ABANDONED, STATUS_OK};
use crate::wire::{CmaSource, Done, FrameError, Grant, GrantOver, MessageSource, Refused};

use self::granted::{Parts, QueuedRange, RangeQueue};
use self::pulling::{PullState, Pulling};
use self::queue::PullQueue;
use self::ranges::Ranges;
use self::serving::Served;
use self::unsolicited::Unsolicited;

pub(crate) mod chunks;
pub(crate) mod cma;
mod datagrams;
mod granted;
mod granting;
pub(crate) mod pulling;
mod queue;
mod ranges;
pub(crate) mod ring;
pub(crate) mod serving;
mod unsolicited;

/// Number of pulls whose lengths are added up: more of them count as unlimited.
const PULLS_COUNTED: usize = 4;

/// Contents of a request to send besides its envelope.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Offered {
    /// The sender's id of the message.
    pub(crate) send_operation: u64,
    /// Hint of the sender.
    pub(crate) hint: Hint,
    /// Bytes that arrived with it.
    pub(crate) first: u64,
    /// What brings it without a grant.
    pub(crate) source: Option<MessageSource>,
}

impl Offered {
    /// Returns that of an RTS with these flags, and the first bytes of its message among those that
    /// came with it.
    pub(in crate::proto) fn of_rts(send_operation: u64, flags: u8, came: &[u8]) -> (Self, &[u8]) {
        let (first, source) = MessageSource::split(flags, came);
        let hint = Hint::of_flags(flags);
        (Self { send_operation, hint, first: first.len() as u64, source }, first)
    }
}

/// Rendezvous state that all sessions of an engine share.
#[derive(Debug, Default)]
pub(crate) struct Rendezvous {
    /// Receives whose messages are read by CMA, in matching order.
    readable: VecDeque<(Id, CmaSource)>,
    /// Bytes granted to peers in datagrams and not received yet.
    pulled_bytes: u64,
    /// Records of received ranges, for reuse.
    idle: Vec<Ranges>,
    /// Counters of hints.
    hinted: Hinted,
}

impl Rendezvous {
    /// Returns a record of the received ranges of a message, with its first bytes.
    fn ranges(&mut self, first: u64) -> Ranges {
        let mut ranges = self.idle.pop().unwrap_or_default();
        if first > 0 {
            ranges.add(0, first);
        }
        ranges
    }

    fn recycle(&mut self, ranges: Ranges) {
        self.idle.push(ranges.emptied());
    }

    /// Returns the counters of hints.
    pub(crate) fn hinted(&self) -> &Hinted {
        &self.hinted
    }

    /// Counts a send with a hint.
    #[inline]
    pub(crate) fn note_hinted_send(&mut self, hint: Hint) {
        self.hinted.note_send(hint);
    }

    /// Checks that the total is the sum of what sessions have granted.
    #[cfg(any(test, feature = "sim"))]
    pub(in crate::proto) fn check(&self, sessions: &Table<Session>) {
        let pulled = sessions.iter().map(|(_, session)| session.rendezvous.pulled_bytes());
        assert_eq!(pulled.sum::<u64>(), self.pulled_bytes, "the total is that of all sessions");
    }

    /// Returns the bytes granted to all peers in datagrams and not received yet.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn pulled_bytes(&self) -> u64 {
        self.pulled_bytes
    }
}

/// Rendezvous state of a session.
#[derive(Debug, Default)]
pub(crate) struct SessionRendezvous {
    /// Receives with bytes that were never granted.
    queue: PullQueue,
    /// Ranges that were granted and lost with their lane.
    missing: LateQueue<(Id, u64, u64)>,
    /// The ring for pieces, as both sides know it.
    ring: Option<u32>,
    /// Ranges that the peer has granted on a ring, or in datagrams.
    granted: Late<RangeQueue>,
    /// Messages in pieces that are not granted.
    unsolicited: Late<Unsolicited>,
    /// Bulk data goes in datagrams; if not, lanes carry it.
    is_in_datagrams: bool,
    /// Bytes granted to the peer in datagrams and not received yet.
    pulled_bytes: u64,
}

impl SessionRendezvous {
    /// Returns whether nothing remains to be granted.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty() && self.missing.is_empty()
    }

    /// Returns whether nothing is granted in datagrams, and nothing remains to be granted.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn is_at_rest(&self) -> bool {
        self.is_empty() && self.pulled_bytes == 0 && self.granted.is_free_of_data()
    }

    /// Returns the bytes granted to the peer in datagrams and not received yet.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn pulled_bytes(&self) -> u64 {
        self.pulled_bytes
    }

    /// Returns the number of ranges that were lost with their lane.
    #[cfg(test)]
    pub(crate) fn missing_count(&self) -> usize {
        self.missing.len()
    }

    /// Returns the bytes that remain to be granted, as far as they are counted.
    pub(super) fn ungranted(&self, operations: &Operations) -> u64 {
        if self.queue.len() > PULLS_COUNTED {
            return u64::MAX;
        }
        let missing: u64 = self.missing.iter().map(|&(_, _, length)| length).sum();
        let pulls = self.queue.iter().filter_map(|id| match &operations.get(id)?.state {
            OperationState::Pulling(pulling) => Some(pulling.ungranted()),
            _ => None,
        });
        pulls.fold(missing, u64::saturating_add)
    }

    /// Grants a range again that is lost.
    pub(super) fn push_missing(&mut self, id: Id, offset: u64, length: u64) {
        self.missing.push_back((id, offset, length));
    }

    /// Grants no more of a receive.
    pub(super) fn stop_granting(&mut self, id: Id) {
        self.queue.retain(|pull| pull != id);
        self.missing.retain(|&(pull, ..)| pull != id);
    }

    /// Lets bulk data go in datagrams.
    pub(super) fn use_datagrams(&mut self) {
        self.is_in_datagrams = true;
    }

    /// Frees memory that is not used.
    pub(super) fn shrink(&mut self) {
        self.missing.shrink();
        self.queue.shrink();
        if let Some(granted) = self.granted.get_mut() {
            granted.shrink();
        }
        if let Some(unsolicited) = self.unsolicited.get_mut() {
            unsolicited.shrink();
        }
    }
}

impl SessionRendezvous {
    /// Ends the transfers of the session, which ends.
    pub(super) fn end(&mut self, cx: &mut Cx<'_>) {
        let state = std::mem::take(self);
        cx.remove_work(Work::Piece);
        state.end_datagrams(cx);
    }

    /// Pulls what is left of a message, of which no range is under way: as its sender offers, by a
    /// ring where there is one, or else in ranges. Returns a grant on that ring.
    fn begin_pull(
        &mut self,
        cx: &mut Cx<'_>,
        id: Id,
        source: Option<MessageSource>,
    ) -> Option<Grant> {
        match source {
            Some(MessageSource::Memory(source)) => {
                let pulled = cx.shared.operations.pulling(cx.slot, id);
                let (pulling, _) = debug_assert_some!(pulled, "it pulls")?;
                pulling.state = PullState::Reading;
                cx.shared.rendezvous.read_from_memory(id, source);
                return None;
            }
            Some(MessageSource::Pieces(pieces)) if self.take_unsolicited(cx, id, pieces) => {
                return None;
            }
            Some(MessageSource::Pieces(_)) | None => {}
        }
        if self.ring.is_some() {
            return self.pull_by_ring(cx, id);
        }
        self.begin_granting(cx, id);
        None
    }
}

impl Session {
    /// Pulls what is left of a message, of which no range is under way.
    fn begin_pull(&mut self, cx: &mut Cx<'_>, id: Id, source: Option<MessageSource>) {
        self.grant_by(cx, |it, cx| it.begin_pull(cx, id, source));
    }

    /// Handles the peer's grant of a range of a message.
    ///
    /// RR-RDV-1, RR-RDV-5, RR-RDV-9.
    pub(super) fn handle_grant(
        &mut self,
        cx: &mut Cx<'_>,
        grant: &Grant,
    ) -> Result<(), FrameError> {
        let parts = match grant.over() {
            GrantOver::Lane { lane, .. } => return self.handle_lane_grant(cx, grant, lane),
            GrantOver::Ring(ring) if self.segments.has_datagrams() => Parts::Pieces(ring),
            GrantOver::Datagrams if self.rendezvous.is_in_datagrams() => Parts::Data,
            GrantOver::Ring(_) | GrantOver::Datagrams => return Err(grant.error(0)),
        };
        if !self.rendezvous.accept_grant(cx, grant, parts)? {
            self.refuse_grant(cx, grant.over(), grant.receive_operation.get());
        }
        Ok(())
    }

    /// Refuses a grant of the peer for a send that has ended.
    ///
    /// RR-RDV-5.
    fn refuse_grant(&mut self, cx: &mut Cx<'_>, over: GrantOver, receive_operation: u64) {
        cx.shared.counters.stale_frames += 1;
        self.send_control(cx, ControlFrame::Refused(Refused::new(over, receive_operation)));
    }

    /// Returns the range of the next part to send. Ranges of sends that have ended are refused.
    fn next_granted(&mut self, cx: &mut Cx<'_>, parts: Parts) -> Option<QueuedRange> {
        loop {
            match self.rendezvous.next_granted(cx, parts)? {
                Ok(range) => return Some(range),
                Err(receive) => self.refuse_grant(cx, parts.over(), receive),
            }
        }
    }
}

/// The receiver.
impl Core {
    /// Pulls a matched rendezvous message, whose first bytes are in place.
    ///
    /// RR-RDV-7, RR-RDV-8.
    pub(crate) fn pull(
        &mut self,
        id: Id,
        slot: u32,
        offered: Offered,
        arrival: Arrival,
        effects: &mut impl Effects,
    ) {
        let Offered { send_operation, hint, first, source } = offered;
        let begun = self.shared.operations.begin_pull(id);
        let Some(operation) = debug_assert_some!(begun, "a matched receive exists") else { return };
        let wanted = operation.length.min(arrival.length);
        let in_place = first.min(wanted);
        operation.note_match(slot, &arrival);
        effects.matched(id, &arrival);
        operation.hint = hint;
        let ranges = self.shared.rendezvous.ranges(in_place);
        let pulling = Pulling::new(send_operation, (arrival.length, wanted), in_place, ranges);
        operation.state = OperationState::Pulling(pulling);
        let is_own = self.is_loopback(slot);
        if in_place == wanted || (is_own && self.copy_rest(id, send_operation, arrival, effects)) {
            self.finish_pull(id, effects);
        } else if is_own {
            // Its send has ended, and so has the receive.
        } else {
            self.with(slot, |it, mut cx| it.begin_pull(&mut cx, id, source));
        }
    }

    /// Continues a receive of which more is in place: it is whole, or may go on by a ring.
    fn continue_pull(&mut self, id: Id, effects: &mut impl Effects) {
        let (is_whole, ready) = self.shared.operations.with_pulled(id, |slot, pulling| {
            let is_granted = planted!(EarlyDone) && pulling.granted == pulling.wanted;
            let is_whole = pulling.arrived == pulling.wanted || is_granted;
            (is_whole, pulling.is_ready_for_ring().then_some(slot))
        });
        if is_whole {
            self.finish_pull(id, effects);
        } else if let Some(slot) = ready {
            self.with_known(slot, |it, mut cx| {
                it.grant_by(&mut cx, |it, cx| it.pull_by_ring(cx, id));
            });
        }
    }

    pub(super) fn finish_pull(&mut self, id: Id, effects: &mut impl Effects) {
        let removed = self.remove_operation(id);
        let Some(operation) = debug_assert_some!(removed, "it pulls") else { return };
        let OperationState::Pulling(pulling) = operation.state else {
            debug_assert!(false, "a receive that ends by its last bytes pulls");
            return;
        };
        self.shared.rendezvous.recycle(pulling.ranges);
        debug_assert_eq!(pulling.targeted, 0, "RR-RDV-3: all are reaped before DONE");
        debug_assert!(
            pulling.arrived == pulling.wanted || planted!(EarlyDone),
            "all bytes are in place before DONE"
        );
        let done = ControlFrame::done(pulling.send_operation, STATUS_OK, pulling.wanted);
        let slot = operation.session;
        self.with(slot, |it, cx| it.send_done(cx, done));
        let peer = self.shared.peers.id_at(operation.remote);
        let Some(peer) = debug_assert_some!(peer, "receives from removed peers fail") else {
            return;
        };
        let Operation { context, tag, data, slice_of, .. } = operation;
        let arrival = Arrival { peer, context, tag, length: pulling.length, data };
        let ended = Ended::Received(arrival);
        self.shared.operations.end_receive(id, slice_of, ended, effects);
    }
}

/// The sender.
impl Core {
    /// RR-FRAME-2
    pub(crate) fn handle_done(&mut self, slot: u32, done: &Done, effects: &mut impl Effects) {
        let id = Id::from_u64(done.operation.get());
        let Some(operation) = self.shared.operations.get_mut(id).filter(|op| op.session == slot)
        else {
            self.shared.counters.stale_frames += 1;
            return;
        };
        let is_abandoned = done.status == STATUS_ABANDONED;
        match &mut operation.state {
            OperationState::Serving(serving) => {
                if is_abandoned {
                    serving.fail(Cause::Peer(PeerFailure::Left));
                } else {
                    serving.done = Some(done.accepted.get());
                }
                self.finish_serving(id, effects);
            }
            OperationState::AwaitMatch if is_abandoned => {
                let remote = operation.remote;
                self.shared.operations.remove(id);
                effects.complete(
                    id,
                    Ended::Failed(
                        PeerFailure::Left,
                        self.shared.peers.name_of(&self.sessions, remote),
                    ),
                );
                self.with(slot, |it, mut cx| it.fences.recheck(&mut cx));
            }
            _ => self.shared.counters.stale_frames += 1,
        }
    }

    /// RR-RDV-4
    pub(super) fn finish_serving(&mut self, id: Id, effects: &mut impl Effects) {
        let Some((served, slot, remote)) = self.shared.operations.take_served(id) else { return };
        let ended = match served {
            Served::Failed { cause, is_readable } => {
                if is_readable {
                    effects.revoke();
                }
                cause.ended(self.shared.peers.name_of(&self.sessions, remote))
            }
            Served::Done(accepted) => Ended::Sent { accepted },
        };
        self.remove_operation(id);
        effects.complete(id, ended);
        self.with(slot, |it, mut cx| it.fences.recheck(&mut cx));
    }
}
