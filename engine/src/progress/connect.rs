//! Connections: those of this side up to their hello, their failures, their end.

use std::io;
use std::net::{IpAddr, SocketAddr};

use rand::RngExt;
use zerocopy::IntoBytes;

use super::control::ControlLane;
use super::engine::Engine;
use super::roles::{CLOSING, PartialMessage, Role};
use super::traits::{CloseMode, Interest, LaneKey};
use crate::proto::connection::{Phase, Way};
use crate::proto::control_lane::LaneEvent;
use crate::proto::failure::PeerFailure;
use crate::proto::handshake::Initiator;
use crate::proto::paths::NO_PATH;
use crate::proto::rails::pairing::Reach;
use crate::proto::session::{Limits, NOTHING};
use crate::proto::table::Id;
use crate::types::{Address, Event, Peer, RAILS_MAX};
use crate::wire::hello::{HELLO_BYTES, KIND_BULK, KIND_CONTROL, MAGIC};
use crate::wire::locators::Locators;
use crate::wire::rail::ROLE_BACKUP;
use crate::wire::{Hello, SEGMENT_BYTES_MAX, VERSION};

/// Maximum number of ways to a peer that are tried: all pairs of four rails.
const WAYS_MAX: usize = 16;

impl Engine {
    /// Returns the address of a peer.
    pub(crate) fn address_of(&self, peer: Peer) -> Option<Address> {
        let core = &self.state.core;
        core.peers().get(peer.0)?;
        let name = core.name_of(peer.0.index() as u32)?;
        Some(Address::new(name.engine, name.locators, name.endpoint))
    }

    // ---- Our side connects ----

    pub(super) fn connect_control(&mut self, session: u32) {
        let Some(known) = self.state.core.session(session) else { return };
        if known.connection.phase() != Phase::Connecting {
            // The session was abandoned, or established otherwise, before its turn.
            return;
        }
        let locators = known.locators;
        // It was closed when it took too long; none of it may be left.
        self.drop_attempt(session);
        let ways = self.ways_to(&locators);
        let state = &mut *self.state;
        let Some(connection) = state.core.connection(session) else { return };
        let Some(way) = connection.take_way(state.now_ns, &ways) else { return };
        let (remote, rail) = (way.remote, way.rail);
        let segment_bytes = self.first_segment_limit(rail, remote.ip());
        match self.driver.connect(remote, rail, segment_bytes) {
            Ok(lane) => {
                let is_first = (remote, rail) == (locators.first(), 0);
                let control = self.control(session);
                control.attempt_at = if is_first { 0 } else { NO_PATH };
                control.attempt = Some(lane);
                self.state.roles.insert(lane, Role::Connecting { session, remote });
            }
            Err(error) if ways.len() > 1 => self.attempt_failed(session, &error.to_string()),
            Err(error) => self.attempt_failed(session, &format!("{remote}: {error}")),
        }
    }

    /// Returns the ways to a peer, the first address from the first rail first. Then each takes the
    /// next rail and the next address, those on one network first. Backups are last. Ways without a
    /// route or carrier are omitted while there is another.
    fn ways_to(&mut self, locators: &Locators) -> Vec<Way> {
        let rails = self.state.rails.len().clamp(1, RAILS_MAX);
        let announced = self.state.core.rails();
        let mut ways = Vec::new();
        for (at, remote) in locators.iter().enumerate() {
            for rail in 0..rails {
                let (to, is_first) = (remote.ip(), at == 0 && rail == 0);
                let leaves = self.state.rails.get(rail).map(|rail| rail.address);
                // A link-local address means another host on each network.
                let is_local = matches!(to, IpAddr::V6(to) if to.is_unicast_link_local());
                let is_odd = leaves.is_some_and(|leaves| leaves.is_ipv4() != to.is_ipv4());
                if !is_first && (is_odd || (is_local && rail != 0)) {
                    continue;
                }
                let reach = self.driver.reach(rail as u8, to);
                let is_backup = announced.get(rail).is_some_and(|rail| rail.role == ROLE_BACKUP);
                let apart = (rail + rails - at % rails) % rails;
                let rank = (!is_first, is_backup, reach != Reach::Direct, apart, at);
                ways.push((rank, remote, rail as u8, reach));
            }
        }
        let is_fit =
            |rail: u8, reach| !self.state.paths.is_rail_down(rail) && reach != Reach::Unreachable;
        ways.sort_by_key(|&(rank, ..)| rank);
        if ways.iter().any(|&(_, _, rail, reach)| is_fit(rail, reach)) {
            ways.retain(|&(_, _, rail, reach)| is_fit(rail, reach));
        }
        ways.truncate(WAYS_MAX);
        let is_on_this_host = self.is_on_this_host(locators);
        let way = |(_, remote, rail, _): (_, SocketAddr, u8, _)| {
            let is_own = self.has_address(remote.ip());
            let shows_successor = remote == locators.first() && (!is_own || is_on_this_host);
            Way { remote, rail, is_own: is_own && !is_on_this_host, shows_successor }
        };
        ways.into_iter().map(way).collect()
    }

