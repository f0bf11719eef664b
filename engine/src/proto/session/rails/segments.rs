//! How long TCP segments may be on a pair of rails.
//!
//! Hosts take what their NICs do, and a switch between them may drop it without a word: datagrams
//! find their length by probes ([`crate::proto::packet`]), a kernel sends the same long segment
//! again and again. What is found out on one connection holds for all others of the pair: it is
//! kept per rail of this engine and address of the peer, for all sessions.
//!
//! All lengths are as `TCP_MAXSEG` counts them: an IP packet without the fixed headers.

use std::net::{IpAddr, SocketAddr};

use super::super::Session;
use super::Rails;
use crate::proto::context::Cx;
use crate::proto::core::Action;
use crate::proto::silence::Resent;
use crate::proto::table::Id;

/// Bytes of a segment that any network passes: IPv6 has 1280 for a packet at the least.
pub(crate) const SEGMENT_BYTES_SAFE: u16 = 1220;
/// The same where packets have the usual 1500 bytes, whichever family they are of.
pub(crate) const SEGMENT_BYTES_USUAL: u16 = 1440;
/// Bytes of a segment below which no kernel goes.
const SEGMENT_BYTES_MIN: u16 = 536;
/// A datagram of so many bytes is in a packet as long as a segment of 12 less.
const LONGER_THAN_DATAGRAM: usize = 12;
/// Headers of IPv4 and TCP with time stamps; IPv6 has 20 more.
const HEADER_BYTES: u32 = 52;
const HEADER_BYTES_MORE: u32 = 20;

/// How often a kernel has to send a segment again until it is taken for too long: where datagrams
/// show that longer packets than some are lost, where they show that the path is alive, and where
/// nothing is known of it. That takes 0.6, 1.4 and 3 s at the least.
const REPEATS_KNOWN: u32 = 2;
const REPEATS_ALIVE: u32 = 3;
const REPEATS_UNKNOWN: u32 = 4;

/// Time until longer segments are tried again, in nanoseconds: networks get mended, and what was
/// lost may have been lost for another reason. Doubles each time.
const AGAIN_MIN_NS: u64 = 60_000_000_000;
const AGAIN_MAX_NS: u64 = 3_600_000_000_000;
/// Pairs that are kept.
const PAIRS_MAX: usize = 256;

/// What datagrams say of packets on a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Passing {
    /// The longest datagram that has passed, in bytes.
    pub(crate) bytes: usize,
    /// Longer ones are lost.
    pub(crate) is_all: bool,
}

impl Passing {
    /// Bytes of a segment in a packet of that length.
    fn segment_bytes(self) -> u16 {
        let bytes = self.bytes.saturating_sub(LONGER_THAN_DATAGRAM);
        bytes.min(u16::MAX.into()) as u16
    }
}

/// Whether the path of a connection answers datagrams.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reachability {
    /// It has never answered a datagram.
    Unknown,
    /// It does not answer now.
    Silent,
    /// It has answered recently.
    Reachable,
}

/// Whether segments of a connection are too long for its path. `is_over`: it is given up in any
/// case.
///
/// RR-LANE-8.
pub(crate) fn are_too_long(
    resent: Resent,
    passing: Option<Passing>,
    reachability: Reachability,
    is_over: bool,
) -> bool {
    if resent.segment_bytes <= SEGMENT_BYTES_SAFE.into() || reachability == Reachability::Silent {
        return false;
    }
    let is_known =
        passing.is_some_and(|it| it.is_all && u32::from(it.segment_bytes()) < resent.segment_bytes);
    let repeats = match reachability {
        _ if is_known || is_over => REPEATS_KNOWN,
        Reachability::Reachable => REPEATS_ALIVE,
        _ => REPEATS_UNKNOWN,
    };
    resent.times >= repeats
}

/// Describes what was observed, for logs and errors.
pub(crate) fn describe(
    resent: Resent,
    passing: Option<Passing>,
    reachability: Reachability,
    ends: Option<(IpAddr, IpAddr)>,
) -> String {
    let is_v6 = ends.is_some_and(|(near, _)| near.is_ipv6());
    let headers = HEADER_BYTES + if is_v6 { HEADER_BYTES_MORE } else { 0 };
    let sent = resent.segment_bytes + headers;
    let between = match ends {
        Some((near, far)) => format!("between {near} and {far}"),
        None => "on the way".to_owned(),
    };
    let what = match passing.filter(|passing| passing.is_all) {
        Some(passing) => {
            // That of UDP is 28, or 48.
            let passes = passing.bytes as u32 + headers - 24;
            format!("packets above {passes} bytes are lost {between}")
        }
        None if reachability == Reachability::Reachable => {
            format!("TCP packets of {sent} bytes are lost {between}, short datagrams pass")
        }
        None => format!("TCP packets of {sent} bytes are not acknowledged {between}"),
    };
    format!("{what}: a switch with a smaller MTU?")
}

