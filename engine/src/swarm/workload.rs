//! What processes do: sends, receives, cancels and looks, at random.

use super::fences::is_fenced;
use super::form::{Form, content};
use super::many::{Many, What, wish};
use super::oracle::{Fate, Oracle, Place, Process, Received, Sent};
use super::plan::Plan;
use super::{Run, SERIAL_SHIFT};
use crate::driver::sim::random::Random;
use crate::progress::completions::CompletionRoute;
use crate::progress::engine::Engine;
use crate::progress::post::{Memory, PostResult};
use crate::proto::core::UNTAGGED;
use crate::proto::effects::CompletionLevel;
use crate::proto::hint::Hint;
use crate::proto::operation::OperationState;
use crate::proto::receive::ReceiveRequest;
use crate::proto::session::send::SendRequest;
use crate::proto::table::Id;
use crate::types::{Error, OperationKind, Peer, Status};

/// What message `index` of a run is for. Not out of the run's own random numbers, which so say the
/// same with hints and without.
pub(super) fn hint_of(plan: &Plan, index: usize) -> Hint {
    if !plan.hints {
        return Hint::None;
    }
    let mut random = Random::new(plan.seed.rotate_left(32) ^ index as u64);
    random.pick(&[Hint::None, Hint::Latency, Hint::Bulk, Hint::Priority])
}

/// Remote data of message `index` of a run; as its hint, not out of the run's own random numbers.
pub(super) fn data_of(plan: &Plan, index: usize) -> Option<u64> {
    let mut random = Random::new(plan.seed.rotate_left(16) ^ index as u64);
    random.one_in(4).then(|| random.next())
}

/// Completions of sends and receives alike are reported with the name of the operation.
fn route(context: u64, silent: bool) -> CompletionRoute {
    CompletionRoute::Queue { queue: 0, user_data: context, silent }
}

/// The contexts of a run. In odd ones tags have the message's name above their class.
const CONTEXTS: [u64; 4] = [7, 1, UNTAGGED, 3];

/// Bits of a tag that hold its class.
const CLASSES: u64 = (1 << SERIAL_SHIFT) - 1;

/// Operations that are likely to be outstanding.
const OPERATIONS_RECENT: usize = 8;

pub(super) fn context_of(number: usize) -> u64 {
    CONTEXTS[number]
}

pub(super) fn has_names(number: usize) -> bool {
    number % 2 == 1
}

impl Run {
    /// Returns the handle of a place at `at`; `None`: it is at a limit.
    pub(super) fn name_of(&mut self, host: usize, (process, endpoint): Place) -> Option<Id> {
        let home = *self.homes.get(&process)?;
        let locators = self.world.locators(home);
        let engine = self.world.engine(host)?;
        engine.state.core_mut().insert_peer(process, locators, endpoint)
    }

    /// The place that a peer of an engine is.
    fn place_of(engine: &Engine, peer: Peer) -> Option<Place> {
        let core = engine.state.core();
        let remote = core.shared().peers().get(peer.0)?;
        Some((core.session(remote.session)?.peer().id(), remote.endpoint))
    }

    /// A process does something.
    pub(super) fn act(&mut self, host: usize) -> Result<(), String> {
        let (is_paused, now_ns) = {
            let net = self.world.net.borrow();
            (net.is_paused(host), net.now_ns())
        };
        let is_there = self.world.look(host).is_some() && self.residents[host].leaves_ns.is_none();
        if is_there && !is_paused && self.begins_bout(host)? {
            // Its threads do what there is to do.
        } else if is_there && !is_paused {
            self.world.net.borrow_mut().trace(&[host as u64, now_ns]);
            // Bursts are what fills windows.
            for _ in 0..self.random.pick(&[1, 1, 2, 10]) {
                self.act_once(host)?;
            }
            self.collect(host)?;
        }
        let pause_ns = self.random.within(2 * self.plan.think_ns) + 1;
        self.world.plan(pause_ns, host as u64);
        Ok(())
    }

