//! Bandwidth probing: which of several equally near paths delivers long messages faster.
//!
//! The rate of a path shows only under load: round trips of single packets do not reveal it, and
//! neither do reported NIC speeds, which virtual NICs invent. So, while a session sends full
//! datagrams, another path carries them for some milliseconds. It stays in use if it delivered more
//! in that time, by a quarter, or by a sixteenth in three trials in a row: then a stream is faster,
//! or awaited replies arrive sooner. After any other trial comes a pause that doubles: a slower
//! path soon costs less than a hundredth of the time.

use crate::proto::packet::Delivered;

/// Time between two readings, in nanoseconds.
const READING_NS: u64 = 8_000_000;
/// A longer interval includes idle time, since readings are made when a packet arrives.
const READING_MAX_NS: u64 = 2 * READING_NS;
/// Time for earlier packets to be acknowledged on the path under trial, in nanoseconds.
const CHANGE_NS: u64 = 2_000_000;
/// A trial ends if the path carries too little for this time, in nanoseconds.
const TRIAL_MAX_NS: u64 = 100_000_000;
/// Minimum bytes of a valid reading.
const BYTES_MIN: u64 = 64 << 10;
/// Consecutive trials that a slightly faster path has to win.
const WINS: u32 = 3;
/// Advantages that decide at once, and that count as a win, in sixteenths.
const CLEAR: u64 = 4;
const WIN: u64 = 1;
/// Minimum and maximum time between two trials, in nanoseconds.
const PAUSE_MIN_NS: u64 = 100_000_000;
const PAUSE_MAX_NS: u64 = 30_000_000_000;
/// Time to the next trial if the rate of the path in use halved, in nanoseconds.
const CHANGED_NS: u64 = 1_000_000_000;

/// The path in use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Used {
    /// Number of the path.
    pub(crate) path: u16,
    pub(crate) delivered: Delivered,
    /// Longest segment that fits one datagram now, in bytes.
    pub(crate) segment_bytes: u64,
}

/// Returns the rate of delivered data in bytes per second; `None`: too little data, or short
/// datagrams.
fn rate(delivered: &Delivered, elapsed_ns: u64, segment_bytes: u64) -> Option<u64> {
    let full_bytes = delivered.datagrams.saturating_mul(segment_bytes);
    if delivered.bytes < BYTES_MIN || 2 * delivered.bytes < full_bytes {
        return None;
    }
    let rate = u128::from(delivered.bytes) * 1_000_000_000 / u128::from(elapsed_ns.max(1));
    Some(rate.min(u128::from(u64::MAX / 64)) as u64)
}

#[derive(Clone, Copy, Debug, Default)]
enum TrialState {
    /// The path in use is measured.
    #[default]
    Resting,
    /// Another path is in use for a trial.
    Trying {
        /// The previous path, and its bytes per second.
        home: u16,
        home_rate: u64,
        path: u16,
        since_ns: u64,
        /// Delivery counters and time when the trial began, with earlier packets complete.
        begin: Option<(Delivered, u64)>,
    },
}

/// Bandwidth trials; see the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct BandwidthTrial {
    state: TrialState,
    /// Path, delivery counters and time of the last reading while resting.
    before: Option<(u16, Delivered, u64)>,
    /// When the next reading is due.
    next_ns: u64,
    /// When the next trial may begin, and the pause after it.
    next_trial_ns: u64,
    pause_ns: u64,
    /// The path tried last, and its consecutive narrow wins.
    last: u16,
    wins: u32,
    /// Rate of the path in use when it was chosen, in bytes per second.
    known_rate: u64,
}

impl BandwidthTrial {
    /// Returns whether [`Self::read`] is due.
    #[inline]
    pub(crate) fn is_due(&self, now_ns: u64) -> bool {
        now_ns >= self.next_ns
    }

    /// Returns whether another path is on trial.
    pub(crate) fn is_trying(&self) -> bool {
        matches!(self.state, TrialState::Trying { .. })
    }

    /// Defers the reading, as there is no data yet.
    pub(crate) fn put_off(&mut self, now_ns: u64) {
        self.next_ns = now_ns + READING_NS;
    }

