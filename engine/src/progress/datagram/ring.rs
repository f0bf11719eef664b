//! Segments on rings in shared memory, without the packet layer.
//!
//! A ring loses nothing, so that a segment is sent as it is. As with a stream its receiver
//! acknowledges it by the policy of its transport (`proto/session/segments/transport.rs`), or on
//! request.

use super::DATAGRAMS_PER_FLUSH;
use crate::driver::AnyDriver;
use crate::progress::control_lanes::ControlLanes;
use crate::progress::engine::{Engine, EngineState};
use crate::progress::traits::{RING_SEGMENT_BYTES_MAX, RingEntry, RingName, RingSegment};
use crate::proto::core::Core;
use crate::proto::failure::PeerFailure;
use crate::proto::session::control_lane::LaneEvent;
use crate::wire::frame_range::{RingBytes, RingMessage};

/// Bytes read from rings in one turn, plus the segment that exceeds them. A ring holds hundreds of
/// messages; if it delivers more at once than there are receives, a receiver keeps most as
/// unexpected ones, which costs half as much again.
const BYTES_PER_TURN: usize = 4 << 10;
/// Fraction of a piece's length that counts toward the bytes of a turn: it is only copied.
const PIECE_SHARE: usize = 4;

/// Why a session ends whose messages are lost with their ring.
const OVERWRITTEN: &str = "it has overwritten messages in shared memory that it had not read";

/// Rings of an engine.
#[derive(Debug, Default)]
pub(crate) struct Rings {
    /// Some session has had a ring since the driver was attached: the driver is polled.
    are_read: bool,
    /// Some session has a ring now.
    are_up: bool,
    /// Some ring had no space, and its reader does not report when it has.
    is_full: bool,
}

/// What one turn may still read from rings.
pub(super) struct RingTurn {
    bytes_left: usize,
}

impl RingTurn {
    /// Returns whether rings are read in the rest of the turn.
    #[inline]
    pub(super) fn reads(&self) -> bool {
        self.bytes_left > 0
    }
}

impl Rings {
    /// Notes that another driver is attached, which has no rings yet.
    pub(in crate::progress) fn note_attached(&mut self) {
        (self.are_read, self.are_up) = (false, false);
    }

    /// Returns whether some session has a ring.
    #[inline]
    pub(in crate::progress) fn are_up(&self) -> bool {
        self.are_up
    }

    /// Notes whether some session has a ring.
    pub(in crate::progress) fn note_up(&mut self, are_up: bool) {
        self.are_up = are_up;
    }

    /// Begins a turn, which reads rings if there are any.
    #[inline]
    pub(super) fn begin_turn(&self) -> RingTurn {
        RingTurn { bytes_left: if self.are_read { BYTES_PER_TURN } else { 0 } }
    }

    /// Begins an attempt to write to all rings.
    #[inline]
    pub(in crate::progress) fn begin_writes(&mut self) {
        self.is_full = false;
    }

    /// Notes that a ring has no space.
    pub(in crate::progress) fn note_full(&mut self) {
        self.is_full = true;
    }

    /// Returns whether some ring had no space.
    pub(in crate::progress) fn is_some_full(&self) -> bool {
        self.is_full
    }

    /// Writes a session's segments into its ring, as far as there is space. Returns `true` if any
    /// was written.
    pub(super) fn write_segments(
        &mut self,
        (session, ring): (u32, RingName),
        core: &mut Core,
        controls: &mut ControlLanes,
        driver: &mut AnyDriver,
    ) -> bool {
        controls.of(session).set_refused(false);
        let mut written = 0;
        while let Some(segment) =
            core.enter(session).and_then(|(it, cx)| it.poll_for_ring(cx, RING_SEGMENT_BYTES_MAX))
        {
            let (frames, bytes) = segment.content();
            let bytes =
                frames.map_or(RingBytes::whole(bytes), |it| RingBytes::of_frames(it, bytes));
            if !driver.write_segment(ring, RingSegment { frames, bytes, is_last: false }) {
                let token = segment.token();
                self.refuse(session, token, core, controls);
                break;
            }
            segment.note_written();
            written += 1;
            if written == DATAGRAMS_PER_FLUSH {
                core.with(session, |_, cx| cx.flush_after_others());
                break;
            }
        }
        written > 0
    }

