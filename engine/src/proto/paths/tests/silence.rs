//! When segments go by a path, and when by TCP.

use super::super::path::Health;
use super::super::*;
use super::pair::*;

fn health(pair: &Pair, side: usize) -> Health {
    pair.sides[side].path(0).health
}

/// Packets in which the opener has sent something since then.
fn payloads(pair: &Pair, since_ns: u64) -> usize {
    pair.sent(OPENER, 0, since_ns).into_iter().filter(|it| it.has_payload()).count()
}

/// RR-PATH-2
#[test]
fn segments_go_by_tcp_until_a_packet_of_the_path_is_acknowledged() {
    let mut pair = Pair::unconnected(1, [0; RAILS]);
    // The opener's question comes, and nothing comes back.
    pair.ways[ACCEPTOR][0] = Way::Cut;
    let began_ns = pair.now_ns;
    pair.begin(SESSION, 1);
    for _ in 0..5 {
        pair.say(OPENER);
        pair.say(ACCEPTOR);
        pair.run_for(MILLI);
    }
    pair.assert_all_heard();
    assert!(pair.sides[ACCEPTOR].path(0).highest > 0, "questions come");
    for side in [OPENER, ACCEPTOR] {
        assert!(pair.sides[side].by_stream >= 5);
        assert_eq!((health(&pair, side), pair.sides[side].carrier()), (Health::Untried, None));
        let sent = pair.sent(side, 0, began_ns);
        assert!(!sent.is_empty() && sent.iter().all(|it| !it.has_payload() && it.is_summed));
    }
    // A packet of the peer is no answer if it acknowledges nothing: here one that it sent before
    // any question came.
    let first = pair.sent(ACCEPTOR, 0, 0)[0].clone();
    assert!(first.packet().ack.is_none());
    pair.deliver(OPENER, first.from, &first.bytes);
    pair.turn(OPENER);
    assert_eq!(health(&pair, OPENER), Health::Untried);
    pair.say(OPENER);
    assert_eq!(payloads(&pair, 0), 0);
    // From the first answer on the path carries them.
    pair.ways[ACCEPTOR][0] = Way::Open;
    pair.run_to(1000 * MILLI, |pair| health(pair, OPENER) == Health::Good);
    pair.run_to(1000 * MILLI, |pair| health(pair, ACCEPTOR) == Health::Good);
    let (good_ns, by_stream) = (pair.now_ns, pair.sides[OPENER].by_stream);
    pair.say(OPENER);
    let sent = pair.sent(OPENER, 0, good_ns);
    // RR-PATH-8: what shows that nothing wants checksums.
    assert!(sent[0].has_payload() && !sent[0].is_summed);
    pair.run_for(5 * MILLI);
    assert_eq!(pair.sides[OPENER].by_stream, by_stream);
    pair.assert_all_heard();
}

/// Each side asks when the session begins, and again when the peer's question comes: the one that
/// was not yet known there is lost.
///
/// RR-PATH-2
#[test]
fn a_question_of_the_peer_is_a_reason_to_ask_again() {
    let mut pair = Pair::unconnected(1, [0; RAILS]);
    pair.ways[OPENER][0] = Way::Cut;
    pair.ways[ACCEPTOR][0] = Way::Held;
    pair.begin(SESSION, 1);
    pair.run_for(20 * MILLI);
    let questions = std::mem::take(&mut pair.held);
    assert!(questions.len() > 2 && questions.iter().all(|it| !it.has_payload()));
    pair.set_rail(0, Way::Open);
    // One asks and answers, in the next turn, and asks once.
    let asked_ns = pair.now_ns;
    for question in &questions {
        pair.deliver(OPENER, question.from, &question.bytes);
        pair.run_for(1);
    }
    let sent = pair.sent(OPENER, 0, asked_ns);
    assert_eq!(sent.iter().filter(|it| it.packet().is_probe()).count(), 1);
    pair.run_for(4 * LATENCY_NS);
    for side in [OPENER, ACCEPTOR] {
        assert_eq!(health(&pair, side), Health::Good);
    }
}

