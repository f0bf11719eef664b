//! What a user touches: domain, endpoint, operations, queues.

mod blocking;
mod claims;
mod datagrams;
mod domain;
mod endpoint;
mod engine_ref;
mod hints;
mod kernel;
mod mode;
mod operation;
mod options;
mod owned;
mod queues;
mod receive;
mod send;
mod shared;
mod sharing;
mod statistics;

pub use claims::ClaimedMessage;
pub use datagrams::{DatagramState, DroppedDatagrams};
pub use domain::Domain;
pub use endpoint::{Detached, Endpoint, EndpointOptions};
pub use kernel::{KernelFeature, kernel_features};
pub use mode::{Attached, Owned, Shared};
pub use operation::Operation;
pub use options::{ReceiveOptions, SendOptions};
pub use queues::CompletionQueue;
pub use sharing::SharingCounters;
