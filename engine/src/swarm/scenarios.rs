//! Peers that come, go, fail and lie: one story each, with many seeds.

use std::time::Duration;

#[cfg(test)]
use super::at_rest::check_at_rest;
use super::at_rest::describe;
use super::form::content;
use super::world::{Step, World};
use crate::driver::sim::net::Impairments;
use crate::driver::sim::rails::LinkImpairments;
use crate::driver::sim::random::Random;
use crate::driver::traits::SendMode;
use crate::memory::Buffer;
use crate::progress::completions::CompletionRoute;
use crate::progress::engine::LoopConfig;
use crate::progress::post::{Memory, PostResult};
use crate::progress::zero_copy::Policy;
use crate::proto::core::Config;
use crate::proto::effects::CompletionLevel;
use crate::proto::hint::Hint;
#[cfg(test)]
use crate::proto::operation::OperationState;
use crate::proto::receive::ReceiveRequest;
use crate::proto::session::connection::Retry;
use crate::proto::session::control_lane::SilentTimeout;
use crate::proto::session::send::SendRequest;
use crate::proto::table::Id;
use crate::types::{Completion, Error, Event, Peer, PeerFailure};

pub(super) const MILLISECOND: u64 = 1_000_000;
const LONG_NS: u64 = 600_000 * MILLISECOND;

/// Everything small, so that every bound is met often.
pub(super) fn config() -> Config {
    Config {
        eager_limit: 256,
        inject_limit: 256,
        rts_bytes: 32,
        chunk_bytes: 512,
        busy_chunk_bytes: 128,
        horizon_chunks: 3,
        bulk_lanes: 2,
        bulk_lanes_max: 16,
        envelope_credits: 4,
        eager_credit_bytes: 600,
        send_queue_ops: 1000,
        operations_max: 4000,
        sessions_max: 16,
        staging_bytes: 8192,
        staging_buffers_max: 4,
        retry: Retry {
            timeout_ns: 20_000 * MILLISECOND,
            retries: 50,
            delay_ns: 100_000,
            silent_ns: 1,
        },
        outage_ns: 10_000 * MILLISECOND,
        bulk_idle_ns: LONG_NS,
        ..Config::for_tests()
    }
}

pub(super) fn loop_config() -> LoopConfig {
    LoopConfig {
        spin: Duration::ZERO,
        hot_lanes: 2,
        receive_buffer_bytes: 4096,
        zero_copy: Policy::Always(SendMode::ZeroCopy),
        peer_timeout: Duration::from_secs(3600),
        silent_timeout: SilentTimeout::NONE,
        handshake_pending_max: 100,
        handshake_timeout: Duration::from_secs(20),
        linger: Duration::ZERO,
        report_lost_peers: false,
    }
}

pub(super) fn impairments(seed: u64) -> Impairments {
    let mut random = Random::new(seed);
    Impairments {
        jitter_ns: 50_000,
        capacity: 300 + random.below(3000),
        partial_one_in: 2,
        late_ns: 20_000,
        events_per_poll: 4,
        keep_alive_ns: 10_000 * MILLISECOND,
        ..Impairments::ideal()
    }
}

/// A network without hosts, whose engines take datagrams or do not.
pub(super) fn empty_world(seed: u64, impairments: Impairments, has_datagrams: bool) -> World {
    let mut world = World::new(seed, impairments).unwrap();
    world.set_datagrams(has_datagrams).unwrap();
    world
}

/// Adds hosts with these links, and starts an engine on each, whose id is the host's number and
/// one.
pub(super) fn add_hosts(
    world: &mut World,
    hosts: usize,
    links: &[LinkImpairments],
    config: &Config,
    loop_config: LoopConfig,
) {
    for _ in 0..hosts {
        let host = world.add_host_with(links);
        world.start(host, host as u64 + 1, config.clone(), loop_config).unwrap();
    }
}

