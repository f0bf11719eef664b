//! An engine that any thread posts to: under the lock of [`super::shared`], with the requests of
//! those who did not get it.
//!
//! ```text
//!  post ──> lock is free, nothing queued: posted at once, as on an owned engine
//!     └───> taken: a Request is queued; its holder posts it before it goes
//!  wait ──> one leads: lock, requests, a turn of the engine, unlock; the others sleep
//!     └───> what it waits for is read without the lock: OutsideQueue, Ticket
//! ```

mod dedicated;
mod inside;
mod lead;
mod neighbours;
mod place;
#[cfg(any(test, feature = "sim"))]
mod simulated;

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rustix::process::{Pid, getpid};

use self::dedicated::Dedicated;
use self::inside::{Copied, End, Inside, OneSidedPost, PutPost, Request};
pub(crate) use self::neighbours::Neighbours;
use self::place::{Place, Told};
use super::caretaker::{Cared, Membership, SendEngine};
use super::completions::{News, PostedTo};
use super::engine::{Engine, EngineState};
use super::outside::Ticket;
use super::post::{Memory, Posted, Refused};
use super::shared::{CombinerCounts, Guard};
use crate::driver::AnyDriver;
use crate::driver::lanes::{Driver, LaneKey};
use crate::proto::one_sided::origin::OneSidedRequest;
use crate::proto::receive::ReceiveRequest;
use crate::proto::send::SendRequest;
use crate::proto::table::Id;
use crate::types::{Error, OperationId, OperationName};

/// Requests that wait for the holder at most; beyond it posts are refused for the time being.
const REQUESTS_MAX: usize = 1 << 14;

/// Injects that wait for the holder, or for credit or room behind it, at most: nobody hears of their
/// end, so who posts them has no other measure of how many are under way.
const INJECTS_MAX: usize = 1 << 10;

/// An engine that any thread uses. Closed when the last reference is dropped.
pub struct SharedEngine {
    place: Arc<Place>,
    /// Has the caretaker look after it; `None`: nobody does.
    membership: Option<Membership>,
    /// Makes all progress; `None`: those who wait do.
    thread: Option<Dedicated>,
    next_request: AtomicU64,
    /// Posts wait for the lock, and leave no requests.
    is_in_turn: AtomicBool,
    /// See [`REQUESTS_MAX`].
    requests_max: usize,
    /// See [`INJECTS_MAX`].
    injects_max: usize,
    inject_limit: usize,
    /// Where the engine lives; a child of `fork` has a copy that nothing can be done with.
    process: Pid,
}

impl SharedEngine {
    /// Attaches a state to a driver whose calls any thread may make.
    pub(crate) fn new(
        state: Box<EngineState>,
        driver: AnyDriver<dyn Driver + Send>,
        sockets: Vec<(LaneKey, OwnedFd)>,
        neighbours: Arc<Neighbours>,
    ) -> Result<Self, Error> {
        let engine = SendEngine::attach(state, driver, sockets)?;
        let limit = engine.state.core.config().inject_limit;
        let place = Place::new(engine, neighbours);
        let place = place.map_err(|error| Error::system("cannot share an engine", error))?;
        let place = Arc::new(place);
        place.neighbours.join(&place);
        let cared: Arc<dyn Cared> = place.clone();
        let (membership, thread) = (Membership::new(cared), None);
        let (next_request, inject_limit, process) = (AtomicU64::new(0), limit as usize, getpid());
        Ok(Self {
            place,
            membership,
            thread,
            next_request,
            is_in_turn: AtomicBool::new(false),
            requests_max: REQUESTS_MAX,
            injects_max: INJECTS_MAX,
            inject_limit,
            process,
        })
    }

    /// Has a thread of its own make all progress, on `core` if there is one.
    pub(crate) fn dedicate(&mut self, core: Option<usize>) -> io::Result<()> {
        self.thread = Some(Dedicated::start(&self.place, core)?);
        // It has somebody who looks after it.
        self.membership = None;
        Ok(())
    }

    /// Posts wait for the lock from now on, and leave no requests.
    pub(crate) fn post_in_turn(&self) {
        self.is_in_turn.store(true, Ordering::Relaxed);
    }

    /// Whether this is the copy of a child of `fork`.
    pub(crate) fn is_inherited(&self) -> bool {
        self.process != getpid()
    }

    /// What the combiner counted, and how often a leader slept.
    pub(crate) fn counts(&self) -> (CombinerCounts, u64) {
        (self.place.shared.combiner().counts(), self.place.sleeps.load(Ordering::Relaxed))
    }

