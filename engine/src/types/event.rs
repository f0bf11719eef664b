//! Events that endpoints report besides the completions of their operations.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use super::address::Address;
use super::completion::Peer;
use super::connection::{ConnectionEnd, ConnectionId, ConnectionRefusal, RequestId};
use super::rail::{PathCause, PathState};
use crate::proto::failure::PeerFailure;

/// An entry of an event queue.
///
/// ```
/// # let settings = ringrail::settings::Settings::isolated().set("listen_address", "127.0.0.1");
/// # let domain = ringrail::Domain::with_settings(settings.insecure(true).build()?)?;
/// # let (left, right) = (domain.endpoint()?.share()?, domain.endpoint()?.share()?);
/// # let peer = left.insert_peer(&right.address())?;
/// use ringrail::Event;
///
/// left.connect(peer, None)?;
/// let events = left.event_queue();
/// while let Some(event) = events.read()? {
///     match event {
///         Event::Connected { address } => println!("connected to {address}"),
///         Event::Disconnected { address, failure } => eprintln!("lost {address}: {failure}"),
///         other => println!("{other:?}"),
///     }
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event {
    /// A session with the engine of a peer was established.
    Connected {
        /// Where the engine listens.
        address: Address,
    },
    /// The session with the engine of a peer has ended; its operations have ended with the same
    /// cause.
    Disconnected {
        /// Where the engine listened.
        address: Address,
        /// What happened.
        failure: PeerFailure,
    },
    /// An incoming connection was refused or closed before a session was established.
    Refused {
        /// Where it came from.
        remote: SocketAddr,
        /// Why.
        cause: String,
    },
    /// The state of a path changed, in a session with several paths. Operations go on: data in
    /// flight on a path that fails is sent again on another one.
    PathChanged {
        /// Where the engine of the peer listens.
        address: Address,
        /// The rail of this engine, by its position among those of the endpoint.
        rail: usize,
        /// The address of the peer's rail.
        remote: IpAddr,
        /// Its new state.
        state: PathState,
        /// Why.
        cause: PathCause,
    },
    /// A peer requests a connection from a [`Listener`](crate::Listener) (`FI_CONNREQ`). Answer
    /// with [`Endpoint::accept`](crate::Endpoint::accept) or
    /// [`Listener::reject`](crate::Listener::reject).
    ConnectionRequest {
        /// Its name.
        request: RequestId,
        /// The listener's endpoint.
        listener: Address,
        /// The endpoint that requests it.
        peer: Address,
        /// Its private data.
        data: Arc<[u8]>,
    },
    /// A request can no longer be answered: its peer has withdrawn it or is gone, or it has waited
    /// for too long.
    RequestWithdrawn {
        /// Its name.
        request: RequestId,
        /// Why.
        end: ConnectionEnd,
    },
    /// A connection is established on both sides (`FI_CONNECTED`).
    ConnectionOpened {
        /// Its name.
        connection: ConnectionId,
        /// The peer, which is in the address vector now.
        peer: Peer,
        /// The private data of the side that accepted; empty if this side accepted.
        data: Arc<[u8]>,
    },
    /// A request for a connection was refused. Its [`ConnectionId`] is no longer valid.
    ConnectionRefused {
        /// Its name.
        connection: ConnectionId,
        /// Why.
        refusal: ConnectionRefusal,
        /// The private data of the side that rejected it.
        data: Arc<[u8]>,
    },
    /// A connection has ended (`FI_SHUTDOWN`), or was not established. Its [`ConnectionId`] is no
    /// longer valid. Messages that arrived before can be received.
    ConnectionEnded {
        /// Its name.
        connection: ConnectionId,
        /// Why.
        end: ConnectionEnd,
    },
}

impl Event {
    /// Whether it reports the begin or end of a session.
    pub(crate) fn is_of_session(&self) -> bool {
        matches!(self, Self::Connected { .. } | Self::Disconnected { .. })
    }

    /// Whether it is of a connection or a request: there are no more of them than of these.
    pub(crate) fn is_of_connection(&self) -> bool {
        !self.is_of_session() && !matches!(self, Self::Refused { .. } | Self::PathChanged { .. })
    }
}
