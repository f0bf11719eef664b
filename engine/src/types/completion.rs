//! What operations end with.

use std::fmt;

use super::error::Error;
use crate::memory::Buffer;
use crate::proto::core::UNTAGGED;
use crate::proto::table::Id;

/// A peer in the address vector of an endpoint's engine. Also the source of a message. Only that
/// engine's endpoints know it: calls of another engine's fail with [`Error::UnknownPeer`]. One that
/// was inserted is valid until it is removed. One that was only met is valid while it is connected
/// and while messages of it wait to be received; after that, until the engine needs its place or
/// some hundred sessions more have ended. Then calls fail with [`Error::UnknownPeer`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Peer(pub(crate) Id);

/// Names an operation that was posted to a completion queue, for cancellation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct OperationId(pub(crate) OperationName);

/// Who has named an operation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum OperationName {
    /// The protocol.
    Posted(Id),
    /// Its poster, who left it to another thread to be posted.
    Requested(u64),
}

/// What a message is matched by: its context and its tag, or that it has neither.
///
/// A context (an MPI communicator, say) is 32 bits wide; order and matching never cross it.
/// Untagged messages are matched by their source alone, and in a context of their own.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Envelope {
    /// As the protocol counts contexts: beyond 32 bits the untagged.
    context: u64,
    tag: u64,
}

impl Envelope {
    /// A message without tag and context (`fi_send`).
    pub const UNTAGGED: Self = Self { context: UNTAGGED, tag: 0 };

    /// `tag` in context 0.
    pub const fn tagged(tag: u64) -> Self {
        Self { context: 0, tag }
    }

    /// `tag` in `context`.
    pub const fn new(context: u32, tag: u64) -> Self {
        Self { context: context as u64, tag }
    }

    /// As the protocol has it.
    #[inline]
    pub(crate) const fn of(context: u64, tag: u64) -> Self {
        Self { context, tag }
    }

    /// As the protocol has it.
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

/// What a receive accepts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Selector {
    /// From whom; `None`: from anybody.
    pub source: Option<Peer>,
    /// Context and tag.
    pub envelope: Envelope,
    /// Bits of the tag that are not compared.
    pub ignore: u64,
}

impl Selector {
    /// Untagged messages from `source`; `None`: from anybody.
    pub const fn untagged(source: Option<Peer>) -> Self {
        Self { source, envelope: Envelope::UNTAGGED, ignore: 0 }
    }

    /// Exactly this envelope, from `peer`.
    pub const fn from(peer: Peer, envelope: Envelope) -> Self {
        Self { source: Some(peer), envelope, ignore: 0 }
    }

    /// Exactly this envelope, from anybody.
    pub const fn any(envelope: Envelope) -> Self {
        Self { source: None, envelope, ignore: 0 }
    }

    /// The same, with the tag bits in `ignore` left out of the comparison.
    pub const fn ignoring(mut self, ignore: u64) -> Self {
        self.ignore = ignore;
        self
    }
}

/// How an operation succeeded, or which message was too long for its receive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Status {
    /// The other side: of a receive the source, of a send the target.
    pub peer: Option<Peer>,
    /// Context and tag of the message.
    pub envelope: Envelope,
    /// Length of the message in bytes. A send that its receiver cut short still reports its own
    /// length.
    pub length: usize,
    /// What its sender sent with it beside the bytes (`FI_REMOTE_CQ_DATA`). Of a send: `None`.
    pub data: Option<u64>,
}

/// What kind of operation a completion is of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
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
    /// A put of a peer with remote data: all of it is in place. Nobody posted it; its `user_data`
    /// is 0.
    RemotePut,
    /// A multi-receive: no message goes into its buffer any more, and all that went there have
    /// been reported before. Its length is what they took.
    MultiReceive,
}

/// An entry of a completion queue.
#[derive(Debug)]
pub struct Completion {
    /// What was given when the operation was posted.
    pub user_data: u64,
    /// Send or receive.
    pub kind: OperationKind,
    /// How it ended.
    pub result: Result<Status, Error>,
    /// Of a message of a multi-receive: where it begins in the buffer, in bytes. Else 0.
    pub offset: u64,
    /// The buffer it owned. A message of a multi-receive owns none.
    pub buffer: Option<Buffer>,
}

/// What an [`Operation`](crate::Operation) that succeeded leaves.
#[derive(Debug)]
pub struct Completed {
    /// The message.
    pub status: Status,
    /// The buffer it owned; of a receive [`Status::length`] bytes of it hold the message.
    pub buffer: Buffer,
}

/// An operation that was not taken, or that has failed: why, and its buffer.
#[derive(Debug)]
pub struct Failed {
    /// Why.
    pub error: Error,
    /// What was handed over. Empty where nothing was, or where the kernel has not let go of it.
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

// It says what its error says, so that one is not its source: a report would say it twice.
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
