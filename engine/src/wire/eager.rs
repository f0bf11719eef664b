//! A whole message: envelope, then `length` bytes of payload.
//!
//! ```text
//!  0        1        2                 4                 6                 8
//! +--------+--------+-----------------+-----------------+-----------------+
//! |type 1  | flags  | target endpoint | source endpoint | follows         |
//! +--------+--------+-----------------+-----------------+-----------------+
//! | context                           | length                            | 8
//! +-----------------------------------+-----------------------------------+
//! | tag                                                                   | 16
//! +-----------------------------------------------------------------------+
//! | operation of the sender (for MATCHED), or 0                           | 24
//! +-----------------------------------------------------------------------+
//! ```
//!
//! With [`FLAG_DATA`] 8 bytes follow the header, before the payload: the remote data of the
//! message, a number. They are part of the header; `length` does not count them.
//!
//! `follows` is 0 on a lane that keeps its order. In datagrams it is how many frames back the
//! message is that must be matched before this one: the one before it with the same source, target
//! and context. 0: none that is still under way.

use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::frame;
use super::frame_range::{FrameRange, RingBytes, RingHead};

/// The message has no tag; it matches untagged receives only.
pub(crate) const FLAG_UNTAGGED: u8 = 1;
/// The sender waits for a MATCHED frame.
pub(crate) const FLAG_REPORT_MATCH: u8 = 2;
/// Remote data follows the header, for the receiver of the message. 8 and 16 are flags of
/// [`super::rts`].
pub(crate) const FLAG_DATA: u8 = 32;

/// Length of the header, in bytes.
pub(crate) const EAGER_HEADER_BYTES: usize = 32;

/// The drawing above.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct Eager {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) target_endpoint: U16,
    pub(crate) source_endpoint: U16,
    pub(crate) predecessor_distance: U16,
    pub(crate) context: U32,
    pub(crate) length: U32,
    pub(crate) tag: U64,
    pub(crate) operation: U64,
}

const _: () = assert!(size_of::<Eager>() == EAGER_HEADER_BYTES);

impl<'a> RingBytes<'a> {
    /// Returns the bytes of frames: of one with remote data its head apart.
    #[inline]
    pub(crate) fn of(range: FrameRange, bytes: &'a [u8]) -> Self {
        let has_data = Eager::ref_from_prefix(bytes)
            .is_ok_and(|(it, _)| it.kind == frame::KIND_EAGER && it.flags & FLAG_DATA != 0);
        match bytes.split_at_checked(RingHead::HeaderAndData.bytes()) {
            Some((head, payload)) if range.count == 1 && has_data => Self::Parts([head, payload]),
            _ => Self::whole(bytes),
        }
    }
}
