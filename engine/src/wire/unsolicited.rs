//! Which pieces follow a request to send on a ring in shared memory, without a grant.
//!
//! ```text
//!  0                                   4                                  8
//! +-----------------------------------------------------------------------+
//! | number of the message                                                 |
//! +-----------------------------------+-----------------------------------+
//! | number of the ring                | 8
//! +-----------------------------------+
//! ```
//!
//! An [RTS](super::rts) has it in place of its first bytes, marked by
//! [`FLAG_UNSOLICITED`](super::rts::FLAG_UNSOLICITED). Its sender numbers such messages of a
//! session one after the other, and its pieces have the same number.

use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Length of an [`UnsolicitedPieces`], in bytes.
pub(crate) const UNSOLICITED_BYTES: usize = 12;

/// The drawing above.
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub(crate) struct UnsolicitedPieces {
    pub(crate) number: U64,
    pub(crate) ring: U32,
}

const _: () = assert!(size_of::<UnsolicitedPieces>() == UNSOLICITED_BYTES);
