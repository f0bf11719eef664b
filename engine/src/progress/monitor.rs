//! Monitors control lanes and executes the decisions of [`crate::proto::session::control_lane`].

use std::io;
use std::ops::Range;

use super::engine::{Engine, EngineState};
use super::silent_peers::Probed;
use super::ticks::HEALTH_NS;
use super::traits::LaneKey;
use crate::proto::session::control_lane::{Decision, LaneEvent, QUESTIONS, SilentTimeout};

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
    /// Sessions whose answers are due.
    pub(super) probed: Probed,
}

impl EngineQuestions {
    /// Returns when that is due.
    pub(super) fn next_ns(&self) -> Option<u64> {
        self.next_ns
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
    fn decide(&mut self, session: u32, event: LaneEvent) -> Decision {
        let (now_ns, limit) = (self.now_ns, self.config.peer_timeout);
        let is_taken = !self.controls.has_unsent(session);
        let paths = self.paths.of_mut(session);
        let decided = self.core.with(session, |it, _| {
            let (monitor, facts) = it.lane_monitor_and_facts(now_ns, limit, is_taken);
            monitor.handle(event, &facts, paths)
        });
        // A session that has ended needs no lane.
        decided.unwrap_or(Decision::Nothing)
    }

    fn is_answer_due(&self, session: u32) -> bool {
        self.core.session(session).is_some_and(|it| it.control_lane().is_answer_due())
    }
}

impl Engine {
    /// Handles an event of a session's control lane: executes the decision.
    pub(super) fn handle_lane_event(&mut self, session: u32, event: LaneEvent) {
        let decision = self.state.decide(session, event);
        self.carry_out_decision(session, decision);
    }

    pub(super) fn carry_out_decision(&mut self, session: u32, decision: Decision) {
        let state = &mut *self.state;
        let now_ns = state.now_ns;
        match decision {
            Decision::Nothing => {}
            Decision::Open { at } => self.setup().open_other_lane(session, at),
            Decision::DropAttempt => {
                if let Some(key) = self.state.controls.moving(session) {
                    self.setup()
                        .handle_connect_failed(key, "the peer refused another control lane");
                }
            }
            Decision::TakeLane { at } => {
                if let Some(key) = self.state.controls.moving(session) {
                    self.setup().control_moved(session, key, at);
                }
            }
            Decision::DropLane => self.setup().drop_control_lane(session),
            Decision::Suspect => {
                tracing::debug!(
                    session,
                    "control connection lost; checking whether the peer is alive"
                );
                self.setup().drop_control_lane(session);
                self.setup().lanes.ask_all_paths(session);
                self.handle_lane_event(session, LaneEvent::MoveDue);
            }
            Decision::AskPaths => self.setup().lanes.ask_all_paths(session),
            Decision::AskQuietPaths { since_ns } => {
                state.paths.ask_quiet_paths(now_ns, session, since_ns);
            }
            Decision::AskForAnswer => {
                state.core.with(session, |it, cx| it.segments_mut().ask_for_answer(cx));
                self.setup().lanes.ask_all_paths(session);
            }
            Decision::ReportSegmentsLost { bytes } => {
                state.core.with(session, |it, cx| it.announce_lane_lost(cx, None, Some(bytes)));
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
        let engine = self.state.core.session(session).map_or(0, |it| it.peer().id());
        self.state.core.shared_mut().processes_mut().note_ended(engine);
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
        let mut awaited = self.state.controls.take_awaited();
        awaited.retain(|&session| {
            self.check_peer(session);
            let state = &mut *self.state;
            if !state.core.session(session).is_some_and(|it| it.segments().has_datagrams()) {
                state.paths.note_stream_use(session);
            }
            state.controls.awaits_more(session, &state.core)
        });
        self.state.controls.keep_awaited(awaited);
        for session in self.state.controls.next_idle_share() {
            // Lanes with a due acknowledgement have just been checked.
            if self.state.is_answer_due(session) {
                continue;
            }
            let Some(lane) = self.state.controls.lane_of(session) else { continue };
            self.look_at_lane(session, lane);
            if self.state.is_answer_due(session) && self.state.controls.lane_of(session).is_some() {
                // Its host does not answer the kernel's keep-alive: each round checks it from now
                // on.
                self.state.controls.await_something(session);
            }
        }
    }

    /// Checks the control lane of a session that may expect data.
    fn check_peer(&mut self, session: u32) {
        let control = self.state.controls.of(session);
        if control.lane().is_some() && control.has_partial() {
            self.handle_lane_event(session, LaneEvent::RestMissing);
        }
        if self.state.core.session(session).is_some_and(|it| it.segments().holds_long()) {
            // An owner that computes reads no TCP; a datagram makes the background thread do it.
            self.setup().lanes.ask_all_paths(session);
        }
        if self.state.is_answer_due(session)
            && let Some(lane) = self.state.controls.lane_of(session)
        {
            self.look_at_lane(session, lane);
        }
    }

    /// RR-LANE-8.
    fn look_at_lane(&mut self, session: u32, lane: LaneKey) {
        match self.driver.unacked(lane) {
            Ok(owed) => {
                let at = self.state.paths.of_mut(session).stream_at();
                let lost = self.setup().lanes.find_lost_segments(lane, (session, at), owed, false);
                let is_found = lost.is_some();
                if let Some(lost) = lost {
                    self.replace_control_lane(session, at, lost);
                }
                let decision = self.state.decide(session, LaneEvent::Unacked(owed));
                // The lane that takes its place is not to fail for the same cause.
                let is_over = decision == Decision::DropLane && !is_found;
                if is_over
                    && let Some(lost) =
                        self.setup().lanes.find_lost_segments(lane, (session, at), owed, true)
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
        let sessions = self.state.controls.slots();
        let share = self.state.engine_questions.take(now_ns, timeout, sessions);
        self.probe_engines(share);
        self.state.engine_questions.end_turn();
        for session in self.state.core.shared_mut().processes_mut().take_silent_paths() {
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
            let judged = state.core.with(session, |it, _| it.judge_engine(now_ns, timeout, paths));
            if let Some(decision) = judged.flatten() {
                state.engine_questions.begin(now_ns, timeout);
                are_probed = true;
                self.carry_out_decision(session, decision);
            }
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
        let state = &mut *self.state;
        due.append(&mut state.controls.without_lane(&state.core, &state.paths));
        for session in due {
            self.handle_lane_event(session, LaneEvent::TickWithout);
            self.handle_lane_event(session, LaneEvent::MoveDue);
        }
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
