//! Progress, and what operations end in: completion queues, counters.

use std::os::fd::BorrowedFd;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::blocking::deadline_of;
use super::endpoint::Endpoint;
use super::engine_ref::EngineRef;
use super::mode::{Attached, Open, Queues};
use crate::progress::wait_object::WaitObject;
use crate::telemetry::Counters;
use crate::types::{Completion, Error, OperationId, Selector, Status};

/// A completion queue that endpoints of one engine can be bound to, for what they send, what they
/// receive, or both ([`Endpoint::open_endpoint`]). It has a bound of its own: one that nobody reads
/// stops only those who post to it.
///
/// A clone is the same queue. It keeps its engine open.
pub struct CompletionQueue<M: Attached> {
    pub(super) engine: M::Engine,
    pub(super) queue: <M::Engine as EngineRef>::Queue,
    sleeper: Sleeper,
}

impl<M: Attached> std::fmt::Debug for CompletionQueue<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CompletionQueue").finish_non_exhaustive()
    }
}

impl<M: Attached> Clone for CompletionQueue<M> {
    fn clone(&self) -> Self {
        self.engine.share_queue(&self.queue);
        let (engine, queue) = (self.engine.clone(), self.queue.clone());
        Self { engine, queue, sleeper: Sleeper::default() }
    }
}

impl<M: Attached> Drop for CompletionQueue<M> {
    fn drop(&mut self) {
        self.engine.close_queue(&self.queue);
    }
}

impl<M: Attached> CompletionQueue<M> {
    /// Takes up to `limit` completions, oldest first, after one turn of progress; appends them to
    /// `into` and returns how many.
    ///
    /// # Errors
    ///
    /// The driver failed for good.
    pub fn read(&self, into: &mut Vec<Completion>, limit: usize) -> Result<usize, Error> {
        self.engine.progress()?;
        Ok(self.engine.read_queue(&self.queue, into, limit))
    }

    /// As [`Self::read`], of what is there, without progress.
    ///
    /// # Panics
    ///
    /// In a child of `fork`, which has only a copy of the queue.
    #[inline]
    pub fn read_ready(&self, into: &mut Vec<Completion>, limit: usize) -> usize {
        self.engine.refuse_inherited_queue();
        self.engine.read_queue(&self.queue, into, limit)
    }

    /// A descriptor for `epoll`, `poll` or an event loop, for one thread that sleeps at a time (a
    /// clone of the queue has one of its own): see [`Self::arm`]. Do not read it.
    ///
    /// # Errors
    ///
    /// [`Error::System`] when descriptors cannot be had.
    pub fn wait_fd(&self) -> Result<BorrowedFd<'_>, Error> {
        self.sleeper.wait_object(&self.engine).map(|it| it.fd())
    }

    /// Makes progress and prepares a sleep by [`Self::wait_fd`] (`fi_trywait`). `true`: sleep now;
    /// from the first thing that comes the descriptor is readable, and [`Self::read`] and another
    /// call of this are due. It may be something else than a completion of this queue. `false`:
    /// completions are there.
    ///
    /// # Errors
    ///
    /// The driver failed for good; no descriptors.
    pub fn arm(&self) -> Result<bool, Error> {
        self.engine.progress()?;
        self.engine.arm(self.sleeper.wait_object(&self.engine)?)?;
        Ok(self.engine.is_queue_empty(&self.queue))
    }

    /// Like [`Self::read`], but waits for the first one, up to `timeout`; without one for as long
    /// as it takes. A `limit` of 0 waits for nothing.
    ///
    /// # Errors
    ///
    /// The driver failed for good.
    pub fn wait(
        &self,
        into: &mut Vec<Completion>,
        limit: usize,
        timeout: Option<Duration>,
    ) -> Result<usize, Error> {
        if limit == 0 {
            return self.read(into, 0);
        }
        let queues = [&self.queue].into_iter();
        self.engine.wait_for_queues(queues, into, limit, deadline_of(timeout))
    }
}

/// What the user of one object sleeps by, once that is asked for.
#[derive(Debug, Default)]
pub(super) struct Sleeper(OnceLock<Arc<WaitObject>>);

impl Sleeper {
    pub(super) fn wait_object<E: EngineRef>(&self, engine: &E) -> Result<&WaitObject, Error> {
        if let Some(known) = self.0.get() {
            return Ok(known);
        }
        let new = engine.new_wait_object().map_err(|error| {
            let text = "cannot wait by a descriptor (is the limit on open files reached?)";
            Error::system(text, error)
        })?;
        Ok(self.0.get_or_init(|| new))
    }
}

impl<M: Attached> Endpoint<M> {
    /// The message that a receive with `selector` would get now, left where it is. Makes
    /// progress first.
    ///
    /// # Errors
    ///
    /// [`Error::Peer`] when the selector names a peer that has failed, and nothing is left of what
    /// it had sent; [`Error::UnknownPeer`] when it names one that there is not; or the driver
    /// failed for good.
    pub fn peek(&self, selector: Selector) -> Result<Option<Status>, Error> {
        let request = self.receive_request(&selector, 0);
        self.open().engine.with(|engine| {
            engine.progress()?;
            engine.peek(&request)
        })
    }

