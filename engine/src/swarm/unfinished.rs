//! Segments on a control lane whose rest does not come, in sessions of one path.

use super::scenarios::{MILLISECOND, config, pass, peer, run, send, talk};
use super::world::World;
use crate::driver::sim::net::Weather;
use crate::progress::engine::LoopConfig;
use crate::proto::effects::Level;
use crate::types::{Event, PeerFailure};

const SECOND: u64 = 1000 * MILLISECOND;
const PEER_TIMEOUT_NS: u64 = SECOND;

/// Two engines in datagram mode, of whose datagrams none passes from now on; then the length of the
/// segment with a message from host 0 is changed on its way.
fn world(seed: u64, has_datagrams: bool) -> World {
    let weather = Weather { delay_ns: 10_000, keep_alive_ns: PEER_TIMEOUT_NS, ..Weather::fair() };
    let mut world = World::new(seed, weather).unwrap();
    world.set_datagrams(true).unwrap();
    let peer_timeout = std::time::Duration::from_nanos(PEER_TIMEOUT_NS);
    for host in 0..2 {
        world.add_host();
        let loop_config = LoopConfig { peer_timeout, ..super::scenarios::loop_config() };
        world.start(host, host as u64 + 1, config(), loop_config).unwrap();
    }
    let cut = |world: &mut World, is_cut: bool| {
        for (from, to) in [(0, 1), (1, 0)] {
            let mut net = world.net.borrow_mut();
            match is_cut {
                true => net.cut_datagrams_way(from, to),
                false => net.open_datagrams_way(from, to),
            }
        }
    };
    talk(&mut world, [0, 1], "the session begins");
    cut(&mut world, true);
    pass(&mut world, SECOND);
    let target = peer(&mut world, 0, 1);
    send(&mut world, 0, target, 7, 8, Level::Delivered);
    run(&mut world, "a segment is under way", |world| world.net.borrow_mut().lengthen_segment());
    if has_datagrams {
        cut(&mut world, false);
    }
    world
}

/// The failure that an engine tells of.
fn failure(world: &mut World, host: usize) -> PeerFailure {
    let mut found = None;
    run(world, "the session ends", |world| {
        let events = &mut world.engine(host).unwrap().state.completions.events;
        while let Some(event) = events.pop_front() {
            if let Event::Disconnected { failure, .. } = event {
                found = Some(failure);
            }
        }
        found.is_some()
    });
    found.unwrap()
}

/// The peer answers, by either lane, and not with the rest: the session ends on both sides.
///
/// RR-SEG-6
#[test]
fn a_session_of_one_path_ends_when_its_peer_is_there() {
    for seed in 0..2 {
        let mut world = world(seed, seed % 2 == 0);
        let start_ns = world.now_ns();
        for host in [1, 0] {
            let failure = failure(&mut world, host);
            assert!(matches!(failure, PeerFailure::Corrupted(_)), "seed {seed}: {failure}");
        }
        // Of the time of one that sleeps meanwhile a part counts only.
        let took_ns = world.now_ns() - start_ns;
        assert!(took_ns < 12 * PEER_TIMEOUT_NS, "seed {seed}: {took_ns} ns");
    }
}

/// RR-SEG-6, RR-END-2
#[test]
fn a_session_of_one_path_ends_when_its_peer_has_vanished() {
    for seed in 0..2 {
        let mut world = world(seed, seed % 2 == 0);
        pass(&mut world, PEER_TIMEOUT_NS / 4);
        world.net.borrow_mut().darken(0);
        let failure = failure(&mut world, 1);
        assert!(matches!(failure, PeerFailure::Lost(_)), "seed {seed}: {failure}");
    }
}
