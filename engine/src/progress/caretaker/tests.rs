//! Two threads and one engine, on this machine's own memory; and the adaptive silence.

use std::cell::UnsafeCell;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::handover::{Handover, OwnerStep};
use super::{Cared, PATIENCE_MAX, TICK, Ward, sync};
use crate::forks::EngineFd;
use crate::types::Error;

/// Two numbers that differ only while a thread is inside.
struct Place {
    handover: Handover,
    engine: UnsafeCell<(u64, u64)>,
    is_over: AtomicBool,
}

// SAFETY: only the thread admitted by the hand-over accesses the engine; this is what is tested.
unsafe impl Sync for Place {}

impl Place {
    /// Modifies both numbers; the caller must be inside.
    fn work(&self) {
        // SAFETY: the caller is inside.
        let engine = unsafe { &mut *self.engine.get() };
        assert_eq!(engine.0, engine.1, "another thread is inside");
        engine.0 += 1;
        for _ in 0..engine.0 % 16 {
            std::hint::spin_loop();
        }
        engine.1 += 1;
    }
}

/// Both threads enter repeatedly, in all rhythms; their effects add up, and each sleep ends.
#[test]
fn owner_and_background_thread_exclude_each_other() {
    sync::free_owners_of_fences();
    let handover = Handover::new(true);
    let place =
        Arc::new(Place { handover, engine: UnsafeCell::default(), is_over: AtomicBool::default() });
    let caretakers = Arc::clone(&place);
    let caretaker = thread::spawn(move || {
        let (mut turns, mut parks) = (0u64, 0u64);
        while !caretakers.is_over.load(Ordering::Relaxed) {
            if let Some(taken) = caretakers.handover.take() {
                caretakers.work();
                turns += 1;
                drop(taken);
            }
            let steps = caretakers.handover.steps();
            if turns % 8 == 0 && caretakers.handover.park(steps) {
                parks += 1;
                while caretakers.handover.is_parked() && !caretakers.is_over.load(Ordering::Relaxed)
                {
                    thread::yield_now();
                }
            }
        }
        (turns, parks)
    });
    let deadline = Instant::now() + Duration::from_secs(2);
    let (mut calls, mut wakes) = (0u64, 0u64);
    while Instant::now() < deadline {
        for pause in 0..200 {
            wakes += u64::from(place.handover.enter() == OwnerStep::Wake);
            place.work();
            wakes += u64::from(place.handover.leave() == OwnerStep::Wake);
            calls += 1;
            for _ in 0..pause % 50 {
                std::hint::spin_loop();
            }
        }
        thread::yield_now();
    }
    place.is_over.store(true, Ordering::Relaxed);
    let (turns, parks) = caretaker.join().unwrap();
    assert!(turns > 0, "the background thread never entered");
    // A wake-up may be reported while the background thread still checks whether it can sleep.
    assert!(wakes + 1 >= parks, "{wakes} wakes for {parks} sleeps");
    let _ = place.handover.enter();
    // SAFETY: all other threads have ended.
    let engine = unsafe { *place.engine.get() };
    assert_eq!(engine, (calls + turns, calls + turns));
}

/// No thread enters beside an owner that stays, and the owner wakes a sleeping one.
#[test]
fn staying_owner_excludes_the_background_thread() {
    let handover = Handover::new(true);
    let _ = handover.enter();
    assert!(handover.take().is_none() && handover.take().is_none());
    assert!(!handover.park(0), "it made a step since");
    assert!(handover.park(1) && handover.is_parked());
    assert_eq!(handover.leave(), OwnerStep::Wake);
    assert!(!handover.is_parked());
    assert!(handover.take().is_some());
    assert_eq!(handover.enter(), OwnerStep::Done);
    assert_eq!(handover.leave(), OwnerStep::Done);
}

/// An engine without content.
#[derive(Default)]
struct Empty {
    steps: AtomicU64,
    turns: AtomicU64,
    /// Turns consume an event.
    has_event: AtomicBool,
}

impl Cared for Empty {
    fn steps(&self) -> u64 {
        self.steps.load(Ordering::Relaxed)
    }

    fn park(&self, steps: u64) -> bool {
        self.steps() == steps
    }

    fn is_parked(&self) -> bool {
        true
    }

    fn wake_fds(&self) -> Arc<[EngineFd]> {
        Arc::new([])
    }

    fn tasks_sleep_by(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn wake_tasks(&self) -> bool {
        false
    }

    fn turn(&self) -> Option<Result<(bool, Option<Duration>), Error>> {
        self.turns.fetch_add(1, Ordering::Relaxed);
        Some(Ok((self.has_event.load(Ordering::Relaxed), None)))
    }
}

/// The silence required of owners that return soon grows, within limits, and is reset once they
/// stay away.
#[test]
fn returning_owner_raises_the_required_silence() {
    let engine = Arc::new(Empty::default());
    let place: Arc<dyn Cared> = engine.clone();
    let mut ward = Ward::new(&place);
    let mut now = Instant::now();
    let mut silence = |ward: &mut Ward, away: Duration| {
        // A step, silence until a turn is made, and `away` more: returns how long it took.
        engine.steps.fetch_add(2, Ordering::Relaxed);
        let (began, turns) = (now, engine.turns.load(Ordering::Relaxed));
        let next = ward.look(now);
        assert_eq!(engine.turns.load(Ordering::Relaxed), turns, "its owner was just active");
        now = next.expect("it is checked again");
        assert_eq!(ward.look(now), None, "nothing is due");
        assert_eq!(engine.turns.load(Ordering::Relaxed), turns + 1);
        let waited = now - began;
        now += away;
        waited
    };
    let (soon, late) = (TICK / 2, PATIENCE_MAX * 2);
    let _ = silence(&mut ward, soon);
    for expected in [2, 4, 4, 4] {
        assert_eq!(silence(&mut ward, soon), TICK * expected);
    }
    assert_eq!(silence(&mut ward, late), PATIENCE_MAX);
    assert_eq!(silence(&mut ward, late), TICK);
    assert_eq!(silence(&mut ward, soon), TICK);
    assert_eq!(silence(&mut ward, soon), TICK * 2);
}

/// Descriptors whose events turns do not consume are not polled for a while, and then again.
#[test]
fn unconsumed_events_pause_polling() {
    let engine = Arc::new(Empty::default());
    let place: Arc<dyn Cared> = engine.clone();
    let mut ward = Ward::new(&place);
    let mut now = Instant::now() + TICK;
    assert_eq!(ward.look(now), None);
    assert!(ward.listens());
    let call = |ward: &mut Ward, now: Instant| {
        ward.is_called = true;
        let next = ward.look(now);
        assert_eq!(ward.listens(), next.is_none());
        next.map(|next| next - now)
    };
    for ticks in [2, 4, 8] {
        assert_eq!(call(&mut ward, now), Some(TICK * ticks));
        now += TICK * ticks;
        assert_eq!(ward.look(now), None);
        assert!(ward.listens(), "whatever happened before");
    }
    engine.has_event.store(true, Ordering::Relaxed);
    assert_eq!(call(&mut ward, now), None);
    engine.has_event.store(false, Ordering::Relaxed);
    now += TICK * 100;
    for _ in 0..3 {
        assert_eq!(call(&mut ward, now), Some(TICK * 2), "the previous event was long ago");
        now += TICK * 100;
        assert_eq!(ward.look(now), None);
    }
}
