//! Space for frames in the segments of a session.

use super::protocol::Route;
use super::segment::{LONG_PAYLOAD_BYTES, Place, SegmentBuffer, SegmentPool};
use super::slots::SegmentId;
use super::uncommon::Uncommon;
use super::window::FRAMES_MAX;
use super::{OpenSegment, Segments};
use crate::proto::hint::Hint;
use crate::proto::session::send::SendRequest;
use crate::wire::segment::SEGMENT_HEADER_BYTES;

/// Frames of the window that are reserved for control frames.
const FRAMES_KEPT: u32 = FRAMES_MAX / 16;

/// Long segments of a session with datagrams that wait for their first transmission: the next one
/// is filled while the kernel sends this one, so that its receiver copies meanwhile.
const LONG_UNSENT_MAX: usize = 1;

/// The same without datagrams, where they wait among short ones.
const LONG_UNSENT_ALONE_MAX: usize = 4;

/// A frame, as added by [`Segments::push`].
#[derive(Clone, Copy)]
pub(super) struct Pushed {
    /// Its number.
    pub(super) frame: u32,
    /// All frames before this one are acknowledged.
    pub(super) base: u32,
    /// The segment that it is in.
    pub(super) id: SegmentId,
}

impl Segments {
    /// Returns whether `base` is what the outstanding segments say.
    pub(super) fn is_base_current(&self) -> bool {
        let oldest = self.slots.oldest_frames();
        self.base == oldest.map_or(self.next_frame, |range| range.first)
    }

    /// Notes that the oldest segment is another one, or there is none any more.
    #[inline]
    pub(super) fn advance_base(&mut self) {
        let oldest = self.slots.oldest_frames();
        self.base = oldest.map_or(self.next_frame, |range| range.first);
    }

    /// Returns the space for one frame in the open segment; 0: none is open.
    #[inline]
    pub(super) fn open_room(&self) -> usize {
        self.open.map_or(0, |open| open.room)
    }

    /// Returns the length of the longest frame.
    #[inline]
    pub(in crate::proto) fn frame_bytes_max(&self) -> usize {
        self.segment_bytes - SEGMENT_HEADER_BYTES
    }

    /// Returns whether a message fits one segment, with envelope and remote data.
    pub(crate) fn takes_whole(&self, request: &SendRequest) -> bool {
        let route = self.protocol.route(request.length, request.data_bytes());
        matches!(route, Route::Segment | Route::Stream)
    }

    /// Returns whether a message of [`Route::Stream`] is pulled now, for what else is under way.
    pub(crate) fn pulls(&self, pool: &SegmentPool, length: u64) -> bool {
        self.protocol.pulls_beside(length, self.long_held as usize) || !pool.takes_long(length)
    }

    /// Returns the long segment opened last, if it is unsent and the next frame continues it.
    fn long_open(&self) -> Option<SegmentId> {
        let id = self.long.last()?;
        let segment = self.slots.get(id)?;
        let is_open = segment.place == Place::Ready && segment.range().end() == self.next_frame;
        is_open.then_some(id)
    }

    /// Returns the space in that segment for one frame; 0: there is none.
    pub(super) fn long_open_room(&self) -> usize {
        let open = self.long_open().and_then(|id| self.slots.get(id));
        open.map_or(0, SegmentBuffer::room)
    }

    /// Returns whether [`Self::push_long`] would find space.
    ///
    /// RR-DGRAM-2.
    pub(super) fn has_room_for_long(&self, pool: &SegmentPool, length: usize) -> bool {
        let frames = self.next_frame.wrapping_sub(self.base);
        let unsent_max =
            if self.able.has_datagrams { LONG_UNSENT_MAX } else { LONG_UNSENT_ALONE_MAX };
        let has_room = || {
            self.long.len() < unsent_max && pool.has_room_for_long(self.long_held as usize, length)
        };
        frames < FRAMES_MAX - FRAMES_KEPT && (self.long_open_room() >= length || has_room())
    }

    /// Reserves a frame of a message on the stream. `None`: no space now.
    pub(super) fn push_long(&mut self, pool: &mut SegmentPool, length: usize) -> Option<Pushed> {
        if !self.has_room_for_long(pool, length) {
            return None;
        }
        debug_assert!(self.is_base_current());
        let base = self.base;
        let open = self.long_open().filter(|_| self.long_open_room() >= length);
        let id = open.unwrap_or_else(|| {
            // A segment's frames are consecutive.
            self.close_open();
            let (id, _) = self.slots.push(pool.take_long(self.next_frame, length));
            self.long.push_back(&mut self.slots, id);
            self.uncommon.add(Uncommon::QUEUED);
            self.long_held += 1;
            id
        });
        let frame = self.take_number(base);
        let segment = debug_assert_some!(self.slots.at_mut(id), "the long segment is unsent")?;
        segment.place = Place::Ready;
        Some(Pushed { frame, base, id })
    }

    /// Returns whether a message in a segment of its own would find space.
    #[inline(always)]
    pub(super) fn has_room_alone(&self, pool: &SegmentPool) -> bool {
        self.next_frame.wrapping_sub(self.base) < FRAMES_MAX - FRAMES_KEPT
            && pool.has_room(self.short_held(), false)
    }

    /// Returns the number of its segments with a buffer of a datagram's length.
    #[inline]
    fn short_held(&self) -> usize {
        self.slots.buffers() - self.long_held as usize
    }

    /// Returns whether [`Self::push`] would find space.
    ///
    /// RR-DGRAM-2.
    pub(super) fn has_room(&self, pool: &SegmentPool, length: usize, is_control: bool) -> bool {
        let fits_open = self.open_room() >= length;
        self.has_room_above(self.base, pool, fits_open, is_control)
    }

