//! Executes the decisions of [`crate::proto::manager`], and reports to users.

use super::completions::Route;
use super::engine::Engine;
use super::post::Memory;
use crate::memory::Buffer;
use crate::proto::core::REQUESTS;
use crate::proto::effects::CompletionLevel;
use crate::proto::failure::PeerFailure;
use crate::proto::hint::Hint;
use crate::proto::manager::{self, End, Ends, MESSAGE_MAX, Output, Reason, accept_message};
use crate::proto::receive::ReceiveRequest;
use crate::proto::send::SendRequest;
use crate::proto::table::Id;
use crate::types::{
    Address, Completion, ConnectionEnd, ConnectionId, ConnectionRefusal, Error, Event, Peer,
    RequestId,
};

/// Limit on messages that are being received: those that did not arrive completely with their
/// envelope.
const RECEIVES_MAX: usize = 64;
/// Interval of checks of these, in nanoseconds.
const AGAIN_NS: u64 = 1_000_000;
/// Limit on waiting messages to one peer. A peer that reads no replies gets none.
const ANSWERS_MAX: usize = 1024;
/// Time for the requesting side to confirm, in nanoseconds.
const CONFIRM_NS: u64 = 10_000_000_000;

/// The loop's side of the connection manager.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    pub(crate) manager: manager::Manager,
    /// The completion queue of received messages; opened with the first.
    queue: Option<u32>,
    /// When outstanding messages have to be checked again.
    again_ns: Option<u64>,
}

impl Requests {
    /// Returns when [`Engine::tick_requests`] is due.
    pub(super) fn next_deadline_ns(&self) -> Option<u64> {
        self.manager.next_deadline_ns().into_iter().chain(self.again_ns).min()
    }
}

impl From<Reason> for ConnectionRefusal {
    fn from(reason: Reason) -> Self {
        match reason {
            Reason::Rejected => Self::Rejected,
            Reason::NotListening => Self::NotListening,
            Reason::Busy => Self::Busy,
            Reason::TimedOut => Self::TimedOut,
            Reason::Malformed => Self::Malformed,
        }
    }
}

impl From<End> for ConnectionEnd {
    fn from(end: End) -> Self {
        match end {
            End::ShutDown => Self::ShutDown,
            End::TimedOut => Self::TimedOut,
            End::Peer(failure) => Self::Peer(failure),
        }
    }
}

impl Engine {
    /// Takes the received messages for the manager.
    pub(super) fn take_requests(&mut self) {
        let state = &mut *self.state;
        let queue =
            *state.requests.queue.get_or_insert_with(|| state.completions.open_queue(RECEIVES_MAX));
        self.state.requests.again_ns = None;
        for endpoint in self.state.core.endpoints().numbers() {
            let (capacity, ignore) = (MESSAGE_MAX as u64, u64::MAX);
            let (context, tag, peer, min_free) = (REQUESTS, 0, None, None);
            let wanted =
                ReceiveRequest { endpoint, peer, context, tag, ignore, capacity, min_free };
            while let Ok(Some(_)) = self.state.core.peek(&wanted) {
                let memory = Memory::copy_of(&[0; MESSAGE_MAX]);
                let route = Route::Queue { queue, user_data: endpoint.into(), silent: false };
                let is_posted = self.state.post_receive(&wanted, memory, route).is_ok();
                self.handle_received_requests(queue);
                if !is_posted {
                    self.state.requests.again_ns = Some(self.state.now_ns + AGAIN_NS);
                    break;
                }
            }
        }
        self.handle_received_requests(queue);
        let is_waiting = !self.state.completions.is_queue_idle(queue);
        if is_waiting {
            self.state.requests.again_ns = Some(self.state.now_ns + AGAIN_NS);
        }
        self.carry_out_requests();
    }

    fn handle_received_requests(&mut self, queue: u32) {
        let mut taken: Vec<Completion> = Vec::new();
        self.state.completions.take(queue, &mut taken, usize::MAX);
        for completion in taken {
            // Longer than any valid one.
            let (Ok(status), Some(buffer)) = (completion.result, completion.buffer) else {
                continue;
            };
            let (Some(peer), Buffer::Heap(bytes)) = (status.peer, buffer) else { continue };
            let ends = (completion.user_data as u16, peer.0);
            let state = &mut *self.state;
            let engine = state.core.name_of(peer.0.index() as u32).map(|name| name.engine);
            let events = &state.completions.events;
            state.requests.manager.handle_message(
                ends,
                &bytes[..status.length],
                state.now_ns,
                |address| Address::from_bytes(address).is_ok_and(|it| Some(it.engine()) == engine),
                || events.has_room(ends.0),
            );
        }
    }

