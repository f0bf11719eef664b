//! Several rails between two engines: their announcement, pairing to paths, and use.
//!
//! A *rail* is one NIC of a side with one address; a *path* is a rail of the side that opened the
//! session and one of the other side. Path 0, of the first rails of both, always exists. Each side
//! with several rails announces them when a session is established; the side that opened it then
//! pairs them. A path is used once it has answered: bulk lanes use all healthy paths, messages the
//! best of them.

pub(crate) mod engine;
pub(crate) mod health;
pub(crate) mod pairing;
pub(crate) mod preference;
pub(crate) mod rate;
pub(crate) mod schedule;
pub(crate) mod segments;
pub(crate) mod shares;
pub(crate) mod trial;

use std::net::{IpAddr, SocketAddr};

use self::health::PathCause;
use self::rate::Rate;
use super::lanes::lane::BulkLane;
use super::lanes::{BulkLanes, SessionLanes};
use super::late::LateQueue;
use super::{ControlFrame, Session};
use crate::proto::context::Cx;
use crate::proto::core::Action;
use crate::proto::ready::Work;
use crate::proto::table::Id;
use crate::wire::lost::{FLAG_LANE_ALONE, FLAG_LANE_LONG};
use crate::wire::rail::{ROLE_BACKUP, ROLE_PREFERRED, RailFrame};
use crate::wire::{FrameError, LaneLost};

/// Time after which a failed path is tried by TCP while no other one is healthy, in nanoseconds.
pub(crate) const LAST_RESORT_NS: u64 = 300_000_000;
/// A lane is stalled if nothing arrives for the time that this many chunks take at its rate.
const STALL_CHUNKS: u128 = 3;
/// Bulk lanes that failed and of which the peer may have more to say.
const GONE_MAX: usize = 8;
/// Paths of a session at the most: each rail of the one side with one or two of the other.
pub(crate) const PATHS_MAX: usize = 32;
/// Minimum and maximum pause before a path whose lanes fail to connect gets another one, in
/// nanoseconds.
const LANE_PAUSE_MIN_NS: u64 = 10_000_000;
const LANE_PAUSE_MAX_NS: u64 = 1_000_000_000;

/// A rail as announced between both sides.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RailInfo {
    pub(crate) address: IpAddr,
    /// In Mb/s; 0: unknown.
    pub(crate) speed_mbps: u32,
    /// As in [`crate::wire::rail`].
    pub(crate) role: u8,
}

/// Returns the number of the path between these two rails.
pub(crate) fn path_number(initiator_rail: u8, acceptor_rail: u8) -> u16 {
    u16::from(initiator_rail) << 8 | u16::from(acceptor_rail)
}

/// Returns the rails of a path: that of the side that opened the session, and the other one.
pub(crate) fn rails_of(path: u16) -> (u8, u8) {
    ((path >> 8) as u8, path as u8)
}

/// Counters of a path.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PathCounters {
    /// Bytes of received chunks.
    pub(crate) bytes_received: u64,
    /// Bytes of chunks passed to the kernel.
    pub(crate) bytes_sent: u64,
    /// Received chunks.
    pub(crate) chunks_received: u64,
    /// Chunks passed to the kernel.
    pub(crate) chunks_sent: u64,
    /// Granted ranges that had to be granted again.
    pub(crate) regrants: u64,
    /// TCP retransmissions on closed connections.
    pub(crate) retransmits: u64,
    /// Changes of its state.
    pub(crate) changes: u64,
    /// Cause and time of the last one.
    pub(crate) last_change: Option<(PathCause, u64)>,
}

