//! Asking the peer for a segment, and answering with one (flag 4 of a segment).

use crate::wire::segment::FLAG_ANSWER_REQUESTED;

/// What a session asks, and what it was asked.
///
/// RR-SEG-6.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Questions {
    /// The next segment asks for an answer.
    asks: bool,
    /// The peer has asked for one.
    owes: bool,
    /// A segment came since that was last asked.
    has_received: bool,
}

impl Questions {
    /// The next segment asks.
    pub(super) fn ask(&mut self) {
        self.asks = true;
    }

    /// The peer has sent a segment with these flags.
    #[inline]
    pub(super) fn note(&mut self, flags: u16) {
        self.owes |= flags & FLAG_ANSWER_REQUESTED != 0;
        self.has_received = true;
    }

    /// Whether the peer has sent a segment since this was last asked.
    pub(super) fn take_received(&mut self) -> bool {
        std::mem::take(&mut self.has_received)
    }

    /// Whether a segment should go without waiting for traffic.
    #[inline]
    pub(super) fn are_due(self) -> bool {
        self.asks || self.owes
    }

    /// The flag of the segment that goes now, which answers what was asked.
    #[inline]
    pub(super) fn next_flag(&mut self) -> u16 {
        let asks = self.asks;
        (self.asks, self.owes) = (false, false);
        if asks { FLAG_ANSWER_REQUESTED } else { 0 }
    }
}