    /// Turns in which something happened by who waits for another engine of its domain.
    pub(crate) fn helped(&self) -> u64 {
        self.place.helped.load(Ordering::Relaxed)
    }

    fn after_call(&self, told: RefCell<Told>) {
        self.place.after_call(self.membership.as_ref(), told);
    }

    // ---- Calls that wait for the lock ----

    /// Makes a call with the engine. Panics if this thread is in it already.
    pub(crate) fn with<R>(&self, call: impl FnOnce(&mut Engine) -> R) -> R {
        self.with_inside(|inside| call(inside.engine()))
    }

    fn with_inside<R>(&self, call: impl FnOnce(&mut Inside) -> R) -> R {
        let news = RefCell::default();
        let answer = self.place.shared.enter(
            |inside| {
                let answer = call(inside);
                self.place.activity.count();
                inside.after(&self.place, &news);
                answer
            },
            |inside, request| self.place.apply(inside, request, &news),
        );
        self.after_call(news);
        answer
    }

    /// As [`Self::with`]; `None`, and no call, if this thread is in it already.
    pub(crate) fn with_to_let_go<R>(&self, call: impl FnOnce(&mut Engine) -> R) -> Option<R> {
        if self.is_inherited() || self.place.shared.combiner().is_held_here() {
            return None;
        }
        Some(self.with(call))
    }

    /// A turn, unless another thread is at it.
    pub(crate) fn progress(&self) -> Result<bool, Error> {
        if let Some(error) = self.place.failure.get() {
            return Err(error.clone());
        }
        let guard = match self.try_begin() {
            Ok(turn) => turn.guard,
            Err(None) => return Ok(false),
            Err(Some(mut guard)) => {
                // What is left is applied later, and its posters see to the leader.
                guard.drain(Inside::apply);
                guard
            }
        };
        let mut turn = Turn { engine: self, guard };
        let happened = turn.engine().progress();
        turn.end();
        if matches!(happened, Ok(true)) {
            // It may have taken what others sleep for, and does not watch for them any more.
            self.place.ring();
        }
        if let Err(error) = &happened {
            self.place.fail(error.clone());
        }
        happened
    }

    /// Those who wait for one of `classes` look again.
    pub(crate) fn tell(&self, classes: u32) {
        let news = News { classes, wakers: Vec::new() };
        self.place.tell(RefCell::new(Told { news, is_sooner: false }));
    }

    /// Cancels an operation of a queue; `false`: too late.
    pub(crate) fn cancel(&self, operation: OperationId) -> bool {
        self.with_inside(|inside| {
            let id = match operation.0 {
                OperationName::Posted(id) => Some(id),
                OperationName::Requested(number) => inside.names.get(&number).copied(),
            };
            id.is_some_and(|id| inside.engine().cancel(id))
        })
    }

    /// Cancels the operation of a ticket; `false`: too late.
    pub(crate) fn cancel_ticket(&self, ticket: &Ticket) -> bool {
        self.with(|engine| ticket.operation().is_some_and(|id| engine.cancel(id)))
    }

    // ---- Posts ----

    /// The engine for a post that may be made now: nobody is inside, and nothing waits before it.
    #[inline]
    fn try_begin(&self) -> Result<Turn<'_>, Option<Inner<'_>>> {
        let guard = self.place.shared.try_begin()?;
        Ok(Turn { engine: self, guard })
    }

    /// Ends a call behind which something is left to do.
    #[inline(never)]
    fn end_slowly(&self, mut guard: Inner<'_>) {
        let told = RefCell::default();
        guard.after(&self.place, &told);
        self.place.shared.end_slowly(guard, |inside, request| {
            self.place.apply(inside, request, &told);
        });
        self.after_call(told);
    }

    /// Whether no more requests may wait for the holder.
    fn is_full(&self, guard: Option<&Inner<'_>>) -> bool {
        guard.is_none() && self.place.shared.combiner().queue_len() >= self.requests_max
    }

    /// Whether no more injects may wait: for the holder, or for credit.
    fn is_full_of_injects(&self, guard: Option<&Inner<'_>>) -> bool {
        let waiting = || {
            let promised = self.place.promised.load(Ordering::Relaxed);
            self.place.shared.combiner().queue_len() + promised
        };
        guard.is_none() && waiting() >= self.injects_max
    }

