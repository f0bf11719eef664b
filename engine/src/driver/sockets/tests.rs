//! How often epoll is called.

use std::io::Write;
use std::net::TcpStream;

use zeroize::Zeroizing;

use super::*;
use crate::driver::traits::LocalPeer;
use crate::memory::Buffer;
use crate::settings::SharedMemory;

/// Longer than any test takes.
const LONG: Duration = Duration::from_secs(3600);

fn calls(driver: &mut SocketsDriver, polls: u32) -> u64 {
    let before = driver.counters.syscalls;
    let mut events = Vec::new();
    (0..polls).for_each(|_| driver.poll(&mut events).unwrap());
    assert!(events.is_empty(), "{events:?}");
    driver.counters.syscalls - before
}

#[test]
fn idle_driver_polls_epoll_rarely() {
    let mut driver = SocketsDriver::open(&DriverConfig::default()).unwrap();
    let busy = u64::from(BUSY_POLLS);
    driver.epoll_polled_at += LONG;
    assert_eq!(calls(&mut driver, BUSY_POLLS + 1000), busy);
    driver.epoll_polled_at = Instant::now() - EPOLL_EVERY;
    assert!(calls(&mut driver, 1) == 1 && driver.epoll_polled_at.elapsed() < LONG);
    // A sleep by the descriptor made no epoll call.
    driver.epoll_polled_at += LONG;
    driver.arm(Duration::ZERO).unwrap();
    assert_eq!(calls(&mut driver, BUSY_POLLS + 1000), busy);
}

#[test]
fn idle_driver_sees_an_event_and_polls_often_again() {
    let mut driver = SocketsDriver::open(&DriverConfig::default()).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    listener.set_nonblocking(true).unwrap();
    driver.listen(listener).unwrap();
    calls(&mut driver, BUSY_POLLS);
    // The kernel has completed the connection when this returns.
    let _stream = TcpStream::connect(address).unwrap();
    std::thread::sleep(EPOLL_EVERY);
    let mut events = Vec::new();
    driver.poll(&mut events).unwrap();
    assert!(matches!(events[..], [DriverEvent::Accepted { .. }]), "{events:?}");
    assert!(driver.idle_polls < BUSY_POLLS);
}

/// Polls once, when this time has passed since the last call.
fn calls_after(driver: &mut SocketsDriver, since: Duration) -> u64 {
    driver.epoll_polled_at = Instant::now() - since;
    calls(driver, 1)
}

#[test]
fn interval_of_epoll_calls_does_not_double_without_rings() {
    let mut driver = SocketsDriver::open(&DriverConfig::default()).unwrap();
    calls(&mut driver, BUSY_POLLS);
    for _ in 0..=EPOLL_DOUBLINGS_MAX + 1 {
        assert_eq!((calls_after(&mut driver, EPOLL_EVERY), driver.epoll_doublings), (1, 0));
    }
    // The last ring has ended.
    driver.epoll_doublings = EPOLL_DOUBLINGS_MAX;
    let longest = EPOLL_EVERY * (1 << EPOLL_DOUBLINGS_MAX);
    assert_eq!((calls_after(&mut driver, longest), driver.epoll_doublings), (1, 0));
}

#[test]
fn sleep_and_event_end_the_longer_interval() {
    let mut driver = SocketsDriver::open(&DriverConfig::default()).unwrap();
    let busy = u64::from(BUSY_POLLS);
    calls(&mut driver, BUSY_POLLS);
    driver.epoll_doublings = EPOLL_DOUBLINGS_MAX;
    driver.arm(Duration::ZERO).unwrap();
    assert_eq!(driver.epoll_doublings, 0);
    driver.epoll_polled_at = Instant::now() + LONG;
    assert_eq!(calls(&mut driver, BUSY_POLLS + 100), busy);

    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    listener.set_nonblocking(true).unwrap();
    driver.listen(listener).unwrap();
    calls(&mut driver, BUSY_POLLS);
    driver.epoll_doublings = EPOLL_DOUBLINGS_MAX;
    let _stream = TcpStream::connect(address).unwrap();
    driver.epoll_polled_at = Instant::now() - LONG;
    let mut events = Vec::new();
    driver.poll(&mut events).unwrap();
    assert!(matches!(events[..], [DriverEvent::Accepted { .. }]), "{events:?}");
    assert_eq!(driver.epoll_doublings, 0);
}

