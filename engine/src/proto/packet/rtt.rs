//! Round-trip times of a path, in nanoseconds.

/// Half the time for which the least RTT is remembered: a path that got longer is believed then.
const EPOCH_NS: u64 = 5_000_000_000;
/// No sample is below this, whatever delay the peer states.
const SAMPLE_MIN_NS: u64 = 1_000;

/// Smoothed as RFC 6298 says, with the peer's acknowledgement delay taken off each sample.
#[derive(Clone, Debug)]
pub(super) struct Rtt {
    smoothed_ns: u64,
    variation_ns: u64,
    latest_ns: u64,
    /// Least sample of this epoch and of the one before, of short datagrams and of long ones: on a
    /// slow link the time that a long one takes is not to pass for a queue.
    least_ns: [[u64; 2]; 2],
    epoch_end_ns: u64,
    measured: bool,
    /// Of short datagrams only, whose time on a link is none, smoothed for comparison with other
    /// paths; 0: there was none.
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

    /// A packet, `long` or not, was sent, and `raw_ns` later came an acknowledgement that had
    /// waited for `ack_delay_ns`. Gives how much longer that took than the least of its kind, and
    /// whether an epoch ended.
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
            // Samples of a path that stands by are few: one that became short is believed sooner.
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

    /// Long datagrams have another length from now on.
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

    /// The greater of the smoothed and the latest: what loss detection goes by.
    pub(super) fn cautious_ns(&self) -> u64 {
        self.smoothed_ns.max(self.latest_ns)
    }

    /// What short datagrams take lately; 0: none was answered.
    pub(super) fn short_ns(&self) -> u64 {
        self.short_ns
    }

    /// Whether anything was measured.
    pub(super) fn is_measured(&self) -> bool {
        self.measured
    }

    /// The least of the last 5 to 10 s: the path without queues.
    pub(super) fn least_ns(&self) -> u64 {
        let least_ns = self.least_ns.as_flattened().iter().copied().min();
        // Of long datagrams all may be forgotten, and no short one has come since.
        least_ns.filter(|&least_ns| least_ns < u64::MAX).unwrap_or(self.smoothed_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_sample_replaces_the_guess_and_delay_is_taken_off() {
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
    fn a_delay_longer_than_the_sample_leaves_a_microsecond() {
        let mut rtt = Rtt::new(1_000_000);
        rtt.handle_sample(0, 5_000, 16_000_000, false);
        assert_eq!(rtt.least_ns(), 1_000);
    }

    #[test]
    fn short_datagrams_have_an_average_of_their_own() {
        let mut rtt = Rtt::new(1_000_000);
        rtt.handle_sample(0, 500_000, 0, true);
        assert_eq!(rtt.short_ns(), 0);
        for (sample_ns, expected_ns) in [(100_000, 100_000), (200_000, 125_000), (25_000, 75_000)] {
            rtt.handle_sample(1, sample_ns, 0, false);
            assert_eq!(rtt.short_ns(), expected_ns);
        }
    }

    #[test]
    fn what_was_forgotten_is_no_least() {
        let mut rtt = Rtt::new(1_000_000);
        rtt.handle_sample(0, 100_000, 0, true);
        rtt.forget_long();
        assert_eq!(rtt.least_ns(), 100_000);
    }

    #[test]
    fn a_longer_path_is_believed_after_two_epochs() {
        let mut rtt = Rtt::new(1_000_000);
        rtt.handle_sample(0, 100_000, 0, false);
        assert!(rtt.handle_sample(EPOCH_NS, 500_000, 0, false).1);
        assert_eq!(rtt.least_ns(), 100_000);
        assert!(rtt.handle_sample(2 * EPOCH_NS, 500_000, 0, false).1);
        assert_eq!(rtt.least_ns(), 500_000);
    }
}
