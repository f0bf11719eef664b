//! The segments of a session that are not acknowledged, in the order of their frames.

use super::segment::SegmentBuffer;

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

/// A ring of segments: number `n` is at `n mod len`. A segment that was acknowledged before an
/// older one leaves its slot empty. The window of frames bounds its length.
#[derive(Debug)]
pub(super) struct SegmentSlots {
    ring: Vec<Option<Box<SegmentBuffer>>>,
    /// The oldest segment, or else the next one.
    head: u32,
    /// The next segment.
    tail: u32,
    held: u32,
}

impl SegmentSlots {
    pub(super) fn new() -> Self {
        Self { ring: Vec::new(), head: 1, tail: 1, held: 0 }
    }

    /// Returns an empty ring that continues with the next number, so that tokens of packets sent
    /// before denote no segment.
    pub(super) fn successor(&self) -> Self {
        Self { ring: Vec::new(), head: self.tail, tail: self.tail, held: 0 }
    }

    /// Returns the number of segments.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.held as usize
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
        if self.tail == SegmentId::NONE.0 || self.span() == self.ring.len() {
            self.make_room();
        }
        let number = self.tail;
        let at = self.index(number);
        self.tail = number.wrapping_add(1);
        self.held += 1;
        let slot = &mut self.ring[at];
        debug_assert!(slot.is_none(), "the slots after the newest segment are empty");
        (SegmentId(number), slot.insert(segment))
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
        grown.resize_with((2 * self.ring.len()).max(SLOTS_AT_START), || None);
        for number in (0..self.span() as u32).map(|after| self.head.wrapping_add(after)) {
            let at = self.index(number);
            let to = number as usize & (grown.len() - 1);
            grown[to] = self.ring.get_mut(at).and_then(Option::take);
        }
        self.ring = grown;
    }

    /// Returns a segment; `None`: it was acknowledged.
    #[inline]
    pub(super) fn get(&self, id: SegmentId) -> Option<&SegmentBuffer> {
        let segment = self.ring.get(self.index(id.0)).filter(|_| self.contains(id))?;
        segment.as_deref()
    }

    /// Returns the same, mutable.
    #[inline]
    pub(super) fn get_mut(&mut self, id: SegmentId) -> Option<&mut SegmentBuffer> {
        let (at, is_in) = (self.index(id.0), self.contains(id));
        self.ring.get_mut(at).filter(|_| is_in)?.as_deref_mut()
    }

    /// Returns a segment that must exist, such as those in a queue, mutable.
    #[inline]
    pub(super) fn at_mut(&mut self, id: SegmentId) -> Option<&mut SegmentBuffer> {
        debug_assert!(self.get(id).is_some(), "a session's queues have unacknowledged segments");
        let at = self.index(id.0);
        self.ring.get_mut(at)?.as_deref_mut()
    }

    /// Returns the oldest segment.
    #[inline]
    pub(super) fn oldest(&self) -> Option<&SegmentBuffer> {
        self.ring.get(self.index(self.head))?.as_deref()
    }

    /// Returns the number of the oldest segment.
    #[inline]
    pub(super) fn oldest_id(&self) -> Option<SegmentId> {
        self.oldest().map(|_| SegmentId(self.head))
    }

    /// Returns the number of the newest segment.
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
    pub(super) fn take(&mut self, id: SegmentId) -> Option<Box<SegmentBuffer>> {
        let (at, is_in) = (self.index(id.0), self.contains(id));
        let segment = self.ring.get_mut(at).filter(|_| is_in)?.take()?;
        self.held -= 1;
        if id.0 == self.head {
            self.advance();
        }
        Some(segment)
    }

    /// Removes the oldest segment.
    #[inline]
    pub(super) fn take_oldest(&mut self) -> Option<Box<SegmentBuffer>> {
        let at = self.index(self.head);
        let segment = self.ring.get_mut(at)?.take()?;
        self.held -= 1;
        self.advance();
        Some(segment)
    }

    /// Moves the head from a removed segment to the next one.
    #[inline]
    fn advance(&mut self) {
        self.head = self.head.wrapping_add(1);
        while self.head != self.tail && self.oldest().is_none() {
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

    use super::super::segment::SegmentPool;
    use super::*;

    proptest! {
        #[test]
        fn agrees_with_a_list(
            start in prop_oneof![Just(1u32), u32::MAX - 8..=u32::MAX],
            steps in proptest::collection::vec((0u8..5, any::<prop::sample::Index>()), 1..200),
        ) {
            let mut pool = SegmentPool::new(200, 1 << 20);
            let mut slots = SegmentSlots::start_at(start);
            let mut queue = SegmentQueue::new();
            // Numbers with their first frames, oldest first; those that wait, in their order.
            let (mut held, mut waiting) = (Vec::new(), Vec::new());
            for (frame, (what, which)) in (0u32..).zip(steps) {
                match what {
                    0..=2 => {
                        let (id, _) = slots.push(pool.take_short(frame));
                        prop_assert!(id != SegmentId::NONE && !held.contains(&(id, frame)));
                        held.push((id, frame));
                        if what > 0 {
                            queue.push_back(&mut slots, id);
                            waiting.push(id);
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
                        let segment = slots.take(id).unwrap();
                        prop_assert_eq!(segment.first_frame, frame);
                        prop_assert!(slots.get(id).is_none() && slots.take(id).is_none());
                        pool.recycle(segment);
                    }
                    _ => slots.shrink(),
                }
                prop_assert_eq!(slots.len(), held.len());
                let oldest = slots.oldest().map(|segment| segment.first_frame);
                prop_assert_eq!(oldest, held.first().map(|&(_, frame)| frame));
                prop_assert_eq!(slots.newest(), held.last().map(|&(id, _)| id));
                for &(id, frame) in &held {
                    prop_assert_eq!(slots.get(id).map(|segment| segment.first_frame), Some(frame));
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
}
