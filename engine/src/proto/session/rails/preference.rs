//! Choice among healthy paths for short messages: the one with the shortest round trip.
//!
//! All paths are probed at the same time, with packets of the same length, and compared: so a queue
//! in front of all of them affects none. Another path is chosen when it is clearly nearer several
//! times in a row; after that the choice is fixed for a time, which doubles.

/// Consecutive comparisons that another path has to win.
const WINS: u32 = 3;
/// Required difference: a quarter of the other's round trip, and this, in nanoseconds.
const NEARER_MIN_NS: u64 = 20_000;
/// Minimum and maximum time between two comparisons, in nanoseconds.
const PAUSE_MIN_NS: u64 = 2_000_000;
const PAUSE_MAX_NS: u64 = 256_000_000;
/// Minimum and maximum time between two changes, in nanoseconds.
const HOLD_MIN_NS: u64 = 20_000_000;
const HOLD_MAX_NS: u64 = 20_000_000_000;
/// The hold time is reset after this multiple of it without a change.
const CALM: u64 = 8;

/// Round trip of one path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Distance {
    /// Number of the path.
    pub(crate) path: u16,
    /// Round trip of a short packet, in nanoseconds.
    pub(crate) round_trip_ns: u64,
}

/// Choice by round trip; see the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct Preference {
    favourite: Option<u16>,
    rival: Option<(u16, u32)>,
    /// Round trip of the path in use at the last comparison.
    known_ns: u64,
    next_ns: u64,
    pause_ns: u64,
    hold_ns: u64,
    changed_ns: u64,
}

impl Preference {
    /// Returns the path with the shortest round trip, if one was determined.
    pub(crate) fn favourite(&self) -> Option<u16> {
        self.favourite
    }

    /// Notes that a path was chosen for another reason.
    pub(crate) fn choose(&mut self, path: u16) {
        (self.favourite, self.rival, self.known_ns) = (Some(path), None, 0);
    }

    /// Returns whether a comparison is due.
    #[inline]
    pub(crate) fn is_due(&self, now_ns: u64) -> bool {
        now_ns >= self.next_ns
    }

    /// Defers the comparison, as there are no samples yet.
    pub(crate) fn put_off(&mut self, now_ns: u64) {
        self.next_ns = now_ns + PAUSE_MIN_NS;
    }

    /// Compares `used`, the path in use, with others. All paths have to be probed after that, for
    /// the next comparison. Returns `true` if another path is the nearest from now on.
    pub(crate) fn compare(
        &mut self,
        now_ns: u64,
        used: Distance,
        others: impl Iterator<Item = Distance>,
    ) -> bool {
        let is_jump = is_nearer(self.known_ns, used.round_trip_ns);
        self.known_ns = used.round_trip_ns;
        let nearest = others
            .filter(|other| is_nearer(other.round_trip_ns, used.round_trip_ns))
            .min_by_key(|other| other.round_trip_ns);
        let wins = match (nearest, self.rival) {
            (Some(nearest), Some((rival, wins))) if nearest.path == rival => wins + 1,
            (Some(_), _) => 1,
            (None, _) => 0,
        };
        debug_assert!(
            nearest.is_none_or(|nearest| nearest.path != used.path),
            "the path in use is compared with others"
        );
        self.rival = nearest.map(|nearest| (nearest.path, wins));
        // Undecided comparisons are repeated soon.
        let is_calm = !is_jump && wins == 0;
        let longer_ns = (2 * self.pause_ns).clamp(PAUSE_MIN_NS, PAUSE_MAX_NS);
        self.pause_ns = if is_calm { longer_ns } else { PAUSE_MIN_NS };
        let is_held = self.changed_ns > 0 && now_ns < self.changed_ns + self.hold_ns;
        if is_held && wins > 0 {
            self.pause_ns =
                (self.changed_ns + self.hold_ns - now_ns).clamp(PAUSE_MIN_NS, PAUSE_MAX_NS);
        }
        self.next_ns = now_ns + self.pause_ns;
        let Some(nearest) = nearest.filter(|_| wins >= WINS && !is_held) else { return false };
        let is_relapse = self.changed_ns > 0 && now_ns < self.changed_ns + CALM * self.hold_ns;
        self.hold_ns = if is_relapse { (2 * self.hold_ns).min(HOLD_MAX_NS) } else { HOLD_MIN_NS };
        (self.favourite, self.changed_ns) = (Some(nearest.path), now_ns);
        (self.rival, self.known_ns) = (None, nearest.round_trip_ns);
        true
    }
}

