//! What another rail makes of messages: none of any length is to be slower for it.

use super::*;
use crate::driver::sim::rails::{LinkImpairments, RailFault};
use crate::proto::session::connection::Retry;

/// Parts of a hundred by which a message may be slower with a rail more.
const SLOWER_PERCENT: u64 = 5;

/// A link of so many Gb/s.
pub(super) fn gigabits(rate: u64) -> LinkImpairments {
    LinkImpairments { ns_per_kib: 1024 * 8 / rate, ..LinkImpairments::default() }
}

/// The same, half of a round trip of so long being its share on each way.
pub(super) fn delays(link: LinkImpairments, rtt_ns: u64) -> LinkImpairments {
    LinkImpairments { delay_ns: rtt_ns / 4, ..link }
}

/// Returns the default settings.
pub(super) fn usual() -> Config {
    Config {
        eager_limit: 16 << 10,
        inject_limit: 16 << 10,
        rts_bytes: 0,
        chunk_bytes: 127 << 10,
        busy_chunk_bytes: 63 << 10,
        horizon_chunks: 8,
        bulk_lanes: 1,
        bulk_lanes_max: 256,
        envelope_credits: 16_384,
        eager_credit_bytes: 256 << 10,
        unexpected_bytes: 64 << 20,
        unexpected_messages: 1 << 20,
        staging_bytes: 64 << 10,
        staging_buffers_max: 1024,
        retry: Retry { timeout_ns: 20 * SECOND, retries: 50, delay_ns: 100 * MICRO, silent_ns: 1 },
        ..config()
    }
}

/// Hosts with these links and an engine each, whose turns take as long as on a host.
pub(super) fn world_of(hosts: &[Vec<LinkImpairments>], config: &Config, seed: u64) -> World {
    let streams = Impairments {
        delay_ns: 10 * MICRO,
        jitter_ns: 0,
        capacity: 4 * MIB,
        ..Impairments::ideal()
    };
    let mut world = World::new(seed, streams).unwrap();
    world.net.borrow_mut().datagram_impairments =
        DatagramImpairments { bytes_max: 1472, ..DatagramImpairments::ideal() };
    (world.turn_ns, world.datagram_ns) = (TURN_NS, DATAGRAM_NS);
    world.connection_ns = CONNECTION_NS;
    world.reports_speed = true;
    world.set_datagrams(true).unwrap();
    for (host, links) in hosts.iter().enumerate() {
        world.add_host_with(links);
        world.start(host, host as u64 + 1, config.clone(), loop_config()).unwrap();
    }
    world
}

/// Builds the same world with usual settings, where NICs do not report their rates.
fn world_without_speeds(hosts: &[Vec<LinkImpairments>]) -> World {
    let mut world = world_of(&[], &usual(), 9);
    world.reports_speed = false;
    for (host, links) in hosts.iter().enumerate() {
        world.add_host_with(links);
        world.start(host, host as u64 + 1, usual(), loop_config()).unwrap();
    }
    world
}

/// Every other host has a session with `host`, and all of its paths are known.
pub(super) fn settle(world: &mut World, host: usize) {
    let others = (0..world.hosts()).filter(|&other| other != host);
    let mut all: Vec<Traffic> = others
        .map(|other| Traffic::new(8, 1, 4).between(other, host).in_context(other as u64))
        .collect();
    run_all(world, &mut all, 60 * SECOND, |all| all.iter().all(Traffic::is_done));
    pass(world, 100 * MILLI);
}

/// Two hosts with these links, which have talked for long enough to know them.
fn pair(links: &[LinkImpairments], seed: u64) -> World {
    let mut world = world_of(&[links.to_vec(), links.to_vec()], &usual(), seed);
    settle(&mut world, 1);
    Traffic::new(8, 1, 200).run(&mut world, SECOND, Traffic::is_done);
    world
}

