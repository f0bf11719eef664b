//! Messages on the stream whose payload is received into the memory of their receive.

use zerocopy::IntoBytes;

use super::super::{Beginning, PlacedMessage};
use super::*;
use crate::proto::core::Core;
use crate::proto::effects::Arrival;
use crate::proto::matching::OperationSlot;
use crate::proto::sim;
use crate::proto::table::Id;
use crate::wire::eager::{EAGER_HEADER_BYTES, FLAG_DATA};
use crate::wire::{EAGER_BYTES_MAX, Eager, FrameError, SEGMENT_BYTES_MAX, frame};

const LENGTH: usize = 10_000;
const DATA: u64 = 0x0102_0304_0506_0708;
/// Bytes of a message's segment before its payload, without remote data.
const HEAD: usize = SEGMENT_HEADER_BYTES + EAGER_HEADER_BYTES;
/// Bytes that have arrived when the receive is searched.
const BEGUN: usize = HEAD + 1000;

/// Windows in which the longest frame fits.
fn roomy() -> Config {
    Config {
        eager_limit: 70_000,
        eager_credit_bytes: 300_000,
        unexpected_bytes: 3_000_000,
        staging_bytes: 1 << 16,
        staging_buffers_max: 16,
        ..Config::for_tests()
    }
}

fn net() -> Net {
    Net::new(2, &roomy(), CONTENT, 1)
}

fn payload(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 7 + at / 256) as u8).collect()
}

/// Returns the segment of a message with this header, which has so many bytes.
fn segment_of(first: u32, header: &Eager, data: Option<u64>, length: usize) -> Vec<u8> {
    let data: Vec<u8> = data.iter().flat_map(|data| data.to_le_bytes()).collect();
    segment(first, 0, &[[header.as_bytes(), &data, &payload(length)].concat()])
}

/// Returns the segment of a message of [`LENGTH`] bytes.
fn message(first: u32, data: Option<u64>) -> Vec<u8> {
    let flags = if data.is_some() { FLAG_DATA } else { 0 };
    segment_of(first, &Eager { flags, ..sim::eager(LENGTH as u32) }, data, LENGTH)
}

/// Searches the receive of a message of which these bytes have arrived at engine 1.
fn find(net: &mut Net, bytes: &[u8]) -> Option<PlacedMessage> {
    let slot = net.engines[1].slots[&0];
    match net.engines[1].core.find_receive(slot, bytes) {
        Some(Beginning::Placed(message)) => Some(message),
        Some(Beginning::AlmostWhole) | None => None,
    }
}

/// Returns whether the receive of a message is posted.
fn is_receive_posted(core: &Core, message: &PlacedMessage) -> bool {
    let receive = core.shared.operations.slots.get(message.receive());
    receive.is_some_and(OperationSlot::is_posted)
}

/// Handles a message whose payload is in the memory of its receive.
fn handle_placed(
    net: &mut Net,
    message: &PlacedMessage,
) -> Result<Option<(Id, Arrival)>, FrameError> {
    let now_ns = net.now_ns();
    let there = &mut net.engines[1];
    there.core.handle_placed(there.slots[&0], message, now_ns, &mut there.memory)
}

/// Handles the bytes of the stream by the general path.
fn handle_bytes(net: &mut Net, bytes: &[u8]) -> Result<usize, FrameError> {
    let now_ns = net.now_ns();
    let there = &mut net.engines[1];
    there.core.handle_bytes(there.slots[&0], bytes, now_ns, &mut there.memory)
}

/// Returns what a message may change at engine 1.
fn state(net: &Net) -> impl PartialEq + std::fmt::Debug + use<> {
    let there = &net.engines[1];
    let (core, segments) = (&there.core, &there.core.session(0).unwrap().segments);
    let credits = segments.receive_credits();
    let posted = core.shared.operations.slots.iter().filter(|(_, slot)| slot.is_posted());
    (
        format!("{:?}", core.shared().counters()),
        (segments.expected_frame(), segments.unacknowledged_bytes()),
        (credits.left(), credits.both().map(ReceiveCredit::held)),
        (core.shared.operations.len(), core.shared.unexpected.held_bytes().0),
        (posted.map(|(id, _)| id.to_u64()).collect::<Vec<_>>(), there.memory.ended.len()),
    )
}

