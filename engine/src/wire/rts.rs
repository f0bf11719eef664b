//! Request to send: the envelope of a rendezvous message and, optionally, its first bytes.
//!
//! ```text
//!  0        1        2                 4                 6                 8
//! +--------+--------+-----------------+-----------------+-----------------+
//! |type 2  | flags  | target endpoint | source endpoint | follows         |
//! +--------+--------+-----------------+-----------------+-----------------+
//! | context                           | length of the first bytes         | 8
//! +-----------------------------------+-----------------------------------+
//! | tag                                                                   | 16
//! +-----------------------------------------------------------------------+
//! | operation of the sender                                               | 24
//! +-----------------------------------------------------------------------+
//! | length of the message                                                 | 32
//! +-----------------------------------------------------------------------+
//! ```
//!
//! Remote data follows as in [`super::eager`], before the first bytes.
//!
//! With [`FLAG_CMA`](super::cma_source::FLAG_CMA) the first bytes are none of the message, but say
//! where it is in the memory of its sender's process: a [`CmaSource`](super::CmaSource). With
//! [`FLAG_UNSOLICITED`] they state which pieces follow: an
//! [`UnsolicitedPieces`](super::UnsolicitedPieces). No RTS has both flags.

use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::cma_source::{CMA_SOURCE_BYTES, CmaSource, FLAG_CMA};
use super::unsolicited::{UNSOLICITED_BYTES, UnsolicitedPieces};

/// Its sender wants it to be pulled before others.
pub(crate) const FLAG_FIRST: u8 = 8;
/// Its sender wants it to be pulled after others.
pub(crate) const FLAG_LAST: u8 = 16;
/// All of it follows in pieces on a ring, without a grant.
pub(crate) const FLAG_UNSOLICITED: u8 = 128;

/// Length of the header, in bytes.
pub(crate) const RTS_HEADER_BYTES: usize = 40;

/// The drawing above; `flags` and `follows` as in [`super::eager`], and these two.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct Rts {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) target_endpoint: U16,
    pub(crate) source_endpoint: U16,
    pub(crate) predecessor_distance: U16,
    pub(crate) context: U32,
    pub(crate) first_bytes: U32,
    pub(crate) tag: U64,
    pub(crate) operation: U64,
    pub(crate) length: U64,
}

const _: () = assert!(size_of::<Rts>() == RTS_HEADER_BYTES);

/// What brings a message to its receiver without a grant.
#[derive(Clone, Copy, Debug)]
pub(crate) enum MessageSource {
    /// Its receiver reads it from the memory of the sender's process.
    Memory(CmaSource),
    /// Its sender writes it into a ring in shared memory.
    Pieces(UnsolicitedPieces),
}

impl MessageSource {
    /// Returns the length of what an RTS with these flags has in place of its first bytes, in
    /// bytes. `None`: it has first bytes.
    #[inline]
    pub(super) fn length(flags: u8) -> Option<usize> {
        match flags & (FLAG_CMA | FLAG_UNSOLICITED) {
            0 => None,
            FLAG_CMA => Some(CMA_SOURCE_BYTES),
            FLAG_UNSOLICITED => Some(UNSOLICITED_BYTES),
            // No length is right.
            _ => Some(usize::MAX),
        }
    }

    /// Splits what an RTS with these flags has behind all else: the first bytes of its message, or
    /// what is in place of them.
    #[inline]
    pub(crate) fn split(flags: u8, bytes: &[u8]) -> (&[u8], Option<Self>) {
        match flags & (FLAG_CMA | FLAG_UNSOLICITED) {
            0 => (bytes, None),
            FLAG_CMA => (&[], CmaSource::of_frame(bytes).map(Self::Memory)),
            _ => (&[], UnsolicitedPieces::read_from_bytes(bytes).ok().map(Self::Pieces)),
        }
    }
}
