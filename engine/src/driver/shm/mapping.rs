//! A mapped memfd that engines share.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::AtomicU64;

use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::memory::{note_unmapped, shared};
use crate::refused_call::refused;

const WORD_BYTES: usize = size_of::<u64>();

/// `BYTES` of memory, a multiple of 8. Other processes may write anywhere in it at any time, so it
/// is accessed by atomics only.
///
/// A child of `fork` does not inherit the mapping. The length is in the type, unlike that of
/// `memory::mapping::Mapping`, so that the fields used by polling a channel fit into one cache
/// line.
#[derive(Debug)]
pub(super) struct SharedMapping<const BYTES: usize> {
    base: NonNull<u8>,
}

// SAFETY: the mapping belongs to the process, not to a thread, and is accessed by atomics only.
unsafe impl<const BYTES: usize> Send for SharedMapping<BYTES> {}

impl<const BYTES: usize> SharedMapping<BYTES> {
    /// Zeroed memory, and the descriptor for the peer. It has no name in any file system, so only
    /// holders of the descriptor can map it.
    pub(super) fn create(name: &str) -> io::Result<(Self, OwnedFd)> {
        let memory = shared::create_sealed(name, BYTES as u64)?;
        Ok((Self::map(memory.as_fd())?, memory))
    }

    /// Memory that a peer created.
    ///
    /// # Errors
    ///
    /// It is not what [`Self::create`] makes: its length may change or is wrong, or it is no plain
    /// memory.
    ///
    /// RR-SHM-3.
    pub(super) fn open(memory: BorrowedFd<'_>) -> io::Result<Self> {
        if shared::sealed_bytes(memory)? != BYTES as u64 {
            let why = "the peer's memory has a wrong length";
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        Self::map(memory)
    }

    fn map(memory: BorrowedFd<'_>) -> io::Result<Self> {
        const { assert!(BYTES.is_multiple_of(WORD_BYTES)) };
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: without MAP_FIXED the kernel picks an address that nothing else uses.
        let base = unsafe {
            let flags = MapFlags::SHARED;
            rustix::mm::mmap(ptr::null_mut(), BYTES, protection, flags, memory, 0)
        };
        let base = base.map_err(refused("mmap"))?;
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        let mapping = Self { base };
        // SAFETY: the range is exactly this mapping, and the advice changes no contents.
        unsafe { rustix::mm::madvise(base.as_ptr().cast(), BYTES, Advice::LinuxDontFork) }
            .map_err(refused("madvise"))?;
        Ok(mapping)
    }

    /// The same memory, mapped once more.
    #[cfg(test)]
    pub(super) fn again(&self) -> Self {
        // SAFETY: a length of 0 duplicates a shared mapping, at an address that the kernel picks.
        let base = unsafe {
            let flags = rustix::mm::MremapFlags::MAYMOVE;
            rustix::mm::mremap(self.base.as_ptr().cast(), 0, BYTES, flags)
        };
        Self { base: NonNull::new(base.unwrap().cast()).unwrap() }
    }

    /// The memory as words.
    #[inline]
    pub(super) fn words(&self) -> &[AtomicU64] {
        // SAFETY: so many words are mapped as long as this value is there, at a multiple of eight,
        // and this process accesses them by atomics only, which others may change meanwhile.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().cast(), BYTES / WORD_BYTES) }
    }
}

impl<const BYTES: usize> Drop for SharedMapping<BYTES> {
    fn drop(&mut self) {
        // SAFETY: the range is exactly this mapping; words borrow it, so none is in use.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), BYTES) };
        note_unmapped(BYTES, unmapped);
    }
}
