//! Sends segments, and retransmits them until they are acknowledged.

use zerocopy::{FromBytes, IntoBytes};

use super::super::{ControlFrame, Session};
use super::segment::{Place, SegmentBuffer, SegmentPool};
use super::slots::{SegmentId, SegmentQueue, SegmentSlots};
use super::uncommon::Uncommon;
use super::window::is_before;
use super::{OpenSegment, Segments};
use crate::proto::context::Cx;
use crate::proto::ready::Work;
use crate::wire::segment::{
    FLAG_ACK_REQUESTED, FLAG_CHECKSUM, SEGMENT_HEADER_BYTES, SEGMENT_SUMS_BYTES, SegmentHeader,
    SegmentSums,
};

/// Token of a segment without frames: no state is kept for it.
const UPDATE: u64 = 0;

/// One segment to send.
#[derive(Debug)]
pub(crate) struct Outgoing<'a> {
    /// Identifies it when it is acknowledged or lost. A retransmitted segment keeps its token.
    pub(crate) token: u64,
    /// One segment.
    pub(crate) bytes: &'a [u8],
    /// Nothing else waits to be sent: the peer may be asked to acknowledge at once, and the path
    /// need not request it again.
    pub(crate) is_last: bool,
    /// A user's send completes, or progresses, when this is acknowledged.
    pub(crate) is_awaited: bool,
}

/// Whether a segment requests an acknowledgement from the peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Asks {
    /// The lane itself acknowledges.
    Never,
    /// The lane does not acknowledge.
    Always,
    /// The lane does not acknowledge, and the peer does after its usual delay; at once where a
    /// user's send waits, and nothing else is to be sent.
    WhenAwaited,
}

/// Result of a queue's search for a segment to send.
enum Pick {
    Found(SegmentId),
    /// The first needs more space; send it in another datagram.
    Wait,
    Nothing,
}

/// Takes the first segment of a queue that fits.
fn pick(
    queue: &mut SegmentQueue,
    slots: &mut SegmentSlots,
    room_bytes: usize,
    segment_bytes: usize,
) -> Pick {
    let mut at = queue.first();
    while let Some(id) = at {
        let bytes = slots.get(id).map_or(usize::MAX, |segment| segment.bytes);
        if bytes <= room_bytes {
            queue.unlink(slots, id);
            return Pick::Found(id);
        }
        // Segments built for longer datagrams wait for another lane, and are overtaken.
        if bytes <= segment_bytes {
            return Pick::Wait;
        }
        at = queue.next(slots, id);
    }
    Pick::Nothing
}

impl Segments {
    /// Stages control frames as far as there is space, and calls `staged` with each of them.
    #[inline]
    fn stage_controls(&mut self, pool: &mut SegmentPool, mut staged: impl FnMut(&ControlFrame)) {
        while let Some(&control) = self.control.front()
            && self.stage_control(pool, &control)
        {
            self.control.pop_front();
            staged(&control);
        }
    }

    /// RR-CREDIT-3
    fn stage_control(&mut self, pool: &mut SegmentPool, control: &ControlFrame) -> bool {
        let bytes = control.as_frame();
        // An acknowledgement makes space.
        if self.slots.len() > 0 && rare!("no space to stage a control frame in", 20) {
            return false;
        }
        let Some(pushed) = self.push(pool, bytes.len(), true) else { return false };
        let segment = debug_assert_some!(self.slots.at_mut(pushed.id), "it was just pushed to");
        if let Some(segment) = segment {
            segment.push(bytes.len()).copy_from_slice(bytes);
        }
        true
    }

    /// Selects the segment to send next, lost ones first.
    #[inline]
    fn next(&mut self, room_bytes: usize) -> Option<SegmentId> {
        let segment_bytes = self.segment_bytes;
        // A single segment is not queued.
        if !self.is_queued()
            && let Some(OpenSegment { id, .. }) = self.open
            && self.slots.get(id).is_some_and(|segment| segment.bytes <= room_bytes)
            && shortcut!("the open segment without a queue")
        {
            self.open = None;
            return Some(id);
        }
        match pick(&mut self.lost, &mut self.slots, room_bytes, segment_bytes) {
            Pick::Found(id) => return Some(id),
            Pick::Wait => return None,
            Pick::Nothing => {}
        }
        let open = self.open.and_then(|open| self.slots.get(open.id));
        let is_urgent = open.is_some_and(|segment| segment.is_urgent);
        if is_urgent || self.urgent.len() + self.ready.len() == 0 {
            self.close_open();
        }
        for queue in [&mut self.urgent, &mut self.ready, &mut self.slow] {
            match pick(queue, &mut self.slots, room_bytes, segment_bytes) {
                Pick::Found(id) => return Some(id),
                Pick::Wait => return None,
                Pick::Nothing => {}
            }
        }
        None
    }

