//! Outstanding operations, by id.
//!
//! A receive that waits for its message is a slot of [`OperationSlots`] alone: most receives take a
//! short message, and need no other state. Every other operation is *general*: it has a slot, which
//! gives it an id, and an [`Operation`] under the same index. A receive becomes general when it
//! begins to pull a long message. The table of general operations grows to the highest index that
//! one of them has had.

use super::hint::Hint;
use super::matching::{OperationSlot, OperationSlots, Selector, SlotState};
use super::operation::{NO_REMOTE, NO_SESSION, Operation, OperationState};
use super::session::rendezvous::pulling::Pulling;
use super::session::rendezvous::serving::{Served, Serving};
use super::table::{Id, reserve_for};

/// A receive that has matched, and was removed.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct MatchedReceive {
    /// Length of its memory, in bytes.
    pub(super) capacity: u64,
    /// The multi-receive of which it is one message.
    pub(super) slice_of: Option<Id>,
}

/// The outstanding operations of an engine.
#[derive(Debug)]
pub(crate) struct Operations {
    /// Their ids, and the receives. Matchers keep their positions here.
    pub(super) slots: OperationSlots,
    /// The general operations, by index.
    general: Vec<Option<Operation>>,
    /// How many sends, and one-sided operations, may wait in a session.
    waiting_max: usize,
}

impl Operations {
    /// Creates a table of at most `limit` operations, of whose sends `waiting_max` may wait in a
    /// session.
    pub(super) fn new(limit: usize, waiting_max: usize) -> Self {
        Self { slots: OperationSlots::new(limit), general: Vec::new(), waiting_max }
    }

    /// Returns the limit on operations.
    #[inline]
    pub(crate) fn limit(&self) -> usize {
        self.slots.limit()
    }

    /// Returns how many sends may wait in a session; and as many one-sided operations.
    #[inline]
    pub(super) fn waiting_max(&self) -> usize {
        self.waiting_max
    }

    /// Returns the number of operations.
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Returns whether an insertion would be refused.
    pub(crate) fn is_full(&self) -> bool {
        self.slots.is_full()
    }

    /// Inserts an operation. `None`: at the limit.
    pub(super) fn insert(&mut self, operation: Operation) -> Option<Id> {
        let id = self.slots.insert_operation()?;
        self.keep(id, operation);
        Some(id)
    }

    /// Inserts a receive that accepts the messages of `selector`. `None`: at the limit.
    #[inline]
    pub(super) fn insert_receive(
        &mut self,
        endpoint: u16,
        selector: &Selector,
        capacity: u64,
    ) -> Option<Id> {
        self.slots.insert(endpoint, selector, capacity)
    }

    /// Inserts a multi-receive, whose slot has its selector. `None`: at the limit.
    pub(super) fn insert_multi(&mut self, selector: &Selector, operation: Operation) -> Option<Id> {
        let id = self.slots.insert(operation.endpoint, selector, operation.length)?;
        self.slots.turn_into_operation(id);
        self.keep(id, operation);
        Some(id)
    }

    fn keep(&mut self, id: Id, operation: Operation) {
        let index = id.index();
        if index >= self.general.len() {
            reserve_for(&mut self.general, index + 1);
            self.general.resize_with(index + 1, || None);
        }
        self.general[index] = Some(operation);
    }

    /// Returns a general operation; `None` for a receive that waits.
    #[inline]
    pub(crate) fn get(&self, id: Id) -> Option<&Operation> {
        self.slots.get(id)?;
        self.general.get(id.index())?.as_ref()
    }

    /// Returns a general operation, mutable; `None` for a receive that waits.
    #[inline]
    pub(super) fn get_mut(&mut self, id: Id) -> Option<&mut Operation> {
        self.slots.get(id)?;
        self.general.get_mut(id.index())?.as_mut()
    }

    /// Returns the state and the hint of a receive that pulls its message from the session in
    /// `slot`. `None`: it has ended.
    pub(super) fn pulling(&mut self, slot: u32, id: Id) -> Option<(&mut Pulling, Hint)> {
        let found = self.get_mut(id).filter(|found| found.session == slot)?;
        match &mut found.state {
            OperationState::AwaitBytes(pulling) => Some((pulling, found.hint)),
            _ => None,
        }
    }

    /// Returns the slot of the session that a receive pulls its message from, and its state.
    pub(super) fn pulled(&mut self, id: Id) -> Option<(u32, &mut Pulling)> {
        let found = self.get_mut(id)?;
        match &mut found.state {
            OperationState::AwaitBytes(pulling) => Some((found.session, pulling)),
            _ => None,
        }
    }

    /// Calls `call` with the state of a receive that must be pulling its message, and the slot of
    /// the session that it pulls from. Of a defect nothing but the default result follows.
    pub(super) fn with_pulled<R: Default>(
        &mut self,
        id: Id,
        call: impl FnOnce(u32, &mut Pulling) -> R,
    ) -> R {
        let pulled = debug_assert_some!(self.pulled(id), "its message is pulled");
        pulled.map(|(slot, pulling)| call(slot, pulling)).unwrap_or_default()
    }

    /// Returns the state of a send that serves the session in `slot`, the length of its message and
    /// its hint. `None`: it has ended.
    pub(super) fn serving(&mut self, slot: u32, id: Id) -> Option<(&mut Serving, u64, Hint)> {
        let found = self.get_mut(id).filter(|found| found.session == slot && found.serves())?;
        let (length, hint) = (found.length, found.hint);
        match &mut found.state {
            OperationState::AwaitPull(serving) => Some((serving, length, hint)),
            _ => None,
        }
    }

