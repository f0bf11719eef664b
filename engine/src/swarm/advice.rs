//! Two engines whose messages become eager, up to the longest: one story each.

use super::form::content;
use super::placed::{Message, ReceivePlan, TAG, check, go_on, next};
use super::scenarios::{
    MILLISECOND, add_hosts, config, drain, empty_world, loop_config, pass, peer, receive, run,
    send, talk,
};
use super::world::World;
use crate::driver::sim::net::Impairments;
use crate::progress::engine::LoopConfig;
use crate::proto::core::Config;
use crate::proto::effects::CompletionLevel;
use crate::types::Completion;
use crate::wire::EAGER_BYTES_MAX;

/// Longer than the limit at first, which is 64 KiB.
const LENGTH: usize = 200 << 10;
const LONGEST: u32 = EAGER_BYTES_MAX as u32;
const FIRST: u32 = 64 << 10;

/// The limits of a domain without settings, as far as they concern such messages.
fn usual() -> Config {
    Config {
        eager_limit: LONGEST,
        is_eager_limit_advised: true,
        inject_limit: 16 << 10,
        rts_bytes: 0,
        chunk_bytes: 254 << 10,
        busy_chunk_bytes: 111 << 10,
        horizon_chunks: 4,
        bulk_lanes: 1,
        envelope_credits: 16_384,
        eager_credit_bytes: 256 << 10,
        unexpected_bytes: 64 << 20,
        unexpected_messages: 16 << 20,
        staging_bytes: 64 << 10,
        staging_buffers_max: 1024,
        eager_by_stream: true,
        ..config()
    }
}

/// Two hosts with a session, by a network that is faster than copies are.
fn world_of(seed: u64, has_datagrams: bool, config: &Config) -> World {
    let impairments = Impairments {
        delay_ns: 200,
        jitter_ns: 100,
        ns_per_kib: 10,
        capacity: [16 << 10, 64 << 10, 1 << 20][seed as usize % 3],
        ..Impairments::ideal()
    };
    let mut world = empty_world(seed, impairments, has_datagrams);
    let loop_config = LoopConfig { receive_buffer_bytes: 64 << 10, ..loop_config() };
    add_hosts(&mut world, 2, &[], config, loop_config);
    talk(&mut world, [0, 1], "the session begins");
    world
}

/// Returns the limit of a host to the other one.
fn limit(world: &World, host: usize) -> u32 {
    let core = world.look(host).unwrap().state.core();
    core.session(0).unwrap().segments().eager_limit_now()
}

fn frames_received(world: &World, host: usize) -> u64 {
    let engine = world.look(host).unwrap();
    engine.state.counters(&engine.driver).frames_received
}

/// Sends a message, whose receive is posted before or when it has come. Returns the frames that its
/// sender was answered with: none if it was eager.
fn exchange(world: &mut World, from: usize, tag: u64, (length, is_late): (usize, bool)) -> u64 {
    let to = 1 - from;
    let [source, target] = [peer(world, to, from), peer(world, from, to)];
    let before = frames_received(world, from);
    if !is_late {
        assert!(receive(world, to, source, tag, length));
    }
    send(world, from, target, tag, length, CompletionLevel::Inject);
    if is_late {
        pass(world, MILLISECOND);
        assert!(receive(world, to, source, tag, length));
    }
    let mut ended = Vec::new();
    run(world, "a message is received", |world| {
        ended.extend(drain(world, to));
        !ended.is_empty()
    });
    check_content(ended.pop().unwrap(), tag, length);
    // What completes the send.
    pass(world, MILLISECOND);
    drain(world, from).into_iter().for_each(|it| _ = it.result.unwrap());
    assert!(ended.is_empty() && drain(world, to).is_empty());
    frames_received(world, from) - before
}

fn check_content(completion: Completion, tag: u64, length: usize) {
    let status = completion.result.as_ref().unwrap();
    assert_eq!((completion.user_data, status.length), (tag, length));
    let bytes = completion.buffer.unwrap().gather().unwrap();
    assert!(bytes[..] == content(tag, length), "message {tag}");
}

