//! Where bytes are in the memory of a process of the same host, which the receiver of this has
//! announced that it can read (cross-memory attach).
//!
//! ```text
//! +-----------------------------------------------------------------------+
//! | address                                                               |
//! +-----------------------------------------------------------------------+
//! | revocations                                                           | 8
//! +-----------------------------------------------------------------------+
//! ```
//!
//! An [RTS](super::rts) has it in place of its first bytes, a [PUT RTS](super::one_sided) and a
//! [REPLY RTS](super::reply_rts) behind all else, marked by [`FLAG_CMA`].

use zerocopy::byteorder::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Among the flags of these frames: there is a [`CmaSource`].
pub(crate) const FLAG_CMA: u8 = 64;

/// Length of a [`CmaSource`], in bytes.
pub(crate) const CMA_SOURCE_BYTES: usize = 16;

/// The drawing above.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct CmaSource {
    /// Of the first byte; 0: they are not in one piece, and have to be pulled.
    pub(crate) address: U64,
    /// How often their owner had revoked memory that it had announced. What was read is valid only
    /// if the count is still the same afterwards.
    pub(crate) revocations: U64,
}

const _: () = assert!(size_of::<CmaSource>() == CMA_SOURCE_BYTES);

impl CmaSource {
    /// Of what a frame with [`FLAG_CMA`] has; `None`: the bytes have to be pulled.
    #[inline]
    pub(crate) fn of_frame(bytes: &[u8]) -> Option<Self> {
        Self::read_from_bytes(bytes).ok().filter(|source| source.address.get() != 0)
    }
}
