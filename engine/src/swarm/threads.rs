//! Threads that share an engine, for a while: a *bout*.
//!
//! The engine is put behind the real lock, queue and wait of shared engines, and threads that are
//! coroutines post, wait, cancel, make progress and end. At each synchronisation point of that code
//! another thread may go on, chosen by the seed; some are held up for long, inside the lock or
//! anywhere. Virtual time passes between their steps, and the network goes on. The order of posts
//! is known by spans ([`super::span`]); the oracle is that of all runs. In addition, whenever no
//! thread can go on, none may sleep for what is there already.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use super::form::{Form, content};
use super::oracle::{Fate, Oracle, Place, Received, Sent};
use super::thread_life::{Call, Log, Made, Outcome, Post, live};
use super::thread_plan::ThreadPlan;
use super::workload::{context_of, data_of, has_names, hint_of};
use super::{Run, SERIAL_SHIFT};
use crate::driver::sim::random::Random;
use crate::hooks::threads::Thread;
use crate::progress::completions::PostedTo;
use crate::progress::outside::{OutsideQueue, Ticket};
use crate::progress::post::Memory;
use crate::progress::shared_engine::SharedEngine;
use crate::proto::effects::CompletionLevel;
use crate::proto::receive::ReceiveRequest;
use crate::proto::session::send::SendRequest;
use crate::types::{Completion, OperationId, OperationKind};

/// Events that a bout plans for itself: its number and its host are below.
pub(super) const THREADS: u64 = 1 << 41;

/// Queues that threads read without the engine.
const QUEUES: usize = 3;

/// Steps in which threads that nothing comes in between are done.
const STEPS_MAX: u32 = 200_000;

/// The longest pause of threads none of which can run.
const IDLE_PAUSE_NS_MAX: u64 = 1_000_000;

#[cfg(test)]
thread_local! {
    /// Bouts that this thread has simulated.
    pub(super) static BOUTS: Cell<u64> = const { Cell::new(0) };
}

/// Outstanding operations of a process's threads, from one bout to the next.
#[derive(Default, Debug)]
pub(super) struct Team {
    queues: Vec<Arc<OutsideQueue>>,
    /// Operations with tickets, and their names.
    tickets: Vec<(u64, OperationKind, Arc<Ticket>)>,
    /// Completions that threads have taken.
    taken: VecDeque<Completion>,
}

/// Threads at work on one engine.
pub(super) struct Bout {
    number: u64,
    engine: Arc<SharedEngine>,
    threads: Vec<Thread>,
    /// For how many steps each is held up.
    held_up: Vec<usize>,
    log: Rc<RefCell<Log>>,
    /// No thread waits any more.
    is_over: Rc<Cell<bool>>,
    random: Random,
    plan: ThreadPlan,
    /// The background thread is to make a turn.
    is_care_due: bool,
    steps: u64,
    /// The latest pause before steps.
    pause_ns: u64,
    /// Operations that may be cancelled later.
    named: Vec<OperationId>,
}

impl Bout {
    /// Lets one of the threads go on, or the background thread make a turn; `None`: none can.
    fn step(&mut self) -> Option<usize> {
        for left in &mut self.held_up {
            *left = left.saturating_sub(1);
        }
        let can_run = |&thread: &usize| self.threads[thread].can_run();
        let able: Vec<usize> = (0..self.threads.len()).filter(can_run).collect();
        let free: Vec<usize> = able.iter().copied().filter(|&it| self.held_up[it] == 0).collect();
        // No thread is held up for ever.
        let among = if free.is_empty() { &able } else { &free };
        if among.is_empty() {
            return None;
        }
        let thread = among[self.random.below(among.len())];
        self.threads[thread].resume();
        self.steps += 1;
        if self.random.one_in(self.plan.held_up_one_in) {
            self.held_up[thread] = self.random.below(self.plan.held_up_steps);
        }
        Some(thread)
    }

    fn is_done(&self) -> bool {
        self.threads.iter().all(Thread::is_over)
    }

    /// Whether the background thread has something to do. Where a thread leads, it is that
    /// thread's.
    fn cares(&self) -> bool {
        !self.engine.has_leader() && (self.is_care_due || self.engine.requests() > 0)
    }

