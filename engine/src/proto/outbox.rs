//! The bytes that a session is about to send: frames coalesce in one staging buffer.
//!
//! ```text
//!  0          sent          open                    end            capacity
//!  |  sent    |  sealed      |  header, frames, ...  |   room       |
//! ```
//!
//! With checksums, that of the open segment is updated with each frame: the payload of a message is
//! read from the user's memory, not from the copy here.

use std::ops::Range;

use aligned_vec::{AVec, ConstAlign};
use zerocopy::IntoBytes;

use crate::wire::SEGMENT_BYTES_MAX;
use crate::wire::rts::RTS_HEADER_BYTES;
use crate::wire::segment::{
    FLAG_CHECKSUM, SEGMENT_HEADER_BYTES, SEGMENT_SUMS_BYTES, SegmentHeader, SegmentSums,
};

/// A staging buffer, on cache lines of its own.
pub(crate) type Staging = AVec<u8, ConstAlign<64>>;

/// Space that only control frames may use, so that they never wait for messages.
pub(crate) const CONTROL_RESERVE_BYTES: usize = 4096;

/// A bounded pool of staging buffers; a session holds one only while it has bytes to send.
#[derive(Debug)]
pub(crate) struct StagingPool {
    idle: Vec<Staging>,
    buffer_bytes: usize,
    made: usize,
    limit: usize,
}

impl StagingPool {
    /// Creates a pool of at most `limit` buffers of `buffer_bytes` each.
    pub(crate) fn new(buffer_bytes: usize, limit: usize) -> Self {
        let buffer_bytes = buffer_bytes.clamp(2 * CONTROL_RESERVE_BYTES, SEGMENT_BYTES_MAX);
        Self { idle: Vec::new(), buffer_bytes, made: 0, limit: limit.max(1) }
    }

    pub(super) fn take(&mut self) -> Option<Staging> {
        if let Some(buffer) = self.idle.pop() {
            return Some(buffer);
        }
        if self.made == self.limit {
            return None;
        }
        self.made += 1;
        let mut buffer = AVec::with_capacity(64, self.buffer_bytes);
        buffer.resize(self.buffer_bytes, 0);
        Some(buffer)
    }

    /// Returns the longest payload that fits a message frame of any kind, in bytes.
    pub(super) fn payload_bytes_max(&self) -> usize {
        let head = SEGMENT_HEADER_BYTES + SEGMENT_SUMS_BYTES + RTS_HEADER_BYTES;
        self.buffer_bytes - CONTROL_RESERVE_BYTES - head
    }

    fn has_buffer(&self) -> bool {
        !self.idle.is_empty() || self.made < self.limit
    }

    /// Takes a buffer back.
    pub(crate) fn give(&mut self, buffer: Staging) {
        self.idle.push(buffer);
    }

    /// Returns the bytes of all buffers that may be allocated.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn bound_bytes(&self) -> usize {
        self.limit * self.buffer_bytes
    }

    /// Returns whether a session holds one of the buffers.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn is_missing_any(&self) -> bool {
        self.idle.len() != self.made
    }

    /// Returns the bytes of all buffers allocated so far.
    pub(crate) fn allocated_bytes(&self) -> usize {
        self.made * self.buffer_bytes
    }
}

/// Outgoing bytes; see the module.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    buffer: Option<Staging>,
    sent: usize,
    open: Option<usize>,
    end: usize,
    frames: u16,
    has_checksums: bool,
    /// CRC32C of the frames of the open segment.
    checksum: u32,
}

impl Outbox {
    /// Sets whether segments get checksums from now on. No segment is open.
    pub(crate) fn use_checksums(&mut self, wanted: bool) {
        debug_assert!(self.is_empty(), "a session begins with nothing to send");
        (self.has_checksums, self.checksum) = (wanted, 0);
    }

    /// Returns whether segments have checksums: all bytes of all frames go through
    /// [`Self::add_to_sum`].
    #[inline]
    pub(crate) fn has_checksums(&self) -> bool {
        self.has_checksums
    }

    /// Adds the next bytes of the newest frame to the checksum. `sum` continues the CRC32C of the
    /// preceding bytes with them.
    #[inline]
    pub(crate) fn add_to_sum(&mut self, sum: impl FnOnce(u32) -> u32) {
        self.checksum = sum(self.checksum);
    }

    /// Returns the bytes before the frames of a segment.
    #[inline]
    fn head_bytes(&self) -> usize {
        if self.has_checksums {
            SEGMENT_HEADER_BYTES + SEGMENT_SUMS_BYTES
        } else {
            SEGMENT_HEADER_BYTES
        }
    }

