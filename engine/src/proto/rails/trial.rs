//! Which of several paths that are as near delivers long messages faster.
//!
//! A path that is slow shows that only under load, so the round trips of single packets say nothing
//! of it, and a NIC that does not tell its speed nothing either: virtual ones claim any. So, while a
//! session sends datagrams that are full, another path carries them for some milliseconds; it goes
//! on doing so if it delivered clearly faster in the time in which there was something to deliver.
//! After each trial comes a pause that doubles: a path that is worse costs less than a hundredth of
//! the time soon.

use crate::proto::packet::Delivered;

/// Time between two readings, in nanoseconds.
const READING_NS: u64 = 8_000_000;
/// Time for what was sent before to be over on the path that is tried, in nanoseconds.
const CHANGE_NS: u64 = 2_000_000;
/// A path that is tried and carries so little for so long, in nanoseconds, is not tried further.
const TRIAL_MAX_NS: u64 = 100_000_000;
/// Less than that in a reading says nothing, in bytes.
const BYTES_MIN: u64 = 64 << 10;
/// First and longest time between two trials, in nanoseconds.
const PAUSE_MIN_NS: u64 = 100_000_000;
const PAUSE_MAX_NS: u64 = 30_000_000_000;
/// The next trial is so soon if the path in use became half as fast, in nanoseconds.
const CHANGED_NS: u64 = 1_000_000_000;

/// The path in use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Used {
    /// Its number.
    pub(crate) path: u16,
    pub(crate) delivered: Delivered,
    /// Longest datagram that it takes, in bytes.
    pub(crate) datagram_bytes: u64,
}

#[derive(Clone, Copy, Debug, Default)]
enum State {
    /// The path in use is read.
    #[default]
    Resting,
    /// Another one is in use for a while.
    Trying {
        /// The one that was, and its bytes per second.
        home: u16,
        home_rate: u64,
        path: u16,
        since_ns: u64,
        /// What it had delivered once it was the only one.
        begin: Option<Delivered>,
    },
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct Trial {
    state: State,
    /// The last reading while resting.
    before: Option<(u16, Delivered)>,
    /// When the next reading is due.
    next_ns: u64,
    /// When the next trial may be, and the pause after it.
    next_trial_ns: u64,
    pause_ns: u64,
    /// The path that was tried last.
    last: u16,
    /// Bytes per second that the path in use showed when it was chosen.
    known_rate: u64,
}

impl Trial {
    /// Whether it is time for [`Self::read`].
    #[inline]
    pub(crate) fn is_due(&self, now_ns: u64) -> bool {
        now_ns >= self.next_ns
    }

    /// There is nothing to read yet.
    pub(crate) fn put_off(&mut self, now_ns: u64) {
        self.next_ns = now_ns + READING_NS;
    }

    /// Reads what the path in use has delivered. `others` may be used as well and are as near. A
    /// path that comes back is to be used from now on.
    pub(crate) fn read(
        &mut self,
        now_ns: u64,
        used: &Used,
        others: impl Iterator<Item = u16>,
    ) -> Option<u16> {
        self.next_ns = now_ns + READING_NS;
        match self.state {
            State::Resting => self.begin(now_ns, used, others),
            State::Trying { path, .. } if path != used.path => {
                // Something else moved the contents.
                self.rest(now_ns, 0);
                None
            }
            State::Trying { begin: ref mut begin @ None, .. } => {
                *begin = Some(used.delivered);
                None
            }
            State::Trying { home, home_rate, since_ns, begin: Some(begin), .. } => {
                let reading = used.delivered.since(&begin);
                let is_enough = is_enough(&reading, used);
                if !is_enough && now_ns < since_ns + TRIAL_MAX_NS {
                    return None;
                }
                let rate = reading.bytes_per_s();
                let is_faster = is_enough && rate >= home_rate.saturating_add(home_rate / 4);
                self.rest(now_ns, if is_faster { rate } else { home_rate });
                (!is_faster).then_some(home)
            }
        }
    }

