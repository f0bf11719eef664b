//! The cell of an engine that one thread owns: that thread and the background thread enter it in
//! turn.

use std::cell::{RefCell, UnsafeCell};
use std::io;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, OnceLock};
use std::task::Waker;
use std::time::Duration;

use super::handover::{BackgroundGuard, Handover, OwnerStep};
use super::{Cared, Membership};
use crate::driver::AnyDriver;
use crate::driver::traits::{Driver, LaneKey};
use crate::forks::{Closable, EngineFd, Gate, INHERITED, OwnerProcess};
use crate::progress::background::WakeFds;
use crate::progress::engine::{Engine, EngineState};
use crate::progress::wait_object::WaitObject;
use crate::proto::table::Id;
use crate::types::Error;

/// State shared by the owner and the background thread.
pub(super) struct CellState {
    handover: Handover,
    engine: UnsafeCell<Option<Engine>>,
    /// Descriptors that become readable on events.
    wake_fds: WakeFds,
    /// What the owner and its tasks sleep on, once they do.
    wait_object: OnceLock<Arc<WaitObject>>,
}

// SAFETY: only the thread admitted by the hand-over accesses the engine, one at a time, and each
// sees the effects of the other. Any thread may access all of it: `EngineCell::new` makes it of an
// `EngineState` and a driver that are both `Send`, and everything else in an engine is plain data.
// Only the owner inserts and removes it, so that it also ends on its owner's thread.
unsafe impl Send for CellState {}
// SAFETY: as above.
unsafe impl Sync for CellState {}

impl Cared for CellState {
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
            // The descriptor that the owner sleeps on may not report the event any more.
            wait_object.ring();
        }
        Some(turn)
    }
}

impl Closable for CellState {
    fn close_in_child(&self) {
        self.handover.shut();
    }
}

impl CellState {
    /// Enters for the background thread, unless the owner is inside or the engine was removed.
    fn take(&self) -> Option<Guest<'_>> {
        let taken = self.handover.take()?;
        // SAFETY: the hand-over has admitted this thread, and no other until `taken` is dropped.
        let engine = unsafe { (*self.engine.get()).as_mut() }?;
        Some(Guest { engine, _taken: taken })
    }
}

/// A turn of the background thread.
struct Guest<'a> {
    // Dropped first.
    engine: &'a mut Engine,
    _taken: BackgroundGuard<'a>,
}

/// The owner's handle on an engine: a `RefCell` that the background thread may borrow meanwhile, at
/// the same cost per borrow. Neither `Send` nor `Sync`.
pub struct EngineCell {
    place: Arc<CellState>,
    /// Registers it with the background thread; `None`: there is none.
    membership: Option<Membership>,
    /// Process of the engine; a child of `fork` has an unusable copy.
    owner: OwnerProcess,
    /// Enforces that.
    gate: Option<Gate>,
    /// Handles that were dropped while the owner was inside; of receives with their endpoints.
    dropped: RefCell<Vec<(Id, Option<u16>)>>,
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

    /// Creates a cell for an engine that [`Self::into_engine`] returned.
    pub(crate) fn again(engine: Engine) -> Self {
        Self::of(engine)
    }

    /// `engine` was made by [`Self::new`], whose parts are all `Send`.
    fn of(mut engine: Engine) -> Self {
        engine.state.core.shared_mut().set_answers(true);
        let wake_fds = engine.wake_fds.share(&engine.state, &engine.driver);
        let is_shared = !wake_fds.current().is_empty();
        let place = Arc::new(CellState {
            handover: Handover::new(is_shared),
            engine: UnsafeCell::new(Some(engine)),
            wake_fds,
            wait_object: OnceLock::new(),
        });
        let cared: Arc<dyn Cared> = place.clone();
        let membership = is_shared.then(|| Membership::new(cared)).flatten();
        let gate = Some(Gate::new(place.clone()));
        let (owner, dropped) = (OwnerProcess::current(), RefCell::default());
        let cell = Self { place, membership, owner, gate, dropped, _owner: PhantomData };
        if cell.membership.is_none() {
            cell.borrow_mut().state.core.shared_mut().set_answers(false);
        }
        cell
    }

