//! The UDP socket of a driver.
//!
//! Sending and receiving are direct calls, as they measure faster than io_uring requests (1.7
//! against 2.2 µs half a round trip). Each direction has a batch of preallocated buffers, so that a
//! turn of the engine makes one call for what it sends, and no datagram allocates. The socket is
//! watched only while the driver sleeps: membership in an epoll set costs 160 ns per datagram.
//!
//! With several rails a datagram carries its source and NIC in a control message, unless the kernel
//! would choose the same anyhow ([`route_cache`]).
//!
//! Datagrams to one destination are sent with [`gso`], and received with GRO while they arrive in
//! runs.

mod address;
mod batch;
mod gso;
mod incoming;
mod outgoing;
mod route_cache;
mod socket;
mod source;

use std::io;
use std::mem;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, RawFd};

use self::incoming::IncomingDatagrams;
use self::outgoing::OutgoingDatagrams;
pub(crate) use self::socket::{WANTED_BYTES, bind, buffers};
use crate::driver::traits::Rail;
use crate::driver::traits::{DriverCounters, DriverEvent, TxFlags};
use crate::forks::EngineFd;

/// Datagrams buffered in each direction.
const BATCH: usize = 64;

/// The events to watch the socket for.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct SocketInterest {
    /// A datagram can be received.
    pub(super) readable: bool,
    /// The kernel takes datagrams again.
    pub(super) writable: bool,
}

impl SocketInterest {
    /// The union of both.
    pub(super) fn or(self, other: Self) -> Self {
        Self {
            readable: self.readable || other.readable,
            writable: self.writable || other.writable,
        }
    }
}

/// The UDP side of a driver.
///
/// A driver calls [`Self::serve`] in each poll, asks the kernel for [`Self::wants`] before it
/// sleeps, and reports readiness to [`Self::on_ready`].
pub(super) struct UdpDatagrams {
    socket: EngineFd<UdpSocket>,
    outgoing: OutgoingDatagrams,
    incoming: IncomingDatagrams,
    /// The caller waits for [`DriverEvent::DatagramsReadable`].
    is_watched: bool,
    /// The caller waits for [`DriverEvent::DatagramsWritable`].
    wants_room: bool,
    /// The send buffer is full; the rest is sent when the socket is writable.
    is_blocked: bool,
}

impl UdpDatagrams {
    /// Takes over a bound socket.
    pub(super) fn new(socket: UdpSocket) -> io::Result<Self> {
        let local = socket.local_addr()?;
        // An earlier driver may have enabled it; a kernel without it fails.
        let _ = gso::set_gro(socket.as_raw_fd(), false);
        let has_gso = gso::has_gso(socket.as_raw_fd());
        Ok(Self {
            socket: EngineFd::new(socket),
            outgoing: OutgoingDatagrams::new(local, has_gso),
            incoming: IncomingDatagrams::new(),
            is_watched: false,
            wants_room: false,
            is_blocked: false,
        })
    }

    pub(super) fn set_rails(&mut self, rails: &[Rail], counters: &mut DriverCounters) {
        self.outgoing.invalidate_routes();
        self.flush(counters);
        self.outgoing.set_rails(rails);
    }

    pub(super) fn fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    #[inline]
    pub(super) fn room(&mut self, counters: &mut DriverCounters) -> io::Result<&mut [u8]> {
        if self.outgoing.is_full() {
            self.make_room(counters)?;
        }
        Ok(self.outgoing.room())
    }

    #[cold]
    fn make_room(&mut self, counters: &mut DriverCounters) -> io::Result<()> {
        self.flush(counters);
        if self.outgoing.is_full() {
            self.wants_room = true;
            return Err(io::ErrorKind::WouldBlock.into());
        }
        Ok(())
    }

    #[inline]
    pub(super) fn send(
        &mut self,
        to: SocketAddr,
        rail: u8,
        length: usize,
        tx_flags: TxFlags,
        counters: &mut DriverCounters,
    ) {
        self.outgoing.push(to, rail, length, tx_flags, counters);
    }

    #[inline]
    pub(super) fn flush(&mut self, counters: &mut DriverCounters) {
        if !self.outgoing.is_empty() {
            self.flush_queued(counters);
        }
    }

    #[inline(never)]
    fn flush_queued(&mut self, counters: &mut DriverCounters) {
        self.incoming.end_run();
        self.is_blocked = !self.outgoing.flush(self.socket.as_raw_fd(), counters);
    }

    #[inline(always)]
    pub(super) fn receive(
        &mut self,
        counters: &mut DriverCounters,
    ) -> io::Result<Option<(SocketAddr, &mut [u8])>> {
        self.incoming.take(self.socket.as_raw_fd(), counters)
    }

    pub(super) fn watch(&mut self) {
        self.is_watched = true;
    }

    /// Whether the caller waits for [`DriverEvent::DatagramsReadable`].
    pub(super) fn is_watched(&self) -> bool {
        self.is_watched
    }

    /// Reports events that need no system call: buffered datagrams, room made by a flush. `sleeps`:
    /// the driver is about to sleep.
    #[inline]
    pub(super) fn serve(&mut self, sleeps: bool, events: &mut Vec<DriverEvent>) {
        self.incoming.mark_stale();
        self.outgoing.poll(sleeps);
        if self.is_watched || self.wants_room {
            self.report(events);
        }
    }

    #[inline(never)]
    fn report(&mut self, events: &mut Vec<DriverEvent>) {
        if self.is_watched && self.incoming.is_held() {
            self.is_watched = false;
            events.push(DriverEvent::DatagramsReadable);
        }
        if self.wants_room && !self.outgoing.is_full() {
            self.wants_room = false;
            events.push(DriverEvent::DatagramsWritable);
        }
    }

    /// Returns the events to request from the kernel, excluding requests already made.
    #[inline]
    pub(super) fn wants(&self) -> SocketInterest {
        SocketInterest { readable: self.is_watched, writable: self.is_blocked }
    }

    /// Whether there are such events.
    #[inline]
    pub(super) fn has_wants(&self) -> bool {
        self.is_watched || self.is_blocked
    }

    /// The kernel reported readiness.
    pub(super) fn on_ready(
        &mut self,
        what: SocketInterest,
        counters: &mut DriverCounters,
        events: &mut Vec<DriverEvent>,
    ) {
        if what.readable && mem::take(&mut self.is_watched) {
            events.push(DriverEvent::DatagramsReadable);
        }
        if what.writable && self.is_blocked {
            self.flush(counters);
            self.serve(false, events);
        }
    }
}

/// The code of the error of the last system call; unlike an [`io::Error`] it needs no drop.
fn error_code() -> i32 {
    // SAFETY: the location is valid for the life of the thread.
    unsafe { *libc::__errno_location() }
}

/// The error of the last system call.
fn failed() -> io::Error {
    io::Error::last_os_error()
}

/// Headers for a batch of `count` messages.
fn headers(count: usize) -> Box<[libc::mmsghdr]> {
    // SAFETY: `mmsghdr` is integers and pointers, for which zero bytes are a value.
    (0..count).map(|_| unsafe { mem::zeroed() }).collect()
}

/// `iovec`s for a batch of `count` datagrams.
fn pieces(count: usize) -> Box<[libc::iovec]> {
    let none = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
    vec![none; count].into()
}
