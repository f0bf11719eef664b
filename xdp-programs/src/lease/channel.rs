//! Packets with descriptors.

use std::io;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::cmsg_space;
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// Descriptors of one packet that are looked at; the kernel closes those beyond.
const DESCRIPTORS_MAX: usize = 4;

/// A packet that came.
#[derive(Debug)]
pub(crate) struct Packet {
    pub(crate) bytes: usize,
    pub(crate) descriptors: Vec<OwnedFd>,
    /// It, or the descriptors with it, did not fit.
    pub(crate) is_cut: bool,
}

/// Sends a packet, with a descriptor or without, and does not wait.
pub(crate) fn send(
    connection: impl AsFd,
    bytes: &[u8],
    descriptor: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let descriptors: Vec<BorrowedFd<'_>> = descriptor.into_iter().collect();
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        let fits = control.push(SendAncillaryMessage::ScmRights(&descriptors));
        debug_assert!(fits, "there is room for one");
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    let sent = sendmsg(connection, &[IoSlice::new(bytes)], &mut control, flags)?;
    if sent == bytes.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}

/// Takes the next packet; `None`: there will be no more. Whether it waits is the socket's matter
/// unless `flags` say so.
pub(crate) fn receive(
    connection: impl AsFd,
    into: &mut [u8],
    flags: RecvFlags,
) -> io::Result<Option<Packet>> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut vectors = [IoSliceMut::new(into)];
    let flags = flags | RecvFlags::CMSG_CLOEXEC;
    let mut was_reset = false;
    let got = loop {
        match recvmsg(&connection, &mut vectors, &mut control, flags) {
            Ok(got) => break got,
            Err(Errno::INTR) => {}
            // The other side has left without reading all; what it sent before comes after this.
            Err(Errno::CONNRESET) if !was_reset => was_reset = true,
            Err(Errno::CONNRESET) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
    };
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(some) = message {
            descriptors.extend(some);
        }
    }
    if got.bytes == 0 && descriptors.is_empty() {
        return Ok(None);
    }
    let is_cut = got.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC);
    Ok(Some(Packet { bytes: got.bytes, descriptors, is_cut }))
}

/// Waiting was over before anything came.
pub(crate) fn is_silence(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}
