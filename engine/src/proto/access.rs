//! What the loop reads of the protocol, and the little that it sets there: the connection of a
//! session is lent out, as is its lane monitor ([`super::control_lane`]).

use super::bulk::BulkLane;
use super::config::Config;
use super::connection::Connection;
use super::control_lane::LaneMonitor;
use super::core::{Core, CoreCounters, Remote};
use super::datagram::Shared;
use super::endpoints::Endpoints;
use super::hint::{Hint, Hinted};
use super::operation::{Operation, OperationState, Serving};
use super::outbox::StagingPool;

use super::session::Session;
use super::table::{Id, Table};
use super::unexpected::Unexpected;

impl Core {
    /// The id of this engine.
    #[inline]
    pub(crate) fn engine(&self) -> u64 {
        self.engine
    }

    #[inline]
    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    #[inline]
    pub(crate) fn counters(&self) -> CoreCounters {
        self.counters
    }

    /// What has been done about hints.
    #[inline]
    pub(crate) fn hinted(&self) -> &Hinted {
        &self.hinted
    }

    /// The session in a slot.
    #[inline]
    pub(crate) fn session(&self, slot: u32) -> Option<&Session> {
        self.sessions.at(slot as usize)
    }

    /// All sessions.
    #[inline]
    pub(crate) fn sessions(&self) -> &Table<Session> {
        &self.sessions
    }

    /// All remote endpoints.
    #[inline]
    pub(crate) fn remotes(&self) -> &Table<Remote> {
        &self.remotes
    }

    /// The endpoints of this engine.
    #[inline]
    pub(crate) fn endpoints(&self) -> &Endpoints {
        &self.endpoints
    }

    /// All operations that are outstanding.
    #[inline]
    pub(crate) fn operations(&self) -> &Table<Operation> {
        &self.operations
    }

    /// The send that a grant of a session is for, the length of its message and its hint. `None`:
    /// it has ended.
    pub(super) fn served_by(&mut self, slot: u32, id: Id) -> Option<(&mut Serving, u64, Hint)> {
        let found = self.operations.get_mut(id)?;
        let (length, hint) = (found.length, found.hint);
        let is_its = found.session == slot && found.serves();
        match &mut found.state {
            OperationState::Serving(serving) if is_its => Some((serving, length, hint)),
            _ => None,
        }
    }

    /// What of this engine's memory peers may reach.
    pub(crate) fn regions(&self) -> &super::regions::Regions {
        &self.regions
    }

    /// As [`Self::regions`].
    pub(crate) fn regions_mut(&mut self) -> &mut super::regions::Regions {
        &mut self.regions
    }

    /// All bulk lanes.
    #[inline]
    pub(crate) fn lanes(&self) -> &Table<BulkLane> {
        &self.lanes
    }

    /// The bytes of messages that wait for their receives.
    #[inline]
    pub(crate) fn unexpected(&self) -> &Unexpected {
        &self.unexpected
    }

    /// The staging buffers of stream mode.
    #[inline]
    pub(crate) fn staging(&self) -> &StagingPool {
        &self.staging
    }

    /// What sessions in datagram mode share.
    #[inline]
    pub(crate) fn datagrams(&self) -> &Shared {
        &self.datagrams
    }

    /// Sessions with something to send.
    #[inline]
    pub(crate) fn dirty(&self) -> &[u32] {
        &self.dirty
    }

    /// The connection of the session in a slot: its handshake is the loop's to carry out.
    #[inline]
    pub(crate) fn connection(&mut self, slot: u32) -> Option<&mut Connection> {
        self.sessions.at_mut(slot as usize).map(|session| &mut session.connection)
    }

    /// Whether the control lane of a session holds, for the loop to tell what becomes of it.
    pub(crate) fn lane_monitor(&mut self, slot: u32) -> Option<&mut LaneMonitor> {
        self.sessions.at_mut(slot as usize).map(|session| &mut session.control_lane)
    }

    /// The kernel has sent so many TCP segments again on a connection of the path at `at`.
    pub(crate) fn note_retransmits(&mut self, slot: u32, at: u8, retransmits: u64) {
        if let Some(session) = self.sessions.at_mut(slot as usize) {
            session.rails.note_retransmits(at, retransmits);
        }
    }

    /// A send with a hint was posted.
    #[inline]
    pub(crate) fn note_hinted_send(&mut self, hint: Hint) {
        self.hinted.note_send(hint);
    }

    /// Bytes of bulk data that may be on their way in datagrams, from all peers.
    pub(crate) fn set_datagram_window(&mut self, bytes: u64) {
        self.config.datagram_window_bytes = bytes;
    }
}

/// What simulations do to it.
#[cfg(any(test, feature = "sim"))]
impl Core {
    /// The loop does this next, as if the protocol had asked for it.
    #[cfg_attr(not(test), allow(dead_code, reason = "a test asks for it"))]
    pub(crate) fn act_next(&mut self, action: super::core::Action) {
        self.actions.push_back(action);
    }

    /// The session in a slot, to be spoilt.
    #[cfg_attr(not(test), allow(dead_code, reason = "a test asks for it"))]
    pub(crate) fn session_mut(&mut self, slot: u32) -> Option<&mut Session> {
        self.sessions.at_mut(slot as usize)
    }
}
