//! Segments on the control connection of a session in datagram mode.
//!
//! All of them use it while the session's path carries none; and the long ones while the connection
//! is on this path.
//!
//! ```text
//!  short ──> path, if it is open ──> datagrams
//!      \___ otherwise ___
//!                        v
//!  long  ──────────────> unsent ──> TCP
//! ```
//!
//! A long segment is passed to the kernel from where it was gathered, or, if nothing is ahead of
//! it, from the user's memory before it is gathered; `unsent` has the rest that the kernel did not
//! take. A turn sends at most [`LONG_BYTES_PER_TURN`], and short segments go first.

use std::io::ErrorKind;

use super::control::ControlLane;
use super::engine::{Engine, EngineState};
use super::traits::Interest;
use crate::proto::datagram::append_segment;
use crate::proto::paths::CARRIER;

/// Bytes of long segments that a session sends in one turn, in whole segments: they delay short
/// messages.
const LONG_BYTES_PER_TURN: usize = 64 << 10;

/// Result of sending the rest of a partially sent segment.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Rest {
    /// The kernel has it all.
    Taken,
    /// It took no more, or there is no lane.
    Blocked,
    /// The lane failed, and possibly the session with it.
    Failed,
}

impl ControlLane {
    /// Returns the bytes of long segments that may still be sent in turn `poll`.
    pub(super) fn long_bytes_left(&self, poll: u64) -> usize {
        if self.long_poll == poll { self.long_bytes_left } else { LONG_BYTES_PER_TURN }
    }

    /// Counts bytes of long segments sent in turn `poll`.
    pub(super) fn count_long(&mut self, poll: u64, bytes: usize) {
        self.long_bytes_left = self.long_bytes_left(poll).saturating_sub(bytes);
        self.long_poll = poll;
    }
}

impl EngineState {
    /// Notes a long segment on the stream of a session; the kernel took `sent` bytes of it at once.
    pub(super) fn note_streamed(&mut self, session: u32, sent: usize) {
        if sent > 0 {
            self.expect_answer(session);
        }
        self.paths.note_streamed(session);
        self.paths.watch_stream(self.now_ns, session);
    }
}

impl Engine {
    /// Returns whether the kernel takes data of a session's lane at once, as far as is known,
    /// nothing is ahead of it there, and datagrams carry the rest.
    pub(super) fn is_stream_free(&self, session: u32, control: &ControlLane) -> bool {
        control.lane.is_some()
            && !control.is_blocked
            && control.unsent.is_empty()
            && self.is_by_datagram(session)
    }

    /// Returns whether a long segment may start on the lane: on a suspect path it waits for the
    /// next lane.
    pub(super) fn may_begin_long(&self, session: u32) -> bool {
        let paths = self.state.paths.of(session);
        paths.is_none_or(|paths| !paths.are_several() || !paths.is_suspect(paths.stream_at()))
    }

    /// Sends the segments of a session in datagram mode, on its path or on its TCP lane.
    pub(super) fn flush_segments(&mut self, session: u32) -> bool {
        let mut happened = false;
        let mut is_by_path = self.is_by_datagram(session);
        if is_by_path {
            let has_long = self.state.core.has_long(session);
            if has_long {
                self.await_something(session);
            }
            // The first transmission carries acknowledgements, and there may be nothing else for a
            // datagram.
            let is_alone = has_long && !self.state.core.has_short(session);
            if is_alone {
                happened = self.flush_long(session);
            }
            if !is_alone || self.state.core.is_waiting(session) {
                let is_last = self.state.core.is_dirty_alone(session);
                happened |= self.transmit(session, CARRIER, is_last);
            }
            // Segments built for longer datagrams than the path takes now use TCP.
            is_by_path =
                self.is_by_datagram(session) && !self.is_waiting_too_long_for_path(session);
            if is_by_path && has_long && !is_alone {
                happened |= self.flush_long(session);
            }
        }
        if !is_by_path {
            happened |= self.flush_by_stream(session);
        } else if !self.control(session).unsent.is_empty() {
            happened |= self.send_rest(session) == Rest::Taken;
        }
        self.end_if_left(session) || happened
    }

    /// Sends segments on the TCP lane when a path carries none any more, or only shorter ones.
    #[cold]
    pub(super) fn flush_what_no_path_takes(&mut self, session: u32) {
        if !self.is_by_datagram(session) || self.is_waiting_too_long_for_path(session) {
            self.flush_by_stream(session);
        }
    }

