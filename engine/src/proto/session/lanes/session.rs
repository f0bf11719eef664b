//! The bulk lanes of one session: which it has, and what it waits for where it lacks some.

use super::lane::BulkLane;
use super::{BulkLanes, LANE_FAILURES_MAX, LaneFailures, Wait};
use crate::proto::context::Cx;
use crate::proto::core::Action;
use crate::proto::failure::PeerFailure;
use crate::proto::handshake::JoinWindow;
use crate::proto::keys::SessionKeys;
use crate::proto::ready::Work;
use crate::proto::session::late::Late;
use crate::proto::session::rails::Rails;
use crate::proto::table::Id;
use crate::wire::hello::HelloStatus;

/// The bulk lanes of a session.
#[derive(Debug, Default)]
pub(crate) struct SessionLanes {
    /// Those it has.
    ids: Vec<Id>,
    /// Lanes were requested (from the loop, or from the peer) and are not there yet.
    are_requested: bool,
    /// What it waits for before it requests lanes again: it is among the sessions of
    /// [`BulkLanes::take_starved`].
    wait: Option<Wait>,
    /// The peer requested lanes, and has granted on none since: lanes that look healthy here may be
    /// lost there.
    are_wanted: bool,
    /// Lanes with lower numbers were opened before that.
    wanted_before: u32,
    /// Lanes lost since a chunk was last received or sent completely.
    failures: Late<LaneFailures>,
    /// Number of the next connection of this side that joins the session.
    next_number: u32,
    /// Number of the connection that last replaced the control lane.
    last_move: Option<u32>,
    /// Numbers of connections of the peer that have joined the session.
    joins: JoinWindow,
}

impl SessionLanes {
    /// Resets what belongs to the last connection of the session, which is established again.
    pub(in crate::proto) fn restart(&mut self) {
        debug_assert!(self.ids.is_empty(), "the lanes ended with the connection");
        let (ids, wait) = (std::mem::take(&mut self.ids), self.wait);
        *self = Self { ids, wait, ..Self::default() };
    }

    /// Returns its lanes.
    #[inline]
    pub(crate) fn ids(&self) -> &[Id] {
        &self.ids
    }