/// State of a path in the protocol.
#[derive(Debug)]
pub(crate) struct RailPair {
    /// [`path_number`].
    pub(crate) number: u16,
    /// The peer's address on it; `None`: its locator.
    pub(crate) remote: Option<IpAddr>,
    /// Bulk lanes may be opened and granted chunks on it.
    pub(crate) is_usable: bool,
    /// Only while no other one is usable.
    pub(crate) is_backup: bool,
    /// Before others.
    pub(crate) is_preferred: bool,
    /// Nominal rate of the slower rail, in bytes per second; 0: unknown.
    speed: u64,
    /// Round trip without queues, in nanoseconds; 0: unknown.
    pub(crate) round_trip_ns: u64,
    /// No lane is opened before this time.
    lanes_from_ns: u64,
    lane_pause_ns: u64,
    /// Bulk statistics, if its lanes carried anything.
    carried: Option<Box<Carried>>,
}

/// Statistics of bulk data on a path, and of its changes.
#[derive(Debug, Default)]
struct Carried {
    /// Rate of its last lane.
    rate: Rate,
    counters: PathCounters,
}

/// A session's rails and paths.
#[derive(Debug, Default)]
pub(crate) struct Rails {
    /// This side opened the session: its rails are the first ones of paths.
    is_initiator: bool,
    /// Rails of the peer, as far as announced; empty: it has one.
    theirs: Vec<Option<RailInfo>>,
    /// The first one is path 0.
    pub(crate) paths: Vec<RailPair>,
    /// Numbers of the bulk lanes that failed last, and their paths.
    gone: LateQueue<(u32, u8)>,
}

impl Rails {
    /// Creates the state of a newly established session, which this side opened if it
    /// `is_initiator`.
    pub(crate) fn new(is_initiator: bool) -> Self {
        let paths = vec![RailPair::new(0, None, true)];
        Self { is_initiator, theirs: Vec::new(), paths, gone: LateQueue::default() }
    }

    /// The bulk lane of a number, of the path at `at`, has failed.
    pub(super) fn note_gone(&mut self, number: u32, at: u8) {
        if self.gone.len() >= GONE_MAX {
            self.gone.pop_front();
        }
        self.gone.push_back((number, at));
        debug_assert!(self.gone.len() <= GONE_MAX, "the oldest ones are dropped");
    }

    /// Position of the path of a bulk lane that failed lately.
    fn path_of_gone(&self, number: u32) -> Option<u8> {
        self.gone.iter().find(|(gone, _)| *gone == number).map(|&(_, at)| at)
    }

    /// Returns the peer's rails, if all of them are known.
    pub(crate) fn theirs(&self) -> Option<Vec<RailInfo>> {
        self.theirs.iter().copied().collect()
    }

    /// Returns whether the peer has announced all of its rails.
    pub(crate) fn are_announced(&self) -> bool {
        !self.theirs.is_empty() && self.theirs.iter().all(Option::is_some)
    }

    /// Returns whether there is more than one path.
    pub(crate) fn are_many(&self) -> bool {
        self.paths.len() > 1
    }

    /// Returns the position of the path with this number.
    pub(crate) fn position(&self, number: u16) -> Option<usize> {
        self.paths.iter().position(|path| path.number == number)
    }

    /// Returns the path at a position.
    pub(crate) fn path(&self, at: u8) -> Option<&RailPair> {
        self.paths.get(usize::from(at))
    }

    /// Returns the rails of the path of this number: that of this side, and that of the peer.
    fn sides_of(&self, number: u16) -> (u8, u8) {
        let (initiators, acceptors) = rails_of(number);
        if self.is_initiator { (initiators, acceptors) } else { (acceptors, initiators) }
    }

    /// Returns the rail of this side that the path at a position uses. `None`: there is no such
    /// path.
    pub(super) fn own_rail(&self, at: u8) -> Option<u8> {
        Some(self.sides_of(self.path(at)?.number).0)
    }

    /// Returns the destination of a lane that this side opens on the path at a position, and the
    /// rail of this side. `locator` is where the peer listens.
    pub(crate) fn way(&self, at: u8, locator: SocketAddr) -> Option<(SocketAddr, u8)> {
        let path = self.path(at)?;
        // With another NIC than the locator's: the loop adds its scope.
        let other = path.remote.map(|address| SocketAddr::new(address, locator.port()));
        Some((other.unwrap_or(locator), self.sides_of(path.number).0))
    }

