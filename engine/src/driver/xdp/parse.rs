//! Parser of received frames, which are untrusted.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::ops::Range;

/// VLAN tags skipped, at most: customer and provider.
const VLAN_TAGS_MAX: usize = 2;
const UDP: u8 = 17;

/// Why a frame is rejected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RejectReason {
    /// It ends inside a header.
    TooShort,
    /// The lengths in headers are inconsistent.
    BadLength,
    /// An IP fragment.
    Fragment,
    /// Not UDP over IP, or with options.
    OtherProtocol,
    /// For another address or port.
    NotOurs,
}

/// Rejected frames, by reason.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct RejectCounts {
    /// Ended inside a header.
    pub(crate) too_short: u64,
    /// Inconsistent lengths.
    pub(crate) bad_length: u64,
    /// IP fragments.
    pub(crate) fragments: u64,
    /// Not UDP.
    pub(crate) other_protocol: u64,
    /// For another address or port.
    pub(crate) not_ours: u64,
}

impl RejectCounts {
    /// Counts one.
    pub(super) fn count(&mut self, why: RejectReason) {
        *match why {
            RejectReason::TooShort => &mut self.too_short,
            RejectReason::BadLength => &mut self.bad_length,
            RejectReason::Fragment => &mut self.fragments,
            RejectReason::OtherProtocol => &mut self.other_protocol,
            RejectReason::NotOurs => &mut self.not_ours,
        } += 1;
    }

    /// All of them.
    pub(crate) fn total(&self) -> u64 {
        self.too_short + self.bad_length + self.fragments + self.other_protocol + self.not_ours
    }
}

fn word(frame: &[u8], at: usize) -> Result<u16, RejectReason> {
    let bytes = frame.get(at..at + 2).ok_or(RejectReason::TooShort)?;
    Ok(u16::from_be_bytes([bytes[0], bytes[1]]))
}

fn array<const BYTES: usize>(frame: &[u8], at: usize) -> Result<[u8; BYTES], RejectReason> {
    let bytes = frame.get(at..at + BYTES).ok_or(RejectReason::TooShort)?;
    bytes.try_into().map_err(|_| RejectReason::TooShort)
}

/// Source of the datagram in `frame`, which was received by the NIC with index `nic`, and the range
/// of its payload. Only datagrams for `local` are accepted.
///
/// Checksums are not verified: packets of virtual NICs have partial ones, and the tag of a packet
/// is stronger.
#[inline]
pub(super) fn datagram(
    frame: &[u8],
    local: SocketAddr,
    nic: u32,
) -> Result<(SocketAddr, Range<usize>), RejectReason> {
    match plain_ipv4(frame, local) {
        Some(found) => Ok(found),
        None => any(frame, local, nic),
    }
}

/// The common case: a whole UDP packet over IPv4 for `local`, without options and tags. `None`:
/// anything else.
#[inline]
fn plain_ipv4(frame: &[u8], local: SocketAddr) -> Option<(SocketAddr, Range<usize>)> {
    let SocketAddr::V4(local) = local else { return None };
    let (header, rest) = frame.split_first_chunk::<42>()?;
    let word = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
    // Of IP packet and UDP, each without the headers before.
    let lengths = (usize::from(word(16)).wrapping_sub(28), usize::from(word(38)).wrapping_sub(8));
    let is_default_route = header[12..15] == [0x08, 0x00, 0x45]
        && word(20) & 0x3fff == 0
        && header[23] == UDP
        && header[30..34] == local.ip().octets()
        && word(36) == local.port()
        && lengths.0 <= rest.len()
        && lengths.1 <= lengths.0;
    let from = Ipv4Addr::new(header[26], header[27], header[28], header[29]);
    is_default_route.then(|| (SocketAddr::from((from, word(34))), 42..42 + lengths.1))
}

#[inline(never)]
fn any(
    frame: &[u8],
    local: SocketAddr,
    nic: u32,
) -> Result<(SocketAddr, Range<usize>), RejectReason> {
    let (ether_type, ip) = past_vlans(frame)?;
    let packet = match (ether_type, local.ip()) {
        (0x0800, IpAddr::V4(ours)) => ipv4(frame, ip, ours)?,
        (0x86dd, IpAddr::V6(ours)) => ipv6(frame, ip, ours)?,
        (0x0800 | 0x86dd, _) => return Err(RejectReason::NotOurs),
        _ => return Err(RejectReason::OtherProtocol),
    };
    let (source, Range { start: udp, end }) = packet;
    if end - udp < 8 {
        return Err(RejectReason::BadLength);
    }
    if word(frame, udp + 2)? != local.port() {
        return Err(RejectReason::NotOurs);
    }
    let length = usize::from(word(frame, udp + 4)?);
    if length < 8 || length > end - udp {
        return Err(RejectReason::BadLength);
    }
    let port = word(frame, udp)?;
    let from = match source {
        IpAddr::V6(ip) if ip.is_unicast_link_local() => SocketAddrV6::new(ip, port, 0, nic).into(),
        ip => SocketAddr::new(ip, port),
    };
    Ok((from, udp + 8..udp + length))
}

