//! The TCP lane of a session moves to another rail when its own fails.
//!
//! In a session with several paths that connection is not what messages depend on, but it tells of
//! the peer's end and carries contents while no path is fit. When its path is down, the side that
//! opened the session opens another one on the path that carries the contents, which joins the
//! session as bulk lanes do and takes the place of the old one. What that had swallowed goes again.

use std::io;

use rand::RngExt;

use super::datagram::scoped;
use super::engine::Engine;
use super::lanes::{CloseMode, Interest, LaneKey};
use super::roles::{CLOSING, Greeting, Role};
use crate::proto::handshake::{Initiator, answer_join};
use crate::proto::session::{Limits, NOTHING};
use crate::wire::hello::{HelloStatus, KIND_MOVE};
use crate::wire::{Hello, HelloReply};

/// Pause after an attempt that failed, in nanoseconds.
const PAUSE_NS: u64 = 200_000_000;
/// Time between two questions to a peer that no TCP lane would tell the end of, in nanoseconds.
const QUESTION_NS: u64 = 1_000_000_000;

/// Whether an error is one of the network, not of the peer.
fn is_of_network(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::TimedOut
            | io::ErrorKind::HostUnreachable
            | io::ErrorKind::NetworkUnreachable
            | io::ErrorKind::NetworkDown
    )
}

impl Engine {
    /// The control lane of a session failed: the session with it, unless another path answers and
    /// the failure is that of a rail.
    ///
    /// RR-RAIL-7.
    pub(super) fn handle_control_failed(&mut self, session: u32, error: &io::Error) {
        let control = self.control(session);
        // The peer ends the old one when it has accepted another.
        let may_go_on = is_of_network(error) || control.moving.is_some();
        if may_go_on && control.has_active_path() {
            self.drop_control_lane(session);
        } else {
            self.lose(session, &error.to_string());
        }
    }

    /// A session goes on without its control lane, until it has another one.
    pub(super) fn drop_control_lane(&mut self, session: u32) {
        self.state.hot.retain(|&hot| hot != session);
        let control = self.control(session);
        (control.is_hot, control.is_watched, control.is_blocked) = (false, false, false);
        control.is_owed_answer = false;
        control.partial.clear();
        control.unsent.clear();
        if let Some(lane) = control.lane.take() {
            self.state.roles.insert(lane, CLOSING);
            self.driver.close(lane, CloseMode::Reset);
        }
        self.state.core.resend_all(session);
    }

    /// Sessions whose control lane is gone, or on a path that is down, get another one.
    ///
    /// RR-RAIL-7.
    pub(super) fn move_control_lanes(&mut self) {
        let now_ns = self.state.now_ns;
        for session in 0..self.state.controls.len() as u32 {
            let control = self.control(session);
            if control.standby.is_empty() {
                continue;
            }
            if control.lane.is_none() {
                self.ask_without_lane(session);
            }
            let control = self.control(session);
            let is_needed = control.lane.is_none() || control.is_path_down(control.lane_at);
            let is_other = |&at: &u8| control.lane.is_none() || at != control.lane_at;
            let carrier = control.carrier().filter(|at| is_needed && is_other(at));
            let is_late = now_ns.saturating_sub(control.moving_since_ns) > PAUSE_NS;
            let Some(at) = carrier.filter(|_| is_late && control.moving.is_none()) else {
                continue;
            };
            let Some(known) = self.state.core.sessions.at(session as usize) else { continue };
            if !known.connection.is_initiator() || !known.is_connected() {
                continue;
            }
            let Some((remote, rail)) = self.state.core.way_of_path(session, at) else { continue };
            self.control(session).moving_since_ns = now_ns;
            let remote = scoped(&self.state.rails, rail, remote);
            match self.driver.connect(remote, rail) {
                Ok(key) => {
                    self.control(session).moving = Some((key, at));
                    self.state.roles.insert(key, Role::MoveConnecting { session });
                }
                Err(error) => tracing::debug!(session, "no control lane on another rail: {error}"),
            }
        }
    }

    /// Nothing but answers to questions shows that the peer is there.
    fn ask_without_lane(&mut self, session: u32) {
        let now_ns = self.state.now_ns;
        let limit = self.state.config.peer_timeout;
        let control = self.control(session);
        let silent_ns = control.silent_since_ns.map_or(0, |since| now_ns.saturating_sub(since));
        if u128::from(silent_ns) > limit.as_nanos() {
            let cause = format!("none of its rails has answered for {} ms", limit.as_millis());
            self.lose(session, &cause);
        } else if now_ns.saturating_sub(control.questioned_ns) > QUESTION_NS {
            control.questioned_ns = now_ns;
            self.state.ask_all_paths(session);
        }
    }

