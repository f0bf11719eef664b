//! What is known of rails and paths.

use super::endpoint::Endpoint;
use super::engine_ref::EngineRef;
use super::mode::Attached;
use crate::telemetry::{Statistics, prometheus};
use crate::topology::NicReader;
use crate::types::{PathStatistics, Rail};

impl<M: Attached> Endpoint<M> {
    /// The addresses of this host that it sends and receives by, the best first: those that peers
    /// are told of. Where the setting `listen_address` and several NICs are missing, routes decide
    /// which NIC packets leave by; then this is the one that peers reach.
    ///
    /// [`Rail::nic_counters`] has what their NICs count.
    pub fn rails(&self) -> Vec<Rail> {
        self.open().engine.with(|engine| engine.state.rails_chosen.clone())
    }

    /// How the paths of all sessions fare, and what they carried. A session with one path has one
    /// entry; messages to oneself have none.
    pub fn paths(&self) -> Vec<PathStatistics> {
        self.open().engine.with(|engine| engine.paths(usize::MAX).0)
    }

    /// Everything that is counted, that of the NICs included, as of now.
    pub fn statistics(&self) -> Statistics {
        let mut reader = NicReader::open().ok();
        self.open().engine.with(|engine| engine.statistics(reader.as_mut(), usize::MAX))
    }

    /// [`Self::statistics`] in the text format of Prometheus, for whoever exports it himself. The
    /// setting `prometheus_address` has a thread do so.
    pub fn prometheus(&self) -> String {
        prometheus(&[&self.statistics()])
    }
}
