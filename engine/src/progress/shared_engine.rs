//! An engine that any thread posts to: under the lock of a [`Shared`], with the requests of those
//! who did not get it.
//!
//! ```text
//!  post ──> lock is free, nothing queued: posted at once, as on an owned engine
//!     └───> taken: a Request is queued; its holder posts it before it goes
//!  wait ──> one leads: lock, requests, a turn of the engine, unlock; the others sleep
//!     └───> what it waits for is read without the lock: OutsideQueue, Ticket
//! ```

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::Waker;
use std::time::{Duration, Instant};

use crossbeam_utils::Backoff;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::process::{Pid, getpid};

use super::caretaker::{Activity, Cared, Membership, SendEngine};
use super::completions::{News, PostedTo};
use super::engine::{Engine, EngineState, NOTHING_DUE};
use super::outside::Ticket;
use super::post::{Memory, Posted, Refused, kind_of};
use super::shared::{Applied, CombinerCounts, Doorbell, Keys, Progress, Shared};
use super::wait_object::WaitObject;
use crate::driver::AnyDriver;
use crate::driver::lanes::{Driver, LaneKey};
use crate::proto::receive::ReceiveRequest;
use crate::proto::send::SendRequest;
use crate::proto::table::Id;
use crate::types::{Error, OperationId, OperationKind, OperationName};

/// Requests that wait for the holder at most; beyond it posts are refused for the time being.
const REQUESTS_MAX: usize = 1 << 14;
/// Between two looks at what can be seen under the lock alone.
const LOOK: Duration = Duration::from_micros(200);
/// Names of requests that are kept before those are looked for that have ended.
const NAMES_MIN: usize = 1024;

/// Where the end of a request goes.
#[derive(Debug)]
enum End {
    Queue { to: PostedTo<u32>, number: u64 },
    Ticket(Arc<Ticket>),
}

/// A post that is left to the holder.
#[derive(Debug)]
enum Request {
    Send { request: SendRequest, memory: Memory, end: End, more: bool },
    Receive { request: ReceiveRequest, memory: Memory, end: End },
}

/// What is to be said without the lock.
#[derive(Debug, Default)]
struct Told {
    news: News,
    /// Who sleeps does so for too long.
    is_sooner: bool,
}

/// What is under the lock.
struct Inside {
    /// `None`: it is being closed.
    engine: Option<SendEngine>,
    /// Operations by the names that their posters gave to their requests.
    names: HashMap<u64, Id>,
    names_max: usize,
    /// Until when the leader sleeps, by the engine's clock; `None`: it does not.
    armed_until_ns: Option<u64>,
    /// It is to wake before that.
    wants_wake: bool,
}

const PRESENT: &str = "the engine is taken out only by drop, when nobody has a reference";

impl Inside {
    fn engine(&mut self) -> &mut Engine {
        self.engine.as_mut().expect(PRESENT)
    }

    /// After each call: a leader that sleeps is to see what it made, and those outside their ends.
    fn after(&mut self, place: &Place, told: &RefCell<Told>) {
        if self.engine.is_none() {
            return;
        }
        if self.armed_until_ns.is_some() && !place.has_sleepers() {
            self.armed_until_ns = None;
        }
        if let Some(until_ns) = self.armed_until_ns {
            let engine = self.engine();
            let is_sooner = match engine.arm() {
                Ok(left) => engine.state.now_ns + nanoseconds(left) < until_ns,
                Err(_) => true,
            };
            self.wants_wake |= is_sooner;
            told.borrow_mut().is_sooner |= is_sooner;
        }
        let latest = self.engine().state.completions.take_news();
        if !latest.is_empty() {
            let news = &mut told.borrow_mut().news;
            news.classes |= latest.classes;
            news.wakers.extend(latest.wakers);
        }
    }