    /// Returns whether a segment on a lane that does not acknowledge requests an acknowledgement:
    /// if it is the last one, and a send waits for it or for one before it.
    pub(super) fn asks_when_awaited(&mut self, is_awaited: bool, is_last: bool) -> bool {
        self.ack_awaited |= is_awaited;
        let asks = is_last && self.ack_awaited;
        self.ack_awaited &= !asks;
        asks
    }

    #[inline]
    pub(super) fn waits(&self) -> bool {
        self.open.is_some() || self.is_queued()
    }

    #[inline]
    pub(super) fn is_queued(&self) -> bool {
        self.lost.len() + self.urgent.len() + self.ready.len() + self.slow.len() > 0
    }

    /// Returns a waiting segment: the one to send next if it is not the open one.
    fn first_waiting(&self) -> Option<SegmentId> {
        if !self.is_queued() {
            return self.open.map(|open| open.id);
        }
        let queues = [&self.lost, &self.urgent, &self.ready];
        let first = queues.into_iter().find_map(SegmentQueue::first);
        // Bulk data is sent when nothing else waits.
        first.or(self.open.map(|open| open.id)).or_else(|| self.slow.first())
    }

    /// Returns the long segment to send next.
    pub(super) fn next_long(&mut self) -> Option<SegmentId> {
        let id = self.long.first()?;
        self.long.unlink(&mut self.slots, id);
        Some(id)
    }

    /// Returns whether the first long segment has frames before those of all others that wait: a
    /// stream that carries both kinds carries them in their order, so that a receiver buffers
    /// nothing, and neither waits for long.
    fn is_long_next(&self) -> bool {
        let long = self.long.first().and_then(|id| self.slots.get(id));
        long.is_some_and(|long| {
            let waiting = self.first_waiting().and_then(|id| self.slots.get(id));
            waiting.is_none_or(|it| is_before(long.first_frame, it.first_frame) && !it.is_urgent)
        })
    }

    /// RR-DGRAM-3
    fn mark_lost(&mut self, id: SegmentId) {
        if let Some(segment) = self.slots.get_mut(id)
            && segment.place == Place::Flying
        {
            segment.place = Place::Lost;
            let queue = if segment.is_long { &mut self.long } else { &mut self.lost };
            queue.push_back(&mut self.slots, id);
            self.uncommon.add(Uncommon::QUEUED);
        }
    }
}

/// Appends a segment to the bytes for a stream.
///
/// RR-SUM-2.
pub(crate) fn append_segment(into: &mut Vec<u8>, segment: &[u8], has_checksums: bool) {
    if !has_checksums {
        return into.extend_from_slice(segment);
    }
    let Ok((header, frames)) = SegmentHeader::ref_from_prefix(segment) else {
        unreachable!("a segment begins with its header")
    };
    let sums = crc32c::crc32c(frames);
    let mut header = *header;
    header.length += SEGMENT_SUMS_BYTES as u32;
    header.flags |= FLAG_CHECKSUM;
    into.extend_from_slice(header.as_bytes());
    into.extend_from_slice(SegmentSums::new(&header, sums).as_bytes());
    into.extend_from_slice(frames);
}

