//! Bulk lanes of a session: asked for, opened, joined, lost, and closed when idle.

use super::bulk::BulkLane;
use super::core::{Action, Core};
use super::effects::Effects;
use super::failure::PeerFailure;
use super::handshake::is_of_session;
use super::keys::SessionKeys;
use super::late::AtRest;
use super::operation::Operation;
use super::session::{ControlFrame, Session};
use super::table::{Id, Table};
use crate::wire::hello::{HelloStatus, KIND_MOVE};
use crate::wire::lost::CONTROL_LANE;
use crate::wire::piece::RING_LANE;
use crate::wire::{Hello, Refused};

/// Lanes that may fail in a row at once. More of them are tried only now and then, and when that
/// has gone on for longer than networks may be away the session fails: a count alone would be used
/// up by a moment without descriptors, or without a link.
const LANE_FAILURES_MAX: u32 = 8;

/// What a session without a lane waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wait {
    /// A lane of another session to go, here or at the peer.
    Room,
    /// What is in the way of lanes to go, for its last one failed.
    Time,
}

/// A lane that was used so shortly ago is in use, in nanoseconds.
const IN_USE_NS: u64 = 100_000_000;

/// Lanes of a session that failed in a row.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct LaneFailures {
    count: u32,
    /// When the first and the last of them failed.
    since_ns: u64,
    last_ns: u64,
}

impl LaneFailures {
    /// How many.
    fn count(self) -> u32 {
        self.count
    }

    /// Another one; how many there are, and how long they have gone on. Where no lane was tried for
    /// `gap_ns` nothing is known of that time, and the row begins anew.
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

impl Core {
    pub(super) fn request_lanes(&mut self, slot: u32, now_ns: u64) {
        let Some(session) = self.sessions.at_mut(slot as usize) else { return };
        if session.lanes_requested {
            return;
        }
        session.lanes_requested = true;
        if !session.connection.is_initiator() {
            self.push_control(slot, ControlFrame::lanes_wanted());
            return;
        }
        if self.path_without_lane(slot, now_ns).is_some() {
            self.open_missing_lanes(slot, now_ns);
        } else {
            // No path is fit. One that comes back opens lanes, and this side looks now and then.
            self.request_lanes_later(slot, Wait::Time);
        }
    }

    /// Opens the lanes that paths lack, if that is for this side to do.
    pub(super) fn open_missing_lanes(&mut self, slot: u32, now_ns: u64) {
        let is_ours = self.sessions.at(slot as usize).is_some_and(|session| {
            session.connection.is_initiator()
                && session.is_connected()
                && !session.bulk_in_datagrams
        });
        while is_ours && let Some(path) = self.path_without_lane(slot, now_ns) {
            if !self.open_lane(slot, path as u8, now_ns) {
                break;
            }
        }
    }

    /// There is something to pull. Lanes of paths that have none are opened, or asked for.
    pub(super) fn open_lanes_of_new_paths(&mut self, slot: u32, now_ns: u64) {
        let Some(session) = self.sessions.at(slot as usize) else { return };
        if !session.rails.are_many() || session.lanes.is_empty() || !session.needs_lane() {
            return;
        }
        let is_initiator = session.connection.is_initiator();
        let is_asked = session.lanes_requested;
        let Some(path) = self.path_without_lane(slot, now_ns) else { return };
        if is_initiator {
            self.open_missing_lanes(slot, now_ns);
        } else if !is_asked && !self.pulls_by_datagram(slot) {
            self.rest_path(slot, path as u8, now_ns);
            if let Some(session) = self.sessions.at_mut(slot as usize) {
                session.lanes_requested = true;
            }
            self.push_control(slot, ControlFrame::lanes_wanted());
        }
    }