    /// Posts `what` behind what waits, or leaves a request with it.
    fn post_behind<P, R>(
        &self,
        guard: Option<Inner<'_>>,
        what: P,
        inline: impl FnOnce(&mut Engine, P) -> R,
        queued: impl FnOnce(P) -> Request,
    ) -> Option<R> {
        // A callback of the engine cannot wait for it.
        let is_callback = || guard.is_none() && self.place.shared.combiner().is_held_here();
        if self.is_in_turn.load(Ordering::Relaxed) && !is_callback() {
            if let Some(guard) = guard {
                self.end_slowly(guard);
            }
            return Some(self.with(|engine| inline(engine, what)));
        }
        let news = RefCell::default();
        // One of the two takes it.
        let what = Cell::new(Some(what));
        let take = || what.take().expect("one of the two is called, once");
        let posted = self.place.shared.post_behind(
            guard,
            |inside| {
                let answer = inline(inside.engine(), take());
                self.place.activity.count();
                inside.after(&self.place, &news);
                answer
            },
            || queued(take()),
            |inside, request| self.place.apply(inside, request, &news),
        );
        self.after_call(news);
        match posted {
            super::shared::Posted::Inline(answer) => Some(answer),
            super::shared::Posted::Queued => None,
        }
    }

    /// As [`Self::post_behind`], for what has memory to give back.
    fn post_memory_behind<R>(
        &self,
        guard: Option<Inner<'_>>,
        memory: Memory,
        inline: impl FnOnce(&mut Engine, Memory) -> Result<R, Refused>,
        queued: impl FnOnce(Memory) -> Request,
    ) -> Result<Option<R>, Refused> {
        if self.is_full(guard.as_ref()) {
            if planted!(DropAtFullQueue) {
                return Ok(None);
            }
            return Err((Error::WouldBlock(OTHERS), memory));
        }
        self.post_behind(guard, memory, inline, queued).transpose()
    }

    fn new_request(&self) -> u64 {
        self.next_request.fetch_add(1, Ordering::Relaxed)
    }

    /// Posts a send whose end goes to a queue. `None`: it is over.
    #[inline]
    pub(crate) fn post_send(
        &self,
        request: &SendRequest,
        memory: Memory,
        to: PostedTo<u32>,
        more: bool,
    ) -> Result<Option<OperationId>, Refused> {
        match self.try_begin() {
            Ok(mut turn) => {
                let posted = turn.engine().post_send_to(request, memory, to, more);
                turn.end();
                Ok(posted?.map(named))
            }
            Err(guard) => self.leave_send(guard, request, memory, to, more),
        }
    }

    #[cold]
    #[inline(never)]
    fn leave_send(
        &self,
        guard: Option<Inner<'_>>,
        request: &SendRequest,
        memory: Memory,
        to: PostedTo<u32>,
        more: bool,
    ) -> Result<Option<OperationId>, Refused> {
        let mut number = 0;
        let posted = self.post_memory_behind(
            guard,
            memory,
            |engine, memory| engine.post_send_to(request, memory, to, more),
            |memory| {
                number = self.new_request();
                let end = End::Queue { to, number };
                Request::Send { request: *request, memory, end, more }
            },
        )?;
        Ok(match posted {
            Some(posted) => posted.map(named),
            None => Some(OperationId(OperationName::Requested(number))),
        })
    }

    /// Posts a receive whose end goes to a queue.
    #[inline]
    pub(crate) fn post_receive(
        &self,
        request: &ReceiveRequest,
        memory: Memory,
        to: PostedTo<u32>,
    ) -> Result<OperationId, Refused> {
        match self.try_begin() {
            Ok(mut turn) => {
                let posted = turn.engine().post_receive(request, memory, to.route());
                turn.end();
                posted.map(named)
            }
            Err(guard) => self.leave_receive(guard, request, memory, to),
        }
    }

    #[cold]
    #[inline(never)]
    fn leave_receive(
        &self,
        guard: Option<Inner<'_>>,
        request: &ReceiveRequest,
        memory: Memory,
        to: PostedTo<u32>,
    ) -> Result<OperationId, Refused> {
        let mut number = 0;
        let posted = self.post_memory_behind(
            guard,
            memory,
            |engine, memory| engine.post_receive(request, memory, to.route()),
            |memory| {
                number = self.new_request();
                Request::Receive { request: *request, memory, end: End::Queue { to, number } }
            },
        )?;
        Ok(posted.map_or(OperationId(OperationName::Requested(number)), named))
    }

