//! Bytes of a granted range, in a datagram: bulk data of a session without bulk lanes.
//!
//! ```text
//!  0        1        2                 4                                   8
//! +--------+--------+-----------------+-----------------------------------+
//! |type 10 | 0      | 0               | length                            |
//! +--------+--------+-----------------+-----------------------------------+
//! | operation of the receiver                                             | 8
//! +-----------------------------------------------------------------------+
//! | offset in the message                                                 | 16
//! +-----------------------------------------------------------------------+
//! ```
//!
//! `length` bytes follow, all of them granted in datagrams
//! ([`GrantOver::Datagrams`](super::grant::GrantOver::Datagrams)). They come in any order and
//! never overlap.

use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Length of the header, in bytes.
pub(crate) const DATA_HEADER_BYTES: usize = 24;

/// The drawing above.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct Data {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) reserved: U16,
    pub(crate) length: U32,
    pub(crate) receive_operation: U64,
    pub(crate) offset: U64,
}

const _: () = assert!(size_of::<Data>() == DATA_HEADER_BYTES);
