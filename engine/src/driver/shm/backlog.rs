//! Queue of packets that found no room in a ring; they precede all later ones.

use std::mem;

/// Capacity in bytes: packets beyond it, which the peer has not read for so long, are sent by UDP.
const BYTES_MAX: usize = 256 * 1024;
/// Bytes moved to the front at once, at most as many as were consumed before.
const COMPACT_BYTES: usize = 32 * 1024;
const LENGTH_BYTES: usize = size_of::<u32>();

/// Packets, each preceded by its length. An empty queue keeps no large allocation.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    bytes: Vec<u8>,
    /// Start of the first packet.
    head: usize,
}

impl Backlog {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.head == self.bytes.len()
    }

    /// Appends a packet. `false`: the queue is full.
    pub(super) fn push(&mut self, datagram: &[u8]) -> bool {
        if self.bytes.len() - self.head + datagram.len() > BYTES_MAX {
            return false;
        }
        if self.head >= COMPACT_BYTES && self.head * 2 >= self.bytes.len() {
            self.bytes.drain(..mem::take(&mut self.head));
        }
        self.bytes.extend_from_slice(&(datagram.len() as u32).to_ne_bytes());
        self.bytes.extend_from_slice(datagram);
        true
    }

    /// The first packet.
    pub(super) fn first(&self) -> Option<&[u8]> {
        let (length, rest) = self.bytes.get(self.head..)?.split_first_chunk::<LENGTH_BYTES>()?;
        rest.get(..u32::from_ne_bytes(*length) as usize)
    }

    /// Removes the first packet.
    pub(super) fn pop(&mut self) {
        let Some(length) = self.first().map(<[u8]>::len) else { return };
        self.head += LENGTH_BYTES + length;
        if self.is_empty() {
            self.head = 0;
            self.bytes.clear();
            self.bytes.shrink_to(COMPACT_BYTES);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backlog_is_a_bounded_fifo() {
        let (mut backlog, mut due, mut number) = (Backlog::default(), 0_u32, 0_u32);
        let of = |number: u32| vec![number as u8; (number as usize * 37) % 1500];
        for round in 0..200 {
            while backlog.push(&of(number)) {
                number += 1;
                if number % 97 == round % 97 {
                    break;
                }
            }
            for _ in 0..60 + round % 50 {
                let Some(first) = backlog.first() else { break };
                assert_eq!(*first, *of(due));
                backlog.pop();
                due += 1;
            }
            assert!(backlog.bytes.len() <= 3 * BYTES_MAX);
        }
        while let Some(first) = backlog.first() {
            assert_eq!(*first, *of(due));
            backlog.pop();
            due += 1;
        }
        assert_eq!(due, number);
        assert!(backlog.is_empty() && backlog.bytes.capacity() <= COMPACT_BYTES);
    }
}