/// EtherType of a frame after VLAN tags, and the offset of its packet.
fn past_vlans(frame: &[u8]) -> Result<(u16, usize), RejectReason> {
    let mut at = 12;
    for _ in 0..=VLAN_TAGS_MAX {
        match word(frame, at)? {
            0x8100 | 0x88a8 => at += 4,
            ether_type => return Ok((ether_type, at + 2)),
        }
    }
    Err(RejectReason::OtherProtocol)
}

/// Source and UDP part of an IPv4 packet. Bytes after the packet are Ethernet padding.
fn ipv4(frame: &[u8], at: usize, ours: Ipv4Addr) -> Result<(IpAddr, Range<usize>), RejectReason> {
    let header: [u8; 20] = array(frame, at)?;
    let header_bytes = usize::from(header[0] & 15) * 4;
    let length = usize::from(u16::from_be_bytes([header[2], header[3]]));
    if header[0] >> 4 != 4 || header_bytes < 20 || length < header_bytes {
        return Err(RejectReason::BadLength);
    }
    if length > frame.len() - at {
        return Err(RejectReason::BadLength);
    }
    // A fragment; "don't fragment" may be set.
    if u16::from_be_bytes([header[6], header[7]]) & 0x3fff != 0 {
        return Err(RejectReason::Fragment);
    }
    if header[9] != UDP {
        return Err(RejectReason::OtherProtocol);
    }
    if header[16..20] != ours.octets() {
        return Err(RejectReason::NotOurs);
    }
    let source = Ipv4Addr::new(header[12], header[13], header[14], header[15]);
    Ok((source.into(), at + header_bytes..at + length))
}

/// Source and UDP part of an IPv6 packet without extension headers.
fn ipv6(frame: &[u8], at: usize, ours: Ipv6Addr) -> Result<(IpAddr, Range<usize>), RejectReason> {
    let header: [u8; 40] = array(frame, at)?;
    let length = usize::from(u16::from_be_bytes([header[4], header[5]]));
    if header[0] >> 4 != 6 || length > frame.len() - at - 40 {
        return Err(RejectReason::BadLength);
    }
    match header[6] {
        UDP => {}
        44 => return Err(RejectReason::Fragment),
        _ => return Err(RejectReason::OtherProtocol),
    }
    if header[24..40] != ours.octets() {
        return Err(RejectReason::NotOurs);
    }
    let source: [u8; 16] = array(frame, at + 8)?;
    Ok((Ipv6Addr::from(source).into(), at + 40..at + 40 + length))
}

#[cfg(test)]
mod tests {
    use super::super::headers::{Template, header_bytes};
    use super::*;

    const NIC: u32 = 7;

    fn made(from: &str, to: &str, payload: &[u8]) -> Vec<u8> {
        let (from, to): (SocketAddr, SocketAddr) = (from.parse().unwrap(), to.parse().unwrap());
        let mut frame = vec![0; header_bytes(from.ip())];
        frame.extend_from_slice(payload);
        Template::new(from, to, [2; 6], [4; 6]).unwrap().write(&mut frame, true);
        frame
    }

    fn read(frame: &[u8], local: &str) -> Result<(String, Vec<u8>), RejectReason> {
        let (from, place) = datagram(frame, local.parse().unwrap(), NIC)?;
        Ok((from.to_string(), frame[place].to_vec()))
    }

    const V4: (&str, &str) = ("10.77.0.2:99", "10.77.0.1:4791");
    const V6: (&str, &str) = ("[fe80::2]:99", "[fe80::1]:4791");

    #[test]
    fn parsed_datagram_equals_the_sent_one() {
        let frame = made(V4.0, V4.1, b"hello");
        assert_eq!(read(&frame, V4.1), Ok((V4.0.to_owned(), b"hello".to_vec())));
        let to = V4.1.parse().unwrap();
        let usual = plain_ipv4(&frame, to).unwrap();
        assert_eq!(any(&frame, to, NIC), Ok(usual));
        let frame = made(V6.0, V6.1, b"");
        assert_eq!(read(&frame, V6.1), Ok(("[fe80::2%7]:99".to_owned(), Vec::new())));
    }

