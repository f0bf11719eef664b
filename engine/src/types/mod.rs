//! What users and the engine loop both speak of: addresses, completions, errors.

pub(crate) mod address;
pub(crate) mod atomic;
mod bits;
pub(crate) mod completion;
pub(crate) mod connection;
pub(crate) mod descriptors;
pub(crate) mod error;
pub(crate) mod event;
pub(crate) mod frames;
pub(crate) mod hint;
pub(crate) mod kind;
pub(crate) mod rail;
pub(crate) mod region;
pub(crate) mod send_protocol;
pub(crate) mod shared_memory;
pub(crate) mod statistics;
pub(crate) mod time_out;

pub use address::Address;
pub use atomic::{AtomicOp, Datatype};
pub use completion::{
    Completed, Completion, Envelope, Failed, OperationId, OperationKind, Peer, Selector, Status,
};
pub(crate) use completion::{OperationName, Outcome};
pub use connection::{ConnectionEnd, ConnectionId, ConnectionRefusal, PRIVATE_DATA_MAX, RequestId};
pub use error::{Cause, Error, ErrorKind, PeerFailure};
pub use event::Event;
pub use frames::{FrameDrops, FrameFigures, FrameState};
pub use hint::Hint;
pub use rail::{PathCause, PathState, RAILS_MAX, Rail, RailRole};
pub use region::{Access, KeyError, Refusal};
pub use send_protocol::{SendProtocol, SendRange, SendTransport};
pub use shared_memory::{SharedMemoryFigures, SharedMemoryState};
pub use statistics::{LaneStatistics, NicCounters, PathChange, PathStatistics, PauseCounters};
pub use time_out::{TimeOut, TimeOutOutcome};
