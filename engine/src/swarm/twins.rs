//! Limits, from both sides: just inside of each all is well, just outside of it something ends,
//! and for the cause that is stated. Time is virtual, so "just" is exact: a nanosecond where a
//! single event decides, one look of the loop where the loop looks now and then.

use std::time::Duration;

use super::scenarios::{
    MILLISECOND, add_hosts, config, connect, drain, loop_config, pass, peer, receive, run, send,
    talk,
};
use super::world::World;
use crate::driver::sim::net::Impairments;
use crate::progress::engine::LoopConfig;
use crate::proto::core::{Config, ENVELOPES_MIN};
use crate::proto::effects::CompletionLevel;
use crate::proto::session::Session;
use crate::proto::session::connection::Retry;
use crate::types::{Completion, Error, Event, Peer, PeerFailure};

/// Interval at which a loop checks peers and unauthenticated connections.
const LOOK_NS: u64 = 100 * MILLISECOND;

/// One attempt to connect, and no other.
const ONCE: Retry =
    Retry { timeout_ns: 20_000 * MILLISECOND, retries: 0, delay_ns: 100_000, silent_ns: 1 };

/// A network in which everything takes the same time.
fn steady() -> Impairments {
    Impairments { jitter_ns: 0, keep_alive_ns: 3_600_000 * MILLISECOND, ..Impairments::ideal() }
}

fn steady_world(hosts: usize, config: &Config, loops: LoopConfig) -> World {
    let mut world = World::new(1, steady()).unwrap();
    add_hosts(&mut world, hosts, &[], config, loops);
    world
}

/// The first completion of host 0.
fn first(world: &mut World, what: &str) -> Completion {
    let mut ended = Vec::new();
    run(world, what, |world| {
        ended.extend(drain(world, 0));
        !ended.is_empty()
    });
    ended.remove(0)
}

fn failure_of(completion: Completion) -> PeerFailure {
    match completion.result {
        Err(Error::Peer { failure, .. }) => failure,
        other => panic!("{other:?}"),
    }
}

fn sessions_connected(world: &World, host: usize) -> usize {
    let sessions = world.look(host).unwrap().state.core().sessions();
    sessions.iter().filter(|(_, session)| session.is_connected()).count()
}

fn refusals(world: &mut World, host: usize) -> Vec<String> {
    let events = world.engine(host).unwrap().state.completions_mut().events_mut().first();
    let refused = events.drain(..).filter_map(|event| match event {
        Event::Refused { cause, .. } => Some(cause),
        _ => None,
    });
    refused.collect()
}

/// How a send ends whose peer is not there before `comes_ns`, if ever; and when the last attempt
/// to connect set out, if the peer never came.
fn late_peer(comes_ns: Option<u64>) -> (u64, Completion) {
    let retry = Retry { timeout_ns: 5 * MILLISECOND, retries: 3, delay_ns: 100_000, silent_ns: 1 };
    let config = Config { retry, ..config() };
    let mut world = steady_world(2, &config, loop_config());
    let target = peer(&mut world, 0, 1);
    drop(world.take(1));
    send(&mut world, 0, target, 1, 10, CompletionLevel::Delivery);
    if let Some(comes_ns) = comes_ns {
        pass(&mut world, comes_ns);
        world.start(1, 2, config, loop_config()).unwrap();
    }
    let (mut attempts, mut last_ns, mut ended) = (0, 0, Vec::new());
    run(&mut world, "the send ends", |world| {
        let connections = world.net.borrow().connections.len();
        if connections > attempts {
            (attempts, last_ns) = (connections, world.now_ns());
        }
        ended.extend(drain(world, 0));
        !ended.is_empty()
    });
    (last_ns, ended.remove(0))
}

