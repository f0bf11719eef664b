//! Hashes of the bytes that engines send, to verify that a change of the code did not change them.
//!
//! Each channel has a hash of its own, of the bytes its sender sent, in order: a path of a session,
//! a ring of a session, and either direction of a connection. The hash of a run depends neither on
//! the order among channels nor on time: not on when something was sent, and not on the
//! acknowledgement delay, the only time in packets.
//!
//! Duplicates made by the network, and bytes not sent by engines, are excluded.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::mem::offset_of;

use highway::{HighwayHash, HighwayHasher, Key};
use zerocopy::IntoBytes;

use super::connection::ConnectionName;
use super::host::ProcessName;
use super::local_peers::Kind;
use crate::wire::ack::AckHeader;
use crate::wire::packet::{FLOOR_BYTES, PACKET_HEADER_BYTES, PACKET_TAG_BYTES, Packet};

/// An ordered channel, and its sender.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Channel {
    Path { sender: ProcessName, session: u64, path: u16 },
    Ring { sender: ProcessName, session: u64 },
    Connection { name: ConnectionName, side: usize },
}

impl Channel {
    /// A unique encoding as numbers.
    fn words(&self) -> [u64; 6] {
        let of = |ProcessName { host, process }| [host as u64, u64::from(process)];
        match *self {
            Self::Path { sender, session, path } => {
                let [host, process] = of(sender);
                [0, host, process, session, path.into(), 0]
            }
            Self::Ring { sender, session } => {
                let [host, process] = of(sender);
                [1, host, process, session, 0, 0]
            }
            Self::Connection { name, side } => {
                let [host, process] = of(name.process);
                [2, host, process, name.is_visit.into(), name.number, side as u64]
            }
        }
    }
}

/// See the module.
#[derive(Default, Debug)]
pub(super) struct WireHashes {
    channels: BTreeMap<Channel, HighwayHasher>,
    log: Option<BufWriter<File>>,
}

impl WireHashes {
    /// Logs everything sent from now on, one line each.
    pub(super) fn log_to(&mut self, file: File) {
        self.log = Some(BufWriter::new(file));
    }

    /// The hash of everything sent.
    pub(super) fn total(&self) -> u64 {
        let hash_of = |(channel, hasher): (&Channel, &HighwayHasher)| {
            let mut whole = new_hasher();
            whole.append(channel.words().as_bytes());
            whole.append(&hasher.clone().finalize64().to_le_bytes());
            whole.finalize64()
        };
        self.channels.iter().map(hash_of).fold(0, u64::wrapping_add)
    }

    /// Adds bytes of a stream, split in any way.
    pub(super) fn add_stream(&mut self, channel: Channel, bytes: &[u8]) {
        self.add(channel, &[bytes]);
    }

    /// Adds a packet that `sender` sends as a datagram.
    pub(super) fn add_datagram(&mut self, sender: ProcessName, datagram: &[u8]) {
        let content = without_tag(datagram);
        let packet = Packet::decode(content).ok();
        let place = packet.map(|it| (it.header.session.get(), it.header.path.get()));
        let (session, path) = place.unwrap_or_default();
        let length = (content.len() as u32).to_le_bytes();
        let [before, time, after] = without_time(content);
        self.add(Channel::Path { sender, session, path }, &[&length, before, time, after]);
    }

    /// Adds an entry that `sender` writes into the ring of a session.
    pub(super) fn add_to_ring(
        &mut self,
        sender: ProcessName,
        session: u64,
        kind: &Kind,
        bytes: &[u8],
    ) {
        let channel = Channel::Ring { sender, session };
        let mut numbers = [0; 6];
        let (number, header, content) = match kind {
            Kind::Packet => (0, &[][..], without_tag(bytes)),
            Kind::Segment => (1, &[][..], bytes),
            Kind::Frames(range, _) => {
                numbers[..4].copy_from_slice(&range.first.to_le_bytes());
                numbers[4..].copy_from_slice(&range.count.to_le_bytes());
                (3, &numbers[..], bytes)
            }
            Kind::Piece(header) => (2, header.as_bytes(), bytes),
        };
        let [before, time, after] = match kind {
            Kind::Packet => without_time(content),
            _ => [content, &[], &[]],
        };
        let length = (content.len() as u32).to_le_bytes();
        self.add(channel, &[&[number], &length, header, before, time, after]);
    }

