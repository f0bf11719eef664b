//! Hosts that answer for processes which do not.

use std::time::Duration;

use super::scenarios::{MILLISECOND, add_hosts, config, empty_world, pass, peer, run, send, talk};
use super::world::World;
use crate::driver::sim::local_peers::LocalPeerImpairments;
use crate::driver::sim::net::Impairments;
use crate::progress::engine::LoopConfig;
use crate::proto::core::Config;
use crate::proto::effects::CompletionLevel;
use crate::proto::session::connection::Retry;
use crate::proto::session::control_lane::SilentTimeout;
use crate::types::{Event, Peer, PeerFailure};

const SECOND: u64 = 1000 * MILLISECOND;
const PEER_TIMEOUT: Duration = Duration::from_secs(4);

/// Two hosts that have a session, and a limit that the user has not set.
fn world(seed: u64, limit: Duration) -> World {
    let timeout = SilentTimeout { limit, is_chosen: false };
    world_of(seed, timeout, true, |_| {})
}

/// The same, with or without datagrams.
fn world_with(seed: u64, limit: Duration, has_datagrams: bool) -> World {
    let timeout = SilentTimeout { limit, is_chosen: false };
    world_of(seed, timeout, has_datagrams, |_| {})
}

/// The same, of hosts on which `prepare` runs before they connect.
fn world_of(
    seed: u64,
    silent_timeout: SilentTimeout,
    has_datagrams: bool,
    prepare: impl Fn(&mut World),
) -> World {
    let impairments =
        Impairments { keep_alive_ns: PEER_TIMEOUT.as_nanos() as u64, ..Impairments::ideal() };
    let mut world = empty_world(seed, impairments, has_datagrams);
    let loops = LoopConfig {
        peer_timeout: PEER_TIMEOUT,
        silent_timeout,
        ..super::scenarios::loop_config()
    };
    let config = Config { answers: true, ..config() };
    add_hosts(&mut world, 2, &[], &config, loops);
    prepare(&mut world);
    talk(&mut world, [0, 1], "the session begins");
    pass(&mut world, SECOND);
    assert_eq!(failures(&mut world, 0), []);
    world
}

/// The failures that an engine has reported since this was last called.
fn failures(world: &mut World, host: usize) -> Vec<PeerFailure> {
    let engine = world.engine(host).unwrap();
    let mut reported = Vec::new();
    while let Some(event) = engine.state.completions_mut().events_mut().first().pop_front() {
        if let Event::Disconnected { failure, .. } = event {
            reported.push(failure);
        }
    }
    reported
}

/// RR-END-6
#[test]
fn a_process_that_stands_still_for_a_minute_keeps_its_session() {
    for seed in 0..4 {
        let mut world = world(seed, Duration::from_secs(300));
        if seed % 2 == 1 {
            // Idle for longer than a silence may last.
            pass(&mut world, 1000 * SECOND);
        }
        world.net.borrow_mut().pause(1, 60 * SECOND);
        pass(&mut world, 61 * SECOND);
        for host in 0..2 {
            assert_eq!(failures(&mut world, host), [], "seed {seed}, host {host}");
        }
        talk(&mut world, [0, 1], "it goes on");
        talk(&mut world, [1, 0], "both ways");
    }
}

/// RR-END-6
#[test]
fn a_silent_engine_whose_host_answers_ends_the_session_in_time_and_is_usable_again() {
    for seed in 0..4 {
        let mut world = world(seed, Duration::from_secs(20));
        pass(&mut world, 100 * SECOND);
        world.net.borrow_mut().pause(1, 120 * SECOND);
        pass(&mut world, 15 * SECOND);
        assert_eq!(failures(&mut world, 0), [], "too early");
        pass(&mut world, 30 * SECOND);
        let reported = failures(&mut world, 0);
        let [PeerFailure::Lost(why)] = &reported[..] else { panic!("{reported:?}") };
        assert!(why.contains("its host answers") && why.contains("silent_timeout"), "{why}");
        pass(&mut world, 100 * SECOND);
        for (at, of) in [(0, 1), (1, 0)] {
            let to = Peer(peer(&mut world, at, of));
            let engine = world.engine(at).unwrap();
            assert!(engine.state.connected(to).is_err(), "it stays until the user connects");
            // It may report once that completed sends may be lost.
            let _ = engine.start_connect(to);
            run(&mut world, "it is there again", |world| {
                world.engine(at).unwrap().state.connected(to).is_ok_and(|is_up| is_up)
            });
        }
        talk(&mut world, [0, 1], "it goes on");
    }
}

