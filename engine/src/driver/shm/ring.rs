//! A single-writer, single-reader queue in memory that two processes share; neither trusts the
//! other.
//!
//! ```text
//!  line   0          1          2 ...                                    LINES - 1
//!        +----------+----------+------------------+---------+-----------+---------+
//!        | consumed | state    | length | payload | ...     | length 0  | ...     |
//!        +----------+----------+------------------+---------+-----------+---------+
//!         reader's   both's     writer's: whole lines of 64 bytes per entry
//! ```
//!
//! An entry begins with a word that holds its length plus 1, its kind and, for the frames of a
//! segment, their numbers; its bytes follow, wrapping at the end of the ring, and the next entry
//! begins at the next line ([`EntryWord`]). A word of 0 means that no entry is there yet. The
//! writer clears the word after an entry before it stores the entry's own word, which is the last
//! store: so payload of an earlier lap is never taken for a length. The reader polls one line, and
//! a short entry costs the two sides that line and the next.
//!
//! A piece of a message has its header in its first line and its bytes from the next line on, and
//! so has a message that does not fit one: they are copied from the sender's memory into the ring,
//! and from there to their destination. Of a long message the reader copies the header first, and
//! decides by it where the payload is copied to.
//!
//! Frames stay in the ring until its reader has taken them: if the ring ends before, their writer
//! reads them back ([`Writer::unread`]), to send them again by another transport.
//!
//! Nothing is read twice. The reader loads the length once, validates it, copies, and validates the
//! copy; the writer validates the published read position. Whatever the other side writes, at any
//! time, both access only the ring, and take a bounded number of steps.

use std::sync::atomic::Ordering;

use super::entry::EntryWord;
pub(crate) use super::entry::{EntryKind, RingViolation};
use crate::wire::frame_range::{FrameRange, KeptFrames, RING_SHORT_BYTES, RingBytes, RingHead};

/// Bytes of a cache line.
pub(crate) const LINE_BYTES: usize = 64;
/// Lines of a ring.
pub(crate) const LINES: usize = 512;
/// Bytes of a ring.
pub(crate) const RING_BYTES: usize = LINES * LINE_BYTES;
/// Longest packet or segment, in bytes.
pub(crate) const DATAGRAM_MAX: usize = 12 * 1024;
/// Shortest frames of which [`Reader::read`] copies the first line alone, so that the payload of a
/// message is copied once, to its destination; shorter ones are copied sooner than that is decided.
pub(crate) const BODY_BYTES_MIN: usize = 1024;
/// Bytes of a piece's header.
pub(crate) const HEADER_BYTES: usize = 24;
/// Longest piece of a message, in bytes: two fit into the ring while the reader copies a third.
pub(crate) const PIECE_BYTES_MAX: usize = 8 * 1024;

const WORD_BYTES: usize = size_of::<u64>();
const LINE_WORDS: usize = LINE_BYTES / WORD_BYTES;
/// Lines before the entries.
const FIRST: usize = 2;
/// Lines for entries.
const ROOM: usize = LINES - FIRST;
/// Lines that pieces leave free for segments and packets: as many as the longest of those in use
/// takes, and one more, whose word is cleared.
const RESERVED_LINES: usize = lines_of(9 * 1024) + 1;
/// Lines read before the position is published: the writer loads it when the ring seems full.
const PUBLISH_EVERY: usize = ROOM / 4;

/// The word with the number of lines read so far.
const CONSUMED: usize = 0;
/// The word with the reader's [`PollState`].
const POLL_STATE: usize = LINE_WORDS;
/// The word that is set while the writer sleeps until there is room.
const WRITER_WAITS: usize = LINE_WORDS + 1;

const _: () = assert!(
    lines_of_piece(PIECE_BYTES_MAX) + RESERVED_LINES < ROOM - PUBLISH_EVERY,
    "a piece fits although the last lines read were not published"
);
const _: () = assert!(RING_SHORT_BYTES == LINE_BYTES - WORD_BYTES);
const _: () = assert!(BODY_BYTES_MIN > RING_SHORT_BYTES, "the payload begins with a line");
const _: () = assert!(HEADER_BYTES.is_multiple_of(WORD_BYTES) && HEADER_BYTES < LINE_BYTES);
const _: () = assert!(
    lines_of(DATAGRAM_MAX) < ROOM - PUBLISH_EVERY,
    "a datagram fits although the last lines read were not published"
);

