//! Bulk lanes of a session: requested, opened, joined, lost, and closed when idle.

use self::lane::{BulkLane, GrantedRange};
use super::late::AtRest;
use super::{ControlFrame, Session};
use crate::proto::context::Cx;
use crate::proto::core::{Action, Core};
use crate::proto::effects::Effects;
use crate::proto::failure::PeerFailure;
use crate::proto::handshake::is_of_session;
use crate::proto::keys::SessionKeys;
use crate::proto::operation::Operation;
use crate::proto::ready::Work;
use crate::proto::table::{Id, Table};
use crate::wire::Hello;
use crate::wire::hello::{HelloStatus, KIND_MOVE};

pub(crate) mod lane;
mod limits;
mod session;
mod table;

pub(crate) use self::limits::LaneLimits;
pub(crate) use self::session::SessionLanes;
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
    /// Handles a lane that the peer has no space for; it is retried a little later.
    pub(crate) fn handle_lane_refused(&mut self, cx: &mut Cx<'_>, lane: Id, now_ns: u64) {
        self.lanes.handle_refused(cx, &mut self.rails, lane, now_ns);
    }

    /// Requests lanes, from the loop or from the peer, if that is not done yet.
    pub(super) fn request_lanes(&mut self, cx: &mut Cx<'_>, now_ns: u64) {
        if !self.lanes.note_request() {
            return;
        }
        if !self.connection.is_initiator() {
            self.send_control(cx, ControlFrame::lanes_wanted());
            return;
        }
        if self.rails.path_without_lane(&self.lanes, &cx.shared.lanes, now_ns).is_some() {
            self.open_missing_lanes(cx, now_ns);
        } else {
            // No path is fit. One that recovers opens lanes, and this side retries at intervals.
            self.lanes.wait(cx, Wait::Time);
        }
    }

    /// Opens the lanes that paths lack, if this side opens lanes.
    pub(super) fn open_missing_lanes(&mut self, cx: &mut Cx<'_>, now_ns: u64) {
        let is_ours =
            self.connection.is_initiator() && self.is_connected() && !self.bulk_in_datagrams;
        while is_ours
            && let Some(keys) = &self.keys
            && let Some(at) = self.rails.path_without_lane(&self.lanes, &cx.shared.lanes, now_ns)
        {
            if !self.lanes.open(cx, keys, &self.rails, at, now_ns) {
                break;
            }
        }
    }

    /// Opens lanes of paths that have none, or requests them, since there is data to pull.
    pub(super) fn open_lanes_of_new_paths(&mut self, cx: &mut Cx<'_>, now_ns: u64) {
        if !self.rails.are_many() || self.lanes.ids().is_empty() || !self.needs_lane() {
            return;
        }
        let at = self.rails.path_without_lane(&self.lanes, &cx.shared.lanes, now_ns);
        let Some(at) = at else { return };
        if self.connection.is_initiator() {
            self.open_missing_lanes(cx, now_ns);
        } else if self.lanes.note_request() {
            self.rails.rest(at, now_ns);
            self.send_control(cx, ControlFrame::lanes_wanted());
        }
    }

    /// Handles LANES WANTED: the peer has data to move and waits for lanes.
    pub(super) fn handle_lanes_wanted(&mut self, cx: &mut Cx<'_>, now_ns: u64) {
        if !self.connection.is_initiator() || self.bulk_in_datagrams {
            return;
        }
        self.lanes.handle_wanted();
        if self.lanes.ids().is_empty() {
            self.request_lanes(cx, now_ns);
        } else {
            self.open_missing_lanes(cx, now_ns);
        }
    }

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
        let number = hello.lane.get();
        if !self.lanes.use_up_to_move(number) {
            return Err(HelloStatus::StaleEpoch);
        }
        if self.connection.is_initiator() {
            return Err(HelloStatus::Busy);
        }
        // A session without datagrams ends with its connection.
        let at = self.rails.position(hello.path.get()).filter(|_| self.segments.has_datagrams());
        let at = at.ok_or(HelloStatus::Malformed)?;
        self.lanes.note_move(number);
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
        if self.bulk_in_datagrams {
            return Err(HelloStatus::Malformed);
        }
        // Used up also if there is no space now, so that it cannot be replayed later.
        if !self.lanes.use_up(number) {
            return Err(HelloStatus::StaleEpoch);
        }
        let at = self.rails.path_to_join(cx, hello.path.get()).ok_or(HelloStatus::Malformed)?;
        let keys = debug_assert_some!(self.keys.as_ref(), "what joins has used its keys");
        let keys = keys.ok_or(HelloStatus::UnknownSession)?;
        self.lanes.join(cx, keys, &self.rails, (at, number), now_ns)
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
        let bulk = self.lanes.remove(cx, lane)?;
        if !self.is_connected() {
            return None;
        }
        let (number, at, was_ready) = (bulk.number(), bulk.path(), bulk.is_ready());
        let (count, granted) = bulk.into_granted();
        self.rails.note_regrants(at, count);
        for GrantedRange { operation, offset, length, .. } in granted {
            let is_wanted = cx.shared.operations.get(operation).is_some_and(Operation::pulls);
            if is_wanted && !planted!(DropRegrant) {
                self.rendezvous.push_missing(operation, offset, length.into());
            }
        }
        if is_failure {
            let lost = (number, at, was_ready);
            match self.lanes.handle_failure(cx, &mut self.rails, lost, cause, now_ns) {
                Ok(true) => {}
                Ok(false) => return None,
                Err(failure) => return Some(failure),
            }
        }
        cx.add_work(Work::Grant);
        None
    }
}

