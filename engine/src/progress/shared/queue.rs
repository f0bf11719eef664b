//! A lock that never makes a thread wait, and the queue of requests of threads that did not get it.
//!
//! The queue is Vyukov's: a list of nodes, of which a pusher swaps itself in as the newest, then
//! links its predecessor to itself. The lock is a bit of the word that pushers swap. So a push
//! shows the pusher whether there is a holder, which will see it; and a release that finds the word
//! unchanged has proved that nothing arrived meanwhile. No order of two words has to be proved, and
//! there is no fence.
//!
//! ```text
//!  word ── address of the newest node │ AGAIN │ LOCKED
//!                       │
//!  head ──> consumed ──> A ──> B    C          C's pusher is between its swap and its link
//!           (its value   │     │    ^
//!            is gone)    next  next: NONE, or LEFT when a holder left without C
//!
//!              try_lock: the word as it was, LOCKED
//!        ┌────────────────────────────────────────────────┐
//!        │                                                v
//!      free                                             held ──┐ push: queued, the holder sees it
//!        ^   ^          push: queued, and locked          │ ^  │
//!        │   │ ──────────────────────────────────────────>│ └──┘
//!        │   └── release_if_empty: newest is the head <───┤
//!        └────── release: something stays queued <────────┘
//! ```
//!
//! A holder that leaves while a pusher is between its swap and its link stores LEFT in place of the
//! link. The pusher finds it there, tries to lock, and if it cannot, sets AGAIN for the holder to
//! find as it releases. A later pusher that swaps AGAIN away finds it, and does the same.

use std::cell::UnsafeCell;
use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;

use crossbeam_utils::CachePadded;

use super::sync::{self, AtomicUsize, Ordering};
use super::wait_set::WaitSet;

/// There is a holder.
const LOCKED: usize = 1;
/// A pusher has linked a node that a holder left without a link.
const AGAIN: usize = 2;
const BITS: usize = LOCKED | AGAIN;

/// A node without a successor, as of its link.
const NONE: usize = 0;
/// As [`NONE`], and a holder left without the successor, which had its slot but no link.
const LEFT: usize = 1;

/// How often a holder checks for a missing link.
const SPINS: u32 = 32;

struct QueueNode<T> {
    /// Address of the next one, [`NONE`] or [`LEFT`]; written by the pusher of the next one.
    next: AtomicUsize,
    /// `None`: removed.
    value: UnsafeCell<Option<T>>,
}

/// Creates a node on the heap, identified by its address.
fn new_node<T>(value: Option<T>) -> usize {
    let node = Box::new(QueueNode { next: AtomicUsize::new(NONE), value: UnsafeCell::new(value) });
    Box::into_raw(node).expose_provenance()
}

/// State accessed by all threads.
struct Word {
    newest: AtomicUsize,
    /// Requests pushed so far, counted before each is.
    pushed: AtomicUsize,
}

/// `S` under a lock, with the queue of requests of threads that found it taken.
///
/// Requests are popped in the order of their pushes, and pushes that happen one before the other
/// are in that order. Effects under the lock are visible to the next holder, effects before a push
/// to the thread that pops it.
pub(crate) struct QueueLock<S, T> {
    word: CachePadded<Word>,
    /// Address of the node before the oldest queued one. Stored by the holder.
    head: AtomicUsize,
    /// Requests popped so far. Stored by the holder.
    popped: AtomicUsize,
    /// [`sync::thread_number`] of the holder, or zero. Exact for the thread that checks for itself.
    holder: AtomicUsize,
    /// Threads that sleep until the lock is free.
    sleepers: WaitSet,
    state: UnsafeCell<S>,
    _nodes: PhantomData<Box<QueueNode<T>>>,
}

// SAFETY: the state and the values of nodes are touched by the holder alone, one thread at a time,
// and a value by its pusher before it is linked. Both may be moved between threads.
unsafe impl<S: Send, T: Send> Sync for QueueLock<S, T> {}

/// Result of [`Holder::pop`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Popped<T> {
    /// The oldest request.
    Item(T),
    /// Nothing is queued.
    Empty,
    /// A pusher has its slot but no link yet; it and later ones cannot be read.
    Pending,
}

impl<S, T> QueueLock<S, T> {
    pub(crate) fn new(state: S) -> Self {
        let head = new_node::<T>(None);
        Self {
            word: CachePadded::new(Word {
                newest: AtomicUsize::new(head),
                pushed: AtomicUsize::new(0),
            }),
            head: AtomicUsize::new(head),
            popped: AtomicUsize::new(0),
            holder: AtomicUsize::new(0),
            sleepers: WaitSet::default(),
            state: UnsafeCell::new(state),
            _nodes: PhantomData,
        }
    }