/// The memory of a ring, of [`RING_BYTES`], which the other process may change at any time.
///
/// Word numbers and byte offsets are below the end of the ring, byte offsets are multiples of 8; no
/// byte range exceeds the end.
pub(crate) trait Lines {
    fn load(&self, word: usize, order: Ordering) -> u64;
    fn store(&self, word: usize, value: u64, order: Ordering);
    /// Copies `bytes` to `offset`, in whole words: up to 7 bytes after them become 0.
    fn write(&self, offset: usize, bytes: &[u8]);
    /// Copies from `offset`.
    fn read(&self, offset: usize, into: &mut [u8]);
    /// Copies these bytes to a line, after its first word.
    fn write_line(&self, line: usize, bytes: &[u8; RING_SHORT_BYTES]);
    /// Copies them from there.
    fn read_line(&self, line: usize, into: &mut [u8; RING_SHORT_BYTES]);
    /// Orders earlier stores before later loads.
    fn fence(&self);
}

/// How a reader notices new entries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PollState {
    /// It polls the ring.
    Polling = 0,
    /// It sleeps, and must be woken.
    Sleeping = 1,
    /// It polls its doorbells.
    Doorbell = 2,
}

/// The wake-up that the reader needs after a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WakeupHint {
    None,
    /// Set the reader's doorbell.
    Doorbell,
    /// Wake the reader.
    WakeUp,
}

/// Lines of an entry of this kind and length.
#[inline(always)]
const fn lines_of_entry(entry: EntryKind, length: usize) -> usize {
    match entry {
        EntryKind::Piece => lines_of_piece(length - HEADER_BYTES),
        _ => (offset_in_line(entry, length) + length - 1) / LINE_BYTES + 1,
    }
}

/// The offset of an entry's bytes in its first line. Those of frames that need several lines leave
/// space, so that the payload of a message, after its head, begins with a line.
#[inline(always)]
const fn offset_in_line(entry: EntryKind, length: usize) -> usize {
    match entry {
        EntryKind::Frames(_, head) if length > RING_SHORT_BYTES => LINE_BYTES - head.bytes(),
        _ => WORD_BYTES,
    }
}

/// Lines of a packet or segment: those before its last byte, and that byte's.
const fn lines_of(length: usize) -> usize {
    (WORD_BYTES + length - 1) / LINE_BYTES + 1
}

/// Lines of a piece, given the length without its header.
const fn lines_of_piece(length: usize) -> usize {
    1 + length.div_ceil(LINE_BYTES)
}

/// A position in the ring, and the total number of lines before it.
#[derive(Clone, Copy, Debug)]
struct Position {
    line: usize,
    passed: u64,
}

impl Position {
    const START: Self = Self { line: FIRST, passed: 0 };

    #[inline]
    fn after(self, lines: usize) -> Self {
        let line = self.line + lines;
        let line = if line >= LINES { line - ROOM } else { line };
        Self { line, passed: self.passed + lines as u64 }
    }

    /// The line `lines` before this one.
    #[inline]
    fn before(self, lines: usize) -> usize {
        let line = self.line - FIRST;
        FIRST + if line >= lines { line - lines } else { line + ROOM - lines }
    }

    /// The word that holds the length of the entry here.
    #[inline]
    fn word(self) -> usize {
        self.line * LINE_WORDS
    }

    /// The offset of the first byte of the entry here.
    #[inline]
    fn bytes(self) -> usize {
        self.line * LINE_BYTES + WORD_BYTES
    }
}

/// Writes `bytes` from `offset` on; what does not fit before the end continues at the first entry.
#[inline]
fn write_at(ring: &impl Lines, offset: usize, bytes: &[u8]) {
    if bytes.len() <= RING_BYTES - offset {
        ring.write(offset, bytes);
    } else {
        write_wrapping(ring, offset, bytes);
    }
}

/// The same, from an offset that may be beyond the end.
#[inline(never)]
fn write_second(ring: &impl Lines, offset: usize, bytes: &[u8]) {
    assert!(offset.is_multiple_of(WORD_BYTES), "whole words come first");
    let before = if offset < RING_BYTES { 0 } else { ROOM * LINE_BYTES };
    write_at(ring, offset - before, bytes);
}

#[cold]
fn write_wrapping(ring: &impl Lines, offset: usize, bytes: &[u8]) {
    let (head, rest) = bytes.split_at(RING_BYTES - offset);
    ring.write(offset, head);
    ring.write(FIRST * LINE_BYTES, rest);
}

