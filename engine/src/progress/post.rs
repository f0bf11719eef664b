//! Posting of operations: the fast path of a send, and memory of operations that wait.

use std::sync::Arc;

use super::at_once::Departure;
use super::completions::{CompletionRoute, PostedTo, Posting};
use super::counters::CounterEvents;
use super::engine::{Engine, EngineState};
use super::outside::Ticket;
use crate::memory::{Buffer, RawSpan, Shape, copy_bytes};
use crate::proto::effects::CompletionLevel;
use crate::proto::hint::Hint;
use crate::proto::receive::ReceiveRequest;
use crate::proto::session::segments::PostedMessage;
use crate::proto::session::send::{SendDestination, SendRefusal, SendRequest, must_wait};
use crate::proto::table::Id;
use crate::types::{Address, Envelope, Error, OperationKind, Peer, Status};
use crate::wire::MESSAGE_BYTES_MAX;

/// Limit of a completion queue.
pub(super) const COMPLETIONS: &str = "completions that are not read; setting cq_entries";

/// The memory of an operation, and the buffer that owns it unless the poster does.
#[derive(Debug)]
pub struct Memory {
    pub(crate) buffer: Option<Buffer>,
    pub(crate) shape: Shape,
}

/// Returns the reported kind of a receive.
#[inline]
pub(super) fn kind_of(request: &ReceiveRequest) -> OperationKind {
    match request.min_free {
        None => OperationKind::Receive,
        Some(_) => OperationKind::MultiReceive,
    }
}

/// Result of a post.
#[derive(Debug)]
pub enum PostResult<T = Id> {
    /// A send has completed already.
    Sent(Status, Option<Buffer>),
    /// The operation is outstanding.
    Pending(T),
}

/// A refused post gives the memory back.
pub(crate) type Refused = (Error, Memory);

impl Memory {
    /// Creates memory with a copy of `bytes`.
    pub(crate) fn copy_of(bytes: &[u8]) -> Self {
        let mut bytes = bytes.to_vec();
        let shape = Shape::contiguous(bytes.as_mut_ptr(), bytes.len());
        Self { buffer: Some(Buffer::Heap(bytes)), shape }
    }

    /// Memory that its poster keeps valid until the operation ends.
    #[inline]
    pub(crate) fn borrowed(RawSpan { ptr, len }: RawSpan) -> Self {
        Self { buffer: None, shape: Shape::contiguous(ptr, len) }
    }

    /// Creates empty memory.
    pub(crate) fn nothing() -> Self {
        let nowhere = std::ptr::NonNull::dangling().as_ptr();
        Self { buffer: None, shape: Shape::contiguous(nowhere, 0) }
    }
}

/// Returns whether a send may be sent at once, and completes then.
#[inline(always)]
fn completes_when_sent(request: &SendRequest) -> bool {
    request.level == CompletionLevel::Inject
        && request.is_plain()
        && request.length <= request.hint.eager_limit(u64::MAX)
}

/// Injects a message that is never sent at once: a peer of many gives too little credit, or it does
/// not fit a datagram.
#[cold]
fn post_copy(
    engine: &mut Engine,
    request: &SendRequest,
    bytes: &[u8],
    route: CompletionRoute,
    more: bool,
) -> Result<(), Error> {
    let posted = engine.post_send(request, Memory::copy_of(bytes), route, more);
    posted.map(drop).map_err(|(error, _)| error)
}

/// Returns the error of a message above the inject limit, which names the setting.
pub(super) fn beyond_inject_limit(length: usize, limit: usize) -> Error {
    Error::misuse(format!(
        "{length} bytes cannot be injected: the setting inject_limit_bytes is {limit}; raise it, \
         or send them"
    ))
}

impl EngineState {
    /// Returns whether nothing was sent to a peer since the last turn.
    fn is_first_to(&mut self, peer: Id) -> bool {
        self.core.destination(peer).map_or(true, |to| self.is_first_of_turn(to.session))
    }

