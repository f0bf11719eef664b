//! Ranges that the peer has granted on a ring, or in datagrams, until they are sent.
//!
//! Both take a range in parts, as there is space: pieces in the ring, DATA frames in segments. So
//! one queue has the ranges of both, each in its own order. Lanes have queues of their own
//! ([`BulkLane::outgoing`](super::super::lanes::lane::BulkLane::outgoing)): there the numbers of
//! chunks fix the order.

use std::collections::VecDeque;

use super::super::lanes::lane::GRANTED_MAX;
use super::super::late::AtRest;
use super::SessionRendezvous;
use super::queue::Class;
use crate::proto::context::Cx;
use crate::proto::hint::Hint;
use crate::proto::operation::Operation;
use crate::proto::operations::Operations;
use crate::proto::ready::Work;
use crate::proto::table::Id;
use crate::wire::{FrameError, Grant, GrantOver};

/// One out of this many pieces is of the last message in priority order.
const TURNS: u32 = 16;

/// Maximum number of ranges that another one overtakes, since the scan takes time.
const LOOK_BACK: usize = 256;

/// Number of ranges for another ring up to which ended sends are not searched for.
const OTHER_USUAL: usize = 64;

/// In what parts a range is sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Parts {
    /// Pieces on the ring of this number.
    Pieces(u32),
    /// DATA frames.
    Data,
}

impl Parts {
    /// Returns what the grant of such a range names.
    pub(super) fn over(self) -> GrantOver {
        match self {
            Self::Pieces(ring) => GrantOver::Ring(ring),
            Self::Data => GrantOver::Datagrams,
        }
    }

    /// Returns the work of a session that has such ranges.
    fn work(self) -> Work {
        match self {
            Self::Pieces(_) => Work::Piece,
            Self::Data => Work::Data,
        }
    }
}

/// Whose range it is, as its parts state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RangeOf {
    /// The peer's receive of this number has granted it.
    Receive(u64),
    /// The message of this number is sent in unsolicited pieces ([`super::unsolicited`]).
    Message(u64),
}

impl RangeOf {
    /// Returns the number.
    pub(super) fn number(self) -> u64 {
        match self {
            Self::Receive(number) | Self::Message(number) => number,
        }
    }
}

/// What is left of a range that the peer has granted, or that is sent without a grant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct QueuedRange {
    /// The send of the range.
    pub(super) operation: Id,
    /// Whose it is.
    pub(super) of: RangeOf,
    /// Offset in the message, in bytes.
    pub(super) offset: u64,
    /// Length in bytes.
    pub(super) length: u32,
    /// In what parts it is sent.
    pub(super) parts: Parts,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct RangeQueue {
    /// Ranges for the session's ring.
    pieces: VecDeque<QueuedRange>,
    /// Ranges for datagrams.
    data: VecDeque<QueuedRange>,
    /// Ranges for another ring, which this side does not know yet, or which has ended.
    other_rings: Vec<QueuedRange>,
    /// Number of pieces written.
    written: u32,
}

impl AtRest for RangeQueue {
    const AT_REST: &'static Self = &Self {
        pieces: VecDeque::new(),
        data: VecDeque::new(),
        other_rings: Vec::new(),
        written: 0,
    };
}

/// Returns the position after the last range whose message has a hint that `stays`.
fn place_behind(
    ranges: &VecDeque<QueuedRange>,
    operations: &Operations,
    stays: impl Fn(Hint) -> bool,
) -> usize {
    let stays =
        |range: &QueuedRange| operations.get(range.operation).is_some_and(|it| stays(it.hint));
    let from = ranges.len().saturating_sub(LOOK_BACK);
    ranges.range(from..).rposition(stays).map_or(from, |last| from + last + 1)
}

impl RangeQueue {
    /// Returns whether nothing is to be sent in datagrams.
    pub(super) fn is_free_of_data(&self) -> bool {
        self.data.is_empty()
    }

    /// Returns the number of ranges for the session's ring.
    pub(super) fn piece_count(&self) -> usize {
        self.pieces.len()
    }

