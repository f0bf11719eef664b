//! What client and daemon say to each other: packets of a `SOCK_SEQPACKET` socket of at most
//! [`REPLY_BYTES_MAX`] bytes, in the host's byte order.
//!
//! ```text
//!  0       4         6       8          12          16
//! +-------+---------+-------+----------+-----------+---------------------+
//! | magic | version | kind  | number   | number    | text (replies only) |
//! +-------+---------+-------+----------+-----------+---------------------+
//! ```
//!
//! One request has an IPv6 address, or an IPv4 one mapped, in the place of text.
//!
//! Every version keeps this header and the refusal, so that each can report a mistake to another.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use crate::Mode;

const MAGIC: [u8; 4] = *b"RRXL";
/// The version that both sides must have.
pub(crate) const VERSION: u16 = 2;
const HEADER_BYTES: usize = 16;
const ADDRESS_BYTES: usize = 16;
/// The longest request.
pub(crate) const REQUEST_BYTES_MAX: usize = HEADER_BYTES + ADDRESS_BYTES;
/// Text beyond this is cut.
const TEXT_BYTES_MAX: usize = 512;
/// The longest reply.
pub(crate) const REPLY_BYTES_MAX: usize = HEADER_BYTES + TEXT_BYTES_MAX;

/// What a client wants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Request {
    /// A socket on this NIC, for the address of the UDP socket that comes along, with rings of so
    /// many entries each.
    Ask { ifindex: u32, entries: u32 },
    /// The same for this address; the UDP socket is bound to none.
    AskFor { ifindex: u32, entries: u32, address: IpAddr },
    /// The socket is to be bound to this queue, and its datagrams are to come.
    Bind { queue: u32 },
}

/// What the daemon answers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Reply {
    /// The socket comes along.
    Offer { queues: u32, mode: Mode, nic: String },
    /// Datagrams come from now on.
    Bound { queue: u32, is_zero_copy: bool },
    /// No. After [`Code::Busy`] another queue may be asked for, after anything else nothing.
    Refused { code: Code, text: String },
    /// Datagrams come no more, and why.
    Lost { text: String },
}

/// Why not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Code {
    /// Another version of this protocol.
    Version,
    /// The user is not among those who are served.
    NotAllowed,
    /// The user has, or asks for, too many.
    Limit,
    /// Another process has the queue.
    Busy,
    /// The UDP socket, or its address.
    Address,
    /// The NIC, or the kernel.
    Nic,
    /// Violates this protocol.
    Protocol,
}

const CODES: [(u32, Code); 7] = [
    (1, Code::Version),
    (2, Code::NotAllowed),
    (3, Code::Limit),
    (4, Code::Busy),
    (5, Code::Address),
    (6, Code::Nic),
    (7, Code::Protocol),
];

const MODES: [(u32, Mode); 3] = [(0, Mode::Native), (1, Mode::Generic), (2, Mode::Offloaded)];

const ASK: u16 = 1;
const BIND: u16 = 2;
const ASK_FOR: u16 = 3;
const OFFER: u16 = 1;
const BOUND: u16 = 2;
const REFUSED: u16 = 3;
const LOST: u16 = 4;

/// What is wrong with a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Garbled {
    /// Its version, which is this one.
    Version(u16),
    /// Anything else.
    Other,
}

impl fmt::Display for Garbled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Version(other) => write!(
                f,
                "the other side speaks version {other} of the lease protocol, this one {VERSION}: \
                 use the same ringrail for ringrail-xdpd and programs"
            ),
            Self::Other => f.write_str("not a packet of the lease protocol"),
        }
    }
}

fn header(kind: u16, numbers: [u32; 2]) -> [u8; HEADER_BYTES] {
    let mut bytes = [0; HEADER_BYTES];
    bytes[..4].copy_from_slice(&MAGIC);
    bytes[4..6].copy_from_slice(&VERSION.to_ne_bytes());
    bytes[6..8].copy_from_slice(&kind.to_ne_bytes());
    bytes[8..12].copy_from_slice(&numbers[0].to_ne_bytes());
    bytes[12..].copy_from_slice(&numbers[1].to_ne_bytes());
    bytes
}

