//! An eager message that asked for it has been matched with a receive.
//!
//! ```text
//!  0        1        2                 4                                   8
//! +--------+--------+-----------------+-----------------------------------+
//! |type 6  | 0      | 0               | 0                                 |
//! +--------+--------+-----------------+-----------------------------------+
//! | operation of the sender                                               | 8
//! +-----------------------------------------------------------------------+
//! ```

use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Length of the frame, in bytes.
pub(crate) const MATCHED_BYTES: usize = 16;

/// The drawing above.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct Matched {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) reserved: U16,
    pub(crate) reserved_2: U32,
    pub(crate) operation: U64,
}

const _: () = assert!(size_of::<Matched>() == MATCHED_BYTES);
