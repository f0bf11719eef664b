//! Pieces of long messages on rings in shared memory.

use super::engine::Engine;
use super::traits::PieceHeader;
use crate::proto::effects::Effects;
use crate::proto::failure::PeerFailure;
use crate::proto::ready::Work;
use crate::proto::session::Session;
use crate::proto::session::rendezvous::pull::ring::PieceSend;

/// Pieces that are written for one session in a turn, as there are other peers.
const PER_TURN: usize = 8;

impl Engine {
    /// Copies a piece of `length` bytes, received on a session's ring, to its destination.
    ///
    /// RR-SHM-10.
    #[inline(never)]
    pub(super) fn take_piece(&mut self, name: u64, header: &PieceHeader, length: usize) {
        let state = &mut *self.state;
        let session = state.paths.session_of(name);
        let handled = session.and_then(|session| {
            let handled = state.core.with(session, |it, mut cx| {
                it.rendezvous_mut().handle_piece(&mut cx, header, length)
            });
            Some((session, handled?))
        });
        let piece = match handled {
            Some((_, Ok(Some(piece)))) => piece,
            None | Some((_, Ok(None))) => {
                // It has no destination; free its space.
                self.driver.piece();
                return;
            }
            Some((session, Err(error))) => {
                let failure = PeerFailure::Protocol(error.to_string().into());
                return self.give_up(session, failure);
            }
        };
        let offset = piece.offset as usize;
        match state.completions.room_for(piece.operation, offset, length) {
            Some(room) => self.driver.read_body(room),
            None => state.completions.place(piece.operation, offset, self.driver.piece()),
        }
        state.core.note_piece(piece, length, &mut state.completions);
    }

    /// Writes granted pieces to rings, as far as there is space. Returns `true` if there were any.
    #[inline]
    pub(super) fn write_pieces(&mut self) -> bool {
        self.state.core.shared().ready().len(Work::Piece) > 0 && self.write_some()
    }

    #[inline(never)]
    fn write_some(&mut self) -> bool {
        let mut happened = false;
        let mut left = self.state.core.shared().ready().len(Work::Piece);
        while left > 0
            && let Some(session) = self.state.core.shared_mut().ready_mut().take(Work::Piece)
        {
            left -= 1;
            let named = self.state.paths.first_path(session);
            let (wrote, is_done) = named.map_or((false, true), |(id, _)| self.feed(session, id));
            // Grants of sends that have ended are answered.
            happened |= wrote || is_done;
            if !is_done {
                self.state.core.shared_mut().ready_mut().add_last(session, Work::Piece);
            }
        }
        self.driver.flush_datagrams();
        happened
    }

    /// Writes pieces for a session, whose packets have this id; returns whether there were any, and
    /// whether these were all.
    fn feed(&mut self, session: u32, id: u64) -> (bool, bool) {
        if self.state.controls.of(session).is_refused() {
            // A segment waits for space, and pieces would take it.
            return (false, false);
        }
        let mut written = 0;
        let state = &mut *self.state;
        while let Some(piece) = state.core.with(session, Session::next_piece).flatten() {
            let PieceSend { operation, offset, length, header } = piece;
            let place = (operation, offset as usize, length);
            let bytes = match length {
                0 => &[],
                _ => state.completions.bytes_of(place, &mut state.scratch),
            };
            if !self.driver.write_piece(id, &header, bytes) {
                state.rings.note_full();
                return (written > 0, false);
            }
            state.core.with(session, |it, cx| it.rendezvous_mut().handle_piece_written(cx, length));
            written += 1;
            if written == PER_TURN {
                return (true, false);
            }
        }
        (written > 0, true)
    }
}
