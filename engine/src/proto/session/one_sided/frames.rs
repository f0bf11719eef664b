//! Space for the frames of one-sided operations in the segments of a session.

use super::super::segments::segment::{LONG_PAYLOAD_BYTES, SegmentPool};
use super::super::segments::{PullMethod, SegmentId, Segments};
use crate::proto::config::Config;
use crate::proto::hint::Hint;

impl Segments {
    /// Returns the longest put, or reply to a get, that is sent with its header, in bytes: in one
    /// datagram, and at all.
    #[inline]
    pub(super) fn whole_max(&self, config: &Config, header: usize) -> (u64, u64) {
        let eager = u64::from(config.eager_limit).min(LONG_PAYLOAD_BYTES as u64);
        let short = (self.frame_bytes_max() - header) as u64;
        (short, if self.protocol().goes_by_stream() { eager.max(short) } else { short })
    }

    /// Returns whether the request of a pull of `length` bytes carries the address for CMA reads.
    pub(super) fn offers_source(&self, length: u64) -> bool {
        self.protocol().pull_method(length) == PullMethod::Memory
    }

    /// Reserves a frame of a one-sided operation: `pieces`, and `payload` bytes of space after
    /// them. Returns its segment; `None`: no space now.
    pub(super) fn push_one_sided(
        &mut self,
        pool: &mut SegmentPool,
        pieces: [&[u8]; 2],
        payload: usize,
        hint: Hint,
        is_long: bool,
    ) -> Option<SegmentId> {
        let head = pieces[0].len() + pieces[1].len();
        let length = head + payload;
        let id = self.push_for(pool, length, hint, is_long)?;
        let pushed = debug_assert_some!(self.segment_mut(id), "the segment was just pushed to");
        let room = pushed?.push(length);
        let (first, second) = room[..head].split_at_mut(pieces[0].len());
        first.copy_from_slice(pieces[0]);
        second.copy_from_slice(pieces[1]);
        Some(id)
    }
}
