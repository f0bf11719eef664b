//! Several paths: one is primary, and another one takes over.

use super::super::*;
use super::pair::*;
use crate::proto::session::rails::health::PathCause;
use crate::wire::rail::{ROLE_BACKUP, ROLE_PREFERRED};

const FIRST: u16 = 0;

/// Both engines send a message every millisecond.
fn talk(net: &mut Net, millis: u64) {
    for _ in 0..millis {
        net.send_one(OPENER);
        net.send_one(ACCEPTOR);
        net.run_for(MILLI);
    }
}

fn primaries(net: &Net) -> [Option<u16>; 2] {
    both(net, Engine::primary)
}

/// Returns the path events reported to an engine for one of its rails.
fn reported(net: &Net, engine: usize, rail: u8) -> Vec<(PathPhase, PathCause)> {
    let all = net.engines[engine].path_changes.iter().filter(|(at, _)| *at == rail);
    all.map(|(_, change)| (change.to, change.cause)).collect()
}

/// Returns the number of packets with payload that an engine has sent on a rail since `since_ns`.
fn payloads(net: &Net, engine: usize, rail: usize, since_ns: u64) -> usize {
    net.packets(engine, rail, since_ns).into_iter().filter(|it| it.has_payload()).count()
}

/// RR-RAIL-4
#[test]
fn primary_path_moves_from_a_suspect_path_and_returns() {
    let mut net = two_paths([0; RAILS]);
    assert_eq!(primaries(&net), [Some(FIRST); 2]);
    talk(&mut net, 20);
    assert_eq!((payloads(&net, OPENER, 1, 0), payloads(&net, ACCEPTOR, 1, 0)), (0, 0));
    let by_stream = net.engines[OPENER].by_stream;
    net.set_gates(0, Gate::Cut);
    let cut_ns = net.now_ns();
    for _ in 0..3 {
        net.send_one(OPENER);
    }
    assert_eq!(payloads(&net, OPENER, 0, cut_ns), 3);
    let moved_ns = net.run_to(10 * MILLI, |net| primaries(net)[OPENER] == Some(OTHER));
    assert!(moved_ns < 5 * MILLI, "{moved_ns}");
    assert_eq!(reported(&net, OPENER, 0).last().unwrap().0, PathPhase::Suspect);
    assert!(net.engines[OPENER].path(FIRST).is_held());
    // Outstanding segments are sent again at once, on the other path.
    net.run_for(3 * LATENCY_NS);
    assert!(payloads(&net, OPENER, 1, cut_ns) > 0);
    net.assert_all_received();
    talk(&mut net, 150);
    net.assert_all_received();
    assert_eq!(primaries(&net), [Some(OTHER); 2]);
    assert_eq!(reported(&net, OPENER, 0).last().unwrap().0, PathPhase::Down);
    // Only probes are sent where nothing answers.
    assert_eq!(payloads(&net, OPENER, 0, cut_ns + 5 * MILLI), 0);
    assert!(net.packets(OPENER, 0, cut_ns + 5 * MILLI).len() > 2);
    assert!(
        net.engines[OPENER].path(FIRST).needs_sum() && !net.engines[OPENER].path(OTHER).needs_sum()
    );
    // It answers again: after several answers it is the first of two equal paths.
    net.set_gates(0, Gate::Open);
    let healed_ns = net.now_ns();
    while primaries(&net) != [Some(FIRST); 2] {
        talk(&mut net, 1);
        assert!(net.now_ns() < healed_ns + 200 * MILLI, "{:?}", net.engines[OPENER].paths());
    }
    let tail: Vec<PathPhase> =
        reported(&net, OPENER, 0).iter().rev().take(2).map(|it| it.0).collect();
    assert_eq!(tail, [PathPhase::Active, PathPhase::Probing]);
    let back_ns = net.now_ns();
    talk(&mut net, 20);
    assert!(payloads(&net, OPENER, 0, back_ns) >= 20);
    // RR-PATH-8: only the path that has failed has checksums from then on.
    assert!(net.packets(OPENER, 0, back_ns).iter().all(|it| it.is_summed));
    assert!(net.packets(OPENER, 1, back_ns).iter().all(|it| !it.is_summed));
    assert_eq!(net.engines[OPENER].by_stream, by_stream, "TCP was not used");
    net.run_for(20 * MILLI);
    net.assert_all_received();
}

/// Segments outstanding on the old path arrive after they were sent again on the other one.
///
/// RR-RAIL-4
#[test]
fn duplicates_across_paths_are_delivered_once() {
    let mut net = two_paths([0; RAILS]);
    talk(&mut net, 5);
    net.run_for(5 * MILLI);
    net.set_gates(0, Gate::Held);
    for _ in 0..4 {
        net.send_one(OPENER);
        net.send_one(ACCEPTOR);
    }
    net.run_to(10 * MILLI, |net| primaries(net) == [Some(OTHER); 2]);
    net.run_for(5 * LATENCY_NS);
    net.assert_all_received();
    let late = net.held.iter().filter(|it| it.has_payload()).count();
    assert!(late >= 8, "{late}");
    let segments = both(&net, |engine| engine.paths.shared.segments);
    net.set_gates(0, Gate::Open);
    net.release();
    talk(&mut net, 50);
    for (engine, before) in net.engines.iter().zip(segments) {
        assert!(engine.paths.shared.segments >= before + 50 + 4, "they arrived");
    }
    net.run_for(5 * MILLI);
    net.assert_all_received();
}

