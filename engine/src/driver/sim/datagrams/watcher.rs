//! An observer in the network: address changes, cuts, recording and injecting datagrams.

use std::fmt;
use std::net::SocketAddr;

use super::super::net::Net;
use super::super::rails::At;
use super::{DATAGRAM_BYTES_MAX, Datagram, DatagramNet, Route};

/// A datagram observed in flight, whether or not it arrived.
#[derive(Clone, Debug)]
pub(crate) struct Sighting {
    /// The host that sent it.
    pub(crate) sender: usize,
    /// The host it was sent to, if any has the address.
    pub(crate) target: Option<usize>,
    pub(crate) from: SocketAddr,
    pub(crate) bytes: Vec<u8>,
}

/// Keeps copies of the last datagrams.
#[derive(Debug)]
pub(super) struct Watcher {
    seen: Vec<Sighting>,
    next: usize,
    capacity: usize,
}

impl Watcher {
    pub(super) fn see(&mut self, sender: usize, target: Option<usize>, datagram: &Datagram) {
        if self.seen.len() < self.capacity {
            let bytes = Vec::with_capacity(DATAGRAM_BYTES_MAX);
            self.seen.push(Sighting { sender, target, from: datagram.from, bytes });
        }
        let Some(place) = self.seen.get_mut(self.next) else { return };
        (place.sender, place.target, place.from) = (sender, target, datagram.from);
        place.bytes.clear();
        place.bytes.extend_from_slice(datagram.content());
        self.next = (self.next + 1) % self.capacity;
    }
}

/// Chooses which datagrams to lose, by sending host and bytes.
type Choice = Box<dyn FnMut(usize, &[u8]) -> bool>;

/// Drops the chosen datagrams.
pub(super) struct DropFilter(Choice);

impl DropFilter {
    /// Whether this datagram of that host is to be lost.
    pub(super) fn matches(&mut self, sender: usize, bytes: &[u8]) -> bool {
        (self.0)(sender, bytes)
    }
}

impl fmt::Debug for DropFilter {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a sieve")
    }
}