    fn begin(
        &mut self,
        now_ns: u64,
        used: &Used,
        others: impl Iterator<Item = u16>,
    ) -> Option<u16> {
        let before = self.before.replace((used.path, used.delivered));
        let (_, before) = before.filter(|&(path, _)| path == used.path)?;
        let reading = used.delivered.since(&before);
        if !is_enough(&reading, used) {
            return None;
        }
        let home_rate = reading.bytes_per_s();
        if home_rate < self.known_rate / 2 {
            self.next_trial_ns = self.next_trial_ns.min(now_ns + CHANGED_NS);
            self.known_rate = home_rate;
        }
        if now_ns < self.next_trial_ns {
            return None;
        }
        // By turns, if there are several.
        let path = others.min_by_key(|&path| (path <= self.last, path))?;
        self.last = path;
        self.state =
            State::Trying { home: used.path, home_rate, path, since_ns: now_ns, begin: None };
        self.next_ns = now_ns + CHANGE_NS;
        Some(path)
    }

    fn rest(&mut self, now_ns: u64, known_rate: u64) {
        (self.state, self.before, self.known_rate) = (State::Resting, None, known_rate);
        self.pause_ns = (2 * self.pause_ns).clamp(PAUSE_MIN_NS, PAUSE_MAX_NS);
        self.next_trial_ns = now_ns + self.pause_ns;
    }
}

/// Whether so much was delivered, in datagrams that were mostly full, that its rate means something.
fn is_enough(reading: &Delivered, used: &Used) -> bool {
    let full_bytes = reading.datagrams.saturating_mul(used.datagram_bytes);
    reading.bytes >= BYTES_MIN && 2 * reading.bytes >= full_bytes && reading.busy_ns > 0
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLI: u64 = 1_000_000;
    const SECOND: u64 = 1000 * MILLI;
    const DATAGRAM: u64 = 1472;

    /// A session that sends all the time, and paths with so many MB/s.
    struct Bench {
        trial: Trial,
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
                trial: Trial::default(),
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
                // Whatever the path, it works for half of the time.
                let bytes = self.rates[at] * 500;
                self.delivered[at].bytes += bytes;
                self.delivered[at].datagrams += bytes / self.length;
                self.delivered[at].busy_ns += MILLI / 2;
                self.in_use_ns[at] += MILLI;
                if !self.trial.is_due(self.now_ns) {
                    continue;
                }
                let used = Used {
                    path: self.used,
                    delivered: self.delivered[at],
                    datagram_bytes: DATAGRAM,
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
    fn a_faster_path_is_found_within_tens_of_milliseconds_and_kept() {
        let mut bench = Bench::new(&[125, 375]);
        bench.run(50 * MILLI);
        assert_eq!((bench.used, bench.moves), (1, 1));
        bench.run(30 * SECOND);
        assert_eq!(bench.used, 1);
        assert!(bench.in_use_ns[0] < 300 * MILLI, "{:?}", bench.in_use_ns);
    }

    #[test]
    fn the_fastest_of_several_is_found() {
        for fastest in 0..4 {
            let rates: Vec<u64> = (0..4).map(|at| 100 + 200 * u64::from(at == fastest)).collect();
            let mut bench = Bench::new(&rates);
            bench.run(3 * SECOND);
            assert_eq!(usize::from(bench.used), fastest);
        }
    }

    #[test]
    fn paths_alike_are_left_as_they_are_and_worse_ones_cost_little() {
        for other in [100, 110, 120, 30] {
            let mut bench = Bench::new(&[100, other]);
            bench.run(20 * SECOND);
            assert_eq!(bench.used, 0, "{other}");
            assert!(bench.in_use_ns[1] < 150 * MILLI, "{other}: {:?}", bench.in_use_ns);
        }
    }

    #[test]
    fn a_path_that_becomes_slow_is_left_within_seconds() {
        let mut bench = Bench::new(&[300, 100]);
        bench.run(20 * SECOND);
        assert_eq!(bench.used, 0);
        bench.rates[0] = 30;
        bench.run(1200 * MILLI);
        assert_eq!(bench.used, 1);
    }

    #[test]
    fn short_messages_and_idle_sessions_try_nothing() {
        for (rate, length) in [(100, 200), (5, DATAGRAM)] {
            let mut bench = Bench::new(&[rate, 1000]);
            bench.length = length;
            bench.run(5 * SECOND);
            assert_eq!((bench.used, bench.moves), (0, 0), "{rate} {length}");
        }
    }

    #[test]
    fn a_trial_gives_way_to_whatever_else_moves_the_contents() {
        let mut bench = Bench::new(&[100, 50, 50]);
        bench.run(15 * MILLI);
        assert_eq!(bench.used, 1, "a trial");
        bench.used = 2;
        bench.run(100 * MILLI);
        assert_eq!((bench.used, bench.moves), (2, 1));
    }

    #[test]
    fn a_session_that_falls_silent_in_a_trial_goes_back() {
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
