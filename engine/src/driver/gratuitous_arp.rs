//! Corrects ARP tables of peers when several NICs share a subnet.
//!
//! If several NICs of a host are on one IP network, Linux answers ARP requests for any of its
//! addresses on all of them (`arp_ignore` 0, the default), and the requester keeps the first
//! answer. Packets for one rail then arrive by another: a connection that is bound to its NIC never
//! completes, and NICs stay idle. IPv6 (NDP) is not affected.
//!
//! An ARP request carries its sender's address and MAC, and updates existing entries of all
//! receivers that are older than a second (`locktime`). An unprivileged process can trigger one: it
//! sends a datagram to an on-link (`MSG_DONTROUTE`) address with no known MAC. The address is from
//! TEST-NET-1 (RFC 5737), so that no host answers:
//!
//! ```text
//! datagram from 10.0.0.1 by rail 0 to 192.0.2.1
//!   -> broadcast by rail 0, at 0, 1 and 2 s: "who has 192.0.2.1? tell 10.0.0.1 at MAC of rail 0"
//!   -> the datagram is dropped after 3 s
//! ```
//!
//! This creates no ARP entry on other hosts, changes no setting of this host, and only these
//! requests leave it. The address of another rail would not do: this host would answer itself.

use std::io;
use std::mem;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use if_addrs::{IfAddr, Interface};

use crate::driver::traits::Rail;
use crate::forks::EngineFd;

/// How long the kernel repeats the request before it drops the datagram.
const ROUND: Duration = Duration::from_millis(3500);
/// Time in a round after which every host has received the last request.
const CONVERGED_AFTER: Duration = Duration::from_millis(2500);
/// Entries learned up to this time after the start of a round are corrected by it: the last request
/// is sent after two seconds, and only entries older than a second are replaced.
const CORRECTED_UNTIL: Duration = Duration::from_millis(900);
/// Delay before a refused announcement is retried: a NIC made anew gets its address late.
const RETRY: Duration = Duration::from_millis(200);
/// Prefix of TEST-NET-1, which no host uses. Each round asks for another address, in case a router
/// answers for all of them (proxy ARP).
const TEST_NET_1: [u8; 3] = [192, 0, 2];
/// The `discard` service, should a datagram be delivered in spite of all this.
const PORT: u16 = 9;

/// The announcement of one rail.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct ArpAnnouncement {
    nic_index: u32,
    address: Ipv4Addr,
    /// Start of the last round, which the kernel accepted.
    began: Option<Instant>,
    /// When the kernel last refused since then.
    failed: Option<Instant>,
}

impl ArpAnnouncement {
    fn new(nic_index: u32, address: Ipv4Addr) -> Self {
        Self { nic_index, address, began: None, failed: None }
    }