impl BulkLanes {
    /// Returns a session that this side opened, whose lanes are in use and one of whose paths has
    /// none: the attempt failed, and the peer may not know that path. A lane that has carried
    /// nothing yet is no reason for another one, which would be one for the next.
    fn session_short_of_lanes(&self, sessions: &Table<Session>, now_ns: u64) -> Option<u32> {
        self.iter().find_map(|(_, bulk)| {
            let session = sessions.at(bulk.session() as usize)?;
            let (rails, own) = (&session.rails, &session.lanes);
            let is_short = bulk.is_in_use(now_ns, IN_USE_NS)
                && rails.are_many()
                && session.connection.is_initiator()
                && rails.path_without_lane(own, self, now_ns).is_some();
            is_short.then_some(bulk.session())
        })
    }
}

impl Core {
    /// Returns the keys of the session that a connection wants to join, if it exists.
    pub(crate) fn keys_to_join(&self, hello: &Hello) -> Option<&SessionKeys> {
        let (_, session) = self.shared.peers.find(&self.sessions, hello.source.get())?;
        session.keys_to_join(hello)
    }

    /// Returns the session that a connection wants to join, if the connection uses its keys, and
    /// what the methods of the session use. Others are refused without effect.
    pub(crate) fn enter_joined(
        &mut self,
        hello: &Hello,
    ) -> Result<(&mut Session, Cx<'_>), HelloStatus> {
        let entered = self.enter_engine(hello.source.get());
        let (session, cx) = entered.ok_or(HelloStatus::UnknownSession)?;
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
        let slot = self.shared.lanes.get(lane)?.session();
        let called = self.with(slot, call);
        debug_assert_some!(called, "the session of a lane is in the table")
    }

    /// Returns a lane and its session. `None`: it is gone.
    pub(crate) fn lane(&self, lane: Id) -> Option<(&Session, &BulkLane)> {
        let bulk = self.shared.lanes.get(lane)?;
        let session = self.sessions.at(bulk.session() as usize);
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

    /// Handles REFUSED: the peer cannot serve a grant. Its lane, if it names one, is aborted, and
    /// the range never arrives, since its sender has abandoned the message.
    ///
    /// RR-RDV-5.
    pub(crate) fn handle_refused(
        &mut self,
        slot: u32,
        operation: u64,
        lane: Option<u32>,
        effects: &mut impl Effects,
    ) {
        self.fail_pull(slot, Id::from_u64(operation), effects);
        if let Some(number) = lane {
            self.with(slot, |it, mut cx| it.lanes.abort(&mut cx, number));
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
            self.with_known(slot, |it, mut cx| {
                let has_ended = it.lanes.end_wait(&mut cx, &is_served);
                let has_lane = it.lanes.has_bulk_lane(&cx.shared.lanes, &it.rails);
                if has_ended && it.is_connected() && !has_lane {
                    it.lanes.end_request();
                    // The data may have been transferred or cancelled.
                    if it.needs_lane() {
                        it.request_lanes(&mut cx, now_ns);
                    }
                }
            });
        }
    }

    /// Closes lanes opened by this side that were unused for a while; sessions without space for a
    /// lane retry, and so do those with lanes on some of their paths only.
    pub(crate) fn close_idle_lanes(&mut self, now_ns: u64) {
        if let Some(slot) = self.shared.lanes.session_short_of_lanes(&self.sessions, now_ns)
            && let Some((session, mut cx)) = self.enter(slot)
        {
            session.open_missing_lanes(&mut cx, now_ns);
        }
        let is_own_turn = self.shared.lanes.is_own_turn();
        self.serve_some(now_ns, |wait, _| wait == Wait::Time || is_own_turn);
        for (lane, bulk) in self.shared.lanes.iter() {
            let session = self.sessions.at_mut(bulk.session() as usize);
            let session = debug_assert_some!(session, "the session of a lane is in the table");
            let ours =
                session.filter(|it| it.connection.is_initiator() && it.rendezvous.is_empty());
            let idle_ns = now_ns.saturating_sub(bulk.used_ns());
            let limits = self.shared.lanes.limits();
            let is_old = limits.is_idle_too_long(idle_ns) || rare!("a bulk lane that is old", 4);
            if let Some(session) = ours
                && is_old
                && bulk.is_spare(now_ns, limits.patience_ns())
            {
                // A peer that has this one sees its end, and requests another if it still wants
                // one; not so if it had lost this one when it sent the request.
                session.lanes.end_older_request(bulk.number());
                self.shared.actions.push_back(Action::CloseLane { lane, is_failure: false });
            }
        }
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