    /// Ends whatever has expired.
    pub(super) fn tick_requests(&mut self) {
        let state = &mut *self.state;
        if state.requests.again_ns.is_some_and(|again_ns| state.now_ns >= again_ns) {
            self.take_requests();
        }
        let state = &mut *self.state;
        if state.requests.manager.next_deadline_ns().is_some_and(|it| state.now_ns >= it) {
            state.requests.manager.handle_timeout(state.now_ns);
            self.carry_out_requests();
        }
    }

    /// Ends the requests of a closed session.
    pub(super) fn end_requests_of(&mut self, session: u32, failure: &PeerFailure) {
        let state = &mut *self.state;
        let remotes = state.core.remotes();
        let is_hit = |peer| remotes.get(peer).is_none_or(|remote| remote.session == session);
        state.requests.manager.end_of_peers(is_hit, failure);
        self.carry_out_requests();
    }

    fn carry_out_requests(&mut self) {
        while let Some(output) = self.state.requests.manager.poll_output() {
            match output {
                Output::Send { ends, bytes } => {
                    // The failure is reported elsewhere: by the end of the session.
                    let _ = self.send_request(ends, &bytes);
                }
                Output::Asked { ends, request, data } => {
                    let listener = self.state.address(ends.0);
                    let name = self.state.core.name_of(ends.1.index() as u32);
                    let Some(name) = name else { continue };
                    let peer = Address::new(name.engine, name.locators, name.endpoint);
                    let request = RequestId(request);
                    let event = Event::ConnectionRequest { request, listener, peer, data };
                    self.push_event(ends.0, event);
                }
                Output::Withdrawn { endpoint, request, end } => {
                    let (request, end) = (RequestId(request), end.into());
                    self.push_event(endpoint, Event::RequestWithdrawn { request, end });
                }
                Output::Granted { link, address, data } => self.grant(link, &address, data),
                Output::Opened { ends, link } => {
                    let (connection, peer, data) = (ConnectionId(link), Peer(ends.1), [].into());
                    self.push_event(ends.0, Event::ConnectionOpened { connection, peer, data });
                }
                Output::Refused { endpoint, link, reason, data } => {
                    let (connection, refusal) = (ConnectionId(link), reason.into());
                    self.push_event(
                        endpoint,
                        Event::ConnectionRefused { connection, refusal, data },
                    );
                }
                Output::Ended { endpoint, link, end } => {
                    let (connection, end) = (ConnectionId(link), end.into());
                    self.push_event(endpoint, Event::ConnectionEnded { connection, end });
                }
            }
        }
    }

    fn push_event(&mut self, endpoint: u16, event: Event) {
        self.state.completions.events.push_to_endpoint(endpoint, event);
    }

    /// Handles the acceptance of a request of this side.
    fn grant(&mut self, link: Id, address: &[u8], data: std::sync::Arc<[u8]>) {
        let address = Address::from_bytes(address).ok();
        let peer = address.and_then(|address| self.insert_peer(&address));
        let manager = &mut self.state.requests.manager;
        match peer {
            Some(peer) => {
                if let Some(endpoint) = manager.granted(link, peer.0) {
                    let connection = ConnectionId(link);
                    self.push_event(endpoint, Event::ConnectionOpened { connection, peer, data });
                }
            }
            None => {
                let why = "its answer contains no address, or the limit of sessions is reached";
                manager.fail(link, PeerFailure::Settings(why.into()));
            }
        }
    }

    fn send_request(&mut self, ends: Ends, bytes: &[u8]) -> Result<(), Error> {
        let (endpoint, peer) = ends;
        let session = self.state.core.remotes().get(peer).map(|remote| remote.session);
        let session = session.ok_or(Error::UnknownPeer)?;
        let waiting = self.state.core.session(session).map_or(0, |session| session.waiting.len());
        if waiting >= ANSWERS_MAX {
            return Err(Error::WouldBlock("messages that wait for this peer"));
        }
        let request = SendRequest {
            endpoint,
            peer,
            context: REQUESTS,
            tag: 0,
            length: bytes.len() as u64,
            level: CompletionLevel::Inject,
            hint: Hint::None,
            data: None,
            fence: false,
        };
        let posted = self.post_send(&request, Memory::copy_of(bytes), Route::Nowhere, false);
        posted.map(drop).map_err(|(error, _)| error)
    }

