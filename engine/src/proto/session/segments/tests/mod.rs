//! Tests of the message layer over a network that loses, duplicates and reorders.

mod advice;
mod bulk;
mod chaos;
mod cma;
mod hostile;
mod matched_in_ring;
mod pieces;
mod placed;
mod properties;
mod ring;
mod stream;
mod unsolicited;
mod warm;

use crate::proto::core::Config;
use crate::proto::effects::{CompletionLevel, Ended};
use crate::proto::failure::PeerFailure;
use crate::proto::ready::Work;
use crate::proto::session::Session;
use crate::proto::session::credit::ReceiveCredit;
use crate::proto::sim::{Flow, LinkConfig, Net, ScriptedPeer};
use crate::wire::segment::{SEGMENT_HEADER_BYTES, SegmentHeader};
use zerocopy::FromBytes;

/// Content of a short datagram.
const CONTENT: usize = 300;

fn config() -> Config {
    Config { eager_limit: 3000, eager_credit_bytes: 8000, ..Config::for_tests() }
}

fn net() -> Net {
    Net::new(2, &config(), CONTENT, 1)
}

fn flow(context: u64) -> Flow {
    Flow { from: 0, source: 0, to: 1, target: 0, context }
}

/// Returns a link that loses datagrams, and takes up to `jitter` additional steps.
fn lossy(loss_ppm: u64, jitter: u64) -> LinkConfig {
    LinkConfig { loss_ppm, jitter_ns: jitter + 1, ..LinkConfig::fixed(1) }
}

fn header_of(bytes: &[u8]) -> &SegmentHeader {
    SegmentHeader::ref_from_prefix(bytes).unwrap().0
}

/// Sends a message, whose receive is posted before or some steps later.
fn exchange(net: &mut Net, is_posted: bool, length: usize, level: CompletionLevel) {
    if is_posted {
        net.receive_of(flow(5), length);
    }
    net.send(flow(5), length, level);
    if !is_posted {
        net.steps(5);
        net.receive_of(flow(5), length);
    }
}

/// Returns a segment of frames, the first of which has this number.
fn segment(first_frame: u32, ack: u32, frames: &[Vec<u8>]) -> Vec<u8> {
    let mut peer = ScriptedPeer::new(64, 8000);
    (peer.sent, peer.received) = (first_frame, ack);
    peer.segment(frames.len() as u16, 0, &frames.concat())
}

impl Net {
    /// Checks that every message arrived once, complete, at the right receive, and that all
    /// resources are returned.
    fn check(&self) {
        self.check_messages();
        self.check_rest();
    }

    /// Checks that no resource is in use.
    fn check_rest(&self) {
        for (number, engine) in self.engines.iter().enumerate() {
            let core = &engine.core;
            assert_eq!((core.shared.operations.len(), engine.memory.copies.len()), (0, 0));
            assert_eq!(core.shared.pool.allocated_bytes().1, 0);
            assert_eq!(core.shared.rendezvous.pulled_bytes(), 0);
            assert_eq!(core.shared.unexpected.held_bytes().0, 0);
            for (&peer, &slot) in &engine.slots {
                let session = core.sessions.at(slot as usize).unwrap();
                // Messages that were unexpected when a session ended are no longer counted there.
                let segments = &session.segments;
                if !segments.is_established() {
                    continue;
                }
                assert_eq!(segments.receive_credits().both().map(ReceiveCredit::held), [0, 0]);
                let other = &self.engines[peer];
                let there = other.core.sessions.at(other.slots[&number] as usize).unwrap();
                let theirs = &there.segments;
                assert_eq!(segments.next_frame, theirs.expected_frame());
                let credits = segments.send_credits();
                let left = (credits.envelopes_left(), credits.bytes_left());
                assert_eq!(left, theirs.receive_credits().left());
            }
        }
    }
}

/// RR-DGRAM-5
#[test]
fn every_length_and_level_is_delivered_posted_or_unexpected() {
    let lengths = [0, 1, 200, 244, 245, 300, 500, 1000, 2999, 3000, 3001, 20_000];
    for is_posted in [true, false] {
        for level in [CompletionLevel::Inject, CompletionLevel::Delivery, CompletionLevel::Match] {
            for length in lengths {
                let mut net = net();
                exchange(&mut net, is_posted, length, level);
                net.settle(40 + length as u64 / 100);
                net.check();
            }
        }
    }
}

