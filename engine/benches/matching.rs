//! Matching at depth 1 to 10 000, and the hash of its bins beside others.
//! `cargo bench -p ringrail --features bench --bench matching`

use std::hash::{BuildHasher, Hash, Hasher};
use std::hint::black_box;

use criterion::measurement::WallTime;
use criterion::{
    BenchmarkGroup, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main,
};
use ringrail::bench::{Matching, MatchingHash, Post};

const DEPTHS: [u64; 5] = [1, 10, 100, 1_000, 10_000];
const CONTEXT: u64 = 1;
const SOURCES: u32 = 16;

/// How a receive names what it wants: (name, source, ignored tag bits) from the sender of the
/// message that is to match.
type Kind = (&'static str, fn(u32) -> Option<u32>, u64);

/// Tags are multiples of 256, so that ignored bits leave them different.
const KINDS: [Kind; 3] =
    [("directed", Some, 0), ("any-source", |_| None, 0), ("wildcard-tag", |_| None, 0xff)];

fn envelope(i: u64) -> (u32, u64) {
    (i as u32 % SOURCES, i << 8)
}

fn post(matching: &mut Matching, (_, source, ignore): Kind, i: u64) -> Option<u32> {
    let (sender, tag) = envelope(i);
    match matching.post(source(sender), CONTEXT, tag, ignore, i as u32) {
        Post::Matched(message) => Some(message),
        Post::Waiting(_) => None,
    }
}

fn arrive(matching: &mut Matching, i: u64) -> Option<u32> {
    let (sender, tag) = envelope(i);
    matching.arrive(sender, CONTEXT, tag, i as u32)
}

/// Walks over all places of a queue of `depth` in an order that caches and predictors do not know.
fn next_place(place: u64, depth: u64) -> u64 {
    (place + depth * 5 / 8 + 1) % depth
}

fn group<'a>(c: &'a mut Criterion, name: &str) -> BenchmarkGroup<'a, WallTime> {
    let mut group = c.benchmark_group(name);
    group.throughput(Throughput::Elements(1));
    group
}

/// One match and what takes its place: the depth stays.
fn posted(c: &mut Criterion) {
    let mut group = group(c, "posted");
    for kind in KINDS {
        for depth in DEPTHS {
            let mut matching = Matching::new(42);
            for i in 0..depth {
                assert_eq!(post(&mut matching, kind, i), None);
            }
            let mut place = 0;
            group.bench_function(BenchmarkId::new(kind.0, depth), |b| {
                b.iter(|| {
                    place = next_place(place, depth);
                    assert_eq!(arrive(&mut matching, place), Some(place as u32));
                    post(&mut matching, kind, place)
                });
            });
            assert_eq!(matching.posted_len() as u64, depth);
        }
    }
    group.finish();
}

/// One match and what takes its place: the depth stays.
fn unexpected(c: &mut Criterion) {
    let mut group = group(c, "unexpected");
    for kind in KINDS {
        for depth in DEPTHS {
            let mut matching = Matching::new(42);
            for i in 0..depth {
                assert_eq!(arrive(&mut matching, i), None);
            }
            let mut place = 0;
            group.bench_function(BenchmarkId::new(kind.0, depth), |b| {
                b.iter(|| {
                    place = next_place(place, depth);
                    assert_eq!(post(&mut matching, kind, place), Some(place as u32));
                    arrive(&mut matching, place)
                });
            });
            assert_eq!(matching.unexpected_len() as u64, depth);
        }
    }
    group.finish();
}

/// The hash of one bin key: ours, foldhash with its public constants, and SipHash-1-3.
fn hash(c: &mut Criterion) {
    let mut group = group(c, "hash");
    let ours = MatchingHash::new(42);
    let mut key = (CONTEXT, 0, 3);
    group.bench_function("ringrail", |b| {
        b.iter(|| {
            key.1 += 1;
            let (context, tag, source) = black_box(key);
            ours.hash(context, tag, source)
        });
    });
    let foldhash = foldhash::fast::FixedState::with_seed(42);
    group.bench_function("foldhash", |b| {
        b.iter(|| {
            key.1 += 1;
            foldhash.hash_one(black_box(key))
        });
    });
    group.bench_function("siphash-1-3", |b| {
        b.iter(|| {
            key.1 += 1;
            let mut hasher = std::hash::DefaultHasher::new();
            black_box(key).hash(&mut hasher);
            hasher.finish()
        });
    });
    group.finish();
}

criterion_group!(benches, posted, unexpected, hash);
criterion_main!(benches);
