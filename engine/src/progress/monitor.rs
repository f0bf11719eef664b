//! Control lanes are watched, and what [`crate::proto::control_lane`] decides about them is done.

use std::io;
use std::time::Duration;

use super::engine::{Engine, EngineState};
use super::lanes::{CloseMode, LaneKey};
use super::partial::Partial;
use super::roles::CLOSING;
use crate::proto::control_lane::{Decision, LaneEvent, QUESTIONS};

/// Checks of peers from one look at a lane on which nothing is owed to the next: of many sessions
/// each check looks at a share.
const IDLE_ROUNDS: u32 = 10;

/// Reads of the control lane of a process that has ended: a child of it may go on writing.
const READS_MAX: usize = 256;

/// Whether an error is one of the network, not of the peer. The kernel calls what leaves by an
/// address that its NIC has lost invalid.
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

/// When the engines of peers are asked next whether they are there.
#[derive(Debug, Default)]
pub(super) struct EngineQuestions {
    /// `None`: no session is known to be there.
    next_ns: Option<u64>,
}

impl EngineQuestions {
    /// When that is due.
    pub(super) fn next_ns(&self) -> Option<u64> {
        self.next_ns
    }

    /// There is a session.
    pub(super) fn begin(&mut self, now_ns: u64, limit: Duration) {
        if !limit.is_zero() {
            self.next_ns.get_or_insert(now_ns + (limit / QUESTIONS).as_nanos() as u64);
        }
    }
}

impl EngineState {
    /// Something was sent by the control lane of a session.
    pub(super) fn expect_answer(&mut self, session: u32) {
        self.core.expect_answer(session);
        if let Some(control) = self.controls.get_mut(session as usize) {
            control.await_something(session, &mut self.awaited);
        }
    }
}

impl Engine {
    /// Something happened to the control lane of a session: does what is to be done about it.
    pub(super) fn handle_lane_event(&mut self, session: u32, event: LaneEvent) {
        let state = &mut *self.state;
        let (now_ns, limit) = (state.now_ns, state.config.peer_timeout);
        let known = state.core.lane_monitor_and_facts(session, now_ns, limit);
        let Some((monitor, facts)) = known else { return };
        let decision = monitor.handle(event, &facts, state.paths.of_mut(session));
        self.carry_out_decision(session, decision);
    }

