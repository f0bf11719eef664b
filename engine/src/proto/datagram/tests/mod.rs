//! Tests of the message layer over a network that loses, duplicates and reorders.

mod bulk;
mod chaos;
mod cma;
mod hostile;
mod parts;
mod pieces;
mod properties;
mod stream;
mod warm;
mod world;

use self::world::{Faults, Stream, World};
use super::super::core::Config;
use super::super::effects::{CompletionLevel, Ended};
use super::super::failure::PeerFailure;
use super::window::Arrivals;
use crate::wire::segment::{SEGMENT_HEADER_BYTES, SegmentHeader};
use zerocopy::FromBytes;

/// Content of a short datagram.
const CONTENT: usize = 300;

fn config() -> Config {
    Config { eager_limit: 3000, eager_credit_bytes: 8000, ..Config::for_tests() }
}

fn world() -> World {
    World::new(2, &config(), CONTENT, 1)
}

fn stream(context: u64) -> Stream {
    Stream { from: 0, source: 0, to: 1, target: 0, context }
}

fn header_of(bytes: &[u8]) -> &SegmentHeader {
    SegmentHeader::ref_from_prefix(bytes).unwrap().0
}

/// Sends a message, whose receive is posted before or some steps later.
fn exchange(world: &mut World, is_posted: bool, length: usize, level: CompletionLevel) {
    if is_posted {
        world.receive((1, 0), Some((0, 0)), 5, length);
    }
    world.send(stream(5), length, level);
    if !is_posted {
        world.steps(5);
        world.receive((1, 0), Some((0, 0)), 5, length);
    }
}

/// RR-DGRAM-5, RR-DGRAM-6
#[test]
fn every_length_and_level_is_delivered_posted_or_unexpected() {
    let lengths = [0, 1, 200, 244, 245, 300, 500, 1000, 2999, 3000, 3001, 20_000];
    for is_posted in [true, false] {
        for level in [CompletionLevel::Inject, CompletionLevel::Delivery, CompletionLevel::Match] {
            for length in lengths {
                let mut world = world();
                exchange(&mut world, is_posted, length, level);
                world.settle(40 + length as u64 / 100);
                world.check();
            }
        }
    }
}

/// RR-DGRAM-4
#[test]
fn lost_message_delays_its_own_context_only() {
    // One message per step and context; the 7th datagram is one of context 1.
    let ends = |doomed: &[u64]| {
        let mut world = world();
        world.doomed = doomed.to_vec();
        let mut receives = Vec::new();
        for _ in 0..10 {
            for context in [1, 2] {
                receives.push((context, world.receive((1, 0), Some((0, 0)), context, 8)));
            }
        }
        for step in 0..20 {
            world.send(stream(1 + step % 2), 8, CompletionLevel::Inject);
            world.step();
        }
        world.settle(20);
        world.check();
        let ended = &world.nodes[1].memory.ended;
        receives.into_iter().map(|(context, id)| (context, ended[&id].1)).collect::<Vec<_>>()
    };
    let calm = ends(&[]);
    let lossy = ends(&[7]);
    for (at, (before, after)) in calm.iter().zip(&lossy).enumerate() {
        assert_eq!(before, &(1 + at as u64 % 2, 2 + at as u64), "a step to go, and none to wait");
        // The 7th datagram has the 4th message of context 1. Its loss is detected 6 steps later,
        // and later messages of the context waited for it.
        let is_delayed = before.0 == 1 && (3..=6).contains(&(at / 2));
        let expected = if is_delayed { 14 } else { before.1 };
        assert_eq!(after.1, expected, "message {} of context {}", at / 2, before.0);
    }
}

/// Advances the frame numbers to node 1, as other flows would.
fn skip_frames(world: &mut World, count: u32) {
    let sender = world.nodes[0].core.sessions.at_mut(0).unwrap().datagram.as_deref_mut().unwrap();
    sender.next_frame = sender.next_frame.wrapping_add(count);
    let next = sender.next_frame;
    let session = world.nodes[1].core.sessions.at_mut(0).unwrap();
    (session.expected_frame, session.announced_ack) = (next, next);
    session.datagram.as_deref_mut().unwrap().arrivals = Arrivals::starting_at(next);
}

