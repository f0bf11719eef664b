//! Slots of operations, one cache line each. A slot gives its operation an id. For a receive it
//! holds all state: what it accepts, its position among the receives of its endpoint, its capacity.
//!
//! All operations of an engine have slots here ([`super::super::operations`]), so that a receive
//! which takes a long message keeps its id.

use std::fmt;

use super::super::table::{Id, Key as _, reserve_for};
use super::bins::{BinLink, BinNode};
use super::slab::NIL;
use super::{MatchEnvelope, Selector};

/// No source: any is accepted.
const ANY_SOURCE: u32 = u32::MAX;

/// Contents of a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SlotState {
    /// Nothing.
    Vacant,
    /// A receive that is not posted: it is new, or has matched.
    Receive,
    /// A receive that waits for a message.
    Posted,
    /// An operation of another kind, kept elsewhere under the same index.
    Operation,
    /// The same, posted: a multi-receive, which takes any number of messages.
    Multi,
}

/// A slot: a receive, or the id of another operation.
///
/// The fields that a match compares come first.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct OperationSlot {
    tag: u64,
    context: u64,
    ignore: u64,
    /// Order among the receives of its endpoint.
    pub(super) sequence: u64,
    /// Length of its memory, in bytes.
    capacity: u64,
    source: u32,
    /// Position in its bin; of a vacant slot, `next` is the next vacant one.
    pub(super) link: BinLink,
    /// Of the content's id; never 0.
    generation: u32,
    endpoint: u16,
    /// Class of its bin.
    pub(super) class: u8,
    state: SlotState,
}

const _: () = assert!(size_of::<OperationSlot>() == 64);

impl OperationSlot {
    /// Returns the messages that it accepts.
    #[inline]
    pub(crate) fn selector(&self) -> Selector {
        let source = (self.source != ANY_SOURCE).then_some(self.source);
        Selector { source, context: self.context, tag: self.tag, ignore: self.ignore }
    }

    /// Returns whether it accepts a message of its context.
    #[inline]
    pub(super) fn accepts(&self, e: &MatchEnvelope) -> bool {
        (self.tag ^ e.tag) & !self.ignore == 0
            && (self.source == ANY_SOURCE || self.source == e.source)
    }

    #[inline]
    pub(super) fn context(&self) -> u64 {
        self.context
    }

    /// Returns the index of the remote endpoint that it accepts messages of; `None`: any.
    pub(crate) fn source(&self) -> Option<u32> {
        (self.source != ANY_SOURCE).then_some(self.source)
    }

    /// Returns the endpoint that it was posted at.
    #[inline]
    pub(crate) fn endpoint(&self) -> u16 {
        self.endpoint
    }

    /// Returns the length of its memory, in bytes.
    #[inline]
    pub(crate) fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Returns whether it waits for messages.
    #[inline]
    pub(crate) fn is_posted(&self) -> bool {
        matches!(self.state, SlotState::Posted | SlotState::Multi)
    }

    /// Returns whether it stays posted when it is matched.
    #[inline]
    pub(crate) fn is_multi(&self) -> bool {
        self.state == SlotState::Multi
    }

    /// Notes that the receive, which is no multi-receive, has left its bin.
    #[inline]
    pub(super) fn note_taken(&mut self) {
        debug_assert_eq!(self.state, SlotState::Posted, "only posted receives are in bins");
        self.state = SlotState::Receive;
    }

    /// Notes that the receive or multi-receive has left its bin.
    pub(super) fn note_removed(&mut self) {
        debug_assert!(self.is_posted(), "only posted receives are in bins");
        self.state = match self.is_multi() {
            true => SlotState::Operation,
            false => SlotState::Receive,
        };
    }

    /// Sets its order among the receives of its endpoint, and that it is posted.
    #[inline]
    pub(super) fn note_posted(&mut self, sequence: u64) {
        self.sequence = sequence;
        self.state = match self.state {
            SlotState::Operation => SlotState::Multi,
            _ => SlotState::Posted,
        };
    }

    /// Makes it a receive at `endpoint`.
    #[inline]
    fn fill(&mut self, endpoint: u16, selector: &Selector, capacity: u64) {
        self.tag = selector.tag;
        self.context = selector.context;
        self.ignore = selector.ignore;
        self.source = selector.source.unwrap_or(ANY_SOURCE);
        self.capacity = capacity;
        self.endpoint = endpoint;
        self.state = SlotState::Receive;
    }

    #[inline]
    pub(crate) fn state(&self) -> SlotState {
        self.state
    }
}