    fn carry_out_decision(&mut self, session: u32, decision: Decision) {
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
                tracing::debug!(session, "its control lane is gone: is the peer still there?");
                self.drop_control_lane(session);
                self.ask_all_paths(session);
                self.handle_lane_event(session, LaneEvent::MoveDue);
            }
            Decision::AskPaths => self.ask_all_paths(session),
            Decision::AskQuietPaths { since_ns } => {
                state.paths.ask_quiet_paths(now_ns, session, since_ns);
            }
            Decision::AskForAnswer => {
                state.core.ask_for_answer(session);
                self.ask_all_paths(session);
            }
            Decision::SaySegmentsLost { bytes } => {
                state.core.announce_control_segments_lost(session, bytes);
            }
            Decision::AskForAck => state.core.ask_for_ack(session),
            Decision::GiveUp(failure) => self.give_up(session, failure),
            Decision::Fail(failure) => {
                state.core.fail_session(session, failure, &mut state.completions);
            }
        }
    }

    /// The control lane of a session failed.
    pub(super) fn handle_control_failed(&mut self, session: u32, error: &io::Error) {
        let (is_of_network, error) = (is_of_network(error), error.to_string());
        self.handle_lane_event(session, LaneEvent::Failed { error, is_of_network });
    }

    /// The process of a session's peer has ended; another one may keep its connections open.
    pub(super) fn handle_process_ended(&mut self, name: u64) {
        let Some(session) = self.state.paths.session_of(name) else { return };
        // What it sent before counts.
        for _ in 0..READS_MAX {
            if !self.read_control(session) {
                break;
            }
        }
        self.handle_lane_event(session, LaneEvent::ProcessEnded);
    }

    /// Peers whose kernels do not acknowledge what was sent to them are dead, and those that do not
    /// answer the kernel's keep-alive, which is looked at now and then.
    ///
    /// RR-END-2, RR-PATH-6.
    pub(super) fn check_peers(&mut self) {
        let mut awaited = std::mem::take(&mut self.state.awaited);
        awaited.sort_unstable();
        awaited.dedup();
        awaited.retain(|&session| {
            self.check_peer(session);
            let EngineState { core, controls, .. } = &mut *self.state;
            let Some(control) = controls.get_mut(session as usize) else { return false };
            let is_expected = core.is_answer_due(session) && control.lane.is_some();
            control.is_awaited =
                is_expected || !control.partial.is_empty() || core.holds_long(session);
            control.is_awaited
        });
        awaited.append(&mut self.state.awaited);
        self.state.awaited = awaited;
        let round = self.state.next_health_round();
        let first = (IDLE_ROUNDS - round % IDLE_ROUNDS) % IDLE_ROUNDS;
        for session in (first..self.state.controls.len() as u32).step_by(IDLE_ROUNDS as usize) {
            // Those on which an answer is due have just been looked at.
            let EngineState { core, controls, .. } = &mut *self.state;
            let lane = controls[session as usize].lane.filter(|_| !core.is_answer_due(session));
            let Some(lane) = lane else { continue };
            self.look_at_lane(session, lane);
            let EngineState { core, controls, awaited, .. } = &mut *self.state;
            let control = &mut controls[session as usize];
            if core.is_answer_due(session) && control.lane.is_some() {
                // Its host does not answer the kernel's keep-alive: each check looks from now on.
                control.await_something(session, awaited);
            }
        }
    }

    /// Something may be expected of the control lane of a session.
    fn check_peer(&mut self, session: u32) {
        let control = self.control(session);
        if control.lane.is_some() && !control.partial.is_empty() {
            let has_datagram_mode = control.has_datagram_mode;
            self.handle_lane_event(session, LaneEvent::RestMissing { has_datagram_mode });
        }
        if self.state.core.holds_long(session) {
            // An owner who computes reads no TCP; a datagram has the caretaker do it.
            self.ask_all_paths(session);
        }
        let is_answer_due = self.state.core.is_answer_due(session);
        if let Some(lane) = self.control(session).lane.filter(|_| is_answer_due) {
            self.look_at_lane(session, lane);
        }
    }

    fn look_at_lane(&mut self, session: u32, lane: LaneKey) {
        match self.driver.owed(lane) {
            Ok(owed) => {
                let at = self.state.paths.of_mut(session).stream_at();
                if let Some(lost) = self.find_lost_segments(lane, (session, at), owed, false) {
                    self.replace_control_lane(session, at, lost);
                }
                self.handle_lane_event(session, LaneEvent::Owed(owed));
            }
            Err(error) => self.handle_control_failed(session, &error),
        }
    }

    /// Asks the engines of peers whose hosts may answer for them.
    ///
    /// RR-END-6.
    pub(super) fn ask_engines(&mut self) {
        let (now_ns, limit) = (self.state.now_ns, self.state.config.silent_timeout);
        if self.state.engine_questions.next_ns().is_none_or(|next_ns| now_ns < next_ns) {
            return;
        }
        self.state.engine_questions = EngineQuestions::default();
        for session in 0..self.state.controls.len() as u32 {
            let state = &mut *self.state;
            let paths = state.paths.of_mut(session);
            let Some(decision) = state.core.judge_engine(session, now_ns, limit, paths) else {
                continue;
            };
            state.engine_questions.begin(now_ns, limit);
            self.carry_out_decision(session, decision);
        }
    }

    /// In sessions with several paths asks idle ones; in those without a control lane asks peers,
    /// and gives those another one that need it.
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

    /// Sessions with one path that have lost their control lane.
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

    /// A session goes on without its control lane, until it has another one.
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
        self.state.core.acknowledge_stream(session);
        self.state.core.resend_all(session, false);
    }

    fn ask_all_paths(&mut self, session: u32) {
        let state = &mut *self.state;
        state.paths.ask_all_paths(state.now_ns, session);
    }

    /// Its control lane came or went: long messages may go by it, or not.
    pub(super) fn choose_stream(&mut self, session: u32) {
        let state = &mut *self.state;
        state.paths.choose_stream(&mut state.core, session);
    }
}