    /// Reads the delivery of the path in use. `others` are equally suitable and near. A returned
    /// path is to be used from now on.
    pub(crate) fn read(
        &mut self,
        now_ns: u64,
        used: &Used,
        others: impl Iterator<Item = u16>,
    ) -> Option<u16> {
        self.next_ns = now_ns + READING_NS;
        match self.state {
            TrialState::Resting => self.begin(now_ns, used, others),
            TrialState::Trying { path, .. } if path != used.path => {
                // The segments were moved for another reason, which has priority.
                self.wins = 0;
                self.rest(now_ns, 0);
                Some(used.path)
            }
            TrialState::Trying { begin: ref mut begin @ None, .. } => {
                *begin = Some((used.delivered, now_ns));
                None
            }
            TrialState::Trying {
                home,
                home_rate,
                path,
                since_ns,
                begin: Some((begin, begin_ns)),
            } => {
                if now_ns - begin_ns > READING_MAX_NS && now_ns < since_ns + TRIAL_MAX_NS {
                    self.state = TrialState::Trying {
                        home,
                        home_rate,
                        path,
                        since_ns,
                        begin: Some((used.delivered, now_ns)),
                    };
                    return None;
                }
                let delivered = used.delivered.since(&begin);
                let tried = rate(&delivered, now_ns - begin_ns, used.segment_bytes);
                if tried.is_none() && now_ns < since_ns + TRIAL_MAX_NS {
                    return None;
                }
                let tried_rate = tried.unwrap_or(0);
                tracing::debug!(home, home_rate, path, tried_rate, "bandwidth trial ended");
                let is_better_by = |parts| tried_rate >= home_rate + home_rate / 16 * parts;
                self.wins = if is_better_by(WIN) { self.wins + 1 } else { 0 };
                if is_better_by(CLEAR) || self.wins >= WINS {
                    // The other one is tried again soon: it may have been disturbed.
                    (self.wins, self.pause_ns) = (0, 0);
                    self.rest(now_ns, tried_rate);
                    return None;
                }
                self.rest(now_ns, home_rate);
                Some(home)
            }
        }
    }

    fn begin(
        &mut self,
        now_ns: u64,
        used: &Used,
        others: impl Iterator<Item = u16>,
    ) -> Option<u16> {
        let before = self.before.replace((used.path, used.delivered, now_ns));
        let (path, before, before_ns) = before?;
        if now_ns - before_ns > READING_MAX_NS {
            return None;
        }
        if path != used.path {
            // The rate of another path does not apply to it.
            self.known_rate = 0;
            return None;
        }
        let delivered = used.delivered.since(&before);
        let home_rate = rate(&delivered, now_ns - before_ns, used.segment_bytes)?;
        if home_rate < self.known_rate / 2 {
            self.next_trial_ns = self.next_trial_ns.min(now_ns + CHANGED_NS);
            self.known_rate = home_rate;
        }
        if now_ns < self.next_trial_ns {
            return None;
        }
        // Alternately, if there are several.
        let is_rival = |path: u16| self.wins > 0 && path == self.last;
        let path = others.min_by_key(|&path| (!is_rival(path), path <= self.last, path))?;
        debug_assert_ne!(path, used.path, "another path is tried");
        self.wins = if path == self.last { self.wins } else { 0 };
        self.last = path;
        self.state =
            TrialState::Trying { home: used.path, home_rate, path, since_ns: now_ns, begin: None };
        self.next_ns = now_ns + CHANGE_NS;
        Some(path)
    }

