//! Posts: made at once where the engine is free and nothing waits, left to its holder otherwise.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::SharedEngine;
use super::inside::{CompletionTarget, Copied, Inside, OneSidedPost, PostRequest, PutPost};
use super::place::PendingWakeups;
use crate::memory::RawSpan;
use crate::progress::completions::{PostedTo, ReceiveMemory, Wakeups};
use crate::progress::engine::Engine;
use crate::progress::outside::Ticket;
use crate::progress::post::{Memory, PostResult, Refused, beyond_inject_limit};
use crate::progress::posting::{PostTarget, named};
use crate::progress::shared::{self, CombinerGuard};
use crate::proto::receive::ReceiveRequest;
use crate::proto::session::one_sided::origin::OneSidedRequest;
use crate::proto::session::send::SendRequest;
use crate::types::{Error, OperationId, OperationName};

/// The lock of an engine.
pub(super) type Inner<'a> = CombinerGuard<'a, Inside, PostRequest>;

/// Reason of a refused post.
const OTHERS: &str = "queued posts of other threads";

/// Returns the name of an operation that was left to the holder.
fn requested(number: u64) -> OperationId {
    OperationId(OperationName::Requested(number))
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

    /// Releases the engine, and notifies waiters for its effects, or for the lock. `took_events`:
    /// this thread may have taken events that others sleep for, and does not watch for more.
    #[inline]
    pub(super) fn end(self, took_events: bool) {
        let Self { engine, mut guard } = self;
        let place = &*engine.place;
        place.count_call();
        let Some(classes) = guard.take_classes_if_quiet() else {
            return engine.end_slowly(guard, 0, took_events);
        };
        match place.shared().end(guard) {
            Ok(()) => {
                place.wake_caretaker(engine.membership.as_ref());
                if classes != 0 || took_events {
                    place.notify_sleepers(classes);
                }
            }
            Err(guard) => engine.end_slowly(guard, classes, took_events),
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
            |guard| Turn { engine: self, guard }.end(false),
            behind,
        )
    }

    /// Ends a call after which something is left to do. Waiters for one of `classes` have an event.
    #[inline(never)]
    fn end_slowly(&self, mut guard: Inner<'_>, classes: u32, took_events: bool) {
        let wakeups = Wakeups { classes, wakers: Vec::new() };
        let pending = RefCell::new(PendingWakeups { wakeups, wakes_wait_objects: took_events });
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
                self.end_slowly(guard, 0, false);
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
    #[cold]
    #[inline(never)]
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

    /// Posts a send after waiting requests, or queues a request with it.
    #[cold]
    #[inline(never)]
    fn post_send_behind(
        &self,
        guard: Option<Inner<'_>>,
        request: &SendRequest,
        memory: Memory,
        to: PostedTo,
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
        Ok(posted.map_or_else(|| Some(requested(number)), |posted| posted.map(named)))
    }

    /// Posts a receive after waiting requests, or queues a request with it.
    #[cold]
    #[inline(never)]
    fn post_receive_behind(
        &self,
        guard: Option<Inner<'_>>,
        request: &ReceiveRequest,
        memory: Memory,
        to: PostedTo,
    ) -> Result<OperationId, Refused> {
        let mut number = 0;
        let posted = self.post_memory_behind(
            guard,
            memory,
            |engine, memory| engine.state.post_receive(request, memory, to.route()),
            |memory| {
                number = self.new_request();
                let end = CompletionTarget::Queue { to, number };
                PostRequest::Receive { request: *request, memory, end }
            },
        )?;
        Ok(posted.map_or_else(|| requested(number), named))
    }

    /// Posts as [`Self::post_behind`] does, a request with a copy of `bytes` where it is queued.
    #[cold]
    #[inline(never)]
    fn post_copy_behind<P>(
        &self,
        guard: Option<Inner<'_>>,
        bytes: &[u8],
        what: P,
        inline: impl FnOnce(&mut Engine, P) -> Result<(), Error>,
        queued: impl FnOnce(P, Copied) -> PostRequest,
    ) -> Result<(), Error> {
        self.check_copy(guard.as_ref(), bytes.len())?;
        let queued = |what| queued(what, Copied::of(bytes));
        self.post_behind(guard, what, inline, queued).unwrap_or(Ok(()))
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
}

impl PostTarget for SharedEngine {
    type Handle = Arc<Ticket>;

    #[inline]
    fn post_send(
        &self,
        request: &SendRequest,
        memory: Memory,
        to: PostedTo,
        more: bool,
    ) -> Result<Option<OperationId>, Refused> {
        self.post(
            memory,
            |engine, memory| Ok(engine.post_send_to(request, memory, to, more)?.map(named)),
            |guard, memory| self.post_send_behind(guard, request, memory, to, more),
        )
    }

    #[inline]
    fn post_send_from(
        &self,
        request: &SendRequest,
        span: RawSpan,
        to: PostedTo,
        more: bool,
    ) -> Result<Option<OperationId>, Error> {
        self.post(
            span,
            |engine, span| Ok(engine.post_send_from(request, span, to, more)?.map(named)),
            |guard, span| {
                let memory = Memory::borrowed(span);
                let posted = self.post_send_behind(guard, request, memory, to, more);
                posted.map_err(|(error, _)| error)
            },
        )
    }

    #[inline]
    fn post_into(
        &self,
        request: &ReceiveRequest,
        memory: &mut ReceiveMemory,
        to: PostedTo,
    ) -> Result<OperationId, Error> {
        self.post(
            memory,
            |engine, memory| engine.state.post_into(request, memory, to).map(named),
            |guard, memory| {
                let taken = memory.take().into_memory();
                let posted = self.post_receive_behind(guard, request, taken, to);
                posted.map_err(|(error, refused)| {
                    memory.put_back(refused);
                    error
                })
            },
        )
    }

    #[inline]
    fn post_receive(
        &self,
        request: &ReceiveRequest,
        memory: Memory,
        to: PostedTo,
    ) -> Result<OperationId, Refused> {
        self.post(
            memory,
            |engine, memory| engine.state.post_receive(request, memory, to.route()).map(named),
            |guard, memory| self.post_receive_behind(guard, request, memory, to),
        )
    }

    #[inline]
    fn inject(
        &self,
        request: &SendRequest,
        bytes: &[u8],
        to: PostedTo,
        more: bool,
    ) -> Result<(), Error> {
        let post = |engine: &mut Engine, ()| engine.inject(request, bytes, to.route(), more);
        self.post((), post, |guard, ()| {
            self.post_copy_behind(guard, bytes, (), post, |(), bytes| PostRequest::Inject {
                request: *request,
                bytes,
                to,
                more,
            })
        })
    }

    fn start_send(
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

    fn start_receive(
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

    #[inline]
    fn post_one_sided(
        &self,
        request: OneSidedRequest,
        memory: Memory,
        to: PostedTo,
        more: bool,
    ) -> Result<OperationId, Refused> {
        let post = |engine: &mut Engine, (request, memory)| {
            engine.post_one_sided_to(request, memory, to, more)
        };
        self.post(
            (request, memory),
            |engine, what| post(engine, what).map(named),
            |guard, (request, memory)| {
                if let Err(error) = self.check_room(guard.as_ref()) {
                    return Err((error, memory));
                }
                let mut number = 0;
                let queued = |(request, memory)| {
                    number = self.new_request();
                    let end = CompletionTarget::Queue { to, number };
                    let post = OneSidedPost { request, memory, end, flushed_to: to, more };
                    PostRequest::OneSided(Box::new(post))
                };
                let posted = self.post_behind(guard, (request, memory), post, queued);
                Ok(posted.transpose()?.map_or_else(|| requested(number), named))
            },
        )
    }

    fn start_one_sided(
        &self,
        request: OneSidedRequest,
        memory: Memory,
        more: bool,
        flushed_to: PostedTo,
    ) -> Result<PostResult<Arc<Ticket>>, Refused> {
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
        Ok(PostResult::Pending(ticket))
    }

    #[inline]
    fn inject_put(
        &self,
        request: OneSidedRequest,
        bytes: &[u8],
        to: PostedTo,
        more: bool,
    ) -> Result<(), Error> {
        let post = |engine: &mut Engine, request| engine.inject_put(request, bytes, to, more);
        self.post(request, post, |guard, request| {
            self.post_copy_behind(guard, bytes, request, post, |request, bytes| {
                PostRequest::InjectPut(Box::new(PutPost { request, bytes, to, more }))
            })
        })
    }

    fn cancel(&self, operation: OperationId) -> bool {
        self.with_inside(|inside| {
            let id = match operation.0 {
                OperationName::Posted(id) => Some(id),
                OperationName::Requested(number) => inside.names.get(&number).copied(),
            };
            id.is_some_and(|id| inside.engine().state.cancel(id))
        })
    }
}