/// A path that is down for lack of carrier is abandoned at once, where another one answers.
///
/// RR-RAIL-6
#[test]
fn rail_without_carrier_is_abandoned_at_once() {
    let mut net = two_paths([0; RAILS]);
    talk(&mut net, 5);
    net.set_gates(0, Gate::Cut);
    let now_ns = net.now_ns();
    let engine = &mut net.engines[OPENER];
    engine.paths.handle_link(&mut engine.core, now_ns, 0, false);
    assert_eq!(engine.primary(), Some(OTHER));
    assert!(engine.paths.is_rail_down(0) && !engine.paths.is_rail_down(1));
    // RR-PATH-8
    assert!(engine.path(FIRST).needs_sum() && !engine.path(OTHER).needs_sum());
    net.turn(OPENER);
    assert_eq!(reported(&net, OPENER, 0).last().unwrap(), &(PathPhase::Down, PathCause::NoLink));
    talk(&mut net, 20);
    net.assert_all_received();
    let now_ns = net.now_ns();
    let engine = &mut net.engines[OPENER];
    engine.paths.handle_link(&mut engine.core, now_ns, 0, true);
    assert_eq!(engine.primary(), Some(OTHER), "primary is a hint: the path must answer");
    net.set_gates(0, Gate::Open);
    talk(&mut net, 100);
    assert_eq!(primaries(&net), [Some(FIRST); 2]);
    net.assert_all_received();
}

/// RR-RAIL-4
#[test]
fn primary_path_follows_rail_preferences() {
    for (roles, primary) in [
        ([0, ROLE_PREFERRED], OTHER),
        ([ROLE_BACKUP, 0], OTHER),
        ([0, ROLE_BACKUP], FIRST),
        ([ROLE_PREFERRED, 0], FIRST),
    ] {
        let mut net = two_paths(roles);
        talk(&mut net, 10);
        assert_eq!(primaries(&net), [Some(primary); 2], "{roles:?}");
        let rail = usize::from(primary != FIRST);
        net.set_gates(rail, Gate::Cut);
        talk(&mut net, 20);
        let other = if primary == FIRST { OTHER } else { FIRST };
        assert_eq!(primaries(&net), [Some(other); 2], "{roles:?}");
        net.set_gates(rail, Gate::Open);
        talk(&mut net, 200);
        assert_eq!(primaries(&net), [Some(primary); 2], "{roles:?}");
        net.assert_all_received();
    }
}

/// RR-RAIL-4
#[test]
fn lowest_latency_of_equal_paths_is_primary() {
    let mut net = two_paths([0; RAILS]);
    net.links.iter_mut().for_each(|links| links[0].config.delay_ns += 200_000);
    talk(&mut net, 100);
    assert_eq!(primaries(&net), [Some(OTHER); 2]);
    net.run_for(5 * MILLI);
    net.assert_all_received();
}

/// RR-RAIL-4, RR-PATH-3
#[test]
fn segments_use_tcp_until_a_path_answers() {
    let mut net = two_paths([0; RAILS]);
    talk(&mut net, 10);
    for rail in 0..RAILS {
        net.set_gates(rail, Gate::Cut);
    }
    let cut_ns = net.now_ns();
    let by_stream = net.engines[OPENER].by_stream;
    net.send_one(OPENER);
    net.send_one(ACCEPTOR);
    net.run_to(500 * MILLI, |net| primaries(net) == [None; 2]);
    net.run_for(2 * STREAM_NS);
    assert!(net.engines[OPENER].by_stream > by_stream);
    net.assert_all_received();
    assert!(net.engines[OPENER].paths().silent_since_ns().is_some());
    let silent_ns = net.now_ns();
    talk(&mut net, 50);
    net.assert_all_received();
    for rail in 0..RAILS {
        assert_eq!(payloads(&net, OPENER, rail, silent_ns), 0);
        assert!(net.packets(OPENER, rail, silent_ns).iter().all(|it| it.packet().is_probe()));
    }
    // The first path to answer is needed, and carries segments at once.
    net.set_gates(1, Gate::Open);
    talk(&mut net, 100);
    assert_eq!(primaries(&net), [Some(OTHER); 2]);
    assert_eq!(net.engines[OPENER].paths().silent_since_ns(), None);
    let by_stream = net.engines[OPENER].by_stream;
    talk(&mut net, 20);
    assert_eq!(net.engines[OPENER].by_stream, by_stream);
    net.run_for(20 * MILLI);
    net.assert_all_received();
    assert!(net.now_ns() > cut_ns);
}

/// A suspended peer answers on no path: no path is blamed.
#[test]
fn suspended_peer_does_not_fail_paths() {
    let mut net = two_paths([0; RAILS]);
    talk(&mut net, 10);
    let path_changes = net.engines[OPENER].path_changes.len();
    for rail in 0..RAILS {
        net.links[ACCEPTOR][rail].gate = Gate::Held;
    }
    net.send_one(OPENER);
    net.run_for(20 * MILLI);
    for rail in 0..RAILS {
        net.links[ACCEPTOR][rail].gate = Gate::Open;
    }
    net.release();
    talk(&mut net, 10);
    assert_eq!(
        net.engines[OPENER].path_changes.len(),
        path_changes,
        "{:?}",
        net.engines[OPENER].path_changes
    );
    assert_eq!(primaries(&net), [Some(FIRST); 2]);
    net.run_for(20 * MILLI);
    net.assert_all_received();
}
