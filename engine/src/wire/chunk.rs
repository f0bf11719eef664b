//! What leads each chunk on a bulk lane.
//!
//! ```text
//!  0                                   4                                   8
//! +-----------------------------------+-----------------------------------+
//! | "RRCK"                            | number of the chunk on the lane   |
//! +-----------------------------------+-----------------------------------+
//! | operation of the receiver                                             | 8
//! +-----------------------------------------------------------------------+
//! | offset in the message                                                 | 16
//! +-----------------------------------+-----------------------------------+
//! | length                            | checksum of the bytes, or 0       | 24
//! +-----------------------------------+-----------------------------------+
//! | tag over the bytes before, under the lane's key for this direction    | 32
//! +-----------------------------------------------------------------------+
//! ```
//!
//! The checksum is the CRC32C of the `length` bytes that follow, in sessions that use checksums.
//!
//! The receiver granted the range and knows what comes next; the header proves that the two
//! sides agree (RR-RDV-2).

use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The first four bytes of a chunk.
pub(crate) const CHUNK_MAGIC: [u8; 4] = *b"RRCK";
/// Length of the header, in bytes.
pub(crate) const CHUNK_HEADER_BYTES: usize = 40;

/// Length of its tag, in bytes.
pub(crate) const CHUNK_TAG_BYTES: usize = 8;

/// The drawing above.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub(crate) struct ChunkHeader {
    pub(crate) magic: [u8; 4],
    pub(crate) chunk: U32,
    pub(crate) receive_operation: U64,
    pub(crate) offset: U64,
    pub(crate) length: U32,
    pub(crate) checksum: U32,
    pub(crate) tag: [u8; CHUNK_TAG_BYTES],
}

const _: () = assert!(size_of::<ChunkHeader>() == CHUNK_HEADER_BYTES);