    /// Returns the rail of this side, and the peer's address, of the path at a position.
    pub(crate) fn pair(&self, at: u8, locator: SocketAddr) -> Option<(u8, IpAddr)> {
        let (remote, rail) = self.way(at, locator)?;
        Some((rail, remote.ip()))
    }

    /// Returns the rate of a path's last lane, as the initial one of the next.
    pub(super) fn rate_before(&self, at: u8) -> Rate {
        self.path(at).map_or(Rate::default(), |path| Rate::after(&path.rate()))
    }

    /// Counts `count` ranges of a lane of the path at `at` that are granted again.
    pub(super) fn note_regrants(&mut self, at: u8, count: usize) {
        self.change_path(at.into(), |path| path.counters_mut().regrants += count as u64);
    }

    /// Counts a chunk of `length` bytes received on the path at `at`, on a lane whose rate is
    /// `rate` now.
    pub(super) fn handle_arrival(&mut self, at: usize, length: u32, rate: Rate) {
        self.change_path(at, |path| {
            path.lane_pause_ns = LANE_PAUSE_MIN_NS;
            let carried = path.carried.get_or_insert_default();
            carried.rate = rate;
            carried.counters.bytes_received += u64::from(length);
            carried.counters.chunks_received += 1;
        });
    }

    /// Counts a chunk of `length` bytes sent on the path at `at`.
    pub(super) fn handle_sent(&mut self, at: usize, length: u32) {
        self.change_path(at, |path| {
            path.lane_pause_ns = LANE_PAUSE_MIN_NS;
            path.counters_mut().bytes_sent += u64::from(length);
            path.counters_mut().chunks_sent += 1;
        });
    }

    /// Counts the TCP retransmissions of a closing connection of the path at `at`.
    pub(crate) fn note_retransmits(&mut self, at: u8, count: u64) {
        if let Some(path) = self.paths.get_mut(usize::from(at)) {
            path.counters_mut().retransmits += count;
        }
    }

    /// Counts a state change of the path at `at`.
    pub(crate) fn note_change(&mut self, at: usize, cause: PathCause, now_ns: u64) {
        self.change_path(at, |path| {
            let counters = path.counters_mut();
            counters.changes += 1;
            counters.last_change = Some((cause, now_ns));
        });
    }

    /// Returns whether another path than that at `at` is usable for bulk data.
    pub(crate) fn has_usable_beside(&self, at: u8) -> bool {
        let mut paths = self.paths.iter().enumerate();
        paths.any(|(other, path)| path.is_usable && other != usize::from(at))
    }

    /// Changes the path at a position, which is that of a lane, or of a path with datagrams.
    fn change_path<R: Default>(&mut self, at: usize, change: impl FnOnce(&mut RailPair) -> R) -> R {
        let path = debug_assert_some!(self.paths.get_mut(at), "lanes and paths have positions");
        path.map(change).unwrap_or_default()
    }

    /// Lets bulk data use the path at `at`. Returns `false` if it could before.
    fn begin_use(&mut self, at: usize, now_ns: u64) -> bool {
        self.change_path(at, |path| {
            let was_usable = std::mem::replace(&mut path.is_usable, true);
            if !was_usable {
                (path.lanes_from_ns, path.lane_pause_ns) = (now_ns, LANE_PAUSE_MIN_NS);
            }
            !was_usable
        })
    }

    /// Returns whether bulk data may use the path at `at`: a backup waits for the failure of the
    /// others, which shows in their lanes, too, where datagrams do not pass. When all have failed
    /// any may be tried, since networks may drop datagrams only.
    pub(crate) fn carries_bulk(&self, at: usize) -> bool {
        let path = debug_assert_some!(self.paths.get(at), "lanes and paths have positions");
        let have_all_failed = !self.paths.iter().any(|path| path.is_usable);
        let has_turn =
            |it: &RailPair| !it.is_backup || !self.paths.iter().any(RailPair::outranks_backups);
        path.is_some_and(|path| have_all_failed || (path.is_usable && has_turn(path)))
    }
}

