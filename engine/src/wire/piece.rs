//! A piece of a message in a ring of shared memory.
//!
//! ```text
//!  0                                   4                                  8
//! +-----------------------------------------------------------------------+
//! | operation of the receiver                                             |
//! +-----------------------------------------------------------------------+
//! | offset in the message                                                 | 8
//! +-----------------------------------+-----------------------------------+
//! | number of the ring                | 0                                 | 16
//! +-----------------------------------+-----------------------------------+
//! ```
//!
//! Its bytes follow, all of them granted on the ring of that number
//! ([`GrantOver::Ring`](super::grant::GrantOver::Ring)). Those of a
//! message come in order.

use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Length of the header, in bytes.
pub(crate) const PIECE_HEADER_BYTES: usize = 24;

/// The drawing above.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct PieceHeader {
    pub(crate) receive_operation: U64,
    pub(crate) offset: U64,
    pub(crate) ring: U32,
    pub(crate) reserved: U32,
}

const _: () = assert!(size_of::<PieceHeader>() == PIECE_HEADER_BYTES);