    /// The pause before the next steps: `usual_ns`. It doubles while no thread can run, as what
    /// they wait for may take seconds.
    fn next_pause_ns(&mut self, usual_ns: u64) -> u64 {
        let is_idle = !self.cares() && !self.threads.iter().any(Thread::can_run);
        let doubled_ns = if is_idle { (2 * self.pause_ns).min(IDLE_PAUSE_NS_MAX) } else { 0 };
        self.pause_ns = doubled_ns.max(usual_ns);
        self.pause_ns
    }

    /// Checks, when no thread can go on, that none sleeps for what is there, and that requests are
    /// handled.
    fn check_asleep(&self) -> Result<(), String> {
        let log = self.log.borrow();
        let mut waits_any = false;
        for (number, thread) in self.threads.iter().enumerate().filter(|(_, it)| !it.is_over()) {
            let Some(awaited) = &log.waits[number] else {
                return Err(format!("thread {number} sleeps for a lock that no thread holds"));
            };
            waits_any = true;
            debug_assert!(thread.is_asleep());
            if awaited.is_there() {
                return Err(format!("thread {number} sleeps, and what it waits for is there"));
            }
        }
        if waits_any && !self.engine.has_leader() {
            return Err("threads wait, and none of them leads".into());
        }
        if self.engine.has_leader() && self.engine.requests() > 0 {
            return Err("a request waits, and the leader sleeps".into());
        }
        Ok(())
    }
}

impl Run {
    /// A process has its engine shared by threads from now on, perhaps. `false`: it does not.
    pub(super) fn begins_bout(&mut self, host: usize) -> Result<bool, String> {
        let Some(plan) = self.plan.threads.clone() else { return Ok(false) };
        if self.is_healing || !self.random.one_in(plan.bout_one_in) {
            return Ok(false);
        }
        self.open_queues(host);
        let threads = 2 + self.random.below(plan.threads_max - 1);
        let mut lives: Vec<Vec<Call>> = (0..threads).map(|_| Vec::new()).collect();
        for calls in &mut lives {
            for _ in 0..1 + self.random.below(plan.calls_max) {
                let call = self.random_call(host);
                calls.extend(call);
            }
        }
        let queues = self.residents[host].team.queues.clone();
        let Some(engine) = self.world.lend(host) else { return Ok(false) };
        let engine = SharedEngine::of_world(engine, plan.requests_max);
        let engine = Arc::new(engine.map_err(|error| error.to_string())?);
        #[cfg(test)]
        BOUTS.set(BOUTS.get() + 1);
        let number = self.next_bout;
        self.next_bout += 1;
        let waits = vec![None; threads];
        let log = Rc::new(RefCell::new(Log { bout: number, waits, ..Log::default() }));
        let is_over = Rc::new(Cell::new(false));
        let threads: Vec<Thread> = lives
            .into_iter()
            .enumerate()
            .map(|(this, calls)| {
                let queue = Arc::clone(&queues[self.random.below(queues.len())]);
                let (engine, log) = (Arc::clone(&engine), Rc::clone(&log));
                let is_over = Rc::clone(&is_over);
                let life = move || live(this, &engine, calls, &queue, (&log, &is_over));
                Thread::new((number as usize) << 8 | (this + 1), life)
            })
            .collect();
        let held_up = vec![0; threads.len()];
        let random = Random::new(self.random.next());
        let (is_care_due, steps, named) = (false, 0, Vec::new());
        let bout = Bout {
            number,
            engine,
            threads,
            held_up,
            log,
            is_over,
            random,
            plan,
            is_care_due,
            steps,
            pause_ns: 0,
            named,
        };
        self.oracle.at_work.insert(self.residents[host].process);
        self.bouts.insert(host, bout);
        self.world.plan(1, THREADS | number << 8 | host as u64);
        Ok(true)
    }

    /// Queues that are read outside, once in the life of a process.
    fn open_queues(&mut self, host: usize) {
        let Some(engine) = self.world.engine(host) else { return };
        let queues = &mut self.residents[host].team.queues;
        while queues.len() < QUEUES {
            queues.push(engine.state.completions_mut().open_outside_queue(1 << 16));
        }
    }

