//! Endpoints that all threads of a process use.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::common::domain;
use ringrail::{
    CompletionLevel, Endpoint, EndpointOptions, Envelope, Error, OperationKind, ReceiveOptions,
    Selector, SendOptions, Shared,
};

fn shared(settings: &[(&str, &str)]) -> Endpoint<Shared> {
    domain(settings).endpoint().unwrap().share().unwrap()
}

#[test]
fn a_shared_endpoint_crosses_threads_and_is_used_by_them() {
    fn any_thread<T: Send + Sync>() {}
    any_thread::<Endpoint<Shared>>();
    any_thread::<ringrail::CompletionQueue<Shared>>();
    fn movable<T: Send>() {}
    movable::<ringrail::Operation<Shared>>();
}

/// Each thread has a tag of its own; blocking calls at both ends, all sizes.
#[test]
fn threads_talk_at_once_each_with_its_own_partner() {
    const THREADS: u64 = 8;
    const SIZES: [usize; 5] = [0, 8, 4000, 70_000, 400_000];
    for lanes in [&[("control_lane", "tcp")][..], &[]] {
        let (left, right) = (shared(lanes), shared(lanes));
        let to_right = left.insert_peer(&right.address()).unwrap();
        let to_left = right.insert_peer(&left.address()).unwrap();
        let exchange = |end: &Endpoint<Shared>, peer, thread: u64, goes_first: bool| {
            let selector = Selector::from_peer(peer, Envelope::tagged(thread));
            for round in 0..20 {
                let size = SIZES[(round + thread as usize) % SIZES.len()];
                let bytes = vec![thread as u8 ^ round as u8; size];
                let mut into = vec![0xee; size];
                let send = || {
                    let level = [CompletionLevel::Inject, CompletionLevel::Match][round % 2];
                    let options = SendOptions::at(level);
                    end.send_blocking(peer, Envelope::tagged(thread), &bytes, options).unwrap();
                };
                if goes_first {
                    send();
                }
                let status =
                    end.receive_blocking(selector, &mut into, ReceiveOptions::new()).unwrap();
                assert_eq!(status.length, size);
                assert!(into == bytes, "thread {thread}, round {round}");
                if !goes_first {
                    send();
                }
            }
        };
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (left, right, exchange) = (&left, &right, &exchange);
                scope.spawn(move || exchange(left, to_right, thread, true));
                scope.spawn(move || exchange(right, to_left, thread, false));
            }
        });
    }
}

/// Posts of one thread match in their order, also where another thread posts some of them later:
/// what happens before matches before.
#[test]
fn posts_keep_their_order_within_and_across_threads() {
    const POSTS: u64 = 3000;
    let endpoint = shared(&[]);
    let own = endpoint.insert_peer(&endpoint.address()).unwrap();
    let next = AtomicU64::new(0);
    std::thread::scope(|scope| {
        // Four threads take turns; each turn happens after the one before.
        for thread in 0..4 {
            let (endpoint, next) = (&endpoint, &next);
            scope.spawn(move || {
                for turn in (thread..POSTS).step_by(4) {
                    while next.load(Ordering::Acquire) != turn {
                        std::thread::yield_now();
                    }
                    endpoint
                        .post_send(
                            own,
                            Envelope::tagged(1),
                            turn.to_le_bytes().to_vec(),
                            SendOptions::new().silent(true),
                        )
                        .unwrap();
                    next.store(turn + 1, Ordering::Release);
                }
            });
        }
        // And a thread that is at the engine all the time.
        scope.spawn(|| {
            while next.load(Ordering::Relaxed) < POSTS {
                endpoint.progress().unwrap();
            }
        });
    });
    for expected in 0..POSTS {
        let mut into = [0; 8];
        endpoint
            .receive_blocking(
                Selector::from_any(Envelope::tagged(1)),
                &mut into,
                ReceiveOptions::new(),
            )
            .unwrap();
        assert_eq!(u64::from_le_bytes(into), expected);
    }
}

