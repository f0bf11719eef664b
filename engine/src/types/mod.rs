//! What users and the engine loop both speak of: addresses, completions, errors.

pub(crate) mod address;
pub(crate) mod completion;
pub(crate) mod error;
pub(crate) mod frames;
pub(crate) mod hint;
pub(crate) mod kind;
pub(crate) mod rail;
pub(crate) mod statistics;

pub use address::Address;
pub use completion::{
    Completed, Completion, Envelope, Event, Failed, OperationId, OperationKind, Peer, Selector,
    Status,
};
pub(crate) use completion::{OperationName, Outcome};
pub use error::{Cause, Error, ErrorKind, PeerFailure};
pub use frames::{FrameDrops, FrameFigures, FrameState};
pub use hint::Hint;
pub use rail::{PathCause, PathState, RAILS_MAX, Rail, RailRole};
pub use statistics::{LaneStatistics, NicCounters, PathChange, PathStatistics, PauseCounters};
