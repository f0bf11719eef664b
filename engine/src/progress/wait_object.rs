//! What threads and tasks sleep by that wait for an engine in a way of their own: a descriptor for
//! `epoll`, and wakers of futures.
//!
//! It is readable when the driver has something, when a deadline of the protocol has come, or when
//! it was rung: by a thread that did something for the one that sleeps.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

use rustix::event::epoll;
use rustix::event::{EventfdFlags, eventfd};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

use super::wakers::wake_all;

/// See the module.
#[derive(Debug)]
pub struct WaitObject {
    set: OwnedFd,
    timer: OwnedFd,
    bell: OwnedFd,
    /// The driver's; a member of the set.
    _wake_fd: OwnedFd,
    /// Somebody sleeps by it, or is about to.
    is_armed: AtomicBool,
    /// How many of the engine are armed.
    armed: Arc<AtomicUsize>,
    /// Tasks that sleep by it.
    wakers: Mutex<Vec<Waker>>,
}

impl WaitObject {
    /// `wake_fd`: see [`crate::driver::traits::Driver::wake_fd`].
    pub(super) fn new(wake_fd: OwnedFd, armed: Arc<AtomicUsize>) -> io::Result<Self> {
        let set = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let timer_flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Monotonic, timer_flags)?;
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        for member in [&timer, &bell, &wake_fd] {
            let data = epoll::EventData::new_u64(0);
            epoll::add(&set, member, data, epoll::EventFlags::IN)?;
        }
        let (is_armed, wakers) = (AtomicBool::new(false), Mutex::default());
        Ok(Self { set, timer, bell, _wake_fd: wake_fd, is_armed, armed, wakers })
    }

    /// The descriptor.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.set.as_fd()
    }

    /// Is quiet from now on, until something comes: to be called before the engine is prepared for
    /// the sleep. What is looked at behind that, and was not there, rings.
    pub(super) fn begin_arming(&self) {
        // Empty is as good as read.
        let _ = rustix::io::read(&self.bell, &mut [0; 8]);
        if !self.is_armed.swap(true, Ordering::Relaxed) {
            self.armed.fetch_add(1, Ordering::Relaxed);
        }
        fence(Ordering::SeqCst);
    }

    /// The sleep may last for `left`.
    pub(super) fn set_timer(&self, left: Duration) -> io::Result<()> {
        let value = match Timespec::try_from(left) {
            Ok(Timespec { tv_sec: 0, tv_nsec: 0 }) => Timespec { tv_sec: 0, tv_nsec: 1 },
            Ok(left) => left,
            Err(_) => Timespec { tv_sec: i64::MAX, tv_nsec: 0 },
        };
        let interval = Timespec { tv_sec: 0, tv_nsec: 0 };
        let time = Itimerspec { it_interval: interval, it_value: value };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &time)?;
        Ok(())
    }

    /// Ends the sleep of those who sleep by it. Behind what was done for them.
    pub(super) fn ring(&self) {
        fence(Ordering::SeqCst);
        if self.is_armed.load(Ordering::Relaxed) && self.is_armed.swap(false, Ordering::Relaxed) {
            self.armed.fetch_sub(1, Ordering::Relaxed);
            // Full is loud enough.
            let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
        }
    }

    fn wakers(&self) -> MutexGuard<'_, Vec<Waker>> {
        self.wakers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A task sleeps by it.
    pub(super) fn wake_when_readable(&self, waker: &Waker) {
        let mut wakers = self.wakers();
        if !wakers.iter().any(|known| known.will_wake(waker)) {
            wakers.push(waker.clone());
        }
    }

    /// Whether tasks sleep by it.
    pub(super) fn has_tasks(&self) -> bool {
        !self.wakers().is_empty()
    }

    /// Wakes the tasks that sleep by it; whether there were any.
    pub(super) fn wake_tasks(&self) -> bool {
        let wakers = std::mem::take(&mut *self.wakers());
        let had_tasks = !wakers.is_empty();
        wake_all(wakers);
        had_tasks
    }
}

impl Drop for WaitObject {
    fn drop(&mut self) {
        if *self.is_armed.get_mut() {
            self.armed.fetch_sub(1, Ordering::Relaxed);
        }
    }
}
