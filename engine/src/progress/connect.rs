//! Connections: those of this side up to their hello, what becomes of them, their end.

use std::io;
use std::net::IpAddr;

use rand::RngExt;
use zerocopy::IntoBytes;

use super::bereaved::is_of_network;
use super::control::{Control, NO_PATH};
use super::datagram::scoped;
use super::engine::Engine;
use super::lanes::{CloseMode, Interest, LaneKey};
use super::roles::{CLOSING, Greeting, Role};
use crate::proto::connection::Phase;
use crate::proto::failure::PeerFailure;
use crate::proto::handshake::Initiator;
use crate::proto::rails::pairing::Reach;
use crate::proto::session::{Limits, NOTHING};
use crate::proto::table::Id;
use crate::types::{Address, Event};
use crate::wire::hello::{HELLO_BYTES, KIND_BULK, KIND_CONTROL, MAGIC};
use crate::wire::rail::ROLE_BACKUP;
use crate::wire::{Hello, SEGMENT_BYTES_MAX, VERSION};

impl Engine {
    // ---- Our side connects ----

    pub(super) fn connect_control(&mut self, session: u32) {
        let Some(known) = self.state.core.sessions.at(session as usize) else { return };
        if known.connection.phase() != Phase::Connecting {
            // The session was given up, or came about otherwise, before its turn.
            return;
        }
        let locator = known.locator;
        // It was closed when it took too long; nothing may be left of it.
        self.drop_attempt(session);
        let rail = self.rail_to_connect(session, locator.ip());
        match self.driver.connect(locator, rail) {
            Ok(lane) => {
                let control = self.control(session);
                (control.attempt, control.left_by) = (Some(lane), rail);
                self.state.roles.insert(lane, Role::Connecting { session });
            }
            Err(error) => {
                if is_of_network(&error) || error.kind() == io::ErrorKind::AddrNotAvailable {
                    let control = self.control(session);
                    control.detours = control.detours.wrapping_add(1);
                }
                self.attempt_failed(session, &error.to_string());
            }
        }
    }

    /// The rail that an attempt leaves by: the first one, and after each that the network swallowed
    /// the next one that leads to the peer, backups last. One without a link is left out while
    /// there is another. Whoever refuses or answers was reached.
    fn rail_to_connect(&mut self, session: u32, to: IpAddr) -> u8 {
        let down = self.state.rails_down;
        let is_up = |rail: u8| down >> (rail % 16) & 1 == 0;
        let detours = usize::from(self.control(session).detours);
        let count = self.state.rails.len() as u8;
        // A link-local address means another host on each network.
        let is_local = matches!(to, IpAddr::V6(to) if to.is_unicast_link_local());
        if count < 2 || is_local || (detours == 0 && is_up(0)) {
            return 0;
        }
        let told = self.state.core.rails();
        let is_backup =
            |rail: u8| told.get(usize::from(rail)).is_some_and(|rail| rail.role == ROLE_BACKUP);
        let leads_there = |&rail: &u8| {
            let address = self.state.rails[usize::from(rail)].address;
            address.is_ipv4() == to.is_ipv4() && self.driver.reach(rail, to) != Reach::Unreachable
        };
        let mut rails: Vec<u8> = (1..count).filter(leads_there).collect();
        rails.sort_by_key(|&rail| is_backup(rail));
        rails.insert(0, 0);
        if rails.iter().any(|&rail| is_up(rail)) {
            rails.retain(|&rail| is_up(rail));
        }
        rails[detours % rails.len()]
    }

    /// A connection failed. If that was the network's doing the next attempt takes another rail.
    pub(super) fn note_detour(&mut self, key: LaneKey, error: &io::Error) {
        if let Some(&mut Role::Connecting { session }) = self.state.roles.get_mut(key)
            && is_of_network(error)
        {
            let control = self.control(session);
            control.detours = control.detours.wrapping_add(1);
        }
    }

