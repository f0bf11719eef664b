//! Monitors control lanes and executes the decisions of [`crate::proto::control_lane`].

use std::io;
use std::ops::Range;
use std::time::Duration;

use super::control::ControlLane;
use super::engine::{Engine, EngineState, HEALTH_NS};
use super::partial::Partial;
use super::roles::CLOSING;
use super::silent_peers::Probed;
use super::traits::{CloseMode, LaneKey};
use crate::proto::control_lane::{Decision, LaneEvent, QUESTIONS, SilentTimeout};
use crate::proto::session::Session;
use crate::wire::lost::CONTROL_LANE;

/// Checks of peers between two checks of a lane without unacknowledged data: with many sessions
/// each round checks a share.
const IDLE_ROUNDS: u32 = 10;

/// Maximum reads of the control lane of a process that has ended: a child of it may continue to
/// write.
const READS_MAX: usize = 256;

/// Returns whether an error is one of the network, not of the peer. The kernel reports EINVAL for
/// data from an address that its NIC has lost.
pub(super) fn is_of_network(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::TimedOut
            | io::ErrorKind::HostUnreachable
            | io::ErrorKind::NetworkUnreachable
            | io::ErrorKind::NetworkDown
            | io::ErrorKind::AddrNotAvailable
            | io::ErrorKind::InvalidInput
    )
}

/// Sessions whose engines are asked in one turn, unless there are so many that more have to be.
const ASKED_MIN: u32 = 64;

/// When the engines of peers are asked next whether they are there: in rounds, each of which is
/// spread over as many turns as it takes.
#[derive(Debug, Default)]
pub(super) struct EngineQuestions {
    /// When the next turn is due; `None`: no session is known to be there.
    next_ns: Option<u64>,
    /// When the current round began, and how many sessions it has visited.
    round: Option<(u64, u32)>,
    /// Whether there is a session to be probed in the next round.
    is_needed: bool,
    /// Number of sessions without datagrams: the background thread is not woken when their peers
    /// ask.
    streams: u32,
    /// Sessions whose answers are due.
    pub(super) probed: Probed,
}

/// Interval at which the caretaker checks control lanes for questions, which do not wake it.
/// Peers ask once a second at the most.
const LOOK: Duration = Duration::from_millis(500);

impl EngineQuestions {
    /// Returns when that is due.
    pub(super) fn next_ns(&self) -> Option<u64> {
        self.next_ns
    }

    /// When control lanes are to be looked at while the owner is absent.
    pub(super) fn looks_in(&self) -> Option<Duration> {
        (self.streams > 0).then_some(LOOK)
    }

    /// The session of a control lane begins.
    pub(super) fn begin_stream(&mut self, control: &mut ControlLane) {
        if !std::mem::replace(&mut control.is_stream, true) {
            self.streams += 1;
        }
    }

    /// The session of a control lane ends.
    pub(super) fn end_stream(&mut self, control: &mut ControlLane) {
        if std::mem::take(&mut control.is_stream) {
            self.streams -= 1;
        }
    }

    /// There is a session.
    pub(super) fn begin(&mut self, now_ns: u64, timeout: SilentTimeout) {
        if !timeout.limit.is_zero() {
            self.is_needed = true;
            self.next_ns.get_or_insert(now_ns + pause_ns(timeout));
        }
    }

    /// Of `sessions` those that are to be asked in this turn, if one is due.
    fn take(&mut self, now_ns: u64, timeout: SilentTimeout, sessions: u32) -> Range<u32> {
        if self.next_ns.is_none_or(|next_ns| now_ns < next_ns) {
            return 0..0;
        }
        if self.round.is_none() {
            self.is_needed = false;
        }
        let (begun_ns, at) = self.round.take().unwrap_or((now_ns, 0));
        // Turns are as long apart as health checks, and a round is over before the next one.
        let turns = (pause_ns(timeout) / (2 * HEALTH_NS)).max(1);
        let share = u64::from(sessions).div_ceil(turns) as u32;
        let end = at.saturating_add(share.max(ASKED_MIN)).min(sessions);
        if end < sessions {
            self.round = Some((begun_ns, end));
            self.next_ns = Some(now_ns + HEALTH_NS);
        } else {
            self.next_ns = Some(begun_ns + pause_ns(timeout));
        }
        at..end
    }

    /// The turn has asked its sessions.
    fn end_turn(&mut self) {
        if self.round.is_none() && !self.is_needed {
            self.next_ns = None;
        }
    }
}

/// From one round of questions to the next.
fn pause_ns(timeout: SilentTimeout) -> u64 {
    (timeout.limit / QUESTIONS).as_nanos() as u64
}

