//! The engine leaves on purpose; what follows on the connection is its end.
//!
//! ```text
//!  0        1        2                 4                                   8
//! +--------+--------+-----------------+-----------------------------------+
//! |type 8  | reason | 0               | 0                                 |
//! +--------+--------+-----------------+-----------------------------------+
//! ```

use zerocopy::byteorder::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The endpoint was closed.
pub(crate) const REASON_CLOSED: u8 = 0;
/// The peer broke the protocol.
pub(crate) const REASON_PROTOCOL: u8 = 1;
/// Data of the peer arrived corrupted.
pub(crate) const REASON_CORRUPTED: u8 = 2;

/// Length of the frame, in bytes.
pub(crate) const GOODBYE_BYTES: usize = 8;

/// The drawing above.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct Goodbye {
    pub(crate) kind: u8,
    pub(crate) reason: u8,
    pub(crate) reserved: U16,
    pub(crate) reserved_2: U32,
}

const _: () = assert!(size_of::<Goodbye>() == GOODBYE_BYTES);
