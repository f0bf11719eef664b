//! The shared engines of one domain: a waiter for one helps those without a leader.

use std::cell::RefCell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, TryLockError, Weak};

use super::place::EnginePlace;
use crate::progress::caretaker::Membership;

/// Engines of a domain; see the module.
#[derive(Default)]
pub(crate) struct DomainEngines {
    /// Number of engines, including dropped ones not removed yet.
    count: AtomicUsize,
    known: Mutex<EnginePlaces>,
}

#[derive(Default)]
struct EnginePlaces {
    places: Vec<Weak<EnginePlace>>,
    /// The next one to help.
    next: usize,
}

impl std::fmt::Debug for DomainEngines {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DomainEngines").field("count", &self.count).finish_non_exhaustive()
    }
}

impl DomainEngines {
    pub(super) fn join(&self, place: &Arc<EnginePlace>) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.places.retain(|it| it.strong_count() > 0);
        known.places.push(Arc::downgrade(place));
        self.count.store(known.places.len(), Ordering::Relaxed);
    }

    pub(super) fn leave(&self, place: &Arc<EnginePlace>) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.places.retain(|it| it.strong_count() > 0 && it.as_ptr() != Arc::as_ptr(place));
        self.count.store(known.places.len(), Ordering::Relaxed);
    }

    /// Returns the next engine of the domain, except `place`, without a leader. Does not wait:
    /// another thread that searches helps instead.
    fn next_idle(&self, place: &EnginePlace) -> Option<Arc<EnginePlace>> {
        if self.count.load(Ordering::Relaxed) < 2 {
            return None;
        }
        let mut known = match self.known.try_lock() {
            Ok(known) => known,
            Err(TryLockError::Poisoned(known)) => known.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        let count = known.places.len();
        for _ in 0..count {
            known.next = (known.next + 1) % count;
            let next = known.places[known.next].upgrade();
            let is_idle = |it: &Arc<EnginePlace>| !it.shared().has_leader();
            if let Some(next) = next.filter(|it| !std::ptr::eq(&**it, place) && is_idle(it)) {
                return Some(next);
            }
        }
        None
    }
}

impl EnginePlace {
    /// Makes a turn for an engine without a leader, unless some thread does.
    #[inline]
    pub(super) fn help(&self, caretaker: Option<&Membership>) {
        if let Some(idle) = self.domain_engines().next_idle(self) {
            idle.be_helped(caretaker);
        }
    }

    fn be_helped(&self, caretaker: Option<&Membership>) {
        if self.failure().is_some() {
            return;
        }
        let pending = RefCell::default();
        let turn = self.shared().try_enter(
            |inside| {
                let turn = inside.engine.as_mut().map(|engine| engine.progress());
                if matches!(turn, Some(Ok(true))) {
                    self.count_help();
                }
                self.count_call();
                inside.after(self, &pending);
                turn
            },
            |inside, request| self.apply(inside, request, &pending),
        );
        // All engines of a process have one background thread.
        self.after_call(caretaker, pending);
        match turn.flatten() {
            // It may have taken the events that others sleep for.
            Some(Ok(true)) => self.ring(),
            Some(Err(error)) => self.fail(error),
            Some(Ok(false)) | None => {}
        }
    }
}
