//! Posted receives: each in the one bin of its shape.

use super::bins::Bins;
use super::slab::NIL;
use super::slots::{OperationSlot, OperationSlots, Vacancies};
use super::{Hasher, MAX_SHAPES, MatchEnvelope, Selector, SelectorShape};

/// The class with the shape [`SelectorShape::CONTEXT`]. Its bins also hold the receives whose shape
/// found no class of its own, so their heads have to be compared.
const MIXED: usize = 0;

/// The receives of one shape.
#[derive(Debug)]
struct ShapeClass {
    shape: SelectorShape,
    bins: Bins,
}

/// Posted receives of one endpoint in posting order. Their slots belong to the engine, and are
/// passed to each call.
pub(super) struct PostedReceives {
    /// Number of receives.
    len: usize,
    classes: Vec<ShapeClass>,
    /// Bit i: class i holds receives. An arrival skips the others.
    in_use: u32,
    next_sequence: u64,
    /// The only receive, while it is in no bin: it needs none to be found. [`NIL`]: it is in one,
    /// or not the only one.
    lone: u32,
    /// Position of the last look-up: the next one is usually for the same bin.
    latest: Latest,
}

/// The place of the oldest receive that accepts a message.
#[derive(Clone, Copy)]
enum Oldest {
    /// The head of a bin of a class.
    InBin { class: usize, at: usize },
    /// A receive of the mixed class, by its index.
    Mixed(u32),
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

/// Without the positions of slots, which depend on earlier look-ups.
impl std::fmt::Debug for PostedReceives {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("PostedReceives").field("len", &self.len).finish_non_exhaustive()
    }
}

impl Default for PostedReceives {
    fn default() -> Self {
        Self {
            len: 0,
            classes: Vec::new(),
            in_use: 0,
            next_sequence: 0,
            lone: NIL,
            latest: Latest::default(),
        }
    }
}

impl PostedReceives {
    #[cfg(any(test, feature = "bench"))]
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Adds the receive or multi-receive at `index`, which is not posted, and accepts the messages
    /// of `selector`.
    #[inline(always)]
    pub(super) fn insert(
        &mut self,
        entries: &mut [OperationSlot],
        hasher: &Hasher,
        index: u32,
        selector: &Selector,
    ) {
        entries[index as usize].note_posted(self.next_sequence);
        self.next_sequence += 1;
        let is_first = self.len == 0;
        debug_assert!(
            !is_first || (self.in_use == 0 && self.lone == NIL),
            "a class in use holds receives"
        );
        self.len += 1;
        if is_first && shortcut!("a receive posted alone") {
            self.lone = index;
            return;
        }
        let wanted = SelectorShape::of(selector);
        let (class, at) = self.latest.place();
        if self.lone == NIL
            && let Some(ShapeClass { shape, bins }) = self.classes.get_mut(class)
            && *shape == wanted
            && let Some(bin) = bins.at_if(at, &wanted.key_of_selector(selector))
        {
            // An existing bin is of a class in use.
            let before = std::mem::replace(&mut bin.tail, index);
            let link = entries[before as usize].link.append(before, index);
            let slot = &mut entries[index as usize];
            (slot.link, slot.class) = (link, class as u8);
            return;
        }
        self.insert_elsewhere(entries, hasher, index);
    }

    /// Inserts into another bin than the latest.
    #[inline(never)]
    fn insert_elsewhere(&mut self, entries: &mut [OperationSlot], hasher: &Hasher, index: u32) {
        let lone = std::mem::replace(&mut self.lone, NIL);
        if lone != NIL {
            self.put_into_bin(entries, hasher, lone);
        }
        self.put_into_bin(entries, hasher, index);
    }

    /// Appends a receive to its bin.
    #[inline]
    fn put_into_bin(&mut self, entries: &mut [OperationSlot], hasher: &Hasher, index: u32) {
        let slot = &mut entries[index as usize];
        debug_assert!(slot.is_posted(), "only posted receives are in bins");
        let selector = slot.selector();
        let class = self.class_for(SelectorShape::of(&selector));
        slot.class = class as u8;
        let ShapeClass { shape, bins } = &mut self.classes[class];
        let key = shape.key_of_selector(&selector);
        let at = bins.push_back(entries, &key, hasher.hash(&key), index);
        self.latest = Latest::new(class, at);
        self.in_use |= 1 << class;
    }