struct Header {
    version: u16,
    kind: u16,
    numbers: [u32; 2],
}

fn parse_header(packet: &[u8]) -> Result<(Header, &[u8]), Garbled> {
    let (bytes, rest) = packet.split_first_chunk::<HEADER_BYTES>().ok_or(Garbled::Other)?;
    let [m0, m1, m2, m3, v0, v1, k0, k1, a0, a1, a2, a3, b0, b1, b2, b3] = *bytes;
    if [m0, m1, m2, m3] != MAGIC {
        return Err(Garbled::Other);
    }
    let numbers = [[a0, a1, a2, a3], [b0, b1, b2, b3]].map(u32::from_ne_bytes);
    let version = u16::from_ne_bytes([v0, v1]);
    Ok((Header { version, kind: u16::from_ne_bytes([k0, k1]), numbers }, rest))
}

impl Request {
    pub(crate) fn to_bytes(self) -> Vec<u8> {
        match self {
            Self::Ask { ifindex, entries } => header(ASK, [ifindex, entries]).to_vec(),
            Self::Bind { queue } => header(BIND, [queue, 0]).to_vec(),
            Self::AskFor { ifindex, entries, address } => {
                let address = match address {
                    IpAddr::V4(v4) => v4.to_ipv6_mapped(),
                    IpAddr::V6(v6) => v6,
                };
                [header(ASK_FOR, [ifindex, entries]), address.octets()].concat()
            }
        }
    }

    pub(crate) fn from_bytes(packet: &[u8]) -> Result<Self, Garbled> {
        let (Header { version, kind, numbers }, rest) = parse_header(packet)?;
        if version != VERSION {
            return Err(Garbled::Version(version));
        }
        match (kind, numbers, rest) {
            (ASK, [ifindex, entries], []) => Ok(Self::Ask { ifindex, entries }),
            (BIND, [queue, 0], []) => Ok(Self::Bind { queue }),
            (ASK_FOR, [ifindex, entries], address) => {
                let octets: [u8; ADDRESS_BYTES] = address.try_into().map_err(|_| Garbled::Other)?;
                let address = Ipv6Addr::from(octets).to_canonical();
                Ok(Self::AskFor { ifindex, entries, address })
            }
            _ => Err(Garbled::Other),
        }
    }
}

fn number_of<T: PartialEq + Copy>(table: &[(u32, T)], value: T) -> u32 {
    table.iter().find(|(_, known)| *known == value).map_or(0, |&(number, _)| number)
}

fn value_of<T: Copy>(table: &[(u32, T)], number: u32) -> Result<T, Garbled> {
    let found = table.iter().find(|&&(known, _)| known == number);
    found.map(|&(_, value)| value).ok_or(Garbled::Other)
}

