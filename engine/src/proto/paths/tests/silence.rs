//! When segments use a path, and when TCP.

use super::super::path::Health;
use super::super::*;
use super::pair::*;

fn health(pair: &Pair, side: usize) -> Health {
    pair.sides[side].path(0).health
}

/// Returns the number of packets with payload that the opener has sent since `since_ns`.
fn payloads(pair: &Pair, since_ns: u64) -> usize {
    pair.sent(OPENER, 0, since_ns).into_iter().filter(|it| it.has_payload()).count()
}

/// RR-PATH-2
#[test]
fn segments_use_tcp_until_the_path_is_acknowledged() {
    let mut pair = Pair::unconnected(1, [0; RAILS]);
    // The opener's probe arrives, and no answer returns.
    pair.ways[ACCEPTOR][0] = Way::Cut;
    let began_ns = pair.now_ns;
    pair.begin(SESSION, 1);
    for _ in 0..5 {
        pair.say(OPENER);
        pair.say(ACCEPTOR);
        pair.run_for(MILLI);
    }
    pair.assert_all_received();
    assert!(pair.sides[ACCEPTOR].path(0).highest > 0, "probes arrive");
    for side in [OPENER, ACCEPTOR] {
        assert!(pair.sides[side].by_stream >= 5);
        assert_eq!((health(&pair, side), pair.sides[side].carrier()), (Health::Untried, None));
        let sent = pair.sent(side, 0, began_ns);
        assert!(!sent.is_empty() && sent.iter().all(|it| !it.has_payload() && it.is_summed));
    }
    // A packet of the peer that acknowledges nothing is no answer: here one that it sent before any
    // probe arrived.
    let first = pair.sent(ACCEPTOR, 0, 0)[0].clone();
    assert!(first.packet().ack.is_none());
    pair.deliver(OPENER, first.from, &first.bytes);
    pair.turn(OPENER);
    assert_eq!(health(&pair, OPENER), Health::Untried);
    pair.say(OPENER);
    assert_eq!(payloads(&pair, 0), 0);
    // After the first answer the path carries segments.
    pair.ways[ACCEPTOR][0] = Way::Open;
    pair.run_to(1000 * MILLI, |pair| health(pair, OPENER) == Health::Good);
    pair.run_to(1000 * MILLI, |pair| health(pair, ACCEPTOR) == Health::Good);
    let (good_ns, by_stream) = (pair.now_ns, pair.sides[OPENER].by_stream);
    pair.say(OPENER);
    let sent = pair.sent(OPENER, 0, good_ns);
    // RR-PATH-8: proof that checksums are not needed.
    assert!(sent[0].has_payload() && !sent[0].is_summed);
    pair.run_for(5 * MILLI);
    assert_eq!(pair.sides[OPENER].by_stream, by_stream);
    pair.assert_all_received();
}

