//! Session teardown, and slot reuse by later sessions.

use std::net::SocketAddr;

use super::super::*;
use super::pair::*;

/// Returns a pair with two paths and traffic: undrained packets, an address to probe, the stream on
/// the second path, outstanding segments.
fn busy() -> Pair {
    let mut pair = Pair::of_two_paths([0; RAILS]);
    for _ in 0..5 {
        pair.say(OPENER);
        pair.say(ACCEPTOR);
        pair.run_for(MILLI);
    }
    for rail in 0..RAILS {
        pair.set_rail(rail, Way::Held);
    }
    pair.say(OPENER);
    pair.say(ACCEPTOR);
    let held = std::mem::take(&mut pair.held);
    for datagram in held {
        let from = "192.0.2.1:9".parse().unwrap();
        for (to, from) in [(1 - datagram.by, from), (1 - datagram.by, datagram.from)] {
            pair.deliver(to, from, &datagram.bytes);
        }
    }
    let Side { paths, core, slot, .. } = &mut pair.sides[ACCEPTOR];
    paths.set_stream(*slot, 1);
    paths.note_streamed(*slot);
    paths.handle_link(core, pair.now_ns, 1, false);
    paths.ask_all_paths(pair.now_ns, *slot);
    let side = &pair.sides[ACCEPTOR];
    assert!(!side.paths.to_drain.is_empty() && side.paths.has_timers());
    assert!(side.path(0).candidate.is_some() && side.path(0).has_update);
    assert_eq!(side.paths.standing_by, 1);
    pair
}

/// RR-AUTH-8, RR-PATH-5
#[test]
fn closed_session_leaves_no_state_in_its_slot() {
    let mut pair = busy();
    let before = pair.sides[ACCEPTOR].paths.counters();
    let Side { paths, core, slot, memory, .. } = &mut pair.sides[ACCEPTOR];
    let (slot, now_ns) = (*slot, pair.now_ns);
    paths.close(slot);
    assert_eq!(format!("{:?}", paths.of(slot).unwrap()), format!("{:?}", Paths::default()));
    assert!(paths.is_empty() && paths.by_session.is_empty());
    assert_eq!((paths.standing_by, paths.of(slot).unwrap().count()), (0, 0));
    // The counters of its paths remain.
    let after = paths.counters();
    assert_eq!(format!("{after:?}"), format!("{before:?}"));
    // No timer remains, and polling all the same finds no work.
    assert!(!paths.of(slot).unwrap().are_open() && !paths.is_served(slot, CARRIER));
    paths.drain(core, memory);
    paths.drain_all(core, memory);
    paths.ask_all_paths(now_ns, slot);
    paths.ask_while_busy(core, now_ns, slot);
    paths.judge_paths(core, now_ns, slot);
    paths.handle_link(core, now_ns, 0, false);
    paths.watch_stream(now_ns, slot);
    paths.compare_deliveries(core, now_ns, slot, Some(OTHER));
    assert!(!paths.prepare_final_ack(slot) && paths.to_drain.is_empty());
    assert!(paths.lone_packet(core, slot).is_none());
    for index in 0..RAILS {
        let mut room = [0; 2000];
        assert!(paths.poll_transmit(core, (slot, index), now_ns, &mut room).is_none());
        assert!(paths.end_transmit(core, (slot, index), false, memory));
        paths.give_up_path(core, slot, index);
    }
    assert_eq!((paths.next_timer_ns(), paths.has_timers()), (None, false));
    // Closing again has no effect.
    paths.close(slot);
    assert_eq!(paths.standing_by, 0);
}

#[test]
fn timer_of_a_closed_session_does_not_fire() {
    let mut pair = busy();
    let Side { paths, core, slot, memory, .. } = &mut pair.sides[ACCEPTOR];
    let (slot, now_ns) = (*slot, pair.now_ns + 1000 * MILLI);
    paths.close(slot);
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
        let mut pair = busy();
        pair.end();
        let slot = pair.sides[ACCEPTOR].slot;
        let paths = &mut pair.sides[ACCEPTOR].paths;
        // Late calls for the previous session.
        paths.note_streamed(slot);
        paths.set_stream(slot, 2);
        paths.begin(slot, 3);
        let fresh = Paths { stream_at: 3, ..Paths::default() };
        assert_eq!(format!("{:?}", paths.of(slot).unwrap()), format!("{fresh:?}"));
        for rail in 0..RAILS {
            pair.set_rail(rail, Way::Open);
        }
        let Side { paths, core, .. } = &mut pair.sides[ACCEPTOR];
        paths.handle_link(core, pair.now_ns, 1, true);
        let counts = pair.sides.each_ref().map(|side| side.sent_count);
        pair.begin(id, 2);
        assert_eq!(pair.sides[ACCEPTOR].paths().count(), 1);
        assert_eq!(pair.sides[ACCEPTOR].paths().stream_at(), 0);
        let path = pair.sides[ACCEPTOR].path(0);
        assert!(path.candidate.is_none() && path.highest == 0 && !path.packets.is_answered());
        pair.run_for(20 * MILLI);
        for number in [OPENER, ACCEPTOR] {
            let side = &pair.sides[number];
            assert!(side.paths().all().all(SessionPath::is_active), "{:?}", side.paths());
            assert_eq!((side.paths.standing_by, side.paths.by_session.len()), (1, 1));
            pair.say(number);
        }
        pair.run_for(20 * MILLI);
        for number in [OPENER, ACCEPTOR] {
            let first = counts[1 - number];
            assert_eq!(pair.sides[number].received_after(first), [first]);
        }
    }
}

/// RR-PATH-1: an id that is in use must not mix two sessions up.
#[test]
fn second_session_with_the_same_id_gets_no_path() {
    let mut pair = Pair::new();
    pair.run_for(5 * MILLI);
    let Side { paths, core, slot, .. } = &mut pair.sides[ACCEPTOR];
    let there = core.sessions.at(*slot as usize).unwrap();
    let (id, keys) = (there.id, keys_of(3));
    // Another peer of the same engine.
    let ours = core.offer(id);
    let epoch = core.next_epoch();
    let from = SocketAddr::from(([127, 0, 0, 9], 1));
    let admission = core.judge_hello(99, from, id, epoch, 0).unwrap();
    let other = core.admit_peer(admission, ours, ours, keys).unwrap();
    assert_ne!(other, *slot);
    paths.begin(other, 0);
    paths.open_first_path(core, other, 7000, BYTES_MAX, false);
    assert_eq!(paths.of(other).unwrap().count(), 0);
    paths.close(other);
    assert_eq!(paths.by_session.get(&id), Some(&*slot), "it still belongs to the first one");
    pair.say(OPENER);
    pair.say(ACCEPTOR);
    pair.run_for(5 * MILLI);
    pair.assert_all_received();
}
