//! How often epoll is asked.

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
fn a_quiet_driver_asks_epoll_now_and_then() {
    let mut driver = SocketsDriver::open(&DriverConfig::default()).unwrap();
    let busy = u64::from(BUSY_POLLS);
    driver.looked_at += LONG;
    assert_eq!(calls(&mut driver, BUSY_POLLS + 1000), busy);
    driver.looked_at = Instant::now() - LOOK_EVERY;
    assert!(calls(&mut driver, 1) == 1 && driver.looked_at.elapsed() < LONG);
    // Whoever sleeps by its descriptor has not asked anybody.
    driver.looked_at += LONG;
    driver.arm(Duration::ZERO).unwrap();
    assert_eq!(calls(&mut driver, BUSY_POLLS + 1000), busy);
}

#[test]
fn news_is_heard_by_a_quiet_driver_and_ends_the_quiet() {
    let mut driver = SocketsDriver::open(&DriverConfig::default()).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    listener.set_nonblocking(true).unwrap();
    driver.listen(listener).unwrap();
    calls(&mut driver, BUSY_POLLS);
    // The kernel of this host has accepted it when this returns.
    let _stream = std::net::TcpStream::connect(address).unwrap();
    std::thread::sleep(LOOK_EVERY);
    let mut events = Vec::new();
    driver.poll(&mut events).unwrap();
    assert!(matches!(events[..], [DriverEvent::Accepted { .. }]), "{events:?}");
    assert!(driver.quiet_polls < BUSY_POLLS);
}
