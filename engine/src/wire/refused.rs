//! The sender cannot serve a grant (RR-RDV-5): both sides abort the lane.
//!
//! ```text
//!  0        1        2                 4                                   8
//! +--------+--------+-----------------+-----------------------------------+
//! |type 5  | 0      | 0               | lane                              |
//! +--------+--------+-----------------+-----------------------------------+
//! | operation of the receiver                                             | 8
//! +-----------------------------------------------------------------------+
//! ```

use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Length of the frame, in bytes.
pub(crate) const REFUSED_BYTES: usize = 16;

/// The drawing above.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct Refused {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) reserved: U16,
    pub(crate) lane: U32,
    pub(crate) operation: U64,
}

const _: () = assert!(size_of::<Refused>() == REFUSED_BYTES);
