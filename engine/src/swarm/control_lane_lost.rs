//! Sessions of several paths whose control lane ends, and what becomes of them: one story each.

use super::scenarios::{
    MILLISECOND, add_hosts, config, connect, drain, empty_world, pass, peer, receive, run, send,
    talk,
};
use super::world::World;
use crate::driver::sim::local_peers::LocalPeerImpairments;
use crate::driver::sim::net::Impairments;
use crate::driver::sim::rails::{LinkImpairments, RailFault};
use crate::progress::engine::LoopConfig;
use crate::proto::core::Config;
use crate::proto::effects::CompletionLevel;
use crate::types::{Event, PeerFailure};

const SECOND: u64 = 1000 * MILLISECOND;
/// How long kernels and engines wait for a silent peer.
const PEER_TIMEOUT_NS: u64 = 4 * SECOND;
const OUTWARD: RailFault = RailFault::Blackhole { outward: true, inward: false };
const INWARD: RailFault = RailFault::Blackhole { outward: false, inward: true };

fn loop_config() -> LoopConfig {
    let peer_timeout = std::time::Duration::from_nanos(PEER_TIMEOUT_NS);
    LoopConfig { peer_timeout, ..super::scenarios::loop_config() }
}

fn room() -> Config {
    Config { staging_buffers_max: 64, ..config() }
}

/// Two hosts with two links each, whose engines have a session with two paths that answer.
fn world(seed: u64) -> World {
    let impairments = Impairments { keep_alive_ns: PEER_TIMEOUT_NS, ..Impairments::ideal() };
    let mut world = empty_world(seed, impairments, true);
    let link = LinkImpairments {
        ns_per_kib: 1000,
        delay_ns: 10_000,
        jitter_ns: 1000,
        loss_ppm: 0,
        queue_bytes: 0,
    };
    add_hosts(&mut world, 2, &[link; 2], &room(), loop_config());
    talk(&mut world, [0, 1], "the session begins");
    pass(&mut world, 100 * MILLISECOND);
    for host in 0..2 {
        let paths = world.look(host).unwrap().state.session_paths().of(0).unwrap();
        assert_eq!(paths.all().filter(|path| path.is_active()).count(), 2, "host {host}");
        events(&mut world, host);
    }
    world
}

/// Returns the failures that an engine has reported since the last call, and how often it
/// connected.
fn events(world: &mut World, host: usize) -> (Vec<PeerFailure>, usize) {
    let mut reported = (Vec::new(), 0);
    let Some(engine) = world.engine(host) else { return reported };
    while let Some(event) = engine.state.completions_mut().events_mut().first().pop_front() {
        match event {
            Event::Disconnected { failure, .. } => reported.0.push(failure),
            Event::Connected { .. } => reported.1 += 1,
            _ => {}
        }
    }
    reported
}

/// Asserts that neither side has reported an end, and that both have a control lane.
fn assert_lives(world: &mut World, what: &str) {
    for host in 0..2 {
        assert_eq!(events(world, host), (Vec::new(), 0), "{what}: host {host}");
        let control = world.look(host).unwrap().state.control(0);
        assert!(control.has_lane(), "{what}: host {host} has no control lane");
    }
}

fn reset_control(world: &mut World) {
    assert!(world.net.borrow_mut().cut_one(false).is_some());
}

/// RR-RAIL-7, RR-RAIL-8
#[test]
fn a_rail_that_works_one_way_ends_no_idle_session() {
    for (seed, (host, fault)) in
        [(0, OUTWARD), (0, INWARD), (1, OUTWARD), (1, INWARD)].into_iter().enumerate()
    {
        let mut world = world(seed as u64);
        world.net.borrow_mut().set_rail_fault(host, 0, Some(fault));
        pass(&mut world, 3 * PEER_TIMEOUT_NS);
        assert_lives(&mut world, "one way only");
        talk(&mut world, [0, 1], "by the other rail");
        world.net.borrow_mut().set_rail_fault(host, 0, None);
        pass(&mut world, SECOND);
        talk(&mut world, [0, 1], "both ways again");
        assert_lives(&mut world, "afterwards");
    }
}

/// RR-RAIL-8
#[test]
fn a_control_lane_that_is_reset_is_replaced() {
    for seed in 0..20 {
        let mut world = world(seed);
        for round in 0..4 {
            reset_control(&mut world);
            if seed % 2 == 0 {
                pass(&mut world, SECOND);
            }
            talk(&mut world, [0, 1], "after a reset");
            pass(&mut world, SECOND);
            assert_lives(&mut world, &format!("seed {seed}, round {round}"));
        }
    }
}

