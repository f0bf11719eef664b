//! Datagrams that do not belong to the session, or no longer; and those of a new path.

use zerocopy::IntoBytes;

use super::super::path::PathId;
use super::super::*;
use super::pair::*;
use crate::wire::packet::{
    FLAG_ELICITS, KIND_PACKET, PACKET_HEADER_BYTES, PACKET_TAG_BYTES, Packet, PacketError,
    PacketHeader,
};

/// Returns counters with `count` for one reason.
fn only(reason: fn(&mut Dropped) -> &mut u64, count: u64) -> Dropped {
    let mut dropped = Dropped::default();
    *reason(&mut dropped) = count;
    dropped
}

/// Returns a net whose path carries messages, and an undelivered datagram with the next one.
fn with_message() -> (Net, Datagram) {
    let mut net = one_path();
    net.run_for(5 * MILLI);
    net.send_one(OPENER);
    net.run_for(5 * MILLI);
    net.links[OPENER][0].gate = Gate::Held;
    net.send_one(OPENER);
    let datagram = net.held.pop().unwrap();
    assert!(datagram.has_payload() && net.held.is_empty());
    (net, datagram)
}

/// Checks that a datagram is dropped for this reason, without any other effect.
fn assert_dropped(net: &mut Net, bytes: &[u8], reason: fn(&mut Dropped) -> &mut u64) {
    let before = fingerprint(net, ACCEPTOR);
    let counted = net.engines[ACCEPTOR].paths.dropped();
    net.deliver_packet(ACCEPTOR, address_of(OPENER, 0), bytes);
    let mut dropped = counted;
    *reason(&mut dropped) += 1;
    assert_eq!(net.engines[ACCEPTOR].paths.dropped(), dropped);
    assert_eq!(fingerprint(net, ACCEPTOR), before);
}

/// Checks that the session continues unaffected.
fn assert_unharmed(mut net: Net, message: &Datagram) {
    net.set_gates(0, Gate::Open);
    net.deliver_packet(ACCEPTOR, message.from, &message.bytes);
    assert_eq!(net.received(ACCEPTOR).len() as u64, messages(&net, OPENER));
    net.send_one(ACCEPTOR);
    net.run_for(20 * MILLI);
    net.assert_all_received();
}

/// Returns a packet of a path with a valid tag.
fn sealed(number: u32, path: u16, seed: u8, tail: &[u8]) -> Vec<u8> {
    let (kind, path_field) = (KIND_PACKET, path.into());
    let (number, session) = (number.into(), SESSION.into());
    let header = PacketHeader { kind, flags: FLAG_ELICITS, path: path_field, number, session };
    let mut bytes = [header.as_bytes(), tail].concat();
    seal(&mut bytes, path, seed);
    bytes
}

/// Authenticates a packet of the opener of a session on a path.
fn seal(bytes: &mut Vec<u8>, path: u16, seed: u8) {
    let low = u32::from_le_bytes(bytes[4..8].try_into().unwrap());
    let length = bytes.len();
    bytes.resize(length + PACKET_TAG_BYTES, 0);
    keys_of(seed).path(path, true).send.seal_packet(bytes, length, low.into());
}

/// RR-PKT-14
#[test]
fn short_packet_or_unknown_kind_is_malformed() {
    let (mut net, message) = with_message();
    for length in 0..PACKET_HEADER_BYTES + PACKET_TAG_BYTES {
        assert_dropped(&mut net, &message.bytes[..length], |it| &mut it.malformed);
    }
    for kind in [0, KIND_PACKET - 1, KIND_PACKET + 1, 0xff] {
        let mut bytes = message.bytes[..message.bytes.len() - PACKET_TAG_BYTES].to_vec();
        bytes[0] = kind;
        seal(&mut bytes, 0, 1);
        assert_dropped(&mut net, &bytes, |it| &mut it.malformed);
    }
    assert_unharmed(net, &message);
}

/// Packets with a valid tag and invalid headers.
#[test]
fn authentic_packet_with_invalid_headers_is_malformed() {
    let (mut net, message) = with_message();
    let mut bytes = message.bytes[..message.bytes.len() - PACKET_TAG_BYTES].to_vec();
    bytes[1] = 128;
    assert_eq!(Packet::decode(&bytes).unwrap_err(), PacketError::BadFlags(128));
    seal(&mut bytes, 0, 1);
    assert_dropped(&mut net, &bytes, |it| &mut it.malformed);
    assert_unharmed(net, &message);
}

