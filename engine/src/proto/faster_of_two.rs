//! Selects the faster one of two ways by trying both.
//!
//! The measured value is the time that a run of bytes takes: waiting is part of it, as the duration
//! of a single call shows how fast a kernel takes bytes, and not how fast the path drains them.

/// Runs of either way before deciding; the better one counts, since disturbances only slow down.
const RUNS: u32 = 3;
/// Bytes after which both are tried again, since a path can change.
const RETRY_BYTES: u64 = 4 << 30;
/// They are tried again, too, where a run costs so many times what the best one of the other way
/// did.
const WORSE: u64 = 2;

/// The lengths of runs, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunBytes {
    /// At the start of a run, not counted: the path still holds those of the other way.
    pub(crate) settle: u64,
    /// Timed.
    pub(crate) timed: u64,
}

/// One of the two ways.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Alternative {
    First,
    Second,
}

impl Alternative {
    fn other(self) -> Self {
        match self {
            Self::First => Self::Second,
            Self::Second => Self::First,
        }
    }
}

/// See the module. Pure: durations are arguments.
#[derive(Debug)]
pub(crate) struct FasterOfTwo {
    run_bytes: RunBytes,
    way: Alternative,
    /// Completed runs, both ways together; `2 * RUNS`: decided.
    runs: u32,
    /// Bytes of the run that are not counted, and those that are timed.
    settled: u64,
    timed: u64,
    elapsed_ns: u64,
    /// Bytes since the decision.
    decided: u64,
    /// Minimum nanoseconds for the timed bytes of a run, by way.
    best_ns: [u64; 2],
}

impl FasterOfTwo {
    /// Begins with [`Alternative::First`].
    pub(crate) const fn new(run_bytes: RunBytes) -> Self {
        Self {
            run_bytes,
            way: Alternative::First,
            runs: 0,
            settled: 0,
            timed: 0,
            elapsed_ns: 0,
            decided: 0,
            best_ns: [u64::MAX; 2],
        }
    }

    /// Returns the way of the next bytes.
    #[inline]
    pub(crate) fn way(&self) -> Alternative {
        self.way
    }

    /// Returns whether both have been tried.
    pub(crate) fn is_decided(&self) -> bool {
        self.runs == 2 * RUNS
    }

    /// Handles `length` bytes that went by `way` in `elapsed_ns`.
    pub(crate) fn handle_sent(&mut self, way: Alternative, length: u64, elapsed_ns: u64) {
        // The last bytes of a run may arrive after the next run began.
        if way != self.way {
            return;
        }
        if self.settled < self.run_bytes.settle {
            self.settled += length;
            return;
        }
        self.timed += length;
        self.elapsed_ns = self.elapsed_ns.saturating_add(elapsed_ns);
        if self.timed >= self.run_bytes.timed {
            self.end_run();
        }
    }

    fn end_run(&mut self) {
        // Runs differ a little in length: the last bytes may exceed the limit.
        let per_run = u128::from(self.elapsed_ns) * u128::from(self.run_bytes.timed);
        let cost_ns = u64::try_from(per_run / u128::from(self.timed)).unwrap_or(u64::MAX);
        let timed = self.timed;
        (self.settled, self.timed, self.elapsed_ns) = (0, 0, 0);
        if self.is_decided() {
            self.decided += timed;
            let other_ns = self.best_ns[self.way.other() as usize];
            if self.decided >= RETRY_BYTES || cost_ns > other_ns.saturating_mul(WORSE) {
                *self = Self::new(self.run_bytes);
            }
            return;
        }
        let best_ns = &mut self.best_ns[self.way as usize];
        *best_ns = cost_ns.min(*best_ns);
        self.runs += 1;
        let [first_ns, second_ns] = self.best_ns;
        self.way = match self.is_decided() {
            true if second_ns < first_ns => Alternative::Second,
            true => Alternative::First,
            false => self.way.other(),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: u64 = 1 << 17;
    const RUN_BYTES: RunBytes = RunBytes { settle: 1 << 20, timed: 4 << 20 };
    /// Transfers until the decision: settling and timed bytes of all runs, rounded up.
    const TRIAL: u64 = 2 * RUNS as u64 * ((RUN_BYTES.settle + RUN_BYTES.timed) / BYTES + 2);

    #[test]
    fn faster_way_is_kept_and_both_are_tried_again_later() {
        for (first_ns, second_ns, winner) in
            [(50, 100, Alternative::First), (100, 50, Alternative::Second)]
        {
            let mut faster = FasterOfTwo::new(RUN_BYTES);
            let (mut last_loser, mut count) = (0, 0);
            let mut send = |faster: &mut FasterOfTwo| {
                let way = faster.way();
                if way != winner {
                    last_loser = count;
                }
                count += 1;
                let cost = if way == Alternative::First { first_ns } else { second_ns };
                faster.handle_sent(way, BYTES, cost * 1000);
            };
            while !faster.is_decided() {
                send(&mut faster);
            }
            // Those that settle do not count.
            let mut sent = 0;
            while faster.is_decided() {
                assert_eq!(faster.way(), winner);
                send(&mut faster);
                sent += BYTES;
            }
            assert!((RETRY_BYTES..2 * RETRY_BYTES).contains(&sent), "both are tried again");
            assert!(last_loser < TRIAL, "{last_loser}");
        }
    }

    #[test]
    fn single_disturbed_run_does_not_decide() {
        let mut faster = FasterOfTwo::new(RUN_BYTES);
        for number in 0..TRIAL {
            let way = faster.way();
            let base = if way == Alternative::First { 30_000 } else { 40_000 };
            // A descheduling in the first run of the faster one.
            faster.handle_sent(way, BYTES, if number < 20 { base + 4_000_000 } else { base });
        }
        assert_eq!(faster.way(), Alternative::First);
    }

    #[test]
    fn both_are_tried_again_where_the_faster_one_becomes_much_slower() {
        let mut faster = FasterOfTwo::new(RUN_BYTES);
        for _ in 0..TRIAL {
            let cost = if faster.way() == Alternative::First { 50 } else { 60 };
            faster.handle_sent(faster.way(), BYTES, cost);
        }
        assert!(faster.is_decided());
        for _ in 0..TRIAL {
            faster.handle_sent(Alternative::First, BYTES, 110);
            assert!(faster.is_decided(), "not twice as slow as the other one");
        }
        for _ in 0..2 * TRIAL {
            let cost = if faster.way() == Alternative::First { 130 } else { 60 };
            faster.handle_sent(faster.way(), BYTES, cost);
        }
        assert_eq!((faster.way(), faster.is_decided()), (Alternative::Second, true));
    }

    #[test]
    fn equal_ways_stay_with_the_first() {
        let mut faster = FasterOfTwo::new(RUN_BYTES);
        for _ in 0..TRIAL {
            faster.handle_sent(faster.way(), BYTES, 1000);
        }
        assert!(faster.is_decided());
        assert_eq!(faster.way(), Alternative::First);
    }

    #[test]
    fn bytes_of_the_way_before_do_not_count() {
        let mut faster = FasterOfTwo::new(RUN_BYTES);
        for _ in 0..TRIAL {
            faster.handle_sent(faster.way().other(), BYTES, 1);
        }
        assert_eq!((faster.way(), faster.is_decided()), (Alternative::First, false));
    }
}
