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

/// First bytes of a longer entry with frames, which are in its first line: the header of a message,
/// whose payload begins with the next line.
pub(crate) const RING_HEAD_BYTES: usize = 32;

/// What is to be written into a ring in shared memory.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RingBytes<'a> {
    /// The first bytes of these, and how many.
    Short(&'a [u8; RING_SHORT_BYTES], usize),
    /// Two parts: if the second is not empty, the first is a multiple of 8 bytes long.
    Parts([&'a [u8]; 2]),
}

impl RingBytes<'_> {
    /// Returns their number.
    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Short(_, length) => *length,
            Self::Parts([first, second]) => first.len() + second.len(),
        }
    }
}
