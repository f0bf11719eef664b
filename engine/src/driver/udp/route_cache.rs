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

use crate::driver::traits::Rail;
use crate::netlink::{Found, NetlinkSocket, Question, look_up};

/// For so long an answer holds.
const ANSWER_LIFETIME: Duration = Duration::from_secs(1);
/// Datagrams to a destination before the kernel is asked about it: that takes as long as some 150
/// control messages.
const DATAGRAMS_BEFORE_LOOKUP: u32 = 64;
/// Destinations until the answers are forgotten. Others have control messages.
const KEYS_MAX: usize = 64;
/// Polls between two looks at the clock.
const CLOCK_EVERY: u32 = 16;

/// A destination, and the number of a rail.
type Key = (IpAddr, u8);

/// What is known of a way.
#[derive(Clone, Copy, Debug)]
enum Known {
    /// So many datagrams went there.
    Counting(u32),
    /// What the kernel said.
    Answered(bool),
}

/// See the module.
#[derive(Debug)]
pub(super) struct RouteCache {
    /// Of each rail: its NIC and its address.
    rails: Box<[(u32, IpAddr)]>,
    /// Opened by the owner, as the caretaker may be in another network namespace.
    netlink: Option<NetlinkSocket>,
    is_netlink_tried: bool,
    answers: HashMap<Key, Known>,
    last: Option<(Key, bool)>,
    since: Instant,
    polls: u32,
}

impl RouteCache {
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
        if (sleeps || self.polls.is_multiple_of(CLOCK_EVERY))
            && !self.answers.is_empty()
            && self.since.elapsed() > ANSWER_LIFETIME
        {
            self.forget();
        }
    }

    /// Whether what a socket sends that is bound to no address and no NIC goes to `to` by the NIC
    /// of `rail` and from its address. Where that is not known it is said to go otherwise.
    #[inline]
    pub(super) fn is_default(&mut self, to: IpAddr, rail: u8) -> bool {
        let way = (to, rail);
        match self.last {
            Some((last, answer)) if last == way => answer,
            _ => self.find(way),
        }
    }

    fn find(&mut self, key: Key) -> bool {
        let is_full = self.answers.len() >= KEYS_MAX;
        match self.answers.get_mut(&key) {
            Some(Known::Answered(answer)) => {
                self.last = Some((key, *answer));
                return *answer;
            }
            Some(Known::Counting(count)) if *count < DATAGRAMS_BEFORE_LOOKUP => *count += 1,
            None if is_full => {}
            None => {
                self.answers.insert(key, Known::Counting(1));
            }
            Some(Known::Counting(_)) => {
                let answer = self.look_up(key);
                self.answers.insert(key, Known::Answered(answer));
                return answer;
            }
        }
        false
    }

    fn look_up(&mut self, (to, rail): Key) -> bool {
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
        let Ok(routes) = look_up(netlink, unbound) else { return false };
        let is_ours = matches!(routes.kind, RouteType::Unicast | RouteType::Local)
            && routes.leaves_by == Some(nic)
            && routes.source == Some(address);
        // Rules may lead another way from that address.
        let bound = Question { from: address, bound_to: Some(nic), ..unbound };
        let is_same = |found: Found| (found.kind, found.gateway) == (routes.kind, routes.gateway);
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
    fn default_route_of_a_rail_is_recognised() {
        let mut routes = RouteCache::new();
        let says = |routes: &mut RouteCache, to: &str, rail: u8| {
            let to = to.parse().unwrap();
            (0..=DATAGRAMS_BEFORE_LOOKUP + 1).map(|_| routes.is_default(to, rail)).last().unwrap()
        };
        assert!(!says(&mut routes, "127.0.0.1", 0), "without rails");
        // The last one is on another NIC.
        let rails = [rail(1, "127.0.0.1"), rail(1, "127.0.0.2"), rail(2, "127.0.0.1")];
        routes.set_rails(&rails);
        let from_anywhere = UdpSocket::bind("0.0.0.0:0").unwrap();
        for to in ["127.0.0.1", "127.0.0.2", "127.0.0.5"] {
            let socket = UdpSocket::bind((to, 0)).unwrap();
            from_anywhere.send_to(b"from where?", socket.local_addr().unwrap()).unwrap();
            let (_, source) = socket.recv_from(&mut [0; 20]).unwrap();
            for (number, rail) in (0..).zip(&rails) {
                let is_default_route = rail.nic_index == 1 && source.ip() == rail.address;
                for again in [false, true] {
                    let said = says(&mut routes, to, number);
                    assert_eq!(said, is_default_route, "{to} by rail {number}, again: {again}");
                }
            }
        }
        assert!(says(&mut routes, "::ffff:127.0.0.1", 0));
        // Of other families, without a link, one that leads nowhere (class E), and no rail.
        for (to, rail) in [("::1", 0), ("fe80::1", 0), ("240.0.0.1", 0), ("127.0.0.1", 3)] {
            assert!(!says(&mut routes, to, rail), "{to} by rail {rail}");
        }
    }

    #[test]
    fn frequent_destinations_are_looked_up_and_expire() {
        let mut routes = RouteCache::new();
        routes.set_rails(&[rail(1, "127.0.0.1")]);
        let known: IpAddr = "127.0.0.1".parse().unwrap();
        let said: Vec<bool> =
            (0..=DATAGRAMS_BEFORE_LOOKUP).map(|_| routes.is_default(known, 0)).collect();
        assert_eq!(said.iter().position(|&said| said), Some(DATAGRAMS_BEFORE_LOOKUP as usize));
        for at in 0..100 {
            assert!(!routes.is_default([127, 0, 1, at].into(), 0));
        }
        assert_eq!(routes.answers.len(), KEYS_MAX);
        routes.since = Instant::now();
        (0..CLOCK_EVERY).for_each(|_| routes.poll(false));
        assert!(routes.is_default(known, 0), "a second has not passed");
        let Some(long_ago) = Instant::now().checked_sub(2 * ANSWER_LIFETIME) else { return };
        for sleeps in [false, true] {
            routes.answers.insert((known, 0), Known::Answered(true));
            assert!(routes.is_default(known, 0));
            routes.since = long_ago;
            (0..if sleeps { 1 } else { CLOCK_EVERY }).for_each(|_| routes.poll(sleeps));
            assert!(routes.answers.is_empty() && !routes.is_default(known, 0), "sleeps: {sleeps}");
        }
    }
}
