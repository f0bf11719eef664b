//! Control connections: the most active ones are polled, the others are watched; segments are sent
//! on them, and on paths.

use super::context::LaneCx;
use super::control_lanes::{SentRest, StreamRead};
use super::engine::{Engine, EngineState};
use super::roles::ConnectionRole;
use super::traits::LaneKey;
use crate::proto::failure::PeerFailure;
use crate::proto::hint::Hint;
use crate::proto::paths::{PRIMARY, Paths};
use crate::proto::ready::Work;
use crate::proto::session::ControlFrame;
use crate::proto::session::control_lane::LaneEvent;
use crate::proto::session::send::Staged;
use crate::wire::{FrameError, goodbye};

impl LaneCx<'_> {
    /// Acknowledges what came by a lane beside a path: nothing more may come by it for long.
    /// Without datagrams a reply is likely to carry the acknowledgement, which is due soon anyway.
    pub(super) fn acknowledge_received(&mut self, session: u32) {
        if self.core.session(session).is_some_and(|it| it.segments().has_datagrams()) {
            self.core.with(session, |it, cx| it.segments_mut().acknowledge_received(cx));
        }
    }
}

impl EngineState {
    /// Returns whether the segments of a session use datagrams now.
    #[inline]
    pub(super) fn is_by_datagram(&self, session: u32) -> bool {
        self.paths.of(session).is_some_and(Paths::are_open)
    }

    /// Returns whether a long segment may start on the lane beside an open path: on a suspect one
    /// it waits for the next lane.
    pub(super) fn may_begin_long(&self, session: u32) -> bool {
        let paths = self.paths.of(session).filter(|paths| paths.are_open());
        paths.is_some_and(|paths| !paths.are_several() || !paths.is_suspect(paths.stream_at()))
    }

    /// Returns whether no message was sent at once on a session since the last turn; now one is.
    #[inline(always)]
    pub(super) fn is_first_of_turn(&mut self, session: u32) -> bool {
        self.controls.of(session).is_first_of_turn(self.polls)
    }

    /// Ends a session without a goodbye.
    pub(crate) fn lose(&mut self, session: u32, cause: &str) {
        self.core.fail_session(session, PeerFailure::Lost(cause.into()), &mut self.completions);
    }

    /// Ends a session that has sent a goodbye once that is acknowledged. Without datagrams the
    /// peer's kernel may acknowledge it first ([`Engine::check_peers`]), unless its process closes
    /// sooner.
    ///
    /// RR-END-1.
    pub(super) fn end_if_left(&mut self, session: u32) -> bool {
        let has_left =
            self.core.session(session).is_some_and(|it| it.goodbye_progress(false).is_done);
        if has_left {
            self.core.fail_session(session, PeerFailure::Removed, &mut self.completions);
        }
        has_left
    }

    /// Stages operations that waited for the connection, for credit or for space.
    pub(super) fn stage_waiting(&mut self) -> bool {
        let mut happened = false;
        let mut blocked = 0;
        while let Some(id) = self.core.poll_waiting() {
            match self.core.stage(id, self.now_ns) {
                Staged::Eager { room, completes } => {
                    self.completions.gather(id, 0, room);
                    if completes {
                        use crate::proto::effects::{Effects, Ended};
                        self.completions.complete(id, Ended::Sent { accepted: 0 });
                    }
                    happened = true;
                }
                Staged::Rts { room } => {
                    self.completions.gather(id, 0, room);
                    happened = true;
                }
                Staged::Source { room } => {
                    self.completions.write_source(id, room);
                    happened = true;
                }
                Staged::Blocked => {
                    blocked += 1;
                    if blocked > self.core.sessions().len() {
                        break;
                    }
                }
            }
        }
        while let Some(data) = self.core.stage_data() {
            let shift = u64::from(planted!(ShiftChunk) && data.offset > 0);
            self.completions.gather(data.operation, (data.offset - shift) as usize, data.room);
            happened = true;
        }
        happened
    }
}

impl Engine {
    // ---- Receiving ----