/// A queue for each thread: no thread takes what is another's, and all are woken.
#[test]
fn each_thread_waits_at_its_own_queue() {
    const THREADS: usize = 6;
    const MESSAGES: u64 = 500;
    let (left, right) = (shared(&[]), shared(&[]));
    right.insert_peer(&left.address()).unwrap();
    let received = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for thread in 0..THREADS as u64 {
            let (left, right, received) = (&left, &right, &received);
            scope.spawn(move || {
                let queue = right.open_completion_queue(64);
                let mine = right
                    .open_endpoint(EndpointOptions {
                        transmit_queue: Some(&queue),
                        receive_queue: Some(&queue),
                        ..EndpointOptions::default()
                    })
                    .unwrap();
                let to_mine = left.insert_peer(&mine.address()).unwrap();
                let selector = Selector::from_any(Envelope::tagged(thread));
                let mut posted = 0;
                while posted < 16 {
                    let options = ReceiveOptions::new().user_data(posted);
                    mine.post_receive(selector, vec![0; 8], options).unwrap();
                    posted += 1;
                }
                let mut sent = 0;
                let (mut done, mut got) = (Vec::new(), 0);
                while got < MESSAGES {
                    while sent < MESSAGES && sent < got + 16 {
                        let bytes = (thread << 32 | sent).to_le_bytes();
                        let envelope = Envelope::tagged(thread);
                        match left.inject(to_mine, envelope, &bytes, SendOptions::new()) {
                            Ok(()) => sent += 1,
                            Err(error) if error.is_would_block() => {
                                left.progress().unwrap();
                            }
                            Err(error) => panic!("{error}"),
                        }
                    }
                    queue.wait(&mut done, 8, Some(Duration::from_secs(20))).unwrap();
                    assert!(!done.is_empty(), "{got} of {MESSAGES}, thread {thread}");
                    for completion in done.drain(..) {
                        assert_eq!(completion.kind, OperationKind::Receive);
                        assert_eq!(completion.user_data, got);
                        let buffer = completion.buffer.unwrap();
                        assert_eq!(completion.result.unwrap().length, 8);
                        let bytes = buffer.as_slice().unwrap().try_into().unwrap();
                        assert_eq!(u64::from_le_bytes(bytes), thread << 32 | got);
                        got += 1;
                        received.fetch_add(1, Ordering::Relaxed);
                        if posted < MESSAGES {
                            let options = ReceiveOptions::new().user_data(posted);
                            mine.post_receive(selector, buffer, options).unwrap();
                            posted += 1;
                        }
                    }
                }
            });
        }
    });
    assert_eq!(received.into_inner(), THREADS * MESSAGES as usize);
}

#[test]
fn operations_are_cancelled_by_name_and_by_handle() {
    let endpoint = shared(&[]);
    let any = Selector::from_any(Envelope::tagged(9));
    let mut handle = endpoint.receive(any, vec![0; 8]).unwrap();
    assert!(handle.cancel());
    assert!(matches!(handle.wait().unwrap_err().error, Error::Cancelled));
    let stop = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        // The lock is taken most of the time, so that many posts become requests.
        for _ in 0..2 {
            scope.spawn(|| {
                while stop.load(Ordering::Relaxed) == 0 {
                    endpoint.progress().unwrap();
                }
            });
        }
        let mut done = Vec::new();
        for number in 0..2000 {
            let options = ReceiveOptions::new().user_data(number);
            let id = endpoint.post_receive(any, vec![0; 8], options).unwrap();
            assert!(endpoint.cancel(id), "no message matches it");
            while endpoint.completions(&mut done, 1).unwrap() == 0 {}
            let completion = done.pop().unwrap();
            assert_eq!(completion.user_data, number);
            assert!(matches!(completion.result, Err(Error::Cancelled)));
            assert!(!endpoint.cancel(id), "it is over");
        }
        stop.store(1, Ordering::Relaxed);
    });
}

