//! Kinds of errors, for programs.

use crate::proto::failure::PeerFailure;

/// The kind of an [`Error`](crate::Error). The meaning of a kind does not change; kinds may be
/// added.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A limit is reached for now.
    WouldBlock,
    /// A limit is reached that progress does not lift.
    Limit,
    /// No attempt to connect to the peer succeeded.
    Unreachable,
    /// The peer has reached its limit of sessions.
    Full,
    /// The connection to the peer broke.
    Lost,
    /// The peer closed its endpoint.
    Left,
    /// Another process is at the peer's address.
    Restarted,
    /// The peer has another version, or incompatible settings.
    Incompatible,
    /// One side broke the protocol.
    Protocol,
    /// Received data did not match its checksum.
    Corrupted,
    /// The peer does not know the job's secret.
    WrongSecret,
    /// The peer was removed from the address vector.
    Removed,
    /// The handle names no peer.
    UnknownPeer,
    /// No peer is left that could send what a receive from any source waits for.
    NoPeerLeft,
    /// The message is longer than its receive.
    Truncated,
    /// The target refused an operation on its memory.
    RemoteAccess,
    /// Memory is still in use by an operation of a peer.
    Busy,
    /// The operation was cancelled.
    Cancelled,
    /// A deadline passed.
    TimedOut,
    /// The memory given cannot be used like this.
    Memory,
    /// An argument is out of range.
    Misuse,
    /// Settings cannot be used.
    Settings,
    /// The operating system refused something.
    System,
}

impl ErrorKind {
    pub(super) fn of_failure(failure: &PeerFailure) -> Self {
        match failure {
            PeerFailure::Unreachable { .. } => Self::Unreachable,
            PeerFailure::Full { .. } => Self::Full,
            PeerFailure::Lost(_) => Self::Lost,
            PeerFailure::Left => Self::Left,
            PeerFailure::Restarted => Self::Restarted,
            PeerFailure::Version { .. } | PeerFailure::Settings(_) => Self::Incompatible,
            PeerFailure::Protocol(_) | PeerFailure::Rejected => Self::Protocol,
            PeerFailure::Corrupted(_) => Self::Corrupted,
            PeerFailure::WrongSecret => Self::WrongSecret,
            PeerFailure::KnownOtherwise => Self::Misuse,
            PeerFailure::Removed => Self::Removed,
        }
    }

    /// Returns the closest Linux error number.
    pub const fn errno(self) -> i32 {
        match self {
            Self::WouldBlock => libc::EAGAIN,
            Self::Limit => libc::ENOBUFS,
            Self::Unreachable => libc::EHOSTUNREACH,
            Self::Full => libc::EUSERS,
            Self::Lost => libc::ECONNRESET,
            Self::Left => libc::ESHUTDOWN,
            Self::Restarted => libc::ESTALE,
            Self::Incompatible => libc::EPROTONOSUPPORT,
            Self::Protocol => libc::EPROTO,
            Self::Corrupted => libc::EBADMSG,
            Self::WrongSecret => libc::EACCES,
            Self::Removed | Self::NoPeerLeft => libc::ENOTCONN,
            Self::UnknownPeer => libc::EADDRNOTAVAIL,
            Self::Truncated => libc::EMSGSIZE,
            Self::RemoteAccess => libc::EREMOTEIO,
            Self::Busy => libc::EBUSY,
            Self::Cancelled => libc::ECANCELED,
            Self::TimedOut => libc::ETIMEDOUT,
            Self::Memory | Self::Misuse | Self::Settings => libc::EINVAL,
            Self::System => libc::EIO,
        }
    }
}
