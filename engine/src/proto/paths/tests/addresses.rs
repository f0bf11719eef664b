//! Address changes of a peer.

use std::net::SocketAddr;

use super::super::path::PathValidation;
use super::super::*;
use super::pair::*;

fn elsewhere(last: u8) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, last], 9))
}

/// Returns a net whose path is in use.
fn net() -> Net {
    let mut net = one_path();
    for engine in [OPENER, ACCEPTOR].repeat(3) {
        net.run_for(2 * MILLI);
        net.send_one(engine);
    }
    net.run_for(5 * MILLI);
    net
}

/// Returns the datagrams that the acceptor has sent to an address.
fn sent_to(net: &Net, to: SocketAddr) -> Vec<Datagram> {
    let all = net.packets(ACCEPTOR, 0, 0).into_iter();
    all.filter(|it| it.to == to).cloned().collect()
}

/// Returns the current and the previous destination of the acceptor.
fn known(net: &Net) -> [SocketAddr; 2] {
    net.engines[ACCEPTOR].path(0).peer().both()
}

/// Returns the opener's next message, undelivered.
fn message(net: &mut Net) -> Datagram {
    net.links[OPENER][0].gate = Gate::Held;
    net.send_one(OPENER);
    net.links[OPENER][0].gate = Gate::Open;
    net.held.pop().unwrap()
}

/// RR-PATH-4
#[test]
fn new_address_is_probed_before_use() {
    let mut net = net();
    let (old, new) = (address_of(OPENER, 0), elsewhere(1));
    let received = net.received(ACCEPTOR);
    let message = message(&mut net);
    net.deliver_packet(ACCEPTOR, new, &message.bytes);
    net.turn(ACCEPTOR);
    assert_eq!(net.received(ACCEPTOR), received, "no effect until then");
    assert_eq!(net.engines[ACCEPTOR].paths.dropped().stray, 1);
    assert_eq!(known(&net), [old, old]);
    let asked = sent_to(&net, new);
    assert!(asked.len() == 1 && asked[0].packet().is_probe(), "{asked:?}");
    // Messages sent meanwhile go to the known address.
    net.send_one(ACCEPTOR);
    net.send_one(ACCEPTOR);
    assert_eq!(sent_to(&net, new).len(), 1);
    assert!(sent_to(&net, old).iter().rev().take(2).all(Datagram::has_payload));
    // The opener is behind a NAT whose mapping has changed.
    net.translated[OPENER] = Some(new);
    net.run_for(5 * MILLI);
    assert_eq!(known(&net), [new, old]);
    assert!(!net.engines[ACCEPTOR].path(0).peer().has_candidate());
    let moved_ns = net.now_ns();
    net.send_one(ACCEPTOR);
    net.send_one(OPENER);
    net.run_for(5 * MILLI);
    assert!(net.packets(ACCEPTOR, 0, moved_ns).iter().all(|it| it.to == new));
    net.assert_all_received();
    assert_eq!(both(&net, |engine| engine.by_stream), [0, 0]);
}

/// An attacker on the path sends a copy of a packet before the packet itself arrives, and forwards
/// everything sent to it to the peer.
///
/// RR-PATH-4
#[test]
fn probe_answer_from_another_address_is_ignored() {
    for from in [address_of(OPENER, 0), elsewhere(3)] {
        let mut net = net();
        let (old, thief) = (address_of(OPENER, 0), elsewhere(2));
        let message = message(&mut net);
        net.deliver_packet(ACCEPTOR, thief, &message.bytes);
        net.turn(ACCEPTOR);
        let question = sent_to(&net, thief).pop().unwrap();
        net.links[OPENER][0].gate = Gate::Held;
        net.deliver_packet(OPENER, address_of(ACCEPTOR, 0), &question.bytes);
        net.turn(OPENER);
        let answer = net.held.pop().unwrap();
        assert!(answer.packet().ack.is_some());
        net.links[OPENER][0].gate = Gate::Open;
        net.deliver_packet(ACCEPTOR, from, &answer.bytes);
        net.turn(ACCEPTOR);
        assert_eq!(known(&net), [old, old]);
        // Neither does a later copy of it.
        net.deliver_packet(ACCEPTOR, thief, &answer.bytes);
        net.turn(ACCEPTOR);
        assert_eq!(known(&net)[0] == thief, from != old, "copies prove nothing");
        if from == old {
            for engine in [OPENER, ACCEPTOR] {
                net.send_one(engine);
            }
            net.run_for(200 * MILLI);
            assert_eq!(known(&net), [old, old]);
            assert!(sent_to(&net, thief).iter().all(|it| !it.has_payload()));
            net.assert_all_received();
        }
    }
}

