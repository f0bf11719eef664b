//! Measures how long data is unacknowledged by a peer's kernel, on this engine's clock.
//!
//! A kernel reports unacknowledged data and the time of the last acknowledgement, but not since
//! when one is due: its timeouts double where packets are lost, and restart where they fail as
//! unreachable. So the start is kept here, from one check of the kernel's figures to the next.

use std::time::Duration;

/// Maximum time that data on a lane may stay unacknowledged while there is another path: a kernel
/// has sent it three times by then.
const SILENCE: Duration = Duration::from_secs(1);
/// The kernel reports the age of an acknowledgement in ticks: one that seems younger than a silence
/// by less than that does not count, in nanoseconds.
const TICK_NS: u64 = 10_000_000;

/// Returns how long an acknowledgement may be due on a lane, given the peer timeout and whether its
/// data may use another path.
pub(crate) fn patience(limit: Duration, has_another: bool) -> Duration {
    if has_another { limit.min(SILENCE) } else { limit }
}

/// Data that the peer's kernel has not acknowledged on a lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Unacked {
    /// None: everything sent is acknowledged.
    Nothing,
    /// Data waits in this kernel, for a closed window of the peer's kernel, or for a rail: no
    /// acknowledgement is due yet.
    Later,
    /// Data, or a keep-alive probe of this kernel, is unacknowledged.
    Answer {
        /// Time since the last acknowledgement.
        since_answer: Duration,
        /// Lower bound of the time since the unacknowledged data was sent.
        since_sent: Duration,
        /// Retransmissions of the oldest unacknowledged bytes; `None`: there are none.
        resent: Option<Resent>,
    },
}

/// What a kernel has sent again, one time after the other, and nothing more was acknowledged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Resent {
    /// How many times, each after twice the time of the one before.
    pub(crate) times: u32,
    /// Bytes of the stream in one of its segments at the most: as `TCP_MAXSEG` counts them, or as
    /// many less as options take; fewer if less is unacknowledged.
    pub(crate) segment_bytes: u32,
}

/// Since when that is due on one lane.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Silence {
    /// Data was sent that may be unacknowledged.
    is_owed: bool,
    /// Since when an acknowledgement is due without any received.
    since_ns: Option<u64>,
}

impl Silence {
    /// Nothing was sent.
    pub(crate) const NONE: Self = Self { is_owed: false, since_ns: None };

    /// Data was sent, so that checks are necessary.
    pub(crate) const OWED: Self = Self { is_owed: true, since_ns: None };

    /// Notes that data is sent.
    pub(crate) fn expect_answer(&mut self) {
        self.is_owed = true;
    }

    /// Returns whether an acknowledgement may be due.
    pub(crate) fn is_owed(&self) -> bool {
        self.is_owed
    }

    /// Returns how long an acknowledgement has been due, as of the last check.
    pub(crate) fn lasts(&self, now_ns: u64) -> Option<Duration> {
        self.since_ns.map(|since_ns| Duration::from_nanos(now_ns.saturating_sub(since_ns)))
    }

    /// Notes the kernel's current state; returns how long an acknowledgement has been due, `None`
    /// when none is. Time before the first check counts as far as it is known, and up to half of
    /// `limit`.
    pub(crate) fn observe(
        &mut self,
        now_ns: u64,
        owed: Unacked,
        limit: Duration,
    ) -> Option<Duration> {
        self.is_owed = owed != Unacked::Nothing;
        let Unacked::Answer { since_answer, since_sent, .. } = owed else {
            self.since_ns = None;
            return self.is_owed.then_some(Duration::ZERO);
        };
        let before = |time: Duration| now_ns.saturating_sub(time.as_nanos() as u64);
        let since_ns = match self.since_ns {
            Some(since_ns) if before(since_answer) <= since_ns + TICK_NS => since_ns,
            _ => before(since_answer.min(since_sent).min(limit / 2)),
        };
        self.since_ns = Some(since_ns);
        self.lasts(now_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(20);
    const SECOND_NS: u64 = 1_000_000_000;

    fn answer(answered_ms: u64, asked_ms: u64) -> Unacked {
        Unacked::Answer {
            since_answer: Duration::from_millis(answered_ms),
            since_sent: Duration::from_millis(asked_ms),
            resent: None,
        }
    }

    /// RR-END-2
    #[test]
    fn kernel_timeout_restart_does_not_shorten_a_silence() {
        let mut silence = Silence::OWED;
        let start_ns = 100 * SECOND_NS;
        assert_eq!(
            silence.observe(start_ns, answer(3_000, 100), LIMIT),
            Some(Duration::from_millis(100))
        );
        // Unreachable transmissions are repeated every 3 s, forever.
        for second in 1..60 {
            let owed = answer(3_000 + second * 1000, second % 3 * 1000);
            let silent = silence.observe(start_ns + second * SECOND_NS, owed, LIMIT);
            assert_eq!(silent, Some(Duration::from_millis(100 + second * 1000)));
        }
        // An acknowledgement ends it, though other data is unacknowledged already.
        let silent = silence.observe(start_ns + 60 * SECOND_NS, answer(500, 20), LIMIT);
        assert_eq!(silent, Some(Duration::from_millis(20)));
        assert!(silence.is_owed());
    }

    #[test]
    fn kernel_ticks_are_no_acknowledgements() {
        let mut silence = Silence::OWED;
        silence.observe(50 * SECOND_NS, answer(500, 500), LIMIT);
        for (step, jitter_ms) in (1..20).zip([4, 0, 3].into_iter().cycle()) {
            let owed = answer(500 + step * 100 - jitter_ms, 0);
            let silent = silence.observe(50 * SECOND_NS + step * 100_000_000, owed, LIMIT);
            assert_eq!(silent, Some(Duration::from_millis(500 + step * 100)));
        }
    }

    #[test]
    fn time_before_the_first_check_counts_at_most_half() {
        let mut silence = Silence::NONE;
        let silent = silence.observe(9_000 * SECOND_NS, answer(3_600_000, 3_600_000), LIMIT);
        assert_eq!(silent, Some(LIMIT / 2));
    }

    /// A peer that computes with a closed window answers window probes, and has time.
    #[test]
    fn closed_window_is_no_silence() {
        let mut silence = Silence::OWED;
        for second in 1..500 {
            let now_ns = second * SECOND_NS;
            // A probe is outstanding; it was acknowledged; the next ones come at growing intervals.
            assert_eq!(silence.observe(now_ns, answer(60_000, 0), LIMIT), Some(Duration::ZERO));
            assert_eq!(
                silence.observe(now_ns + 500_000, Unacked::Later, LIMIT),
                Some(Duration::ZERO)
            );
            assert!(silence.is_owed());
        }
        assert_eq!(silence.observe(600 * SECOND_NS, Unacked::Nothing, LIMIT), None);
        assert!(!silence.is_owed());
    }
}
