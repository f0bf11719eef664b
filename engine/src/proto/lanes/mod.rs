//! Bulk lanes of a session: requested, opened, joined, lost, and closed when idle.

use self::lane::{BulkLane, Incoming};
use super::context::Cx;
use super::core::{Action, Core};
use super::effects::Effects;
use super::failure::PeerFailure;
use super::handshake::is_of_session;
use super::keys::SessionKeys;
use super::late::AtRest;
use super::operation::Operation;
use super::session::{ControlFrame, Session};
use super::table::Id;
use crate::proto::ready::Work;
use crate::wire::hello::{HelloStatus, KIND_MOVE};
use crate::wire::{Hello, LANES_END, Refused};

pub(crate) mod lane;
mod table;

pub(crate) use self::table::BulkLanes;

/// Consecutive lane failures that are retried at once. More are retried at intervals only, and when
/// they have continued for longer than an outage may last the session fails: a count alone would be
/// exhausted by a short lack of descriptors, or of carrier.
const LANE_FAILURES_MAX: u32 = 8;

/// What a session without a lane waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wait {
    /// For a lane of another session to close, here or at the peer.
    Room,
    /// For the cause to pass, since its last lane failed.
    Time,
}

/// A lane counts as in use for this time after its last use, in nanoseconds.
const IN_USE_NS: u64 = 100_000_000;

/// Consecutive lane failures of a session.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct LaneFailures {
    count: u32,
    /// When the first and the last lane failed.
    since_ns: u64,
    last_ns: u64,
}

impl LaneFailures {
    /// Returns their number.
    fn count(self) -> u32 {
        self.count
    }

    /// Counts a failure; returns the number of failures, and their duration. If no lane was tried
    /// for `gap_ns` that time is unknown, and counting restarts.
    fn note(&mut self, now_ns: u64, gap_ns: u64) -> (u32, u64) {
        if self.count == 0 || now_ns.saturating_sub(self.last_ns) > gap_ns {
            (self.count, self.since_ns) = (0, now_ns);
        }
        self.count = self.count.saturating_add(1);
        self.last_ns = now_ns;
        (self.count, now_ns.saturating_sub(self.since_ns))
    }
}

impl AtRest for LaneFailures {
    const AT_REST: &'static Self = &Self { count: 0, since_ns: 0, last_ns: 0 };
}

impl Session {
    pub(super) fn request_lanes(&mut self, cx: &mut Cx<'_>, now_ns: u64) {
        if self.lanes_requested {
            return;
        }
        self.lanes_requested = true;
        if !self.connection.is_initiator() {
            self.send_control(cx, ControlFrame::lanes_wanted());
            return;
        }
        if self.path_without_lane(cx, now_ns).is_some() {
            self.open_missing_lanes(cx, now_ns);
        } else {
            // No path is fit. One that recovers opens lanes, and this side retries at intervals.
            self.request_lanes_later(cx, Wait::Time);
        }
    }

    /// Opens the lanes that paths lack, if this side opens lanes.
    pub(super) fn open_missing_lanes(&mut self, cx: &mut Cx<'_>, now_ns: u64) {
        let is_ours =
            self.connection.is_initiator() && self.is_connected() && !self.bulk_in_datagrams;
        while is_ours && let Some(path) = self.path_without_lane(cx, now_ns) {
            if !self.open_lane(cx, path as u8, now_ns) {
                break;
            }
        }
    }

    /// Opens lanes of paths that have none, or requests them, since there is data to pull.
    pub(super) fn open_lanes_of_new_paths(&mut self, cx: &mut Cx<'_>, now_ns: u64) {
        if !self.rails.are_many() || self.lanes.is_empty() || !self.needs_lane() {
            return;
        }
        let Some(path) = self.path_without_lane(cx, now_ns) else { return };
        if self.connection.is_initiator() {
            self.open_missing_lanes(cx, now_ns);
        } else if !self.lanes_requested && !self.rendezvous.is_in_datagrams() {
            self.rails.rest(path as u8, now_ns);
            self.lanes_requested = true;
            self.send_control(cx, ControlFrame::lanes_wanted());
        }
    }