    /// Posts what was left to the holder.
    fn apply(&mut self, request: Request) -> Applied<Request> {
        match request {
            Request::Send { request, memory, end, more } => {
                match self.post_send(&request, memory, &end, more) {
                    Err((Error::WouldBlock(_), memory)) => {
                        return Applied::NotNow(Request::Send { request, memory, end, more });
                    }
                    Err(refused) => self.report_refused(OperationKind::Send, end, refused),
                    Ok(()) => {}
                }
            }
            Request::Receive { request, memory, end } => {
                match self.post_receive(&request, memory, &end) {
                    Err((Error::WouldBlock(_), memory)) => {
                        return Applied::NotNow(Request::Receive { request, memory, end });
                    }
                    Err(refused) => self.report_refused(kind_of(&request), end, refused),
                    Ok(()) => {}
                }
            }
        }
        Applied::Done
    }

    fn post_send(
        &mut self,
        request: &SendRequest,
        memory: Memory,
        end: &End,
        more: bool,
    ) -> Result<(), Refused> {
        match end {
            End::Queue { to, number } => {
                if let Some(id) = self.engine().post_send_to(request, memory, *to, more)? {
                    self.name(*number, id);
                }
            }
            End::Ticket(ticket) => {
                let posted = self.engine().start_send(request, memory, more, Some(ticket))?;
                if let Posted::Sent(status, buffer) = posted {
                    self.engine().state.completions.end_ticket(ticket, Ok(status), buffer);
                }
            }
        }
        Ok(())
    }

    fn post_receive(
        &mut self,
        request: &ReceiveRequest,
        memory: Memory,
        end: &End,
    ) -> Result<(), Refused> {
        match end {
            End::Queue { to, number } => {
                let id = self.engine().post_receive(request, memory, to.route())?;
                self.name(*number, id);
            }
            End::Ticket(ticket) => {
                self.engine().start_receive(request, memory, Some(ticket))?;
            }
        }
        Ok(())
    }

    fn report_refused(&mut self, kind: OperationKind, end: End, (error, memory): Refused) {
        let completions = &mut self.engine().state.completions;
        match end {
            End::Queue { to, .. } => completions.push_refused(to, kind, error, memory.buffer),
            End::Ticket(ticket) => completions.end_ticket(&ticket, Err(error), memory.buffer),
        }
    }

    /// Its poster knows an operation by the number of its request.
    fn name(&mut self, number: u64, id: Id) {
        self.names.insert(number, id);
        if self.names.len() > self.names_max {
            let engine = self.engine.as_ref().expect(PRESENT);
            let operations = engine.state.core.operations();
            self.names.retain(|_, id| operations.get(*id).is_some());
            self.names_max = (2 * self.names.len()).max(NAMES_MIN);
        }
    }
}

/// Wakes the leader out of its sleep.
struct Bell(OwnedFd);

impl Doorbell<Inside> for Bell {
    fn needs_wake(&self, inside: &Inside) -> bool {
        inside.wants_wake
    }

    fn ring(&self) {
        // Full is loud enough.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }
}

/// What threads and the caretaker share.
struct Place {
    shared: Shared<Inside, Request, Bell>,
    activity: Activity,
    /// Readable when a driver that was armed has something.
    wake_fd: OwnedFd,
    /// A copy of that, for the caretaker.
    wake_fds: Arc<[OwnedFd]>,
    /// What threads and tasks sleep by that do not wait, once they do.
    wait_object: OnceLock<WaitObject>,
    /// What ended the driver.
    failure: OnceLock<Error>,
    /// Sleeps of leaders. Stored by the leader.
    sleeps: AtomicU64,
    spin: Duration,
}

impl Cared for Place {
    fn steps(&self) -> u64 {
        2 * self.activity.steps() + u64::from(self.shared.has_leader())
    }

    fn park(&self, steps: u64) -> bool {
        self.activity.park(|| self.steps() == steps)
    }

    fn is_parked(&self) -> bool {
        self.activity.is_parked()
    }

