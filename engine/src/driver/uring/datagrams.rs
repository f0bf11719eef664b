//! The socket of datagrams: read and written by direct calls, watched by the ring.

use std::io;

use io_uring::{opcode, types};

use super::super::udp::{Datagrams, Wants};
use super::UringDriver;
use super::slots::Kind;

/// A socket of datagrams and what the ring was asked for: requests that are not completed.
pub(super) struct Watched {
    pub(super) datagrams: Datagrams,
    armed: Wants,
}

impl Watched {
    pub(super) fn new(datagrams: Datagrams) -> Self {
        Self { datagrams, armed: Wants::default() }
    }
}

impl UringDriver {
    /// Reports what is here already and stages requests for the rest.
    pub(super) fn serve_datagrams(&mut self) -> io::Result<()> {
        let Some(watched) = &mut self.datagrams else { return Ok(()) };
        watched.datagrams.serve(&mut self.ready);
        let (wants, armed) = (watched.datagrams.wants(), watched.armed);
        if wants.readable && !armed.readable {
            self.request_datagrams(libc::POLLIN)?;
        }
        if wants.writable && !armed.writable {
            self.request_datagrams(libc::POLLOUT)?;
        }
        Ok(())
    }

    fn request_datagrams(&mut self, events: i16) -> io::Result<()> {
        let Some(watched) = &mut self.datagrams else { return Ok(()) };
        let is_writable = events == libc::POLLOUT;
        let fd = types::Fd(watched.datagrams.fd());
        let way =
            if is_writable { &mut watched.armed.writable } else { &mut watched.armed.readable };
        *way = true;
        let user_data = self.slots.insert(Kind::Datagrams { is_writable });
        let entry = opcode::PollAdd::new(fd, events as u32).build().user_data(user_data);
        // SAFETY: a poll request points to nothing.
        let pushed = unsafe { self.push(&entry) };
        if pushed.is_err() {
            self.slots.remove(user_data);
            self.disarm(is_writable);
        }
        pushed
    }

    fn disarm(&mut self, is_writable: bool) {
        if let Some(watched) = &mut self.datagrams {
            let armed = &mut watched.armed;
            *if is_writable { &mut armed.writable } else { &mut armed.readable } = false;
        }
    }

    /// A request for the socket of datagrams completed.
    pub(super) fn datagrams_ready(&mut self, is_writable: bool, result: i32) {
        self.disarm(is_writable);
        let Some(watched) = &mut self.datagrams else { return };
        if result == -libc::ECANCELED {
            return;
        }
        let announced = Wants { readable: !is_writable, writable: is_writable };
        watched.datagrams.announced(announced, &mut self.counters, &mut self.ready);
    }

    /// Sends what is queued a last time and gives the socket up; requests that watch it are still
    /// to be cancelled.
    pub(super) fn drop_datagrams(&mut self) {
        if let Some(mut watched) = self.datagrams.take() {
            watched.datagrams.flush(&mut self.counters);
        }
    }
}
