//! An incomplete received segment.

use aligned_vec::{AVec, ConstAlign};

/// Bytes that begin at a cache line, as received ones do in the kernel: a copy whose target is
/// slightly ahead of its source within a page is slow ([`crate::wire::chunk`]).
pub(crate) type ReceiveBuffer = AVec<u8, ConstAlign<64>>;

/// Returns a buffer of so many zeros.
pub(crate) fn receive_buffer(bytes: usize) -> ReceiveBuffer {
    let mut buffer = ReceiveBuffer::with_capacity(64, bytes);
    buffer.resize(bytes, 0);
    buffer
}

/// Bytes that are kept until the following ones arrive. These are received directly after them, so
/// that nothing is copied while a segment arrives in pieces, or while nothing arrives.
#[derive(Debug)]
pub(crate) struct Partial {
    /// Kept while the lane is polled: it need not be zeroed again for each segment.
    buffer: ReceiveBuffer,
    length: usize,
}

impl Default for Partial {
    fn default() -> Self {
        Self { buffer: receive_buffer(0), length: 0 }
    }
}

impl Partial {
    pub(crate) fn is_empty(&self) -> bool {
        self.length == 0
    }

    pub(crate) fn len(&self) -> usize {
        self.length
    }

    pub(crate) fn clear(&mut self) {
        self.length = 0;
    }

    /// Frees memory, if it is empty.
    pub(crate) fn shrink(&mut self) {
        if self.length == 0 {
            self.buffer = receive_buffer(0);
        }
    }

    /// Appends `bytes`.
    pub(crate) fn extend(&mut self, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.room(bytes.len()).copy_from_slice(bytes);
            self.length += bytes.len();
        }
    }

    /// Returns space for `bytes` after the kept ones.
    pub(crate) fn room(&mut self, bytes: usize) -> &mut [u8] {
        let end = self.length + bytes;
        if self.buffer.len() < end {
            self.buffer.resize(end, 0);
        }
        &mut self.buffer[self.length..end]
    }

    /// Returns the kept bytes, followed by the first `got` bytes of [`Self::room`].
    pub(crate) fn with(&self, got: usize) -> &[u8] {
        &self.buffer[..self.length + got]
    }

    /// Keeps the bytes that [`Self::with`] returned, except for the first `used`.
    pub(crate) fn keep_rest(&mut self, got: usize, used: usize) {
        let end = self.length + got;
        if used > 0 {
            self.buffer.copy_within(used..end, 0);
        }
        self.length = end - used;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn received_bytes_follow_the_kept_ones() {
        let mut partial = Partial::default();
        partial.extend(b"ab");
        partial.room(4)[..3].copy_from_slice(b"cde");
        assert_eq!(partial.with(3), b"abcde");
        partial.keep_rest(3, 0);
        assert_eq!((partial.len(), partial.with(0)), (5, &b"abcde"[..]));
        partial.room(2).copy_from_slice(b"fg");
        partial.keep_rest(2, 6);
        assert_eq!(partial.with(0), b"g");
        partial.shrink();
        assert_eq!(partial.with(0), b"g", "it is needed");
        partial.keep_rest(0, 1);
        partial.shrink();
        assert!(partial.is_empty() && partial.buffer.is_empty());
    }
}
