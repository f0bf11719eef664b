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

use super::connection::Phase;
use super::core::{Action, Core};
use super::session::Sequel;

/// Maximum number of closed sessions that are kept, unless something refers to them.
const OVER_MAX: usize = 256;

impl Core {
    /// Notes that a session is closed.
    pub(super) fn note_over(&mut self, slot: u32) {
        if !self.is_loopback(slot) {
            self.over.retain(|&other| other != slot);
            self.over.push(slot);
        }
    }

    /// Evicts closed sessions, before another session is created.
    ///
    /// RR-END-4.
    pub(super) fn forget_some(&mut self) {
        if self.over.len() <= OVER_MAX && !self.sessions.is_full() {
            return;
        }
        let forgettable = self.forgettable();
        for &slot in &forgettable[..forgettable.len().div_ceil(2)] {
            self.forget(slot);
        }
        let mut over = std::mem::take(&mut self.over);
        over.retain(|&slot| self.is_over(slot));
        self.over = over;
    }

    /// Returns the sessions that could be evicted now, in order of their end.
    pub(super) fn forgettable(&self) -> Vec<u32> {
        let lanes = self.lanes.iter().map(|(_, lane)| lane.session);
        let operations = self.operations.iter().map(|(_, operation)| operation.session);
        let sources = self.operations.waiting_receives().filter_map(|(_, it)| it.source());
        let sources = sources.filter_map(|source| self.remotes.at(source as usize));
        let operations = operations.chain(sources.map(|source| source.session));
        let messages = self.unexpected.messages().map(|message| message.session);
        let actions = self.actions.iter().filter_map(Action::session);
        let busy: HashSet<u32> = operations.chain(messages).chain(lanes).chain(actions).collect();
        let is_free = |&slot: &u32| {
            let known = self.sessions.at(slot as usize);
            let is_expected = known.is_some_and(|known| known.connection.expects_peer());
            self.is_over(slot) && !is_expected && !busy.contains(&slot)
        };
        self.over.iter().copied().filter(is_free).collect()
    }

    /// Returns whether no connection of a session is wanted.
    fn is_over(&self, slot: u32) -> bool {
        let Some(session) = self.sessions.at(slot as usize) else { return false };
        let is_wanted = |&remote: &u32| {
            self.remotes.at(remote as usize).is_some_and(|remote| remote.is_inserted)
        };
        matches!(session.connection.phase(), Phase::Closed | Phase::Failed)
            && session.sequel == Sequel::None
            && !session.remotes.iter().any(is_wanted)
    }

    fn forget(&mut self, slot: u32) {
        let Some(id) = self.sessions.id_at(slot as usize) else { return };
        self.end_own_offer(slot);
        let Some(session) = self.sessions.remove(id) else { return };
        self.by_engine.remove(&session.engine);
        self.places.forget(slot, &session);
        for remote in session.remotes {
            if let Some(id) = self.remotes.id_at(remote as usize) {
                self.remotes.remove(id);
            }
        }
        self.ready.forget(slot);
        for list in [&mut self.timed, &mut self.owing_acks] {
            list.retain(|&other| other != slot);
        }
        self.lanes.forget(slot);
        self.processes.forget(slot);
    }
}
