//! Peers: remote endpoints, and the sessions with their engines.
//!
//! [`PeerTable`] is the directory: it finds sessions by engine or listener address, and remote
//! endpoints by handle. Its parts are the remote endpoints ([`remotes`]), listener addresses
//! ([`place`]), hellos of peers ([`admission`]), and which sessions are kept ([`eviction`]).

mod admission;
mod eviction;
mod place;
mod remotes;

use std::collections::HashMap;
use std::sync::Arc;

pub(crate) use self::admission::Admission;
use self::admission::PendingHello;
use self::place::Places;
pub(crate) use self::remotes::Remote;
pub(in crate::proto) use self::remotes::SessionRemotes;
use super::core::Core;
use super::effects::{Effects, RemoteName};
use super::failure::PeerFailure;
use super::operation::Operation;
use super::regions::Refusal;
use super::session::Session;
use super::session::connection::Retry;
use super::session::ending::Sequel;
use super::table::{Id, Table};
use super::unexpected::Kind;
use crate::wire::locators::Locators;

/// Numbers that the endpoints of one engine can have.
const ENDPOINT_NUMBERS: usize = 1 << 16;

/// The peers of an engine; see the module. The sessions themselves are in [`Core`].
#[derive(Debug)]
pub(crate) struct PeerTable {
    /// The id of this engine.
    engine: u64,
    remotes: Table<Remote>,
    /// Slots of sessions by the ids of their engines.
    by_engine: HashMap<u64, u32>,
    /// Sessions by the places that are asked for.
    places: Places,
    /// Closed sessions in order of their end; some of them may be reopened.
    closed: Vec<u32>,
    /// Accepted hellos of engines without a session: each reserves a slot.
    reservations: Vec<PendingHello>,
    /// Number of hellos sent: epochs never repeat, whichever peers are forgotten.
    hellos: u32,
    /// Of all connections.
    retry: Arc<Retry>,
}

impl PeerTable {
    /// Creates a table for at most `sessions_max` sessions of this engine.
    pub(super) fn new(engine: u64, sessions_max: usize, retry: Retry) -> Self {
        let remotes_max = sessions_max.saturating_mul(ENDPOINT_NUMBERS);
        Self {
            engine,
            remotes: Table::with_own_names(remotes_max, engine),
            by_engine: HashMap::new(),
            places: Places::default(),
            closed: Vec::new(),
            reservations: Vec::new(),
            hellos: 0,
            retry: Arc::new(retry),
        }
    }

    /// Returns the slot of the session with an engine.
    pub(crate) fn session_of(&self, engine: u64) -> Option<u32> {
        self.by_engine.get(&engine).copied()
    }

    /// Returns the session with an engine, and its slot. `None`: there is none.
    pub(in crate::proto) fn find<'a>(
        &self,
        sessions: &'a Table<Session>,
        engine: u64,
    ) -> Option<(u32, &'a Session)> {
        let slot = self.session_of(engine)?;
        let session = sessions.at(slot as usize);
        Some((slot, debug_assert_some!(session, "an engine has a session in the table")?))
    }

    /// Returns the name of a remote endpoint for errors.
    pub(crate) fn name_of(&self, sessions: &Table<Session>, remote: u32) -> Option<RemoteName> {
        let session = sessions.at(self.at(remote)?.session as usize);
        debug_assert_some!(session, "the session of a remote stays")?.peer().name_of(self, remote)
    }

    /// Returns the epoch of the next hello of a control lane.
    pub(crate) fn next_epoch(&mut self) -> u32 {
        self.hellos = self.hellos.saturating_add(1);
        self.hellos
    }

    /// Checks that remote endpoints, engines and sessions agree.
    #[cfg(any(test, feature = "sim"))]
    pub(super) fn check(&self, sessions: &Table<Session>) {
        for (id, remote) in self.iter() {
            let session = sessions.at(remote.session as usize).expect("a remote has a session");
            let index = session.peer().remotes().index_of(remote.endpoint);
            assert_eq!(index as usize, id.index(), "{id:?} is among those of its session");
        }
        let known: usize = sessions.iter().map(|(_, it)| it.peer().remotes().iter().count()).sum();
        assert_eq!(known, self.remotes.len(), "a remote is of one session");
        for (slot, session) in sessions.iter().filter(|(_, session)| session.peer().id() != 0) {
            let of_engine = self.session_of(session.peer().id()).map(|slot| slot as usize);
            assert_eq!(of_engine, Some(slot.index()), "an engine has one session");
        }
        for (engine, &slot) in &self.by_engine {
            let session = sessions.at(slot as usize).map(|session| session.peer().id());
            assert_eq!(session, Some(*engine), "session {slot} is of its engine");
        }
        for (at, slot) in self.closed.iter().enumerate() {
            assert!(!self.closed[..at].contains(slot), "session {slot} is closed once");
        }
    }

    /// Creates the session with an engine that has none; engine 0 is an unknown one. `None`: at the
    /// limit.
    fn new_session<'a>(
        &mut self,
        sessions: &'a mut Table<Session>,
        engine: u64,
        locators: Locators,
    ) -> Option<(u32, &'a mut Session)> {
        if sessions.is_full() {
            return None;
        }
        let mut session = Session::new(engine, locators, Arc::clone(&self.retry));
        self.release_reservations(&mut session);
        let (id, session) = sessions.insert_entry(session).ok()?;
        let slot = id.index() as u32;
        if engine != 0 {
            let before = self.by_engine.insert(engine, slot);
            debug_assert!(before.is_none(), "an engine has one session");
            self.places.note_session(slot, &locators);
        }
        Some((slot, session))
    }
}

