//! Asks another engine of a silent peer's host whether the process of that peer has ended.
//!
//! ```text
//!  0        1        2                 4                                   8
//! +--------+--------+-----------------+-----------------------------------+
//! |type 21 | 0      | 0               | 0                                 |
//! +--------+--------+-----------------+-----------------------------------+
//! | engine of that process                                                | 8
//! +-----------------------------------------------------------------------+
//! ```

use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Length of the frame, in bytes.
pub(crate) const PROCESS_QUERY_BYTES: usize = 16;

/// The drawing above.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct ProcessQuery {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) reserved: U16,
    pub(crate) reserved_2: U32,
    pub(crate) engine: U64,
}

const _: () = assert!(size_of::<ProcessQuery>() == PROCESS_QUERY_BYTES);
