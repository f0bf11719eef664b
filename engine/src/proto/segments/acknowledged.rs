//! Acknowledged segments: they return to the pool, and sends that depend on them complete.

use super::super::core::Core;
use super::super::effects::{Effects, Ended};
use super::super::operation::OperationState;
use super::super::table::Id;
use super::Segments;
use super::segment::{Place, SegmentBuffer};
use super::window::is_before;
use crate::proto::context::Cx;
use crate::proto::ready::Work;
use crate::proto::session::Session;

impl Segments {
    /// Returns whether a peer that has received all frames before `ack` has those of a segment.
    /// Acknowledgements of frames that were never sent are ignored.
    #[inline]
    fn is_acked(&self, segment: &SegmentBuffer, ack: u32) -> bool {
        (!is_before(ack, segment.end_frame()) || planted!(ReleaseUnacked))
            && !is_before(self.next_frame, ack)
            && matches!(segment.place, Place::Flying | Place::Lost)
    }
}

impl Session {
    /// Removes a sent segment; [`Core::end_segment_of`] ends it.
    pub(in crate::proto) fn take_segment(
        &mut self,
        cx: &mut Cx<'_>,
        id: Id,
    ) -> Option<Box<SegmentBuffer>> {
        let segments = self.segments.as_deref_mut()?;
        let pool = &mut *cx.pool;
        let was_lost = pool.get(id).filter(|segment| segment.place == Place::Lost);
        if let Some(is_long) = was_lost.map(|segment| segment.is_long) {
            // An earlier packet arrived; the lost one may have been the only one with current
            // credit.
            let list = if is_long { &mut segments.long } else { &mut segments.lost };
            list.unlink(pool, id);
            segments.update_due |= !planted!(LoseLimits);
        }
        segments.outstanding.unlink(pool, id);
        segments.advance_base(pool);
        let segment = pool.take(id)?;
        if segment.is_long {
            segments.long_held -= 1;
            segments.long_delivered += segment.bytes as u64;
        }
        Some(segment)
    }
}

impl Core {
    /// Handles an acknowledgement of the packet with this token.
    #[inline]
    pub(crate) fn handle_segment_acked(
        &mut self,
        slot: u32,
        token: u64,
        effects: &mut impl Effects,
    ) {
        let id = Id::from_u64(token);
        let was_sent = self.pool.get(id).is_some_and(|segment| {
            segment.session == slot && matches!(segment.place, Place::Flying | Place::Lost)
        });
        if was_sent {
            self.release_segment(slot, id, effects);
        }
    }

    /// Handles a cumulative acknowledgement: the peer has received all frames before `ack`.
    ///
    /// RR-SEG-3.
    #[inline]
    pub(super) fn handle_frame_ack(&mut self, slot: u32, ack: u32, effects: &mut impl Effects) {
        let pool = &mut self.pool;
        let session = self.sessions.at_mut(slot as usize);
        let Some(session) = session else { return };
        let has_waiting = session.has_waiting();
        let Some(segments) = session.segments.as_deref_mut() else { return };
        // Usually only memory is released.
        let is_plain = !has_waiting
            && session.control.is_empty()
            && !segments.able.has_bulk
            && !segments.update_due
            && shortcut!("acknowledged segments that only hold memory");
        loop {
            let oldest = segments.outstanding.oldest(pool);
            let Some(segment) = oldest.filter(|it| segments.is_acked(it, ack)) else { return };
            let is_plain = is_plain
                && segment.place == Place::Flying
                && !segment.is_long
                && segment.operations.is_empty();
            if !is_plain {
                break;
            }
            if let Some(segment) = segments.outstanding.take_oldest(pool) {
                pool.recycle(segment);
            }
            segments.advance_base(pool);
        }
        self.release_acked(slot, ack, effects);
    }

    /// Completes [`Self::handle_frame_ack`] where sends or credit depend on the segments.
    fn release_acked(&mut self, slot: u32, ack: u32, effects: &mut impl Effects) {
        loop {
            let pool = &self.pool;
            let session = self.sessions.at(slot as usize);
            let Some(segments) = session.and_then(|session| session.segments.as_deref()) else {
                return;
            };
            let Some(id) = segments.outstanding.first(pool) else { return };
            if !pool.get(id).is_some_and(|segment| segments.is_acked(segment, ack)) {
                return;
            }
            self.release_segment(slot, id, effects);
        }
    }

    fn release_segment(&mut self, slot: u32, id: Id, effects: &mut impl Effects) {
        let segment = self.with(slot, |it, mut cx| it.take_segment(&mut cx, id)).flatten();
        if let Some(segment) = segment {
            self.end_segment_of(slot, segment, effects);
        }
    }

    /// Completes what waits for the acknowledgement of a segment, and keeps its memory for others.
    pub(in crate::proto) fn end_segment_of(
        &mut self,
        slot: u32,
        mut segment: Box<SegmentBuffer>,
        effects: &mut impl Effects,
    ) {
        if let Some((session, mut cx)) = self.enter(slot) {
            if session.has_waiting() {
                cx.add_work(Work::Stage);
            }
            session.stage_data_later(&mut cx);
            let is_due = session.segments.as_deref().is_some_and(|it| it.update_due);
            if is_due || !session.control.is_empty() {
                cx.add_work(Work::Flush);
            }
        }
        if !segment.operations.is_empty() {
            for operation in segment.operations.drain(..) {
                self.handle_delivered(operation, effects);
            }
        }
        self.pool.recycle(segment);
    }

    /// Handles the acknowledgement of a segment that carries part of a send.
    ///
    /// RR-SEG-3.
    fn handle_delivered(&mut self, id: Id, effects: &mut impl Effects) {
        let Some(operation) = self.operations.get(id) else { return };
        let accepted = operation.length;
        if !matches!(operation.state, OperationState::AwaitDelivery) {
            return;
        }
        self.operations.remove(id);
        effects.complete(id, Ended::Sent { accepted });
    }
}
