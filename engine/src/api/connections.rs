//! Connections of two endpoints by request and answer (`FI_EP_MSG`).

use std::time::Duration;

use super::endpoint::Endpoint;
use super::engine_ref::EngineRef;
use super::events::EventQueue;
use super::mode::Attached;
use crate::types::{Address, ConnectionId, Error, PRIVATE_DATA_MAX, Peer, RequestId};

/// How an endpoint listens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ListenOptions {
    /// Requests that wait for an answer at the most; more are refused
    /// ([`ConnectionRefusal::Busy`](crate::ConnectionRefusal::Busy)).
    pub backlog: usize,
    /// How long a request waits for an answer at the most; after that it is refused
    /// ([`ConnectionRefusal::TimedOut`](crate::ConnectionRefusal::TimedOut)).
    pub patience: Duration,
}

impl Default for ListenOptions {
    /// 128 requests, 60 s.
    fn default() -> Self {
        Self { backlog: 128, patience: Duration::from_secs(60) }
    }
}

/// An endpoint that takes requests for connections (`fi_passive_ep`), which are events of its queue
/// ([`Event::ConnectionRequest`](crate::Event::ConnectionRequest)). When it is dropped, requests
/// are refused from then on, those that wait among them; connections stay.
///
/// It keeps its engine open. See [`Endpoint::listen`].
pub struct Listener<M: Attached> {
    engine: M::Engine,
    endpoint: u16,
}

impl<M: Attached> std::fmt::Debug for Listener<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Listener").field("endpoint", &self.endpoint).finish_non_exhaustive()
    }
}

impl<M: Attached> Drop for Listener<M> {
    fn drop(&mut self) {
        let endpoint = self.endpoint;
        self.engine.with_to_let_go(|engine| engine.end_listening(endpoint));
    }
}

impl<M: Attached> Listener<M> {
    /// Where it is asked: the address of its endpoint. The first endpoint of an engine is also
    /// known by IP address and port alone ([`Address::of_listener`]).
    pub fn address(&self) -> Address {
        self.engine.with(|engine| engine.state.address(self.endpoint))
    }

    /// Rejects a request, with up to [`PRIVATE_DATA_MAX`] bytes of private data.
    ///
    /// # Errors
    ///
    /// [`Error::Misuse`] for more data, or when the request is not there any more: it was answered,
    /// or an event says that it was withdrawn.
    pub fn reject(&self, request: RequestId, data: &[u8]) -> Result<(), Error> {
        check(data)?;
        match self.engine.with(|engine| engine.reject(self.endpoint, request, data)) {
            true => Ok(()),
            false => Err(no_request()),
        }
    }
}

fn check(data: &[u8]) -> Result<(), Error> {
    if data.len() <= PRIVATE_DATA_MAX {
        return Ok(());
    }
    let got = data.len();
    Err(Error::misuse(format!("{got} bytes of private data: there are {PRIVATE_DATA_MAX} at most")))
}

fn no_request() -> Error {
    Error::misuse(
        "no such request: it was answered, or withdrawn (see the events), or is another listener's",
    )
}

impl<M: Attached> Endpoint<M> {
    // ---- Connections ----

    /// Takes requests for connections from now on, as events of the queue that this endpoint
    /// reports to.
    ///
    /// # Errors
    ///
    /// [`Error::Misuse`] when it listens already.
    pub fn listen(&self, options: ListenOptions) -> Result<Listener<M>, Error> {
        let open = self.open();
        let patience_ns = nanoseconds(options.patience);
        let is_first = open
            .engine
            .with(|engine| engine.listen(open.number, options.backlog.max(1), patience_ns));
        if !is_first {
            return Err(Error::misuse("this endpoint has a listener already; drop that first"));
        }
        Ok(Listener { engine: open.engine.clone(), endpoint: open.number })
    }

