//! The segments of a session that are not acknowledged, in the order of their frames.

use super::segment::{Place, SegmentBuffer, SegmentPool};
use super::window::is_before;
use crate::wire::{FrameRange, KeptFrames};

/// Slots of the ring when it is first used.
const SLOTS_AT_START: usize = 4;

/// Number of a segment among those of its session and direction. It is not used again before all
/// others are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SegmentId(u32);

impl SegmentId {
    /// No segment has this number.
    pub(super) const NONE: Self = Self(0);

    /// Returns it as the token of a packet. 0: no segment.
    #[inline]
    pub(crate) fn to_token(self) -> u64 {
        self.0.into()
    }

    /// Returns the segment of a packet's token.
    #[inline]
    pub(crate) fn from_token(token: u64) -> Self {
        Self(token as u32)
    }
}

/// Frames that a ring in shared memory keeps for this side: those of one segment, or of several
/// that fit one.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeptSegment {
    pub(super) range: FrameRange,
    /// Their bytes, and perhaps those of earlier ones, which have been acknowledged. `None`: they
    /// had a buffer, and packets may carry the number of their slot.
    bytes: Option<u16>,
    /// It holds part of a send that completes without the peer's acknowledgement.
    pub(super) completes_unacked: bool,
}

#[derive(Debug)]
enum Slot {
    Empty,
    Buffer(Box<SegmentBuffer>),
    Kept(KeptSegment),
}

/// A segment that left its slot.
#[derive(Debug)]
pub(in crate::proto) enum TakenSegment {
    Buffer(Box<SegmentBuffer>),
    Kept,
}

/// A ring of segments: number `n` is at `n mod len`. A segment that was acknowledged before an
/// older one leaves its slot empty. The window of frames bounds its length.
#[derive(Debug)]
pub(super) struct SegmentSlots {
    ring: Vec<Slot>,
    /// The oldest segment, or else the next one.
    head: u32,
    /// The next segment.
    tail: u32,
    held: u32,
    /// Those of them that a ring in shared memory keeps.
    kept: u32,
}

impl SegmentSlots {
    pub(super) fn new() -> Self {
        Self { ring: Vec::new(), head: 1, tail: 1, held: 0, kept: 0 }
    }

    /// Returns an empty ring that continues with the next number, so that tokens of packets sent
    /// before denote no segment.
    pub(super) fn successor(&self) -> Self {
        Self { head: self.tail, tail: self.tail, ..Self::new() }
    }

