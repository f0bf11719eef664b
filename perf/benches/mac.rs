//! What an 8-byte tag costs: candidates for headers of chunks and for whole datagrams.
//!
//! `cargo bench -p ringrail-perf --bench mac`. All build with a Rust toolchain alone; keys are set
//! up beforehand, once per lane and direction as the engine would.

use std::hint::black_box;

use aes_gcm::aead::{AeadInOut, KeyInit};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use highway::{HighwayHash, HighwayHasher, Key};
use siphasher::sip::SipHasher24;

/// A chunk header, a small datagram, one that fills the usual path MTU.
const SIZES: [usize; 4] = [32, 64, 256, 1400];

fn first_half(tag: &[u8]) -> u64 {
    let mut half = [0; 8];
    half.copy_from_slice(&tag[..8]);
    u64::from_le_bytes(half)
}

fn bench(c: &mut Criterion, name: &str, mut tag: impl FnMut(u64, &[u8]) -> u64) {
    let mut group = c.benchmark_group(name);
    for size in SIZES {
        let bytes: Vec<u8> = (0..size).map(|at| (at * 31) as u8).collect();
        group.throughput(Throughput::Bytes(size as u64));
        let mut number = 0;
        group.bench_with_input(BenchmarkId::from_parameter(size), &bytes, |b, bytes| {
            b.iter(|| {
                number += 1;
                tag(black_box(number), black_box(bytes))
            });
        });
    }
    group.finish();
}

fn candidates(c: &mut Criterion) {
    let key = [7u8; 32];
    let sip = SipHasher24::new_with_key(&[7; 16]);
    bench(c, "siphash-2-4", |_, bytes| sip.hash(bytes));
    let highway_key = Key([1, 2, 3, 4]);
    bench(c, "highwayhash-64", |_, bytes| HighwayHasher::new(highway_key).hash64(bytes));
    bench(c, "blake3-keyed", |_, bytes| first_half(blake3::keyed_hash(&key, bytes).as_bytes()));
    let mut aes_key = aes_gcm::Key::<aes_gcm::Aes128Gcm>::default();
    aes_key.copy_from_slice(&key[..16]);
    let gcm = aes_gcm::Aes128Gcm::new(&aes_key);
    bench(c, "aes-128-gmac", |number, bytes| {
        let mut nonce = aes_gcm::Nonce::default();
        nonce[..8].copy_from_slice(&number.to_le_bytes());
        let empty = (&mut [][..]).into();
        gcm.encrypt_inout_detached(&nonce, bytes, empty).map_or(0, |tag| first_half(&tag))
    });
    bench(c, "aegis-128l", |number, bytes| {
        let mut nonce = [0; 16];
        nonce[..8].copy_from_slice(&number.to_le_bytes());
        let state = aegis::aegis128l::Aegis128L::<16>::new(&[7; 16], &nonce);
        let mut nothing = [];
        first_half(&state.encrypt_in_place(&mut nothing, bytes))
    });
}

criterion_group!(benches, candidates);
criterion_main!(benches);
