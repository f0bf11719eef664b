//! Segments, kept until they are acknowledged.
//!
//! A [`SegmentBuffer`] holds frames, the number of the first one, and their count; the header is
//! written each time it is sent. Buffers come from a pool that all sessions share. *Short* ones fit
//! a datagram; *long* ones go on the session's stream, and have buffers of two lengths.

use aligned_vec::{ABox, AVec, ConstAlign};
use zerocopy::IntoBytes;

use super::slots::QueueLink;
use crate::proto::table::Id;
use crate::wire::FrameRange;
use crate::wire::eager::EAGER_HEADER_BYTES;
use crate::wire::segment::{SEGMENT_HEADER_BYTES, SEGMENT_SUMS_BYTES, SegmentHeader};
use crate::wire::{DATA_BYTES, EAGER_BYTES_MAX, SEGMENT_BYTES_MAX};

/// Payload of a usual long segment. A longer message has a longer buffer, if no other long segment
/// is unacknowledged and there is memory for it, and is pulled otherwise.
pub(in crate::proto) const LONG_PAYLOAD_BYTES: usize = 32 << 10;

/// A usual long segment: a message; or messages, at most 16 of 2 KiB, so that those of any power of
/// two fill it.
pub(super) const LONG_BYTES: usize =
    SEGMENT_HEADER_BYTES + 16 * (EAGER_HEADER_BYTES + DATA_BYTES) + LONG_PAYLOAD_BYTES;

/// Buffer of a longer one. A segment grows by its checksums when it is passed to the stream.
const LONGEST_BYTES: usize = SEGMENT_BYTES_MAX - SEGMENT_SUMS_BYTES;

const _: () = assert!(
    SEGMENT_HEADER_BYTES + EAGER_HEADER_BYTES + DATA_BYTES + EAGER_BYTES_MAX <= LONGEST_BYTES,
    "the longest eager message fits"
);

/// Free buffers of that length that are kept.
const LONGEST_IDLE_MAX: usize = 16;

/// State of a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    /// Open for more frames.
    Open,
    /// Waits for its first transmission.
    Ready,
    /// Sent.
    Flying,
    /// Sent and lost, waits to be retransmitted.
    Lost,
}

/// Bytes that begin at a cache line.
type Aligned = ABox<[u8], ConstAlign<64>>;

fn aligned(bytes: usize) -> Aligned {
    let mut buffer = AVec::with_capacity(64, bytes);
    buffer.resize(bytes, 0);
    buffer.into_boxed_slice()
}

/// See the module.
#[derive(Debug)]
pub(crate) struct SegmentBuffer {
    buffer: Aligned,
    /// Header included.
    pub(crate) bytes: usize,
    pub(crate) first_frame: u32,
    pub(crate) frames: u16,
    pub(crate) place: Place,
    /// It holds a frame that must not wait behind messages.
    pub(crate) is_urgent: bool,
    /// It holds part of a send that completes without the peer's acknowledgement.
    pub(in crate::proto) completes_unacked: bool,
    /// It goes on the session's stream: it does not fit a datagram.
    pub(super) is_long: bool,
    /// Sends that complete, or progress, when it is acknowledged.
    pub(crate) operations: Vec<Id>,
    /// Its place in a queue of its session.
    pub(super) link: QueueLink,
}

impl SegmentBuffer {
    /// Returns the numbers of its frames.
    #[inline(always)]
    pub(crate) fn range(&self) -> FrameRange {
        FrameRange { first: self.first_frame, count: self.frames }
    }

    /// Reserves `length` bytes for one more frame, which must fit.
    #[inline]
    pub(crate) fn push(&mut self, length: usize) -> &mut [u8] {
        let start = self.bytes;
        self.bytes += length;
        self.frames += 1;
        &mut self.buffer[start..start + length]
    }

    /// Returns its last `length` bytes.
    #[inline(always)]
    pub(crate) fn newest(&mut self, length: usize) -> &mut [u8] {
        &mut self.buffer[self.bytes - length..self.bytes]
    }

