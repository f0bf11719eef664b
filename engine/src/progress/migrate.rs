//! The TCP lane of a session moves to another rail when its own fails.
//!
//! In a session with several paths that connection is not what short messages depend on, but it
//! tells of the peer's end and carries long ones, and all of them while no path is fit. When its
//! path is down, or another one carries the short messages for good, or it is gone, the side that
//! opened the session opens another one on a path that is healthy, which joins the session as bulk
//! lanes do and takes the place of the old one. What that had swallowed goes again.

use std::net::{IpAddr, SocketAddr};

use rand::RngExt;

use super::control::ControlLane;
use super::engine::Engine;
use super::lanes::{CloseMode, Interest, LaneKey};
use super::roles::{CLOSING, PartialMessage, Role};
use crate::proto::handshake::{Initiator, answer_join};
use crate::proto::late::AtRest;
use crate::proto::paths::SessionPath;
use crate::proto::session::{Limits, NOTHING};
use crate::wire::hello::{HelloStatus, KIND_MOVE};
use crate::wire::{Hello, HelloReply};

/// Pause after an attempt, in nanoseconds. Doubles with some that fail, unless the peer is
/// suspect.
const PAUSE_NS: u64 = 90_000_000;
/// Time for TCP to connect before another path is tried, in nanoseconds. Doubles with each attempt
/// that fails, for there may be long ways.
const CONNECT_NS: u64 = 250_000_000;

/// How long another path has carried segments before the control lane follows, for the sake of long
/// ones, in nanoseconds: longer than a path is tried that turns out to be worse.
const SETTLED_NS: u64 = 50_000_000;
/// How long after an attempt that failed it tries to follow again, in nanoseconds.
const FOLLOW_AGAIN_NS: u64 = 30_000_000_000;

/// A control lane fails, or is to follow the others to another path.
#[derive(Debug, Default)]
pub(crate) struct Migration {
    /// Another control lane that is being opened, and its path.
    pub(super) moving: Option<(LaneKey, u8)>,
    /// When the last attempt of that began or failed; 0: there was none.
    pub(super) moving_since_ns: u64,
    /// Attempts of that in a row that failed, and the path of the last one.
    pub(super) moves_failed: u32,
    pub(super) moved_by: u8,
    /// Since when the peer is suspect: its control lane was reset.
    pub(super) suspected_ns: Option<u64>,
    /// When the peer's host refused a connection, as it does when the process is gone; others on
    /// the way may, too.
    pub(super) refused_ns: Option<u64>,
    /// When the peer was last asked for the sake of hearing from it.
    pub(super) questioned_ns: u64,
    /// Since when it has had no control lane, where it had one.
    pub(super) control_lane_lost_ns: u64,
}

impl AtRest for Migration {
    const AT_REST: &'static Self = &Self {
        moving: None,
        moving_since_ns: 0,
        moves_failed: 0,
        moved_by: 0,
        suspected_ns: None,
        refused_ns: None,
        questioned_ns: 0,
        control_lane_lost_ns: 0,
    };
}

impl ControlLane {
    /// Time that the attempt under way has for TCP to connect, in nanoseconds.
    pub(super) fn move_connect_limit_ns(&self) -> u64 {
        CONNECT_NS << self.migration.moves_failed.min(10)
    }
}

impl Engine {
    /// Sessions whose control lane is gone, or on a path that is down or suspect, or does not
    /// carry the other segments any more, get another one.
    ///
    /// RR-RAIL-7.
    pub(super) fn move_control_lanes(&mut self) {
        for session in self.state.paths.several() {
            if self.control(session).lane.is_none() {
                self.ask_without_lane(session);
            }
            self.move_control_lane(session);
        }
    }

    /// The control lane of long messages follows to another path as soon as it should: when its own
    /// is suspect, or does not carry the others any more.
    ///
    /// RR-RAIL-7.
    pub(super) fn move_stream(&mut self, session: u32) {
        let Some(paths) = self.state.paths.of(session) else { return };
        let is_elsewhere = paths.carrier_at() != Some(paths.stream_at());
        if paths.are_several() && paths.has_streamed() && is_elsewhere {
            self.move_control_lane(session);
        }
    }

    /// The same of one session, if none is under way and the last one is not of just now.
    ///
    /// RR-RAIL-7, RR-RAIL-8.
    pub(super) fn move_control_lane(&mut self, session: u32) {
        let now_ns = self.state.now_ns;
        let Some(known) = self.state.core.session(session) else { return };
        let (is_initiator, is_connected) = (known.connection.is_initiator(), known.is_connected());
        let is_silent = self.state.paths.of_mut(session).silent_since_ns().is_some();
        let control = self.control(session);
        let since_ns = control.migration.moving_since_ns;
        let doublings = if control.migration.suspected_ns.is_some() {
            0
        } else {
            control.migration.moves_failed.min(3)
        };
        let is_late = since_ns == 0 || now_ns.saturating_sub(since_ns) > PAUSE_NS << doublings;
        // The other side asks whether the peer is there, and waits for what that one opens.
        let is_asking = control.lane.is_none() && (control.is_peer_suspect() || is_silent);
        let may_move = is_connected && (is_initiator || is_asking);
        if !may_move || !is_late || control.migration.moving.is_some() {
            return;
        }
        let Some(at) = self.path_to_move_by(session, is_initiator) else { return };
        let Some((remote, rail)) = self.state.core.way_of_path(session, at) else { return };
        let control = self.control(session);
        (control.migration.moving_since_ns, control.migration.moved_by) = (now_ns, at);
        let remote = self.state.paths.scoped(rail, remote);
        match self.driver.connect(remote, rail) {
            Ok(key) => {
                self.control(session).migration.moving = Some((key, at));
                self.state.roles.insert(key, Role::MoveConnecting { session, remote });
            }
            Err(error) => {
                self.control(session).migration.moves_failed += 1;
                tracing::debug!(session, "no control lane on another rail: {error}");
            }
        }
    }