/// RR-AUTH-8, RR-PKT-14
#[test]
fn packet_with_a_wrong_tag_is_forged() {
    let (mut net, message) = with_message();
    let length = message.bytes.len();
    // All bytes except those checked before the tag: kind, path and session.
    let bytes_checked = [1, 4, 5, 6, 7].into_iter().chain(PACKET_HEADER_BYTES..length);
    for at in bytes_checked {
        let mut bytes = message.bytes.clone();
        bytes[at] ^= 1;
        assert_dropped(&mut net, &bytes, |it| &mut it.forged);
    }
    // One of its own, reflected, and one with the keys of another session.
    let own = net.packets(ACCEPTOR, 0, 0)[0].bytes.clone();
    assert_dropped(&mut net, &own, |it| &mut it.forged);
    assert_dropped(&mut net, &sealed(9, 0, 2, &[]), |it| &mut it.forged);
    assert_dropped(&mut net, &sealed(9, OTHER, 1, &[]), |it| &mut it.unknown);
    assert_unharmed(net, &message);
}

#[test]
fn packet_of_another_session_or_path_is_unknown() {
    let (mut net, message) = with_message();
    let mut other = message.bytes.clone();
    other[8] ^= 1;
    assert_dropped(&mut net, &other, |it| &mut it.unknown);
    for path in [1, 0x0100, OTHER, u16::MAX] {
        let mut other = message.bytes.clone();
        other[2..4].copy_from_slice(&path.to_le_bytes());
        assert_dropped(&mut net, &other, |it| &mut it.unknown);
        assert_dropped(&mut net, &sealed(9, path, 1, &[]), |it| &mut it.unknown);
    }
    assert_unharmed(net, &message);
}

/// RR-PKT-2
#[test]
fn duplicate_packet_counts_as_repeated() {
    let (mut net, message) = with_message();
    net.deliver_packet(ACCEPTOR, message.from, &message.bytes);
    net.turn(ACCEPTOR);
    let statistics = |net: &Net| net.engines[ACCEPTOR].path(0).packets().counters();
    let first = statistics(&net).duplicates;
    let state = |net: &Net| (net.received(ACCEPTOR), net.engines[ACCEPTOR].paths.shared.segments);
    let before = state(&net);
    let old: Vec<Vec<u8>> = net.packets(OPENER, 0, 0).iter().map(|it| it.bytes.clone()).collect();
    for bytes in &old {
        net.deliver_packet(ACCEPTOR, message.from, bytes);
    }
    assert_eq!(statistics(&net).duplicates - first, old.len() as u64);
    let expected = only(|it| &mut it.repeated, old.len() as u64);
    assert_eq!(net.engines[ACCEPTOR].paths.dropped(), expected);
    assert_eq!(state(&net), before);
    assert!(net.engines[ACCEPTOR].paths.shared.to_drain.is_empty());
    assert_eq!(net.engines[ACCEPTOR].paths.counters().dropped, old.len() as u64);
    net.links[OPENER][0].gate = Gate::Open;
    net.run_for(20 * MILLI);
    net.assert_all_received();
}

/// RR-AUTH-8
#[test]
fn packets_of_a_closed_session_are_unknown() {
    let (mut net, message) = with_message();
    net.end();
    for _ in 0..2 {
        assert_dropped(&mut net, &message.bytes, |it| &mut it.unknown);
        assert_dropped(&mut net, &sealed(900, 0, 1, &[]), |it| &mut it.unknown);
    }
}

/// RR-AUTH-8
#[test]
fn new_session_rejects_packets_of_its_predecessor() {
    for id in [SESSION + 1, SESSION] {
        let (mut net, message) = with_message();
        let slots = both(&net, |engine| engine.slots.clone());
        let old: Vec<Vec<u8>> =
            net.packets(OPENER, 0, 0).iter().map(|it| it.bytes.clone()).collect();
        net.end();
        net.set_gates(0, Gate::Open);
        net.begin(id, 2);
        assert_eq!(both(&net, |engine| engine.slots.clone()), slots, "the same slots");
        // A used number is one that is expected again.
        for round in 0..2 {
            for bytes in old.iter().chain([&message.bytes]) {
                match id {
                    SESSION => assert_dropped(&mut net, bytes, |it| &mut it.forged),
                    _ => assert_dropped(&mut net, bytes, |it| &mut it.unknown),
                }
            }
            if round == 0 {
                net.run_for(5 * MILLI);
            }
        }
        let primaries = both(&net, Engine::primary);
        assert_eq!(primaries, [Some(0); 2]);
        let began_ns = net.now_ns();
        // Nothing of the previous session is expected any more.
        let first = messages(&net, OPENER);
        for _ in 0..3 {
            net.send_one(OPENER);
            net.send_one(ACCEPTOR);
            net.run_for(MILLI);
        }
        assert!(net.packets(OPENER, 0, began_ns).iter().any(|it| it.has_payload()));
        let came = net.received_from(ACCEPTOR, first);
        assert_eq!(came, (first..first + 3).collect::<Vec<u64>>());
    }
}