    /// Returns the error of a refusal, for the owner.
    pub(crate) fn error_of(&mut self, peer: Option<Peer>, refusal: SendRefusal) -> Error {
        match refusal {
            SendRefusal::UnknownPeer => Error::UnknownPeer,
            SendRefusal::Full(limit) => Error::WouldBlock(limit),
            SendRefusal::Failed(failure) => {
                let known = peer.and_then(|peer| self.core.shared().peers().get(peer.0));
                if let Some(session) = known.map(|known| known.session) {
                    self.core.with(session, |it, _| it.ending_mut().note_reported());
                }
                let address = peer.and_then(|peer| self.address_of(peer));
                match address {
                    Some(address) => {
                        Error::Peer { address: Box::new(address), failure, status: None }
                    }
                    None => Error::UnknownPeer,
                }
            }
        }
    }

    /// Counts a send with a hint.
    #[inline]
    fn note_hint(&mut self, request: &SendRequest) {
        if request.hint != Hint::None {
            tracing::debug!(hint = %request.hint, length = request.length, "a send with a hint");
            self.core.shared_mut().note_hinted_send(request.hint);
        }
    }

    /// Refuses a send that is too long, or whose completion has no space.
    #[inline]
    fn check_send(&self, request: &SendRequest, route: CompletionRoute) -> Result<(), Error> {
        if request.length > MESSAGE_BYTES_MAX {
            let text = format!("a message has at most {MESSAGE_BYTES_MAX} bytes");
            return Err(Error::misuse(text));
        }
        match self.completions.has_room(route) {
            true => Ok(()),
            false => Err(Error::WouldBlock(COMPLETIONS)),
        }
    }

    /// Counts a send that was sent at once, and returns its status.
    #[inline]
    fn note_sent(&mut self, request: &SendRequest) -> Status {
        self.note_hint(request);
        self.completions.count(request.endpoint, CounterEvents::SEND, true);
        let envelope = Envelope::of(request.context, request.tag);
        let (peer, length) = (Some(Peer(request.peer)), request.length as usize);
        Status { peer, envelope, length, data: None }
    }

    /// Returns the route for the end of a send that its poster has admitted: its success is not
    /// reported, and a full queue has no space for the failure of its peer.
    pub(super) fn admitted_route(&self, to: PostedTo) -> CompletionRoute {
        let route = PostedTo { silent: true, ..to }.route();
        if self.completions.has_room(route) { route } else { CompletionRoute::Nowhere }
    }
}

impl Engine {
    /// Sends bytes that the caller keeps, if they can be sent now. `fill` copies them, `whole` are
    /// these bytes if they are contiguous. `Ok(false)`: not now.
    #[inline(always)]
    pub(crate) fn send_now(
        &mut self,
        request: &SendRequest,
        more: bool,
        fill: impl Fn(&mut [u8]) + Copy,
        whole: Option<&[u8]>,
    ) -> Result<bool, SendRefusal> {
        let to = self.state.core.destination(request.peer)?;
        if must_wait() {
            return Ok(self.send_in_new_room(to, request, more, fill));
        }
        let departure = self.state.departure(to.session, request.hint, more);
        if departure == Departure::Alone {
            let frame = PostedMessage { request, target: to.endpoint, fill, whole };
            if self.send_at_once(to.session, &frame) {
                self.state.completions.count_copied(request.length);
                return Ok(true);
            }
        }
        if departure != Departure::WithOthers
            && let Some(bytes) = whole
            && self.stream_before_copy(to, request, bytes)
        {
            return Ok(true);
        }
        let Some(room) = self.state.core.stage_now(to, request) else {
            return Ok(self.send_in_new_room(to, request, more, fill));
        };
        fill(room);
        self.state.completions.count_copied(request.length);
        if departure != Departure::WithOthers {
            self.flush_posted(to.session, request.hint);
        }
        Ok(true)
    }

    /// Continues [`Self::send_now`] where a message has no space, or cannot be sent at once.
    #[cold]
    fn send_in_new_room(
        &mut self,
        to: SendDestination,
        request: &SendRequest,
        more: bool,
        fill: impl Fn(&mut [u8]) + Copy,
    ) -> bool {
        // Segments that are sent make space for others.
        if !self.state.core.needs_operation(request) {
            let is_flushed = self.flush(to.session);
            self.driver.flush_datagrams();
            if is_flushed {
                self.state.stage_waiting();
                if !must_wait()
                    && let Some(room) = self.state.core.stage_now(to, request)
                {
                    fill(room);
                    self.state.completions.count_copied(request.length);
                    let departure = self.state.departure(to.session, request.hint, more);
                    if departure != Departure::WithOthers {
                        self.flush_posted(to.session, request.hint);
                    }
                    return true;
                }
            }
        }
        let now_ns = self.state.now_ns;
        self.state.core.with(to.session, |it, mut cx| it.connection_mut().connect(&mut cx, now_ns));
        false
    }

