//! The fast path of sending: a frame that goes alone in its segment as soon as it is posted.
//!
//! [`Session::alone`] checks whether nothing is ahead of the frame and it fits a segment, and
//! changes nothing. [`Alone`] then writes it where the segment is kept, and into the datagram of a
//! path or the stream; or into a ring alone, which keeps it ([`super::ring`]). The effects are
//! those of the general path: staging, then [`Session::poll_segment`] or
//! [`Session::poll_for_ring`].

use zerocopy::IntoBytes;

use super::super::Session;
use super::super::one_sided::origin::OneSidedRequest;
use super::protocol::Route;
use super::segment::{Place, SegmentBuffer, SegmentPool};
use super::slots::SegmentId;
use super::uncommon::Uncommon;
use super::{Outgoing, Segments};
use crate::proto::context::Cx;
use crate::proto::data_bytes::DataBytes;
use crate::proto::hint::Hint;
use crate::proto::packet;
use crate::proto::ready::Work;
use crate::proto::session::send::{SendRequest, eager_header};
use crate::wire::eager::EAGER_HEADER_BYTES;
use crate::wire::frame_range::{RING_SHORT_BYTES, RingBytes};
use crate::wire::one_sided::ONE_SIDED_HEADER_BYTES;
use crate::wire::segment::SEGMENT_HEADER_BYTES;
use crate::wire::{DATA_BYTES, FrameRange};

const _: () = assert!(
    EAGER_HEADER_BYTES + DATA_BYTES <= RING_SHORT_BYTES
        && ONE_SIDED_HEADER_BYTES <= RING_SHORT_BYTES,
    "headers are short"
);
const _: () = assert!(
    (EAGER_HEADER_BYTES | DATA_BYTES | ONE_SIDED_HEADER_BYTES).is_multiple_of(8),
    "a payload follows in whole words"
);

/// A frame as its poster describes it.
pub(crate) trait PostedFrame {
    /// Returns whether it may be sent now, in a segment, as far as its kind decides.
    fn may_go_now(&self, session: &Session) -> bool;

    /// Returns the length of its header and remote data.
    fn head_bytes(&self) -> usize;

    /// Returns the length of its payload.
    fn payload_bytes(&self) -> usize;

    /// Returns its hint.
    fn hint(&self) -> Hint;

    /// Writes header and remote data of frame `frame`, and charges it. All frames before `base`
    /// have arrived.
    fn begin(&self, segments: &mut Segments, frame: u32, base: u32, head: &mut [u8]);

    /// Copies its payload.
    fn fill(&self, room: &mut [u8]);

    /// Returns its payload, if it is contiguous.
    fn whole(&self) -> Option<&[u8]>;
}

/// A message that completes as soon as it is copied.
pub(crate) struct PostedMessage<'a, F> {
    /// It is plain ([`SendRequest::is_plain`]).
    pub(crate) request: &'a SendRequest,
    /// The remote endpoint.
    pub(crate) target: u16,
    /// Copies the payload.
    pub(crate) fill: F,
    /// The payload, if it is contiguous.
    pub(crate) whole: Option<&'a [u8]>,
}

impl<F: Fn(&mut [u8])> PostedFrame for PostedMessage<'_, F> {
    #[inline(always)]
    fn may_go_now(&self, session: &Session) -> bool {
        let (segments, length) = (&session.segments, self.request.length);
        segments.protocol.route(length, self.request.data_bytes()) == Route::Segment
            && length <= u64::from(segments.eager_limit.bytes())
            && segments.credits.covers(length)
    }

    #[inline(always)]
    fn head_bytes(&self) -> usize {
        EAGER_HEADER_BYTES + self.request.data_bytes()
    }

    #[inline(always)]
    fn payload_bytes(&self) -> usize {
        self.request.length as usize
    }

    #[inline(always)]
    fn hint(&self) -> Hint {
        self.request.hint
    }

    #[inline(always)]
    fn begin(&self, segments: &mut Segments, frame: u32, base: u32, head: &mut [u8]) {
        let SendRequest { endpoint, context, length, data, .. } = *self.request;
        let stream = (endpoint, self.target, context);
        let mut header = eager_header(self.request, self.target, 0, 0);
        header.predecessor_distance = segments.chain.follow(stream, frame, base).into();
        segments.credits.spend(length as u32);
        let (header_room, behind) = head.split_at_mut(EAGER_HEADER_BYTES);
        header_room.copy_from_slice(header.as_bytes());
        if data.is_some() {
            behind.copy_from_slice(DataBytes::of(data).as_slice());
        }
    }

    #[inline(always)]
    fn fill(&self, room: &mut [u8]) {
        (self.fill)(room);
    }

    #[inline(always)]
    fn whole(&self) -> Option<&[u8]> {
        self.whole
    }
}

