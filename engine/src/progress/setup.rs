//! What the set-up of connections uses besides its own state; failures of connections of this side.

use super::bulk::BulkSockets;
use super::context::LaneCx;
use super::control_lanes::ControlLanes;
use super::datagram::Announced;
use super::rails::LocalRails;
use super::roles::{CLOSING, ConnectionRole};
use super::traits::{CloseMode, LaneKey};
use crate::proto::paths::NO_PATH;
use crate::proto::session::Limits;
use crate::proto::session::connection::{Connection, Phase, Step};
use crate::proto::session::rails::segments::SEGMENT_BYTES_USUAL;
use crate::types::Address;
use crate::wire::hello::{HelloStatus, MAGIC};
use crate::wire::{Hello, HelloReply, SEGMENT_BYTES_MAX, VERSION};

/// The owners of established connections, and what this engine announces.
pub(crate) struct SetupCx<'a> {
    pub(super) lanes: LaneCx<'a>,
    pub(super) controls: &'a mut ControlLanes,
    pub(super) bulk: &'a mut BulkSockets,
    pub(super) rails: &'a LocalRails,
    /// What this engine announces of its datagrams.
    pub(super) announced: Announced,
}

impl SetupCx<'_> {
    fn address(&self) -> Address {
        Address::new(self.lanes.core.shared().engine(), self.rails.locators(), 0)
    }

    /// Creates a hello without the fields of the handshake.
    pub(super) fn hello(&self, target: u64, kind: u8, ours: Limits) -> Hello {
        Hello {
            magic: MAGIC,
            version: VERSION.into(),
            kind,
            flags: ours.flags() | self.announced.flags(),
            segment_bytes_max: (SEGMENT_BYTES_MAX as u32).into(),
            source: self.lanes.core.shared().engine().into(),
            target: target.into(),
            session: ours.session.into(),
            lane: 0.into(),
            eager_limit: ours.eager_limit.into(),
            envelope_limit: ours.envelope_limit.into(),
            byte_limit: ours.byte_limit.into(),
            address: self.address().to_wire(),
            reserved_2: 0.into(),
            epoch: 0.into(),
            datagram_port: self.announced.port.into(),
            datagram_bytes: self.announced.bytes.into(),
            path: 0.into(),
            reserved: 0.into(),
            answered: 0.into(),
            nonce: [0; 16],
            tag: [0; 16],
        }
    }

    /// Creates a reply without the fields of the handshake.
    pub(super) fn reply(&self, status: HelloStatus, ours: Limits) -> HelloReply {
        HelloReply {
            magic: MAGIC,
            version: VERSION.into(),
            status: status as u8,
            flags: ours.flags() | self.announced.flags(),
            segment_bytes_max: (SEGMENT_BYTES_MAX as u32).into(),
            address: self.address().to_wire(),
            reserved: 0.into(),
            session: ours.session.into(),
            envelope_limit: ours.envelope_limit.into(),
            byte_limit: ours.byte_limit.into(),
            eager_limit: ours.eager_limit.into(),
            datagram_port: self.announced.port.into(),
            datagram_bytes: self.announced.bytes.into(),
            nonce: [0; 16],
            proof: [0; 16],
        }
    }

    /// Connects a session.
    pub(super) fn connect(&mut self, session: u32) {
        let Some(known) = self.lanes.core.session(session) else {
            debug_assert!(false, "an outstanding action keeps the slot of its session in use");
            return;
        };
        if known.connection().phase() != Phase::Connecting {
            // The session was abandoned, or established otherwise, before its turn.
            return;
        }
        let locators = *known.peer().locators();
        // It was closed when it took too long; none of it may be left.
        self.drop_attempt(session);
        let cx = &mut self.lanes;
        let ways = self.rails.ways_to(&locators, cx.paths, |rail, to| cx.driver.reach(rail, to));
        let entered = cx.core.enter(session);
        let way = entered.and_then(|(known, _)| known.connection_mut().take_way(*cx.now_ns, &ways));
        let Some(way) = way else { return };
        let (remote, rail) = (way.remote, way.rail);
        let segment_bytes = self.first_segment_limit(rail, remote.ip());
        let cx = &mut self.lanes;
        match cx.driver.connect(remote, rail, segment_bytes) {
            Ok(key) => {
                let is_first = (remote, rail) == (locators.first(), 0);
                let at = if is_first { 0 } else { NO_PATH };
                self.controls.begin_attempt(session, key, at);
                cx.roles.insert(key, ConnectionRole::Connecting { session, remote });
            }
            Err(error) if ways.len() > 1 => self.attempt_failed(session, &error.to_string()),
            Err(error) => self.attempt_failed(session, &format!("{remote}: {error}")),
        }
    }

    /// Returns the longest segment of the first connection to a peer. Without datagrams it cannot
    /// be replaced, so its segments are of the usual length from the start.
    fn first_segment_limit(&self, rail: u8, remote: std::net::IpAddr) -> Option<u16> {
        let limits = self.lanes.core.shared().rails().segment_limits();
        let known = limits.limit((rail, remote), None, *self.lanes.now_ns);
        let is_replaceable = self.announced.port != 0;
        let is_here = self.rails.has_address(remote);
        known.or((!is_replaceable && !is_here).then_some(SEGMENT_BYTES_USUAL))
    }

    /// Opens another control lane of a session, on the path at a position.
    pub(super) fn open_other_lane(&mut self, session: u32, at: u8) {
        let known = self.lanes.core.session(session);
        let way = known.and_then(|it| it.rails().way(at, it.peer().locators().first()));
        let Some((remote, rail)) = way else {
            return self.attempt_to_move_failed(session, "its path was removed");
        };
        let cx = &mut self.lanes;
        let remote = cx.paths.scoped(rail, remote);
        let segment_bytes = cx.segment_limit(session, at);
        match cx.driver.connect(remote, rail, segment_bytes) {
            Ok(key) => {
                self.controls.begin_move(session, key);
                cx.roles.insert(key, ConnectionRole::MoveConnecting { session, remote });
            }
            Err(error) => self.attempt_to_move_failed(session, &error.to_string()),
        }
    }

    /// Returns whether a refusal of another control lane may come from the peer's host: a rail
    /// without carrier reaches no host, and an address that this host has, too, may be this one.
    pub(super) fn is_refusal_of_peer(&mut self, session: u32) -> bool {
        self.lanes.core.session(session).is_some_and(|known| {
            let at = known.control_lane().attempt_at();
            let way = at.and_then(|at| known.rails().way(at, known.peer().locators().first()));
            way.is_some_and(|(remote, rail)| {
                !self.lanes.paths.is_rail_down(rail)
                    && !self.rails.is_taken_for(remote.ip(), known.peer().locators())
            })
        })
    }

    /// Returns the position of the path that a new control lane of a session is on; of one that the
    /// peer opened, if that is the first path.
    pub(super) fn position_of(&mut self, session: u32, key: LaneKey) -> u8 {
        let Some(known) = self.lanes.core.session(session) else {
            debug_assert!(false, "a session that begins is known");
            return 0;
        };
        if known.connection().is_initiator() {
            return self.controls.attempt_at(session);
        }
        let ends = self.lanes.driver.addresses(key);
        let is_first =
            ends.is_none_or(|ends| self.rails.is_first_path(known.peer().locators(), ends));
        if is_first { 0 } else { NO_PATH }
    }

    // ---- Failures ----

    /// Handles a connection of this side that failed before it was part of a session.
    pub(super) fn handle_connect_failed(&mut self, key: LaneKey, cause: &str) {
        let cx = &mut self.lanes;
        let role = cx.roles.get_mut(key).map(|role| std::mem::replace(role, CLOSING));
        let role = debug_assert_some!(role, "a connection has a role until it is closed");
        let is_unconnected = matches!(role, Some(ConnectionRole::LaneConnecting { .. }));
        cx.driver.close(key, CloseMode::Reset);
        match role {
            Some(
                ConnectionRole::Connecting { session, .. }
                | ConnectionRole::AwaitReply { session, .. },
            ) => {
                self.controls.take_attempt(session);
                self.attempt_failed(session, cause);
            }
            Some(
                ConnectionRole::LaneConnecting { lane, .. }
                | ConnectionRole::LaneAwaitReply { lane, .. },
            ) => {
                self.bulk.set_key(cx.core, lane, None);
                if is_unconnected {
                    cx.core.with_lane(lane, |it, cx| {
                        let listener = it.peer().locators().first();
                        it.rails().doubt_segments_lost(cx, lane, listener);
                    });
                }
                cx.lane_lost(lane, true, cause);
            }
            // Another attempt follows.
            Some(
                ConnectionRole::MoveConnecting { session, .. }
                | ConnectionRole::MoveAwaitReply { session, .. },
            ) if self.controls.moving(session) == Some(key) => {
                self.attempt_to_move_failed(session, cause);
            }
            _ => {}
        }
    }

    fn attempt_failed(&mut self, session: u32, cause: &str) {
        self.end_attempt(session, |connection, now_ns| {
            connection.handle_attempt_failed(now_ns, cause)
        });
    }

    /// Lets the connection state of a session decide what follows the end of an attempt.
    pub(super) fn end_attempt(
        &mut self,
        session: u32,
        decide: impl FnOnce(&mut Connection, u64) -> Step,
    ) {
        let cx = &mut self.lanes;
        let entered = cx.core.enter(session);
        let entered = debug_assert_some!(entered, "attempts end with their session");
        let step = entered.map(|(known, _)| decide(known.connection_mut(), *cx.now_ns));
        cx.core.apply(session, step.unwrap_or(Step::Nothing), cx.completions);
    }

    fn attempt_to_move_failed(&mut self, session: u32, cause: &str) {
        tracing::debug!(session, "control connection not migrated: {cause}");
        self.controls.take_moving(session);
        if let Some((known, _)) = self.lanes.core.enter(session) {
            known.control_lane_mut().handle_attempt_failed(*self.lanes.now_ns);
        }
    }

    /// Ends the attempt to connect a session, if there is one.
    pub(super) fn drop_attempt(&mut self, session: u32) {
        if let Some(key) = self.controls.take_attempt(session) {
            self.lanes.close(key, CloseMode::Graceful);
        }
    }
}
