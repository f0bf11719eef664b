//! Datagrams on their way out.

use std::io;
use std::net::SocketAddr;
use std::os::fd::RawFd;

use super::super::calls;
use super::address::{Family, RawAddress};
use super::source::Source;
use super::usual::Usual;
use super::{BATCH, failed};
use crate::progress::lanes::Rail;
use crate::progress::lanes::{DATAGRAM_BYTES_MAX, DriverCounters};

/// A datagram and where it goes.
#[repr(C, align(64))]
struct Slot {
    bytes: [u8; DATAGRAM_BYTES_MAX],
    address: RawAddress,
    address_bytes: libc::socklen_t,
    length: usize,
    rail: u8,
    /// The kernel sends it by its rail unasked.
    is_usual: bool,
}

/// A ring of datagrams that the kernel has not taken.
///
/// A single one goes by `sendto`, which takes 125 ns less than `sendmmsg` of one (of 1480 ns for
/// sending and receiving on a loopback); more go in as few calls as the kernel lets.
pub(super) struct Outgoing {
    slots: Box<[Slot]>,
    headers: Box<[libc::mmsghdr]>,
    pieces: Box<[libc::iovec]>,
    /// The first datagram.
    head: usize,
    /// How many there are.
    count: usize,
    family: Family,
    /// The socket is bound to no address.
    is_wildcard: bool,
    /// Of each rail, if there are several: `None` where the socket cannot send from its address.
    sources: Box<[Option<Source>]>,
    usual: Usual,
}

// SAFETY: the pointers in `headers` and `pieces` are written anew before each system call and not
// followed after it, so that the value may move between threads.
unsafe impl Send for Outgoing {}

impl Outgoing {
    /// For a socket that is bound to `local`.
    pub(super) fn new(local: SocketAddr) -> Self {
        let slot = |_| Slot {
            bytes: [0; DATAGRAM_BYTES_MAX],
            address: RawAddress::new(),
            address_bytes: 0,
            length: 0,
            rail: 0,
            is_usual: false,
        };
        Self {
            slots: (0..BATCH).map(slot).collect(),
            headers: super::headers(),
            pieces: super::pieces(),
            head: 0,
            count: 0,
            family: Family::of(local),
            is_wildcard: local.ip().is_unspecified(),
            sources: Box::default(),
            usual: Usual::new(),
        }
    }

    /// The rails from now on.
    pub(super) fn set_rails(&mut self, rails: &[Rail]) {
        self.sources = match rails {
            // The socket is bound to the address of the only one.
            [_] if !self.is_wildcard => Box::default(),
            rails => rails.iter().map(|rail| Source::of(rail, self.family)).collect(),
        };
        self.usual.set_rails(if self.is_wildcard { rails } else { &[] });
    }

    /// Comes with each poll.
    pub(super) fn poll(&mut self, sleeps: bool) {
        self.usual.poll(sleeps);
    }

    /// Ways may lead elsewhere by now: what is queued says its own.
    pub(super) fn doubt_ways(&mut self) {
        self.slots.iter_mut().for_each(|slot| slot.is_usual = false);
    }

    /// Whether a datagram can leave by `rail`.
    fn has(&self, rail: u8) -> bool {
        match self.sources.get(usize::from(rail)) {
            Some(source) => source.is_some(),
            None => self.sources.is_empty() && rail == 0,
        }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.count == BATCH
    }

    fn tail(&self) -> usize {
        (self.head + self.count) % BATCH
    }

    /// Room for the next datagram; there must be some.
    pub(super) fn room(&mut self) -> &mut [u8] {
        debug_assert!(!self.is_full());
        let tail = self.tail();
        &mut self.slots[tail].bytes
    }

