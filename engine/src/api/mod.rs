//! What a user touches: domain, endpoint, operations, queues.

mod blocking;
mod datagrams;
mod domain;
mod endpoint;
mod hints;
mod kernel;
mod operation;
mod options;
mod queues;
mod receive;
mod send;
mod statistics;

pub use datagrams::{DatagramState, DroppedDatagrams};
pub use domain::Domain;
pub use endpoint::{Detached, Endpoint, Owned};
pub use kernel::{KernelFeature, kernel_features};
pub use operation::Operation;
pub use options::{Rejected, SendOptions};
