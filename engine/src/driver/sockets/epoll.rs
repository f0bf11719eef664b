//! A thin wrapper of an epoll descriptor.

use crate::forks::EngineFd;
use crate::refused_call::refused;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::time::Duration;

/// Events per call.
pub(super) const BATCH: usize = 64;

/// An epoll set whose lanes are registered once, edge-triggered, for both directions: no
/// `epoll_ctl` on the data path. The datagram socket is a member only while it is waited for.
#[derive(Debug)]
pub(super) struct Epoll {
    fd: EngineFd,
    /// `epoll_pwait2` (Linux 5.11) is available, with timeouts below a millisecond.
    precise: bool,
    events: [libc::epoll_event; BATCH],
}

impl Epoll {
    pub(super) fn new() -> io::Result<Self> {
        // SAFETY: the call takes no pointer.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(refused("epoll_create1")(io::Error::last_os_error()));
        }
        // SAFETY: the kernel just gave us this descriptor.
        let fd = EngineFd::new(unsafe { OwnedFd::from_raw_fd(fd) });
        Ok(Self { fd, precise: true, events: [libc::epoll_event { events: 0, u64: 0 }; BATCH] })
    }

    /// A duplicate of the descriptor.
    pub(super) fn copy(&self) -> io::Result<OwnedFd> {
        self.fd.try_clone()
    }

    pub(super) fn add(&self, socket: RawFd, name: u64) -> io::Result<()> {
        let interest = libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLRDHUP | libc::EPOLLET;
        let mut event = libc::epoll_event { events: interest as u32, u64: name };
        self.control(libc::EPOLL_CTL_ADD, socket, &mut event)
    }

    /// Adds a descriptor level-triggered: remove or drain it when its event came.
    pub(super) fn arm(&self, socket: RawFd, name: u64, interest: libc::c_int) -> io::Result<()> {
        let mut event = libc::epoll_event { events: interest as u32, u64: name };
        self.control(libc::EPOLL_CTL_ADD, socket, &mut event)
    }

    /// Must precede giving a socket away: membership belongs to the open file, not to the
    /// descriptor.
    pub(super) fn remove(&self, socket: RawFd) -> io::Result<()> {
        let mut unused = libc::epoll_event { events: 0, u64: 0 };
        self.control(libc::EPOLL_CTL_DEL, socket, &mut unused)
    }

    fn control(
        &self,
        operation: libc::c_int,
        socket: RawFd,
        event: &mut libc::epoll_event,
    ) -> io::Result<()> {
        // SAFETY: `event` outlives the call.
        let rc = unsafe { libc::epoll_ctl(self.fd.as_raw_fd(), operation, socket, event) };
        if rc == 0 { Ok(()) } else { Err(refused("epoll_ctl")(io::Error::last_os_error())) }
    }

    /// Waits for up to `timeout`; returns how many events [`Self::event`] has. A signal counts as
    /// no event.
    pub(super) fn wait(&mut self, timeout: Duration) -> io::Result<usize> {
        let fd = self.fd.as_raw_fd();
        let events = self.events.as_mut_ptr();
        let rc = if self.precise && !timeout.is_zero() {
            let limit = libc::timespec {
                tv_sec: libc::time_t::try_from(timeout.as_secs()).unwrap_or(libc::time_t::MAX),
                tv_nsec: timeout.subsec_nanos() as _,
            };
            // SAFETY: `events` has room for BATCH events; both pointers outlive the call, and a
            // null signal mask leaves signals alone.
            unsafe {
                libc::syscall(
                    libc::SYS_epoll_pwait2,
                    fd,
                    events,
                    BATCH as libc::c_int,
                    &raw const limit,
                    ptr::null::<libc::sigset_t>(),
                    0usize,
                ) as i64
            }
        } else {
            let limit_ms = timeout.as_nanos().div_ceil(1_000_000).min(i32::MAX as u128);
            // SAFETY: `events` has room for BATCH events and outlives the call.
            unsafe { libc::epoll_wait(fd, events, BATCH as libc::c_int, limit_ms as i32) }.into()
        };
        if rc >= 0 {
            return Ok(rc as usize);
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EINTR) => Ok(0),
            // Not available: an old kernel, or a seccomp profile.
            Some(libc::ENOSYS | libc::EPERM) if self.precise => {
                self.precise = false;
                self.wait(timeout)
            }
            _ => Err(refused("epoll_wait")(error)),
        }
    }

    /// Data and mask of event `index` of the last wait.
    pub(super) fn event(&self, index: usize) -> (u64, u32) {
        let event = self.events[index];
        (event.u64, event.events)
    }
}
