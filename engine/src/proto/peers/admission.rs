//! Hellos of peers: which are accepted, and what each keeps until its sender is authenticated.
//!
//! An accepted hello of an engine without a session reserves a slot for one, and nothing is evicted
//! for it: hellos may be replays.

use super::PeerTable;
use crate::proto::core::{Action, Core};
use crate::proto::keys::SessionKeys;
use crate::proto::session::connection::Phase;
use crate::proto::session::{Limits, Session};
use crate::proto::table::Table;
use crate::wire::hello::HelloStatus;
use crate::wire::locators::Locators;

/// An accepted hello, until its sender is authenticated.
#[derive(Debug)]
pub(crate) struct Admission {
    hello: PendingHello,
    locators: Locators,
}

/// What identifies an accepted hello whose sender is not authenticated yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct PendingHello {
    engine: u64,
    epoch: u32,
    /// The epoch of the hello of this side that it answers.
    answered: u32,
}

impl PeerTable {
    /// Releases the slots that were reserved for an engine that has a session now. Hellos of this
    /// side answer earlier ones of the engine.
    pub(super) fn release_reservations(&mut self, session: &mut Session) {
        let own_engine = self.engine;
        self.reservations.retain(|hello| {
            if hello.engine == session.peer().id() {
                hello.expect(session, own_engine);
            }
            hello.engine != session.peer().id()
        });
    }

    /// Releases the slot that was reserved for the sender of a hello. Returns `false` if there is
    /// none: its engine has a session.
    fn release_reservation(&mut self, hello: &PendingHello) -> bool {
        let at = self.reservations.iter().position(|other| other == hello);
        at.map(|at| self.reservations.swap_remove(at)).is_some()
    }

    /// Returns the session that has to end when the sender of an accepted hello is authenticated:
    /// its peer has ended it, and the notification was lost.
    ///
    /// RR-RAIL-9.
    pub(crate) fn outlived_by(
        &self,
        sessions: &Table<Session>,
        admission: &Admission,
    ) -> Option<u32> {
        let (slot, session) = self.find(sessions, admission.hello.engine)?;
        let is_newer = !session.connection().is_stale(admission.hello.epoch);
        (session.is_outlived() && is_newer).then_some(slot)
    }
}

impl PendingHello {
    /// Has a session with its engine expect that it is proved.
    fn expect(&self, session: &mut Session, own_engine: u64) {
        let peer_wins = self.engine > own_engine;
        session.connection_mut().expect_peer(peer_wins, self.epoch, self.answered);
    }

    /// Decides on it for the session with its engine; an accepted one is expected to be proved.
    fn judge(&self, session: &mut Session, own_engine: u64) -> Result<(), HelloStatus> {
        if session.connection().is_stale(self.epoch) {
            return Err(HelloStatus::StaleEpoch);
        }
        let status = session.connection().judge_hello(own_engine, self.engine);
        if status != HelloStatus::Accepted && !session.is_outlived() {
            return Err(status);
        }
        self.expect(session, own_engine);
        Ok(())
    }
}

impl Core {
    /// Decides on a hello for a control lane, authenticated by the secret, but possibly a replay:
    /// no state of others changes. With `Ok` the loop accepts, and later calls [`Self::admit_peer`]
    /// or [`Self::withdraw`]; these end what `SharedState::offer_to` offered in the reply. A
    /// session that has lost its control lane remains until then ([`PeerTable::outlived_by`]).
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
        if engine == 0 || engine == self.shared.engine() || session_id == 0 || epoch == 0 {
            return Err(HelloStatus::Malformed);
        }
        let hello = PendingHello { engine, epoch, answered };
        match self.enter_engine(engine) {
            Some((session, cx)) => hello.judge(session, cx.shared.engine())?,
            None => {
                // Nothing is evicted for an unauthenticated peer.
                let left = self.sessions.limit() - self.sessions.len();
                let reserved = self.shared.peers.reservations.len();
                if left <= reserved
                    && left + self.shared.evictable(&self.sessions).len() <= reserved
                {
                    return Err(HelloStatus::Busy);
                }
                self.shared.peers.reservations.push(hello);
            }
        }
        Ok(Admission { hello, locators: locators.into() })
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
        let Admission { hello: PendingHello { engine, epoch, .. }, locators } = admission;
        self.end_admission(&admission);
        let slot = self.session_with(engine, locators)?;
        let entered = debug_assert_some!(self.enter(slot), "the session of an engine exists");
        let (session, mut cx) = entered?;
        let was_trying =
            matches!(session.connection().phase(), Phase::Connecting | Phase::ConnectAck);
        if !session.connection_mut().admit(epoch) {
            return None;
        }
        if was_trying {
            // The loop drops our attempt.
            cx.act(Action::CloseControl { session: slot, is_failure: false });
        }
        self.claim_place(slot, true);
        self.establish(slot, ours, theirs, keys);
        Some(slot)
    }

    /// Withdraws an accepted hello whose sender was not authenticated.
    pub(crate) fn withdraw(&mut self, admission: Admission) {
        self.end_admission(&admission);
        self.extend_others();
    }

    fn end_admission(&mut self, admission: &Admission) {
        let hello = &admission.hello;
        self.shared.offers.end(hello.engine);
        if self.shared.peers.release_reservation(hello) {
            return;
        }
        if let Some((session, _)) = self.enter_engine(hello.engine) {
            session.connection_mut().forget_peer(hello.answered);
        }
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
            assert_eq!((core.sessions.len(), core.shared.peers.reservations.len()), (0, 1));
            core.withdraw(admission);
        }
        assert_eq!((core.sessions.len(), core.shared.peers.reservations.len()), (0, 0));
        assert!(core.shared_mut().poll_action().is_none());
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
        assert_eq!(core.shared.peers.reservations.len(), 0);
    }

    /// RR-CONN-4
    #[test]
    fn early_hello_is_answered_until_it_is_withdrawn() {
        let mut core = core_of(2);
        let admission = judge(&mut core, 20, 5).unwrap();
        assert!(core.insert_peer(20, locator(), 0).is_some());
        let slot = core.shared.peers.session_of(20).unwrap() as usize;
        let answered = |core: &Core| core.sessions.at(slot).unwrap().connection().answered();
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
        assert!(core.sessions.at(slot as usize).unwrap().keys().is_some());
        for epoch in 1..=5 {
            assert_eq!(judge(&mut core, 20, epoch).unwrap_err(), HelloStatus::StaleEpoch);
        }
        assert_eq!(judge(&mut core, 20, 6).unwrap_err(), HelloStatus::AlreadyConnected);
        core.sessions.at_mut(slot as usize).unwrap().connection_mut().fail();
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
        assert_eq!((core.sessions.len(), core.shared.peers.reservations.len()), (1, 0));
    }
}