    /// Opens a lane. Returns `false` if there is no space for one.
    fn open_lane(&mut self, cx: &mut Cx<'_>, path: u8, now_ns: u64) -> bool {
        let number = self.next_lane;
        // Numbers are unique under the same keys.
        let (Some(keys), Some(next)) = (self.keys.as_ref(), number.checked_add(1)) else {
            return false;
        };
        let keys = keys.lane(number, true);
        let rate = self.rails.rate_before(path);
        let bulk = BulkLane { rate, ..BulkLane::new(cx.slot, path, number, keys, now_ns) };
        let Some(lane) = cx.shared.lanes.insert(bulk) else {
            // At the limit the lane that was idle for longest is closed, unless the session has a
            // lane already, which is sufficient.
            if self.lanes.is_empty() {
                self.request_lanes_later(cx, Wait::Room);
                cx.close_oldest_idle_lane(now_ns);
            }
            return false;
        };
        self.next_lane = next;
        debug_assert!(usize::from(path) < self.rails.paths.len(), "a lane is on a path");
        self.lanes.push(lane);
        cx.act(Action::OpenLane { session: cx.slot, lane });
        true
    }

    /// Defers its lanes until [`Core::close_idle_lanes`] retries.
    pub(super) fn request_lanes_later(&mut self, cx: &mut Cx<'_>, wait: Wait) {
        self.lanes_requested = true;
        self.wait_for_lane(cx.slot, &mut cx.shared.lanes, wait);
    }

    /// Handles LANES WANTED: the peer has data to move and waits for lanes.
    pub(super) fn handle_lanes_wanted(&mut self, cx: &mut Cx<'_>, now_ns: u64) {
        if !self.connection.is_initiator() || self.bulk_in_datagrams {
            return;
        }
        // Lanes that are lost there may still look healthy here.
        (self.lanes_wanted, self.wanted_before_lane) = (true, self.next_lane);
        if self.lanes.is_empty() {
            self.request_lanes(cx, now_ns);
        } else {
            self.open_missing_lanes(cx, now_ns);
        }
    }

    /// Returns the number of a connection that is to replace the control lane, and that of its
    /// path.
    pub(crate) fn number_of_move(&mut self, at: u8) -> Option<(u32, u16)> {
        let path = self.rails.paths.get(usize::from(at))?.number;
        let number = self.next_lane;
        self.next_lane = number.checked_add(1)?;
        Some((number, path))
    }

    /// Returns the position of a path that carries bulk data and has fewer lanes than it should, if
    /// any.
    fn path_without_lane(&self, cx: &Cx<'_>, now_ns: u64) -> Option<usize> {
        let wanted = cx.shared.config.bulk_lanes.max(1) as usize;
        self.rails.path_without_lane(&self.lanes, &cx.shared.lanes, wanted, now_ns)
    }
}

impl Cx<'_> {
    /// RR-LANE-2
    fn close_oldest_idle_lane(&mut self, now_ns: u64) {
        if let Some(lane) =
            self.shared.lanes.oldest_idle(now_ns, self.shared.config.retry.timeout_ns)
        {
            self.act(Action::CloseLane { lane, is_failure: false });
        }
    }
}

impl Session {
    /// Returns its keys, if a connection may join it. The side that opened the session opens bulk
    /// lanes; the other one only queries its existence.
    fn keys_to_join(&self, hello: &Hello) -> Option<&SessionKeys> {
        let is_it = self.is_connected()
            && self.id == hello.session.get()
            && (hello.kind == KIND_MOVE || !self.connection.is_initiator());
        self.keys.as_ref().filter(|_| is_it)
    }