/// RR-DGRAM-4
#[test]
fn lost_message_delays_its_own_context_only() {
    // One message per step and context; the 7th datagram is one of context 1.
    let ends = |dropped: &[u64]| {
        let mut net = net();
        net.links[0][0].dropped = dropped.to_vec();
        let mut receives = Vec::new();
        for _ in 0..10 {
            for context in [1, 2] {
                receives.push((context, net.receive_of(flow(context), 8)));
            }
        }
        for step in 0..20 {
            net.send(flow(1 + step % 2), 8, CompletionLevel::Inject);
            net.step();
        }
        net.settle(20);
        net.check();
        let ended = &net.engines[1].memory.ended;
        receives.into_iter().map(|(context, id)| (context, ended[&id].1)).collect::<Vec<_>>()
    };
    let calm = ends(&[]);
    let lossy = ends(&[6]);
    for (at, (before, after)) in calm.iter().zip(&lossy).enumerate() {
        assert_eq!(before, &(1 + at as u64 % 2, 2 + at as u64), "a step to go, and none to wait");
        // The 7th datagram has the 4th message of context 1. Its loss is detected 6 steps later,
        // and later messages of the context waited for it.
        let is_delayed = before.0 == 1 && (3..=6).contains(&(at / 2));
        let expected = if is_delayed { 14 } else { before.1 };
        assert_eq!(after.1, expected, "message {} of context {}", at / 2, before.0);
    }
}

/// Advances the frame numbers to engine 1, as other flows would.
fn skip_frames(net: &mut Net, count: u32) {
    let sender = &mut net.engines[0].core.sessions.at_mut(0).unwrap().segments;
    sender.next_frame = sender.next_frame.wrapping_add(count);
    sender.base = sender.next_frame;
    let next = sender.next_frame;
    net.engines[1].core.sessions.at_mut(0).unwrap().segments.received.start_at(next);
}

/// A flow is idle until the low bits of its last number equal those of a missing one.
///
/// RR-DGRAM-4
#[test]
fn idle_flow_does_not_wait_after_half_a_wraparound() {
    for silence in [(1u64 << 31) + (1 << 16), (3 << 30) + (1 << 16), 1 << 32] {
        let mut net = net();
        let receive = |net: &mut Net, context| net.receive_of(flow(context), 8);
        let message = CompletionLevel::Inject;
        receive(&mut net, 1);
        net.send(flow(1), 8, message);
        net.settle(20);
        // In several steps, with a message after each. The next number is that of the lost one.
        for hop in 0..8 {
            skip_frames(&mut net, (silence / 8) as u32 - 1 - u32::from(hop == 0));
            receive(&mut net, 10 + hop);
            net.send(flow(10 + hop), 8, message);
            net.settle(20);
        }
        let last = [1, 2, 2].map(|context| receive(&mut net, context))[0];
        // This one is lost, and both others follow it.
        net.links[0][0].drop_next();
        net.send(flow(2), 8, message);
        net.step();
        let start = net.now_ns();
        net.send(flow(1), 8, message);
        net.step();
        net.send(flow(2), 8, message);
        net.settle(20);
        net.check();
        assert_eq!(net.engines[1].memory.ended[&last].1, start + 2, "after {silence} frames");
    }
}

/// RR-END-5
#[test]
fn only_completed_unacked_sends_count_as_lost_with_the_session() {
    /// Levels and lengths of sends, numbers of the lost datagrams, the expected answer.
    type Case<'a> = (&'a [(CompletionLevel, usize)], &'a [u64], bool);
    let short = 8;
    let cases: [Case<'_>; 4] = [
        (&[(CompletionLevel::Inject, short)], &[], false),
        (&[(CompletionLevel::Inject, short)], &[0], true),
        (&[(CompletionLevel::Inject, short); 2], &[0], true),
        // A send that waits for the peer reports the failure itself.
        (&[(CompletionLevel::Delivery, short), (CompletionLevel::Inject, short)], &[0], false),
    ];
    for (at, (messages, dropped, expected)) in cases.into_iter().enumerate() {
        let mut net = net();
        net.links[0][0].dropped = dropped.to_vec();
        for &(level, length) in messages {
            net.send(flow(1), length, level);
            net.step();
        }
        // The acknowledgements have arrived, and no packet is declared lost yet.
        net.step();
        net.step();
        assert_eq!(
            net.engines[0].core.session(0).unwrap().segments.may_lose_completed(),
            expected,
            "case {at}"
        );
        net.settle(20);
        assert!(
            !net.engines[0].core.session(0).unwrap().segments.may_lose_completed(),
            "case {at}"
        );
    }
}

