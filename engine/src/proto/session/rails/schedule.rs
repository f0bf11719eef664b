//! Selects the lane of the next chunk, and the length of the chunk.
//!
//! A receiver grants to the lane that would deliver the chunk first. A slow lane is skipped where
//! the others together would deliver everything before it had delivered one chunk, so that an
//! additional rail makes no message slower.

use super::Rails;
use super::shares::{Share, Shares};
use crate::proto::session::lanes::lane::BulkLane;
use crate::proto::session::lanes::{BulkLanes, SessionLanes};
use crate::proto::table::Id;

/// Target duration of one chunk at its lane's rate, in nanoseconds.
const CHUNK_NS: u64 = 500_000;
/// Minimum chunk length, in bytes.
const CHUNK_BYTES_MIN: u64 = 16 << 10;
/// Duration of outstanding grants beyond the lane's own delay, in nanoseconds: deep queues make the
/// loss of a rail expensive, and delay everything else.
const AHEAD_NS: u64 = 1_000_000;
/// Assumed rate of a lane without samples, in bytes per second.
pub(super) const RATE_GUESS: u64 = 1_000_000_000;
/// A lane is stuck if nothing arrives for this time, and for the duration of this many chunks.
const STUCK_NS: u64 = 20_000_000;
const STUCK_CHUNKS: u128 = 8;

/// The next grant of a lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct GrantTarget {
    pub(crate) lane: Id,
    /// Longest chunk for it.
    pub(crate) chunk_bytes: u64,
    /// This chunk reaches the limit of outstanding grants.
    pub(crate) is_last: bool,
}

/// Whether a session can grant, and on which lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Next {
    /// It has no lane that is ready.
    NoLane,
    /// Enough is granted on all useful lanes.
    Later,
    /// On this one.
    Now(GrantTarget),
}

/// Parameters of a lane in the comparison.
#[derive(Clone, Copy, Debug)]
struct LaneEstimate {
    lane: Id,
    outstanding: u64,
    rate: u64,
    /// Rate for the comparison with others: `rate`, or the rate of single chunks.
    pace: u64,
    latency_ns: u64,
    /// Round trip of its path; 0: unknown.
    round_trip_ns: u64,
    /// Time until its first granted bytes, or those of a new grant, begin to arrive.
    wait_ns: u64,
    /// Its share of a rail to which others send as well.
    share: Option<Share>,
    is_refilling: bool,
}

impl LaneEstimate {
    fn chunk_bytes(&self, longest: u64) -> u64 {
        // Halves of chunks that fill whole packets fill whole packets.
        let rate = self.share.map_or(self.rate, |share| share.rate);
        let fair = bytes_in(rate, CHUNK_NS).max(CHUNK_BYTES_MIN);
        let mut chunk = longest;
        while chunk > fair && chunk > CHUNK_BYTES_MIN {
            chunk = chunk.div_ceil(2).saturating_sub(512).max(CHUNK_BYTES_MIN);
        }
        chunk.min(longest)
    }

    /// Returns the bytes that may be granted ahead. On a shared rail they are such that all lanes
    /// wait equally long.
    fn horizon(&self, chunk: u64, chunks_max: u64) -> u64 {
        let fair = match self.share {
            Some(share) => bytes_in(share.rate, share.round_trip_ns + AHEAD_NS),
            None => bytes_in(self.rate, 2 * self.latency_ns + AHEAD_NS),
        };
        fair.clamp(2.min(chunks_max) * chunk, chunks_max * chunk)
    }

    /// Returns whether enough is consumed to grant several chunks at once, since each single grant
    /// costs both sides a datagram: from half of the horizon up to all of it.
    fn is_due(&self, horizon: u64) -> bool {
        let low = match self.share {
            // With less than a round trip's worth outstanding the rail would be idle at times.
            Some(share) => {
                horizon.saturating_sub(bytes_in(share.rate, AHEAD_NS / 2)).max(horizon / 2)
            }
            None => horizon / 2,
        };
        self.outstanding < horizon && (self.is_refilling || self.outstanding <= low)
    }

