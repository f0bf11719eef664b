//! A completion queue: reserved space, and unread completions.

use std::collections::VecDeque;
use std::sync::Arc;

use super::super::outside::OutsideQueue;
use super::super::shared::ChunkWriter;
use crate::types::Completion;

/// A completion queue.
#[derive(Debug, Default)]
pub(super) struct EntryQueue {
    /// The newest completions, which a reader usually takes all at once.
    entries: Vec<Completion>,
    /// Those before them, of which a reader has taken some.
    older: VecDeque<Completion>,
    /// Endpoints whose operations complete here, and objects that name it; 0: it is closed.
    users: u32,
    entries_max: usize,
    /// Entries reserved by outstanding operations and unread completions; of a queue that is read
    /// outside, by the former.
    reserved: usize,
    /// Destination of completions that are read outside of the engine.
    outside: Option<ChunkWriter<Completion>>,
}

impl EntryQueue {
    /// Opens a queue with one user.
    pub(super) fn open(entries_max: usize) -> Self {
        Self { users: 1, entries_max, ..Self::default() }
    }

    pub(super) fn is_closed(&self) -> bool {
        self.users == 0
    }

    pub(super) fn add_user(&mut self) {
        self.users += 1;
    }

    /// Removes a user, and with the last one all unread completions. Returns whether it was the
    /// last one.
    pub(super) fn remove_user(&mut self) -> bool {
        self.users -= 1;
        if self.users > 0 {
            return false;
        }
        (self.entries, self.older, self.outside) = (Vec::new(), VecDeque::new(), None);
        true
    }

    /// Moves the completions to a queue that is read outside of the engine, now and later.
    pub(super) fn move_outside(&mut self, number: u32) -> Arc<OutsideQueue> {
        let (mut writer, outside) = OutsideQueue::new(number);
        self.reserved -= self.len();
        let unread = self.older.drain(..).chain(self.entries.drain(..));
        unread.for_each(|completion| writer.push(|| completion));
        self.outside = Some(writer);
        outside
    }

