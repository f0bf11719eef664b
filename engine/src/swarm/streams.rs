//! Sessions with a path whose long messages go by the TCP lane beside it: one story each.

use std::time::Duration;

use super::scenarios::{
    MILLISECOND, add_hosts, config, connect, drain, empty_world, loop_config, pass, peer, receive,
    run, send, talk,
};
use super::world::World;
use crate::driver::sim::net::Impairments;
use crate::driver::sim::rails::{LinkImpairments, RailFault};
use crate::progress::engine::LoopConfig;
use crate::proto::core::Config;
use crate::proto::effects::CompletionLevel;
use crate::proto::failure::PeerFailure;

/// More than a datagram takes, and than a segment.
const LENGTHS: [usize; 2] = [5000, 40_000];

fn streaming() -> Config {
    Config {
        eager_limit: 64 << 10,
        envelope_credits: 1000,
        eager_credit_bytes: 1 << 20,
        staging_bytes: 64 << 10,
        staging_buffers_max: 64,
        eager_by_stream: true,
        ..config()
    }
}

/// Settings of both hosts, of which seeds have all kinds.
fn settings(seed: u64) -> (Config, LoopConfig) {
    let config = Config { checksum: seed % 5 == 4, ..streaming() };
    (config, LoopConfig { hot_lanes: seed as usize % 3, ..loop_config() })
}

/// Hosts with sessions between the first one and the others; their kernels take `capacity` bytes at
/// once.
fn world_of(seed: u64, capacity: usize, hosts: usize) -> World {
    let mut world = empty_world(seed, Impairments { capacity, ..Impairments::ideal() }, true);
    let (config, loop_config) = settings(seed);
    add_hosts(&mut world, hosts, &[], &config, loop_config);
    (1..hosts).for_each(|host| talk(&mut world, [0, host], "the session begins"));
    world
}

/// Two of them.
fn world(seed: u64, capacity: usize) -> World {
    world_of(seed, capacity, 2)
}

fn segments_by_datagram(world: &World, host: usize) -> u64 {
    world.look(host).unwrap().state.session_paths().counters().segments
}

/// Nothing else is sent that could say it.
///
/// RR-DGRAM-12
#[test]
fn stream_data_is_acknowledged_without_return_traffic() {
    for seed in 0..20 {
        for (round, length) in LENGTHS.into_iter().cycle().take(6).enumerate() {
            let mut world = world(seed, [1 << 20, 700][round % 2]);
            let (source, target) = (peer(&mut world, 1, 0), peer(&mut world, 0, 1));
            assert!(receive(&mut world, 1, source, 9, length));
            let before = segments_by_datagram(&world, 1);
            let start_ns = world.now_ns();
            assert!(send(&mut world, 0, target, 9, length, CompletionLevel::Delivery));
            run(&mut world, "it is delivered", |world| !drain(world, 0).is_empty());
            assert!(world.now_ns() - start_ns < 100 * MILLISECOND);
            assert!(!drain(&mut world, 1).is_empty());
            pass(&mut world, 10 * MILLISECOND);
            let segments = segments_by_datagram(&world, 1) - before;
            assert!(segments <= 4, "the message itself went by TCP: {segments}");
        }
    }
}

