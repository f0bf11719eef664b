//! A slab whose keys carry a generation, so that stale keys find nothing.
//!
//! Two others have the same purpose. `matching::slab` keeps unexpected messages: its lists refer to
//! slots that are known to be occupied, by index alone. `matching::slots` keeps the ids of
//! operations and the receives among them, one cache line each.

use std::fmt;
use std::marker::PhantomData;

/// A key of an entry: its slot, and the generation of the slot's use.
pub(crate) trait Key: Copy {
    /// `generation` is never 0.
    fn new(index: u32, generation: u32) -> Self;
    fn index(self) -> usize;
    fn generation(self) -> u32;
}

/// Identifies an entry of a [`Table`]; never 0, never repeated within 2^32 reuses of a slot.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Id(u64);

impl Id {
    /// Returns the slot.
    #[inline]
    pub(crate) fn index(self) -> usize {
        (self.0 & 0xffff_ffff) as usize
    }

    /// Returns the value for the wire and for user data.
    #[inline]
    pub(crate) fn to_u64(self) -> u64 {
        self.0
    }

    /// Creates an id from [`Self::to_u64`], or from an arbitrary value of a peer: the look-up
    /// decides.
    #[inline]
    pub(crate) fn from_u64(value: u64) -> Self {
        Self(value)
    }
}

impl Key for Id {
    #[inline]
    fn new(index: u32, generation: u32) -> Self {
        Self(u64::from(generation) << 32 | u64::from(index))
    }

    #[inline]
    fn index(self) -> usize {
        self.index()
    }

    #[inline]
    fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

impl fmt::Debug for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.index(), self.generation())
    }
}

const NO_SLOT: u32 = u32::MAX;

#[derive(Debug)]
struct Slot<T> {
    generation: u32,
    next_free: u32,
    value: Option<T>,
}

/// A table; see the module. Grows up to a limit given at creation; allocates nothing once it has
/// grown.
#[derive(Debug)]
pub(crate) struct Table<T, K = Id> {
    slots: Vec<Slot<T>>,
    free: u32,
    len: usize,
    limit: usize,
    /// The generation of new slots.
    first: u32,
    keys: PhantomData<K>,
}

impl<T, K: Key> Table<T, K> {
    /// Creates a table of at most `limit` entries.
    #[inline]
    pub(crate) fn new(limit: usize) -> Self {
        let (limit, keys) = (limit.min(NO_SLOT as usize), PhantomData);
        Self { slots: Vec::new(), free: NO_SLOT, len: 0, limit, first: 1, keys }
    }

    /// Creates a table whose keys practically never equal those of a table with another `seed`, at
    /// no cost per look-up.
    pub(crate) fn with_own_names(limit: usize, seed: u64) -> Self {
        let mixed = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        // 30 bits, so that generations have space to grow.
        let first = ((mixed >> 34) as u32).max(1);
        Self { first, ..Self::new(limit) }
    }

    /// Returns the maximum number of entries.
    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// Returns the number of entries.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns whether an insertion would be refused.
    pub(crate) fn is_full(&self) -> bool {
        self.len >= self.limit
    }

    /// Inserts a value. `Err` returns the value when the table is full.
    #[inline(always)]
    pub(crate) fn insert(&mut self, value: T) -> Result<K, T> {
        self.insert_entry(value).map(|(key, _)| key)
    }

    /// Inserts a value, and returns it in its slot. `Err` returns it when the table is full.
    #[inline(always)]
    pub(crate) fn insert_entry(&mut self, value: T) -> Result<(K, &mut T), T> {
        let mut index = self.free;
        if index == NO_SLOT {
            if self.slots.len() >= self.limit {
                return Err(value);
            }
            index = self.slots.len() as u32;
            reserve_for(&mut self.slots, index as usize + 1);
            debug_assert_eq!(self.len, index as usize, "no slot is vacant where none is free");
            self.slots.push(Slot { generation: self.first, next_free: NO_SLOT, value: None });
        }
        let slot = &mut self.slots[index as usize];
        debug_assert!(slot.value.is_none(), "a free slot holds nothing");
        self.free = slot.next_free;
        self.len += 1;
        debug_assert!(slot.generation != 0, "no key is 0");
        Ok((K::new(index, slot.generation), slot.value.insert(value)))
    }

