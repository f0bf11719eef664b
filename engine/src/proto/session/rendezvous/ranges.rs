//! Received byte ranges of a message.

/// Disjoint ranges in ascending order, as start and end in bytes.
#[derive(Debug, Default)]
pub(crate) struct Ranges(Vec<(u64, u64)>);

impl Ranges {
    /// Adds a non-empty range. Returns `false`, without a change, if part of it is present already.
    ///
    /// RR-BULK-4.
    pub(super) fn add(&mut self, start: u64, end: u64) -> bool {
        debug_assert!(start < end, "a range has bytes");
        let ranges = &mut self.0;
        // Most arrive in order, after all received ones.
        if let Some(last) = ranges.last_mut()
            && last.1 == start
        {
            last.1 = end;
            return true;
        }
        let at = ranges.partition_point(|&(_, other)| other <= start);
        if ranges.get(at).is_some_and(|&(other, _)| other < end) {
            return false;
        }
        let joins_next = ranges.get(at).is_some_and(|&(other, _)| other == end);
        let joins_last = at > 0 && ranges[at - 1].1 == start;
        match (joins_last, joins_next) {
            (true, true) => {
                ranges[at - 1].1 = ranges[at].1;
                ranges.remove(at);
            }
            (true, false) => ranges[at - 1].1 = end,
            (false, true) => ranges[at].0 = start,
            (false, false) => ranges.insert(at, (start, end)),
        }
        debug_assert!(
            ranges[at.saturating_sub(1)..ranges.len().min(at + 2)]
                .windows(2)
                .all(|pair| pair[0].1 < pair[1].0),
            "ranges are disjoint, in order, and joined"
        );
        true
    }

    /// Returns the end of the last range; 0: there are none.
    pub(super) fn end(&self) -> u64 {
        self.0.last().map_or(0, |&(_, end)| end)
    }

    /// Marks all bytes before `end` as received, provided that they are.
    pub(in crate::proto) fn extend_to(&mut self, end: u64) {
        let start = self.end();
        if end > start {
            self.add(start, end);
        }
    }

    /// Returns the number of ranges.
    pub(super) fn count(&self) -> usize {
        self.0.len()
    }

    #[cfg(test)]
    fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.0.iter().copied()
    }

    /// Returns an empty list with the memory of this one.
    pub(super) fn emptied(mut self) -> Self {
        self.0.clear();
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adjacent_ranges_merge_and_overlaps_are_rejected() {
        let mut ranges = Ranges::default();
        assert_eq!(ranges.end(), 0);
        for (start, end) in [(10, 20), (30, 40), (0, 5), (20, 30), (5, 10), (40, 41)] {
            assert!(ranges.add(start, end), "{start}..{end}");
        }
        assert_eq!(ranges.iter().collect::<Vec<_>>(), [(0, 41)]);
        for (start, end) in [(0, 1), (40, 41), (40, 50), (0, 100)] {
            assert!(!ranges.add(start, end), "{start}..{end}");
        }
        assert!(ranges.add(50, 60) && ranges.add(45, 47));
        assert!(!ranges.add(44, 46) && !ranges.add(46, 51) && !ranges.add(59, 70));
        assert_eq!(ranges.iter().collect::<Vec<_>>(), [(0, 41), (45, 47), (50, 60)]);
        assert_eq!(ranges.end(), 60);
        assert_eq!(ranges.emptied().iter().count(), 0);
    }

    /// Compares with a set of single bytes, for every order of pieces that a seed gives.
    #[test]
    fn each_byte_is_counted_once_in_any_order() {
        for seed in 0..200u64 {
            let mut ranges = Ranges::default();
            let mut bytes = [false; 64];
            let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
            for _ in 0..100 {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                let start = (random % 64) as usize;
                let end = (start + 1 + (random >> 32) as usize % 9).min(64);
                let is_new = bytes[start..end].iter().all(|&is_there| !is_there);
                assert_eq!(ranges.add(start as u64, end as u64), is_new, "{seed}");
                if is_new {
                    bytes[start..end].fill(true);
                }
            }
            let count: u64 = ranges.iter().map(|(start, end)| end - start).sum();
            assert_eq!(count, bytes.iter().filter(|&&is_there| is_there).count() as u64);
        }
    }
}