    fn act_once(&mut self, host: usize) -> Result<(), String> {
        self.actions_left = self.actions_left.saturating_sub(1);
        let process = self.residents[host].process;
        let is_full = |kind| self.oracle.outstanding(process, kind) > self.plan.backlog_max;
        let (sends, receives) = (OperationKind::Send, OperationKind::Receive);
        let one_way = self.plan.datagrams.as_ref().is_some_and(|plan| plan.one_way);
        let (only_sends, only_receives) =
            (one_way && host.is_multiple_of(2), one_way && host % 2 == 1);
        let may_send = !is_full(sends) && !only_receives && self.leaves_room_to_receive(host);
        let may_receive = !is_full(receives) && !only_sends;
        if self.random.one_in(self.plan.cancel_one_in) {
            return self.cancel_one();
        }
        if self.random.one_in(self.plan.part_one_in) {
            return self.part(host);
        }
        if self.plan.one_sided && self.random.one_in(4) {
            return self.reach_memory(host);
        }
        match self.random.below(10) {
            0 => self.look(host),
            1..=4 if may_send => self.send(host),
            _ if may_receive => self.receive(host),
            _ => self.receive_what_came(host),
        }
    }

    pub(super) fn random_place(&mut self) -> Place {
        if self.random.one_in(40) {
            // Perhaps of a process that ended long ago.
            let nth = self.random.below(self.homes.len());
            let process = *self.homes.keys().nth(nth).expect("below draws less than its bound");
            return (process, self.random.below(self.plan.endpoints) as u16);
        }
        let host = self.random.below(self.residents.len());
        let endpoint = self.random.below(self.plan.endpoints) as u16;
        (self.residents[host].process, endpoint)
    }

    pub(super) fn random_length(&mut self, has_name: bool) -> usize {
        let most = self.plan.length_max;
        let is_long = self.random.one_in(self.plan.long_one_in);
        let length = match self.random.below(4) {
            _ if is_long => most / 2 + self.random.below(most / 2 + 1),
            0 => self.random.below(9),
            1 => self.random.below(65),
            _ => self.random.below(most.min(300) + 1),
        };
        if has_name { length } else { length.max(8) }
    }

    fn send(&mut self, host: usize) -> Result<(), String> {
        let endpoint = self.random.below(self.plan.endpoints) as u16;
        if self.is_closed(host, endpoint) {
            return Ok(());
        }
        let (from, to) = ((self.residents[host].process, endpoint), self.random_place());
        let number = self.random.below(self.plan.contexts);
        let length = self.random_length(has_names(number));
        let level = self.random.pick(&[
            CompletionLevel::Inject,
            CompletionLevel::Delivery,
            CompletionLevel::Match,
        ]);
        let class = self.random.next() % self.plan.tags;
        let more = self.random.one_in(4);
        let form = Form::random(&mut self.random, length);
        let inject = self.random.one_in(3);
        self.send_message(host, from, to, (number, class), (length, level, form), (inject, more))
    }

    fn send_message(
        &mut self,
        host: usize,
        from: Place,
        to: Place,
        (number, class): (usize, u64),
        (length, level, form): (usize, CompletionLevel, Form),
        (inject, more): (bool, bool),
    ) -> Result<(), String> {
        let index = self.oracle.sent.len();
        let tag = if has_names(number) { (index as u64) << SERIAL_SHIFT | class } else { class };
        let Some(peer) = self.name_of(host, to) else { return Ok(()) };
        let posted_ns = self.world.now_ns();
        let Some(engine) = self.world.engine(host) else { return Ok(()) };
        let shared = engine.state.core().shared();
        let (hint, data) = (hint_of(&self.plan, index), data_of(&self.plan, index));
        let is_long = length as u64 > hint.eager_limit(shared.offer_max().eager_limit.into());
        let may_inject = inject && length <= shared.eager().inject_max() as usize;
        let context = context_of(number);
        let request = SendRequest {
            endpoint: from.1,
            peer,
            context,
            tag,
            length: length as u64,
            level: if may_inject { CompletionLevel::Inject } else { level },
            hint,
            data,
            fence: is_fenced(&self.plan, index),
        };
        let bytes = content(index as u64, length);
        let name = Oracle::name_of_send(index);
        let fate = if may_inject { Fate::Gone } else { Fate::Outstanding };
        let (level, taken_by) = (request.level, None);
        let mut sent = Sent {
            from,
            to,
            context,
            tag,
            length,
            data,
            is_fenced: request.fence,
            level,
            form,
            is_long,
            fate,
            posted_ns,
            is_owed: false,
            is_discarded: false,
            taken_by,
            is_threaded: false,
            span: None,
        };
        if may_inject {
            let outcome = engine.inject(&request, &bytes, route(name, true), more);
            if outcome.is_err() {
                // It is not sent, and nothing is reported.
                sent.fate = Fate::Cancelled;
            }
            self.oracle.sent.push(sent);
            return outcome.or_else(|error| self.oracle.check_error(from.0, &error));
        }
        let mut buffer = form.buffer(length, &bytes);
        let shape = buffer.shape_for_send().map_err(|error| error.to_string())?;
        let memory = Memory { buffer: Some(buffer), shape };
        match engine.post_send(&request, memory, route(name, false), more) {
            Ok(PostResult::Pending(id)) => {
                self.oracle.sent.push(sent);
                self.oracle.count(from.0, OperationKind::Send, 1);
                self.operations.push((host, id));
            }
            Ok(PostResult::Sent(_, buffer)) => {
                self.oracle.sent.push(sent);
                self.oracle.sent_at_once(index, buffer);
            }
            Err((error, _)) => {
                sent.fate = Fate::Cancelled;
                self.oracle.sent.push(sent);
                return self.oracle.check_error(from.0, &error);
            }
        }
        Ok(())
    }