/// A put that completes as soon as it is copied.
pub(crate) struct PostedPut<'a> {
    pub(crate) request: &'a OneSidedRequest,
    /// The remote endpoint.
    pub(crate) target: u16,
    /// What it writes.
    pub(crate) bytes: &'a [u8],
}

impl PostedFrame for PostedPut<'_> {
    #[inline(always)]
    fn may_go_now(&self, session: &Session) -> bool {
        session.is_plain_put(self.request)
            && session.one_sided.waiting_count() == 0
            && ONE_SIDED_HEADER_BYTES + self.bytes.len() <= session.segments.frame_bytes_max()
    }

    #[inline(always)]
    fn head_bytes(&self) -> usize {
        ONE_SIDED_HEADER_BYTES
    }

    #[inline(always)]
    fn payload_bytes(&self) -> usize {
        self.bytes.len()
    }

    #[inline(always)]
    fn hint(&self) -> Hint {
        self.request.hint
    }

    #[inline(always)]
    fn begin(&self, _: &mut Segments, _: u32, _: u32, head: &mut [u8]) {
        head.copy_from_slice(self.request.put_header(self.target).as_bytes());
    }

    #[inline(always)]
    fn fill(&self, room: &mut [u8]) {
        room.copy_from_slice(self.bytes);
    }

    #[inline(always)]
    fn whole(&self) -> Option<&[u8]> {
        Some(self.bytes)
    }
}

/// A frame that may go alone in its segment. Nothing has changed for it yet.
pub(crate) struct Alone<'a, P> {
    segments: &'a mut Segments,
    cx: Cx<'a>,
    frame: &'a P,
}

impl Session {
    /// Returns a frame for its transport, if nothing is ahead of it. `None`: use the general path.
    ///
    /// RR-CREDIT-1.
    #[inline(always)]
    pub(crate) fn alone<'a, P: PostedFrame>(
        &'a mut self,
        cx: Cx<'a>,
        frame: &'a P,
    ) -> Option<Alone<'a, P>> {
        let is_next = self.is_free_of(Uncommon::SENDING)
            && !self.one_sided.has_ready()
            && self.segments.open.is_none()
            && frame.may_go_now(self)
            && shortcut!("a frame that goes alone");
        let segments = &mut self.segments;
        (is_next && segments.has_room_alone(&cx.shared.pool)).then_some(Alone {
            segments,
            cx,
            frame,
        })
    }
}

