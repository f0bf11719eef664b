//! Unexpected messages: each in one bin of every view.
//!
//! A view orders all unexpected messages by the key of one shape. Receives create views: the first
//! one of a shape that meets unexpected messages pays for indexing them, later messages are indexed
//! as they arrive. A program that uses one shape pays for one view.

use super::bins::{BinLink, Bins};
use super::slab::{NIL, Slab, SlotKey};
use super::{Hasher, Kept, MAX_SHAPES, MatchEnvelope, Selector, SelectorShape};

/// The view with the shape [`SelectorShape::CONTEXT`]; selectors whose shape found no view of its
/// own scan its bins.
const ARRIVAL_ORDER: usize = 0;

/// A view that no receive has used during this many arrivals ends when the queue is next empty.
/// High enough that phases of a program do not recreate views: a view in use costs some tens of
/// nanoseconds per message, its recreation costs an indexing of the queued messages. Low in unit
/// tests, so that random sequences reach it.
const IDLE_ARRIVALS: u64 = if cfg!(test) { 8 } else { 1 << 14 };

/// Sequence of the first message that arrives. Messages that are put back have lower ones.
const FIRST_ARRIVAL: u64 = 1 << 63;

/// 32 bytes: there may be millions.
#[derive(Clone, Copy, Debug)]
struct Node {
    sequence: u64,
    context: u64,
    tag: u64,
    source: u32,
    message: u32,
}

impl Node {
    fn new(sequence: u64, e: &MatchEnvelope, message: u32) -> Self {
        let MatchEnvelope { source, context, tag } = *e;
        Self { sequence, context, tag, source, message }
    }

    fn envelope(&self) -> MatchEnvelope {
        let Self { source, context, tag, .. } = *self;
        MatchEnvelope { source, context, tag }
    }

    fn kept(&self) -> Kept {
        Kept { message: self.message, envelope: self.envelope() }
    }
}

#[derive(Debug)]
struct View {
    shape: SelectorShape,
    bins: Bins,
    /// The links of the messages in this view, by slot.
    links: Vec<BinLink>,
    /// The arrival sequence at the last use by a receive.
    asked: u64,
}

impl View {
    #[inline]
    fn push_back(&mut self, hasher: &Hasher, e: &MatchEnvelope, index: u32) {
        if self.links.len() <= index as usize {
            self.links.resize(index as usize + 1, BinLink::NONE);
        }
        let key = self.shape.key_of_envelope(e);
        self.bins.push_back(&mut self.links, &key, hasher.hash(&key), index);
    }

    /// Inserts a message before those of its bin whose sequence is higher.
    fn insert_by_sequence(&mut self, hasher: &Hasher, nodes: &Slab<Node>, index: u32) {
        let (sequence, envelope) = (nodes.get(index).sequence, nodes.get(index).envelope());
        let key = self.shape.key_of_envelope(&envelope);
        let mut later = Vec::new();
        if let Some(at) = self.bins.find(&key, hasher.hash(&key)) {
            let mut next = self.bins.head(at);
            while next != NIL {
                if nodes.get(next).sequence > sequence {
                    later.push(next);
                }
                next = self.links[next as usize].next();
            }
        }
        for &other in &later {
            self.bins.unlink(&mut self.links, other);
        }
        self.push_back(hasher, &envelope, index);
        for other in later {
            self.push_back(hasher, &nodes.get(other).envelope(), other);
        }
    }
}

/// Unexpected messages in arrival order.
#[derive(Debug, Default)]
pub(super) struct UnexpectedQueue {
    nodes: Slab<Node>,
    views: Vec<View>,
    /// Bit i: view i holds every message. The others hold none and keep only their memory.
    live: u32,
    next_sequence: u64,
}

impl UnexpectedQueue {
    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    #[inline]
    pub(super) fn insert(&mut self, hasher: &Hasher, e: &MatchEnvelope, message: u32) -> SlotKey {
        if self.nodes.len() == 0 {
            self.retire_idle_views();
        }
        let sequence = FIRST_ARRIVAL + self.next_sequence;
        self.next_sequence += 1;
        let key = self.nodes.insert(Node::new(sequence, e, message));
        debug_assert_eq!(self.live >> self.views.len(), 0, "only views that exist are live");
        let mut live = self.live;
        while live != 0 {
            let view = live.trailing_zeros() as usize;
            live &= live - 1;
            self.views[view].push_back(hasher, e, key.index);
        }
        key
    }

    /// Adds a message before all that arrived, and after those put back with a lower `order`. Scans
    /// the bins that it is added to.
    #[cold]
    pub(super) fn put_back(
        &mut self,
        hasher: &Hasher,
        e: &MatchEnvelope,
        message: u32,
        order: u64,
    ) {
        let sequence = order.min(FIRST_ARRIVAL - 1);
        let index = self.nodes.insert(Node::new(sequence, e, message)).index;
        for view in 0..self.views.len() {
            if self.live & 1 << view != 0 {
                self.views[view].insert_by_sequence(hasher, &self.nodes, index);
            }
        }
    }