    /// `false`: there is no room for a lane.
    fn open_lane(&mut self, slot: u32, path: u8, now_ns: u64) -> bool {
        let Some(session) = self.sessions.at_mut(slot as usize) else { return false };
        let number = session.next_lane;
        // A number is never used twice under the same keys.
        let (Some(keys), Some(next)) = (session.keys.as_ref(), number.checked_add(1)) else {
            return false;
        };
        let keys = keys.lane(number, true);
        let rate = session.rails.rate_before(path);
        let bulk = BulkLane { rate, ..BulkLane::new(slot, path, number, keys, now_ns) };
        let Ok(lane) = self.lanes.insert(bulk) else {
            // At the bound: the lane that was idle for longest makes room, unless there is a lane
            // already, which serves as well as several.
            if session.lanes.is_empty() {
                self.request_lanes_later(slot, Wait::Room);
                self.close_oldest_idle_lane(now_ns);
            }
            return false;
        };
        session.next_lane = next;
        session.lanes.push(lane);
        self.actions.push_back(Action::OpenLane { session: slot, lane });
        true
    }

    /// Nobody asks for lanes of this session until [`Self::close_idle_lanes`] does.
    pub(super) fn request_lanes_later(&mut self, slot: u32, wait: Wait) {
        if let Some(session) = self.sessions.at_mut(slot as usize) {
            session.lanes_requested = true;
            self.starved.push((slot, wait));
        }
    }

    /// The peer has data to move and waits for lanes.
    pub(crate) fn handle_lanes_wanted(&mut self, slot: u32, now_ns: u64) {
        let Some(session) = self.sessions.at_mut(slot as usize) else { return };
        if !session.connection.is_initiator() || session.bulk_in_datagrams {
            return;
        }
        // Lanes that are lost there may still look well here.
        (session.lanes_wanted, session.wanted_before_lane) = (true, session.next_lane);
        if session.lanes.is_empty() {
            self.request_lanes(slot, now_ns);
        } else {
            self.open_missing_lanes(slot, now_ns);
        }
    }

    /// The keys of the session that a connection wants to join, if there is such a one. Bulk lanes
    /// are opened by the side that opened the session; the other one asks whether it is there.
    pub(crate) fn keys_to_join(&self, hello: &Hello) -> Option<&SessionKeys> {
        let slot = self.session_of(hello.source.get())?;
        let session = self.sessions.at(slot as usize)?;
        let is_it = session.is_connected()
            && session.id == hello.session.get()
            && (hello.kind == KIND_MOVE || !session.connection.is_initiator());
        session.keys.as_ref().filter(|_| is_it)
    }

    /// The same, if the connection has them, too.
    fn keys_of_join(&self, hello: &Hello) -> Result<&SessionKeys, HelloStatus> {
        let keys = self.keys_to_join(hello).ok_or(HelloStatus::UnknownSession)?;
        if !is_of_session(keys, hello) {
            return Err(HelloStatus::WrongSecret);
        }
        Ok(keys)
    }

    /// A connection wants to take the place of its session's control lane, on the path whose
    /// position comes back. Otherwise as [`Self::handle_lane_hello`]. Whoever did not open the
    /// session only wants to know whether it lives: [`HelloStatus::Busy`] says so.
    ///
    /// RR-RAIL-7, RR-RAIL-8.
    pub(crate) fn handle_move_hello(&mut self, hello: &Hello) -> Result<(u32, u8), HelloStatus> {
        self.keys_of_join(hello)?;
        let slot = self.session_of(hello.source.get()).ok_or(HelloStatus::UnknownSession)?;
        let session = self.sessions.at_mut(slot as usize).ok_or(HelloStatus::UnknownSession)?;
        // Also not one that was held up on the way while a later one came.
        let number = hello.lane.get();
        let is_late = session.last_move.is_some_and(|last| number <= last);
        if !session.joins.use_up(number) || is_late {
            return Err(HelloStatus::StaleEpoch);
        }
        if session.connection.is_initiator() {
            return Err(HelloStatus::Busy);
        }
        // In stream mode a lane that ends takes with it what it carried.
        let at = session.rails.position(hello.path.get()).filter(|_| session.datagram.is_some());
        let at = at.ok_or(HelloStatus::Malformed)?;
        session.last_move = Some(number);
        Ok((slot, at as u8))
    }