// ---- New paths ----

/// RR-RAIL-2
#[test]
fn acceptor_opens_a_path_on_its_first_packet() {
    let mut net = two_rails([0; RAILS]);
    net.links[OPENER][1].gate = Gate::Held;
    net.run_for(20 * MILLI);
    let first = net.held[0].clone();
    assert_eq!((first.packet().header.path.get(), first.to), (OTHER, address_of(ACCEPTOR, 1)));
    assert_eq!(both(&net, |engine| engine.paths().count()), [2, 1]);
    // A tag of another path, or of an unknown one, does not verify.
    let mut forged = first.bytes.clone();
    forged[16] ^= 1;
    assert_dropped(&mut net, &forged, |it| &mut it.unknown);
    let low = first.bytes.len() - PACKET_TAG_BYTES;
    let mut forged = first.bytes[..low].to_vec();
    let fake = keys_of(1).path(0, true).send;
    forged.resize(low + PACKET_TAG_BYTES, 0);
    fake.seal_packet(&mut forged, low, 0);
    assert_dropped(&mut net, &forged, |it| &mut it.unknown);
    // Paths of unknown rails are rejected, even if authentic.
    for path in [0x0100 | 7, 0x0701, 0x0202] {
        assert_dropped(&mut net, &sealed(0, path, 1, &[]), |it| &mut it.unknown);
    }
    let now_ns = net.now_ns();
    net.deliver_packet(ACCEPTOR, first.from, &first.bytes);
    assert_eq!(net.engines[ACCEPTOR].paths().count(), 2);
    let met = net.engines[ACCEPTOR].path(OTHER);
    let id = PathId { session: SESSION, number: OTHER, rail: 1, at: 1 };
    assert_eq!((met.id(), met.remote(), met.is_held()), (id, address_of(OPENER, 1), true));
    assert_eq!(met.highest(), 0);
    assert_eq!(net.engines[ACCEPTOR].paths.shared.standing_by, 1);
    // It answers, and probes.
    net.set_gates(1, Gate::Open);
    net.run_for(5 * MILLI);
    assert!(!net.packets(ACCEPTOR, 1, now_ns).is_empty());
    for engine in &net.engines {
        assert!(engine.paths().all().all(SessionPath::is_active), "{:?}", engine.paths());
    }
}

/// RR-RAIL-2
#[test]
fn path_is_not_opened_before_rails_are_announced() {
    let mut net = Net::with_rails(&[0; RAILS]);
    net.begin(SESSION, 1);
    // The peer's announcement of its rails is still in transit.
    assert_dropped(&mut net, &sealed(0, OTHER, 1, &[]), |it| &mut it.unknown);
    net.run_for(20 * MILLI);
    assert_eq!(net.engines[ACCEPTOR].paths().count(), 2);
}

/// RR-RAIL-2
#[test]
fn opener_opens_no_path_on_packets() {
    let mut net = two_rails([0; RAILS]);
    net.run_for(20 * MILLI);
    let opener = &net.engines[OPENER];
    let before = (opener.paths().count(), opener.paths.dropped().unknown);
    for path in [0x0001, 0x0100] {
        let mut bytes = sealed(0, path, 1, &[]);
        let length = bytes.len() - PACKET_TAG_BYTES;
        keys_of(1).path(path, false).send.seal_packet(&mut bytes, length, 0);
        net.deliver_packet(OPENER, address_of(ACCEPTOR, 1), &bytes);
    }
    let opener = &net.engines[OPENER];
    assert_eq!((opener.paths().count(), opener.paths.dropped().unknown), (before.0, before.1 + 2));
}

/// RR-PKT-14
#[test]
fn packet_of_one_path_is_rejected_on_another() {
    let mut net = two_paths([0; RAILS]);
    net.links[OPENER][0].gate = Gate::Held;
    net.send_one(OPENER);
    let message = net.held.pop().unwrap();
    let mut other = message.bytes.clone();
    other[2..4].copy_from_slice(&OTHER.to_le_bytes());
    assert_dropped(&mut net, &other, |it| &mut it.forged);
    assert_unharmed(net, &message);
}