    /// Returns [`Self::has_room`] for a session whose base is known. `fits_open`: the open segment
    /// has enough space.
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
        let unsent = || self.ready.len() + self.urgent.len();
        fits_open
            || (pool.has_room(self.short_held(), is_control)
                && (is_control || unsent() < self.unsent_max as usize))
    }

    /// Returns whether a message of any length would find space, after `more` short segments.
    pub(super) fn has_any_room(&self, pool: &SegmentPool, more: usize) -> bool {
        let has_frames = self.next_frame.wrapping_sub(self.base) < FRAMES_MAX - FRAMES_KEPT;
        has_frames
            && pool.has_room(self.short_held() + more, false)
            && pool.has_room_for_long(self.long_held as usize, LONG_PAYLOAD_BYTES)
    }

    /// Reserves a frame of `length` bytes, which fit a segment. `None`: no space now.
    #[inline(always)]
    pub(super) fn push(
        &mut self,
        pool: &mut SegmentPool,
        length: usize,
        is_control: bool,
    ) -> Option<Pushed> {
        debug_assert!(length <= self.frame_bytes_max(), "a frame fits a segment");
        debug_assert!(self.is_base_current());
        let base = self.base;
        let fits_open = self.open_room() >= length;
        if !self.has_room_above(base, pool, fits_open, is_control) {
            return None;
        }
        let open = match self.open {
            Some(open) if fits_open => open,
            _ => self.open_another(pool),
        };
        self.open = Some(OpenSegment { room: open.room.saturating_sub(length), ..open });
        let id = open.id;
        let frame = self.take_number(base);
        // A stream keeps the order of all frames, for its receiver to buffer nothing.
        if is_control && self.able.has_datagrams {
            self.make_urgent(id);
        }
        Some(Pushed { frame, base, id })
    }

    /// Closes the open segment, if there is one, and opens another one.
    #[inline(always)]
    fn open_another(&mut self, pool: &mut SegmentPool) -> OpenSegment {
        self.close_open();
        let (id, _) = self.slots.push(pool.take_short(self.next_frame));
        OpenSegment { id, room: self.segment_bytes - SEGMENT_HEADER_BYTES }
    }

    /// Assigns the next frame number, given that all before `base` have arrived.
    ///
    /// RR-SEG-2.
    #[inline(always)]
    pub(super) fn take_number(&mut self, base: u32) -> u32 {
        self.chain.keep_up(base);
        let frame = self.next_frame;
        self.next_frame = frame.wrapping_add(1);
        frame
    }

    /// Reserves a frame like [`Self::push`], for a message: a priority message
    /// shares no segment with others, and its segment goes before theirs.
    #[inline(always)]
    pub(super) fn push_message(
        &mut self,
        pool: &mut SegmentPool,
        length: usize,
        hint: Hint,
    ) -> Option<Pushed> {
        if hint.leads() {
            return self.push_leading(pool, length);
        }
        self.push(pool, length, false)
    }

    #[cold]
    fn push_leading(&mut self, pool: &mut SegmentPool, length: usize) -> Option<Pushed> {
        let open = self.open.and_then(|open| self.slots.get(open.id));
        if open.is_some_and(|segment| !segment.is_urgent) {
            self.close_open();
        }
        let pushed = self.push(pool, length, false)?;
        self.make_urgent(pushed.id);
        Some(pushed)
    }

    /// Lets a segment go before those of other messages.
    fn make_urgent(&mut self, id: SegmentId) {
        if let Some(segment) = self.slots.at_mut(id) {
            segment.is_urgent = true;
        }
    }

    /// Reserves a frame that is no message, on the stream (`is_long`) or in a datagram. Returns its
    /// segment. `None`: no space now.
    pub(in crate::proto) fn push_for(
        &mut self,
        pool: &mut SegmentPool,
        length: usize,
        hint: Hint,
        is_long: bool,
    ) -> Option<SegmentId> {
        let pushed = match is_long {
            true => self.push_long(pool, length),
            false => self.push_message(pool, length, hint),
        };
        pushed.map(|pushed| pushed.id)
    }

    /// Returns the segments of bulk data that wait for their first transmission.
    pub(in crate::proto) fn unsent_bulk(&self) -> usize {
        self.slow.len()
    }

    /// Opens a segment for a single frame of bulk data of `length` bytes. `None`: no space now.
    ///
    /// RR-DGRAM-2.
    pub(in crate::proto) fn push_alone(
        &mut self,
        pool: &mut SegmentPool,
        length: usize,
    ) -> Option<SegmentId> {
        let base = self.base;
        let frames = self.next_frame.wrapping_sub(base);
        let has_room = pool.has_room_for_bulk(self.short_held());
        if frames >= FRAMES_MAX - FRAMES_KEPT || !has_room {
            return None;
        }
        self.close_open();
        let number = self.take_number(base);
        let (id, _) = self.slots.push(pool.take_short(number));
        self.slow.push_back(&mut self.slots, id);
        self.uncommon.add(Uncommon::QUEUED);
        let segment = self.slots.get_mut(id)?;
        segment.place = Place::Ready;
        segment.push(length);
        Some(id)
    }

    /// Closes the open segment to further frames.
    #[inline]
    pub(super) fn close_open(&mut self) {
        let open = self.open.take();
        let open = open.and_then(|open| Some((open.id, self.slots.get_mut(open.id)?)));
        let Some((id, segment)) = open else { return };
        segment.place = Place::Ready;
        let queue = if segment.is_urgent { &mut self.urgent } else { &mut self.ready };
        queue.push_back(&mut self.slots, id);
        self.uncommon.add(Uncommon::QUEUED);
    }
}
