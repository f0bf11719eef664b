//! Tests between two hosts. One program, which is linked once; `cargo xtask test` runs each module
//! in a process of its own.

#[path = "common/books.rs"]
mod books;
mod common;
#[path = "common/job.rs"]
mod job;
#[path = "../../engine/tests/common/peer_process.rs"]
mod peer_process;
#[path = "common/program.rs"]
mod program;
#[path = "common/rail_stream.rs"]
mod rail_stream;
#[path = "common/raw.rs"]
mod raw;
#[path = "common/stream.rs"]
mod stream;
#[path = "common/traces.rs"]
mod traces;
#[path = "common/traffic.rs"]
mod traffic;

mod addresses;
mod checksums;
mod datagrams_only;
mod ended_processes;
mod endpoints;
mod firewalls;
mod frames;
mod helper;
mod hostile;
mod jobs;
mod lab;
mod lab_rails;
mod layouts;
mod liveness;
mod lossy;
mod networks;
mod one_sided;
mod packet_sizes;
mod queues;
mod rails;
mod silent_lanes;
mod topology;
