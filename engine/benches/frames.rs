//! Writing frames into a segment, and splitting it on the other side.
//! `cargo bench -p ringrail --features bench --bench frames`

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use ringrail::bench::{Decoded, Segment, decode};

/// Payloads of eager frames, in bytes: a small message, a cache line and more, a page, the
/// default eager limit.
const PAYLOADS: [usize; 5] = [8, 64, 512, 4096, 16_384];
/// Bytes that one grant asks for.
const GRANTED: u32 = 128 << 10;

/// Fills a segment with eager frames and returns what the other side has to find in it.
fn fill_eager(segment: &mut Segment, payload: &[u8]) -> Decoded {
    let mut expected = Decoded::default();
    while segment.push_eager(expected.frames, black_box(payload)) {
        expected.sum += expected.frames;
        expected.frames += 1;
        expected.bytes += payload.len() as u64;
    }
    expected
}

/// The same with grants.
fn fill_grants(segment: &mut Segment) -> Decoded {
    let mut expected = Decoded::default();
    while segment.push_grant(black_box(expected.bytes), GRANTED) {
        expected.sum += expected.bytes;
        expected.frames += 1;
        expected.bytes += u64::from(GRANTED);
    }
    expected
}

/// Measures one kind of frames both ways.
fn both(
    c: &mut Criterion,
    name: &str,
    parameter: usize,
    mut fill: impl FnMut(&mut Segment) -> Decoded,
) {
    let mut segment = Segment::new();
    let expected = fill(&mut segment);
    let bytes = segment.seal().to_vec();
    assert_eq!(decode(&bytes), Some(expected));
    segment.clear();
    let mut group = c.benchmark_group(name);
    group.throughput(Throughput::Elements(expected.frames));
    group.bench_function(BenchmarkId::new("encode", parameter), |b| {
        b.iter(|| {
            let filled = fill(&mut segment);
            black_box(segment.seal());
            segment.clear();
            filled
        });
    });
    group.bench_function(BenchmarkId::new("decode", parameter), |b| {
        b.iter(|| decode(black_box(&bytes)));
    });
    group.finish();
}

fn frames(c: &mut Criterion) {
    for length in PAYLOADS {
        let payload = vec![7; length];
        both(c, "eager", length, |segment| fill_eager(segment, &payload));
    }
    both(c, "grant", GRANTED as usize, fill_grants);
}

criterion_group!(benches, frames);
criterion_main!(benches);
