//! Sessions that have lost their control lane: is the peer still there?
//!
//! That connection tells of the peer's end, for the kernel of a process that was killed ends it.
//! But a rail that works one way only has it reset, too, by a kernel that hears no answer. In a
//! session with several paths the peer is then *suspect*, and asked by all of them and by
//! connections to its listener. Whoever lives answers one of these; for a process that is gone its
//! host refuses.
//!
//! ```text
//!                       an answer, or another control lane
//!   has a lane ─ reset ─> suspect ─────────────────────────> lives on, without a lane for now
//!       │                    │                                   │
//!       │ end of stream      │ refused; unknown there;           │ refused; unknown there;
//!       v                    v no word for so long               v silent for the peer timeout
//!     over                 over                                over
//! ```

use std::io;
use std::time::Duration;

use super::control::ControlLane;
use super::engine::{Engine, EngineState};
use super::lanes::{CloseMode, LaneKey};
use super::partial::Partial;
use super::roles::{CLOSING, Role};
use super::silence::Silence;
use crate::proto::failure::PeerFailure;
use crate::wire::hello::HelloStatus;

/// Time for any word of a peer that is suspect and to which no connection stands, in nanoseconds:
/// with what the loop takes to notice it makes less than a second.
const WORD_NS: u64 = 700_000_000;
/// Time between two questions to a peer that no TCP lane would tell the end of, in nanoseconds.
const QUESTION_NS: u64 = 1_000_000_000;
/// Time for the answers to questions that were asked when a connection was refused, in nanoseconds:
/// the refusal is the kernel's, or a firewall's, and comes sooner than the word of a process.
const REFUSED_NS: u64 = 100_000_000;
/// An idle path is asked so many times in a peer timeout.
const QUESTIONS_PER_TIMEOUT: u32 = 4;

/// Whether an error is one of the network, not of the peer.
pub(super) fn is_of_network(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::TimedOut
            | io::ErrorKind::HostUnreachable
            | io::ErrorKind::NetworkUnreachable
            | io::ErrorKind::NetworkDown
    )
}

impl ControlLane {
    /// Whether there is a connection that would tell of the peer's end.
    #[cfg(test)]
    pub(crate) fn has_lane(&self) -> bool {
        self.lane.is_some()
    }

    /// Whether the peer may be gone, as its control lane was reset.
    pub(super) fn is_peer_suspect(&self) -> bool {
        self.migration.suspected_ns.is_some()
    }
}

impl EngineState {
    /// How long before a silence was noticed the peer was last heard. Its paths are asked some
    /// times in a peer timeout, so that is part of the silence; more than that shows only that
    /// nobody asked.
    pub(super) fn silent_before(&mut self, session: u32, silence: Duration) -> Duration {
        // From one question that was answered to the next but one, which is late and waited for.
        let most = 5 * self.config.peer_timeout / (2 * QUESTIONS_PER_TIMEOUT);
        let paths = self.paths.of_mut(session);
        if !paths.are_several() || paths.has_active() {
            return Duration::ZERO;
        }
        let Some(heard_ns) = paths.heard_ns() else { return Duration::ZERO };
        let unheard = Duration::from_nanos(self.now_ns.saturating_sub(heard_ns));
        let before = unheard.saturating_sub(silence);
        if before <= most { before } else { Duration::ZERO }
    }
}

impl Engine {
    /// The control lane of a session failed: the session with it, unless it has several paths.
    ///
    /// RR-RAIL-7, RR-RAIL-8.
    pub(super) fn handle_control_failed(&mut self, session: u32, error: &io::Error) {
        let paths = self.state.paths.of_mut(session);
        if !paths.are_several() {
            self.lose_by(session, error);
        } else if !is_of_network(error) {
            self.suspect(session);
        } else if paths.has_active() {
            self.drop_control_lane(session);
        } else {
            self.lose_by(session, error);
        }
    }

    /// The session ends with its control lane. A kernel that gives a silent host up says nothing of
    /// how long it waited.
    fn lose_by(&mut self, session: u32, error: &io::Error) {
        if self.state.core.is_goodbye_under_way(session) {
            return self.fail(session, PeerFailure::Removed);
        }
        let now_ns = self.state.now_ns;
        let cause = match self.control(session).silence.lasts(now_ns) {
            _ if !is_of_network(error) => error.to_string(),
            Some(silence) => {
                format!("its host has not answered for {} ms: {error}", silence.as_millis())
            }
            None => format!("its host does not answer: {error}"),
        };
        self.lose(session, &cause);
    }