    /// Takes the result of a send that serves, once it is known and the kernel has released its
    /// memory; returns also the slot of its session, and its remote endpoint.
    pub(super) fn take_served(&mut self, id: Id) -> Option<(Served, u32, u32)> {
        let serving = self.get_mut(id).and_then(|found| match &mut found.state {
            OperationState::AwaitPull(serving) => Some((serving, found.session, found.remote)),
            _ => None,
        });
        let (serving, slot, remote) =
            debug_assert_some!(serving, "only sends that serve end by DONE or a release")?;
        Some((serving.take_end()?, slot, remote))
    }

    /// Queues a new send. Returns the slot of its session.
    pub(super) fn begin_waiting(&mut self, id: Id) -> u32 {
        let new = self.get_mut(id).and_then(|found| match found.state {
            OperationState::New { level } => Some((found, level)),
            _ => None,
        });
        let begun = debug_assert_some!(new, "a send is queued once, when it is new");
        begun.map_or(NO_SESSION, |(found, level)| {
            found.state = OperationState::Queued { level };
            found.session
        })
    }

    /// Returns the slot of the session of an operation that has not ended.
    pub(super) fn slot_of(&self, id: Id) -> u32 {
        let found = debug_assert_some!(self.get(id), "an operation in use has not ended");
        found.map_or(NO_SESSION, |found| found.session)
    }

    /// Returns a receive that waits, or has matched and begins.
    #[inline]
    pub(crate) fn receive(&self, id: Id) -> Option<&OperationSlot> {
        let slot = self.slots.get(id)?;
        matches!(slot.state(), SlotState::Receive | SlotState::Posted).then_some(slot)
    }

    /// Returns whether an operation is outstanding.
    pub(crate) fn contains(&self, id: Id) -> bool {
        self.slots.get(id).is_some()
    }

    /// Removes a general operation, which is not posted; `None` for a receive that waits.
    pub(super) fn remove(&mut self, id: Id) -> Option<Operation> {
        self.slots.get(id)?;
        let removed = self.general.get_mut(id.index())?.take()?;
        self.slots.remove(id.index());
        Some(removed)
    }

    /// Removes a receive that is not posted.
    #[inline]
    pub(super) fn remove_receive(&mut self, id: Id) {
        debug_assert!(self.receive(id).is_some(), "{id:?} is no receive");
        self.slots.remove(id.index());
    }

    /// Removes a receive that has matched a whole message.
    #[inline]
    pub(super) fn remove_matched(&mut self, id: Id) -> MatchedReceive {
        if let Some(receive) = self.receive(id) {
            let matched = MatchedReceive { capacity: receive.capacity(), slice_of: None };
            self.slots.remove(id.index());
            return matched;
        }
        let removed = debug_assert_some!(self.remove(id), "a receive that has matched is kept");
        let removed =
            removed.map(|it| MatchedReceive { capacity: it.length, slice_of: it.slice_of });
        removed.unwrap_or_default()
    }

    /// Returns a receive that has matched a long message, as an operation.
    pub(super) fn begin_pull(&mut self, id: Id) -> Option<&mut Operation> {
        if let Some(receive) = self.receive(id) {
            let (endpoint, length) = (receive.endpoint(), receive.capacity());
            let new = Operation::new(endpoint, NO_SESSION, NO_REMOTE, OperationState::Matched);
            self.slots.turn_into_operation(id);
            self.keep(id, Operation { length, ..new });
        }
        self.get_mut(id)
    }

    /// Removes a remote endpoint from operations that outlive its handle, whose slot may be reused.
    pub(super) fn unname(&mut self, remote: u32) {
        for operation in self.general.iter_mut().flatten() {
            if operation.remote == remote {
                operation.remote = NO_REMOTE;
            }
        }
    }

    /// Moves the operations with a remote endpoint, which has another session now, to that.
    pub(super) fn move_to_session(&mut self, remote: u32, from: u32, to: u32) {
        for operation in self.general.iter_mut().flatten() {
            if operation.remote == remote && operation.session == from {
                operation.session = to;
            }
        }
    }

    /// Returns the length of an operation's message or memory, in bytes.
    pub(super) fn length(&self, id: Id) -> Option<u64> {
        let receive = self.receive(id).map(OperationSlot::capacity);
        receive.or_else(|| Some(self.get(id)?.length))
    }

    /// Returns the id of the operation at an index.
    #[inline]
    pub(super) fn id_at(&self, index: usize) -> Option<Id> {
        self.slots.id_at(index)
    }

    /// Returns one more than the highest index ever used.
    pub(super) fn index_end(&self) -> usize {
        self.slots.index_end()
    }

    /// Returns the general operations, by index.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Id, &Operation)> {
        let general = self.general.iter().enumerate();
        general.filter_map(|(index, it)| Some((self.slots.id_at(index)?, it.as_ref()?)))
    }

    /// Returns the receives that wait, by index.
    pub(crate) fn waiting_receives(&self) -> impl Iterator<Item = (Id, &OperationSlot)> {
        self.slots.iter().filter(|(_, slot)| slot.state() == SlotState::Posted)
    }

    /// Returns the ids of all operations of an endpoint, by index.
    pub(crate) fn ids_of(&self, endpoint: u16) -> impl Iterator<Item = Id> {
        let ids = self.slots.iter();
        ids.filter(move |(id, slot)| {
            self.get(*id).map_or(slot.endpoint(), |it| it.endpoint) == endpoint
        })
        .map(|(id, _)| id)
    }

    /// Returns the ids of all operations, by index.
    #[cfg(test)]
    pub(crate) fn ids(&self) -> impl Iterator<Item = Id> {
        self.slots.iter().map(|(id, _)| id)
    }
}