/// Hosts in a row.
pub(super) fn world(seed: u64, hosts: usize, config: &Config) -> World {
    let mut world = World::new(seed, impairments(seed)).unwrap();
    add_hosts(&mut world, hosts, &[], config, loop_config());
    world
}

/// Returns the handle of endpoint 0 of the engine of `of` at the engine of `at`.
pub(super) fn peer(world: &mut World, at: usize, of: usize) -> Id {
    let address = world.engine(of).unwrap().state.address(0);
    let core = world.engine(at).unwrap().state.core_mut();
    core.insert_peer(address.engine(), address.to_locators(), 0).unwrap()
}

fn route(context: u64) -> CompletionRoute {
    CompletionRoute::Queue { queue: 0, user_data: context, silent: false }
}

/// Whether it is outstanding now.
pub(super) fn send(
    world: &mut World,
    at: usize,
    peer: Id,
    tag: u64,
    length: usize,
    level: CompletionLevel,
) -> bool {
    let (length_bytes, hint) = (length as u64, Hint::None);
    let request = SendRequest {
        endpoint: 0,
        peer,
        context: 0,
        tag,
        length: length_bytes,
        level,
        hint,
        data: None,
        fence: false,
    };
    let mut buffer = Buffer::Heap(content(tag, length));
    let shape = buffer.shape_for_send().unwrap();
    let memory = Memory { buffer: Some(buffer), shape };
    let posted = world.engine(at).unwrap().post_send(&request, memory, route(tag), false);
    matches!(posted, Ok(PostResult::Pending(_)))
}

/// Whether it is outstanding now.
pub(super) fn receive(world: &mut World, at: usize, peer: Id, tag: u64, capacity: usize) -> bool {
    let (ignore, capacity_bytes) = (0, capacity as u64);
    let peer = Some(peer);
    let request = ReceiveRequest {
        endpoint: 0,
        peer,
        context: 0,
        tag,
        ignore,
        capacity: capacity_bytes,
        min_free: None,
    };
    let mut buffer = Buffer::Heap(vec![0; capacity]);
    let shape = buffer.shape_for_recv().unwrap();
    let memory = Memory { buffer: Some(buffer), shape };
    world.engine(at).unwrap().state.post_receive(&request, memory, route(tag)).is_ok()
}

/// Completions that have come; memory that a chunk still refers to is an error (RR-RDV-3).
pub(super) fn drain(world: &mut World, host: usize) -> Vec<Completion> {
    let mut all = Vec::new();
    while let Some(completion) = world.pop(host) {
        if let Some(Buffer::Heap(bytes)) = &completion.buffer {
            assert!(!world.net.borrow().is_busy(bytes), "ended while the kernel has the buffer");
        }
        all.push(completion);
    }
    all
}

/// Lets the world go on until `done`, looked at after each turn of an engine.
pub(super) fn run(world: &mut World, what: &str, mut done: impl FnMut(&mut World) -> bool) {
    let end_ns = world.now_ns() + LONG_NS;
    while world.step(end_ns) != Step::Limit {
        assert_eq!(world.net.borrow_mut().take_violation(), None, "{what}");
        if done(world) {
            return;
        }
    }
    let report: String = (0..world.hosts()).filter_map(|at| world.look(at)).map(describe).collect();
    panic!("it never happens: {what}\n{report}");
}

pub(super) fn pass(world: &mut World, for_ns: u64) {
    let end_ns = world.now_ns() + for_ns;
    while world.step(end_ns) != Step::Limit {}
}