/// Returns two drivers that share rings.
fn with_rings() -> [SocketsDriver; 2] {
    let engines: [u64; 2] = [rand::random(), rand::random()];
    let config = DriverConfig { shared_memory: SharedMemory::Rings, ..Default::default() };
    let mut both = engines.map(|engine| {
        let mut driver = SocketsDriver::open(&config).unwrap();
        driver.open_datagrams(UdpSocket::bind("127.0.0.1:0").unwrap()).unwrap();
        driver.enable_shared_memory(engine);
        driver
    });
    for (at, driver) in both.iter_mut().enumerate() {
        let (address, key) = (SocketAddr::from(([127, 0, 0, 1], 9)), Zeroizing::new([7; 32]));
        let (engine, is_initiator) = (engines[1 - at], at == 0);
        driver.connect_peer(LocalPeer { session: 5, engine, address, key, is_initiator });
    }
    let (begin, mut events) = (Instant::now(), Vec::new());
    while !both.iter().all(|driver| driver.datagrams.has_rings() && driver.idle_polls >= BUSY_POLLS)
    {
        assert!(begin.elapsed() < Duration::from_secs(20), "{events:?}");
        both.iter_mut().for_each(|driver| driver.poll(&mut events).unwrap());
    }
    both
}

#[test]
fn interval_of_epoll_calls_doubles_up_to_a_limit_with_rings() {
    let [mut driver, mut peer] = with_rings();
    driver.epoll_doublings = 0;
    for doublings in (1..=EPOLL_DOUBLINGS_MAX).chain([EPOLL_DOUBLINGS_MAX; 3]) {
        let every = EPOLL_EVERY * (1 << driver.epoll_doublings);
        assert_eq!((calls_after(&mut driver, every), driver.epoll_doublings), (1, doublings));
    }
    driver.epoll_polled_at = Instant::now() + LONG;
    assert_eq!((calls(&mut driver, 100), driver.epoll_doublings), (0, EPOLL_DOUBLINGS_MAX));
    driver.arm(Duration::ZERO).unwrap();
    assert_eq!(driver.epoll_doublings, 0);
    // The rings end with the peer, which the kernel reports.
    calls(&mut driver, BUSY_POLLS);
    driver.epoll_doublings = EPOLL_DOUBLINGS_MAX;
    assert!(peer.shutdown(Duration::ZERO));
    let (begin, mut events) = (Instant::now(), Vec::new());
    while driver.datagrams.has_rings() {
        assert!(begin.elapsed() < Duration::from_secs(20), "{events:?}");
        driver.epoll_polled_at = Instant::now() - LONG;
        driver.poll(&mut events).unwrap();
    }
    assert_eq!(driver.epoll_doublings, 0, "{events:?}");
}

/// Polls and calls epoll until this holds.
fn poll_until(driver: &mut SocketsDriver, holds: impl Fn(&SocketsDriver, &[DriverEvent]) -> bool) {
    let (begin, mut events) = (Instant::now(), Vec::new());
    while !holds(driver, &events) {
        assert!(begin.elapsed() < Duration::from_secs(20), "{events:?}");
        driver.epoll_polled_at = Instant::now() - LONG;
        driver.poll(&mut events).unwrap();
    }
}

/// Returns a driver that calls epoll rarely, and its lane, which is read without a watch.
fn with_lane() -> (SocketsDriver, LaneKey, TcpStream) {
    let mut driver = SocketsDriver::open(&DriverConfig::default()).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let key = driver.connect(listener.local_addr().unwrap(), 0, None).unwrap();
    let (peer, _) = listener.accept().unwrap();
    poll_until(
        &mut driver,
        |_, events| matches!(events, [DriverEvent::Connected { lane }] if *lane == key),
    );
    be_idle(&mut driver, key);
    (driver, key, peer)
}

