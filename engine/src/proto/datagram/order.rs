//! The order in which messages are matched, kept where datagrams have none.
//!
//! Messages of one *stream*, that is of the same source endpoint, target endpoint and context, are
//! matched in the order in which they were sent. Each says how many frames back the one before it
//! is, unless that one is known to have been matched. So the receiver remembers nothing of a stream
//! that is silent, however many there are, and a lost message holds up its own stream only.

use std::collections::HashMap;

use super::super::late::{Hashing, LateMap};
use super::window::{Arrivals, FrameSet, is_before};
use crate::wire::{Eager, Rts};

/// Streams that are looked through for silent ones at the least.
const STREAMS_LEAST: usize = 64;

/// Frames after which silent streams are forgotten, however few: less than two numbers may be apart
/// that [`is_before`] compares, by far more than a window.
const FORGET_AFTER: u32 = 1 << 30;

/// Source endpoint, target endpoint, and context with the bit of untagged messages.
pub(crate) type Stream = (u16, u16, u64);

/// The sending side: the last message of each stream.
#[derive(Debug)]
pub(crate) struct Chain {
    /// The stream of the last message of all, and that message. What the table says of it is old.
    latest: Option<(Stream, u32)>,
    last: HashMap<Stream, u32, Hashing>,
    /// Silent streams are forgotten when there are as many as this.
    forget_at: usize,
    /// None is remembered whose last message is before this frame.
    forgotten: u32,
}

impl Chain {
    pub(crate) fn new(seed: u64) -> Self {
        let last = HashMap::with_hasher(Hashing::with_seed(seed));
        Self { latest: None, last, forget_at: STREAMS_LEAST, forgotten: 0 }
    }

    /// What message `frame` says of the one before it, where all before `base` have come.
    ///
    /// RR-DGRAM-4.
    #[inline(always)]
    pub(crate) fn follow(&mut self, stream: Stream, frame: u32, base: u32) -> u16 {
        let last = match &mut self.latest {
            Some((latest, last)) if *latest == stream => Some(std::mem::replace(last, frame)),
            _ => self.turn_to(stream, frame, base),
        };
        match last {
            // What may be missing lies in one window, which 16 bits tell apart.
            Some(last) if !is_before(last, base) && !planted!(ForgetStream) => {
                frame.wrapping_sub(last) as u16
            }
            _ => 0,
        }
    }

    /// All before `base` have come; this is told at each number that is given out. Streams that
    /// have been silent for long are forgotten before their numbers are those of later frames.
    ///
    /// RR-DGRAM-4.
    #[inline]
    pub(crate) fn keep_up(&mut self, base: u32) {
        if base.wrapping_sub(self.forgotten) >= FORGET_AFTER {
            self.forget_silent(base);
        }
    }

    /// Gives back what memory is not needed where all before `base` have come.
    pub(super) fn shrink(&mut self, base: u32) {
        self.forget_silent(base);
        self.last.shrink_to_fit();
        self.forget_at = STREAMS_LEAST;
    }

    #[cold]
    fn forget_silent(&mut self, base: u32) {
        self.latest.take_if(|(_, last)| is_before(*last, base));
        self.last.retain(|_, last| !is_before(*last, base));
        self.forgotten = base;
    }

    /// Another stream goes on with `frame`; its last message so far, if that is remembered.
    fn turn_to(&mut self, stream: Stream, frame: u32, base: u32) -> Option<u32> {
        if let Some((before, last)) = self.latest.replace((stream, frame)) {
            if self.last.len() >= self.forget_at {
                self.last.retain(|_, last| !is_before(*last, base));
                self.forget_at = STREAMS_LEAST.max(2 * self.last.len());
            }
            self.last.insert(before, last);
        }
        self.last.get(&stream).copied()
    }
}

/// The header of a message, and its remote data.
#[derive(Clone, Copy, Debug)]
pub(crate) enum EnvelopeHeader {
    Eager(Eager, Option<u64>),
    Parts(Eager, Option<u64>),
    Rts(Rts, Option<u64>),
}

impl EnvelopeHeader {
    fn predecessor_distance(&self) -> u16 {
        match self {
            Self::Eager(header, _) | Self::Parts(header, _) => header.predecessor_distance.get(),
            Self::Rts(header, _) => header.predecessor_distance.get(),
        }
    }
}

/// A message that came before the one that it follows.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) frame: u32,
    pub(crate) envelope: EnvelopeHeader,
    /// What came with it: a buffer of [`super::super::unexpected`], and how much of it.
    pub(crate) payload: Box<[u8]>,
    pub(crate) payload_bytes: usize,
}

/// The receiving side. EnvelopeHeader credit bounds how many wait, byte credit what they hold.
#[derive(Debug)]
pub(crate) struct ReorderBuffer {
    by_predecessor: LateMap<Held>,
    frames: FrameSet,
}

impl ReorderBuffer {
    pub(crate) fn new(seed: u64) -> Self {
        Self { by_predecessor: LateMap::new(seed), frames: FrameSet::default() }
    }

    /// The frame that message `frame`, which has come, must wait for. What has come and is not
    /// held has been matched; of frames before the first that is missing none is held, and what
    /// the set of those held says of their numbers is said of others, one window later.
    ///
    /// RR-DGRAM-4.
    pub(crate) fn waits_for(
        &self,
        frame: u32,
        envelope: &EnvelopeHeader,
        arrivals: &Arrivals,
    ) -> Option<u32> {
        let predecessor_distance = envelope.predecessor_distance();
        if predecessor_distance == 0 {
            return None;
        }
        let predecessor = frame.wrapping_sub(u32::from(predecessor_distance));
        let is_matched = is_before(predecessor, arrivals.expected())
            || (arrivals.has(predecessor) && !self.frames.contains(predecessor));
        (!is_matched && !planted!(MatchOutOfTurn)).then_some(predecessor)
    }