/// Both ways between two engines, a short and a long message each.
pub(super) fn talk(world: &mut World, pair: [usize; 2], what: &str) {
    for (from, to) in [(pair[0], pair[1]), (pair[1], pair[0])] {
        for (tag, length) in [(1, 10), (2, 3000)] {
            let source = peer(world, to, from);
            assert!(receive(world, to, source, tag, length), "{what}");
            let target = peer(world, from, to);
            send(world, from, target, tag, length, CompletionLevel::Match);
        }
    }
    let mut count = 0;
    run(world, what, |world| {
        for host in pair {
            for completion in drain(world, host) {
                completion.result.unwrap_or_else(|error| panic!("{what}: {error}"));
                count += 1;
            }
        }
        count == 8
    });
    pass(world, 100 * MILLISECOND);
    pair.iter().for_each(|&host| {
        assert_eq!(world.look(host).unwrap().state.core().shared().operations().len(), 0)
    });
}

/// Each connection is reported once and each end once, in turn.
fn assert_events_alternate(world: &mut World, host: usize) {
    let mut up = std::collections::BTreeSet::new();
    let engine = world.engine(host).unwrap();
    while let Some(event) = engine.state.completions_mut().events_mut().first().pop_front() {
        match event {
            Event::Connected { address } => {
                assert!(up.insert(address.engine()), "connected twice: {address}");
            }
            Event::Disconnected { address, failure } => {
                let was_up = up.remove(&address.engine());
                let may_fail_before = !matches!(failure, PeerFailure::Lost(_) | PeerFailure::Left);
                assert!(was_up || may_fail_before, "ended twice: {address}: {failure}");
            }
            _ => {}
        }
    }
}

/// Operations that cannot all be over soon; how many are outstanding.
fn post_much(world: &mut World, at: usize, target: Id, random: &mut Random) -> usize {
    let mut pending = 0;
    for tag in 0..12 {
        let length = random.below(6000);
        let level = random.pick(&[CompletionLevel::Delivery, CompletionLevel::Match]);
        pending += usize::from(send(world, at, target, tag, length, level));
        let tag = random.next() % 16;
        pending += usize::from(receive(world, at, target, tag, 6000));
    }
    pending
}

pub(super) fn connect(world: &mut World, at: usize, of: usize) {
    let target = peer(world, at, of);
    let started = world.engine(at).unwrap().start_connect(Peer(target));
    // What may be lost of a past session is reported at once, and the attempt goes on.
    assert!(matches!(started, Ok(_) | Err(Error::Peer { .. })), "{started:?}");
}

#[test]
fn crossing_connects_make_one_session() {
    for seed in 0..40 {
        let mut world = world(seed, 2, &config());
        world.net.borrow_mut().impairments.refused_one_in = [0, 4][seed as usize % 2];
        talk(&mut world, [0, 1], "crossing connects");
        for host in 0..2 {
            let core = world.look(host).unwrap().state.core();
            assert_eq!(core.sessions().len(), 1, "seed {seed}");
            assert_eq!(core.next_deadline_ns(), None, "seed {seed}");
            assert_events_alternate(&mut world, host);
        }
    }
}

/// The higher one has accepted a hello of the lower one before its user knew of that, and connects;
/// the lower one finds the answer and the other hello at once.
///
/// RR-CONN-4
#[test]
fn connects_cross_whose_peer_was_unknown_when_its_hello_came() {
    for seed in 0..200 {
        let mut world = world(seed, 2, &config());
        connect(&mut world, 0, 1);
        run(&mut world, "the hello is answered", |world| {
            world.net.borrow().connections[0].answered_ns.is_some()
        });
        assert_eq!(world.look(1).unwrap().state.core().sessions().len(), 0);
        world.net.borrow_mut().pause(0, 10 * MILLISECOND);
        connect(&mut world, 1, 0);
        pass(&mut world, 100 * MILLISECOND);
        for host in 0..2 {
            let events = world.engine(host).unwrap().state.completions_mut().events_mut().first();
            let events: Vec<Event> = events.drain(..).collect();
            let [Event::Connected { .. }] = events[..] else { panic!("seed {seed}: {events:?}") };
        }
    }
}

