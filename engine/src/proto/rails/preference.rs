//! Which of several healthy paths short messages go by: the one with the shortest round trip.
//!
//! All paths are asked at the same moment, by packets of the same length, and compared: so a queue
//! that is in front of all of them speaks against none. Another one than before is chosen when it
//! is clearly nearer several times in a row, and after that for a while, which doubles, none.

/// Comparisons in a row that another path has to win.
const WINS: u32 = 3;
/// By so much it has to be nearer: a quarter of the other's round trip, and this, in nanoseconds.
const NEARER_MIN_NS: u64 = 20_000;
/// First and longest time between two comparisons, in nanoseconds.
const PAUSE_MIN_NS: u64 = 2_000_000;
const PAUSE_MAX_NS: u64 = 256_000_000;
/// First and longest time after a change in which there is no other, in nanoseconds.
const HOLD_MIN_NS: u64 = 20_000_000;
const HOLD_MAX_NS: u64 = 20_000_000_000;
/// A change so many times as long after the one before as that had to wait begins anew.
const CALM: u64 = 8;

/// What is known of one path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Distance {
    /// Its number.
    pub(crate) path: u16,
    /// How long a short packet and its answer take, in nanoseconds.
    pub(crate) round_trip_ns: u64,
}

/// See the module.
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
    /// The path that was found to be nearest, if one was.
    pub(crate) fn favourite(&self) -> Option<u16> {
        self.favourite
    }

    /// Something else than nearness chose a path.
    pub(crate) fn choose(&mut self, path: u16) {
        (self.favourite, self.rival, self.known_ns) = (Some(path), None, 0);
    }

    /// Whether it is time to compare.
    #[inline]
    pub(crate) fn is_due(&self, now_ns: u64) -> bool {
        now_ns >= self.next_ns
    }

    /// There is nothing to compare yet.
    pub(crate) fn put_off(&mut self, now_ns: u64) {
        self.next_ns = now_ns + PAUSE_MIN_NS;
    }

    /// Compares `used`, the path in use, with others. All paths are to be asked after that, for
    /// the next time. `true`: another path is the nearest from now on.
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
        self.rival = nearest.map(|nearest| (nearest.path, wins));
        // What is in doubt is looked at soon again.
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

/// Whether one round trip is clearly shorter than another.
pub(crate) fn is_nearer(one_ns: u64, other_ns: u64) -> bool {
    one_ns.saturating_add(NEARER_MIN_NS.max(other_ns / 4)) < other_ns
}

#[cfg(test)]
mod tests {
    use super::*;

    const MICRO: u64 = 1_000;
    const MILLI: u64 = 1_000_000;

    /// Compares whenever it is due, for a time; how often the favourite changed. `of` gives the
    /// round trips of paths 0 and 1 at a time.
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
    fn the_nearer_path_is_found_within_milliseconds_and_kept() {
        let mut preference = Preference::default();
        let far = |_| [200 * MICRO, 20 * MICRO];
        assert_eq!(run(&mut preference, (0, 10 * MILLI), far), 1);
        assert_eq!(preference.favourite(), Some(1));
        assert_eq!(run(&mut preference, (10 * MILLI, 10_000 * MILLI), far), 0);
        // It is asked rarely then.
        assert!(!preference.is_due(10_000 * MILLI - PAUSE_MAX_NS));
    }

    #[test]
    fn a_path_that_is_hardly_nearer_is_no_reason_to_move() {
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
    fn a_jump_of_delay_moves_it_soon() {
        let mut preference = Preference::default();
        let jumps = |at_ns: u64| if at_ns < 5000 * MILLI { [20, 200] } else { [5000, 200] };
        let of = |at_ns| jumps(at_ns).map(|micros| micros * MICRO);
        assert_eq!(run(&mut preference, (0, 5000 * MILLI + PAUSE_MAX_NS + 10 * MILLI), of), 1);
        assert_eq!(preference.favourite(), Some(1));
    }

    #[test]
    fn paths_that_are_nearer_by_turns_change_ever_more_rarely() {
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
    fn noise_moves_nothing() {
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
