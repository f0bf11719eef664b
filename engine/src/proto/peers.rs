//! Peers: addresses, sessions with their engines, and connecting and reconnecting them.

use std::sync::Arc;

use super::connection::{Phase, Step};
use super::core::{Action, Core, Remote};
use super::effects::{Effects, RemoteName};
use super::failure::PeerFailure;
use super::keys::SessionKeys;
use super::operation::Operation;
use super::regions::Refusal;
use super::session::{ControlFrame, Limits, Sequel, Session};
use super::table::Id;
use crate::proto::ready::Work;
use crate::wire::hello::HelloStatus;
use crate::wire::locators::Locators;

/// An accepted hello, until its sender is authenticated.
#[derive(Debug)]
pub(crate) struct Admission {
    engine: u64,
    locators: Locators,
    epoch: u32,
    /// The epoch of the hello of this side that it answers.
    answered: u32,
}

/// A slot reserved for an engine without a session, whose hello was accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct SlotReservation {
    engine: u64,
    epoch: u32,
    answered: u32,
}

impl Core {
    /// Returns the name of a remote endpoint for errors.
    pub(crate) fn name_of(&self, remote: u32) -> Option<RemoteName> {
        let remote = self.remotes.at(remote as usize)?;
        let session = self.sessions.at(remote.session as usize)?;
        let (engine, locators) = (session.engine, session.locators);
        Some(RemoteName { engine, locators, endpoint: remote.endpoint })
    }

    /// Returns the slot of the session with an engine.
    pub(crate) fn session_of(&self, engine: u64) -> Option<u32> {
        self.by_engine.get(&engine).copied()
    }

    /// Returns the session with an engine, created if there is none. `None`: at the limit.
    pub(super) fn session_with(&mut self, engine: u64, locators: Locators) -> Option<u32> {
        if let Some(&session) = self.by_engine.get(&engine) {
            return Some(session);
        }
        self.forget_some();
        let session = Session::new(engine, locators, Arc::clone(&self.retry));
        let slot = self.sessions.insert(session).ok()?.index() as u32;
        self.by_engine.insert(engine, slot);
        self.places.note_session(slot, &locators);
        self.release_reservation(slot, engine);
        if engine == self.engine {
            self.establish_loopback(slot);
        }
        Some(slot)
    }

    /// Releases the slot that was reserved for an engine that has a session now. Hellos of this
    /// side answer earlier ones of the engine.
    fn release_reservation(&mut self, slot: u32, engine: u64) {
        let Some(session) = self.sessions.at_mut(slot as usize) else { return };
        let peer_wins = engine > self.engine;
        self.reserved_slots.retain(|reservation| {
            if reservation.engine == engine {
                session.connection.expect_peer(peer_wins, reservation.epoch, reservation.answered);
            }
            reservation.engine != engine
        });
    }

    /// Returns the remote endpoint of an address, created if it is new; engine 0 is the unknown one
    /// that listens there. `None`: a limit is reached.
    pub(crate) fn insert_peer(
        &mut self,
        engine: u64,
        locators: impl Into<Locators>,
        endpoint: u16,
    ) -> Option<Id> {
        let locators = locators.into();
        let session = match engine {
            0 => self.session_at(locators.first())?,
            engine => {
                let session = self.session_with(engine, locators)?;
                self.claim_place(session, false);
                session
            }
        };
        let index = self.remote_of(session, endpoint)?;
        if let Some(remote) = self.remotes.at_mut(index as usize) {
            remote.is_inserted = true;
        }
        if let Some(known) = self.sessions.at_mut(session as usize) {
            if known.failure == Some(PeerFailure::Removed) {
                self.reset_failure(session);
            } else if known.is_leaving && known.sequel == Sequel::None {
                known.sequel = Sequel::Return;
            }
        }
        self.remotes.id_at(index as usize)
    }

    /// Returns the index of the remote endpoint `endpoint` of a session.
    pub(crate) fn remote_of(&mut self, session: u32, endpoint: u16) -> Option<u32> {
        let known = self.sessions.at_mut(session as usize)?;
        let slot = usize::from(endpoint);
        if let Some(&remote) = known.remotes.get(slot)
            && remote != u32::MAX
        {
            return Some(remote);
        }
        let remote =
            self.remotes.insert(Remote { session, endpoint, is_inserted: false }).ok()?.index()
                as u32;
        if known.remotes.len() <= slot {
            known.remotes.resize(slot + 1, u32::MAX);
        }
        known.remotes[slot] = remote;
        Some(remote)
    }