    /// Ends the views that no receive has used lately. The queue is empty, and so are they.
    #[inline]
    fn retire_idle_views(&mut self) {
        let mut live = self.live;
        while live != 0 {
            let view = live.trailing_zeros() as usize;
            live &= live - 1;
            debug_assert!(self.views[view].bins.is_empty(), "no message is in an empty queue");
            if self.next_sequence - self.views[view].asked > IDLE_ARRIVALS {
                self.live &= !(1 << view);
            }
        }
    }

    #[inline]
    pub(super) fn take(&mut self, hasher: &Hasher, s: &Selector) -> Option<Kept> {
        let (view, at, index) = self.find(hasher, s)?;
        let others = self.live & !(1 << view);
        let View { bins, links, .. } = &mut self.views[view];
        if bins.head(at) == index {
            bins.pop_front(links, at);
        } else {
            bins.unlink(links, index);
        }
        Some(self.remove_from(others, index))
    }

    pub(super) fn peek(&mut self, hasher: &Hasher, s: &Selector) -> Option<Kept> {
        let (_, _, index) = self.find(hasher, s)?;
        Some(self.nodes.get(index).kept())
    }

    /// Finds the oldest message that `s` accepts: its view, the bin there, the slot.
    #[inline]
    fn find(&mut self, hasher: &Hasher, s: &Selector) -> Option<(usize, usize, u32)> {
        if self.nodes.len() == 0 {
            return None;
        }
        let shape = SelectorShape::of(s);
        let known = self.views.iter().position(|view| view.shape == shape);
        let view = match known {
            Some(view) if self.live & 1 << view != 0 => view,
            _ => self.bring_to_life(hasher, shape, known),
        };
        let View { shape: found, bins, links, asked } = &mut self.views[view];
        *asked = self.next_sequence;
        let key = found.key_of_selector(s);
        let at = bins.find(&key, hasher.hash(&key))?;
        let mut index = bins.head(at);
        if *found != shape {
            // Not a view of this shape, but the one of all messages in the context.
            while !s.accepts(&self.nodes.get(index).envelope()) {
                index = links[index as usize].next();
                if index == NIL {
                    return None;
                }
            }
        }
        Some((view, at, index))
    }

    /// Returns a live view for receives of `shape`: its own where possible, or the arrival order.
    /// `known` is a view of this shape that is not live.
    #[cold]
    fn bring_to_life(
        &mut self,
        hasher: &Hasher,
        shape: SelectorShape,
        known: Option<usize>,
    ) -> usize {
        if self.views.is_empty() {
            self.views.reserve_exact(MAX_SHAPES);
            self.add_view(SelectorShape::CONTEXT);
        }
        let idle = |live: u32| (ARRIVAL_ORDER + 1..MAX_SHAPES).find(|&i| live & 1 << i == 0);
        let view = if let Some(view) = known {
            view
        } else if shape == SelectorShape::CONTEXT {
            ARRIVAL_ORDER
        } else if self.views.len() < MAX_SHAPES {
            self.add_view(shape)
        } else if let Some(view) = idle(self.live) {
            self.views[view].shape = shape;
            view
        } else {
            ARRIVAL_ORDER
        };
        if self.live & 1 << view == 0 {
            debug_assert!(self.views[view].bins.is_empty(), "a view that is not live holds none");
            self.live |= 1 << view;
            let arrived = self.nodes.in_order(|node| Some(node.sequence));
            for &(_, index) in &arrived {
                self.views[view].push_back(hasher, &self.nodes.get(index).envelope(), index);
            }
            self.nodes.done_with(arrived);
        }
        view
    }

    fn add_view(&mut self, shape: SelectorShape) -> usize {
        self.views.push(View { shape, bins: Bins::default(), links: Vec::new(), asked: 0 });
        self.views.len() - 1
    }

    #[cfg(test)]
    pub(super) fn cancel(&mut self, key: SlotKey) -> Option<Kept> {
        self.nodes.contains(key).then(|| self.remove_from(self.live, key.index))
    }

    /// Removes an occupied slot from the views in `views` and vacates it; returns the message.
    #[inline]
    fn remove_from(&mut self, mut views: u32, index: u32) -> Kept {
        while views != 0 {
            let view = views.trailing_zeros() as usize;
            views &= views - 1;
            let View { bins, links, .. } = &mut self.views[view];
            bins.unlink(links, index);
        }
        debug_assert!(
            self.nodes.len() > 1 || self.views.iter().all(|view| view.bins.is_empty()),
            "the last message leaves all views"
        );
        self.nodes.remove(index).kept()
    }

    /// Removes the messages of `source`, or all, in arrival order.
    pub(super) fn drain(&mut self, source: Option<u32>, mut f: impl FnMut(Kept)) {
        let drained = self.nodes.in_order(|node| {
            let wanted = source.is_none_or(|source| node.source == source);
            wanted.then_some(node.sequence)
        });
        for &(_, index) in &drained {
            f(self.remove_from(self.live, index));
        }
        self.nodes.done_with(drained);
    }
}

#[cfg(test)]
impl UnexpectedQueue {
    pub(super) fn longest_probe(&self) -> usize {
        self.views.iter().map(|view| view.bins.longest_probe()).max().unwrap_or(0)
    }

    pub(super) fn live_views(&self) -> u32 {
        self.live.count_ones()
    }
}
