//! News of links: which NICs are up and have a carrier, by a netlink socket.
//!
//! The kernel tells of every change (`RTNLGRP_LINK`) without being asked, to anybody. What there is
//! at the start is asked for once by the same socket, and again when news were lost.

use std::io;
use std::mem;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// What the kernel sends at once, at the most, where it is asked for all links.
const ROOM_BYTES: usize = 32 * 1024;
/// `struct nlmsghdr`, and `struct ifinfomsg` behind it.
const HEADER_BYTES: usize = 16;
const LINK_BYTES: usize = 16;
/// Messages are padded to this.
const ALIGN: usize = 4;
/// From `linux/if.h`: switched on, and with a carrier.
const IS_UP: u32 = libc::IFF_UP as u32 | 1 << 16;

/// See the module.
#[derive(Debug)]
pub(super) struct Links {
    socket: OwnedFd,
    room: Box<[u8]>,
}

impl Links {
    /// Three system calls.
    ///
    /// # Errors
    ///
    /// No descriptor is left, or a policy of this host refuses netlink.
    pub(super) fn open() -> io::Result<Self> {
        let flags = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // SAFETY: the call takes no pointer.
        let fd = unsafe { libc::socket(libc::AF_NETLINK, flags, libc::NETLINK_ROUTE) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel just gave us this descriptor.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: integers, for which zero bytes are a value.
        let mut address: libc::sockaddr_nl = unsafe { mem::zeroed() };
        address.nl_family = libc::AF_NETLINK as libc::sa_family_t;
        address.nl_groups = libc::RTMGRP_LINK as u32;
        let bytes = size_of_val(&address) as libc::socklen_t;
        // SAFETY: pointer and length describe `address`, which outlives the call.
        if unsafe { libc::bind(fd, (&raw const address).cast(), bytes) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let links = Self { socket, room: vec![0; ROOM_BYTES].into() };
        links.ask()?;
        Ok(links)
    }

    /// What is to be watched for being readable.
    pub(super) fn fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    /// Asks for the state of all links, which then can be read. One system call.
    pub(super) fn ask(&self) -> io::Result<()> {
        const BYTES: usize = HEADER_BYTES + LINK_BYTES;
        let mut request = [0u8; BYTES];
        request[..4].copy_from_slice(&(BYTES as u32).to_ne_bytes());
        request[4..6].copy_from_slice(&libc::RTM_GETLINK.to_ne_bytes());
        let flags = (libc::NLM_F_REQUEST | libc::NLM_F_DUMP) as u16;
        request[6..8].copy_from_slice(&flags.to_ne_bytes());
        // SAFETY: pointer and length describe `request`, which outlives the call.
        let sent = unsafe { libc::send(self.fd(), request.as_ptr().cast(), request.len(), 0) };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Tells of each link that the kernel has news of: its index, and whether it is up. Returns the
    /// number of system calls.
    pub(super) fn read(&mut self, mut tell: impl FnMut(u32, bool)) -> u64 {
        let mut syscalls = 0;
        loop {
            syscalls += 1;
            let (room, bytes) = (self.room.as_mut_ptr(), self.room.len());
            // SAFETY: pointer and length describe the room, which is borrowed exclusively.
            let received = unsafe { libc::recv(self.fd(), room.cast(), bytes, 0) };
            if let Ok(received) = usize::try_from(received) {
                parse(&self.room[..received], &mut tell);
                continue;
            }
            let error = io::Error::last_os_error();
            match error.raw_os_error() {
                Some(libc::EINTR) => {}
                // There was more news than room for it.
                Some(libc::ENOBUFS) => {
                    syscalls += 1;
                    if let Err(error) = self.ask() {
                        tracing::debug!("the state of links is not known: {error}");
                    }
                }
                _ => return syscalls,
            }
        }
    }
}

/// Goes through messages as the kernel wrote them.
fn parse(mut bytes: &[u8], mut tell: impl FnMut(u32, bool)) {
    let word = |bytes: &[u8], at: usize| {
        bytes.get(at..at + 4).and_then(|word| word.try_into().ok()).map(u32::from_ne_bytes)
    };
    while bytes.len() >= HEADER_BYTES {
        let length = word(bytes, 0).map_or(0, |length| length as usize);
        if length < HEADER_BYTES {
            return;
        }
        let kind = u16::from_ne_bytes([bytes[4], bytes[5]]);
        let link = &bytes[HEADER_BYTES..length.min(bytes.len())];
        let is_link = kind == libc::RTM_NEWLINK || kind == libc::RTM_DELLINK;
        // Bridges tell of their ports in a family of their own.
        if is_link
            && link.first() == Some(&(libc::AF_UNSPEC as u8))
            && let (Some(index), Some(flags)) = (word(link, 4), word(link, 8))
        {
            tell(index, kind == libc::RTM_NEWLINK && flags & IS_UP == IS_UP);
        }
        bytes = bytes.get(length.next_multiple_of(ALIGN)..).unwrap_or_default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u16, family: u8, index: u32, flags: u32) -> Vec<u8> {
        let mut bytes = vec![0; HEADER_BYTES + LINK_BYTES + 3];
        let length = bytes.len() as u32;
        bytes[..4].copy_from_slice(&length.to_ne_bytes());
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[16] = family;
        bytes[20..24].copy_from_slice(&index.to_ne_bytes());
        bytes[24..28].copy_from_slice(&flags.to_ne_bytes());
        bytes.push(0);
        bytes
    }

    fn parsed(bytes: &[u8]) -> Vec<(u32, bool)> {
        let mut told = Vec::new();
        parse(bytes, |index, is_up| told.push((index, is_up)));
        told
    }

    #[test]
    fn a_link_is_up_when_it_is_on_and_has_a_carrier() {
        let bytes = [
            message(libc::RTM_NEWLINK, 0, 2, 1 << 16 | 1),
            message(libc::RTM_NEWLINK, 0, 3, 1),
            message(libc::RTM_NEWLINK, 0, 4, 1 << 16),
            message(libc::RTM_NEWLINK, libc::AF_BRIDGE as u8, 5, 1),
            message(libc::RTM_NEWADDR, 0, 6, 0),
            message(libc::RTM_DELLINK, 0, 7, 1 << 16 | 1),
        ]
        .concat();
        assert_eq!(parsed(&bytes), [(2, true), (3, false), (4, false), (7, false)]);
        for end in 0..bytes.len() {
            assert!(parsed(&bytes[..end]).len() <= 4);
        }
        assert_eq!(parsed(&[0; 64]), []);
    }

    #[test]
    fn the_state_of_every_link_is_told_at_the_start() {
        let mut links = Links::open().unwrap();
        let mut told = Vec::new();
        let nics = crate::topology::nics().unwrap();
        let lo = nics.iter().find(|nic| nic.loopback).unwrap();
        let until = std::time::Instant::now() + std::time::Duration::from_secs(30);
        while !told.iter().any(|&(index, _)| index == lo.index) {
            assert!(std::time::Instant::now() < until, "{told:?}");
            assert!(links.read(|index, is_up| told.push((index, is_up))) > 0);
        }
        let (_, is_up) = told.iter().find(|(index, _)| *index == lo.index).unwrap();
        assert_eq!(*is_up, lo.up);
    }
}
