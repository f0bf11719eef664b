//! Messages of the stream whose rest is received into their receives: one story each.

use std::time::Duration;

use super::form::content;
use super::scenarios::{
    MILLISECOND, add_hosts, config, empty_world, loop_config, pass, peer, run, talk,
};
use super::world::World;
use crate::driver::sim::net::Impairments;
use crate::driver::sim::rails::LinkImpairments;
use crate::memory::Buffer;
use crate::progress::completions::CompletionRoute;
use crate::progress::engine::LoopConfig;
use crate::progress::post::Memory;
use crate::proto::core::Config;
use crate::proto::effects::CompletionLevel;
use crate::proto::hint::Hint;
use crate::proto::receive::ReceiveRequest;
use crate::proto::session::send::SendRequest;
use crate::proto::table::Id;
use crate::types::{Completion, Error, Event, Peer};

/// Of messages with far more bytes than arrive at once.
pub(super) const LENGTHS: [usize; 4] = [14_000, 20_000, 40_000, 100 << 10];
pub(super) const SEEDS: u64 = 16;
pub(super) const TAG: u64 = 7;
/// Fills buffers before they are received into, and after they were given back.
pub(super) const CANARY: u8 = 0xc3;

fn streaming() -> Config {
    Config {
        eager_limit: 128 << 10,
        envelope_credits: 1000,
        eager_credit_bytes: 4 << 20,
        staging_bytes: 128 << 10,
        staging_buffers_max: 64,
        eager_by_stream: true,
        ..config()
    }
}

/// How long kernels and engines wait for a silent peer.
pub(super) const PEER_TIMEOUT_NS: u64 = 4000 * MILLISECOND;

fn patient() -> LoopConfig {
    let peer_timeout = Duration::from_nanos(PEER_TIMEOUT_NS);
    LoopConfig { peer_timeout, ..loop_config() }
}

/// Bytes that a kernel takes at once: less than half of the shortest message.
fn capacity(seed: u64) -> usize {
    1500 + 700 * (seed as usize % 4)
}

/// Two hosts with a session, and with datagrams in half of the seeds. Bytes arrive a few at a time.
pub(super) fn world_of(seed: u64, has_datagrams: bool, links: &[LinkImpairments]) -> World {
    let partial_one_in = [0, 3][seed as usize / 2 % 2];
    let impairments = Impairments {
        capacity: capacity(seed),
        partial_one_in,
        keep_alive_ns: PEER_TIMEOUT_NS,
        ..Impairments::ideal()
    };
    let mut world = empty_world(seed, impairments, has_datagrams);
    add_hosts(&mut world, 2, links, &streaming(), patient());
    talk(&mut world, [0, 1], "the session begins");
    events(&mut world);
    world
}

pub(super) fn world(seed: u64) -> World {
    world_of(seed, seed.is_multiple_of(2), &[])
}

/// Takes the events of host 1.
pub(super) fn events(world: &mut World) -> Vec<Event> {
    let engine = world.engine(1).unwrap();
    engine.state.completions_mut().events_mut().first().drain(..).collect()
}

/// A message that host 0 sends: its tag is its name.
#[derive(Clone, Copy)]
pub(super) struct Message {
    pub(super) target: Id,
    pub(super) context: u64,
    pub(super) tag: u64,
    pub(super) length: usize,
    pub(super) data: Option<u64>,
}

impl Message {
    /// A message to endpoint 0 of host 1.
    pub(super) fn of(world: &mut World, length: usize) -> Self {
        Self { target: peer(world, 0, 1), context: 0, tag: TAG, length, data: None }
    }

    pub(super) fn content(&self) -> Vec<u8> {
        content(self.tag, self.length)
    }

    /// Sends it once earlier ones are acknowledged: it would be pulled while they are not.
    pub(super) fn send_alone(&self, world: &mut World) {
        pass(world, 100 * MILLISECOND);
        self.send(world);
    }

    pub(super) fn send(&self, world: &mut World) {
        let Self { target, context, tag, length, data } = *self;
        let request = SendRequest {
            endpoint: 0,
            peer: target,
            context,
            tag,
            length: length as u64,
            level: CompletionLevel::Inject,
            hint: Hint::None,
            data,
            fence: false,
        };
        let memory = Memory::copy_of(&self.content());
        let posted = world.engine(0).unwrap().post_send(&request, memory, to_queue(0, 0), false);
        assert!(posted.is_ok());
    }
}

