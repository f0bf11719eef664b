//! Connecting sessions, establishing them, and leaving them.

use super::connection::{Connection, Phase, Step};
use super::ending::Sequel;
use super::{ControlFrame, Limits, Session};
use crate::proto::context::Cx;
use crate::proto::core::{Action, Core};
use crate::proto::effects::Effects;
use crate::proto::failure::PeerFailure;
use crate::proto::keys::SessionKeys;
use crate::proto::ready::Work;
use crate::proto::session::segments::uncommon::Uncommon;
use crate::wire::goodbye::REASON_CLOSED;

/// What a connection asks the loop for.
impl Connection {
    /// Closes the control lane of its session, or the attempt to connect; the next send connects.
    pub(in crate::proto) fn stop(&mut self, cx: &mut Cx<'_>) {
        cx.act(Action::CloseControl { session: cx.slot, is_failure: false });
        self.fail();
        self.reset();
    }

    /// Connects, if it is not connected, nor about to be (on a user's request, or for waiting
    /// sends).
    pub(crate) fn connect(&mut self, cx: &mut Cx<'_>, now_ns: u64) {
        if self.want(now_ns) == Step::Connect {
            // All deadlines of a connection follow from a first attempt.
            cx.add_work(Work::Deadline);
            cx.act(Action::Connect { session: cx.slot });
        }
    }

    /// Handles an expired deadline. Queues the action that closes an attempt which timed out.
    fn handle_deadline(&mut self, mut cx: Cx<'_>, now_ns: u64) -> Step {
        let is_trying = matches!(self.phase(), Phase::Connecting | Phase::ConnectAck);
        if is_trying && self.deadline_ns().is_some_and(|deadline| now_ns >= deadline) {
            cx.act(Action::CloseControl { session: cx.slot, is_failure: false });
        }
        self.handle_timeout(now_ns)
    }
}

impl Session {
    /// Clears a failure, so that the next send connects.
    pub(crate) fn reset_failure(&mut self) {
        self.ending.reset();
        self.connection.reset();
    }

    /// Sends a goodbye, or stops connecting.
    fn leave(&mut self, cx: &mut Cx<'_>) {
        let is_connected = self.is_connected();
        if self.ending.leave(is_connected) {
            self.segments.add_uncommon(Uncommon::LEAVING);
            self.send_control(cx, ControlFrame::goodbye(REASON_CLOSED));
        } else if !is_connected {
            self.connection.stop(cx);
        }
    }
}

impl Core {
    /// Connects a session on the user's request, whatever the state of the last one. Returns the
    /// failure to report to the user.
    pub(crate) fn connect(&mut self, session: u32, now_ns: u64) -> Option<PeerFailure> {
        let entered = debug_assert_some!(self.enter(session), "the session of a peer exists");
        let (known, mut cx) = entered?;
        let unreported = known.ending.take_unreported();
        if known.ending.is_leaving() && known.is_connected() {
            known.ending.continue_by(Sequel::Connect);
        } else {
            known.reset_failure();
            known.connection.connect(&mut cx, now_ns);
        }
        unreported
    }

    /// Sends a goodbye on a session; the loop closes the lane once that is sent.
    ///
    /// RR-END-1.
    pub(crate) fn leave(&mut self, session: u32) {
        if self.is_loopback(session) {
            return;
        }
        self.with(session, |it, mut cx| it.leave(&mut cx));
        self.end_own_offer(session);
    }

    /// Establishes a session after both sides were authenticated.
    pub(crate) fn establish(
        &mut self,
        session: u32,
        ours: Limits,
        theirs: Limits,
        keys: SessionKeys,
    ) {
        if let Some((known, mut cx)) = self.enter(session) {
            known.establish(cx.shared, ours, theirs, Some(keys));
            cx.shared.offers.reserve(ours);
            cx.shared.offers.note_windows(cx.slot, known.segments.receive_credits());
            cx.add_work(Work::Stage);
            cx.act(Action::Established { session });
        }
        self.end_own_offer(session);
    }

    /// Executes the step of a connection.
    pub(crate) fn apply(&mut self, session: u32, step: Step, effects: &mut impl Effects) {
        match step {
            Step::Nothing => {}
            Step::Connect => self.shared.act(Action::Connect { session }),
            Step::Fail(failure) => self.fail_session(session, failure, effects),
        }
    }

    /// Returns the earliest deadline of all connections. Costs nothing for those that are up or
    /// down.
    pub(crate) fn next_deadline_ns(&self) -> Option<u64> {
        let timed = self.shared.ready.iter(Work::Deadline);
        let timed = timed.filter_map(|slot| self.sessions.at(slot as usize));
        timed.filter_map(|session| session.connection.deadline_ns()).min()
    }

    /// Handles expired deadlines. Queues actions to close the attempts that timed out.
    pub(crate) fn handle_timeouts(&mut self, now_ns: u64, effects: &mut impl Effects) {
        let mut timed = self.shared.ready.detach(Work::Deadline);
        timed.retain(|&slot| {
            if !self.shared.ready.has(slot, Work::Deadline) {
                return false; // an earlier step has removed the session
            }
            let handled = self.with(slot, |it, cx| {
                let step = it.connection.handle_deadline(cx, now_ns);
                (step, it.connection.deadline_ns().is_some())
            });
            let handled = debug_assert_some!(handled, "a session with a deadline exists");
            let (step, stays) = handled.unwrap_or((Step::Nothing, false));
            debug_assert!(!stays || !matches!(step, Step::Fail(_)), "a failed one has none");
            if !stays {
                self.shared.ready.drop_detached(slot, Work::Deadline);
            }
            self.apply(slot, step, effects);
            stays
        });
        self.shared.ready.reattach(Work::Deadline, timed);
    }
}
