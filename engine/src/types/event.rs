//! What endpoints tell of besides their operations.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use super::address::Address;
use super::completion::Peer;
use super::connection::{ConnectionEnd, ConnectionId, ConnectionRefusal, RequestId};
use super::rail::{PathCause, PathState};
use crate::proto::failure::PeerFailure;

/// An entry of an event queue.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event {
    /// A session with the engine of a peer was established.
    Connected {
        /// Where the engine listens.
        address: Address,
    },
    /// The engine of a peer is gone; operations with it have ended with the same cause.
    Disconnected {
        /// Where the engine listened.
        address: Address,
        /// What happened.
        failure: PeerFailure,
    },
    /// A connection to this endpoint was refused or broken off before it was a session.
    Refused {
        /// Where it came from.
        remote: SocketAddr,
        /// Why.
        cause: String,
    },
    /// A path of a session that has several fares otherwise than before. Operations go on: what
    /// was under way on a path that fails goes by another one.
    PathChanged {
        /// Where the engine of the peer listens.
        address: Address,
        /// The rail of this engine, by its position among those of the endpoint.
        rail: usize,
        /// The address of the peer's rail.
        remote: IpAddr,
        /// How it fares now.
        state: PathState,
        /// Why.
        cause: PathCause,
    },
    /// Somebody asks a [`Listener`](crate::Listener) for a connection (`FI_CONNREQ`). Answer by
    /// [`Endpoint::accept`](crate::Endpoint::accept) or
    /// [`Listener::reject`](crate::Listener::reject).
    ConnectionRequest {
        /// Its name.
        request: RequestId,
        /// The listener's endpoint.
        listener: Address,
        /// The endpoint that asks.
        peer: Address,
        /// Its private data.
        data: Arc<[u8]>,
    },
    /// A request is answered no more: who asked has given it up or is gone, or it has waited for
    /// too long.
    RequestWithdrawn {
        /// Its name.
        request: RequestId,
        /// Why.
        end: ConnectionEnd,
    },
    /// A connection is there, and both sides know (`FI_CONNECTED`).
    ConnectionOpened {
        /// Its name.
        connection: ConnectionId,
        /// The other side, which is in the address vector now.
        peer: Peer,
        /// The private data of who accepted; of a connection that this side accepted: empty.
        data: Arc<[u8]>,
    },
    /// A connection that was requested will not be. Its name is spent.
    ConnectionRefused {
        /// Its name.
        connection: ConnectionId,
        /// Why.
        refusal: ConnectionRefusal,
        /// The private data of who rejected it.
        data: Arc<[u8]>,
    },
    /// A connection is over (`FI_SHUTDOWN`), or did not come about. Its name is spent. What had
    /// come by it before can be received.
    ConnectionEnded {
        /// Its name.
        connection: ConnectionId,
        /// Why.
        end: ConnectionEnd,
    },
}

impl Event {
    /// Whether it says which peers are there; news of paths and of strangers do not.
    pub(crate) fn says_who_is_there(&self) -> bool {
        matches!(self, Self::Connected { .. } | Self::Disconnected { .. })
    }

    /// Whether it is of a connection or a request: there are no more of them than of these.
    pub(crate) fn is_of_connection(&self) -> bool {
        !self.says_who_is_there()
            && !matches!(self, Self::Refused { .. } | Self::PathChanged { .. })
    }
}
