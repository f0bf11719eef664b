//! Slices of registered memory, which can be split and joined without copying.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

use super::arena::Arena;
use super::error::MemoryError;
use super::mapping::Mapping;
use crate::refused_call::number_of;

/// The owner of a region's memory, to which the last slice returns it.
#[derive(Debug)]
enum Home {
    /// The arena; `bytes` is the size that it counts.
    Arena { arena: Arc<Arena>, block: NonNull<u8>, bytes: usize },
    /// A mapping of its own, which is unmapped.
    Own { _mapping: Mapping },
}

/// The memory of one region, divided among its slices.
#[derive(Debug)]
struct Region {
    home: Home,
}

// SAFETY: the block pointer only names memory of the arena, which is `Send` and `Sync` itself;
// the region never accesses it.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    fn is_registered(&self) -> bool {
        matches!(self.home, Home::Arena { .. })
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if let Home::Arena { arena, block, bytes } = &self.home {
            arena.give(*block, *bytes);
        }
    }
}

/// Owned memory to send from and receive into ([`Domain::allocate`](crate::Domain::allocate)).
///
/// It behaves like a `Box<[u8]>` that can be split and joined without copying. Memory of the arena
/// ([`Self::is_registered`]) is in huge pages if the host has some; otherwise it is registered with
/// the kernel, so that sends need not pin it. When the arena is full, a slice is ordinary memory:
/// it works the same, but more slowly.
///
/// Moving a slice costs nothing; splitting, joining and dropping it change a shared counter.
///
/// The memory of the arena is not mapped in a child of `fork`, which must not access slices.
pub struct RegionSlice {
    ptr: NonNull<u8>,
    len: usize,
    region: Arc<Region>,
}

// SAFETY: a slice is the only way to its bytes (`split_*` makes disjoint ones), as `Box<[u8]>` is.
unsafe impl Send for RegionSlice {}
// SAFETY: a shared slice only gives out shared bytes.
unsafe impl Sync for RegionSlice {}

/// Allocates `len` zeroed bytes at a multiple of `align`, from the arena where they fit and
/// otherwise from a mapping of their own. Zero bytes are fine.
///
/// # Errors
///
/// [`MemoryError::BadAlignment`] when `align` is not a power of two, [`MemoryError::TooLarge`]
/// and [`MemoryError::OutOfMemory`] when there is no such memory.
pub(crate) fn alloc_region(
    arena: &Arc<Arena>,
    len: usize,
    align: usize,
) -> Result<RegionSlice, MemoryError> {
    if !align.is_power_of_two() {
        return Err(MemoryError::BadAlignment { align });
    }
    if len > isize::MAX as usize {
        return Err(MemoryError::TooLarge { bytes: len });
    }
    let (ptr, home) = match arena.take(len, align) {
        Some((block, bytes)) => {
            // SAFETY: the block is `bytes >= len` long and ours alone from `take` to `give`.
            unsafe { block.write_bytes(0, len) };
            (block, Home::Arena { arena: Arc::clone(arena), block, bytes })
        }
        None => {
            let mapping = Mapping::new(len, align).map_err(|error| MemoryError::OutOfMemory {
                bytes: len,
                os_error: number_of(&error).unwrap_or(rustix::io::Errno::NOMEM.raw_os_error()),
            })?;
            (mapping.base(), Home::Own { _mapping: mapping })
        }
    };
    Ok(RegionSlice { ptr, len, region: Arc::new(Region { home }) })
}

impl RegionSlice {
    /// Returns the length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether the memory belongs to the arena of the domain. This affects speed only.
    pub fn is_registered(&self) -> bool {
        self.region.is_registered()
    }

    /// Splits the slice: keeps bytes `0..at` and returns the rest.
    ///
    /// # Panics
    ///
    /// If `at` is larger than the length.
    #[must_use = "the bytes from `at` on are freed with the returned slice"]
    pub fn split_off(&mut self, at: usize) -> Self {
        assert!(at <= self.len, "cannot split a slice of {} bytes at {at}", self.len);
        // SAFETY: `at` is inside the slice or at its end, hence inside the region.
        let ptr = unsafe { self.ptr.add(at) };
        let rest = Self { ptr, len: self.len - at, region: Arc::clone(&self.region) };
        self.len = at;
        rest
    }

    /// Splits the slice: returns bytes `0..at` and keeps the rest.
    ///
    /// # Panics
    ///
    /// If `at` is larger than the length.
    #[must_use = "the bytes before `at` are freed with the returned slice"]
    pub fn split_to(&mut self, at: usize) -> Self {
        let rest = self.split_off(at);
        std::mem::replace(self, rest)
    }

    /// Joins `other` to the end of this slice, without copying.
    ///
    /// # Errors
    ///
    /// Returns `other` if it does not follow this slice in the same region.
    pub fn unsplit(&mut self, other: Self) -> Result<(), Self> {
        let end = self.ptr.addr().get() + self.len;
        if !Arc::ptr_eq(&self.region, &other.region) || other.ptr.addr().get() != end {
            return Err(other);
        }
        self.len += other.len;
        Ok(())
    }

    /// The first byte, for the kernel to read and write while the engine owns the slice.
    pub(super) fn as_mut_ptr(&mut self) -> *mut u8 {
        self.ptr.as_ptr()
    }
}

impl Deref for RegionSlice {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: `ptr..ptr + len` is initialised (zeroed at allocation), lives as long as
        // `region`, and belongs to this slice alone.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len) }
    }
}

