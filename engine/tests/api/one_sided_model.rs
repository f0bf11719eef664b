//! Random operations of several origins on one region, valid and not, against a model of its bytes.
//!
//! Each origin has ranges of its own, and one operation at a time in each, so that what has to be
//! there is known after every operation. Everything is on this thread, so that a seed determines
//! the operations; the network determines their order.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common::domain;
use ringrail::{
    Access, Atomic, AtomicOp, Completion, CompletionLevel, Datatype, Endpoint, Error, KeyOptions,
    Owned, Peer, Refusal, Region, RemoteKey, SendOptions,
};

/// Longer than a busy machine takes for anything here.
const LONG: Duration = Duration::from_secs(60);
const GUARD: usize = 128;
const GUARDED: u8 = 0x5a;
/// Of one range: puts of all lengths fit.
const RANGE: usize = 100_000;
/// Ranges of one origin.
const RANGES: usize = 2;
const ORIGINS: usize = 3;
/// Operations on each range.
const STEPS: usize = 150;
const LENGTHS: [usize; 10] = [1, 3, 8, 64, 500, 1400, 3000, 20_000, 33_000, 90_000];

/// A number of a seed's own.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 20) as usize % bound
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }

    fn bytes(&mut self, length: usize) -> Vec<u8> {
        let first = self.below(1 << 30);
        (0..length).map(|at| ((at * 7) ^ (at >> 8) ^ first) as u8).collect()
    }
}

/// The keys to the region; ranges of origins begin at the same offsets of those that open it all.
struct Keys {
    all: RemoteKey,
    read: RemoteKey,
    write: RemoteKey,
    revoked: RemoteKey,
    anothers: RemoteKey,
}

const CELLS: usize = ORIGINS * RANGES * RANGE;

impl Keys {
    fn new(endpoint: &Endpoint<Owned>, region: &Region<Owned>, other_peer: Peer) -> Self {
        let of = |access, peers| {
            let (offset, length) = (GUARD, Some(CELLS));
            region.key(&KeyOptions { access, offset, length, key: None, peers }).unwrap()
        };
        let all = of(Access::all(), None);
        let revoked = of(Access::all(), None);
        region.revoke(revoked, None).unwrap();
        let read = of(Access::REMOTE_READ, None);
        let write = of(Access::REMOTE_WRITE, None);
        let anothers = of(Access::all(), Some(vec![other_peer]));
        assert_eq!(endpoint.counters().accesses_refused, 0);
        Self { all, read, write, revoked, anothers }
    }
}

/// What an operation is to come to.
#[derive(Debug)]
enum Expected {
    Put { offset: usize, bytes: Vec<u8> },
    Got { bytes: Vec<u8> },
    Atomic { offset: usize, before: Vec<u8>, after: Vec<u8> },
    Refused(Refusal),
}

/// One range of one origin.
struct Range {
    base: usize,
    bytes: Vec<u8>,
    waits: Option<Expected>,
    steps: usize,
}

fn options(name: usize) -> SendOptions {
    SendOptions::at(CompletionLevel::Delivery).user_data(name as u64)
}

/// The operations of an integer, by the book.
fn apply(op: AtomicOp, old: u64, operand: u64, compare: u64) -> u64 {
    match op {
        AtomicOp::Sum => old.wrapping_add(operand),
        AtomicOp::Difference => old.wrapping_sub(operand),
        AtomicOp::Product => old.wrapping_mul(operand),
        AtomicOp::Min => old.min(operand),
        AtomicOp::Max => old.max(operand),
        AtomicOp::BitXor => old ^ operand,
        AtomicOp::BitOr => old | operand,
        AtomicOp::BitAnd => old & operand,
        AtomicOp::Write => operand,
        AtomicOp::CompareSwap if compare == old => operand,
        AtomicOp::MaskedSwap => (operand & compare) | (old & !compare),
        _ => old,
    }
}

