//! Sessions with datagrams: whole engines, datagrams and streams, one story each.

use super::scenarios::{
    add_hosts, config, connect, drain, empty_world, loop_config, pass, peer, receive, run, send,
    talk,
};
use super::world::World;
use crate::driver::sim::net::Impairments;
use crate::driver::sim::rails::{LinkImpairments, RailFault};
use crate::proto::core::Config;
use crate::proto::effects::CompletionLevel;
use crate::proto::paths::{DatagramCounters, NO_PATH, Paths};
use crate::proto::session::connection::Retry;
use crate::types::{Event, PathCause, PathState, Peer, PeerFailure};
use crate::wire::rail::ROLE_BACKUP;

const MILLISECOND: u64 = 1_000_000;

/// Two hosts whose engines take datagrams.
pub(super) fn world(seed: u64, config: &Config) -> World {
    let mut world = empty_world(seed, Impairments::ideal(), true);
    add_hosts(&mut world, 2, &[], config, loop_config());
    world
}

fn counters(world: &World, host: usize) -> DatagramCounters {
    world.look(host).unwrap().state.session_paths().counters()
}

/// One message there and one back; how long that took.
fn exchange(world: &mut World, what: &str) -> u64 {
    let [near, far] = [peer(world, 1, 0), peer(world, 0, 1)];
    let start_ns = world.now_ns();
    for (at, of, target, source) in [(0, 1, far, near), (1, 0, near, far)] {
        assert!(receive(world, of, source, 1, 100), "{what}");
        drain(world, of);
        send(world, at, target, 1, 100, CompletionLevel::Inject);
        run(world, what, |world| {
            let done = drain(world, of);
            done.iter().for_each(|done| assert!(done.result.is_ok(), "{what}: {done:?}"));
            !done.is_empty()
        });
    }
    world.now_ns() - start_ns
}

/// Whether the TCP lane of the first host goes by one of its paths.
fn has_stream_on_path(world: &World) -> bool {
    world.look(0).unwrap().state.session_paths().of(0).unwrap().stream_at() != NO_PATH
}

/// Health of the paths of both hosts.
fn are_good(world: &World) -> [bool; 2] {
    [0, 1].map(|host| {
        let paths = world.look(host).unwrap().state.session_paths().of(0);
        paths.is_some_and(Paths::are_open)
    })
}

pub(super) fn warm_up(world: &mut World) {
    exchange(world, "the first exchange");
    pass(world, 10 * MILLISECOND);
    assert_eq!(are_good(world), [true; 2]);
}

/// RR-PATH-1, RR-PATH-2
#[test]
fn the_first_message_goes_by_tcp_and_later_ones_by_datagrams() {
    let mut world = world(1, &config());
    let (source, target) = (peer(&mut world, 1, 0), peer(&mut world, 0, 1));
    assert!(receive(&mut world, 1, source, 1, 100));
    let start_ns = world.now_ns();
    send(&mut world, 0, target, 1, 100, CompletionLevel::Inject);
    run(&mut world, "the first message", |world| !drain(world, 1).is_empty());
    let first_ns = world.now_ns() - start_ns;
    assert_eq!(are_good(&world), [false; 2]);
    assert_eq!([0, 1].map(|host| counters(&world, host).segments), [0; 2]);
    pass(&mut world, 10 * MILLISECOND);
    assert_eq!(are_good(&world), [true; 2]);
    let before = counters(&world, 0).sent;
    let warm_ns = (0..10).map(|_| exchange(&mut world, "a warm exchange")).max().unwrap();
    // Answers carry acknowledgements: not one datagram more than messages.
    assert_eq!(counters(&world, 0).sent - before, 10);
    assert!([0, 1].iter().all(|&host| counters(&world, host).segments >= 10));
    // TCP and hello take a round trip each, and loops some microseconds per message.
    let round_trip_ns = 14_000;
    assert!(first_ns <= warm_ns / 2 + 2 * round_trip_ns + 10_000, "{first_ns} and {warm_ns} ns");
}

