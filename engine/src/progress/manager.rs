//! Executes the decisions of [`crate::proto::manager`], and reports to users.

use super::completions::{CompletionRoute, Completions};
use super::engine::{Engine, EngineState};
use super::post::Memory;
use crate::memory::Buffer;
use crate::proto::core::{Core, REQUESTS};
use crate::proto::effects::CompletionLevel;
use crate::proto::failure::PeerFailure;
use crate::proto::hint::Hint;
use crate::proto::manager::{self, End, Ends, MESSAGE_MAX, Output, Reason, accept_message};
use crate::proto::receive::ReceiveRequest;
use crate::proto::session::send::SendRequest;
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
    manager: manager::Manager,
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

    /// Handles the messages in its completion queue.
    fn handle_received(
        &mut self,
        queue: u32,
        core: &Core,
        completions: &mut Completions,
        now_ns: u64,
    ) {
        let mut taken: Vec<Completion> = Vec::new();
        completions.take(queue, &mut taken, usize::MAX);
        for completion in taken {
            let status = match completion.result {
                Ok(status) => status,
                Err(error) => {
                    // It is longer than any valid one; or its endpoint has closed.
                    if matches!(error, Error::Truncated { .. }) {
                        self.manager.count_invalid();
                    }
                    continue;
                }
            };
            let (Some(peer), Some(Buffer::Heap(bytes))) = (status.peer, completion.buffer) else {
                debug_assert!(false, "a received message has a peer, and memory of the heap");
                continue;
            };
            let ends = (completion.user_data as u16, peer.0);
            let engine = core
                .shared()
                .peers()
                .name_of(core.sessions(), peer.0.index() as u32)
                .map(|name| name.engine);
            self.manager.handle_message(
                ends,
                &bytes[..status.length],
                now_ns,
                |address| Address::from_bytes(address).is_ok_and(|it| Some(it.engine()) == engine),
                || completions.events().has_room(ends.0),
            );
        }
    }

    /// Ends the requests of a closed session.
    pub(super) fn end_of_session(&mut self, core: &Core, session: u32, failure: &PeerFailure) {
        let remotes = core.shared().peers();
        let is_hit = |peer| remotes.get(peer).is_none_or(|remote| remote.session == session);
        self.manager.end_of_peers(is_hit, failure);
    }

    /// Returns the number of invalid messages of peers.
    pub(super) fn invalid(&self) -> u64 {
        self.manager.invalid()
    }

    /// Lets an endpoint accept requests. Returns `false` if it does already.
    pub(crate) fn listen(&mut self, endpoint: u16, backlog: usize, patience_ns: u64) -> bool {
        self.manager.listen(endpoint, backlog, patience_ns)
    }

    /// Stops an endpoint from accepting requests.
    pub(crate) fn end_listening(&mut self, endpoint: u16) {
        self.manager.end_listening(endpoint);
    }

    /// Rejects a request for the user of a listener. Returns `false` if it does not exist any more.
    pub(crate) fn reject(&mut self, endpoint: u16, request: RequestId, data: &[u8]) -> bool {
        self.manager.reject(endpoint, request.0, data)
    }

    /// Forgets an accepted request that could not be answered.
    pub(crate) fn forget_accepted(&mut self, connection: ConnectionId) {
        self.manager.forget(connection.0);
    }

    /// Ends a connection. Returns `false` if it does not exist any more.
    pub(crate) fn shut_down(&mut self, endpoint: u16, connection: ConnectionId) -> bool {
        self.manager.shut_down(endpoint, connection.0)
    }

    /// Ends the connections of an endpoint that is about to close.
    pub(super) fn close_endpoint(&mut self, endpoint: u16) {
        self.manager.close_endpoint(endpoint);
    }

    /// Ends the connections with a peer that is about to be removed.
    pub(crate) fn remove_peer(&mut self, peer: Peer) {
        self.manager.remove_peer(peer.0);
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

impl EngineState {
    /// Takes a request, with the address of the requesting side, to be accepted somewhere.
    pub(crate) fn take_request(
        &mut self,
        endpoint: u16,
        request: RequestId,
    ) -> Option<(manager::ConnectionRequest, Address)> {
        let taken = self.requests.manager.take_request(endpoint, request.0)?;
        let core = &self.core;
        let remote = taken.ends.1.index() as u32;
        let name = core.shared().peers().name_of(core.sessions(), remote)?;
        Some((taken, Address::new(name.engine, name.locators, name.endpoint)))
    }

    /// Receives the messages for the manager.
    fn receive_requests(&mut self) {
        let queue = self.requests.queue;
        let queue = queue.unwrap_or_else(|| self.completions.open_queue(RECEIVES_MAX));
        self.requests.queue = Some(queue);
        let mut is_waiting = false;
        for endpoint in self.core.shared().endpoints().numbers() {
            let (capacity, ignore) = (MESSAGE_MAX as u64, u64::MAX);
            let (context, tag, peer, min_free) = (REQUESTS, 0, None, None);
            let wanted =
                ReceiveRequest { endpoint, peer, context, tag, ignore, capacity, min_free };
            while let Ok(Some(_)) = self.core.peek(&wanted) {
                let memory = Memory::copy_of(&[0; MESSAGE_MAX]);
                let route =
                    CompletionRoute::Queue { queue, user_data: endpoint.into(), silent: false };
                let is_posted = self.post_receive(&wanted, memory, route).is_ok();
                self.requests.handle_received(
                    queue,
                    &self.core,
                    &mut self.completions,
                    self.now_ns,
                );
                if !is_posted {
                    is_waiting = true;
                    break;
                }
            }
        }
        self.requests.handle_received(queue, &self.core, &mut self.completions, self.now_ns);
        is_waiting |= !self.completions.is_queue_idle(queue);
        self.requests.again_ns = is_waiting.then_some(self.now_ns + AGAIN_NS);
    }
}

impl Engine {
    /// Takes the received messages for the manager.
    pub(super) fn take_requests(&mut self) {
        self.state.receive_requests();
        self.carry_out_requests();
    }

    /// Ends whatever has expired.
    pub(super) fn tick_requests(&mut self) {
        let now_ns = self.state.now_ns;
        if self.state.requests.again_ns.is_some_and(|again_ns| now_ns >= again_ns) {
            self.take_requests();
        }
        let manager = &mut self.state.requests.manager;
        if manager.next_deadline_ns().is_some_and(|it| now_ns >= it) {
            manager.handle_timeout(now_ns);
            self.carry_out_requests();
        }
    }

    /// Changes the requests, and executes what follows from that.
    pub(crate) fn with_requests<R>(&mut self, change: impl FnOnce(&mut Requests) -> R) -> R {
        let result = change(&mut self.state.requests);
        self.carry_out_requests();
        result
    }

    /// Executes what the manager decided.
    pub(super) fn carry_out_requests(&mut self) {
        while let Some(output) = self.state.requests.manager.poll_output() {
            let (endpoint, event) = match output {
                Output::Send { ends, bytes } => {
                    // The failure is reported elsewhere: by the end of the session.
                    let _ = self.send_request(ends, &bytes);
                    continue;
                }
                Output::Granted { link, address, data } => {
                    self.grant(link, &address, data);
                    continue;
                }
                Output::Asked { ends, request, data } => {
                    let listener = self.state.address(ends.0);
                    let peer = self.state.address_of(Peer(ends.1));
                    // An earlier output may have taken the peer's place: its request is dropped.
                    let Some(peer) = peer else {
                        self.state.requests.manager.take_request(ends.0, request);
                        continue;
                    };
                    let request = RequestId(request);
                    (ends.0, Event::ConnectionRequest { request, listener, peer, data })
                }
                Output::Withdrawn { endpoint, request, end } => {
                    let (request, end) = (RequestId(request), end.into());
                    (endpoint, Event::RequestWithdrawn { request, end })
                }
                Output::Opened { ends, link } => {
                    let (connection, peer, data) = (ConnectionId(link), Peer(ends.1), [].into());
                    (ends.0, Event::ConnectionOpened { connection, peer, data })
                }
                Output::Refused { endpoint, link, reason, data } => {
                    let (connection, refusal) = (ConnectionId(link), reason.into());
                    (endpoint, Event::ConnectionRefused { connection, refusal, data })
                }
                Output::Ended { endpoint, link, end } => {
                    let (connection, end) = (ConnectionId(link), end.into());
                    (endpoint, Event::ConnectionEnded { connection, end })
                }
            };
            self.state.completions.events_mut().push_to_endpoint(endpoint, event);
        }
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
                    self.state.completions.events_mut().push_to_endpoint(
                        endpoint,
                        Event::ConnectionOpened { connection, peer, data },
                    );
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
        let session = self.state.core.shared().peers().get(peer).map(|remote| remote.session);
        let session = session.ok_or(Error::UnknownPeer)?;
        let waiting = self.state.core.session(session).map_or(0, |session| session.waiting().len());
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
        let posted =
            self.post_send(&request, Memory::copy_of(bytes), CompletionRoute::Nowhere, false);
        posted.map(drop).map_err(|(error, _)| error)
    }

    // ---- Users ----

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
        self.state.read_clock();
        let now_ns = self.state.now_ns;
        let link = self.state.requests.manager.ask((endpoint, peer.0), data, now_ns, for_ns);
        let link = link.ok_or(Error::Limit("an engine has 65536 connections; end some"))?;
        self.carry_out_requests();
        Ok(ConnectionId(link))
    }

    /// Accepts a request into an endpoint of this engine, which need not be that of its listener.
    pub(crate) fn accept_into(
        &mut self,
        endpoint: u16,
        request: &manager::ConnectionRequest,
        asks: &Address,
    ) -> Result<ConnectionId, Error> {
        let no_room = Error::Limit("an engine has sessions_max sessions and 65536 connections");
        let peer = self.insert_peer(asks).ok_or_else(|| no_room.clone())?;
        self.state.read_clock();
        let until_ns = self.state.now_ns + CONFIRM_NS;
        let accepted = self.state.requests.manager.accept((endpoint, peer.0), request, until_ns);
        accepted.map(ConnectionId).ok_or(no_room)
    }

    /// Reports to the requesting side that the endpoint at `address` accepted.
    pub(crate) fn say_accepted(
        &mut self,
        connection: ConnectionId,
        request: &manager::ConnectionRequest,
        address: &Address,
        data: &[u8],
    ) -> Result<(), Error> {
        let message = accept_message(connection.0, request, address.to_bytes(), data);
        self.send_request(request.ends, &message)
    }
}
