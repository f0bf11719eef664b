//! Memory of receives that can be looked at while they are under way.
//!
//! What a receive is given belongs to it until it ends. So the memory is mapped twice: one mapping
//! is the operation's, the other one is read as memory that another process writes would be.

use std::ffi::c_void;
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::ptr;

use ringrail::RawSpan;

/// Memory of one message.
pub(super) struct Watched {
    given: *mut c_void,
    looked_at: *mut c_void,
    bytes: usize,
}

impl Watched {
    /// Memory of `bytes`, whose pages are there.
    pub(super) fn new(bytes: usize) -> Result<Self, String> {
        Self::map(bytes).map_err(|error| format!("no memory to receive {bytes} bytes: {error}"))
    }

    fn map(bytes: usize) -> io::Result<Self> {
        let length = libc::off_t::try_from(bytes).map_err(io::Error::other)?;
        // SAFETY: the name is a string; the flag closes the file with the process image.
        let file = unsafe { libc::memfd_create(c"receive".as_ptr(), libc::MFD_CLOEXEC) };
        if file < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a new descriptor, nobody else's.
        let file = unsafe { OwnedFd::from_raw_fd(file) };
        // SAFETY: only changes the length of the file.
        if unsafe { libc::ftruncate(file.as_raw_fd(), length) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let map = |access| {
            let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
            // SAFETY: a new mapping of the file, where the kernel likes.
            let start =
                unsafe { libc::mmap(ptr::null_mut(), bytes, access, flags, file.as_raw_fd(), 0) };
            if start == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(start) }
        };
        let given = map(libc::PROT_READ | libc::PROT_WRITE)?;
        let looked_at = map(libc::PROT_READ).inspect_err(|_| {
            // SAFETY: mapped above, and nobody has it.
            unsafe { libc::munmap(given, bytes) };
        })?;
        Ok(Self { given, looked_at, bytes })
    }

    /// What an operation is given. It may have it as long as this value lives.
    pub(super) fn span(&self) -> RawSpan {
        RawSpan { ptr: self.given.cast(), len: self.bytes }
    }

    /// The 8 bytes at `offset` as they are now.
    ///
    /// # Panics
    ///
    /// If `offset` is no multiple of 8 or there are no 8 bytes.
    pub(super) fn peek(&self, offset: usize) -> u64 {
        assert!(offset.is_multiple_of(8) && offset + 8 <= self.bytes);
        // SAFETY: aligned and in the mapping, which lives as long as `self`; whoever writes there
        // does it through another mapping, and any bits are a number.
        unsafe { self.looked_at.cast::<u8>().add(offset).cast::<u64>().read_volatile() }
    }

    /// All of it.
    ///
    /// # Safety
    ///
    /// No operation has the memory.
    pub(super) unsafe fn bytes(&self) -> &[u8] {
        // SAFETY: in the mapping; nobody writes there, as the caller promises, while `self` is
        // borrowed.
        unsafe { std::slice::from_raw_parts(self.looked_at.cast(), self.bytes) }
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        for start in [self.given, self.looked_at] {
            // SAFETY: mapped by `map`; who was given the memory knows that it ends with `self`.
            unsafe { libc::munmap(start, self.bytes) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_can_be_looked_at() {
        let memory = Watched::new(8192).unwrap();
        let span = memory.span();
        assert_eq!((span.len, memory.peek(4096)), (8192, 0));
        // SAFETY: in the mapping, and nobody else is there.
        unsafe { span.ptr.add(4096).cast::<u64>().write(7) };
        assert_eq!((memory.peek(4096), memory.peek(8184)), (7, 0));
        // SAFETY: there is no operation.
        let bytes = unsafe { memory.bytes() };
        assert_eq!(bytes[4096], 7);
    }
}