    /// Removes a remote endpoint. Outstanding operations with it fail; a session without remote
    /// endpoints sends a goodbye.
    pub(crate) fn remove_peer(&mut self, peer: Id, effects: &mut impl Effects) -> bool {
        let Some(&removed) = self.remotes.get(peer) else { return false };
        let index = peer.index() as u32;
        let theirs = self.operations.iter().filter(|(_, operation)| operation.remote == index);
        let theirs: Vec<Id> = theirs.map(|(id, _)| id).collect();
        theirs.into_iter().for_each(|id| self.renounce(id, Refusal::Endpoint));
        // Operations that end now still name the peer.
        let is_its = |operation: &Operation| operation.remote == index;
        let is_it = |source: &Remote| {
            (source.session, source.endpoint) == (removed.session, removed.endpoint)
        };
        self.fail_operations(is_its, is_it, &PeerFailure::Removed, effects);
        self.unname(index);
        self.lose_claims_of_remote(index);
        let Some(remote) = self.remotes.remove(peer) else { return false };
        for endpoint in self.endpoints.numbers() {
            let mut messages = Vec::new();
            if let Some(matcher) = self.endpoints.get_mut(endpoint) {
                matcher.drain_unexpected_from(index, |kept| messages.push(kept.message));
            }
            for message in messages {
                self.abandon(message);
            }
        }
        let Some(session) = self.sessions.at_mut(remote.session as usize) else { return true };
        if let Some(slot) = session.remotes.get_mut(usize::from(remote.endpoint)) {
            *slot = u32::MAX;
        }
        if session.remotes.iter().all(|&remote| remote == u32::MAX) {
            self.leave(remote.session);
        }
        self.note_over(remote.session);
        self.end_receives_without_sender(effects);
        true
    }

    /// Sends a goodbye on a session; the loop closes the lane once that is sent.
    ///
    /// RR-END-1.
    pub(crate) fn leave(&mut self, session: u32) {
        if self.is_loopback(session) {
            return;
        }
        let Some(known) = self.sessions.at_mut(session as usize) else { return };
        (known.sequel, known.unreported) = (Sequel::None, None);
        if known.is_connected() {
            if !known.is_leaving {
                known.is_leaving = true;
                self.push_control(
                    session,
                    ControlFrame::goodbye(crate::wire::goodbye::REASON_CLOSED),
                );
            }
        } else {
            let action = Action::CloseControl { session, is_failure: false };
            self.actions.push_back(action);
            known.connection.fail();
            known.connection.reset();
            // A later insertion of the peer starts afresh.
            known.failure = None;
            self.end_own_offer(session);
        }
    }

    // ---- Connections ----

    /// Connects a session on the user's request, whatever the state of the last one. Returns the
    /// failure to report to the user.
    pub(crate) fn connect(&mut self, session: u32, now_ns: u64) -> Option<PeerFailure> {
        let known = self.sessions.at_mut(session as usize)?;
        let unreported = known.unreported.take();
        if known.is_leaving && known.is_connected() {
            known.sequel = Sequel::Connect;
        } else {
            self.reset_failure(session);
            self.want_connection(session, now_ns);
        }
        unreported.map(|failure| *failure)
    }

    /// Connects a session if it is not (on a user's request, or for waiting sends).
    pub(crate) fn want_connection(&mut self, session: u32, now_ns: u64) {
        let Some(known) = self.sessions.at_mut(session as usize) else { return };
        if known.connection.want(now_ns) == Step::Connect {
            // All deadlines of a connection follow from a first attempt.
            if !known.is_timed {
                known.is_timed = true;
                self.timed.push(session);
            }
            self.actions.push_back(Action::Connect { session });
        }
    }

    /// Clears a failure, so that the next send connects.
    pub(crate) fn reset_failure(&mut self, session: u32) {
        if self.is_loopback(session) {
            return;
        }
        if let Some(known) = self.sessions.at_mut(session as usize) {
            (known.failure, known.unreported) = (None, None);
            known.connection.reset();
        }
    }

    /// Decides on a hello for a control lane, authenticated by the secret, but possibly a replay:
    /// no state of others changes. With `Ok` the loop accepts, and later calls [`Self::admit_peer`]
    /// or [`Self::withdraw`]; these end what [`Self::offer_to`] offered in the reply. A session
    /// that has lost its control lane remains until then ([`Self::outlived_by`]).
    ///
    /// RR-RAIL-9.
    pub(crate) fn judge_hello(
        &mut self,
        engine: u64,
        locators: impl Into<Locators>,
        session_id: u64,
        epoch: u32,
        answered: u32,
    ) -> Result<Admission, HelloStatus> {
        // No other engine has this engine's id.
        if engine == 0 || engine == self.engine || session_id == 0 || epoch == 0 {
            return Err(HelloStatus::Malformed);
        }
        let own_engine = self.engine;
        let slot = self.session_of(engine);
        match slot.and_then(|slot| self.sessions.at_mut(slot as usize)) {
            Some(session) => {
                if epoch <= session.epoch_seen {
                    return Err(HelloStatus::StaleEpoch);
                }
                let status = session.connection.judge_hello(own_engine, engine);
                if status != HelloStatus::Accepted && !session.is_outlived() {
                    return Err(status);
                }
                session.connection.expect_peer(engine > own_engine, epoch, answered);
            }
            None => {
                // Nothing is evicted for an unauthenticated peer.
                let left = self.config.sessions_max - self.sessions.len();
                let reserved = self.reserved_slots.len();
                if left <= reserved && left + self.forgettable().len() <= reserved {
                    return Err(HelloStatus::Busy);
                }
                self.reserved_slots.push(SlotReservation { engine, epoch, answered });
            }
        }
        Ok(Admission { engine, locators: locators.into(), epoch, answered })
    }

