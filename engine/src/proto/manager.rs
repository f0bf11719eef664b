//! Connection management between two endpoints: requests, their acceptance or rejection, shutdown.
//!
//! ```text
//!  requests                      listens               accepts (the listener's endpoint, or
//!                                                       another one, of any engine)
//!   │ ASK(data, time)              │                      │
//!   ├─────────────────────────────>│ event, the user      │
//!   │                              │ accepts into ───────>│ waits for CONFIRM
//!   │ ACCEPT(address, data)        │                      │
//!   │<─────────────────────────────┤                      │
//!   │ inserts the address; open    │                      │
//!   │ CONFIRM                      │                      │
//!   ├─────────────────────────────────────────────────────>│ open
//!   │ SHUT DOWN                                           │
//!   │<───────────────────────────────────────────────────>│ closed
//! ```
//!
//! It uses ordinary messages ([`crate::wire::request`]) between the endpoints, in a context that is
//! not available to users ([`REQUESTS`](super::core::REQUESTS)): sessions, credit and rails are as
//! for all messages. The state that a peer can cause is bounded: its messages by its credit until
//! they are read, and its requests by the backlog of the listener, beyond which they are rejected.
//!
//! Pure: messages, time and ends of sessions are inputs, [`Output`]s are the results.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use zerocopy::IntoBytes;

use super::failure::PeerFailure;
use super::table::{Id, Table};
use crate::wire::address::ADDRESS_BYTES;
use crate::wire::request::{
    DATA_BYTES_MAX, KIND_ACCEPT, KIND_ASK, KIND_CONFIRM, KIND_REFUSE, KIND_SHUT_DOWN,
    KIND_WITHDRAW, REQUEST_BYTES, RequestHeader, split,
};

/// Longest private data, in bytes.
pub(crate) const DATA_MAX: usize = DATA_BYTES_MAX;
/// Longest message, in bytes.
pub(crate) const MESSAGE_MAX: usize = REQUEST_BYTES + DATA_BYTES_MAX;
/// Limit on an engine's connections, pending ones included, and on requests that wait for its
/// users.
pub(crate) const LINKS_MAX: usize = 1 << 16;

/// An endpoint of this engine, and the remote end of a message.
pub(crate) type Ends = (u16, Id);

/// Reason of a rejection; its number is the wire value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Reason {
    Rejected = 0,
    NotListening = 1,
    Busy = 2,
    TimedOut = 3,
    Malformed = 4,
}

impl Reason {
    fn from_wire(value: u8) -> Self {
        match value {
            0 => Self::Rejected,
            1 => Self::NotListening,
            2 => Self::Busy,
            3 => Self::TimedOut,
            _ => Self::Malformed,
        }
    }
}

/// Why a connection or a request has ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum End {
    ShutDown,
    TimedOut,
    Peer(PeerFailure),
}

/// An action of the loop for the manager.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Output {
    /// Send a message between the ends.
    Send { ends: Ends, bytes: Vec<u8> },
    /// A request arrived.
    Asked { ends: Ends, request: Id, data: Arc<[u8]> },
    /// A request can no longer be answered.
    Withdrawn { endpoint: u16, request: Id, end: End },
    /// A request of this side was accepted: insert the peer of `address`, and call
    /// [`Manager::granted`].
    Granted { link: Id, address: [u8; ADDRESS_BYTES], data: Arc<[u8]> },
    /// An accepted connection is established.
    Opened { ends: Ends, link: Id },
    /// It was rejected.
    Refused { endpoint: u16, link: Id, reason: Reason, data: Arc<[u8]> },
    /// It has ended.
    Ended { endpoint: u16, link: Id, end: End },
}

#[derive(Debug)]
struct ListenQueue {
    backlog: usize,
    /// Time for its user to answer, in nanoseconds.
    patience_ns: u64,
    /// Requests that wait for its user.
    waiting: usize,
}

