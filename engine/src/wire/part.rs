//! A piece of an eager message that is longer than a datagram.
//!
//! ```text
//!  0        1        2                 4                                   8
//! +--------+--------+-----------------+-----------------------------------+
//! |type 9  | flags  | 0               | number of the frame of its EAGER  |
//! +--------+--------+-----------------+-----------------------------------+
//! | offset in the message             | length                            | 8
//! +-----------------------------------+-----------------------------------+
//! ```
//!
//! `length` bytes follow. Parts come in any order, before or after their EAGER, and never overlap.

use zerocopy::byteorder::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The message ends with this part.
pub(crate) const FLAG_LAST: u8 = 1;
/// The sender gave the message up: no further parts come, and this one has no bytes.
pub(crate) const FLAG_GIVEN_UP: u8 = 2;

/// A part that is not the last of its message has at least so many bytes: what is kept of a message
/// whose envelope is not here yet costs in proportion to its bytes.
pub(crate) const PART_BYTES_MIN: usize = 64;

/// Length of the header, in bytes.
pub(crate) const PART_HEADER_BYTES: usize = 16;

/// The drawing above.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct Part {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) reserved: U16,
    pub(crate) message: U32,
    pub(crate) offset: U32,
    pub(crate) length: U32,
}

const _: () = assert!(size_of::<Part>() == PART_HEADER_BYTES);