    /// # Safety
    /// `address` is of a node of this queue that is not freed while the borrow is used.
    unsafe fn node(&self, address: usize) -> &QueueNode<T> {
        // SAFETY: by the caller; the address was exposed when the node was made.
        unsafe { &*std::ptr::with_exposed_provenance(address) }
    }

    /// Returns the lock, unless it is taken. Bounded steps.
    #[inline]
    pub(crate) fn try_lock(&self) -> Option<Holder<'_, S, T>> {
        let newest = &self.word.newest;
        let free = newest.load(Ordering::Relaxed);
        if free & LOCKED != 0 {
            return None;
        }
        // The thread that drains now sees the nodes that AGAIN refers to.
        let locked = (free & !AGAIN) | LOCKED;
        newest.compare_exchange(free, locked, Ordering::Acquire, Ordering::Relaxed).ok()?;
        let holder = Holder::new(self);
        sync::point();
        Some(holder)
    }

    /// Returns the lock, after sleeping if necessary. The calling thread must not have it. Threads
    /// that arrive meanwhile may get it first, repeatedly.
    #[cold]
    pub(crate) fn lock_or_sleep(&self) -> Holder<'_, S, T> {
        loop {
            let ticket = self.sleepers.prepare();
            if let Some(holder) = self.insist() {
                return holder;
            }
            ticket.wait(None);
        }
    }

    /// Returns the lock, unless its holder will see, as it releases, the earlier writes of this
    /// thread.
    fn insist(&self) -> Option<Holder<'_, S, T>> {
        let found = self.word.newest.fetch_or(LOCKED, Ordering::AcqRel);
        (found & LOCKED == 0).then(|| Holder::new(self))
    }

    /// Queues `value`, in bounded steps. `None`: the lock is held, by a thread that finds the
    /// request before it leaves, or leaves it to the next holder. Otherwise this thread has the
    /// lock now.
    pub(crate) fn push(&self, value: T) -> Option<Holder<'_, S, T>> {
        self.word.pushed.fetch_add(1, Ordering::Relaxed);
        sync::point();
        let node = new_node(Some(value));
        let found = self.word.newest.swap(node | LOCKED, Ordering::AcqRel);
        sync::point();
        // SAFETY: holders free a node when it is linked to the next one, which is only now.
        let before = unsafe { self.node(found & !BITS) };
        let link = before.next.swap(node, Ordering::AcqRel);
        if found & LOCKED == 0 {
            return Some(Holder::new(self));
        }
        sync::point();
        if link == LEFT || found & AGAIN != 0 { self.look_again() } else { None }
    }

    /// Retries the lock, as a holder has left, or leaves, without the node that this thread has
    /// linked now.
    #[cold]
    fn look_again(&self) -> Option<Holder<'_, S, T>> {
        self.word.newest.fetch_or(AGAIN, Ordering::Release);
        sync::point();
        self.insist()
    }

    /// Locks forever, in a new child of `fork`. Stores to memory only.
    pub(crate) fn shut(&self) {
        self.word.newest.fetch_or(LOCKED, Ordering::Relaxed);
        self.holder.store(0, Ordering::Relaxed);
    }

    /// Returns whether nothing is queued. Never true while an earlier push is not popped.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        // In this order: the head is at least as new as when the newest was pushed.
        let newest = self.word.newest.load(Ordering::Acquire) & !BITS;
        newest == self.head.load(Ordering::Acquire)
    }

    /// Returns the number of requests queued, or about to be; at least those of earlier pushes.
    pub(crate) fn len(&self) -> usize {
        let popped = self.popped.load(Ordering::Acquire);
        self.pushed().saturating_sub(popped)
    }

    /// Returns the number of requests pushed so far.
    pub(crate) fn pushed(&self) -> usize {
        self.word.pushed.load(Ordering::Relaxed)
    }

    /// Returns the number of requests popped so far.
    pub(crate) fn popped(&self) -> usize {
        self.popped.load(Ordering::Acquire)
    }

    /// Returns whether the calling thread has the lock.
    #[inline]
    pub(crate) fn is_held_here(&self) -> bool {
        self.holder.load(Ordering::Relaxed) == sync::thread_number()
    }

    #[inline]
    fn after_release(&self) {
        if planted!(LoseRelease) {
            return;
        }
        sync::point();
        // A sleeper registered before it checked the word, and this thread has written the word
        // after that check.
        self.sleepers.notify_one_after_rmw();
    }
}

impl<S, T> Drop for QueueLock<S, T> {
    fn drop(&mut self) {
        let mut address = self.head.load(Ordering::Relaxed);
        while address != NONE && address != LEFT {
            // SAFETY: all other references are dropped. Each node of the list came from
            // `Box::into_raw`, and its predecessor, which is freed already, was the only one to
            // refer to it.
            let node = unsafe {
                Box::from_raw(std::ptr::with_exposed_provenance_mut::<QueueNode<T>>(address))
            };
            address = node.next.load(Ordering::Relaxed);
        }
    }
}

