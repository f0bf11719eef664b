//! ringrail moves messages between HPC processes over commodity Ethernet NICs.
//!
//! A [`Domain`] holds settings and registered memory; its [`Domain::endpoint`] listens and has an
//! [`Address`]; a thread that attaches it ([`Endpoint::attach`]) owns it, makes all its progress,
//! and sends and receives without a lock. Addresses travel by any means, [`bootstrap`] has three.
//!
//! Buffers in flight belong to the engine: operations take a [`Buffer`] by move and give it back,
//! blocking calls borrow, and raw memory goes through `unsafe` functions.

#[macro_use]
mod hooks;

mod api;
#[cfg(feature = "bench")]
#[doc(hidden)]
pub mod bench;
pub mod bootstrap;
#[cfg(test)]
mod counting;
mod driver;
mod files;
mod forks;
mod memory;
mod netlink;
mod progress;
mod proto;
mod secret;
pub mod settings;
#[cfg(any(test, feature = "sim"))]
mod snapshot;
#[cfg(any(test, feature = "sim"))]
#[doc(hidden)]
pub mod swarm;
mod telemetry;
pub mod topology;
mod types;
mod wire;

pub use api::{
    Atomic, Attached, ClaimedMessage, CompletionQueue, Counted, Counter, CounterReader,
    DatagramState, Detached, Domain, DroppedDatagrams, Endpoint, EndpointOptions, EventQueue,
    KernelFeature, KeyOptions, ListenOptions, Listener, MappedRegion, NextEvent, Operation, Owned,
    ReceiveOptions, Region, RegionCounters, RemoteAddress, RemoteKey, Rows, SendOptions, Shared,
    SharingCounters, kernel_features,
};
#[doc(hidden)]
pub use forks::INHERITED;
pub use memory::{Buffer, Layout, MemoryError, RawSpan, RegionSlice, Segment, Shaped};
pub use progress::counters::CounterEvents;
pub use proto::effects::CompletionLevel;
pub use secret::JobSecret;
pub use telemetry::{Counters, Statistics, prometheus};
pub use types::{
    Access, Address, AtomicOp, Cause, Completed, Completion, ConnectionEnd, ConnectionId,
    ConnectionRefusal, Datatype, Envelope, Error, ErrorKind, Event, Failed, FrameDrops,
    FrameFigures, FrameState, Hint, KeyError, LaneStatistics, NicCounters, OperationId,
    OperationKind, PRIVATE_DATA_MAX, PathCause, PathChange, PathState, PathStatistics,
    PauseCounters, Peer, PeerFailure, RAILS_MAX, Rail, RailRole, Refusal, RequestId, Selector,
    SharedMemoryFigures, SharedMemoryState, Status, TimeOut, TimeOutOutcome,
};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeDoctests;