/// A request that the user has not answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ConnectionRequest {
    pub(crate) ends: Ends,
    /// The peer's id of the connection.
    pub(crate) theirs: u64,
    pub(crate) deadline_ns: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum LinkState {
    /// Requested; until when.
    Asked(u64),
    /// Accepted for the peer, which has to confirm; until when.
    Accepted(u64),
    Open,
}

#[derive(Debug)]
struct Link {
    ends: Ends,
    /// The peer's id of it; 0: it has not accepted.
    theirs: u64,
    state: LinkState,
}

/// Connection manager; see the module.
#[derive(Debug)]
pub(crate) struct Manager {
    listeners: HashMap<u16, ListenQueue>,
    requests: Table<ConnectionRequest>,
    links: Table<Link>,
    outputs: VecDeque<Output>,
    /// Lower bound of all deadlines.
    next_ns: u64,
    /// Invalid messages of peers.
    invalid: u64,
}

impl Default for Manager {
    fn default() -> Self {
        Self {
            listeners: HashMap::new(),
            requests: Table::new(LINKS_MAX),
            links: Table::new(LINKS_MAX),
            outputs: VecDeque::new(),
            next_ns: u64::MAX,
            invalid: 0,
        }
    }
}

/// Returns a header without optional fields.
fn header(kind: u8, own: u64, peer: u64) -> RequestHeader {
    RequestHeader {
        kind,
        reason: 0,
        data_bytes: 0.into(),
        milliseconds: 0.into(),
        own: own.into(),
        peer: peer.into(),
        address: [0; ADDRESS_BYTES],
    }
}

fn message(header: RequestHeader, data: &[u8]) -> Vec<u8> {
    let header = RequestHeader { data_bytes: (data.len() as u16).into(), ..header };
    [header.as_bytes(), data].concat()
}

/// Returns the message that accepts a peer's request; `own` is the id at the endpoint with
/// `address`.
pub(crate) fn accept_message(
    own: Id,
    request: &ConnectionRequest,
    address: [u8; ADDRESS_BYTES],
    data: &[u8],
) -> Vec<u8> {
    message(RequestHeader { address, ..header(KIND_ACCEPT, own.to_u64(), request.theirs) }, data)
}

impl Manager {
    /// Returns the next action of the loop.
    pub(crate) fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// Returns a lower bound of all deadlines.
    #[inline]
    pub(crate) fn next_deadline_ns(&self) -> Option<u64> {
        (self.next_ns != u64::MAX).then_some(self.next_ns)
    }

    fn send(&mut self, ends: Ends, bytes: Vec<u8>) {
        self.outputs.push_back(Output::Send { ends, bytes });
    }

    fn refuse(&mut self, ends: Ends, theirs: u64, reason: Reason, data: &[u8]) {
        let header = RequestHeader { reason: reason as u8, ..header(KIND_REFUSE, 0, theirs) };
        self.send(ends, message(header, data));
    }

    // ---- The user of a listener ----

    /// Lets an endpoint accept requests. Returns `false` if it does already.
    pub(crate) fn listen(&mut self, endpoint: u16, backlog: usize, patience_ns: u64) -> bool {
        if self.listeners.contains_key(&endpoint) {
            return false;
        }
        self.listeners.insert(endpoint, ListenQueue { backlog, patience_ns, waiting: 0 });
        true
    }

    /// Stops an endpoint from accepting requests; waiting ones are rejected.
    pub(crate) fn end_listening(&mut self, endpoint: u16) {
        self.listeners.remove(&endpoint);
        for id in ids(&self.requests, |request| request.ends.0 == endpoint) {
            if let Some(request) = self.requests.remove(id) {
                self.refuse(request.ends, request.theirs, Reason::NotListening, &[]);
            }
        }
    }

    /// Removes a request that the user of a listener answers. `None`: it does not exist any more.
    pub(crate) fn take_request(&mut self, endpoint: u16, request: Id) -> Option<ConnectionRequest> {
        self.requests.get(request).filter(|request| request.ends.0 == endpoint)?;
        let taken = self.requests.remove(request)?;
        let listener = self.listeners.get_mut(&endpoint);
        if let Some(listener) = debug_assert_some!(listener, "requests end with their listener") {
            debug_assert!(listener.waiting > 0, "the request was counted");
            listener.waiting -= 1;
        }
        Some(taken)
    }

