//! Operations that are given up while their memory is in use.

use std::io;

use super::engine::Engine;
use crate::proto::table::Id;
use crate::types::{Address, Peer};

impl Engine {
    /// Gives up an operation that is under way. It ends as soon as the kernel has let go of its
    /// memory, whose lanes are reset.
    pub(crate) fn abort(&mut self, id: Id) {
        let state = &mut *self.state;
        state.core.abort(id, &mut state.completions);
        self.work();
        if self.state.core.operations().get(id).is_some() {
            self.reset_closing_lanes();
        }
    }

    /// Gives up what peers do to a region that is closed.
    pub(crate) fn abort_accesses(&mut self, region: Id) {
        let state = &mut *self.state;
        state.core.abort_accesses(region, &mut state.completions);
        self.work();
        if self.user_of_region(region, None).is_some() {
            self.reset_closing_lanes();
        }
    }

    /// The kernel does not let go of memory that its owner takes back: the driver is closed, and
    /// everything ends with it.
    pub(crate) fn release_by_force(&mut self) {
        let error = io::Error::from(io::ErrorKind::TimedOut);
        self.fail_driver("the kernel does not let go of memory of an operation given up", error);
    }

    /// The address of a peer.
    pub(crate) fn address_of(&self, peer: Peer) -> Option<Address> {
        let core = &self.state.core;
        core.remotes().get(peer.0)?;
        let name = core.name_of(peer.0.index() as u32)?;
        Some(Address::new(name.engine, name.locators, name.endpoint))
    }
}
