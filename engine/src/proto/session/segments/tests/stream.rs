//! Messages that do not fit a datagram and use the session's stream.

use super::*;
use crate::proto::session::Session;
use crate::wire::segment::FLAG_ACK_REQUESTED;

fn roomy() -> Config {
    Config {
        eager_limit: 70_000,
        eager_credit_bytes: 200_000,
        staging_bytes: 1 << 16,
        staging_buffers_max: 16,
        ..Config::for_tests()
    }
}

/// Creates two engines whose streams take this many steps.
fn net_of(steps: u64) -> Net {
    let mut net = Net::new(2, &roomy(), CONTENT, 1);
    net.use_streams(steps);
    net
}

/// RR-DGRAM-12
#[test]
fn every_length_and_level_is_delivered_by_stream() {
    let lengths = [245, 300, 5000, 16_384, 32_767, 32_768, 33_500, 50_000, 65_536, 70_000];
    for is_posted in [true, false] {
        for level in [CompletionLevel::Inject, CompletionLevel::Delivery, CompletionLevel::Match] {
            for length in lengths {
                let mut net = net_of(2);
                exchange(&mut net, is_posted, length, level);
                net.settle(60);
                net.check();
                assert_eq!(net.by_stream(), 1, "{length}");
                assert!(net.datagrams() < 10, "acknowledgements, credit and reports only");
            }
        }
    }
}

/// A short message overtakes a long one of another flow, and waits for one of its own.
///
/// RR-DGRAM-4, RR-DGRAM-12
#[test]
fn late_stream_message_delays_its_own_context_only() {
    let mut net = net_of(30);
    let long = net.receive_of(flow(1), 5000);
    let behind = net.receive_of(flow(1), 8);
    let beside = net.receive_of(flow(2), 8);
    net.send(flow(1), 5000, CompletionLevel::Inject);
    net.send(flow(1), 8, CompletionLevel::Inject);
    net.send(flow(2), 8, CompletionLevel::Inject);
    net.settle(100);
    net.check();
    let step_of = |id| net.engines[1].memory.ended[&id].1;
    assert!(step_of(beside) < 5, "{}", step_of(beside));
    assert_eq!((step_of(long), step_of(behind)), (31, 31));
}

/// Short messages between long ones do not become part of them.
///
/// RR-SEG-2, RR-DGRAM-12
#[test]
fn short_messages_are_not_merged_into_long_segments() {
    let mut net = net_of(3);
    net.set_links(&lossy(100_000, 3));
    for number in 0..60 {
        let context = number % 3;
        net.receive_of(flow(context), 30_000);
        net.send(
            flow(context),
            [8, 2000, 200, 30_000][number as usize % 4],
            CompletionLevel::Delivery,
        );
        if number % 5 == 4 {
            net.step();
        }
    }
    net.settle(500);
    net.check();
    // Messages staged in one turn were sent together.
    let by_stream = net.by_stream();
    assert!((20..50).contains(&by_stream), "{by_stream}");
}

/// A first message has lower latency when sent; the others when the receiver need not copy them.
///
/// RR-DGRAM-12
#[test]
fn long_messages_are_pulled_while_another_is_outstanding() {
    for (lengths, segments) in
        [([40_000, 40_000, 40_000], 1), ([30_000, 30_000, 30_000], 3), ([30_000, 40_000, 8], 1)]
    {
        let mut net = net_of(5);
        for length in lengths {
            net.receive_of(flow(1), length);
            net.send(flow(1), length, CompletionLevel::Delivery);
        }
        net.settle(100);
        net.check();
        assert_eq!(net.by_stream(), segments, "{lengths:?}");
    }
}

/// RR-DGRAM-3, RR-DGRAM-12
#[test]
fn only_a_lost_stream_causes_retransmission() {
    let mut net = net_of(1);
    net.send(flow(1), 5000, CompletionLevel::Inject);
    let core = &mut net.engines[0].core;
    let first = core.enter(0).and_then(|(it, cx)| it.poll_long(cx)).unwrap().0.to_vec();
    core.with(0, |it, cx| it.segments.resend_short(cx));
    assert!(!core.session(0).is_some_and(|it| it.segments.has_long()));
    core.with(0, |it, cx| it.segments.resend_all(cx));
    assert!(
        core.session(0).is_some_and(|it| it.segments.has_long())
            && !core.session(0).is_some_and(|it| it.segments.has_short())
    );
    let again = core.enter(0).and_then(|(it, cx)| it.poll_long(cx)).unwrap().0.to_vec();
    assert_eq!(first[SEGMENT_HEADER_BYTES..], again[SEGMENT_HEADER_BYTES..]);
    core.with(0, |it, cx| it.segments.resend_all(cx));
    // An acknowledgement of the first message makes the third send unnecessary.
    let receive = net.receive_of(flow(1), 5000);
    let there = &mut net.engines[1];
    there.core.handle_bytes(0, &first, 0, &mut there.memory).unwrap();
    assert!(net.end_of(1, receive).is_some());
    net.engines[1].core.with(0, |it, cx| it.segments.acknowledge_received(cx));
    let sent = net.capture(1, 0);
    net.deliver(1, 0, &sent[0].1).unwrap();
    assert!(!net.engines[0].core.session(0).is_some_and(|it| it.segments.has_long()));
    assert!(net.engines[0].core.session(0).is_some_and(Session::is_settled));
    net.check_rest();
}