/// A queue without a reader stops posts to it, and no others.
#[test]
fn a_full_queue_stops_no_other() {
    let endpoint = shared(&[]);
    let own = endpoint.insert_peer(&endpoint.address()).unwrap();
    let full = endpoint.open_completion_queue(4);
    let options = EndpointOptions { transmit_queue: Some(&full), ..EndpointOptions::default() };
    let stuck = endpoint.open_endpoint(options).unwrap();
    let send = |from: &Endpoint<Shared>| {
        from.post_send(own, Envelope::tagged(1), vec![1; 8], SendOptions::new())
    };
    for _ in 0..4 {
        send(&stuck).unwrap();
    }
    assert!(send(&stuck).unwrap_err().error.is_would_block());
    send(&endpoint).unwrap();
    let mut done = Vec::new();
    assert_eq!(full.read(&mut done, 1).unwrap(), 1);
    send(&stuck).unwrap();
}

#[test]
fn waits_end_in_time() {
    let endpoint = shared(&[]);
    let begin = Instant::now();
    let timeout = Duration::from_millis(60);
    let mut done = Vec::new();
    assert_eq!(endpoint.wait(&mut done, 1, Some(timeout)).unwrap(), 0);
    assert!(begin.elapsed() >= timeout);
    let never = Selector::from_any(Envelope::tagged(1));
    let options = ReceiveOptions::new().timeout(timeout);
    let error = endpoint.receive_blocking(never, &mut [0; 8], options).unwrap_err();
    assert!(matches!(error, Error::TimedOut(_)), "{error}");
    // Followers of a leader, too.
    std::thread::scope(|scope| {
        for millis in [30, 60, 90] {
            let (timeout, endpoint) = (Duration::from_millis(millis), &endpoint);
            scope.spawn(move || {
                let begin = Instant::now();
                assert_eq!(endpoint.wait(&mut Vec::new(), 1, Some(timeout)).unwrap(), 0);
                assert!(begin.elapsed() >= timeout);
            });
        }
    });
    assert!(begin.elapsed() < Duration::from_secs(30));
}

#[test]
fn rings_of_one_thread_are_refused() {
    let endpoint = domain(&[("lanes", "uring")]).endpoint().unwrap();
    let error = endpoint.share().unwrap_err();
    assert!(matches!(error, Error::Misuse(_)), "{error}");
}

/// A rank that computes for a second answers meanwhile: rendezvous included.
#[test]
fn a_dedicated_engine_needs_no_call() {
    const LENGTH: usize = 4 << 20;
    let dedicated = domain(&[]).endpoint().unwrap().dedicate().unwrap();
    let other = domain(&[]).endpoint().unwrap().attach().unwrap();
    let to_dedicated = other.insert_peer(&dedicated.address()).unwrap();
    let to_other = dedicated.insert_peer(&other.address()).unwrap();
    let mut receive = dedicated
        .receive(Selector::from_peer(to_other, Envelope::tagged(1)), vec![0; LENGTH])
        .unwrap();
    let begin = Instant::now();
    let options = SendOptions::at(CompletionLevel::Match).timeout(Duration::from_secs(20));
    // No thread waits at the dedicated endpoint: this one is here.
    other.send_blocking(to_dedicated, Envelope::tagged(1), &vec![7; LENGTH], options).unwrap();
    let took = begin.elapsed();
    let completed = receive.wait_timeout(Duration::from_secs(20)).unwrap().expect("it is there");
    assert!(completed.buffer.as_slice().unwrap().iter().all(|&byte| byte == 7));
    assert!(took < Duration::from_secs(10), "{took:?}");
    // And it sleeps when nothing happens.
    std::thread::sleep(Duration::from_millis(300));
    let before = dedicated.sharing().sleeps;
    std::thread::sleep(Duration::from_millis(1000));
    let sleeps = dedicated.sharing().sleeps - before;
    assert!(sleeps < 60, "{sleeps} sleeps in a second without a message");
}