    /// Handles a connection that is to replace the control lane. Returns the slot of the session,
    /// and the position of the path. Otherwise as [`Self::handle_lane_hello`]. A side that did not
    /// open the session only queries whether it exists: the answer is [`HelloStatus::Busy`].
    ///
    /// RR-RAIL-7, RR-RAIL-8.
    pub(crate) fn handle_move_hello(
        &mut self,
        cx: &Cx<'_>,
        hello: &Hello,
    ) -> Result<(u32, u8), HelloStatus> {
        // A delayed one is refused after a later one has arrived.
        let number = hello.lane.get();
        let is_late = self.last_move.is_some_and(|last| number <= last);
        if !self.joins.use_up(number) || is_late {
            return Err(HelloStatus::StaleEpoch);
        }
        if self.connection.is_initiator() {
            return Err(HelloStatus::Busy);
        }
        // A session without datagrams ends with its connection.
        let at = self.rails.position(hello.path.get()).filter(|_| self.segments.has_datagrams());
        let at = at.ok_or(HelloStatus::Malformed)?;
        self.last_move = Some(number);
        Ok((cx.slot, at as u8))
    }

    /// Handles a connection that wants to join as a bulk lane. Replayed joins are refused
    /// ([`HelloStatus::StaleEpoch`]) without effect, and so are those to a session without bulk
    /// lanes ([`HelloStatus::Malformed`]).
    ///
    /// RR-LANE-1, RR-BULK-1.
    pub(crate) fn handle_lane_hello(
        &mut self,
        cx: &mut Cx<'_>,
        hello: &Hello,
        now_ns: u64,
    ) -> Result<Id, HelloStatus> {
        let number = hello.lane.get();
        if self.bulk_in_datagrams || number >= LANES_END {
            return Err(HelloStatus::Malformed);
        }
        // Used up also if there is no space now, so that it cannot be replayed later.
        if !self.joins.use_up(number) {
            return Err(HelloStatus::StaleEpoch);
        }
        let path = self.path_to_join(cx, hello.path.get()).ok_or(HelloStatus::Malformed)?;
        // Twice the usual number leaves space for lanes that replace failing ones.
        let lanes_max = 2 * cx.shared.config.bulk_lanes.max(8) as usize * self.rails.paths.len();
        if self.lanes.len() >= lanes_max {
            return Err(HelloStatus::Busy);
        }
        let keys = debug_assert_some!(self.keys.as_ref(), "what joins has used its keys");
        let keys = keys.ok_or(HelloStatus::UnknownSession)?.lane(number, false);
        let rate = self.rails.rate_before(path as u8);
        let bulk = BulkLane { rate, ..BulkLane::new(cx.slot, path as u8, number, keys, now_ns) };
        let Some(lane) = cx.shared.lanes.insert(bulk) else {
            // An existing lane of the session is sufficient; it may look idle here while the peer's
            // grants for it are in transit.
            if self.lanes.is_empty() {
                cx.close_oldest_idle_lane(now_ns);
            }
            return Err(HelloStatus::Busy);
        };
        self.lanes.push(lane);
        Ok(lane)
    }

    /// Handles a lane that the peer has no space for; it is retried a little later.
    pub(crate) fn handle_lane_refused(&mut self, mut cx: Cx<'_>, lane: Id, now_ns: u64) {
        let bulk = cx.shared.lanes.remove_refused(lane);
        let Some(bulk) = debug_assert_some!(bulk, "the refused lane exists") else { return };
        debug_assert!(!bulk.is_ready, "an accepted lane is not refused");
        debug_assert!(bulk.incoming.is_empty(), "this side grants on lanes that are ready");
        self.lanes.retain(|&other| other != lane);
        if self.lanes.is_empty() {
            return self.request_lanes_later(&mut cx, Wait::Room);
        }
        let has_lane = self.has_bulk_lane(&cx.shared.lanes);
        self.rails.rest(bulk.path, now_ns);
        if !has_lane {
            self.request_lanes_later(&mut cx, Wait::Time);
        }
    }