impl DerefMut for RegionSlice {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` makes it the only access.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len) }
    }
}

impl AsRef<[u8]> for RegionSlice {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl AsMut<[u8]> for RegionSlice {
    fn as_mut(&mut self) -> &mut [u8] {
        self
    }
}

impl fmt::Debug for RegionSlice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegionSlice")
            .field("ptr", &self.ptr)
            .field("len", &self.len)
            .field("registered", &self.is_registered())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn arena() -> Arc<Arena> {
        Arena::new(256 << 10).expect("an arena of 256 KiB")
    }

    #[test]
    fn regions_are_zeroed_aligned_and_return_to_the_arena() {
        let arena = arena();
        for round in 0..3 {
            for (len, align) in [(0, 1), (1, 1), (100, 64), (5000, 4096), (100, 16384)] {
                let mut region = alloc_region(&arena, len, align).expect("it fits");
                assert!(region.is_registered(), "round {round}");
                assert_eq!(region.len(), len);
                assert_eq!(region.as_ptr() as usize % align, 0);
                assert!(arena.contains(region.as_ptr(), len));
                assert!(region.iter().all(|&byte| byte == 0), "left over from before");
                region.fill(0xff);
            }
            assert_eq!(arena.free_bytes(), arena.len());
        }
    }

    #[test]
    fn regions_beyond_the_arena_use_ordinary_memory() {
        let arena = arena();
        let mut large = alloc_region(&arena, arena.len() + 1, 1 << 16).expect("a mapping");
        assert!(!large.is_registered());
        assert_eq!(large.as_ptr() as usize % (1 << 16), 0);
        assert!(large.iter().all(|&byte| byte == 0));
        large.fill(1);
        assert!(!arena.contains(large.as_ptr(), 1));
        assert_eq!(arena.free_bytes(), arena.len());
    }

    #[test]
    fn impossible_sizes_are_errors() {
        let arena = arena();
        for align in [0, 3, 96] {
            assert_eq!(
                alloc_region(&arena, 8, align).err(),
                Some(MemoryError::BadAlignment { align })
            );
        }
        let bytes = usize::MAX;
        assert_eq!(alloc_region(&arena, bytes, 1).err(), Some(MemoryError::TooLarge { bytes }));
        let bytes = isize::MAX as usize;
        for align in [1, 1 << (usize::BITS - 1)] {
            let error = alloc_region(&arena, bytes, align).expect_err("half the address space");
            assert!(matches!(error, MemoryError::OutOfMemory { .. }), "{error:?}");
            assert!(error.to_string().contains("memory"), "{error}");
        }
    }

    #[test]
    fn only_adjacent_pieces_join() {
        let arena = arena();
        let mut left = alloc_region(&arena, 128, 1).expect("it fits");
        // At the next address, but of another region.
        let other = alloc_region(&arena, 64, 1).expect("it fits");
        assert_eq!(left.as_ptr().wrapping_add(128), other.as_ptr());
        let other = left.unsplit(other).expect_err("another region");
        let mut middle = left.split_off(10);
        let right = middle.split_off(20);
        let right = left.unsplit(right).expect_err("the middle is missing");
        left.unsplit(middle).expect("adjacent");
        left.unsplit(right).expect("adjacent");
        assert_eq!(left.len(), 128);
        drop((left, other));
        assert_eq!(arena.free_bytes(), arena.len());
    }

    #[test]
    #[should_panic(expected = "cannot split a slice of 8 bytes at 9")]
    fn splitting_behind_the_end_panics() {
        let mut region = alloc_region(&arena(), 8, 1).expect("it fits");
        drop(region.split_to(9));
    }

    #[test]
    fn slices_cross_threads_and_outlive_the_arena_handle() {
        let arena = arena();
        let weak = Arc::downgrade(&arena);
        let mut left = alloc_region(&arena, 1000, 1).expect("it fits");
        let mut right = left.split_off(500);
        drop(arena);
        std::thread::scope(|scope| {
            scope.spawn(|| left.fill(1));
            scope.spawn(|| right.fill(2));
        });
        left.unsplit(right).expect("adjacent");
        assert!(left[..500].iter().all(|&byte| byte == 1));
        assert!(left[500..].iter().all(|&byte| byte == 2));
        drop(left);
        assert!(weak.upgrade().is_none(), "the last slice frees the arena");
    }

    proptest! {
        #[test]
        fn splits_partition_the_bytes(
            cuts in prop::collection::vec((any::<bool>(), 0.0..=1.0f64), 0..20),
        ) {
            let arena = arena();
            let mut rest = alloc_region(&arena, 1000, 1).expect("it fits");
            for (index, byte) in rest.iter_mut().enumerate() {
                *byte = (index % 251) as u8;
            }
            let whole = rest.to_vec();
            let (mut front, mut back) = (Vec::new(), Vec::new());
            for (from_front, share) in cuts {
                let at = (rest.len() as f64 * share) as usize;
                if from_front {
                    front.push(rest.split_to(at));
                } else {
                    back.push(rest.split_off(at));
                }
            }
            back.reverse();
            let pieces: Vec<_> = front.into_iter().chain([rest]).chain(back).collect();
            let joined: Vec<u8> = pieces.iter().flat_map(|piece| piece.iter().copied()).collect();
            prop_assert_eq!(&joined, &whole);
            let mut pieces = pieces.into_iter();
            let mut all = pieces.next().expect("at least the rest");
            for piece in pieces {
                prop_assert!(all.unsplit(piece).is_ok());
            }
            prop_assert_eq!(&all[..], &whole[..]);
            drop(all);
            prop_assert_eq!(arena.free_bytes(), arena.len());
        }
    }
}