/// Threads that post end, and their operations go on; endpoints are dropped in any order.
#[test]
fn threads_may_end_before_what_they_posted() {
    let (left, right) = (shared(&[]), shared(&[]));
    let to_right = left.insert_peer(&right.address()).unwrap();
    let to_left = right.insert_peer(&left.address()).unwrap();
    for round in 0..20u8 {
        let post = |end: &Endpoint<Shared>, peer, fill: u8| {
            let (out, into) = (vec![fill; 300_000], vec![0; 300_000]);
            let receive =
                end.receive(Selector::from_peer(peer, Envelope::tagged(2)), into).unwrap();
            let send = end.send(peer, Envelope::tagged(2), out, SendOptions::new()).unwrap();
            (receive, send)
        };
        let (ours, theirs) = std::thread::scope(|scope| {
            let ours = scope.spawn(|| post(&left, to_right, round));
            let theirs = scope.spawn(|| post(&right, to_left, !round));
            (ours.join().unwrap(), theirs.join().unwrap())
        });
        assert_eq!(ours.0.wait().unwrap().buffer.as_slice().unwrap()[299_999], !round);
        assert_eq!(theirs.0.wait().unwrap().buffer.as_slice().unwrap()[299_999], round);
        ours.1.wait().unwrap();
        theirs.1.wait().unwrap();
    }
    let stays = left.open_endpoint(EndpointOptions::default()).unwrap();
    let never = left.receive(Selector::from_any(Envelope::tagged(3)), vec![0; 8]).unwrap();
    drop(left);
    assert!(matches!(never.wait().unwrap_err().error, Error::Cancelled));
    drop(right);
    drop(stays);
}

/// What a thread has posted from memory of its own is done with when its endpoint is dropped,
/// however many requests other threads have queued.
#[test]
fn the_drop_of_an_endpoint_is_behind_its_posts() {
    const COUNT: usize = 400;
    let main = shared(&[]);
    let own = main.insert_peer(&main.address()).unwrap();
    let stop = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                // At the engine most of the time, so that posts become requests.
                while stop.load(Ordering::Relaxed) == 0 {
                    main.progress().unwrap();
                }
            });
        }
        for round in 0..40u8 {
            let endpoint = main.open_endpoint(EndpointOptions::default()).unwrap();
            let mut memory = vec![round; 64];
            let silent = SendOptions::new().silent(true);
            for _ in 0..COUNT {
                let span = ringrail::RawSpan { ptr: memory.as_mut_ptr(), len: memory.len() };
                // SAFETY: the memory lives, unchanged, until the endpoint is dropped.
                unsafe {
                    endpoint.post_send_raw(own, Envelope::tagged(u64::from(round)), &[span], silent)
                }
                .unwrap();
            }
            drop(endpoint);
            memory.fill(0xff);
            drop(memory);
            for number in 0..COUNT {
                let mut into = [0; 64];
                let selector = Selector::from_any(Envelope::tagged(u64::from(round)));
                let options = ReceiveOptions::new().timeout(Duration::from_secs(20));
                main.receive_blocking(selector, &mut into, options).unwrap();
                assert!(into == [round; 64], "{round}, {number}");
            }
        }
        stop.store(1, Ordering::Relaxed);
    });
}

/// A queue that is full refuses also what was left to another thread, and delays no other thread.
#[test]
fn a_full_queue_stops_no_other_while_the_engine_is_busy() {
    let endpoint = shared(&[]);
    let own = endpoint.insert_peer(&endpoint.address()).unwrap();
    let stop = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while stop.load(Ordering::Relaxed) == 0 {
                    endpoint.progress().unwrap();
                }
            });
        }
        let full = endpoint.open_completion_queue(4);
        let options = EndpointOptions { transmit_queue: Some(&full), ..EndpointOptions::default() };
        let stuck = endpoint.open_endpoint(options).unwrap();
        let (mut refused, mut posted) = (0, 0);
        for _ in 0..500 {
            match stuck.post_send(own, Envelope::tagged(1), vec![1; 8], SendOptions::new()) {
                Ok(_) => posted += 1,
                Err(failed) => {
                    assert!(failed.error.is_would_block(), "{failed}");
                    refused += 1;
                }
            }
            // Another queue is served all the same, and in time.
            let options =
                SendOptions::at(CompletionLevel::Delivery).timeout(Duration::from_secs(20));
            endpoint.send_blocking(own, Envelope::tagged(2), &[2; 8], options).unwrap();
        }
        stop.store(1, Ordering::Relaxed);
        let mut done = Vec::new();
        while full.read(&mut done, 1000).unwrap() > 0 {}
        let ended = done.iter().filter(|completion| completion.result.is_ok()).count();
        let reported = done.len() - ended;
        assert_eq!((ended, done.len() + refused), (4, 500), "{reported} reported, {posted} posted");
    });
}

