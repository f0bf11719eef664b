//! Matched probe: messages that are removed from matching before they are received.

use super::endpoint::Endpoint;
use super::engine_ref::EngineRef;
use super::mode::Attached;
use super::options::ReceiveOptions;
use super::receive::memory_of;
use super::send::refused;
use crate::memory::{Buffer, RawSpan, raw_shape};
use crate::progress::engine::Engine;
use crate::progress::post::{Memory, Refused};
use crate::proto::table::Id;
use crate::types::{Error, Failed, OperationId, OperationName, Selector, Status};

/// A message that [`Endpoint::claim`] has removed from matching (`MPI_Mprobe`, `FI_CLAIM`); only a
/// receive that is posted for it receives it.
///
/// Until then it counts as an unexpected message of its engine. Dropping it discards the message:
/// the operation of its sender completes as if it had been received. It keeps its engine open.
pub struct ClaimedMessage<M: Attached> {
    engine: M::Engine,
    /// `None`: it was received.
    claim: Option<Id>,
    status: Status,
}

impl<M: Attached> std::fmt::Debug for ClaimedMessage<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClaimedMessage").field("status", &self.status).finish_non_exhaustive()
    }
}

impl<M: Attached> ClaimedMessage<M> {
    /// Returns the status that a receive of it will have.
    pub const fn status(&self) -> &Status {
        &self.status
    }

    /// Discards the message; the operation of its sender completes as if it had been received
    /// (`FI_DISCARD`).
    pub fn discard(self) {}
}

impl<M: Attached> Drop for ClaimedMessage<M> {
    fn drop(&mut self) {
        if let Some(claim) = self.claim.take() {
            self.engine.with_to_let_go(|engine| engine.state.core_mut().discard_claimed(claim));
        }
    }
}

impl<M: Attached> Endpoint<M> {
    /// Makes progress, and removes the message from matching that a receive with `selector` would
    /// match now, and that [`Self::peek`] finds.
    ///
    /// # Errors
    ///
    /// As for [`Self::peek`].
    pub fn claim(&self, selector: Selector) -> Result<Option<ClaimedMessage<M>>, Error> {
        let request = self.receive_request(&selector, 0);
        let engine = &self.open().engine;
        let claimed = engine.with(|engine| {
            engine.progress()?;
            engine.state.claim(&request)
        })?;
        Ok(claimed.map(|(claim, status)| {
            let (engine, claim) = (engine.clone(), Some(claim));
            ClaimedMessage { engine, claim, status }
        }))
    }

    fn post_claimed(
        &self,
        message: &mut ClaimedMessage<M>,
        memory: Memory,
        options: &ReceiveOptions,
    ) -> Result<OperationId, Refused> {
        let open = self.open();
        let Some(claim) =
            message.claim.filter(|_| M::Engine::is_same(&open.engine, &message.engine))
        else {
            let text =
                "a claimed message is received once, by an endpoint of the engine that has it";
            return Err((Error::misuse(text), memory));
        };
        let to = self.received_to(options);
        let number = open.number;
        let post =
            |engine: &mut Engine| engine.state.receive_claimed(claim, number, memory, to.route());
        let posted = open.engine.with(post)?;
        message.claim = None;
        Ok(OperationId(OperationName::Posted(posted)))
    }

    /// Receives a claimed message (`MPI_Imrecv`); otherwise like [`Self::post_receive`]. If the
    /// rest of the message is lost, the operation ends with the cause.
    ///
    /// # Errors
    ///
    /// [`Failed`] returns the buffer, and the message can still be received: [`Error::WouldBlock`]
    /// at a limit; [`Error::Misuse`] if it was received, its endpoint was closed, or it belongs to
    /// another engine.
    pub fn post_receive_claimed(
        &self,
        message: &mut ClaimedMessage<M>,
        buffer: impl Into<Buffer>,
        options: ReceiveOptions,
    ) -> Result<OperationId, Failed> {
        let memory = memory_of(buffer.into())?;
        self.post_claimed(message, memory, &options).map_err(refused)
    }

    /// Receives a claimed message into `pieces`; otherwise like [`Self::post_receive_claimed`].
    ///
    /// # Safety
    ///
    /// As for [`Self::post_receive_raw`].
    ///
    /// # Errors
    ///
    /// As for [`Self::post_receive_claimed`].
    pub unsafe fn post_receive_claimed_raw(
        &self,
        message: &mut ClaimedMessage<M>,
        pieces: &[RawSpan],
        options: ReceiveOptions,
    ) -> Result<OperationId, Error> {
        // SAFETY: the caller guarantees that the memory is valid.
        let shape = unsafe { raw_shape(pieces) }?;
        self.open().guard.note_borrowed();
        let memory = Memory { buffer: None, shape };
        self.post_claimed(message, memory, &options).map_err(|(error, _)| error)
    }
}
