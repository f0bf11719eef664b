//! Why a session leaves its fast paths.
//!
//! Sending and receiving a short message have a fast path each, for the common state of a session.
//! A word in its [`super::Segments`] has a bit for each reason to leave them, so that a fast path
//! asks once. A bit is set where its reason arises. It may stay set when the reason has passed: the
//! next fast path that meets it looks at the state itself, in [`Session::settle`], and clears it.
//! So a set bit costs time, and a missing one is a bug, which debug builds find at each use.
//!
//! One-sided operations that wait are asked for beside the word: most sessions have no state of
//! them.

use super::super::Session;

bitflags::bitflags! {
    /// A set of reasons.
    #[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
    pub(in crate::proto) struct Uncommon: u16 {
        /// The session is being left.
        const LEAVING = 1 << 0;
        /// Sends wait for credit or for space.
        const WAITING = 1 << 1;
        /// Control frames are not in a segment yet.
        const CONTROL = 1 << 2;
        /// Segments other than the open one wait for a transmission.
        const QUEUED = 1 << 3;
        /// Bulk data goes in datagrams.
        const BULK = 1 << 4;
        /// A segment is due that announces credit, or requests an acknowledgement.
        const UPDATE = 1 << 5;
        /// A frame or a message has come before one that it follows.
        const EARLY = 1 << 6;
        /// The peer's goodbye has come.
        const GOODBYE = 1 << 7;
        /// The session is not established.
        const CLOSED = 1 << 8;
    }
}

impl Uncommon {
    /// What keeps a message from being staged before all others.
    pub(in crate::proto) const STAGING: Self = Self::LEAVING.union(Self::WAITING);
    /// What keeps a frame from being sent at once, alone in its segment.
    pub(super) const SENDING: Self =
        Self::STAGING.union(Self::CONTROL).union(Self::QUEUED).union(Self::BULK);
    /// What may depend on the acknowledgement of a segment, besides its memory.
    pub(super) const ACKNOWLEDGED: Self =
        Self::WAITING.union(Self::CONTROL).union(Self::BULK).union(Self::UPDATE);
    /// What follows the frames of a received segment.
    pub(super) const REPLIES: Self = Self::CONTROL.union(Self::GOODBYE);

    /// What holds until the session ends.
    const PERMANENT: Self =
        Self::LEAVING.union(Self::BULK).union(Self::GOODBYE).union(Self::CLOSED);

    /// Notes that a reason has arisen.
    #[inline]
    pub(in crate::proto) fn add(&mut self, reason: Self) {
        if !is_missed(reason) {
            self.insert(reason);
        }
    }
}

/// Returns whether a planted bug misses a reason.
fn is_missed(reason: Uncommon) -> bool {
    match reason {
        Uncommon::LEAVING => planted!(MissLeaving),
        Uncommon::WAITING => planted!(MissWaiting),
        Uncommon::CONTROL => planted!(MissControl),
        Uncommon::QUEUED => planted!(MissQueued),
        Uncommon::BULK => planted!(MissBulk),
        Uncommon::UPDATE => planted!(MissUpdate),
        Uncommon::EARLY => planted!(MissEarly),
        Uncommon::GOODBYE => planted!(MissGoodbye),
        _ => false,
    }
}

impl Session {
    /// Returns whether the session is established, and none of these reasons holds. Clears those of
    /// them that have passed.
    #[inline(always)]
    pub(in crate::proto) fn is_free_of(&mut self, reasons: Uncommon) -> bool {
        self.check_uncommon();
        let noted = self.segments.uncommon.intersection(reasons.union(Uncommon::CLOSED));
        noted.is_empty() || (!noted.intersects(Uncommon::PERMANENT) && self.settle(reasons))
    }

    /// Returns the same, and clears nothing.
    pub(super) fn is_now_free_of(&self, reasons: Uncommon) -> bool {
        self.check_uncommon();
        let reasons = reasons.union(Uncommon::CLOSED);
        !self.segments.uncommon.intersects(reasons) || !self.held().intersects(reasons)
    }

    /// Clears these reasons as far as they have passed. Returns whether none is left.
    #[cold]
    pub(super) fn settle(&mut self, reasons: Uncommon) -> bool {
        let held = self.held().intersection(reasons);
        self.segments.uncommon = self.segments.uncommon.difference(reasons).union(held);
        held.is_empty()
    }

    /// Returns the reasons that hold.
    fn held(&self) -> Uncommon {
        let segments = &self.segments;
        let is_queued = segments.is_queued() || segments.long.len() > 0;
        let mut held = Uncommon::empty();
        held.set(Uncommon::CLOSED, !segments.is_established());
        held.set(Uncommon::LEAVING, self.ending.is_leaving());
        held.set(Uncommon::WAITING, !self.waiting.is_empty());
        held.set(Uncommon::CONTROL, !segments.control.is_empty());
        held.set(Uncommon::QUEUED, is_queued);
        held.set(Uncommon::BULK, segments.able.has_bulk);
        held.set(Uncommon::UPDATE, segments.update_due);
        held.set(Uncommon::EARLY, segments.received.has_early());
        held.set(Uncommon::GOODBYE, segments.received.has_goodbye());
        held
    }

    /// Checks that each reason that holds is noted.
    #[inline(always)]
    pub(crate) fn check_uncommon(&self) {
        debug_assert!(
            !self.segments.is_established() || self.is_connected(),
            "segments of an established session are those of a connected one"
        );
        debug_assert!(
            !self.segments.is_established() || self.segments.uncommon.contains(self.held()),
            "a reason to leave the fast paths was missed: {:?} of {:?}",
            self.segments.uncommon,
            self.held(),
        );
    }
}
