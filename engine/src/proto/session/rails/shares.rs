//! Shares of several peers in the rate of one rail of this side.
//!
//! Data of several peers for one rail queues in front of it, for example in a switch, and a peer's
//! share of the queue is its share of the rail. So the receiver, which grants, keeps equal amounts
//! of each queued: the rail's rate is split among the peers that it pulls from, and the unused
//! share of one is available to the others (max-min fairness). The horizon of grants is a round
//! trip's worth of the share and a margin.

use super::super::Session;
use super::rate::Rate;
use super::schedule::RATE_GUESS;
use super::{RailInfo, Rails, bytes_per_s};
use crate::proto::session::lanes::lane::BulkLane;
use crate::proto::session::lanes::{BulkLanes, SessionLanes};
use crate::proto::table::{Id, Table};

/// Time for which shares remain unchanged, in nanoseconds.
const REFRESH_NS: u64 = 500_000;
/// Rounds in which the unused shares of slow peers are split among the others.
const ROUNDS: usize = 4;
/// Maximum share of a peer, as a multiple of its measured rate: it may have been limited before.
const GROWTH: u64 = 4;

/// State of a rail of this side.
#[derive(Clone, Copy, Debug, Default)]
struct SharedRail {
    /// Rate of all peers together.
    rate: Rate,
    /// Lanes that are pulled from; those of one peer count as one.
    peers: Weight,
    /// Bytes per second for each of them; used if there are several.
    level: u64,
    /// Minimum time from a grant to its arrival on any of them, in nanoseconds.
    latency_ns: u64,
}

/// A number of peers, where a lane is a fraction of one.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
struct Weight(u64);

impl Weight {
    /// Fractions of a peer: divisible by the usual numbers of lanes.
    const WHOLE: u64 = 720_720;

    /// Returns the weight of one of `lanes` lanes of a peer.
    fn of_one_in(lanes: u64) -> Self {
        Self(Self::WHOLE / lanes.max(1))
    }

    fn are_several(self) -> bool {
        // Fractions are rounded down.
        self.0 > Self::WHOLE
    }

    /// Returns its fraction of one peer's amount.
    fn of(self, whole: u64) -> u64 {
        (u128::from(whole) * u128::from(self.0) / u128::from(Self::WHOLE)) as u64
    }

    /// Splits `rate` into the part of each whole peer.
    fn split(self, rate: u64) -> u64 {
        (u128::from(rate) * u128::from(Self::WHOLE) / u128::from(self.0.max(1))) as u64
    }
}

/// A lane's share of its rail.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Share {
    /// Maximum rate, in bytes per second.
    pub(crate) rate: u64,
    /// Time from a grant to its arrival, in nanoseconds.
    pub(crate) round_trip_ns: u64,
}

/// Shares of rails; see the module.
#[derive(Debug, Default)]
pub(crate) struct Shares {
    rails: Vec<SharedRail>,
    until_ns: u64,
}

/// Returns the rail of this side that a lane is on.
fn rail_of(rails: &Rails, lane: &BulkLane) -> usize {
    // That of a session which has ended may be on a path that is gone.
    usize::from(rails.own_rail(lane.path()).unwrap_or(0))
}

/// Returns the level of `rate` such that peers with smaller demands get their demand, and the
/// others equal parts of the rest. The demand of a new peer is unknown.
fn level<I: Iterator<Item = (Option<u64>, Weight)>>(
    rate: u64,
    peers: Weight,
    wishes: impl Fn() -> I,
) -> u64 {
    let mut level = peers.split(rate);
    for _ in 0..ROUNDS {
        let (mut wanted, mut others) = (0, Weight::default());
        for (wish, weight) in wishes() {
            match wish.filter(|&wish| wish < weight.of(level)) {
                Some(wish) => wanted += wish,
                None => others.0 += weight.0,
            }
        }
        if others.0 == 0 {
            break;
        }
        level = others.split(rate.saturating_sub(wanted)).max(level);
    }
    level
}

/// What shares depend on: the sessions of an engine, their lanes, and its rails.
#[derive(Clone, Copy)]
pub(crate) struct RailUse<'a> {
    pub(crate) sessions: &'a Table<Session>,
    pub(crate) lanes: &'a BulkLanes,
    pub(crate) rails: &'a [RailInfo],
}

impl<'a> RailUse<'a> {
    /// Returns the lanes with outstanding or waiting grants on a rail, and the weight of each.
    fn pulled_from(self, rail: usize) -> impl Iterator<Item = (&'a BulkLane, Weight)> {
        self.lanes.iter().filter_map(move |(_, lane)| {
            let session = self.sessions.at(lane.session() as usize);
            let session = debug_assert_some!(session, "the session of a lane is in the table")?;
            let is_wanting = !session.rendezvous.is_empty();
            let is_pulled = lane.expects_chunk() || is_wanting;
            if !lane.is_ready() || !is_pulled || rail_of(&session.rails, lane) != rail {
                return None;
            }
            Some((lane, weight_of(&session.lanes, &session.rails, self.lanes, rail)))
        })
    }

    /// Returns the expected rate of a rail, in bytes per second.
    fn rate_of_rail(self, rail: usize, measured: Rate, now_ns: u64) -> u64 {
        let speed = self.rails.get(rail).map_or(0, |rail| bytes_per_s(rail.speed_mbps));
        match (measured.bytes_per_s(), speed) {
            (0, 0) => RATE_GUESS,
            (0, speed) => speed,
            (known, _) => measured.hoped_for(now_ns).min(known.saturating_mul(GROWTH)),
        }
    }
}