    /// Queues what was written into the room.
    #[inline]
    pub(super) fn push(
        &mut self,
        to: SocketAddr,
        rail: u8,
        length: usize,
        counters: &mut DriverCounters,
    ) {
        debug_assert!(!self.is_full() && length <= DATAGRAM_BYTES_MAX);
        if !self.has(rail) {
            counters.datagrams_refused += 1;
            return;
        }
        let (tail, family) = (self.tail(), self.family);
        let slot = &mut self.slots[tail];
        match slot.address.set(to, family) {
            Some(bytes) => {
                slot.address_bytes = bytes;
                slot.length = length.min(DATAGRAM_BYTES_MAX);
                slot.rail = rail;
                slot.is_usual = self.sources.is_empty() || self.usual.is(to.ip(), rail);
                self.count += 1;
            }
            None => counters.datagrams_refused += 1,
        }
    }

    /// Hands over what there is; `false` when the kernel has no room now and some is left.
    ///
    /// What is refused for another reason concerns one destination: that datagram is lost. As an
    /// error may also be one that the socket had pending because of an earlier datagram, it goes
    /// once more before that.
    pub(super) fn flush(&mut self, socket: RawFd, counters: &mut DriverCounters) -> bool {
        let mut is_second_try = false;
        while self.count > 0 {
            counters.syscalls += 1;
            let result = match self.count {
                1 if self.slots[self.head].is_usual => self.send_one(socket),
                count => self.send_many(socket, count),
            };
            match result {
                Ok(sent) => {
                    counters.datagrams_sent += sent as u64;
                    self.advance(sent);
                    is_second_try = false;
                }
                Err(error) => match error.raw_os_error() {
                    Some(libc::EINTR) => {}
                    Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM) => return false,
                    _ if !is_second_try => is_second_try = true,
                    _ => {
                        tracing::trace!("a datagram is lost here: {error}");
                        counters.datagrams_refused += 1;
                        self.advance(1);
                        is_second_try = false;
                    }
                },
            }
        }
        true
    }

    fn advance(&mut self, count: usize) {
        self.count -= count;
        // An empty ring begins where the cache is warm.
        self.head = if self.count == 0 { 0 } else { (self.head + count) % BATCH };
    }

    fn send_one(&mut self, socket: RawFd) -> io::Result<usize> {
        let slot = &self.slots[self.head];
        // SAFETY: pointers and lengths describe initialised bytes of the slot, which the kernel
        // only reads during the call.
        let rc = unsafe {
            calls::sendto(
                socket,
                slot.bytes.as_ptr(),
                slot.length,
                libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
                (&raw const slot.address).cast(),
                slot.address_bytes,
            )
        };
        if rc < 0 { Err(failed()) } else { Ok(1) }
    }

    fn send_many(&mut self, socket: RawFd, count: usize) -> io::Result<usize> {
        let pieces = self.pieces.as_mut_ptr();
        for at in 0..count {
            let slot = &mut self.slots[(self.head + at) % BATCH];
            let piece =
                libc::iovec { iov_base: slot.bytes.as_mut_ptr().cast(), iov_len: slot.length };
            let header = &mut self.headers[at].msg_hdr;
            header.msg_name = (&raw mut slot.address).cast();
            header.msg_namelen = slot.address_bytes;
            // Where the rail is gone since, routes decide.
            let (control, control_bytes) = match self.sources.get(usize::from(slot.rail)) {
                Some(Some(source)) if !slot.is_usual => source.message(),
                _ => (std::ptr::null(), 0),
            };
            header.msg_control = control.cast_mut().cast();
            header.msg_controllen = control_bytes as _;
            // SAFETY: `at` is below BATCH, the number of pieces, which nothing else refers to.
            unsafe {
                header.msg_iov = pieces.add(at);
                pieces.add(at).write(piece);
            }
            header.msg_iovlen = 1;
        }
        // SAFETY: the first `count` headers describe pieces, slots, addresses and sources that stay
        // where they are during the call; the kernel writes to the headers' lengths only, and reads
        // the control messages.
        let rc = unsafe {
            libc::sendmmsg(
                socket,
                self.headers.as_mut_ptr(),
                count as libc::c_uint,
                (libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) as _,
            )
        };
        if rc < 0 { Err(failed()) } else { Ok(rc as usize) }
    }
}