    /// Rejects a request. Returns `false` if it does not exist any more.
    pub(crate) fn reject(&mut self, endpoint: u16, request: Id, data: &[u8]) -> bool {
        let Some(request) = self.take_request(endpoint, request) else { return false };
        self.refuse(request.ends, request.theirs, Reason::Rejected, data);
        true
    }

    /// Accepts a request into an endpoint of this engine, for the peer at its other end. `None`: at
    /// the limit.
    pub(crate) fn accept(
        &mut self,
        ends: Ends,
        request: &ConnectionRequest,
        until_ns: u64,
    ) -> Option<Id> {
        self.next_ns = self.next_ns.min(until_ns);
        let state = LinkState::Accepted(until_ns);
        self.links.insert(Link { ends, theirs: request.theirs, state }).ok()
    }

    /// Ends an accepted connection that cannot be used.
    pub(crate) fn fail(&mut self, link: Id, failure: PeerFailure) {
        let Some(Link { ends, theirs, .. }) = self.links.remove(link) else { return };
        self.send(ends, message(header(KIND_SHUT_DOWN, link.to_u64(), theirs), &[]));
        let end = End::Peer(failure);
        self.outputs.push_back(Output::Ended { endpoint: ends.0, link, end });
    }

    /// Forgets an accepted connection whose message could not be sent.
    pub(crate) fn forget(&mut self, link: Id) {
        self.links.remove(link);
    }

    // ---- The requesting user ----

    /// Requests a connection, with a timeout in nanoseconds. `None`: at the limit.
    pub(crate) fn ask(&mut self, ends: Ends, data: &[u8], now_ns: u64, for_ns: u64) -> Option<Id> {
        let until_ns = now_ns.saturating_add(for_ns);
        let link = Link { ends, theirs: 0, state: LinkState::Asked(until_ns) };
        let link = self.links.insert(link).ok()?;
        self.next_ns = self.next_ns.min(until_ns);
        let milliseconds = u32::try_from(for_ns / 1_000_000).unwrap_or(u32::MAX);
        let header = header(KIND_ASK, link.to_u64(), 0);
        let header = RequestHeader { milliseconds: milliseconds.into(), ..header };
        self.send(ends, message(header, data));
        Some(link)
    }

    /// Completes an accepted connection once its peer is known. Returns its endpoint; `None`: it
    /// has ended.
    pub(crate) fn granted(&mut self, link: Id, peer: Id) -> Option<u16> {
        let known = self.links.get_mut(link)?;
        debug_assert!(matches!(known.state, LinkState::Asked(_)), "it is accepted once");
        (known.ends.1, known.state) = (peer, LinkState::Open);
        let (ends, theirs) = (known.ends, known.theirs);
        self.send(ends, message(header(KIND_CONFIRM, link.to_u64(), theirs), &[]));
        Some(ends.0)
    }

    /// Shuts a connection of an endpoint down. Returns `false` if it does not exist any more.
    pub(crate) fn shut_down(&mut self, endpoint: u16, link: Id) -> bool {
        let is_its = self.links.get(link).is_some_and(|known| known.ends.0 == endpoint);
        let known = is_its.then(|| self.links.remove(link)).flatten();
        let Some(known) = known else { return false };
        let kind = match known.state {
            LinkState::Asked(_) => KIND_WITHDRAW,
            LinkState::Accepted(_) | LinkState::Open => KIND_SHUT_DOWN,
        };
        self.send(known.ends, message(header(kind, link.to_u64(), known.theirs), &[]));
        true
    }

    /// Ends the connections of an endpoint that is about to close, and rejects its requests.
    pub(crate) fn close_endpoint(&mut self, endpoint: u16) {
        self.end_listening(endpoint);
        for link in ids(&self.links, |link| link.ends.0 == endpoint) {
            self.shut_down(endpoint, link);
        }
    }

