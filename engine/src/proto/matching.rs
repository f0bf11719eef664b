//! Message matching: the assignment of messages to receives.
//!
//! Order, as MPI and libfabric require it: an arriving message takes the *oldest* posted receive
//! that accepts it, whatever kind that receive is; a new receive takes the *oldest* unexpected
//! message that it accepts. With messages passed in send order, that is FIFO per (source, target,
//! context).
//!
//! # Shapes
//!
//! The wildcards of a receive are its *shape*: the tag bits it ignores, and whether it names a
//! source. A program uses very few shapes, but they are not always the plain two: MPICH, for one,
//! ignores some protocol bits in every receive it posts. So wildcards are not a slow path here.
//! Each shape has its own hash table of FIFO bins, keyed by the compared fields:
//!
//! ```text
//!  shape (ignore, source?)        bins                        oldest first
//!  ┌──────────────────────┐   ┌───────────────────────────┐
//!  │ ignore 0,   directed │──▶│ context 7, tag 42, rank 3 │──▶ node ⇄ node ⇄ node
//!  ├──────────────────────┤   ├───────────────────────────┤
//!  │ ignore 0,   any      │──▶│ context 7, tag 42         │──▶ node
//!  ├──────────────────────┤   ├───────────────────────────┤
//!  │ ignore 0xff, any     │──▶│ context 7, tag & !0xff    │──▶ node ⇄ node
//!  └──────────────────────┘   └───────────────────────────┘
//! ```
//!
//! * A posted receive is in the one bin of its shape. An arrival looks into one bin per shape that
//!   has receives posted, and takes the head with the lowest posting sequence.
//! * An unexpected message is in one bin of every shape that receives have used lately. A receive
//!   looks into one bin.
//!
//! Two cases need no hash: a single posted receive is in no bin (an arrival is compared with it),
//! and the bin of the last look-up is tried first, since the next message or receive usually has
//! the same key.
//!
//! So the cost is O(shapes in use), independent of depth. Shapes beyond [`MAX_SHAPES`] still match
//! correctly: their receives are walked one by one, per context.
//!
//! Nothing is allocated once tables and slabs have grown to the depth in use; they grow by
//! doubling and keep their memory. Sources are numbers of the local address vector; tags and
//! contexts come from peers, so the hash is keyed by the seed (see `hash.rs`).

mod bins;
mod hash;
mod posted;
mod slab;
mod slots;
#[cfg(test)]
mod tests;
mod unexpected;

use super::table::Id;
use bins::BinKey;
pub(crate) use hash::Hasher;
use posted::PostedReceives;
use slots::Vacancies;
pub(crate) use slots::{OperationSlot, OperationSlots, SlotState};
use unexpected::UnexpectedQueue;

/// Shapes that get bins of their own, for posted receives and for unexpected messages each; one of
/// them is the per-context list that serves all further shapes.
const MAX_SHAPES: usize = 8;

/// Matching fields of an arriving message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MatchEnvelope {
    /// The sender.
    pub(crate) source: u32,
    /// The matching context; compared whole.
    pub(crate) context: u64,
    /// The tag.
    pub(crate) tag: u64,
}

/// A message that is kept as unexpected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kept {
    /// The caller's number of the message.
    pub(crate) message: u32,
    /// Its matching fields.
    pub(crate) envelope: MatchEnvelope,
}

/// Selection of messages by a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Selector {
    /// The only sender accepted; `None` accepts any.
    pub(crate) source: Option<u32>,
    /// The matching context; there is no wildcard for it.
    pub(crate) context: u64,
    /// The tag, outside the bits of `ignore`.
    pub(crate) tag: u64,
    /// Tag bits that are not compared.
    pub(crate) ignore: u64,
}

impl Selector {
    /// Returns whether a receive of this kind may take a message with envelope `e`.
    pub(crate) fn accepts(&self, e: &MatchEnvelope) -> bool {
        self.context == e.context
            && (self.tag ^ e.tag) & !self.ignore == 0
            && self.source.is_none_or(|source| source == e.source)
    }
}

/// Identifies one unexpected message until it is taken, removed or drained; stale keys are
/// detected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UnexpectedKey(slab::SlotKey);

/// The wildcards of a selector, as masks that turn an envelope into the key of a bin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SelectorShape {
    tag_mask: u64,
    source_mask: u32,
}

impl SelectorShape {
    /// Compares the context only: the shape of the list that serves shapes without own bins.
    const CONTEXT: Self = Self { tag_mask: 0, source_mask: 0 };

    fn of(s: &Selector) -> Self {
        let source_mask = if s.source.is_some() { u32::MAX } else { 0 };
        Self { tag_mask: !s.ignore, source_mask }
    }

    fn key(self, context: u64, tag: u64, source: u32) -> BinKey {
        BinKey { context, tag: tag & self.tag_mask, source: source & self.source_mask }
    }

    fn key_of_envelope(self, e: &MatchEnvelope) -> BinKey {
        self.key(e.context, e.tag, e.source)
    }

    fn key_of_selector(self, s: &Selector) -> BinKey {
        self.key(s.context, s.tag, s.source.unwrap_or(0))
    }
}

/// The matching state of one endpoint: posted receives and unexpected messages.
///
/// Receives are named by the indices of their slots, which the engine's matchers share. Numbers of
/// messages are the caller's own; they are stored and returned, never interpreted.
///
/// The caller keeps the two sides apart: an arrival first calls [`take_posted`](Self::take_posted)
/// and is inserted as unexpected only if that finds none; a new receive first calls
/// [`take_unexpected`](Self::take_unexpected) and is posted only if that finds none.
#[derive(Debug)]
pub(crate) struct Matcher {
    hasher: Hasher,
    posted: PostedReceives,
    unexpected: UnexpectedQueue,
}

