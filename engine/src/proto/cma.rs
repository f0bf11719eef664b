//! Rendezvous by cross-memory attach (CMA): the receiver reads the message from the memory of the
//! sender's process.
//!
//! ```text
//!  sender                                    receiver
//!    │ RTS(envelope, length, CMA source)        │
//!    ├─────────────────────────────────────────>│ match, or wait as unexpected
//!    │                                          │ process_vm_readv, a piece each turn
//!    │                                    DONE  │   failed, or revoked? all of it is granted
//!    │<─────────────────────────────────────────┤   (rendezvous.rs), as if there were no source
//! ```
//!
//! A long put works like that, with its target as receiver (PUT RTS), and so does a long get, with
//! its origin (REPLY RTS): [`super::one_sided`].
//!
//! A session uses CMA where its segments go by memory that both engines share, and the peer has
//! shown that it can read (the driver's event `CmaChanged`). Messages longer than the best size for
//! a datagram are pulled then, without a lane.
//!
//! An operation that ends before DONE revokes its memory while the peer may be reading, before its
//! user gets it back ([`Effects::revoke`]), and data read after that is discarded.

use super::core::Core;
use super::effects::Effects;
use super::operation::OperationState;
use super::table::Id;
use crate::proto::context::Cx;
use crate::proto::ready::Work;
use crate::proto::session::Session;
use crate::wire::CmaSource;

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

impl Session {
    /// Sets whether the peer can read this process's memory.
    pub(crate) fn set_cma(&mut self, mut cx: Cx<'_>, has_cma: bool) {
        // Sessions with checksums need them on memory copies too, and CMA has none.
        let has_cma = has_cma && !self.has_checksums;
        let Some(segments) = self.segments.as_deref_mut() else { return };
        segments.set_cma(has_cma, cx.config);
        if self.has_waiting() {
            // Waiting sends may have another transport now.
            cx.add_work(Work::Stage);
        }
    }
}

impl Core {
    /// Queues a receive that matched a message readable from `source`.
    pub(super) fn pull_by_cma(&mut self, id: Id, source: CmaSource) {
        self.cma.push_back((id, source));
    }

    /// Returns whether there may be something to read.
    #[inline]
    pub(crate) fn has_cma(&self) -> bool {
        !self.cma.is_empty()
    }

    /// Returns the next piece to read, at most `most` bytes; [`Self::handle_cma`] removes it.
    ///
    /// RR-SHM-7.
    #[inline]
    pub(crate) fn next_cma(&mut self, most: u64) -> Option<CmaRead> {
        while let Some(&(operation, source)) = self.cma.front() {
            if let Some(found) = self.operations.get(operation)
                && let OperationState::Pulling(pulling) = &found.state
                && pulling.failed.is_none()
            {
                let (session, offset) = (found.session, pulling.arrived);
                let length = (pulling.wanted - offset).min(most);
                return Some(CmaRead { operation, session, source, offset, length });
            }
            self.cma.pop_front();
        }
        None
    }

    /// Handles the result of [`Self::next_cma`]: if the piece could not be read (`is_good` is
    /// false) all of its message is granted, since its sender may have reused the memory.
    ///
    /// RR-SHM-7.
    pub(crate) fn handle_cma(&mut self, read: CmaRead, is_good: bool, effects: &mut impl Effects) {
        let Some(found) = self.operations.get_mut(read.operation) else { return };
        let (slot, hint) = (found.session, found.hint);
        let OperationState::Pulling(pulling) = &mut found.state else { return };
        if is_good || planted!(TakeUnread) {
            // Nothing is granted: data that a peer sends nevertheless is rejected.
            pulling.arrived += read.length;
            if pulling.arrived == pulling.wanted {
                self.cma.pop_front();
                self.finish_pull(read.operation, effects);
            }
            return;
        }
        pulling.arrived = 0;
        let left = pulling.wanted;
        self.cma.pop_front();
        self.pull_in_ranges(read.operation, slot, hint, left);
    }
}
