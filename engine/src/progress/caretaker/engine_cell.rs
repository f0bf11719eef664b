//! Where an engine lives while a thread owns it: that thread and the caretaker come in by turns.

use std::cell::UnsafeCell;
use std::io;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, OnceLock};
use std::task::Waker;
use std::time::Duration;

use rustix::process::{Pid, getpid};

use super::handover::{Handover, Step, Taken};
use super::{Cared, Membership};
use crate::driver::AnyDriver;
use crate::driver::traits::{Driver, LaneKey};
use crate::forks::{Closable, EngineFd, Gate, INHERITED};
use crate::progress::background::WakeFds;
use crate::progress::engine::{Engine, EngineState};
use crate::progress::wait_object::WaitObject;
use crate::types::Error;

/// What the owner and the caretaker share.
pub(super) struct Place {
    handover: Handover,
    engine: UnsafeCell<Option<Engine>>,
    /// What becomes readable when something comes.
    wake_fds: WakeFds,
    /// What the owner and its tasks sleep by, once they do.
    wait_object: OnceLock<Arc<WaitObject>>,
}

// SAFETY: the engine is touched only by whoever the hand-over has let in, one at a time, and each
// sees what the other did. Any thread may touch all of it: `EngineCell::new` makes it of an
// `EngineState` and a driver that are both `Send`, and what else an engine has is plain data. Only
// the owner puts it in and takes it out, so that it also ends on its owner's thread.
unsafe impl Send for Place {}
// SAFETY: as above.
unsafe impl Sync for Place {}

impl Cared for Place {
    fn steps(&self) -> u64 {
        self.handover.steps()
    }

    fn park(&self, steps: u64) -> bool {
        self.handover.park(steps)
    }

    fn is_parked(&self) -> bool {
        self.handover.is_parked()
    }

    fn wake_fds(&self) -> Arc<[EngineFd]> {
        self.wake_fds.current()
    }

    fn tasks_sleep_by(&self) -> Option<BorrowedFd<'_>> {
        self.wait_object.get().filter(|it| it.has_tasks()).map(|it| it.fd())
    }

    fn wake_tasks(&self) -> bool {
        self.wait_object.get().is_some_and(|it| it.wake_tasks())
    }

    fn turn(&self) -> Option<Result<(bool, Option<Duration>), Error>> {
        let turn = self.take()?.engine.background_turn();
        if let Some(wait_object) = self.wait_object.get()
            && !matches!(turn, Ok((false, _)))
        {
            // What the owner sleeps by may say nothing of it any more.
            wait_object.ring();
        }
        Some(turn)
    }
}

impl Closable for Place {
    fn close_in_child(&self) {
        self.handover.shut();
    }
}

impl Place {
    /// The caretaker comes in, unless the owner is there or the engine is gone.
    fn take(&self) -> Option<Guest<'_>> {
        let taken = self.handover.take()?;
        // SAFETY: the hand-over has let this thread in, and nobody else until `taken` is dropped.
        let engine = unsafe { (*self.engine.get()).as_mut() }?;
        Some(Guest { engine, _taken: taken })
    }
}

/// The caretaker's turn.
struct Guest<'a> {
    // Dropped first.
    engine: &'a mut Engine,
    _taken: Taken<'a>,
}

/// The owner's handle on an engine: a `RefCell` that the caretaker may borrow meanwhile, so that a
/// borrow costs the same. Neither `Send` nor `Sync`.
pub struct EngineCell {
    place: Arc<Place>,
    /// Has the caretaker look after it; `None`: nobody does.
    membership: Option<Membership>,
    /// Where the engine lives; a child of `fork` has a copy that nothing can be done with.
    process: Pid,
    /// Sees to that.
    gate: Option<Gate>,
    _owner: PhantomData<*mut ()>,
}

const PRESENT: &str = "the engine is taken out only by into_engine and drop, which end the handle";

impl EngineCell {
    /// Attaches a state to a driver of the calling thread, which becomes the owner; see
    /// [`Engine::attach`].
    pub(crate) fn new(
        state: Box<EngineState>,
        driver: AnyDriver<dyn Driver + Send>,
        sockets: Vec<(LaneKey, EngineFd)>,
    ) -> Result<Self, Error> {
        let engine = Engine::attach(state, driver, sockets)?;
        Ok(Self::of(engine))
    }

    /// As [`Self::new`], for an engine that [`Self::into_engine`] gave.
    pub(crate) fn again(engine: Engine) -> Self {
        Self::of(engine)
    }

    /// `engine` was made by [`Self::new`], whose parts are all `Send`.
    fn of(mut engine: Engine) -> Self {
        let wake_fds = engine.share_wake_fds();
        let is_shared = !wake_fds.current().is_empty();
        let place = Arc::new(Place {
            handover: Handover::new(is_shared),
            engine: UnsafeCell::new(Some(engine)),
            wake_fds,
            wait_object: OnceLock::new(),
        });
        let cared: Arc<dyn Cared> = place.clone();
        let membership = is_shared.then(|| Membership::new(cared)).flatten();
        let gate = Some(Gate::new(place.clone()));
        Self { place, membership, process: getpid(), gate, _owner: PhantomData }
    }