/// A flow is idle until the low bits of its last number equal those of a missing one.
///
/// RR-DGRAM-4
#[test]
fn idle_flow_does_not_wait_after_half_a_wraparound() {
    for silence in [(1u64 << 31) + (1 << 16), (3 << 30) + (1 << 16), 1 << 32] {
        let mut world = world();
        let receive = |world: &mut World, context| world.receive((1, 0), Some((0, 0)), context, 8);
        let message = CompletionLevel::Inject;
        receive(&mut world, 1);
        world.send(stream(1), 8, message);
        world.settle(20);
        // In several steps, with a message after each. The next number is that of the lost one.
        for hop in 0..8 {
            skip_frames(&mut world, (silence / 8) as u32 - 1 - u32::from(hop == 0));
            receive(&mut world, 10 + hop);
            world.send(stream(10 + hop), 8, message);
            world.settle(20);
        }
        let last = [1, 2, 2].map(|context| receive(&mut world, context))[0];
        // This one is lost, and both others follow it.
        world.doomed = vec![world.datagrams + 1];
        world.send(stream(2), 8, message);
        world.step();
        let start = world.now;
        world.send(stream(1), 8, message);
        world.step();
        world.send(stream(2), 8, message);
        world.settle(20);
        world.check();
        assert_eq!(world.nodes[1].memory.ended[&last].1, start + 2, "after {silence} frames");
    }
}

/// RR-END-5
#[test]
fn only_completed_unacked_sends_count_as_lost_with_the_session() {
    /// Levels and lengths of sends, numbers of the lost datagrams, the expected answer.
    type Case<'a> = (&'a [(CompletionLevel, usize)], &'a [u64], bool);
    let (short, parts) = (8, 2000);
    let cases: [Case<'_>; 6] = [
        (&[(CompletionLevel::Inject, short)], &[], false),
        (&[(CompletionLevel::Inject, short)], &[1], true),
        (&[(CompletionLevel::Inject, short); 2], &[1], true),
        // A send that waits for the peer reports the failure itself.
        (&[(CompletionLevel::Delivery, short), (CompletionLevel::Inject, short)], &[1], false),
        (&[(CompletionLevel::Inject, parts)], &[1], true),
        (&[(CompletionLevel::Inject, parts)], &[3], true),
    ];
    for (at, (messages, doomed, expected)) in cases.into_iter().enumerate() {
        let mut world = world();
        world.doomed = doomed.to_vec();
        for &(level, length) in messages {
            world.send(stream(1), length, level);
            world.step();
        }
        // The acknowledgements have arrived, and no packet is declared lost yet.
        world.step();
        world.step();
        assert_eq!(world.nodes[0].core.may_lose_completed(0), expected, "case {at}");
        world.settle(20);
        assert!(!world.nodes[0].core.may_lose_completed(0), "case {at}");
    }
}

/// RR-SEG-3, RR-DGRAM-5
/// RR-DGRAM-11
#[test]
fn requested_ack_is_sent_when_the_missing_frame_arrives() {
    let mut world = world();
    world.send(stream(1), 8, CompletionLevel::Inject);
    let early = world.capture(0, 1);
    let send = world.send(stream(2), 8, CompletionLevel::Delivery).unwrap();
    world.stage(0);
    let mut by_stream = Vec::new();
    assert!(world.nodes[0].core.poll_segment_for_stream(0, &mut by_stream));
    world.deliver(0, 1, &by_stream).unwrap();
    // The reply cannot acknowledge the frame, since one before it is missing.
    for (_, bytes) in world.capture(1, 0) {
        world.deliver(1, 0, &bytes).unwrap();
    }
    assert!(world.end_of(0, send).is_none());
    world.deliver(0, 1, &early[0].1).unwrap();
    let answers = world.capture(1, 0);
    assert_eq!(answers.len(), 1);
    world.deliver(1, 0, &answers[0].1).unwrap();
    assert!(world.end_of(0, send).is_some());
    assert_eq!(world.capture(1, 0), []);
}