impl Reply {
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let (header, text) = match self {
            Self::Offer { queues, mode, nic } => {
                (header(OFFER, [*queues, number_of(&MODES, *mode)]), nic.as_str())
            }
            Self::Bound { queue, is_zero_copy } => {
                (header(BOUND, [*queue, u32::from(*is_zero_copy)]), "")
            }
            Self::Refused { code, text } => {
                (header(REFUSED, [number_of(&CODES, *code), 0]), text.as_str())
            }
            Self::Lost { text } => (header(LOST, [0, 0]), text.as_str()),
        };
        let mut bytes = header.to_vec();
        // A character that is cut reads as a question mark.
        bytes.extend_from_slice(&text.as_bytes()[..text.len().min(TEXT_BYTES_MAX)]);
        bytes
    }

    pub(crate) fn from_bytes(packet: &[u8]) -> Result<Self, Garbled> {
        let (Header { version, kind, numbers }, rest) = parse_header(packet)?;
        if rest.len() > TEXT_BYTES_MAX {
            return Err(Garbled::Other);
        }
        let text: String = String::from_utf8_lossy(rest)
            .chars()
            .map(|letter| if letter.is_control() { ' ' } else { letter })
            .collect();
        if kind == REFUSED {
            // Of any version; one that has other reasons means the version.
            let code = value_of(&CODES, numbers[0]).unwrap_or(Code::Version);
            return Ok(Self::Refused { code, text });
        }
        if version != VERSION {
            return Err(Garbled::Version(version));
        }
        match (kind, numbers) {
            (OFFER, [queues, mode]) => {
                Ok(Self::Offer { queues, mode: value_of(&MODES, mode)?, nic: text })
            }
            (BOUND, [queue, copying @ (0 | 1)]) => {
                Ok(Self::Bound { queue, is_zero_copy: copying == 1 })
            }
            (LOST, _) => Ok(Self::Lost { text }),
            _ => Err(Garbled::Other),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn encoded_messages_are_decoded() {
        let requests = [
            Request::Ask { ifindex: 7, entries: 64 },
            Request::Bind { queue: u32::MAX },
            Request::AskFor { ifindex: 7, entries: 64, address: [192, 0, 2, 1].into() },
            Request::AskFor { ifindex: 7, entries: 1, address: Ipv6Addr::LOCALHOST.into() },
        ];
        for request in requests {
            assert_eq!(Request::from_bytes(&request.to_bytes()), Ok(request));
        }
        let replies = [
            Reply::Offer { queues: 3, mode: Mode::Generic, nic: "eth1".into() },
            Reply::Offer { queues: 1, mode: Mode::Native, nic: String::new() },
            Reply::Bound { queue: 2, is_zero_copy: true },
            Reply::Lost { text: "gone".into() },
        ];
        for reply in replies {
            assert_eq!(Reply::from_bytes(&reply.to_bytes()), Ok(reply));
        }
        for (_, code) in CODES {
            let reply = Reply::Refused { code, text: "no".into() };
            assert_eq!(Reply::from_bytes(&reply.to_bytes()), Ok(reply));
        }
    }

    #[test]
    fn text_is_bounded_and_harmless() {
        let reply = Reply::Lost { text: "ä\u{1b}[2J".repeat(400) };
        let bytes = reply.to_bytes();
        assert_eq!(bytes.len(), REPLY_BYTES_MAX);
        let Ok(Reply::Lost { text }) = Reply::from_bytes(&bytes) else { panic!() };
        assert!(!text.contains('\u{1b}'), "{text}");
        let too_long = [&bytes[..], b"x"].concat();
        assert_eq!(Reply::from_bytes(&too_long), Err(Garbled::Other));
    }

    #[test]
    fn another_version_is_recognised() {
        let mut request = Request::Ask { ifindex: 1, entries: 64 }.to_bytes();
        request[4] = request[4].wrapping_add(1);
        assert!(matches!(Request::from_bytes(&request), Err(Garbled::Version(_))));
        let mut refusal = Reply::Refused { code: Code::Limit, text: "full".into() }.to_bytes();
        refusal[4] = refusal[4].wrapping_add(1);
        refusal[8] = 99;
        let expected = Reply::Refused { code: Code::Version, text: "full".into() };
        assert_eq!(Reply::from_bytes(&refusal), Ok(expected));
    }

    proptest! {
        #[test]
        fn anything_else_is_refused(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            // What is accepted is what would be encoded.
            if let Ok(request) = Request::from_bytes(&bytes) {
                prop_assert_eq!(&request.to_bytes()[..], &bytes[..]);
            }
            let _ = Reply::from_bytes(&bytes);
            let address = Ipv6Addr::LOCALHOST.into();
            let mut near = Request::AskFor { ifindex: 1, entries: 1, address }.to_bytes();
            near.extend_from_slice(&bytes);
            prop_assert_eq!(Request::from_bytes(&near).is_ok(), bytes.is_empty());
            let mut near = Request::Bind { queue: 1 }.to_bytes();
            near.extend_from_slice(&bytes);
            prop_assert_eq!(Request::from_bytes(&near).is_ok(), bytes.is_empty());
        }
    }
}