    fn await_something(&mut self, session: u32) {
        let state = &mut *self.state;
        if let Some(control) = state.controls.get_mut(session as usize) {
            control.await_something(session, &mut state.awaited);
        }
    }

    /// Sends all segments on the TCP lane.
    fn flush_by_stream(&mut self, session: u32) -> bool {
        let mut happened = false;
        self.await_something(session);
        loop {
            let state = &mut *self.state;
            let Some(control) = state.controls.get_mut(session as usize) else { return happened };
            if control.lane.is_none() || control.is_blocked {
                return happened;
            }
            let unsent = &mut control.unsent;
            if unsent.is_empty() && !state.core.poll_segment_for_stream(session, unsent) {
                return happened;
            }
            match self.send_rest(session) {
                Rest::Taken => happened = true,
                Rest::Blocked => return happened,
                Rest::Failed => return true,
            }
        }
    }

    /// Sends long segments, as many as this turn may.
    fn flush_long(&mut self, session: u32) -> bool {
        let mut happened = false;
        let poll = self.state.polls;
        let may_begin = self.may_begin_long(session);
        loop {
            let state = &mut *self.state;
            let Some(control) = state.controls.get_mut(session as usize) else { return happened };
            let Some(lane) = control.lane.filter(|_| !control.is_blocked) else { return happened };
            if control.unsent.is_empty() {
                if !may_begin {
                    return happened;
                }
                if control.long_bytes_left(poll) == 0 {
                    if state.core.has_long(session) {
                        state.core.mark_dirty_last(session);
                    }
                    return happened;
                }
                let Some((bytes, has_checksums)) = state.core.poll_long(session) else {
                    return happened;
                };
                control.count_long(poll, bytes.len());
                let sent = if has_checksums {
                    append_segment(&mut control.unsent, bytes, true);
                    0
                } else {
                    // An error is detected again below.
                    let sent = self.driver.send(lane, bytes).unwrap_or(0);
                    control.unsent.extend_from_slice(&bytes[sent..]);
                    sent
                };
                happened |= sent > 0;
                let is_whole = control.unsent.is_empty();
                state.note_streamed(session, sent);
                if is_whole {
                    continue;
                }
            }
            match self.send_rest(session) {
                Rest::Taken => happened = true,
                Rest::Blocked => return happened,
                Rest::Failed => return true,
            }
        }
    }

    /// Sends the rest of a partially sent segment, which has to follow, whichever lane is next.
    pub(super) fn send_rest(&mut self, session: u32) -> Rest {
        loop {
            let Some(control) = self.state.controls.get_mut(session as usize) else {
                return Rest::Failed;
            };
            let Some(lane) = control.lane.filter(|_| !control.is_blocked) else {
                return Rest::Blocked;
            };
            if control.unsent.is_empty() {
                return Rest::Taken;
            }
            match self.driver.send(lane, &control.unsent) {
                Ok(sent) => {
                    control.unsent.drain(..sent);
                    self.state.expect_answer(session);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    control.block(session, &mut self.state.blocked);
                    self.watch(lane, Interest::Writable);
                    return Rest::Blocked;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => {
                    self.handle_unsendable(session, &error);
                    return Rest::Failed;
                }
            }
        }
    }

    /// Sends the final acknowledgement of a session that a goodbye ended, as far as the kernel
    /// takes it. Its lane is closed next.
    pub(super) fn send_final_ack(&mut self, session: u32) {
        let ack = self.state.core.take_final_ack(session);
        let control = self.control(session);
        let Some(lane) = control.lane.filter(|_| !ack.is_empty()) else { return };
        // The rest of a partially sent segment has to precede it.
        let mut unsent = std::mem::take(&mut control.unsent);
        unsent.extend_from_slice(&ack);
        let mut at = 0;
        while at < unsent.len() {
            match self.driver.send(lane, &unsent[at..]) {
                Ok(sent) => at += sent,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return,
            }
        }
    }

    /// Sends due acknowledgements of data received from streams and rings. `is_last`: there may be
    /// no other turn for long.
    ///
    /// RR-DGRAM-12.
    #[inline]
    pub(super) fn acknowledge(&mut self, is_last: bool) {
        let happened = self.state.core.poll_acknowledgements(self.state.now_ns, is_last);
        if happened && is_last {
            self.flush_dirty();
        }
    }
}