    #[test]
    fn padding_and_vlan_tags_are_skipped() {
        for (from, to) in [V4, V6] {
            let mut frame = made(from, to, b"x");
            frame.extend_from_slice(&[0xee; 17]);
            assert_eq!(read(&frame, to).unwrap().1, b"x");
            for tags in 1..=3 {
                frame.splice(12..12, [0x81, 0x00, 0x20, 0x05]);
                let expected = if tags <= 2 { Ok(()) } else { Err(RejectReason::OtherProtocol) };
                assert_eq!(read(&frame, to).map(drop), expected, "{tags} tags");
            }
        }
    }

    #[test]
    fn truncated_frame_is_rejected() {
        for (from, to) in [V4, V6] {
            let frame = made(from, to, b"hello");
            for length in 0..frame.len() {
                let why = read(&frame[..length], to).unwrap_err();
                assert!(
                    matches!(why, RejectReason::TooShort | RejectReason::BadLength),
                    "{length}: {why:?}"
                );
            }
        }
    }

    #[test]
    fn inconsistent_lengths_are_rejected() {
        for (from, to) in [V4, V6] {
            let good = made(from, to, b"hello");
            let udp_at = good.len() - 5 - 8;
            for length in [0u16, 7, 14, 15, 1000, 65_535] {
                let mut frame = good.clone();
                frame[udp_at + 4..udp_at + 6].copy_from_slice(&length.to_be_bytes());
                assert_eq!(read(&frame, to), Err(RejectReason::BadLength), "UDP length {length}");
            }
            let ip_length_at = if from == V4.0 { 16 } else { 18 };
            for length in [0u16, 7, 19, 65_535] {
                let mut frame = good.clone();
                frame[ip_length_at..ip_length_at + 2].copy_from_slice(&length.to_be_bytes());
                assert_eq!(read(&frame, to), Err(RejectReason::BadLength), "IP length {length}");
            }
        }
        let mut frame = made(V4.0, V4.1, b"hello");
        for first in [0x44, 0x4f, 0x55, 0x65] {
            frame[14] = first;
            assert_eq!(read(&frame, V4.1), Err(RejectReason::BadLength), "{first:#x}");
        }
    }

    #[test]
    fn frames_of_other_destinations_are_rejected_by_reason() {
        let frame = made(V4.0, V4.1, b"hello");
        assert_eq!(read(&frame, "10.77.0.1:4792"), Err(RejectReason::NotOurs));
        assert_eq!(read(&frame, "10.77.0.9:4791"), Err(RejectReason::NotOurs));
        assert_eq!(read(&frame, V6.1), Err(RejectReason::NotOurs));
        for (at, value, why) in [
            (20, 0x20, RejectReason::Fragment),
            (21, 0x01, RejectReason::Fragment),
            (23, 6, RejectReason::OtherProtocol),
            (13, 0x06, RejectReason::OtherProtocol),
        ] {
            let mut frame = frame.clone();
            frame[at] = value;
            assert_eq!(read(&frame, V4.1), Err(why));
        }
        let frame = made(V6.0, V6.1, b"hello");
        for (value, why) in [(44, RejectReason::Fragment), (0, RejectReason::OtherProtocol)] {
            let mut frame = frame.clone();
            frame[20] = value;
            assert_eq!(read(&frame, V6.1), Err(why));
        }
    }

    #[test]
    fn arbitrary_frames_do_not_panic() {
        let mut counts = RejectCounts::default();
        bolero::check!().with_iterations(5000).with_type::<(Vec<u8>, bool)>().for_each(
            |(bytes, is_v4)| {
                let to = if *is_v4 { V4.1 } else { V6.1 };
                // Arbitrary bytes, alone and after a valid prefix.
                let mut begun = made(if *is_v4 { V4.0 } else { V6.0 }, to, b"");
                let cut = bytes.first().map_or(0, |cut| usize::from(*cut) % begun.len());
                begun.truncate(cut);
                begun.extend_from_slice(bytes);
                for frame in [bytes, &begun] {
                    let to = to.parse().unwrap();
                    if let Some(usual) = plain_ipv4(frame, to) {
                        assert_eq!(any(frame, to, NIC), Ok(usual));
                    }
                    match datagram(frame, to, NIC) {
                        Ok((_, place)) => assert!(place.end <= frame.len()),
                        Err(why) => counts.count(why),
                    }
                }
            },
        );
        assert!(counts.total() > 0);
    }
}
