//! General operations: all but receives that wait for a message.

use super::effects::{Arrival, CompletionLevel, Ended, RemoteName};
use super::failure::PeerFailure;
use super::hint::Hint;
use super::multi::Multi;
use super::one_sided::Role;
use super::one_sided::origin::Asking;
use super::regions::Refusal;
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
                    | OperationState::Serving(_)
                    | OperationState::Asking(_)
                    | OperationState::AwaitReply { .. }
            )
    }

    /// Returns whether it is a receive that needs more of its message.
    #[inline]
    pub(super) fn pulls(&self) -> bool {
        matches!(&self.state, OperationState::Pulling(pulling) if pulling.failed.is_none())
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
            OperationState::Serving(serving) => serving.done.is_some() || serving.failed.is_some(),
            OperationState::Pulling(pulling) => pulling.failed.is_some(),
            OperationState::Multi(multi) => multi.has_failed(),
            _ => false,
        }
    }

    /// Returns whether it is a send that is unsent or unacknowledged, or a reply that is unsent. A
    /// message that the peer has needs its sender no more.
    pub(super) fn is_sending(&self) -> bool {
        match &self.state {
            OperationState::New { .. } | OperationState::Queued { .. } => true,
            OperationState::AwaitDelivery | OperationState::Serving(_) => true,
            OperationState::Asking(_) | OperationState::Replying { .. } => true,
            OperationState::AwaitMatch | OperationState::AwaitReply { .. } => false,
            OperationState::Matched | OperationState::Multi(_) | OperationState::Pulling(_) => {
                false
            }
        }
    }

    /// Returns the frame by which the peer learns that this side ends the operation, if the peer
    /// waits for this side: for the end of a pull, or for a reply.
    ///
    /// RR-RDV-5, RR-RMA-2.
    pub(super) fn renunciation(&self, refusal: Refusal) -> Option<ControlFrame> {
        match &self.state {
            OperationState::Pulling(pulling) if pulling.failed.is_none() => {
                Some(ControlFrame::done(pulling.send_operation, STATUS_ABANDONED, 0))
            }
            &OperationState::Replying { to } => {
                Some(ControlFrame::Reply(ShortReply::new(to, refusal.code(), &[])))
            }
            _ => None,
        }
    }

    /// Returns whether it is a send that the peer may pull from.
    #[inline]
    pub(super) fn serves(&self) -> bool {
        matches!(&self.state, OperationState::Serving(serving) if serving.failed.is_none())
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
    /// A rendezvous send serves grants.
    Serving(Serving),
    /// A receive has matched, and begins; so does each message of a multi-receive.
    Matched,
    /// A multi-receive takes messages, or waits for the ends of its messages.
    Multi(Multi),
    /// A receive pulls its message.
    Pulling(Pulling),
    /// An operation on the peer's memory waits for the connection or for space.
    Asking(Asking),
    /// It waits for a reply with this many bytes.
    AwaitReply { bytes: u64 },
    /// The reply to operation `to` of the peer waits for space, or the peer's bytes are pulled.
    Replying { to: u64 },
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

/// A rendezvous send after its RTS.
#[derive(Debug, Default)]
pub(crate) struct Serving {
    /// Chunks that the kernel may still read.
    pub(crate) unreleased: u32,
    /// Bytes that were granted in datagrams.
    pub(crate) granted: u64,
    /// The peer has granted a range on its ring, of which some is missing.
    pub(crate) is_asked_by_ring: bool,
    /// The RTS contained the location of the message ([`super::rendezvous::cma`]).
    pub(crate) has_source: bool,
    /// DONE was received, with this many bytes accepted.
    pub(crate) done: Option<u64>,
    /// It has failed; completes when nothing is unreleased.
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
    /// The sender's id of the message.
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
    /// Consecutive chunks with a wrong checksum.
    pub(crate) bad_chunks: u32,
    /// The ring on which all of it is granted ([`super::rendezvous::ring`]).
    pub(crate) ring: Option<u32>,
    /// Whether what is not granted yet goes by a ring.
    pub(crate) to_ring: ToRing,
    /// What came in datagrams.
    pub(crate) ranges: super::rendezvous::ranges::Ranges,
    /// It has failed; completes when nothing is targeted.
    pub(crate) failed: Option<Cause>,
}

impl Pulling {
    /// One of `length` bytes, of which `wanted` have room and `in_place` came with the envelope.
    pub(crate) fn new(
        send_operation: u64,
        (length, wanted): (u64, u64),
        in_place: u64,
        ranges: super::rendezvous::ranges::Ranges,
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

    /// Notes bytes in place.
    pub(super) fn note_arrived(&mut self, bytes: u64) {
        self.arrived += bytes;
        debug_assert!(self.arrived <= self.wanted, "no more is in place than is wanted");
    }

    /// Grants the next bytes. Returns their offset.
    pub(super) fn grant(&mut self, bytes: u64) -> u64 {
        debug_assert!(bytes > 0 && bytes <= self.wanted - self.granted, "it is not granted yet");
        let offset = self.granted;
        self.granted += bytes;
        offset
    }

    /// Returns whether the rest goes by a ring now: all that was granted by lanes has come, so that
    /// nothing but pieces writes to its memory.
    ///
    /// RR-SHM-10.
    pub(super) fn awaits_ring(&self) -> bool {
        self.to_ring == ToRing::Waits && self.arrived == self.granted
    }
}
