//! Rate of a bulk lane, measured by the arrivals of its chunks.

/// Duration of a sample, in nanoseconds: chunks are often reported in batches.
const SAMPLE_NS: u64 = 2_000_000;
/// Weights of samples: above the known rate a quarter, below it an eighth, since a loop that was
/// busy makes a lane look slow. Of single chunks higher samples have weight one half.
const RISE_SHIFT: u32 = 2;
const FALL_SHIFT: u32 = 3;

/// After each such time without chunks the expected rate of a lane doubles, in nanoseconds.
const HOPE_NS: u64 = 20_000_000;
/// The same for a lane with single chunks only: a failed attempt then costs a whole message.
const LONE_HOPE_NS: u64 = 200_000_000;
/// Minimum length of a single chunk that counts as a rate sample, in bytes.
const LONE_BYTES_MIN: u64 = 16 << 10;

/// Smoothed rate of a lane, in bytes per second.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rate {
    bytes_per_s: u64,
    sample_bytes: u64,
    sample_ns: u64,
    /// When the last chunk arrived.
    last_ns: u64,
    /// Minimum time from a grant on an idle lane to its arrival, and the bytes of that.
    least: Option<(u64, u64)>,
    /// Bytes per second of single chunks, from their grant on: a lower bound of the lane's rate, so
    /// higher samples have more weight. 0: no sample.
    lone_bytes_per_s: u64,
}

impl Rate {
    /// Creates a rate from that of the previous lane.
    pub(crate) fn after(before: &Self) -> Self {
        Self { sample_bytes: 0, sample_ns: 0, ..*before }
    }

    /// Handles the arrival at `now_ns` of `bytes` granted at `granted_ns`. Returns whether the lane
    /// was idle when they were granted.
    pub(crate) fn handle_arrival(&mut self, bytes: u64, granted_ns: u64, now_ns: u64) -> bool {
        let was_idle = granted_ns >= self.last_ns;
        if was_idle {
            // The sample includes the time for the grant to arrive.
            let latency_ns = now_ns.saturating_sub(granted_ns);
            let measured = (latency_ns, bytes);
            self.least = Some(self.least.map_or(measured, |(least, of_bytes)| {
                // Routes change: the minimum expires eventually.
                measured.min((least.saturating_add(least / 64), of_bytes))
            }));
            (self.sample_bytes, self.sample_ns) = (0, 0);
            if bytes >= LONE_BYTES_MIN {
                self.add_lone(bytes, latency_ns);
            }
        } else {
            self.sample_bytes += bytes;
            self.sample_ns += now_ns.saturating_sub(self.last_ns);
        }
        self.last_ns = now_ns;
        if self.sample_ns >= SAMPLE_NS {
            let sample = u128::from(self.sample_bytes) * 1_000_000_000 / u128::from(self.sample_ns);
            self.add(sample.min(u128::from(u64::MAX / 4)) as u64);
            (self.sample_bytes, self.sample_ns) = (0, 0);
        }
        was_idle
    }

    fn add(&mut self, sample: u64) {
        let known = self.bytes_per_s;
        self.bytes_per_s = if known == 0 {
            sample.max(1)
        } else if sample > known {
            known + ((sample - known) >> RISE_SHIFT)
        } else {
            (known - ((known - sample) >> FALL_SHIFT)).max(1)
        };
    }

    fn add_lone(&mut self, bytes: u64, elapsed_ns: u64) {
        let sample = u128::from(bytes) * 1_000_000_000 / u128::from(elapsed_ns.max(1));
        let sample = sample.min(u128::from(u64::MAX / 4)) as u64;
        self.lone_bytes_per_s = match self.lone_bytes_per_s {
            0 => sample.max(1),
            known if sample > known => known / 2 + sample / 2,
            known => (known - ((known - sample) >> FALL_SHIFT)).max(1),
        };
    }

    /// Returns the expected rate at `now_ns`, in bytes per second, of a lane that was never kept
    /// busy; 0: no sample. For the choice among lanes: it is a lower bound.
    pub(crate) fn lone_hoped_for(&self, now_ns: u64) -> u64 {
        let idle_ns = now_ns.saturating_sub(self.last_ns);
        self.lone_bytes_per_s.saturating_mul(1 << (idle_ns / LONE_HOPE_NS).min(16))
    }

