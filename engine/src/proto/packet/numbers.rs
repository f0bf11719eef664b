//! A sliding set of packet numbers: one bit each, in words whose lowest bit is a multiple of 64, so
//! that an acknowledgement's bitmap is a copy of words on both sides.

/// Numbers per word.
pub(super) const WORD: u64 = 64;

/// A sliding set of numbers; see the module. Numbers in use lie within [`Self::capacity`]
/// consecutive numbers; the owner sets the range ([`Self::reserve`]) and clears numbers that leave
/// it.
#[derive(Debug)]
pub(super) struct NumberSet {
    /// A ring: the word of number `n` is at `(n / 64) mod len`; the length is a power of two.
    words: Vec<u64>,
}

impl NumberSet {
    /// Creates a set for `capacity` numbers (rounded up to a power of two, at least 128).
    pub(super) fn new(capacity: u64) -> Self {
        let words = capacity.div_ceil(WORD).next_power_of_two().max(2) as usize;
        Self { words: vec![0; words] }
    }

    /// Returns the span from the start of the lowest word in use to the end of the highest.
    pub(super) fn capacity(&self) -> u64 {
        self.words.len() as u64 * WORD
    }

    #[inline]
    fn slot(&self, word: u64) -> usize {
        word as usize & (self.words.len() - 1)
    }

    /// Returns word `word`: numbers `64 * word` and up. Undefined outside of the range in use.
    #[inline]
    pub(super) fn word(&self, word: u64) -> u64 {
        self.words[self.slot(word)]
    }

    #[inline]
    pub(super) fn contains(&self, number: u64) -> bool {
        self.word(number / WORD) >> (number % WORD) & 1 == 1
    }

    #[inline]
    pub(super) fn insert(&mut self, number: u64) {
        let slot = self.slot(number / WORD);
        self.words[slot] |= 1 << (number % WORD);
    }

    #[inline]
    pub(super) fn remove(&mut self, number: u64) {
        let slot = self.slot(number / WORD);
        self.words[slot] &= !(1 << (number % WORD));
    }

    /// Sets a whole word.
    pub(super) fn set_word(&mut self, word: u64, bits: u64) {
        let slot = self.slot(word);
        self.words[slot] = bits;
    }

    /// Removes the numbers of a word that are set in `bits`, and returns those it had.
    #[inline]
    pub(super) fn take(&mut self, word: u64, bits: u64) -> u64 {
        let slot = self.slot(word);
        let taken = self.words[slot] & bits;
        self.words[slot] ^= taken;
        taken
    }

    /// Clears a whole word, to advance the set.
    #[inline]
    pub(super) fn clear_word(&mut self, word: u64) {
        let slot = self.slot(word);
        self.words[slot] = 0;
    }

    /// Makes the range `low..=high` valid, and grows if the ring is too short.
    #[inline]
    pub(super) fn reserve(&mut self, low: u64, high: u64) {
        debug_assert!(low <= high, "a range has an order");
        if high / WORD - low / WORD >= self.words.len() as u64 {
            self.grow(low / WORD, high / WORD);
        }
    }

    #[cold]
    fn grow(&mut self, low_word: u64, high_word: u64) {
        let length = (high_word - low_word + 1).next_power_of_two();
        debug_assert!(length as usize > self.words.len(), "the ring grows");
        let mut words = vec![0; length as usize];
        for word in low_word..low_word + self.words.len() as u64 {
            words[(word & (length - 1)) as usize] = self.word(word);
        }
        self.words = words;
    }
}

/// Returns the numbers of a word whose bits are set, lowest first.
#[inline]
pub(super) fn numbers(word: u64, mut bits: u64) -> impl Iterator<Item = u64> {
    std::iter::from_fn(move || {
        if bits == 0 {
            return None;
        }
        let bit = u64::from(bits.trailing_zeros());
        bits &= bits - 1;
        Some(word * WORD + bit)
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn behaves_like_a_sliding_growing_set(
            steps in proptest::collection::vec((0u64..300, any::<bool>(), 0u64..90), 1..200),
        ) {
            let mut set = NumberSet::new(0);
            let mut model = BTreeSet::new();
            let (mut low, mut high) = (0, 0);
            for (ahead, insert, advance) in steps {
                let number = low + ahead;
                high = high.max(number);
                set.reserve(low, high);
                if insert {
                    set.insert(number);
                    model.insert(number);
                } else {
                    set.remove(number);
                    model.remove(&number);
                }
                let next = (low + advance).min(high);
                for word in low / WORD..next / WORD {
                    set.clear_word(word);
                }
                low = next;
                model.retain(|number| number / WORD >= low / WORD);
                let mut held = BTreeSet::new();
                for word in low / WORD..=high / WORD {
                    held.extend(numbers(word, set.word(word)));
                }
                prop_assert_eq!(&held, &model);
                prop_assert_eq!(set.contains(number), model.contains(&number));
                prop_assert!(set.capacity() >= high - low);
            }
        }
    }
}
