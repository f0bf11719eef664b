//! A counter that wakes those who wait for a value of it, once for many steps.
//!
//! A waiter counts itself as a sleeper ([`super::wait_set`]), says what value it wants, then looks.
//! Who counts looks, behind its step, whether somebody wants that value or less; if so it takes the
//! wish back, and wakes all that sleep: those who wanted more say so again. So one of the two sees
//! the other, and a wish that is taken back too early is followed by a wake.

use super::sync::{AtomicU64, Ordering};

/// One counter. Those who hold the engine and the counter's user write, all read.
#[derive(Debug)]
pub(crate) struct Count {
    value: AtomicU64,
    errors: AtomicU64,
    /// The lowest value that somebody sleeps for; `u64::MAX`: nobody does.
    wanted: AtomicU64,
    /// Spreads counters over classes of those who wait.
    number: u32,
}

impl Count {
    /// One of value 0 that nobody waits for.
    pub(crate) fn new(number: u32) -> Self {
        Self {
            value: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            wanted: AtomicU64::new(u64::MAX),
            number,
        }
    }

    /// What is counted was written before, and is seen by whoever sees the count.
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

    /// Says that the caller is about to sleep until the value is `threshold` or more. To be called
    /// before the value is looked at, and again after each wake.
    pub(crate) fn want(&self, threshold: u64) {
        // Where a lower value is wanted already its news comes behind this look, and wakes the
        // caller, too.
        if self.wanted.load(Ordering::SeqCst) > threshold {
            self.wanted.fetch_min(threshold, Ordering::SeqCst);
        }
    }

    /// `true`: those who wait are to be told.
    pub(crate) fn add(&self, more: u64) -> bool {
        let value = self.value.fetch_add(more, Ordering::SeqCst).wrapping_add(more);
        self.is_wanted(value)
    }

    /// As [`Self::add`].
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
            // Whoever wants more says so again.
            self.wanted.store(u64::MAX, Ordering::SeqCst);
        }
        is_wanted
    }
}