/// RR-PATH-4
#[test]
fn only_an_answer_to_the_probe_validates_an_address() {
    let mut net = net();
    let (old, thief) = (address_of(OPENER, 0), elsewhere(2));
    // An acknowledgement of all packets before the probe.
    let first = message(&mut net);
    net.deliver_packet(ACCEPTOR, thief, &first.bytes);
    net.turn(ACCEPTOR);
    assert_eq!(sent_to(&net, thief).len(), 1);
    net.send_one(ACCEPTOR);
    net.send_one(ACCEPTOR);
    // The opener acknowledges the packets before and after the probe, which it never received.
    net.links[OPENER][0].gate = Gate::Held;
    net.run_for(5 * MILLI);
    let answers: Vec<Datagram> = std::mem::take(&mut net.held);
    assert!(answers.iter().any(|it| it.packet().ack.is_some()));
    for answer in &answers {
        net.deliver_packet(ACCEPTOR, thief, &answer.bytes);
        net.turn(ACCEPTOR);
    }
    assert_eq!(known(&net), [old, old]);
}

/// RR-PATH-4
#[test]
fn old_packet_does_not_change_the_address() {
    let mut net = net();
    let first = message(&mut net);
    net.send_one(OPENER);
    net.run_for(LATENCY_NS);
    net.deliver_packet(ACCEPTOR, elsewhere(2), &first.bytes);
    net.turn(ACCEPTOR);
    assert!(!net.engines[ACCEPTOR].path(0).peer().has_candidate());
    assert_eq!(net.engines[ACCEPTOR].paths.dropped().stray, 1);
    assert!(sent_to(&net, elsewhere(2)).is_empty());
    net.deliver_packet(ACCEPTOR, first.from, &first.bytes);
    net.run_for(5 * MILLI);
    net.assert_all_received();
}

/// A probed address has 100 ms: another one seen meanwhile is not probed, and does not replace the
/// probe; a later one is probed.
///
/// RR-PATH-4
#[test]
fn one_address_is_probed_at_a_time() {
    let mut net = net();
    let come = |net: &mut Net, from| {
        let datagram = message(net);
        net.deliver_packet(ACCEPTOR, from, &datagram.bytes);
        net.turn(ACCEPTOR);
        // It also arrives from the usual address, so that nothing is lost.
        net.deliver_packet(ACCEPTOR, datagram.from, &datagram.bytes);
        net.run_for(MILLI);
    };
    come(&mut net, elsewhere(1));
    come(&mut net, elsewhere(2));
    assert_eq!([1, 2].map(|last| sent_to(&net, elsewhere(last)).len()), [1, 0]);
    net.run_for(100 * MILLI);
    come(&mut net, elsewhere(2));
    assert_eq!([1, 2].map(|last| sent_to(&net, elsewhere(last)).len()), [1, 1]);
    net.run_for(100 * MILLI);
    net.assert_all_received();
}