/// Each side sends a probe when the session begins, and again when the peer's probe arrives: the
/// first one to a side that did not know the session yet is lost.
///
/// RR-PATH-2
#[test]
fn probe_from_the_peer_triggers_another_probe() {
    let mut pair = Pair::unconnected(1, [0; RAILS]);
    pair.ways[OPENER][0] = Way::Cut;
    pair.ways[ACCEPTOR][0] = Way::Held;
    pair.begin(SESSION, 1);
    pair.run_for(20 * MILLI);
    let questions = std::mem::take(&mut pair.held);
    assert!(questions.len() > 2 && questions.iter().all(|it| !it.has_payload()));
    pair.set_rail(0, Way::Open);
    // The side probes and answers, in the next turn, and probes once.
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
fn silent_path_only_probes_until_answered() {
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
    // All outstanding segments are sent again by TCP.
    assert!(pair.sides[OPENER].by_stream > before);
    pair.run_for(2 * STREAM_NS);
    pair.assert_all_received();
    let silent_ns = pair.now_ns;
    let by_stream = pair.sides[OPENER].by_stream;
    for count in 1..=5 {
        pair.say(OPENER);
        pair.run_for(100 * MILLI);
        assert!(pair.sides[OPENER].by_stream >= by_stream + count);
        pair.assert_all_received();
    }
    // The path sends probes, and carries no segments.
    let sent = pair.sent(OPENER, 0, silent_ns);
    assert!(sent.len() > 2 && sent.iter().all(|it| it.packet().is_probe()), "{sent:?}");
    // RR-PATH-8: a device on the path may require checksums.
    assert!(sent.iter().all(|it| it.is_summed));
    pair.set_rail(0, Way::Open);
    pair.run_to(3000 * MILLI, |pair| health(pair, OPENER) == Health::Good);
    let (good_ns, by_stream) = (pair.now_ns, pair.sides[OPENER].by_stream);
    pair.say(OPENER);
    assert!(payloads(&pair, good_ns) > 0);
    pair.run_for(20 * MILLI);
    assert_eq!(pair.sides[OPENER].by_stream, by_stream);
    assert!(pair.sent(OPENER, 0, good_ns).iter().all(|it| it.is_summed), "it has failed");
    pair.assert_all_received();
}

/// Segments that arrive on a failed path after they arrived by TCP are duplicates.
///
/// RR-PATH-3
#[test]
fn duplicates_from_path_and_tcp_are_delivered_once() {
    let mut pair = Pair::new();
    pair.run_for(5 * MILLI);
    for side in [OPENER, ACCEPTOR] {
        pair.ways[side][0] = Way::Held;
    }
    pair.say(OPENER);
    pair.say(OPENER);
    pair.run_to(100 * MILLI, |pair| health(pair, OPENER) == Health::Silent);
    pair.run_for(2 * STREAM_NS);
    pair.assert_all_received();
    pair.set_rail(0, Way::Open);
    let segments = pair.sides[ACCEPTOR].paths.segments;
    pair.release();
    pair.run_for(10 * MILLI);
    assert!(pair.sides[ACCEPTOR].paths.segments > segments, "they arrived");
    pair.assert_all_received();
    assert_eq!(health(&pair, OPENER), Health::Good, "a late acknowledgement is an answer, too");
}

/// RR-PATH-3: five timeouts, not one lost packet.
#[test]
fn few_lost_probes_do_not_silence_a_path() {
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
    pair.assert_all_received();
}

/// RR-PATH-3
#[test]
fn driver_without_datagrams_uses_tcp_and_the_next_driver_probes() {
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
    // A driver without datagrams, or with shorter ones than agreed on.
    for bytes_max in [None, Some(BYTES_MAX - 1)] {
        let Side { core, paths, slot, .. } = &mut pair.sides[OPENER];
        paths.resume(core, bytes_max);
        assert!(!paths.is_served(*slot, CARRIER) && !pair.sides[OPENER].paths().are_open());
    }
    pair.assert_all_received();
}

// ---- Late turns ----

/// Returns a pair with an outstanding message whose acknowledgement is unprocessed when the probe
/// timeout expires.
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
fn late_turn_defers_loss_timers_until_drained() {
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
        // It is deferred to the next turn, not lost.
        assert_eq!(pair.sides[OPENER].paths.next_timer_ns(), Some(pair.now_ns + 1));
        pair.now_ns += 1;
    }
    pair.deliver(OPENER, answer.from, &answer.bytes);
    pair.turn(OPENER);
    pair.ways[ACCEPTOR][0] = Way::Open;
    pair.run_for(100 * MILLI);
    assert_eq!(probes(&pair), before, "the answer had arrived");
    pair.assert_all_received();
}

/// RR-PKT-10
#[test]
fn drained_late_turn_fires_timers() {
    for (late_ns, is_drained) in [(10 * MILLI, true), (0, false)] {
        let (mut pair, _) = overdue();
        let sent = pair.log.len();
        pair.fire(OPENER, (late_ns, is_drained));
        assert_eq!(pair.sides[OPENER].path(0).packets.load().2, 1);
        assert_eq!(pair.log.len(), sent + 1, "a probe was sent");
    }
}