impl Matcher {
    /// Creates an empty matcher. `seed` keys the hash and should be unpredictable to peers.
    /// Allocates nothing until the first insertion.
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            hasher: Hasher::new(seed),
            posted: PostedReceives::default(),
            unexpected: UnexpectedQueue::default(),
        }
    }

    /// Matches an arriving message: returns the index of the oldest posted receive that accepts it,
    /// and removes that from its bin unless it is a multi-receive.
    ///
    /// RR-MATCH-2.
    #[inline]
    pub(crate) fn take_posted(
        &mut self,
        receives: &mut OperationSlots,
        e: &MatchEnvelope,
    ) -> Option<u32> {
        self.posted.take(receives, &self.hasher, e, |_, index, _| index)
    }

    /// Returns the index of the receive that [`take_posted`](Self::take_posted) would return, which
    /// stays posted.
    pub(crate) fn find_posted(&self, receives: &OperationSlots, e: &MatchEnvelope) -> Option<u32> {
        self.posted.find(receives, &self.hasher, e)
    }

    /// Matches a whole message: as [`take_posted`](Self::take_posted), and vacates the slot of the
    /// receive, whose id and capacity it returns. `Some(None)`: it is a multi-receive.
    ///
    /// RR-MATCH-2.
    #[inline(always)]
    pub(crate) fn take_whole(
        &mut self,
        receives: &mut OperationSlots,
        e: &MatchEnvelope,
    ) -> Option<Option<(Id, u64)>> {
        self.posted.take(receives, &self.hasher, e, Vacancies::add_matched)
    }

    /// Adds a message that found no receive, after all that arrived before it.
    #[inline]
    pub(crate) fn insert_unexpected(&mut self, e: &MatchEnvelope, message: u32) -> UnexpectedKey {
        UnexpectedKey(self.unexpected.insert(&self.hasher, e, message))
    }

    /// Adds a message that a receive had matched and returned: before all arrived ones, and after
    /// those that were put back with a lower `order`.
    pub(crate) fn put_back(&mut self, e: &MatchEnvelope, message: u32, order: u64) {
        self.unexpected.put_back(&self.hasher, e, message, order);
    }

    /// Matches a receive being posted: removes and returns the oldest unexpected message it
    /// accepts.
    #[inline]
    pub(crate) fn take_unexpected(&mut self, s: &Selector) -> Option<Kept> {
        self.unexpected.take(&self.hasher, s)
    }

    /// Posts a receive or multi-receive that found no unexpected message, after all posted before
    /// it.
    pub(crate) fn insert_posted(&mut self, receives: &mut OperationSlots, index: u32) {
        let selector = receives.at(index).selector();
        self.posted.insert(&mut receives.entries, &self.hasher, index, &selector);
    }

    /// Posts a new receive at `endpoint` that found no unexpected message, after all posted before
    /// it. `None`: all slots are in use.
    #[inline(always)]
    pub(crate) fn post(
        &mut self,
        receives: &mut OperationSlots,
        endpoint: u16,
        selector: &Selector,
        capacity: u64,
    ) -> Option<Id> {
        let Some((id, entries)) = receives.reuse(endpoint, selector, capacity) else {
            return self.post_in_new(receives, (endpoint, capacity), &Selector { ..*selector });
        };
        self.posted.insert(entries, &self.hasher, id.index() as u32, selector);
        Some(id)
    }

    /// Does the same where no slot is vacant.
    #[cold]
    fn post_in_new(
        &mut self,
        receives: &mut OperationSlots,
        (endpoint, capacity): (u16, u64),
        selector: &Selector,
    ) -> Option<Id> {
        let id = receives.insert(endpoint, selector, capacity)?;
        self.insert_posted(receives, id.index() as u32);
        Some(id)
    }

    /// Returns the message that [`take_unexpected`](Self::take_unexpected) would take, without
    /// removing it; `&mut` because a shape seen for the first time gets its bins here, so that a
    /// program which probes in a loop does not scan the queue each time.
    pub(crate) fn peek_unexpected(&mut self, s: &Selector) -> Option<Kept> {
        self.unexpected.peek(&self.hasher, s)
    }

    /// Removes a receive or multi-receive from those that are posted. Returns whether it was.
    pub(crate) fn cancel_posted(&mut self, receives: &mut OperationSlots, index: u32) -> bool {
        let is_posted = receives.at(index).is_posted();
        if is_posted {
            self.posted.remove(&mut receives.entries, index);
        }
        is_posted
    }

    #[cfg(test)]
    /// Removes a message that its sender cancelled. `None` when it was taken, removed or drained
    /// before. O(shapes in use).
    pub(crate) fn remove_unexpected(&mut self, key: UnexpectedKey) -> Option<u32> {
        self.unexpected.cancel(key.0).map(|kept| kept.message)
    }

    /// Removes the unexpected messages of a lost peer in arrival order. Scans all messages and
    /// sorts: not for the data path.
    pub(crate) fn drain_unexpected_from(&mut self, source: u32, f: impl FnMut(Kept)) {
        self.unexpected.drain(Some(source), f);
    }

    /// Removes every unexpected message in arrival order.
    pub(crate) fn drain_all_unexpected(&mut self, f: impl FnMut(Kept)) {
        self.unexpected.drain(None, f);
    }

    #[cfg(any(test, feature = "bench"))]
    /// Returns the number of receives posted and not yet matched.
    pub(crate) fn posted_len(&self) -> usize {
        self.posted.len()
    }

    /// Returns the number of messages waiting for a receive.
    pub(crate) fn unexpected_len(&self) -> usize {
        self.unexpected.len()
    }
}
