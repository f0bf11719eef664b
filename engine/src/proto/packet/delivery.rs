//! Delivery statistics of a path, for the choice among paths.

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
