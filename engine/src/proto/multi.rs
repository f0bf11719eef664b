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

use super::core::Core;
use super::effects::{Effects, Ended};
use super::matching::{MatchEnvelope, SlotState};
use super::operation::{Cause, NO_REMOTE, NO_SESSION, Operation, OperationState};
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
    /// Why it has ended, unless it was used up.
    pub(crate) cause: Option<Cause>,
}

impl Multi {
    /// Returns whether it takes no more messages.
    pub(super) fn is_closed(&self) -> bool {
        self.is_closed
    }

    pub(super) fn new(min_free: u64) -> Self {
        let min_free = min_free.max(1);
        Self { min_free, used: 0, pending: 0, is_closed: false, cause: None }
    }
}

impl Core {
    /// Returns the receive for an arrived message of `length` bytes: the oldest one that accepts
    /// it, or a slice of that.
    #[inline]
    pub(super) fn match_arrival(
        &mut self,
        target: u16,
        envelope: &MatchEnvelope,
        length: u64,
        effects: &mut impl Effects,
    ) -> Option<Id> {
        loop {
            let receives = &mut self.shared.operations.slots;
            let index = self.shared.endpoints.get_mut(target)?.take_posted(receives, envelope)?;
            let id = receives.id_at(index as usize)?;
            if receives.at(index).state() == SlotState::Receive {
                return Some(id);
            }
            if let Some(slice) = self.take_slice(id, length, effects) {
                return Some(slice);
            }
        }
    }

    /// Allocates space for one message in a multi-receive that has matched it. `None`: it takes no
    /// more, and is not posted any longer.
    fn take_slice(&mut self, id: Id, length: u64, effects: &mut impl Effects) -> Option<Id> {
        if !effects.has_room(id)
            || self.shared.operations.is_full()
            || rare!("a multi-receive that is full", 40)
        {
            self.close_multi(id, effects);
            return None;
        }
        let operation = self.shared.operations.get_mut(id)?;
        let (endpoint, context, tag) = (operation.endpoint, operation.context, operation.tag);
        let capacity = operation.length;
        let OperationState::Multi(multi) = &mut operation.state else { return None };
        let (offset, taken) = (multi.used, length.min(capacity - multi.used));
        if !planted!(OverlapSlices) {
            multi.used += taken;
        }
        multi.pending += 1;
        let is_used_up = capacity - multi.used < multi.min_free;
        let state = OperationState::Matched;
        let slice = Operation {
            context,
            tag,
            length: taken,
            slice_of: Some(id),
            ..Operation::new(endpoint, NO_SESSION, NO_REMOTE, state)
        };
        let slice = self.shared.operations.insert(slice)?;
        effects.slice(id, slice, offset, taken);
        if is_used_up {
            self.close_multi(id, effects);
        }
        Some(slice)
    }

    /// Closes a multi-receive, which takes no more messages.
    fn close_multi(&mut self, id: Id, effects: &mut impl Effects) {
        let Some(operation) = self.shared.operations.get_mut(id) else { return };
        let OperationState::Multi(multi) = &mut operation.state else { return };
        multi.is_closed = true;
        self.withdraw_receive(id);
        self.finish_multi(id, effects);
    }

    /// Ends a closed multi-receive, once its slices have ended.
    fn finish_multi(&mut self, id: Id, effects: &mut impl Effects) {
        let Some(operation) = self.shared.operations.get(id) else { return };
        let OperationState::Multi(multi) = &operation.state else { return };
        if !multi.is_closed || (multi.pending > 0 && !planted!(ReleaseEarly)) {
            return;
        }
        let ended = match multi.cause.clone() {
            Some(cause) => cause.ended(self.name_of(operation.remote)),
            None => Ended::Released { used: multi.used },
        };
        self.shared.operations.remove(id);
        effects.complete(id, ended);
    }

    /// Ends a multi-receive with a cause; its matched messages still end by themselves.
    pub(super) fn fail_multi(&mut self, id: Id, cause: &Cause, effects: &mut impl Effects) {
        let Some(operation) = self.shared.operations.get_mut(id) else { return };
        let OperationState::Multi(multi) = &mut operation.state else { return };
        multi.cause.get_or_insert_with(|| cause.clone());
        self.close_multi(id, effects);
    }

    /// Gives a new multi-receive the unexpected messages that it accepts, oldest first, and posts
    /// it if it takes more.
    pub(super) fn start_multi(&mut self, id: Id, effects: &mut impl Effects) {
        let Some(slot) = self.shared.operations.slots.get(id) else { return };
        let selector = &slot.selector();
        loop {
            let Some(operation) = self.shared.operations.get_mut(id) else { return };
            let OperationState::Multi(multi) = &mut operation.state else { return };
            if multi.is_closed {
                return;
            }
            let Some(matcher) = self.shared.endpoints.get_mut(operation.endpoint) else {
                return self.fail_multi(id, &Cause::Closed, effects);
            };
            let Some(kept) = matcher.peek_unexpected(selector) else { break };
            let length = self.shared.unexpected.at(kept.message).map_or(0, Message::length);
            let endpoint = operation.endpoint;
            let Some(slice) = self.take_slice(id, length, effects) else { return };
            if let Some(matcher) = self.shared.endpoints.get_mut(endpoint) {
                matcher.take_unexpected(selector);
            }
            self.deliver(slice, &kept, effects);
        }
        let Some(operation) = self.shared.operations.get_mut(id) else { return };
        let session = self.sessions.at_mut(operation.session as usize);
        if let Some(session) = session
            && let Some(failure) = session.failure_to_report().cloned()
        {
            session.unreported = None;
            self.fail_multi(id, &Cause::Peer(failure), effects);
            return;
        }
        if let Some((matcher, needs_peers)) = self.shared.endpoints.with_needs(operation.endpoint) {
            matcher.insert_posted(&mut self.shared.operations.slots, id.index() as u32);
            if needs_peers {
                self.end_receives_without_sender(effects);
            }
        }
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
        let Some(operation) = self.shared.operations.get_mut(id) else { return };
        let OperationState::Multi(multi) = &mut operation.state else { return };
        multi.pending -= 1;
        self.finish_multi(id, effects);
    }
}