    /// Returns the number of unread completions in the engine.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.older.len() + self.entries.len()
    }

    /// Returns whether no completion is unread, and no operation is outstanding.
    pub(super) fn is_idle(&self) -> bool {
        self.reserved == 0
    }

    /// Returns whether there is space for one more operation.
    #[inline]
    pub(super) fn has_room(&self) -> bool {
        match &self.outside {
            None => self.reserved < self.entries_max,
            Some(unread) => self.reserved + unread.len() < self.entries_max,
        }
    }

    /// Reserves the space of an operation's completion.
    #[inline]
    pub(super) fn reserve(&mut self) {
        self.reserved += 1;
    }

    /// Releases the space of an operation that ends without a completion.
    pub(super) fn release(&mut self) {
        self.reserved -= 1;
    }

    /// Appends a completion whose space is reserved; `make` writes it where it is kept. Returns
    /// whether it is read outside of the engine.
    #[inline(always)]
    pub(super) fn push(&mut self, make: impl FnOnce() -> Completion) -> bool {
        let before = self.entries.len();
        let place = self.entries.spare_capacity_mut().first_mut();
        let (None, Some(place)) = (&self.outside, place) else { return self.push_slowly(make) };
        place.write(make());
        // SAFETY: the entry after the last one has been written, and is within the capacity.
        unsafe { self.entries.set_len(before + 1) };
        false
    }

    /// The same for a queue that is read outside of the engine, or whose memory is full.
    #[inline(never)]
    fn push_slowly(&mut self, make: impl FnOnce() -> Completion) -> bool {
        let Some(outside) = &mut self.outside else {
            self.entries.push(make());
            return false;
        };
        outside.push(make);
        self.reserved -= 1;
        true
    }

    /// Takes the oldest completions, at most `limit`, and returns their number.
    ///
    /// An empty `into` is exchanged for the memory of the queue if that takes all: no completion is
    /// moved, and both keep their capacity.
    #[inline]
    pub(super) fn take(&mut self, into: &mut Vec<Completion>, limit: usize) -> usize {
        let count = self.entries.len();
        if !self.older.is_empty() || count > limit {
            return self.take_some(into, limit);
        }
        if count == 0 {
            return 0;
        }
        self.reserved -= count;
        if into.is_empty() {
            std::mem::swap(into, &mut self.entries);
        } else {
            into.append(&mut self.entries);
        }
        count
    }

    /// Takes some of the completions, or those that some were taken of before.
    #[cold]
    fn take_some(&mut self, into: &mut Vec<Completion>, limit: usize) -> usize {
        let count = self.len().min(limit);
        if count == 0 {
            return 0;
        }
        self.older.extend(self.entries.drain(..));
        into.extend(self.older.drain(..count));
        self.reserved -= count;
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{Error, OperationKind};

    fn push(queue: &mut EntryQueue, user_data: u64) {
        queue.reserve();
        let (kind, result, buffer) = (OperationKind::Receive, Err(Error::Cancelled), None);
        queue.push(|| Completion { user_data, kind, result, offset: 0, buffer });
    }

    fn names(taken: &[Completion]) -> Vec<u64> {
        taken.iter().map(|completion| completion.user_data).collect()
    }

    #[test]
    fn completions_are_taken_in_order_whatever_the_limit() {
        for (limit, begins_empty) in [(1, true), (3, true), (3, false), (100, false), (100, true)] {
            let (mut queue, mut all, mut pushed) = (EntryQueue::open(100), Vec::new(), 0);
            while pushed < 60 {
                for _ in 0..5 {
                    push(&mut queue, pushed);
                    pushed += 1;
                }
                let mut taken = Vec::new();
                if !begins_empty {
                    push(&mut queue, pushed);
                    pushed += 1;
                    queue.take(&mut taken, 1);
                }
                let before = taken.len();
                let count = queue.take(&mut taken, limit);
                assert_eq!(taken.len() - before, count);
                assert!(count <= limit);
                all.extend(names(&taken));
            }
            let mut rest = Vec::new();
            queue.take(&mut rest, usize::MAX);
            all.extend(names(&rest));
            assert_eq!(all, (0..pushed).collect::<Vec<_>>(), "limit {limit}");
            assert!(queue.is_idle() && queue.len() == 0);
        }
    }

    #[test]
    fn memory_goes_back_and_forth_without_allocations() {
        let (mut queue, mut taken) = (EntryQueue::open(100), Vec::new());
        let mut places = std::collections::HashSet::new();
        for round in 0..40 {
            for _ in 0..3 {
                push(&mut queue, round);
            }
            assert_eq!(queue.take(&mut taken, 8), 3);
            places.insert(taken.as_ptr());
            taken.clear();
            let (place, capacity) = (taken.as_ptr(), taken.capacity());
            assert_eq!(queue.take(&mut taken, 8), 0);
            assert_eq!((taken.as_ptr(), taken.capacity()), (place, capacity), "nothing to take");
        }
        assert!(places.len() <= 2, "two vectors take turns");
    }

    #[test]
    fn limit_of_nothing_takes_nothing() {
        let mut queue = EntryQueue::open(4);
        push(&mut queue, 1);
        let mut taken = Vec::new();
        assert_eq!(queue.take(&mut taken, 0), 0);
        assert!(taken.is_empty() && queue.len() == 1);
        push(&mut queue, 2);
        assert_eq!(queue.take(&mut taken, 1), 1);
        assert_eq!(queue.take(&mut taken, 0), 0);
        assert_eq!((names(&taken), queue.len()), (vec![1], 1));
    }

    #[test]
    fn a_queue_that_was_read_in_part_moves_outside_in_order() {
        let mut queue = EntryQueue::open(8);
        (0..5).for_each(|name| push(&mut queue, name));
        let mut taken = Vec::new();
        queue.take(&mut taken, 2);
        push(&mut queue, 5);
        let outside = queue.move_outside(1);
        assert_eq!(outside.take(&mut taken, 100), 4);
        assert_eq!(names(&taken), (0..6).collect::<Vec<_>>());
        assert!(queue.is_idle() && queue.len() == 0);
    }
}
