//! Blocking calls, which borrow the memory of the caller.

use std::time::{Duration, Instant};

use super::endpoint::Endpoint;
use super::engine_ref::EngineRef;
use super::mode::Attached;
use super::options::{ReceiveOptions, SendOptions};
use crate::memory::Shape;
use crate::progress::engine::Engine;
use crate::progress::post::{Memory, Posted, Refused};
use crate::types::{Envelope, Error, Peer, Selector, Status};

impl<M: Attached> Endpoint<M> {
    /// Sends bytes and waits until the send has come as far as the options' level asks; they can be
    /// reused then in any case.
    ///
    /// A send that has not gone out by [`SendOptions::timeout`] is taken back. One that has is
    /// waited for: its memory is in use.
    ///
    /// # Errors
    ///
    /// How the send failed; [`Error::TimedOut`] when it was taken back. If the driver fails for
    /// good, it is closed, and all operations end with [`Error::System`]. Only if the kernel does
    /// not let go of the borrowed bytes within 2 seconds of that, or this call panics, is the
    /// process aborted: nobody can go on with memory that is in use.
    pub fn send_blocking(
        &self,
        peer: Peer,
        envelope: Envelope,
        bytes: &[u8],
        options: SendOptions,
    ) -> Result<Status, Error> {
        let shape = Shape::contiguous(bytes.as_ptr().cast_mut(), bytes.len());
        let request = self.send_request(peer, envelope, bytes.len(), &options);
        self.block_on(options.timeout, |engine| {
            engine.start_send(&request, Memory { buffer: None, shape }, options.more)
        })
    }

    /// Receives into bytes of the caller and waits for the message.
    ///
    /// A receive that has not matched by [`ReceiveOptions::timeout`] is taken back. One that has is
    /// waited for.
    ///
    /// # Errors
    ///
    /// How the receive failed; otherwise as for [`Self::send_blocking`].
    pub fn receive_blocking(
        &self,
        selector: Selector,
        into: &mut [u8],
        options: ReceiveOptions,
    ) -> Result<Status, Error> {
        let shape = Shape::contiguous(into.as_mut_ptr(), into.len());
        let request = self.receive_request(&selector, into.len());
        self.block_on(options.timeout, |engine| {
            let memory = Memory { buffer: None, shape };
            engine.start_receive(&request, memory).map(Posted::Pending)
        })
    }

    /// Posts an operation on borrowed memory and does not return before it has ended.
    #[allow(clippy::type_complexity, reason = "the handle is that of the engine reference")]
    pub(super) fn block_on(
        &self,
        timeout: Option<Duration>,
        post: impl FnOnce(&M::Engine) -> Result<Posted<<M::Engine as EngineRef>::Handle>, Refused>,
    ) -> Result<Status, Error> {
        let engine = &self.open().engine;
        let mut deadline = deadline_of(timeout);
        // From here on the engine may hold the caller's memory, also while a panic unwinds.
        let borrowed = Borrowed;
        let result = match post(engine) {
            Ok(Posted::Sent(status, _)) => Ok(status),
            Ok(Posted::Pending(handle)) => {
                let mut is_late = false;
                loop {
                    match engine.wait_for_outcome(&handle, deadline) {
                        Ok(Some(Ok(completed))) => break Ok(completed.status),
                        Ok(Some(Err(failed))) => {
                            break Err(match failed.error {
                                Error::Cancelled if is_late => Error::TimedOut,
                                error => error,
                            });
                        }
                        Ok(None) => {
                            is_late = engine.cancel_handle(&handle);
                            deadline = None;
                        }
                        // Who finds that its driver has failed closes it, and so ends this.
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

/// The time at which a wait ends; `None`: never, also where the clock cannot tell it.
pub(super) fn deadline_of(timeout: Option<Duration>) -> Option<Instant> {
    timeout.and_then(|timeout| Instant::now().checked_add(timeout))
}

/// Ends the process when it is dropped: borrowed memory is in flight, the kernel may write to it,
/// and whoever lent it is about to use it for something else.
struct Borrowed;

impl Drop for Borrowed {
    fn drop(&mut self) {
        std::process::abort();
    }
}

fn drop_and_abort(borrowed: Borrowed, cause: &str) -> ! {
    tracing::error!(
        "the driver failed, and the kernel does not let go of memory that a blocking call \
         borrowed: the process ends before that is used for something else: {cause}"
    );
    drop(borrowed);
    unreachable!("dropping it has ended the process")
}

#[cfg(test)]
mod tests;
