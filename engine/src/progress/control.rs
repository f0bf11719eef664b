//! Control connections: the most active ones are polled, the others are watched.

use std::io::ErrorKind;

use super::engine::Engine;
use super::partial::Partial;
use super::roles::Role;
use super::traits::{Interest, LaneKey};
use crate::proto::control_lane::LaneEvent;
use crate::proto::failure::PeerFailure;
use crate::proto::hint::Hint;
use crate::proto::paths::{PRIMARY, Paths};
use crate::proto::send::Staged;
use crate::proto::session::Session;
use crate::proto::table::reserve_for;
use crate::wire::{FrameError, goodbye};

/// Turns without bytes after which a polled lane is watched: many more than pass between the
/// messages of an exchange (with 64, of 0.1 us where frames are polled, polling stopped between two
/// of 16 KiB), few enough that a long wait is not spent in system calls.
const COLD_TURNS: u32 = 256;

/// Maximum bytes that one turn reads of a lane whose session has a path: short messages use that,
/// and wait meanwhile.
const STREAM_BYTES_PER_TURN: usize = 64 << 10;

/// The loop's side of a session.
#[derive(Debug, Default)]
pub(crate) struct ControlLane {
    /// Its control lane.
    pub(super) lane: Option<LaneKey>,
    /// An attempt to connect it.
    pub(super) attempt: Option<LaneKey>,
    /// The driver reports when it is readable.
    pub(super) is_watched: bool,
    /// The socket buffer is full; the driver reports when it is writable.
    pub(super) is_blocked: bool,
    pub(super) is_polled: bool,
    pub(super) idle_turns: u32,
    /// A segment waits for space in its ring.
    pub(super) is_refused: bool,
    /// It is in the list of sessions that expect data on the control lane.
    pub(super) is_awaited: bool,
    /// It is in the list of sessions that wait for driver space, on any path.
    pub(super) awaits_room: bool,
    /// Position of the path of the attempt to connect it.
    pub(super) attempt_at: u8,
    /// Another control lane that is being opened.
    pub(super) moving: Option<LaneKey>,
    /// The turn in which a message was last sent at once: the others of a burst coalesce.
    pub(super) flushed_poll: u64,
    /// Segments for it, or the rest of one, that the kernel has not taken.
    pub(crate) unsent: Vec<u8>,
    /// The session has no datagrams, and is counted as such ([`super::monitor::EngineQuestions`]).
    pub(super) is_stream: bool,
    /// The turn in which long segments were last sent, and the bytes of them that it still may
    /// send.
    pub(super) long_poll: u64,
    pub(super) long_bytes_left: usize,
    /// Long segments use the control lane, and others the path.
    pub(super) is_streaming: bool,
    /// An incomplete received segment.
    pub(crate) partial: Partial,
}

#[cold]
fn grow(controls: &mut Vec<ControlLane>, len: usize) {
    reserve_for(controls, len);
    controls.resize_with(len, ControlLane::default);
}

impl ControlLane {
    /// Adds the session to those that expect data on the control lane, until none is expected.
    #[inline]
    pub(super) fn await_something(&mut self, session: u32, awaited: &mut Vec<u32>) {
        if !self.is_awaited {
            self.is_awaited = true;
            awaited.push(session);
        }
    }

    /// Marks the control lane as blocked, as the kernel takes no more.
    pub(super) fn block(&mut self, session: u32, blocked: &mut Vec<u32>) {
        if !std::mem::replace(&mut self.is_blocked, true) {
            blocked.push(session);
        }
    }

    /// Returns whether there is a connection that would show the peer's end.
    #[cfg(test)]
    pub(crate) fn has_lane(&self) -> bool {
        self.lane.is_some()
    }
}

impl Engine {
    /// Returns whether the segments of a session use datagrams now.
    #[inline]
    pub(super) fn is_by_datagram(&self, session: u32) -> bool {
        self.state.paths.of(session).is_some_and(Paths::are_open)
    }

    #[inline]
    pub(super) fn control(&mut self, session: u32) -> &mut ControlLane {
        let index = session as usize;
        let controls = &mut self.state.controls;
        if index >= controls.len() {
            grow(controls, index + 1);
        }
        &mut controls[index]
    }

