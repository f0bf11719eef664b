//! Bulk lanes at the bound of an engine: which session gets one, and which does not keep one.

use std::time::Duration;

use super::scenarios::{
    MILLISECOND, add_hosts, config, connect, drain, empty_world, loop_config, pass, peer, receive,
    run, send, world,
};
use super::world::World;
use crate::driver::sim::net::Impairments;
use crate::driver::sim::rails::{LinkImpairments, RailFault};
use crate::driver::sim::random::Random;
use crate::progress::engine::LoopConfig;
use crate::proto::core::{Action, Config};
use crate::proto::effects::CompletionLevel;
use crate::proto::session::ControlFrame;
use crate::proto::session::connection::Retry;

/// Lets host 1 request lanes of its first session.
fn request_lanes(world: &mut World) {
    let core = world.engine(1).unwrap().state.core_mut();
    core.with(0, |it, mut cx| it.send_control(&mut cx, ControlFrame::lanes_wanted()));
}

/// RR-LANE-2, RR-LANE-5
#[test]
fn a_lane_that_others_want_too_is_kept_until_its_grants_have_come() {
    for seed in 0..20 {
        let config =
            Config { bulk_lanes: 1, chunk_bytes: 4096, busy_chunk_bytes: 4096, ..config() };
        let impairments = Impairments { delay_ns: 3 * MILLISECOND, ..Impairments::ideal() };
        let mut world = World::new(seed, impairments).unwrap();
        for host in 0..4 {
            world.add_host();
            let bulk_lanes_max = if host == 0 { 1 } else { 16 };
            let config = Config { bulk_lanes_max, ..config.clone() };
            world.start(host, host as u64 + 1, config, loop_config()).unwrap();
        }
        // The others opened the sessions, so they open the lanes.
        (1..4).for_each(|other| connect(&mut world, other, 0));
        pass(&mut world, 50 * MILLISECOND);
        let mut random = Random::new(seed);
        for other in 1..4 {
            let (target, source) = (peer(&mut world, 0, other), peer(&mut world, other, 0));
            assert!(receive(&mut world, other, source, 1, 3000));
            assert!(send(&mut world, 0, target, 1, 3000, CompletionLevel::Match));
            pass(&mut world, random.within(2 * MILLISECOND));
        }
        let mut done = 0;
        run(&mut world, "all have their messages", |world| {
            for host in 0..4 {
                for completion in drain(world, host) {
                    completion.result.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
                    done += 1;
                }
            }
            done == 6
        });
        for host in 0..4 {
            let counters = world.look(host).unwrap().state.core().shared().counters();
            assert_eq!(counters.lane_failures, 0, "seed {seed}, host {host}");
        }
    }
}

/// A peer that has the lane it asked for asks again when it needs another one.
#[test]
fn a_lane_is_opened_once_for_a_peer_that_asks_once() {
    let mut world = world(1, 2, &config());
    connect(&mut world, 0, 1);
    pass(&mut world, 10 * MILLISECOND);
    let engine = world.engine(1).unwrap();
    engine
        .state
        .core_mut()
        .with(0, |it, mut cx| it.send_control(&mut cx, ControlFrame::lanes_wanted()));
    pass(&mut world, 10 * MILLISECOND);
    let lanes_of = |world: &World| {
        let core = world.look(0).unwrap().state.core();
        core.shared().lanes().iter().map(|(lane, _)| lane).collect::<Vec<_>>()
    };
    let lanes = lanes_of(&world);
    assert_eq!(lanes.len(), 2);
    for lane in lanes {
        let close = Action::CloseLane { lane, is_failure: false };
        world.engine(0).unwrap().state.core_mut().act_next(close);
    }
    pass(&mut world, 1000 * MILLISECOND);
    assert_eq!(lanes_of(&world), []);
}

