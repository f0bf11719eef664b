//! Rings and memory shared with the kernel, without a library: for a socket opened by another
//! process.
//!
//! A ring has one producer and one consumer. The producer writes entries after the last one and
//! then advances `producer`, the consumer reads entries and then advances `consumer`; each stores
//! its own index with release and loads the other's with acquire. Indices wrap at 2^32.

use std::io;
use std::marker::PhantomData;
use std::os::fd::BorrowedFd;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering, fence};

use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use rustix::net::xdp::XdpRingOffset;

/// The kernel needs a wake-up to process the ring.
const NEED_WAKEUP: u32 = 1;

/// Mapped memory, unmapped on drop.
#[derive(Debug)]
pub(super) struct RingMapping {
    base: *mut u8,
    bytes: usize,
}

// SAFETY: the memory belongs to the value, whichever thread has it.
unsafe impl Send for RingMapping {}

impl RingMapping {
    /// New memory, in whole pages.
    pub(super) fn anonymous(bytes: usize) -> io::Result<Self> {
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let base = unsafe { mmap_anonymous(ptr::null_mut(), bytes, access, flags) }?;
        Ok(Self { base: base.cast(), bytes })
    }

    fn of(socket: BorrowedFd<'_>, bytes: usize, offset: u64) -> io::Result<Self> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: as above.
        let base = unsafe { mmap(ptr::null_mut(), bytes, access, flags, socket, offset) }?;
        Ok(Self { base: base.cast(), bytes })
    }

    /// Its first byte, page-aligned.
    pub(super) fn base(&self) -> *mut u8 {
        self.base
    }

    /// Its length.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for RingMapping {
    fn drop(&mut self) {
        // SAFETY: mapped with this size, and nothing refers to it any more. What the kernel still
        // writes to are pages that it holds.
        let _ = unsafe { munmap(self.base.cast(), self.bytes) };
    }
}

/// A ring of entries `T`, which are plain integers.
#[derive(Debug)]
pub(super) struct MappedRing<T> {
    map: RingMapping,
    producer: usize,
    consumer: usize,
    flags: usize,
    entries: usize,
    size: u32,
    /// This side's index, which the kernel only reads.
    own: u32,
    /// The kernel's index as last loaded.
    seen: u32,
    entry: PhantomData<T>,
}

impl<T: Copy> MappedRing<T> {
    /// Maps the ring at offset `page` of a socket, of `size` entries, a power of two.
    pub(super) fn map(
        socket: BorrowedFd<'_>,
        offsets: &XdpRingOffset,
        size: u32,
        page: u64,
    ) -> io::Result<Self> {
        let at = |offset: Option<u64>| {
            offset
                .and_then(|offset| usize::try_from(offset).ok())
                .filter(|offset| offset.is_multiple_of(align_of::<u32>()))
                .ok_or_else(|| io::Error::other("ring offsets out of range"))
        };
        let entries = at(Some(offsets.desc))?;
        let (producer, consumer) = (at(Some(offsets.producer))?, at(Some(offsets.consumer))?);
        let flags = at(offsets.flags)?;
        if !size.is_power_of_two()
            || !entries.is_multiple_of(align_of::<T>())
            || producer.max(consumer).max(flags) + size_of::<u32>() > entries
        {
            return Err(io::Error::other("unsupported ring layout"));
        }
        let bytes = entries + size as usize * size_of::<T>();
        let map = RingMapping::of(socket, bytes, page)?;
        let (own, seen, entry) = (0, 0, PhantomData);
        Ok(Self { map, producer, consumer, flags, entries, size, own, seen, entry })
    }

    fn number(&self, at: usize) -> &AtomicU32 {
        // SAFETY: `at` is aligned and before the entries, which end within the mapping (`map`);
        // both sides use atomics.
        unsafe { AtomicU32::from_ptr(self.map.base.add(at).cast()) }
    }

    fn entry(&self, number: u32) -> *mut T {
        let index = (number & (self.size - 1)) as usize;
        // SAFETY: the mapping holds `size` aligned entries behind `entries` (`map`).
        unsafe { self.map.base.add(self.entries).cast::<T>().add(index) }
    }

    /// Whether the kernel needs a wake-up.
    pub(super) fn needs_wakeup(&self) -> bool {
        // The kernel sets the flag and then checks the ring; this side writes the ring and then
        // checks the flag.
        fence(Ordering::SeqCst);
        self.number(self.flags).load(Ordering::Relaxed) & NEED_WAKEUP != 0
    }

    // ---- Producer ----

    /// Writes as many entries as there is room for; returns how many.
    pub(super) fn put(&mut self, count: usize, mut entry: impl FnMut(usize) -> T) -> usize {
        if (self.free() as usize) < count {
            self.seen = self.number(self.consumer).load(Ordering::Acquire);
        }
        let count = count.min(self.free() as usize);
        for at in 0..count {
            let place = self.entry(self.own.wrapping_add(at as u32));
            // SAFETY: the kernel has read this entry, according to its index, and will not access
            // it before this side advances its own.
            unsafe { place.write(entry(at)) };
        }
        if count > 0 {
            self.own = self.own.wrapping_add(count as u32);
            self.number(self.producer).store(self.own, Ordering::Release);
        }
        count
    }

    fn free(&self) -> u32 {
        // An invalid kernel index leaves no room.
        self.size.saturating_sub(self.own.wrapping_sub(self.seen))
    }