    /// Returns the session that has to end when the sender of an accepted hello is authenticated:
    /// its peer has ended it, and the notification was lost.
    ///
    /// RR-RAIL-9.
    pub(crate) fn outlived_by(&self, admission: &Admission) -> Option<u32> {
        let slot = self.session_of(admission.engine)?;
        let session = self.sessions.at(slot as usize)?;
        (session.is_outlived() && admission.epoch > session.epoch_seen).then_some(slot)
    }

    /// Establishes the session of an authenticated sender of a hello, unless there is another one
    /// by now. Returns its slot.
    pub(crate) fn admit_peer(
        &mut self,
        admission: Admission,
        ours: Limits,
        theirs: Limits,
        keys: SessionKeys,
    ) -> Option<u32> {
        let admitted = self.admit_new(admission, ours, theirs, keys);
        self.extend_others();
        admitted
    }

    fn admit_new(
        &mut self,
        admission: Admission,
        ours: Limits,
        theirs: Limits,
        keys: SessionKeys,
    ) -> Option<u32> {
        let Admission { engine, locators, epoch, .. } = admission;
        self.end_admission(admission);
        let slot = self.session_with(engine, locators)?;
        let session = self.sessions.at_mut(slot as usize)?;
        let was_trying =
            matches!(session.connection.phase(), Phase::Connecting | Phase::ConnectAck);
        if epoch <= session.epoch_seen || !session.connection.admit() {
            return None;
        }
        session.epoch_seen = epoch;
        if was_trying {
            // The loop drops our attempt.
            let action = Action::CloseControl { session: slot, is_failure: false };
            self.actions.push_back(action);
        }
        self.claim_place(slot, true);
        self.establish(slot, ours, theirs, keys);
        Some(slot)
    }

    /// Withdraws an accepted hello whose sender was not authenticated.
    pub(crate) fn withdraw(&mut self, admission: Admission) {
        self.end_admission(admission);
        self.extend_others();
    }

    fn end_admission(&mut self, admission: Admission) {
        let Admission { engine, epoch, answered, .. } = admission;
        self.offers.end(engine);
        let reservation = SlotReservation { engine, epoch, answered };
        if let Some(at) = self.reserved_slots.iter().position(|&other| other == reservation) {
            self.reserved_slots.swap_remove(at);
            return;
        }
        let slot = self.session_of(engine);
        if let Some(session) = slot.and_then(|slot| self.sessions.at_mut(slot as usize)) {
            session.connection.forget_peer(answered);
        }
    }

    /// Establishes a session after both sides were authenticated.
    pub(crate) fn establish(
        &mut self,
        session: u32,
        ours: Limits,
        theirs: Limits,
        keys: SessionKeys,
    ) {
        let Some(known) = self.sessions.at_mut(session as usize) else { return };
        known.establish(ours, theirs, Some(keys), self.config.advised_from());
        self.with(session, |it, cx| it.begin_segments(cx, false));
        self.offers.reserve(ours);
        self.with(session, |it, mut cx| it.note_windows(&mut cx));
        self.end_own_offer(session);
        self.ready.add(session, Work::Stage);
        self.actions.push_back(Action::Established { session });
    }

    /// Executes the step of a connection.
    pub(crate) fn apply(&mut self, session: u32, step: Step, effects: &mut impl Effects) {
        match step {
            Step::Nothing => {}
            Step::Connect => self.actions.push_back(Action::Connect { session }),
            Step::Fail(failure) => self.fail_session(session, failure, effects),
        }
    }

    /// Returns the earliest deadline of all connections. Costs nothing for those that are up or
    /// down.
    pub(crate) fn next_deadline_ns(&self) -> Option<u64> {
        let timed = self.timed.iter().filter_map(|&slot| self.sessions.at(slot as usize));
        timed.filter_map(|session| session.connection.deadline_ns()).min()
    }

