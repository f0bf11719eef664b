//! Connections: who they are for, the hello exchange, their end.

use std::io::ErrorKind;
use std::net::SocketAddr;

use zerocopy::{FromBytes, IntoBytes};

use super::control::Control;
use super::engine::Engine;
use super::lanes::{CloseMode, Interest, LaneKey};
use super::roles::{Greeting, Role, Traffic};
use crate::proto::failure::PeerFailure;
use crate::proto::session::Limits;
use crate::proto::table::Id;
use crate::types::{Address, Event};
use crate::wire::hello::{
    HELLO_BYTES, HELLO_REPLY_BYTES, HelloStatus, KIND_BULK, KIND_CONTROL, MAGIC,
};
use crate::wire::{Hello, HelloReply, SEGMENT_BYTES_MAX, VERSION};

impl Engine {
    // ---- Our side connects ----

    pub(super) fn connect_control(&mut self, session: u32) {
        let Some(known) = self.state.core.sessions.at(session as usize) else { return };
        match self.driver.connect(known.locator, self.state.source) {
            Ok(lane) => {
                self.control(session).attempt = Some(lane);
                self.state.roles.insert(lane, Role::Connecting { session });
            }
            Err(error) => self.attempt_failed(session, &error.to_string()),
        }
    }

    pub(super) fn connect_lane(&mut self, session: u32, lane: Id) {
        let Some(known) = self.state.core.sessions.at(session as usize) else { return };
        match self.driver.connect(known.locator, self.state.source) {
            Ok(key) => {
                self.set_lane_key(lane, Some(key));
                self.state.roles.insert(key, Role::LaneConnecting { lane });
            }
            Err(error) => {
                let state = &mut *self.state;
                let cause = error.to_string();
                state.core.lane_lost(lane, true, &cause, &mut state.completions);
            }
        }
    }

