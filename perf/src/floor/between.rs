//! Floors of long messages between processes of one host: by reading the memory of the other one,
//! and through memory that both have mapped.

use std::cell::UnsafeCell;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use super::local::{cores, named, pin};
use crate::output::Report;

/// Sizes of messages, in bytes.
pub(super) const SIZES: [usize; 4] = [64 << 10, 256 << 10, 1 << 20, 16 << 20];

/// Bytes that go in each measurement.
pub(super) const BYTES: usize = 2 << 30;
/// Messages under way, whose memory is used by turns.
const WINDOW: usize = 4;

/// Pieces of the pool, and bytes of one: what both cores have in their caches.
const PIECES: usize = 4;
const PIECE_BYTES: usize = 32 << 10;

/// Runs a measurement on a thread of its own: it pins itself, and the next one is to choose its
/// cores from all that there are.
pub(super) fn alone(
    measure: impl FnOnce() -> Result<Report, String> + Send + 'static,
) -> Result<Report, String> {
    let measured = std::thread::spawn(measure).join();
    measured.map_err(|_| "the floor panicked".to_owned())?
}

/// Messages that one thread reads from the memory of its process, as it would from that of another
/// one, by `process_vm_readv`.
pub(super) fn cma_stream(size: usize, bytes: usize) -> Result<Report, String> {
    let failed = |error: io::Error| format!("floor cma-stream: {error}");
    let count = bytes / size;
    let sources: Vec<Vec<u8>> = (0..WINDOW).map(|at| vec![at as u8 + 1; size]).collect();
    let mut targets = vec![vec![0_u8; size]; WINDOW];
    pin(cores()[0]);
    let process = std::process::id() as libc::pid_t;
    let start = Instant::now();
    for at in 0..count {
        let source = &sources[at % WINDOW];
        let target = &mut targets[at % WINDOW];
        let theirs = libc::iovec { iov_base: source.as_ptr().cast_mut().cast(), iov_len: size };
        let ours = libc::iovec { iov_base: target.as_mut_ptr().cast(), iov_len: size };
        // SAFETY: the kernel writes `size` bytes to `target`, which has them and is borrowed for
        // the call, and reads as many from `source`.
        let got =
            unsafe { libc::process_vm_readv(process, &raw const ours, 1, &raw const theirs, 1, 0) };
        if got != size as isize {
            return Err(failed(io::Error::last_os_error()));
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    let mut report = named("cma-stream", size, count as u64);
    report.bandwidth_mb_s = Some((size * count) as f64 / seconds.max(1e-9) / 1e6);
    report.verified = sources.iter().zip(&targets).take(count).all(|(from, to)| from == to);
    Ok(report)
}

/// A piece of the pool. `state` is twice the number of laps in which it was written and read, and
/// one more while it is written and has yet to be read.
#[repr(align(128))]
struct Piece {
    state: AtomicU64,
    bytes: UnsafeCell<[u8; PIECE_BYTES]>,
}

// SAFETY: the bytes belong to the writer while `state` is even, and to the reader while it is odd.
unsafe impl Sync for Piece {}

/// Messages that one thread copies into a pool and another one out of it, piece by piece.
pub(super) fn shm_stream(size: usize, bytes: usize) -> Result<Report, String> {
    let count = bytes / size;
    let pool: Arc<[Piece]> = (0..PIECES)
        .map(|_| Piece { state: AtomicU64::new(0), bytes: UnsafeCell::new([0; PIECE_BYTES]) })
        .collect();
    let pieces = size.div_ceil(PIECE_BYTES);
    let theirs = Arc::clone(&pool);
    let [this, other] = cores();
    let writer = std::thread::spawn(move || {
        pin(other);
        let sources: Vec<Vec<u8>> = (0..WINDOW).map(|at| vec![at as u8 + 1; size]).collect();
        for at in 0..count {
            for (number, bytes) in sources[at % WINDOW].chunks(PIECE_BYTES).enumerate() {
                let (piece, lap) = place(at * pieces + number);
                let piece = &theirs[piece];
                while piece.state.load(Ordering::Acquire) != 2 * lap {
                    std::hint::spin_loop();
                }
                // SAFETY: an even state: the piece is the writer's.
                unsafe { (&mut *piece.bytes.get())[..bytes.len()].copy_from_slice(bytes) };
                piece.state.store(2 * lap + 1, Ordering::Release);
            }
        }
    });
    pin(this);
    let mut targets = vec![vec![0_u8; size]; WINDOW];
    let start = Instant::now();
    for at in 0..count {
        for (number, bytes) in targets[at % WINDOW].chunks_mut(PIECE_BYTES).enumerate() {
            let (piece, lap) = place(at * pieces + number);
            let piece = &pool[piece];
            while piece.state.load(Ordering::Acquire) != 2 * lap + 1 {
                std::hint::spin_loop();
            }
            // SAFETY: an odd state: the piece is the reader's.
            unsafe { bytes.copy_from_slice(&(&*piece.bytes.get())[..bytes.len()]) };
            piece.state.store(2 * lap + 2, Ordering::Release);
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    writer.join().map_err(|_| "the writer panicked".to_owned())?;
    let mut report = named("shm-stream", size, count as u64);
    report.bandwidth_mb_s = Some((size * count) as f64 / seconds.max(1e-9) / 1e6);
    let is_right = |(at, bytes): (usize, &Vec<u8>)| bytes.iter().all(|&it| it == at as u8 + 1);
    report.verified = targets.iter().take(count).enumerate().all(is_right);
    Ok(report)
}

/// Where the piece of that number in the stream goes, and in which lap.
fn place(number: usize) -> (usize, u64) {
    (number % PIECES, (number / PIECES) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_between_processes_comes_whole() {
        // With a piece that is not full. Few: on busy cores each may wait for a time slice.
        let size = PIECE_BYTES * 5 / 2;
        for measure in [cma_stream, shm_stream] {
            let report = measure(size, 8 * size).unwrap();
            assert!(report.verified && report.bandwidth_mb_s.is_some_and(|it| it > 0.0));
        }
    }
}
