//! The hand-over between an owner and the caretaker, in every order that the memory model allows.
//!
//! The file under test is the engine's own, over the types of `loom` and with full fences on both
//! sides: what `membarrier` promises is that the owner's side has such a fence whenever the
//! caretaker makes one.

#![allow(dead_code, reason = "the model does not need all of the file")]

#[path = "../../../engine/src/progress/caretaker/handover.rs"]
mod file;

/// Stands in for `progress/caretaker/sync.rs`.
mod sync {
    pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
    pub(crate) use loom::sync::{Mutex, MutexGuard};

    use loom::sync::atomic::fence;

    pub(crate) fn owner_fence() {
        fence(Ordering::SeqCst);
    }

    pub(crate) fn caretaker_fence() -> bool {
        fence(Ordering::SeqCst);
        true
    }
}

use file::{Handover, OwnerStep};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

/// Calls that the owner makes.
const CALLS: u64 = 2;

struct Place {
    handover: Handover,
    engine: UnsafeCell<u64>,
}

// SAFETY: what the model is to find out: loom watches the cell.
unsafe impl Sync for Place {}
// SAFETY: a number.
unsafe impl Send for Place {}

impl Place {
    fn new() -> Arc<Self> {
        Arc::new(Self { handover: Handover::new(true), engine: UnsafeCell::new(0) })
    }

    fn touch(&self) {
        // SAFETY: loom fails the model where another thread accesses the cell.
        self.engine.with_mut(|engine| unsafe { *engine += 1 });
    }

    /// Calls of the owner; how often it was told to wake the caretaker.
    fn own(&self) -> u64 {
        let mut wakes = 0;
        for _ in 0..CALLS {
            wakes += u64::from(self.handover.enter() == OwnerStep::Wake);
            self.touch();
            wakes += u64::from(self.handover.leave() == OwnerStep::Wake);
        }
        wakes
    }
}

#[test]
fn one_at_a_time_and_each_sees_what_the_other_did() {
    loom::model(|| {
        let place = Place::new();
        let caretakers = Arc::clone(&place);
        let caretaker = thread::spawn(move || {
            let taken = caretakers.handover.take();
            if taken.is_some() {
                caretakers.touch();
            }
            u64::from(taken.is_some())
        });
        place.own();
        let turns = caretaker.join().unwrap();
        let _ = place.handover.enter();
        // SAFETY: as in `touch`.
        let touched = place.engine.with(|engine| unsafe { *engine });
        assert_eq!(touched, CALLS + turns);
    });
}

#[test]
fn a_parked_caretaker_is_woken_by_the_next_step() {
    loom::model(|| {
        let place = Place::new();
        let caretakers = Arc::clone(&place);
        let caretaker = thread::spawn(move || {
            let steps = caretakers.handover.steps();
            caretakers.handover.park(steps).then_some(steps)
        });
        let wakes = place.own();
        let parked = caretaker.join().unwrap();
        match parked {
            Some(steps) if steps < 2 * CALLS => assert_eq!(wakes, 1),
            // The last step was seen, but not that the owner had not looked yet.
            Some(_) => assert_eq!(wakes == 0, place.handover.is_parked()),
            // It may be told to while the caretaker is still looking.
            None => assert!(wakes <= 1),
        }
    });
}

#[test]
fn a_turn_of_a_parked_caretaker_loses_no_wake() {
    loom::model(|| {
        let place = Place::new();
        assert!(place.handover.park(0));
        let caretakers = Arc::clone(&place);
        let caretaker = thread::spawn(move || {
            if let Some(taken) = caretakers.handover.take() {
                caretakers.touch();
                drop(taken);
            }
        });
        assert_eq!(place.own(), 1);
        caretaker.join().unwrap();
    });
}
