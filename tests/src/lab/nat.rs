//! A translator of addresses between host a and the rest of the world, as a home router is one.
//!
//! Host b sees host a by an address and ports that host a knows nothing of, and reaches it only by
//! those that host a has used towards it (RFC 4787: mapping that does not depend on the endpoint,
//! filtering that depends on address and port).

use std::collections::{HashMap, HashSet};
use std::net::Ipv4Addr;

/// Ports on the outside, from here on.
const PORTS_FROM: u16 = 30_000;

/// `ETH_P_IP`, `ETH_P_ARP` as in a frame.
const IPV4: [u8; 2] = [8, 0];
const ARP: [u8; 2] = [8, 6];

/// Where headers begin, and fields in them.
const IP: usize = 14;
const SOURCE: usize = IP + 12;
const DESTINATION: usize = IP + 16;
const ARP_SENDER: usize = IP + 14;
const ARP_TARGET: usize = IP + 24;
const TCP: u8 = 6;
const UDP: u8 = 17;

/// What a frame of IPv4 says of its conversation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct End {
    protocol: u8,
    port: u16,
}

/// One rail's translator.
#[derive(Debug)]
pub(crate) struct Nat {
    inside: Ipv4Addr,
    outside: Ipv4Addr,
    /// Port on the outside of each of host a's.
    ports: HashMap<End, u16>,
    ends: HashMap<End, End>,
    /// Whom host a has written to, from which port on the outside.
    known: HashSet<(End, Ipv4Addr, u16)>,
}

impl Nat {
    /// Host a has the address `inside`, and seems to have `outside`.
    pub(crate) fn new(inside: Ipv4Addr, outside: Ipv4Addr) -> Self {
        let (ports, ends, known) = (HashMap::new(), HashMap::new(), HashSet::new());
        Self { inside, outside, ports, ends, known }
    }

    /// A frame of host a's. `false`: it goes no further. `is_partial`: its checksum of TCP or UDP
    /// covers addresses and length only, as the kernel leaves the rest to the NIC.
    pub(crate) fn leave(&mut self, frame: &mut [u8], is_partial: bool) -> bool {
        match kind(frame) {
            Some(ARP) if frame.len() >= ARP_TARGET + 4 => {
                if address(frame, ARP_SENDER) == self.inside {
                    frame[ARP_SENDER..][..4].copy_from_slice(&self.outside.octets());
                }
                true
            }
            Some(IPV4) => {
                let Some((protocol, at)) = ends(frame) else { return false };
                if address(frame, SOURCE) != self.inside {
                    return false;
                }
                let inside = End { protocol, port: port(frame, at) };
                let Some(outside) = self.outside_of(inside) else { return false };
                let end = End { protocol, port: outside };
                self.ends.insert(end, inside);
                self.known.insert((end, address(frame, DESTINATION), port(frame, at + 2)));
                rewrite(frame, SOURCE, self.outside, at, outside, is_partial);
                true
            }
            _ => false,
        }
    }

    /// The port on the outside; `None`: all are taken.
    fn outside_of(&mut self, inside: End) -> Option<u16> {
        if let Some(&outside) = self.ports.get(&inside) {
            return Some(outside);
        }
        let Ok(next) = u16::try_from(usize::from(PORTS_FROM) + self.ports.len()) else {
            let count = self.ports.len();
            eprintln!("the lab's translator drops a frame: all {count} ports are taken");
            return None;
        };
        self.ports.insert(inside, next);
        Some(next)
    }

    /// A frame for host a. As [`Self::leave`].
    pub(crate) fn enter(&mut self, frame: &mut [u8], is_partial: bool) -> bool {
        match kind(frame) {
            Some(ARP) if frame.len() >= ARP_TARGET + 4 => {
                let is_ours = address(frame, ARP_TARGET) == self.outside;
                if is_ours {
                    frame[ARP_TARGET..][..4].copy_from_slice(&self.inside.octets());
                }
                is_ours
            }
            Some(IPV4) => {
                let Some((protocol, at)) = ends(frame) else { return false };
                let end = End { protocol, port: port(frame, at + 2) };
                let from = (end, address(frame, SOURCE), port(frame, at));
                if address(frame, DESTINATION) != self.outside || !self.known.contains(&from) {
                    return false;
                }
                let Some(inside) = self.ends.get(&end) else { return false };
                rewrite(frame, DESTINATION, self.inside, at + 2, inside.port, is_partial);
                true
            }
            _ => false,
        }
    }
}

fn kind(frame: &[u8]) -> Option<[u8; 2]> {
    frame.get(12..IP)?.try_into().ok()
}