impl RailPair {
    pub(super) fn new(number: u16, remote: Option<IpAddr>, is_usable: bool) -> Self {
        Self {
            number,
            remote,
            is_usable,
            is_backup: false,
            is_preferred: false,
            speed: 0,
            round_trip_ns: 0,
            lanes_from_ns: 0,
            lane_pause_ns: LANE_PAUSE_MIN_NS,
            carried: None,
        }
    }

    /// Returns the rate of its last lane.
    fn rate(&self) -> Rate {
        self.carried.as_ref().map_or(Rate::default(), |carried| carried.rate)
    }

    /// Returns its counters.
    pub(crate) fn counters(&self) -> PathCounters {
        self.carried.as_ref().map_or(PathCounters::default(), |carried| carried.counters)
    }

    fn counters_mut(&mut self) -> &mut PathCounters {
        &mut self.carried.get_or_insert_default().counters
    }

    /// Returns whether it makes backups unnecessary: it is usable, and its last lane did not fail
    /// before it had carried anything.
    fn outranks_backups(&self) -> bool {
        self.is_usable && !self.is_backup && self.lane_pause_ns == LANE_PAUSE_MIN_NS
    }

    /// Returns the nominal rate of its slower rail, in bytes per second; 0: unknown.
    pub(crate) fn speed(&self) -> u64 {
        self.speed
    }

    /// Returns the expected rate of a lane on it, in bytes per second; 0: unknown.
    pub(crate) fn expected_rate(&self) -> u64 {
        let rate = self.rate();
        if rate.is_known() { rate.bytes_per_s() } else { self.speed }
    }
}

/// Returns the bytes per second of a rail with this many Mb/s.
fn bytes_per_s(speed_mbps: u32) -> u64 {
    u64::from(speed_mbps) * 125_000
}

impl SessionLanes {
    /// Handles LANE LOST: the peer has abandoned the lane of this number, whose end may have come
    /// first; `None`: the control connection, which this side replaces.
    ///
    /// RR-RAIL-5, RR-LANE-7, RR-LANE-8.
    pub(super) fn handle_lost(
        &self,
        cx: &mut Cx<'_>,
        rails: &Rails,
        lost: &LaneLost,
        number: Option<u32>,
    ) {
        let lane = number.and_then(|number| cx.shared.lanes.named(self.ids(), number));
        if lost.flags & FLAG_LANE_LONG != 0 {
            let path = lane.and_then(|lane| cx.shared.lanes.get(lane)).map(BulkLane::path);
            let at = path.or_else(|| rails.path_of_gone(number?));
            if number.is_none() || at.is_some() {
                let bytes = lost.segment_bytes.get();
                cx.act(Action::SegmentsLost { session: cx.slot, at, bytes });
            }
        }
        match lane {
            Some(lane) => cx.act(match lost.flags & FLAG_LANE_ALONE {
                0 => Action::AbandonLane { lane, is_reported: true },
                _ => Action::CloseLane { lane, is_failure: true },
            }),
            None if number.is_none() => {}
            None => cx.shared.note_stale_frame(),
        }
    }

    /// Returns when bulk data last arrived on a path, and whether more is overdue by three times
    /// the duration of its chunk.
    pub(in crate::proto) fn evidence(
        &self,
        rails: &Rails,
        lanes: &BulkLanes,
        at: u8,
        now_ns: u64,
    ) -> (u64, bool) {
        let Some(path) = debug_assert_some!(rails.path(at), "packets are of known paths") else {
            return (0, false);
        };
        let (last_ns, rate) = (path.rate().last_ns(), path.expected_rate());
        let is_overdue = |(_, bulk): (Id, &BulkLane)| {
            bulk.first_granted().is_some_and(|first| {
                let takes_ns = u128::from(first.length) * 1_000_000_000 / u128::from(rate.max(1));
                let waits_ns = now_ns.saturating_sub(last_ns.max(first.granted_ns));
                u128::from(waits_ns) >= STALL_CHUNKS * takes_ns
            })
        };
        (last_ns, rate > 0 && self.on_path(lanes, at).any(is_overdue))
    }
}