/// Checks that no receive is found for the beginning of a message, and that nothing changes.
fn refuses(net: &mut Net, bytes: &[u8], what: &str) {
    let before = state(net);
    assert!(find(net, bytes).is_none(), "{what}");
    assert_eq!(state(net), before, "{what}");
}

fn is_posted(net: &Net, id: Id) -> bool {
    let slot = net.engines[1].core.shared.operations.slots.get(id);
    slot.is_some_and(|slot| slot.is_posted())
}

/// Returns what engine 1 answers when it is asked to acknowledge.
fn answer(net: &mut Net) -> Vec<Vec<u8>> {
    net.engines[1].core.poll_acknowledgements(0, true);
    net.capture(1, 0).into_iter().map(|(_, bytes)| bytes).collect()
}

/// RR-DGRAM-1, RR-CREDIT-1, RR-MATCH-3
#[test]
fn message_in_its_receive_is_handled_as_by_the_general_path() {
    for data in [None, Some(DATA), Some(0)] {
        for capacity in [LENGTH, LENGTH + 1] {
            let [mut placed, mut general] = [net(), net()];
            let both = [&mut placed, &mut general];
            let [receive, other] = both.map(|it| it.receive_of(flow(5), capacity));
            let bytes = message(0, data);
            let before = state(&placed);
            let found = find(&mut placed, &bytes[..BEGUN]).expect("it has a receive");
            assert_eq!(state(&placed), before, "it stays posted");
            let head = bytes.len() - LENGTH;
            assert_eq!((found.receive(), found.length()), (receive, LENGTH));
            assert_eq!(found.head(), &bytes[..head]);
            let core = &placed.engines[1].core;
            assert!(core.is_next(0, &found) && is_receive_posted(core, &found));
            let handled = handle_placed(&mut placed, &found).unwrap();
            let (matched, arrival) = handled.expect("it is the next");
            assert_eq!(matched, receive);
            assert_eq!((arrival.length, arrival.data), (LENGTH as u64, data));
            assert_eq!(arrival.peer, placed.engines[1].peers[&(0, 0)]);
            assert!(!is_posted(&placed, receive));
            let core = &placed.engines[1].core;
            assert!(!core.is_next(0, &found) && !is_receive_posted(core, &found));
            // As by the general path, which also ends the receive.
            assert_eq!(handle_bytes(&mut general, &bytes), Ok(bytes.len()));
            assert_eq!(general.end_of(1, other), Some(&Ended::Received(arrival)));
            general.engines[1].memory.ended.clear();
            assert_eq!(state(&placed), state(&general));
            assert_eq!(answer(&mut placed), answer(&mut general));
            // It is handled once.
            let before = state(&placed);
            assert_eq!(handle_placed(&mut placed, &found), Ok(None));
            assert_eq!(state(&placed), before);
            assert!(find(&mut placed, &bytes[..BEGUN]).is_none());
        }
    }
}

#[test]
fn receive_is_found_once_the_head_has_arrived_and_while_much_is_missing() {
    for data in [None, Some(DATA)] {
        let mut net = net();
        let receive = net.receive_of(flow(5), LENGTH);
        let bytes = message(0, data);
        let head = bytes.len() - LENGTH;
        let found: Vec<usize> =
            (0..=bytes.len()).filter(|&begun| find(&mut net, &bytes[..begun]).is_some()).collect();
        let expected: Vec<usize> = (head..=bytes.len() - (8 << 10)).collect();
        assert!(found == expected, "{:?} to {:?}", found.first(), found.last());
        refuses(&mut net, &[&bytes[..], &bytes].concat(), "several segments");
        assert!(is_posted(&net, receive));
    }
}

/// RR-SEG-1, RR-DGRAM-1
#[test]
fn segment_with_a_hostile_header_is_left_to_the_general_path() {
    let valid = message(0, None);
    let length = valid.len() as u32;
    let changed = |at: usize, field: &[u8]| {
        let mut bytes = valid[..BEGUN].to_vec();
        bytes[at..at + field.len()].copy_from_slice(field);
        bytes
    };
    // At 0 the length, at 4 the number of frames, at 8 the first frame.
    assert_eq!(header_of(&changed(0, &7_u32.to_le_bytes())).length.get(), 7);
    assert_eq!(header_of(&changed(4, &7_u16.to_le_bytes())).frames.get(), 7);
    assert_eq!(header_of(&changed(8, &7_u32.to_le_bytes())).first_frame.get(), 7);
    let mut net = net();
    net.receive_of(flow(5), 1 << 20);
    let longest = SEGMENT_BYTES_MAX as u32;
    for other in [0, 1, 23, 24, 55, 56, length - 1, length + 1, longest, longest + 1, u32::MAX] {
        refuses(&mut net, &changed(0, &other.to_le_bytes()), &format!("length {other}"));
    }
    for frames in [0_u16, 2, 3, u16::MAX] {
        refuses(&mut net, &changed(4, &frames.to_le_bytes()), &format!("{frames} frames"));
    }
    for first in [1_u32, 2, u32::MAX] {
        refuses(&mut net, &changed(8, &first.to_le_bytes()), &format!("frame {first}"));
    }
    assert!(find(&mut net, &valid[..BEGUN]).is_some());
}

