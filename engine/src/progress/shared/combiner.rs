//! State that many threads post to: the lock holder executes the requests of the other threads.
//!
//! A thread that posts tries the lock. If it gets it, it executes its call directly, after the
//! requests of earlier ones. If not, it queues a request and continues: the holder applies it
//! before it releases. So no call waits for another thread, even for one that was preempted inside
//! the lock.
//!
//! Alternatives considered:
//! - a mutex: posters wait for a preempted holder;
//! - a try-lock alone, as in LCI: the caller has to retry, and may never succeed;
//! - a queue alone with a thread of its own: a spinning core, or a wake-up for each request;
//! - a lock and a queue in two words: each release and each push has to check the other word after
//!   a fence, and a release that finds a request has to lock again. Here the lock is a bit of the
//!   queue's newest pointer ([`super::queue`]), which costs the same two read-modify-writes
//!   uncontended and has no such window;
//! - a stack of requests that the holder reverses (Treiber, Oyama): no link is ever missing, but a
//!   push is a loop.
//!
//! # Order
//! Requests and inline calls that happen one before the other take effect in that order. An
//! inline call is made only when nothing is queued, not even by a pusher that has its slot but no
//! link.
//!
//! # Leftovers
//! A thread that releases the lock has applied the queued requests, up to a limit, so that each
//! call ends. [`Combiner::has_leftover`] shows the others, which the next holder applies first: the
//! next poster, a waiter, or the background thread, which check it. Leftovers are
//! - requests beyond the limit of rounds, while others push continuously;
//! - the request of a pusher that is preempted between its two steps: it applies it itself when it
//!   resumes, or lets the holder do it;
//! - requests queued while a [`CombinerGuard`] was held that was dropped instead of released.
//!
//! # Panics in closures
//! A panic in a closure is propagated to its caller, and releases the lock. The request that was
//! being applied is lost, others are leftovers. There is no poisoning: the state is as the closure
//! left it, and has to be valid for further use, as in a `RefCell`.

use std::ops::{Deref, DerefMut};

use super::queue::{Holder, Popped, QueueLock};
use super::sync::{self, AtomicBool, AtomicU64, Ordering};

/// Maximum requests per drain.
const BATCH: usize = 64;
/// Maximum drains per release.
const ROUNDS: u32 = 4;
/// How often a thread checks whether the lock is free before it sleeps.
const SPINS: u32 = 64;

/// Result of a post.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub(crate) enum PostOutcome<R> {
    /// The inline call was made, after all earlier requests.
    Inline(R),
    /// A request was queued. It may have been applied already.
    Queued,
}

/// What a drain left queued.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Left {
    /// Nothing.
    Nothing,
    /// A pusher has its slot but no link yet.
    Pending,
    /// More than the limit.
    More,
}

/// Result of a drain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Drained {
    /// Requests applied.
    pub(crate) applied: usize,
    pub(crate) left: Left,
}

/// Counters since the start; read individually.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct CombinerCounts {
    /// Posts that found the lock taken.
    pub(crate) failed_locks: u64,
    /// Requests applied, by any thread.
    pub(crate) combined: u64,
    /// Releases that left requests queued.
    pub(crate) leftovers: u64,
}

/// The combiner; see the module.
#[derive(Debug)]
pub(crate) struct Combiner<S, T> {
    lock: QueueLock<S, T>,
    /// The last release left requests queued, or the next one will. Stored by the holder.
    has_leftover: AtomicBool,
    /// Pushes by holders. The counters are stored by holders.
    pushed_inside: AtomicU64,
    combined: AtomicU64,
    leftovers: AtomicU64,
}

/// Adds to a counter that only the holder stores.
fn add(counter: &AtomicU64, count: u64) {
    counter.store(counter.load(Ordering::Relaxed) + count, Ordering::Relaxed);
}

impl<S, T> Combiner<S, T> {
    pub(crate) fn new(state: S) -> Self {
        Self {
            lock: QueueLock::new(state),
            has_leftover: AtomicBool::new(false),
            pushed_inside: AtomicU64::new(0),
            combined: AtomicU64::new(0),
            leftovers: AtomicU64::new(0),
        }
    }