    fn random_call(&mut self, host: usize) -> Option<Call> {
        let process = self.residents[host].process;
        let is_full = |kind| self.oracle.outstanding(process, kind) > self.plan.backlog_max;
        let one_way = self.plan.datagrams.as_ref().is_some_and(|plan| plan.one_way);
        let only_sends = one_way && host.is_multiple_of(2);
        let only_receives = one_way && !only_sends;
        let may_send =
            !is_full(OperationKind::Send) && !only_receives && self.has_room_to_send(host);
        let may_receive = !is_full(OperationKind::Receive) && !only_sends;
        match self.random.below(16) {
            0 => Some(Call::Wait),
            1 => Some(Call::WaitForTicket),
            2 | 3 => Some(Call::Progress),
            4 if self.plan.cancel_one_in > 0 => Some(Call::Cancel(self.random.below(3))),
            5..=9 if may_send => self.send_by_thread(host),
            _ if may_receive => self.receive_by_thread(host),
            _ => Some(Call::Progress),
        }
    }

    /// As [`Run::leaves_room_to_receive`], where sends are known that were not made yet.
    fn has_room_to_send(&self, host: usize) -> bool {
        let process = self.residents[host].process;
        let planned = self.oracle.outstanding(process, OperationKind::Send);
        self.world.look(host).is_some_and(|engine| {
            let core = engine.state.core();
            core.shared().operations().len().max(planned) + 2 < core.shared().operations().limit()
        })
    }

    /// Where the end of a post goes: to a queue, or to a ticket.
    fn random_end(&mut self, host: usize, name: u64) -> Option<PostedTo> {
        let queues = &self.residents[host].team.queues;
        let queue = match self.random.below(6) {
            0 => return None,
            1 => 0,
            nth => queues[nth % QUEUES].number(),
        };
        Some(PostedTo { queue, user_data: name, silent: false })
    }