    /// Returns the class for receives of `shape`: its own, a new one, one that has become empty, or
    /// the mixed one.
    #[inline]
    fn class_for(&mut self, shape: SelectorShape) -> usize {
        match self.classes.iter().position(|class| class.shape == shape) {
            Some(class) => class,
            None => self.assign_class(shape),
        }
    }

    #[cold]
    fn assign_class(&mut self, shape: SelectorShape) -> usize {
        if self.classes.is_empty() {
            self.classes.reserve_exact(MAX_SHAPES);
            self.classes.push(ShapeClass { shape: SelectorShape::CONTEXT, bins: Bins::default() });
            // `shape` may be that one.
            return self.class_for(shape);
        }
        if self.classes.len() < MAX_SHAPES {
            self.classes.push(ShapeClass { shape, bins: Bins::default() });
            return self.classes.len() - 1;
        }
        let idle = (MIXED + 1..MAX_SHAPES).find(|&class| self.in_use & 1 << class == 0);
        match idle {
            Some(class) => {
                debug_assert!(self.classes[class].bins.is_empty(), "an idle class holds none");
                self.classes[class].shape = shape;
                class
            }
            None => MIXED,
        }
    }

    /// Takes the oldest receive that accepts `e` out of its bin, unless it stays, and returns what
    /// `end` makes of it: of its index and its slot.
    #[inline(always)]
    pub(super) fn take<R>(
        &mut self,
        slots: &mut OperationSlots,
        hasher: &Hasher,
        e: &MatchEnvelope,
        end: impl FnOnce(&mut Vacancies, u32, &mut OperationSlot) -> R,
    ) -> Option<R> {
        let OperationSlots { entries, vacancies, .. } = slots;
        let entries = entries.as_mut_slice();
        let index = self.lone;
        if index != NIL {
            debug_assert_eq!((self.len, self.in_use), (1, 0), "it is the only receive");
            let receive = &mut entries[index as usize];
            if receive.context() != e.context || !receive.accepts(e) {
                return None;
            }
            if !receive.is_multi() {
                receive.note_taken();
                self.lone = NIL;
                self.len = 0;
            }
            return Some(end(vacancies, index, receive));
        }
        // Usually one shape is in use, and no other receive can be older.
        let (class, latest) = self.latest.place();
        if self.in_use != 1 << class || class == MIXED || !shortcut!("receives of one class") {
            let index = self.take_oldest(entries, hasher, &MatchEnvelope { ..*e })?;
            return Some(end(vacancies, index, &mut entries[index as usize]));
        }
        let ShapeClass { shape, bins } = &mut self.classes[class];
        let key = shape.key_of_envelope(e);
        let at = match bins.at_if(latest, &key) {
            Some(bin) => {
                let index = bin.head;
                let receive = &mut entries[index as usize];
                let next = receive.link.next();
                if next != NIL && !receive.is_multi() {
                    bin.head = next;
                    self.len -= 1;
                    entries[next as usize].link.set_first();
                    let receive = &mut entries[index as usize];
                    receive.note_taken();
                    return Some(end(vacancies, index, receive));
                }
                latest
            }
            None => bins.find(&key, hasher.hash(&key))?,
        };
        let index = self.take_head(entries, class, at);
        self.latest = Latest::new(class, at);
        Some(end(vacancies, index, &mut entries[index as usize]))
    }

    /// Returns the oldest receive that accepts `e`, which stays.
    pub(super) fn find(
        &self,
        slots: &OperationSlots,
        hasher: &Hasher,
        e: &MatchEnvelope,
    ) -> Option<u32> {
        let entries = slots.entries.as_slice();
        if self.lone != NIL {
            let receive = &entries[self.lone as usize];
            let is_accepted = receive.context() == e.context && receive.accepts(e);
            return is_accepted.then_some(self.lone);
        }
        Some(match self.find_oldest(entries, hasher, e)? {
            Oldest::InBin { class, at } => self.classes[class].bins.head(at),
            Oldest::Mixed(index) => index,
        })
    }

