//! Which lane gets the next chunk, and how long that is.
//!
//! A receiver grants to the lane that would have it first. With lanes of different rates a slow one
//! is left out where the others together would be through with everything before it had one chunk,
//! so that another rail makes no message slower.

use super::super::core::Core;
use super::super::operation::State;
use super::super::session::Session;
use super::super::table::{Id, Table};
use crate::proto::operation::Operation;

/// Time that one chunk may take at its lane's rate, in nanoseconds.
const CHUNK_NS: u64 = 500_000;
/// Shortest chunk that a rate leads to, in bytes.
const CHUNK_BYTES_MIN: u64 = 16 << 10;
/// Time that what is granted ahead may take beyond the lane's own delay, in nanoseconds: deep
/// queues make the loss of a rail expensive, and everything else wait.
const AHEAD_NS: u64 = 1_000_000;
/// Rate of a lane of which nothing is known, in bytes per second.
const RATE_GUESS: u64 = 1_000_000_000;
/// Pulls whose lengths are added up: more of them are endless for this purpose.
const PULLS_COUNTED: usize = 4;

/// What a lane is to be granted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Choice {
    pub(crate) lane: Id,
    /// Longest chunk for it.
    pub(crate) chunk_bytes: u64,
    /// With this chunk as much is granted ahead as may be.
    pub(crate) is_last: bool,
}

/// Whether, and to whom, a session can grant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Next {
    /// It has no lane that is ready.
    NoLane,
    /// Enough is granted on all lanes that would help.
    Later,
    /// To this one.
    Now(Choice),
}

/// A lane as the choice sees it.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    lane: Id,
    outstanding: u64,
    rate: u64,
    latency_ns: u64,
    is_refilling: bool,
}

impl Candidate {
    fn chunk_bytes(&self, longest: u64) -> u64 {
        // Halves of what fills whole packets fill whole packets.
        let fair = self.bytes_in(CHUNK_NS).max(CHUNK_BYTES_MIN);
        let mut chunk = longest;
        while chunk > fair && chunk > CHUNK_BYTES_MIN {
            chunk = chunk.div_ceil(2).saturating_sub(512).max(CHUNK_BYTES_MIN);
        }
        chunk.min(longest)
    }

    fn bytes_in(&self, time_ns: u64) -> u64 {
        (u128::from(self.rate) * u128::from(time_ns) / 1_000_000_000) as u64
    }

    /// Bytes that may be granted ahead.
    fn horizon(&self, chunk: u64, chunks_max: u64) -> u64 {
        let fair = self.bytes_in(2 * self.latency_ns + AHEAD_NS);
        fair.clamp(2.min(chunks_max) * chunk, chunks_max * chunk)
    }

    /// Several chunks are granted at a time, for each grant that goes alone costs both sides a
    /// datagram: from half of the horizon on up to all of it.
    fn is_due(&self, horizon: u64) -> bool {
        self.outstanding < horizon && (self.is_refilling || self.outstanding <= horizon / 2)
    }

    /// When it would have `bytes` more, in nanoseconds from now.
    fn finish_ns(&self, bytes: u64) -> u128 {
        u128::from(self.outstanding + bytes) * 1_000_000_000 / u128::from(self.rate.max(1))
    }
}

impl Core {
    /// The lane that a session should grant to next.
    pub(crate) fn choose_lane(&self, session: &Session, longest: u64, now_ns: u64) -> Next {
        let left = ungranted(session, &self.operations);
        let (mut count, mut rates, mut outstanding) = (0, 0u128, 0u128);
        for candidate in self.candidates(session, now_ns) {
            count += 1;
            rates += u128::from(candidate.rate);
            outstanding += u128::from(candidate.outstanding);
        }
        if count == 0 {
            return Next::NoLane;
        }
        let chunks_max = u64::from(self.config.horizon_chunks);
        let mut best: Option<((bool, u128), Choice)> = None;
        for candidate in self.candidates(session, now_ns) {
            let chunk_bytes = candidate.chunk_bytes(longest);
            let horizon = candidate.horizon(chunk_bytes, chunks_max);
            if !candidate.is_due(horizon) {
                continue;
            }
            let finish_ns = candidate.finish_ns(chunk_bytes.min(left));
            let others = rates - u128::from(candidate.rate);
            let theirs = outstanding - u128::from(candidate.outstanding) + u128::from(left);
            let is_needless =
                others > 0 && finish_ns > theirs.saturating_mul(1_000_000_000) / others;
            // When something is under way its arrival asks again.
            if is_needless && outstanding > 0 {
                continue;
            }
            let rank = (is_needless, finish_ns);
            if best.is_none_or(|(least, _)| rank < least) {
                let is_last = candidate.outstanding + chunk_bytes >= horizon;
                best = Some((rank, Choice { lane: candidate.lane, chunk_bytes, is_last }));
            }
        }
        best.map_or(Next::Later, |(_, choice)| Next::Now(choice))
    }