    // ---- Consumer ----

    /// Whether an entry is present.
    pub(super) fn has_some(&mut self) -> bool {
        if self.filled() == 0 {
            self.seen = self.number(self.producer).load(Ordering::Acquire);
        }
        self.filled() > 0
    }

    /// Reads at most `count` entries, each by `into`; returns how many.
    pub(super) fn take(&mut self, count: usize, mut into: impl FnMut(usize, T)) -> usize {
        if (self.filled() as usize) < count {
            self.seen = self.number(self.producer).load(Ordering::Acquire);
        }
        let count = count.min(self.filled() as usize);
        for at in 0..count {
            let place = self.entry(self.own.wrapping_add(at as u32));
            // SAFETY: the kernel has written this entry, according to its index, and will not
            // access it before this side advances its own; any bytes are a `T`.
            into(at, unsafe { place.read() });
        }
        if count > 0 {
            self.own = self.own.wrapping_add(count as u32);
            self.number(self.consumer).store(self.own, Ordering::Release);
        }
        count
    }

    fn filled(&self) -> u32 {
        // At most the size of the ring, whatever the kernel's index is.
        self.seen.wrapping_sub(self.own).min(self.size)
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd as _, OwnedFd};
    use std::thread;

    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    use super::*;

    const OFFSETS: XdpRingOffset =
        XdpRingOffset { producer: 0, consumer: 64, desc: 192, flags: Some(128) };

    fn memory() -> OwnedFd {
        let file = memfd_create("ring", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, 1 << 16).unwrap();
        file
    }

    fn ring(file: &OwnedFd, size: u32) -> MappedRing<u64> {
        MappedRing::map(file.as_fd(), &OFFSETS, size, 0).unwrap()
    }

    /// Sets both indices of a fresh ring shortly before they wrap.
    fn begin_at(ring: &mut MappedRing<u64>, number: u32) {
        ring.number(ring.producer).store(number, Ordering::Relaxed);
        ring.number(ring.consumer).store(number, Ordering::Relaxed);
        (ring.own, ring.seen) = (number, number);
    }

    #[test]
    fn entries_are_consumed_in_the_order_produced() {
        let file = memory();
        let (mut writer, mut reader) = (ring(&file, 64), ring(&file, 64));
        for ring in [&mut writer, &mut reader] {
            begin_at(ring, u32::MAX - 1000);
        }
        const COUNT: u64 = 200_000;
        thread::scope(|scope| {
            scope.spawn(move || {
                let mut next = 0;
                while next < COUNT {
                    let count = (COUNT - next).min(next % 17 + 1) as usize;
                    next += writer.put(count, |at| next + at as u64) as u64;
                    if writer.free() == 0 {
                        thread::yield_now();
                    }
                }
            });
            let mut next = 0;
            while next < COUNT {
                let took = reader.take((next % 23 + 1) as usize, |_, entry| {
                    assert_eq!(entry, next);
                    next += 1;
                });
                if took == 0 {
                    assert!(next < COUNT);
                    thread::yield_now();
                }
            }
            assert!(!reader.has_some());
        });
    }

    #[test]
    fn ring_accepts_entries_up_to_its_size() {
        let file = memory();
        let (mut writer, mut reader) = (ring(&file, 8), ring(&file, 8));
        assert!(!reader.has_some());
        assert_eq!(writer.put(5, |at| at as u64), 5);
        assert_eq!(writer.put(5, |at| 5 + at as u64), 3);
        assert_eq!(writer.put(1, |_| panic!("there is no room")), 0);
        assert!(reader.has_some());
        assert_eq!(reader.take(0, |_, _| panic!("nothing is wanted")), 0);
        let mut seen = Vec::new();
        assert_eq!(reader.take(100, |_, entry| seen.push(entry)), 8);
        assert_eq!(seen, (0..8).collect::<Vec<u64>>());
        assert_eq!(writer.put(100, |at| at as u64), 8);
        assert!(!writer.needs_wakeup());
        writer.number(writer.flags).store(1, Ordering::Relaxed);
        assert!(writer.needs_wakeup());
    }

    #[test]
    fn impossible_indices_stay_within_the_ring() {
        let file = memory();
        let (mut writer, mut reader) = (ring(&file, 8), ring(&file, 8));
        reader.number(reader.producer).store(1 << 31, Ordering::Relaxed);
        assert_eq!(reader.take(1000, |_, _| {}), 8);
        writer.number(writer.consumer).store(77, Ordering::Relaxed);
        assert_eq!(writer.put(1000, |_| 0), 0, "the reader was ahead of the writer");
    }

    #[test]
    fn unknown_ring_layout_is_refused() {
        let file = memory();
        let map = |offsets: XdpRingOffset, size| {
            MappedRing::<u64>::map(file.as_fd(), &offsets, size, 0).map(drop)
        };
        map(OFFSETS, 64).unwrap();
        map(OFFSETS, 63).unwrap_err();
        for wrong in [
            XdpRingOffset { flags: None, ..OFFSETS },
            XdpRingOffset { producer: 2, ..OFFSETS },
            XdpRingOffset { consumer: 192, ..OFFSETS },
            XdpRingOffset { desc: 196, ..OFFSETS },
        ] {
            map(wrong, 64).unwrap_err();
        }
    }
}
