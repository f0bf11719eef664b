//! The hello exchange: receives hellos, replies and proofs, and acts on them.
//!
//! A connection is unauthenticated until its proof has arrived; unauthenticated ones are counted
//! and have a deadline. [`crate::proto::handshake`] authenticates messages, [`crate::proto::peers`]
//! decides on sessions.

mod answer;
mod initiate;
mod refusals;

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::sync::Arc;

use rand::RngExt;
use rand::rngs::StdRng;
use zerocopy::{FromBytes, IntoBytes};

use self::answer::Proven;
use self::refusals::Refusals;
use super::engine::Engine;
use super::roles::{CLOSING, ConnectionRole, PartialMessage};
use super::setup::SetupCx;
use super::traits::{CloseMode, Interest, LaneKey};
use crate::proto::handshake::Distrust;
use crate::proto::keys::JobKeys;
use crate::proto::session::NOTHING;
use crate::types::Event;
use crate::wire::hello::{
    HELLO_BYTES, HELLO_REPLY_BYTES, HelloStatus, KIND_BULK, KIND_MOVE, MAGIC,
};
use crate::wire::proof::{PROOF_BYTES, PROOF_MAGIC};
use crate::wire::{Hello, HelloReply, Proof, VERSION};

/// Position of the version in hellos and replies of all versions.
const VERSION_AT: std::ops::Range<usize> = 8..10;

/// The connections that belong to no session yet.
#[derive(Debug)]
pub(crate) struct Handshakes {
    keys: Arc<JobKeys>,
    /// Source of nonces.
    random: StdRng,
    next_session_id: u64,
    /// Number of unauthenticated connections.
    pending: usize,
    refusals: Refusals,
}

/// What was received of a message.
enum HandshakeMessage {
    /// Nothing, or a part.
    Incomplete,
    /// The connection was closed, or failed, for this cause.
    Failed(String),
    /// The peer closed the connection instead of sending its proof.
    Withdrawn,
    /// It is of another version.
    OtherVersion(u16),
    Complete([u8; HELLO_BYTES]),
}

impl Handshakes {
    /// Creates the handshakes of an engine.
    pub(super) fn new(keys: Arc<JobKeys>, mut random: StdRng) -> Self {
        let next_session_id = random.random::<u64>() | 1;
        Self { keys, random, next_session_id, pending: 0, refusals: Refusals::default() }
    }

    /// Returns the number of unauthenticated connections.
    pub(crate) fn pending(&self) -> usize {
        self.pending
    }

    fn new_session_id(&mut self) -> u64 {
        // Distinct per attempt; the seed is random. Splitmix's increment visits all numbers.
        self.next_session_id = self.next_session_id.wrapping_add(0x9e37_79b9_7f4a_7c15);
        self.next_session_id.max(1)
    }

    // ---- Unauthenticated connections ----

    /// Handles a connection that was opened by an unknown process.
    pub(super) fn handle_accepted(
        &mut self,
        key: LaneKey,
        remote: SocketAddr,
        cx: &mut SetupCx<'_>,
    ) {
        if self.pending >= cx.lanes.config.handshake_pending_max {
            self.refuse(key, remote, "too many unauthenticated connections", cx);
            return;
        }
        self.pending += 1;
        let since_ns = *cx.lanes.now_ns;
        let role = ConnectionRole::AwaitHello { remote, since_ns, partial: PartialMessage::new() };
        cx.lanes.roles.insert(key, role);
        cx.lanes.watch(key, Interest::Readable);
    }

    /// Closes an unauthenticated connection, and reports it to the user. If there are too many,
    /// accepting pauses, so that established sessions lose no time; peers that connect meanwhile
    /// wait in the backlog, too.
    ///
    /// RR-CONN-5.
    fn refuse(&mut self, key: LaneKey, remote: SocketAddr, cause: &str, cx: &mut SetupCx<'_>) {
        self.dismiss(key, cx);
        let event = Event::Refused { remote, cause: cause.to_owned() };
        cx.lanes.completions.events_mut().push(&event);
        if self.refusals.exceed_rate(*cx.lanes.now_ns) {
            cx.lanes.driver.pause_accept(refusals::PAUSE);
        }
    }

