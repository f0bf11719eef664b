//! Messages that do not fit a datagram and use the session's stream.

use super::*;
use crate::wire::segment::FLAG_ACK_REQUESTED;

fn roomy() -> Config {
    Config {
        eager_limit: 70_000,
        eager_credit_bytes: 200_000,
        staging_bytes: 1 << 16,
        ..Config::for_tests()
    }
}

/// Creates two nodes whose streams take this many steps.
fn world_of(steps: u64) -> World {
    let mut world = World::new(2, &roomy(), CONTENT, 1);
    world.use_streams(steps);
    world
}

/// RR-DGRAM-12
#[test]
fn every_length_and_level_is_delivered_by_stream() {
    let lengths = [245, 300, 5000, 16_384, 32_767, 32_768, 33_500, 50_000, 65_536, 70_000];
    for is_posted in [true, false] {
        for level in [CompletionLevel::Inject, CompletionLevel::Delivery, CompletionLevel::Match] {
            for length in lengths {
                let mut world = world_of(2);
                exchange(&mut world, is_posted, length, level);
                world.settle(60);
                world.check();
                assert_eq!(world.segments, length.div_ceil(32 << 10) as u64, "{length}");
                assert!(world.datagrams < 10, "acknowledgements, credit and reports only");
            }
        }
    }
}

/// A short message overtakes a long one of another flow, and waits for one of its own.
///
/// RR-DGRAM-4, RR-DGRAM-12
#[test]
fn late_stream_message_delays_its_own_context_only() {
    let mut world = world_of(30);
    let long = world.receive((1, 0), Some((0, 0)), 1, 5000);
    let behind = world.receive((1, 0), Some((0, 0)), 1, 8);
    let beside = world.receive((1, 0), Some((0, 0)), 2, 8);
    world.send(stream(1), 5000, CompletionLevel::Inject);
    world.send(stream(1), 8, CompletionLevel::Inject);
    world.send(stream(2), 8, CompletionLevel::Inject);
    world.settle(100);
    world.check();
    let step_of = |id| world.nodes[1].memory.ended[&id].1;
    assert!(step_of(beside) < 5, "{}", step_of(beside));
    assert_eq!((step_of(long), step_of(behind)), (31, 31));
}

/// Short messages between long ones do not become part of them.
///
/// RR-SEG-2, RR-DGRAM-12
#[test]
fn short_messages_are_not_merged_into_long_segments() {
    let mut world = world_of(3);
    world.faults = Faults { loss: 0.1, jitter: 3, ..Faults::NONE };
    for number in 0..60 {
        let context = number % 3;
        world.receive((1, 0), Some((0, 0)), context, 30_000);
        world.send(
            stream(context),
            [8, 2000, 200, 30_000][number as usize % 4],
            CompletionLevel::Delivery,
        );
        if number % 5 == 4 {
            world.step();
        }
    }
    world.settle(500);
    world.check();
    // Messages staged in one turn were sent together.
    assert!((20..50).contains(&world.segments), "{}", world.segments);
}

/// A first message has lower latency when sent; the others when the receiver need not copy them.
///
/// RR-DGRAM-12
#[test]
fn multipart_messages_are_pulled_while_another_is_outstanding() {
    for (lengths, segments) in
        [([40_000, 40_000, 40_000], 2), ([30_000, 30_000, 30_000], 3), ([30_000, 40_000, 8], 1)]
    {
        let mut world = world_of(5);
        for length in lengths {
            world.receive((1, 0), Some((0, 0)), 1, length);
            world.send(stream(1), length, CompletionLevel::Delivery);
        }
        world.settle(100);
        world.check();
        assert_eq!(world.segments, segments, "{lengths:?}");
    }
}

/// RR-DGRAM-3, RR-DGRAM-12
#[test]
fn only_a_lost_stream_causes_retransmission() {
    let mut world = world_of(1);
    world.send(stream(1), 5000, CompletionLevel::Inject);
    let core = &mut world.nodes[0].core;
    let first = core.poll_long(0).unwrap().0.to_vec();
    core.resend_all(0, true);
    assert!(!core.has_long(0));
    core.resend_all(0, false);
    assert!(core.has_long(0) && !core.has_short(0));
    let again = core.poll_long(0).unwrap().0.to_vec();
    assert_eq!(first[SEGMENT_HEADER_BYTES..], again[SEGMENT_HEADER_BYTES..]);
    core.resend_all(0, false);
    // An acknowledgement of the first message makes the third send unnecessary.
    let receive = world.receive((1, 0), Some((0, 0)), 1, 5000);
    let there = &mut world.nodes[1];
    there.core.handle_bytes(0, &first, 0, &mut there.memory).unwrap();
    assert!(world.end_of(1, receive).is_some());
    world.nodes[1].core.acknowledge_stream(0);
    let sent = world.capture(1, 0);
    world.deliver(1, 0, &sent[0].1).unwrap();
    assert!(!world.nodes[0].core.has_long(0));
    assert!(world.nodes[0].core.is_settled(0));
    world.check_rest();
}

