//! Where operations end that threads outside of the engine wait for: queues and tickets that are
//! read without it.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use super::shared::{ChunkWriter, Chunks, chunks};
use crate::proto::table::Id;
use crate::types::{Completion, Outcome};

/// A completion queue that any thread reads. Those who hold the engine write, one after the other,
/// by its [`ChunkWriter`].
#[derive(Debug)]
pub struct OutsideQueue {
    entries: Arc<Chunks<Completion>>,
    number: u32,
}

impl OutsideQueue {
    /// A new one of this number, and what writes to it.
    pub(super) fn new(number: u32) -> (ChunkWriter<Completion>, Arc<Self>) {
        let (writer, entries) = chunks();
        (writer, Arc::new(Self { entries, number }))
    }

    /// Which of the engine's queues it is.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Takes the oldest completions, `limit` at the most, and says how many.
    #[inline]
    pub(crate) fn take(&self, into: &mut Vec<Completion>, limit: usize) -> usize {
        self.entries.take(into, limit)
    }
}

/// The end of one operation, for the one who holds the other half.
#[derive(Debug)]
pub struct Ticket {
    number: u32,
    /// The operation, once it is posted; 0 before.
    operation: AtomicU64,
    /// In which order receives matched.
    order: AtomicU64,
    end: Mutex<End>,
}

#[derive(Debug)]
enum End {
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
        Self { number, operation, order, end: Mutex::new(End::Open(None)) }
    }

    fn lock(&self) -> MutexGuard<'_, End> {
        self.end.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Spreads tickets over classes of those who wait.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    pub(super) fn set_operation(&self, id: Id) {
        self.operation.store(id.to_u64(), Ordering::Relaxed);
    }

    pub(super) fn set_order(&self, order: u64) {
        self.order.store(order, Ordering::Relaxed);
    }

    /// In which order its receive matched, once it has ended. For those who hold the engine.
    pub(crate) fn order(&self) -> u64 {
        self.order.load(Ordering::Relaxed)
    }

    /// The operation; `None`: it is not posted yet. For those who hold the engine.
    pub(crate) fn operation(&self) -> Option<Id> {
        let id = self.operation.load(Ordering::Relaxed);
        (id != 0).then(|| Id::from_u64(id))
    }

    /// The operation has ended; who is to be woken.
    pub(crate) fn end(&self, outcome: Outcome) -> Option<Waker> {
        match std::mem::replace(&mut *self.lock(), End::Ended(outcome)) {
            End::Open(waker) => waker,
            End::Ended(_) | End::Taken => None,
        }
    }

    /// How it ended, once.
    pub(crate) fn take(&self) -> Option<Outcome> {
        let mut end = self.lock();
        match std::mem::replace(&mut *end, End::Taken) {
            End::Ended(outcome) => Some(outcome),
            other => {
                *end = other;
                None
            }
        }
    }

    /// `waker` is woken at the end. `false`: that has come.
    pub(crate) fn wake_at_end(&self, waker: &Waker) -> bool {
        match &mut *self.lock() {
            End::Open(known) => {
                *known = Some(waker.clone());
                true
            }
            End::Ended(_) | End::Taken => false,
        }
    }
}
