//! What a path carries, for those who choose among paths.

use super::path::Path;

/// What was delivered since a path began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Delivered {
    /// Bytes of acknowledged datagrams with payload, tags included, and how many these were.
    pub(crate) bytes: u64,
    pub(crate) datagrams: u64,
}

impl Delivered {
    /// What came in the time after `before` was read.
    pub(crate) fn since(&self, before: &Self) -> Self {
        Self {
            bytes: self.bytes.saturating_sub(before.bytes),
            datagrams: self.datagrams.saturating_sub(before.datagrams),
        }
    }

    /// A datagram with payload was acknowledged.
    #[inline]
    pub(super) fn add(&mut self, bytes: u64) {
        self.bytes += bytes;
        self.datagrams += 1;
    }
}

impl Path {
    /// What it has delivered up to now.
    pub(crate) fn delivered(&mut self) -> Delivered {
        self.apply_deferred_ack();
        self.delivery
    }

    /// Bytes that may be in flight, bytes that are, and probe timeouts without an answer: what
    /// the health of a path is judged by.
    pub(crate) fn load(&self) -> (u64, u64, u32) {
        let in_flight = self.sent.bytes_in_flight();
        (self.congestion.window(), in_flight, self.loss.probes())
    }
}