    /// Cancels an operation of a completion queue that has not matched or gone out. `true`: its
    /// completion says [`Error::Cancelled`]; `false`: it ends as if nothing had been said.
    pub fn cancel(&self, operation: OperationId) -> bool {
        self.open().engine.cancel(operation)
    }

    /// Cancels an operation of this endpoint that [`Self::cancel`] would cancel and whose
    /// `user_data` is wanted (`fi_cancel`, which names operations by their context). It looks at
    /// all that are outstanding. `true`: as for [`Self::cancel`].
    pub fn cancel_where(&self, mut is_wanted: impl FnMut(u64) -> bool) -> bool {
        let Open { engine, number, .. } = self.open();
        engine.with(|engine| {
            let found = engine.outstanding_of(*number);
            let mut wanted = found.into_iter().filter(|(_, user_data)| is_wanted(*user_data));
            wanted.any(|(id, _)| engine.cancel(id))
        })
    }

    /// The `user_data` of all operations of this endpoint that are outstanding.
    pub fn outstanding(&self) -> Vec<u64> {
        let Open { engine, number, .. } = self.open();
        let found = engine.with(|engine| engine.outstanding_of(*number));
        found.into_iter().map(|(_, user_data)| user_data).collect()
    }

    /// Does what can be done without waiting. `true`: something happened.
    ///
    /// # Errors
    ///
    /// The driver failed for good.
    #[inline]
    pub fn progress(&self) -> Result<bool, Error> {
        self.open().engine.progress()
    }

    /// A new completion queue of the endpoint's engine, with room for `entries_max` completions
    /// (at least 1), those of operations under way included.
    pub fn open_queue(&self, entries_max: usize) -> CompletionQueue<M> {
        let engine = self.open().engine.clone();
        let queue = engine.open_queue(entries_max.max(1));
        CompletionQueue { engine, queue, sleeper: Sleeper::default() }
    }

    /// The queue that the ends of its sends go to.
    pub fn transmit_queue(&self) -> CompletionQueue<M> {
        self.queue_object(&self.open().queues.transmit)
    }

    /// The queue that the ends of its receives go to; the same as [`Self::transmit_queue`] unless
    /// [`Endpoint::open_endpoint`] was told otherwise.
    pub fn receive_queue(&self) -> CompletionQueue<M> {
        self.queue_object(&self.open().queues.receive)
    }

    fn queue_object(&self, queue: &<M::Engine as EngineRef>::Queue) -> CompletionQueue<M> {
        let engine = self.open().engine.clone();
        engine.share_queue(queue);
        CompletionQueue { engine, queue: queue.clone(), sleeper: Sleeper::default() }
    }

    /// Takes up to `limit` completions off the endpoint's queue, oldest first, after one turn of
    /// progress; appends them to `into` and returns how many. If it has a queue for receives and
    /// one for sends, the former is first.
    ///
    /// # Errors
    ///
    /// The driver failed for good.
    #[inline]
    pub fn completions(&self, into: &mut Vec<Completion>, limit: usize) -> Result<usize, Error> {
        let Open { engine, queues: Queues { transmit, receive }, .. } = self.open();
        engine.progress()?;
        let mut got = engine.read_queue(receive, into, limit);
        if !M::Engine::is_same_queue(transmit, receive) {
            got += engine.read_queue(transmit, into, limit - got);
        }
        Ok(got)
    }

    /// Like [`Self::completions`], but waits for the first one, up to `timeout`; without one, or
    /// with one beyond what the clock can tell, for as long as it takes. A `limit` of 0 waits for
    /// nothing.
    ///
    /// # Errors
    ///
    /// The driver failed for good.
    pub fn wait(
        &self,
        into: &mut Vec<Completion>,
        limit: usize,
        timeout: Option<Duration>,
    ) -> Result<usize, Error> {
        let open = self.open();
        if limit == 0 {
            open.engine.progress()?;
            return Ok(0);
        }
        let queues = open.each_queue().collect::<Vec<_>>();
        let queues = queues.iter().copied();
        open.engine.wait_for_queues(queues, into, limit, deadline_of(timeout))
    }

    /// As [`CompletionQueue::wait_fd`].
    ///
    /// # Errors
    ///
    /// [`Error::System`] when descriptors cannot be had.
    pub fn wait_fd(&self) -> Result<BorrowedFd<'_>, Error> {
        let open = self.open();
        open.sleeper.wait_object(&open.engine).map(|it| it.fd())
    }

    /// As [`CompletionQueue::arm`], for the queues of the endpoint. Events of the engine make the
    /// descriptor readable; those that are there already do not.
    ///
    /// # Errors
    ///
    /// The driver failed for good; no descriptors.
    pub fn arm(&self) -> Result<bool, Error> {
        let open = self.open();
        open.engine.progress()?;
        open.engine.arm(open.sleeper.wait_object(&open.engine)?)?;
        Ok(open.each_queue().all(|queue| open.engine.is_queue_empty(queue)))
    }

    /// What the engine has counted.
    pub fn counters(&self) -> Counters {
        self.open().engine.with(|engine| engine.counters())
    }
}
