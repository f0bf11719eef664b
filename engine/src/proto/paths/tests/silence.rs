//! When segments use a path, and when TCP.

use super::super::path::PathValidation;
use super::super::*;
use super::pair::*;

fn health(net: &Net, engine: usize) -> PathValidation {
    net.engines[engine].path(0).validation()
}

/// Returns the number of packets with payload that the opener has sent since `since_ns`.
fn payloads(net: &Net, since_ns: u64) -> usize {
    net.packets(OPENER, 0, since_ns).into_iter().filter(|it| it.has_payload()).count()
}

/// RR-PATH-2
#[test]
fn segments_use_tcp_until_the_path_is_acknowledged() {
    let mut net = Net::with_rails(&[0]);
    // The opener's probe arrives, and no answer returns.
    net.links[ACCEPTOR][0].gate = Gate::Cut;
    let began_ns = net.now_ns();
    net.begin(SESSION, 1);
    for _ in 0..5 {
        net.send_one(OPENER);
        net.send_one(ACCEPTOR);
        net.run_for(MILLI);
    }
    net.assert_all_received();
    assert!(net.engines[ACCEPTOR].path(0).highest() > 0, "probes arrive");
    for engine in [OPENER, ACCEPTOR] {
        assert!(net.engines[engine].by_stream >= 5);
        assert_eq!(
            (health(&net, engine), net.engines[engine].primary()),
            (PathValidation::Untried, None)
        );
        let sent = net.packets(engine, 0, began_ns);
        assert!(!sent.is_empty() && sent.iter().all(|it| !it.has_payload() && it.is_summed));
    }
    // A packet of the peer that acknowledges nothing is no answer: here one that it sent before any
    // probe arrived.
    let first = net.packets(ACCEPTOR, 0, 0)[0].clone();
    assert!(first.packet().ack.is_none());
    net.deliver_packet(OPENER, first.from, &first.bytes);
    net.turn(OPENER);
    assert_eq!(health(&net, OPENER), PathValidation::Untried);
    net.send_one(OPENER);
    assert_eq!(payloads(&net, 0), 0);
    // After the first answer the path carries segments.
    net.links[ACCEPTOR][0].gate = Gate::Open;
    net.run_to(1000 * MILLI, |net| health(net, OPENER) == PathValidation::Good);
    net.run_to(1000 * MILLI, |net| health(net, ACCEPTOR) == PathValidation::Good);
    let (good_ns, by_stream) = (net.now_ns(), net.engines[OPENER].by_stream);
    net.send_one(OPENER);
    let sent = net.packets(OPENER, 0, good_ns);
    // RR-PATH-8: proof that checksums are not needed.
    assert!(sent[0].has_payload() && !sent[0].is_summed);
    net.run_for(5 * MILLI);
    assert_eq!(net.engines[OPENER].by_stream, by_stream);
    net.assert_all_received();
}

/// Each engine sends a probe when the session begins, and again when the peer's probe arrives: the
/// first one to an engine that did not know the session yet is lost.
///
/// RR-PATH-2
#[test]
fn probe_from_the_peer_triggers_another_probe() {
    let mut net = Net::with_rails(&[0]);
    net.links[OPENER][0].gate = Gate::Cut;
    net.links[ACCEPTOR][0].gate = Gate::Held;
    net.begin(SESSION, 1);
    net.run_for(20 * MILLI);
    let questions = std::mem::take(&mut net.held);
    assert!(questions.len() > 2 && questions.iter().all(|it| !it.has_payload()));
    net.set_gates(0, Gate::Open);
    // The engine probes and answers, in the next turn, and probes once.
    let asked_ns = net.now_ns();
    for question in &questions {
        net.deliver_packet(OPENER, question.from, &question.bytes);
        net.run_for(1);
    }
    let sent = net.packets(OPENER, 0, asked_ns);
    assert_eq!(sent.iter().filter(|it| it.packet().is_probe()).count(), 1);
    net.run_for(4 * LATENCY_NS);
    for engine in [OPENER, ACCEPTOR] {
        assert_eq!(health(&net, engine), PathValidation::Good);
    }
}