/// RR-PATH-2, RR-PATH-3
#[test]
fn a_network_that_drops_datagrams_costs_nothing_but_speed() {
    let mut world = world(2, &config());
    let both_ways = [(0, 1), (1, 0)];
    both_ways.iter().for_each(|&(from, to)| world.net.borrow_mut().cut_datagrams_way(from, to));
    exchange(&mut world, "without datagrams");
    pass(&mut world, 100 * MILLISECOND);
    assert_eq!(are_good(&world), [false; 2]);
    exchange(&mut world, "still without");
    both_ways.iter().for_each(|&(from, to)| world.net.borrow_mut().open_datagrams_way(from, to));
    // Probes come seldom by then.
    pass(&mut world, 10_000 * MILLISECOND);
    assert_eq!(are_good(&world), [true; 2]);
    exchange(&mut world, "with datagrams");
}

/// RR-PATH-3
#[test]
fn a_path_that_goes_silent_in_one_direction_or_both_is_replaced_in_milliseconds() {
    for cuts in [&[(0, 1)][..], &[(1, 0)], &[(0, 1), (1, 0)]] {
        let mut world = world(3, &config());
        warm_up(&mut world);
        cuts.iter().for_each(|&(from, to)| world.net.borrow_mut().cut_datagrams_way(from, to));
        let took_ns = exchange(&mut world, "by TCP");
        assert!(took_ns < 40 * MILLISECOND, "{cuts:?}: {took_ns} ns");
        cuts.iter().for_each(|&(from, to)| world.net.borrow_mut().open_datagrams_way(from, to));
        pass(&mut world, 1000 * MILLISECOND);
        assert_eq!(are_good(&world), [true; 2], "{cuts:?}");
        let took_ns = exchange(&mut world, "by datagrams again");
        assert!(took_ns < MILLISECOND, "{cuts:?}: {took_ns} ns");
    }
}

/// RR-AUTH-8
#[test]
fn a_flood_of_foreign_datagrams_gets_no_answer_and_stops_no_loop() {
    let mut world = world(6, &config());
    warm_up(&mut world);
    // A turn takes longer than the timers wait that are to be served in it.
    world.turn_ns = 20_000;
    let before = counters(&world, 0);
    let target = peer(&mut world, 0, 1);
    world.net.borrow_mut().cut_datagrams_way(1, 0);
    send(&mut world, 0, target, 1, 100, CompletionLevel::Inject);
    for number in 0..20_000u32 {
        let address = ([127, 66, (number >> 8) as u8, number as u8], 666).into();
        world.net.borrow_mut().inject_datagram(address, 0, &[number as u8; 60]);
    }
    pass(&mut world, 2 * MILLISECOND);
    let after = counters(&world, 0);
    assert!(after.dropped - before.dropped > 1000, "{before:?} {after:?}");
    // The message, probes for it, and no more.
    assert!(after.sent - before.sent < 10, "{before:?} {after:?}");
    pass(&mut world, 30 * MILLISECOND);
    assert_eq!(counters(&world, 0).dropped - before.dropped, 20_000);
    world.net.borrow_mut().open_datagrams_way(1, 0);
    let source = peer(&mut world, 1, 0);
    assert!(receive(&mut world, 1, source, 1, 100));
    run(&mut world, "the message comes", |world| !drain(world, 1).is_empty());
    exchange(&mut world, "after the flood");
}

/// RR-PATH-4
#[test]
fn a_peer_whose_address_changes_is_followed() {
    let mut world = world(4, &config());
    warm_up(&mut world);
    world.net.borrow_mut().rebind(0);
    exchange(&mut world, "from another address");
    pass(&mut world, 500 * MILLISECOND);
    assert_eq!(are_good(&world), [true; 2]);
    let lost = counters(&world, 1).lost;
    let took_ns = exchange(&mut world, "at the new address");
    assert!(took_ns < MILLISECOND, "{took_ns} ns");
    assert_eq!(counters(&world, 1).lost, lost);
}