    /// Ends the connections with a peer that is about to be removed.
    pub(crate) fn remove_peer(&mut self, peer: Id) {
        for (link, endpoint) in links(&self.links, |link| link.ends.1 == peer) {
            self.shut_down(endpoint, link);
        }
        self.end_of_peers(|other| other == peer, &PeerFailure::Removed);
    }

    // ---- Incoming messages ----

    /// Counts an invalid message, which is not answered.
    pub(crate) fn count_invalid(&mut self) {
        self.invalid += 1;
    }

    /// Returns the number of invalid messages.
    pub(crate) fn invalid(&self) -> u64 {
        self.invalid
    }

    /// Handles a message of a peer to an endpoint. `is_near`: whether the address in it, if any, is
    /// of the peer's own engine; `has_room`: whether a request can be reported to its user.
    ///
    /// RR-REQ-1, RR-REQ-2, RR-REQ-3.
    pub(crate) fn handle_message(
        &mut self,
        ends: Ends,
        bytes: &[u8],
        now_ns: u64,
        is_near: impl FnOnce(&[u8; ADDRESS_BYTES]) -> bool,
        has_room: impl FnOnce() -> bool,
    ) {
        let Some((header, data)) = split(bytes) else {
            return self.count_invalid();
        };
        let (own, theirs) = (Id::from_u64(header.peer.get()), header.own.get());
        // An id that this side gave to this peer.
        let of_peer = |link: &&Link| link.ends.1 == ends.1;
        match header.kind {
            KIND_ASK => {
                let for_ns = u64::from(header.milliseconds.get()) * 1_000_000;
                self.handle_ask(ends, theirs, data, now_ns, for_ns, has_room);
            }
            KIND_ACCEPT => {
                let address = header.address;
                let is_asked = |link: &&Link| matches!(link.state, LinkState::Asked(_));
                let link = self.links.get_mut(own).filter(|link| of_peer(&&**link));
                match link.filter(|link| is_asked(&&**link)) {
                    // No id is 0; and the first acceptance counts.
                    Some(link) if theirs == 0 || link.theirs != 0 => self.count_invalid(),
                    Some(link) => {
                        link.theirs = theirs;
                        let data = data.into();
                        self.outputs.push_back(Output::Granted { link: own, address, data });
                    }
                    // Abandoned; an acceptor for another engine gets no confirmation.
                    None if is_near(&address) => {
                        let header = self::header(KIND_SHUT_DOWN, 0, theirs);
                        self.send(ends, message(header, &[]));
                    }
                    None => {}
                }
            }
            KIND_REFUSE => {
                let is_asked = |link: &&Link| matches!(link.state, LinkState::Asked(_));
                if self.links.get(own).filter(of_peer).filter(is_asked).is_some() {
                    self.links.remove(own);
                    let (reason, data) = (Reason::from_wire(header.reason), data.into());
                    let endpoint = ends.0;
                    self.outputs.push_back(Output::Refused { endpoint, link: own, reason, data });
                }
            }
            KIND_CONFIRM => {
                let link = self.links.get_mut(own).filter(|link| link.ends.1 == ends.1);
                let link = link.filter(|link| matches!(link.state, LinkState::Accepted(_)));
                if let Some(link) = link.filter(|link| link.theirs == theirs) {
                    link.state = LinkState::Open;
                    let ends = link.ends;
                    self.outputs.push_back(Output::Opened { ends, link: own });
                } else {
                    // It took too long here.
                    let header = self::header(KIND_SHUT_DOWN, own.to_u64(), theirs);
                    self.send(ends, message(header, &[]));
                }
            }
            KIND_WITHDRAW => {
                let is_it = |it: &ConnectionRequest| it.ends == ends && it.theirs == theirs;
                for request in ids(&self.requests, is_it) {
                    self.end_request(request, End::TimedOut);
                }
            }
            _ => {
                let is_over = |link: &&Link| !matches!(link.state, LinkState::Asked(_));
                if self.links.get(own).filter(of_peer).filter(is_over).is_some() {
                    self.links.remove(own);
                    let (endpoint, end) = (ends.0, End::ShutDown);
                    self.outputs.push_back(Output::Ended { endpoint, link: own, end });
                }
            }
        }
    }

