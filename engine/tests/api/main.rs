//! The public interface: what calls, completions, events and settings of engines do. Engines are in
//! one process and meet over loopback, but for tests that start another one.

#[path = "../common/mod.rs"]
mod common;

mod authentication;
mod captures;
mod caretaker;
mod caretaker_idle;
mod checksum;
mod closing;
mod closing_regions;
mod completion_queues;
mod connections;
mod counters;
mod datagrams;
mod descriptors;
mod dropped_receives;
mod endpoint;
mod faults;
mod fences;
mod fork;
mod heat;
mod hints;
mod loopback;
mod middleware;
mod model;
mod one_sided;
mod one_sided_examples;
mod one_sided_load;
mod one_sided_model;
mod refused_calls;
mod silence;
mod statistics;
mod stencil;
mod tagged_features;
mod time_outs;
mod unexpected;
mod verbose;
mod waiting;