/// A turn ends with the message that it delivers if no other work waits.
#[test]
fn credit_without_waiting_sends_does_not_extend_the_turn() {
    let mut world = world();
    let back = Stream { from: 1, source: 0, to: 0, target: 0, context: 5 };
    world.receive((1, 0), Some((0, 0)), 5, 8);
    world.send(stream(5), 8, CompletionLevel::Inject);
    for (_, bytes) in world.capture(0, 1) {
        world.deliver(0, 1, &bytes).unwrap();
    }
    let credit = |world: &World| {
        let session = world.nodes[0].core.sessions.at(0).unwrap();
        session.envelope_credit.available()
    };
    let before = credit(&world);
    world.send(back, 8, CompletionLevel::Inject);
    for (_, bytes) in world.capture(1, 0) {
        world.deliver(1, 0, &bytes).unwrap();
    }
    assert_eq!(credit(&world), before + 1);
    assert!(world.nodes[0].core.unblocked.is_empty());
}

#[test]
fn delivery_does_not_wait_for_other_messages() {
    let mut world = world();
    let first = world.send(stream(1), 8, CompletionLevel::Delivery).unwrap();
    let lost = world.capture(0, 1);
    let second = world.send(stream(2), 8, CompletionLevel::Delivery).unwrap();
    let came = world.capture(0, 1);
    world.deliver(0, 1, &came[0].1).unwrap();
    world.acknowledge(0, 1, came[0].0);
    assert!(world.end_of(0, first).is_none());
    assert_eq!(world.end_of(0, second), Some(&Ended::Sent { accepted: 8 }));
    // Every segment carries an acknowledgement, whether or not its lane acknowledges.
    world.deliver(0, 1, &lost[0].1).unwrap();
    world.nodes[1].core.resend_all(0, false);
    let answer = world.capture(1, 0);
    assert_eq!(header_of(&answer[0].1).ack.get(), 2);
    world.deliver(1, 0, &answer[0].1).unwrap();
    assert_eq!(world.end_of(0, first), Some(&Ended::Sent { accepted: 8 }));
}

/// RR-DGRAM-3
#[test]
fn lost_segment_is_retransmitted_with_a_new_header_only() {
    let mut world = world();
    world.send(stream(1), 8, CompletionLevel::Inject);
    let first = world.capture(0, 1);
    assert!(world.capture(0, 1).is_empty(), "sent once, until an ack or a loss");
    world.send(Stream { from: 1, to: 0, ..stream(1) }, 8, CompletionLevel::Inject);
    let other = world.capture(1, 0);
    world.deliver(1, 0, &other[0].1).unwrap();
    world.lose(0, 1, first[0].0);
    let again = world.capture(0, 1);
    assert_eq!(again[0].0, first[0].0);
    assert_eq!(again[0].1[SEGMENT_HEADER_BYTES..], first[0].1[SEGMENT_HEADER_BYTES..]);
    assert_eq!(header_of(&again[0].1).first_frame, header_of(&first[0].1).first_frame);
    assert_eq!((header_of(&first[0].1).ack.get(), header_of(&again[0].1).ack.get()), (0, 1));
    // A probe retransmits it, too; after its acknowledgement nothing does.
    let core = &mut world.nodes[0].core;
    let probe = core.poll_segment_again(0, first[0].0, CONTENT, false).unwrap();
    assert_eq!((probe.token, probe.bytes, probe.is_last), (first[0].0, &again[0].1[..], true));
    world.acknowledge(0, 1, first[0].0);
    let core = &mut world.nodes[0].core;
    assert!(core.poll_segment_again(0, first[0].0, CONTENT, false).is_none());
    core.resend_all(0, false);
    let sent = world.capture(0, 1);
    assert_eq!((sent.len(), header_of(&sent[0].1).frames.get()), (1, 0));
}

