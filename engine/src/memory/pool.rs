//! Buffers of one size that an engine uses over and over.

use std::fmt;
use std::ops::{Deref, DerefMut};

use aligned_vec::{AVec, ConstAlign};

/// Start of every buffer: no two share a cache line.
const ALIGN_BYTES: usize = 64;
/// Kept even when nothing needed it lately.
const KEPT_BUFFERS: usize = 4;
/// After this many returns the need is looked at afresh.
const WINDOW_RETURNS: usize = 4096;

/// A buffer of a [`BufferPool`]; its length never changes. It starts a cache line, and its
/// contents are left from earlier use.
pub(crate) struct PoolBuffer {
    bytes: AVec<u8, ConstAlign<ALIGN_BYTES>>,
}

impl Deref for PoolBuffer {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl DerefMut for PoolBuffer {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

impl fmt::Debug for PoolBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PoolBuffer({} bytes)", self.bytes.len())
    }
}

/// A bounded number of buffers of one size, for one engine.
///
/// As many are kept as were in use at once lately: a steady load allocates nothing, and what a
/// burst took is freed after one to two windows ([`Self::age`], or [`WINDOW_RETURNS`] returns).
#[derive(Debug)]
pub(crate) struct BufferPool {
    buffer_bytes: usize,
    max_buffers: usize,
    idle: Vec<PoolBuffer>,
    in_use: usize,
    high_water: usize,
    /// Most in use at once in this window, and in the one before.
    peak: usize,
    previous_peak: usize,
    returns: usize,
}

impl BufferPool {
    /// A pool of buffers of `buffer_bytes`, of which at most `max_buffers` exist. It starts empty.
    pub(crate) fn new(buffer_bytes: usize, max_buffers: usize) -> Self {
        Self {
            buffer_bytes,
            max_buffers,
            idle: Vec::new(),
            in_use: 0,
            high_water: 0,
            peak: 0,
            previous_peak: 0,
            returns: 0,
        }
    }

    /// Takes a buffer; `None` when all that may exist are in use.
    #[inline]
    pub(crate) fn take(&mut self) -> Option<PoolBuffer> {
        if self.in_use == self.max_buffers {
            return None;
        }
        let buffer = self.idle.pop().unwrap_or_else(|| Self::allocate(self.buffer_bytes));
        self.in_use += 1;
        self.peak = self.peak.max(self.in_use);
        self.high_water = self.high_water.max(self.in_use);
        Some(buffer)
    }

    /// Gives a buffer back.
    ///
    /// # Panics
    ///
    /// When it is not from this pool, as far as that can be seen: its length is another, or none
    /// is in use.
    #[inline]
    pub(crate) fn give(&mut self, buffer: PoolBuffer) {
        assert!(
            buffer.len() == self.buffer_bytes && self.in_use > 0,
            "a buffer is given back to the pool it came from"
        );
        self.in_use -= 1;
        if self.in_use + self.idle.len() < self.wanted() {
            self.idle.push(buffer);
        }
        self.returns += 1;
        if self.returns >= WINDOW_RETURNS {
            self.age();
        }
    }

    /// Starts a new window and frees what neither the last one nor this one needed.
    ///
    /// An engine calls it now and then while it has nothing to do, since without traffic no
    /// returns are counted: after two calls a few idle buffers are left.
    pub(crate) fn age(&mut self) {
        self.returns = 0;
        self.previous_peak = self.peak;
        self.peak = self.in_use;
        self.idle.truncate(self.wanted().saturating_sub(self.in_use));
        if self.idle.len() < self.idle.capacity() / 4 {
            self.idle.shrink_to(2 * self.idle.len());
        }
    }

    /// Buffers in the hands of the engine.
    pub(crate) fn in_use(&self) -> usize {
        self.in_use
    }

    /// The most buffers that were ever in use at once.
    pub(crate) fn high_water(&self) -> usize {
        self.high_water
    }

    /// Buffers that wait to be used, at most `max_buffers` together with those in use.
    pub(crate) fn idle(&self) -> usize {
        self.idle.len()
    }

