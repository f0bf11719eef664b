//! Which NIC of this host has which address, said to everybody on the network.
//!
//! Where several NICs of a host are on one IP network, Linux answers for any of its addresses by
//! all of them (`arp_ignore` 0, the default), and whoever asked keeps the first answer. Then what
//! is meant for one rail comes by another: a connection that is bound to its NIC never completes,
//! and NICs stay idle. IPv6 answers by the right NIC alone.
//!
//! A request of ARP tells its sender's address and NIC to all who hear it, and corrects what they
//! have, if that is older than a second (`locktime`). Anybody may have the kernel make one: by a
//! datagram to an address that is said to be on the link (`MSG_DONTROUTE`), of a NIC that is not
//! known. It goes to one that is in documents only (RFC 5737), so that nobody answers:
//!
//! ```text
//! datagram from 10.0.0.1 by rail 0 to 192.0.2.1
//!   -> broadcast by rail 0, at 0, 1 and 2 s: "who has 192.0.2.1? tell 10.0.0.1 at MAC of rail 0"
//!   -> the datagram is dropped after 3 s
//! ```
//!
//! No table of another host gets an entry by that, none of this host's settings is changed, and
//! nothing but these requests leaves the host. An address of a rail of this host would not do: its
//! own requests would answer.

use std::io;
use std::mem;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use if_addrs::{IfAddr, Interface};

use crate::driver::lanes::Rail;
use crate::forks::EngineFd;

/// For so long the kernel goes on asking, and then forgets that it did.
const ROUND: Duration = Duration::from_millis(3500);
/// From when on in a round the last request was heard everywhere.
const HEARD_AFTER: Duration = Duration::from_millis(2500);
/// What somebody learned so long after a round began is corrected by it: the last request comes
/// after two seconds, and what is corrected is a second old.
const CORRECTED_UNTIL: Duration = Duration::from_millis(900);
/// What could not be said is tried again so much later: a NIC made anew gets its address late.
const RETRY: Duration = Duration::from_millis(200);
/// Nobody has an address that begins so (TEST-NET-1). Each round asks for another one, in case that
/// somebody answers for all there are, as some routers do.
const NOBODYS: [u8; 3] = [192, 0, 2];
/// `discard`: what gets somewhere in spite of all is thrown away there.
const PORT: u16 = 9;

/// What is said of one rail.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Word {
    nic_index: u32,
    address: Ipv4Addr,
    /// When its last round began: not before the kernel has taken it.
    began: Option<Instant>,
    /// When the kernel last refused it, since then.
    failed: Option<Instant>,
}

impl Word {
    fn new(nic_index: u32, address: Ipv4Addr) -> Self {
        Self { nic_index, address, began: None, failed: None }
    }

