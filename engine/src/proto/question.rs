//! Requests for a segment from the peer, and replies to such requests (flag 4 of a segment).

use crate::wire::segment::FLAG_ANSWER_REQUESTED;

/// Request state of a session, in both directions.
///
/// RR-SEG-6.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Questions {
    /// The next segment requests an answer.
    asks: bool,
    /// The peer has requested one.
    owes: bool,
    /// A segment arrived since the last check.
    has_received: bool,
}

impl Questions {
    /// Requests an answer with the next segment.
    pub(super) fn ask(&mut self) {
        self.asks = true;
    }

    /// Handles the flags of a received segment.
    #[inline]
    pub(super) fn note(&mut self, flags: u16) {
        self.owes |= flags & FLAG_ANSWER_REQUESTED != 0;
        self.has_received = true;
    }

    /// Returns whether a segment was received since the last call.
    pub(super) fn take_received(&mut self) -> bool {
        std::mem::take(&mut self.has_received)
    }

    /// Returns whether a segment was received since the last call of [`Self::take_received`].
    pub(super) fn has_received(self) -> bool {
        self.has_received
    }

    /// Returns whether a segment should be sent without waiting for traffic.
    #[inline]
    pub(super) fn are_due(self) -> bool {
        self.asks || self.owes
    }

    /// Returns the flag of the segment that is sent now, which answers a request.
    #[inline]
    pub(super) fn next_flag(&mut self) -> u16 {
        let asks = self.asks;
        (self.asks, self.owes) = (false, false);
        if asks { FLAG_ANSWER_REQUESTED } else { 0 }
    }
}