    /// Removes what is left of the message of operation `id` for unsolicited pieces.
    pub(super) fn drop_unsolicited(&mut self, id: Id) {
        let is_of_it =
            |it: &QueuedRange| it.operation == id && matches!(it.of, RangeOf::Message(_));
        self.pieces.retain(|range| !is_of_it(range));
    }

    /// Adds a range of a message with `hint`, after those that would wait too long otherwise.
    pub(super) fn push(&mut self, range: QueuedRange, hint: Hint, operations: &Operations) {
        match range.parts {
            Parts::Pieces(_) => {
                self.drop_ended_pieces(operations);
                let stays = |other| Class::of(other) <= Class::of(hint);
                let at = place_behind(&self.pieces, operations, stays);
                self.pieces.insert(at, range);
            }
            Parts::Data if hint == Hint::Priority => {
                let at = place_behind(&self.data, operations, |other| other == Hint::Priority);
                self.data.insert(at, range);
            }
            Parts::Data => self.data.push_back(range),
        }
    }

    /// Adds a range for a ring that is not the session's: either this side does not know that ring
    /// yet, or the peer does not know of its end. There is at most one range for each send, and
    /// those of ended sends are dropped.
    fn push_other(&mut self, range: QueuedRange, operations: &Operations) {
        if self.other_rings.len() > 2 * operations.len() + OTHER_USUAL {
            let serves = |id| operations.get(id).is_some_and(Operation::serves);
            self.other_rings.retain(|range| serves(range.operation));
        }
        self.other_rings.push(range);
    }

    /// Drops the ranges of pieces whose sends have ended, when there are many: a peer that leaves
    /// no space for pieces may grant a range of each later send, and abandon it.
    fn drop_ended_pieces(&mut self, operations: &Operations) {
        if self.pieces.len() > 2 * operations.len() + OTHER_USUAL {
            let serves = |id| operations.get(id).is_some_and(Operation::serves);
            let is_awaited = |of| matches!(of, RangeOf::Message(_));
            self.pieces.retain(|range| serves(range.operation) || is_awaited(range.of));
        }
    }

    /// Frees the memory of empty queues.
    pub(super) fn shrink(&mut self) {
        if self.pieces.is_empty() {
            self.pieces = VecDeque::new();
        }
        if self.data.is_empty() {
            self.data = VecDeque::new();
        }
        if self.other_rings.is_empty() {
            self.other_rings = Vec::new();
        }
    }

    /// Selects the ranges for another ring, or for none. Ranges for an earlier ring will be granted
    /// to lanes, or have ended. Returns whether there are any for this ring.
    fn select_ring(&mut self, ring: Option<u32>, operations: &Operations) -> bool {
        self.pieces.clear();
        let Some(ring) = ring else { return false };
        for range in std::mem::take(&mut self.other_rings) {
            let is_of_ring = range.parts == Parts::Pieces(ring);
            if let Some(found) = operations.get(range.operation).filter(|_| is_of_ring) {
                self.push(range, found.hint, operations);
            }
        }
        !self.pieces.is_empty()
    }

    /// Returns whether the next piece is of the last range: usually it is of the first one, but
    /// none is starved.
    fn is_turn_of_last(&self) -> bool {
        self.written % TURNS == TURNS - 1
    }

    /// Returns the range of the next part.
    fn next(&mut self, parts: Parts) -> Option<&mut QueuedRange> {
        match parts {
            Parts::Pieces(_) if self.is_turn_of_last() => self.pieces.back_mut(),
            Parts::Pieces(_) => self.pieces.front_mut(),
            Parts::Data => self.data.front_mut(),
        }
    }

    /// Removes that range.
    fn pop(&mut self, parts: Parts) -> Option<QueuedRange> {
        match parts {
            Parts::Pieces(_) if self.is_turn_of_last() => self.pieces.pop_back(),
            Parts::Pieces(_) => self.pieces.pop_front(),
            Parts::Data => self.data.pop_front(),
        }
    }
}

