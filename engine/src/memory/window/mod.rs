//! Memory that peers may read and write at any time.
//!
//! No reference to its bytes exists: what is in it is copied in and out by atomic stores and
//! loads, here and in the kernel, so that a peer's write is no data race. The engine, other
//! threads of the program and atomic operations of peers may all use one window at once.
//!
//! # What a reader sees
//!
//! - A naturally aligned item of 1, 2, 4 or 8 bytes is written and read at once: no reader sees
//!   half of it. (Not in windows of memory that may be unmapped, but by atomic operations.)
//! - After the bytes of a [`Window::store`] comes a release fence, and its last word is a release
//!   store: a thread that sees the word, or anything that this thread stores later (a completion,
//!   a counter), with `Acquire` sees all that was stored before it.
//! - What the kernel places directly is seen by a thread that sees, with `Acquire`, what the thread
//!   that reaped the kernel's completion stores after that.
//!
//! Rust leaves undefined what accesses of different width to the same bytes do at the same time,
//! even atomic ones. They are what they are on x86-64 and aarch64: each access is one instruction
//! on naturally aligned bytes, and the cache's coherence orders them. The compiler does not see
//! both sides of such a race: one is a peer's, whose offsets are known at run time alone.

mod atomic;
mod copy;
mod elements;
mod error;
#[cfg(test)]
mod tests;
mod unmapped;

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64};

use rustix::mm::Advice;

pub(crate) use self::error::{AtomicError, Fault};
use super::buffer::Buffer;
use super::error::MemoryError;
use super::mapping::{HUGE_PAGE_BYTES, Mapping};
use super::shape::Span;
use crate::refused_call::number_of;

/// See the module. It is shared, by an `Arc`, among the program and the operations on it.
pub(crate) struct Window {
    /// The first byte; in an unmapped window an address and no more.
    base: *mut u8,
    len: usize,
    memory: WindowMemory,
}

/// Whose memory it is.
enum WindowMemory {
    /// Of the window alone, unmapped with it.
    Own { _mapping: Mapping },
    /// Of a buffer that was moved in, and can be had back.
    Buffer(Buffer),
    /// Of another owner, which keeps it mapped.
    Borrowed,
    /// Of the program: mapped or not, now or later.
    Unmapped,
}

// SAFETY: the memory belongs to the process, not to a thread, and every access through a shared
// window is atomic or the kernel's. A buffer in it can only be reached by taking the window apart.
unsafe impl Send for Window {}
// SAFETY: as above.
unsafe impl Sync for Window {}

fn out_of_memory(bytes: usize, error: &io::Error) -> MemoryError {
    let os_error = number_of(error).unwrap_or(rustix::io::Errno::NOMEM.raw_os_error());
    MemoryError::OutOfMemory { bytes, os_error }
}

impl Window {
    /// Zeroed memory of its own, in huge pages if the kernel has some to give.
    ///
    /// # Errors
    ///
    /// [`MemoryError::TooLarge`] and [`MemoryError::OutOfMemory`].
    pub(crate) fn allocate(bytes: usize) -> Result<Self, MemoryError> {
        if bytes > isize::MAX as usize {
            return Err(MemoryError::TooLarge { bytes });
        }
        let mapping = Mapping::new(bytes, 1).map_err(|error| out_of_memory(bytes, &error))?;
        if bytes >= HUGE_PAGE_BYTES {
            // Kernels without transparent huge pages refuse the advice; the memory is as good.
            let _ = mapping.advise(Advice::LinuxHugepage);
        }
        let base = mapping.base().as_ptr();
        Ok(Self { base, len: bytes, memory: WindowMemory::Own { _mapping: mapping } })
    }

    /// The memory of a buffer, with what is in it.
    ///
    /// # Errors
    ///
    /// Gives the buffer back when it is a list or shaped: a window is one piece.
    pub(crate) fn from_buffer(mut buffer: Buffer) -> Result<Self, Buffer> {
        let Some(Span { ptr, len }) = buffer.span() else { return Err(buffer) };
        Ok(Self { base: ptr, len, memory: WindowMemory::Buffer(buffer) })
    }

