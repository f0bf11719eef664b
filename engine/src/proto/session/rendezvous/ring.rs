//! Rendezvous by a ring in shared memory: a message that the receiver cannot read from the sender's
//! memory is copied through the ring that both share.
//!
//! ```text
//!  sender                                    receiver
//!    │ RTS(envelope, length, first bytes)       │
//!    ├─────────────────────────────────────────>│ match
//!    │                        GRANT(ring, range)│ all remaining bytes
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

use super::super::Session;
use super::SessionRendezvous;
use super::granted::{Parts, QueuedRange, RangeOf};
use super::pulling::PullState;
use crate::proto::context::Cx;
use crate::proto::core::Core;
use crate::proto::effects::Effects;
use crate::proto::table::Id;
use crate::wire::piece::{FLAG_UNSOLICITED, PieceHeader};
use crate::wire::{FrameError, Grant};

/// A piece for the loop to write.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PieceSend {
    pub(crate) operation: Id,
    pub(crate) offset: u64,
    /// 0: its send has ended, and the receiver is to know.
    pub(crate) length: usize,
    pub(crate) header: PieceHeader,
}

/// Destination of the bytes of a piece.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PieceReceive {
    pub(crate) operation: Id,
    pub(crate) offset: u64,
}

/// The receiver.
impl SessionRendezvous {
    /// Returns the ring on which the session takes pieces, as both sides know it.
    #[cfg(test)]
    pub(in crate::proto) fn ring(&self) -> Option<u32> {
        self.ring
    }

    /// Selects another ring for pieces, or none.
    ///
    /// RR-SHM-10.
    fn set_ring(&mut self, cx: &mut Cx<'_>, ring: Option<u32>) {
        if let Some(before) = self.ring {
            self.leave_ring(cx, before);
        }
        if let Some(unsolicited) = self.unsolicited.get_mut() {
            unsolicited.begin_ring();
        }
        self.ring = ring;
        self.select_granted(cx, ring);
    }

    /// Grants the missing bytes of a ring that has ended to lanes.
    fn leave_ring(&mut self, cx: &mut Cx<'_>, ring: u32) {
        if planted!(ForgetPieces) {
            return;
        }
        for index in 0..cx.shared.operations.index_end() {
            let operations = &mut cx.shared.operations;
            if let Some(id) = operations.id_at(index)
                && let Some((pulling, _)) = operations.pulling(cx.slot, id)
                && pulling.state == PullState::OnRing(ring)
            {
                pulling.leave_ring();
                self.begin_granting(cx, id);
            }
        }
    }

    /// Lets the message of the operation at `index`, if lanes carry it, go on by the ring, or,
    /// where there is none any more before it does, by lanes as before.
    fn follow_ring(&mut self, cx: &mut Cx<'_>, index: usize) -> Option<Grant> {
        let id = cx.shared.operations.id_at(index)?;
        let (pulling, _) = cx.shared.operations.pulling(cx.slot, id)?;
        if pulling.granted >= pulling.wanted || pulling.has_failed() {
            return None;
        }
        match (pulling.state, self.ring) {
            (PullState::Granting, Some(_)) => {
                pulling.state = PullState::AwaitingRing;
                let is_ready = pulling.is_ready_for_ring();
                self.queue.retain(|other| other != id);
                is_ready.then(|| self.pull_by_ring(cx, id)).flatten()
            }
            (PullState::AwaitingRing, None) => {
                pulling.state = PullState::Granting;
                self.begin_granting(cx, id);
                None
            }
            _ => None,
        }
    }

    /// Pulls a message of which no range is under way by the ring, if there is one.
    pub(super) fn pull_by_ring(&mut self, cx: &mut Cx<'_>, id: Id) -> Option<Grant> {
        let ring = self.ring?;
        let pulled = cx.shared.operations.pulling(cx.slot, id);
        let (pulling, _) = debug_assert_some!(pulled, "it pulls")?;
        pulling.begin_on_ring(id, ring)
    }
}

