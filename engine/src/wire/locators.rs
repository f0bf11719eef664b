//! Where an engine listens.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use super::address::{FAMILY_IPV4, FAMILY_IPV6, LOCATOR_BYTES, WireAddress};

/// One port at one IP address or several of a family, in the order in which they are tried.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Locators {
    ips: [u8; LOCATOR_BYTES],
    /// Of the first one, if that is of IPv6 and link-local.
    scope: u32,
    port: u16,
    family: u8,
    /// At least 1.
    count: u8,
}

/// Where a link-local address of IPv6 has its scope id in an address.
const SCOPE: std::ops::Range<usize> = 4..8;

/// Whether an address means another host on each network.
fn is_link_local(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
}

/// Bytes of an IP address; `None`: no such family.
fn width_of(family: u8) -> Option<usize> {
    match family {
        FAMILY_IPV4 => Some(4),
        FAMILY_IPV6 => Some(16),
        _ => None,
    }
}

impl From<SocketAddr> for Locators {
    fn from(first: SocketAddr) -> Self {
        let (family, scope) = match first {
            SocketAddr::V4(_) => (FAMILY_IPV4, 0),
            SocketAddr::V6(v6) if is_link_local(first.ip()) => (FAMILY_IPV6, v6.scope_id()),
            SocketAddr::V6(_) => (FAMILY_IPV6, 0),
        };
        let mut locators =
            Self { ips: [0; LOCATOR_BYTES], scope, port: first.port(), family, count: 0 };
        locators.put(first.ip());
        locators
    }
}

impl Locators {
    /// Those of an engine: `first`, then its other rails, which may be `first` again.
    ///
    /// RR-ADDR-3.
    pub(crate) fn of(first: SocketAddr, others: impl Iterator<Item = IpAddr>) -> Self {
        let mut locators = Self::from(first);
        others.for_each(|ip| locators.add(ip));
        locators
    }

    /// Another address, to be tried after those that are there. One that is there already is left
    /// out, so is one of the other family, a link-local one, which means another host on each
    /// network, and one for which there is no room.
    pub(crate) fn add(&mut self, ip: IpAddr) {
        let is_of_family = ip.is_ipv4() == (self.family == FAMILY_IPV4);
        if is_of_family && !is_link_local(ip) && self.iter().all(|known| known.ip() != ip) {
            self.put(ip);
        }
    }

    fn put(&mut self, ip: IpAddr) {
        let at = usize::from(self.count) * self.width();
        let room = &mut self.ips[at..];
        match ip {
            IpAddr::V4(ip) if room.len() >= 4 => room[..4].copy_from_slice(&ip.octets()),
            IpAddr::V6(ip) if room.len() >= 16 => room[..16].copy_from_slice(&ip.octets()),
            _ => return,
        }
        self.count += 1;
    }

    fn width(&self) -> usize {
        width_of(self.family).unwrap_or(LOCATOR_BYTES)
    }

    /// The one that is tried first.
    pub(crate) fn first(&self) -> SocketAddr {
        self.at(0)
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        usize::from(self.count)
    }

    /// In their order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = SocketAddr> + use<> {
        let all = *self;
        (0..all.len()).map(move |at| all.at(at))
    }

    /// The one at this place, which must be below [`Self::len`].
    fn at(&self, at: usize) -> SocketAddr {
        let bytes = &self.ips[at * self.width()..];
        if self.family == FAMILY_IPV4 {
            let ip = [bytes[0], bytes[1], bytes[2], bytes[3]];
            return SocketAddr::new(Ipv4Addr::from(ip).into(), self.port);
        }
        let mut ip = [0; 16];
        ip.copy_from_slice(&bytes[..16]);
        let scope = if at == 0 { self.scope } else { 0 };
        SocketAddr::V6(SocketAddrV6::new(Ipv6Addr::from(ip), self.port, 0, scope))
    }

    /// Those of an address; `None`: it is none.
    ///
    /// RR-ADDR-1.
    pub(crate) fn from_wire(wire: &WireAddress) -> Option<Self> {
        let (family, count) = (wire.family, wire.locators);
        let count_max = LOCATOR_BYTES / width_of(family)?;
        let is_sound = (1..=count_max).contains(&usize::from(count)) && wire.port.get() != 0;
        if !is_sound {
            return None;
        }
        let mut locators = Self { ips: wire.ips, scope: 0, port: wire.port.get(), family, count };
        if is_link_local(locators.first().ip()) {
            let scope = &mut locators.ips[SCOPE];
            locators.scope = u32::from_be_bytes([scope[0], scope[1], scope[2], scope[3]]);
            scope.fill(0);
        }
        Some(locators)
    }

    /// Puts them into an address.
    pub(crate) fn fill(&self, wire: &mut WireAddress) {
        (wire.port, wire.family, wire.locators) = (self.port.into(), self.family, self.count);
        wire.ips = self.ips;
        if is_link_local(self.first().ip()) {
            wire.ips[SCOPE].copy_from_slice(&self.scope.to_be_bytes());
        }
    }
}

impl fmt::Debug for Locators {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(first: &str, others: &[&str]) -> Vec<String> {
        let mut locators = Locators::from(first.parse::<SocketAddr>().unwrap());
        others.iter().for_each(|ip| locators.add(ip.parse().unwrap()));
        assert_eq!(locators.first().to_string(), first);
        assert_eq!(locators.len(), locators.iter().count());
        locators.iter().map(|locator| locator.to_string()).collect()
    }

    /// RR-ADDR-3
    #[test]
    fn each_address_stands_once_and_those_that_do_not_fit_are_left_out() {
        let others = ["10.0.1.1", "10.0.0.1", "fd00::1", "10.0.2.1", "10.0.1.1"];
        assert_eq!(of("10.0.0.1:7", &others), ["10.0.0.1:7", "10.0.1.1:7", "10.0.2.1:7"]);
        let many: Vec<String> = (1..20).map(|host| format!("10.0.0.{host}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert_eq!(of("10.1.0.1:9", &many).len(), 8);
        assert_eq!(of("10.1.0.1:9", &many)[7], "10.0.0.7:9");
        let others = ["fe80::2", "10.0.0.1", "fd00::2", "fd00::3"];
        assert_eq!(of("[fe80::1%3]:80", &others), ["[fe80::1%3]:80", "[fd00::2]:80"]);
    }
}