    /// Sends a copy of `bytes`, now or never; later errors go to `route`.
    #[inline(always)]
    pub(crate) fn inject(
        &mut self,
        request: &SendRequest,
        bytes: &[u8],
        route: CompletionRoute,
        more: bool,
    ) -> Result<(), Error> {
        let limit = self.state.core.shared().eager().inject_max();
        if bytes.len() > limit as usize {
            return Err(beyond_inject_limit(bytes.len(), limit as usize));
        }
        if !request.is_plain() {
            return post_copy(self, request, bytes, route, more);
        }
        let fill = |room: &mut [u8]| copy_bytes(room, bytes);
        match self.send_now(request, more, fill, Some(bytes)) {
            Ok(true) => {
                self.state.note_hint(request);
                self.state.completions.count(request.endpoint, CounterEvents::SEND, true);
                Ok(())
            }
            Ok(false) if self.state.core.needs_operation(request) => {
                post_copy(self, request, bytes, route, more)
            }
            Ok(false) => Err(Error::WouldBlock("connection, credit or space in segments")),
            Err(refusal) => Err(self.state.error_of(Some(Peer(request.peer)), refusal)),
        }
    }

    /// Posts a send.
    pub(crate) fn post_send(
        &mut self,
        request: &SendRequest,
        memory: Memory,
        route: CompletionRoute,
        more: bool,
    ) -> Result<PostResult, Refused> {
        let peer = Some(Peer(request.peer));
        if let Err(error) = self.state.check_send(request, route) {
            return Err((error, memory));
        }
        if completes_when_sent(request) {
            let shape = &memory.shape;
            // SAFETY: the buffer (or the poster's guarantee) keeps the memory for this call.
            let fill = |room: &mut [u8]| unsafe { shape.copy_to(0, room) };
            let whole = shape.as_span().filter(|span| span.len > 0);
            // SAFETY: as above, for all of the one piece that it is.
            let whole = whole.map(|it| unsafe { std::slice::from_raw_parts(it.ptr, it.len) });
            let sent = self.send_now(request, more, fill, whole);
            match sent {
                Ok(true) => {
                    let status = self.state.note_sent(request);
                    return Ok(PostResult::Sent(status, memory.buffer));
                }
                Ok(false) => {}
                Err(refusal) => return Err((self.state.error_of(peer, refusal), memory)),
            }
        }
        let created = self.state.core.new_send(request);
        self.post_new_send(created, request, memory, route, more).map(PostResult::Pending)
    }

    /// Starts a send that waits. `created`: its operation, or why there is none.
    fn post_new_send(
        &mut self,
        created: Result<Id, SendRefusal>,
        request: &SendRequest,
        memory: Memory,
        route: CompletionRoute,
        more: bool,
    ) -> Result<Id, Refused> {
        let peer = Some(Peer(request.peer));
        let id = match created {
            Ok(id) => id,
            Err(refusal) => return Err((self.state.error_of(peer, refusal), memory)),
        };
        let envelope = Envelope::of(request.context, request.tag);
        let state = &mut *self.state;
        let kind = OperationKind::Send;
        state.completions.insert(id, Posting { kind, route, memory, peer, envelope });
        state.completions.count_for(id, request.endpoint);
        state.core.enqueue(id, state.now_ns);
        state.note_hint(request);
        let waits = match request.hint {
            Hint::Latency => false,
            Hint::Bulk => true,
            Hint::None | Hint::Priority => more,
        };
        if !waits && (request.hint == Hint::Latency || self.state.is_first_to(request.peer)) {
            self.work();
        }
        Ok(id)
    }

