//! Connections between two endpoints: asked for, granted or refused, ended.
//!
//! ```text
//!  asks                          listens               accepts (the listener's endpoint, or
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
//!   │<───────────────────────────────────────────────────>│ over
//! ```
//!
//! These are ordinary messages ([`crate::wire::request`]) between the endpoints, in a context that
//! no user can name ([`REQUESTS`](super::core::REQUESTS)): sessions, credit and rails are as for
//! all messages. What a peer can make this side keep is bounded: its messages by its credit until
//! they are read, and its requests by the backlog of the listener, beyond which they are refused.
//!
//! Pure: messages, time and ends of sessions come in, [`Output`]s come out.

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
/// Connections of an engine, those that are asked for among them, and requests that wait for its
/// users.
pub(crate) const LINKS_MAX: usize = 1 << 16;

/// An endpoint of this engine, and who is at the other side of a message.
pub(crate) type Ends = (u16, Id);

/// Why a request is refused; on the wire as its number.
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

/// Why a connection or a request is over.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum End {
    ShutDown,
    TimedOut,
    Peer(PeerFailure),
}

/// What the loop does for the manager.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Output {
    /// Send a message between the ends.
    Send { ends: Ends, bytes: Vec<u8> },
    /// Somebody asks.
    Asked { ends: Ends, request: Id, data: Arc<[u8]> },
    /// A request is answered no more.
    Withdrawn { endpoint: u16, request: Id, end: End },
    /// What this side asked for is granted: insert the peer of `address`, and say
    /// [`Manager::granted`].
    Granted { link: Id, address: [u8; ADDRESS_BYTES], data: Arc<[u8]> },
    /// An accepted connection is there.
    Opened { ends: Ends, link: Id },
    /// It is refused.
    Refused { endpoint: u16, link: Id, reason: Reason, data: Arc<[u8]> },
    /// It is over.
    Ended { endpoint: u16, link: Id, end: End },
}

#[derive(Debug)]
struct Listener {
    backlog: usize,
    /// How long its user may think, in nanoseconds.
    patience_ns: u64,
    /// Requests that wait for its user.
    waiting: usize,
}

/// A request that the user has not answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Request {
    pub(crate) ends: Ends,
    /// What the peer calls the connection.
    pub(crate) theirs: u64,
    pub(crate) deadline_ns: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// Asked for; until when.
    Asked(u64),
    /// Granted to the peer, who has to confirm; until when.
    Accepted(u64),
    Open,
}

#[derive(Debug)]
struct Link {
    ends: Ends,
    /// What the peer calls it.
    theirs: u64,
    state: State,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Manager {
    listeners: HashMap<u16, Listener>,
    requests: Table<Request>,
    links: Table<Link>,
    outputs: VecDeque<Output>,
    /// No deadline is earlier.
    next_ns: u64,
}

impl Default for Manager {
    fn default() -> Self {
        Self {
            listeners: HashMap::new(),
            requests: Table::new(LINKS_MAX),
            links: Table::new(LINKS_MAX),
            outputs: VecDeque::new(),
            next_ns: u64::MAX,
        }
    }
}

/// A message without what only some have.
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

/// The message that grants what a peer asked for; `own` is the name of the endpoint at `address`.
pub(crate) fn accept_message(
    own: Id,
    request: &Request,
    address: [u8; ADDRESS_BYTES],
    data: &[u8],
) -> Vec<u8> {
    message(RequestHeader { address, ..header(KIND_ACCEPT, own.to_u64(), request.theirs) }, data)
}

impl Manager {
    /// What the loop has to do next.
    pub(crate) fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// No deadline is earlier than this.
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

    /// An endpoint takes requests from now on. `false`: it does already.
    pub(crate) fn listen(&mut self, endpoint: u16, backlog: usize, patience_ns: u64) -> bool {
        if self.listeners.contains_key(&endpoint) {
            return false;
        }
        self.listeners.insert(endpoint, Listener { backlog, patience_ns, waiting: 0 });
        true
    }

    /// An endpoint takes no requests any more; those that wait are refused.
    pub(crate) fn end_listening(&mut self, endpoint: u16) {
        self.listeners.remove(&endpoint);
        for id in ids(&self.requests, |request| request.ends.0 == endpoint) {
            if let Some(request) = self.requests.remove(id) {
                self.refuse(request.ends, request.theirs, Reason::NotListening, &[]);
            }
        }
    }

    /// The user answers a request of a listener. `None`: there is no such request any more.
    pub(crate) fn take_request(&mut self, endpoint: u16, request: Id) -> Option<Request> {
        self.requests.get(request).filter(|request| request.ends.0 == endpoint)?;
        let taken = self.requests.remove(request)?;
        if let Some(listener) = self.listeners.get_mut(&endpoint) {
            listener.waiting -= 1;
        }
        Some(taken)
    }

