//! Floors of one host alone.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::between;
use crate::cli::FloorName;
use crate::output::{Report, histogram};

/// A measurement that has yet to run.
type Measurement = Box<dyn FnOnce() -> Result<Report, String>>;

/// The measurements of one of them, with the size of each in bytes.
pub(super) fn measurements(floor: FloorName) -> Vec<(usize, Measurement)> {
    match floor {
        FloorName::Memcpy => [4 << 10, 256 << 10, 64 << 20]
            .map(|size| (size, Box::new(move || Ok(memcpy(size))) as Measurement))
            .into(),
        FloorName::Syscall => vec![(0, Box::new(|| Ok(syscall())))],
        FloorName::ShmLatency => vec![(8, Box::new(line))],
        FloorName::CmaStream => streams(between::cma_stream),
        FloorName::ShmStream => streams(between::shm_stream),
        _ => vec![(0, Box::new(|| wake(cores())))],
    }
}

/// The measurements of a stream, which take the sizes of messages and of all of them.
fn streams(stream: fn(usize, usize) -> Result<Report, String>) -> Vec<(usize, Measurement)> {
    let measure = |size| move || between::alone(move || stream(size, between::BYTES));
    between::SIZES.map(|size| (size, Box::new(measure(size)) as Measurement)).into()
}

pub(super) fn named(name: &str, size: usize, iterations: u64) -> Report {
    Report {
        test: format!("floor {name}"),
        size_bytes: size,
        iterations,
        threads: 1,
        verified: true,
        ..Report::default()
    }
}

fn memcpy(size: usize) -> Report {
    let iterations = ((1u64 << 30) / size as u64).max(4);
    let (source, mut target) = (vec![7u8; size], vec![0u8; size]);
    let start = Instant::now();
    for _ in 0..iterations {
        std::hint::black_box(&mut target).copy_from_slice(std::hint::black_box(&source));
    }
    let seconds = start.elapsed().as_secs_f64().max(1e-9);
    let mut report = named("memcpy", size, iterations);
    report.bandwidth_mb_s = Some(size as f64 * iterations as f64 / seconds / 1e6);
    report.verified = source == target;
    report
}

fn syscall() -> Report {
    let iterations = 1_000_000;
    let mut histogram = histogram();
    for _ in 0..iterations / 100 {
        let start = Instant::now();
        for _ in 0..100 {
            // SAFETY: getppid takes nothing and cannot fail.
            std::hint::black_box(unsafe { libc::getppid() });
        }
        histogram.saturating_record((start.elapsed().as_nanos() / 100) as u64);
    }
    let mut report = named("syscall", 0, iterations);
    report.latencies(&histogram);
    report
}

/// The first two cores, as far as there are some.
pub(super) fn cores() -> [Option<core_affinity::CoreId>; 2] {
    let cores = core_affinity::get_core_ids().unwrap_or_default();
    [0, 1].map(|at| cores.get(at).copied())
}

/// Pins the calling thread, where the host says how.
pub(super) fn pin(core: Option<core_affinity::CoreId>) {
    if let Some(core) = core {
        core_affinity::set_for_current(core);
    }
}

/// A line with a number of eight bytes, passed to and fro: half of a round trip. Lines come in
/// pairs, which a core may fetch together, so the two are apart.
fn line() -> Result<Report, String> {
    const BATCH: u64 = 64;
    #[repr(align(128))]
    struct Line(AtomicU64);
    let iterations = 200_000_u64;
    let lines = Arc::new([Line(AtomicU64::new(0)), Line(AtomicU64::new(0))]);
    let [this, other] = cores();
    let theirs = Arc::clone(&lines);
    let echo = std::thread::spawn(move || {
        pin(other);
        for number in 1..=iterations {
            while theirs[0].0.load(Ordering::Acquire) != number {
                std::hint::spin_loop();
            }
            theirs[1].0.store(number, Ordering::Release);
        }
    });
    pin(this);
    let mut histogram = histogram();
    let mut number = 0;
    for _ in 0..iterations / BATCH {
        let start = Instant::now();
        for _ in 0..BATCH {
            number += 1;
            lines[0].0.store(number, Ordering::Release);
            while lines[1].0.load(Ordering::Acquire) != number {
                std::hint::spin_loop();
            }
        }
        histogram.saturating_record((start.elapsed().as_nanos() as u64 / (2 * BATCH)).max(1));
    }
    echo.join().map_err(|_| "the echo panicked".to_owned())?;
    let mut report = named("shm-latency", 8, iterations);
    report.latencies(&histogram);
    Ok(report)
}

/// From the call on the first core that wakes a sleeping thread on the second one until that runs.
pub(super) fn wake(cores: [Option<core_affinity::CoreId>; 2]) -> Result<Report, String> {
    let iterations = 2000u64;
    let base = Instant::now();
    let woken_at = Arc::new(AtomicU64::new(0));
    let seen = Arc::clone(&woken_at);
    let [this, other] = cores;
    let sleeper = std::thread::spawn(move || {
        pin(other);
        for _ in 0..iterations {
            std::thread::park();
            seen.store(base.elapsed().as_nanos() as u64, Ordering::Release);
        }
    });
    pin(this);
    let mut histogram = histogram();
    for _ in 0..iterations {
        // Long enough for the other side to fall asleep.
        std::thread::sleep(Duration::from_micros(100));
        woken_at.store(0, Ordering::Release);
        let begin = base.elapsed().as_nanos() as u64;
        sleeper.thread().unpark();
        loop {
            let at = woken_at.load(Ordering::Acquire);
            if at != 0 {
                histogram.saturating_record(at.saturating_sub(begin).max(1));
                break;
            }
            std::hint::spin_loop();
        }
    }
    sleeper.join().map_err(|_| "the sleeper panicked".to_owned())?;
    let mut report = named("wake", 0, iterations);
    report.latencies(&histogram);
    Ok(report)
}
