//! State under the lock, and the posts that are left to its holder.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use super::nanoseconds;
use super::place::{EnginePlace, PendingWakeups};
use crate::progress::caretaker::SendEngine;
use crate::progress::completions::{PostedTo, counted_as};
use crate::progress::engine::Engine;
use crate::progress::one_sided;
use crate::progress::outside::Ticket;
use crate::progress::post::{Memory, PostResult, Refused, kind_of};
use crate::proto::receive::ReceiveRequest;
use crate::proto::session::one_sided::origin::OneSidedRequest;
use crate::proto::session::send::SendRequest;
use crate::proto::table::Id;
use crate::types::OperationKind;

/// Number of kept request names up to which ended ones are not searched for.
const NAMES_MIN: usize = 1024;

/// The number of requests that cannot be cancelled.
pub(super) const NAMELESS: u64 = u64::MAX;

/// Destination of a request's completion.
#[derive(Debug)]
pub(super) enum CompletionTarget {
    Queue { to: PostedTo, number: u64 },
    Ticket(Arc<Ticket>),
}

/// A post that is left to the lock holder.
#[derive(Debug)]
pub(super) enum PostRequest {
    /// Of the shortest messages: two cache lines with the link of its node.
    Inject {
        request: SendRequest,
        bytes: Copied,
        to: PostedTo,
        more: bool,
    },
    Send {
        request: SendRequest,
        memory: Memory,
        end: CompletionTarget,
        more: bool,
    },
    Receive {
        request: ReceiveRequest,
        memory: Memory,
        end: CompletionTarget,
    },
    OneSided(Box<OneSidedPost>),
    InjectPut(Box<PutPost>),
    /// The handle of a receive was dropped by the holder itself.
    GiveUp {
        ticket: Arc<Ticket>,
        endpoint: u16,
    },
}

/// Size moved by a queue for each request, with the link of its node: three cache lines at most.
const _: () = assert!(size_of::<Option<PostRequest>>() <= 3 * 64 - size_of::<usize>());

/// A one-sided operation.
#[derive(Debug)]
pub(super) struct OneSidedPost {
    pub(super) request: OneSidedRequest,
    pub(super) memory: Memory,
    pub(super) end: CompletionTarget,
    /// Destination of the failure of the flush before one with a fence.
    pub(super) flushed_to: PostedTo,
    pub(super) more: bool,
}

/// A put of a copy.
#[derive(Debug)]
pub(super) struct PutPost {
    pub(super) request: OneSidedRequest,
    pub(super) bytes: Copied,
    pub(super) to: PostedTo,
    pub(super) more: bool,
}

/// Maximum bytes that are kept in a request without an allocation.
const SHORT: usize = 22;

/// A copy of data that its poster reuses.
#[derive(Debug)]
pub(super) enum Copied {
    Short(u8, [u8; SHORT]),
    Long(Box<[u8]>),
}

impl Copied {
    pub(super) fn of(bytes: &[u8]) -> Self {
        if bytes.len() > SHORT {
            return Self::Long(bytes.into());
        }
        let mut short = [0; SHORT];
        short[..bytes.len()].copy_from_slice(bytes);
        Self::Short(bytes.len() as u8, short)
    }

    fn as_slice(&self) -> &[u8] {
        match self {
            Self::Short(length, bytes) => &bytes[..usize::from(*length)],
            Self::Long(bytes) => bytes,
        }
    }
}

/// State under the lock.
pub(super) struct Inside {
    /// `None`: it is being closed.
    pub(super) engine: Option<SendEngine>,
    /// Operations by the names that their posters gave to their requests.
    pub(super) names: HashMap<u64, Id>,
    names_max: usize,
    /// Until when the leader sleeps, by the engine's clock; `None`: it does not.
    pub(super) armed_until_ns: Option<u64>,
    /// It has to wake before that.
    pub(super) wants_wake: bool,
    /// Injects that were left to a holder and wait for credit or space, approximately oldest first.
    waiting_injects: VecDeque<Id>,
}

