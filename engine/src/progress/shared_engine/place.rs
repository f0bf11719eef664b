//! State of an engine that threads and the background thread share.

use std::cell::RefCell;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};

use super::domain_engines::DomainEngines;
use super::inside::{Inside, PostRequest};
use crate::forks::{Closable, EngineFd};
use crate::progress::caretaker::{Activity, Cared, Membership, SendEngine};
use crate::progress::completions::Wakeups;
use crate::progress::engine::Engine;
use crate::progress::shared::{Doorbell, Keys, SharedProgress};
use crate::progress::sleep::NOTHING_DUE;
use crate::progress::wait_object::WaitObject;
use crate::progress::wakers::{survive, wake_all};
use crate::refused_call::refused;
use crate::types::Error;

/// Wake-ups to be made without the lock.
#[derive(Debug, Default)]
pub(super) struct PendingWakeups {
    pub(super) wakeups: Wakeups,
    /// Sleepers on wait objects are woken: they sleep for too long, or for events that were taken.
    pub(super) wakes_wait_objects: bool,
}

/// Wakes the leader.
pub(super) struct Bell(pub(super) EngineFd);

#[cfg(any(test, feature = "sim"))]
impl Bell {
    /// Returns the key of simulated leaders' sleep: no address, as those are even.
    pub(super) fn gate(&self) -> usize {
        2 * std::os::fd::AsRawFd::as_raw_fd(&self.0) as usize + 1
    }
}

impl Doorbell<Inside> for Bell {
    fn needs_wake(&self, inside: &Inside) -> bool {
        inside.wants_wake
    }

    fn ring(&self) {
        // A full counter wakes it as well.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
        #[cfg(any(test, feature = "sim"))]
        crate::hooks::threads::wake(self.gate(), std::num::NonZeroU32::MIN, u32::MAX);
    }
}

/// State shared by threads and the background thread.
pub(super) struct EnginePlace {
    shared: SharedProgress<Inside, PostRequest, Bell>,
    activity: Activity,
    /// Readable when an armed driver has an event.
    wake_fd: EngineFd,
    /// A copy of that, for the background thread.
    wake_fds: Arc<[EngineFd]>,
    /// The object that tasks sleep on.
    tasks: Arc<WaitObject>,
    /// All wait objects of this engine, that of the tasks included.
    wait_objects: Mutex<Vec<Weak<WaitObject>>>,
    /// How many of these are armed.
    armed: Arc<AtomicUsize>,
    /// The error that ended the driver.
    failure: OnceLock<Error>,
    /// Number of sleeps of leaders. Stored by the leader.
    sleeps: AtomicU64,
    spin: Duration,
    /// The other engines of its domain.
    domain_engines: Arc<DomainEngines>,
    /// Useful turns made by waiters for another engine. Stored by the holder.
    helped: AtomicU64,
    /// Injects that were left to holders and wait for credit or space. Stored by the holder.
    waiting_injects: AtomicUsize,
}

impl Cared for EnginePlace {
    fn steps(&self) -> u64 {
        // Posts during a turn of the background thread count, too.
        let steps = self.activity.steps() + self.shared.combiner().pushed() as u64;
        2 * steps + u64::from(self.shared.has_leader())
    }

    fn park(&self, steps: u64) -> bool {
        self.activity.park(|| self.steps() == steps)
    }

    fn is_parked(&self) -> bool {
        self.activity.is_parked()
    }

    fn wake_fds(&self) -> Arc<[EngineFd]> {
        Arc::clone(&self.wake_fds)
    }