/// RR-SEG-1, RR-CREDIT-1
#[test]
fn message_with_a_hostile_header_is_left_to_the_general_path() {
    let plain = sim::eager(LENGTH as u32);
    let mut net = net();
    net.receive_of(flow(5), 1 << 20);
    let mut refuse = |header: Eager, length: usize| {
        let bytes = segment_of(0, &header, None, length);
        refuses(&mut net, &bytes[..BEGUN], &format!("{header:?}"));
    };
    for kind in (0..=u8::MAX).filter(|&kind| kind != frame::KIND_EAGER) {
        refuse(Eager { kind, ..plain }, LENGTH);
    }
    let announced = LENGTH as u32;
    for other in [0, 1, announced - 8, announced - 1, announced + 1, 1 << 31, u32::MAX] {
        refuse(Eager { length: other.into(), ..plain }, LENGTH);
    }
    // The payload of a message with remote data is shorter by that.
    refuse(Eager { flags: FLAG_DATA, ..plain }, LENGTH);
    for operation in [1, u64::MAX] {
        refuse(Eager { operation: operation.into(), ..plain }, LENGTH);
    }
    let longest = EAGER_BYTES_MAX + 1;
    refuse(sim::eager(longest as u32), longest);
    for endpoint in [sim::ENDPOINTS, 64, u16::MAX] {
        refuse(Eager { target_endpoint: endpoint.into(), ..plain }, LENGTH);
        refuse(Eager { source_endpoint: endpoint.into(), ..plain }, LENGTH);
    }
    refuse(Eager { source_endpoint: 1.into(), ..plain }, LENGTH);
    refuse(Eager { target_endpoint: 1.into(), ..plain }, LENGTH);
    refuse(Eager { context: 6.into(), ..plain }, LENGTH);
    let valid = segment_of(0, &sim::eager(EAGER_BYTES_MAX as u32), None, EAGER_BYTES_MAX);
    assert!(find(&mut net, &valid[..BEGUN]).is_some());
}

/// RR-CREDIT-1
#[test]
fn message_beyond_the_credit_has_no_receive() {
    let short = Config { eager_limit: 3000, eager_credit_bytes: LENGTH as u32, ..roomy() };
    let few = Config { envelope_credits: 2, ..roomy() };
    for (config, messages) in [(short, 1), (few, 2)] {
        let mut net = Net::new(2, &config, CONTENT, 1);
        net.receive_of(flow(5), LENGTH);
        let bytes = message(messages, None);
        for first in 0..messages {
            assert!(find(&mut net, &message(first, None)[..BEGUN]).is_some());
            let header = Eager { context: 6.into(), ..sim::eager(1) };
            handle_bytes(&mut net, &segment_of(first, &header, None, 1)).unwrap();
        }
        refuses(&mut net, &bytes[..BEGUN], "no credit");
    }
}

/// RR-SUM-1
#[test]
fn message_with_a_checksum_has_no_receive() {
    let mut net = net();
    net.receive_of(flow(5), LENGTH);
    net.engines[1].core.with(0, |it, _| it.segments_mut().set_checksums(true));
    refuses(&mut net, &message(0, None)[..BEGUN], "it is not checked before it is whole");
}

