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
//! What carries the bytes is a [`Carrier`](pull::Carrier) of four:
//!
//! | carrier | granted | queue of the sender | module |
//! |---|---|---|---|
//! | TCP lanes | chunks, on the lane that delivers each first | of the lane | [`pull::lanes`] |
//! | datagrams, without lanes | chunks, in one window | [`granted`] | [`pull::datagrams`] |
//! | a ring in shared memory | all, or not ([`unsolicited`]) | [`granted`] | [`pull::ring`] |
//! | the sender's memory | nothing: the receiver reads it itself | none | [`pull::cma`] |
//!
//! The receiver chooses it when a pull begins (`SessionRendezvous::begin_pull`, `carrier_of`): the
//! memory if the sender has announced it, else a ring if there is one, else what the session has
//! for all (lanes or datagrams). Everything that differs is asked of the carrier: how a pull
//! begins, what is granted next, whether the rest is due when more has come, what is taken back
//! when it ends, how much of a shared window a receive takes; at the sender, whether a grant is
//! accepted. An ended carrier is replaced in one place, too (`replace_carrier`); of an ended lane
//! only single ranges are granted again, on another one. Rings and datagrams take ranges in parts,
//! as there is space: what is common to both is in [`granted`]. Checks of arriving bytes and the
//! calls that move them differ in all four, and are no part of the trait.
//!
//! [`queue`] has the order in which messages are granted, [`granting`] the grants, [`pulling`] what
//! a receive waits for.

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
use crate::wire::{Done, FrameError, Grant, GrantOver, MessageSource};

use self::granted::GrantedRanges;
use self::limits::PullLimits;
use self::local_pulls::{LocalPulls, ServedMessage};
use self::pull::cma::MemoryCarrier;
use self::pull::datagrams::DatagramCarrier;
use self::pull::ring::RingCarrier;
use self::pull::{AnyCarrier, Carrier};
use self::pulling::{PullState, Pulling};
use self::queue::PullQueue;
use self::ranges::Ranges;
use self::serving::Served;
use self::unsolicited::Unsolicited;

mod granted;
mod granting;
pub(crate) mod limits;
mod local_pulls;
pub(crate) mod pull;
pub(crate) mod pulling;
mod queue;
mod ranges;
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
#[derive(Debug)]
pub(crate) struct Rendezvous {
    limits: PullLimits,
    /// Receives whose messages are read by CMA, in matching order.
    readable: VecDeque<Id>,
    /// Bytes granted to peers in datagrams and not received yet.
    pulled_bytes: u64,
    /// Records of received ranges, for reuse.
    idle: Vec<Ranges>,
    /// Counters of hints.
    hinted: Hinted,
}

impl Rendezvous {
    /// Creates the state of an engine that pulls nothing.
    pub(in crate::proto) fn new(limits: PullLimits) -> Self {
        Self {
            limits,
            readable: VecDeque::new(),
            pulled_bytes: 0,
            idle: Vec::new(),
            hinted: Hinted::default(),
        }
    }

    /// Returns the limits on how messages are pulled.
    pub(in crate::proto) fn limits(&self) -> &PullLimits {
        &self.limits
    }

    /// Sets the longest piece, in bytes.
    #[cfg(test)]
    pub(in crate::proto) fn set_piece_bytes(&mut self, bytes: usize) {
        self.limits.set_piece_bytes(bytes);
    }

    /// Sets the limit on bulk bytes outstanding in datagrams, of all peers.
    pub(in crate::proto) fn set_window_bytes(&mut self, bytes: u64) {
        self.limits.set_window_bytes(bytes);
    }

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
    ring: Option<RingCarrier>,
    /// What carries granted ranges where no ring does: lanes or datagrams.
    network: AnyCarrier,
    /// Ranges that the peer has granted on a ring, or in datagrams.
    granted: Late<GrantedRanges>,
    /// Messages in pieces that are not granted.
    unsolicited: Late<Unsolicited>,
    /// Whether the peer gets longer messages in pieces or reads them, where it can do both.
    local_pulls: Late<LocalPulls>,
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
        self.is_empty() && self.pulled_bytes == 0 && self.granted.data.len() == 0
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
            OperationState::AwaitBytes(pulling) => Some(pulling.ungranted()),
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
        self.network = DatagramCarrier.into();
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

    /// Returns what is to bring the rest of a message that is not read from memory.
    fn carrier_of(&self, pulling: &Pulling) -> AnyCarrier {
        let ring = self.ring.filter(|_| pulling.state != PullState::Settled);
        ring.map_or(self.network, AnyCarrier::from)
    }

    /// Lets what `choose` returns bring the rest of a message.
    fn bring_by(
        &mut self,
        cx: &mut Cx<'_>,
        id: Id,
        choose: impl FnOnce(&Self, &mut Pulling) -> AnyCarrier,
    ) -> Option<Grant> {
        let pulled = cx.shared.operations.pulling(cx.slot, id);
        let (pulling, _) = debug_assert_some!(pulled, "it pulls")?;
        choose(self, pulling).begin(self, cx, id)
    }