    /// Whether a round is due.
    fn is_due(&self, now: Instant) -> bool {
        let is_past = |since: Option<Instant>, pause| {
            since.is_none_or(|since| now.saturating_duration_since(since) >= pause)
        };
        is_past(self.began, ROUND) && is_past(self.failed, RETRY)
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct ArpAnnouncer {
    socket: EngineFd,
    announcements: Vec<ArpAnnouncement>,
    rounds: u8,
}

impl ArpAnnouncer {
    /// For the rails that share their subnet with another NIC of this host; `None` if there are
    /// none, or nothing can be sent.
    pub(super) fn of(rails: &[Rail]) -> Option<Self> {
        let announcements = announcements(rails, &if_addrs::get_if_addrs().ok()?);
        if announcements.is_empty() {
            return None;
        }
        match open() {
            Ok(socket) => Some(Self { socket: EngineFd::new(socket), announcements, rounds: 0 }),
            Err(error) => {
                tracing::debug!("cannot announce rails by ARP: {error}");
                None
            }
        }
    }

    /// Whether a NIC shares its subnet with another one.
    pub(super) fn is_announced(&self, nic_index: u32) -> bool {
        self.announcements.iter().any(|announcement| announcement.nic_index == nic_index)
    }

    /// A rail moved to another NIC: all learned entries are wrong.
    pub(super) fn nic_changed(&mut self, from_index: u32, to_index: u32) {
        for announcement in self
            .announcements
            .iter_mut()
            .filter(|announcement| announcement.nic_index == from_index)
        {
            *announcement = ArpAnnouncement::new(to_index, announcement.address);
        }
    }

    /// Starts due rounds. Returns the number of system calls.
    pub(super) fn announce(&mut self, now: Instant) -> u64 {
        if !self.announcements.iter().any(|announcement| announcement.is_due(now)) {
            return 0;
        }
        self.rounds = self.rounds % 254 + 1;
        let [x, y, z] = TEST_NET_1;
        let asks_for = Ipv4Addr::new(x, y, z, self.rounds);
        let mut syscalls = 0;
        for announcement in
            self.announcements.iter_mut().filter(|announcement| announcement.is_due(now))
        {
            syscalls += 1;
            match send_probe(&self.socket, announcement, asks_for) {
                Ok(()) => (announcement.began, announcement.failed) = (Some(now), None),
                Err(error) => {
                    announcement.failed = Some(now);
                    let address = announcement.address;
                    tracing::debug!(%address, "cannot send an ARP announcement: {error}");
                }
            }
        }
        syscalls
    }

    /// Whether entries that peers learned up to `learned` are corrected by now.
    pub(super) fn is_converged(&self, nic_index: u32, learned: Instant, now: Instant) -> bool {
        let is_converged = |announcement: &ArpAnnouncement| {
            announcement
                .began
                .is_some_and(|at| learned < at + CORRECTED_UNTIL && now >= at + CONVERGED_AFTER)
        };
        self.is_announced(nic_index)
            && self
                .announcements
                .iter()
                .filter(|announcement| announcement.nic_index == nic_index)
                .all(is_converged)
    }
}

/// The announcements of a host that has the interfaces `all`.
fn announcements(rails: &[Rail], all: &[Interface]) -> Vec<ArpAnnouncement> {
    let of_v4 = |nic: &Interface| match &nic.addr {
        IfAddr::V4(v4) => Some((v4.ip, u32::from(v4.netmask))),
        IfAddr::V6(_) => None,
    };
    let announcement = |rail: &Rail| {
        let IpAddr::V4(address) = rail.address.to_canonical() else { return None };
        if rail.nic_index == 0 || address.is_loopback() {
            return None;
        }
        let mask = all.iter().filter_map(of_v4).find(|(ip, _)| *ip == address)?.1;
        let is_on_it = |ip: Ipv4Addr| u32::from(ip) & mask == u32::from(address) & mask;
        let others = all.iter().filter(|nic| nic.index.is_some_and(|at| at != rail.nic_index));
        let is_shared = others.filter_map(of_v4).any(|(ip, _)| ip != address && is_on_it(ip));
        is_shared.then(|| ArpAnnouncement::new(rail.nic_index, address))
    };
    rails.iter().filter_map(announcement).collect()
}

fn open() -> io::Result<OwnedFd> {
    let flags = libc::SOCK_DGRAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: the call takes no pointer.
    let fd = unsafe { libc::socket(libc::AF_INET, flags, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just gave us this descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[repr(C)]
struct Control {
    header: libc::cmsghdr,
    info: libc::in_pktinfo,
}

fn send_probe(
    socket: &OwnedFd,
    announcement: &ArpAnnouncement,
    asks_for: Ipv4Addr,
) -> io::Result<()> {
    let network_order = |ip: Ipv4Addr| libc::in_addr { s_addr: u32::from_ne_bytes(ip.octets()) };
    // SAFETY: integers and null pointers, for which zero bytes are a value; of these three types.
    let (mut to, mut control, mut message): (libc::sockaddr_in, Control, libc::msghdr) =
        unsafe { (mem::zeroed(), mem::zeroed(), mem::zeroed()) };
    to.sin_family = libc::AF_INET as libc::sa_family_t;
    (to.sin_port, to.sin_addr) = (PORT.to_be(), network_order(asks_for));
    let info_bytes = size_of::<libc::in_pktinfo>();
    control.header.cmsg_len = (mem::offset_of!(Control, info) + info_bytes) as _;
    (control.header.cmsg_level, control.header.cmsg_type) = (libc::IPPROTO_IP, libc::IP_PKTINFO);
    control.info.ipi_ifindex = libc::c_int::try_from(announcement.nic_index).unwrap_or(0);
    control.info.ipi_spec_dst = network_order(announcement.address);
    message.msg_name = (&raw mut to).cast();
    message.msg_namelen = size_of_val(&to) as libc::socklen_t;
    message.msg_control = (&raw mut control).cast();
    message.msg_controllen = size_of_val(&control) as _;
    let flags = libc::MSG_DONTROUTE;
    // SAFETY: the message points to `to` and `control`, which outlive the call, and has no bytes.
    let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, flags) };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::RailRole;

    fn nic(index: u32, ip: &str, netmask: &str) -> Interface {
        let addr = if_addrs::Ifv4Addr {
            ip: ip.parse().unwrap(),
            netmask: netmask.parse().unwrap(),
            prefixlen: u32::from(netmask.parse::<Ipv4Addr>().unwrap()).leading_ones() as u8,
            broadcast: None,
        };
        Interface {
            name: format!("nic{index}"),
            addr: IfAddr::V4(addr),
            index: Some(index),
            oper_status: if_addrs::IfOperStatus::Up,
            is_p2p: false,
        }
    }

    fn rail(nic_index: u32, address: &str) -> Rail {
        let (address, role) = (address.parse().unwrap(), RailRole::Ordinary);
        Rail { nic: "nic".into(), nic_index, address, speed_mbps: None, mtu: None, role }
    }

    #[test]
    fn rails_sharing_a_subnet_are_announced() {
        let all = [
            nic(1, "127.0.0.1", "255.0.0.0"),
            nic(2, "10.1.0.1", "255.255.255.0"),
            nic(2, "10.1.0.3", "255.255.255.0"),
            nic(3, "10.1.0.2", "255.255.255.0"),
            nic(4, "10.2.0.1", "255.255.255.0"),
        ];
        let rails = ["10.1.0.1", "10.1.0.2", "10.2.0.1", "fe80::1"];
        let rails: Vec<_> = (2..).zip(rails).map(|(index, ip)| rail(index, ip)).collect();
        let announced = announcements(&rails, &all);
        let announced: Vec<_> = announced
            .iter()
            .map(|announcement| (announcement.nic_index, announcement.address))
            .collect();
        assert_eq!(announced, [(2, [10, 1, 0, 1].into()), (3, [10, 1, 0, 2].into())]);
        // Two addresses of one NIC, and those of the loopback, need no announcement.
        assert_eq!(announcements(&[rail(2, "10.1.0.1")], &all[..3]), []);
        assert_eq!(announcements(&[rail(1, "127.0.0.1"), rail(9, "127.0.0.2")], &all), []);
        assert_eq!(announcements(&[rail(0, "10.1.0.1")], &all), []);
    }

    #[test]
    fn round_corrects_entries_learned_before_last_request() {
        let start = Instant::now();
        let mut announcements =
            [2, 3].map(|index| ArpAnnouncement::new(index, Ipv4Addr::LOCALHOST)).to_vec();
        announcements[0].began = Some(start);
        let mut announcer =
            ArpAnnouncer { socket: open().unwrap().into(), announcements, rounds: 254 };
        assert!(!announcer.announcements[0].is_due(start + ROUND / 2));
        assert!(announcer.announcements[0].is_due(start + ROUND));
        assert!(!announcer.is_converged(2, start, start + CONVERGED_AFTER / 2));
        assert!(announcer.is_converged(2, start, start + CONVERGED_AFTER));
        assert!(!announcer.is_converged(2, start + CORRECTED_UNTIL, start + ROUND));
        // Other NICs were not announced.
        assert!(!announcer.is_converged(3, start, start + CONVERGED_AFTER));
        assert!(!announcer.is_converged(4, start, start + CONVERGED_AFTER));
        announcer.nic_changed(2, 4);
        assert!(announcer.is_announced(4) && !announcer.is_announced(2));
        assert!(!announcer.is_converged(4, start, start + CONVERGED_AFTER));
    }

    #[test]
    fn refused_announcement_is_retried() {
        // No link has this index: the kernel refuses, and nothing leaves this host.
        let announcements = vec![ArpAnnouncement::new(0x7fff_ffff, Ipv4Addr::LOCALHOST)];
        let mut announcer =
            ArpAnnouncer { socket: open().unwrap().into(), announcements, rounds: 254 };
        let start = Instant::now();
        assert_eq!(announcer.announce(start), 1);
        assert_eq!(announcer.announce(start + RETRY / 2), 0);
        assert!(!announcer.is_converged(0x7fff_ffff, start, start + CONVERGED_AFTER));
        assert_eq!(announcer.announce(start + RETRY), 1);
    }
}
