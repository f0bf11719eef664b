//! The receiver of a rendezvous message asks for one byte range on one bulk lane.
//!
//! ```text
//!  0        1        2                 4                                   8
//! +--------+--------+-----------------+-----------------------------------+
//! |type 3  | class  | 0               | lane                              |
//! +--------+--------+-----------------+-----------------------------------+
//! | operation of the sender                                               | 8
//! +-----------------------------------------------------------------------+
//! | operation of the receiver                                             | 16
//! +-----------------------------------------------------------------------+
//! | offset in the message                                                 | 24
//! +-----------------------------------+-----------------------------------+
//! | length                            | number of the chunk on the lane   | 32
//! +-----------------------------------+-----------------------------------+
//! ```
//!
//! *Class*: the logarithm to base 2 of the longest message, in bytes, that the receiver prefers to
//! get eagerly; 0: unspecified.

use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Length of the frame, in bytes.
pub(crate) const GRANT_BYTES: usize = 40;

/// The drawing above.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct Grant {
    pub(crate) kind: u8,
    pub(crate) eager_class: u8,
    pub(crate) reserved: U16,
    pub(crate) lane: U32,
    pub(crate) send_operation: U64,
    pub(crate) receive_operation: U64,
    pub(crate) offset: U64,
    pub(crate) length: U32,
    pub(crate) chunk: U32,
}

const _: () = assert!(size_of::<Grant>() == GRANT_BYTES);
