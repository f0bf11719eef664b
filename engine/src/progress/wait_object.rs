//! Wait objects for threads and tasks that wait for an engine in a way of their own: a descriptor
//! for `epoll`, and wakers of futures.
//!
//! It is readable when the driver has events, when a deadline of the protocol has passed, or when a
//! thread wakes it after an action for the sleeper.

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
use crate::refused_call::refused;

/// A wait object; see the module.
#[derive(Debug)]
pub struct WaitObject {
    set: OwnedFd,
    timer: OwnedFd,
    bell: OwnedFd,
    /// The driver's; a member of the set.
    _wake_fd: OwnedFd,
    /// A thread sleeps on it, or is about to.
    is_armed: AtomicBool,
    /// Number of armed ones of the engine.
    armed: Arc<AtomicUsize>,
    /// Tasks that sleep on it.
    wakers: Mutex<Vec<Waker>>,
}

impl WaitObject {
    /// Creates one; `wake_fd`: see [`crate::driver::traits::Driver::wake_fd`].
    pub(super) fn new(wake_fd: OwnedFd, armed: Arc<AtomicUsize>) -> io::Result<Self> {
        let set = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(refused("epoll_create1"))?;
        let timer_flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Monotonic, timer_flags)
            .map_err(refused("timerfd_create"))?;
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(refused("eventfd"))?;
        for member in [&timer, &bell, &wake_fd] {
            let data = epoll::EventData::new_u64(0);
            epoll::add(&set, member, data, epoll::EventFlags::IN).map_err(refused("epoll_ctl"))?;
        }
        let (is_armed, wakers) = (AtomicBool::new(false), Mutex::default());
        Ok(Self { set, timer, bell, _wake_fd: wake_fd, is_armed, armed, wakers })
    }

    /// Returns the descriptor.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.set.as_fd()
    }

    /// Resets it, until an event: to be called before the engine is prepared for the sleep. Later
    /// events make it readable.
    pub(super) fn begin_arming(&self) {
        // Empty has the same effect as read.
        let _ = rustix::io::read(&self.bell, &mut [0; 8]);
        if !self.is_armed.swap(true, Ordering::Relaxed) {
            self.armed.fetch_add(1, Ordering::Relaxed);
        }
        fence(Ordering::SeqCst);
    }

    /// Limits the sleep to `left`.
    pub(super) fn set_timer(&self, left: Duration) -> io::Result<()> {
        let value = match Timespec::try_from(left) {
            Ok(Timespec { tv_sec: 0, tv_nsec: 0 }) => Timespec { tv_sec: 0, tv_nsec: 1 },
            Ok(left) => left,
            Err(_) => Timespec { tv_sec: i64::MAX, tv_nsec: 0 },
        };
        let interval = Timespec { tv_sec: 0, tv_nsec: 0 };
        let time = Itimerspec { it_interval: interval, it_value: value };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &time)
            .map_err(refused("timerfd_settime"))?;
        Ok(())
    }

    /// Ends the sleep of its waiters. To be called after the events for them.
    pub(super) fn ring(&self) {
        fence(Ordering::SeqCst);
        if self.is_armed.load(Ordering::Relaxed) && self.is_armed.swap(false, Ordering::Relaxed) {
            self.armed.fetch_sub(1, Ordering::Relaxed);
            // A full counter wakes it as well.
            let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
        }
    }

    fn wakers(&self) -> MutexGuard<'_, Vec<Waker>> {
        self.wakers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a task that sleeps on it.
    pub(super) fn wake_when_readable(&self, waker: &Waker) {
        let mut wakers = self.wakers();
        if !wakers.iter().any(|known| known.will_wake(waker)) {
            wakers.push(waker.clone());
        }
    }

    /// Returns whether tasks sleep on it.
    pub(super) fn has_tasks(&self) -> bool {
        !self.wakers().is_empty()
    }

    /// Wakes the tasks that sleep on it; returns whether there were any.
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