    /// The control lane is no more, and that may mean the peer's end.
    ///
    /// RR-RAIL-8.
    pub(super) fn suspect(&mut self, session: u32) {
        let state = &mut *self.state;
        if state.core.is_goodbye_under_way(session) {
            // Whoever has that ends the session.
            state.core.fail_session(session, PeerFailure::Removed, &mut state.completions);
            return;
        }
        self.drop_control_lane(session);
        let now_ns = self.state.now_ns;
        self.control(session).migration.suspected_ns = Some(now_ns);
        tracing::debug!(session, "its control lane was reset: is the peer still there?");
        self.ask_all_paths(session);
        self.move_control_lane(session);
    }

    /// A session goes on without its control lane, until it has another one.
    pub(crate) fn drop_control_lane(&mut self, session: u32) {
        let now_ns = self.state.now_ns;
        self.state.hot.retain(|&hot| hot != session);
        let at = self.stream_at(session);
        let control = self.control(session);
        (control.is_polled, control.is_watched, control.is_blocked) = (false, false, false);
        control.silence = Silence::NONE;
        (control.migration.moved_by, control.migration.moves_failed) = (at, 0);
        control.partial = Partial::default();
        control.unfinished = None;
        control.unsent.clear();
        if let Some(lane) = control.lane.take() {
            control.migration.control_lane_lost_ns = now_ns;
            self.keep_figures(session, at, lane);
            self.state.roles.insert(lane, CLOSING);
            self.driver.close(lane, CloseMode::Reset);
        }
        self.set_control_lane_lost(session, true);
        self.choose_stream(session);
        self.state.core.acknowledge_stream(session);
        self.state.core.resend_all(session, false);
    }

    pub(super) fn set_control_lane_lost(&mut self, session: u32, is_control_lane_lost: bool) {
        self.state.core.set_control_lane_lost(session, is_control_lane_lost);
    }

    /// Nothing but answers to questions shows that the peer is there.
    ///
    /// RR-RAIL-8.
    pub(super) fn ask_without_lane(&mut self, session: u32) {
        let now_ns = self.state.now_ns;
        let limit = self.state.config.peer_timeout;
        let limit_ns = limit.as_nanos() as u64;
        let is_received = self.is_received(session);
        let control = self.control(session);
        if let Some(refused_ns) = control.migration.refused_ns {
            if self.have_paths_answered_since(session, refused_ns) {
                self.control(session).migration.refused_ns = None;
            } else if now_ns.saturating_sub(refused_ns) > REFUSED_NS {
                return self.lose(session, "its host says that its process is gone");
            }
        }
        let control = self.control(session);
        if let Some(since_ns) = control.migration.suspected_ns {
            let suspected_for_ns = now_ns.saturating_sub(since_ns);
            let word_ns = if is_received { WORD_NS.max(limit_ns) } else { WORD_NS };
            if self.have_paths_answered_since(session, since_ns) {
                self.confirm(session);
            } else if suspected_for_ns > word_ns {
                let cause = "its connection was reset, and it answers on none of its rails";
                return self.lose(session, cause);
            }
        }
        let control = self.control(session);
        let without_ns = now_ns.saturating_sub(control.migration.control_lane_lost_ns);
        if without_ns > limit_ns && self.state.core.holds_long(session) {
            // Nothing else carries them, and others wait for them.
            let cause = format!(
                "messages that fit no datagram wait for a TCP connection, and none of its rails \
                 has let one through for {} ms, though datagrams pass: look for what filters TCP \
                 on the way",
                limit.as_millis()
            );
            return self.lose(session, &cause);
        }
        let silent_since_ns = self.state.paths.of_mut(session).silent_since_ns();
        let silent_ns = silent_since_ns.map_or(0, |since| now_ns.saturating_sub(since));
        let silence = Duration::from_nanos(silent_ns);
        let patience = limit - self.state.silent_before(session, silence);
        let control = self.control(session);
        if silence > patience && control.migration.suspected_ns.is_none() {
            let cause = format!("none of its rails has answered for {} ms", limit.as_millis());
            self.lose(session, &cause);
        } else if now_ns.saturating_sub(control.migration.questioned_ns) > QUESTION_NS {
            control.migration.questioned_ns = now_ns;
            self.ask_all_paths(session);
        }
    }

