//! Sessions that are over are forgotten, so that an engine may meet any number of others.
//!
//! A session that ended is kept for a while: whoever was met by it as the source of a message goes
//! by its name. When there are too many of these, or no room for another session, the older half is
//! forgotten, names included; their slots go to others, and handles of before find nothing. What
//! the user inserted and did not remove stays, and so does what anything refers to.
//!
//! No epoch of a peer's hellos is kept: a replay gets a reply with another nonce, and no proof
//! fits that.

use std::collections::HashSet;

use super::connection::Phase;
use super::core::{Action, Core};
use super::session::Sequel;

/// Sessions that are over and kept, at the most, unless something refers to them.
const OVER_MAX: usize = 256;

impl Core {
    /// A session is over, perhaps for good.
    pub(super) fn note_over(&mut self, slot: u32) {
        if !self.is_loopback(slot) {
            self.over.retain(|&other| other != slot);
            self.over.push(slot);
        }
    }

    /// Before another session is made.
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

    /// Sessions that could be forgotten now, those first that ended first.
    pub(super) fn forgettable(&self) -> Vec<u32> {
        let lanes = self.lanes.iter().map(|(_, lane)| lane.session);
        let operations = self.operations.iter().map(|(_, operation)| operation.session);
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

    /// Whether nobody wants a session that is not there.
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
        for list in [&mut self.dirty, &mut self.unblocked, &mut self.granting, &mut self.timed] {
            list.retain(|&other| other != slot);
        }
        self.starved.retain(|&(other, _)| other != slot);
    }
}