/// RR-MATCH-2
#[test]
fn only_a_receive_of_one_peer_that_takes_it_whole_is_found() {
    let bytes = message(0, None);
    let mut net = net();
    refuses(&mut net, &bytes[..BEGUN], "none is posted");
    net.receive_of(flow(6), LENGTH);
    refuses(&mut net, &bytes[..BEGUN], "another context");
    net.receive((1, 0), Some((0, 1)), 5, LENGTH);
    refuses(&mut net, &bytes[..BEGUN], "another source");
    net.receive_of(Flow { target: 1, ..flow(5) }, LENGTH);
    refuses(&mut net, &bytes[..BEGUN], "another endpoint");
    for (source, capacity) in [(None, LENGTH), (Some((0, 0)), LENGTH - 1), (Some((0, 0)), 0)] {
        let mut net = self::net();
        net.receive((1, 0), source, 5, capacity);
        // It is older than this one.
        net.receive_of(flow(5), LENGTH);
        refuses(&mut net, &bytes[..BEGUN], &format!("{source:?}, {capacity} bytes"));
    }
}

/// RR-DGRAM-4
#[test]
fn message_after_an_early_one_is_left_to_the_general_path() {
    for is_found in [false, true] {
        let mut net = net();
        let receive = net.receive_of(flow(5), LENGTH);
        let other = net.receive_of(flow(6), 8);
        let bytes = message(0, None);
        let found = is_found.then(|| find(&mut net, &bytes[..BEGUN]).unwrap());
        // It follows none, and is delivered at once; frame 0 is missing.
        let header = Eager { context: 6.into(), ..sim::eager(8) };
        net.deliver(0, 1, &segment_of(1, &header, None, 8)).unwrap();
        assert!(net.end_of(1, other).is_some());
        refuses(&mut net, &bytes[..BEGUN], "a later frame has arrived");
        if let Some(found) = found {
            let before = state(&net);
            assert_eq!(handle_placed(&mut net, &found), Ok(None));
            assert_eq!(state(&net), before);
            let core = &net.engines[1].core;
            assert!(core.is_next(0, &found) && is_receive_posted(core, &found));
        }
        assert_eq!(handle_bytes(&mut net, &bytes), Ok(bytes.len()));
        assert!(matches!(net.end_of(1, receive), Some(Ended::Received(_))));
        assert_eq!(net.engines[1].core.session(0).unwrap().segments.expected_frame(), 2);
    }
}

/// RR-DGRAM-1
#[test]
fn message_that_has_arrived_in_another_way_is_not_the_next() {
    let mut net = net();
    let receives = [net.receive_of(flow(5), LENGTH), net.receive_of(flow(5), LENGTH)];
    let bytes = message(0, None);
    let found = find(&mut net, &bytes[..BEGUN]).unwrap();
    net.deliver(0, 1, &bytes).unwrap();
    assert!(net.end_of(1, receives[0]).is_some());
    let core = &net.engines[1].core;
    assert!(!core.is_next(0, &found) && !is_receive_posted(core, &found));
    let before = state(&net);
    assert_eq!(handle_placed(&mut net, &found), Ok(None));
    assert_eq!(state(&net), before);
    // The general path drops it.
    assert_eq!(handle_bytes(&mut net, &bytes), Ok(bytes.len()));
    assert!(net.end_of(1, receives[1]).is_none());
}

#[test]
fn message_whose_receive_has_ended_is_taken_by_another() {
    let mut net = net();
    let receive = net.receive_of(flow(5), LENGTH);
    let found = find(&mut net, &message(0, None)[..BEGUN]).unwrap();
    let there = &mut net.engines[1];
    assert!(there.core.shared_mut().cancel_receive(receive, &mut there.memory));
    // Another receive has its slot.
    let other = net.receive_of(flow(5), LENGTH);
    assert_eq!(other.index(), receive.index());
    let core = &net.engines[1].core;
    assert!(core.is_next(0, &found) && !is_receive_posted(core, &found));
    let matched = handle_placed(&mut net, &found).unwrap().map(|(matched, _)| matched);
    assert_eq!(matched, Some(other));
}

/// RR-END-2
#[test]
fn message_of_a_session_that_has_ended_is_not_the_next() {
    let mut net = net();
    net.receive_of(flow(5), LENGTH);
    let bytes = message(0, None);
    let found = find(&mut net, &bytes[..BEGUN]).unwrap();
    let there = &mut net.engines[1];
    there.core.fail_session(0, PeerFailure::Removed, &mut there.memory);
    assert!(!there.core.is_next(0, &found) && !is_receive_posted(&there.core, &found));
    assert_eq!(handle_placed(&mut net, &found), Ok(None));
    assert!(find(&mut net, &bytes[..BEGUN]).is_none());
}