/// RR-END-1, RR-DGRAM-9
#[test]
fn a_peer_that_is_left_acknowledges_long_messages() {
    for seed in 0..100 {
        let mut world = world(seed, [1 << 20, 3000][seed as usize % 2]);
        let (source, target) = (peer(&mut world, 1, 0), peer(&mut world, 0, 1));
        let mut count = 0;
        if seed % 4 < 2 {
            // All of it comes in one turn.
            world.net.borrow_mut().pause(1, 20 * MILLISECOND);
        }
        for tag in 0..1 + seed % 3 {
            assert!(receive(&mut world, 1, source, tag, 30_000));
            // Those that wait when the peer is removed end with that.
            count += u64::from(!send(&mut world, 0, target, tag, 30_000, CompletionLevel::Inject));
        }
        let state = &mut world.engine(0).unwrap().state;
        assert!(state.with_core(|core, ended| core.remove_peer(target, ended)));
        let (mut came, mut failure) = (0, None);
        run(&mut world, "the session ends", |world| {
            came += drain(world, 1).iter().filter(|done| done.result.is_ok()).count() as u64;
            let events = world.engine(0).unwrap().state.completions_mut().events_mut().first();
            while let Some(event) = events.pop_front() {
                if let crate::types::Event::Disconnected { failure: cause, .. } = event {
                    failure = Some(cause);
                }
            }
            failure.is_some()
        });
        assert_eq!(failure, Some(PeerFailure::Removed), "seed {seed}");
        assert_eq!(came, count, "seed {seed}");
        connect(&mut world, 0, 1);
        connect(&mut world, 1, 0);
        drain(&mut world, 0);
        talk(&mut world, [0, 1], "the next session");
    }
}

/// RR-PATH-3, RR-DGRAM-12
#[test]
fn long_messages_arrive_while_datagrams_come_and_go() {
    for seed in 0..20 {
        let mut world = world(seed, [1 << 20, 700][seed as usize % 2]);
        let (source, target) = (peer(&mut world, 1, 0), peer(&mut world, 0, 1));
        for tag in 0..24 {
            for (from, to) in [(0, 1), (1, 0)] {
                match tag % 8 {
                    2 => world.net.borrow_mut().cut_datagrams_way(from, to),
                    6 => world.net.borrow_mut().open_datagrams_way(from, to),
                    _ => {}
                }
            }
            let length = [8, LENGTHS[0], 300, LENGTHS[1]][tag as usize % 4];
            assert!(receive(&mut world, 1, source, tag, length));
            send(&mut world, 0, target, tag, length, CompletionLevel::Delivery);
            pass(&mut world, [0, 300 * MILLISECOND][tag as usize % 2]);
        }
        let mut came = 0;
        run(&mut world, "all came", |world| {
            came += drain(world, 1).iter().filter(|done| done.result.is_ok()).count();
            came == 24
        });
        pass(&mut world, 1000 * MILLISECOND);
        drain(&mut world, 0).iter().for_each(|done| assert!(done.result.is_ok(), "{done:?}"));
        assert_eq!(world.look(0).unwrap().state.core().shared().operations().len(), 0);
        talk(&mut world, [0, 1], "going on");
    }
}

/// RR-DGRAM-12
#[test]
fn long_messages_for_one_peer_leave_others_their_turn() {
    for seed in 0..20 {
        let mut world = world_of(seed, 1 << 20, 3);
        let (near, far) = (peer(&mut world, 0, 1), peer(&mut world, 0, 2));
        let (at_near, at_far) = (peer(&mut world, 1, 0), peer(&mut world, 2, 0));
        for tag in 0..20 {
            assert!(receive(&mut world, 1, at_near, tag, 8));
            assert!(receive(&mut world, 2, at_far, tag, LENGTHS[1]));
        }
        for tag in 0..20 {
            send(&mut world, 0, near, tag, 8, CompletionLevel::Inject);
        }
        for tag in 0..20 {
            send(&mut world, 0, far, tag, LENGTHS[1], CompletionLevel::Delivery);
        }
        let (mut short, mut long) = (0, 0);
        run(&mut world, "the short ones come", |world| {
            short += drain(world, 1).len();
            long += drain(world, 2).len();
            short == 20
        });
        assert!(long <= 4, "seed {seed}: {long} came first");
        run(&mut world, "the long ones come", |world| {
            long += drain(world, 2).len();
            long == 20
        });
    }
}

/// A message of this length each way, the first one from host `first`; how long that took.
fn exchange(world: &mut World, length: usize, first: usize) -> u64 {
    let start_ns = world.now_ns();
    for (at, of) in [(first, 1 - first), (1 - first, first)] {
        let [target, source] = [peer(world, at, of), peer(world, of, at)];
        assert!(receive(world, of, source, 1, length));
        drain(world, of);
        send(world, at, target, 1, length, CompletionLevel::Inject);
        run(world, "a long message comes", |world| {
            let done = drain(world, of);
            done.iter().for_each(|done| assert!(done.result.is_ok(), "{done:?}"));
            !done.is_empty()
        });
    }
    world.now_ns() - start_ns
}

