//! The background thread: makes progress for engines whose owners compute.
//!
//! There is one for each network namespace with such engines, since it connects sockets.
//!
//! A completed send must be delivered although its owner makes no call for a minute and datagrams
//! are lost. So an engine without a call for about a millisecond is taken over for a turn
//! ([`background_turn`](super::engine::Engine::background_turn)) whenever a deadline is due, or one
//! of its wake-up descriptors is readable: those of the datagram socket and the listeners.
//!
//! ```text
//!              a step of the owner
//!   ┌────────────────────────────────────┐
//!   v                                    │
//! Active ── silent for a tick: a turn ──> Cared (until a deadline, or an event)
//!   ^  │                                 │
//!   │  └── inside for a tick ──> Parked <┘  nothing outstanding
//!   └── a step of the owner, which wakes ──┘
//! ```
//!
//! A turn is wasted if the owner returns soon: a thread with many engines visits each of them at
//! intervals, and taking them over costs it more than it gains. So the required silence doubles, up
//! to 4 ms, each time that the owner returns within the same time again, and is reset to a
//! millisecond once it stays away longer.
//!
//! While owners are active the thread wakes once in 1 to 16 ms and looks at one word of each; when
//! all are parked it sleeps without a timeout. An owner pays one system call for the first step
//! after it was parked, and otherwise none. Control lanes do not wake it: it checks those of
//! sessions without datagrams twice a second, for questions whether the engine is there. Shared
//! engines are looked after by their driver's descriptor.

mod activity;
mod engine_cell;
mod handover;
mod send_engine;
mod sync;
#[cfg(test)]
mod tests;

use std::os::fd::BorrowedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_utils::atomic::AtomicCell;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

pub(super) use self::activity::Activity;
pub(crate) use self::engine_cell::EngineCell;
pub(super) use self::send_engine::SendEngine;
use crate::forks::{EngineFd, OwnerProcess};
use crate::progress::wakers::survive;
use crate::refused_call::refused;
use crate::topology::{self, NetworkNamespace};
use crate::types::Error;

/// Name of the thread.
const NAME: &str = "ringrail-care";
/// Silence after which an engine is taken over, and interval of checks of an active one: the latter
/// doubles while it is active.
const TICK: Duration = Duration::from_millis(1);
const TICK_MAX: Duration = Duration::from_millis(16);
/// The longest required silence for an owner that keeps returning.
const PATIENCE_MAX: Duration = Duration::from_millis(4);
/// The shortest time between two turns for deadlines.
const PAUSE_MIN: Duration = Duration::from_micros(100);
/// When turns do not consume the event of a descriptor, it is not polled for a pause, which doubles
/// up to 2^this ticks.
const FRUITLESS_MAX: u32 = 10;

/// The thread and the state that it shares with owners.
struct Running {
    shared: Arc<CaretakerShared>,
    thread: JoinHandle<()>,
    /// Network namespace of the sockets that it opens.
    network: Option<NetworkNamespace>,
}

/// Threads of a process, by network namespace. A child of `fork` inherits an unusable copy: the
/// threads do not exist there, nor may the holder of the lock, and the descriptors are the
/// parent's. So it is not accessed, and never freed.
struct OfProcess {
    owner: OwnerProcess,
    running: Mutex<Vec<Running>>,
}

impl PartialEq for OfProcess {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

impl Eq for OfProcess {}

/// No lock: a child may find one taken forever.
static CURRENT: AtomicCell<Option<&'static OfProcess>> = AtomicCell::new(None);

/// Locks the threads of this process.
fn lock_running() -> MutexGuard<'static, Vec<Running>> {
    let mut found = CURRENT.load();
    loop {
        if let Some(found) = found.filter(|found| !found.owner.is_inherited()) {
            return lock(&found.running);
        }
        // Once in the lifetime of a process; if two threads get here one leaks some bytes.
        let fresh = Box::leak(Box::new(OfProcess {
            owner: OwnerProcess::current(),
            running: Mutex::default(),
        }));
        found = match CURRENT.compare_exchange(found, Some(fresh)) {
            Ok(_) => Some(fresh),
            Err(other) => other,
        };
    }
}

struct CaretakerShared {
    wards: Mutex<Wards>,
    /// The thread has seen the latest list.
    seen: Condvar,
    /// Wakes the thread.
    bell: EngineFd,
    /// Process of the thread.
    owner: OwnerProcess,
}

