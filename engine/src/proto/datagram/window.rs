//! Which frames of the peer have come: each is used once, however often it arrives.
//!
//! Nothing that can be asked of a peer changes anything when it is asked twice, besides by being a
//! frame twice; so knowing the number is enough, and no answer is kept to be given again. A request
//! that must not be carried out twice, such as an atomic, is a frame like others and so is covered
//! here; a reply cache is due with the first one that outlives its session.

use std::fmt;

/// Frames that may be outstanding per session and direction: numbered, and not known to have come.
///
/// 32768 parts of 1400 bytes are 45 MB, 3.6 times the product of 1 Gb/s and 100 ms, so that a part
/// may be lost twice in a row before the window stands still; and it is half of what 16 bits tell
/// apart, which is what an envelope says of the one before it.
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

    /// `false`: it was there.
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

    /// `false`: it was not there.
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

    /// Gives memory back, if it is empty.
    pub(crate) fn shrink(&mut self) {
        if self.len == 0 {
            self.words = Box::default();
        }
    }
}

/// What a frame is, going by its number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Coming {
    /// It has not come before.
    Fresh,
    /// It has come before.
    Again,
    /// It could not have been sent yet.
    Beyond,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Arrivals {
    /// All before it have come.
    expected: u32,
    /// Those beyond it that have come.
    early: FrameSet,
}

impl Arrivals {
    /// The first frame that has not come: what the peer is told.
    #[inline]
    pub(crate) fn expected(&self) -> u32 {
        self.expected
    }

    /// Whether `frame` is the next one, and none has come before one that is missing.
    #[inline]
    pub(super) fn is_next(&self, frame: u32) -> bool {
        frame == self.expected && self.early.len() == 0
    }

    /// The next frames have come, and [`Self::is_next`] of the first.
    #[inline]
    pub(super) fn note_next(&mut self, frames: u32) {
        self.expected = self.expected.wrapping_add(frames);
    }

    /// A frame has come.
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

    /// Whether a frame, of this or an earlier window, has come.
    #[inline]
    pub(crate) fn has(&self, frame: u32) -> bool {
        let is_in_window = frame.wrapping_sub(self.expected) < FRAMES_MAX;
        is_before(frame, self.expected) || (is_in_window && self.early.contains(frame))
    }

    /// Whether a frame has come before one that is missing.
    pub(crate) fn has_early(&self) -> bool {
        self.early.len() > 0
    }

    /// Gives memory back, if none is missing.
    pub(super) fn shrink(&mut self) {
        self.early.shrink();
    }

    /// Starts at another number than 0, as a session does after a long time.
    #[cfg(test)]
    pub(crate) fn starting_at(expected: u32) -> Self {
        Self { expected, early: FrameSet::default() }
    }
}
