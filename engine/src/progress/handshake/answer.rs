//! Connections that peers open: answers to their hellos.

use std::net::SocketAddr;

use rand::RngExt;

use super::Handshakes;
use crate::progress::bulk::LaneEnd;
use crate::progress::datagram::Announced;
use crate::progress::roles::{CLOSING, ConnectionRole, HalfOpen, PartialMessage};
use crate::progress::setup::SetupCx;
use crate::progress::traits::{CloseMode, Interest, LaneKey};
use crate::proto::context::Cx;
use crate::proto::handshake::{Acceptor, answer_join, is_of_job};
use crate::proto::keys::SessionKeys;
use crate::proto::peers::Admission;
use crate::proto::session::{Limits, NOTHING, Session};
use crate::types::Address;
use crate::wire::hello::{FLAG_INSECURE, HelloStatus, KIND_CONTROL};
use crate::wire::{Hello, Proof};

/// The session of a peer that has proved to be of the job.
pub(super) struct Proven {
    pub(super) admission: Admission,
    pub(super) ours: Limits,
    pub(super) theirs: Limits,
    pub(super) keys: SessionKeys,
    /// The peer's announcement of its datagrams.
    pub(super) datagrams: Announced,
}

impl Handshakes {
    /// Handles the hello of a control lane.
    ///
    /// RR-CONN-2, RR-CONN-3, RR-CONN-7.
    ///
    /// RR-AUTH-1, RR-AUTH-4.
    pub(super) fn handle_hello(
        &mut self,
        key: LaneKey,
        remote: SocketAddr,
        hello: &Hello,
        cx: &mut SetupCx<'_>,
    ) {
        let theirs = Limits {
            session: hello.session.get(),
            envelope_limit: hello.envelope_limit.get(),
            byte_limit: hello.byte_limit.get(),
            eager_limit: hello.eager_limit.get(),
            ..Limits::of_flags(hello.flags)
        };
        let verdict = self.judge_hello(hello, cx);
        let (status, ours) = match &verdict {
            Ok(_) => {
                let ours = cx.lanes.core.shared_mut().offer_to(hello.source.get(), theirs.session);
                (HelloStatus::Accepted, ours)
            }
            Err(status) => (*status, NOTHING),
        };
        let reply = cx.reply(status, ours);
        let nonce = self.random.random();
        let (reply, acceptor) = Acceptor::answer(&self.keys, hello, reply, nonce);
        let is_sent = cx.send_reply(key, &reply);
        match verdict {
            Ok(admission) => {
                let datagrams = Announced::of_hello(hello);
                let half = Box::new(HalfOpen { admission, acceptor, ours, theirs, datagrams });
                // The hello may have waited here for long; the proof has a timeout of its own.
                let since_ns = *cx.lanes.now_ns;
                let role = ConnectionRole::AwaitProof {
                    remote,
                    since_ns,
                    half,
                    partial: PartialMessage::new(),
                };
                cx.lanes.roles.insert(key, role);
                if is_sent {
                    cx.lanes.watch(key, Interest::Readable);
                } else {
                    self.refuse(key, remote, "a new connection accepts no data", cx);
                }
            }
            Err(HelloStatus::ElectionLost | HelloStatus::AlreadyConnected) => {
                self.dismiss(key, cx);
            }
            // It requested the engine's id, and got it.
            Err(HelloStatus::WrongEngine) if hello.target.get() == 0 => self.dismiss(key, cx),
            Err(status) => {
                let is_insecure = hello.flags & FLAG_INSECURE != 0;
                let mut cause = self.refusal(status, is_insecure, cx);
                if status == HelloStatus::WrongSecret {
                    cause = self.refusals.report_wrong_secret(remote, &cause, cx);
                }
                self.refuse(key, remote, &cause, cx);
            }
        }
    }

    fn judge_hello(&self, hello: &Hello, cx: &mut SetupCx<'_>) -> Result<Admission, HelloStatus> {
        let core = &mut cx.lanes.core;
        if !is_of_job(&self.keys, hello) {
            return Err(HelloStatus::WrongSecret);
        }
        if hello.target.get() != core.shared().engine() {
            return Err(HelloStatus::WrongEngine);
        }
        let engine = hello.source.get();
        match Address::from_wire(&hello.address) {
            Ok(address) if hello.kind == KIND_CONTROL && address.engine() == engine => {
                let (id, locators) = (hello.session.get(), address.to_locators());
                core.judge_hello(engine, locators, id, hello.epoch.get(), hello.answered.get())
            }
            _ => Err(HelloStatus::Malformed),
        }
    }

