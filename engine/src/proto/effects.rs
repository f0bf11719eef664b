//! What the protocol has done to user memory and to users.

use super::eager_limit::CopySpeed;
use super::failure::PeerFailure;
use super::regions::{Access, Refusal};
use super::table::Id;
use crate::wire::locators::Locators;

/// How far a send must have come before it completes, as libfabric and MPI name it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub enum CompletionLevel {
    /// The buffer may be reused (`FI_INJECT_COMPLETE`; `MPI_Send`). Where the message was lost with
    /// its peer, the next call that concerns the peer says so.
    #[default]
    Inject,
    /// The peer's engine has the message (`FI_DELIVERY_COMPLETE` to its buffers). By datagrams it
    /// may have come before an earlier one of its stream; if the session ends before that one
    /// comes, it is lost with it. A peer that had exited, or said goodbye, before it came ends the
    /// send in an error. An engine takes messages for endpoints that it has closed, too.
    Delivery,
    /// A receive of the peer has matched the message (`FI_MATCH_COMPLETE`; `MPI_Ssend`). A
    /// rendezvous message completes like this at every level: its buffer is needed until then.
    Match,
}

/// What a receive got.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Arrival {
    /// Name of the remote endpoint that sent it.
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

/// A remote endpoint, to be named in errors.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RemoteName {
    /// Its engine.
    pub(crate) engine: u64,
    /// Where that listens.
    pub(crate) locators: Locators,
    /// Its id there.
    pub(crate) endpoint: u16,
}

/// How an operation ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Ended {
    /// A send reached its level; `accepted` bytes fitted the receive, where that is known.
    Sent { accepted: u64 },
    /// A receive holds its message (cut to its capacity where that is shorter).
    Received(Arrival),
    /// A multi-receive takes no more messages, and all that it took have ended: `used` bytes of its
    /// memory hold them.
    Released { used: u64 },
    /// The peer failed; which one, as far as it is known.
    Failed(PeerFailure, Option<RemoteName>),
    /// The target refused an operation on its memory.
    Refused(Refusal, Option<RemoteName>),
    /// A flush is done, and so many operations before it were refused.
    Unflushed(u64),
    /// A receive from anybody, and nobody is left.
    Lonely,
    /// Cancelled by the user.
    Cancelled,
}

/// What the engine loop does for the protocol.
pub(crate) trait Effects {
    /// Copies `bytes` to `offset` of the memory of receive `operation`; they fit.
    fn place(&mut self, operation: Id, offset: usize, bytes: &[u8]);
    /// Copies `length` bytes at `offset` of the memory of send `from` to the same place of receive
    /// `to`; they fit both.
    fn copy(&mut self, from: Id, to: Id, offset: u64, length: u64);
    /// CRC32C of `length` bytes at `offset` of the memory of an operation; they are inside it, and
    /// nothing writes them meanwhile.
    fn checksum(&self, operation: Id, offset: u64, length: u32) -> u32;
    /// Operation `operation`, whose user data is `user`, has ended; no kernel request refers to
    /// its memory.
    fn complete(&mut self, operation: Id, ended: Ended);
    /// Multi-receive `receive` takes a message: operation `slice` receives it into `length` bytes
    /// at `offset` of the same memory, and ends before `receive` does.
    fn slice(&mut self, receive: Id, slice: Id, offset: u64, length: u64);
    /// Receive `receive` has matched a message that is not all here; if it fails, that is what it
    /// failed to receive.
    fn matched(&mut self, _receive: Id, _arrival: &Arrival) {}
    /// What receive `receive` gets was put back before, with this order among such messages
    /// ([`super::put_back`]); it has it again if it is put back again.
    fn order(&mut self, _receive: Id, _order: u64) {}
    /// Whether the end of one more message of multi-receive `receive` can be reported.
    fn has_room(&self, _receive: Id) -> bool {
        true
    }
    /// Writes `bytes` to `offset` of region `region`, where they fit.
    fn put(&mut self, _region: Id, _offset: u64, _bytes: &[u8]) -> Result<(), Refusal> {
        Err(Refusal::Fault)
    }
    /// Applies the atomic operation of the code to what is at `offset` of `region`, as one of the
    /// datatype of the other code: with (what to compare with, operands); the values of before, if
    /// they are wanted.
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
    /// Operation `operation`, which is the peer's, has `length` bytes at `offset` of `region` for
    /// its memory; `lent_to` is the endpoint that it names, and whether it writes.
    fn lend(
        &mut self,
        _operation: Id,
        _region: Id,
        _offset: u64,
        _length: u64,
        _lent_to: (u16, bool),
    ) -> Result<(), Refusal> {
        Err(Refusal::Fault)
    }
    /// Operation `operation`, which is the peer's, has these bytes for its memory.
    fn keep(&mut self, _operation: Id, _bytes: &[u8]) {}
    /// Whether endpoint `target` can be told of another put.
    fn can_tell(&self, _target: u16) -> bool {
        true
    }
    /// An operation of the peer on `region` is done; endpoint `target` is told of its remote data.
    fn accessed(&mut self, _region: Id, _access: Access, _target: u16, _arrival: &Arrival) {}
    /// What peers read of this process's memory from now on, by the sources that they were told
    /// before, does not count ([`super::cma`]).
    fn revoke(&mut self) {}
    /// How fast [`Self::place`] copies, as far as that is measured.
    fn copy_speed(&self) -> CopySpeed {
        CopySpeed::default()
    }
    /// Receive `operation` ends with a message that came whole: [`Self::place`] of what fits, and
    /// [`Self::complete`].
    fn deliver(&mut self, operation: Id, bytes: &[u8], arrival: Arrival) {
        self.place(operation, 0, bytes);
        self.complete(operation, Ended::Received(arrival));
    }
}
