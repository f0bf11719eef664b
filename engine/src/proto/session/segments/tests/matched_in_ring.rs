//! Messages that are matched in a ring, before their payload is copied.

use zerocopy::{FromZeros, IntoBytes};

use super::*;
use crate::proto::effects::Arrival;
use crate::proto::sim::{self, RingEntry};
use crate::proto::table::Id;
use crate::wire::eager::FLAG_DATA;
use crate::wire::frame_range::{RingHead, RingMessage};
use crate::wire::one_sided::OneSided;
use crate::wire::{Eager, FrameError, FrameRange, frame};

const LENGTH: usize = 1000;
const DATA: u64 = 0x0102_0304_0506_0708;
const NEXT: FrameRange = FrameRange { first: 0, count: 1 };

fn net() -> Net {
    let mut net = Net::new(2, &config(), 2048, 1);
    for engine in &mut net.engines {
        assert_eq!(engine.core.with(0, |it, cx| it.use_ring(cx, Some(7), Some(&[]))), Some(true));
    }
    // What was announced before.
    for (from, to) in [(0, 1), (1, 0)] {
        for entry in net.write_ring(from, to) {
            net.read_ring(from, to, &entry);
        }
    }
    net
}

/// Returns a message of [`LENGTH`] bytes whose header announces another length, maybe.
fn message(data: Option<u64>, announced: usize) -> Vec<u8> {
    let flags = if data.is_some() { FLAG_DATA } else { 0 };
    let header = Eager { flags, ..sim::eager(announced as u32) };
    let payload: Vec<u8> = (0..LENGTH).map(|at| at as u8).collect();
    let data: Vec<u8> = data.iter().flat_map(|data| data.to_le_bytes()).collect();
    [header.as_bytes(), &data, &payload].concat()
}

fn head_of(data: Option<u64>) -> RingHead {
    if data.is_some() { RingHead::HeaderAndData } else { RingHead::Header }
}

/// Matches a frame that the ring to engine 1 contains.
fn match_in_ring(
    net: &mut Net,
    range: FrameRange,
    head: RingHead,
    frame: &[u8],
) -> Result<Option<(Id, usize, Arrival)>, FrameError> {
    let message = RingMessage::new(range, head, frame, frame.len()).unwrap();
    let now_ns = net.now_ns();
    let slot = net.engines[1].slots[&0];
    net.engines[1].core.match_in_ring(slot, &message, now_ns)
}

/// Handles a frame by the general path.
fn handle(net: &mut Net, range: FrameRange, frame: &[u8]) -> Result<(), FrameError> {
    let now_ns = net.now_ns();
    let there = &mut net.engines[1];
    let slot = there.slots[&0];
    there.core.handle_ring_frames(slot, (range, frame), now_ns, &mut there.memory)
}

/// Returns what a message may change at engine 1.
fn state(net: &Net) -> impl PartialEq + std::fmt::Debug + use<> {
    let core = &net.engines[1].core;
    let segments = &core.session(0).unwrap().segments;
    let credits = segments.receive_credits();
    (
        format!("{:?}", core.shared().counters()),
        (segments.expected_frame(), credits.left(), credits.both().map(ReceiveCredit::held)),
        (core.shared.operations.len(), core.shared.unexpected.held_bytes().0),
    )
}

/// Returns what engine 1 answers when it is asked to acknowledge.
fn answer(net: &mut Net) -> Vec<RingEntry> {
    net.engines[1].core.poll_acknowledgements(0, true);
    net.write_ring(1, 0)
}

/// Matches a message with receives of this capacity: returns how many bytes fit.
fn match_with(data: Option<u64>, capacity: usize) -> usize {
    let [mut matched, mut general] = [net(), net()];
    let [receive, other] = [&mut matched, &mut general].map(|it| it.receive_of(flow(5), capacity));
    let frame = message(data, LENGTH);
    let found = match_in_ring(&mut matched, NEXT, head_of(data), &frame);
    let (id, fits, arrival) = found.unwrap().expect("it is the next frame, and has a receive");
    assert_eq!(id, receive);
    let peer = matched.engines[1].peers[&(0, 0)];
    assert_eq!((arrival.peer, arrival.context, arrival.tag), (peer, 5, 1));
    assert_eq!((arrival.length, arrival.data), (LENGTH as u64, data));
    // As by the general path.
    handle(&mut general, NEXT, &frame).unwrap();
    assert_eq!(general.end_of(1, other), Some(&Ended::Received(arrival)));
    assert_eq!(state(&matched), state(&general));
    assert_eq!(answer(&mut matched), answer(&mut general));
    // It is matched once.
    let again = FrameRange { first: 1, count: 1 };
    assert!(match_in_ring(&mut matched, again, head_of(data), &frame).unwrap().is_none());
    fits
}

/// RR-DGRAM-1, RR-CREDIT-1, RR-MATCH-3
#[test]
fn message_with_and_without_data_is_matched_as_by_the_general_path() {
    for data in [None, Some(DATA), Some(0)] {
        assert_eq!(match_with(data, LENGTH), LENGTH, "{data:?}");
        assert_eq!(match_with(data, LENGTH + 1), LENGTH, "{data:?}");
    }
}

#[test]
fn receive_shorter_than_the_payload_gets_its_capacity() {
    for data in [None, Some(DATA)] {
        for capacity in [0, 1, LENGTH - 1] {
            assert_eq!(match_with(data, capacity), capacity, "{data:?}");
        }
    }
}

