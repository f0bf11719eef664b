//! Sessions without datagrams: one story each.

use super::scenarios::{
    MILLISECOND, add_hosts, config, connect, drain, empty_world, loop_config, pass, peer, receive,
    run, send, talk,
};
use super::world::World;
use crate::driver::sim::net::Impairments;
use crate::proto::core::Config;
use crate::proto::effects::CompletionLevel;

const SECOND: u64 = 1000 * MILLISECOND;
/// The kernel's buffers take this many bytes.
const CAPACITY: usize = 1 << 20;

/// Two hosts with a session.
fn world(seed: u64, config: &Config) -> World {
    let impairments = Impairments { capacity: CAPACITY, ..Impairments::ideal() };
    let mut world = empty_world(seed, impairments, false);
    add_hosts(&mut world, 2, &[], config, loop_config());
    connect(&mut world, 0, 1);
    talk(&mut world, [0, 1], "the session begins");
    world
}

fn is_connected(world: &World, host: usize) -> bool {
    let core = world.look(host).unwrap().state.core();
    core.sessions().iter().any(|(_, session)| session.is_connected())
}

/// The peer's kernel has everything, and its engine acknowledges nothing meanwhile.
///
/// RR-END-1
#[test]
fn a_peer_whose_owner_computes_delays_no_end() {
    for seed in 0..10 {
        let mut world = world(seed, &config());
        let target = peer(&mut world, 0, 1);
        world.net.borrow_mut().pause(1, 10 * SECOND);
        assert!(!send(&mut world, 0, target, 7, 10, CompletionLevel::Inject), "it is sent at once");
        let state = &mut world.engine(0).unwrap().state;
        assert!(state.with_core(|core, ended| core.remove_peer(target, ended)));
        pass(&mut world, SECOND);
        assert!(!is_connected(&world, 0), "seed {seed}");
    }
}

/// The kernel takes little at a time, so that the end of what was sent waits in this process.
///
/// RR-END-1
#[test]
fn a_goodbye_that_the_kernel_has_not_taken_is_waited_for() {
    for seed in 0..20 {
        let impairments = Impairments { capacity: 500, ..Impairments::ideal() };
        let mut world = empty_world(seed, impairments, false);
        let config = Config { envelope_credits: 100, eager_credit_bytes: 1 << 16, ..config() };
        add_hosts(&mut world, 2, &[], &config, loop_config());
        connect(&mut world, 0, 1);
        let (source, target) = (peer(&mut world, 1, 0), peer(&mut world, 0, 1));
        world.net.borrow_mut().pause(1, (1 + seed) * 100 * MILLISECOND);
        let mut sent = 0;
        for tag in 0..20 {
            assert!(receive(&mut world, 1, source, tag, 200));
            // Those that wait when the peer is removed end with that.
            sent += usize::from(!send(&mut world, 0, target, tag, 200, CompletionLevel::Inject));
        }
        let state = &mut world.engine(0).unwrap().state;
        assert!(state.with_core(|core, ended| core.remove_peer(target, ended)));
        let mut came = 0;
        run(&mut world, "the session ends", |world| {
            came += drain(world, 1).iter().filter(|done| done.result.is_ok()).count();
            !is_connected(world, 0) && !is_connected(world, 1)
        });
        came += drain(&mut world, 1).iter().filter(|done| done.result.is_ok()).count();
        assert_eq!(came, sent, "seed {seed}");
    }
}

/// RR-DGRAM-12
#[test]
fn messages_without_replies_are_acknowledged() {
    let mut world = world(1, &config());
    for tag in 0..40 {
        let source = peer(&mut world, 1, 0);
        assert!(receive(&mut world, 1, source, tag, 10));
        let target = peer(&mut world, 0, 1);
        send(&mut world, 0, target, tag, 10, CompletionLevel::Inject);
    }
    pass(&mut world, 20 * MILLISECOND);
    assert_eq!(drain(&mut world, 1).len(), 40);
    let segments = world.look(0).unwrap().state.core().shared().pool().len();
    assert_eq!(segments, [0; 3], "their memory is free");
}

/// A burst is gathered in memory that is freed once the session is idle.
#[test]
fn memory_of_an_idle_session_is_freed() {
    const COUNT: u64 = 200;
    let config = Config { envelope_credits: 2 * COUNT as u32, ..config() };
    let mut world = world(1, &Config { eager_credit_bytes: 1 << 20, ..config });
    let (source, target) = (peer(&mut world, 1, 0), peer(&mut world, 0, 1));
    for tag in 0..COUNT {
        assert!(receive(&mut world, 1, source, tag, 200));
        send(&mut world, 0, target, tag, 200, CompletionLevel::Inject);
    }
    let mut came = 0;
    run(&mut world, "all of them", |world| {
        came += drain(world, 1).len() as u64;
        came == COUNT
    });
    drain(&mut world, 0);
    let unsent = |world: &World| world.look(0).unwrap().state.control(0).unsent().capacity();
    assert!(unsent(&world) > 1000, "{}", unsent(&world));
    pass(&mut world, 5 * SECOND);
    assert_eq!(unsent(&world), 0);
    talk(&mut world, [0, 1], "the session is usable");
}