/// The opposite.
#[inline]
fn read_at(ring: &impl Lines, offset: usize, into: &mut [u8]) {
    if into.len() <= RING_BYTES - offset {
        ring.read(offset, into);
    } else {
        read_wrapping(ring, offset, into);
    }
}

#[cold]
fn read_wrapping(ring: &impl Lines, offset: usize, into: &mut [u8]) {
    let (head, rest) = into.split_at_mut(RING_BYTES - offset);
    ring.read(offset, head);
    ring.read(FIRST * LINE_BYTES, rest);
}

/// The writing side.
#[derive(Debug)]
pub(crate) struct Writer {
    at: Position,
    /// Lines that the reader is known to have read.
    consumed: u64,
}

impl Writer {
    /// For a ring of zeros.
    pub(crate) const fn new() -> Self {
        Self { at: Position::START, consumed: 0 }
    }

    /// Writes an entry of at most [`DATAGRAM_MAX`] bytes. `Ok(false)`: no room.
    pub(crate) fn write(
        &mut self,
        ring: &impl Lines,
        entry: EntryKind,
        datagram: &[u8],
    ) -> Result<bool, RingViolation> {
        self.write_bytes(ring, entry, RingBytes::whole(datagram))
    }

    /// Writes frames that fit one line: the first `length` of `bytes`. `Ok(false)`: no room.
    #[inline(always)]
    pub(crate) fn write_short(
        &mut self,
        ring: &impl Lines,
        range: FrameRange,
        bytes: &[u8; RING_SHORT_BYTES],
        length: usize,
    ) -> Result<bool, RingViolation> {
        if !self.check_room(ring, 1)? {
            return Ok(false);
        }
        let (here, next) = (self.at, self.at.after(1));
        ring.write_line(here.line, bytes);
        ring.store(next.word(), 0, Ordering::Relaxed);
        let entry = EntryKind::Frames(range, RingHead::Header);
        ring.store(here.word(), EntryWord::new(entry, length).0, Ordering::Release);
        self.at = next;
        Ok(true)
    }

    /// Writes an entry of at most [`DATAGRAM_MAX`] bytes. `Ok(false)`: no room.
    #[inline]
    pub(crate) fn write_bytes(
        &mut self,
        ring: &impl Lines,
        entry: EntryKind,
        bytes: RingBytes<'_>,
    ) -> Result<bool, RingViolation> {
        let length = bytes.len();
        debug_assert!(length <= DATAGRAM_MAX);
        let lines = lines_of_entry(entry, length);
        if !self.check_room(ring, lines)? {
            return Ok(false);
        }
        let (here, next) = (self.at, self.at.after(lines));
        match bytes {
            RingBytes::Short(bytes, length) => write_at(ring, here.bytes(), &bytes[..length]),
            RingBytes::Parts([first, second]) => {
                let offset = here.line * LINE_BYTES + offset_in_line(entry, length);
                write_at(ring, offset, first);
                if !second.is_empty() {
                    write_second(ring, offset + first.len(), second);
                }
            }
        }
        ring.store(next.word(), 0, Ordering::Relaxed);
        ring.store(here.word(), EntryWord::new(entry, length).0, Ordering::Release);
        self.at = next;
        Ok(true)
    }

    /// Writes a piece of a message, of at most [`PIECE_BYTES_MAX`] bytes. `Ok(false)`: no room
    /// beyond what is reserved for segments and packets.
    #[inline]
    pub(crate) fn write_piece(
        &mut self,
        ring: &impl Lines,
        header: &[u8; HEADER_BYTES],
        bytes: &[u8],
    ) -> Result<bool, RingViolation> {
        debug_assert!(bytes.len() <= PIECE_BYTES_MAX);
        let lines = lines_of_piece(bytes.len());
        if !self.check_room(ring, lines + RESERVED_LINES)? {
            return Ok(false);
        }
        let (here, next) = (self.at, self.at.after(lines));
        ring.write(here.bytes(), header);
        write_at(ring, here.after(1).line * LINE_BYTES, bytes);
        ring.store(next.word(), 0, Ordering::Relaxed);
        let word = EntryWord::new(EntryKind::Piece, HEADER_BYTES + bytes.len());
        ring.store(here.word(), word.0, Ordering::Release);
        self.at = next;
        Ok(true)
    }

