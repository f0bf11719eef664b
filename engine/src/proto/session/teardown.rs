//! The end of a session: failed operations, messages that can still be received, released windows.

use super::Session;
use super::credit::ReceiveCredit;
use super::ending::Sequel;
use super::fence::Fences;
use crate::proto::context::{Cx, SharedState};
use crate::proto::core::{Action, Core};
use crate::proto::effects::Effects;
use crate::proto::failure::PeerFailure;
use crate::proto::operation::{Cause, Operation, OperationState};
use crate::proto::peers::Remote;
use crate::proto::ready::Work;
use crate::proto::table::Id;
use crate::proto::unexpected::Kind;

impl SharedState {
    /// Returns the only source that a waiting receive accepts messages of.
    pub(in crate::proto) fn source_of(&self, id: Id) -> Option<&Remote> {
        self.peers.at(self.operations.receive(id)?.source()?)
    }

    /// Returns whether a receive waits for messages of one source alone that `is_hit` selects.
    fn has_receive_from(&self, is_hit: impl Fn(&Remote) -> bool) -> bool {
        let mut waiting = self.operations.waiting_receives();
        waiting.any(|(id, _)| self.source_of(id).is_some_and(&is_hit))
    }
}

impl Core {
    /// Ends a session: everything outstanding with the peer fails, at once or as soon as the kernel
    /// has released the memory. For a session that has failed already the first cause remains. If
    /// this side has removed all of its peers, that is the cause. If it has left and its peer is
    /// wanted again, operations posted since are unaffected, and no failure remains. Where
    /// completed sends may be lost, and no operation ends with the failure, it is kept until it is
    /// reported to the owner.
    ///
    /// RR-END-1, RR-END-2, RR-END-5.
    pub(crate) fn fail_session(
        &mut self,
        slot: u32,
        failure: PeerFailure,
        effects: &mut impl Effects,
    ) {
        let Some(session) = self.sessions.at_mut(slot as usize) else {
            // There is no session left to report the defect.
            let me = self.shared.engine();
            tracing::error!(me, slot, %failure, "a session that does not exist has failed");
            return;
        };
        let may_lose_completed = session.segments.may_lose_completed();
        if session.ending.failure().is_some() {
            return;
        }
        let (engine, was_connected) = (session.peer.id(), session.is_connected());
        let is_gap = was_connected && !session.ending.is_leaving() && may_lose_completed;
        // The user has removed all of the peer: later events, such as a goodbye that crossed the
        // one of this side, are no failure for a user that inserts it again.
        let is_removed = session.ending.is_leaving() && session.peer.remotes().is_empty();
        let failure = if is_removed { PeerFailure::Removed } else { failure };
        let sequel = session.ending.end(failure.clone());
        session.connection.fail();
        session.keys = None;
        tracing::debug!(
            me = self.shared.engine(),
            peer = session.peer.id(),
            "session ended: {failure}"
        );
        session.segments.clear_control();
        if sequel == Sequel::None {
            session.waiting.clear();
            session.fences = Fences::default();
        }
        session.one_sided.end();
        let lanes = session.lanes.take_all();
        let remotes: Vec<u32> = session.peer.remotes().iter().collect();
        for lane in lanes {
            self.shared.act(Action::CloseLane { lane, is_failure: true });
        }
        self.shared.act(Action::CloseControl { session: slot, is_failure: true });
        self.shared.act(Action::Ended { session: slot, failure: failure.clone() });
        self.end_own_offer(slot);
        let SharedState { endpoints, unexpected, .. } = &mut self.shared;
        for message in endpoints.drain_incomplete_from(&remotes, unexpected) {
            self.drop_unexpected(message, |_| None);
        }
        // Complete messages can still be received.
        self.lose_claims(&failure, |_, message| {
            message.session == slot && !matches!(message.kind, Kind::Eager { .. })
        });
        self.with(slot, |it, mut cx| {
            it.segments.end(cx.shared);
            it.rendezvous.end(&mut cx);
            if was_connected {
                it.release_windows(&mut cx);
            }
        });
        if was_connected {
            self.extend_others();
        }
        // Nothing posted before waits: it ended when its peer was removed.
        let is_kept = |operation: &Operation| {
            sequel != Sequel::None
                && matches!(
                    operation.state,
                    OperationState::Queued { .. } | OperationState::AwaitMessages(_)
                )
        };
        let is_hit = |operation: &Operation| operation.session == slot && !is_kept(operation);
        let reports = |operation: &Operation| is_hit(operation) && !operation.is_decided();
        let is_waiting_hit = |source: &Remote| sequel == Sequel::None && source.session == slot;
        let is_reported = self.shared.operations.iter().any(|(_, operation)| reports(operation))
            || self.shared.has_receive_from(is_waiting_hit);
        self.fail_operations(is_hit, is_waiting_hit, &failure, effects);
        self.with(slot, |it, mut cx| {
            if is_gap && !is_reported {
                it.ending.keep_unreported(failure);
            }
            it.follow_up(&mut cx, sequel);
        });
        self.shared.peers.note_closed(slot, engine);
        self.end_receives_without_sender(effects);
    }

