//! Many threads and one state, on this machine's own memory.

use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use super::chunks::chunks;
use super::combiner::{Combiner, Left, PostOutcome};
use super::posts::{check_order, post_shared, post_to};
use super::wait::{Doorbell, Progress, SharedProgress};
use super::wait_set::{Keys, WaitSet};

/// (thread, number)
type Post = (usize, usize);

/// Two numbers that differ only while a thread is inside, and the applied requests.
#[derive(Default, Debug)]
struct Log {
    begun: u64,
    ended: u64,
    posts: Vec<Post>,
}

impl Log {
    fn add(&mut self, post: Post) {
        assert_eq!(self.begun, self.ended, "another thread is inside");
        self.begun += 1;
        for _ in 0..self.begun % 16 {
            std::hint::spin_loop();
        }
        self.posts.push(post);
        self.ended += 1;
    }
}

fn apply(log: &mut Log, post: Post) {
    log.add(post);
}

fn post(combiner: &Combiner<Log, Post>, what: Post) -> PostOutcome<()> {
    post_to(combiner, |log| log.add(what), || what, apply)
}

/// Many more threads than cores, so that holders and pushers are preempted anywhere.
#[test]
fn posts_of_each_thread_keep_their_order() {
    const THREADS: usize = 64;
    const COUNT: usize = 2000;
    let combiner = Combiner::new(Log::default());
    let inline = AtomicUsize::new(0);
    thread::scope(|scope| {
        for index in 0..THREADS {
            let (combiner, inline) = (&combiner, &inline);
            scope.spawn(move || {
                for number in 0..COUNT {
                    let posted = post(combiner, (index, number));
                    inline.fetch_add(
                        usize::from(posted == PostOutcome::Inline(())),
                        Ordering::Relaxed,
                    );
                    if number % 64 == index {
                        let guard = combiner.lock();
                        assert_eq!(guard.begun, guard.ended);
                        guard.release(apply);
                    }
                }
            });
        }
    });
    assert!(combiner.has_leftover() || combiner.is_queue_empty());
    let mut guard = combiner.lock();
    while guard.drain(apply).left == Left::More {}
    check_order(&guard.posts, THREADS, COUNT);
    guard.release(apply);
    let counts = combiner.counts();
    assert_eq!(counts.combined as usize + inline.into_inner(), THREADS * COUNT);
    assert!(counts.failed_locks <= counts.combined);
    assert!(!combiner.has_leftover());
    assert_eq!(combiner.queue_len(), 0);
}

#[test]
fn posters_continue_while_the_holder_is_delayed() {
    const THREADS: usize = 8;
    const COUNT: usize = 1000;
    let combiner = Combiner::new(Log::default());
    let (held, is_held) = channel();
    let (go, may_go) = channel::<()>();
    thread::scope(|scope| {
        let combiner = &combiner;
        let holder = scope.spawn(move || {
            post_to(
                combiner,
                |_| {
                    held.send(()).unwrap();
                    may_go.recv().unwrap();
                },
                || unreachable!("no other thread is inside"),
                apply,
            )
        });
        is_held.recv().unwrap();
        let posters: Vec<_> = (0..THREADS)
            .map(|index| {
                scope.spawn(move || {
                    for number in 0..COUNT {
                        assert_eq!(post(combiner, (index, number)), PostOutcome::Queued);
                    }
                })
            })
            .collect();
        // All of them have finished although the holder has not.
        posters.into_iter().for_each(|poster| poster.join().unwrap());
        assert_eq!(combiner.queue_len(), THREADS * COUNT);
        go.send(()).unwrap();
        assert_eq!(holder.join().unwrap(), PostOutcome::Inline(()));
    });
    // A call applies no more than its limit.
    assert!(combiner.has_leftover());
    assert_eq!(combiner.counts().combined, 4 * 64);
    assert_eq!(combiner.counts().failed_locks, (THREADS * COUNT) as u64);
    let mut guard = combiner.lock();
    while guard.drain(apply).left == Left::More {}
    check_order(&guard.posts, THREADS, COUNT);
}