/// RR-SEG-3, RR-DGRAM-5
/// RR-DGRAM-11
#[test]
fn requested_ack_is_sent_when_the_missing_frame_arrives() {
    let mut net = net();
    net.send(flow(1), 8, CompletionLevel::Inject);
    let early = net.capture(0, 1);
    let send = net.send(flow(2), 8, CompletionLevel::Delivery).unwrap();
    net.stage(0);
    let mut by_stream = Vec::new();
    assert!(
        net.engines[0]
            .core
            .with(0, |it, cx| it.append_next_segment(cx, &mut by_stream, true))
            .unwrap()
    );
    net.deliver(0, 1, &by_stream).unwrap();
    // The reply cannot acknowledge the frame, since one before it is missing.
    net.deliver_all(1, 0);
    assert!(net.end_of(0, send).is_none());
    net.deliver(0, 1, &early[0].1).unwrap();
    let answers = net.capture(1, 0);
    assert_eq!(answers.len(), 1);
    net.deliver(1, 0, &answers[0].1).unwrap();
    assert!(net.end_of(0, send).is_some());
    assert_eq!(net.capture(1, 0), []);
}

/// A turn ends with the message that it delivers if no other work waits.
#[test]
fn credit_without_waiting_sends_does_not_extend_the_turn() {
    let mut net = net();
    let back = Flow { from: 1, source: 0, to: 0, target: 0, context: 5 };
    net.receive_of(flow(5), 8);
    net.send(flow(5), 8, CompletionLevel::Inject);
    net.deliver_all(0, 1);
    let credit = |net: &Net| {
        let session = net.engines[0].core.sessions.at(0).unwrap();
        session.segments.send_credits().envelopes_left()
    };
    let before = credit(&net);
    net.send(back, 8, CompletionLevel::Inject);
    net.deliver_all(1, 0);
    assert_eq!(credit(&net), before + 1);
    assert!(net.engines[0].core.shared().ready().len(Work::Stage) == 0);
}

#[test]
fn delivery_does_not_wait_for_other_messages() {
    let mut net = net();
    let first = net.send(flow(1), 8, CompletionLevel::Delivery).unwrap();
    let lost = net.capture(0, 1);
    let second = net.send(flow(2), 8, CompletionLevel::Delivery).unwrap();
    let came = net.capture(0, 1);
    net.deliver(0, 1, &came[0].1).unwrap();
    net.acknowledge(0, 1, came[0].0);
    assert!(net.end_of(0, first).is_none());
    assert_eq!(net.end_of(0, second), Some(&Ended::Sent { accepted: 8 }));
    // Every segment carries an acknowledgement, whether or not its lane acknowledges.
    net.deliver(0, 1, &lost[0].1).unwrap();
    net.engines[1].core.with(0, |it, cx| it.segments.resend_all(cx));
    let answer = net.capture(1, 0);
    assert_eq!(header_of(&answer[0].1).ack.get(), 2);
    net.deliver(1, 0, &answer[0].1).unwrap();
    assert_eq!(net.end_of(0, first), Some(&Ended::Sent { accepted: 8 }));
}

