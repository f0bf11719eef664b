//! What threads and the caretaker share of an engine.

use std::cell::RefCell;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};
use std::task::Waker;
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};

use super::inside::{Inside, Request};
use crate::progress::caretaker::{Activity, Cared, Membership, SendEngine};
use crate::progress::completions::News;
use crate::progress::engine::Engine;
use crate::progress::shared::{Doorbell, Keys, Shared};
use crate::progress::sleep::NOTHING_DUE;
use crate::progress::wait_object::WaitObject;
use crate::types::Error;

/// What is to be said without the lock.
#[derive(Debug, Default)]
pub(super) struct Told {
    pub(super) news: News,
    /// Who sleeps does so for too long.
    pub(super) is_sooner: bool,
}

/// Wakes the leader out of its sleep.
pub(super) struct Bell(pub(super) OwnedFd);

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
pub(super) struct Place {
    pub(super) shared: Shared<Inside, Request, Bell>,
    pub(super) activity: Activity,
    /// Readable when a driver that was armed has something.
    pub(super) wake_fd: OwnedFd,
    /// A copy of that, for the caretaker.
    pub(super) wake_fds: Arc<[OwnedFd]>,
    /// What threads and tasks sleep by that do not wait, once they do.
    pub(super) wait_object: OnceLock<WaitObject>,
    /// What ended the driver.
    pub(super) failure: OnceLock<Error>,
    /// Sleeps of leaders. Stored by the leader.
    pub(super) sleeps: AtomicU64,
    pub(super) spin: Duration,
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
    pub(super) fn new(engine: SendEngine) -> io::Result<Self> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let wake_fd = engine.wake_fd()?;
        let wake_fds = Arc::new([wake_fd.try_clone()?]);
        let spin = engine.state.config.spin;
        Ok(Self {
            shared: Shared::new(Inside::new(engine), Bell(bell)),
            activity: Activity::default(),
            wake_fd,
            wake_fds,
            wait_object: OnceLock::new(),
            failure: OnceLock::new(),
            sleeps: AtomicU64::new(0),
            spin,
        })
    }

    /// Whether anybody sleeps until the engine has something.
    pub(super) fn has_sleepers(&self) -> bool {
        self.shared.has_sleeping_leader()
            || self.wait_object.get().is_some_and(WaitObject::is_armed)
    }

    /// What is due behind each call, without the lock.
    #[inline]
    pub(super) fn after_call(&self, caretaker: Option<&Membership>, told: RefCell<Told>) {
        if self.activity.wakes_caretaker()
            && let Some(caretaker) = caretaker
        {
            caretaker.wake();
        }
        self.tell(told);
    }

    /// Those outside learn what there is for them. Without the lock: a waker may do anything.
    #[inline]
    pub(super) fn tell(&self, told: RefCell<Told>) {
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
    pub(super) fn fail(&self, error: Error) {
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
