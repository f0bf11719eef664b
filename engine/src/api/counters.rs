//! Counters of completed operations.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use super::blocking::deadline_of;
use super::endpoint::Endpoint;
use super::engine_ref::EngineRef;
use super::mode::Attached;
use super::queues::Sleeper;
use crate::progress::counters::CounterEvents;
use crate::progress::shared::SharedCounter;
use crate::types::Error;

/// The outcome of [`Counter::wait`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CounterWait {
    /// The counter has reached the threshold, and has this value.
    Reached(u64),
    /// It has not, and the number of errors, which this is, has changed since the wait began
    /// (`-FI_EAVAIL`). The errors are reported in the completions of the operations.
    Failed(u64),
}

/// A counter of operations that have completed (`fi_cntr`), and of those that have failed. It
/// counts the operations of endpoints that are bound to it ([`Endpoint::bind_counter`]), whether
/// they complete in a queue, silently, or at an [`Operation`](crate::Operation). An operation that
/// was cancelled has failed; one that was refused is not counted.
///
/// Each counted operation costs one atomic addition. A thread that waits for a value is woken once,
/// when the counter has reached it.
///
/// A clone refers to the same counter. It keeps the engine open.
///
/// ```
/// # let settings = ringrail::settings::Settings::isolated().set("listen_address", "127.0.0.1");
/// # let domain = ringrail::Domain::with_settings(settings.insecure(true).build()?)?;
/// # let (left, right) = (domain.endpoint()?.share()?, domain.endpoint()?.share()?);
/// # let peer = left.insert_peer(&right.address())?;
/// use ringrail::{CounterEvents, CounterWait, Envelope, ReceiveOptions, Selector, SendOptions};
///
/// let arrived = right.open_counter();
/// right.bind_counter(&arrived, CounterEvents::RECEIVE)?;
/// for _ in 0..2 {
///     let options = ReceiveOptions::new().silent(true); // counted, without a completion
///     right.post_receive(Selector::from_any(Envelope::tagged(1)), vec![0; 8], options)?;
///     left.send_blocking(peer, Envelope::tagged(1), b"hello", SendOptions::new())?;
/// }
/// assert_eq!(arrived.wait(2, None)?, Some(CounterWait::Reached(2)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Counter<M: Attached> {
    engine: M::Engine,
    count: Arc<SharedCounter>,
    sleeper: Sleeper,
}

impl<M: Attached> fmt::Debug for Counter<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (value, errors) = (self.value(), self.errors());
        let mut fields = f.debug_struct("Counter");
        fields.field("value", &value).field("errors", &errors).finish_non_exhaustive()
    }
}

impl<M: Attached> Clone for Counter<M> {
    fn clone(&self) -> Self {
        let (engine, count) = (self.engine.clone(), Arc::clone(&self.count));
        Self { engine, count, sleeper: Sleeper::default() }
    }
}

impl<M: Attached> Counter<M> {
    /// Returns the number of operations that have succeeded, without making progress. What they
    /// wrote is visible to the thread that reads the count.
    #[inline]
    pub fn value(&self) -> u64 {
        self.count.value()
    }

    /// Returns the number of operations that have failed; otherwise like [`Self::value`].
    #[inline]
    pub fn errors(&self) -> u64 {
        self.count.errors()
    }

    /// Returns a handle that only reads the counter, for any thread, also if its endpoints belong
    /// to one thread. It does not keep the engine open.
    pub fn reader(&self) -> CounterReader {
        CounterReader(Arc::clone(&self.count))
    }

    /// Makes progress once, and returns [`Self::value`] (`fi_cntr_read`).
    ///
    /// # Errors
    ///
    /// [`Error::System`] if the driver has failed.
    pub fn read(&self) -> Result<u64, Error> {
        self.engine.progress()?;
        Ok(self.value())
    }

    /// Adds to the value (`fi_cntr_add`), and wakes threads that wait for it.
    pub fn add(&self, more: u64) {
        if self.count.add(more) {
            self.engine.notify_counter(self.count.number());
        }
    }