#[test]
fn dropped_guard_leaves_queued_requests() {
    let combiner = Combiner::new(Log::default());
    let guard = combiner.lock();
    assert_eq!(post(&combiner, (0, 0)), PostOutcome::Queued);
    drop(guard);
    assert!(combiner.has_leftover());
    assert_eq!(post(&combiner, (0, 1)), PostOutcome::Inline(()));
    assert!(!combiner.has_leftover());
    check_order(&combiner.lock().posts, 1, 2);
}

#[test]
fn holder_may_post_and_must_not_wait() {
    let combiner = Combiner::new(Log::default());
    let inline = |log: &mut Log| {
        log.add((0, 0));
        assert_eq!(post(&combiner, (0, 1)), PostOutcome::Queued);
        assert!(combiner.try_lock().is_none());
        let refused = catch_unwind(AssertUnwindSafe(|| drop(combiner.lock())));
        let message = refused.unwrap_err().downcast::<&str>().unwrap();
        assert!(message.contains("inside the engine already"), "{message}");
        // Another thread may, once this one has left.
        assert!(thread::scope(|scope| {
            scope.spawn(|| combiner.try_lock().is_none()).join().unwrap()
        }));
    };
    assert_eq!(post_to(&combiner, inline, || (0, 0), apply), PostOutcome::Inline(()));
    check_order(&combiner.lock().posts, 1, 2);
}

#[test]
fn panic_releases_the_lock_and_loses_only_its_request() {
    let combiner = Combiner::new(Log::default());
    let inline = |_: &mut Log| {
        for number in 0..3 {
            let _ = post(&combiner, (0, number));
        }
        panic!("planted");
    };
    let inline = || post_to(&combiner, inline, || (9, 9), apply);
    assert!(catch_unwind(AssertUnwindSafe(inline)).is_err());
    assert!(combiner.has_leftover());
    assert_eq!(combiner.queue_len(), 3);
    let applies = |log: &mut Log, post: Post| {
        assert_ne!(post.1, 1, "planted");
        apply(log, post)
    };
    let guard = combiner.try_lock().expect("it is free");
    assert!(catch_unwind(AssertUnwindSafe(|| guard.release(applies))).is_err());
    let guard = combiner.try_lock().expect("it is free");
    assert!(combiner.has_leftover());
    assert_eq!(guard.release(apply).left, Left::Nothing);
    assert_eq!(combiner.lock().posts, [(0, 0), (0, 2)]);
}

#[test]
fn remaining_requests_are_freed() {
    let counted = Arc::new(());
    let combiner = Combiner::<(), Arc<()>>::new(());
    let guard = combiner.lock();
    for _ in 0..3 {
        let queued = || Arc::clone(&counted);
        assert_eq!(post_to(&combiner, |()| (), queued, |(), _| {}), PostOutcome::Queued);
    }
    drop(guard);
    assert_eq!(Arc::strong_count(&counted), 4);
    drop(combiner);
    assert_eq!(Arc::strong_count(&counted), 1);
}