impl Session {
    /// Announces to the peer that this side has given up the lane of this number, whose close may
    /// never arrive there; `None`: the control connection, which the peer has opened and replaces.
    /// `lost_bytes`: because segments of so many bytes are lost.
    ///
    /// RR-LANE-7, RR-LANE-8.
    pub(crate) fn announce_lane_lost(
        &mut self,
        mut cx: Cx<'_>,
        number: Option<u32>,
        lost_bytes: Option<u16>,
    ) {
        let frame = match lost_bytes {
            Some(bytes) => LaneLost::new(number, FLAG_LANE_ALONE | FLAG_LANE_LONG, bytes),
            None => LaneLost::new(number, FLAG_LANE_ALONE, 0),
        };
        self.send_control(&mut cx, ControlFrame::LaneLost(frame));
    }

    /// Announces the rails of this engine to the peer of the newly established session.
    ///
    /// RR-RAIL-1.
    pub(crate) fn announce_rails(&mut self, mut cx: Cx<'_>) {
        if cx.shared.rails().infos().len() > 1 {
            self.announce(&mut cx);
        }
    }

    fn announce(&mut self, cx: &mut Cx<'_>) {
        let count = cx.shared.rails().infos().len();
        for index in 0..count {
            let RailInfo { address, speed_mbps, role } = cx.shared.rails().infos()[index];
            let rail = RailFrame::new(index as u8, count as u8, role, speed_mbps, address);
            self.send_control(cx, ControlFrame::Rail(rail));
        }
    }

    /// Handles the announcement of a rail.
    ///
    /// RR-RAIL-1, RR-RAIL-2.
    pub(super) fn handle_rail(
        &mut self,
        cx: &mut Cx<'_>,
        rail: &RailFrame,
    ) -> Result<(), FrameError> {
        let address = rail.address()?;
        let (index, count) = (rail.index, rail.count);
        let theirs = &mut self.rails.theirs;
        let is_first = theirs.is_empty();
        if is_first {
            theirs.resize(usize::from(count), None);
        }
        let is_new = theirs.get(usize::from(index)).is_some_and(Option::is_none);
        if theirs.len() != usize::from(count) || !is_new {
            return Err(FrameError::BadRail { index, count });
        }
        let info = RailInfo { address, speed_mbps: rail.speed_mbps.get(), role: rail.role };
        theirs[usize::from(index)] = Some(info);
        if theirs.iter().all(Option::is_some) {
            cx.act(Action::PairRails { session: cx.slot });
        }
        if is_first && cx.shared.rails().infos().len() == 1 {
            // A peer with several rails needs to know that this side has one.
            self.announce(cx);
        }
        Ok(())
    }

    /// Marks a path as usable for bulk data.
    ///
    /// RR-RAIL-3.
    pub(crate) fn path_ready(&mut self, cx: &mut Cx<'_>, at: usize, now_ns: u64) {
        if !self.rails.begin_use(at, now_ns) {
            return;
        }
        // The backlog of connection attempts made while it was down may retry at long intervals
        // only.
        for (lane, bulk) in self.lanes.on_path(&cx.shared.lanes, at as u8) {
            if !bulk.is_ready() {
                cx.shared.actions.push_back(Action::AbandonLane { lane, is_reported: false });
            }
        }
        if !self.lanes.ids().is_empty() || self.needs_lane() {
            self.open_missing_lanes(cx, now_ns);
        }
        cx.add_work(Work::Grant);
    }

