//! Operations: tested, waited for, or awaited.

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

/// An outstanding operation and the buffer that it owns.
///
/// Test it, wait for it, or `.await` it. An operation ends at the latest when its endpoint closes
/// (see [`Endpoint`](crate::Endpoint), *Closing*); its handle keeps the engine open.
///
/// # Dropping
///
/// Dropping a receive before its outcome was taken undoes it:
///
/// * If it has not matched, it is cancelled.
/// * If its message has arrived completely, the message is put back, before all that have arrived
///   since: a posted receive that accepts it gets it at once, else the next one. Messages that are
///   put back keep their order. (They are copied, and do not count as unexpected messages.)
/// * If a part of its message is in the buffer, it runs to its end, and the message is lost. So is
///   a message that was longer than the buffer, and one whose peer or endpoint is gone. Dropping is
///   not cancel-safe in this case: [`Self::wait`] for it, or keep the handle.
///
/// If the handle is dropped in a callback of the engine (a subscriber of `tracing`, for example),
/// all of this happens when the call into the engine ends.
///
/// Dropping a send or a one-sided operation detaches it: it runs to its end, and its buffer is
/// dropped then. [`Self::cancel`] ends one that has not been sent. [`Self::detach`] detaches any
/// operation.
///
/// # Futures
///
/// Polling the future makes progress. For the time of the setting `spin` it asks to be polled again
/// at once; then the task sleeps until there is something to do. Any executor works: for an owned
/// endpoint one that runs on its thread, for a shared one any. (If the process could not start a
/// thread that wakes tasks, they ask to be polled again.)
///
/// A future that loses a `select!`, or is dropped by a time-out, is a dropped handle: a receive is
/// cancel-safe except for a partly received message, and a send goes on. Polling `&mut operation`
/// is always cancel-safe.
///
/// # Example
///
/// ```
/// # let settings = ringrail::settings::Settings::isolated().set("listen_address", "127.0.0.1");
/// # let domain = ringrail::Domain::with_settings(settings.insecure(true).build()?)?;
/// # let (left, right) = (domain.endpoint()?.share()?, domain.endpoint()?.share()?);
/// # let peer = left.insert_peer(&right.address())?;
/// use ringrail::{Envelope, Selector, SendOptions};
///
/// let receive = right.receive(Selector::from_any(Envelope::tagged(1)), vec![0; 64])?;
/// let send = left.send(peer, Envelope::tagged(1), b"hello".to_vec(), SendOptions::new())?;
/// // ... compute ...
/// let received = receive.wait()?; // in an `async` function: `receive.await?`
/// assert_eq!(&received.buffer.into_vec().unwrap()[..received.status.length], b"hello");
/// send.wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
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

    /// Lets the operation run to its end without this handle; its buffer and its outcome, and the
    /// message of a receive, are dropped then.
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

    /// Makes progress, and returns the outcome of the operation once it has ended; the outcome can
    /// be taken once.
    ///
    /// # Errors
    ///
    /// The error of the operation, with its buffer. With an empty buffer: [`Error::Misuse`] if the
    /// outcome was taken before, or [`Error::System`] if the engine cannot make progress, in which
    /// case the operation has not ended.
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

    /// Makes progress until the operation has ended, and returns its outcome.
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

    /// Like [`Self::wait`], up to `timeout`; `None` if that passes first.
    ///
    /// # Errors
    ///
    /// As for [`Self::test`].
    pub fn wait_timeout(&mut self, timeout: Duration) -> Result<Option<Completed>, Failed> {
        self.wait_until(deadline_of(Some(timeout)))
    }

    /// Like [`Self::wait`], until `deadline`; `None` if that passes first.
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

    /// Cancels the operation if it has not matched (receive) or been sent (send). `true`: it will
    /// end with [`Error::Cancelled`]; `false`: it will end as if it had not been cancelled. A
    /// receive whose message is arriving counts as matched.
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