    /// Asks a listener for a connection with this endpoint, with up to [`PRIVATE_DATA_MAX`] bytes
    /// of private data, and does not wait. How it ends is an event of the queue of this endpoint:
    /// [`ConnectionOpened`](crate::Event::ConnectionOpened) with the peer that was accepted into,
    /// which need not be at the address that was asked;
    /// [`ConnectionRefused`](crate::Event::ConnectionRefused); or
    /// [`ConnectionEnded`](crate::Event::ConnectionEnded), when `timeout` passes or the listener's
    /// engine fails first.
    ///
    /// Messages to that peer, and from it, are those of any peer: order, credit and failures are
    /// of the engines, whoever has connected. The listener's engine and the peer stay in the
    /// address vector until they are removed.
    ///
    /// # Errors
    ///
    /// As for [`Self::insert`] and [`Self::connect`]; [`Error::Misuse`] for more data;
    /// [`Error::Limit`] at 65536 connections.
    pub fn request(
        &self,
        address: &Address,
        data: &[u8],
        timeout: Duration,
    ) -> Result<ConnectionId, Error> {
        check(data)?;
        let open = self.open();
        open.engine.with(|engine| engine.ask(open.number, address, data, nanoseconds(timeout)))
    }

    /// Accepts a request of `listener` into this endpoint, which may be of another engine, with
    /// private data. The connection is there when
    /// [`ConnectionOpened`](crate::Event::ConnectionOpened) says so at the queue of this endpoint,
    /// and both sides may send from then on; if who asked does not confirm, within 10 s,
    /// [`ConnectionEnded`](crate::Event::ConnectionEnded) does.
    ///
    /// # Errors
    ///
    /// [`Error::Misuse`] for more data than [`PRIVATE_DATA_MAX`], or when the request is not there
    /// any more; [`Error::Limit`] without room for the peer or the connection; [`Error::Peer`] when
    /// who asked is gone. The request is spent but in the first case.
    pub fn accept<L: Attached>(
        &self,
        listener: &Listener<L>,
        request: RequestId,
        data: &[u8],
    ) -> Result<ConnectionId, Error> {
        check(data)?;
        let asked = listener.engine.with(|engine| engine.take_request(listener.endpoint, request));
        let (asked, asks) = asked.ok_or_else(no_request)?;
        let open = self.open();
        let connection =
            open.engine.with(|engine| engine.accept_into(open.number, &asked, &asks))?;
        let address = self.address();
        let said =
            listener.engine.with(|engine| engine.say_accepted(connection, &asked, &address, data));
        if let Err(error) = said {
            open.engine.with(|engine| engine.forget_accepted(connection));
            return Err(error);
        }
        Ok(connection)
    }

    /// Ends a connection of this endpoint, or gives up one that was requested. The other side is
    /// told by an event; here there is none. Sends that are outstanding go on, and the peer stays
    /// in the address vector. The news does not wait for messages: who wants them received first
    /// sends at [`CompletionLevel::Match`](crate::CompletionLevel::Match) and waits.
    ///
    /// # Errors
    ///
    /// [`Error::Misuse`] when it is over already.
    pub fn shut_down(&self, connection: ConnectionId) -> Result<(), Error> {
        let open = self.open();
        match open.engine.with(|engine| engine.shut_connection_down(open.number, connection)) {
            true => Ok(()),
            false => Err(Error::misuse(
                "no such connection: it is over (see the events), or another endpoint's",
            )),
        }
    }

    /// Whether receives from any source, those that are posted already and those to come, end with
    /// [`Error::NoPeerLeft`] when no peer is left that could send: all that the engine knows were
    /// lost, have left or were removed. At first they wait. Before the engine knows anybody they
    /// always do; a peer counts that was inserted and has not failed to connect.
    pub fn fail_without_peers(&self, is_wanted: bool) {
        let open = self.open();
        open.engine.with(|engine| {
            let state = &mut *engine.state;
            state.core.set_needs_peers(open.number, is_wanted, &mut state.completions);
        });
    }

    /// Connections with a peer that is about to be removed end.
    pub(super) fn end_connections_with(&self, peer: Peer) {
        self.open().engine.with(|engine| engine.end_connections_with(peer));
    }

    /// Reports to `queue` from now on.
    pub(super) fn report_to(&self, queue: &EventQueue<M>) {
        let open = self.open();
        open.engine.with(|it| it.state.completions.events.bind(open.number, queue.number));
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
