//! General operations: all but receives that wait for a message.

use super::effects::{Arrival, CompletionLevel, Ended, RemoteName};
use super::failure::PeerFailure;
use super::hint::Hint;
use super::multi::Multi;
use super::regions::Refusal;
use super::session::one_sided::Role;
use super::session::one_sided::origin::Asking;
use super::session::rendezvous::pulling::Pulling;
use super::session::rendezvous::serving::Serving;
use super::session::{ControlFrame, ShortReply};
use super::table::Id;
use crate::wire::done::STATUS_ABANDONED;

/// One send or receive that has not completed.
#[derive(Debug)]
pub(crate) struct Operation {
    /// Local endpoint.
    pub(crate) endpoint: u16,
    /// Slot of its session; `NO_SESSION` for a multi-receive from any source.
    pub(crate) session: u32,
    /// Index of the remote endpoint, as far as it is known.
    pub(crate) remote: u32,
    /// Context, with [`super::core::UNTAGGED`] for untagged messages.
    pub(crate) context: u64,
    /// Tag of the message; of a multi-receive: the requested one.
    pub(crate) tag: u64,
    /// Length of the message (send) or capacity (receive), in bytes.
    pub(crate) length: u64,
    /// Remote data of the message; of a receive: once it has matched.
    pub(crate) data: Option<u64>,
    /// Hint of the message; of a receive: once it has matched a rendezvous message.
    pub(crate) hint: Hint,
    /// A send that waits for all earlier ones of its endpoint to its peer.
    pub(crate) fence: bool,
    /// Sends that have overtaken this one while it waited.
    pub(crate) passed: u8,
    /// The multi-receive of which it receives one message.
    pub(crate) slice_of: Option<Id>,
    /// How it counts toward the limits of one-sided operations.
    pub(crate) role: Role,
    /// Its state.
    pub(crate) state: OperationState,
}

impl Operation {
    /// Returns an operation between `endpoint` and `remote` of `session`, without context, tag,
    /// bytes, hint or role.
    #[inline]
    pub(super) fn new(endpoint: u16, session: u32, remote: u32, state: OperationState) -> Self {
        Self {
            endpoint,
            session,
            remote,
            context: 0,
            tag: 0,
            length: 0,
            data: None,
            hint: Hint::None,
            fence: false,
            passed: 0,
            slice_of: None,
            role: Role::None,
            state,
        }
    }

    /// Notes that a receive has matched a message of the session in `slot`.
    pub(super) fn note_match(&mut self, slot: u32, arrival: &Arrival) {
        self.session = slot;
        self.remote = arrival.peer.index() as u32;
        self.context = arrival.context;
        self.tag = arrival.tag;
        self.data = arrival.data;
    }

    /// Returns whether it is a send, or a one-sided operation.
    pub(super) fn is_send(&self) -> bool {
        let is_own = !matches!(self.role, Role::Target(_));
        is_own
            && matches!(
                self.state,
                OperationState::New { .. }
                    | OperationState::Queued { .. }
                    | OperationState::AwaitDelivery
                    | OperationState::AwaitMatch
                    | OperationState::AwaitPull(_)
                    | OperationState::QueuedRequest(_)
                    | OperationState::AwaitReply { .. }
            )
    }

    /// Returns whether it is a receive that needs more of its message.
    #[inline]
    pub(super) fn pulls(&self) -> bool {
        matches!(&self.state, OperationState::AwaitBytes(pulling) if !pulling.has_failed())
    }

    /// Returns whether it waits for bytes of its target.
    pub(super) fn awaits_bytes(&self) -> bool {
        let bytes = match self.state {
            OperationState::AwaitReply { bytes } => bytes,
            _ => 0,
        };
        bytes > 0 && bytes == self.length
    }

    /// Returns whether its result is known, and it waits for the kernel alone.
    pub(super) fn is_decided(&self) -> bool {
        match &self.state {
            OperationState::AwaitPull(serving) => serving.is_decided(),
            OperationState::AwaitBytes(pulling) => pulling.has_failed(),
            OperationState::AwaitMessages(multi) => multi.has_failed(),
            _ => false,
        }
    }