impl EngineState {
    /// Notes that data was sent on the control lane of a session.
    pub(super) fn expect_answer(&mut self, session: u32) {
        self.core.with(session, |it, _| it.expect_answer());
        if let Some(control) = self.controls.get_mut(session as usize) {
            control.await_something(session, &mut self.awaited);
        }
    }
}

impl Engine {
    /// Handles an event of a session's control lane: executes the decision.
    pub(super) fn handle_lane_event(&mut self, session: u32, event: LaneEvent) {
        let decision = self.decide(session, event);
        self.carry_out_decision(session, decision);
    }

    fn decide(&mut self, session: u32, event: LaneEvent) -> Decision {
        let state = &mut *self.state;
        let (now_ns, limit) = (state.now_ns, state.config.peer_timeout);
        let control = state.controls.get(session as usize);
        let is_taken = control.is_none_or(|control| control.unsent.is_empty());
        let Some((known, _)) = state.core.enter(session) else { return Decision::Nothing };
        let (monitor, facts) = known.lane_monitor_and_facts(now_ns, limit, is_taken);
        monitor.handle(event, &facts, state.paths.of_mut(session))
    }

    pub(super) fn carry_out_decision(&mut self, session: u32, decision: Decision) {
        let state = &mut *self.state;
        let now_ns = state.now_ns;
        match decision {
            Decision::Nothing => {}
            Decision::Open { at } => self.open_other_lane(session, at),
            Decision::DropAttempt => {
                if let Some(key) = self.control(session).moving {
                    self.handle_connect_failed(key, "the peer refused another control lane");
                }
            }
            Decision::TakeLane { at } => {
                if let Some(key) = self.control(session).moving {
                    self.control_moved(session, key, at);
                }
            }
            Decision::DropLane => self.drop_control_lane(session),
            Decision::Suspect => {
                tracing::debug!(
                    session,
                    "control connection lost; checking whether the peer is alive"
                );
                self.drop_control_lane(session);
                self.ask_all_paths(session);
                self.handle_lane_event(session, LaneEvent::MoveDue);
            }
            Decision::AskPaths => self.ask_all_paths(session),
            Decision::AskQuietPaths { since_ns } => {
                state.paths.ask_quiet_paths(now_ns, session, since_ns);
            }
            Decision::AskForAnswer => {
                state.core.with(session, |it, cx| it.ask_for_answer(cx));
                self.ask_all_paths(session);
            }
            Decision::ReportSegmentsLost { bytes } => {
                let lane = CONTROL_LANE;
                state.core.with(session, |it, cx| it.announce_segments_lost(cx, lane, bytes));
            }
            Decision::GiveUp(failure) => self.give_up(session, failure),
            Decision::Fail(failure) => {
                state.core.fail_session(session, failure, &mut state.completions);
            }
        }
    }

    /// Handles the failure of a session's control lane.
    pub(super) fn handle_control_failed(&mut self, session: u32, error: &io::Error) {
        let (is_of_network, error) = (is_of_network(error), error.to_string());
        self.handle_lane_event(session, LaneEvent::Failed { error, is_of_network });
    }

    /// Handles the end of a session's peer process; another one may keep its connections open.
    pub(super) fn handle_process_ended(&mut self, name: u64) {
        let Some(session) = self.state.paths.session_of(name) else { return };
        self.state.core.with(session, |it, cx| it.note_process_ended(cx));
        self.read_to_end(session);
        self.handle_lane_event(session, LaneEvent::ProcessEnded { observer: None });
    }

    /// Reads what a process sent on its control connection before it ended: that counts.
    pub(super) fn read_to_end(&mut self, session: u32) {
        for _ in 0..READS_MAX {
            if !self.read_control(session) {
                break;
            }
        }
    }

    /// Checks for lost peers: those whose kernels do not acknowledge data, and those that do not
    /// answer the kernel's keep-alive, which is checked at intervals.
    ///
    /// RR-END-2, RR-PATH-6.
    pub(super) fn check_peers(&mut self) {
        let mut awaited = std::mem::take(&mut self.state.awaited);
        awaited.sort_unstable();
        awaited.dedup();
        awaited.retain(|&session| {
            self.check_peer(session);
            let EngineState { core, controls, paths, .. } = &mut *self.state;
            let known = core.session(session);
            if !known.is_some_and(Session::has_datagrams) {
                paths.note_stream_use(session);
            }
            let Some(control) = controls.get_mut(session as usize) else { return false };
            let is_expected = control.lane.is_some() && known.is_some_and(Session::is_answer_due);
            control.is_awaited = is_expected
                || !control.partial.is_empty()
                || known.is_some_and(Session::holds_long);
            control.is_awaited
        });
        awaited.append(&mut self.state.awaited);
        self.state.awaited = awaited;
        let round = self.state.next_health_round();
        let first = (IDLE_ROUNDS - round % IDLE_ROUNDS) % IDLE_ROUNDS;
        for session in (first..self.state.controls.len() as u32).step_by(IDLE_ROUNDS as usize) {
            // Lanes with a due acknowledgement have just been checked.
            let EngineState { core, controls, .. } = &mut *self.state;
            let is_due = core.session(session).is_some_and(Session::is_answer_due);
            let lane = controls[session as usize].lane.filter(|_| !is_due);
            let Some(lane) = lane else { continue };
            self.look_at_lane(session, lane);
            let EngineState { core, controls, awaited, .. } = &mut *self.state;
            let control = &mut controls[session as usize];
            let is_due = core.session(session).is_some_and(Session::is_answer_due);
            if is_due && control.lane.is_some() {
                // Its host does not answer the kernel's keep-alive: each round checks it from now
                // on.
                control.await_something(session, awaited);
            }
        }
    }

