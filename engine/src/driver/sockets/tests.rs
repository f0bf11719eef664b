//! How often epoll is called.

use super::*;

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
    // A sleep by its descriptor does not count as a call of `epoll_wait`.
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
    let _stream = std::net::TcpStream::connect(address).unwrap();
    std::thread::sleep(EPOLL_EVERY);
    let mut events = Vec::new();
    driver.poll(&mut events).unwrap();
    assert!(matches!(events[..], [DriverEvent::Accepted { .. }]), "{events:?}");
    assert!(driver.idle_polls < BUSY_POLLS);
}
