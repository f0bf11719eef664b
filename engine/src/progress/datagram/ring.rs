//! Segments on rings in shared memory, without the packet layer.
//!
//! A ring loses nothing, so that a segment is sent as it is. As with a stream its receiver
//! acknowledges it with its next segment, when none was received for [`QUIET_TURNS`], when
//! [`OWED_BYTES_MAX`] were received, or on request.

use super::DATAGRAMS_PER_FLUSH;
use crate::progress::engine::{Engine, EngineState};
use crate::progress::traits::{RING_SEGMENT_BYTES_MAX, RingEntry};
use crate::proto::control_lane::LaneEvent;
use crate::proto::datagram::Asks;

/// Turns without a segment of its session after which data received on a ring is acknowledged: a
/// microsecond or two, in which a reply is sent.
const QUIET_TURNS: u64 = 16;

/// The same as a time, for loops with rare turns.
const QUIET_NS: u64 = 50_000;

/// Bytes received on a ring before they are acknowledged although more data follows.
const OWED_BYTES_MAX: u32 = 16 << 10;

/// Fraction of a piece's length that counts toward the bytes of a turn: it is only copied.
const PIECE_SHARE: usize = 4;

/// Rings of an engine.
#[derive(Debug, Default)]
pub(crate) struct Rings {
    /// Sessions with pending acknowledgements, each once.
    owing: Vec<u32>,
    /// Some session has had a ring since the driver was attached: the driver is polled.
    pub(in crate::progress) are_read: bool,
    /// Some ring had no space, and its reader does not report when it has.
    pub(in crate::progress) is_full: bool,
}

impl EngineState {
    /// Notes that a segment of a ring was handled: it was of `session`.
    #[inline]
    pub(super) fn note_ring_segment(&mut self, session: u32) {
        if self.core.owed_by_stream(session) == 0 {
            return;
        }
        if let Some(control) = self.controls.get_mut(session as usize) {
            control.ring_poll = self.polls;
            if !std::mem::replace(&mut control.owes_by_ring, true) {
                control.ring_owed_ns = self.now_ns;
                self.rings.owing.push(session);
            }
        }
    }
}

impl Engine {
    /// Handles a session's new ring, or its end.
    pub(in crate::progress) fn handle_ring_changed(&mut self, name: u64, ring: Option<u32>) {
        let is_up = ring.is_some();
        let state = &mut *self.state;
        let Some(session) = state.paths.session_of(name) else { return };
        if state.core.session(session).is_some_and(|known| known.is_connected()) {
            state.paths.set_ring(&mut state.core, session, ring);
            if let Some(control) = state.controls.get_mut(session as usize) {
                control.is_refused = false;
            }
            state.rings.are_read |= is_up;
            state.core.mark_dirty_if_waiting(session);
            self.note_carrier(session, false);
            if !is_up {
                self.handle_lane_event(session, LaneEvent::RingEnded);
            }
        }
    }

    /// Handles the next segment or piece of a ring; returns its length. `None`: there was none.
    #[inline(always)]
    pub(super) fn read_ring(&mut self) -> Option<usize> {
        let (name, segment) = match self.driver.recv_from_ring()? {
            (name, RingEntry::Segment(segment)) => (name, segment),
            (name, RingEntry::Piece(&header, length)) => {
                self.take_piece(name, &header, length);
                return Some(length / PIECE_SHARE);
            }
        };
        let length = segment.len();
        let state = &mut *self.state;
        let at = (name, state.now_ns);
        let EngineState { core, paths, completions, .. } = state;
        match paths.handle_ring_segment(core, at, segment, completions) {
            Ok(Some(session)) => state.note_ring_segment(session),
            Ok(None) => {}
            Err((session, failure)) => self.give_up(session, failure),
        }
        Some(length)
    }

    /// Writes the segment staged last for a session into its ring, if nothing else waits. Returns
    /// `false`, without effect, if not.
    #[inline]
    pub(super) fn write_lone(&mut self, session: u32, ring: u64) -> bool {
        let state = &mut *self.state;
        let lone = state.core.lone_segment(session);
        let Some(segment) = lone.and_then(|lone| lone.take()) else { return false };
        let token = segment.token;
        if self.driver.write_segment(ring, [segment.bytes, &[]]) {
            self.driver.flush_datagrams();
        } else {
            self.wait_for_ring(session, token);
        }
        true
    }

    /// Writes a session's segments into its ring, as far as there is space. Returns `true` if any
    /// was written.
    pub(super) fn write_segments(&mut self, session: u32, ring: u64) -> bool {
        self.control(session).is_refused = false;
        for written in 0..DATAGRAMS_PER_FLUSH {
            let core = &mut self.state.core;
            let segment = core.poll_segment(session, RING_SEGMENT_BYTES_MAX, Asks::WhenAwaited);
            let Some(segment) = segment else { return written > 0 };
            let token = segment.token;
            if !self.driver.write_segment(ring, [segment.bytes, &[]]) {
                self.wait_for_ring(session, token);
                return written > 0;
            }
        }
        self.state.core.mark_dirty_last(session);
        true
    }

    /// Handles a segment without space, or without a ring, which the driver is about to report. The
    /// next turn retries.
    #[cold]
    pub(super) fn wait_for_ring(&mut self, session: u32, token: u64) {
        self.state.core.handle_segment_refused(session, token);
        self.state.rings.is_full = true;
        self.control(session).is_refused = true;
    }

    /// Sends due acknowledgements of rings. `is_last`: there may be no other turn for long.
    #[inline]
    pub(in crate::progress) fn acknowledge_rings(&mut self, is_last: bool) {
        if !self.state.rings.owing.is_empty() {
            self.acknowledge_owing(is_last);
        }
    }

    fn acknowledge_owing(&mut self, is_last: bool) {
        let (polls, now_ns) = (self.state.polls, self.state.now_ns);
        let mut index = 0;
        while let Some(&session) = self.state.rings.owing.get(index) {
            let owed = self.state.core.owed_by_stream(session);
            let control = self.control(session);
            let is_quiet = is_last
                || polls.saturating_sub(control.ring_poll) >= QUIET_TURNS
                || now_ns.saturating_sub(control.ring_owed_ns) >= QUIET_NS;
            if owed > 0 && owed < OWED_BYTES_MAX && !is_quiet {
                index += 1;
                continue;
            }
            self.state.rings.owing.swap_remove(index);
            self.control(session).owes_by_ring = false;
            if owed > 0 {
                self.state.core.acknowledge_stream(session);
                if is_last {
                    self.flush(session);
                    self.driver.flush_datagrams();
                }
            }
        }
    }
}
