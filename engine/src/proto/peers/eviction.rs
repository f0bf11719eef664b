//! Eviction of closed sessions, so that an engine may connect to any number of peers over time.
//!
//! A closed session is kept for some time: peers known by it as sources of messages keep their
//! handles. When there are too many, or no space for another session, the older half is evicted,
//! handles included; their slots are reused, and old handles become stale. Peers that the user
//! inserted and did not remove stay, and so does everything that is referred to.
//!
//! No epoch of a peer's hellos is kept: a replay gets a reply with another nonce, for which no
//! proof verifies.

use std::collections::HashSet;

use super::PeerTable;
use crate::proto::context::SharedState;
use crate::proto::core::{Action, Core};
use crate::proto::session::Session;
use crate::proto::session::connection::Phase;
use crate::proto::table::Table;

/// Maximum number of closed sessions that are kept, unless something refers to them.
const CLOSED_MAX: usize = 256;

impl PeerTable {
    /// Notes that the session with an engine is closed.
    pub(in crate::proto) fn note_closed(&mut self, slot: u32, engine: u64) {
        if engine != self.engine {
            self.closed.retain(|&other| other != slot);
            self.closed.push(slot);
        }
    }

    /// Returns whether a session is closed, and no connection of it is wanted.
    fn is_over(&self, session: &Session) -> bool {
        let is_wanted = |remote| self.at(remote).is_some_and(|remote| remote.is_inserted);
        matches!(session.connection().phase(), Phase::Closed | Phase::Failed)
            && !session.ending().has_sequel()
            && !session.peer().remotes().iter().any(is_wanted)
    }

    /// Returns the sessions that are over, in order of their end.
    fn sessions_over<'a>(
        &'a self,
        sessions: &'a Table<Session>,
    ) -> impl Iterator<Item = (u32, &'a Session)> {
        let closed = self.closed.iter();
        let known = closed.filter_map(|&slot| Some((slot, sessions.at(slot as usize)?)));
        known.filter(|(_, session)| self.is_over(session))
    }

    /// Removes the session that was in `slot`, and its remote endpoints.
    fn remove_session(&mut self, slot: u32, session: &Session) {
        let removed = self.by_engine.remove(&session.peer().id());
        debug_assert_eq!(
            removed,
            (session.peer().id() != 0).then_some(slot),
            "a session with an engine is found by it"
        );
        self.places.forget(slot, session);
        for remote in session.peer().remotes().iter() {
            if let Some(id) = debug_assert_some!(self.id_at(remote), "its remotes exist") {
                self.remotes.remove(id);
            }
        }
    }
}

impl SharedState {
    /// Returns the sessions that could be evicted now, in order of their end.
    pub(super) fn evictable(&self, sessions: &Table<Session>) -> Vec<u32> {
        let lanes = self.lanes.iter().map(|(_, lane)| lane.session());
        let operations = self.operations.iter().map(|(_, operation)| operation.session);
        let sources = self.operations.waiting_receives().filter_map(|(_, it)| it.source());
        let sources = sources.filter_map(|source| self.peers.at(source));
        let operations = operations.chain(sources.map(|source| source.session));
        let messages = self.unexpected.messages().map(|message| message.session);
        let actions = self.actions.iter().filter_map(Action::session);
        let busy: HashSet<u32> = operations.chain(messages).chain(lanes).chain(actions).collect();
        let is_free = |&(slot, session): &(u32, &Session)| {
            !session.connection().expects_peer() && !busy.contains(&slot)
        };
        self.peers.sessions_over(sessions).filter(is_free).map(|(slot, _)| slot).collect()
    }
}

impl Core {
    /// Evicts closed sessions, before another session is created.
    ///
    /// RR-END-4.
    pub(super) fn evict_some(&mut self) {
        if self.shared.peers.closed.len() <= CLOSED_MAX && !self.sessions.is_full() {
            return;
        }
        let evictable = self.shared.evictable(&self.sessions);
        for &slot in &evictable[..evictable.len().div_ceil(2)] {
            self.evict(slot);
        }
        let over = self.shared.peers.sessions_over(&self.sessions);
        self.shared.peers.closed = over.map(|(slot, _)| slot).collect();
    }

    fn evict(&mut self, slot: u32) {
        self.end_own_offer(slot);
        let id = self.sessions.id_at(slot as usize);
        let session = id.and_then(|id| self.sessions.remove(id));
        let session = debug_assert_some!(session, "closed sessions are in the table");
        let Some(session) = session else { return };
        debug_assert!(!session.is_connected() && session.lanes().ids().is_empty(), "it is closed");
        self.shared.peers.remove_session(slot, &session);
        self.shared.forget(slot);
    }
}
