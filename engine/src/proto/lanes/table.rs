//! The bulk lanes of an engine: their table, those with work, and the sessions that wait for one.

use std::collections::VecDeque;

use super::super::table::{Id, Table};
use super::Wait;
use super::lane::BulkLane;

/// The bulk lanes of an engine.
#[derive(Debug)]
pub(crate) struct BulkLanes {
    table: Table<BulkLane>,
    /// Lanes that may have a chunk for the driver.
    runnable: VecDeque<Id>,
    /// Sessions that need a lane and retry later.
    pub(super) starved: Vec<(u32, Wait)>,
    /// A lane was closed since their last attempt.
    pub(super) has_room: bool,
    /// Number of their retry rounds.
    pub(super) rounds: u64,
}

impl BulkLanes {
    /// Creates an empty table of at most `limit` lanes.
    pub(in crate::proto) fn new(limit: usize) -> Self {
        Self {
            table: Table::new(limit),
            runnable: VecDeque::new(),
            starved: Vec::new(),
            has_room: false,
            rounds: 0,
        }
    }

    /// Returns the number of lanes.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    #[inline]
    pub(crate) fn get(&self, lane: Id) -> Option<&BulkLane> {
        self.table.get(lane)
    }

    #[inline]
    pub(in crate::proto) fn get_mut(&mut self, lane: Id) -> Option<&mut BulkLane> {
        self.table.get_mut(lane)
    }

    /// Returns all lanes.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Id, &BulkLane)> {
        self.table.iter()
    }

    /// Returns the lane with this number among some lanes.
    pub(in crate::proto) fn named(&self, lanes: &[Id], number: u32) -> Option<Id> {
        let is_it = |&lane: &Id| self.get(lane).is_some_and(|lane| lane.number == number);
        lanes.iter().copied().find(is_it)
    }

    /// Marks a lane that may have a chunk for the driver.
    #[inline]
    pub(in crate::proto) fn mark_runnable(&mut self, lane: Id) {
        if let Some(bulk) = self.table.get_mut(lane)
            && !bulk.is_runnable
        {
            bulk.is_runnable = true;
            self.runnable.push_back(lane);
        }
    }

    /// Returns whether a lane may have a chunk for the driver.
    #[inline]
    pub(in crate::proto) fn has_runnable(&self) -> bool {
        !self.runnable.is_empty()
    }

    /// Removes and returns the next lane that may have a chunk for the driver.
    #[inline]
    pub(in crate::proto) fn poll_runnable(&mut self) -> Option<Id> {
        while let Some(lane) = self.runnable.pop_front() {
            if let Some(bulk) = self.table.get_mut(lane) {
                bulk.is_runnable = false;
                return Some(lane);
            }
        }
        None
    }

    /// Returns whether sessions wait for a lane, and one was closed since their last attempt.
    #[inline]
    pub(in crate::proto) fn may_serve_starved(&self) -> bool {
        self.has_room && !self.starved.is_empty()
    }

    /// Adds a lane. `None`: at the limit.
    pub(super) fn insert(&mut self, lane: BulkLane) -> Option<Id> {
        self.table.insert(lane).ok()
    }

    /// Removes a lane that is lost or refused.
    pub(super) fn remove(&mut self, lane: Id) -> Option<BulkLane> {
        self.table.remove(lane)
    }

    /// Defers the lanes of a session until [`super::super::core::Core::close_idle_lanes`] retries.
    pub(super) fn defer(&mut self, slot: u32, wait: Wait) {
        self.starved.push((slot, wait));
    }

    /// Removes a session that is forgotten from those that wait for a lane.
    pub(in crate::proto) fn forget(&mut self, slot: u32) {
        self.starved.retain(|&(other, _)| other != slot);
    }

    /// Returns the spare lane that was idle for longest.
    pub(super) fn oldest_idle(&self, now_ns: u64, patience_ns: u64) -> Option<Id> {
        let idle = self.table.iter().filter(|(_, bulk)| bulk.is_spare(now_ns, patience_ns));
        idle.min_by_key(|(_, bulk)| bulk.used_ns).map(|(lane, _)| lane)
    }
}
