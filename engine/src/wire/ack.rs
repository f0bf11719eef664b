//! The acknowledgement that a packet may carry.
//!
//! ```text
//!  0                                   4                 6        7        8
//! +-----------------------------------+-----------------+--------+--------+
//! | cumulative, low 32 bits           | delay, 256 ns   | windows| zero   |
//! +-----------------------------------+-----------------+--------+--------+
//! for each window
//! +-----------------+--------+--------+
//! | first word      | words  | zero   |
//! +-----------------+--------+--------+-----------------------------------+
//! | word: 64 numbers, the lowest bit is a multiple of 64                  |
//! +-----------------------------------------------------------------------+
//! ```
//!
//! All numbers below the cumulative one arrived, or were below the peer's floor. Of those above, a
//! set bit means that a number arrived; a clear one, or none, has no meaning. A window's first word
//! counts from the word that holds the cumulative number. The delay is how long the highest number
//! that wants an answer waited for this one; all ones: too long to encode, or the number came in a
//! way that has no round trip of the path.
//!
//! # What the windows cover
//!
//! On 10 Gb/s x 200 ms, 250 MB or 178 600 packets of 1400 B (27 800 of 9000 B) are under way. A
//! loss is known after 9/8 round trips, remembered half a round trip for the case that the packet
//! was only late, and the floor that shows it is back after another: 2.6 round trips, 469 000
//! numbers, may lie between the cumulative number and the highest. [`NUMBERS_MAX`] is the next
//! power of two. A bitmap of all that has 64 KiB and fits no packet, and need not: each
//! acknowledgement has the *newest* numbers, at least 256 and all since the one before (up to
//! 1024). With one acknowledgement per 16 packets each bit is sent 16 times before it leaves the
//! window. A second window, the *sweep*, of up to 512 numbers goes round the rest, so that
//! acknowledgements that an outage swallowed are repeated: 16 ms for all of the above. On a LAN (10
//! Gb/s x 100 µs is 90 packets) the first window covers everything.

use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::packet::PacketError;

/// Most numbers from a receiver's cumulative number to the highest it accepts. See the module.
pub(crate) const NUMBERS_MAX: u64 = 1 << 19;
/// Most windows of one acknowledgement: the newest numbers, and the sweep.
pub(crate) const WINDOWS_MAX: usize = 2;
/// Most words of the window of the newest numbers.
pub(crate) const NEWEST_WORDS_MAX: usize = 16;
/// Most words of the sweep.
pub(crate) const SWEEP_WORDS_MAX: usize = 8;
/// Length of an acknowledgement's fixed part, in bytes.
pub(crate) const ACK_HEADER_BYTES: usize = 8;
/// Length of a window's header, in bytes.
pub(crate) const WINDOW_HEADER_BYTES: usize = 4;
/// The longest acknowledgement, in bytes.
pub(crate) const ACK_BYTES_MAX: usize =
    ACK_HEADER_BYTES + WINDOWS_MAX * WINDOW_HEADER_BYTES + (NEWEST_WORDS_MAX + SWEEP_WORDS_MAX) * 8;
/// Unit of the delay, in nanoseconds: 16 bits reach 16.7 ms.
pub(crate) const DELAY_UNIT_NS: u64 = 256;

/// The fixed part of the drawing above.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct AckHeader {
    pub(crate) cumulative: U32,
    pub(crate) delay: U16,
    pub(crate) windows: u8,
    pub(crate) zero: u8,
}

/// The header of a window.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct WindowHeader {
    pub(crate) first_word: U16,
    pub(crate) words: u8,
    pub(crate) zero: u8,
}

const _: () = assert!(size_of::<AckHeader>() == ACK_HEADER_BYTES);
const _: () = assert!(size_of::<WindowHeader>() == WINDOW_HEADER_BYTES);
const _: () = assert!(NUMBERS_MAX / 64 + 1 < u16::MAX as u64);

/// An acknowledgement, borrowed from a packet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ack<'a> {
    header: &'a AckHeader,
    windows: &'a [u8],
}

impl<'a> Ack<'a> {
    /// Takes an acknowledgement off the front of `bytes`; what follows it comes back too.
    #[inline(always)]
    pub(crate) fn decode(bytes: &'a [u8]) -> Result<(Self, &'a [u8]), PacketError> {
        let truncated = PacketError::Truncated(bytes.len());
        let (header, windows) = AckHeader::ref_from_prefix(bytes).map_err(|_| truncated)?;
        if usize::from(header.windows) > WINDOWS_MAX {
            return Err(PacketError::BadAck { windows: header.windows, words: 0 });
        }
        let mut rest = windows;
        for _ in 0..header.windows {
            let (window, after) = WindowHeader::ref_from_prefix(rest).map_err(|_| truncated)?;
            if window.words == 0 || usize::from(window.words) > NEWEST_WORDS_MAX {
                let (windows, words) = (header.windows, window.words);
                return Err(PacketError::BadAck { windows, words });
            }
            rest = after.get(usize::from(window.words) * 8..).ok_or(truncated)?;
        }
        let windows = &windows[..windows.len() - rest.len()];
        Ok((Self { header, windows }, rest))
    }

    /// Low 32 bits of the cumulative number.
    pub(crate) fn cumulative(&self) -> u32 {
        self.header.cumulative.get()
    }