    /// The user rejects it. `false`: there is no such request any more.
    pub(crate) fn reject(&mut self, endpoint: u16, request: Id, data: &[u8]) -> bool {
        let Some(request) = self.take_request(endpoint, request) else { return false };
        self.refuse(request.ends, request.theirs, Reason::Rejected, data);
        true
    }

    /// The user accepts it into an endpoint of this engine, for the peer at its other end. `None`:
    /// at the limit.
    pub(crate) fn accept(&mut self, ends: Ends, request: &Request, until_ns: u64) -> Option<Id> {
        self.next_ns = self.next_ns.min(until_ns);
        let state = State::Accepted(until_ns);
        self.links.insert(Link { ends, theirs: request.theirs, state }).ok()
    }

    /// What was granted cannot be used: it is over.
    pub(crate) fn fail(&mut self, link: Id, failure: PeerFailure) {
        let Some(Link { ends, theirs, .. }) = self.links.remove(link) else { return };
        self.send(ends, message(header(KIND_SHUT_DOWN, link.to_u64(), theirs), &[]));
        let end = End::Peer(failure);
        self.outputs.push_back(Output::Ended { endpoint: ends.0, link, end });
    }

    /// What was accepted could not be said: forget it.
    pub(crate) fn forget(&mut self, link: Id) {
        self.links.remove(link);
    }

    // ---- The user who asks ----

    /// Asks for a connection, for so many nanoseconds. `None`: at the limit.
    pub(crate) fn ask(&mut self, ends: Ends, data: &[u8], now_ns: u64, for_ns: u64) -> Option<Id> {
        let until_ns = now_ns.saturating_add(for_ns);
        let link = Link { ends, theirs: 0, state: State::Asked(until_ns) };
        let link = self.links.insert(link).ok()?;
        self.next_ns = self.next_ns.min(until_ns);
        let milliseconds = u32::try_from(for_ns / 1_000_000).unwrap_or(u32::MAX);
        let header = header(KIND_ASK, link.to_u64(), 0);
        let header = RequestHeader { milliseconds: milliseconds.into(), ..header };
        self.send(ends, message(header, data));
        Some(link)
    }

    /// The peer that accepted is known: the connection is there. Its endpoint; `None`: it is over.
    pub(crate) fn granted(&mut self, link: Id, peer: Id) -> Option<u16> {
        let known = self.links.get_mut(link)?;
        (known.ends.1, known.state) = (peer, State::Open);
        let (ends, theirs) = (known.ends, known.theirs);
        self.send(ends, message(header(KIND_CONFIRM, link.to_u64(), theirs), &[]));
        Some(ends.0)
    }

    /// Ends a connection of an endpoint. `false`: there is none of that name any more.
    pub(crate) fn shut_down(&mut self, endpoint: u16, link: Id) -> bool {
        if self.links.get(link).is_none_or(|known| known.ends.0 != endpoint) {
            return false;
        }
        let Some(known) = self.links.remove(link) else { return false };
        let kind = match known.state {
            State::Asked(_) => KIND_WITHDRAW,
            State::Accepted(_) | State::Open => KIND_SHUT_DOWN,
        };
        self.send(known.ends, message(header(kind, link.to_u64(), known.theirs), &[]));
        true
    }

    /// An endpoint is about to close: its connections end, its requests are refused.
    pub(crate) fn close_endpoint(&mut self, endpoint: u16) {
        self.end_listening(endpoint);
        for link in ids(&self.links, |link| link.ends.0 == endpoint) {
            self.shut_down(endpoint, link);
        }
    }

    /// A peer is about to be removed: the connections with it end.
    pub(crate) fn remove_peer(&mut self, peer: Id) {
        for link in ids(&self.links, |link| link.ends.1 == peer) {
            let endpoint = self.links.get(link).map(|link| link.ends.0);
            endpoint.map(|endpoint| self.shut_down(endpoint, link));
        }
        self.end_of_peers(|other| other == peer, &PeerFailure::Removed);
    }

    // ---- What comes in ----

