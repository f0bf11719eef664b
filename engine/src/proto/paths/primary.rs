//! Selection of the primary path, which carries a session's segments.

use std::cmp::Reverse;

use super::super::session::Session;
use super::super::session::rails::RailPair;
use super::super::session::rails::preference::{Distance, is_nearer};
use super::super::session::rails::trial::Used;
use super::path::SessionPath;
use super::{PathCx, Paths};
use crate::proto::ready::Work;

/// Bytes in flight up to which a round trip counts as unloaded.
const UNLOADED_BYTES: u64 = 4 << 10;

/// Segments in a row on another path than the primary one after which this side follows the peer.
const ELSEWHERE: u32 = 8;
/// A side that receives fewer long datagrams between two readings does not follow the peer.
const LED_FROM: u32 = 32;

/// Returns the users' preference for a path's rails: lower is better.
fn class_of(session: &Session, path: &SessionPath) -> (bool, bool) {
    let path = session.rails().paths.get(usize::from(path.position()));
    path.map_or((true, true), |path| (path.is_backup, !path.is_preferred))
}

/// Returns the round trip of short packets on the primary path. Its own load, also that of the
/// stream while some of it is unacknowledged (`is_streaming`), may queue before it, and would do so
/// on another path.
fn round_trip_ns(primary: &SessionPath, is_streaming: bool) -> Option<u64> {
    let (_, in_flight, _) = primary.packets().load();
    let short_ns = primary.packets().short_round_trip_ns()?;
    match primary.packets().least_round_trip_ns() {
        Some(least_ns) if in_flight > UNLOADED_BYTES || is_streaming => Some(least_ns),
        _ => Some(short_ns),
    }
}

/// Returns whether another path's round trip is not clearly longer than the primary one's.
fn is_near(other: &SessionPath, primary: &SessionPath, is_streaming: bool) -> bool {
    let both = round_trip_ns(primary, is_streaming).zip(other.packets().short_round_trip_ns());
    both.is_some_and(|(used_ns, its_ns)| !is_nearer(used_ns, its_ns))
}

impl Paths {
    /// Notes segments received in a datagram of `length` bytes, on the primary path or another.
    /// Returns `true` if the peer keeps sending them on another path.
    #[inline]
    pub(super) fn note_segments(&mut self, length: usize, is_elsewhere: bool) -> bool {
        let Some(choice) = &mut self.choice else { return false };
        let is_long = length >= choice.segment_bytes.div_ceil(2);
        choice.segments_came = choice.segments_came.saturating_add(u32::from(is_long));
        if !is_elsewhere {
            choice.segments_elsewhere = 0;
            return false;
        }
        choice.segments_elsewhere = (choice.segments_elsewhere + 1) % ELSEWHERE;
        choice.segments_elsewhere == 0
    }

    /// Selects the best healthy path for the segments: a preferred one first, a backup last, of
    /// these the one with the shortest round trip, then the fastest, then the first. While none is
    /// healthy the current one stays.
    ///
    /// RR-RAIL-4.
    pub(super) fn choose_primary(
        &mut self,
        session: &mut Session,
        cx: &mut PathCx<'_, '_>,
        now_ns: u64,
    ) {
        let known = &*session;
        let favourite = self.choice.as_ref().and_then(|it| it.preference.favourite());
        let rank = |path: &SessionPath| {
            let speed =
                known.rails().paths.get(usize::from(path.position())).map_or(0, RailPair::speed);
            let is_other = Some(path.id().number) != favourite;
            (class_of(known, path), is_other, Reverse(speed), path.position())
        };
        let best = self.standby.iter().enumerate().filter(|(_, path)| path.is_fit());
        let best = best.map(|(at, path)| (rank(path), at)).min();
        let primary = self.primary.as_deref();
        let current = primary.filter(|path| path.is_fit()).map(rank);
        if let Some((rank, at)) = best
            && current.is_none_or(|current| rank < current)
        {
            let primary = debug_assert_some!(&mut self.primary, "another one stands by for it");
            if let Some(primary) = primary {
                primary.hold(true);
                std::mem::swap(primary, &mut self.standby[at]);
            }
            if let Some(choice) = &mut self.choice {
                choice.carries_since_ns = now_ns;
            }
            tracing::debug!(session = cx.slot(), "primary path changed");
        }
        let primary = self.primary.as_deref_mut();
        if let Some(path) = primary.filter(|path| path.is_fit() && path.is_held()) {
            path.hold(false);
            // Segments sent by TCP meanwhile may be stuck on a rail that is down; long ones are
            // sent again by the next connection.
            session.segments_mut().resend_short(cx.cx());
        }
        debug_assert!(
            self.standby.iter().all(|path| path.is_held()),
            "only the primary path carries segments"
        );
        // New segments fit every path that may have to carry them.
        let least = self.all().filter(|path| path.is_fit());
        if let Some(bytes) = least.map(|path| path.packets().payload_bytes_max()).min()
            && let Some(choice) = &mut self.choice
            && bytes != choice.segment_bytes
        {
            choice.segment_bytes = bytes;
            session.segments_mut().set_segment_bytes(cx.cx(), bytes);
        }
        self.choose_stream(session, cx.cx());
        cx.cx.add_work(Work::Flush);
    }

