//! Failures of peers.

use std::sync::Arc;

use crate::wire::goodbye;

/// Why operations with a peer fail. Shared by all of them, so that it is cheap to repeat.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PeerFailure {
    /// All attempts to connect failed.
    #[error(
        "unreachable after {attempts} attempts, the last one: {cause}. Is the process running, and \
         do address, route and firewall allow TCP to it?"
    )]
    Unreachable {
        /// Number of attempts.
        attempts: u32,
        /// Cause of the last attempt's failure.
        cause: Arc<str>,
    },
    /// The peer has reached its limit of sessions.
    #[error(
        "full after {attempts} attempts: it has as many sessions as its setting sessions_max \
         allows, with peers that are connected or that it inserted and did not remove. Raise the \
         setting there, remove peers there that are gone, or connect when others have left"
    )]
    Full {
        /// Number of attempts.
        attempts: u32,
    },
    /// The connection was lost: the process died, or its host or the network failed.
    #[error("lost: {0}")]
    Lost(Arc<str>),
    /// The peer closed its endpoint.
    #[error("left: it closed its endpoint")]
    Left,
    /// A different process answers at this address. Exchange addresses again.
    #[error("restarted: a different process uses this address now; exchange addresses again")]
    Restarted,
    /// The peer uses another version of the wire protocol.
    #[error("uses wire version {theirs}, this side uses {ours}; run the same ringrail on both")]
    Version {
        /// The peer's version.
        theirs: u16,
        /// Ours.
        ours: u16,
    },
    /// The peer violated the protocol; the connection was closed.
    #[error("violated the protocol: {0}. Please report it if the peer runs this ringrail version")]
    Protocol(Arc<str>),
    /// Data of the peer was corrupted (setting `checksum`); the session was closed.
    #[error(
        "corrupted: {0}. Memory, a NIC or a switch on the path alters bytes, or a buffer was \
         written to while it was being sent; look for memory errors (EDAC) and NIC drop counters \
         on both hosts and between them"
    )]
    Corrupted(Arc<str>),
    /// The peer reported a protocol violation of this side.
    #[error("closed the connection because of a protocol error on this side; please report it")]
    Rejected,
    /// The remote process cannot prove that it knows this job's secret.
    #[error(
        "is not authenticated: the peer does not know this job's secret. Give both sides the same \
         job_secret (or job_secret_file), or insecure = true on both; or another job runs at \
         this address now"
    )]
    WrongSecret,
    /// The settings of the two sides are incompatible.
    #[error("has incompatible settings: {0}")]
    Settings(Arc<str>),
    /// The peer was inserted by IP address and port alone, and the process there is a peer by its
    /// own address already.
    #[error(
        "is known already: the process there was inserted, or connected, by its own address, and \
         two handles of one endpoint would be ambiguous. Use the handle of that address, or \
         remove that one first"
    )]
    KnownOtherwise,
    /// The user removed the peer from the address vector.
    #[error("removed from the address vector")]
    Removed,
}

impl PeerFailure {
    /// Returns the failure for the reason of a peer's goodbye.
    pub(crate) fn of_goodbye(reason: u8) -> Self {
        match reason {
            goodbye::REASON_PROTOCOL => Self::Rejected,
            goodbye::REASON_CORRUPTED => Self::Corrupted("the peer received corrupted data".into()),
            _ => Self::Left,
        }
    }
}