    // ---- Users ----

    /// Lets an endpoint accept requests. Returns `false` if it does already.
    pub(crate) fn listen(&mut self, endpoint: u16, backlog: usize, patience_ns: u64) -> bool {
        self.state.requests.manager.listen(endpoint, backlog, patience_ns)
    }

    /// Stops an endpoint from accepting requests.
    pub(crate) fn end_listening(&mut self, endpoint: u16) {
        self.state.requests.manager.end_listening(endpoint);
        self.carry_out_requests();
    }

    /// Requests a connection from the endpoint of `address`.
    pub(crate) fn ask(
        &mut self,
        endpoint: u16,
        address: &Address,
        data: &[u8],
        for_ns: u64,
    ) -> Result<ConnectionId, Error> {
        let no_room = Error::Limit(
            "this engine has sessions_max sessions: raise the setting, or remove peers that are \
             gone",
        );
        let peer = self.insert_peer(address).ok_or(no_room)?;
        // As with every connect: independent of the last session's end.
        self.start_connect(peer)?;
        self.read_clock();
        let now_ns = self.state.now_ns;
        let link = self.state.requests.manager.ask((endpoint, peer.0), data, now_ns, for_ns);
        let link = link.ok_or(Error::Limit("an engine has 65536 connections; end some"))?;
        self.carry_out_requests();
        Ok(ConnectionId(link))
    }

    /// Rejects a request for the user of a listener.
    pub(crate) fn reject(&mut self, endpoint: u16, request: RequestId, data: &[u8]) -> bool {
        let is_known = self.state.requests.manager.reject(endpoint, request.0, data);
        self.carry_out_requests();
        is_known
    }

    /// Takes a request, with the address of the requesting side, to be accepted somewhere.
    pub(crate) fn take_request(
        &mut self,
        endpoint: u16,
        request: RequestId,
    ) -> Option<(manager::Request, Address)> {
        let taken = self.state.requests.manager.take_request(endpoint, request.0)?;
        let name = self.state.core.name_of(taken.ends.1.index() as u32)?;
        Some((taken, Address::new(name.engine, name.locators, name.endpoint)))
    }

    /// Accepts a request into an endpoint of this engine, which need not be that of its listener.
    pub(crate) fn accept_into(
        &mut self,
        endpoint: u16,
        request: &manager::Request,
        asks: &Address,
    ) -> Result<ConnectionId, Error> {
        let no_room = Error::Limit("an engine has sessions_max sessions and 65536 connections");
        let peer = self.insert_peer(asks).ok_or_else(|| no_room.clone())?;
        self.read_clock();
        let until_ns = self.state.now_ns + CONFIRM_NS;
        let accepted = self.state.requests.manager.accept((endpoint, peer.0), request, until_ns);
        accepted.map(ConnectionId).ok_or(no_room)
    }

    /// Reports to the requesting side that the endpoint at `address` accepted.
    pub(crate) fn say_accepted(
        &mut self,
        connection: ConnectionId,
        request: &manager::Request,
        address: &Address,
        data: &[u8],
    ) -> Result<(), Error> {
        let message = accept_message(connection.0, request, address.to_bytes(), data);
        self.send_request(request.ends, &message)
    }

    /// Forgets an accepted request that could not be answered.
    pub(crate) fn forget_accepted(&mut self, connection: ConnectionId) {
        self.state.requests.manager.forget(connection.0);
    }

    /// Ends a connection. Returns `false` if it does not exist any more.
    pub(crate) fn shut_connection_down(&mut self, endpoint: u16, connection: ConnectionId) -> bool {
        let is_known = self.state.requests.manager.shut_down(endpoint, connection.0);
        self.carry_out_requests();
        is_known
    }

    /// Ends the connections of an endpoint that is about to close.
    pub(super) fn close_connections_of(&mut self, endpoint: u16) {
        self.state.requests.manager.close_endpoint(endpoint);
        self.carry_out_requests();
    }

    /// Ends the connections with a peer that is about to be removed.
    pub(crate) fn end_connections_with(&mut self, peer: Peer) {
        self.state.requests.manager.remove_peer(peer.0);
        self.carry_out_requests();
    }
}
