//! Remote endpoints, and which of them each session has.

use super::PeerTable;
use crate::proto::operation::NO_REMOTE;
use crate::proto::session::Session;
use crate::proto::session::peer_engine::PeerEngine;
use crate::proto::table::{Id, Table};

/// A remote endpoint.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Remote {
    /// Slot of its session.
    pub(crate) session: u32,
    /// Its id on the remote engine.
    pub(crate) endpoint: u16,
    /// The user inserted it; otherwise it is known as the source of a message.
    pub(super) is_inserted: bool,
}

/// The remote endpoints of one session: their indices in the [`PeerTable`], by their ids on the
/// remote engine.
#[derive(Debug, Default)]
pub(in crate::proto) struct SessionRemotes {
    by_endpoint: Vec<u32>,
}

impl SessionRemotes {
    /// Returns the index of an endpoint in the table; [`NO_REMOTE`]: it is unknown.
    #[inline(always)]
    pub(in crate::proto) fn index_of(&self, endpoint: u16) -> u32 {
        self.by_endpoint.get(usize::from(endpoint)).copied().unwrap_or(NO_REMOTE)
    }

    /// Returns the indices of all of them, by their ids on the remote engine.
    pub(in crate::proto) fn iter(&self) -> impl Iterator<Item = u32> {
        self.by_endpoint.iter().copied().filter(|&index| index != NO_REMOTE)
    }

    /// Returns whether there is none.
    pub(in crate::proto) fn is_empty(&self) -> bool {
        self.iter().next().is_none()
    }

    /// Adds an endpoint, which is not among them.
    fn set(&mut self, endpoint: u16, index: u32) {
        debug_assert_eq!(self.index_of(endpoint), NO_REMOTE, "an endpoint has one remote");
        let slot = usize::from(endpoint);
        if self.by_endpoint.len() <= slot {
            self.by_endpoint.resize(slot + 1, NO_REMOTE);
        }
        self.by_endpoint[slot] = index;
    }

    /// Removes an endpoint, whose handle is `peer`.
    fn take(&mut self, endpoint: u16, peer: Id) {
        debug_assert_eq!(
            self.index_of(endpoint),
            peer.index() as u32,
            "a remote is among those of its session"
        );
        if let Some(index) = self.by_endpoint.get_mut(usize::from(endpoint)) {
            *index = NO_REMOTE;
        }
    }
}

/// Each remote endpoint is among those of its session, and of no other.
impl PeerTable {
    /// Returns a remote endpoint by its handle.
    #[inline(always)]
    pub(crate) fn get(&self, peer: Id) -> Option<&Remote> {
        self.remotes.get(peer)
    }

    /// Returns a remote endpoint by its index.
    #[inline]
    pub(in crate::proto) fn at(&self, index: u32) -> Option<&Remote> {
        self.remotes.at(index as usize)
    }

    /// Returns the handle of the remote endpoint at an index.
    #[inline]
    pub(in crate::proto) fn id_at(&self, index: u32) -> Option<Id> {
        self.remotes.id_at(index as usize)
    }

    /// Returns all remote endpoints with their handles, by index.
    #[cfg(any(test, feature = "sim"))]
    pub(in crate::proto) fn iter(&self) -> impl Iterator<Item = (Id, &Remote)> {
        self.remotes.iter()
    }

    /// Returns the index of a remote endpoint of the engine, whose session is in `slot`, created if
    /// it is new. `None`: at the limit.
    #[inline]
    pub(in crate::proto) fn remote_of(
        &mut self,
        slot: u32,
        engine: &mut PeerEngine,
        endpoint: u16,
    ) -> Option<u32> {
        match engine.remotes().index_of(endpoint) {
            NO_REMOTE => self.new_remote(slot, engine, endpoint),
            known => Some(known),
        }
    }

    #[cold]
    fn new_remote(&mut self, slot: u32, engine: &mut PeerEngine, endpoint: u16) -> Option<u32> {
        let remote = Remote { session: slot, endpoint, is_inserted: false };
        let index = self.remotes.insert(remote).ok()?.index() as u32;
        engine.remotes_mut().set(endpoint, index);
        Some(index)
    }

    /// Returns the handle of a remote endpoint that the user inserts.
    pub(super) fn insert_remote(
        &mut self,
        slot: u32,
        session: &mut Session,
        endpoint: u16,
    ) -> Option<Id> {
        let index = self.remote_of(slot, session.peer_mut(), endpoint)?;
        let remote = self.remotes.at_mut(index as usize);
        let remote = debug_assert_some!(remote, "the remotes of a session exist")?;
        debug_assert_eq!(remote.session, slot, "a remote is among those of its session");
        remote.is_inserted = true;
        self.id_at(index)
    }

    /// Removes a remote endpoint of a session.
    pub(super) fn remove_remote(&mut self, peer: Id, session: &mut Session) {
        if let Some(remote) = debug_assert_some!(self.remotes.remove(peer), "it is removed once") {
            session.peer_mut().remotes_mut().take(remote.endpoint, peer);
        }
    }

    /// Moves a remote endpoint from a session to the one in `slot`.
    pub(super) fn move_remote(
        &mut self,
        peer: Id,
        from: &mut Session,
        (slot, to): (u32, &mut Session),
    ) {
        let remote = debug_assert_some!(self.remotes.get_mut(peer), "a remote that moves exists");
        if let Some(remote) = remote {
            remote.session = slot;
            from.peer_mut().remotes_mut().take(remote.endpoint, peer);
            to.peer_mut().remotes_mut().set(remote.endpoint, peer.index() as u32);
        }
    }

    /// Returns whether remote endpoints were known, and the sessions of all that are left have
    /// failed: no message can come.
    pub(in crate::proto) fn are_all_lost(&self, sessions: &Table<Session>) -> bool {
        let is_live = |session: &Session| {
            !session.peer().remotes().is_empty() && session.ending().failure().is_none()
        };
        self.remotes.slots() > 0 && !sessions.iter().any(|(_, session)| is_live(session))
    }
}
