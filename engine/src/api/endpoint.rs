//! Endpoints: where messages are posted.

use std::cell::RefCell;
use std::fmt;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::{Duration, Instant};

use super::domain::Domain;
use super::operation::Operation;
use super::options::{Rejected, SendOptions};
use crate::driver::{self, ArenaRange, DriverChoice};
use crate::memory::{Buffer, RawSpan, Shape, raw_shape};
use crate::progress::completions::Route;
use crate::progress::engine::{Engine, Live, State};
use crate::progress::lanes::LaneKey;
use crate::progress::post::{Memory, Posted};
use crate::proto::core::UNTAGGED;
use crate::proto::effects::Level;
use crate::proto::receive::ReceiveRequest;
use crate::proto::send::SendRequest;
use crate::settings::Lanes;
use crate::telemetry::Counters;
use crate::types::{
    Address, Completion, Envelope, Error, Event, OperationId, Outcome, Peer, Selector, Status,
};

/// An endpoint that no thread owns: it listens, and can be sent to another thread.
pub struct Detached {
    state: Box<State>,
    sockets: Vec<(LaneKey, OwnedFd)>,
}

/// An endpoint owned by the thread that attached it, which makes all progress: neither `Send`
/// nor `Sync`, and without a lock on the way of a message.
pub struct Owned {
    engine: Rc<RefCell<Live>>,
    endpoint: u16,
    queue: u32,
    _sibling: Option<Sibling>,
}

/// Closes an endpoint that is not the first of its engine when it is dropped.
struct Sibling {
    engine: Rc<RefCell<Live>>,
    endpoint: u16,
}

impl Drop for Sibling {
    fn drop(&mut self) {
        // In a panic inside the engine its own end closes everything.
        if let Ok(mut engine) = self.engine.try_borrow_mut() {
            let state = &mut *engine.state;
            state.core.close_endpoint(self.endpoint, &mut state.completions);
        }
    }
}

/// A place to send from and to receive at, with an address of its own.
///
/// `Endpoint<Detached>` is made by [`Domain::endpoint`]; [`Endpoint::attach`] binds it to the
/// calling thread as `Endpoint<Owned>`.
///
/// # Order and completion
///
/// Messages of one source to one target in one context match receives in the order in which they
/// were sent; nothing is promised across contexts. Operations complete in any order. Nothing
/// moves unless the owning thread calls something that makes progress: every blocking call
/// ([`Endpoint::wait`], [`Operation::wait`], `*_blocking`) progresses everything, so exchanges
/// in any order cannot lock up.
///
/// # Closing
///
/// Dropping an owned endpoint closes it. With the last one of an engine the engine closes: it
/// sends what was posted, up to the setting `close_linger`, says goodbye to its peers, and takes
/// every buffer back from the kernel. An [`Operation`] keeps its engine open.
///
/// # Threads
///
/// A detached endpoint can be sent to another thread, an owned one cannot:
///
/// ```
/// fn send<T: Send>() {}
/// send::<ringrail::Endpoint<ringrail::Detached>>();
/// ```
///
/// ```compile_fail,E0277
/// fn send<T: Send>() {}
/// send::<ringrail::Endpoint<ringrail::Owned>>();
/// ```
///
/// ```compile_fail,E0277
/// fn share<T: Sync>() {}
/// share::<ringrail::Endpoint<ringrail::Owned>>();
/// ```
pub struct Endpoint<Mode> {
    domain: Domain,
    mode: Mode,
}

impl<Mode> fmt::Debug for Endpoint<Mode> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint").finish_non_exhaustive()
    }
}

impl Endpoint<Detached> {
    pub(crate) fn new(domain: Domain, state: Box<State>) -> Self {
        Self { domain, mode: Detached { state, sockets: Vec::new() } }
    }

    /// Where peers reach it.
    pub fn address(&self) -> Address {
        self.mode.state.address(0)
    }

