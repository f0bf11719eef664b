//! Segments on the control connection.
//!
//! All of a session use it while no path carries them, or where there is none; long ones also while
//! the connection is on the primary path.
//!
//! ```text
//!  short ──> path, if one is open ──> datagrams
//!      \___ otherwise ___
//!                        v
//!  long  ──────────────> unsent ──> TCP
//! ```
//!
//! A segment that is alone, or long, is passed to the kernel from where it was gathered, or, if
//! nothing is ahead of it, from the user's memory before it is gathered; `unsent` has several short
//! ones, and what the kernel did not take. With a path a turn sends at most
//! [`LONG_BYTES_PER_TURN`], and short segments go first.

use std::io::ErrorKind;

use super::control::ControlLane;
use super::engine::{Engine, EngineState};
use super::traits::{Interest, LaneKey};
use crate::driver::AnyDriver;
use crate::proto::paths::PRIMARY;
use crate::proto::segments::{Outgoing, append_segment};
use crate::proto::session::Session;

/// Bytes of long segments that a session sends in one turn, in whole segments: they delay short
/// messages.
const LONG_BYTES_PER_TURN: usize = 64 << 10;

/// Approximate number of bytes of short segments that are passed to the kernel in one call.
const CALL_BYTES: usize = 64 << 10;

/// Length from which a segment is passed to the kernel in a call of its own: that costs less than
/// its copy.
const ALONE_BYTES_MIN: usize = 8 << 10;

/// The longest segment that is passed to the kernel in one call.
const WHOLE_BYTES_MAX: usize = 40 << 10;

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

/// Splits bytes into what one call passes to the kernel and what another one does, so that the
/// receiver copies the first half of many while the kernel takes the second.
#[inline]
pub(super) fn split_for_calls(bytes: &[u8]) -> (&[u8], &[u8]) {
    let first = if bytes.len() > WHOLE_BYTES_MAX { bytes.len() / 2 } else { bytes.len() };
    bytes.split_at(first)
}

/// Passes a segment to the kernel in one call, or two. Returns how much it takes.
#[inline]
fn send_whole(driver: &mut AnyDriver, lane: LaneKey, bytes: &[u8]) -> usize {
    let (first, second) = split_for_calls(bytes);
    let sent = driver.send(lane, first).unwrap_or(0);
    if second.is_empty() || sent < first.len() {
        return sent;
    }
    sent + driver.send(lane, second).unwrap_or(0)
}

impl ControlLane {
    /// Passes a segment to the kernel if nothing is ahead of it and it is worth a call of its own;
    /// `unsent` keeps what the kernel does not take. Returns how much it takes. An error is
    /// detected with the next call.
    #[inline]
    fn send_segment(
        &mut self,
        driver: &mut AnyDriver,
        lane: LaneKey,
        (segment, has_checksums): (Outgoing<'_>, bool),
    ) -> usize {
        let is_alone = segment.is_last || segment.bytes.len() >= ALONE_BYTES_MIN;
        if has_checksums || !is_alone || !self.unsent.is_empty() {
            append_segment(&mut self.unsent, segment.bytes, has_checksums);
            return 0;
        }
        let sent = send_whole(driver, lane, segment.bytes);
        self.unsent.extend_from_slice(&segment.bytes[sent..]);
        sent
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

    /// Sends the segments of a session, on its path or on its control connection.
    pub(super) fn flush_segments(&mut self, session: u32) -> bool {
        let mut happened = false;
        let mut is_by_path = self.is_by_datagram(session);
        if is_by_path {
            let has_long = self.state.core.session(session).is_some_and(Session::has_long);
            if has_long {
                self.await_something(session);
            }
            // The first transmission carries acknowledgements, and there may be nothing else for a
            // datagram.
            let is_alone =
                has_long && !self.state.core.session(session).is_some_and(Session::has_short);
            if is_alone {
                happened = self.flush_long(session);
            }
            if !is_alone || self.state.core.session(session).is_some_and(Session::is_waiting) {
                let is_last = self.state.core.is_dirty_alone(session);
                happened |= self.transmit(session, PRIMARY, is_last);
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

    /// Sends all segments on the control connection.
    fn flush_by_stream(&mut self, session: u32) -> bool {
        let mut happened = false;
        loop {
            let state = &mut *self.state;
            let Some(control) = state.controls.get_mut(session as usize) else { return happened };
            let Some(lane) = control.lane.filter(|_| !control.is_blocked) else { return happened };
            if control.unsent.is_empty() {
                let entered = state.core.enter(session);
                let next = entered.and_then(|(it, cx)| it.poll_segment_for_stream(cx));
                let Some(next) = next else {
                    return happened;
                };
                let sent = control.send_segment(&mut self.driver, lane, next);
                control.await_something(session, &mut state.awaited);
                if sent > 0 {
                    happened = true;
                    state.core.with(session, |it, _| it.expect_answer());
                }
            }
            let unsent = &mut control.unsent;
            // A long one has a call of its own.
            while !unsent.is_empty()
                && unsent.len() < CALL_BYTES
                && state.core.with(session, |it, cx| it.append_next_segment(cx, unsent, false))
                    == Some(true)
            {}
            match self.send_rest(session) {
                Rest::Taken => happened = true,
                Rest::Blocked => return happened,
                Rest::Failed => return true,
            }
        }
    }

    /// Sends the segment staged last for a session on its control connection, if nothing else
    /// waits, and no path carries segments. Returns `false`, without effect, if not.
    pub(super) fn send_lone_by_stream(&mut self, session: u32) -> bool {
        let state = &mut *self.state;
        let Some(control) = state.controls.get_mut(session as usize) else { return false };
        let Some(lane) = control.lane.filter(|_| !control.is_blocked) else { return false };
        let entered = state.core.enter(session);
        let Some(lone) = entered.and_then(|(it, cx)| it.lone_segment(cx)) else { return false };
        let has_checksums = lone.has_checksums();
        let Some(segment) = lone.take() else { return false };
        let sent = control.send_segment(&mut self.driver, lane, (segment, has_checksums));
        control.await_something(session, &mut state.awaited);
        let is_whole = control.unsent.is_empty();
        if sent > 0 {
            state.core.with(session, |it, _| it.expect_answer());
        }
        if !is_whole {
            self.send_rest(session);
        }
        true
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
                    if state.core.session(session).is_some_and(Session::has_long) {
                        state.core.with(session, |it, cx| it.flush_after_others(cx));
                    }
                    return happened;
                }
                let entered = state.core.enter(session);
                let next = entered.and_then(|(it, cx)| it.poll_long(cx));
                let Some((bytes, has_checksums)) = next else {
                    return happened;
                };
                control.count_long(poll, bytes.len());
                let sent = if has_checksums {
                    append_segment(&mut control.unsent, bytes, true);
                    0
                } else {
                    // An error is detected again below.
                    let sent = send_whole(&mut self.driver, lane, bytes);
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
                    if !planted!(ForgetWritable) {
                        self.watch(lane, Interest::Writable);
                    }
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
        let ack = self.state.core.with(session, |it, _| it.take_final_ack()).unwrap_or_default();
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