    /// Posts a send of a copy of `bytes`, of which only a failure is reported.
    #[inline]
    pub(crate) fn inject(
        &self,
        request: &SendRequest,
        bytes: &[u8],
        to: PostedTo<u32>,
        more: bool,
    ) -> Result<(), Error> {
        match self.try_begin() {
            Ok(mut turn) => {
                let posted = turn.engine().inject(request, bytes, to.route(), more);
                turn.end();
                posted
            }
            Err(guard) => self.leave_inject(guard, request, bytes, to, more),
        }
    }

    #[cold]
    #[inline(never)]
    fn leave_inject(
        &self,
        guard: Option<Inner<'_>>,
        request: &SendRequest,
        bytes: &[u8],
        to: PostedTo<u32>,
        more: bool,
    ) -> Result<(), Error> {
        if bytes.len() > self.inject_limit {
            return Err(super::post::beyond_inject_limit(bytes.len(), self.inject_limit));
        }
        if self.is_full_of_injects(guard.as_ref()) {
            return Err(Error::WouldBlock(OTHERS));
        }
        let posted = self.post_behind(
            guard,
            (),
            |engine, ()| engine.inject(request, bytes, to.route(), more),
            |()| Request::Inject { request: *request, bytes: Copied::of(bytes), to, more },
        );
        posted.unwrap_or(Ok(()))
    }

    /// Posts a send with a ticket.
    pub(crate) fn start_send(
        &self,
        request: &SendRequest,
        memory: Memory,
        more: bool,
    ) -> Result<Posted<Arc<Ticket>>, Refused> {
        let ticket = Arc::new(Ticket::new());
        let posted = match self.try_begin() {
            Ok(mut turn) => {
                let posted = turn.engine().start_send(request, memory, more, Some(&ticket));
                turn.end();
                posted.map(Some)
            }
            Err(guard) => self.post_memory_behind(
                guard,
                memory,
                |engine, memory| engine.start_send(request, memory, more, Some(&ticket)),
                |memory| {
                    let end = End::Ticket(Arc::clone(&ticket));
                    Request::Send { request: *request, memory, end, more }
                },
            ),
        };
        Ok(match posted? {
            Some(Posted::Sent(status, buffer)) => Posted::Sent(status, buffer),
            Some(Posted::Pending(_)) | None => Posted::Pending(ticket),
        })
    }

    /// Posts a receive with a ticket.
    pub(crate) fn start_receive(
        &self,
        request: &ReceiveRequest,
        memory: Memory,
    ) -> Result<Arc<Ticket>, Refused> {
        let ticket = Arc::new(Ticket::new());
        let posted = match self.try_begin() {
            Ok(mut turn) => {
                let posted = turn.engine().start_receive(request, memory, Some(&ticket));
                turn.end();
                posted.map(Some)
            }
            Err(guard) => self.post_memory_behind(
                guard,
                memory,
                |engine, memory| engine.start_receive(request, memory, Some(&ticket)),
                |memory| {
                    let end = End::Ticket(Arc::clone(&ticket));
                    Request::Receive { request: *request, memory, end }
                },
            ),
        };
        posted?;
        Ok(ticket)
    }

    /// Posts an operation on the memory of a peer whose end goes to a queue.
    #[inline]
    pub(crate) fn post_one_sided(
        &self,
        request: OneSidedRequest,
        memory: Memory,
        to: PostedTo<u32>,
        more: bool,
    ) -> Result<OperationId, Refused> {
        match self.try_begin() {
            Ok(mut turn) => {
                let posted = turn.engine().post_one_sided_to(request, memory, to, more);
                turn.end();
                posted.map(named)
            }
            Err(guard) => self.leave_one_sided(guard, request, memory, to, more),
        }
    }

    #[cold]
    #[inline(never)]
    fn leave_one_sided(
        &self,
        guard: Option<Inner<'_>>,
        request: OneSidedRequest,
        memory: Memory,
        to: PostedTo<u32>,
        more: bool,
    ) -> Result<OperationId, Refused> {
        if self.is_full(guard.as_ref()) {
            return Err((Error::WouldBlock(OTHERS), memory));
        }
        let mut number = 0;
        let posted = self.post_behind(
            guard,
            (request, memory),
            |engine, (request, memory)| engine.post_one_sided_to(request, memory, to, more),
            |(request, memory)| {
                number = self.new_request();
                let end = End::Queue { to, number };
                let post = OneSidedPost { request, memory, end, flushed_to: to, more };
                Request::OneSided(Box::new(post))
            },
        );
        Ok(posted.transpose()?.map_or(OperationId(OperationName::Requested(number)), named))
    }