    /// The length of every buffer, in bytes.
    pub(crate) fn buffer_bytes(&self) -> usize {
        self.buffer_bytes
    }

    /// How many buffers should exist, those in use included.
    #[inline]
    fn wanted(&self) -> usize {
        self.peak.max(self.previous_peak).max(KEPT_BUFFERS)
    }

    #[cold]
    #[inline(never)]
    fn allocate(bytes: usize) -> PoolBuffer {
        let mut buffer = AVec::with_capacity(ALIGN_BYTES, bytes);
        buffer.resize(bytes, 0);
        PoolBuffer { bytes: buffer }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn buffers_are_aligned_and_bounded() {
        let mut pool = BufferPool::new(100, 3);
        let taken: Vec<_> = std::iter::from_fn(|| pool.take()).collect();
        assert_eq!((taken.len(), pool.in_use(), pool.high_water()), (3, 3, 3));
        for buffer in taken {
            assert_eq!(buffer.len(), 100);
            assert_eq!(buffer.as_ptr() as usize % ALIGN_BYTES, 0);
            pool.give(buffer);
        }
        assert_eq!((pool.in_use(), pool.high_water(), pool.idle()), (0, 3, 3));
        assert!(BufferPool::new(100, 0).take().is_none());
    }

    #[test]
    fn a_steady_load_reuses_its_buffers() {
        let mut pool = BufferPool::new(64, 1000);
        let mut seen = std::collections::BTreeSet::new();
        for round in 0..100 {
            if round % 10 == 9 {
                pool.age();
            }
            let taken: Vec<_> = (0..50).filter_map(|_| pool.take()).collect();
            seen.extend(taken.iter().map(|buffer| buffer.as_ptr() as usize));
            taken.into_iter().for_each(|buffer| pool.give(buffer));
        }
        assert_eq!(seen.len(), 50, "allocated although warm");
    }

    #[test]
    fn what_a_burst_took_is_freed_again() {
        let mut pool = BufferPool::new(64, 1000);
        let burst: Vec<_> = std::iter::from_fn(|| pool.take()).collect();
        burst.into_iter().for_each(|buffer| pool.give(buffer));
        assert_eq!(pool.idle(), 1000);
        // A light load afterwards.
        for _ in 0..3 * WINDOW_RETURNS {
            let buffer = pool.take().expect("most are idle");
            pool.give(buffer);
        }
        assert_eq!(pool.idle(), KEPT_BUFFERS);
        assert!(pool.idle.capacity() <= 4 * KEPT_BUFFERS);
        // And none at all.
        let burst: Vec<_> = std::iter::from_fn(|| pool.take()).collect();
        burst.into_iter().for_each(|buffer| pool.give(buffer));
        pool.age();
        assert_eq!(pool.idle(), 1000, "the last window needed them");
        pool.age();
        assert_eq!(pool.idle(), KEPT_BUFFERS);
    }

    #[test]
    #[should_panic(expected = "the pool it came from")]
    fn buffers_of_another_pool_are_caught() {
        let buffer = BufferPool::new(64, 1).take().expect("one");
        let mut other = BufferPool::new(128, 1);
        let _held = other.take();
        other.give(buffer);
    }

    proptest! {
        #[test]
        fn the_bound_holds(
            max_buffers in 0..40usize,
            steps in prop::collection::vec(0..5u8, 0..400),
        ) {
            let mut pool = BufferPool::new(8, max_buffers);
            let (mut held, mut most) = (Vec::new(), 0);
            for step in steps {
                match step {
                    0..=2 => match pool.take() {
                        Some(buffer) => held.push(buffer),
                        None => prop_assert_eq!(held.len(), max_buffers),
                    },
                    3 => held.pop().into_iter().for_each(|buffer| pool.give(buffer)),
                    _ => pool.age(),
                }
                most = most.max(held.len());
                prop_assert_eq!((pool.in_use(), pool.high_water()), (held.len(), most));
                prop_assert!(pool.in_use() + pool.idle() <= max_buffers);
            }
        }
    }
}
