//! The arena: the memory that the engine registers with the kernel.

use std::fmt;
use std::io;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::mm::Advice;
use rustix::process::{Pid, getpid};

use super::blocks::{Blocks, PAGE_BYTES};
use super::mapping::{HUGE_PAGE_BYTES, Mapping};
use crate::refused_call::refused;

/// The pages that an arena got.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ArenaKind {
    /// Reserved huge pages (`MAP_HUGETLB`).
    Huge,
    /// Ordinary pages that the kernel was asked to join into huge ones.
    Transparent,
    /// Ordinary pages.
    Plain,
}

impl fmt::Display for ArenaKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Huge => "huge pages",
            Self::Transparent => "transparent huge pages",
            Self::Plain => "ordinary pages",
        })
    }
}

/// One anonymous mapping that never moves or grows, and the allocator of blocks in it.
///
/// It is absent from children of `fork`: its pages are pinned, and copying them on write would
/// part them from what the kernel sends and receives.
///
/// Allocation takes a lock and is no part of the path of a message.
pub(crate) struct Arena {
    /// Not dropped when `leaked` is set.
    mapping: ManuallyDrop<Mapping>,
    kind: ArenaKind,
    blocks: Mutex<Blocks>,
    leaked: AtomicBool,
    /// Where it is mapped.
    process: Pid,
}

impl Arena {
    /// Maps an arena of `bytes`, rounded up to whole pages (from 2 MiB on: to 2 MiB).
    pub(crate) fn new(bytes: usize) -> io::Result<Arc<Self>> {
        let (mapping, kind) = Self::map(bytes)?;
        mapping.advise(Advice::LinuxDontFork).map_err(refused("madvise"))?;
        let blocks = Blocks::new(mapping.base().addr().get(), mapping.len());
        Ok(Arc::new(Self {
            mapping: ManuallyDrop::new(mapping),
            kind,
            blocks: Mutex::new(blocks),
            leaked: AtomicBool::new(false),
            process: getpid(),
        }))
    }

    fn map(bytes: usize) -> io::Result<(Mapping, ArenaKind)> {
        if bytes < HUGE_PAGE_BYTES {
            return Ok((Mapping::new(bytes, PAGE_BYTES)?, ArenaKind::Plain));
        }
        if let Ok(mapping) = Mapping::new_huge(bytes) {
            return Ok((mapping, ArenaKind::Huge));
        }
        let rounded = bytes.checked_next_multiple_of(HUGE_PAGE_BYTES);
        let mapping = Mapping::new(rounded.ok_or(io::ErrorKind::OutOfMemory)?, HUGE_PAGE_BYTES)?;
        // Kernels without transparent huge pages refuse the advice; the memory is as good.
        let advised = mapping.advise(Advice::LinuxHugepage).is_ok();
        Ok((mapping, if advised { ArenaKind::Transparent } else { ArenaKind::Plain }))
    }

    /// The first byte, page aligned.
    pub(crate) fn base(&self) -> *mut u8 {
        self.mapping.base().as_ptr()
    }

    /// The length in bytes.
    pub(crate) fn len(&self) -> usize {
        self.mapping.len()
    }

    /// The pages it got.
    pub(crate) fn kind(&self) -> ArenaKind {
        self.kind
    }

    /// Whether some of its pages may be huge, or become so.
    pub(crate) fn may_be_huge(&self) -> bool {
        self.kind != ArenaKind::Plain
    }

    /// Bytes that no block holds.
    pub(crate) fn free_bytes(&self) -> usize {
        self.blocks().free_bytes()
    }

    #[cfg(test)]
    /// Whether all of `ptr..ptr + len` lies inside.
    #[inline]
    pub(crate) fn contains(&self, ptr: *const u8, len: usize) -> bool {
        match ptr.addr().checked_sub(self.base().addr()) {
            Some(offset) => offset <= self.len() && len <= self.len() - offset,
            None => false,
        }
    }

    /// Never unmaps the arena, and hands nothing out again that is freed from now on: for an
    /// engine that could not get the kernel to let go of its memory.
    ///
    /// Buffers outside the arena that the kernel may hold have to be forgotten by their owner.
    pub(crate) fn leak(&self) {
        self.leaked.store(true, Ordering::Release);
    }

    /// Takes a block of at least `bytes` at a multiple of `align` (a power of two); its contents
    /// are left from earlier use. Returns its first byte and its true size.
    pub(super) fn take(&self, bytes: usize, align: usize) -> Option<(NonNull<u8>, usize)> {
        let (address, taken) = self.blocks().take(bytes, align)?;
        let offset = address - self.mapping.base().addr().get();
        // SAFETY: the allocator only hands out addresses inside the mapping it was given.
        Some((unsafe { self.mapping.base().add(offset) }, taken))
    }

