//! The arena's allocator of blocks: bookkeeping over addresses, no memory access.

use std::collections::BTreeMap;

/// Blocks of this size and more start and end on its multiples.
pub(super) const PAGE_BYTES: usize = 4096;
/// Smaller blocks start and end on multiples of this: one cache line, never shared by two.
pub(super) const LINE_BYTES: usize = 64;

/// First fit over a list of free ranges, which are merged as they are given back.
///
/// Slow path only: allocation is linear in the number of free ranges.
#[derive(Debug)]
pub(super) struct Blocks {
    start: usize,
    end: usize,
    /// Free ranges by start address: length in bytes. Never empty, never touching one another.
    free: BTreeMap<usize, usize>,
    free_bytes: usize,
}

impl Blocks {
    /// Everything from address `start` on is free; both are multiples of [`PAGE_BYTES`].
    pub(super) fn new(start: usize, bytes: usize) -> Self {
        let whole = start.is_multiple_of(PAGE_BYTES) && bytes.is_multiple_of(PAGE_BYTES);
        assert!(whole, "an arena is whole pages");
        let end = start.checked_add(bytes).expect("a mapping does not wrap around");
        let free = if bytes > 0 { BTreeMap::from([(start, bytes)]) } else { BTreeMap::new() };
        Self { start, end, free, free_bytes: bytes }
    }

    /// Takes a block of at least `bytes` at a multiple of `align` (a power of two).
    ///
    /// Returns its address and its true size, which [`Self::give`] wants back; `None` when it
    /// does not fit. A block of zero bytes is one line.
    pub(super) fn take(&mut self, bytes: usize, align: usize) -> Option<(usize, usize)> {
        debug_assert!(align.is_power_of_two());
        let unit = if bytes >= PAGE_BYTES { PAGE_BYTES } else { LINE_BYTES };
        let bytes = bytes.max(1).checked_next_multiple_of(unit)?;
        let align = align.max(unit);
        let (range, length, address) = self.free.iter().find_map(|(&range, &length)| {
            let address = range.checked_next_multiple_of(align)?;
            let end = address.checked_add(bytes)?;
            (end <= range + length).then_some((range, length, address))
        })?;
        let (head, end) = (address - range, address + bytes);
        let tail = range + length - end;
        if head > 0 {
            self.free.insert(range, head);
        } else {
            self.free.remove(&range);
        }
        if tail > 0 {
            self.free.insert(end, tail);
        }
        self.free_bytes -= bytes;
        Some((address, bytes))
    }

    /// Gives a block back, with the size that [`Self::take`] returned.
    ///
    /// # Panics
    ///
    /// When the range is not one that was taken: its memory would be handed out twice.
    pub(super) fn give(&mut self, address: usize, bytes: usize) {
        let end =
            address.checked_add(bytes).filter(|&end| address >= self.start && end <= self.end);
        let end = end.expect("a block is given back to the arena it came from");
        let before = self.free.range(..address).next_back().map(|(&at, &length)| (at, length));
        let after = self.free.range(address..).next().map(|(&at, &length)| (at, length));
        assert!(
            bytes > 0
                && before.is_none_or(|(at, length)| at + length <= address)
                && after.is_none_or(|(at, _)| end <= at),
            "a block is given back once"
        );
        self.free_bytes += bytes;
        let (mut at, mut length) = (address, bytes);
        if let Some((start, before)) = before
            && start + before == address
        {
            (at, length) = (start, before + length);
        }
        if let Some((start, after)) = after
            && start == end
        {
            self.free.remove(&start);
            length += after;
        }
        self.free.insert(at, length);
    }

