//! What the caretaker sees of an engine that several threads hold in turn.
//!
//! As in [`super::handover`], whose fences these are: who has held the engine counts it and looks
//! whether the caretaker sleeps; the caretaker says that it sleeps and looks at the count. One of
//! the two sees the other.

use super::sync::{self, AtomicU32, AtomicU64, Ordering};

/// Steps of the threads of an engine.
#[derive(Debug, Default)]
pub(in crate::progress) struct Activity {
    /// Stored by who holds the engine.
    steps: AtomicU64,
    is_parked: AtomicU32,
}

impl Activity {
    /// A step is made, by the thread that holds the engine.
    #[inline]
    pub(in crate::progress) fn count(&self) {
        self.steps.store(self.steps.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// To be called behind a step, without the engine. `true`: the caretaker sleeps, and is to be
    /// woken by the caller.
    #[inline]
    pub(in crate::progress) fn wakes_caretaker(&self) -> bool {
        sync::owner_fence();
        self.is_parked() && self.unpark()
    }

    #[cold]
    fn unpark(&self) -> bool {
        self.is_parked.swap(0, Ordering::AcqRel) != 0
    }

    /// Steps so far.
    pub(in crate::progress) fn steps(&self) -> u64 {
        self.steps.load(Ordering::Relaxed)
    }

    /// The caretaker sleeps until the next step. `false`: `is_unchanged` says that one was made
    /// already.
    pub(in crate::progress) fn park(&self, is_unchanged: impl FnOnce() -> bool) -> bool {
        self.is_parked.store(1, Ordering::Relaxed);
        let is_parked = sync::caretaker_fence() && is_unchanged();
        if !is_parked {
            self.is_parked.store(0, Ordering::Relaxed);
        }
        is_parked
    }

    /// Whether the next step wakes the caretaker.
    pub(in crate::progress) fn is_parked(&self) -> bool {
        self.is_parked.load(Ordering::Relaxed) != 0
    }
}