    /// Reads every polled lane once.
    pub(super) fn read_polled(&mut self) -> bool {
        let mut happened = false;
        let mut index = 0;
        while let Some(&session) = self.state.hot.get(index) {
            let got = self.read_control(session);
            happened |= got;
            // A driver whose empty polls cost a system call gains nothing by watching one lane.
            let may_stop = self.state.hot.len() > 1 || self.driver.polls_for_free();
            let control = self.control(session);
            control.idle_turns = if got { 0 } else { control.idle_turns + 1 };
            let has_path = self.is_by_datagram(session);
            let control = self.control(session);
            let may_stop = may_stop || has_path;
            let is_cold = (may_stop
                && (control.idle_turns > COLD_TURNS || rare!("a cold control lane", 50)))
                || (has_path && !control.is_streaming);
            if is_cold || !control.is_polled {
                self.stop_polling(session);
            } else {
                index += 1;
            }
        }
        happened
    }

    fn stop_polling(&mut self, session: u32) {
        self.state.hot.retain(|&hot| hot != session);
        let control = self.control(session);
        (control.is_polled, control.is_streaming) = (false, false);
        control.unsent.shrink_to(1024);
        self.acknowledge_before_watching(session);
        self.watch_control(session);
    }

    /// Polls a lane if the limit permits, or watches it.
    pub(super) fn poll_directly(&mut self, session: u32) {
        let limit = self.state.config.hot_lanes.max(1);
        let control = self.control(session);
        if control.is_polled || control.lane.is_none() {
            return;
        }
        let is_wanted = control.is_streaming || !self.is_by_datagram(session);
        if is_wanted && self.state.hot.len() < limit {
            let control = self.control(session);
            control.is_polled = true;
            control.idle_turns = 0;
            self.state.hot.push(session);
        } else {
            self.acknowledge_before_watching(session);
            self.watch_control(session);
        }
    }

    /// Acknowledges what came by a lane beside a path: nothing more may come by it for long.
    /// Without datagrams a reply is likely to carry the acknowledgement, which is due soon anyway.
    fn acknowledge_before_watching(&mut self, session: u32) {
        if self.state.core.session(session).is_some_and(Session::has_datagrams) {
            self.state.core.with(session, |it, cx| it.acknowledge_received(cx));
        }
    }

    pub(super) fn watch_control(&mut self, session: u32) {
        let control = self.control(session);
        if let Some(lane) = control.lane
            && !control.is_watched
        {
            control.is_watched = true;
            control.partial.shrink();
            self.watch(lane, Interest::Readable);
        }
    }

    /// Prepares for sleep: everything polled is watched. Bytes that arrived meanwhile are reported
    /// at once, because a watch is level-triggered.
    pub(super) fn watch_hot(&mut self) {
        self.acknowledge(true);
        let hot = std::mem::take(&mut self.state.hot);
        for session in hot {
            self.control(session).is_polled = false;
            self.watch_control(session);
        }
    }

    /// Handles a watched control lane that has bytes.
    pub(super) fn handle_control_readable(&mut self, session: u32) {
        self.control(session).is_watched = false;
        self.read_control(session);
        self.poll_directly(session);
    }