#[test]
fn notification_wakes_waiters_of_its_keys() {
    let set = WaitSet::default();
    let woken = [AtomicU32::new(0), AtomicU32::new(0)];
    thread::scope(|scope| {
        for (index, woken) in woken.iter().enumerate() {
            let set = &set;
            scope.spawn(move || {
                while woken.load(Ordering::Relaxed) < 2 {
                    let ticket = set.prepare_for(Keys::of(index as u32));
                    if woken.load(Ordering::Relaxed) == 0 {
                        ticket.wait(None);
                    }
                    woken.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        while set.sleepers() < 2 {
            thread::yield_now();
        }
        // Both are in the kernel by then; otherwise both would return at the first one.
        thread::sleep(Duration::from_millis(50));
        set.notify_all(Keys::of(33));
        while woken[1].load(Ordering::Relaxed) == 0 {
            thread::yield_now();
        }
        assert_eq!(woken[0].load(Ordering::Relaxed), 0);
        set.notify_all(Keys::of(0).and(Keys::of(1)));
    });
}

/// Messages of threads to themselves, which complete in a turn of the leader.
#[derive(Default)]
struct Engine {
    posted: Vec<usize>,
}

struct Bell(OwnedFd);

impl Bell {
    fn new() -> Self {
        Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap())
    }
}

impl Doorbell<Engine> for Arc<Bell> {
    fn needs_wake(&self, engine: &Engine) -> bool {
        !engine.posted.is_empty()
    }

    fn ring(&self) {
        rustix::io::write(&self.0, &1u64.to_ne_bytes()).unwrap();
    }
}

struct Threads {
    shared: SharedProgress<Engine, usize, Arc<Bell>>,
    bell: Arc<Bell>,
    done: Vec<AtomicUsize>,
}

impl Threads {
    fn new(threads: usize) -> Self {
        let bell = Arc::new(Bell::new());
        let shared = SharedProgress::new(Engine::default(), Arc::clone(&bell));
        Self { shared, bell, done: (0..threads).map(|_| AtomicUsize::new(0)).collect() }
    }

    fn post(&self, thread: usize) {
        let apply = |engine: &mut Engine, thread| {
            engine.posted.push(thread);
        };
        let inline = |engine: &mut Engine| engine.posted.push(thread);
        let _ = post_shared(&self.shared, inline, || thread, apply);
    }

    fn wait(&self, thread: usize, count: usize, until: Option<Instant>) -> bool {
        let ready = || (self.done[thread].load(Ordering::Acquire) >= count).then_some(());
        let mut turns = Turns { threads: self, done: Vec::new() };
        self.shared.wait(Keys::of(thread as u32), until, ready, &mut turns).is_some()
    }
}

struct Turns<'a> {
    threads: &'a Threads,
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
            self.threads.done[thread].fetch_add(1, Ordering::Release);
        }
        !self.done.is_empty()
    }

    fn arm(&mut self, _: &mut Engine) -> Option<()> {
        Some(())
    }

    fn released(&mut self) {
        for thread in self.done.drain(..) {
            self.threads.shared.notify(Keys::of(thread as u32));
        }
    }

    fn sleep(&mut self, (): (), until: Option<Instant>) {
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        let timeout = left.map(|left| Timespec::try_from(left).unwrap());
        let bell = &self.threads.bell.0;
        if poll(&mut [PollFd::new(bell, PollFlags::IN)], timeout.as_ref()) == Ok(1) {
            rustix::io::read(bell, &mut [0; 8]).unwrap();
        }
    }
}

/// Threads post and wait in turn; some are woken by those that post for them.
#[test]
fn no_thread_waits_forever() {
    const THREADS: usize = 16;
    const COUNT: usize = 500;
    let threads = Threads::new(THREADS);
    thread::scope(|scope| {
        for index in 0..THREADS {
            let threads = &threads;
            scope.spawn(move || {
                for count in 1..=COUNT {
                    threads.post((index + 1) % THREADS);
                    assert!(threads.wait(index, count, None));
                }
            });
        }
    });
    assert!(threads.shared.combiner().is_queue_empty());
    assert!(threads.done.iter().all(|done| done.load(Ordering::Relaxed) == COUNT));
}

#[test]
fn wait_times_out_for_leaders_and_followers() {
    let threads = Threads::new(2);
    let start = Instant::now();
    let pause = Duration::from_millis(50);
    thread::scope(|scope| {
        for index in 0..2 {
            let threads = &threads;
            scope.spawn(move || assert!(!threads.wait(index, 1, Some(start + pause))));
        }
    });
    assert!(start.elapsed() >= pause);
    // It may lead again.
    threads.post(0);
    assert!(threads.wait(0, 1, Some(start + Duration::from_secs(60))));
}

#[test]
fn blocking_and_nonblocking_calls() {
    let threads = Threads::new(1);
    let apply = |engine: &mut Engine, thread| {
        engine.posted.push(thread);
    };
    let call = |engine: &mut Engine| {
        assert!(threads.shared.try_enter(|_| (), apply).is_none());
        engine.posted.len()
    };
    threads.post(0);
    assert_eq!(threads.shared.enter(call, apply), 1);
    assert_eq!(threads.shared.try_enter(|engine| engine.posted.len(), apply), Some(1));
}

