//! Datagrams of one direction in memory that two processes share: one writes, one reads, and
//! neither believes the other.
//!
//! ```text
//!  line   0          1          2 ...                                    LINES - 1
//!        +----------+----------+------------------+---------+-----------+---------+
//!        | consumed | sleeps   | length | payload | ...     | length 0  | ...     |
//!        +----------+----------+------------------+---------+-----------+---------+
//!         reader's   both's     writer's: whole lines of 64 bytes a datagram
//! ```
//!
//! A datagram begins with a word, its length and 1; its bytes follow, over the end of the ring if
//! need be, and the next one begins with the next line. A word of 0 says that none is there yet.
//! The writer clears the word behind a datagram before it writes the datagram's own, which is last
//! of all: so what was payload a lap ago is never taken for a length. The reader looks at one line,
//! and a short datagram costs the two that line and the next.
//!
//! Nothing is read twice. The reader takes the length once, checks it, copies, and checks the copy;
//! the writer checks what it is told of room. Whatever the other side writes, at any time, both
//! only touch the ring, and take steps that are bounded.

use std::sync::atomic::Ordering;

/// Bytes of a line, the unit that cores pass to each other.
pub(crate) const LINE_BYTES: usize = 64;
/// Lines of a ring.
pub(crate) const LINES: usize = 512;
/// Bytes of a ring.
pub(crate) const RING_BYTES: usize = LINES * LINE_BYTES;
/// Longest datagram, in bytes.
pub(crate) const LONGEST: usize = 12 * 1024;

const WORD_BYTES: usize = size_of::<u64>();
const LINE_WORDS: usize = LINE_BYTES / WORD_BYTES;
/// Lines before those of datagrams.
const FIRST: usize = 2;
/// Lines for datagrams.
const ROOM: usize = LINES - FIRST;
/// Lines that were read before the writer is told: it looks there when it seems to have no room.
const TELL_EVERY: usize = ROOM / 4;

/// The word with the number of lines that were read, since the beginning.
const CONSUMED: usize = 0;
/// The word that says whether the reader sleeps.
const SLEEPS: usize = LINE_WORDS;

const _: () = assert!(
    lines_of(LONGEST) < ROOM - TELL_EVERY,
    "a datagram fits although the reader has told nothing of the last lines"
);

/// The memory of a ring, of [`RING_BYTES`], which others change at any time.
///
/// Word numbers and byte offsets are below the end of the ring, byte offsets are multiples of 8; no
/// byte range reaches beyond that end.
pub(crate) trait Lines {
    fn load(&self, word: usize, order: Ordering) -> u64;
    fn store(&self, word: usize, value: u64, order: Ordering);
    /// Copies `bytes` to `offset`, in whole words: up to 7 bytes behind them become 0.
    fn write(&self, offset: usize, bytes: &[u8]);
    /// Copies from `offset`.
    fn read(&self, offset: usize, into: &mut [u8]);
    /// What was stored before comes before what is loaded after.
    fn fence(&self);
}

/// What an entry of a ring is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Entry {
    /// A packet, as it would go by UDP.
    Packet,
    /// A segment, without what a packet has around it.
    Segment,
}

/// This bit of the word says that an entry is a segment.
const SEGMENT: u64 = 1 << 32;

/// Lines of a datagram.
const fn lines_of(length: usize) -> usize {
    (WORD_BYTES + length).div_ceil(LINE_BYTES)
}

/// The other side broke the rules of the ring: nothing of it is believed any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Broken;

/// A place in the ring, and how many lines have gone by.
#[derive(Clone, Copy, Debug)]
struct Place {
    line: usize,
    passed: u64,
}

impl Place {
    const START: Self = Self { line: FIRST, passed: 0 };

    #[inline]
    fn after(self, lines: usize) -> Self {
        let line = self.line + lines;
        let line = if line >= LINES { line - ROOM } else { line };
        Self { line, passed: self.passed + lines as u64 }
    }

    /// The word that says how long the datagram here is.
    #[inline]
    fn word(self) -> usize {
        self.line * LINE_WORDS
    }

    /// How many of the `length` bytes of the datagram here come before the end of the ring.
    #[inline]
    fn before_end(self, length: usize) -> usize {
        length.min(RING_BYTES - self.line * LINE_BYTES - WORD_BYTES)
    }
}

