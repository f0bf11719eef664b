//! When paths are asked, in a session that has several: a rail that fails is noticed by packets,
//! not by TCP.

use crate::progress::engine::State;

/// Time between two questions to a path whose TCP lanes are busy and that has no other packets
/// under way, in nanoseconds.
const BUSY_QUESTION_NS: u64 = 2_000_000;

impl State {
    /// Asks paths that have nothing else under way, as long as TCP lanes of theirs are busy.
    pub(super) fn ask_while_busy(&mut self, session: u32) {
        let now_ns = self.now_ns;
        let Some(control) = self.controls.get_mut(session as usize) else { return };
        let streams_at = control.lane_at;
        let is_streaming = control.lane.is_some() && self.core.holds_long(session);
        for lane in control.lanes_mut() {
            let is_streamed = is_streaming && lane.at == streams_at;
            if !is_streamed && !self.core.is_path_busy(session, lane.at) {
                continue;
            }
            lane.path.apply_deferred_ack();
            let (_, in_flight, _) = lane.path.load();
            if now_ns >= lane.busy_question_ns {
                lane.busy_question_ns = now_ns + BUSY_QUESTION_NS;
                if in_flight == 0 {
                    lane.path.ask();
                    lane.wake_at(now_ns, session, &mut self.datagrams.timers);
                }
            }
            lane.wake_at(lane.busy_question_ns, session, &mut self.datagrams.timers);
        }
    }

    /// Long contents went by the control lane: its path is asked while they are not acknowledged.
    pub(in crate::progress) fn watch_stream(&mut self, session: u32) {
        let now_ns = self.now_ns;
        let Some(control) = self.controls.get_mut(session as usize) else { return };
        let streams_at = control.lane_at;
        if control.standby.is_empty() {
            return;
        }
        let timers = &mut self.datagrams.timers;
        for lane in control.lanes_mut().filter(|lane| lane.at == streams_at) {
            if now_ns >= lane.busy_question_ns {
                lane.busy_question_ns = now_ns + BUSY_QUESTION_NS;
            }
            // Another time may have been set since it was.
            lane.wake_at(lane.busy_question_ns, session, timers);
        }
    }

    /// Asks all paths of a session.
    pub(in crate::progress) fn ask_all_paths(&mut self, session: u32) {
        let Some(control) = self.controls.get_mut(session as usize) else { return };
        for lane in control.lanes_mut() {
            lane.path.ask();
            lane.wake_at(self.now_ns, session, &mut self.datagrams.timers);
        }
    }

    /// Asks those paths of a session that have not answered anything sent since then.
    pub(in crate::progress) fn ask_quiet_paths(&mut self, session: u32, since_ns: u64) {
        let Some(control) = self.controls.get_mut(session as usize) else { return };
        for lane in control.lanes_mut() {
            lane.path.apply_deferred_ack();
            if lane.path.answered_sent_ns().is_none_or(|sent_ns| sent_ns < since_ns) {
                lane.path.ask();
                lane.wake_at(self.now_ns, session, &mut self.datagrams.timers);
            }
        }
    }

    /// Chunks were given to the lanes of sessions: their paths are asked from now on, and how far
    /// away the peers are is noted.
    pub(in crate::progress) fn watch_busy_paths(&mut self) {
        for (_, bulk) in self.core.lanes.iter() {
            let Some(control) = self.controls.get_mut(bulk.session as usize) else { continue };
            if bulk.is_idle() {
                continue;
            }
            if let Some(session) = self.core.sessions.at_mut(bulk.session as usize)
                && let Some(path) = session.rails.paths.get_mut(usize::from(bulk.path))
                && let Some(lane) = control.lanes().find(|lane| lane.at == bulk.path)
                && let Some(round_trip_ns) = lane.path.least_round_trip_ns()
            {
                path.round_trip_ns = round_trip_ns;
            }
            if control.standby.is_empty() {
                continue;
            }
            let timers = &mut self.datagrams.timers;
            for lane in control.lanes_mut().filter(|lane| lane.at == bulk.path) {
                if self.now_ns >= lane.busy_question_ns {
                    lane.wake_at(self.now_ns, bulk.session, timers);
                }
            }
        }
    }

    /// Asks the path of the stream, unless it was asked just now.
    pub(super) fn ask_stream(&mut self, session: u32) {
        let now_ns = self.now_ns;
        let Some(control) = self.controls.get_mut(session as usize) else { return };
        let streams_at = control.lane_at;
        let timers = &mut self.datagrams.timers;
        for lane in control.lanes_mut().filter(|lane| lane.at == streams_at) {
            if now_ns >= lane.busy_question_ns {
                lane.busy_question_ns = now_ns + BUSY_QUESTION_NS;
                lane.path.ask();
                lane.wake_at(now_ns, session, timers);
            }
        }
    }
}
