//! Datagram descriptors in the epoll set: members only while the driver waits for them.

use std::io;

use super::super::datagrams::WatchSource;
use super::super::udp::SocketInterest;
use super::SocketsDriver;

/// The epoll data of a datagram source; distinct from that of lanes and listeners.
fn name_of(source: WatchSource) -> u64 {
    u64::MAX - source as u64
}

/// The source with this epoll data.
pub(super) fn source_of(name: u64) -> Option<WatchSource> {
    WatchSource::ALL.into_iter().find(|&source| name_of(source) == name)
}

impl SocketsDriver {
    /// Reports what is ready and has epoll watch the rest.
    pub(super) fn serve_datagrams(&mut self, sleeps: bool) -> io::Result<()> {
        // A closed descriptor leaves the set by itself.
        for source in WatchSource::ALL {
            if self.datagrams.must_cancel(source) {
                self.datagrams_armed[source as usize] = SocketInterest::default();
            }
        }
        self.datagrams.serve(sleeps, false, &mut self.ready);
        if self.datagrams.has_wants(&self.datagrams_armed) {
            for source in WatchSource::ALL {
                self.arm_datagrams(source, sleeps)?;
            }
        }
        Ok(())
    }

    fn arm_datagrams(&mut self, source: WatchSource, sleeps: bool) -> io::Result<()> {
        let Some(fd) = self.datagrams.fd(source) else { return Ok(()) };
        let armed = self.datagrams_armed[source as usize];
        let wants = self.datagrams.wants(source, sleeps).or(armed);
        if wants == armed {
            return Ok(());
        }
        self.disarm_datagrams(source)?;
        self.poll_epoll_soon();
        let readable = if wants.readable { libc::EPOLLIN } else { 0 };
        let writable = if wants.writable { libc::EPOLLOUT } else { 0 };
        self.counters.syscalls += 1;
        self.epoll.arm(fd, name_of(source), readable | writable)?;
        self.datagrams_armed[source as usize] = wants;
        Ok(())
    }

    fn disarm_datagrams(&mut self, source: WatchSource) -> io::Result<()> {
        let armed = std::mem::take(&mut self.datagrams_armed[source as usize]);
        match self.datagrams.fd(source) {
            Some(fd) if armed != SocketInterest::default() => {
                self.counters.syscalls += 1;
                self.epoll.remove(fd)
            }
            _ => Ok(()),
        }
    }

    /// Handles an epoll event of a datagram source.
    pub(super) fn datagrams_event(&mut self, source: WatchSource, mask: u32) -> io::Result<()> {
        if self.datagrams_armed[source as usize] == SocketInterest::default() {
            self.counters.stale_completions += 1;
            return Ok(());
        }
        self.disarm_datagrams(source)?;
        let is_broken = mask & (libc::EPOLLERR | libc::EPOLLHUP) as u32 != 0;
        let announced = SocketInterest {
            readable: is_broken || mask & libc::EPOLLIN as u32 != 0,
            writable: is_broken || mask & libc::EPOLLOUT as u32 != 0,
        };
        self.datagrams.on_ready(source, announced, &mut self.ready);
        Ok(())
    }

    /// Flushes queued datagrams once and closes the sources.
    pub(super) fn drop_datagrams(&mut self) {
        self.datagrams.flush_datagrams();
        for source in WatchSource::ALL {
            // The driver ends, and epoll with it.
            let _ = self.disarm_datagrams(source);
        }
        self.datagrams.close();
    }
}
