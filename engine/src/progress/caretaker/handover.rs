//! Who may touch an engine: its owner, or the caretaker.
//!
//! The owner comes and goes with every call, the caretaker once in a while; so the owner pays next
//! to nothing. [`Handover::enter`] stores "inside" and looks whether the caretaker wants in;
//! [`Handover::take`] says so and looks whether the owner is inside. At least one of the two sees
//! the other, as each has a fence between its store and its look: the caretaker's interrupts all
//! threads of the process (`membarrier`), so that the owner's need only bind the compiler
//! ([`sync`]).
//!
//! ```text
//!  owner       seq: even ── enter ──> odd ── leave ──> even      (a plain counter, stored only)
//!  caretaker   WANTED: asks, then works while seq is even; the owner waits for the turn's mutex
//!              PARKED: sleeps until the owner enters or leaves, and wants to be woken then
//! ```
//!
//! What one side did is seen by the other: the owner's leave releases `seq` and the caretaker's
//! look acquires it; the caretaker releases `word` and the owner's look acquires it, or the owner
//! waits for the mutex. An owner that reads a `word` older than the caretaker's last turn would
//! have been seen inside by that turn, which then would not have been.
//!
//! The model of this file is `tests/models/src/handover.rs`, which runs it with full fences.

use super::sync;
use super::sync::{AtomicU32, AtomicU64, Mutex, MutexGuard, Ordering};

/// The caretaker is inside, or looks whether it can be.
const WANTED: u32 = 1;
/// The caretaker sleeps and wants to be woken by the next step of the owner.
const PARKED: u32 = 2;
/// The owner has something to do when it has left.
const DEFERRED: u32 = 4;

/// See the module.
#[derive(Debug)]
pub(crate) struct Handover {
    /// Odd while the owner is inside; counts its steps. Only the owner stores.
    seq: AtomicU64,
    word: AtomicU32,
    /// Held by the caretaker for a turn, and by an owner that could not enter at once.
    turn: Mutex<()>,
    /// There is a caretaker.
    is_shared: bool,
}

/// What the owner is to do next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub(crate) enum Step {
    /// Go on.
    Done,
    /// Wake the caretaker, and go on.
    Wake,
    /// Do what was deferred, wake the caretaker, and go on.
    Deferred,
}

/// The caretaker is inside until this is dropped.
#[derive(Debug)]
pub(crate) struct Taken<'a> {
    handover: &'a Handover,
    _turn: MutexGuard<'a, ()>,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.handover.word.fetch_and(!WANTED, Ordering::Release);
    }
}

impl Handover {
    /// Of an engine that the caretaker looks after, or (`is_shared` is false) nobody.
    pub(crate) fn new(is_shared: bool) -> Self {
        Self { seq: AtomicU64::new(0), word: AtomicU32::new(0), turn: Mutex::new(()), is_shared }
    }

    // ---- The owner ----

    /// Whether the owner is inside; to be asked by the owner.
    #[inline]
    pub(crate) fn is_inside(&self) -> bool {
        !self.seq.load(Ordering::Relaxed).is_multiple_of(2)
    }

    /// The owner comes in; it must not be inside. Waits for a turn of the caretaker to end.
    #[inline]
    pub(crate) fn enter(&self) -> Step {
        let seq = self.seq.load(Ordering::Relaxed);
        debug_assert!(seq.is_multiple_of(2), "the owner is inside already");
        self.seq.store(seq + 1, Ordering::Relaxed);
        if !self.is_shared {
            return Step::Done;
        }
        sync::owner_fence();
        if self.word.load(Ordering::Acquire) == 0 {
            return Step::Done;
        }
        self.enter_slowly(seq)
    }

    #[cold]
    fn enter_slowly(&self, seq: u64) -> Step {
        // Back out: the caretaker may be inside, or about to look.
        self.seq.store(seq, Ordering::Release);
        // A caretaker that panicked has left as well.
        let turn = self.turn.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        self.seq.store(seq + 1, Ordering::Relaxed);
        let word = self.word.fetch_and(!PARKED, Ordering::AcqRel);
        // Whoever takes the turn next sees that the owner is inside.
        drop(turn);
        if word & PARKED == 0 { Step::Done } else { Step::Wake }
    }

    /// The owner goes out.
    #[inline]
    pub(crate) fn leave(&self) -> Step {
        let seq = self.seq.load(Ordering::Relaxed);
        debug_assert!(!seq.is_multiple_of(2), "the owner is not inside");
        self.seq.store(seq + 1, Ordering::Release);
        if self.is_shared {
            sync::owner_fence();
        }
        if self.word.load(Ordering::Relaxed) & (PARKED | DEFERRED) == 0 {
            return Step::Done;
        }
        self.unpark()
    }

    #[cold]
    fn unpark(&self) -> Step {
        let word = self.word.fetch_and(!(PARKED | DEFERRED), Ordering::AcqRel);
        match word & (PARKED | DEFERRED) {
            0 => Step::Done,
            PARKED => Step::Wake,
            _ => Step::Deferred,
        }
    }

    /// To be called by the owner: its next [`Self::leave`] answers [`Step::Deferred`].
    #[cold]
    pub(crate) fn defer(&self) {
        self.word.fetch_or(DEFERRED, Ordering::Relaxed);
    }

    /// For a child that `fork` has just made: the owner is inside for good, so that no thread comes
    /// in. Stores to memory alone.
    pub(crate) fn shut(&self) {
        self.seq.fetch_or(1, Ordering::Relaxed);
    }

    // ---- The caretaker ----

    /// Steps of the owner so far; odd: it was inside.
    pub(crate) fn steps(&self) -> u64 {
        self.seq.load(Ordering::Relaxed)
    }

    /// Takes the engine over for a turn; `None`: the owner is inside.
    pub(crate) fn take(&self) -> Option<Taken<'_>> {
        let turn = self.turn.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        self.word.fetch_or(WANTED, Ordering::Relaxed);
        // From here on the drop of this takes it back.
        let taken = Taken { handover: self, _turn: turn };
        let is_fenced = sync::caretaker_fence();
        let is_free = self.seq.load(Ordering::Acquire).is_multiple_of(2);
        (is_fenced && is_free).then_some(taken)
    }

    /// Whether the next step of the owner wakes the caretaker. A step that was seen may be the one
    /// that woke it, so this is to be asked again after each wake.
    pub(crate) fn is_parked(&self) -> bool {
        self.word.load(Ordering::Relaxed) & PARKED != 0
    }

    /// The caretaker sleeps until the owner makes a step beyond `steps`. `false`: it has.
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
