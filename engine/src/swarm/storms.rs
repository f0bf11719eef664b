//! Sessions by datagrams in each kind of bad impairments, under attack: every message arrives once.

use super::form::content;
use super::scenarios::{add_hosts, config, drain, loop_config, peer, receive, run, send};
use super::world::World;
use crate::driver::sim::datagrams::{DatagramCounts, DatagramImpairments};
use crate::driver::sim::net::Impairments;
use crate::memory::Buffer;
use crate::proto::core::Config;
use crate::proto::effects::CompletionLevel;

const MESSAGES: u64 = 360;
/// Seeds that each storm is tried with.
const SEEDS: u64 = 5;

fn storms() -> [(&'static str, DatagramImpairments); 9] {
    let fair = DatagramImpairments::ideal;
    [
        ("fair", fair()),
        ("loss", DatagramImpairments { loss_ppm: 50_000, ..fair() }),
        ("copies", DatagramImpairments { duplicate_ppm: 200_000, ..fair() }),
        ("reordering", DatagramImpairments { late_ppm: 200_000, late_ns: 300_000, ..fair() }),
        ("garbling", DatagramImpairments { flip_ppm: 50_000, truncate_ppm: 50_000, ..fair() }),
        ("a short queue", DatagramImpairments { ns_per_kib: 20_000, queue_bytes: 1_500, ..fair() }),
        (
            "no room to send",
            DatagramImpairments { ns_per_kib: 20_000, send_room_bytes: 1, ..fair() },
        ),
        ("no room to receive", DatagramImpairments { receive_room_bytes: 1_500, ..fair() }),
        (
            "other addresses",
            DatagramImpairments { rebind_ppm: 20_000, rebind_keeps_ns: 1_000_000, ..fair() },
        ),
    ]
}

/// How often the storm of that name struck.
fn strikes(name: &str, counts: &DatagramCounts) -> u64 {
    match name {
        "loss" => counts.lost,
        "copies" => counts.duplicates,
        "reordering" => counts.late,
        "garbling" => counts.garbled,
        "a short queue" => counts.queue_drops,
        "no room to send" => counts.blocked,
        "no room to receive" => counts.receive_drops,
        "other addresses" => counts.rebinds,
        _ => counts.arrived,
    }
}

/// Has two engines send each other messages; returns the fate of datagrams, and how many were
/// rejected.
fn exchange(
    seed: u64,
    name: &str,
    impairments: DatagramImpairments,
    attack_ns: u64,
) -> (DatagramCounts, u64) {
    let mut world = World::new(seed, Impairments::ideal()).unwrap();
    world.net.borrow_mut().datagram_impairments = impairments;
    world.set_datagrams(true).unwrap();
    let config = Config { envelope_credits: 64, eager_credit_bytes: 1 << 16, ..config() };
    add_hosts(&mut world, 2, &[], &config, loop_config());
    if attack_ns > 0 {
        world.attack(seed, attack_ns);
    }
    for at in 0..2 {
        let other = peer(&mut world, at, 1 - at);
        for tag in 0..MESSAGES {
            let length = [8, 60, 256, 700][tag as usize % 4];
            assert!(receive(&mut world, at, other, tag, length));
        }
    }
    let mut received = [0, 0];
    for tag in 0..MESSAGES {
        for at in 0..2 {
            let other = peer(&mut world, at, 1 - at);
            let length = [8, 60, 256, 700][tag as usize % 4];
            send(&mut world, at, other, tag, length, CompletionLevel::Delivery);
        }
        run(&mut world, name, |world| {
            for (host, count) in received.iter_mut().enumerate() {
                for completion in drain(world, host) {
                    let status = completion.result.unwrap_or_else(|e| panic!("{name}: {e}"));
                    if let Some(Buffer::Heap(bytes)) = &completion.buffer {
                        let expected = content(completion.user_data, bytes.len());
                        assert_eq!(*bytes, expected, "{name}: {status:?}");
                    }
                    *count += 1;
                }
            }
            // A send and a receive of each message, the last ones still on their way.
            received.iter().all(|&count| count + 120 >= 2 * (tag + 1))
        });
    }
    run(&mut world, name, |world| {
        for (host, count) in received.iter_mut().enumerate() {
            *count += drain(world, host).len() as u64;
        }
        received.iter().all(|&count| count == 2 * MESSAGES)
    });
    world.end_attack();
    let counts = world.net.borrow().datagram_counts();
    let dropped = |host| {
        let dropped = world.look(host).unwrap().state.session_paths().dropped();
        dropped.malformed + dropped.unknown + dropped.forged + dropped.repeated
    };
    (counts, dropped(0) + dropped(1))
}

#[test]
fn every_message_arrives_once_in_any_weather() {
    for (name, impairments) in storms() {
        let mut sent = 0;
        for seed in 0..SEEDS {
            let (counts, _) = exchange(seed, name, impairments.clone(), 0);
            sent += counts.sent;
            assert!(strikes(name, &counts) > 0, "{name}: {counts:?}");
        }
        // Of a few seeds a path is silent for long, and messages go by the stream beside it.
        assert!(sent > SEEDS * MESSAGES / 2, "{name}: {sent} datagrams");
    }
}

#[test]
fn packets_of_an_attacker_are_rejected() {
    for (name, impairments) in storms() {
        let mut sent = 0;
        for seed in 0..SEEDS {
            let (counts, dropped) = exchange(seed, name, impairments.clone(), 5_000);
            sent += counts.sent;
            assert!(strikes(name, &counts) > 0, "{name}: {counts:?}");
            assert!(dropped > 0, "{name}: nothing was dropped");
        }
        assert!(sent > SEEDS * MESSAGES / 2, "{name}: {sent} datagrams");
    }
}
