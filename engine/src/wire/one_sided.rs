//! Operations on the memory of the peer: PUT, GET, ATOMIC, PUT RTS and FLUSH, which have one
//! header.
//!
//! ```text
//!  0        1        2                 4                 6        7        8
//! +--------+--------+-----------------+-----------------+--------+--------+
//! |type    | flags  | target endpoint | source endpoint | atomic |datatype|
//! +--------+--------+-----------------+-----------------+--------+--------+
//! | length, in bytes, of the memory of the peer                           | 8
//! +-----------------------------------------------------------------------+
//! | key                                                                   | 16
//! +-----------------------------------------------------------------------+
//! | offset in what the key opens                                          | 24
//! +-----------------------------------------------------------------------+
//! | operation of the origin, for the REPLY; 0: it wants none              | 32
//! +-----------------------------------------------------------------------+
//! ```
//!
//! | type | | behind the header |
//! |---|---|---|
//! | 13 | PUT | `length` bytes |
//! | 14 | GET | nothing |
//! | 16 | ATOMIC | operands, `length` bytes, unless [`FLAG_NO_OPERANDS`] |
//! | 18 | PUT RTS | nothing, or a [`CmaSource`](super::CmaSource): the target grants, or reads |
//! | 19 | FLUSH | nothing; `length`, `key` and `offset` are 0 |
//!
//! With [`FLAG_COMPARE`] as many bytes to compare with stand before the operands.
//!
//! [`FLAG_CMA`](super::cma_source::FLAG_CMA) distinguishes the two forms of PUT RTS.
//!
//! With [`FLAG_INVALIDATE`] the key of a PUT or PUT RTS opens nothing from then on.
//!
//! Remote data follows the header as in [`super::eager`].

use zerocopy::byteorder::little_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The origin of an ATOMIC wants the values of before.
pub(crate) const FLAG_FETCH: u8 = 1;
/// An ATOMIC has two vectors: what to compare with, and operands.
pub(crate) const FLAG_COMPARE: u8 = 2;
/// An ATOMIC has no operands.
pub(crate) const FLAG_NO_OPERANDS: u8 = 4;

/// A PUT or PUT RTS takes its key back.
pub(crate) const FLAG_INVALIDATE: u8 = 8;

/// Length of the header, in bytes.
pub(crate) const ONE_SIDED_HEADER_BYTES: usize = 40;

/// Most bytes of the peer's memory that one ATOMIC is on.
pub(crate) const ATOMIC_BYTES_MAX: usize = 512;

/// The drawing above.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct OneSided {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) target_endpoint: U16,
    pub(crate) source_endpoint: U16,
    pub(crate) atomic: u8,
    pub(crate) datatype: u8,
    pub(crate) length: U64,
    pub(crate) key: U64,
    pub(crate) offset: U64,
    pub(crate) operation: U64,
}

impl OneSided {
    /// How many bytes of operands an ATOMIC has behind its header.
    pub(crate) fn operand_bytes(&self) -> u64 {
        match self.flags & (FLAG_COMPARE | FLAG_NO_OPERANDS) {
            0 => self.length.get(),
            FLAG_COMPARE => self.length.get().saturating_mul(2),
            _ => 0,
        }
    }
}

const _: () = assert!(size_of::<OneSided>() == ONE_SIDED_HEADER_BYTES);
