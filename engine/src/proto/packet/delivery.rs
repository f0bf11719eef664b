//! Delivery statistics of a path, for the choice among paths.

use super::path::Path;

/// Data delivered since a path began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Delivered {
    /// Bytes of acknowledged datagrams with payload, tags included, and their number.
    pub(crate) bytes: u64,
    pub(crate) datagrams: u64,
}

impl Delivered {
    /// Returns the data delivered after `before` was read.
    pub(crate) fn since(&self, before: &Self) -> Self {
        Self {
            bytes: self.bytes.saturating_sub(before.bytes),
            datagrams: self.datagrams.saturating_sub(before.datagrams),
        }
    }

    /// Counts an acknowledged datagram with payload.
    #[inline]
    pub(super) fn add(&mut self, bytes: u64) {
        self.bytes += bytes;
        self.datagrams += 1;
    }
}

impl Path {
    /// Returns the data delivered so far.
    pub(crate) fn delivered(&mut self) -> Delivered {
        self.apply_deferred_ack();
        self.delivery
    }

    /// Returns the congestion window, the bytes in flight, and the consecutive probe timeouts,
    /// which the health of a path depends on.
    pub(crate) fn load(&self) -> (u64, u64, u32) {
        let in_flight = self.sent.bytes_in_flight();
        (self.congestion.window(), in_flight, self.loss.probes())
    }
}
