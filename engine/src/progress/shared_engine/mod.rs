//! An engine that any thread posts to: under the lock of [`super::shared`], with the requests of
//! threads that did not get it.
//!
//! ```text
//!  post ──> lock is free, nothing queued: posted at once, as on an owned engine
//!     └───> taken: a Request is queued; its holder posts it before it goes
//!  wait ──> one leads: lock, requests, a turn of the engine, unlock; the others sleep
//!     └───> what it waits for is read without the lock: OutsideQueue, Ticket
//! ```

mod dedicated;
mod domain_engines;
mod inside;
mod lead;
mod place;
mod posts;
#[cfg(any(test, feature = "sim"))]
mod simulated;

use std::cell::RefCell;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use self::dedicated::Dedicated;
pub(crate) use self::domain_engines::DomainEngines;
use self::inside::Inside;
use self::place::{EnginePlace, PendingWakeups};
use self::posts::Turn;
use super::caretaker::{Cared, Membership, SendEngine};
use super::engine::{Engine, EngineState};
use super::outside::Ticket;
use super::shared::CombinerCounts;
use crate::driver::AnyDriver;
use crate::driver::traits::{Driver, LaneKey};
use crate::forks::{EngineFd, Gate, INHERITED, OwnerProcess};
use crate::types::Error;

/// Maximum requests that wait for the holder; beyond it posts are refused for the time being.
const REQUESTS_MAX: usize = 1 << 14;

/// Maximum injects that wait for the holder, or for credit or space after it: they give no
/// completion, so their posters have no other measure of the outstanding ones.
const INJECTS_MAX: usize = 1 << 10;

/// An engine that any thread uses. Closed when the last reference is dropped.
pub struct SharedEngine {
    place: Arc<EnginePlace>,
    /// Registers it with the background thread; `None`: there is none.
    membership: Option<Membership>,
    /// Makes all progress; `None`: waiting threads do.
    thread: Option<Dedicated>,
    next_request: AtomicU64,
    /// Posts wait for the lock, and queue no requests.
    is_in_turn: AtomicBool,
    /// See [`REQUESTS_MAX`].
    requests_max: usize,
    /// See [`INJECTS_MAX`].
    injects_max: usize,
    inject_limit: usize,
    /// Process of the engine; a child of `fork` has an unusable copy.
    owner: OwnerProcess,
    /// Enforces that.
    gate: Option<Gate>,
}

impl SharedEngine {
    /// Attaches a state to a driver that any thread may call.
    pub(crate) fn new(
        state: Box<EngineState>,
        driver: AnyDriver<dyn Driver + Send>,
        sockets: Vec<(LaneKey, EngineFd)>,
        domain_engines: Arc<DomainEngines>,
    ) -> Result<Self, Error> {
        let engine = SendEngine::attach(state, driver, sockets)?;
        let limit = engine.state.core.shared().eager().inject_max();
        let place = EnginePlace::new(engine, domain_engines);
        let place = place.map_err(|error| Error::system("cannot share an engine", error))?;
        let place = Arc::new(place);
        place.domain_engines().join(&place);
        let gate = Some(Gate::new(place.clone()));
        let cared: Arc<dyn Cared> = place.clone();
        let (membership, thread) = (Membership::new(cared), None);
        let (next_request, inject_limit) = (AtomicU64::new(0), limit as usize);
        let answers = membership.is_some();
        let shared = Self {
            place,
            membership,
            thread,
            next_request,
            is_in_turn: AtomicBool::new(false),
            requests_max: REQUESTS_MAX,
            injects_max: INJECTS_MAX,
            inject_limit,
            owner: OwnerProcess::current(),
            gate,
        };
        shared.with(|engine| engine.state.core.shared_mut().set_answers(answers));
        Ok(shared)
    }

    /// Starts a thread that makes all progress, on `cores` if there are some.
    pub(crate) fn dedicate(&mut self, cores: Vec<usize>) -> io::Result<()> {
        self.thread = Some(Dedicated::start(&self.place, cores)?);
        self.with(|engine| engine.state.core.shared_mut().set_answers(true));
        // Its thread makes all progress.
        self.membership = None;
        Ok(())
    }