/// Half the credit is returned in a datagram that is lost.
/// RR-DGRAM-3
#[test]
fn credit_update_in_a_lost_datagram_is_repeated() {
    let limited = Config { envelope_credits: 2, unexpected_messages: 2, ..config() };
    // How the segment of that datagram is delivered: alone, with a message, or with a message that
    // arrived in another datagram, whose acknowledgement precedes or follows the loss report.
    for case in 0..4 {
        let mut world = World::new(2, &limited, CONTENT, 1);
        for _ in 0..2 {
            world.send(stream(1), 8, CompletionLevel::Inject);
        }
        let full = world.capture(0, 1);
        let back = Stream { from: 1, to: 0, ..stream(1) };
        let mut early = Vec::new();
        if case > 0 {
            world.send(back, 8, CompletionLevel::Inject);
            early = world.capture(1, 0);
            assert_eq!(header_of(&early[0].1).envelope_limit.get(), 2);
        }
        world.deliver(0, 1, &full[0].1).unwrap();
        world.acknowledge(0, 1, full[0].0);
        world.receive((1, 0), Some((0, 0)), 1, 8);
        world.receive((1, 0), Some((0, 0)), 1, 8);
        let token = early.first().map_or(0, |early| early.0);
        if case > 0 {
            world.lose(1, 0, token);
        }
        let announcing = world.capture(1, 0);
        assert_eq!((announcing.len(), announcing[0].0), (1, token));
        assert_eq!(header_of(&announcing[0].1).envelope_limit.get(), 4);
        if case > 1 {
            world.deliver(1, 0, &early[0].1).unwrap();
        }
        match case {
            2 => {
                world.lose(1, 0, token);
                world.acknowledge(1, 0, token);
            }
            3 => {
                world.acknowledge(1, 0, token);
                world.lose(1, 0, token);
            }
            _ => world.lose(1, 0, token),
        }
        let again = world.capture(1, 0);
        assert_eq!(again.len(), 1, "case {case}");
        assert_eq!(header_of(&again[0].1).envelope_limit.get(), 4);
        world.deliver(1, 0, &again[0].1).unwrap();
        world.send(stream(1), 8, CompletionLevel::Inject);
        assert_eq!(world.capture(0, 1).len(), 1);
    }
}

/// RR-CREDIT-3
#[test]
fn control_frames_overtake_blocked_messages() {
    let mut world = world();
    world.nodes[0].core.datagrams.segments = super::segment::SegmentPool::new(2048, 2 * 2048);
    for context in 0..10 {
        world.send(stream(context), 200, CompletionLevel::Inject);
    }
    assert_eq!(world.capture(0, 1).len(), 1, "the rest is reserved for control frames");
    world.send(Stream { from: 1, to: 0, ..stream(1) }, 8, CompletionLevel::Match);
    let asked = world.capture(1, 0);
    world.deliver(1, 0, &asked[0].1).unwrap();
    world.receive((0, 0), Some((1, 0)), 1, 8);
    let answer = world.capture(0, 1);
    assert_eq!((answer.len(), header_of(&answer[0].1).frames.get()), (1, 1));
    assert_eq!(answer[0].1[SEGMENT_HEADER_BYTES], crate::wire::frame::KIND_MATCHED);
}

#[test]
fn bursts_share_a_segment() {
    let mut world = world();
    for _ in 0..12 {
        world.send(stream(1), 8, CompletionLevel::Inject);
    }
    let frames: Vec<u16> =
        world.capture(0, 1).iter().map(|(_, bytes)| header_of(bytes).frames.get()).collect();
    assert_eq!(frames, [6, 6], "276 bytes in frames of 40");
}

/// RR-DGRAM-9, RR-END-1
#[test]
fn goodbye_waits_for_all_earlier_frames() {
    let mut world = world();
    world.send(stream(1), 8, CompletionLevel::Inject);
    let message = world.capture(0, 1);
    world.nodes[0].core.leave(0);
    let goodbye = world.capture(0, 1);
    world.deliver(0, 1, &goodbye[0].1).unwrap();
    assert!(world.nodes[1].core.sessions.at(0).unwrap().is_connected());
    assert!(!world.nodes[0].core.is_settled(0), "both may need retransmission");
    world.deliver(0, 1, &message[0].1).unwrap();
    let failure = world.nodes[1].core.sessions.at(0).unwrap().failure.clone();
    assert_eq!(failure, Some(PeerFailure::Left));
    world.acknowledge(0, 1, message[0].0);
    world.acknowledge(0, 1, goodbye[0].0);
    assert!(world.nodes[0].core.is_settled(0));
    // The message had arrived completely.
    let receive = world.receive((1, 0), Some((0, 0)), 1, 8);
    assert!(matches!(world.end_of(1, receive), Some(Ended::Received(_))));
}

