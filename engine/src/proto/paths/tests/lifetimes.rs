//! Session teardown, and slot reuse by later sessions.

use std::net::SocketAddr;

use super::super::*;
use super::pair::*;
use crate::proto::session::segments::PostedMessage;
use crate::proto::sim::send_request;

/// Returns a net with two paths and traffic: undrained packets, an address to probe, the stream on
/// the second path, outstanding segments.
fn busy() -> Net {
    let mut net = two_paths([0; RAILS]);
    for _ in 0..5 {
        net.send_one(OPENER);
        net.send_one(ACCEPTOR);
        net.run_for(MILLI);
    }
    for rail in 0..RAILS {
        net.set_gates(rail, Gate::Held);
    }
    net.send_one(OPENER);
    net.send_one(ACCEPTOR);
    let held = std::mem::take(&mut net.held);
    for datagram in held {
        let from = "192.0.2.1:9".parse().unwrap();
        for (to, from) in [(1 - datagram.by, from), (1 - datagram.by, datagram.from)] {
            net.deliver_packet(to, from, &datagram.bytes);
        }
    }
    let now_ns = net.now_ns();
    let Engine { paths, core, .. } = &mut net.engines[ACCEPTOR];
    paths.set_stream(SLOT, 1);
    paths.note_streamed(SLOT);
    paths.handle_link(core, now_ns, 1, false);
    paths.ask_all_paths(now_ns, SLOT);
    let engine = &net.engines[ACCEPTOR];
    assert!(!engine.paths.shared.to_drain.is_empty() && engine.paths.has_timers());
    assert!(engine.path(0).peer().has_candidate() && engine.path(0).visits().has_update());
    assert_eq!(engine.paths.shared.standing_by, 1);
    net
}

/// RR-AUTH-8, RR-PATH-5
#[test]
fn closed_session_leaves_no_state_in_its_slot() {
    let mut net = busy();
    let before = net.engines[ACCEPTOR].paths.counters();
    let now_ns = net.now_ns();
    let Engine { paths, core, memory, peers, .. } = &mut net.engines[ACCEPTOR];
    let &peer = peers.values().next().unwrap();
    paths.close(SLOT);
    assert_eq!(format!("{:?}", paths.of(SLOT).unwrap()), format!("{:?}", Paths::default()));
    assert!(paths.is_empty() && paths.shared.by_session.is_empty());
    assert_eq!((paths.shared.standing_by, paths.of(SLOT).unwrap().count()), (0, 0));
    // The counters of its paths remain.
    let after = paths.counters();
    assert_eq!(format!("{after:?}"), format!("{before:?}"));
    // No timer remains, and polling all the same finds no work.
    assert!(!paths.of(SLOT).unwrap().are_open() && !paths.is_served(SLOT, PRIMARY));
    paths.drain(core, memory);
    paths.drain_all(core, memory);
    paths.ask_all_paths(now_ns, SLOT);
    let (closed, session, mut cx) = paths.enter(core, SLOT).unwrap();
    closed.ask_while_busy(session, &mut cx, now_ns);
    closed.judge(session, &mut cx, now_ns);
    closed.compare_deliveries(session, &mut cx, now_ns, Some(OTHER));
    paths.handle_link(core, now_ns, 0, false);
    paths.watch_stream(now_ns, SLOT);
    assert!(!paths.prepare_final_ack(SLOT) && paths.shared.to_drain.is_empty());
    let request = send_request(peer, 0, 0, 8);
    let frame =
        PostedMessage { request: &request, target: 0, fill: |_: &mut [u8]| {}, whole: None };
    assert!(paths.lone_packet(core, SLOT, &frame).is_none());
    for index in 0..RAILS {
        let mut room = [0; 2000];
        assert!(paths.poll_transmit(core, (SLOT, index), now_ns, &mut room).is_none());
        assert!(paths.end_transmit(core, (SLOT, index), false, memory));
        paths.give_up_path(core, SLOT, index);
    }
    assert_eq!((paths.next_timer_ns(), paths.has_timers()), (None, false));
    // Closing again has no effect.
    paths.close(SLOT);
    assert_eq!(paths.shared.standing_by, 0);
}

