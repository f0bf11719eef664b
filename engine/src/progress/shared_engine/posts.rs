//! Posts: made at once where the engine is free and nothing waits, left to its holder otherwise.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::SharedEngine;
use super::inside::{CompletionTarget, Copied, Inside, OneSidedPost, PostRequest, PutPost};
use crate::progress::completions::PostedTo;
use crate::progress::engine::Engine;
use crate::progress::outside::Ticket;
use crate::progress::post::{Memory, PostResult, Refused, beyond_inject_limit};
use crate::progress::shared::{self, CombinerGuard};
use crate::proto::one_sided::origin::OneSidedRequest;
use crate::proto::receive::ReceiveRequest;
use crate::proto::send::SendRequest;
use crate::proto::table::Id;
use crate::types::{Error, OperationId, OperationName};

/// The lock of an engine.
pub(super) type Inner<'a> = CombinerGuard<'a, Inside, PostRequest>;

/// Reason of a refused post.
const OTHERS: &str = "queued posts of other threads";

#[inline]
fn named(id: Id) -> OperationId {
    OperationId(OperationName::Posted(id))
}

/// The calling thread has the engine, for a call that no earlier one waits before.
pub(super) struct Turn<'a> {
    pub(super) engine: &'a SharedEngine,
    pub(super) guard: Inner<'a>,
}

impl Turn<'_> {
    #[inline]
    pub(super) fn engine(&mut self) -> &mut Engine {
        self.guard.engine()
    }

    /// Releases the engine, and notifies waiters for its effects, or for the lock.
    #[inline]
    pub(super) fn end(self) {
        let Self { engine, guard } = self;
        let place = &*engine.place;
        place.count_call();
        let ended = if guard.is_quiet() { place.shared().end(guard) } else { Err(guard) };
        match ended {
            Ok(()) => place.wake_caretaker(engine.membership.as_ref()),
            Err(guard) => engine.end_slowly(guard),
        }
    }
}

impl SharedEngine {
    /// Returns the engine for a post that may be made now: the lock is free, and nothing earlier
    /// waits.
    #[inline]
    pub(super) fn try_begin(&self) -> Result<Turn<'_>, Option<Inner<'_>>> {
        let guard = self.place.shared().try_begin()?;
        Ok(Turn { engine: self, guard })
    }

