//! Loss detection and probe timeouts.
//!
//! As in RFC 9002 (sections 6.1 and 6.2), with microseconds for milliseconds, and with thresholds
//! that adapt to the reordering of the path (as RACK, RFC 8985 section 6.2, does).

use super::rtt::Rtt;

/// Initial packet threshold: a packet is lost if one sent this many later is acknowledged.
const PACKETS_MIN: u64 = 3;
/// Maximum packet threshold.
const PACKETS_MAX: u64 = 4096;
/// Time threshold, in eighths of a round trip: 9/8 at first, 2 at most.
const EIGHTHS_MIN: u64 = 9;
const EIGHTHS_MAX: u64 = 16;
/// Timer granularity, in nanoseconds.
const GRANULARITY_NS: u64 = 1_000;
/// A probe timeout adds at least this and at most a round trip to the round trip: a lost tail
/// should cost no more than two round trips and 200 µs, 25 of these being the peer's delay.
pub(super) const PROBE_SLACK_NS: u64 = 100_000;
/// Limit on the effect of one sample of a peer that was suspended for seconds, unless the path
/// itself is as long.
const PROBE_BASE_MAX_NS: u64 = 500_000_000;
/// Longest plausible round trip: a longer sample is of a suspended peer, even if it is the only
/// one.
const ROUND_TRIP_MAX_NS: u64 = 1_000_000_000;
/// Consecutive probe timeouts that make a path silent: 31 times the first one, some 7 ms on a LAN.
/// Single packets are lost occasionally; five probes in a row are not.
const SILENT_PROBES: u32 = 5;
/// This time without an answer to two probes makes a path silent, too.
const SILENT_NS: u64 = 1_000_000_000;
/// Round trips without reordering after which the thresholds decrease one step.
const CALM_ROUNDS: u32 = 32;
/// Maximum exponent of the back-off.
const BACKOFF_MAX: u32 = 10;
/// Number of probe timeouts of consecutive losses that mean persistent congestion (RFC 9002, 7.6).
const PERSISTENT_PROBES: u64 = 3;

/// Loss detection; see the module.
#[derive(Clone, Debug)]
pub(super) struct Loss {
    packets: u64,
    eighths: u64,
    calm_rounds: u32,
    /// Probe timeouts since the last acknowledgement.
    probes: u32,
    /// Packets declared lost and then acknowledged.
    spurious: u64,
}

impl Loss {
    pub(super) fn new() -> Self {
        Self { packets: PACKETS_MIN, eighths: EIGHTHS_MIN, calm_rounds: 0, probes: 0, spurious: 0 }
    }

    /// Returns whether a number this far below the highest acknowledged one is lost.
    ///
    /// RR-PKT-8.
    #[inline]
    pub(super) fn is_lost_by_count(&self, number: u64, highest: u64) -> bool {
        number + self.packets <= highest
    }

    /// Returns the time threshold: how long after its sending a packet is lost, once a later one is
    /// acknowledged.
    pub(super) fn delay_ns(&self, rtt: &Rtt) -> u64 {
        (rtt.cautious_ns() / 8).saturating_mul(self.eighths).max(GRANULARITY_NS)
    }

    /// Returns the probe timeout after the last packet. `ack_delay_ns` is the peer's, 0 if it was
    /// asked to acknowledge at once.
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

    /// Returns whether a path counts as silent after its consecutive unanswered probes.
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

    /// Returns how long consecutive losses must last to mean persistent congestion.
    pub(super) fn persistent_ns(rtt: &Rtt, ack_delay_ns: u64) -> u64 {
        PERSISTENT_PROBES * (Self::probe_base_ns(rtt) + ack_delay_ns)
    }

    /// Handles a probe timeout. Returns the number of probes to send: one at first, then two, since
    /// that was lost.
    pub(super) fn handle_probe_timeout(&mut self) -> u32 {
        self.probes = self.probes.saturating_add(1);
        self.probes.min(2)
    }

    /// Resets the probe count after an acknowledgement.
    #[inline]
    pub(super) fn handle_progress(&mut self) {
        self.probes = 0;
    }

    /// Returns the number of consecutive probe timeouts.
    #[inline]
    pub(super) fn probes(&self) -> u32 {
        self.probes
    }

    /// Handles a spurious loss: the packet was acknowledged when `highest` was the highest number,
    /// and `age_ns` after it was sent. Raises the thresholds to this reordering.
    pub(super) fn handle_spurious(&mut self, number: u64, highest: u64, age_ns: u64, rtt: &Rtt) {
        self.spurious += 1;
        self.calm_rounds = 0;
        let distance = highest.saturating_sub(number);
        if distance >= self.packets {
            // Half as much again, so that a growing distance is reached in few steps.
            self.packets = (distance + distance / 2 + 1).min(PACKETS_MAX);
        }
        if age_ns >= self.delay_ns(rtt) {
            self.eighths = (self.eighths + 1).min(EIGHTHS_MAX);
        }
    }

    /// Completes a round trip. Thresholds decrease slowly without reordering.
    #[inline]
    pub(super) fn handle_round(&mut self) {
        self.calm_rounds += 1;
        if self.calm_rounds >= CALM_ROUNDS {
            self.calm_rounds = 0;
            self.packets = (self.packets - (self.packets / 8).max(1)).max(PACKETS_MIN);
            self.eighths = (self.eighths - 1).max(EIGHTHS_MIN);
        }
        debug_assert!((PACKETS_MIN..=PACKETS_MAX).contains(&self.packets), "within limits");
        debug_assert!((EIGHTHS_MIN..=EIGHTHS_MAX).contains(&self.eighths), "within limits");
    }

    /// Returns the number of spurious losses.
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
    fn initial_thresholds_equal_those_of_quic() {
        let loss = Loss::new();
        assert!(loss.is_lost_by_count(7, 10));
        assert!(!loss.is_lost_by_count(8, 10));
        assert_eq!(loss.delay_ns(&measured(80_000)), 90_000);
    }

    #[test]
    fn probe_timeout_is_at_most_two_round_trips_and_slack() {
        for round_trip_ns in [10_000, 100_000, 1_000_000, 100_000_000] {
            let mut rtt = measured(round_trip_ns);
            let after_ns = Loss::new().probe_after_ns(&rtt, 25_000);
            assert_eq!(after_ns, round_trip_ns + PROBE_SLACK_NS + 25_000);
            // Variance changes it, within the bound.
            rtt.handle_sample(0, 2 * round_trip_ns, 0, true);
            rtt.handle_sample(0, round_trip_ns, 0, true);
            let after_ns = Loss::new().probe_after_ns(&rtt, 25_000);
            assert!(after_ns <= 2 * rtt.smoothed_ns() + 125_000);
        }
    }

    /// RR-PKT-9
    #[test]
    fn probes_back_off_until_an_ack() {
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

    /// The only sample is of a peer that was suspended from the first packet on.
    /// RR-PATH-3
    #[test]
    fn initial_suspended_peer_sample_does_not_defer_probes() {
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
        // A path as long as this is not probed before it can have answered.
        let rtt = measured(800_000_000);
        assert!(Loss::new().probe_after_ns(&rtt, 0) > 800_000_000);
    }

    #[test]
    fn reordering_raises_thresholds_and_its_absence_lowers_them() {
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