/// A probe without payload from an unknown address is answered at the known address, and gives no
/// samples.
///
/// RR-PATH-4
#[test]
fn probe_from_unknown_address_is_answered_without_migration() {
    let mut net = net();
    net.links[OPENER][0].gate = Gate::Held;
    let now_ns = net.now_ns();
    net.engines[OPENER].paths.ask_all_paths(now_ns, SLOT);
    net.turn(OPENER);
    let probe = net.held.pop().unwrap();
    assert!(probe.packet().is_probe());
    net.links[OPENER][0].gate = Gate::Open;
    let (asked_ns, old) = (net.now_ns(), address_of(OPENER, 0));
    let answered = net.engines[ACCEPTOR].path(0).packets().answered_sent_ns();
    net.deliver_packet(ACCEPTOR, elsewhere(1), &probe.bytes);
    net.turn(ACCEPTOR);
    assert_eq!(known(&net), [old, old]);
    assert_eq!(net.engines[ACCEPTOR].paths.dropped(), Dropped::default());
    let path = net.engines[ACCEPTOR].path(0).packets();
    assert_eq!(path.answered_sent_ns(), answered, "its acknowledgement is ignored");
    let sent: Vec<Datagram> = net.packets(ACCEPTOR, 0, asked_ns).into_iter().cloned().collect();
    assert!(sent.iter().any(|it| it.to == old || it.packet().ack.is_some()), "{sent:?}");
}

/// Its acknowledgement is ignored, too: an attacker may have delayed the original.
///
/// RR-PATH-4
#[test]
fn ack_in_a_probe_from_unknown_address_is_ignored() {
    let mut net = net();
    net.set_gates(0, Gate::Held);
    net.send_one(ACCEPTOR);
    net.send_one(ACCEPTOR);
    let held = std::mem::take(&mut net.held);
    net.deliver_packet(OPENER, held[0].from, &held[0].bytes);
    net.deliver_packet(OPENER, elsewhere(1), &held[1].bytes);
    net.turn(OPENER);
    let question = net.held.iter().find(|it| it.to == elsewhere(1)).unwrap().clone();
    assert!(question.packet().is_probe() && question.packet().ack.is_some());
    let received = |net: &mut Net| {
        let Engine { paths, .. } = &mut net.engines[ACCEPTOR];
        paths.of_mut(SLOT).answered_sent_ns()
    };
    let before = received(&mut net);
    net.deliver_packet(ACCEPTOR, elsewhere(5), &question.bytes);
    assert_eq!(received(&mut net), before);
    assert_eq!(known(&net), [address_of(OPENER, 0); 2]);
    assert_eq!(net.engines[ACCEPTOR].paths.dropped(), Dropped::default(), "it is answered");
}

/// RR-PATH-4
#[test]
fn silent_path_probes_both_addresses_alternately() {
    let mut net = net();
    let (old, new) = (address_of(OPENER, 0), elsewhere(1));
    let first = message(&mut net);
    net.deliver_packet(ACCEPTOR, new, &first.bytes);
    net.translated[OPENER] = Some(new);
    net.turn(ACCEPTOR);
    net.run_for(5 * MILLI);
    assert_eq!(known(&net), [new, old]);
    net.set_gates(0, Gate::Cut);
    net.send_one(ACCEPTOR);
    net.run_to(100 * MILLI, |net| {
        net.engines[ACCEPTOR].path(0).validation() == PathValidation::Silent
    });
    let silent_ns = net.now_ns();
    net.run_for(400 * MILLI);
    let sent = net.packets(ACCEPTOR, 0, silent_ns);
    let times = |to| sent.iter().filter(|it| it.to == to).count();
    assert!(times(new) >= 2 && times(old) >= 2, "{} {}", times(new), times(old));
    assert!(sent.iter().all(|it| it.packet().is_probe()));
    // The NAT mapping is gone; the previous address answers.
    net.translated[OPENER] = None;
    net.set_gates(0, Gate::Open);
    net.run_to(2000 * MILLI, |net| {
        net.engines[ACCEPTOR].path(0).validation() == PathValidation::Good
    });
    net.send_one(ACCEPTOR);
    net.send_one(OPENER);
    net.run_for(50 * MILLI);
    assert_eq!(known(&net)[0], old);
    net.assert_all_received();
}
