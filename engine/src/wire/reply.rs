//! The answer to an operation on memory, and the bytes that it asked for.
//!
//! ```text
//!  0        1        2                 4                                   8
//! +--------+--------+-----------------+-----------------------------------+
//! |type 15 | status | 0               | length                            |
//! +--------+--------+-----------------+-----------------------------------+
//! | operation of the origin                                               | 8
//! +-----------------------------------------------------------------------+
//! ```
//!
//! `length` bytes follow: of a GET all of it, of an ATOMIC the values of before, of a FLUSH 8 bytes
//! that count the operations without an answer that were refused since the last one.

use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// It was done.
pub(crate) const STATUS_DONE: u8 = 0;

/// Length of the header, in bytes.
pub(crate) const REPLY_HEADER_BYTES: usize = 16;

/// The drawing above.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct Reply {
    pub(crate) kind: u8,
    pub(crate) status: u8,
    pub(crate) reserved: U16,
    pub(crate) length: U32,
    pub(crate) operation: U64,
}

const _: () = assert!(size_of::<Reply>() == REPLY_HEADER_BYTES);
