//! Times at which sessions want a turn.
//!
//! A time that comes nearer is entered once more, and what stood for the session before is stale:
//! it is passed over when it comes, and swept out before it is most of the heap.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::Paths;

/// Stale entries that are not worth sweeping out.
const STALE_MIN: usize = 64;

/// See the module. Whoever asks says which entries still stand.
#[derive(Debug, Default)]
pub(super) struct Timers {
    heap: BinaryHeap<Reverse<(u64, u32)>>,
    /// Times up to here had their turn: what could not be done in it is for the next one.
    served_ns: u64,
}

impl Timers {
    /// A session wants a turn at `at_ns`, or in the next one if that had its turn. Returns the
    /// time that stands for it.
    pub(super) fn push(&mut self, at_ns: u64, session: u32) -> u64 {
        let at_ns = self.at(at_ns);
        self.heap.push(Reverse((at_ns, session)));
        at_ns
    }

    /// The time at which somebody who wants a turn at `at_ns` gets one.
    #[inline]
    pub(super) fn at(&self, at_ns: u64) -> u64 {
        at_ns.max(self.served_ns)
    }

    /// The turns of all times up to `until_ns` begin: nothing that is entered from now on comes
    /// before the next turn.
    pub(super) fn begin(&mut self, until_ns: u64) {
        self.served_ns = until_ns + 1;
    }

    /// The next one that is due at `until_ns`; it is taken out.
    pub(super) fn pop(&mut self, until_ns: u64) -> Option<(u64, u32)> {
        let &Reverse((at_ns, session)) = self.heap.peek()?;
        if at_ns > until_ns {
            return None;
        }
        self.heap.pop();
        Some((at_ns, session))
    }

    /// The earliest time that stands; stale ones before it are taken out.
    pub(super) fn next_ns(&mut self, stands: impl Fn(u64, u32) -> bool) -> Option<u64> {
        while let Some(&Reverse((at_ns, session))) = self.heap.peek() {
            if stands(at_ns, session) {
                return Some(at_ns);
            }
            self.heap.pop();
        }
        None
    }

    /// Sweeps stale entries out if they are most of them; `sessions` stand at the most.
    pub(super) fn sweep(&mut self, sessions: usize, stands: impl Fn(u64, u32) -> bool) {
        if self.heap.len() > 2 * sessions + STALE_MIN {
            self.heap.retain(|&Reverse((at_ns, session))| stands(at_ns, session));
        }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }

    /// Whether a time among the timers is the one of its session.
    pub(super) fn stands(all: &[Paths], at_ns: u64, session: u32) -> bool {
        let paths = all.get(session as usize);
        paths.is_some_and(|paths| paths.all().any(|path| path.timer_ns == at_ns))
    }

    /// Entries, stale ones included.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.heap.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_served_in_a_turn_is_for_the_next() {
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
    fn stale_entries_neither_wake_nor_pile_up() {
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
