//! Segmentation offload: datagrams of one length to one destination are passed to the kernel as one
//! message, which it splits as late as possible (`UDP_SEGMENT`, GSO, Linux 4.18), and received as
//! one if enabled (`UDP_GRO`, Linux 5.0).

use std::io;
use std::mem::offset_of;
use std::os::fd::RawFd;

use super::super::options;
use super::source::{self, SourceAddress};

/// Datagrams of a GSO batch at least: two sent one by one overlap on their way, and take 6.7 us,
/// where a batch of two takes 8 (half a round trip of 2 KiB over veth).
pub(super) const DATAGRAMS_MIN: usize = 3;

/// Datagrams of a batch at most: the kernel's `UDP_MAX_SEGMENTS` before Linux 6.9.
const DATAGRAMS_MAX: usize = 64;

/// Payload of a batch at most, in bytes: the longest UDP message over IPv4.
const BYTES_MAX: usize = 65_507;

/// How many datagrams form one batch: the first, of `first` bytes, and the `others` after it that
/// are as long; the last one may be shorter.
pub(super) fn length(first: usize, others: impl Iterator<Item = usize>) -> usize {
    let (mut count, mut bytes) = (1, first);
    for length in others {
        bytes += length;
        if length == 0 || length > first || bytes > BYTES_MAX || count == DATAGRAMS_MAX {
            break;
        }
        count += 1;
        if length < first {
            break;
        }
    }
    if count < DATAGRAMS_MIN { 1 } else { count }
}

/// Bytes that one message may have.
pub(super) const ROOM_BYTES: usize = 1 << 16;

/// Enables or disables `UDP_GRO`.
pub(super) fn set_gro(socket: RawFd, is_on: bool) -> io::Result<()> {
    options::set(socket, libc::SOL_UDP, libc::UDP_GRO, is_on.into())
}

/// Whether the kernel supports `UDP_SEGMENT`: one that does not sends batches whole.
pub(super) fn has_gso(socket: RawFd) -> bool {
    options::get(socket, libc::SOL_UDP, libc::UDP_SEGMENT).is_ok()
}

/// Buffer for the control message of a received message: empty, or the length of the datagrams of a
/// GRO batch.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Report {
    header: libc::cmsghdr,
    bytes: libc::c_int,
}

impl Report {
    pub(super) fn new() -> Self {
        // SAFETY: integers, for which zero bytes are a value.
        unsafe { std::mem::zeroed() }
    }

    /// Pointer and length for the kernel to write to.
    pub(super) fn room(&mut self) -> (*mut u8, usize) {
        ((&raw mut *self).cast(), size_of::<Self>())
    }

    /// The length of the datagrams of a batch, if the kernel wrote `length` bytes that say so.
    #[inline]
    pub(super) fn datagram_bytes(&self, length: usize) -> Option<usize> {
        let is_it = length >= offset_of!(Self, bytes) + size_of::<libc::c_int>()
            && self.header.cmsg_level == libc::SOL_UDP
            && self.header.cmsg_type == libc::UDP_GRO;
        is_it.then(|| usize::try_from(self.bytes).ok().filter(|&bytes| bytes > 0)).flatten()
    }
}

#[derive(Clone, Copy)]
#[repr(C)]
struct GsoSegment {
    header: libc::cmsghdr,
    bytes: u16,
    /// Zero bytes: the kernel reads these, too, and memory checkers report uninitialised ones.
    padding: [u16; 3],
}

/// Control bytes of one message at most.
const CONTROL_BYTES: usize = 64;

/// The control messages of one message.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
pub(super) struct ControlMessages([u8; CONTROL_BYTES]);

impl ControlMessages {
    pub(super) fn new() -> Self {
        Self([0; CONTROL_BYTES])
    }

    /// Sets the source of a message, and the length of the datagrams of a batch; returns pointer
    /// and length for the kernel to read.
    pub(super) fn set(
        &mut self,
        from: Option<&SourceAddress>,
        segment: Option<u16>,
    ) -> (*const u8, usize) {
        let (source, mut length) = from.map_or((std::ptr::null(), 0), SourceAddress::message);
        let Some(bytes) = segment else { return (source, length) };
        if length > 0 {
            // SAFETY: `source` has `length` bytes, which fit with what follows; what pads them is
            // copied as it is, and the kernel does not look at it.
            unsafe { std::ptr::copy_nonoverlapping(source, self.0.as_mut_ptr(), length) };
        }
        let header =
            source::header::<u16>(offset_of!(GsoSegment, bytes), libc::SOL_UDP, libc::UDP_SEGMENT);
        const { assert!(CONTROL_BYTES >= 40 + size_of::<GsoSegment>()) };
        // SAFETY: a control message of an address has at most 40 bytes, a multiple of 8, so that
        // this one is aligned and within.
        unsafe {
            self.0.as_mut_ptr().add(length).cast::<GsoSegment>().write(GsoSegment {
                header,
                bytes,
                padding: [0; 3],
            });
        }
        length += size_of::<GsoSegment>();
        (self.0.as_ptr(), length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(lengths: &[usize]) -> usize {
        length(lengths[0], lengths[1..].iter().copied())
    }

    #[test]
    fn gso_batch_has_equal_lengths_and_a_shorter_tail() {
        assert_eq!(of(&[100]), 1);
        assert_eq!(of(&[100, 100, 100]), 3);
        assert_eq!(of(&[100, 100, 40, 40]), 3);
        assert_eq!(of(&[100, 101]), 1);
        assert_eq!(of(&[100, 100, 40, 100]), 3);
        assert_eq!(of(&[100, 40, 100]), 1, "too short for a batch");
        assert_eq!(of(&[100, 100, 100, 0]), 3, "the kernel sends no empty tail");
    }

    #[test]
    fn gso_batch_respects_the_kernel_limits() {
        assert_eq!(of(&[8; 200]), 64);
        assert_eq!(of(&[1472; 60]), 65_507 / 1472);
        assert_eq!(of(&[8972; 8]), 7);
    }

    #[test]
    fn control_messages_match_the_libc_layout() {
        let mut control = ControlMessages::new();
        assert_eq!(control.set(None, None), (std::ptr::null(), 0));
        let (start, bytes) = control.set(None, Some(1400));
        // SAFETY: only computations; the message begins with its header and has 16 bits.
        let (space, length, header, value) = unsafe {
            (
                libc::CMSG_SPACE(2),
                libc::CMSG_LEN(2),
                start.cast::<libc::cmsghdr>().read(),
                start.add(offset_of!(GsoSegment, bytes)).cast::<u16>().read(),
            )
        };
        assert_eq!((bytes, header.cmsg_len), (space as usize, length as usize));
        assert_eq!((header.cmsg_level, header.cmsg_type), (libc::SOL_UDP, libc::UDP_SEGMENT));
        assert_eq!(value, 1400);
    }
}
