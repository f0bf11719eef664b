//! How operations are posted.

use std::fmt;

use crate::memory::Buffer;
use crate::proto::effects::CompletionLevel;
use crate::types::{Error, Hint};

/// How a send is posted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SendOptions {
    /// How far the send must have come before it completes.
    pub level: CompletionLevel,
    /// Only a failure is reported (selective completion). The buffer is dropped on success.
    pub silent: bool,
    /// More sends follow at once (`FI_MORE`): do not hurry this one.
    pub more: bool,
    /// What it is for; `None`: what the endpoint says ([`Endpoint::set_hint`],
    /// [`Endpoint::set_context_hint`]), at first the setting `hint`.
    ///
    /// [`Endpoint::set_hint`]: crate::Endpoint::set_hint
    /// [`Endpoint::set_context_hint`]: crate::Endpoint::set_context_hint
    pub hint: Option<Hint>,
}

impl SendOptions {
    /// Completes at `level`.
    pub const fn level(level: CompletionLevel) -> Self {
        Self { level, silent: false, more: false, hint: None }
    }

    /// As before, and it says what the message is for.
    #[must_use]
    pub const fn hint(self, hint: Hint) -> Self {
        Self { hint: Some(hint), ..self }
    }
}

/// A buffer that was not taken, and why.
#[derive(Debug)]
pub struct Rejected {
    /// Why.
    pub error: Error,
    /// What was handed over.
    pub buffer: Buffer,
}

impl fmt::Display for Rejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

// It says what its error says, so that one is not its source: a report would say it twice.
impl std::error::Error for Rejected {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.source()
    }
}

impl From<Rejected> for Error {
    fn from(rejected: Rejected) -> Self {
        rejected.error
    }
}
