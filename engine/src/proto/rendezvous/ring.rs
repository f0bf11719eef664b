//! Rendezvous by a ring in shared memory: a message that the receiver cannot read from the sender's
//! memory is copied through the ring that both share.
//!
//! ```text
//!  sender                                    receiver
//!    │ RTS(envelope, length, first bytes)       │
//!    ├─────────────────────────────────────────>│ match
//!    │             GRANT(RING_LANE, ring, range)│ all remaining bytes
//!    │<─────────────────────────────────────────┤
//!    │ piece, piece, ... as space permits       │
//!    ├──────────────── ring ───────────────────>│ each copied to its offset
//!    │                                    DONE  │
//!    │<─────────────────────────────────────────┤
//! ```
//!
//! Pieces are copied twice, from the sender's memory into the ring and from there to their
//! destination, by two cores in parallel. They are no frames: they are neither acknowledged nor
//! retransmitted. When the ring ends the receiver grants the missing bytes to lanes; for that
//! reason a grant names its ring, and so does each piece. Messages overtake pieces: these leave
//! space in the ring, and wait while a segment finds none.
//!
//! Costs per piece of 8 KiB: a copy on each side, no system call, no allocation, no lock.

use std::collections::VecDeque;

use super::super::context::Cx;
use super::super::core::Core;
use super::super::effects::Effects;
use super::super::hint::Hint;
use super::super::lanes::lane::{ServedRange, place_behind};
use super::super::late::AtRest;
use super::super::operation::{Operation, ToRing};
use super::super::operations::Operations;
use super::super::ready::Work;
use super::super::session::{ControlFrame, Session};
use super::super::table::Id;
use super::queue::Class;
use crate::wire::piece::{PieceHeader, RING_LANE};
use crate::wire::{FrameError, Grant, frame};

/// Maximum range of one grant, in bytes: a grant has four for its length.
const RANGE_BYTES_MAX: u64 = 1 << 30;

/// One out of this many pieces is of the last message in priority order.
const TURNS: u32 = 16;

/// Number of ranges for another ring up to which ended sends are not searched for.
const OTHER_USUAL: usize = 64;

/// The ring of a session for pieces, and the ranges granted on rings.
#[derive(Debug)]
pub(super) struct OnRing {
    /// The number of the current ring, as both sides know it.
    ring: Option<u32>,
    /// Ranges for the current ring, in order.
    now: VecDeque<ServedRange>,
    /// Ranges for another ring, which this side does not know yet, or which has ended.
    other: Vec<ServedRange>,
    /// Number of pieces written.
    written: u32,
}

impl Default for OnRing {
    fn default() -> Self {
        Self::NONE
    }
}

impl AtRest for OnRing {
    const AT_REST: &'static Self = &Self::NONE;
}

impl OnRing {
    /// There is no ring, and no range.
    const NONE: Self = Self { ring: None, now: VecDeque::new(), other: Vec::new(), written: 0 };

    /// Returns the range of the next piece: usually the first one, but none is starved.
    fn next(&mut self) -> Option<&mut ServedRange> {
        let is_turn_of_last = self.written % TURNS == TURNS - 1;
        if is_turn_of_last { self.now.back_mut() } else { self.now.front_mut() }
    }

    /// Removes that range.
    fn pop(&mut self) -> Option<ServedRange> {
        let is_turn_of_last = self.written % TURNS == TURNS - 1;
        if is_turn_of_last { self.now.pop_back() } else { self.now.pop_front() }
    }

    /// Adds a range of a message with `hint`, after those that would wait too long otherwise.
    fn push(&mut self, range: ServedRange, hint: Hint, operations: &Operations) {
        let stays = |other| Class::of(other) <= Class::of(hint);
        let at = place_behind(&self.now, operations, stays);
        self.now.insert(at, range);
    }
}

/// A piece for the loop to write.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PieceSend {
    pub(crate) operation: Id,
    pub(crate) offset: u64,
    pub(crate) length: usize,
    pub(crate) header: PieceHeader,
}

/// Destination of the bytes of a piece.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PieceReceive {
    pub(crate) operation: Id,
    pub(crate) offset: u64,
}

fn bad(header: &PieceHeader, length: usize, why: &'static str) -> FrameError {
    FrameError::BadData { offset: header.offset.get(), length: length as u32, why }
}

impl Session {
    /// Returns the ring on which it takes pieces, as both sides know it.
    pub(in crate::proto) fn ring_for_pieces(&self) -> Option<u32> {
        self.rendezvous.ring.ring
    }

