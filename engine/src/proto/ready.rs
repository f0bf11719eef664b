//! Sessions that have work, by the kind of it.
//!
//! A session is in the queue of a kind at most once. Adding, taking and removing one takes constant
//! time on average, also where thousands of sessions are blocked or served at once: a removed
//! session leaves its entry behind, which is skipped later.

use std::collections::VecDeque;
use std::fmt;

/// Kinds of work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Work {
    /// It has something to send.
    Flush,
    /// Its waiting sends may continue.
    Stage,
    /// It may grant ranges of the messages that it pulls.
    Grant,
    /// It may have pieces of messages for its ring.
    Piece,
    /// It may have granted ranges to send in datagrams.
    Data,
    /// It grants more in datagrams when the peers of this engine have sent what was granted. This
    /// and the following are no work until something happens ([`Ready::is_empty`]).
    AwaitWindow,
    /// It owes an acknowledgement of what a stream or a ring carried, and may wait for a segment
    /// that carries it.
    Acknowledge,
    /// Its connection may have a deadline.
    Deadline,
}

impl Work {
    /// Returns whether it can be done now.
    #[inline(always)]
    const fn is_due(self) -> bool {
        (self as u8) < Self::AwaitWindow as u8
    }
}

const ALL: [Work; 8] = [
    Work::Flush,
    Work::Stage,
    Work::Grant,
    Work::Piece,
    Work::Data,
    Work::AwaitWindow,
    Work::Acknowledge,
    Work::Deadline,
];
const KINDS: usize = ALL.len();
const _: () = {
    let mut index = 0;
    while index < KINDS {
        assert!(ALL[index] as usize == index, "queues are in the order of the kinds");
        index += 1;
    }
    assert!(KINDS <= u8::BITS as usize, "each kind has a bit");
};

/// Entries that a queue may have for sessions that were removed, beside one for each that was not.
const STALE_MAX: usize = 64;

#[derive(Default)]
struct Queue {
    /// The latest last; some entries are of sessions that were removed.
    order: VecDeque<u32>,
    /// Sessions in it.
    count: usize,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Ready {
    /// The kinds of work of each session, by slot: a bit for each kind.
    kinds: Vec<u8>,
    queues: [Queue; KINDS],
    /// Work that can be done now.
    due: usize,
    /// Entries visited, other than the one that a step returns.
    #[cfg(test)]
    skipped: usize,
}

impl Ready {
    /// Adds a session after the others, to be served next, if it is not there.
    #[inline(always)]
    pub(crate) fn add(&mut self, slot: u32, work: Work) {
        if self.mark(slot, work) {
            self.queues[work as usize].order.push_back(slot);
        }
    }

    /// Adds a session to be served after all others, if it is not there.
    pub(crate) fn add_last(&mut self, slot: u32, work: Work) {
        if self.mark(slot, work) {
            let queue = &self.queues[work as usize];
            if queue.order.len() >= queue.count {
                // An earlier entry of this session may be among those that are left.
                self.compact(work);
                self.queues[work as usize].order.retain(|&other| other != slot);
            }
            self.queues[work as usize].order.push_front(slot);
        }
    }

    /// Marks a session. Returns `false` if it has that work already.
    #[inline(always)]
    fn mark(&mut self, slot: u32, work: Work) -> bool {
        let bit = 1 << work as u8;
        match self.kinds.get_mut(slot as usize) {
            Some(kinds) if *kinds & bit != 0 => return false,
            Some(kinds) => *kinds |= bit,
            None => self.grow_for(slot, bit),
        }
        self.queues[work as usize].count += 1;
        self.due += usize::from(work.is_due());
        true
    }

    /// Makes space for a session with work of one kind.
    #[cold]
    fn grow_for(&mut self, slot: u32, bit: u8) {
        let slots = slot as usize + 1;
        super::table::reserve_for(&mut self.kinds, slots);
        self.kinds.resize(slots, 0);
        self.kinds[slot as usize] = bit;
    }

    #[inline]
    pub(super) fn has(&self, slot: u32, work: Work) -> bool {
        self.kinds.get(slot as usize).is_some_and(|kinds| kinds & (1 << work as u8) != 0)
    }

    /// Returns the session added last.
    #[inline]
    pub(super) fn latest(&mut self, work: Work) -> Option<u32> {
        loop {
            let &slot = self.queues[work as usize].order.back()?;
            if self.has(slot, work) {
                return Some(slot);
            }
            self.queues[work as usize].order.pop_back();
            self.count_skipped();
        }
    }

    /// Removes and returns the session added last.
    #[inline]
    pub(crate) fn take(&mut self, work: Work) -> Option<u32> {
        while let Some(slot) = self.queues[work as usize].order.pop_back() {
            if self.unmark(slot, work) {
                return Some(slot);
            }
            self.count_skipped();
        }
        None
    }

