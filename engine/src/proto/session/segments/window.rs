//! Received frames of the peer: each is processed once, however often it arrives.
//!
//! Duplicates are detected by frame number alone, so no reply has to be kept for repetition. A
//! request that must not be executed twice, such as an atomic, is a frame like any other and is
//! covered here; a reply cache becomes necessary with the first request that outlives its session.

use std::fmt;

/// Frames that may be outstanding per session and direction: numbered and not acknowledged.
///
/// 32768 parts of 1400 bytes are 45 MB, 3.6 times the product of 1 Gb/s and 100 ms, so that a part
/// may be lost twice in a row before the window stalls; and it is half the range of the 16 bits in
/// which an envelope gives the distance to its predecessor.
pub(crate) const FRAMES_MAX: u32 = 1 << 15;

const WORDS: usize = FRAMES_MAX as usize / 64;

/// Whether `frame` was numbered before `other`, of two that are less than 2^31 apart.
#[inline]
pub(crate) fn is_before(frame: u32, other: u32) -> bool {
    frame.wrapping_sub(other) > u32::MAX / 2
}

/// A set of frames that all lie in one window. Takes no memory before the first one.
#[derive(Default)]
pub(crate) struct FrameSet {
    words: Box<[u64]>,
    len: u32,
}

impl fmt::Debug for FrameSet {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} frames", self.len)
    }
}

impl FrameSet {
    fn place(frame: u32) -> (usize, u64) {
        let at = frame % FRAMES_MAX;
        ((at / 64) as usize, 1 << (at % 64))
    }

    /// Returns `false` if it was present.
    pub(crate) fn insert(&mut self, frame: u32) -> bool {
        if self.words.is_empty() {
            self.words = vec![0; WORDS].into_boxed_slice();
        }
        let (word, bit) = Self::place(frame);
        let is_new = self.words[word] & bit == 0;
        self.words[word] |= bit;
        self.len += u32::from(is_new);
        is_new
    }

    /// Returns `false` if it was absent.
    pub(crate) fn remove(&mut self, frame: u32) -> bool {
        let was_there = self.contains(frame);
        if was_there {
            let (word, bit) = Self::place(frame);
            self.words[word] &= !bit;
            self.len -= 1;
        }
        was_there
    }

    #[inline]
    pub(crate) fn contains(&self, frame: u32) -> bool {
        let (word, bit) = Self::place(frame);
        self.len > 0 && self.words[word] & bit != 0
    }

    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    /// Frees its memory if it is empty.
    pub(crate) fn shrink(&mut self) {
        if self.len == 0 {
            self.words = Box::default();
        }
    }
}

/// Classification of a frame by its number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Coming {
    /// It has not arrived before.
    Fresh,
    /// It is a duplicate.
    Again,
    /// It is beyond the window.
    Beyond,
}

/// Received frames; see the module.
#[derive(Debug, Default)]
pub(crate) struct Arrivals {
    /// All frames before it have arrived.
    expected: u32,
    /// Frames after it that have arrived.
    early: FrameSet,
}

impl Arrivals {
    /// Returns the first missing frame, which is the cumulative acknowledgement.
    #[inline]
    pub(crate) fn expected(&self) -> u32 {
        self.expected
    }

    /// Notes the next frames, of which the first is [`Self::expected`], while none has arrived
    /// before one that is missing.
    #[inline]
    pub(super) fn note_next(&mut self, frames: u32) {
        debug_assert!(!self.has_early(), "none is missing");
        self.expected = self.expected.wrapping_add(frames);
    }

    /// Notes and classifies a frame.
    ///
    /// RR-DGRAM-1.
    #[inline]
    pub(crate) fn note(&mut self, frame: u32) -> Coming {
        if is_before(frame, self.expected) {
            return Coming::Again;
        }
        if frame.wrapping_sub(self.expected) >= FRAMES_MAX {
            return Coming::Beyond;
        }
        if frame != self.expected {
            return if self.early.insert(frame) { Coming::Fresh } else { Coming::Again };
        }
        self.expected = frame.wrapping_add(1);
        while self.early.len() > 0 && self.early.remove(self.expected) {
            self.expected = self.expected.wrapping_add(1);
        }
        Coming::Fresh
    }

    /// Returns whether a frame, of this or an earlier window, has arrived.
    #[inline]
    pub(crate) fn has(&self, frame: u32) -> bool {
        let is_in_window = frame.wrapping_sub(self.expected) < FRAMES_MAX;
        is_before(frame, self.expected) || (is_in_window && self.early.contains(frame))
    }

    /// Returns whether a frame has arrived before one that is missing.
    pub(crate) fn has_early(&self) -> bool {
        self.early.len() > 0
    }

    /// Frees memory if no frame is missing.
    pub(super) fn shrink(&mut self) {
        self.early.shrink();
    }

    /// Starts at another number than 0, as after a long session.
    #[cfg(test)]
    pub(crate) fn starting_at(expected: u32) -> Self {
        Self { expected, early: FrameSet::default() }
    }
}