    /// Borrows the engine until the guard is dropped. Panics if the owner has borrowed it already.
    #[inline]
    pub(crate) fn borrow_mut(&self) -> OwnerGuard<'_> {
        match self.try_borrow_mut() {
            Some(inside) => inside,
            None => panic!("{}", self.refusal()),
        }
    }

    /// Borrows the engine, for calls that return errors.
    ///
    /// # Errors
    ///
    /// [`Error::Misuse`] in a child of `fork`.
    #[inline]
    pub(crate) fn enter(&self) -> Result<OwnerGuard<'_>, Error> {
        match self.try_borrow_mut() {
            Some(inside) => Ok(inside),
            None => Err(self.refuse()),
        }
    }

    /// Returns why the owner cannot enter.
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

    /// Returns the object that the owner can sleep on.
    pub(crate) fn wait_object(&self) -> io::Result<Arc<WaitObject>> {
        if let Some(known) = self.place.wait_object.get() {
            return Ok(Arc::clone(known));
        }
        let wake_fd = self.borrow_mut().driver.wake_fd()?;
        let wait_object = Arc::new(WaitObject::new(wake_fd, Arc::default())?);
        // Only the owner creates one.
        Ok(Arc::clone(self.place.wait_object.get_or_init(|| wait_object)))
    }

    /// Wakes sleeping tasks after calls that may have taken the events they sleep for.
    #[inline]
    pub(crate) fn wake_tasks(&self) {
        if let Some(wait_object) = self.place.wait_object.get() {
            wait_object.wake_tasks();
        }
    }

    /// Prepares the engine for a sleep of its owner, which checks after this whether there is
    /// something to wait for.
    pub(crate) fn arm(&self) -> Result<(), Error> {
        let failed = |error| Error::system("cannot wait by a descriptor", error);
        let wait_object = self.wait_object().map_err(failed)?;
        wait_object.begin_arming();
        let left = self.enter()?.arm()?;
        wait_object.set_timer(left).map_err(failed)
    }

    /// Registers a task to be woken when there is work. Returns `false` if nothing could wake it.
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

    /// Borrows the engine; `None` if the owner has borrowed it already.
    #[inline]
    pub(crate) fn try_borrow_mut(&self) -> Option<OwnerGuard<'_>> {
        if self.place.handover.is_inside() {
            return None;
        }
        if self.place.handover.enter() == OwnerStep::Wake {
            self.wake();
        }
        Some(OwnerGuard { cell: self })
    }

    /// Borrows the engine as [`Self::try_borrow_mut`] does, for handles that are dropped: those
    /// inherited by a child of `fork` do not access the engine.
    pub(crate) fn borrow_to_let_go(&self) -> Option<OwnerGuard<'_>> {
        if self.is_inherited() { None } else { self.try_borrow_mut() }
    }

    /// Returns whether this is the copy of a child of `fork`.
    pub(crate) fn is_inherited(&self) -> bool {
        self.owner.is_inherited()
    }

    /// The handle of an operation is dropped while the owner is inside, as in a callback: it is
    /// given up as soon as the owner has left. `endpoint`: it is a receive there.
    #[cold]
    pub(crate) fn give_up_later(&self, handle: Id, endpoint: Option<u16>) {
        if !self.is_inherited() {
            self.dropped.borrow_mut().push((handle, endpoint));
            self.place.handover.defer();
        }
    }

    #[cold]
    fn give_up_dropped(&self) {
        if std::thread::panicking() {
            // The engine is as the panic left it: the next call does it.
            return self.place.handover.defer();
        }
        if let Some(mut engine) = self.try_borrow_mut() {
            for (handle, endpoint) in self.dropped.take() {
                match endpoint {
                    Some(endpoint) => engine.state.give_up_receive(handle, endpoint),
                    None => engine.state.abandon(handle),
                }
            }
        }
        // Another receive may have got a message.
        self.wake_tasks();
    }

    #[cold]
    fn wake(&self) {
        if let Some(membership) = &self.membership {
            membership.wake();
        }
    }

    /// Removes the engine, still open, after unregistering from the background thread.
    pub(crate) fn into_engine(mut self) -> Engine {
        self.take().expect(PRESENT)
    }

    fn take(&mut self) -> Option<Engine> {
        // Returns when the background thread has dropped the place.
        self.membership = None;
        if !self.place.handover.is_inside() {
            // No thread is left to be woken. A forgotten guard has never left.
            let _ = self.place.handover.enter();
        }
        // SAFETY: the hand-over has admitted the owner; `self` is borrowed exclusively, so that no
        // guard refers to the engine.
        let engine = unsafe { (*self.place.engine.get()).take() };
        let _ = self.place.handover.leave();
        engine
    }
}

/// Closes the engine when its last holder is dropped.
impl Drop for EngineCell {
    fn drop(&mut self) {
        if self.is_inherited() {
            // Rings and arena are not mapped in a child of `fork`, locks may be held by threads
            // that do not exist there, and the messages of a closing engine would be sent in its
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
pub(crate) struct OwnerGuard<'a> {
    cell: &'a EngineCell,
}

impl Deref for OwnerGuard<'_> {
    type Target = Engine;

    #[inline]
    fn deref(&self) -> &Engine {
        // SAFETY: the hand-over has admitted the owner until this guard is dropped, and the owner
        // has one guard at a time; this borrow ends before the guard.
        unsafe { (*self.cell.place.engine.get()).as_ref() }.expect(PRESENT)
    }
}

impl DerefMut for OwnerGuard<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Engine {
        // SAFETY: as for `deref`, and the guard is borrowed exclusively.
        unsafe { (*self.cell.place.engine.get()).as_mut() }.expect(PRESENT)
    }
}

impl Drop for OwnerGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        match self.cell.place.handover.leave() {
            OwnerStep::Done => {}
            OwnerStep::Wake => self.cell.wake(),
            OwnerStep::Deferred => {
                self.cell.wake();
                self.cell.give_up_dropped();
            }
        }
    }
}
