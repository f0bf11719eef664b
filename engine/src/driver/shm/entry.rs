//! Entries of a ring: their kinds, and the word that each begins with.

use super::ring::{DATAGRAM_MAX, HEADER_BYTES, PIECE_BYTES_MAX};
use crate::wire::frame_range::{FrameRange, RING_SHORT_BYTES, RingHead};

/// The other side violated the ring protocol: close the channel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RingViolation;

/// The kind of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum EntryKind {
    /// A packet, as it would be sent by UDP.
    Packet,
    /// A segment, without a packet around it.
    Segment,
    /// A piece of a message.
    Piece,
    /// The frames of a segment, without its header. If they need several lines, the first one ends
    /// with their head.
    Frames(FrameRange, RingHead),
}

/// The word that an entry begins with:
///
/// ```text
///  0            14     16               31  32                                  64
/// +------------+------+----------------+--+-----------------------------------+
/// | length + 1 | kind | frames         |H | number of the first frame         |
/// +------------+------+----------------+--+-----------------------------------+
/// ```
///
/// Kinds: 0 a packet, 1 a segment, 2 a piece, 3 frames. The others have no numbers. H: the head has
/// 40 bytes, not 32.
#[derive(Clone, Copy)]
pub(super) struct EntryWord(pub(super) u64);

impl EntryWord {
    pub(super) const KIND_SHIFT: u32 = 14;
    const COUNT_SHIFT: u32 = 16;
    pub(super) const HEAD_SHIFT: u32 = 31;
    const FIRST_SHIFT: u32 = 32;
    /// Largest number of frames that the word can hold; an entry has space for fewer.
    pub(super) const COUNT_MAX: u16 = (1 << (Self::HEAD_SHIFT - Self::COUNT_SHIFT)) - 1;
    const LENGTH_MASK: u64 = (1 << Self::KIND_SHIFT) - 1;

    #[inline(always)]
    pub(super) fn new(entry: EntryKind, length: usize) -> Self {
        let kind = match entry {
            EntryKind::Packet => 0,
            EntryKind::Segment => 1 << Self::KIND_SHIFT,
            EntryKind::Piece => 2 << Self::KIND_SHIFT,
            EntryKind::Frames(FrameRange { first, count }, head) => {
                debug_assert!(count <= Self::COUNT_MAX);
                3 << Self::KIND_SHIFT
                    | u64::from(count) << Self::COUNT_SHIFT
                    | u64::from(head == RingHead::HeaderAndData) << Self::HEAD_SHIFT
                    | u64::from(first) << Self::FIRST_SHIFT
            }
        };
        Self((length as u64 + 1) | kind)
    }

    /// The length of frames that take one line; `None`: it is another entry.
    #[inline(always)]
    pub(super) fn short_frames(self) -> Option<(FrameRange, usize)> {
        const EMPTY: u16 = 3 << EntryWord::KIND_SHIFT | 1;
        let Self(word) = self;
        let length = usize::from((word as u16).wrapping_sub(EMPTY));
        (length <= RING_SHORT_BYTES).then_some((self.range(), length))
    }

    #[inline(always)]
    fn range(self) -> FrameRange {
        let Self(word) = self;
        let (first, count) = (word >> Self::FIRST_SHIFT, word >> Self::COUNT_SHIFT);
        FrameRange { first: first as u32, count: count as u16 & Self::COUNT_MAX }
    }

    #[inline(always)]
    fn head(self) -> RingHead {
        match self.0 >> Self::HEAD_SHIFT & 1 {
            0 => RingHead::Header,
            _ => RingHead::HeaderAndData,
        }
    }

    /// The entry's kind and length; the word is not 0.
    #[inline(always)]
    pub(super) fn parse(self) -> Result<(EntryKind, usize), RingViolation> {
        let Self(word) = self;
        let has_numbers = word >> Self::COUNT_SHIFT != 0;
        let entry = match (word >> Self::KIND_SHIFT) & 3 {
            3 => EntryKind::Frames(self.range(), self.head()),
            _ if has_numbers => return Err(RingViolation),
            0 => EntryKind::Packet,
            1 => EntryKind::Segment,
            _ => EntryKind::Piece,
        };
        // Without a length it is too long.
        let length = ((word & Self::LENGTH_MASK) as usize).wrapping_sub(1);
        let (least, most) = match entry {
            EntryKind::Piece => (HEADER_BYTES, HEADER_BYTES + PIECE_BYTES_MAX),
            _ => (0, DATAGRAM_MAX),
        };
        if length < least || length > most {
            return Err(RingViolation);
        }
        Ok((entry, length))
    }
}

const _: () = assert!(
    DATAGRAM_MAX < 1 << EntryWord::KIND_SHIFT
        && HEADER_BYTES + PIECE_BYTES_MAX < 1 << EntryWord::KIND_SHIFT,
    "the length of an entry fits its word"
);