    /// TCP is connected on the other rail: say what for.
    pub(super) fn handle_move_connected(&mut self, key: LaneKey, session: u32) {
        let nonce = self.state.random.random();
        let at = self.control(session).moving.map_or(0, |(_, at)| at);
        let Some((number, path)) = self.state.core.number_of_move(session, at) else {
            return self.handle_connect_failed(key, "its session is over");
        };
        let Some(known) = self.state.core.sessions.at(session as usize) else { return };
        let Some(keys) = known.keys.as_ref() else { return };
        let ours = Limits { session: known.id, ..NOTHING };
        let mut hello = self.hello(known.engine, KIND_MOVE, ours);
        (hello.lane, hello.path) = (number.into(), path.into());
        let initiator = Box::new(Initiator::join(keys, hello, nonce));
        if self.say_hello(key, initiator.hello()) {
            let role = Role::MoveAwaitReply { session, initiator, greeting: Greeting::new() };
            self.state.roles.insert(key, role);
            self.watch(key, Interest::Readable);
        }
    }

    /// A connection failed. Where nothing but a new one would tell of the peer's end, a refusal
    /// does: its host answers, and nobody listens there any more.
    pub(super) fn handle_refused_move(&mut self, key: LaneKey, error: &io::Error) {
        if let Some(&mut Role::MoveConnecting { session }) = self.state.roles.get_mut(key)
            && error.kind() == io::ErrorKind::ConnectionRefused
            && self.control(session).lane.is_none()
            && !self.has_answered_move(session)
        {
            self.lose(session, "its host says that its process is gone");
        }
    }

    /// Whether the peer has answered anything since the attempt to move began.
    fn has_answered_move(&mut self, session: u32) -> bool {
        let control = self.control(session);
        control.has_answered_since(control.moving_since_ns)
    }

    /// An attempt to move failed. Another one follows.
    pub(super) fn handle_move_failed(&mut self, session: u32, cause: &str) {
        tracing::debug!(session, "no control lane on another rail: {cause}");
        let now_ns = self.state.now_ns;
        let control = self.control(session);
        (control.moving, control.moving_since_ns) = (None, now_ns);
    }

    /// The peer opened another control lane.
    ///
    /// RR-RAIL-7.
    pub(super) fn handle_move(&mut self, key: LaneKey, hello: &Hello) -> Result<(), HelloStatus> {
        let state = &mut *self.state;
        let moved = if hello.target.get() == state.core.engine {
            state.core.handle_move_hello(hello)
        } else {
            Err(HelloStatus::WrongEngine)
        };
        let reply = self.reply(moved.err().unwrap_or(HelloStatus::Accepted), NOTHING);
        let nonce = self.state.random.random();
        let state = &*self.state;
        let session = state.core.keys_to_join(hello).filter(|_| moved.is_ok());
        let reply = answer_join(&state.keys, session, hello, reply, nonce);
        let is_sent = self.send_reply(key, &reply);
        let (session, at) = moved?;
        self.take_stranger(key);
        if is_sent {
            self.control_moved(session, key, at);
        } else {
            self.driver.close(key, CloseMode::Reset);
        }
        Ok(())
    }

    /// The reply to a move.
    pub(super) fn handle_move_reply(
        &mut self,
        key: LaneKey,
        session: u32,
        initiator: &Initiator,
        reply: &HelloReply,
    ) {
        let state = &*self.state;
        let known = state.core.sessions.at(session as usize);
        let Some(keys) = known.and_then(|known| known.keys.as_ref()) else {
            return self.handle_connect_failed(key, "its session is over");
        };
        let at = state.controls.get(session as usize).and_then(|control| control.moving);
        match (initiator.handle_join_reply(&state.keys, keys, reply), at) {
            (Ok(HelloStatus::Accepted), Some((_, at))) => self.control_moved(session, key, at),
            (Ok(_), _) => self.handle_connect_failed(key, "the peer refused another control lane"),
            (Err(_), _) => self.handle_connect_failed(key, "the reply to a move is not the peer's"),
        }
    }

    /// Another connection is the control lane of a session from now on.
    fn control_moved(&mut self, session: u32, key: LaneKey, at: u8) {
        tracing::info!(session, path = at, "its control lane is on another rail");
        self.drop_control_lane(session);
        let control = self.control(session);
        (control.lane, control.lane_at, control.moving) = (Some(key), at, None);
        self.state.roles.insert(key, Role::Control { session });
        self.heat(session);
    }
}