/// Returns whether one round trip is clearly shorter than another.
pub(crate) fn is_nearer(one_ns: u64, other_ns: u64) -> bool {
    one_ns.saturating_add(NEARER_MIN_NS.max(other_ns / 4)) < other_ns
}

#[cfg(test)]
mod tests {
    use super::*;

    const MICRO: u64 = 1_000;
    const MILLI: u64 = 1_000_000;

    /// Compares whenever it is due, for a time, and returns how often the choice changed. `of`
    /// gives the round trips of paths 0 and 1 at a time.
    fn run(
        preference: &mut Preference,
        (from_ns, until_ns): (u64, u64),
        mut of: impl FnMut(u64) -> [u64; 2],
    ) -> usize {
        let mut changes = 0;
        for now_ns in (from_ns..until_ns).step_by(MILLI as usize) {
            if !preference.is_due(now_ns) {
                continue;
            }
            let distances = of(now_ns);
            let distance =
                |path: u16| Distance { path, round_trip_ns: distances[usize::from(path)] };
            let used = preference.favourite().unwrap_or(0);
            let others = [distance(1 - used)].into_iter();
            changes += usize::from(preference.compare(now_ns, distance(used), others));
        }
        changes
    }

    #[test]
    fn nearer_path_is_found_within_milliseconds_and_kept() {
        let mut preference = Preference::default();
        let far = |_| [200 * MICRO, 20 * MICRO];
        assert_eq!(run(&mut preference, (0, 10 * MILLI), far), 1);
        assert_eq!(preference.favourite(), Some(1));
        assert_eq!(run(&mut preference, (10 * MILLI, 10_000 * MILLI), far), 0);
        // Probes are rare then.
        assert!(!preference.is_due(10_000 * MILLI - PAUSE_MAX_NS));
    }

    #[test]
    fn marginally_nearer_path_is_not_chosen() {
        for distances in [[100, 81], [100, 76], [30, 15], [1000, 800]] {
            let mut preference = Preference::default();
            let of = |_| distances.map(|micros| micros * MICRO);
            assert_eq!(run(&mut preference, (0, 10_000 * MILLI), of), 0, "{distances:?}");
        }
        for distances in [[100, 70], [30, 5], [1000, 700]] {
            let mut preference = Preference::default();
            let of = |_| distances.map(|micros| micros * MICRO);
            assert_eq!(run(&mut preference, (0, 10_000 * MILLI), of), 1, "{distances:?}");
        }
    }

    #[test]
    fn sudden_delay_switches_path_soon() {
        let mut preference = Preference::default();
        let jumps = |at_ns: u64| if at_ns < 5000 * MILLI { [20, 200] } else { [5000, 200] };
        let of = |at_ns| jumps(at_ns).map(|micros| micros * MICRO);
        assert_eq!(run(&mut preference, (0, 5000 * MILLI + PAUSE_MAX_NS + 10 * MILLI), of), 1);
        assert_eq!(preference.favourite(), Some(1));
    }

    #[test]
    fn alternating_paths_switch_at_increasing_intervals() {
        let mut preference = Preference::default();
        let turns = |at_ns: u64| match at_ns / (50 * MILLI) % 2 {
            0 => [20 * MICRO, 200 * MICRO],
            _ => [200 * MICRO, 20 * MICRO],
        };
        let first = run(&mut preference, (0, 1000 * MILLI), turns);
        let then = run(&mut preference, (1000 * MILLI, 20_000 * MILLI), turns);
        assert!((1..10).contains(&first) && then <= 2 * first + 2, "{first} {then}");
    }

    #[test]
    fn jitter_does_not_switch_path() {
        let mut preference = Preference::default();
        let mut word = 1_u64;
        let noise = move |_| {
            [0, 1].map(|_| {
                word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                40 * MICRO + (word >> 40) % (20 * MICRO)
            })
        };
        assert_eq!(run(&mut preference, (0, 100_000 * MILLI), noise), 0);
    }
}