#[test]
fn timer_of_a_closed_session_does_not_fire() {
    let mut net = busy();
    let now_ns = net.now_ns() + 1000 * MILLI;
    let Engine { paths, core, memory, .. } = &mut net.engines[ACCEPTOR];
    paths.close(SLOT);
    paths.begin_timeouts(now_ns);
    let mut stale = 0;
    while let Some((at_ns, session)) = paths.poll_timeout(now_ns) {
        stale += 1;
        let timeout = Timeout { at_ns, now_ns, late_ns: 0, is_drained: true };
        for index in 0..RAILS {
            assert!(!paths.handle_timeout(core, (session, index), timeout, memory));
        }
        paths.judge_after_timeout(core, now_ns, session);
    }
    paths.end_timeouts();
    assert!(stale > 0 && !paths.has_timers());
}

/// A session in a reused slot starts with fresh state, with events and timers of its own.
#[test]
fn session_in_a_reused_slot_starts_afresh() {
    for id in [SESSION, SESSION + 1] {
        let mut net = busy();
        net.end();
        let paths = &mut net.engines[ACCEPTOR].paths;
        // Late calls for the previous session.
        paths.note_streamed(SLOT);
        paths.set_stream(SLOT, 2);
        paths.begin(SLOT, 3);
        let fresh = Paths { stream_at: 3, ..Paths::default() };
        assert_eq!(format!("{:?}", paths.of(SLOT).unwrap()), format!("{fresh:?}"));
        for rail in 0..RAILS {
            net.set_gates(rail, Gate::Open);
        }
        let now_ns = net.now_ns();
        let Engine { paths, core, .. } = &mut net.engines[ACCEPTOR];
        paths.handle_link(core, now_ns, 1, true);
        let counts = [OPENER, ACCEPTOR].map(|number| messages(&net, number));
        net.begin(id, 2);
        assert_eq!(net.engines[ACCEPTOR].paths().count(), 1);
        assert_eq!(net.engines[ACCEPTOR].paths().stream_at(), 0);
        let path = net.engines[ACCEPTOR].path(0);
        assert!(
            !path.peer().has_candidate() && path.highest() == 0 && !path.packets().is_answered()
        );
        net.run_for(20 * MILLI);
        for number in [OPENER, ACCEPTOR] {
            let engine = &net.engines[number];
            assert!(engine.paths().all().all(SessionPath::is_active), "{:?}", engine.paths());
            assert_eq!(
                (engine.paths.shared.standing_by, engine.paths.shared.by_session.len()),
                (1, 1)
            );
            net.send_one(number);
        }
        net.run_for(20 * MILLI);
        for number in [OPENER, ACCEPTOR] {
            let first = counts[1 - number];
            assert_eq!(net.received_from(number, first), [first]);
        }
    }
}

/// RR-PATH-1: an id that is in use must not mix two sessions up.
#[test]
fn second_session_with_the_same_id_gets_no_path() {
    let mut net = one_path();
    net.run_for(5 * MILLI);
    let Engine { paths, core, .. } = &mut net.engines[ACCEPTOR];
    let there = core.sessions.at(SLOT as usize).unwrap();
    let (id, keys) = (there.id(), keys_of(3));
    // Another peer of the same engine.
    let ours = core.shared().offer(id);
    let epoch = core.shared_mut().peers_mut().next_epoch();
    let from = SocketAddr::from(([127, 0, 0, 9], 1));
    let admission = core.judge_hello(99, from, id, epoch, 0).unwrap();
    let other = core.admit_peer(admission, ours, ours, keys).unwrap();
    assert_ne!(other, SLOT);
    paths.begin(other, 0);
    paths.open_first_path(core, other, 7000, PACKET_BYTES_MAX, false);
    assert_eq!(paths.of(other).unwrap().count(), 0);
    paths.close(other);
    assert_eq!(paths.shared.by_session.get(&id), Some(&SLOT), "it still belongs to the first one");
    net.send_one(OPENER);
    net.send_one(ACCEPTOR);
    net.run_for(5 * MILLI);
    net.assert_all_received();
}

/// RR-PATH-1
#[test]
fn a_session_id_in_use_opens_no_path() {
    let mut net = busy();
    let Engine { paths, core, .. } = &mut net.engines[ACCEPTOR];
    let before = paths.of(SLOT).unwrap().count();
    assert!(!paths.open_first_path(core, SLOT, 9, 1400, false));
    assert_eq!(paths.of(SLOT).unwrap().count(), before);
}
