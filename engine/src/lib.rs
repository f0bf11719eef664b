//! ringrail moves messages between HPC processes over commodity Ethernet NICs: tagged messages,
//! one-sided operations and atomics, over shared memory, UDP, AF_XDP and TCP, on all NICs of a
//! host.
//!
//! # A complete program
//!
//! Two endpoints of one process. Between processes, exchange [`Endpoint::address`] first, by any
//! means or with [`bootstrap`].
//!
//! ```
//! use ringrail::{Domain, Envelope, ReceiveOptions, Selector, SendOptions, settings::Settings};
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let settings = Settings::isolated().set("listen_address", "127.0.0.1").insecure(true);
//!     let domain = Domain::with_settings(settings.build()?)?;
//!     let (left, right) = (domain.endpoint()?.share()?, domain.endpoint()?.share()?);
//!     let peer = left.insert_peer(&right.address())?;
//!     left.send_blocking(peer, Envelope::tagged(7), b"hello", SendOptions::new())?;
//!     let mut text = [0; 5];
//!     let from = Selector::from_any(Envelope::tagged(7));
//!     right.receive_blocking(from, &mut text, ReceiveOptions::new())?;
//!     assert_eq!(&text, b"hello");
//!     Ok(())
//! }
//! ```
//!
//! # Objects
//!
//! A [`Domain`] has the settings and the registered memory. [`Domain::endpoint`] opens an
//! [`Endpoint`], which listens and has an [`Address`]. A thread that attaches it owns it and sends
//! and receives without locks; an endpoint that is shared can be used by any thread. Peers are
//! inserted by address and named by a [`Peer`]; the first operation connects.
//!
//! # Which call when
//!
//! | to | call |
//! |---|---|
//! | use an endpoint in one thread, at the lowest cost | [`Endpoint::attach`] |
//! | use it in any thread | [`Endpoint::share`]; with a progress thread [`Endpoint::dedicate`] |
//! | send or receive borrowed memory, and wait | [`send_blocking`], [`receive_blocking`] |
//! | overlap with computation, or `.await` | [`send`], [`receive`]: an [`Operation`] |
//! | have many operations outstanding | [`post_send`], [`post_receive`], [`CompletionQueue`] |
//! | send a few bytes without a completion | [`inject`] |
//! | use memory that the program keeps (`unsafe`) | [`post_send_raw`], [`post_receive_raw`] |
//! | look at a message before receiving it | [`peek`], or [`claim`] |
//! | read and write memory of a peer | [`register`] there; [`put`], [`get`], [`fetch_add`] here |
//! | wait until one-sided operations are executed | [`flush`] |
//! | count completions only | [`Counter`] |
//! | connect by request and accept | [`listen`], [`request`], [`accept`] |
//! | learn of lost peers | [`EventQueue`] |
//!
//! [`send_blocking`]: Endpoint::send_blocking
//! [`receive_blocking`]: Endpoint::receive_blocking
//! [`send`]: Endpoint::send
//! [`receive`]: Endpoint::receive
//! [`post_send`]: Endpoint::post_send
//! [`post_receive`]: Endpoint::post_receive
//! [`inject`]: Endpoint::inject
//! [`post_send_raw`]: Endpoint::post_send_raw
//! [`post_receive_raw`]: Endpoint::post_receive_raw
//! [`peek`]: Endpoint::peek
//! [`claim`]: Endpoint::claim
//! [`register`]: Endpoint::register
//! [`put`]: Endpoint::put
//! [`get`]: Endpoint::get
//! [`fetch_add`]: Endpoint::fetch_add
//! [`flush`]: Endpoint::flush
//! [`listen`]: Endpoint::listen
//! [`request`]: Endpoint::request
//! [`accept`]: Endpoint::accept
//!
//! # Features
//!
//! | feature | |
//! |---|---|
//! | `uring` (default) | the io_uring driver; without it, plain sockets |
//! | `xdp` | datagrams as AF_XDP frames; needs clang, m4 and libelf to build |
//!
//! Linux only. The minimum supported Rust version is 1.92.

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
mod refused_call;
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
    Atomic, Attached, ClaimedMessage, CompletionQueue, Counter, CounterReader, CounterWait,
    DatagramState, Detached, Domain, DroppedDatagrams, Endpoint, EndpointOptions, EventQueue,
    KernelFeature, KeyOptions, ListenOptions, Listener, NextEvent, Operation, Owned,
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
    SendProtocol, SendRange, SendTransport, SharedMemoryFigures, SharedMemoryState, Status,
    TimeOut, TimeOutOutcome,
};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
#[doc = include_str!("../docs/guide/getting-started.md")]
struct ReadmeDoctests;