    /// Returns the number of segments.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.held as usize
    }

    /// Returns the number of segments with a buffer.
    #[inline]
    pub(super) fn buffers(&self) -> usize {
        (self.held - self.kept) as usize
    }

    #[inline]
    fn index(&self, number: u32) -> usize {
        number as usize & self.ring.len().wrapping_sub(1)
    }

    #[inline]
    fn contains(&self, SegmentId(number): SegmentId) -> bool {
        number.wrapping_sub(self.head) < self.tail.wrapping_sub(self.head)
    }

    /// Adds the next segment.
    #[inline(always)]
    pub(super) fn push(&mut self, segment: Box<SegmentBuffer>) -> (SegmentId, &mut SegmentBuffer) {
        let (id, slot) = self.push_slot();
        *slot = Slot::Buffer(segment);
        let Slot::Buffer(segment) = slot else { unreachable!("it was just assigned") };
        (id, segment)
    }

    /// Adds the next frame, of `bytes`, which a ring in shared memory keeps. Frames that follow
    /// each other share a slot as long as they fit `bytes_max`: they are one segment if the ring
    /// ends. They complete without an acknowledgement.
    #[inline(always)]
    pub(super) fn push_kept(&mut self, frame: u32, bytes: usize, bytes_max: usize) {
        let latest = self.index(self.tail.wrapping_sub(1));
        if let Some(Slot::Kept(latest)) = self.ring.get_mut(latest)
            && latest.range.end() == frame
            && let Some(held) = &mut latest.bytes
            && usize::from(*held) + bytes <= bytes_max
        {
            latest.range.count += 1;
            *held += bytes as u16;
            return;
        }
        self.push_next_kept(frame, bytes);
    }

    #[inline(never)]
    fn push_next_kept(&mut self, first: u32, bytes: usize) {
        let (range, bytes) = (FrameRange { first, count: 1 }, Some(bytes as u16));
        *self.push_slot().1 = Slot::Kept(KeptSegment { range, bytes, completes_unacked: true });
        self.kept += 1;
    }

    /// Forgets the frames before `ack` of the oldest segment, if a ring keeps it, and there are
    /// others in it. Returns whether there were any.
    pub(super) fn trim_oldest(&mut self, ack: u32) -> bool {
        let oldest = self.index(self.head);
        let Some(Slot::Kept(KeptSegment { range, .. })) = self.ring.get_mut(oldest) else {
            return false;
        };
        let is_within = is_before(range.first, ack) && is_before(ack, range.end());
        if is_within {
            range.count -= ack.wrapping_sub(range.first) as u16;
            range.first = ack;
        }
        is_within
    }

    /// Gives buffers to the segments that a ring kept, which has ended, of what its reader has not
    /// reported as read; the others have arrived. Returns `false` if the peer has overwritten it
    /// (`None`: so that no frames can be found). Buffers may be more than the pool's limit, as many
    /// as entries fit the ring. The first frames of a segment may have arrived.
    ///
    /// RR-SHM-8.
    #[must_use]
    pub(super) fn restore_kept(
        &mut self,
        pool: &mut SegmentPool,
        unread: Option<&[KeptFrames]>,
    ) -> bool {
        for id in self.ids() {
            let Some(kept) = self.get_kept(id) else { continue };
            let Some(unread) = unread else { return false };
            // What it kept was written in the order of these frames, and is read in that order.
            let mut left = unread.iter().filter(|it| {
                is_before(kept.range.first, it.range.end())
                    && !is_before(kept.range.end(), it.range.end())
            });
            let Some(first) = left.next().filter(|_| !planted!(DropKept)) else {
                self.take(id);
                continue;
            };
            let mut segment = pool.take_short(first.range.first);
            let has_all = std::iter::once(first).chain(left).all(|KeptFrames { range, bytes }| {
                range.first == segment.range().end() && segment.fill_with(range.count, bytes)
            });
            if !has_all || segment.range().end() != kept.range.end() {
                pool.recycle(segment);
                return false;
            }
            segment.place = Place::Flying;
            segment.completes_unacked = kept.completes_unacked;
            self.restore(id, segment);
        }
        true
    }

    #[inline(always)]
    fn push_slot(&mut self) -> (SegmentId, &mut Slot) {
        if self.tail == SegmentId::NONE.0 || self.span() == self.ring.len() {
            self.make_room();
        }
        let number = self.tail;
        let at = self.index(number);
        self.tail = number.wrapping_add(1);
        self.held += 1;
        let slot = &mut self.ring[at];
        debug_assert!(matches!(slot, Slot::Empty), "the slots after the newest segment are empty");
        (SegmentId(number), slot)
    }

    #[inline]
    fn span(&self) -> usize {
        self.tail.wrapping_sub(self.head) as usize
    }

    /// Skips the number that is none, and grows a full ring.
    #[cold]
    fn make_room(&mut self) {
        if self.tail == SegmentId::NONE.0 {
            if self.held == 0 {
                self.head = 1;
            }
            self.tail = 1;
        }
        if self.span() < self.ring.len() {
            return;
        }
        let mut grown = Vec::new();
        grown.resize_with((2 * self.ring.len()).max(SLOTS_AT_START), || Slot::Empty);
        for number in (0..self.span() as u32).map(|after| self.head.wrapping_add(after)) {
            let at = self.index(number);
            let to = number as usize & (grown.len() - 1);
            if let Some(slot) = self.ring.get_mut(at) {
                std::mem::swap(&mut grown[to], slot);
            }
        }
        self.ring = grown;
    }

    #[inline]
    fn slot(&self, id: SegmentId) -> Option<&Slot> {
        self.ring.get(self.index(id.0)).filter(|_| self.contains(id))
    }

    /// Returns a segment with a buffer; `None`: it was acknowledged, or has none.
    #[inline]
    pub(super) fn get(&self, id: SegmentId) -> Option<&SegmentBuffer> {
        match self.slot(id)? {
            Slot::Buffer(segment) => Some(segment),
            Slot::Empty | Slot::Kept(_) => None,
        }
    }

    /// Returns a segment without a buffer; `None`: it was acknowledged, or has one.
    pub(super) fn get_kept(&self, id: SegmentId) -> Option<KeptSegment> {
        match self.slot(id)? {
            &Slot::Kept(segment) => Some(segment),
            Slot::Empty | Slot::Buffer(_) => None,
        }
    }

    /// Returns the same as [`Self::get`], mutable.
    #[inline]
    pub(super) fn get_mut(&mut self, id: SegmentId) -> Option<&mut SegmentBuffer> {
        let (at, is_in) = (self.index(id.0), self.contains(id));
        match self.ring.get_mut(at).filter(|_| is_in)? {
            Slot::Buffer(segment) => Some(segment),
            Slot::Empty | Slot::Kept(_) => None,
        }
    }

    /// Returns a segment that must exist, such as those in a queue, mutable.
    #[inline]
    pub(super) fn at_mut(&mut self, id: SegmentId) -> Option<&mut SegmentBuffer> {
        debug_assert!(self.get(id).is_some(), "a session's queues have unacknowledged segments");
        let at = self.index(id.0);
        match self.ring.get_mut(at)? {
            Slot::Buffer(segment) => Some(segment),
            Slot::Empty | Slot::Kept(_) => None,
        }
    }

    /// Returns the frames of the oldest segment.
    #[inline]
    pub(super) fn oldest_frames(&self) -> Option<FrameRange> {
        self.oldest().map(|(range, _)| range)
    }

    /// Returns the frames of the oldest segment, and it, if it has a buffer.
    #[inline]
    pub(super) fn oldest(&self) -> Option<(FrameRange, Option<&SegmentBuffer>)> {
        match self.ring.get(self.index(self.head))? {
            Slot::Empty => None,
            Slot::Buffer(segment) => Some((segment.range(), Some(segment))),
            Slot::Kept(segment) => Some((segment.range, None)),
        }
    }

    /// Returns the number of the oldest segment.
    #[inline]
    pub(super) fn oldest_id(&self) -> Option<SegmentId> {
        (self.held > 0).then_some(SegmentId(self.head))
    }

    /// Returns the number of the newest segment with a buffer.
    pub(super) fn newest(&self) -> Option<SegmentId> {
        self.ids().rfind(|&id| self.get(id).is_some())
    }

    /// Returns all numbers, from the oldest one; some may be acknowledged.
    pub(super) fn ids(&self) -> impl DoubleEndedIterator<Item = SegmentId> + use<> {
        let head = self.head;
        (0..self.span() as u32).map(move |after| SegmentId(head.wrapping_add(after)))
    }

    /// Removes a segment.
    #[inline]
    pub(super) fn take(&mut self, id: SegmentId) -> Option<TakenSegment> {
        let (at, is_in) = (self.index(id.0), self.contains(id));
        let slot = self.ring.get_mut(at).filter(|_| is_in)?;
        let taken = match std::mem::replace(slot, Slot::Empty) {
            Slot::Empty => return None,
            Slot::Buffer(segment) => TakenSegment::Buffer(segment),
            Slot::Kept(_) => {
                self.kept -= 1;
                TakenSegment::Kept
            }
        };
        self.held -= 1;
        if id.0 == self.head {
            self.advance();
        }
        Some(taken)
    }

    /// Removes the oldest segment.
    #[inline]
    pub(super) fn take_oldest(&mut self) -> Option<TakenSegment> {
        let at = self.index(self.head);
        let taken = match std::mem::replace(self.ring.get_mut(at)?, Slot::Empty) {
            Slot::Empty => return None,
            Slot::Buffer(segment) => TakenSegment::Buffer(segment),
            Slot::Kept(_) => {
                self.kept -= 1;
                TakenSegment::Kept
            }
        };
        self.held -= 1;
        self.advance();
        Some(taken)
    }

    /// Replaces the buffer of a segment by what a ring in shared memory keeps; returns it.
    pub(super) fn keep(&mut self, id: SegmentId) -> Option<Box<SegmentBuffer>> {
        let segment = self.get(id)?;
        let (range, completes_unacked) = (segment.range(), segment.completes_unacked);
        let at = self.index(id.0);
        let kept = Slot::Kept(KeptSegment { range, bytes: None, completes_unacked });
        let Slot::Buffer(segment) = std::mem::replace(self.ring.get_mut(at)?, kept) else {
            unreachable!("it has a buffer")
        };
        self.kept += 1;
        Some(segment)
    }

    /// Replaces what a ring kept of a segment by a buffer with the last of its frames, given that
    /// the others have arrived.
    fn restore(&mut self, id: SegmentId, segment: Box<SegmentBuffer>) {
        debug_assert!(
            self.get_kept(id).is_some_and(|kept| kept.range.end() == segment.range().end())
        );
        let at = self.index(id.0);
        if let Some(slot) = self.ring.get_mut(at) {
            *slot = Slot::Buffer(segment);
            self.kept -= 1;
        }
    }

    /// Moves the head from a removed segment to the next one.
    #[inline]
    fn advance(&mut self) {
        self.head = self.head.wrapping_add(1);
        while self.head != self.tail && self.oldest_frames().is_none() {
            self.head = self.head.wrapping_add(1);
        }
    }

    /// Frees memory, if there is no segment.
    pub(super) fn shrink(&mut self) {
        if self.held == 0 {
            *self = self.successor();
        }
    }

    /// Continues with this number, as after many segments.
    #[cfg(test)]
    fn start_at(number: u32) -> Self {
        Self { head: number, tail: number, ..Self::new() }
    }
}

