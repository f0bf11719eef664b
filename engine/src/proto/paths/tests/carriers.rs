//! Several paths: one is primary, and another one takes over.

use super::super::*;
use super::pair::*;
use crate::proto::rails::health::PathCause;
use crate::wire::rail::{ROLE_BACKUP, ROLE_PREFERRED};

const FIRST: u16 = 0;

/// Both sides send a message every millisecond.
fn talk(pair: &mut Pair, millis: u64) {
    for _ in 0..millis {
        pair.say(OPENER);
        pair.say(ACCEPTOR);
        pair.run_for(MILLI);
    }
}

fn carriers(pair: &Pair) -> [Option<u16>; 2] {
    pair.sides.each_ref().map(Side::carrier)
}

/// Returns the path events reported to a side for one of its rails.
fn reported_changes(pair: &Pair, side: usize, rail: u8) -> Vec<(Phase, PathCause)> {
    let all = pair.sides[side].changes.iter().filter(|(at, _)| *at == rail);
    all.map(|(_, change)| (change.to, change.cause)).collect()
}

/// Returns the number of packets with payload that a side has sent on a rail since `since_ns`.
fn payloads(pair: &Pair, side: usize, rail: usize, since_ns: u64) -> usize {
    pair.sent(side, rail, since_ns).into_iter().filter(|it| it.has_payload()).count()
}

/// RR-RAIL-4
#[test]
fn primary_path_moves_from_a_suspect_path_and_returns() {
    let mut pair = Pair::of_two_paths([0; RAILS]);
    assert_eq!(carriers(&pair), [Some(FIRST); 2]);
    talk(&mut pair, 20);
    assert_eq!((payloads(&pair, OPENER, 1, 0), payloads(&pair, ACCEPTOR, 1, 0)), (0, 0));
    let by_stream = pair.sides[OPENER].by_stream;
    pair.set_rail(0, Way::Cut);
    let cut_ns = pair.now_ns;
    for _ in 0..3 {
        pair.say(OPENER);
    }
    assert_eq!(payloads(&pair, OPENER, 0, cut_ns), 3);
    let moved_ns = pair.run_to(10 * MILLI, |pair| carriers(pair)[OPENER] == Some(OTHER));
    assert!(moved_ns < 5 * MILLI, "{moved_ns}");
    assert_eq!(reported_changes(&pair, OPENER, 0).last().unwrap().0, Phase::Suspect);
    assert!(pair.sides[OPENER].path(FIRST).is_held);
    // Outstanding segments are sent again at once, on the other path.
    pair.run_for(3 * LATENCY_NS);
    assert!(payloads(&pair, OPENER, 1, cut_ns) > 0);
    pair.assert_all_received();
    talk(&mut pair, 150);
    pair.assert_all_received();
    assert_eq!(carriers(&pair), [Some(OTHER); 2]);
    assert_eq!(reported_changes(&pair, OPENER, 0).last().unwrap().0, Phase::Down);
    // Only probes are sent where nothing answers.
    assert_eq!(payloads(&pair, OPENER, 0, cut_ns + 5 * MILLI), 0);
    assert!(pair.sent(OPENER, 0, cut_ns + 5 * MILLI).len() > 2);
    assert!(pair.sides[OPENER].path(FIRST).needs_sum && !pair.sides[OPENER].path(OTHER).needs_sum);
    // It answers again: after several answers it is the first of two equal paths.
    pair.set_rail(0, Way::Open);
    let healed_ns = pair.now_ns;
    while carriers(&pair) != [Some(FIRST); 2] {
        talk(&mut pair, 1);
        assert!(pair.now_ns < healed_ns + 200 * MILLI, "{:?}", pair.sides[OPENER].paths());
    }
    let tail: Vec<Phase> =
        reported_changes(&pair, OPENER, 0).iter().rev().take(2).map(|it| it.0).collect();
    assert_eq!(tail, [Phase::Active, Phase::Probing]);
    let back_ns = pair.now_ns;
    talk(&mut pair, 20);
    assert!(payloads(&pair, OPENER, 0, back_ns) >= 20);
    // RR-PATH-8: only the path that has failed has checksums from then on.
    assert!(pair.sent(OPENER, 0, back_ns).iter().all(|it| it.is_summed));
    assert!(pair.sent(OPENER, 1, back_ns).iter().all(|it| !it.is_summed));
    assert_eq!(pair.sides[OPENER].by_stream, by_stream, "TCP was not used");
    pair.run_for(20 * MILLI);
    pair.assert_all_received();
}

/// Segments outstanding on the old path arrive after they were sent again on the other one.
///
/// RR-RAIL-4
#[test]
fn duplicates_across_paths_are_delivered_once() {
    let mut pair = Pair::of_two_paths([0; RAILS]);
    talk(&mut pair, 5);
    pair.run_for(5 * MILLI);
    for ways in &mut pair.ways {
        ways[0] = Way::Held;
    }
    for _ in 0..4 {
        pair.say(OPENER);
        pair.say(ACCEPTOR);
    }
    pair.run_to(10 * MILLI, |pair| carriers(pair) == [Some(OTHER); 2]);
    pair.run_for(5 * LATENCY_NS);
    pair.assert_all_received();
    let late = pair.held.iter().filter(|it| it.has_payload()).count();
    assert!(late >= 8, "{late}");
    let segments = pair.sides.each_ref().map(|side| side.paths.segments);
    pair.set_rail(0, Way::Open);
    pair.release();
    talk(&mut pair, 50);
    for (side, before) in pair.sides.iter().zip(segments) {
        assert!(side.paths.segments >= before + 50 + 4, "they arrived");
    }
    pair.run_for(5 * MILLI);
    pair.assert_all_received();
}

