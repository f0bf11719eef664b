//! Buffers of one receive call.

use std::io;
use std::net::SocketAddr;
use std::os::fd::RawFd;

use super::super::calls;
use super::address::RawAddress;
use super::gso::Report;
use super::{error_code, failed};

struct BatchSlot {
    bytes: Box<[u8]>,
    address: RawAddress,
    address_bytes: libc::socklen_t,
    /// Bytes received.
    length: usize,
    /// Bytes of each datagram in it but the last, which may be shorter.
    datagram_bytes: usize,
    report: Report,
}

/// A datagram taken from a batch.
pub(super) struct TakenDatagram {
    /// Its source, if that is an IP address.
    pub(super) from: Option<SocketAddr>,
    message: usize,
    start: usize,
    end: usize,
}

impl TakenDatagram {
    pub(super) fn length(&self) -> usize {
        self.end - self.start
    }
}

/// Received messages, not all of them consumed: datagrams, or GRO batches of them.
pub(super) struct Batch {
    slots: Box<[BatchSlot]>,
    headers: Box<[libc::mmsghdr]>,
    pieces: Box<[libc::iovec]>,
    /// Messages may be GRO batches.
    is_gro: bool,
    /// The next message to consume, and the end of the batch.
    next: usize,
    end: usize,
    /// Offset of the next datagram in that message.
    at: usize,
}

// SAFETY: the pointers in `headers` and `pieces` are written anew before each system call and not
// followed after it, so that the value may move between threads.
unsafe impl Send for Batch {}

impl Batch {
    /// Buffers for `messages` of at most `message_bytes` each; `is_gro`: they may be GRO batches.
    pub(super) fn new(messages: usize, message_bytes: usize, is_gro: bool) -> Self {
        let slot = |_| BatchSlot {
            bytes: vec![0; message_bytes].into(),
            address: RawAddress::new(),
            address_bytes: 0,
            length: 0,
            datagram_bytes: 0,
            report: Report::new(),
        };
        Self {
            slots: (0..messages).map(slot).collect(),
            headers: super::headers(messages),
            pieces: super::pieces(messages),
            is_gro,
            next: 0,
            end: 0,
            at: 0,
        }
    }

    /// Messages per call.
    pub(super) fn capacity(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.next == self.end
    }

    /// The next datagram; [`Self::bytes`] are valid until the next receive call.
    #[inline]
    pub(super) fn take(&mut self) -> Option<TakenDatagram> {
        if self.is_empty() {
            return None;
        }
        let slot = &self.slots[self.next];
        let (message, start) = (self.next, self.at);
        let end = start.saturating_add(slot.datagram_bytes).min(slot.length);
        self.at = end;
        if end == slot.length {
            (self.next, self.at) = (self.next + 1, 0);
        }
        Some(TakenDatagram { from: slot.address.get(slot.address_bytes), message, start, end })
    }

    /// The bytes of a datagram that was taken.
    #[inline]
    pub(super) fn bytes(&mut self, taken: &TakenDatagram) -> &mut [u8] {
        &mut self.slots[taken.message].bytes[taken.start..taken.end]
    }

    /// Receives up to `count` messages, once all were consumed; returns how many.
    pub(super) fn receive(&mut self, socket: RawFd, count: usize) -> io::Result<usize> {
        debug_assert!(self.is_empty());
        (self.next, self.end, self.at) = (0, 0, 0);
        if count == 1 && !self.is_gro {
            let length = self.receive_one(socket).map_err(io::Error::from_raw_os_error)?;
            (self.slots[0].length, self.slots[0].datagram_bytes) = (length, length);
            self.end = 1;
        } else {
            self.end = self.receive_many(socket, count.min(self.capacity()))?;
        }
        Ok(self.end)
    }

    /// Receives one datagram without a batch, and returns its length, or the code of an error;
    /// [`Self::first_source`] and [`Self::first`] return its source and its bytes.
    #[inline(always)]
    pub(super) fn receive_one(&mut self, socket: RawFd) -> Result<usize, i32> {
        debug_assert!(self.is_empty() && !self.is_gro);
        let slot = &mut self.slots[0];
        slot.address_bytes = RawAddress::BYTES;
        // SAFETY: pointers and lengths describe room of the slot, which is borrowed exclusively.
        let rc = unsafe {
            calls::recvfrom(
                socket,
                slot.bytes.as_mut_ptr(),
                slot.bytes.len(),
                libc::MSG_DONTWAIT,
                (&raw mut slot.address).cast(),
                &raw mut slot.address_bytes,
            )
        };
        usize::try_from(rc).map_err(|_| error_code())
    }

    /// The source of the datagram received by [`Self::receive_one`], if that is an IP address.
    #[inline(always)]
    pub(super) fn first_source(&self) -> Option<SocketAddr> {
        let slot = &self.slots[0];
        slot.address.get(slot.address_bytes)
    }

    /// The bytes of the datagram received by [`Self::receive_one`].
    #[inline]
    pub(super) fn first(&mut self, length: usize) -> &mut [u8] {
        &mut self.slots[0].bytes[..length]
    }

    fn receive_many(&mut self, socket: RawFd, count: usize) -> io::Result<usize> {
        let pieces = self.pieces.as_mut_ptr();
        for at in 0..count {
            let slot = &mut self.slots[at];
            let (start, length) = (slot.bytes.as_mut_ptr(), slot.bytes.len());
            let header = &mut self.headers[at].msg_hdr;
            header.msg_name = (&raw mut slot.address).cast();
            header.msg_namelen = RawAddress::BYTES;
            if self.is_gro {
                let (control, control_bytes) = slot.report.room();
                header.msg_control = control.cast();
                header.msg_controllen = control_bytes as _;
            }
            // SAFETY: `at` is below the number of pieces, which nothing else refers to.
            unsafe {
                header.msg_iov = pieces.add(at);
                pieces.add(at).write(libc::iovec { iov_base: start.cast(), iov_len: length });
            }
            header.msg_iovlen = 1;
        }
        // SAFETY: the first `count` headers describe pieces, slots, addresses and reports that stay
        // where they are and that nothing else accesses during the call; a null timeout means none.
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
            let reported = slot.report.datagram_bytes(header.msg_hdr.msg_controllen);
            slot.datagram_bytes = reported.filter(|_| self.is_gro).unwrap_or(slot.length);
        }
        Ok(count)
    }
}
