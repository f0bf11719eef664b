//! What a user touches: domain, endpoint, operations, queues.

mod blocking;
mod claims;
mod connections;
mod datagrams;
mod domain;
mod endpoint;
mod engine_ref;
mod events;
mod hints;
mod kernel;
mod mode;
mod one_sided;
mod operation;
mod options;
mod owned;
mod queues;
mod receive;
mod region;
mod send;
mod shared;
mod sharing;
mod statistics;

pub use claims::ClaimedMessage;
pub use connections::{ListenOptions, Listener};
pub use datagrams::{DatagramState, DroppedDatagrams};
pub use domain::Domain;
pub use endpoint::{Detached, Endpoint, EndpointOptions};
pub use events::{EventQueue, NextEvent};
pub use kernel::{KernelFeature, kernel_features};
pub use mode::{Attached, Owned, Shared};
pub use one_sided::Atomic;
pub use operation::Operation;
pub use options::{ReceiveOptions, SendOptions};
pub use queues::CompletionQueue;
pub use region::{KeyOptions, Region, RegionCounters, RemoteAddress, RemoteKey};
pub use sharing::SharingCounters;
