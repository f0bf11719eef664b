//! Rails, paths and statistics.

use super::endpoint::Endpoint;
use super::engine_ref::EngineRef;
use super::mode::Attached;
use crate::telemetry::{Statistics, prometheus};
use crate::topology::NicReader;
use crate::types::{PathStatistics, Rail};

impl<M: Attached> Endpoint<M> {
    /// Returns the rails of the engine, the best first: the addresses of this host that it
    /// announces to peers. With one rail and without the setting `listen_address`, the routing
    /// table decides by which NIC packets leave.
    ///
    /// [`Rail::nic_counters`] returns the counters of their NICs.
    pub fn rails(&self) -> Vec<Rail> {
        self.open().engine.with(|engine| engine.state.chosen_rails().to_vec())
    }

    /// Returns state and counters of the paths of all sessions. Messages between endpoints of one
    /// engine have no path.
    pub fn paths(&self) -> Vec<PathStatistics> {
        self.open().engine.with(|engine| engine.state.paths(&mut engine.driver, usize::MAX).0)
    }

    /// Returns all counters, those of the NICs included.
    pub fn statistics(&self) -> Statistics {
        let mut reader = NicReader::open().ok();
        self.open()
            .engine
            .with(|engine| engine.state.statistics(&mut engine.driver, reader.as_mut(), usize::MAX))
    }

    /// Returns [`Self::statistics`] in the text format of Prometheus, for programs that serve it
    /// themselves; with the setting `prometheus_address` a thread of the library does.
    pub fn prometheus(&self) -> String {
        prometheus(&[&self.statistics()])
    }
}
