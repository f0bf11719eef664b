//! Connections between two endpoints, by request and accept (`FI_EP_MSG`).

use std::time::Duration;

use super::endpoint::Endpoint;
use super::engine_ref::EngineRef;
use super::events::EventQueue;
use super::mode::Attached;
use crate::types::{Address, ConnectionId, Error, PRIVATE_DATA_MAX, Peer, RequestId};

/// Options of [`Endpoint::listen`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ListenOptions {
    /// Maximum number of unanswered requests; more are refused
    /// ([`ConnectionRefusal::Busy`](crate::ConnectionRefusal::Busy)).
    pub backlog: usize,
    /// After this time an unanswered request is refused
    /// ([`ConnectionRefusal::TimedOut`](crate::ConnectionRefusal::TimedOut)).
    pub answer_timeout: Duration,
}

impl Default for ListenOptions {
    /// 128 requests, 60 s.
    fn default() -> Self {
        Self { backlog: 128, answer_timeout: Duration::from_secs(60) }
    }
}

/// An endpoint that accepts connections (`fi_passive_ep`); requests are events of its event queue
/// ([`Event::ConnectionRequest`](crate::Event::ConnectionRequest)). Dropping it refuses unanswered
/// and later requests; connections stay.
///
/// It keeps its engine open. See [`Endpoint::listen`].
///
/// ```
/// # let settings = ringrail::settings::Settings::isolated().set("listen_address", "127.0.0.1");
/// # let domain = ringrail::Domain::with_settings(settings.insecure(true).build()?)?;
/// # let (server, client) = (domain.endpoint()?.share()?, domain.endpoint()?.share()?);
/// use std::time::Duration;
/// use ringrail::{Event, ListenOptions};
///
/// let listener = server.listen(ListenOptions::default())?;
/// client.request(&listener.address(), b"hello", Duration::from_secs(60))?;
/// let events = server.event_queue(); // it also has the events of sessions
/// let request = loop {
///     if let Some(Event::ConnectionRequest { request, data, .. }) = events.wait(None)? {
///         assert_eq!(&*data, b"hello");
///         break request;
///     }
/// };
/// server.accept(&listener, request, b"accepted")?;
/// let events = client.event_queue();
/// let peer = loop {
///     if let Some(Event::ConnectionOpened { peer, data, .. }) = events.wait(None)? {
///         assert_eq!(&*data, b"accepted");
///         break peer;
///     }
/// };
/// client.send_blocking(peer, ringrail::Envelope::tagged(1), b"hi", Default::default())?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
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
        self.engine.with_to_let_go(|engine| engine.with_requests(|it| it.end_listening(endpoint)));
    }
}

impl<M: Attached> Listener<M> {
    /// Returns the address of its endpoint, to which requests are sent. The first endpoint of an
    /// engine can also be addressed by IP address and port ([`Address::from_listener`]).
    pub fn address(&self) -> Address {
        self.engine.with(|engine| engine.state.address(self.endpoint))
    }