    /// Binds the endpoint to the calling thread, pins that to the next core of the setting
    /// `pin_cores` where there are some (a thread keeps the core that it got first), and opens
    /// the driver that the setting `lanes` asks for (`auto`: io_uring, or plain sockets where
    /// the kernel refuses it).
    ///
    /// # Errors
    ///
    /// [`Error::System`] when the thread cannot be pinned or the driver cannot be had; the text
    /// says what helps. The endpoint is closed then.
    pub fn attach(self) -> Result<Endpoint<Owned>, Error> {
        let Self { domain, mode } = self;
        let settings = domain.settings();
        domain.pin_thread()?;
        let choice = match settings.lanes() {
            Lanes::Auto => DriverChoice::Auto,
            Lanes::Uring => DriverChoice::Uring,
            Lanes::Sockets => DriverChoice::Sockets,
        };
        let arena = domain.arena();
        let range = ArenaRange { base: arena.base(), len: arena.len() };
        // SAFETY: the engine keeps the arena alive until its driver is shut down, and leaks it
        // if that does not come to an end.
        let driver = unsafe { driver::open(choice, &domain.driver_config(), Some(range)) }
            .map_err(|error| Error::system("cannot attach the endpoint", error))?;
        let engine = Engine::attach(mode.state, driver, mode.sockets)?;
        let engine = Rc::new(RefCell::new(Live::new(engine)));
        Ok(Endpoint { domain, mode: Owned { engine, endpoint: 0, queue: 0, _sibling: None } })
    }
}

fn context_of(envelope: Envelope) -> u64 {
    u64::from(envelope.context)
}

impl Endpoint<Owned> {
    /// Where peers reach it.
    pub fn address(&self) -> Address {
        self.mode.engine.borrow().state.address(self.mode.endpoint)
    }

