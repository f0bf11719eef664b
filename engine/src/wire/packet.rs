//! What leads each datagram of a path.
//!
//! ```text
//!  0        1        2                 4                                   8
//! +--------+--------+-----------------+-----------------------------------+
//! | kind   | flags  | path            | packet number, low 32 bits        |
//! +--------+--------+-----------------+-----------------------------------+
//! | session                                                               | 8
//! +-----------------------------------------------------------------------+
//! | floor, low 32 bits, if flagged    |                                     16
//! +-----------------------------------+
//! | acknowledgement, if flagged: see [`super::ack`]                       |
//! +-----------------------------------------------------------------------+
//! | payload, up to the tag that ends the datagram                         |
//! +-----------------------------------------------------------------------+
//! ```
//!
//! Packet numbers of a path and direction start at 0, have 64 bits and are never used twice: what
//! was lost goes again under a new number. The low half travels, [`expand`] finds the rest; it can
//! because a receiver refuses what is further than 2^19 from what it expects.
//!
//! The *floor* is the oldest number that the sender still wants an answer for. A hole below it
//! stays one for good, so the receiver's cumulative acknowledgement may pass it.

use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::ack::Ack;

/// First byte of a datagram that this header leads.
pub(crate) const KIND_PACKET: u8 = 0x10;

/// An acknowledgement follows the header (and the floor).
pub(crate) const FLAG_ACK: u8 = 1;
/// A floor follows the header.
pub(crate) const FLAG_FLOOR: u8 = 2;
/// The packet wants an acknowledgement; without this it carries none but its own.
pub(crate) const FLAG_ELICITS: u8 = 4;
/// The acknowledgement is wanted without delay: a message ends here, or the window.
pub(crate) const FLAG_ACK_NOW: u8 = 8;
/// Padding in the place of payload, to learn whether a datagram of this length arrives.
pub(crate) const FLAG_MTU_PROBE: u8 = 16;
const FLAGS_KNOWN: u8 = 31;

/// Length of the fixed header, in bytes.
pub(crate) const PACKET_HEADER_BYTES: usize = 16;
/// Length of the tag at the end, in bytes.
pub(crate) const PACKET_TAG_BYTES: usize = 8;
/// Length of the floor, in bytes.
pub(crate) const FLOOR_BYTES: usize = 4;

/// The drawing above, as far as it is fixed.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct PacketHeader {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) path: U16,
    pub(crate) number: U32,
    pub(crate) session: U64,
}

const _: () = assert!(size_of::<PacketHeader>() == PACKET_HEADER_BYTES);

/// Why bytes are not a packet. The peer is at fault; the datagram is dropped and counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PacketError {
    #[error("a datagram of {0} bytes ends within its headers")]
    Truncated(usize),
    #[error("unknown datagram kind {0:#04x}")]
    UnknownKind(u8),
    #[error("flags {0:#04x} are unknown, or contradict each other")]
    BadFlags(u8),
    #[error("an acknowledgement of {windows} windows, one of {words} words")]
    BadAck { windows: u8, words: u8 },
    #[error("packet {0} is acknowledged and was never sent")]
    AckOfUnsent(u64),
    #[error("a floor ({floor}) beyond the packet ({number}) that states it")]
    FloorBeyond { floor: u64, number: u64 },
    #[error("{0} bytes of payload in a packet that wants no acknowledgement")]
    StraySegment(usize),
}

/// A packet, borrowed from the bytes of a datagram without its tag.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packet<'a> {
    /// The fixed header.
    pub(crate) header: &'a PacketHeader,
    /// Low 32 bits of the floor.
    pub(crate) floor: Option<u32>,
    /// The acknowledgement.
    pub(crate) ack: Option<Ack<'a>>,
    /// The payload of the layer above; padding in an MTU probe.
    pub(crate) payload: &'a [u8],
}

/// `path` of the first path of a session.
pub(crate) const FIRST_PATH: u16 = 0;

/// Which path and session a datagram names, if it has room for them.
#[inline]
pub(crate) fn path_and_session(datagram: &[u8]) -> Option<(u16, u64)> {
    let (header, _) = PacketHeader::ref_from_prefix(datagram).ok()?;
    Some((header.path.get(), header.session.get()))
}

