//! Waiting for the progress of a shared state: one thread leads, the others follow.
//!
//! Of the waiting threads, the *leader* alone makes progress. Posters enter between its turns. The
//! *followers* spin briefly, then sleep, until their condition is notified, or the leader's
//! condition holds and it passes leadership on. A leader without work sleeps in the kernel, with
//! the lock free.
//!
//! ```text
//!                      a waiter that finds it free leads
//!              ┌──────────────────────────────────────────────┐
//!              │                                              v
//!            FREE <── its condition holds: wakes one ────── AWAKE <─┐ under the lock: requests,
//!                                                          │  ^  ^ └─┘ progress
//!           under the lock: nothing happens, plan armed    │  │  │
//!                                                          v  │  │
//!        (lock released, checked again, then in kernel)    ASLEEP │ it wakes, or need not sleep
//!                                                          │     │
//!             a poster that queued, or is too early for    │     │
//!             the plan; a notifier of its condition:       v     │
//!                       writes the wake-up descriptor     RUNG ──┘
//!
//!   a follower:   spins ── for long ──> counted as sleeper; checks again ─> sleeps
//!                   ^                                                         │
//!                   └──── notified, or leadership passed on, or its time ─────┘
//!                         (condition holds: returns; FREE: leads)
//! ```
//!
//! No wake-up is lost:
//! - A queued request: its poster checks for ASLEEP after a fence, the leader checks the queue
//!   after a fence, after its ASLEEP. One sees the other.
//! - Changes of the state by a holder while the leader sleeps: ASLEEP is stored under the lock, so
//!   the holder sees it, and calls [`Doorbell::needs_wake`] before it leaves.
//! - A condition: the thread that fulfils it notifies, which checks for sleepers and for ASLEEP
//!   after a fence; sleepers and the leader check their conditions after a fence.
//! - Leadership: a thread that stores FREE wakes a sleeper, and so does a follower that was woken
//!   to lead but whose condition holds.

use std::cell::Cell;
use std::time::Instant;

use crossbeam_utils::CachePadded;

use super::combiner::{Combiner, CombinerGuard, Drained, Left, PostOutcome};
use super::sync::{self, AtomicU32, AtomicUsize, Ordering, fence};
use super::wait_set::{Keys, WaitSet};

/// There is no leader.
const FREE: u32 = 0;
/// The leader runs.
const AWAKE: u32 = 1;
/// The leader sleeps, or is about to.
const ASLEEP: u32 = 2;
/// As ASLEEP, and the wake-up descriptor was written.
const RUNG: u32 = 3;

/// Checks of a follower before it sleeps: doubled where that was enough, and halved where it was
/// not.
const SPINS_MIN: u32 = 4;
const SPINS_MAX: u32 = 256;

/// Wakes a leader that sleeps in the kernel.
pub(crate) trait Doorbell<S> {
    /// Returns whether a leader that armed its plan for an older state would wake too late for this
    /// one.
    fn needs_wake(&self, state: &S) -> bool;
    /// Ends the sleep of the leader, or the next one if it does not sleep yet.
    fn ring(&self);
}

/// A leader's operations on the state.
pub(crate) trait Progress<S, T> {
    /// What ends a sleep, such as a deadline and descriptors.
    type Plan;
    /// Applies a request.
    fn apply(&mut self, state: &mut S, request: T);
    /// Makes progress; returns whether something happened.
    fn progress(&mut self, state: &mut S) -> bool;
    /// Arms the state to wake sleepers on the plan, as nothing happened. `None`: another turn
    /// first. It may stay armed: the leader may find that it need not sleep.
    fn arm(&mut self, state: &mut S) -> Option<Self::Plan>;
    /// Called when the lock is free again after a turn in which something happened: the place for
    /// [`SharedProgress::notify`].
    fn released(&mut self);
    /// Sleeps until the plan, the wake-up descriptor, or `until`. May return early.
    fn sleep(&mut self, plan: Self::Plan, until: Option<Instant>);
}

/// A state that threads post to and wait for; see the module, and [`super::combiner`] for the
/// effect of a post.
#[derive(Debug)]
pub(crate) struct SharedProgress<S, T, B> {
    combiner: Combiner<S, T>,
    bell: B,
    leader: CachePadded<Leader>,
    followers: WaitSet,
    /// Spin count of followers.
    spins: AtomicU32,
}

