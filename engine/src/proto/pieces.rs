//! Rendezvous by a ring in shared memory: what the receiver cannot read from the memory of its
//! sender's process is copied through the ring that both share.
//!
//! ```text
//!  sender                                    receiver
//!    │ RTS(envelope, length, first bytes)       │
//!    ├─────────────────────────────────────────>│ match
//!    │             GRANT(RING_LANE, ring, range)│ all that is left
//!    │<─────────────────────────────────────────┤
//!    │ piece, piece, ... as there is room       │
//!    ├──────────────── ring ───────────────────>│ each copied to its place
//!    │                                    DONE  │
//!    │<─────────────────────────────────────────┤
//! ```
//!
//! Pieces are copied twice, from the sender's memory into the ring and from there to their place,
//! and by two cores at once. They are no frames: nothing acknowledges them, and nothing is sent
//! again. When the ring ends the receiver grants what is missing by lanes; for that reason a grant
//! names the ring that it is for, and so does each piece. Messages pass pieces: these leave room in
//! the ring, and wait while a segment finds none.
//!
//! Budget per piece of 8 KiB: a copy on each side, no system call, no allocation, no lock.

use std::collections::VecDeque;

use super::bulk::{Outgoing, place_behind};
use super::core::Core;
use super::effects::Effects;
use super::hint::Hint;
use super::operation::{Operation, OperationState, Pulling, ToRing};
use super::pulls::Class;
use super::session::ControlFrame;
use super::table::{Id, Table};
use crate::wire::piece::{PieceHeader, RING_LANE};
use crate::wire::{FrameError, Grant, frame};

/// What is granted at once, in bytes: a grant has four for its length.
const RANGE_BYTES_MAX: u64 = 1 << 30;

/// Of so many pieces one is of the message that is wanted last.
const TURNS: u32 = 16;

/// Ranges for another ring of which nobody asks whether their sends are over.
const OTHER_USUAL: usize = 64;

/// The ring of a session by which pieces go, and what its peer granted by rings. Sessions that
/// never had one have none of this.
#[derive(Debug, Default)]
pub(super) struct Granted {
    /// The ring that there is, as both sides call it.
    ring: Option<u32>,
    /// Ranges for the ring that there is, in order.
    now: VecDeque<Outgoing>,
    /// Those for another one, which this side has not heard of, or that is gone.
    other: Vec<Outgoing>,
    /// Pieces that were written.
    written: u32,
    /// The session is in the list of those that have pieces to write.
    is_feeding: bool,
}

impl Granted {
    /// The range of which a piece is written next: the first one, but that none waits for ever.
    fn next(&mut self) -> Option<&mut Outgoing> {
        let is_turn_of_last = self.written % TURNS == TURNS - 1;
        if is_turn_of_last { self.now.back_mut() } else { self.now.front_mut() }
    }

    /// That one is over.
    fn pop(&mut self) -> Option<Outgoing> {
        let is_turn_of_last = self.written % TURNS == TURNS - 1;
        if is_turn_of_last { self.now.pop_back() } else { self.now.pop_front() }
    }

    /// Takes in a range of a message with `hint`, behind all that can wait no longer.
    fn push(&mut self, range: Outgoing, hint: Hint, operations: &Table<Operation>) {
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

/// Where the bytes of a piece belong.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PieceReceive {
    pub(crate) operation: Id,
    pub(crate) offset: u64,
}

fn bad(header: &PieceHeader, length: usize, why: &'static str) -> FrameError {
    FrameError::BadData { offset: header.offset.get(), length: length as u32, why }
}

impl Core {
    /// The ring by which a session takes pieces, as both sides call it.
    pub(super) fn ring_for_pieces(&self, slot: u32) -> Option<u32> {
        self.granted.get(&slot)?.ring
    }