impl<'a> Packet<'a> {
    /// Takes the headers apart. `bytes` is the datagram without its tag.
    ///
    /// RR-PKT-3.
    #[inline(always)]
    pub(crate) fn decode(bytes: &'a [u8]) -> Result<Self, PacketError> {
        let truncated = PacketError::Truncated(bytes.len());
        let (header, mut rest) = PacketHeader::ref_from_prefix(bytes).map_err(|_| truncated)?;
        if header.kind != KIND_PACKET {
            return Err(PacketError::UnknownKind(header.kind));
        }
        let elicits = header.flags & FLAG_ELICITS != 0;
        let needs_eliciting = header.flags & (FLAG_ACK_NOW | FLAG_MTU_PROBE) != 0;
        if header.flags & !FLAGS_KNOWN != 0 || (needs_eliciting && !elicits) {
            return Err(PacketError::BadFlags(header.flags));
        }
        let mut floor = None;
        if header.flags & FLAG_FLOOR != 0 {
            let (value, after) = U32::read_from_prefix(rest).map_err(|_| truncated)?;
            floor = Some(value.get());
            rest = after;
        }
        let mut ack = None;
        if header.flags & FLAG_ACK != 0 {
            let (value, after) = Ack::decode(rest)?;
            ack = Some(value);
            rest = after;
        }
        if !elicits && !rest.is_empty() {
            return Err(PacketError::StraySegment(rest.len()));
        }
        Ok(Self { header, floor, ack, payload: rest })
    }

    /// Whether it asks for an answer and carries nothing.
    pub(crate) fn is_probe(&self) -> bool {
        self.has(FLAG_ELICITS) && self.payload.is_empty()
    }

    /// Whether a flag is set.
    #[inline]
    pub(crate) fn has(&self, flag: u8) -> bool {
        self.header.flags & flag != 0
    }
}

/// The number nearest to `expected` whose low half is `low`. Right as long as the two are less
/// than 2^31 apart; the tag, which covers all 64 bits, fails otherwise.
#[inline]
pub(crate) fn expand(low: u32, expected: u64) -> u64 {
    let ahead = low.wrapping_sub(expected as u32).cast_signed();
    let number = expected.wrapping_add_signed(i64::from(ahead));
    // Before the first 2^31 numbers "behind" would be below zero: it can only be ahead.
    if number.cast_signed() < 0 { u64::from(low) } else { number }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn header(flags: u8) -> Vec<u8> {
        let header = PacketHeader {
            kind: KIND_PACKET,
            flags,
            path: 3.into(),
            number: 7.into(),
            session: 9.into(),
        };
        header.as_bytes().to_vec()
    }

    #[test]
    fn a_packet_comes_back() {
        let mut bytes = header(FLAG_ELICITS | FLAG_FLOOR);
        bytes.extend_from_slice(&5u32.to_le_bytes());
        bytes.extend_from_slice(b"payload");
        let packet = Packet::decode(&bytes).unwrap();
        assert_eq!((packet.header.number.get(), packet.floor), (7, Some(5)));
        assert_eq!((packet.payload, packet.ack.is_none()), (&b"payload"[..], true));
    }

    /// RR-PKT-3
    #[test]
    fn contradictions_are_named() {
        assert_eq!(Packet::decode(&[KIND_PACKET]).unwrap_err(), PacketError::Truncated(1));
        let bytes = header(FLAG_ACK_NOW);
        assert_eq!(Packet::decode(&bytes).unwrap_err(), PacketError::BadFlags(FLAG_ACK_NOW));
        let bytes = header(128);
        assert_eq!(Packet::decode(&bytes).unwrap_err(), PacketError::BadFlags(128));
        let mut bytes = header(0);
        bytes.push(1);
        assert_eq!(Packet::decode(&bytes).unwrap_err(), PacketError::StraySegment(1));
        bytes[0] = 1;
        assert_eq!(Packet::decode(&bytes).unwrap_err(), PacketError::UnknownKind(1));
        let bytes = header(FLAG_FLOOR);
        assert_eq!(Packet::decode(&bytes).unwrap_err(), PacketError::Truncated(16));
        let bytes = header(FLAG_ACK);
        assert_eq!(Packet::decode(&bytes).unwrap_err(), PacketError::Truncated(0));
    }

    proptest! {
        #[test]
        fn a_number_is_found_from_its_low_half(
            number in 0u64..1 << 62,
            away in -(1i64 << 30)..1 << 30,
        ) {
            let expected = number.saturating_add_signed(away);
            prop_assert_eq!(expand(number as u32, expected), number);
        }

        #[test]
        fn any_bytes_are_decoded_or_refused(
            bytes in proptest::collection::vec(any::<u8>(), 0..300),
            flags in 0u8..64,
        ) {
            let mut bytes = bytes;
            if bytes.len() >= 2 {
                bytes[0] = KIND_PACKET;
                bytes[1] = flags;
            }
            if let Ok(packet) = Packet::decode(&bytes) {
                let words: usize = packet.ack.map_or(0, |ack| ack.words().count());
                prop_assert!(words * 8 + packet.payload.len() < bytes.len());
            }
        }
    }
}
