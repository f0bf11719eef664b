//! Wakers of tasks: user code, which may panic.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::task::Waker;

/// Wakes them all. A panic of a waker does not prevent the other wake-ups: the first panic is
/// resumed when all are woken.
pub(super) fn wake_all(wakers: Vec<Waker>) {
    let mut first = None;
    for waker in wakers {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| waker.wake())) {
            first.get_or_insert(panic);
        }
    }
    if let Some(panic) = first {
        resume_unwind(panic);
    }
}

/// Makes a call that wakes tasks, on a thread of this library on which others rely: a panic of a
/// waker ends here. `None`: there was one.
pub(super) fn survive<R>(call: impl FnOnce() -> R) -> Option<R> {
    let called = catch_unwind(AssertUnwindSafe(call));
    if called.is_err() {
        tracing::error!("a waker panicked on a thread that makes progress for others");
    }
    called.ok()
}
