//! Handles of operations: polled, waited for, or awaited.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Instant;

use crate::progress::caretaker::EngineCell;
use crate::progress::completions::outcome_of;
use crate::progress::engine::Engine;
use crate::proto::table::Id;
use crate::types::{Error, Outcome};

enum State {
    /// It was over before the handle was made.
    Ready(Outcome),
    Pending {
        engine: Rc<EngineCell>,
        handle: Id,
    },
    Taken,
}

/// An outstanding send or receive and the buffer it owns.
///
/// Test it, wait for it, or `.await` it (a poll of the future makes progress and asks to be
/// polled again; any executor on the thread of the endpoint will do). Dropping the handle does not
/// cancel the operation: it runs to its end and the buffer is dropped then. An operation ends with
/// its endpoint at the latest (see [`Endpoint`](crate::Endpoint), *Closing*); its handle keeps the
/// engine, and what that has to deliver to others, going.
#[must_use = "an operation that nobody waits for still runs; its buffer and its result are lost"]
pub struct Operation {
    state: State,
}

impl std::fmt::Debug for Operation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self.state {
            State::Ready(_) => "Operation(ready)",
            State::Pending { .. } => "Operation(pending)",
            State::Taken => "Operation(taken)",
        })
    }
}

impl Operation {
    pub(crate) fn ready(outcome: Outcome) -> Self {
        Self { state: State::Ready(outcome) }
    }

    pub(crate) fn pending(engine: Rc<EngineCell>, handle: Id) -> Self {
        Self { state: State::Pending { engine, handle } }
    }

    fn take(&mut self) -> Option<Outcome> {
        match std::mem::replace(&mut self.state, State::Taken) {
            State::Ready(outcome) => Some(outcome),
            State::Pending { engine, handle } => {
                let outcome = take_outcome(&mut engine.borrow_mut(), handle);
                if outcome.is_none() {
                    self.state = State::Pending { engine, handle };
                }
                outcome
            }
            State::Taken => None,
        }
    }

    /// Makes progress; the outcome once it is there. After that the handle is spent.
    ///
    /// # Errors
    ///
    /// [`Error::Misuse`] on a spent handle, or the engine cannot make progress at all. How the
    /// operation ended is in [`Outcome::result`].
    pub fn test(&mut self) -> Result<Option<Outcome>, Error> {
        match &self.state {
            State::Pending { engine, .. } => {
                engine.borrow_mut().progress()?;
            }
            State::Ready(_) => {}
            State::Taken => return Err(spent()),
        }
        Ok(self.take())
    }

    /// Waits for the end of the operation, progressing everything meanwhile.
    ///
    /// # Errors
    ///
    /// Only when the engine cannot make progress at all. How the operation ended is in
    /// [`Outcome::result`].
    pub fn wait(mut self) -> Result<Outcome, Error> {
        loop {
            if let Some(outcome) = self.wait_until(None)? {
                return Ok(outcome);
            }
        }
    }

    /// Like [`Self::wait`], until `deadline`; `None` when that passes first.
    ///
    /// # Errors
    ///
    /// As for [`Self::test`].
    pub fn wait_deadline(&mut self, deadline: Instant) -> Result<Option<Outcome>, Error> {
        self.wait_until(Some(deadline))
    }

    fn wait_until(&mut self, deadline: Option<Instant>) -> Result<Option<Outcome>, Error> {
        match &self.state {
            State::Ready(_) => Ok(self.take()),
            State::Pending { engine, handle } => {
                let handle = *handle;
                let mut engine = engine.borrow_mut();
                engine.wait(deadline, |engine| take_outcome(engine, handle))
            }
            State::Taken => Err(spent()),
        }
    }

    /// Cancels the operation if it has not matched (receive) or gone out (send). `true`: it
    /// will end with [`Error::Cancelled`]; `false`: it will end as if nothing had been said.
    pub fn cancel(&mut self) -> bool {
        let State::Pending { engine, handle } = &self.state else { return false };
        let mut engine = engine.borrow_mut();
        let operation = engine.state.completions.handles.get(*handle).and_then(|h| h.operation);
        operation.is_some_and(|operation| engine.cancel(operation))
    }
}

fn spent() -> Error {
    Error::misuse("the outcome of this operation was taken already")
}

fn take_outcome(engine: &mut Engine, handle: Id) -> Option<Outcome> {
    let handles = &mut engine.state.completions.handles;
    handles.get(handle)?.outcome.as_ref()?;
    handles.remove(handle)?.outcome.map(outcome_of)
}

impl Future for Operation {
    type Output = Result<Outcome, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.test() {
            Ok(Some(outcome)) => Poll::Ready(Ok(outcome)),
            Ok(None) => {
                // The thread that polls is the one that progresses: there is nobody else to wake.
                context.waker().wake_by_ref();
                Poll::Pending
            }
            Err(error) => Poll::Ready(Err(error)),
        }
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        let State::Pending { engine, handle } = &self.state else { return };
        // A handle that is dropped while the engine runs (in a panic) is left to the engine.
        let Some(mut engine) = engine.borrow_to_let_go() else { return };
        let handles = &mut engine.state.completions.handles;
        match handles.get_mut(*handle) {
            Some(found) if found.outcome.is_some() => {
                handles.remove(*handle);
            }
            Some(found) => found.is_abandoned = true,
            None => {}
        }
    }
}
