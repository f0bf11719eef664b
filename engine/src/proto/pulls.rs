//! Messages to be pulled, in the order in which their ranges are granted.
//!
//! Those that their senders want first are granted before all others, those that they want last
//! after them. None waits for ever: one grant in sixteen is for those that are passed.

use std::collections::VecDeque;

use super::hint::Hint;
use super::table::Id;

/// Of so many grants that pass others one goes to those.
const PASSES: u32 = 16;

/// Where a message stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Class {
    First = 0,
    Usual = 1,
    Last = 2,
}

const CLASSES: [Class; 3] = [Class::First, Class::Usual, Class::Last];

impl Class {
    fn of(hint: Hint) -> Self {
        match hint {
            Hint::Priority => Self::First,
            Hint::None | Hint::Latency => Self::Usual,
            Hint::Bulk => Self::Last,
        }
    }
}

/// The receives of one session with bytes that were never granted.
#[derive(Debug, Default)]
pub(crate) struct Pulls {
    classes: [VecDeque<Id>; 3],
    /// Grants that passed others.
    passed: u32,
}

impl Pulls {
    /// Takes in a receive whose message came with `hint`. A short message goes before all others of
    /// its class: it costs them one chunk's time.
    pub(crate) fn push(&mut self, id: Id, hint: Hint, is_short: bool) {
        let class = &mut self.classes[Class::of(hint) as usize];
        if is_short {
            class.push_front(id);
        } else {
            class.push_back(id);
        }
    }

    /// How many there are.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.classes.iter().map(VecDeque::len).sum()
    }

    /// Whether there is none.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.classes.iter().all(VecDeque::is_empty)
    }

    /// All of them, in no particular order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Id> {
        self.classes.iter().flatten().copied()
    }

    /// Whether some are wanted before the others.
    pub(crate) fn has_first(&self) -> bool {
        !self.classes[Class::First as usize].is_empty()
    }

    /// Whether all of them can wait.
    pub(crate) fn are_last(&self) -> bool {
        CLASSES[..2].iter().all(|&class| self.classes[class as usize].is_empty())
    }

    /// The one to be granted next, and where it stands.
    ///
    /// RR-RDV-8.
    pub(crate) fn next(&self) -> Option<(Class, Id)> {
        let mut there = CLASSES.into_iter().filter(|&class| !self.of(class).is_empty());
        let first = there.next()?;
        let is_turn_of_others = self.passed % PASSES == PASSES - 1;
        let class = match (is_turn_of_others, there.next(), there.next()) {
            // Both have their turn.
            (true, Some(_), Some(last)) if self.passed / PASSES % 2 == 1 => last,
            (true, Some(second), _) => second,
            _ => first,
        };
        Some((class, *self.of(class).front()?))
    }

    /// A range of the first of a class was granted. `true`: before others that can wait longer.
    pub(crate) fn note_grant(&mut self, class: Class) -> bool {
        let is_passed = |other: &Class| !self.of(*other).is_empty();
        let passes = CLASSES[class as usize + 1..].iter().any(is_passed);
        if passes || CLASSES[..class as usize].iter().any(is_passed) {
            self.passed = self.passed.wrapping_add(1);
        }
        passes
    }

    /// The first of a class has no more to be granted.
    pub(crate) fn pop(&mut self, class: Class) {
        self.classes[class as usize].pop_front();
    }

    /// Drops those of which `keep` says no.
    pub(crate) fn retain(&mut self, keep: impl Fn(Id) -> bool) {
        for class in &mut self.classes {
            class.retain(|&id| keep(id));
        }
    }

    /// Drops all.
    pub(crate) fn clear(&mut self) {
        for class in &mut self.classes {
            class.clear();
        }
    }

    fn of(&self, class: Class) -> &VecDeque<Id> {
        &self.classes[class as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u64) -> Id {
        Id::from_u64(number)
    }

    /// Grants `count` times; who was granted, and nobody is done with it.
    fn grant(pulls: &mut Pulls, count: usize) -> Vec<Id> {
        (0..count)
            .map(|_| {
                let (class, id) = pulls.next().unwrap();
                pulls.note_grant(class);
                id
            })
            .collect()
    }

    #[test]
    fn hints_come_before_order_and_order_before_length() {
        let mut pulls = Pulls::default();
        pulls.push(id(1), Hint::Bulk, false);
        pulls.push(id(2), Hint::None, false);
        pulls.push(id(3), Hint::Latency, false);
        pulls.push(id(4), Hint::Priority, false);
        pulls.push(id(5), Hint::Priority, true);
        assert!(pulls.has_first() && !pulls.are_last());
        let mut order = Vec::new();
        while let Some((class, id)) = pulls.next() {
            order.push(id);
            pulls.note_grant(class);
            pulls.pop(class);
        }
        assert_eq!(order, [5, 4, 2, 3, 1].map(id));
        assert!(pulls.is_empty());
    }

    /// RR-RDV-8
    #[test]
    fn none_waits_for_ever() {
        let mut pulls = Pulls::default();
        pulls.push(id(1), Hint::Bulk, false);
        pulls.push(id(2), Hint::None, false);
        pulls.push(id(3), Hint::Priority, false);
        let granted = grant(&mut pulls, 320);
        let count = |wanted| granted.iter().filter(|&&it| it == id(wanted)).count();
        assert_eq!((count(1), count(2), count(3)), (10, 10, 300));
        // Nobody is passed.
        let mut alone = Pulls::default();
        alone.push(id(1), Hint::Bulk, false);
        assert_eq!(grant(&mut alone, 40), [id(1); 40]);
        assert!(alone.are_last());
    }

    #[test]
    fn those_that_end_are_dropped_wherever_they_stand() {
        let mut pulls = Pulls::default();
        for (number, hint) in [(1, Hint::Bulk), (2, Hint::None), (3, Hint::Priority)] {
            pulls.push(id(number), hint, false);
        }
        pulls.retain(|it| it != id(2));
        assert_eq!((pulls.len(), pulls.iter().count()), (2, 2));
        pulls.clear();
        assert!(pulls.is_empty() && pulls.next().is_none());
    }
}