/// Each side receives the other's first packet from a new address that is not validated yet.
///
/// RR-PATH-4
#[test]
fn two_peers_whose_addresses_change_at_once_find_each_other() {
    let mut world = world(4, &config());
    warm_up(&mut world);
    world.net.borrow_mut().datagram_impairments.rebind_keeps_ns = 100 * MILLISECOND;
    (0..2).for_each(|host| world.net.borrow_mut().rebind(host));
    exchange(&mut world, "from other addresses");
    pass(&mut world, 500 * MILLISECOND);
    assert_eq!(are_good(&world), [true; 2]);
    let took_ns = exchange(&mut world, "at the new addresses");
    assert!(took_ns < MILLISECOND, "{took_ns} ns");
}

/// RR-PATH-4
#[test]
fn a_copy_that_is_faster_than_the_original_moves_no_session() {
    let mut world = world(5, &config());
    warm_up(&mut world);
    world.net.borrow_mut().observe_datagrams(64);
    // The original does not come: the copy is the packet with the highest number.
    world.net.borrow_mut().cut_datagrams_way(0, 1);
    let target = peer(&mut world, 0, 1);
    send(&mut world, 0, target, 1, 100, CompletionLevel::Inject);
    let elsewhere = "127.66.6.6:666".parse().unwrap();
    {
        let net = &mut *world.net.borrow_mut();
        let seen = net.sightings().last().unwrap().clone();
        net.inject_datagram(elsewhere, 1, &seen.bytes);
    }
    pass(&mut world, MILLISECOND);
    world.net.borrow_mut().open_datagrams_way(0, 1);
    pass(&mut world, 50 * MILLISECOND);
    let source = peer(&mut world, 1, 0);
    assert!(receive(&mut world, 1, source, 1, 100));
    run(&mut world, "the copied message", |world| !drain(world, 1).is_empty());
    for _ in 0..20 {
        let took_ns = exchange(&mut world, "after the copy");
        assert!(took_ns < 100_000, "{took_ns} ns");
    }
}

/// RR-PKT-10
#[test]
fn a_late_loop_that_cannot_read_all_in_a_turn_goes_on() {
    let mut world = world(6, &config());
    world.idle_turns_max = 1000;
    warm_up(&mut world);
    exchange(&mut world, "the socket is polled");
    // No answer comes, the timer passes while the loop does not run, and a flood waits then.
    world.net.borrow_mut().cut_datagrams_way(1, 0);
    let target = peer(&mut world, 0, 1);
    send(&mut world, 0, target, 1, 100, CompletionLevel::Inject);
    {
        let net = &mut *world.net.borrow_mut();
        net.pause(0, 50 * MILLISECOND);
        let elsewhere = "127.66.6.6:666".parse().unwrap();
        (0..500u32).for_each(|at| net.inject_datagram(elsewhere, 0, &[at as u8; 100]));
    }
    pass(&mut world, 60 * MILLISECOND);
    assert!(counters(&world, 0).dropped >= 500);
    world.net.borrow_mut().open_datagrams_way(1, 0);
    let source = peer(&mut world, 1, 0);
    assert!(receive(&mut world, 1, source, 1, 100));
    run(&mut world, "the message before the flood", |world| !drain(world, 1).is_empty());
}

#[test]
fn a_round_trip_is_not_the_time_that_the_user_computes() {
    let mut world = world(7, &config());
    // It never sleeps; what it does not read in each turn is watched.
    world.idle_turns_max = u32::MAX;
    warm_up(&mut world);
    let target = peer(&mut world, 0, 1);
    for _ in 0..3 {
        pass(&mut world, MILLISECOND);
        let sent = counters(&world, 0).sent;
        send(&mut world, 0, target, 1, 100, CompletionLevel::Inject);
        run(&mut world, "it goes", |world| counters(world, 0).sent > sent);
        world.net.borrow_mut().pause(0, 20 * MILLISECOND);
        pass(&mut world, 20 * MILLISECOND);
    }
    let path = world.look(0).unwrap().state.session_paths().of(0).unwrap().all().next().unwrap();
    let round_trip_ns = path.packets().round_trip_ns();
    assert!(round_trip_ns < MILLISECOND, "{round_trip_ns} ns");
}