    fn candidates(&self, session: &Session, now_ns: u64) -> impl Iterator<Item = Candidate> {
        let lanes = &self.lanes;
        let carries = move |lane: &Id| {
            lanes.get(*lane).is_some_and(|bulk| {
                bulk.is_ready && session.rails.carries_bulk(usize::from(bulk.path))
            })
        };
        // The peer may take paths for failed that look well here, and have lanes on others only. A
        // lane that has joined is a connection that came about.
        let has_some = session.lanes.iter().any(carries);
        session.lanes.iter().filter_map(move |&lane| {
            let bulk = lanes.get(lane)?;
            let path = session.rails.paths.get(usize::from(bulk.path))?;
            if !bulk.is_ready || (has_some && !carries(&lane)) {
                return None;
            }
            let rate = match (bulk.rate.hoped_for(now_ns), path.expected_rate()) {
                (0, 0) => RATE_GUESS,
                (0, expected) => expected,
                (measured, _) => measured,
            };
            let (outstanding, latency_ns) = (bulk.incoming_bytes, bulk.rate.latency_ns());
            let is_refilling = bulk.is_refilling;
            Some(Candidate { lane, outstanding, rate, latency_ns, is_refilling })
        })
    }
}

/// Bytes of a session that no lane was asked for yet, as far as it is worth counting.
fn ungranted(session: &Session, operations: &Table<Operation>) -> u64 {
    if session.pulls.len() > PULLS_COUNTED {
        return u64::MAX;
    }
    let missing: u64 = session.missing.iter().map(|&(_, _, length)| length).sum();
    let pulls = session.pulls.iter().filter_map(|&id| match &operations.get(id)?.state {
        State::Pulling(pulling) => Some(pulling.wanted - pulling.granted),
        _ => None,
    });
    pulls.fold(missing, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(rate: u64, latency_ns: u64) -> Candidate {
        let lane = Id::from_u64(0);
        Candidate { lane, outstanding: 0, rate, latency_ns, is_refilling: false }
    }

    #[test]
    fn chunks_are_as_short_as_the_lane_is_slow() {
        let longest = 127 << 10;
        assert_eq!(candidate(5_000_000_000, 0).chunk_bytes(longest), longest);
        assert_eq!(candidate(250_000_000, 0).chunk_bytes(longest), 63 << 10);
        assert_eq!(candidate(125_000_000, 0).chunk_bytes(longest), 31 << 10);
        assert_eq!(candidate(1_000_000, 0).chunk_bytes(longest), CHUNK_BYTES_MIN);
        assert_eq!(candidate(1_000_000, 0).chunk_bytes(4096), 4096);
    }

    #[test]
    fn what_is_granted_ahead_covers_the_delay_and_a_little() {
        let chunk = 127 << 10;
        // As fast as a veth: as many chunks as the setting lets.
        assert_eq!(candidate(5_000_000_000, 20_000).horizon(chunk, 8), 8 * chunk);
        // 2 Gb/s over a LAN: 1.2 ms of it, and two chunks at the least.
        let slow = candidate(250_000_000, 100_000);
        assert_eq!(slow.horizon(63 << 10, 8), 300_000);
        assert_eq!(candidate(1_000_000, 0).horizon(CHUNK_BYTES_MIN, 8), 2 * CHUNK_BYTES_MIN);
    }
}
