//! ringrail moves messages between HPC processes over commodity Ethernet NICs.

mod api;
pub mod bootstrap;
mod driver;
mod memory;
mod progress;
mod proto;
mod telemetry;
mod topology;
mod wire;
