//! Selects the faster one of two ways by trying both.
//!
//! The measured value is the time that a run of bytes takes: waiting is part of it, as the duration
//! of a single call shows how fast a kernel takes bytes, and not how fast the path drains them.

/// Runs of either way before deciding; the better one counts, since disturbances only slow down.
const RUNS: u32 = 3;
/// Bytes after which both are tried again, since a path can change.
const RETRY_BYTES: u64 = 4 << 30;

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
    /// Bytes since the run, or the decision, began.
    bytes: u64,
    elapsed_ns: u64,
    /// Minimum nanoseconds for the timed bytes of a run, by way.
    best_ns: [u64; 2],
}

impl FasterOfTwo {
    /// Begins with [`Alternative::First`].
    pub(crate) const fn new(run_bytes: RunBytes) -> Self {
        let (runs, bytes, elapsed_ns) = (0, 0, 0);
        Self { run_bytes, way: Alternative::First, runs, bytes, elapsed_ns, best_ns: [u64::MAX; 2] }
    }

    /// Returns the way of the next bytes.
    #[inline]
    pub(crate) fn way(&self) -> Alternative {
        self.way
    }

    /// Returns whether both have been tried.
    #[cfg(test)]
    pub(crate) fn is_decided(&self) -> bool {
        self.runs == 2 * RUNS
    }

    /// Handles `length` bytes that went by `way` in `elapsed_ns`.
    pub(crate) fn handle_sent(&mut self, way: Alternative, length: u64, elapsed_ns: u64) {
        // The last bytes of a run may arrive after the next run began.
        if way != self.way {
            return;
        }
        self.bytes += length;
        if self.runs == 2 * RUNS {
            if self.bytes >= RETRY_BYTES {
                *self = Self::new(self.run_bytes);
            }
            return;
        }
        let RunBytes { settle, timed } = self.run_bytes;
        if self.bytes <= settle {
            return;
        }
        self.elapsed_ns += elapsed_ns;
        if self.bytes >= settle + timed {
            self.end_run();
        }
    }

    fn end_run(&mut self) {
        // Runs differ a little in length: the last bytes may exceed the limit.
        let RunBytes { settle, timed } = self.run_bytes;
        let per_run = u128::from(self.elapsed_ns) * u128::from(timed);
        let cost_ns = (per_run / u128::from(self.bytes - settle)) as u64;
        let best_ns = &mut self.best_ns[self.way as usize];
        *best_ns = cost_ns.min(*best_ns);
        self.runs += 1;
        (self.bytes, self.elapsed_ns) = (0, 0);
        let [first_ns, second_ns] = self.best_ns;
        self.way = match self.runs == 2 * RUNS {
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
    const TRIAL: u64 = 2 * RUNS as u64 * ((RUN_BYTES.settle + RUN_BYTES.timed) / BYTES + 1);

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
            for _ in 1..RETRY_BYTES / BYTES {
                send(&mut faster);
                assert_eq!(faster.way(), winner);
            }
            send(&mut faster);
            assert!(!faster.is_decided(), "both are tried again");
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
