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

use super::bulk::{Outgoing, place_behind};
use super::core::Core;
use super::effects::Effects;
use super::hint::Hint;
use super::operation::{Operation, OperationState, Pulling, ToRing};
use super::operations::Operations;
use super::pulls::Class;
use super::session::ControlFrame;
use super::table::Id;
use crate::wire::piece::{PieceHeader, RING_LANE};
use crate::wire::{FrameError, Grant, frame};

/// Maximum range of one grant, in bytes: a grant has four for its length.
const RANGE_BYTES_MAX: u64 = 1 << 30;

/// One out of this many pieces is of the last message in priority order.
const TURNS: u32 = 16;

/// Number of ranges for another ring up to which ended sends are not searched for.
const OTHER_USUAL: usize = 64;

/// The ring of a session for pieces, and the ranges granted on rings. Sessions that never had one
/// have no entry.
#[derive(Debug, Default)]
pub(super) struct Granted {
    /// The number of the current ring, as both sides know it.
    ring: Option<u32>,
    /// Ranges for the current ring, in order.
    now: VecDeque<Outgoing>,
    /// Ranges for another ring, which this side does not know yet, or which has ended.
    other: Vec<Outgoing>,
    /// Number of pieces written.
    written: u32,
    /// The session is in the list of those that have pieces to write.
    is_feeding: bool,
}

impl Granted {
    /// Returns the range of the next piece: usually the first one, but none is starved.
    fn next(&mut self) -> Option<&mut Outgoing> {
        let is_turn_of_last = self.written % TURNS == TURNS - 1;
        if is_turn_of_last { self.now.back_mut() } else { self.now.front_mut() }
    }

    /// Removes that range.
    fn pop(&mut self) -> Option<Outgoing> {
        let is_turn_of_last = self.written % TURNS == TURNS - 1;
        if is_turn_of_last { self.now.pop_back() } else { self.now.pop_front() }
    }

