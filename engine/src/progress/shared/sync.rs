//! What this room is made of; models put the types of their checker in its place.

pub(super) use std::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};

pub(super) use std::sync::Mutex;

use std::num::NonZeroU32;
use std::sync::{MutexGuard, PoisonError};
use std::time::Instant;

use rustix::thread::futex::{self, Flags};
use rustix::time::{ClockId, Timespec, clock_gettime};

/// A number that no other thread has, never zero.
#[inline]
pub(super) fn thread_number() -> usize {
    #[cfg(any(test, feature = "sim"))]
    if let Some(number) = crate::hooks::threads::number() {
        return number;
    }
    thread_local!(static MARK: u8 = const { 0 });
    MARK.with(|mark| std::ptr::from_ref(mark).addr())
}

/// Entries of a chunk of [`mod@super::chunks`]; models have shorter ones.
pub(super) const CHUNK: usize = 32;

/// What a mutex guards is whole at each point where a thread may panic.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How often a thread looks before it gives up; models look less often.
#[inline]
pub(super) fn spins(count: u32) -> u32 {
    count
}

/// Where a simulated thread may be held up; nothing elsewhere.
#[inline(always)]
pub(super) fn point() {
    #[cfg(any(test, feature = "sim"))]
    crate::hooks::threads::point();
}

/// A short pause of a thread that spins.
pub(super) fn pause() {
    point();
    std::hint::spin_loop();
}

/// Lets other threads run.
pub(super) fn yield_now() {
    point();
    std::thread::yield_now();
}

/// Where threads sleep until it is opened; a futex.
#[derive(Debug, Default)]
pub(super) struct Gate(AtomicU32);

impl Gate {
    /// How often it was opened.
    pub(super) fn generation(&self) -> u32 {
        self.0.load(Ordering::Acquire)
    }

    /// Sleeps until somebody opens it for one of `keys`, or `until`; not at all if it was opened
    /// after `generation`. May return early.
    pub(super) fn wait(&self, generation: u32, keys: NonZeroU32, until: Option<Instant>) {
        #[cfg(any(test, feature = "sim"))]
        if crate::hooks::threads::number().is_some() {
            if self.generation() == generation {
                crate::hooks::threads::sleep(std::ptr::from_ref(self).addr(), keys);
            }
            return;
        }
        let until = until.map(|until| {
            let left = until.saturating_duration_since(Instant::now());
            let now = clock_gettime(ClockId::Monotonic);
            let left = Timespec::try_from(left).ok();
            left.and_then(|left| now.checked_add(left)).unwrap_or(now)
        });
        // Woken, too late, interrupted, timed out: in any case the caller looks again.
        let _ = futex::wait_bitset(&self.0, Flags::PRIVATE, generation, until.as_ref(), keys);
    }

    /// Wakes `count` of those that sleep for one of `keys`.
    pub(super) fn open(&self, keys: NonZeroU32, count: u32) {
        self.0.fetch_add(1, Ordering::Release);
        #[cfg(any(test, feature = "sim"))]
        crate::hooks::threads::wake(std::ptr::from_ref(self).addr(), keys, count);
        // Only a bad address can make it fail.
        let _ = futex::wake_bitset(&self.0, Flags::PRIVATE, count, keys);
    }
}
