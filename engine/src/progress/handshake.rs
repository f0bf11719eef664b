//! The hello exchange: receives hellos, replies and proofs, and acts on them.
//!
//! A connection is unauthenticated until its proof has arrived; unauthenticated ones are counted
//! and have a deadline. [`crate::proto::handshake`] authenticates messages, [`crate::proto::peers`]
//! decides on sessions.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;

use rand::RngExt;
use zerocopy::{FromBytes, IntoBytes};

use super::bulk::LaneEnd;
use super::datagram::Announced;
use super::engine::Engine;
use super::roles::{CLOSING, HalfOpen, PartialMessage, Role};
use super::traits::{CloseMode, Interest, LaneKey};
use crate::proto::failure::PeerFailure;
use crate::proto::handshake::{Acceptor, Distrust, Initiator, answer_join, is_of_job};
use crate::proto::session::{Limits, NOTHING};
use crate::proto::table::Id;
use crate::types::{Address, Event};
use crate::wire::hello::{
    FLAG_ANSWERS, FLAG_BULK_IN_DATAGRAMS, FLAG_CHECKSUM, FLAG_INSECURE, FLAG_PROCESS_STATUS,
    HELLO_BYTES, HELLO_REPLY_BYTES, HelloStatus, KIND_BULK, KIND_CONTROL, KIND_MOVE, MAGIC,
};
use crate::wire::locators::Locators;
use crate::wire::proof::{PROOF_BYTES, PROOF_MAGIC};
use crate::wire::{Hello, HelloReply, Proof, SEGMENT_BYTES_MAX, VERSION};

/// Position of the version in hellos and replies of all versions.
const VERSION_AT: std::ops::Range<usize> = 8..10;

impl Engine {
    // ---- Unauthenticated connections ----

    pub(super) fn handle_accepted(&mut self, key: LaneKey, remote: SocketAddr) {
        if self.state.handshakes_pending >= self.state.config.handshake_pending_max {
            self.refuse(key, remote, "too many unauthenticated connections");
            return;
        }
        self.state.handshakes_pending += 1;
        let since_ns = self.state.now_ns;
        let role = Role::AwaitHello { remote, since_ns, partial: PartialMessage::new() };
        self.state.roles.insert(key, role);
        self.watch(key, Interest::Readable);
    }

    /// Closes an unauthenticated connection, and reports it to the user.
    fn refuse(&mut self, key: LaneKey, remote: SocketAddr, cause: &str) {
        self.dismiss(key);
        let event = Event::Refused { remote, cause: cause.to_owned() };
        self.state.completions.events.push(&event);
        self.throttle_accept();
    }

    /// Closes an unauthenticated connection, and releases all that it holds.
    fn dismiss(&mut self, key: LaneKey) {
        self.take_unauthenticated(key);
        self.state.roles.insert(key, CLOSING);
        self.driver.close(key, CloseMode::Graceful);
    }

    /// Removes a connection from the unauthenticated ones, as it is authenticated, or about to be
    /// closed.
    pub(super) fn take_unauthenticated(&mut self, key: LaneKey) {
        let Some(role) = self.state.roles.get_mut(key) else { return };
        match std::mem::replace(role, CLOSING) {
            Role::AwaitHello { .. } => self.state.handshakes_pending -= 1,
            Role::AwaitProof { half, .. } => {
                self.state.handshakes_pending -= 1;
                self.state.core.withdraw(half.admission);
            }
            _ => {}
        }
    }