    /// Number of a connection that is to take the place of a session's control lane, and that of
    /// its path.
    pub(crate) fn number_of_move(&mut self, slot: u32, at: u8) -> Option<(u32, u16)> {
        let session = self.sessions.at_mut(slot as usize)?;
        let path = session.rails.paths.get(usize::from(at))?.number;
        let number = session.next_lane;
        session.next_lane = number.checked_add(1)?;
        Some((number, path))
    }

    /// A connection wants to join its session as a bulk lane. Forged and replayed joins are
    /// refused ([`HelloStatus::WrongSecret`], [`HelloStatus::StaleEpoch`]) and change nothing, and
    /// so are those to a session without bulk lanes ([`HelloStatus::Malformed`]).
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
        let slot = self.session_of(hello.source.get()).ok_or(HelloStatus::UnknownSession)?;
        let session = self.sessions.at_mut(slot as usize).ok_or(HelloStatus::UnknownSession)?;
        if session.bulk_in_datagrams || number >= CONTROL_LANE {
            return Err(HelloStatus::Malformed);
        }
        // Used up also if there is no room now: whoever replays it later must not get in.
        if !session.joins.use_up(number) {
            return Err(HelloStatus::StaleEpoch);
        }
        let path = self.path_to_join(slot, hello.path.get()).ok_or(HelloStatus::Malformed)?;
        let session = self.sessions.at_mut(slot as usize).ok_or(HelloStatus::UnknownSession)?;
        // Twice the usual number leaves room for lanes that replace dying ones.
        let lanes_max = 2 * self.config.bulk_lanes.max(8) as usize * session.rails.paths.len();
        if session.lanes.len() >= lanes_max {
            return Err(HelloStatus::Busy);
        }
        let rate = session.rails.rate_before(path as u8);
        let bulk = BulkLane { rate, ..BulkLane::new(slot, path as u8, number, keys, now_ns) };
        let Ok(lane) = self.lanes.insert(bulk) else {
            // A lane that the session has already serves as well as several; it may look idle
            // here while the peer's grants for it are on their way.
            if session.lanes.is_empty() {
                self.close_oldest_idle_lane(now_ns);
            }
            return Err(HelloStatus::Busy);
        };
        session.lanes.push(lane);
        Ok(lane)
    }

    /// A lane has carried its first chunk: the grants have come that the lanes of its session were
    /// opened for, and those that they do not use are spare.
    pub(super) fn note_lanes_in_use(&mut self, lane: Id) {
        let Some(slot) = self.lanes.get(lane).map(|bulk| bulk.session) else { return };
        let Some(session) = self.sessions.at(slot as usize) else { return };
        for &lane in &session.lanes {
            if let Some(bulk) = self.lanes.get_mut(lane) {
                bulk.is_fresh = false;
            }
        }
    }

    /// RR-LANE-2
    fn close_oldest_idle_lane(&mut self, now_ns: u64) {
        let patience_ns = self.config.retry.timeout_ns;
        let idle = self.lanes.iter().filter(|(_, bulk)| bulk.is_spare(now_ns, patience_ns));
        if let Some((lane, _)) = idle.min_by_key(|(_, bulk)| bulk.used_ns) {
            self.actions.push_back(Action::CloseLane { lane, is_failure: false });
        }
    }

    /// The peer has no room for a lane now; it is tried again a little later.
    pub(crate) fn lane_refused(&mut self, lane: Id, now_ns: u64) {
        let Some(bulk) = self.lanes.remove(lane) else { return };
        if let Some(session) = self.sessions.at_mut(bulk.session as usize) {
            session.lanes.retain(|&other| other != lane);
            if session.lanes.is_empty() {
                self.request_lanes_later(bulk.session, Wait::Room);
            } else {
                let has_lane = has_bulk_lane(session, &self.lanes);
                self.rest_path(bulk.session, bulk.path, now_ns);
                if !has_lane {
                    self.request_lanes_later(bulk.session, Wait::Time);
                }
            }
        }
    }