    pub(crate) fn is_known(&self) -> bool {
        self.bytes_per_s > 0
    }

    /// Returns the expected rate at `now_ns`, in bytes per second; 0: unknown. Old measurements are
    /// raised: a lane without grants gives no samples.
    pub(crate) fn hoped_for(&self, now_ns: u64) -> u64 {
        let idle_ns = now_ns.saturating_sub(self.last_ns);
        self.bytes_per_s.saturating_mul(1 << (idle_ns / HOPE_NS).min(16))
    }

    /// Returns when the last chunk arrived; 0: none did.
    pub(crate) fn last_ns(&self) -> u64 {
        self.last_ns
    }

    /// Returns the rate in bytes per second; 0: unknown.
    pub(crate) fn bytes_per_s(&self) -> u64 {
        self.bytes_per_s
    }

    /// Returns the minimum time from a grant on an idle lane to the arrival of its chunk; 0:
    /// unknown.
    pub(crate) fn latency_ns(&self) -> u64 {
        self.least.map_or(0, |(latency_ns, _)| latency_ns)
    }

    /// Returns the same minus the time to copy that chunk at `ps_per_byte` picoseconds per byte.
    pub(crate) fn least_wait_ns(&self, ps_per_byte: u64) -> u64 {
        let wait_ns = |(latency_ns, bytes): (u64, u64)| {
            latency_ns.saturating_sub(bytes.saturating_mul(ps_per_byte) / 1000)
        };
        self.least.map_or(0, wait_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_lane_gives_rate_samples_and_idle_lane_does_not() {
        let mut rate = Rate::default();
        let mut now_ns = 1_000_000;
        // 64 KiB each 262 us: 250 MB/s, granted well ahead.
        for _ in 0..200 {
            now_ns += 262_144;
            rate.handle_arrival(65_536, now_ns - 500_000, now_ns);
        }
        assert!((240_000_000..260_000_000).contains(&rate.bytes_per_s()), "{rate:?}");
        let known = rate.bytes_per_s();
        for _ in 0..200 {
            now_ns += 10_000_000;
            rate.handle_arrival(65_536, now_ns - 300_000, now_ns);
        }
        assert_eq!(rate.bytes_per_s(), known, "it waited for grants");
        assert!((300_000..330_000).contains(&rate.latency_ns()), "{rate:?}");
    }

    #[test]
    fn single_chunks_give_a_lower_bound_of_the_rate() {
        let mut rate = Rate::default();
        for number in 1..10 {
            let now_ns = number * 1_000_000;
            rate.handle_arrival(64 << 10, now_ns - 600_000, now_ns);
            rate.handle_arrival(100, now_ns + 90_000, now_ns + 100_000);
        }
        assert_eq!(rate.bytes_per_s(), 0);
        let known = rate.lone_hoped_for(9_200_000);
        assert!((108_000_000..110_000_000).contains(&known), "{known}");
        assert_eq!(rate.lone_hoped_for(9_200_000 + 3 * LONE_HOPE_NS), 8 * known);
        // A sender that paused once barely changes the rate; one that stays slow soon does.
        rate.handle_arrival(64 << 10, 10_000_000, 50_000_000);
        assert!((95_000_000..known).contains(&rate.lone_hoped_for(50_000_000)));
        for number in 6..26 {
            rate.handle_arrival(64 << 10, number * 10_000_000, number * 10_000_000 + 6_000_000);
        }
        assert!(rate.lone_hoped_for(260_000_000) < 20_000_000, "{rate:?}");
    }

    #[test]
    fn slow_lane_is_detected() {
        let mut rate = Rate::default();
        let mut now_ns = 10_000_000;
        for gap_ns in [100_000_u64; 100].into_iter().chain([1_000_000; 100]) {
            now_ns += gap_ns;
            rate.handle_arrival(100_000, now_ns - 5_000_000, now_ns);
        }
        assert!((99_000_000..110_000_000).contains(&rate.bytes_per_s()), "{rate:?}");
    }
}
