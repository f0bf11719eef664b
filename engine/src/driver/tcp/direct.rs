//! Non-blocking system calls on one socket, each exactly one call unless noted otherwise.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::time::Duration;
use std::{mem, ptr};

use socket2::SockRef;

use super::super::calls;
use crate::refused_call::if_refused;

/// Bytes that [`finish`] discards at most in one call.
const DISCARD_BYTES: usize = 1 << 20;

/// Writes `bytes`; returns how many the kernel took.
pub(crate) fn send(socket: RawFd, bytes: &[u8]) -> io::Result<usize> {
    // SAFETY: the pointer and the length describe `bytes`; the kernel only reads them.
    let rc = unsafe {
        calls::sendto(
            socket,
            bytes.as_ptr(),
            bytes.len(),
            libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
            ptr::null(),
            0,
        )
    };
    result("sendto", rc)
}

/// Writes `head` and `body` by one call; returns how many bytes the kernel took.
pub(crate) fn send_both(socket: RawFd, head: &[u8], body: &[u8]) -> io::Result<usize> {
    let piece = |bytes: &[u8]| libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    };
    let mut pieces = [piece(head), piece(body)];
    // SAFETY: two pieces, of slices that the kernel only reads.
    unsafe { send_pieces(socket, pieces.as_mut_ptr(), pieces.len(), 0) }
}

/// Reads into `into`; 0 means end of stream.
pub(crate) fn receive(socket: RawFd, into: &mut [u8]) -> io::Result<usize> {
    // SAFETY: the pointer and the length describe `into`, which is borrowed exclusively.
    let rc = unsafe {
        calls::recvfrom(
            socket,
            into.as_mut_ptr(),
            into.len(),
            libc::MSG_DONTWAIT,
            ptr::null_mut(),
            ptr::null_mut(),
        )
    };
    result("recvfrom", rc)
}

/// Writes the bytes of `count` pieces with `flags`; returns how many the kernel took.
///
/// # Safety
///
/// `pieces` points to `count` initialised `iovec`s, and each describes readable memory.
pub(crate) unsafe fn send_pieces(
    socket: RawFd,
    pieces: *mut libc::iovec,
    count: usize,
    flags: i32,
) -> io::Result<usize> {
    let message = message(pieces, count);
    let flags = flags | libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the message describes memory that the caller guarantees.
    let rc = unsafe { libc::sendmsg(socket, &message, flags) };
    result("sendmsg", rc)
}

/// Reads into `count` pieces; 0 means end of stream.
///
/// # Safety
///
/// `pieces` points to `count` initialised `iovec`s, and each describes memory that nothing else
/// accesses.
pub(crate) unsafe fn receive_pieces(
    socket: RawFd,
    pieces: *mut libc::iovec,
    count: usize,
) -> io::Result<usize> {
    let mut message = message(pieces, count);
    // SAFETY: the message describes memory that the caller guarantees.
    let rc = unsafe { libc::recvmsg(socket, &mut message, libc::MSG_DONTWAIT) };
    result("recvmsg", rc)
}

fn message(pieces: *mut libc::iovec, count: usize) -> libc::msghdr {
    // SAFETY: `msghdr` is integers and pointers, for which zero bytes are a value.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    message.msg_iov = pieces;
    message.msg_iovlen = count as _;
    message
}

/// Shuts the sending side down: sent bytes are delivered, then FIN. Returns the system calls made.
///
/// Unread received bytes are discarded first: with them in its queue, a closing socket sends RST,
/// which destroys data that the peer has not read yet.
pub(crate) fn finish(socket: &OwnedFd) -> u64 {
    // If the peer has already closed, these calls fail, and nothing is left to deliver.
    let _ = SockRef::from(socket).shutdown(std::net::Shutdown::Write);
    // SAFETY: with MSG_TRUNC, TCP discards the bytes and writes to no memory (tcp(7)).
    unsafe {
        libc::recv(
            socket.as_raw_fd(),
            ptr::null_mut(),
            DISCARD_BYTES,
            libc::MSG_TRUNC | libc::MSG_DONTWAIT,
        );
    }
    2
}

/// Sends RST now and drops everything queued, even if the file has other references. Returns the
/// system calls made.
///
/// Closing the descriptor would do so only with the last reference, and requests in flight hold
/// some; dissolving the association (`connect` to `AF_UNSPEC`) acts at once. `SO_LINGER` 0 remains
/// if the kernel refuses.
pub(crate) fn abort(socket: &impl AsFd) -> u64 {
    let _ = SockRef::from(socket).set_linger(Some(Duration::ZERO));
    // A peer that is gone already makes it fail.
    let _ = dissolve(socket);
    2
}

/// Ends the connection of a socket, and drops what it has queued: nothing is received or sent by it
/// any more, also by requests that are in flight.
pub(crate) fn dissolve(socket: &impl AsFd) -> io::Result<()> {
    let unspecified =
        libc::sockaddr { sa_family: libc::AF_UNSPEC as libc::sa_family_t, ..SOCKADDR_ZERO };
    // SAFETY: the pointer and the length describe `unspecified`, which outlives the call.
    let rc = unsafe {
        libc::connect(
            socket.as_fd().as_raw_fd(),
            &unspecified,
            size_of::<libc::sockaddr>() as libc::socklen_t,
        )
    };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

const SOCKADDR_ZERO: libc::sockaddr = libc::sockaddr { sa_family: 0, sa_data: [0; 14] };

fn result(call: &'static str, rc: isize) -> io::Result<usize> {
    usize::try_from(rc).map_err(|_| if_refused(call)(io::Error::last_os_error()))
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};

    use super::*;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (near, listener.accept().unwrap().0)
    }

    #[test]
    fn abort_resets_although_another_descriptor_is_open() {
        let (near, mut far) = pair();
        let _held = near.try_clone().unwrap();
        send(near.as_raw_fd(), b"never read").unwrap();
        abort(&near);
        far.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let mut sink = Vec::new();
        let error = far.read_to_end(&mut sink).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    }

    #[test]
    fn finish_delivers_although_something_was_unread() {
        let (near, mut far) = pair();
        send(far.as_raw_fd(), b"unread").unwrap();
        send(near.as_raw_fd(), b"last words").unwrap();
        let near = OwnedFd::from(near);
        finish(&near);
        drop(near);
        let mut received = Vec::new();
        far.read_to_end(&mut received).unwrap();
        assert_eq!(received, b"last words");
    }

    #[test]
    fn nothing_to_read_would_block() {
        let (near, _far) = pair();
        let error = receive(near.as_raw_fd(), &mut [0; 8]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    }
}
