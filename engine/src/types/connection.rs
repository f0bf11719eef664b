//! Connections between two endpoints, made by a request and its answer.

use std::fmt;

use crate::proto::failure::PeerFailure;
use crate::proto::manager;
use crate::proto::table::Id;

/// Longest private data of a request or an answer, in bytes.
pub const PRIVATE_DATA_MAX: usize = manager::DATA_MAX;

/// A request for a connection that an endpoint has received and not answered. Only the engine of
/// its listener knows it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RequestId(pub(crate) Id);

/// A connection of an endpoint, from when it was requested or accepted. Only the engine of that
/// endpoint knows it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ConnectionId(pub(crate) Id);

/// Why a request for a connection did not lead to one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum ConnectionRefusal {
    /// The listener's user has rejected it.
    Rejected,
    /// The endpoint has no listener, or has closed it.
    NotListening,
    /// The listener's backlog of unanswered requests is full: try again later, or raise
    /// `backlog`.
    Busy,
    /// The listener's user has not answered in time.
    TimedOut,
    /// The other side does not understand the request: it is of another version.
    Malformed,
}

impl fmt::Display for ConnectionRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rejected => "rejected by the listener's user",
            Self::NotListening => "the endpoint has no listener",
            Self::Busy => {
                "the listener's backlog of unanswered requests is full; try again later, or raise \
                 its backlog"
            }
            Self::TimedOut => "not answered in time by the listener's user",
            Self::Malformed => "not understood; run the same ringrail on both sides",
        })
    }
}

/// How a connection, or a request that was not answered, ended.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ConnectionEnd {
    /// The other side has shut it down, or closed its endpoint.
    ShutDown,
    /// The other side did not answer in time, or has given its request up.
    TimedOut,
    /// The other side's engine failed or left, or cannot be reached.
    Peer(PeerFailure),
}

impl fmt::Display for ConnectionEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ShutDown => f.write_str("shut down by the other side"),
            Self::TimedOut => f.write_str("given up: the other side did not answer in time"),
            Self::Peer(failure) => write!(f, "over: the peer {failure}"),
        }
    }
}
