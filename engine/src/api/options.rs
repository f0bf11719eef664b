//! How operations are posted.

use crate::memory::Buffer;
use crate::proto::effects::Level;
use crate::types::Error;

/// How a send is posted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SendOptions {
    /// How far the send must have come before it completes.
    pub level: Level,
    /// Only a failure is reported (selective completion). The buffer is dropped on success.
    pub silent: bool,
    /// More sends follow at once (`FI_MORE`): do not hurry this one.
    pub more: bool,
}

impl SendOptions {
    /// Completes at `level`.
    pub const fn level(level: Level) -> Self {
        Self { level, silent: false, more: false }
    }
}

/// A buffer that was not taken, and why.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct Rejected {
    /// Why.
    #[source]
    pub error: Error,
    /// What was handed over.
    pub buffer: Buffer,
}

impl From<Rejected> for Error {
    fn from(rejected: Rejected) -> Self {
        rejected.error
    }
}
