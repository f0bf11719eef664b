//! When a packet counts as lost, and when to probe.
//!
//! As RFC 9002 (sections 6.1 and 6.2), with microseconds for milliseconds, and with thresholds that
//! follow the reordering that the path turns out to have (as RACK, RFC 8985 section 6.2, does).

use super::rtt::Rtt;

/// Packets acknowledged beyond a missing one that make it lost.
const PACKETS_MIN: u64 = 3;
/// No path is allowed more reordering than this, in packets.
const PACKETS_MAX: u64 = 4096;
/// Time that makes a packet lost, in eighths of a round trip: 9/8 at first, 2 at most.
const EIGHTHS_MIN: u64 = 9;
const EIGHTHS_MAX: u64 = 16;
/// Timers are no finer than this, in nanoseconds.
const GRANULARITY_NS: u64 = 1_000;
/// What a probe waits beyond a round trip at least, and above a round trip at most: a lost tail is
/// to cost no more than two round trips and 200 µs, 25 of these being the peer's delay.
pub(super) const PROBE_SLACK_NS: u64 = 100_000;
/// One sample of a peer that stood still for seconds does not put probes off for longer than this,
/// unless the path itself is as long.
const PROBE_BASE_MAX_NS: u64 = 500_000_000;
/// No path is longer than this, so a longer sample is of a standstill, though it be the only one.
const ROUND_TRIP_MAX_NS: u64 = 1_000_000_000;
/// Probe timeouts without an answer that make a path silent: 31 times the first one, some 7 ms on
/// a LAN. A packet is lost now and then; five probes in a row are not.
const SILENT_PROBES: u32 = 5;
/// So long without an answer to two is as good.
const SILENT_NS: u64 = 1_000_000_000;
/// Round trips without reordering after which the thresholds come down one step.
const CALM_ROUNDS: u32 = 32;
/// Back-off ends here, as a power of two.
const BACKOFF_MAX: u32 = 10;
/// Probe timeouts' worth of nothing but losses that mean persistent congestion (RFC 9002, 7.6).
const PERSISTENT_PROBES: u64 = 3;

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Loss {
    packets: u64,
    eighths: u64,
    calm_rounds: u32,
    /// Probe timeouts since the last acknowledgement.
    probes: u32,
    /// Packets that were lost, then acknowledged.
    spurious: u64,
}

impl Loss {
    pub(super) fn new() -> Self {
        Self { packets: PACKETS_MIN, eighths: EIGHTHS_MIN, calm_rounds: 0, probes: 0, spurious: 0 }
    }

    /// Whether a number as much below the highest acknowledged one is lost.
    ///
    /// RR-PKT-8.
    #[inline]
    pub(super) fn is_lost_by_count(&self, number: u64, highest: u64) -> bool {
        number + self.packets <= highest
    }

    /// How long after its sending a packet is lost, once a later one is acknowledged.
    pub(super) fn delay_ns(&self, rtt: &Rtt) -> u64 {
        (rtt.cautious_ns() / 8).saturating_mul(self.eighths).max(GRANULARITY_NS)
    }

    /// How long after the last packet a probe goes. `ack_delay_ns` is the peer's, 0 if it was
    /// asked to answer at once.
    pub(super) fn probe_after_ns(&self, rtt: &Rtt, ack_delay_ns: u64) -> u64 {
        let base_ns = Self::probe_base_ns(rtt) + ack_delay_ns;
        base_ns.saturating_mul(1 << self.probes.min(BACKOFF_MAX))
    }

    fn probe_base_ns(rtt: &Rtt) -> u64 {
        let round_trip_ns = rtt.smoothed_ns();
        let most_ns = round_trip_ns + PROBE_SLACK_NS;
        let base_ns = round_trip_ns + (4 * rtt.variation_ns()).clamp(PROBE_SLACK_NS, most_ns);
        let path_ns = rtt.least_ns().min(round_trip_ns).min(ROUND_TRIP_MAX_NS);
        base_ns.min(PROBE_BASE_MAX_NS.max(2 * path_ns))
    }

    /// Whether a path that was asked so often, for so long, is taken for silent.
    ///
    /// RR-PATH-3.
    #[inline]
    pub(super) fn is_silent(&self, rtt: &Rtt) -> bool {
        if self.probes < 2 {
            return false;
        }
        // The first timeout and its doublings.
        let doublings = (1 << self.probes.min(BACKOFF_MAX)) - 1;
        self.probes >= SILENT_PROBES || Self::probe_base_ns(rtt) * doublings >= SILENT_NS
    }

    /// How long nothing but losses must last to mean persistent congestion.
    pub(super) fn persistent_ns(rtt: &Rtt, ack_delay_ns: u64) -> u64 {
        PERSISTENT_PROBES * (Self::probe_base_ns(rtt) + ack_delay_ns)
    }

    /// A probe timeout. Gives how many probes go: one at first, then two, since the one was lost.
    pub(super) fn handle_probe_timeout(&mut self) -> u32 {
        self.probes = self.probes.saturating_add(1);
        self.probes.min(2)
    }

    /// Something was acknowledged.
    #[inline]
    pub(super) fn handle_progress(&mut self) {
        self.probes = 0;
    }

