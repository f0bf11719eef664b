//! Messages to be pulled, in the order in which their ranges are granted.
//!
//! Messages with priority are granted before all others, bulk ones after them; among equal ones,
//! short before long, and otherwise in matching order. None is starved: one grant in sixteen is for
//! those that are overtaken.

use std::collections::VecDeque;

use crate::proto::hint::Hint;
use crate::proto::table::Id;

/// One out of this many overtaking grants goes to the overtaken messages.
const PASSES: u32 = 16;

/// Priority class of a message.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Class {
    First = 0,
    Usual = 1,
    Last = 2,
}

const CLASSES: [Class; 3] = [Class::First, Class::Usual, Class::Last];

impl Class {
    pub(super) fn of(hint: Hint) -> Self {
        match hint {
            Hint::Priority => Self::First,
            Hint::None | Hint::Latency => Self::Usual,
            Hint::Bulk => Self::Last,
        }
    }
}

/// Messages of one class, in matching order.
#[derive(Debug, Default)]
struct Queue {
    /// Of one chunk each, which is all that they delay later ones.
    short: VecDeque<Id>,
    long: VecDeque<Id>,
    /// Grants of short ones that overtook long ones.
    passed: u32,
}

impl Queue {
    fn is_empty(&self) -> bool {
        self.short.is_empty() && self.long.is_empty()
    }

    fn line(&mut self, is_short: bool) -> &mut VecDeque<Id> {
        if is_short { &mut self.short } else { &mut self.long }
    }

    /// Returns the one to be granted next, and whether it is short.
    fn next(&self) -> Option<(bool, Id)> {
        let is_turn_of_long = self.passed % PASSES == PASSES - 1;
        let (short, long) = (self.short.front(), self.long.front());
        match (short, long) {
            (Some(&id), None) => Some((true, id)),
            (Some(&id), Some(_)) if !is_turn_of_long => Some((true, id)),
            (_, long) => long.map(|&id| (false, id)),
        }
    }

    fn note_grant(&mut self) {
        if !self.short.is_empty() && !self.long.is_empty() {
            self.passed = self.passed.wrapping_add(1);
        }
    }
}

/// Queue of the message that is granted next, which is at its front.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Place {
    class: Class,
    is_short: bool,
}

/// The receives of one session with bytes that were never granted.
#[derive(Debug, Default)]
pub(super) struct PullQueue {
    /// Allocated with the first message that is pulled.
    classes: Option<Box<[Queue; 3]>>,
    /// Grants that overtook others.
    passed: u32,
}

impl PullQueue {
    /// Adds a receive whose message arrived with `hint`; a short one has at most one chunk.
    pub(super) fn push(&mut self, id: Id, hint: Hint, is_short: bool) {
        let classes = self.classes.get_or_insert_default();
        classes[Class::of(hint) as usize].line(is_short).push_back(id);
    }

    fn queues(&self) -> &[Queue] {
        self.classes.as_deref().map_or(&[], |classes| classes)
    }

    fn queues_mut(&mut self) -> &mut [Queue] {
        self.classes.as_deref_mut().map_or(&mut [], |classes| classes)
    }

    /// Frees memory if it is empty.
    pub(super) fn shrink(&mut self) {
        if self.is_empty() {
            self.classes = None;
        }
    }

    fn lines(&self) -> impl Iterator<Item = &VecDeque<Id>> {
        self.queues().iter().flat_map(|queue| [&queue.short, &queue.long])
    }