/// Reads all that has arrived on a lane, and polls until the driver calls epoll rarely.
fn be_idle(driver: &mut SocketsDriver, key: LaneKey) {
    while driver.recv(key, &mut [0; 64]).is_ok() {}
    assert!(!driver.lanes.get(key).unwrap().ready[READ]);
    calls(driver, BUSY_POLLS);
    assert_eq!(driver.idle_polls, BUSY_POLLS);
}

/// Returns the calls of the next polls, without those of which the time has come.
fn calls_soon(driver: &mut SocketsDriver) -> u64 {
    driver.epoll_polled_at = Instant::now() + LONG;
    calls(driver, BUSY_POLLS + 6)
}

#[test]
fn event_of_a_lane_that_is_read_without_does_not_make_the_next_polls_call_epoll() {
    let (mut driver, key, mut peer) = with_lane();
    for _ in 0..3 {
        peer.write_all(b"unawaited").unwrap();
        poll_until(&mut driver, |it, _| it.lanes.get(key).unwrap().ready[READ]);
        assert_eq!(calls_soon(&mut driver), 0);
        be_idle(&mut driver, key);
    }
    // Nor does the end of the stream.
    drop(peer);
    poll_until(&mut driver, |it, _| it.lanes.get(key).unwrap().ready[READ]);
    assert_eq!(calls_soon(&mut driver), 0);
    assert_eq!(driver.recv(key, &mut [0; 64]).unwrap(), 0);
}

#[test]
fn event_of_a_watched_lane_is_reported_and_makes_the_next_polls_call_epoll() {
    let (mut driver, key, mut peer) = with_lane();
    for _ in 0..3 {
        driver.watch(key, Interest::Readable).unwrap();
        // Watching does so, too.
        assert_eq!(calls_soon(&mut driver), BUSY_POLLS.into());
        peer.write_all(b"awaited").unwrap();
        poll_until(
            &mut driver,
            |_, events| matches!(events, [DriverEvent::Readable { lane }] if *lane == key),
        );
        assert_eq!(calls_soon(&mut driver), BUSY_POLLS.into());
        be_idle(&mut driver, key);
    }
}

/// The watch begins after the event.
#[test]
fn event_that_nothing_awaited_is_reported_to_a_later_watch() {
    let (mut driver, key, mut peer) = with_lane();
    peer.write_all(b"unawaited").unwrap();
    poll_until(&mut driver, |it, _| it.lanes.get(key).unwrap().ready[READ]);
    assert_eq!(calls_soon(&mut driver), 0);
    driver.watch(key, Interest::Readable).unwrap();
    let mut events = Vec::new();
    driver.poll(&mut events).unwrap();
    let is_it = matches!(events[..], [DriverEvent::Readable { lane }] if lane == key);
    assert!(is_it, "{events:?}");
    // Once.
    calls(&mut driver, 3);
}

#[test]
fn event_of_a_lane_with_a_chunk_makes_the_next_polls_call_epoll() {
    let (mut driver, key, mut peer) = with_lane();
    let mut buffer = Buffer::Heap(vec![0; 64]);
    let shape = buffer.shape_for_recv().unwrap();
    // SAFETY: the lane is closed before the buffer is dropped.
    unsafe { driver.recv_chunk(key, &shape, 0, 64) };
    assert_eq!(calls_soon(&mut driver), BUSY_POLLS.into());
    peer.write_all(b"a part of a chunk").unwrap();
    let idle = driver.idle_polls;
    poll_until(&mut driver, |it, _| it.idle_polls < idle);
    driver.close(key, CloseMode::Reset);
}

#[test]
fn unawaited_event_leaves_the_polls_that_another_one_has_begun() {
    let (mut driver, key, mut peer) = with_lane();
    driver.poll_epoll_soon();
    assert_eq!(calls(&mut driver, 10), 10);
    peer.write_all(b"unawaited").unwrap();
    poll_until(&mut driver, |it, _| it.lanes.get(key).unwrap().ready[READ]);
    let left = u64::from(BUSY_POLLS - driver.idle_polls);
    assert!(left > 0 && left <= u64::from(BUSY_POLLS) - 10);
    assert_eq!(calls_soon(&mut driver), left);
}