    /// Returns all of its bytes.
    pub(in crate::proto) fn whole(&self) -> &[u8] {
        &self.buffer[..self.bytes]
    }

    /// Returns its frames, without a header.
    pub(in crate::proto) fn content(&self) -> &[u8] {
        &self.buffer[SEGMENT_HEADER_BYTES..self.bytes]
    }

    /// Adds `count` frames at a time. Returns `false`, without effect, if they do not fit, or
    /// cannot be so many.
    pub(super) fn fill_with(&mut self, count: u16, frames: &[u8]) -> bool {
        let end = self.bytes + frames.len();
        if usize::from(count) > frames.len() {
            return false;
        }
        let Some(room) = self.buffer.get_mut(self.bytes..end) else { return false };
        room.copy_from_slice(frames);
        self.bytes = end;
        self.frames += count;
        true
    }

    /// Returns the bytes that are free for frames.
    pub(super) fn room(&self) -> usize {
        self.buffer.len() - self.bytes
    }

    /// Writes this header and returns the segment. Sets `length`, `frames` and `first_frame`.
    #[inline(always)]
    pub(crate) fn seal(&mut self, mut header: SegmentHeader) -> &[u8] {
        header.length = (self.bytes as u32).into();
        header.frames = self.frames.into();
        header.first_frame = self.first_frame.into();
        self.buffer[..SEGMENT_HEADER_BYTES].copy_from_slice(header.as_bytes());
        &self.buffer[..self.bytes]
    }
}

/// Segments with buffers of one length.
#[derive(Debug)]
struct Class {
    buffer_bytes: usize,
    /// Maximum number, not counting the minimum of each session.
    limit: usize,
    /// Those that are neither reserved for control frames nor for sessions beyond the limit.
    messages_max: usize,
    /// Half of them, which one session may have.
    session_max: usize,
    made: usize,
    used: usize,
    /// Free buffers, for reuse.
    #[allow(clippy::vec_box, reason = "they go to and from the slots of sessions")]
    idle: Vec<Box<SegmentBuffer>>,
}

impl Class {
    /// Creates a class of as many buffers of `buffer_bytes` as fit `bytes`.
    fn new(buffer_bytes: usize, bytes: usize) -> Self {
        let (limit, messages_max, session_max) = (0, 0, 0);
        let (made, used, idle) = (0, 0, Vec::new());
        let class = Self { buffer_bytes, limit, messages_max, session_max, made, used, idle };
        class.with_limit((bytes / buffer_bytes).max(1))
    }

    /// Sets the maximum number.
    fn with_limit(mut self, limit: usize) -> Self {
        self.limit = limit;
        self.messages_max = limit - limit.div_ceil(8);
        self.session_max = self.messages_max.div_ceil(2);
        self
    }

    #[inline]
    fn has_room(&self, held: usize) -> bool {
        held == 0 || (self.used < self.messages_max && held < self.session_max)
    }

    /// Takes an empty segment.
    #[inline(always)]
    fn take(&mut self, is_long: bool, first_frame: u32) -> Box<SegmentBuffer> {
        let mut segment = self.idle.pop().unwrap_or_else(|| self.make(is_long));
        self.used += 1;
        segment.bytes = SEGMENT_HEADER_BYTES;
        segment.first_frame = first_frame;
        segment.frames = 0;
        segment.place = Place::Open;
        segment.is_urgent = false;
        segment.completes_unacked = false;
        segment.link = QueueLink::UNLINKED;
        segment
    }

    #[cold]
    fn make(&mut self, is_long: bool) -> Box<SegmentBuffer> {
        self.made += 1;
        Box::new(SegmentBuffer {
            buffer: aligned(self.buffer_bytes),
            bytes: 0,
            first_frame: 0,
            frames: 0,
            place: Place::Open,
            is_urgent: false,
            completes_unacked: false,
            is_long,
            operations: Vec::new(),
            link: QueueLink::UNLINKED,
        })
    }
}

/// Limits on the segments of an engine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StagingLimits {
    /// Bytes of segments of a session that wait for their first transmission.
    session_bytes: usize,
    /// Bytes of all segments.
    bytes: usize,
    /// The longest datagram that the NIC carries, in bytes.
    datagram_bytes: usize,
    /// Bytes of a buffer for a segment of one datagram, or of a ring; no less.
    buffer_bytes: usize,
}