    fn add(&mut self, channel: Channel, parts: &[&[u8]]) {
        let hasher = self.channels.entry(channel).or_insert_with(new_hasher);
        parts.iter().for_each(|part| hasher.append(part));
        if let Some(log) = &mut self.log {
            let length: usize = parts.iter().map(|part| part.len()).sum();
            let hash = hasher.clone().finalize64();
            let mut line = format!("{} {length} {hash:016x} ", name_of(&channel));
            for byte in parts.iter().copied().flatten() {
                let _ = write!(line, "{byte:02x}");
            }
            // A truncated log is obvious.
            let _ = writeln!(log, "{line}");
        }
    }
}

/// The same in every process and on every machine.
fn new_hasher() -> HighwayHasher {
    HighwayHasher::new(Key([1, 2, 3, 4]))
}

/// The start of a log line.
fn name_of(channel: &Channel) -> String {
    let of = |ProcessName { host, process }| format!("host {host} process {process}");
    match *channel {
        Channel::Path { sender, session, path } => {
            format!("{} session {session:016x} path {path}", of(sender))
        }
        Channel::Ring { sender, session } => format!("{} session {session:016x} ring", of(sender)),
        Channel::Connection { name: ConnectionName { process, is_visit, number }, side } => {
            let kind = if is_visit { "visit" } else { "connection" };
            format!("{} {kind} {number} side {side}", of(process))
        }
    }
}

/// A packet without its tag, which is a hash of the rest, including the delay.
fn without_tag(datagram: &[u8]) -> &[u8] {
    &datagram[..datagram.len().saturating_sub(PACKET_TAG_BYTES)]
}