    /// Returns when it would have delivered `bytes` more, in nanoseconds from now: after its
    /// outstanding grants, and not before the grant arrives.
    fn finish_ns(&self, bytes: u64) -> u128 {
        let before_ns = time_ns(u128::from(self.outstanding), u128::from(self.pace));
        let own_ns = time_ns(u128::from(bytes), u128::from(self.pace));
        (before_ns + u128::from(self.wait_ns)).max(u128::from(self.round_trip_ns)) + own_ns
    }
}

/// All lanes that could get a chunk.
#[derive(Clone, Copy, Debug)]
struct Field {
    rates: u128,
    outstanding: u128,
    /// The two smallest times until a lane's bytes begin to arrive, which may be equal.
    waits_ns: [u64; 2],
}

impl Field {
    fn of(candidates: impl Iterator<Item = LaneEstimate>) -> Option<Self> {
        let nothing = Self { rates: 0, outstanding: 0, waits_ns: [u64::MAX; 2] };
        let all = candidates.fold(nothing, |all, candidate| {
            let [least, second] = all.waits_ns;
            let this = candidate.wait_ns;
            Self {
                rates: all.rates + u128::from(candidate.pace),
                outstanding: all.outstanding + u128::from(candidate.outstanding),
                waits_ns: [least.min(this), second.min(this.max(least))],
            }
        });
        (all.rates > 0).then_some(all)
    }

    /// Returns whether the others would deliver all remaining bytes before one lane delivers its
    /// chunk.
    fn is_needless(&self, one: &LaneEstimate, finish_ns: u128, left: u64) -> bool {
        let others = self.rates - u128::from(one.pace);
        let under_way = self.outstanding - u128::from(one.outstanding);
        let [least, second] = self.waits_ns;
        let wait_ns = if one.wait_ns == least { second } else { least };
        let all_ns = time_ns(under_way + u128::from(left), others);
        others > 0 && finish_ns > all_ns.saturating_add(u128::from(wait_ns))
    }
}

/// Returns the nanoseconds for a number of bytes at a rate in bytes per second.
fn time_ns(bytes: u128, rate: u128) -> u128 {
    bytes.saturating_mul(1_000_000_000) / rate.max(1)
}

fn bytes_in(rate: u64, time_ns: u64) -> u64 {
    (u128::from(rate) * u128::from(time_ns) / 1_000_000_000) as u64
}

/// What the choice of a lane depends on: the lanes of a session, and the rails that they use.
#[derive(Clone, Copy)]
pub(in crate::proto) struct LaneSchedule<'a> {
    own: &'a SessionLanes,
    rails: &'a Rails,
    lanes: &'a BulkLanes,
    shares: &'a Shares,
    now_ns: u64,
}

impl<'a> LaneSchedule<'a> {
    /// Creates the schedule of the lanes `own`, on `rails` between both sides, from all `lanes`.
    pub(in crate::proto) fn new(
        (own, rails): (&'a SessionLanes, &'a Rails),
        lanes: &'a BulkLanes,
        shares: &'a Shares,
        now_ns: u64,
    ) -> Self {
        Self { own, rails, lanes, shares, now_ns }
    }

