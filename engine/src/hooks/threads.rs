//! Threads of a simulated world: coroutines on one thread, of which one runs at a time, until it
//! comes to a point where another may go on, or sleeps.
//!
//! The scheduler (`swarm::threads`) chooses what is resumed next, so that a seed decides it.
//! Nothing here does anything outside of such a coroutine.

use std::cell::{Cell, RefCell};
use std::num::NonZeroU32;

/// Why a thread has stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Pause {
    /// Another one may run first.
    Runs,
    /// It goes on when it is woken.
    Sleeps,
    /// It has ended.
    Over,
}

/// A thread that sleeps.
#[derive(Clone, Copy, Debug)]
struct Sleeper {
    thread: usize,
    /// The address or descriptor at which it sleeps.
    gate: usize,
    keys: NonZeroU32,
}

/// The action of a thread.
type Life = Box<dyn FnOnce()>;

thread_local! {
    /// The number of the thread that runs; 0: none does.
    static CURRENT: Cell<usize> = const { Cell::new(0) };
    /// In the order in which they fell asleep.
    static SLEEPERS: RefCell<Vec<Sleeper>> = const { RefCell::new(Vec::new()) };
    /// What the thread does that is resumed for the first time.
    static LIFE: Cell<Option<Life>> = const { Cell::new(None) };
    /// Numbers of tickets.
    static TICKETS: Cell<u32> = const { Cell::new(0) };
}

/// Which simulated thread this is.
#[inline]
pub(crate) fn number() -> Option<usize> {
    Some(CURRENT.get()).filter(|&number| number != 0)
}

/// A number for a ticket, the same in each run of a seed.
pub(crate) fn next_ticket() -> Option<u32> {
    number().map(|_| TICKETS.replace(TICKETS.get().wrapping_add(1)))
}

#[allow(deprecated, reason = "what is called has no coroutine's scope at hand, as in loom")]
fn stop(why: Pause) {
    let this = CURRENT.replace(0);
    generator::yield_with(why);
    CURRENT.set(this);
}

/// Another thread may run here.
#[inline]
pub(crate) fn point() {
    if number().is_some() {
        stop(Pause::Runs);
    }
}

/// Sleeps until [`wake`] is called for the same gate and one of the same keys. `false`: this is no
/// simulated thread.
pub(crate) fn sleep(gate: usize, keys: NonZeroU32) -> bool {
    let Some(thread) = number() else { return false };
    SLEEPERS.with_borrow_mut(|all| all.push(Sleeper { thread, gate, keys }));
    stop(Pause::Sleeps);
    true
}

/// Wakes those that have slept for the longest time, `count` at the most.
pub(crate) fn wake(gate: usize, keys: NonZeroU32, mut count: u32) {
    SLEEPERS.with_borrow_mut(|all| {
        all.retain(|it| {
            let is_woken = count > 0 && it.gate == gate && it.keys.get() & keys.get() != 0;
            count -= u32::from(is_woken);
            !is_woken
        });
    });
}

/// Whether a thread sleeps.
pub(crate) fn is_asleep(thread: usize) -> bool {
    SLEEPERS.with_borrow(|all| all.iter().any(|it| it.thread == thread))
}

/// Forgets the threads of a world that is gone.
pub(crate) fn forget() {
    SLEEPERS.with_borrow_mut(Vec::clear);
    TICKETS.set(0);
    CURRENT.set(0);
}

/// A simulated thread.
pub(crate) struct Thread {
    number: usize,
    coroutine: generator::Generator<'static, (), Pause>,
    /// What it does, until it begins. It belongs to the thread that simulates the world.
    life: Option<Life>,
    is_over: bool,
}

/// Words of a thread's stack. What is not touched takes no memory.
const STACK_WORDS: usize = 1 << 17;

impl Thread {
    /// One that runs `life` as it is resumed. `number` is its own, and not 0.
    pub(crate) fn new(number: usize, life: impl FnOnce() + 'static) -> Self {
        // What it is made of has to be `Send`, which a life is not.
        let coroutine = generator::Gn::new_opt(STACK_WORDS, || {
            if let Some(life) = LIFE.take() {
                life();
            }
            Pause::Over
        });
        Self { number, coroutine, life: Some(Box::new(life)), is_over: false }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.is_over
    }

    /// Whether it has something to do.
    pub(crate) fn can_run(&self) -> bool {
        !self.is_over && !is_asleep(self.number)
    }

    pub(crate) fn is_asleep(&self) -> bool {
        is_asleep(self.number)
    }

    /// Runs it up to its next stop. A panic of it is one of the caller.
    pub(crate) fn resume(&mut self) {
        if let Some(life) = self.life.take() {
            LIFE.set(Some(life));
        }
        CURRENT.set(self.number);
        let why = self.coroutine.resume();
        CURRENT.set(0);
        self.is_over = !matches!(why, Some(Pause::Runs | Pause::Sleeps));
    }

    /// Leaves it where it is, for ever, with everything that it holds.
    pub(crate) fn abandon(self) {
        std::mem::forget(self.coroutine);
    }
}
