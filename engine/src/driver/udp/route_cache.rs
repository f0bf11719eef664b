//! Destinations that the kernel reaches by a given rail without a control message.
//!
//! A datagram with a control message for source and NIC costs 200 ns more than one without
//! (`sendmmsg` of one, 1940 against 1720 ns for sending and receiving on a loopback). It is
//! redundant if routing would choose that NIC, source address and router anyhow, as it mostly does
//! if each rail has a network of its own. So routes of frequent destinations are looked up, and
//! again every second, as routes and addresses change; link changes invalidate them at once.

use std::collections::HashMap;
use std::mem;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

use netlink_packet_route::route::RouteType;

use crate::driver::traits::Rail;
use crate::netlink::{Found, NetlinkSocket, Question, look_up};

/// Lifetime of a lookup.
const ANSWER_LIFETIME: Duration = Duration::from_secs(1);
/// Datagrams to a destination before its route is looked up: a lookup takes as long as some 150
/// control messages.
const DATAGRAMS_BEFORE_LOOKUP: u32 = 64;
/// Entries of the cache; other destinations use control messages.
const KEYS_MAX: usize = 64;
/// Polls between two readings of the clock.
const CLOCK_EVERY: u32 = 16;

/// A destination, and the number of a rail.
type Key = (IpAddr, u8);

/// State of an entry.
#[derive(Clone, Copy, Debug)]
enum CachedRoute {
    /// Datagrams sent so far, before a lookup.
    Counting(u32),
    /// The result of the lookup.
    Answered(bool),
}

/// See the module.
#[derive(Debug)]
pub(super) struct RouteCache {
    /// NIC and address of each rail.
    rails: Box<[(u32, IpAddr)]>,
    /// Opened by the owner, as the background thread may be in another network namespace.
    netlink: Option<NetlinkSocket>,
    is_netlink_tried: bool,
    answers: HashMap<Key, CachedRoute>,
    last: Option<(Key, bool)>,
    since: Instant,
    polls: u32,
}

impl RouteCache {
    /// Without rails.
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

    /// Sets the rails, and clears the cache.
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

    /// Expires results after a second, with a delay of some polls. Called in each poll; `sleeps`:
    /// the driver is about to sleep.
    #[inline]
    pub(super) fn poll(&mut self, sleeps: bool) {
        self.polls = self.polls.wrapping_add(1);
        if sleeps || self.polls.is_multiple_of(CLOCK_EVERY) {
            self.expire();
        }
    }

    #[cold]
    fn expire(&mut self) {
        if !self.answers.is_empty() && self.since.elapsed() > ANSWER_LIFETIME {
            self.forget();
        }
    }

    /// Whether an unbound socket sends to `to` by the NIC of `rail` and from its address. `false`
    /// if that is not known.
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
            Some(CachedRoute::Answered(answer)) => {
                self.last = Some((key, *answer));
                return *answer;
            }
            Some(CachedRoute::Counting(count)) if *count < DATAGRAMS_BEFORE_LOOKUP => *count += 1,
            None if is_full => {}
            None => {
                self.answers.insert(key, CachedRoute::Counting(1));
            }
            Some(CachedRoute::Counting(_)) => {
                let answer = self.look_up(key);
                self.answers.insert(key, CachedRoute::Answered(answer));
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
        // Policy rules may route differently from that address.
        let bound = Question { from: address, bound_to: Some(nic), ..unbound };
        let is_same = |found: Found| (found.kind, found.gateway) == (routes.kind, routes.gateway);
        // With several next hops, each flow has its own.
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
        let is_default = |routes: &mut RouteCache, to: &str, rail: u8| {
            let to = to.parse().unwrap();
            (0..=DATAGRAMS_BEFORE_LOOKUP + 1).map(|_| routes.is_default(to, rail)).last().unwrap()
        };
        assert!(!is_default(&mut routes, "127.0.0.1", 0), "without rails");
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
                    let results = is_default(&mut routes, to, number);
                    assert_eq!(results, is_default_route, "{to} by rail {number}, again: {again}");
                }
            }
        }
        assert!(is_default(&mut routes, "::ffff:127.0.0.1", 0));
        // Another family, no link, an unreachable destination (class E), and no rail.
        for (to, rail) in [("::1", 0), ("fe80::1", 0), ("240.0.0.1", 0), ("127.0.0.1", 3)] {
            assert!(!is_default(&mut routes, to, rail), "{to} by rail {rail}");
        }
    }

    #[test]
    fn frequent_destinations_are_looked_up_and_expire() {
        let mut routes = RouteCache::new();
        routes.set_rails(&[rail(1, "127.0.0.1")]);
        let known: IpAddr = "127.0.0.1".parse().unwrap();
        let results: Vec<bool> =
            (0..=DATAGRAMS_BEFORE_LOOKUP).map(|_| routes.is_default(known, 0)).collect();
        assert_eq!(
            results.iter().position(|&results| results),
            Some(DATAGRAMS_BEFORE_LOOKUP as usize)
        );
        for at in 0..100 {
            assert!(!routes.is_default([127, 0, 1, at].into(), 0));
        }
        assert_eq!(routes.answers.len(), KEYS_MAX);
        routes.since = Instant::now();
        (0..CLOCK_EVERY).for_each(|_| routes.poll(false));
        assert!(routes.is_default(known, 0), "a second has not passed");
        let Some(long_ago) = Instant::now().checked_sub(2 * ANSWER_LIFETIME) else { return };
        for sleeps in [false, true] {
            routes.answers.insert((known, 0), CachedRoute::Answered(true));
            assert!(routes.is_default(known, 0));
            routes.since = long_ago;
            (0..if sleeps { 1 } else { CLOCK_EVERY }).for_each(|_| routes.poll(sleeps));
            assert!(routes.answers.is_empty() && !routes.is_default(known, 0), "sleeps: {sleeps}");
        }
    }
}