    /// Marks a path as unusable: no new chunk is granted on it, and outstanding ones are granted on
    /// others once the kernel has released them.
    ///
    /// RR-RAIL-4, RR-RAIL-5.
    pub(crate) fn path_lost(&mut self, cx: &mut Cx<'_>, at: usize, now_ns: u64) {
        self.rails.change_path(at, |path| {
            path.is_usable = false;
            path.lanes_from_ns = now_ns + LAST_RESORT_NS;
        });
        let lost: Vec<(Id, u32)> = self
            .lanes
            .on_path(&cx.shared.lanes, at as u8)
            .map(|(lane, bulk)| (lane, bulk.number()))
            .collect();
        for (lane, number) in lost {
            cx.act(Action::AbandonLane { lane, is_reported: false });
            let frame = LaneLost::new(Some(number), 0, 0);
            self.send_control(cx, ControlFrame::LaneLost(frame));
        }
        cx.add_work(Work::Grant);
    }
}

impl Rails {
    /// Adds a path, which is not used yet. `None`: it exists already, its rails are unknown, or
    /// there are too many.
    pub(crate) fn add_path(&mut self, cx: &Cx<'_>, number: u16) -> Option<usize> {
        let (ours, theirs) = self.sides_of(number);
        let our = cx.shared.rails().infos().get(usize::from(ours)).copied();
        // A side without announcement has one.
        let their = self.theirs.get(usize::from(theirs)).copied().flatten();
        let is_there = (our.is_some() || ours == 0) && (their.is_some() || theirs == 0);
        if !is_there || self.position(number).is_some() || self.paths.len() >= PATHS_MAX {
            return None;
        }
        let mut path = RailPair::new(number, their.map(|their| their.address), false);
        path.set_rails(our, their);
        self.paths.push(path);
        debug_assert!(self.paths[0].number == 0, "the first one is path 0");
        Some(self.paths.len() - 1)
    }

    /// Returns the position of the path that a lane wants to join. A join may be the first frame of
    /// a path; then it also proves that the path works, where datagrams do not pass.
    ///
    /// RR-RAIL-2, RR-RAIL-3.
    pub(super) fn path_to_join(&mut self, cx: &Cx<'_>, number: u16) -> Option<u8> {
        if let Some(at) = self.position(number) {
            return Some(at as u8);
        }
        let at = self.add_path(cx, number)?;
        self.paths[at].is_usable = true;
        Some(at as u8)
    }

    /// Applies both sides' announcements to path 0, once they are known.
    pub(crate) fn describe_first_path(&mut self, cx: &Cx<'_>) {
        let their = self.theirs.first().copied().flatten();
        let path = debug_assert_some!(self.paths.first_mut(), "a connected session has path 0");
        if let Some(path) = path {
            path.set_rails(cx.shared.rails().infos().first().copied(), their);
        }
    }

    /// Pauses a path whose lane failed to connect, or failed before it carried anything.
    pub(super) fn rest(&mut self, at: u8, now_ns: u64) {
        if !self.are_many() {
            return;
        }
        self.change_path(at.into(), |path| {
            path.lanes_from_ns = now_ns + path.lane_pause_ns;
            path.lane_pause_ns = (2 * path.lane_pause_ns).min(LANE_PAUSE_MAX_NS);
        });
    }

    /// Returns the position of a path that carries bulk data and has fewer lanes than it should, if
    /// any. `own` are those of the session.
    pub(super) fn path_without_lane(
        &self,
        own: &SessionLanes,
        lanes: &BulkLanes,
        now_ns: u64,
    ) -> Option<u8> {
        (0..self.paths.len() as u8).find(|&at| {
            self.carries_bulk(at.into())
                && self.paths[usize::from(at)].lanes_from_ns <= now_ns
                && own.on_path(lanes, at).count() < lanes.per_path()
        })
    }
}

impl RailPair {
    fn set_rails(&mut self, our: Option<RailInfo>, their: Option<RailInfo>) {
        let speed = |rail: Option<RailInfo>| rail.map_or(0, |rail| bytes_per_s(rail.speed_mbps));
        self.speed = match (speed(our), speed(their)) {
            (0, known) | (known, 0) => known,
            (our, their) => our.min(their),
        };
        let has_role = |role| [our, their].iter().flatten().any(|rail| rail.role == role);
        (self.is_backup, self.is_preferred) = (has_role(ROLE_BACKUP), has_role(ROLE_PREFERRED));
    }
}