    /// Closes an unauthenticated connection, and releases all that it holds.
    fn dismiss(&mut self, key: LaneKey, cx: &mut SetupCx<'_>) {
        self.take_unauthenticated(key, cx);
        cx.lanes.close(key, CloseMode::Graceful);
    }

    /// Removes a connection from the unauthenticated ones, as it is authenticated, or about to be
    /// closed.
    fn take_unauthenticated(&mut self, key: LaneKey, cx: &mut SetupCx<'_>) {
        match cx.lanes.roles.get_mut(key).map(|role| std::mem::replace(role, CLOSING)) {
            Some(ConnectionRole::AwaitHello { .. }) => self.pending -= 1,
            Some(ConnectionRole::AwaitProof { half, .. }) => {
                self.pending -= 1;
                cx.lanes.core.withdraw(half.admission);
            }
            // It is refused: one too many, or its proof was wrong.
            _ => {}
        }
    }

    /// Closes unauthenticated connections after their deadline.
    ///
    /// RR-CONN-5.
    pub(super) fn drop_silent(&mut self, cx: &mut SetupCx<'_>) {
        let lanes = &mut cx.lanes;
        lanes.roles.forget_completed();
        let now_ns = *lanes.now_ns;
        let limit_ns = lanes.config.handshake_timeout.as_nanos() as u64;
        let late = lanes.roles.handshakes().filter_map(|(key, role)| match role {
            ConnectionRole::AwaitHello { since_ns, .. } if now_ns - since_ns > limit_ns => {
                Some((key, "no hello received in time"))
            }
            ConnectionRole::AwaitProof { since_ns, .. } if now_ns - since_ns > limit_ns => {
                Some((key, "no proof of the job's secret received in time"))
            }
            _ => None,
        });
        for (key, cause) in late.collect::<Vec<_>>() {
            self.fail(key, cause, cx);
        }
        let core = &cx.lanes.core;
        let peer_ns = cx.lanes.config.peer_timeout.as_nanos() as u64;
        let late = cx.lanes.roles.handshakes().filter_map(|(key, role)| match role {
            ConnectionRole::LaneConnecting { lane, .. }
            | ConnectionRole::LaneAwaitReply { lane, .. } => {
                let asked_ns = core.shared().lanes().get(*lane)?.used_ns();
                (now_ns.saturating_sub(asked_ns) > limit_ns).then_some(key)
            }
            ConnectionRole::MoveConnecting { session, .. }
            | ConnectionRole::MoveAwaitReply { session, .. } => {
                let monitor = core.session(*session)?.control_lane();
                monitor.is_attempt_late(now_ns, limit_ns, peer_ns).then_some(key)
            }
            _ => None,
        });
        for key in late.collect::<Vec<_>>() {
            cx.handle_connect_failed(key, "the peer did not answer the join of the lane in time");
        }
    }

    /// Closes a connection whose handshake has failed.
    fn fail(&mut self, key: LaneKey, cause: &str, cx: &mut SetupCx<'_>) {
        match cx.lanes.roles.get_mut(key) {
            Some(
                &mut (ConnectionRole::AwaitHello { remote, .. }
                | ConnectionRole::AwaitProof { remote, .. }),
            ) => {
                self.refuse(key, remote, cause, cx);
            }
            _ => cx.handle_connect_failed(key, cause),
        }
    }

    // ---- Bytes ----

    /// Reads a connection in a handshake. Returns the message if it is complete.
    ///
    /// RR-CONN-1
    pub(super) fn read(&mut self, key: LaneKey, cx: &mut SetupCx<'_>) -> Option<[u8; HELLO_BYTES]> {
        match cx.receive_message(key) {
            HandshakeMessage::Incomplete => {}
            HandshakeMessage::Withdrawn => self.dismiss(key, cx),
            HandshakeMessage::Failed(cause) => self.fail(key, &cause, cx),
            HandshakeMessage::OtherVersion(theirs) => self.handle_other_version(key, theirs, cx),
            HandshakeMessage::Complete(bytes) => return Some(bytes),
        }
        None
    }