    /// Selects another ring for its pieces, or none.
    ///
    /// RR-SHM-10.
    pub(in crate::proto) fn use_ring_for_pieces(&mut self, cx: &mut Cx<'_>, ring: Option<u32>) {
        let before = self.ring_for_pieces();
        if before == ring {
            return;
        }
        if let Some(before) = before {
            self.pull_otherwise(cx, before);
        }
        let state = &mut *self.rendezvous.ring;
        state.ring = ring;
        state.now.clear();
        if let Some(ring) = ring {
            // Ranges for an earlier ring will be granted to lanes, or have ended.
            for range in std::mem::take(&mut state.other) {
                let found =
                    cx.shared.operations.get(range.operation).filter(|_| range.chunk == ring);
                if let Some(hint) = found.map(|found| found.hint) {
                    state.push(range, hint, &cx.shared.operations);
                }
            }
            if !state.now.is_empty() {
                cx.add_work(Work::Piece);
            }
        }
        self.move_to_ring(cx, ring.is_some());
    }
}

/// The receiver.
impl Session {
    /// Messages that lanes carry go on by the ring, or, where there is none any more before they
    /// do, by lanes as before.
    fn move_to_ring(&mut self, cx: &mut Cx<'_>, has_ring: bool) {
        for index in 0..cx.shared.operations.index_end() {
            let Some(id) = cx.shared.operations.id_at(index) else { continue };
            let Some((pulling, _)) = cx.shared.operations.pulling(cx.slot, id) else { continue };
            let left = pulling.wanted.saturating_sub(pulling.granted);
            if left == 0 || pulling.ring.is_some() || pulling.failed.is_some() {
                continue;
            }
            match (pulling.to_ring, has_ring) {
                (ToRing::IfMade, true) if !cx.shared.rendezvous.is_read_from_memory(id) => {
                    pulling.to_ring = ToRing::Waits;
                    self.rendezvous.queue.retain(|other| other != id);
                    if pulling.awaits_ring() {
                        self.pull_by_ring(cx, id);
                    }
                }
                (ToRing::Waits, false) => {
                    pulling.to_ring = ToRing::IfMade;
                    self.begin_granting(cx, id);
                }
                _ => {}
            }
        }
    }

    /// Pulls a message of which no range is under way, if there is a ring. Returns `false` if there
    /// is none.
    pub(super) fn pull_by_ring(&mut self, cx: &mut Cx<'_>, id: Id) -> bool {
        let Some(ring) = self.ring_for_pieces() else { return false };
        let pulled = cx.shared.operations.pulling(cx.slot, id);
        let Some((pulling, _)) = debug_assert_some!(pulled, "it pulls") else { return false };
        debug_assert_eq!(pulling.granted, pulling.arrived, "no range is under way");
        pulling.ring = Some(ring);
        // Its sender was asked by this ring: it is asked by lanes alone when that ends.
        pulling.to_ring = ToRing::No;
        self.grant_by_ring(cx, id);
        true
    }

    /// Grants the rest of a message, or as much of that as one grant can name.
    fn grant_by_ring(&mut self, cx: &mut Cx<'_>, id: Id) {
        let pulled = cx.shared.operations.pulling(cx.slot, id);
        let pulled = pulled.and_then(|(pulling, _)| Some((pulling.ring?, pulling)));
        let Some((ring, pulling)) = debug_assert_some!(pulled, "it pulls by a ring") else {
            return;
        };
        let most = if rare!("a grant of one byte by a ring", 10) { 1 } else { RANGE_BYTES_MAX };
        let length = (pulling.wanted - pulling.granted).min(most);
        let offset = pulling.grant(length);
        let grant = Grant {
            kind: frame::KIND_GRANT,
            eager_class: 0,
            reserved: 0.into(),
            lane: RING_LANE.into(),
            send_operation: pulling.send_operation.into(),
            receive_operation: id.to_u64().into(),
            offset: offset.into(),
            length: (length as u32).into(),
            chunk: ring.into(),
        };
        self.send_control(cx, ControlFrame::Grant(grant));
    }

    /// Returns the destination of a piece of `length` bytes received on the ring. `None`: it has
    /// none any more.
    ///
    /// RR-SHM-10.
    pub(crate) fn handle_piece(
        &self,
        cx: Cx<'_>,
        header: &PieceHeader,
        length: usize,
    ) -> Result<Option<PieceReceive>, FrameError> {
        let operation = Id::from_u64(header.receive_operation.get());
        let pulling = match cx.shared.operations.pulling(cx.slot, operation) {
            Some((pulling, _))
                if pulling.ring == Some(header.ring.get()) || planted!(TakeLatePiece) =>
            {
                pulling
            }
            // The receive has ended, or uses lanes since its ring ended.
            _ => {
                cx.shared.counters.stale_frames += 1;
                return Ok(None);
            }
        };
        let offset = header.offset.get();
        if length == 0 || offset != pulling.arrived {
            return Err(bad(header, length, "piece out of order"));
        }
        if length as u64 > pulling.granted - pulling.arrived {
            return Err(bad(header, length, "range was not granted"));
        }
        Ok(Some(PieceReceive { operation, offset }))
    }