const OPS: [AtomicOp; 11] = [
    AtomicOp::Sum,
    AtomicOp::Difference,
    AtomicOp::Product,
    AtomicOp::Min,
    AtomicOp::Max,
    AtomicOp::BitXor,
    AtomicOp::BitOr,
    AtomicOp::BitAnd,
    AtomicOp::Write,
    AtomicOp::CompareSwap,
    AtomicOp::MaskedSwap,
];

impl Range {
    /// Posts the next operation.
    fn step(
        &mut self,
        name: usize,
        (end, peer): (&Endpoint<Owned>, Peer),
        it: (&Keys, &mut Random),
    ) {
        let (keys, random) = it;
        self.steps += 1;
        let length = random.pick(&LENGTHS);
        let offset = random.below(RANGE - length + 1);
        let at = |key: RemoteKey, offset: usize| key.at((self.base + offset) as u64);
        let put = |key: RemoteKey, offset: u64, bytes: Vec<u8>| {
            end.post_put(peer, key.at(offset), bytes, options(name)).unwrap();
        };
        let get = |key: RemoteKey, offset: u64, length: usize| {
            end.post_get(peer, key.at(offset), vec![0xee; length], options(name)).unwrap();
        };
        let here = (self.base + offset) as u64;
        self.waits = Some(match random.below(10) {
            0..3 => {
                let bytes = random.bytes(length);
                put(random.pick(&[keys.all, keys.write]), here, bytes.clone());
                Expected::Put { offset, bytes }
            }
            3..5 => {
                get(random.pick(&[keys.all, keys.read]), here, length);
                Expected::Got { bytes: self.bytes[offset..][..length].to_vec() }
            }
            5..7 => {
                let (op, words) = (random.pick(&OPS), random.pick(&[1, 2, 7, 64]));
                // Words of the target's memory, which its guard aligns.
                let offset = random.below((RANGE - 8 * words) / 8) * 8;
                let operands = random.bytes(8 * words);
                let before = self.bytes[offset..][..8 * words].to_vec();
                // Now and then it is what it is compared with.
                let compare =
                    if random.below(2) == 0 { before.clone() } else { random.bytes(8 * words) };
                let word = |of: &[u8], number: usize| {
                    u64::from_ne_bytes(of[8 * number..][..8].try_into().unwrap())
                };
                let after = (0..words)
                    .flat_map(|number| {
                        let [old, operand, compare] =
                            [&before, &operands, &compare].map(|of| word(of, number));
                        apply(op, old, operand, compare).to_ne_bytes()
                    })
                    .collect();
                let compare: &[u8] = if op.takes_compare() { &compare } else { &[] };
                let atomic = Atomic { op, datatype: Datatype::U64, operands: &operands, compare };
                let room = vec![0; 8 * words];
                end.post_fetch_atomic(peer, at(keys.all, offset), &atomic, room, options(name))
                    .unwrap();
                Expected::Atomic { offset, before, after }
            }
            7 => {
                // Not inside.
                let offsets = [CELLS - length + 1, CELLS, usize::MAX, usize::MAX - length + 1];
                let offset = random.pick(&offsets) as u64;
                match random.below(2) {
                    0 => put(keys.all, offset, random.bytes(length)),
                    _ => get(keys.all, offset, length),
                }
                Expected::Refused(Refusal::Range)
            }
            8 => {
                match random.below(2) {
                    0 => put(keys.read, here, random.bytes(length)),
                    _ => get(keys.write, here, length),
                }
                Expected::Refused(Refusal::Rights)
            }
            _ if random.below(3) == 0 => {
                let atomic = Atomic::new(AtomicOp::Sum, Datatype::U64, &[1; 8]);
                end.post_atomic(
                    peer,
                    at(keys.all, 8 * random.below(99) + 3),
                    &atomic,
                    options(name),
                )
                .unwrap();
                Expected::Refused(Refusal::Misaligned)
            }
            _ => {
                let wrong = RemoteKey(keys.all.0 ^ (1 << random.below(64)));
                let key = random.pick(&[wrong, keys.revoked, keys.anothers]);
                match random.below(2) {
                    0 => put(key, here, random.bytes(length)),
                    _ => get(key, here, length),
                }
                Expected::Refused(Refusal::Key)
            }
        });
    }