    /// Returns the lane to grant on next, of a message of which `left` bytes are not granted: a
    /// chunk of at most `longest` bytes, with at most `chunks_max` outstanding.
    pub(in crate::proto) fn choose(self, left: u64, (longest, chunks_max): (u64, u64)) -> Next {
        let Some(field) = Field::of(self.candidates()) else {
            return Next::NoLane;
        };
        let mut best: Option<((bool, u128), GrantTarget)> = None;
        for candidate in self.candidates() {
            let chunk_bytes = candidate.chunk_bytes(longest);
            let horizon = candidate.horizon(chunk_bytes, chunks_max);
            if !candidate.is_due(horizon) {
                continue;
            }
            let finish_ns = candidate.finish_ns(chunk_bytes.min(left));
            let is_needless = field.is_needless(&candidate, finish_ns, left);
            // Arrivals of outstanding chunks trigger the next attempt.
            if is_needless && field.outstanding > 0 {
                continue;
            }
            let rank = (is_needless, finish_ns);
            debug_assert!((1..=longest).contains(&chunk_bytes), "a chunk has bytes, within limits");
            if best.is_none_or(|(least, _)| rank < least) {
                let is_last = candidate.outstanding + chunk_bytes >= horizon;
                best = Some((rank, GrantTarget { lane: candidate.lane, chunk_bytes, is_last }));
            }
        }
        best.map_or(Next::Later, |(_, choice)| Next::Now(choice))
    }

    /// Returns the lanes that could get a chunk.
    fn candidates(self) -> impl Iterator<Item = LaneEstimate> {
        // The peer may consider paths failed that look healthy here, and have lanes on others only.
        // A lane that has joined is an established connection.
        let has_some = self.own.iter(self.lanes).any(|(_, bulk)| self.carries(bulk));
        let has_flowing = self.own.iter(self.lanes).any(|(_, bulk)| self.flows(bulk));
        self.own.iter(self.lanes).filter_map(move |(lane, bulk)| {
            let is_worse = (has_flowing && !self.flows(bulk)) || (has_some && !self.carries(bulk));
            if !bulk.is_ready() || is_worse {
                return None;
            }
            self.candidate(lane, bulk)
        })
    }

    /// Returns a lane with what it is compared by.
    fn candidate(self, lane: Id, bulk: &BulkLane) -> Option<LaneEstimate> {
        let path = debug_assert_some!(self.rails.path(bulk.path()), "a lane is on a path")?;
        // A lane without grants gives no samples: the expected rate rises until then.
        let granted_ns = bulk.first_granted().map_or(self.now_ns, |first| first.granted_ns);
        let measured = bulk.rate();
        let rate = match (measured.hoped_for(granted_ns), path.expected_rate()) {
            (0, 0) => RATE_GUESS,
            (0, expected) => expected,
            (measured, _) => measured,
        };
        let lone = measured.lone_hoped_for(granted_ns);
        let pace = if measured.is_known() || lone == 0 { rate } else { lone.min(rate) };
        let round_trip_ns = path.round_trip_ns;
        Some(LaneEstimate {
            lane,
            outstanding: bulk.outstanding_bytes(),
            rate,
            pace: pace.max(1),
            latency_ns: measured.latency_ns(),
            round_trip_ns,
            wait_ns: granted_ns.saturating_add(round_trip_ns).saturating_sub(self.now_ns),
            share: self.shares.share_of(self.own, self.rails, self.lanes, bulk),
            is_refilling: bulk.is_refilling(),
        })
    }

    /// Returns whether a lane is ready, on a path that carries bulk data.
    fn carries(self, bulk: &BulkLane) -> bool {
        bulk.is_ready() && self.rails.carries_bulk(usize::from(bulk.path()))
    }

    /// Returns whether a lane carries bulk data, and is not so overdue that it is unpredictable:
    /// then it gets no grants while others make progress, and is not counted.
    fn flows(self, bulk: &BulkLane) -> bool {
        self.carries(bulk) && !self.is_stuck(bulk)
    }