#[test]
fn chunk_entries_arrive_once_and_in_order() {
    let (mut writer, chunks) = chunks::<usize>();
    let reader = thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut taken = Vec::new();
            while taken.len() < 10_000 {
                chunks.take(&mut taken, 7);
            }
            taken
        });
        (0..10_000).for_each(|number| writer.push(|| number));
        reader.join().unwrap()
    });
    assert!(reader.into_iter().eq(0..10_000));
    assert!(chunks.is_empty() && writer.len() == 0);
}

#[test]
fn an_entry_passed_to_a_closure_that_stops_or_panics_is_taken() {
    let room = super::sync::CHUNK;
    let (mut writer, chunks) = chunks::<Arc<usize>>();
    (0..3 * room).for_each(|number| writer.push(|| Arc::new(number)));
    let mut taken = Vec::new();
    let mut stop_at = |last: usize| {
        let count = chunks.take_each(usize::MAX, |number| {
            taken.push(*number);
            *number < last
        });
        (count, taken.last().copied())
    };
    assert_eq!(stop_at(room - 1), (room, Some(room - 1)), "the end of a chunk");
    assert_eq!(stop_at(room), (1, Some(room)), "the first of the next");
    let panics = || chunks.take_each(usize::MAX, |number| panic!("of a test: {number}"));
    assert!(catch_unwind(AssertUnwindSafe(panics)).is_err());
    assert_eq!(stop_at(usize::MAX), (2 * room - 2, Some(3 * room - 1)));
    assert_eq!(taken, (0..=room).chain(room + 2..3 * room).collect::<Vec<_>>());
    assert_eq!((chunks.is_empty(), chunks.take_each(1, |_| true)), (true, 0));
}

#[test]
fn an_entry_whose_making_panics_does_not_exist() {
    let room = super::sync::CHUNK;
    for are_read in [false, true] {
        for at in [0, 1, room - 1, room, room + 1, 2 * room] {
            let (mut writer, chunks) = chunks::<Arc<usize>>();
            let mut taken = Vec::new();
            (0..at).for_each(|number| writer.push(|| Arc::new(number)));
            if are_read {
                assert_eq!(chunks.take(&mut taken, usize::MAX), at);
            }
            for _ in 0..3 {
                let before = writer.len();
                let push = || writer.push(|| panic!("of a test"));
                assert!(catch_unwind(AssertUnwindSafe(push)).is_err());
                assert_eq!((writer.len(), chunks.is_empty()), (before, before == 0), "{at}");
            }
            if are_read {
                assert_eq!(chunks.take_each(1, |number| panic!("{number}")), 0);
            }
            (at..at + 2 * room).for_each(|number| writer.push(|| Arc::new(number)));
            chunks.take(&mut taken, at + room);
            chunks.take_each(usize::MAX, |number| {
                taken.push(number);
                true
            });
            assert!(taken.iter().map(|number| **number).eq(0..at + 2 * room), "{at}");
            assert!(taken.iter().all(|number| Arc::strong_count(number) == 1), "{at}");
            assert!(chunks.is_empty() && writer.len() == 0);
        }
    }
}

/// Untaken entries are dropped with the queue, at each fill of chunks.
#[test]
fn remaining_chunk_entries_are_dropped() {
    let room = super::sync::CHUNK;
    for (written, taken) in [(0, 0), (1, 0), (room, 0), (room, room), (3 * room + 1, room)] {
        let cookie = Arc::new(());
        let (mut writer, chunks) = chunks::<Arc<()>>();
        (0..written).for_each(|_| writer.push(|| Arc::clone(&cookie)));
        let mut got = Vec::new();
        assert_eq!(chunks.take(&mut got, taken), taken);
        assert_eq!(writer.len(), written - taken);
        drop(got);
        assert_eq!(Arc::strong_count(&cookie), 1 + written - taken);
        drop((writer, chunks));
        assert_eq!(Arc::strong_count(&cookie), 1, "{written} written, {taken} taken");
    }
}