    /// Returns the number of receives.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.lines().map(VecDeque::len).sum()
    }

    /// Returns whether there is none.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.queues().iter().all(Queue::is_empty)
    }

    /// Returns all of them, in no particular order.
    pub(super) fn iter(&self) -> impl Iterator<Item = Id> {
        self.lines().flatten().copied()
    }

    /// Returns whether some have priority.
    pub(super) fn has_first(&self) -> bool {
        !self.of(Class::First).is_empty()
    }

    /// Returns whether all of them are bulk.
    pub(super) fn are_last(&self) -> bool {
        CLASSES[..2].iter().all(|&class| self.of(class).is_empty())
    }

    /// Returns the one to be granted next, and its queue.
    ///
    /// RR-RDV-8.
    pub(super) fn next(&self) -> Option<(Place, Id)> {
        let mut there = CLASSES.into_iter().filter(|&class| !self.of(class).is_empty());
        let first = there.next()?;
        let is_turn_of_others = self.passed % PASSES == PASSES - 1;
        let class = match (is_turn_of_others, there.next(), there.next()) {
            // Both alternate.
            (true, Some(_), Some(last)) if self.passed / PASSES % 2 == 1 => last,
            (true, Some(second), _) => second,
            _ => first,
        };
        let (is_short, id) = self.of(class).next()?;
        Some((Place { class, is_short }, id))
    }

    /// Notes a grant of the message at `place`. Returns `true` if it overtook others of lower
    /// priority.
    pub(super) fn note_grant(&mut self, place: Place) -> bool {
        debug_assert_eq!(self.next().map(|(next, _)| next), Some(place), "the next one is granted");
        let class = place.class as usize;
        self.queues_mut()[class].note_grant();
        let is_passed = |other: &Class| !self.of(*other).is_empty();
        let passes = CLASSES[class + 1..].iter().any(is_passed);
        if passes || CLASSES[..class].iter().any(is_passed) {
            self.passed = self.passed.wrapping_add(1);
        }
        passes
    }

    /// Removes the message at `place`, which is fully granted.
    pub(super) fn pop(&mut self, place: Place) {
        let popped = self.queues_mut()[place.class as usize].line(place.is_short).pop_front();
        debug_assert!(popped.is_some(), "the message is at the front of its queue");
    }

    /// Drops those for which `keep` returns `false`.
    pub(super) fn retain(&mut self, keep: impl Fn(Id) -> bool) {
        for queue in self.queues_mut() {
            queue.short.retain(|&id| keep(id));
            queue.long.retain(|&id| keep(id));
        }
    }

    fn of(&self, class: Class) -> &Queue {
        static NONE: Queue = Queue { short: VecDeque::new(), long: VecDeque::new(), passed: 0 };
        self.classes.as_ref().map_or(&NONE, |classes| &classes[class as usize])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u64) -> Id {
        Id::from_u64(number)
    }

    /// Grants `count` times to messages that never end; returns which ones.
    fn grant(pulls: &mut PullQueue, count: usize) -> Vec<Id> {
        (0..count)
            .map(|_| {
                let (place, id) = pulls.next().unwrap();
                pulls.note_grant(place);
                id
            })
            .collect()
    }

    #[test]
    fn hints_precede_order_and_order_precedes_length() {
        let mut pulls = PullQueue::default();
        pulls.push(id(1), Hint::Bulk, false);
        pulls.push(id(2), Hint::None, false);
        pulls.push(id(3), Hint::Latency, false);
        pulls.push(id(4), Hint::Priority, false);
        pulls.push(id(5), Hint::Priority, true);
        assert!(pulls.has_first() && !pulls.are_last());
        let mut order = Vec::new();
        while let Some((place, id)) = pulls.next() {
            order.push(id);
            pulls.note_grant(place);
            pulls.pop(place);
        }
        assert_eq!(order, [5, 4, 2, 3, 1].map(id));
        assert!(pulls.is_empty());
    }

    /// RR-RDV-8
    #[test]
    fn no_message_is_starved() {
        let mut pulls = PullQueue::default();
        pulls.push(id(1), Hint::Bulk, false);
        pulls.push(id(2), Hint::None, false);
        pulls.push(id(3), Hint::Priority, false);
        let granted = grant(&mut pulls, 320);
        let count = |wanted| granted.iter().filter(|&&it| it == id(wanted)).count();
        assert_eq!((count(1), count(2), count(3)), (10, 10, 300));
        // Without overtaken messages.
        let mut alone = PullQueue::default();
        alone.push(id(1), Hint::Bulk, false);
        assert_eq!(grant(&mut alone, 40), [id(1); 40]);
        assert!(alone.are_last());
    }

    /// RR-RDV-8
    #[test]
    fn short_messages_overtake_long_ones_without_starving_them() {
        let mut pulls = PullQueue::default();
        pulls.push(id(1), Hint::None, false);
        pulls.push(id(2), Hint::None, false);
        for number in 10..42 {
            pulls.push(id(number), Hint::None, true);
        }
        let (oldest, mut short) = (id(1), Vec::new());
        for _ in 0..34 {
            let (place, id) = pulls.next().unwrap();
            pulls.note_grant(place);
            if place.is_short {
                short.push(id);
                pulls.pop(place);
            } else {
                assert_eq!((id, short.len() % 15), (oldest, 0), "the older one");
            }
        }
        assert_eq!(short, (10..42).map(id).collect::<Vec<_>>());
        // None overtakes any more.
        assert_eq!(grant(&mut pulls, 4), [id(1); 4]);
    }

    #[test]
    fn ended_messages_are_dropped_at_any_position() {
        let mut pulls = PullQueue::default();
        for (number, hint) in [(1, Hint::Bulk), (2, Hint::None), (3, Hint::Priority)] {
            pulls.push(id(number), hint, false);
            pulls.push(id(number + 3), hint, true);
        }
        pulls.retain(|it| it != id(2) && it != id(4));
        assert_eq!((pulls.len(), pulls.iter().count()), (4, 4));
        pulls.retain(|_| false);
        assert!(pulls.is_empty() && pulls.next().is_none());
    }
}