/// RR-PATH-3
#[test]
fn a_path_that_went_silent_only_probes_and_an_answer_ends_that() {
    let mut pair = Pair::new();
    pair.run_for(5 * MILLI);
    for _ in 0..20 {
        pair.say(OPENER);
        pair.run_for(MILLI);
    }
    let before = pair.sides[OPENER].by_stream;
    pair.set_rail(0, Way::Cut);
    let cut_ns = pair.now_ns;
    for _ in 0..3 {
        pair.say(OPENER);
    }
    assert!(payloads(&pair, cut_ns) > 0);
    let silent_after_ns = pair.run_to(20 * MILLI, |pair| health(pair, OPENER) == Health::Silent);
    assert!(silent_after_ns > MILLI, "{silent_after_ns}");
    // All that was under way goes again by TCP.
    assert!(pair.sides[OPENER].by_stream > before);
    pair.run_for(2 * STREAM_NS);
    pair.assert_all_heard();
    let silent_ns = pair.now_ns;
    let by_stream = pair.sides[OPENER].by_stream;
    for count in 1..=5 {
        pair.say(OPENER);
        pair.run_for(100 * MILLI);
        assert!(pair.sides[OPENER].by_stream >= by_stream + count);
        pair.assert_all_heard();
    }
    // The path asks, and carries nothing.
    let sent = pair.sent(OPENER, 0, silent_ns);
    assert!(sent.len() > 2 && sent.iter().all(|it| it.packet().is_probe()), "{sent:?}");
    // RR-PATH-8: something on the way may want checksums.
    assert!(sent.iter().all(|it| it.is_summed));
    pair.set_rail(0, Way::Open);
    pair.run_to(3000 * MILLI, |pair| health(pair, OPENER) == Health::Good);
    let (good_ns, by_stream) = (pair.now_ns, pair.sides[OPENER].by_stream);
    pair.say(OPENER);
    assert!(payloads(&pair, good_ns) > 0);
    pair.run_for(20 * MILLI);
    assert_eq!(pair.sides[OPENER].by_stream, by_stream);
    assert!(pair.sent(OPENER, 0, good_ns).iter().all(|it| it.is_summed), "it has failed");
    pair.assert_all_heard();
}

/// What went by a path that failed, and comes after it went by TCP, is not taken again.
///
/// RR-PATH-3
#[test]
fn what_comes_by_the_path_after_it_came_by_tcp_is_taken_once() {
    let mut pair = Pair::new();
    pair.run_for(5 * MILLI);
    for side in [OPENER, ACCEPTOR] {
        pair.ways[side][0] = Way::Held;
    }
    pair.say(OPENER);
    pair.say(OPENER);
    pair.run_to(100 * MILLI, |pair| health(pair, OPENER) == Health::Silent);
    pair.run_for(2 * STREAM_NS);
    pair.assert_all_heard();
    pair.set_rail(0, Way::Open);
    let segments = pair.sides[ACCEPTOR].paths.segments;
    pair.release();
    pair.run_for(10 * MILLI);
    assert!(pair.sides[ACCEPTOR].paths.segments > segments, "they came");
    pair.assert_all_heard();
    assert_eq!(health(&pair, OPENER), Health::Good, "that is an answer, however late");
}

/// RR-PATH-3: five timeouts, not one lost packet.
#[test]
fn a_few_lost_probes_are_no_silence() {
    let mut pair = Pair::new();
    pair.run_for(5 * MILLI);
    pair.say(OPENER);
    pair.run_for(5 * MILLI);
    for _ in 0..20 {
        pair.set_rail(0, Way::Cut);
        pair.say(OPENER);
        let probes = |pair: &Pair| pair.sides[OPENER].path(0).packets.load().2;
        pair.run_to(50 * MILLI, |pair| probes(pair) == 3);
        assert_eq!(health(&pair, OPENER), Health::Good);
        pair.set_rail(0, Way::Open);
        pair.run_for(20 * MILLI);
        assert_eq!((health(&pair, OPENER), probes(&pair)), (Health::Good, 0));
    }
    assert_eq!(pair.sides[OPENER].by_stream, 0);
    pair.assert_all_heard();
}

