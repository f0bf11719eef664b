//! Connections that this side opens: its hellos, and the replies to them.

use std::net::SocketAddr;

use rand::RngExt;
use zerocopy::IntoBytes;

use super::Handshakes;
use crate::progress::datagram::Announced;
use crate::progress::roles::{ConnectionRole, PartialMessage};
use crate::progress::setup::SetupCx;
use crate::progress::traits::{CloseMode, Interest, LaneKey};
use crate::proto::failure::PeerFailure;
use crate::proto::handshake::{Distrust, Initiator};
use crate::proto::session::connection::Phase;
use crate::proto::session::control_lane::LaneEvent;
use crate::proto::session::{Limits, NOTHING};
use crate::proto::table::Id;
use crate::wire::hello::{HELLO_BYTES, HelloStatus, KIND_BULK, KIND_CONTROL, KIND_MOVE};
use crate::wire::locators::Locators;
use crate::wire::proof::PROOF_BYTES;
use crate::wire::{Hello, HelloReply, VERSION};

/// A session that a reply has established.
pub(super) struct Begun {
    /// The peer's announcement of its datagrams.
    pub(super) datagrams: Announced,
    /// The kernel has taken the proof.
    pub(super) is_sent: bool,
}

impl Handshakes {
    /// Sends the hello on an established TCP connection.
    pub(in crate::progress) fn handle_connected(&mut self, key: LaneKey, cx: &mut SetupCx<'_>) {
        match cx.lanes.roles.get_mut(key) {
            Some(&mut ConnectionRole::Connecting { session, remote }) => {
                self.begin_control(key, session, remote, cx);
            }
            Some(&mut ConnectionRole::LaneConnecting { lane, remote }) => {
                let Some(initiator) = self.join(lane, remote, cx) else {
                    cx.lanes.driver.close(key, CloseMode::Reset);
                    return;
                };
                if cx.say_hello(key, initiator.hello()) {
                    let partial = PartialMessage::new();
                    cx.await_reply(
                        key,
                        ConnectionRole::LaneAwaitReply { lane, initiator, partial },
                    );
                }
            }
            Some(&mut ConnectionRole::MoveConnecting { session, remote }) => {
                self.begin_move(key, session, remote, cx);
            }
            _ => {}
        }
    }

    fn begin_control(
        &mut self,
        key: LaneKey,
        session: u32,
        remote: SocketAddr,
        cx: &mut SetupCx<'_>,
    ) {
        let core = &mut cx.lanes.core;
        let entered = core.enter(session);
        let wanted = entered.filter(|(it, _)| it.connection().phase() == Phase::Connecting);
        let Some((known, mut of_it)) = wanted else {
            // The session was abandoned, established otherwise, or took too long: the loop is about
            // to drop the attempt, and its hello must not reserve a window.
            return;
        };
        let (target, answered) = (known.peer().id(), known.connection().answered());
        let ours = known.peer_mut().offer_in_hello(&mut of_it, self.new_session_id());
        let epoch = core.shared_mut().peers_mut().next_epoch();
        let mut hello = cx.hello(target, KIND_CONTROL, ours);
        (hello.epoch, hello.answered) = (epoch.into(), answered.into());
        let nonce = self.random.random();
        let initiator = Box::new(Initiator::start(&self.keys, hello, nonce, remote));
        if !cx.say_hello(key, initiator.hello()) {
            return;
        }
        if let Some((known, _)) = cx.lanes.core.enter(session) {
            known.connection_mut().handle_connected(*cx.lanes.now_ns, epoch);
        }
        let partial = PartialMessage::new();
        cx.await_reply(key, ConnectionRole::AwaitReply { session, ours, initiator, partial });
    }

    /// Creates the hello of a bulk lane of ours to `remote`; `None`: its session has ended.
    fn join(&mut self, lane: Id, remote: SocketAddr, cx: &SetupCx<'_>) -> Option<Box<Initiator>> {
        let nonce = self.random.random();
        let bulk = cx.lanes.core.shared().lanes().get(lane)?;
        let known = cx.lanes.core.session(bulk.session())?;
        let keys = known.keys()?;
        let ours = Limits { session: known.id(), ..NOTHING };
        let mut hello = cx.hello(known.peer().id(), KIND_BULK, ours);
        hello.lane = bulk.number().into();
        hello.path = known.rails().path(bulk.path())?.number.into();
        Some(Box::new(Initiator::join(keys, hello, nonce, remote)))
    }

    /// Sends the hello on an established TCP connection of another rail.
    fn begin_move(&mut self, key: LaneKey, session: u32, remote: SocketAddr, cx: &mut SetupCx<'_>) {
        let nonce = self.random.random();
        let is_awaited = cx.controls.moving(session) == Some(key);
        let known = cx.lanes.core.session(session).filter(|_| is_awaited);
        let Some(at) = known.and_then(|known| known.control_lane().attempt_at()) else {
            return cx.handle_connect_failed(key, "it is not needed any more");
        };
        let number = cx.lanes.core.enter(session).and_then(|(it, _)| {
            let path = it.rails().path(at)?.number;
            Some((it.lanes_mut().take_number()?, path))
        });
        let known = cx.lanes.core.session(session);
        let known = known.and_then(|known| Some((known, known.keys()?)));
        let (Some((number, path)), Some((known, keys))) = (number, known) else {
            return cx.handle_connect_failed(key, "its session has ended");
        };
        let ours = Limits { session: known.id(), ..NOTHING };
        let mut hello = cx.hello(known.peer().id(), KIND_MOVE, ours);
        (hello.lane, hello.path) = (number.into(), path.into());
        let initiator = Box::new(Initiator::join(keys, hello, nonce, remote));
        if cx.say_hello(key, initiator.hello()) {
            if let Some((known, _)) = cx.lanes.core.enter(session) {
                known.control_lane_mut().handle_attempt_connected();
            }
            let partial = PartialMessage::new();
            cx.await_reply(key, ConnectionRole::MoveAwaitReply { session, initiator, partial });
        }
    }

