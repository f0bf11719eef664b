//! Datagram descriptors: read and written by direct calls, watched by the ring.

use std::io;

use io_uring::{opcode, types};

use super::super::datagrams::WatchSource;
use super::super::udp::SocketInterest;
use super::UringDriver;
use super::slots::RequestKind;

impl UringDriver {
    /// Reports what is ready and stages poll requests for the rest.
    #[inline]
    pub(super) fn serve_datagrams(&mut self, sleeps: bool) -> io::Result<()> {
        let is_armed = self.datagrams_armed[WatchSource::Frames as usize].readable;
        if is_armed && self.datagrams.must_cancel(WatchSource::Frames) {
            self.cancel_frames();
        }
        self.datagrams.serve(sleeps, is_armed, &mut self.ready);
        match self.datagrams.has_wants(&self.datagrams_armed) {
            true => self.request_wanted(sleeps),
            false => Ok(()),
        }
    }

    /// An outstanding poll request keeps the XDP queue busy.
    #[cold]
    fn cancel_frames(&mut self) {
        let waiting = self.slots.select(|kind| {
            matches!(kind, RequestKind::Datagrams { source: WatchSource::Frames, .. })
        });
        self.cancel(waiting);
    }

    #[cold]
    fn request_wanted(&mut self, sleeps: bool) -> io::Result<()> {
        for source in WatchSource::ALL {
            let wants = self.datagrams.wants(source, sleeps);
            let armed = self.datagrams_armed[source as usize];
            if wants.readable && !armed.readable {
                self.request_datagrams(source, libc::POLLIN)?;
            }
            if wants.writable && !armed.writable {
                self.request_datagrams(source, libc::POLLOUT)?;
            }
        }
        Ok(())
    }

    fn request_datagrams(&mut self, source: WatchSource, events: i16) -> io::Result<()> {
        let Some(fd) = self.datagrams.fd(source) else { return Ok(()) };
        let is_writable = events == libc::POLLOUT;
        *self.armed(source, is_writable) = true;
        let kind = RequestKind::Datagrams { source, is_writable };
        let entry = opcode::PollAdd::new(types::Fd(fd), events as u32).build();
        // SAFETY: a poll request points to nothing.
        let pushed = unsafe { self.request(kind, entry) };
        if pushed.is_err() {
            *self.armed(source, is_writable) = false;
        }
        pushed
    }

    fn armed(&mut self, source: WatchSource, is_writable: bool) -> &mut bool {
        let armed = &mut self.datagrams_armed[source as usize];
        if is_writable { &mut armed.writable } else { &mut armed.readable }
    }

    /// A poll request of a datagram source completed.
    pub(super) fn datagrams_ready(&mut self, source: WatchSource, is_writable: bool, result: i32) {
        *self.armed(source, is_writable) = false;
        if result == -libc::ECANCELED {
            return;
        }
        let announced = SocketInterest { readable: !is_writable, writable: is_writable };
        self.datagrams.on_ready(source, announced, &mut self.ready);
    }

    /// Flushes queued datagrams once and closes the sources; requests that watch them must still be
    /// cancelled.
    pub(super) fn drop_datagrams(&mut self) {
        self.datagrams.close();
    }
}