    /// The engine, for as long as the guard lives. Panics if the owner has it already.
    #[inline]
    pub(crate) fn borrow_mut(&self) -> Inside<'_> {
        match self.try_borrow_mut() {
            Some(inside) => inside,
            None => panic!("{}", self.refusal()),
        }
    }

    /// As [`Self::borrow_mut`], for calls that return errors.
    ///
    /// # Errors
    ///
    /// [`Error::Misuse`] in a child of `fork`.
    #[inline]
    pub(crate) fn enter(&self) -> Result<Inside<'_>, Error> {
        match self.try_borrow_mut() {
            Some(inside) => Ok(inside),
            None => Err(self.refuse()),
        }
    }

    /// Why the owner cannot come in.
    #[cold]
    fn refusal(&self) -> &'static str {
        match self.is_inherited() {
            true => INHERITED,
            false => "the engine is in use by its own thread",
        }
    }

    #[cold]
    fn refuse(&self) -> Error {
        assert!(self.is_inherited(), "{}", self.refusal());
        Error::misuse(INHERITED)
    }

    /// What the owner can sleep by.
    pub(crate) fn wait_object(&self) -> io::Result<Arc<WaitObject>> {
        if let Some(known) = self.place.wait_object.get() {
            return Ok(Arc::clone(known));
        }
        let wake_fd = self.borrow_mut().wake_fd()?;
        let wait_object = Arc::new(WaitObject::new(wake_fd, Arc::default())?);
        // The owner alone makes one.
        Ok(Arc::clone(self.place.wait_object.get_or_init(|| wait_object)))
    }

    /// Has tasks that sleep look for themselves, behind calls that may have taken what they sleep
    /// for.
    #[inline]
    pub(crate) fn wake_tasks(&self) {
        if let Some(wait_object) = self.place.wait_object.get() {
            wait_object.wake_tasks();
        }
    }

    /// Prepares the engine for a sleep of its owner, who looks behind this whether there is
    /// something to wait for.
    pub(crate) fn arm(&self) -> Result<(), Error> {
        let failed = |error| Error::system("cannot wait by a descriptor", error);
        let wait_object = self.wait_object().map_err(failed)?;
        wait_object.begin_arming();
        let left = self.enter()?.arm()?;
        wait_object.set_timer(left).map_err(failed)
    }

    /// A task sleeps until there is something to do. `false`: there is nobody to wake it.
    pub(crate) fn wake_when_readable(&self, waker: &Waker) -> bool {
        let Some(membership) = &self.membership else { return false };
        let armed = self.arm().and_then(|()| {
            self.wait_object().map_err(|error| Error::system("no wait object", error))
        });
        match armed {
            Ok(wait_object) => wait_object.wake_when_readable(waker),
            Err(error) => {
                tracing::debug!("a task is polled again at once: {error}");
                return false;
            }
        }
        membership.wake();
        true
    }

    /// As [`Self::borrow_mut`]; `None` if the owner has it already.
    #[inline]
    pub(crate) fn try_borrow_mut(&self) -> Option<Inside<'_>> {
        if self.place.handover.is_inside() {
            return None;
        }
        if self.place.handover.enter() == Step::Wake {
            self.wake();
        }
        Some(Inside { cell: self })
    }

    /// As [`Self::try_borrow_mut`], for handles that are dropped: those that a child inherited by
    /// `fork` leave the engine alone.
    pub(crate) fn borrow_to_let_go(&self) -> Option<Inside<'_>> {
        if self.is_inherited() { None } else { self.try_borrow_mut() }
    }

    /// Whether this is the copy of a child of `fork`.
    pub(crate) fn is_inherited(&self) -> bool {
        self.process != getpid()
    }

    #[cold]
    fn wake(&self) {
        if let Some(membership) = &self.membership {
            membership.wake();
        }
    }

    /// The engine, still open; the caretaker is gone.
    pub(crate) fn into_engine(mut self) -> Engine {
        self.take().expect(PRESENT)
    }

    fn take(&mut self) -> Option<Engine> {
        // Ends when the caretaker knows the place no more.
        self.membership = None;
        if !self.place.handover.is_inside() {
            // Nobody is left to be woken. A guard that was forgotten has never left.
            let _ = self.place.handover.enter();
        }
        // SAFETY: the hand-over has let the owner in; `self` is borrowed exclusively, so that no
        // guard refers to the engine.
        let engine = unsafe { (*self.place.engine.get()).take() };
        let _ = self.place.handover.leave();
        engine
    }
}

/// An engine whose last holder lets go closes.
impl Drop for EngineCell {
    fn drop(&mut self) {
        if self.is_inherited() {
            // Rings and arena are not mapped in a child of `fork`, locks may be held by threads
            // that it has not, and what an engine says when it closes would be said in its
            // parent's name. So the copy is left as it is; its descriptors are closed already.
            let gate = self.gate.take();
            std::mem::forget((self.membership.take(), gate, Arc::clone(&self.place)));
            return;
        }
        if let Some(engine) = self.take() {
            engine.close();
        }
    }
}

/// The owner is inside until this is dropped.
pub(crate) struct Inside<'a> {
    cell: &'a EngineCell,
}

impl Deref for Inside<'_> {
    type Target = Engine;

    #[inline]
    fn deref(&self) -> &Engine {
        // SAFETY: the hand-over has let the owner in until this guard is dropped, and the owner has
        // one guard at a time; this borrow ends before the guard.
        unsafe { (*self.cell.place.engine.get()).as_ref() }.expect(PRESENT)
    }
}

impl DerefMut for Inside<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Engine {
        // SAFETY: as for `deref`, and the guard is borrowed exclusively.
        unsafe { (*self.cell.place.engine.get()).as_mut() }.expect(PRESENT)
    }
}

impl Drop for Inside<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.cell.place.handover.leave() == Step::Wake {
            self.cell.wake();
        }
    }
}
