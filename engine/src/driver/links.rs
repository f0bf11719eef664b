//! Link monitoring: which NICs are up and have a carrier, by a netlink socket.
//!
//! The kernel multicasts every change (`RTNLGRP_LINK`), without privileges. The initial state is
//! listed by one dump on the same socket, repeated when notifications were lost. One dump can be in
//! progress at a time (the kernel returns `EBUSY` for another one), so a second request waits for
//! the end of the first.

use crate::forks::EngineFd;
use std::io;
use std::mem;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

/// Largest message of a dump.
const ROOM_BYTES: usize = 32 * 1024;
/// `struct nlmsghdr`, followed by `struct ifinfomsg`.
const HEADER_BYTES: usize = 16;
const LINK_BYTES: usize = 16;
/// Messages are padded to this.
const ALIGN: usize = 4;
/// `struct rtattr`.
const ATTRIBUTE_BYTES: usize = 4;
/// From `linux/netlink.h` (`NLM_F_DUMP_INTR`): links changed during the dump, which may be
/// incomplete.
const DUMP_INTERRUPTED: u16 = 0x10;
/// From `linux/if.h`: `IFF_UP` and `IFF_LOWER_UP`.
const IS_UP: u32 = libc::IFF_UP as u32 | 1 << 16;

/// Delay before a request that the kernel had no room for is retried.
const RETRY: Duration = Duration::from_millis(100);

/// See the module.
#[derive(Debug)]
pub(super) struct Links {
    socket: EngineFd,
    room: Box<[u8]>,
    /// A dump is in progress.
    is_listing: bool,
    /// Notifications were lost since it began: another dump is needed.
    is_incomplete: bool,
    /// When the kernel refused the last request.
    refused: Option<Instant>,
}

/// The state of a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct CarrierState<'a> {
    pub(super) index: u32,
    pub(super) name: &'a [u8],
    /// It is enabled and has a carrier.
    pub(super) is_up: bool,
    /// It does not exist any more, at least in this network namespace.
    pub(super) is_gone: bool,
}

/// Messages that are not about one link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ListMark {
    /// The dump is complete, or the kernel refuses to continue.
    End,
    /// The dump may be incomplete.
    Interrupted,
}

