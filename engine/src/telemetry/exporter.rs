//! Where engines leave their statistics, for a thread that never touches an engine.

use std::sync::{Arc, Mutex, PoisonError, TryLockError};

use super::Statistics;

/// The newest statistics of one engine.
#[derive(Debug, Default)]
pub(crate) struct Slot(Mutex<Option<Arc<Statistics>>>);

impl Slot {
    /// Replaces them. Never waits: while they are being fetched the older ones stay.
    pub(crate) fn put(&self, statistics: Statistics) {
        let statistics = Some(Arc::new(statistics));
        let before = match self.0.try_lock() {
            Ok(mut newest) => std::mem::replace(&mut *newest, statistics),
            Err(TryLockError::Poisoned(newest)) => {
                std::mem::replace(&mut *newest.into_inner(), statistics)
            }
            Err(TryLockError::WouldBlock) => None,
        };
        // Outside of the lock.
        drop(before);
    }

    /// The newest, if there are any.
    pub(crate) fn get(&self) -> Option<Arc<Statistics>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
