//! State that the paths of all sessions share, and what the methods of a session's paths use of it.

use std::collections::HashMap;
use std::net::SocketAddr;

use foldhash::quality::RandomState;

use super::super::context::Cx;
use super::super::core::Core;
use super::super::session::Session;
use super::counters::{DatagramCounters, Dropped};
use super::idle::InUse;
use super::timers::Timers;
use super::{PathTable, Paths};

/// State that the paths of all sessions of an engine share.
#[derive(Debug, Default)]
pub(super) struct SharedPathState {
    /// The slots of sessions by the id in their datagrams.
    pub(super) by_session: HashMap<u64, u32, RandomState>,
    /// Number of paths beyond one per session.
    pub(super) standing_by: usize,
    /// The session of the most recent datagram, if it exists.
    pub(super) latest: u32,
    /// Timers of sessions.
    pub(super) timers: Timers,
    /// Sessions with received packets whose paths have not been drained since.
    pub(super) to_drain: Vec<u32>,
    /// Sessions whose paths had packets or turns since the loop slept, possibly repeated: their
    /// pending acknowledgements are sent before it sleeps again.
    pub(super) awake: Vec<u32>,
    /// Sessions with several paths, possibly repeated, and some that have one again.
    pub(super) several: Vec<u32>,
    /// Sessions with recent traffic.
    pub(super) in_use: Vec<InUse>,
    /// NICs of this engine's rails, by index: link-local addresses need them as scope.
    pub(super) nics: Vec<u32>,
    /// Rails whose NICs have no carrier: a bit for each.
    pub(super) rails_down: u16,
    /// Dropped datagrams so far.
    pub(super) dropped: Dropped,
    /// Segments received in datagrams so far.
    pub(super) segments: u64,
    /// Counters of paths of closed sessions.
    pub(super) of_closed: DatagramCounters,
}

impl SharedPathState {
    /// Returns whether the NIC of a rail has no carrier.
    pub(super) fn is_rail_down(&self, rail: u8) -> bool {
        self.rails_down >> (rail % 16) & 1 != 0
    }

    /// Returns a peer's address as used on a rail: a link-local one gets the NIC as its scope.
    pub(super) fn scoped(&self, rail: u8, remote: SocketAddr) -> SocketAddr {
        let mut remote = remote;
        if let SocketAddr::V6(v6) = &mut remote
            && v6.ip().is_unicast_link_local()
            && v6.scope_id() == 0
        {
            v6.set_scope_id(self.nics.get(usize::from(rail)).copied().unwrap_or(0));
        }
        remote
    }
}

/// What the methods of a session's paths use besides the paths and the session.
pub(super) struct PathCx<'c, 'p> {
    /// What the methods of the session use.
    pub(super) cx: Cx<'c>,
    pub(super) shared: &'p mut SharedPathState,
}

impl PathCx<'_, '_> {
    /// Returns the slot of the session.
    #[inline(always)]
    pub(super) fn slot(&self) -> u32 {
        self.cx.slot
    }

    /// Returns what the methods of the session use, for one that takes it by value.
    #[inline(always)]
    pub(super) fn cx(&mut self) -> Cx<'_> {
        self.cx.reborrow()
    }
}

/// The paths of a session, the session, and what their methods use.
pub(super) type Entered<'c, 'p> = (&'p mut Paths, &'c mut Session, PathCx<'c, 'p>);

impl PathTable {
    /// Returns the paths of the session in a slot, the session, and what their methods use. `None`:
    /// the slot is vacant, or no session in it had paths.
    #[inline(always)]
    pub(super) fn enter<'c, 'p>(
        &'p mut self,
        core: &'c mut Core,
        slot: u32,
    ) -> Option<Entered<'c, 'p>> {
        let Self { by_slot, shared } = self;
        let paths = by_slot.get_mut(slot as usize)?;
        let (session, cx) = core.enter(slot)?;
        Some((paths, session, PathCx { cx, shared }))
    }

    /// Returns the paths of the session in a slot, and what they share with others. `None`: no
    /// session in it had paths.
    #[inline(always)]
    pub(super) fn entry(&mut self, slot: u32) -> Option<(&mut Paths, &mut SharedPathState)> {
        let Self { by_slot, shared } = self;
        Some((by_slot.get_mut(slot as usize)?, shared))
    }
}