    /// Probe timeouts in a row.
    #[inline]
    pub(super) fn probes(&self) -> u32 {
        self.probes
    }

    /// A packet taken for lost was acknowledged when `highest` was the highest number, and
    /// `age_ns` after it was sent: the path reorders by so much.
    pub(super) fn handle_spurious(&mut self, number: u64, highest: u64, age_ns: u64, rtt: &Rtt) {
        self.spurious += 1;
        self.calm_rounds = 0;
        let distance = highest.saturating_sub(number);
        if distance >= self.packets {
            // Half as much again, so that a growing distance is caught in few steps.
            self.packets = (distance + distance / 2 + 1).min(PACKETS_MAX);
        }
        if age_ns >= self.delay_ns(rtt) {
            self.eighths = (self.eighths + 1).min(EIGHTHS_MAX);
        }
    }

    /// A round trip ended. Thresholds that no reordering needs come down slowly.
    #[inline]
    pub(super) fn handle_round(&mut self) {
        self.calm_rounds += 1;
        if self.calm_rounds >= CALM_ROUNDS {
            self.calm_rounds = 0;
            self.packets = (self.packets - (self.packets / 8).max(1)).max(PACKETS_MIN);
            self.eighths = (self.eighths - 1).max(EIGHTHS_MIN);
        }
    }

    /// Packets that were lost, then acknowledged.
    #[cfg(test)]
    pub(super) fn spurious(&self) -> u64 {
        self.spurious
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(round_trip_ns: u64) -> Rtt {
        let mut rtt = Rtt::new(1_000_000);
        for _ in 0..50 {
            rtt.handle_sample(0, round_trip_ns, 0, true);
        }
        rtt
    }

    /// RR-PKT-8
    #[test]
    fn thresholds_are_those_of_quic_at_first() {
        let loss = Loss::new();
        assert!(loss.is_lost_by_count(7, 10));
        assert!(!loss.is_lost_by_count(8, 10));
        assert_eq!(loss.delay_ns(&measured(80_000)), 90_000);
    }

    #[test]
    fn a_probe_comes_within_two_round_trips_and_the_slack() {
        for round_trip_ns in [10_000, 100_000, 1_000_000, 100_000_000] {
            let mut rtt = measured(round_trip_ns);
            let after_ns = Loss::new().probe_after_ns(&rtt, 25_000);
            assert_eq!(after_ns, round_trip_ns + PROBE_SLACK_NS + 25_000);
            // Variation moves it, within the bound.
            rtt.handle_sample(0, 2 * round_trip_ns, 0, true);
            rtt.handle_sample(0, round_trip_ns, 0, true);
            let after_ns = Loss::new().probe_after_ns(&rtt, 25_000);
            assert!(after_ns <= 2 * rtt.smoothed_ns() + 125_000);
        }
    }

    /// RR-PKT-9
    #[test]
    fn probes_back_off_and_progress_ends_that() {
        let mut loss = Loss::new();
        let rtt = measured(100_000);
        let first_ns = loss.probe_after_ns(&rtt, 0);
        assert_eq!(loss.handle_probe_timeout(), 1);
        assert_eq!(loss.probe_after_ns(&rtt, 0), 2 * first_ns);
        for _ in 0..40 {
            assert_eq!(loss.handle_probe_timeout(), 2);
        }
        assert_eq!(loss.probe_after_ns(&rtt, 0), first_ns << BACKOFF_MAX);
        loss.handle_progress();
        assert_eq!(loss.probe_after_ns(&rtt, 0), first_ns);
    }

    /// A peer that stood still from the first packet on has left no other sample. RR-PATH-3
    #[test]
    fn a_peer_that_stood_still_at_first_puts_no_probe_off_for_longer_than_any_path() {
        const SECOND_NS: u64 = 1_000_000_000;
        let mut rtt = Rtt::new(1_000_000);
        rtt.handle_sample(0, 14 * SECOND_NS, 0, false);
        let mut loss = Loss::new();
        let mut silent_ns = 0;
        while !loss.is_silent(&rtt) {
            silent_ns += loss.probe_after_ns(&rtt, 0);
            loss.handle_probe_timeout();
        }
        assert!(silent_ns <= 6 * SECOND_NS, "{silent_ns} ns");
        // One that is as long as this is not asked before it can have answered.
        let rtt = measured(800_000_000);
        assert!(Loss::new().probe_after_ns(&rtt, 0) > 800_000_000);
    }

    #[test]
    fn reordering_raises_the_thresholds_and_calm_lowers_them() {
        let mut loss = Loss::new();
        let rtt = measured(80_000);
        loss.handle_spurious(10, 20, 85_000, &rtt);
        assert!(!loss.is_lost_by_count(10, 20));
        assert_eq!(loss.delay_ns(&rtt), 90_000);
        loss.handle_spurious(10, 20, 95_000, &rtt);
        assert_eq!(loss.delay_ns(&rtt), 100_000);
        for _ in 0..CALM_ROUNDS * 40 {
            loss.handle_round();
        }
        assert!(loss.is_lost_by_count(7, 10));
        assert_eq!((loss.delay_ns(&rtt), loss.spurious()), (90_000, 2));
    }
}