/// What is known of one pair.
#[derive(Clone, Copy, Debug)]
struct KnownLimit {
    rail: u8,
    remote: IpAddr,
    /// Segments of so many bytes were lost.
    lost_bytes: u16,
    /// It holds so long.
    until_ns: u64,
    for_ns: u64,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct SegmentLimits {
    known: Vec<KnownLimit>,
}

impl SegmentLimits {
    fn lost_bytes(&self, way: (u8, IpAddr), now_ns: u64) -> Option<u16> {
        let known = self.known.iter().find(|known| (known.rail, known.remote) == way)?;
        (now_ns < known.until_ns).then_some(known.lost_bytes)
    }

    /// Longest segment of a connection that is to be opened; `None`: as NICs take it.
    pub(crate) fn limit(
        &self,
        way: (u8, IpAddr),
        passing: Option<Passing>,
        now_ns: u64,
    ) -> Option<u16> {
        let passes = passing.map_or(0, Passing::segment_bytes);
        let is_all = passing.is_some_and(|passing| passing.is_all);
        let lost = self.lost_bytes(way, now_ns).or(is_all.then_some(u16::MAX))?;
        Some(match passes {
            _ if passes > SEGMENT_BYTES_SAFE && passes < lost => passes,
            _ if is_all => passes.clamp(SEGMENT_BYTES_MIN, SEGMENT_BYTES_SAFE),
            _ => SEGMENT_BYTES_SAFE,
        })
    }

    /// Segments of so many bytes are lost. `true`: that is new.
    fn learn(&mut self, (rail, remote): (u8, IpAddr), lost_bytes: u16, now_ns: u64) -> bool {
        let known = self.known.iter_mut().find(|it| (it.rail, it.remote) == (rail, remote));
        let Some(known) = known else {
            if self.known.len() >= PAIRS_MAX {
                self.known.remove(0);
            }
            let (for_ns, until_ns) = (AGAIN_MIN_NS, now_ns + AGAIN_MIN_NS);
            self.known.push(KnownLimit { rail, remote, lost_bytes, until_ns, for_ns });
            debug_assert!(self.known.len() <= PAIRS_MAX, "the oldest ones are dropped");
            return true;
        };
        if now_ns < known.until_ns {
            let is_new = lost_bytes < known.lost_bytes;
            known.lost_bytes = known.lost_bytes.min(lost_bytes);
            return is_new;
        }
        known.for_ns = (2 * known.for_ns).min(AGAIN_MAX_NS);
        (known.lost_bytes, known.until_ns) = (lost_bytes, now_ns + known.for_ns);
        true
    }

    /// Short packets do not pass, either: it was not their length.
    fn forget(&mut self, way: (u8, IpAddr)) {
        self.known.retain(|known| (known.rail, known.remote) != way);
    }
}

impl Session {
    /// Segments of so many bytes are lost on the path at `at`: connections that are opened there
    /// have shorter ones, and bulk lanes of this side that have not are replaced, whether they have
    /// lost something yet or not. `true`: that was not known.
    ///
    /// RR-LANE-8.
    pub(crate) fn note_segments_lost(&self, cx: Cx<'_>, at: u8, bytes: u16, now_ns: u64) -> bool {
        let Some(pair) = self.rails.pair(at, self.peer.locators().first()) else { return false };
        // Shorter segments are not made, whichever length a peer reports.
        let bytes = bytes.max(SEGMENT_BYTES_SAFE + 1);
        let is_new = cx.shared.rails_mut().segment_limits_mut().learn(pair, bytes, now_ns);
        if self.connection.is_initiator() {
            for (lane, bulk) in self.lanes.on_path(&cx.shared.lanes, at) {
                if bulk.has_segments_above(bytes) {
                    cx.shared.actions.push_back(Action::AbandonLane { lane, is_reported: false });
                }
            }
        }
        is_new
    }
}

impl Rails {
    /// The connection of a lane to `listener` did not come about. If it was to have short segments
    /// it was not for the length of others that they were lost.
    pub(crate) fn doubt_segments_lost(&self, cx: Cx<'_>, lane: Id, listener: SocketAddr) {
        let limited = cx.shared.lanes.get(lane).filter(|bulk| bulk.has_segment_limit());
        if let Some(pair) = limited.and_then(|bulk| self.pair(bulk.path(), listener)) {
            cx.shared.rails_mut().segment_limits_mut().forget(pair);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAY: (u8, IpAddr) = (1, IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1)));
    const JUMBO: u32 = 8948;

