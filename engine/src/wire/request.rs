//! Requests for connections between endpoints, their answers and their ends: messages without a
//! tag in context 1, which are matched by no receive.
//!
//! ```text
//!  0        1        2                 4                                   8
//! +--------+--------+-----------------+-----------------------------------+
//! |kind    | reason | length of data  | time for the answer, milliseconds |
//! +--------+--------+-----------------+-----------------------------------+
//! | the sender's name of the connection, or 0                             | 8
//! +-----------------------------------------------------------------------+
//! | the receiver's name of the connection, or 0                           | 16
//! +-----------------------------------------------------------------------+
//! | of ACCEPT: address of the endpoint that accepts, 48 bytes; else 0     | 24
//! |                                                                       |
//! +-----------------------------------------------------------------------+
//! | private data, up to 512 bytes                                         | 72
//! +-----------------------------------------------------------------------+
//! ```

use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::address::ADDRESS_BYTES;

/// A connection is asked for.
pub(crate) const KIND_ASK: u8 = 1;
/// It is granted, by the endpoint in the message.
pub(crate) const KIND_ACCEPT: u8 = 2;
/// It is not, and why.
pub(crate) const KIND_REFUSE: u8 = 3;
/// The requester confirms the grant: it is there.
pub(crate) const KIND_CONFIRM: u8 = 4;
/// The requester does not wait any more.
pub(crate) const KIND_WITHDRAW: u8 = 5;
/// It is over.
pub(crate) const KIND_SHUT_DOWN: u8 = 6;

/// Longest private data, in bytes.
pub(crate) const DATA_BYTES_MAX: usize = 512;
/// Length of the header, in bytes.
pub(crate) const REQUEST_BYTES: usize = 72;

/// The drawing above, without the data.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct RequestHeader {
    pub(crate) kind: u8,
    pub(crate) reason: u8,
    pub(crate) data_bytes: U16,
    pub(crate) milliseconds: U32,
    pub(crate) own: U64,
    pub(crate) peer: U64,
    pub(crate) address: [u8; ADDRESS_BYTES],
}

const _: () = assert!(size_of::<RequestHeader>() == REQUEST_BYTES);

/// Header and data of a message; `None`: it is none.
pub(crate) fn split(bytes: &[u8]) -> Option<(&RequestHeader, &[u8])> {
    let (header, data) = RequestHeader::ref_from_prefix(bytes).ok()?;
    let is_sound = usize::from(header.data_bytes.get()) == data.len()
        && data.len() <= DATA_BYTES_MAX
        && (KIND_ASK..=KIND_SHUT_DOWN).contains(&header.kind);
    is_sound.then_some((header, data))
}
