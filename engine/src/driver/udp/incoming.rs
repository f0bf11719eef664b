//! Datagrams that came in.

use std::io;
use std::net::SocketAddr;
use std::os::fd::RawFd;

use super::super::calls;
use super::address::RawAddress;
use super::{BATCH, failed};
use crate::progress::lanes::{DATAGRAM_BYTES_MAX, DriverCounters};

/// Pending errors of a socket that one call for datagrams passes over.
const ERRORS_MAX: usize = 64;

/// Batches of which a call for datagrams takes none, before it says so: nobody who sends us what
/// is too long holds the engine.
const FETCHES_MAX: usize = 4;

/// The smallest batch that is asked for after two datagrams that came one by one.
const BATCH_MIN: usize = 8;

/// One byte more than a datagram may have shows which are longer.
const ROOM_BYTES: usize = DATAGRAM_BYTES_MAX + 1;

#[repr(C, align(64))]
struct Slot {
    bytes: [u8; ROOM_BYTES],
    address: RawAddress,
    address_bytes: libc::socklen_t,
    /// Bytes received.
    length: usize,
}

/// A batch of datagrams, received but not all taken.
///
/// Asking is what costs: 123 ns where nothing is there, 182 by `recvmmsg`, which also takes 110 ns
/// more for one datagram than `recvfrom`. So batches are asked for only while datagrams come faster
/// than they are taken, and one that was not filled is followed by an answer of "none" without
/// asking, unless the driver was polled meanwhile: an engine that was away for long must not take
/// an old answer for a new one, as it counts as lost what did not come.
pub(super) struct Incoming {
    slots: Box<[Slot]>,
    headers: Box<[libc::mmsghdr]>,
    pieces: Box<[libc::iovec]>,
    /// The next datagram that is taken, and the end of the batch.
    next: usize,
    end: usize,
    /// How many the next call asks for: 1, or the size of a batch.
    ask: usize,
    /// The last call found something.
    was_hit: bool,
    /// The batch was all that there was: the next answer is "none".
    rests: bool,
}

// SAFETY: as for `Outgoing`.
unsafe impl Send for Incoming {}

impl Incoming {
    pub(super) fn new() -> Self {
        let slot = |_| Slot {
            bytes: [0; ROOM_BYTES],
            address: RawAddress::new(),
            address_bytes: 0,
            length: 0,
        };
        Self {
            slots: (0..BATCH).map(slot).collect(),
            headers: super::headers(),
            pieces: super::pieces(),
            next: 0,
            end: 0,
            ask: 1,
            was_hit: false,
            rests: false,
        }
    }

    /// Whether datagrams were received that nobody has taken.
    pub(super) fn is_held(&self) -> bool {
        self.next < self.end
    }

    /// Time has passed: what there was may not be all any more.
    pub(super) fn ask_anew(&mut self) {
        self.rests = false;
    }

    /// The next datagram, or `None`; see [`crate::progress::lanes::Driver::recv_datagram`].
    pub(super) fn take(
        &mut self,
        socket: RawFd,
        counters: &mut DriverCounters,
    ) -> io::Result<Option<(SocketAddr, &mut [u8])>> {
        for _ in 0..FETCHES_MAX {
            while self.next < self.end {
                let at = self.next;
                self.next += 1;
                let slot = &self.slots[at];
                if slot.length > DATAGRAM_BYTES_MAX {
                    counters.datagrams_too_long += 1;
                    continue;
                }
                if let Some(from) = slot.address.get(slot.address_bytes) {
                    counters.datagrams_received += 1;
                    let slot = &mut self.slots[at];
                    return Ok(Some((from, &mut slot.bytes[..slot.length])));
                }
            }
            if std::mem::take(&mut self.rests) || !self.fetch(socket, counters)? {
                return Ok(None);
            }
        }
        Ok(None)
    }

