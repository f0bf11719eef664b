//! Progress, and what operations end in: completions, events, counters.

use std::time::{Duration, Instant};

use super::endpoint::{Endpoint, Owned};
use super::receive::label_of;
use crate::progress::engine::Engine;
use crate::telemetry::Counters;
use crate::types::{Completion, Error, Event, OperationId, Selector, Status};

impl Endpoint<Owned> {
    /// The message that a receive with `selector` would get now, left where it is. Makes
    /// progress first.
    ///
    /// # Errors
    ///
    /// [`Error::Peer`] when the selector names a peer that has failed, and nothing is left of what
    /// it had sent; [`Error::UnknownPeer`] when it names one that there is not; or the driver
    /// failed for good.
    pub fn peek(&self, selector: Selector) -> Result<Option<Status>, Error> {
        let (context, tag, ignore) = label_of(&selector);
        let request = self.receive_request(selector.source, context, tag, ignore, 0);
        let mut engine = self.mode.engine.borrow_mut();
        engine.progress()?;
        engine.peek(&request)
    }

    /// Cancels an operation of the completion queue that has not matched or gone out. `true`: its
    /// completion says [`Error::Cancelled`]; `false`: it ends as if nothing had been said.
    pub fn cancel(&self, operation: OperationId) -> bool {
        self.mode.engine.borrow_mut().cancel(operation.0)
    }

    /// Does what can be done without waiting. `true`: something happened.
    ///
    /// # Errors
    ///
    /// The driver failed for good.
    pub fn progress(&self) -> Result<bool, Error> {
        self.mode.engine.borrow_mut().progress()
    }

    /// Takes up to `limit` completions off the queue, oldest first, after one turn of progress;
    /// appends them to `into` and returns how many.
    ///
    /// # Errors
    ///
    /// The driver failed for good.
    pub fn completions(&self, into: &mut Vec<Completion>, limit: usize) -> Result<usize, Error> {
        let mut engine = self.mode.engine.borrow_mut();
        engine.progress()?;
        Ok(take_completions(&mut engine, self.mode.queue, into, limit))
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
        let queue = self.mode.queue;
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut engine = self.mode.engine.borrow_mut();
        if limit == 0 {
            engine.progress()?;
            return Ok(0);
        }
        let got = engine.wait(deadline, |engine| {
            let got = take_completions(engine, queue, into, limit);
            (got > 0).then_some(got)
        })?;
        Ok(got.unwrap_or(0))
    }

    /// Takes the oldest event of the engine: peers that came, went or were refused.
    pub fn next_event(&self) -> Option<Event> {
        self.mode.engine.borrow_mut().state.completions.events.pop_front()
    }

    /// What the engine has counted.
    pub fn counters(&self) -> Counters {
        self.mode.engine.borrow().counters()
    }
}

fn take_completions(
    engine: &mut Engine,
    queue: u32,
    into: &mut Vec<Completion>,
    limit: usize,
) -> usize {
    engine.state.completions.take(queue, into, limit)
}
