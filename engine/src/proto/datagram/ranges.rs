//! Which bytes of a message have come.

/// Ranges, as start and end in bytes, in order and apart from each other.
#[derive(Debug, Default)]
pub(crate) struct Ranges(Vec<(u64, u64)>);

impl Ranges {
    /// Takes note of a range that is not empty. `false`: part of it is there already, and nothing
    /// was changed.
    ///
    /// RR-DGRAM-7, RR-BULK-4.
    pub(super) fn add(&mut self, start: u64, end: u64) -> bool {
        let ranges = &mut self.0;
        // Most come in order, behind all that is there.
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
        true
    }

    /// Where the last of them ends; 0: there are none.
    pub(super) fn end(&self) -> u64 {
        self.0.last().map_or(0, |&(_, end)| end)
    }

    /// All bytes before `end` are there: none was missing between those that were.
    pub(in crate::proto) fn extend_to(&mut self, end: u64) {
        let start = self.end();
        if end > start {
            self.add(start, end);
        }
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.0.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.0.iter().copied()
    }

    /// Without ranges, and with the memory of those that there were.
    pub(super) fn emptied(mut self) -> Self {
        self.0.clear();
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_join_and_never_overlap() {
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

    /// Against a list of single bytes, in every order of pieces that a seed gives.
    #[test]
    fn whatever_the_order_each_byte_counts_once() {
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