    /// No message waits for another one.
    #[inline]
    pub(super) fn holds_nothing(&self) -> bool {
        self.frames.len() == 0
    }

    /// Keeps a message until `predecessor` is matched. Gives it back if another one waits for that.
    pub(crate) fn insert(&mut self, predecessor: u32, held: Held) -> Result<(), Held> {
        if self.by_predecessor.contains(predecessor) {
            return Err(held);
        }
        self.frames.insert(held.frame);
        self.by_predecessor.insert(predecessor, held);
        Ok(())
    }

    /// The message that waited for `predecessor`.
    #[inline]
    pub(crate) fn take_after(&mut self, predecessor: u32) -> Option<Held> {
        if self.frames.len() == 0 {
            return None;
        }
        let held = self.by_predecessor.remove(predecessor)?;
        self.frames.remove(held.frame);
        Some(held)
    }

    /// Gives back what memory is not needed for what waits.
    pub(super) fn shrink(&mut self) {
        self.by_predecessor.shrink();
        self.frames.shrink();
    }

    /// Nothing waits.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn is_empty(&self) -> bool {
        self.by_predecessor.is_empty() && self.frames.len() == 0
    }

    /// Takes all out.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = Held> {
        self.frames = FrameSet::default();
        self.by_predecessor.drain()
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::FromZeros;

    use super::super::window::{Coming, FRAMES_MAX};
    use super::*;

    fn following(predecessor_distance: u16) -> EnvelopeHeader {
        let predecessor_distance = predecessor_distance.into();
        EnvelopeHeader::Eager(Eager { predecessor_distance, ..Eager::new_zeroed() }, None)
    }

    const ONE: Stream = (0, 1, 5);
    const OTHER: Stream = (0, 1, 6);

    /// Frames go on to `end`, all of them acknowledged as soon as they are sent.
    fn pass_frames(chain: &mut Chain, from: u32, end: u64) {
        for frame in (u64::from(from)..end).step_by(FRAMES_MAX as usize) {
            chain.keep_up(frame as u32);
        }
    }

    /// A stream is silent until numbers seem to be later than its last one, or nearly come round.
    /// Whether it was the last that sent anything makes no difference. RR-DGRAM-4
    #[test]
    fn a_message_of_long_ago_is_followed_by_none() {
        let last = 1000;
        let half = 1u64 << 31;
        for silence in [half - 1, half, half + 5, half + 40_000, 2 * half - 40_000, 2 * half + 5] {
            for is_latest in [true, false] {
                let mut chain = Chain::new(1);
                assert_eq!(chain.follow(ONE, last, last), 0);
                if !is_latest {
                    assert_eq!(chain.follow(OTHER, last + 1, last), 0);
                }
                // Much is under way, so that a number that comes round lies within.
                let end = u64::from(last) + silence;
                let known = end - u64::from(FRAMES_MAX / 2);
                pass_frames(&mut chain, last, known);
                let (frame, base) = (end as u32, known as u32);
                chain.keep_up(base);
                assert_eq!(chain.follow(ONE, frame, base), 0, "{silence} {is_latest}");
                assert_eq!(chain.follow(ONE, frame + 3, base), 3);
            }
        }
    }

    /// RR-DGRAM-4
    #[test]
    fn what_may_be_missing_is_followed_while_numbers_come_round() {
        let mut chain = Chain::new(1);
        let start = u32::MAX - 10;
        pass_frames(&mut chain, 0, u64::from(start));
        chain.keep_up(start);
        assert_eq!(chain.follow(ONE, start, start), 0);
        assert_eq!(chain.follow(OTHER, start + 1, start), 0);
        for back in [7, 20, FRAMES_MAX - 1 - 27] {
            chain.keep_up(start);
            let (_, last) = chain.latest.unwrap();
            let frame = last.wrapping_add(back);
            assert_eq!(u32::from(chain.follow(OTHER, frame, start)), back);
        }
        assert_eq!(u32::from(chain.follow(ONE, start.wrapping_add(32_767), start)), 32_767);
    }

    /// A message is lost until one waits that is a whole window behind the one it follows: both
    /// have the same place in the set of frames that are held. RR-DGRAM-4
    #[test]
    fn what_is_held_a_window_later_is_not_what_a_message_follows() {
        let (first, lost) = (100, 20_000);
        let late = first + FRAMES_MAX;
        let mut arrivals = Arrivals::starting_at(lost);
        let mut reorder_buffer = ReorderBuffer::new(1);
        assert_eq!(arrivals.note(late), Coming::Fresh);
        let envelope = following((late - lost) as u16);
        assert_eq!(reorder_buffer.waits_for(late, &envelope, &arrivals), Some(lost));
        let held = Held { frame: late, envelope, payload: Box::default(), payload_bytes: 0 };
        reorder_buffer.insert(lost, held).unwrap();
        assert_eq!(arrivals.note(lost), Coming::Fresh);
        let envelope = following((lost - first) as u16);
        assert_eq!(reorder_buffer.waits_for(lost, &envelope, &arrivals), None);
        assert_eq!(reorder_buffer.take_after(lost).unwrap().frame, late);
    }
}
