//! Engines of one host that do not read each other's memory: long messages, puts and gets go by the
//! rings, in pieces.

use std::thread;
use std::time::{Duration, Instant};

use crate::common::one_host::{Child, LONG, ON, figures, receive, send, tag, until};
use crate::common::{pair, pattern};
use ringrail::{
    Access, Buffer, CompletionLevel, Endpoint, ErrorKind, KeyOptions, Owned, Peer, ReceiveOptions,
    RemoteKey, Selector, SendOptions,
};

const RINGS: &[(&str, &str)] = &[("shared_memory", "rings")];

/// Bounces messages until both sides have had pieces.
fn until_in_pieces(endpoint: &Endpoint<Owned>, peer: Peer, is_first: bool) {
    until(endpoint, peer, is_first, 100_000, |figures| figures.pieces_received > 0);
}

/// Bytes that went by bulk lanes.
fn by_lanes(endpoint: &Endpoint<Owned>) -> u64 {
    endpoint.statistics().paths.iter().map(|path| path.bytes_sent + path.bytes_received).sum()
}

/// Less than a segment, at its border, as a piece, and much longer than a ring.
const SIZES: [usize; 9] = [64, 8192, 9000, 16_385, 20_001, 32_768, 70_000, 1 << 20, (5 << 20) + 3];
/// Those that go in pieces whatever else is under way.
const LONG_ONES: u64 = 16_385 + 20_001 + 32_768 + 70_000 + (1 << 20) + (5 << 20) + 3;
const LONGEST: usize = (5 << 20) + 3;

/// RR-SHM-10
#[test]
fn long_messages_go_in_pieces_expected_or_not_and_by_no_lane() {
    let settings = [ON, RINGS].concat();
    let side = |is_first: bool| {
        move |endpoint: &Endpoint<Owned>, peer: Peer| {
            until_in_pieces(endpoint, peer, is_first);
            let (before, lanes) = (figures(endpoint), by_lanes(endpoint));
            for (number, size) in SIZES.into_iter().enumerate() {
                let (number, bytes) = (number as u64, pattern(number as u64, size));
                let options = SendOptions::at(CompletionLevel::Match);
                let sent = endpoint.send(peer, tag(number), &bytes[..], options).unwrap();
                if number.is_multiple_of(2) {
                    // It comes before it is expected.
                    thread::sleep(Duration::from_millis(5));
                }
                assert!(receive(endpoint, peer, number, size) == bytes, "size {size}");
                sent.wait().unwrap();
            }
            let figures = figures(endpoint);
            assert_eq!((figures.readable, figures.read_calls), (0, 0), "{figures:?}");
            let [sent, received] = [
                figures.piece_bytes_sent - before.piece_bytes_sent,
                figures.piece_bytes_received - before.piece_bytes_received,
            ];
            assert!(sent >= LONG_ONES && received >= LONG_ONES, "{figures:?}");
            assert_eq!(by_lanes(endpoint), lanes);
            // Neither leaves before the other one has looked.
            if is_first {
                send(endpoint, peer, 100, &[]);
            } else {
                receive(endpoint, peer, 100, 0);
            }
        }
    };
    pair(&settings, side(true), side(false));
}

/// A message that is posted before the two engines have met begins by lanes. What is not under way
/// when they share memory goes by that.
///
/// RR-SHM-10
#[test]
fn a_first_long_message_goes_on_by_shared_memory() {
    const FIRST: usize = 128 << 20;
    for settings in [[ON, RINGS].concat(), [ON, &[("bulk_lane", "datagram")]].concat()] {
        let sender = |endpoint: &Endpoint<Owned>, peer: Peer| {
            let bytes = vec![7; FIRST];
            let sent = endpoint.send(peer, tag(1), bytes, SendOptions::new()).unwrap();
            sent.wait().unwrap();
            receive(endpoint, peer, 2, 0);
        };
        let receiver = |endpoint: &Endpoint<Owned>, peer: Peer| {
            let bytes = receive(endpoint, peer, 1, FIRST);
            assert!(bytes.iter().all(|&byte| byte == 7));
            let figures = figures(endpoint);
            let by_memory = figures.piece_bytes_received + figures.read_bytes;
            assert!(
                by_memory > FIRST as u64 / 8,
                "{by_memory} of {FIRST} bytes went by shared memory, {} by lanes: {figures:?}",
                by_lanes(endpoint)
            );
            send(endpoint, peer, 2, &[]);
        };
        pair(&settings, sender, receiver);
    }
}