    fn tasks_sleep_by(&self) -> Option<BorrowedFd<'_>> {
        self.tasks.has_tasks().then(|| self.tasks.fd())
    }

    fn wake_tasks(&self) -> bool {
        self.tasks.wake_tasks()
    }

    fn turn(&self) -> Option<Result<(bool, Option<Duration>), Error>> {
        let pending = RefCell::default();
        let turn = self.shared.try_enter(
            |inside| {
                let turn = inside.engine.as_mut().map(|engine| background_turn(engine));
                inside.after(self, &pending);
                turn
            },
            |inside, request| self.apply(inside, request, &pending),
        );
        // The background thread serves others as well.
        survive(|| self.notify_waiters(pending));
        let turn = turn.flatten();
        if let Some(Err(error)) = &turn {
            self.fail(error.clone());
        }
        turn
    }
}

impl Closable for EnginePlace {
    fn close_in_child(&self) {
        self.shared.combiner().shut();
    }
}

impl EnginePlace {
    pub(super) fn new(engine: SendEngine, domain_engines: Arc<DomainEngines>) -> io::Result<Self> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(refused("eventfd"))?;
        let bell = EngineFd::new(bell);
        let wake_fd = EngineFd::new(engine.driver.wake_fd()?);
        let wake_fds = Arc::new([EngineFd::new(wake_fd.try_clone()?)]);
        let spin = engine.state.config.spin;
        let armed = Arc::new(AtomicUsize::new(0));
        let tasks = Arc::new(WaitObject::new(wake_fd.try_clone()?, Arc::clone(&armed))?);
        Ok(Self {
            shared: SharedProgress::new(Inside::new(engine), Bell(bell)),
            activity: Activity::default(),
            wake_fd,
            wake_fds,
            wait_objects: Mutex::new(vec![Arc::downgrade(&tasks)]),
            tasks,
            armed,
            failure: OnceLock::new(),
            sleeps: AtomicU64::new(0),
            spin,
            domain_engines,
            helped: AtomicU64::new(0),
            waiting_injects: AtomicUsize::new(0),
        })
    }

    /// Returns what threads post to and wait for.
    #[inline]
    pub(super) fn shared(&self) -> &SharedProgress<Inside, PostRequest, Bell> {
        &self.shared
    }

    /// Counts a call, which the background thread notices.
    #[inline]
    pub(super) fn count_call(&self) {
        self.activity.count();
    }

    /// Returns the error that ended the driver.
    pub(super) fn failure(&self) -> Option<&Error> {
        self.failure.get()
    }

    /// Returns the descriptor that is readable when an armed driver has an event.
    pub(super) fn wake_fd(&self) -> &EngineFd {
        &self.wake_fd
    }

    /// Returns the object that tasks sleep on.
    pub(super) fn tasks(&self) -> &WaitObject {
        &self.tasks
    }

    /// Returns the time of busy polling before sleeping.
    pub(super) fn spin(&self) -> Duration {
        self.spin
    }

    /// Returns the other engines of its domain.
    pub(super) fn domain_engines(&self) -> &DomainEngines {
        &self.domain_engines
    }

    /// Counts a sleep of a leader. Called by the leader.
    pub(super) fn count_sleep(&self) {
        self.sleeps.store(self.sleeps() + 1, Ordering::Relaxed);
    }

    /// Returns the number of sleeps of leaders.
    pub(super) fn sleeps(&self) -> u64 {
        self.sleeps.load(Ordering::Relaxed)
    }

    /// Counts a useful turn made by a waiter for another engine. Called by the holder.
    pub(super) fn count_help(&self) {
        self.helped.store(self.helped() + 1, Ordering::Relaxed);
    }

    /// Returns the number of useful turns for other engines.
    pub(super) fn helped(&self) -> u64 {
        self.helped.load(Ordering::Relaxed)
    }

    /// Sets how many injects wait for credit or space. Called by the holder.
    pub(super) fn set_waiting_injects(&self, count: usize) {
        self.waiting_injects.store(count, Ordering::Relaxed);
    }

    /// Returns how many injects wait: for the holder, or for credit or space after it.
    pub(super) fn waiting_injects(&self) -> usize {
        self.shared.combiner().queue_len() + self.waiting_injects.load(Ordering::Relaxed)
    }

    /// Returns whether any thread sleeps until the engine has an event.
    pub(super) fn has_sleepers(&self) -> bool {
        self.shared.has_sleeping_leader() || self.armed.load(Ordering::Relaxed) > 0
    }

    /// Posts a request that was left to the holder, and notifies its waiters.
    pub(super) fn apply(
        &self,
        inside: &mut Inside,
        request: PostRequest,
        pending: &RefCell<PendingWakeups>,
    ) {
        inside.apply(request);
        self.activity.count();
        inside.after(self, pending);
    }

    /// Completes a call, without the lock.
    #[inline]
    pub(super) fn after_call(
        &self,
        caretaker: Option<&Membership>,
        pending: RefCell<PendingWakeups>,
    ) {
        self.wake_caretaker(caretaker);
        self.notify_waiters(pending);
    }

    /// Wakes the background thread after a call, if it sleeps.
    #[inline]
    pub(super) fn wake_caretaker(&self, caretaker: Option<&Membership>) {
        if self.activity.wakes_caretaker()
            && let Some(caretaker) = caretaker
        {
            caretaker.wake();
        }
    }

    /// Wakes sleepers on wait objects, after events were made for them.
    pub(super) fn ring(&self) {
        fence(Ordering::SeqCst);
        if self.armed.load(Ordering::Relaxed) > 0 {
            let known = self.wait_objects.lock().unwrap_or_else(PoisonError::into_inner);
            known.iter().filter_map(Weak::upgrade).for_each(|it| it.ring());
        }
    }

    /// Creates a wait object.
    pub(super) fn new_wait_object(&self) -> io::Result<Arc<WaitObject>> {
        let armed = Arc::clone(&self.armed);
        let wait_object = Arc::new(WaitObject::new(self.wake_fd.try_clone()?, armed)?);
        let mut known = self.wait_objects.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|it| it.strong_count() > 0);
        known.push(Arc::downgrade(&wait_object));
        Ok(wait_object)
    }

    /// Notifies waiters outside. Without the lock: a waker may do anything.
    #[inline]
    pub(super) fn notify_waiters(&self, pending: RefCell<PendingWakeups>) {
        let PendingWakeups { wakeups: Wakeups { classes, wakers }, wakes_wait_objects } =
            pending.into_inner();
        if classes != 0 || wakes_wait_objects {
            self.notify_sleepers(classes);
        }
        wake_all(wakers);
    }

    /// Wakes sleepers on wait objects, and waiters for one of `classes`. A fence and three loads
    /// while no thread sleeps.
    #[inline]
    pub(super) fn notify_sleepers(&self, classes: u32) {
        // After the events: a thread checks for them after it has announced its sleep.
        fence(Ordering::SeqCst);
        if self.shared.has_sleeping_waiters() || self.armed.load(Ordering::Relaxed) > 0 {
            self.wake_sleepers(classes);
        }
    }

    #[cold]
    fn wake_sleepers(&self, classes: u32) {
        if let Some(keys) = Keys::of_classes(classes).filter(|_| !planted!(LoseWakeups)) {
            self.shared.notify(keys);
        }
        self.ring();
    }

    /// Handles a driver that has failed permanently: there is nothing left to wait for.
    pub(super) fn fail(&self, error: Error) {
        if self.failure.set(error).is_ok() {
            self.shared.notify(Keys::ALL);
            self.ring();
            self.tasks.wake_tasks();
        }
    }
}

/// Executes a turn of the background thread, which sleeps on the driver's descriptor afterwards.
fn background_turn(engine: &mut Engine) -> Result<(bool, Option<Duration>), Error> {
    let (happened, due_in) = engine.background_turn()?;
    let left = engine.arm()?;
    let is_due = left < NOTHING_DUE;
    Ok((happened, due_in.into_iter().chain(is_due.then_some(left)).min()))
}
