//! Headers of sent frames: Ethernet, IPv4 or IPv6, UDP.
//!
//! ```text
//!           IPv4                                  IPv6
//!  0 target MAC | source MAC | type     0 target MAC | source MAC | type
//! 14 version .. length .. checksum     14 version .. length | 17 | hops
//! 26 source | target                   22 source
//! 34 ports | length | checksum         38 target
//! 42 payload                           54 ports | length | checksum
//!                                      62 payload
//! ```

use std::net::{IpAddr, SocketAddr};

use super::checksum;

/// An Ethernet address.
pub(super) type Mac = [u8; 6];

/// Bytes of an Ethernet header.
pub(super) const ETHERNET_BYTES: usize = 14;
const UDP_BYTES: usize = 8;
const IPV4_BYTES: usize = 20;
const IPV6_BYTES: usize = 40;
const IPV4_HEADER_BYTES: usize = ETHERNET_BYTES + IPV4_BYTES + UDP_BYTES;
/// Length of the longest headers.
pub(super) const BYTES_MAX: usize = ETHERNET_BYTES + IPV6_BYTES + UDP_BYTES;
/// Time to live, the default of kernel sockets.
const HOPS: u8 = 64;
const UDP: u8 = 17;

/// Bytes of headers before the payload of a datagram from `local`.
pub(super) fn header_bytes(local: IpAddr) -> usize {
    match local {
        IpAddr::V4(_) => IPV4_HEADER_BYTES,
        IpAddr::V6(_) => BYTES_MAX,
    }
}

/// Bytes of an IP packet (as counted by an MTU) with `payload` bytes of datagram from `local`.
pub(super) fn packet_bytes(local: IpAddr, payload: usize) -> usize {
    header_bytes(local) - ETHERNET_BYTES + payload
}

/// The constant part of the headers to one destination, including partial checksums.
#[derive(Clone, Debug)]
pub(super) struct Template {
    bytes: [u8; BYTES_MAX],
    /// 42 or 62.
    length: usize,
    /// Partial checksum of the IPv4 header, without its length.
    ip_sum: u64,
    /// Partial checksum of pseudo-header and ports, without lengths.
    udp_sum: u64,
}

impl Template {
    /// Headers of datagrams from `from` to `to`, via `target`; `None` if the families differ.
    pub(super) fn new(from: SocketAddr, to: SocketAddr, source: Mac, target: Mac) -> Option<Self> {
        let mut bytes = [0; BYTES_MAX];
        bytes[..6].copy_from_slice(&target);
        bytes[6..12].copy_from_slice(&source);
        let length = header_bytes(from.ip());
        let (ip, udp) = bytes[ETHERNET_BYTES..length].split_at_mut(length - 22);
        let addresses = match (from.ip(), to.ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                // Version and header length; don't fragment; time to live and protocol.
                ip[0] = 0x45;
                ip[6] = 0x40;
                (ip[8], ip[9]) = (HOPS, UDP);
                ip[12..16].copy_from_slice(&from.octets());
                ip[16..20].copy_from_slice(&to.octets());
                12..20
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                ip[0] = 0x60;
                (ip[6], ip[7]) = (UDP, HOPS);
                ip[8..24].copy_from_slice(&from.octets());
                ip[24..40].copy_from_slice(&to.octets());
                8..40
            }
            _ => return None,
        };
        udp[..2].copy_from_slice(&from.port().to_be_bytes());
        udp[2..4].copy_from_slice(&to.port().to_be_bytes());
        let ip_sum = checksum::add(0, ip);
        let udp_sum = checksum::add(0, &ip[addresses]);
        let udp_sum = checksum::add(udp_sum, &udp[..4]);
        let udp_sum = checksum::add(udp_sum, &[0, UDP]);
        let ether_type = if from.is_ipv4() { 0x0800u16 } else { 0x86dd };
        bytes[12..14].copy_from_slice(&ether_type.to_be_bytes());
        Some(Self { bytes, length, ip_sum, udp_sum })
    }

    /// Writes the headers before a payload: `frame` consists of room for them and the payload, at
    /// most 65 000 bytes in all. Over IPv4 the UDP checksum is omitted unless `is_summed`: the tag
    /// of a packet covers its payload, and its key determines the session; the source address is
    /// not trusted (RR-PATH-4).
    #[inline]
    pub(super) fn write(&self, frame: &mut [u8], is_summed: bool) {
        if let Some((headers, payload)) = frame.split_first_chunk_mut::<IPV4_HEADER_BYTES>()
            && self.length == IPV4_HEADER_BYTES
        {
            headers.copy_from_slice(&self.bytes[..IPV4_HEADER_BYTES]);
            let udp_bytes = ((UDP_BYTES + payload.len()) as u16).to_be_bytes();
            let ip_bytes = ((IPV4_BYTES + UDP_BYTES + payload.len()) as u16).to_be_bytes();
            headers[16..18].copy_from_slice(&ip_bytes);
            let sum = checksum::finish(self.ip_sum + u64::from(u16::from_ne_bytes(ip_bytes)));
            headers[24..26].copy_from_slice(&sum);
            headers[38..40].copy_from_slice(&udp_bytes);
            if is_summed {
                headers[40..42].copy_from_slice(&self.udp_checksum(udp_bytes, payload));
            }
        } else {
            self.write_ipv6(frame);
        }
    }

    fn write_ipv6(&self, frame: &mut [u8]) {
        let (headers, payload) = frame.split_at_mut(self.length);
        headers.copy_from_slice(&self.bytes[..self.length]);
        let udp_bytes = ((UDP_BYTES + payload.len()) as u16).to_be_bytes();
        headers[18..20].copy_from_slice(&udp_bytes);
        headers[58..60].copy_from_slice(&udp_bytes);
        headers[60..62].copy_from_slice(&self.udp_checksum(udp_bytes, payload));
    }

    fn udp_checksum(&self, udp_bytes: [u8; 2], payload: &[u8]) -> [u8; 2] {
        // The length counts twice, in the header and in the pseudo-header.
        let sum = checksum::add(checksum::add(self.udp_sum, &udp_bytes), &udp_bytes);
        match checksum::finish(checksum::add(sum, payload)) {
            // Zero means "no checksum" (RFC 768), which IPv6 forbids (RFC 8200).
            [0, 0] => [0xff, 0xff],
            sum => sum,
        }
    }
}

