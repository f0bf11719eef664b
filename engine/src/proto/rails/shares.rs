//! How fast each of several peers may send to one rail of this side.
//!
//! What several peers send to one rail waits in front of it, in a switch say, and whoever has most
//! of what waits has most of the rail. So the receiver, who grants, has the same of each there: the
//! rail's rate is split among those that it pulls from, and what one of them does not use is
//! for the others (a max-min share). Granted ahead is a share's worth of a round trip and a little.

use super::super::bulk::BulkLane;
use super::super::core::Core;
use super::super::session::Session;
use super::rate::Rate;
use super::schedule::RATE_GUESS;
use super::{bytes_per_s, rails_of};

/// Time for which shares stay as they are, in nanoseconds.
const REFRESH_NS: u64 = 500_000;
/// Rounds in which what slow peers leave is split among the others.
const ROUNDS: usize = 4;
/// Of its measured rate a peer may be given so many times: it may be that it had too little.
const GROWTH: u64 = 4;

/// What is known of a rail of this side.
#[derive(Clone, Copy, Debug, Default)]
struct Incoming {
    /// What all peers together send to it.
    rate: Rate,
    /// Lanes that are pulled from; those of one peer count as one.
    peers: Weight,
    /// Bytes per second for each of them; meant if there are several.
    level: u64,
    /// Least time from a grant to its arrival on any of them, in nanoseconds.
    latency_ns: u64,
}

/// Peers, of which a lane is a part.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
struct Weight(u64);

impl Weight {
    /// Parts of a peer: divisible by the usual numbers of lanes.
    const WHOLE: u64 = 720_720;

    /// That of one of so many lanes of a peer.
    fn of_one_in(lanes: u64) -> Self {
        Self(Self::WHOLE / lanes.max(1))
    }

    fn are_several(self) -> bool {
        // Parts are rounded down.
        self.0 > Self::WHOLE
    }

    /// Its part of what one peer has.
    fn of(self, whole: u64) -> u64 {
        (u128::from(whole) * u128::from(self.0) / u128::from(Self::WHOLE)) as u64
    }

    /// What each whole peer has of `rate`.
    fn split(self, rate: u64) -> u64 {
        (u128::from(rate) * u128::from(Self::WHOLE) / u128::from(self.0.max(1))) as u64
    }
}

/// The part of a lane in what comes to its rail.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Share {
    /// Bytes per second that it is to have at the most.
    pub(crate) rate: u64,
    /// Time that what is granted takes to come, in nanoseconds.
    pub(crate) round_trip_ns: u64,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Shares {
    rails: Vec<Incoming>,
    until_ns: u64,
}

/// The rail of this side that a lane is on.
fn rail_of(session: &Session, lane: &BulkLane) -> usize {
    let path = session.rails.paths.get(usize::from(lane.path));
    let (initiators, acceptors) = rails_of(path.map_or(0, |path| path.number));
    usize::from(if session.connection.is_initiator() { initiators } else { acceptors })
}

/// What each peer has of `rate` if those that wish for less have what they wish for, and the others
/// equal parts of what is left. Nobody knows the wish of a new one.
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

impl Core {
    /// A chunk of `length` bytes, granted at `granted_ns`, came by the path at `at` of a session.
    pub(crate) fn note_chunk_of_rail(
        &mut self,
        slot: u32,
        at: u8,
        (length, granted_ns): (u32, u64),
        now_ns: u64,
    ) {
        let Some(session) = self.sessions.at(slot as usize) else { return };
        let Some(path) = session.rails.paths.get(usize::from(at)) else { return };
        let (initiators, acceptors) = rails_of(path.number);
        let rail = if session.connection.is_initiator() { initiators } else { acceptors };
        let rails = &mut self.shares.rails;
        if rails.len() <= usize::from(rail) {
            rails.resize_with(usize::from(rail) + 1, Incoming::default);
        }
        rails[usize::from(rail)].rate.handle_arrival(u64::from(length), granted_ns, now_ns);
    }

    /// Splits rails among those that are pulled from now, if that was long ago.
    pub(crate) fn refresh_shares(&mut self, now_ns: u64) {
        if now_ns < self.shares.until_ns {
            return;
        }
        self.shares.until_ns = now_ns + REFRESH_NS;
        let mut shares = std::mem::take(&mut self.shares.rails);
        for (rail, known) in shares.iter_mut().enumerate() {
            *known = self.split(rail, *known, now_ns);
        }
        self.shares.rails = shares;
    }