fn to_queue(queue: u32, user_data: u64) -> CompletionRoute {
    CompletionRoute::Queue { queue, user_data, silent: false }
}

/// A receive of any tag at host 1.
#[derive(Clone, Copy)]
pub(super) struct ReceivePlan {
    pub(super) source: Option<Id>,
    pub(super) endpoint: u16,
    pub(super) context: u64,
    pub(super) queue: u32,
    /// Its name, which its completion has.
    pub(super) name: u64,
}

impl ReceivePlan {
    /// A receive from host 0 only.
    pub(super) fn of(world: &mut World, name: u64) -> Self {
        let source = Some(peer(world, 1, 0));
        Self { source, endpoint: 0, context: 0, queue: 0, name }
    }

    pub(super) fn post(&self, world: &mut World, capacity: usize) -> Id {
        self.post_into(world, Buffer::Heap(vec![CANARY; capacity]))
    }

    pub(super) fn post_into(&self, world: &mut World, mut buffer: Buffer) -> Id {
        let request = ReceiveRequest {
            endpoint: self.endpoint,
            peer: self.source,
            context: self.context,
            tag: 0,
            ignore: u64::MAX,
            capacity: buffer.len() as u64,
            min_free: None,
        };
        let shape = buffer.shape_for_recv().unwrap();
        let memory = Memory { buffer: Some(buffer), shape };
        let state = &mut world.engine(1).unwrap().state;
        state.post_receive(&request, memory, to_queue(self.queue, self.name)).unwrap()
    }
}

/// Returns the bytes of a message that are in its receive at host 1.
pub(super) fn placed_bytes(world: &World) -> Option<usize> {
    world.look(1).unwrap().state.control(0).placed_bytes()
}

pub(super) fn partial_bytes(world: &World) -> usize {
    world.look(1).unwrap().state.control(0).partial().len()
}

fn copied_bytes(world: &World) -> u64 {
    let engine = world.look(1).unwrap();
    engine.state.counters(&engine.driver).copied_bytes
}

/// Lets so many bytes of a message arrive in its receive.
pub(super) fn place(world: &mut World, bytes: usize) {
    run(world, "a message arrives in its receive", |world| {
        assert!(world.pop(1).is_none(), "a receive ends before its message is whole");
        placed_bytes(world).is_some_and(|placed| placed >= bytes)
    });
}

/// Waits for the next completion of host 1.
pub(super) fn next(world: &mut World) -> Completion {
    let mut next = None;
    run(world, "a receive ends", |world| {
        next = world.pop(1);
        next.is_some()
    });
    next.unwrap()
}

/// Checks that a receive has got a message, of which so many bytes fit.
pub(super) fn check(
    world: &mut World,
    completion: Completion,
    name: u64,
    message: &Message,
    fits: usize,
) {
    assert_eq!(completion.user_data, name, "in the order of the receives");
    match &completion.result {
        Ok(status) => {
            let source = peer(world, 1, 0);
            assert_eq!((status.peer, status.length), (Some(Peer(source)), message.length));
            assert_eq!((status.data, fits), (message.data, message.length));
        }
        Err(error) => {
            assert!(matches!(error, Error::Truncated { .. }), "{error}");
            assert!(fits < message.length, "{error}");
        }
    }
    let bytes = completion.buffer.unwrap().gather().unwrap();
    let is_right = bytes[..fits] == message.content()[..fits];
    assert!(is_right, "message {} of {} bytes", message.tag, message.length);
    assert!(bytes[fits..].iter().all(|&byte| byte == CANARY), "bytes after the message");
}

/// Checks that nothing else ends, that the session has not ended, and that it works.
pub(super) fn go_on(world: &mut World, what: &str) {
    pass(world, 100 * MILLISECOND);
    assert!(world.pop(1).is_none(), "{what}: a receive ends twice");
    let ended = events(world);
    assert!(!ended.iter().any(|it| matches!(it, Event::Disconnected { .. })), "{what}: {ended:?}");
    let control = world.look(1).unwrap().state.control(0);
    assert_eq!((control.placed_bytes(), control.partial().len()), (None, 0), "{what}");
    while world.pop(0).is_some() {}
    talk(world, [0, 1], what);
}

