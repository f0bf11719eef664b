//! Unix sockets of type SOCK_SEQPACKET.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::cmsg_space;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown, SocketFlags, SocketType,
};

use super::super::options;
use super::discovery::{Discovery, SocketFile};
use super::untrusted::Untrusted;
use crate::wire::local_peer::LOCAL_PEER_BYTES;

/// Descriptors of a packet, at most.
const DESCRIPTORS: usize = 2;
/// Backlog of the listener.
const BACKLOG: i32 = 64;

/// A received packet.
pub(super) struct SocketPacket {
    bytes: [u8; LOCAL_PEER_BYTES],
    length: usize,
    /// The first descriptor.
    pub(super) descriptor: Option<OwnedFd>,
    /// The second descriptor.
    pub(super) second: Option<OwnedFd>,
}

impl SocketPacket {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    /// Whether it is this one byte.
    pub(super) fn is_signal(&self, sign: u8) -> bool {
        self.bytes() == [sign] && self.descriptor.is_none()
    }
}

fn open() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

/// Listens under the name of an engine; also returns the socket file to remove at the end.
pub(super) fn listen(
    discovery: &Discovery,
    engine: u64,
) -> io::Result<(LocalListener, Option<SocketFile>)> {
    let socket = open()?;
    rustix::net::bind(&socket, &discovery.address_of(engine)?)?;
    let left = discovery.listening(engine)?;
    let socket = Untrusted::new(socket);
    rustix::net::listen(&socket, BACKLOG)?;
    Ok((LocalListener(socket), left))
}

/// Connects to an engine; [`is_not_listening`]: there is none.
pub(super) fn connect(discovery: &Discovery, engine: u64) -> io::Result<Untrusted> {
    let socket = Untrusted::new(open()?);
    let address = discovery.address_of(engine);
    let connected = address.and_then(|it| Ok(rustix::net::connect(&socket, &it)?));
    if let Err(error) = connected {
        // Its queue is empty.
        drop(socket.into_trusted());
        return Err(error);
    }
    Ok(socket)
}

/// Whether a socket in a directory has no owner any more. An owner is not disturbed: connecting by
/// a socket of another type fails, with an error that depends on whether the socket is in use.
pub(super) fn is_stale(discovery: &Discovery, engine: u64) -> bool {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None);
    let (Ok(socket), Ok(address)) = (socket, discovery.address_of(engine)) else { return false };
    rustix::net::connect(&socket, &address) == Err(Errno::CONNREFUSED)
}

/// Whether an engine is on another host or network namespace, or shares no memory.
pub(super) fn is_not_listening(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound)
}

/// A listening socket for local peers.
pub(super) struct LocalListener(Untrusted);

impl LocalListener {
    /// The next connection; `WouldBlock`: there is none.
    pub(super) fn accept(&self) -> io::Result<Untrusted> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        loop {
            match rustix::net::accept_with(&self.0, flags) {
                Ok(socket) => return Ok(self.0.accepted(socket)),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl AsFd for LocalListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Pending connections are drained and the listener is shut down: then closing it closes no other
/// descriptors, and its name is free at once.
impl Drop for LocalListener {
    fn drop(&mut self) {
        if self.0.is_inherited() {
            return;
        }
        let _ = rustix::net::shutdown(&self.0, Shutdown::Read);
        self.0.drain(|listener| {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            Ok(rustix::net::accept_with(listener, flags)?)
        });
    }
}

/// Sends a packet with up to two descriptors, without blocking.
pub(super) fn send(
    connection: BorrowedFd<'_>,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        let fits = control.push(SendAncillaryMessage::ScmRights(descriptors));
        debug_assert!(fits, "too many descriptors");
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    let sent = rustix::net::sendmsg(connection, &[IoSlice::new(bytes)], &mut control, flags)?;
    if sent == bytes.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}

/// As [`receive`], for an unauthenticated peer: a packet with descriptors is an error, and stays in
/// the socket, since reading it could close them.
pub(super) fn receive_without_descriptors(connection: BorrowedFd<'_>) -> io::Result<SocketPacket> {
    let mut bytes = [0; LOCAL_PEER_BYTES];
    let mut vectors = [IoSliceMut::new(&mut bytes)];
    let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
    let mut control = RecvAncillaryBuffer::new(&mut []);
    let seen = rustix::net::recvmsg(connection, &mut vectors, &mut control, flags)?;
    if seen.flags.contains(ReturnFlags::CTRUNC) {
        return Err(io::ErrorKind::InvalidData.into());
    }
    receive(connection)
}

/// The next packet, without blocking; `WouldBlock`: there is none. Any other error, and a packet
/// that is empty, too long or has too many descriptors, ends the connection.
pub(super) fn receive(connection: BorrowedFd<'_>) -> io::Result<SocketPacket> {
    let mut bytes = [0; LOCAL_PEER_BYTES];
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut vectors = [IoSliceMut::new(&mut bytes)];
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let got = loop {
        match rustix::net::recvmsg(connection, &mut vectors, &mut control, flags) {
            Ok(got) => break got,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    };
    let (mut descriptor, mut second, mut is_cut) = (None, None, false);
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(some) = message {
            for one in some {
                match (&descriptor, &second) {
                    (None, _) => descriptor = Some(one),
                    (_, None) => second = Some(one),
                    _ => is_cut = true,
                }
            }
        }
    }
    is_cut |= got.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC);
    if got.bytes == 0 || is_cut {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(SocketPacket { bytes, length: got.bytes, descriptor, second })
}

/// A pidfd of the process that connected or listened at the other end; it becomes readable when the
/// process has ended. `None`: the kernel is older than 6.5, or does not report it.
pub(super) fn process_of(connection: BorrowedFd<'_>) -> Option<OwnedFd> {
    let fd = options::get(connection.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERPIDFD).ok()?;
    // SAFETY: the kernel just gave us this descriptor.
    (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Sends one byte to the peer of a channel. A full socket already holds enough to wake it.
pub(super) fn send_signal(connection: impl AsFd, byte: u8) {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    let _ = rustix::net::send(connection, &[byte], flags);
}