    /// Chooses source, target, context and tag of a receive: mostly those of a message that was
    /// sent.
    pub(super) fn random_wish(&mut self, process: Process) -> (Place, Place, usize, u64) {
        let recent = self.oracle.sent.len().saturating_sub(40);
        let due: Vec<usize> = (recent..self.oracle.sent.len())
            .filter(|&index| {
                let sent = &self.oracle.sent[index];
                sent.to.0 == process && sent.taken_by.is_none() && sent.fate != Fate::Cancelled
            })
            .collect();
        if !due.is_empty() && !self.random.one_in(4) {
            let sent = &self.oracle.sent[due[self.random.below(due.len())]];
            let number = (0..CONTEXTS.len()).find(|&at| CONTEXTS[at] == sent.context);
            return (sent.to, sent.from, number.unwrap_or(0), sent.tag & CLASSES);
        }
        let endpoint = self.random.below(self.plan.endpoints) as u16;
        let number = self.random.below(self.plan.contexts);
        let class = self.random.next() % self.plan.tags;
        ((process, endpoint), self.random_place(), number, class)
    }

    fn receive(&mut self, host: usize) -> Result<(), String> {
        let (at, from, number, class) = self.random_wish(self.residents[host].process);
        if self.is_closed(host, at.1) {
            return Ok(());
        }
        let is_any = self.random.one_in(self.plan.any_source_one_in);
        let source = if is_any { None } else { Some(from) };
        let names = if has_names(number) { u64::MAX << SERIAL_SHIFT } else { 0 };
        let ignore = match self.random.below(6) {
            0 => u64::MAX,
            1 => names | 1,
            _ => names,
        };
        let is_ample = !self.random.one_in(6);
        let most = self.plan.length_max;
        let capacity = if is_ample { most } else { 8 + self.random.below(most) };
        // Messages of many are known by their names.
        let is_many = has_names(number) && self.random.one_in(4);
        let what = match is_many {
            true => What::Many(1 + self.random.below(200)),
            false => What::One,
        };
        self.receive_message(host, at, source, (context_of(number), class, ignore), capacity, what)
    }

    fn receive_message(
        &mut self,
        host: usize,
        at: Place,
        source: Option<Place>,
        (context, tag, ignore): (u64, u64, u64),
        capacity: usize,
        what: What,
    ) -> Result<(), String> {
        let peer = match source {
            Some(source) => match self.name_of(host, source) {
                Some(peer) => Some(peer),
                None => return Ok(()),
            },
            None => None,
        };
        let form = Form::random(&mut self.random, capacity);
        let index = self.oracle.received.len();
        let posted_ns = self.world.now_ns();
        let Some(engine) = self.world.engine(host) else { return Ok(()) };
        let request = ReceiveRequest {
            endpoint: at.1,
            peer,
            context,
            tag,
            ignore,
            capacity: capacity as u64,
            min_free: what.min_free().map(|min_free| min_free as u64),
        };
        let mut buffer = form.buffer(capacity, &[]);
        let shape = buffer.shape_for_recv().map_err(|error| error.to_string())?;
        let memory = Memory { buffer: Some(buffer), shape };
        let has_room = !engine.state.core().shared().operations().is_full()
            && engine.state.completions().has_room(route(0, false));
        let claim = match what {
            What::Peeked(_) if has_room && index.is_multiple_of(3) => engine.state.claim(&request),
            _ => Ok(None),
        };
        let route = route(index as u64, false);
        let posted = match claim.map_err(|error| error.to_string())? {
            Some((claim, _)) => engine.state.receive_claimed(claim, at.1, memory, route),
            None => engine.state.post_receive(&request, memory, route),
        };
        match posted {
            Ok(id) => {
                let (fate, message) = (Fate::Outstanding, None);
                let received = Received {
                    at,
                    source,
                    context,
                    tag,
                    ignore,
                    capacity,
                    form,
                    fate,
                    message,
                    posted_ns,
                    ended_ns: 0,
                    peeked: what.peeked(),
                    many: what.min_free().map(Many::new),
                    span: None,
                };
                self.oracle.received.push(received);
                self.oracle.count(at.0, OperationKind::Receive, 1);
                self.operations.push((host, id));
                Ok(())
            }
            Err((error, _)) => self.oracle.check_error(at.0, &error),
        }
    }