/// Windows that hold back nothing here.
fn wide() -> Config {
    Config {
        envelope_credits: 2000,
        eager_credit_bytes: 1 << 19,
        unexpected_messages: 1 << 14,
        unexpected_bytes: 1 << 22,
        staging_buffers_max: 100,
        ..config()
    }
}

/// RR-PATH-1
#[test]
fn a_session_leaves_tcp_as_soon_as_its_path_is_good() {
    let mut world = world(8, &wide());
    world.net.borrow_mut().impairments.capacity = 300;
    world.net.borrow_mut().datagram_impairments.ns_per_kib = 200_000;
    let target = peer(&mut world, 0, 1);
    let count = 900;
    for tag in 0..count {
        send(&mut world, 0, target, tag, 200, CompletionLevel::Inject);
    }
    let is_clear = |world: &World| world.look(0).unwrap().state.control(0).unsent().is_empty();
    run(&mut world, "the path is good", |world| are_good(world)[0]);
    assert!(!is_clear(&world), "TCP has begun");
    run(&mut world, "TCP has ended", |world| is_clear(world));
    let end_ns = world.now_ns() + 2 * MILLISECOND;
    while world.now_ns() < end_ns {
        world.step(end_ns);
        assert!(is_clear(&world), "TCP goes on");
    }
    let core = world.look(0).unwrap().state.core();
    let waiting = core.session(0).unwrap().segments().waiting_bytes();
    assert!(waiting > 0, "there would have been something to send");
}

/// RR-PATH-5, RR-END-1
#[test]
fn goodbyes_by_datagrams_are_answered() {
    let lossy = [0, 300_000];
    for (seed, loss_ppm) in (0..20).flat_map(|seed| lossy.map(|loss| (seed, loss))) {
        let mut world = world(seed, &config());
        warm_up(&mut world);
        world.net.borrow_mut().datagram_impairments.loss_ppm = loss_ppm;
        let target = peer(&mut world, 0, 1);
        let engine = world.engine(0).unwrap();
        engine.state.with_core(|core, ended| core.remove_peer(target, ended));
        run(&mut world, "both know", |world| {
            [0, 1].iter().all(|&host| {
                let core = world.look(host).unwrap().state.core();
                core.sessions().iter().all(|(_, session)| !session.is_connected())
            })
        });
        for (host, expected) in [(0, PeerFailure::Removed), (1, PeerFailure::Left)] {
            let core = world.look(host).unwrap().state.core();
            let failures: Vec<_> = core
                .sessions()
                .iter()
                .map(|(_, session)| session.ending().failure().cloned())
                .collect();
            assert_eq!(failures, [Some(expected)], "seed {seed}, host {host}");
        }
    }
}

/// RR-END-1
#[test]
fn a_peer_that_is_inserted_again_while_its_session_ends_is_sent_to_by_the_next_one() {
    let lossy = [0, 300_000];
    for (seed, loss_ppm) in (0..20).flat_map(|seed| lossy.map(|loss| (seed, loss))) {
        let mut world = world(seed, &config());
        warm_up(&mut world);
        world.net.borrow_mut().datagram_impairments.loss_ppm = loss_ppm;
        let target = peer(&mut world, 0, 1);
        let epoch = |world: &World| world.look(0).unwrap().state.core().session(0).unwrap().epoch();
        let before = epoch(&world);
        let engine = world.engine(0).unwrap();
        engine.state.with_core(|core, ended| core.remove_peer(target, ended));
        engine.progress().unwrap();
        let target = peer(&mut world, 0, 1);
        // A side that does not send waits for the connection.
        let sends = seed % 2 == 0;
        let mut ended = Vec::new();
        if sends {
            assert!(send(&mut world, 0, target, 7, 10, CompletionLevel::Delivery));
            assert!(receive(&mut world, 0, target, 8, 10));
        } else {
            world.engine(0).unwrap().start_connect(Peer(target)).unwrap();
        }
        run(&mut world, "the next session", |world| {
            ended.extend(drain(world, 0));
            let is_connected = world.engine(0).unwrap().state.connected(Peer(target)).unwrap();
            if sends { !ended.is_empty() } else { is_connected }
        });
        // Once for the end of the old session, once for the beginning of the next.
        assert_eq!(epoch(&world), before + 2, "seed {seed}");
        assert!(
            ended.iter().all(|ended| ended.user_data == 7 && ended.result.is_ok()),
            "{ended:?}"
        );
    }
}