    /// Whether the host of the peer keeps a connection that its process has not answered yet.
    fn is_received(&mut self, session: u32) -> bool {
        let moving = self.control(session).migration.moving;
        let role = moving.and_then(|(key, _)| self.state.roles.get_mut(key));
        matches!(role, Some(Role::MoveAwaitReply { .. }))
    }

    /// The peer has said that it is there.
    fn confirm(&mut self, session: u32) {
        let now_ns = self.state.now_ns;
        let control = self.control(session);
        (control.migration.suspected_ns, control.migration.refused_ns) = (None, None);
        self.state.paths.forget_silence(now_ns, session);
        tracing::debug!(session, "the peer is there, though its control lane is not");
    }

    /// A connection failed. Where nothing but a new one would tell of the peer's end, a refusal
    /// does: its host answers, and nobody listens there any more.
    ///
    /// RR-RAIL-8.
    pub(super) fn handle_refused_move(&mut self, key: LaneKey, error: &io::Error) {
        let now_ns = self.state.now_ns;
        if let Some(&mut Role::MoveConnecting { session, .. }) = self.state.roles.get_mut(key)
            && error.kind() == io::ErrorKind::ConnectionRefused
            && self.is_move_to_peer(session)
        {
            let control = self.control(session);
            if control.lane.is_none() && control.migration.refused_ns.is_none() {
                // The questions may go at this very time.
                control.migration.refused_ns = Some(now_ns.saturating_sub(1));
                self.ask_all_paths(session);
            }
        }
    }

    /// Whether the attempt under way goes where the peer was once heard: an address that was only
    /// announced may be anybody's.
    fn is_move_to_peer(&mut self, session: u32) -> bool {
        let Some((_, at)) = self.control(session).migration.moving else { return false };
        let mut paths = self.state.paths.of_mut(session).all();
        paths.any(|path| path.position() == at && path.packets().is_answered())
    }

    /// The peer, and nobody else, refused another control lane.
    ///
    /// RR-RAIL-8.
    pub(super) fn handle_move_refused(&mut self, key: LaneKey, session: u32, status: HelloStatus) {
        match status {
            HelloStatus::Busy => self.confirm(session),
            // An honest process says this only if the hello names it, wherever it was found.
            HelloStatus::UnknownSession => {
                return self.lose(session, "it has ended the session, whatever became of its word");
            }
            _ if !self.is_move_to_peer(session) => {}
            HelloStatus::WrongEngine => return self.fail(session, PeerFailure::Restarted),
            HelloStatus::Leaving => return self.fail(session, PeerFailure::Left),
            _ => {}
        }
        self.handle_connect_failed(key, "the peer refused another control lane");
    }

    /// Asks all paths of a session.
    pub(super) fn ask_all_paths(&mut self, session: u32) {
        let state = &mut *self.state;
        state.paths.ask_all_paths(state.now_ns, session);
    }

    /// Position of the path that the control lane of a session goes by.
    pub(super) fn stream_at(&mut self, session: u32) -> u8 {
        self.state.paths.of_mut(session).stream_at()
    }

    fn have_paths_answered_since(&mut self, session: u32, since_ns: u64) -> bool {
        self.state.paths.of_mut(session).have_answered_since(since_ns)
    }

    /// Its control lane came or went: long messages may go by it, or not.
    pub(super) fn choose_stream(&mut self, session: u32) {
        let state = &mut *self.state;
        state.paths.choose_stream(&mut state.core, session);
    }

    fn fail(&mut self, session: u32, failure: PeerFailure) {
        let state = &mut *self.state;
        state.core.fail_session(session, failure, &mut state.completions);
    }

    /// Asks idle paths now and then, so that one that fails is known before it is needed, and so is
    /// whether any is left when the kernel gives the control lane up.
    ///
    /// RR-RAIL-8.
    pub(super) fn ask_idle_paths(&mut self) {
        let now_ns = self.state.now_ns;
        let pause = self.state.config.peer_timeout / QUESTIONS_PER_TIMEOUT;
        let pause_ns = pause.as_nanos() as u64;
        for session in self.state.paths.several() {
            let state = &mut *self.state;
            let control = &mut state.controls[session as usize];
            let is_early = now_ns.saturating_sub(control.migration.questioned_ns) < pause_ns;
            if is_early || !state.paths.of_mut(session).are_several() {
                continue;
            }
            control.migration.questioned_ns = now_ns;
            state.paths.ask_quiet_paths(now_ns, session, now_ns.saturating_sub(pause_ns));
        }
    }
}
