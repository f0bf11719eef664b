//! Errors, by whose fault it is.

use std::sync::Arc;

use super::address::Address;
pub use crate::proto::failure::PeerFailure;

/// What can go wrong. Every text names the cause and the cure.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A bound is reached for now: make progress, then post again.
    #[error("at a limit ({0}): make progress and post again, or raise the setting")]
    WouldBlock(&'static str),
    /// A bound is reached that no progress lifts.
    #[error("at a limit that progress does not lift: {0}")]
    Limit(&'static str),
    /// The peer failed, left or cannot be reached.
    #[error("peer {address} {failure}")]
    Peer {
        /// The peer's address; in a box, for every completion has room for an error.
        address: Box<Address>,
        /// What happened to it.
        failure: PeerFailure,
    },
    /// The handle names no peer: it was removed, or belongs to another endpoint.
    #[error("no such peer: it was removed, or the handle belongs to another endpoint")]
    UnknownPeer,
    /// The message is longer than the receive; the buffer holds its beginning.
    #[error("truncated: the message has {sent} bytes, the receive {capacity}; post a larger one")]
    Truncated {
        /// Length of the message in bytes.
        sent: u64,
        /// Length of the receive in bytes.
        capacity: u64,
    },
    /// The operation was cancelled.
    #[error("cancelled")]
    Cancelled,
    /// A deadline passed.
    #[error("timed out")]
    TimedOut,
    /// The memory given cannot be used like this.
    #[error(transparent)]
    Memory(#[from] crate::memory::MemoryError),
    /// A message, an address or an argument is out of range.
    #[error("{0}")]
    Misuse(Arc<str>),
    /// Settings cannot be used.
    #[error("{0}")]
    Settings(Arc<str>),
    /// The operating system refused something that an endpoint cannot do without.
    #[error("{what}: {cause}")]
    System {
        /// What was attempted, and what helps.
        what: Arc<str>,
        /// What the system said.
        cause: Arc<str>,
    },
}

impl Error {
    pub(crate) fn system(what: impl Into<Arc<str>>, cause: impl ToString) -> Self {
        Self::System { what: what.into(), cause: cause.to_string().into() }
    }

    pub(crate) fn misuse(what: impl Into<Arc<str>>) -> Self {
        Self::Misuse(what.into())
    }

    /// Whether posting again after progress may succeed.
    pub fn is_would_block(&self) -> bool {
        matches!(self, Self::WouldBlock(_))
    }
}