impl StagingLimits {
    /// Memory for `buffers_max` times `session_bytes`, which one session may have. The NIC carries
    /// datagrams of `datagram_bytes`; segments have buffers of `buffer_bytes`.
    pub(crate) const fn new(
        session_bytes: usize,
        buffers_max: usize,
        datagram_bytes: usize,
        buffer_bytes: usize,
    ) -> Self {
        let bytes = session_bytes.saturating_mul(buffers_max);
        Self { session_bytes, bytes, datagram_bytes, buffer_bytes }
    }
}

/// Pool of segments; see the module. It has at most `limit` segments of each length, and beyond
/// that [`SegmentPool::LEAST`] short ones and a long one for each session, so that no session waits
/// for another one's acknowledgements.
#[derive(Debug)]
pub(crate) struct SegmentPool {
    /// Segments of one datagram.
    short: Class,
    /// Segments for a stream: the usual ones, and those of longer messages.
    long: Class,
    longest: Class,
    limits: StagingLimits,
}

impl SegmentPool {
    /// Short segments guaranteed to each session: one of messages, one of control frames.
    pub(crate) const LEAST: usize = 2;

    /// Creates a pool. Short and long segments may each use the memory that is allowed. There are
    /// as many short ones as buffers of a datagram would be: most are filled up to there only, and
    /// pages that are not written take no memory. Segments for rings may use more.
    pub(crate) fn new(limits: StagingLimits) -> Self {
        let StagingLimits { bytes, datagram_bytes, buffer_bytes, .. } = limits;
        let short = Class::new(buffer_bytes, bytes);
        Self {
            short: short.with_limit((bytes / datagram_bytes).max(1)),
            long: Class::new(LONG_BYTES, bytes / 2),
            longest: Class::new(LONGEST_BYTES, bytes / 2),
            limits,
        }
    }

    /// Creates a pool with `bytes` in buffers of `buffer_bytes` each, and as much for long ones.
    #[cfg(any(test, feature = "bench"))]
    pub(crate) fn of_bytes(buffer_bytes: usize, bytes: usize) -> Self {
        Self::new(StagingLimits::new(bytes, 1, buffer_bytes, buffer_bytes))
    }

    /// Returns the longest datagram that the NIC carries, in bytes.
    pub(super) fn datagram_bytes(&self) -> usize {
        self.limits.datagram_bytes
    }

    /// Returns the limit on segments of a session, of `segment_bytes` each, that wait for their
    /// first transmission.
    pub(super) fn unsent_max(&self, segment_bytes: usize) -> u32 {
        u32::try_from(self.limits.session_bytes / segment_bytes).unwrap_or(u32::MAX).max(1)
    }

    /// Returns the longest segment of one datagram, in bytes, header included.
    pub(crate) fn buffer_bytes(&self) -> usize {
        self.short.buffer_bytes
    }

    /// Returns the bytes of all allocated buffers, and of those in use.
    pub(crate) fn allocated_bytes(&self) -> (usize, usize) {
        let classes = [&self.short, &self.long, &self.longest];
        let made = classes.map(|class| class.made * class.buffer_bytes);
        let used = classes.map(|class| class.used * class.buffer_bytes);
        (made.iter().sum(), used.iter().sum())
    }