#[test]
fn oversized_segment_waits_without_blocking_others() {
    let mut world = World::new(2, &config(), 1200, 1);
    world.send(stream(1), 1000, CompletionLevel::Inject);
    let long = world.capture(0, 1);
    world.nodes[0].core.set_segment_bytes(0, CONTENT);
    world.room_bytes = CONTENT;
    world.lose(0, 1, long[0].0);
    world.send(stream(2), 8, CompletionLevel::Inject);
    let short = world.capture(0, 1);
    assert_eq!((short.len(), short[0].0 == long[0].0), (1, false), "others overtake it");
    world.room_bytes = usize::MAX;
    assert_eq!(world.capture(0, 1)[0].0, long[0].0);
}

/// Receives in progress and buffered frames of a closed session neither leak nor end twice.
/// RR-DGRAM-9
#[test]
fn closed_session_leaks_nothing() {
    for seed in 0..40 {
        let mut world = World::new(2, &config(), CONTENT, seed);
        world.faults = Faults { loss: 0.4, jitter: 5, ..Faults::NONE };
        let reserved = |world: &World, node: usize| {
            let core = &world.nodes[node].core;
            (core.reserved_bytes, core.reserved_envelopes)
        };
        for number in 0..20 {
            world.receive((1, 0), Some((0, 0)), number % 3, 2000);
            world.send(stream(number % 4), (number * 150) as usize, CompletionLevel::Match);
            world.step();
        }
        for node in 0..2 {
            let here = &mut world.nodes[node];
            let core = &mut here.core;
            core.fail_session(0, PeerFailure::Lost("cut".into()), &mut here.memory);
            // Complete messages can still be received.
            core.close_endpoint(0, &mut here.memory);
        }
        world.check_rest();
        for node in 0..2 {
            assert_eq!(reserved(&world, node), (0, 0), "seed {seed}");
            assert!(world.nodes[node].memory.ended.len() >= 20 * (1 - node));
        }
    }
}

/// RR-DGRAM-10
#[test]
fn grants_are_served_in_the_order_of_their_chunks() {
    let mut world = world();
    world.faults = Faults { loss: 0.2, jitter: 10, ..Faults::NONE };
    for number in 0..40 {
        world.receive((1, 0), Some((0, 0)), 1, 4000);
        world.send(stream(1), 3500 + number, CompletionLevel::Inject);
    }
    world.settle(1000);
    world.check();
    assert!(world.nodes[0].core.lanes.iter().all(|(_, lane)| lane.early.is_empty()));
}

/// Pools reach a steady size: memory is neither allocated nor freed.
#[test]
fn pools_do_not_grow_once_warm() {
    let mut world = world();
    world.faults = Faults { loss: 0.1, duplication: 0.1, jitter: 4, ..Faults::NONE };
    let mut most = Vec::new();
    for round in 0..30 {
        for number in 0..20 {
            let context = number % 3;
            if number % 2 == 0 {
                world.receive((1, 0), Some((0, 0)), context, 3000);
            }
            world.send(stream(context), 100 * number as usize, CompletionLevel::Delivery);
            world.step();
            if number % 2 == 1 {
                world.receive((1, 0), Some((0, 0)), context, 3000);
            }
        }
        world.settle(500);
        most.push(world.nodes[0].core.datagrams.segments.allocated_bytes().0);
        assert!(round < 20 || most[round] == most[10], "{most:?}");
    }
    world.check();
    let limit = config().staging_bytes * config().staging_buffers_max;
    assert!(most[29] <= limit, "{most:?}");
}
