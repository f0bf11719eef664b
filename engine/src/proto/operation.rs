//! Outstanding operations.

use super::effects::{Arrival, CompletionLevel, Ended, RemoteName};
use super::failure::PeerFailure;
use super::hint::Hint;
use super::matching::PostedKey;
use super::multi::Multi;
use super::one_sided::Role;
use super::one_sided::origin::Asking;
use super::regions::Refusal;
use super::table::Id;

/// One send or receive that has not completed.
#[derive(Debug)]
pub(crate) struct Operation {
    /// Local endpoint.
    pub(crate) endpoint: u16,
    /// Slot of the session it belongs to; `NO_SESSION` for a receive from any source until it
    /// has matched.
    pub(crate) session: u32,
    /// Index of the remote endpoint, as far as it is known.
    pub(crate) remote: u32,
    /// Context, with [`super::core::UNTAGGED`] for untagged messages.
    pub(crate) context: u64,
    /// Tag; of a receive: what it asked for, then what it got.
    pub(crate) tag: u64,
    /// Length of the message (send) or capacity (receive), in bytes.
    pub(crate) length: u64,
    /// Remote data of the message; of a receive: once it has matched.
    pub(crate) data: Option<u64>,
    /// What its sender said of the message; of a receive: once it has matched one to be pulled.
    pub(crate) hint: Hint,
    /// A send that waits for all earlier ones of its endpoint to its peer.
    pub(crate) fence: bool,
    /// Sends that have passed this one while it waited.
    pub(crate) passed: u8,
    /// The multi-receive that it receives one message of.
    pub(crate) slice_of: Option<Id>,
    /// What it holds of the bound of one-sided operations.
    pub(crate) role: Role,
    /// What it waits for.
    pub(crate) state: OperationState,
}

impl Operation {
    /// A receive has matched a message of the session in `slot`.
    pub(super) fn note_match(&mut self, slot: u32, arrival: &Arrival) {
        self.session = slot;
        self.remote = arrival.peer.index() as u32;
        self.context = arrival.context;
        self.tag = arrival.tag;
        self.data = arrival.data;
    }

    /// Its capacity, if it is a receive that waits for a message: one that owns nothing.
    #[inline]
    pub(super) fn as_posted(&self) -> Option<u64> {
        matches!(self.state, OperationState::Posted { .. }).then_some(self.length)
    }

    /// Whether it is a send, or an operation on the memory of a peer.
    pub(super) fn is_send(&self) -> bool {
        let is_own = !matches!(self.role, Role::Target(_));
        is_own
            && matches!(
                self.state,
                OperationState::New { .. }
                    | OperationState::Queued { .. }
                    | OperationState::AwaitDelivery
                    | OperationState::AwaitMatch
                    | OperationState::Serving(_)
                    | OperationState::Fragmenting(_)
                    | OperationState::Asking(_)
                    | OperationState::AwaitReply { .. }
            )
    }

    /// Whether it is a receive that wants more of its message.
    #[inline]
    pub(super) fn pulls(&self) -> bool {
        matches!(&self.state, OperationState::Pulling(pulling) if pulling.failed.is_none())
    }

    /// Whether it waits for bytes of its target.
    pub(super) fn awaits_bytes(&self) -> bool {
        let bytes = match self.state {
            OperationState::AwaitReply { bytes } => bytes,
            _ => 0,
        };
        bytes > 0 && bytes == self.length
    }

    /// Whether its end is known, and the kernel alone keeps it.
    pub(super) fn is_decided(&self) -> bool {
        match &self.state {
            OperationState::Serving(serving) => serving.done.is_some() || serving.failed.is_some(),
            OperationState::Pulling(pulling) => pulling.failed.is_some(),
            OperationState::Multi(multi) => multi.cause.is_some(),
            _ => false,
        }
    }

    /// Whether it is a send that the peer may pull from.
    #[inline]
    pub(super) fn serves(&self) -> bool {
        matches!(&self.state, OperationState::Serving(serving) if serving.failed.is_none())
    }
}

/// No session is known yet.
pub(crate) const NO_SESSION: u32 = u32::MAX;
/// No remote endpoint is known yet.
pub(crate) const NO_REMOTE: u32 = u32::MAX;