/// An engine managed by the background thread.
pub(super) trait Cared: Send + Sync {
    /// Returns the count of its threads' steps; odd: one of them is inside.
    fn steps(&self) -> u64;
    /// Parks until a step beyond `steps` wakes the thread. Returns `false` if that was made
    /// already.
    fn park(&self, steps: u64) -> bool;
    /// Returns whether the next step wakes the background thread.
    fn is_parked(&self) -> bool;
    /// Returns the descriptors that become readable on events.
    fn wake_fds(&self) -> Arc<[EngineFd]>;
    /// Returns the descriptor that tasks sleep on, if some do.
    fn tasks_sleep_by(&self) -> Option<BorrowedFd<'_>>;
    /// Wakes those tasks; returns whether there were any.
    fn wake_tasks(&self) -> bool;
    /// Executes a turn: returns whether something happened, and when the next is due. `None`: a
    /// thread of its own has it.
    fn turn(&self) -> Option<Result<(bool, Option<Duration>), Error>>;
}

#[derive(Default)]
struct Wards {
    places: Vec<Arc<dyn Cared>>,
    /// Number of changes of the list.
    changes: u64,
    /// Number of changes that the thread has seen.
    seen: u64,
    is_over: bool,
}

fn is_same(one: &Arc<dyn Cared>, other: &Arc<dyn Cared>) -> bool {
    std::ptr::addr_eq(Arc::as_ptr(one), Arc::as_ptr(other))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Registration of an engine with the thread; the last one dropped ends the thread.
pub(super) struct Membership {
    shared: Arc<CaretakerShared>,
    place: Arc<dyn Cared>,
}

impl Membership {
    /// Registers `place`. `None`: no thread can be started, and the owner has to make progress.
    pub(super) fn new(place: Arc<dyn Cared>) -> Option<Self> {
        #[cfg(feature = "bench")]
        if super::clock::is_slowed_down() {
            return None;
        }
        let network = NetworkNamespace::of_current_thread();
        let mut running = lock_running();
        let found = running
            .iter()
            .find(|running| running.network == network && !running.thread.is_finished());
        let shared = if let Some(found) = found {
            Arc::clone(&found.shared)
        } else {
            let started = Running::start(network).inspect_err(|error| {
                tracing::warn!(
                    "no background thread: {error}; lost datagrams are retransmitted only when the \
                     endpoint is called"
                );
            });
            let started = started.ok()?;
            let shared = Arc::clone(&started.shared);
            running.push(started);
            shared
        };
        {
            let mut wards = lock(&shared.wards);
            wards.places.push(Arc::clone(&place));
            wards.changes += 1;
        }
        shared.ring();
        Some(Self { shared, place })
    }

    pub(super) fn wake(&self) {
        self.shared.ring();
    }
}

/// Returns when the thread has dropped the place.
impl Drop for Membership {
    fn drop(&mut self) {
        if self.shared.owner.is_inherited() {
            // A copy that `fork` made: there is no thread to end, and the descriptor is the
            // parent's.
            return;
        }
        let mut running = lock_running();
        let at = running.iter().position(|running| Arc::ptr_eq(&running.shared, &self.shared));
        let mut wards = lock(&self.shared.wards);
        wards.places.retain(|place| !is_same(place, &self.place));
        wards.changes += 1;
        wards.is_over = wards.places.is_empty();
        self.shared.ring();
        let Some(at) = at else { return };
        let is_here = running[at].thread.thread().id() == std::thread::current().id();
        if wards.is_over {
            drop(wards);
            let ended = running.swap_remove(at);
            if !is_here {
                // A panic was reported already.
                let _ = ended.thread.join();
            }
            return;
        }
        if is_here {
            // A waker called by the thread has dropped the engine: the thread continues after that.
            return;
        }
        let change = wards.changes;
        while wards.seen < change && !running[at].thread.is_finished() {
            let waited = self.shared.seen.wait_timeout(wards, Duration::from_millis(10));
            wards = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Running {
    /// Started by a thread of the namespace `network`, which the new one inherits.
    fn start(network: Option<NetworkNamespace>) -> std::io::Result<Self> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(refused("eventfd"))?;
        let bell = EngineFd::new(bell);
        let (wards, seen, owner) = (Mutex::default(), Condvar::new(), OwnerProcess::current());
        let shared = Arc::new(CaretakerShared { wards, seen, bell, owner });
        let of_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name(NAME.into()).spawn(move || {
            // The first attaching thread may have been pinned for its engine alone.
            topology::unpin_current_thread();
            if let Err(error) = topology::ask_for_short_slices() {
                tracing::debug!("the background thread waits longer for a core: {error}");
            }
            sync::free_owners_of_fences();
            run(&of_thread);
        })?;
        Ok(Self { shared, thread, network })
    }
}

impl CaretakerShared {
    fn ring(&self) {
        // A full counter wakes it as well.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }

    /// Sleeps until the descriptor, one of an engine, or `until`; marks the engines with events.
    fn sleep(&self, wards: &mut [Ward], until: Option<Instant>) {
        let bell = PollFd::new(&self.bell, PollFlags::IN);
        let of_tasks = wards.iter().enumerate();
        let of_tasks = of_tasks.filter(|(_, ward)| ward.place.tasks_sleep_by().is_some());
        let of_tasks: Vec<_> =
            of_tasks.map(|(index, ward)| (index, Arc::clone(&ward.place))).collect();
        if of_tasks.is_empty() && !wards.iter().any(Ward::listens) {
            // Beside active owners: no allocation.
            self.wait(&mut [bell], until);
            return;
        }
        let listening = wards.iter().enumerate().filter(|(_, ward)| ward.listens());
        // An engine that replaces them meanwhile closes them, finally when this sleep ends.
        let current: Vec<_> =
            listening.map(|(index, ward)| (index, ward.place.wake_fds())).collect();
        let (mut fds, mut indices) = (vec![bell], Vec::new());
        for (index, wake_fds) in &current {
            for fd in wake_fds.iter() {
                fds.push(PollFd::new(fd, PollFlags::IN));
                indices.push(*index);
            }
        }
        for (index, place) in &of_tasks {
            if let Some(fd) = place.tasks_sleep_by() {
                fds.push(PollFd::from_borrowed_fd(fd, PollFlags::IN));
                indices.push(*index);
            }
        }
        self.wait(&mut fds, until);
        let is_open = |fd: &PollFd<'_>| !fd.revents().is_empty();
        let woken = fds[1..].iter().zip(indices).filter(|(fd, _)| is_open(fd));
        let called: Vec<usize> = woken.map(|(_, index)| index).collect();
        for index in called {
            wards[index].is_called = true;
        }
    }

    /// Polls `fds`, the thread's own descriptor first.
    fn wait(&self, fds: &mut [PollFd<'_>], until: Option<Instant>) {
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        let timeout = left.map(|left| Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: left.subsec_nanos().into(),
        });
        if poll(fds, timeout.as_ref()).is_err() {
            // Interrupted, or out of memory: retry later.
            fds.iter_mut().for_each(PollFd::clear_revents);
            std::thread::sleep(TICK);
        }
        if !fds[0].revents().is_empty() {
            let _ = rustix::io::read(&self.bell, &mut [0; 8]);
        }
    }

    /// Updates the thread's list; returns `false` if the thread has to end.
    fn refresh(&self, known: &mut Vec<Ward>) -> bool {
        let mut wards = lock(&self.wards);
        if wards.is_over {
            known.clear();
            return false;
        }
        if wards.seen != wards.changes {
            known.retain(|ward| wards.places.iter().any(|place| is_same(place, &ward.place)));
            for place in &wards.places {
                if !known.iter().any(|ward| is_same(place, &ward.place)) {
                    known.push(Ward::new(place));
                }
            }
            wards.seen = wards.changes;
            self.seen.notify_all();
        }
        true
    }
}

/// Main loop of the thread.
fn run(shared: &CaretakerShared) {
    let mut wards = Vec::new();
    while shared.refresh(&mut wards) {
        let now = Instant::now();
        let until = wards.iter_mut().filter_map(|ward: &mut Ward| ward.look(now)).min();
        shared.sleep(&mut wards, until);
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum CaretakerPhase {
    /// Its owner made a step since this check; the next check is a tick later.
    Active { since: Instant, tick: Duration },
    /// Its owner is silent, and a turn is due.
    Cared { due: Instant },
    /// Its owner wakes the thread with its next step.
    Parked,
    /// Turns fail: the owner will get the error.
    Broken,
}

/// The thread's record of an engine.
struct Ward {
    place: Arc<dyn Cared>,
    /// Steps of its owner at the last check.
    steps: u64,
    phase: CaretakerPhase,
    /// Required silence before a turn.
    patience: Duration,
    /// When the first turn was made since its owner's last step.
    taken_over: Option<Instant>,
    /// One of its descriptors is readable.
    is_called: bool,
    /// Consecutive turns that consumed no event although a descriptor was readable.
    fruitless: u32,
    /// Until when its descriptors are not polled for that.
    deaf_until: Instant,
    /// As of the last check.
    is_deaf: bool,
}

impl Ward {
    fn new(place: &Arc<dyn Cared>) -> Self {
        let now = Instant::now();
        let phase = CaretakerPhase::Active { since: now, tick: TICK };
        let steps = place.steps();
        let place = Arc::clone(place);
        Self {
            place,
            steps,
            phase,
            patience: TICK,
            taken_over: None,
            is_called: false,
            fruitless: 0,
            deaf_until: now,
            is_deaf: false,
        }
    }

    /// Returns whether its descriptors are polled here, since no other thread does.
    fn listens(&self) -> bool {
        let is_silent = self.steps.is_multiple_of(2) && !self.is_deaf;
        is_silent && matches!(self.phase, CaretakerPhase::Cared { .. } | CaretakerPhase::Parked)
    }

    /// Executes what is due now; returns when to check again, if not at an event only.
    fn look(&mut self, now: Instant) -> Option<Instant> {
        let next = self.act(now);
        self.is_deaf = now < self.deaf_until;
        next.into_iter().chain(self.is_deaf.then_some(self.deaf_until)).min()
    }

    fn act(&mut self, now: Instant) -> Option<Instant> {
        let is_called = std::mem::take(&mut self.is_called);
        if is_called && survive(|| self.place.wake_tasks()).unwrap_or(true) {
            // They make progress themselves.
            self.steps = self.place.steps();
            return Some(self.is_active(now));
        }
        let steps = self.place.steps();
        if self.phase == CaretakerPhase::Broken {
            return None;
        }
        if steps != self.steps {
            self.steps = steps;
            return Some(self.is_active(now));
        }
        match self.phase {
            CaretakerPhase::Active { since, tick } if now < since + tick => {
                return Some(since + tick);
            }
            CaretakerPhase::Active { .. } if !steps.is_multiple_of(2) => return self.park(now),
            CaretakerPhase::Cared { due } if !is_called && now < due => {
                return self.await_until(now, due);
            }
            CaretakerPhase::Parked if !is_called && self.place.is_parked() => return None,
            CaretakerPhase::Parked if !is_called => return self.park(now),
            _ => {}
        }
        self.turn(now, is_called)
    }

    /// Handles an active owner.
    fn is_active(&mut self, now: Instant) -> Instant {
        let tick = match self.phase {
            // It may have returned during the turn.
            _ if self.taken_over.is_some() => self.patience_learned(now),
            CaretakerPhase::Active { tick, .. } => (tick * 2).min(TICK_MAX),
            _ => self.patience,
        };
        self.phase = CaretakerPhase::Active { since: now, tick };
        self.fruitless = 0;
        now + tick
    }

    /// Returns how long to wait for an owner that has returned.
    fn patience_learned(&mut self, now: Instant) -> Duration {
        if let Some(taken_over) = self.taken_over.take() {
            let is_back_soon = now < taken_over + self.patience;
            self.patience = if is_back_soon { (self.patience * 2).min(PATIENCE_MAX) } else { TICK };
        }
        self.patience
    }

    fn pause(&self) -> Duration {
        TICK * (1 << self.fruitless)
    }

    fn park(&mut self, now: Instant) -> Option<Instant> {
        if self.place.park(self.steps) {
            self.phase = CaretakerPhase::Parked;
            return None;
        }
        Some(self.is_active(now))
    }

    fn turn(&mut self, now: Instant, is_called: bool) -> Option<Instant> {
        let turn = self.place.turn();
        if turn.is_some() {
            self.taken_over.get_or_insert(now);
        }
        let (happened, due_in) = match turn {
            None => return Some(self.is_active(now)),
            Some(Ok(cared)) => cared,
            Some(Err(error)) => {
                tracing::warn!("background progress of an engine failed: {error}");
                self.phase = CaretakerPhase::Broken;
                return None;
            }
        };
        if happened {
            self.fruitless = 0;
        } else if is_called {
            let is_soon = now < self.deaf_until + self.pause();
            self.fruitless = if is_soon { (self.fruitless + 1).min(FRUITLESS_MAX) } else { 1 };
            self.deaf_until = now + self.pause();
        }
        match due_in {
            None => self.park(now),
            Some(due_in) => {
                let now = Instant::now();
                self.await_until(now, now + due_in.max(PAUSE_MIN))
            }
        }
    }

    /// Waits for the next turn at `due`, where a step of its owner is noticed within a few ticks.
    fn await_until(&mut self, now: Instant, due: Instant) -> Option<Instant> {
        let place = &self.place;
        if due > now + TICK_MAX && !place.is_parked() && !place.park(self.steps) {
            return Some(self.is_active(now));
        }
        self.phase = CaretakerPhase::Cared { due };
        Some(due)
    }
}
