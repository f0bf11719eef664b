//! Sending datagrams.

use std::io;
use std::net::SocketAddr;
use std::os::fd::RawFd;

use super::super::calls;
use super::address::{Family, RawAddress};
use super::gso::{self, ControlMessages};
use super::route_cache::RouteCache;
use super::source::SourceAddress;
use super::{BATCH, failed};
use crate::driver::traits::Rail;
use crate::driver::traits::{DATAGRAM_BYTES_MAX, DriverCounters, TxFlags};

/// A datagram and its destination.
#[repr(C, align(64))]
struct QueuedDatagram {
    bytes: [u8; DATAGRAM_BYTES_MAX],
    address: RawAddress,
    address_bytes: libc::socklen_t,
    length: usize,
    rail: u8,
    /// The kernel's default route is its rail.
    is_default_route: bool,
    /// It must not be part of a GSO batch.
    no_gso: bool,
}

impl QueuedDatagram {
    /// Whether both may be in one GSO batch.
    fn shares_message_with(&self, other: &Self) -> bool {
        self.address_bytes == other.address_bytes
            && self.rail == other.rail
            && self.is_default_route == other.is_default_route
            && self.address.equals(&other.address, self.address_bytes)
    }
}

/// A ring buffer of datagrams that the kernel has not taken.
///
/// A single one is sent by `sendto`, which takes 125 ns less than `sendmmsg` of one (of 1480 ns for
/// sending and receiving on a loopback); more are sent in as few calls as possible. Those of one
/// length to one destination form a GSO batch, one message that the kernel splits (`UDP_SEGMENT`):
/// most of the cost of a datagram is its way through the kernel.
pub(super) struct OutgoingDatagrams {
    slots: Box<[QueuedDatagram]>,
    headers: Box<[libc::mmsghdr]>,
    pieces: Box<[libc::iovec]>,
    controls: Box<[ControlMessages]>,
    /// Datagrams in each message of the last call.
    batch_lengths: Box<[u8]>,
    /// The kernel supports GSO, and has not refused a batch.
    has_gso: bool,
    /// Index of the first datagram.
    head: usize,
    /// Number of datagrams.
    count: usize,
    family: Family,
    /// The socket is bound to the wildcard address.
    is_wildcard: bool,
    /// The source of each rail, if there are several: `None` if the socket cannot send from its
    /// address.
    sources: Box<[Option<SourceAddress>]>,
    routes: RouteCache,
}

// SAFETY: the pointers in `headers` and `pieces` are written anew before each system call and not
// followed after it, so that the value may move between threads.
unsafe impl Send for OutgoingDatagrams {}

/// Whether an error may mean that the kernel, a sandbox, or a NIC without checksum offload does not
/// support GSO.
fn is_gso_refusal(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EIO | libc::EINVAL | libc::EOPNOTSUPP | libc::ENOPROTOOPT)
    )
}

impl OutgoingDatagrams {
    /// For a socket bound to `local`. `has_gso`: the kernel supports GSO.
    pub(super) fn new(local: SocketAddr, has_gso: bool) -> Self {
        let slot = |_| QueuedDatagram {
            bytes: [0; DATAGRAM_BYTES_MAX],
            address: RawAddress::new(),
            address_bytes: 0,
            length: 0,
            rail: 0,
            is_default_route: false,
            no_gso: false,
        };
        Self {
            slots: (0..BATCH).map(slot).collect(),
            headers: super::headers(BATCH),
            pieces: super::pieces(BATCH),
            controls: vec![ControlMessages::new(); BATCH].into(),
            batch_lengths: vec![0; BATCH].into(),
            has_gso,
            head: 0,
            count: 0,
            family: Family::of(local),
            is_wildcard: local.ip().is_unspecified(),
            sources: Box::default(),
            routes: RouteCache::new(),
        }
    }

    /// Sets the rails.
    pub(super) fn set_rails(&mut self, rails: &[Rail]) {
        self.sources = match rails {
            // The socket is bound to the address of the only rail.
            [_] if !self.is_wildcard => Box::default(),
            rails => rails.iter().map(|rail| SourceAddress::of(rail, self.family)).collect(),
        };
        self.routes.set_rails(if self.is_wildcard { rails } else { &[] });
    }

    /// Called in each poll.
    #[inline]
    pub(super) fn poll(&mut self, sleeps: bool) {
        self.routes.poll(sleeps);
    }

    /// Routes may have changed: queued datagrams get control messages.
    pub(super) fn invalidate_routes(&mut self) {
        self.slots.iter_mut().for_each(|slot| slot.is_default_route = false);
    }

    /// Whether a datagram can be sent by `rail`.
    #[inline]
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

    #[inline]
    fn tail(&self) -> usize {
        (self.head + self.count) % BATCH
    }

    /// Buffer of the next datagram; the queue must not be full.
    #[inline]
    pub(super) fn room(&mut self) -> &mut [u8] {
        debug_assert!(!self.is_full());
        let tail = self.tail();
        &mut self.slots[tail].bytes
    }

