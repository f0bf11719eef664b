//! A hash table of FIFO bins over intrusive doubly linked lists.
//!
//! Open addressing with linear probing, at most half full; a bin that becomes empty is removed at
//! once and those after it move up, so there are no tombstones and the table never needs cleaning.
//! A bin holds all nodes of one key: however many messages share a key, other keys do not wait.

use super::slab::NIL;

/// Capacity at the first insertion; a power of two.
const FIRST_CAPACITY: usize = 16;

/// Common fields of the nodes of a bin. Wildcards of a shape are zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BinKey {
    pub(super) context: u64,
    pub(super) tag: u64,
    pub(super) source: u32,
}

/// Links of a node in the list of its bin.
#[derive(Clone, Copy, Debug)]
pub(super) struct BinLink {
    prev: u32,
    next: u32,
    /// The hash of the bin's key, to find the bin again.
    hash: u32,
}

impl BinLink {
    /// In no list.
    pub(super) const NONE: Self = Self { prev: NIL, next: NIL, hash: 0 };

    /// Appends `node` to the list whose last node is `own`, with this link. Returns the link for
    /// `node`.
    #[inline]
    pub(super) fn append(&mut self, own: u32, node: u32) -> Self {
        self.next = node;
        Self { prev: own, next: NIL, hash: self.hash }
    }

    /// Returns the next node.
    #[inline]
    pub(super) fn next(&self) -> u32 {
        self.next
    }

    /// Notes that no node is before it.
    #[inline]
    pub(super) fn set_first(&mut self) {
        self.prev = NIL;
    }

    /// Sets `node` as the next one.
    #[inline]
    pub(super) fn set_next(&mut self, node: u32) {
        self.next = node;
    }
}

/// A node of one bin.
pub(super) trait BinNode {
    fn link(&self) -> &BinLink;
    fn link_mut(&mut self) -> &mut BinLink;
}

impl BinNode for BinLink {
    #[inline]
    fn link(&self) -> &BinLink {
        self
    }

    #[inline]
    fn link_mut(&mut self) -> &mut BinLink {
        self
    }
}

/// A key and its list; no bin when `head` is `NIL`. Two per cache line, with 32 bytes each.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bin {
    key: BinKey,
    hash: u32,
    /// The oldest node.
    pub(super) head: u32,
    /// The newest node.
    pub(super) tail: u32,
}

const EMPTY: Bin =
    Bin { key: BinKey { context: 0, tag: 0, source: 0 }, hash: 0, head: NIL, tail: NIL };

/// The bins of one shape. Nodes are owned by the caller, who passes the same slice every time.
#[derive(Debug, Default)]
pub(super) struct Bins {
    /// Empty, or a power of two.
    table: Vec<Bin>,
    used: usize,
}

impl Bins {
    /// Returns whether no node is in any bin.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// Returns the table index of the bin for `key`. Valid until the next change.
    #[inline]
    pub(super) fn find(&self, key: &BinKey, hash: u32) -> Option<usize> {
        let mask = self.table.len().wrapping_sub(1);
        let mut at = hash as usize & mask;
        loop {
            // Misses only when the table is empty: the mask keeps `at` inside otherwise.
            let bin = self.table.get(at)?;
            if bin.head == NIL {
                return None;
            }
            if bin.hash == hash && bin.key == *key {
                return Some(at);
            }
            at = (at + 1) & mask;
        }
    }

    /// Returns the bin for `key`, if that is at that table index. Its caller may append a node to
    /// it, or remove the oldest of several.
    #[inline(always)]
    pub(super) fn at_if(&mut self, at: usize, key: &BinKey) -> Option<&mut Bin> {
        let bin = self.table.get_mut(at)?;
        (bin.head != NIL && bin.key == *key).then_some(bin)
    }

    /// Returns the oldest node of a bin that [`find`](Self::find) found.
    #[inline]
    pub(super) fn head(&self, at: usize) -> u32 {
        self.table[at].head
    }

