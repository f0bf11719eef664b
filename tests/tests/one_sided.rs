//! Puts, gets and atomic operations between two hosts, by rails some of which fail meanwhile: each
//! is done once, and whole.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::pair;
use ringrail::{
    Access, Atomic, AtomicOp, CompletionLevel, Datatype, Endpoint, Envelope, KeyOptions, Owned,
    Peer, ReceiveOptions, RemoteKey, Selector, SendOptions,
};
use ringrail_tests::lab::{Host, Lab};
use ringrail_tests::require_lab;

const RAILS: &str = "rails=2,rate=2gbit:2gbit";
/// A stream that does not move for so long has lost something for good.
const STALLED: Duration = Duration::from_secs(30);
/// By a datagram, by several or a stream, in many chunks.
const LENGTHS: [usize; 4] = [8, 3000, 100_000, 1 << 20];
const LONGEST: usize = 1 << 20;
/// Puts and gets under way, each in a place of its own.
const SLOTS: usize = 6;
/// Additions under way.
const ADDITIONS: usize = 4;
/// Behind the slots and a guard.
const WORD: usize = SLOTS * LONGEST + 4096;
const KEY: Envelope = Envelope::tagged(1);
const OVER: Envelope = Envelope::tagged(2);

/// What the origin and who disturbs it know of each other.
#[derive(Default)]
struct Shared {
    is_over: AtomicBool,
    done: AtomicU64,
}

fn content(number: u64, length: usize) -> Vec<u8> {
    (0..length as u64 / 8).flat_map(|at| (number << 32 | at).to_le_bytes()).collect()
}

/// Serves until the origin says that it is over, and how many additions were done.
fn serve(endpoint: &Endpoint<Owned>, peer: Peer) {
    let region = endpoint.allocate_region(WORD + 8).unwrap();
    let key = region.key(&KeyOptions::new(Access::all())).unwrap();
    endpoint.send_blocking(peer, KEY, &key.0.to_le_bytes(), SendOptions::new()).unwrap();
    let mut said = [0; 8];
    let over = Selector::from_peer(peer, OVER);
    endpoint.receive_blocking(over, &mut said, ReceiveOptions::new()).unwrap();
    let word = region.atomic_u64(WORD).unwrap().load(Ordering::Acquire);
    assert_eq!(word, u64::from_le_bytes(said), "each addition is done once");
    let mut guard = vec![1; WORD - SLOTS * LONGEST];
    region.read(SLOTS * LONGEST, &mut guard).unwrap();
    assert!(guard.iter().all(|&byte| byte == 0), "something was written between");
    // The origin hears that this came.
    let until = Instant::now() + Duration::from_millis(300);
    while Instant::now() < until {
        endpoint.progress().unwrap();
    }
}

