//! Options of sockets.

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};

/// `SO_NETNS_COOKIE`.
const NETNS_COOKIE: libc::c_int = 71;
/// `SO_PEERGROUPS`.
const PEER_GROUPS: libc::c_int = 59;
/// Groups of a user that are asked for at first.
const GROUPS: usize = 64;

/// What options of sockets are.
///
/// # Safety
///
/// Any bytes are a value.
unsafe trait Plain: Copy {}

// SAFETY: a number.
unsafe impl Plain for u64 {}
// SAFETY: a number.
unsafe impl Plain for libc::c_int {}
// SAFETY: three numbers.
unsafe impl Plain for libc::ucred {}

/// The option `name`, of `SOL_SOCKET`; what of `otherwise` the kernel does not write stays.
fn option<T: Plain>(socket: BorrowedFd<'_>, name: libc::c_int, otherwise: T) -> io::Result<T> {
    let mut value = otherwise;
    let mut bytes = size_of_val(&value) as libc::socklen_t;
    // SAFETY: the kernel writes at most `bytes` bytes to `value`, and any bytes are one.
    let done = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            name,
            (&raw mut value).cast(),
            &mut bytes,
        )
    };
    if done == 0 { Ok(value) } else { Err(io::Error::last_os_error()) }
}

/// A number that no other network namespace of this host ever has, of the one that the socket is in
/// (Linux 5.14).
pub(crate) fn netns_cookie(socket: BorrowedFd<'_>) -> io::Result<u64> {
    option(socket, NETNS_COOKIE, 0)
}

/// The interface that a socket is bound to; 0: none (Linux 5.0).
pub(crate) fn bound_device(socket: BorrowedFd<'_>) -> io::Result<u32> {
    option(socket, libc::SO_BINDTOIFINDEX, 0).map(libc::c_int::cast_unsigned)
}

/// User and group of the other side of a Unix connection when it connected. It may be in any PID
/// namespace.
pub(crate) fn peer(connection: BorrowedFd<'_>) -> io::Result<(u32, u32)> {
    let unknown = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    option(connection, libc::SO_PEERCRED, unknown).map(|peer| (peer.uid, peer.gid))
}

/// Groups that the other side of a Unix connection had when it connected, beside its own one.
pub(crate) fn peer_groups(connection: BorrowedFd<'_>) -> io::Result<Vec<u32>> {
    let mut groups = vec![0_u32; GROUPS];
    loop {
        let mut bytes = size_of_val(&groups[..]) as libc::socklen_t;
        // SAFETY: the kernel writes at most `bytes` bytes to `groups`, any of which are numbers.
        let done = unsafe {
            libc::getsockopt(
                connection.as_raw_fd(),
                libc::SOL_SOCKET,
                PEER_GROUPS,
                groups.as_mut_ptr().cast(),
                &mut bytes,
            )
        };
        let count = bytes as usize / size_of::<u32>();
        if done == 0 {
            groups.truncate(count);
            return Ok(groups);
        }
        let error = io::Error::last_os_error();
        // It has returned how many there are.
        if error.raw_os_error() != Some(libc::ERANGE) || count <= groups.len() {
            return Err(error);
        }
        groups.resize(count, 0);
    }
}

/// Binds a socket to an interface of its network namespace, which only who has `CAP_NET_RAW` there
/// can change afterwards. An AF_XDP socket then takes no queue of any other (Linux 6.5, and stable
/// kernels from July 2023 on).
pub(crate) fn bind_to_device(socket: BorrowedFd<'_>, ifindex: u32) -> io::Result<()> {
    let index = ifindex.cast_signed();
    // SAFETY: the kernel reads one number.
    let done = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_BINDTOIFINDEX,
            (&raw const index).cast(),
            size_of_val(&index) as libc::socklen_t,
        )
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
