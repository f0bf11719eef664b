//! What the protocol has done to user memory and to users.

use super::eager_limit::CopySpeed;
use super::failure::PeerFailure;
use super::table::Id;
use crate::wire::locators::Locators;

/// How far a send must have come before it completes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum CompletionLevel {
    /// The buffer may be reused (`FI_INJECT_COMPLETE`).
    #[default]
    BufferReusable,
    /// The peer's engine has the message (`FI_DELIVERY_COMPLETE` to its buffers). By datagrams it
    /// may have come before an earlier one of its stream; if the session ends before that one
    /// comes, it is lost with it.
    Delivered,
    /// A receive of the peer has matched the message (MPI's synchronous mode). A rendezvous
    /// message completes like this at every level: its buffer is needed until then.
    Matched,
}

/// What a receive got.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Arrival {
    /// Name of the remote endpoint that sent it.
    pub(crate) peer: Id,
    /// Context, with [`super::core::UNTAGGED`] for untagged messages.
    pub(crate) context: u64,
    /// Tag.
    pub(crate) tag: u64,
    /// Length of the message as sent, in bytes.
    pub(crate) length: u64,
}

/// A remote endpoint, to be named in errors.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RemoteName {
    /// Its engine.
    pub(crate) engine: u64,
    /// Where that listens.
    pub(crate) locators: Locators,
    /// Its id there.
    pub(crate) endpoint: u16,
}

/// How an operation ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Ended {
    /// A send reached its level; `accepted` bytes fitted the receive, where that is known.
    Sent { accepted: u64 },
    /// A receive holds its message (cut to its capacity where that is shorter).
    Received(Arrival),
    /// The peer failed; which one, as far as it is known.
    Failed(PeerFailure, Option<RemoteName>),
    /// Cancelled by the user.
    Cancelled,
}

/// What the engine loop does for the protocol.
pub(crate) trait Effects {
    /// Copies `bytes` to `offset` of the memory of receive `operation`; they fit.
    fn place(&mut self, operation: Id, offset: usize, bytes: &[u8]);
    /// Copies `length` bytes at `offset` of the memory of send `from` to the same place of receive
    /// `to`; they fit both.
    fn copy(&mut self, from: Id, to: Id, offset: u64, length: u64);
    /// CRC32C of `length` bytes at `offset` of the memory of an operation; they are inside it, and
    /// nothing writes them meanwhile.
    fn checksum(&self, operation: Id, offset: u64, length: u32) -> u32;
    /// Operation `operation`, whose user data is `user`, has ended; no kernel request refers to
    /// its memory.
    fn complete(&mut self, operation: Id, ended: Ended);
    /// How fast [`Self::place`] copies, as far as that is measured.
    fn copy_speed(&self) -> CopySpeed {
        CopySpeed::default()
    }
    /// Receive `operation` ends with a message that came whole: [`Self::place`] of what fits, and
    /// [`Self::complete`].
    fn deliver(&mut self, operation: Id, bytes: &[u8], arrival: Arrival) {
        self.place(operation, 0, bytes);
        self.complete(operation, Ended::Received(arrival));
    }
}