    /// Handles a failed connection. If it was for another control lane a refusal may end the
    /// session.
    pub(super) fn note_connect_failure(&mut self, key: LaneKey, error: &io::Error) {
        let role = self.state.roles.get_mut(key);
        let Some(&mut Role::MoveConnecting { session, .. }) = role else { return };
        let is_refusal = error.kind() == io::ErrorKind::ConnectionRefused;
        if is_refusal && self.is_refusal_of_peer(session) {
            self.handle_lane_event(session, LaneEvent::Refused);
        }
    }

    /// Returns whether a refusal of another control lane may come from the peer's host: a rail
    /// without carrier reaches no host, and an address that this host has, too, may be this one.
    fn is_refusal_of_peer(&mut self, session: u32) -> bool {
        let at = self.state.core.lane_monitor(session).and_then(|monitor| monitor.attempt_at());
        let way =
            at.and_then(|at| self.state.core.session(session).and_then(|it| it.way_of_path(at)));
        let Some((remote, rail)) = way else { return false };
        let Some(known) = self.state.core.session(session) else { return false };
        let is_own = self.has_address(remote.ip()) && !self.is_on_this_host(&known.locators);
        !self.state.paths.is_rail_down(rail) && !is_own
    }

    /// Returns whether this engine listens at an address.
    fn has_address(&self, address: IpAddr) -> bool {
        self.state.locators.iter().any(|own| own.ip() == address)
    }

    /// Returns whether all addresses of a peer are this engine's, too: it is on this host.
    fn is_on_this_host(&self, locators: &Locators) -> bool {
        locators.iter().all(|locator| self.has_address(locator.ip()))
    }

    pub(super) fn connect_lane(&mut self, lane: Id) {
        let state = &mut *self.state;
        let Some((session, bulk)) = state.core.lane(lane) else { return };
        let Some((remote, rail)) = session.way_of_path(bulk.path) else { return };
        let remote = state.paths.scoped(rail, remote);
        let (passing, now_ns) = (state.paths.passing(bulk.session, bulk.path), state.now_ns);
        let limit =
            state.core.with_lane(lane, |it, cx| it.limit_segments(cx, lane, passing, now_ns));
        let segment_bytes = limit.flatten();
        match self.driver.connect(remote, rail, segment_bytes) {
            Ok(key) => {
                self.set_lane_key(lane, Some(key));
                self.state.roles.insert(key, Role::LaneConnecting { lane, remote });
            }
            Err(error) => {
                let state = &mut *self.state;
                let cause = error.to_string();
                let now_ns = state.now_ns;
                state.core.lane_lost(lane, true, &cause, now_ns, &mut state.completions);
            }
        }
    }

    pub(super) fn set_lane_key(&mut self, lane: Id, key: Option<LaneKey>) {
        if self.state.core.lanes().get(lane).is_none() {
            // Late events of a closed lane do not concern its successor.
            return;
        }
        let keys = &mut self.state.lane_keys;
        if lane.index() >= keys.len() {
            keys.resize(lane.index() + 1, None);
        }
        keys[lane.index()] = key;
    }

    fn attempt_failed(&mut self, session: u32, cause: &str) {
        let state = &mut *self.state;
        let Some(connection) = state.core.connection(session) else { return };
        let step = connection.handle_attempt_failed(state.now_ns, cause);
        state.core.apply(session, step, &mut state.completions);
    }

