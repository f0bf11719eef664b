//! Locks on single bytes of a file that belong to the open file description.

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};

/// Locks byte `at` for writing without waiting; `false`: another description has it. The lock goes
/// with the last descriptor of this description, however its process ends.
pub(crate) fn try_lock_byte(file: BorrowedFd<'_>, at: u32) -> io::Result<bool> {
    match set(file, at, libc::F_WRLCK) {
        Ok(()) => Ok(true),
        Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => {
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

/// Gives byte `at` back.
pub(crate) fn unlock_byte(file: BorrowedFd<'_>, at: u32) -> io::Result<()> {
    set(file, at, libc::F_UNLCK)
}

fn set(file: BorrowedFd<'_>, at: u32, kind: i32) -> io::Result<()> {
    // SAFETY: plain numbers, of which zero is one; `l_pid` must be 0 for these locks.
    let mut range: libc::flock = unsafe { std::mem::zeroed() };
    range.l_type = kind as libc::c_short;
    range.l_whence = libc::SEEK_SET as libc::c_short;
    range.l_start = at.into();
    range.l_len = 1;
    // SAFETY: `range` outlives the call, which keeps no pointer.
    let done = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &range) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
