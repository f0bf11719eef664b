//! Hostile networks and third parties: what the user sees, and when, and what live sessions lose.
//!
//! Slowness is measured in virtual time, in which a turn costs time by itself, for every datagram
//! (also for one that is dropped at once) and for every connection that is accepted. Elsewhere: a
//! path that goes silent in one direction (`swarm::paths`), forged and repeated datagrams in any
//! impairments (`swarm::storms`), and with real sockets and secrets wrong secrets and replayed
//! handshakes (`tests/api/authentication.rs`).

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};

use super::super::scenarios::{drain, receive, send, talk};
use super::*;
use crate::driver::sim::datagrams::Sighting;
use crate::types::{Error, PeerFailure};
use crate::wire::hello::{HELLO_BYTES, MAGIC};

/// Time between two strikes of an attacker that strikes 100 000 times in a second.
const STRIKE_NS: u64 = 10 * MICRO;
/// Where the attacker is.
const ELSEWHERE: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::new(127, 66, 6, 6), 666));
/// Name of the next strike.
const STRIKE: u64 = 1;

/// Runs traffic during an attack.
fn run_struck(world: &mut World, traffic: &mut Traffic, mut strike: impl FnMut(&mut World)) -> u64 {
    let end_ns = world.now_ns() + 10 * SECOND;
    let mut strikes = 0;
    world.plan(STRIKE_NS, STRIKE);
    while !traffic.is_done() {
        match step(world, std::slice::from_mut(traffic), end_ns) {
            Step::Planned(STRIKE) => {
                strike(world);
                strikes += 1;
                world.plan(STRIKE_NS, STRIKE);
            }
            Step::Limit => panic!("not within ten seconds"),
            _ => {}
        }
    }
    strikes
}

/// Time that some traffic takes, and percentiles 50 and 99 of its messages.
#[derive(Debug)]
struct Speed {
    took_ns: u64,
    p50_ns: u64,
    #[allow(dead_code, reason = "printed by tests")]
    p99_ns: u64,
}

/// The action of an attacker at each strike.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Strike {
    Nothing,
    /// One datagram to the receiving host: the session's id and the next number, a guessed tag.
    Forged,
    /// A copy of a datagram that has arrived a while ago.
    Repeated,
    /// A copy of the newest datagram, which may arrive before it.
    Overtaking,
    /// The same, with the sender's address.
    OvertakingAsSender,
    /// One connection to it, with a hello that no secret made.
    Hello,
    /// One connection that sends nothing and is closed.
    Connection,
}

/// An attacker that reads along and sends to host 1, from any address.
struct Spoofer {
    /// The last datagrams seen, the oldest first.
    seen: VecDeque<Sighting>,
}

impl Spoofer {
    /// So long is what it repeats old: longer than what it repeats was on its way.
    const AGE: usize = 30;

    fn new(world: &mut World) -> Self {
        world.net.borrow_mut().observe_datagrams(1);
        Self { seen: VecDeque::new() }
    }

    /// The last datagram of host 0.
    fn look(&mut self, world: &World) {
        let net = world.net.borrow();
        if let Some(sighting) = net.sightings().first().filter(|sighting| sighting.sender == 0) {
            self.seen.push_back(sighting.clone());
            if self.seen.len() > Self::AGE {
                self.seen.pop_front();
            }
        }
    }

    fn forge(&mut self, world: &mut World) {
        self.look(world);
        let Some(Sighting { mut bytes, .. }) = self.seen.back().cloned() else { return };
        bytes[4] = bytes[4].wrapping_add(1);
        let tag = bytes.len() - 1;
        bytes[tag] ^= 0x55;
        self.inject(world, ELSEWHERE, &bytes);
    }

    fn repeat(&mut self, world: &mut World) {
        self.look(world);
        if self.seen.len() == Self::AGE {
            self.inject(world, self.seen[0].from, &self.seen[0].bytes);
        }
    }

    fn overtake(&mut self, world: &mut World, as_sender: bool) {
        self.look(world);
        if let Some(sighting) = self.seen.back() {
            let from = if as_sender { sighting.from } else { ELSEWHERE };
            self.inject(world, from, &sighting.bytes);
        }
    }

    fn inject(&self, world: &mut World, from: SocketAddr, bytes: &[u8]) {
        world.net.borrow_mut().inject_datagram(from, 1, bytes);
    }
}

fn speed(link: &Link, (length, at_once, count): (usize, usize, usize), kind: Strike) -> Speed {
    let mut world = link.world(&roomy(), 8);
    let mut spoofer = Spoofer::new(&mut world);
    let mut hello = [0x5a; HELLO_BYTES];
    hello[..8].copy_from_slice(&MAGIC);
    hello[8..10].copy_from_slice(&crate::wire::VERSION.to_le_bytes());
    let mut traffic = Traffic::new(length, at_once, count);
    let start_ns = world.now_ns();
    let strikes = run_struck(&mut world, &mut traffic, |world| match kind {
        Strike::Nothing => {}
        Strike::Forged => spoofer.forge(world),
        Strike::Repeated => spoofer.repeat(world),
        Strike::OvertakingAsSender => spoofer.overtake(world, true),
        Strike::Overtaking => spoofer.overtake(world, false),
        Strike::Hello => world.net.borrow_mut().visit(1, &hello, false),
        Strike::Connection => world.net.borrow_mut().visit(1, &[], true),
    });
    assert!(strikes > 100, "{strikes}");
    let took_ns = world.now_ns() - start_ns;
    let times_ns = traffic.times_ns(0);
    let engine = world.look(1).unwrap();
    let dropped = engine.state.session_paths().dropped();
    // Without a strike nothing is dropped; the first ones find nothing to copy.
    let is_struck = |kind_struck, count: u64| {
        let expected = if kind == kind_struck { strikes / 2..strikes + 1 } else { 0..1 };
        assert!(expected.contains(&count), "{dropped:?} of {strikes}");
    };
    is_struck(Strike::Forged, dropped.forged);
    if kind != Strike::OvertakingAsSender {
        is_struck(Strike::Repeated, dropped.repeated);
    }
    is_struck(Strike::Overtaking, dropped.stray);
    assert_eq!((dropped.malformed, dropped.unknown), (0, 0));
    assert!(engine.state.session_paths().of(0).unwrap().are_open());
    Speed { took_ns, p50_ns: percentile(&times_ns, 50), p99_ns: percentile(&times_ns, 99) }
}