    /// Position of the path that the next control lane is to go by, if one is needed: that of the
    /// segments in the place of one that is down, or that long messages leave. Without a lane each
    /// has its turn, those that are healthy first, and that of the last lane or attempt last.
    ///
    /// RR-RAIL-8.
    fn path_to_move_by(&self, session: u32, is_initiator: bool) -> Option<u8> {
        let now_ns = self.state.now_ns;
        let state = &*self.state;
        let control = state.controls.get(session as usize)?;
        let paths = state.paths.of(session)?;
        let (at, before) = (paths.stream_at(), control.migration.moved_by);
        if control.lane.is_some() {
            let carrier = paths.carrier_at().filter(|&carrier| carrier != at);
            let has_streamed = paths.has_streamed();
            let is_in_doubt = paths.is_down(at) || (has_streamed && paths.is_suspect(at));
            let tried_ns = now_ns.saturating_sub(control.migration.moving_since_ns);
            // Where it did not get through it is not needed either.
            let may_follow = control.migration.moves_failed == 0 || tried_ns > FOLLOW_AGAIN_NS;
            let is_settled = has_streamed && paths.are_settled(now_ns, SETTLED_NS);
            let is_leaving = state.core.session(session).is_none_or(|it| it.is_leaving);
            let follows = is_settled && may_follow && !is_leaving;
            return carrier.filter(|_| is_in_doubt || follows);
        }
        // Behind a translation of addresses the peer's own is anybody's, and one that it was never
        // heard at may be.
        let heard = |path: &SessionPath| path.packets().is_answered().then(|| path.ip());
        let paths: Vec<_> =
            paths.all().map(|path| (path.is_active(), path.position(), heard(path))).collect();
        let is_there = |&&(_, at, from): &&(bool, u8, Option<IpAddr>)| {
            let way = state.core.way_of_path(session, at);
            is_initiator || way.is_some_and(|(to, _)| Some(to.ip()) == from)
        };
        let turn = |at: u8| at.wrapping_sub(before).wrapping_sub(1);
        let next = paths.iter().filter(is_there).min_by_key(|path| (!path.0, turn(path.1)));
        next.map(|&(_, at, _)| at)
    }

    /// TCP is connected on the other rail: say what for.
    pub(super) fn handle_move_connected(&mut self, key: LaneKey, session: u32, remote: SocketAddr) {
        let nonce = self.state.random.random();
        let moving = self.control(session).migration.moving.filter(|&(moving, _)| moving == key);
        let Some((_, at)) = moving else {
            return self.handle_connect_failed(key, "nobody waits for it any more");
        };
        let Some((number, path)) = self.state.core.number_of_move(session, at) else {
            return self.handle_connect_failed(key, "its session is over");
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
            self.watch(key, Interest::Readable);
        }
    }

    /// An attempt to move failed. Another one follows.
    pub(super) fn handle_move_failed(&mut self, key: LaneKey, session: u32, cause: &str) {
        tracing::debug!(session, "no control lane on another rail: {cause}");
        let now_ns = self.state.now_ns;
        let control = self.control(session);
        if control.migration.moving.is_none_or(|(moving, _)| moving != key) {
            return;
        }
        (control.migration.moving, control.migration.moving_since_ns) = (None, now_ns);
        control.migration.moves_failed += 1;
    }

    /// The peer opened another control lane.
    ///
    /// RR-RAIL-7.
    pub(super) fn handle_move(&mut self, key: LaneKey, hello: &Hello) -> Result<(), HelloStatus> {
        let state = &mut *self.state;
        let moved = if hello.target.get() == state.core.engine() {
            state.core.handle_move_hello(hello)
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
        let known = state.core.session(session);
        let Some(keys) = known.and_then(|known| known.keys.as_ref()) else {
            return self.handle_connect_failed(key, "its session is over");
        };
        let is_initiator = known.is_some_and(|known| known.connection.is_initiator());
        let at = state.controls.get(session as usize).and_then(|control| control.migration.moving);
        match (initiator.handle_join_reply(&state.keys, keys, reply), at) {
            (Ok(HelloStatus::Accepted), Some((_, at))) if is_initiator => {
                self.control_moved(session, key, at);
            }
            (Ok(status), Some(_)) => self.handle_move_refused(key, session, status),
            (Ok(_), None) => self.handle_connect_failed(key, "nobody waits for it any more"),
            (Err(_), _) => self.handle_connect_failed(key, "the reply to a move is not the peer's"),
        }
    }

    /// Another connection is the control lane of a session from now on.
    fn control_moved(&mut self, session: u32, key: LaneKey, at: u8) {
        tracing::info!(session, path = at, "its control lane is on another rail");
        self.drop_control_lane(session);
        self.set_control_lane_lost(session, false);
        if let Some((asking, _)) =
            self.control(session).migration.moving.filter(|&(other, _)| other != key)
        {
            // The answer has come by the peer's own connection.
            self.state.roles.insert(asking, CLOSING);
            self.driver.close(asking, CloseMode::Reset);
        }
        let now_ns = self.state.now_ns;
        self.state.paths.set_stream(session, at);
        let control = self.control(session);
        (control.lane, control.migration.moving) = (Some(key), None);
        (control.migration.suspected_ns, control.migration.refused_ns) = (None, None);
        (control.migration.moves_failed, control.migration.moving_since_ns) = (0, now_ns);
        self.choose_stream(session);
        self.state.roles.insert(key, Role::Control { session });
        self.poll_directly(session);
    }
}