    fn wake_fds(&self) -> Arc<[OwnedFd]> {
        Arc::clone(&self.wake_fds)
    }

    fn tasks_sleep_by(&self) -> Option<BorrowedFd<'_>> {
        self.wait_object.get().filter(|it| it.has_tasks()).map(WaitObject::fd)
    }

    fn wake_tasks(&self) -> bool {
        self.wait_object.get().is_some_and(WaitObject::wake_tasks)
    }

    fn turn(&self) -> Option<Result<(bool, Option<Duration>), Error>> {
        let news = RefCell::default();
        let turn = self.shared.try_enter(
            |inside| {
                let turn = inside.engine.as_mut().map(|engine| background_turn(engine));
                inside.after(self, &news);
                turn
            },
            |inside, request| inside.apply(request),
        );
        self.tell(news);
        turn.flatten()
    }
}

impl Place {
    /// Whether anybody sleeps until the engine has something.
    fn has_sleepers(&self) -> bool {
        self.shared.has_sleeping_leader()
            || self.wait_object.get().is_some_and(WaitObject::is_armed)
    }

    /// Those outside learn what there is for them. Without the lock: a waker may do anything.
    #[inline]
    fn tell(&self, told: RefCell<Told>) {
        let Told { news: News { classes, wakers }, is_sooner } = told.into_inner();
        if let Some(keys) = Keys::of_classes(classes) {
            self.shared.notify(keys);
        }
        if (classes != 0 || is_sooner)
            && let Some(wait_object) = self.wait_object.get()
        {
            wait_object.ring();
        }
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Takes note of a driver that has failed for good: there is nothing left to wait for.
    fn fail(&self, error: Error) {
        if self.failure.set(error).is_ok() {
            self.shared.notify(Keys::ALL);
        }
    }
}

/// A turn of the caretaker, who sleeps by the driver's descriptor afterwards.
fn background_turn(engine: &mut Engine) -> Result<(bool, Option<Duration>), Error> {
    let (happened, due_in) = engine.background_turn()?;
    let left = engine.arm()?;
    let is_due = left < NOTHING_DUE;
    Ok((happened, due_in.into_iter().chain(is_due.then_some(left)).min()))
}

/// An engine that any thread uses. Closed when the last reference is dropped.
pub struct SharedEngine {
    place: Arc<Place>,
    /// Has the caretaker look after it; `None`: nobody does.
    membership: Option<Membership>,
    next_request: AtomicU64,
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
    ) -> Result<Self, Error> {
        let failed = |error: io::Error| Error::system("cannot share an engine", error);

        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let bell = Bell(bell.map_err(|errno| failed(errno.into()))?);
        let engine = SendEngine::attach(state, driver, sockets)?;
        let wake_fd = engine.wake_fd().map_err(failed)?;
        let wake_fds = Arc::new([wake_fd.try_clone().map_err(failed)?]);
        let (spin, limit) = (engine.state.config.spin, engine.state.core.config().inject_limit);
        let inside = Inside {
            engine: Some(engine),
            names: HashMap::new(),
            names_max: NAMES_MIN,
            armed_until_ns: None,
            wants_wake: false,
        };
        let place = Arc::new(Place {
            shared: Shared::new(inside, bell),
            activity: Activity::default(),
            wake_fd,
            wake_fds,
            wait_object: OnceLock::new(),
            failure: OnceLock::new(),
            sleeps: AtomicU64::new(0),
            spin,
        });
        let cared: Arc<dyn Cared> = place.clone();
        let membership = Membership::new(cared);
        let (next_request, inject_limit, process) = (AtomicU64::new(0), limit as usize, getpid());
        Ok(Self { place, membership, next_request, inject_limit, process })
    }

    /// Whether this is the copy of a child of `fork`.
    pub(crate) fn is_inherited(&self) -> bool {
        self.process != getpid()
    }

