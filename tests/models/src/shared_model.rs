//! Shared engines, in every order that the memory model allows.
//!
//! The files under test are the engine's own, over the types of `loom`. The
//! larger ones are bounded in the preemptions of an execution, as they would not end.

#![allow(dead_code, reason = "the models do not need all of the files")]

/// No bug is planted here.
macro_rules! planted {
    ($bug:ident) => {
        false
    };
}

#[path = "../../../engine/src/progress/shared/chunks.rs"]
mod chunks;
#[path = "../../../engine/src/progress/shared/combiner.rs"]
mod combiner;
#[path = "../../../engine/src/progress/shared/count.rs"]
mod count;
#[path = "../../../engine/src/progress/shared/posts.rs"]
mod posts;
#[path = "../../../engine/src/progress/shared/queue.rs"]
mod queue;
#[path = "../../../engine/src/progress/shared/wait.rs"]
mod wait;
#[path = "../../../engine/src/progress/shared/wait_set.rs"]
mod wait_set;

/// Stands in for `progress/shared/sync.rs`.
mod sync {
    pub(crate) use loom::sync::Mutex;
    pub(crate) use loom::sync::atomic::{
        AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering, fence,
    };

    use std::collections::hash_map::DefaultHasher;
    use std::hash::{Hash, Hasher};
    use std::num::NonZeroU32;
    use std::time::Instant;

    use loom::sync::{Condvar, MutexGuard};

    pub(crate) const CHUNK: usize = 2;

    pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
        mutex.lock().unwrap()
    }

    pub(crate) fn thread_number() -> usize {
        let mut hasher = DefaultHasher::new();
        loom::thread::current().id().hash(&mut hasher);
        hasher.finish() as usize | 1
    }

    /// No spinning: what it is good for is speed.
    pub(crate) fn spins(_: u32) -> u32 {
        0
    }

    /// Others are to go on: what is spun for does not come otherwise.
    /// The checker stops threads at each access.
    pub(crate) fn point() {}

    pub(crate) fn pause() {
        loom::thread::yield_now();
    }

    pub(crate) fn yield_now() {
        loom::thread::yield_now();
    }

    /// `loom` takes sequentially consistent accesses for those that acquire and release: fences
    /// around them make up for that.
    #[derive(Debug)]
    pub(crate) struct AtomicU64(loom::sync::atomic::AtomicU64);

    impl AtomicU64 {
        pub(crate) fn new(value: u64) -> Self {
            Self(loom::sync::atomic::AtomicU64::new(value))
        }

        fn fenced<R>(order: Ordering, access: impl FnOnce() -> R) -> R {
            if order != Ordering::SeqCst {
                return access();
            }
            fence(order);
            let answer = access();
            fence(order);
            answer
        }

        pub(crate) fn load(&self, order: Ordering) -> u64 {
            Self::fenced(order, || self.0.load(order))
        }

        pub(crate) fn store(&self, value: u64, order: Ordering) {
            Self::fenced(order, || self.0.store(value, order));
        }

        pub(crate) fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
            Self::fenced(order, || self.0.fetch_add(value, order))
        }

        pub(crate) fn fetch_min(&self, value: u64, order: Ordering) -> u64 {
            Self::fenced(order, || self.0.fetch_min(value, order))
        }
    }

    /// Wakes all, whatever their number and keys; never in time.
    #[derive(Debug)]
    pub(crate) struct FutexGate(Mutex<u32>, Condvar);

    impl Default for FutexGate {
        fn default() -> Self {
            Self(Mutex::new(0), Condvar::new())
        }
    }

    impl FutexGate {
        pub(crate) fn generation(&self) -> u32 {
            *self.0.lock().unwrap()
        }

        pub(crate) fn wait(&self, generation: u32, _: NonZeroU32, _: Option<Instant>) {
            let mut current = self.0.lock().unwrap();
            while *current == generation {
                current = self.1.wait(current).unwrap();
            }
        }

        pub(crate) fn open(&self, _: NonZeroU32, _: u32) {
            *self.0.lock().unwrap() += 1;
            self.1.notify_all();
        }
    }
}

use std::sync::Arc;
use std::time::Instant;

use chunks::chunks;
use combiner::{Combiner, PostOutcome};
use count::SharedCounter;
use loom::cell::UnsafeCell;
use loom::model::Builder;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::sync::{Condvar, Mutex};
use loom::thread;
use posts::{check_order, post_shared, post_to};
use queue::{Popped, QueueLock};
use wait::{Doorbell, Progress, SharedProgress};
use wait_set::{Keys, WaitSet};

fn bounded(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}

/// What was applied, in its order; loom watches the cell, so that two at a time are found out.
#[derive(Debug)]
struct Log(UnsafeCell<Vec<Post>>);