    fn send_by_thread(&mut self, host: usize) -> Option<Call> {
        let endpoint = self.random.below(self.plan.endpoints) as u16;
        if self.is_closed(host, endpoint) {
            return None;
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
        let (more, injects) = (self.random.one_in(4), self.random.one_in(3));
        let form = Form::random(&mut self.random, length);
        let index = self.oracle.sent.len();
        let tag = if has_names(number) { (index as u64) << SERIAL_SHIFT | class } else { class };
        let peer = self.name_of(host, to)?;
        let posted_ns = self.world.now_ns();
        let shared = self.world.look(host)?.state.core().shared();
        let (hint, data) = (hint_of(&self.plan, index), data_of(&self.plan, index));
        let is_long = length as u64 > hint.eager_limit(shared.offer_max().eager_limit.into());
        let injects = injects && length <= shared.eager().inject_max() as usize;
        let level = if injects { CompletionLevel::Inject } else { level };
        let context = context_of(number);
        let request = SendRequest {
            endpoint,
            peer,
            context,
            tag,
            length: length as u64,
            level,
            hint,
            data,
            fence: false,
        };
        let bytes = content(index as u64, length);
        let name = Oracle::name_of_send(index);
        let (post, to_queue) = if injects {
            let to = PostedTo { queue: 0, user_data: name, silent: true };
            (Post::Inject { request, bytes: bytes.clone(), more }, Some(to))
        } else {
            let mut buffer = form.buffer(length, &bytes);
            let shape = buffer.shape_for_send().ok()?;
            let memory = Memory { buffer: Some(buffer), shape };
            (Post::Send { request, memory, more }, self.random_end(host, name))
        };
        self.oracle.sent.push(Sent {
            is_fenced: false,
            from,
            to,
            context,
            tag,
            length,
            data,
            level,
            form,
            is_long,
            fate: if injects { Fate::Gone } else { Fate::Outstanding },
            posted_ns,
            is_owed: false,
            is_discarded: false,
            taken_by: None,
            is_threaded: true,
            span: None,
        });
        if !injects {
            self.oracle.count(from.0, OperationKind::Send, 1);
        }
        self.actions_left = self.actions_left.saturating_sub(1);
        Some(Call::Post { index, post, to: to_queue })
    }

    fn receive_by_thread(&mut self, host: usize) -> Option<Call> {
        let (at, from, number, class) = self.random_wish(self.residents[host].process);
        if self.is_closed(host, at.1) {
            return None;
        }
        let is_any = self.random.one_in(self.plan.any_source_one_in);
        let source: Option<Place> = if is_any { None } else { Some(from) };
        let names = if has_names(number) { u64::MAX << SERIAL_SHIFT } else { 0 };
        let ignore = match self.random.below(6) {
            0 => u64::MAX,
            1 => names | 1,
            _ => names,
        };
        let most = self.plan.length_max;
        let capacity = if self.random.one_in(6) { 8 + self.random.below(most) } else { most };
        let peer = match source {
            Some(source) => Some(self.name_of(host, source)?),
            None => None,
        };
        let form = Form::random(&mut self.random, capacity);
        let index = self.oracle.received.len();
        let (context, tag) = (context_of(number), class);
        let request = ReceiveRequest {
            endpoint: at.1,
            peer,
            context,
            tag,
            ignore,
            capacity: capacity as u64,
            min_free: None,
        };
        let mut buffer = form.buffer(capacity, &[]);
        let shape = buffer.shape_for_recv().ok()?;
        let memory = Memory { buffer: Some(buffer), shape };
        let to = self.random_end(host, index as u64);
        self.oracle.received.push(Received {
            at,
            source,
            context,
            tag,
            ignore,
            capacity,
            form,
            fate: Fate::Outstanding,
            message: None,
            posted_ns: self.world.now_ns(),
            ended_ns: 0,
            peeked: None,
            many: None,
            span: None,
        });
        self.oracle.count(at.0, OperationKind::Receive, 1);
        self.actions_left = self.actions_left.saturating_sub(1);
        Some(Call::Post { index, post: Post::Receive { request, memory }, to })
    }

    /// Wakes the threads of a process whose driver is ready.
    pub(super) fn wake_threads(&mut self, host: usize) {
        if let Some(bout) = self.bouts.get_mut(&host) {
            bout.engine.driver_is_readable();
            bout.is_care_due = true;
        }
    }

    /// Threads go on for some steps.
    pub(super) fn run_threads(&mut self, name: u64) -> Result<(), String> {
        let host = (name & 0xff) as usize;
        let number = (name & !THREADS) >> 8;
        let Some(bout) = self.bouts.get_mut(&host).filter(|bout| bout.number == number) else {
            return Ok(());
        };
        let is_paused = self.world.net.borrow().is_paused(host);
        if !is_paused {
            for _ in 0..1 + bout.random.below(bout.plan.steps) {
                let Some(thread) = bout.step() else { break };
                self.world.net.borrow_mut().trace(&[THREADS, host as u64, thread as u64]);
            }
        }
        let is_over = bout.is_done() || bout.steps > u64::from(STEPS_MAX) / 100;
        self.collect_from_threads(host)?;
        if is_over {
            return self.settle(host);
        }
        self.care(host)?;
        let pause_ns = 1 + self.random.within(2 * self.world.turn_ns);
        let Some(bout) = self.bouts.get_mut(&host) else { return Ok(()) };
        self.world.plan(bout.next_pause_ns(pause_ns), name);
        Ok(())
    }

    /// Makes a turn of the background thread if one is due, and checks that no thread sleeps for
    /// what is there.
    fn care(&mut self, host: usize) -> Result<(), String> {
        let Some(bout) = self.bouts.get_mut(&host) else { return Ok(()) };
        let is_stuck = !bout.threads.iter().any(Thread::can_run);
        if is_stuck {
            bout.check_asleep()?;
        }
        if !bout.cares() {
            return Ok(());
        }
        match bout.engine.care() {
            Some(Ok(())) => bout.is_care_due = false,
            Some(Err(error)) => {
                return Err(format!("a turn of the background thread fails: {error}"));
            }
            // A thread is inside.
            None => {}
        }
        self.collect_from_threads(host)
    }

    /// Takes the log of the threads.
    fn collect_from_threads(&mut self, host: usize) -> Result<(), String> {
        let Some(bout) = self.bouts.get_mut(&host) else { return Ok(()) };
        let (made, taken) = {
            let log = &mut *bout.log.borrow_mut();
            if let Some(error) = log.failed.take() {
                return Err(format!("a call of a thread fails: {error}"));
            }
            (std::mem::take(&mut log.made), std::mem::take(&mut log.taken))
        };
        self.residents[host].team.taken.extend(taken);
        for it in made {
            self.hear_of(host, it)?;
        }
        self.collect(host)
    }

    fn hear_of(&mut self, host: usize, made: Made) -> Result<(), String> {
        let Made { index, kind, span, outcome } = made;
        let process = self.residents[host].process;
        let is_send = kind == OperationKind::Send;
        let name = if is_send { Oracle::name_of_send(index) } else { index as u64 };
        let fate = if is_send {
            self.oracle.sent[index].span = Some(span);
            self.oracle.sent[index].fate
        } else {
            self.oracle.received[index].span = Some(span);
            self.oracle.received[index].fate
        };
        self.world.net.borrow_mut().trace(&[name, span.began, span.returned]);
        match outcome {
            Outcome::Named(id) => {
                if let Some(bout) = self.bouts.get_mut(&host) {
                    bout.named.extend(id);
                }
            }
            Outcome::Ticket(ticket) => {
                self.residents[host].team.tickets.push((name, kind, ticket));
            }
            Outcome::Sent(buffer) => {
                self.oracle.count(process, kind, -1);
                self.oracle.sent_at_once(index, buffer);
            }
            Outcome::Refused(error) => {
                if fate == Fate::Outstanding {
                    self.oracle.count(process, kind, -1);
                }
                // It is not sent, and nothing is reported.
                if is_send {
                    self.oracle.sent[index].fate = Fate::Cancelled;
                } else {
                    self.oracle.received[index].fate = Fate::Failed;
                }
                return self.oracle.check_error(process, &error);
            }
        }
        Ok(())
    }

    /// What a process learns next of its operations.
    pub(super) fn next_completion(&mut self, host: usize) -> Option<Completion> {
        if let Some(completion) = self.world.pop(host) {
            return Some(completion);
        }
        let team = &mut self.residents[host].team;
        if let Some(completion) = team.taken.pop_front() {
            return Some(completion);
        }
        if !self.bouts.contains_key(&host) {
            let mut taken = Vec::new();
            for queue in &team.queues {
                if queue.take(&mut taken, 1) > 0 {
                    return taken.pop();
                }
            }
        }
        let ended = team.tickets.iter().enumerate().find_map(|(at, (name, kind, ticket))| {
            ticket.take().map(|outcome| (at, *name, *kind, outcome))
        });
        let (at, user_data, kind, outcome) = ended?;
        team.tickets.remove(at);
        let (result, buffer) = match outcome {
            Ok(completed) => (Ok(completed.status), completed.buffer),
            Err(failed) => (Err(failed.error), failed.buffer),
        };
        Some(Completion { user_data, kind, result, offset: 0, buffer: Some(buffer) })
    }

    /// The threads of all processes end.
    pub(super) fn settle_all(&mut self) -> Result<(), String> {
        let hosts: Vec<usize> = self.bouts.keys().copied().collect();
        hosts.into_iter().try_for_each(|host| self.settle(host))
    }

    /// The threads of a process do what they have to do, and end; what they have outstanding goes
    /// on without them.
    pub(super) fn settle(&mut self, host: usize) -> Result<(), String> {
        let Some(bout) = self.bouts.get_mut(&host) else { return Ok(()) };
        let mut steps = 0;
        while bout.step().is_some() && steps < STEPS_MAX {
            steps += 1;
        }
        if steps == STEPS_MAX {
            return Err("threads never come to rest".into());
        }
        if !bout.is_done() {
            bout.check_asleep()?;
            bout.is_over.set(true);
            bout.engine.wake_all();
            while bout.step().is_some() && steps < 2 * STEPS_MAX {
                steps += 1;
            }
            if !bout.is_done() {
                return Err("a thread sleeps for ever".into());
            }
        }
        self.collect_from_threads(host)?;
        let Some(bout) = self.bouts.remove(&host) else { return Ok(()) };
        let known = bout.named.iter().filter_map(|&id| bout.engine.resolve(id));
        self.operations.extend(known.map(|id| (host, id)));
        let tickets = self.residents[host].team.tickets.iter();
        let ticketed = tickets.filter_map(|(_, _, ticket)| ticket.operation());
        self.operations.extend(ticketed.map(|id| (host, id)));
        let engine = bout.engine.take_back().ok_or("the engine is gone")?;
        if bout.engine.requests() > 0 {
            return Err("requests are left, and the engine is free".into());
        }
        self.world.give_back(host, engine);
        self.oracle.at_work.remove(&self.residents[host].process);
        self.collect(host)
    }
}

/// A run that has failed leaves its threads where they are: they hold what they hold.
impl Drop for Bout {
    fn drop(&mut self) {
        for thread in self.threads.drain(..) {
            if !thread.is_over() {
                thread.abandon();
            }
        }
    }
}
