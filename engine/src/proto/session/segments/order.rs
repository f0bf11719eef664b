//! Matching order of messages over unordered datagrams.
//!
//! Messages of one *flow*, that is of the same source endpoint, target endpoint and context, are
//! matched in the order in which they were sent. Each carries its distance in frames from the
//! previous one, unless that one is known to have been matched. So the receiver keeps no state for
//! idle flows, however many there are, and a lost message delays its own flow only.

use std::collections::HashMap;

use super::super::late::{Hashing, LateMap};
use super::window::{Arrivals, FrameSet, is_before};
use crate::wire::{Eager, Frame, Rts};

/// Number of flows from which idle ones are searched for.
const STREAMS_LEAST: usize = 64;

/// Frames after which idle flows are forgotten, however few: fewer than 2^31, the range within
/// which [`is_before`] compares, and many more than a window.
const FORGET_AFTER: u32 = 1 << 30;

/// Source endpoint, target endpoint, and context with the bit of untagged messages.
pub(crate) type Stream = (u16, u16, u64);

/// The sending side: the last message of each flow.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Chain {
    /// The flow of the most recent message, and that message. Its entry in the table is out of
    /// date.
    latest: Option<(Stream, u32)>,
    /// No flow is kept whose last message is before this frame.
    forgotten: u32,
    last: HashMap<Stream, u32, Hashing>,
    /// Idle flows are forgotten when there are this many.
    forget_at: usize,
}

impl Chain {
    pub(crate) fn new(seed: u64) -> Self {
        let last = HashMap::with_hasher(Hashing::with_seed(seed));
        Self { latest: None, last, forget_at: STREAMS_LEAST, forgotten: 0 }
    }

    /// Returns the distance of message `frame` from the previous one, given that all before `base`
    /// have arrived.
    ///
    /// RR-DGRAM-4.
    #[inline(always)]
    pub(crate) fn follow(&mut self, stream: Stream, frame: u32, base: u32) -> u16 {
        let last = match &mut self.latest {
            Some((latest, last)) if *latest == stream => Some(std::mem::replace(last, frame)),
            _ => self.turn_to(stream, frame, base),
        };
        match last {
            // Only frames of one window can be missing, which 16 bits distinguish.
            Some(last) if !is_before(last, base) && !planted!(ForgetStream) => {
                frame.wrapping_sub(last) as u16
            }
            _ => 0,
        }
    }

    /// Notes that all frames before `base` have arrived; called for each assigned number. Flows
    /// that have been idle for long are forgotten before their numbers are those of later frames.
    ///
    /// RR-DGRAM-4.
    #[inline]
    pub(crate) fn keep_up(&mut self, base: u32) {
        if base.wrapping_sub(self.forgotten) >= FORGET_AFTER {
            self.forget_silent(base);
        }
    }

    /// Frees memory that is not needed, given that all frames before `base` have arrived.
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

    /// Switches to another flow that continues with `frame`. Returns its last message, if known.
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
    Rts(Rts, Option<u64>),
}

impl EnvelopeHeader {
    /// Returns that of a frame, and the bytes behind it; `None`: it is no message.
    #[inline]
    pub(super) fn of_frame<'a>(frame: &Frame<'a>) -> Option<(Self, &'a [u8])> {
        match *frame {
            Frame::Eager(header, data, payload) => Some((Self::Eager(*header, data), payload)),
            Frame::Rts(header, data, first) => Some((Self::Rts(*header, data), first)),
            _ => None,
        }
    }

    fn predecessor_distance(&self) -> u16 {
        match self {
            Self::Eager(header, _) => header.predecessor_distance.get(),
            Self::Rts(header, _) => header.predecessor_distance.get(),
        }
    }
}

/// A message that arrived before the one that it follows.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) frame: u32,
    pub(crate) envelope: EnvelopeHeader,
    /// Its payload: a buffer of [`crate::proto::unexpected`] and the used length.
    pub(crate) payload: Box<[u8]>,
    pub(crate) payload_bytes: usize,
}

/// The receiving side. Envelope credit bounds how many messages wait, byte credit their memory.
#[derive(Debug)]
pub(crate) struct ReorderBuffer {
    by_predecessor: LateMap<Held>,
    frames: FrameSet,
}

impl ReorderBuffer {
    pub(crate) fn new(seed: u64) -> Self {
        Self { by_predecessor: LateMap::new(seed), frames: FrameSet::default() }
    }

    /// Returns the frame that the received message `frame` must wait for. Messages that have
    /// arrived and are not buffered have been matched. Frames before the first missing one are not
    /// buffered, although the set of buffered ones aliases their numbers with those one window
    /// later.
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

    /// Returns whether no message is buffered.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.frames.len() == 0
    }

    /// Buffers a message until `predecessor` is matched. Returns it if another one waits for that.
    pub(crate) fn insert(&mut self, predecessor: u32, held: Held) -> Result<(), Held> {
        if self.by_predecessor.contains(predecessor) {
            return Err(held);
        }
        self.frames.insert(held.frame);
        self.by_predecessor.insert(predecessor, held);
        Ok(())
    }

    /// Removes the message that waited for `predecessor`.
    #[inline]
    pub(crate) fn take_after(&mut self, predecessor: u32) -> Option<Held> {
        if self.frames.len() == 0 {
            return None;
        }
        let held = self.by_predecessor.remove(predecessor)?;
        self.frames.remove(held.frame);
        Some(held)
    }

    /// Frees memory that is not needed for buffered messages.
    pub(super) fn shrink(&mut self) {
        self.by_predecessor.shrink();
        self.frames.shrink();
    }

    /// Removes all.
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

    /// Advances to frame `end`, with each frame acknowledged as soon as it is sent.
    fn pass_frames(chain: &mut Chain, from: u32, end: u64) {
        for frame in (u64::from(from)..end).step_by(FRAMES_MAX as usize) {
            chain.keep_up(frame as u32);
        }
    }

    /// A flow is idle until its last number seems later than current ones, or nearly wraps around;
    /// also if it was the last flow that sent.
    /// RR-DGRAM-4
    #[test]
    fn long_idle_flow_names_no_predecessor() {
        let last = 1000;
        let half = 1u64 << 31;
        for silence in [half - 1, half, half + 5, half + 40_000, 2 * half - 40_000, 2 * half + 5] {
            for is_latest in [true, false] {
                let mut chain = Chain::new(1);
                assert_eq!(chain.follow(ONE, last, last), 0);
                if !is_latest {
                    assert_eq!(chain.follow(OTHER, last + 1, last), 0);
                }
                // Many frames are outstanding, so that wrapped numbers fall inside the window.
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
    fn unacked_predecessor_is_named_across_wraparound() {
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

    /// A message is lost until one is buffered that is a whole window after the one it follows:
    /// both have the same position in the set of buffered frames.
    /// RR-DGRAM-4
    #[test]
    fn message_buffered_a_window_later_is_not_taken_for_predecessor() {
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