    /// Fails the operations that `is_hit` selects, and the receives that wait for messages of one
    /// source alone, if `is_source_hit` selects that.
    pub(in crate::proto) fn fail_operations(
        &mut self,
        is_hit: impl Fn(&Operation) -> bool,
        is_source_hit: impl Fn(&Remote) -> bool,
        failure: &PeerFailure,
        effects: &mut impl Effects,
    ) {
        let cause = Cause::Peer(failure.clone());
        for slot in 0..self.shared.operations.index_end() {
            let operations = &self.shared.operations;
            let hit = operations.id_at(slot).filter(|&id| match operations.get(id) {
                Some(operation) => is_hit(operation),
                None => self.shared.source_of(id).is_some_and(&is_source_hit),
            });
            if let Some(id) = hit {
                self.fail_operation(id, &cause, effects);
            }
        }
    }

    /// Ends an operation, at once or as soon as the kernel has released its memory.
    pub(in crate::proto) fn fail_operation(
        &mut self,
        id: Id,
        cause: &Cause,
        effects: &mut impl Effects,
    ) {
        if let Some(receive) = self.shared.operations.receive(id) {
            if !planted!(KeepReceivesOfDead) {
                let name = receive
                    .source()
                    .and_then(|source| self.shared.peers.name_of(&self.sessions, source));
                let SharedState { endpoints, operations, peers, .. } = &mut self.shared;
                endpoints.withdraw(operations, id);
                operations.end_unmatched(id, peers, cause.clone().ended(name), effects);
            }
            return;
        }
        let Some(operation) = self.shared.operations.get_mut(id) else { return };
        let (slot, remote) = (operation.session, operation.remote);
        if operation.fail_later(cause) {
            if matches!(operation.state, OperationState::AwaitBytes(_)) {
                self.with(slot, |it, mut cx| it.forget_waiting(&mut cx, id));
            }
            return;
        }
        match &operation.state {
            // The peer may be reading.
            OperationState::AwaitPull(serving) if serving.is_readable() => effects.revoke(),
            OperationState::AwaitMessages(_) => {
                let ended = cause.clone().ended(self.shared.peers.name_of(&self.sessions, remote));
                let SharedState { endpoints, operations, .. } = &mut self.shared;
                return operations.fail_multi(endpoints, id, ended, effects);
            }
            _ => {}
        }
        let name = self.shared.peers.name_of(&self.sessions, remote);
        self.with(slot, |it, mut cx| {
            it.forget_waiting(&mut cx, id);
            it.rendezvous.release_granted(&mut cx, id);
        });
        let slice_of = self.remove_operation(id).and_then(|ended| ended.slice_of);
        let ended = cause.clone().ended(name);
        self.shared.operations.end_receive(id, slice_of, ended, effects);
        self.with(slot, |it, mut cx| it.fences.recheck(&mut cx));
    }

    /// Fails a receive whose sender has abandoned the message.
    pub(super) fn fail_pull(&mut self, slot: u32, id: Id, effects: &mut impl Effects) {
        let found = self.shared.operations.get(id).filter(|operation| operation.session == slot);
        if found.is_some_and(Operation::pulls) {
            self.fail_operation(id, &Cause::Peer(PeerFailure::Left), effects);
        } else {
            self.shared.note_stale_frame();
        }
    }
}

impl Session {
    /// Reconnects after the session was left, if its peer is wanted again.
    fn follow_up(&mut self, cx: &mut Cx<'_>, sequel: Sequel) {
        if sequel == Sequel::None {
            return;
        }
        self.reset_failure();
        if !self.waiting.is_empty() || sequel == Sequel::Connect {
            cx.act(Action::Reconnect { session: cx.slot });
        }
    }

    /// Releases the windows of the session, which has ended, for others, except for what its
    /// unexpected messages hold until they are received ([`Core::return_credit_of`]).
    fn release_windows(&mut self, cx: &mut Cx<'_>) {
        self.epoch = self.epoch.wrapping_add(1);
        let unused = |credit: &ReceiveCredit| u64::from(credit.window() - credit.held());
        let [envelopes, bytes] = self.segments.receive_credits().both().map(unused);
        cx.shared.offers.release(envelopes, bytes);
    }

    /// Removes an operation of the session from those that wait to be sent or granted.
    fn forget_waiting(&mut self, cx: &mut Cx<'_>, id: Id) {
        let found = cx.shared.operations.get(id);
        if found.is_some_and(|it| matches!(it.state, OperationState::Queued { .. })) {
            self.waiting.retain(|&waiting| waiting != id);
            // The first waiting send may need less than the previous one.
            if self.is_connected() && self.has_waiting() {
                cx.add_work(Work::Stage);
            }
        }
        self.one_sided.remove_waiting(id);
        self.rendezvous.stop_granting(id);
    }
}