    /// Returns the state for a call that may not overtake queued requests, if it is available now.
    /// If not: the guard where the lock was free.
    #[inline]
    pub(crate) fn try_begin(
        &self,
    ) -> Result<CombinerGuard<'_, S, T>, Option<CombinerGuard<'_, S, T>>> {
        match self.try_lock() {
            Some(guard) if guard.is_clear() || planted!(PassQueue) => Ok(guard),
            found => Err(found),
        }
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
        let Some(mut guard) = guard else {
            if let Some(holder) = self.lock.push(queued()) {
                CombinerGuard::new(self, holder).release(apply);
            }
            return PostOutcome::Queued;
        };
        if guard.drain(&mut apply).left != Left::Nothing {
            guard.push(queued());
            guard.release(apply);
            return PostOutcome::Queued;
        }
        let answer = inline(&mut guard);
        sync::point();
        guard.release(apply);
        PostOutcome::Inline(answer)
    }

    /// Returns the state, unless a thread has it, this one included.
    #[inline]
    pub(crate) fn try_lock(&self) -> Option<CombinerGuard<'_, S, T>> {
        Some(CombinerGuard::new(self, self.lock.try_lock()?))
    }

    /// Returns the state, for calls that may wait. Spins, then sleeps; waiters are unordered.
    ///
    /// # Panics
    /// If the calling thread has it, such as in a callback of the engine.
    pub(crate) fn lock(&self) -> CombinerGuard<'_, S, T> {
        self.refuse_reentry();
        for spins in 0..sync::spins(SPINS) {
            if let Some(guard) = self.try_lock() {
                return guard;
            }
            // The holder may need this core.
            if spins % 8 == 7 { sync::yield_now() } else { sync::pause() }
        }
        CombinerGuard::new(self, self.lock.lock_or_sleep())
    }

    /// See [`QueueLock::shut`].
    pub(crate) fn shut(&self) {
        self.lock.shut();
    }

    /// Returns whether the calling thread has the state.
    pub(crate) fn is_held_here(&self) -> bool {
        self.lock.is_held_here()
    }

    /// Locks after everything that was posted before, by any thread. May wait for pushers that are
    /// between their two steps.
    pub(crate) fn lock_behind_posts(
        &self,
        mut apply: impl FnMut(&mut S, T),
    ) -> CombinerGuard<'_, S, T> {
        let before = self.lock.pushed();
        let mut guard = self.lock();
        loop {
            match guard.drain(&mut apply).left {
                Left::Nothing => return guard,
                Left::More => {}
                Left::Pending => sync::yield_now(),
            }
            if self.lock.popped() >= before {
                return guard;
            }
        }
    }

    /// Returns the number of requests queued so far, or about to be.
    pub(crate) fn pushed(&self) -> usize {
        self.lock.pushed()
    }

    /// Panics if the calling thread has the state: it would wait for itself.
    pub(crate) fn refuse_reentry(&self) {
        assert!(
            !self.lock.is_held_here(),
            "this thread is inside the engine already: a callback of the engine (a waker, a \
             subscriber of traces) may post, but must not wait for the engine; make the call \
             after the callback has returned"
        );
    }

    /// Returns whether queued requests wait for the next holder: lock, and drain.
    #[inline]
    pub(crate) fn has_leftover(&self) -> bool {
        self.has_leftover.load(Ordering::Acquire)
    }

    /// Returns whether nothing is queued. Never true while an earlier post is.
    #[inline]
    pub(crate) fn is_queue_empty(&self) -> bool {
        self.lock.is_empty()
    }

    /// Returns the number of requests that are queued, or about to be.
    pub(crate) fn queue_len(&self) -> usize {
        self.lock.len()
    }

    pub(crate) fn counts(&self) -> CombinerCounts {
        // A push that is counted here was counted there before.
        let inside = self.pushed_inside.load(Ordering::Relaxed);
        CombinerCounts {
            failed_locks: (self.lock.pushed() as u64).saturating_sub(inside),
            combined: self.combined.load(Ordering::Relaxed),
            leftovers: self.leftovers.load(Ordering::Relaxed),
        }
    }
}

/// The calling thread has the state until it is released. If dropped, queued requests are left to
/// the next holder ([`Combiner::has_leftover`]).
#[derive(Debug)]
#[must_use = "release it"]
pub(crate) struct CombinerGuard<'a, S, T> {
    combiner: &'a Combiner<S, T>,
    /// `None`: released.
    holder: Option<Holder<'a, S, T>>,
}

const PRESENT: &str = "the holder is taken out only by release and drop, which end the guard";

impl<'a, S, T> CombinerGuard<'a, S, T> {
    #[inline]
    fn new(combiner: &'a Combiner<S, T>, holder: Holder<'a, S, T>) -> Self {
        Self { combiner, holder: Some(holder) }
    }