    /// Handles a segment without space, or without a ring, which the driver is about to report. The
    /// next turn retries.
    #[cold]
    pub(in crate::progress) fn refuse(
        &mut self,
        session: u32,
        token: u64,
        core: &mut Core,
        controls: &mut ControlLanes,
    ) {
        core.with(session, |it, cx| it.handle_segment_refused(cx, token));
        self.is_full = true;
        controls.of(session).set_refused(true);
    }
}

impl Engine {
    /// Handles a session's new ring, or its end.
    pub(in crate::progress) fn handle_ring_changed(&mut self, name: u64, ring: Option<u32>) {
        let is_up = ring.is_some();
        let unread = if is_up { Some(Vec::new()) } else { self.driver.take_unread(name) };
        let state = &mut *self.state;
        let Some(session) = state.paths.session_of(name) else { return };
        if state.core.session(session).is_some_and(|known| known.is_connected()) {
            let unread = unread.as_deref();
            if !state.paths.set_ring(&mut state.core, session, ring, unread) {
                return self.give_up(session, PeerFailure::Protocol(OVERWRITTEN.into()));
            }
            state.controls.of(session).set_refused(false);
            state.rings.are_read |= is_up;
            state.core.with(session, |it, cx| it.segments().flush_if_waiting(cx));
            self.state.note_transport(&self.driver, session, false);
            self.state.note_rings();
            if !is_up {
                self.handle_lane_event(session, LaneEvent::RingEnded);
            }
        }
    }

    /// Handles at most `limit` segments and pieces of rings, as far as the turn permits; returns
    /// their number.
    #[inline(never)]
    pub(super) fn read_rings(&mut self, turn: &mut RingTurn, limit: usize) -> usize {
        let mut count = 0;
        while count < limit
            && let Some(bytes) = self.read_ring()
        {
            count += 1;
            turn.bytes_left = turn.bytes_left.saturating_sub(bytes);
            if !turn.reads() {
                break;
            }
        }
        count
    }

    /// Handles the next segment or piece of a ring; returns its length. `None`: there was none.
    #[inline(always)]
    fn read_ring(&mut self) -> Option<usize> {
        let (name, segment) = match self.driver.recv_from_ring()? {
            (name, RingEntry::Frames(range, bytes)) => (name, (Some(range), bytes)),
            (name, RingEntry::Segment(bytes)) => (name, (None, bytes)),
            (name, RingEntry::Message(message)) => {
                let message = *message;
                match self.state.take_in_place(&mut self.driver, name, &message) {
                    Ok(true) => return Some(message.length),
                    Ok(false) => (name, (Some(message.range), self.driver.message())),
                    Err((session, failure)) => {
                        self.driver.message();
                        self.give_up(session, failure);
                        return Some(message.length);
                    }
                }
            }
            (name, RingEntry::Piece(&header, length)) => {
                self.take_piece(name, &header, length);
                return Some(length / PIECE_SHARE);
            }
        };
        let length = segment.1.len();
        let state = &mut *self.state;
        let at = (name, state.now_ns);
        let EngineState { core, paths, completions, .. } = state;
        match paths.handle_ring_segment(core, at, segment, completions) {
            Ok(()) => {}
            Err((session, failure)) => self.give_up(session, failure),
        }
        Some(length)
    }
}

impl EngineState {
    /// Notes whether there are rings, after one has come or gone.
    pub(in crate::progress) fn note_rings(&mut self) {
        self.rings.note_up(self.paths.are_rings_up());
    }

    /// Copies a message from its ring to the memory of its receive. `false`: none is posted that it
    /// can complete at once, and nothing has changed.
    #[inline(never)]
    fn take_in_place(
        &mut self,
        driver: &mut AnyDriver,
        name: u64,
        message: &RingMessage,
    ) -> Result<bool, (u32, PeerFailure)> {
        let at = (name, self.now_ns);
        let Self { core, paths, completions, .. } = self;
        match paths.match_in_ring(core, at, message)? {
            None => Ok(false),
            Some((id, fits, arrival)) => {
                if !completions.deliver_in_place(id, &arrival, |room| driver.read_body(room)) {
                    let payload = &driver.message()[message.head().len()..][..fits];
                    completions.deliver_general(id, payload, &arrival);
                }
                Ok(true)
            }
        }
    }
}
