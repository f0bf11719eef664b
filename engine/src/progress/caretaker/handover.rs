//! Mutual exclusion of an engine's owner and the background thread.
//!
//! The owner enters and leaves with every call, the background thread rarely; so the owner's path
//! is nearly free. [`Handover::enter`] stores "inside" and checks whether the background thread
//! wants to enter; [`Handover::take`] announces that and checks whether the owner is inside. At
//! least one of the two sees the other, as each has a fence between its store and its check: the
//! background thread's interrupts all threads of the process (`membarrier`), so that the owner's is
//! a compiler fence only ([`sync`]).
//!
//! ```text
//!  owner       seq: even ── enter ──> odd ── leave ──> even      (a plain counter, stored only)
//!  background  WANTED: announced, then works while seq is even; the owner waits for the mutex
//!  thread      PARKED: sleeps until a step of the owner, which has to wake it
//! ```
//!
//! Each side sees the effects of the other: the owner's leave releases `seq` and the background
//! thread's check acquires it; the background thread releases `word` and the owner's check acquires
//! it, or the owner waits for the mutex. An owner that reads a `word` older than the background
//! thread's last turn would have been seen inside by that turn, which then would not have been
//! made.
//!
//! The model of this file is `tests/models/src/handover.rs`, which runs it with full fences.

use super::sync;
use super::sync::{AtomicU32, AtomicU64, Mutex, MutexGuard, Ordering};

/// The background thread is inside, or checks whether it may enter.
const WANTED: u32 = 1;
/// The background thread sleeps and requests a wake-up by the owner's next step.
const PARKED: u32 = 2;
/// The owner has something to do when it has left.
const DEFERRED: u32 = 4;

/// The hand-over; see the module.
#[derive(Debug)]
pub(crate) struct Handover {
    /// Odd while the owner is inside; counts its steps. Only the owner stores.
    seq: AtomicU64,
    word: AtomicU32,
    /// Held by the background thread for a turn, and by an owner that could not enter at once.
    turn: Mutex<()>,
    /// There is a background thread.
    is_shared: bool,
}

/// What the owner has to do next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub(crate) enum OwnerStep {
    /// Continue.
    Done,
    /// Wake the background thread, and continue.
    Wake,
    /// Do what was deferred, wake the caretaker, and go on.
    Deferred,
}

/// The background thread is inside until this is dropped.
#[derive(Debug)]
pub(crate) struct BackgroundGuard<'a> {
    handover: &'a Handover,
    _turn: MutexGuard<'a, ()>,
}

impl Drop for BackgroundGuard<'_> {
    fn drop(&mut self) {
        self.handover.word.fetch_and(!WANTED, Ordering::Release);
    }
}

impl Handover {
    /// Creates the hand-over of an engine with a background thread, or without one (`is_shared` is
    /// false).
    pub(crate) fn new(is_shared: bool) -> Self {
        Self { seq: AtomicU64::new(0), word: AtomicU32::new(0), turn: Mutex::new(()), is_shared }
    }

    // ---- The owner ----

    /// Returns whether the owner is inside; to be called by the owner.
    #[inline]
    pub(crate) fn is_inside(&self) -> bool {
        !self.seq.load(Ordering::Relaxed).is_multiple_of(2)
    }

    /// Enters as the owner, which must not be inside. Waits for a turn of the background thread to
    /// end.
    #[inline]
    pub(crate) fn enter(&self) -> OwnerStep {
        let seq = self.seq.load(Ordering::Relaxed);
        debug_assert!(seq.is_multiple_of(2), "the owner is inside already");
        self.seq.store(seq + 1, Ordering::Relaxed);
        if !self.is_shared {
            return OwnerStep::Done;
        }
        sync::owner_fence();
        if self.word.load(Ordering::Acquire) == 0 {
            return OwnerStep::Done;
        }
        self.enter_slowly(seq)
    }

    #[cold]
    fn enter_slowly(&self, seq: u64) -> OwnerStep {
        // Back out: the background thread may be inside, or about to check.
        self.seq.store(seq, Ordering::Release);
        // A background thread that panicked has left as well.
        let turn = self.turn.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        self.seq.store(seq + 1, Ordering::Relaxed);
        let word = self.word.fetch_and(!PARKED, Ordering::AcqRel);
        // The next holder of the turn sees that the owner is inside.
        drop(turn);
        if word & PARKED == 0 { OwnerStep::Done } else { OwnerStep::Wake }
    }

    /// Leaves as the owner.
    #[inline]
    pub(crate) fn leave(&self) -> OwnerStep {
        let seq = self.seq.load(Ordering::Relaxed);
        debug_assert!(!seq.is_multiple_of(2), "the owner is not inside");
        self.seq.store(seq + 1, Ordering::Release);
        if self.is_shared {
            sync::owner_fence();
        }
        if self.word.load(Ordering::Relaxed) & (PARKED | DEFERRED) == 0 {
            return OwnerStep::Done;
        }
        self.unpark()
    }

    #[cold]
    fn unpark(&self) -> OwnerStep {
        let word = self.word.fetch_and(!(PARKED | DEFERRED), Ordering::AcqRel);
        match word & (PARKED | DEFERRED) {
            0 => OwnerStep::Done,
            PARKED => OwnerStep::Wake,
            _ => OwnerStep::Deferred,
        }
    }

    /// To be called by the owner: its next [`Self::leave`] answers [`OwnerStep::Deferred`].
    #[cold]
    pub(crate) fn defer(&self) {
        self.word.fetch_or(DEFERRED, Ordering::Relaxed);
    }

    /// Marks the owner as inside forever, in a new child of `fork`, so that no thread enters.
    /// Stores to memory only.
    pub(crate) fn shut(&self) {
        self.seq.fetch_or(1, Ordering::Relaxed);
    }

    // ---- The background thread ----

    /// Returns the owner's steps so far; odd: it was inside.
    pub(crate) fn steps(&self) -> u64 {
        self.seq.load(Ordering::Relaxed)
    }

    /// Takes the engine over for a turn; `None`: the owner is inside.
    pub(crate) fn take(&self) -> Option<BackgroundGuard<'_>> {
        let turn = self.turn.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        self.word.fetch_or(WANTED, Ordering::Relaxed);
        // From here on dropping this reverts it.
        let taken = BackgroundGuard { handover: self, _turn: turn };
        let is_fenced = sync::caretaker_fence();
        let is_free = self.seq.load(Ordering::Acquire).is_multiple_of(2);
        (is_fenced && is_free).then_some(taken)
    }

    /// Returns whether the owner's next step wakes the background thread. An observed step may be
    /// the one that woke it, so this has to be checked again after each wake-up.
    pub(crate) fn is_parked(&self) -> bool {
        self.word.load(Ordering::Relaxed) & PARKED != 0
    }

    /// Parks the background thread until the owner makes a step beyond `steps`. Returns `false` if
    /// it has.
    pub(crate) fn park(&self, steps: u64) -> bool {
        let _turn = self.turn.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        self.word.fetch_or(PARKED, Ordering::Relaxed);
        let is_parked = sync::caretaker_fence() && self.seq.load(Ordering::Relaxed) == steps;
        if !is_parked {
            self.word.fetch_and(!PARKED, Ordering::Relaxed);
        }
        is_parked
    }
}