    /// Reads every polled lane once.
    pub(super) fn read_polled(&mut self) -> bool {
        let mut happened = false;
        let mut index = 0;
        while let Some(session) = self.state.controls.polled(index) {
            let got = self.read_control(session);
            happened |= got;
            let polls_for_free = self.driver.polls_for_free();
            let has_path = self.state.is_by_datagram(session);
            let controls = &mut self.state.controls;
            if controls.stops_polling(session, got, has_path, polls_for_free) {
                let mut cx = self.setup();
                cx.controls.stop_polling(session, &mut cx.lanes);
            } else {
                index += 1;
            }
        }
        happened
    }

    /// Prepares for sleep: everything polled is watched.
    pub(super) fn watch_polled(&mut self) {
        self.acknowledge(true);
        let mut cx = self.setup();
        cx.controls.watch_polled(&mut cx.lanes);
    }

    /// Handles a watched control lane that has bytes.
    pub(super) fn handle_control_readable(&mut self, session: u32) {
        self.state.controls.note_readable(session);
        self.read_control(session);
        let mut cx = self.setup();
        cx.controls.poll(session, &mut cx.lanes);
    }

    /// Reads and handles the bytes of a control lane. Returns `true` if there were any.
    ///
    /// RR-END-3.
    pub(super) fn read_control(&mut self, session: u32) -> bool {
        let mut cx = self.setup();
        match cx.controls.receive(session, &mut cx.lanes) {
            StreamRead::Nothing => return false,
            StreamRead::Bytes => {}
            StreamRead::EndOfStream => self.handle_lane_event(session, LaneEvent::EndOfStream),
            StreamRead::Failed(error) => self.handle_control_failed(session, &error),
            StreamRead::Invalid(error) => {
                let cause = error.to_string().into();
                let failure = match error {
                    FrameError::Corrupted { .. } => PeerFailure::Corrupted(cause),
                    _ => PeerFailure::Protocol(cause),
                };
                self.give_up(session, failure);
            }
        }
        true
    }

    /// Ends a session whose peer's data cannot be used any more, and reports the cause to it.
    pub(super) fn give_up(&mut self, session: u32, failure: PeerFailure) {
        let reason = match failure {
            PeerFailure::Corrupted(_) => goodbye::REASON_CORRUPTED,
            _ => goodbye::REASON_PROTOCOL,
        };
        let goodbye = ControlFrame::goodbye(reason);
        let cx = self.setup();
        if !cx.controls.send_goodbye(session, goodbye, cx.lanes.core, cx.lanes.driver) {
            self.transmit(session, PRIMARY, false);
            self.driver.flush_datagrams();
        }
        let state = &mut *self.state;
        state.core.fail_session(session, failure, &mut state.completions);
    }

    // ---- Sending ----

    /// Handles free space in the socket of a control lane.
    pub(super) fn handle_writable(&mut self, key: LaneKey) {
        if let Some(&mut ConnectionRole::Control { session }) = self.state.roles.get_mut(key) {
            self.state.controls.unblock(session);
            self.flush(session);
            self.driver.flush_datagrams();
        }
    }

    /// Sends the staged data of sessions.
    pub(super) fn flush_dirty(&mut self) -> bool {
        let mut happened = false;
        // A session that stays dirty (its lane is blocked) must not be taken twice.
        let mut left = self.state.core.shared().ready().len(Work::Flush);
        while left > 0
            && let Some(session) = self.state.core.shared_mut().ready_mut().take(Work::Flush)
        {
            left -= 1;
            happened |= self.flush(session);
        }
        self.driver.flush_datagrams();
        happened
    }

    /// Sends the staged data of a session, as far as the kernel takes it. Call
    /// [`super::traits::DatagramIo::flush_datagrams`] when no other session follows.
    pub(crate) fn flush(&mut self, session: u32) -> bool {
        let state = &mut *self.state;
        if state.controls.lane_of(session).is_none() && state.core.is_loopback(session) {
            return state.core.turn_around(session, state.now_ns, &mut state.completions);
        }
        self.flush_segments(session)
    }

