//! Maps keys to entries: a hash table whose lines are cache lines.

use foldhash::quality::FixedState;
use std::hash::BuildHasher;

use subtle::{ConditionallySelectable, ConstantTimeEq};

/// Keys in one line.
const KEYS_PER_LINE: usize = 5;

/// No entry.
const NOWHERE: u32 = u32::MAX;

/// Keys whose hashes agree in as many bits as the table is long.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct Line {
    keys: [u64; KEYS_PER_LINE],
    /// [`NOWHERE`]: no key.
    positions: [u32; KEYS_PER_LINE],
}

const _: () = assert!(size_of::<Line>() == 64);

const EMPTY: Line = Line { keys: [0; KEYS_PER_LINE], positions: [NOWHERE; KEYS_PER_LINE] };

impl Line {
    /// Compares with all keys in constant time, so that its duration reveals no key.
    #[inline]
    fn find(&self, key: u64) -> u32 {
        let mut found = NOWHERE;
        for (candidate, position) in self.keys.iter().zip(&self.positions) {
            // Empty slots are `NOWHERE`; a key of 0 may be in use.
            let is_it = candidate.ct_eq(&key) & !position.ct_eq(&NOWHERE);
            found.conditional_assign(position, is_it);
        }
        found
    }
}

/// A table that doubles when a line is full.
#[derive(Debug)]
pub(super) struct Index {
    lines: Vec<Line>,
    hashing: FixedState,
    len: usize,
}

impl Index {
    pub(super) fn new(seed: u64) -> Self {
        Self { lines: vec![EMPTY], hashing: FixedState::with_seed(seed), len: 0 }
    }

    #[inline]
    fn line(&self, key: u64) -> usize {
        self.hashing.hash_one(key) as usize & (self.lines.len() - 1)
    }

    /// Returns the position of a key's entry.
    #[inline]
    pub(super) fn find(&self, key: u64) -> Option<u32> {
        let position = self.lines[self.line(key)].find(key);
        (position != NOWHERE).then_some(position)
    }

    /// Inserts `key`, which is not present. Returns `false` if no table of reasonable size has
    /// space for it, which does not happen to keys chosen without knowledge of the seed.
    pub(super) fn insert(&mut self, key: u64, position: u32) -> bool {
        debug_assert!(position != NOWHERE && self.find(key).is_none(), "a key is there once");
        let mut lines = self.lines.len();
        while !self.place(key, position) {
            lines *= 2;
            // On average one line in 64 has a key: more would not help.
            if lines > 64 * (self.len + 1) {
                return false;
            }
            self.grow(lines);
        }
        self.len += 1;
        true
    }

    fn place(&mut self, key: u64, position: u32) -> bool {
        let at = self.line(key);
        let line = &mut self.lines[at];
        let Some(free) = line.positions.iter().position(|&position| position == NOWHERE) else {
            return false;
        };
        (line.keys[free], line.positions[free]) = (key, position);
        true
    }

    /// Distributes all keys over at least twice as many lines: each line is split, so that all have
    /// space.
    fn grow(&mut self, lines: usize) {
        let old = std::mem::replace(&mut self.lines, vec![EMPTY; lines]);
        for line in old {
            for (key, position) in line.keys.into_iter().zip(line.positions) {
                let placed = position == NOWHERE || self.place(key, position);
                debug_assert!(placed, "a line has no more keys than before");
            }
        }
    }

    /// Returns the number of keys.
    #[cfg(any(test, feature = "sim"))]
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn remove(&mut self, key: u64) {
        let at = self.line(key);
        let line = &mut self.lines[at];
        let slots = line.keys.iter().zip(&line.positions);
        let mut slots = slots.map(|(&it, &position)| it == key && position != NOWHERE);
        let slot = slots.position(|is_it| is_it);
        if let Some(slot) = debug_assert_some!(slot, "a valid key is in its line") {
            (line.keys[slot], line.positions[slot]) = (0, NOWHERE);
            self.len -= 1;
        }
    }
}