/// A lane that is still unused is no reason to open one on another path: each would be the next
/// one's reason, and the room for lanes would never be free for others.
#[test]
fn lanes_of_several_paths_that_carry_nothing_do_not_keep_each_other_alive() {
    let retry = Retry { timeout_ns: 50 * MILLISECOND, ..config().retry };
    let config = Config { bulk_lanes: 1, bulk_idle_ns: 50 * MILLISECOND, retry, ..config() };
    let mut world = World::new(1, Impairments::ideal()).unwrap();
    let link = LinkImpairments { delay_ns: 10_000, ..LinkImpairments::default() };
    add_hosts(&mut world, 2, &[link; 2], &config, loop_config());
    connect(&mut world, 0, 1);
    pass(&mut world, 10 * MILLISECOND);
    let number = |world: &World| {
        let sessions = world.look(0).unwrap().state.core().sessions();
        sessions.iter().map(|(_, session)| session.lanes().next_number()).max().unwrap()
    };
    request_lanes(&mut world);
    pass(&mut world, 10 * MILLISECOND);
    let opened = number(&world);
    let lanes = world.look(0).unwrap().state.core().shared().lanes();
    let (first, paths) = (lanes.iter().next().unwrap().0, lanes.iter().count());
    assert_eq!(paths, 2, "one for each path");
    let close = Action::CloseLane { lane: first, is_failure: false };
    world.engine(0).unwrap().state.core_mut().act_next(close);
    for _ in 0..200 {
        pass(&mut world, 10 * MILLISECOND);
        let now_ns = world.now_ns();
        world.engine(0).unwrap().state.core_mut().close_idle_lanes(now_ns);
    }
    assert_eq!(number(&world), opened, "none is opened again");
    assert_eq!(world.look(0).unwrap().state.core().shared().lanes().iter().count(), 0);
}

/// RR-LANE-6
#[test]
fn engines_that_all_want_a_lane_of_the_next_one_do_not_refuse_each_other_for_ever() {
    const RING: usize = 3;
    for seed in 0..10 {
        let config = Config { bulk_lanes: 1, bulk_lanes_max: 1, ..config() };
        let mut world = world(seed, RING, &config);
        // An attempt takes most of the time that passes before the next one.
        world.net.borrow_mut().impairments =
            Impairments { delay_ns: 15 * MILLISECOND, ..Impairments::ideal() };
        (0..RING).for_each(|at| connect(&mut world, at, (at + 1) % RING));
        pass(&mut world, 500 * MILLISECOND);
        for at in 0..RING {
            let next = (at + 1) % RING;
            let (target, source) = (peer(&mut world, next, at), peer(&mut world, at, next));
            assert!(receive(&mut world, at, source, 1, 3000));
            assert!(send(&mut world, next, target, 1, 3000, CompletionLevel::Match));
        }
        let (mut done, start_ns) = (0, world.now_ns());
        run(&mut world, "all have their messages", |world| {
            for host in 0..RING {
                for completion in drain(world, host) {
                    completion.result.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
                    done += 1;
                }
            }
            done == 2 * RING
        });
        let took_ns = world.now_ns() - start_ns;
        assert!(took_ns < 10_000 * MILLISECOND, "seed {seed}: {took_ns} ns");
    }
}

/// What looks like a lane here may be lost there.
#[test]
fn a_peer_that_asks_while_it_has_lanes_gets_another_one_when_these_are_closed_for_want_of_use() {
    let config = config();
    let mut world = world(1, 2, &config);
    connect(&mut world, 0, 1);
    pass(&mut world, 10 * MILLISECOND);
    request_lanes(&mut world);
    pass(&mut world, 10 * MILLISECOND);
    let next_lane = |world: &World| {
        let sessions = world.look(0).unwrap().state.core().sessions();
        sessions.iter().map(|(_, session)| session.lanes().next_number()).max()
    };
    assert_eq!(next_lane(&world), Some(2));
    request_lanes(&mut world);
    pass(&mut world, 10 * MILLISECOND);
    assert_eq!(next_lane(&world), Some(2), "they look well here");
    let later_ns = world.now_ns() + config.retry.timeout_ns.max(config.bulk_idle_ns) + 1;
    world.engine(0).unwrap().state.core_mut().close_idle_lanes(later_ns);
    pass(&mut world, 1000 * MILLISECOND);
    assert_eq!(next_lane(&world), Some(4));
}

