//! Collections that most sessions never use: they allocate with their first entry.

use std::collections::{HashMap, VecDeque};
use std::ops::{Deref, DerefMut};

/// A value that is usually at its default. Reading it allocates nothing; writing does.
#[derive(Debug)]
pub(crate) struct Late<T>(Option<Box<T>>);

/// The initial value: its default.
pub(crate) trait AtRest: Default + 'static {
    const AT_REST: &'static Self;
}

impl<T> Default for Late<T> {
    fn default() -> Self {
        Self::NONE
    }
}

impl<T> Late<T> {
    pub(crate) const NONE: Self = Self(None);

    /// Returns the value, if it was ever written.
    #[inline]
    pub(crate) fn get(&self) -> Option<&T> {
        self.0.as_deref()
    }

    /// Returns the same, mutable.
    pub(crate) fn get_mut(&mut self) -> Option<&mut T> {
        self.0.as_deref_mut()
    }
}

impl<T: AtRest> Deref for Late<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        self.0.as_deref().unwrap_or(T::AT_REST)
    }
}

impl<T: AtRest> DerefMut for Late<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        self.0.get_or_insert_default()
    }
}

impl<T: 'static> AtRest for VecDeque<T> {
    const AT_REST: &'static Self = &Self::new();
}

/// A queue that is usually empty.
pub(crate) type LateQueue<T> = Late<VecDeque<T>>;

impl<T: 'static> LateQueue<T> {
    #[inline]
    pub(crate) fn pop_front(&mut self) -> Option<T> {
        self.0.as_mut()?.pop_front()
    }

    /// Does not access the queue where there is none, as is usual.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.as_ref().is_none_or(|queue| queue.is_empty())
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.0.as_ref().map_or(0, |queue| queue.len())
    }

    #[inline]
    pub(crate) fn front(&self) -> Option<&T> {
        self.0.as_ref()?.front()
    }

    /// Drops all entries and the memory.
    pub(crate) fn clear(&mut self) {
        self.0 = None;
    }

    pub(crate) fn retain(&mut self, keep: impl FnMut(&T) -> bool) {
        if let Some(queue) = &mut self.0 {
            queue.retain(keep);
        }
    }

    /// Removes and returns the entries that `is_hit` selects, in order.
    pub(crate) fn extract(&mut self, is_hit: impl Fn(&T) -> bool) -> VecDeque<T> {
        let entries = self.0.take().map(|queue| *queue).unwrap_or_default();
        let (hit, kept): (_, VecDeque<T>) = entries.into_iter().partition(is_hit);
        self.0 = (!kept.is_empty()).then(|| Box::new(kept));
        hit
    }

    /// Frees memory if it is empty.
    pub(crate) fn shrink(&mut self) {
        if self.is_empty() {
            self.0 = None;
        }
    }
}

/// Hash for keys that this side numbers, or that lie in one window of frames: peers cannot choose
/// them.
pub(crate) type Hashing = foldhash::fast::FixedState;

/// A map keyed by frame numbers.
#[derive(Debug)]
pub(crate) struct LateMap<T> {
    seed: u64,
    #[allow(clippy::box_collection, reason = "a map takes 40 bytes where it is empty")]
    map: Option<Box<HashMap<u32, T, Hashing>>>,
}

impl<T> LateMap<T> {
    pub(crate) fn new(seed: u64) -> Self {
        Self { seed, map: None }
    }

    pub(crate) fn get(&self, key: u32) -> Option<&T> {
        self.map.as_ref()?.get(&key)
    }

    pub(crate) fn contains(&self, key: u32) -> bool {
        self.get(key).is_some()
    }

    pub(crate) fn insert(&mut self, key: u32, value: T) {
        let seed = self.seed;
        let new = || Box::new(HashMap::with_hasher(Hashing::with_seed(seed)));
        self.map.get_or_insert_with(new).insert(key, value);
    }

    pub(crate) fn remove(&mut self, key: u32) -> Option<T> {
        self.map.as_mut()?.remove(&key)
    }

    /// Removes all entries.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = T> {
        self.map.take().into_iter().flat_map(|map| map.into_values())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.map.as_ref().is_none_or(|map| map.is_empty())
    }

    /// Frees memory if it is empty.
    pub(crate) fn shrink(&mut self) {
        if self.is_empty() {
            self.map = None;
        }
    }
}
