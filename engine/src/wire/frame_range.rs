//! Frames by their numbers, and as bytes of a ring in shared memory.

/// Numbers of consecutive frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FrameRange {
    pub(crate) first: u32,
    pub(crate) count: u16,
}

impl FrameRange {
    /// Returns the number after the last one.
    #[inline(always)]
    pub(crate) fn end(self) -> u32 {
        self.first.wrapping_add(u32::from(self.count))
    }
}

/// A ring in shared memory: the session that its packets have, and its number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RingName {
    pub(crate) session: u64,
    pub(crate) number: u32,
}

/// The frames of a segment that a ring in shared memory has kept for their sender.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct KeptFrames {
    pub(crate) range: FrameRange,
    /// The frames: bytes that the receiver could overwrite.
    pub(crate) bytes: Vec<u8>,
}

/// Bytes that an entry of a ring in shared memory may have to take one cache line.
pub(crate) const RING_SHORT_BYTES: usize = 56;

/// First bytes of a longer entry with frames, which are in its first line, so that the payload of a
/// message begins with the next one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RingHead {
    /// The header of a message; or of several frames any first bytes.
    Header = 32,
    /// The same with its remote data; or the header of a one-sided operation.
    HeaderAndData = 40,
}

impl RingHead {
    /// Returns its length.
    #[inline(always)]
    pub(crate) const fn bytes(self) -> usize {
        self as usize
    }
}

/// A long frame in a ring in shared memory, of which only the head was copied.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RingMessage {
    /// Its number; one frame.
    pub(crate) range: FrameRange,
    /// Its first bytes, which begin with its head.
    first: [u8; RingHead::HeaderAndData.bytes()],
    head: RingHead,
    /// Its length with the head, in bytes.
    pub(crate) length: usize,
}

impl RingMessage {
    /// Creates the description of a frame of `length` bytes that begins with those of `first`.
    /// `None`: these are too few.
    #[inline]
    pub(crate) fn new(
        range: FrameRange,
        head: RingHead,
        first: &[u8],
        length: usize,
    ) -> Option<Self> {
        Some(Self { range, first: *first.first_chunk()?, head, length })
    }

    /// Returns its head.
    #[inline]
    pub(crate) fn head(&self) -> &[u8] {
        &self.first[..self.head.bytes()]
    }
}

/// What is to be written into a ring in shared memory.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RingBytes<'a> {
    /// The first bytes of these, and how many.
    Short(&'a [u8; RING_SHORT_BYTES], usize),
    /// Two parts: if the second is not empty, the first is a multiple of 8 bytes long.
    Parts([&'a [u8]; 2]),
}

impl<'a> RingBytes<'a> {
    /// Returns the bytes of a segment or packet, in one part.
    #[inline]
    pub(crate) fn whole(bytes: &'a [u8]) -> Self {
        Self::Parts([bytes, &[]])
    }

    /// Returns what their first line has if they need several.
    #[inline(always)]
    pub(crate) fn head(&self) -> RingHead {
        const LONGER: usize = RingHead::HeaderAndData.bytes();
        match self {
            Self::Parts([head, payload]) if head.len() == LONGER && !payload.is_empty() => {
                RingHead::HeaderAndData
            }
            _ => RingHead::Header,
        }
    }

    /// Returns their number.
    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Short(_, length) => *length,
            Self::Parts([first, second]) => first.len() + second.len(),
        }
    }
}