    /// Appends `node` to all others of `key`. Returns the table index of their bin.
    #[inline]
    pub(super) fn push_back<N: BinNode>(
        &mut self,
        nodes: &mut [N],
        key: &BinKey,
        hash: u32,
        node: u32,
    ) -> usize {
        if self.used * 2 >= self.table.len() {
            self.grow();
        }
        let mask = self.table.len() - 1;
        let mut at = hash as usize & mask;
        loop {
            let bin = &mut self.table[at & mask];
            if bin.head == NIL {
                *bin = Bin { key: *key, hash, head: node, tail: node };
                *nodes[node as usize].link_mut() = BinLink { prev: NIL, next: NIL, hash };
                self.used += 1;
                debug_assert!(2 * self.used <= self.table.len(), "probes end at an empty bin");
                return at & mask;
            }
            if bin.hash == hash && bin.key == *key {
                *nodes[node as usize].link_mut() = BinLink { prev: bin.tail, next: NIL, hash };
                debug_assert_ne!(bin.tail, node, "a node is in one bin, once");
                let before = nodes[bin.tail as usize].link_mut();
                debug_assert_eq!(before.next, NIL, "the newest node is the last one");
                before.next = node;
                bin.tail = node;
                return at & mask;
            }
            at += 1;
        }
    }

    /// Removes and returns the oldest node of a bin that [`find`](Self::find) found.
    #[inline]
    pub(super) fn pop_front<N: BinNode>(&mut self, nodes: &mut [N], at: usize) -> u32 {
        let head = self.head(at);
        let BinLink { prev, next, .. } = *nodes[head as usize].link();
        debug_assert_eq!(prev, NIL, "the oldest node is the first one");
        if next == NIL {
            self.vacate(at);
        } else {
            self.table[at].head = next;
            nodes[next as usize].link_mut().set_first();
        }
        head
    }

    /// Removes `node`, which is in some bin, from it.
    #[inline]
    pub(super) fn unlink<N: BinNode>(&mut self, nodes: &mut [N], node: u32) {
        let BinLink { prev, next, hash } = *nodes[node as usize].link();
        if prev != NIL && next != NIL {
            debug_assert_eq!(nodes[prev as usize].link().next, node, "links agree");
            debug_assert_eq!(nodes[next as usize].link().prev, node, "links agree");
            nodes[prev as usize].link_mut().next = next;
            nodes[next as usize].link_mut().prev = prev;
            return;
        }
        let at = self.find_by_end(node, hash);
        let bin = &mut self.table[at];
        if next != NIL {
            bin.head = next;
            nodes[next as usize].link_mut().prev = NIL;
        } else if prev != NIL {
            bin.tail = prev;
            nodes[prev as usize].link_mut().next = NIL;
        } else {
            self.vacate(at);
        }
    }

    /// Returns the bin whose list begins or ends with `node`: a node is in one bin only.
    #[inline]
    fn find_by_end(&self, node: u32, hash: u32) -> usize {
        let mask = self.table.len() - 1;
        let mut at = hash as usize & mask;
        loop {
            let bin = &self.table[at & mask];
            if bin.head == node || bin.tail == node {
                return at & mask;
            }
            debug_assert!(bin.head != NIL, "node {node} is in no bin");
            at += 1;
        }
    }

    /// Empties table index `at` and moves later bins up, so that no probe meets a gap.
    #[inline]
    fn vacate(&mut self, at: usize) {
        let mask = self.table.len() - 1;
        let mut gap = at;
        let mut at = at;
        loop {
            at = (at + 1) & mask;
            let bin = self.table[at];
            if bin.head == NIL {
                break;
            }
            let from_home = at.wrapping_sub(bin.hash as usize) & mask;
            let from_gap = at.wrapping_sub(gap) & mask;
            if from_home >= from_gap {
                self.table[gap] = bin;
                gap = at;
            }
        }
        debug_assert!(self.table[gap].head != NIL && self.used > 0, "an empty bin is not counted");
        self.table[gap].head = NIL;
        self.used -= 1;
    }

    /// Doubles the table. Nodes do not refer to their bin, so only bins move.
    #[cold]
    #[inline(never)]
    fn grow(&mut self) {
        let capacity = (self.table.len() * 2).max(FIRST_CAPACITY);
        let old = std::mem::replace(&mut self.table, vec![EMPTY; capacity]);
        let mask = capacity - 1;
        for bin in old.into_iter().filter(|bin| bin.head != NIL) {
            let mut at = bin.hash as usize & mask;
            while self.table[at].head != NIL {
                at = (at + 1) & mask;
            }
            self.table[at] = bin;
        }
    }

    /// Returns the longest distance of a bin from its home index, in steps.
    #[cfg(test)]
    pub(super) fn longest_probe(&self) -> usize {
        let mask = self.table.len().wrapping_sub(1);
        let used = self.table.iter().enumerate().filter(|(_, bin)| bin.head != NIL);
        used.map(|(at, bin)| at.wrapping_sub(bin.hash as usize) & mask).max().unwrap_or(0)
    }
}
