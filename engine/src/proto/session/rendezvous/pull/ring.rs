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

use super::super::super::Session;
use super::super::SessionRendezvous;
use super::super::granted::{
    GrantedRanges, NewRange, QueuedRange, RangeCarrier, RangeOf, RangeQueue,
};
use super::super::pulling::{PullState, Pulling};
use super::super::queue::Class;
use super::super::serving::Serving;
use super::Carrier;
use crate::proto::context::Cx;
use crate::proto::core::Core;
use crate::proto::effects::Effects;
use crate::proto::ready::Work;
use crate::proto::table::Id;
use crate::wire::piece::{FLAG_UNSOLICITED, PieceHeader};
use crate::wire::{FrameError, Grant, GrantOver};

/// Maximum range of one grant on a ring, in bytes: a grant has four for its length.
const RANGE_BYTES_MAX: u64 = 1 << 30;

/// A piece for the loop to write.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PieceSend {
    pub(crate) operation: Id,
    pub(crate) offset: u64,
    /// 0: a piece that ends a message in unsolicited pieces, whose send has ended.
    pub(crate) length: usize,
    pub(crate) header: PieceHeader,
}

/// Destination of the bytes of a piece.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PieceReceive {
    pub(crate) operation: Id,
    pub(crate) offset: u64,
}

/// The ring of this number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in super::super) struct RingCarrier(pub(in super::super) u32);

impl Carrier for RingCarrier {
    /// Grants all of the rest, or as much as one grant can name.
    fn begin(self, _it: &mut SessionRendezvous, cx: &mut Cx<'_>, id: Id) -> Option<Grant> {
        let pulled = cx.shared.operations.pulling(cx.slot, id);
        let (pulling, _) = debug_assert_some!(pulled, "it pulls")?;
        debug_assert_eq!(pulling.granted, pulling.arrived, "no range is under way");
        // What has come by a ring does not return to another one.
        (pulling.carrier, pulling.state) = (self.into(), PullState::Settled);
        let most = if rare!("a grant of one byte by a ring", 10) { 1 } else { RANGE_BYTES_MAX };
        let length = pulling.ungranted().min(most);
        let range = (pulling.grant(length), length as u32);
        Some(Grant::new(self.over(), pulling.send_operation, id.to_u64(), range))
    }

    fn is_rest_due(self, pulling: &Pulling) -> bool {
        pulling.arrived == pulling.granted
    }

    /// What has not come in order is granted again.
    fn take_back(self, pulling: &mut Pulling) {
        pulling.granted = pulling.arrived;
        pulling.ranges.extend_to(pulling.arrived);
    }

    fn accept(self, it: &mut Session, cx: &mut Cx<'_>, grant: &Grant) -> Result<(), FrameError> {
        if !it.segments.has_datagrams() {
            return Err(grant.error(0));
        }
        it.accept_range(cx, grant, self)
    }
}

impl RangeCarrier for RingCarrier {
    const WORK: Work = Work::Piece;

    fn over(self) -> GrantOver {
        GrantOver::Ring(self.0)
    }

    /// The next range is granted when this one has arrived.
    fn admit(self, serving: &mut Serving, grant: &Grant, message: u64) -> Result<(), FrameError> {
        grant.check_range(message, u32::MAX)?;
        if serving.begin_pieces() { Ok(()) } else { Err(grant.error(message)) }
    }

    fn queue(self, granted: &mut GrantedRanges) -> &mut RangeQueue {
        &mut granted.pieces
    }

    fn push(self, it: &mut SessionRendezvous, new: &NewRange<'_>) -> Result<bool, FrameError> {
        let is_known = it.ring == Some(self);
        if is_known {
            it.granted.pieces.drop_ended(new.operations);
            self.insert(&mut it.granted.pieces, new);
        } else {
            it.granted.push_other(self, new);
        }
        Ok(is_known)
    }