/// The neighbours of a segment in its queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct QueueLink {
    previous: SegmentId,
    next: SegmentId,
}

impl QueueLink {
    /// In no queue.
    pub(super) const UNLINKED: Self = Self { previous: SegmentId::NONE, next: SegmentId::NONE };
}

/// Segments that wait to be sent, linked by themselves. A segment is in one queue at most.
#[derive(Debug)]
pub(super) struct SegmentQueue {
    first: SegmentId,
    last: SegmentId,
    len: u32,
}

impl SegmentQueue {
    pub(super) const fn new() -> Self {
        Self { first: SegmentId::NONE, last: SegmentId::NONE, len: 0 }
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.len as usize
    }

    #[inline]
    pub(super) fn first(&self) -> Option<SegmentId> {
        (self.len > 0).then_some(self.first)
    }

    #[inline]
    pub(super) fn last(&self) -> Option<SegmentId> {
        (self.len > 0).then_some(self.last)
    }

    /// Returns the one after `id`.
    pub(super) fn next(&self, slots: &SegmentSlots, id: SegmentId) -> Option<SegmentId> {
        let next = slots.get(id)?.link.next;
        (next != SegmentId::NONE).then_some(next)
    }

    #[inline]
    pub(super) fn push_back(&mut self, slots: &mut SegmentSlots, id: SegmentId) {
        let previous = std::mem::replace(&mut self.last, id);
        match slots.get_mut(previous) {
            Some(segment) => segment.link.next = id,
            None => self.first = id,
        }
        if let Some(segment) = slots.at_mut(id) {
            segment.link = QueueLink { previous, next: SegmentId::NONE };
        }
        self.len += 1;
    }

