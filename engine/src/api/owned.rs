//! Engines of one thread.

use std::io;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use super::engine_ref::EngineRef;
use crate::memory::RawSpan;
use crate::progress::caretaker::EngineCell;
use crate::progress::completions::{PostedTo, ReceiveMemory};
use crate::progress::engine::Engine;
use crate::progress::post::{Memory, PostResult, Refused};
use crate::progress::posting::{PostTarget, named};
use crate::progress::wait_object::WaitObject;
use crate::proto::receive::ReceiveRequest;
use crate::proto::session::one_sided::origin::OneSidedRequest;
use crate::proto::session::send::SendRequest;
use crate::proto::table::Id;
use crate::types::{Completion, Error, OperationId, OperationName, Outcome};

impl EngineRef for Rc<EngineCell> {
    type Weak = Weak<EngineCell>;
    type Handle = Id;
    type Posts = EngineCell;
    type Queue = u32;

    fn downgrade(&self) -> Weak<EngineCell> {
        Self::downgrade(self)
    }

    fn upgrade(weak: &Weak<EngineCell>) -> Option<Self> {
        weak.upgrade().filter(|cell| !cell.is_inherited())
    }

    fn is_same(one: &Self, other: &Self) -> bool {
        Self::ptr_eq(one, other)
    }

    #[inline]
    fn with<R>(&self, call: impl FnOnce(&mut Engine) -> R) -> R {
        call(&mut self.borrow_mut())
    }

    fn with_to_let_go<R>(&self, call: impl FnOnce(&mut Engine) -> R) -> Option<R> {
        self.borrow_to_let_go().map(|mut engine| call(&mut engine))
    }

    #[inline]
    fn progress(&self) -> Result<bool, Error> {
        let happened = self.enter()?.progress()?;
        if happened {
            self.wake_tasks();
        }
        Ok(happened)
    }

    fn wait<T>(
        &self,
        deadline: Option<Instant>,
        done: impl FnMut(&mut Engine) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        let answer = self.enter()?.wait(deadline, done);
        self.wake_tasks();
        answer
    }

    fn wait_for_count<T>(
        &self,
        _number: u32,
        deadline: Option<Instant>,
        mut ready: impl FnMut() -> Option<T>,
    ) -> Result<Option<T>, Error> {
        EngineRef::wait(self, deadline, |_| ready())
    }

    fn notify_counter(&self, _number: u32) {
        // The thread that counts is the one that waits.
    }

    fn new_wait_object(&self) -> io::Result<Arc<WaitObject>> {
        // One thread sleeps by one.
        self.wait_object()
    }

    fn arm(&self, _wait_object: &WaitObject) -> Result<(), Error> {
        (**self).arm()
    }

    fn wake_when_readable(&self, waker: &Waker) -> bool {
        (**self).wake_when_readable(waker)
    }

    fn spin(&self) -> Duration {
        self.borrow_mut().state.spin()
    }

    #[inline]
    fn posts(&self) -> &EngineCell {
        self
    }

    fn take_outcome(&self, handle: &Id) -> Option<Outcome> {
        take_outcome(&mut self.borrow_mut(), *handle)
    }

    fn wait_for_outcome(
        &self,
        handle: &Id,
        deadline: Option<Instant>,
    ) -> Result<Option<Outcome>, Error> {
        let outcome = self.enter()?.wait(deadline, |engine| take_outcome(engine, *handle));
        self.wake_tasks();
        outcome
    }

    fn cancel_handle(&self, handle: &Id) -> bool {
        let mut engine = self.borrow_mut();
        let operation = engine.state.completions().operation_of(*handle);
        operation.is_some_and(|operation| engine.state.cancel(operation))
    }

    fn abort_handle(&self, handle: &Id) {
        let mut engine = self.borrow_mut();
        if let Some(operation) = engine.state.completions().operation_of(*handle) {
            engine.abort(operation);
        }
    }

    fn wake_at_end(&self, _handle: &Id, _waker: &Waker) -> bool {
        // The caretaker rings where it has done something.
        true
    }

    fn abandon(&self, handle: &Id) {
        match self.borrow_to_let_go() {
            Some(mut engine) => engine.state.abandon(*handle),
            None => self.give_up_later(*handle, None),
        }
    }

    fn give_up_receive(&self, handle: &Id, endpoint: u16) {
        let Some(mut engine) = self.borrow_to_let_go() else {
            return self.give_up_later(*handle, Some(endpoint));
        };
        engine.state.give_up_receive(*handle, endpoint);
        drop(engine);
        // Another receive may have got the message.
        self.wake_tasks();
    }

    fn open_queue(&self, entries_max: usize) -> u32 {
        self.borrow_mut().state.completions_mut().open_queue(entries_max)
    }

    fn share_queue(&self, queue: &u32) {
        self.borrow_mut().state.completions_mut().share_queue(*queue);
    }

    fn close_queue(&self, queue: &u32) {
        // Of one that is dropped inside its own engine the entries go with the engine.
        if let Some(mut engine) = self.borrow_to_let_go() {
            engine.state.completions_mut().close_queue(*queue);
        }
    }

    fn number_of(queue: &u32) -> u32 {
        *queue
    }