/// RR-DGRAM-12
#[test]
fn an_acknowledgement_is_staged_after_quiet_turns_a_delay_or_before_a_sleep() {
    let millisecond = 1_000_000;
    for (is_last, turn_ns, turns) in [(false, 1, 49), (false, millisecond / 2, 2), (true, 1, 1)] {
        let mut net = net_of(1);
        net.send(flow(1), 5000, CompletionLevel::Inject);
        let long =
            net.engines[0].core.enter(0).and_then(|(it, cx)| it.poll_long(cx)).unwrap().0.to_vec();
        let there = &mut net.engines[1];
        there.core.handle_bytes(0, &long, 0, &mut there.memory).unwrap();
        let core = &mut there.core;
        let staged = (1..100).find(|turn| core.poll_acknowledgements(turn * turn_ns, is_last));
        assert_eq!(staged, Some(turns));
        assert!(!core.poll_acknowledgements(100 * millisecond, true), "nothing is owed any more");
        let sent = net.capture(1, 0);
        assert_eq!((sent.len(), header_of(&sent[0].1).ack.get()), (1, 1));
    }
}

/// A missing message is delivered late, after acknowledgements of later data were sent.
///
/// RR-DGRAM-11, RR-DGRAM-12
#[test]
fn stream_data_is_acked_when_the_missing_frame_arrives() {
    let mut net = net_of(1);
    net.send(flow(1), 8, CompletionLevel::Inject);
    let late = net.capture(0, 1);
    net.send(flow(2), 5000, CompletionLevel::Inject);
    let long =
        net.engines[0].core.enter(0).and_then(|(it, cx)| it.poll_long(cx)).unwrap().0.to_vec();
    let there = &mut net.engines[1];
    there.core.handle_bytes(0, &long, 0, &mut there.memory).unwrap();
    net.send(Flow { from: 1, to: 0, ..flow(3) }, 8, CompletionLevel::Inject);
    let other = net.capture(1, 0);
    assert_eq!((other.len(), header_of(&other[0].1).ack.get()), (1, 0));
    assert_eq!(
        net.engines[1].core.session(0).map_or(0, |it| it.segments.unacknowledged_bytes()),
        0,
        "the segment acknowledges all"
    );
    net.deliver(0, 1, &late[0].1).unwrap();
    let sent = net.capture(1, 0);
    assert_eq!(header_of(&sent[0].1).ack.get(), 2);
    net.deliver(1, 0, &sent[0].1).unwrap();
    assert!(net.engines[0].core.session(0).is_some_and(Session::is_settled));
}

/// RR-DGRAM-12
#[test]
fn only_the_last_awaited_segment_requests_an_ack() {
    let mut net = net_of(1);
    net.send(flow(1), 5000, CompletionLevel::Delivery);
    net.stage(0);
    net.send(flow(1), 5000, CompletionLevel::Inject);
    net.stage(0);
    let core = &mut net.engines[0].core;
    let flags =
        header_of(core.enter(0).and_then(|(it, cx)| it.poll_long(cx)).unwrap().0).flags.get();
    assert_eq!(flags & FLAG_ACK_REQUESTED, FLAG_ACK_REQUESTED);
    assert!(
        core.enter(0).and_then(|(it, cx)| it.poll_long(cx)).is_none(),
        "both were sent together"
    );
    net.send(flow(1), 5000, CompletionLevel::Inject);
    let core = &mut net.engines[0].core;
    assert_eq!(
        header_of(core.enter(0).and_then(|(it, cx)| it.poll_long(cx)).unwrap().0).flags.get()
            & FLAG_ACK_REQUESTED,
        0
    );
}

/// Another path may carry the session, so it continues in datagrams.
///
/// RR-DGRAM-12
#[test]
fn session_with_a_new_path_continues_in_datagrams() {
    let mut net = net_of(2);
    for length in [5000, 40_000] {
        net.receive_of(flow(1), length);
        net.send(flow(1), length, CompletionLevel::Delivery);
    }
    net.step();
    for engine in &mut net.engines {
        engine.core.with(0, |it, cx| it.use_stream(cx, false));
    }
    for length in [900, 5000] {
        net.receive_of(flow(1), length);
        net.send(flow(1), length, CompletionLevel::Delivery);
    }
    net.settle(500);
    net.check();
}

/// A side that ends a session at a goodbye first acknowledges data received on the stream.
///
/// RR-DGRAM-9
#[test]
fn goodbye_is_answered_with_a_final_ack() {
    let mut net = net_of(1);
    net.send(flow(1), 5000, CompletionLevel::Inject);
    let core = &mut net.engines[0].core;
    let long = core.enter(0).and_then(|(it, cx)| it.poll_long(cx)).unwrap().0.to_vec();
    core.leave(0);
    let goodbye = net.capture(0, 1);
    net.deliver(0, 1, &goodbye[0].1).unwrap();
    let there = &mut net.engines[1];
    assert!(
        there.core.with(0, |it, _| it.segments.take_final_ack()).unwrap().is_empty(),
        "it is not due"
    );
    there.core.handle_bytes(0, &long, 0, &mut there.memory).unwrap();
    assert_eq!(there.core.sessions.at(0).unwrap().ending.failure(), Some(&PeerFailure::Left));
    let words = there.core.with(0, |it, _| it.segments.take_final_ack()).unwrap();
    assert_eq!((words.len(), header_of(&words).ack.get()), (SEGMENT_HEADER_BYTES, 2));
    let here = &mut net.engines[0];
    assert!(!here.core.session(0).is_some_and(|it| it.goodbye_progress(false).is_done));
    here.core.handle_bytes(0, &words, 0, &mut here.memory).unwrap();
    assert!(here.core.session(0).is_some_and(|it| it.goodbye_progress(false).is_done));
}
