//! The two system calls of the hot path, without the C library's cancellation points: those cost
//! two atomic operations a call as soon as a process has a second thread, and no thread is
//! cancelled here.

use std::os::fd::RawFd;

/// `recvfrom(2)`: the length, or -1 with `errno` set.
///
/// # Safety
///
/// `into` is room for `bytes` bytes, or null where the call takes that; `address` and
/// `address_bytes` are null, or room for an address and its length in bytes.
#[inline]
pub(super) unsafe fn recvfrom(
    socket: RawFd,
    into: *mut u8,
    bytes: usize,
    flags: libc::c_int,
    address: *mut libc::sockaddr,
    address_bytes: *mut libc::socklen_t,
) -> isize {
    // SAFETY: the caller's contract; the kernel takes these arguments in this order.
    let rc = unsafe {
        libc::syscall(libc::SYS_recvfrom, socket, into, bytes, flags, address, address_bytes)
    };
    rc as isize
}

/// `sendto(2)`: the bytes that the kernel took, or -1 with `errno` set.
///
/// # Safety
///
/// `from` are `bytes` initialised bytes, or null if these are none; `address` is null, or an
/// address of `address_bytes` bytes.
#[inline]
pub(super) unsafe fn sendto(
    socket: RawFd,
    from: *const u8,
    bytes: usize,
    flags: libc::c_int,
    address: *const libc::sockaddr,
    address_bytes: libc::socklen_t,
) -> isize {
    // SAFETY: the caller's contract; the kernel takes these arguments in this order.
    let rc = unsafe {
        libc::syscall(libc::SYS_sendto, socket, from, bytes, flags, address, address_bytes)
    };
    rc as isize
}