/// Where datagrams do not pass the new lane is the answer.
///
/// RR-RAIL-8
#[test]
fn a_reset_ends_no_session_whose_datagrams_are_dropped() {
    for seed in 0..10 {
        let mut world = world(seed);
        for (from, to) in [(0, 1), (1, 0)] {
            world.net.borrow_mut().cut_datagrams_way(from, to);
        }
        pass(&mut world, 500 * MILLISECOND);
        reset_control(&mut world);
        pass(&mut world, 2 * SECOND);
        assert_lives(&mut world, "without datagrams");
        talk(&mut world, [0, 1], "by streams");
    }
}

/// A process that stands still answers nothing; its kernel takes connections.
///
/// RR-RAIL-8
#[test]
fn a_peer_that_stands_still_outlives_the_reset_of_its_lane() {
    for seed in 0..10 {
        let mut world = world(seed);
        let stopped = seed as usize % 2;
        world.net.borrow_mut().pause(stopped, 2 * SECOND);
        reset_control(&mut world);
        pass(&mut world, 4 * SECOND);
        assert_lives(&mut world, "stopped for two seconds");
        talk(&mut world, [0, 1], "going on");
    }
}

/// RR-RAIL-8, RR-END-2
#[test]
fn a_killed_peer_is_known_whatever_ends_its_lane() {
    for seed in 0..40 {
        let mut world = world(seed);
        let (killed, other) = (seed as usize % 2, 1 - seed as usize % 2);
        let target = peer(&mut world, other, killed);
        let mut pending = 0;
        for tag in 0..4 {
            pending += usize::from(receive(&mut world, other, target, 100 + tag, 100));
            for length in [10, 5000] {
                pending += usize::from(send(
                    &mut world,
                    other,
                    target,
                    tag,
                    length,
                    CompletionLevel::Match,
                ));
            }
        }
        assert!(pending > 4);
        pass(&mut world, 50 * MILLISECOND);
        // With the lane reset before, afterwards, or on the other rail already.
        match seed % 3 {
            0 => reset_control(&mut world),
            1 => {
                reset_control(&mut world);
                pass(&mut world, 200 * MILLISECOND);
            }
            _ => {}
        }
        drop(world.take(killed));
        let start_ns = world.now_ns();
        run(&mut world, "everything ends", |world| {
            for done in drain(world, other) {
                pending -= 1;
                assert!(done.result.unwrap_err().to_string().contains("127."));
            }
            pending == 0
        });
        let took_ns = world.now_ns() - start_ns;
        assert!(took_ns < SECOND, "seed {seed}: {took_ns} ns");
        assert_eq!(events(&mut world, other).0.len(), 1);
        world.start(killed, 77, room(), loop_config()).unwrap();
        talk(&mut world, [0, 1], "the successor");
    }
}

/// RR-RAIL-8
#[test]
fn a_successor_at_the_same_address_reports_that_the_peer_is_gone() {
    for seed in 0..20 {
        let mut world = world(seed);
        let (killed, other) = (seed as usize % 2, 1 - seed as usize % 2);
        let target = peer(&mut world, other, killed);
        assert!(receive(&mut world, other, target, 1, 100));
        // The end of the stream does not come by its own rail.
        world.net.borrow_mut().set_rail_fault(killed, 0, Some(OUTWARD));
        drop(world.take(killed));
        world.start(killed, 77, room(), loop_config()).unwrap();
        let start_ns = world.now_ns();
        run(&mut world, "the receive ends", |world| !drain(world, other).is_empty());
        let took_ns = world.now_ns() - start_ns;
        assert!(took_ns < PEER_TIMEOUT_NS + SECOND, "seed {seed}: {took_ns} ns");
        world.net.borrow_mut().set_rail_fault(killed, 0, None);
        talk(&mut world, [0, 1], "the successor");
    }
}

/// An attacker at the address of the peer's other rail forwards probes to another engine of the
/// job.
///
/// RR-AUTH-10
#[test]
fn a_question_that_is_passed_on_ends_no_session() {
    for seed in 0..20 {
        let mut world = world(seed);
        let host = world.add_host_with(&[]);
        world.start(host, 99, room(), loop_config()).unwrap();
        pass(&mut world, MILLISECOND);
        world.net.borrow_mut().attack_handshakes(0, 3);
        reset_control(&mut world);
        pass(&mut world, 3 * SECOND);
        assert_lives(&mut world, &format!("seed {seed}"));
        talk(&mut world, [0, 1], "after the lane is back");
    }
}

