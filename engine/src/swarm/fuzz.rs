//! Whole engines under scripts: calls of users, faults of the network and packets that no engine
//! sent, in any order.

use std::net::SocketAddr;
use std::time::Duration;

use zerocopy::{FromBytes, IntoBytes};

use super::scenarios::{
    add_hosts, config, drain, impairments, loop_config, pass, peer, receive, run, send,
};
use super::world::World;
use crate::proto::core::Config;
use crate::proto::effects::CompletionLevel;
use crate::proto::handshake::Initiator;
use crate::proto::keys::JobKeys;
use crate::proto::session::connection::Retry;
use crate::proto::table::Id;
use crate::types::Event;
use crate::wire::hello::{KIND_BULK, KIND_CONTROL, MAGIC};
use crate::wire::{Hello, VERSION};

const TEST_TIME: Duration = Duration::from_millis(1500);

/// Decisions made of bytes; at their end everything is 0.
struct Script<'a>(&'a [u8]);

impl Script<'_> {
    fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    fn below(&mut self, count: usize) -> usize {
        usize::from(self.byte()) % count
    }
}

/// One of the lengths at which something changes, and which fit the buffers here.
fn length(script: &mut Script<'_>) -> usize {
    [0, 1, 32, 33, 256, 257, 511, 512, 513, 3000][script.below(10)]
}

/// Time that a turn takes, or so.
const TURN_NS: u64 = 2_000;

fn world(seed: u8, hosts: usize, config: &Config) -> World {
    let mut world = World::new(seed.into(), impairments(seed.into())).unwrap();
    add_hosts(&mut world, hosts, &[], config, loop_config());
    world
}

fn call(world: &mut World, script: &mut Script<'_>, posted: &mut [usize]) {
    let (at, to) = (script.below(world.hosts()), script.below(world.hosts()));
    let target = peer(world, at, to);
    let tag = u64::from(script.byte() % 4);
    match script.byte() % 8 {
        0..3 => {
            let length = length(script);
            let level =
                [CompletionLevel::Inject, CompletionLevel::Delivery, CompletionLevel::Match];
            let level = level[script.below(3)];
            posted[at] += usize::from(send(world, at, target, tag, length, level));
        }
        3..6 => {
            posted[at] += usize::from(receive(world, at, target, tag, length(script)));
        }
        6 => {
            let state = &mut *world.engine(at).unwrap().state;
            let live: Vec<Id> = state.core().shared().operations().ids().take(256).collect();
            if !live.is_empty() {
                let id = live[script.below(live.len())];
                // Which kind it is the user knows; the other call finds nothing to do.
                state.cancel(id);
            }
        }
        _ if at != to => {
            let state = &mut *world.engine(at).unwrap().state;
            state.with_core(|core, ended| core.remove_peer(target, ended));
        }
        _ => {}
    }
}

/// Whatever happens between engines that keep the protocol, every operation ends once, no lane or
/// session has more than one owner, and no engine reports a protocol violation.
#[test]
fn calls_and_events() {
    bolero::check!().with_test_time(TEST_TIME).with_max_len(400).for_each(|input: &[u8]| {
        let mut script = Script(input);
        let retry = Retry { timeout_ns: 5_000_000, retries: 2, delay_ns: 100_000, silent_ns: 1 };
        let config = Config { retry, operations_max: 60, sessions_max: 3, ..config() };
        let mut world = world(script.byte(), 3, &config);
        let (mut posted, mut ended) = ([0; 3], [0; 3]);
        while !script.0.is_empty() {
            match script.byte() % 16 {
                0..9 => call(&mut world, &mut script, &mut posted),
                9..13 => pass(&mut world, TURN_NS * script.below(40) as u64),
                13 => drop(world.net.borrow_mut().cut_one(script.byte() % 2 == 0)),
                14 => pass(&mut world, u64::from(script.byte()) << 16),
                _ => world.net.borrow_mut().impairments.refused_one_in = script.below(4),
            }
            collect(&mut world, &mut ended);
        }
        // All leave at once: nothing can be outstanding then.
        for host in 0..3 {
            let state = &mut *world.engine(host).unwrap().state;
            state.with_core(|core, ended| core.close_endpoint(0, ended));
            for session in 0..state.core().sessions().slots() as u32 {
                if !state.core().is_loopback(session) {
                    let failure = crate::types::PeerFailure::Lost("over".into());
                    state.with_core(|core, ended| core.fail_session(session, failure, ended));
                }
            }
        }
        pass(&mut world, 50_000_000);
        collect(&mut world, &mut ended);
        for host in 0..3 {
            let core = world.look(host).unwrap().state.core();
            // A long message to itself that was not received does not end: there is no peer that
            // could fail.
            let ids = core.shared().operations().ids();
            let own = ids.filter(|&id| core.is_loopback(core.session_of_operation(id))).count();
            let is_over =
                core.shared().operations().len() == own && posted[host] == ended[host] + own;
            assert!(
                is_over,
                "{}: {} of {} ended",
                core.shared().engine(),
                ended[host],
                posted[host]
            );
        }
        assert_eq!(world.net.borrow().busy_pieces(), 0, "a kernel has memory of what has ended");
        assert_eq!(world.net.borrow_mut().take_violation(), None);
    });
}

