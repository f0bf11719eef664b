//! What the oracle forgives and the swarm waits for, though no engine is wrong: one story each.

use std::time::Duration;

use super::plan::HANDSHAKE_TIMEOUT;
use super::scenarios::{
    MILLISECOND, add_hosts, config, connect, drain, loop_config, pass, peer, receive, run, send,
    talk,
};
use super::world::World;
use crate::driver::sim::net::Impairments;
use crate::driver::sim::rails::{LinkImpairments, RailFault};
use crate::progress::engine::LoopConfig;
use crate::proto::core::Config;
use crate::proto::effects::CompletionLevel;
use crate::proto::session::connection::Retry;
use crate::types::{Error, Event, PeerFailure};

/// All is lost, and a kernel repeats what it has written then until 6.2 s later.
const STORM: RailFault = RailFault::BrownOut { loss_ppm: 1_000_000 };
const REPEATED_NS: u64 = 6200 * MILLISECOND;

/// Two hosts whose link may have faults.
fn world(config: &Config, loop_config: &LoopConfig) -> World {
    let mut world = World::new(1, Impairments::ideal()).unwrap();
    add_hosts(
        &mut world,
        2,
        &[LinkImpairments { delay_ns: 10_000, ..LinkImpairments::default() }],
        config,
        *loop_config,
    );
    world
}

/// A send whose buffer may be reused is over long before that. The network is not at rest.
#[test]
fn kernel_retransmissions_come_long_after_the_network_has_healed() {
    let mut world = world(&config(), &loop_config());
    talk(&mut world, [0, 1], "before");
    pass(&mut world, 100 * MILLISECOND);
    assert!(!world.net.borrow().has_bytes_under_way());
    let (target, source) = (peer(&mut world, 0, 1), peer(&mut world, 1, 0));
    assert!(receive(&mut world, 1, source, 7, 100));
    let start_ns = world.now_ns();
    world.net.borrow_mut().set_rail_fault(0, 0, Some(STORM));
    assert!(!send(&mut world, 0, target, 7, 100, CompletionLevel::Inject), "it is over");
    pass(&mut world, MILLISECOND);
    world.net.borrow_mut().set_rail_fault(0, 0, None);
    run(&mut world, "the message comes", |world| {
        let has_come = !drain(world, 1).is_empty();
        assert!(has_come || world.net.borrow().has_bytes_under_way(), "it is at rest");
        has_come
    });
    assert!(world.now_ns() - start_ns >= REPEATED_NS);
}

/// The side that waits for the proof holds no resources for longer; the side that has sent it has a
/// session.
///
/// RR-CONN-5.
#[test]
fn a_proof_that_is_late_ends_the_session_of_who_sent_it() {
    let loop_config = LoopConfig { handshake_timeout: HANDSHAKE_TIMEOUT, ..loop_config() };
    let mut world = world(&config(), &loop_config);
    connect(&mut world, 0, 1);
    let target = peer(&mut world, 0, 1);
    run(&mut world, "the hello is answered", |world| {
        world.net.borrow().connections.first().is_some_and(|it| it.answered_ns.is_some())
    });
    world.net.borrow_mut().set_rail_fault(0, 0, Some(STORM));
    run(&mut world, "the proof is sent", |world| {
        let mut sessions = world.look(0).unwrap().state.core().sessions().iter();
        sessions.any(|(_, session)| session.is_connected())
    });
    assert!(!send(&mut world, 0, target, 7, 100, CompletionLevel::Inject), "it is over");
    pass(&mut world, MILLISECOND);
    world.net.borrow_mut().set_rail_fault(0, 0, None);
    assert!(world.net.borrow_mut().take_given_up().is_empty());
    let mut events = Vec::new();
    run(&mut world, "the session ends", |world| {
        events.extend(
            world.engine(0).unwrap().state.completions_mut().events_mut().first().drain(..),
        );
        events.iter().any(|event| matches!(event, Event::Disconnected { .. }))
    });
    let Some(Event::Disconnected { failure: PeerFailure::Lost(cause), .. }) = events.last() else {
        panic!("{events:?}")
    };
    assert_eq!(&**cause, "its connection was closed without a goodbye");
    let given_up = world.net.borrow_mut().take_given_up();
    assert_eq!(given_up.iter().map(|it| it.between).collect::<Vec<_>>(), [(0, 1)]);
    assert!(Duration::from_nanos(given_up[0].waited_ns) >= HANDSHAKE_TIMEOUT);
    connect(&mut world, 0, 1);
    talk(&mut world, [0, 1], "the next session");
    pass(&mut world, 2 * REPEATED_NS);
    assert!(drain(&mut world, 1).is_empty(), "nothing comes of the first one");
}

