//! Two rings in a memfd that one engine creates and passes to another.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering, fence};

use super::mapping::SharedMapping;
use super::ring::{LINE_BYTES, Lines, RING_BYTES};
use crate::wire::frame_range::RING_SHORT_BYTES;

/// One ring in each direction.
pub(super) const RING_PAIR_BYTES: usize = 2 * RING_BYTES;

const WORD_BYTES: usize = size_of::<u64>();
const RING_WORDS: usize = RING_BYTES / WORD_BYTES;
const SHORT_WORDS: usize = RING_SHORT_BYTES / WORD_BYTES;

/// Two rings, mapped.
#[derive(Debug)]
pub(super) struct RingPair(SharedMapping<RING_PAIR_BYTES>);

impl RingPair {
    /// New rings, and the descriptor for the peer.
    pub(super) fn create() -> io::Result<(Self, OwnedFd)> {
        let (mapping, memory) = SharedMapping::create("ringrail-ring")?;
        Ok((Self(mapping), memory))
    }

    /// Rings that a peer created.
    ///
    /// # Errors
    ///
    /// As for [`SharedMapping::open`].
    pub(super) fn open(memory: BorrowedFd<'_>) -> io::Result<Self> {
        SharedMapping::open(memory).map(Self)
    }

    /// The same memory, mapped once more.
    #[cfg(test)]
    pub(super) fn again(&self) -> Self {
        Self(self.0.again())
    }

    /// Overwrites a word.
    #[cfg(test)]
    pub(super) fn corrupt_word(&self, word: usize, value: u64) {
        self.0.words()[word].store(value, Ordering::Relaxed);
    }

    /// The ring written by the creator of the memory (0), or by its peer (1).
    #[inline]
    pub(super) fn ring(&self, number: u8) -> Ring<'_> {
        debug_assert!(number < 2);
        let (rings, _) = self.0.words().as_chunks();
        Ring { words: &rings[usize::from(number & 1)] }
    }
}

/// One ring of a pair.
#[derive(Clone, Copy)]
pub(super) struct Ring<'a> {
    words: &'a [AtomicU64; RING_WORDS],
}

impl<'a> Ring<'a> {
    #[inline]
    fn word(&self, word: usize) -> &AtomicU64 {
        &self.words[word]
    }

    #[inline(always)]
    fn line(&self, line: usize) -> &[AtomicU64; LINE_BYTES / WORD_BYTES] {
        let (lines, _) = self.words.as_chunks();
        &lines[line]
    }

    /// The `count` words at `offset`, which is a word boundary, and those after them.
    #[inline]
    fn words(&self, offset: usize, count: usize) -> (&'a [AtomicU64], &'a [AtomicU64]) {
        debug_assert!(offset.is_multiple_of(WORD_BYTES));
        self.words[offset / WORD_BYTES..].split_at(count)
    }
}

impl Lines for Ring<'_> {
    #[inline]
    fn load(&self, word: usize, order: Ordering) -> u64 {
        self.word(word).load(order)
    }

    #[inline]
    fn store(&self, word: usize, value: u64, order: Ordering) {
        self.word(word).store(value, order);
    }

    #[inline(always)]
    fn write(&self, offset: usize, bytes: &[u8]) {
        let (whole, rest) = bytes.as_chunks();
        let (words, after) = self.words(offset, whole.len());
        write_words(words, whole);
        if !rest.is_empty() {
            let mut last = [0; WORD_BYTES];
            last[..rest.len()].copy_from_slice(rest);
            after[0].store(u64::from_ne_bytes(last), Ordering::Relaxed);
        }
    }

    #[inline(always)]
    fn read(&self, offset: usize, into: &mut [u8]) {
        let (whole, rest) = into.as_chunks_mut();
        let (words, after) = self.words(offset, whole.len());
        read_words(words, whole);
        if !rest.is_empty() {
            let last = after[0].load(Ordering::Relaxed).to_ne_bytes();
            let length = rest.len();
            rest.copy_from_slice(&last[..length]);
        }
    }

    #[inline(always)]
    fn write_line(&self, line: usize, bytes: &[u8; RING_SHORT_BYTES]) {
        let (words, _) = bytes.as_chunks();
        let [_, line @ ..] = self.line(line);
        // A loop over an index is unrolled.
        #[allow(clippy::needless_range_loop)]
        for at in 0..SHORT_WORDS {
            line[at].store(u64::from_ne_bytes(words[at]), Ordering::Relaxed);
        }
    }

    #[inline(always)]
    fn read_line(&self, line: usize, into: &mut [u8; RING_SHORT_BYTES]) {
        let (words, _) = into.as_chunks_mut();
        let [_, line @ ..] = self.line(line);
        for (word, bytes) in line.iter().zip(words) {
            *bytes = word.load(Ordering::Relaxed).to_ne_bytes();
        }
    }

    #[inline]
    fn fence(&self) {
        fence(Ordering::SeqCst);
    }
}

/// Number of words from which a string instruction copies faster than a loop of atomics, which
/// compilers do not vectorise.
#[cfg(target_arch = "x86_64")]
const STRING_WORDS: usize = 64;

/// Stores `bytes` in as many `words`, in any order, but before later stores.
#[inline(always)]
fn write_words(words: &[AtomicU64], bytes: &[[u8; WORD_BYTES]]) {
    #[cfg(target_arch = "x86_64")]
    if bytes.len() >= STRING_WORDS {
        return write_many(words, bytes);
    }
    for (word, bytes) in words.iter().zip(bytes) {
        word.store(u64::from_ne_bytes(*bytes), Ordering::Relaxed);
    }
}

