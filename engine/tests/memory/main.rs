//! What messages, peers and matching cost: allocations, bytes, descriptors, instructions.

#[path = "../common/mod.rs"]
mod common;
#[path = "../../src/counting.rs"]
mod counting;

mod allocations;
mod idle_peer_heap;
mod idle_peers;
#[cfg(feature = "bench")]
mod matching_allocations;
#[cfg(feature = "bench")]
mod matching_cost;
mod memory_bound;
mod one_sided_bursts;
mod passers_by;
mod unexpected_headers;
