//! The setting `checksum`, with drivers that change bits on the way.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use crate::common::handmade::HELLO_BYTES;
use crate::common::relay::Relay;
use crate::common::{domain, pair_of, pattern};
use ringrail::{
    Buffer, CompletionLevel, Endpoint, Envelope, Error, Event, Layout, Owned, Peer, PeerFailure,
    ReceiveOptions, Selector, SendOptions,
};

const LANES: [&str; 2] = ["sockets", "uring"];

/// Long enough for many chunks, short, and none at all.
const SIZES: [usize; 6] = [1 << 20, 0, 8, 100_000, 16_384, 300_008];

/// Runs `test` over every driver that this host has, and prints which it has not.
fn over_both_drivers(name: &str, test: impl Fn(&'static str)) {
    for lanes in LANES {
        let endpoint = domain(&[("lanes", lanes)]).endpoint().unwrap();
        match endpoint.attach() {
            Ok(_) => test(lanes),
            Err(error) => println!("RINGRAIL-SKIP: checksum::{name}: {lanes}: {error}"),
        }
    }
}

/// Two sides, each with checksums or not, that lie about what arrives as `faults` say.
fn run(
    lanes: &str,
    checksum: [&str; 2],
    faults: &str,
    left: impl FnOnce(&Endpoint<Owned>, Peer) + Send + 'static,
    right: impl FnOnce(&Endpoint<Owned>, Peer) + Send + 'static,
) {
    let endpoints = checksum.map(|checksum| {
        let settings = [
            ("lanes", lanes),
            // Datagrams have tags, which find out before a checksum could.
            ("control_lane", "tcp"),
            ("checksum", checksum),
            ("inject_faults", faults),
            ("chunk_bytes", "32K"),
            ("bulk_lanes", "2"),
            ("rts_bytes", "100"),
        ];
        domain(&settings).endpoint().unwrap()
    });
    pair_of(endpoints, left, right);
}

/// The memory of a message of `bytes`, in one piece or in very many, and what of it they are.
fn shaped(bytes: &[u8], is_scattered: bool) -> Buffer {
    if !is_scattered || !bytes.len().is_multiple_of(8) {
        return Buffer::Heap(bytes.to_vec());
    }
    let half = bytes.len() / 16 * 8;
    let parts = [&bytes[..half], &bytes[half..]].map(|part| {
        let mut memory = vec![0xee; part.len() * 2];
        for (blocks, part) in memory.chunks_mut(16).zip(part.chunks(8)) {
            blocks[..8].copy_from_slice(part);
        }
        let (block_bytes, stride_bytes, count) = (8, 16, part.len() / 8);
        Buffer::shaped(memory, Layout::Strided { offset: 0, block_bytes, stride_bytes, count })
    });
    Buffer::list(parts)
}

/// The bytes of a buffer that [`shaped`] made, and whether the others are as they were.
fn bytes_of(buffer: Buffer) -> (Vec<u8>, bool) {
    match buffer {
        Buffer::List(parts) => {
            let (mut bytes, mut is_clean) = (Vec::new(), true);
            for part in parts {
                let (more, rest) = bytes_of(part);
                bytes.extend(more);
                is_clean &= rest;
            }
            (bytes, is_clean)
        }
        Buffer::Shaped(shaped) => {
            let memory = shaped.buffer.as_slice().unwrap();
            let picked = memory.chunks(16).flat_map(|blocks| &blocks[..8]).copied().collect();
            let is_clean = memory.chunks(16).all(|blocks| blocks[8..].iter().all(|&b| b == 0xee));
            (picked, is_clean)
        }
        other => (other.as_slice().unwrap().to_vec(), true),
    }
}

/// Messages of all sizes and shapes, in both directions at once. How many of them differ from what
/// was sent.
fn exchange(endpoint: &Endpoint<Owned>, peer: Peer) -> usize {
    let mut differ = 0;
    for number in 0..2 * SIZES.len() as u64 {
        let size = SIZES[number as usize % SIZES.len()];
        let bytes = pattern(number, size);
        let envelope = Envelope::tagged(number);
        let (mine, theirs) = (number.is_multiple_of(2), number % 3 == 0);
        let into = shaped(&vec![0; size], theirs);
        let receive = endpoint.receive(Selector::from_peer(peer, envelope), into).unwrap();
        let options = SendOptions::at(CompletionLevel::Match);
        let send = endpoint.send(peer, envelope, shaped(&bytes, mine), options).unwrap();
        let outcome = receive.wait().unwrap();
        assert_eq!(outcome.status.length, size, "message {number}");
        let (got, is_clean) = bytes_of(outcome.buffer);
        assert!(is_clean, "message {number}: bytes between the blocks");
        differ += usize::from(got != bytes);
        send.wait().unwrap();
    }
    differ
}

/// RR-SUM-1, RR-SUM-4, RR-SUM-5
#[test]
fn garbled_chunks_are_asked_for_again_if_either_side_wants_checksums() {
    over_both_drivers("either", |lanes| {
        for checksum in [["true", "true"], ["true", "false"], ["false", "true"]] {
            let talk = |endpoint: &Endpoint<Owned>, peer: Peer| {
                assert_eq!(exchange(endpoint, peer), 0, "every message is as it was sent");
                let corrupted = endpoint.counters().corrupted_chunks;
                assert!(corrupted > 0, "a fifth of many chunks");
            };
            run(lanes, checksum, "seed=5 garble=0.2 short=0.1 late=0.1", talk, talk);
        }
    });
}

/// Nothing is checked where checksums are off; this is also what the other tests rest on.
#[test]
fn without_checksums_corruption_is_not_detected() {
    over_both_drivers("off", |lanes| {
        let differ = Arc::new(AtomicU64::new(0));
        let [left, right] = [0, 1].map(|_| {
            let differ = Arc::clone(&differ);
            move |endpoint: &Endpoint<Owned>, peer: Peer| {
                differ.fetch_add(exchange(endpoint, peer) as u64, Ordering::Relaxed);
                assert_eq!(endpoint.counters().corrupted_chunks, 0);
            }
        });
        run(lanes, ["false", "false"], "seed=5 garble=0.2", left, right);
        assert!(differ.load(Ordering::Relaxed) > 0);
    });
}

fn is_corruption(error: &Error) -> bool {
    matches!(error, Error::Peer { failure: PeerFailure::Corrupted(_), .. })
}

/// RR-SUM-5
#[test]
fn a_path_that_always_corrupts_ends_with_an_error_on_both_sides() {
    over_both_drivers("always", |lanes| {
        let left = |endpoint: &Endpoint<Owned>, peer: Peer| {
            let bytes = pattern(1, 1 << 20);
            let sent = endpoint.send_blocking(
                peer,
                Envelope::tagged(1),
                &bytes,
                SendOptions::at(CompletionLevel::Match),
            );
            let error = sent.unwrap_err();
            assert!(is_corruption(&error), "{error}");
            assert!(error.to_string().contains("the peer received corrupted data"), "{error}");
        };
        let right = |endpoint: &Endpoint<Owned>, peer: Peer| {
            let selector = Selector::from_peer(peer, Envelope::tagged(1));
            let receive = endpoint.receive(selector, vec![0; 1 << 20]).unwrap();
            let error = receive.wait().unwrap_err().error;
            assert!(is_corruption(&error), "{error}");
            assert!(error.to_string().contains("8 chunks of a message"), "{error}");
            assert!(endpoint.counters().corrupted_chunks >= 8);
        };
        run(lanes, ["true", "true"], "seed=1 garble=1", left, right);
    });
}

/// RR-SUM-3
#[test]
fn a_garbled_control_lane_ends_the_session_and_no_message_is_wrong() {
    over_both_drivers("control", |lanes| {
        for seed in 1..=3 {
            let found = Arc::new(AtomicU64::new(0));
            let [left, right] = [0, 1].map(|_| {
                let found = Arc::clone(&found);
                move |endpoint: &Endpoint<Owned>, peer: Peer| {
                    let until_lost = || -> Result<(), Error> {
                        for number in 0u64.. {
                            let bytes = pattern(number, number as usize * 37 % 3000);
                            let envelope = Envelope::tagged(1);
                            let into = vec![0; bytes.len()];
                            let receive = endpoint
                                .receive(Selector::from_peer(peer, envelope), into)
                                .map_err(|error| error.error)?;
                            endpoint.send_blocking(
                                peer,
                                envelope,
                                &bytes,
                                SendOptions::at(CompletionLevel::Delivery),
                            )?;
                            let outcome = receive.wait()?;
                            assert_eq!(outcome.status.length, bytes.len());
                            assert!(outcome.buffer.as_slice().unwrap() == bytes, "{number}");
                        }
                        Ok(())
                    };
                    let error = until_lost().unwrap_err();
                    // A reset may overtake the goodbye with the cause.
                    assert!(matches!(error, Error::Peer { .. }), "{error}");
                    found.fetch_add(u64::from(is_corruption(&error)), Ordering::Relaxed);
                }
            });
            let faults = format!("seed={seed} garble_control=0.02 short=0.2");
            run(lanes, ["true", "false"], &faults, left, right);
            assert!(found.load(Ordering::Relaxed) > 0, "the side that found it reports it");
        }
    });
}

/// RR-SEG-6
#[test]
fn unfinished_segment_ends_the_session_without_checksums_too() {
    const PROOF_BYTES: usize = 24;
    over_both_drivers("length", |lanes| {
        let settings = [("lanes", lanes), ("control_lane", "tcp"), ("peer_timeout", "2s")];
        let [left, right] = [0, 1].map(|_| domain(&settings).endpoint().unwrap());
        // A message of 8 bytes becomes one of a kilobyte and more.
        let relay = Relay::new(right.address(), |mut passing| {
            if passing.forward {
                passing.flip(HELLO_BYTES + PROOF_BYTES + 1);
            }
        });
        let (through, (to, of)) = (relay.address(), mpsc::channel());
        let of_right = to.clone();
        thread::spawn(move || {
            let right = right.attach().unwrap();
            let failure = loop {
                right.progress().unwrap();
                if let Some(Event::Disconnected { failure, .. }) = right.next_event() {
                    break failure;
                }
            };
            of_right.send(failure).unwrap();
        });
        thread::spawn(move || {
            let left = left.attach().unwrap();
            let peer = left.insert_peer(&through).unwrap();
            left.send_blocking(peer, Envelope::tagged(1), &[1; 8], SendOptions::new()).unwrap();
            let answer = Selector::from_peer(peer, Envelope::tagged(2));
            let error =
                left.receive_blocking(answer, &mut [0; 8], ReceiveOptions::new()).unwrap_err();
            let Error::Peer { failure, .. } = error else { panic!("{error}") };
            to.send(failure).unwrap();
        });
        for _ in 0..2 {
            let failure = of.recv_timeout(Duration::from_secs(60)).expect("it waits for ever");
            assert!(matches!(failure, PeerFailure::Corrupted(_)), "{failure}");
        }
    });
}