    /// Gives the next session with work of one kind work of another kind instead.
    pub(super) fn exchange_next(&mut self, from: Work, to: Work) {
        if let Some(slot) = self.take(from) {
            self.add(slot, to);
        }
    }

    /// Removes a session if it was added last.
    #[inline]
    pub(crate) fn take_if_latest(&mut self, slot: u32, work: Work) {
        let order = &mut self.queues[work as usize].order;
        if order.back() == Some(&slot) {
            order.pop_back();
            self.unmark(slot, work);
        }
    }

    /// Notes that a session has that work no more. Returns `false` if it had not.
    #[inline]
    fn unmark(&mut self, slot: u32, work: Work) -> bool {
        let bit = 1 << work as u8;
        let Some(kinds) = self.kinds.get_mut(slot as usize) else { return false };
        if *kinds & bit == 0 {
            return false;
        }
        *kinds &= !bit;
        self.queues[work as usize].count -= 1;
        self.due -= usize::from(work.is_due());
        true
    }

    /// Removes a session.
    #[inline]
    pub(super) fn remove(&mut self, slot: u32, work: Work) {
        if !self.unmark(slot, work) {
            return;
        }
        let queue = &mut self.queues[work as usize];
        if queue.order.back() == Some(&slot) {
            queue.order.pop_back();
        } else if queue.order.len() > 2 * queue.count + STALE_MAX {
            self.compact(work);
        }
    }

    /// Returns the sessions with that work. One that was removed and added again is there twice.
    pub(super) fn iter(&self, work: Work) -> impl Iterator<Item = u32> {
        let order = self.queues[work as usize].order.iter().copied();
        order.filter(move |&slot| self.has(slot, work))
    }

    /// Returns the session at `index` of the queue of a kind from which only [`Self::swap_remove`]
    /// and [`Self::forget`] remove sessions.
    #[inline]
    pub(super) fn nth(&self, work: Work, index: usize) -> Option<u32> {
        self.queues[work as usize].order.get(index).copied()
    }

    /// Removes the session at `index` of such a queue. The latest one takes its place.
    #[inline]
    pub(super) fn swap_remove(&mut self, work: Work, index: usize) {
        if let Some(slot) = self.queues[work as usize].order.swap_remove_back(index) {
            self.unmark(slot, work);
        }
    }

    /// Detaches the queue of a kind, for [`Self::reattach`]; its sessions count as having that
    /// work. The caller visits each entry once; one with `false` from [`Self::has`] was removed.
    pub(super) fn detach(&mut self, work: Work) -> VecDeque<u32> {
        std::mem::take(&mut self.queues[work as usize].order)
    }

    /// Removes a session whose entry is in a detached queue: the caller drops that.
    pub(super) fn drop_detached(&mut self, slot: u32, work: Work) {
        self.unmark(slot, work);
    }

    /// Attaches a queue again, before sessions that were added meanwhile.
    pub(super) fn reattach(&mut self, work: Work, mut order: VecDeque<u32>) {
        let queue = &mut self.queues[work as usize].order;
        order.append(queue);
        *queue = order;
    }

    /// Drops the entries of removed sessions.
    #[cold]
    fn compact(&mut self, work: Work) {
        let order = std::mem::take(&mut self.queues[work as usize].order);
        // A session that was removed and added again has two entries: the latest counts.
        let mut seen = vec![false; self.kinds.len()];
        let mut kept = VecDeque::with_capacity(order.len());
        for slot in order.into_iter().rev() {
            if self.has(slot, work) && !std::mem::replace(&mut seen[slot as usize], true) {
                kept.push_front(slot);
            }
            self.count_skipped();
        }
        self.queues[work as usize].order = kept;
    }

    #[inline(always)]
    fn count_skipped(&mut self) {
        #[cfg(test)]
        {
            self.skipped += 1;
        }
    }

    /// Removes a session from all queues, as its slot will be another one's.
    pub(super) fn forget(&mut self, slot: u32) {
        for work in ALL {
            self.remove(slot, work);
            self.queues[work as usize].order.retain(|&other| other != slot);
        }
    }

    /// Checks that each session with work is in the queue of its kind, and counted: once in those
    /// that are visited as a whole.
    #[cfg(any(test, feature = "sim"))]
    pub(super) fn check(&self) {
        let mut due = 0;
        for work in ALL {
            let Queue { order, count } = &self.queues[work as usize];
            due += if work.is_due() { *count } else { 0 };
            let slots = 0..self.kinds.len() as u32;
            let marked: Vec<u32> = slots.filter(|&slot| self.has(slot, work)).collect();
            assert_eq!(marked.len(), *count, "{work:?}: sessions with work are counted");
            for slot in marked {
                let entries = order.iter().filter(|&&other| other == slot).count();
                let is_once = matches!(work, Work::Acknowledge | Work::Deadline);
                assert!(entries == 1 || (entries > 1 && !is_once), "{work:?}: {slot} is queued");
            }
        }
        assert_eq!(self.due, due, "work that can be done now is counted");
    }