    /// Checks the control lane of a session that may expect data.
    fn check_peer(&mut self, session: u32) {
        let control = self.control(session);
        if control.lane.is_some() && !control.partial.is_empty() {
            self.handle_lane_event(session, LaneEvent::RestMissing);
        }
        if self.state.core.session(session).is_some_and(Session::holds_long) {
            // An owner that computes reads no TCP; a datagram makes the background thread do it.
            self.ask_all_paths(session);
        }
        let known = self.state.core.session(session);
        let is_answer_due = known.is_some_and(Session::is_answer_due);
        if let Some(lane) = self.control(session).lane.filter(|_| is_answer_due) {
            self.look_at_lane(session, lane);
        }
    }

    /// RR-LANE-8.
    fn look_at_lane(&mut self, session: u32, lane: LaneKey) {
        match self.driver.unacked(lane) {
            Ok(owed) => {
                let at = self.state.paths.of_mut(session).stream_at();
                let lost = self.find_lost_segments(lane, (session, at), owed, false);
                let is_found = lost.is_some();
                if let Some(lost) = lost {
                    self.replace_control_lane(session, at, lost);
                }
                let decision = self.decide(session, LaneEvent::Unacked(owed));
                // The lane that takes its place is not to fail for the same cause.
                let is_over = decision == Decision::DropLane && !is_found;
                if is_over
                    && let Some(lost) = self.find_lost_segments(lane, (session, at), owed, true)
                {
                    self.replace_control_lane(session, at, lost);
                }
                self.carry_out_decision(session, decision);
            }
            Err(error) => self.handle_control_failed(session, &error),
        }
    }

    /// Asks the engines of peers whose hosts may answer for them: of many some in each turn, and
    /// those whose paths have stopped answering.
    ///
    /// RR-END-6, RR-END-7.
    pub(super) fn ask_engines(&mut self) {
        let (now_ns, timeout) = (self.state.now_ns, self.state.config.silent_timeout);
        let sessions = self.state.controls.len() as u32;
        let share = self.state.engine_questions.take(now_ns, timeout, sessions);
        self.probe_engines(share);
        self.state.engine_questions.end_turn();
        for session in self.state.core.processes_mut().take_silent_paths() {
            let state = &mut *self.state;
            let paths = state.paths.of_mut(session);
            // Where a probe is unanswered already, more of them would say nothing new.
            let known = state.core.session(session);
            let is_unanswered = known.is_some_and(|it| it.silent_since_ns(paths).is_some());
            if !timeout.limit.is_zero() && !is_unanswered {
                self.probe_engines(session..session + 1);
            }
        }
        self.check_silent_peers();
    }

    fn probe_engines(&mut self, sessions: Range<u32>) {
        let (now_ns, timeout) = (self.state.now_ns, self.state.config.silent_timeout);
        let mut are_probed = false;
        for session in sessions.clone() {
            let state = &mut *self.state;
            let paths = state.paths.of_mut(session);
            let Some((known, _)) = state.core.enter(session) else { continue };
            let Some(decision) = known.judge_engine(now_ns, timeout, paths) else { continue };
            state.engine_questions.begin(now_ns, timeout);
            are_probed = true;
            self.carry_out_decision(session, decision);
        }
        if are_probed {
            self.state.engine_questions.probed.push(now_ns, sessions);
        }
    }

    /// Probes idle paths of sessions with several; in sessions without a control lane, probes the
    /// peers, and opens another lane where necessary.
    pub(super) fn tick_control_lanes(&mut self) {
        for session in self.state.paths.several() {
            self.handle_lane_event(session, LaneEvent::TickIdle);
        }
        let mut due = self.state.paths.several();
        due.append(&mut self.without_lane());
        for session in due {
            self.handle_lane_event(session, LaneEvent::TickWithout);
            self.handle_lane_event(session, LaneEvent::MoveDue);
        }
    }