/// RR-END-7
#[test]
fn a_silent_engine_without_datagrams_ends_the_session_in_time() {
    for seed in 0..4 {
        let mut world = world_with(seed, Duration::from_secs(20), false);
        // It answers while it is idle.
        pass(&mut world, 100 * SECOND);
        assert_eq!(failures(&mut world, 0), [], "seed {seed}");
        world.net.borrow_mut().pause(1, 15 * SECOND);
        pass(&mut world, 40 * SECOND);
        assert_eq!(failures(&mut world, 0), [], "seed {seed}: it was there again in time");
        world.net.borrow_mut().pause(1, 120 * SECOND);
        pass(&mut world, 15 * SECOND);
        assert_eq!(failures(&mut world, 0), [], "too early");
        pass(&mut world, 40 * SECOND);
        let reported = failures(&mut world, 0);
        let [PeerFailure::Lost(why)] = &reported[..] else { panic!("{reported:?}") };
        assert!(why.contains("its host answers") && why.contains("silent_timeout"), "{why}");
    }
}

/// One that does not say that it answers, as it has no thread for that, is not judged.
///
/// RR-END-7
#[test]
fn an_engine_that_promises_no_answers_keeps_its_session() {
    let mut world = empty_world(3, Impairments::ideal(), false);
    let limit = Duration::from_secs(20);
    let silent_timeout = SilentTimeout { limit, is_chosen: false };
    let loops = LoopConfig { silent_timeout, ..super::scenarios::loop_config() };
    add_hosts(&mut world, 2, &[], &Config { answers: false, ..config() }, loops);
    talk(&mut world, [0, 1], "the session begins");
    world.net.borrow_mut().pause(1, 120 * SECOND);
    pass(&mut world, 121 * SECOND);
    assert_eq!(failures(&mut world, 0), []);
    talk(&mut world, [0, 1], "it goes on");
}

/// RR-END-6
#[test]
fn a_failure_that_is_forgotten_has_the_next_send_connect() {
    let mut world = world(12, Duration::from_secs(20));
    pass(&mut world, 10 * SECOND);
    world.net.borrow_mut().pause(1, 60 * SECOND);
    pass(&mut world, 70 * SECOND);
    assert_eq!(failures(&mut world, 0).len(), 1);
    for (at, of) in [(0, 1), (1, 0)] {
        let to = Peer(peer(&mut world, at, of));
        let engine = world.engine(at).unwrap();
        assert!(engine.state.connected(to).is_err());
        engine.state.forget_failure(to).unwrap();
        assert!(!engine.state.connected(to).unwrap(), "nothing is sent yet");
    }
    let to = peer(&mut world, 0, 1);
    send(&mut world, 0, to, 9, 10, CompletionLevel::Inject);
    run(&mut world, "the send connects", |world| {
        world.engine(0).unwrap().state.connected(Peer(to)).is_ok_and(|is_up| is_up)
    });
}

/// RR-END-6
#[test]
fn a_process_that_stands_still_at_first_contact_is_reached_when_it_goes_on() {
    for has_datagrams in [false, true] {
        let mut world = empty_world(11, Impairments::ideal(), has_datagrams);
        let retry = Retry {
            timeout_ns: 2 * SECOND,
            retries: 5,
            delay_ns: 10 * MILLISECOND,
            silent_ns: 300 * SECOND,
        };
        let config = Config { retry, ..config() };
        add_hosts(&mut world, 2, &[], &config, super::scenarios::loop_config());
        world.net.borrow_mut().pause(1, 60 * SECOND);
        let to = Peer(peer(&mut world, 0, 1));
        world.engine(0).unwrap().start_connect(to).unwrap();
        pass(&mut world, 61 * SECOND);
        assert_eq!(failures(&mut world, 0), []);
        talk(&mut world, [0, 1], "it goes on");
    }
}

