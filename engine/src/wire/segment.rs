//! What leads each batch of frames on a control lane.
//!
//! ```text
//!  0                                   4                 6                 8
//! +-----------------------------------+-----------------+-----------------+
//! | length, header included           | frames          | flags           |
//! +-----------------------------------+-----------------+-----------------+
//! | number of the first frame         | acknowledgement                   | 8
//! +-----------------------------------+-----------------------------------+
//! | envelope limit                    | eager byte limit                  | 16
//! +-----------------------------------+-----------------------------------+
//! ```
//!
//! Frames of a session and direction are numbered from 0 (modulo 2^32). The acknowledgement is the
//! number of the next frame expected: all before it were accepted by the peer's engine. Limits
//! are cumulative, modulo 2^32: how many envelopes and eager bytes the peer may have sent in all.
//!
//! In a session that uses checksums, on a lane that keeps its order, these follow the header,
//! marked by flag 2:
//!
//! ```text
//! +-----------------------------------+-----------------------------------+
//! | CRC32C of the frames              | CRC32C of the 28 bytes before     | 24
//! +-----------------------------------+-----------------------------------+
//! ```

use zerocopy::byteorder::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::frame_range::FrameRange;

/// Please answer with an acknowledgement soon.
pub(crate) const FLAG_ACK_REQUESTED: u16 = 1;
/// Checksums follow the header.
pub(crate) const FLAG_CHECKSUM: u16 = 2;

/// Requests a segment as an answer, whether or not it has anything new.
pub(crate) const FLAG_ANSWER_REQUESTED: u16 = 4;

/// Length of the header, in bytes.
pub(crate) const SEGMENT_HEADER_BYTES: usize = 24;

/// The drawing above.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct SegmentHeader {
    pub(crate) length: U32,
    pub(crate) frames: U16,
    pub(crate) flags: U16,
    pub(crate) first_frame: U32,
    pub(crate) ack: U32,
    pub(crate) envelope_limit: U32,
    pub(crate) byte_limit: U32,
}

const _: () = assert!(size_of::<SegmentHeader>() == SEGMENT_HEADER_BYTES);

impl SegmentHeader {
    /// Returns the numbers of its frames.
    #[inline(always)]
    pub(crate) fn range(&self) -> FrameRange {
        FrameRange { first: self.first_frame.get(), count: self.frames.get() }
    }
}

/// Length of the checksums behind the header, in bytes.
pub(crate) const SEGMENT_SUMS_BYTES: usize = 8;

/// The second drawing above.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct SegmentSums {
    pub(crate) frames: U32,
    pub(crate) header: U32,
}

const _: () = assert!(size_of::<SegmentSums>() == SEGMENT_SUMS_BYTES);

impl SegmentSums {
    /// The checksums of a segment with this header, whose frames have the CRC32C `frames`.
    pub(crate) fn new(header: &SegmentHeader, frames: u32) -> Self {
        let frames = U32::new(frames);
        let whole = crc32c::crc32c_append(crc32c::crc32c(header.as_bytes()), frames.as_bytes());
        Self { frames, header: whole.into() }
    }
}