impl<S, T> fmt::Debug for QueueLock<S, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueueLock").field("len", &self.len()).finish_non_exhaustive()
    }
}

/// The calling thread is the holder until this is dropped, or released.
#[derive(Debug)]
#[must_use = "dropping it releases the lock"]
pub(crate) struct Holder<'a, S, T> {
    lock: &'a QueueLock<S, T>,
    /// Bound to its thread.
    _not_send: PhantomData<*mut ()>,
}

impl<'a, S, T> Holder<'a, S, T> {
    /// Creates the handle after the calling thread has set LOCKED.
    #[inline]
    fn new(lock: &'a QueueLock<S, T>) -> Self {
        lock.holder.store(sync::thread_number(), Ordering::Relaxed);
        Self { lock, _not_send: PhantomData }
    }

    #[inline]
    pub(crate) fn state(&self) -> &S {
        // SAFETY: only the holder accesses the state, and this is its only handle.
        unsafe { &*self.lock.state.get() }
    }

    #[inline]
    pub(crate) fn state_mut(&mut self) -> &mut S {
        // SAFETY: as for `state`, and the handle is borrowed exclusively.
        unsafe { &mut *self.lock.state.get() }
    }

    /// Returns whether nothing is queued, pending requests included.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        let newest = self.lock.word.newest.load(Ordering::Relaxed);
        newest & !BITS == self.lock.head.load(Ordering::Relaxed)
    }

    /// Removes the oldest request. Spins briefly where a link is missing.
    pub(crate) fn pop(&mut self) -> Popped<T> {
        let lock = self.lock;
        let head = lock.head.load(Ordering::Relaxed);
        // SAFETY: only the holder frees nodes, and the head is not freed before the end of this.
        let link = unsafe { &lock.node(head).next };
        let mut next = link.load(Ordering::Acquire);
        let mut spins = 0;
        while next == NONE || next == LEFT {
            if self.is_empty() {
                return Popped::Empty;
            }
            if spins == sync::spins(SPINS) {
                return Popped::Pending;
            }
            spins += 1;
            sync::pause();
            next = link.load(Ordering::Acquire);
        }
        // SAFETY: it is linked, so its pusher is done with the value; only the holder frees it.
        let value = unsafe { (*lock.node(next).value.get()).take() };
        lock.head.store(next, Ordering::Release);
        lock.popped.store(lock.popped.load(Ordering::Relaxed) + 1, Ordering::Release);
        // SAFETY: it came from `Box::into_raw`. Its link is set, which is the pusher's last access
        // to it, and neither the word nor the head refers to it any more.
        drop(unsafe { Box::from_raw(std::ptr::with_exposed_provenance_mut::<QueueNode<T>>(head)) });
        Popped::Item(value.expect("a node is made with a value, and popped once"))
    }

    /// Releases the lock if nothing is queued; returns the holder otherwise.
    #[inline]
    pub(crate) fn release_if_empty(self) -> Result<(), Self> {
        let lock = self.lock;
        let newest = &lock.word.newest;
        let found = newest.load(Ordering::Relaxed);
        let free = lock.head.load(Ordering::Relaxed);
        if found & !BITS != free {
            return Err(self);
        }
        sync::point();
        lock.holder.store(0, Ordering::Relaxed);
        if newest.compare_exchange(found, free, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            lock.holder.store(sync::thread_number(), Ordering::Relaxed);
            return Err(self);
        }
        let _released = ManuallyDrop::new(self);
        lock.after_release();
        Ok(())
    }

    /// Releases the lock, with or without queued requests. Returns `true` if a request arrived that
    /// no other thread may have seen, and the caller has to try the lock again.
    pub(crate) fn release(self) -> bool {
        ManuallyDrop::new(self).release_now()
    }

    fn release_now(&mut self) -> bool {
        let lock = self.lock;
        let newest = &lock.word.newest;
        let found = newest.load(Ordering::Relaxed);
        let head = lock.head.load(Ordering::Relaxed);
        let mut is_linked = found & AGAIN != 0;
        if found & !BITS != head {
            // SAFETY: only the holder frees nodes.
            let link = unsafe { &lock.node(head).next };
            // A pusher without a link is marked as left.
            let marked = link.compare_exchange(NONE, LEFT, Ordering::AcqRel, Ordering::Acquire);
            is_linked |= marked.is_err_and(|link| link != LEFT);
        }
        sync::point();
        lock.holder.store(0, Ordering::Relaxed);
        // Not `fetch_and`, which is a loop on x86.
        let before = newest.fetch_sub(LOCKED, Ordering::AcqRel);
        lock.after_release();
        is_linked || before != found
    }
}

/// Queued requests stay queued.
impl<S, T> Drop for Holder<'_, S, T> {
    fn drop(&mut self) {
        self.release_now();
    }
}
