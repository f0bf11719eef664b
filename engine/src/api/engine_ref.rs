//! The reference of an attached endpoint to its engine: the calls that differ between the modes of
//! endpoints.

use std::io;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use crate::progress::engine::Engine;
use crate::progress::posting::PostTarget;
use crate::progress::wait_object::WaitObject;
use crate::types::{Completion, Error, Outcome};

/// A counted reference to an engine that is open.
///
/// Each call is one piece of work for the engine: nothing is borrowed between two of them.
pub trait EngineRef: Clone {
    /// What an endpoint closes by.
    type Weak;
    /// Names an operation whose end is not for a queue.
    type Handle;
    /// What it posts by.
    type Posts: PostTarget<Handle = Self::Handle>;
    /// A completion queue.
    type Queue: Clone;

    /// See [`Self::Weak`].
    fn downgrade(&self) -> Self::Weak;

    /// The engine, unless it is closed, or inherited by `fork`.
    fn upgrade(weak: &Self::Weak) -> Option<Self>;

    /// Whether both are the same engine.
    fn is_same(one: &Self, other: &Self) -> bool;

    /// Makes a call with the engine, after waiting for its turn. Panics if this thread has the
    /// engine already.
    fn with<R>(&self, call: impl FnOnce(&mut Engine) -> R) -> R;

    /// As [`Self::with`], for what is dropped: `None`, and no call, if this thread has the engine
    /// already, or inherited it by `fork`.
    fn with_to_let_go<R>(&self, call: impl FnOnce(&mut Engine) -> R) -> Option<R>;

    /// Does what can be done without waiting. `true`: something happened.
    fn progress(&self) -> Result<bool, Error>;

    /// Makes progress until `done` returns a value, or `deadline` passes (`Ok(None)`).
    fn wait<T>(
        &self,
        deadline: Option<Instant>,
        done: impl FnMut(&mut Engine) -> Option<T>,
    ) -> Result<Option<T>, Error>;

    /// Makes progress until `ready`, which reads the counter of a number without the engine,
    /// returns a value, or `deadline` passes (`Ok(None)`).
    fn wait_for_count<T>(
        &self,
        number: u32,
        deadline: Option<Instant>,
        ready: impl FnMut() -> Option<T>,
    ) -> Result<Option<T>, Error>;

    /// Wakes the threads that wait for the counter of a number.
    fn notify_counter(&self, number: u32);

    /// Something to sleep by, for one thread.
    fn new_wait_object(&self) -> io::Result<Arc<WaitObject>>;

    /// Prepares a sleep by `wait_object`; the caller looks behind this whether there is something
    /// to sleep for.
    fn arm(&self, wait_object: &WaitObject) -> Result<(), Error>;

    /// Gives up an operation that is too late to cancel; it ends soon.
    fn abort_handle(&self, handle: &Self::Handle);

    /// Registers a waker for when there is something to do. `false`: no thread can wake it.
    fn wake_when_readable(&self, waker: &Waker) -> bool;

    /// How long to look before sleeping.
    fn spin(&self) -> Duration;

    /// The engine, to post to.
    fn posts(&self) -> &Self::Posts;

    // ---- Handles ----

    /// How an operation ended, if it has. The handle is spent then.
    fn take_outcome(&self, handle: &Self::Handle) -> Option<Outcome>;

    /// Waits for the end of an operation, or for `deadline` (`Ok(None)` then).
    fn wait_for_outcome(
        &self,
        handle: &Self::Handle,
        deadline: Option<Instant>,
    ) -> Result<Option<Outcome>, Error>;

    /// Cancels an operation; `false`: too late.
    fn cancel_handle(&self, handle: &Self::Handle) -> bool;

    /// `waker` is woken when the operation ends by what another thread does. `false`: it has ended.
    fn wake_at_end(&self, handle: &Self::Handle, waker: &Waker) -> bool;

    /// The handle is dropped: the outcome is no longer needed.
    fn abandon(&self, handle: &Self::Handle);

    /// The handle of a receive of `endpoint` is dropped: the receive is cancelled, or its message
    /// is put back.
    fn give_up_receive(&self, handle: &Self::Handle, endpoint: u16);

    // ---- Queues ----

    /// A new completion queue with room for `entries_max` completions.
    fn open_queue(&self, entries_max: usize) -> Self::Queue;

    /// One more user of a queue.
    fn share_queue(&self, queue: &Self::Queue);

    /// A user of a queue lets go.
    fn close_queue(&self, queue: &Self::Queue);

    /// What the engine calls a queue.
    fn number_of(queue: &Self::Queue) -> u32;

    /// Panics in a child of `fork`, for calls that reach a queue without the engine and have no
    /// error to give.
    fn refuse_inherited_queue(&self);

    /// Whether both are the same queue.
    fn is_same_queue(one: &Self::Queue, other: &Self::Queue) -> bool;

    /// Whether nothing waits to be taken.
    fn is_queue_empty(&self, queue: &Self::Queue) -> bool;

    /// Takes the oldest completions, `limit` at the most; how many.
    fn read_queue(&self, queue: &Self::Queue, into: &mut Vec<Completion>, limit: usize) -> usize;

    /// Makes progress and takes as [`Self::read_queue`].
    fn progress_and_read(
        &self,
        queue: &Self::Queue,
        into: &mut Vec<Completion>,
        limit: usize,
    ) -> Result<usize, Error>;

    /// Waits for the first completion in one of the queues and takes as [`Self::read_queue`]; 0:
    /// `deadline` passed.
    fn wait_for_queues<'q>(
        &self,
        queues: impl Iterator<Item = &'q Self::Queue> + Clone,
        into: &mut Vec<Completion>,
        limit: usize,
        deadline: Option<Instant>,
    ) -> Result<usize, Error>
    where
        Self::Queue: 'q;
}
