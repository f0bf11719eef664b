//! Endpoints that threads share, and what threads of one domain have in common.

#[path = "../common/mod.rs"]
mod common;

mod domain_engines;
mod shared;
mod shared_idle;
mod shared_left;
mod shared_memory;
mod shared_threads;