#[test]
fn long_messages_arrive_in_their_receives_without_another_copy() {
    for seed in 0..SEEDS {
        let mut world = world(seed);
        let receive = ReceivePlan::of(&mut world, 1);
        for (round, length) in LENGTHS.into_iter().cycle().take(8).enumerate() {
            let data = [None, Some(0x0102_0304_0506_0708)][round / 2 % 2];
            let message = Message { data, ..Message::of(&mut world, length) };
            // Some are longer than the message.
            receive.post(&mut world, length + [0, 100][round % 2]);
            let before = copied_bytes(&world);
            message.send_alone(&mut world);
            place(&mut world, length / 2);
            let completion = next(&mut world);
            let copied = copied_bytes(&world) - before;
            assert!(copied <= capacity(seed) as u64, "{copied} of {length} bytes");
            check(&mut world, completion, 1, &message, length);
        }
        go_on(&mut world, "after messages in their receives");
    }
}

/// The handle of a receive, and a queue whose completions are read elsewhere, get it likewise.
#[test]
fn messages_of_handles_arrive_in_their_receives() {
    for seed in 0..SEEDS {
        let mut world = world(seed);
        let length = LENGTHS[seed as usize % 4];
        let message = Message::of(&mut world, length);
        let mut buffer = Buffer::Heap(vec![CANARY; length]);
        let shape = buffer.shape_for_recv().unwrap();
        let memory = Memory { buffer: Some(buffer), shape };
        let request = ReceiveRequest {
            endpoint: 0,
            peer: Some(peer(&mut world, 1, 0)),
            context: 0,
            tag: TAG,
            ignore: 0,
            capacity: length as u64,
            min_free: None,
        };
        let state = &mut world.engine(1).unwrap().state;
        let handle = state.start_receive(&request, memory, None).unwrap();
        message.send(&mut world);
        place(&mut world, length / 2);
        let mut ended = None;
        run(&mut world, "the handle has its result", |world| {
            let completions = world.engine(1).unwrap().state.completions_mut();
            if completions.operation_of(handle).is_none() {
                ended = completions.take_outcome(handle);
            }
            ended.is_some()
        });
        let (result, _) = ended.unwrap();
        let completed = result.unwrap();
        assert_eq!(completed.status.length, length);
        assert!(completed.buffer.into_vec().unwrap() == message.content());
        go_on(&mut world, "after the message of a handle");
    }
}

/// RR-RAIL-8, RR-DGRAM-1
#[test]
fn a_message_that_is_sent_again_by_another_connection_is_received_once() {
    let link = LinkImpairments { delay_ns: 10_000, ns_per_kib: 1000, ..LinkImpairments::default() };
    for seed in 0..2 * SEEDS {
        let mut world = world_of(seed, true, &[link; 2]);
        pass(&mut world, 100 * MILLISECOND);
        let length = LENGTHS[seed as usize % 4];
        let message = Message::of(&mut world, length);
        ReceivePlan::of(&mut world, 1).post(&mut world, length);
        message.send(&mut world);
        place(&mut world, length * (1 + seed as usize % 3) / 4);
        assert!(world.net.borrow_mut().cut_one(false).is_some());
        let completion = next(&mut world);
        check(&mut world, completion, 1, &message, length);
        pass(&mut world, 1000 * MILLISECOND);
        go_on(&mut world, "by another connection");
    }
}

/// RR-DGRAM-4, RR-DGRAM-12
#[test]
fn short_messages_overtake_a_long_one_of_another_context_only() {
    for seed in 0..SEEDS {
        let mut world = world_of(seed, true, &[]);
        let length = LENGTHS[2 + seed as usize % 2];
        let long = Message::of(&mut world, length);
        let behind = Message { tag: TAG + 1, length: 100, ..long };
        let beside = Message { tag: TAG + 2, length: 100, context: 1, ..long };
        let receives = [1, 2].map(|name| ReceivePlan::of(&mut world, name));
        receives.iter().for_each(|it| _ = it.post(&mut world, length));
        let other = ReceivePlan { context: 1, ..ReceivePlan::of(&mut world, 3) };
        other.post(&mut world, 200);
        // The stream is far slower than datagrams are.
        world.net.borrow_mut().impairments.ns_per_kib = 200_000;
        long.send(&mut world);
        place(&mut world, length / 4);
        behind.send(&mut world);
        beside.send(&mut world);
        let completion = next(&mut world);
        assert!(placed_bytes(&world).is_some(), "the long message is incomplete");
        check(&mut world, completion, 3, &beside, 100);
        for (name, message) in [(1, &long), (2, &behind)] {
            let completion = next(&mut world);
            check(&mut world, completion, name, message, message.length);
        }
        world.net.borrow_mut().impairments.ns_per_kib = Impairments::ideal().ns_per_kib;
        go_on(&mut world, "after short messages overtook a long one");
    }
}

