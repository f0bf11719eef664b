//! Hosts with jumbo frames behind a switch that drops longer packets than 1500 bytes, without a
//! word.

use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{Set, pair_of};
use ringrail::{
    Buffer, Completion, Endpoint, Envelope, Owned, Peer, ReceiveOptions, Selector, SendOptions,
};
use ringrail_tests::lab::Lab;
use ringrail_tests::require_lab;

/// Lengths of messages: in one packet, by the control connection, by bulk connections.
const LENGTHS: [usize; 4] = [8, 3000, 60_000, 8 << 20];
/// What is under way for so long hangs. Each connection whose packets vanish costs a second or two.
const HANGS: Duration = Duration::from_secs(60);

fn bytes_of(number: usize, length: usize) -> Vec<u8> {
    (0..length).map(|at| (at >> 3) as u8 ^ (at >> 11) as u8 ^ number as u8).collect()
}

/// Sends a message of each length if it `sends`, and receives one of each if it `receives`.
fn exchange(
    endpoint: &Endpoint<Owned>,
    peer: Peer,
    [sends, receives]: [bool; 2],
    ready: &AtomicU32,
    what: &str,
) {
    let mut left = 0;
    for (number, &length) in LENGTHS.iter().enumerate() {
        let label = Envelope::tagged(number as u64);
        if receives {
            let asked = ReceiveOptions::new().user_data(number as u64);
            endpoint
                .post_receive(Selector::from_peer(peer, label), vec![0; length], asked)
                .unwrap();
            left += 1;
        }
        if sends {
            let options = SendOptions::new().user_data(100 + number as u64);
            endpoint.post_send(peer, label, bytes_of(number, length), options).unwrap();
            left += 1;
        }
    }
    let (start, mut done): (_, Vec<Completion>) = (Instant::now(), Vec::new());
    let mut is_done = false;
    while ready.load(Ordering::SeqCst) < 2 {
        endpoint.wait(&mut done, 64, Some(Duration::from_millis(10))).unwrap();
        for completion in done.drain(..) {
            let number = completion.user_data as usize;
            let status = completion.result.unwrap_or_else(|error| panic!("{what}: {error}"));
            if number < 100 {
                let Some(Buffer::Heap(came)) = completion.buffer else { panic!("no buffer") };
                assert_eq!(status.length, LENGTHS[number], "{what}");
                assert!(came == bytes_of(number, LENGTHS[number]), "{what}: {number}");
            }
            left -= 1;
        }
        if left == 0 && !is_done {
            is_done = true;
            ready.fetch_add(1, Ordering::SeqCst);
        }
        assert!(start.elapsed() < HANGS, "{what}: {left} operations hang");
    }
}

/// Messages of all lengths one way, the other, and both ways at once, each in a session of its own.
fn play(spec: &str, settings: [&Set<'_>; 2]) {
    let lab = Lab::build(&spec.parse().unwrap()).unwrap();
    for roles in [[true, false], [false, true], [true, true]] {
        let (ready, start) = (AtomicU32::new(0), Instant::now());
        let what = format!("{spec}, {settings:?}, {roles:?}");
        let [left, right] = [roles, [roles[1], roles[0]]];
        pair_of(
            &lab,
            settings,
            |endpoint, peer| exchange(endpoint, peer, left, &ready, &what),
            |endpoint, peer| exchange(endpoint, peer, right, &ready, &what),
        );
        println!("{what}: {:?}", start.elapsed());
    }
}

fn play_all(cases: &[[&[(&str, &str)]; 2]]) {
    require_lab!();
    const ONE: &str = "mtu=9000,passes=1500";
    const TWO: &str = "rails=2,mtu=9000,passes=1500";
    thread::scope(|scope| {
        let cases = cases.iter().flat_map(|case| [(ONE, case), (TWO, case)]);
        let plays: Vec<_> = cases.map(|(spec, case)| scope.spawn(|| play(spec, *case))).collect();
        plays.into_iter().for_each(|play| play.join().unwrap());
    });
}

/// RR-LANE-8
#[test]
fn long_messages_pass_a_switch_that_drops_long_packets() {
    play_all(&[
        [&[("nics", "rail*"), ("lanes", "uring")]; 2],
        [&[("nics", "rail*"), ("lanes", "sockets")]; 2],
    ]);
}

/// RR-LANE-8
#[test]
fn long_messages_pass_a_switch_that_drops_long_packets_without_datagrams() {
    play_all(&[
        [&[("nics", "rail*"), ("lanes", "uring"), ("control_lane", "tcp")]; 2],
        [&[("nics", "rail*"), ("lanes", "sockets"), ("control_lane", "tcp")]; 2],
    ]);
}
