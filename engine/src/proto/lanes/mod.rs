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
use crate::wire::lost::CONTROL_LANE;
use crate::wire::piece::RING_LANE;
use crate::wire::{Hello, Refused};

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
        } else if !self.lanes_requested && !self.pulls_by_datagram() {
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
        self.lanes.push(lane);
        cx.act(Action::OpenLane { session: cx.slot, lane });
        true
    }

    /// Defers its lanes until [`Core::close_idle_lanes`] retries.
    pub(super) fn request_lanes_later(&mut self, cx: &mut Cx<'_>, wait: Wait) {
        self.lanes_requested = true;
        cx.shared.lanes.defer(cx.slot, wait);
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

impl Core {
    /// Returns the keys of the session that a connection wants to join, if it exists. The side that
    /// opened the session opens bulk lanes; the other one only queries its existence.
    pub(crate) fn keys_to_join(&self, hello: &Hello) -> Option<&SessionKeys> {
        let slot = self.shared.peers.session_of(hello.source.get())?;
        let session = self.sessions.at(slot as usize)?;
        let is_it = session.is_connected()
            && session.id == hello.session.get()
            && (hello.kind == KIND_MOVE || !session.connection.is_initiator());
        session.keys.as_ref().filter(|_| is_it)
    }

    /// Returns the same, if the connection uses these keys.
    fn keys_of_join(&self, hello: &Hello) -> Result<&SessionKeys, HelloStatus> {
        let keys = self.keys_to_join(hello).ok_or(HelloStatus::UnknownSession)?;
        if !is_of_session(keys, hello) {
            return Err(HelloStatus::WrongSecret);
        }
        Ok(keys)
    }

    /// Handles a connection that is to replace its session's control lane, on the path whose
    /// position is returned. Otherwise as [`Self::handle_lane_hello`]. A side that did not open the
    /// session only queries whether it exists: the answer is [`HelloStatus::Busy`].
    ///
    /// RR-RAIL-7, RR-RAIL-8.
    pub(crate) fn handle_move_hello(&mut self, hello: &Hello) -> Result<(u32, u8), HelloStatus> {
        self.keys_of_join(hello)?;
        let slot =
            self.shared.peers.session_of(hello.source.get()).ok_or(HelloStatus::UnknownSession)?;
        let session = self.sessions.at_mut(slot as usize).ok_or(HelloStatus::UnknownSession)?;
        // Nor one that was delayed while a later one arrived.
        let number = hello.lane.get();
        let is_late = session.last_move.is_some_and(|last| number <= last);
        if !session.joins.use_up(number) || is_late {
            return Err(HelloStatus::StaleEpoch);
        }
        if session.connection.is_initiator() {
            return Err(HelloStatus::Busy);
        }
        // A session without datagrams ends with its connection.
        let at = session.rails.position(hello.path.get()).filter(|_| session.has_datagrams());
        let at = at.ok_or(HelloStatus::Malformed)?;
        session.last_move = Some(number);
        Ok((slot, at as u8))
    }

    /// Handles a connection that wants to join its session as a bulk lane. Forged and replayed
    /// joins are refused ([`HelloStatus::WrongSecret`], [`HelloStatus::StaleEpoch`]) without
    /// effect, and so are those to a session without bulk lanes ([`HelloStatus::Malformed`]).
    ///
    /// RR-LANE-1, RR-BULK-1.
    pub(crate) fn handle_lane_hello(
        &mut self,
        hello: &Hello,
        now_ns: u64,
    ) -> Result<Id, HelloStatus> {
        let keys = self.keys_of_join(hello)?;
        let number = hello.lane.get();
        let keys = keys.lane(number, false);
        let slot =
            self.shared.peers.session_of(hello.source.get()).ok_or(HelloStatus::UnknownSession)?;
        let (session, mut cx) = self.enter(slot).ok_or(HelloStatus::UnknownSession)?;
        if session.bulk_in_datagrams || number >= CONTROL_LANE {
            return Err(HelloStatus::Malformed);
        }
        // Used up also if there is no space now, so that it cannot be replayed later.
        if !session.joins.use_up(number) {
            return Err(HelloStatus::StaleEpoch);
        }
        let path = session.path_to_join(&cx, hello.path.get());
        let path = path.ok_or(HelloStatus::Malformed)?;
        // Twice the usual number leaves space for lanes that replace failing ones.
        let lanes_max = 2 * cx.shared.config.bulk_lanes.max(8) as usize * session.rails.paths.len();
        if session.lanes.len() >= lanes_max {
            return Err(HelloStatus::Busy);
        }
        let rate = session.rails.rate_before(path as u8);
        let bulk = BulkLane { rate, ..BulkLane::new(slot, path as u8, number, keys, now_ns) };
        let Some(lane) = cx.shared.lanes.insert(bulk) else {
            // An existing lane of the session is sufficient; it may look idle here while the peer's
            // grants for it are in transit.
            if session.lanes.is_empty() {
                cx.close_oldest_idle_lane(now_ns);
            }
            return Err(HelloStatus::Busy);
        };
        session.lanes.push(lane);
        Ok(lane)
    }

    /// Handles a lane that the peer has no space for; it is retried a little later.
    pub(crate) fn lane_refused(&mut self, lane: Id, now_ns: u64) {
        let Some(bulk) = self.shared.lanes.remove(lane) else { return };
        let Some((session, mut cx)) = self.enter(bulk.session) else { return };
        session.lanes.retain(|&other| other != lane);
        if session.lanes.is_empty() {
            return session.request_lanes_later(&mut cx, Wait::Room);
        }
        let has_lane = session.has_bulk_lane(&cx.shared.lanes);
        session.rails.rest(bulk.path, now_ns);
        if !has_lane {
            session.request_lanes_later(&mut cx, Wait::Time);
        }
    }

    /// Marks a lane that both sides agree on as ready for chunks.
    pub(crate) fn lane_ready(&mut self, lane: Id, now_ns: u64) {
        let Some(bulk) = self.shared.lanes.get_mut(lane) else { return };
        (bulk.is_ready, bulk.used_ns) = (true, now_ns);
        let (slot, number) = (bulk.session, bulk.number);
        let Some((session, mut cx)) = self.enter(slot) else { return };
        session.lanes_requested = false;
        // The peer has one that it accepted after its request: it will detect the end of that.
        session.lanes_wanted &= number < session.wanted_before_lane;
        cx.add_work(Work::Grant);
        cx.shared.lanes.mark_runnable(lane);
    }

    /// Handles a lane that is lost (or being closed): its ranges are granted again, except for the
    /// one that the kernel may still write, which waits for its event.
    pub(crate) fn lane_lost(
        &mut self,
        lane: Id,
        is_failure: bool,
        cause: &str,
        now_ns: u64,
        effects: &mut impl Effects,
    ) {
        let Some(bulk) = self.shared.lanes.remove(lane) else { return };
        self.shared.lanes.has_room = true;
        let slot = bulk.session;
        let Some(session) = self.sessions.at_mut(slot as usize) else { return };
        session.lanes.retain(|&other| other != lane);
        session.lanes_requested = false;
        if !session.is_connected() {
            return;
        }
        let in_kernel = usize::from(bulk.is_receiving && !planted!(ForgetReap));
        session.rails.note_regrants(bulk.path, bulk.incoming.len());
        for incoming in bulk.incoming.into_iter().skip(in_kernel) {
            let is_wanted =
                self.shared.operations.get(incoming.operation).is_some_and(Operation::pulls);
            if !is_wanted || planted!(DropRegrant) {
                continue;
            }
            let Incoming { operation, offset, length, .. } = incoming;
            session.rendezvous.push_missing(operation, offset, length.into());
        }
        if is_failure {
            session.rails.note_gone(bulk.number, bulk.path);
            session.rails.rest(bulk.path, now_ns);
            self.shared.counters.lane_failures += 1;
            let limit_ns = self.shared.config.retry.timeout_ns.max(self.shared.config.outage_ns);
            // The maximum time between two attempts that the network drops.
            let gap_ns = limit_ns.saturating_add(2 * self.shared.config.retry.timeout_ns);
            let (failures, lasted_ns) = session.lane_failures.note(now_ns, gap_ns);
            let are_many = failures > LANE_FAILURES_MAX;
            if are_many && lasted_ns >= limit_ns {
                let text = format!(
                    "its bulk lanes failed repeatedly for {} ms, the last one: \
                     {cause}",
                    lasted_ns / 1_000_000
                );
                self.fail_session(slot, PeerFailure::Lost(text.into()), effects);
                return;
            }
            if (!bulk.is_ready || are_many) && session.lanes.is_empty() {
                // The cause needs time to pass.
                session.lanes_requested = true;
                return self.shared.lanes.defer(slot, Wait::Time);
            }
        }
        self.shared.ready.add(slot, Work::Grant);
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
        if refused.lane.get() >= RING_LANE {
            // Datagrams and rings have no order to lose.
            return;
        }
        let session = self.sessions.at(slot as usize);
        let lane = session.and_then(|it| self.shared.lanes.named(&it.lanes, refused.lane.get()));
        match lane {
            Some(lane) => {
                self.shared.actions.push_back(Action::CloseLane { lane, is_failure: true })
            }
            None => self.shared.counters.stale_frames += 1,
        }
    }

    /// Lets sessions that found no space for a lane retry after a lane was closed, except for those
    /// whose lanes fail repeatedly.
    pub(super) fn serve_starved(&mut self, now_ns: u64) {
        self.shared.lanes.has_room = false;
        self.serve_some(now_ns, |wait, failures| {
            wait == Wait::Room || failures <= LANE_FAILURES_MAX
        });
    }

    /// Lets sessions without a lane retry that `is_served` selects, by what they wait for and their
    /// number of consecutive failures.
    fn serve_some(&mut self, now_ns: u64, is_served: impl Fn(Wait, u32) -> bool) {
        for (slot, wait) in std::mem::take(&mut self.shared.lanes.starved) {
            let Some((session, mut cx)) = self.enter(slot) else { continue };
            if !is_served(wait, session.lane_failures.count()) {
                cx.shared.lanes.defer(slot, wait);
            } else if session.is_connected() && !session.has_bulk_lane(&cx.shared.lanes) {
                session.lanes_requested = false;
                // The data may have been transferred or cancelled.
                if session.needs_lane() {
                    session.request_lanes(&mut cx, now_ns);
                }
            }
        }
    }

    /// Returns whether sessions that wait for space try now; otherwise the space remains free for
    /// lanes that peers open. At random: engines that filled their last slot at the same time, each
    /// with a lane to the next one, would refuse all of them forever. Sessions whose lanes fail
    /// always try: their time is limited (RR-LANE-4).
    ///
    /// RR-LANE-6.
    fn is_own_turn(&mut self) -> bool {
        self.shared.lanes.rounds = self.shared.lanes.rounds.wrapping_add(1);
        // The finalizer of splitmix64 over inputs that differ between engines and rounds.
        let mut bits = self.shared.config.hash_seed
            ^ self.shared.engine.rotate_left(32)
            ^ self.shared.lanes.rounds;
        bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (bits ^ bits >> 31) & 1 == 0
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
        let is_own_turn = self.is_own_turn();
        self.serve_some(now_ns, |wait, _| wait == Wait::Time || is_own_turn);
        for (lane, bulk) in self.shared.lanes.iter() {
            let Some(session) = self.sessions.at_mut(bulk.session as usize) else { continue };
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
            if let Some(bulk) = cx.shared.lanes.get_mut(lane) {
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