impl<P: PostedFrame> Alone<'_, P> {
    /// Writes all but the payload of its segment.
    #[inline(always)]
    fn begin(&mut self) -> Box<SegmentBuffer> {
        let Self { segments, cx, frame } = self;
        // It may have had nothing to send but what this segment announces.
        cx.remove_latest_work(Work::Flush);
        let base = segments.base;
        let number = segments.take_number(base);
        let mut segment = cx.shared.pool.take_short(number);
        segment.place = Place::Flying;
        segment.is_urgent = frame.hint().leads();
        segment.completes_unacked = true;
        let room = segment.push(frame.head_bytes() + frame.payload_bytes());
        frame.begin(segments, number, base, &mut room[..frame.head_bytes()]);
        segment
    }

    /// Writes the segment, and adds it to those that are not acknowledged. `asks` returns whether
    /// it requests an acknowledgement.
    #[inline(always)]
    fn stage(
        &mut self,
        asks: impl FnOnce(&mut Segments, &SegmentPool) -> bool,
    ) -> (SegmentId, &[u8]) {
        let mut segment = self.begin();
        self.frame.fill(segment.newest(self.frame.payload_bytes()));
        let asks_ack = asks(self.segments, &self.cx.shared.pool);
        let header = self.segments.header(asks_ack);
        let (id, segment) = self.segments.slots.push(segment);
        (id, segment.seal(header))
    }

    /// Sends it by a ring: `write` gets the numbers of its frames if it goes without a header, and
    /// its bytes; it returns whether there was space. Returns the segment's token where there was
    /// none.
    #[inline(always)]
    pub(crate) fn send_by_ring(
        mut self,
        write: impl FnOnce(Option<FrameRange>, RingBytes<'_>) -> bool,
    ) -> Result<(), u64> {
        if self.segments.has_header_by_ring() {
            let asks_ack = self.segments.asks_when_awaited(false, true);
            let (id, bytes) = self.stage(|_, _| asks_ack);
            let is_written = write(None, RingBytes::whole(bytes));
            return if is_written { Ok(()) } else { Err(id.to_token()) };
        }
        match self.frame.whole() {
            Some(payload) => self.write_bare(payload, write),
            None => self.write_strided(write),
        }
    }

    /// Writes it into a ring, which keeps it, from user memory.
    #[inline(always)]
    fn write_bare(
        self,
        payload: &[u8],
        write: impl FnOnce(Option<FrameRange>, RingBytes<'_>) -> bool,
    ) -> Result<(), u64> {
        let Self { segments, mut cx, frame } = self;
        cx.remove_latest_work(Work::Flush);
        let base = segments.base;
        let number = segments.take_number(base);
        let (head_bytes, length) = (frame.head_bytes(), payload.len());
        let mut short = [0; RING_SHORT_BYTES];
        let (head, room) = short.split_at_mut(head_bytes);
        frame.begin(segments, number, base, head);
        let range = Some(FrameRange { first: number, count: 1 });
        let is_written = match room.get_mut(..length) {
            Some(room) => {
                frame.fill(room);
                write(range, RingBytes::Short(&short, head_bytes + length))
            }
            None => write(range, RingBytes::Parts([head, payload])),
        };
        if is_written {
            let bytes_max = segments.kept_bytes_max();
            segments.slots.push_kept(number, head_bytes + length, bytes_max);
            return Ok(());
        }
        let mut segment = cx.shared.pool.take_short(number);
        segment.place = Place::Flying;
        segment.is_urgent = frame.hint().leads();
        segment.completes_unacked = true;
        let (head, room) = segment.push(head_bytes + length).split_at_mut(head_bytes);
        head.copy_from_slice(&short[..head_bytes]);
        room.copy_from_slice(payload);
        Err(segments.slots.push(segment).0.to_token())
    }

    /// The same, where the payload is not contiguous.
    #[inline(never)]
    fn write_strided(
        mut self,
        write: impl FnOnce(Option<FrameRange>, RingBytes<'_>) -> bool,
    ) -> Result<(), u64> {
        let mut segment = self.begin();
        self.frame.fill(segment.newest(self.frame.payload_bytes()));
        let Self { segments, cx, .. } = self;
        let (range, bytes) = (segment.range(), segment.content());
        if !write(Some(range), RingBytes::of_frames(range, bytes)) {
            return Err(segments.slots.push(segment).0.to_token());
        }
        let bytes_max = segments.kept_bytes_max();
        segments.slots.push_kept(range.first, bytes.len(), bytes_max);
        cx.shared.pool.recycle_short(segment);
        Ok(())
    }

    /// Takes it for the stream, with whether it has checksums there ([`super::append_segment`]).
    #[inline(always)]
    pub(crate) fn take_for_stream(&mut self) -> (Outgoing<'_>, bool) {
        let has_checksums = self.segments.has_checksums();
        let (id, bytes) = self.stage(|segments, pool| {
            // Sends may wait for space.
            let is_full = !segments.has_any_room(pool, 1);
            segments.asks_when_awaited(is_full, true)
        });
        let token = id.to_token();
        (Outgoing { token, bytes, is_last: true, is_awaited: false }, has_checksums)
    }
}

impl<P: PostedFrame> packet::PayloadSource for Alone<'_, P> {
    #[inline(always)]
    fn waiting_bytes(&self) -> usize {
        SEGMENT_HEADER_BYTES + self.frame.head_bytes() + self.frame.payload_bytes()
    }

    #[inline(always)]
    fn fill(&mut self, room: &mut [u8]) -> Option<packet::Filled> {
        let room = room.get_mut(..self.waiting_bytes())?;
        let (id, bytes) = self.stage(|_, _| false);
        room.copy_from_slice(bytes);
        Some(packet::Filled { token: id.to_token(), bytes: room.len(), ack_now: false })
    }

    fn fill_again(&mut self, _: u64, _: &mut [u8]) -> Option<packet::Filled> {
        None
    }
}