    /// Lets this side follow the peer's primary path. Both directions should use the same path:
    /// acknowledgements are piggybacked, and the cost of a direction cannot be measured while
    /// messages wait for replies from the other. The side that opened the session decides.
    #[cold]
    pub(super) fn follow(
        &mut self,
        session: &mut Session,
        cx: &mut PathCx<'_, '_>,
        now_ns: u64,
        path: u16,
    ) {
        let known = &*session;
        self.all_mut().for_each(|path| {
            path.settle_packets();
        });
        let primary = self.primary.as_deref().filter(|path| path.is_fit());
        let theirs = self.standby.iter().find(|it| it.id().number == path && it.is_fit());
        let choice = &mut self.choice;
        debug_assert!(choice.is_some() || theirs.is_none(), "it is made among several");
        let (Some(primary), Some(theirs), Some(choice)) = (primary, theirs, choice) else { return };
        let is_streaming = known.segments().holds_long();
        let may_follow = class_of(known, theirs) == class_of(known, primary)
            && is_near(theirs, primary, is_streaming);
        let is_free = !known.connection().is_initiator() && !choice.trial.is_trying();
        if may_follow && is_free {
            choice.preference.choose(path);
            self.choose_primary(session, cx, now_ns);
        }
    }

    /// Measures the throughput of the primary path, and probes equally good and near paths for a
    /// higher one. Called when a packet arrives.
    #[cold]
    pub(super) fn try_others(
        &mut self,
        session: &mut Session,
        cx: &mut PathCx<'_, '_>,
        now_ns: u64,
    ) {
        let known = &*session;
        let choice = debug_assert_some!(&mut self.choice, "it is made among several");
        let Some(choice) = choice else { return };
        choice.trial.put_off(now_ns);
        let came = std::mem::take(&mut choice.segments_came);
        let is_led = came >= LED_FROM && !known.connection().is_initiator();
        let primary = self.primary.as_deref_mut().filter(|path| path.is_fit());
        let Some(primary) = primary else { return };
        let mut delivered = primary.delivered();
        if primary.position() == self.stream_at {
            delivered.bytes += known.segments().delivered_by_stream();
        }
        let is_streaming = known.segments().holds_long();
        let segment_bytes = choice.segment_bytes.max(1) as u64;
        let used = Used { path: primary.id().number, delivered, segment_bytes };
        let class = class_of(known, primary);
        let claimed = |path: &SessionPath| {
            known.rails().paths.get(usize::from(path.position())).map_or(0, RailPair::speed)
        };
        let speed = claimed(primary);
        let is_candidate = |path: &&SessionPath| {
            let is_slow = claimed(path) > 0 && claimed(path) <= speed / 2;
            let is_alike = path.is_fit() && class_of(known, path) == class;
            is_alike && is_near(path, primary, is_streaming) && !is_slow && !is_led
        };
        let standby = self.standby.iter().map(|path| &**path);
        let others = standby.filter(is_candidate).map(|path| path.id().number);
        if let Some(path) = choice.trial.read(now_ns, &used, others) {
            choice.preference.choose(path);
            self.choose_primary(session, cx, now_ns);
        }
    }

    /// Compares the round trips of otherwise equal paths, and probes all of them for the next
    /// comparison. Called when a packet arrives, so an idle session sends no probes.
    #[cold]
    pub(super) fn compare(&mut self, session: &mut Session, cx: &mut PathCx<'_, '_>, now_ns: u64) {
        let known = &*session;
        if let Some(choice) = &mut self.choice {
            choice.preference.put_off(now_ns);
        }
        self.all_mut().for_each(|path| {
            path.settle_packets();
        });
        let Some(primary) = self.primary.as_deref().filter(|path| path.is_fit()) else { return };
        let class = class_of(known, primary);
        let distance = |path: &SessionPath| {
            let round_trip_ns = path.packets().short_round_trip_ns()?;
            Some(Distance { path: path.id().number, round_trip_ns })
        };
        let alike = |path: &&SessionPath| path.is_fit() && class_of(known, path) == class;
        let is_streaming = primary.position() == self.stream_at && known.segments().holds_long();
        let used = round_trip_ns(primary, is_streaming)
            .map(|round_trip_ns| Distance { path: primary.id().number, round_trip_ns });
        let standby = self.standby.iter().map(|path| &**path);
        let others = standby.filter(alike).filter_map(distance);
        let choice = self.choice.as_mut();
        let is_moved = used
            .zip(choice)
            .is_some_and(|(used, choice)| choice.preference.compare(now_ns, used, others));
        let (slot, announced) = (cx.slot(), &mut session.rails_mut().paths);
        for path in self.all_mut().filter(|path| path.is_fit()) {
            if let Some(known) = announced.get_mut(usize::from(path.position()))
                && let Some(least_ns) = path.packets().least_round_trip_ns()
            {
                known.round_trip_ns = least_ns;
            }
            path.probe(now_ns, slot, &mut cx.shared.timers);
        }
        if is_moved {
            self.choose_primary(session, cx, now_ns);
        }
    }
}
