//! The order in which messages are matched, kept where datagrams have none.
//!
//! Messages of one *stream*, that is of the same source endpoint, target endpoint and context, are
//! matched in the order in which they were sent. Each says how many frames back the one before it
//! is, unless that one is known to have been matched. So the receiver remembers nothing of a stream
//! that is silent, however many there are, and a lost message holds up its own stream only.

use std::collections::HashMap;

use super::window::{Arrivals, FrameSet, is_before};
use crate::wire::{Eager, Rts};

/// Hashes what one side numbers itself, or what lies in one window of frames: nobody else chooses.
pub(crate) type Hashing = foldhash::fast::FixedState;

/// Streams that are looked through for silent ones at the least.
const STREAMS_LEAST: usize = 64;

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
}

impl Chain {
    pub(crate) fn new(seed: u64) -> Self {
        let last = HashMap::with_hasher(Hashing::with_seed(seed));
        Self { latest: None, last, forget_at: STREAMS_LEAST }
    }

    /// What message `frame` says of the one before it, where all before `base` have come.
    ///
    /// RR-DGRAM-4.
    #[inline]
    pub(crate) fn follow(&mut self, stream: Stream, frame: u32, base: u32) -> u16 {
        let last = match &mut self.latest {
            Some((latest, last)) if *latest == stream => Some(std::mem::replace(last, frame)),
            _ => self.turn_to(stream, frame, base),
        };
        match last {
            Some(last) if !is_before(last, base) && !planted!(ForgetStream) => {
                frame.wrapping_sub(last) as u16
            }
            _ => 0,
        }
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

/// The header of a message.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Envelope {
    Eager(Eager),
    Parts(Eager),
    Rts(Rts),
}

impl Envelope {
    fn follows(&self) -> u16 {
        match self {
            Self::Eager(header) | Self::Parts(header) => header.follows.get(),
            Self::Rts(header) => header.follows.get(),
        }
    }
}

/// A message that came before the one that it follows.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) frame: u32,
    pub(crate) envelope: Envelope,
    /// What came with it: a buffer of [`super::super::unexpected`], and how much of it.
    pub(crate) payload: Box<[u8]>,
    pub(crate) payload_bytes: usize,
}

/// The receiving side. Envelope credit bounds how many wait, byte credit what they hold.
#[derive(Debug)]
pub(crate) struct Holding {
    by_predecessor: HashMap<u32, Held, Hashing>,
    frames: FrameSet,
}

impl Holding {
    pub(crate) fn new(seed: u64) -> Self {
        let by_predecessor = HashMap::with_hasher(Hashing::with_seed(seed));
        Self { by_predecessor, frames: FrameSet::default() }
    }

    /// The frame that message `frame`, which has come, must wait for. What has come and is not
    /// held has been matched; of frames before the first that is missing none is held, and what
    /// the set of those held says of their numbers is said of others, one window later.
    ///
    /// RR-DGRAM-4.
    pub(crate) fn waits_for(
        &self,
        frame: u32,
        envelope: &Envelope,
        arrivals: &Arrivals,
    ) -> Option<u32> {
        let follows = envelope.follows();
        if follows == 0 {
            return None;
        }
        let predecessor = frame.wrapping_sub(u32::from(follows));
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
        if self.by_predecessor.contains_key(&predecessor) {
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
        let held = self.by_predecessor.remove(&predecessor)?;
        self.frames.remove(held.frame);
        Some(held)
    }

    /// Nothing waits.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn is_empty(&self) -> bool {
        self.by_predecessor.is_empty() && self.frames.len() == 0
    }

    /// Takes all out.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = Held> {
        self.frames = FrameSet::default();
        self.by_predecessor.drain().map(|(_, held)| held)
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::FromZeros;

    use super::super::window::{Coming, FRAMES_MAX};
    use super::*;

    fn following(follows: u16) -> Envelope {
        Envelope::Eager(Eager { follows: follows.into(), ..Eager::new_zeroed() })
    }

    /// A message is lost until one waits that is a whole window behind the one it follows: both
    /// have the same place in the set of frames that are held. RR-DGRAM-4
    #[test]
    fn what_is_held_a_window_later_is_not_what_a_message_follows() {
        let (first, lost) = (100, 20_000);
        let late = first + FRAMES_MAX;
        let mut arrivals = Arrivals::starting_at(lost);
        let mut holding = Holding::new(1);
        assert_eq!(arrivals.note(late), Coming::Fresh);
        let envelope = following((late - lost) as u16);
        assert_eq!(holding.waits_for(late, &envelope, &arrivals), Some(lost));
        let held = Held { frame: late, envelope, payload: Box::default(), payload_bytes: 0 };
        holding.insert(lost, held).unwrap();
        assert_eq!(arrivals.note(lost), Coming::Fresh);
        let envelope = following((lost - first) as u16);
        assert_eq!(holding.waits_for(lost, &envelope, &arrivals), None);
        assert_eq!(holding.take_after(lost).unwrap().frame, late);
    }
}
