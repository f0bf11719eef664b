//! Posts of tests, models and benches, and the order in which they were applied.

use super::combiner::{Combiner, PostOutcome};
use super::wait::{Doorbell, SharedProgress};

/// Posts to a combiner as [`SharedProgress`] does, without waiters.
#[inline]
pub(crate) fn post_to<S, T, R>(
    combiner: &Combiner<S, T>,
    inline: impl FnOnce(&mut S) -> R,
    queued: impl FnOnce() -> T,
    apply: impl FnMut(&mut S, T),
) -> PostOutcome<R> {
    match combiner.try_begin() {
        Ok(mut guard) => {
            let answer = inline(&mut guard);
            guard.release(apply);
            PostOutcome::Inline(answer)
        }
        Err(guard) => combiner.post_behind(guard, inline, queued, apply),
    }
}

/// Posts as engines do.
#[inline]
pub(crate) fn post_shared<S, T, R>(
    shared: &SharedProgress<S, T, impl Doorbell<S>>,
    inline: impl Fn(&mut S) -> R,
    queued: impl FnOnce() -> T,
    apply: impl FnMut(&mut S, T) + Copy,
) -> PostOutcome<R> {
    shared.post(
        (),
        |state, ()| PostOutcome::Inline(inline(state)),
        |guard| {
            if let Err(guard) = shared.end(guard) {
                shared.end_slowly(guard, apply);
            }
        },
        |guard, ()| shared.post_behind(guard, &inline, queued, apply),
    )
}

/// Checks that each thread's posts were applied once, in order: threads and numbers.
pub(crate) fn check_order(posts: &[(usize, usize)], threads: usize, count: usize) {
    assert_eq!(posts.len(), threads * count, "{posts:?}");
    for thread in 0..threads {
        let numbers = posts.iter().filter(|post| post.0 == thread).map(|post| post.1);
        assert!(numbers.eq(0..count), "thread {thread}: {posts:?}");
    }
}
