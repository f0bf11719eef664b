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

use super::super::session::Session;

/// A set of reasons.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(in crate::proto) struct Uncommon(u16);

impl Uncommon {
    /// The session is being left.
    pub(in crate::proto) const LEAVING: Self = Self(1 << 0);
    /// Sends wait for credit or for space.
    pub(in crate::proto) const WAITING: Self = Self(1 << 1);
    /// Control frames are not in a segment yet.
    pub(in crate::proto) const CONTROL: Self = Self(1 << 2);
    /// Segments other than the open one wait for a transmission.
    pub(super) const QUEUED: Self = Self(1 << 3);
    /// Bulk data goes in datagrams.
    pub(super) const BULK: Self = Self(1 << 4);
    /// A segment is due that announces credit, or requests an acknowledgement.
    pub(super) const UPDATE: Self = Self(1 << 5);
    /// A frame or a message has come before one that it follows.
    pub(super) const EARLY: Self = Self(1 << 6);
    /// The peer's goodbye has come.
    pub(super) const GOODBYE: Self = Self(1 << 7);
    /// The session is not established.
    pub(super) const CLOSED: Self = Self(1 << 8);

    /// What keeps a message from being staged before all others.
    pub(in crate::proto) const STAGING: Self = Self::LEAVING.or(Self::WAITING);
    /// What keeps the open segment from being sent alone.
    pub(super) const SENDING: Self =
        Self::STAGING.or(Self::CONTROL).or(Self::QUEUED).or(Self::BULK);
    /// What may depend on the acknowledgement of a segment, besides its memory.
    pub(super) const ACKNOWLEDGED: Self =
        Self::WAITING.or(Self::CONTROL).or(Self::BULK).or(Self::UPDATE);
    /// What follows the frames of a received segment.
    pub(super) const REPLIES: Self = Self::CONTROL.or(Self::GOODBYE);

    /// What holds until the session ends.
    const PERMANENT: Self = Self::LEAVING.or(Self::BULK).or(Self::GOODBYE).or(Self::CLOSED);

    pub(super) const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    const fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Returns whether one of these reasons is noted.
    #[inline]
    pub(super) fn has(self, reasons: Self) -> bool {
        !self.and(reasons).is_empty()
    }

    fn is_empty(self) -> bool {
        self == Self::default()
    }

    /// Notes that a reason has arisen.
    #[inline]
    pub(in crate::proto) fn add(&mut self, reason: Self) {
        if !is_missed(reason) {
            *self = self.or(reason);
        }
    }

    /// Returns this reason where it holds.
    fn if_holds(self, holds: bool) -> Self {
        if holds { self } else { Self::default() }
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
        let noted = self.segments.uncommon.and(reasons.or(Uncommon::CLOSED));
        noted.is_empty() || (!noted.has(Uncommon::PERMANENT) && self.settle(reasons))
    }

    /// Returns the same, and clears nothing.
    pub(super) fn is_now_free_of(&self, reasons: Uncommon) -> bool {
        self.check_uncommon();
        let reasons = reasons.or(Uncommon::CLOSED);
        !self.segments.uncommon.has(reasons) || !self.held().has(reasons)
    }

    /// Clears these reasons as far as they have passed. Returns whether none is left.
    #[cold]
    fn settle(&mut self, reasons: Uncommon) -> bool {
        let held = self.held().and(reasons);
        self.segments.uncommon = self.segments.uncommon.without(reasons).or(held);
        held.is_empty()
    }

    /// Returns the reasons that hold.
    fn held(&self) -> Uncommon {
        let segments = &self.segments;
        let is_queued = segments.is_queued() || segments.long.len() > 0;
        [
            Uncommon::CLOSED.if_holds(!segments.is_established()),
            Uncommon::LEAVING.if_holds(self.is_leaving),
            Uncommon::WAITING.if_holds(!self.waiting.is_empty()),
            Uncommon::CONTROL.if_holds(!segments.control.is_empty()),
            Uncommon::QUEUED.if_holds(is_queued),
            Uncommon::BULK.if_holds(segments.able.has_bulk),
            Uncommon::UPDATE.if_holds(segments.update_due),
            Uncommon::EARLY.if_holds(segments.received.has_early()),
            Uncommon::GOODBYE.if_holds(segments.received.has_goodbye()),
        ]
        .into_iter()
        .fold(Uncommon::default(), Uncommon::or)
    }

    /// Checks that each reason that holds is noted.
    #[inline(always)]
    fn check_uncommon(&self) {
        debug_assert!(
            !self.segments.is_established() || self.is_connected(),
            "segments of an established session are those of a connected one"
        );
        debug_assert!(
            !self.segments.is_established()
                || self.held().without(self.segments.uncommon) == Uncommon::default(),
            "a reason to leave the fast paths was missed: {:?} of {:?}",
            self.segments.uncommon,
            self.held(),
        );
    }

    /// Clears all reasons that have passed, so that states can be compared.
    #[cfg(test)]
    pub(super) fn settle_all(&mut self) {
        self.settle(Uncommon(u16::MAX));
    }

    /// Checks that each reason to leave the fast paths is noted.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn check_reasons(&self) {
        self.check_uncommon();
    }
}