    pub(super) fn connect_lane(&mut self, lane: Id) {
        let Some((remote, rail)) = self.state.core.way_of(lane) else { return };
        let remote = scoped(&self.state.rails, rail, remote);
        match self.driver.connect(remote, rail) {
            Ok(key) => {
                self.set_lane_key(lane, Some(key));
                self.state.roles.insert(key, Role::LaneConnecting { lane });
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
        if self.state.core.lanes.get(lane).is_none() {
            // What is late about a lane that is gone does not concern its successor.
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
        let Some(known) = state.core.sessions.at_mut(session as usize) else { return };
        let step = known.connection.handle_attempt_failed(state.now_ns, cause);
        state.core.apply(session, step, &mut state.completions);
    }

    /// TCP is connected: say hello.
    pub(super) fn handle_connected(&mut self, key: LaneKey) {
        match self.state.roles.get_mut(key) {
            Some(&mut Role::Connecting { session }) => {
                let known = self.state.core.sessions.at(session as usize);
                let phase = known.map_or(Phase::Closed, |known| known.connection.phase());
                if phase != Phase::Connecting {
                    // The session was given up, came about otherwise, or took too long: the loop
                    // is about to drop the attempt, and what its hello would offer is offered to
                    // nobody.
                    return;
                }
                let id = self.next_session_id();
                let ours = self.state.core.offer_in_hello(session, id);
                let Some(known) = self.state.core.sessions.at_mut(session as usize) else { return };
                let (target, epoch) = (known.engine, known.next_epoch());
                let mut hello = self.hello(target, KIND_CONTROL, ours);
                hello.epoch = epoch.into();
                let nonce = self.state.random.random();
                let keys = &self.state.keys;
                let initiator = Box::new(Initiator::start(keys, hello, nonce));
                if !self.say_hello(key, initiator.hello()) {
                    return;
                }
                if let Some(known) = self.state.core.sessions.at_mut(session as usize) {
                    known.connection.handle_connected();
                }
                let greeting = Greeting::new();
                let role = Role::AwaitReply { session, ours, initiator, greeting };
                self.state.roles.insert(key, role);
                self.watch(key, Interest::Readable);
            }
            Some(&mut Role::LaneConnecting { lane }) => {
                let Some(initiator) = self.join(lane) else {
                    self.driver.close(key, CloseMode::Reset);
                    return;
                };
                if !self.say_hello(key, initiator.hello()) {
                    return;
                }
                let greeting = Greeting::new();
                let role = Role::LaneAwaitReply { lane, initiator, greeting };
                self.state.roles.insert(key, role);
                self.watch(key, Interest::Readable);
            }
            Some(&mut Role::MoveConnecting { session }) => self.handle_move_connected(key, session),
            _ => {}
        }
    }

    /// The hello of a bulk lane of ours; `None`: its session is over.
    fn join(&mut self, lane: Id) -> Option<Box<Initiator>> {
        let nonce = self.state.random.random();
        let bulk = self.state.core.lanes.get(lane)?;
        let known = self.state.core.sessions.at(bulk.session as usize)?;
        let keys = known.keys.as_ref()?;
        let ours = Limits { session: known.id, ..NOTHING };
        let mut hello = self.hello(known.engine, KIND_BULK, ours);
        hello.lane = bulk.number.into();
        hello.path = known.rails.paths.get(usize::from(bulk.path))?.number.into();
        Some(Box::new(Initiator::join(keys, hello, nonce)))
    }

    fn next_session_id(&mut self) -> u64 {
        // Distinct per attempt; the seed is random. Splitmix's increment visits all numbers.
        let state = &mut self.state;
        state.next_session_id = state.next_session_id.wrapping_add(0x9e37_79b9_7f4a_7c15);
        state.next_session_id.max(1)
    }

    /// A hello that lacks what the handshake adds.
    pub(super) fn hello(&self, target: u64, kind: u8, ours: Limits) -> Hello {
        Hello {
            magic: MAGIC,
            version: VERSION.into(),
            kind,
            flags: ours.flags(),
            segment_bytes_max: (SEGMENT_BYTES_MAX as u32).into(),
            source: self.state.core.engine.into(),
            target: target.into(),
            session: ours.session.into(),
            lane: 0.into(),
            eager_limit: ours.eager_limit.into(),
            envelope_limit: ours.envelope_limit.into(),
            byte_limit: ours.byte_limit.into(),
            address: self.state.address(0).to_wire(),
            epoch: 0.into(),
            datagram_port: self.state.datagrams.announced.port.into(),
            datagram_bytes: self.state.datagrams.announced.bytes.into(),
            path: 0.into(),
            reserved: 0.into(),
            nonce: [0; 16],
            tag: [0; 16],
        }
    }

    pub(super) fn say_hello(&mut self, key: LaneKey, hello: &Hello) -> bool {
        match self.send_greeting(key, hello.as_bytes()) {
            Ok(HELLO_BYTES) => true,
            // A fresh socket has room for so few bytes unless it is dying.
            Ok(_) => {
                self.handle_connect_failed(key, "a new connection takes no bytes");
                false
            }
            Err(error) => {
                self.handle_connect_failed(key, &error.to_string());
                false
            }
        }
    }

    /// A connection of ours failed before it was part of a session.
    pub(super) fn handle_connect_failed(&mut self, key: LaneKey, cause: &str) {
        let Some(role) = self.state.roles.get_mut(key) else { return };
        let role = std::mem::replace(role, CLOSING);
        self.driver.close(key, CloseMode::Reset);
        match role {
            Role::Connecting { session } | Role::AwaitReply { session, .. } => {
                self.control(session).attempt = None;
                self.attempt_failed(session, cause);
            }
            Role::LaneConnecting { lane } | Role::LaneAwaitReply { lane, .. } => {
                self.set_lane_key(lane, None);
                let state = &mut *self.state;
                let now_ns = state.now_ns;
                state.core.lane_lost(lane, true, cause, now_ns, &mut state.completions);
            }
            Role::MoveConnecting { session } | Role::MoveAwaitReply { session, .. } => {
                self.handle_move_failed(key, session, cause);
            }
            _ => {}
        }
    }

    // ---- A session begins ----

    pub(super) fn control_established(&mut self, session: u32, key: LaneKey) {
        self.close_path(session);
        let zero_copy = super::zero_copy::ZeroCopy::new(self.state.config.zero_copy);
        let control = self.control(session);
        let attempt = control.attempt;
        // By another rail than the first one it is on no path that is known here.
        let left_by = control.left_by;
        let known = self.state.core.sessions.at(session as usize);
        let is_ours = known.is_some_and(|known| known.connection.is_initiator());
        let lane_at = if is_ours && left_by != 0 { NO_PATH } else { 0 };
        let zero_copy = Some(zero_copy);
        *self.control(session) = Control {
            lane: Some(key),
            attempt,
            zero_copy,
            lane_at,
            // The last words of the handshake may be all that ever goes by it.
            is_owed_answer: true,
            ..Control::default()
        };
        self.state.hot.retain(|&hot| hot != session);
        self.heat(session);
    }

    // ---- Ends ----

    pub(super) fn drop_attempt(&mut self, session: u32) {
        if let Some(key) = self.control(session).attempt.take() {
            if matches!(self.state.roles.get_mut(key), Some(Role::Connecting { .. })) {
                // Nobody answered in time.
                let control = self.control(session);
                control.detours = control.detours.wrapping_add(1);
            }
            self.state.roles.insert(key, CLOSING);
            self.driver.close(key, CloseMode::Graceful);
        }
    }

    pub(super) fn close_control(&mut self, session: u32, is_failure: bool) {
        self.drop_attempt(session);
        if !is_failure {
            return;
        }
        if let Some((key, _)) = self.control(session).moving.take() {
            self.state.roles.insert(key, CLOSING);
            self.driver.close(key, CloseMode::Reset);
        }
        self.state.hot.retain(|&hot| hot != session);
        self.close_path(session);
        let control = self.control(session);
        let lane = control.lane.take();
        *control = Control::default();
        if let Some(key) = lane {
            self.state.roles.insert(key, CLOSING);
            self.driver.close(key, CloseMode::Graceful);
        }
    }

    pub(super) fn report_established(&mut self, session: u32) {
        let Some(known) = self.state.core.sessions.at(session as usize) else { return };
        let address = Address::new(known.engine, known.locator, 0);
        self.state.completions.push_event(Event::Connected { address });
    }

    pub(super) fn report_ended(&mut self, session: u32, failure: PeerFailure) {
        let Some(known) = self.state.core.sessions.at(session as usize) else { return };
        let address = Address::new(known.engine, known.locator, 0);
        self.state.completions.push_event(Event::Disconnected { address, failure });
    }

    /// Peers whose kernels do not acknowledge what was sent to them are dead.
    pub(super) fn check_peers(&mut self) {
        for session in 0..self.state.controls.len() {
            let control = &self.state.controls[session];
            // Where nothing is under way the kernel's keep-alive watches.
            let Some(lane) = control.lane.filter(|_| control.is_owed_answer) else {
                continue;
            };
            let limit = self.state.config.peer_timeout;
            match self.driver.unanswered(lane) {
                Ok(Some(silence)) if silence > limit && control.has_active_path() => {
                    self.drop_control_lane(session as u32);
                }
                Ok(Some(silence)) if silence > limit => {
                    let cause = format!("its host has not answered for {} ms", silence.as_millis());
                    self.lose(session as u32, &cause);
                }
                Ok(Some(_)) => {}
                Ok(None) => self.state.controls[session].is_owed_answer = false,
                Err(error) => self.handle_control_failed(session as u32, &error),
            }
        }
    }
}