/// RR-DGRAM-3
#[test]
fn lost_segment_is_retransmitted_with_a_new_header_only() {
    let mut net = net();
    net.send(flow(1), 8, CompletionLevel::Inject);
    let first = net.capture(0, 1);
    assert!(net.capture(0, 1).is_empty(), "sent once, until an ack or a loss");
    net.send(Flow { from: 1, to: 0, ..flow(1) }, 8, CompletionLevel::Inject);
    let other = net.capture(1, 0);
    net.deliver(1, 0, &other[0].1).unwrap();
    net.lose(0, 1, first[0].0);
    let again = net.capture(0, 1);
    assert_eq!(again[0].0, first[0].0);
    assert_eq!(again[0].1[SEGMENT_HEADER_BYTES..], first[0].1[SEGMENT_HEADER_BYTES..]);
    assert_eq!(header_of(&again[0].1).first_frame, header_of(&first[0].1).first_frame);
    assert_eq!((header_of(&first[0].1).ack.get(), header_of(&again[0].1).ack.get()), (0, 1));
    // A probe retransmits it, too; after its acknowledgement nothing does.
    let core = &mut net.engines[0].core;
    let probe = core
        .enter(0)
        .and_then(|(it, _)| it.segments.poll_segment_again(first[0].0, CONTENT, false))
        .unwrap();
    assert_eq!((probe.token, probe.bytes, probe.is_last), (first[0].0, &again[0].1[..], true));
    net.acknowledge(0, 1, first[0].0);
    let core = &mut net.engines[0].core;
    assert!(
        core.enter(0)
            .and_then(|(it, _)| it.segments.poll_segment_again(first[0].0, CONTENT, false))
            .is_none()
    );
    core.with(0, |it, cx| it.segments.resend_all(cx));
    let sent = net.capture(0, 1);
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
        let mut net = Net::new(2, &limited, CONTENT, 1);
        for _ in 0..2 {
            net.send(flow(1), 8, CompletionLevel::Inject);
        }
        let full = net.capture(0, 1);
        let back = Flow { from: 1, to: 0, ..flow(1) };
        let mut early = Vec::new();
        if case > 0 {
            net.send(back, 8, CompletionLevel::Inject);
            early = net.capture(1, 0);
            assert_eq!(header_of(&early[0].1).envelope_limit.get(), 2);
        }
        net.deliver(0, 1, &full[0].1).unwrap();
        net.acknowledge(0, 1, full[0].0);
        net.receive_of(flow(1), 8);
        net.receive_of(flow(1), 8);
        let token = early.first().map_or(0, |early| early.0);
        if case > 0 {
            net.lose(1, 0, token);
        }
        let announcing = net.capture(1, 0);
        assert_eq!((announcing.len(), announcing[0].0), (1, token));
        assert_eq!(header_of(&announcing[0].1).envelope_limit.get(), 4);
        if case > 1 {
            net.deliver(1, 0, &early[0].1).unwrap();
        }
        match case {
            2 => {
                net.lose(1, 0, token);
                net.acknowledge(1, 0, token);
            }
            3 => {
                net.acknowledge(1, 0, token);
                net.lose(1, 0, token);
            }
            _ => net.lose(1, 0, token),
        }
        let again = net.capture(1, 0);
        assert_eq!(again.len(), 1, "case {case}");
        assert_eq!(header_of(&again[0].1).envelope_limit.get(), 4);
        net.deliver(1, 0, &again[0].1).unwrap();
        net.send(flow(1), 8, CompletionLevel::Inject);
        assert_eq!(net.capture(0, 1).len(), 1);
    }
}

/// RR-CREDIT-3
#[test]
fn control_frames_overtake_blocked_messages() {
    let mut net = net();
    net.engines[0].core.shared.pool = super::segment::SegmentPool::of_bytes(2048, 2 * 2048);
    for context in 0..10 {
        net.send(flow(context), 200, CompletionLevel::Inject);
    }
    assert_eq!(net.capture(0, 1).len(), 1, "the rest is reserved for control frames");
    net.send(Flow { from: 1, to: 0, ..flow(1) }, 8, CompletionLevel::Match);
    let asked = net.capture(1, 0);
    net.deliver(1, 0, &asked[0].1).unwrap();
    net.receive((0, 0), Some((1, 0)), 1, 8);
    let answer = net.capture(0, 1);
    assert_eq!((answer.len(), header_of(&answer[0].1).frames.get()), (1, 1));
    assert_eq!(answer[0].1[SEGMENT_HEADER_BYTES], crate::wire::frame::KIND_MATCHED);
}

#[test]
fn bursts_share_a_segment() {
    let mut net = net();
    for _ in 0..12 {
        net.send(flow(1), 8, CompletionLevel::Inject);
    }
    let frames: Vec<u16> =
        net.capture(0, 1).iter().map(|(_, bytes)| header_of(bytes).frames.get()).collect();
    assert_eq!(frames, [6, 6], "276 bytes in frames of 40");
}

