//! Handles of operations, and what other modules ask of the operations' memory.

use std::sync::Arc;

use super::{Completions, Handle, outcome_of};
use crate::driver::traits::ProcessCookie;
use crate::progress::counters::Counting;
use crate::progress::events::EventQueues;
use crate::progress::outside::Ticket;
use crate::progress::registered_memory::RegisteredMemory;
use crate::proto::table::Id;
use crate::types::Outcome;

impl Completions {
    /// Creates a handle for an operation. `None`: at the limit of outstanding handles.
    pub(in crate::progress) fn new_handle(&mut self, ticket: Option<&Arc<Ticket>>) -> Option<Id> {
        let handle = Handle { ticket: ticket.cloned(), ..Handle::default() };
        self.handles.insert(handle).ok()
    }

    /// Returns the outstanding operation of a handle.
    pub(crate) fn operation_of(&self, handle: Id) -> Option<Id> {
        self.handles.get(handle).filter(|handle| handle.outcome.is_none())?.operation
    }

    /// Takes the outcome of a handle, with the matching order of its message, and ends the handle.
    /// `None`: its operation is outstanding.
    pub(crate) fn take_outcome(&mut self, handle: Id) -> Option<(Outcome, u64)> {
        let (outcome, order) = {
            let handle = self.handles.get_mut(handle)?;
            (handle.outcome.take()?, handle.order)
        };
        self.handles.remove(handle);
        Some((outcome_of(outcome), order))
    }

    /// Ends a handle that has no user any more. Returns its outcome, as [`Self::take_outcome`];
    /// an outstanding operation runs to its end without a waiter.
    pub(in crate::progress) fn end_handle(&mut self, handle: Id) -> Option<(Outcome, u64)> {
        let outcome = self.take_outcome(handle);
        if let Some(handle) = self.handles.get_mut(handle) {
            handle.is_abandoned = true;
        }
        outcome
    }

    /// Removes the handle of an operation that is not outstanding after all.
    pub(in crate::progress) fn remove_handle(&mut self, handle: Id) {
        self.handles.remove(handle);
    }

    /// Numbers the match of the receive of a handle, if it is the first.
    pub(super) fn number_match(&mut self, handle: Id) {
        if let Some(handle) = self.handles.get_mut(handle) {
            handle.number_match(&mut self.matches);
        }
    }

    // ---- Its other parts ----

    /// Returns the event queues.
    pub(crate) fn events(&self) -> &EventQueues {
        &self.events
    }

    /// Returns the event queues.
    pub(crate) fn events_mut(&mut self) -> &mut EventQueues {
        &mut self.events
    }

    /// Returns the counters of endpoints.
    pub(crate) fn counting_mut(&mut self) -> &mut Counting {
        &mut self.counting
    }

    /// Returns the memory that peers may access.
    pub(crate) fn regions_mut(&mut self) -> &mut RegisteredMemory {
        &mut self.regions
    }

    /// Counts bytes copied between user memory and segments or receive buffers.
    #[inline]
    pub(in crate::progress) fn count_copied(&mut self, bytes: u64) {
        self.copied_bytes += bytes;
    }

    /// Returns the bytes copied between user memory and segments or receive buffers.
    pub(in crate::progress) fn copied_bytes(&self) -> u64 {
        self.copied_bytes
    }

    /// Returns the number of operations that have ended.
    #[inline]
    pub(in crate::progress) fn finished(&self) -> u64 {
        self.finished
    }

    /// Sets what proves to peers on this host whether their reads of this memory are valid.
    pub(in crate::progress) fn set_cookie(&mut self, cookie: Option<Arc<ProcessCookie>>) {
        self.cookie = cookie;
    }

    /// Returns the cookie.
    pub(in crate::progress) fn cookie(&self) -> Option<&ProcessCookie> {
        self.cookie.as_deref()
    }
}
