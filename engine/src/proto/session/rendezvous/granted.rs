//! Ranges that the peer has granted on a ring, or in datagrams, until they are sent.
//!
//! Both take a range in parts, as there is space: pieces in the ring, DATA frames in segments. So
//! both have the same queue, and what differs is in [`RangeCarrier`]. Lanes have their own queues
//! ([`BulkLane::outgoing`](super::super::lanes::lane::BulkLane::outgoing)): there the numbers of
//! chunks fix the order.

use std::collections::VecDeque;

use super::super::late::AtRest;
use super::super::{ControlFrame, Session};
use super::SessionRendezvous;
use super::pull::Carrier;
use super::pull::ring::RingCarrier;
use super::serving::Serving;
use crate::proto::context::Cx;
use crate::proto::hint::Hint;
use crate::proto::operation::Operation;
use crate::proto::operations::Operations;
use crate::proto::ready::Work;
use crate::proto::table::Id;
use crate::wire::{FrameError, Grant, GrantOver, Refused};

/// One out of this many pieces is of the last message in priority order.
const TURNS: u32 = 16;

/// Maximum number of ranges that another one overtakes, since the scan takes time.
const LOOK_BACK: usize = 256;

/// Number of ranges for a ring up to which ended sends are not searched for.
const ENDED_USUAL: usize = 64;

/// A carrier that takes granted ranges in parts, as there is space.
pub(super) trait RangeCarrier: Carrier {
    /// The work of a session that has such ranges.
    const WORK: Work;

    /// Returns what the grant of such a range names.
    fn over(self) -> GrantOver;

    /// Notes that the peer grants a range of a message of `message` bytes, unless it may not.
    fn admit(self, serving: &mut Serving, grant: &Grant, message: u64) -> Result<(), FrameError>;

    /// Returns its queue.
    fn queue(self, granted: &mut GrantedRanges) -> &mut RangeQueue;

    /// Queues a range. Returns whether it may be sent now.
    fn push(self, it: &mut SessionRendezvous, new: &NewRange<'_>) -> Result<bool, FrameError>;

    /// Notes that a part has left; `serving` is its send, if that was the last part of its range.
    /// By default nothing follows.
    fn note_sent(_queue: &mut RangeQueue, _serving: Option<&mut Serving>) {}
}

/// What is left of a range that the peer has granted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct QueuedRange {
    /// The send of the range.
    pub(super) operation: Id,
    /// The receiver's id of the operation.
    pub(super) receive_operation: u64,
    /// Offset in the message, in bytes.
    pub(super) offset: u64,
    /// Length in bytes.
    pub(super) length: u32,
}

/// A range that the peer grants.
#[derive(Debug)]
pub(super) struct NewRange<'a> {
    range: QueuedRange,
    /// Hint of its message.
    pub(super) hint: Hint,
    pub(super) operations: &'a Operations,
}

/// Granted ranges of one carrier, in the order in which they are sent.
#[derive(Debug, Default)]
pub(super) struct RangeQueue {
    ranges: VecDeque<QueuedRange>,
    /// Number of parts that counted for the turns.
    turns: u32,
}

impl RangeQueue {
    const EMPTY: Self = Self { ranges: VecDeque::new(), turns: 0 };

    /// Returns the number of ranges.
    pub(super) fn len(&self) -> usize {
        self.ranges.len()
    }

    /// Adds a range behind those that it does not overtake, by the hints of their messages; `None`:
    /// of one that has ended.
    pub(super) fn insert(&mut self, new: &NewRange<'_>, overtakes: impl Fn(Option<Hint>) -> bool) {
        let hint_of = |other: &QueuedRange| Some(new.operations.get(other.operation)?.hint);
        let from = self.ranges.len().saturating_sub(LOOK_BACK);
        let last = self.ranges.range(from..).rposition(|other| !overtakes(hint_of(other)));
        self.ranges.insert(last.map_or(from, |last| from + last + 1), new.range);
    }

    /// Drops the ranges whose sends have ended, when there are many: a peer that leaves no space
    /// may grant a range of each later send, and abandon it.
    pub(super) fn drop_ended(&mut self, operations: &Operations) {
        if self.ranges.len() > 2 * operations.len() + ENDED_USUAL {
            let serves = |id| operations.get(id).is_some_and(Operation::serves);
            self.ranges.retain(|range| serves(range.operation));
        }
    }

    /// Counts a part that has left: usually the next one is of the first range, but one out of
    /// [`TURNS`] is of the last, and none is starved.
    pub(super) fn note_turn(&mut self) {
        self.turns = self.turns.wrapping_add(1);
    }

    /// Returns whether the next part is of the last range.
    fn is_turn_of_last(&self) -> bool {
        self.turns % TURNS == TURNS - 1
    }

    /// Returns the range of the next part.
    fn next(&mut self) -> Option<&mut QueuedRange> {
        if self.is_turn_of_last() { self.ranges.back_mut() } else { self.ranges.front_mut() }
    }

    /// Removes that range.
    fn pop(&mut self) -> Option<QueuedRange> {
        if self.is_turn_of_last() { self.ranges.pop_back() } else { self.ranges.pop_front() }
    }

    fn shrink(&mut self) {
        if self.ranges.is_empty() {
            self.ranges = VecDeque::new();
        }
    }
}

/// All granted ranges of a session that lanes do not carry.
#[derive(Debug, Default)]
pub(super) struct GrantedRanges {
    /// Those for the session's ring.
    pub(super) pieces: RangeQueue,
    /// Those for datagrams.
    pub(super) data: RangeQueue,
    /// Those for another ring, which this side does not know yet, or which has ended.
    other_rings: Vec<(RingCarrier, QueuedRange)>,
}

