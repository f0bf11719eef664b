//! What the kernel knows of processes at the other ends of sockets; also for the labs.

use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::net::UnixStream;

/// Whether the kernel gives a pidfd of the process at the other end of a unix socket, as it does
/// from Linux 6.5 on.
pub(crate) fn knows_processes_of_sockets() -> bool {
    let (end, _other) = UnixStream::pair().unwrap();
    let (mut process, mut bytes) = (0, size_of::<libc::c_int>() as libc::socklen_t);
    // SAFETY: the kernel writes at most `bytes` bytes to `process`.
    let refused = unsafe {
        libc::getsockopt(
            end.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERPIDFD,
            (&raw mut process).cast(),
            &raw mut bytes,
        )
    };
    if refused == 0 {
        // SAFETY: the kernel has just made this descriptor, and nothing else has it.
        drop(unsafe { OwnedFd::from_raw_fd(process) });
    }
    refused == 0
}