/// An attacker has recorded a hello of the peer that led to nothing, and replays it whenever this
/// side tries.
///
/// RR-CONN-4
#[test]
fn a_replayed_hello_prevents_no_connection() {
    for seed in 0..40 {
        let mut world = World::new(seed, impairments(seed)).unwrap();
        for (host, retries) in [(0, 3), (1, 0)] {
            let retry =
                Retry { timeout_ns: 50 * MILLISECOND, retries, delay_ns: 100_000, silent_ns: 1 };
            world.add_host();
            world
                .start(host, host as u64 + 1, Config { retry, ..config() }, loop_config())
                .unwrap();
        }
        world.net.borrow_mut().attack_handshakes(50, 0);
        // No engine answers in time.
        world.net.borrow_mut().pause(0, 100 * MILLISECOND);
        connect(&mut world, 1, 0);
        pass(&mut world, 200 * MILLISECOND);
        assert_eq!(world.net.borrow().hellos_seen(), 1, "a hello is recorded");
        connect(&mut world, 0, 1);
        run(&mut world, &format!("seed {seed}: a session"), |world| {
            (0..2).all(|host| {
                let core = world.look(host).unwrap().state.core();
                core.sessions().iter().all(|(_, session)| session.is_connected())
            })
        });
        assert_eq!(world.net.borrow().hellos_seen(), 2, "seed {seed}: the first attempt");
        talk(&mut world, [0, 1], "unaffected by replays");
    }
}

/// RR-AUTH-10
#[test]
fn attempts_that_arrive_elsewhere_are_tried_again() {
    for seed in 0..40 {
        let retry =
            Retry { timeout_ns: 50 * MILLISECOND, retries: 3, delay_ns: 100_000, silent_ns: 1 };
        let mut world = world(seed, 3, &Config { retry, ..config() });
        world.net.borrow_mut().attack_handshakes(0, 3);
        talk(&mut world, [0, 1], &format!("seed {seed}"));
    }
}

#[test]
fn attempts_without_an_answer_are_tried_again() {
    for seed in 0..40 {
        let retry =
            Retry { timeout_ns: 500 * MILLISECOND, retries: 60, delay_ns: 100_000, silent_ns: 1 };
        let mut world = world(seed, 2, &Config { retry, ..config() });
        world.net.borrow_mut().impairments.swallowed_one_in = 2;
        talk(&mut world, [0, 1], "the peer answers at last");
    }
}

/// The first look at deadlines after a pause is put off, so that what has come in counts; not
/// the one after it.
#[test]
fn deadlines_pass_in_a_loop_that_seldom_runs() {
    let retry =
        Retry { timeout_ns: 500 * MILLISECOND, retries: 3, delay_ns: 100_000, silent_ns: 1 };
    let mut world = world(0, 2, &Config { retry, ..config() });
    world.turn_ns = 300 * MILLISECOND;
    world.idle_turns_max = u32::MAX;
    let target = peer(&mut world, 0, 1);
    drop(world.take(1));
    send(&mut world, 0, target, 1, 10, CompletionLevel::Match);
    run(&mut world, "the retries are spent", |world| !drain(world, 0).is_empty());
}

#[test]
fn attempts_are_counted_and_can_start_afresh() {
    for seed in 0..10 {
        let retry =
            Retry { timeout_ns: 5 * MILLISECOND, retries: 3, delay_ns: 100_000, silent_ns: 1 };
        let mut world = world(seed, 2, &Config { retry, ..config() });
        let target = peer(&mut world, 0, 1);
        drop(world.take(1));
        send(&mut world, 0, target, 1, 10, CompletionLevel::Match);
        let mut failures = Vec::new();
        run(&mut world, "the retries are spent", |world| {
            failures.extend(drain(world, 0));
            !failures.is_empty()
        });
        let Err(Error::Peer { failure: PeerFailure::Unreachable { attempts: 4, .. }, .. }) =
            failures[0].result
        else {
            panic!("{failures:?}")
        };
        world.start(1, 2, config(), loop_config()).unwrap();
        connect(&mut world, 0, 1);
        talk(&mut world, [0, 1], "a later attempt");
    }
}

