//! Accesses to memory that may not be there: by the kernel, which returns an error instead of a
//! signal.

use std::ptr;
use std::sync::atomic::{Ordering, fence};

use rustix::io::Errno;
use rustix::mm::{Advice, madvise};
use rustix::process::getpid;

use super::error::Fault;

/// Which way the kernel copies.
#[derive(Clone, Copy)]
enum CopyWay {
    /// From `local` to the address.
    To,
    /// From the address to `local`.
    From,
}

/// Copies `bytes` to an address. Offsets of faults count from there.
pub(super) fn store(address: usize, bytes: &[u8]) -> Result<(), Fault> {
    // SAFETY: the kernel only reads from `bytes`.
    let copied = unsafe { copy(CopyWay::To, address, bytes.as_ptr().cast_mut(), bytes.len()) };
    // What this thread stores later comes after these bytes.
    fence(Ordering::Release);
    copied
}

/// Copies from an address. Offsets of faults count from there.
pub(super) fn load(address: usize, into: &mut [u8]) -> Result<(), Fault> {
    // SAFETY: `into` is borrowed exclusively.
    let copied = unsafe { copy(CopyWay::From, address, into.as_mut_ptr(), into.len()) };
    fence(Ordering::Acquire);
    copied
}

/// # Safety
///
/// `local` has `len` bytes: readable, and where the kernel copies from the address exclusively the
/// caller's. What is at the address is as [`super::Window::unmapped`] wants it.
unsafe fn copy(way: CopyWay, address: usize, local: *mut u8, len: usize) -> Result<(), Fault> {
    // Of this process, also after a fork: asked each time.
    let process = getpid().as_raw_nonzero().get();
    let mut done = 0;
    while done < len {
        let there = ptr::without_provenance_mut(address.wrapping_add(done));
        let here = libc::iovec { iov_base: local.wrapping_add(done).cast(), iov_len: len - done };
        let there = libc::iovec { iov_base: there, iov_len: len - done };
        // SAFETY: both vectors have one entry, and `here` is memory of the caller, by its contract.
        // The kernel checks what is at `there`, and the caller answers for it.
        let copied = unsafe {
            match way {
                CopyWay::To => {
                    libc::process_vm_writev(process, &raw const here, 1, &raw const there, 1, 0)
                }
                CopyWay::From => {
                    libc::process_vm_readv(process, &raw const here, 1, &raw const there, 1, 0)
                }
            }
        };
        match usize::try_from(copied) {
            Ok(copied @ 1..) => done += copied,
            Ok(0) => return Err(Fault::Memory { offset: done }),
            Err(_) => {
                let os_error = std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
                return Err(match os_error {
                    libc::EINTR => continue,
                    libc::EFAULT => Fault::Memory { offset: done },
                    os_error => Fault::System { offset: done, os_error },
                });
            }
        }
    }
    Ok(())
}

/// Makes the pages of `len` bytes present, for reading alone or for writing too, and gives a
/// pointer to them. The program may unmap them again at any time.
pub(super) fn populate(address: usize, len: usize, writing: bool) -> Result<*mut u8, Fault> {
    let page = rustix::param::page_size();
    let first = address & !(page - 1);
    let fault = Fault::Memory { offset: 0 };
    // The last page of the address space is the kernel's on all machines.
    let last = address.checked_add(len).and_then(|end| end.checked_next_multiple_of(page));
    let bytes = last.ok_or(fault)? - first;
    let advice = if writing { Advice::LinuxPopulateWrite } else { Advice::LinuxPopulateRead };
    loop {
        // SAFETY: populating changes neither contents nor mappings.
        match unsafe { madvise(ptr::without_provenance_mut(first), bytes, advice) } {
            Ok(()) => return Ok(ptr::with_exposed_provenance_mut(address)),
            Err(Errno::INTR) => {}
            // Not mapped; not to be accessed like this (also device memory); nothing behind it.
            Err(Errno::NOMEM | Errno::INVAL | Errno::FAULT | Errno::HWPOISON) => return Err(fault),
            Err(error) => {
                return Err(Fault::System { offset: 0, os_error: error.raw_os_error() });
            }
        }
    }
}
