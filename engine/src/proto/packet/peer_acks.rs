//! What the peer has acknowledged on a path.

/// See the module.
#[derive(Debug, Default)]
pub(super) struct PeerAcks {
    /// Highest number acknowledged so far.
    highest: Option<u64>,
    /// When the most recently sent acknowledged packet was sent.
    sent_ns: u64,
    /// The peer's cumulative number, as last received.
    cumulative: u64,
}

impl PeerAcks {
    /// Notes a cumulative number of the peer: an earlier one may arrive later.
    #[inline]
    pub(super) fn note_cumulative(&mut self, cumulative: u64) {
        self.cumulative = self.cumulative.max(cumulative);
    }

    /// Returns the cumulative number: the peer expects no packets below.
    #[inline]
    pub(super) fn cumulative(&self) -> u64 {
        self.cumulative
    }

    /// Notes that a number was acknowledged. Returns whether it is higher than all before it.
    #[inline]
    pub(super) fn note_number(&mut self, number: u64) -> bool {
        let is_higher = self.highest.is_none_or(|highest| number > highest);
        if is_higher {
            self.highest = Some(number);
        }
        is_higher
    }

    /// Returns the highest number acknowledged so far.
    #[inline]
    pub(super) fn highest(&self) -> Option<u64> {
        self.highest
    }

    /// Notes that a packet sent at that time was acknowledged.
    #[inline]
    pub(super) fn note_sent_at(&mut self, sent_at_ns: u64) {
        self.sent_ns = self.sent_ns.max(sent_at_ns);
    }

    /// Returns when the most recently sent acknowledged packet was sent; 0: there is none.
    #[inline]
    pub(super) fn sent_ns(&self) -> u64 {
        self.sent_ns
    }
}