    /// Returns whether there is nothing to send, sealed or not.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.sent == self.end
    }

    /// Returns whether frames wait in a segment that is not sealed yet.
    #[inline]
    pub(crate) fn has_open_segment(&self) -> bool {
        self.open.is_some()
    }

    /// Returns whether [`Self::push`] of a message frame of `length` bytes would find space.
    pub(crate) fn has_room(&self, pool: &StagingPool, length: usize) -> bool {
        let header = if self.open.is_none() { self.head_bytes() } else { 0 };
        let Some(buffer) = &self.buffer else {
            return pool.has_buffer()
                && header + length <= pool.buffer_bytes - CONTROL_RESERVE_BYTES;
        };
        self.end + header + length <= buffer.len() - CONTROL_RESERVE_BYTES && self.frames < u16::MAX
    }

    /// Returns the number of frames in the segment that is not sealed yet.
    #[inline]
    pub(crate) fn open_frames(&self) -> u16 {
        self.frames
    }

    /// Reserves one more frame of `length` bytes, or returns `None` until bytes have been sent (or
    /// another session returns a buffer). Messages leave the reserve to control frames.
    #[inline]
    pub(crate) fn push(
        &mut self,
        pool: &mut StagingPool,
        length: usize,
        is_control: bool,
    ) -> Option<&mut [u8]> {
        if self.buffer.is_none() {
            // Other sessions hold them all.
            if is_control && rare!("no buffer to stage a control frame in", 20) {
                return None;
            }
            self.buffer = Some(pool.take()?);
        }
        let header = if self.open.is_none() { self.head_bytes() } else { 0 };
        let reserve = if is_control { 0 } else { CONTROL_RESERVE_BYTES };
        let limit = pool.buffer_bytes - reserve;
        if self.end + header + length > limit || self.frames == u16::MAX {
            if self.sent == self.end {
                self.release(pool);
            }
            return None;
        }
        if header != 0 {
            self.open = Some(self.end);
            self.end += header;
        }
        let start = self.end;
        self.end += length;
        self.frames += 1;
        self.buffer.as_mut().map(|buffer| &mut buffer[start..start + length])
    }

    /// Opens a segment without frames, to carry an acknowledgement. Returns `false` if there is no
    /// space now.
    pub(crate) fn push_empty(&mut self, pool: &mut StagingPool) -> bool {
        if self.open.is_some() {
            return true;
        }
        if self.buffer.is_none() {
            self.buffer = pool.take();
        }
        let Some(buffer) = self.buffer.as_ref() else { return false };
        let header = self.head_bytes();
        if self.end + header > buffer.len() {
            return false;
        }
        self.open = Some(self.end);
        self.end += header;
        true
    }

    /// Returns the last `length` bytes of the frame that was pushed last, to be written.
    pub(crate) fn newest(&mut self, length: usize) -> &mut [u8] {
        let end = self.end;
        self.buffer.as_mut().map_or(&mut [], |buffer| &mut buffer[end - length..end])
    }

    /// Completes the open segment, if there is one. Sets `header.length`, `header.frames` and the
    /// checksums.
    ///
    /// RR-SUM-2.
    #[inline]
    pub(crate) fn seal(&mut self, mut header: SegmentHeader) {
        let (Some(open), Some(buffer)) = (self.open.take(), self.buffer.as_mut()) else { return };
        header.length = ((self.end - open) as u32).into();
        header.frames = self.frames.into();
        self.frames = 0;
        if self.has_checksums {
            header.flags |= FLAG_CHECKSUM;
            let frames = std::mem::take(&mut self.checksum);
            let sums = SegmentSums::new(&header, frames);
            buffer[open + SEGMENT_HEADER_BYTES..][..SEGMENT_SUMS_BYTES]
                .copy_from_slice(sums.as_bytes());
        }
        buffer[open..open + SEGMENT_HEADER_BYTES].copy_from_slice(header.as_bytes());
    }

    /// Returns the sealed bytes that are not sent yet.
    #[inline]
    pub(crate) fn pending(&self) -> &[u8] {
        let end = self.open.unwrap_or(self.end);
        self.buffer.as_ref().map_or(&[], |buffer| &buffer[self.sent..end])
    }

    /// Takes the buffer with the range of [`Self::pending`], which is sent with that; `None`:
    /// nothing is pending, or a segment is open. Return it to the pool.
    pub(crate) fn take_sealed(&mut self) -> Option<(Staging, Range<usize>)> {
        if self.open.is_some() || self.is_empty() {
            return None;
        }
        let sealed = self.sent..self.end;
        let buffer = self.buffer.take()?;
        (self.sent, self.end) = (0, 0);
        Some((buffer, sealed))
    }

    /// Notes that `count` bytes of [`Self::pending`] were sent.
    #[inline]
    pub(crate) fn advance(&mut self, pool: &mut StagingPool, count: usize) {
        self.sent += count;
        debug_assert!(self.sent <= self.end, "only pending bytes are sent");
        if self.sent == self.end {
            self.release(pool);
        }
    }

    /// Drops everything.
    pub(crate) fn clear(&mut self, pool: &mut StagingPool) {
        self.release(pool);
    }

    #[inline]
    fn release(&mut self, pool: &mut StagingPool) {
        if let Some(buffer) = self.buffer.take() {
            pool.give(buffer);
        }
        (self.sent, self.end, self.open, self.frames) = (0, 0, None, 0);
        self.checksum = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::super::session::Session;
    use super::*;
    use crate::wire::FrameError;
    use zerocopy::FromBytes;

    fn header(first: u32) -> SegmentHeader {
        SegmentHeader {
            length: 0.into(),
            frames: 0.into(),
            flags: 0.into(),
            first_frame: first.into(),
            ack: 0.into(),
            envelope_limit: 0.into(),
            byte_limit: 0.into(),
        }
    }

    #[test]
    fn frames_coalesce_and_partial_sends_resume() {
        let mut pool = StagingPool::new(SEGMENT_BYTES_MAX, 1);
        let mut outbox = Outbox::default();
        outbox.push(&mut pool, 3, false).unwrap().copy_from_slice(b"abc");
        outbox.push(&mut pool, 2, false).unwrap().copy_from_slice(b"de");
        assert!(outbox.pending().is_empty());
        outbox.seal(header(7));
        let pending = outbox.pending().to_vec();
        let (read, body) = SegmentHeader::ref_from_prefix(&pending).unwrap();
        assert_eq!((read.length.get(), read.frames.get()), (29, 2));
        assert_eq!(body, b"abcde");
        outbox.advance(&mut pool, 10);
        outbox.push(&mut pool, 1, false).unwrap()[0] = b'f';
        assert_eq!(outbox.pending(), &pending[10..]);
        outbox.advance(&mut pool, 19);
        assert!(!outbox.is_empty());
        outbox.seal(header(9));
        assert_eq!(outbox.pending().len(), 25);
        outbox.advance(&mut pool, 25);
        assert!(outbox.is_empty());
        assert_eq!(pool.idle.len(), 1);
    }

    /// RR-CREDIT-3
    #[test]
    fn messages_leave_space_for_control_frames() {
        let mut pool = StagingPool::new(2 * CONTROL_RESERVE_BYTES, 1);
        let mut outbox = Outbox::default();
        while outbox.push(&mut pool, 100, false).is_some() {}
        assert!(outbox.push(&mut pool, 100, true).is_some());
        let mut other = Outbox::default();
        assert!(other.push(&mut pool, 1, true).is_none());
        assert!(!other.push_empty(&mut pool));
    }

    /// RR-SUM-2, RR-SUM-3
    #[test]
    fn checksums_detect_any_changed_bit() {
        let mut pool = StagingPool::new(SEGMENT_BYTES_MAX, 1);
        let mut outbox = Outbox::default();
        outbox.use_checksums(true);
        for frame in [&b"abc"[..], b"", b"defgh"] {
            outbox.push(&mut pool, frame.len(), false).unwrap().copy_from_slice(frame);
            outbox.add_to_sum(|sum| crc32c::crc32c_append(sum, frame));
        }
        outbox.seal(header(7));
        let mut bytes = outbox.pending().to_vec();
        assert_eq!(bytes.len(), SEGMENT_HEADER_BYTES + SEGMENT_SUMS_BYTES + 8);
        let (read, body, length) = Session::split_checked(&bytes).unwrap().unwrap();
        assert_eq!((read.frames.get(), body, length), (3, &b"abcdefgh"[..], bytes.len()));
        for length in 0..bytes.len() {
            assert_eq!(
                Session::split_checked(&bytes[..length]).map(|whole| whole.is_some()),
                Ok(false)
            );
        }
        for bit in 0..8 * bytes.len() {
            bytes[bit / 8] ^= 1 << (bit % 8);
            let split = Session::split_checked(&bytes);
            assert!(matches!(split, Err(FrameError::Corrupted { .. })), "bit {bit}: {split:?}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        // Segments staged next have checksums of their own, also without frames.
        outbox.advance(&mut pool, bytes.len());
        assert!(outbox.push_empty(&mut pool));
        outbox.seal(header(10));
        let (_, body, _) = Session::split_checked(outbox.pending()).unwrap().unwrap();
        assert!(body.is_empty());
        // Without checksums the fields are zero.
        outbox.clear(&mut pool);
        outbox.use_checksums(false);
        assert!(outbox.push_empty(&mut pool));
        outbox.seal(header(10));
        assert_eq!(outbox.pending().len(), SEGMENT_HEADER_BYTES);
    }
}