/// The protocol of a packet, and where its ports are; `None`: it has none, or is a fragment.
fn ends(frame: &[u8]) -> Option<(u8, usize)> {
    let at = IP + 4 * usize::from(frame.get(IP)? & 0xf);
    let protocol = *frame.get(IP + 9)?;
    let is_fragment = frame[IP + 6] & 0x3f != 0 || frame[IP + 7] != 0;
    let header_bytes = match protocol {
        TCP => 20,
        UDP => 8,
        _ => return None,
    };
    (frame.len() >= at + header_bytes && !is_fragment).then_some((protocol, at))
}

fn address(frame: &[u8], at: usize) -> Ipv4Addr {
    Ipv4Addr::new(frame[at], frame[at + 1], frame[at + 2], frame[at + 3])
}

fn port(frame: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([frame[at], frame[at + 1]])
}

/// Puts another address and port in, and has checksums fit.
fn rewrite(
    frame: &mut [u8],
    address_at: usize,
    address: Ipv4Addr,
    port_at: usize,
    port: u16,
    is_partial: bool,
) {
    let ends_at = IP + 4 * usize::from(frame[IP] & 0xf);
    let is_udp = frame[IP + 9] == UDP;
    let checksum_at = ends_at + if is_udp { 6 } else { 16 };
    let octets = address.octets();
    let mut halves = [[octets[0], octets[1]], [octets[2], octets[3]], port.to_be_bytes()];
    let has_checksum = !is_udp || is_partial || frame[checksum_at..checksum_at + 2] != [0, 0];
    for (index, half) in halves.iter_mut().enumerate() {
        let (at, is_port) =
            if index < 2 { (address_at + 2 * index, false) } else { (port_at, true) };
        let old = [frame[at], frame[at + 1]];
        frame[at..at + 2].copy_from_slice(half);
        if !is_port {
            mend(frame, IP + 10, old, *half, true);
        }
        if has_checksum && !(is_port && is_partial) {
            mend(frame, checksum_at, old, *half, !is_partial);
        }
    }
}