/// A driver that has room for one datagram at a time calls sessions again and again; those of
/// several paths, each of which finds no room, wait once.
#[test]
fn a_session_of_several_paths_waits_once_for_room() {
    let config = Config { envelope_credits: 500, eager_credit_bytes: 1 << 20, ..config() };
    let mut world = empty_world(1, Impairments::ideal(), true);
    let link =
        LinkImpairments { ns_per_kib: 100_000, delay_ns: 10_000, ..LinkImpairments::default() };
    add_hosts(&mut world, 2, &[link; 3], &config, loop_config());
    warm_up(&mut world);
    pass(&mut world, 100 * MILLISECOND);
    world.net.borrow_mut().datagram_impairments.send_room_bytes = 1;
    let (target, source) = (peer(&mut world, 0, 1), peer(&mut world, 1, 0));
    for _ in 0..400 {
        assert!(receive(&mut world, 1, source, 1, 200));
        send(&mut world, 0, target, 1, 200, CompletionLevel::Inject);
    }
    let (mut received, mut most) = (0, 0);
    run(&mut world, "all are received", |world| {
        let waiting = world.look(0).unwrap().state.sessions_blocked();
        assert!(waiting <= 1, "{waiting} sessions wait, of one");
        most = most.max(waiting);
        received += drain(world, 1).len();
        received == 400
    });
    assert_eq!(most, 1, "the driver was full");
}

/// Whether its NIC has no link or its packets vanish: attempts leave by the rails in turn, and go
/// to the peer's in turn.
#[test]
fn a_session_begins_by_another_rail_while_the_first_one_of_either_side_fails() {
    let retry = Retry { timeout_ns: 200 * MILLISECOND, ..config().retry };
    let config = Config { retry, ..config() };
    let link = LinkImpairments { delay_ns: 10_000, ..LinkImpairments::default() };
    for (fault, has_datagrams, failing) in [
        (RailFault::Down, true, 0),
        (RailFault::Down, false, 0),
        (RailFault::BLACKHOLE, true, 0),
        (RailFault::BLACKHOLE, false, 0),
        (RailFault::Down, true, 1),
        (RailFault::BLACKHOLE, true, 1),
        (RailFault::BLACKHOLE, false, 1),
    ] {
        let mut world = empty_world(1, Impairments::ideal(), has_datagrams);
        add_hosts(&mut world, 2, &[link; 2], &config, loop_config());
        world.net.borrow_mut().set_rail_fault(failing, 0, Some(fault));
        pass(&mut world, MILLISECOND);
        let start_ns = world.now_ns();
        connect(&mut world, 0, 1);
        run(&mut world, "it is connected", |world| {
            let core = world.look(0).unwrap().state.core();
            core.sessions().iter().any(|(_, session)| session.is_connected())
        });
        assert!(!has_stream_on_path(&world), "{fault:?}");
        exchange(&mut world, "by the other rail");
        let took_ns = world.now_ns() - start_ns;
        // The connecting side sees only its own link.
        let is_seen = fault == RailFault::Down && failing == 0;
        let limit_ns = if is_seen { 50 } else { 400 } * MILLISECOND;
        assert!(took_ns < limit_ns, "{fault:?}, datagrams {has_datagrams}: {took_ns} ns");
        talk(&mut world, [0, 1], "and goes on");
        world.net.borrow_mut().set_rail_fault(failing, 0, None);
        pass(&mut world, 1000 * MILLISECOND);
        talk(&mut world, [0, 1], "with both");
        // With datagrams the connection has moved to a path that is known.
        assert_eq!(has_stream_on_path(&world), has_datagrams, "{fault:?}");
    }
}