impl Net {
    /// Drops the datagrams that `chosen` selects, by sender and bytes; `None`: none any more.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn drop_matching_datagrams(&mut self, chosen: Option<Choice>) {
        self.datagram_net.sieve = chosen.map(DropFilter);
    }

    // ---- Recording and injecting ----

    /// Keeps copies of the last `capacity` datagrams from now on; 0: none.
    pub(crate) fn observe_datagrams(&mut self, capacity: usize) {
        let watcher = Watcher { seen: Vec::new(), next: 0, capacity };
        self.datagram_net.watcher = (capacity > 0).then_some(watcher);
    }

    /// The recorded datagrams, in no order.
    pub(crate) fn sightings(&self) -> &[Sighting] {
        self.datagram_net.watcher.as_ref().map_or(&[], |watcher| &watcher.seen)
    }

    /// Sends `bytes` to `to_host` as an attacker, with source `from`. They may overtake datagrams
    /// of hosts. Oversized ones are dropped.
    pub(crate) fn inject_datagram(&mut self, from: SocketAddr, to_host: usize, bytes: &[u8]) {
        self.datagram_net.counts.injected += 1;
        if bytes.len() > DATAGRAM_BYTES_MAX {
            self.datagram_net.counts.lost += 1;
            return;
        }
        self.note_injected(bytes);
        let now_ns = self.now_ns();
        let mut datagram = self.spare_datagram();
        datagram.bytes[..bytes.len()].copy_from_slice(bytes);
        datagram.length = bytes.len();
        (datagram.from, datagram.to) = (from, self.locator(to_host));
        (datagram.sender, datagram.left_ns) = (None, now_ns);
        let delay_ns = self.impairments.delay_ns + self.impairments.jitter_ns;
        let arrival_ns = now_ns + self.random.within(delay_ns + 1);
        self.bring(to_host, arrival_ns, datagram);
    }

    pub(crate) fn host_count(&self) -> usize {
        self.hosts.len()
    }

    // ---- Addresses ----

    /// Changes the public address of a host (NAT rebinding).
    pub(crate) fn rebind(&mut self, host: usize) {
        self.datagram_net.counts.rebinds += 1;
        let count = self.datagram_net.counts.rebinds;
        let address = [127, 88, (count >> 8) as u8, count as u8];
        let port = 30_000 + (count % 20_000) as u16;
        let links = self.hosts[host].links.len();
        let random = &mut self.hosts[host].random.datagrams;
        let link = if links > 1 { random.below(links) } else { 0 };
        self.change_address(At { host, link }, SocketAddr::from((address, port)));
    }

    pub(super) fn change_address(&mut self, at: At, address: SocketAddr) {
        let until_ns = self.now_ns() + self.datagram_impairments.rebind_keeps_ns;
        let old = std::mem::replace(&mut self.hosts[at.host].links[at.link].public, address);
        self.datagram_net.routes.insert(old, Route { at, until_ns });
        self.datagram_net.routes.insert(address, Route { at, until_ns: u64::MAX });
    }

    // ---- Cuts ----

    /// Cuts datagrams from `from` to `to` until [`Self::open_datagrams_way`]: a firewall that lets
    /// TCP pass.
    pub(crate) fn cut_datagrams_way(&mut self, from: usize, to: usize) {
        self.datagram_net.cuts.push((from, to));
        self.lose_datagrams(from, to);
    }

    /// Ends one [`Self::cut_datagrams_way`].
    pub(crate) fn open_datagrams_way(&mut self, from: usize, to: usize) {
        if let Some(at) = self.datagram_net.cuts.iter().position(|&cut| cut == (from, to)) {
            self.datagram_net.cuts.swap_remove(at);
        }
    }

    /// Loses datagrams in flight from one host to another.
    pub(in super::super) fn lose_datagrams(&mut self, from: usize, to: usize) {
        self.lose_under_way(to, |datagram| datagram.sender == Some(from));
    }

    /// Loses datagrams queued for a link that is cut, and those in flight to it: outward, inward.
    pub(in super::super) fn lose_datagrams_of(&mut self, at: At, [outward, inward]: [bool; 2]) {
        let now_ns = self.now_ns();
        for to in 0..self.hosts.len() {
            self.lose_under_way(to, |datagram| {
                let is_unsent = (datagram.sender, datagram.link) == (Some(at.host), at.link)
                    && datagram.left_ns > now_ns;
                let comes_there = (to, datagram.link_in) == (at.host, at.link);
                outward && is_unsent || inward && comes_there
            });
        }
    }

    /// Loses unsent datagrams of a host that was powered off.
    pub(in super::super) fn lose_unsent_datagrams(&mut self, host: usize) {
        let now_ns = self.now_ns();
        for to in 0..self.hosts.len() {
            let is_unsent = |it: &Datagram| it.sender == Some(host) && it.left_ns > now_ns;
            self.lose_under_way(to, is_unsent);
        }
        self.hosts[host].socket.free_ns = now_ns;
    }

    fn lose_under_way(&mut self, to: usize, is_lost: impl Fn(&Datagram) -> bool) {
        // What has arrived is there.
        self.process_arrivals(to);
        let under_way = &mut self.hosts[to].socket.under_way;
        let before = under_way.len();
        under_way.retain(|it| !is_lost(&it.datagram));
        let lost = before - under_way.len();
        self.datagram_net.counts.lost += lost as u64;
    }

    /// Removes all cuts, and lets every former address of a host reach it.
    pub(in super::super) fn heal_datagrams(&mut self) {
        let DatagramNet { cuts, routes, .. } = &mut self.datagram_net;
        cuts.clear();
        routes.values_mut().for_each(|route| route.until_ns = u64::MAX);
    }
}