#[test]
fn a_killed_peer_takes_nothing_with_it() {
    for seed in 0..40 {
        let mut random = Random::new(seed);
        let mut world = world(seed, 3, &config());
        talk(&mut world, [0, 2], "before");
        let target = peer(&mut world, 0, 2);
        let mut pending = post_much(&mut world, 0, target, &mut random);
        let back = peer(&mut world, 2, 0);
        post_much(&mut world, 2, back, &mut random);
        pass(&mut world, random.within(4 * MILLISECOND));
        let is_silent = random.one_in(2);
        if is_silent {
            world.net.borrow_mut().power_off(2);
        }
        drop(world.take(2));
        // What a receive waits for may never be sent: that does not end with a lone message.
        pending += usize::from(send(&mut world, 0, target, 99, 3000, CompletionLevel::Match));
        run(&mut world, "everything ends", |world| {
            pending -= drain(world, 0).len();
            pending == 0
        });
        talk(&mut world, [0, 1], "others go on");
        assert_events_alternate(&mut world, 0);
        // Another process in its place is another engine.
        world.net.borrow_mut().power_on(2);
        world.start(2, 77, config(), loop_config()).unwrap();
        talk(&mut world, [0, 2], "the successor");
    }
}

#[test]
fn a_broken_control_lane_ends_what_was_under_way_and_nothing_else() {
    for seed in 0..20 {
        let mut random = Random::new(seed);
        let mut world = world(seed, 2, &config());
        for round in 0..4 {
            let mut pending = [0; 2];
            for (host, pending) in pending.iter_mut().enumerate() {
                connect(&mut world, host, 1 - host);
                let target = peer(&mut world, host, 1 - host);
                *pending = post_much(&mut world, host, target, &mut random);
                pass(&mut world, random.within(2 * MILLISECOND));
            }
            // Until no operation is pending: a receive may have no message to come.
            let mut next_ns = 0;
            run(&mut world, &format!("round {round} ends"), |world| {
                for (host, pending) in pending.iter_mut().enumerate() {
                    *pending -= drain(world, host).len();
                }
                if world.now_ns() > next_ns {
                    world.net.borrow_mut().cut_one(false);
                    next_ns = world.now_ns() + random.within(3 * MILLISECOND);
                    (0..2).for_each(|host| connect(world, host, 1 - host));
                }
                pending == [0; 2]
            });
        }
        (0..2).for_each(|host| assert_events_alternate(&mut world, host));
    }
}

/// The owner's first call after a failure that was not reported to it.
const FIRST_CALLS: [&str; 4] = ["send", "receive", "peek", "connect"];

/// One call of the owner of host 0 that concerns a peer.
fn call(world: &mut World, what: &str, target: Id) -> Result<(), Error> {
    let (tag, ignore, capacity) = (70, 0, 8);
    let wish = ReceiveRequest {
        endpoint: 0,
        peer: Some(target),
        context: 0,
        tag,
        ignore,
        capacity,
        min_free: None,
    };
    let engine = world.engine(0).unwrap();
    match what {
        "send" => {
            let (level, hint) = (CompletionLevel::Inject, Hint::None);
            let (peer, length) = (target, 8);
            let request = SendRequest {
                endpoint: 0,
                peer,
                context: 0,
                tag,
                length,
                level,
                hint,
                data: None,
                fence: false,
            };
            engine.inject(&request, &[0; 8], route(tag), false)
        }
        "receive" => {
            assert!(receive(world, 0, target, tag, 8));
            drain(world, 0).pop().map_or(Ok(()), |ended| ended.result.map(drop))
        }
        "peek" => engine.state.peek(&wish).map(|found| assert_eq!(found, None)),
        _ => engine.start_connect(Peer(target)).map(drop),
    }
}