    /// Grants the missing bytes of a ring that has ended to lanes.
    fn pull_otherwise(&mut self, cx: &mut Cx<'_>, ring: u32) {
        if planted!(ForgetPieces) {
            return;
        }
        for index in 0..cx.shared.operations.index_end() {
            let Some(id) = cx.shared.operations.id_at(index) else { continue };
            let Some((pulling, _)) = cx.shared.operations.pulling(cx.slot, id) else { continue };
            if pulling.ring != Some(ring) {
                continue;
            }
            pulling.ring = None;
            pulling.granted = pulling.arrived;
            pulling.ranges.extend_to(pulling.arrived);
            self.begin_granting(cx, id);
        }
    }
}

/// The sender.
impl Session {
    /// Handles a grant on a ring.
    ///
    /// RR-RDV-5, RR-SHM-10.
    pub(super) fn handle_ring_grant(
        &mut self,
        cx: &mut Cx<'_>,
        grant: &Grant,
    ) -> Result<(), FrameError> {
        let (offset, length) = (grant.offset.get(), grant.length.get());
        let id = Id::from_u64(grant.send_operation.get());
        let receive_operation = grant.receive_operation.get();
        let Some((serving, message, hint)) = cx.shared.operations.serving(cx.slot, id) else {
            self.refuse_grant(cx, RING_LANE, receive_operation);
            return Ok(());
        };
        let fits = offset.checked_add(u64::from(length)).is_some_and(|end| end <= message);
        // The next range is granted when this one has arrived.
        if !fits || length == 0 || std::mem::replace(&mut serving.is_asked_by_ring, true) {
            return Err(FrameError::BadGrant { offset, length, message });
        }
        if !self.has_datagrams() {
            return Err(FrameError::BadGrant { offset, length, message: 0 });
        }
        let ring = grant.chunk.get();
        let range = ServedRange { operation: id, receive_operation, offset, length, chunk: ring };
        let state = &mut *self.rendezvous.ring;
        if state.ring == Some(ring) {
            state.push(range, hint, &cx.shared.operations);
            cx.add_work(Work::Piece);
            return Ok(());
        }
        // Either this side does not know that ring yet, or the peer does not know of its end. There
        // is at most one range for each send, and those of ended sends are dropped.
        if state.other.len() > 2 * cx.shared.operations.len() + OTHER_USUAL {
            let serves = |id| cx.shared.operations.get(id).is_some_and(Operation::serves);
            state.other.retain(|range| serves(range.operation));
        }
        state.other.push(range);
        Ok(())
    }

    /// Returns the next piece for the ring. [`Self::handle_piece_written`] removes it.
    pub(crate) fn next_piece(&mut self, mut cx: Cx<'_>) -> Option<PieceSend> {
        let most = if rare!("a piece of one byte", 10) { 1 } else { cx.shared.config.piece_bytes };
        loop {
            let state = self.rendezvous.ring.get_mut()?;
            let &mut ServedRange { operation, receive_operation, offset, length, chunk } =
                state.next()?;
            if !cx.shared.operations.get(operation).is_some_and(Operation::serves) {
                // The send has ended: its receiver abandoned it, or it failed.
                state.pop();
                self.refuse_grant(&mut cx, RING_LANE, receive_operation);
                continue;
            }
            let header = PieceHeader {
                receive_operation: receive_operation.into(),
                offset: offset.into(),
                ring: chunk.into(),
                reserved: 0.into(),
            };
            let length = most.min(length as usize);
            return Some(PieceSend { operation, offset, length, header });
        }
    }

    /// Notes that the piece of [`Self::next_piece`], with this many bytes, is in the ring.
    pub(crate) fn handle_piece_written(&mut self, cx: Cx<'_>, length: usize) {
        let state = &mut *self.rendezvous.ring;
        let Some(range) = debug_assert_some!(state.next(), "what is written was granted") else {
            return;
        };
        debug_assert!(length > 0 && length <= range.length as usize, "a piece is of its range");
        range.offset += length as u64;
        range.length -= length as u32;
        let operation = range.operation;
        let is_written = range.length == 0;
        if is_written {
            state.pop();
        }
        state.written = state.written.wrapping_add(1);
        if is_written && let Some((serving, ..)) = cx.shared.operations.serving(cx.slot, operation)
        {
            serving.is_asked_by_ring = false;
        }
    }
}

impl Core {
    /// Notes that `length` bytes were copied to their destination.
    pub(crate) fn note_piece(
        &mut self,
        piece: PieceReceive,
        length: usize,
        effects: &mut impl Effects,
    ) {
        let pulled = self.shared.operations.pulled(piece.operation);
        let pulled = debug_assert_some!(pulled, "a piece is of a message that is pulled");
        let Some((slot, pulling)) = pulled else { return };
        debug_assert_eq!(piece.offset, pulling.arrived, "pieces arrive in order");
        pulling.note_arrived(length as u64);
        if pulling.arrived == pulling.wanted {
            self.finish_pull(piece.operation, effects);
        } else if pulling.arrived == pulling.granted {
            self.with(slot, |it, mut cx| it.grant_by_ring(&mut cx, piece.operation));
        }
    }
}
