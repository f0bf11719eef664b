//! Models of lock-free parts, for loom and shuttle, which switch the stacks of threads.

#![allow(clippy::duplicate_mod, reason = "loom and shuttle run the same files")]

mod handover;
mod ring_model;
mod shared_model;
mod shared_schedules;
