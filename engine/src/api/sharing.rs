//! Shared engines: contention of their threads.

use super::endpoint::Endpoint;
use super::mode::Shared;

/// Counters of the threads of a shared engine.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct SharingCounters {
    /// Posts that found the engine in use by another thread, and were deferred to that thread.
    pub failed_locks: u64,
    /// Posts that were executed by another thread, or later.
    pub combined: u64,
    /// Times that deferred posts were left to the next thread.
    pub leftovers: u64,
    /// Times that a thread slept until the engine had something to do.
    pub sleeps: u64,
    /// Turns of progress that a thread made here while it waited for another engine of the domain.
    pub helped: u64,
}

impl Endpoint<Shared> {
    /// Disables deferred posts: from now on, posts to this engine by any of its endpoints wait
    /// while another thread uses the engine, instead of leaving the post to it. A post that meets a
    /// limit then always returns [`Error::WouldBlock`](crate::Error::WouldBlock) itself; it is
    /// never reported by a completion. This is for callers that repeat such a post and take an
    /// error completion for a failure. It costs the wait.
    pub fn disable_deferred_posts(&self) {
        self.open().engine.post_in_turn();
    }

    /// Returns the counters of the threads that share the engine.
    pub fn sharing(&self) -> SharingCounters {
        let (counts, sleeps) = self.open().engine.counts();
        SharingCounters {
            failed_locks: counts.failed_locks,
            combined: counts.combined,
            leftovers: counts.leftovers,
            sleeps,
            helped: self.open().engine.helped(),
        }
    }
}