/// RR-CONN-6
#[test]
fn a_peer_that_is_there_for_the_last_attempt_is_reached() {
    let (last_ns, ended) = late_peer(None);
    let PeerFailure::Unreachable { attempts: 4, .. } = failure_of(ended) else { panic!() };
    let arrives_ns = last_ns + steady().delay_ns;
    let (_, inside) = late_peer(Some(arrives_ns - 1));
    assert!(inside.result.is_ok(), "{inside:?}");
    let (_, outside) = late_peer(Some(arrives_ns));
    let PeerFailure::Unreachable { attempts: 4, .. } = failure_of(outside) else { panic!() };
}

/// How a send ends during which the peer's host answers nothing for so long.
fn silent_peer(for_ns: u64, peer_timeout: Duration) -> Completion {
    let loops = LoopConfig { peer_timeout, ..loop_config() };
    let mut world = steady_world(2, &config(), loops);
    talk(&mut world, [0, 1], "before");
    let target = peer(&mut world, 0, 1);
    let source = peer(&mut world, 1, 0);
    receive(&mut world, 1, source, 7, 10);
    world.net.borrow_mut().cut_way(0, 1);
    send(&mut world, 0, target, 7, 10, CompletionLevel::Delivery);
    pass(&mut world, for_ns);
    world.net.borrow_mut().open_way(0, 1);
    first(&mut world, "the send ends")
}

/// RR-END-2
#[test]
fn a_peer_is_dead_when_its_host_was_silent_for_longer_than_it_may_be() {
    let timeout = Duration::from_secs(3);
    let timeout_ns = timeout.as_nanos() as u64;
    let inside = silent_peer(timeout_ns - MILLISECOND, timeout);
    assert!(inside.result.is_ok(), "{inside:?}");
    let PeerFailure::Lost(cause) =
        failure_of(silent_peer(timeout_ns + LOOK_NS + MILLISECOND, timeout))
    else {
        panic!()
    };
    assert!(cause.contains("has not answered for 3"), "{cause}");
}

/// A host whose hello is held up on the way for so long gets a session, or is refused.
fn late_hello(by_ns: u64) -> (bool, Vec<String>) {
    let handshake_timeout = Duration::from_secs(2);
    let loops = LoopConfig { handshake_timeout, ..loop_config() };
    let mut world = steady_world(2, &Config { retry: ONCE, ..config() }, loops);
    connect(&mut world, 0, 1);
    run(&mut world, "it is accepted", |world| {
        world.look(1).unwrap().state.pending_handshakes() == 1
    });
    assert!(world.net.borrow_mut().stall_one(false, by_ns));
    pass(&mut world, by_ns + 2 * LOOK_NS);
    (sessions_connected(&world, 1) == 1, refusals(&mut world, 1))
}

/// RR-CONN-5
#[test]
fn a_hello_that_is_late_by_less_than_the_limit_is_accepted() {
    let limit_ns = 2_000 * MILLISECOND;
    assert_eq!(late_hello(limit_ns - MILLISECOND), (true, Vec::new()));
    let cause = String::from("no hello received in time");
    assert_eq!(late_hello(limit_ns + LOOK_NS + MILLISECOND), (false, vec![cause]));
}

/// Returns whether a peer connects beside so many silent connections.
fn beside_silent_connections(silent: usize) -> (bool, Vec<String>) {
    let loops = LoopConfig { handshake_pending_max: 4, ..loop_config() };
    let mut world = steady_world(2, &Config { retry: ONCE, ..config() }, loops);
    for _ in 0..silent {
        world.net.borrow_mut().visit(1, &[], false);
    }
    pass(&mut world, MILLISECOND);
    connect(&mut world, 0, 1);
    pass(&mut world, LOOK_NS);
    (sessions_connected(&world, 1) == 1, refusals(&mut world, 1))
}

/// RR-CONN-5
#[test]
fn unauthenticated_connections_are_limited() {
    assert_eq!(beside_silent_connections(3), (true, Vec::new()));
    let cause = String::from("too many unauthenticated connections");
    assert_eq!(beside_silent_connections(4), (false, vec![cause]));
}