    fn is_stuck(self, bulk: &BulkLane) -> bool {
        let Some(first) = bulk.first_granted() else { return false };
        let waits_ns = self.now_ns.saturating_sub(bulk.rate().last_ns().max(first.granted_ns));
        if waits_ns < STUCK_NS {
            return false;
        }
        let round_trip_ns = self.rails.path(bulk.path()).map_or(0, |path| path.round_trip_ns);
        let usual_ns = match bulk.rate().bytes_per_s() {
            0 => u128::from(STUCK_NS),
            rate => time_ns(u128::from(first.length), u128::from(rate)),
        };
        u128::from(waits_ns) >= STUCK_CHUNKS * (usual_ns + u128::from(round_trip_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(rate: u64, latency_ns: u64) -> LaneEstimate {
        let lane = Id::from_u64(0);
        LaneEstimate {
            lane,
            outstanding: 0,
            rate,
            pace: rate,
            latency_ns,
            round_trip_ns: 0,
            wait_ns: 0,
            share: None,
            is_refilling: false,
        }
    }

    #[test]
    fn chunk_length_follows_the_lane_rate() {
        let longest = 127 << 10;
        assert_eq!(candidate(5_000_000_000, 0).chunk_bytes(longest), longest);
        assert_eq!(candidate(250_000_000, 0).chunk_bytes(longest), 63 << 10);
        assert_eq!(candidate(125_000_000, 0).chunk_bytes(longest), 31 << 10);
        assert_eq!(candidate(1_000_000, 0).chunk_bytes(longest), CHUNK_BYTES_MIN);
        assert_eq!(candidate(1_000_000, 0).chunk_bytes(4096), 4096);
    }

    #[test]
    fn horizon_covers_the_delay_and_a_margin() {
        let chunk = 127 << 10;
        // As fast as a veth: as many chunks as the setting allows.
        assert_eq!(candidate(5_000_000_000, 20_000).horizon(chunk, 8), 8 * chunk);
        // 2 Gb/s over a LAN: 1.2 ms of it, and at least two chunks.
        let slow = candidate(250_000_000, 100_000);
        assert_eq!(slow.horizon(63 << 10, 8), 300_000);
        assert_eq!(candidate(1_000_000, 0).horizon(CHUNK_BYTES_MIN, 8), 2 * CHUNK_BYTES_MIN);
    }

    /// Returns an idle lane of a path with this round trip.
    fn at(round_trip_ns: u64, rate: u64) -> LaneEstimate {
        LaneEstimate { round_trip_ns, wait_ns: round_trip_ns, ..candidate(rate, 0) }
    }

    #[test]
    fn distant_lane_is_skipped_if_others_finish_first() {
        const MIB: u64 = 1 << 20;
        let near = at(40_000, 1_250_000_000);
        let far = at(400_000, 125_000_000);
        let is_needless = |left: u64, one: LaneEstimate, chunk: u64| {
            let field = Field::of([near, far].into_iter()).unwrap();
            field.is_needless(&one, one.finish_ns(chunk), left)
        };
        // 31 KiB take 250 µs there after 400: the near one delivers 790 KB in that time.
        assert!(is_needless(700_000, far, 31 << 10));
        assert!(!is_needless(MIB, far, 31 << 10));
        assert!(!is_needless(MIB, near, 127 << 10));
        // With equal round trips only rates count.
        let equal = at(40_000, 125_000_000);
        let field = Field::of([near, equal].into_iter()).unwrap();
        assert!(!field.is_needless(&equal, equal.finish_ns(31 << 10), 400_000));
        assert!(field.is_needless(&equal, equal.finish_ns(31 << 10), 100_000));
    }

    #[test]
    fn chunk_arrives_after_earlier_grants_and_a_round_trip() {
        let idle = at(1_000_000, 100_000_000);
        assert_eq!(idle.finish_ns(10_000), 1_100_000);
        // Granted just now: 50 KB are ahead.
        let begun = LaneEstimate { outstanding: 50_000, ..idle };
        assert_eq!(begun.finish_ns(10_000), 1_600_000);
        let arriving = LaneEstimate { outstanding: 50_000, wait_ns: 0, ..idle };
        assert_eq!(arriving.finish_ns(10_000), 1_100_000);
        let full = LaneEstimate { outstanding: 500_000, wait_ns: 0, ..idle };
        assert_eq!(full.finish_ns(10_000), 5_100_000);
    }
}