/// A packet in parts, with zeros instead of the delay.
fn without_time(packet: &[u8]) -> [&[u8]; 3] {
    const ZEROS: [u8; 2] = [0; 2];
    match Packet::decode(packet) {
        Ok(Packet { floor, ack: Some(_), .. }) => {
            let floor_bytes = if floor.is_some() { FLOOR_BYTES } else { 0 };
            let at = PACKET_HEADER_BYTES + floor_bytes + offset_of!(AckHeader, delay);
            [&packet[..at], &ZEROS, &packet[at + ZEROS.len()..]]
        }
        _ => [packet, &[], &[]],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::ack::{ACK_BYTES_MAX, AckWriter};
    use crate::wire::packet::{FLAG_ACK, FLAG_ELICITS, FLAG_FLOOR, KIND_PACKET, PacketHeader};

    const SENDER: ProcessName = ProcessName { host: 1, process: 2 };

    /// A datagram with an acknowledgement of that delay, and any tag.
    fn datagram(session: u64, delay_ns: u64, payload: &[u8], tag: u8) -> Vec<u8> {
        let (flags, path, number) = (FLAG_ACK | FLAG_FLOOR | FLAG_ELICITS, 3.into(), 7.into());
        let header =
            PacketHeader { kind: KIND_PACKET, flags, path, number, session: session.into() };
        let mut ack = [0; ACK_BYTES_MAX];
        let ack_bytes = AckWriter::new(&mut ack, 5, delay_ns).finish();
        let floor = [4, 0, 0, 0];
        let parts = [header.as_bytes(), &floor, &ack[..ack_bytes], payload, &[tag; 8]];
        parts.concat()
    }

    fn hash(add: impl FnOnce(&mut WireHashes)) -> u64 {
        let mut hashes = WireHashes::default();
        add(&mut hashes);
        hashes.total()
    }

    fn stream(number: u64) -> Channel {
        let name = ConnectionName { process: SENDER, is_visit: false, number };
        Channel::Connection { name, side: 0 }
    }

    #[test]
    fn acknowledgement_delay_and_tag_are_excluded() {
        let of = |delay_ns, payload: &[u8], tag| {
            let datagram = datagram(9, delay_ns, payload, tag);
            hash(|it| it.add_datagram(SENDER, &datagram))
        };
        let one = of(1000, b"payload", 0);
        assert_eq!(one, of(77_000, b"payload", 0));
        assert_eq!(one, of(u64::MAX, b"payload", 3));
        assert_ne!(one, of(1000, b"Payload", 0));
        assert_ne!(one, of(1000, b"payloa", 0));
    }

    #[test]
    fn every_other_byte_is_included() {
        let whole = datagram(9, 0, b"payload", 0);
        let one = hash(|it| it.add_datagram(SENDER, &whole));
        let delay = PACKET_HEADER_BYTES + FLOOR_BYTES + 4;
        for at in 0..whole.len() - PACKET_TAG_BYTES {
            let mut other = whole.clone();
            other[at] ^= 0x80;
            let is_same = hash(|it| it.add_datagram(SENDER, &other)) == one;
            assert_eq!(is_same, (delay..delay + 2).contains(&at), "byte {at}");
        }
    }

    #[test]
    fn packet_in_a_ring_hashes_like_a_datagram() {
        let of = |delay_ns, kind, tag| {
            let datagram = datagram(9, delay_ns, b"payload", tag);
            hash(|it| it.add_to_ring(SENDER, 9, &kind, &datagram))
        };
        assert_eq!(of(0, Kind::Packet, 0), of(5000, Kind::Packet, 1));
        assert_ne!(of(0, Kind::Segment, 0), of(5000, Kind::Segment, 0));
        assert_ne!(of(0, Kind::Segment, 0), of(0, Kind::Packet, 0));
    }

    #[test]
    fn stream_hash_ignores_the_split_into_writes() {
        let bytes: Vec<u8> = (0..200).collect();
        let in_pieces = |length| {
            hash(|it| bytes.chunks(length).for_each(|part| it.add_stream(stream(0), part)))
        };
        assert!((1..200).all(|length| in_pieces(length) == in_pieces(200)));
        let of = |sent: &[&[u8]]| {
            let kind = Kind::Segment;
            hash(|it| sent.iter().for_each(|part| it.add_to_ring(SENDER, 9, &kind, part)))
        };
        assert_ne!(of(&[b"ab", b"c"]), of(&[b"a", b"bc"]));
    }

    #[test]
    fn order_matters_within_a_channel_only() {
        let datagrams = [datagram(1, 0, b"a", 0), datagram(1, 0, b"b", 0), datagram(2, 0, b"a", 0)];
        let of = |order: [usize; 3]| {
            hash(|it| order.iter().for_each(|&at| it.add_datagram(SENDER, &datagrams[at])))
        };
        assert_eq!(of([0, 1, 2]), of([2, 0, 1]));
        assert_eq!(of([0, 1, 2]), of([0, 2, 1]));
        assert_ne!(of([0, 1, 2]), of([1, 0, 2]));
        let streams = |order: [u64; 2]| {
            hash(|it| order.iter().for_each(|&at| it.add_stream(stream(at), &[at as u8])))
        };
        assert_eq!(streams([0, 1]), streams([1, 0]));
    }

    #[test]
    fn equal_bytes_on_other_channels_hash_differently() {
        let other = ProcessName { host: 2, process: 1 };
        let datagram = datagram(9, 0, b"payload", 0);
        let one = hash(|it| it.add_datagram(SENDER, &datagram));
        assert_ne!(one, hash(|it| it.add_datagram(other, &datagram)));
        let both = |first: Channel, second: Channel| {
            hash(|it| {
                it.add_stream(first, b"first");
                it.add_stream(second, b"second");
            })
        };
        assert_ne!(both(stream(0), stream(1)), both(stream(1), stream(0)));
    }

    /// Hashes in files are useless if the hash function changes.
    #[test]
    fn hash_value_is_stable() {
        let total = hash(|it| it.add_stream(stream(0), b"bytes"));
        assert_eq!(total, 0xbf87_078f_97bd_7a83);
    }
}
