//! Since when a peer's kernel owes an answer, by the clock of this engine.
//!
//! A kernel says what is unanswered and when the last answer came, but not since when one is due:
//! its timeouts double where packets vanish, and start over where they fail as unreachable. So that
//! is remembered here, from one look at the kernel's figures to the next.

use std::time::Duration;

/// So long nothing that went on a lane may stay unacknowledged while there is another path: a
/// kernel has sent it three times by then.
const SILENCE: Duration = Duration::from_secs(1);
/// The kernel tells the age of an answer in its ticks: one that seems younger than a silence by
/// less than that is none, in nanoseconds.
const TICK_NS: u64 = 10_000_000;

/// How long an answer may be due on a lane, given the peer timeout and whether what it carries may
/// go by another path.
pub(crate) fn patience(limit: Duration, has_another: bool) -> Duration {
    if has_another { limit.min(SILENCE) } else { limit }
}

/// What the peer's kernel owes on a lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Owed {
    /// Nothing: all that was sent is acknowledged.
    Nothing,
    /// Bytes wait in this kernel, behind a window that the peer's kernel says is shut, or for a
    /// rail: the time of an answer has not begun.
    Later,
    /// An answer to bytes, or to questions of this kernel.
    Answer {
        /// Time since the last one.
        heard: Duration,
        /// What is unanswered has been out for at least so long.
        asked: Duration,
    },
}

/// What a kernel has sent again, one time after the other, and nothing more was acknowledged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Resent {
    /// How many times, each after twice the time of the one before.
    pub(crate) times: u32,
    /// Bytes of the stream in one of its segments at the most: as `TCP_MAXSEG` counts them, or as
    /// many less as options take.
    pub(crate) segment_bytes: u32,
}

/// Since when that is due on one lane.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Silence {
    /// Something was sent that may not be answered.
    is_owed: bool,
    /// Since when an answer is due and none came.
    since_ns: Option<u64>,
}

impl Silence {
    /// Nothing was sent.
    pub(crate) const NONE: Self = Self { is_owed: false, since_ns: None };

    /// Something was sent, so that looks are worth their while.
    pub(crate) const OWED: Self = Self { is_owed: true, since_ns: None };

    /// Something is sent.
    pub(crate) fn expect_answer(&mut self) {
        self.is_owed = true;
    }

    /// Whether an answer may be due.
    pub(crate) fn is_owed(&self) -> bool {
        self.is_owed
    }

    /// How long an answer has been due, as far as that was looked at.
    pub(crate) fn lasts(&self, now_ns: u64) -> Option<Duration> {
        self.since_ns.map(|since_ns| Duration::from_nanos(now_ns.saturating_sub(since_ns)))
    }

    /// Takes note of what is owed now; returns how long an answer has been due, `None` when none
    /// is. What passed before the first look counts as far as it is known, and up to half of
    /// `limit`.
    pub(crate) fn observe(&mut self, now_ns: u64, owed: Owed, limit: Duration) -> Option<Duration> {
        self.is_owed = owed != Owed::Nothing;
        let Owed::Answer { heard, asked } = owed else {
            self.since_ns = None;
            return self.is_owed.then_some(Duration::ZERO);
        };
        let before = |time: Duration| now_ns.saturating_sub(time.as_nanos() as u64);
        let since_ns = match self.since_ns {
            Some(since_ns) if before(heard) <= since_ns + TICK_NS => since_ns,
            _ => before(heard.min(asked).min(limit / 2)),
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

    fn answer(heard_ms: u64, asked_ms: u64) -> Owed {
        Owed::Answer {
            heard: Duration::from_millis(heard_ms),
            asked: Duration::from_millis(asked_ms),
        }
    }

    /// RR-END-2
    #[test]
    fn a_kernel_that_starts_over_does_not_shorten_a_silence() {
        let mut silence = Silence::OWED;
        let start_ns = 100 * SECOND_NS;
        assert_eq!(
            silence.observe(start_ns, answer(3_000, 100), LIMIT),
            Some(Duration::from_millis(100))
        );
        // What fails as unreachable goes again each 3 s, for ever.
        for second in 1..60 {
            let owed = answer(3_000 + second * 1000, second % 3 * 1000);
            let silent = silence.observe(start_ns + second * SECOND_NS, owed, LIMIT);
            assert_eq!(silent, Some(Duration::from_millis(100 + second * 1000)));
        }
        // An answer ends it, though something else is unanswered already.
        let silent = silence.observe(start_ns + 60 * SECOND_NS, answer(500, 20), LIMIT);
        assert_eq!(silent, Some(Duration::from_millis(20)));
        assert!(silence.is_owed());
    }

    #[test]
    fn ticks_of_the_kernel_are_no_answers() {
        let mut silence = Silence::OWED;
        silence.observe(50 * SECOND_NS, answer(500, 500), LIMIT);
        for (step, jitter_ms) in (1..20).zip([4, 0, 3].into_iter().cycle()) {
            let owed = answer(500 + step * 100 - jitter_ms, 0);
            let silent = silence.observe(50 * SECOND_NS + step * 100_000_000, owed, LIMIT);
            assert_eq!(silent, Some(Duration::from_millis(500 + step * 100)));
        }
    }

    #[test]
    fn what_passed_before_the_first_look_is_not_all_of_the_limit() {
        let mut silence = Silence::NONE;
        let silent = silence.observe(9_000 * SECOND_NS, answer(3_600_000, 3_600_000), LIMIT);
        assert_eq!(silent, Some(LIMIT / 2));
    }

    /// A peer that computes behind a window that it shut answers questions, and is owed time.
    #[test]
    fn a_shut_window_is_no_silence() {
        let mut silence = Silence::OWED;
        for second in 1..500 {
            let now_ns = second * SECOND_NS;
            // A question is on its way; it was answered; the next one comes later and later.
            assert_eq!(silence.observe(now_ns, answer(60_000, 0), LIMIT), Some(Duration::ZERO));
            assert_eq!(silence.observe(now_ns + 500_000, Owed::Later, LIMIT), Some(Duration::ZERO));
            assert!(silence.is_owed());
        }
        assert_eq!(silence.observe(600 * SECOND_NS, Owed::Nothing, LIMIT), None);
        assert!(!silence.is_owed());
    }
}