    fn refuse_inherited_queue(&self) {
        // There is no way to a queue but by the engine, which panics.
    }

    fn is_same_queue(one: &u32, other: &u32) -> bool {
        one == other
    }

    fn is_queue_empty(&self, queue: &u32) -> bool {
        self.borrow_mut().state.completions().is_queue_empty(*queue)
    }

    #[inline]
    fn read_queue(&self, queue: &u32, into: &mut Vec<Completion>, limit: usize) -> usize {
        self.borrow_mut().state.completions_mut().take(*queue, into, limit)
    }

    #[inline]
    fn progress_and_read(
        &self,
        queue: &u32,
        into: &mut Vec<Completion>,
        limit: usize,
    ) -> Result<usize, Error> {
        let mut inside = self.enter()?;
        let engine: &mut Engine = &mut inside;
        let happened = engine.progress()?;
        let got = engine.state.completions_mut().take(*queue, into, limit);
        drop(inside);
        if happened {
            self.wake_tasks();
        }
        Ok(got)
    }

    fn wait_for_queues<'q>(
        &self,
        queues: impl Iterator<Item = &'q u32> + Clone,
        into: &mut Vec<Completion>,
        limit: usize,
        deadline: Option<Instant>,
    ) -> Result<usize, Error> {
        let got = self.enter()?.wait(deadline, |engine| {
            let completions = engine.state.completions_mut();
            let got = queues
                .clone()
                .fold(0, |got, queue| got + completions.take(*queue, into, limit - got));
            (got > 0).then_some(got)
        });
        self.wake_tasks();
        Ok(got?.unwrap_or(0))
    }
}

impl PostTarget for EngineCell {
    type Handle = Id;

    #[inline]
    fn post_send(
        &self,
        request: &SendRequest,
        memory: Memory,
        to: PostedTo,
        more: bool,
    ) -> Result<Option<OperationId>, Refused> {
        match self.enter() {
            Ok(mut engine) => Ok(engine.post_send_to(request, memory, to, more)?.map(named)),
            Err(error) => Err((error, memory)),
        }
    }

    #[inline]
    fn post_send_from(
        &self,
        request: &SendRequest,
        span: RawSpan,
        to: PostedTo,
        more: bool,
    ) -> Result<Option<OperationId>, Error> {
        Ok(self.enter()?.post_send_from(request, span, to, more)?.map(named))
    }

    #[inline]
    fn post_into(
        &self,
        request: &ReceiveRequest,
        memory: &mut ReceiveMemory,
        to: PostedTo,
    ) -> Result<OperationId, Error> {
        self.enter()?.state.post_into(request, memory, to).map(named)
    }

    #[inline]
    fn post_receive(
        &self,
        request: &ReceiveRequest,
        memory: Memory,
        to: PostedTo,
    ) -> Result<OperationId, Refused> {
        match self.enter() {
            Ok(mut engine) => engine.state.post_receive(request, memory, to.route()).map(named),
            Err(error) => Err((error, memory)),
        }
    }

    #[inline]
    fn inject(
        &self,
        request: &SendRequest,
        bytes: &[u8],
        to: PostedTo,
        more: bool,
    ) -> Result<(), Error> {
        self.enter()?.inject(request, bytes, to.route(), more)
    }

    fn start_send(
        &self,
        request: &SendRequest,
        memory: Memory,
        more: bool,
    ) -> Result<PostResult, Refused> {
        match self.enter() {
            Ok(mut engine) => engine.start_send(request, memory, more, None),
            Err(error) => Err((error, memory)),
        }
    }

    fn start_receive(&self, request: &ReceiveRequest, memory: Memory) -> Result<Id, Refused> {
        match self.enter() {
            Ok(mut engine) => engine.state.start_receive(request, memory, None),
            Err(error) => Err((error, memory)),
        }
    }

    fn post_one_sided(
        &self,
        request: OneSidedRequest,
        memory: Memory,
        to: PostedTo,
        more: bool,
    ) -> Result<OperationId, Refused> {
        match self.enter() {
            Ok(mut engine) => engine.post_one_sided_to(request, memory, to, more).map(named),
            Err(error) => Err((error, memory)),
        }
    }

    fn start_one_sided(
        &self,
        request: OneSidedRequest,
        memory: Memory,
        more: bool,
        flushed_to: PostedTo,
    ) -> Result<PostResult, Refused> {
        match self.enter() {
            Ok(mut engine) => engine.start_one_sided(request, memory, more, flushed_to, None),
            Err(error) => Err((error, memory)),
        }
    }

    #[inline]
    fn inject_put(
        &self,
        request: OneSidedRequest,
        bytes: &[u8],
        to: PostedTo,
        more: bool,
    ) -> Result<(), Error> {
        self.enter()?.inject_put(request, bytes, to, more)
    }

    fn cancel(&self, operation: OperationId) -> bool {
        let OperationName::Posted(id) = operation.0 else { return false };
        self.borrow_mut().state.cancel(id)
    }
}

fn take_outcome(engine: &mut Engine, handle: Id) -> Option<Outcome> {
    engine.state.completions_mut().take_outcome(handle).map(|(outcome, _)| outcome)
}
