//! Counters: how many operations have ended, without an entry for each.

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
use crate::progress::shared::Count;
use crate::types::Error;

/// How a wait for a counter ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Counted {
    /// The counter has this value, which is the threshold or more.
    Reached(u64),
    /// It has not, and so many operations have ended with errors, which is another number than
    /// when the wait began (`-FI_EAVAIL`). What failed is told where the operations end.
    Failed(u64),
}

/// A counter of operations that have ended (`fi_cntr`), and of those that have failed. Endpoints
/// count in it what they are bound to it for ([`Endpoint::bind_counter`]), whether an operation
/// ends in a queue, silently, or at an [`Operation`](crate::Operation). An operation that was
/// cancelled has failed; one that was never posted is not counted.
///
/// It costs an atomic addition for each operation that is counted. Who waits for a value is woken
/// once, when the counter has reached it: of a batch of operations the last one wakes.
///
/// A clone is the same counter. It keeps its engine open.
pub struct Counter<M: Attached> {
    engine: M::Engine,
    count: Arc<Count>,
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
    /// How many operations have ended well, without progress and without the engine. What they
    /// wrote is seen by the thread that sees them counted.
    #[inline]
    pub fn value(&self) -> u64 {
        self.count.value()
    }

    /// How many operations have failed; as [`Self::value`].
    #[inline]
    pub fn errors(&self) -> u64 {
        self.count.errors()
    }

    /// The same counter for threads that only read it, also where its endpoints belong to one
    /// thread. It does not keep the engine open.
    pub fn reader(&self) -> CounterReader {
        CounterReader(Arc::clone(&self.count))
    }

    /// As [`Self::value`], after one turn of progress (`fi_cntr_read`).
    ///
    /// # Errors
    ///
    /// The driver failed for good.
    pub fn read(&self) -> Result<u64, Error> {
        self.engine.progress()?;
        Ok(self.value())
    }

    /// Adds to the value (`fi_cntr_add`); those who wait see it.
    pub fn add(&self, more: u64) {
        if self.count.add(more) {
            self.engine.tell(self.count.number());
        }
    }

    /// Sets the value (`fi_cntr_set`). Operations that end meanwhile count before it or behind it.
    pub fn set(&self, value: u64) {
        if self.count.set(value) {
            self.engine.tell(self.count.number());
        }
    }

    /// Adds to the number of errors (`fi_cntr_adderr`).
    pub fn add_errors(&self, more: u64) {
        self.count.add_errors(more);
        self.engine.tell(self.count.number());
    }

    /// Sets the number of errors (`fi_cntr_seterr`).
    pub fn set_errors(&self, errors: u64) {
        self.count.set_errors(errors);
        self.engine.tell(self.count.number());
    }

    /// Waits, making progress, until the value is `threshold` or more, an operation fails, or
    /// `timeout` has passed (`None` then); without a timeout for as long as it takes.
    ///
    /// # Errors
    ///
    /// The driver failed for good.
    pub fn wait(
        &self,
        threshold: u64,
        timeout: Option<Duration>,
    ) -> Result<Option<Counted>, Error> {
        let errors = self.errors();
        let ready = || self.look(threshold, errors);
        self.engine.wait_for_count(self.count.number(), deadline_of(timeout), ready)
    }

    /// Looks before a sleep.
    fn look(&self, threshold: u64, errors: u64) -> Option<Counted> {
        self.count.want(threshold);
        let value = self.value();
        if value >= threshold {
            return Some(Counted::Reached(value));
        }
        Some(self.errors()).filter(|&now| now != errors).map(Counted::Failed)
    }

    /// As [`CompletionQueue::wait_fd`](crate::CompletionQueue::wait_fd).
    ///
    /// # Errors
    ///
    /// [`Error::System`] when descriptors cannot be had.
    pub fn wait_fd(&self) -> Result<BorrowedFd<'_>, Error> {
        self.sleeper.wait_object(&self.engine).map(|it| it.fd())
    }

    /// As [`CompletionQueue::arm`](crate::CompletionQueue::arm), for a sleep until the value is
    /// `threshold` or more, or the number of errors is another one than `errors`. `false`: that is
    /// so.
    ///
    /// # Errors
    ///
    /// The driver failed for good; no descriptors.
    pub fn arm(&self, threshold: u64, errors: u64) -> Result<bool, Error> {
        self.engine.progress()?;
        self.engine.arm(self.sleeper.wait_object(&self.engine)?)?;
        Ok(self.look(threshold, errors).is_none())
    }
}

/// See [`Counter::reader`].
#[derive(Clone, Debug)]
pub struct CounterReader(Arc<Count>);

impl CounterReader {
    /// As [`Counter::value`].
    #[inline]
    pub fn value(&self) -> u64 {
        self.0.value()
    }

    /// As [`Counter::errors`].
    #[inline]
    pub fn errors(&self) -> u64 {
        self.0.errors()
    }
}

impl<M: Attached> Endpoint<M> {
    /// A new counter of the endpoint's engine, which is 0 and bound to nothing.
    pub fn open_counter(&self) -> Counter<M> {
        let engine = self.open().engine.clone();
        let count = engine.with(|engine| engine.state.completions.counting.open());
        Counter { engine, count, sleeper: Sleeper::default() }
    }

    /// What the endpoint posts from now on counts in `counter`, as far as it is of these `events`,
    /// and so do operations of peers that name it. Each kind of event counts in one counter, the
    /// one that it was bound to last.
    ///
    /// # Errors
    ///
    /// [`Error::Misuse`] when the counter belongs to another engine.
    pub fn bind_counter(&self, counter: &Counter<M>, events: CounterEvents) -> Result<(), Error> {
        let open = self.open();
        if !M::Engine::is_same(&counter.engine, &open.engine) {
            return Err(Error::misuse("the counter belongs to another engine"));
        }
        open.engine.with(|engine| {
            engine.state.completions.counting.bind(open.number, events, &counter.count);
        });
        Ok(())
    }
}
