//! Blocking calls, which borrow the memory of the caller.

use std::time::{Duration, Instant};

use super::endpoint::Endpoint;
use super::engine_ref::EngineRef;
use super::mode::Attached;
use super::options::{ReceiveOptions, SendOptions};
use crate::memory::Shape;
use crate::progress::engine::Engine;
use crate::progress::leave::LET_GO;
use crate::progress::post::{Memory, PostResult, Refused};
use crate::progress::posting::PostTarget;
use crate::types::{Envelope, Error, Peer, Selector, Status, TimeOut, TimeOutOutcome};

/// The result of a post with a handle.
type Started<M> = Result<PostResult<<<M as Attached>::Engine as EngineRef>::Handle>, Refused>;

impl<M: Attached> Endpoint<M> {
    /// Sends bytes and waits until the send has completed at the level of the options; the bytes
    /// can be reused when this returns.
    ///
    /// A send that was not sent by [`SendOptions::timeout`] is cancelled. One that was is aborted:
    /// this returns as soon as the kernel has released the bytes, whose connections are reset,
    /// which takes less than 100 ms.
    ///
    /// # Errors
    ///
    /// The error of the send; [`Error::TimedOut`] with its [outcome](crate::TimeOutOutcome). If the
    /// driver fails, or the kernel does not release the bytes of an aborted send within 2 seconds,
    /// the driver is closed, and all operations end with [`Error::System`]. If the kernel does not
    /// release the bytes within 2 more seconds, or this call panics, the process is aborted, since
    /// the caller would reuse memory that the kernel still accesses.
    pub fn send_blocking(
        &self,
        peer: Peer,
        envelope: Envelope,
        bytes: &[u8],
        options: SendOptions,
    ) -> Result<Status, Error> {
        let shape = Shape::contiguous(bytes.as_ptr().cast_mut(), bytes.len());
        let request = self.send_request(peer, envelope, bytes.len(), &options);
        let called = BlockingCall::new("send_blocking", Some(peer)).with(envelope);
        self.block_on(options.timeout, called, |engine| {
            engine.posts().start_send(&request, Memory { buffer: None, shape }, options.more)
        })
    }

    /// Receives into bytes of the caller and waits for the message.
    ///
    /// A receive that has not matched by [`ReceiveOptions::timeout`] is cancelled. One whose
    /// message has begun to arrive is aborted: the message is lost, the operation of its sender
    /// fails, and `into` contains a part of it. Otherwise as for [`Self::send_blocking`].
    ///
    /// # Errors
    ///
    /// The error of the receive; otherwise as for [`Self::send_blocking`].
    pub fn receive_blocking(
        &self,
        selector: Selector,
        into: &mut [u8],
        options: ReceiveOptions,
    ) -> Result<Status, Error> {
        let shape = Shape::contiguous(into.as_mut_ptr(), into.len());
        let request = self.receive_request(&selector, into.len());
        let called = BlockingCall::new("receive_blocking", selector.source).with(selector.envelope);
        let called = BlockingCall { aborted: TimeOutOutcome::MessageLost, ..called };
        self.block_on(options.timeout, called, |engine| {
            let memory = Memory { buffer: None, shape };
            engine.posts().start_receive(&request, memory).map(PostResult::Pending)
        })
    }

    /// Posts an operation on borrowed memory and does not return before it has ended. At the
    /// time-out it is cancelled, or aborted.
    pub(super) fn block_on(
        &self,
        timeout: Option<Duration>,
        called: BlockingCall,
        post: impl FnOnce(&M::Engine) -> Started<M>,
    ) -> Result<Status, Error> {
        let engine = &self.open().engine;
        let mut deadline = deadline_of(timeout);
        // From here on the engine may hold the caller's memory, also while a panic unwinds.
        let borrowed = Borrowed;
        let result = match post(engine) {
            Ok(PostResult::Sent(status, _)) => Ok(status),
            Ok(PostResult::Pending(handle)) => {
                let mut late = None;
                loop {
                    match engine.wait_for_outcome(&handle, deadline) {
                        Ok(Some(Ok(completed))) => break Ok(completed.status),
                        Ok(Some(Err(failed))) => {
                            break Err(match (failed.error, late) {
                                (Error::Cancelled, Some(outcome)) => {
                                    called.timed_out(engine, timeout, outcome)
                                }
                                (error, _) => error,
                            });
                        }
                        Ok(None) if late.is_some() => {
                            engine.with(Engine::release_by_force);
                            deadline = None;
                        }
                        Ok(None) => {
                            let is_taken_back = engine.cancel_handle(&handle);
                            if !is_taken_back {
                                engine.abort_handle(&handle);
                            }
                            late = Some(match is_taken_back {
                                true => TimeOutOutcome::NotDone,
                                false => called.aborted,
                            });
                            deadline = deadline_of(Some(LET_GO));
                        }
                        // The thread that finds that the driver has failed closes it, which ends
                        // this.
                        Err(_) => {
                            let turn = engine.with(Engine::progress);
                            match (engine.take_outcome(&handle), turn) {
                                (Some(ended), _) => {
                                    let ended = ended.map_err(|failed| failed.error);
                                    break ended.map(|completed| completed.status);
                                }
                                (None, Ok(_)) => {}
                                (None, Err(error)) => {
                                    drop_and_abort(borrowed, &error.to_string());
                                }
                            }
                        }
                    }
                }
            }
            Err((error, _)) => Err(error),
        };
        std::mem::forget(borrowed);
        result
    }
}

/// A blocking call, as the error of its time-out names it.
pub(super) struct BlockingCall {
    name: &'static str,
    peer: Option<Peer>,
    envelope: Option<Envelope>,
    /// The outcome of its operation when that is aborted.
    aborted: TimeOutOutcome,
}

impl BlockingCall {
    pub(super) fn new(name: &'static str, peer: Option<Peer>) -> Self {
        Self { name, peer, envelope: None, aborted: TimeOutOutcome::Unknown }
    }

    fn with(self, envelope: Envelope) -> Self {
        Self { envelope: Some(envelope), ..self }
    }

    pub(super) fn timed_out(
        &self,
        engine: &impl EngineRef,
        after: Option<Duration>,
        outcome: TimeOutOutcome,
    ) -> Error {
        let address = |peer| engine.with(|engine| engine.state.address_of(peer));
        let (peer, envelope) = (self.peer.and_then(address), self.envelope);
        TimeOut { peer, envelope, ..TimeOut::new(self.name, after, outcome) }.into()
    }
}

/// Returns the deadline of a wait; `None`: no limit, also if the clock cannot represent it.
pub(super) fn deadline_of(timeout: Option<Duration>) -> Option<Instant> {
    timeout.and_then(|timeout| Instant::now().checked_add(timeout))
}

/// Aborts the process when it is dropped: the kernel may still write to borrowed memory, which the
/// caller is about to reuse.
struct Borrowed;

impl Drop for Borrowed {
    fn drop(&mut self) {
        std::process::abort();
    }
}

fn drop_and_abort(borrowed: Borrowed, cause: &str) -> ! {
    tracing::error!(
        "the driver failed, and the kernel does not release memory that a blocking call \
         borrowed: the process is aborted before that memory is reused: {cause}"
    );
    drop(borrowed);
    unreachable!("dropping it has ended the process")
}

#[cfg(test)]
mod tests;