/// A field that the checksum at `at` covers was `old` and is `new` (RFC 1624, equation 3). The one
/// that a NIC is to complete is not inverted.
fn mend(frame: &mut [u8], at: usize, old: [u8; 2], new: [u8; 2], is_inverted: bool) {
    let before = u16::from_be_bytes([frame[at], frame[at + 1]]);
    let flip = if is_inverted { 0xffff } else { 0 };
    let mut sum = u32::from(before ^ flip)
        + u32::from(!u16::from_be_bytes(old))
        + u32::from(u16::from_be_bytes(new));
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    frame[at..at + 2].copy_from_slice(&(sum as u16 ^ flip).to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
    const B: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
    const OUTSIDE: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 200);

    fn nat() -> Nat {
        Nat::new(A, OUTSIDE)
    }

    /// Sum of 16-bit words (RFC 1071).
    fn sum(bytes: &[u8], start: u32) -> u16 {
        let word =
            |pair: &[u8]| u32::from(u16::from_be_bytes([pair[0], *pair.get(1).unwrap_or(&0)]));
        let mut sum = start + bytes.chunks(2).map(word).sum::<u32>();
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        sum as u16
    }

    fn pseudo(frame: &[u8]) -> u32 {
        let length = (frame.len() - IP - 20) as u32;
        u32::from(sum(&frame[SOURCE..SOURCE + 8], 0)) + u32::from(frame[IP + 9]) + length
    }

    /// A packet with checksums, or one that leaves the rest of it to the NIC.
    fn packet(protocol: u8, from: (Ipv4Addr, u16), to: (Ipv4Addr, u16), partial: bool) -> Vec<u8> {
        let mut frame = vec![0; IP + 20 + 20 + 5];
        frame[12..IP].copy_from_slice(&IPV4);
        (frame[IP], frame[IP + 9]) = (0x45, protocol);
        frame[SOURCE..][..4].copy_from_slice(&from.0.octets());
        frame[DESTINATION..][..4].copy_from_slice(&to.0.octets());
        let ip = !sum(&frame[IP..IP + 20], 0);
        frame[IP + 10..IP + 12].copy_from_slice(&ip.to_be_bytes());
        frame[IP + 20..IP + 22].copy_from_slice(&from.1.to_be_bytes());
        frame[IP + 22..IP + 24].copy_from_slice(&to.1.to_be_bytes());
        frame[IP + 40..].copy_from_slice(b"hello");
        let at = IP + 20 + if protocol == UDP { 6 } else { 16 };
        let covers = pseudo(&frame);
        let checksum = if partial { sum(&[], covers) } else { !sum(&frame[IP + 20..], covers) };
        frame[at..at + 2].copy_from_slice(&checksum.to_be_bytes());
        frame
    }

    #[track_caller]
    fn assert_sound(frame: &[u8], partial: bool) {
        assert_eq!(sum(&frame[IP..IP + 20], 0), 0xffff, "of IP");
        let at = IP + 20 + if frame[IP + 9] == UDP { 6 } else { 16 };
        if partial {
            assert_eq!(port(frame, at), sum(&[], pseudo(frame)), "what the NIC completes");
        } else {
            assert_eq!(sum(&frame[IP + 20..], pseudo(frame)), 0xffff, "of TCP or UDP");
        }
    }

    #[test]
    fn packets_get_another_source_and_answers_find_back() {
        for (protocol, partial) in [(TCP, false), (TCP, true), (UDP, false), (UDP, true)] {
            let mut nat = nat();
            let mut out = packet(protocol, (A, 5000), (B, 7000), partial);
            assert!(nat.leave(&mut out, partial));
            assert_eq!((address(&out, SOURCE), port(&out, IP + 20)), (OUTSIDE, PORTS_FROM));
            assert_eq!((address(&out, DESTINATION), port(&out, IP + 22)), (B, 7000));
            assert_sound(&out, partial);
            let mut answer = packet(protocol, (B, 7000), (OUTSIDE, PORTS_FROM), partial);
            assert!(nat.enter(&mut answer, partial));
            assert_eq!((address(&answer, DESTINATION), port(&answer, IP + 22)), (A, 5000));
            assert_sound(&answer, partial);
            // The same port again, another one for another, and TCP apart from UDP.
            assert!(nat.leave(&mut packet(protocol, (A, 5000), (B, 7001), partial), partial));
            assert_eq!(nat.ports.len(), 1);
            assert!(nat.leave(&mut packet(protocol, (A, 5001), (B, 7000), partial), partial));
            assert_eq!(nat.ports.len(), 2);
        }
    }

    #[test]
    fn frames_are_dropped_when_all_ports_are_taken() {
        let mut nat = nat();
        for port in 0..=u16::MAX - PORTS_FROM {
            assert_eq!(nat.outside_of(End { protocol: TCP, port }), Some(PORTS_FROM + port));
        }
        assert!(!nat.leave(&mut packet(UDP, (A, 5000), (B, 7000), false), false));
        assert!(nat.leave(&mut packet(TCP, (A, 5000), (B, 7000), false), false));
    }

    #[test]
    fn nobody_gets_in_whom_host_a_has_not_written_to() {
        let mut nat = nat();
        assert!(nat.leave(&mut packet(TCP, (A, 5000), (B, 7000), false), false));
        let strange = [
            packet(TCP, (B, 7001), (OUTSIDE, PORTS_FROM), false),
            packet(UDP, (B, 7000), (OUTSIDE, PORTS_FROM), false),
            packet(TCP, (B, 7000), (OUTSIDE, PORTS_FROM + 1), false),
            packet(TCP, (B, 7000), (A, 5000), false),
            packet(1, (B, 7000), (OUTSIDE, PORTS_FROM), false),
        ];
        for mut frame in strange {
            assert!(!nat.enter(&mut frame, false));
        }
        assert!(!nat.leave(&mut packet(TCP, (B, 1), (A, 2), false), false), "not its address");
        for length in 0..60 {
            nat.enter(&mut packet(TCP, (B, 7000), (OUTSIDE, PORTS_FROM), false)[..length], false);
            nat.leave(&mut packet(TCP, (A, 5000), (B, 7000), false)[..length], false);
        }
    }

    #[test]
    fn host_a_is_asked_for_by_its_outside_alone() {
        let arp = |sender: Ipv4Addr, target: Ipv4Addr| {
            let mut frame = vec![0; 42];
            frame[12..IP].copy_from_slice(&ARP);
            frame[ARP_SENDER..][..4].copy_from_slice(&sender.octets());
            frame[ARP_TARGET..][..4].copy_from_slice(&target.octets());
            frame
        };
        let mut nat = nat();
        let mut asks = arp(A, B);
        assert!(nat.leave(&mut asks, false));
        assert_eq!(address(&asks, ARP_SENDER), OUTSIDE);
        let mut answer = arp(B, OUTSIDE);
        assert!(nat.enter(&mut answer, false));
        assert_eq!(address(&answer, ARP_TARGET), A);
        assert!(!nat.enter(&mut arp(B, A), false));
    }
}