    // ---- Replies ----

    /// Handles the reply to the hello of a control lane. `None`: it establishes no session.
    ///
    /// RR-AUTH-3
    pub(super) fn handle_reply(
        &mut self,
        key: LaneKey,
        (session, ours): (u32, Limits),
        initiator: &Initiator,
        reply: &HelloReply,
        cx: &mut SetupCx<'_>,
    ) -> Option<Begun> {
        let (status, accepted) = match initiator.handle_reply(&self.keys, reply) {
            Ok(believed) => believed,
            Err(distrust) => {
                cx.handle_distrust(session, distrust);
                return None;
            }
        };
        if status == HelloStatus::WrongEngine
            && let Some(locators) = Locators::from_wire(&reply.address)
            && cx.lanes.core.session(session).is_some_and(|it| it.peer().is_at_place(&locators))
        {
            cx.drop_attempt(session);
            let (engine, now_ns) = (reply.address.engine.get(), *cx.lanes.now_ns);
            cx.lanes.core.adopt(session, engine, locators, now_ns, cx.lanes.completions);
            return None;
        }
        let connection = cx.lanes.core.enter(session)?.0.connection_mut();
        let theirs = Limits {
            session: ours.session,
            envelope_limit: reply.envelope_limit.get(),
            byte_limit: reply.byte_limit.get(),
            eager_limit: reply.eager_limit.get(),
            ..Limits::of_flags(reply.flags)
        };
        let was_connected = connection.is_connected();
        let step = connection.handle_reply(*cx.lanes.now_ns, status);
        if connection.is_connected() && !was_connected {
            // Nothing may be sent between the proof and the first segment.
            let sent = cx.send_handshake(key, accepted.proof.as_bytes());
            cx.lanes.core.establish(session, ours, theirs, accepted.keys);
            cx.controls.take_attempt(session);
            let datagrams = Announced::of_reply(reply);
            return Some(Begun { datagrams, is_sent: matches!(sent, Ok(PROOF_BYTES)) });
        }
        cx.drop_attempt(session);
        cx.lanes.core.apply(session, step, cx.lanes.completions);
        None
    }

    /// Handles the reply to the hello of a bulk lane.
    pub(super) fn handle_join_reply(
        &mut self,
        key: LaneKey,
        lane: Id,
        initiator: &Initiator,
        reply: &HelloReply,
        cx: &mut SetupCx<'_>,
    ) {
        let core = &mut cx.lanes.core;
        let bulk = core.shared().lanes().get(lane);
        let session = bulk.and_then(|bulk| core.session(bulk.session()));
        let Some(keys) = session.and_then(|session| session.keys()) else {
            return cx.handle_connect_failed(key, "its session is over");
        };
        match initiator.handle_join_reply(&self.keys, keys, reply) {
            Ok(HelloStatus::Accepted) => cx.lanes.handle_joined(key, lane),
            Ok(HelloStatus::Busy) => {
                cx.bulk.set_key(core, lane, None);
                let now_ns = *cx.lanes.now_ns;
                core.with_lane(lane, |it, mut cx| {
                    it.handle_lane_refused(&mut cx, lane, now_ns);
                });
                cx.lanes.close(key, CloseMode::Graceful);
            }
            Ok(_) => cx.handle_connect_failed(key, "the peer refused a bulk lane"),
            Err(_) => cx.handle_connect_failed(key, "the reply to a join is not authentic"),
        }
    }

    /// Handles the reply to the hello of another control lane. Returns what happens to that.
    pub(super) fn handle_move_reply(
        &mut self,
        key: LaneKey,
        session: u32,
        initiator: &Initiator,
        reply: &HelloReply,
        cx: &mut SetupCx<'_>,
    ) -> Option<LaneEvent> {
        let known = cx.lanes.core.session(session);
        let Some(keys) = known.and_then(|known| known.keys()) else {
            cx.handle_connect_failed(key, "its session has ended");
            return None;
        };
        let status = initiator.handle_join_reply(&self.keys, keys, reply);
        let is_awaited = cx.controls.moving(session) == Some(key);
        match status {
            Ok(status) if is_awaited => return Some(LaneEvent::Reply(status)),
            Ok(_) => cx.handle_connect_failed(key, "it is not needed any more"),
            Err(_) => cx.handle_connect_failed(key, "the reply to a move is not authentic"),
        }
        None
    }
}

impl SetupCx<'_> {
    /// Sends a hello. Returns `false` if the connection has failed.
    fn say_hello(&mut self, key: LaneKey, hello: &Hello) -> bool {
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

    fn await_reply(&mut self, key: LaneKey, role: ConnectionRole) {
        self.lanes.roles.insert(key, role);
        self.lanes.watch(key, Interest::Readable);
    }

    /// Handles a reply that is not authenticated: the attempt has failed, whatever it contains.
    pub(super) fn handle_distrust(&mut self, session: u32, distrust: Distrust) {
        self.drop_attempt(session);
        self.end_attempt(session, |connection, now_ns| match distrust {
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
        });
    }
}