/// Memory in several places on either side, a receive that is too short, and none at all.
#[test]
fn pieces_are_gathered_scattered_and_cut() {
    const SIZE: usize = 300_000;
    let settings = [ON, RINGS].concat();
    /// Buffers of these lengths in turn, of `bytes`.
    fn list(bytes: &[u8], lengths: &[usize]) -> Buffer {
        let (mut left, mut all) = (bytes, Vec::new());
        for length in lengths.iter().cycle() {
            let (piece, rest) = left.split_at(left.len().min(*length));
            all.push(Buffer::from(piece.to_vec()));
            left = rest;
            if left.is_empty() {
                return Buffer::List(all);
            }
        }
        unreachable!("lengths come again")
    }
    fn content(buffer: Buffer) -> Vec<u8> {
        match buffer {
            Buffer::List(all) => all.into_iter().flat_map(content).collect(),
            buffer => buffer.as_slice().unwrap().to_vec(),
        }
    }
    let sender = |endpoint: &Endpoint<Owned>, peer: Peer| {
        until_in_pieces(endpoint, peer, true);
        let bytes = pattern(1, SIZE);
        for lengths in [&[SIZE][..], &[700, 9001], &[1, 4096, 8192, 8193]] {
            for _ in 0..3 {
                let buffer = list(&bytes, lengths);
                endpoint.send(peer, tag(1), buffer, SendOptions::new()).unwrap().wait().unwrap();
            }
        }
        send(endpoint, peer, 2, &bytes);
        let sent = endpoint.send(peer, tag(3), bytes.clone(), SendOptions::new()).unwrap();
        receive(endpoint, peer, 4, 0);
        sent.wait().unwrap();
    };
    let receiver = |endpoint: &Endpoint<Owned>, peer: Peer| {
        until_in_pieces(endpoint, peer, false);
        let bytes = pattern(1, SIZE);
        for _ in 0..3 {
            for lengths in [&[SIZE][..], &[513, 10_000], &[8192, 1, 8193]] {
                let into = list(&vec![0; SIZE], lengths);
                let selector = Selector::from_peer(peer, tag(1));
                let got = endpoint.receive(selector, into).unwrap().wait().unwrap();
                assert!(content(got.buffer) == bytes, "{lengths:?}");
            }
        }
        let mut short = vec![0; 100_001];
        let selector = Selector::from_peer(peer, tag(2));
        let cut = endpoint.receive_blocking(selector, &mut short, ReceiveOptions::new());
        assert_eq!(cut.unwrap_err().kind(), ErrorKind::Truncated);
        assert!(short == bytes[..100_001]);
        let selector = Selector::from_peer(peer, tag(3));
        let none = endpoint.receive_blocking(selector, &mut [], ReceiveOptions::new());
        assert_eq!(none.unwrap_err().kind(), ErrorKind::Truncated);
        send(endpoint, peer, 4, &[]);
    };
    pair(&settings, sender, receiver);
}

/// RR-SHM-10
#[test]
fn long_puts_and_gets_go_in_pieces() {
    let settings = [ON, RINGS].concat();
    let target = |endpoint: &Endpoint<Owned>, peer: Peer| {
        until_in_pieces(endpoint, peer, false);
        let region = endpoint.register(vec![0; LONGEST]).unwrap();
        let before = figures(endpoint);
        let key = region.key(&KeyOptions::new(Access::all())).unwrap();
        send(endpoint, peer, 2, &key.0.to_le_bytes());
        receive(endpoint, peer, 3, 0);
        let figures = figures(endpoint);
        let [got, put] = [
            figures.piece_bytes_sent - before.piece_bytes_sent,
            figures.piece_bytes_received - before.piece_bytes_received,
        ];
        assert!(got >= LONG_ONES && put >= LONG_ONES, "{figures:?}");
        let counts = region.counters();
        assert_eq!((counts.puts, counts.gets), (SIZES.len() as u64, SIZES.len() as u64));
        region.into_buffer().unwrap();
    };
    let origin = |endpoint: &Endpoint<Owned>, peer: Peer| {
        until_in_pieces(endpoint, peer, true);
        let key = receive(endpoint, peer, 2, 8);
        let key = RemoteKey(u64::from_le_bytes(key.try_into().unwrap()));
        for (number, size) in SIZES.into_iter().enumerate() {
            let bytes = pattern(number as u64, size);
            let at = key.at(((LONGEST - size) / 2) as u64);
            endpoint.put(peer, at, &bytes[..], SendOptions::new()).unwrap().wait().unwrap();
            endpoint.flush(peer, SendOptions::new()).unwrap();
            let got = endpoint.get(peer, at, vec![0; size], SendOptions::new()).unwrap();
            assert!(got.wait().unwrap().buffer.as_slice() == Some(&bytes[..]), "{size}");
        }
        send(endpoint, peer, 3, &[]);
    };
    pair(&settings, target, origin);
}