/// Returns the error that ends the session, if any, when a peer sends so much more than its credit.
fn liar(envelopes: u32, bytes: u32) -> Option<PeerFailure> {
    let mut world = steady_world(2, &config(), loop_config());
    talk(&mut world, [0, 1], "before");
    let target = peer(&mut world, 0, 1);
    let core = world.engine(0).unwrap().state.core_mut();
    let slot = core.destination(target).unwrap().session;
    let session = core.session_mut(slot).unwrap();
    // All of its credit, and what it gives itself.
    let credits = *session.segments().send_credits();
    let (left, left_bytes) = (credits.envelopes_left(), credits.bytes_left());
    session.segments_mut().set_send_credits(credits.forged(envelopes, bytes), 0);
    let count = left + envelopes;
    let total = if envelopes > 0 { 0 } else { left_bytes + bytes };
    let limit = config().eager_limit;
    for index in 0..count {
        // The first ones take the bytes, the others have none.
        let length = total.saturating_sub(index * limit).min(limit) as usize;
        send(&mut world, 0, target, 100 + u64::from(index), length, CompletionLevel::Inject);
    }
    world.engine(1).unwrap().state.completions_mut().events_mut().first().clear();
    pass(&mut world, 10 * MILLISECOND);
    let events = world.engine(1).unwrap().state.completions_mut().events_mut().first();
    events.drain(..).find_map(|event| match event {
        Event::Disconnected { failure, .. } => Some(failure),
        _ => None,
    })
}

/// RR-CREDIT-1
#[test]
fn a_peer_may_use_all_of_its_credit_and_not_one_more() {
    assert_eq!(liar(0, 0), None);
    let Some(PeerFailure::Protocol(cause)) = liar(1, 0) else { panic!() };
    assert!(cause.contains("credit"), "{cause}");
    let Some(PeerFailure::Protocol(cause)) = liar(0, 1) else { panic!() };
    assert!(cause.contains("credit"), "{cause}");
}

/// RR-CREDIT-4
#[test]
fn messages_without_receives_fill_the_window_and_then_the_queue() {
    let bound = 256;
    let config = Config { send_queue_ops: 5, unexpected_messages: bound, ..config() };
    let mut world = steady_world(2, &config, loop_config());
    talk(&mut world, [0, 1], "before");
    let target = peer(&mut world, 0, 1);
    let count = |world: &World| world.look(0).unwrap().state.core().shared().operations().len();
    // The window grows while they come.
    let mut sent = 0;
    while count(&world) == 0 {
        send(&mut world, 0, target, 100 + sent, 10, CompletionLevel::Inject);
        pass(&mut world, 10 * MILLISECOND);
        sent += 1;
    }
    let held = world.look(1).unwrap().state.core().shared().counters().unexpected_messages;
    assert_eq!(held, sent - 1, "one waits");
    assert!((u64::from(ENVELOPES_MIN) + 1..=bound).contains(&held), "{held}");
    for tag in 1..5 {
        assert!(send(&mut world, 0, target, 200 + tag, 10, CompletionLevel::Inject), "{tag} waits");
    }
    assert_eq!(count(&world), 5);
    assert!(!send(&mut world, 0, target, 300, 10, CompletionLevel::Inject));
    assert_eq!(count(&world), 5, "it was not taken");
}

/// RR-CREDIT-4
#[test]
fn messages_without_receives_stay_within_the_bound_of_all_peers() {
    // Each peer gets an eighth of what is left, and is out of credit then.
    let bound = 2048;
    let config = Config { unexpected_bytes: bound, envelope_credits: 1000, ..config() };
    let config = Config { eager_credit_bytes: 1 << 20, unexpected_messages: 1 << 20, ..config };
    let mut world = steady_world(12, &config, loop_config());
    for host in 1..12 {
        let target = peer(&mut world, host, 0);
        // Windows grow between the rounds.
        for tag in 0..200 {
            send(&mut world, host, target, tag, 16, CompletionLevel::Inject);
            if tag % 25 == 0 {
                pass(&mut world, 10 * MILLISECOND);
            }
        }
    }
    pass(&mut world, 10 * MILLISECOND);
    let core = world.look(0).unwrap().state.core();
    let of = |session: &Session| *session.segments().receive_credits().both()[1];
    let windows = core.sessions().iter().map(|(_, it)| u64::from(of(it).window()));
    let windows: u64 = windows.sum();
    let held: u64 = core.sessions().iter().map(|(_, it)| u64::from(of(it).held())).sum();
    assert!(windows <= bound, "{windows} were given");
    // The last message of a peer that does not fit a whole one is pulled instead.
    assert!((windows - 11 * 16..=windows).contains(&held), "{held} of {windows} are used");
}