    /// Returns how long the highest number waited for this, in nanoseconds, if that is known.
    pub(crate) fn delay_ns(&self) -> Option<u64> {
        let delay = Some(self.header.delay.get()).filter(|&delay| delay != u16::MAX);
        delay.map(|delay| u64::from(delay) * DELAY_UNIT_NS)
    }

    /// Whether it acknowledges only that all numbers below one have come.
    pub(crate) fn is_cumulative(&self) -> bool {
        self.windows.is_empty()
    }

    /// All words: how many words after the one of the cumulative number, and the bits.
    pub(crate) fn words(&self) -> Words<'a> {
        Words { rest: self.windows, word: 0, left: 0 }
    }
}

/// Iterates over [`Ack::words`].
#[derive(Clone, Debug)]
pub(crate) struct Words<'a> {
    rest: &'a [u8],
    word: u64,
    left: u8,
}

impl Words<'_> {
    /// No words.
    pub(crate) fn none() -> Self {
        Words { rest: &[], word: 0, left: 0 }
    }
}

impl Iterator for Words<'_> {
    type Item = (u64, u64);

    #[inline]
    fn next(&mut self) -> Option<(u64, u64)> {
        if self.left == 0 {
            let (window, rest) = WindowHeader::ref_from_prefix(self.rest).ok()?;
            (self.word, self.left) = (u64::from(window.first_word.get()), window.words);
            self.rest = rest;
        }
        let (bits, rest) = U64::read_from_prefix(self.rest).ok()?;
        let item = (self.word, bits.get());
        self.rest = rest;
        self.word += 1;
        self.left -= 1;
        Some(item)
    }
}

/// Writes an acknowledgement; the caller has [`ACK_BYTES_MAX`] of room.
#[derive(Debug)]
pub(crate) struct AckWriter<'a> {
    out: &'a mut [u8],
    used: usize,
}

impl<'a> AckWriter<'a> {
    /// Starts one. `out` holds [`ACK_BYTES_MAX`] bytes at least.
    pub(crate) fn new(out: &'a mut [u8], cumulative: u64, delay_ns: u64) -> Self {
        debug_assert!(out.len() >= ACK_BYTES_MAX, "the caller reserves the longest one");
        let delay = u16::try_from(delay_ns / DELAY_UNIT_NS).unwrap_or(u16::MAX);
        let header = AckHeader {
            cumulative: (cumulative as u32).into(),
            delay: delay.into(),
            windows: 0,
            zero: 0,
        };
        out[..ACK_HEADER_BYTES].copy_from_slice(header.as_bytes());
        Self { out, used: ACK_HEADER_BYTES }
    }

    /// Adds a window. `first_word` counts from the cumulative number's word.
    pub(crate) fn window(&mut self, first_word: u64, words: impl ExactSizeIterator<Item = u64>) {
        debug_assert!(
            words.len() > 0 && words.len() <= NEWEST_WORDS_MAX,
            "1 to NEWEST_WORDS_MAX words"
        );
        let header = WindowHeader {
            first_word: (first_word as u16).into(),
            words: words.len() as u8,
            zero: 0,
        };
        self.put(header.as_bytes());
        for word in words {
            self.put(&word.to_le_bytes());
        }
        // The count is at offset 6 of the fixed part.
        self.out[6] += 1;
    }

    /// The length, in bytes.
    pub(crate) fn finish(self) -> usize {
        self.used
    }

    fn put(&mut self, bytes: &[u8]) {
        self.out[self.used..self.used + bytes.len()].copy_from_slice(bytes);
        self.used += bytes.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_acknowledgement_comes_back() {
        let mut out = [0; ACK_BYTES_MAX + 3];
        let mut writer = AckWriter::new(&mut out, 1 << 33 | 70, 1000);
        writer.window(5, [1, 2].into_iter());
        writer.window(0, [u64::MAX].into_iter());
        let used = writer.finish();
        assert_eq!(used, 8 + 4 + 16 + 4 + 8);
        let (ack, rest) = Ack::decode(&out).unwrap();
        assert_eq!(rest.len(), out.len() - used);
        assert_eq!((ack.cumulative(), ack.delay_ns()), (70, Some(768)));
        assert_eq!(ack.words().collect::<Vec<_>>(), [(5, 1), (6, 2), (0, u64::MAX)]);
    }

    #[test]
    fn the_longest_one_fits_and_a_cut_one_is_refused() {
        let mut out = [0; ACK_BYTES_MAX];
        let mut writer = AckWriter::new(&mut out, 0, u64::MAX);
        writer.window(0, [3; NEWEST_WORDS_MAX].into_iter());
        writer.window(0, [3; SWEEP_WORDS_MAX].into_iter());
        assert_eq!(writer.finish(), ACK_BYTES_MAX);
        assert_eq!(Ack::decode(&out).unwrap().0.words().count(), 24);
        for cut in 0..out.len() {
            let error = Ack::decode(&out[..cut]).unwrap_err();
            assert!(matches!(error, PacketError::Truncated(_)), "{cut}: {error}");
        }
        out[6] = 3;
        let error = Ack::decode(&out).unwrap_err();
        assert_eq!(error, PacketError::BadAck { windows: 3, words: 0 });
        out[6] = 1;
        out[10] = 17;
        let error = Ack::decode(&out).unwrap_err();
        assert_eq!(error, PacketError::BadAck { windows: 1, words: 17 });
    }
}
