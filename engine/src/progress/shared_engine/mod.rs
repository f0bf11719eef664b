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
mod posts;
#[cfg(any(test, feature = "sim"))]
mod simulated;

use std::cell::RefCell;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rustix::process::{Pid, getpid};

use self::dedicated::Dedicated;
use self::inside::Inside;
pub(crate) use self::neighbours::Neighbours;
use self::place::{Place, Told};
use self::posts::Turn;
use super::caretaker::{Cared, Membership, SendEngine};
use super::completions::News;
use super::engine::{Engine, EngineState};
use super::outside::Ticket;
use super::shared::CombinerCounts;
use crate::driver::AnyDriver;
use crate::driver::traits::{Driver, LaneKey};
use crate::forks::{EngineFd, Gate, Generation, INHERITED};
use crate::types::{Error, OperationId, OperationName};

/// Requests that wait for the holder at most; beyond it posts are refused for the time being.
const REQUESTS_MAX: usize = 1 << 14;

/// Injects that wait for the holder, or for credit or room behind it, at most: nobody hears of
/// their end, so who posts them has no other measure of how many are under way.
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
    /// Sees to that.
    gate: Option<Gate>,
    generation: Generation,
}

impl SharedEngine {
    /// Attaches a state to a driver whose calls any thread may make.
    pub(crate) fn new(
        state: Box<EngineState>,
        driver: AnyDriver<dyn Driver + Send>,
        sockets: Vec<(LaneKey, EngineFd)>,
        neighbours: Arc<Neighbours>,
    ) -> Result<Self, Error> {
        let engine = SendEngine::attach(state, driver, sockets)?;
        let limit = engine.state.core.config().inject_limit;
        let place = Place::new(engine, neighbours);
        let place = place.map_err(|error| Error::system("cannot share an engine", error))?;
        let place = Arc::new(place);
        place.neighbours.join(&place);
        let gate = Some(Gate::new(place.clone()));
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
            gate,
            generation: Generation::current(),
        })
    }

    /// Has a thread of its own make all progress, on `cores` if there are some.
    pub(crate) fn dedicate(&mut self, cores: Vec<usize>) -> io::Result<()> {
        self.thread = Some(Dedicated::start(&self.place, cores)?);
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

    /// Refuses a call that found the engine taken: in a child of `fork` it stays taken.
    pub(super) fn refuse_inherited(&self) -> Result<(), Error> {
        match self.generation.is_current() {
            true => Ok(()),
            false => Err(Error::misuse(INHERITED)),
        }
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
        assert!(self.generation.is_current(), "{INHERITED}");
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
            Err(None) => {
                self.refuse_inherited()?;
                return Ok(false);
            }
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
}

/// An engine whose last reference is dropped closes.
impl Drop for SharedEngine {
    fn drop(&mut self) {
        if self.is_inherited() {
            // As for an owned one: the copy is left as it is.
            let gate = self.gate.take();
            let thread = self.thread.take();
            std::mem::forget((self.membership.take(), thread, gate, Arc::clone(&self.place)));
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
