//! Counters of operations that have ended.

use std::thread;
use std::time::{Duration, Instant};

use crate::common::domain;
use ringrail::{
    Access, Atomic, AtomicOp, Attached, CompletionLevel, CounterEvents, CounterWait, Datatype,
    Endpoint, EndpointOptions, Envelope, Error, KeyOptions, ReceiveOptions, Selector, SendOptions,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

const TAG: Envelope = Envelope::tagged(1);
/// Longer than anything takes on a busy machine.
const LIMIT: Duration = Duration::from_secs(20);
const DONE: SendOptions = SendOptions::at(CompletionLevel::Delivery).timeout(LIMIT);

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < LIMIT, "{what}");
    }
}

/// Each kind of event in a counter of its own, between two endpoints of one engine or of two.
fn counts_each_kind<M: Attached>(left: &Endpoint<M>, right: &Endpoint<M>) {
    let peer = left.insert_peer(&right.address()).unwrap();
    let events: Vec<CounterEvents> = CounterEvents::all().iter().collect();
    let open = |endpoint: &Endpoint<M>| {
        let bound = events.iter().map(|&events| {
            let counter = endpoint.open_counter();
            endpoint.bind_counter(&counter, events).unwrap();
            counter
        });
        bound.collect::<Vec<_>>()
    };
    let (of_left, of_right) = (open(left), open(right));
    let region = right.allocate_region(1 << 20).unwrap();
    let key = region.key(&KeyOptions::new(Access::all())).unwrap();
    let at = key.at(0);
    let silent = SendOptions::new().silent(true);
    // Receives: with a handle, silent ones, in a multi-receive; the last is cancelled.
    let handle = right.receive(Selector::from_any(TAG), vec![0; 8]).unwrap();
    let quiet = ReceiveOptions::new().silent(true);
    for _ in 0..3 {
        right.post_receive(Selector::from_any(TAG), vec![0; 100_000], quiet).unwrap();
    }
    let unmatched = right
        .post_receive(Selector::from_any(Envelope::tagged(9)), vec![0; 8], ReceiveOptions::new())
        .unwrap();
    assert!(right.cancel(unmatched));
    // Sends: with a handle, silent, injected, pulled.
    let mut first = left.send(peer, TAG, vec![1; 8], DONE).unwrap();
    left.post_send(peer, TAG, vec![1; 8], silent).unwrap();
    wait_until("inject", || {
        right.progress().unwrap();
        left.progress().unwrap();
        match left.inject(peer, TAG, &[1; 8], SendOptions::new()) {
            Ok(()) => true,
            Err(Error::WouldBlock(_)) => false,
            Err(error) => panic!("{error}"),
        }
    });
    left.post_send(peer, TAG, vec![1; 100_000], DONE).unwrap();
    // Operations on memory.
    left.post_put(peer, at, vec![1; 8], silent).unwrap();
    left.post_put(peer, at, vec![1; 500_000], silent).unwrap();
    wait_until("inject_put", || {
        right.progress().unwrap();
        left.progress().unwrap();
        left.inject_put(peer, at, &[1; 8], SendOptions::new()).is_ok()
    });
    left.post_get(peer, at, vec![0; 8], silent).unwrap();
    left.post_get(peer, at, vec![0; 500_000], silent).unwrap();
    let operand = 1_u64.to_ne_bytes();
    let add = Atomic::new(AtomicOp::Sum, Datatype::U64, &operand);
    left.post_atomic(peer, at, &add, silent).unwrap();
    left.post_fetch_atomic(peer, at, &add, vec![0; 8], silent).unwrap();
    let refused = left.put(peer, key.at(1 << 20), vec![1; 8], DONE).unwrap();
    let mut refused = Some(refused);
    wait_until("refusal", || {
        right.progress().unwrap();
        refused.as_mut().unwrap().test().is_err()
    });
    refused.take();
    let values = |counters: &[ringrail::Counter<M>]| {
        let of = |it: &ringrail::Counter<M>| (it.value(), it.errors());
        counters.iter().map(of).collect::<Vec<_>>()
    };
    // Send, receive, read, write, read by the peer, written by the peer.
    let wanted_left = [(4, 0), (0, 0), (3, 0), (4, 1), (0, 0), (0, 0)];
    let wanted_right = [(0, 0), (4, 1), (0, 0), (0, 0), (2, 0), (5, 0)];
    let begin = Instant::now();
    while (values(&of_left), values(&of_right)) != (wanted_left.to_vec(), wanted_right.to_vec()) {
        left.progress().unwrap();
        right.progress().unwrap();
        assert!(begin.elapsed() < LIMIT, "{:?} {:?}", values(&of_left), values(&of_right));
    }
    while first.test().unwrap().is_none() {
        right.progress().unwrap();
    }
    drop(handle);
    // None is counted twice.
    for _ in 0..100 {
        left.progress().unwrap();
        right.progress().unwrap();
    }
    assert_eq!(values(&of_left), wanted_left);
    assert_eq!(values(&of_right), wanted_right);
}