    fn cancel_one(&mut self) -> Result<(), String> {
        if self.operations.is_empty() {
            return Ok(());
        }
        // Most of the older ones have ended.
        let count = self.operations.len();
        let choice = if self.random.one_in(2) { count } else { count.min(OPERATIONS_RECENT) };
        let chosen = count - 1 - self.random.below(choice);
        if self.bouts.contains_key(&self.operations[chosen].0) {
            // Its threads cancel what they have posted.
            return Ok(());
        }
        let (host, id) = self.operations.swap_remove(chosen);
        self.cancel(host, id)
    }

    fn cancel(&mut self, host: usize, id: Id) -> Result<(), String> {
        if let Some(engine) = self.world.engine(host) {
            engine.state.cancel(id);
        }
        self.collect(host)
    }

    /// Cancels everything that is left: receives without a message, by now.
    pub(super) fn cancel_all(&mut self) -> Result<(), String> {
        for (host, id) in std::mem::take(&mut self.operations) {
            self.cancel(host, id)?;
        }
        Ok(())
    }

    /// Looks for a message without receiving it, or for a peer that failed.
    fn look(&mut self, host: usize) -> Result<(), String> {
        let to = self.random_place();
        if self.random.one_in(2) {
            return self.receive_what_came(host);
        }
        let Some(peer) = self.name_of(host, to) else { return Ok(()) };
        let Some(engine) = self.world.engine(host) else { return Ok(()) };
        if engine.state.core().destination(peer).is_err() {
            let process = engine.state.core().shared().engine();
            let started = engine.start_connect(Peer(peer)).map(drop);
            return started.or_else(|error| self.oracle.check_error(process, &error));
        }
        Ok(())
    }

    /// Peeks at the message that a receive from any source would get.
    fn peek(
        &mut self,
        host: usize,
        endpoint: u16,
        context: u64,
    ) -> Result<Option<(Place, Status)>, Error> {
        let request = wish(endpoint, context);
        let Some(engine) = self.world.engine(host) else { return Ok(None) };
        let found = engine.state.peek(&request)?;
        Ok(found.and_then(|status| Some((Self::place_of(engine, status.peer?)?, status))))
    }

    /// Receives what a look finds, at every endpoint of a process.
    fn receive_what_came(&mut self, host: usize) -> Result<(), String> {
        let process = self.residents[host].process;
        for endpoint in 0..self.plan.endpoints as u16 {
            for number in 0..self.plan.contexts {
                let context = context_of(number);
                let found = self.peek(host, endpoint, context).map_err(|e| e.to_string())?;
                let Some((from, status)) = found else { continue };
                let (tag, length, data) = (status.envelope.tag(), status.length, status.data);
                let capacity = length.max(8);
                let peeked = What::Peeked((from, tag, length, data));
                if has_names(number) && self.random.one_in(8) {
                    self.discard(host, (process, endpoint), context, (from, status))?;
                    continue;
                }
                let wanted = (context, tag, u64::MAX);
                self.receive_message(host, (process, endpoint), None, wanted, capacity, peeked)?;
                self.collect(host)?;
            }
        }
        Ok(())
    }

    /// Receives everything that comes without being asked for. `true`: nothing does, nothing is on
    /// its way, and nothing is outstanding but receives.
    pub(super) fn drain(&mut self) -> Result<bool, String> {
        let before = self.oracle.received.len();
        for host in 0..self.residents.len() {
            if self.world.look(host).is_some() && self.residents[host].leaves_ns.is_none() {
                self.receive_what_came(host)?;
            }
        }
        let is_sending = self.is_any_outstanding(OperationKind::Send) || self.is_reaching_memory();
        // Injected messages end without a completion, or with the session of a peer that is dead.
        let is_injecting = (0..self.world.hosts()).any(|host| {
            self.world.look(host).is_some_and(|engine| {
                let mut operations = engine.state.core().shared().operations().iter();
                operations
                    .any(|(_, operation)| matches!(operation.state, OperationState::Queued { .. }))
            })
        });
        // Sends whose buffers may be reused have ended long before that.
        let is_on_its_way = self.world.net.borrow().has_bytes_under_way();
        let is_working = is_sending || is_injecting || is_on_its_way;
        Ok(!is_working && self.oracle.received.len() == before)
    }