    /// Its operation has ended. Gives whether it was refused.
    fn end(&mut self, done: &Completion) -> bool {
        let expected = self.waits.take().expect("one end of each");
        let got = || done.buffer.as_ref().and_then(|buffer| buffer.as_slice()).unwrap_or_default();
        match (expected, &done.result) {
            (Expected::Put { offset, bytes }, Ok(_)) => {
                self.bytes[offset..][..bytes.len()].copy_from_slice(&bytes);
            }
            (Expected::Got { bytes }, Ok(_)) => assert!(got() == bytes, "a get of something else"),
            (Expected::Atomic { offset, before, after }, Ok(_)) => {
                assert!(got() == before, "values of before");
                self.bytes[offset..][..after.len()].copy_from_slice(&after);
            }
            (Expected::Refused(expected), Err(Error::Refused { cause, .. })) => {
                assert_eq!(*cause, expected);
                return true;
            }
            (expected, result) => panic!("{result:?} of {expected:?}"),
        }
        false
    }
}

/// One world: a target, and origins that reach it. `loops_back`: the target is one of them.
fn play(settings: &[(&str, &str)], loops_back: bool, seed: u64) {
    let mut random = Random(seed | 1);
    let domain = domain(settings);
    let target = domain.endpoint().unwrap().attach().unwrap();
    let origins: Vec<Endpoint<Owned>> = (usize::from(loops_back)..ORIGINS)
        .map(|_| domain.endpoint().unwrap().attach().unwrap())
        .collect();
    let region = target.allocate_region(CELLS + 2 * GUARD).unwrap();
    region.write(0, &vec![GUARDED; region.len()]).unwrap();
    let itself = target.insert_peer(&target.address()).unwrap();
    let other = domain.endpoint().unwrap().attach().unwrap();
    let other_peer = target.insert_peer(&other.address()).unwrap();
    let keys = Keys::new(&target, &region, other_peer);
    let mut ends: Vec<(&Endpoint<Owned>, Peer)> =
        origins.iter().map(|end| (end, end.insert_peer(&target.address()).unwrap())).collect();
    if loops_back {
        ends.push((&target, itself));
    }
    let mut ranges: Vec<Range> = (0..ORIGINS * RANGES)
        .map(|number| Range {
            base: number * RANGE,
            bytes: vec![GUARDED; RANGE],
            waits: None,
            steps: 0,
        })
        .collect();
    let (mut refused, mut done, since) = (0, Vec::new(), Instant::now());
    while ranges.iter().any(|range| range.waits.is_some() || range.steps < STEPS) {
        assert!(since.elapsed() < LONG, "seed {seed}: something does not end");
        for (name, range) in ranges.iter_mut().enumerate() {
            if range.waits.is_none() && range.steps < STEPS {
                range.step(name, ends[name / RANGES], (&keys, &mut random));
            }
        }
        target.progress().unwrap();
        for (end, _) in &ends {
            end.completions(&mut done, 16).unwrap();
        }
        for done in done.drain(..) {
            refused += u64::from(ranges[done.user_data as usize].end(&done));
        }
    }
    assert_eq!(target.counters().accesses_refused, refused, "seed {seed}: each is counted once");
    let mut bytes = vec![0; region.len()];
    region.read(0, &mut bytes).unwrap();
    let guards = [&bytes[..GUARD], &bytes[GUARD + CELLS..]];
    assert!(guards.iter().all(|guard| guard.iter().all(|&it| it == GUARDED)), "seed {seed}");
    for range in &ranges {
        assert!(bytes[GUARD + range.base..][..RANGE] == range.bytes, "seed {seed}");
    }
}

