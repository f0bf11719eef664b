//! Room for frames in the segments of a session.

use super::Datagram;
use super::segment::{LONG_PAYLOAD_BYTES, Place, SegmentBuffer, SegmentPool};
use super::window::FRAMES_MAX;
use crate::proto::core::Config;
use crate::proto::hint::Hint;
use crate::proto::table::Id;
use crate::wire::eager::EAGER_HEADER_BYTES;
use crate::wire::segment::SEGMENT_HEADER_BYTES;

/// Frames of the window that only control frames use.
const FRAMES_KEPT: u32 = FRAMES_MAX / 16;

/// Long segments of a session that wait for their first sending: the next one is gathered when the
/// kernel has this one, so that its receiver copies meanwhile.
const LONG_UNSENT_MAX: usize = 1;

/// The longest frame that goes in a datagram where TCP is on the same path: a datagram has a tag
/// over all of its bytes, which at 8 KiB costs more than the stream does.
const SHORT_FRAME_BYTES_MAX: usize = 2048;

/// The longest message that goes by a ring in parts though it could be pulled on the host: a lone
/// one is there sooner. Of several, each is copied less if it is pulled.
const PARTS_BY_RING_BYTES_MAX: u64 = 16 << 10;

/// Where [`Datagram::push`] found room for a frame.
pub(super) struct Pushed<'a> {
    /// Its number.
    pub(super) frame: u32,
    /// All frames before this one are known to have come.
    pub(super) base: u32,
    /// The segment that it is in.
    pub(super) id: Id,
    pub(super) segment: &'a mut SegmentBuffer,
}

impl Datagram {
    /// All frames before this one are known to have come.
    #[inline]
    pub(super) fn base(&self, pool: &SegmentPool) -> u32 {
        self.outstanding.oldest(pool).map_or(self.next_frame, |segment| segment.first_frame)
    }

    /// What is left of the segment that is open, for one frame; 0: none is.
    #[inline]
    pub(super) fn open_room(&self, pool: &SegmentPool) -> usize {
        let open = self.open.and_then(|id| pool.at(id));
        open.map_or(0, |segment| self.segment_bytes.saturating_sub(segment.bytes))
    }

    /// The longest frame.
    #[inline]
    pub(in crate::proto) fn frame_bytes_max(&self) -> usize {
        self.segment_bytes - SEGMENT_HEADER_BYTES
    }

    /// The longest frame that goes in a datagram where the message may go another way as well. A
    /// ring takes all that fits a segment: up to there that is sooner than a read from memory.
    #[inline]
    pub(super) fn short_frame_bytes_max(&self) -> usize {
        let has_better_way = self.has_stream && !self.has_ring;
        let most = if has_better_way { SHORT_FRAME_BYTES_MAX } else { usize::MAX };
        self.frame_bytes_max().min(most)
    }

    /// Whether a message of `length` bytes fits one segment with its envelope and its remote data.
    pub(crate) fn takes_whole(&self, length: u64, data_bytes: usize) -> bool {
        let is_long = self.eager_goes_by_stream() && length <= LONG_PAYLOAD_BYTES as u64;
        self.is_short(length, data_bytes) || is_long
    }

    /// The same of a segment that goes in datagrams.
    #[inline]
    pub(super) fn is_short(&self, length: u64, data_bytes: usize) -> bool {
        let short = self.short_frame_bytes_max() - EAGER_HEADER_BYTES - data_bytes;
        length <= short as u64
    }

    /// Whether what fits no datagram, or is nearly as long, goes by the session's stream. Where
    /// both sides share memory, another way is sooner.
    #[inline]
    pub(in crate::proto) fn eager_goes_by_stream(&self) -> bool {
        self.has_stream && !self.pulls_on_host()
    }

    /// Whether what is long is pulled without a lane: from memory, or by the ring.
    #[inline]
    fn pulls_on_host(&self) -> bool {
        self.has_cma || self.takes_pieces
    }

    /// Whether the peer is told where it can read `length` bytes, if they are to be pulled: what is
    /// short is copied twice by the ring sooner than once by a system call.
    #[inline]
    pub(in crate::proto) fn offers_source(&self, length: u64, config: &Config) -> bool {
        self.has_cma && (!self.takes_pieces || length > config.pieces_bytes_max)
    }