    /// Both sides agree on a lane; it carries chunks from now on.
    pub(crate) fn lane_ready(&mut self, lane: Id, now_ns: u64) {
        let Some(bulk) = self.lanes.get_mut(lane) else { return };
        (bulk.is_ready, bulk.used_ns) = (true, now_ns);
        let (slot, number) = (bulk.session, bulk.number);
        if let Some(session) = self.sessions.at_mut(slot as usize) {
            session.lanes_requested = false;
            // The peer has one that it accepted after it had asked: it will see the end of that.
            session.lanes_wanted &= number < session.wanted_before_lane;
        }
        self.mark_granting(slot);
        self.mark_runnable(lane);
    }

    /// A lane is gone (or is being closed): what was granted on it is granted again, except for
    /// the range that the kernel may still write, which waits for its event.
    pub(crate) fn lane_lost(
        &mut self,
        lane: Id,
        is_failure: bool,
        cause: &str,
        now_ns: u64,
        effects: &mut impl Effects,
    ) {
        let Some(bulk) = self.lanes.remove(lane) else { return };
        self.has_lane_room = true;
        let Some(session) = self.sessions.at_mut(bulk.session as usize) else { return };
        session.lanes.retain(|&other| other != lane);
        session.lanes_requested = false;
        if !session.is_connected() {
            return;
        }
        let in_kernel = usize::from(bulk.is_receiving && !planted!(ForgetReap));
        session.rails.note_regrants(bulk.path, bulk.incoming.len());
        for incoming in bulk.incoming.into_iter().skip(in_kernel) {
            let is_wanted = self.operations.get(incoming.operation).is_some_and(Operation::pulls);
            if !is_wanted || planted!(DropRegrant) {
                continue;
            }
            session.missing.push_back((
                incoming.operation,
                incoming.offset,
                u64::from(incoming.length),
            ));
        }
        let slot = bulk.session;
        if is_failure {
            session.rails.note_gone(bulk.number, bulk.path);
            self.rest_path(slot, bulk.path, now_ns);
        }
        let Some(session) = self.sessions.at_mut(slot as usize) else { return };
        if is_failure {
            self.counters.lane_failures += 1;
            let limit_ns = self.config.retry.timeout_ns.max(self.config.outage_ns);
            // Two attempts that the network swallows are as far apart as one may take.
            let gap_ns = limit_ns.saturating_add(2 * self.config.retry.timeout_ns);
            let (failures, lasted_ns) = session.lane_failures.note(now_ns, gap_ns);
            let are_many = failures > LANE_FAILURES_MAX;
            if are_many && lasted_ns >= limit_ns {
                let text = format!(
                    "its bulk lanes have failed one after the other for {} ms, the last one: \
                     {cause}",
                    lasted_ns / 1_000_000
                );
                self.fail_session(slot, PeerFailure::Lost(text.into()), effects);
                return;
            }
            if (!bulk.is_ready || are_many) && session.lanes.is_empty() {
                // What is in the way of lanes needs time to go.
                self.request_lanes_later(slot, Wait::Time);
                return;
            }
        }
        self.mark_granting(slot);
    }