const PRESENT: &str = "the engine is removed only by drop, when no reference is left";

impl Inside {
    pub(super) fn new(engine: SendEngine) -> Self {
        Self {
            engine: Some(engine),
            names: HashMap::new(),
            names_max: NAMES_MIN,
            armed_until_ns: None,
            wants_wake: false,
            waiting_injects: VecDeque::new(),
        }
    }

    /// Takes the classes of waiters that have an event, if a call has left nothing else to do but
    /// to release the lock. `None`: it has, and nothing is taken.
    #[inline]
    pub(super) fn take_classes_if_quiet(&mut self) -> Option<u32> {
        if self.armed_until_ns.is_some() || !self.waiting_injects.is_empty() {
            return None;
        }
        self.engine.as_mut().map_or(Some(0), |engine| engine.state.completions.take_classes())
    }

    pub(super) fn engine(&mut self) -> &mut Engine {
        self.engine.as_mut().expect(PRESENT)
    }

    /// Completes each call and request: a sleeping leader is to see its effects, and waiters
    /// outside their completions.
    pub(super) fn after(&mut self, place: &EnginePlace, pending: &RefCell<PendingWakeups>) {
        if self.engine.is_none() {
            return;
        }
        if self.armed_until_ns.is_some() && !place.has_sleepers() {
            self.armed_until_ns = None;
        }
        if let Some(until_ns) = self.armed_until_ns {
            let engine = self.engine();
            let is_sooner = match engine.arm() {
                Ok(left) => engine.state.now_ns + nanoseconds(left) < until_ns,
                Err(_) => true,
            };
            self.wants_wake |= is_sooner;
            pending.borrow_mut().wakes_wait_objects |= is_sooner;
        }
        if !self.waiting_injects.is_empty() {
            self.remove_sent_injects(place);
        }
        let latest = self.engine().state.completions.take_wakeups();
        if !latest.is_empty() {
            let wakeups = &mut pending.borrow_mut().wakeups;
            wakeups.classes |= latest.classes;
            wakeups.wakers.extend(latest.wakers);
        }
    }

    /// Removes sent injects from the waiting ones.
    #[cold]
    fn remove_sent_injects(&mut self, place: &EnginePlace) {
        let engine = self.engine.as_ref().expect(PRESENT);
        let operations = engine.state.core.shared().operations();
        while self.waiting_injects.front().is_some_and(|id| !operations.contains(*id)) {
            self.waiting_injects.pop_front();
        }
        place.set_waiting_injects(self.waiting_injects.len());
    }

    /// Posts a request that was left to the holder. One that a limit refuses ends with that error:
    /// its poster has continued, and waiting for space would delay all other requests. Injects,
    /// whose posters get no completion, are limited before they are queued instead.
    pub(super) fn apply(&mut self, request: PostRequest) {
        match request {
            PostRequest::Inject { request, bytes, to, more } => {
                let bytes = bytes.as_slice();
                match self.engine().inject_admitted(&request, bytes, to, more) {
                    Ok(waits) => self.waiting_injects.extend(waits),
                    Err(error) => {
                        let refused = (error, Memory::nothing());
                        let end = CompletionTarget::Queue { to, number: NAMELESS };
                        self.refuse(OperationKind::Send, request.endpoint, end, refused);
                    }
                }
            }
            PostRequest::Send { request, memory, end, more } => {
                if let Err(refused) = self.post_send(&request, memory, &end, more) {
                    self.refuse(OperationKind::Send, request.endpoint, end, refused);
                }
            }
            PostRequest::Receive { request, memory, end } => {
                if let Err(refused) = self.post_receive(&request, memory, &end) {
                    self.refuse(kind_of(&request), request.endpoint, end, refused);
                }
            }
            PostRequest::OneSided(post) => {
                let OneSidedPost { request, memory, end, flushed_to, more } = *post;
                let (kind, endpoint) = (one_sided::kind_of(request.verb), request.endpoint);
                let posted = self.post_one_sided(request, memory, &end, flushed_to, more);
                if let Err(refused) = posted {
                    self.refuse(kind, endpoint, end, refused);
                }
            }
            PostRequest::GiveUp { ticket, endpoint } => {
                self.engine().state.give_up_ticket(&ticket, endpoint)
            }
            PostRequest::InjectPut(post) => {
                let PutPost { request, bytes, to, more } = *post;
                let (bytes, endpoint) = (bytes.as_slice(), request.endpoint);
                match self.engine().inject_admitted_put(request, bytes, to, more) {
                    Ok(waits) => self.waiting_injects.extend(waits),
                    Err(error) => {
                        let refused = (error, Memory::nothing());
                        let end = CompletionTarget::Queue { to, number: NAMELESS };
                        self.refuse(OperationKind::Put, endpoint, end, refused);
                    }
                }
            }
        }
    }

