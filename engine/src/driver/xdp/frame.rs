//! Ownership of the frames of the memory shared with the kernel (UMEM).

use std::fmt;

/// A frame that this side may access: neither free nor owned by the kernel.
///
/// It is neither `Copy` nor `Clone`, and only a [`Ledger`] creates one; so a frame owned by the
/// kernel cannot be accessed, and none is submitted twice.
#[derive(PartialEq, Eq)]
pub(super) struct XdpFrame(u32);

impl XdpFrame {
    /// Its index in the memory.
    pub(super) fn index(&self) -> u32 {
        self.0
    }
}

impl fmt::Debug for XdpFrame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Frame({})", self.0)
    }
}

/// Owner of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum FrameOwner {
    /// The free list.
    Free,
    /// The engine, as a [`XdpFrame`].
    Hand,
    /// The kernel, for receiving.
    Fill,
    /// The kernel, for sending.
    Transmit,
}

/// Number of frames by owner; the sum is constant.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct FrameCounts {
    /// In the free list.
    pub(crate) free: u32,
    /// Being written or read.
    pub(crate) in_hand: u32,
    /// Owned by the kernel, for receiving.
    pub(crate) filled: u32,
    /// Owned by the kernel, for sending.
    pub(crate) sending: u32,
    /// Indices returned by the kernel that it did not own; they were rejected.
    pub(crate) strays: u64,
}

impl FrameCounts {
    /// All frames.
    #[cfg(test)]
    pub(crate) fn total(&self) -> u32 {
        self.free + self.in_hand + self.filled + self.sending
    }

    #[inline(always)]
    fn count(&mut self, holder: FrameOwner) -> &mut u32 {
        match holder {
            FrameOwner::Free => &mut self.free,
            FrameOwner::Hand => &mut self.in_hand,
            FrameOwner::Fill => &mut self.filled,
            FrameOwner::Transmit => &mut self.sending,
        }
    }
}

/// The owner of each frame.
#[derive(Debug)]
pub(super) struct Ledger {
    holders: Box<[FrameOwner]>,
    /// Last in, first out: the last freed frame is cached.
    free: Vec<u32>,
    counts: FrameCounts,
}

impl Ledger {
    /// For `frames` frames, all free.
    pub(super) fn new(frames: u32) -> Self {
        Self {
            holders: vec![FrameOwner::Free; frames as usize].into(),
            free: (0..frames).rev().collect(),
            counts: FrameCounts { free: frames, ..FrameCounts::default() },
        }
    }

    /// Number of frames by owner.
    #[inline]
    pub(super) fn counts(&self) -> FrameCounts {
        self.counts
    }

    #[inline(always)]
    fn pass(&mut self, index: u32, from: FrameOwner, to: FrameOwner) {
        debug_assert_eq!(self.holders[index as usize], from);
        self.holders[index as usize] = to;
        *self.counts.count(from) -= 1;
        *self.counts.count(to) += 1;
    }

    /// Takes a free frame.
    #[inline]
    pub(super) fn take(&mut self) -> Option<XdpFrame> {
        let index = self.free.pop()?;
        self.pass(index, FrameOwner::Free, FrameOwner::Hand);
        Some(XdpFrame(index))
    }

    /// Frees a frame.
    #[inline]
    pub(super) fn put_back(&mut self, frame: XdpFrame) {
        self.pass(frame.0, FrameOwner::Hand, FrameOwner::Free);
        self.free.push(frame.0);
    }

    /// Moves a frame to the kernel, as `holder`.
    #[inline]
    pub(super) fn lend(&mut self, frame: XdpFrame, holder: FrameOwner) {
        debug_assert!(matches!(holder, FrameOwner::Fill | FrameOwner::Transmit));
        self.pass(frame.0, FrameOwner::Hand, holder);
    }

    /// Takes back a frame that the kernel returned. `None`, and counted: the kernel did not own it
    /// as `holder`, so it may be in use.
    #[inline]
    pub(super) fn reclaim(&mut self, index: u32, holder: FrameOwner) -> Option<XdpFrame> {
        if self.holders.get(index as usize) != Some(&holder) {
            self.counts.strays += 1;
            return None;
        }
        self.pass(index, holder, FrameOwner::Hand);
        Some(XdpFrame(index))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_frame_has_one_owner() {
        let mut ledger = Ledger::new(3);
        let frames: Vec<XdpFrame> = std::iter::from_fn(|| ledger.take()).collect();
        assert_eq!(frames.iter().map(XdpFrame::index).collect::<Vec<_>>(), [0, 1, 2]);
        let [a, b, c] = <[XdpFrame; 3]>::try_from(frames).unwrap();
        ledger.lend(a, FrameOwner::Fill);
        ledger.lend(b, FrameOwner::Transmit);
        ledger.put_back(c);
        let counts = ledger.counts();
        assert_eq!((counts.free, counts.in_hand, counts.filled, counts.sending), (1, 0, 1, 1));
        assert_eq!(counts.total(), 3);
        assert_eq!(ledger.reclaim(0, FrameOwner::Transmit), None);
        assert_eq!(ledger.reclaim(2, FrameOwner::Transmit), None);
        assert_eq!(ledger.reclaim(99, FrameOwner::Fill), None);
        let a = ledger.reclaim(0, FrameOwner::Fill).unwrap();
        assert_eq!(ledger.reclaim(0, FrameOwner::Fill), None);
        ledger.put_back(a);
        assert_eq!((ledger.counts().strays, ledger.counts().free), (4, 2));
    }
}