#[derive(Debug)]
struct Leader {
    /// [`FREE`] to [`RUNG`].
    phase: AtomicU32,
    /// The classes that it waits for; [`Keys::bits`].
    keys: AtomicU32,
    /// Its number; 0: there is none.
    thread: AtomicUsize,
}

/// Why a follower stops following.
enum Followed<R> {
    Ready(R),
    Late,
    Free,
}

fn is_over(until: Option<Instant>) -> bool {
    until.is_some_and(|until| Instant::now() >= until)
}

impl<S, T, B: Doorbell<S>> SharedProgress<S, T, B> {
    pub(crate) fn new(state: S, bell: B) -> Self {
        let leader = Leader {
            phase: AtomicU32::new(FREE),
            keys: AtomicU32::new(0),
            thread: AtomicUsize::new(0),
        };
        Self {
            combiner: Combiner::new(state),
            bell,
            leader: CachePadded::new(leader),
            followers: WaitSet::default(),
            spins: AtomicU32::new(SPINS_MIN),
        }
    }

    /// Returns the object that wakes a leader.
    pub(crate) fn bell(&self) -> &B {
        &self.bell
    }

    /// Returns whether a thread makes progress, or sleeps until there is work.
    pub(crate) fn has_leader(&self) -> bool {
        self.leader.phase.load(Ordering::Relaxed) != FREE
    }

    /// Returns whether the leader sleeps.
    pub(crate) fn has_sleeping_leader(&self) -> bool {
        matches!(self.leader.phase.load(Ordering::Relaxed), ASLEEP | RUNG)
    }

    /// Returns whether a follower or the leader sleeps, or is about to: to be called after a fence.
    #[inline]
    pub(crate) fn has_sleeping_waiters(&self) -> bool {
        self.followers.has_sleepers() || self.leader.phase.load(Ordering::Relaxed) == ASLEEP
    }

    /// Returns the state without its waiters: counters, and locks for calls that need not wake a
    /// leader.
    pub(crate) fn combiner(&self) -> &Combiner<S, T> {
        &self.combiner
    }