    /// Returns its lanes, from the table of all.
    pub(in crate::proto) fn iter<'a>(
        &'a self,
        lanes: &'a BulkLanes,
    ) -> impl Iterator<Item = (Id, &'a BulkLane)> + Clone {
        self.ids.iter().filter_map(move |&lane| {
            let bulk = debug_assert_some!(lanes.get(lane), "the lanes of a session exist");
            Some((lane, bulk?))
        })
    }

    /// Returns its lanes on the path at `at`.
    pub(in crate::proto) fn on_path<'a>(
        &'a self,
        lanes: &'a BulkLanes,
        at: u8,
    ) -> impl Iterator<Item = (Id, &'a BulkLane)> + Clone {
        self.iter(lanes).filter(move |(_, bulk)| bulk.path() == at)
    }

    /// Removes and returns its lanes, since it has ended.
    pub(in crate::proto) fn take_all(&mut self) -> Vec<Id> {
        std::mem::take(&mut self.ids)
    }

    /// Frees memory that it does not need.
    pub(in crate::proto) fn shrink(&mut self) {
        self.ids.shrink_to_fit();
    }

    /// Returns whether it has a lane, or waits for one, on a path that carries bulk data.
    pub(super) fn has_bulk_lane(&self, lanes: &BulkLanes, rails: &Rails) -> bool {
        self.iter(lanes).any(|(_, bulk)| rails.carries_bulk(bulk.path().into()))
    }

    /// Returns whether chunks are outstanding on its lanes of the path at `at`.
    pub(in crate::proto) fn are_busy_on(&self, lanes: &BulkLanes, at: u8) -> bool {
        self.on_path(lanes, at).any(|(_, bulk)| !bulk.is_idle())
    }

    /// Returns whether a granted range has not arrived.
    pub(in crate::proto) fn has_granted_chunks(&self, lanes: &BulkLanes) -> bool {
        self.iter(lanes).any(|(_, bulk)| bulk.expects_chunk())
    }

    // ---- Requests ----

    /// Notes that lanes are requested. Returns `false` if they are already.
    pub(super) fn note_request(&mut self) -> bool {
        !std::mem::replace(&mut self.are_requested, true)
    }

    /// Returns whether the peer has requested lanes, and has granted on none since.
    pub(in crate::proto) fn are_wanted(&self) -> bool {
        self.are_wanted
    }

    /// Notes that the peer requests lanes: those that are lost there may still look healthy here.
    pub(super) fn handle_wanted(&mut self) {
        (self.are_wanted, self.wanted_before) = (true, self.next_number);
    }

    /// Returns whether the peer has requested lanes, and this side has none, nor requested any.
    pub(in crate::proto) fn lacks_wanted_lanes(&self) -> bool {
        self.are_wanted && self.ids.is_empty() && !self.are_requested
    }

    /// Ends the peer's request for lanes if the lane of this number was opened since: the peer
    /// accepted that one after its request, and will detect its end.
    pub(super) fn end_older_request(&mut self, number: u32) {
        self.are_wanted &= number < self.wanted_before;
    }

    /// Ends the request of the peer, which grants on the lane of this number. In datagrams
    /// (`are_reordered`) it may have done so before it lost that lane and requested one.
    pub(in crate::proto) fn handle_grant(&mut self, number: u32, are_reordered: bool) {
        self.are_wanted &= are_reordered;
        self.end_older_request(number);
    }

    /// Waits for lanes, for this cause alone, until [`BulkLanes::take_starved`].
    pub(in crate::proto) fn wait(&mut self, cx: &mut Cx<'_>, wait: Wait) {
        self.are_requested = true;
        if self.wait.replace(wait).is_none() {
            cx.shared.lanes.add_starved(cx.slot);
        }
    }

    /// Ends the wait, unless `is_over` denies it for its cause and the number of consecutive
    /// failures. Returns whether it has ended.
    pub(super) fn end_wait(
        &mut self,
        cx: &mut Cx<'_>,
        is_over: impl Fn(Wait, u32) -> bool,
    ) -> bool {
        let wait = debug_assert_some!(self.wait.take(), "it waits");
        match wait.filter(|&wait| !is_over(wait, self.failures.count())) {
            Some(wait) => {
                self.wait = Some(wait);
                cx.shared.lanes.add_starved(cx.slot);
                false
            }
            None => true,
        }
    }

    /// Notes that the lanes that were requested will not come.
    pub(super) fn end_request(&mut self) {
        self.are_requested = false;
    }

    /// Returns whether it waits for lanes.
    #[cfg(any(test, feature = "sim"))]
    pub(super) fn is_waiting(&self) -> bool {
        self.wait.is_some()
    }

    // ---- Joins ----

    /// Returns the number of the next connection that is to join the session. `None`: all are used.
    pub(crate) fn take_number(&mut self) -> Option<u32> {
        let number = self.next_number;
        self.next_number = number.checked_add(1)?;
        Some(number)
    }

    /// Returns that number.
    #[cfg(test)]
    pub(crate) fn next_number(&self) -> u32 {
        self.next_number
    }

    /// Marks the number of a connection that wants to join the session as used. Returns `false` if
    /// it was used before, or is too old to be checked.
    pub(super) fn use_up(&mut self, number: u32) -> bool {
        self.joins.use_up(number)
    }

    /// The same of a connection that is to replace the control lane: a delayed one is refused after
    /// a later one has arrived.
    pub(super) fn use_up_to_move(&mut self, number: u32) -> bool {
        let is_late = self.last_move.is_some_and(|last| number <= last);
        self.use_up(number) && !is_late
    }

    /// Notes that the connection of this number replaces the control lane.
    pub(super) fn note_move(&mut self, number: u32) {
        self.last_move = Some(number);
    }

    /// Adds a lane between both sides, which this one opens if it `is_ours`. `None`: there is no
    /// space; then the lane that was idle for longest is closed, unless the session has a lane
    /// already, which is sufficient.
    ///
    /// RR-LANE-2.
    fn insert(
        &mut self,
        cx: &mut Cx<'_>,
        (keys, is_ours): (&SessionKeys, bool),
        rails: &Rails,
        (at, number): (u8, u32),
        now_ns: u64,
    ) -> Option<Id> {
        let (keys, rate) = (keys.lane(number, is_ours), rails.rate_before(at));
        let bulk = BulkLane::new(cx.slot, (at, number), keys, rate, now_ns);
        debug_assert!(usize::from(at) < rails.paths.len(), "a lane is on a path");
        let lane = cx.shared.lanes.insert(bulk);
        match lane {
            Some(lane) => self.ids.push(lane),
            None if self.ids.is_empty() => {
                if let Some(lane) = cx.shared.lanes.oldest_idle(now_ns) {
                    cx.act(Action::CloseLane { lane, is_failure: false });
                }
            }
            None => {}
        }
        lane
    }

    /// Opens a lane on the path at `at`. Returns `false` if there is no space for one.
    pub(super) fn open(
        &mut self,
        cx: &mut Cx<'_>,
        keys: &SessionKeys,
        rails: &Rails,
        at: u8,
        now_ns: u64,
    ) -> bool {
        let number = self.next_number;
        // Numbers are unique under the same keys.
        let Some(next) = number.checked_add(1) else { return false };
        let Some(lane) = self.insert(cx, (keys, true), rails, (at, number), now_ns) else {
            if self.ids.is_empty() {
                self.wait(cx, Wait::Room);
            }
            return false;
        };
        self.next_number = next;
        cx.act(Action::OpenLane { session: cx.slot, lane });
        true
    }

    /// Adds the lane of the peer that joins the session by this number, on the path at `at`.
    ///
    /// RR-LANE-1.
    pub(super) fn join(
        &mut self,
        cx: &mut Cx<'_>,
        keys: &SessionKeys,
        rails: &Rails,
        (at, number): (u8, u32),
        now_ns: u64,
    ) -> Result<Id, HelloStatus> {
        if self.ids.len() >= cx.shared.lanes.limits().session_max(rails.paths.len()) {
            return Err(HelloStatus::Busy);
        }
        // One of its lanes may look idle here while the peer's grants for it are in transit.
        self.insert(cx, (keys, false), rails, (at, number), now_ns).ok_or(HelloStatus::Busy)
    }

    /// Handles a lane that the peer has no space for; it is retried a little later.
    pub(super) fn handle_refused(
        &mut self,
        cx: &mut Cx<'_>,
        rails: &mut Rails,
        lane: Id,
        now_ns: u64,
    ) {
        let bulk = cx.shared.lanes.remove_refused(lane);
        let Some(bulk) = debug_assert_some!(bulk, "the refused lane exists") else { return };
        debug_assert!(!bulk.is_ready(), "an accepted lane is not refused");
        debug_assert!(!bulk.expects_chunk(), "this side grants on lanes that are ready");
        self.ids.retain(|&other| other != lane);
        if self.ids.is_empty() {
            return self.wait(cx, Wait::Room);
        }
        let has_other = self.has_bulk_lane(&cx.shared.lanes, rails);
        rails.rest(bulk.path(), now_ns);
        if !has_other {
            self.wait(cx, Wait::Time);
        }
    }

    /// Marks a lane that both sides agree on as ready for chunks.
    pub(crate) fn handle_ready(&mut self, cx: &mut Cx<'_>, lane: Id, now_ns: u64) {
        let bulk = cx.shared.lanes.get_mut(lane);
        let Some(bulk) = debug_assert_some!(bulk, "a lane that is ready exists") else { return };
        bulk.handle_ready(now_ns);
        self.are_requested = false;
        self.end_older_request(bulk.number());
        cx.add_work(Work::Grant);
        cx.shared.lanes.mark_runnable(lane);
    }

    // ---- Use and end ----

    /// Notes that a lane has carried a chunk: the grants have arrived for which the session's lanes
    /// were opened, and unused lanes are spare.
    pub(in crate::proto) fn handle_carried(&mut self, lanes: &mut BulkLanes, lane: Id) {
        self.failures = Late::NONE;
        if lanes.get(lane).is_some_and(BulkLane::is_fresh) {
            for &lane in &self.ids {
                let bulk = lanes.get_mut(lane);
                if let Some(bulk) = debug_assert_some!(bulk, "the lanes of a session exist") {
                    bulk.note_use();
                }
            }
        }
    }

    /// Removes a lane that is lost, or being closed.
    pub(super) fn remove(&mut self, cx: &mut Cx<'_>, lane: Id) -> Option<BulkLane> {
        let bulk = debug_assert_some!(cx.shared.lanes.remove_lost(lane), "a lane ends once")?;
        self.ids.retain(|&other| other != lane);
        self.are_requested = false;
        Some(bulk)
    }

    /// Counts the failure of a lane that was removed. Returns whether the session may replace it
    /// now, or how it fails, since its lanes have failed for too long.
    ///
    /// RR-LANE-4.
    pub(super) fn handle_failure(
        &mut self,
        cx: &mut Cx<'_>,
        rails: &mut Rails,
        (number, at, was_ready): (u32, u8, bool),
        cause: &str,
        now_ns: u64,
    ) -> Result<bool, PeerFailure> {
        rails.note_gone(number, at);
        rails.rest(at, now_ns);
        cx.shared.note_lane_failure();
        let limits = cx.shared.lanes.limits();
        let (failures, lasted_ns) = self.failures.note(now_ns, limits.gap_ns());
        let are_many = failures > LANE_FAILURES_MAX;
        if are_many && lasted_ns >= limits.outage_ns() {
            let lasted_ms = lasted_ns / 1_000_000;
            let text = format!(
                "its bulk lanes failed repeatedly for {lasted_ms} ms, the last one: {cause}"
            );
            return Err(PeerFailure::Lost(text.into()));
        }
        // The cause needs time to pass.
        let must_wait = (!was_ready || are_many) && self.ids.is_empty();
        if must_wait {
            self.wait(cx, Wait::Time);
        }
        Ok(!must_wait)
    }

    /// Aborts the lane that the peer refuses to serve.
    pub(super) fn abort(&self, cx: &mut Cx<'_>, number: u32) {
        match cx.shared.lanes.named(&self.ids, number) {
            Some(lane) => cx.act(Action::CloseLane { lane, is_failure: true }),
            None => cx.shared.note_stale_frame(),
        }
    }
}