    /// Takes the oldest receive that accepts `e`, of any class, or returns it if it stays.
    #[inline(never)]
    fn take_oldest(
        &mut self,
        entries: &mut [OperationSlot],
        hasher: &Hasher,
        e: &MatchEnvelope,
    ) -> Option<u32> {
        match self.find_oldest(entries, hasher, e)? {
            Oldest::InBin { class, at } => Some(self.take_head(entries, class, at)),
            Oldest::Mixed(index) => {
                if !entries[index as usize].is_multi() {
                    self.remove(entries, index);
                }
                Some(index)
            }
        }
    }

    /// Finds the oldest receive in a bin that accepts `e`.
    fn find_oldest(
        &self,
        entries: &[OperationSlot],
        hasher: &Hasher,
        e: &MatchEnvelope,
    ) -> Option<Oldest> {
        let mut oldest = None;
        let mut oldest_sequence = u64::MAX;
        let mut to_try = self.in_use & !(1 << MIXED);
        while to_try != 0 {
            let class = to_try.trailing_zeros() as usize;
            to_try &= to_try - 1;
            let ShapeClass { shape, bins } = &self.classes[class];
            let key = shape.key_of_envelope(e);
            if let Some(at) = bins.find(&key, hasher.hash(&key)) {
                let sequence = entries[bins.head(at) as usize].sequence;
                if sequence < oldest_sequence {
                    oldest_sequence = sequence;
                    oldest = Some(Oldest::InBin { class, at });
                }
            }
        }
        if self.in_use & 1 << MIXED != 0
            && let Some(index) = self.find_mixed(entries, hasher, e)
            && entries[index as usize].sequence < oldest_sequence
        {
            oldest = Some(Oldest::Mixed(index));
        }
        oldest
    }

    /// Takes the oldest receive of a bin of a class, or returns it if it stays.
    #[inline(never)]
    fn take_head(&mut self, entries: &mut [OperationSlot], class: usize, at: usize) -> u32 {
        let bins = &mut self.classes[class].bins;
        let head = bins.head(at);
        let slot = &mut entries[head as usize];
        if slot.is_multi() {
            return head;
        }
        slot.note_taken();
        bins.pop_front(entries, at);
        if bins.is_empty() {
            self.in_use &= !(1 << class);
        }
        self.len -= 1;
        debug_assert_eq!(self.len == 0, self.in_use == 0, "a class in use holds receives");
        head
    }

    /// Finds the oldest receive in the mixed class that accepts `e`.
    #[cold]
    fn find_mixed(
        &self,
        entries: &[OperationSlot],
        hasher: &Hasher,
        e: &MatchEnvelope,
    ) -> Option<u32> {
        let ShapeClass { shape, bins } = &self.classes[MIXED];
        let key = shape.key_of_envelope(e);
        let mut index = bins.head(bins.find(&key, hasher.hash(&key))?);
        while index != NIL {
            let receive = &entries[index as usize];
            if receive.accepts(e) {
                return Some(index);
            }
            index = receive.link.next();
        }
        None
    }

    /// Removes a posted receive from its bin.
    pub(super) fn remove(&mut self, entries: &mut [OperationSlot], index: u32) {
        let slot = &mut entries[index as usize];
        slot.note_removed();
        if self.lone == index {
            self.lone = NIL;
        } else {
            let class = slot.class;
            let bins = &mut self.classes[usize::from(class)].bins;
            bins.unlink(entries, index);
            if bins.is_empty() {
                self.in_use &= !(1 << class);
            }
        }
        self.len -= 1;
        debug_assert_eq!(self.len == 0, self.in_use == 0, "a class in use holds receives");
    }
}

#[cfg(test)]
impl PostedReceives {
    pub(super) fn longest_probe(&self) -> usize {
        self.classes.iter().map(|class| class.bins.longest_probe()).max().unwrap_or(0)
    }
}
