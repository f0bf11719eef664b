//! Segments that a ring in shared memory carries and keeps.
//!
//! A ring loses nothing, and what its reader has not taken is still in it. So a segment goes there
//! without a header, and its buffer is free as soon as it is written: only the numbers of its
//! frames stay, in its slot ([`KeptSegment`](super::slots::KeptSegment)), until they are
//! acknowledged. If the ring ends before, the driver returns what is left in it, which gets buffers
//! again and is sent by another transport; the peer takes each frame once. A segment has a header,
//! and keeps its buffer, where it announces something, or a send waits for its acknowledgement.
//!
//! RR-SHM-8.

use super::super::context::Cx;
use super::super::session::Session;
use super::outgoing::Asks;
use super::segment::Place;
use super::window::is_before;
use super::{SegmentId, Segments};
use crate::wire::{FrameRange, KeptFrames};

/// A segment to write into a ring.
#[derive(Debug)]
pub(crate) struct OutgoingByRing<'a> {
    /// Identifies it until it is written, or refused.
    pub(crate) token: u64,
    /// The numbers of its frames, if it goes without a header, and the ring keeps it.
    pub(crate) frames: Option<FrameRange>,
    /// Its bytes.
    pub(crate) bytes: &'a [u8],
}

impl Segments {
    /// Returns whether the next segment to a ring has a header, for what it announces.
    #[inline(always)]
    pub(super) fn has_header_by_ring(&self) -> bool {
        self.ack_awaited || self.has_update() || self.received.pending_ack().is_carried()
    }

    /// Notes a frame of `bytes` that a ring keeps.
    #[inline(always)]
    pub(super) fn push_kept(&mut self, frame: u32, bytes: usize) {
        let bytes_max = self.frame_bytes_max();
        self.slots.push_kept(frame, bytes, bytes_max);
    }
}

impl Session {
    /// Returns its next segment for its ring, at most `room_bytes` long. `None`: there is nothing
    /// to send. [`Self::handle_written`] or [`Self::handle_segment_refused`] follows.
    ///
    /// RR-SHM-8.
    pub(crate) fn poll_for_ring<'a>(
        &'a mut self,
        mut cx: Cx<'a>,
        room_bytes: usize,
    ) -> Option<OutgoingByRing<'a>> {
        let next = self.next_segment(&mut cx, room_bytes)?;
        let goes_bare = |id| {
            let segment = self.segments.slots.get(id)?;
            segment.operations.is_empty().then_some(id)
        };
        if let Some(id) = next.and_then(goes_bare)
            && !self.segments.has_header_by_ring()
        {
            let segment = self.segments.slots.get_mut(id)?;
            segment.place = Place::Flying;
            let (token, frames) = (id.to_token(), Some(segment.range()));
            return Some(OutgoingByRing { token, frames, bytes: segment.content() });
        }
        let segment = self.segments.seal_next(&cx.shared.pool, next, false, Asks::WhenAwaited)?;
        Some(OutgoingByRing { token: segment.token, frames: None, bytes: segment.bytes })
    }

    /// Handles a segment without a header that was written into the ring, which keeps it from now
    /// on.
    pub(crate) fn handle_written(&mut self, cx: Cx<'_>, token: u64) {
        if let Some(segment) = self.segments.slots.keep(SegmentId::from_token(token)) {
            cx.shared.pool.recycle(segment);
        }
    }

    /// Gives buffers to the segments that a ring kept, which has ended, of what its reader has not
    /// reported as read; the others have arrived. Returns `false` if the peer has overwritten it.
    ///
    /// RR-SHM-8.
    #[must_use]
    pub(super) fn restore_kept(&mut self, cx: &mut Cx<'_>, unread: &[KeptFrames]) -> bool {
        let mut is_intact = true;
        for id in self.segments.slots.ids() {
            let Some(kept) = self.segments.slots.get_kept(id) else { continue };
            // What it kept was written in the order of these frames, and is read in that order.
            let mut left = unread.iter().filter(|it| {
                is_before(kept.range.first, it.range.end())
                    && !is_before(kept.range.end(), it.range.end())
            });
            let Some(first) = left.next().filter(|_| !planted!(DropKept)) else {
                self.segments.slots.take(id);
                continue;
            };
            let mut segment = cx.shared.pool.take_short(first.range.first);
            for KeptFrames { range, bytes } in std::iter::once(first).chain(left) {
                let is_next = range.first == segment.range().end();
                is_intact &= is_next && segment.fill_with(range.count, bytes);
            }
            is_intact &= segment.range().end() == kept.range.end();
            if !is_intact {
                cx.shared.pool.recycle(segment);
                break;
            }
            segment.place = Place::Flying;
            segment.completes_unacked = kept.completes_unacked;
            self.segments.slots.restore(id, segment);
        }
        self.segments.advance_base();
        self.use_space(cx);
        is_intact
    }
}
