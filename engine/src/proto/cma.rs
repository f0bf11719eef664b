//! Rendezvous by cross-memory attach (CMA): the receiver reads the message from the memory of its
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
//! A long put is that with its target for a receiver (PUT RTS), a long get with its origin (REPLY
//! RTS): [`super::one_sided`].
//!
//! A session has it where its datagrams go by memory that both engines share, and the peer has
//! shown that it can read (the driver's event `CmaChanged`). What is longer than a datagram carries
//! at its best is pulled then, and by no lane.
//!
//! What ends before DONE takes its memory back while the peer may be reading: it is revoked
//! before its user has it again ([`Effects::revoke`]), and what is read after that does not count.

use super::core::Core;
use super::effects::Effects;
use super::operation::OperationState;
use super::table::Id;
use crate::wire::CmaSource;

/// A piece of a message for the loop to read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CmaRead {
    pub(crate) operation: Id,
    /// Slot of the session.
    pub(crate) session: u32,
    /// Where the whole message is.
    pub(crate) source: CmaSource,
    pub(crate) offset: u64,
    pub(crate) length: u64,
}

impl Core {
    /// The peer of a session can read this process's memory, or cannot any more.
    pub(crate) fn set_cma(&mut self, slot: u32, has_cma: bool) {
        let Some(session) = self.sessions.at_mut(slot as usize) else { return };
        // Checksums are wanted on what goes from memory to memory, and this bypasses them.
        let has_cma = has_cma && !session.has_checksums;
        let Some(datagram) = session.datagram.as_deref_mut() else { return };
        datagram.has_cma = has_cma;
        if session.has_waiting() {
            // There may be another way for them now.
            self.unblocked.push(slot);
        }
    }

    /// A receive has matched a message that can be read from `source`.
    pub(super) fn pull_by_cma(&mut self, id: Id, source: CmaSource) {
        self.cma.push_back((id, source));
    }

    /// Whether there may be something to read.
    #[inline]
    pub(crate) fn has_cma(&self) -> bool {
        !self.cma.is_empty()
    }

    /// What to read next, `most` bytes of it; [`Self::handle_cma`] takes it off.
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

    /// What [`Self::next_cma`] asked for is in place, or could not be read (`is_good`): then all of
    /// its message is granted, for its sender may have something else where that was.
    ///
    /// RR-SHM-7.
    pub(crate) fn handle_cma(&mut self, read: CmaRead, is_good: bool, effects: &mut impl Effects) {
        let Some(found) = self.operations.get_mut(read.operation) else { return };
        let (slot, hint) = (found.session, found.hint);
        let OperationState::Pulling(pulling) = &mut found.state else { return };
        if is_good || planted!(TakeUnread) {
            // Nothing is granted: data that a peer sends nevertheless is refused.
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