    /// Handles a request that could not be posted.
    fn refuse(
        &mut self,
        kind: OperationKind,
        endpoint: u16,
        end: CompletionTarget,
        refused: Refused,
    ) {
        let event = counted_as(kind, refused.1.shape.len());
        self.report_refused(kind, end, refused);
        if let Some(event) = event {
            self.engine().state.completions.count(endpoint, event, false);
        }
    }

    fn post_send(
        &mut self,
        request: &SendRequest,
        memory: Memory,
        end: &CompletionTarget,
        more: bool,
    ) -> Result<(), Refused> {
        match end {
            CompletionTarget::Queue { to, number } => {
                if let Some(id) = self.engine().post_send_to(request, memory, *to, more)? {
                    self.name(*number, id);
                }
            }
            CompletionTarget::Ticket(ticket) => {
                let posted = self.engine().start_send(request, memory, more, Some(ticket))?;
                if let PostResult::Sent(status, buffer) = posted {
                    self.engine().state.completions.end_ticket(ticket, Ok(status), buffer);
                }
            }
        }
        Ok(())
    }

    fn post_receive(
        &mut self,
        request: &ReceiveRequest,
        memory: Memory,
        end: &CompletionTarget,
    ) -> Result<(), Refused> {
        match end {
            CompletionTarget::Queue { to, number } => {
                let id = self.engine().state.post_receive(request, memory, to.route())?;
                self.name(*number, id);
            }
            CompletionTarget::Ticket(ticket) => {
                self.engine().state.start_receive(request, memory, Some(ticket))?;
            }
        }
        Ok(())
    }

    fn post_one_sided(
        &mut self,
        request: OneSidedRequest,
        memory: Memory,
        end: &CompletionTarget,
        flushed_to: PostedTo,
        more: bool,
    ) -> Result<(), Refused> {
        match end {
            CompletionTarget::Queue { to, number } => {
                let id = self.engine().post_one_sided_to(request, memory, *to, more)?;
                self.name(*number, id);
            }
            CompletionTarget::Ticket(ticket) => {
                let ticket = Some(ticket);
                self.engine().start_one_sided(request, memory, more, flushed_to, ticket)?;
            }
        }
        Ok(())
    }

    fn report_refused(
        &mut self,
        kind: OperationKind,
        end: CompletionTarget,
        (error, memory): Refused,
    ) {
        if planted!(LoseRefusal) {
            return;
        }
        let completions = &mut self.engine().state.completions;
        match end {
            CompletionTarget::Queue { to, .. } => {
                completions.push_refused(to, kind, error, memory.buffer)
            }
            CompletionTarget::Ticket(ticket) => {
                completions.end_ticket(&ticket, Err(error), memory.buffer)
            }
        }
    }

    /// Records the operation of a request, which its poster knows by the request's number.
    fn name(&mut self, number: u64, id: Id) {
        if number == NAMELESS {
            return;
        }
        self.names.insert(number, id);
        if self.names.len() > self.names_max {
            let engine = self.engine.as_ref().expect(PRESENT);
            let operations = engine.state.core.shared().operations();
            self.names.retain(|_, id| operations.contains(*id));
            self.names_max = (2 * self.names.len()).max(NAMES_MIN);
        }
    }
}
