//! Engines of all threads.

use std::io;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use super::engine_ref::EngineRef;
use crate::progress::completions::class_of;
use crate::progress::engine::Engine;
use crate::progress::outside::{OutsideQueue, Ticket};
use crate::progress::shared_engine::SharedEngine;
use crate::progress::wait_object::WaitObject;
use crate::types::{Completion, Error, Outcome};

impl EngineRef for Arc<SharedEngine> {
    /// A strong one: who closes an endpoint waits for the end of its operations, although another
    /// thread lets go of everything else.
    type Weak = Self;
    type Handle = Arc<Ticket>;
    type Posts = SharedEngine;
    type Queue = Arc<OutsideQueue>;

    fn downgrade(&self) -> Self {
        Self::clone(self)
    }

    fn upgrade(weak: &Self) -> Option<Self> {
        Some(Self::clone(weak)).filter(|engine| !engine.is_inherited())
    }

    fn is_same(one: &Self, other: &Self) -> bool {
        Self::ptr_eq(one, other)
    }

    fn with<R>(&self, call: impl FnOnce(&mut Engine) -> R) -> R {
        (**self).with(call)
    }

    fn with_to_let_go<R>(&self, call: impl FnOnce(&mut Engine) -> R) -> Option<R> {
        (**self).with_to_let_go(call)
    }

    fn progress(&self) -> Result<bool, Error> {
        (**self).progress()
    }

    fn wait<T>(
        &self,
        deadline: Option<Instant>,
        done: impl FnMut(&mut Engine) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        (**self).wait(deadline, done)
    }

    fn wait_for_count<T>(
        &self,
        number: u32,
        deadline: Option<Instant>,
        ready: impl FnMut() -> Option<T>,
    ) -> Result<Option<T>, Error> {
        self.wait_for(class_of(number), deadline, ready)
    }

    fn notify_counter(&self, number: u32) {
        (**self).notify_waiters(class_of(number));
    }

    fn new_wait_object(&self) -> io::Result<Arc<WaitObject>> {
        (**self).new_wait_object()
    }

    fn arm(&self, wait_object: &WaitObject) -> Result<(), Error> {
        (**self).arm(wait_object)
    }

    fn wake_when_readable(&self, waker: &Waker) -> bool {
        (**self).wake_when_readable(waker)
    }

    fn spin(&self) -> Duration {
        (**self).spin()
    }

    fn posts(&self) -> &SharedEngine {
        self
    }

    fn take_outcome(&self, ticket: &Arc<Ticket>) -> Option<Outcome> {
        ticket.take()
    }

    fn wait_for_outcome(
        &self,
        ticket: &Arc<Ticket>,
        deadline: Option<Instant>,
    ) -> Result<Option<Outcome>, Error> {
        self.wait_for(class_of(ticket.number()), deadline, || ticket.take())
    }

    fn cancel_handle(&self, ticket: &Arc<Ticket>) -> bool {
        self.cancel_ticket(ticket)
    }

    fn abort_handle(&self, ticket: &Arc<Ticket>) {
        (**self).with(|engine| {
            if let Some(operation) = ticket.operation() {
                engine.abort(operation);
            }
        });
    }

    fn wake_at_end(&self, ticket: &Arc<Ticket>, waker: &Waker) -> bool {
        ticket.wake_at_end(waker)
    }

    fn abandon(&self, _ticket: &Arc<Ticket>) {
        // The engine's half goes when the operation ends.
    }

    fn give_up_receive(&self, ticket: &Arc<Ticket>, endpoint: u16) {
        let given_up =
            (**self).with_to_let_go(|engine| engine.state.give_up_ticket(ticket, endpoint));
        if given_up.is_none() {
            (**self).give_up_later(ticket, endpoint);
        }
    }

    fn open_queue(&self, entries_max: usize) -> Arc<OutsideQueue> {
        (**self).with(|engine| engine.state.completions_mut().open_outside_queue(entries_max))
    }

    fn share_queue(&self, queue: &Arc<OutsideQueue>) {
        (**self).with(|engine| engine.state.completions_mut().share_queue(queue.number()));
    }

    fn close_queue(&self, queue: &Arc<OutsideQueue>) {
        let number = queue.number();
        // Of one that is dropped inside its own engine the entries go with the engine.
        (**self).with_to_let_go(|engine| engine.state.completions_mut().close_queue(number));
    }

    fn number_of(queue: &Arc<OutsideQueue>) -> u32 {
        queue.number()
    }

    fn refuse_inherited_queue(&self) {
        if let Err(error) = self.refuse_inherited() {
            panic!("{error}");
        }
    }

    fn is_same_queue(one: &Arc<OutsideQueue>, other: &Arc<OutsideQueue>) -> bool {
        Arc::ptr_eq(one, other)
    }

    fn is_queue_empty(&self, queue: &Arc<OutsideQueue>) -> bool {
        queue.is_empty()
    }

    #[inline]
    fn read_queue(
        &self,
        queue: &Arc<OutsideQueue>,
        into: &mut Vec<Completion>,
        limit: usize,
    ) -> usize {
        queue.take(into, limit)
    }

    fn progress_and_read(
        &self,
        queue: &Arc<OutsideQueue>,
        into: &mut Vec<Completion>,
        limit: usize,
    ) -> Result<usize, Error> {
        self.progress()?;
        Ok(queue.take(into, limit))
    }

    fn wait_for_queues<'q>(
        &self,
        queues: impl Iterator<Item = &'q Arc<OutsideQueue>> + Clone,
        into: &mut Vec<Completion>,
        limit: usize,
        deadline: Option<Instant>,
    ) -> Result<usize, Error> {
        let classes = queues.clone().fold(0, |classes, queue| classes | class_of(queue.number()));
        let got = self.wait_for(classes, deadline, || {
            let got = queues.clone().fold(0, |got, queue| got + queue.take(into, limit - got));
            (got > 0).then_some(got)
        })?;
        Ok(got.unwrap_or(0))
    }
}