impl Links {
    /// Opens the socket. Three system calls.
    ///
    /// # Errors
    ///
    /// No descriptor is left, or a policy of this host forbids netlink.
    pub(super) fn open() -> io::Result<Self> {
        let flags = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // SAFETY: the call takes no pointer.
        let fd = unsafe { libc::socket(libc::AF_NETLINK, flags, libc::NETLINK_ROUTE) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel just gave us this descriptor.
        let socket = EngineFd::new(unsafe { OwnedFd::from_raw_fd(fd) });
        // SAFETY: integers, for which zero bytes are a value.
        let mut address: libc::sockaddr_nl = unsafe { mem::zeroed() };
        address.nl_family = libc::AF_NETLINK as libc::sa_family_t;
        address.nl_groups = libc::RTMGRP_LINK as u32;
        let bytes = size_of_val(&address) as libc::socklen_t;
        // SAFETY: pointer and length describe `address`, which outlives the call.
        if unsafe { libc::bind(fd, (&raw const address).cast(), bytes) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let room = vec![0; ROOM_BYTES].into();
        let mut links =
            Self { socket, room, is_listing: false, is_incomplete: false, refused: None };
        links.request_list()?;
        Ok(links)
    }

    /// The descriptor to watch for readability.
    pub(super) fn fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    /// Requests a dump of all links, or another one after the dump in progress. At most one system
    /// call.
    ///
    /// # Errors
    ///
    /// The kernel has no room for the request now; a read after [`Self::retry_in`] repeats it.
    pub(super) fn request_list(&mut self) -> io::Result<()> {
        if self.is_listing {
            self.is_incomplete = true;
            return Ok(());
        }
        let asked = self.request();
        (self.is_listing, self.is_incomplete) = (asked.is_ok(), asked.is_err());
        self.refused = asked.is_err().then(Instant::now);
        asked
    }

    /// Time until a refused request is to be repeated by reading; `None`: nothing is to be
    /// repeated.
    pub(super) fn retry_in(&self) -> Option<Duration> {
        (self.is_incomplete && !self.is_listing).then(|| {
            self.refused.map_or(Duration::ZERO, |refused| RETRY.saturating_sub(refused.elapsed()))
        })
    }

    /// Repeats a refused request if its delay is over. Returns the number of system calls.
    fn retry_if_due(&mut self) -> u64 {
        if self.retry_in() != Some(Duration::ZERO) {
            return 0;
        }
        if let Err(error) = self.request_list() {
            tracing::debug!("cannot query the state of links: {error}");
        }
        1
    }

    fn request(&self) -> io::Result<()> {
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

    /// Reports each link that the kernel has an event of, with a socket to query others of the same
    /// network by. Returns the number of system calls.
    pub(super) fn read(&mut self, mut on_link: impl FnMut(CarrierState<'_>, &OwnedFd)) -> u64 {
        let mut syscalls = self.retry_if_due();
        loop {
            syscalls += 1;
            let (room, bytes) = (self.room.as_mut_ptr(), self.room.len());
            // SAFETY: pointer and length describe the room, which is borrowed exclusively.
            let received = unsafe { libc::recv(self.fd(), room.cast(), bytes, 0) };
            if let Ok(received) = usize::try_from(received) {
                let (is_listing, is_incomplete) = (&mut self.is_listing, &mut self.is_incomplete);
                let on_each = |link: CarrierState<'_>| on_link(link, &self.socket);
                parse(&self.room[..received], on_each, |mark| match mark {
                    ListMark::End => *is_listing = false,
                    ListMark::Interrupted => *is_incomplete = true,
                });
            } else {
                match io::Error::last_os_error().raw_os_error() {
                    Some(libc::EINTR) => continue,
                    // The socket buffer overflowed.
                    Some(libc::ENOBUFS) => self.is_incomplete = true,
                    _ => return syscalls,
                }
            }
            syscalls += self.retry_if_due();
        }
    }
}

/// Goes through messages as the kernel wrote them.
fn parse(
    mut bytes: &[u8],
    mut on_link: impl FnMut(CarrierState<'_>),
    mut mark: impl FnMut(ListMark),
) {
    let word = |bytes: &[u8], at: usize| {
        bytes.get(at..at + 4).and_then(|word| word.try_into().ok()).map(u32::from_ne_bytes)
    };
    while bytes.len() >= HEADER_BYTES {
        let length = word(bytes, 0).map_or(0, |length| length as usize);
        if length < HEADER_BYTES {
            return;
        }
        let kind = u16::from_ne_bytes([bytes[4], bytes[5]]);
        if u16::from_ne_bytes([bytes[6], bytes[7]]) & DUMP_INTERRUPTED != 0 {
            mark(ListMark::Interrupted);
        }
        let link = &bytes[HEADER_BYTES..length.min(bytes.len())];
        let is_gone = kind == libc::RTM_DELLINK;
        // Bridges report their ports in the family AF_BRIDGE.
        if (kind == libc::RTM_NEWLINK || is_gone)
            && link.first() == Some(&(libc::AF_UNSPEC as u8))
            && let (Some(index), Some(flags)) = (word(link, 4), word(link, 8))
        {
            let is_up = !is_gone && flags & IS_UP == IS_UP;
            on_link(CarrierState { index, name: name_in(link), is_up, is_gone });
        } else if kind == libc::NLMSG_DONE as u16 || kind == libc::NLMSG_ERROR as u16 {
            mark(ListMark::End);
        }
        bytes = bytes.get(length.next_multiple_of(ALIGN)..).unwrap_or_default();
    }
}

/// The name in the attributes of a link; empty if there is none.
fn name_in(link: &[u8]) -> &[u8] {
    let mut attributes = link.get(LINK_BYTES..).unwrap_or_default();
    while let [low, high, kind_low, kind_high, ..] = *attributes {
        let length = usize::from(u16::from_ne_bytes([low, high]));
        let Some(value) = attributes.get(ATTRIBUTE_BYTES..length) else { break };
        if u16::from_ne_bytes([kind_low, kind_high]) == libc::IFLA_IFNAME {
            return value.split(|&byte| byte == 0).next().unwrap_or_default();
        }
        attributes = attributes.get(length.next_multiple_of(ALIGN)..).unwrap_or_default();
    }
    &[]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u16, family: u8, index: u32, flags: u32, name: &str) -> Vec<u8> {
        let mut bytes = vec![0; HEADER_BYTES + LINK_BYTES];
        // An unrelated attribute precedes the name.
        for (attribute, value) in [(libc::IFLA_MTU, "mtu "), (libc::IFLA_IFNAME, name)] {
            bytes.extend_from_slice(&((ATTRIBUTE_BYTES + value.len() + 1) as u16).to_ne_bytes());
            bytes.extend_from_slice(&attribute.to_ne_bytes());
            bytes.extend_from_slice(value.as_bytes());
            bytes.resize((bytes.len() + 1).next_multiple_of(ALIGN), 0);
        }
        let length = bytes.len() as u32;
        bytes[..4].copy_from_slice(&length.to_ne_bytes());
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[16] = family;
        bytes[20..24].copy_from_slice(&index.to_ne_bytes());
        bytes[24..28].copy_from_slice(&flags.to_ne_bytes());
        bytes
    }

    /// Index, name, up, gone.
    type LinkState = (u32, String, bool, bool);

    fn parsed(bytes: &[u8]) -> (Vec<LinkState>, Vec<ListMark>) {
        let (mut states, mut marks) = (Vec::new(), Vec::new());
        let name = |link: CarrierState<'_>| String::from_utf8(link.name.to_vec()).unwrap();
        let on_each = |link: CarrierState<'_>| {
            states.push((link.index, name(link), link.is_up, link.is_gone))
        };
        parse(bytes, on_each, |mark| marks.push(mark));
        (states, marks)
    }

    #[test]
    fn link_is_up_with_flag_and_carrier() {
        let bytes = [
            message(libc::RTM_NEWLINK, 0, 2, 1 << 16 | 1, "eth0"),
            message(libc::RTM_NEWLINK, 0, 3, 1, "rail3"),
            message(libc::RTM_NEWLINK, 0, 4, 1 << 16, ""),
            message(libc::RTM_NEWLINK, libc::AF_BRIDGE as u8, 5, 1, "br0"),
            message(libc::RTM_NEWADDR, 0, 6, 0, "lo"),
            message(libc::RTM_DELLINK, 0, 7, 1 << 16 | 1, "gone"),
        ]
        .concat();
        let (states, marks) = parsed(&bytes);
        let expected = [
            (2, "eth0", true, false),
            (3, "rail3", false, false),
            (4, "", false, false),
            (7, "gone", false, true),
        ];
        assert_eq!(states, expected.map(|(index, name, up, gone)| (index, name.into(), up, gone)));
        assert_eq!(marks, []);
        for end in 0..bytes.len() {
            assert!(parsed(&bytes[..end]).0.len() <= 4);
        }
        assert_eq!(parsed(&[0; 64]), (Vec::new(), Vec::new()));
    }

    #[test]
    fn list_end_and_interruption_are_detected() {
        let mut torn = message(libc::RTM_NEWLINK, 0, 2, 1, "eth0");
        torn[6..8].copy_from_slice(&(DUMP_INTERRUPTED | 2).to_ne_bytes());
        let done = message(libc::NLMSG_DONE as u16, 0, 0, 0, "");
        let refused = message(libc::NLMSG_ERROR as u16, 0, 0, 0, "");
        let (states, marks) = parsed(&[torn, done, refused].concat());
        assert_eq!(states.len(), 1);
        assert_eq!(marks, [ListMark::Interrupted, ListMark::End, ListMark::End]);
    }

    /// Reads until the dump is complete and no other one is pending.
    fn complete(links: &mut Links) -> Vec<(u32, bool)> {
        let mut states = Vec::new();
        let until = Instant::now() + Duration::from_secs(30);
        while links.is_listing || links.is_incomplete {
            assert!(Instant::now() < until, "{states:?}");
            assert!(links.read(|link, _| states.push((link.index, link.is_up))) > 0);
        }
        states
    }

    #[test]
    fn initial_list_reports_every_link() {
        let mut links = Links::open().unwrap();
        let nics = crate::topology::nics().unwrap();
        let lo = nics.iter().find(|nic| nic.loopback).unwrap();
        let states = complete(&mut links);
        let (_, is_up) = states.iter().find(|(index, _)| *index == lo.index).unwrap();
        assert_eq!(*is_up, lo.up);
    }

    #[test]
    fn list_request_during_list_is_deferred() {
        let mut links = Links::open().unwrap();
        // The kernel would refuse it now, as the first part of the dump has not been read.
        links.request_list().unwrap();
        links.request_list().unwrap();
        assert!(links.is_listing && links.is_incomplete);
        let count = crate::topology::nics().unwrap().len();
        let states = complete(&mut links);
        assert!(states.len() >= 2 * count, "{states:?} of {count}, twice");
        // After lost events the list is requested again.
        links.is_incomplete = true;
        links.request_list().unwrap();
        assert!(complete(&mut links).len() >= count);
    }

    #[test]
    fn refused_list_request_is_retried() {
        let mut links = Links::open().unwrap();
        complete(&mut links);
        // A socket that is no netlink socket refuses requests.
        let other = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        other.set_nonblocking(true).unwrap();
        let socket = mem::replace(&mut links.socket, EngineFd::new(other).into_owned());
        assert_eq!(links.retry_in(), None);
        links.request_list().unwrap_err();
        assert!(links.retry_in().unwrap() <= RETRY);
        links.socket = socket;
        std::thread::sleep(RETRY);
        assert_eq!(links.retry_in(), Some(Duration::ZERO));
        assert!(!complete(&mut links).is_empty());
        assert_eq!(links.retry_in(), None);
    }
}