/// RR-END-6
#[test]
fn without_a_limit_a_silent_engine_is_waited_for() {
    let mut world = world(7, Duration::ZERO);
    world.net.borrow_mut().pause(1, 3000 * SECOND);
    pass(&mut world, 3001 * SECOND);
    assert_eq!(failures(&mut world, 0), []);
    talk(&mut world, [0, 1], "it goes on");
}

/// An engine that stood still itself has sent no probe meanwhile.
///
/// RR-END-6
#[test]
fn an_engine_that_stood_still_ends_no_session_for_its_own_silence() {
    let mut world = world(8, Duration::from_secs(20));
    pass(&mut world, 7 * SECOND);
    world.net.borrow_mut().pause(0, 15 * SECOND);
    pass(&mut world, 16 * SECOND);
    assert_eq!(failures(&mut world, 0), []);
    talk(&mut world, [0, 1], "it goes on");
}

/// Where datagrams do not pass nothing wakes an engine whose owner computes: there a silence is no
/// sign of failure.
///
/// RR-END-6
#[test]
fn where_datagrams_are_dropped_a_session_outlives_the_limit() {
    let mut world = world(9, Duration::from_secs(20));
    for (from, to) in [(0, 1), (1, 0)] {
        world.net.borrow_mut().cut_datagrams_way(from, to);
    }
    for _ in 0..10 {
        pass(&mut world, 20 * SECOND);
        talk(&mut world, [0, 1], "by the control lane");
    }
    pass(&mut world, 200 * SECOND);
    assert_eq!(failures(&mut world, 0), []);
    talk(&mut world, [0, 1], "it goes on");
}

/// An engine without a background thread answers nothing while its owner computes, whichever side
/// connects.
///
/// RR-END-6
#[test]
fn an_engine_without_a_thread_that_answers_for_it_may_compute_for_longer_than_the_limit() {
    let limit = Duration::from_secs(20);
    for (seed, manual) in [(13, 0), (14, 1)] {
        let other = 1 - manual;
        for is_chosen in [false, true] {
            let timeout = SilentTimeout { limit, is_chosen };
            let mut world = world_of(seed, timeout, true, |world| {
                let engine = world.engine(manual).unwrap();
                engine.state.core_mut().shared_mut().set_answers(false);
            });
            pass(&mut world, 100 * SECOND);
            world.net.borrow_mut().pause(manual, 300 * SECOND);
            pass(&mut world, 301 * SECOND);
            let reported = failures(&mut world, other);
            assert_eq!(reported.len(), usize::from(is_chosen), "seed {seed}: {reported:?}");
            if !is_chosen {
                talk(&mut world, [0, 1], "it goes on");
                talk(&mut world, [1, 0], "both ways");
                // The other side has a thread, so that its silence counts.
                world.net.borrow_mut().pause(other, 120 * SECOND);
                pass(&mut world, 121 * SECOND);
                assert_eq!(failures(&mut world, manual).len(), 1, "seed {seed}");
            }
        }
    }
}

/// Three engines: the first is alone, the other two are processes of one host and share memory, if
/// `shares`; the last answers questions about processes, if `answers`.
fn three(seed: u64, limit: Duration, shares: bool, answers: bool) -> World {
    let impairments =
        Impairments { keep_alive_ns: PEER_TIMEOUT.as_nanos() as u64, ..Impairments::ideal() };
    let mut world = World::new(seed, impairments).unwrap();
    world.set_datagrams(true).unwrap();
    let machines = if shares { 2 } else { 0 };
    let rings = LocalPeerImpairments {
        machines,
        ring_bytes: 64 << 10,
        delay_ns: 1000,
        ..LocalPeerImpairments::default()
    };
    world.net.borrow_mut().share_memory(rings);
    let silent_timeout = SilentTimeout { limit, is_chosen: false };
    let loops = LoopConfig {
        peer_timeout: PEER_TIMEOUT,
        silent_timeout,
        ..super::scenarios::loop_config()
    };
    // Even and odd numbers are on one machine each.
    (0..3).for_each(|_| {
        world.add_host();
    });
    assert_eq!(world.add_process_beside(PARENT), OBSERVER);
    for host in [FIRST, PARENT, OBSERVER] {
        let process_status = host != OBSERVER || answers;
        let config = Config { answers: true, process_status, ..config() };
        world.start(host, host as u64 + 1, config, loops).unwrap();
    }
    for mut pair in [[FIRST, PARENT], [FIRST, OBSERVER], [PARENT, OBSERVER]] {
        // Either side connects.
        if seed % 2 == 1 {
            pair.reverse();
        }
        talk(&mut world, pair, "the sessions begin");
    }
    pass(&mut world, SECOND);
    for host in [FIRST, OBSERVER] {
        assert_eq!(failures(&mut world, host), []);
    }
    world
}

