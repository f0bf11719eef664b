//! The socket of datagrams in the epoll set: there only while the driver waits for it.

use std::io;

use super::super::udp::{Datagrams, Wants};
use super::SocketsDriver;

/// The epoll name of the socket of datagrams: no lane has it, and no listener.
pub(super) const DATAGRAMS: u64 = u64::MAX;

/// A socket of datagrams and what epoll was asked for.
pub(super) struct Watched {
    pub(super) datagrams: Datagrams,
    armed: Wants,
}

impl Watched {
    pub(super) fn new(datagrams: Datagrams) -> Self {
        Self { datagrams, armed: Wants::default() }
    }
}

impl SocketsDriver {
    /// Reports what is here already and has epoll asked for the rest.
    pub(super) fn serve_datagrams(&mut self) -> io::Result<()> {
        let Some(watched) = &mut self.datagrams else { return Ok(()) };
        watched.datagrams.serve(&mut self.ready);
        let wants = watched.datagrams.wants().or(watched.armed);
        if wants == watched.armed {
            return Ok(());
        }
        let none = Wants::default();
        if watched.armed != none {
            self.counters.syscalls += 1;
            self.epoll.remove(watched.datagrams.fd())?;
            watched.armed = none;
        }
        let readable = if wants.readable { libc::EPOLLIN } else { 0 };
        let writable = if wants.writable { libc::EPOLLOUT } else { 0 };
        self.counters.syscalls += 1;
        self.epoll.arm(watched.datagrams.fd(), DATAGRAMS, readable | writable)?;
        watched.armed = wants;
        Ok(())
    }

    /// Epoll announced something of the socket of datagrams.
    pub(super) fn datagrams_event(&mut self, mask: u32) -> io::Result<()> {
        let Some(watched) = &mut self.datagrams else {
            self.counters.stale_completions += 1;
            return Ok(());
        };
        watched.armed = Wants::default();
        self.counters.syscalls += 1;
        self.epoll.remove(watched.datagrams.fd())?;
        let is_broken = mask & (libc::EPOLLERR | libc::EPOLLHUP) as u32 != 0;
        let announced = Wants {
            readable: is_broken || mask & libc::EPOLLIN as u32 != 0,
            writable: is_broken || mask & libc::EPOLLOUT as u32 != 0,
        };
        watched.datagrams.announced(announced, &mut self.counters, &mut self.ready);
        Ok(())
    }

    /// Sends what is queued a last time and gives the socket up.
    pub(super) fn drop_datagrams(&mut self) {
        let Some(mut watched) = self.datagrams.take() else { return };
        watched.datagrams.flush(&mut self.counters);
        if watched.armed != Wants::default() {
            self.counters.syscalls += 1;
            // The driver is at its end, and epoll with it.
            let _ = self.epoll.remove(watched.datagrams.fd());
        }
    }
}
