//! Integer socket options.

use std::io;
use std::os::fd::RawFd;

/// Sets an option. One system call.
pub(super) fn set(
    socket: RawFd,
    level: libc::c_int,
    name: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    let bytes = size_of_val(&value) as libc::socklen_t;
    // SAFETY: the kernel reads `bytes` bytes of `value` during the call.
    let rc = unsafe { libc::setsockopt(socket, level, name, (&raw const value).cast(), bytes) };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Reads an option. One system call.
pub(super) fn get(socket: RawFd, level: libc::c_int, name: libc::c_int) -> io::Result<libc::c_int> {
    let mut value: libc::c_int = 0;
    let mut bytes = size_of_val(&value) as libc::socklen_t;
    // SAFETY: the kernel writes at most `bytes` bytes to `value`.
    let rc =
        unsafe { libc::getsockopt(socket, level, name, (&raw mut value).cast(), &raw mut bytes) };
    if rc == 0 { Ok(value) } else { Err(io::Error::last_os_error()) }
}
