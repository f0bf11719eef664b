//! Address changes of a peer.

use std::net::SocketAddr;

use super::super::path::Health;
use super::super::*;
use super::pair::*;

fn elsewhere(last: u8) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, last], 9))
}

/// Returns a pair whose path is in use.
fn pair() -> Pair {
    let mut pair = Pair::new();
    for side in [OPENER, ACCEPTOR].repeat(3) {
        pair.run_for(2 * MILLI);
        pair.say(side);
    }
    pair.run_for(5 * MILLI);
    pair
}

/// Returns the datagrams that the acceptor has sent to an address.
fn sent_to(pair: &Pair, to: SocketAddr) -> Vec<Datagram> {
    let all = pair.sent(ACCEPTOR, 0, 0).into_iter();
    all.filter(|it| it.to == to).cloned().collect()
}

/// Returns the current and the previous destination of the acceptor.
fn known(pair: &Pair) -> [SocketAddr; 2] {
    let path = pair.sides[ACCEPTOR].path(0);
    [path.remote, path.fallback.as_deref().copied().unwrap_or(path.remote)]
}

/// Returns the opener's next message, undelivered.
fn message(pair: &mut Pair) -> Datagram {
    pair.ways[OPENER][0] = Way::Held;
    pair.say(OPENER);
    pair.ways[OPENER][0] = Way::Open;
    pair.held.pop().unwrap()
}

/// RR-PATH-4
#[test]
fn new_address_is_probed_before_use() {
    let mut pair = pair();
    let (old, new) = (home(OPENER, 0), elsewhere(1));
    let received = pair.sides[ACCEPTOR].received();
    let message = message(&mut pair);
    pair.deliver(ACCEPTOR, new, &message.bytes);
    pair.turn(ACCEPTOR);
    assert_eq!(pair.sides[ACCEPTOR].received(), received, "no effect until then");
    assert_eq!(pair.sides[ACCEPTOR].paths.dropped().stray, 1);
    assert_eq!(known(&pair), [old, old]);
    let asked = sent_to(&pair, new);
    assert!(asked.len() == 1 && asked[0].packet().is_probe(), "{asked:?}");
    // Messages sent meanwhile go to the known address.
    pair.say(ACCEPTOR);
    pair.say(ACCEPTOR);
    assert_eq!(sent_to(&pair, new).len(), 1);
    assert!(sent_to(&pair, old).iter().rev().take(2).all(Datagram::has_payload));
    // The opener is behind a NAT whose mapping has changed.
    pair.seen_at[OPENER] = Some(new);
    pair.run_for(5 * MILLI);
    assert_eq!(known(&pair), [new, old]);
    assert!(pair.sides[ACCEPTOR].path(0).candidate.is_none());
    let moved_ns = pair.now_ns;
    pair.say(ACCEPTOR);
    pair.say(OPENER);
    pair.run_for(5 * MILLI);
    assert!(pair.sent(ACCEPTOR, 0, moved_ns).iter().all(|it| it.to == new));
    pair.assert_all_received();
    assert_eq!(pair.sides.each_ref().map(|side| side.by_stream), [0, 0]);
}

/// An attacker on the path sends a copy of a packet before the packet itself arrives, and forwards
/// everything sent to it to the peer.
///
/// RR-PATH-4
#[test]
fn probe_answer_from_another_address_is_ignored() {
    for from in [home(OPENER, 0), elsewhere(3)] {
        let mut pair = pair();
        let (old, thief) = (home(OPENER, 0), elsewhere(2));
        let message = message(&mut pair);
        pair.deliver(ACCEPTOR, thief, &message.bytes);
        pair.turn(ACCEPTOR);
        let question = sent_to(&pair, thief).pop().unwrap();
        pair.ways[OPENER][0] = Way::Held;
        pair.deliver(OPENER, home(ACCEPTOR, 0), &question.bytes);
        pair.turn(OPENER);
        let answer = pair.held.pop().unwrap();
        assert!(answer.packet().ack.is_some());
        pair.ways[OPENER][0] = Way::Open;
        pair.deliver(ACCEPTOR, from, &answer.bytes);
        pair.turn(ACCEPTOR);
        assert_eq!(known(&pair), [old, old]);
        // Neither does a later copy of it.
        pair.deliver(ACCEPTOR, thief, &answer.bytes);
        pair.turn(ACCEPTOR);
        assert_eq!(known(&pair)[0] == thief, from != old, "copies prove nothing");
        if from == old {
            for side in [OPENER, ACCEPTOR] {
                pair.say(side);
            }
            pair.run_for(200 * MILLI);
            assert_eq!(known(&pair), [old, old]);
            assert!(sent_to(&pair, thief).iter().all(|it| !it.has_payload()));
            pair.assert_all_received();
        }
    }
}

