//! Whether anything is unsent or unacknowledged, for a session that is left, or that has failed.

use super::super::Session;
use super::Segments;
use super::segment::SegmentBuffer;
#[cfg(doc)]
use crate::proto::core::Core;

impl Segments {
    /// Returns whether the peer has acknowledged everything, and nothing waits.
    pub(in crate::proto) fn is_acknowledged(&self) -> bool {
        self.control.is_empty() && self.slots.len() == 0
    }

    /// Returns whether a frame waits for its first transmission, or for another one.
    pub(in crate::proto) fn has_unsent(&self) -> bool {
        !self.control.is_empty() || self.waits() || self.long.len() > 0
    }

    /// Returns whether everything is acknowledged, or, without datagrams, appended to the bytes for
    /// the control connection.
    pub(in crate::proto) fn is_sent(&self) -> bool {
        if self.has_datagrams() { self.is_acknowledged() } else { !self.has_unsent() }
    }

    /// Returns whether the peer has all but the last segment, or, without datagrams, all are
    /// appended to the bytes for the control connection.
    pub(in crate::proto) fn is_last_under_way(&self) -> bool {
        let is_under_way =
            if self.has_datagrams() { self.slots.len() <= 1 } else { !self.has_unsent() };
        self.control.is_empty() && is_under_way
    }

    /// Returns whether a message whose send has completed may be lost with the session, because
    /// the peer has not acknowledged all of it.
    ///
    /// RR-END-5.
    pub(in crate::proto) fn may_lose_completed(&self) -> bool {
        let completes = |segment: &SegmentBuffer| segment.completes_unacked;
        self.slots.ids().any(|id| {
            self.slots.get(id).is_some_and(completes)
                || self.slots.get_kept(id).is_some_and(|kept| kept.completes_unacked)
        })
    }
}

/// How far the goodbye of a session that is left is.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct GoodbyeProgress {
    /// The peer has acknowledged it and everything before it, or, without datagrams, the kernel has
    /// taken that.
    pub(crate) is_done: bool,
    /// A peer that ends the session now has everything except the goodbye: that is acknowledged,
    /// or, without datagrams, taken by the kernel.
    pub(crate) is_under_way: bool,
}

impl Session {
    /// Returns whether it has nothing queued, and everything sent is acknowledged, or, without
    /// datagrams, appended to the bytes for its control connection.
    pub(crate) fn is_settled(&self) -> bool {
        self.waiting.is_empty() && self.one_sided.has_all_staged() && self.segments.is_sent()
    }

    /// Returns how far the goodbye of [`Core::leave`] is. `is_taken`: the kernel has taken all
    /// bytes for the control connection, which decides without datagrams.
    ///
    /// RR-END-1.
    pub(crate) fn goodbye_progress(&self, is_taken: bool) -> GoodbyeProgress {
        let segments = &self.segments;
        if !self.ending.is_leaving() {
            return GoodbyeProgress::default();
        }
        let is_by_kernel = !segments.has_datagrams();
        let is_with_kernel = is_by_kernel && is_taken && !segments.has_unsent();
        GoodbyeProgress {
            is_done: self.is_connected() && (segments.is_acknowledged() || is_with_kernel),
            is_under_way: segments.is_last_under_way() && (is_taken || !is_by_kernel),
        }
    }

    /// Frees memory that an idle session does not need.
    pub(crate) fn shrink_idle(&mut self) {
        self.waiting.shrink_to_fit();
        self.rendezvous.shrink();
        self.lanes.shrink();
        self.segments.shrink();
    }
}
