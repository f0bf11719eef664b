//! Posts to a shared engine, uncontended and lost, beside a mutex.
//! `cargo bench -p ringrail --bench shared`

#![allow(dead_code, reason = "the bench does not need all of the files")]

/// No bug is planted here.
macro_rules! planted {
    ($bug:ident) => {
        false
    };
}

#[cfg(any(test, feature = "sim"))]
#[path = "../src/hooks/threads.rs"]
mod simulated_threads;
#[cfg(any(test, feature = "sim"))]
mod hooks {
    pub(crate) use super::simulated_threads as threads;
}

#[path = "../src/progress/shared/chunks.rs"]
mod chunks;
#[path = "../src/progress/shared/combiner.rs"]
mod combiner;
#[path = "../src/progress/shared/posts.rs"]
mod posts;
#[path = "../src/progress/shared/queue.rs"]
mod queue;
#[path = "../src/progress/shared/sync.rs"]
mod sync;
#[path = "../src/progress/shared/wait.rs"]
mod wait;
#[path = "../src/progress/shared/wait_set.rs"]
mod wait_set;

use std::hint::black_box;
use std::sync::Mutex;
use std::thread;
use std::time::Instant;

use combiner::Combiner;
use criterion::{Criterion, criterion_group, criterion_main};
use posts::{post_shared, post_to};
use wait::{Doorbell, SharedProgress};
use wait_set::Keys;

/// As large as the request of a small send.
type Request = [u64; 8];

fn apply(sum: &mut u64, request: Request) {
    *sum += request[0];
}

struct Silent;

impl Doorbell<u64> for Silent {
    fn needs_wake(&self, _: &u64) -> bool {
        false
    }

    fn ring(&self) {}
}

fn posts(c: &mut Criterion) {
    let mut group = c.benchmark_group("post");
    let combiner = Combiner::new(0);
    let request = [1; 8];
    let add = |sum: &mut u64| *sum += 1;
    let post = || post_to(&combiner, add, || black_box(request), apply);
    group.bench_function("uncontended", |b| b.iter(post));
    let shared = SharedProgress::new(0, Silent);
    let post_shared = || post_shared(&shared, add, || black_box(request), apply);
    group.bench_function("uncontended, with a sleep to look after", |b| b.iter(post_shared));
    let mutex = Mutex::new(0);
    group.bench_function("uncontended, a mutex", |b| {
        b.iter(|| *mutex.lock().expect("no thread panics") += 1);
    });
    group.bench_function("lost", |b| {
        b.iter_custom(|count| {
            let guard = combiner.lock();
            let start = Instant::now();
            for _ in 0..count {
                let _ = black_box(post());
            }
            let elapsed = start.elapsed();
            let mut guard = guard;
            while guard.drain(apply).applied > 0 {}
            guard.release(apply);
            elapsed
        });
    });
    group.bench_function("lost, and applied by the holder", |b| {
        b.iter(|| {
            let guard = combiner.lock();
            for _ in 0..32 {
                let _ = post();
            }
            guard.release(apply)
        });
    });
    group.bench_function("contended by another thread, each", |b| {
        b.iter_custom(|count| {
            let start = Instant::now();
            thread::scope(|scope| {
                for _ in 0..2 {
                    scope.spawn(|| {
                        for _ in 0..count / 2 {
                            let _ = black_box(post());
                        }
                    });
                }
            });
            start.elapsed()
        });
    });
    group.bench_function("notification that nobody sleeps for", |b| {
        b.iter(|| shared.notify(Keys::of(1)));
    });
}

criterion_group!(benches, posts);
criterion_main!(benches);
