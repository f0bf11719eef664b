//! Primitives of this module; models replace them by those of their checker.

pub(super) use std::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};

pub(super) use std::sync::Mutex;

use std::num::NonZeroU32;
use std::sync::{MutexGuard, PoisonError};
use std::time::Instant;

use rustix::thread::futex::{self, Flags};
use rustix::time::{ClockId, Timespec, clock_gettime};

/// Returns a number that is unique among threads, never zero.
#[inline]
pub(super) fn thread_number() -> usize {
    #[cfg(any(test, feature = "sim"))]
    if let Some(number) = crate::hooks::threads::number() {
        return number;
    }
    thread_pointer()
}

/// Returns the address of the thread's control block. Unlike the address of a thread-local
/// variable, it takes no call in a shared library.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn thread_pointer() -> usize {
    let pointer: usize;
    // SAFETY: the first word of the control block, which `fs` refers to, is its own address (System
    // V ABI for x86-64, "Thread-Local Storage").
    unsafe {
        std::arch::asm!(
            "mov {}, fs:0",
            out(reg) pointer,
            options(nostack, readonly, preserves_flags)
        );
    }
    pointer
}

/// Returns the address of a variable of the thread.
#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
fn thread_pointer() -> usize {
    thread_local!(static MARK: u8 = const { 0 });
    MARK.with(|mark| std::ptr::from_ref(mark).addr())
}

/// Entries of a chunk of [`mod@super::chunks`]; models have shorter ones.
pub(super) const CHUNK: usize = 32;

/// Locks a mutex, whose data is consistent at each point where a thread may panic.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns how often a thread checks before it gives up; models check less often.
#[inline]
pub(super) fn spins(count: u32) -> u32 {
    count
}

/// Marks a point where a simulated thread may be delayed; otherwise no effect.
#[inline(always)]
pub(super) fn point() {
    #[cfg(any(test, feature = "sim"))]
    crate::hooks::threads::point();
}

/// Pauses a spinning thread briefly.
pub(super) fn pause() {
    point();
    std::hint::spin_loop();
}

/// Lets other threads run.
pub(super) fn yield_now() {
    point();
    std::thread::yield_now();
}

/// A futex on which threads sleep until it is opened.
#[derive(Debug, Default)]
pub(super) struct FutexGate(AtomicU32);

impl FutexGate {
    /// Returns how often it was opened.
    pub(super) fn generation(&self) -> u32 {
        self.0.load(Ordering::Acquire)
    }

    /// Sleeps until it is opened for one of `keys`, or `until`; not at all if it was opened after
    /// `generation`. May return early.
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
        // Woken, too late, interrupted, timed out: in any case the caller checks again.
        let _ = futex::wait_bitset(&self.0, Flags::PRIVATE, generation, until.as_ref(), keys);
    }

    /// Wakes `count` of the threads that sleep for one of `keys`.
    pub(super) fn open(&self, keys: NonZeroU32, count: u32) {
        self.0.fetch_add(1, Ordering::Release);
        #[cfg(any(test, feature = "sim"))]
        crate::hooks::threads::wake(std::ptr::from_ref(self).addr(), keys, count);
        // Only an invalid address can make it fail.
        let _ = futex::wake_bitset(&self.0, Flags::PRIVATE, count, keys);
    }
}