/// A kernel keeps the acknowledgement of a chunk for the next one back, which may not come.
#[test]
fn acknowledgements_are_asked_for_where_nothing_goes_back() {
    let mut world = world(2, 2, &Config { bulk_lanes: 1, ..config() });
    connect(&mut world, 0, 1);
    let one = |world: &mut World, from: usize, to: usize| {
        let (source, target) = (peer(world, to, from), peer(world, from, to));
        assert!(receive(world, to, source, 1, 5000));
        assert!(send(world, from, target, 1, 5000, CompletionLevel::Match));
        let mut done = 0;
        run(world, "it is received", |world| {
            done += drain(world, from).len() + drain(world, to).len();
            done == 2
        });
    };
    let quickacks = |world: &World| world.net.borrow().quickacks;
    // One way only: kernels keep nothing back.
    for _ in 0..5 {
        one(&mut world, 0, 1);
        pass(&mut world, MILLISECOND);
    }
    assert_eq!(quickacks(&world), 0);
    // Engines here sleep as soon as they have nothing to do, before anything goes back.
    for round in 1..=5 {
        one(&mut world, 1, 0);
        one(&mut world, 0, 1);
        assert_eq!(quickacks(&world), 2 * round);
    }
    // From now on kernels know that it is one way.
    for _ in 0..5 {
        one(&mut world, 0, 1);
        pass(&mut world, MILLISECOND);
    }
    assert_eq!(quickacks(&world), 10);
}

/// All links are down for less time than the peer timeout, before there is a lane or while there
/// is one; many attempts to open one fail meanwhile.
///
/// RR-LANE-4, RR-END-2
#[test]
fn lanes_that_fail_for_less_than_the_peer_timeout_end_no_session() {
    const SECOND: u64 = 1000 * MILLISECOND;
    let retry = Retry { timeout_ns: SECOND, retries: 2, delay_ns: 10 * MILLISECOND, silent_ns: 1 };
    let config = Config { retry, outage_ns: 10 * SECOND, ..config() };
    let loops = LoopConfig { peer_timeout: Duration::from_secs(10), ..loop_config() };
    for (links, host, has_lane) in
        [(1, 0, false), (1, 1, true), (2, 0, false), (2, 0, true), (2, 1, true)]
    {
        let what = format!("{links} links of host {host}, with a lane: {has_lane}");
        let impairments = Impairments { keep_alive_ns: 10 * SECOND, ..Impairments::ideal() };
        let mut world = empty_world(1, impairments, true);
        let link = LinkImpairments { delay_ns: 10_000, ..LinkImpairments::default() };
        add_hosts(&mut world, 2, &vec![link; links], &config, loops);
        connect(&mut world, 0, 1);
        pass(&mut world, 100 * MILLISECOND);
        let ends = [0, 1].map(|at| (at, peer(&mut world, at, 1 - at)));
        let post = |world: &mut World| {
            for (at, other) in ends {
                assert!(receive(world, at, other, 1, 6000));
                assert!(send(world, at, other, 1, 6000, CompletionLevel::Match));
            }
        };
        let all_is_done = |world: &mut World| {
            let mut done = 0;
            run(world, &what, |world| {
                for host in 0..2 {
                    for completion in drain(world, host) {
                        completion.result.unwrap_or_else(|error| panic!("{what}: {error}"));
                        done += 1;
                    }
                }
                done == 4
            });
        };
        if has_lane {
            post(&mut world);
            all_is_done(&mut world);
        }
        for link in 0..links {
            world.net.borrow_mut().set_rail_fault(host, link, Some(RailFault::Down));
        }
        post(&mut world);
        pass(&mut world, 5 * SECOND);
        for link in 0..links {
            world.net.borrow_mut().set_rail_fault(host, link, None);
        }
        all_is_done(&mut world);
    }
}
