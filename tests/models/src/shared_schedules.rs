//! Shared engines with more threads than `shared_model` has, in random orders.
//!
//! The files under test are the engine's own, over the types of `shuttle`, whose memory is
//! sequentially consistent: what is tested is what threads do when others are held up anywhere.

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
    pub(crate) use shuttle::sync::Mutex;
    pub(crate) use shuttle::sync::atomic::{
        AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
    };

    use std::collections::hash_map::DefaultHasher;
    use std::hash::{Hash, Hasher};
    use std::num::NonZeroU32;
    use std::time::Instant;

    use shuttle::sync::{Condvar, MutexGuard};

    pub(crate) const CHUNK: usize = 2;

    pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
        mutex.lock().unwrap()
    }

    pub(crate) fn thread_number() -> usize {
        let mut hasher = DefaultHasher::new();
        shuttle::thread::current().id().hash(&mut hasher);
        hasher.finish() as usize | 1
    }

    pub(crate) fn spins(count: u32) -> u32 {
        count.min(2)
    }

    /// The checker stops threads at each access.
    pub(crate) fn point() {}

    pub(crate) fn pause() {
        shuttle::hint::spin_loop();
    }

    pub(crate) fn yield_now() {
        shuttle::thread::yield_now();
    }

    struct Sleeper {
        keys: NonZeroU32,
        ticket: u64,
    }

    #[derive(Default)]
    struct Sleepers {
        generation: u32,
        tickets: u64,
        asleep: Vec<Sleeper>,
    }

    /// As a futex: wakes the oldest that sleep for the keys.
    #[derive(Default)]
    pub(crate) struct FutexGate(Mutex<Sleepers>, Condvar);

    impl std::fmt::Debug for FutexGate {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("FutexGate")
        }
    }

    impl FutexGate {
        pub(crate) fn generation(&self) -> u32 {
            self.0.lock().unwrap().generation
        }

        pub(crate) fn wait(&self, generation: u32, keys: NonZeroU32, _: Option<Instant>) {
            let mut sleepers = self.0.lock().unwrap();
            if sleepers.generation != generation {
                return;
            }
            sleepers.tickets += 1;
            let ticket = sleepers.tickets;
            sleepers.asleep.push(Sleeper { keys, ticket });
            while sleepers.asleep.iter().any(|sleeper| sleeper.ticket == ticket) {
                sleepers = self.1.wait(sleepers).unwrap();
            }
        }

        pub(crate) fn open(&self, keys: NonZeroU32, mut count: u32) {
            let mut sleepers = self.0.lock().unwrap();
            sleepers.generation += 1;
            sleepers.asleep.retain(|sleeper| {
                let is_woken = sleeper.keys.get() & keys.get() != 0 && count > 0;
                count -= u32::from(is_woken);
                !is_woken
            });
            self.1.notify_all();
        }
    }
}

use std::sync::Arc;
use std::time::Instant;

use combiner::Combiner;
use posts::{check_order, post_shared, post_to};
use shuttle::rand::{Rng, thread_rng};
use shuttle::sync::atomic::{AtomicU32, Ordering};
use shuttle::sync::{Condvar, Mutex};
use shuttle::thread;
use wait::{Doorbell, Progress, SharedProgress};
use wait_set::Keys;

/// Schedules of a test; half of them change threads at random, half at few places.
const SCHEDULES: usize = 1000;

fn check(model: impl Fn() + Clone + Sync + Send + 'static) {
    shuttle::check_random(model.clone(), SCHEDULES / 2);
    shuttle::check_pct(model, SCHEDULES / 2, 3);
}

/// (thread, number)
type Post = (usize, usize);

/// What was applied, in its order.
#[derive(Default)]
struct Log {
    posts: Vec<Post>,
    is_inside: bool,
}

impl Log {
    fn add(&mut self, post: Post) {
        assert!(!self.is_inside, "somebody else is inside");
        self.is_inside = true;
        thread::yield_now();
        self.is_inside = false;
        self.posts.push(post);
    }
}

fn apply(log: &mut Log, post: Post) {
    log.add(post);
}