    /// Returns the number of sessions with that work.
    #[inline]
    pub(crate) fn len(&self, work: Work) -> usize {
        self.queues[work as usize].count
    }

    /// Returns whether no session has work that can be done now.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.due == 0
    }

    /// Returns whether no other session than this one has that work.
    pub(crate) fn is_only(&self, slot: u32, work: Work) -> bool {
        self.len(work) == usize::from(self.has(slot, work))
    }
}

/// The sessions in each queue, in their order.
impl fmt::Debug for Ready {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut map = out.debug_map();
        for work in ALL {
            let mut slots: Vec<u32> = Vec::new();
            for &slot in self.queues[work as usize].order.iter().rev() {
                if self.has(slot, work) && !slots.contains(&slot) {
                    slots.push(slot);
                }
            }
            map.entry(&work, &slots);
        }
        map.finish()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Sessions of a large job.
    const MANY: u32 = 4096;

    #[test]
    fn each_session_is_there_once_and_the_latest_is_served_first() {
        let mut ready = Ready::default();
        for slot in [3, 1, 3, 2, 1] {
            ready.add(slot, Work::Flush);
        }
        ready.add_last(9, Work::Flush);
        ready.add_last(2, Work::Flush);
        ready.add(3, Work::Stage);
        assert!(!ready.is_only(3, Work::Flush) && ready.is_only(3, Work::Stage));
        ready.remove(1, Work::Flush);
        let order: Vec<u32> = std::iter::from_fn(|| ready.take(Work::Flush)).collect();
        assert_eq!(order, [2, 3, 9]);
        assert!(!ready.is_empty() && ready.len(Work::Stage) == 1);
        ready.forget(3);
        assert!(ready.is_empty());
    }

    #[test]
    fn a_detached_queue_keeps_its_sessions_before_those_added_meanwhile() {
        let mut ready = Ready::default();
        (1..=4).for_each(|slot| ready.add(slot, Work::Deadline));
        let mut detached = ready.detach(Work::Deadline);
        ready.add(5, Work::Deadline);
        ready.add(2, Work::Deadline);
        ready.forget(3);
        detached.retain(|&slot| {
            if slot == 1 {
                ready.drop_detached(slot, Work::Deadline);
            }
            ready.has(slot, Work::Deadline)
        });
        ready.reattach(Work::Deadline, detached);
        ready.check();
        assert_eq!(ready.iter(Work::Deadline).collect::<Vec<u32>>(), [2, 4, 5]);
        ready.swap_remove(Work::Deadline, 0);
        assert_eq!(ready.iter(Work::Deadline).collect::<Vec<u32>>(), [5, 4]);
        ready.check();
    }

    /// Entries visited beside those that were asked for do not grow with the square.
    #[test]
    fn many_sessions_that_block_at_once_cost_constant_time_each() {
        let mut ready = Ready::default();
        for round in 0..4 {
            (0..MANY).for_each(|slot| ready.add(slot, Work::Stage));
            // In the order in which they were added, so that none is the latest.
            (0..MANY).for_each(|slot| ready.remove(slot, Work::Stage));
            (0..MANY).for_each(|slot| ready.add(slot, Work::Stage));
            for slot in (0..MANY).rev() {
                assert_eq!(ready.latest(Work::Stage), Some(slot));
                ready.remove(slot, Work::Stage);
                // What is left for the next turn is served after the others.
                ready.add_last(slot, Work::Flush);
            }
            assert_eq!(ready.take(Work::Stage), None);
            let flushed: Vec<u32> = std::iter::from_fn(|| ready.take(Work::Flush)).collect();
            assert_eq!(flushed, (0..MANY).rev().collect::<Vec<u32>>(), "round {round}");
        }
        assert!(ready.skipped <= 4 * 6 * MANY as usize, "{}", ready.skipped);
    }

    proptest! {
        /// A queue is a list without duplicates.
        #[test]
        fn any_steps_leave_what_they_leave_of_a_list(
            steps in proptest::collection::vec((0u8..5, 0u32..200), 0..600),
        ) {
            let mut ready = Ready::default();
            let mut list: Vec<u32> = Vec::new();
            for (step, slot) in steps {
                let is_there = list.contains(&slot);
                match step {
                    0 => {
                        ready.add(slot, Work::Grant);
                        if !is_there {
                            list.push(slot);
                        }
                    }
                    1 => {
                        ready.add_last(slot, Work::Grant);
                        if !is_there {
                            list.insert(0, slot);
                        }
                    }
                    2 => prop_assert_eq!(ready.take(Work::Grant), list.pop()),
                    3 => {
                        ready.remove(slot, Work::Grant);
                        list.retain(|&other| other != slot);
                    }
                    _ => {
                        ready.forget(slot);
                        list.retain(|&other| other != slot);
                    }
                }
                prop_assert_eq!(ready.len(Work::Grant), list.len());
            }
        }
    }
}