    /// Copies the frames in the ring that its reader has not published as read, in their order.
    /// The reader may have taken some of them, and may take others meanwhile.
    ///
    /// RR-SHM-8.
    pub(crate) fn unread(&mut self, ring: &impl Lines) -> Result<Vec<KeptFrames>, RingViolation> {
        self.read_consumed(ring)?;
        let mut unread = Vec::new();
        let mut at = Position::START.after((self.consumed % ROOM as u64) as usize);
        at.passed = self.consumed;
        while at.passed < self.at.passed {
            let word = EntryWord(ring.load(at.word(), Ordering::Relaxed));
            let (entry, length) = word.parse()?;
            let next = at.after(lines_of_entry(entry, length));
            if next.passed > self.at.passed {
                return Err(RingViolation);
            }
            if let EntryKind::Frames(range, _) = entry {
                let mut bytes = vec![0; length];
                let offset = at.line * LINE_BYTES + offset_in_line(entry, length);
                read_at(ring, offset, &mut bytes);
                unread.push(KeptFrames { range, bytes });
            }
            at = next;
        }
        Ok(unread)
    }

    /// Whether there is room for `lines` plus one, whose word is cleared, according to the
    /// published position.
    #[inline]
    fn check_room(&mut self, ring: &impl Lines, lines: usize) -> Result<bool, RingViolation> {
        if self.has_room(lines + 1) {
            return Ok(true);
        }
        self.check_new_room(ring, lines)
    }

    /// The same, once the position that was published since is read.
    #[cold]
    fn check_new_room(&mut self, ring: &impl Lines, lines: usize) -> Result<bool, RingViolation> {
        self.read_consumed(ring)?;
        Ok(self.has_room(lines + 1))
    }

    /// Loads the position that the reader has published.
    fn read_consumed(&mut self, ring: &impl Lines) -> Result<(), RingViolation> {
        let reported_tail = ring.load(CONSUMED, Ordering::Acquire);
        // The position never decreases, and never exceeds what was written.
        if reported_tail < self.consumed || reported_tail > self.at.passed {
            return Err(RingViolation);
        }
        self.consumed = reported_tail;
        Ok(())
    }

    #[inline]
    fn has_room(&self, lines: usize) -> bool {
        self.at.passed - self.consumed + lines as u64 <= ROOM as u64
    }

    /// Announces a sleep over a ring that had no room, from which the reader wakes the writer when
    /// it publishes some. A fence and [`Self::has_new_room`] follow: room that was published before
    /// does not wake it.
    ///
    /// RR-SHM-6.
    pub(crate) fn prepare_sleep(&self, ring: &impl Lines) {
        ring.store(WRITER_WAITS, 1, Ordering::Relaxed);
    }

    /// Whether the reader has published more room since there was none.
    pub(crate) fn has_new_room(&self, ring: &impl Lines) -> bool {
        ring.load(CONSUMED, Ordering::Relaxed) != self.consumed
    }

    /// Ends [`Self::prepare_sleep`].
    pub(crate) fn end_sleep(&self, ring: &impl Lines) {
        ring.store(WRITER_WAITS, 0, Ordering::Relaxed);
    }

    /// How to notify the reader after entries were written. A sleeping reader is marked as polling,
    /// so that it is woken once.
    pub(crate) fn wakeup_hint(&self, ring: &impl Lines) -> WakeupHint {
        let hint = self.peek_wakeup_hint(ring);
        if hint == WakeupHint::WakeUp {
            // If this overwrites a newer state, the reader publishes that again when it handles
            // the wake-up, which comes later.
            ring.store(POLL_STATE, PollState::Polling as u64, Ordering::Relaxed);
        }
        hint
    }

    /// The same, without a mark.
    #[inline]
    pub(crate) fn peek_wakeup_hint(&self, ring: &impl Lines) -> WakeupHint {
        ring.fence();
        const SLEEPS: u64 = PollState::Sleeping as u64;
        const LISTENS: u64 = PollState::Doorbell as u64;
        match ring.load(POLL_STATE, Ordering::Relaxed) {
            SLEEPS => WakeupHint::WakeUp,
            LISTENS => WakeupHint::Doorbell,
            _ => WakeupHint::None,
        }
    }
}

/// The reading side.
#[derive(Debug)]
pub(crate) struct Reader {
    at: Position,
    /// The position published to the writer.
    reported_tail: u64,
}