/// The sender.
impl SessionRendezvous {
    /// Queues a range that the peer grants, to be sent in `parts`. Returns `false` if its send has
    /// ended.
    ///
    /// RR-RDV-1, RR-RDV-5, RR-RDV-9, RR-BULK-2, RR-SHM-10.
    pub(super) fn accept_grant(
        &mut self,
        cx: &mut Cx<'_>,
        grant: &Grant,
        parts: Parts,
    ) -> Result<bool, FrameError> {
        let id = Id::from_u64(grant.send_operation.get());
        let found = cx.shared.operations.serving(cx.slot, id);
        let Some((serving, message, hint)) = found else { return Ok(false) };
        serving.accept(grant, parts, message)?;
        if serving.take_unsolicited() {
            self.note_dropped(id);
        }
        let range = QueuedRange {
            operation: id,
            of: RangeOf::Receive(grant.receive_operation.get()),
            offset: grant.offset.get(),
            length: grant.length.get(),
            parts,
        };
        match parts {
            Parts::Pieces(ring) if self.ring != Some(ring) => {
                self.granted.push_other(range, &cx.shared.operations);
                return Ok(true);
            }
            Parts::Data if self.granted.data.len() >= GRANTED_MAX => {
                return Err(FrameError::AnswersWait(self.granted.data.len()));
            }
            _ => {}
        }
        self.granted.push(range, hint, &cx.shared.operations);
        cx.add_work(parts.work());
        Ok(true)
    }

    /// Selects the ranges for another ring, or for none.
    pub(super) fn select_granted(&mut self, cx: &mut Cx<'_>, ring: Option<u32>) {
        if let Some(granted) = self.granted.get_mut()
            && granted.select_ring(ring, &cx.shared.operations)
        {
            cx.add_work(Work::Piece);
        }
    }

    /// Returns the range of the next part. An error: its send has ended, since its receiver has
    /// abandoned it, or it has failed; the receive that granted it is returned, and the range is
    /// removed. One of unsolicited pieces is empty then, and its last piece states that.
    pub(super) fn next_granted(
        &mut self,
        cx: &Cx<'_>,
        parts: Parts,
    ) -> Option<Result<QueuedRange, u64>> {
        let granted = self.granted.get_mut()?;
        let range = granted.next(parts)?;
        if cx.shared.operations.get(range.operation).is_some_and(Operation::serves) {
            return Some(Ok(*range));
        }
        match range.of {
            RangeOf::Receive(operation) => {
                granted.pop(parts);
                Some(Err(operation))
            }
            RangeOf::Message(_) => {
                range.length = 0;
                Some(Ok(*range))
            }
        }
    }

    /// Notes that the first `length` bytes of [`Self::next_granted`] have left.
    pub(super) fn note_sent(&mut self, cx: &mut Cx<'_>, parts: Parts, length: usize) {
        let granted = &mut *self.granted;
        let next = debug_assert_some!(granted.next(parts), "what is sent was granted");
        let Some(range) = next else { return };
        debug_assert!(length <= range.length as usize, "a part is of its range");
        range.offset += length as u64;
        range.length -= length as u32;
        let (operation, of, is_sent) = (range.operation, range.of, range.length == 0);
        if is_sent {
            granted.pop(parts);
        }
        if let Parts::Pieces(_) = parts {
            granted.written = granted.written.wrapping_add(1);
            let found = cx.shared.operations.serving(cx.slot, operation);
            let is_granted = matches!(of, RangeOf::Receive(_));
            if let Some((serving, ..)) = found.filter(|_| is_sent && is_granted) {
                serving.note_pieces_sent();
            }
        }
    }

    /// Stages more data, if ranges are granted: there may be space for it.
    #[inline]
    pub(in crate::proto) fn stage_data_later(&self, cx: &mut Cx<'_>) {
        if self.granted.get().is_some_and(|it| !it.is_free_of_data()) {
            cx.add_work(Work::Data);
        }
    }
}