    /// Lets it fail as soon as the kernel has released its memory. Returns `false` if that is now.
    pub(super) fn fail_later(&mut self, cause: &Cause) -> bool {
        match &mut self.state {
            OperationState::AwaitPull(serving) => serving.fail_later(cause),
            OperationState::AwaitBytes(pulling) => pulling.fail_later(cause),
            _ => false,
        }
    }

    /// Returns whether it is a send that is unsent or unacknowledged, or a reply that is unsent. A
    /// message that the peer has needs its sender no more.
    pub(super) fn is_sending(&self) -> bool {
        match &self.state {
            OperationState::New { .. } | OperationState::Queued { .. } => true,
            OperationState::AwaitDelivery | OperationState::AwaitPull(_) => true,
            OperationState::QueuedRequest(_) | OperationState::QueuedReply { .. } => true,
            OperationState::AwaitMatch | OperationState::AwaitReply { .. } => false,
            OperationState::Matched
            | OperationState::AwaitMessages(_)
            | OperationState::AwaitBytes(_) => false,
        }
    }

    /// Returns the frame by which the peer learns that this side ends the operation, if the peer
    /// waits for this side: for the end of a pull, or for a reply.
    ///
    /// RR-RDV-5, RR-RMA-2.
    pub(super) fn renunciation(&self, refusal: Refusal) -> Option<ControlFrame> {
        match &self.state {
            OperationState::AwaitBytes(pulling) => {
                Some(ControlFrame::done(pulling.live_send_operation()?, STATUS_ABANDONED, 0))
            }
            &OperationState::QueuedReply { to } => {
                Some(ControlFrame::Reply(ShortReply::new(to, refusal.code(), &[])))
            }
            _ => None,
        }
    }

    /// Returns whether it is a send that the peer may pull from.
    #[inline]
    pub(super) fn serves(&self) -> bool {
        matches!(&self.state, OperationState::AwaitPull(serving) if !serving.has_failed())
    }
}

/// No session is known yet.
pub(crate) const NO_SESSION: u32 = u32::MAX;
/// No remote endpoint is known yet.
pub(crate) const NO_REMOTE: u32 = u32::MAX;

/// State of an operation.
#[derive(Debug)]
pub(crate) enum OperationState {
    /// Created, and about to be started.
    New { level: CompletionLevel },
    /// A send waits for the connection, for credit or for space.
    Queued { level: CompletionLevel },
    /// An eager send waits until the peer acknowledges its frame.
    AwaitDelivery,
    /// An eager send waits for MATCHED.
    AwaitMatch,
    /// A send waits until its receiver has pulled the message.
    AwaitPull(Serving),
    /// A receive has matched, and begins; so does each message of a multi-receive.
    Matched,
    /// A multi-receive waits for messages, or for the ends of its messages.
    AwaitMessages(Multi),
    /// A receive waits for the bytes of the message that it pulls.
    AwaitBytes(Pulling),
    /// An operation on the peer's memory waits for the connection or for space.
    QueuedRequest(Asking),
    /// It waits for a reply with this many bytes.
    AwaitReply { bytes: u64 },
    /// The reply to operation `to` of the peer waits for space, or the peer's bytes are pulled.
    QueuedReply { to: u64 },
}

/// Why an operation ended before it was done.
#[derive(Clone, Debug)]
pub(crate) enum Cause {
    /// The peer failed, or cancelled it.
    Peer(PeerFailure),
    /// Its endpoint was closed.
    Closed,
    /// The target refused it.
    Refused(Refusal),
    /// No peer is left that could send.
    NoPeerLeft,
}

impl Cause {
    /// Returns the result of the operation, with the peer's `name`.
    pub(crate) fn ended(self, name: Option<RemoteName>) -> Ended {
        match self {
            Self::Peer(failure) => Ended::Failed(failure, name),
            Self::Closed => Ended::Cancelled,
            Self::Refused(refusal) => Ended::Refused(refusal, name),
            Self::NoPeerLeft => Ended::NoPeerLeft,
        }
    }
}