    /// Adds a range of a message with `hint`, after those that would wait too long otherwise.
    fn push(&mut self, range: Outgoing, hint: Hint, operations: &Operations) {
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

impl Core {
    /// Returns the ring on which a session takes pieces, as both sides know it.
    pub(super) fn ring_for_pieces(&self, slot: u32) -> Option<u32> {
        self.granted.get(&slot)?.ring
    }

    /// Selects another ring for the pieces of a session, or none.
    ///
    /// RR-SHM-10.
    pub(super) fn use_ring_for_pieces(&mut self, slot: u32, ring: Option<u32>) {
        let before = self.ring_for_pieces(slot);
        if before == ring {
            return;
        }
        if let Some(before) = before {
            self.pull_otherwise(slot, before);
        }
        let granted = self.granted.entry(slot).or_default();
        granted.ring = ring;
        granted.now.clear();
        if let Some(ring) = ring {
            // Ranges for an earlier ring will be granted to lanes, or have ended.
            for range in std::mem::take(&mut granted.other) {
                let found = self.operations.get(range.operation).filter(|_| range.chunk == ring);
                if let Some(hint) = found.map(|found| found.hint) {
                    granted.push(range, hint, &self.operations);
                }
            }
            self.feed(slot);
        }
        self.move_to_ring(slot, ring.is_some());
    }

    // ---- The receiver ----

    /// Messages that lanes carry go on by the ring of their session, or, where that has none any
    /// more before they do, by lanes as before.
    fn move_to_ring(&mut self, slot: u32, has_ring: bool) {
        for index in 0..self.operations.index_end() {
            let Some(id) = self.operations.id_at(index) else { continue };
            let Some(found) = self.operations.get_mut(id).filter(|it| it.session == slot) else {
                continue;
            };
            let hint = found.hint;
            let OperationState::Pulling(pulling) = &mut found.state else { continue };
            let left = pulling.wanted.saturating_sub(pulling.granted);
            if left == 0 || pulling.ring.is_some() || pulling.failed.is_some() {
                continue;
            }
            match (pulling.to_ring, has_ring) {
                (ToRing::IfMade, true) if !self.cma.iter().any(|&(it, _)| it == id) => {
                    pulling.to_ring = ToRing::Waits;
                    if let Some(session) = self.sessions.at_mut(slot as usize) {
                        session.pulls.retain(|other| other != id);
                    }
                    self.go_on_by_ring(id);
                }
                (ToRing::Waits, false) => {
                    pulling.to_ring = ToRing::IfMade;
                    self.begin_granting(id, slot, hint, left);
                }
                _ => {}
            }
        }
    }

    /// More of a message has come by lanes. If it is to go on by a ring, it does when no range is
    /// under way: by then nothing but pieces writes to its memory.
    ///
    /// RR-SHM-10.
    #[inline]
    pub(super) fn go_on_by_ring(&mut self, id: Id) {
        let Some(found) = self.operations.get(id) else { return };
        if let OperationState::Pulling(Pulling { to_ring: ToRing::Waits, arrived, granted, .. }) =
            &found.state
            && arrived == granted
        {
            self.pull_by_ring(id, found.session);
        }
    }

    /// What is `left` of a message is granted: at once where there is a ring for it.
    pub(super) fn pull_in_ranges(&mut self, id: Id, slot: u32, hint: Hint, left: u64) {
        if !self.pull_by_ring(id, slot) {
            self.begin_granting(id, slot, hint, left);
        }
    }

    /// Pulls a matched message of which only the first bytes were sent. Returns `false` if its
    /// session has no ring.
    pub(super) fn pull_by_ring(&mut self, id: Id, slot: u32) -> bool {
        let Some(ring) = self.ring_for_pieces(slot) else { return false };
        let Some(found) = self.operations.get_mut(id) else { return false };
        let OperationState::Pulling(pulling) = &mut found.state else { return false };
        debug_assert_eq!(pulling.granted, pulling.arrived);
        pulling.ring = Some(ring);
        // Its sender was asked by this ring: it is asked by lanes alone when that ends.
        pulling.to_ring = ToRing::No;
        self.grant_by_ring(id);
        true
    }

    /// Grants the rest of a message, or as much of that as one grant can name.
    fn grant_by_ring(&mut self, id: Id) {
        let Some(found) = self.operations.get_mut(id) else { return };
        let slot = found.session;
        let OperationState::Pulling(pulling) = &mut found.state else { return };
        let Some(ring) = pulling.ring else { return };
        let most = if rare!("a grant of one byte by a ring", 10) { 1 } else { RANGE_BYTES_MAX };
        let (offset, length) = (pulling.granted, (pulling.wanted - pulling.granted).min(most));
        pulling.granted += length;
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
        self.push_control(slot, ControlFrame::Grant(grant));
    }

    /// Returns the destination of a piece of `length` bytes received on a session's ring. `None`:
    /// it has none any more.
    ///
    /// RR-SHM-10.
    #[inline]
    pub(crate) fn handle_piece(
        &mut self,
        slot: u32,
        header: &PieceHeader,
        length: usize,
    ) -> Result<Option<PieceReceive>, FrameError> {
        let operation = Id::from_u64(header.receive_operation.get());
        let found = self.operations.get(operation).filter(|found| found.session == slot);
        let pulling = match found.map(|found| &found.state) {
            Some(OperationState::Pulling(pulling))
                if pulling.ring == Some(header.ring.get()) || planted!(TakeLatePiece) =>
            {
                pulling
            }
            // The receive has ended, or uses lanes since its ring ended.
            _ => {
                self.counters.stale_frames += 1;
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

    /// Notes that `length` bytes were copied to their destination.
    #[inline]
    pub(crate) fn note_piece(
        &mut self,
        piece: PieceReceive,
        length: usize,
        effects: &mut impl Effects,
    ) {
        let Some(found) = self.operations.get_mut(piece.operation) else { return };
        let OperationState::Pulling(pulling) = &mut found.state else { return };
        pulling.arrived += length as u64;
        if pulling.arrived == pulling.wanted {
            self.finish_pull(piece.operation, effects);
        } else if pulling.arrived == pulling.granted {
            self.grant_by_ring(piece.operation);
        }
    }

    /// Grants the missing bytes of a ring that has ended to lanes.
    fn pull_otherwise(&mut self, slot: u32, ring: u32) {
        if planted!(ForgetPieces) {
            return;
        }
        for index in 0..self.operations.index_end() {
            let Some(id) = self.operations.id_at(index) else { continue };
            let Some(found) = self.operations.get_mut(id) else { continue };
            if found.session != slot {
                continue;
            }
            let hint = found.hint;
            let OperationState::Pulling(pulling) = &mut found.state else { continue };
            if pulling.ring != Some(ring) {
                continue;
            }
            pulling.ring = None;
            pulling.granted = pulling.arrived;
            pulling.ranges.extend_to(pulling.arrived);
            let left = pulling.wanted - pulling.arrived;
            self.begin_granting(id, slot, hint, left);
        }
    }

    // ---- The sender ----

    /// Handles a grant on a ring.
    ///
    /// RR-RDV-5, RR-SHM-10.
    pub(super) fn handle_ring_grant(&mut self, slot: u32, grant: &Grant) -> Result<(), FrameError> {
        let (offset, length) = (grant.offset.get(), grant.length.get());
        let id = Id::from_u64(grant.send_operation.get());
        let receive_operation = grant.receive_operation.get();
        let Some((serving, message, hint)) = self.served_by(slot, id) else {
            self.refuse_grant(slot, RING_LANE, receive_operation);
            return Ok(());
        };
        let fits = offset.checked_add(u64::from(length)).is_some_and(|end| end <= message);
        // The next range is granted when this one has arrived.
        if !fits || length == 0 || std::mem::replace(&mut serving.is_asked_by_ring, true) {
            return Err(FrameError::BadGrant { offset, length, message });
        }
        let ring = grant.chunk.get();
        let range = Outgoing { operation: id, receive_operation, offset, length, chunk: ring };
        self.queue_range(slot, range, hint)
    }

    fn queue_range(&mut self, slot: u32, range: Outgoing, hint: Hint) -> Result<(), FrameError> {
        let session = self.sessions.at(slot as usize);
        if session.is_none_or(|session| !session.has_datagrams()) {
            let (offset, length) = (range.offset, range.length);
            return Err(FrameError::BadGrant { offset, length, message: 0 });
        }
        let granted = self.granted.entry(slot).or_default();
        if granted.ring == Some(range.chunk) {
            granted.push(range, hint, &self.operations);
            self.feed(slot);
            return Ok(());
        }
        // Either this side does not know that ring yet, or the peer does not know of its end. There
        // is at most one range for each send, and those of ended sends are dropped.
        if granted.other.len() > 2 * self.operations.len() + OTHER_USUAL {
            let operations = &self.operations;
            let serves =
                |it: &Outgoing| operations.get(it.operation).is_some_and(Operation::serves);
            granted.other.retain(serves);
        }
        granted.other.push(range);
        Ok(())
    }

    /// Queues a session whose granted ranges can be written to its ring.
    fn feed(&mut self, slot: u32) {
        if let Some(granted) = self.granted.get_mut(&slot)
            && !granted.now.is_empty()
            && !std::mem::replace(&mut granted.is_feeding, true)
        {
            self.feeding.push(slot);
        }
    }

    /// Returns the sessions that may have pieces to write.
    #[inline]
    pub(crate) fn feeding(&self) -> &[u32] {
        &self.feeding
    }

    /// Removes the session at `index` of [`Self::feeding`]; the last one takes its position.
    pub(crate) fn end_feeding(&mut self, index: usize) {
        let slot = self.feeding.swap_remove(index);
        if let Some(granted) = self.granted.get_mut(&slot) {
            granted.is_feeding = false;
        }
    }

    /// Removes the state of a closed session.
    pub(super) fn end_pieces(&mut self, slot: u32) {
        self.granted.remove(&slot);
        self.feeding.retain(|&fed| fed != slot);
    }

    /// Returns the next piece for the ring of a session. [`Self::handle_piece_written`] removes it.
    #[inline]
    pub(crate) fn next_piece(&mut self, slot: u32) -> Option<PieceSend> {
        let most = if rare!("a piece of one byte", 10) { 1 } else { self.config.piece_bytes };
        loop {
            let granted = self.granted.get_mut(&slot)?;
            let &mut Outgoing { operation, receive_operation, offset, length, chunk } =
                granted.next()?;
            if !self.operations.get(operation).is_some_and(Operation::serves) {
                // The send has ended: its receiver abandoned it, or it failed.
                granted.pop();
                self.refuse_grant(slot, RING_LANE, receive_operation);
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
    #[inline]
    pub(crate) fn handle_piece_written(&mut self, slot: u32, length: usize) {
        let Some(granted) = self.granted.get_mut(&slot) else { return };
        let Some(range) = granted.next() else { return };
        range.offset += length as u64;
        range.length -= length as u32;
        let operation = range.operation;
        let is_written = range.length == 0;
        if is_written {
            granted.pop();
        }
        granted.written = granted.written.wrapping_add(1);
        let found = self.operations.get_mut(operation).filter(|_| is_written);
        if let Some(OperationState::Serving(serving)) = found.map(|found| &mut found.state) {
            serving.is_asked_by_ring = false;
        }
    }
}