/// The first path has never answered, and does not keep bulk data from a backup.
#[test]
fn a_backup_carries_bulk_data_of_a_session_that_began_by_it() {
    let link = LinkImpairments { delay_ns: 10_000, ..LinkImpairments::default() };
    for (failing, has_datagrams) in [(0, true), (1, true), (0, false), (1, false)] {
        let mut world = empty_world(1, Impairments::ideal(), has_datagrams);
        for host in 0..2 {
            world.add_host_with(&[link; 2]);
            world.start(host, host as u64 + 1, config(), loop_config()).unwrap();
            let core = world.engine(host).unwrap().state.core_mut();
            let mut rails = core.shared().rails().infos().to_vec();
            rails[1].role = ROLE_BACKUP;
            core.shared_mut().rails_mut().set(rails);
        }
        world.net.borrow_mut().set_rail_fault(failing, 0, Some(RailFault::BLACKHOLE));
        connect(&mut world, 0, 1);
        talk(&mut world, [0, 1], "by the backup");
        for from in [0, 1] {
            let target = peer(&mut world, from, 1 - from);
            let source = peer(&mut world, 1 - from, from);
            drain(&mut world, 1 - from);
            receive(&mut world, 1 - from, source, 7, 4 << 20);
            send(&mut world, from, target, 7, 4 << 20, CompletionLevel::Match);
            run(&mut world, "a long message by the backup", |world| {
                let done = drain(world, 1 - from);
                done.iter().for_each(|it| assert!(it.result.is_ok(), "{it:?}"));
                !done.is_empty()
            });
        }
    }
}

/// Where datagrams do not pass no path is probed: missing acknowledgements show the failure.
#[test]
fn a_send_ends_although_a_rail_swallowed_what_it_was_given() {
    let link = LinkImpairments { delay_ns: 10_000, ns_per_kib: 1000, ..LinkImpairments::default() };
    let config = Config { chunk_bytes: 64 << 10, horizon_chunks: 8, ..config() };
    let ways = [(true, true), (true, false), (false, true)];
    for ((outward, inward), from) in ways.into_iter().flat_map(|way| [(way, 0), (way, 1)]) {
        let mut world = empty_world(1, Impairments::ideal(), false);
        add_hosts(&mut world, 2, &[link; 2], &config, loop_config());
        connect(&mut world, 0, 1);
        talk(&mut world, [0, 1], "by both rails");
        for host in [0, 1] {
            drain(&mut world, host);
        }
        let target = peer(&mut world, from, 1 - from);
        let source = peer(&mut world, 1 - from, from);
        receive(&mut world, 1 - from, source, 7, 64 << 20);
        send(&mut world, from, target, 7, 64 << 20, CompletionLevel::Match);
        pass(&mut world, 10 * MILLISECOND);
        let fault = RailFault::Blackhole { outward, inward };
        world.net.borrow_mut().set_rail_fault(0, 1, Some(fault));
        let start_ns = world.now_ns();
        let mut ended = 0;
        run(&mut world, "both ends", |world| {
            for host in [0, 1] {
                let done = drain(world, host);
                done.iter().for_each(|it| assert!(it.result.is_ok(), "{it:?}"));
                ended += done.len();
            }
            ended == 2
        });
        let took_ns = world.now_ns() - start_ns;
        assert!(took_ns < 1_500 * MILLISECOND, "{fault:?} from {from}: {took_ns} ns");
    }
}

