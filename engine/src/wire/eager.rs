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
    /// Returns frames as a ring takes them: the head of a single message with remote data is a part
    /// of its own. It is here as it reads the header.
    #[inline]
    pub(crate) fn of_frames(range: FrameRange, bytes: &'a [u8]) -> Self {
        let has_data = Eager::ref_from_prefix(bytes)
            .is_ok_and(|(it, _)| it.kind == frame::KIND_EAGER && it.flags & FLAG_DATA != 0);
        match bytes.split_at_checked(RingHead::HeaderAndData.bytes()) {
            Some((head, payload)) if range.count == 1 && has_data => Self::Parts([head, payload]),
            _ => Self::whole(bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::FromZeros;

    use super::*;
    use crate::wire::DATA_BYTES;
    use crate::wire::frame_range::RingMessage;

    const LONGER: usize = RingHead::HeaderAndData.bytes();

    /// Returns a frame of this kind with remote data if the flags say so, and with 1000 bytes.
    fn frame_of(kind: u8, flags: u8) -> Vec<u8> {
        let header = Eager { kind, flags, length: 1000.into(), ..Eager::new_zeroed() };
        let data: &[u8] = if flags & FLAG_DATA != 0 { &[3; DATA_BYTES] } else { &[] };
        [header.as_bytes(), data, &[7; 1000]].concat()
    }

    /// Returns the lengths of the parts, and the head that the entry has.
    fn parts_of(count: u16, bytes: &[u8]) -> ([usize; 2], RingHead) {
        let entry = RingBytes::of_frames(FrameRange { first: 9, count }, bytes);
        let RingBytes::Parts(parts) = entry else { panic!("{entry:?}") };
        assert!(parts.concat() == bytes && entry.len() == bytes.len());
        (parts.map(<[u8]>::len), entry.head())
    }

    #[test]
    fn head_of_one_message_with_remote_data_is_apart() {
        let frame = frame_of(frame::KIND_EAGER, FLAG_DATA);
        let apart = ([LONGER, 1000], RingHead::HeaderAndData);
        assert_eq!(parts_of(1, &frame), apart);
        let flags = FLAG_DATA | FLAG_UNTAGGED;
        assert_eq!(parts_of(1, &frame_of(frame::KIND_EAGER, flags)), apart);
        assert_eq!(parts_of(1, &frame[..=LONGER]), ([LONGER, 1], RingHead::HeaderAndData));
    }

    #[test]
    fn head_of_other_frames_is_not_apart() {
        let with_data = frame_of(frame::KIND_EAGER, FLAG_DATA);
        for count in [0, 2, 0x7fff] {
            assert_eq!(parts_of(count, &with_data), ([1040, 0], RingHead::Header), "{count}");
        }
        for kind in (0..=u8::MAX).filter(|&kind| kind != frame::KIND_EAGER) {
            let bytes = frame_of(kind, FLAG_DATA);
            assert_eq!(parts_of(1, &bytes), ([1040, 0], RingHead::Header), "kind {kind}");
        }
        let without = frame_of(frame::KIND_EAGER, !FLAG_DATA);
        assert_eq!(parts_of(1, &without), ([1032, 0], RingHead::Header));
    }

    #[test]
    fn head_of_too_few_bytes_is_not_apart() {
        let frame = frame_of(frame::KIND_EAGER, FLAG_DATA);
        for length in 0..=LONGER {
            let (lengths, head) = parts_of(1, &frame[..length]);
            assert_eq!((lengths[0], head), (length, RingHead::Header));
        }
    }

    #[test]
    fn message_has_the_head_that_its_entry_has() {
        let range = FrameRange { first: 9, count: 1 };
        let bytes = frame_of(frame::KIND_EAGER, FLAG_DATA);
        for head in [RingHead::Header, RingHead::HeaderAndData] {
            let message = RingMessage::new(range, head, &bytes, bytes.len()).unwrap();
            assert_eq!(message.head(), &bytes[..head.bytes()]);
            assert!(RingMessage::new(range, head, &bytes[..LONGER - 1], bytes.len()).is_none());
        }
    }
}