/// RR-RDV-10
#[test]
fn messages_of_a_ping_pong_become_eager_on_the_stream() {
    for seed in 0..6 {
        let mut world = world_of(seed, seed % 2 == 0, &usual());
        assert_eq!([0, 1].map(|it| limit(&world, it)), [FIRST; 2]);
        let mut tag = 0;
        while [0, 1].iter().any(|&it| limit(&world, it) < LONGEST) {
            let from = tag as usize % 2;
            let was_short = limit(&world, from) < LONGEST;
            let frames = exchange(&mut world, from, tag, (LENGTH, false));
            assert_eq!(frames > 0, was_short, "message {tag}");
            tag += 1;
            assert!(tag <= 40, "seed {seed}: {:?}", [0, 1].map(|it| limit(&world, it)));
        }
        // One of 64 is pulled, each way.
        let first = tag;
        let mut pulled = [0; 2];
        while tag < first + 128 {
            let from = tag as usize % 2;
            pulled[from] += u32::from(exchange(&mut world, from, tag, (LENGTH, false)) > 0);
            tag += 1;
        }
        assert_eq!(pulled, [1; 2], "seed {seed}");
        assert_eq!([0, 1].map(|it| limit(&world, it)), [LONGEST; 2]);
        talk(&mut world, [0, 1], "after a ping-pong");
    }
}

/// RR-RDV-10
#[test]
fn messages_that_wait_for_their_receives_alone_become_eager_on_the_stream() {
    for seed in 0..4 {
        let mut world = world_of(seed, seed % 2 == 0, &usual());
        let mut tag = 0;
        while limit(&world, 0) < LONGEST {
            exchange(&mut world, 0, tag, (LENGTH, true));
            tag += 1;
            assert!(tag <= 20, "seed {seed}: {}", limit(&world, 0));
        }
        for eager in 0..64 {
            exchange(&mut world, 0, tag + eager, (LENGTH, eager % 3 > 0));
        }
        talk(&mut world, [0, 1], "after late receives");
    }
}

/// RR-RDV-10
#[test]
fn messages_are_pulled_where_several_wait_for_their_receives() {
    for seed in 0..4 {
        let mut world = world_of(seed, seed % 2 == 0, &usual());
        for round in 0..30 {
            let [source, target] = [peer(&mut world, 1, 0), peer(&mut world, 0, 1)];
            let tags = 4 * round..4 * (round + 1);
            for tag in tags.clone() {
                send(&mut world, 0, target, tag, LENGTH, CompletionLevel::Inject);
            }
            pass(&mut world, MILLISECOND);
            for tag in tags.clone() {
                assert!(receive(&mut world, 1, source, tag, LENGTH));
            }
            let mut ended = Vec::new();
            run(&mut world, "all are received", |world| {
                ended.extend(drain(world, 1));
                ended.len() == 4
            });
            ended.sort_by_key(|it| it.user_data);
            for (completion, tag) in ended.into_iter().zip(tags) {
                check_content(completion, tag, LENGTH);
            }
            pass(&mut world, MILLISECOND);
            drain(&mut world, 0).into_iter().for_each(|it| _ = it.result.unwrap());
            assert!(limit(&world, 0) <= FIRST, "seed {seed}, round {round}");
        }
        talk(&mut world, [0, 1], "after late receives");
    }
}

/// With and without remote data, checksums, datagrams and a posted receive.
///
/// RR-DGRAM-12, RR-DATA-1
#[test]
fn the_longest_eager_message_arrives_whole_and_a_longer_one_is_pulled() {
    for case in 0..16 {
        let [has_data, checksum, has_datagrams, is_posted] = [1, 2, 4, 8].map(|it| case & it > 0);
        let config = Config { is_eager_limit_advised: false, checksum, ..usual() };
        let mut world = world_of(case, has_datagrams, &config);
        assert_eq!([0, 1].map(|it| limit(&world, it)), [LONGEST; 2]);
        for length in [EAGER_BYTES_MAX - 1, EAGER_BYTES_MAX, EAGER_BYTES_MAX + 1] {
            let data = has_data.then_some(0x0102_0304_0506_0708);
            let message = Message { data, ..Message::of(&mut world, length) };
            assert_eq!(message.tag, TAG);
            let receive = ReceivePlan::of(&mut world, 1);
            pass(&mut world, 100 * MILLISECOND);
            let before = frames_received(&world, 0);
            if is_posted {
                receive.post(&mut world, length);
            }
            message.send(&mut world);
            if !is_posted {
                pass(&mut world, MILLISECOND);
                receive.post(&mut world, length);
            }
            let completion = next(&mut world);
            check(&mut world, completion, 1, &message, length);
            pass(&mut world, MILLISECOND);
            let is_eager = frames_received(&world, 0) == before;
            assert_eq!(is_eager, length <= EAGER_BYTES_MAX, "case {case}: {length} bytes");
        }
        super::placed::events(&mut world);
        go_on(&mut world, "after the longest messages");
    }
}
