//! Replaces a session's control connection by another one, on request of
//! [`crate::proto::control_lane`] or of the peer.

use std::net::SocketAddr;

use rand::RngExt;

use super::engine::Engine;
use super::roles::{CLOSING, PartialMessage, Role};
use super::traits::{CloseMode, Interest, LaneKey};
use crate::proto::control_lane::LaneEvent;
use crate::proto::handshake::{Initiator, answer_join};
use crate::proto::paths::Paths;
use crate::proto::session::{Limits, NOTHING};
use crate::wire::hello::{HelloStatus, KIND_MOVE};
use crate::wire::{Hello, HelloReply};

impl Engine {
    /// Moves the control lane of long messages to another path as soon as it should.
    ///
    /// RR-RAIL-7.
    pub(super) fn move_stream(&mut self, session: u32) {
        if self.state.paths.of(session).is_some_and(Paths::is_stream_elsewhere) {
            self.handle_lane_event(session, LaneEvent::MoveDue);
        }
    }

    /// Opens another control lane, on the path at a position.
    pub(super) fn open_other_lane(&mut self, session: u32, at: u8) {
        let Some((remote, rail)) =
            self.state.core.session(session).and_then(|it| it.way_of_path(at))
        else {
            return self.attempt_to_move_failed(session, "its path was removed");
        };
        let remote = self.state.paths.scoped(rail, remote);
        let segment_bytes = self.segment_limit(session, at);
        match self.driver.connect(remote, rail, segment_bytes) {
            Ok(key) => {
                self.control(session).moving = Some(key);
                self.state.roles.insert(key, Role::MoveConnecting { session, remote });
            }
            Err(error) => self.attempt_to_move_failed(session, &error.to_string()),
        }
    }

    fn attempt_to_move_failed(&mut self, session: u32, cause: &str) {
        tracing::debug!(session, "control connection not migrated: {cause}");
        let now_ns = self.state.now_ns;
        self.control(session).moving = None;
        if let Some(monitor) = self.state.core.lane_monitor(session) {
            monitor.handle_attempt_failed(now_ns);
        }
    }

    /// Sends the hello on an established TCP connection of another rail.
    pub(super) fn handle_move_connected(&mut self, key: LaneKey, session: u32, remote: SocketAddr) {
        let nonce = self.state.random.random();
        let is_awaited = self.control(session).moving == Some(key);
        let monitor = self.state.core.lane_monitor(session).filter(|_| is_awaited);
        let Some(at) = monitor.and_then(|monitor| monitor.attempt_at()) else {
            return self.handle_connect_failed(key, "it is not needed any more");
        };
        let Some((number, path)) =
            self.state.core.enter(session).and_then(|(it, _)| it.number_of_move(at))
        else {
            return self.handle_connect_failed(key, "its session has ended");
        };
        let Some(known) = self.state.core.session(session) else { return };
        let Some(keys) = known.keys.as_ref() else { return };
        let ours = Limits { session: known.id, ..NOTHING };
        let mut hello = self.hello(known.engine, KIND_MOVE, ours);
        (hello.lane, hello.path) = (number.into(), path.into());
        let initiator = Box::new(Initiator::join(keys, hello, nonce, remote));
        if self.say_hello(key, initiator.hello()) {
            let role = Role::MoveAwaitReply { session, initiator, partial: PartialMessage::new() };
            self.state.roles.insert(key, role);
            if let Some(monitor) = self.state.core.lane_monitor(session) {
                monitor.handle_attempt_connected();
            }
            self.watch(key, Interest::Readable);
        }
    }

    /// Handles a failed attempt to move. Another one follows.
    pub(super) fn handle_move_failed(&mut self, key: LaneKey, session: u32, cause: &str) {
        if self.control(session).moving == Some(key) {
            self.attempt_to_move_failed(session, cause);
        }
    }

    /// Handles another control lane opened by the peer.
    ///
    /// RR-RAIL-7.
    pub(super) fn handle_move(&mut self, key: LaneKey, hello: &Hello) -> Result<(), HelloStatus> {
        let state = &mut *self.state;
        let moved = if hello.target.get() == state.core.engine() {
            state.core.enter_joined(hello).and_then(|(it, cx)| it.handle_move_hello(&cx, hello))
        } else {
            Err(HelloStatus::WrongEngine)
        };
        let reply = self.reply(moved.err().unwrap_or(HelloStatus::Accepted), NOTHING);
        let nonce = self.state.random.random();
        let state = &*self.state;
        let depends_on_session = matches!(moved, Ok(_) | Err(HelloStatus::Busy));
        let session = state.core.keys_to_join(hello).filter(|_| depends_on_session);
        let reply = answer_join(&state.keys, session, hello, reply, nonce);
        let is_sent = self.send_reply(key, &reply);
        let (session, at) = moved?;
        self.take_unauthenticated(key);
        if is_sent {
            self.control_moved(session, key, at);
        } else {
            self.driver.close(key, CloseMode::Reset);
        }
        Ok(())
    }

    /// Handles the reply to a move.
    pub(super) fn handle_move_reply(
        &mut self,
        key: LaneKey,
        session: u32,
        initiator: &Initiator,
        reply: &HelloReply,
    ) {
        let state = &*self.state;
        let known = state.core.session(session);
        let Some(keys) = known.and_then(|known| known.keys.as_ref()) else {
            return self.handle_connect_failed(key, "its session has ended");
        };
        let status = initiator.handle_join_reply(&state.keys, keys, reply);
        let is_awaited = self.control(session).moving == Some(key);
        match status {
            Ok(status) if is_awaited => self.handle_lane_event(session, LaneEvent::Reply(status)),
            Ok(_) => self.handle_connect_failed(key, "it is not needed any more"),
            Err(_) => self.handle_connect_failed(key, "the reply to a move is not authentic"),
        }
    }

    /// Makes another connection the control lane of a session.
    pub(super) fn control_moved(&mut self, session: u32, key: LaneKey, at: u8) {
        tracing::info!(session, path = at, "another connection is its control lane");
        self.drop_control_lane(session);
        let control = self.control(session);
        control.lane = Some(key);
        if let Some(asking) = control.moving.take().filter(|&other| other != key) {
            // The reply has arrived on the peer's own connection.
            self.state.roles.insert(asking, CLOSING);
            self.driver.close(asking, CloseMode::Reset);
        }
        let state = &mut *self.state;
        state.paths.set_stream(session, at);
        if let Some(monitor) = state.core.lane_monitor(session) {
            monitor.handle_moved(state.now_ns);
        }
        self.choose_stream(session);
        self.state.roles.insert(key, Role::Control { session });
        self.poll_directly(session);
    }
}