    /// Gives a block back, with the size that [`Self::take`] returned.
    pub(super) fn give(&self, block: NonNull<u8>, bytes: usize) {
        if !self.leaked.load(Ordering::Acquire) {
            self.blocks().give(block.addr().get(), bytes);
        }
    }

    fn blocks(&self) -> MutexGuard<'_, Blocks> {
        // The allocator panics only before it changes anything: a poisoned one is still right.
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // In a child of `fork` it is not mapped, and something else may be there by now.
        if !*self.leaked.get_mut() && self.process == getpid() {
            // SAFETY: dropped once, here. Every block keeps the arena alive, so none is left; the
            // engine calls `leak` where the kernel may still use the memory.
            unsafe { ManuallyDrop::drop(&mut self.mapping) };
        }
    }
}

impl fmt::Debug for Arena {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Arena")
            .field("base", &self.base())
            .field("len", &self.len())
            .field("kind", &self.kind)
            .field("free_bytes", &self.free_bytes())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Whether `/proc/self/maps` has `address`, and with which flags in `smaps`.
    fn flags_of(address: usize) -> Option<String> {
        let smaps = fs::read_to_string("/proc/self/smaps").expect("procfs");
        let mut inside = false;
        for line in smaps.lines() {
            let first = line.split(' ').next().unwrap_or_default();
            if let Some((start, end)) = first.split_once('-') {
                let range =
                    usize::from_str_radix(start, 16).ok()..usize::from_str_radix(end, 16).ok();
                inside = range.contains(&Some(address));
            } else if inside && let Some(flags) = line.strip_prefix("VmFlags:") {
                return Some(flags.trim().to_owned());
            }
        }
        None
    }

    #[test]
    fn sizes_are_rounded_to_pages_and_huge_pages() {
        let page = rustix::param::page_size();
        assert_eq!(Arena::new(0).expect("one page").len(), page);
        let small = Arena::new(300 << 10).expect("300 KiB");
        assert_eq!((small.len(), small.kind()), (300 << 10, ArenaKind::Plain));
        let large = Arena::new((2 << 20) + 1).expect("4 MiB");
        assert_eq!(large.len(), 4 << 20);
        assert_eq!(large.base() as usize % HUGE_PAGE_BYTES, 0);
        assert!(Arena::new(usize::MAX).is_err());
        assert!(Arena::new(usize::MAX / 2).is_err());
    }

    #[test]
    fn children_do_not_inherit_it_and_its_kind_is_true() {
        for bytes in [64 << 10, 2 << 20] {
            let arena = Arena::new(bytes).expect("an arena");
            let flags = flags_of(arena.base() as usize).expect("it is mapped");
            let has = |flag| flags.split(' ').any(|set| set == flag);
            assert!(has("dc"), "not DONTFORK: {flags}");
            assert_eq!(has("ht"), arena.kind() == ArenaKind::Huge, "{flags}");
            assert_eq!(has("hg"), arena.kind() == ArenaKind::Transparent, "{flags}");
            eprintln!("an arena of {bytes} bytes got {}", arena.kind());
        }
    }

    #[test]
    fn containment_is_exact() {
        let arena = Arena::new(1 << 20).expect("an arena");
        let (base, len) = (arena.base(), arena.len());
        assert!(arena.contains(base, len));
        assert!(arena.contains(base.wrapping_add(len), 0));
        assert!(arena.contains(base.wrapping_add(len - 1), 1));
        assert!(!arena.contains(base, len + 1));
        assert!(!arena.contains(base.wrapping_sub(1), 1));
        assert!(!arena.contains(base.wrapping_add(len), 1));
        assert!(!arena.contains(base.wrapping_add(1), usize::MAX));
    }

    #[test]
    fn a_leaked_arena_stays_mapped_and_reuses_nothing() {
        let arena = Arena::new(64 << 10).expect("an arena");
        let (block, bytes) = arena.take(4096, 1).expect("it fits");
        let free = arena.free_bytes();
        arena.leak();
        arena.give(block, bytes);
        assert_eq!(arena.free_bytes(), free);
        let (base, len) = (arena.mapping.base(), arena.len());
        drop(arena);
        assert!(flags_of(base.addr().get()).is_some(), "unmapped");
        // What the kernel would no longer need is ours to clean up. SAFETY: the leaked mapping is
        // still there, as just seen, and nothing else refers to it.
        unsafe { rustix::mm::munmap(base.as_ptr().cast(), len) }.expect("it was mapped");
    }

    #[test]
    fn a_dropped_arena_is_unmapped() {
        // Other tests may map memory at the same place at once, but not every time.
        let unmapped = (0..20).any(|_| {
            let arena = Arena::new(64 << 20).expect("an arena");
            let middle = arena.base() as usize + arena.len() / 2;
            assert!(flags_of(middle).is_some(), "not mapped");
            drop(arena);
            flags_of(middle).is_none()
        });
        assert!(unmapped);
    }
}