    /// Makes posts wait for the lock from now on, and queue no requests.
    pub(crate) fn post_in_turn(&self) {
        self.is_in_turn.store(true, Ordering::Relaxed);
    }

    /// Returns whether this is the copy of a child of `fork`.
    pub(crate) fn is_inherited(&self) -> bool {
        self.owner.is_inherited()
    }

    /// Refuses a call in a child of `fork`, such as one that found the engine taken: there it stays
    /// taken.
    #[inline]
    pub(crate) fn refuse_inherited(&self) -> Result<(), Error> {
        match self.owner.is_forked() {
            false => Ok(()),
            true => Err(Error::misuse(INHERITED)),
        }
    }

    /// Returns the combiner's counters, and how often a leader slept.
    pub(crate) fn counts(&self) -> (CombinerCounts, u64) {
        (self.place.shared().combiner().counts(), self.place.sleeps())
    }

    /// Returns the number of useful turns made by waiters for another engine of its domain.
    pub(crate) fn helped(&self) -> u64 {
        self.place.helped()
    }

    fn after_call(&self, pending: RefCell<PendingWakeups>) {
        self.place.after_call(self.membership.as_ref(), pending);
    }

    // ---- Calls that wait for the lock ----

    /// Makes a call with the engine. Panics if this thread is in it already.
    pub(crate) fn with<R>(&self, call: impl FnOnce(&mut Engine) -> R) -> R {
        self.with_inside(|inside| call(inside.engine()))
    }

    fn with_inside<R>(&self, call: impl FnOnce(&mut Inside) -> R) -> R {
        assert!(!self.owner.is_forked(), "{INHERITED}");
        let pending = RefCell::default();
        let answer = self.place.shared().enter(
            |inside| {
                let answer = call(inside);
                self.place.count_call();
                inside.after(&self.place, &pending);
                answer
            },
            |inside, request| self.place.apply(inside, request, &pending),
        );
        self.after_call(pending);
        answer
    }

    /// Makes a call as [`Self::with`] does; `None`, without a call, if this thread is inside
    /// already.
    pub(crate) fn with_to_let_go<R>(&self, call: impl FnOnce(&mut Engine) -> R) -> Option<R> {
        if self.is_inherited() || self.place.shared().combiner().is_held_here() {
            return None;
        }
        Some(self.with(call))
    }

    /// Executes a turn, unless another thread does.
    pub(crate) fn progress(&self) -> Result<bool, Error> {
        if let Some(error) = self.place.failure() {
            return Err(error.clone());
        }
        let guard = match self.try_begin() {
            Ok(turn) => turn.guard,
            Err(None) => {
                self.refuse_inherited()?;
                return Ok(false);
            }
            Err(Some(mut guard)) => {
                // The rest is applied later, and its posters wake the leader.
                guard.drain(Inside::apply);
                guard
            }
        };
        let mut turn = Turn { engine: self, guard };
        let happened = turn.engine().progress();
        turn.end(matches!(happened, Ok(true)));
        if let Err(error) = &happened {
            self.place.fail(error.clone());
        }
        happened
    }

    /// Lets waiters for one of `classes` check again.
    pub(crate) fn notify_waiters(&self, classes: u32) {
        if classes != 0 {
            self.place.notify_sleepers(classes);
        }
    }

    /// Cancels the operation of a ticket; returns `false` if it is too late.
    pub(crate) fn cancel_ticket(&self, ticket: &Ticket) -> bool {
        self.with(|engine| ticket.operation().is_some_and(|id| engine.state.cancel(id)))
    }
}

/// Closes the engine when its last reference is dropped.
impl Drop for SharedEngine {
    fn drop(&mut self) {
        if self.is_inherited() {
            // As for an owned one: the copy is left as it is.
            let gate = self.gate.take();
            let thread = self.thread.take();
            std::mem::forget((self.membership.take(), thread, gate, Arc::clone(&self.place)));
            return;
        }
        self.place.domain_engines().leave(&self.place);
        // Returns when the background thread has dropped the place, and the thread has ended.
        self.membership = None;
        self.thread = None;
        let take = |inside: &mut Inside| inside.engine.take();
        // All earlier posts are applied before; no thread is left to post more.
        let engine = self.place.shared().enter(take, |inside, request| {
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
