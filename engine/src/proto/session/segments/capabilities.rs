//! Changes of what a session can do. Each computes its table of routes again.

use super::super::Session;
use super::Segments;
use super::protocol::{Capabilities, PullMethod, SendProtocol};
use super::transport::Transport;
use super::uncommon::Uncommon;
use crate::proto::context::{Cx, SharedState};
use crate::proto::ready::Work;
use crate::wire::KeptFrames;

impl Segments {
    /// Sets the length of new segments to what their transport takes: a ring takes any.
    fn fit_segments(&mut self, shared: &SharedState) {
        self.close_open();
        self.segment_bytes = match self.able.transport() {
            Some(Transport::Ring) => shared.pool().buffer_bytes(),
            Some(Transport::Stream) | None => self.path_bytes as usize,
        };
        self.set_capabilities(self.able, shared);
    }

    /// Sets what the session can do. Returns whether that has changed.
    fn set_capabilities(&mut self, able: Capabilities, shared: &SharedState) -> bool {
        self.protocol = SendProtocol::of(able, self.segment_bytes, shared.rendezvous().limits());
        std::mem::replace(&mut self.able, able) != able
    }

    /// Sets the smallest datagram content of the session's lanes. Longer segments built before use
    /// a lane that takes them: a stream takes any.
    pub(crate) fn set_segment_bytes(&mut self, cx: Cx<'_>, segment_bytes: usize) {
        if self.is_established() {
            self.path_bytes = cx.shared.pool.clamp(segment_bytes) as u32;
            self.fit_segments(cx.shared);
        }
    }

    /// Returns the longest message that is sent eagerly to the peer now, in bytes; `None`: the
    /// session is not connected.
    pub(crate) fn eager_limit_if_connected(&self) -> Option<u64> {
        self.is_established().then(|| self.eager_limit_now().into())
    }
}

impl Session {
    /// Lets the newly established session, which has sent nothing, use datagrams. `segment_bytes`:
    /// the smallest size among its lanes of one datagram's content.
    pub(crate) fn use_datagrams(&mut self, cx: Cx<'_>, segment_bytes: usize) {
        let segments = &mut self.segments;
        if !segments.is_established() {
            return;
        }
        debug_assert!(segments.next_frame == 0, "its first segments are built for its paths");
        let has_bulk = self.bulk_in_datagrams;
        segments.able = segments.able.with_datagrams(has_bulk);
        if has_bulk {
            self.rendezvous.use_datagrams();
            segments.uncommon.add(Uncommon::BULK);
        }
        let segment_bytes = cx.shared.pool.clamp(segment_bytes);
        segments.path_bytes = segment_bytes as u32;
        segments.unsent_max = cx.shared.pool().unsent_max(segment_bytes);
        segments.fit_segments(cx.shared);
    }

    /// Sets whether messages that do not fit a datagram use the session's stream. Segments already
    /// built for the stream wait for one.
    ///
    /// RR-DGRAM-12.
    pub(crate) fn use_stream(&mut self, mut cx: Cx<'_>, is_chosen: bool) {
        let segments = &mut self.segments;
        if !segments.able.has_datagrams {
            return;
        }
        let able = segments.able.with_stream(is_chosen);
        if segments.set_capabilities(able, cx.shared) && self.has_waiting() {
            // Waiting sends may have another transport now.
            cx.add_work(Work::Stage);
        }
    }

    /// Sets whether the peer can read this process's memory.
    pub(crate) fn use_memory_reads(&mut self, mut cx: Cx<'_>, is_able: bool) {
        let segments = &mut self.segments;
        if !segments.is_established() {
            return;
        }
        segments.set_capabilities(segments.able.with_memory_reads(is_able), cx.shared);
        if self.has_waiting() {
            // Waiting sends may have another transport now.
            cx.add_work(Work::Stage);
        }
    }

    /// Selects the ring for segments, or none: then unacknowledged segments are sent again.
    /// `unread`: what the ring that has ended kept of them (`None`: the peer has overwritten it).
    /// Returns `false` if what the session needs was overwritten: fail it.
    ///
    /// RR-SHM-8.
    pub(crate) fn use_ring(
        &mut self,
        mut cx: Cx<'_>,
        ring: Option<u32>,
        unread: Option<&[KeptFrames]>,
    ) -> bool {
        let segments = &mut self.segments;
        if !segments.is_established() {
            return true;
        }
        let before = segments.protocol;
        let had_ring = before.transport() == Some(Transport::Ring);
        debug_assert!(!had_ring || ring.is_none(), "the end of a ring is reported before");
        segments.able = segments.able.with_ring(ring.is_some());
        segments.fit_segments(cx.shared);
        let granted_by = segments.protocol.granted_by();
        if before.granted_by() != granted_by && self.has_waiting() {
            // Waiting sends may have another transport now.
            cx.add_work(Work::Stage);
        }
        self.use_ring_for_pieces(&mut cx, ring.filter(|_| granted_by == PullMethod::Pieces));
        if ring.is_some() {
            // Datagrams may be lost that announced it, and a ring takes their frames without it.
            self.segments.note_update_due();
            cx.add_work(Work::Flush);
        }
        if had_ring && ring.is_none() && !planted!(ForgetRing) {
            let is_intact = self.segments.slots.restore_kept(&mut cx.shared.pool, unread);
            self.segments.advance_base();
            self.resume_waiting(&mut cx);
            self.segments.resend_short(cx);
            return is_intact;
        }
        true
    }
}
