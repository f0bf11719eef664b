//! ringrail moves messages between HPC processes over commodity Ethernet NICs.

mod api;
#[cfg(feature = "bench")]
#[doc(hidden)]
pub mod bench;
pub mod bootstrap;
mod driver;
mod memory;
mod progress;
mod proto;
pub mod settings;
mod telemetry;
pub mod topology;
mod types;
mod wire;

pub use api::{
    Detached, Domain, Endpoint, KernelFeature, Operation, Owned, Rejected, SendOptions,
    kernel_features,
};
pub use memory::{Buffer, Layout, MemoryError, RawSpan, RegionSlice, Segment, Shaped};
pub use proto::effects::Level;
pub use telemetry::Counters;
pub use types::{
    Address, Completion, Envelope, Error, Event, OperationId, OperationKind, Outcome, Peer,
    PeerFailure, Selector, Status,
};