    /// Makes the call `inline` with `what` if the lock is free and nothing earlier waits, and then
    /// `end`, which calls [`Self::end`] or [`Self::end_slowly`]. Otherwise `behind` makes the call
    /// or queues a request, by [`Self::post_behind`]. Never waits.
    #[inline]
    pub(crate) fn post<'a, P, R>(
        &'a self,
        what: P,
        inline: impl FnOnce(&mut S, P) -> R,
        end: impl FnOnce(CombinerGuard<'a, S, T>),
        behind: impl FnOnce(Option<CombinerGuard<'a, S, T>>, P) -> R,
    ) -> R {
        match self.try_begin() {
            Ok(mut guard) => {
                let answer = inline(&mut guard, what);
                end(guard);
                answer
            }
            Err(guard) => behind(guard, what),
        }
    }

    /// Begins a call, as [`Combiner::try_begin`], to be ended by [`Self::end`].
    #[inline]
    pub(crate) fn try_begin(
        &self,
    ) -> Result<CombinerGuard<'_, S, T>, Option<CombinerGuard<'_, S, T>>> {
        self.combiner.try_begin()
    }

    /// Releases the state if nothing else is necessary: no request is queued, and no leader sleeps.
    /// Otherwise [`Self::end_slowly`] is due.
    #[inline]
    pub(crate) fn end<'a>(
        &self,
        guard: CombinerGuard<'a, S, T>,
    ) -> Result<(), CombinerGuard<'a, S, T>> {
        sync::point();
        if self.leader.phase.load(Ordering::Relaxed) == ASLEEP {
            return Err(guard);
        }
        guard.release_if_clear()
    }

    /// Releases the state, after queued requests, and wakes a sleeping leader if necessary.
    pub(crate) fn end_slowly(
        &self,
        guard: CombinerGuard<'_, S, T>,
        mut apply: impl FnMut(&mut S, T),
    ) -> Drained {
        let wakes = Cell::new(false);
        self.judge(&guard, &wakes);
        let drained = guard.release(|state, request| {
            apply(state, request);
            self.judge(state, &wakes);
        });
        if wakes.get() {
            self.wake_leader();
        }
        drained
    }

    /// Makes the call, or queues, where [`Self::try_begin`] has returned `guard` instead of the
    /// state.
    pub(crate) fn post_behind<R>(
        &self,
        guard: Option<CombinerGuard<'_, S, T>>,
        inline: impl FnOnce(&mut S) -> R,
        queued: impl FnOnce() -> T,
        mut apply: impl FnMut(&mut S, T),
    ) -> PostOutcome<R> {
        let wakes = Cell::new(false);
        let posted = self.combiner.post_behind(
            guard,
            |state| {
                let answer = inline(state);
                self.judge(state, &wakes);
                answer
            },
            queued,
            |state, request| {
                apply(state, request);
                self.judge(state, &wakes);
            },
        );
        match posted {
            PostOutcome::Inline(_) if !wakes.get() => {}
            PostOutcome::Inline(_) => self.wake_leader(),
            PostOutcome::Queued => {
                // After the push.
                fence(Ordering::SeqCst);
                sync::point();
                if wakes.get() || self.combiner.has_leftover() || !self.combiner.is_queue_empty() {
                    self.wake_leader();
                }
            }
        }
        posted
    }

    /// Makes a call with the state, after waiting for the lock, after everything that was posted
    /// before.
    ///
    /// # Panics
    /// If the calling thread is inside.
    pub(crate) fn enter<R>(
        &self,
        call: impl FnOnce(&mut S) -> R,
        mut apply: impl FnMut(&mut S, T),
    ) -> R {
        let guard = self.combiner.lock_behind_posts(&mut apply);
        self.call(guard, call, apply)
    }

    /// Makes a call as [`Self::enter`] does; `None` if a thread is inside, this one included.
    #[inline]
    pub(crate) fn try_enter<R>(
        &self,
        call: impl FnOnce(&mut S) -> R,
        mut apply: impl FnMut(&mut S, T),
    ) -> Option<R> {
        let guard = match self.try_begin() {
            Ok(guard) => guard,
            Err(guard) => {
                let mut guard = guard?;
                // The rest is applied later, and its posters wake the leader.
                guard.drain(&mut apply);
                guard
            }
        };
        Some(self.call(guard, call, apply))
    }

    /// Makes a call with the state, and wakes the leader if anything under this guard requires it.
    #[inline]
    fn call<R>(
        &self,
        mut guard: CombinerGuard<'_, S, T>,
        call: impl FnOnce(&mut S) -> R,
        apply: impl FnMut(&mut S, T),
    ) -> R {
        let answer = call(&mut guard);
        if let Err(guard) = self.end(guard) {
            self.end_slowly(guard, apply);
        }
        answer
    }

    /// Determines, under the lock, whether a sleeping leader has to be woken.
    #[inline]
    fn judge(&self, state: &S, wakes: &Cell<bool>) {
        if self.leader.phase.load(Ordering::Relaxed) == ASLEEP && self.bell.needs_wake(state) {
            wakes.set(true);
        }
    }

    /// Wakes the leader if it sleeps.
    fn wake_leader(&self) {
        let phase = &self.leader.phase;
        if phase.load(Ordering::Relaxed) == ASLEEP
            && !planted!(LoseRing)
            && phase.compare_exchange(ASLEEP, RUNG, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        {
            self.bell.ring();
        }
    }

    /// Lets waiters for one of `keys` check their conditions, which the caller has fulfilled. A
    /// fence and two loads while no thread sleeps; preferably called without the lock.
    #[inline]
    pub(crate) fn notify(&self, keys: Keys) {
        self.followers.notify_all(keys);
        // After the fence of the former.
        if self.leader.phase.load(Ordering::Relaxed) == ASLEEP
            && self.leader.keys.load(Ordering::Relaxed) & keys.bits() != 0
        {
            self.wake_leader();
        }
    }

    /// Waits until `ready` returns a value; it reads state that is readable without the lock and is
    /// notified for one of `keys`. `None`: `until` has passed.
    ///
    /// # Panics
    /// If the calling thread is inside.
    pub(crate) fn wait<R>(
        &self,
        keys: Keys,
        until: Option<Instant>,
        mut ready: impl FnMut() -> Option<R>,
        progress: &mut impl Progress<S, T>,
    ) -> Option<R> {
        if let Some(answer) = ready() {
            return Some(answer);
        }
        self.combiner.refuse_reentry();
        assert!(
            self.leader.thread.load(Ordering::Relaxed) != sync::thread_number(),
            "this thread makes the progress of the engine: a callback (a waker) may post, but must \
             not wait for the engine; make the call after the callback has returned"
        );
        let phase = &self.leader.phase;
        loop {
            if phase.compare_exchange(FREE, AWAKE, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                let _leading = LeadGuard { shared: self };
                self.leader.thread.store(sync::thread_number(), Ordering::Relaxed);
                return self.lead(keys, until, ready, progress);
            }
            match self.follow(keys, until, &mut ready) {
                Followed::Ready(answer) => return Some(answer),
                Followed::Late => return None,
                Followed::Free => {}
            }
        }
    }

    fn follow<R>(
        &self,
        keys: Keys,
        until: Option<Instant>,
        mut ready: impl FnMut() -> Option<R>,
    ) -> Followed<R> {
        let is_free = || self.leader.phase.load(Ordering::Relaxed) == FREE;
        let spins = self.spins.load(Ordering::Relaxed);
        for _ in 0..sync::spins(spins) {
            if let Some(answer) = ready() {
                self.spins.store((spins * 2).min(SPINS_MAX), Ordering::Relaxed);
                return Followed::Ready(answer);
            }
            if is_free() {
                return Followed::Free;
            }
            sync::pause();
        }
        self.spins.store((spins / 2).max(SPINS_MIN), Ordering::Relaxed);
        let mut has_slept = false;
        let followed = loop {
            let ticket = self.followers.prepare_for(keys);
            sync::point();
            if let Some(answer) = ready() {
                break Followed::Ready(answer);
            }
            if is_free() {
                break Followed::Free;
            }
            if is_over(until) {
                break Followed::Late;
            }
            ticket.wait(until);
            has_slept = true;
        };
        if has_slept && !matches!(followed, Followed::Free) {
            // It may have been woken to lead.
            fence(Ordering::SeqCst);
            if is_free() {
                self.followers.notify_one();
            }
        }
        followed
    }

    fn lead<R>(
        &self,
        keys: Keys,
        until: Option<Instant>,
        mut ready: impl FnMut() -> Option<R>,
        progress: &mut impl Progress<S, T>,
    ) -> Option<R> {
        let phase = &self.leader.phase;
        self.leader.keys.store(keys.bits(), Ordering::Relaxed);
        loop {
            let mut guard = self.combiner.lock();
            let drained = guard.drain(|state, request| progress.apply(state, request));
            let happened = progress.progress(&mut guard);
            let mut plan = None;
            if !happened && drained.applied == 0 {
                plan = progress.arm(&mut guard);
            }
            if plan.is_some() {
                phase.store(ASLEEP, Ordering::Relaxed);
            }
            let released = guard.release(|state, request| progress.apply(state, request));
            if released.applied > 0 && plan.take().is_some() {
                // The plan is for an older state.
                phase.store(AWAKE, Ordering::Relaxed);
            }
            sync::point();
            if plan.is_some() {
                // After ASLEEP.
                fence(Ordering::SeqCst);
            } else {
                // It must not write the wake-up descriptor for itself.
                progress.released();
            }
            let answer = ready();
            let is_over = answer.is_some() || is_over(until);
            if let Some(plan) = plan {
                let is_idle = match released.left {
                    // Its pusher was marked, and enters itself.
                    Left::Pending => true,
                    Left::More | Left::Nothing => self.combiner.is_queue_empty(),
                };
                if !is_over && is_idle {
                    progress.sleep(plan, until);
                }
                phase.store(AWAKE, Ordering::Relaxed);
            }
            if is_over {
                return answer;
            }
        }
    }
}

/// The calling thread leads until this is dropped, also by a panic.
struct LeadGuard<'a, S, T, B> {
    shared: &'a SharedProgress<S, T, B>,
}

impl<S, T, B> Drop for LeadGuard<'_, S, T, B> {
    fn drop(&mut self) {
        self.shared.leader.thread.store(0, Ordering::Relaxed);
        self.shared.leader.phase.store(FREE, Ordering::Release);
        if planted!(LoseLeadership) {
            return;
        }
        sync::point();
        self.shared.followers.notify_one();
    }
}