/// Without its position, which depends on earlier look-ups.
impl fmt::Debug for OperationSlot {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:?} {:?} at {}", self.state, self.selector(), self.endpoint)?;
        write!(out, " {} bytes, {}", self.capacity, self.sequence)
    }
}

impl BinNode for OperationSlot {
    #[inline]
    fn link(&self) -> &BinLink {
        &self.link
    }

    #[inline]
    fn link_mut(&mut self) -> &mut BinLink {
        &mut self.link
    }
}

/// The vacant slots, a list, and the number of the others.
#[derive(Debug)]
pub(super) struct Vacancies {
    first: u32,
    used: usize,
}

impl Vacancies {
    /// Takes a slot off the list; `None`: it is empty.
    #[inline(always)]
    fn take<'a>(
        &mut self,
        entries: &'a mut [OperationSlot],
    ) -> Option<(u32, &'a mut OperationSlot)> {
        let index = self.first;
        let slot = entries.get_mut(index as usize)?;
        debug_assert_eq!(slot.state, SlotState::Vacant, "a listed slot holds nothing");
        self.first = slot.link.next();
        self.used += 1;
        Some((index, slot))
    }

    /// Vacates a slot, whose id finds nothing from now on. Returns that id.
    #[inline(always)]
    fn add(&mut self, index: u32, slot: &mut OperationSlot) -> Id {
        let id = Id::new(index, slot.generation);
        slot.state = SlotState::Vacant;
        // Generation 0 is skipped so that no id is ever 0.
        slot.generation = slot.generation.checked_add(1).unwrap_or(1);
        slot.link.set_next(self.first);
        self.first = index;
        self.used -= 1;
        id
    }

    /// Vacates the slot of a receive that has matched. Returns its id and its capacity; `None`: it
    /// is a multi-receive, which stays.
    #[inline(always)]
    pub(super) fn add_matched(
        &mut self,
        index: u32,
        slot: &mut OperationSlot,
    ) -> Option<(Id, u64)> {
        if slot.is_multi() {
            return None;
        }
        debug_assert_eq!(slot.state, SlotState::Receive, "it has matched");
        let capacity = slot.capacity;
        Some((self.add(index, slot), capacity))
    }
}

/// The slots of an engine's operations. They grow up to a limit, and are reused, so that a steady
/// load allocates nothing.
#[derive(Debug)]
pub(crate) struct OperationSlots {
    pub(super) entries: Vec<OperationSlot>,
    pub(super) vacancies: Vacancies,
    limit: usize,
}

/// Generation of new slots: that of an id is never 0.
const FIRST_GENERATION: u32 = 1;

impl OperationSlots {
    /// Creates a table of at most `limit` slots.
    pub(crate) fn new(limit: usize) -> Self {
        let vacancies = Vacancies { first: NIL, used: 0 };
        Self { entries: Vec::new(), vacancies, limit: limit.min(NIL as usize) }
    }

    /// Returns the limit on slots.
    #[inline]
    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// Returns the number of slots in use.
    pub(crate) fn len(&self) -> usize {
        self.vacancies.used
    }

    /// Returns whether all slots are in use.
    pub(crate) fn is_full(&self) -> bool {
        self.len() >= self.limit
    }

    /// Returns one more than the highest index ever used.
    pub(crate) fn index_end(&self) -> usize {
        self.entries.len()
    }

    /// Uses a slot for a receive at `endpoint` that accepts the messages of `selector`. `None`: all
    /// slots are in use.
    #[inline]
    pub(crate) fn insert(
        &mut self,
        endpoint: u16,
        selector: &Selector,
        capacity: u64,
    ) -> Option<Id> {
        let (index, slot) = self.take_vacant()?;
        slot.fill(endpoint, selector, capacity);
        Some(Id::new(index, slot.generation))
    }

    /// Does the same in a slot that is vacant already, and returns all slots, too. `None`: there
    /// is none.
    #[inline(always)]
    pub(super) fn reuse(
        &mut self,
        endpoint: u16,
        selector: &Selector,
        capacity: u64,
    ) -> Option<(Id, &mut [OperationSlot])> {
        let entries = self.entries.as_mut_slice();
        let (index, slot) = self.vacancies.take(entries)?;
        slot.fill(endpoint, selector, capacity);
        Some((Id::new(index, slot.generation), entries))
    }

    /// Uses a slot for an operation that is not a receive. `None`: all slots are in use.
    #[inline]
    pub(crate) fn insert_operation(&mut self) -> Option<Id> {
        let (index, slot) = self.take_vacant()?;
        slot.state = SlotState::Operation;
        Some(Id::new(index, slot.generation))
    }