    /// The rail again, with the share that each peer has of it.
    fn split(&self, rail: usize, known: Incoming, now_ns: u64) -> Incoming {
        let mut peers = Weight::default();
        let mut latency_ns = u64::MAX;
        for (lane, weight) in self.pulled_from(rail) {
            peers.0 += weight.0;
            if lane.rate.latency_ns() > 0 {
                latency_ns = latency_ns.min(lane.rate.latency_ns());
            }
        }
        let latency_ns = if latency_ns == u64::MAX { 0 } else { latency_ns };
        let mut split = Incoming { peers, latency_ns, ..known };
        if !peers.are_several() {
            return split;
        }
        let rate = self.rate_of_rail(rail, known.rate, now_ns);
        let wishes = || {
            self.pulled_from(rail).map(|(lane, weight)| {
                let known = lane.rate.bytes_per_s();
                ((known > 0).then_some(known + known / 4), weight)
            })
        };
        split.level = level(rate, peers, wishes);
        split
    }

    /// Bytes per second that a rail may be expected to take.
    fn rate_of_rail(&self, rail: usize, measured: Rate, now_ns: u64) -> u64 {
        let speed = self.rails.get(rail).map_or(0, |rail| bytes_per_s(rail.speed_mbps));
        match (measured.bytes_per_s(), speed) {
            (0, 0) => RATE_GUESS,
            (0, speed) => speed,
            (known, _) => measured.hoped_for(now_ns).min(known.saturating_mul(GROWTH)),
        }
    }

    /// Lanes by which something is on its way to a rail, or is to be, and the part of a peer that
    /// each is.
    fn pulled_from(&self, rail: usize) -> impl Iterator<Item = (&BulkLane, Weight)> {
        self.lanes.iter().filter_map(move |(_, lane)| {
            let session = self.sessions.at(lane.session as usize)?;
            let is_wanting = !session.pulls.is_empty() || !session.missing.is_empty();
            let is_pulled = !lane.incoming.is_empty() || is_wanting;
            if !lane.is_ready || !is_pulled || rail_of(session, lane) != rail {
                return None;
            }
            Some((lane, self.weight_of(session, rail)))
        })
    }

    /// The part of a peer that each of its lanes on a rail is.
    fn weight_of(&self, session: &Session, rail: usize) -> Weight {
        let is_there = |&&lane: &&crate::proto::table::Id| {
            let lane = self.lanes.get(lane);
            lane.is_some_and(|lane| lane.is_ready && rail_of(session, lane) == rail)
        };
        Weight::of_one_in(session.lanes.iter().filter(is_there).count() as u64)
    }

    /// What a lane is to have of its rail; `None`: nobody else uses that.
    pub(crate) fn share_of(&self, session: &Session, lane: &BulkLane) -> Option<Share> {
        let rail = rail_of(session, lane);
        let known = self.shares.rails.get(rail).filter(|known| known.peers.are_several())?;
        let path = session.rails.paths.get(usize::from(lane.path))?;
        let fair = self.weight_of(session, rail).of(known.level);
        let own = lane.rate.bytes_per_s();
        let rate = if own > 0 { fair.min(GROWTH * own) } else { fair };
        // Where no datagrams pass the lane's own delay is all that tells how far its peer is.
        let known_ns = [path.round_trip_ns, lane.rate.latency_ns(), known.latency_ns];
        let round_trip_ns = known_ns.into_iter().find(|&ns| ns > 0).unwrap_or(0);
        Some(Share { rate, round_trip_ns })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: u64 = 1_000_000;

    /// The level among peers of one lane each.
    fn among(rate: u64, wishes: &[Option<u64>]) -> u64 {
        let one = Weight::of_one_in(1);
        let peers = Weight(one.0 * wishes.len() as u64);
        level(rate, peers, || wishes.iter().map(|&wish| (wish, one)))
    }

    #[test]
    fn what_slow_peers_leave_the_others_share() {
        assert_eq!(among(1000 * MB, &[None; 8]), 125 * MB);
        let slow = [Some(100 * MB), Some(50 * MB), None, Some(900 * MB)];
        assert_eq!(among(1000 * MB, &slow), 425 * MB);
        // All wish for little: none is held back.
        assert_eq!(among(1000 * MB, &[Some(100 * MB), Some(200 * MB)]), 500 * MB);
        // Each round finds some that wish for less than the last one left.
        let steps = [10, 120, 180, 250, 900].map(|wish| Some(wish * MB));
        assert_eq!(among(1000 * MB, &steps), 440 * MB);
    }

    #[test]
    fn two_lanes_of_a_peer_are_one_peer() {
        let half = Weight::of_one_in(2);
        let one = Weight::of_one_in(1);
        assert!(!Weight(2 * half.0).are_several());
        let peers = Weight(2 * half.0 + one.0);
        let lanes = [(None, half), (None, half), (None, one)];
        let level = level(100 * MB, peers, || lanes.into_iter());
        assert_eq!((level, half.of(level), one.of(level)), (50 * MB, 25 * MB, 50 * MB));
    }
}