    /// Bytes that are free, in however many pieces.
    pub(super) fn free_bytes(&self) -> usize {
        self.free_bytes
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const START: usize = 3 * PAGE_BYTES;
    const BYTES: usize = 32 * PAGE_BYTES;

    #[test]
    fn small_blocks_are_lines_and_large_ones_pages() {
        let mut blocks = Blocks::new(START, BYTES);
        assert_eq!(blocks.take(0, 1), Some((START, 64)));
        assert_eq!(blocks.take(65, 1), Some((START + 64, 128)));
        assert_eq!(blocks.take(4096, 1), Some((START + 4096, 4096)));
        assert_eq!(blocks.take(4097, 1), Some((START + 8192, 8192)));
        // First fit: what is left of the first page.
        assert_eq!(blocks.take(8, 1024), Some((START + 1024, 64)));
        assert_eq!(blocks.free_bytes(), BYTES - 64 - 128 - 4096 - 8192 - 64);
    }

    #[test]
    fn oversized_blocks_are_refused() {
        let mut blocks = Blocks::new(START, BYTES);
        assert_eq!(blocks.take(BYTES + 1, 1), None);
        assert_eq!(blocks.take(usize::MAX, 1), None);
        assert_eq!(blocks.take(1, 1 << (usize::BITS - 1)), None);
        assert_eq!(blocks.take(BYTES, 1), Some((START, BYTES)));
        assert_eq!(blocks.take(1, 1), None);
        assert_eq!(Blocks::new(START, 0).take(1, 1), None);
    }

    #[test]
    #[should_panic(expected = "given back once")]
    fn giving_twice_is_caught() {
        let mut blocks = Blocks::new(START, BYTES);
        let (address, bytes) = blocks.take(100, 1).expect("it fits");
        blocks.give(address, bytes);
        blocks.give(address, bytes);
    }

    #[test]
    #[should_panic(expected = "the arena it came from")]
    fn foreign_blocks_are_caught() {
        Blocks::new(START, BYTES).give(START + BYTES - 64, 128);
    }

    #[derive(Clone, Debug)]
    enum Step {
        Take { bytes: usize, align_log2: u32 },
        Give { which: prop::sample::Index },
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let bytes = prop_oneof![0..300usize, 3000..20_000usize, Just(usize::MAX - 5)];
        let step = prop_oneof![
            3 => (bytes, 0..15u32).prop_map(|(bytes, align_log2)| Step::Take { bytes, align_log2 }),
            2 => any::<prop::sample::Index>().prop_map(|which| Step::Give { which }),
        ];
        prop::collection::vec(step, 1..200)
    }

    /// First fit on a map of lines: whether an aligned run of free lines exists.
    fn fits(taken: &[(usize, usize)], bytes: usize, align: usize) -> Option<usize> {
        (START..START + BYTES).step_by(LINE_BYTES).find(|&address| {
            let Some(end) = address.checked_add(bytes) else { return false };
            address % align == 0
                && end <= START + BYTES
                && taken.iter().all(|&(at, length)| end <= at || at + length <= address)
        })
    }

    proptest! {
        #[test]
        fn blocks_never_overlap_and_no_byte_is_lost(steps in steps()) {
            let mut blocks = Blocks::new(START, BYTES);
            let mut taken: Vec<(usize, usize)> = Vec::new();
            for step in steps {
                match step {
                    Step::Take { bytes, align_log2 } => {
                        let align = 1 << align_log2;
                        let unit = if bytes >= PAGE_BYTES { PAGE_BYTES } else { LINE_BYTES };
                        let rounded = bytes.max(1).checked_next_multiple_of(unit);
                        let expected = rounded.and_then(|rounded| {
                            Some((fits(&taken, rounded, unit.max(align))?, rounded))
                        });
                        let got = blocks.take(bytes, align);
                        prop_assert_eq!(got, expected);
                        taken.extend(got);
                    }
                    Step::Give { which } if !taken.is_empty() => {
                        let (address, bytes) = taken.swap_remove(which.index(taken.len()));
                        blocks.give(address, bytes);
                    }
                    Step::Give { .. } => {}
                }
                let in_use: usize = taken.iter().map(|&(_, bytes)| bytes).sum();
                prop_assert_eq!(blocks.free_bytes() + in_use, BYTES);
                prop_assert_eq!(blocks.free.values().sum::<usize>(), blocks.free_bytes());
            }
            for (address, bytes) in taken {
                blocks.give(address, bytes);
            }
            prop_assert_eq!(blocks.free, BTreeMap::from([(START, BYTES)]));
        }
    }
}
