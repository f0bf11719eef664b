//! What the programming interface, and tests, ask of the state of an engine.

use std::time::Duration;

use super::EngineState;
#[cfg(any(test, feature = "sim"))]
use super::clock::Clock;
use super::completions::Completions;
#[cfg(test)]
use super::control_lanes::ControlConnection;
use super::datagram::EngineDatagrams;
use super::manager::Requests;
use crate::proto::core::Core;
use crate::proto::paths::PathTable;
use crate::topology::Placement;
use crate::types::Rail;

impl EngineState {
    /// Returns the protocol.
    pub(crate) fn core(&self) -> &Core {
        &self.core
    }

    /// Returns the protocol, for calls that end no operation.
    pub(crate) fn core_mut(&mut self) -> &mut Core {
        &mut self.core
    }

    /// Opens an endpoint. `None`: there are as many as an engine has.
    pub(crate) fn open_endpoint(&mut self) -> Option<u16> {
        self.core.shared_mut().endpoints_mut().open()
    }

    /// Calls the protocol, which may end operations.
    pub(crate) fn with_core<R>(
        &mut self,
        call: impl FnOnce(&mut Core, &mut Completions) -> R,
    ) -> R {
        call(&mut self.core, &mut self.completions)
    }

    /// Returns the memory of operations, and the queues of their completions.
    pub(crate) fn completions(&self) -> &Completions {
        &self.completions
    }

    /// Returns the memory of operations, and the queues of their completions.
    #[inline]
    pub(crate) fn completions_mut(&mut self) -> &mut Completions {
        &mut self.completions
    }

    /// Returns the connections between endpoints.
    pub(crate) fn requests_mut(&mut self) -> &mut Requests {
        &mut self.requests
    }

    /// Returns the paths of its sessions.
    pub(crate) fn session_paths(&self) -> &PathTable {
        &self.paths
    }

    /// Returns its datagrams.
    pub(crate) fn datagrams(&self) -> &EngineDatagrams {
        &self.datagrams
    }

    /// Returns the rails that were chosen, also where routes decide.
    pub(crate) fn chosen_rails(&self) -> &[Rail] {
        self.rails.chosen()
    }

    /// Returns the placement of its threads and its memory.
    pub(crate) fn placement(&self) -> &Placement {
        &self.placement
    }

    /// Returns the time of busy polling before sleeping.
    pub(crate) fn spin(&self) -> Duration {
        self.config.spin
    }

    /// Reports puts with remote data to an endpoint in a queue; `None`: nowhere.
    pub(crate) fn report_puts_to(&mut self, endpoint: u16, queue: Option<u32>) {
        self.completions.regions_mut().set_queue(endpoint, queue);
    }
}

#[cfg(any(test, feature = "sim"))]
impl EngineState {
    /// Takes the time from the world that this thread simulates.
    pub(crate) fn use_virtual_time(&mut self) {
        self.clock = Clock::Virtual;
        self.completions.use_virtual_time();
    }

    /// Returns the time of the turn.
    pub(crate) fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// Returns the number of unauthenticated connections.
    pub(crate) fn pending_handshakes(&self) -> usize {
        self.handshakes.pending()
    }

    /// Returns the control connection of a session.
    #[cfg(test)]
    pub(crate) fn control(&self, session: u32) -> &ControlConnection {
        self.controls.get(session).expect("the session had one")
    }

    /// Returns the control connection of a session.
    #[cfg(test)]
    pub(crate) fn control_mut(&mut self, session: u32) -> &mut ControlConnection {
        self.controls.of(session)
    }
}