    /// Marks a lane that both sides agree on as ready for chunks.
    pub(crate) fn handle_lane_ready(&mut self, mut cx: Cx<'_>, lane: Id, now_ns: u64) {
        let bulk = cx.shared.lanes.get_mut(lane);
        let Some(bulk) = debug_assert_some!(bulk, "a lane that is ready exists") else { return };
        (bulk.is_ready, bulk.used_ns) = (true, now_ns);
        let number = bulk.number;
        self.lanes_requested = false;
        // The peer has one that it accepted after its request: it will detect the end of that.
        self.lanes_wanted &= number < self.wanted_before_lane;
        cx.add_work(Work::Grant);
        cx.shared.lanes.mark_runnable(lane);
    }

    /// Handles a lane that is lost (or being closed): its ranges are granted again, except for the
    /// one that the kernel may still write, which waits for its event. Returns the failure of the
    /// session, if its lanes have failed for too long.
    fn end_lane(
        &mut self,
        cx: &mut Cx<'_>,
        lane: Id,
        is_failure: bool,
        cause: &str,
        now_ns: u64,
    ) -> Option<PeerFailure> {
        let bulk = debug_assert_some!(cx.shared.lanes.remove_lost(lane), "a lane ends once")?;
        self.lanes.retain(|&other| other != lane);
        self.lanes_requested = false;
        if !self.is_connected() {
            return None;
        }
        let in_kernel = usize::from(bulk.is_receiving && !planted!(ForgetReap));
        self.rails.note_regrants(bulk.path, bulk.incoming.len());
        for incoming in bulk.incoming.into_iter().skip(in_kernel) {
            let is_wanted =
                cx.shared.operations.get(incoming.operation).is_some_and(Operation::pulls);
            if !is_wanted || planted!(DropRegrant) {
                continue;
            }
            let Incoming { operation, offset, length, .. } = incoming;
            self.rendezvous.push_missing(operation, offset, length.into());
        }
        if is_failure {
            self.rails.note_gone(bulk.number, bulk.path);
            self.rails.rest(bulk.path, now_ns);
            cx.shared.counters.lane_failures += 1;
            let config = &cx.shared.config;
            let limit_ns = config.retry.timeout_ns.max(config.outage_ns);
            // The maximum time between two attempts that the network drops.
            let gap_ns = limit_ns.saturating_add(2 * config.retry.timeout_ns);
            let (failures, lasted_ns) = self.lane_failures.note(now_ns, gap_ns);
            let are_many = failures > LANE_FAILURES_MAX;
            if are_many && lasted_ns >= limit_ns {
                let text = format!(
                    "its bulk lanes failed repeatedly for {} ms, the last one: \
                     {cause}",
                    lasted_ns / 1_000_000
                );
                return Some(PeerFailure::Lost(text.into()));
            }
            if (!bulk.is_ready || are_many) && self.lanes.is_empty() {
                // The cause needs time to pass.
                self.request_lanes_later(cx, Wait::Time);
                return None;
            }
        }
        cx.add_work(Work::Grant);
        None
    }

    /// Aborts the lane that the peer refuses to serve.
    fn handle_lane_aborted(&self, cx: &mut Cx<'_>, number: u32) {
        match cx.shared.lanes.named(&self.lanes, number) {
            Some(lane) => cx.act(Action::CloseLane { lane, is_failure: true }),
            None => cx.shared.counters.stale_frames += 1,
        }
    }
}

impl Core {
    /// Returns the keys of the session that a connection wants to join, if it exists.
    pub(crate) fn keys_to_join(&self, hello: &Hello) -> Option<&SessionKeys> {
        let slot = self.shared.peers.session_of(hello.source.get())?;
        self.sessions.at(slot as usize)?.keys_to_join(hello)
    }

