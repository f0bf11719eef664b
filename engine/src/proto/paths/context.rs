//! How a session and its paths are found, and what their methods use.

use std::net::SocketAddr;

use super::super::context::Cx;
use super::super::core::Core;
use super::super::session::Session;
use super::{PathCx, PathTable, Paths, SharedPathState};

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

    /// Calls `call` with the paths of a session that has begun, the session, and what their methods
    /// use. Without them, which is a defect, nothing but the default result follows.
    pub(super) fn with_known<R: Default>(
        &mut self,
        core: &mut Core,
        slot: u32,
        call: impl FnOnce(&mut Paths, &mut Session, PathCx<'_, '_>) -> R,
    ) -> R {
        let entered = self.enter(core, slot);
        debug_assert!(entered.is_some(), "slot {slot} is of a session, whose paths have begun");
        entered.map(|(paths, session, cx)| call(paths, session, cx)).unwrap_or_default()
    }

    /// Returns the paths of the session in a slot, and what they share with others. `None`: no
    /// session in it had paths.
    #[inline(always)]
    pub(super) fn paths_of(&mut self, slot: u32) -> Option<(&mut Paths, &mut SharedPathState)> {
        let Self { by_slot, shared } = self;
        Some((by_slot.get_mut(slot as usize)?, shared))
    }

    /// Calls `call` with the paths of a session that has begun, and what they share with others.
    pub(super) fn with_paths(
        &mut self,
        slot: u32,
        call: impl FnOnce(&mut Paths, &mut SharedPathState),
    ) {
        let entry = debug_assert_some!(self.paths_of(slot), "the paths of the session have begun");
        if let Some((paths, shared)) = entry {
            call(paths, shared);
        }
    }
}