/// Half of the messages of a length take no longer than this from post to completed receive, one
/// at a time.
fn lone_ns(world: &mut World, length: usize) -> u64 {
    let count = if length > MIB { 5 } else { 15 };
    let mut traffic = Traffic::new(length, 1, count);
    traffic.run(world, 100 * SECOND, Traffic::is_done);
    percentile(&traffic.times_ns(count / 3), 50)
}

/// Time of a stream of messages of a length, some of which are under way at any time.
fn stream_ns(world: &mut World, length: usize) -> u64 {
    let count = (8 * MIB / length).clamp(4, 400);
    Traffic::new(length, 4, count).run(world, 100 * SECOND, Traffic::is_done);
    let begin_ns = world.now_ns();
    Traffic::new(length, 4, count).run(world, 100 * SECOND, Traffic::is_done);
    world.now_ns() - begin_ns
}

/// Times by the first link alone, by the second, and by both in either order.
fn times(
    links: [LinkImpairments; 2],
    length: usize,
    one: fn(&mut World, usize) -> u64,
) -> [u64; 4] {
    let [first, second] = links;
    let worlds: [&[LinkImpairments]; 4] = [&[first], &[second], &[first, second], &[second, first]];
    worlds.map(|links| one(&mut pair(links, length as u64), length))
}

fn check(
    links: [LinkImpairments; 2],
    name: &str,
    lengths: &[usize],
    one: fn(&mut World, usize) -> u64,
) {
    let mut slower = Vec::new();
    for &length in lengths {
        let [first, second, both, turned] = times(links, length, one);
        let (best, worst) = (first.min(second), both.max(turned));
        let percent = worst * 100 / best;
        println!("{name} {length}: alone {first} {second}, both {both} {turned}: {percent} %");
        if worst * 100 > best * (100 + SLOWER_PERCENT) {
            slower.push(format!("{length} B: {worst} ns, alone {best} ns"));
        }
    }
    assert!(slower.is_empty(), "{name}: {slower:#?}");
}