    /// Returns the session that a connection wants to join, if the connection uses its keys, and
    /// what the methods of the session use. Others are refused without effect.
    pub(crate) fn enter_joined(
        &mut self,
        hello: &Hello,
    ) -> Result<(&mut Session, Cx<'_>), HelloStatus> {
        let slot = self.shared.peers.session_of(hello.source.get());
        let (session, cx) =
            slot.and_then(|slot| self.enter(slot)).ok_or(HelloStatus::UnknownSession)?;
        let keys = session.keys_to_join(hello).ok_or(HelloStatus::UnknownSession)?;
        if !is_of_session(keys, hello) {
            return Err(HelloStatus::WrongSecret);
        }
        Ok((session, cx))
    }

    /// Calls `call` with the session of a lane, and what its methods use. `None`: the lane is gone.
    #[inline]
    pub(crate) fn with_lane<R>(
        &mut self,
        lane: Id,
        call: impl FnOnce(&mut Session, Cx<'_>) -> R,
    ) -> Option<R> {
        let slot = self.shared.lanes.get(lane)?.session;
        let called = self.with(slot, call);
        debug_assert_some!(called, "the session of a lane is in the table")
    }

    /// Returns a lane and its session. `None`: it is gone.
    pub(crate) fn lane(&self, lane: Id) -> Option<(&Session, &BulkLane)> {
        let bulk = self.shared.lanes.get(lane)?;
        let session = self.sessions.at(bulk.session as usize);
        debug_assert_some!(session, "the session of a lane is in the table").zip(Some(bulk))
    }

    /// Handles a lane that is lost, or being closed. Late events have no effect.
    pub(crate) fn lane_lost(
        &mut self,
        lane: Id,
        is_failure: bool,
        cause: &str,
        now_ns: u64,
        effects: &mut impl Effects,
    ) {
        let failed = self.with_lane(lane, |it, mut cx| {
            Some((cx.slot, it.end_lane(&mut cx, lane, is_failure, cause, now_ns)?))
        });
        if let Some((slot, failure)) = failed.flatten() {
            self.fail_session(slot, failure, effects);
        }
    }

    /// Handles REFUSED: the peer cannot serve a grant. Its lane is aborted, and the range never
    /// arrives, since its sender has abandoned the message.
    ///
    /// RR-RDV-5.
    pub(crate) fn handle_refused(
        &mut self,
        slot: u32,
        refused: &Refused,
        effects: &mut impl Effects,
    ) {
        self.fail_pull(slot, Id::from_u64(refused.operation.get()), effects);
        if let Some(number) = refused.lane_to_abort() {
            self.with(slot, |it, mut cx| it.handle_lane_aborted(&mut cx, number));
        }
    }

    /// Lets sessions that found no space for a lane retry after a lane was closed, except for those
    /// whose lanes fail repeatedly.
    pub(super) fn serve_starved(&mut self, now_ns: u64) {
        self.shared.lanes.note_attempt();
        self.serve_some(now_ns, |wait, failures| {
            wait == Wait::Room || failures <= LANE_FAILURES_MAX
        });
    }

    /// Lets sessions without a lane retry that `is_served` selects, by what they wait for and their
    /// number of consecutive failures.
    fn serve_some(&mut self, now_ns: u64, is_served: impl Fn(Wait, u32) -> bool) {
        for slot in self.shared.lanes.take_starved() {
            let entered = debug_assert_some!(self.enter(slot), "a session that waits exists");
            let Some((session, mut cx)) = entered else { continue };
            let wait = debug_assert_some!(session.lane_wait.take(), "it waits");
            if let Some(wait) = wait.filter(|&it| !is_served(it, session.lane_failures.count())) {
                session.wait_for_lane(slot, &mut cx.shared.lanes, wait);
            } else if session.is_connected() && !session.has_bulk_lane(&cx.shared.lanes) {
                session.lanes_requested = false;
                // The data may have been transferred or cancelled.
                if session.needs_lane() {
                    session.request_lanes(&mut cx, now_ns);
                }
            }
        }
    }

    /// Returns a session that this side opened, whose lanes are in use and one of whose paths has
    /// none: the attempt failed, and the peer may not know that path. A lane that has carried
    /// nothing yet is no reason for another one, which would be one for the next.
    fn session_short_of_lanes(&self, now_ns: u64) -> Option<u32> {
        let wanted = self.shared.config.bulk_lanes.max(1) as usize;
        self.shared.lanes.iter().find_map(|(_, bulk)| {
            let session = self.sessions.at(bulk.session as usize)?;
            let has_carried = bulk.is_ready && !bulk.is_fresh;
            let is_in_use = has_carried && now_ns.saturating_sub(bulk.used_ns) < IN_USE_NS;
            let is_short = is_in_use
                && session.rails.are_many()
                && session.connection.is_initiator()
                && session
                    .rails
                    .path_without_lane(&session.lanes, &self.shared.lanes, wanted, now_ns)
                    .is_some();
            is_short.then_some(bulk.session)
        })
    }

    /// Closes lanes opened by this side that were unused for a while; sessions without space for a
    /// lane retry, and so do those with lanes on some of their paths only.
    pub(crate) fn close_idle_lanes(&mut self, now_ns: u64) {
        if let Some(slot) = self.session_short_of_lanes(now_ns)
            && let Some((session, mut cx)) = self.enter(slot)
        {
            session.open_missing_lanes(&mut cx, now_ns);
        }
        let seed = self.shared.config.hash_seed ^ self.shared.engine.rotate_left(32);
        let is_own_turn = self.shared.lanes.is_own_turn(seed);
        self.serve_some(now_ns, |wait, _| wait == Wait::Time || is_own_turn);
        for (lane, bulk) in self.shared.lanes.iter() {
            let session = self.sessions.at_mut(bulk.session as usize);
            let session = debug_assert_some!(session, "the session of a lane is in the table");
            let Some(session) = session else { continue };
            let is_ours = session.connection.is_initiator() && session.rendezvous.is_empty();
            let idle_ns = now_ns.saturating_sub(bulk.used_ns);
            let is_old =
                idle_ns > self.shared.config.bulk_idle_ns || rare!("a bulk lane that is old", 4);
            if is_ours && is_old && bulk.is_spare(now_ns, self.shared.config.retry.timeout_ns) {
                // A peer that has this one sees its end, and requests another if it still wants
                // one; not so if it had lost this one when it sent the request.
                session.lanes_wanted &= bulk.number < session.wanted_before_lane;
                self.shared.actions.push_back(Action::CloseLane { lane, is_failure: false });
            }
        }
    }
}

impl Session {
    /// Notes that a lane has carried its first chunk: the grants have arrived for which the
    /// session's lanes were opened, and unused lanes are spare.
    pub(super) fn note_lanes_in_use(&self, cx: &mut Cx<'_>) {
        for &lane in &self.lanes {
            let bulk = cx.shared.lanes.get_mut(lane);
            if let Some(bulk) = debug_assert_some!(bulk, "the lanes of a session exist") {
                bulk.is_fresh = false;
            }
        }
    }

    /// Returns whether it has a lane, or waits for one, on a path that carries bulk data.
    fn has_bulk_lane(&self, lanes: &BulkLanes) -> bool {
        self.lanes.iter().any(|&lane| {
            lanes.get(lane).is_some_and(|bulk| self.rails.carries_bulk(usize::from(bulk.path)))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT_NS: u64 = 1000;

    /// RR-LANE-4
    #[test]
    fn failures_accumulate_while_lanes_are_retried() {
        let mut failures = LaneFailures::default();
        for number in 1..20 {
            assert_eq!(failures.note(number * 900, LIMIT_NS), (number as u32, (number - 1) * 900));
        }
        // Nothing was tried for a long time: that is no outage.
        assert_eq!(failures.note(100_000, LIMIT_NS), (1, 0));
        assert_eq!(failures.note(100_500, LIMIT_NS), (2, 500));
    }
}
