//! A counter that wakes waiters for a value, once for many increments.
//!
//! A waiter registers as a sleeper ([`super::wait_set`]), stores the value it wants, then checks. A
//! thread that increments checks, after its increment, whether that value or less is wanted; if so
//! it resets the wanted value, and wakes all sleepers: waiters for more store theirs again. So one
//! of the two sees the other, and a premature reset is followed by a wake-up.

use super::sync::{AtomicU64, Ordering};

/// One counter. Holders of the engine and the counter's user write, all read.
#[derive(Debug)]
pub(crate) struct SharedCounter {
    value: AtomicU64,
    errors: AtomicU64,
    /// The lowest value that a thread sleeps for; `u64::MAX`: none.
    wanted: AtomicU64,
    /// Distributes counters over classes of waiters.
    number: u32,
}

impl SharedCounter {
    /// Creates a counter of value 0 without waiters.
    pub(crate) fn new(number: u32) -> Self {
        Self {
            value: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            wanted: AtomicU64::new(u64::MAX),
            number,
        }
    }

    /// Returns the value; writes before the increment are visible to its readers.
    #[inline]
    pub(crate) fn value(&self) -> u64 {
        self.value.load(Ordering::SeqCst)
    }

    #[inline]
    pub(crate) fn errors(&self) -> u64 {
        self.errors.load(Ordering::SeqCst)
    }

    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// Announces that the caller is about to sleep until the value is at least `threshold`. To be
    /// called before the value is checked, and again after each wake-up.
    pub(crate) fn want(&self, threshold: u64) {
        // Where a lower value is wanted already its wake-up comes after this check, and wakes the
        // caller, too.
        if self.wanted.load(Ordering::SeqCst) > threshold {
            self.wanted.fetch_min(threshold, Ordering::SeqCst);
        }
    }

    /// Adds to the value. Returns `true` if waiters are to be notified.
    pub(crate) fn add(&self, more: u64) -> bool {
        let value = self.value.fetch_add(more, Ordering::SeqCst).wrapping_add(more);
        self.is_wanted(value)
    }

    /// Sets the value. Returns `true` if waiters are to be notified.
    pub(crate) fn set(&self, value: u64) -> bool {
        self.value.store(value, Ordering::SeqCst);
        self.is_wanted(value)
    }

    pub(crate) fn add_errors(&self, more: u64) {
        self.errors.fetch_add(more, Ordering::SeqCst);
    }

    pub(crate) fn set_errors(&self, errors: u64) {
        self.errors.store(errors, Ordering::SeqCst);
    }

    fn is_wanted(&self, value: u64) -> bool {
        let is_wanted = self.wanted.load(Ordering::SeqCst) <= value;
        if is_wanted {
            // Waiters for more store their value again.
            self.wanted.store(u64::MAX, Ordering::SeqCst);
        }
        is_wanted
    }
}
