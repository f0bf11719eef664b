//! The side that accepted a session has rendezvous data to move and asks the side that connected
//! to open bulk lanes (only that direction is known to pass firewalls).
//!
//! ```text
//!  0        1        2                 4                                   8
//! +--------+--------+-----------------+-----------------------------------+
//! |type 7  | 0      | 0               | 0                                 |
//! +--------+--------+-----------------+-----------------------------------+
//! ```

use zerocopy::byteorder::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Length of the frame, in bytes.
pub(crate) const LANES_WANTED_BYTES: usize = 8;

/// The drawing above.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct LanesWanted {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) reserved: U16,
    pub(crate) reserved_2: U32,
}

const _: () = assert!(size_of::<LanesWanted>() == LANES_WANTED_BYTES);
