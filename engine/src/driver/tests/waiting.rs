//! Polling, sleeping, and queues that are too small.

use std::io::{ErrorKind, Write};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::host::{Host, PATIENCE, Variant, header};
use crate::driver::DriverConfig;
use crate::driver::traits::{CloseMode, DriverEvent, Interest};
use crate::memory::Buffer;

/// Pairs of lanes of one driver. Their completions exceed the smallest completion queue.
const PAIRS: usize = 400;

pub(super) fn park_respects_its_timeout(variant: &Variant) {
    let mut host = Host::new(variant);
    let (near, _) = host.pair();
    host.watch(near, Interest::Readable);
    host.expect_quiet();
    for timeout in [0, 1, 300, 40_000].map(Duration::from_micros) {
        let (mut events, begin) = (Vec::new(), Instant::now());
        host.driver.park(timeout, &mut events).unwrap();
        assert!(begin.elapsed() >= timeout, "{timeout:?}: {:?}", begin.elapsed());
        assert!(begin.elapsed() < timeout + PATIENCE);
        assert!(events.is_empty(), "{events:?}");
    }
}

pub(super) fn park_ends_with_an_event(variant: &Variant) {
    let mut host = Host::new(variant);
    let (lane, mut peer) = host.lane_to_outside();
    let address = host.listen();
    host.watch(lane, Interest::Readable);
    host.expect_quiet();
    let other = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(20));
        peer.write_all(b"here").unwrap();
        peer
    });
    let mut events = Vec::new();
    // The longest timeout must not overflow.
    host.driver.park(Duration::MAX, &mut events).unwrap();
    assert!(matches!(events[..], [DriverEvent::Readable { lane: l }] if l == lane), "{events:?}");
    let _peer = other.join().unwrap();
    let other = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(20));
        std::net::TcpStream::connect(address).unwrap()
    });
    events.clear();
    let begin = Instant::now();
    host.driver.park(PATIENCE * 2, &mut events).unwrap();
    assert!(matches!(events[..], [DriverEvent::Accepted { .. }]), "{events:?}");
    assert!(begin.elapsed() < PATIENCE);
    other.join().unwrap();
    // Present data ends the sleep at once.
    host.watch(lane, Interest::Readable);
    events.clear();
    host.driver.park(PATIENCE * 2, &mut events).unwrap();
    assert!(matches!(events[..], [DriverEvent::Readable { .. }]), "{events:?}");
    assert!(begin.elapsed() < PATIENCE);
}

/// The wake descriptor is not readable while nothing happens, and readable from the first event
/// until the driver is polled.
pub(super) fn armed_driver_signals_its_wake_descriptor(variant: &Variant) {
    let mut host = Host::new(variant);
    let (lane, mut peer) = host.lane_to_outside();
    host.watch(lane, Interest::Readable);
    host.expect_quiet();
    let wake_fd = host.driver.wake_fd().unwrap();
    let is_readable = |for_ms: u64| {
        let mut fds = [PollFd::new(&wake_fd, PollFlags::IN)];
        let timeout = Timespec::try_from(Duration::from_millis(for_ms)).unwrap();
        poll(&mut fds, Some(&timeout)).unwrap() == 1
    };
    // A scheduled fault shortens the sleep without a signal.
    assert!(host.driver.arm(PATIENCE).unwrap() <= PATIENCE);
    assert!(!is_readable(10), "nothing has come");
    for _ in 0..3 {
        let other = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            peer.write_all(b"here").unwrap();
            peer
        });
        assert!(is_readable(10_000), "a peer has written");
        let mut events = Vec::new();
        let begin = Instant::now();
        while events.is_empty() {
            host.driver.poll(&mut events).unwrap();
            assert!(begin.elapsed() < PATIENCE);
        }
        assert!(
            matches!(events[..], [DriverEvent::Readable { lane: l }] if l == lane),
            "{events:?}"
        );
        peer = other.join().unwrap();
        let mut into = [0; 16];
        assert_eq!(host.driver.recv(lane, &mut into).unwrap(), 4);
        host.watch(lane, Interest::Readable);
        // It may take a poll to find that nothing is present.
        let begin = Instant::now();
        while host.driver.arm(PATIENCE).unwrap().is_zero() || is_readable(1) {
            events.clear();
            host.driver.poll(&mut events).unwrap();
            if !events.is_empty() {
                let error = host.driver.recv(lane, &mut into).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                host.watch(lane, Interest::Readable);
            }
            assert!(begin.elapsed() < PATIENCE, "nothing more has come");
        }
    }
}

pub(super) fn idle_poll_makes_no_syscall(variant: &Variant) {
    let mut host = Host::new(variant);
    let (near, far) = host.pair();
    host.watch(near, Interest::Readable);
    host.recv_chunk(far, Buffer::from(vec![0; 10]));
    host.expect_quiet();
    let before = host.driver.counters().syscalls;
    let mut events = Vec::new();
    for _ in 0..100 {
        host.driver.poll(&mut events).unwrap();
    }
    assert!(events.is_empty());
    let calls = host.driver.counters().syscalls - before;
    match host.driver.name() {
        _ if host.driver.polls_for_free() => assert_eq!(calls, 0),
        // After a while not every poll calls epoll.
        "sockets" => assert!((1..=100).contains(&calls), "{calls}"),
        _ => assert_eq!(calls, 100),
    }
    let announces = variant.uses("taskrun_flag");
    let is_unasked = !variant.uses("coop_taskrun") && !variant.uses("defer_taskrun");
    let is_uring = host.driver.name() == "uring";
    assert_eq!(host.driver.polls_for_free(), is_uring && (announces || is_unasked));
}

/// More completions at a time than the queue holds, and a submission queue of two.
pub(super) fn full_completion_queue_loses_nothing(variant: &Variant) {
    let limit = getrlimit(Resource::Nofile);
    // Every lane is a descriptor; default limits are lower and may be raised.
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
    let config = DriverConfig { ring_entries: 2, ..variant.config() };
    let mut host = Host::with(variant.choice, &config);
    let pairs: Vec<_> = (0..PAIRS).map(|_| host.pair()).collect();
    for &(near, far) in &pairs {
        host.watch(near, Interest::Writable);
        host.recv_chunk(near, Buffer::from(Vec::new()));
        host.watch(far, Interest::Writable);
        host.watch(far, Interest::Readable);
        assert_eq!(host.driver.send(far, &header(4)).unwrap(), header(4).len());
    }
    for &(near, far) in &pairs {
        for lane in [near, far] {
            host.expect(
                "Writable",
                |e| matches!(e, DriverEvent::Writable { lane: l } if *l == lane),
            );
        }
        assert_eq!(host.expect_received(near).0.unwrap(), header(4));
    }
    host.expect_quiet();
    for &(near, far) in &pairs {
        for lane in [near, far] {
            host.watch(lane, Interest::Readable);
            host.close(lane, CloseMode::Graceful);
        }
    }
    for &(near, far) in &pairs {
        for lane in [near, far] {
            host.expect_closed(lane);
        }
    }
    host.events_of(Duration::from_millis(5));
    assert_eq!(host.driver.counters().stale_completions, 0);
}
