//! Collections that most sessions never need: they take memory with their first entry.

use std::collections::{HashMap, VecDeque};
use std::ops::{Deref, DerefMut};

/// What is mostly at rest. Reading that allocates nothing; writing does.
#[derive(Debug)]
pub(crate) struct Late<T>(Option<Box<T>>);

/// What a value is that nobody has written to: its default.
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

/// A queue that is mostly empty.
pub(crate) type LateQueue<T> = Late<VecDeque<T>>;

impl<T: 'static> LateQueue<T> {
    #[inline]
    pub(crate) fn pop_front(&mut self) -> Option<T> {
        self.0.as_mut()?.pop_front()
    }

    /// Without a look at the queue where there is none, as mostly.
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

    /// Drops all, and keeps no memory.
    pub(crate) fn clear(&mut self) {
        self.0 = None;
    }

    pub(crate) fn retain(&mut self, keep: impl FnMut(&T) -> bool) {
        if let Some(queue) = &mut self.0 {
            queue.retain(keep);
        }
    }

    /// Gives memory back, if it is empty.
    pub(crate) fn shrink(&mut self) {
        if self.is_empty() {
            self.0 = None;
        }
    }
}

/// Hashes what one side numbers itself, or what lies in one window of frames: nobody else chooses.
pub(crate) type Hashing = foldhash::fast::FixedState;

/// A map from numbers of frames.
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

    /// Takes all out.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = T> {
        self.map.take().into_iter().flat_map(|map| map.into_values())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.map.as_ref().is_none_or(|map| map.is_empty())
    }

    /// Gives memory back, if it is empty.
    pub(crate) fn shrink(&mut self) {
        if self.is_empty() {
            self.map = None;
        }
    }
}