/// RR-END-5
#[test]
fn completed_sends_that_a_past_session_may_have_lost_are_reported_once() {
    for (case, has_datagrams) in (0..8).map(|index| (index / 2, index % 2 == 1)) {
        for first in FIRST_CALLS {
            let what = format!("{first}, case {case}, datagrams: {has_datagrams}");
            let mut world = empty_world(1, Impairments::ideal(), has_datagrams);
            add_hosts(&mut world, 2, &[], &config(), loop_config());
            talk(&mut world, [0, 1], &what);
            let target = peer(&mut world, 0, 1);
            // Nothing can be lost; an operation reports it; none does; the peer has everything.
            if case != 0 {
                call(&mut world, "send", target).unwrap();
            }
            if case == 1 {
                assert!(receive(&mut world, 0, target, 71, 8));
            }
            if case == 3 {
                pass(&mut world, 1000 * MILLISECOND);
            }
            world.engine(0).unwrap().state.lose(0, "cut");
            pass(&mut world, MILLISECOND);
            assert_eq!(drain(&mut world, 0).len(), usize::from(case == 1), "{what}");
            connect(&mut world, 1, 0);
            run(&mut world, &what, |world| {
                let core = world.look(0).unwrap().state.core();
                core.session(0).unwrap().is_connected()
            });
            let result = call(&mut world, first, target);
            let is_reported = |result: &Result<(), Error>| {
                matches!(result, Err(Error::Peer { failure: PeerFailure::Lost(_), .. }))
            };
            assert_eq!(is_reported(&result), case == 2, "{what}: {result:?}");
            FIRST_CALLS.iter().for_each(|next| call(&mut world, next, target).unwrap());
        }
    }
}

#[test]
fn foreign_connections_and_noise_do_no_harm() {
    for seed in 0..40 {
        let mut random = Random::new(seed);
        let mut world = world(seed, 2, &config());
        for round in 0..4 {
            let noise: Vec<u8> = (0..random.below(200)).map(|_| random.next() as u8).collect();
            world.net.borrow_mut().intrude(round % 2, &noise);
            talk(&mut world, [0, 1], "beside foreign connections");
        }
        let target = peer(&mut world, 0, 1);
        let mut pending = post_much(&mut world, 0, target, &mut random);
        // Nothing that a lane carries may do more than end the session.
        for _ in 0..20 {
            pass(&mut world, random.within(100_000));
            let is_bulk = random.one_in(2);
            world.net.borrow_mut().garble(is_bulk);
        }
        // Noise that looks like the head of a long segment has no other effect.
        run(&mut world, "the session ends", |world| {
            world.net.borrow_mut().cut_one(false);
            pending -= drain(world, 0).len();
            drain(world, 1);
            pending == 0
        });
    }
}

/// One side opens the lanes, the other one alone needs them: it has to learn that lanes were lost,
/// whichever side sees that first. Few lanes, or none that stays, are no reason to fail.
#[test]
fn lanes_come_again_for_the_side_that_cannot_open_them() {
    for seed in 0..40 {
        let mut random = Random::new(seed);
        let mut config = config();
        config.bulk_lanes_max = [1, 16][seed as usize % 2];
        config.bulk_idle_ns = [MILLISECOND, LONG_NS][seed as usize / 2 % 2];
        let mut world = world(seed, 2, &config);
        let opener = (seed / 4 % 2) as usize;
        let target = peer(&mut world, opener, 1 - opener);
        let mut pending = 0;
        for tag in 0..8 {
            send(&mut world, opener, target, tag, 5000, CompletionLevel::Match);
            pass(&mut world, random.within(3 * MILLISECOND));
            let source = peer(&mut world, 1 - opener, opener);
            assert!(receive(&mut world, 1 - opener, source, tag, 5000));
            pending += 2;
        }
        let mut cuts = 6;
        run(&mut world, "all arrive", |world| {
            if cuts > 0 && random.one_in(60) && world.net.borrow_mut().cut_one(true).is_some() {
                cuts -= 1;
            }
            for host in 0..2 {
                for completion in drain(world, host) {
                    completion.result.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
                    pending -= 1;
                }
            }
            pending == 0
        });
        pass(&mut world, 100 * MILLISECOND);
        (0..2).for_each(|host| check_at_rest(world.look(host).unwrap()).unwrap());
    }
}