/// What an operation waits for.
#[derive(Debug)]
pub(crate) enum OperationState {
    /// Made, and about to be started.
    New { level: CompletionLevel },
    /// A send waits for the connection, for credit or for room.
    Queued { level: CompletionLevel },
    /// An eager send waits until the peer acknowledges its frame.
    AwaitDelivery,
    /// An eager send waits for MATCHED.
    AwaitMatch,
    /// A rendezvous send serves grants.
    Serving(Serving),
    /// An eager send that goes in parts.
    Fragmenting(super::datagram::Fragmenting),
    /// A receive waits for a message.
    Posted { key: Option<PostedKey>, ignore: u64 },
    /// A multi-receive takes messages, or waits for the ends of those that it took.
    Multi(Multi),
    /// A receive pulls its message.
    Pulling(Pulling),
    /// A receive whose message comes in parts.
    Reassembling(super::datagram::Reassembling),
    /// An operation on the peer's memory waits for the connection or for room.
    Asking(Asking),
    /// It waits for an answer with so many bytes.
    AwaitReply { bytes: u64 },
    /// The answer to operation `to` of the peer waits for room, or the peer's bytes are pulled.
    Replying { to: u64 },
}

/// Why an operation is over before it is done.
#[derive(Clone, Debug)]
pub(crate) enum Cause {
    /// The peer failed, or gave it up.
    Peer(PeerFailure),
    /// Its endpoint was closed.
    Closed,
    /// The target refused it.
    Refused(Refusal),
    /// Nobody is left whom it could come from.
    Lonely,
}

impl Cause {
    /// What is said of the operation, with the peer called `name`.
    pub(crate) fn ended(self, name: Option<RemoteName>) -> Ended {
        match self {
            Self::Peer(failure) => Ended::Failed(failure, name),
            Self::Closed => Ended::Cancelled,
            Self::Refused(refusal) => Ended::Refused(refusal, name),
            Self::Lonely => Ended::Lonely,
        }
    }
}

/// A rendezvous send after its RTS.
#[derive(Debug, Default)]
pub(crate) struct Serving {
    /// Chunks that the kernel may still read.
    pub(crate) unreleased: u32,
    /// Bytes that were asked for in datagrams.
    pub(crate) granted: u64,
    /// The peer asks for a range by its ring, of which not all is there.
    pub(crate) is_asked_by_ring: bool,
    /// The peer was told where it can read the message ([`super::cma`]).
    pub(crate) has_source: bool,
    /// The receiver said DONE with so many bytes accepted.
    pub(crate) done: Option<u64>,
    /// It is over; completes when nothing is unreleased.
    pub(crate) failed: Option<Cause>,
}

/// Whether a message that lanes carry is to go on by a ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ToRing {
    /// When there is one: it was there before the two engines had a ring.
    IfMade,
    /// As soon as all that was granted by lanes has come.
    Waits,
    /// Not, or not any more: it went by a ring, which has ended.
    No,
}

/// A rendezvous receive after its match.
#[derive(Debug)]
pub(crate) struct Pulling {
    /// The sender's name for the message.
    pub(crate) send_operation: u64,
    /// Length of the message as sent.
    pub(crate) length: u64,
    /// Bytes wanted: the length, or the capacity if that is less.
    pub(crate) wanted: u64,
    /// Bytes before this offset have been granted at least once.
    pub(crate) granted: u64,
    /// Bytes in place.
    pub(crate) arrived: u64,
    /// Ranges that the kernel may still write.
    pub(crate) targeted: u32,
    /// Chunks in a row whose bytes were not what their checksum says.
    pub(crate) bad_chunks: u32,
    /// The ring by which all of it is to come ([`super::pieces`]).
    pub(crate) ring: Option<u32>,
    /// Whether what is not granted yet goes by a ring.
    pub(crate) to_ring: ToRing,
    /// What came in datagrams.
    pub(crate) ranges: super::datagram::Ranges,
    /// It is over; completes when nothing is targeted.
    pub(crate) failed: Option<Cause>,
}

impl Pulling {
    /// One of `length` bytes, of which `wanted` have room and `in_place` came with the envelope.
    pub(crate) fn new(
        send_operation: u64,
        (length, wanted): (u64, u64),
        in_place: u64,
        ranges: super::datagram::Ranges,
    ) -> Self {
        Self {
            send_operation,
            length,
            wanted,
            granted: in_place,
            arrived: in_place,
            targeted: 0,
            bad_chunks: 0,
            ring: None,
            to_ring: ToRing::IfMade,
            ranges,
            failed: None,
        }
    }
}
