//! A piece of a message in a ring of shared memory.
//!
//! ```text
//!  0                                   4                                  8
//! +-----------------------------------------------------------------------+
//! | operation of the receiver, or number of the message                   |
//! +-----------------------------------------------------------------------+
//! | offset in the message                                                 | 8
//! +-----------------------------------+-----------------------------------+
//! | number of the ring                | flags                             | 16
//! +-----------------------------------+-----------------------------------+
//! ```
//!
//! Its bytes follow, all of them granted on the ring of that number
//! ([`GrantOver::Ring`](super::grant::GrantOver::Ring)), or with [`FLAG_UNSOLICITED`]. Those of a
//! message come in order.

use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// `flags`: it was not granted. It has the number of the message in its
/// [`UnsolicitedPieces`](super::UnsolicitedPieces). Without bytes: no more of it comes so.
pub(crate) const FLAG_UNSOLICITED: u32 = 1;

/// Length of the header, in bytes.
pub(crate) const PIECE_HEADER_BYTES: usize = 24;

/// The drawing above.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct PieceHeader {
    pub(crate) operation: U64,
    pub(crate) offset: U64,
    pub(crate) ring: U32,
    pub(crate) flags: U32,
}

const _: () = assert!(size_of::<PieceHeader>() == PIECE_HEADER_BYTES);
