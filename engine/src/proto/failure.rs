//! Why a peer cannot be talked to any more.

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
        /// How many attempts were made.
        attempts: u32,
        /// What ended the last one.
        cause: Arc<str>,
    },
    /// The peer has as many sessions as it may have.
    #[error(
        "full after {attempts} attempts: it has as many sessions as its setting sessions_max \
         allows, with peers that are connected or that it inserted and did not remove. Raise the \
         setting there, remove peers there that are gone, or connect when others have left"
    )]
    Full {
        /// How many attempts were made.
        attempts: u32,
    },
    /// The connection broke: the process died, or its host or the network did.
    #[error("lost: {0}")]
    Lost(Arc<str>),
    /// The peer closed its endpoint on purpose.
    #[error("left: it closed its endpoint")]
    Left,
    /// Another process answers at this address. Exchange addresses again.
    #[error("restarted: another process lives at this address now; exchange addresses again")]
    Restarted,
    /// The peer runs another version of the wire protocol.
    #[error("speaks wire version {theirs}, this side speaks {ours}; run the same ringrail on both")]
    Version {
        /// The peer's version.
        theirs: u16,
        /// Ours.
        ours: u16,
    },
    /// The peer sent something that the protocol does not allow; the connection was closed.
    #[error("broke the protocol: {0}. Please report it if the peer is a ringrail of this version")]
    Protocol(Arc<str>),
    /// What the peer sent arrived as something else (setting `checksum`); the session was closed.
    #[error(
        "corrupted: {0}. Memory, a NIC or a switch on the way changes bytes, or a buffer was \
         written to while it was being sent; look for memory errors (EDAC) and NIC drop counters \
         on both hosts and between them"
    )]
    Corrupted(Arc<str>),
    /// This side broke the protocol, says the peer.
    #[error("closed the connection because of a protocol error on this side; please report it")]
    Rejected,
    /// What answers there does not prove that it knows this job's secret.
    #[error(
        "cannot be trusted: the peer does not know this job's secret. Give both sides the same \
         job_secret (or job_secret_file), or insecure = true on both; or another job lives at \
         this address now"
    )]
    WrongSecret,
    /// What the settings of the two sides ask for cannot be had together.
    #[error("cannot be agreed with: {0}")]
    Settings(Arc<str>),
    /// The peer was inserted by IP address and port alone, and who listens there is a peer by its
    /// own address already.
    #[error(
        "known already: who listens there was inserted, or met, by its own address, and two \
         handles of one endpoint could not be told apart. Use the handle of that address, or \
         remove that one first"
    )]
    KnownOtherwise,
    /// The user removed the peer from the address vector.
    #[error("removed from the address vector")]
    Removed,
}

impl PeerFailure {
    /// What the reason of a peer's goodbye means.
    pub(crate) fn of_goodbye(reason: u8) -> Self {
        match reason {
            goodbye::REASON_PROTOCOL => Self::Rejected,
            goodbye::REASON_CORRUPTED => {
                Self::Corrupted("the peer found it in what it received".into())
            }
            _ => Self::Left,
        }
    }
}