/// Sending. The segments are those of an established session; others have none.
impl Session {
    /// Returns its next segment, at most `room_bytes` long. `None`: nothing to send, or nothing
    /// that fits.
    ///
    /// RR-DGRAM-3.
    #[inline]
    pub(crate) fn poll_segment<'a>(
        &'a mut self,
        mut cx: Cx<'a>,
        room_bytes: usize,
        asks: Asks,
    ) -> Option<Outgoing<'a>> {
        let next = self.next_segment(&mut cx, room_bytes)?;
        let is_stream = room_bytes == usize::MAX;
        self.segments.seal_next(&cx.shared.pool, next, is_stream, asks)
    }

    /// Selects its next segment, at most `room_bytes` long. `Some(None)`: one without frames.
    /// `None`: nothing to send, or nothing that fits.
    #[inline]
    pub(super) fn next_segment(
        &mut self,
        cx: &mut Cx<'_>,
        room_bytes: usize,
    ) -> Option<Option<SegmentId>> {
        if !self.segments.is_established() {
            return None;
        }
        self.segments.stage_controls(&mut cx.shared.pool, |control| {
            self.one_sided.note_staged(control);
        });
        let is_stream = room_bytes == usize::MAX;
        let next = match is_stream && self.segments.is_long_next() {
            true => self.segments.next_long(),
            false => self.segments.next(room_bytes),
        };
        if next.is_some() {
            if self.has_waiting() {
                cx.add_work(Work::Stage);
            }
            self.rendezvous.stage_data_later(cx);
        } else if !self.segments.has_update() || room_bytes < SEGMENT_HEADER_BYTES {
            return None;
        }
        Some(next)
    }

    /// Returns the next segment for the control connection while that carries all of them, and
    /// whether it has checksums ([`append_segment`]). `None`: there is nothing to send.
    ///
    /// RR-SUM-2.
    pub(crate) fn poll_segment_for_stream<'a>(
        &'a mut self,
        cx: Cx<'a>,
    ) -> Option<(Outgoing<'a>, bool)> {
        let has_checksums = self.segments.has_checksums();
        // Beside datagrams that are lost there is no time for the acknowledgement's delay.
        let asks = if self.segments.has_datagrams() { Asks::Always } else { Asks::WhenAwaited };
        Some((self.poll_segment(cx, usize::MAX, asks)?, has_checksums))
    }

    /// Appends the next segment to the bytes for the control connection, a long one only if
    /// `takes_long`. Returns `false` if there is none.
    pub(crate) fn append_next_segment(
        &mut self,
        cx: Cx<'_>,
        into: &mut Vec<u8>,
        takes_long: bool,
    ) -> bool {
        if !takes_long && self.segments.is_long_next() {
            return false;
        }
        let Some((segment, has_checksums)) = self.poll_segment_for_stream(cx) else {
            return false;
        };
        append_segment(into, segment.bytes, has_checksums);
        true
    }

    /// Handles a segment that its lane had no space for. The next segment repeats its
    /// acknowledgement request.
    ///
    /// RR-SHM-8.
    pub(crate) fn handle_segment_refused(&mut self, mut cx: Cx<'_>, token: u64) {
        self.segments.ack_awaited = true;
        if !self.fences.is_empty() {
            self.segments.questions_mut().ask();
        }
        self.segments.mark_token_lost(token);
        // Other sessions may have space.
        cx.add_work_last(Work::Flush);
    }
}

impl Segments {
    /// Returns whether a long segment waits for the stream.
    #[inline]
    pub(crate) fn has_long(&self) -> bool {
        self.long.len() > 0
    }

    /// Returns whether a long segment is unacknowledged.
    pub(crate) fn holds_long(&self) -> bool {
        self.long_held > 0
    }

    /// Returns whether a segment waits that is not long.
    pub(crate) fn has_short(&self) -> bool {
        self.is_established() && (self.waits() || !self.control.is_empty())
    }