/// Hosts of [`three`].
const FIRST: usize = 0;
const PARENT: usize = 1;
const OBSERVER: usize = 3;

/// RR-END-8
#[test]
fn an_engine_beside_a_killed_process_ends_its_sessions_although_a_child_keeps_its_sockets() {
    for seed in 0..8 {
        let mut world = three(seed, Duration::from_secs(40), true, true);
        pass(&mut world, seed * SECOND);
        world.net.borrow_mut().kill_parent(PARENT);
        // The next probe comes within 10 s.
        pass(&mut world, 15 * SECOND);
        let reported = failures(&mut world, FIRST);
        let [PeerFailure::Lost(why)] = &reported[..] else { panic!("seed {seed}: {reported:?}") };
        assert!(why.contains("its process has ended"), "{why}");
        assert!(why.contains("on its host reports"), "{why}");
        let reported = failures(&mut world, OBSERVER);
        let [PeerFailure::Lost(why)] = &reported[..] else { panic!("seed {seed}: {reported:?}") };
        assert!(why.contains("its process has ended"), "{why}");
        talk(&mut world, [FIRST, OBSERVER], "others go on");
    }
}

/// What is sent to it is not answered, so that nothing waits for the next probe.
///
/// RR-END-8
#[test]
fn the_end_of_a_process_that_something_is_sent_to_is_known_in_seconds_whatever_the_limit() {
    for seed in 0..4 {
        let mut world = three(seed, Duration::from_secs(24 * 3600), true, true);
        world.net.borrow_mut().kill_parent(PARENT);
        let to = peer(&mut world, FIRST, PARENT);
        send(&mut world, FIRST, to, 9, 10, CompletionLevel::Inject);
        pass(&mut world, 6 * SECOND);
        let reported = failures(&mut world, FIRST);
        let [PeerFailure::Lost(why)] = &reported[..] else { panic!("seed {seed}: {reported:?}") };
        assert!(why.contains("on its host reports"), "{why}");
    }
}

/// RR-END-8
#[test]
fn a_stopped_process_is_no_ended_one_for_the_engines_beside_it() {
    for seed in 0..4 {
        let mut world = three(seed, Duration::from_secs(300), true, true);
        world.net.borrow_mut().pause(PARENT, 200 * SECOND);
        pass(&mut world, 201 * SECOND);
        for host in [FIRST, PARENT, OBSERVER] {
            assert_eq!(failures(&mut world, host), [], "seed {seed}, host {host}");
        }
        talk(&mut world, [FIRST, PARENT], "it goes on");
    }
}

/// Without shared memory nothing observes the process; an older engine understands no question.
///
/// RR-END-6, RR-END-8
#[test]
fn where_no_engine_reports_the_end_of_a_process_its_silence_ends_the_session() {
    for (shares, answers) in [(false, true), (true, false)] {
        let mut world = three(5, Duration::from_secs(40), shares, answers);
        world.net.borrow_mut().kill_parent(PARENT);
        pass(&mut world, 35 * SECOND);
        assert_eq!(failures(&mut world, FIRST), [], "too early");
        pass(&mut world, 30 * SECOND);
        let reported = failures(&mut world, FIRST);
        let [PeerFailure::Lost(why)] = &reported[..] else { panic!("{reported:?}") };
        assert!(why.contains("silent_timeout"), "{why}");
    }
}

/// Where the last session without datagrams has ended, the background thread sleeps.
#[test]
fn the_background_thread_looks_at_control_lanes_while_there_are_some_without_datagrams() {
    let mut world = world_with(1, Duration::ZERO, false);
    let due = |world: &mut World| world.engine(0).unwrap().background_turn().unwrap().1;
    assert!(due(&mut world).is_some_and(|due| due <= Duration::from_millis(500)));
    drop(world.take(1));
    pass(&mut world, 20 * SECOND);
    assert_eq!(failures(&mut world, 0).len(), 1);
    assert_eq!(due(&mut world), None);
}