    /// Posts `what` now if the lock is free and nothing earlier waits, and by `behind` otherwise.
    #[inline]
    fn post<P, R>(
        &self,
        what: P,
        inline: impl FnOnce(&mut Engine, P) -> R,
        behind: impl FnOnce(Option<Inner<'_>>, P) -> R,
    ) -> R {
        self.place.shared().post(
            what,
            |inside, what| inline(inside.engine(), what),
            |guard| Turn { engine: self, guard }.end(),
            behind,
        )
    }

    /// Ends a call after which something is left to do.
    #[inline(never)]
    fn end_slowly(&self, mut guard: Inner<'_>) {
        let pending = RefCell::default();
        guard.after(&self.place, &pending);
        self.place.shared().end_slowly(guard, |inside, request| {
            self.place.apply(inside, request, &pending);
        });
        self.after_call(pending);
    }

    /// Refuses to queue a request to the holder (which is another thread where there is no guard):
    /// the limit is reached, or there is no holder, in a child of `fork`.
    fn check_room(&self, guard: Option<&Inner<'_>>) -> Result<(), Error> {
        if guard.is_some() {
            return Ok(());
        }
        self.refuse_inherited()?;
        match self.place.shared().combiner().queue_len() >= self.requests_max {
            true => Err(Error::WouldBlock(OTHERS)),
            false => Ok(()),
        }
    }

    /// Refuses an inject of this many bytes that is too long, or while too many others wait: for
    /// the holder, or for credit.
    fn check_copy(&self, guard: Option<&Inner<'_>>, length: usize) -> Result<(), Error> {
        if length > self.inject_limit {
            return Err(beyond_inject_limit(length, self.inject_limit));
        }
        if guard.is_none() {
            self.refuse_inherited()?;
        }
        match guard.is_none() && self.place.waiting_injects() >= self.injects_max {
            true => Err(Error::WouldBlock(OTHERS)),
            false => Ok(()),
        }
    }

    /// Posts `what` after waiting requests, or queues a request with it.
    fn post_behind<P, R>(
        &self,
        guard: Option<Inner<'_>>,
        what: P,
        inline: impl FnOnce(&mut Engine, P) -> R,
        queued: impl FnOnce(P) -> PostRequest,
    ) -> Option<R> {
        // A callback of the engine cannot wait for it.
        let is_callback = || guard.is_none() && self.place.shared().combiner().is_held_here();
        if self.is_in_turn.load(Ordering::Relaxed) && !is_callback() {
            if let Some(guard) = guard {
                self.end_slowly(guard);
            }
            return Some(self.with(|engine| inline(engine, what)));
        }
        let pending = RefCell::default();
        // One of the two takes it.
        let what = Cell::new(Some(what));
        let take = || what.take().expect("one of the two is called, once");
        let posted = self.place.shared().post_behind(
            guard,
            |inside| {
                let answer = inline(inside.engine(), take());
                self.place.count_call();
                inside.after(&self.place, &pending);
                answer
            },
            || queued(take()),
            |inside, request| self.place.apply(inside, request, &pending),
        );
        self.after_call(pending);
        match posted {
            shared::PostOutcome::Inline(answer) => Some(answer),
            shared::PostOutcome::Queued => None,
        }
    }

    /// Posts as [`Self::post_behind`] does, for posts that have to return memory.
    fn post_memory_behind<R>(
        &self,
        guard: Option<Inner<'_>>,
        memory: Memory,
        inline: impl FnOnce(&mut Engine, Memory) -> Result<R, Refused>,
        queued: impl FnOnce(Memory) -> PostRequest,
    ) -> Result<Option<R>, Refused> {
        if let Err(error) = self.check_room(guard.as_ref()) {
            if planted!(DropAtFullQueue) {
                return Ok(None);
            }
            return Err((error, memory));
        }
        self.post_behind(guard, memory, inline, queued).transpose()
    }

    /// The handle of a receive is dropped while this thread has the engine, as in a callback: it is
    /// given up behind what is under way.
    #[cold]
    pub(crate) fn give_up_later(&self, ticket: &Arc<Ticket>, endpoint: u16) {
        if self.is_inherited() {
            return;
        }
        self.post_behind(
            None,
            (),
            |engine, ()| engine.state.give_up_ticket(ticket, endpoint),
            |()| PostRequest::GiveUp { ticket: Arc::clone(ticket), endpoint },
        );
    }

    fn new_request(&self) -> u64 {
        self.next_request.fetch_add(1, Ordering::Relaxed)
    }

    /// Posts a send that completes to a queue. `None`: it has completed.
    #[inline]
    pub(crate) fn post_send(
        &self,
        request: &SendRequest,
        memory: Memory,
        to: PostedTo<u32>,
        more: bool,
    ) -> Result<Option<OperationId>, Refused> {
        self.post(
            memory,
            |engine, memory| Ok(engine.post_send_to(request, memory, to, more)?.map(named)),
            |guard, memory| self.leave_send(guard, request, memory, to, more),
        )
    }

    #[cold]
    #[inline(never)]
    fn leave_send(
        &self,
        guard: Option<Inner<'_>>,
        request: &SendRequest,
        memory: Memory,
        to: PostedTo<u32>,
        more: bool,
    ) -> Result<Option<OperationId>, Refused> {
        let mut number = 0;
        let posted = self.post_memory_behind(
            guard,
            memory,
            |engine, memory| engine.post_send_to(request, memory, to, more),
            |memory| {
                number = self.new_request();
                let end = CompletionTarget::Queue { to, number };
                PostRequest::Send { request: *request, memory, end, more }
            },
        )?;
        Ok(match posted {
            Some(posted) => posted.map(named),
            None => Some(OperationId(OperationName::Requested(number))),
        })
    }

    /// Posts a receive that completes to a queue.
    #[inline]
    pub(crate) fn post_receive(
        &self,
        request: &ReceiveRequest,
        memory: Memory,
        to: PostedTo<u32>,
    ) -> Result<OperationId, Refused> {
        self.post(
            memory,
            |engine, memory| engine.state.post_receive(request, memory, to.route()).map(named),
            |guard, memory| self.leave_receive(guard, request, memory, to),
        )
    }

    #[cold]
    #[inline(never)]
    fn leave_receive(
        &self,
        guard: Option<Inner<'_>>,
        request: &ReceiveRequest,
        memory: Memory,
        to: PostedTo<u32>,
    ) -> Result<OperationId, Refused> {
        let mut number = 0;
        let posted = self.post_memory_behind(
            guard,
            memory,
            |engine, memory| engine.state.post_receive(request, memory, to.route()),
            |memory| {
                number = self.new_request();
                PostRequest::Receive {
                    request: *request,
                    memory,
                    end: CompletionTarget::Queue { to, number },
                }
            },
        )?;
        Ok(posted.map_or(OperationId(OperationName::Requested(number)), named))
    }

    /// Posts a send of a copy of `bytes`, of which only a failure is reported.
    #[inline]
    pub(crate) fn inject(
        &self,
        request: &SendRequest,
        bytes: &[u8],
        to: PostedTo<u32>,
        more: bool,
    ) -> Result<(), Error> {
        self.post(
            (),
            |engine, ()| engine.inject(request, bytes, to.route(), more),
            |guard, ()| self.leave_inject(guard, request, bytes, to, more),
        )
    }

    #[cold]
    #[inline(never)]
    fn leave_inject(
        &self,
        guard: Option<Inner<'_>>,
        request: &SendRequest,
        bytes: &[u8],
        to: PostedTo<u32>,
        more: bool,
    ) -> Result<(), Error> {
        self.check_copy(guard.as_ref(), bytes.len())?;
        let posted = self.post_behind(
            guard,
            (),
            |engine, ()| engine.inject(request, bytes, to.route(), more),
            |()| PostRequest::Inject { request: *request, bytes: Copied::of(bytes), to, more },
        );
        posted.unwrap_or(Ok(()))
    }

    /// Posts a send with a ticket.
    pub(crate) fn start_send(
        &self,
        request: &SendRequest,
        memory: Memory,
        more: bool,
    ) -> Result<PostResult<Arc<Ticket>>, Refused> {
        let ticket = Arc::new(Ticket::new());
        let start =
            |engine: &mut Engine, memory| engine.start_send(request, memory, more, Some(&ticket));
        let posted = self.post(
            memory,
            |engine, memory| start(engine, memory).map(Some),
            |guard, memory| {
                self.post_memory_behind(guard, memory, start, |memory| {
                    let end = CompletionTarget::Ticket(Arc::clone(&ticket));
                    PostRequest::Send { request: *request, memory, end, more }
                })
            },
        );
        Ok(match posted? {
            Some(PostResult::Sent(status, buffer)) => PostResult::Sent(status, buffer),
            Some(PostResult::Pending(_)) | None => PostResult::Pending(ticket),
        })
    }

    /// Posts a receive with a ticket.
    pub(crate) fn start_receive(
        &self,
        request: &ReceiveRequest,
        memory: Memory,
    ) -> Result<Arc<Ticket>, Refused> {
        let ticket = Arc::new(Ticket::new());
        let start = |engine: &mut Engine, memory| {
            engine.state.start_receive(request, memory, Some(&ticket))
        };
        let posted = self.post(
            memory,
            |engine, memory| start(engine, memory).map(Some),
            |guard, memory| {
                self.post_memory_behind(guard, memory, start, |memory| {
                    let end = CompletionTarget::Ticket(Arc::clone(&ticket));
                    PostRequest::Receive { request: *request, memory, end }
                })
            },
        );
        posted?;
        Ok(ticket)
    }

    /// Posts a one-sided operation that completes to a queue.
    #[inline]
    pub(crate) fn post_one_sided(
        &self,
        request: OneSidedRequest,
        memory: Memory,
        to: PostedTo<u32>,
        more: bool,
    ) -> Result<OperationId, Refused> {
        self.post(
            (request, memory),
            |engine, (request, memory)| {
                engine.post_one_sided_to(request, memory, to, more).map(named)
            },
            |guard, (request, memory)| self.leave_one_sided(guard, request, memory, to, more),
        )
    }

    #[cold]
    #[inline(never)]
    fn leave_one_sided(
        &self,
        guard: Option<Inner<'_>>,
        request: OneSidedRequest,
        memory: Memory,
        to: PostedTo<u32>,
        more: bool,
    ) -> Result<OperationId, Refused> {
        if let Err(error) = self.check_room(guard.as_ref()) {
            return Err((error, memory));
        }
        let mut number = 0;
        let posted = self.post_behind(
            guard,
            (request, memory),
            |engine, (request, memory)| engine.post_one_sided_to(request, memory, to, more),
            |(request, memory)| {
                number = self.new_request();
                let end = CompletionTarget::Queue { to, number };
                let post = OneSidedPost { request, memory, end, flushed_to: to, more };
                PostRequest::OneSided(Box::new(post))
            },
        );
        Ok(posted.transpose()?.map_or(OperationId(OperationName::Requested(number)), named))
    }

    /// Posts a one-sided operation with a ticket. The failure of the flush before one with a fence
    /// is reported to `flushed_to`.
    pub(crate) fn start_one_sided(
        &self,
        request: OneSidedRequest,
        memory: Memory,
        more: bool,
        flushed_to: PostedTo<u32>,
    ) -> Result<Arc<Ticket>, Refused> {
        let ticket = Arc::new(Ticket::new());
        let start = |engine: &mut Engine, (request, memory)| {
            engine.start_one_sided(request, memory, more, flushed_to, Some(&ticket)).map(drop)
        };
        self.post((request, memory), start, |guard, (request, memory)| {
            if let Err(error) = self.check_room(guard.as_ref()) {
                return Err((error, memory));
            }
            let queued = |(request, memory)| {
                let end = CompletionTarget::Ticket(Arc::clone(&ticket));
                let post = OneSidedPost { request, memory, end, flushed_to, more };
                PostRequest::OneSided(Box::new(post))
            };
            self.post_behind(guard, (request, memory), start, queued).unwrap_or(Ok(()))
        })?;
        Ok(ticket)
    }

    /// Puts a copy of `bytes`, of which only a failure is reported.
    #[inline]
    pub(crate) fn inject_put(
        &self,
        request: OneSidedRequest,
        bytes: &[u8],
        to: PostedTo<u32>,
        more: bool,
    ) -> Result<(), Error> {
        self.post(
            request,
            |engine, request| engine.inject_put(request, bytes, to, more),
            |guard, request| self.leave_put(guard, request, bytes, to, more),
        )
    }

    #[cold]
    #[inline(never)]
    fn leave_put(
        &self,
        guard: Option<Inner<'_>>,
        request: OneSidedRequest,
        bytes: &[u8],
        to: PostedTo<u32>,
        more: bool,
    ) -> Result<(), Error> {
        self.check_copy(guard.as_ref(), bytes.len())?;
        let posted = self.post_behind(
            guard,
            request,
            |engine, request| engine.inject_put(request, bytes, to, more),
            |request| {
                let post = PutPost { request, bytes: Copied::of(bytes), to, more };
                PostRequest::InjectPut(Box::new(post))
            },
        );
        posted.unwrap_or(Ok(()))
    }
}
