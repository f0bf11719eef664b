//! Access to private modules, for benches and for tests that count instructions or allocations.
//! Not part of the interface: anything here may change at any time.

use zerocopy::IntoBytes;

use crate::progress::clock;
use crate::proto::matching::{Hasher, MatchEnvelope, Matcher, OperationSlots, Selector};
use crate::proto::session::segments::segment::{SegmentBuffer, SegmentPool};
use crate::proto::session::segments::split;
use crate::proto::table::Id;
use crate::wire::eager::EAGER_HEADER_BYTES;
use crate::wire::frame::KIND_EAGER;
use crate::wire::segment::SegmentHeader;
use crate::wire::{Eager, Frame, Frames, Grant, GrantOver, SEGMENT_BYTES_MAX};

/// Engines made from now on run so many times slower than they would, as under valgrind: so does
/// their clock, so that no timer fires which would not fire otherwise. No background thread makes
/// progress for them.
pub fn slow_clocks(times: u64) {
    clock::slow_down(times);
}

/// A matcher, used as an endpoint uses it.
pub struct Matching {
    matcher: Matcher,
    receives: OperationSlots,
}

/// The outcome of a receive.
pub enum Post {
    /// It took this unexpected message.
    Matched(u32),
    /// It waits.
    Waiting(Waiting),
}

/// Names a receive that waits.
#[derive(Clone, Copy)]
pub struct Waiting(Id);

impl Matching {
    /// An empty matcher whose hash is keyed by `seed`.
    pub fn new(seed: u64) -> Self {
        Self { matcher: Matcher::new(seed), receives: OperationSlots::new(usize::MAX) }
    }

    /// A message arrives: returns the receive that takes it, by the number that it was posted
    /// with, or keeps it as `message`.
    #[inline]
    pub fn arrive(&mut self, source: u32, context: u64, tag: u64, message: u32) -> Option<u32> {
        let envelope = MatchEnvelope { source, context, tag };
        let Some(receive) = self.matcher.take_whole(&mut self.receives, &envelope) else {
            self.matcher.insert_unexpected(&envelope, message);
            return None;
        };
        receive.map(|(_, number)| number as u32)
    }

    /// A receive is posted: returns the message that it takes, or keeps it as `receive`.
    #[inline]
    pub fn post(
        &mut self,
        source: Option<u32>,
        context: u64,
        tag: u64,
        ignore: u64,
        receive: u32,
    ) -> Post {
        let selector = Selector { source, context, tag, ignore };
        if let Some(kept) = self.matcher.take_unexpected(&selector) {
            return Post::Matched(kept.message);
        }
        // Its capacity serves as its number.
        let id = self.matcher.post(&mut self.receives, 0, &selector, receive.into());
        Post::Waiting(Waiting(id.expect("there is no limit")))
    }

    /// The message that a receive would take.
    pub fn peek(
        &mut self,
        source: Option<u32>,
        context: u64,
        tag: u64,
        ignore: u64,
    ) -> Option<u32> {
        let selector = Selector { source, context, tag, ignore };
        self.matcher.peek_unexpected(&selector).map(|kept| kept.message)
    }

    /// Cancels a receive, unless it has matched. Returns its number.
    pub fn cancel(&mut self, waiting: Waiting) -> Option<u32> {
        let number = self.receives.get(waiting.0)?.capacity();
        let index = waiting.0.index();
        self.matcher.cancel_posted(&mut self.receives, index as u32).then(|| {
            self.receives.remove(index);
            number as u32
        })
    }

    /// Receives that wait.
    pub fn posted_len(&self) -> usize {
        self.matcher.posted_len()
    }

    /// Messages that wait.
    pub fn unexpected_len(&self) -> usize {
        self.matcher.unexpected_len()
    }
}

/// The keyed hash of the matcher's bins.
pub struct MatchingHash(Hasher);

impl MatchingHash {
    /// Keyed by `seed`.
    pub fn new(seed: u64) -> Self {
        Self(Hasher::new(seed))
    }