impl Reader {
    /// For a ring of zeros.
    pub(crate) const fn new() -> Self {
        Self { at: Position::START, reported_tail: 0 }
    }

    /// Whether an entry is present.
    #[inline]
    pub(crate) fn has_some(&self, ring: &impl Lines) -> bool {
        ring.load(self.at.word(), Ordering::Acquire) != 0
    }

    /// Copies the next datagram into the first of `into`, which has room for [`DATAGRAM_MAX`]
    /// bytes, and returns its kind and length; `None`: none is there. Of a piece that is its
    /// header, and the length of its bytes is returned; of frames of [`BODY_BYTES_MIN`] and more
    /// it is their head. [`Self::read_body`] has the rest, and must be called before the next call.
    ///
    /// RR-SHM-5.
    #[inline]
    pub(crate) fn read(
        &mut self,
        ring: &impl Lines,
        into: &mut [u8],
    ) -> Result<Option<(EntryKind, usize)>, RingViolation> {
        let word = ring.load(self.at.word(), Ordering::Acquire);
        if word == 0 {
            return Ok(None);
        }
        let word = EntryWord(word);
        if let (Some((range, length)), Some(into)) = (word.short_frames(), into.first_chunk_mut()) {
            ring.read_line(self.at.line, into);
            self.at = self.at.after(1);
            self.publish_tail(ring);
            return Ok(Some((EntryKind::Frames(range, RingHead::Header), length)));
        }
        self.read_other(ring, word, into).map(Some)
    }

    /// Reads an entry that is not short frames.
    #[inline(never)]
    fn read_other(
        &mut self,
        ring: &impl Lines,
        word: EntryWord,
        into: &mut [u8],
    ) -> Result<(EntryKind, usize), RingViolation> {
        let (entry, length) = word.parse()?;
        let copied = match entry {
            EntryKind::Piece => HEADER_BYTES,
            EntryKind::Frames(_, head) if length >= BODY_BYTES_MIN => head.bytes(),
            _ => length,
        };
        let Some(into) = into.get_mut(..copied) else { return Err(RingViolation) };
        read_at(ring, self.at.line * LINE_BYTES + offset_in_line(entry, length), into);
        self.at = self.at.after(lines_of_entry(entry, length));
        if copied == length {
            self.publish_tail(ring);
        }
        // Otherwise the position is published when the rest has been read.
        match entry {
            EntryKind::Piece => Ok((entry, length - HEADER_BYTES)),
            _ => Ok((entry, length)),
        }
    }

    /// Copies the rest of an entry of which [`Self::read`] has just returned the first line; it
    /// begins with the next one. `into` has its length.
    #[inline]
    pub(crate) fn read_body(&mut self, ring: &impl Lines, into: &mut [u8]) {
        debug_assert!(into.len() <= DATAGRAM_MAX);
        let body = self.at.before(into.len().div_ceil(LINE_BYTES)) * LINE_BYTES;
        read_at(ring, body, into);
        self.publish_tail(ring);
    }

    /// Publishes the position, if it has moved far enough.
    #[inline]
    fn publish_tail(&mut self, ring: &impl Lines) {
        if self.at.passed - self.reported_tail >= PUBLISH_EVERY as u64 {
            self.reported_tail = self.at.passed;
            ring.store(CONSUMED, self.reported_tail, Ordering::Release);
        }
    }

    /// The position published last; if it moved, call [`Self::take_waiting_writer`].
    #[inline]
    pub(crate) fn reported_tail(&self) -> u64 {
        self.reported_tail
    }

    /// Whether the writer must be woken, as there is room; it is then marked as awake.
    #[cold]
    pub(crate) fn take_waiting_writer(&self, ring: &impl Lines) -> bool {
        ring.fence();
        if ring.load(WRITER_WAITS, Ordering::Relaxed) == 0 {
            return false;
        }
        // As in [`Writer::wakeup_hint`].
        ring.store(WRITER_WAITS, 0, Ordering::Relaxed);
        true
    }

    /// Publishes how the reader notices the next entry. Unless it polls, follow with a fence and
    /// [`Self::has_some`]: the writer does not notify of entries that are already present.
    ///
    /// RR-SHM-6, RR-SHM-11.
    pub(crate) fn set_poll_state(&self, ring: &impl Lines, state: PollState) {
        ring.store(POLL_STATE, state as u64, Ordering::Relaxed);
    }
}

#[cfg(test)]
#[path = "ring_tests.rs"]
mod tests;
