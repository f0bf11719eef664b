//! Sessions with one path, to which the rest of a segment does not come by TCP: one story each.

use super::scenarios::{
    MILLISECOND, add_hosts, config, connect, drain, empty_world, pass, peer, receive, run, send,
    talk,
};
use super::world::World;
use crate::driver::sim::net::Impairments;
use crate::progress::engine::LoopConfig;
use crate::proto::effects::CompletionLevel;
use crate::proto::session::Session;
use crate::wire::SEGMENT_BYTES_MAX;

const SECOND: u64 = 1000 * MILLISECOND;
/// How long kernels and engines wait for a silent peer.
const PEER_TIMEOUT_NS: u64 = 4 * SECOND;

fn loop_config() -> LoopConfig {
    let peer_timeout = std::time::Duration::from_nanos(PEER_TIMEOUT_NS);
    LoopConfig { peer_timeout, ..super::scenarios::loop_config() }
}

/// Two hosts whose engines have a session, and whose kernels take little at once.
fn world(seed: u64) -> World {
    let impairments =
        Impairments { keep_alive_ns: PEER_TIMEOUT_NS, capacity: 300, ..Impairments::ideal() };
    let mut world = empty_world(seed, impairments, true);
    add_hosts(&mut world, 2, &[], &config(), loop_config());
    talk(&mut world, [0, 1], "the session begins");
    world
}

/// From now on everything goes by TCP.
fn cut_datagrams(world: &mut World) {
    for (from, to) in [(0, 1), (1, 0)] {
        world.net.borrow_mut().cut_datagrams_way(from, to);
    }
    talk(world, [0, 1], "by TCP");
}

/// Bytes of an incomplete segment that host 0 has received.
fn partial_bytes(world: &World) -> usize {
    world.look(0).unwrap().state.control(0).partial().len()
}

/// Host 1 sends a message to host 0, of which only the beginning has come.
fn begin_message(world: &mut World) {
    let (source, target) = (peer(world, 0, 1), peer(world, 1, 0));
    assert!(receive(world, 0, source, 7, 256));
    send(world, 1, target, 7, 256, CompletionLevel::Inject);
    run(world, "the beginning of a segment comes", |world| partial_bytes(world) > 0);
}

fn is_connected(world: &World, host: usize) -> bool {
    let mut sessions = world.look(host).unwrap().state.core().sessions().iter();
    sessions.any(|(_, session)| Session::is_connected(session))
}

/// RR-END-2, RR-SEG-6
#[test]
fn a_host_that_vanishes_within_a_segment_is_known_within_the_peer_timeout() {
    for seed in 0..10 {
        let mut world = world(seed);
        cut_datagrams(&mut world);
        begin_message(&mut world);
        world.net.borrow_mut().power_off(1);
        drop(world.take(1));
        let start_ns = world.now_ns();
        run(&mut world, "the receive ends", |world| {
            let done = drain(world, 0);
            done.iter().for_each(|done| assert!(done.result.is_err()));
            !done.is_empty()
        });
        let took_ns = world.now_ns() - start_ns;
        assert!(took_ns <= PEER_TIMEOUT_NS + SECOND, "seed {seed}: {took_ns} ns");
    }
}

/// RR-SEG-6
#[test]
fn a_peer_that_stands_still_within_a_segment_is_waited_for() {
    for seed in 0..10 {
        let mut world = world(seed);
        cut_datagrams(&mut world);
        begin_message(&mut world);
        world.net.borrow_mut().pause(1, PEER_TIMEOUT_NS * 3 / 4);
        run(&mut world, "the message comes", |world| {
            let done = drain(world, 0);
            done.iter().for_each(|done| assert!(done.result.is_ok(), "seed {seed}: {done:?}"));
            !done.is_empty()
        });
        talk(&mut world, [0, 1], "going on");
    }
}

/// What it sent before it was stopped came after the request, and is no answer to it.
///
/// RR-SEG-6
#[test]
fn a_peer_that_is_stopped_again_within_a_segment_is_waited_for() {
    for seed in 0..10 {
        let mut world = world(seed);
        cut_datagrams(&mut world);
        world.net.borrow_mut().impairments.capacity = 100;
        begin_message(&mut world);
        let begun = partial_bytes(&world);
        world.net.borrow_mut().pause(1, PEER_TIMEOUT_NS / 2);
        run(&mut world, "more of the segment comes", |world| partial_bytes(world) > begun);
        world.net.borrow_mut().pause(1, 3 * PEER_TIMEOUT_NS);
        assert!(partial_bytes(&world) <= 200, "the segment is incomplete");
        run(&mut world, "the message comes", |world| {
            let done = drain(world, 0);
            done.iter().for_each(|done| assert!(done.result.is_ok(), "seed {seed}: {done:?}"));
            !done.is_empty()
        });
        talk(&mut world, [0, 1], "going on");
    }
}

/// Whether the peer answers by TCP or by datagrams: what came by TCP is not what was sent.
///
/// RR-SEG-6
#[test]
fn a_segment_that_is_longer_than_was_sent_ends_the_session() {
    for seed in 0..10 {
        let mut world = world(seed);
        if seed % 2 == 0 {
            cut_datagrams(&mut world);
        }
        // The longest segment there is begins, and none that follows is its end.
        let length = (SEGMENT_BYTES_MAX as u32).to_le_bytes();
        world.engine(0).unwrap().state.control_mut(0).extend_partial(&length);
        let start_ns = world.now_ns();
        run(&mut world, "both know", |world| !is_connected(world, 0) && !is_connected(world, 1));
        let took_ns = world.now_ns() - start_ns;
        assert!(took_ns <= 3 * PEER_TIMEOUT_NS, "seed {seed}: {took_ns} ns");
        connect(&mut world, 0, 1);
        connect(&mut world, 1, 0);
        talk(&mut world, [0, 1], "the next session");
        pass(&mut world, 2 * PEER_TIMEOUT_NS);
        assert!([0, 1].iter().all(|&host| is_connected(&world, host)), "seed {seed}");
    }
}
