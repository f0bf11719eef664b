//! Accessors for the loop, most of them read-only. It changes a session by the methods of that,
//! which it gets by [`Core::enter`] and [`Core::with`].

use super::config::Config;
use super::context::SharedState;
use super::core::{Core, CoreCounters};
use super::endpoints::Endpoints;
use super::hint::Hint;
#[cfg(test)]
use super::operation::NO_SESSION;
use super::operations::Operations;
use super::peers::PeerTable;
use super::process_status::Processes;
use super::ready::Ready;
use super::session::Session;
use super::session::lanes::BulkLanes;
use super::session::rendezvous::Rendezvous;
use super::session::segments::segment::SegmentPool;
#[cfg(test)]
use super::table::Id;
use super::table::Table;
use super::unexpected::Unexpected;

impl Core {
    /// Returns what all sessions share.
    #[inline]
    pub(crate) fn shared(&self) -> &SharedState {
        &self.shared
    }

    /// Returns the same, mutable.
    #[inline]
    pub(crate) fn shared_mut(&mut self) -> &mut SharedState {
        &mut self.shared
    }

    /// Returns the session in a slot.
    #[inline]
    pub(crate) fn session(&self, slot: u32) -> Option<&Session> {
        self.sessions.at(slot as usize)
    }

    /// Returns all sessions.
    #[inline]
    pub(crate) fn sessions(&self) -> &Table<Session> {
        &self.sessions
    }

    /// Returns the session of an operation; of a receive, that of its source.
    #[cfg(test)]
    pub(crate) fn session_of_operation(&self, id: Id) -> u32 {
        let session = self.shared.operations.get(id).map(|operation| operation.session);
        session.or_else(|| Some(self.shared.source_of(id)?.session)).unwrap_or(NO_SESSION)
    }
}

/// What the loop reads and changes of the owners.
impl SharedState {
    /// Returns the id of this engine.
    #[inline]
    pub(crate) fn engine(&self) -> u64 {
        self.engine
    }

    #[inline]
    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    /// Returns all outstanding operations.
    #[inline]
    pub(crate) fn operations(&self) -> &Operations {
        &self.operations
    }

    /// Returns the sessions with work.
    #[inline]
    pub(crate) fn ready(&self) -> &Ready {
        &self.ready
    }

    /// Returns the same, for the loop to take sessions from it.
    #[inline]
    pub(crate) fn ready_mut(&mut self) -> &mut Ready {
        &mut self.ready
    }

    /// Returns all bulk lanes.
    #[inline]
    pub(crate) fn lanes(&self) -> &BulkLanes {
        &self.lanes
    }

    /// Returns the same, mutable.
    #[inline]
    pub(crate) fn lanes_mut(&mut self) -> &mut BulkLanes {
        &mut self.lanes
    }

    #[inline]
    pub(crate) fn counters(&self) -> CoreCounters {
        self.counters
    }

    /// Returns the directory of peers.
    #[inline]
    pub(crate) fn peers(&self) -> &PeerTable {
        &self.peers
    }

    /// Returns the same, mutable.
    pub(crate) fn peers_mut(&mut self) -> &mut PeerTable {
        &mut self.peers
    }

    /// Returns the endpoints of this engine.
    #[inline]
    pub(crate) fn endpoints(&self) -> &Endpoints {
        &self.endpoints
    }

    /// Returns the same, mutable.
    pub(crate) fn endpoints_mut(&mut self) -> &mut Endpoints {
        &mut self.endpoints
    }

    /// Returns what is known of processes of peers.
    pub(crate) fn processes(&self) -> &Processes {
        &self.processes
    }

    /// Returns the same, mutable.
    pub(crate) fn processes_mut(&mut self) -> &mut Processes {
        &mut self.processes
    }

    /// Returns the registered memory that peers may access.
    pub(crate) fn regions(&self) -> &super::regions::Regions {
        &self.regions
    }

    /// Returns the same, mutable.
    pub(crate) fn regions_mut(&mut self) -> &mut super::regions::Regions {
        &mut self.regions
    }

    /// Returns the store of unexpected messages.
    #[inline]
    pub(crate) fn unexpected(&self) -> &Unexpected {
        &self.unexpected
    }

    /// Returns the segments of all sessions.
    #[inline]
    pub(crate) fn pool(&self) -> &SegmentPool {
        &self.pool
    }

    /// Returns the rendezvous state of all sessions.
    #[inline]
    pub(crate) fn rendezvous(&self) -> &Rendezvous {
        &self.rendezvous
    }

    /// Counts a send with a hint.
    #[inline]
    pub(crate) fn note_hinted_send(&mut self, hint: Hint) {
        self.rendezvous.note_hinted_send(hint);
    }

    /// Sets the limit on bulk bytes outstanding in datagrams, of all peers.
    pub(crate) fn set_datagram_window(&mut self, bytes: u64) {
        self.config.datagram_window_bytes = bytes;
    }

    /// Returns the envelopes and bytes of the windows of sessions, and of unexpected messages of
    /// closed ones.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn reserved(&self) -> (u64, u64) {
        self.offers.reserved()
    }
}

/// Hooks for simulations.
#[cfg(any(test, feature = "sim"))]
impl Core {
    /// Queues an action for the loop, as if the protocol had requested it.
    #[cfg_attr(not(test), allow(dead_code, reason = "a test asks for it"))]
    pub(crate) fn act_next(&mut self, action: super::core::Action) {
        self.shared.actions.push_back(action);
    }

    /// Returns the session in a slot, for tests that corrupt it.
    #[cfg_attr(not(test), allow(dead_code, reason = "a test asks for it"))]
    pub(crate) fn session_mut(&mut self, slot: u32) -> Option<&mut Session> {
        self.sessions.at_mut(slot as usize)
    }
}