fn seeds() -> Vec<u64> {
    let one = std::env::var("TEST_OF_RINGRAIL_SEED").ok().and_then(|seed| seed.parse().ok());
    one.map_or_else(|| vec![0x1234_5678, 0x9e37_79b9_7f4a_7c15], |seed| vec![seed])
}

/// RR-RMA-2
#[test]
fn random_operations_leave_what_a_model_of_the_memory_has() {
    for settings in [
        &[("control_lane", "udp")][..],
        &[("control_lane", "udp"), ("bulk_lane", "datagram")],
        &[("control_lane", "tcp")],
        &[("control_lane", "udp"), ("checksum", "true")],
    ] {
        for seed in seeds() {
            for loops_back in [false, true] {
                play(settings, loops_back, seed);
            }
        }
    }
}

/// Eight add to one word, and a thread of the target does so meanwhile: the sum is exact, and none
/// of the eight is left behind.
///
/// RR-RMA-2
#[test]
fn eight_origins_and_their_target_add_up() {
    const ORIGINS: usize = 8;
    const EACH: u64 = 1500;
    for lane in ["udp", "tcp"] {
        let domain = domain(&[("control_lane", lane)]);
        let target = domain.endpoint().unwrap().attach().unwrap();
        let region = target.allocate_region(4096).unwrap();
        let key = region.key(&KeyOptions::new(Access::all())).unwrap();
        let origins: Vec<_> = (0..ORIGINS)
            .map(|_| {
                let end = domain.endpoint().unwrap().attach().unwrap();
                let peer = end.insert_peer(&target.address()).unwrap();
                (end, peer)
            })
            .collect();
        let (word, is_over) = (region.atomic_u64(64).unwrap(), AtomicBool::new(false));
        let (mut posted, mut ended) = ([0; ORIGINS], [0u64; ORIGINS]);
        let mut last = [None; ORIGINS];
        let mut when_first_was_done = None;
        let own = std::thread::scope(|scope| {
            let adder = scope.spawn(|| {
                let mut own = 0;
                while !is_over.load(Ordering::Relaxed) {
                    word.fetch_add(1, Ordering::Relaxed);
                    own += 1;
                }
                own
            });
            let (since, mut done) = (Instant::now(), Vec::new());
            while ended.iter().any(|&ended| ended < EACH) {
                assert!(since.elapsed() < LONG, "{ended:?}");
                target.progress().unwrap();
                for (number, (end, peer)) in origins.iter().enumerate() {
                    if posted[number] == ended[number] && posted[number] < EACH {
                        let atomic =
                            Atomic::new(AtomicOp::Sum, Datatype::U64, &[1, 0, 0, 0, 0, 0, 0, 0]);
                        end.post_fetch_atomic(
                            *peer,
                            key.at(64),
                            &atomic,
                            vec![0; 8],
                            options(number),
                        )
                        .unwrap();
                        posted[number] += 1;
                    }
                    end.completions(&mut done, 4).unwrap();
                    for done in done.drain(..) {
                        done.result.unwrap();
                        let bytes = done.buffer.unwrap().as_slice().unwrap().to_vec();
                        let before = u64::from_ne_bytes(bytes.try_into().unwrap());
                        assert!(last[number] < Some(before), "it only grows");
                        last[number] = Some(before);
                        ended[number] += 1;
                    }
                }
                if when_first_was_done.is_none() && ended.contains(&EACH) {
                    when_first_was_done = Some(ended);
                }
            }
            is_over.store(true, Ordering::Relaxed);
            adder.join().unwrap()
        });
        assert_eq!(word.load(Ordering::Relaxed), own + ORIGINS as u64 * EACH);
        let then = when_first_was_done.unwrap();
        let mean = then.iter().sum::<u64>() / ORIGINS as u64;
        eprintln!("{lane}: additions of each when the first had {EACH}: {then:?}");
        assert!(then.iter().all(|&it| 2 * it >= mean), "one is left behind: {then:?}");
    }
}