impl Core {
    /// Returns the session with an engine, created if there is none. `None`: at the limit.
    fn session_with(&mut self, engine: u64, locators: Locators) -> Option<u32> {
        if let Some(slot) = self.shared.peers.session_of(engine) {
            return Some(slot);
        }
        self.evict_some();
        let (slot, _) = self.shared.peers.new_session(&mut self.sessions, engine, locators)?;
        if engine == self.shared.engine() {
            self.with(slot, |it, cx| it.establish_loopback(cx));
        }
        Some(slot)
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
        let slot = match engine {
            0 => self.session_at(locators.first())?,
            engine => {
                let slot = self.session_with(engine, locators)?;
                self.claim_place(slot, false);
                slot
            }
        };
        let session = self.sessions.at_mut(slot as usize);
        let session = debug_assert_some!(session, "it was found, or just inserted")?;
        let peer = self.shared.peers.insert_remote(slot, session, endpoint)?;
        if session.ending().failure() == Some(&PeerFailure::Removed) {
            session.reset_failure();
        } else if session.ending().is_left_for_good() {
            session.ending_mut().continue_by(Sequel::Return);
        }
        Some(peer)
    }

    /// Removes a remote endpoint. Outstanding operations with it fail; a session without remote
    /// endpoints sends a goodbye.
    pub(crate) fn remove_peer(&mut self, peer: Id, effects: &mut impl Effects) -> bool {
        let Some(&removed) = self.shared.peers.get(peer) else { return false };
        let (index, slot) = (peer.index() as u32, removed.session);
        let theirs =
            self.shared.operations.iter().filter(|(_, operation)| operation.remote == index);
        let theirs: Vec<Id> = theirs.map(|(id, _)| id).collect();
        theirs.into_iter().for_each(|id| self.renounce(id, Refusal::Endpoint));
        // Operations that end now still name the peer.
        let is_its = |operation: &Operation| operation.remote == index;
        let is_it = |source: &Remote| (source.session, source.endpoint) == (slot, removed.endpoint);
        self.fail_operations(is_its, is_it, &PeerFailure::Removed, effects);
        self.shared.operations.unname(index);
        self.lose_claims(&PeerFailure::Removed, |source, _| source == index);
        for message in self.shared.endpoints.drain_unexpected_from(index) {
            self.drop_unexpected(message, Kind::abandonment);
        }
        let entered = debug_assert_some!(self.enter(slot), "the session of a remote stays");
        if let Some((session, cx)) = entered {
            cx.shared.peers.remove_remote(peer, session);
            cx.shared.peers.note_closed(slot, session.peer().id());
            if session.peer().remotes().is_empty() {
                self.leave(slot);
            }
        }
        self.end_receives_without_sender(effects);
        true
    }
}