#[test]
fn so_many_operations_are_outstanding_and_no_more() {
    let config = Config { operations_max: 10, ..config() };
    let mut world = steady_world(2, &config, loop_config());
    let source = peer(&mut world, 0, 1);
    for tag in 0..10 {
        assert!(receive(&mut world, 0, source, tag, 10), "{tag}");
    }
    assert!(!receive(&mut world, 0, source, 10, 10));
    let target = peer(&mut world, 1, 0);
    send(&mut world, 1, target, 3, 10, CompletionLevel::Inject);
    assert!(first(&mut world, "one ends").result.is_ok());
    assert!(receive(&mut world, 0, source, 10, 10), "there is room for one");
    assert!(!receive(&mut world, 0, source, 11, 10));
}

/// RR-CONN-2
#[test]
fn so_many_peers_have_sessions_and_no_more() {
    let config = Config { retry: ONCE, ..config() };
    let mut world = steady_world(5, &config, loop_config());
    let id = 6;
    world.add_host();
    world.start(5, id, Config { sessions_max: 3, ..config }, loop_config()).unwrap();
    for host in 0..3 {
        talk(&mut world, [host, 5], "inside");
    }
    let target = peer(&mut world, 3, 5);
    send(&mut world, 3, target, 1, 10, CompletionLevel::Delivery);
    let mut ended = Vec::new();
    run(&mut world, "outside", |world| {
        ended.extend(drain(world, 3));
        !ended.is_empty()
    });
    assert_eq!(failure_of(ended.remove(0)), PeerFailure::Full { attempts: 1 });
    let other = world.look(4).unwrap().state.address(0);
    let core = world.engine(5).unwrap().state.core_mut();
    assert_eq!(core.insert_peer(other.engine(), other.to_locators(), 0), None);
    let known = world.look(0).unwrap().state.address(0);
    let core = world.engine(5).unwrap().state.core_mut();
    assert!(core.insert_peer(known.engine(), known.to_locators(), 0).is_some());
}

/// Lanes of host 1, and whether lanes were refused, when host 0 opens so many.
fn joins(lanes: u32) -> (usize, usize) {
    let mut world = steady_world(
        1,
        &Config { bulk_lanes: lanes, bulk_lanes_max: 64, ..config() },
        loop_config(),
    );
    world.add_host();
    world.start(1, 2, Config { bulk_lanes_max: 64, ..config() }, loop_config()).unwrap();
    connect(&mut world, 0, 1);
    pass(&mut world, LOOK_NS);
    talk(&mut world, [0, 1], "over lanes");
    let count = |host| world.look(host).unwrap().state.core().shared().lanes().len();
    (count(0), count(1))
}

/// RR-LANE-2
#[test]
fn a_peer_gets_so_many_lanes_and_no_more() {
    assert_eq!(joins(16), (16, 16));
    assert_eq!(joins(17), (16, 16));
}

