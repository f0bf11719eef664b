//! Completions passed to a closure, one by one.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::domain;
use ringrail::{
    CompletionQueue, Endpoint, Envelope, Peer, ReceiveOptions, Selector, SendOptions, Shared,
};

/// Longer than a busy machine takes for anything here.
const LIMIT: Duration = Duration::from_secs(60);

/// An endpoint that sends to itself, and the queue of its receives.
struct Loopback {
    endpoint: Endpoint<Shared>,
    own: Peer,
    received: CompletionQueue<Shared>,
    sent: CompletionQueue<Shared>,
}

impl Loopback {
    fn new() -> Self {
        let mut endpoint = domain(&[]).endpoint().unwrap().share().unwrap();
        let (sent, received) =
            (endpoint.open_completion_queue(4096), endpoint.open_completion_queue(4096));
        endpoint.bind_queues(&sent, &received).unwrap();
        let own = endpoint.insert_peer(&endpoint.address()).unwrap();
        Self { endpoint, own, received, sent }
    }

    /// Receives a message of its own, whose completion has this number.
    fn post(&self, number: u64) {
        let (tag, options) = (Envelope::tagged(number), ReceiveOptions::new().user_data(number));
        let selector = Selector::from_peer(self.own, tag);
        self.endpoint.post_receive(selector, vec![0; 8], options).unwrap();
        let bytes = number.to_le_bytes().to_vec();
        self.endpoint.post_send(self.own, tag, bytes, SendOptions::new()).unwrap();
    }

    /// Waits until all messages sent so far, this many, have arrived.
    fn settle(&self, count: usize) {
        let (mut ended, begin) = (Vec::new(), Instant::now());
        while ended.len() < count {
            self.sent.read(&mut ended, count).unwrap();
            assert!(begin.elapsed() < LIMIT, "{} of {count}", ended.len());
        }
        while self.endpoint.progress().unwrap() {}
    }
}

#[test]
fn read_each_passes_the_oldest_up_to_its_limit() {
    let ends = Loopback::new();
    (0..10).for_each(|number| ends.post(number));
    ends.settle(10);
    let mut got = Vec::new();
    let mut take = |limit, is_ready| {
        let each = |it: ringrail::Completion| {
            assert_eq!(it.buffer.unwrap().as_slice().unwrap(), it.user_data.to_le_bytes());
            got.push(it.user_data);
            true
        };
        match is_ready {
            true => ends.received.read_each_ready(limit, each),
            false => ends.received.read_each(limit, each).unwrap(),
        }
    };
    let counts = [(0, true), (0, false), (3, true), (3, false), (100, true), (1, false)]
        .map(|(limit, is_ready)| take(limit, is_ready));
    assert_eq!(counts, [0, 0, 3, 3, 4, 0]);
    assert!(got.into_iter().eq(0..10));
}

#[test]
fn read_each_stops_after_an_entry_and_the_rest_is_read_later() {
    let ends = Loopback::new();
    (0..6).for_each(|number| ends.post(number));
    ends.settle(6);
    let mut got = Vec::new();
    let mut until = |last: u64| {
        let each = |it: ringrail::Completion| {
            got.push(it.user_data);
            it.user_data < last
        };
        ends.received.read_each(100, each).unwrap()
    };
    assert_eq!([until(1), until(0)], [2, 1], "the one that stops it is taken");
    let panics = || ends.received.read_each_ready(100, |it| panic!("of a test: {it:?}"));
    assert!(catch_unwind(AssertUnwindSafe(panics)).is_err());
    let mut rest = Vec::new();
    assert_eq!(ends.received.read_ready(&mut rest, 1), 1);
    assert_eq!(rest[0].user_data, 4, "it follows the one of the panic");
    assert_eq!(until(u64::MAX), 1);
    assert_eq!(got, [0, 1, 2, 5]);
}

#[test]
fn closure_of_read_each_may_post() {
    const COUNT: u64 = 500;
    let ends = Loopback::new();
    ends.post(0);
    let (mut next, begin) = (0, Instant::now());
    while next < COUNT {
        let each = |it: ringrail::Completion| {
            assert_eq!(it.user_data, next);
            next += 1;
            ends.post(next);
            true
        };
        ends.received.read_each(16, each).unwrap();
        ends.sent.read_each_ready(16, |_| true);
        assert!(begin.elapsed() < LIMIT, "{next}");
    }
}

#[test]
fn two_threads_get_each_completion_once() {
    const COUNT: u64 = 3000;
    let ends = Loopback::new();
    let (read, begin) = (AtomicU64::new(0), Instant::now());
    let reader = |limit: usize, makes_progress: bool| {
        let mut got: Vec<u64> = Vec::new();
        while read.load(Ordering::Relaxed) < COUNT {
            let before = got.len();
            let each = |it: ringrail::Completion| {
                assert!(it.result.is_ok(), "{it:?}");
                got.push(it.user_data);
                !got.len().is_multiple_of(5)
            };
            let count = match makes_progress {
                true => ends.received.read_each(limit, each).unwrap(),
                false => ends.received.read_each_ready(limit, each),
            };
            assert_eq!(count, got.len() - before);
            assert!(count <= limit);
            read.fetch_add(count as u64, Ordering::Relaxed);
            assert!(begin.elapsed() < LIMIT, "{}", got.len());
            if count == 0 {
                thread::yield_now();
            }
        }
        assert!(got.is_sorted(), "in order, with those of the other thread between them");
        got
    };
    let mut got: Vec<u64> = thread::scope(|scope| {
        let readers = [(3, true), (16, false)]
            .map(|(limit, makes_progress)| scope.spawn(move || reader(limit, makes_progress)));
        for number in 0..COUNT {
            // As many as the queue holds are outstanding.
            while number - read.load(Ordering::Relaxed) > 1000 {
                assert!(begin.elapsed() < LIMIT);
                thread::yield_now();
            }
            ends.post(number);
            ends.sent.read_each_ready(16, |_| true);
        }
        readers.into_iter().flat_map(|reader| reader.join().unwrap()).collect()
    });
    got.sort_unstable();
    assert!(got.into_iter().eq(0..COUNT));
}