    /// Posts an operation on the memory of a peer with a ticket. The failure of the flush that is
    /// before one with a fence is told to `flushed_to`.
    pub(crate) fn start_one_sided(
        &self,
        request: OneSidedRequest,
        memory: Memory,
        more: bool,
        flushed_to: PostedTo<u32>,
    ) -> Result<Arc<Ticket>, Refused> {
        let ticket = Arc::new(Ticket::new());
        let start = |engine: &mut Engine, (request, memory)| {
            engine.start_one_sided(request, memory, more, flushed_to, Some(&ticket)).map(drop)
        };
        match self.try_begin() {
            Ok(mut turn) => {
                let started = start(turn.engine(), (request, memory));
                turn.end();
                started?;
            }
            Err(guard) if self.is_full(guard.as_ref()) => {
                return Err((Error::WouldBlock(OTHERS), memory));
            }
            Err(guard) => {
                let queued = |(request, memory)| {
                    let end = End::Ticket(Arc::clone(&ticket));
                    let post = OneSidedPost { request, memory, end, flushed_to, more };
                    Request::OneSided(Box::new(post))
                };
                self.post_behind(guard, (request, memory), start, queued).transpose()?;
            }
        }
        Ok(ticket)
    }

    /// Puts a copy of `bytes`, of which only a failure is reported.
    #[inline]
    pub(crate) fn inject_put(
        &self,
        request: OneSidedRequest,
        bytes: &[u8],
        to: PostedTo<u32>,
        more: bool,
    ) -> Result<(), Error> {
        match self.try_begin() {
            Ok(mut turn) => {
                let posted = turn.engine().inject_put(request, bytes, to, more);
                turn.end();
                posted
            }
            Err(guard) => self.leave_put(guard, request, bytes, to, more),
        }
    }

    #[cold]
    #[inline(never)]
    fn leave_put(
        &self,
        guard: Option<Inner<'_>>,
        request: OneSidedRequest,
        bytes: &[u8],
        to: PostedTo<u32>,
        more: bool,
    ) -> Result<(), Error> {
        if bytes.len() > self.inject_limit {
            return Err(super::post::beyond_inject_limit(bytes.len(), self.inject_limit));
        }
        if self.is_full_of_injects(guard.as_ref()) {
            return Err(Error::WouldBlock(OTHERS));
        }
        let posted = self.post_behind(
            guard,
            request,
            |engine, request| engine.inject_put(request, bytes, to, more),
            |request| {
                let post = PutPost { request, bytes: Copied::of(bytes), to, more };
                Request::InjectPut(Box::new(post))
            },
        );
        posted.unwrap_or(Ok(()))
    }
}

/// The lock of an engine.
type Inner<'a> = Guard<'a, Inside, Request>;

/// What a post is refused for.
const OTHERS: &str = "posts of other threads";

#[inline]
fn named(id: Id) -> OperationId {
    OperationId(OperationName::Posted(id))
}

/// The calling thread has the engine, for a call that nothing waits before.
struct Turn<'a> {
    engine: &'a SharedEngine,
    guard: Inner<'a>,
}

impl Turn<'_> {
    #[inline]
    fn engine(&mut self) -> &mut Engine {
        self.guard.engine()
    }

    /// Lets go of the engine, and sees to those who wait for what was done, or for it.
    #[inline]
    fn end(self) {
        let Self { engine, guard } = self;
        let place = &*engine.place;
        place.activity.count();
        let ended = if guard.is_quiet() { place.shared.end(guard) } else { Err(guard) };
        match ended {
            Ok(()) => {
                if place.activity.wakes_caretaker()
                    && let Some(caretaker) = &engine.membership
                {
                    caretaker.wake();
                }
            }
            Err(guard) => engine.end_slowly(guard),
        }
    }
}

/// An engine whose last reference is dropped closes.
impl Drop for SharedEngine {
    fn drop(&mut self) {
        if self.is_inherited() {
            // As for an owned one: the copy is left as it is, with its descriptors.
            let thread = self.thread.take();
            std::mem::forget((self.membership.take(), thread, Arc::clone(&self.place)));
            return;
        }
        self.place.neighbours.leave(&self.place);
        // Ends when the caretaker knows the place no more, and the thread has ended.
        self.membership = None;
        self.thread = None;
        let take = |inside: &mut Inside| inside.engine.take();
        // All that was posted is applied before; nobody is left to post more.
        let engine = self.place.shared.enter(take, |inside, request| {
            if inside.engine.is_some() {
                inside.apply(request);
            }
        });
        if let Some(engine) = engine {
            engine.into_engine().close();
        }
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
