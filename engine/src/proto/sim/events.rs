//! Virtual time, and the events that it brings.

use std::collections::BTreeMap;

/// Events that are due at some time; those of one time in the order of their creation.
#[derive(Debug)]
pub(crate) struct Events<E> {
    pub(crate) now_ns: u64,
    /// By time, then by number.
    queue: BTreeMap<(u64, u64), E>,
    created: u64,
}

impl<E> Events<E> {
    pub(crate) fn new(now_ns: u64) -> Self {
        Self { now_ns, queue: BTreeMap::new(), created: 0 }
    }

    pub(crate) fn add(&mut self, at_ns: u64, event: E) {
        self.created += 1;
        self.queue.insert((at_ns, self.created), event);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &E> {
        self.queue.values()
    }

    pub(crate) fn retain(&mut self, is_kept: impl Fn(&E) -> bool) {
        self.queue.retain(|_, event| is_kept(event));
    }

    pub(crate) fn next_ns(&self) -> Option<u64> {
        self.queue.first_key_value().map(|(&(at_ns, _), _)| at_ns)
    }

    /// Removes the next event, if it is due.
    pub(crate) fn pop_due(&mut self) -> Option<E> {
        let first = self.queue.first_entry()?;
        (first.key().0 <= self.now_ns).then(|| first.remove())
    }
}
