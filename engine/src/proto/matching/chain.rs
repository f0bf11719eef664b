//! Doubly linked lists through the slots of a slab.

/// No slot.
pub(crate) const NONE: u32 = u32::MAX;

/// Neighbours in one chain.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Links {
    pub(crate) previous: u32,
    pub(crate) next: u32,
}

impl Default for Links {
    fn default() -> Self {
        Self { previous: NONE, next: NONE }
    }
}

/// Both ends of a chain.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chain {
    pub(crate) head: u32,
    pub(crate) tail: u32,
}

impl Default for Chain {
    fn default() -> Self {
        Self { head: NONE, tail: NONE }
    }
}

impl Chain {
    /// Appends a slot; `links` gives an entry's links in this chain.
    #[inline]
    pub(crate) fn push<T>(
        &mut self,
        slots: &mut Slots<T>,
        slot: u32,
        links: impl Fn(&mut T) -> &mut Links,
    ) {
        *links(slots.at_mut(slot)) = Links { previous: self.tail, next: NONE };
        if self.tail == NONE {
            self.head = slot;
        } else {
            links(slots.at_mut(self.tail)).next = slot;
        }
        self.tail = slot;
    }

    /// Takes a slot out.
    #[inline]
    pub(crate) fn unlink<T>(
        &mut self,
        slots: &mut Slots<T>,
        slot: u32,
        links: impl Fn(&mut T) -> &mut Links,
    ) {
        let Links { previous, next } = *links(slots.at_mut(slot));
        if previous == NONE {
            debug_assert_eq!(self.head, slot, "the first slot of a chain is its head");
            self.head = next;
        } else {
            links(slots.at_mut(previous)).next = next;
        }
        if next == NONE {
            self.tail = previous;
        } else {
            links(slots.at_mut(next)).previous = previous;
        }
    }
}

#[derive(Debug)]
struct Slot<T> {
    generation: u32,
    value: Option<T>,
}

/// A slab whose users hold valid slots by construction.
#[derive(Debug)]
pub(crate) struct Slots<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Self { slots: Vec::new(), free: Vec::new() }
    }
}

const LINKED: &str = "a slot in a chain holds a value";

impl<T> Slots<T> {
    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    #[inline]
    pub(crate) fn insert(&mut self, value: T) -> u32 {
        if let Some(slot) = self.free.pop() {
            self.slots[slot as usize].value = Some(value);
            return slot;
        }
        self.slots.push(Slot { generation: 0, value: Some(value) });
        (self.slots.len() - 1) as u32
    }

    #[inline]
    pub(crate) fn at(&self, slot: u32) -> &T {
        self.slots[slot as usize].value.as_ref().expect(LINKED)
    }

    #[inline]
    pub(crate) fn at_mut(&mut self, slot: u32) -> &mut T {
        self.slots[slot as usize].value.as_mut().expect(LINKED)
    }

    #[inline]
    pub(crate) fn remove(&mut self, slot: u32) -> T {
        let entry = &mut self.slots[slot as usize];
        entry.generation = entry.generation.wrapping_add(1);
        self.free.push(slot);
        entry.value.take().expect(LINKED)
    }

    pub(crate) fn generation(&self, slot: u32) -> u32 {
        self.slots[slot as usize].generation
    }

    pub(crate) fn is_live(&self, slot: u32, generation: u32) -> bool {
        self.slots
            .get(slot as usize)
            .is_some_and(|entry| entry.generation == generation && entry.value.is_some())
    }

    pub(crate) fn slots(&self) -> impl Iterator<Item = u32> + '_ {
        let is_used = |(_, entry): &(usize, &Slot<T>)| entry.value.is_some();
        self.slots.iter().enumerate().filter(is_used).map(|(index, _)| index as u32)
    }
}