/// Pairs of rails: of one rate, of rates that differ, and one further away.
fn pairs() -> [([LinkImpairments; 2], &'static str); 5] {
    let near = |rate| delays(gigabits(rate), 40 * MICRO);
    let far = delays(gigabits(2), 400 * MICRO);
    [
        ([near(2), near(2)], "equal"),
        ([near(1), near(3)], "1:3"),
        ([near(1), near(10)], "1:10"),
        ([near(2), far], "near and far"),
        ([near(10), delays(gigabits(1), 400 * MICRO)], "near and fast, far and slow"),
    ]
}

/// NICs that report no rates, or the same for all: load shows them.
pub(super) fn unreported_link_rates_are_measured() {
    let link = |rate| delays(gigabits(rate), 40 * MICRO);
    let time_ns = |links: &[LinkImpairments]| {
        let mut world = world_without_speeds(&[links.to_vec(), links.to_vec()]);
        settle(&mut world, 1);
        let end_ns = world.now_ns() + 100 * MILLI;
        while world.now_ns() < end_ns {
            Traffic::new(16 << 10, 1, 10).run(&mut world, SECOND, Traffic::is_done);
        }
        lone_ns(&mut world, 16 << 10)
    };
    let best_ns = time_ns(&[link(3)]);
    for links in [[link(1), link(3)], [link(3), link(1)]] {
        let both_ns = time_ns(&links);
        assert!(both_ns * 100 <= best_ns * (100 + SLOWER_PERCENT), "{both_ns} ns, {best_ns} alone");
    }
}

/// Answers take the path that the requests come by, and both sides find the faster one.
pub(super) fn both_ways_of_a_conversation_go_by_the_faster_path() {
    let link = |rate| delays(gigabits(rate), 40 * MICRO);
    for links in [[link(1), link(3)], [link(3), link(1)]] {
        let slow = usize::from(links[1] == link(1));
        let mut world = world_without_speeds(&[links.to_vec(), links.to_vec()]);
        settle(&mut world, 1);
        let both_ways = |world: &mut World, for_ns: u64| {
            let end_ns = world.now_ns() + for_ns;
            while world.now_ns() < end_ns {
                Traffic::new(16 << 10, 1, 1).run(world, SECOND, Traffic::is_done);
                Traffic::new(16 << 10, 1, 1).between(1, 0).run(world, SECOND, Traffic::is_done);
            }
        };
        let carried = |world: &World| {
            let net = world.net.borrow();
            [0, 1].map(|at| net.carried_bytes(0, at).iter().sum::<u64>())
        };
        both_ways(&mut world, 60 * MILLI);
        let before = carried(&world);
        both_ways(&mut world, 30 * MILLI);
        let after = carried(&world);
        let [by_slow, by_fast] = [slow, 1 - slow].map(|at| after[at] - before[at]);
        assert!(by_fast > 1 << 20 && by_slow < by_fast / 20, "{by_slow} {by_fast}");
    }
}

const SHORT: [usize; 4] = [8, 256, 4 << 10, 16 << 10];
const LONG: [usize; 7] = [20_000, 64 << 10, 100_000, 256 << 10, MIB, 4 * MIB, 16 * MIB];

pub(super) fn a_rail_more_makes_no_short_message_slower() {
    for (links, name) in pairs() {
        check(links, name, &SHORT, lone_ns);
        check(links, name, &SHORT, stream_ns);
    }
}

pub(super) fn a_rail_more_makes_no_long_message_slower() {
    for (links, name) in pairs() {
        check(links, name, &LONG, lone_ns);
    }
    check(pairs()[2].0, "1:10", &[64 * MIB], lone_ns);
}

pub(super) fn a_rail_more_makes_no_stream_slower() {
    for (links, name) in pairs() {
        check(links, name, &LONG[..6], stream_ns);
    }
}

/// How long 8 bytes take, one after the other for so long: each message's time.
fn short_ns(world: &mut World, for_ns: u64) -> Vec<u64> {
    let end_ns = world.now_ns() + for_ns;
    let mut times_ns = Vec::new();
    while world.now_ns() < end_ns {
        let mut one = Traffic::new(8, 1, 1);
        one.run(world, SECOND, Traffic::is_done);
        times_ns.extend(one.times_ns(0));
        pass(world, 50 * MICRO);
    }
    times_ns
}

pub(super) fn short_messages_go_by_the_nearest_path_and_stay_there() {
    let link = |rtt_ns| delays(gigabits(10), rtt_ns);
    let (near_ns, far_ns) = (20 * MICRO, 200 * MICRO);
    for links in [[link(far_ns), link(near_ns)], [link(near_ns), link(far_ns)]] {
        let mut world = pair(&links, 7);
        short_ns(&mut world, 20 * MILLI);
        let times_ns = short_ns(&mut world, 2000 * MILLI);
        assert!(times_ns.iter().all(|&time_ns| time_ns < near_ns), "{:?}", times_ns.iter().max());
    }
}

pub(super) fn short_messages_leave_a_path_that_became_long() {
    let link = |rtt_ns| delays(gigabits(10), rtt_ns);
    let mut world = pair(&[link(20 * MICRO), link(200 * MICRO)], 8);
    short_ns(&mut world, 50 * MILLI);
    let jump = RailFault::Delay { extra_ns: 2 * MILLI };
    world.net.borrow_mut().set_rail_fault(0, 0, Some(jump));
    // They notice when they compare next, and move after a few more looks.
    short_ns(&mut world, 500 * MILLI);
    let times_ns = short_ns(&mut world, 500 * MILLI);
    assert!(times_ns.iter().all(|&time_ns| time_ns < 200 * MICRO), "{:?}", times_ns.iter().max());
    world.net.borrow_mut().set_rail_fault(0, 0, None);
    short_ns(&mut world, 3000 * MILLI);
    let times_ns = short_ns(&mut world, 500 * MILLI);
    assert!(times_ns.iter().all(|&time_ns| time_ns < 20 * MICRO), "{:?}", times_ns.iter().max());
}
