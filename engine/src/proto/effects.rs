//! Effects of the protocol on user memory, and completions.

use super::failure::PeerFailure;
use super::regions::{Access, Refusal};
use super::session::eager_limit::CopySpeed;
use super::table::Id;
use crate::wire::locators::Locators;

/// How far a send must have come before it completes, as libfabric and MPI name it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub enum CompletionLevel {
    /// The buffer may be reused (`FI_INJECT_COMPLETE`; `MPI_Send`). Where the message was lost with
    /// its peer, the next call that concerns the peer reports it.
    #[default]
    Inject,
    /// The peer's engine has the message (`FI_DELIVERY_COMPLETE` to its buffers). By datagrams it
    /// may have come before an earlier one of its stream; if the session ends before that one
    /// comes, it is lost with it. A peer that had exited, or sent a goodbye, before it came ends
    /// the send in an error. An engine takes messages for endpoints that it has closed, too.
    Delivery,
    /// A receive of the peer has matched the message (`FI_MATCH_COMPLETE`; `MPI_Ssend`). A
    /// rendezvous message completes at this point at every level: its buffer is needed until then.
    Match,
}

/// The message of a receive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Arrival {
    /// Handle of the remote endpoint that sent it.
    pub(crate) peer: Id,
    /// Context, with [`super::core::UNTAGGED`] for untagged messages.
    pub(crate) context: u64,
    /// Tag.
    pub(crate) tag: u64,
    /// Length of the message as sent, in bytes.
    pub(crate) length: u64,
    /// Its remote data.
    pub(crate) data: Option<u64>,
}

/// A remote endpoint, as named in errors.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RemoteName {
    /// Its engine.
    pub(crate) engine: u64,
    /// Locators of that engine.
    pub(crate) locators: Locators,
    /// Its id there.
    pub(crate) endpoint: u16,
}

/// Result of an operation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Ended {
    /// A send reached its level; `accepted` bytes fitted the receive, where that is known.
    Sent { accepted: u64 },
    /// A receive holds its message (truncated to its capacity where that is shorter).
    Received(Arrival),
    /// A multi-receive is exhausted, and all its messages have ended: `used` bytes of its memory
    /// hold them.
    Released { used: u64 },
    /// The peer failed; its name, as far as it is known.
    Failed(PeerFailure, Option<RemoteName>),
    /// The target refused an operation on its memory.
    Refused(Refusal, Option<RemoteName>),
    /// A flush is done, and this many earlier operations were refused.
    Unflushed(u64),
    /// A receive from any source, and no peer is left.
    NoPeerLeft,
    /// Cancelled by the user.
    Cancelled,
}

/// Actions of the engine loop for the protocol.
pub(crate) trait Effects {
    /// Copies `bytes` to `offset` of the memory of receive `operation`; they fit.
    fn place(&mut self, operation: Id, offset: usize, bytes: &[u8]);
    /// Copies `length` bytes at `offset` of the memory of send `from` to the same offset of receive
    /// `to`; they fit both.
    fn copy(&mut self, from: Id, to: Id, offset: u64, length: u64);
    /// Returns the CRC32C of `length` bytes at `offset` of the memory of an operation; they are
    /// inside it, and nothing writes them meanwhile.
    fn checksum(&self, operation: Id, offset: u64, length: u32) -> u32;
    /// Completes operation `operation`, whose user data is `user`; no kernel request refers to its
    /// memory.
    fn complete(&mut self, operation: Id, ended: Ended);
    /// Multi-receive `receive` takes a message: operation `slice` receives it into `length` bytes
    /// at `offset` of the same memory, and ends before `receive` does.
    fn slice(&mut self, receive: Id, slice: Id, offset: u64, length: u64);
    /// Notes that receive `receive` has matched an incomplete message; if it fails, the error names
    /// that message.
    fn matched(&mut self, _receive: Id, _arrival: &Arrival) {}
    /// Notes what receive `receive`, which ends without a message, has waited for: a message of
    /// `peer`, or of any, with this context and tag. An error names that.
    fn unmatched(&mut self, _receive: Id, _peer: Option<Id>, _wanted: (u64, u64)) {}
    /// Notes that the message of receive `receive` was put back before, with this order among such
    /// messages ([`super::put_back`]); it keeps the order if it is put back again.
    fn order(&mut self, _receive: Id, _order: u64) {}
    /// Returns whether the end of one more message of multi-receive `receive` can be reported.
    fn has_room(&self, _receive: Id) -> bool {
        true
    }
    /// Writes `bytes` to `offset` of region `region`, where they fit.
    fn put(&mut self, _region: Id, _offset: u64, _bytes: &[u8]) -> Result<(), Refusal> {
        Err(Refusal::Fault)
    }
    /// Applies the atomic operation of a code to the data at `offset` of `region`, of the datatype
    /// of the other code: with (comparands, operands); returns the previous values, if requested.
    fn atomic(
        &mut self,
        _region: Id,
        _offset: u64,
        _codes: (u8, u8),
        _operands: (&[u8], &[u8]),
        _before: Option<&mut [u8]>,
    ) -> Result<(), Refusal> {
        Err(Refusal::Fault)
    }
    /// Uses `length` bytes at `offset` of `region` as the memory of operation `operation`, which is
    /// the peer's; `target` is the endpoint that it names, and whether it writes.
    fn bind_region(
        &mut self,
        _operation: Id,
        _region: Id,
        _offset: u64,
        _length: u64,
        _target: (u16, bool),
    ) -> Result<(), Refusal> {
        Err(Refusal::Fault)
    }
    /// Uses a copy of these bytes as the memory of operation `operation`, which is the peer's.
    fn keep(&mut self, _operation: Id, _bytes: &[u8]) {}
    /// Returns whether endpoint `target` can report another put.
    fn can_report(&self, _target: u16) -> bool {
        true
    }
    /// Reports the completion of the peer's operation on `region` to endpoint `target`, with remote
    /// data.
    fn accessed(&mut self, _region: Id, _access: Access, _target: u16, _arrival: &Arrival) {}
    /// Revokes this process's memory: data that peers read from now on, from sources that they
    /// received before, is discarded ([`super::session::rendezvous::pull::cma`]).
    fn revoke(&mut self) {}
    /// Returns the measured bandwidth of [`Self::place`].
    fn copy_speed(&self) -> CopySpeed {
        CopySpeed::default()
    }
    /// Completes receive `operation` with a whole message: [`Self::place`] of the bytes that fit,
    /// and [`Self::complete`].
    fn deliver(&mut self, operation: Id, bytes: &[u8], arrival: Arrival) {
        self.place(operation, 0, bytes);
        self.complete(operation, Ended::Received(arrival));
    }
}