    #[inline]
    fn take_vacant(&mut self) -> Option<(u32, &mut OperationSlot)> {
        if self.vacancies.first == NIL {
            self.grow()?;
        }
        self.vacancies.take(&mut self.entries)
    }

    /// Adds a vacant slot. `None`: at the limit.
    #[cold]
    fn grow(&mut self) -> Option<()> {
        let index = self.entries.len();
        if index >= self.limit {
            return None;
        }
        debug_assert_eq!(self.len(), index, "no slot is vacant where none is listed");
        reserve_for(&mut self.entries, index + 1);
        self.vacancies.first = index as u32;
        self.entries.push(OperationSlot {
            tag: 0,
            context: 0,
            ignore: 0,
            sequence: 0,
            capacity: 0,
            source: ANY_SOURCE,
            link: BinLink::NONE,
            generation: FIRST_GENERATION,
            endpoint: 0,
            class: 0,
            state: SlotState::Vacant,
        });
        Some(())
    }

    /// Vacates the slot of an operation that is not posted; its id finds nothing from now on.
    #[inline]
    pub(crate) fn remove(&mut self, index: usize) {
        let slot = &mut self.entries[index];
        debug_assert!(
            matches!(slot.state, SlotState::Receive | SlotState::Operation),
            "{:?} is removed",
            slot.state
        );
        self.vacancies.add(index as u32, slot);
    }

    /// Returns the slot of an id; `None`: its operation has ended.
    #[inline]
    pub(crate) fn get(&self, id: Id) -> Option<&OperationSlot> {
        let slot = self.entries.get(id.index())?;
        let is_current = slot.generation == id.generation() && slot.state != SlotState::Vacant;
        is_current.then_some(slot)
    }

    /// Returns the slot at an index that is in use.
    #[inline]
    pub(crate) fn at(&self, index: u32) -> &OperationSlot {
        &self.entries[index as usize]
    }

    /// Returns the id of the operation at an index; `None`: the slot is vacant.
    #[inline]
    pub(crate) fn id_at(&self, index: usize) -> Option<Id> {
        let slot = self.entries.get(index)?;
        (slot.state != SlotState::Vacant).then(|| Id::new(index as u32, slot.generation))
    }

    /// Turns a receive that has matched into an operation that is kept elsewhere.
    pub(crate) fn turn_into_operation(&mut self, id: Id) {
        let slot = &mut self.entries[id.index()];
        debug_assert_eq!(slot.state, SlotState::Receive, "only a matched receive goes on");
        slot.state = SlotState::Operation;
    }

    /// Returns all slots in use, with their ids.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Id, &OperationSlot)> {
        let used = self.entries.iter().zip(0..).filter(|(slot, _)| slot.state != SlotState::Vacant);
        used.map(|(slot, index)| (Id::new(index, slot.generation), slot))
    }

    /// Returns the receives posted at `endpoint`, oldest first. Scans every slot.
    pub(crate) fn posted_at(&self, endpoint: u16) -> Vec<Id> {
        let is_wanted = |slot: &OperationSlot| slot.is_posted() && slot.endpoint == endpoint;
        let wanted = self.iter().filter(|(_, slot)| is_wanted(slot));
        let mut found: Vec<_> = wanted.map(|(id, slot)| (slot.sequence, id)).collect();
        found.sort_unstable();
        found.into_iter().map(|(_, id)| id).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANY: Selector = Selector { source: None, context: 0, tag: 0, ignore: u64::MAX };

    #[test]
    fn ids_of_operations_that_have_ended_find_nothing() {
        let mut slots = OperationSlots::new(2);
        let first = slots.insert(0, &ANY, 8).unwrap();
        slots.remove(first.index());
        assert!(slots.get(first).is_none() && slots.id_at(first.index()).is_none());
        let second = slots.insert_operation().unwrap();
        assert_eq!(first.index(), second.index());
        assert!(slots.get(first).is_none() && slots.get(second).is_some());
        assert!(slots.get(Id::from_u64(0)).is_none());
        assert!(slots.get(Id::from_u64(u64::MAX)).is_none());
    }

    #[test]
    fn the_limit_counts_slots_in_use() {
        let mut slots = OperationSlots::new(2);
        let first = slots.insert(0, &ANY, 8).unwrap();
        slots.insert_operation().unwrap();
        assert!(slots.is_full() && slots.insert(0, &ANY, 8).is_none());
        slots.remove(first.index());
        assert!(slots.insert_operation().is_some() && slots.is_full());
        assert_eq!((slots.len(), slots.index_end()), (2, 2));
    }
}