/// RR-RAIL-7, RR-DGRAM-12
#[test]
fn a_rail_that_fails_takes_the_stream_with_it_for_as_long_as_that_takes_to_move() {
    let link = LinkImpairments { delay_ns: 10_000, ns_per_kib: 100, ..LinkImpairments::default() };
    let ways = [(true, true), (true, false), (false, true)];
    let cases = ways.into_iter().flat_map(|way| (0..8).map(move |case| (way, case)));
    for ((outward, inward), case) in cases {
        let (of, first, length) = (case % 2, case / 2 % 2, LENGTHS[case / 4]);
        let mut world = empty_world(1, Impairments::ideal(), true);
        let (config, loop_config) = settings(0);
        add_hosts(&mut world, 2, &[link; 2], &config, loop_config);
        connect(&mut world, 0, 1);
        talk(&mut world, [0, 1], "by both rails");
        pass(&mut world, 20 * MILLISECOND);
        let before = segments_by_datagram(&world, 1);
        let usual_ns = (0..10).map(|_| exchange(&mut world, length, first)).max().unwrap();
        let came = segments_by_datagram(&world, 1) - before;
        assert!(came <= 40, "long messages go by TCP: {came}");
        let fault = RailFault::Blackhole { outward, inward };
        let what = format!("{fault:?} of {of}, {length} bytes, from {first}");
        world.net.borrow_mut().set_rail_fault(of, 0, Some(fault));
        let stalled_ns = exchange(&mut world, length, first);
        assert!(stalled_ns < 20 * MILLISECOND, "{what}: {stalled_ns} ns");
        // Until the connection has moved, they are pulled.
        pass(&mut world, 100 * MILLISECOND);
        let before = segments_by_datagram(&world, 1);
        let after_ns = (0..10).map(|_| exchange(&mut world, length, first)).max().unwrap();
        assert!(after_ns < 2 * usual_ns, "{what}: {after_ns} ns");
        let came = segments_by_datagram(&world, 1) - before;
        assert!(came <= 40, "{what}, by the other rail's TCP: {came}");
    }
}

/// Datagrams pass, and no connection does any more.
///
/// RR-DGRAM-12
#[test]
fn long_messages_that_get_no_connection_again_end_with_their_session() {
    let limit = Duration::from_millis(500);
    for from in 0..2 {
        let link =
            LinkImpairments { delay_ns: 10_000, ns_per_kib: 100, ..LinkImpairments::default() };
        let mut world = empty_world(1, Impairments::ideal(), true);
        let (config, loop_config) = settings(0);
        let loop_config = LoopConfig { peer_timeout: limit, ..loop_config };
        add_hosts(&mut world, 2, &[link; 2], &config, loop_config);
        connect(&mut world, 0, 1);
        talk(&mut world, [0, 1], "by both rails");
        pass(&mut world, 20 * MILLISECOND);
        exchange(&mut world, 5000, from);
        world.net.borrow_mut().impairments.refused_one_in = 1;
        let target = peer(&mut world, from, 1 - from);
        assert!(send(&mut world, from, target, 2, 5000, CompletionLevel::Delivery));
        assert!(world.net.borrow_mut().cut_one(false).is_some());
        let start_ns = world.now_ns();
        let mut result = None;
        run(&mut world, "the send ends", |world| {
            result = drain(world, from).pop().map(|done| done.result);
            result.is_some()
        });
        let took = Duration::from_nanos(world.now_ns() - start_ns);
        let text = result.unwrap().expect_err("nothing can carry it").to_string();
        assert!(text.contains("TCP"), "{text}");
        assert!((limit..2 * limit).contains(&took), "{took:?} of {limit:?}");
    }
}
