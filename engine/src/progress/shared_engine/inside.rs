//! What is under the lock, and the posts that are left to its holder.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

use super::nanoseconds;
use super::place::{Place, Told};
use crate::progress::caretaker::SendEngine;
use crate::progress::completions::PostedTo;
use crate::progress::counters::CounterEvents;
use crate::progress::engine::Engine;
use crate::progress::outside::Ticket;
use crate::progress::post::{Memory, Posted, Refused, kind_of};
use crate::proto::receive::ReceiveRequest;
use crate::proto::send::SendRequest;
use crate::proto::table::Id;
use crate::types::OperationKind;

/// Names of requests that are kept before those are looked for that have ended.
const NAMES_MIN: usize = 1024;

/// The number of requests that nobody cancels.
pub(super) const NAMELESS: u64 = u64::MAX;

/// Where the end of a request goes.
#[derive(Debug)]
pub(super) enum End {
    Queue { to: PostedTo<u32>, number: u64 },
    Ticket(Arc<Ticket>),
}

/// A post that is left to the holder.
#[derive(Debug)]
pub(super) enum Request {
    Send { request: SendRequest, memory: Memory, end: End, more: bool },
    Receive { request: ReceiveRequest, memory: Memory, end: End },
}

/// What is under the lock.
pub(super) struct Inside {
    /// `None`: it is being closed.
    pub(super) engine: Option<SendEngine>,
    /// Operations by the names that their posters gave to their requests.
    pub(super) names: HashMap<u64, Id>,
    names_max: usize,
    /// Until when the leader sleeps, by the engine's clock; `None`: it does not.
    pub(super) armed_until_ns: Option<u64>,
    /// It is to wake before that.
    pub(super) wants_wake: bool,
}

const PRESENT: &str = "the engine is taken out only by drop, when nobody has a reference";

impl Inside {
    pub(super) fn new(engine: SendEngine) -> Self {
        Self {
            engine: Some(engine),
            names: HashMap::new(),
            names_max: NAMES_MIN,
            armed_until_ns: None,
            wants_wake: false,
        }
    }

    pub(super) fn engine(&mut self) -> &mut Engine {
        self.engine.as_mut().expect(PRESENT)
    }

    /// After each call and request: a leader that sleeps is to see what it made, and those outside
    /// their ends.
    pub(super) fn after(&mut self, place: &Place, told: &RefCell<Told>) {
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
            told.borrow_mut().is_sooner |= is_sooner;
        }
        let latest = self.engine().state.completions.take_news();
        if !latest.is_empty() {
            let news = &mut told.borrow_mut().news;
            news.classes |= latest.classes;
            news.wakers.extend(latest.wakers);
        }
    }

    /// Posts what was left to the holder. What a limit refuses ends with that error: its poster has
    /// gone on, and to wait for room would hold up the requests of all others.
    pub(super) fn apply(&mut self, request: Request) {
        match request {
            Request::Send { request, memory, end, more } => {
                if let Err(refused) = self.post_send(&request, memory, &end, more) {
                    self.report_refused(OperationKind::Send, end, refused);
                    let completions = &mut self.engine().state.completions;
                    completions.count(request.endpoint, CounterEvents::SEND, false);
                }
            }
            Request::Receive { request, memory, end } => {
                if let Err(refused) = self.post_receive(&request, memory, &end) {
                    self.report_refused(kind_of(&request), end, refused);
                    let completions = &mut self.engine().state.completions;
                    completions.count(request.endpoint, CounterEvents::RECEIVE, false);
                }
            }
        }
    }

    fn post_send(
        &mut self,
        request: &SendRequest,
        memory: Memory,
        end: &End,
        more: bool,
    ) -> Result<(), Refused> {
        match end {
            End::Queue { to, number } => {
                if let Some(id) = self.engine().post_send_to(request, memory, *to, more)? {
                    self.name(*number, id);
                }
            }
            End::Ticket(ticket) => {
                let posted = self.engine().start_send(request, memory, more, Some(ticket))?;
                if let Posted::Sent(status, buffer) = posted {
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
        end: &End,
    ) -> Result<(), Refused> {
        match end {
            End::Queue { to, number } => {
                let id = self.engine().post_receive(request, memory, to.route())?;
                self.name(*number, id);
            }
            End::Ticket(ticket) => {
                self.engine().start_receive(request, memory, Some(ticket))?;
            }
        }
        Ok(())
    }

    fn report_refused(&mut self, kind: OperationKind, end: End, (error, memory): Refused) {
        if planted!(LoseRefusal) {
            return;
        }
        let completions = &mut self.engine().state.completions;
        match end {
            End::Queue { to, .. } => completions.push_refused(to, kind, error, memory.buffer),
            End::Ticket(ticket) => completions.end_ticket(&ticket, Err(error), memory.buffer),
        }
    }

    /// Its poster knows an operation by the number of its request.
    fn name(&mut self, number: u64, id: Id) {
        if number == NAMELESS {
            return;
        }
        self.names.insert(number, id);
        if self.names.len() > self.names_max {
            let engine = self.engine.as_ref().expect(PRESENT);
            let operations = engine.state.core.operations();
            self.names.retain(|_, id| operations.get(*id).is_some());
            self.names_max = (2 * self.names.len()).max(NAMES_MIN);
        }
    }
}
