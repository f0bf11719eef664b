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
//! | 0                                                                     | 32
//! +-----------------------------------------------------------------------+
//! | 0                                                                     | 40
//! +-----------------------------------------------------------------------+
//! | 0                                                                     | 48
//! +-----------------------------------------------------------------------+
//! | tag over the bytes before, under the lane's key for this direction    | 56
//! +-----------------------------------------------------------------------+
//! ```
//!
//! The checksum is the CRC32C of the `length` bytes that follow, in sessions that use checksums.
//!
//! The header has a full cache line because of how processors copy. The kernel copies it in front
//! of the bytes, to the start of a page, and the memory of a message usually starts 16 bytes behind
//! one, as `malloc` returns it. If the target of a copy is 1 to 31 bytes ahead of its source within
//! a page, a load has the same low address bits as an earlier store of the copy, and waits for it:
//! on an AMD EPYC the copy takes 4 times as long. With 40 bytes the target was 24 bytes ahead.
//!
//! The receiver granted the range and knows what comes next; the header proves that the two
//! sides agree (RR-RDV-2).

use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The first four bytes of a chunk.
pub(crate) const CHUNK_MAGIC: [u8; 4] = *b"RRCK";
/// Length of the header, in bytes.
pub(crate) const CHUNK_HEADER_BYTES: usize = 64;

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
    pub(crate) reserved: [u8; 24],
    pub(crate) tag: [u8; CHUNK_TAG_BYTES],
}

const _: () = assert!(size_of::<ChunkHeader>() == CHUNK_HEADER_BYTES);