/// RR-RAIL-4: the initiator probes the path; the other side learns of it if probes arrive there.
#[test]
fn a_path_that_fails_from_the_start_is_reported() {
    let link = LinkImpairments { delay_ns: 10_000, ..LinkImpairments::default() };
    for (outward, inward) in [(true, true), (true, false), (false, true)] {
        let mut world = empty_world(1, Impairments::ideal(), true);
        add_hosts(&mut world, 2, &[link; 2], &config(), loop_config());
        let fault = RailFault::Blackhole { outward, inward };
        world.net.borrow_mut().set_rail_fault(0, 1, Some(fault));
        connect(&mut world, 0, 1);
        talk(&mut world, [0, 1], "by the first rail");
        pass(&mut world, 1500 * MILLISECOND);
        let causes = [0, 1].map(|host| {
            let events = world.engine(host).unwrap().state.completions_mut().events_mut().first();
            events.iter().find_map(|event| match event {
                Event::PathChanged { state: PathState::Down, cause, .. } => Some(*cause),
                _ => None,
            })
        });
        let is_initiator = [0, 1].map(|host| {
            let core = world.look(host).unwrap().state.core();
            core.sessions().iter().any(|(_, session)| session.connection().is_initiator())
        });
        let expected = [0, 1].map(|host| match (is_initiator[host], [outward, inward][1 - host]) {
            (true, _) => Some(PathCause::ProbesLost),
            (false, true) => None,
            (false, false) => Some(PathCause::OneWay),
        });
        assert_eq!(causes, expected, "{fault:?} {is_initiator:?}");
        world.net.borrow_mut().set_rail_fault(0, 1, None);
        pass(&mut world, 200 * MILLISECOND);
        let paths = world.look(0).unwrap().state.session_paths().of(0).unwrap();
        assert!(paths.all().all(|path| path.is_active()), "it is used when it answers");
    }
}

/// A host of one rail, whose peer's first address is unreachable from there.
#[test]
fn a_host_of_one_rail_finds_the_address_that_answers() {
    let link = LinkImpairments { delay_ns: 10_000, ..LinkImpairments::default() };
    let mut world = World::new(1, Impairments::ideal()).unwrap();
    world.add_host_with(&[link]);
    world.add_host_with(&[link; 3]);
    for host in [0, 1] {
        world.start(host, host as u64 + 1, config(), loop_config()).unwrap();
    }
    for link in [0, 1] {
        world.net.borrow_mut().set_rail_fault(1, link, Some(RailFault::BLACKHOLE));
    }
    let start_ns = world.now_ns();
    connect(&mut world, 0, 1);
    exchange(&mut world, "by the third address");
    assert!(world.now_ns() - start_ns < 1_100 * MILLISECOND, "{} ns", world.now_ns() - start_ns);
    talk(&mut world, [0, 1], "and goes on");
}

/// Each round of attempts begins with the first rail: nothing shows that it does not work.
///
/// RR-CONN-6
#[test]
fn a_peer_that_does_not_listen_yet_is_reached_by_the_first_rail() {
    let link = LinkImpairments { delay_ns: 10_000, ..LinkImpairments::default() };
    let mut world = World::new(1, Impairments::ideal()).unwrap();
    for _ in 0..2 {
        world.add_host_with(&[link; 2]);
    }
    for host in [1, 0] {
        world.start(host, host as u64 + 1, config(), loop_config()).unwrap();
    }
    let target = peer(&mut world, 0, 1);
    drop(world.take(1));
    world.engine(0).unwrap().start_connect(Peer(target)).unwrap();
    pass(&mut world, 5 * MILLISECOND);
    world.start(1, 2, config(), loop_config()).unwrap();
    talk(&mut world, [0, 1], "it listens now");
    let net = world.net.borrow();
    let by = |is_answered: bool| {
        let controls = net.connections.iter().filter(|it| !it.is_bulk);
        let those = controls.filter(move |it| it.answered_ns.is_some() == is_answered);
        those.map(|it| it.ends[0].link).collect::<Vec<_>>()
    };
    assert!(by(false).contains(&0) && by(false).contains(&1), "refused: {:?}", by(false));
    assert!(by(true).iter().all(|&link| link == 0), "answered: {:?}", by(true));
}
