//! Threads that sleep until something may have changed: an event count.

use std::num::NonZeroU32;
use std::time::Instant;

use super::sync::{AtomicU32, FutexGate, Ordering, fence};

/// Conditions of a sleeper, as one of 32 classes: a notification wakes those that share one with
/// it. A class stands for several conditions where there are more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Keys(NonZeroU32);

impl Keys {
    /// Every class.
    pub(crate) const ALL: Self = Self(NonZeroU32::MAX);

    /// Returns the class of an object with this number, such as a completion queue.
    pub(crate) fn of(number: u32) -> Self {
        // One bit of 32.
        NonZeroU32::new(1 << (number % 32)).map_or(Self::ALL, Self)
    }

    /// Returns these classes, a bit each; `None`: there are none.
    pub(crate) fn of_classes(bits: u32) -> Option<Self> {
        NonZeroU32::new(bits).map(Self)
    }

    /// Returns one bit per class.
    pub(crate) fn bits(self) -> u32 {
        self.0.get()
    }

    /// Returns the union of both.
    #[cfg(test)]
    pub(crate) fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// Threads that sleep until a condition may hold.
///
/// A sleeper registers ([`Self::prepare`]), checks its condition, then sleeps
/// ([`WaitTicket::wait`]). A notifier fulfils the condition, then notifies, which is a fence and a
/// load while no thread sleeps. At least one of the two sees the other. Wake-ups may be spurious:
/// the sleeper checks again.
#[derive(Debug, Default)]
pub(crate) struct WaitSet {
    /// Number of tickets.
    sleepers: AtomicU32,
    gate: FutexGate,
}

/// A thread that is about to sleep.
#[derive(Debug)]
#[must_use = "look at the condition, then wait"]
pub(crate) struct WaitTicket<'a> {
    set: &'a WaitSet,
    generation: u32,
    keys: Keys,
}

impl WaitSet {
    /// Registers the caller to sleep for any event; see [`Self::prepare_for`].
    pub(crate) fn prepare(&self) -> WaitTicket<'_> {
        self.prepare_for(Keys::ALL)
    }

    /// Registers the caller, which checks its condition once more, and then waits, or drops the
    /// ticket.
    pub(crate) fn prepare_for(&self, keys: Keys) -> WaitTicket<'_> {
        self.sleepers.fetch_add(1, Ordering::Relaxed);
        // Before the check of the caller.
        fence(Ordering::SeqCst);
        WaitTicket { set: self, generation: self.gate.generation(), keys }
    }

    /// Wakes all that sleep for one of `keys`.
    #[inline]
    pub(crate) fn notify_all(&self, keys: Keys) {
        // After the caller fulfilled the condition.
        fence(Ordering::SeqCst);
        if self.has_sleepers() {
            // The system call takes a signed count.
            self.gate.open(keys.0, i32::MAX.cast_unsigned());
        }
    }

    /// Wakes one thread, whatever it sleeps for.
    #[inline]
    pub(crate) fn notify_one(&self) {
        fence(Ordering::SeqCst);
        self.notify_one_after_rmw();
    }

    /// Wakes one thread, where the caller's last read-modify-write is of a word that the sleepers
    /// write as well, as they check: no fence is needed.
    #[inline]
    pub(crate) fn notify_one_after_rmw(&self) {
        if self.has_sleepers() {
            self.gate.open(Keys::ALL.0, 1);
        }
    }

    /// Returns whether a thread sleeps, or is about to.
    #[inline]
    pub(crate) fn has_sleepers(&self) -> bool {
        self.sleepers.load(Ordering::Relaxed) != 0
    }

    /// Returns the number of threads that sleep or are about to.
    #[cfg(test)]
    pub(crate) fn sleepers(&self) -> u32 {
        self.sleepers.load(Ordering::Relaxed)
    }
}

impl WaitTicket<'_> {
    /// Sleeps until a notification after the ticket was created, or `until`. May return early.
    pub(crate) fn wait(self, until: Option<Instant>) {
        self.set.gate.wait(self.generation, self.keys.0, until);
    }
}

impl Drop for WaitTicket<'_> {
    fn drop(&mut self) {
        self.set.sleepers.fetch_sub(1, Ordering::Relaxed);
    }
}