    /// The peer cannot serve a grant: the lane it was for is aborted, and what was to come by it
    /// never comes, for its sender has given it up.
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
            // What goes in datagrams or by a ring is not out of step.
            return;
        }
        match self.lane_named(slot, refused.lane.get()) {
            Some(lane) => self.actions.push_back(Action::CloseLane { lane, is_failure: true }),
            None => self.counters.stale_frames += 1,
        }
    }

    /// A lane went: sessions that found no room for one try again, but for those whose lanes fail
    /// one after the other.
    pub(super) fn serve_starved(&mut self, now_ns: u64) {
        self.has_lane_room = false;
        self.serve_some(now_ns, |wait, failures| {
            wait == Wait::Room || failures <= LANE_FAILURES_MAX
        });
    }

    /// Sessions without a lane of which `is_served` says so, by what they wait for and how many
    /// of their lanes have failed in a row, try again.
    fn serve_some(&mut self, now_ns: u64, is_served: impl Fn(Wait, u32) -> bool) {
        for (slot, wait) in std::mem::take(&mut self.starved) {
            let Some(session) = self.sessions.at_mut(slot as usize) else { continue };
            if !is_served(wait, session.lane_failures.count()) {
                self.starved.push((slot, wait));
            } else if session.is_connected() && !has_bulk_lane(session, &self.lanes) {
                session.lanes_requested = false;
                // What it was for may be over.
                if session.needs_lane() {
                    self.request_lanes(slot, now_ns);
                }
            }
        }
    }

    /// Whether sessions that wait for room try now; otherwise what room there is stays free for
    /// lanes that peers open. At random: engines that filled their last place at the same times,
    /// each with a lane to the next one, would refuse all of them for ever. Sessions whose lanes
    /// fail leave out none: their time is limited (RR-LANE-4).
    ///
    /// RR-LANE-6.
    fn is_own_turn(&mut self) -> bool {
        self.lane_rounds = self.lane_rounds.wrapping_add(1);
        // The finalizer of splitmix64 over what differs between engines and rounds.
        let mut bits = self.config.hash_seed ^ self.engine.rotate_left(32) ^ self.lane_rounds;
        bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (bits ^ bits >> 31) & 1 == 0
    }

    /// A session that this side opened, whose lanes are in use and of whose paths one has none: the
    /// attempt failed, and the peer need not know that there is such a path. A lane that has
    /// carried nothing yet is no reason for another one, which would be one for the next.
    fn session_short_of_lanes(&self, now_ns: u64) -> Option<u32> {
        self.lanes.iter().find_map(|(_, bulk)| {
            let session = self.sessions.at(bulk.session as usize)?;
            let has_carried = bulk.is_ready && !bulk.is_fresh;
            let is_in_use = has_carried && now_ns.saturating_sub(bulk.used_ns) < IN_USE_NS;
            let is_short = is_in_use
                && session.rails.are_many()
                && session.connection.is_initiator()
                && self.path_without_lane(bulk.session, now_ns).is_some();
            is_short.then_some(bulk.session)
        })
    }

    /// Lanes that this side opened and that nobody has used for a while; sessions that found no
    /// room for theirs try again, and so do those with lanes on some of their paths only.
    pub(crate) fn close_idle_lanes(&mut self, now_ns: u64) {
        if let Some(slot) = self.session_short_of_lanes(now_ns) {
            self.open_missing_lanes(slot, now_ns);
        }
        let is_own_turn = self.is_own_turn();
        self.serve_some(now_ns, |wait, _| wait == Wait::Time || is_own_turn);
        for (lane, bulk) in self.lanes.iter() {
            let Some(session) = self.sessions.at_mut(bulk.session as usize) else { continue };
            let is_ours = session.connection.is_initiator()
                && session.pulls.is_empty()
                && session.missing.is_empty();
            let idle_ns = now_ns.saturating_sub(bulk.used_ns);
            let is_old = idle_ns > self.config.bulk_idle_ns || rare!("a bulk lane that is old", 4);
            if is_ours && is_old && bulk.is_spare(now_ns, self.config.retry.timeout_ns) {
                // A peer that has this one sees its end, and asks again if it still wants one; not
                // so if it had lost this one when it asked.
                session.lanes_wanted &= bulk.number < session.wanted_before_lane;
                self.actions.push_back(Action::CloseLane { lane, is_failure: false });
            }
        }
    }
}

/// Whether a session has a lane, or waits for one, on a path that carries bulk data.
fn has_bulk_lane(session: &Session, lanes: &Table<BulkLane>) -> bool {
    session.lanes.iter().any(|&lane| {
        lanes.get(lane).is_some_and(|bulk| session.rails.carries_bulk(usize::from(bulk.path)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT_NS: u64 = 1000;

    /// RR-LANE-4
    #[test]
    fn a_row_of_failures_lasts_while_lanes_are_tried() {
        let mut failures = LaneFailures::default();
        for number in 1..20 {
            assert_eq!(failures.note(number * 900, LIMIT_NS), (number as u32, (number - 1) * 900));
        }
        // Nothing was tried for long: that is no outage.
        assert_eq!(failures.note(100_000, LIMIT_NS), (1, 0));
        assert_eq!(failures.note(100_500, LIMIT_NS), (2, 500));
    }
}
