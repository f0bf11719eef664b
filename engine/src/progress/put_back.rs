//! Receives whose handle is dropped before its result was taken: a whole message is put back.

use super::engine::EngineState;
use super::outside::Ticket;
use crate::proto::effects::Arrival;
use crate::proto::table::Id;
use crate::types::{Completed, Status};

impl EngineState {
    /// Abandons the receive of a handle at `endpoint`: it is cancelled, put back, or continues to
    /// its end where its message is in progress.
    pub(crate) fn give_up_receive(&mut self, handle: Id, endpoint: u16) {
        if let Some(operation) = self.completions.operation_of(handle) {
            // If it can be cancelled, it has an outcome then.
            self.withdraw(operation);
        }
        if let Some((Ok(completed), order)) = self.completions.end_handle(handle) {
            self.put_back(endpoint, completed, order);
        }
    }

    /// Lets the operation of a handle run to its end without a waiter.
    pub(crate) fn abandon(&mut self, handle: Id) {
        self.completions.end_handle(handle);
    }

    /// Like [`Self::give_up_receive`], for an operation of a shared engine.
    pub(crate) fn give_up_ticket(&mut self, ticket: &Ticket, endpoint: u16) {
        if let Some(id) = ticket.operation() {
            self.withdraw(id);
        }
        if let Some(Ok(completed)) = ticket.take() {
            self.put_back(endpoint, completed, ticket.order());
        }
    }

    /// Gives the message to the next receive of `endpoint` that accepts it.
    fn put_back(&mut self, endpoint: u16, mut completed: Completed, order: u64) {
        let Status { peer, envelope, length, data } = completed.status;
        let Some(peer) = peer else { return };
        let mut bytes = match completed.buffer.gather() {
            Ok(bytes) => bytes,
            Err(error) => {
                tracing::warn!(endpoint, length, "message of a dropped receive is lost: {error}");
                return;
            }
        };
        bytes.truncate(length);
        let (context, tag) = envelope.parts();
        let arrival = Arrival { peer: peer.0, context, tag, length: length as u64, data };
        if !self.core.put_back(endpoint, arrival, &bytes, order, &mut self.completions) {
            tracing::debug!(endpoint, length, "message lost: its endpoint or source was removed");
        }
    }
}