/// (thread, number)
type Post = (usize, usize);

// SAFETY: what the models are to find out: loom watches the cell.
unsafe impl Sync for Log {}
// SAFETY: numbers.
unsafe impl Send for Log {}

impl Log {
    fn new() -> Self {
        Self(UnsafeCell::new(Vec::new()))
    }

    fn add(&mut self, post: Post) {
        // SAFETY: loom fails the model where another thread accesses the cell.
        self.0.with_mut(|log| unsafe { (*log).push(post) });
    }

    fn posts(&self) -> Vec<Post> {
        // SAFETY: as above.
        self.0.with(|log| unsafe { (*log).clone() })
    }
}

fn apply(log: &mut Log, post: Post) {
    log.add(post);
}

fn post(combiner: &Combiner<Log, Post>, what: Post) {
    let _ = post_to(combiner, |log| log.add(what), || what, apply);
}

/// Threads that post `count` each, of which the model's own is one; then what the last one of them
/// leaves behind.
fn posters(threads: usize, count: usize) {
    let combiner = Arc::new(Combiner::new(Log::new()));
    let others: Vec<_> = (1..threads)
        .map(|index| {
            let combiner = Arc::clone(&combiner);
            thread::spawn(move || (0..count).for_each(|number| post(&combiner, (index, number))))
        })
        .collect();
    (0..count).for_each(|number| post(&combiner, (0, number)));
    others.into_iter().for_each(|other| other.join().unwrap());
    let has_leftover = combiner.has_leftover();
    let mut guard = combiner.try_lock().expect("nobody is inside");
    if !has_leftover {
        check_order(&guard.posts(), threads, count);
    }
    guard.drain(apply);
    check_order(&guard.posts(), threads, count);
    guard.release(apply);
    assert!(!combiner.has_leftover());
}

#[test]
fn the_queue_gives_each_request_once_and_in_order() {
    bounded(3, || {
        let queue = Arc::new(QueueLock::<Log, Post>::new(Log::new()));
        let push = |queue: &QueueLock<Log, Post>, thread| {
            for number in 0..2 {
                if let Some(mut holder) = queue.push((thread, number)) {
                    while let Popped::Item(post) = holder.pop() {
                        holder.state_mut().add(post);
                    }
                }
            }
        };
        let others = Arc::clone(&queue);
        let other = thread::spawn(move || push(&others, 1));
        push(&queue, 0);
        other.join().unwrap();
        let mut holder = queue.try_lock().expect("nobody is inside");
        while let Popped::Item(post) = holder.pop() {
            holder.state_mut().add(post);
        }
        assert!(holder.is_empty());
        check_order(&holder.state().posts(), 2, 2);
    });
}

#[test]
fn an_empty_queue_has_nothing_that_was_pushed_before() {
    loom::model(|| {
        let queue = Arc::new(QueueLock::<(), Box<u32>>::new(()));
        let holders = Arc::clone(&queue);
        let holder = thread::spawn(move || {
            let Some(mut holder) = holders.try_lock() else { return 0 };
            (0..2).filter(|_| matches!(holder.pop(), Popped::Item(_))).count()
        });
        let pushed = queue.push(Box::new(1));
        let was_empty = queue.is_empty();
        let is_held = pushed.is_some();
        drop(pushed);
        let popped = holder.join().unwrap();
        assert!(!was_empty || popped == 1, "held: {is_held}");
        assert_eq!(queue.len(), 1 - popped);
        // The rest is freed here.
    });
}

#[test]
fn two_posters_lose_nothing_and_keep_their_order() {
    bounded(3, || posters(2, 2));
}

#[test]
fn three_posters_lose_nothing() {
    bounded(2, || posters(3, 1));
}

#[test]
fn what_happens_before_a_post_in_another_thread_is_applied_before() {
    bounded(2, || {
        let combiner = Arc::new(Combiner::new(Log::new()));
        let turn = Arc::new(AtomicU32::new(0));
        let (others, others_turn) = (Arc::clone(&combiner), Arc::clone(&turn));
        let disturbers = Arc::clone(&combiner);
        let disturber = thread::spawn(move || post(&disturbers, (1, 0)));
        let other = thread::spawn(move || {
            if others_turn.load(Ordering::Acquire) == 1 {
                post(&others, (0, 1));
            } else {
                post(&others, (2, 0));
            }
        });
        post(&combiner, (0, 0));
        turn.store(1, Ordering::Release);
        disturber.join().unwrap();
        other.join().unwrap();
        let mut guard = combiner.lock();
        guard.drain(apply);
        let posts = guard.posts();
        assert_eq!(posts.len(), 3);
        let at = |what| posts.iter().position(|post| *post == what);
        assert!(at((0, 1)).is_none_or(|second| at((0, 0)) < Some(second)), "{posts:?}");
    });
}

