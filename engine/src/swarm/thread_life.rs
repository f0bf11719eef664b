//! What threads of a bout do: calls of the shared engine, which they log for the world.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::task::Waker;

use super::span::Span;
use crate::memory::Buffer;
use crate::progress::completions::{PostedTo, class_of};
use crate::progress::outside::{OutsideQueue, Ticket};
use crate::progress::post::{Memory, PostResult};
use crate::progress::posting::PostTarget;
use crate::progress::shared_engine::SharedEngine;
use crate::proto::receive::ReceiveRequest;
use crate::proto::session::send::SendRequest;
use crate::types::{Completion, Error, OperationId, OperationKind};

/// An operation that a thread posts.
#[derive(Debug)]
pub(super) enum Post {
    Send { request: SendRequest, memory: Memory, more: bool },
    Inject { request: SendRequest, bytes: Vec<u8>, more: bool },
    Receive { request: ReceiveRequest, memory: Memory },
}

/// Something that a thread does.
#[derive(Debug)]
pub(super) enum Call {
    /// Posts to a queue, or with a ticket.
    Post {
        index: usize,
        post: Post,
        to: Option<PostedTo>,
    },
    /// Cancels what it has posted, counted from the latest.
    Cancel(usize),
    Progress,
    /// Waits for a completion in its queue.
    Wait,
    /// Waits for the latest of its tickets.
    WaitForTicket,
}

/// The result of a call.
#[derive(Debug)]
pub(super) enum Outcome {
    /// It goes on, or is over; its end is reported.
    Named(Option<OperationId>),
    Ticket(Arc<Ticket>),
    /// It was over at once.
    Sent(Option<Buffer>),
    Refused(Error),
}

/// A post that was made.
#[derive(Debug)]
pub(super) struct Made {
    pub(super) index: usize,
    pub(super) kind: OperationKind,
    pub(super) span: Span,
    pub(super) outcome: Outcome,
}

/// The log of the threads, which the world reads.
#[derive(Default)]
pub(super) struct Log {
    pub(super) bout: u64,
    pub(super) clock: u64,
    pub(super) made: Vec<Made>,
    pub(super) taken: Vec<Completion>,
    pub(super) failed: Option<Error>,
    /// The event that each thread waits for.
    pub(super) waits: Vec<Option<Awaited>>,
}

#[derive(Clone)]
pub(super) enum Awaited {
    Queue(Arc<OutsideQueue>),
    Ticket(Arc<Ticket>),
}

impl Awaited {
    pub(super) fn is_there(&self) -> bool {
        match self {
            Self::Queue(queue) => !queue.is_empty(),
            Self::Ticket(ticket) => !ticket.wake_at_end(Waker::noop()),
        }
    }
}

/// A thread's life.
pub(super) fn live(
    this: usize,
    engine: &SharedEngine,
    calls: Vec<Call>,
    queue: &Arc<OutsideQueue>,
    (log, is_over): (&RefCell<Log>, &Cell<bool>),
) {
    let mut operations: Vec<OperationId> = Vec::new();
    let mut tickets: Vec<Arc<Ticket>> = Vec::new();
    for call in calls {
        match call {
            Call::Post { index, post, to } => {
                let began = log.borrow_mut().tick();
                let kind = match &post {
                    Post::Receive { .. } => OperationKind::Receive,
                    Post::Send { .. } | Post::Inject { .. } => OperationKind::Send,
                };
                let outcome = make(engine, post, to);
                match &outcome {
                    Outcome::Named(id) => operations.extend(id),
                    Outcome::Ticket(ticket) => tickets.push(Arc::clone(ticket)),
                    Outcome::Sent(_) | Outcome::Refused(_) => {}
                }
                let log = &mut *log.borrow_mut();
                let returned = log.tick();
                let span = Span { bout: log.bout, began, returned };
                log.made.push(Made { index, kind, span, outcome });
            }
            Call::Cancel(back) => {
                let nth = operations.len().checked_sub(1 + back);
                if let Some(id) = nth.map(|nth| operations.remove(nth)) {
                    engine.cancel(id);
                } else if let Some(ticket) = tickets.last() {
                    engine.cancel_ticket(ticket);
                }
            }
            Call::Progress => {
                if let Err(error) = engine.progress() {
                    log.borrow_mut().failed = Some(error);
                }
            }
            Call::Wait => {
                log.borrow_mut().waits[this] = Some(Awaited::Queue(Arc::clone(queue)));
                let mut taken = Vec::new();
                wait(engine, class_of(queue.number()), (log, is_over), || {
                    queue.take(&mut taken, 4) > 0
                });
                let log = &mut *log.borrow_mut();
                log.waits[this] = None;
                log.taken.append(&mut taken);
            }
            Call::WaitForTicket => {
                // The world takes what it ended with.
                let Some(ticket) = tickets.last() else { continue };
                log.borrow_mut().waits[this] = Some(Awaited::Ticket(Arc::clone(ticket)));
                wait(engine, class_of(ticket.number()), (log, is_over), || {
                    !ticket.wake_at_end(Waker::noop())
                });
                log.borrow_mut().waits[this] = None;
            }
        }
    }
}

fn wait(
    engine: &SharedEngine,
    classes: u32,
    (log, is_over): (&RefCell<Log>, &Cell<bool>),
    mut is_there: impl FnMut() -> bool,
) {
    let ready = || (is_there() || is_over.get()).then_some(());
    if let Err(error) = engine.wait_for(classes, None, ready) {
        log.borrow_mut().failed = Some(error);
    }
}

fn make(engine: &SharedEngine, post: Post, to: Option<PostedTo>) -> Outcome {
    let made = match (post, to) {
        (Post::Send { request, memory, more }, Some(to)) => {
            engine.post_send(&request, memory, to, more).map(Outcome::Named)
        }
        (Post::Send { request, memory, more }, None) => {
            engine.start_send(&request, memory, more).map(|posted| match posted {
                PostResult::Pending(ticket) => Outcome::Ticket(ticket),
                PostResult::Sent(_, buffer) => Outcome::Sent(buffer),
            })
        }
        (Post::Receive { request, memory }, Some(to)) => {
            engine.post_receive(&request, memory, to).map(|id| Outcome::Named(Some(id)))
        }
        (Post::Receive { request, memory }, None) => {
            engine.start_receive(&request, memory).map(Outcome::Ticket)
        }
        (Post::Inject { request, bytes, more }, to) => {
            let to = to.unwrap_or(PostedTo { queue: 0, user_data: 0, silent: true });
            let posted = engine.inject(&request, &bytes, to, more);
            posted.map(|()| Outcome::Named(None)).map_err(|error| (error, Memory::nothing()))
        }
    };
    made.unwrap_or_else(|(error, _)| Outcome::Refused(error))
}

impl Log {
    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }
}