    /// Removes `id`, which must be in this queue.
    pub(super) fn unlink(&mut self, slots: &mut SegmentSlots, id: SegmentId) {
        let Some(segment) = slots.at_mut(id) else { return };
        let QueueLink { previous, next } =
            std::mem::replace(&mut segment.link, QueueLink::UNLINKED);
        match slots.get_mut(previous) {
            Some(segment) => segment.link.next = next,
            None => self.first = next,
        }
        match slots.get_mut(next) {
            Some(segment) => segment.link.previous = previous,
            None => self.last = previous,
        }
        self.len -= 1;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn agrees_with_a_list(
            start in prop_oneof![Just(1u32), u32::MAX - 8..=u32::MAX],
            steps in proptest::collection::vec((0u8..7, any::<prop::sample::Index>()), 1..200),
        ) {
            let mut pool = SegmentPool::of_bytes(200, 1 << 20);
            let mut slots = SegmentSlots::start_at(start);
            let mut queue = SegmentQueue::new();
            // Numbers with their first frames, oldest first; those that wait, in their order.
            let (mut held, mut waiting) = (Vec::new(), Vec::new());
            for (frame, (what, which)) in (0u32..).zip(steps) {
                match what {
                    0..=2 => {
                        let mut segment = pool.take_short(frame);
                        prop_assert!(segment.fill_with(1, b"its frame"));
                        let (id, _) = slots.push(segment);
                        prop_assert!(id != SegmentId::NONE && !held.contains(&(id, frame)));
                        held.push((id, frame));
                        if what > 0 {
                            queue.push_back(&mut slots, id);
                            waiting.push(id);
                        }
                    }
                    5 => {
                        // No other fits.
                        slots.push_kept(frame, 1, 1);
                        held.push((slots.ids().last().unwrap(), frame));
                    }
                    // Its buffer is given back, or it gets one.
                    6 if !held.is_empty() => {
                        let (id, frame) = held[which.index(held.len())];
                        if slots.get_kept(id).is_some() {
                            let mut segment = pool.take_short(frame);
                            prop_assert!(segment.fill_with(1, b"its frame"));
                            slots.restore(id, segment);
                        } else if !waiting.contains(&id)
                            && let Some(segment) = slots.keep(id)
                        {
                            prop_assert_eq!(segment.first_frame, frame);
                            pool.recycle(segment);
                        }
                    }
                    3 if !waiting.is_empty() => {
                        let id = waiting.remove(which.index(waiting.len()));
                        queue.unlink(&mut slots, id);
                    }
                    _ if !held.is_empty() => {
                        let (id, frame) = held.remove(which.index(held.len()));
                        if let Some(at) = waiting.iter().position(|&it| it == id) {
                            waiting.remove(at);
                            queue.unlink(&mut slots, id);
                        }
                        let was_kept = slots.get_kept(id).is_some();
                        match slots.take(id).unwrap() {
                            TakenSegment::Buffer(segment) => {
                                prop_assert_eq!(segment.first_frame, frame);
                                pool.recycle(segment);
                            }
                            TakenSegment::Kept => prop_assert!(was_kept),
                        }
                        prop_assert!(slots.get(id).is_none() && slots.take(id).is_none());
                    }
                    _ => slots.shrink(),
                }
                prop_assert_eq!(slots.len(), held.len());
                let oldest = slots.oldest_frames().map(|range| range.first);
                prop_assert_eq!(oldest, held.first().map(|&(_, frame)| frame));
                let mut with_buffer = held.iter().filter(|&&(id, _)| slots.get(id).is_some());
                prop_assert_eq!(slots.buffers(), with_buffer.clone().count());
                prop_assert_eq!(slots.newest(), with_buffer.next_back().map(|&(id, _)| id));
                for &(id, frame) in &held {
                    let kept = slots.get_kept(id).map(|kept| kept.range);
                    let range = kept.or_else(|| slots.get(id).map(SegmentBuffer::range));
                    prop_assert_eq!(range, Some(FrameRange { first: frame, count: 1 }));
                }
                let mut queued = Vec::new();
                let mut at = queue.first();
                while let Some(id) = at {
                    queued.push(id);
                    at = queue.next(&slots, id);
                }
                prop_assert_eq!(&queued, &waiting);
                prop_assert_eq!(queue.last(), waiting.last().copied());
            }
        }
    }

