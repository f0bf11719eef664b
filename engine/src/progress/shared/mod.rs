//! Shared engines: several threads post to one engine, and wait for its completions.
//!
//! ```text
//!  post ──> SharedProgress (who waits, sleeps, rings) ──> Combiner (now, or queued) ──> QueueLock
//!  wait ──────┘          └──> WaitSet (sleeping threads)                    (lock and queue)
//! ```
//!
//! Completions are read without the lock: `Chunks` is a queue with one writer, the holder, that any
//! thread reads.
//!
//! This module is independent of engines: the state and the requests are type parameters. Its
//! models are `tests/models/src/shared_model.rs` (each order that the memory model allows) and
//! `tests/models/src/shared_schedules.rs` (more threads, random orders).

mod chunks;
mod combiner;
mod count;
#[cfg(test)]
mod posts;
mod queue;
mod sync;
#[cfg(test)]
mod tests;
mod wait;
mod wait_set;

pub(super) use chunks::{ChunkWriter, Chunks, chunks};
pub(super) use combiner::{CombinerCounts, CombinerGuard, PostOutcome};
pub(crate) use count::SharedCounter;
pub(super) use wait::{Doorbell, Progress, SharedProgress};
pub(super) use wait_set::Keys;
