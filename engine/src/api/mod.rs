//! What a user touches: domain, endpoint, operations, queues.

mod domain;
mod endpoint;
mod operation;
mod options;

pub use domain::Domain;
pub use endpoint::{Counters, Detached, Endpoint, Owned};
pub use operation::Operation;
pub use options::{Rejected, SendOptions};