/// Puts, gets what it has put, and adds, until it is over.
fn reach(endpoint: &Endpoint<Owned>, peer: Peer, shared: &Shared) {
    let mut key = [0; 8];
    endpoint
        .receive_blocking(Selector::from_peer(peer, KEY), &mut key, ReceiveOptions::new())
        .unwrap();
    let key = RemoteKey(u64::from_le_bytes(key));
    let options = |name: usize| SendOptions::at(CompletionLevel::Delivery).user_data(name as u64);
    let add = |name: usize| {
        let sum = Atomic::new(AtomicOp::Sum, Datatype::U64, &[1, 0, 0, 0, 0, 0, 0, 0]);
        let at = key.at(WORD as u64);
        endpoint.post_fetch_atomic(peer, at, &sum, vec![0; 8], options(name)).unwrap();
    };
    let (mut number, mut added, mut under_way) = (0, 0u64, SLOTS + ADDITIONS);
    // What is in each slot, and whether it is being read.
    let mut slots = [(0u64, 0usize, false); SLOTS];
    let mut seen = std::collections::HashSet::new();
    let mut put = |slot: usize, buffer: Vec<u8>, slots: &mut [(u64, usize, bool); SLOTS]| {
        drop(buffer);
        number += 1;
        let length = LENGTHS[number as usize % LENGTHS.len()];
        slots[slot] = (number, length, false);
        let at = key.at((slot * LONGEST) as u64);
        endpoint.post_put(peer, at, content(number, length), options(slot)).unwrap();
    };
    (0..SLOTS).for_each(|slot| put(slot, Vec::new(), &mut slots));
    (SLOTS..SLOTS + ADDITIONS).for_each(add);
    let (mut done, mut moved_at) = (Vec::new(), Instant::now());
    while under_way > 0 {
        if endpoint.wait(&mut done, 16, Some(Duration::from_millis(100))).unwrap() > 0 {
            moved_at = Instant::now();
        }
        assert!(moved_at.elapsed() < STALLED, "{under_way} operations do not end");
        let is_over = shared.is_over.load(Ordering::SeqCst);
        for done in done.drain(..) {
            done.result.unwrap();
            shared.done.fetch_add(1, Ordering::SeqCst);
            let name = done.user_data as usize;
            let buffer = done.buffer.unwrap().into_vec().unwrap();
            if name >= SLOTS {
                added += 1;
                assert!(seen.insert(buffer), "a value of before was there twice");
                if is_over {
                    under_way -= 1
                } else {
                    add(name)
                }
                continue;
            }
            let (number, length, is_read) = slots[name];
            if is_read {
                assert!(buffer == content(number, length), "put {number} of {length} bytes");
                if is_over {
                    under_way -= 1
                } else {
                    put(name, buffer, &mut slots)
                }
                continue;
            }
            slots[name].2 = true;
            let at = key.at((name * LONGEST) as u64);
            endpoint.post_get(peer, at, vec![0xee; length], options(name)).unwrap();
        }
    }
    endpoint.flush(peer, SendOptions::new()).unwrap();
    endpoint.send_blocking(peer, OVER, &added.to_le_bytes(), options(0)).unwrap();
}

struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Operations must go on ending.
fn assert_moves(shared: &Shared, what: &str) {
    let (before, start) = (shared.done.load(Ordering::SeqCst), Instant::now());
    while shared.done.load(Ordering::SeqCst) < before + 40 {
        assert!(start.elapsed() < STALLED, "nothing ends: {what}");
        thread::sleep(Duration::from_millis(1));
    }
}

fn played(settings: &[(&str, &str)], disturb: impl FnOnce(&Lab, &Shared) + Send) {
    let lab = Lab::build(&RAILS.parse().unwrap()).unwrap();
    let shared = Shared::default();
    let all = [&[("nics", "rail*")], settings].concat();
    thread::scope(|scope| {
        scope.spawn(|| {
            let _over = Over(&shared.is_over);
            assert_moves(&shared, "before anything is disturbed");
            disturb(&lab, &shared);
        });
        pair(&lab, &all, |end, peer| reach(end, peer, &shared), serve);
    });
}

/// RR-RMA-2, RR-RAIL-4
#[test]
fn a_rail_that_is_cut_in_the_middle_costs_no_operation_and_repeats_none() {
    require_lab!();
    for settings in [&[][..], &[("bulk_lane", "datagram")]] {
        played(settings, |lab, shared| {
            for rail in [0, 1, 0] {
                lab.blackhole(rail).unwrap();
                assert_moves(shared, "one rail is cut");
                thread::sleep(Duration::from_millis(150));
                lab.heal(rail).unwrap();
                thread::sleep(Duration::from_millis(300));
            }
        });
    }
}

/// RR-RMA-2, RR-RAIL-7
#[test]
fn an_interface_that_goes_down_costs_no_operation_and_repeats_none() {
    require_lab!();
    played(&[], |lab, shared| {
        for (host, rail) in [(Host::A, 1), (Host::B, 0)] {
            lab.link_down(host, rail).unwrap();
            assert_moves(shared, "an interface is down");
            lab.link_up(host, rail).unwrap();
            thread::sleep(Duration::from_millis(400));
        }
        lab.flap(0, Duration::from_millis(100), Duration::from_millis(800)).unwrap();
        assert_moves(shared, "a rail has flapped");
    });
}