impl SessionRendezvous {
    /// Returns the destination of a piece of `length` bytes received on a ring of the session.
    /// `None`: it has none, or none any more.
    ///
    /// RR-SHM-10, RR-SHM-14.
    pub(crate) fn handle_piece(
        &mut self,
        cx: &mut Cx<'_>,
        header: &PieceHeader,
        length: usize,
    ) -> Result<Option<PieceReceive>, FrameError> {
        let (offset, ring) = (header.offset.get(), header.ring.get());
        let bad = |why| FrameError::BadData { offset, length: length as u32, why };
        let number = header.operation.get();
        let (is_granted, operation) = match header.flags.get() {
            0 => (true, Some(Id::from_u64(number))),
            FLAG_UNSOLICITED => {
                self.unsolicited.note_piece(number);
                (false, self.unsolicited.receive_of(number))
            }
            _ => return Err(bad("unknown flags of a piece")),
        };
        let state = PullState::OnRing(ring);
        let found = operation.and_then(|id| Some((id, cx.shared.operations.pulling(cx.slot, id)?)));
        // The receive has ended, or uses lanes since its ring ended.
        let is_late = |it: &PullState| *it != state && !planted!(TakeLatePiece);
        let found = found.filter(|(_, (it, _))| !is_late(&it.state));
        let Some((operation, (pulling, _))) = found else {
            cx.shared.counters.stale_frames += 1;
            if !is_granted && self.ring == Some(ring) {
                self.unsolicited.remove(number);
            }
            return Ok(None);
        };
        if is_granted {
            pulling.check_piece(offset, length as u64).map_err(bad)?;
            return Ok(Some(PieceReceive { operation, offset }));
        }
        if length == 0 {
            self.unsolicited.remove(number);
            return Ok(Some(PieceReceive { operation, offset: pulling.end_unsolicited() }));
        }
        pulling.check_piece(offset, length as u64).map_err(bad)?;
        if offset + length as u64 == pulling.wanted {
            self.unsolicited.remove(number);
        }
        Ok(Some(PieceReceive { operation, offset }))
    }
}

impl Session {
    /// Selects another ring for its pieces, or none: messages that lanes carry go on by it.
    ///
    /// RR-SHM-10.
    pub(in crate::proto) fn use_ring_for_pieces(&mut self, cx: &mut Cx<'_>, ring: Option<u32>) {
        if self.rendezvous.ring == ring {
            return;
        }
        self.rendezvous.set_ring(cx, ring);
        for index in 0..cx.shared.operations.index_end() {
            self.grant_by(cx, |it, cx| it.follow_ring(cx, index));
        }
    }

    /// Returns the next piece for the ring. [`SessionRendezvous::handle_piece_written`] removes it.
    pub(crate) fn next_piece(&mut self, mut cx: Cx<'_>) -> Option<PieceSend> {
        let most = if rare!("a piece of one byte", 10) { 1 } else { cx.shared.config.piece_bytes };
        let ring = self.rendezvous.ring?;
        let range = self.next_granted(&mut cx, Parts::Pieces(ring))?;
        let QueuedRange { operation, of, offset, length, .. } = range;
        let flags = match of {
            RangeOf::Receive(_) => 0,
            RangeOf::Message(_) => FLAG_UNSOLICITED,
        };
        let header = PieceHeader {
            operation: of.number().into(),
            offset: offset.into(),
            ring: ring.into(),
            flags: flags.into(),
        };
        Some(PieceSend { operation, offset, length: most.min(length as usize), header })
    }
}

/// The sender.
impl SessionRendezvous {
    /// Notes that the piece of [`Session::next_piece`], with this many bytes, is in the ring.
    pub(crate) fn handle_piece_written(&mut self, mut cx: Cx<'_>, length: usize) {
        let ring = debug_assert_some!(self.ring, "the ring took a piece");
        if let Some(ring) = ring {
            self.note_sent(&mut cx, Parts::Pieces(ring), length);
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
        let id = piece.operation;
        let (is_whole, grant) = self.shared.operations.with_pulled(id, |slot, pulling| {
            debug_assert_eq!(piece.offset, pulling.arrived, "pieces arrive in order");
            pulling.note_arrived(length as u64);
            let is_whole = pulling.arrived == pulling.wanted;
            let needs_grant = !is_whole && pulling.arrived == pulling.granted;
            (is_whole, needs_grant.then(|| (slot, pulling.grant_on_ring(id))))
        });
        if is_whole {
            self.finish_pull(id, effects);
        }
        if let Some((slot, grant)) = grant {
            self.with_known(slot, |it, mut cx| it.grant_by(&mut cx, |_, _| grant));
        }
    }
}