/// The writing side.
#[derive(Debug)]
pub(crate) struct Writer {
    at: Place,
    /// Lines that the reader is known to have read.
    consumed: u64,
}

impl Writer {
    /// Of a ring that is all zeros.
    pub(crate) const fn new() -> Self {
        Self { at: Place::START, consumed: 0 }
    }

    /// Writes a datagram of [`LONGEST`] bytes at the most. `Ok(false)`: there is no room.
    #[inline]
    pub(crate) fn write(
        &mut self,
        ring: &impl Lines,
        entry: Entry,
        datagram: &[u8],
    ) -> Result<bool, Broken> {
        debug_assert!(datagram.len() <= LONGEST);
        let lines = lines_of(datagram.len());
        // One more, whose word is cleared.
        if !self.has_room(lines + 1) {
            let told = ring.load(CONSUMED, Ordering::Acquire);
            // What was read once stays read, and nothing is read before it is written.
            if told < self.consumed || told > self.at.passed {
                return Err(Broken);
            }
            self.consumed = told;
            if !self.has_room(lines + 1) {
                return Ok(false);
            }
        }
        let (here, next) = (self.at, self.at.after(lines));
        let (head, rest) = datagram.split_at(here.before_end(datagram.len()));
        ring.write(here.line * LINE_BYTES + WORD_BYTES, head);
        if !rest.is_empty() {
            ring.write(FIRST * LINE_BYTES, rest);
        }
        ring.store(next.word(), 0, Ordering::Relaxed);
        let kind = if entry == Entry::Segment { SEGMENT } else { 0 };
        ring.store(here.word(), (datagram.len() as u64 + 1) | kind, Ordering::Release);
        self.at = next;
        Ok(true)
    }

    fn has_room(&self, lines: usize) -> bool {
        self.at.passed - self.consumed + lines as u64 <= ROOM as u64
    }

    /// Whether the reader is to be woken, after datagrams were written; it is then taken for awake.
    #[inline]
    pub(crate) fn must_wake(&self, ring: &impl Lines) -> bool {
        ring.fence();
        if ring.load(SLEEPS, Ordering::Relaxed) == 0 {
            return false;
        }
        // Whichever sleep this overwrites is ended by the call that wakes, which comes after it.
        ring.store(SLEEPS, 0, Ordering::Relaxed);
        true
    }
}

/// The reading side.
#[derive(Debug)]
pub(crate) struct Reader {
    at: Place,
    /// Lines that the writer was told of.
    told: u64,
}

impl Reader {
    /// Of a ring that is all zeros.
    pub(crate) const fn new() -> Self {
        Self { at: Place::START, told: 0 }
    }

    /// Whether a datagram is there.
    #[inline]
    pub(crate) fn has_some(&self, ring: &impl Lines) -> bool {
        ring.load(self.at.word(), Ordering::Acquire) != 0
    }

    /// Copies the next datagram into the first of `into`, which has room for [`LONGEST`] bytes, and
    /// says what and how long it is; `None`: none is there.
    ///
    /// RR-SHM-5.
    #[inline]
    pub(crate) fn read(
        &mut self,
        ring: &impl Lines,
        into: &mut [u8],
    ) -> Result<Option<(Entry, usize)>, Broken> {
        let word = ring.load(self.at.word(), Ordering::Acquire);
        if word == 0 {
            return Ok(None);
        }
        let entry = if word & SEGMENT == 0 { Entry::Packet } else { Entry::Segment };
        let length = (word & !SEGMENT).checked_sub(1).ok_or(Broken)?;
        let length = usize::try_from(length).map_err(|_| Broken)?;
        if length > LONGEST {
            return Err(Broken);
        }
        let Some(into) = into.get_mut(..length) else { return Err(Broken) };
        let (head, rest) = into.split_at_mut(self.at.before_end(length));
        ring.read(self.at.line * LINE_BYTES + WORD_BYTES, head);
        if !rest.is_empty() {
            ring.read(FIRST * LINE_BYTES, rest);
        }
        self.at = self.at.after(lines_of(length));
        if self.at.passed - self.told >= TELL_EVERY as u64 {
            self.told = self.at.passed;
            ring.store(CONSUMED, self.told, Ordering::Release);
        }
        Ok(Some((entry, length)))
    }