    /// One out of many pieces is of the last message, and a range ends with its last piece.
    fn note_sent(queue: &mut RangeQueue, serving: Option<&mut Serving>) {
        queue.note_turn();
        if let Some(serving) = serving {
            serving.note_pieces_sent();
        }
    }
}

impl RingCarrier {
    /// Adds a range to those of this ring, by the class of its message.
    pub(in super::super) fn insert(self, pieces: &mut RangeQueue, new: &NewRange<'_>) {
        let class = Class::of(new.hint);
        pieces.insert(new, |other| other.is_none_or(|other| Class::of(other) > class));
    }
}

/// The receiver.
impl SessionRendezvous {
    /// Returns the ring on which the session takes pieces, as both sides know it.
    #[cfg(test)]
    pub(in crate::proto) fn ring(&self) -> Option<u32> {
        self.ring.map(|RingCarrier(ring)| ring)
    }

    /// Lets the message of the operation at `index` go on by another carrier if it came by a ring,
    /// which has ended.
    fn leave_ring(&mut self, cx: &mut Cx<'_>, index: usize, ended: RingCarrier) -> Option<Grant> {
        let id = cx.shared.operations.id_at(index)?;
        let (pulling, _) = cx.shared.operations.pulling(cx.slot, id)?;
        let is_on_it = pulling.is_on(ended) && !planted!(ForgetPieces);
        is_on_it.then(|| self.replace_carrier(cx, id))?
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
            (PullState::Granting, Some(ring)) => {
                pulling.state = PullState::Draining;
                let is_drained = pulling.is_drained();
                self.queue.retain(|other| other != id);
                is_drained.then(|| ring.begin(self, cx, id))?
            }
            (PullState::Draining, None) => {
                pulling.state = PullState::Granting;
                self.network.begin(self, cx, id)
            }
            _ => None,
        }
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
        let (offset, ring) = (header.offset.get(), RingCarrier(header.ring.get()));
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
        let found = operation.and_then(|id| Some((id, cx.shared.operations.pulling(cx.slot, id)?)));
        // The receive has ended, or uses lanes since its ring ended.
        let is_late = |it: &Pulling| !it.is_on(ring) && !planted!(TakeLatePiece);
        let found = found.filter(|(_, (it, _))| !is_late(it));
        let Some((operation, (pulling, _))) = found else {
            if is_granted {
                cx.shared.note_stale_frame();
            } else if self.ring == Some(ring) {
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
        let ring = ring.map(RingCarrier);
        let before = std::mem::replace(&mut self.rendezvous.ring, ring);
        if before == ring {
            return;
        }
        if let Some(unsolicited) = self.rendezvous.unsolicited.get_mut() {
            unsolicited.begin_ring();
        }
        if let Some(before) = before {
            for index in 0..cx.shared.operations.index_end() {
                self.grant_by(cx, |it, cx| it.leave_ring(cx, index, before));
            }
        }
        self.rendezvous.select_granted(cx, ring);
        for index in 0..cx.shared.operations.index_end() {
            self.grant_by(cx, |it, cx| it.follow_ring(cx, index));
        }
    }

    /// Returns the next piece for the ring. [`SessionRendezvous::handle_piece_written`] removes it.
    pub(crate) fn next_piece(&mut self, mut cx: Cx<'_>) -> Option<PieceSend> {
        let ring = self.rendezvous.ring?;
        let most = if rare!("a piece of one byte", 10) {
            1
        } else {
            cx.shared.rendezvous.limits.piece_bytes()
        };
        let range = self.next_granted(&mut cx, ring)?;
        let QueuedRange { operation, of, offset, length, .. } = range;
        let flags = match of {
            RangeOf::Receive(_) => 0,
            RangeOf::Message(_) => FLAG_UNSOLICITED,
        };
        let header = PieceHeader {
            operation: of.number().into(),
            offset: offset.into(),
            ring: ring.0.into(),
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
            self.note_sent(&mut cx, ring, length);
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
        self.note_pulled(piece.operation, length as u64, effects);
    }
}
