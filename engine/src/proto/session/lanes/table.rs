//! The bulk lanes of an engine: their table, those with work, and the sessions that wait for one.

use std::collections::VecDeque;

#[cfg(any(test, feature = "sim"))]
use super::super::Session;
use super::lane::BulkLane;
use super::limits::LaneLimits;
use crate::proto::table::{Id, Table};

/// The bulk lanes of an engine.
#[derive(Debug)]
pub(crate) struct BulkLanes {
    table: Table<BulkLane>,
    limits: LaneLimits,
    /// Differs between engines.
    seed: u64,
    /// Lanes that may have a chunk for the driver.
    runnable: VecDeque<Id>,
    /// Sessions that need a lane and retry later: each once.
    starved: Vec<u32>,
    /// A lane was closed since their last attempt.
    has_room: bool,
    /// Number of their retry rounds.
    rounds: u64,
}

impl BulkLanes {
    /// Creates an empty table. `seed` differs between engines.
    pub(in crate::proto) fn new(limits: LaneLimits, seed: u64) -> Self {
        Self {
            table: Table::new(limits.total()),
            limits,
            seed,
            runnable: VecDeque::new(),
            starved: Vec::new(),
            has_room: false,
            rounds: 0,
        }
    }

    /// Returns how many lanes a session has on each path.
    pub(in crate::proto) fn per_path(&self) -> usize {
        self.limits.per_path()
    }

    /// Returns their limits.
    pub(super) fn limits(&self) -> &LaneLimits {
        &self.limits
    }

    /// Returns how many lanes there may be.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn limit(&self) -> usize {
        self.table.limit()
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
        let is_it = |&lane: &Id| self.get(lane).is_some_and(|lane| lane.number() == number);
        lanes.iter().copied().find(is_it)
    }

    /// Marks a lane that may have a chunk for the driver.
    #[inline]
    pub(in crate::proto) fn mark_runnable(&mut self, lane: Id) {
        if let Some(bulk) = self.table.get_mut(lane)
            && bulk.mark_runnable()
        {
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
    pub(crate) fn poll_runnable(&mut self) -> Option<Id> {
        while let Some(lane) = self.runnable.pop_front() {
            if let Some(bulk) = self.table.get_mut(lane) {
                bulk.take_runnable();
                return Some(lane);
            }
        }
        None
    }

    /// Notes the longest segment of the connection of a lane that is to be opened; `None`: as NICs
    /// take it.
    pub(crate) fn limit_segments(&mut self, lane: Id, limit: Option<u16>) {
        if let Some(bulk) = debug_assert_some!(self.table.get_mut(lane), "a lane is opened once") {
            bulk.limit_segments(limit);
        }
    }

    /// Returns whether sessions wait for a lane, and one was closed since their last attempt.
    #[inline]
    pub(in crate::proto) fn may_serve_starved(&self) -> bool {
        self.has_room && !self.starved.is_empty()
    }

    /// Adds a lane. `None`: at the limit.
    pub(super) fn insert(&mut self, lane: BulkLane) -> Option<Id> {
        debug_assert!(lane.is_idle(), "nothing is granted on a new lane");
        self.table.insert(lane).ok()
    }

    /// Removes a lane that is lost: there is room for another one.
    pub(super) fn remove_lost(&mut self, lane: Id) -> Option<BulkLane> {
        self.has_room = true;
        self.table.remove(lane)
    }

    /// Removes a lane that the peer has refused.
    pub(super) fn remove_refused(&mut self, lane: Id) -> Option<BulkLane> {
        self.table.remove(lane)
    }

    /// Removes and returns the sessions that wait for a lane.
    pub(super) fn take_starved(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.starved)
    }

    /// Notes that the sessions that wait for room try now.
    pub(super) fn note_attempt(&mut self) {
        self.has_room = false;
    }

    /// Returns whether sessions that wait for space try now; otherwise the space remains free for
    /// lanes that peers open. At random: engines that filled their last slot at the same time, each
    /// with a lane to the next one, would refuse all of them forever. Sessions whose lanes fail
    /// always try: their time is limited (RR-LANE-4).
    ///
    /// RR-LANE-6.
    pub(super) fn is_own_turn(&mut self) -> bool {
        self.rounds = self.rounds.wrapping_add(1);
        // The finalizer of splitmix64 over inputs that differ between engines and rounds.
        let mut bits = self.seed ^ self.rounds;
        bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (bits ^ bits >> 31) & 1 == 0
    }

    /// Adds a session that begins to wait for a lane.
    pub(super) fn add_starved(&mut self, slot: u32) {
        self.starved.push(slot);
    }

    /// Removes a session that is forgotten from those that wait for a lane.
    pub(in crate::proto) fn forget(&mut self, slot: u32) {
        self.starved.retain(|&other| other != slot);
    }

    /// Checks that lanes and sessions agree, and each lane with itself.
    #[cfg(any(test, feature = "sim"))]
    pub(in crate::proto) fn check(&self, sessions: &Table<Session>) {
        for (id, lane) in self.iter() {
            lane.check();
            let times = self.runnable.iter().filter(|&&other| other == id).count();
            assert_eq!(times, usize::from(lane.is_runnable()), "{id:?} is listed if marked");
            let session = sessions.at(lane.session() as usize).expect("a lane has a session");
            let is_its = session.lanes.ids().contains(&id);
            assert!(is_its || !session.is_connected(), "{id:?} is among the lanes of its session");
        }
        for (slot, session) in sessions.iter() {
            let own = session.lanes.ids();
            for (at, &lane) in own.iter().enumerate() {
                let bulk = self.get(lane).expect("the lanes of a session exist");
                assert_eq!(bulk.session() as usize, slot.index(), "{lane:?} is of one session");
                assert!(!own[..at].contains(&lane), "{lane:?} is there once");
                let path = session.rails.paths.get(usize::from(bulk.path()));
                assert!(path.is_some(), "{lane:?} is on a path of its session");
            }
        }
        let mut starved = self.starved.clone();
        starved.sort_unstable();
        let waiting = sessions.iter().filter(|(_, session)| session.lanes.is_waiting());
        let waiting: Vec<u32> = waiting.map(|(slot, _)| slot.index() as u32).collect();
        assert_eq!(starved, waiting, "a session that waits for a lane is listed once");
    }

    /// Returns the spare lane that was idle for longest.
    pub(super) fn oldest_idle(&self, now_ns: u64) -> Option<Id> {
        let patience_ns = self.limits.patience_ns();
        let idle = self.table.iter().filter(|(_, bulk)| bulk.is_spare(now_ns, patience_ns));
        idle.min_by_key(|(_, bulk)| bulk.used_ns()).map(|(lane, _)| lane)
    }
}