    /// Queues the datagram in the buffer.
    #[inline(always)]
    pub(super) fn push(
        &mut self,
        to: SocketAddr,
        rail: u8,
        length: usize,
        tx_flags: TxFlags,
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
                slot.no_gso = tx_flags.no_gso;
                slot.is_default_route =
                    self.sources.is_empty() || self.routes.is_default(to.ip(), rail);
                self.count += 1;
            }
            None => counters.datagrams_refused += 1,
        }
    }

    /// Sends queued datagrams; `false` if the socket buffer is full and some are left.
    #[inline]
    pub(super) fn flush(&mut self, socket: RawFd, counters: &mut DriverCounters) -> bool {
        let mut first = None;
        if self.count == 1 && self.slots[self.head].is_default_route {
            counters.syscalls += 1;
            let sent = self.send_one(socket);
            if sent.is_ok() {
                counters.datagrams_sent += 1;
                (self.count, self.head) = (0, 0);
                return true;
            }
            first = Some(sent);
        }
        self.flush_all(socket, first, counters)
    }

    /// [`Self::flush`] of more than one, or after a call that returned `first`.
    ///
    /// Other errors concern one destination: that datagram is lost. As an error may also be a
    /// pending one of an earlier datagram, or concern a GSO batch, the datagram is sent once more
    /// alone before that.
    #[inline(never)]
    fn flush_all(
        &mut self,
        socket: RawFd,
        mut first: Option<io::Result<usize>>,
        counters: &mut DriverCounters,
    ) -> bool {
        let mut is_second_try = false;
        while self.count > 0 {
            let result = first.take().unwrap_or_else(|| {
                counters.syscalls += 1;
                match self.count {
                    1 if self.slots[self.head].is_default_route => self.send_one(socket),
                    _ => self.send_many(socket, self.has_gso && !is_second_try),
                }
            });
            match result {
                Ok(sent) => {
                    counters.datagrams_sent += sent as u64;
                    self.advance(sent);
                    is_second_try = false;
                }
                Err(error) if self.has_gso && is_gso_refusal(&error) => {
                    tracing::debug!("GSO is not available, sending datagrams singly: {error}");
                    self.has_gso = false;
                }
                Err(error) => match error.raw_os_error() {
                    Some(libc::EINTR) => {}
                    Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM) => return false,
                    _ if !is_second_try => is_second_try = true,
                    _ => {
                        tracing::trace!("datagram dropped: {error}");
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
        // An empty queue restarts where the cache is warm.
        self.head = if self.count == 0 { 0 } else { (self.head + count) % BATCH };
    }

    #[inline]
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

    /// Sends all queued datagrams in one call; returns how many the kernel took.
    fn send_many(&mut self, socket: RawFd, with_gso: bool) -> io::Result<usize> {
        let pieces = self.pieces.as_mut_ptr();
        let (mut messages, mut at) = (0, 0);
        while at < self.count {
            let length = if with_gso { self.gso_length(at) } else { 1 };
            let first = &self.slots[(self.head + at) % BATCH];
            // If the rail was removed, routing decides.
            let source = match self.sources.get(usize::from(first.rail)) {
                Some(Some(source)) if !first.is_default_route => Some(source),
                _ => None,
            };
            let segment = (length > 1).then_some(first.length as u16);
            let (control, control_bytes) = self.controls[messages].set(source, segment);
            for offset in at..at + length {
                let slot = &self.slots[(self.head + offset) % BATCH];
                let bytes = slot.bytes.as_ptr().cast_mut().cast();
                // SAFETY: `offset` is below BATCH, the number of pieces, which nothing else refers
                // to.
                unsafe {
                    pieces.add(offset).write(libc::iovec { iov_base: bytes, iov_len: slot.length });
                }
            }
            let slot = &self.slots[(self.head + at) % BATCH];
            let header = &mut self.headers[messages].msg_hdr;
            header.msg_name = (&raw const slot.address).cast_mut().cast();
            header.msg_namelen = slot.address_bytes;
            header.msg_control = control.cast_mut().cast();
            header.msg_controllen = control_bytes as _;
            // SAFETY: `at` is below BATCH, the number of pieces.
            header.msg_iov = unsafe { pieces.add(at) };
            header.msg_iovlen = length as _;
            self.batch_lengths[messages] = length as u8;
            (messages, at) = (messages + 1, at + length);
        }
        // SAFETY: the first `messages` headers describe pieces, slots, addresses and control
        // messages that stay where they are during the call; the kernel writes to the headers'
        // lengths only.
        let rc = unsafe {
            libc::sendmmsg(
                socket,
                self.headers.as_mut_ptr(),
                messages as libc::c_uint,
                (libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) as _,
            )
        };
        let taken = usize::try_from(rc).map_err(|_| failed())?;
        Ok(self.batch_lengths[..taken].iter().map(|&length| usize::from(length)).sum())
    }

    /// How many of the queued datagrams, from `at` on, form one message.
    fn gso_length(&self, at: usize) -> usize {
        let slot = |offset: usize| &self.slots[(self.head + offset) % BATCH];
        let first = slot(at);
        if first.no_gso {
            return 1;
        }
        let joins = |other: &&QueuedDatagram| !other.no_gso && other.shares_message_with(first);
        let others = (at + 1..self.count).map(slot).take_while(joins);
        gso::length(first.length, others.map(|other| other.length))
    }
}