/// A call that wants to connect meanwhile joins the attempt that is under way, which may be the
/// last.
///
/// RR-CONN-6.
#[test]
fn an_attempt_that_the_network_swallowed_fails_after_it_has_healed() {
    let retry =
        Retry { timeout_ns: 500 * MILLISECOND, retries: 0, delay_ns: MILLISECOND, silent_ns: 1 };
    let mut world = world(&Config { retry, ..config() }, &loop_config());
    world.net.borrow_mut().impairments.swallowed_one_in = 1;
    connect(&mut world, 0, 1);
    pass(&mut world, 400 * MILLISECOND);
    world.net.borrow_mut().impairments.swallowed_one_in = 0;
    let target = peer(&mut world, 0, 1);
    assert!(send(&mut world, 0, target, 7, 100, CompletionLevel::Match));
    let mut ended = Vec::new();
    run(&mut world, "the attempt ends", |world| {
        ended.extend(drain(world, 0));
        !ended.is_empty()
    });
    let Err(Error::Peer { failure: PeerFailure::Unreachable { attempts: 1, cause }, .. }) =
        &ended[0].result
    else {
        panic!("{ended:?}")
    };
    assert_eq!(&**cause, "no answer in time");
    connect(&mut world, 0, 1);
    talk(&mut world, [0, 1], "the next attempt");
}

/// Another host, a gateway or the own one, if it has the same address, refuses what goes to the
/// first address of the peer.
///
/// RR-CONN-6.
#[test]
fn a_refusal_at_one_address_of_a_peer_leaves_the_others_their_turn() {
    let retry =
        Retry { timeout_ns: 500 * MILLISECOND, retries: 2, delay_ns: MILLISECOND, silent_ns: 1 };
    let config = Config { retry, ..config() };
    for refused in [&[0][..], &[0, 1]] {
        let mut world = World::new(1, Impairments::ideal()).unwrap();
        add_hosts(&mut world, 2, &[LinkImpairments::default(); 2], &config, loop_config());
        for &link in refused {
            world.net.borrow_mut().set_rail_fault(1, link, Some(RailFault::Refuses));
        }
        connect(&mut world, 0, 1);
        let target = peer(&mut world, 0, 1);
        assert!(send(&mut world, 0, target, 7, 100, CompletionLevel::Match));
        let source = peer(&mut world, 1, 0);
        assert!(receive(&mut world, 1, source, 7, 100));
        let mut ended = Vec::new();
        run(&mut world, "the send ends", |world| {
            ended.extend(drain(world, 0));
            !ended.is_empty()
        });
        if refused.len() == 1 {
            assert!(ended[0].result.is_ok(), "{ended:?}");
            continue;
        }
        let Err(Error::Peer { failure: PeerFailure::Unreachable { attempts, cause }, .. }) =
            &ended[0].result
        else {
            panic!("{ended:?}")
        };
        assert_eq!(*attempts, 3);
        let places = [0, 1].map(|link| world.net.borrow().rail_address(1, link).to_string());
        assert!(places.iter().all(|place| cause.contains(place.as_str())), "{cause}");
        assert_eq!(cause.matches("refused").count(), 4, "each of four ways: {cause}");
    }
}