    /// Rejects a request, with up to [`PRIVATE_DATA_MAX`] bytes of private data.
    ///
    /// # Errors
    ///
    /// [`Error::Misuse`] for more data, or if the request was answered or withdrawn (see the
    /// events).
    pub fn reject(&self, request: RequestId, data: &[u8]) -> Result<(), Error> {
        check(data)?;
        match self
            .engine
            .with(|engine| engine.with_requests(|it| it.reject(self.endpoint, request, data)))
        {
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
    Err(Error::misuse(format!("{got} bytes of private data; the limit is {PRIVATE_DATA_MAX}")))
}

fn no_request() -> Error {
    Error::misuse(
        "no such request: it was answered, withdrawn (see the events), or is of another listener",
    )
}

impl<M: Attached> Endpoint<M> {
    // ---- Connections ----

    /// Listens for requests for connections, which are events of the event queue of this endpoint.
    ///
    /// # Errors
    ///
    /// [`Error::Misuse`] if it has a listener already.
    pub fn listen(&self, options: ListenOptions) -> Result<Listener<M>, Error> {
        let open = self.open();
        let answer_timeout_ns = nanoseconds(options.answer_timeout);
        let is_first = open.engine.with(|engine| {
            engine.state.requests_mut().listen(
                open.number,
                options.backlog.max(1),
                answer_timeout_ns,
            )
        });
        if !is_first {
            return Err(Error::misuse("this endpoint has a listener already; drop that first"));
        }
        Ok(Listener { engine: open.engine.clone(), endpoint: open.number })
    }

    /// Requests a connection from a listener, with up to [`PRIVATE_DATA_MAX`] bytes of private
    /// data, without waiting. The outcome is an event of the event queue of this endpoint:
    /// [`ConnectionOpened`](crate::Event::ConnectionOpened) with the accepting peer, whose address
    /// may differ from that of the listener;
    /// [`ConnectionRefused`](crate::Event::ConnectionRefused); or
    /// [`ConnectionEnded`](crate::Event::ConnectionEnded) if `timeout` passes or the listener's
    /// engine fails first.
    ///
    /// Messages to and from that peer are like those of any peer: order, credit and failures belong
    /// to the session of the two engines. The listener and the peer stay in the address vector
    /// until they are removed.
    ///
    /// # Errors
    ///
    /// As for [`Self::insert_peer`] and [`Self::connect`]; [`Error::Misuse`] for more data;
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

    /// Accepts a request of `listener` with this endpoint, which may belong to another engine, with
    /// private data. The connection is established with the event
    /// [`ConnectionOpened`](crate::Event::ConnectionOpened) of this endpoint's event queue; both
    /// sides may send from then on. If the peer does not confirm within 10 s, the event is
    /// [`ConnectionEnded`](crate::Event::ConnectionEnded).
    ///
    /// # Errors
    ///
    /// [`Error::Misuse`] for more data than [`PRIVATE_DATA_MAX`], or if the request no longer
    /// exists; [`Error::Limit`] if there is no room for the peer or the connection;
    /// [`Error::Peer`] if the peer is gone. After all but the first the request cannot be answered
    /// again.
    pub fn accept<L: Attached>(
        &self,
        listener: &Listener<L>,
        request: RequestId,
        data: &[u8],
    ) -> Result<ConnectionId, Error> {
        check(data)?;
        let asked =
            listener.engine.with(|engine| engine.state.take_request(listener.endpoint, request));
        let (asked, asks) = asked.ok_or_else(no_request)?;
        let open = self.open();
        let connection =
            open.engine.with(|engine| engine.accept_into(open.number, &asked, &asks))?;
        let address = self.address();
        let sent =
            listener.engine.with(|engine| engine.say_accepted(connection, &asked, &address, data));
        if let Err(error) = sent {
            open.engine.with(|engine| engine.state.requests_mut().forget_accepted(connection));
            return Err(error);
        }
        Ok(connection)
    }

    /// Ends a connection of this endpoint, or withdraws a request. The other side gets an event,
    /// this side does not. Outstanding sends go on, and the peer stays in the address vector. The
    /// event is not ordered with messages: to have them received first, send at
    /// [`CompletionLevel::Match`](crate::CompletionLevel::Match) and wait.
    ///
    /// # Errors
    ///
    /// [`Error::Misuse`] if it has ended already.
    pub fn shut_down(&self, connection: ConnectionId) -> Result<(), Error> {
        let open = self.open();
        match open
            .engine
            .with(|engine| engine.with_requests(|it| it.shut_down(open.number, connection)))
        {
            true => Ok(()),
            false => Err(Error::misuse(
                "no such connection: it has ended (see the events), or belongs to another endpoint",
            )),
        }
    }

    /// Sets whether receives from any source, posted ones and later ones, end with
    /// [`Error::NoPeerLeft`] when no peer is left that could send: all peers that the engine knew
    /// were lost, have left or were removed. By default they wait. They also wait before the first
    /// peer is known; an inserted peer counts as long as no attempt to connect has failed.
    pub fn fail_without_peers(&self, is_wanted: bool) {
        let open = self.open();
        open.engine.with(|engine| {
            let number = open.number;
            engine.state.with_core(|core, ended| core.set_needs_peers(number, is_wanted, ended));
        });
    }

    /// Connections with a peer that is about to be removed end.
    pub(super) fn end_connections_with(&self, peer: Peer) {
        self.open().engine.with(|engine| engine.with_requests(|it| it.remove_peer(peer)));
    }

    /// Binds the endpoint to an event queue.
    pub(super) fn report_to(&self, queue: &EventQueue<M>) {
        let open = self.open();
        open.engine
            .with(|it| it.state.completions_mut().events_mut().bind(open.number, queue.number));
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