    /// What the combiner counted, and how often a leader slept.
    pub(crate) fn counts(&self) -> (CombinerCounts, u64) {
        (self.place.shared.combiner().counts(), self.place.sleeps.load(Ordering::Relaxed))
    }

    fn after_call(&self, told: RefCell<Told>) {
        if self.place.activity.wakes_caretaker()
            && let Some(membership) = &self.membership
        {
            membership.wake();
        }
        self.place.tell(told);
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
            |inside, request| inside.apply(request),
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
        if let Some(wait_object) = self.place.wait_object.get() {
            // This may take what others sleep for.
            wait_object.ring();
        }
        let news = RefCell::default();
        let turn = self.place.shared.try_enter(
            |inside| {
                let turn = inside.engine().progress();
                self.place.activity.count();
                inside.after(&self.place, &news);
                turn
            },
            |inside, request| inside.apply(request),
        );
        self.after_call(news);
        match turn {
            Some(Err(error)) => {
                self.place.fail(error.clone());
                Err(error)
            }
            Some(turn) => turn,
            None => Ok(false),
        }
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

    /// Posts `memory` at once, or leaves a request with it.
    #[inline]
    fn post<R>(
        &self,
        memory: Memory,
        inline: impl FnOnce(&mut Engine, Memory) -> R,
        queued: impl FnOnce(Memory) -> Request,
    ) -> Result<Option<R>, Refused> {
        if self.place.shared.combiner().queue_len() >= REQUESTS_MAX {
            return Err((Error::WouldBlock("posts of other threads"), memory));
        }
        let news = RefCell::default();
        // One of the two takes it.
        let memory = std::cell::Cell::new(Some(memory));
        let take = || memory.take().expect("one of the two is called, once");
        let posted = self.place.shared.post(
            |inside| {
                let answer = inline(inside.engine(), take());
                self.place.activity.count();
                inside.after(&self.place, &news);
                answer
            },
            || queued(take()),
            |inside, request| {
                let applied = inside.apply(request);
                self.place.activity.count();
                inside.after(&self.place, &news);
                applied
            },
        );
        self.after_call(news);
        Ok(match posted {
            super::shared::Posted::Inline(answer) => Some(answer),
            super::shared::Posted::Queued => None,
        })
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
        let mut number = 0;
        let posted = self.post(
            memory,
            |engine, memory| engine.post_send_to(request, memory, to, more),
            |memory| {
                number = self.new_request();
                let end = End::Queue { to, number };
                Request::Send { request: *request, memory, end, more }
            },
        )?;
        match posted {
            Some(posted) => Ok(posted?.map(|id| OperationId(OperationName::Posted(id)))),
            None => Ok(Some(OperationId(OperationName::Requested(number)))),
        }
    }

    /// Posts a receive whose end goes to a queue.
    #[inline]
    pub(crate) fn post_receive(
        &self,
        request: &ReceiveRequest,
        memory: Memory,
        to: PostedTo<u32>,
    ) -> Result<OperationId, Refused> {
        let mut number = 0;
        let posted = self.post(
            memory,
            |engine, memory| engine.post_receive(request, memory, to.route()),
            |memory| {
                number = self.new_request();
                Request::Receive { request: *request, memory, end: End::Queue { to, number } }
            },
        )?;
        Ok(OperationId(match posted {
            Some(posted) => OperationName::Posted(posted?),
            None => OperationName::Requested(number),
        }))
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
        if bytes.len() > self.inject_limit {
            return Err(super::post::beyond_inject_limit(bytes.len(), self.inject_limit));
        }
        let posted = self.post(
            Memory::nothing(),
            |engine, _| engine.inject(request, bytes, to.route(), more),
            |_| {
                let (memory, end) = (Memory::copy_of(bytes), End::Queue { to, number: u64::MAX });
                Request::Send { request: *request, memory, end, more }
            },
        );
        match posted {
            Ok(posted) => posted.unwrap_or(Ok(())),
            Err((error, _)) => Err(error),
        }
    }

    /// Posts a send with a ticket.
    pub(crate) fn start_send(
        &self,
        request: &SendRequest,
        memory: Memory,
        more: bool,
    ) -> Result<Posted<Arc<Ticket>>, Refused> {
        let ticket = Arc::new(Ticket::new());
        let posted = self.post(
            memory,
            |engine, memory| engine.start_send(request, memory, more, Some(&ticket)),
            |memory| {
                let end = End::Ticket(Arc::clone(&ticket));
                Request::Send { request: *request, memory, end, more }
            },
        )?;
        Ok(match posted.transpose()? {
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
        let posted = self.post(
            memory,
            |engine, memory| engine.start_receive(request, memory, Some(&ticket)),
            |memory| {
                let end = End::Ticket(Arc::clone(&ticket));
                Request::Receive { request: *request, memory, end }
            },
        )?;
        posted.transpose()?;
        Ok(ticket)
    }

    // ---- Waiting ----

    /// Waits until `ready` answers, which is notified for one of `classes`; `None`: `deadline` has
    /// passed.
    pub(crate) fn wait_for<R>(
        &self,
        classes: u32,
        deadline: Option<Instant>,
        mut ready: impl FnMut() -> Option<R>,
    ) -> Result<Option<R>, Error> {
        let failure = &self.place.failure;
        let keys = Keys::of_classes(classes).unwrap_or(Keys::ALL);
        let mut leading = Leading::new(self);
        let answer = self.place.shared.wait(
            keys,
            deadline,
            || match ready() {
                Some(answer) => Some(Ok(answer)),
                None => failure.get().map(|error| Err(error.clone())),
            },
            &mut leading,
        );
        // Nobody may lead any more.
        self.after_call(RefCell::default());
        if let Some(wait_object) = self.place.wait_object.get() {
            // Those who sleep by it relied on the leader.
            wait_object.ring();
        }
        answer.transpose()
    }

    /// How long to look before sleeping.
    pub(crate) fn spin(&self) -> Duration {
        self.place.spin
    }

    /// What threads can sleep by that do not wait.
    pub(crate) fn wait_object(&self) -> io::Result<&WaitObject> {
        let known = &self.place.wait_object;
        if known.get().is_none() {
            let wait_object = WaitObject::new(self.place.wake_fd.try_clone()?)?;
            // Another thread may have been first.
            let _ = known.set(wait_object);
        }
        known.get().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Prepares the engine for a sleep by the wait object. Behind this the caller looks whether
    /// there is something to sleep for.
    pub(crate) fn arm(&self) -> Result<(), Error> {
        let failed = |error| Error::system("cannot wait by a descriptor", error);
        let wait_object = self.wait_object().map_err(failed)?;
        let left = self.with_inside(|inside| {
            let left = inside.engine().arm()?;
            inside.armed_until_ns = Some(inside.engine().state.now_ns + nanoseconds(left));
            Ok::<_, Error>(left)
        })?;
        wait_object.arm(left).map_err(failed)
    }

    /// A task sleeps until there is something to do. `false`: there is nobody to wake it.
    pub(crate) fn wake_when_readable(&self, waker: &Waker) -> bool {
        let Some(membership) = &self.membership else { return false };
        if let Err(error) = self.arm() {
            tracing::debug!("a task is polled again at once: {error}");
            return false;
        }
        let Ok(wait_object) = self.wait_object() else { return false };
        wait_object.wake_when_readable(waker);
        membership.wake();
        true
    }

    /// Makes progress until `done`, which is asked under the lock, answers, or `deadline` passes.
    pub(crate) fn wait<T>(
        &self,
        deadline: Option<Instant>,
        mut done: impl FnMut(&mut Engine) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        loop {
            if let Some(answer) = self.with(&mut done) {
                return Ok(Some(answer));
            }
            let now = Instant::now();
            if deadline.is_some_and(|deadline| now >= deadline) {
                return Ok(None);
            }
            let until = deadline.map_or(now + LOOK, |deadline| deadline.min(now + LOOK));
            self.wait_for(0, Some(until), || None::<()>)?;
        }
    }
}

/// An engine whose last reference is dropped closes.
impl Drop for SharedEngine {
    fn drop(&mut self) {
        if self.is_inherited() {
            // As for an owned one: the copy is left as it is, with its descriptors.
            std::mem::forget((self.membership.take(), Arc::clone(&self.place)));
            return;
        }
        // Ends when the caretaker knows the place no more.
        self.membership = None;
        let take = |inside: &mut Inside| inside.engine.take();
        let engine = self.place.shared.enter(take, |inside, request| match inside.engine {
            Some(_) => inside.apply(request),
            None => Applied::Done,
        });
        if let Some(engine) = engine {
            engine.into_engine().close();
        }
    }
}

/// What a leader does.
struct Leading<'a> {
    engine: &'a SharedEngine,
    news: RefCell<Told>,
    turns: u32,
    idle_since: Option<Instant>,
    backoff: Backoff,
}

impl<'a> Leading<'a> {
    fn new(engine: &'a SharedEngine) -> Self {
        let (news, backoff) = (RefCell::default(), Backoff::new());
        Self { engine, news, turns: 0, idle_since: None, backoff }
    }
}

impl Progress<Inside, Request> for Leading<'_> {
    /// How long to sleep.
    type Plan = Duration;

    fn apply(&mut self, inside: &mut Inside, request: Request) -> Applied<Request> {
        inside.apply(request)
    }

    fn progress(&mut self, inside: &mut Inside) -> bool {
        (inside.armed_until_ns, inside.wants_wake) = (None, false);
        let happened = match inside.engine().progress() {
            Ok(happened) => happened,
            Err(error) => {
                self.engine.place.fail(error);
                true
            }
        };
        self.engine.place.activity.count();
        inside.after(&self.engine.place, &self.news);
        if happened {
            (self.idle_since, self.turns) = (None, 0);
            self.backoff.reset();
        }
        happened
    }

    fn arm(&mut self, inside: &mut Inside) -> Option<Duration> {
        self.turns += 1;
        if !self.turns.is_multiple_of(8) {
            return None;
        }
        let now = Instant::now();
        let since = *self.idle_since.get_or_insert(now);
        if now - since < self.engine.place.spin {
            return None;
        }
        // A driver that cannot is found out by the next turn.
        let left = inside.engine().arm().ok().filter(|left| !left.is_zero())?;
        inside.armed_until_ns = Some(inside.engine().state.now_ns + nanoseconds(left));
        Some(left)
    }

    fn released(&mut self) {
        self.engine.after_call(RefCell::new(self.news.take()));
        if self.idle_since.is_some() {
            // Where threads outnumber cores, the one that is waited for gets a turn.
            self.backoff.snooze();
        } else {
            std::hint::spin_loop();
        }
    }

    fn sleep(&mut self, left: Duration, until: Option<Instant>) {
        let limit = until.map(|until| until.saturating_duration_since(Instant::now()));
        let left = limit.map_or(left, |limit| limit.min(left));
        let timeout = Timespec::try_from(left).ok();
        let place = &self.engine.place;
        let bell = &place.shared.bell().0;
        let mut fds =
            [PollFd::new(&place.wake_fd, PollFlags::IN), PollFd::new(bell, PollFlags::IN)];
        place.sleeps.store(place.sleeps.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        // Interrupted, or no memory: as good as woken.
        let _ = poll(&mut fds, timeout.as_ref());
        if !fds[1].revents().is_empty() {
            let _ = rustix::io::read(bell, &mut [0; 8]);
        }
        self.turns = 0;
        self.idle_since = None;
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