    fn handle_other_version(&mut self, key: LaneKey, theirs: u16, cx: &mut SetupCx<'_>) {
        match cx.lanes.roles.get_mut(key) {
            Some(&mut ConnectionRole::AwaitHello { remote, .. }) => {
                let reply = cx.reply(HelloStatus::WrongVersion, NOTHING);
                cx.send_reply(key, &reply);
                let cause = format!("it uses wire version {theirs}, not {VERSION}");
                self.refuse(key, remote, &cause, cx);
            }
            Some(&mut ConnectionRole::AwaitReply { session, .. }) => {
                cx.handle_distrust(session, Distrust::Version(theirs));
            }
            _ => cx.handle_connect_failed(key, "it uses another wire version"),
        }
    }
}

impl SetupCx<'_> {
    /// Sends a hello, a reply or a proof; retries after a signal.
    fn send_handshake(&mut self, key: LaneKey, bytes: &[u8]) -> io::Result<usize> {
        loop {
            match self.lanes.driver.send(key, bytes) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                sent => return sent,
            }
        }
    }

    /// Sends a reply. Returns whether the kernel takes it: a fresh socket has space for so few
    /// bytes unless it is failing.
    fn send_reply(&mut self, key: LaneKey, reply: &HelloReply) -> bool {
        matches!(self.send_handshake(key, reply.as_bytes()), Ok(HELLO_REPLY_BYTES))
    }

    fn receive_message(&mut self, key: LaneKey) -> HandshakeMessage {
        let awaited = self.lanes.roles.get_mut(key).and_then(ConnectionRole::awaited);
        // It is being closed.
        let Some((partial, wanted)) = awaited else { return HandshakeMessage::Incomplete };
        let is_proof = wanted == PROOF_BYTES;
        let received = self.lanes.driver.recv(key, &mut partial.bytes[partial.length..wanted]);
        match received {
            // One of two crossing connections is abandoned this way.
            Ok(0) if is_proof => return HandshakeMessage::Withdrawn,
            Ok(0) => {
                return HandshakeMessage::Failed(
                    "the connection was closed during the hello".into(),
                );
            }
            Ok(got) => partial.length += got,
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(error) => return HandshakeMessage::Failed(error.to_string()),
        }
        // Invalid bytes are detected at the first difference, not when enough have arrived; so are
        // other versions, whose messages may be shorter.
        let (bytes, length) = (&partial.bytes, partial.length);
        let magic = if is_proof { &PROOF_MAGIC[..] } else { &MAGIC[..] };
        let known = length.min(magic.len());
        let version = u16::from_le_bytes([bytes[VERSION_AT.start], bytes[VERSION_AT.start + 1]]);
        if bytes[..known] != magic[..known] {
            let cause = "the remote process does not use the ringrail protocol";
            HandshakeMessage::Failed(cause.into())
        } else if !is_proof && length >= VERSION_AT.end && version != VERSION {
            HandshakeMessage::OtherVersion(version)
        } else if length == wanted {
            HandshakeMessage::Complete(**bytes)
        } else {
            self.lanes.watch(key, Interest::Readable);
            HandshakeMessage::Incomplete
        }
    }
}

impl Engine {
    /// Handles a readable connection.
    pub(super) fn handle_readable(&mut self, key: LaneKey) {
        match self.state.roles.get_mut(key) {
            Some(&mut ConnectionRole::Control { session }) => self.handle_control_readable(session),
            Some(ConnectionRole::Bulk { lane, traffic }) => {
                let lane = (*lane, traffic.receiving.is_some());
                let mut cx = self.setup();
                cx.bulk.handle_readable(key, lane, &mut cx.lanes);
            }
            _ => {
                let (handshakes, mut cx) = self.handshakes();
                if let Some(message) = handshakes.read(key, &mut cx) {
                    self.handle_handshake(key, &message);
                }
            }
        }
    }