    /// Returns why a hello is refused, for the user.
    fn refusal(&self, status: HelloStatus, is_insecure: bool, cx: &SetupCx<'_>) -> String {
        match status {
            HelloStatus::WrongSecret if is_insecure => {
                "it runs without a job secret (insecure = true there), this side has one".into()
            }
            HelloStatus::WrongSecret if self.keys.is_insecure() => {
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
                cx.lanes.core.sessions().limit()
            ),
            other => format!("{other:?}"),
        }
    }

    /// Checks the proof that the sender of an accepted hello made it now.
    pub(super) fn check_proof(
        &mut self,
        key: LaneKey,
        remote: SocketAddr,
        proof: &Proof,
        cx: &mut SetupCx<'_>,
    ) -> Option<Proven> {
        let role = cx.lanes.roles.get_mut(key)?;
        let ConnectionRole::AwaitProof { half, .. } = std::mem::replace(role, CLOSING) else {
            return None;
        };
        self.pending -= 1;
        let HalfOpen { admission, acceptor, ours, theirs, datagrams } = *half;
        let Ok(keys) = acceptor.handle_proof(proof) else {
            cx.lanes.core.withdraw(admission);
            self.refuse(key, remote, "its proof does not match this job's secret", cx);
            return None;
        };
        Some(Proven { admission, ours, theirs, keys, datagrams })
    }

    /// Handles the hello of a bulk lane.
    ///
    /// RR-AUTH-6.
    pub(super) fn handle_join(
        &mut self,
        key: LaneKey,
        remote: SocketAddr,
        hello: &Hello,
        cx: &mut SetupCx<'_>,
    ) {
        let now_ns = *cx.lanes.now_ns;
        let entered = cx.enter_joined(hello);
        let joined = entered.and_then(|(it, mut cx)| it.handle_lane_hello(&mut cx, hello, now_ns));
        let is_sent = self.answer_join(key, hello, joined.err(), cx);
        match joined {
            Ok(lane) => {
                self.take_unauthenticated(key, cx);
                cx.bulk.handle_accepted(key, lane, &mut cx.lanes);
                if !is_sent {
                    let end = LaneEnd::Failed("a new connection accepts no data");
                    cx.bulk.close(lane, end, &mut cx.lanes);
                }
            }
            Err(HelloStatus::Busy) => self.dismiss(key, cx),
            Err(status) => {
                let cause = match status {
                    HelloStatus::WrongSecret => "its join of a bulk lane is forged".to_owned(),
                    HelloStatus::StaleEpoch => "its join of a bulk lane is a replay".to_owned(),
                    other => format!("its join of a bulk lane: {other:?}"),
                };
                self.refuse(key, remote, &cause, cx);
            }
        }
    }

    /// Handles the hello of another control lane. Returns the session, and the position of its path
    /// that the lane is on.
    ///
    /// RR-RAIL-7.
    pub(super) fn handle_move(
        &mut self,
        key: LaneKey,
        remote: SocketAddr,
        hello: &Hello,
        cx: &mut SetupCx<'_>,
    ) -> Option<(u32, u8)> {
        let entered = cx.enter_joined(hello);
        let moved = entered.and_then(|(it, cx)| it.handle_move_hello(&cx, hello));
        let is_sent = self.answer_join(key, hello, moved.err(), cx);
        match moved {
            Ok(moved) => {
                self.take_unauthenticated(key, cx);
                if is_sent {
                    return Some(moved);
                }
                cx.lanes.driver.close(key, CloseMode::Reset);
            }
            Err(HelloStatus::Busy) => self.dismiss(key, cx),
            Err(status) => {
                let cause = format!("its other control connection: {status:?}");
                self.refuse(key, remote, &cause, cx);
            }
        }
        None
    }

    /// Answers the hello of a connection that joins a session. Returns whether the kernel takes the
    /// answer.
    fn answer_join(
        &mut self,
        key: LaneKey,
        hello: &Hello,
        refused: Option<HelloStatus>,
        cx: &mut SetupCx<'_>,
    ) -> bool {
        let status = refused.unwrap_or(HelloStatus::Accepted);
        let depends_on_session = matches!(status, HelloStatus::Accepted | HelloStatus::Busy);
        let reply = cx.reply(status, NOTHING);
        let nonce = self.random.random();
        let session = cx.lanes.core.keys_to_join(hello).filter(|_| depends_on_session);
        let reply = answer_join(&self.keys, session, hello, reply, nonce);
        cx.send_reply(key, &reply)
    }
}

impl SetupCx<'_> {
    /// Returns the session that a connection wants to join by a hello to this engine, as
    /// [`Core::enter_joined`](crate::proto::core::Core::enter_joined) does.
    fn enter_joined(&mut self, hello: &Hello) -> Result<(&mut Session, Cx<'_>), HelloStatus> {
        if hello.target.get() != self.lanes.core.shared().engine() {
            return Err(HelloStatus::WrongEngine);
        }
        self.lanes.core.enter_joined(hello)
    }
}