/// One side is back before the other has carried out what the end of the session asked for.
#[test]
fn a_new_connection_outlives_the_end_of_the_old_one() {
    for seed in 0..60 {
        let mut world = world(seed, 2, &config());
        talk(&mut world, [0, 1], "before");
        world.net.borrow_mut().mute();
        let back = seed as usize % 2;
        world.engine(back).unwrap().state.lose(0, "the network");
        connect(&mut world, back, 1 - back);
        pass(&mut world, seed * 10_000);
        world.engine(1 - back).unwrap().state.lose(0, "the network");
        connect(&mut world, 1 - back, back);
        run(&mut world, "they meet again", |world| {
            (0..2).all(|host| {
                let mut sessions = world.look(host).unwrap().state.core().sessions().iter();
                sessions.all(|(_, session)| session.is_connected())
            })
        });
        talk(&mut world, [0, 1], "after");
        (0..2).for_each(|host| assert_events_alternate(&mut world, host));
    }
}

#[test]
fn a_session_ends_once_and_for_its_first_cause() {
    let mut world = world(1, 2, &config());
    talk(&mut world, [0, 1], "before");
    let engine = world.engine(0).unwrap();
    engine.state.completions_mut().events_mut().first().clear();
    engine.state.lose(0, "first");
    engine.state.lose(0, "second");
    pass(&mut world, 10 * MILLISECOND);
    let events: Vec<_> =
        world.engine(0).unwrap().state.completions_mut().events_mut().first().drain(..).collect();
    let [Event::Disconnected { failure, .. }] = &events[..] else { panic!("{events:?}") };
    assert_eq!(*failure, PeerFailure::Lost("first".into()));
}

/// The slot of a lane that is gone may have a successor: a peer that asks twice closes one lane.
#[test]
fn a_lane_is_closed_once() {
    let mut world = world(1, 2, &Config { bulk_lanes: 1, bulk_lanes_max: 1, ..config() });
    talk(&mut world, [0, 1], "before");
    for host in 0..2 {
        let lane_of = |world: &World| {
            let core = world.look(host).unwrap().state.core();
            core.shared().lanes().iter().next().map(|(lane, _)| lane)
        };
        let first = lane_of(&world).unwrap();
        let close = crate::proto::core::Action::CloseLane { lane: first, is_failure: false };
        world.engine(host).unwrap().state.core_mut().act_next(close.clone());
        talk(&mut world, [0, 1], "with another lane");
        assert_ne!(lane_of(&world), Some(first), "the slot has a successor");
        world.engine(host).unwrap().state.core_mut().act_next(close);
        talk(&mut world, [0, 1], "after a late request");
    }
}

