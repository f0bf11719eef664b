//! Activity of an engine that several threads use in turn, as seen by the background thread.
//!
//! As in [`super::handover`], whose fences are used: a thread that has used the engine increments
//! the count and checks whether the background thread sleeps; the background thread announces that
//! it sleeps and checks the count. At least one of the two sees the other.

use super::sync::{self, AtomicU32, AtomicU64, Ordering};

/// Count of steps of an engine's threads.
#[derive(Debug, Default)]
pub(in crate::progress) struct Activity {
    /// Stored by the thread that holds the engine.
    steps: AtomicU64,
    is_parked: AtomicU32,
}

impl Activity {
    /// Counts a step, on the thread that holds the engine.
    #[inline]
    pub(in crate::progress) fn count(&self) {
        self.steps.store(self.steps.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// Returns whether the background thread sleeps and the caller has to wake it. To be called
    /// after a step, without the engine.
    #[inline]
    pub(in crate::progress) fn wakes_caretaker(&self) -> bool {
        sync::owner_fence();
        self.is_parked() && self.unpark()
    }

    #[cold]
    fn unpark(&self) -> bool {
        self.is_parked.swap(0, Ordering::AcqRel) != 0
    }

    /// Returns the number of steps so far.
    pub(in crate::progress) fn steps(&self) -> u64 {
        self.steps.load(Ordering::Relaxed)
    }

    /// Parks the background thread until the next step. Returns `false` if `is_unchanged` reports
    /// that one was made already.
    pub(in crate::progress) fn park(&self, is_unchanged: impl FnOnce() -> bool) -> bool {
        self.is_parked.store(1, Ordering::Relaxed);
        let is_parked = sync::caretaker_fence() && is_unchanged();
        if !is_parked {
            self.is_parked.store(0, Ordering::Relaxed);
        }
        is_parked
    }

    /// Returns whether the next step wakes the background thread.
    pub(in crate::progress) fn is_parked(&self) -> bool {
        self.is_parked.load(Ordering::Relaxed) != 0
    }
}