    /// Closes unauthenticated connections after their deadline.
    ///
    /// RR-CONN-5.
    pub(super) fn drop_silent_handshakes(&mut self) {
        self.state.roles.forget_completed();
        let now_ns = self.state.now_ns;
        let limit_ns = self.state.config.handshake_timeout.as_nanos() as u64;
        let late = self.state.roles.handshakes().filter_map(|(key, role)| match role {
            Role::AwaitHello { since_ns, .. } if now_ns - since_ns > limit_ns => {
                Some((key, "no hello received in time"))
            }
            Role::AwaitProof { since_ns, .. } if now_ns - since_ns > limit_ns => {
                Some((key, "no proof of the job's secret received in time"))
            }
            _ => None,
        });
        for (key, cause) in late.collect::<Vec<_>>() {
            self.handshake_failed(key, cause);
        }
        let core = &self.state.core;
        let peer_ns = self.state.config.peer_timeout.as_nanos() as u64;
        let late = self.state.roles.handshakes().filter_map(|(key, role)| match role {
            Role::LaneConnecting { lane, .. } | Role::LaneAwaitReply { lane, .. } => {
                let asked_ns = core.lanes().get(*lane)?.used_ns;
                (now_ns.saturating_sub(asked_ns) > limit_ns).then_some(key)
            }
            Role::MoveConnecting { session, .. } | Role::MoveAwaitReply { session, .. } => {
                let monitor = &core.session(*session)?.control_lane;
                monitor.is_attempt_late(now_ns, limit_ns, peer_ns).then_some(key)
            }
            _ => None,
        });
        for key in late.collect::<Vec<_>>() {
            self.handle_connect_failed(key, "the peer did not answer the join of the lane in time");
        }
    }