    #[test]
    fn kept_frames_in_a_row_share_a_slot_as_long_as_they_fit_a_segment() {
        let mut slots = SegmentSlots::new();
        for frame in 0..5 {
            slots.push_kept(frame, 40, 120);
        }
        // Not the next one.
        slots.push_kept(7, 40, 120);
        let ranges = |slots: &SegmentSlots| -> Vec<(u32, u16)> {
            let kept = slots.ids().filter_map(|id| slots.get_kept(id));
            kept.map(|it| (it.range.first, it.range.count)).collect()
        };
        assert_eq!(ranges(&slots), [(0, 3), (3, 2), (7, 1)]);
        assert_eq!((slots.len(), slots.buffers()), (3, 0));
        assert!(slots.trim_oldest(2) && !slots.trim_oldest(2));
        assert_eq!(ranges(&slots), [(2, 1), (3, 2), (7, 1)]);
        assert!(matches!(slots.take_oldest(), Some(TakenSegment::Kept)));
        assert!(slots.trim_oldest(4) && !slots.trim_oldest(5));
        assert_eq!(ranges(&slots), [(4, 1), (7, 1)]);
    }

    #[test]
    fn a_kept_frame_after_a_buffer_has_a_slot_of_its_own() {
        let (mut pool, mut slots) = (SegmentPool::of_bytes(200, 1 << 20), SegmentSlots::new());
        slots.push_kept(0, 40, 120);
        let (id, _) = slots.push(pool.take_short(1));
        slots.push_kept(1, 40, 120);
        assert_eq!((slots.len(), slots.buffers()), (3, 1));
        assert!(slots.take(id).is_some());
        assert_eq!(slots.oldest_frames(), Some(FrameRange { first: 0, count: 1 }));
    }
}