    /// No receive waits for a peer whose session has failed.
    pub(super) fn check_waiting(&self) -> Result<(), String> {
        for (index, it) in self.oracle.received.iter().enumerate() {
            let Some((source, _)) = it.source else { continue };
            if it.fate != Fate::Outstanding || it.peeked.is_some() || !self.is_alive(it.at.0) {
                continue;
            }
            let engine = self.homes.get(&it.at.0).and_then(|&host| self.world.look(host));
            let Some(core) = engine.map(|engine| engine.state.core()) else { continue };
            let session = core.shared().peers().session_of(source).and_then(|at| core.session(at));
            // One that pulls ends when the kernel lets go of its memory.
            let is_at_rest =
                core.shared().lanes().len() == 0 && self.world.net.borrow().busy_pieces() == 0;
            if is_at_rest && session.is_some_and(|session| session.ending().failure().is_some()) {
                return Err(format!("receive {index} waits for a peer that failed: {it:?}"));
            }
        }
        Ok(())
    }

    /// Whether a receive of a process that lives is outstanding.
    pub(super) fn is_receiving(&self) -> bool {
        self.is_any_outstanding(OperationKind::Receive)
    }

    /// Whether a process that lives has an operation of this kind outstanding.
    fn is_any_outstanding(&self, kind: OperationKind) -> bool {
        let mut processes = self.residents.iter().map(|resident| resident.process);
        processes.any(|it| self.is_alive(it) && self.oracle.outstanding(it, kind) > 0)
    }

    /// Collects what calls report of sessions that are over, so that none of it comes after the
    /// faults end.
    fn collect_past_failures(&mut self, living: &[usize]) -> Result<(), String> {
        for &one in living {
            for &other in living {
                let to = (self.residents[other].process, 0);
                let Some(peer) = self.name_of(one, to) else { continue };
                let Some(engine) = self.world.engine(one) else { continue };
                if let Err(error) = engine.start_connect(Peer(peer)) {
                    self.oracle.check_error(self.residents[one].process, &error)?;
                }
            }
        }
        Ok(())
    }

    /// Whether a process that posts one more send can receive as well. Engines whose operations are
    /// all sends to each other without a receive would wait for ever, and rightly so.
    pub(super) fn leaves_room_to_receive(&self, host: usize) -> bool {
        self.world.look(host).is_none_or(|engine| {
            let core = engine.state.core();
            core.shared().operations().len() + 1 < core.shared().operations().limit()
        })
    }

    /// Has every pair that lives exchange a short and a long message; nothing may fail now.
    pub(super) fn exchange_messages(&mut self) -> Result<(), String> {
        let first_sent = self.oracle.sent.len();
        let living: Vec<usize> = (0..self.residents.len())
            .filter(|&host| {
                self.world.look(host).is_some() && self.residents[host].leaves_ns.is_none()
            })
            .collect();
        self.collect_past_failures(&living)?;
        self.oracle.pardon();
        for &one in &living {
            for &other in &living {
                let to = (self.residents[other].process, 0);
                let from = (self.residents[one].process, 0);
                let Some(peer) = self.name_of(one, to) else { continue };
                if let Some(engine) = self.world.engine(one) {
                    engine.start_connect(Peer(peer)).map_err(|error| error.to_string())?;
                }
                for length in [16, 5000] {
                    if !self.leaves_room_to_receive(one) {
                        break;
                    }
                    let what = (length, CompletionLevel::Match, Form::Whole);
                    self.send_message(one, from, to, (0, 0), what, (false, false))?;
                }
            }
        }
        self.await_greetings(first_sent)?;
        // A last message, for which nothing goes back but an acknowledgement.
        let first_sent = self.oracle.sent.len();
        if let [one, .., other] = living[..] {
            let places = [one, other].map(|host| (self.residents[host].process, 0));
            if self.leaves_room_to_receive(one) {
                let what = (5000, CompletionLevel::Inject, Form::Whole);
                self.send_message(one, places[0], places[1], (0, 0), what, (false, false))?;
            }
        }
        self.await_greetings(first_sent)
    }
}
