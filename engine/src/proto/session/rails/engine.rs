//! The rails of one engine, which all its sessions use.

use super::RailInfo;
use super::segments::SegmentLimits;
use super::shares::{RailUse, Shares};
use crate::proto::session::Session;
use crate::proto::session::lanes::BulkLanes;
use crate::proto::table::Table;

/// The rails of this engine, and what all sessions have learnt of them.
#[derive(Default)]
pub(crate) struct EngineRails {
    /// None: there is a single one, which is not announced.
    infos: Vec<RailInfo>,
    shares: Shares,
    segment_limits: SegmentLimits,
}

impl EngineRails {
    /// Sets them; peers receive them when a session is established.
    pub(crate) fn set(&mut self, infos: Vec<RailInfo>) {
        self.infos = infos;
    }

    /// Returns them; none: there is a single one, which is not announced.
    pub(crate) fn infos(&self) -> &[RailInfo] {
        &self.infos
    }

    /// Returns the shares of them that lanes have.
    pub(in crate::proto::session) fn shares(&self) -> &Shares {
        &self.shares
    }

    /// Returns the same, mutable.
    pub(in crate::proto::session) fn shares_mut(&mut self) -> &mut Shares {
        &mut self.shares
    }

    /// Splits them among the peers that are pulled from now, if the last split is old.
    pub(in crate::proto) fn split(
        &mut self,
        sessions: &Table<Session>,
        lanes: &BulkLanes,
        now_ns: u64,
    ) {
        let rail_use = RailUse { sessions, lanes, rails: &self.infos };
        self.shares.refresh(rail_use, now_ns);
    }

    /// Returns the lengths of segments that pass.
    pub(crate) fn segment_limits(&self) -> &SegmentLimits {
        &self.segment_limits
    }

    /// Returns the same, mutable.
    pub(super) fn segment_limits_mut(&mut self) -> &mut SegmentLimits {
        &mut self.segment_limits
    }
}
