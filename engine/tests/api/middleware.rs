//! All kinds of messages through a driver that fails as kernels and networks do.

use crate::common::{self, pair, pattern};
use ringrail::{
    Buffer, CompletionLevel, Endpoint, Envelope, Error, Layout, Owned, Peer, ReceiveOptions,
    Selector, SendOptions, SharedMemoryState,
};

const LANES: [&str; 2] = ["sockets", "uring"];

const SIZES: [usize; 9] = [0, 1, 8, 4096, 8192, 16_384, 16_385, 100_000, (1 << 20) + 8];

const LEVELS: [CompletionLevel; 3] =
    [CompletionLevel::Inject, CompletionLevel::Delivery, CompletionLevel::Match];

/// Runs `test` over every driver that this host has, and prints which it has not.
fn over_both_drivers(name: &str, test: impl Fn(&'static str)) {
    for lanes in LANES {
        let endpoint = common::domain(&[("lanes", lanes)]).endpoint().unwrap();
        match endpoint.attach() {
            Ok(_) => test(lanes),
            Err(error) => println!("RINGRAIL-SKIP: middleware::{name}: {lanes}: {error}"),
        }
    }
}

/// Every other block of 8 bytes.
fn every_other(memory: Vec<u8>) -> Buffer {
    let (block_bytes, stride_bytes, count) = (8, 16, memory.len() / 16);
    Buffer::shaped(memory, Layout::Strided { offset: 0, block_bytes, stride_bytes, count })
}

/// Message `number` of both directions: tagged, untagged, shaped or injected, received before or
/// after it came.
fn exchange_one(endpoint: &Endpoint<Owned>, peer: Peer, number: u64, size: usize) {
    let envelope = Envelope::tagged(number);
    let options = SendOptions::at(LEVELS[number as usize % LEVELS.len()]);
    let bytes = pattern(number, size);
    let is_untagged = number % 5 == 3;
    let receive = || {
        let into = vec![0u8; size];
        match is_untagged {
            true => endpoint.receive(Selector::untagged(Some(peer)), into).unwrap(),
            false => endpoint.receive(Selector::from_peer(peer, envelope), into).unwrap(),
        }
    };
    let posted = number.is_multiple_of(2).then(receive);
    let limit = endpoint.domain().settings().inject_limit_bytes();
    let send = if is_untagged {
        Some(endpoint.send(peer, Envelope::UNTAGGED, bytes.clone(), options).unwrap())
    } else if number % 3 == 1 && size <= limit {
        endpoint.inject(peer, envelope, &bytes, SendOptions::new()).unwrap();
        None
    } else if number % 3 == 2 && size.is_multiple_of(8) {
        let mut memory = vec![0xee; size * 2];
        for (blocks, part) in memory.chunks_mut(16).zip(bytes.chunks(8)) {
            blocks[..8].copy_from_slice(part);
        }
        Some(endpoint.send(peer, envelope, every_other(memory), options).unwrap())
    } else {
        Some(endpoint.send(peer, envelope, bytes.clone(), options).unwrap())
    };
    let outcome = posted.unwrap_or_else(receive).wait().unwrap();
    assert_eq!(outcome.status.length, size, "message {number}");
    assert!(outcome.buffer.as_slice().unwrap() == bytes, "message {number} of {size} bytes");
    if let Some(send) = send {
        send.wait().unwrap();
    }
}

/// Sizes times kinds, and at the end a burst of small messages that keeps its order.
fn exchange_all(endpoint: &Endpoint<Owned>, peer: Peer) {
    for number in 0..8 * SIZES.len() as u64 {
        exchange_one(endpoint, peer, number, SIZES[number as usize % SIZES.len()]);
    }
    let envelope = Envelope::tagged(1000);
    for number in 0..500u64 {
        endpoint.inject(peer, envelope, &number.to_le_bytes(), SendOptions::new()).unwrap();
    }
    for number in 0..500u64 {
        let mut into = [0; 8];
        endpoint
            .receive_blocking(Selector::from_peer(peer, envelope), &mut into, ReceiveOptions::new())
            .unwrap();
        assert_eq!(u64::from_le_bytes(into), number);
    }
    let done = Envelope::tagged(1001);
    let receive = endpoint.receive(Selector::from_peer(peer, done), Vec::new()).unwrap();
    endpoint.send_blocking(peer, done, &[], SendOptions::at(CompletionLevel::Match)).unwrap();
    receive.wait().unwrap();
}

fn with_faults(lanes: &str, faults: &str) {
    let settings = [
        ("lanes", lanes),
        ("inject_faults", faults),
        // So that attempts which are refused again and again are not the end.
        ("connect_retries", "100"),
        ("connect_retry_delay", "1ms"),
        // A chunk has a fate of its own: more of them, more fates.
        ("chunk_bytes", "32K"),
        ("bulk_lanes", "2"),
    ];
    pair(&settings, exchange_all, exchange_all);
}

#[test]
fn messages_of_all_kinds_survive_late_events_and_short_calls() {
    over_both_drivers("late_and_short", |lanes| {
        for seed in 1..=2 {
            with_faults(lanes, &format!("seed={seed} short=0.3 again=0.2 late=0.3"));
        }
    });
}

#[test]
fn messages_of_all_kinds_survive_refused_attempts_and_resets_in_mid_chunk() {
    over_both_drivers("refused_and_reset", |lanes| {
        for seed in 1..=2 {
            with_faults(
                lanes,
                &format!("seed={seed} short=0.1 again=0.05 late=0.1 reset=0.01 refuse=0.05"),
            );
        }
    });
}

/// Rings that two engines of one process share are full, end and come back, and long messages are
/// read from memory or, where that fails, granted.
///
/// RR-SHM-7, RR-SHM-8
#[test]
fn messages_of_all_kinds_survive_rings_that_end() {
    over_both_drivers("rings", |lanes| {
        let variants = [
            (1, "auto", "tcp", "false"),
            (2, "auto", "datagram", "false"),
            (3, "rings", "tcp", "false"),
            (4, "auto", "tcp", "true"),
        ];
        for (seed, memory, eager_lane, checksum) in variants {
            let faults = format!("seed={seed} again=0.1 late=0.1 ring_end=0.02 unread=0.1");
            let settings = [
                ("lanes", lanes),
                ("control_lane", "udp"),
                ("shared_memory", memory),
                ("eager_lane", eager_lane),
                ("checksum", checksum),
                ("inject_faults", &faults),
            ];
            let talk = |endpoint: &Endpoint<Owned>, peer: Peer| {
                exchange_all(endpoint, peer);
                let SharedMemoryState::On { figures, .. } = endpoint.shared_memory() else {
                    panic!("memory is not shared");
                };
                assert!(figures.sent > 0 && figures.ended > 0, "rings ended: {figures:?}");
            };
            pair(&settings, talk, talk);
        }
    });
}

/// Only a ring has a short message, until it ends.
///
/// RR-SHM-8
#[test]
fn short_messages_survive_rings_that_end() {
    const AT_ONCE: u64 = 30;
    for seed in 1..=8 {
        let faults = format!("seed={seed} again=0.3 late=0.3 ring_end=0.05");
        let settings = [
            ("lanes", "sockets"),
            ("control_lane", "udp"),
            ("shared_memory", "auto"),
            ("inject_faults", &faults),
        ];
        let talk = move |endpoint: &Endpoint<Owned>, peer: Peer| {
            let (envelope, done) = (Envelope::tagged(1000), Envelope::tagged(1001));
            for round in 0..100_u64 {
                let numbers = round * AT_ONCE..(round + 1) * AT_ONCE;
                for number in numbers.clone() {
                    let options = SendOptions::at(CompletionLevel::Inject);
                    let bytes = number.to_le_bytes();
                    endpoint.send_blocking(peer, envelope, &bytes, options).unwrap();
                }
                for number in numbers {
                    let (mut into, from) = ([0; 8], Selector::from_peer(peer, envelope));
                    endpoint.receive_blocking(from, &mut into, ReceiveOptions::new()).unwrap();
                    assert_eq!(u64::from_le_bytes(into), number, "seed {seed}");
                }
            }
            let receive = endpoint.receive(Selector::from_peer(peer, done), Vec::new()).unwrap();
            let options = SendOptions::at(CompletionLevel::Match);
            endpoint.send_blocking(peer, done, &[], options).unwrap();
            receive.wait().unwrap();
        };
        pair(&settings, talk, talk);
    }
}

/// A reset control lane ends the session, with an error on both sides that names it.
#[test]
fn a_cut_control_lane_is_reported_to_both_sides() {
    let talk = |endpoint: &Endpoint<Owned>, peer: Peer| {
        let until_lost = || -> Result<(), Error> {
            loop {
                let receive = Selector::from_peer(peer, Envelope::tagged(1));
                let receive = endpoint.receive(receive, vec![0; 8]).map_err(|error| error.error)?;
                endpoint.send_blocking(
                    peer,
                    Envelope::tagged(1),
                    b"12345678",
                    SendOptions::at(CompletionLevel::Delivery),
                )?;
                receive.wait()?;
            }
        };
        let error = until_lost().unwrap_err();
        assert!(matches!(error, Error::Peer { .. }), "{error:?}");
    };
    over_both_drivers("cut", |lanes| {
        let settings = [
            ("lanes", lanes),
            // The fault hits lanes with traffic.
            ("control_lane", "tcp"),
            ("inject_faults", "seed=4 cut=0.01"),
            ("connect_retries", "100"),
        ];
        pair(&settings, talk, talk);
    });
}
