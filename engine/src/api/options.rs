//! How operations are posted.

use std::time::Duration;

use crate::proto::effects::CompletionLevel;
use crate::types::Hint;

/// How a send is posted.
///
/// ```
/// # use ringrail::{CompletionLevel, SendOptions};
/// let options = SendOptions::at(CompletionLevel::Delivery).user_data(7);
/// let hurried = SendOptions { more: false, ..options };
/// ```
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
    /// Remote data: the receiver is told in [`Status::data`](crate::Status) (`FI_REMOTE_CQ_DATA`).
    pub data: Option<u64>,
    /// It is deferred until all sends that its endpoint posted before it to the same peer are
    /// complete, and what is posted to that peer behind it is deferred as long (`FI_FENCE`).
    /// Complete is a send when the peer's engine has acknowledged it, at the least, whatever its
    /// level: so is one that was injected. One at [`CompletionLevel::Match`], and one that is
    /// pulled, is complete when it is matched, so that a fence behind it waits for its receive. One
    /// that failed or was cancelled is complete, too; where the fenced send itself is cancelled,
    /// nothing waits any more. Sends of other endpoints or to other peers do not wait.
    pub fence: bool,
    /// Comes back in the [`Completion`](crate::Completion), unchanged (`op_context`).
    pub user_data: u64,
    /// Of blocking calls: how long they wait; `None`: as long as it takes.
    pub timeout: Option<Duration>,
}

impl SendOptions {
    /// Completes when the buffer may be reused, with everything else unsaid.
    pub const fn new() -> Self {
        Self::at(CompletionLevel::Inject)
    }

    /// Completes at `level`.
    pub const fn at(level: CompletionLevel) -> Self {
        Self {
            level,
            silent: false,
            more: false,
            hint: None,
            data: None,
            fence: false,
            user_data: 0,
            timeout: None,
        }
    }

    /// As before, and it says what the message is for.
    #[must_use]
    pub const fn hint(self, hint: Hint) -> Self {
        Self { hint: Some(hint), ..self }
    }

    /// As before, with remote data.
    #[must_use]
    pub const fn data(self, data: u64) -> Self {
        Self { data: Some(data), ..self }
    }

    /// As before, behind a fence ([`Self::fence`](#structfield.fence)).
    #[must_use]
    pub const fn fence(self) -> Self {
        Self { fence: true, ..self }
    }

    /// As before, with what the completion gives back.
    #[must_use]
    pub const fn user_data(self, user_data: u64) -> Self {
        Self { user_data, ..self }
    }

    /// As before; a blocking call waits no longer than that.
    #[must_use]
    pub const fn timeout(self, timeout: Duration) -> Self {
        Self { timeout: Some(timeout), ..self }
    }
}

/// How a receive is posted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ReceiveOptions {
    /// Only a failure is reported (selective completion). The buffer is dropped on success, so this
    /// is for memory that the poster keeps.
    pub silent: bool,
    /// Comes back in the [`Completion`](crate::Completion), unchanged (`op_context`).
    pub user_data: u64,
    /// Of blocking calls: how long they wait; `None`: as long as it takes.
    pub timeout: Option<Duration>,
}

impl ReceiveOptions {
    /// With everything unsaid.
    pub const fn new() -> Self {
        Self { silent: false, user_data: 0, timeout: None }
    }

    /// As before, with what the completion gives back.
    #[must_use]
    pub const fn user_data(self, user_data: u64) -> Self {
        Self { user_data, ..self }
    }

    /// As before; a blocking call waits no longer than that.
    #[must_use]
    pub const fn timeout(self, timeout: Duration) -> Self {
        Self { timeout: Some(timeout), ..self }
    }
}
