//! Completions of operations.

use std::fmt;

use super::error::Error;
use crate::memory::Buffer;
use crate::proto::core::UNTAGGED;
use crate::proto::table::Id;

/// A peer in the address vector of an engine; also the source of a message.
///
/// It is valid for endpoints of that engine only; calls of other engines fail with
/// [`Error::UnknownPeer`]. A peer that was inserted is valid until it is removed. A peer that
/// connected by itself is valid while it is connected and while messages from it wait to be
/// received; after that the engine reuses its entry at some time, and calls fail with
/// [`Error::UnknownPeer`].
///
/// ```
/// # let settings = ringrail::settings::Settings::isolated().set("listen_address", "127.0.0.1");
/// # let domain = ringrail::Domain::with_settings(settings.insecure(true).build()?)?;
/// # let (left, right) = (domain.endpoint()?.share()?, domain.endpoint()?.share()?);
/// # let peer = left.insert_peer(&right.address())?;
/// use ringrail::{Envelope, ReceiveOptions, Selector, SendOptions};
///
/// left.send_blocking(peer, Envelope::tagged(1), b"name?", SendOptions::new())?;
/// let mut text = [0; 16];
/// let from = Selector::from_any(Envelope::tagged(1));
/// let status = right.receive_blocking(from, &mut text, ReceiveOptions::new())?;
/// // The source of a message can be replied to, although its address was not inserted here.
/// let source = status.peer.expect("a receive names the source of its message");
/// right.send_blocking(source, Envelope::tagged(2), b"me", SendOptions::new())?;
/// let from = Selector::from_peer(peer, Envelope::tagged(2));
/// let status = left.receive_blocking(from, &mut text, ReceiveOptions::new())?;
/// assert_eq!(&text[..status.length], b"me");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Peer(pub(crate) Id);

/// Identifies an operation that was posted to a completion queue, for cancellation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct OperationId(pub(crate) OperationName);

/// The origin of an operation's name.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum OperationName {
    /// The protocol.
    Posted(Id),
    /// The thread that left it to another thread to be posted.
    Requested(u64),
}

/// The part of a message that is matched besides its source: its context and tag, or that it has
/// neither (MPI's message envelope).
///
/// A context has 32 bits and stands for an MPI communicator, for example; messages of different
/// contexts are neither ordered nor matched with each other. Untagged messages are matched by their
/// source alone, in a context of their own.
///
/// ```
/// use ringrail::Envelope;
///
/// let halo = Envelope::new(3, 42); // tag 42 in context 3
/// assert_eq!((halo.context(), halo.tag()), (3, 42));
/// assert_eq!(Envelope::tagged(42), Envelope::new(0, 42));
/// assert!(!Envelope::UNTAGGED.is_tagged());
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Envelope {
    /// As in the protocol: untagged messages have a context above 32 bits.
    context: u64,
    tag: u64,
}

impl Envelope {
    /// A message without tag and context (`fi_send`).
    pub const UNTAGGED: Self = Self { context: UNTAGGED, tag: 0 };

    /// A message with `tag` in context 0.
    #[must_use]
    pub const fn tagged(tag: u64) -> Self {
        Self { context: 0, tag }
    }

    /// A message with `tag` in `context`.
    #[must_use]
    pub const fn new(context: u32, tag: u64) -> Self {
        Self { context: context as u64, tag }
    }

    /// As in the protocol.
    #[inline]
    pub(crate) const fn of(context: u64, tag: u64) -> Self {
        Self { context, tag }
    }

    /// As in the protocol.
    #[inline]
    pub(crate) const fn parts(self) -> (u64, u64) {
        (self.context, self.tag)
    }

    /// Whether it has a tag and a context.
    pub const fn is_tagged(self) -> bool {
        self.context & UNTAGGED == 0
    }

    /// Matching context; 0 if it has none.
    pub const fn context(self) -> u32 {
        self.context as u32
    }

    /// Tag; 0 if it has none.
    pub const fn tag(self) -> u64 {
        self.tag
    }
}

/// Tag 0 in context 0.
impl Default for Envelope {
    fn default() -> Self {
        Self::tagged(0)
    }
}

impl fmt::Debug for Envelope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.is_tagged() {
            true => write!(f, "Envelope(context {}, tag {:#x})", self.context, self.tag),
            false => f.write_str("Envelope(untagged)"),
        }
    }
}

/// The messages that a receive accepts.
///
/// ```
/// # let settings = ringrail::settings::Settings::isolated().set("listen_address", "127.0.0.1");
/// # let domain = ringrail::Domain::with_settings(settings.insecure(true).build()?)?;
/// # let (left, right) = (domain.endpoint()?.share()?, domain.endpoint()?.share()?);
/// # let peer = left.insert_peer(&right.address())?;
/// use ringrail::{Envelope, ReceiveOptions, Selector, SendOptions};
///
/// left.send_blocking(peer, Envelope::new(3, 0x1_0007), b"a", SendOptions::new())?;
/// // From any source, in context 3, with any tag whose lower 16 bits are 7.
/// let from = Selector::from_any(Envelope::new(3, 7)).ignoring(!0xffff);
/// let mut bytes = [0; 1];
/// let status = right.receive_blocking(from, &mut bytes, ReceiveOptions::new())?;
/// assert_eq!(status.envelope.tag(), 0x1_0007);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Selector {
    /// The source; `None`: any source.
    pub source: Option<Peer>,
    /// Context and tag.
    pub envelope: Envelope,
    /// Bits of the tag that are not compared.
    pub ignore: u64,
}