/// RR-DGRAM-9, RR-END-1
#[test]
fn goodbye_waits_for_all_earlier_frames() {
    let mut net = net();
    net.send(flow(1), 8, CompletionLevel::Inject);
    let message = net.capture(0, 1);
    net.engines[0].core.leave(0);
    let goodbye = net.capture(0, 1);
    net.deliver(0, 1, &goodbye[0].1).unwrap();
    assert!(net.engines[1].core.sessions.at(0).unwrap().is_connected());
    assert!(
        !net.engines[0].core.session(0).is_some_and(Session::is_settled),
        "both may need retransmission"
    );
    net.deliver(0, 1, &message[0].1).unwrap();
    let failure = net.engines[1].core.sessions.at(0).unwrap().ending.failure().cloned();
    assert_eq!(failure, Some(PeerFailure::Left));
    net.acknowledge(0, 1, message[0].0);
    net.acknowledge(0, 1, goodbye[0].0);
    assert!(net.engines[0].core.session(0).is_some_and(Session::is_settled));
    // The message had arrived completely.
    let receive = net.receive_of(flow(1), 8);
    assert!(matches!(net.end_of(1, receive), Some(Ended::Received(_))));
}

#[test]
fn oversized_segment_waits_without_blocking_others() {
    let mut net = Net::new(2, &config(), 1200, 1);
    net.send(flow(1), 1000, CompletionLevel::Inject);
    let long = net.capture(0, 1);
    net.engines[0].core.with(0, |it, cx| it.segments.set_segment_bytes(cx, CONTENT));
    net.room_bytes = CONTENT;
    net.lose(0, 1, long[0].0);
    net.send(flow(2), 8, CompletionLevel::Inject);
    let short = net.capture(0, 1);
    assert_eq!((short.len(), short[0].0 == long[0].0), (1, false), "others overtake it");
    net.room_bytes = usize::MAX;
    assert_eq!(net.capture(0, 1)[0].0, long[0].0);
}

/// Buffered messages of a closed session neither leak nor end twice.
/// RR-DGRAM-9
#[test]
fn closed_session_leaks_nothing() {
    for seed in 0..40 {
        let mut net = Net::new(2, &config(), CONTENT, seed);
        net.set_links(&lossy(400_000, 5));
        let reserved = |net: &Net, engine: usize| {
            let core = &net.engines[engine].core;
            core.shared().reserved()
        };
        for number in 0..20 {
            net.receive_of(flow(number % 3), 2000);
            net.send(flow(number % 4), (number * 12) as usize, CompletionLevel::Match);
            net.step();
        }
        for engine in 0..2 {
            let here = &mut net.engines[engine];
            let core = &mut here.core;
            core.fail_session(0, PeerFailure::Lost("cut".into()), &mut here.memory);
            // Complete messages can still be received.
            core.close_endpoint(0, &mut here.memory);
        }
        net.check_rest();
        for engine in 0..2 {
            assert_eq!(reserved(&net, engine), (0, 0), "seed {seed}");
            assert!(net.engines[engine].memory.ended.len() >= 20 * (1 - engine));
        }
    }
}

/// RR-DGRAM-10
#[test]
fn grants_are_served_in_the_order_of_their_chunks() {
    let mut net = net();
    net.set_links(&lossy(200_000, 10));
    for number in 0..40 {
        net.receive_of(flow(1), 4000);
        net.send(flow(1), 3500 + number, CompletionLevel::Inject);
    }
    net.settle(1000);
    net.check();
    assert!(net.engines[0].core.shared.lanes.iter().all(|(_, lane)| !lane.has_early_grants()));
}

/// Pools reach a steady size: memory is neither allocated nor freed.
#[test]
fn pools_do_not_grow_once_warm() {
    let mut net = net();
    net.set_links(&LinkConfig { duplicate_ppm: 100_000, ..lossy(100_000, 4) });
    let mut most = Vec::new();
    for round in 0..30 {
        for number in 0..20 {
            let context = number % 3;
            if number % 2 == 0 {
                net.receive_of(flow(context), 3000);
            }
            net.send(flow(context), 100 * number as usize, CompletionLevel::Delivery);
            net.step();
            if number % 2 == 1 {
                net.receive_of(flow(context), 3000);
            }
        }
        net.settle(500);
        most.push(net.engines[0].core.shared.pool.allocated_bytes().0);
        assert!(round < 20 || most[round] == most[10], "{most:?}");
    }
    net.check();
    let limit = config().staging_bytes * config().staging_buffers_max;
    assert!(most[29] <= limit, "{most:?}");
}