    /// Pulls what is left of a message, of which no range is under way.
    fn begin_pull(
        &mut self,
        cx: &mut Cx<'_>,
        id: Id,
        source: Option<MessageSource>,
    ) -> Option<Grant> {
        let memory = match source {
            Some(MessageSource::Memory(source)) => Some(MemoryCarrier(source).into()),
            Some(MessageSource::Pieces(pieces)) if self.take_unsolicited(cx, id, pieces) => {
                return None;
            }
            Some(MessageSource::Pieces(_)) | None => None,
        };
        self.bring_by(cx, id, |it, pulling| memory.unwrap_or_else(|| it.carrier_of(pulling)))
    }

    /// Grants the rest of a message, of which all that was granted has come.
    fn grant_rest(&mut self, cx: &mut Cx<'_>, id: Id) -> Option<Grant> {
        self.bring_by(cx, id, |it, pulling| match pulling.state {
            PullState::Settled => pulling.carrier,
            PullState::Granting | PullState::Draining => it.carrier_of(pulling),
        })
    }

    /// Lets another carrier bring what is left of a message, whose own has ended.
    fn replace_carrier(&mut self, cx: &mut Cx<'_>, id: Id) -> Option<Grant> {
        self.bring_by(cx, id, |it, pulling| {
            pulling.carrier.take_back(pulling);
            it.carrier_of(pulling)
        })
    }
}

impl Session {
    /// Handles the peer's grant of a range of a message.
    ///
    /// RR-RDV-1, RR-RDV-5, RR-RDV-9.
    pub(super) fn handle_grant(
        &mut self,
        cx: &mut Cx<'_>,
        grant: &Grant,
        over: GrantOver,
    ) -> Result<(), FrameError> {
        let id = Id::from_u64(grant.send_operation.get());
        if let Some((serving, ..)) = cx.shared.operations.serving(cx.slot, id) {
            serving.note_grant();
        }
        AnyCarrier::from(over).accept(self, cx, grant)
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
        operation.state = OperationState::AwaitBytes(pulling);
        let is_own = self.is_loopback(slot);
        if in_place == wanted || (is_own && self.copy_rest(id, send_operation, arrival, effects)) {
            self.finish_pull(id, effects);
        } else if is_own {
            // Its send has ended, and so has the receive.
        } else {
            self.with(slot, |it, mut cx| {
                it.grant_by(&mut cx, |it, cx| it.begin_pull(cx, id, source))
            });
        }
    }

    /// Notes that the next `bytes` of a message are in place. Returns whether it is whole.
    fn note_pulled(&mut self, id: Id, bytes: u64, effects: &mut impl Effects) -> bool {
        self.shared.operations.with_pulled(id, |_, pulling| pulling.note_arrived(bytes));
        self.continue_pull(id, effects)
    }

    /// Continues a receive of which more is in place: it is whole, or the rest is granted if that
    /// is due now. Returns whether it is whole.
    fn continue_pull(&mut self, id: Id, effects: &mut impl Effects) -> bool {
        let (is_whole, due) = self.shared.operations.with_pulled(id, |slot, pulling| {
            let is_granted = planted!(EarlyDone) && pulling.granted == pulling.wanted;
            let is_whole = pulling.arrived == pulling.wanted || is_granted;
            (is_whole, pulling.carrier.is_rest_due(pulling).then_some(slot))
        });
        if is_whole {
            self.finish_pull(id, effects);
        } else if let Some(slot) = due {
            self.with_known(slot, |it, mut cx| {
                it.grant_by(&mut cx, |it, cx| it.grant_rest(cx, id));
            });
        }
        is_whole
    }

    pub(super) fn finish_pull(&mut self, id: Id, effects: &mut impl Effects) {
        let removed = self.remove_operation(id);
        let Some(operation) = debug_assert_some!(removed, "it pulls") else { return };
        let OperationState::AwaitBytes(pulling) = operation.state else {
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
    pub(crate) fn handle_done(
        &mut self,
        slot: u32,
        done: &Done,
        now_ns: u64,
        effects: &mut impl Effects,
    ) {
        let id = Id::from_u64(done.operation.get());
        let Some(operation) = self.shared.operations.get_mut(id).filter(|op| op.session == slot)
        else {
            self.shared.note_stale_frame();
            return;
        };
        let is_abandoned = done.status == STATUS_ABANDONED;
        match &mut operation.state {
            OperationState::AwaitPull(serving) => {
                if is_abandoned {
                    serving.fail(Cause::Peer(PeerFailure::Left));
                } else {
                    serving.done = Some(done.accepted.get());
                }
                let count = serving.unsolicited_count();
                let is_whole = !is_abandoned && done.accepted.get() == operation.length;
                let length = if is_whole { operation.length } else { 0 };
                let served = ServedMessage::of(serving, length, now_ns);
                self.finish_serving(id, effects);
                self.with(slot, |it, _| {
                    it.rendezvous.note_arrived(count);
                    it.rendezvous.note_served(it.segments.protocol_mut(), &served);
                });
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
            _ => self.shared.note_stale_frame(),
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
