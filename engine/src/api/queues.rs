//! Progress and completion queues.

use std::os::fd::BorrowedFd;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::blocking::deadline_of;
use super::endpoint::Endpoint;
use super::engine_ref::EngineRef;
use super::mode::{Attached, EndpointParts, Queues, Shared};
use crate::progress::posting::PostTarget;
use crate::progress::wait_object::WaitObject;
use crate::telemetry::Counters;
use crate::types::{Completion, Error, OperationId, Selector, Status};

/// A completion queue (`fi_cq`) to which endpoints of one engine are bound, for sends, receives, or
/// both ([`Endpoint::open_endpoint`]). It has its own limit: a full queue refuses only posts of
/// operations that complete in it.
///
/// A clone refers to the same queue. It keeps the engine open.
///
/// ```
/// # let settings = ringrail::settings::Settings::isolated().set("listen_address", "127.0.0.1");
/// # let domain = ringrail::Domain::with_settings(settings.insecure(true).build()?)?;
/// use ringrail::{EndpointOptions, Envelope, ReceiveOptions, Selector, SendOptions};
///
/// let first = domain.endpoint()?.share()?;
/// let queue = first.open_completion_queue(1024);
/// // Another endpoint of the same engine, whose completions go to that queue.
/// let options = EndpointOptions { transmit_queue: Some(&queue), ..Default::default() };
/// let second = first.open_endpoint(options)?;
/// let from = Selector::from_any(Envelope::tagged(1));
/// second.post_receive(from, vec![0; 8], ReceiveOptions::new().user_data(7))?;
/// let peer = first.insert_peer(&second.address())?;
/// first.send_blocking(peer, Envelope::tagged(1), b"hello", SendOptions::new())?;
/// let mut completions = Vec::new();
/// queue.wait(&mut completions, 16, None)?;
/// assert_eq!(completions[0].user_data, 7);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
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
    /// Makes progress once, appends up to `limit` completions to `into`, oldest first, and returns
    /// their number. An empty `into` may be returned with other memory: completions are not moved
    /// one by one.
    ///
    /// # Errors
    ///
    /// [`Error::System`] if the driver has failed.
    pub fn read(&self, into: &mut Vec<Completion>, limit: usize) -> Result<usize, Error> {
        self.engine.progress_and_read(&self.queue, into, limit)
    }

    /// Like [`Self::read`], without making progress.
    ///
    /// # Panics
    ///
    /// In a child of `fork` that inherited the queue.
    #[inline]
    pub fn read_ready(&self, into: &mut Vec<Completion>, limit: usize) -> usize {
        self.engine.refuse_inherited_queue();
        self.engine.read_queue(&self.queue, into, limit)
    }

    /// Returns a descriptor for `epoll`, `poll` or an event loop, for one sleeping thread at a time
    /// (a clone of the queue has its own): see [`Self::arm`]. Do not read from it.
    ///
    /// # Errors
    ///
    /// [`Error::System`] if there are no descriptors.
    pub fn wait_fd(&self) -> Result<BorrowedFd<'_>, Error> {
        self.sleeper.wait_object(&self.engine).map(|it| it.fd())
    }

    /// Makes progress, and arms the descriptor of [`Self::wait_fd`] (`fi_trywait`). `true`: the
    /// caller may sleep; the descriptor becomes readable when there is something to do, which need
    /// not be a completion of this queue; then call [`Self::read`], and this again before the next
    /// sleep. `false`: there are completions.
    ///
    /// # Errors
    ///
    /// [`Error::System`] if the driver has failed, or there are no descriptors.
    pub fn arm(&self) -> Result<bool, Error> {
        self.engine.progress()?;
        self.engine.arm(self.sleeper.wait_object(&self.engine)?)?;
        Ok(self.engine.is_queue_empty(&self.queue))
    }

    /// Like [`Self::read`], but waits for the first completion, up to `timeout`; without one,
    /// without limit. Returns at once if `limit` is 0.
    ///
    /// # Errors
    ///
    /// [`Error::System`] if the driver has failed.
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

impl CompletionQueue<Shared> {
    /// Makes progress once, and passes completions to `take`, oldest first, until it returns
    /// `false` or has got `limit` of them; returns their number. They are moved once, where
    /// [`Self::read`] moves them to a vector first. One that is passed counts as taken, also if
    /// `take` returns `false` or panics.
    ///
    /// Other readers of the queue wait until `take` has returned. So it must not read this queue or
    /// wait for its engine, which can be a deadlock. It may post.
    ///
    /// # Errors
    ///
    /// [`Error::System`] if the driver has failed.
    #[inline]
    pub fn read_each(
        &self,
        limit: usize,
        take: impl FnMut(Completion) -> bool,
    ) -> Result<usize, Error> {
        self.engine.progress()?;
        Ok(self.queue.take_each(limit, take))
    }

    /// Like [`Self::read_each`], without making progress.
    ///
    /// # Panics
    ///
    /// In a child of `fork` that inherited the queue.
    #[inline]
    pub fn read_each_ready(&self, limit: usize, take: impl FnMut(Completion) -> bool) -> usize {
        self.engine.refuse_inherited_queue();
        self.queue.take_each(limit, take)
    }
}

/// The descriptor of one object, once it is asked for.
#[derive(Debug, Default)]
pub(super) struct Sleeper(OnceLock<Arc<WaitObject>>);

impl Sleeper {
    pub(super) fn wait_object<E: EngineRef>(&self, engine: &E) -> Result<&WaitObject, Error> {
        if let Some(known) = self.0.get() {
            return Ok(known);
        }
        let new = engine.new_wait_object().map_err(|error| {
            let text = "cannot open a descriptor to wait for (is the limit on open files reached?)";
            Error::system(text, error)
        })?;
        Ok(self.0.get_or_init(|| new))
    }
}