    /// A message of a peer to an endpoint. `is_near`: whether the address that it names, if it
    /// does, is of the peer's own engine; `has_room`: whether its user can be told of a request.
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
        // Who makes up what nobody understands is not answered: what would it be?
        let Some((header, data)) = split(bytes) else { return };
        let (own, theirs) = (Id::from_u64(header.peer.get()), header.own.get());
        // A name that this side gave, to the peer that it gave it to.
        let of_peer = |link: &&Link| link.ends.1 == ends.1;
        match header.kind {
            KIND_ASK => {
                let for_ns = u64::from(header.milliseconds.get()) * 1_000_000;
                self.handle_ask(ends, theirs, data, now_ns, for_ns, has_room);
            }
            KIND_ACCEPT => {
                let address = header.address;
                let is_asked = |link: &&Link| matches!(link.state, State::Asked(_));
                match self.links.get(own).filter(of_peer).filter(is_asked) {
                    Some(_) => {
                        if let Some(link) = self.links.get_mut(own) {
                            link.theirs = theirs;
                        }
                        let data = data.into();
                        self.outputs.push_back(Output::Granted { link: own, address, data });
                    }
                    // Given up; who accepted for another engine finds out when none confirms.
                    None if is_near(&address) => {
                        let header = self::header(KIND_SHUT_DOWN, 0, theirs);
                        self.send(ends, message(header, &[]));
                    }
                    None => {}
                }
            }
            KIND_REFUSE => {
                let is_asked = |link: &&Link| matches!(link.state, State::Asked(_));
                if self.links.get(own).filter(of_peer).filter(is_asked).is_some() {
                    self.links.remove(own);
                    let (reason, data) = (Reason::from_wire(header.reason), data.into());
                    let endpoint = ends.0;
                    self.outputs.push_back(Output::Refused { endpoint, link: own, reason, data });
                }
            }
            KIND_CONFIRM => {
                let link = self.links.get_mut(own).filter(|link| link.ends.1 == ends.1);
                let link = link.filter(|link| matches!(link.state, State::Accepted(_)));
                if let Some(link) = link.filter(|link| link.theirs == theirs) {
                    link.state = State::Open;
                    let ends = link.ends;
                    self.outputs.push_back(Output::Opened { ends, link: own });
                } else {
                    // It took too long here.
                    let header = self::header(KIND_SHUT_DOWN, own.to_u64(), theirs);
                    self.send(ends, message(header, &[]));
                }
            }
            KIND_WITHDRAW => {
                let is_it = |it: &Request| it.ends == ends && it.theirs == theirs;
                for request in ids(&self.requests, is_it) {
                    self.end_request(request, End::TimedOut);
                }
            }
            _ => {
                let is_over = |link: &&Link| !matches!(link.state, State::Asked(_));
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
        let Ok(request) = self.requests.insert(Request { ends, theirs, deadline_ns }) else {
            return self.refuse(ends, theirs, Reason::Busy, &[]);
        };
        listener.waiting += 1;
        self.next_ns = self.next_ns.min(deadline_ns);
        self.outputs.push_back(Output::Asked { ends, request, data: data.into() });
    }

    /// A request is answered no more, and its user is told.
    fn end_request(&mut self, request: Id, end: End) -> Option<Request> {
        let endpoint = self.requests.get(request)?.ends.0;
        let ended = self.take_request(endpoint, request);
        self.outputs.push_back(Output::Withdrawn { endpoint, request, end });
        ended
    }

    /// Peers have failed: what was with them is over.
    pub(crate) fn end_of_peers(&mut self, is_hit: impl Fn(Id) -> bool, failure: &PeerFailure) {
        for request in ids(&self.requests, |request| is_hit(request.ends.1)) {
            self.end_request(request, End::Peer(failure.clone()));
        }
        for link in ids(&self.links, |link| is_hit(link.ends.1)) {
            if let Some(Link { ends: (endpoint, _), .. }) = self.links.remove(link) {
                let end = End::Peer(failure.clone());
                self.outputs.push_back(Output::Ended { endpoint, link, end });
            }
        }
    }

    /// Ends what has waited for too long.
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
            State::Asked(until_ns) | State::Accepted(until_ns) => Some(until_ns),
            State::Open => None,
        };
        let is_late = |link: &Link| deadline_of(link).is_some_and(|until_ns| until_ns <= now_ns);
        for link in ids(&self.links, is_late) {
            let Some(endpoint) = self.links.get(link).map(|link| link.ends.0) else { continue };
            self.shut_down(endpoint, link);
            self.outputs.push_back(Output::Ended { endpoint, link, end: End::TimedOut });
        }
        let requests = self.requests.iter().map(|(_, request)| request.deadline_ns);
        let links = self.links.iter().filter_map(|(_, link)| deadline_of(link));
        self.next_ns = requests.chain(links).min().unwrap_or(u64::MAX);
    }
}

fn ids<T>(table: &Table<T>, is_hit: impl Fn(&T) -> bool) -> Vec<Id> {
    table.iter().filter(|(_, entry)| is_hit(entry)).map(|(id, _)| id).collect()
}

#[cfg(test)]
mod tests;