    /// Handles expired deadlines. Queues actions to close the attempts that timed out.
    pub(crate) fn handle_timeouts(&mut self, now_ns: u64, effects: &mut impl Effects) {
        let mut timed = std::mem::take(&mut self.timed);
        timed.retain(|&slot| {
            self.handle_timeout(slot, now_ns, effects);
            let Some(session) = self.sessions.at_mut(slot as usize) else { return false };
            session.is_timed = session.connection.deadline_ns().is_some();
            session.is_timed
        });
        timed.append(&mut self.timed);
        self.timed = timed;
    }

    fn handle_timeout(&mut self, slot: u32, now_ns: u64, effects: &mut impl Effects) {
        let Some(session) = self.sessions.at_mut(slot as usize) else { return };
        if session.connection.deadline_ns().is_none_or(|deadline| now_ns < deadline) {
            return;
        }
        let was_trying =
            matches!(session.connection.phase(), Phase::Connecting | Phase::ConnectAck);
        let step = session.connection.handle_timeout(now_ns);
        if was_trying {
            let action = Action::CloseControl { session: slot, is_failure: false };
            self.actions.push_back(action);
        }
        self.apply(slot, step, effects);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::sim::{LIMITS, OWN, core_of, locator};

    fn judge(core: &mut Core, engine: u64, epoch: u32) -> Result<Admission, HelloStatus> {
        core.judge_hello(engine, locator(), 9, epoch, 0)
    }

    #[test]
    fn hello_without_proof_leaves_no_state() {
        let mut core = core_of(2);
        for round in 0..100 {
            let admission = judge(&mut core, 20 + round, 1).unwrap();
            assert_eq!((core.sessions.len(), core.reserved_slots.len()), (0, 1));
            core.withdraw(admission);
        }
        assert_eq!((core.sessions.len(), core.reserved_slots.len()), (0, 0));
        assert!(core.poll_action().is_none());
    }

    #[test]
    fn reserved_slots_are_not_assigned_twice() {
        let mut core = core_of(2);
        let first = judge(&mut core, 20, 1).unwrap();
        let second = judge(&mut core, 21, 1).unwrap();
        assert_eq!(judge(&mut core, 22, 1).unwrap_err(), HelloStatus::Busy);
        core.withdraw(second);
        let third = judge(&mut core, 22, 1).unwrap();
        assert!(core.admit_peer(first, LIMITS, LIMITS, SessionKeys::for_tests()).is_some());
        assert!(core.admit_peer(third, LIMITS, LIMITS, SessionKeys::for_tests()).is_some());
        assert_eq!(core.reserved_slots.len(), 0);
    }

    /// RR-CONN-4
    #[test]
    fn early_hello_is_answered_until_it_is_withdrawn() {
        let mut core = core_of(2);
        let admission = judge(&mut core, 20, 5).unwrap();
        assert!(core.insert_peer(20, locator(), 0).is_some());
        let slot = core.session_of(20).unwrap() as usize;
        let answered = |core: &Core| core.sessions.at(slot).unwrap().connection.answered();
        assert_eq!(answered(&core), 5);
        assert!(judge(&mut core, 21, 1).is_ok(), "the session uses its reserved slot");
        core.withdraw(admission);
        assert_eq!(answered(&core), 0);
    }

    #[test]
    fn hello_of_an_earlier_session_is_refused() {
        let mut core = core_of(4);
        let admission = judge(&mut core, 20, 5).unwrap();
        let slot = core.admit_peer(admission, LIMITS, LIMITS, SessionKeys::for_tests()).unwrap();
        assert!(core.sessions.at(slot as usize).unwrap().keys.is_some());
        for epoch in 1..=5 {
            assert_eq!(judge(&mut core, 20, epoch).unwrap_err(), HelloStatus::StaleEpoch);
        }
        assert_eq!(judge(&mut core, 20, 6).unwrap_err(), HelloStatus::AlreadyConnected);
        core.sessions.at_mut(slot as usize).unwrap().connection.fail();
        assert_eq!(judge(&mut core, 20, 5).unwrap_err(), HelloStatus::StaleEpoch);
        assert!(judge(&mut core, 20, 6).is_ok());
        for (engine, epoch) in [(0, 9), (OWN, 9), (20, 0)] {
            assert_eq!(judge(&mut core, engine, epoch).unwrap_err(), HelloStatus::Malformed);
        }
    }

    #[test]
    fn first_authenticated_peer_gets_the_session() {
        let mut core = core_of(4);
        let first = judge(&mut core, 20, 1).unwrap();
        let second = judge(&mut core, 20, 2).unwrap();
        assert!(core.admit_peer(second, LIMITS, LIMITS, SessionKeys::for_tests()).is_some());
        assert!(core.admit_peer(first, LIMITS, LIMITS, SessionKeys::for_tests()).is_none());
        assert_eq!((core.sessions.len(), core.reserved_slots.len()), (1, 0));
    }
}
