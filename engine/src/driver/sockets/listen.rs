//! Listeners of rails whose NIC has changed.

use std::net::TcpListener;
use std::os::fd::AsRawFd;

use super::{LISTENER, SocketsDriver};
use crate::driver::traits::ConnectionIo;
use crate::forks::EngineFd;

impl SocketsDriver {
    /// [`ConnectionIo::rebind_listener`].
    pub(super) fn replace_listener(
        &mut self,
        rail: u8,
        everywhere: &TcpListener,
    ) -> Option<TcpListener> {
        let all = self.listeners.iter().map(|listener| &**listener);
        let (fresh, place) =
            self.rails.reopen_listener(rail, everywhere, all, &mut self.counters)?;
        let copy = fresh.try_clone().ok()?;
        let listening = match place {
            None => self.listen(fresh),
            Some(index) => {
                self.counters.syscalls += 2;
                let old = std::mem::replace(&mut self.listeners[index], EngineFd::new(fresh));
                let fd = self.listeners[index].as_raw_fd();
                // Closing it is not enough, as there are duplicates.
                self.epoll
                    .remove(old.as_raw_fd())
                    .and_then(|()| self.epoll.add(fd, LISTENER | index as u64))
            }
        };
        listening.inspect_err(|error| tracing::warn!("cannot listen on a rail: {error}")).ok()?;
        Some(copy)
    }
}
