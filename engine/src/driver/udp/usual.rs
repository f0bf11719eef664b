//! Destinations to which the kernel sends by a rail of itself.
//!
//! A datagram with a control message that says its source and NIC costs 200 ns more than one
//! without (`sendmmsg` of one, 1940 against 1720 ns for sending and receiving on a loopback). It
//! says nothing new where routes lead by that NIC, from that address and over the same router
//! anyhow, as they mostly do where each rail has a network of its own. So the kernel is asked about
//! destinations of many datagrams, and anew every second, as routes and addresses change; links
//! that change are news that come at once.

use std::collections::HashMap;
use std::mem;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

use netlink_packet_route::route::RouteType;

use crate::driver::lanes::Rail;
use crate::netlink::{Found, NetlinkSocket, Question, look_up};

/// For so long an answer holds.
const HOLDS: Duration = Duration::from_secs(1);
/// Datagrams to a destination before the kernel is asked about it: that takes as long as some 150
/// control messages.
const ASKS_AFTER: u32 = 64;
/// Destinations until the answers are forgotten. Others have control messages.
const WAYS_MAX: usize = 64;
/// Polls between two looks at the clock.
const LOOK_EVERY: u32 = 16;

/// A destination, and the number of a rail.
type Way = (IpAddr, u8);

/// What is known of a way.
#[derive(Clone, Copy, Debug)]
enum Known {
    /// So many datagrams went there.
    Used(u32),
    /// What the kernel said.
    Said(bool),
}

/// See the module.
#[derive(Debug)]
pub(super) struct Usual {
    /// Of each rail: its NIC and its address.
    rails: Box<[(u32, IpAddr)]>,
    /// Opened by the owner, as the caretaker may be in another network namespace.
    netlink: Option<NetlinkSocket>,
    is_netlink_tried: bool,
    answers: HashMap<Way, Known>,
    last: Option<(Way, bool)>,
    since: Instant,
    polls: u32,
}

impl Usual {
    /// Without rails: nobody asks.
    pub(super) fn new() -> Self {
        Self {
            rails: Box::default(),
            netlink: None,
            is_netlink_tried: false,
            answers: HashMap::new(),
            last: None,
            since: Instant::now(),
            polls: 0,
        }
    }

    /// The rails from now on; what was known is forgotten.
    pub(super) fn set_rails(&mut self, rails: &[Rail]) {
        self.rails =
            rails.iter().map(|rail| (rail.nic_index, rail.address.to_canonical())).collect();
        if !rails.is_empty() && !mem::replace(&mut self.is_netlink_tried, true) {
            self.netlink = NetlinkSocket::open().ok();
        }
        self.forget();
    }

    fn forget(&mut self) {
        self.answers.clear();
        (self.last, self.since) = (None, Instant::now());
    }

    /// Time may have passed: answers of more than a second ago are forgotten, after some polls at
    /// the most. Comes with each poll; `sleeps`: the driver is about to.
    #[inline]
    pub(super) fn poll(&mut self, sleeps: bool) {
        self.polls = self.polls.wrapping_add(1);
        if (sleeps || self.polls.is_multiple_of(LOOK_EVERY))
            && !self.answers.is_empty()
            && self.since.elapsed() > HOLDS
        {
            self.forget();
        }
    }

    /// Whether what a socket sends that is bound to no address and no NIC goes to `to` by the NIC
    /// of `rail` and from its address. Where that is not known it is said to go otherwise.
    #[inline]
    pub(super) fn is(&mut self, to: IpAddr, rail: u8) -> bool {
        let way = (to, rail);
        match self.last {
            Some((last, answer)) if last == way => answer,
            _ => self.find(way),
        }
    }

    fn find(&mut self, way: Way) -> bool {
        let is_full = self.answers.len() >= WAYS_MAX;
        match self.answers.get_mut(&way) {
            Some(Known::Said(answer)) => {
                self.last = Some((way, *answer));
                return *answer;
            }
            Some(Known::Used(count)) if *count < ASKS_AFTER => *count += 1,
            None if is_full => {}
            None => {
                self.answers.insert(way, Known::Used(1));
            }
            Some(Known::Used(_)) => {
                let answer = self.ask(way);
                self.answers.insert(way, Known::Said(answer));
                return answer;
            }
        }
        false
    }

