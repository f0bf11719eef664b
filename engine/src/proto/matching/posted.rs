//! Posted receives: each in the one bin of its shape.

use std::fmt;

use super::bins::{BinLink, Bins, Linked};
use super::slab::{NIL, Slab, Slot, SlotKey};
use super::{Hasher, MAX_SHAPES, MatchEnvelope, STAYS, Selector, Shape};

/// The class with the shape [`Shape::CONTEXT`]. Its bins also hold the receives whose shape found
/// no class of its own, so their heads have to be compared.
const MIXED: usize = 0;

#[derive(Clone, Copy, Debug)]
struct Node {
    sequence: u64,
    context: u64,
    tag: u64,
    ignore: u64,
    source: u32,
    receive: u32,
    link: BinLink,
    class: u8,
    directed: bool,
}

impl Node {
    #[inline]
    fn new(sequence: u64, class: usize, s: &Selector, receive: u32, link: BinLink) -> Self {
        Self {
            sequence,
            context: s.context,
            tag: s.tag,
            ignore: s.ignore,
            source: s.source.unwrap_or(0),
            receive,
            link,
            class: class as u8,
            directed: s.source.is_some(),
        }
    }

    fn selector(&self) -> Selector {
        let source = self.directed.then_some(self.source);
        Selector { source, context: self.context, tag: self.tag, ignore: self.ignore }
    }

    /// Returns whether this receive accepts `e`, given that the contexts are equal.
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
#[derive(Default)]
pub(super) struct Posted {
    nodes: Slab<Node>,
    classes: Vec<Class>,
    /// Bit i: class i holds receives. An arrival skips the others.
    in_use: u32,
    next_sequence: u64,
    /// The only receive, while it is in no bin: it needs none to be found.
    lone: Option<u32>,
    /// Position of the last look-up: the next one is usually for the same bin.
    latest: Latest,
}

/// A class, and an index in the table of its bins, to try first. The bin there may be another one.
#[derive(Clone, Copy, Default)]
struct Latest {
    class: u32,
    at: u32,
}

impl Latest {
    #[inline]
    fn new(class: usize, at: usize) -> Self {
        Self { class: class as u32, at: at as u32 }
    }

    #[inline]
    fn place(self) -> (usize, usize) {
        (self.class as usize, self.at as usize)
    }
}

/// Prints the receives in order. Their positions depend on earlier look-ups.
impl fmt::Debug for Posted {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut nodes: Vec<&Node> = self.nodes.iter().collect();
        nodes.sort_unstable_by_key(|node| node.sequence);
        let posted = nodes.iter().map(|node| (node.sequence, node.selector(), node.receive));
        out.debug_list().entries(posted).finish()
    }
}

impl Posted {
    #[cfg(any(test, feature = "bench"))]
    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    #[inline]
    pub(super) fn insert(&mut self, hasher: &Hasher, s: &Selector, receive: u32) -> SlotKey {
        if self.nodes.len() == 0 && shortcut!("a receive posted alone") {
            let node = Node::new(self.next_sequence, MIXED, s, receive, BinLink::NONE);
            self.next_sequence += 1;
            let key = self.nodes.insert(node);
            self.lone = Some(key.index);
            return key;
        }
        let wanted = Shape::of(s);
        let (class, at) = self.latest.place();
        if self.lone.is_none()
            && let Some(Class { shape, bins }) = self.classes.get_mut(class)
            && *shape == wanted
            && let Some(tail) = bins.tail_if(at, &wanted.key_of_selector(s))
        {
            // An existing bin is of a class in use.
            let link = BinLink::behind(*tail, &self.nodes.slots);
            let node = Node::new(self.next_sequence, class, s, receive, link);
            self.next_sequence += 1;
            let key = self.nodes.insert(node);
            let before = std::mem::replace(tail, key.index);
            self.nodes.slots[before as usize].link_mut().set_next(key.index);
            return key;
        }
        self.insert_elsewhere(hasher, wanted, s, receive)
    }

    /// Inserts into another bin than the latest.
    fn insert_elsewhere(
        &mut self,
        hasher: &Hasher,
        wanted: Shape,
        s: &Selector,
        receive: u32,
    ) -> SlotKey {
        if let Some(lone) = self.lone.take() {
            let selector = self.nodes.get(lone).selector();
            self.put_into_bin(hasher, Shape::of(&selector), &selector, lone);
        }
        let node = Node::new(self.next_sequence, MIXED, s, receive, BinLink::NONE);
        self.next_sequence += 1;
        let key = self.nodes.insert(node);
        self.put_into_bin(hasher, wanted, s, key.index);
        key
    }

    /// Appends a node to its bin.
    #[inline]
    fn put_into_bin(&mut self, hasher: &Hasher, wanted: Shape, s: &Selector, index: u32) {
        let class = self.class_for(wanted);
        self.nodes.slots[index as usize].value.class = class as u8;
        let Class { shape, bins } = &mut self.classes[class];
        let bin_key = shape.key_of_selector(s);
        let at = bins.push_back(&mut self.nodes.slots, &bin_key, hasher.hash(&bin_key), index);
        self.latest = Latest::new(class, at);
        self.in_use |= 1 << class;
    }

    /// Returns the class for receives of `shape`: its own, a new one, one that has become empty, or
    /// the mixed one.
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
            // `shape` may be that one.
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

    #[inline(always)]
    pub(super) fn take(&mut self, hasher: &Hasher, e: &MatchEnvelope) -> Option<u32> {
        if let Some(index) = self.lone {
            let node = self.nodes.get(index);
            if node.context != e.context || !node.accepts(e) {
                return None;
            }
            if node.receive & STAYS != 0 {
                return Some(node.receive);
            }
            self.lone = None;
            return Some(self.nodes.remove(index).receive);
        }
        // Usually one shape is in use, and no other receive can be older.
        let (class, latest) = self.latest.place();
        if self.in_use == 1 << class && class != MIXED && shortcut!("receives of one class") {
            let Class { shape, bins } = &mut self.classes[class];
            let key = shape.key_of_envelope(e);
            let at = match bins.is_at(latest, &key) {
                true => latest,
                false => bins.find(&key, hasher.hash(&key))?,
            };
            self.latest = Latest::new(class, at);
            let receive = self.nodes.get(bins.head(at)).receive;
            if receive & STAYS != 0 {
                return Some(receive);
            }
            let index = bins.pop_front(&mut self.nodes.slots, at);
            if bins.is_empty() {
                self.in_use = 0;
            }
            return Some(self.nodes.remove(index).receive);
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

    /// Takes the oldest receive of a bin of a class, or returns it if it stays.
    #[inline]
    fn take_head(&mut self, class: usize, at: usize) -> u32 {
        let bins = &mut self.classes[class].bins;
        let receive = self.nodes.get(bins.head(at)).receive;
        if receive & STAYS != 0 {
            return receive;
        }
        let index = bins.pop_front(&mut self.nodes.slots, at);
        if bins.is_empty() {
            self.in_use &= !(1 << class);
        }
        self.nodes.remove(index).receive
    }

    /// Finds the oldest receive in the mixed class that accepts `e`.
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

    /// Removes an occupied slot from its bin and vacates it; returns the receive.
    fn remove(&mut self, index: u32) -> u32 {
        if self.lone == Some(index) {
            self.lone = None;
            return self.nodes.remove(index).receive;
        }
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
