//! Counters of completed operations, which any thread reads without the engine.

use std::sync::Arc;

use bitflags::bitflags;

use super::shared::SharedCounter;

bitflags! {
    /// The events of an endpoint that a counter counts (the flags of `fi_ep_bind`).
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    pub struct CounterEvents: u8 {
        /// Sends, injected ones included.
        const SEND = 1;
        /// Receives. Each message in a multi-receive counts, its buffer does not, unless that ends
        /// with an error.
        const RECEIVE = 2;
        /// Gets, and atomic operations that fetch.
        const READ = 4;
        /// Puts, and atomic operations that fetch nothing.
        const WRITE = 8;
        /// Gets of peers that name this endpoint.
        const REMOTE_READ = 16;
        /// Puts and atomic operations of peers that name this endpoint.
        const REMOTE_WRITE = 32;
    }
}

/// Number of flags, and so of counters of an endpoint.
const EVENTS: usize = CounterEvents::all().bits().count_ones() as usize;

/// No endpoint: of operations that are not counted.
pub(super) const UNCOUNTED: u16 = u16::MAX;

type Bound = [Option<Arc<SharedCounter>>; EVENTS];

/// The counters of endpoints.
#[derive(Debug, Default)]
pub(crate) struct Counting {
    /// Some endpoint has a counter.
    is_used: bool,
    endpoints: Vec<Option<Box<Bound>>>,
    counters: u32,
}

impl Counting {
    /// Returns whether anything is counted: the single check of an engine without counters.
    #[inline]
    pub(super) fn is_used(&self) -> bool {
        self.is_used
    }

    /// Creates a counter, which nothing is bound to.
    pub(crate) fn open(&mut self) -> Arc<SharedCounter> {
        self.counters = self.counters.wrapping_add(1);
        // Of another class than the first queues, which have the first numbers.
        Arc::new(SharedCounter::new(self.counters.wrapping_add(15)))
    }

    /// Binds later operations of an endpoint to `count`, replacing the counter that these `events`
    /// were bound to before.
    pub(crate) fn bind(
        &mut self,
        endpoint: u16,
        events: CounterEvents,
        count: &Arc<SharedCounter>,
    ) {
        let index = usize::from(endpoint);
        if index >= self.endpoints.len() {
            self.endpoints.resize_with(index + 1, || None);
        }
        let bound = self.endpoints[index].get_or_insert_with(Box::default);
        for (at, place) in bound.iter_mut().enumerate() {
            if events.bits() & 1 << at != 0 {
                *place = Some(Arc::clone(count));
                self.is_used = true;
            }
        }
    }

    /// Removes the counters of a closed endpoint.
    pub(crate) fn unbind(&mut self, endpoint: u16) {
        if let Some(bound) = self.endpoints.get_mut(usize::from(endpoint)) {
            *bound = None;
            self.is_used = self.endpoints.iter().any(Option::is_some);
        }
    }

    /// Counts the completion of one operation. Returns the number of a counter whose waiters are to
    /// be notified.
    #[cold]
    pub(super) fn count(&self, endpoint: u16, event: CounterEvents, is_ok: bool) -> Option<u32> {
        let bound = self.endpoints.get(usize::from(endpoint))?.as_ref()?;
        let count = bound.get(event.bits().trailing_zeros() as usize)?.as_ref()?;
        let wakes = if is_ok {
            count.add(1)
        } else {
            count.add_errors(1);
            true
        };
        wakes.then_some(count.number())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiter_is_notified_once_per_batch() {
        let mut counting = Counting::default();
        let count = counting.open();
        counting.bind(3, CounterEvents::SEND | CounterEvents::WRITE, &count);
        count.want(3);
        // A waiter for more does not delay one for less.
        count.want(9);
        let notified =
            [(); 5].map(|()| counting.count(3, CounterEvents::SEND, true) == Some(count.number()));
        assert_eq!(notified, [false, false, true, false, false]);
        assert!(counting.count(3, CounterEvents::WRITE, false).is_some(), "each error is reported");
        assert_eq!((count.value(), count.errors()), (5, 1));
        count.want(9);
        assert!(!count.add(3) && count.add(1));
    }

    #[test]
    fn rebound_or_unbound_events_are_not_counted() {
        let mut counting = Counting::default();
        let (first, second) = (counting.open(), counting.open());
        counting.bind(0, CounterEvents::all(), &first);
        counting.bind(0, CounterEvents::READ, &second);
        for event in CounterEvents::all() {
            counting.count(0, event, true);
        }
        counting.count(1, CounterEvents::SEND, true);
        counting.count(UNCOUNTED, CounterEvents::SEND, true);
        assert_eq!((first.value(), second.value()), (5, 1));
        counting.unbind(0);
        assert!(!counting.is_used());
        counting.count(0, CounterEvents::SEND, true);
        assert_eq!(first.value(), 5);
    }
}