fn collect(world: &mut World, ended: &mut [usize]) {
    for (host, ended) in ended.iter_mut().enumerate() {
        for completion in drain(world, host) {
            *ended += 1;
            if let Err(error) = completion.result {
                assert!(!error.to_string().contains("violated the protocol"), "{error}");
            }
        }
        let engine = world.engine(host).unwrap();
        while let Some(event) = engine.state.completions_mut().events_mut().first().pop_front() {
            if let Event::Disconnected { failure, .. } = event {
                assert!(!failure.to_string().contains("protocol"), "{failure}");
            }
        }
    }
}

/// A peer may send any bytes as its hello, to a listener in the middle of its work: the listener
/// goes on.
#[test]
fn greetings() {
    bolero::check!().with_test_time(TEST_TIME).with_max_len(300).for_each(|input: &[u8]| {
        let mut script = Script(input);
        let config = Config { sessions_max: 6, ..config() };
        let mut world = world(script.byte(), 2, &config);
        while !script.0.is_empty() {
            let bytes = greeting(&mut script);
            world.net.borrow_mut().intrude(0, &bytes);
            pass(&mut world, TURN_NS * script.below(30) as u64);
        }
        for (from, to, length) in [(0, 1, 10), (1, 0, 3000)] {
            let source = peer(&mut world, to, from);
            assert!(receive(&mut world, to, source, 1, length));
            let target = peer(&mut world, from, to);
            assert!(send(&mut world, from, target, 1, length, CompletionLevel::Match));
        }
        let mut left = 4;
        run(&mut world, "the sound ones talk", |world| {
            for host in 0..2 {
                for completion in drain(world, host) {
                    completion.result.unwrap();
                    left -= 1;
                }
            }
            left == 0
        });
        let state = &world.look(0).unwrap().state;
        assert!(state.pending_handshakes() <= 100);
        assert!(state.core().sessions().len() <= 6);
    });
}

/// A hello and what may follow it, mostly as it should be; else bytes.
fn greeting(script: &mut Script<'_>) -> Vec<u8> {
    let mut bytes = vec![0; size_of::<Hello>()];
    if let Ok(hello) = Hello::mut_from_bytes(&mut bytes) {
        let sender = 100 + u64::from(script.byte() % 3);
        let from = SocketAddr::from(([127, 0, 0, 1], 9));
        hello.magic = MAGIC;
        hello.version = VERSION.into();
        hello.kind = [KIND_CONTROL, KIND_BULK][script.below(2)];
        hello.source = sender.into();
        hello.target = 1.into();
        hello.session = u64::from(script.byte() % 3).into();
        hello.lane = u32::from(script.byte() % 3).into();
        hello.epoch = u32::from(script.byte() % 4).into();
        let limit = 1u32.rotate_right(script.byte().into());
        (hello.envelope_limit, hello.byte_limit) = (limit.into(), limit.into());
        hello.eager_limit = u32::MAX.into();
        hello.address = crate::types::Address::new(sender, from, 0).to_wire();
    }
    // Half of them know the secret, which gets them as far as a reply.
    if let (Ok(hello), true) = (Hello::read_from_bytes(&bytes), script.byte() & 1 == 0) {
        let remote = SocketAddr::from(([127, 0, 0, 1], 9));
        let made = Initiator::start(&JobKeys::new(None), hello, [script.byte(); 16], remote);
        bytes = made.hello().as_bytes().to_vec();
    }
    let choice = script.byte();
    if choice > 200 {
        let at = script.below(bytes.len());
        bytes[at] = script.byte();
    } else if choice > 180 {
        bytes.truncate(script.below(bytes.len()));
    }
    let count = usize::from(script.byte() % 64).min(script.0.len());
    let (follows, rest) = script.0.split_at(count);
    script.0 = rest;
    if choice & 1 == 0 {
        bytes.extend(segment(follows).as_bytes());
    }
    bytes.extend(follows);
    bytes
}

/// The header of a first segment for these frames.
fn segment(frames: &[u8]) -> crate::wire::segment::SegmentHeader {
    let length = size_of::<crate::wire::segment::SegmentHeader>() + frames.len();
    crate::wire::segment::SegmentHeader {
        length: (length as u32).into(),
        frames: 1.into(),
        flags: 1.into(),
        first_frame: 0.into(),
        ack: 0.into(),
        envelope_limit: 9.into(),
        byte_limit: 9000.into(),
    }
}