    /// Which driver moves its messages: `"uring"` or `"sockets"`.
    pub fn driver(&self) -> &'static str {
        self.mode.engine.borrow().driver_name()
    }

    /// The domain it was made from.
    pub fn domain(&self) -> &Domain {
        &self.domain
    }

    /// Another endpoint on the same engine and thread, with an address of its own. It shares
    /// this endpoint's completion queue if `shares_queue`, else it has its own.
    ///
    /// # Errors
    ///
    /// [`Error::Limit`] at 1024 endpoints.
    pub fn open_sibling(&self, shares_queue: bool) -> Result<Self, Error> {
        let mut engine = self.mode.engine.borrow_mut();
        let endpoint = engine
            .state
            .core
            .open_endpoint()
            .ok_or(Error::Limit("an engine has 1024 endpoints; drop some"))?;
        let queue = match shares_queue {
            true => self.mode.queue,
            false => engine.state.completions.open_queue(),
        };
        let owner = Rc::clone(&self.mode.engine);
        let sibling = Sibling { engine: Rc::clone(&owner), endpoint };
        let mode = Owned { engine: owner, endpoint, queue, _sibling: Some(sibling) };
        Ok(Self { domain: self.domain.clone(), mode })
    }

    /// Gives the endpoint up for another thread to attach; connections stay open.
    ///
    /// # Errors
    ///
    /// The endpoint comes back when siblings or operations are alive, or anything is outstanding.
    pub fn detach(self) -> Result<Endpoint<Detached>, (Self, Error)> {
        if Rc::strong_count(&self.mode.engine) > 1 || self.mode.endpoint != 0 {
            let text = "an engine is detached by its first endpoint, when siblings and operations \
                        are gone";
            return Err((self, Error::misuse(text)));
        }
        let Self { domain, mode } = self;
        let (endpoint, queue) = (mode.endpoint, mode.queue);
        let engine = match Rc::try_unwrap(mode.engine) {
            Ok(engine) => engine.into_inner().into_engine(),
            Err(engine) => {
                let mode = Owned { engine, endpoint, queue, _sibling: None };
                return Err((Self { domain, mode }, Error::misuse("the engine is in use")));
            }
        };
        match engine.detach() {
            Ok((state, sockets)) => Ok(Endpoint { domain, mode: Detached { state, sockets } }),
            Err((engine, error)) => {
                let engine = Rc::new(RefCell::new(Live::new(engine)));
                let mode = Owned { engine, endpoint, queue, _sibling: None };
                Err((Self { domain, mode }, error))
            }
        }
    }

    // ---- Peers ----

    /// Adds a peer to the address vector, at any time. The same address gives the same handle.
    /// Endpoints of the same engine, this one included, are peers like any other; messages to
    /// them are copied in memory.
    ///
    /// # Errors
    ///
    /// [`Error::Limit`] at the bound `sessions_max`, which counts every engine that was ever met.
    pub fn insert(&self, address: &Address) -> Result<Peer, Error> {
        let core = &mut self.mode.engine.borrow_mut().state.core;
        core.insert_peer(address.engine(), address.locator(), address.endpoint())
            .map(Peer)
            .ok_or(Error::Limit("this engine has met sessions_max others; raise the setting"))
    }

    /// Removes a peer: what is outstanding with it fails, and the connection is closed when it
    /// was the last peer of its engine.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownPeer`] when it was removed before.
    pub fn remove(&self, peer: Peer) -> Result<(), Error> {
        let mut engine = self.mode.engine.borrow_mut();
        let state = &mut *engine.state;
        if !state.core.remove_peer(peer.0, &mut state.completions) {
            return Err(Error::UnknownPeer);
        }
        engine.progress()?;
        Ok(())
    }

    /// The address of a peer (also of one that was met as the source of a message).
    pub fn peer_address(&self, peer: Peer) -> Option<Address> {
        let engine = self.mode.engine.borrow();
        engine.state.core.remotes.get(peer.0)?;
        let name = engine.state.core.name_of(peer.0.index() as u32)?;
        Some(Address::new(name.engine, name.locator, name.endpoint))
    }

    /// Connects to a peer and waits until the session is up. Sending does so by itself; after a
    /// failure this is how to try again.
    ///
    /// # Errors
    ///
    /// [`Error::Peer`] with the cause when all attempts failed.
    pub fn connect(&self, peer: Peer) -> Result<(), Error> {
        self.connect_all(&[peer])
    }

    /// Connects to several peers at once and waits for all of them.
    ///
    /// # Errors
    ///
    /// The first failure; the other attempts go on.
    pub fn connect_all(&self, peers: &[Peer]) -> Result<(), Error> {
        let mut engine = self.mode.engine.borrow_mut();
        for &peer in peers {
            engine.start_connect(peer)?;
        }
        for &peer in peers {
            let done = |engine: &mut Engine| match engine.connected(peer) {
                Ok(true) => Some(Ok(())),
                Ok(false) => None,
                Err(error) => Some(Err(error)),
            };
            engine.wait(None, done)?.unwrap_or(Err(Error::TimedOut))?;
        }
        Ok(())
    }

    // ---- Sends ----

    fn send_request(
        &self,
        peer: Peer,
        context: u64,
        tag: u64,
        length: usize,
        level: Level,
    ) -> SendRequest {
        let endpoint = self.mode.endpoint;
        SendRequest { endpoint, peer: peer.0, context, tag, length: length as u64, level }
    }

    fn post_owned(
        &self,
        peer: Peer,
        (context, tag): (u64, u64),
        mut buffer: Buffer,
        options: SendOptions,
        route: Route,
    ) -> Result<Posted, Rejected> {
        let shape = match buffer.shape_for_send() {
            Ok(shape) => shape,
            Err(error) => return Err(Rejected { error: error.into(), buffer }),
        };
        let request = self.send_request(peer, context, tag, shape.len(), options.level);
        let memory = Memory { buffer: Some(buffer), shape };
        let mut engine = self.mode.engine.borrow_mut();
        engine.post_send(&request, memory, route, options.more).map_err(rejected)
    }

    fn send_with_handle(
        &self,
        peer: Peer,
        label: (u64, u64),
        buffer: Buffer,
        options: SendOptions,
    ) -> Result<Operation, Rejected> {
        let Some(handle) = self.mode.engine.borrow_mut().new_handle() else {
            return Err(Rejected { error: Error::WouldBlock("cq_entries"), buffer });
        };
        let posted = self.post_owned(peer, label, buffer, options, Route::Handle(handle));
        if !matches!(posted, Ok(Posted::Pending(_))) {
            self.mode.engine.borrow_mut().state.completions.handles.remove(handle);
        }
        Ok(match posted? {
            Posted::Sent(status, buffer) => Operation::ready(Outcome {
                result: Ok(status),
                buffer: buffer.unwrap_or_else(|| Buffer::Heap(Vec::new())),
            }),
            Posted::Pending(_) => Operation::pending(Rc::clone(&self.mode.engine), handle),
        })
    }

    /// Sends a tagged message; the operation owns the buffer until it ends.
    ///
    /// # Errors
    ///
    /// [`Rejected`] gives the buffer back: [`Error::WouldBlock`] at a bound, [`Error::Peer`] when
    /// the peer has failed.
    pub fn send(
        &self,
        peer: Peer,
        envelope: Envelope,
        buffer: impl Into<Buffer>,
        options: SendOptions,
    ) -> Result<Operation, Rejected> {
        let label = (context_of(envelope), envelope.tag);
        self.send_with_handle(peer, label, buffer.into(), options)
    }

    /// Sends a message without tag, for [`Self::receive_untagged`].
    ///
    /// # Errors
    ///
    /// As for [`Self::send`].
    pub fn send_untagged(
        &self,
        peer: Peer,
        buffer: impl Into<Buffer>,
        options: SendOptions,
    ) -> Result<Operation, Rejected> {
        self.send_with_handle(peer, (UNTAGGED, 0), buffer.into(), options)
    }

    /// Like [`Self::send`], but the end goes to the completion queue, with `context`. `None`: a
    /// silent send is over already.
    ///
    /// # Errors
    ///
    /// As for [`Self::send`].
    pub fn post_send(
        &self,
        peer: Peer,
        envelope: Envelope,
        buffer: impl Into<Buffer>,
        options: SendOptions,
        context: u64,
    ) -> Result<Option<OperationId>, Rejected> {
        let label = (context_of(envelope), envelope.tag);
        let route = self.queue_route(context, options);
        let posted = self.post_owned(peer, label, buffer.into(), options, route)?;
        Ok(self.report_posted(posted, options, context))
    }

    fn queue_route(&self, context: u64, options: SendOptions) -> Route {
        Route::Queue { queue: self.mode.queue, context, on_error_only: options.silent }
    }

    fn report_posted(
        &self,
        posted: Posted,
        options: SendOptions,
        context: u64,
    ) -> Option<OperationId> {
        match posted {
            Posted::Pending(id) => Some(OperationId(id)),
            Posted::Sent(..) if options.silent => None,
            Posted::Sent(status, buffer) => {
                let completions = &mut self.mode.engine.borrow_mut().state.completions;
                completions.push_sent(self.mode.queue, context, status, buffer);
                None
            }
        }
    }

    /// Sends bytes that can be reused on return, without a completion (`fi_tinject`).
    ///
    /// # Errors
    ///
    /// [`Error::WouldBlock`] when they cannot go out now (no connection yet, or no credit): make
    /// progress and try again, or use [`Self::send_blocking`]. [`Error::Misuse`] when they are
    /// longer than `inject_limit_bytes`.
    #[inline]
    pub fn inject(&self, peer: Peer, envelope: Envelope, bytes: &[u8]) -> Result<(), Error> {
        self.inject_with(peer, envelope, bytes, false)
    }

    /// Like [`Self::inject`]; `more`: others follow at once, do not hurry this one.
    ///
    /// # Errors
    ///
    /// As for [`Self::inject`].
    #[inline]
    pub fn inject_with(
        &self,
        peer: Peer,
        envelope: Envelope,
        bytes: &[u8],
        more: bool,
    ) -> Result<(), Error> {
        let context = context_of(envelope);
        let level = Level::BufferReusable;
        let request = self.send_request(peer, context, envelope.tag, bytes.len(), level);
        let mut engine = self.mode.engine.borrow_mut();
        let route = Route::Queue { queue: self.mode.queue, context: 0, on_error_only: true };
        engine.inject(&request, bytes, route, more)
    }

    /// Sends bytes and waits until they can be reused.
    ///
    /// If the driver fails for good meanwhile, the process is aborted: the kernel may hold the
    /// borrowed memory and nothing can be returned to.
    ///
    /// # Errors
    ///
    /// How the send failed.
    pub fn send_blocking(
        &self,
        peer: Peer,
        envelope: Envelope,
        bytes: &[u8],
        level: Level,
    ) -> Result<Status, Error> {
        let shape = Shape::contiguous(bytes.as_ptr().cast_mut(), bytes.len());
        let request =
            self.send_request(peer, context_of(envelope), envelope.tag, bytes.len(), level);
        self.block_on(|engine, route| {
            let memory = Memory { buffer: None, shape };
            let posted = engine.post_send(&request, memory, route, false);
            posted.map_err(|(error, _)| error)
        })
    }

    // ---- Receives ----

    fn receive_request(
        &self,
        source: Option<Peer>,
        context: u64,
        tag: u64,
        ignore: u64,
        capacity: usize,
    ) -> ReceiveRequest {
        let (endpoint, peer) = (self.mode.endpoint, source.map(|peer| peer.0));
        ReceiveRequest { endpoint, peer, context, tag, ignore, capacity: capacity as u64 }
    }

    fn post_receive_owned(
        &self,
        source: Option<Peer>,
        (context, tag, ignore): (u64, u64, u64),
        mut buffer: Buffer,
        route: Route,
    ) -> Result<OperationId, Rejected> {
        let shape = match buffer.shape_for_recv() {
            Ok(shape) => shape,
            Err(error) => return Err(Rejected { error: error.into(), buffer }),
        };
        let request = self.receive_request(source, context, tag, ignore, shape.len());
        let memory = Memory { buffer: Some(buffer), shape };
        let mut engine = self.mode.engine.borrow_mut();
        let id = engine.post_receive(&request, memory, route).map_err(rejected)?;
        Ok(OperationId(id))
    }

    fn receive_with_handle(
        &self,
        source: Option<Peer>,
        label: (u64, u64, u64),
        buffer: Buffer,
    ) -> Result<Operation, Rejected> {
        let Some(handle) = self.mode.engine.borrow_mut().new_handle() else {
            return Err(Rejected { error: Error::WouldBlock("cq_entries"), buffer });
        };
        match self.post_receive_owned(source, label, buffer, Route::Handle(handle)) {
            Ok(_) => Ok(Operation::pending(Rc::clone(&self.mode.engine), handle)),
            Err(rejected) => {
                self.mode.engine.borrow_mut().state.completions.handles.remove(handle);
                Err(rejected)
            }
        }
    }

    /// Receives a tagged message into a buffer that the operation owns until it ends.
    ///
    /// A message that is longer than the buffer ends in [`Error::Truncated`] with its beginning in
    /// the buffer.
    ///
    /// # Errors
    ///
    /// [`Rejected`] gives the buffer back.
    pub fn receive(
        &self,
        selector: Selector,
        buffer: impl Into<Buffer>,
    ) -> Result<Operation, Rejected> {
        let label = label_of(&selector);
        self.receive_with_handle(selector.source, label, buffer.into())
    }

    /// Receives a message that was sent without tag.
    ///
    /// # Errors
    ///
    /// [`Rejected`] gives the buffer back.
    pub fn receive_untagged(
        &self,
        source: Option<Peer>,
        buffer: impl Into<Buffer>,
    ) -> Result<Operation, Rejected> {
        self.receive_with_handle(source, (UNTAGGED, 0, 0), buffer.into())
    }

    /// Like [`Self::receive`], but the end goes to the completion queue, with `context`.
    ///
    /// # Errors
    ///
    /// [`Rejected`] gives the buffer back.
    pub fn post_receive(
        &self,
        selector: Selector,
        buffer: impl Into<Buffer>,
        context: u64,
    ) -> Result<OperationId, Rejected> {
        let route = Route::Queue { queue: self.mode.queue, context, on_error_only: false };
        self.post_receive_owned(selector.source, label_of(&selector), buffer.into(), route)
    }

    /// Receives into bytes of the caller and waits for the message.
    ///
    /// If the driver fails for good meanwhile, the process is aborted: the kernel may hold the
    /// borrowed memory and nothing can be returned to.
    ///
    /// # Errors
    ///
    /// How the receive failed.
    pub fn receive_blocking(&self, selector: Selector, into: &mut [u8]) -> Result<Status, Error> {
        let shape = Shape::contiguous(into.as_mut_ptr(), into.len());
        let (context, tag, ignore) = label_of(&selector);
        let request = self.receive_request(selector.source, context, tag, ignore, into.len());
        self.block_on(|engine, route| {
            let memory = Memory { buffer: None, shape };
            let posted = engine.post_receive(&request, memory, route);
            posted.map(Posted::Pending).map_err(|(error, _)| error)
        })
    }

    /// Posts an operation on borrowed memory and does not return before it has ended.
    fn block_on(
        &self,
        post: impl FnOnce(&mut Engine, Route) -> Result<Posted, Error>,
    ) -> Result<Status, Error> {
        let mut engine = self.mode.engine.borrow_mut();
        let handle = engine.new_handle().ok_or(Error::WouldBlock("cq_entries"))?;
        // From here on the engine may hold the caller's memory, also while a panic unwinds.
        let borrowed = Borrowed;
        let result = match post(&mut engine, Route::Handle(handle)) {
            Ok(Posted::Pending(_)) => {
                let ended = |engine: &mut Engine| {
                    let handles = &mut engine.state.completions.handles;
                    handles.get(handle)?.outcome.as_ref()?;
                    handles.remove(handle)?.outcome
                };
                match engine.wait(None, ended) {
                    Ok(Some((result, _))) => result,
                    Ok(None) => drop_and_abort(borrowed, "the wait ended early"),
                    Err(error) => drop_and_abort(borrowed, &error.to_string()),
                }
            }
            Ok(Posted::Sent(status, _)) => {
                engine.state.completions.handles.remove(handle);
                Ok(status)
            }
            Err(error) => {
                engine.state.completions.handles.remove(handle);
                Err(error)
            }
        };
        std::mem::forget(borrowed);
        result
    }

    // ---- Raw memory ----

    /// Sends the bytes of `pieces`, any number of them, in order.
    ///
    /// # Safety
    ///
    /// The memory stays valid and unchanged until the operation has ended, by completion or by
    /// the end of the endpoint.
    ///
    /// # Errors
    ///
    /// As for [`Self::send`].
    pub unsafe fn post_send_raw(
        &self,
        peer: Peer,
        envelope: Envelope,
        pieces: &[RawSpan],
        options: SendOptions,
        context: u64,
    ) -> Result<Option<OperationId>, Error> {
        // SAFETY: the caller promises that the memory is valid.
        let shape = unsafe { raw_shape(pieces) }?;
        let label = context_of(envelope);
        let request = self.send_request(peer, label, envelope.tag, shape.len(), options.level);
        let route = self.queue_route(context, options);
        let memory = Memory { buffer: None, shape };
        let posted = self
            .mode
            .engine
            .borrow_mut()
            .post_send(&request, memory, route, options.more)
            .map_err(|(error, _)| error)?;
        Ok(self.report_posted(posted, options, context))
    }

    /// Receives into `pieces`, any number of them, in order.
    ///
    /// # Safety
    ///
    /// The memory stays valid, and nothing else touches it, until the operation has ended.
    ///
    /// # Errors
    ///
    /// As for [`Self::receive`].
    pub unsafe fn post_receive_raw(
        &self,
        selector: Selector,
        pieces: &[RawSpan],
        context: u64,
    ) -> Result<OperationId, Error> {
        // SAFETY: the caller promises that the memory is valid.
        let shape = unsafe { raw_shape(pieces) }?;
        let (label, tag, ignore) = label_of(&selector);
        let request = self.receive_request(selector.source, label, tag, ignore, shape.len());
        let route = Route::Queue { queue: self.mode.queue, context, on_error_only: false };
        let memory = Memory { buffer: None, shape };
        let mut engine = self.mode.engine.borrow_mut();
        let posted = engine.post_receive(&request, memory, route);
        posted.map(OperationId).map_err(|(error, _)| error)
    }

    // ---- Progress, completions, events ----

    /// The message that a receive with `selector` would get now, left where it is. Makes
    /// progress first.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownPeer`] when the selector names none.
    pub fn peek(&self, selector: Selector) -> Result<Option<Status>, Error> {
        let (context, tag, ignore) = label_of(&selector);
        let request = self.receive_request(selector.source, context, tag, ignore, 0);
        let mut engine = self.mode.engine.borrow_mut();
        engine.progress()?;
        engine.peek(&request)
    }

    /// Cancels an operation of the completion queue that has not matched or gone out. `true`: its
    /// completion says [`Error::Cancelled`]; `false`: it ends as if nothing had been said.
    pub fn cancel(&self, operation: OperationId) -> bool {
        self.mode.engine.borrow_mut().cancel(operation.0)
    }

    /// Does what can be done without waiting. `true`: something happened.
    ///
    /// # Errors
    ///
    /// The driver failed for good.
    pub fn progress(&self) -> Result<bool, Error> {
        self.mode.engine.borrow_mut().progress()
    }

    /// Takes up to `limit` completions off the queue, oldest first, after one turn of progress;
    /// appends them to `into` and returns how many.
    ///
    /// # Errors
    ///
    /// The driver failed for good.
    pub fn completions(&self, into: &mut Vec<Completion>, limit: usize) -> Result<usize, Error> {
        let mut engine = self.mode.engine.borrow_mut();
        engine.progress()?;
        Ok(take_completions(&mut engine, self.mode.queue, into, limit))
    }

    /// Like [`Self::completions`], but waits for the first one, up to `timeout`; without one, or
    /// with one beyond what the clock can tell, for as long as it takes. A `limit` of 0 waits for
    /// nothing.
    ///
    /// # Errors
    ///
    /// The driver failed for good.
    pub fn wait(
        &self,
        into: &mut Vec<Completion>,
        limit: usize,
        timeout: Option<Duration>,
    ) -> Result<usize, Error> {
        let queue = self.mode.queue;
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut engine = self.mode.engine.borrow_mut();
        if limit == 0 {
            engine.progress()?;
            return Ok(0);
        }
        let got = engine.wait(deadline, |engine| {
            let got = take_completions(engine, queue, into, limit);
            (got > 0).then_some(got)
        })?;
        Ok(got.unwrap_or(0))
    }

    /// Takes the oldest event of the engine: peers that came, went or were refused.
    pub fn next_event(&self) -> Option<Event> {
        self.mode.engine.borrow_mut().state.completions.events.pop_front()
    }

    /// What the engine has counted.
    pub fn counters(&self) -> Counters {
        let engine = self.mode.engine.borrow();
        let driver = engine.driver_counters();
        let core = engine.state.core.counters;
        Counters {
            syscalls: driver.syscalls,
            copied_bytes: engine.state.completions.copied_bytes,
            segments_received: core.segments_received,
            frames_received: core.frames_received,
            unexpected_messages: core.unexpected_messages,
            zero_copy_sends: driver.zero_copy_sends,
            zero_copy_copied: driver.zero_copy_copied,
            registered_sends: driver.registered_sends,
            stale_completions: driver.stale_completions,
            cq_overflows: driver.cq_overflows,
            lane_failures: core.lane_failures,
            dropped_frames: core.stale_frames + core.unknown_endpoint,
            unexpected_bytes_max: engine.state.core.unexpected.held_bytes().1 as u64,
            staging_bytes: engine.state.core.staging.allocated_bytes() as u64,
        }
    }
}

/// Ends the process when it is dropped: borrowed memory is in flight, the kernel may write to it,
/// and whoever lent it is about to use it for something else.
struct Borrowed;

impl Drop for Borrowed {
    fn drop(&mut self) {
        std::process::abort();
    }
}

fn drop_and_abort(borrowed: Borrowed, cause: &str) -> ! {
    tracing::error!("the engine failed with a borrowed buffer in flight: {cause}");
    drop(borrowed);
    unreachable!("dropping it has ended the process")
}

fn rejected((error, buffer): (Error, Option<Buffer>)) -> Rejected {
    Rejected { error, buffer: buffer.unwrap_or_else(|| Buffer::Heap(Vec::new())) }
}

fn label_of(selector: &Selector) -> (u64, u64, u64) {
    (context_of(selector.envelope), selector.envelope.tag, selector.ignore)
}

fn take_completions(
    engine: &mut Engine,
    queue: u32,
    into: &mut Vec<Completion>,
    limit: usize,
) -> usize {
    let mut taken = 0;
    while taken < limit
        && let Some(completion) = engine.state.completions.pop(queue)
    {
        into.push(completion);
        taken += 1;
    }
    taken
}