    /// Whether an eager message goes by the stream in one piece.
    pub(super) fn goes_by_stream(&self, length: u64) -> bool {
        let short = self.short_frame_bytes_max() - EAGER_HEADER_BYTES;
        self.eager_goes_by_stream() && length > short as u64 && length <= LONG_PAYLOAD_BYTES as u64
    }

    /// Whether a message that fits no datagram is faster when its receiver pulls it: one of several
    /// parts, while another long one is under way (a lone one would wait for the grant), or one
    /// that the receiver can read from memory.
    #[inline]
    pub(super) fn should_pull(&self, length: u64) -> bool {
        if self.pulls_on_host() {
            // The end of the peer's message before it may be under way.
            let is_lone = self.has_ring && self.outstanding.len() <= 1;
            return !is_lone || length > PARTS_BY_RING_BYTES_MAX;
        }
        let has_lanes = self.has_stream && self.bulk.is_none();
        has_lanes && length > LONG_PAYLOAD_BYTES as u64 && self.long_held > 0
    }

    /// The longest message that need not be pulled for its carrier's sake, in bytes, if it is
    /// `in_datagrams` where it takes several.
    #[inline]
    pub(super) fn eager_limit(&self, in_datagrams: u32) -> u32 {
        if self.eager_goes_by_stream() {
            return u32::MAX;
        }
        let in_one = (self.short_frame_bytes_max() - EAGER_HEADER_BYTES) as u32;
        if self.has_cma && !self.has_ring { in_one } else { in_datagrams.max(in_one) }
    }

    /// The long segment that was opened last, while it is not sent and the next frame is the one
    /// behind its own.
    fn long_open(&self, pool: &SegmentPool) -> Option<Id> {
        let id = self.long.last(pool)?;
        let segment = pool.get(id)?;
        let is_open = segment.place == Place::Ready && segment.end_frame() == self.next_frame;
        is_open.then_some(id)
    }

    /// What is left of that segment, for one frame; 0: there is none.
    pub(super) fn long_open_room(&self, pool: &SegmentPool) -> usize {
        let open = self.long_open(pool).and_then(|id| pool.get(id));
        open.map_or(0, SegmentBuffer::room)
    }

    /// Whether [`Self::push_long`] would find room.
    ///
    /// RR-DGRAM-2.
    pub(super) fn has_room_for_long(&self, pool: &SegmentPool, length: usize) -> bool {
        let frames = self.next_frame.wrapping_sub(self.base(pool));
        let has_room =
            || self.long.len() < LONG_UNSENT_MAX && pool.has_room_for_long(self.long_held);
        frames < FRAMES_MAX - FRAMES_KEPT && (self.long_open_room(pool) >= length || has_room())
    }