    fn rest(&mut self, now_ns: u64, known_rate: u64) {
        (self.state, self.before, self.known_rate) = (TrialState::Resting, None, known_rate);
        if self.wins > 0 {
            // Soon again, after a reading of the other one.
            self.next_trial_ns = now_ns;
            return;
        }
        debug_assert!(self.wins < WINS, "a path that wins stays");
        self.pause_ns = (2 * self.pause_ns).clamp(PAUSE_MIN_NS, PAUSE_MAX_NS);
        self.next_trial_ns = now_ns + self.pause_ns;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLI: u64 = 1_000_000;
    const SECOND: u64 = 1000 * MILLI;
    const DATAGRAM: u64 = 1472;

    /// A session that sends all the time, on paths with these rates in MB/s.
    struct Bench {
        trial: BandwidthTrial,
        now_ns: u64,
        used: u16,
        rates: Vec<u64>,
        delivered: Vec<Delivered>,
        /// Bytes of each datagram.
        length: u64,
        /// How often another path was chosen, and how long each was in use.
        moves: usize,
        in_use_ns: Vec<u64>,
    }

    impl Bench {
        fn new(rates: &[u64]) -> Self {
            Self {
                trial: BandwidthTrial::default(),
                now_ns: SECOND,
                used: 0,
                rates: rates.to_vec(),
                delivered: vec![Delivered::default(); rates.len()],
                length: DATAGRAM,
                moves: 0,
                in_use_ns: vec![0; rates.len()],
            }
        }

        fn run(&mut self, for_ns: u64) -> &mut Self {
            let end_ns = self.now_ns + for_ns;
            while self.now_ns < end_ns {
                self.now_ns += MILLI;
                let at = usize::from(self.used);
                let bytes = self.rates[at] * 1000;
                self.delivered[at].bytes += bytes;
                self.delivered[at].datagrams += bytes / self.length;
                self.in_use_ns[at] += MILLI;
                if !self.trial.is_due(self.now_ns) {
                    continue;
                }
                let used = Used {
                    path: self.used,
                    delivered: self.delivered[at],
                    segment_bytes: DATAGRAM,
                };
                let others = (0..self.rates.len() as u16).filter(|&path| path != self.used);
                if let Some(path) = self.trial.read(self.now_ns, &used, others) {
                    assert_ne!(path, self.used);
                    self.used = path;
                    self.moves += 1;
                }
            }
            self
        }
    }

    #[test]
    fn faster_path_is_found_within_tens_of_milliseconds_and_kept() {
        let mut bench = Bench::new(&[125, 375]);
        bench.run(50 * MILLI);
        assert_eq!((bench.used, bench.moves), (1, 1));
        bench.run(30 * SECOND);
        assert_eq!(bench.used, 1);
        assert!(bench.in_use_ns[0] < 300 * MILLI, "{:?}", bench.in_use_ns);
    }

    #[test]
    fn fastest_of_several_paths_is_found() {
        for fastest in 0..4 {
            let rates: Vec<u64> = (0..4).map(|at| 100 + 200 * u64::from(at == fastest)).collect();
            let mut bench = Bench::new(&rates);
            bench.run(3 * SECOND);
            assert_eq!(usize::from(bench.used), fastest);
        }
    }

    #[test]
    fn slightly_faster_path_is_found_after_three_trials() {
        let mut bench = Bench::new(&[100, 112]);
        bench.run(100 * MILLI);
        assert_eq!((bench.used, bench.moves), (1, 5));
        bench.run(20 * SECOND);
        assert_eq!(bench.used, 1);
    }

    #[test]
    fn equal_paths_are_kept_and_slower_ones_cost_little() {
        for other in [100, 105, 95, 30] {
            let mut bench = Bench::new(&[100, other]);
            bench.run(20 * SECOND);
            assert_eq!(bench.used, 0, "{other}");
            assert!(bench.in_use_ns[1] < 150 * MILLI, "{other}: {:?}", bench.in_use_ns);
        }
    }

    #[test]
    fn slowed_path_is_left_within_seconds() {
        let mut bench = Bench::new(&[300, 100]);
        bench.run(20 * SECOND);
        assert_eq!(bench.used, 0);
        bench.rates[0] = 30;
        bench.run(1200 * MILLI);
        assert_eq!(bench.used, 1);
    }

    #[test]
    fn short_messages_and_idle_sessions_start_no_trial() {
        for (rate, length) in [(100, 200), (5, DATAGRAM)] {
            let mut bench = Bench::new(&[rate, 1000]);
            bench.length = length;
            bench.run(5 * SECOND);
            assert_eq!((bench.used, bench.moves), (0, 0), "{rate} {length}");
        }
    }

    /// Idle time between two bursts does not count as slowness of the path.
    #[test]
    fn bursts_are_measured_while_they_last() {
        for (rates, best) in [([300, 100], 0), ([100, 300], 1)] {
            let mut bench = Bench::new(&rates);
            for _ in 0..30 {
                bench.run(40 * MILLI);
                bench.now_ns += SECOND;
            }
            assert_eq!(bench.used, best, "{rates:?}");
            let in_use_ns = bench.in_use_ns[1 - usize::from(best)];
            assert!(in_use_ns < 600 * MILLI, "{rates:?} {:?}", bench.in_use_ns);
        }
    }

    #[test]
    fn trial_yields_to_other_path_changes() {
        let mut bench = Bench::new(&[100, 50, 50]);
        bench.run(15 * MILLI);
        assert_eq!(bench.used, 1, "a trial");
        bench.used = 2;
        let used = Used { path: 2, delivered: Delivered::default(), segment_bytes: DATAGRAM };
        assert_eq!(bench.trial.read(bench.now_ns, &used, [0, 1].into_iter()), Some(2));
        bench.run(90 * MILLI);
        assert_eq!((bench.used, bench.moves), (2, 1));
    }

    #[test]
    fn session_that_becomes_idle_in_a_trial_switches_back() {
        let mut bench = Bench::new(&[100, 500]);
        bench.run(READING_NS + MILLI);
        assert_eq!(bench.used, 1, "a trial");
        bench.rates = vec![0, 0];
        bench.run(TRIAL_MAX_NS);
        assert_eq!(bench.used, 1, "not known yet");
        bench.run(2 * READING_NS);
        assert_eq!(bench.used, 0);
    }
}