impl Selector {
    /// Accepts untagged messages from `source`; `None`: any source.
    #[must_use]
    pub const fn untagged(source: Option<Peer>) -> Self {
        Self { source, envelope: Envelope::UNTAGGED, ignore: 0 }
    }

    /// Accepts messages with exactly this envelope from `peer`.
    #[must_use]
    pub const fn from_peer(peer: Peer, envelope: Envelope) -> Self {
        Self { source: Some(peer), envelope, ignore: 0 }
    }

    /// Accepts messages with exactly this envelope from any source (`MPI_ANY_SOURCE`).
    #[must_use]
    pub const fn from_any(envelope: Envelope) -> Self {
        Self { source: None, envelope, ignore: 0 }
    }

    /// Excludes the bits of `ignore` from the comparison of tags.
    #[must_use]
    pub const fn ignoring(mut self, ignore: u64) -> Self {
        self.ignore = ignore;
        self
    }
}

/// The status of an operation that succeeded, or of a message that was longer than its receive.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub struct Status {
    /// The source of a receive, or the destination of a send.
    pub peer: Option<Peer>,
    /// Context and tag of the message.
    pub envelope: Envelope,
    /// Length of the message in bytes. A send that its receiver truncated still reports its full
    /// length.
    pub length: usize,
    /// Remote data that the sender attached (`FI_REMOTE_CQ_DATA`); `None` for a send.
    pub data: Option<u64>,
}

impl Status {
    #[doc(hidden)]
    #[must_use]
    pub const fn new(
        peer: Option<Peer>,
        envelope: Envelope,
        length: usize,
        data: Option<u64>,
    ) -> Self {
        Self { peer, envelope, length, data }
    }
}

/// The kind of the operation that completed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum OperationKind {
    /// A send.
    Send,
    /// A receive, or one message of a multi-receive.
    Receive,
    /// A write to the memory of a peer.
    Put,
    /// A read of the memory of a peer.
    Get,
    /// An atomic operation on the memory of a peer.
    Atomic,
    /// A flush.
    Flush,
    /// A put of a peer with remote data has been written. It was not posted here; its `user_data`
    /// is 0.
    RemotePut,
    /// A multi-receive has ended: its buffer is full or it was cancelled, and all of its messages
    /// have been reported. Its length is their sum.
    MultiReceive,
}

/// An entry of a completion queue.
///
/// ```
/// # let settings = ringrail::settings::Settings::isolated().set("listen_address", "127.0.0.1");
/// # let domain = ringrail::Domain::with_settings(settings.insecure(true).build()?)?;
/// # let (left, right) = (domain.endpoint()?.share()?, domain.endpoint()?.share()?);
/// # let peer = left.insert_peer(&right.address())?;
/// use ringrail::{Envelope, OperationKind, ReceiveOptions, Selector, SendOptions};
///
/// let from = Selector::from_any(Envelope::tagged(1));
/// right.post_receive(from, vec![0; 64], ReceiveOptions::new().user_data(7))?;
/// left.send_blocking(peer, Envelope::tagged(1), b"hello", SendOptions::new())?;
/// let mut completions = Vec::new();
/// right.wait(&mut completions, 16, None)?;
/// for completion in completions {
///     assert_eq!((completion.kind, completion.user_data), (OperationKind::Receive, 7));
///     let status = completion.result?;
///     let buffer = completion.buffer.expect("the receive owned a buffer");
///     assert_eq!(buffer.as_slice().map(|bytes| &bytes[..status.length]), Some(&b"hello"[..]));
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub struct Completion {
    /// The `user_data` of the post.
    pub user_data: u64,
    /// The kind of the operation.
    pub kind: OperationKind,
    /// Its result.
    pub result: Result<Status, Error>,
    /// For a message of a multi-receive, its offset in the buffer, in bytes; else 0.
    pub offset: u64,
    /// The buffer that the operation owned; `None` for a message of a multi-receive.
    pub buffer: Option<Buffer>,
}

impl Completion {
    #[doc(hidden)]
    #[must_use]
    pub const fn new(
        user_data: u64,
        kind: OperationKind,
        result: Result<Status, Error>,
        offset: u64,
        buffer: Option<Buffer>,
    ) -> Self {
        Self { user_data, kind, result, offset, buffer }
    }
}

/// The result of an [`Operation`](crate::Operation) that succeeded.
#[derive(Debug)]
#[non_exhaustive]
pub struct Completed {
    /// The message.
    pub status: Status,
    /// The buffer that the operation owned; for a receive, [`Status::length`] bytes of it contain
    /// the message.
    pub buffer: Buffer,
}

/// The error of an operation that was refused or has failed, and its buffer.
#[derive(Debug)]
#[non_exhaustive]
pub struct Failed {
    /// The cause.
    pub error: Error,
    /// The buffer that was handed over; empty if there was none, or if the kernel still uses it.
    pub buffer: Buffer,
}

impl Failed {
    pub(crate) fn new((error, buffer): (Error, Option<Buffer>)) -> Self {
        Self { error, buffer: buffer.unwrap_or_else(|| Buffer::Heap(Vec::new())) }
    }
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

// Its text is that of its error, which is therefore not its source: a report would repeat it.
impl std::error::Error for Failed {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.source()
    }
}

impl From<Failed> for Error {
    fn from(failed: Failed) -> Self {
        failed.error
    }
}

/// How an operation ended.
pub(crate) type Outcome = Result<Completed, Failed>;