#[test]
fn a_receive_posted_within_a_message_gets_its_rest() {
    for seed in 0..SEEDS {
        let mut world = world(seed);
        let length = LENGTHS[1 + seed as usize % 3];
        let message = Message::of(&mut world, length);
        message.send(&mut world);
        run(&mut world, "some of it arrives", |world| partial_bytes(world) > length / 3);
        assert_eq!(placed_bytes(&world), None, "no receive accepts it");
        ReceivePlan::of(&mut world, 1).post(&mut world, length);
        place(&mut world, length / 2);
        assert_eq!(partial_bytes(&world), 0);
        let completion = next(&mut world);
        check(&mut world, completion, 1, &message, length);
        go_on(&mut world, "after a late receive");
    }
}

/// From any source, shorter than the message, in two pieces, for several messages.
#[test]
fn messages_of_other_receives_are_kept_until_they_are_whole() {
    for seed in 0..SEEDS {
        for kind in 0..4 {
            let mut world = world(seed);
            let length = LENGTHS[seed as usize / 4 % 4];
            let message = Message { data: Some(5), ..Message::of(&mut world, length) };
            let mut receive = ReceivePlan::of(&mut world, 1);
            let mut fits = length;
            match kind {
                0 => {
                    receive.source = None;
                    receive.post(&mut world, length);
                }
                1 => {
                    fits = length - 1 - seed as usize;
                    receive.post(&mut world, fits);
                }
                2 => {
                    let (left, right) = (length / 3, length - length / 3);
                    let pieces = [left, right].map(|it| Buffer::Heap(vec![CANARY; it]));
                    receive.post_into(&mut world, Buffer::list(pieces));
                }
                _ => {
                    // An older one stays posted, and gets it.
                    receive.source = None;
                    receive.post(&mut world, length);
                    ReceivePlan::of(&mut world, 2).post(&mut world, length);
                }
            }
            message.send(&mut world);
            let mut completion = None;
            run(&mut world, "the receive ends", |world| {
                assert_eq!(placed_bytes(world), None, "kind {kind}");
                completion = world.pop(1);
                completion.is_some()
            });
            check(&mut world, completion.unwrap(), 1, &message, fits);
            if kind == 3 {
                message.send_alone(&mut world);
                place(&mut world, length / 2);
                let completion = next(&mut world);
                check(&mut world, completion, 2, &message, length);
            }
            go_on(&mut world, "after a receive of another kind");
        }
    }
}

/// Long and short ones, one after the other and at once, as streams and rare branches have it.
#[test]
fn messages_of_all_lengths_are_received_in_order() {
    for seed in 0..4 * SEEDS {
        let mut world = world(seed);
        crate::hooks::simulated::set_rare((seed % 4 > 0).then_some(seed));
        let lengths = [0, 8, LENGTHS[0], 300, LENGTHS[2], 5000, 4200, 1, LENGTHS[3], 0, 9000];
        let messages: Vec<Message> = (0..)
            .zip(lengths)
            .map(|(tag, length)| Message { tag, ..Message::of(&mut world, length) })
            .collect();
        for message in &messages {
            ReceivePlan::of(&mut world, message.tag).post(&mut world, message.length);
        }
        let mut completions = Vec::new();
        for message in &messages {
            message.send(&mut world);
            if seed / 4 % 2 == 0 {
                pass(&mut world, MILLISECOND);
            }
        }
        run(&mut world, "all are received", |world| {
            completions.extend(std::iter::from_fn(|| world.pop(1)));
            completions.len() == messages.len()
        });
        completions.sort_by_key(|it| it.user_data);
        for (completion, message) in completions.into_iter().zip(&messages) {
            check(&mut world, completion, message.tag, message, message.length);
        }
        go_on(&mut world, "after messages of all lengths");
        crate::hooks::simulated::set_rare(None);
    }
}
