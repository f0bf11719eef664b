//! Outstanding operations, by id.
//!
//! A receive that waits for its message is a slot of [`Receives`] and nothing else: most receives
//! take a short message, and end without ever being more. Every other operation has a slot too,
//! which makes its id, and an [`Operation`] under the same index. A receive becomes one when it
//! begins to pull a long message.

use super::matching::{Receive, Receives, Selector, SlotState};
use super::operation::{NO_REMOTE, NO_SESSION, Operation, OperationState};
use super::table::{Id, reserve_for};

/// A receive that has matched, and was removed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Matched {
    /// Length of its memory, in bytes.
    pub(super) capacity: u64,
    /// The multi-receive of which it is one message.
    pub(super) slice_of: Option<Id>,
}

/// The outstanding operations of an engine.
#[derive(Debug)]
pub(crate) struct Operations {
    /// Their ids, and the receives. Matchers keep their positions here.
    pub(super) receives: Receives,
    /// Operations that are not receives in their slots, by index.
    others: Vec<Option<Operation>>,
}

impl Operations {
    /// Creates a table of at most `limit` operations.
    pub(super) fn new(limit: usize) -> Self {
        Self { receives: Receives::new(limit), others: Vec::new() }
    }

    /// Returns the number of operations.
    pub(crate) fn len(&self) -> usize {
        self.receives.len()
    }

    /// Returns whether an insertion would be refused.
    pub(crate) fn is_full(&self) -> bool {
        self.receives.is_full()
    }

    /// Inserts an operation. `Err` returns it at the limit.
    pub(super) fn insert(&mut self, operation: Operation) -> Result<Id, Operation> {
        match self.receives.insert_other() {
            Some(id) => {
                self.keep(id, operation);
                Ok(id)
            }
            None => Err(operation),
        }
    }

    /// Inserts a receive that accepts what `selector` says. `None`: at the limit.
    #[inline(always)]
    pub(super) fn insert_receive(
        &mut self,
        endpoint: u16,
        selector: &Selector,
        capacity: u64,
    ) -> Option<Id> {
        self.receives.insert(endpoint, selector, capacity)
    }

    /// Inserts a multi-receive, whose slot has its selector. `None`: at the limit.
    pub(super) fn insert_multi(&mut self, selector: &Selector, operation: Operation) -> Option<Id> {
        let id = self.receives.insert(operation.endpoint, selector, operation.length)?;
        self.receives.turn_into_other(id);
        self.keep(id, operation);
        Some(id)
    }

    fn keep(&mut self, id: Id, operation: Operation) {
        let index = id.index();
        if index >= self.others.len() {
            reserve_for(&mut self.others, index + 1);
            self.others.resize_with(index + 1, || None);
        }
        self.others[index] = Some(operation);
    }

    /// Returns an operation that is more than a receive which waits.
    #[inline]
    pub(crate) fn get(&self, id: Id) -> Option<&Operation> {
        self.receives.get(id)?;
        self.others.get(id.index())?.as_ref()
    }

    /// Returns an operation that is more than a receive which waits, mutable.
    #[inline]
    pub(super) fn get_mut(&mut self, id: Id) -> Option<&mut Operation> {
        self.receives.get(id)?;
        self.others.get_mut(id.index())?.as_mut()
    }

    /// Returns a receive that waits, or has matched and begins.
    #[inline]
    pub(crate) fn receive(&self, id: Id) -> Option<&Receive> {
        let slot = self.receives.get(id)?;
        matches!(slot.state(), SlotState::Receive | SlotState::Posted).then_some(slot)
    }

    /// Returns whether an operation is outstanding.
    pub(crate) fn contains(&self, id: Id) -> bool {
        self.receives.get(id).is_some()
    }

    /// Removes an operation that is more than a receive which waits. It is not posted.
    pub(super) fn remove(&mut self, id: Id) -> Option<Operation> {
        self.receives.get(id)?;
        let removed = self.others.get_mut(id.index())?.take()?;
        self.receives.remove(id.index());
        Some(removed)
    }

    /// Removes a receive that is not posted.
    #[inline]
    pub(super) fn remove_receive(&mut self, id: Id) {
        debug_assert!(self.receive(id).is_some(), "{id:?} is no receive");
        self.receives.remove(id.index());
    }

    /// Removes a receive that has matched a whole message.
    #[inline]
    pub(super) fn take_matched(&mut self, id: Id) -> Option<Matched> {
        if let Some(receive) = self.receive(id) {
            let matched = Matched { capacity: receive.capacity(), slice_of: None };
            self.receives.remove(id.index());
            return Some(matched);
        }
        let Operation { length, slice_of, .. } = self.remove(id)?;
        Some(Matched { capacity: length, slice_of })
    }

    /// Returns a receive that has matched a long message, as an operation.
    pub(super) fn begin_pull(&mut self, id: Id) -> Option<&mut Operation> {
        if let Some(receive) = self.receive(id) {
            let (endpoint, length) = (receive.endpoint(), receive.capacity());
            let new = Operation::new(endpoint, NO_SESSION, NO_REMOTE, OperationState::Matched);
            self.receives.turn_into_other(id);
            self.keep(id, Operation { length, ..new });
        }
        self.get_mut(id)
    }

    /// Returns the length of an operation's message or memory, in bytes.
    pub(super) fn length(&self, id: Id) -> Option<u64> {
        let receive = self.receive(id).map(Receive::capacity);
        receive.or_else(|| Some(self.get(id)?.length))
    }

    /// Returns the id of the operation at an index.
    #[inline]
    pub(super) fn id_at(&self, index: usize) -> Option<Id> {
        self.receives.id_at(index)
    }

    /// Returns one more than the highest index ever used.
    pub(super) fn slots(&self) -> usize {
        self.receives.slots()
    }

    /// Returns the operations that are more than receives which wait, by index.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Id, &Operation)> {
        let others = self.others.iter().enumerate();
        others.filter_map(|(index, it)| Some((self.receives.id_at(index)?, it.as_ref()?)))
    }

    /// Returns the receives that wait, by index.
    pub(crate) fn waiting_receives(&self) -> impl Iterator<Item = (Id, &Receive)> {
        self.receives.iter().filter(|(_, slot)| slot.state() == SlotState::Posted)
    }

    /// Returns the ids of all operations of an endpoint, by index.
    pub(crate) fn ids_of(&self, endpoint: u16) -> impl Iterator<Item = Id> {
        let ids = self.receives.iter();
        ids.filter(move |(id, slot)| {
            self.get(*id).map_or(slot.endpoint(), |it| it.endpoint) == endpoint
        })
        .map(|(id, _)| id)
    }

    /// Returns the ids of all operations, by index.
    #[cfg(test)]
    pub(crate) fn ids(&self) -> impl Iterator<Item = Id> {
        self.receives.iter().map(|(id, _)| id)
    }
}
