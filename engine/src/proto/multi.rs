//! Multi-receives: one posted buffer that takes many messages, one after the other
//! (`FI_MULTI_RECV`).
//!
//! ```text
//!  memory  | message | message (being pulled) | message | free             |
//!          0         offset                             used         capacity
//! ```
//!
//! It stays in its position among posted receives, so that messages match in MPI's order. Each
//! message that it matches gets a *slice*: space of its length at the match, and an operation of
//! its own, which ends like that of any receive. A message longer than the free space is truncated.
//! When less than `min_free` bytes are free the receive takes no more; it ends, and its memory
//! returns to the user, when all slices have ended. It ends earlier where the completion of one
//! more message could not be reported, or no operation can be created: messages then wait as
//! unexpected, within their credit, and the user posts again after it has read its completions.

use super::context::SharedState;
use super::core::Core;
use super::effects::{Effects, Ended};
use super::endpoints::Endpoints;
use super::matching::{MatchEnvelope, Matcher, Selector, SlotState};
use super::operation::{NO_REMOTE, NO_SESSION, Operation, OperationState};
use super::operations::Operations;
use super::table::Id;
use super::unexpected::Message;

/// A multi-receive.
#[derive(Debug)]
pub(crate) struct Multi {
    /// It takes no more messages when fewer bytes are free; never 0.
    min_free: u64,
    /// Bytes used by messages.
    used: u64,
    /// Slices that have not ended.
    pending: u32,
    /// It takes no more messages.
    is_closed: bool,
    /// Its result, unless it is used up.
    failed: Option<Ended>,
}

impl Multi {
    /// Creates one that takes messages until fewer than `min_free` bytes are free.
    pub(super) fn new(min_free: u64) -> Self {
        let min_free = min_free.max(1);
        Self { min_free, used: 0, pending: 0, is_closed: false, failed: None }
    }

    /// Returns whether it ends without being used up.
    pub(super) fn has_failed(&self) -> bool {
        self.failed.is_some()
    }

    /// Takes space for a message of `length` bytes in memory of `capacity`. Returns its offset and
    /// length.
    fn take(&mut self, length: u64, capacity: u64) -> (u64, u64) {
        let (offset, taken) = (self.used, length.min(capacity - self.used));
        if !planted!(OverlapSlices) {
            self.used += taken;
        }
        self.pending += 1;
        (offset, taken)
    }

    /// Returns its result, once it is closed and its slices have ended.
    fn result(&self) -> Option<Ended> {
        if !self.is_closed || (self.pending > 0 && !planted!(ReleaseEarly)) {
            return None;
        }
        Some(self.failed.clone().unwrap_or(Ended::Released { used: self.used }))
    }
}

impl Endpoints {
    /// Returns the receive for an arrived message of `length` bytes: the oldest one of endpoint
    /// `target` that accepts it, or a slice of that.
    #[inline]
    pub(super) fn match_arrival(
        &mut self,
        operations: &mut Operations,
        target: u16,
        envelope: &MatchEnvelope,
        length: u64,
        effects: &mut impl Effects,
    ) -> Option<Id> {
        let matcher = self.get_mut(target)?;
        loop {
            let index = matcher.take_posted(&mut operations.slots, envelope)?;
            let id = operations.id_at(index as usize)?;
            if operations.slots.at(index).state() == SlotState::Receive {
                return Some(id);
            }
            if let Some(slice) = operations.take_slice(matcher, id, length, effects) {
                return Some(slice);
            }
        }
    }
}

impl Core {
    /// Gives a new multi-receive the unexpected messages that it accepts, oldest first. Returns
    /// whether it takes more.
    pub(super) fn fill_multi(
        &mut self,
        id: Id,
        (endpoint, selector): (u16, &Selector),
        effects: &mut impl Effects,
    ) -> bool {
        while self.shared.operations.takes_slices(id)
            && let SharedState { endpoints, unexpected, operations, .. } = &mut self.shared
            && let Some(matcher) = endpoints.get_mut(endpoint)
            && let Some(kept) = matcher.peek_unexpected(selector)
            && let length = unexpected.at(kept.message).map_or(0, Message::length)
            && let Some(slice) = operations.take_slice(matcher, id, length, effects)
        {
            matcher.take_unexpected(selector);
            self.deliver(slice, &kept, effects);
        }
        self.shared.operations.takes_slices(id)
    }
}