/// Many at once, in both directions, with short ones between them.
#[test]
fn long_and_short_messages_share_a_ring() {
    const COUNT: u64 = 40;
    let settings = [ON, RINGS].concat();
    let size_of = |number: u64| [100_000, 3, 700_000, 9000, 40_000][(number % 5) as usize];
    let side = move |is_first: bool| {
        move |endpoint: &Endpoint<Owned>, peer: Peer| {
            until_in_pieces(endpoint, peer, is_first);
            let receive = |number: u64| {
                let selector = Selector::from_peer(peer, tag(number));
                endpoint.receive(selector, vec![0; size_of(number)]).unwrap()
            };
            let receives: Vec<_> = (0..COUNT).map(receive).collect();
            let send = |number: u64| {
                let bytes = pattern(number, size_of(number));
                endpoint.send(peer, tag(number), bytes, SendOptions::new()).unwrap()
            };
            let sends: Vec<_> = (0..COUNT).map(send).collect();
            for (number, receive) in receives.into_iter().enumerate() {
                let got = receive.wait().unwrap();
                let expected = pattern(number as u64, size_of(number as u64));
                assert!(got.buffer.as_slice() == Some(&expected[..]), "{number}");
            }
            sends.into_iter().for_each(|send| drop(send.wait().unwrap()));
        }
    };
    pair(&settings, side(true), side(false));
}

/// A sender that stands still half way goes on where it stood, and one that is killed there ends
/// the receive.
#[test]
fn a_sender_that_stands_still_or_is_gone() {
    const SIZE: usize = 64 << 20;
    for is_killed in [false, true] {
        let (child, endpoint, peer) = Child::start_with(RINGS, |endpoint, peer| {
            until_in_pieces(&endpoint, peer, false);
            let bytes = pattern(5, SIZE);
            let _ = endpoint.send(peer, tag(5), bytes, SendOptions::new()).unwrap().wait();
            receive(&endpoint, peer, 6, 0);
        });
        until_in_pieces(&endpoint, peer, true);
        let before = figures(&endpoint).piece_bytes_received;
        let selector = Selector::from_peer(peer, tag(5));
        let mut receive = endpoint.receive(selector, vec![0; SIZE]).unwrap();
        let start = Instant::now();
        while figures(&endpoint).piece_bytes_received - before < 1 << 20 {
            assert!(start.elapsed() < LONG, "nothing comes");
            assert!(receive.test().unwrap().is_none());
        }
        let is_whole = |endpoint| figures(endpoint).piece_bytes_received - before == SIZE as u64;
        if is_killed {
            child.signal(libc::SIGKILL);
            match receive.wait() {
                Ok(_) => assert!(is_whole(&endpoint), "all of it was in the ring"),
                Err(failed) => assert_eq!(failed.error.kind(), ErrorKind::Lost),
            }
            assert_eq!(child.end(), libc::SIGKILL);
            continue;
        }
        child.signal(libc::SIGSTOP);
        child.await_stop();
        let pause = Instant::now();
        while pause.elapsed() < Duration::from_millis(300) {
            let _ = endpoint.progress();
        }
        child.signal(libc::SIGCONT);
        let got = receive.wait().unwrap();
        assert!(got.buffer.as_slice() == Some(&pattern(5, SIZE)[..]));
        send(&endpoint, peer, 6, &[]);
        assert_eq!(child.end(), 0);
    }
}

/// RR-SHM-6: two that sleep whenever they wait wake each other: the one for pieces, the other for
/// room.
#[test]
fn who_waits_for_room_is_woken() {
    const SIZE: usize = 32 << 20;
    let settings = [RINGS, &[("spin", "0s")]].concat();
    let (child, endpoint, peer) = Child::start_with(&settings, |endpoint, peer| {
        until_in_pieces(&endpoint, peer, false);
        let before = figures(&endpoint).wakes;
        assert!(receive(&endpoint, peer, 5, SIZE) == pattern(5, SIZE));
        let wakes = figures(&endpoint).wakes - before;
        // It sends next to nothing meanwhile: one grant.
        assert!(wakes > 10, "{wakes} wake-ups of a sender that fills the ring 1 000 times");
        send(&endpoint, peer, 6, &[]);
    });
    until_in_pieces(&endpoint, peer, true);
    let bytes = pattern(5, SIZE);
    send(&endpoint, peer, 5, &bytes);
    receive(&endpoint, peer, 6, 0);
    let figures = figures(&endpoint);
    assert!(figures.piece_bytes_sent >= SIZE as u64);
    assert_eq!(child.end(), 0);
}