impl AtRest for GrantedRanges {
    const AT_REST: &'static Self =
        &Self { pieces: RangeQueue::EMPTY, data: RangeQueue::EMPTY, other_rings: Vec::new() };
}

impl GrantedRanges {
    /// Adds a range for a ring that is not the session's: either this side does not know that ring
    /// yet, or the peer does not know of its end. There is at most one range for each send, and
    /// those of ended sends are dropped.
    pub(super) fn push_other(&mut self, ring: RingCarrier, new: &NewRange<'_>) {
        if self.other_rings.len() > 2 * new.operations.len() + ENDED_USUAL {
            let serves = |id| new.operations.get(id).is_some_and(Operation::serves);
            self.other_rings.retain(|(_, range)| serves(range.operation));
        }
        self.other_rings.push((ring, new.range));
    }

    /// Selects the ranges for another ring, or for none. Ranges for an earlier ring will be granted
    /// to lanes, or have ended. Returns whether there are any for this ring.
    fn select_ring(&mut self, ring: Option<RingCarrier>, operations: &Operations) -> bool {
        self.pieces.ranges.clear();
        let Some(ring) = ring else { return false };
        for (other, range) in std::mem::take(&mut self.other_rings) {
            if let Some(found) = operations.get(range.operation).filter(|_| other == ring) {
                let new = NewRange { range, hint: found.hint, operations };
                ring.insert(&mut self.pieces, &new);
            }
        }
        self.pieces.len() > 0
    }

    /// Frees the memory of empty queues.
    pub(super) fn shrink(&mut self) {
        self.pieces.shrink();
        self.data.shrink();
        if self.other_rings.is_empty() {
            self.other_rings = Vec::new();
        }
    }
}

/// The sender.
impl Session {
    /// Queues a range that the peer grants on `by`, or refuses it: its send may have ended.
    ///
    /// RR-RDV-1, RR-RDV-5, RR-RDV-9.
    pub(super) fn accept_range<C: RangeCarrier>(
        &mut self,
        cx: &mut Cx<'_>,
        grant: &Grant,
        by: C,
    ) -> Result<(), FrameError> {
        let operation = Id::from_u64(grant.send_operation.get());
        let receive_operation = grant.receive_operation.get();
        let found = cx.shared.operations.serving(cx.slot, operation);
        let Some((serving, message, hint)) = found else {
            self.refuse_grant(cx, by.over(), receive_operation);
            return Ok(());
        };
        by.admit(serving, grant, message)?;
        let (offset, length) = (grant.offset.get(), grant.length.get());
        let range = QueuedRange { operation, receive_operation, offset, length };
        let new = NewRange { range, hint, operations: &cx.shared.operations };
        if by.push(&mut self.rendezvous, &new)? {
            cx.add_work(C::WORK);
        }
        Ok(())
    }

    /// Refuses a grant of the peer for a send that has ended.
    ///
    /// RR-RDV-5.
    pub(super) fn refuse_grant(&mut self, cx: &mut Cx<'_>, over: GrantOver, operation: u64) {
        cx.shared.counters.stale_frames += 1;
        self.send_control(cx, ControlFrame::Refused(Refused::new(over, operation)));
    }

    /// Returns the range of the next part. Ranges of sends that have ended, since their receivers
    /// have abandoned them, or that have failed, are refused.
    pub(super) fn next_granted(
        &mut self,
        cx: &mut Cx<'_>,
        by: impl RangeCarrier,
    ) -> Option<QueuedRange> {
        loop {
            let queue = by.queue(self.rendezvous.granted.get_mut()?);
            let range = *queue.next()?;
            if cx.shared.operations.get(range.operation).is_some_and(Operation::serves) {
                return Some(range);
            }
            queue.pop();
            self.refuse_grant(cx, by.over(), range.receive_operation);
        }
    }
}

/// The sender.
impl SessionRendezvous {
    /// Selects the ranges for another ring, or for none.
    pub(super) fn select_granted(&mut self, cx: &mut Cx<'_>, ring: Option<RingCarrier>) {
        if let Some(granted) = self.granted.get_mut()
            && granted.select_ring(ring, &cx.shared.operations)
        {
            cx.add_work(RingCarrier::WORK);
        }
    }

    /// Notes that the first `length` bytes of [`Session::next_granted`] have left.
    pub(super) fn note_sent<C: RangeCarrier>(&mut self, cx: &mut Cx<'_>, by: C, length: usize) {
        let queue = by.queue(&mut self.granted);
        let next = debug_assert_some!(queue.next(), "what is sent was granted");
        let Some(range) = next else { return };
        debug_assert!(length > 0 && length <= range.length as usize, "a part is of its range");
        range.offset += length as u64;
        range.length -= length as u32;
        let (operation, is_sent) = (range.operation, range.length == 0);
        if is_sent {
            queue.pop();
        }
        let serving = cx.shared.operations.serving(cx.slot, operation).filter(|_| is_sent);
        C::note_sent(queue, serving.map(|(serving, ..)| serving));
    }

    /// Stages more data, if ranges are granted: there may be space for it.
    #[inline]
    pub(in crate::proto) fn stage_data_later(&self, cx: &mut Cx<'_>) {
        if self.granted.get().is_some_and(|it| it.data.len() > 0) {
            cx.add_work(Work::Data);
        }
    }
}