    fn ask(&mut self, (to, rail): Way) -> bool {
        let (Some(&(nic, address)), Some(netlink)) =
            (self.rails.get(usize::from(rail)), &mut self.netlink)
        else {
            return false;
        };
        let to = to.to_canonical();
        let needs_link = matches!(to, IpAddr::V6(v6) if v6.is_unicast_link_local());
        if nic == 0 || needs_link || to.is_ipv4() != address.is_ipv4() {
            return false;
        }
        let anywhere: IpAddr = match to {
            IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let unbound = Question { from: anywhere, to, bound_to: None, is_strict: false };
        let Ok(usual) = look_up(netlink, unbound) else { return false };
        let is_ours = matches!(usual.kind, RouteType::Unicast | RouteType::Local)
            && usual.leaves_by == Some(nic)
            && usual.source == Some(address);
        // Rules may lead another way from that address.
        let bound = Question { from: address, bound_to: Some(nic), ..unbound };
        let is_same = |found: Found| (found.kind, found.gateway) == (usual.kind, usual.gateway);
        // Of several next hops each flow has its own.
        let entry = Question { is_strict: true, ..unbound };
        is_ours
            && look_up(netlink, bound).is_ok_and(is_same)
            && look_up(netlink, entry).is_ok_and(|found| !found.is_odd)
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;
    use crate::types::RailRole;

    fn rail(nic_index: u32, address: &str) -> Rail {
        let (nic, address, role) = ("lo".into(), address.parse().unwrap(), RailRole::Ordinary);
        Rail { nic, nic_index, address, speed_mbps: None, mtu: None, role }
    }

    #[test]
    fn the_kernel_has_one_way_to_a_destination() {
        let mut usual = Usual::new();
        let says = |usual: &mut Usual, to: &str, rail: u8| {
            let to = to.parse().unwrap();
            (0..=ASKS_AFTER + 1).map(|_| usual.is(to, rail)).last().unwrap()
        };
        assert!(!says(&mut usual, "127.0.0.1", 0), "without rails");
        // The last one is on another NIC.
        let rails = [rail(1, "127.0.0.1"), rail(1, "127.0.0.2"), rail(2, "127.0.0.1")];
        usual.set_rails(&rails);
        let from_anywhere = UdpSocket::bind("0.0.0.0:0").unwrap();
        for to in ["127.0.0.1", "127.0.0.2", "127.0.0.5"] {
            let socket = UdpSocket::bind((to, 0)).unwrap();
            from_anywhere.send_to(b"from where?", socket.local_addr().unwrap()).unwrap();
            let (_, source) = socket.recv_from(&mut [0; 20]).unwrap();
            for (number, rail) in (0..).zip(&rails) {
                let is_usual = rail.nic_index == 1 && source.ip() == rail.address;
                for again in [false, true] {
                    let said = says(&mut usual, to, number);
                    assert_eq!(said, is_usual, "{to} by rail {number}, again: {again}");
                }
            }
        }
        assert!(says(&mut usual, "::ffff:127.0.0.1", 0));
        // Of other families, without a link, one that leads nowhere (class E), and no rail.
        for (to, rail) in [("::1", 0), ("fe80::1", 0), ("240.0.0.1", 0), ("127.0.0.1", 3)] {
            assert!(!says(&mut usual, to, rail), "{to} by rail {rail}");
        }
    }

    #[test]
    fn those_of_many_datagrams_are_asked_about_and_all_are_forgotten() {
        let mut usual = Usual::new();
        usual.set_rails(&[rail(1, "127.0.0.1")]);
        let known: IpAddr = "127.0.0.1".parse().unwrap();
        let said: Vec<bool> = (0..=ASKS_AFTER).map(|_| usual.is(known, 0)).collect();
        assert_eq!(said.iter().position(|&said| said), Some(ASKS_AFTER as usize));
        for at in 0..100 {
            assert!(!usual.is([127, 0, 1, at].into(), 0));
        }
        assert_eq!(usual.answers.len(), WAYS_MAX);
        usual.since = Instant::now();
        (0..LOOK_EVERY).for_each(|_| usual.poll(false));
        assert!(usual.is(known, 0), "a second has not passed");
        let Some(long_ago) = Instant::now().checked_sub(2 * HOLDS) else { return };
        for sleeps in [false, true] {
            usual.answers.insert((known, 0), Known::Said(true));
            assert!(usual.is(known, 0));
            usual.since = long_ago;
            (0..if sleeps { 1 } else { LOOK_EVERY }).for_each(|_| usual.poll(sleeps));
            assert!(usual.answers.is_empty() && !usual.is(known, 0), "sleeps: {sleeps}");
        }
    }
}