    /// Posts, as [`Self::post_send_to`] does, a send of one piece of memory, which its poster keeps
    /// valid until that has completed.
    #[inline]
    pub(crate) fn post_send_from(
        &mut self,
        request: &SendRequest,
        span: RawSpan,
        to: PostedTo,
        more: bool,
    ) -> Result<Option<Id>, Error> {
        self.state.check_send(request, to.route())?;
        if completes_when_sent(request) {
            let bytes = match span.len {
                0 => &[][..],
                // SAFETY: the poster guarantees that the memory is valid.
                length => unsafe { std::slice::from_raw_parts(span.ptr, length) },
            };
            match self.send_now(request, more, |room| copy_bytes(room, bytes), Some(bytes)) {
                Ok(true) => {
                    let status = self.state.note_sent(request);
                    self.state.completions.push_sent(to, status, None);
                    return Ok(None);
                }
                Ok(false) => {}
                Err(refusal) => {
                    return Err(self.state.error_of(Some(Peer(request.peer)), refusal));
                }
            }
        }
        let created = self.state.core.new_send(request);
        let memory = Memory::borrowed(span);
        let posted = self.post_new_send(created, request, memory, to.route(), more);
        posted.map(Some).map_err(|(error, _)| error)
    }

    /// Sends a copy that its poster has admitted: only the limit on operations refuses it, and a
    /// failed peer. Returns the operation, if it has to wait.
    pub(crate) fn inject_admitted(
        &mut self,
        request: &SendRequest,
        bytes: &[u8],
        to: PostedTo,
        more: bool,
    ) -> Result<Option<Id>, Error> {
        if request.is_plain() {
            match self.inject(request, bytes, to.route(), more) {
                Ok(()) => return Ok(None),
                Err(error) if error.is_would_block() => {}
                Err(error) => return Err(error),
            }
        }
        let created = self.state.core.new_admitted_send(request);
        let route = self.state.admitted_route(to);
        let posted = self.post_new_send(created, request, Memory::copy_of(bytes), route, more);
        posted.map(Some).map_err(|(error, _)| error)
    }

    /// Posts a send that completes to a queue; if this returns `None` it has already.
    #[inline]
    pub(crate) fn post_send_to(
        &mut self,
        request: &SendRequest,
        memory: Memory,
        to: PostedTo,
        more: bool,
    ) -> Result<Option<Id>, Refused> {
        match self.post_send(request, memory, to.route(), more)? {
            PostResult::Pending(id) => Ok(Some(id)),
            PostResult::Sent(status, buffer) => {
                self.state.completions.push_sent(to, status, buffer);
                Ok(None)
            }
        }
    }

    /// Posts a send with a new handle, which gets the completion, or `ticket` does.
    pub(crate) fn start_send(
        &mut self,
        request: &SendRequest,
        memory: Memory,
        more: bool,
        ticket: Option<&Arc<Ticket>>,
    ) -> Result<PostResult, Refused> {
        let Some(handle) = self.state.completions.new_handle(ticket) else {
            return Err((Error::WouldBlock(COMPLETIONS), memory));
        };
        let posted = self.post_send(request, memory, CompletionRoute::Handle(handle), more);
        if !matches!(posted, Ok(PostResult::Pending(_))) {
            self.state.completions.remove_handle(handle);
        }
        Ok(match posted? {
            PostResult::Pending(_) => PostResult::Pending(handle),
            sent => sent,
        })
    }

    /// Adds a remote endpoint. `None`: a limit is reached.
    pub(crate) fn insert_peer(&mut self, address: &Address) -> Option<Peer> {
        if self.state.core.sessions().is_full() {
            // Pending actions of a closed session keep its slot in use.
            self.carry_out();
        }
        let (engine, locators) = (address.engine(), address.to_locators());
        self.state.core.insert_peer(engine, locators, address.endpoint()).map(Peer)
    }

    /// Connects to a peer (again), without waiting; returns a failure not yet reported to the
    /// owner.
    pub(crate) fn start_connect(&mut self, peer: Peer) -> Result<u32, Error> {
        let remote = self.state.core.shared().peers().get(peer.0).ok_or(Error::UnknownPeer)?;
        let session = remote.session;
        let now_ns = self.state.now_ns;
        let unreported = self.state.core.connect(session, now_ns);
        self.work();
        match unreported {
            Some(failure) => Err(self.state.error_of(Some(peer), SendRefusal::Failed(failure))),
            None => Ok(session),
        }
    }
}
