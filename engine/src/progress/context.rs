//! What the owners of connections use besides their state.

use super::clock::Clock;
use super::completions::Completions;
use super::engine::LoopConfig;
use super::roles::{CLOSING, ConnectionRole, Roles, Traffic};
use super::traits::{CloseMode, Interest, LaneKey};
use crate::driver::AnyDriver;
use crate::proto::core::Core;
use crate::proto::paths::PathTable;
use crate::proto::session::late::Late;
use crate::proto::table::Id;

/// The driver, and the state that all connections share.
pub(super) struct LaneCx<'a> {
    pub(super) driver: &'a mut AnyDriver,
    pub(super) core: &'a mut Core,
    pub(super) completions: &'a mut Completions,
    pub(super) paths: &'a mut PathTable,
    pub(super) roles: &'a mut Roles,
    pub(super) config: &'a LoopConfig,
    pub(super) clock: &'a Clock,
    /// The time of the turn.
    pub(super) now_ns: &'a mut u64,
}

impl LaneCx<'_> {
    /// Sets the time of the turn, and returns it.
    pub(super) fn read_clock(&mut self) -> u64 {
        *self.now_ns = self.clock.now_ns();
        *self.now_ns
    }

    /// Lets the driver report when a connection is ready.
    pub(super) fn watch(&mut self, key: LaneKey, interest: Interest) {
        if let Err(error) = self.driver.watch(key, interest) {
            tracing::warn!("cannot watch a lane: {error}");
        }
    }

    /// Closes a connection with nothing outstanding.
    pub(super) fn close(&mut self, key: LaneKey, mode: CloseMode) {
        self.roles.insert(key, CLOSING);
        self.driver.close(key, mode);
    }

    /// Handles a lane that both sides agree on.
    pub(super) fn handle_joined(&mut self, key: LaneKey, lane: Id) {
        self.roles.insert(key, ConnectionRole::Bulk { lane, traffic: Late::NONE });
        let now_ns = *self.now_ns;
        self.core.with_lane(lane, |it, mut cx| it.lanes_mut().handle_ready(&mut cx, lane, now_ns));
        self.watch(key, Interest::Readable);
    }

    /// Returns the driver operations of a bulk lane.
    pub(super) fn traffic(&mut self, key: LaneKey) -> Option<&mut Late<Traffic>> {
        self.roles.traffic(key)
    }

    /// Ends a bulk lane in the protocol.
    pub(super) fn lane_lost(&mut self, lane: Id, is_failure: bool, cause: &str) {
        self.core.lane_lost(lane, is_failure, cause, *self.now_ns, self.completions);
    }

    /// Keeps the kernel's figures of a connection of the path at `at` that is about to be closed.
    pub(super) fn keep_figures(&mut self, session: u32, at: u8, key: LaneKey) {
        let retransmits = self.driver.tcp_figures(key).map_or(0, |figures| figures.retransmits);
        self.core.with(session, |it, _| it.rails_mut().note_retransmits(at, retransmits));
    }

    /// Asks for an answer on all paths of a session.
    pub(super) fn ask_all_paths(&mut self, session: u32) {
        self.paths.ask_all_paths(*self.now_ns, session);
    }

    /// Resets lanes that wait for their last bytes to be taken, as they may hold memory.
    pub(super) fn reset_closing_lanes(&mut self) {
        for (key, role) in self.roles.iter() {
            if matches!(role, ConnectionRole::Closing { .. }) {
                self.driver.close(key, CloseMode::Reset);
            }
        }
    }
}