    /// Reads and handles the bytes of a control lane. Returns `true` if there were any.
    ///
    /// RR-END-3.
    pub(super) fn read_control(&mut self, session: u32) -> bool {
        let mut happened = false;
        // Twice at most: a peer that keeps the lane full must not block the loop.
        for _ in 0..2 {
            let state = &mut *self.state;
            let Some(control) = state.controls.get_mut(session as usize) else { break };
            let Some(lane) = control.lane else { break };
            let have = control.partial.len();
            let has_path = state.paths.of(session).is_some_and(Paths::are_open);
            let most = if has_path { STREAM_BYTES_PER_TURN } else { usize::MAX };
            let mut space = (state.receive_buffer.len() - have).min(most);
            if have > 0 {
                // Each lane has that for itself.
                space = space.min(STREAM_BYTES_PER_TURN);
            }
            let room = match have {
                0 => &mut state.receive_buffer[..space],
                _ => control.partial.room(space),
            };
            let got = match self.driver.recv(lane, room) {
                Ok(0) => {
                    self.handle_lane_event(session, LaneEvent::EndOfStream);
                    return true;
                }
                Ok(got) => got,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => {
                    self.handle_control_failed(session, &error);
                    return true;
                }
            };
            happened = true;
            let bytes = match have {
                0 => &state.receive_buffer[..got],
                _ => control.partial.with(got),
            };
            let owed = state.core.session(session).map_or(0, Session::unacknowledged_bytes);
            let handled =
                state.core.handle_bytes(session, bytes, state.now_ns, &mut state.completions);
            match handled {
                Ok(used) => {
                    if (have > 0 || used < got)
                        && let Some(monitor) = state.core.lane_monitor(session)
                    {
                        monitor.note_bytes(used > 0 || have == 0);
                    }
                    match have {
                        0 => control.partial.extend(&state.receive_buffer[used..got]),
                        _ => control.partial.keep_rest(got, used),
                    }
                    if planted!(DropPartial) {
                        control.partial.clear();
                    }
                    if !control.partial.is_empty() {
                        control.await_something(session, &mut state.awaited);
                    }
                }
                Err(error) => {
                    let cause = error.to_string().into();
                    self.give_up(
                        session,
                        match error {
                            FrameError::Corrupted { .. } => PeerFailure::Corrupted(cause),
                            _ => PeerFailure::Protocol(cause),
                        },
                    );
                    return true;
                }
            }
            let comes = has_path
                && state.core.session(session).map_or(0, Session::unacknowledged_bytes) != owed;
            control.is_streaming |= comes;
            if comes {
                state.paths.note_streamed(session);
                state.paths.note_stream(&mut state.core, state.now_ns, session);
            }
            if got < space || has_path {
                break;
            }
        }
        happened
    }

    /// Ends a session without a goodbye.
    pub(crate) fn lose(&mut self, session: u32, cause: &str) {
        let state = &mut *self.state;
        state.core.fail_session(session, PeerFailure::Lost(cause.into()), &mut state.completions);
    }

    /// Ends a session whose peer's data cannot be used any more, and reports the cause to it.
    pub(super) fn give_up(&mut self, session: u32, failure: PeerFailure) {
        let reason = match failure {
            PeerFailure::Corrupted(_) => goodbye::REASON_CORRUPTED,
            _ => goodbye::REASON_PROTOCOL,
        };
        self.say_goodbye(session, reason);
        let state = &mut *self.state;
        state.core.fail_session(session, failure, &mut state.completions);
    }