    /// Sends the hello on an established TCP connection.
    pub(super) fn handle_connected(&mut self, key: LaneKey) {
        match self.state.roles.get_mut(key) {
            Some(&mut Role::Connecting { session, remote }) => {
                let known = self.state.core.session(session);
                let phase = known.map_or(Phase::Closed, |known| known.connection.phase());
                if phase != Phase::Connecting {
                    // The session was abandoned, established otherwise, or took too long: the loop
                    // is about to drop the attempt, and its hello must not reserve a window.
                    return;
                }
                let id = self.next_session_id();
                let core = &mut self.state.core;
                let offered = core.with(session, |it, mut cx| it.offer_in_hello(&mut cx, id));
                let Some(ours) = offered else { return };
                let epoch = self.state.core.peers_mut().next_epoch();
                let Some(known) = self.state.core.session(session) else { return };
                let target = known.engine;
                let answered = known.connection.answered();
                let mut hello = self.hello(target, KIND_CONTROL, ours);
                (hello.epoch, hello.answered) = (epoch.into(), answered.into());
                let nonce = self.state.random.random();
                let keys = &self.state.keys;
                let initiator = Box::new(Initiator::start(keys, hello, nonce, remote));
                if !self.say_hello(key, initiator.hello()) {
                    return;
                }
                let state = &mut *self.state;
                if let Some(connection) = state.core.connection(session) {
                    connection.handle_connected(state.now_ns, epoch);
                }
                let partial = PartialMessage::new();
                let role = Role::AwaitReply { session, ours, initiator, partial };
                self.state.roles.insert(key, role);
                self.watch(key, Interest::Readable);
            }
            Some(&mut Role::LaneConnecting { lane, remote }) => {
                let Some(initiator) = self.join(lane, remote) else {
                    self.driver.close(key, CloseMode::Reset);
                    return;
                };
                if !self.say_hello(key, initiator.hello()) {
                    return;
                }
                let partial = PartialMessage::new();
                let role = Role::LaneAwaitReply { lane, initiator, partial };
                self.state.roles.insert(key, role);
                self.watch(key, Interest::Readable);
            }
            Some(&mut Role::MoveConnecting { session, remote }) => {
                self.handle_move_connected(key, session, remote);
            }
            _ => {}
        }
    }

    /// Creates the hello of a bulk lane of ours to `remote`; `None`: its session has ended.
    fn join(&mut self, lane: Id, remote: SocketAddr) -> Option<Box<Initiator>> {
        let nonce = self.state.random.random();
        let bulk = self.state.core.lanes().get(lane)?;
        let known = self.state.core.session(bulk.session)?;
        let keys = known.keys.as_ref()?;
        let ours = Limits { session: known.id, ..NOTHING };
        let mut hello = self.hello(known.engine, KIND_BULK, ours);
        hello.lane = bulk.number.into();
        hello.path = known.rails.paths.get(usize::from(bulk.path))?.number.into();
        Some(Box::new(Initiator::join(keys, hello, nonce, remote)))
    }

    fn next_session_id(&mut self) -> u64 {
        // Distinct per attempt; the seed is random. Splitmix's increment visits all numbers.
        let state = &mut self.state;
        state.next_session_id = state.next_session_id.wrapping_add(0x9e37_79b9_7f4a_7c15);
        state.next_session_id.max(1)
    }

    /// Creates a hello without the fields of the handshake.
    pub(super) fn hello(&self, target: u64, kind: u8, ours: Limits) -> Hello {
        Hello {
            magic: MAGIC,
            version: VERSION.into(),
            kind,
            flags: ours.flags() | self.state.datagrams.announced.flags(),
            segment_bytes_max: (SEGMENT_BYTES_MAX as u32).into(),
            source: self.state.core.engine().into(),
            target: target.into(),
            session: ours.session.into(),
            lane: 0.into(),
            eager_limit: ours.eager_limit.into(),
            envelope_limit: ours.envelope_limit.into(),
            byte_limit: ours.byte_limit.into(),
            address: self.state.address(0).to_wire(),
            reserved_2: 0.into(),
            epoch: 0.into(),
            datagram_port: self.state.datagrams.announced.port.into(),
            datagram_bytes: self.state.datagrams.announced.bytes.into(),
            path: 0.into(),
            reserved: 0.into(),
            answered: 0.into(),
            nonce: [0; 16],
            tag: [0; 16],
        }
    }

    pub(super) fn say_hello(&mut self, key: LaneKey, hello: &Hello) -> bool {
        match self.send_handshake(key, hello.as_bytes()) {
            Ok(HELLO_BYTES) => true,
            // A fresh socket has space for so few bytes unless it is failing.
            Ok(_) => {
                self.handle_connect_failed(key, "a new connection accepts no data");
                false
            }
            Err(error) => {
                self.handle_connect_failed(key, &error.to_string());
                false
            }
        }
    }

