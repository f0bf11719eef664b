//! Lanes by key: slots that count their uses.

use crate::driver::lanes::LaneKey;

/// A table of `T`s whose keys are never valid again once removed.
#[derive(Debug)]
pub(crate) struct Table<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
    limit: usize,
}

#[derive(Debug)]
struct Slot<T> {
    generation: u32,
    value: Option<T>,
}

impl<T> Table<T> {
    /// A table of at most `limit` values. Memory grows with use.
    pub(crate) fn new(limit: usize) -> Self {
        Self { slots: Vec::new(), free: Vec::new(), limit }
    }

    /// Puts `value` into a free slot; `None` when the table is full.
    pub(crate) fn insert(&mut self, value: T) -> Option<LaneKey> {
        let index = match self.free.pop() {
            Some(index) => index,
            None if self.slots.len() < self.limit => {
                self.slots.push(Slot { generation: 0, value: None });
                u32::try_from(self.slots.len() - 1).ok()?
            }
            None => return None,
        };
        let slot = &mut self.slots[index as usize];
        slot.value = Some(value);
        Some(LaneKey { index, generation: slot.generation })
    }

    /// The value of `key`, unless it was removed.
    pub(crate) fn get(&self, key: LaneKey) -> Option<&T> {
        let slot = self.slots.get(key.index as usize)?;
        if slot.generation == key.generation { slot.value.as_ref() } else { None }
    }

    /// The value of `key`, unless it was removed.
    pub(crate) fn get_mut(&mut self, key: LaneKey) -> Option<&mut T> {
        let slot = self.slots.get_mut(key.index as usize)?;
        if slot.generation == key.generation { slot.value.as_mut() } else { None }
    }

    /// The key that slot `index` has now.
    pub(crate) fn key_at(&self, index: u32) -> Option<LaneKey> {
        let slot = self.slots.get(index as usize)?;
        slot.value.as_ref().map(|_| LaneKey { index, generation: slot.generation })
    }

    /// Takes the value of `key` out.
    pub(crate) fn remove(&mut self, key: LaneKey) -> Option<T> {
        let slot = self.slots.get_mut(key.index as usize)?;
        if slot.generation != key.generation {
            return None;
        }
        let value = slot.value.take()?;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(key.index);
        Some(value)
    }

    /// How many slots were ever used: indices are below.
    pub(crate) fn slots(&self) -> u32 {
        self.slots.len() as u32
    }

    /// How many values there are.
    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// All values with their keys.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (LaneKey, &T)> {
        self.slots.iter().zip(0u32..).filter_map(|(slot, index)| {
            Some((LaneKey { index, generation: slot.generation }, slot.value.as_ref()?))
        })
    }

    /// Most values there can be.
    pub(crate) fn limit(&self) -> usize {
        self.limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_removed_key_never_names_its_successor() {
        let mut table = Table::new(1);
        let first = table.insert('a').unwrap();
        assert!(table.insert('x').is_none());
        assert_eq!(table.remove(first), Some('a'));
        assert_eq!(table.remove(first), None);
        let second = table.insert('b').unwrap();
        assert_eq!(second.index, first.index);
        assert_eq!(table.get(first), None);
        assert_eq!(table.get(second), Some(&'b'));
        assert_eq!(table.key_at(0), Some(second));
        assert_eq!((table.len(), table.slots(), table.limit()), (1, 1, 1));
    }
}
