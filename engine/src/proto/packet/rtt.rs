//! Round-trip times of a path, in nanoseconds.

/// Half the time for which the minimum RTT is remembered: a longer path is accepted then.
const EPOCH_NS: u64 = 5_000_000_000;
/// Minimum sample, whatever delay the peer reports.
const SAMPLE_MIN_NS: u64 = 1_000;

/// Smoothed as in RFC 6298, with the peer's acknowledgement delay subtracted from each sample.
#[derive(Clone, Debug)]
pub(super) struct Rtt {
    smoothed_ns: u64,
    variation_ns: u64,
    latest_ns: u64,
    /// Minimum of this epoch and of the previous one, of short datagrams and of long ones: on a
    /// slow link the transmission time of a long one must not count as a queue.
    least_ns: [[u64; 2]; 2],
    epoch_end_ns: u64,
    measured: bool,
    /// Of short datagrams only, whose transmission time is negligible, smoothed for comparison with
    /// other paths; 0: no sample.
    short_ns: u64,
}

impl Rtt {
    pub(super) fn new(initial_ns: u64) -> Self {
        Self {
            smoothed_ns: initial_ns,
            variation_ns: initial_ns / 2,
            latest_ns: initial_ns,
            least_ns: [[u64::MAX; 2]; 2],
            epoch_end_ns: 0,
            measured: false,
            short_ns: 0,
        }
    }

    /// Handles a sample: a packet, `long` or not, was acknowledged `raw_ns` after it was sent, by
    /// an acknowledgement delayed for `ack_delay_ns`. Returns the excess over the minimum of its
    /// kind, and whether an epoch ended.
    #[inline]
    pub(super) fn handle_sample(
        &mut self,
        now_ns: u64,
        raw_ns: u64,
        ack_delay_ns: u64,
        long: bool,
    ) -> (u64, bool) {
        let sample_ns = raw_ns.saturating_sub(ack_delay_ns).max(SAMPLE_MIN_NS);
        self.latest_ns = sample_ns;
        if self.measured {
            let off_ns = self.smoothed_ns.abs_diff(sample_ns);
            self.variation_ns = (3 * self.variation_ns + off_ns) / 4;
            self.smoothed_ns = (7 * self.smoothed_ns + sample_ns) / 8;
        } else {
            self.measured = true;
            self.smoothed_ns = sample_ns;
            self.variation_ns = sample_ns / 2;
            self.epoch_end_ns = now_ns + EPOCH_NS;
        }
        if !long {
            // Standby paths have few samples: a shorter one is accepted sooner.
            self.short_ns = match self.short_ns {
                0 => sample_ns,
                before_ns if sample_ns < before_ns => (before_ns + sample_ns) / 2,
                before_ns => (3 * before_ns + sample_ns) / 4,
            };
        }
        let ended = now_ns >= self.epoch_end_ns;
        if ended {
            self.least_ns = self.least_ns.map(|[this, _]| [u64::MAX, this]);
            self.epoch_end_ns = now_ns + EPOCH_NS;
        }
        let least_ns = &mut self.least_ns[usize::from(long)];
        least_ns[0] = least_ns[0].min(sample_ns);
        (sample_ns - least_ns[0].min(least_ns[1]), ended)
    }

    /// Drops the minima of long datagrams, since their length changes.
    pub(super) fn forget_long(&mut self) {
        self.least_ns[1] = [u64::MAX; 2];
    }

    #[inline]
    pub(super) fn smoothed_ns(&self) -> u64 {
        self.smoothed_ns
    }

    pub(super) fn variation_ns(&self) -> u64 {
        self.variation_ns
    }

    /// Returns the maximum of the smoothed and the latest sample, for loss detection.
    pub(super) fn cautious_ns(&self) -> u64 {
        self.smoothed_ns.max(self.latest_ns)
    }

    /// Returns the smoothed round trip of short datagrams; 0: no sample.
    pub(super) fn short_ns(&self) -> u64 {
        self.short_ns
    }

    /// Returns whether there is any sample.
    pub(super) fn is_measured(&self) -> bool {
        self.measured
    }

    /// Returns the minimum of the last 5 to 10 s: the path without queues.
    pub(super) fn least_ns(&self) -> u64 {
        let least_ns = self.least_ns.as_flattened().iter().copied().min();
        // All samples of long datagrams may have expired, without a new short one.
        least_ns.filter(|&least_ns| least_ns < u64::MAX).unwrap_or(self.smoothed_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_sample_replaces_the_initial_rtt_minus_ack_delay() {
        let mut rtt = Rtt::new(1_000_000);
        assert_eq!(rtt.handle_sample(0, 125_000, 25_000, false), (0, false));
        assert_eq!((rtt.smoothed_ns(), rtt.variation_ns()), (100_000, 50_000));
        assert_eq!(rtt.handle_sample(1, 180_000, 0, false), (80_000, false));
        assert_eq!(rtt.handle_sample(1, 180_000, 0, true), (0, false));
        rtt = Rtt::new(1_000_000);
        rtt.handle_sample(0, 100_000, 0, false);
        rtt.handle_sample(1, 180_000, 0, false);
        assert_eq!((rtt.smoothed_ns(), rtt.variation_ns()), (110_000, 57_500));
        assert_eq!((rtt.cautious_ns(), rtt.least_ns()), (180_000, 100_000));
    }

    #[test]
    fn ack_delay_above_the_sample_leaves_a_microsecond() {
        let mut rtt = Rtt::new(1_000_000);
        rtt.handle_sample(0, 5_000, 16_000_000, false);
        assert_eq!(rtt.least_ns(), 1_000);
    }

    #[test]
    fn short_datagrams_have_a_separate_average() {
        let mut rtt = Rtt::new(1_000_000);
        rtt.handle_sample(0, 500_000, 0, true);
        assert_eq!(rtt.short_ns(), 0);
        for (sample_ns, expected_ns) in [(100_000, 100_000), (200_000, 125_000), (25_000, 75_000)] {
            rtt.handle_sample(1, sample_ns, 0, false);
            assert_eq!(rtt.short_ns(), expected_ns);
        }
    }

    #[test]
    fn expired_samples_are_not_the_minimum() {
        let mut rtt = Rtt::new(1_000_000);
        rtt.handle_sample(0, 100_000, 0, true);
        rtt.forget_long();
        assert_eq!(rtt.least_ns(), 100_000);
    }

    #[test]
    fn longer_path_is_accepted_after_two_epochs() {
        let mut rtt = Rtt::new(1_000_000);
        rtt.handle_sample(0, 100_000, 0, false);
        assert!(rtt.handle_sample(EPOCH_NS, 500_000, 0, false).1);
        assert_eq!(rtt.least_ns(), 100_000);
        assert!(rtt.handle_sample(2 * EPOCH_NS, 500_000, 0, false).1);
        assert_eq!(rtt.least_ns(), 500_000);
    }
}