    fn handle_ask(
        &mut self,
        ends: Ends,
        theirs: u64,
        data: &[u8],
        now_ns: u64,
        for_ns: u64,
        has_room: impl FnOnce() -> bool,
    ) {
        let Some(listener) = self.listeners.get_mut(&ends.0) else {
            return self.refuse(ends, theirs, Reason::NotListening, &[]);
        };
        if listener.waiting >= listener.backlog || !has_room() {
            return self.refuse(ends, theirs, Reason::Busy, &[]);
        }
        let deadline_ns = now_ns.saturating_add(for_ns.min(listener.patience_ns));
        let Ok(request) = self.requests.insert(ConnectionRequest { ends, theirs, deadline_ns })
        else {
            return self.refuse(ends, theirs, Reason::Busy, &[]);
        };
        listener.waiting += 1;
        debug_assert!(listener.waiting <= listener.backlog, "others are refused");
        self.next_ns = self.next_ns.min(deadline_ns);
        self.outputs.push_back(Output::Asked { ends, request, data: data.into() });
    }

    /// Ends a request and notifies its user.
    fn end_request(&mut self, request: Id, end: End) -> Option<ConnectionRequest> {
        let endpoint = self.requests.get(request)?.ends.0;
        let ended = self.take_request(endpoint, request);
        self.outputs.push_back(Output::Withdrawn { endpoint, request, end });
        ended
    }

    /// Ends everything with failed peers.
    pub(crate) fn end_of_peers(&mut self, is_hit: impl Fn(Id) -> bool, failure: &PeerFailure) {
        for request in ids(&self.requests, |request| is_hit(request.ends.1)) {
            self.end_request(request, End::Peer(failure.clone()));
        }
        for (link, endpoint) in links(&self.links, |link| is_hit(link.ends.1)) {
            self.links.remove(link);
            let end = End::Peer(failure.clone());
            self.outputs.push_back(Output::Ended { endpoint, link, end });
        }
    }

    /// Ends whatever has expired.
    pub(crate) fn handle_timeout(&mut self, now_ns: u64) {
        if now_ns < self.next_ns {
            return;
        }
        for request in ids(&self.requests, |request| request.deadline_ns <= now_ns) {
            if let Some(request) = self.end_request(request, End::TimedOut) {
                self.refuse(request.ends, request.theirs, Reason::TimedOut, &[]);
            }
        }
        let deadline_of = |link: &Link| match link.state {
            LinkState::Asked(until_ns) | LinkState::Accepted(until_ns) => Some(until_ns),
            LinkState::Open => None,
        };
        let is_late = |link: &Link| deadline_of(link).is_some_and(|until_ns| until_ns <= now_ns);
        for (link, endpoint) in links(&self.links, is_late) {
            let is_ended = self.shut_down(endpoint, link);
            debug_assert!(is_ended, "a connection ends once");
            self.outputs.push_back(Output::Ended { endpoint, link, end: End::TimedOut });
        }
        let requests = self.requests.iter().map(|(_, request)| request.deadline_ns);
        let links = self.links.iter().filter_map(|(_, link)| deadline_of(link));
        self.next_ns = requests.chain(links).min().unwrap_or(u64::MAX);
    }
}

/// Returns the connections that `is_hit` selects, and their endpoints.
fn links(table: &Table<Link>, is_hit: impl Fn(&Link) -> bool) -> Vec<(Id, u16)> {
    let hit = table.iter().filter(|(_, link)| is_hit(link));
    hit.map(|(id, link)| (id, link.ends.0)).collect()
}

fn ids<T>(table: &Table<T>, is_hit: impl Fn(&T) -> bool) -> Vec<Id> {
    table.iter().filter(|(_, entry)| is_hit(entry)).map(|(id, _)| id).collect()
}

#[cfg(test)]
mod tests;