/// Returns the weight of each lane of a peer on a rail. `own` are all of them.
fn weight_of(own: &SessionLanes, rails: &Rails, lanes: &BulkLanes, rail: usize) -> Weight {
    let is_there = |(_, lane): &(Id, &BulkLane)| lane.is_ready() && rail_of(rails, lane) == rail;
    Weight::of_one_in(own.iter(lanes).filter(is_there).count() as u64)
}

impl SharedRail {
    /// Splits a rail among the peers that are pulled from by it now.
    fn split(&mut self, rail: usize, rail_use: RailUse<'_>, now_ns: u64) {
        let mut peers = Weight::default();
        let mut latency_ns = u64::MAX;
        for (lane, weight) in rail_use.pulled_from(rail) {
            peers.0 += weight.0;
            if lane.rate().latency_ns() > 0 {
                latency_ns = latency_ns.min(lane.rate().latency_ns());
            }
        }
        self.latency_ns = if latency_ns == u64::MAX { 0 } else { latency_ns };
        self.peers = peers;
        if !peers.are_several() {
            return;
        }
        let rate = rail_use.rate_of_rail(rail, self.rate, now_ns);
        let wishes = || {
            rail_use.pulled_from(rail).map(|(lane, weight)| {
                let known = lane.rate().bytes_per_s();
                ((known > 0).then_some(known + known / 4), weight)
            })
        };
        self.level = level(rate, peers, wishes);
    }
}

impl Shares {
    /// Notes a chunk of `length` bytes, granted at `granted_ns`, that arrived on the path at `at`
    /// of a session.
    pub(crate) fn note_chunk(
        &mut self,
        rails: &Rails,
        at: u8,
        (length, granted_ns): (u32, u64),
        now_ns: u64,
    ) {
        let rail = debug_assert_some!(rails.own_rail(at), "a lane is on a path of its session");
        let Some(rail) = rail.map(usize::from) else { return };
        if self.rails.len() <= rail {
            self.rails.resize_with(rail + 1, SharedRail::default);
        }
        self.rails[rail].rate.handle_arrival(u64::from(length), granted_ns, now_ns);
    }

    /// Splits rails among the peers that are pulled from now, if the last split is old.
    pub(crate) fn refresh(&mut self, rail_use: RailUse<'_>, now_ns: u64) {
        if now_ns < self.until_ns {
            return;
        }
        self.until_ns = now_ns + REFRESH_NS;
        for (rail, known) in self.rails.iter_mut().enumerate() {
            known.split(rail, rail_use, now_ns);
        }
    }

    /// Returns a lane's share of its rail; `None`: no other peer uses that. `own` are the lanes of
    /// its session, and `rails` those between both sides.
    pub(super) fn share_of(
        &self,
        own: &SessionLanes,
        rails: &Rails,
        lanes: &BulkLanes,
        lane: &BulkLane,
    ) -> Option<Share> {
        let rail = rail_of(rails, lane);
        let known = self.rails.get(rail).filter(|known| known.peers.are_several())?;
        let path = debug_assert_some!(rails.path(lane.path()), "a lane is on a path")?;
        let fair = weight_of(own, rails, lanes, rail).of(known.level);
        let measured = lane.rate().bytes_per_s();
        let rate = if measured > 0 { fair.min(GROWTH * measured) } else { fair };
        // Where no datagrams pass the lane's own delay is the only measure of the round trip.
        let known_ns = [path.round_trip_ns, lane.rate().latency_ns(), known.latency_ns];
        let round_trip_ns = known_ns.into_iter().find(|&ns| ns > 0).unwrap_or(0);
        Some(Share { rate, round_trip_ns })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: u64 = 1_000_000;

    /// Returns the level among peers of one lane each.
    fn among(rate: u64, wishes: &[Option<u64>]) -> u64 {
        let one = Weight::of_one_in(1);
        let peers = Weight(one.0 * wishes.len() as u64);
        level(rate, peers, || wishes.iter().map(|&wish| (wish, one)))
    }

    #[test]
    fn unused_shares_are_split_among_other_peers() {
        assert_eq!(among(1000 * MB, &[None; 8]), 125 * MB);
        let slow = [Some(100 * MB), Some(50 * MB), None, Some(900 * MB)];
        assert_eq!(among(1000 * MB, &slow), 425 * MB);
        // All have small demands: none is limited.
        assert_eq!(among(1000 * MB, &[Some(100 * MB), Some(200 * MB)]), 500 * MB);
        // Each round finds some whose demand is below the previous level.
        let steps = [10, 120, 180, 250, 900].map(|wish| Some(wish * MB));
        assert_eq!(among(1000 * MB, &steps), 440 * MB);
    }

    #[test]
    fn two_lanes_of_a_peer_count_as_one_peer() {
        let half = Weight::of_one_in(2);
        let one = Weight::of_one_in(1);
        assert!(!Weight(2 * half.0).are_several());
        let peers = Weight(2 * half.0 + one.0);
        let lanes = [(None, half), (None, half), (None, one)];
        let level = level(100 * MB, peers, || lanes.into_iter());
        assert_eq!((level, half.of(level), one.of(level)), (50 * MB, 25 * MB, 50 * MB));
    }
}
