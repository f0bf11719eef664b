//! Options of operations.

use std::time::Duration;

use crate::proto::effects::CompletionLevel;
use crate::types::Hint;

/// Options of a send, and of an operation on the memory of a peer.
///
/// ```
/// # let settings = ringrail::settings::Settings::isolated().set("listen_address", "127.0.0.1");
/// # let domain = ringrail::Domain::with_settings(settings.insecure(true).build()?)?;
/// # let (left, right) = (domain.endpoint()?.share()?, domain.endpoint()?.share()?);
/// # let peer = left.insert_peer(&right.address())?;
/// use std::time::Duration;
/// use ringrail::{CompletionLevel, Envelope, SendOptions};
///
/// // Returns when the engine of the peer has the message, or after 10 s with an error.
/// let options = SendOptions::at(CompletionLevel::Delivery).timeout(Duration::from_secs(10));
/// left.send_blocking(peer, Envelope::tagged(1), b"important", options)?;
/// // Two posts that are sent together; only a failure would be reported.
/// let options = SendOptions::new().silent(true);
/// left.post_send(peer, Envelope::tagged(2), vec![1; 8], options.more(true))?;
/// left.post_send(peer, Envelope::tagged(3), vec![2; 8], options)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub struct SendOptions {
    /// The level at which the operation completes.
    pub level: CompletionLevel,
    /// Only a failure is reported (selective completion, `FI_SELECTIVE_COMPLETION`). The buffer is
    /// dropped on success.
    pub silent: bool,
    /// More sends follow at once (`FI_MORE`): this one may be delayed to be sent with them.
    pub more: bool,
    /// The purpose of the message; `None`: the hint of the endpoint ([`Endpoint::set_hint`],
    /// [`Endpoint::set_context_hint`]), by default the setting `hint`.
    ///
    /// [`Endpoint::set_hint`]: crate::Endpoint::set_hint
    /// [`Endpoint::set_context_hint`]: crate::Endpoint::set_context_hint
    pub hint: Option<Hint>,
    /// Remote data, which the receiver gets in [`Status::data`](crate::Status)
    /// (`FI_REMOTE_CQ_DATA`).
    pub data: Option<u64>,
    /// The send, and all that its endpoint posts after it to the same peer, are deferred until the
    /// earlier sends of the endpoint to that peer are complete (`FI_FENCE`). For a fence, a send is
    /// complete at the earliest when the peer's engine has acknowledged it, whatever its level, and
    /// also if it was injected. A send at [`CompletionLevel::Match`], and one by rendezvous, is
    /// complete when it is matched, so that a fence waits for its receive. A send that failed or
    /// was cancelled is complete; cancelling the fenced send ends the wait. Sends of other
    /// endpoints, or to other peers, do not wait.
    pub fence: bool,
    /// Returned in the [`Completion`](crate::Completion) (`op_context`).
    pub user_data: u64,
    /// The time-out of a blocking call; `None`: no limit. Other calls ignore it.
    pub timeout: Option<Duration>,
}

impl SendOptions {
    /// The operation completes when its buffer may be reused ([`CompletionLevel::Inject`]).
    #[must_use]
    pub const fn new() -> Self {
        Self::at(CompletionLevel::Inject)
    }

    /// The operation completes at `level`.
    #[must_use]
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

    /// Sets whether only a failure is reported ([`Self::silent`](#structfield.silent)).
    #[must_use]
    pub const fn silent(self, silent: bool) -> Self {
        Self { silent, ..self }
    }

    /// Sets the level.
    #[must_use]
    pub const fn level(self, level: CompletionLevel) -> Self {
        Self { level, ..self }
    }

    /// Sets whether more sends follow at once ([`Self::more`](#structfield.more)).
    #[must_use]
    pub const fn more(self, more: bool) -> Self {
        Self { more, ..self }
    }

    /// Sets the hint.
    #[must_use]
    pub const fn hint(self, hint: Hint) -> Self {
        Self { hint: Some(hint), ..self }
    }

    /// Sets the remote data.
    #[must_use]
    pub const fn data(self, data: u64) -> Self {
        Self { data: Some(data), ..self }
    }

    /// Sets whether the operation has a fence ([`Self::fence`](#structfield.fence)).
    #[must_use]
    pub const fn fence(self, fence: bool) -> Self {
        Self { fence, ..self }
    }

    /// Sets the value that the completion returns.
    #[must_use]
    pub const fn user_data(self, user_data: u64) -> Self {
        Self { user_data, ..self }
    }

    /// Sets the time-out of a blocking call.
    #[must_use]
    pub const fn timeout(self, timeout: Duration) -> Self {
        Self { timeout: Some(timeout), ..self }
    }
}

/// Options of a receive.
///
/// ```
/// # let settings = ringrail::settings::Settings::isolated().set("listen_address", "127.0.0.1");
/// # let domain = ringrail::Domain::with_settings(settings.insecure(true).build()?)?;
/// # let (left, right) = (domain.endpoint()?.share()?, domain.endpoint()?.share()?);
/// # let peer = left.insert_peer(&right.address())?;
/// use std::time::Duration;
/// use ringrail::{Envelope, ErrorKind, ReceiveOptions, Selector, SendOptions};
///
/// let options = ReceiveOptions::new().timeout(Duration::from_millis(1));
/// let from = Selector::from_any(Envelope::tagged(9));
/// let error = right.receive_blocking(from, &mut [0; 8], options).unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::TimedOut);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub struct ReceiveOptions {
    /// Only a failure is reported (selective completion, `FI_SELECTIVE_COMPLETION`). The buffer is
    /// dropped on success, so this is of use for borrowed memory.
    pub silent: bool,
    /// Returned in the [`Completion`](crate::Completion) (`op_context`).
    pub user_data: u64,
    /// The time-out of a blocking call; `None`: no limit. Other calls ignore it.
    pub timeout: Option<Duration>,
}

impl ReceiveOptions {
    /// The default options.
    #[must_use]
    pub const fn new() -> Self {
        Self { silent: false, user_data: 0, timeout: None }
    }

    /// Sets whether only a failure is reported ([`Self::silent`](#structfield.silent)).
    #[must_use]
    pub const fn silent(self, silent: bool) -> Self {
        Self { silent, ..self }
    }

    /// Sets the value that the completion returns.
    #[must_use]
    pub const fn user_data(self, user_data: u64) -> Self {
        Self { user_data, ..self }
    }

    /// Sets the time-out of a blocking call.
    #[must_use]
    pub const fn timeout(self, timeout: Duration) -> Self {
        Self { timeout: Some(timeout), ..self }
    }
}
