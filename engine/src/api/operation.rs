//! Handles of operations: polled, waited for, or awaited.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use super::blocking::deadline_of;
use super::engine_ref::EngineRef;
use super::mode::{Attached, Owned};
use crate::types::{Completed, Error, Failed, Outcome};

enum State<E: EngineRef> {
    /// It was over before the handle was made.
    Ready(Completed),
    Pending {
        engine: E,
        handle: E::Handle,
        /// Of a future: until when it asks to be polled again at once.
        spins_until: Option<Instant>,
    },
    Taken,
}

/// An outstanding send or receive and the buffer it owns.
///
/// Test it, wait for it, or `.await` it. An operation ends with its endpoint at the latest (see
/// [`Endpoint`](crate::Endpoint), *Closing*); its handle keeps the engine, and what that has to
/// deliver to others, going.
///
/// # Dropping
///
/// The drop of a handle detaches the operation: it runs to its end, and its buffer is dropped then.
/// [`Self::cancel`] before it ends what has not matched or gone out.
///
/// # Futures
///
/// The poll of a future makes progress. For the time of the setting `spin` it asks to be polled
/// again at once; then the task sleeps until there is something to do, and costs nothing meanwhile.
/// Any executor will do: for an owned endpoint one of its own thread, for a shared one any. (An
/// owned engine without datagrams, `control_lane = tcp`, has nobody to wake tasks: they ask to be
/// polled again.)
#[must_use = "an operation that nobody waits for still runs; its buffer and its result are lost"]
pub struct Operation<M: Attached = Owned> {
    state: State<M::Engine>,
}

impl<M: Attached> std::fmt::Debug for Operation<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self.state {
            State::Ready(_) => "Operation(ready)",
            State::Pending { .. } => "Operation(pending)",
            State::Taken => "Operation(taken)",
        })
    }
}

impl<M: Attached> Operation<M> {
    pub(crate) fn ready(completed: Completed) -> Self {
        Self { state: State::Ready(completed) }
    }

    pub(crate) fn pending(engine: M::Engine, handle: <M::Engine as EngineRef>::Handle) -> Self {
        Self { state: State::Pending { engine, handle, spins_until: None } }
    }

    /// The state is spent with the outcome.
    fn spend(&mut self, outcome: Option<Outcome>) -> Result<Option<Completed>, Failed> {
        if outcome.is_some() {
            self.state = State::Taken;
        }
        outcome.transpose()
    }

    /// Makes progress; what the operation ended with once it has. After that the handle is spent.
    ///
    /// # Errors
    ///
    /// How the operation failed, with its buffer. Also with an empty buffer: [`Error::Misuse`] on a
    /// spent handle, or the engine cannot make progress at all, and the operation is not over.
    pub fn test(&mut self) -> Result<Option<Completed>, Failed> {
        if let State::Pending { engine, handle, .. } = &self.state {
            engine.progress().map_err(without_buffer)?;
            let outcome = engine.take_outcome(handle);
            return self.spend(outcome);
        }
        match std::mem::replace(&mut self.state, State::Taken) {
            State::Ready(completed) => Ok(Some(completed)),
            State::Pending { .. } | State::Taken => Err(spent()),
        }
    }

    /// Waits for the end of the operation, progressing everything meanwhile.
    ///
    /// # Errors
    ///
    /// As for [`Self::test`].
    pub fn wait(mut self) -> Result<Completed, Failed> {
        loop {
            if let Some(completed) = self.wait_until(None)? {
                return Ok(completed);
            }
        }
    }

    /// Like [`Self::wait`], for `timeout` at the most; `None` when that passes first.
    ///
    /// # Errors
    ///
    /// As for [`Self::test`].
    pub fn wait_timeout(&mut self, timeout: Duration) -> Result<Option<Completed>, Failed> {
        self.wait_until(deadline_of(Some(timeout)))
    }

    /// Like [`Self::wait`], until `deadline`; `None` when that passes first.
    ///
    /// # Errors
    ///
    /// As for [`Self::test`].
    pub fn wait_deadline(&mut self, deadline: Instant) -> Result<Option<Completed>, Failed> {
        self.wait_until(Some(deadline))
    }

    pub(super) fn wait_until(
        &mut self,
        deadline: Option<Instant>,
    ) -> Result<Option<Completed>, Failed> {
        let State::Pending { engine, handle, .. } = &self.state else { return self.test() };
        let outcome = engine.wait_for_outcome(handle, deadline).map_err(without_buffer)?;
        self.spend(outcome)
    }

    /// Cancels the operation if it has not matched (receive) or gone out (send). `true`: it
    /// will end with [`Error::Cancelled`]; `false`: it will end as if nothing had been said.
    pub fn cancel(&mut self) -> bool {
        let State::Pending { engine, handle, .. } = &self.state else { return false };
        engine.cancel_handle(handle)
    }
}

fn without_buffer(error: Error) -> Failed {
    Failed::new((error, None))
}

fn spent() -> Failed {
    without_buffer(Error::misuse("the outcome of this operation was taken already"))
}

// Nothing in it is pinned: what the kernel writes to is in the engine.
impl<M: Attached> Unpin for Operation<M> {}

impl<M: Attached> Future for Operation<M> {
    type Output = Result<Completed, Failed>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.test() {
            Ok(Some(completed)) => Poll::Ready(Ok(completed)),
            Ok(None) => {
                let State::Pending { engine, handle, spins_until } = &mut self.state else {
                    return Poll::Pending;
                };
                let now = Instant::now();
                let spins = now < *spins_until.get_or_insert_with(|| now + engine.spin());
                let waker = context.waker();
                if spins || !engine.wake_at_end(handle, waker) || !engine.wake_when_readable(waker)
                {
                    waker.wake_by_ref();
                }
                Poll::Pending
            }
            Err(failed) => Poll::Ready(Err(failed)),
        }
    }
}

impl<M: Attached> Drop for Operation<M> {
    fn drop(&mut self) {
        if let State::Pending { engine, handle, .. } = &self.state {
            engine.abandon(handle);
        }
    }
}
