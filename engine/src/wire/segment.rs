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

use zerocopy::byteorder::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Please answer with an acknowledgement soon.
pub(crate) const FLAG_ACK_REQUESTED: u16 = 1;

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
