//! Rendezvous by cross-memory attach (CMA): the receiver reads the message from the memory of the
//! sender's process.
//!
//! ```text
//!  sender                                    receiver
//!    │ RTS(envelope, length, CMA source)        │
//!    ├─────────────────────────────────────────>│ match, or wait as unexpected
//!    │                                          │ process_vm_readv, a piece each turn
//!    │                                    DONE  │   failed, or revoked? all of it is granted
//!    │<─────────────────────────────────────────┤   as if there were no source
//! ```
//!
//! A long put works like that, with its target as receiver (PUT RTS), and so does a long get, with
//! its origin (REPLY RTS): [`one_sided`](super::super::super::one_sided).
//!
//! A session uses CMA where its segments go by memory that both engines share, and the peer has
//! shown that it can read: the driver's event `CmaChanged`, `Session::use_memory_reads`. Messages
//! longer than the best size for a datagram are pulled then, without a lane.
//!
//! An operation that ends before DONE revokes its memory while the peer may be reading, before its
//! user gets it back ([`Effects::revoke`]), and data read after that is discarded.

use super::super::Rendezvous;
use super::super::SessionRendezvous;
use super::super::pulling::{PullState, Pulling};
use super::{AnyCarrier, Carrier};
use crate::proto::context::{Cx, SharedState};
use crate::proto::core::Core;
use crate::proto::effects::Effects;
use crate::proto::operation::OperationState;
use crate::proto::operations::Operations;
use crate::proto::table::Id;
use crate::wire::{CmaSource, Grant};

/// The memory of the sender's process, with the message at this place.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct MemoryCarrier(pub(in super::super) CmaSource);

impl Carrier for MemoryCarrier {
    /// Queues the message to be read, in matching order.
    fn begin(self, _it: &mut SessionRendezvous, cx: &mut Cx<'_>, id: Id) -> Option<Grant> {
        let pulled = cx.shared.operations.pulling(cx.slot, id);
        let (pulling, _) = debug_assert_some!(pulled, "it pulls")?;
        (pulling.carrier, pulling.state) = (self.into(), PullState::Settled);
        cx.shared.rendezvous.readable.push_back(id);
        None
    }

    /// All of it comes anew, since the sender may have reused the memory.
    fn take_back(self, pulling: &mut Pulling) {
        (pulling.state, pulling.arrived) = (PullState::Granting, 0);
    }
}

/// A piece of a message for the loop to read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CmaRead {
    pub(crate) operation: Id,
    /// Slot of the session.
    pub(crate) session: u32,
    /// Location of the whole message.
    pub(crate) source: CmaSource,
    pub(crate) offset: u64,
    pub(crate) length: u64,
}

impl Rendezvous {
    /// Returns whether there may be something to read.
    #[inline]
    pub(crate) fn has_readable(&self) -> bool {
        !self.readable.is_empty()
    }

    /// Returns the next piece to read, at most `most` bytes.
    fn next_read(&mut self, operations: &Operations, most: u64) -> Option<CmaRead> {
        while let Some(&operation) = self.readable.front() {
            if let Some(found) = operations.get(operation)
                && let OperationState::AwaitBytes(pulling) = &found.state
                && let AnyCarrier::Memory(MemoryCarrier(source)) = pulling.carrier
                && !pulling.has_failed()
            {
                let (session, offset) = (found.session, pulling.arrived);
                let length = (pulling.wanted - offset).min(most);
                return Some(CmaRead { operation, session, source, offset, length });
            }
            self.readable.pop_front();
        }
        None
    }
}

impl SharedState {
    /// Returns the next piece to read, at most `most` bytes; [`Core::handle_cma`] removes it.
    ///
    /// RR-SHM-7.
    pub(crate) fn next_cma(&mut self, most: u64) -> Option<CmaRead> {
        self.rendezvous.next_read(&self.operations, most)
    }
}

impl Core {
    /// Handles the result of [`SharedState::next_cma`]: if the piece could not be read (`is_good`
    /// is false) all of its message is granted, since its sender may have reused the memory.
    ///
    /// RR-SHM-7.
    pub(crate) fn handle_cma(&mut self, read: CmaRead, is_good: bool, effects: &mut impl Effects) {
        let CmaRead { session, operation, length, .. } = read;
        debug_assert_eq!(
            self.shared.rendezvous.readable.front(),
            Some(&operation),
            "the first message is read"
        );
        let is_good = is_good || planted!(TakeUnread);
        let is_whole = is_good && self.note_pulled(operation, length, effects);
        if is_whole || !is_good {
            self.shared.rendezvous.readable.pop_front();
        }
        if !is_good {
            self.with_known(session, |it, mut cx| {
                it.grant_by(&mut cx, |it, cx| it.replace_carrier(cx, operation));
            });
        }
    }
}
