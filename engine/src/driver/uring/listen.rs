//! Listeners: watched by the ring, accepted from by direct calls.

use std::io;
use std::os::fd::{AsRawFd, RawFd};

use io_uring::{opcode, types};

use super::super::tcp;
use super::UringDriver;
use super::features::Name;
use super::slots::Kind;
use crate::progress::lanes::{Driver, Event};

impl UringDriver {
    pub(super) fn watch_listener(&mut self, listener: usize) {
        let fd: RawFd = self.listeners[listener].as_raw_fd();
        let entry = opcode::PollAdd::new(types::Fd(fd), libc::POLLIN as u32)
            .multi(self.features.has(Name::MultishotPoll))
            .build();
        let user_data = self.slots.insert(Kind::Listen(listener));
        // SAFETY: a poll request points to nothing.
        if let Err(error) = unsafe { self.push(&entry.user_data(user_data)) } {
            self.slots.remove(user_data);
            tracing::error!("no more connections can be accepted: {error}");
        }
    }

    pub(super) fn accept_all(&mut self, listener: usize) {
        loop {
            self.counters.syscalls += 1;
            match tcp::accept(&self.listeners[listener]) {
                Ok(None) => return,
                Ok(Some((socket, remote))) => match self.adopt(socket) {
                    Ok(lane) => self.ready.push(Event::Accepted { lane, remote }),
                    Err(error) => tracing::warn!("refused a connection from {remote}: {error}"),
                },
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted
                    ) => {}
                Err(error) => {
                    tracing::warn!("cannot accept a connection now: {error}");
                    return;
                }
            }
        }
    }
}
