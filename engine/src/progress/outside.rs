//! Destinations of completions for threads outside of the engine: queues and tickets that are read
//! without it.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use super::shared::{ChunkWriter, Chunks, chunks};
use crate::proto::table::Id;
use crate::types::{Completion, Outcome};

/// A completion queue that any thread reads. The threads that hold the engine write, one at a time,
/// by its [`ChunkWriter`].
#[derive(Debug)]
pub struct OutsideQueue {
    entries: Arc<Chunks<Completion>>,
    number: u32,
}

impl OutsideQueue {
    /// Creates a queue of this number, and its writer.
    pub(super) fn new(number: u32) -> (ChunkWriter<Completion>, Arc<Self>) {
        let (writer, entries) = chunks();
        (writer, Arc::new(Self { entries, number }))
    }

    /// Returns its number among the engine's queues.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Takes the oldest completions, at most `limit`, and returns their number.
    #[inline]
    pub(crate) fn take(&self, into: &mut Vec<Completion>, limit: usize) -> usize {
        self.entries.take(into, limit)
    }

    /// Passes the oldest completions to `take`, at most `limit`, until it returns `false`; returns
    /// their number. `take` must not read this queue.
    #[inline]
    pub(crate) fn take_each(&self, limit: usize, take: impl FnMut(Completion) -> bool) -> usize {
        self.entries.take_each(limit, take)
    }
}

/// The completion of one operation, for the holder of the other half.
#[derive(Debug)]
pub struct Ticket {
    number: u32,
    /// The operation, once it is posted; 0 before.
    operation: AtomicU64,
    /// Matching order of receives.
    order: AtomicU64,
    end: Mutex<QueueEnd>,
}

#[derive(Debug)]
enum QueueEnd {
    Open(Option<Waker>),
    Ended(Outcome),
    Taken,
}

impl Ticket {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        #[cfg(any(test, feature = "sim"))]
        let number = crate::hooks::threads::next_ticket().unwrap_or(number);
        let (operation, order) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { number, operation, order, end: Mutex::new(QueueEnd::Open(None)) }
    }

    fn lock(&self) -> MutexGuard<'_, QueueEnd> {
        self.end.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Distributes tickets over classes of waiters.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    pub(super) fn set_operation(&self, id: Id) {
        self.operation.store(id.to_u64(), Ordering::Relaxed);
    }

    pub(super) fn set_order(&self, order: u64) {
        self.order.store(order, Ordering::Relaxed);
    }

    /// Returns the matching order of its receive, once it has ended. For holders of the engine.
    pub(crate) fn order(&self) -> u64 {
        self.order.load(Ordering::Relaxed)
    }

    /// Returns the operation; `None`: it is not posted yet. For holders of the engine.
    pub(crate) fn operation(&self) -> Option<Id> {
        let id = self.operation.load(Ordering::Relaxed);
        (id != 0).then(|| Id::from_u64(id))
    }

    /// Completes the operation; returns the waker to wake.
    pub(crate) fn end(&self, outcome: Outcome) -> Option<Waker> {
        match std::mem::replace(&mut *self.lock(), QueueEnd::Ended(outcome)) {
            QueueEnd::Open(waker) => waker,
            QueueEnd::Ended(_) | QueueEnd::Taken => None,
        }
    }

    /// Takes the result, once.
    pub(crate) fn take(&self) -> Option<Outcome> {
        let mut end = self.lock();
        match std::mem::replace(&mut *end, QueueEnd::Taken) {
            QueueEnd::Ended(outcome) => Some(outcome),
            other => {
                *end = other;
                None
            }
        }
    }

    /// Registers `waker` for the completion. Returns `false` if that has happened.
    pub(crate) fn wake_at_end(&self, waker: &Waker) -> bool {
        match &mut *self.lock() {
            QueueEnd::Open(known) => {
                *known = Some(waker.clone());
                true
            }
            QueueEnd::Ended(_) | QueueEnd::Taken => false,
        }
    }
}
