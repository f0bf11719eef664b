//! Timers of sessions.
//!
//! A timer that is moved forward is entered again, and the session's previous entry becomes stale:
//! it is skipped when it expires, and swept out before stale entries are most of the heap.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::Paths;

/// Number of stale entries up to which no sweep is made.
const STALE_MIN: usize = 64;

/// Timers; see the module. The caller decides which entries are valid.
#[derive(Debug, Default)]
pub(super) struct Timers {
    heap: BinaryHeap<Reverse<(u64, u32)>>,
    /// Timers up to here were served: work that could not be done is for the next turn.
    served_ns: u64,
}

impl Timers {
    /// Sets a timer at `at_ns`, or in the next turn if that time was served. Returns the time of
    /// the entry.
    pub(super) fn push(&mut self, at_ns: u64, session: u32) -> u64 {
        let at_ns = self.at(at_ns);
        self.heap.push(Reverse((at_ns, session)));
        at_ns
    }

    /// Returns the time at which a timer for `at_ns` expires.
    #[inline]
    pub(super) fn at(&self, at_ns: u64) -> u64 {
        at_ns.max(self.served_ns)
    }

    /// Begins serving all timers up to `until_ns`: timers set from now on are for the next turn.
    pub(super) fn begin(&mut self, until_ns: u64) {
        debug_assert!(self.served_ns <= until_ns + 1, "the clock does not go back");
        self.served_ns = until_ns + 1;
    }

    /// Removes and returns the next timer that is due at `until_ns`.
    pub(super) fn pop(&mut self, until_ns: u64) -> Option<(u64, u32)> {
        let &Reverse((at_ns, session)) = self.heap.peek()?;
        if at_ns > until_ns {
            return None;
        }
        self.heap.pop();
        Some((at_ns, session))
    }

    /// Returns the earliest valid time, and removes stale entries before it.
    pub(super) fn next_ns(&mut self, stands: impl Fn(u64, u32) -> bool) -> Option<u64> {
        while let Some(&Reverse((at_ns, session))) = self.heap.peek() {
            if stands(at_ns, session) {
                return Some(at_ns);
            }
            self.heap.pop();
        }
        None
    }

    /// Sweeps out stale entries if they are the majority; at most `sessions` are valid.
    pub(super) fn sweep(&mut self, sessions: usize, stands: impl Fn(u64, u32) -> bool) {
        if self.heap.len() > 2 * sessions + STALE_MIN {
            self.heap.retain(|&Reverse((at_ns, session))| stands(at_ns, session));
        }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }

    /// Returns whether an entry is the current one of its session.
    pub(super) fn stands(all: &[Paths], at_ns: u64, session: u32) -> bool {
        let paths = all.get(session as usize);
        paths.is_some_and(|paths| paths.all().any(|path| path.visits().has_timer_at(at_ns)))
    }

    /// Returns whether there is this entry.
    #[cfg(any(test, feature = "sim"))]
    pub(super) fn contains(&self, at_ns: u64, session: u32) -> bool {
        self.heap.iter().any(|&Reverse(entry)| entry == (at_ns, session))
    }

    /// Returns the number of entries, stale ones included.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.heap.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unserved_timers_are_deferred_to_the_next_turn() {
        let mut timers = Timers::default();
        timers.push(5, 1);
        timers.begin(10);
        assert_eq!(timers.pop(10), Some((5, 1)));
        assert_eq!((timers.at(3), timers.push(3, 1)), (11, 11));
        assert_eq!(timers.pop(10), None);
        timers.begin(11);
        assert_eq!(timers.pop(11), Some((11, 1)));
    }

    #[test]
    fn stale_entries_neither_wake_nor_accumulate() {
        let mut timers = Timers::default();
        let mut most = 0;
        for at_ns in (1000..100_000).rev() {
            timers.push(at_ns, 7);
            timers.sweep(1, |at, _| at == at_ns);
            most = most.max(timers.len());
        }
        assert!(most <= 2 + STALE_MIN + 1, "{most}");
        timers.push(10, 7);
        assert_eq!(timers.next_ns(|at_ns, _| at_ns == 1000), Some(1000));
        assert_eq!(timers.next_ns(|_, _| false), None);
        assert!(timers.is_empty());
    }
}