    /// Sends a hello, a reply or a proof; retries after a signal.
    pub(super) fn send_handshake(&mut self, key: LaneKey, bytes: &[u8]) -> io::Result<usize> {
        loop {
            match self.driver.send(key, bytes) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                sent => return sent,
            }
        }
    }

    // ---- Bytes ----

    /// RR-CONN-1
    pub(super) fn handle_readable(&mut self, key: LaneKey) {
        match self.state.roles.get_mut(key) {
            Some(&mut Role::Control { session }) => return self.handle_control_readable(session),
            Some(Role::Bulk { lane, traffic }) => {
                let (lane, is_receiving) = (*lane, traffic.receiving.is_some());
                return self.handle_bulk_readable(key, lane, is_receiving);
            }
            _ => {}
        }
        let Some(role) = self.state.roles.get_mut(key) else { return };
        let is_proof = matches!(role, Role::AwaitProof { .. });
        let Some((partial, wanted)) = role.awaited() else { return };
        let received = self.driver.recv(key, &mut partial.bytes[partial.length..wanted]);
        match received {
            // One of two crossing connections is abandoned this way.
            Ok(0) if is_proof => self.dismiss(key),
            Ok(0) => self.handshake_failed(key, "the connection was closed during the hello"),
            Ok(got) => {
                partial.length += got;
                let (bytes, length) = (*partial.bytes, partial.length);
                self.handle_bytes(key, &bytes, length, wanted, is_proof);
            }
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) =>
            {
                self.watch(key, Interest::Readable);
            }
            Err(error) => self.handshake_failed(key, &error.to_string()),
        }
    }

    /// Handles `length` received bytes of `wanted`.
    fn handle_bytes(
        &mut self,
        key: LaneKey,
        bytes: &[u8; HELLO_BYTES],
        length: usize,
        wanted: usize,
        is_proof: bool,
    ) {
        // Invalid bytes are detected at the first difference, not when enough have arrived; so are
        // other versions, whose messages may be shorter.
        let magic = if is_proof { &PROOF_MAGIC[..] } else { &MAGIC[..] };
        let known = length.min(magic.len());
        let version = u16::from_le_bytes([bytes[VERSION_AT.start], bytes[VERSION_AT.start + 1]]);
        if bytes[..known] != magic[..known] {
            self.handshake_failed(key, "the remote process does not use the ringrail protocol");
        } else if !is_proof && length >= VERSION_AT.end && version != VERSION {
            self.handle_other_version(key, version);
        } else if length == wanted {
            self.handle_handshake(key, bytes);
        } else {
            self.watch(key, Interest::Readable);
        }
    }

    fn handle_other_version(&mut self, key: LaneKey, theirs: u16) {
        match self.state.roles.get_mut(key) {
            Some(&mut Role::AwaitHello { remote, .. }) => {
                let reply = self.reply(HelloStatus::WrongVersion, NOTHING);
                self.send_reply(key, &reply);
                let cause = format!("it uses wire version {theirs}, not {VERSION}");
                self.refuse(key, remote, &cause);
            }
            Some(&mut Role::AwaitReply { session, .. }) => {
                self.handle_distrust(session, Distrust::Version(theirs));
            }
            _ => self.handle_connect_failed(key, "it uses another wire version"),
        }
    }

    fn handshake_failed(&mut self, key: LaneKey, cause: &str) {
        match self.state.roles.get_mut(key) {
            Some(&mut (Role::AwaitHello { remote, .. } | Role::AwaitProof { remote, .. })) => {
                self.refuse(key, remote, cause);
            }
            _ => self.handle_connect_failed(key, cause),
        }
    }

    /// Handles a complete message.
    fn handle_handshake(&mut self, key: LaneKey, bytes: &[u8; HELLO_BYTES]) {
        let Some(role) = self.state.roles.get_mut(key) else { return };
        match *role {
            Role::AwaitHello { remote, .. } => {
                if let Ok(hello) = Hello::ref_from_bytes(bytes) {
                    match hello.kind {
                        KIND_BULK => self.handle_join(key, remote, hello),
                        KIND_MOVE => match self.handle_move(key, hello) {
                            Ok(()) => {}
                            Err(HelloStatus::Busy) => self.dismiss(key),
                            Err(status) => {
                                let cause = format!("its other control connection: {status:?}");
                                self.refuse(key, remote, &cause);
                            }
                        },
                        _ => self.handle_hello(key, remote, hello),
                    }
                }
            }
            Role::AwaitProof { remote, .. } => {
                if let Ok(proof) = Proof::ref_from_bytes(&bytes[..PROOF_BYTES]) {
                    self.handle_proof(key, remote, proof);
                }
            }
            Role::AwaitReply { session, ours, ref initiator, .. } => {
                let initiator = initiator.clone();
                if let Ok(reply) = HelloReply::ref_from_bytes(&bytes[..HELLO_REPLY_BYTES]) {
                    self.handle_reply(key, session, ours, &initiator, reply);
                }
            }
            Role::MoveAwaitReply { session, ref initiator, .. } => {
                let initiator = initiator.clone();
                if let Ok(reply) = HelloReply::ref_from_bytes(&bytes[..HELLO_REPLY_BYTES]) {
                    self.handle_move_reply(key, session, &initiator, reply);
                }
            }
            Role::LaneAwaitReply { lane, ref initiator, .. } => {
                let initiator = initiator.clone();
                if let Ok(reply) = HelloReply::ref_from_bytes(&bytes[..HELLO_REPLY_BYTES]) {
                    self.handle_join_reply(key, lane, &initiator, reply);
                }
            }
            _ => {}
        }
    }

    // ---- The peer connects ----

    /// Creates a reply without the fields of the handshake.
    pub(super) fn reply(&self, status: HelloStatus, ours: Limits) -> HelloReply {
        HelloReply {
            magic: MAGIC,
            version: VERSION.into(),
            status: status as u8,
            flags: ours.flags() | self.state.datagrams.announced.flags(),
            segment_bytes_max: (SEGMENT_BYTES_MAX as u32).into(),
            address: self.state.address(0).to_wire(),
            reserved: 0.into(),
            session: ours.session.into(),
            envelope_limit: ours.envelope_limit.into(),
            byte_limit: ours.byte_limit.into(),
            eager_limit: ours.eager_limit.into(),
            datagram_port: self.state.datagrams.announced.port.into(),
            datagram_bytes: self.state.datagrams.announced.bytes.into(),
            nonce: [0; 16],
            proof: [0; 16],
        }
    }

    pub(super) fn send_reply(&mut self, key: LaneKey, reply: &HelloReply) -> bool {
        // A fresh socket has space for so few bytes unless it is failing.
        matches!(self.send_handshake(key, reply.as_bytes()), Ok(HELLO_REPLY_BYTES))
    }

    /// Handles the hello of a control lane.
    ///
    /// RR-CONN-2, RR-CONN-3, RR-CONN-7.
    ///
    /// RR-AUTH-1, RR-AUTH-4.
    fn handle_hello(&mut self, key: LaneKey, remote: SocketAddr, hello: &Hello) {
        let theirs = Limits {
            session: hello.session.get(),
            envelope_limit: hello.envelope_limit.get(),
            byte_limit: hello.byte_limit.get(),
            eager_limit: hello.eager_limit.get(),
            checksum: hello.flags & FLAG_CHECKSUM != 0,
            bulk_in_datagrams: hello.flags & FLAG_BULK_IN_DATAGRAMS != 0,
            answers: hello.flags & FLAG_ANSWERS != 0,
            process_status: hello.flags & FLAG_PROCESS_STATUS != 0,
        };
        let engine = hello.source.get();
        if self.state.core.sessions().is_full() {
            // Pending actions of a closed session keep its slot in use.
            self.carry_out();
        }
        let state = &mut *self.state;
        let verdict = if !is_of_job(&state.keys, hello) {
            Err(HelloStatus::WrongSecret)
        } else if hello.target.get() != state.core.engine() {
            Err(HelloStatus::WrongEngine)
        } else {
            match Address::from_wire(&hello.address) {
                Ok(address) if hello.kind == KIND_CONTROL && address.engine() == engine => {
                    let (id, locators) = (theirs.session, address.to_locators());
                    let (epoch, answered) = (hello.epoch.get(), hello.answered.get());
                    state.core.judge_hello(engine, locators, id, epoch, answered)
                }
                _ => Err(HelloStatus::Malformed),
            }
        };
        let (status, ours) = match &verdict {
            Ok(_) => (HelloStatus::Accepted, state.core.offer_to(engine, theirs.session)),
            Err(status) => (*status, NOTHING),
        };
        let reply = self.reply(status, ours);
        let nonce = self.state.random.random();
        let (reply, acceptor) = Acceptor::answer(&self.state.keys, hello, reply, nonce);
        let is_sent = self.send_reply(key, &reply);
        match verdict {
            Ok(admission) => {
                let datagrams = Announced::of_hello(hello);
                let half = Box::new(HalfOpen { admission, acceptor, ours, theirs, datagrams });
                // The hello may have waited here for long; the proof has a timeout of its own.
                let since_ns = self.state.now_ns;
                let role =
                    Role::AwaitProof { remote, since_ns, half, partial: PartialMessage::new() };
                self.state.roles.insert(key, role);
                if is_sent {
                    self.watch(key, Interest::Readable);
                } else {
                    self.refuse(key, remote, "a new connection accepts no data");
                }
            }
            Err(HelloStatus::ElectionLost | HelloStatus::AlreadyConnected) => self.dismiss(key),
            // It requested the engine's id, and got it.
            Err(HelloStatus::WrongEngine) if hello.target.get() == 0 => self.dismiss(key),
            Err(status) => {
                let is_insecure = hello.flags & FLAG_INSECURE != 0;
                let mut cause = self.refusal(status, is_insecure);
                if status == HelloStatus::WrongSecret {
                    cause = self.report_wrong_secret(remote, &cause);
                }
                self.refuse(key, remote, &cause);
            }
        }
    }

    /// Returns why a hello is refused, for the user.
    fn refusal(&self, status: HelloStatus, is_insecure: bool) -> String {
        match status {
            HelloStatus::WrongSecret if is_insecure => {
                "it runs without a job secret (insecure = true there), this side has one".into()
            }
            HelloStatus::WrongSecret if self.state.keys.is_insecure() => {
                "it has a job secret, this side runs without one (insecure = true here)".into()
            }
            HelloStatus::WrongSecret => "it does not know this job's secret".into(),
            HelloStatus::WrongEngine => {
                "it is addressed to an earlier process at this address".into()
            }
            HelloStatus::StaleEpoch => "it is a replay of an earlier connection".into(),
            HelloStatus::Busy => format!(
                "this engine has as many sessions as it may have (sessions_max = {}): raise the \
                 setting, or remove peers that are gone",
                self.state.core.config().sessions_max
            ),
            other => format!("{other:?}"),
        }
    }

    /// Handles the proof that the sender of an accepted hello made it now.
    ///
    /// RR-AUTH-2.
    fn handle_proof(&mut self, key: LaneKey, remote: SocketAddr, proof: &Proof) {
        // Pending actions of an earlier session must not affect the one that begins here.
        self.carry_out();
        let Some(role) = self.state.roles.get_mut(key) else { return };
        let Role::AwaitProof { half, .. } = std::mem::replace(role, CLOSING) else { return };
        self.state.handshakes_pending -= 1;
        let HalfOpen { admission, acceptor, ours, theirs, datagrams } = *half;
        let Ok(keys) = acceptor.handle_proof(proof) else {
            self.state.core.withdraw(admission);
            self.refuse(key, remote, "its proof does not match this job's secret");
            return;
        };
        if let Some(outlived) = self.state.core.outlived_by(&admission) {
            self.lose(outlived, "its process has begun another session");
            self.carry_out();
        }
        let Some(session) = self.state.core.admit_peer(admission, ours, theirs, keys) else {
            // Another connection of the two engines is their session by now.
            self.dismiss(key);
            return;
        };
        self.state.roles.insert(key, Role::Control { session });
        self.drop_attempt(session);
        self.control_established(session, key);
        self.open_path(session, datagrams);
    }

    /// Handles the hello of a bulk lane.
    ///
    /// RR-AUTH-6.
    fn handle_join(&mut self, key: LaneKey, remote: SocketAddr, hello: &Hello) {
        let state = &mut *self.state;
        let joined = if hello.target.get() == state.core.engine() {
            let now_ns = state.now_ns;
            let entered = state.core.enter_joined(hello);
            entered.and_then(|(it, mut cx)| it.handle_lane_hello(&mut cx, hello, now_ns))
        } else {
            Err(HelloStatus::WrongEngine)
        };
        let status = joined.err().unwrap_or(HelloStatus::Accepted);
        let depends_on_session = matches!(status, HelloStatus::Accepted | HelloStatus::Busy);
        let reply = self.reply(status, NOTHING);
        let nonce = self.state.random.random();
        let state = &*self.state;
        let session = state.core.keys_to_join(hello).filter(|_| depends_on_session);
        let reply = answer_join(&state.keys, session, hello, reply, nonce);
        let is_sent = self.send_reply(key, &reply);
        match joined {
            Ok(lane) => {
                self.take_unauthenticated(key);
                self.set_lane_key(lane, Some(key));
                self.lane_joined(key, lane);
                if !is_sent {
                    self.close_lane(lane, LaneEnd::Failed("a new connection accepts no data"));
                }
            }
            Err(HelloStatus::Busy) => self.dismiss(key),
            Err(status) => {
                let cause = match status {
                    HelloStatus::WrongSecret => "its join of a bulk lane is forged".to_owned(),
                    HelloStatus::StaleEpoch => "its join of a bulk lane is a replay".to_owned(),
                    other => format!("its join of a bulk lane: {other:?}"),
                };
                self.refuse(key, remote, &cause);
            }
        }
    }

    // ---- Replies ----

    /// RR-AUTH-3
    fn handle_reply(
        &mut self,
        key: LaneKey,
        session: u32,
        ours: Limits,
        initiator: &Initiator,
        reply: &HelloReply,
    ) {
        let (status, accepted) = match initiator.handle_reply(&self.state.keys, reply) {
            Ok(believed) => believed,
            Err(distrust) => return self.handle_distrust(session, distrust),
        };
        let state = &mut *self.state;
        if status == HelloStatus::WrongEngine
            && let Some(locators) = Locators::from_wire(&reply.address)
            && state.core.session(session).is_some_and(|it| it.is_of_place(&locators))
        {
            self.drop_attempt(session);
            let state = &mut *self.state;
            let (engine, now_ns) = (reply.address.engine.get(), state.now_ns);
            state.core.adopt(session, engine, locators, now_ns, &mut state.completions);
            return;
        }
        let Some(connection) = state.core.connection(session) else { return };
        let theirs = Limits {
            session: ours.session,
            envelope_limit: reply.envelope_limit.get(),
            byte_limit: reply.byte_limit.get(),
            eager_limit: reply.eager_limit.get(),
            checksum: reply.flags & FLAG_CHECKSUM != 0,
            bulk_in_datagrams: reply.flags & FLAG_BULK_IN_DATAGRAMS != 0,
            answers: reply.flags & FLAG_ANSWERS != 0,
            process_status: reply.flags & FLAG_PROCESS_STATUS != 0,
        };
        let was_connected = connection.is_connected();
        let step = connection.handle_reply(state.now_ns, status);
        if connection.is_connected() && !was_connected {
            // Nothing may be sent between the proof and the first segment.
            let sent = self.send_handshake(key, accepted.proof.as_bytes());
            let state = &mut *self.state;
            state.core.establish(session, ours, theirs, accepted.keys);
            self.control(session).attempt = None;
            self.state.roles.insert(key, Role::Control { session });
            self.control_established(session, key);
            self.open_path(session, Announced::of_reply(reply));
            if !matches!(sent, Ok(PROOF_BYTES)) {
                self.lose(session, "a new connection accepts no data");
            }
            return;
        }
        self.drop_attempt(session);
        let state = &mut *self.state;
        state.core.apply(session, step, &mut state.completions);
    }

    /// Handles a reply that is not authenticated: the attempt has failed, whatever it contains.
    fn handle_distrust(&mut self, session: u32, distrust: Distrust) {
        self.drop_attempt(session);
        let state = &mut *self.state;
        let now_ns = state.now_ns;
        let Some(connection) = state.core.connection(session) else { return };
        let step = match distrust {
            Distrust::Version(theirs) => {
                let failure = PeerFailure::Version { theirs, ours: VERSION };
                connection.handle_attempt_ended(now_ns, failure)
            }
            Distrust::Secret => connection.handle_attempt_ended(now_ns, PeerFailure::WrongSecret),
            Distrust::Elsewhere(locator) => {
                let cause = format!(
                    "another engine of the job answered, from {locator}: a third party relays the \
                     connection, or translates addresses"
                );
                connection.handle_attempt_failed(now_ns, &cause)
            }
        };
        state.core.apply(session, step, &mut state.completions);
    }

    fn handle_join_reply(
        &mut self,
        key: LaneKey,
        lane: Id,
        initiator: &Initiator,
        reply: &HelloReply,
    ) {
        let state = &*self.state;
        let session = state.core.lane(lane).map(|(session, _)| session);
        let Some(keys) = session.and_then(|session| session.keys.as_ref()) else {
            return self.handle_connect_failed(key, "its session is over");
        };
        match initiator.handle_join_reply(&state.keys, keys, reply) {
            Ok(HelloStatus::Accepted) => self.lane_joined(key, lane),
            Ok(HelloStatus::Busy) => {
                self.set_lane_key(lane, None);
                let now_ns = self.state.now_ns;
                self.state.core.with_lane(lane, |it, cx| it.handle_lane_refused(cx, lane, now_ns));
                self.state.roles.insert(key, CLOSING);
                self.driver.close(key, CloseMode::Graceful);
            }
            Ok(_) => self.handle_connect_failed(key, "the peer refused a bulk lane"),
            Err(_) => self.handle_connect_failed(key, "the reply to a join is not authentic"),
        }
    }
}