    /// Room for a frame of a message that goes by the stream. `None`: no room now.
    pub(super) fn push_long<'a>(
        &mut self,
        pool: &'a mut SegmentPool,
        slot: u32,
        length: usize,
    ) -> Option<Pushed<'a>> {
        if !self.has_room_for_long(pool, length) {
            return None;
        }
        let base = self.base(pool);
        let open = self.long_open(pool).filter(|_| self.long_open_room(pool) >= length);
        let id = open.unwrap_or_else(|| {
            // Frames of a segment are consecutive.
            self.close_open(pool);
            let id = pool.open_long(slot, self.next_frame);
            self.outstanding.push_back(pool, id);
            self.long.push_back(pool, id);
            self.long_held += 1;
            id
        });
        let frame = self.take_number(base);
        let segment = pool.get_mut(id)?;
        segment.place = Place::Ready;
        Some(Pushed { frame, base, id, segment })
    }

    /// Segments of one datagram that it has.
    #[inline]
    fn short_held(&self) -> usize {
        self.outstanding.len() - self.long_held
    }

    /// Whether [`Self::push`] would find room.
    ///
    /// RR-DGRAM-2.
    pub(super) fn has_room(&self, pool: &SegmentPool, length: usize, is_control: bool) -> bool {
        let fits_open = self.open_room(pool) >= length;
        self.has_room_above(self.base(pool), pool, fits_open, is_control)
    }

    /// [`Self::has_room`], of a session whose base is known. `fits_open`: the open segment has as
    /// much room.
    #[inline(always)]
    fn has_room_above(
        &self,
        base: u32,
        pool: &SegmentPool,
        fits_open: bool,
        is_control: bool,
    ) -> bool {
        let kept = if is_control { 0 } else { FRAMES_KEPT };
        if self.next_frame.wrapping_sub(base) >= FRAMES_MAX - kept {
            return false;
        }
        let unsent = self.ready.len() + self.urgent.len();
        fits_open
            || (pool.has_room(self.short_held(), is_control)
                && (is_control || unsent < self.unsent_max))
    }

    /// Room for a frame of `length` bytes, which fit a segment. `None`: no room now.
    #[inline(always)]
    pub(super) fn push<'a>(
        &mut self,
        pool: &'a mut SegmentPool,
        slot: u32,
        length: usize,
        is_control: bool,
    ) -> Option<Pushed<'a>> {
        debug_assert!(length <= self.frame_bytes_max(), "a frame fits a segment");
        let base = self.base(pool);
        let fits_open = self.open_room(pool) >= length;
        if !self.has_room_above(base, pool, fits_open, is_control) {
            return None;
        }
        if !fits_open {
            self.close_open(pool);
        }
        let id = self.open.unwrap_or_else(|| {
            let id = pool.open(slot, self.next_frame);
            self.outstanding.push_back(pool, id);
            id
        });
        self.open = Some(id);
        let frame = self.take_number(base);
        let segment = pool.at_mut(id)?;
        segment.is_urgent |= is_control;
        Some(Pushed { frame, base, id, segment })
    }

    /// The number of the next frame, where all before `base` are known to have come.
    #[inline(always)]
    fn take_number(&mut self, base: u32) -> u32 {
        self.chain.keep_up(base);
        let frame = self.next_frame;
        self.next_frame = frame.wrapping_add(1);
        frame
    }

    /// [`Self::push`] for a message, or a piece of one: what leads others shares no segment with
    /// those, and its segment goes before theirs.
    #[inline(always)]
    pub(super) fn push_message<'a>(
        &mut self,
        pool: &'a mut SegmentPool,
        slot: u32,
        length: usize,
        hint: Hint,
    ) -> Option<Pushed<'a>> {
        if hint.leads() {
            return self.push_leading(pool, slot, length);
        }
        self.push(pool, slot, length, false)
    }

    #[cold]
    fn push_leading<'a>(
        &mut self,
        pool: &'a mut SegmentPool,
        slot: u32,
        length: usize,
    ) -> Option<Pushed<'a>> {
        let open = self.open.and_then(|id| pool.get(id));
        if open.is_some_and(|segment| !segment.is_urgent) {
            self.close_open(pool);
        }
        let pushed = self.push(pool, slot, length, false)?;
        pushed.segment.is_urgent = true;
        Some(pushed)
    }

    /// Room for a frame that is no message, by the stream (`is_long`) or in a datagram. The
    /// segment that it is in; `None`: no room now.
    pub(in crate::proto) fn push_for(
        &mut self,
        pool: &mut SegmentPool,
        slot: u32,
        length: usize,
        hint: Hint,
        is_long: bool,
    ) -> Option<Id> {
        let pushed = match is_long {
            true => self.push_long(pool, slot, length),
            false => self.push_message(pool, slot, length, hint),
        };
        pushed.map(|pushed| pushed.id)
    }

    /// Segments of bulk data that wait for their first sending.
    pub(super) fn unsent_bulk(&self) -> usize {
        self.slow.len()
    }

    /// A segment of its own for one frame of bulk data of `length` bytes. `None`: no room now.
    ///
    /// RR-DGRAM-2.
    pub(super) fn push_alone(
        &mut self,
        pool: &mut SegmentPool,
        slot: u32,
        length: usize,
    ) -> Option<Id> {
        let base = self.base(pool);
        let frames = self.next_frame.wrapping_sub(base);
        let has_room = pool.has_room_for_bulk(self.short_held());
        if frames >= FRAMES_MAX - FRAMES_KEPT || !has_room {
            return None;
        }
        self.close_open(pool);
        let number = self.take_number(base);
        let id = pool.open(slot, number);
        self.outstanding.push_back(pool, id);
        self.slow.push_back(pool, id);
        let segment = pool.get_mut(id)?;
        segment.place = Place::Ready;
        segment.push(length);
        Some(id)
    }

    /// No frame is added to the open segment any more.
    #[inline]
    pub(super) fn close_open(&mut self, pool: &mut SegmentPool) {
        let Some(id) = self.open.take() else { return };
        let Some(segment) = pool.get_mut(id) else { return };
        segment.place = Place::Ready;
        let queue = if segment.is_urgent { &mut self.urgent } else { &mut self.ready };
        queue.push_back(pool, id);
    }
}
