//! Posted receives: each in the one bin of its shape.

use super::bins::{BinLink, Bins, Linked};
use super::slab::{NIL, Slab, Slot, SlotKey};
use super::{Hasher, MAX_SHAPES, MatchEnvelope, STAYS, Selector, Shape};

/// The class with the shape [`Shape::CONTEXT`]. Its bins also hold the receives whose shape found
/// no class of its own, so their heads are not taken unseen.
const MIXED: usize = 0;

#[derive(Clone, Copy, Debug)]
struct Node {
    sequence: u64,
    tag: u64,
    ignore: u64,
    source: u32,
    receive: u32,
    link: BinLink,
    class: u8,
    directed: bool,
}

impl Node {
    /// Whether this receive accepts `e`, the context being equal already.
    fn accepts(&self, e: &MatchEnvelope) -> bool {
        (self.tag ^ e.tag) & !self.ignore == 0 && (!self.directed || self.source == e.source)
    }
}

impl Linked for Slot<Node> {
    #[inline]
    fn link(&self) -> &BinLink {
        &self.value.link
    }

    #[inline]
    fn link_mut(&mut self) -> &mut BinLink {
        &mut self.value.link
    }
}

/// The receives of one shape.
#[derive(Debug)]
struct Class {
    shape: Shape,
    bins: Bins,
}

/// Posted receives in posting order.
#[derive(Debug, Default)]
pub(super) struct Posted {
    nodes: Slab<Node>,
    classes: Vec<Class>,
    /// Bit i: class i holds receives. The others cost an arrival nothing.
    in_use: u32,
    next_sequence: u64,
}

impl Posted {
    #[cfg(any(test, feature = "bench"))]
    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    #[inline]
    pub(super) fn insert(&mut self, hasher: &Hasher, s: &Selector, receive: u32) -> SlotKey {
        let class = self.class_for(Shape::of(s));
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        let key = self.nodes.insert(Node {
            sequence,
            tag: s.tag,
            ignore: s.ignore,
            source: s.source.unwrap_or(0),
            receive,
            link: BinLink::NONE,
            class: class as u8,
            directed: s.source.is_some(),
        });
        let Class { shape, bins } = &mut self.classes[class];
        let bin_key = shape.key_of_selector(s);
        bins.push_back(&mut self.nodes.slots, &bin_key, hasher.hash(&bin_key), key.index);
        self.in_use |= 1 << class;
        key
    }

    /// The class for receives of `shape`: its own, a new one, one that has run empty, or the mixed
    /// one.
    #[inline]
    fn class_for(&mut self, shape: Shape) -> usize {
        match self.classes.iter().position(|class| class.shape == shape) {
            Some(class) => class,
            None => self.assign_class(shape),
        }
    }

    #[cold]
    fn assign_class(&mut self, shape: Shape) -> usize {
        if self.classes.is_empty() {
            self.classes.reserve_exact(MAX_SHAPES);
            self.classes.push(Class { shape: Shape::CONTEXT, bins: Bins::default() });
            // `shape` may be that very one.
            return self.class_for(shape);
        }
        if self.classes.len() < MAX_SHAPES {
            self.classes.push(Class { shape, bins: Bins::default() });
            return self.classes.len() - 1;
        }
        let idle = (MIXED + 1..MAX_SHAPES).find(|&class| self.in_use & 1 << class == 0);
        match idle {
            Some(class) => {
                self.classes[class].shape = shape;
                class
            }
            None => MIXED,
        }
    }

    #[inline]
    pub(super) fn take(&mut self, hasher: &Hasher, e: &MatchEnvelope) -> Option<u32> {
        // Mostly one shape is in use, and no other receive can be older.
        if self.in_use.is_power_of_two() && self.in_use != 1 << MIXED && shortcut!() {
            let class = self.in_use.trailing_zeros() as usize;
            let Class { shape, bins } = &self.classes[class];
            let key = shape.key_of_envelope(e);
            let at = bins.find(&key, hasher.hash(&key))?;
            return Some(self.take_head(class, at));
        }
        let mut oldest = None;
        let mut oldest_sequence = u64::MAX;
        let mut to_try = self.in_use & !(1 << MIXED);
        while to_try != 0 {
            let class = to_try.trailing_zeros() as usize;
            to_try &= to_try - 1;
            let Class { shape, bins } = &self.classes[class];
            let key = shape.key_of_envelope(e);
            if let Some(at) = bins.find(&key, hasher.hash(&key)) {
                let sequence = self.nodes.get(bins.head(at)).sequence;
                if sequence < oldest_sequence {
                    oldest_sequence = sequence;
                    oldest = Some((class, at));
                }
            }
        }
        if self.in_use & 1 << MIXED != 0
            && let Some(index) = self.find_mixed(hasher, e)
            && self.nodes.get(index).sequence < oldest_sequence
        {
            let receive = self.nodes.get(index).receive;
            return Some(if receive & STAYS == 0 { self.remove(index) } else { receive });
        }
        let (class, at) = oldest?;
        Some(self.take_head(class, at))
    }

    /// Takes the oldest receive of a bin of a class, or finds it if it stays.
    #[inline]
    fn take_head(&mut self, class: usize, at: usize) -> u32 {
        let bins = &mut self.classes[class].bins;
        let index = bins.head(at);
        let receive = self.nodes.get(index).receive;
        if receive & STAYS != 0 {
            return receive;
        }
        bins.pop_front(&mut self.nodes.slots, at);
        if bins.is_empty() {
            self.in_use &= !(1 << class);
        }
        self.nodes.remove(index).receive
    }

    /// The oldest receive in the mixed class that accepts `e`.
    #[cold]
    fn find_mixed(&self, hasher: &Hasher, e: &MatchEnvelope) -> Option<u32> {
        let Class { shape, bins } = &self.classes[MIXED];
        let key = shape.key_of_envelope(e);
        let mut index = bins.head(bins.find(&key, hasher.hash(&key))?);
        while index != NIL {
            let node = self.nodes.get(index);
            if node.accepts(e) {
                return Some(index);
            }
            index = node.link.next();
        }
        None
    }

    pub(super) fn cancel(&mut self, key: SlotKey) -> Option<u32> {
        self.nodes.contains(key).then(|| self.remove(key.index))
    }

    /// Takes an occupied slot out of its bin and vacates it; returns the receive.
    fn remove(&mut self, index: u32) -> u32 {
        let class = self.nodes.get(index).class;
        let bins = &mut self.classes[class as usize].bins;
        bins.unlink(&mut self.nodes.slots, index);
        if bins.is_empty() {
            self.in_use &= !(1 << class);
        }
        self.nodes.remove(index).receive
    }

    /// Removes the receives directed at `source`, or all, oldest first.
    pub(super) fn drain(&mut self, source: Option<u32>, mut f: impl FnMut(u32)) {
        let drained = self.nodes.in_order(|node| {
            let wanted = source.is_none_or(|source| node.directed && node.source == source);
            wanted.then_some(node.sequence)
        });
        for &(_, index) in &drained {
            f(self.remove(index));
        }
        self.nodes.done_with(drained);
    }
}

#[cfg(test)]
impl Posted {
    pub(super) fn longest_probe(&self) -> usize {
        self.classes.iter().map(|class| class.bins.longest_probe()).max().unwrap_or(0)
    }
}