/// RR-LANE-2
#[test]
fn a_session_beyond_the_bound_of_lanes_waits_for_one_that_goes() {
    for (lanes_max, at_once) in [(3, 3), (2, 2)] {
        let idle_ns = 10_000 * MILLISECOND;
        let config =
            Config { bulk_lanes: 1, bulk_lanes_max: lanes_max, bulk_idle_ns: idle_ns, ..config() };
        let mut world = steady_world(4, &config, loop_config());
        for host in 1..4 {
            let target = peer(&mut world, host, 0);
            send(&mut world, host, target, 1, 4000, CompletionLevel::Match);
            let source = peer(&mut world, 0, host);
            receive(&mut world, 0, source, 1, 4000);
        }
        let (mut most, mut ended) = (0, 0);
        run(&mut world, "all have their turn", |world| {
            most = most.max(world.look(0).unwrap().state.core().shared().lanes().len());
            ended += drain(world, 0).len();
            ended == 3
        });
        assert_eq!(most, at_once);
    }
}

#[test]
fn a_lane_that_is_idle_for_long_goes() {
    let idle_ns = 2_000 * MILLISECOND;
    let mut world = steady_world(2, &Config { bulk_idle_ns: idle_ns, ..config() }, loop_config());
    talk(&mut world, [0, 1], "over lanes");
    let start_ns = world.now_ns();
    let count = |world: &World| world.look(0).unwrap().state.core().shared().lanes().len();
    // The last chunk was some time before.
    pass(&mut world, idle_ns - 2 * LOOK_NS);
    assert_eq!(count(&world), 2, "after {} ns", world.now_ns() - start_ns);
    pass(&mut world, 3 * LOOK_NS);
    assert_eq!(count(&world), 0);
}

/// The peer timeout, longer than an attempt to connect may take.
const OUTAGE_NS: u64 = 3_000 * MILLISECOND;

/// How a message ends for which no lane can be opened for so long.
fn without_lanes(for_ns: u64) -> Completion {
    let retry = Retry { timeout_ns: 1_000 * MILLISECOND, ..ONCE };
    let config = Config { retry, outage_ns: OUTAGE_NS, ..config() };
    let mut world = steady_world(2, &config, loop_config());
    connect(&mut world, 0, 1);
    pass(&mut world, LOOK_NS);
    world.net.borrow_mut().impairments.descriptors_missing_one_in = 1;
    let source = peer(&mut world, 0, 1);
    receive(&mut world, 0, source, 1, 4000);
    let target = peer(&mut world, 1, 0);
    send(&mut world, 1, target, 1, 4000, CompletionLevel::Match);
    let start_ns = world.now_ns();
    let mut ended = Vec::new();
    run(&mut world, "the message ends", |world| {
        if world.now_ns() >= start_ns + for_ns {
            world.net.borrow_mut().impairments.descriptors_missing_one_in = 0;
        }
        ended.extend(drain(world, 0));
        !ended.is_empty()
    });
    ended.remove(0)
}

/// RR-LANE-4
#[test]
fn lanes_may_fail_for_as_long_as_a_peer_may_be_silent() {
    let inside = without_lanes(OUTAGE_NS - LOOK_NS);
    assert!(inside.result.is_ok(), "{inside:?}");
    let PeerFailure::Lost(cause) = failure_of(without_lanes(OUTAGE_NS + 2 * LOOK_NS)) else {
        panic!()
    };
    assert!(cause.contains("failed repeatedly"), "{cause}");
}

/// The proof may be all that a session sends by TCP, and the peer vanish right after it.
///
/// RR-END-2
#[test]
fn a_peer_that_vanishes_right_after_the_handshake_is_found_dead() {
    let peer_timeout = Duration::from_secs(1);
    let mut world = steady_world(2, &config(), LoopConfig { peer_timeout, ..loop_config() });
    let target = peer(&mut world, 0, 1);
    world.engine(0).unwrap().start_connect(Peer(target)).unwrap();
    assert!(receive(&mut world, 0, target, 1, 100));
    run(&mut world, "a session", |world| {
        let core = world.look(0).unwrap().state.core();
        core.sessions().iter().any(|(_, session)| session.is_connected())
    });
    world.net.borrow_mut().mute();
    let done = first(&mut world, "the receive ends");
    assert!(matches!(failure_of(done), PeerFailure::Lost(_)));
}