    /// Whether it is to be said.
    fn is_due(&self, now: Instant) -> bool {
        let is_past = |since: Option<Instant>, pause| {
            since.is_none_or(|since| now.saturating_duration_since(since) >= pause)
        };
        is_past(self.began, ROUND) && is_past(self.failed, RETRY)
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Announcer {
    socket: EngineFd,
    words: Vec<Word>,
    rounds: u8,
}

impl Announcer {
    /// For the rails that share their network with another NIC of this host; `None`: there are none
    /// of them, or nothing can be said.
    pub(super) fn of(rails: &[Rail]) -> Option<Self> {
        let words = words(rails, &if_addrs::get_if_addrs().ok()?);
        if words.is_empty() {
            return None;
        }
        match open() {
            Ok(socket) => Some(Self { socket: EngineFd::new(socket), words, rounds: 0 }),
            Err(error) => {
                tracing::debug!("nobody is told which NIC has which address: {error}");
                None
            }
        }
    }

    /// Whether a NIC shares its network with another one.
    pub(super) fn concerns(&self, nic_index: u32) -> bool {
        self.words.iter().any(|word| word.nic_index == nic_index)
    }

    /// A rail has another NIC: what is known of the old one is wrong everywhere.
    pub(super) fn moved(&mut self, from_index: u32, to_index: u32) {
        for word in self.words.iter_mut().filter(|word| word.nic_index == from_index) {
            *word = Word::new(to_index, word.address);
        }
    }

    /// Begins a round of each word that has none. Returns the number of system calls.
    pub(super) fn announce(&mut self, now: Instant) -> u64 {
        if !self.words.iter().any(|word| word.is_due(now)) {
            return 0;
        }
        self.rounds = self.rounds % 254 + 1;
        let [x, y, z] = NOBODYS;
        let asks_for = Ipv4Addr::new(x, y, z, self.rounds);
        let mut syscalls = 0;
        for word in self.words.iter_mut().filter(|word| word.is_due(now)) {
            syscalls += 1;
            match say(&self.socket, word, asks_for) {
                Ok(()) => (word.began, word.failed) = (Some(now), None),
                Err(error) => {
                    word.failed = Some(now);
                    tracing::debug!(address = %word.address, "its NIC is not announced: {error}");
                }
            }
        }
        syscalls
    }

    /// Whether what others had learned of a NIC until `learned` is corrected by now.
    pub(super) fn is_heard(&self, nic_index: u32, learned: Instant, now: Instant) -> bool {
        let is_heard = |word: &Word| {
            word.began.is_some_and(|at| learned < at + CORRECTED_UNTIL && now >= at + HEARD_AFTER)
        };
        self.concerns(nic_index)
            && self.words.iter().filter(|word| word.nic_index == nic_index).all(is_heard)
    }
}

/// What is to be said, by a host that has `all` addresses.
fn words(rails: &[Rail], all: &[Interface]) -> Vec<Word> {
    let of_v4 = |nic: &Interface| match &nic.addr {
        IfAddr::V4(v4) => Some((v4.ip, u32::from(v4.netmask))),
        IfAddr::V6(_) => None,
    };
    let word = |rail: &Rail| {
        let IpAddr::V4(address) = rail.address.to_canonical() else { return None };
        if rail.nic_index == 0 || address.is_loopback() {
            return None;
        }
        let mask = all.iter().filter_map(of_v4).find(|(ip, _)| *ip == address)?.1;
        let is_on_it = |ip: Ipv4Addr| u32::from(ip) & mask == u32::from(address) & mask;
        let others = all.iter().filter(|nic| nic.index.is_some_and(|at| at != rail.nic_index));
        let is_shared = others.filter_map(of_v4).any(|(ip, _)| ip != address && is_on_it(ip));
        is_shared.then(|| Word::new(rail.nic_index, address))
    };
    rails.iter().filter_map(word).collect()
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

fn say(socket: &OwnedFd, word: &Word, asks_for: Ipv4Addr) -> io::Result<()> {
    let network_order = |ip: Ipv4Addr| libc::in_addr { s_addr: u32::from_ne_bytes(ip.octets()) };
    // SAFETY: integers and null pointers, for which zero bytes are a value; of these three types.
    let (mut to, mut control, mut message): (libc::sockaddr_in, Control, libc::msghdr) =
        unsafe { (mem::zeroed(), mem::zeroed(), mem::zeroed()) };
    to.sin_family = libc::AF_INET as libc::sa_family_t;
    (to.sin_port, to.sin_addr) = (PORT.to_be(), network_order(asks_for));
    let info_bytes = size_of::<libc::in_pktinfo>();
    control.header.cmsg_len = (mem::offset_of!(Control, info) + info_bytes) as _;
    (control.header.cmsg_level, control.header.cmsg_type) = (libc::IPPROTO_IP, libc::IP_PKTINFO);
    control.info.ipi_ifindex = libc::c_int::try_from(word.nic_index).unwrap_or(0);
    control.info.ipi_spec_dst = network_order(word.address);
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
    fn rails_that_share_a_network_with_another_nic_are_announced() {
        let all = [
            nic(1, "127.0.0.1", "255.0.0.0"),
            nic(2, "10.1.0.1", "255.255.255.0"),
            nic(2, "10.1.0.3", "255.255.255.0"),
            nic(3, "10.1.0.2", "255.255.255.0"),
            nic(4, "10.2.0.1", "255.255.255.0"),
        ];
        let rails = ["10.1.0.1", "10.1.0.2", "10.2.0.1", "fe80::1"];
        let rails: Vec<_> = (2..).zip(rails).map(|(index, ip)| rail(index, ip)).collect();
        let said = words(&rails, &all);
        let said: Vec<_> = said.iter().map(|word| (word.nic_index, word.address)).collect();
        assert_eq!(said, [(2, [10, 1, 0, 1].into()), (3, [10, 1, 0, 2].into())]);
        // Two addresses of one NIC, and those of the loopback, are answered for by one.
        assert_eq!(words(&[rail(2, "10.1.0.1")], &all[..3]), []);
        assert_eq!(words(&[rail(1, "127.0.0.1"), rail(9, "127.0.0.2")], &all), []);
        assert_eq!(words(&[rail(0, "10.1.0.1")], &all), []);
    }

    #[test]
    fn a_round_corrects_what_was_learned_before_its_last_request() {
        let start = Instant::now();
        let mut words = [2, 3].map(|index| Word::new(index, Ipv4Addr::LOCALHOST)).to_vec();
        words[0].began = Some(start);
        let mut announcer = Announcer { socket: open().unwrap().into(), words, rounds: 254 };
        assert!(!announcer.words[0].is_due(start + ROUND / 2));
        assert!(announcer.words[0].is_due(start + ROUND));
        assert!(!announcer.is_heard(2, start, start + HEARD_AFTER / 2));
        assert!(announcer.is_heard(2, start, start + HEARD_AFTER));
        assert!(!announcer.is_heard(2, start + CORRECTED_UNTIL, start + ROUND));
        // Of others nothing was said.
        assert!(!announcer.is_heard(3, start, start + HEARD_AFTER));
        assert!(!announcer.is_heard(4, start, start + HEARD_AFTER));
        announcer.moved(2, 4);
        assert!(announcer.concerns(4) && !announcer.concerns(2));
        assert!(!announcer.is_heard(4, start, start + HEARD_AFTER));
    }

    #[test]
    fn what_the_kernel_refuses_is_not_heard_and_is_soon_said_again() {
        // No link is numbered so: the kernel refuses, and nothing leaves this host.
        let words = vec![Word::new(0x7fff_ffff, Ipv4Addr::LOCALHOST)];
        let mut announcer = Announcer { socket: open().unwrap().into(), words, rounds: 254 };
        let start = Instant::now();
        assert_eq!(announcer.announce(start), 1);
        assert_eq!(announcer.announce(start + RETRY / 2), 0);
        assert!(!announcer.is_heard(0x7fff_ffff, start, start + HEARD_AFTER));
        assert_eq!(announcer.announce(start + RETRY), 1);
    }
}