    /// Sends the segments of a session, on its path or on its control connection.
    fn flush_segments(&mut self, session: u32) -> bool {
        let mut happened = false;
        let mut is_by_path = self.state.is_by_datagram(session);
        if is_by_path {
            let has_long =
                self.state.core.session(session).is_some_and(|it| it.segments().has_long());
            if has_long {
                self.state.controls.await_something(session);
            }
            // The first transmission carries acknowledgements, and there may be nothing else for a
            // datagram.
            let is_alone = has_long
                && !self.state.core.session(session).is_some_and(|it| it.segments().has_short());
            if is_alone {
                happened = self.flush_long(session);
            }
            if !is_alone
                || self.state.core.session(session).is_some_and(|it| it.segments().is_waiting())
            {
                let is_last = self.state.core.shared().ready().is_only(session, Work::Flush);
                happened |= self.transmit(session, PRIMARY, is_last);
            }
            // Segments built for longer datagrams than the path takes now use TCP.
            is_by_path = !self.state.paths.uses_stream_now(&self.state.core, session);
            if is_by_path && has_long && !is_alone {
                happened |= self.flush_long(session);
            }
        }
        if !is_by_path {
            happened |= self.flush_by_stream(session);
        } else if self.state.controls.has_unsent(session) {
            happened |= self.send_rest(session);
        }
        self.state.end_if_left(session) || happened
    }

    /// Sends segments on the TCP lane when a path carries none any more, or only shorter ones.
    #[cold]
    pub(super) fn flush_what_no_path_takes(&mut self, session: u32) {
        if self.state.paths.uses_stream_now(&self.state.core, session) {
            self.flush_by_stream(session);
        }
    }

    /// Sends all segments on the control connection.
    fn flush_by_stream(&mut self, session: u32) -> bool {
        let state = &mut *self.state;
        let sent = state.controls.send_segments(session, &mut state.core, &mut self.driver);
        sent.unwrap_or_else(|error| self.handle_unsendable(session, &error))
    }

    /// Sends long segments, as many as this turn may.
    fn flush_long(&mut self, session: u32) -> bool {
        let turn = (self.state.polls, self.state.may_begin_long(session));
        let mut cx = self.setup();
        let sent = cx.controls.send_long(session, turn, &mut cx.lanes);
        sent.unwrap_or_else(|error| self.handle_unsendable(session, &error))
    }

    /// Sends the rest of a partially sent segment. Returns whether the kernel has taken it all.
    pub(super) fn send_rest(&mut self, session: u32) -> bool {
        let state = &mut *self.state;
        match state.controls.send_rest(session, &mut state.core, &mut self.driver) {
            Ok(rest) => rest == SentRest::Taken,
            Err(error) => {
                self.handle_unsendable(session, &error);
                false
            }
        }
    }

    /// Handles a connection that takes no data any more. Data that the peer sent before it closed
    /// is read first, since it may include its goodbye. Returns `true`, as something has happened.
    ///
    /// RR-END-1.
    #[cold]
    fn handle_unsendable(&mut self, session: u32, error: &std::io::Error) -> bool {
        let is_alive = |engine: &Self| {
            let known = engine.state.core.session(session);
            known.is_some_and(|known| known.is_connected())
        };
        while is_alive(self) && self.read_control(session) {}
        if is_alive(self) {
            self.handle_control_failed(session, error);
        }
        true
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

    /// Sends the data staged last at once; a message with [`Hint::Latency`] without later data.
    pub(super) fn flush_posted(&mut self, session: u32, hint: Hint) {
        if hint != Hint::Latency {
            self.state.is_first_of_turn(session);
        }
        self.state.core.shared_mut().ready_mut().take_if_latest(session, Work::Flush);
        self.flush(session);
        self.driver.flush_datagrams();
        if hint == Hint::Latency {
            self.state.core.with(session, |it, _| it.segments_mut().close_segment());
        }
    }
}
