//! Errors.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use super::address::Address;
use super::completion::Status;
pub use super::kind::ErrorKind;
use super::time_out::TimeOut;
pub use crate::proto::failure::PeerFailure;
use crate::proto::regions::Refusal;
use crate::refused_call::{descriptor_cure, number_of};

/// The error that led to another one, shared by its clones. It does not implement
/// [`Error`](std::error::Error) itself, so that [`source`](std::error::Error::source) returns the
/// inner error, which can be downcast.
#[derive(Clone)]
pub struct Cause(Arc<dyn std::error::Error + Send + Sync>);

impl Deref for Cause {
    type Target = dyn std::error::Error + Send + Sync;

    fn deref(&self) -> &Self::Target {
        &*self.0
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

/// The error of a call or an operation. Each text names the cause and the cure.
///
/// ```
/// # let settings = ringrail::settings::Settings::isolated().set("listen_address", "127.0.0.1");
/// # let domain = ringrail::Domain::with_settings(settings.insecure(true).build()?)?;
/// # let (left, right) = (domain.endpoint()?.share()?, domain.endpoint()?.share()?);
/// # let peer = left.insert_peer(&right.address())?;
/// use ringrail::{Envelope, Error, ErrorKind, ReceiveOptions, Selector, SendOptions};
///
/// left.send_blocking(peer, Envelope::tagged(1), b"too long", SendOptions::new())?;
/// let from = Selector::from_any(Envelope::tagged(1));
/// match right.receive_blocking(from, &mut [0; 3], ReceiveOptions::new()) {
///     Err(Error::Truncated { status, .. }) => assert_eq!(status.length, 8),
///     other => panic!("a receive of 3 bytes got 8: {other:?}"),
/// }
/// left.remove_peer(peer)?;
/// let error = left.connect(peer, None).unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::UnknownPeer); // for programs; the text is for people
/// eprintln!("{error} (errno {})", error.errno());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A limit is reached for now: make progress, then post again.
    #[error("at a limit ({0}): make progress and post again")]
    WouldBlock(&'static str),
    /// A limit is reached that progress does not lift.
    #[error("at a limit that progress does not lift: {0}")]
    Limit(&'static str),
    /// The peer failed, left or cannot be reached.
    #[error("peer {address} {failure}")]
    Peer {
        /// The peer's address; in a box, since each completion has room for an error.
        address: Box<Address>,
        /// What happened to it.
        failure: PeerFailure,
        /// The status of the operation, as far as it is known; `None` for an error of a call.
        status: Option<Box<Status>>,
    },
    /// The handle names no peer of this engine: the peer was removed, or the handle belongs to
    /// another engine.
    #[error(
        "no such peer: it was removed, or the handle belongs to another engine; insert the peer's \
         address with an endpoint of this engine, and use the handle that this returns"
    )]
    UnknownPeer,
    /// No peer is left that could send what a receive from any source waits for, at an endpoint
    /// with [`fail_without_peers`](crate::Endpoint::fail_without_peers).
    #[error(
        "no peer is left that could send this: all peers of the engine were lost or removed; \
         insert or connect to one, then post again"
    )]
    NoPeerLeft,
    /// The message is longer than the receive; the buffer contains its beginning.
    #[error(
        "truncated: the message has {} bytes, the receive {capacity}; post a larger one",
        status.length
    )]
    Truncated {
        /// Source, context, tag, and length of the whole message.
        status: Box<Status>,
        /// Length of the receive in bytes.
        capacity: u64,
    },
    /// The peer refused an operation on its memory; nothing was read or written.
    #[error("peer {address} refused an operation on its memory: {cause}")]
    Refused {
        /// The peer's address.
        address: Box<Address>,
        /// Why.
        cause: Refusal,
        /// The status of the operation, as far as it is known.
        status: Option<Box<Status>>,
    },
    /// Memory is still in use by an operation of a peer.
    #[error("an operation of peer {address} still has the memory: wait for it, or remove the peer")]
    Busy {
        /// Where the peer's engine listens.
        address: Box<Address>,
    },
    /// A flush is complete, and the target has refused this many earlier operations that had
    /// completed at [`CompletionLevel::Inject`](crate::CompletionLevel::Inject).
    #[error(
        "the target refused {0} operations that were posted without an answer; post them at \
         level Delivery to learn why"
    )]
    Unflushed(u64),
    /// The operation was cancelled.
    #[error("cancelled")]
    Cancelled,
    /// A deadline passed.
    #[error("{0}")]
    TimedOut(Box<TimeOut>),
    /// The memory given cannot be used like this.
    #[error(transparent)]
    Memory(#[from] crate::memory::MemoryError),
    /// A message, an address or an argument is out of range.
    #[error("{0}")]
    Misuse(Arc<str>),
    /// Settings cannot be used: mostly a [`SettingsError`](crate::settings::SettingsError).
    #[error(transparent)]
    Settings(Cause),
    /// The operating system refused something that an endpoint cannot do without.
    #[error("{what}: {cause}")]
    System {
        /// The attempted action, and the cure.
        what: Arc<str>,
        /// The cause: an [`std::io::Error`] where a system call failed.
        #[source]
        cause: Cause,
    },
}

