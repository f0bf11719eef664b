//! Counters of operations that have ended, which any thread reads without the engine.

use std::sync::Arc;

use bitflags::bitflags;

use super::shared::Count;

bitflags! {
    /// What a counter counts of an endpoint (the flags of `fi_ep_bind`).
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    pub struct CounterEvents: u8 {
        /// Sends, those that were injected included.
        const SEND = 1;
        /// Receives. Each message in a multi-receive counts, its buffer does not, unless that
        /// ends with an error.
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

/// Flags, and so counters of an endpoint.
const EVENTS: usize = CounterEvents::all().bits().count_ones() as usize;

/// No endpoint: of operations that are not counted.
pub(super) const UNCOUNTED: u16 = u16::MAX;

type Bound = [Option<Arc<Count>>; EVENTS];

/// Which counters the operations of endpoints count in.
#[derive(Debug, Default)]
pub(crate) struct Counting {
    /// Some endpoint has a counter.
    is_used: bool,
    endpoints: Vec<Option<Box<Bound>>>,
    counters: u32,
}

impl Counting {
    /// Whether anything is counted: the one look of an engine without counters.
    #[inline]
    pub(super) fn is_used(&self) -> bool {
        self.is_used
    }

    /// A new counter, which nothing is bound to.
    pub(crate) fn open(&mut self) -> Arc<Count> {
        self.counters = self.counters.wrapping_add(1);
        // Of another class than the first queues, which have the first numbers.
        Arc::new(Count::new(self.counters.wrapping_add(15)))
    }

    /// From now on operations of an endpoint that are posted count in `count`, and in no other one
    /// that these `events` were bound to before.
    pub(crate) fn bind(&mut self, endpoint: u16, events: CounterEvents, count: &Arc<Count>) {
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

    /// The endpoint is closed.
    pub(crate) fn unbind(&mut self, endpoint: u16) {
        if let Some(bound) = self.endpoints.get_mut(usize::from(endpoint)) {
            *bound = None;
            self.is_used = self.endpoints.iter().any(Option::is_some);
        }
    }

    /// Counts the end of one operation. The number of a counter whose waiters are to be told.
    #[cold]
    pub(super) fn count(&self, endpoint: u16, event: CounterEvents, is_ok: bool) -> Option<u32> {
        let bound = self.endpoints.get(usize::from(endpoint))?.as_ref()?;
        let count = bound.get(event.bits().trailing_zeros() as usize)?.as_ref()?;
        let is_news = if is_ok {
            count.add(1)
        } else {
            count.add_errors(1);
            true
        };
        is_news.then_some(count.number())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_is_told_once_for_a_batch() {
        let mut counting = Counting::default();
        let count = counting.open();
        counting.bind(3, CounterEvents::SEND | CounterEvents::WRITE, &count);
        count.want(3);
        // One that wants more does not put off the one that wants less.
        count.want(9);
        let told =
            [(); 5].map(|()| counting.count(3, CounterEvents::SEND, true) == Some(count.number()));
        assert_eq!(told, [false, false, true, false, false]);
        assert!(counting.count(3, CounterEvents::WRITE, false).is_some(), "each error is news");
        assert_eq!((count.value(), count.errors()), (5, 1));
        count.want(9);
        assert!(!count.add(3) && count.add(1));
    }

    #[test]
    fn what_is_bound_elsewhere_or_no_more_is_not_counted() {
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
