//! A timer that a sleeping engine watches.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

/// A timer that is not armed.
pub(super) fn new() -> io::Result<OwnedFd> {
    let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
    Ok(timerfd_create(TimerfdClockId::Monotonic, flags)?)
}

/// Makes it readable once, after `pause`, which is not 0.
pub(super) fn arm_after(timer: &OwnedFd, pause: Duration) {
    let none = Timespec { tv_sec: 0, tv_nsec: 0 };
    let pause = Timespec { tv_sec: pause.as_secs() as i64, tv_nsec: pause.subsec_nanos() as _ };
    let when = Itimerspec { it_interval: none, it_value: pause };
    let _ = timerfd_settime(timer, TimerfdTimerFlags::empty(), &when);
}