/// RR-PATH-3
#[test]
fn silent_path_only_probes_until_answered() {
    let mut net = one_path();
    net.run_for(5 * MILLI);
    for _ in 0..20 {
        net.send_one(OPENER);
        net.run_for(MILLI);
    }
    let before = net.engines[OPENER].by_stream;
    net.set_gates(0, Gate::Cut);
    let cut_ns = net.now_ns();
    for _ in 0..3 {
        net.send_one(OPENER);
    }
    assert!(payloads(&net, cut_ns) > 0);
    let silent_after_ns =
        net.run_to(20 * MILLI, |net| health(net, OPENER) == PathValidation::Silent);
    assert!(silent_after_ns > MILLI, "{silent_after_ns}");
    // All outstanding segments are sent again by TCP.
    assert!(net.engines[OPENER].by_stream > before);
    net.run_for(2 * STREAM_NS);
    net.assert_all_received();
    let silent_ns = net.now_ns();
    let by_stream = net.engines[OPENER].by_stream;
    for count in 1..=5 {
        net.send_one(OPENER);
        net.run_for(100 * MILLI);
        assert!(net.engines[OPENER].by_stream >= by_stream + count);
        net.assert_all_received();
    }
    // The path sends probes, and carries no segments.
    let sent = net.packets(OPENER, 0, silent_ns);
    assert!(sent.len() > 2 && sent.iter().all(|it| it.packet().is_probe()), "{sent:?}");
    // RR-PATH-8: a device on the path may require checksums.
    assert!(sent.iter().all(|it| it.is_summed));
    net.set_gates(0, Gate::Open);
    net.run_to(3000 * MILLI, |net| health(net, OPENER) == PathValidation::Good);
    let (good_ns, by_stream) = (net.now_ns(), net.engines[OPENER].by_stream);
    net.send_one(OPENER);
    assert!(payloads(&net, good_ns) > 0);
    net.run_for(20 * MILLI);
    assert_eq!(net.engines[OPENER].by_stream, by_stream);
    assert!(net.packets(OPENER, 0, good_ns).iter().all(|it| it.is_summed), "it has failed");
    net.assert_all_received();
}

/// Segments that arrive on a failed path after they arrived by TCP are duplicates.
///
/// RR-PATH-3
#[test]
fn duplicates_from_path_and_tcp_are_delivered_once() {
    let mut net = one_path();
    net.run_for(5 * MILLI);
    for engine in [OPENER, ACCEPTOR] {
        net.links[engine][0].gate = Gate::Held;
    }
    net.send_one(OPENER);
    net.send_one(OPENER);
    net.run_to(100 * MILLI, |net| health(net, OPENER) == PathValidation::Silent);
    net.run_for(2 * STREAM_NS);
    net.assert_all_received();
    net.set_gates(0, Gate::Open);
    let segments = net.engines[ACCEPTOR].paths.shared.segments;
    net.release();
    net.run_for(10 * MILLI);
    assert!(net.engines[ACCEPTOR].paths.shared.segments > segments, "they arrived");
    net.assert_all_received();
    assert_eq!(
        health(&net, OPENER),
        PathValidation::Good,
        "a late acknowledgement is an answer, too"
    );
}

/// RR-PATH-3: five timeouts, not one lost packet.
#[test]
fn few_lost_probes_do_not_silence_a_path() {
    let mut net = one_path();
    net.run_for(5 * MILLI);
    net.send_one(OPENER);
    net.run_for(5 * MILLI);
    for _ in 0..20 {
        net.set_gates(0, Gate::Cut);
        net.send_one(OPENER);
        let probes = |net: &Net| net.engines[OPENER].path(0).packets().load().2;
        net.run_to(50 * MILLI, |net| probes(net) == 3);
        assert_eq!(health(&net, OPENER), PathValidation::Good);
        net.set_gates(0, Gate::Open);
        net.run_for(20 * MILLI);
        assert_eq!((health(&net, OPENER), probes(&net)), (PathValidation::Good, 0));
    }
    assert_eq!(net.engines[OPENER].by_stream, 0);
    net.assert_all_received();
}