    #[inline]
    fn holder(&self) -> &Holder<'a, S, T> {
        self.holder.as_ref().expect(PRESENT)
    }

    #[inline]
    fn holder_mut(&mut self) -> &mut Holder<'a, S, T> {
        self.holder.as_mut().expect(PRESENT)
    }

    /// Returns whether nothing is queued.
    #[inline]
    fn is_clear(&self) -> bool {
        self.holder().is_empty()
    }

    /// Appends a request to the queue.
    fn push(&mut self, request: T) {
        add(&self.combiner.pushed_inside, 1);
        let pushed = self.combiner.lock.push(request);
        debug_assert!(pushed.is_none(), "the lock is held here");
    }

    /// Applies requests, oldest first, at most [`BATCH`].
    pub(crate) fn drain(&mut self, mut apply: impl FnMut(&mut S, T)) -> Drained {
        let mut applied = 0;
        let left = loop {
            if applied == BATCH {
                break if self.is_clear() { Left::Nothing } else { Left::More };
            }
            let request = match self.holder_mut().pop() {
                Popped::Item(request) => request,
                Popped::Empty => break Left::Nothing,
                Popped::Pending => break Left::Pending,
            };
            sync::point();
            if planted!(SwapRequests)
                && let Popped::Item(later) = self.holder_mut().pop()
            {
                apply(self.holder_mut().state_mut(), later);
            }
            apply(self.holder_mut().state_mut(), request);
            applied += 1;
        };
        if applied > 0 {
            add(&self.combiner.combined, applied as u64);
        }
        Drained { applied, left }
    }

    /// Releases the lock. Applies requests queued meanwhile, at most [`ROUNDS`] times [`BATCH`];
    /// `left` is what this thread left queued.
    #[inline]
    pub(crate) fn release(self, apply: impl FnMut(&mut S, T)) -> Drained {
        match self.release_if_clear() {
            Ok(()) => Drained { applied: 0, left: Left::Nothing },
            Err(guard) => guard.release_slowly(apply),
        }
    }

    /// Releases the lock if nothing is queued; returns the guard otherwise.
    #[inline]
    pub(crate) fn release_if_clear(mut self) -> Result<(), Self> {
        if self.try_release() { Ok(()) } else { Err(self) }
    }

    fn release_slowly(mut self, mut apply: impl FnMut(&mut S, T)) -> Drained {
        if planted!(PassQueue) {
            self.leave();
            return Drained { applied: 0, left: Left::More };
        }
        let combiner = self.combiner;
        let mut applied = 0;
        let mut left = Left::More;
        for _ in 0..ROUNDS {
            let drained = self.drain(&mut apply);
            applied += drained.applied;
            left = drained.left;
            match left {
                Left::Nothing => {
                    if self.try_release() {
                        return Drained { applied, left };
                    }
                    left = Left::More;
                }
                Left::More => {}
                Left::Pending => {
                    // Its pusher may be delayed for long: leave, and return if it ran meanwhile.
                    if !self.leave() {
                        return Drained { applied, left };
                    }
                    match combiner.try_lock() {
                        Some(guard) => self = guard,
                        // Another thread is inside, and drains.
                        None => return Drained { applied, left: Left::Nothing },
                    }
                }
            }
        }
        self.leave();
        Drained { applied, left }
    }

    /// Releases the lock if nothing is queued, and returns whether it did.
    #[inline]
    fn try_release(&mut self) -> bool {
        let holder = self.holder.take().expect(PRESENT);
        let has_leftover = &self.combiner.has_leftover;
        if has_leftover.load(Ordering::Relaxed) {
            has_leftover.store(false, Ordering::Relaxed);
        }
        self.holder = holder.release_if_empty().err();
        self.holder.is_none()
    }

    /// Releases the lock, and leaves queued requests. Returns `true` if a request arrived that no
    /// other thread may have seen.
    #[cold]
    fn leave(&mut self) -> bool {
        let holder = self.holder.take().expect(PRESENT);
        add(&self.combiner.leftovers, 1);
        self.combiner.has_leftover.store(true, Ordering::Release);
        holder.release()
    }
}

impl<S, T> Deref for CombinerGuard<'_, S, T> {
    type Target = S;

    #[inline]
    fn deref(&self) -> &S {
        self.holder().state()
    }
}

impl<S, T> DerefMut for CombinerGuard<'_, S, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut S {
        self.holder_mut().state_mut()
    }
}

impl<S, T> Drop for CombinerGuard<'_, S, T> {
    #[inline]
    fn drop(&mut self) {
        if self.holder.is_some() && !self.try_release() {
            self.leave();
        }
    }
}