impl<M: Attached> Endpoint<M> {
    /// Makes progress, and returns the status of the message that a receive with `selector` would
    /// match now; the message stays (`MPI_Iprobe`, `FI_PEEK`).
    ///
    /// # Errors
    ///
    /// [`Error::Peer`] if the selector names a peer that has failed, and no message of it is left;
    /// [`Error::UnknownPeer`] if the peer does not exist; [`Error::System`] if the driver has
    /// failed.
    pub fn peek(&self, selector: Selector) -> Result<Option<Status>, Error> {
        let request = self.receive_request(&selector, 0);
        self.open().engine.with(|engine| {
            engine.progress()?;
            engine.state.peek(&request)
        })
    }

    /// Cancels an operation of a completion queue that has not matched or been sent. `true`: it
    /// completes with [`Error::Cancelled`]; `false`: it completes as if it had not been cancelled.
    /// A receive whose message is arriving counts as matched.
    pub fn cancel(&self, operation: OperationId) -> bool {
        self.open().engine.posts().cancel(operation)
    }

    /// Cancels, as [`Self::cancel`] does, one operation of this endpoint for whose `user_data`
    /// `is_wanted` returns `true` (`fi_cancel`, which names operations by their context). It visits
    /// all outstanding operations.
    pub fn cancel_where(&self, mut is_wanted: impl FnMut(u64) -> bool) -> bool {
        let EndpointParts { engine, number, .. } = self.open();
        engine.with(|engine| {
            let found = engine.state.outstanding_of(*number);
            let mut wanted = found.into_iter().filter(|(_, user_data)| is_wanted(*user_data));
            wanted.any(|(id, _)| engine.state.cancel(id))
        })
    }

    /// Returns the `user_data` of all outstanding operations of this endpoint.
    pub fn outstanding(&self) -> Vec<u64> {
        let EndpointParts { engine, number, .. } = self.open();
        let found = engine.with(|engine| engine.state.outstanding_of(*number));
        found.into_iter().map(|(_, user_data)| user_data).collect()
    }

    /// Makes progress without waiting. `true`: there was something to do. `false`: nothing was
    /// found; while peers share memory with this engine, most calls look only there, and one in a
    /// microsecond looks for everything.
    ///
    /// # Errors
    ///
    /// [`Error::System`] if the driver has failed.
    #[inline]
    pub fn progress(&self) -> Result<bool, Error> {
        self.open().engine.progress()
    }

    /// Opens a completion queue of the endpoint's engine, with room for `entries_max` completions
    /// (at least 1), which counts outstanding operations, too.
    pub fn open_completion_queue(&self, entries_max: usize) -> CompletionQueue<M> {
        let engine = self.open().engine.clone();
        let queue = engine.open_queue(entries_max.max(1));
        CompletionQueue { engine, queue, sleeper: Sleeper::default() }
    }

    /// Returns the completion queue of its sends.
    pub fn transmit_queue(&self) -> CompletionQueue<M> {
        self.queue_object(&self.open().queues.transmit)
    }

    /// Returns the completion queue of its receives; the same as [`Self::transmit_queue`] unless it
    /// was opened with two ([`Endpoint::open_endpoint`]).
    pub fn receive_queue(&self) -> CompletionQueue<M> {
        self.queue_object(&self.open().queues.receive)
    }

    fn queue_object(&self, queue: &<M::Engine as EngineRef>::Queue) -> CompletionQueue<M> {
        let engine = self.open().engine.clone();
        engine.share_queue(queue);
        CompletionQueue { engine, queue: queue.clone(), sleeper: Sleeper::default() }
    }

    /// Makes progress once, appends up to `limit` completions of the endpoint's queues to `into`,
    /// oldest first, and returns their number. If it has two queues, that of receives comes first.
    /// An empty `into` may be returned with other memory: completions are not moved one by one.
    ///
    /// # Errors
    ///
    /// [`Error::System`] if the driver has failed.
    #[inline]
    pub fn completions(&self, into: &mut Vec<Completion>, limit: usize) -> Result<usize, Error> {
        let EndpointParts { engine, queues: Queues { transmit, receive }, .. } = self.open();
        let mut got = engine.progress_and_read(receive, into, limit)?;
        if !M::Engine::is_same_queue(transmit, receive) {
            got += engine.read_queue(transmit, into, limit - got);
        }
        Ok(got)
    }

    /// Like [`Self::completions`], but waits for the first completion, up to `timeout`; without
    /// one, or if the clock cannot represent the deadline, without limit. Returns at once if
    /// `limit` is 0.
    ///
    /// # Errors
    ///
    /// [`Error::System`] if the driver has failed.
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

    /// Like [`CompletionQueue::wait_fd`].
    ///
    /// # Errors
    ///
    /// [`Error::System`] if there are no descriptors.
    pub fn wait_fd(&self) -> Result<BorrowedFd<'_>, Error> {
        let open = self.open();
        open.sleeper.wait_object(&open.engine).map(|it| it.fd())
    }

    /// Like [`CompletionQueue::arm`], for the completion queues of the endpoint. New events make
    /// the descriptor readable, too.
    ///
    /// # Errors
    ///
    /// [`Error::System`] if the driver has failed, or there are no descriptors.
    pub fn arm(&self) -> Result<bool, Error> {
        let open = self.open();
        open.engine.progress()?;
        open.engine.arm(open.sleeper.wait_object(&open.engine)?)?;
        Ok(open.each_queue().all(|queue| open.engine.is_queue_empty(queue)))
    }

    /// Returns the counters of the engine.
    pub fn counters(&self) -> Counters {
        self.open().engine.with(|engine| engine.state.counters(&engine.driver))
    }
}