    /// The buffer again that this window was made of, with what is in it now.
    ///
    /// # Errors
    ///
    /// Gives the window back when it was not made by [`Self::from_buffer`].
    pub(crate) fn into_buffer(self) -> Result<Buffer, Self> {
        match self.memory {
            WindowMemory::Buffer(buffer) => Ok(buffer),
            memory => Err(Self { memory, ..self }),
        }
    }

    /// Makes a window of memory of another owner.
    ///
    /// # Safety
    ///
    /// `ptr..ptr + len` is one piece of mapped memory that may be read and written, and stays so
    /// until the window is dropped and no span of it is in use. Until then nothing accesses it but
    /// by atomics, through the window, or with synchronisation that keeps peers away (an epoch of
    /// MPI).
    pub(crate) unsafe fn from_raw(ptr: *mut u8, len: usize) -> Self {
        debug_assert!(ptr.addr().checked_add(len).is_some());
        Self { base: ptr, len, memory: WindowMemory::Borrowed }
    }

    /// A range of addresses that may not be mapped, or not yet, or no longer: MPI's dynamic windows
    /// are all of the address space, from 0 with `usize::MAX`.
    ///
    /// Each access goes by the kernel: what is not mapped, or not to be written, is a
    /// [`Fault::Memory`]. That costs a system call each. Of pieces that are longer than a page a
    /// part may have been written when it fails.
    ///
    /// Atomic operations make the page present and then access it. If the program unmaps it at
    /// that very time it gets the signal that it would get by its own access: a program has to end
    /// atomic operations on memory (revoke the key, or synchronise with the origins) before it
    /// unmaps it. The same is true of memory that a file no longer backs.
    ///
    /// # Safety
    ///
    /// Whatever memory of the program is mapped in the range while the window exists, peers that
    /// have a key may read and write it: nothing in it that they do access may be accessed
    /// otherwise, except as [`Self::from_raw`] allows.
    pub(crate) unsafe fn unmapped(base: *mut u8, len: usize) -> Self {
        let len = len.min(usize::MAX - base.addr());
        Self { base, len, memory: WindowMemory::Unmapped }
    }

    /// The length in bytes.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Whether the memory has another owner, which may unmap it once the window is reported as
    /// ended.
    pub(crate) fn is_borrowed(&self) -> bool {
        matches!(self.memory, WindowMemory::Borrowed)
    }

    #[inline]
    fn is_unmapped(&self) -> bool {
        matches!(self.memory, WindowMemory::Unmapped)
    }

    /// Where `len` bytes at `offset` lie, if they lie inside.
    #[inline]
    fn place(&self, offset: usize, len: usize) -> Result<*mut u8, Fault> {
        if offset > self.len || len > self.len - offset {
            return Err(Fault::Range { offset, len, window_bytes: self.len });
        }
        Ok(self.base.wrapping_add(offset))
    }

    /// Copies `bytes` in, in ascending order. What the module guarantees to readers holds.
    ///
    /// # Errors
    ///
    /// [`Fault::Range`], with nothing written. In an unmapped window also [`Fault::Memory`] and
    /// [`Fault::System`]: the bytes before the one it names may have been written.
    #[inline]
    pub(crate) fn store(&self, offset: usize, bytes: &[u8]) -> Result<(), Fault> {
        let at = self.place(offset, bytes.len())?;
        if self.is_unmapped() {
            return unmapped::store(at.addr(), bytes).map_err(|fault| fault.behind(offset));
        }
        // SAFETY: the range is inside the window, whose memory is mapped and accessed by atomics.
        unsafe { copy::store(at, bytes) };
        Ok(())
    }