    pub(super) fn set_lane_key(&mut self, lane: Id, key: Option<LaneKey>) {
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
                let id = self.next_session_id();
                let ours = self.state.core.offer(id);
                if !self.say_hello(key, session, KIND_CONTROL, 0, ours) {
                    return;
                }
                if let Some(known) = self.state.core.sessions.at_mut(session as usize) {
                    known.connection.handle_connected();
                }
                let role = Role::AwaitReply { session, ours, greeting: Greeting::new() };
                self.state.roles.insert(key, role);
                self.watch(key, Interest::Readable);
            }
            Some(&mut Role::LaneConnecting { lane }) => {
                let Some(bulk) = self.state.core.lanes.get(lane) else {
                    self.driver.close(key, CloseMode::Reset);
                    return;
                };
                let (session, number) = (bulk.session, bulk.number);
                let id = self.state.core.sessions.at(session as usize).map_or(0, |known| known.id);
                let ours = Limits { session: id, envelope_limit: 0, byte_limit: 0, eager_limit: 0 };
                if !self.say_hello(key, session, KIND_BULK, number, ours) {
                    return;
                }
                let role = Role::LaneAwaitReply { lane, greeting: Greeting::new() };
                self.state.roles.insert(key, role);
                self.watch(key, Interest::Readable);
            }
            _ => {}
        }
    }

    fn next_session_id(&mut self) -> u64 {
        // Distinct per attempt; the seed is random. Splitmix's increment visits all numbers.
        let state = &mut self.state;
        state.next_session_id = state.next_session_id.wrapping_add(0x9e37_79b9_7f4a_7c15);
        state.next_session_id.max(1)
    }

    fn say_hello(&mut self, key: LaneKey, session: u32, kind: u8, lane: u32, ours: Limits) -> bool {
        let Some(known) = self.state.core.sessions.at(session as usize) else { return false };
        let hello = Hello {
            magic: MAGIC,
            version: VERSION.into(),
            kind,
            flags: 0,
            segment_bytes_max: (SEGMENT_BYTES_MAX as u32).into(),
            source: self.state.core.engine.into(),
            target: known.engine.into(),
            session: ours.session.into(),
            lane: lane.into(),
            eager_limit: ours.eager_limit.into(),
            envelope_limit: ours.envelope_limit.into(),
            byte_limit: ours.byte_limit.into(),
            address: self.state.address(0).to_wire(),
        };
        match self.driver.send(key, hello.as_bytes()) {
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
        let closing = Role::Closing { lane: None, traffic: Traffic::default() };
        let role = std::mem::replace(role, closing);
        self.driver.close(key, CloseMode::Reset);
        match role {
            Role::Connecting { session } | Role::AwaitReply { session, .. } => {
                self.control(session).attempt = None;
                self.attempt_failed(session, cause);
            }
            Role::LaneConnecting { lane } | Role::LaneAwaitReply { lane, .. } => {
                self.set_lane_key(lane, None);
                let state = &mut *self.state;
                state.core.lane_lost(lane, true, cause, &mut state.completions);
            }
            _ => {}
        }
    }

    // ---- Bytes of a hello or a reply ----

    pub(super) fn handle_accepted(&mut self, key: LaneKey, remote: SocketAddr) {
        if self.state.handshakes_pending >= self.state.config.handshake_pending_max {
            self.refuse(key, remote, "too many connections have not said who they are");
            return;
        }
        self.state.handshakes_pending += 1;
        let since_ns = self.state.now_ns;
        let role = Role::AwaitHello { remote, since_ns, greeting: Greeting::new() };
        self.state.roles.insert(key, role);
        self.watch(key, Interest::Readable);
    }

    fn refuse(&mut self, key: LaneKey, remote: SocketAddr, cause: &str) {
        if matches!(self.state.roles.get_mut(key), Some(Role::AwaitHello { .. })) {
            self.state.handshakes_pending -= 1;
        }
        let closing = Role::Closing { lane: None, traffic: Traffic::default() };
        self.state.roles.insert(key, closing);
        self.driver.close(key, CloseMode::Graceful);
        let event = Event::Refused { remote, cause: cause.to_owned() };
        self.state.completions.push_event(event);
    }

    /// RR-CONN-1
    pub(super) fn handle_readable(&mut self, key: LaneKey) {
        let wanted = match self.state.roles.get_mut(key) {
            Some(&mut Role::Control { session }) => return self.handle_control_readable(session),
            Some(&mut Role::Bulk { lane, traffic }) => {
                return self.handle_bulk_readable(key, lane, traffic);
            }
            Some(Role::AwaitHello { .. }) => HELLO_BYTES,
            Some(Role::AwaitReply { .. } | Role::LaneAwaitReply { .. }) => HELLO_REPLY_BYTES,
            _ => return,
        };
        let (mut bytes, have) = match self.state.roles.get_mut(key) {
            Some(
                Role::AwaitHello { greeting, .. }
                | Role::AwaitReply { greeting, .. }
                | Role::LaneAwaitReply { greeting, .. },
            ) => (greeting.bytes, greeting.length),
            _ => return,
        };
        match self.driver.recv(key, &mut bytes[have..wanted]) {
            Ok(0) => self.greeting_failed(key, "the connection was closed during the hello"),
            Ok(got) => {
                let length = have + got;
                // Garbage is told apart as soon as it differs, not when enough has come.
                let known = length.min(MAGIC.len());
                if bytes[..known] != MAGIC[..known] {
                    self.greeting_failed(key, "what answers there does not speak ringrail");
                } else if length == wanted {
                    self.handle_greeting(key, &bytes);
                } else {
                    if let Some(
                        Role::AwaitHello { greeting, .. }
                        | Role::AwaitReply { greeting, .. }
                        | Role::LaneAwaitReply { greeting, .. },
                    ) = self.state.roles.get_mut(key)
                    {
                        (greeting.bytes, greeting.length) = (bytes, length);
                    }
                    self.watch(key, Interest::Readable);
                }
            }
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) =>
            {
                self.watch(key, Interest::Readable);
            }
            Err(error) => self.greeting_failed(key, &error.to_string()),
        }
    }

    fn greeting_failed(&mut self, key: LaneKey, cause: &str) {
        match self.state.roles.get_mut(key) {
            Some(&mut Role::AwaitHello { remote, .. }) => self.refuse(key, remote, cause),
            _ => self.handle_connect_failed(key, cause),
        }
    }

    fn handle_greeting(&mut self, key: LaneKey, bytes: &[u8; HELLO_BYTES]) {
        match self.state.roles.get_mut(key) {
            Some(&mut Role::AwaitHello { remote, .. }) => {
                if let Ok(&hello) = Hello::ref_from_bytes(bytes) {
                    self.handle_hello(key, remote, &hello);
                }
            }
            Some(&mut Role::AwaitReply { session, ours, .. }) => {
                if let Ok(&reply) = HelloReply::ref_from_bytes(&bytes[..HELLO_REPLY_BYTES]) {
                    self.handle_reply(key, session, ours, &reply);
                }
            }
            Some(&mut Role::LaneAwaitReply { lane, .. }) => {
                if let Ok(&reply) = HelloReply::ref_from_bytes(&bytes[..HELLO_REPLY_BYTES]) {
                    if reply.status == HelloStatus::Accepted as u8 {
                        self.lane_joined(key, lane);
                    } else if reply.status == HelloStatus::Busy as u8 {
                        self.set_lane_key(lane, None);
                        self.state.core.lane_refused(lane);
                        let closing = Role::Closing { lane: None, traffic: Traffic::default() };
                        self.state.roles.insert(key, closing);
                        self.driver.close(key, CloseMode::Graceful);
                    } else {
                        self.handle_connect_failed(key, "the peer refused a bulk lane");
                    }
                }
            }
            _ => {}
        }
    }

    // ---- The peer connects ----

    /// RR-CONN-2, RR-CONN-3
    fn handle_hello(&mut self, key: LaneKey, remote: SocketAddr, hello: &Hello) {
        // What the end of an earlier session asks for must not befall the one that begins here.
        self.carry_out();
        let mut ours = Limits { session: 0, envelope_limit: 0, byte_limit: 0, eager_limit: 0 };
        let own = self.state.core.engine;
        let address = Address::from_wire(&hello.address);
        let verdict = if hello.version.get() != VERSION {
            Err(HelloStatus::WrongVersion)
        } else if hello.target.get() != own {
            Err(HelloStatus::WrongEngine)
        } else {
            match (hello.kind, address) {
                (KIND_CONTROL, Ok(address)) if address.engine() == hello.source.get() => {
                    let theirs = Limits {
                        session: hello.session.get(),
                        envelope_limit: hello.envelope_limit.get(),
                        byte_limit: hello.byte_limit.get(),
                        eager_limit: hello.eager_limit.get(),
                    };
                    ours = self.state.core.offer(theirs.session);
                    let engine = hello.source.get();
                    let (status, session) =
                        self.state.core.handle_hello(engine, address.locator(), ours, theirs);
                    match status {
                        HelloStatus::Accepted => Ok(Role::Control { session }),
                        refused => Err(refused),
                    }
                }
                (KIND_BULK, _) => {
                    let (engine, session) = (hello.source.get(), hello.session.get());
                    let (lane, now_ns) = (hello.lane.get(), self.state.now_ns);
                    let joined = self.state.core.handle_lane_hello(engine, session, lane, now_ns);
                    joined.map(|lane| Role::Bulk { lane, traffic: Traffic::default() })
                }
                _ => Err(HelloStatus::Malformed),
            }
        };
        let status = match &verdict {
            Ok(_) => HelloStatus::Accepted,
            Err(status) => *status,
        };
        let reply = HelloReply {
            magic: MAGIC,
            version: VERSION.into(),
            status: status as u8,
            flags: 0,
            segment_bytes_max: (SEGMENT_BYTES_MAX as u32).into(),
            engine: own.into(),
            session: ours.session.into(),
            envelope_limit: ours.envelope_limit.into(),
            byte_limit: ours.byte_limit.into(),
            eager_limit: ours.eager_limit.into(),
            reserved: 0.into(),
        };
        let is_sent = matches!(self.driver.send(key, reply.as_bytes()), Ok(HELLO_REPLY_BYTES));
        match verdict {
            Ok(role) => {
                self.state.handshakes_pending -= 1;
                match role {
                    Role::Control { session } => {
                        self.state.roles.insert(key, Role::Control { session });
                        self.drop_attempt(session);
                        self.control_established(session, key);
                        if !is_sent {
                            self.lose(session, "a new connection takes no bytes");
                        }
                    }
                    Role::Bulk { lane, .. } => {
                        self.set_lane_key(lane, Some(key));
                        self.lane_joined(key, lane);
                    }
                    _ => {}
                }
            }
            Err(status) => {
                let cause = match status {
                    HelloStatus::WrongVersion => {
                        format!("it speaks wire version {}, not {VERSION}", hello.version.get())
                    }
                    HelloStatus::WrongEngine => {
                        "it wants a process that lived here earlier".to_owned()
                    }
                    other => format!("{other:?}"),
                };
                let is_usual =
                    matches!(status, HelloStatus::ElectionLost | HelloStatus::AlreadyConnected);
                if is_usual {
                    self.state.handshakes_pending -= 1;
                    let closing = Role::Closing { lane: None, traffic: Traffic::default() };
                    self.state.roles.insert(key, closing);
                    self.driver.close(key, CloseMode::Graceful);
                } else {
                    self.refuse(key, remote, &cause);
                }
            }
        }
    }

    fn handle_reply(&mut self, key: LaneKey, session: u32, ours: Limits, reply: &HelloReply) {
        let status = if reply.version.get() == VERSION {
            HelloStatus::from_wire(reply.status).unwrap_or(HelloStatus::Malformed)
        } else {
            HelloStatus::WrongVersion
        };
        let state = &mut *self.state;
        let Some(known) = state.core.sessions.at_mut(session as usize) else { return };
        let theirs = Limits {
            session: ours.session,
            envelope_limit: reply.envelope_limit.get(),
            byte_limit: reply.byte_limit.get(),
            eager_limit: reply.eager_limit.get(),
        };
        let step = known.connection.handle_reply(state.now_ns, status, reply.version.get());
        let is_established = known.is_connected() && status == HelloStatus::Accepted;
        if is_established {
            state.core.establish(session, ours, theirs);
            self.control(session).attempt = None;
            self.state.roles.insert(key, Role::Control { session });
            self.control_established(session, key);
            return;
        }
        self.drop_attempt(session);
        let state = &mut *self.state;
        state.core.apply(session, step, &mut state.completions);
    }

    fn control_established(&mut self, session: u32, key: LaneKey) {
        let zero_copy = super::zero_copy::ZeroCopy::new(self.state.config.zero_copy);
        let control = self.control(session);
        let attempt = control.attempt;
        *control =
            Control { lane: Some(key), attempt, zero_copy: Some(zero_copy), ..Control::default() };
        self.state.hot.retain(|&hot| hot != session);
        self.heat(session);
    }

    // ---- Ends ----

    fn drop_attempt(&mut self, session: u32) {
        if let Some(key) = self.control(session).attempt.take() {
            let closing = Role::Closing { lane: None, traffic: Traffic::default() };
            self.state.roles.insert(key, closing);
            self.driver.close(key, CloseMode::Graceful);
        }
    }

    pub(super) fn close_control(&mut self, session: u32, is_failure: bool) {
        self.drop_attempt(session);
        if !is_failure {
            return;
        }
        self.state.hot.retain(|&hot| hot != session);
        let control = self.control(session);
        let lane = control.lane.take();
        *control = Control::default();
        if let Some(key) = lane {
            let closing = Role::Closing { lane: None, traffic: Traffic::default() };
            self.state.roles.insert(key, closing);
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

    /// Connections that say nothing do not stay for ever.
    ///
    /// RR-CONN-5.
    pub(super) fn drop_silent_handshakes(&mut self) {
        let now_ns = self.state.now_ns;
        let limit_ns = self.state.config.handshake_timeout.as_nanos() as u64;
        let late = self.state.roles.iter().filter_map(|(key, role)| match role {
            Role::AwaitHello { since_ns, .. } if now_ns - since_ns > limit_ns => Some(key),
            _ => None,
        });
        for key in late.collect::<Vec<_>>() {
            self.greeting_failed(key, "no hello came in time");
        }
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
                Ok(Some(silence)) if silence > limit => {
                    let cause = format!("its host has not answered for {} ms", silence.as_millis());
                    self.lose(session as u32, &cause);
                }
                Ok(Some(_)) => {}
                Ok(None) => self.state.controls[session].is_owed_answer = false,
                Err(error) => self.lose(session as u32, &error.to_string()),
            }
        }
    }
}