    /// Announces a sleep, from which the writer wakes the reader after the next datagram. `false`:
    /// one is there already.
    ///
    /// RR-SHM-6.
    pub(crate) fn fall_asleep(&self, ring: &impl Lines) -> bool {
        ring.store(SLEEPS, 1, Ordering::Relaxed);
        ring.fence();
        !self.has_some(ring)
    }

    /// The opposite of [`Self::fall_asleep`].
    pub(crate) fn wake_up(&self, ring: &impl Lines) {
        ring.store(SLEEPS, 0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::cell::RefCell;
    use std::collections::VecDeque;

    use proptest::prelude::*;

    /// Memory of one thread. Any access outside panics.
    struct Plain(RefCell<Vec<u64>>);

    impl Plain {
        fn new() -> Self {
            Self(RefCell::new(vec![0; RING_BYTES / WORD_BYTES]))
        }
    }

    impl Lines for Plain {
        fn load(&self, word: usize, _: Ordering) -> u64 {
            self.0.borrow()[word]
        }

        fn store(&self, word: usize, value: u64, _: Ordering) {
            self.0.borrow_mut()[word] = value;
        }

        fn write(&self, offset: usize, bytes: &[u8]) {
            assert!(offset.is_multiple_of(WORD_BYTES) && offset >= FIRST * LINE_BYTES);
            for (at, piece) in bytes.chunks(WORD_BYTES).enumerate() {
                let mut word = [0; WORD_BYTES];
                word[..piece.len()].copy_from_slice(piece);
                self.0.borrow_mut()[offset / WORD_BYTES + at] = u64::from_le_bytes(word);
            }
        }

        fn read(&self, offset: usize, into: &mut [u8]) {
            assert!(offset.is_multiple_of(WORD_BYTES) && offset >= FIRST * LINE_BYTES);
            for (at, piece) in into.chunks_mut(WORD_BYTES).enumerate() {
                let word = self.0.borrow()[offset / WORD_BYTES + at].to_le_bytes();
                piece.copy_from_slice(&word[..piece.len()]);
            }
        }

        fn fence(&self) {}
    }

    /// Bytes that look like lengths, so that one that is taken for such shows.
    fn payload(number: u64, length: usize) -> Vec<u8> {
        let words = (1..).map(|at: u64| if at.is_multiple_of(2) { number } else { at % 60 + 1 });
        words.flat_map(u64::to_le_bytes).take(length).collect()
    }

    fn entry(number: u64) -> Entry {
        if number.is_multiple_of(3) { Entry::Segment } else { Entry::Packet }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Write(usize),
        Read,
        ReadAll,
    }

    fn step() -> impl Strategy<Value = Step> {
        let length = prop_oneof![
            4 => 0..=200_usize,
            1 => 0..=LONGEST,
            1 => Just(LONGEST),
            2 => (0..=LONGEST / LINE_BYTES, 0..=2_usize)
                .prop_map(|(lines, more)| ((lines + 1) * LINE_BYTES - 9 + more).min(LONGEST)),
        ];
        prop_oneof![
            6 => length.prop_map(Step::Write),
            5 => Just(Step::Read),
            1 => Just(Step::ReadAll),
        ]
    }

    proptest! {
        #[test]
        fn it_is_a_queue(steps in prop::collection::vec(step(), 0..400)) {
            let (ring, mut writer, mut reader) = (Plain::new(), Writer::new(), Reader::new());
            let (mut model, mut into) = (VecDeque::new(), vec![0; LONGEST]);
            let mut held_lines = 0;
            for (number, step) in steps.into_iter().enumerate() {
                match step {
                    Step::Write(length) => {
                        let datagram = payload(number as u64, length);
                        let written = writer.write(&ring, entry(number as u64), &datagram);
                        prop_assert!(written.is_ok());
                        if written == Ok(true) {
                            held_lines += lines_of(length);
                            model.push_back((entry(number as u64), datagram));
                        } else {
                            prop_assert!(held_lines + lines_of(length) + 1 > ROOM - TELL_EVERY);
                        }
                        prop_assert!(held_lines < ROOM);
                    }
                    Step::Read | Step::ReadAll => loop {
                        let expected: Option<(Entry, Vec<u8>)> = model.pop_front();
                        prop_assert_eq!(reader.has_some(&ring), expected.is_some());
                        let read = reader.read(&ring, &mut into).unwrap();
                        let got = read.map(|(entry, length)| (entry, into[..length].to_vec()));
                        prop_assert_eq!(&got, &expected);
                        let Some(got) = got else { break };
                        held_lines -= lines_of(got.1.len());
                        if matches!(step, Step::Read) {
                            break;
                        }
                    },
                }
            }
        }

        /// RR-SHM-5: whoever has the other end writes what it likes, where it likes, at any time.
        #[test]
        fn a_hostile_other_side_gains_nothing(
            steps in prop::collection::vec(
                (step(), prop::collection::vec((0..RING_BYTES / WORD_BYTES, scribble()), 0..4)),
                0..300,
            ),
        ) {
            let (ring, mut into) = (Plain::new(), vec![0; LONGEST]);
            let (mut writer, mut reader) = (Some(Writer::new()), Some(Reader::new()));
            for (step, scribbles) in steps {
                for (word, value) in scribbles {
                    ring.store(word, value, Ordering::Relaxed);
                }
                match step {
                    Step::Write(length) => {
                        let Some(side) = &mut writer else { continue };
                        let wrote = side.write(&ring, Entry::Packet, &payload(1, length));
                        if wrote.is_err() {
                            writer = None;
                        }
                    }
                    Step::Read | Step::ReadAll => {
                        // A lap at the most is read of what was not written.
                        for _ in 0..ROOM {
                            let Some(side) = &mut reader else { break };
                            match side.read(&ring, &mut into) {
                                Ok(None) => break,
                                Ok(Some((_, length))) => prop_assert!(length <= LONGEST),
                                Err(Broken) => reader = None,
                            }
                        }
                    }
                }
            }
        }
    }

    fn scribble() -> impl Strategy<Value = u64> {
        prop_oneof![
            0..3_u64,
            SEGMENT..SEGMENT + 99,
            0..=LONGEST as u64 + 2,
            Just(u64::MAX),
            any::<u64>()
        ]
    }

    #[test]
    fn lengths_and_news_of_room_that_cannot_be_end_it() {
        let (ring, mut into) = (Plain::new(), vec![0; LONGEST]);
        for word in [LONGEST as u64 + 2, 1 << 33, SEGMENT, SEGMENT | (LONGEST as u64 + 2), u64::MAX]
        {
            ring.store(Place::START.word(), word, Ordering::Relaxed);
            assert_eq!(Reader::new().read(&ring, &mut into), Err(Broken), "{word}");
        }
        for (consumed, expected) in
            [(0, Ok(false)), (1 << 40, Err(Broken)), (u64::MAX, Err(Broken))]
        {
            let (ring, mut writer) = (Plain::new(), Writer::new());
            while writer.write(&ring, Entry::Packet, &[7; 1000]) == Ok(true) {}
            ring.store(CONSUMED, consumed, Ordering::Relaxed);
            assert_eq!(writer.write(&ring, Entry::Packet, &[7; 1000]), expected, "{consumed}");
        }
        let (ring, mut writer) = (Plain::new(), Writer::new());
        while writer.write(&ring, Entry::Packet, &[7; 56]) == Ok(true) {}
        ring.store(CONSUMED, 100, Ordering::Relaxed);
        assert_eq!(writer.write(&ring, Entry::Packet, &[7; 56]), Ok(true));
        while writer.at.passed < 100 + ROOM as u64 - 1 {
            assert_eq!(writer.write(&ring, Entry::Packet, &[7; 56]), Ok(true));
        }
        // What was read is not read any more.
        ring.store(CONSUMED, 99, Ordering::Relaxed);
        assert_eq!(writer.write(&ring, Entry::Packet, &[7; 56]), Err(Broken));
    }

    /// RR-SHM-6
    #[test]
    fn only_a_reader_that_sleeps_is_woken_and_once() {
        let (ring, mut writer, reader) = (Plain::new(), Writer::new(), Reader::new());
        assert!(!writer.must_wake(&ring));
        assert!(reader.fall_asleep(&ring));
        assert_eq!(writer.write(&ring, Entry::Packet, b"x"), Ok(true));
        assert!(writer.must_wake(&ring));
        assert!(!writer.must_wake(&ring));
        assert!(!reader.fall_asleep(&ring), "one is there");
        reader.wake_up(&ring);
        assert!(!writer.must_wake(&ring));
    }
}