/// Checks that a frame is not matched, and changes nothing.
fn refuses(net: &mut Net, range: FrameRange, head: RingHead, frame: &[u8]) {
    let before = state(net);
    let found = match_in_ring(net, range, head, frame).unwrap();
    assert!(found.is_none(), "{found:?}");
    assert_eq!(state(net), before);
}

/// A hostile or odd peer.
///
/// RR-SHM-5
#[test]
fn message_whose_head_does_not_fit_its_flags_is_left_to_the_general_path() {
    let cases = [(None, RingHead::HeaderAndData), (Some(DATA), RingHead::Header)];
    for (data, head) in cases {
        let mut net = net();
        let receive = net.receive_of(flow(5), LENGTH);
        let frame = message(data, LENGTH);
        refuses(&mut net, NEXT, head, &frame);
        // Not even if the header announces what is left after the head.
        refuses(&mut net, NEXT, head, &message(data, frame.len() - head.bytes()));
        handle(&mut net, NEXT, &frame).unwrap();
        let Some(Ended::Received(arrival)) = net.end_of(1, receive) else { panic!("{data:?}") };
        assert_eq!((arrival.length, arrival.data), (LENGTH as u64, data));
    }
}

/// RR-SHM-5
#[test]
fn message_of_another_length_than_announced_is_left_to_the_general_path() {
    for data in [None, Some(DATA)] {
        for announced in [LENGTH - 1, LENGTH + 1, 0, u32::MAX as usize] {
            let mut net = net();
            let receive = net.receive_of(flow(5), LENGTH);
            let frame = message(data, announced);
            refuses(&mut net, NEXT, head_of(data), &frame);
            assert!(handle(&mut net, NEXT, &frame).is_err(), "{announced}");
            assert!(announced < LENGTH || net.end_of(1, receive).is_none());
        }
    }
}

#[test]
fn one_sided_frame_is_left_to_the_general_path() {
    let mut net = net();
    let receive = net.receive_of(flow(5), LENGTH);
    for kind in (0..=u8::MAX).filter(|&kind| kind != frame::KIND_EAGER) {
        for data in [None, Some(DATA)] {
            let mut other = message(data, LENGTH);
            other[0] = kind;
            refuses(&mut net, NEXT, head_of(data), &other);
        }
    }
    let length = (LENGTH as u64).into();
    let put = OneSided { kind: frame::KIND_PUT, length, ..OneSided::new_zeroed() };
    assert_eq!(size_of_val(&put), RingHead::HeaderAndData.bytes());
    let put = [put.as_bytes(), &[0; LENGTH]].concat();
    refuses(&mut net, NEXT, RingHead::HeaderAndData, &put);
    handle(&mut net, NEXT, &put).unwrap();
    assert_eq!(net.engines[1].core.shared().counters().refused_accesses, 1);
    assert!(net.end_of(1, receive).is_none());
}

/// RR-DGRAM-1
#[test]
fn frame_that_is_not_the_next_is_left_to_the_general_path() {
    for data in [None, Some(DATA)] {
        let mut net = net();
        let receives = [net.receive_of(flow(5), LENGTH), net.receive_of(flow(5), LENGTH)];
        let (head, frame) = (head_of(data), message(data, LENGTH));
        for first in [1, 2, u32::MAX] {
            refuses(&mut net, FrameRange { first, count: 1 }, head, &frame);
        }
        let early = FrameRange { first: 1, count: 1 };
        handle(&mut net, early, &frame).unwrap();
        // The next one is not matched either, as one is early.
        refuses(&mut net, NEXT, head, &frame);
        handle(&mut net, NEXT, &frame).unwrap();
        for receive in receives {
            assert!(matches!(net.end_of(1, receive), Some(Ended::Received(_))), "{data:?}");
        }
    }
}

/// RR-MATCH-3
#[test]
fn message_without_a_posted_receive_is_left_to_the_general_path() {
    for data in [None, Some(DATA)] {
        let mut net = net();
        net.receive_of(flow(6), LENGTH);
        let (head, frame) = (head_of(data), message(data, LENGTH));
        refuses(&mut net, NEXT, head, &frame);
        handle(&mut net, NEXT, &frame).unwrap();
        let receive = net.receive_of(flow(5), LENGTH);
        let Some(Ended::Received(arrival)) = net.end_of(1, receive) else { panic!("{data:?}") };
        assert_eq!((arrival.length, arrival.data), (LENGTH as u64, data));
    }
}

/// RR-CREDIT-1
#[test]
fn message_beyond_the_credit_is_left_to_the_general_path() {
    let mut net = net();
    let messages = config().eager_credit_bytes / LENGTH as u32;
    let frame = message(None, LENGTH);
    for first in 0..messages {
        handle(&mut net, FrameRange { first, count: 1 }, &frame).unwrap();
    }
    net.receive_of(flow(6), LENGTH);
    let next = FrameRange { first: messages, count: 1 };
    let other = Eager { context: 6.into(), ..sim::eager(LENGTH as u32) };
    let other = [other.as_bytes(), &frame[size_of::<Eager>()..]].concat();
    refuses(&mut net, next, RingHead::Header, &other);
    assert!(handle(&mut net, next, &other).is_err());
}