impl Error {
    pub(crate) fn system(
        what: impl Into<Arc<str>>,
        cause: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        let (mut what, cause) = (what.into(), cause.into());
        let number = cause.downcast_ref::<std::io::Error>().and_then(std::io::Error::raw_os_error);
        if number == Some(libc::EMFILE) {
            what = format!("{what}; {}", descriptor_cure()).into();
        }
        Self::System { what, cause: Cause(cause.into()) }
    }

    pub(crate) fn settings(cause: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self::Settings(Cause(Arc::new(cause)))
    }

    pub(crate) fn misuse(what: impl Into<Arc<str>>) -> Self {
        Self::Misuse(what.into())
    }

    /// Returns the kind of this error, for programs.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::WouldBlock(_) => ErrorKind::WouldBlock,
            Self::Limit(_) => ErrorKind::Limit,
            Self::Peer { failure, .. } => ErrorKind::of_failure(failure),
            Self::UnknownPeer => ErrorKind::UnknownPeer,
            Self::NoPeerLeft => ErrorKind::NoPeerLeft,
            Self::Truncated { .. } => ErrorKind::Truncated,
            Self::Refused { .. } | Self::Unflushed(_) => ErrorKind::RemoteAccess,
            Self::Busy { .. } => ErrorKind::Busy,
            Self::Cancelled => ErrorKind::Cancelled,
            Self::TimedOut(_) => ErrorKind::TimedOut,
            Self::Memory(_) => ErrorKind::Memory,
            Self::Misuse(_) => ErrorKind::Misuse,
            Self::Settings(_) => ErrorKind::Settings,
            Self::System { .. } => ErrorKind::System,
        }
    }

    /// Returns the Linux error number: that of the system call that failed, else that of the
    /// [kind](ErrorKind::errno).
    pub fn errno(&self) -> i32 {
        let mut cause: Option<&(dyn std::error::Error + 'static)> = match self {
            Self::Settings(cause) => Some(&**cause),
            other => std::error::Error::source(other),
        };
        while let Some(error) = cause {
            let number = error.downcast_ref::<std::io::Error>().and_then(number_of);
            if let Some(number) = number {
                return number;
            }
            cause = error.source();
        }
        self.kind().errno()
    }

    /// Returns the status of the operation that ended with this error. For a truncated message it
    /// is complete. For an operation whose peer failed it has the peer and envelope that the
    /// operation named or had matched, and the length of a send (0 for a receive).
    pub fn status(&self) -> Option<&Status> {
        match self {
            Self::Truncated { status, .. } => Some(status),
            Self::Peer { status, .. } | Self::Refused { status, .. } => status.as_deref(),
            _ => None,
        }
    }

    /// Whether the same call may succeed after progress.
    pub fn is_would_block(&self) -> bool {
        matches!(self, Self::WouldBlock(_))
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;
    use std::io;

    use super::*;

    #[test]
    fn causes_are_kept_with_their_numbers() {
        let denied = Error::system("cannot listen", io::Error::from_raw_os_error(libc::EACCES));
        assert_eq!((denied.kind(), denied.errno()), (ErrorKind::System, libc::EACCES));
        let source = denied.source().and_then(|cause| cause.downcast_ref::<io::Error>());
        assert_eq!(source.map(io::Error::kind), Some(io::ErrorKind::PermissionDenied));
        assert_eq!(denied.to_string(), format!("cannot listen: {}", source.unwrap()));
        let without_number = Error::system("io_uring is not available", "built without it");
        let text = without_number.clone().to_string();
        assert_eq!((without_number.errno(), text), (libc::EIO, without_number.to_string()));

        let named = crate::settings::Settings::isolated().with_file("/none/of/these").build();
        let settings = Error::settings(named.unwrap_err());
        assert_eq!((settings.kind(), settings.errno()), (ErrorKind::Settings, libc::ENOENT));
        assert!(settings.source().is_some_and(|cause| cause.is::<io::Error>()));
        let Error::Settings(cause) = settings else { unreachable!() };
        assert!(cause.is::<crate::settings::SettingsError>());
    }

    #[test]
    fn errors_are_small() {
        assert!(size_of::<Error>() <= 40, "{}", size_of::<Error>());
    }
}