/// RR-PATH-4
#[test]
fn only_an_answer_to_the_probe_validates_an_address() {
    let mut pair = pair();
    let (old, thief) = (home(OPENER, 0), elsewhere(2));
    // An acknowledgement of all packets before the probe.
    let first = message(&mut pair);
    pair.deliver(ACCEPTOR, thief, &first.bytes);
    pair.turn(ACCEPTOR);
    assert_eq!(sent_to(&pair, thief).len(), 1);
    pair.say(ACCEPTOR);
    pair.say(ACCEPTOR);
    // The opener acknowledges the packets before and after the probe, which it never received.
    pair.ways[OPENER][0] = Way::Held;
    pair.run_for(5 * MILLI);
    let answers: Vec<Datagram> = std::mem::take(&mut pair.held);
    assert!(answers.iter().any(|it| it.packet().ack.is_some()));
    for answer in &answers {
        pair.deliver(ACCEPTOR, thief, &answer.bytes);
        pair.turn(ACCEPTOR);
    }
    assert_eq!(known(&pair), [old, old]);
}

/// RR-PATH-4
#[test]
fn old_packet_does_not_change_the_address() {
    let mut pair = pair();
    let first = message(&mut pair);
    pair.say(OPENER);
    pair.run_for(LATENCY_NS);
    pair.deliver(ACCEPTOR, elsewhere(2), &first.bytes);
    pair.turn(ACCEPTOR);
    assert!(pair.sides[ACCEPTOR].path(0).candidate.is_none());
    assert_eq!(pair.sides[ACCEPTOR].paths.dropped().stray, 1);
    assert!(sent_to(&pair, elsewhere(2)).is_empty());
    pair.deliver(ACCEPTOR, first.from, &first.bytes);
    pair.run_for(5 * MILLI);
    pair.assert_all_received();
}

/// A probed address has 100 ms: another one seen meanwhile is not probed, and does not replace the
/// probe; a later one is probed.
///
/// RR-PATH-4
#[test]
fn one_address_is_probed_at_a_time() {
    let mut pair = pair();
    let come = |pair: &mut Pair, from| {
        let datagram = message(pair);
        pair.deliver(ACCEPTOR, from, &datagram.bytes);
        pair.turn(ACCEPTOR);
        // It also arrives from the usual address, so that nothing is lost.
        pair.deliver(ACCEPTOR, datagram.from, &datagram.bytes);
        pair.run_for(MILLI);
    };
    come(&mut pair, elsewhere(1));
    come(&mut pair, elsewhere(2));
    assert_eq!([1, 2].map(|last| sent_to(&pair, elsewhere(last)).len()), [1, 0]);
    pair.run_for(100 * MILLI);
    come(&mut pair, elsewhere(2));
    assert_eq!([1, 2].map(|last| sent_to(&pair, elsewhere(last)).len()), [1, 1]);
    pair.run_for(100 * MILLI);
    pair.assert_all_received();
}