    /// Seals the segment that was selected to be sent, or one without frames.
    #[inline(always)]
    pub(super) fn seal_next<'a>(
        &'a mut self,
        pool: &SegmentPool,
        next: Option<SegmentId>,
        is_stream: bool,
        asks: Asks,
    ) -> Option<Outgoing<'a>> {
        let is_last =
            !self.waits() && self.control.is_empty() && !(is_stream && self.long.len() > 0);
        let asks_ack = match asks {
            Asks::Never => false,
            Asks::Always => true,
            Asks::WhenAwaited => {
                let segment = next.and_then(|id| self.slots.get(id));
                let is_awaited = segment.is_some_and(|segment| !segment.operations.is_empty());
                // Sends may wait for space.
                let is_full = is_stream && !self.has_any_room(pool, 0);
                self.asks_when_awaited(is_awaited || is_full, is_last || is_full)
            }
        };
        let header = self.header(asks_ack);
        let Some(id) = next else {
            let header = self.without_frames(header);
            self.header_only.copy_from_slice(header.as_bytes());
            let (bytes, is_awaited) = (&self.header_only[..], false);
            return Some(Outgoing { token: UPDATE, bytes, is_last, is_awaited });
        };
        let segment = self.slots.get_mut(id)?;
        segment.place = Place::Flying;
        let (token, is_awaited) = (id.to_token(), !segment.operations.is_empty());
        Some(Outgoing { token, bytes: segment.seal(header), is_last, is_awaited })
    }

    /// Writes the header of a segment that is sent for the first time; returns the segment.
    #[inline(always)]
    pub(super) fn seal_first(&mut self, id: SegmentId, asks_ack: bool) -> &[u8] {
        let header = self.header(asks_ack);
        let segment = debug_assert_some!(self.slots.at_mut(id), "it is sent for the first time");
        let Some(segment) = segment else { return &[] };
        segment.place = Place::Flying;
        segment.seal(header)
    }

    /// Returns the header of a segment without frames.
    fn without_frames(&self, header: SegmentHeader) -> SegmentHeader {
        let (length, first_frame) = (SEGMENT_HEADER_BYTES as u32, self.next_frame);
        SegmentHeader { length: length.into(), first_frame: first_frame.into(), ..header }
    }

    /// Builds the last segment of a session that the peer's goodbye ends: it acknowledges
    /// everything received, which no earlier segment may have done.
    ///
    /// RR-DGRAM-9.
    pub(super) fn answer_goodbye(&mut self) {
        if !self.is_established() || self.received.is_ack_announced() {
            return;
        }
        let header = self.header(false);
        let header = self.without_frames(header);
        let mut bytes = Vec::new();
        append_segment(&mut bytes, header.as_bytes(), self.has_checksums());
        self.final_ack = bytes.into();
    }

    /// Takes the segment of [`Self::answer_goodbye`] for the stream lane, after the session ended.
    pub(crate) fn take_final_ack(&mut self) -> Box<[u8]> {
        std::mem::take(&mut self.final_ack)
    }

    /// Returns a sent segment for retransmission as a probe. `None`: it is acknowledged, or too
    /// long.
    pub(crate) fn poll_segment_again(
        &mut self,
        token: u64,
        room_bytes: usize,
        asks_ack: bool,
    ) -> Option<Outgoing<'_>> {
        let id = SegmentId::from_token(token);
        let segment = self.slots.get(id)?;
        if segment.bytes > room_bytes || !matches!(segment.place, Place::Flying | Place::Lost) {
            return None;
        }
        let is_lost = segment.place == Place::Lost;
        let header = self.header(asks_ack);
        if is_lost {
            self.lost.unlink(&mut self.slots, id);
        }
        let is_last = !self.waits();
        let segment = self.slots.get_mut(id)?;
        segment.place = Place::Flying;
        let is_awaited = !segment.operations.is_empty();
        Some(Outgoing { token, bytes: segment.seal(header), is_last, is_awaited })
    }

    /// Returns an upper bound of the length of the next segment; 0: nothing waits.
    pub(crate) fn waiting_bytes(&self) -> usize {
        if !self.is_established() {
            return 0;
        }
        match self.first_waiting().and_then(|id| self.slots.get(id)) {
            Some(segment) => segment.bytes,
            None if !self.control.is_empty() => self.segment_bytes,
            None if self.has_update() => SEGMENT_HEADER_BYTES,
            None => 0,
        }
    }

    /// Marks the session as ready to send if anything waits.
    #[inline]
    pub(crate) fn flush_if_waiting(&self, mut cx: Cx<'_>) {
        if self.is_waiting() {
            cx.add_work(Work::Flush);
        }
    }

    /// Closes the open segment, so that nothing is added to it.
    pub(crate) fn close_segment(&mut self) {
        self.close_open();
    }

    /// Handles the loss of the packet with this token. Its segment may have arrived in another
    /// packet, but credit that the lost one carried may not have been repeated.
    ///
    /// RR-DGRAM-3.
    pub(crate) fn handle_segment_lost(&mut self, mut cx: Cx<'_>, token: u64) {
        self.mark_token_lost(token);
        cx.add_work(Work::Flush);
    }

    fn mark_token_lost(&mut self, token: u64) {
        if !self.is_established() {
            return;
        }
        let id = SegmentId::from_token(token);
        if self.slots.get(id).is_some() {
            if !planted!(ForgetLost) {
                self.mark_lost(id);
            }
        } else if !planted!(LoseLimits) {
            self.note_update_due();
        }
    }

    /// Retransmits all unacknowledged segments after the lanes that carried them were abandoned.
    pub(crate) fn resend_all(&mut self, cx: Cx<'_>) {
        self.resend(cx, |_| true);
    }

    /// Does the same where the stream stays: the long segments on it are not sent again.
    pub(crate) fn resend_short(&mut self, cx: Cx<'_>) {
        self.resend(cx, |segment| !segment.is_long);
    }

    fn resend(&mut self, mut cx: Cx<'_>, is_lost: impl Fn(&SegmentBuffer) -> bool) {
        if !self.is_established() || planted!(ForgetResend) {
            return;
        }
        for id in self.slots.ids() {
            if self.slots.get(id).is_some_and(&is_lost) {
                self.mark_lost(id);
            }
        }
        self.update_due = false;
        if !planted!(LoseLimits) {
            self.note_update_due();
        }
        cx.add_work(Work::Flush);
    }

    /// Returns whether any segment waits that is not long.
    #[inline]
    pub(crate) fn is_waiting(&self) -> bool {
        self.is_established() && (self.waits() || !self.control.is_empty() || self.has_update())
    }

    /// Builds the header of the next segment, and notes its content as sent.
    #[inline(always)]
    pub(super) fn header(&mut self, asks_ack: bool) -> SegmentHeader {
        let mut header = SegmentHeader {
            length: 0.into(),
            frames: 0.into(),
            flags: (if asks_ack { FLAG_ACK_REQUESTED } else { 0 }).into(),
            first_frame: 0.into(),
            ack: 0.into(),
            envelope_limit: 0.into(),
            byte_limit: 0.into(),
        };
        self.received.announce(&mut header);
        self.update_due = false;
        header
    }
}