    /// Returns sessions with one path that have lost their control lane.
    fn without_lane(&mut self) -> Vec<u32> {
        let EngineState { core, paths, without_lane, .. } = &mut *self.state;
        without_lane.sort_unstable();
        without_lane.dedup();
        without_lane.retain(|&session| {
            core.session(session).is_some_and(|known| known.is_outlived())
                && paths.of(session).is_some_and(|paths| !paths.are_several())
        });
        without_lane.clone()
    }

    /// Drops a session's control lane; it continues without until it has another one.
    pub(crate) fn drop_control_lane(&mut self, session: u32) {
        let now_ns = self.state.now_ns;
        self.state.hot.retain(|&hot| hot != session);
        let at = self.state.paths.of_mut(session).stream_at();
        let control = self.control(session);
        (control.is_polled, control.is_watched, control.is_blocked) = (false, false, false);
        control.partial = Partial::default();
        control.unsent.clear();
        self.state.blocked.retain(|&it| it != session);
        let control = self.control(session);
        if let Some(lane) = control.lane.take() {
            self.keep_figures(session, at, lane);
            self.state.roles.insert(lane, CLOSING);
            self.driver.close(lane, CloseMode::Reset);
        }
        if let Some(monitor) = self.state.core.lane_monitor(session) {
            monitor.handle_dropped(now_ns, at);
        }
        if !self.state.paths.of_mut(session).are_several() {
            self.state.without_lane.push(session);
        }
        self.choose_stream(session);
        self.state.core.with(session, |it, cx| it.acknowledge_received(cx));
        self.state.core.with(session, |it, cx| it.resend_all(cx, false));
    }

    fn ask_all_paths(&mut self, session: u32) {
        let state = &mut *self.state;
        state.paths.ask_all_paths(state.now_ns, session);
    }

    /// Updates whether long messages use the control lane, after it was established or lost.
    pub(super) fn choose_stream(&mut self, session: u32) {
        let state = &mut *self.state;
        state.paths.choose_stream(&mut state.core, session);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// RR-END-6
    #[test]
    fn engines_of_very_many_peers_are_asked_a_few_in_each_turn_and_all_in_time() {
        for (limit, sessions) in [(300, 100_000), (300, 10), (8, 1000), (4, 5000)] {
            let timeout = SilentTimeout { limit: Duration::from_secs(limit), is_chosen: true };
            let mut questions = EngineQuestions::default();
            questions.begin(0, timeout);
            let mut asked = vec![Vec::new(); sessions as usize];
            for tick in 0..10 * limit * 2 {
                let now_ns = tick * HEALTH_NS;
                let share = questions.take(now_ns, timeout, sessions);
                assert!(share.len() as u32 <= (sessions / 2).clamp(ASKED_MIN, 1000), "{share:?}");
                for session in share {
                    asked[session as usize].push(now_ns);
                    questions.begin(now_ns, timeout);
                }
                questions.end_turn();
            }
            for times in asked {
                assert!(times.len() as u32 >= QUESTIONS, "{times:?}");
                let pauses = times.windows(2).map(|pair| pair[1] - pair[0]);
                assert!(pauses.clone().all(|pause| pause >= pause_ns(timeout)), "{times:?}");
                assert!(pauses.clone().all(|pause| pause <= pause_ns(timeout) + HEALTH_NS));
            }
        }
    }

    #[test]
    fn control_lanes_are_looked_at_while_a_session_without_datagrams_is_there() {
        let mut questions = EngineQuestions::default();
        let mut controls = [ControlLane::default(), ControlLane::default()];
        assert_eq!(questions.looks_in(), None);
        for control in &mut controls {
            questions.begin_stream(control);
            questions.begin_stream(control);
        }
        for control in &mut controls {
            assert_eq!(questions.looks_in(), Some(LOOK));
            questions.end_stream(control);
            questions.end_stream(control);
        }
        assert_eq!(questions.looks_in(), None);
    }

    #[test]
    fn no_turn_is_due_when_no_session_is_left() {
        let timeout = SilentTimeout { limit: Duration::from_secs(40), is_chosen: false };
        let mut questions = EngineQuestions::default();
        questions.begin(0, timeout);
        let due_ns = questions.next_ns().unwrap();
        assert_eq!(questions.take(due_ns - 1, timeout, 100), 0..0);
        questions.end_turn();
        assert_eq!(questions.take(due_ns, timeout, 100), 0..ASKED_MIN);
        questions.end_turn();
        // One that comes behind the round's place is asked in the next.
        let next_ns = questions.next_ns().unwrap();
        questions.begin(next_ns, timeout);
        assert_eq!(questions.take(next_ns, timeout, 100), ASKED_MIN..100);
        questions.end_turn();
        assert_eq!(questions.next_ns(), Some(2 * due_ns));
        questions.take(2 * due_ns, timeout, 10);
        questions.end_turn();
        assert_eq!(questions.next_ns(), None);
    }
}
