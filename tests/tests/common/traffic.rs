//! Messages there and back between two endpoints, whose numbers tell what is in them.
#![allow(dead_code, reason = "each test uses some of it")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ringrail::{Endpoint, Envelope, Owned, Peer, ReceiveOptions, Selector, SendOptions};

use crate::books::{figures_of, frames_of};

/// How long anything may take.
pub(crate) const LIMIT: Duration = Duration::from_secs(120);

/// A message with a length and content that its number tells.
pub(crate) fn message(number: u64) -> Vec<u8> {
    const LENGTHS: [usize; 9] = [8, 0, 64, 1000, 1460, 3000, 9000, 16_000, 40_000];
    let length = LENGTHS[number as usize % LENGTHS.len()];
    (0..length as u64).map(|at| (at.wrapping_mul(31) ^ number) as u8).collect()
}

pub(crate) fn send(endpoint: &Endpoint<Owned>, peer: Peer, number: u64) {
    let label = Envelope::tagged(number);
    endpoint.send_blocking(peer, label, &message(number), SendOptions::new()).unwrap();
}

pub(crate) fn receive(endpoint: &Endpoint<Owned>, peer: Peer, number: u64) {
    let mut into = vec![0; 40_000];
    let selector = Selector::from_peer(peer, Envelope::tagged(number));
    let status = endpoint.receive_blocking(selector, &mut into, ReceiveOptions::new()).unwrap();
    assert!(into[..status.length] == message(number), "message {number}");
}

/// There and back, `rounds` times.
pub(crate) fn ping_pong(
    endpoint: &Endpoint<Owned>,
    peer: Peer,
    is_first: bool,
    numbers: std::ops::Range<u64>,
) {
    for number in numbers {
        if is_first {
            send(endpoint, peer, number);
            receive(endpoint, peer, number);
        } else {
            receive(endpoint, peer, number);
            send(endpoint, peer, number);
        }
    }
}

/// What both sides say before they go on.
pub(crate) type Both = [AtomicBool; 2];

pub(crate) fn both() -> Both {
    [const { AtomicBool::new(false) }; 2]
}

/// Exchanges messages until frames fare on both sides as wanted; returns the next number.
pub(crate) fn rounds_until(
    endpoint: &Endpoint<Owned>,
    peer: Peer,
    is_first: bool,
    mut next: u64,
    both: &Both,
    is_reached: impl Fn(&Endpoint<Owned>) -> bool,
) -> u64 {
    let deadline = Instant::now() + LIMIT;
    loop {
        ping_pong(endpoint, peer, is_first, next..next + 50);
        next += 50;
        both[usize::from(is_first)].fetch_or(is_reached(endpoint), Ordering::SeqCst);
        assert!(Instant::now() < deadline, "{:?}", frames_of(endpoint));
        // Both leave after the same round: the first one tells.
        let label = Envelope::tagged(u64::MAX);
        let mut is_over = [u8::from(both.iter().all(|one| one.load(Ordering::SeqCst)))];
        if is_first {
            endpoint.send_blocking(peer, label, &is_over, SendOptions::new()).unwrap();
        } else {
            endpoint
                .receive_blocking(
                    Selector::from_peer(peer, label),
                    &mut is_over,
                    ReceiveOptions::new(),
                )
                .unwrap();
        }
        if is_over == [1] {
            return next;
        }
    }
}

/// Exchanges messages until frames were used both ways, on both sides.
pub(crate) fn until_frames(
    endpoint: &Endpoint<Owned>,
    peer: Peer,
    is_first: bool,
    both: &Both,
) -> u64 {
    rounds_until(endpoint, peer, is_first, 0, both, |endpoint| {
        let figures = figures_of(endpoint);
        figures.sent > 100 && figures.received > 100
    })
}
