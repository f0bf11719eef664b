//! Primitives of the hand-over, and its two fences.

pub(super) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
pub(super) use std::sync::{Mutex, MutexGuard};

use std::sync::atomic::{AtomicBool, compiler_fence, fence};

use rustix::thread::{MembarrierCommand, membarrier};

/// Owners need a real fence: this process is not registered for `membarrier`, yet or at all.
static OWNERS_FENCE: AtomicBool = AtomicBool::new(true);

/// Fence between an owner's store and its check.
#[inline]
pub(super) fn owner_fence() {
    if OWNERS_FENCE.load(Ordering::Relaxed) {
        fence(Ordering::SeqCst);
    } else {
        compiler_fence(Ordering::SeqCst);
    }
}

/// Fence between the background thread's store and its check: every owner has passed a fence when
/// this returns, or executes one by itself. Returns `false` if that cannot be guaranteed.
pub(super) fn caretaker_fence() -> bool {
    fence(Ordering::SeqCst);
    // Only the background thread registers, so that no owner omits its fence before this thread
    // sees it.
    OWNERS_FENCE.load(Ordering::Relaxed) || membarrier(MembarrierCommand::PrivateExpedited).is_ok()
}

/// Makes owners' fences unnecessary where the kernel supports it. Called by the background thread
/// as it starts; takes milliseconds in a process with threads.
pub(super) fn free_owners_of_fences() {
    match membarrier(MembarrierCommand::RegisterPrivateExpedited) {
        Ok(()) => OWNERS_FENCE.store(false, Ordering::Relaxed),
        Err(error) => tracing::debug!("no membarrier ({error}): each call makes a fence"),
    }
}