    /// Returns the number of short, long and longest ones.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn len(&self) -> [usize; 3] {
        [self.short.used, self.long.used, self.longest.used]
    }

    /// Returns the limits of these, not counting the minimum of each session.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn limit(&self) -> [usize; 3] {
        [self.short.limit, self.long.limit, self.longest.limit]
    }

    /// Returns whether a session with `held` segments may have one more. An eighth is reserved for
    /// control frames, and the messages of one session may have half of the rest.
    #[inline]
    pub(crate) fn has_room(&self, held: usize, is_control: bool) -> bool {
        if is_control {
            return held < Self::LEAST || self.short.used < self.short.limit;
        }
        self.short.has_room(held)
    }

    /// Returns whether a session with `held` long segments may have one more, with a frame of
    /// `length` bytes.
    pub(super) fn has_room_for_long(&self, held: usize, length: usize) -> bool {
        self.class_for(length).has_room(held)
    }

    /// Returns whether a message of `length` bytes may have a long segment at all: those beyond the
    /// usual length, which can be pulled, share the memory that is allowed, and none is guaranteed.
    #[inline]
    pub(super) fn takes_long(&self, length: u64) -> bool {
        length <= LONG_PAYLOAD_BYTES as u64 || self.longest.used < self.longest.messages_max.max(1)
    }

    /// Returns the class of a long segment with a frame of `length` bytes.
    fn class_for(&self, length: usize) -> &Class {
        if SEGMENT_HEADER_BYTES + length <= LONG_BYTES { &self.long } else { &self.longest }
    }

    /// Returns whether a session with `held` segments may have one more of bulk data. All bulk data
    /// leaves half to messages; and no session has more than what is left, so that the next session
    /// gets as much.
    pub(crate) fn has_room_for_bulk(&self, held: usize) -> bool {
        let half = self.short.messages_max / 2;
        held == 0 || held < half.saturating_sub(self.short.used)
    }

    /// Takes a segment, after [`Self::has_room`] returned `true`; [`Self::recycle`] takes it back.
    #[inline(always)]
    pub(crate) fn take_short(&mut self, first_frame: u32) -> Box<SegmentBuffer> {
        self.short.take(false, first_frame)
    }

    /// Takes a long segment for a frame of `length` bytes, after [`Self::has_room_for_long`]
    /// returned `true`.
    pub(super) fn take_long(&mut self, first_frame: u32, length: usize) -> Box<SegmentBuffer> {
        let bytes = self.class_for(length).buffer_bytes;
        self.class(true, bytes).take(true, first_frame)
    }

    #[inline]
    fn class(&mut self, is_long: bool, buffer_bytes: usize) -> &mut Class {
        match is_long {
            false => &mut self.short,
            true if buffer_bytes == LONG_BYTES => &mut self.long,
            true => &mut self.longest,
        }
    }

    /// Takes back a short segment without operations, and keeps its memory for others.
    #[inline(always)]
    pub(super) fn recycle_short(&mut self, segment: Box<SegmentBuffer>) {
        debug_assert!(!segment.is_long && segment.operations.is_empty());
        self.short.used -= 1;
        self.short.idle.push(segment);
    }

    /// Takes a segment back, and keeps its memory for others.
    #[inline]
    pub(crate) fn recycle(&mut self, mut segment: Box<SegmentBuffer>) {
        segment.operations.clear();
        let class = self.class(segment.is_long, segment.buffer.len());
        class.used -= 1;
        if class.buffer_bytes == LONGEST_BYTES && class.idle.len() >= LONGEST_IDLE_MAX {
            class.made -= 1;
            return;
        }
        class.idle.push(segment);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Longer ones share what is allowed: what is beyond it is pulled.
    #[test]
    fn longest_buffers_are_bounded_without_a_guarantee() {
        const LONG: u64 = 100 << 10;
        let mut pool = SegmentPool::of_bytes(2000, 8 * SEGMENT_BYTES_MAX);
        let mut open = Vec::new();
        while pool.takes_long(LONG) {
            open.push(pool.take_long(0, LONG as usize));
        }
        assert_eq!(open.len(), 3, "four are half of the bytes, one of them is not for messages");
        assert!(pool.takes_long(LONG_PAYLOAD_BYTES as u64), "usual ones have a buffer for each");
        pool.recycle(open.remove(0));
        assert!(pool.takes_long(LONG));
        let mut roomy = SegmentPool::of_bytes(2000, 1 << 30);
        let many: Vec<_> = (0..40).map(|_| roomy.take_long(0, LONG as usize)).collect();
        for segment in many {
            roomy.recycle(segment);
        }
        assert_eq!(roomy.allocated_bytes(), (LONGEST_IDLE_MAX * LONGEST_BYTES, 0));
    }
}