    fn resent(times: u32, segment_bytes: u32) -> Resent {
        Resent { times, segment_bytes }
    }

    fn passing(bytes: usize, is_all: bool) -> Option<Passing> {
        Some(Passing { bytes, is_all })
    }

    /// RR-LANE-8
    #[test]
    fn what_is_sent_again_is_too_long_sooner_where_datagrams_say_so() {
        let first = |passing, reachability, is_over| {
            (1..20)
                .find(|&times| are_too_long(resent(times, JUMBO), passing, reachability, is_over))
        };
        assert_eq!(first(passing(1472, true), Reachability::Reachable, false), Some(2));
        assert_eq!(first(passing(1472, false), Reachability::Reachable, false), Some(3));
        // Those of that length have passed, but the network may be another one now.
        assert_eq!(first(passing(8972, false), Reachability::Reachable, false), Some(3));
        assert_eq!(first(None, Reachability::Unknown, false), Some(4));
        assert_eq!(first(None, Reachability::Unknown, true), Some(2));
        assert_eq!(first(passing(1472, true), Reachability::Silent, true), None);
        assert!(
            !are_too_long(resent(20, 1208), None, Reachability::Reachable, true),
            "shorter are none"
        );
    }

    #[test]
    fn connections_have_the_longest_segments_that_pass() {
        let mut limits = SegmentLimits::default();
        assert_eq!(limits.limit(WAY, None, 0), None);
        assert_eq!(limits.limit(WAY, passing(8972, false), 0), None);
        assert_eq!(limits.limit(WAY, passing(1472, true), 0), Some(1460));
        assert_eq!(limits.limit(WAY, passing(1200, true), 0), Some(1188));
        assert!(limits.learn(WAY, 8948, 0));
        assert!(!limits.learn(WAY, 8948, 1));
        assert_eq!(limits.limit(WAY, None, 1), Some(SEGMENT_BYTES_SAFE));
        assert_eq!(limits.limit(WAY, passing(1472, true), 1), Some(1460));
        assert_eq!(limits.limit(WAY, passing(2048, false), 1), Some(2036));
        // What passed once is lost now.
        assert_eq!(limits.limit(WAY, passing(8972, false), 1), Some(SEGMENT_BYTES_SAFE));
        assert!(limits.learn(WAY, 1448, 2));
        assert_eq!(limits.limit(WAY, passing(1472, true), 2), Some(SEGMENT_BYTES_SAFE));
        assert_eq!(limits.limit((2, WAY.1), None, 2), None, "another rail");
    }

    #[test]
    fn longer_segments_are_tried_again_ever_more_rarely() {
        let (mut limits, mut now_ns) = (SegmentLimits::default(), 0);
        for turn in 0..10 {
            assert!(limits.learn(WAY, 8948, now_ns));
            let known_ns = (AGAIN_MIN_NS << turn).min(AGAIN_MAX_NS);
            assert!(limits.limit(WAY, None, now_ns + known_ns - 1).is_some());
            now_ns += known_ns;
            assert_eq!(limits.limit(WAY, None, now_ns), None);
        }
        limits.learn(WAY, 8948, now_ns);
        limits.forget(WAY);
        assert_eq!(limits.limit(WAY, None, now_ns), None);
    }

    #[test]
    fn text_describes_the_observed_loss() {
        let ends = Some(("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap()));
        let known = describe(resent(2, JUMBO), passing(1472, true), Reachability::Reachable, ends);
        let text = "packets above 1500 bytes are lost between 10.0.0.1 and 10.0.0.2: a switch \
                    with a smaller MTU?";
        assert_eq!(known, text);
        let alive = describe(resent(3, JUMBO), None, Reachability::Reachable, ends);
        assert!(alive.contains("9000 bytes are lost") && alive.contains("datagrams pass"));
        let nothing = describe(resent(4, JUMBO), None, Reachability::Unknown, None);
        assert!(nothing.contains("9000 bytes are not acknowledged on the way"), "{nothing}");
    }
}
