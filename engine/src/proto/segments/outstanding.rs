//! Whether anything is unsent or unacknowledged, for a session that is left, or that has failed.

use super::super::session::Session;
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

impl Session {
    /// Returns whether it has nothing queued, and everything sent is acknowledged, or, without
    /// datagrams, appended to the bytes for its control connection.
    pub(crate) fn is_settled(&self) -> bool {
        self.waiting.is_empty() && self.one_sided.has_all_staged() && self.segments.is_sent()
    }

    /// Returns whether the peer has acknowledged the goodbye of [`Core::leave`], and everything
    /// before it. Without datagrams the session also ends when the peer's kernel has all of that.
    ///
    /// RR-END-1.
    pub(crate) fn has_left(&self) -> bool {
        self.ending.is_leaving() && self.is_connected() && self.segments.is_acknowledged()
    }

    /// Returns whether the goodbye of [`Core::leave`] and everything before it is appended to the
    /// bytes for the control connection.
    pub(in crate::proto) fn has_staged_goodbye(&self) -> bool {
        self.ending.is_leaving() && self.is_connected() && !self.segments.has_unsent()
    }

    /// Returns whether a peer that ends the session now has everything except the goodbye: that is
    /// acknowledged, or, without datagrams, appended to the bytes for the connection.
    pub(crate) fn is_goodbye_under_way(&self) -> bool {
        self.ending.is_leaving() && self.segments.is_last_under_way()
    }

    /// Frees memory that an idle session does not need.
    pub(crate) fn shrink_idle(&mut self) {
        self.waiting.shrink_to_fit();
        self.rendezvous.shrink();
        self.lanes.shrink();
        self.segments.shrink();
    }
}
