//! Posts to an engine: at once where one thread owns it, or also by requests where several share
//! it.

use super::completions::{PostedTo, ReceiveMemory};
use super::post::{Memory, PostResult, Refused};
use crate::memory::RawSpan;
use crate::proto::receive::ReceiveRequest;
use crate::proto::session::one_sided::origin::OneSidedRequest;
use crate::proto::session::send::SendRequest;
use crate::proto::table::Id;
use crate::types::{Error, OperationId, OperationName};

/// Returns the name of an operation that was posted at once.
#[inline]
pub(crate) fn named(id: Id) -> OperationId {
    OperationId(OperationName::Posted(id))
}

/// An engine to post to. Each call is one piece of work for it.
pub trait PostTarget {
    /// Names an operation whose end is not for a queue.
    type Handle;

    /// Posts a send whose end goes to a queue. `None`: it is over, and its completion is there
    /// unless it is a silent one.
    fn post_send(
        &self,
        request: &SendRequest,
        memory: Memory,
        to: PostedTo,
        more: bool,
    ) -> Result<Option<OperationId>, Refused>;

    /// Posts a send of one piece of memory, which its poster keeps valid until that has completed,
    /// and whose end goes to a queue. `None`: as for [`Self::post_send`].
    fn post_send_from(
        &self,
        request: &SendRequest,
        span: RawSpan,
        to: PostedTo,
        more: bool,
    ) -> Result<Option<OperationId>, Error>;

    /// Posts a receive into one piece of memory, whose completion goes to a queue. Takes `memory`
    /// unless it is refused.
    fn post_into(
        &self,
        request: &ReceiveRequest,
        memory: &mut ReceiveMemory,
        to: PostedTo,
    ) -> Result<OperationId, Error>;

    /// Posts a receive whose end goes to a queue.
    fn post_receive(
        &self,
        request: &ReceiveRequest,
        memory: Memory,
        to: PostedTo,
    ) -> Result<OperationId, Refused>;

    /// Posts a send of a copy of `bytes`, of which only a failure is reported.
    fn inject(
        &self,
        request: &SendRequest,
        bytes: &[u8],
        to: PostedTo,
        more: bool,
    ) -> Result<(), Error>;

    /// Posts a send with a handle.
    fn start_send(
        &self,
        request: &SendRequest,
        memory: Memory,
        more: bool,
    ) -> Result<PostResult<Self::Handle>, Refused>;

    /// Posts a receive with a handle.
    fn start_receive(
        &self,
        request: &ReceiveRequest,
        memory: Memory,
    ) -> Result<Self::Handle, Refused>;

    /// Posts an operation on the memory of a peer whose end goes to a queue.
    fn post_one_sided(
        &self,
        request: OneSidedRequest,
        memory: Memory,
        to: PostedTo,
        more: bool,
    ) -> Result<OperationId, Refused>;

    /// The same, with a handle. A flush precedes one with a fence; its failure is reported to
    /// `flushed_to`.
    fn start_one_sided(
        &self,
        request: OneSidedRequest,
        memory: Memory,
        more: bool,
        flushed_to: PostedTo,
    ) -> Result<PostResult<Self::Handle>, Refused>;

    /// Posts a put of a copy of `bytes`, of which only a failure is reported.
    fn inject_put(
        &self,
        request: OneSidedRequest,
        bytes: &[u8],
        to: PostedTo,
        more: bool,
    ) -> Result<(), Error>;

    /// Cancels an operation of a queue; `false`: too late.
    fn cancel(&self, operation: OperationId) -> bool;
}
