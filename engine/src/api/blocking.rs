//! Blocking calls, which borrow the memory of the caller.

use super::endpoint::{Endpoint, Owned};
use super::receive::label_of;
use super::send::context_of;
use crate::memory::Shape;
use crate::progress::completions::Route;
use crate::progress::engine::Engine;
use crate::progress::post::{Memory, Posted};
use crate::proto::effects::CompletionLevel;
use crate::types::{Envelope, Error, Peer, Selector, Status};

impl Endpoint<Owned> {
    /// Sends bytes and waits until the send has come as far as `level` asks; they can be reused
    /// then in any case. The message has the endpoint's hint.
    ///
    /// If the driver fails for good meanwhile, the process is aborted: the kernel may hold the
    /// borrowed memory and nothing can be returned to.
    ///
    /// # Errors
    ///
    /// How the send failed.
    pub fn send_blocking(
        &self,
        peer: Peer,
        envelope: Envelope,
        bytes: &[u8],
        level: CompletionLevel,
    ) -> Result<Status, Error> {
        let shape = Shape::contiguous(bytes.as_ptr().cast_mut(), bytes.len());
        let request =
            self.send_request(peer, context_of(envelope), envelope.tag, bytes.len(), (level, None));
        self.block_on(|engine, route| {
            let memory = Memory { buffer: None, shape };
            let posted = engine.post_send(&request, memory, route, false);
            posted.map_err(|(error, _)| error)
        })
    }

    /// Receives into bytes of the caller and waits for the message.
    ///
    /// If the driver fails for good meanwhile, the process is aborted: the kernel may hold the
    /// borrowed memory and nothing can be returned to.
    ///
    /// # Errors
    ///
    /// How the receive failed.
    pub fn receive_blocking(&self, selector: Selector, into: &mut [u8]) -> Result<Status, Error> {
        let shape = Shape::contiguous(into.as_mut_ptr(), into.len());
        let (context, tag, ignore) = label_of(&selector);
        let request = self.receive_request(selector.source, context, tag, ignore, into.len());
        self.block_on(|engine, route| {
            let memory = Memory { buffer: None, shape };
            let posted = engine.post_receive(&request, memory, route);
            posted.map(Posted::Pending).map_err(|(error, _)| error)
        })
    }

    /// Posts an operation on borrowed memory and does not return before it has ended.
    fn block_on(
        &self,
        post: impl FnOnce(&mut Engine, Route) -> Result<Posted, Error>,
    ) -> Result<Status, Error> {
        let mut engine = self.mode.engine.borrow_mut();
        let handle = engine.new_handle().ok_or(Error::WouldBlock("cq_entries"))?;
        // From here on the engine may hold the caller's memory, also while a panic unwinds.
        let borrowed = Borrowed;
        let result = match post(&mut engine, Route::Handle(handle)) {
            Ok(Posted::Pending(_)) => {
                let ended = |engine: &mut Engine| {
                    let handles = &mut engine.state.completions.handles;
                    handles.get(handle)?.outcome.as_ref()?;
                    handles.remove(handle)?.outcome
                };
                match engine.wait(None, ended) {
                    Ok(Some((result, _))) => result,
                    Ok(None) => drop_and_abort(borrowed, "the wait ended early"),
                    Err(error) => drop_and_abort(borrowed, &error.to_string()),
                }
            }
            Ok(Posted::Sent(status, _)) => {
                engine.state.completions.handles.remove(handle);
                Ok(status)
            }
            Err(error) => {
                engine.state.completions.handles.remove(handle);
                Err(error)
            }
        };
        std::mem::forget(borrowed);
        result
    }
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
    tracing::error!("the engine failed with a borrowed buffer in flight: {cause}");
    drop(borrowed);
    unreachable!("dropping it has ended the process")
}
