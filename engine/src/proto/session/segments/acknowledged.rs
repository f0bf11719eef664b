//! Acknowledged segments: they return to the pool, and sends that depend on them complete.

use super::Segments;
use super::segment::{Place, SegmentBuffer};
use super::slots::{SegmentId, TakenSegment};
use super::uncommon::Uncommon;
use super::window::is_before;
use crate::proto::context::Cx;
use crate::proto::effects::{Effects, Ended};
use crate::proto::operation::{Operation, OperationState};
use crate::proto::ready::Work;
use crate::proto::session::Session;
use crate::wire::FrameRange;

impl Segments {
    /// Returns whether a peer that has received all frames before `ack` has those of `range`.
    /// Acknowledgements of frames that were never sent are ignored.
    #[inline]
    fn covers(&self, ack: u32, range: FrameRange) -> bool {
        (!is_before(ack, range.end()) || planted!(ReleaseUnacked))
            && !is_before(self.next_frame, ack)
    }

    /// Returns the oldest segment, if it was sent, and `ack` covers it.
    fn oldest_acked(&self, ack: u32) -> Option<SegmentId> {
        let was_sent = |it: &SegmentBuffer| matches!(it.place, Place::Flying | Place::Lost);
        let (range, segment) = self.slots.oldest()?;
        let is_acked = self.covers(ack, range) && segment.is_none_or(was_sent);
        is_acked.then(|| self.slots.oldest_id()).flatten()
    }

    /// Removes a sent segment; [`Session::end_segment`] ends it.
    pub(in crate::proto) fn take_segment(&mut self, id: SegmentId) -> Option<TakenSegment> {
        let was_lost = self.slots.get(id).filter(|segment| segment.place == Place::Lost);
        if let Some(is_long) = was_lost.map(|segment| segment.is_long) {
            // An earlier packet arrived; the lost one may have been the only one with current
            // credit.
            let queue = if is_long { &mut self.long } else { &mut self.lost };
            queue.unlink(&mut self.slots, id);
            if !planted!(LoseLimits) {
                self.note_update_due();
            }
        }
        let taken = self.slots.take(id)?;
        self.advance_base();
        if let TakenSegment::Buffer(segment) = &taken
            && segment.is_long
        {
            self.long_held -= 1;
            self.long_delivered += segment.bytes as u64;
        }
        Some(taken)
    }
}

impl Session {
    /// Handles an acknowledgement of the packet with this token.
    #[inline]
    pub(crate) fn handle_segment_acked(
        &mut self,
        mut cx: Cx<'_>,
        token: u64,
        effects: &mut impl Effects,
    ) {
        let id = SegmentId::from_token(token);
        let segment = self.segments.slots.get(id);
        let was_sent = segment.is_some_and(|it| matches!(it.place, Place::Flying | Place::Lost));
        if was_sent {
            self.release_segment(&mut cx, id, effects);
        }
    }

    /// Handles a cumulative acknowledgement: the peer has received all frames before `ack`.
    ///
    /// RR-SEG-3.
    #[inline]
    pub(super) fn handle_frame_ack(
        &mut self,
        cx: &mut Cx<'_>,
        ack: u32,
        effects: &mut impl Effects,
    ) {
        // Usually only memory is released.
        let is_plain = self.is_free_of(Uncommon::ACKNOWLEDGED)
            && !self.one_sided.has_ready()
            && shortcut!("acknowledged segments that only hold memory");
        let segments = &mut self.segments;
        loop {
            let Some((range, segment)) = segments.slots.oldest() else {
                segments.base = segments.next_frame;
                return;
            };
            segments.base = range.first;
            let is_plain = is_plain
                && segment.is_none_or(|it| {
                    it.place == Place::Flying && !it.is_long && it.operations.is_empty()
                });
            if !segments.covers(ack, range) {
                if !is_before(segments.next_frame, ack) && segments.slots.trim_oldest(ack) {
                    segments.base = ack;
                    if !is_plain {
                        self.resume_waiting(cx);
                    }
                }
                return;
            }
            if !is_plain {
                return self.release_acked(cx, ack, effects);
            }
            if let Some(TakenSegment::Buffer(segment)) = segments.slots.take_oldest() {
                cx.shared.pool.recycle_short(segment);
            }
        }
    }

    /// Completes [`Self::handle_frame_ack`] where sends or credit depend on the segments.
    #[inline(never)]
    fn release_acked(&mut self, cx: &mut Cx<'_>, ack: u32, effects: &mut impl Effects) {
        while let Some(id) = self.segments.oldest_acked(ack) {
            self.release_segment(cx, id, effects);
        }
        if !is_before(self.segments.next_frame, ack) && self.segments.slots.trim_oldest(ack) {
            self.segments.base = ack;
            self.resume_waiting(cx);
        }
    }

    fn release_segment(&mut self, cx: &mut Cx<'_>, id: SegmentId, effects: &mut impl Effects) {
        match self.segments.take_segment(id) {
            Some(TakenSegment::Buffer(segment)) => self.end_segment(cx, segment, effects),
            Some(TakenSegment::Kept) => self.resume_waiting(cx),
            None => {}
        }
    }

    /// Continues what waits for space or an acknowledgement.
    pub(super) fn resume_waiting(&mut self, cx: &mut Cx<'_>) {
        if self.has_waiting() {
            cx.add_work(Work::Stage);
        }
        self.rendezvous.stage_data_later(cx);
        if self.segments.update_due || !self.segments.control.is_empty() {
            cx.add_work(Work::Flush);
        }
    }

    /// Completes what waits for the acknowledgement of a segment, and keeps its memory for others.
    ///
    /// RR-SEG-3.
    pub(in crate::proto) fn end_segment(
        &mut self,
        cx: &mut Cx<'_>,
        mut segment: Box<SegmentBuffer>,
        effects: &mut impl Effects,
    ) {
        self.resume_waiting(cx);
        for id in segment.operations.drain(..) {
            // Others have ended before.
            let found = cx.shared.operations.get(id);
            if let Some(&Operation {
                length: accepted, state: OperationState::AwaitDelivery, ..
            }) = found
            {
                cx.shared.operations.remove(id);
                effects.complete(id, Ended::Sent { accepted });
            }
        }
        cx.shared.pool.recycle(segment);
    }
}
