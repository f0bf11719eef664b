//! More engines of one host than any of them polls.

use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::one_host::{LONG, ON, figures, receive, tag};
use crate::common::{domain, pattern};
use ringrail::{CompletionLevel, Endpoint, Owned, Peer, SendOptions};

const RANKS: usize = 14;
const ROUNDS: u64 = 80;
/// The longest message, in bytes.
const LONGEST: usize = 3000;

/// The bytes of a message.
fn text(from: usize, round: u64, number: u64) -> Vec<u8> {
    let seed = (from as u64) << 40 | round << 20 | number;
    pattern(seed, (seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33) as usize % LONGEST)
}

fn inject(endpoint: &Endpoint<Owned>, peer: Peer, number: u64, bytes: &[u8]) {
    let options = SendOptions::at(CompletionLevel::Inject);
    endpoint.send_blocking(peer, tag(number), bytes, options).unwrap();
}

/// A rank, its endpoint, and all ranks as it knows them.
struct Rank<'a> {
    own: usize,
    endpoint: &'a Endpoint<Owned>,
    peers: &'a [Option<Peer>],
}

impl Rank<'_> {
    fn peer(&self, rank: usize) -> Peer {
        self.peers[rank].expect("another rank")
    }

    /// `count` messages to the rank so far behind, and as many from the one so far before.
    fn shift(&self, by: usize, round: u64, count: u64) {
        let (to, from) = ((self.own + by) % RANKS, (self.own + RANKS - by) % RANKS);
        for number in 0..count {
            inject(self.endpoint, self.peer(to), number, &text(self.own, round, number));
        }
        for number in 0..count {
            let bytes = text(from, round, number);
            let got = receive(self.endpoint, self.peer(from), number, bytes.len());
            assert!(got == bytes, "round {round}: {number} of {from} for {}", self.own);
        }
    }
}

/// All ranks write to each other, by other pairs in each round, until the last has received from
/// all.
fn exchange(spin: &str) {
    let settings = [ON, &[("spin", spin)]].concat();
    let endpoints: Vec<_> = (0..RANKS).map(|_| domain(&settings).endpoint().unwrap()).collect();
    let addresses: Vec<_> = endpoints.iter().map(|endpoint| endpoint.address()).collect();
    let (barrier, ready) = (Barrier::new(RANKS), AtomicUsize::new(0));
    let (addresses, barrier, ready) = (&addresses, &barrier, &ready);
    let seed: u64 = rand::random();
    let start = Instant::now();
    thread::scope(|scope| {
        for (own, endpoint) in endpoints.into_iter().enumerate() {
            scope.spawn(move || {
                let endpoint = &endpoint.attach().unwrap();
                let peer =
                    |(rank, address)| (rank != own).then(|| endpoint.insert_peer(address).unwrap());
                let peers: Vec<_> = addresses.iter().enumerate().map(peer).collect();
                let rank = Rank { own, endpoint, peers: &peers };
                // Until all share memory with all.
                let mut before = 0;
                while before < RANKS {
                    assert!(start.elapsed() < LONG, "{} have all local peers", before);
                    (1..RANKS).for_each(|by| rank.shift(by, 0, 1));
                    if figures(endpoint).local_peers == RANKS - 1 {
                        ready.fetch_add(1, Ordering::Relaxed);
                    }
                    barrier.wait();
                    before = ready.load(Ordering::Relaxed);
                    barrier.wait();
                    ready.store(0, Ordering::Relaxed);
                    barrier.wait();
                }
                let (begin, before) = (Instant::now(), figures(endpoint).received);
                for round in 1..=ROUNDS {
                    let random = (seed ^ round).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
                    let (by, count) = (1 + random as usize % (RANKS - 1), 1 + (random >> 8) % 24);
                    rank.shift(by, round, count);
                    // The owner computes, and another thread acts for it.
                    if (round + own as u64).is_multiple_of(40) {
                        thread::sleep(Duration::from_millis(10));
                    }
                }
                let figures = figures(endpoint);
                let took = begin.elapsed();
                // A rank without events wakes for its timers alone.
                assert!(took < LONG, "seed {seed}: {took:?}, {figures:?}");
                // A segment has several messages.
                assert!(figures.received >= before + ROUNDS, "seed {seed}: {figures:?}");
                assert_eq!((figures.strays, figures.broken), (0, 0), "seed {seed}");
                barrier.wait();
            });
        }
    });
}

/// RR-SHM-6, RR-SHM-11: the reader of a ring sleeps, listens or polls.
#[test]
fn ranks_that_sleep_whenever_they_wait_hear_each_other() {
    exchange("0s");
}

/// RR-SHM-11
#[test]
fn ranks_that_poll_before_they_sleep_hear_each_other() {
    exchange("200us");
}
