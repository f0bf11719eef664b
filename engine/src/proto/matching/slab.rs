//! Slots with stable indices and generations.

/// The end of a list, and no slot.
pub(super) const NIL: u32 = u32::MAX;

/// A slot and the generation of its content. The same pair repeats only after 2^31 reuses of one
/// slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SlotKey {
    pub(super) index: u32,
    generation: u32,
}

/// One slot. Vacant ones keep their last content, unread.
#[derive(Clone, Copy, Debug)]
pub(super) struct SlabSlot<T> {
    /// Odd while occupied.
    generation: u32,
    next_vacant: u32,
    pub(super) value: T,
}

/// Slots that are reused and never freed, so a steady load allocates nothing.
#[derive(Debug)]
pub(super) struct Slab<T> {
    pub(super) slots: Vec<SlabSlot<T>>,
    vacant: u32,
    len: usize,
    /// Memory for the next ordered list; empty.
    order: Vec<(u64, u32)>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self { slots: Vec::new(), vacant: NIL, len: 0, order: Vec::new() }
    }
}

impl<T> Slab<T> {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Stores `value` in the slot that was vacated last.
    #[inline]
    pub(super) fn insert(&mut self, value: T) -> SlotKey {
        self.len += 1;
        let index = self.vacant;
        if let Some(slot) = self.slots.get_mut(index as usize) {
            self.vacant = slot.next_vacant;
            slot.generation = slot.generation.wrapping_add(1);
            debug_assert!(slot.generation & 1 == 1, "slot {index} is in use already");
            slot.value = value;
            return SlotKey { index, generation: slot.generation };
        }
        self.push(value)
    }

    #[cold]
    fn push(&mut self, value: T) -> SlotKey {
        let index = self.slots.len();
        debug_assert_eq!(self.len, index + 1, "no slot is vacant where none is listed");
        // The endpoint bounds unexpected messages by memory, far below this.
        assert!(index < NIL as usize, "more than 2^32 - 1 messages to match");
        self.slots.push(SlabSlot { generation: 1, next_vacant: NIL, value });
        SlotKey { index: index as u32, generation: 1 }
    }

    /// Returns the value in an occupied slot, by the index found in a list.
    #[inline]
    pub(super) fn get(&self, index: u32) -> &T {
        &self.slots[index as usize].value
    }

    #[cfg(test)]
    /// Returns whether the content that `key` was created for is still present.
    #[inline]
    pub(super) fn contains(&self, key: SlotKey) -> bool {
        // Keys have odd generations only: a vacant slot never equals one.
        self.slots.get(key.index as usize).is_some_and(|slot| slot.generation == key.generation)
    }

    /// Vacates an occupied slot and returns its content for a last read.
    #[inline]
    pub(super) fn remove(&mut self, index: u32) -> &T {
        let slot = &mut self.slots[index as usize];
        debug_assert!(slot.generation & 1 == 1, "slot {index} is vacant already");
        slot.generation = slot.generation.wrapping_add(1);
        slot.next_vacant = self.vacant;
        self.vacant = index;
        self.len -= 1;
        &slot.value
    }

    /// Returns the occupied slots for which `sequence_if` returns a sequence number, in that order.
    /// Scans every slot. The list is returned to [`done_with`](Self::done_with), which keeps its
    /// memory.
    pub(super) fn in_order(&mut self, sequence_if: impl Fn(&T) -> Option<u64>) -> Vec<(u64, u32)> {
        let mut found = std::mem::take(&mut self.order);
        let occupied = self.slots.iter().zip(0..).filter(|(slot, _)| slot.generation & 1 == 1);
        found.extend(occupied.filter_map(|(slot, index)| Some((sequence_if(&slot.value)?, index))));
        found.sort_unstable();
        found
    }

    /// Takes the memory of an [`in_order`](Self::in_order) list back.
    pub(super) fn done_with(&mut self, mut order: Vec<(u64, u32)>) {
        order.clear();
        self.order = order;
    }
}