/// One side ends its session, and its notice is lost with the rail; then it begins another one.
///
/// RR-RAIL-9
#[test]
fn a_session_without_a_lane_gives_way_to_another_one() {
    for seed in 0..20 {
        let mut world = world(seed);
        let (ends, other) = (seed as usize % 2, 1 - seed as usize % 2);
        // It has lost its lane, and nothing comes through for a moment.
        for link in 0..2 {
            world.net.borrow_mut().set_rail_fault(other, link, Some(RailFault::BLACKHOLE));
        }
        world.engine(other).unwrap().setup().drop_control_lane(0);
        world.engine(ends).unwrap().state.lose(0, "as the test wants");
        pass(&mut world, 50 * MILLISECOND);
        for link in 0..2 {
            world.net.borrow_mut().set_rail_fault(other, link, None);
        }
        connect(&mut world, ends, other);
        run(&mut world, "another session", |world| {
            (0..2).all(|host| {
                let core = world.look(host).unwrap().state.core();
                core.sessions().iter().all(|(_, session)| session.is_connected())
            })
        });
        pass(&mut world, SECOND);
        for host in 0..2 {
            let (ended, began) = events(&mut world, host);
            assert_eq!((ended.len(), began), (1, 1), "seed {seed}, host {host}: {ended:?}");
        }
        talk(&mut world, [0, 1], "the other session");
    }
}

/// RR-RAIL-7
#[test]
fn a_host_that_vanishes_is_known_within_the_peer_timeout() {
    for seed in 0..10 {
        let mut world = world(seed);
        let (gone, other) = (seed as usize % 2, 1 - seed as usize % 2);
        let target = peer(&mut world, other, gone);
        assert!(receive(&mut world, other, target, 1, 100));
        pass(&mut world, 3 * SECOND);
        for link in 0..2 {
            world.net.borrow_mut().set_rail_fault(gone, link, Some(RailFault::BLACKHOLE));
        }
        let start_ns = world.now_ns();
        run(&mut world, "the receive ends", |world| {
            let done = drain(world, other);
            done.iter().for_each(|done| assert!(done.result.is_err()));
            !done.is_empty()
        });
        let took_ns = world.now_ns() - start_ns;
        assert!(took_ns <= PEER_TIMEOUT_NS + SECOND, "seed {seed}: {took_ns} ns");
    }
}

/// Builds two engines of one machine whose only NIC loses its address: nothing goes by it any more.
fn local_peers(seed: u64) -> World {
    let impairments = Impairments { keep_alive_ns: PEER_TIMEOUT_NS, ..Impairments::ideal() };
    let mut world = empty_world(seed, impairments, true);
    let rings = LocalPeerImpairments {
        machines: 1,
        ring_bytes: 64 << 10,
        delay_ns: 1000,
        reads: true,
        ..LocalPeerImpairments::default()
    };
    world.net.borrow_mut().share_memory(rings);
    add_hosts(
        &mut world,
        2,
        &[LinkImpairments { delay_ns: 10_000, ..LinkImpairments::default() }],
        &room(),
        loop_config(),
    );
    talk(&mut world, [0, 1], "the session begins");
    pass(&mut world, 100 * MILLISECOND);
    let has_ring = |world: &World, host| {
        world.look(host).unwrap().state.session_paths().of(0).is_some_and(|paths| paths.has_ring())
    };
    assert!([0, 1].iter().all(|&host| has_ring(&world, host)), "they share memory");
    (0..2).for_each(|host| drop(events(&mut world, host)));
    world.net.borrow_mut().set_rail_fault(seed as usize % 2, 0, Some(RailFault::BLACKHOLE));
    world
}

/// RR-END-2, RR-SHM-8
#[test]
fn engines_that_share_memory_outlive_their_only_nic() {
    for seed in 0..10 {
        let mut world = local_peers(seed);
        let what = format!("seed {seed}");
        let until_ns = world.now_ns() + 5 * PEER_TIMEOUT_NS;
        while world.now_ns() < until_ns {
            talk(&mut world, [0, 1], &what);
            pass(&mut world, SECOND);
            assert_eq!([0, 1].map(|host| events(&mut world, host)), [(); 2].map(|()| (vec![], 0)));
        }
        assert!(world.look(0).unwrap().state.core().session(0).unwrap().is_outlived(), "{what}");
        // The address is back.
        world.net.borrow_mut().set_rail_fault(seed as usize % 2, 0, None);
        pass(&mut world, 5 * SECOND);
        assert_lives(&mut world, &what);
        talk(&mut world, [0, 1], &what);
    }
}

/// RR-END-2
#[test]
fn process_end_visible_only_in_shared_memory_is_detected_within_the_peer_timeout() {
    for seed in 0..10 {
        let mut world = local_peers(seed);
        pass(&mut world, 3 * PEER_TIMEOUT_NS);
        assert!(world.look(0).unwrap().state.core().session(0).unwrap().is_outlived());
        drop(world.take(1));
        pass(&mut world, PEER_TIMEOUT_NS + SECOND);
        let (failures, _) = events(&mut world, 0);
        assert_eq!(failures.len(), 1, "seed {seed}: {failures:?}");
    }
}
