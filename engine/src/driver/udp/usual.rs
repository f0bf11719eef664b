//! Destinations to which the kernel sends by a rail of itself.
//!
//! A datagram with a control message that says its source and NIC costs 200 ns more than one
//! without (`sendmmsg` of one, 1940 against 1720 ns for sending and receiving on a loopback). It
//! says nothing new where routes lead by that NIC and from that address anyhow, as they do wherever
//! each rail has a network of its own. So the kernel is asked once for each destination, and anew
//! every second, as routes change; links that change are news that come at once.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

use netlink_packet_route::route::RouteType;

use crate::netlink::{Door, Question, look_up};
use crate::progress::lanes::Rail;

/// For so long an answer holds.
const HOLDS: Duration = Duration::from_secs(1);
/// Questions until the answers are forgotten: a look-up takes some 10 µs. Other destinations have
/// control messages.
const QUESTIONS_MAX: usize = 64;
/// Polls between two looks at the clock.
const LOOK_EVERY: u32 = 16;

/// A destination, and the number of a rail.
type Way = (IpAddr, u8);

/// See the module.
#[derive(Debug)]
pub(super) struct Usual {
    /// Of each rail: its NIC and its address.
    rails: Box<[(u32, IpAddr)]>,
    /// Opened by the owner, as the caretaker may be in another network namespace.
    door: Option<Door>,
    answers: HashMap<Way, bool>,
    last: Option<(Way, bool)>,
    since: Instant,
    polls: u32,
}

impl Usual {
    /// Without rails: nobody asks.
    pub(super) fn new() -> Self {
        Self {
            rails: Box::default(),
            door: None,
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
        if self.door.is_none() && !rails.is_empty() {
            self.door = Door::open().ok();
        }
        self.forget();
    }

    fn forget(&mut self) {
        self.answers.clear();
        (self.last, self.since) = (None, Instant::now());
    }

    /// Time may have passed: routes are what they were a second ago at the most. Comes with each
    /// poll.
    pub(super) fn poll(&mut self) {
        self.polls = self.polls.wrapping_add(1);
        if self.polls.is_multiple_of(LOOK_EVERY)
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
        let answer = match self.answers.get(&way) {
            Some(&answer) => answer,
            None if self.answers.len() < QUESTIONS_MAX => {
                let answer = self.ask(way);
                self.answers.insert(way, answer);
                answer
            }
            None => false,
        };
        self.last = Some((way, answer));
        answer
    }

    fn ask(&mut self, (to, rail): Way) -> bool {
        let (Some(&(nic, address)), Some(door)) =
            (self.rails.get(usize::from(rail)), &mut self.door)
        else {
            return false;
        };
        let to = to.to_canonical();
        let needs_link = matches!(to, IpAddr::V6(v6) if v6.is_unicast_link_local());
        if nic == 0 || needs_link || to.is_ipv4() != address.is_ipv4() {
            return false;
        }
        let from: IpAddr = match to {
            IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let question = Question { from, to, bound_to: None, is_strict: false };
        look_up(door, question).is_ok_and(|found| {
            matches!(found.kind, RouteType::Unicast | RouteType::Local)
                && found.leaves_by == Some(nic)
                && found.source == Some(address)
        })
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
        assert!(!usual.is([127, 0, 0, 1].into(), 0), "without rails");
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
                    let said = usual.is(to.parse().unwrap(), number);
                    assert_eq!(said, is_usual, "{to} by rail {number}, again: {again}");
                }
            }
        }
        assert!(usual.is("::ffff:127.0.0.1".parse().unwrap(), 0));
        // Of other families, without a link, one that leads nowhere (class E), and no rail.
        for (to, rail) in [("::1", 0), ("fe80::1", 0), ("240.0.0.1", 0), ("127.0.0.1", 3)] {
            assert!(!usual.is(to.parse().unwrap(), rail), "{to} by rail {rail}");
        }
    }

    #[test]
    fn few_are_asked_for_and_all_are_forgotten() {
        let mut usual = Usual::new();
        usual.set_rails(&[rail(1, "127.0.0.1")]);
        let to = |at: usize| IpAddr::from([127, 0, 1, at as u8]);
        for at in 0..100 {
            usual.is(to(at), 0);
        }
        assert_eq!(usual.answers.len(), QUESTIONS_MAX);
        let known: IpAddr = "127.0.0.1".parse().unwrap();
        assert!(!usual.is(known, 0), "there was no question left");
        usual.poll();
        for _ in 0..2 * LOOK_EVERY {
            usual.poll();
        }
        assert_eq!(usual.answers.len(), QUESTIONS_MAX, "a second has not passed");
        usual.since = Instant::now() - 2 * HOLDS;
        for _ in 0..LOOK_EVERY {
            usual.poll();
        }
        assert!(usual.answers.is_empty() && usual.is(known, 0));
    }
}