/// Each of two threads sleeps by the descriptor of its own queue, and both are woken.
#[test]
fn two_threads_sleep_by_their_own_descriptors() {
    const ROUNDS: u64 = 300;
    let endpoint = shared(&[]);
    std::thread::scope(|scope| {
        let sides = [0, 1].map(|_| {
            let queue = endpoint.open_completion_queue(64);
            let options =
                EndpointOptions { receive_queue: Some(&queue), ..EndpointOptions::default() };
            let side = endpoint.open_endpoint(options).unwrap();
            (side, queue)
        });
        let addresses = [sides[0].0.address(), sides[1].0.address()];
        for (index, (side, queue)) in sides.into_iter().enumerate() {
            let partner = addresses[1 - index];
            scope.spawn(move || {
                let peer = side.insert_peer(&partner).unwrap();
                let mut done = Vec::new();
                let mut wakes = 0;
                for round in 0..ROUNDS {
                    let selector = Selector::from_any(Envelope::tagged(0));
                    side.post_receive(selector, vec![0; 8], ReceiveOptions::new()).unwrap();
                    let silent = SendOptions::new().silent(true);
                    side.post_send(peer, Envelope::tagged(0), vec![1; 8], silent).unwrap();
                    let begin = Instant::now();
                    while queue.read(&mut done, 1).unwrap() == 0 {
                        assert!(begin.elapsed() < Duration::from_secs(20), "round {round}");
                        if queue.arm().unwrap() {
                            let fd = queue.wait_fd().unwrap();
                            let mut fds =
                                [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
                            let limit = rustix::time::Timespec { tv_sec: 20, tv_nsec: 0 };
                            rustix::event::poll(&mut fds, Some(&limit)).unwrap();
                            wakes += 1;
                        }
                    }
                    done.clear();
                    std::thread::sleep(Duration::from_micros(100 * (round % 7)));
                }
                assert!(wakes < 20 * ROUNDS, "{wakes} wakes");
            });
        }
    });
}

/// The first endpoint of an engine joins queues that others have, and operations are cancelled by
/// what their poster gave them.
#[test]
fn queues_are_bound_later_and_operations_cancelled_by_their_user_data() {
    let mut first = shared(&[]);
    let queue = first.open_completion_queue(64);
    first.bind_queues(&queue, &queue).unwrap();
    let options = EndpointOptions {
        transmit_queue: Some(&queue),
        receive_queue: Some(&queue),
        ..Default::default()
    };
    let second = first.open_endpoint(options).unwrap();
    let to_self = first.insert_peer(&first.address()).unwrap();
    let receive = |end: &Endpoint<Shared>, tag, user_data| {
        let (selector, options) =
            (Selector::from_any(Envelope::tagged(tag)), ReceiveOptions::new().user_data(user_data));
        end.post_receive(selector, vec![0; 8], options).unwrap();
    };
    for user_data in [7, 8, 8] {
        receive(&first, user_data, user_data);
    }
    receive(&second, 9, 9);
    let mut outstanding = first.outstanding();
    outstanding.sort_unstable();
    assert_eq!(outstanding, [7, 8, 8]);
    assert!(!first.cancel_where(|user_data| user_data == 9), "it is another endpoint's");
    assert!(first.cancel_where(|user_data| user_data == 8));
    let mut ended = Vec::new();
    queue.read(&mut ended, 8).unwrap();
    let [cancelled] = &ended[..] else { panic!("{ended:?}") };
    assert_eq!(cancelled.user_data, 8);
    assert!(matches!(cancelled.result, Err(Error::Cancelled)));

    first.post_send(to_self, Envelope::tagged(7), vec![1; 8], SendOptions::new()).unwrap();
    ended.clear();
    while ended.len() < 2 {
        queue.wait(&mut ended, 8, Some(Duration::from_secs(5))).unwrap();
    }
    assert!(ended.iter().any(|it| it.user_data == 7 && it.kind == OperationKind::Receive));
    let other = shared(&[]);
    assert!(first.bind_queues(&other.open_completion_queue(1), &queue).is_err());
}
