//! The doorbells of an engine: one bit for each local peer, which sets it after writing to a ring
//! that the engine does not poll.
//!
//! ```text
//!  line 0                 line 1                       line 63
//! +----------------------+----------------------+-----+----------------------+
//! | bits 0 to 63         | bits 64 to 127       | ... | bits 4 032 to 4 095  |
//! +----------------------+----------------------+-----+----------------------+
//! ```
//!
//! The engine polls one word for 64 peers. It clears the word before it looks into the rings of
//! those whose bits were set, so that what a local peer writes meanwhile sets its bit again. A
//! local peer may clear the bits of others: the data is in the ring all the same, and the engine
//! polls it now and then without a bit.

use std::sync::atomic::Ordering;

/// Bytes of an engine's doorbells.
pub(crate) const DOORBELL_BYTES: usize = 4096;
/// Doorbells of an engine.
pub(crate) const DOORBELLS: u32 = (DOORBELL_BYTES / LINE_BYTES) as u32 * PER_WORD;

const LINE_BYTES: usize = 64;
const LINE_WORDS: usize = LINE_BYTES / size_of::<u64>();
/// Doorbells in one word.
const PER_WORD: u32 = u64::BITS;

/// Memory of [`DOORBELL_BYTES`] bytes, which peers may change at any time.
pub(crate) trait DoorbellWords {
    fn load(&self, word: usize, order: Ordering) -> u64;
    fn fetch_or(&self, word: usize, bits: u64, order: Ordering) -> u64;
    fn swap(&self, word: usize, value: u64, order: Ordering) -> u64;
    /// Orders earlier stores before later loads.
    fn fence(&self);
}

/// Word and bit of a doorbell.
const fn locate(bell: u32) -> (usize, u64) {
    ((bell / PER_WORD) as usize * LINE_WORDS, 1 << (bell % PER_WORD))
}

/// Sets a doorbell bit of a local peer. The caller has passed a fence since it wrote what the peer
/// is to find.
pub(crate) fn set_doorbell(bells: &impl DoorbellWords, bell: u32) {
    let (word, bit) = locate(bell);
    // A bit that is still set will be cleared before the ring is read.
    if bells.load(word, Ordering::Relaxed) & bit == 0 {
        bells.fetch_or(word, bit, Ordering::Release);
    }
}

/// Doorbells that were set and not served yet, on the side of their owner.
#[derive(Debug, Default)]
pub(crate) struct PendingDoorbells {
    /// One word for each word in use.
    words: Vec<u64>,
    /// The doorbell being served.
    at: u32,
}

impl PendingDoorbells {
    /// Includes doorbells below `count` from the next call on.
    pub(crate) fn extend_to(&mut self, count: u32) {
        let words = count.div_ceil(PER_WORD) as usize;
        if self.words.len() < words {
            self.words.resize(words, 0);
        }
    }

    /// Collects newly set doorbells; returns whether any is pending.
    #[inline]
    pub(crate) fn collect(&mut self, bells: &impl DoorbellWords) -> bool {
        let mut all = 0;
        for (at, word) in self.words.iter_mut().enumerate() {
            if bells.load(at * LINE_WORDS, Ordering::Relaxed) != 0 {
                *word |= bells.swap(at * LINE_WORDS, 0, Ordering::Acquire);
                // The rings are read afterwards.
                bells.fence();
            }
            all |= *word;
        }
        all != 0
    }

    /// Marks a doorbell as pending.
    pub(crate) fn add(&mut self, bell: u32) {
        self.extend_to(bell + 1);
        self.words[(bell / PER_WORD) as usize] |= 1 << (bell % PER_WORD);
    }

    /// The doorbell to serve next.
    #[inline]
    pub(crate) fn current(&mut self) -> Option<u32> {
        let (mut word, mut from) = ((self.at / PER_WORD) as usize, self.at % PER_WORD);
        // The first word twice: its bits before the current position come last.
        for _ in 0..=self.words.len() {
            let rest = self.words.get(word).copied().unwrap_or(0) & (u64::MAX << from);
            if rest != 0 {
                self.at = word as u32 * PER_WORD + rest.trailing_zeros();
                return Some(self.at);
            }
            (word, from) = (if word + 1 < self.words.len() { word + 1 } else { 0 }, 0);
        }
        None
    }

    /// Moves on to the next doorbell.
    #[inline]
    pub(crate) fn advance(&mut self) {
        self.at = (self.at + 1) % DOORBELLS;
    }

    /// The ring of a doorbell has been drained.
    #[inline]
    pub(crate) fn remove(&mut self, bell: u32) {
        if let Some(word) = self.words.get_mut((bell / PER_WORD) as usize) {
            *word &= !(1 << (bell % PER_WORD));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::cell::RefCell;

    struct Plain(RefCell<Vec<u64>>);

    impl DoorbellWords for Plain {
        fn load(&self, word: usize, _: Ordering) -> u64 {
            self.0.borrow()[word]
        }

        fn fetch_or(&self, word: usize, bits: u64, _: Ordering) -> u64 {
            let old = self.load(word, Ordering::Relaxed);
            self.0.borrow_mut()[word] = old | bits;
            old
        }

        fn swap(&self, word: usize, value: u64, _: Ordering) -> u64 {
            self.0.borrow_mut().splice(word..=word, [value]).next().unwrap()
        }

        fn fence(&self) {}
    }

    /// Serves all pending ones in turn.
    fn all(rung: &mut PendingDoorbells) -> Vec<u32> {
        std::iter::from_fn(|| rung.current().inspect(|&bell| rung.remove(bell))).collect()
    }

    #[test]
    fn doorbells_have_one_bit_each_and_are_served_round_robin() {
        let plain = Plain(RefCell::new(vec![0; DOORBELL_BYTES / 8]));
        let mut rung = PendingDoorbells::default();
        rung.extend_to(DOORBELLS);
        assert_eq!(rung.current(), None);
        for bell in (0..DOORBELLS).rev() {
            set_doorbell(&plain, bell);
            set_doorbell(&plain, bell);
        }
        assert!(rung.collect(&plain) && rung.collect(&plain));
        assert!(plain.0.borrow().iter().all(|&word| word == 0), "taken");
        assert!(all(&mut rung).into_iter().eq(0..DOORBELLS));
        // The one after the last that was served comes first.
        for bell in [3, 64, 70, 4000] {
            set_doorbell(&plain, bell);
        }
        assert!(rung.collect(&plain));
        assert_eq!(rung.current(), Some(3));
        rung.advance();
        rung.add(2);
        assert_eq!(all(&mut rung), [64, 70, 4000, 2, 3]);
    }

    #[test]
    fn doorbells_of_unused_words_are_ignored() {
        let plain = Plain(RefCell::new(vec![u64::MAX; DOORBELL_BYTES / 8]));
        let mut rung = PendingDoorbells::default();
        assert!(!rung.collect(&plain));
        assert_eq!(rung.current(), None);
        rung.extend_to(1);
        assert!(rung.collect(&plain));
        assert!(all(&mut rung).into_iter().eq(0..PER_WORD));
        rung.add(200);
        assert_eq!(all(&mut rung), [200]);
    }
}
