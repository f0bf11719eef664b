//! The receiver of a rendezvous message has all it wants; no recv targets the buffer any more.
//!
//! ```text
//!  0        1        2                 4                                   8
//! +--------+--------+-----------------+-----------------------------------+
//! |type 4  | status | 0               | 0                                 |
//! +--------+--------+-----------------+-----------------------------------+
//! | operation of the sender                                               | 8
//! +-----------------------------------------------------------------------+
//! | bytes accepted (fewer than sent: the receive was shorter)             | 16
//! +-----------------------------------------------------------------------+
//! ```

use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The message arrived.
pub(crate) const STATUS_OK: u8 = 0;
/// The receiver gave the message up.
pub(crate) const STATUS_ABANDONED: u8 = 1;

/// Length of the frame, in bytes.
pub(crate) const DONE_BYTES: usize = 24;

/// The drawing above.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct Done {
    pub(crate) kind: u8,
    pub(crate) status: u8,
    pub(crate) reserved: U16,
    pub(crate) reserved_2: U32,
    pub(crate) operation: U64,
    pub(crate) accepted: U64,
}

const _: () = assert!(size_of::<Done>() == DONE_BYTES);