#[test]
fn who_sleeps_for_the_lock_is_woken() {
    bounded(3, || {
        let lock = Arc::new(QueueLock::<Log, Post>::new(Log::new()));
        let others = Arc::clone(&lock);
        let other = thread::spawn(move || {
            let mut holder = others.lock_or_sleep();
            holder.state_mut().add((1, 0));
            if let Err(holder) = holder.release_if_empty() {
                holder.release();
            }
        });
        let mut holder = lock.lock_or_sleep();
        holder.state_mut().add((0, 0));
        holder.release();
        other.join().unwrap();
        assert_eq!(lock.lock_or_sleep().state().posts().len(), 2);
    });
}

#[test]
fn a_notification_is_not_missed() {
    loom::model(|| {
        let shared = Arc::new((WaitSet::default(), AtomicU32::new(0)));
        let others = Arc::clone(&shared);
        let other = thread::spawn(move || {
            others.1.store(1, Ordering::Relaxed);
            others.0.notify_all(Keys::of(3));
        });
        loop {
            let ticket = shared.0.prepare_for(Keys::of(3));
            if shared.1.load(Ordering::Relaxed) == 1 {
                break;
            }
            ticket.wait(None);
        }
        other.join().unwrap();
        assert_eq!(shared.0.sleepers(), 0);
    });
}

/// Entries in `Box`es: one that is taken twice or never is found out by loom, or as a leak.
#[test]
fn readers_take_each_entry_once_and_in_order() {
    bounded(3, || {
        let (mut writer, queue) = chunks::<Box<u32>>();
        let reader = |queue: Arc<chunks::Chunks<Box<u32>>>| {
            move || {
                let mut taken = Vec::new();
                queue.take(&mut taken, 2);
                queue.take(&mut taken, 2);
                taken
            }
        };
        let other = thread::spawn(reader(Arc::clone(&queue)));
        // Into the third chunk, while the first goes back.
        (0..5).for_each(|number| writer.push(|| Box::new(number)));
        let mut mine = Vec::new();
        for _ in 0..2 {
            queue.take_each(2, |entry| {
                mine.push(entry);
                true
            });
        }
        let others = other.join().unwrap();
        let mut left = Vec::new();
        queue.take(&mut left, 5);
        assert!(queue.is_empty() && writer.len() == 0);
        for taken in [&mine, &others] {
            assert!(taken.is_sorted(), "{taken:?}");
        }
        let mut all: Vec<u32> = [mine, others, left].concat().into_iter().map(|it| *it).collect();
        all.sort_unstable();
        assert_eq!(all, [0, 1, 2, 3, 4]);
    });
}

#[test]
fn an_entry_that_is_notified_is_seen_by_who_sleeps() {
    bounded(3, || {
        let (mut writer, queue) = chunks::<u32>();
        let waiters = Arc::new(WaitSet::default());
        let (sleepers, entries) = (Arc::clone(&waiters), Arc::clone(&queue));
        let reader = thread::spawn(move || {
            let mut taken = Vec::new();
            loop {
                let ticket = sleepers.prepare_for(Keys::of(3));
                entries.take(&mut taken, 1);
                if taken.len() == 3 {
                    break taken;
                }
                if entries.is_empty() {
                    ticket.wait(None);
                }
            }
        });
        for number in 0..3 {
            writer.push(|| number);
            waiters.notify_all(Keys::of(3));
        }
        assert_eq!(reader.join().unwrap(), [0, 1, 2]);
    });
}

/// As a wait for a counter does.
fn wait_for_count(waiters: &WaitSet, count: &SharedCounter, threshold: u64) {
    loop {
        let ticket = waiters.prepare_for(Keys::of(3));
        count.want(threshold);
        if count.value() >= threshold {
            return;
        }
        ticket.wait(None);
    }
}

#[test]
fn waiters_for_several_values_of_a_counter_are_woken() {
    bounded(3, || {
        let shared = Arc::new((WaitSet::default(), SharedCounter::new(3)));
        let wait = |threshold| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || wait_for_count(&shared.0, &shared.1, threshold))
        };
        let (first, second) = (wait(1), wait(2));
        for _ in 0..2 {
            if shared.1.add(1) {
                shared.0.notify_all(Keys::of(3));
            }
        }
        first.join().unwrap();
        second.join().unwrap();
    });
}