/// Threads that post, and come in to look now and then if `they_enter`.
fn posters(threads: usize, count: usize, they_enter: bool) {
    let combiner = Arc::new(Combiner::new(Log::default()));
    let posters: Vec<_> = (0..threads)
        .map(|index| {
            let combiner = Arc::clone(&combiner);
            thread::spawn(move || {
                for number in 0..count {
                    let what = (index, number);
                    let _ = post_to(&combiner, |log| log.add(what), || what, apply);
                    if they_enter && thread_rng().gen_bool(0.3) {
                        let mut guard = combiner.lock_behind_posts(apply);
                        assert!(guard.posts.contains(&what), "its own post is behind it");
                        guard.add((usize::MAX, 0));
                        guard.posts.pop();
                        guard.release(apply);
                    }
                }
            })
        })
        .collect();
    posters.into_iter().for_each(|poster| poster.join().unwrap());
    let has_leftover = combiner.has_leftover();
    assert!(has_leftover || combiner.is_queue_empty());
    let mut guard = combiner.try_lock().expect("nobody is inside");
    if !has_leftover {
        check_order(&guard.posts, threads, count);
    }
    guard.drain(apply);
    check_order(&guard.posts, threads, count);
    guard.release(apply);
    assert!(!combiner.has_leftover());
    assert_eq!(combiner.queue_len(), 0);
}

#[test]
fn each_thread_keeps_its_order() {
    check(|| posters(4, 4, false));
    check(|| posters(8, 2, false));
}

#[test]
fn who_enters_is_behind_its_posts() {
    check(|| posters(5, 3, true));
}

/// The descriptors that a leader sleeps on: the bell alone.
#[derive(Clone, Default)]
struct Bell(Arc<(Mutex<bool>, Condvar)>);

/// Messages of threads to themselves, which come back by a turn of the leader.
#[derive(Default)]
struct Engine {
    posted: Vec<usize>,
}

impl Doorbell<Engine> for Bell {
    fn needs_wake(&self, engine: &Engine) -> bool {
        !engine.posted.is_empty()
    }

    fn ring(&self) {
        *self.0.0.lock().unwrap() = true;
        self.0.1.notify_all();
    }
}

struct World {
    shared: SharedProgress<Engine, usize, Bell>,
    bell: Bell,
    done: Vec<AtomicU32>,
}

struct Turns<'a> {
    world: &'a World,
    done: Vec<usize>,
}

impl Progress<Engine, usize> for Turns<'_> {
    type Plan = ();

    fn apply(&mut self, engine: &mut Engine, thread: usize) {
        engine.posted.push(thread);
    }

    fn progress(&mut self, engine: &mut Engine) -> bool {
        self.done.append(&mut engine.posted);
        for &thread in &self.done {
            self.world.done[thread].fetch_add(1, Ordering::Release);
        }
        !self.done.is_empty()
    }

    fn arm(&mut self, engine: &mut Engine) -> Option<()> {
        assert!(engine.posted.is_empty());
        Some(())
    }

    fn released(&mut self) {
        for thread in self.done.drain(..) {
            self.world.shared.notify(Keys::of(thread as u32));
        }
    }

    fn sleep(&mut self, (): (), _: Option<Instant>) {
        let mut is_rung = self.world.bell.0.0.lock().unwrap();
        while !*is_rung {
            is_rung = self.world.bell.0.1.wait(is_rung).unwrap();
        }
        *is_rung = false;
    }
}

/// Each thread posts, and waits until what it posted is done. None waits for ever: shuttle finds
/// out if all of them sleep.
fn waiters(threads: usize, count: u32) {
    let bell = Bell::default();
    let done = (0..threads).map(|_| AtomicU32::new(0)).collect();
    let shared = SharedProgress::new(Engine::default(), bell.clone());
    let world = Arc::new(World { shared, bell, done });
    let waiters: Vec<_> = (0..threads)
        .map(|index| {
            let world = Arc::clone(&world);
            thread::spawn(move || {
                for number in 1..=count {
                    let apply = |engine: &mut Engine, thread| {
                        engine.posted.push(thread);
                    };
                    let inline = |engine: &mut Engine| engine.posted.push(index);
                    let _ = post_shared(&world.shared, inline, || index, apply);
                    let done = &world.done[index];
                    let ready = || (done.load(Ordering::Acquire) == number).then_some(());
                    let mut turns = Turns { world: &world, done: Vec::new() };
                    let keys = Keys::of(index as u32);
                    assert!(world.shared.wait(keys, None, ready, &mut turns).is_some());
                }
            })
        })
        .collect();
    waiters.into_iter().for_each(|waiter| waiter.join().unwrap());
}

#[test]
fn none_waits_for_ever() {
    check(|| waiters(2, 3));
    check(|| waiters(4, 2));
    check(|| waiters(6, 1));
}
