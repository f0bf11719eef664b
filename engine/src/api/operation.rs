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
        /// The endpoint of a receive.
        receives_at: Option<u16>,
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
/// A receive whose handle is dropped before its outcome was taken has received nothing:
///
/// * not matched: it is cancelled;
/// * ended with a whole message: the message is put back, before all that have come since. A
///   receive that is posted already and accepts it gets it at once, else the next one. Messages
///   that are put back keep their order among each other. (They are kept by copies, outside of the
///   bounds of unexpected messages.)
/// * matched, with a part of the message in its buffer and the rest under way: it runs to its end,
///   and the message is lost. So is one that was longer than the buffer, and one whose peer or
///   endpoint is gone. Dropping is not cancel-safe there; [`Self::wait`] for it, or keep the
///   handle.
///
/// The drop of a send, or of an operation on memory, detaches it: it runs to its end, and its
/// buffer is dropped then. [`Self::cancel`] before it ends what has not gone out. [`Self::detach`]
/// does the same to any operation.
///
/// # Futures
///
/// The poll of a future makes progress. For the time of the setting `spin` it asks to be polled
/// again at once; then the task sleeps until there is something to do, and costs nothing meanwhile.
/// Any executor will do: for an owned endpoint one of its own thread, for a shared one any. (Where
/// the process can have no thread that wakes tasks, they ask to be polled again.)
///
/// A future that loses a `select!`, or is dropped by a time-out, is a handle that is dropped: a
/// receive is cancel-safe but for a message in several pieces that is under way, a send goes out or
/// not, as if it had not been awaited. Polling `&mut operation` is cancel-safe always.
#[must_use = "a receive that is dropped is cancelled; a send that is dropped still runs, and its \
              buffer and its result are lost"]
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
        Self { state: State::Pending { engine, handle, receives_at: None, spins_until: None } }
    }

    /// A receive of the endpoint of a number.
    pub(crate) fn receiving(
        engine: M::Engine,
        handle: <M::Engine as EngineRef>::Handle,
        endpoint: u16,
    ) -> Self {
        let receives_at = Some(endpoint);
        Self { state: State::Pending { engine, handle, receives_at, spins_until: None } }
    }

    /// Lets the operation run to its end without this handle; its buffer and its outcome are
    /// dropped then, and so is the message of a receive.
    pub fn detach(mut self) {
        if let State::Pending { engine, handle, .. } = &self.state {
            engine.abandon(handle);
        }
        self.state = State::Taken;
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
                let State::Pending { engine, handle, spins_until, .. } = &mut self.state else {
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
        if let State::Pending { engine, handle, receives_at, .. } = &self.state {
            match *receives_at {
                Some(endpoint) => engine.give_up_receive(handle, endpoint),
                None => engine.abandon(handle),
            }
        }
    }
}