    /// Handles a complete message.
    fn handle_handshake(&mut self, key: LaneKey, bytes: &[u8; HELLO_BYTES]) {
        let (handshakes, mut cx) = self.handshakes();
        match cx.lanes.roles.get_mut(key) {
            Some(&mut ConnectionRole::AwaitHello { remote, .. }) => {
                let hello: &Hello = zerocopy::transmute_ref!(bytes);
                match hello.kind {
                    KIND_BULK => handshakes.handle_join(key, remote, hello, &mut cx),
                    KIND_MOVE => {
                        if let Some((session, at)) =
                            handshakes.handle_move(key, remote, hello, &mut cx)
                        {
                            cx.control_moved(session, key, at);
                        }
                    }
                    _ => {
                        if cx.lanes.core.sessions().is_full() {
                            // Pending actions of a closed session keep its slot in use.
                            self.carry_out();
                        }
                        let (handshakes, mut cx) = self.handshakes();
                        handshakes.handle_hello(key, remote, hello, &mut cx);
                    }
                }
            }
            Some(&mut ConnectionRole::AwaitProof { remote, .. }) => {
                if let Ok(proof) = Proof::ref_from_bytes(&bytes[..PROOF_BYTES]) {
                    self.handle_proof(key, remote, proof);
                }
            }
            _ => {
                if let Ok(reply) = HelloReply::ref_from_bytes(&bytes[..HELLO_REPLY_BYTES]) {
                    self.handle_any_reply(key, reply);
                }
            }
        }
    }

    /// Handles the proof that the sender of an accepted hello made it now.
    ///
    /// RR-AUTH-2.
    fn handle_proof(&mut self, key: LaneKey, remote: SocketAddr, proof: &Proof) {
        // Pending actions of an earlier session must not affect the one that begins here.
        self.carry_out();
        let (handshakes, mut cx) = self.handshakes();
        let Some(proven) = handshakes.check_proof(key, remote, proof, &mut cx) else { return };
        let core = &self.state.core;
        let outlived = core.shared().peers().outlived_by(core.sessions(), &proven.admission);
        if let Some(outlived) = outlived {
            self.state.lose(outlived, "its process has begun another session");
            self.carry_out();
        }
        let (handshakes, mut cx) = self.handshakes();
        let Proven { admission, ours, theirs, keys, datagrams } = proven;
        let Some(session) = cx.lanes.core.admit_peer(admission, ours, theirs, keys) else {
            // Another connection of the two engines is their session by now.
            return handshakes.dismiss(key, &mut cx);
        };
        cx.drop_attempt(session);
        self.begin_session(session, key, datagrams);
    }

    /// Handles the reply to a hello of this side.
    fn handle_any_reply(&mut self, key: LaneKey, reply: &HelloReply) {
        let (handshakes, mut cx) = self.handshakes();
        match cx.lanes.roles.get_mut(key) {
            Some(&mut ConnectionRole::AwaitReply { session, ours, ref initiator, .. }) => {
                let initiator = initiator.clone();
                let handled =
                    handshakes.handle_reply(key, (session, ours), &initiator, reply, &mut cx);
                if let Some(begun) = handled {
                    self.begin_session(session, key, begun.datagrams);
                    if !begun.is_sent {
                        self.state.lose(session, "a new connection accepts no data");
                    }
                }
            }
            Some(&mut ConnectionRole::MoveAwaitReply { session, ref initiator, .. }) => {
                let initiator = initiator.clone();
                let handled =
                    handshakes.handle_move_reply(key, session, &initiator, reply, &mut cx);
                if let Some(event) = handled {
                    self.handle_lane_event(session, event);
                }
            }
            Some(&mut ConnectionRole::LaneAwaitReply { lane, ref initiator, .. }) => {
                let initiator = initiator.clone();
                handshakes.handle_join_reply(key, lane, &initiator, reply, &mut cx);
            }
            _ => {}
        }
    }
}