const STRIKES: [Strike; 5] =
    [Strike::Forged, Strike::Repeated, Strike::Overtaking, Strike::Hello, Strike::Connection];

/// Nothing is slower by a tenth, whatever unauthenticated peers do 100 000 times a second.
pub(super) fn unauthenticated_floods_slow_live_sessions_by_less_than_a_tenth() {
    let link = Link::new(10 * GBIT, 100 * MICRO);
    for what in [(8, 1, 400), (8, 64, 20_000), (MIB, 8, 16)] {
        let calm = speed(&link, what, Strike::Nothing);
        for kind in STRIKES {
            let struck = speed(&link, what, kind);
            let compared = format!("{what:?} {kind:?}: {struck:?}, else {calm:?}");
            assert!(struck.took_ns * 10 < calm.took_ns * 11, "{compared}");
            assert!(struck.p50_ns * 10 < calm.p50_ns * 11, "{compared}");
        }
    }
}

/// An attacker that is faster than the network and impersonates the sender is indistinguishable
/// from a network that is faster now and then: what comes early makes round trips shorter, and what
/// does not looks like a queue. Small messages are none the slower. Streams are, between half as
/// long again and ten times as long, with the details of timing; they go on, and all is what was
/// sent.
pub(super) fn copies_that_pass_for_the_senders_own_slow_streams_and_no_small_messages() {
    let link = Link::new(10 * GBIT, 100 * MICRO);
    for (what, times) in [((8, 64, 5000), 1.1), ((MIB, 8, 16), 20.0)] {
        let calm = speed(&link, what, Strike::Nothing);
        let struck = speed(&link, what, Strike::OvertakingAsSender);
        let most_ns = calm.took_ns as f64 * times;
        assert!((struck.took_ns as f64) < most_ns, "{what:?}: {struck:?}, else {calm:?}");
    }
}

/// Each side reports the end when its kernel gives up; until then everything waits.
pub(super) fn a_network_that_is_cut_in_one_direction_ends_sessions_with_the_cause_named() {
    for (from, to) in [(0, 1), (1, 0)] {
        let mut world = Link::new(10 * GBIT, 100 * MICRO).world(&roomy(), 9);
        let keep_alive_ns = world.net.borrow().impairments.keep_alive_ns;
        let start_ns = world.now_ns();
        world.net.borrow_mut().cut_way(from, to);
        for at in 0..2 {
            let other = peer(&mut world, at, 1 - at);
            assert!(send(&mut world, at, other, 11, 100, CompletionLevel::Match));
            assert!(receive(&mut world, at, other, 12, 100));
        }
        pass(&mut world, keep_alive_ns - 10 * MILLI);
        for host in 0..2 {
            assert!(drain(&mut world, host).is_empty(), "no kernel has given up yet");
        }
        pass(&mut world, SECOND);
        for host in 0..2 {
            let ended = drain(&mut world, host);
            assert_eq!(ended.len(), 2, "{ended:?}");
            for completion in ended {
                let Err(Error::Peer { failure: PeerFailure::Lost(cause), .. }) = completion.result
                else {
                    panic!("{completion:?}")
                };
                assert!(!cause.is_empty());
            }
        }
        assert!(world.now_ns() < start_ns + keep_alive_ns + 2 * SECOND);
        world.net.borrow_mut().open_way(from, to);
        for at in 0..2 {
            super::super::scenarios::connect(&mut world, at, 1 - at);
        }
        talk(&mut world, [0, 1], "in a new session");
    }
}

/// A process that dies with messages under way, and another one in its place: what was under way
/// fails at once with the cause, and nothing of it disturbs the successor.
pub(super) fn a_peer_that_starts_anew_is_another_peer() {
    let mut world = Link::new(10 * GBIT, MILLI).world(&roomy(), 10);
    let target = peer(&mut world, 0, 1);
    for tag in 0..50 {
        assert!(send(&mut world, 0, target, tag, 4000, CompletionLevel::Match));
    }
    pass(&mut world, 100 * MICRO);
    // Its datagrams are still on their way when the next process is there.
    drop(world.take(1));
    world.start(1, 77, roomy(), loop_config()).unwrap();
    let died_ns = world.now_ns();
    let mut failed = 0;
    while failed < 50 {
        assert_ne!(world.step(died_ns + SECOND), Step::Limit, "{failed} of 50");
        for completion in drain(&mut world, 0) {
            let Err(Error::Peer { failure, .. }) = completion.result else {
                panic!("{completion:?}")
            };
            assert!(matches!(failure, PeerFailure::Lost(_)), "{failure}");
            failed += 1;
        }
    }
    let took_ns = world.now_ns() - died_ns;
    assert!(took_ns < 10 * MILLI, "{took_ns} ns");
    talk(&mut world, [0, 1], "the successor");
    assert!(
        world.look(1).unwrap().state.session_paths().dropped().unknown > 0,
        "they reached no engine"
    );
}