    /// Asks the kernel for more; `false` when there is none.
    fn fetch(&mut self, socket: RawFd, counters: &mut DriverCounters) -> io::Result<bool> {
        (self.next, self.end) = (0, 0);
        for _ in 0..ERRORS_MAX {
            counters.syscalls += 1;
            let received = match self.ask {
                1 => self.receive_one(socket),
                count => self.receive_many(socket, count),
            };
            match received {
                Ok(count) => {
                    self.end = count;
                    self.plan(count);
                    return Ok(true);
                }
                Err(error) => match error.raw_os_error() {
                    Some(libc::EAGAIN) => {
                        (self.ask, self.was_hit) = (1, false);
                        return Ok(false);
                    }
                    // What an ICMP message said of an earlier datagram: the packet layer finds out
                    // by itself, and others' datagrams wait.
                    Some(
                        libc::EINTR
                        | libc::ECONNREFUSED
                        | libc::EHOSTUNREACH
                        | libc::ENETUNREACH
                        | libc::EHOSTDOWN
                        | libc::ENETDOWN
                        | libc::EMSGSIZE
                        | libc::EPROTO
                        | libc::ENOPROTOOPT
                        | libc::EACCES
                        | libc::EPERM,
                    ) => {}
                    _ => return Err(error),
                },
            }
        }
        Ok(false)
    }

    /// Decides on the next call, after one that found `count` datagrams.
    fn plan(&mut self, count: usize) {
        let asked = self.ask;
        if asked > 1 {
            self.rests = count < asked;
            self.ask = match count {
                1 => 1,
                _ if count == asked => (asked * 2).min(BATCH),
                _ => (count + 1).next_power_of_two().min(BATCH),
            };
            self.was_hit = count > 1;
        } else if std::mem::replace(&mut self.was_hit, true) {
            self.ask = BATCH_MIN;
        }
    }

    fn receive_one(&mut self, socket: RawFd) -> io::Result<usize> {
        let slot = &mut self.slots[0];
        slot.address_bytes = RawAddress::BYTES;
        // SAFETY: pointers and lengths describe room of the slot, which is borrowed exclusively.
        let rc = unsafe {
            calls::recvfrom(
                socket,
                slot.bytes.as_mut_ptr(),
                ROOM_BYTES,
                libc::MSG_DONTWAIT,
                (&raw mut slot.address).cast(),
                &raw mut slot.address_bytes,
            )
        };
        slot.length = usize::try_from(rc).map_err(|_| failed())?;
        Ok(1)
    }

    fn receive_many(&mut self, socket: RawFd, count: usize) -> io::Result<usize> {
        let pieces = self.pieces.as_mut_ptr();
        for at in 0..count {
            let slot = &mut self.slots[at];
            let piece =
                libc::iovec { iov_base: slot.bytes.as_mut_ptr().cast(), iov_len: ROOM_BYTES };
            let header = &mut self.headers[at].msg_hdr;
            header.msg_name = (&raw mut slot.address).cast();
            header.msg_namelen = RawAddress::BYTES;
            // SAFETY: `at` is below BATCH, the number of pieces, which nothing else refers to.
            unsafe {
                header.msg_iov = pieces.add(at);
                pieces.add(at).write(piece);
            }
            header.msg_iovlen = 1;
        }
        // SAFETY: the first `count` headers describe pieces, slots and addresses that stay where
        // they are and that nothing else accesses during the call; a null timeout means none.
        let rc = unsafe {
            libc::recvmmsg(
                socket,
                self.headers.as_mut_ptr(),
                count as libc::c_uint,
                libc::MSG_DONTWAIT as _,
                std::ptr::null_mut(),
            )
        };
        let count = usize::try_from(rc).map_err(|_| failed())?;
        for (slot, header) in self.slots.iter_mut().zip(&self.headers[..count]) {
            slot.length = header.msg_len as usize;
            slot.address_bytes = header.msg_hdr.msg_namelen;
        }
        Ok(count)
    }
}
