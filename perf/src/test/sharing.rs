//! How threads came together at the engine that they share.

use ringrail::{Endpoint, Shared};
use serde::{Deserialize, Serialize};

/// What the engine of a side counted in a round, for each million of messages of all threads; a
/// round trip of a ping-pong counts as one. See [`ringrail::SharingCounters`].
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Sharing {
    pub(crate) failed_locks: f64,
    pub(crate) combined: f64,
    pub(crate) leftovers: f64,
    pub(crate) sleeps: f64,
}

/// What the engine had counted before the round of one thread, and after it.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Readings {
    before: [u64; 4],
    after: [u64; 4],
}

impl Readings {
    /// Reads `shared` before and after `round`.
    pub(super) fn around<T>(
        shared: &Endpoint<Shared>,
        round: impl FnOnce() -> Result<T, String>,
    ) -> Result<(T, Self), String> {
        let before = read(shared);
        let result = round()?;
        Ok((result, Self { before, after: read(shared) }))
    }

    /// From the first reading of any thread to the last one. `None`: not all threads have some.
    pub(super) fn together(
        threads: impl Iterator<Item = Option<Self>>,
        messages: u64,
    ) -> Option<Sharing> {
        let whole = threads.reduce(|one, other| {
            let (one, other) = (one?, other?);
            // They only grow.
            let each = |of: fn(u64, u64) -> u64, one: [u64; 4], other: [u64; 4]| {
                std::array::from_fn(|at| of(one[at], other[at]))
            };
            let before = each(u64::min, one.before, other.before);
            Some(Self { before, after: each(u64::max, one.after, other.after) })
        });
        let Self { before, after } = whole.flatten()?;
        let per_million =
            |at: usize| (after[at] - before[at]) as f64 * 1e6 / messages.max(1) as f64;
        Some(Sharing {
            failed_locks: per_million(0),
            combined: per_million(1),
            leftovers: per_million(2),
            sleeps: per_million(3),
        })
    }
}

fn read(shared: &Endpoint<Shared>) -> [u64; 4] {
    let counters = shared.sharing();
    [counters.failed_locks, counters.combined, counters.leftovers, counters.sleeps]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Threads read the same counters, and not at the same time.
    #[test]
    fn what_threads_read_of_one_engine_is_not_added_up() {
        let one = Readings { before: [10, 0, 5, 1], after: [30, 40, 5, 2] };
        let other = Readings { before: [12, 3, 5, 1], after: [35, 30, 5, 3] };
        let sharing = Readings::together([Some(one), Some(other)].into_iter(), 1000).unwrap();
        let expected = Sharing { failed_locks: 25e3, combined: 40e3, leftovers: 0.0, sleeps: 2e3 };
        assert_eq!(sharing, expected);
        assert_eq!(Readings::together([Some(one), None].into_iter(), 1000), None);
    }
}
