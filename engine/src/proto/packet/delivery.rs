//! What a path carries, for those who choose among paths.

use super::path::Path;

/// What was delivered since a path began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Delivered {
    /// Bytes of acknowledged datagrams with content, tags included, and how many these were.
    pub(crate) bytes: u64,
    pub(crate) datagrams: u64,
    /// Time in which something was outstanding, in nanoseconds: waiting for whoever sends next is
    /// none of the path's doing.
    pub(crate) busy_ns: u64,
}

impl Delivered {
    /// What came in the time after `before` was read.
    pub(crate) fn since(&self, before: &Self) -> Self {
        Self {
            bytes: self.bytes.saturating_sub(before.bytes),
            datagrams: self.datagrams.saturating_sub(before.datagrams),
            busy_ns: self.busy_ns.saturating_sub(before.busy_ns),
        }
    }

    /// Bytes per second of the time in which there was something to deliver. For messages that are
    /// sent one at a time that is their length by the time that each takes, for a stream its rate.
    pub(crate) fn bytes_per_s(&self) -> u64 {
        let rate = u128::from(self.bytes) * 1_000_000_000 / u128::from(self.busy_ns.max(1));
        rate.min(u128::from(u64::MAX / 8)) as u64
    }
}

/// Counts it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Delivery {
    total: Delivered,
    /// Since when something is outstanding; 0: nothing is.
    since_ns: u64,
}

impl Delivery {
    /// A packet went while none was outstanding.
    #[inline]
    pub(super) fn begin(&mut self, now_ns: u64) {
        self.since_ns = now_ns;
    }

    /// A datagram with content was acknowledged.
    #[inline]
    pub(super) fn add(&mut self, bytes: u64) {
        self.total.bytes += bytes;
        self.total.datagrams += 1;
    }

    /// The last outstanding packet was acknowledged.
    #[inline]
    pub(super) fn end(&mut self, now_ns: u64) {
        if self.since_ns > 0 {
            self.total.busy_ns += now_ns.saturating_sub(self.since_ns);
            self.since_ns = 0;
        }
    }
}

impl Path {
    /// An acknowledgement came that may be that of the last outstanding packet.
    #[inline]
    pub(super) fn note_idle(&mut self, now_ns: u64) {
        if self.sent.count() == 0 {
            self.delivery.end(now_ns);
        }
    }

    /// What it has delivered up to now.
    pub(crate) fn delivered(&mut self, now_ns: u64) -> Delivered {
        self.settle();
        let Delivery { total, since_ns } = self.delivery;
        if self.sent.count() == 0 || since_ns == 0 {
            return total;
        }
        Delivered { busy_ns: total.busy_ns + now_ns.saturating_sub(since_ns), ..total }
    }

    /// Bytes that may be in flight, bytes that are, and probe timeouts without an answer: what
    /// the health of a path is judged by.
    pub(crate) fn load(&self) -> (u64, u64, u32) {
        let in_flight = self.sent.bytes_in_flight();
        (self.congestion.window(), in_flight, self.loss.probes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_time_counts_in_which_something_was_outstanding() {
        let mut delivery = Delivery::default();
        for at_ns in [1_000, 50_000] {
            delivery.begin(at_ns);
            delivery.add(1000);
            delivery.add(500);
            delivery.end(at_ns + 300);
            // An acknowledgement of nothing new.
            delivery.end(at_ns + 9_000);
        }
        let expected = Delivered { bytes: 3000, datagrams: 4, busy_ns: 600 };
        assert_eq!(delivery.total, expected);
        assert_eq!(expected.bytes_per_s(), 5_000_000_000);
        let before = Delivered { bytes: 2000, datagrams: 3, busy_ns: 100 };
        assert_eq!(expected.since(&before), Delivered { bytes: 1000, datagrams: 1, busy_ns: 500 });
        assert_eq!(Delivered::default().bytes_per_s(), 0);
    }
}