    /// Sends a goodbye with the reason, as far as the kernel takes it; the lane is closed next.
    fn say_goodbye(&mut self, session: u32, reason: u8) {
        use crate::proto::session::ControlFrame as Frame;
        let goodbye = Frame::goodbye(reason);
        let state = &mut *self.state;
        state.core.push_control(session, goodbye);
        let Some(control) = state.controls.get_mut(session as usize) else { return };
        let Some(lane) = control.lane else {
            self.transmit(session, PRIMARY, false);
            return self.driver.flush_datagrams();
        };
        // The goodbye has to follow the rest of a partially sent segment. Not `flush`: a broken
        // lane would be taken for the cause.
        let unsent = &mut control.unsent;
        while !unsent.is_empty()
            || state.core.with(session, |it, cx| it.append_next_segment(cx, unsent, true))
                == Some(true)
        {
            match self.driver.send(lane, unsent) {
                Ok(sent) => drop(unsent.drain(..sent)),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
    }

    pub(super) fn handle_writable(&mut self, key: LaneKey) {
        if let Some(&mut Role::Control { session }) = self.state.roles.get_mut(key) {
            self.control(session).is_blocked = false;
            self.state.blocked.retain(|&it| it != session);
            self.flush(session);
            self.driver.flush_datagrams();
        }
    }

    /// Stages operations that waited for the connection, for credit or for space.
    pub(super) fn stage_waiting(&mut self) -> bool {
        let mut happened = false;
        let mut blocked = 0;
        while let Some(id) = self.state.core.poll_waiting() {
            let state = &mut *self.state;
            match state.core.stage(id) {
                Staged::Eager { room, completes } => {
                    state.completions.gather(id, 0, room);
                    if completes {
                        use crate::proto::effects::{Effects, Ended};
                        state.completions.complete(id, Ended::Sent { accepted: 0 });
                    }
                    happened = true;
                }
                Staged::Rts { room } => {
                    state.completions.gather(id, 0, room);
                    happened = true;
                }
                Staged::Source { room } => {
                    state.completions.write_source(id, room);
                    happened = true;
                }
                Staged::Blocked => {
                    blocked += 1;
                    if blocked > state.core.sessions().len() {
                        break;
                    }
                }
            }
        }
        let state = &mut *self.state;
        while let Some(data) = state.core.stage_data() {
            let shift = u64::from(planted!(ShiftChunk) && data.offset > 0);
            state.completions.gather(data.operation, (data.offset - shift) as usize, data.room);
            happened = true;
        }
        happened
    }

    /// Sends the staged data of sessions.
    pub(super) fn flush_dirty(&mut self) -> bool {
        let mut happened = false;
        // A session that stays dirty (its lane is blocked) must not be taken twice.
        for _ in 0..self.state.core.dirty() {
            let Some(session) = self.state.core.poll_dirty() else { break };
            happened |= self.flush(session);
        }
        self.driver.flush_datagrams();
        happened
    }

    /// Sends the staged data of a session, as far as the kernel takes it. Call
    /// [`super::traits::DatagramIo::flush_datagrams`] when no other session follows.
    pub(crate) fn flush(&mut self, session: u32) -> bool {
        let has_lane = |control: &ControlLane| control.lane.is_some();
        if !self.state.controls.get(session as usize).is_some_and(has_lane)
            && self.state.core.is_loopback(session)
        {
            return self.flush_loopback(session);
        }
        self.flush_segments(session)
    }

    /// Handles a connection that takes no data any more. Data that the peer sent before it closed
    /// is read first, since it may include its goodbye.
    ///
    /// RR-END-1.
    pub(super) fn handle_unsendable(&mut self, session: u32, error: &std::io::Error) {
        let is_alive = |engine: &Self| {
            let known = engine.state.core.session(session);
            known.is_some_and(|known| known.is_connected())
        };
        while is_alive(self) && self.read_control(session) {}
        if is_alive(self) {
            self.handle_control_failed(session, error);
        }
    }

    /// Ends a session that has sent a goodbye once that is acknowledged. Without datagrams the
    /// peer's kernel may acknowledge it first ([`Self::check_peers`]), unless its process closes
    /// sooner.
    ///
    /// RR-END-1.
    pub(super) fn end_if_left(&mut self, session: u32) -> bool {
        let state = &mut *self.state;
        let has_left = state.core.session(session).is_some_and(Session::has_left);
        if has_left {
            state.core.fail_session(session, PeerFailure::Removed, &mut state.completions);
        }
        has_left
    }

    /// Handles staged data of the session with this engine.
    fn flush_loopback(&mut self, session: u32) -> bool {
        let state = &mut *self.state;
        state.core.turn_around(session, state.now_ns, &mut state.completions)
    }

    /// Sends the data staged last as its hint requires.
    #[inline(always)]
    pub(super) fn flush_posted(&mut self, session: u32, hint: Hint, more: bool) {
        match hint {
            Hint::None | Hint::Priority if !more => self.flush_first(session),
            Hint::None | Hint::Priority | Hint::Bulk => {}
            Hint::Latency => self.flush_alone(session),
        }
    }

    /// Sends the data staged last at once, without later data.
    #[inline]
    fn flush_alone(&mut self, session: u32) {
        self.state.core.clean(session);
        if self.transmit_lone(session) {
            return;
        }
        self.flush(session);
        self.driver.flush_datagrams();
        self.state.core.with(session, |it, cx| it.close_segment(cx));
    }

    /// Sends the data staged last at once if no message was since the last turn: a single message
    /// does not wait for the next turn, a burst coalesces.
    #[inline]
    pub(crate) fn flush_first(&mut self, session: u32) {
        if self.is_first_of_turn(session) {
            self.state.core.clean(session);
            if !self.transmit_lone(session) {
                self.flush(session);
                self.driver.flush_datagrams();
            }
        }
    }

    /// Returns whether no message was sent at once on a session since the last turn; now one is.
    #[inline]
    pub(super) fn is_first_of_turn(&mut self, session: u32) -> bool {
        let polls = self.state.polls;
        std::mem::replace(&mut self.control(session).flushed_poll, polls) != polls
    }
}