/// A missing message is delivered late, after acknowledgements of later data were sent.
///
/// RR-DGRAM-11, RR-DGRAM-12
#[test]
fn stream_data_is_acked_when_the_missing_frame_arrives() {
    let mut world = world_of(1);
    world.send(stream(1), 8, CompletionLevel::Inject);
    let late = world.capture(0, 1);
    world.send(stream(2), 5000, CompletionLevel::Inject);
    let long = world.nodes[0].core.poll_long(0).unwrap().0.to_vec();
    let there = &mut world.nodes[1];
    there.core.handle_bytes(0, &long, 0, &mut there.memory).unwrap();
    world.send(Stream { from: 1, to: 0, ..stream(3) }, 8, CompletionLevel::Inject);
    let other = world.capture(1, 0);
    assert_eq!((other.len(), header_of(&other[0].1).ack.get()), (1, 0));
    assert_eq!(world.nodes[1].core.owed_by_stream(0), 0, "the segment acknowledges all");
    world.deliver(0, 1, &late[0].1).unwrap();
    let sent = world.capture(1, 0);
    assert_eq!(header_of(&sent[0].1).ack.get(), 2);
    world.deliver(1, 0, &sent[0].1).unwrap();
    assert!(world.nodes[0].core.is_settled(0));
}

/// RR-DGRAM-12
#[test]
fn only_the_last_awaited_segment_requests_an_ack() {
    let mut world = world_of(1);
    world.send(stream(1), 5000, CompletionLevel::Delivery);
    world.stage(0);
    world.send(stream(1), 5000, CompletionLevel::Inject);
    world.stage(0);
    let core = &mut world.nodes[0].core;
    let flags = header_of(core.poll_long(0).unwrap().0).flags.get();
    assert_eq!(flags & FLAG_ACK_REQUESTED, FLAG_ACK_REQUESTED);
    assert!(core.poll_long(0).is_none(), "both were sent together");
    world.send(stream(1), 5000, CompletionLevel::Inject);
    let core = &mut world.nodes[0].core;
    assert_eq!(header_of(core.poll_long(0).unwrap().0).flags.get() & FLAG_ACK_REQUESTED, 0);
}

/// Another path may carry the session, so it continues in datagrams.
///
/// RR-DGRAM-12
#[test]
fn session_with_a_new_path_continues_in_datagrams() {
    let mut world = world_of(2);
    for length in [5000, 40_000] {
        world.receive((1, 0), Some((0, 0)), 1, length);
        world.send(stream(1), length, CompletionLevel::Delivery);
    }
    // The second message may be partially sent.
    world.step();
    for node in &mut world.nodes {
        node.core.use_stream(0, false);
    }
    for length in [900, 5000] {
        world.receive((1, 0), Some((0, 0)), 1, length);
        world.send(stream(1), length, CompletionLevel::Delivery);
    }
    world.settle(500);
    world.check();
}

/// A side that ends a session at a goodbye first acknowledges data received on the stream.
///
/// RR-DGRAM-9
#[test]
fn goodbye_is_answered_with_a_final_ack() {
    let mut world = world_of(1);
    world.send(stream(1), 5000, CompletionLevel::Inject);
    let core = &mut world.nodes[0].core;
    let long = core.poll_long(0).unwrap().0.to_vec();
    core.leave(0);
    let goodbye = world.capture(0, 1);
    world.deliver(0, 1, &goodbye[0].1).unwrap();
    let there = &mut world.nodes[1];
    assert!(there.core.take_final_ack(0).is_empty(), "it is not due");
    there.core.handle_bytes(0, &long, 0, &mut there.memory).unwrap();
    assert_eq!(there.core.sessions.at(0).unwrap().failure, Some(PeerFailure::Left));
    let words = there.core.take_final_ack(0);
    assert_eq!((words.len(), header_of(&words).ack.get()), (SEGMENT_HEADER_BYTES, 2));
    let here = &mut world.nodes[0];
    assert!(!here.core.has_left(0));
    here.core.handle_bytes(0, &words, 0, &mut here.memory).unwrap();
    assert!(here.core.has_left(0));
}