    /// Copies bytes out. It sees all that was stored, by one thread, before what it sees last.
    ///
    /// # Errors
    ///
    /// As for [`Self::store`]; bytes of `into` before the one named may have been read.
    #[inline]
    pub(crate) fn load(&self, offset: usize, into: &mut [u8]) -> Result<(), Fault> {
        let at = self.place(offset, into.len())?;
        if self.is_unmapped() {
            return unmapped::load(at.addr(), into).map_err(|fault| fault.behind(offset));
        }
        // SAFETY: as in `store`.
        unsafe { copy::load(at, into) };
        Ok(())
    }

    /// Where bytes lie, for the kernel to read from or place into: an address that is not to be
    /// read or written by this process's own code, which has [`Self::load`] and [`Self::store`].
    /// The window has to be kept until the kernel is done. Where nothing is mapped the kernel fails
    /// with `EFAULT`.
    ///
    /// # Errors
    ///
    /// [`Fault::Range`].
    #[inline]
    pub(crate) fn span(&self, offset: usize, len: usize) -> Result<Span, Fault> {
        Ok(Span { ptr: self.place(offset, len)?, len })
    }

    /// As [`Self::span`], of memory that is mapped now, also in an unmapped window. If the program
    /// unmaps it while the kernel copies there, the copy fails.
    ///
    /// # Errors
    ///
    /// [`Fault`].
    pub(crate) fn present(&self, offset: usize, len: usize, writing: bool) -> Result<Span, Fault> {
        let span = self.span(offset, len)?;
        if self.is_unmapped() && len > 0 {
            unmapped::populate(span.ptr.addr(), len, writing).map_err(|it| it.behind(offset))?;
        }
        Ok(span)
    }

    /// Writes `src` to byte `offset` of a span of this window that [`Self::present`] gave.
    pub(crate) fn store_to(&self, span: Span, offset: usize, src: &[u8]) {
        let at = span.ptr.addr().wrapping_sub(self.base.addr()) + offset;
        let stored = self.store(at, src);
        debug_assert!(stored.is_ok() || self.is_unmapped(), "it was inside before");
    }

    /// Reads from byte `offset` of a span of this window that [`Self::present`] gave.
    pub(crate) fn load_from(&self, span: Span, offset: usize, into: &mut [u8]) {
        let at = span.ptr.addr().wrapping_sub(self.base.addr()) + offset;
        let loaded = self.load(at, into);
        debug_assert!(loaded.is_ok() || self.is_unmapped(), "it was inside before");
    }

    /// A word to share with peers, and with [`Self::atomic`] of 64-bit integers. `None`: it is not
    /// inside, not at a multiple of 8 bytes in memory, or the window may be unmapped.
    pub(crate) fn atomic_u64(&self, offset: usize) -> Option<&AtomicU64> {
        let at = self.word(offset, size_of::<AtomicU64>())?;
        // SAFETY: `word` gave 8 mapped and aligned bytes, which live as long as `self` and are only
        // accessed by atomics meanwhile.
        Some(unsafe { AtomicU64::from_ptr(at.cast()) })
    }

    /// As [`Self::atomic_u64`], of 4 bytes.
    pub(crate) fn atomic_u32(&self, offset: usize) -> Option<&AtomicU32> {
        let at = self.word(offset, size_of::<AtomicU32>())?;
        // SAFETY: as above, 4 bytes.
        Some(unsafe { AtomicU32::from_ptr(at.cast()) })
    }

    fn word(&self, offset: usize, size: usize) -> Option<*mut u8> {
        let at = self.place(offset, size).ok()?;
        (!self.is_unmapped() && at.addr().is_multiple_of(size)).then_some(at)
    }
}

impl fmt::Debug for Window {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let memory = match &self.memory {
            WindowMemory::Own { .. } => "own",
            WindowMemory::Buffer(_) => "buffer",
            WindowMemory::Borrowed => "borrowed",
            WindowMemory::Unmapped => "unmapped",
        };
        out.debug_struct("Window")
            .field("base", &self.base)
            .field("len", &self.len)
            .field("memory", &memory)
            .finish()
    }
}