/// A path that is down for lack of carrier is abandoned at once, where another one answers.
///
/// RR-RAIL-6
#[test]
fn rail_without_carrier_is_abandoned_at_once() {
    let mut pair = Pair::of_two_paths([0; RAILS]);
    talk(&mut pair, 5);
    pair.set_rail(0, Way::Cut);
    let side = &mut pair.sides[OPENER];
    side.paths.handle_link(&mut side.core, pair.now_ns, 0, false);
    assert_eq!(side.carrier(), Some(OTHER));
    assert!(side.paths.is_rail_down(0) && !side.paths.is_rail_down(1));
    // RR-PATH-8
    assert!(side.path(FIRST).needs_sum && !side.path(OTHER).needs_sum);
    pair.turn(OPENER);
    assert_eq!(
        reported_changes(&pair, OPENER, 0).last().unwrap(),
        &(Phase::Down, PathCause::NoLink)
    );
    talk(&mut pair, 20);
    pair.assert_all_received();
    let side = &mut pair.sides[OPENER];
    side.paths.handle_link(&mut side.core, pair.now_ns, 0, true);
    assert_eq!(side.carrier(), Some(OTHER), "carrier is a hint: the path must answer");
    pair.set_rail(0, Way::Open);
    talk(&mut pair, 100);
    assert_eq!(carriers(&pair), [Some(FIRST); 2]);
    pair.assert_all_received();
}

/// RR-RAIL-4
#[test]
fn primary_path_follows_rail_preferences() {
    for (roles, carrier) in [
        ([0, ROLE_PREFERRED], OTHER),
        ([ROLE_BACKUP, 0], OTHER),
        ([0, ROLE_BACKUP], FIRST),
        ([ROLE_PREFERRED, 0], FIRST),
    ] {
        let mut pair = Pair::of_two_paths(roles);
        talk(&mut pair, 10);
        assert_eq!(carriers(&pair), [Some(carrier); 2], "{roles:?}");
        let rail = usize::from(carrier != FIRST);
        pair.set_rail(rail, Way::Cut);
        talk(&mut pair, 20);
        let other = if carrier == FIRST { OTHER } else { FIRST };
        assert_eq!(carriers(&pair), [Some(other); 2], "{roles:?}");
        pair.set_rail(rail, Way::Open);
        talk(&mut pair, 200);
        assert_eq!(carriers(&pair), [Some(carrier); 2], "{roles:?}");
        pair.assert_all_received();
    }
}

/// RR-RAIL-4
#[test]
fn lowest_latency_of_equal_paths_is_primary() {
    let mut pair = Pair::of_two_paths([0; RAILS]);
    pair.extra_ns[0] = 200_000;
    talk(&mut pair, 100);
    assert_eq!(carriers(&pair), [Some(OTHER); 2]);
    pair.run_for(5 * MILLI);
    pair.assert_all_received();
}

/// RR-RAIL-4, RR-PATH-3
#[test]
fn segments_use_tcp_until_a_path_answers() {
    let mut pair = Pair::of_two_paths([0; RAILS]);
    talk(&mut pair, 10);
    for rail in 0..RAILS {
        pair.set_rail(rail, Way::Cut);
    }
    let cut_ns = pair.now_ns;
    let by_stream = pair.sides[OPENER].by_stream;
    pair.say(OPENER);
    pair.say(ACCEPTOR);
    pair.run_to(500 * MILLI, |pair| carriers(pair) == [None; 2]);
    pair.run_for(2 * STREAM_NS);
    assert!(pair.sides[OPENER].by_stream > by_stream);
    pair.assert_all_received();
    assert!(pair.sides[OPENER].paths().silent_since_ns().is_some());
    let silent_ns = pair.now_ns;
    talk(&mut pair, 50);
    pair.assert_all_received();
    for rail in 0..RAILS {
        assert_eq!(payloads(&pair, OPENER, rail, silent_ns), 0);
        assert!(pair.sent(OPENER, rail, silent_ns).iter().all(|it| it.packet().is_probe()));
    }
    // The first path to answer is needed, and carries segments at once.
    pair.set_rail(1, Way::Open);
    talk(&mut pair, 100);
    assert_eq!(carriers(&pair), [Some(OTHER); 2]);
    assert_eq!(pair.sides[OPENER].paths().silent_since_ns(), None);
    let by_stream = pair.sides[OPENER].by_stream;
    talk(&mut pair, 20);
    assert_eq!(pair.sides[OPENER].by_stream, by_stream);
    pair.run_for(20 * MILLI);
    pair.assert_all_received();
    assert!(pair.now_ns > cut_ns);
}

/// A suspended peer answers on no path: no path is blamed.
#[test]
fn suspended_peer_does_not_fail_paths() {
    let mut pair = Pair::of_two_paths([0; RAILS]);
    talk(&mut pair, 10);
    let changes = pair.sides[OPENER].changes.len();
    for rail in 0..RAILS {
        pair.ways[ACCEPTOR][rail] = Way::Held;
    }
    pair.say(OPENER);
    pair.run_for(20 * MILLI);
    for rail in 0..RAILS {
        pair.ways[ACCEPTOR][rail] = Way::Open;
    }
    pair.release();
    talk(&mut pair, 10);
    assert_eq!(pair.sides[OPENER].changes.len(), changes, "{:?}", pair.sides[OPENER].changes);
    assert_eq!(carriers(&pair), [Some(FIRST); 2]);
    pair.run_for(20 * MILLI);
    pair.assert_all_received();
}