#[test]
fn each_kind_of_operation_counts_once_where_it_belongs() {
    for settings in [&[][..], &[("control_lane", "tcp")]] {
        let domain = domain(settings);
        let owned = || domain.endpoint().unwrap().attach().unwrap();
        counts_each_kind(&owned(), &owned());
        let one = owned();
        counts_each_kind(&one, &one.open_endpoint(EndpointOptions::default()).unwrap());
        let shared = || domain.endpoint().unwrap().share().unwrap();
        counts_each_kind(&shared(), &shared());
    }
}

#[test]
fn waits_end_at_the_threshold_by_failures_and_in_time() {
    let domain = domain(&[]);
    let endpoint = domain.endpoint().unwrap().attach().unwrap();
    let own = endpoint.insert_peer(&endpoint.address()).unwrap();
    let counter = endpoint.open_counter();
    endpoint.bind_counter(&counter, CounterEvents::RECEIVE).unwrap();
    let short = Some(Duration::from_millis(5));
    assert_eq!(counter.wait(1, short).unwrap(), None);
    assert_eq!(counter.wait(0, None).unwrap(), Some(CounterWait::Reached(0)));
    for _ in 0..3 {
        endpoint.post_receive(Selector::from_any(TAG), vec![0; 8], ReceiveOptions::new()).unwrap();
        endpoint.post_send(own, TAG, vec![0; 8], SendOptions::new()).unwrap();
    }
    assert_eq!(counter.wait(3, Some(LIMIT)).unwrap(), Some(CounterWait::Reached(3)));
    let never = endpoint.post_receive(Selector::from_any(TAG), vec![0; 8], ReceiveOptions::new());
    let reader = counter.reader();
    thread::scope(|scope| {
        let elsewhere = scope.spawn(|| (reader.value(), reader.errors()));
        assert_eq!(elsewhere.join().unwrap(), (3, 0));
    });
    assert!(endpoint.cancel(never.unwrap()));
    assert_eq!((counter.errors(), counter.wait(4, short).unwrap()), (1, None));
    counter.set(10);
    counter.add(5);
    counter.set_errors(0);
    counter.add_errors(2);
    assert_eq!((reader.value(), reader.errors()), (15, 2));
    assert_eq!(counter.wait(15, None).unwrap(), Some(CounterWait::Reached(15)));
    let other = domain.endpoint().unwrap().attach().unwrap();
    assert!(matches!(other.bind_counter(&counter, CounterEvents::SEND), Err(Error::Misuse(_))));
    // It can be attached again when the counter is gone, and counts nothing then.
    let (endpoint, _) = endpoint.detach().unwrap_err();
    drop(counter);
    let endpoint = endpoint.detach().map_err(|it| it.1).unwrap().attach().unwrap();
    let sent = endpoint.send(own, TAG, vec![0; 8], SendOptions::new());
    let got = endpoint.receive(Selector::from_any(TAG), vec![0; 8]).unwrap();
    got.wait().unwrap();
    drop(sent);
    assert_eq!(reader.value(), 15);
}

/// Threads that wait for different thresholds, with and without a descriptor, beside a thread that
/// sends: none sleeps on, and who adds by hand wakes, too.
#[test]
fn any_thread_waits_for_its_threshold() {
    const MESSAGES: u64 = 2000;
    let domain = domain(&[("spin", "20us")]);
    let (left, right) = (domain.endpoint().unwrap(), domain.endpoint().unwrap());
    let (left, right) = (left.share().unwrap(), right.dedicate().unwrap());
    let peer = left.insert_peer(&right.address()).unwrap();
    let counter = right.open_counter();
    right.bind_counter(&counter, CounterEvents::RECEIVE).unwrap();
    let quiet = ReceiveOptions::new().silent(true);
    thread::scope(|scope| {
        for step in [1, 7, 100, MESSAGES] {
            let counter = counter.clone();
            scope.spawn(move || {
                for threshold in (step..=MESSAGES).step_by(step as usize) {
                    let waited = counter.wait(threshold, Some(LIMIT)).unwrap();
                    assert!(
                        matches!(waited, Some(CounterWait::Reached(value)) if value >= threshold),
                        "{waited:?} for {threshold}"
                    );
                }
            });
        }
        let by_descriptor = counter.clone();
        scope.spawn(move || {
            for threshold in (50..=MESSAGES).step_by(50) {
                wait_until("the descriptor", || {
                    if !by_descriptor.arm(threshold, 0).unwrap() {
                        return true;
                    }
                    let fd = by_descriptor.wait_fd().unwrap();
                    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
                    poll(&mut fds, Some(&Timespec::try_from(LIMIT).unwrap())).unwrap();
                    false
                });
            }
        });
        let by_hand = right.open_counter();
        let waiter = by_hand.clone();
        let waits = scope.spawn(move || waiter.wait(2, Some(LIMIT)).unwrap());
        by_hand.add(1);
        thread::sleep(Duration::from_millis(20));
        by_hand.add(1);
        assert_eq!(waits.join().unwrap(), Some(CounterWait::Reached(2)));
        for number in 0..MESSAGES {
            right.post_receive(Selector::from_any(TAG), vec![0; 8], quiet).unwrap();
            let options = if number % 16 == 15 { DONE } else { SendOptions::new() };
            left.send_blocking(peer, TAG, &[0; 8], options.timeout(LIMIT)).unwrap();
        }
    });
    assert_eq!((counter.value(), counter.errors()), (MESSAGES, 0));
}