    /// Sets the value (`fi_cntr_set`). Operations that complete concurrently are counted before or
    /// after that.
    pub fn set(&self, value: u64) {
        if self.count.set(value) {
            self.engine.notify_counter(self.count.number());
        }
    }

    /// Adds to the number of errors (`fi_cntr_adderr`).
    pub fn add_errors(&self, more: u64) {
        self.count.add_errors(more);
        self.engine.notify_counter(self.count.number());
    }

    /// Sets the number of errors (`fi_cntr_seterr`).
    pub fn set_errors(&self, errors: u64) {
        self.count.set_errors(errors);
        self.engine.notify_counter(self.count.number());
    }

    /// Makes progress until the value is at least `threshold`, an operation fails, or `timeout` has
    /// passed (`None`); without a `timeout` there is no limit.
    ///
    /// # Errors
    ///
    /// [`Error::System`] if the driver has failed.
    pub fn wait(
        &self,
        threshold: u64,
        timeout: Option<Duration>,
    ) -> Result<Option<CounterWait>, Error> {
        let errors = self.errors();
        let ready = || self.look(threshold, errors);
        self.engine.wait_for_count(self.count.number(), deadline_of(timeout), ready)
    }

    /// Looks before a sleep.
    fn look(&self, threshold: u64, errors: u64) -> Option<CounterWait> {
        self.count.want(threshold);
        let value = self.value();
        if value >= threshold {
            return Some(CounterWait::Reached(value));
        }
        Some(self.errors()).filter(|&now| now != errors).map(CounterWait::Failed)
    }

    /// Like [`CompletionQueue::wait_fd`](crate::CompletionQueue::wait_fd).
    ///
    /// # Errors
    ///
    /// [`Error::System`] if there are no descriptors.
    pub fn wait_fd(&self) -> Result<BorrowedFd<'_>, Error> {
        self.sleeper.wait_object(&self.engine).map(|it| it.fd())
    }

    /// Like [`CompletionQueue::arm`](crate::CompletionQueue::arm), for a sleep until the value is
    /// at least `threshold`, or the number of errors differs from `errors`. `false`: it is so
    /// already.
    ///
    /// # Errors
    ///
    /// [`Error::System`] if the driver has failed, or there are no descriptors.
    pub fn arm(&self, threshold: u64, errors: u64) -> Result<bool, Error> {
        self.engine.progress()?;
        self.engine.arm(self.sleeper.wait_object(&self.engine)?)?;
        Ok(self.look(threshold, errors).is_none())
    }
}

/// See [`Counter::reader`].
#[derive(Clone, Debug)]
pub struct CounterReader(Arc<SharedCounter>);

impl CounterReader {
    /// Like [`Counter::value`].
    #[inline]
    pub fn value(&self) -> u64 {
        self.0.value()
    }

    /// Like [`Counter::errors`].
    #[inline]
    pub fn errors(&self) -> u64 {
        self.0.errors()
    }
}

impl<M: Attached> Endpoint<M> {
    /// Opens a counter of the endpoint's engine, with value 0.
    pub fn open_counter(&self) -> Counter<M> {
        let engine = self.open().engine.clone();
        let count = engine.with(|engine| engine.state.completions_mut().counting_mut().open());
        Counter { engine, count, sleeper: Sleeper::default() }
    }

    /// Binds a counter to the endpoint: operations of these `events` that the endpoint posts from
    /// now on, and operations of peers that name it, are counted. Each kind of event is counted in
    /// one counter, the last one that was bound.
    ///
    /// # Errors
    ///
    /// [`Error::Misuse`] if the counter belongs to another engine.
    pub fn bind_counter(&self, counter: &Counter<M>, events: CounterEvents) -> Result<(), Error> {
        let open = self.open();
        if !M::Engine::is_same(&counter.engine, &open.engine) {
            return Err(Error::misuse("the counter belongs to another engine"));
        }
        open.engine.with(|engine| {
            engine.state.completions_mut().counting_mut().bind(open.number, events, &counter.count);
        });
        Ok(())
    }
}
