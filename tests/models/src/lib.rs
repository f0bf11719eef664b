//! Models of the lock-free parts of the engine: loom and shuttle run the engine's own files.
//!
//! A package of its own, so that builds of the other tests need neither.

#![cfg(test)]
#![allow(clippy::duplicate_mod, reason = "loom and shuttle run the same files")]

mod handover;
mod ring_model;
mod shared_model;
mod shared_schedules;
mod wire;