impl Operations {
    /// Returns whether a multi-receive has not ended, and takes more messages.
    pub(super) fn takes_slices(&self, id: Id) -> bool {
        let state = self.get(id).map(|found| &found.state);
        matches!(state, Some(OperationState::AwaitMessages(multi)) if !multi.is_closed)
    }

    /// Returns the state of a multi-receive that has not ended.
    fn multi(&mut self, id: Id) -> Option<&mut Multi> {
        let found = self.get_mut(id);
        debug_assert!(
            found.is_some() || planted!(ReleaseEarly),
            "a multi-receive ends after its slices"
        );
        match &mut found?.state {
            OperationState::AwaitMessages(multi) => Some(multi),
            state => {
                debug_assert!(false, "{state:?} takes no slices");
                None
            }
        }
    }

    /// Allocates space for one message in a multi-receive that has matched it. `None`: it takes no
    /// more, and is not posted any longer.
    fn take_slice(
        &mut self,
        matcher: &mut Matcher,
        id: Id,
        length: u64,
        effects: &mut impl Effects,
    ) -> Option<Id> {
        if !effects.has_room(id) || self.is_full() || rare!("a multi-receive that is full", 40) {
            self.close_multi(matcher, id, effects);
            return None;
        }
        let &mut Operation { endpoint, context, tag, length: capacity, ref mut state, .. } =
            self.get_mut(id)?;
        let OperationState::AwaitMessages(multi) = state else { return None };
        let (offset, taken) = multi.take(length, capacity);
        let is_used_up = capacity - multi.used < multi.min_free;
        let new = Operation::new(endpoint, NO_SESSION, NO_REMOTE, OperationState::Matched);
        let slice = Operation { context, tag, length: taken, slice_of: Some(id), ..new };
        let slice = self.insert(slice)?;
        effects.slice(id, slice, offset, taken);
        if is_used_up {
            self.close_multi(matcher, id, effects);
        }
        Some(slice)
    }

    /// Closes a multi-receive of the endpoint of `matcher`, which exists: it takes no more
    /// messages.
    fn close_multi(&mut self, matcher: &mut Matcher, id: Id, effects: &mut impl Effects) {
        matcher.cancel_posted(&mut self.slots, id.index() as u32);
        self.change_multi(id, |multi| multi.is_closed = true, effects);
    }

    /// Changes a multi-receive, and ends it if it is closed and its slices have ended with that.
    fn change_multi(
        &mut self,
        id: Id,
        change: impl FnOnce(&mut Multi),
        effects: &mut impl Effects,
    ) {
        let ended = self.multi(id).and_then(|multi| {
            change(multi);
            multi.result()
        });
        if let Some(ended) = ended {
            self.remove(id);
            effects.complete(id, ended);
        }
    }

    /// Ends a multi-receive, which exists, with a failure; its matched messages still end by
    /// themselves.
    pub(super) fn fail_multi(
        &mut self,
        endpoints: &mut Endpoints,
        id: Id,
        failed: Ended,
        effects: &mut impl Effects,
    ) {
        endpoints.withdraw(self, id);
        let fail = |multi: &mut Multi| {
            multi.failed.get_or_insert(failed);
            multi.is_closed = true;
        };
        self.change_multi(id, fail, effects);
    }

    /// Handles the end and removal of a receive operation.
    #[inline]
    pub(super) fn end_receive(
        &mut self,
        id: Id,
        slice_of: Option<Id>,
        ended: Ended,
        effects: &mut impl Effects,
    ) {
        effects.complete(id, ended);
        if let Some(multi) = slice_of {
            self.note_slice_ended(multi, effects);
        }
    }

    /// Notes that a message of multi-receive `id` has ended.
    #[cold]
    pub(super) fn note_slice_ended(&mut self, id: Id, effects: &mut impl Effects) {
        self.change_multi(id, |multi| multi.pending -= 1, effects);
    }
}
