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

use super::super::Session;
use super::outgoing::Asks;
use super::segment::{Place, SegmentPool};
use super::slots::SegmentSlots;
use super::{SegmentId, Segments};
use crate::proto::context::Cx;
use crate::wire::FrameRange;
use crate::wire::segment::SEGMENT_HEADER_BYTES;

/// A segment to write into a ring.
#[derive(Debug)]
pub(crate) struct OutgoingByRing<'a> {
    slots: &'a mut SegmentSlots,
    pool: &'a mut SegmentPool,
    /// The segment, if it has no frames.
    update: &'a [u8],
    token: u64,
    /// It goes without a header, and the ring keeps it.
    is_bare: bool,
}

impl OutgoingByRing<'_> {
    /// Returns what identifies it if it is refused.
    pub(crate) fn token(&self) -> u64 {
        self.token
    }

    /// Returns the numbers of its frames, if it goes without a header; and its bytes.
    pub(crate) fn content(&self) -> (Option<FrameRange>, &[u8]) {
        match self.slots.get(SegmentId::from_token(self.token)) {
            Some(segment) if self.is_bare => (Some(segment.range()), segment.content()),
            Some(segment) => (None, segment.whole()),
            None => (None, self.update),
        }
    }

    /// Notes that it was written: without a header, its ring keeps it from now on.
    pub(crate) fn note_written(self) {
        if self.is_bare
            && let Some(segment) = self.slots.keep(SegmentId::from_token(self.token))
        {
            self.pool.recycle(segment);
        }
    }
}

impl Segments {
    /// Returns how many bytes of frames may share a slot while a ring keeps them: what a datagram
    /// takes, if the ring ends.
    #[inline(always)]
    pub(super) fn kept_bytes_max(&self) -> usize {
        self.segment_bytes.min(self.path_bytes as usize) - SEGMENT_HEADER_BYTES
    }

    /// Returns whether the next segment to a ring has a header, for what it announces.
    #[inline(always)]
    pub(super) fn has_header_by_ring(&self) -> bool {
        self.ack_awaited || self.has_update() || self.received.pending_ack().is_carried()
    }
}

impl Session {
    /// Returns its next segment for its ring, at most `room_bytes` long. `None`: there is nothing
    /// to send. [`OutgoingByRing::note_written`] or [`Self::handle_segment_refused`] follows.
    ///
    /// RR-SHM-8.
    pub(crate) fn poll_for_ring<'a>(
        &'a mut self,
        mut cx: Cx<'a>,
        room_bytes: usize,
    ) -> Option<OutgoingByRing<'a>> {
        let next = self.next_segment(&mut cx, room_bytes)?;
        let segments = &mut self.segments;
        let has_header = segments.has_header_by_ring();
        let bare = next.filter(|&id| {
            !has_header && segments.slots.get(id).is_some_and(|it| it.operations.is_empty())
        });
        let token = match bare {
            Some(id) => {
                segments.slots.at_mut(id)?.place = Place::Flying;
                id.to_token()
            }
            None => segments.seal_next(&cx.shared.pool, next, false, Asks::WhenAwaited)?.token,
        };
        let (slots, update) = (&mut segments.slots, &segments.header_only[..]);
        let is_bare = bare.is_some();
        Some(OutgoingByRing { slots, pool: &mut cx.shared.pool, update, token, is_bare })
    }
}