    /// The hash of a bin key.
    #[inline]
    pub fn hash(&self, context: u64, tag: u64, source: u32) -> u32 {
        self.0.hash_words(context, tag, source)
    }
}

/// A segment that frames are written into, as a session does it.
pub struct Segment {
    pool: SegmentPool,
    buffer: Box<SegmentBuffer>,
}

impl Default for Segment {
    fn default() -> Self {
        Self::new()
    }
}

impl Segment {
    /// An empty one, of the greatest length.
    pub fn new() -> Self {
        let mut pool = SegmentPool::of_bytes(SEGMENT_BYTES_MAX, SEGMENT_BYTES_MAX);
        let buffer = pool.take_short(0);
        Self { pool, buffer }
    }

    #[inline]
    fn push(&mut self, length: usize) -> Option<&mut [u8]> {
        let room = self.pool.buffer_bytes();
        (self.buffer.bytes + length <= room).then(|| self.buffer.push(length))
    }

    /// Writes an eager message. `false`: there is no room.
    #[inline]
    pub fn push_eager(&mut self, tag: u64, payload: &[u8]) -> bool {
        let length = EAGER_HEADER_BYTES + payload.len();
        let Some(room) = self.push(length) else { return false };
        let header = Eager {
            kind: KIND_EAGER,
            flags: 0,
            target_endpoint: 0.into(),
            source_endpoint: 0.into(),
            predecessor_distance: 0.into(),
            context: 0.into(),
            length: (payload.len() as u32).into(),
            tag: tag.into(),
            operation: 0.into(),
        };
        let (head, body) = room.split_at_mut(EAGER_HEADER_BYTES);
        head.copy_from_slice(header.as_bytes());
        body.copy_from_slice(payload);
        true
    }

    /// Writes a grant of `length` bytes at `offset`. `false`: there is no room.
    #[inline]
    pub fn push_grant(&mut self, offset: u64, length: u32) -> bool {
        let grant = Grant::new(GrantOver::Lane { lane: 0, chunk: 0 }, 1, 2, (offset, length));
        let bytes = grant.as_bytes();
        let Some(room) = self.push(bytes.len()) else { return false };
        room.copy_from_slice(bytes);
        true
    }

    /// Writes the header of the segment: its bytes as they would be sent.
    #[inline]
    pub fn seal(&mut self) -> &[u8] {
        let header = SegmentHeader {
            length: 0.into(),
            frames: 0.into(),
            flags: 0.into(),
            first_frame: 0.into(),
            ack: 0.into(),
            envelope_limit: 0.into(),
            byte_limit: 0.into(),
        };
        self.buffer.seal(header)
    }

    /// Empties it, as an acknowledgement does.
    #[inline]
    pub fn clear(&mut self) {
        let next = self.pool.take_short(0);
        self.pool.recycle(std::mem::replace(&mut self.buffer, next));
    }
}

/// The frames that [`decode`] has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Decoded {
    /// Frames.
    pub frames: u64,
    /// Sum of the tags of eager frames and the offsets of grants, modulo 2^64.
    pub sum: u64,
    /// Bytes of payload, or granted.
    pub bytes: u64,
}

/// Splits a segment into frames, as the receiving side does; `None`: it is not a whole one of
/// eager frames and grants.
#[inline]
pub fn decode(bytes: &[u8]) -> Option<Decoded> {
    let (_, body, _) = split(bytes, false).ok()??;
    let mut frames = Frames::new(body);
    let mut decoded = Decoded::default();
    while let Some(frame) = frames.next_frame().ok()? {
        let (number, bytes) = match frame {
            Frame::Eager(header, _, payload) => (header.tag.get(), payload.len() as u64),
            Frame::Grant(grant, _) => (grant.offset.get(), u64::from(grant.length.get())),
            _ => return None,
        };
        decoded.frames += 1;
        decoded.sum = decoded.sum.wrapping_add(number);
        decoded.bytes += bytes;
    }
    Some(decoded)
}
