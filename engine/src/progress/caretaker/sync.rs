//! What the hand-over is made of, and its two fences.

pub(super) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
pub(super) use std::sync::{Mutex, MutexGuard};

use std::sync::atomic::{AtomicBool, compiler_fence, fence};

use rustix::thread::{MembarrierCommand, membarrier};

/// Owners need a real fence: this process is not registered for `membarrier`, yet or at all.
static OWNERS_FENCE: AtomicBool = AtomicBool::new(true);

/// Between what an owner stores and what it looks at.
#[inline]
pub(super) fn owner_fence() {
    if OWNERS_FENCE.load(Ordering::Relaxed) {
        fence(Ordering::SeqCst);
    } else {
        compiler_fence(Ordering::SeqCst);
    }
}

/// Between what the caretaker stores and what it looks at: every owner has passed a fence when this
/// returns, or passes one by itself. `false`: that cannot be said.
pub(super) fn caretaker_fence() -> bool {
    fence(Ordering::SeqCst);
    // Only the caretaker's thread registers, so that no owner goes without a fence before this
    // sees it.
    OWNERS_FENCE.load(Ordering::Relaxed) || membarrier(MembarrierCommand::PrivateExpedited).is_ok()
}

/// Frees owners of fences where the kernel helps. Called by the caretaker's thread as it starts;
/// takes milliseconds in a process with threads.
pub(super) fn free_owners_of_fences() {
    match membarrier(MembarrierCommand::RegisterPrivateExpedited) {
        Ok(()) => OWNERS_FENCE.store(false, Ordering::Relaxed),
        Err(error) => tracing::debug!("no membarrier ({error}): each call makes a fence"),
    }
}