/// RR-PATH-3
#[test]
fn driver_without_datagrams_uses_tcp_and_the_next_driver_probes() {
    let mut net = one_path();
    net.run_for(5 * MILLI);
    let off_ns = net.now_ns();
    let Engine { core, paths, .. } = &mut net.engines[OPENER];
    paths.give_up_path(core, SLOT, PRIMARY);
    assert!(!paths.is_served(SLOT, PRIMARY));
    for _ in 0..3 {
        net.send_one(OPENER);
        net.run_for(10 * MILLI);
    }
    assert!(payloads(&net, off_ns) == 0 && net.engines[OPENER].by_stream >= 3);
    let Engine { core, paths, .. } = &mut net.engines[OPENER];
    paths.resume(core, Some(PACKET_BYTES_MAX));
    assert_eq!(health(&net, OPENER), PathValidation::Silent);
    net.transmit_path(OPENER, PRIMARY);
    net.run_for(5 * MILLI);
    assert_eq!(health(&net, OPENER), PathValidation::Good);
    // A driver without datagrams, or with shorter ones than agreed on.
    for bytes_max in [None, Some(PACKET_BYTES_MAX - 1)] {
        let Engine { core, paths, .. } = &mut net.engines[OPENER];
        paths.resume(core, bytes_max);
        assert!(!paths.is_served(SLOT, PRIMARY) && !net.engines[OPENER].paths().are_open());
    }
    net.assert_all_received();
}

// ---- Late turns ----

/// Returns a net with an outstanding message whose acknowledgement is unprocessed when the probe
/// timeout expires.
fn overdue() -> (Net, Datagram) {
    let mut net = one_path();
    net.run_for(5 * MILLI);
    net.send_one(OPENER);
    net.run_for(5 * MILLI);
    net.links[ACCEPTOR][0].gate = Gate::Held;
    net.send_one(OPENER);
    net.run_for(LATENCY_NS + 30_000);
    let answer = net.held.pop().unwrap();
    assert!(answer.packet().ack.is_some());
    let due_ns = net.engines[OPENER].paths.next_timer_ns().unwrap();
    net.stall(due_ns + 10 * MILLI - net.now_ns());
    (net, answer)
}

/// RR-PKT-10
#[test]
fn late_turn_defers_loss_timers_until_drained() {
    let (mut net, answer) = overdue();
    let sent = net.log.len();
    let probes = |net: &Net| {
        let packets = net.engines[OPENER].path(0).packets();
        (packets.load().2, packets.counters().probes)
    };
    let before = probes(&net);
    for _ in 0..3 {
        net.fire(OPENER, (10 * MILLI, false));
        assert_eq!((probes(&net), net.log.len()), (before, sent));
        // It is deferred to the next turn, not lost.
        assert_eq!(net.engines[OPENER].paths.next_timer_ns(), Some(net.now_ns() + 1));
        net.stall(1);
    }
    net.deliver_packet(OPENER, answer.from, &answer.bytes);
    net.turn(OPENER);
    net.links[ACCEPTOR][0].gate = Gate::Open;
    net.run_for(100 * MILLI);
    assert_eq!(probes(&net), before, "the answer had arrived");
    net.assert_all_received();
}

/// RR-PKT-10
#[test]
fn drained_late_turn_fires_timers() {
    for (late_ns, is_drained) in [(10 * MILLI, true), (0, false)] {
        let (mut net, _) = overdue();
        let sent = net.log.len();
        net.fire(OPENER, (late_ns, is_drained));
        assert_eq!(net.engines[OPENER].path(0).packets().load().2, 1);
        assert_eq!(net.log.len(), sent + 1, "a probe was sent");
    }
}