/// A probe without payload from an unknown address is answered at the known address, and gives no
/// samples.
///
/// RR-PATH-4
#[test]
fn probe_from_unknown_address_is_answered_without_migration() {
    let mut pair = pair();
    pair.ways[OPENER][0] = Way::Held;
    let Side { paths, slot, .. } = &mut pair.sides[OPENER];
    paths.ask_all_paths(pair.now_ns, *slot);
    pair.turn(OPENER);
    let probe = pair.held.pop().unwrap();
    assert!(probe.packet().is_probe());
    pair.ways[OPENER][0] = Way::Open;
    let (asked_ns, old) = (pair.now_ns, home(OPENER, 0));
    let answered = pair.sides[ACCEPTOR].path(0).packets.answered_sent_ns();
    pair.deliver(ACCEPTOR, elsewhere(1), &probe.bytes);
    pair.turn(ACCEPTOR);
    assert_eq!(known(&pair), [old, old]);
    assert_eq!(pair.sides[ACCEPTOR].paths.dropped(), Dropped::default());
    let path = &pair.sides[ACCEPTOR].path(0).packets;
    assert_eq!(path.answered_sent_ns(), answered, "its acknowledgement is ignored");
    let sent: Vec<Datagram> = pair.sent(ACCEPTOR, 0, asked_ns).into_iter().cloned().collect();
    assert!(sent.iter().any(|it| it.to == old || it.packet().ack.is_some()), "{sent:?}");
}

/// Its acknowledgement is ignored, too: an attacker may have delayed the original.
///
/// RR-PATH-4
#[test]
fn ack_in_a_probe_from_unknown_address_is_ignored() {
    let mut pair = pair();
    pair.set_rail(0, Way::Held);
    pair.say(ACCEPTOR);
    pair.say(ACCEPTOR);
    let held = std::mem::take(&mut pair.held);
    pair.deliver(OPENER, held[0].from, &held[0].bytes);
    pair.deliver(OPENER, elsewhere(1), &held[1].bytes);
    pair.turn(OPENER);
    let question = pair.held.iter().find(|it| it.to == elsewhere(1)).unwrap().clone();
    assert!(question.packet().is_probe() && question.packet().ack.is_some());
    let answered_ns = |pair: &mut Pair| {
        let Side { paths, slot, .. } = &mut pair.sides[ACCEPTOR];
        paths.of_mut(*slot).answered_sent_ns()
    };
    let before = answered_ns(&mut pair);
    pair.deliver(ACCEPTOR, elsewhere(5), &question.bytes);
    assert_eq!(answered_ns(&mut pair), before);
    assert_eq!(known(&pair), [home(OPENER, 0); 2]);
    assert_eq!(pair.sides[ACCEPTOR].paths.dropped(), Dropped::default(), "it is answered");
}

/// RR-PATH-4
#[test]
fn silent_path_probes_both_addresses_alternately() {
    let mut pair = pair();
    let (old, new) = (home(OPENER, 0), elsewhere(1));
    let first = message(&mut pair);
    pair.deliver(ACCEPTOR, new, &first.bytes);
    pair.seen_at[OPENER] = Some(new);
    pair.turn(ACCEPTOR);
    pair.run_for(5 * MILLI);
    assert_eq!(known(&pair), [new, old]);
    pair.set_rail(0, Way::Cut);
    pair.say(ACCEPTOR);
    pair.run_to(100 * MILLI, |pair| pair.sides[ACCEPTOR].path(0).health == Health::Silent);
    let silent_ns = pair.now_ns;
    pair.run_for(400 * MILLI);
    let sent = pair.sent(ACCEPTOR, 0, silent_ns);
    let times = |to| sent.iter().filter(|it| it.to == to).count();
    assert!(times(new) >= 2 && times(old) >= 2, "{} {}", times(new), times(old));
    assert!(sent.iter().all(|it| it.packet().is_probe()));
    // The NAT mapping is gone; the previous address answers.
    pair.seen_at[OPENER] = None;
    pair.set_rail(0, Way::Open);
    pair.run_to(2000 * MILLI, |pair| pair.sides[ACCEPTOR].path(0).health == Health::Good);
    pair.say(ACCEPTOR);
    pair.say(OPENER);
    pair.run_for(50 * MILLI);
    assert_eq!(known(&pair)[0], old);
    pair.assert_all_received();
}
