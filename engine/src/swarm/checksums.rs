//! Paths that garble what streams carry, and sessions with checksums.

use super::at_rest::check_at_rest;
use super::form::content;
use super::scenarios::*;
use crate::driver::sim::random::Random;
use crate::memory::Buffer;
use crate::proto::core::Config;
use crate::proto::effects::CompletionLevel;
use crate::types::{Error, PeerFailure};

/// What a path garbles of bulk data, checksums find: every message is as it was sent. Garbled
/// headers cost their lane, garbled bytes a chunk.
///
/// RR-SUM-1, RR-SUM-4, RR-SUM-5.
#[test]
fn garbled_chunks_arrive_as_they_were_sent_with_checksums() {
    const MESSAGES: u64 = 16;
    let mut corrupted = 0;
    for seed in 0..40 {
        let mut random = Random::new(seed);
        let mut world = world(seed, 2, &config());
        // Either side may be the one that asks, and segments may go by datagrams or by TCP.
        world.set_datagrams(seed % 4 >= 2).unwrap();
        (0..2).for_each(|host| drop(world.take(host)));
        world.start(0, 1, config(), loop_config()).unwrap();
        let checking = Config { checksum: true, ..config() };
        world.start(1, 2, checking, loop_config()).unwrap();
        let pair = [[0, 1], [1, 0]][seed as usize % 2];
        let target = peer(&mut world, pair[0], pair[1]);
        let source = peer(&mut world, pair[1], pair[0]);
        for tag in 0..MESSAGES {
            let length = 1 + random.below(6000);
            send(&mut world, pair[0], target, tag, length, CompletionLevel::Match);
            assert!(receive(&mut world, pair[1], source, tag, length));
        }
        let (mut arrived, mut next_ns) = (0, 0);
        run(&mut world, "all arrive", |world| {
            if world.now_ns() > next_ns {
                world.net.borrow_mut().flip(true);
                next_ns = world.now_ns() + 100_000 + random.within(400_000);
            }
            for host in pair {
                for completion in drain(world, host) {
                    completion.result.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
                    let Some(Buffer::Heap(bytes)) = completion.buffer else { continue };
                    let is_intact = bytes == content(completion.user_data, bytes.len());
                    assert!(is_intact, "seed {seed}: message {}", completion.user_data);
                    arrived += 1;
                }
            }
            arrived == 2 * MESSAGES
        });
        for host in pair {
            corrupted +=
                world.look(host).unwrap().state.core().shared().counters().corrupted_chunks;
        }
        pass(&mut world, 100 * MILLISECOND);
        pair.iter().for_each(|&host| check_at_rest(world.look(host).unwrap()).unwrap());
    }
    assert!(corrupted > 20, "{corrupted} in all");
}

/// What a path garbles of a control lane ends the session and is never taken for a message.
///
/// RR-SUM-3.
#[test]
fn a_garbled_control_lane_ends_the_session_with_checksums() {
    for seed in 0..40 {
        let mut random = Random::new(seed);
        let mut world = world(seed, 2, &Config { checksum: true, ..config() });
        talk(&mut world, [0, 1], "before");
        let target = peer(&mut world, 0, 1);
        let source = peer(&mut world, 1, 0);
        let mut tag = 10;
        let (mut failures, mut next_ns) = (Vec::new(), 0);
        run(&mut world, "a checksum detects it", |world| {
            if world.now_ns() > next_ns {
                let length = random.below(600);
                send(world, 0, target, tag, length, CompletionLevel::Match);
                receive(world, 1, source, tag, length);
                tag += 1;
                next_ns = world.now_ns() + 50_000;
            }
            world.net.borrow_mut().flip(false);
            for host in 0..2 {
                for completion in drain(world, host) {
                    match completion.result {
                        Ok(_) => {
                            let Some(Buffer::Heap(bytes)) = completion.buffer else { continue };
                            let is_intact = bytes == content(completion.user_data, bytes.len());
                            assert!(is_intact, "seed {seed}: message {}", completion.user_data);
                        }
                        Err(Error::Peer { failure, .. }) => failures.push(failure),
                        Err(error) => panic!("seed {seed}: {error}"),
                    }
                }
            }
            !failures.is_empty()
        });
        let is_found = failures
            .iter()
            .all(|failure| matches!(failure, PeerFailure::Corrupted(_) | PeerFailure::Lost(_)));
        assert!(is_found, "seed {seed}: {failures:?}");
    }
}