#[cfg(test)]
mod tests {
    use etherparse::{NetSlice, SlicedPacket, TransportSlice};

    use super::*;

    const SOURCE: Mac = [2, 0, 0, 0, 0, 1];
    const TARGET: Mac = [2, 0, 0, 0, 0, 2];

    fn check(from: SocketAddr, to: SocketAddr, payload: &[u8]) {
        let template = Template::new(from, to, SOURCE, TARGET).unwrap();
        let header = header_bytes(from.ip());
        let mut frame = vec![0xaa; header + payload.len()];
        frame[header..].copy_from_slice(payload);
        template.write(&mut frame, true);
        assert_eq!((&frame[..6], &frame[6..12]), (&TARGET[..], &SOURCE[..]));
        assert_eq!(frame.len() - 14, packet_bytes(from.ip(), payload.len()));
        let sliced = SlicedPacket::from_ethernet(&frame).unwrap();
        let Some(TransportSlice::Udp(udp)) = &sliced.transport else { panic!("{sliced:?}") };
        assert_eq!((udp.source_port(), udp.destination_port()), (from.port(), to.port()));
        assert_eq!(udp.payload(), payload);
        let header = udp.to_header();
        let expected = match sliced.net.as_ref().unwrap() {
            NetSlice::Ipv4(ip) => {
                let ip = ip.header().to_header();
                assert_eq!(ip.header_checksum, ip.calc_header_checksum());
                assert!(ip.dont_fragment && ip.time_to_live == HOPS);
                assert_eq!(IpAddr::from(ip.source), from.ip());
                assert_eq!(IpAddr::from(ip.destination), to.ip());
                header.calc_checksum_ipv4(&ip, payload).unwrap()
            }
            NetSlice::Ipv6(ip) => {
                let ip = ip.header().to_header();
                assert_eq!(IpAddr::from(ip.source), from.ip());
                assert_eq!(IpAddr::from(ip.destination), to.ip());
                header.calc_checksum_ipv6(&ip, payload).unwrap()
            }
            other => panic!("{other:?}"),
        };
        assert_ne!(udp.checksum(), 0);
        assert_eq!(udp.checksum(), expected, "{} bytes", payload.len());
        let mut bare = vec![0xaa; frame.len()];
        bare[frame.len() - payload.len()..].copy_from_slice(payload);
        template.write(&mut bare, false);
        let mut expected = frame.clone();
        if from.is_ipv4() {
            // RR-PATH-8: everything else is the same.
            expected[40..42].fill(0);
        }
        assert_eq!(bare, expected);
    }

    #[test]
    fn headers_of_every_length_parse_with_valid_checksums() {
        let bytes: Vec<u8> = (0..2048u32).map(|n| ((n * 37) ^ (n >> 3)) as u8).collect();
        let pairs = [
            ("10.77.0.1:4791", "10.77.0.2:65535"),
            ("255.255.255.255:65535", "255.255.255.255:65535"),
            ("[fe80::1]:1", "[2001:db8::ffff]:4791"),
        ];
        for (from, to) in pairs {
            for length in (0..80).chain([1399, 1400, 1472, 2047, 2048]) {
                check(from.parse().unwrap(), to.parse().unwrap(), &bytes[..length]);
            }
        }
    }

    #[test]
    fn zero_checksum_is_sent_as_ones() {
        let (from, to) = ("10.0.0.1:1".parse().unwrap(), "10.0.0.2:2".parse().unwrap());
        let found = (0..=u16::MAX).find(|word| {
            let template = Template::new(from, to, SOURCE, TARGET).unwrap();
            let mut frame = [0; 44];
            frame[42..].copy_from_slice(&word.to_be_bytes());
            template.write(&mut frame, true);
            frame[40..42] == [0xff, 0xff]
        });
        check(from, to, &found.unwrap().to_be_bytes());
    }

    #[test]
    fn families_do_not_mix() {
        let (v4, v6) = ("10.0.0.1:1".parse().unwrap(), "[::1]:2".parse().unwrap());
        assert!(Template::new(v4, v6, SOURCE, TARGET).is_none());
        assert!(Template::new(v6, v4, SOURCE, TARGET).is_none());
    }
}