    /// Handles a connection of ours that failed before it was part of a session.
    pub(super) fn handle_connect_failed(&mut self, key: LaneKey, cause: &str) {
        let Some(role) = self.state.roles.get_mut(key) else { return };
        let role = std::mem::replace(role, CLOSING);
        let is_unconnected = matches!(role, Role::LaneConnecting { .. });
        self.driver.close(key, CloseMode::Reset);
        match role {
            Role::Connecting { session, .. } | Role::AwaitReply { session, .. } => {
                self.control(session).attempt = None;
                self.attempt_failed(session, cause);
            }
            Role::LaneConnecting { lane, .. } | Role::LaneAwaitReply { lane, .. } => {
                self.set_lane_key(lane, None);
                if is_unconnected {
                    self.state.core.with_lane(lane, |it, cx| it.doubt_segments_lost(cx, lane));
                }
                let state = &mut *self.state;
                let now_ns = state.now_ns;
                state.core.lane_lost(lane, true, cause, now_ns, &mut state.completions);
            }
            Role::MoveConnecting { session, .. } | Role::MoveAwaitReply { session, .. } => {
                self.handle_move_failed(key, session, cause);
            }
            _ => {}
        }
    }

    // ---- A session begins ----

    pub(super) fn control_established(&mut self, session: u32, key: LaneKey) {
        self.close_path(session);
        let control = self.control(session);
        let attempt = control.attempt;
        let attempt_at = control.attempt_at;
        let known = self.state.core.session(session);
        let is_ours = known.is_some_and(|known| known.connection.is_initiator());
        let lane_at = if is_ours { attempt_at } else { self.came_by(session, key) };
        self.state.paths.begin(session, lane_at);
        self.end_stream(session);
        *self.control(session) =
            ControlLane { lane: Some(key), attempt, is_awaited: true, ..ControlLane::default() };
        self.state.awaited.push(session);
        self.state.hot.retain(|&hot| hot != session);
        self.poll_directly(session);
    }

    /// Returns the position of the path that the peer's connection is on: the first one, unless it
    /// uses another rail of this side, or another address of the peer than its first one.
    fn came_by(&self, session: u32, key: LaneKey) -> u8 {
        let Some(known) = self.state.core.session(session) else { return 0 };
        let Some((local, remote)) = self.driver.addresses(key) else { return 0 };
        let by = self.state.rails.iter().position(|rail| rail.address == local.ip());
        // A NAT may make it look like any.
        let from = known.locators.iter().position(|locator| locator.ip() == remote.ip());
        if by.unwrap_or(0) == 0 && from.unwrap_or(0) == 0 { 0 } else { NO_PATH }
    }

    // ---- Ends ----

    pub(super) fn drop_attempt(&mut self, session: u32) {
        if let Some(key) = self.control(session).attempt.take() {
            self.state.roles.insert(key, CLOSING);
            self.driver.close(key, CloseMode::Graceful);
        }
    }

    pub(super) fn close_control(&mut self, session: u32, is_failure: bool) {
        self.drop_attempt(session);
        if !is_failure {
            return;
        }
        if let Some(key) = self.control(session).moving.take() {
            self.state.roles.insert(key, CLOSING);
            self.driver.close(key, CloseMode::Reset);
        }
        self.state.hot.retain(|&hot| hot != session);
        self.state.blocked.retain(|&it| it != session);
        self.close_path(session);
        self.send_final_ack(session);
        self.end_stream(session);
        let control = self.control(session);
        let lane = control.lane.take();
        *control = ControlLane::default();
        if let Some(key) = lane {
            self.state.roles.insert(key, CLOSING);
            self.driver.close(key, CloseMode::Graceful);
        }
    }

    /// Stops counting a session as one without datagrams.
    fn end_stream(&mut self, session: u32) {
        let state = &mut *self.state;
        if let Some(control) = state.controls.get_mut(session as usize) {
            state.engine_questions.end_stream(control);
        }
    }

    pub(super) fn report_established(&mut self, session: u32) {
        let Some(known) = self.state.core.session(session) else { return };
        let address = Address::new(known.engine, known.locators, 0);
        if !known.has_datagrams() {
            let state = &mut *self.state;
            if let Some(control) = state.controls.get_mut(session as usize) {
                state.engine_questions.begin_stream(control);
            }
        }
        self.note_transport(session, false);
        self.state.completions.events.push(&Event::Connected { address });
        let (now_ns, timeout) = (self.state.now_ns, self.state.config.silent_timeout);
        self.state.engine_questions.begin(now_ns, timeout);
    }

    pub(super) fn report_ended(&mut self, session: u32, failure: PeerFailure) {
        let Some(known) = self.state.core.session(session) else { return };
        let address = Address::new(known.engine, known.locators, 0);
        let is_known = matches!(failure, PeerFailure::Left | PeerFailure::Removed);
        // Where this side's driver has failed, the log has that.
        if !is_known && self.failure.is_none() {
            self.log_failure(&format!("peer {address} {failure}"));
        }
        self.state.completions.events.push(&Event::Disconnected { address, failure });
    }
}