/// A long message whose receiver (or sender) forgets the other endpoint while it is on its way.
/// Both ends hear of it, and the session, which other endpoints use, goes on.
#[test]
fn a_long_message_that_one_side_gives_up_ends_on_both_sides() {
    for seed in 0..40 {
        let mut random = Random::new(seed);
        let mut world = world(seed, 2, &config());
        talk(&mut world, [0, 1], "before");
        let forgetter = seed as usize % 2;
        let other = world.engine(1 - forgetter).unwrap();
        let second = other.state.open_endpoint().unwrap();
        let address = other.state.address(second);
        // Keeps the session.
        let core = world.engine(forgetter).unwrap().state.core_mut();
        core.insert_peer(address.engine(), address.to_locators(), second).unwrap();
        let (target, source) = (peer(&mut world, 0, 1), peer(&mut world, 1, 0));
        assert!(receive(&mut world, 1, source, 7, 400_000));
        assert!(send(&mut world, 0, target, 7, 400_000, CompletionLevel::Match));
        // Nothing was sent to a receiver that forgets the sender before its first frame has come.
        run(&mut world, "the receiver pulls", |world| {
            let mut operations = world.look(1).unwrap().state.core().shared().operations().iter();
            operations
                .any(|(_, operation)| matches!(operation.state, OperationState::AwaitBytes(_)))
        });
        pass(&mut world, random.within(MILLISECOND));
        let forgotten = [target, source][forgetter];
        let state = &mut *world.engine(forgetter).unwrap().state;
        state.with_core(|core, ended| core.remove_peer(forgotten, ended));
        let mut ended = [Vec::new(), Vec::new()];
        run(&mut world, "both ends", |world| {
            (0..2).for_each(|host| ended[host].extend(drain(world, host)));
            ended.iter().all(|ended| !ended.is_empty())
        });
        for completions in &ended {
            assert_eq!(completions.len(), 1, "seed {seed}");
            let is_given_up = matches!(
                completions[0].result,
                Err(Error::UnknownPeer
                    | Error::Peer { failure: PeerFailure::Left | PeerFailure::Removed, .. })
            );
            assert!(is_given_up, "seed {seed}: {:?}", completions[0].result);
        }
        let before =
            world.look(0).unwrap().state.core().sessions().iter().next().unwrap().1.epoch();
        talk(&mut world, [0, 1], "after");
        let after = world.look(0).unwrap().state.core().sessions().iter().next().unwrap().1.epoch();
        assert_eq!(before, after, "the session went on");
        (0..2).for_each(|host| check_at_rest(world.look(host).unwrap()).unwrap());
    }
}

/// A peer is forgotten whose process answers no more, while another endpoint of it is still known.
#[test]
fn a_send_that_ended_with_its_peer_waits_for_no_answer() {
    let mut world = world(1, 2, &config());
    talk(&mut world, [0, 1], "before");
    let other = world.engine(1).unwrap();
    let second = other.state.open_endpoint().unwrap();
    let address = other.state.address(second);
    let core = world.engine(0).unwrap().state.core_mut();
    core.insert_peer(address.engine(), address.to_locators(), second).unwrap();
    world.net.borrow_mut().power_off(1);
    drop(world.take(1));
    let locator = world.net.borrow().locator(1);
    let core = world.engine(0).unwrap().state.core_mut();
    let target = core.insert_peer(address.engine(), locator, 0).unwrap();
    assert!(send(&mut world, 0, target, 1, 10, CompletionLevel::Delivery));
    pass(&mut world, 10 * MILLISECOND);
    let state = &mut *world.engine(0).unwrap().state;
    state.with_core(|core, ended| core.remove_peer(target, ended));
    assert_eq!(drain(&mut world, 0).len(), 1);
    let mut sessions = world.look(0).unwrap().state.core().sessions().iter();
    assert!(sessions.any(|(_, session)| session.is_connected()));
    // Its segment is kept until the session ends.
    let core = world.look(0).unwrap().state.core();
    assert_eq!(core.shared().operations().len(), 0);
}

/// RR-CREDIT-4
#[test]
fn a_peer_given_up_while_it_is_connected_to_keeps_no_window() {
    for after_ns in (0..20_000).step_by(1000) {
        let mut world = world(1, 2, &config());
        connect(&mut world, 0, 1);
        pass(&mut world, after_ns);
        // The loop learns only after that how far the connection is.
        world.net.borrow_mut().pause(0, MILLISECOND);
        pass(&mut world, MILLISECOND / 2);
        let target = peer(&mut world, 0, 1);
        let engine = world.engine(0).unwrap();
        engine.state.with_core(|core, ended| core.remove_peer(target, ended));
        pass(&mut world, 3000 * MILLISECOND);
        for host in 0..2 {
            let offers = world.look(host).unwrap().state.core().shared().offers().open();
            assert_eq!(offers, 0, "host {host}, {after_ns} ns");
        }
    }
}
