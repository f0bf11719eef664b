//! One anonymous and private memory mapping.

use std::io;
use std::ptr::{self, NonNull};
use std::sync::Once;

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::refused_call::refused;

/// The huge pages that are asked for, in bytes.
pub(super) const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Page-aligned memory; unmapped on drop, never moved.
#[derive(Debug)]
pub(super) struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping belongs to the process, not to a thread; the value only names it.
unsafe impl Send for Mapping {}
// SAFETY: as above; a shared reference gives out addresses, no access.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `bytes`, rounded up to whole pages, at a multiple of `align` (a power of two).
    ///
    /// Mappings of 2 MiB and more are aligned for transparent huge pages.
    pub(super) fn new(bytes: usize, align: usize) -> io::Result<Self> {
        debug_assert!(align.is_power_of_two());
        let page = rustix::param::page_size();
        let bytes = round_up(bytes.max(1), page)?;
        let align = if bytes >= HUGE_PAGE_BYTES { align.max(HUGE_PAGE_BYTES) } else { align };
        let slack = if align > page { align } else { 0 };
        let mapped = bytes.checked_add(slack).ok_or_else(too_large)?;
        let mut whole = Self::map(mapped, MapFlags::PRIVATE)?;
        if slack > 0 {
            let head = whole.base.as_ptr().align_offset(align);
            whole.trim(head, bytes)?;
        }
        Ok(whole)
    }

    /// Maps `bytes`, rounded up to whole huge pages, from the reserved huge pages of the host.
    ///
    /// The pages are made present: a cgroup that promises huge pages and does not have them
    /// kills at the first touch, while this call only fails.
    pub(super) fn new_huge(bytes: usize) -> io::Result<Self> {
        let bytes = round_up(bytes.max(1), HUGE_PAGE_BYTES)?;
        let flags = MapFlags::PRIVATE | MapFlags::HUGETLB | MapFlags::HUGE_2MB;
        let mapping = Self::map(bytes, flags)?;
        mapping.advise(Advice::LinuxPopulateWrite)?;
        Ok(mapping)
    }

    fn map(bytes: usize, flags: MapFlags) -> io::Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: without MAP_FIXED the kernel picks an address that nothing else uses.
        let base = unsafe { mmap_anonymous(ptr::null_mut(), bytes, protection, flags) };
        let base = base.map_err(refused("mmap"))?;
        let base = NonNull::new(base.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { base, bytes })
    }

    /// Keeps `bytes` from `head` on and unmaps the rest; both are whole pages.
    fn trim(&mut self, head: usize, bytes: usize) -> io::Result<()> {
        let old = (self.base.as_ptr(), self.bytes);
        let tail = old.1.checked_sub(head).and_then(|rest| rest.checked_sub(bytes));
        let tail = tail.ok_or_else(too_large)?;
        if head > 0 {
            // SAFETY: the pages before `head` are ours and their address was not given out.
            note_unmapped(head, unsafe { munmap(old.0.cast(), head) });
            // SAFETY: `head` lies inside the mapping, by the check above.
            self.base = unsafe { self.base.add(head) };
            self.bytes -= head;
        }
        if tail > 0 {
            // SAFETY: the last `tail` bytes are ours and their address was not given out.
            let unmapped = unsafe { munmap(self.base.as_ptr().add(bytes).cast(), tail) };
            note_unmapped(tail, unmapped);
            self.bytes = bytes;
        }
        Ok(())
    }

    /// Advice that changes neither contents nor validity of the mapping.
    pub(super) fn advise(&self, advice: Advice) -> io::Result<()> {
        debug_assert!(matches!(
            advice,
            Advice::LinuxPopulateWrite | Advice::LinuxHugepage | Advice::LinuxDontFork
        ));
        // SAFETY: the range is exactly this live mapping, and no advice used here discards data.
        Ok(unsafe { madvise(self.base.as_ptr().cast(), self.bytes, advice) }?)
    }

    /// The first byte.
    pub(super) fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// The length in bytes, rounded up from what was asked for.
    pub(super) fn len(&self) -> usize {
        self.bytes
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is exactly this mapping, and no pointer to it is left when it is
        // dropped.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.bytes) };
        note_unmapped(self.bytes, unmapped);
    }
}

/// Logs once that the kernel keeps memory mapped: nothing refers to it, so that no more is lost.
pub(crate) fn note_unmapped(bytes: usize, unmapped: Result<(), Errno>) {
    static LOGGED: Once = Once::new();
    if let Err(error) = unmapped {
        let error = refused("munmap")(error);
        LOGGED.call_once(|| tracing::warn!("cannot unmap {bytes} unused bytes: {error}"));
    }
}

fn round_up(bytes: usize, unit: usize) -> io::Result<usize> {
    let rounded = bytes.checked_next_multiple_of(unit).ok_or_else(too_large)?;
    // One object may not be larger than `isize::MAX`, or pointer arithmetic would be undefined.
    if rounded > isize::MAX as usize { Err(too_large()) } else { Ok(rounded) }
}

fn too_large() -> io::Error {
    Errno::NOMEM.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_are_aligned_zeroed_and_rounded_to_pages() {
        let page = rustix::param::page_size();
        for (bytes, align) in [(1, 1), (page, page), (page + 1, 1 << 16), (5 << 20, 64)] {
            let mapping = Mapping::new(bytes, align).expect("a small mapping");
            assert_eq!(mapping.base().as_ptr() as usize % align.max(page), 0);
            assert_eq!(mapping.len(), bytes.next_multiple_of(page));
            if bytes >= HUGE_PAGE_BYTES {
                assert_eq!(mapping.base().as_ptr() as usize % HUGE_PAGE_BYTES, 0);
            }
            // SAFETY: the mapping is live, `len` bytes long and only used here.
            let all =
                unsafe { std::slice::from_raw_parts_mut(mapping.base().as_ptr(), mapping.len()) };
            assert!(all.iter().all(|&byte| byte == 0));
            all.fill(7);
        }
    }

    #[test]
    fn sizes_that_cannot_be_are_refused() {
        for bytes in [usize::MAX, isize::MAX as usize, usize::MAX - 4096] {
            assert!(Mapping::new(bytes, 1 << 21).is_err());
            assert!(Mapping::new_huge(bytes).is_err());
        }
    }
}
