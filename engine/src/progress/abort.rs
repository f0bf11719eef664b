//! Abort of operations while the kernel uses their memory.

use std::io;

use super::engine::Engine;
use crate::proto::regions::Refusal;
use crate::proto::table::Id;

impl Engine {
    /// Aborts an operation in progress: the lanes that use its memory are reset, and it ends as
    /// soon as the kernel has released the memory.
    pub(crate) fn abort(&mut self, id: Id) {
        let state = &mut *self.state;
        state.core.abort(id, Refusal::Endpoint, &mut state.completions);
        self.work();
        if self.state.core.shared().operations().contains(id) {
            self.setup().lanes.reset_closing_lanes();
        }
    }

    /// Aborts the operations of peers on a region that is being closed.
    pub(crate) fn abort_accesses(&mut self, region: Id) {
        let state = &mut *self.state;
        state.core.abort_accesses(region, &mut state.completions);
        self.work();
        if self.state.user_of_region(region, None).is_some() {
            self.setup().lanes.reset_closing_lanes();
        }
    }

    /// Closes the driver, which fails all operations of the engine, since the kernel keeps memory
    /// that its owner needs back.
    pub(crate) fn release_by_force(&mut self) {
        let error = io::Error::from(io::ErrorKind::TimedOut);
        self.fail_driver("the kernel does not release the memory of an aborted operation", error);
    }
}