/// RR-PATH-3
#[test]
fn a_driver_that_sends_nothing_leaves_everything_to_tcp_and_the_next_one_asks() {
    let mut pair = Pair::new();
    pair.run_for(5 * MILLI);
    let off_ns = pair.now_ns;
    let Side { core, paths, slot, .. } = &mut pair.sides[OPENER];
    paths.give_up_path(core, *slot, CARRIER);
    assert!(!paths.is_served(*slot, CARRIER));
    for _ in 0..3 {
        pair.say(OPENER);
        pair.run_for(10 * MILLI);
    }
    assert!(payloads(&pair, off_ns) == 0 && pair.sides[OPENER].by_stream >= 3);
    let Side { core, paths, .. } = &mut pair.sides[OPENER];
    paths.resume(core, Some(BYTES_MAX));
    assert_eq!(health(&pair, OPENER), Health::Silent);
    pair.transmit(OPENER, CARRIER);
    pair.run_for(5 * MILLI);
    assert_eq!(health(&pair, OPENER), Health::Good);
    // One that takes no datagrams, or shorter ones than were agreed on.
    for bytes_max in [None, Some(BYTES_MAX - 1)] {
        let Side { core, paths, slot, .. } = &mut pair.sides[OPENER];
        paths.resume(core, bytes_max);
        assert!(!paths.is_served(*slot, CARRIER) && !pair.sides[OPENER].paths().are_open());
    }
    pair.assert_all_heard();
}

// ---- Turns that are late ----

/// A message is under way, and its answer waits to be handled when the probe is due.
fn overdue() -> (Pair, Datagram) {
    let mut pair = Pair::new();
    pair.run_for(5 * MILLI);
    pair.say(OPENER);
    pair.run_for(5 * MILLI);
    pair.ways[ACCEPTOR][0] = Way::Held;
    pair.say(OPENER);
    pair.run_for(LATENCY_NS + 30_000);
    let answer = pair.held.pop().unwrap();
    assert!(answer.packet().ack.is_some());
    let due_ns = pair.sides[OPENER].paths.next_timer_ns().unwrap();
    pair.now_ns = due_ns + 10 * MILLI;
    (pair, answer)
}

/// RR-PKT-10
#[test]
fn a_late_turn_fires_no_loss_timer_while_something_is_left() {
    let (mut pair, answer) = overdue();
    let sent = pair.log.len();
    let probes = |pair: &Pair| {
        let packets = &pair.sides[OPENER].path(0).packets;
        (packets.load().2, packets.statistics().probes)
    };
    let before = probes(&pair);
    for _ in 0..3 {
        pair.fire(OPENER, (10 * MILLI, false));
        assert_eq!((probes(&pair), pair.log.len()), (before, sent));
        // It is for the next turn, not forgotten.
        assert_eq!(pair.sides[OPENER].paths.next_timer_ns(), Some(pair.now_ns + 1));
        pair.now_ns += 1;
    }
    pair.deliver(OPENER, answer.from, &answer.bytes);
    pair.turn(OPENER);
    pair.ways[ACCEPTOR][0] = Way::Open;
    pair.run_for(100 * MILLI);
    assert_eq!(probes(&pair), before, "the answer was there");
    pair.assert_all_heard();
}

/// RR-PKT-10
#[test]
fn a_late_turn_with_nothing_left_fires() {
    for (late_ns, is_drained) in [(10 * MILLI, true), (0, false)] {
        let (mut pair, _) = overdue();
        let sent = pair.log.len();
        pair.fire(OPENER, (late_ns, is_drained));
        assert_eq!(pair.sides[OPENER].path(0).packets.load().2, 1);
        assert_eq!(pair.log.len(), sent + 1, "a probe went");
    }
}
