//! From an address as an application has it to the peer of the engine: on the way of each send.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use ringrail::Peer;

/// Entries of the first part; each further one is twice as long.
const FIRST: usize = 64;

/// With so many parts there is room for more peers than an engine has.
const PARTS: usize = 26;

/// Grows, is read without a lock, and moves nothing.
#[derive(Default)]
pub(super) struct Table {
    parts: [OnceLock<Box<[AtomicU64]>>; PARTS],
}

/// Part and place of an index.
fn place(index: usize) -> (usize, usize) {
    let part = (index / FIRST + 1).ilog2() as usize;
    (part, index - FIRST * ((1 << part) - 1))
}

impl Table {
    /// The peer at `index`, if there is one.
    #[inline]
    pub(super) fn get(&self, index: u64) -> Option<Peer> {
        let (part, place) = place(usize::try_from(index).ok()?);
        let bits = self.parts.get(part)?.get()?.get(place)?.load(Ordering::Acquire);
        // 0 is no peer's handle.
        (bits != 0).then(|| Peer::from_bits(bits))
    }

    /// `false`: there is no room.
    pub(super) fn set(&self, index: u64, peer: Option<Peer>) -> bool {
        let Ok(index) = usize::try_from(index) else { return false };
        let (part, place) = place(index);
        let Some(part_entries) = self.parts.get(part) else { return false };
        let entries =
            part_entries.get_or_init(|| (0..FIRST << part).map(|_| AtomicU64::new(0)).collect());
        entries[place].store(peer.map_or(0, Peer::to_bits), Ordering::Release);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indices_fill_parts_one_by_one() {
        assert_eq!([place(0), place(63), place(64)], [(0, 0), (0, 63), (1, 0)]);
        assert_eq!([place(191), place(192), place(447)], [(1, 127), (2, 0), (2, 255)]);
    }

    #[test]
    fn get_returns_only_set_entries() {
        let table = Table::default();
        for index in [0, 63, 64, 5000] {
            assert_eq!(table.get(index), None);
            assert!(table.set(index, Some(Peer::from_bits(index + 1))));
            assert_eq!(table.get(index), Some(Peer::from_bits(index + 1)));
        }
        assert!(table.set(64, None));
        assert_eq!(table.get(64), None);
        assert_eq!(table.get(u64::MAX), None);
        assert!(!table.set(u64::MAX, None));
    }
}
