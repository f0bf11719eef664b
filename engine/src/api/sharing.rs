//! How threads share an engine.

use super::endpoint::Endpoint;
use super::mode::Shared;

/// How threads came together at a shared engine. Differences of two readings mean something.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct SharingCounters {
    /// Posts that found another thread at the engine and were left to that.
    pub failed_locks: u64,
    /// Posts that were made by another thread than their poster, or later.
    pub combined: u64,
    /// Times that posts were left for whoever came next.
    pub leftovers: u64,
    /// Times that a thread slept until the engine had something.
    pub sleeps: u64,
    /// Turns in which a thread that waited for another engine of the domain did something here.
    pub helped: u64,
}

impl Endpoint<Shared> {
    /// From now on posts of operations to this engine, by whichever endpoint, wait for a thread
    /// that is at it, where they leave it a request otherwise. Then a limit that a post meets is
    /// its own error, [`Error::WouldBlock`](crate::Error::WouldBlock), and never the end of the
    /// operation in its queue: for callers who try such a post again, and take an entry for a
    /// failure. Costs the wait.
    pub fn post_in_turn(&self) {
        self.open().engine.post_in_turn();
    }

    /// How threads have shared the engine so far.
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
