//! Pacing: a token bucket in bytes, filled at the rate of the congestion window.

/// Time whose bytes may be sent at once: an engine loop's turn, or a timer's slack.
const BURST_NS: u64 = 20_000;
/// Datagrams that may be sent at once.
const BURST_PACKETS: u64 = 16;

/// Pacer; see the module.
#[derive(Clone, Debug)]
pub(super) struct Pacer {
    /// Bytes that may be sent now.
    tokens: u64,
    /// Time up to which the bucket was filled.
    filled_ns: u64,
    /// Bytes per second.
    rate: u64,
    burst: u64,
    /// A wait was requested since [`Self::rest`]: the rate has to be up to date.
    is_in_use: bool,
    /// Until when payload is held back.
    holds_until_ns: Option<u64>,
}

impl Pacer {
    pub(super) fn new() -> Self {
        Self {
            tokens: u64::MAX,
            filled_ns: 0,
            rate: u64::MAX,
            burst: u64::MAX,
            is_in_use: false,
            holds_until_ns: None,
        }
    }

    /// Notes that nothing is in flight: the rate is not needed until the next wait.
    #[inline]
    pub(super) fn rest(&mut self) {
        self.is_in_use = false;
    }

    /// Returns whether [`Self::set_rate`] has to be called at each change.
    #[inline]
    pub(super) fn is_in_use(&self) -> bool {
        self.is_in_use
    }

    /// Sets the rate to a window in bytes per round trip, and fills the bucket.
    pub(super) fn set_rate(&mut self, now_ns: u64, window: u64, rtt_ns: u64, datagram: u64) {
        self.fill(now_ns);
        self.rate = per_second(window, rtt_ns.max(1)).max(1);
        // The window must exceed that for a burst: below one datagram, each is spaced out.
        let burst = (BURST_PACKETS * datagram).max(bytes_in(self.rate, BURST_NS));
        self.burst = burst.min(window.max(datagram));
        self.tokens = self.tokens.min(self.burst);
        debug_assert!(self.burst > 0 && self.rate > 0, "something may be sent some time");
    }

    fn fill(&mut self, now_ns: u64) {
        let passed_ns = now_ns.saturating_sub(self.filled_ns);
        let bytes = bytes_in(self.rate, passed_ns);
        if self.tokens.saturating_add(bytes) >= self.burst {
            self.tokens = self.burst;
            self.filled_ns = self.filled_ns.max(now_ns);
        } else if bytes > 0 {
            self.tokens += bytes;
            // Only time that became whole bytes is consumed.
            self.filled_ns += time_of(self.rate, bytes);
            debug_assert!(self.filled_ns <= now_ns, "only time that has passed is consumed");
        }
        debug_assert!(self.tokens <= self.burst, "a bucket holds a burst");
    }

    /// Holds payload back until then.
    pub(super) fn hold_until(&mut self, at_ns: u64) {
        self.holds_until_ns = Some(at_ns);
    }

    /// Ends holding payload back: whether it may be sent is found out again.
    #[inline]
    pub(super) fn release(&mut self) {
        self.holds_until_ns = None;
    }

    /// Returns until when payload is held back.
    #[inline]
    pub(super) fn holds_until_ns(&self) -> Option<u64> {
        self.holds_until_ns
    }

    /// Returns when `bytes` may be sent, and holds payload back until then: `None` is now. Set the
    /// rate before, unless it is in use.
    pub(super) fn wait_until_ns(&mut self, now_ns: u64, bytes: u64) -> Option<u64> {
        self.is_in_use = true;
        self.fill(now_ns);
        let bytes = bytes.min(self.burst);
        let missing = bytes.saturating_sub(self.tokens);
        let at_ns = || self.filled_ns + time_of(self.rate, missing) + 1;
        self.holds_until_ns = (missing > 0).then(at_ns);
        self.holds_until_ns
    }

    /// Takes `bytes` from the bucket.
    #[inline]
    pub(super) fn spend(&mut self, bytes: u64) {
        self.tokens = self.tokens.saturating_sub(bytes);
    }
}

fn per_second(window: u64, rtt_ns: u64) -> u64 {
    scale(window, 1_000_000_000, rtt_ns)
}

fn bytes_in(rate: u64, time_ns: u64) -> u64 {
    scale(rate, time_ns, 1_000_000_000)
}

fn time_of(rate: u64, bytes: u64) -> u64 {
    scale(bytes, 1_000_000_000, rate)
}

/// Returns `value * by / of`. Products of more than 64 bits are rare, and their division is slow.
fn scale(value: u64, by: u64, of: u64) -> u64 {
    match value.checked_mul(by) {
        Some(product) => product / of,
        None => {
            let quotient = u128::from(value) * u128::from(by) / u128::from(of);
            u64::try_from(quotient).unwrap_or(u64::MAX)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_paced_after_a_burst() {
        let mut pacer = Pacer::new();
        // 1 MB per 1 ms: 1 GB/s, of which 20 µs are 20 kB.
        pacer.set_rate(0, 1_000_000, 1_000_000, 1_000);
        let (mut now_ns, mut sent) = (0, 0);
        while sent < 1_000_000 {
            match pacer.wait_until_ns(now_ns, 1_000) {
                None => {
                    pacer.spend(1_000);
                    sent += 1_000;
                }
                Some(at_ns) => {
                    assert!(at_ns > now_ns);
                    now_ns = at_ns;
                }
            }
        }
        assert!((970_000..=990_000).contains(&now_ns), "{now_ns}");
    }

    #[test]
    fn window_below_one_datagram_spaces_datagrams_out() {
        let mut pacer = Pacer::new();
        pacer.set_rate(0, 100, 1_000_000, 1_000);
        let first_ns = pacer.wait_until_ns(0, 1_000);
        let first_ns = first_ns.unwrap_or(0);
        assert!(pacer.wait_until_ns(first_ns, 1_000).is_none());
        pacer.spend(1_000);
        let next_ns = pacer.wait_until_ns(first_ns, 1_000).unwrap();
        assert!((9_990_000..=10_010_000).contains(&(next_ns - first_ns)));
    }

    #[test]
    fn small_time_steps_lose_no_bytes() {
        let mut pacer = Pacer::new();
        pacer.set_rate(0, 16_000, 1_000_000_000, 1_000);
        pacer.spend(u64::MAX);
        let mut went = 0;
        for now_ns in (0..1_000_000_000).step_by(10_007) {
            if pacer.wait_until_ns(now_ns, 1_000).is_none() {
                pacer.spend(1_000);
                went += 1;
            }
        }
        assert!((15..=16).contains(&went), "{went}");
    }
}