    /// The pieces of a session go by another ring than before, or by none any more.
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
            // What is for a ring of before will be granted by lanes, or is over.
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
        for index in 0..self.operations.slots() {
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

    /// A receive has matched a message of which nothing but the first bytes was granted. `false`:
    /// its session has no ring.
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

    /// Grants what is left of a message, or as much of that as a grant can say.
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

    /// Where a piece of `length` bytes belongs that came by the ring of a session. `None`: nowhere
    /// any more.
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
            // The receive has ended, or goes by lanes since its ring has.
            _ => {
                self.counters.stale_frames += 1;
                return Ok(None);
            }
        };
        let offset = header.offset.get();
        if length == 0 || offset != pulling.arrived {
            return Err(bad(header, length, "pieces of a message come in order"));
        }
        if length as u64 > pulling.granted - pulling.arrived {
            return Err(bad(header, length, "it was not granted"));
        }
        Ok(Some(PieceReceive { operation, offset }))
    }

    /// `length` bytes are in their place.
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

    /// A ring has ended: what did not come by it is granted by lanes.
    fn pull_otherwise(&mut self, slot: u32, ring: u32) {
        if planted!(ForgetPieces) {
            return;
        }
        for index in 0..self.operations.slots() {
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

    /// The peer asks for a range by a ring.
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
        // The next range is granted when this one has come.
        if !fits || length == 0 || std::mem::replace(&mut serving.is_asked_by_ring, true) {
            return Err(FrameError::BadGrant { offset, length, message });
        }
        let ring = grant.chunk.get();
        let range = Outgoing { operation: id, receive_operation, offset, length, chunk: ring };
        self.queue_range(slot, range, hint)
    }

    fn queue_range(&mut self, slot: u32, range: Outgoing, hint: Hint) -> Result<(), FrameError> {
        let session = self.sessions.at(slot as usize);
        if session.is_none_or(|session| session.datagram.is_none()) {
            let (offset, length) = (range.offset, range.length);
            return Err(FrameError::BadGrant { offset, length, message: 0 });
        }
        let granted = self.granted.entry(slot).or_default();
        if granted.ring == Some(range.chunk) {
            granted.push(range, hint, &self.operations);
            self.feed(slot);
            return Ok(());
        }
        // This side is behind: it has not heard of that ring, or the peer not of its end. There is
        // one for each send at the most, and those of sends that are over go.
        if granted.other.len() > 2 * self.operations.len() + OTHER_USUAL {
            let operations = &self.operations;
            let serves =
                |it: &Outgoing| operations.get(it.operation).is_some_and(Operation::serves);
            granted.other.retain(serves);
        }
        granted.other.push(range);
        Ok(())
    }

    /// What a session was asked for by its ring is written, as there is room.
    fn feed(&mut self, slot: u32) {
        if let Some(granted) = self.granted.get_mut(&slot)
            && !granted.now.is_empty()
            && !std::mem::replace(&mut granted.is_feeding, true)
        {
            self.feeding.push(slot);
        }
    }

    /// Sessions that may have pieces to write.
    #[inline]
    pub(crate) fn feeding(&self) -> &[u32] {
        &self.feeding
    }

    /// The session at `index` of [`Self::feeding`] has no more of them; the last one takes its
    /// place.
    pub(crate) fn end_feeding(&mut self, index: usize) {
        let slot = self.feeding.swap_remove(index);
        if let Some(granted) = self.granted.get_mut(&slot) {
            granted.is_feeding = false;
        }
    }

    /// A session ends.
    pub(super) fn end_pieces(&mut self, slot: u32) {
        self.granted.remove(&slot);
        self.feeding.retain(|&fed| fed != slot);
    }

    /// The next piece for the ring of a session. [`Self::handle_piece_written`] takes it off.
    #[inline]
    pub(crate) fn next_piece(&mut self, slot: u32) -> Option<PieceSend> {
        let most = if rare!("a piece of one byte", 10) { 1 } else { self.config.piece_bytes };
        loop {
            let granted = self.granted.get_mut(&slot)?;
            let &mut Outgoing { operation, receive_operation, offset, length, chunk } =
                granted.next()?;
            if !self.operations.get(operation).is_some_and(Operation::serves) {
                // The send has ended: its receiver gave it up, or it failed.
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

    /// The piece that [`Self::next_piece`] gave, of so many bytes, is in the ring.
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
