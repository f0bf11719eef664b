//! A GET that is answered by a rendezvous, whose receiver is the origin.
//!
//! ```text
//!  0        1        2                 4                                   8
//! +--------+--------+-----------------+-----------------------------------+
//! |type 17 | flags  | 0               | 0                                 |
//! +--------+--------+-----------------+-----------------------------------+
//! | operation of the origin                                               | 8
//! +-----------------------------------------------------------------------+
//! | operation of the target, for grants                                   | 16
//! +-----------------------------------------------------------------------+
//! ```
//!
//! Flags: 0, or [`FLAG_CMA`](super::cma_source::FLAG_CMA) with a [`CmaSource`](super::CmaSource)
//! behind it, which is where the origin reads.

use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Length of the frame, in bytes.
pub(crate) const REPLY_RTS_BYTES: usize = 24;

/// The drawing above.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct ReplyRts {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) reserved: U16,
    pub(crate) reserved_2: U32,
    pub(crate) operation: U64,
    pub(crate) send_operation: U64,
}

const _: () = assert!(size_of::<ReplyRts>() == REPLY_RTS_BYTES);