/// One of two that count takes a wish back for which the other has come too late.
#[test]
fn two_that_count_wake_who_waits_for_both() {
    bounded(3, || {
        let shared = Arc::new((WaitSet::default(), SharedCounter::new(3)));
        let add = |shared: &(WaitSet, SharedCounter)| {
            if shared.1.add(1) {
                shared.0.notify_all(Keys::of(3));
            }
        };
        let others = Arc::clone(&shared);
        let other = thread::spawn(move || add(&others));
        let waiters = Arc::clone(&shared);
        let waiter = thread::spawn(move || {
            wait_for_count(&waiters.0, &waiters.1, 1);
            wait_for_count(&waiters.0, &waiters.1, 2);
        });
        add(&shared);
        other.join().unwrap();
        waiter.join().unwrap();
    });
}

/// The descriptors that a leader sleeps on: the bell alone.
#[derive(Clone)]
struct Bell(Arc<(Mutex<bool>, Condvar)>);

impl Bell {
    fn new() -> Self {
        Self(Arc::new((Mutex::new(false), Condvar::new())))
    }
}

/// An engine that has done what is posted as soon as its leader has a turn.
#[derive(Default)]
struct Engine {
    posted: u32,
    done: u32,
    /// Looks without an effect since the last turn that had one.
    has_looked: bool,
}

impl Doorbell<Engine> for Bell {
    fn needs_wake(&self, engine: &Engine) -> bool {
        engine.posted != engine.done
    }

    fn ring(&self) {
        *self.0.0.lock().unwrap() = true;
        self.0.1.notify_all();
    }
}

type SharedEngine = SharedProgress<Engine, u32, Bell>;

struct Turns<'a> {
    shared: &'a SharedEngine,
    bell: Bell,
    done: &'a AtomicU32,
}

impl Progress<Engine, u32> for Turns<'_> {
    type Plan = ();

    fn apply(&mut self, engine: &mut Engine, count: u32) {
        engine.posted += count;
    }

    fn progress(&mut self, engine: &mut Engine) -> bool {
        let happened = engine.done != engine.posted;
        engine.done = engine.posted;
        self.done.store(engine.done, Ordering::Release);
        happened
    }

    fn arm(&mut self, engine: &mut Engine) -> Option<()> {
        assert_eq!(engine.done, engine.posted);
        Some(())
    }

    fn released(&mut self) {
        self.shared.notify(Keys::of(1));
    }

    fn sleep(&mut self, (): (), _: Option<Instant>) {
        let mut is_rung = self.bell.0.0.lock().unwrap();
        while !*is_rung {
            is_rung = self.bell.0.1.wait(is_rung).unwrap();
        }
        *is_rung = false;
    }
}

struct World {
    shared: SharedEngine,
    bell: Bell,
    done: AtomicU32,
}

impl World {
    fn new() -> Arc<Self> {
        let bell = Bell::new();
        let shared = SharedProgress::new(Engine::default(), bell.clone());
        Arc::new(Self { shared, bell, done: AtomicU32::new(0) })
    }

    fn wait(&self, count: u32) {
        let ready = || (self.done.load(Ordering::Acquire) >= count).then_some(());
        let bell = self.bell.clone();
        let mut turns = Turns { shared: &self.shared, bell, done: &self.done };
        assert!(self.shared.wait(Keys::of(1), None, ready, &mut turns).is_some());
    }

    fn post(&self) -> PostOutcome<()> {
        let apply = |engine: &mut Engine, count| {
            engine.posted += count;
        };
        post_shared(&self.shared, |engine| engine.posted += 1, || 1, apply)
    }
}

#[test]
fn a_leader_that_sleeps_is_woken_by_a_post() {
    bounded(3, || {
        let world = World::new();
        let waiters = Arc::clone(&world);
        let waiter = thread::spawn(move || waiters.wait(1));
        let _ = world.post();
        waiter.join().unwrap();
    });
}

#[test]
fn a_leader_that_posted_itself_is_woken_by_the_post_of_another() {
    bounded(2, || {
        let world = World::new();
        let posters = Arc::clone(&world);
        let poster = thread::spawn(move || {
            let _ = posters.post();
        });
        let _ = world.post();
        world.wait(2);
        poster.join().unwrap();
    });
}

#[test]
fn leadership_is_passed_on() {
    bounded(2, || {
        let world = World::new();
        let waiters = Arc::clone(&world);
        let waiter = thread::spawn(move || waiters.wait(1));
        let _ = world.post();
        world.wait(1);
        waiter.join().unwrap();
    });
}

#[test]
fn a_leader_that_sleeps_is_woken_by_a_notification() {
    bounded(2, || {
        let world = World::new();
        let waiters = Arc::clone(&world);
        let waiter = thread::spawn(move || waiters.wait(1));
        // Another thread's turn has done it all.
        let apply = |_: &mut Engine, _| {};
        world.shared.enter(
            |engine| {
                engine.posted += 1;
                engine.done = engine.posted;
                world.done.store(engine.done, Ordering::Release);
            },
            apply,
        );
        world.shared.notify(Keys::of(1));
        waiter.join().unwrap();
    });
}