    #[inline]
    pub(crate) fn get(&self, id: K) -> Option<&T> {
        let slot = self.slots.get(id.index())?;
        if slot.generation == id.generation() { slot.value.as_ref() } else { None }
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, id: K) -> Option<&mut T> {
        let slot = self.slots.get_mut(id.index())?;
        if slot.generation == id.generation() { slot.value.as_mut() } else { None }
    }

    #[inline]
    pub(crate) fn remove(&mut self, id: K) -> Option<T> {
        let slot = self.slots.get_mut(id.index())?;
        if slot.generation != id.generation() {
            return None;
        }
        let value = slot.value.take()?;
        // Generation 0 is skipped so that no key is ever 0.
        slot.generation = slot.generation.checked_add(1).unwrap_or(1);
        slot.next_free = self.free;
        self.free = id.index() as u32;
        self.len -= 1;
        debug_assert!(self.len < self.slots.len(), "the removed entry was counted");
        Some(value)
    }

    /// Returns the full key of the entry in a slot.
    #[inline]
    pub(crate) fn id_at(&self, index: usize) -> Option<K> {
        let slot = self.slots.get(index)?;
        slot.value.as_ref()?;
        Some(K::new(index as u32, slot.generation))
    }

    /// Returns the current entry of a slot.
    #[inline]
    pub(crate) fn at(&self, index: usize) -> Option<&T> {
        self.slots.get(index)?.value.as_ref()
    }

    /// Returns the current entry of a slot, mutable.
    #[inline]
    pub(crate) fn at_mut(&mut self, index: usize) -> Option<&mut T> {
        self.slots.get_mut(index)?.value.as_mut()
    }

    /// Returns the current entries of two slots, mutable. `None`: one is vacant, or both are one.
    pub(crate) fn two_at_mut(&mut self, indices: [usize; 2]) -> Option<[&mut T; 2]> {
        let [one, other] = self.slots.get_disjoint_mut(indices).ok()?;
        Some([one.value.as_mut()?, other.value.as_mut()?])
    }

    /// Returns one more than the highest slot ever used.
    pub(crate) fn slots(&self) -> usize {
        self.slots.len()
    }

    /// Returns all entries with their keys, by slot.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (K, &T)> {
        self.slots.iter().enumerate().filter_map(|(index, slot)| {
            slot.value.as_ref().map(|value| (K::new(index as u32, slot.generation), value))
        })
    }
}

/// Reserves space for `len` entries, by an eighth at a time: tables of sessions are long and their
/// entries large, so that doubling would leave much unused.
pub(crate) fn reserve_for<T>(entries: &mut Vec<T>, len: usize) {
    if len > entries.capacity() {
        let more = (len - entries.len()).max(entries.len() / 8).max(4);
        entries.reserve_exact(more);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stale_key_finds_nothing() {
        let mut table: Table<_> = Table::new(2);
        let first = table.insert("a").unwrap();
        assert_eq!(table.remove(first), Some("a"));
        let second = table.insert("b").unwrap();
        assert_eq!(first.index(), second.index());
        assert_eq!(table.get(first), None);
        assert_eq!(table.remove(first), None);
        assert_eq!(table.get(second), Some(&"b"));
        assert_eq!(table.get(Id::from_u64(0)), None);
        assert_eq!(table.get(Id::from_u64(u64::MAX)), None);
    }

    #[test]
    fn key_of_another_table_finds_nothing() {
        let mut tables = [1, 2, u64::MAX].map(|seed| Table::<_>::with_own_names(8, seed));
        let names = tables.each_mut().map(|table| [(); 8].map(|()| table.insert(()).unwrap()));
        for (at, table) in tables.iter().enumerate() {
            for (of, names) in names.iter().enumerate() {
                assert!(names.iter().all(|&name| table.get(name).is_some() == (at == of)));
            }
        }
    }

    #[test]
    fn limit_is_enforced() {
        let mut table: Table<_> = Table::new(2);
        table.insert(1).unwrap();
        let id = table.insert(2).unwrap();
        assert_eq!(table.insert(3), Err(3));
        table.remove(id);
        assert!(table.insert(3).is_ok());
        assert_eq!(table.len(), 2);
    }
}