#[cfg(target_arch = "x86_64")]
#[inline(never)]
fn write_many(words: &[AtomicU64], bytes: &[[u8; WORD_BYTES]]) {
    assert!(bytes.len() <= words.len());
    // SAFETY: `bytes` has as many words, and so has `words`, which are atomics and may be written
    // through a shared reference. The direction flag is clear, as ever.
    unsafe { copy_words(words.as_ptr().cast_mut().cast(), bytes.as_ptr().cast(), bytes.len()) };
}

/// The opposite; each word is loaded once, before later loads.
#[inline(always)]
fn read_words(words: &[AtomicU64], bytes: &mut [[u8; WORD_BYTES]]) {
    #[cfg(target_arch = "x86_64")]
    if bytes.len() >= STRING_WORDS {
        return read_many(words, bytes);
    }
    for (word, bytes) in words.iter().zip(bytes) {
        *bytes = word.load(Ordering::Relaxed).to_ne_bytes();
    }
}

#[cfg(target_arch = "x86_64")]
#[inline(never)]
fn read_many(words: &[AtomicU64], bytes: &mut [[u8; WORD_BYTES]]) {
    assert!(bytes.len() <= words.len());
    // SAFETY: as in `write_many`; `bytes` is this function's own for the time.
    unsafe { copy_words(bytes.as_mut_ptr().cast(), words.as_ptr().cast(), bytes.len()) };
}

/// Copies `count` words. One of the sides may be memory that another process changes meanwhile: the
/// compiler cannot look into the asm block, and the processor copies the values present at the
/// time. Its stores may be reordered among themselves, but not with later ones (Intel SDM volume 3,
/// 10.2.4; AMD APM volume 2, 7.1.2).
///
/// # Safety
///
/// Both ranges are mapped for `count` words and do not overlap; `to` is writable.
#[cfg(target_arch = "x86_64")]
#[inline]
unsafe fn copy_words(to: *mut u64, from: *const u64, count: usize) {
    // SAFETY: by the caller's contract only these words are written. No other register changes, nor
    // flags, nor the stack.
    unsafe {
        std::arch::asm!(
            "rep movsq",
            inout("rcx") count => _,
            inout("rdi") to => _,
            inout("rsi") from => _,
            options(nostack, preserves_flags),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::super::ring::{DATAGRAM_MAX, EntryKind, Reader, Writer};
    use super::*;

    use std::os::fd::AsFd;
    use std::time::{Duration, Instant};

    use rustix::fs::{MemfdFlags, SealFlags};

    const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);

    /// Bytes that differ from word to word.
    fn content(length: usize) -> impl Iterator<Item = u8> {
        (0..length).map(move |at| (at ^ (at >> 8) ^ length) as u8)
    }

    #[test]
    fn mappings_share_their_content() {
        let (ours, memory) = RingPair::create().unwrap();
        let theirs = RingPair::open(memory.as_fd()).unwrap();
        let reading = std::thread::spawn(move || {
            let (mut reader, mut into) = (Reader::new(), vec![0; DATAGRAM_MAX]);
            for length in 0..=DATAGRAM_MAX {
                let start = Instant::now();
                let (entry, got) = loop {
                    assert!(
                        start.elapsed() < Duration::from_secs(60),
                        "{length} bytes did not arrive"
                    );
                    match reader.read(&theirs.ring(0), &mut into).unwrap() {
                        Some((entry, got)) => break (entry, got),
                        None => std::thread::yield_now(),
                    }
                };
                assert_eq!((entry, got), (EntryKind::Segment, length));
                assert!(into[..got].iter().copied().eq(content(length)), "{length}");
            }
        });
        let mut writer = Writer::new();
        for length in 0..=DATAGRAM_MAX {
            let datagram: Vec<u8> = content(length).collect();
            while writer.write(&ours.ring(0), EntryKind::Segment, &datagram) == Ok(false) {
                std::thread::yield_now();
            }
        }
        reading.join().unwrap();
    }

    /// RR-SHM-3
    #[test]
    fn unsealed_or_resized_memory_is_refused() {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let memory = |bytes: usize, seals: SealFlags| {
            let memory = rustix::fs::memfd_create("ringrail-test", flags).unwrap();
            rustix::fs::ftruncate(&memory, bytes as u64).unwrap();
            rustix::fs::fcntl_add_seals(&memory, seals).unwrap();
            memory
        };
        assert!(RingPair::open(memory(RING_PAIR_BYTES, SEALS).as_fd()).is_ok());
        for (bytes, seals) in [
            (RING_PAIR_BYTES, SealFlags::empty()),
            (RING_PAIR_BYTES, SealFlags::GROW),
            (RING_PAIR_BYTES, SealFlags::SHRINK),
            (RING_PAIR_BYTES - 1, SEALS),
            (RING_PAIR_BYTES + 4096, SEALS),
            (0, SEALS),
            // Nothing can be written there.
            (RING_PAIR_BYTES, SEALS | SealFlags::WRITE),
        ] {
            assert!(RingPair::open(memory(bytes, seals).as_fd()).is_err(), "{bytes} {seals:?}");
        }
        let file = tempfile::tempfile().unwrap();
        file.set_len(RING_PAIR_BYTES as u64).unwrap();
        assert!(RingPair::open(file.as_fd()).is_err());
        assert!(RingPair::open(io::stdin().as_fd()).is_err());
    }
}
