//! Full queues, events, and sleep.

use super::super::FRAMING_BYTES;
use super::super::socket::QUEUED_MAX;
use super::*;

fn is_readable(events: &[DriverEvent]) -> bool {
    matches!(events, [DriverEvent::DatagramsReadable])
}

#[test]
fn unflushed_datagrams_stay_queued() {
    let mut bench = Bench::new(1, 2, DatagramImpairments::ideal());
    let to = bench.locator(1);
    assert!(bench.queue(0, to, b"later"));
    bench.pass(MILLISECOND);
    assert_eq!(bench.receive(1), None);
    bench.flush(0);
    bench.pass(DELAY_NS);
    assert_eq!(bench.receive_all(1), [b"later"]);
}

#[test]
fn room_request_flushes_the_queue() {
    let mut bench = Bench::new(1, 2, DatagramImpairments::ideal());
    let to = bench.locator(1);
    for _ in 0..=QUEUED_MAX {
        assert!(bench.queue(0, to, b"one of many"));
    }
    bench.pass(DELAY_NS);
    assert_eq!(bench.receive_all(1).len(), QUEUED_MAX);
}

#[test]
fn unused_room_is_given_again() {
    let mut bench = Bench::new(1, 2, DatagramImpairments::ideal());
    let to = bench.locator(1);
    let driver = bench.drivers[0].as_mut().unwrap();
    driver.datagram_room().unwrap()[..4].copy_from_slice(b"old.");
    driver.datagram_room().unwrap()[..3].copy_from_slice(b"new");
    driver.send_datagram(to, 0, 3, crate::driver::traits::TxFlags::PLAIN);
    driver.flush_datagrams();
    bench.pass(DELAY_NS);
    assert_eq!(bench.receive_all(1), [b"new"]);
}

#[test]
fn send_without_room_is_a_violation() {
    let mut bench = Bench::new(1, 2, DatagramImpairments::ideal());
    let to = bench.locator(1);
    bench.drivers[0].as_mut().unwrap().send_datagram(
        to,
        0,
        3,
        crate::driver::traits::TxFlags::PLAIN,
    );
    assert!(bench.net.borrow_mut().take_violation().is_some());
}

/// The kernel takes 3 datagrams, the driver `QUEUED_MAX`; the link needs a nanosecond per byte.
#[test]
fn full_queue_would_block_and_is_writable_once() {
    let each = 1000 + FRAMING_BYTES;
    let datagrams = DatagramImpairments {
        ns_per_kib: 1024,
        send_room_bytes: 2 * each + 1,
        ..DatagramImpairments::ideal()
    };
    let mut bench = Bench::new(2, 2, datagrams);
    let to = bench.locator(1);
    let mut sent = 0;
    while bench.queue(0, to, &[9; 1000]) {
        sent += 1;
    }
    assert_eq!(sent, 3 + QUEUED_MAX);
    assert!(!bench.queue(0, to, &[9; 1000]));
    assert!(bench.poll(0).is_empty());
    // The sleep lasts until the kernel takes one more.
    let (slept_ns, events) = bench.park(0, MILLISECOND);
    assert_eq!(slept_ns, each);
    assert!(matches!(events[..], [DriverEvent::DatagramsWritable]), "{events:?}");
    assert!(bench.queue(0, to, &[9; 1000]));
    assert!(!bench.queue(0, to, &[9; 1000]));
    let (slept_ns, events) = bench.park(0, MILLISECOND);
    assert_eq!((slept_ns, events.len()), (each, 1));
    // The rest is sent without further calls, and no unrequested event is reported.
    bench.pass(DELAY_NS + 30 * each);
    assert!(bench.poll(0).is_empty());
    assert_eq!(bench.receive_all(1).len(), sent + 1);
    assert_eq!(bench.counts().queue_drops, 0);
}

#[test]
fn datagram_beyond_the_receive_buffer_is_lost() {
    let datagrams =
        DatagramImpairments { receive_room_bytes: 1000, ..DatagramImpairments::ideal() };
    let mut bench = Bench::new(3, 2, datagrams);
    for number in 0u64..10 {
        let mut bytes = [0; 300];
        bytes[..8].copy_from_slice(&number.to_le_bytes());
        bench.send(0, 1, &bytes);
        bench.pass(MICROSECOND);
    }
    bench.pass(DELAY_NS);
    let numbers: Vec<u64> = bench.receive_all(1).iter().map(|bytes| number(bytes)).collect();
    assert_eq!(numbers, [0, 1, 2]);
    assert_eq!(bench.counts().receive_drops, 7);
    bench.send(0, 1, &[1; 900]);
    bench.pass(DELAY_NS);
    assert_eq!(bench.receive_all(1).len(), 1);
}

#[test]
fn watch_reports_once() {
    let mut bench = Bench::new(4, 2, DatagramImpairments::ideal());
    bench.watch(1);
    bench.watch(1);
    bench.send(0, 1, b"one");
    bench.send(0, 1, b"two");
    assert!(bench.poll(1).is_empty());
    bench.pass(DELAY_NS);
    assert!(is_readable(&bench.poll(1)));
    assert!(bench.poll(1).is_empty());
    // Present datagrams count.
    bench.watch(1);
    assert!(is_readable(&bench.poll(1)));
    assert_eq!(bench.receive_all(1).len(), 2);
    bench.watch(1);
    assert!(bench.poll(1).is_empty());
}

#[test]
fn received_datagram_causes_no_event() {
    let mut bench = Bench::new(4, 2, DatagramImpairments::ideal());
    bench.watch(1);
    bench.send(0, 1, b"one");
    bench.pass(DELAY_NS);
    assert_eq!(bench.receive_all(1).len(), 1);
    assert!(bench.poll(1).is_empty());
    // The watch is still set.
    bench.send(0, 1, b"two");
    bench.pass(DELAY_NS);
    assert!(is_readable(&bench.poll(1)));
}

#[test]
fn datagram_wakes_a_sleeping_watcher() {
    let mut bench = Bench::new(5, 2, DatagramImpairments::ideal());
    // Sent before the sleep.
    bench.send(0, 1, b"one");
    bench.watch(1);
    let (slept_ns, events) = bench.park(1, MILLISECOND);
    assert_eq!(slept_ns, DELAY_NS);
    assert!(is_readable(&events));
    // One that is present: no sleep at all.
    bench.watch(1);
    let (slept_ns, events) = bench.park(1, MILLISECOND);
    assert_eq!((slept_ns, is_readable(&events)), (0, true));
    bench.receive_all(1);
    // Without a watch the sleep lasts.
    bench.send(0, 1, b"two");
    let (slept_ns, events) = bench.park(1, MILLISECOND);
    assert_eq!((slept_ns, events.len()), (MILLISECOND, 0));
}

#[test]
fn datagram_sent_during_the_sleep_wakes() {
    let mut bench = Bench::new(5, 3, DatagramImpairments::ideal());
    bench.watch(1);
    let mut events = Vec::new();
    bench.drivers[1].as_mut().unwrap().park(Duration::from_secs(1), &mut events).unwrap();
    bench.pass(7 * MICROSECOND);
    bench.send(2, 1, b"late, but fast");
    bench.pass(DELAY_NS - 1);
    assert!(bench.net.borrow().is_asleep(1));
    bench.pass(1);
    assert!(!bench.net.borrow().is_asleep(1));
    assert!(is_readable(&bench.poll(1)));
}

#[test]
fn events_may_be_late() {
    let mut bench = Bench::new(6, 2, DatagramImpairments::ideal());
    bench.net.borrow_mut().impairments.late_ns = 100 * MICROSECOND;
    let mut latest_ns = 0;
    for _ in 0..50 {
        bench.watch(1);
        bench.send(0, 1, b"x");
        let (slept_ns, events) = bench.park(1, MILLISECOND);
        assert!(is_readable(&events));
        assert!((DELAY_NS..DELAY_NS + 100 * MICROSECOND).contains(&slept_ns));
        latest_ns = latest_ns.max(slept_ns);
        bench.receive_all(1);
    }
    assert!(latest_ns > DELAY_NS + 50 * MICROSECOND);
}

#[test]
fn missing_datagram_support_is_reported() {
    let datagrams = DatagramImpairments { unsupported_one_in: 1, ..DatagramImpairments::ideal() };
    let mut bench = Bench::new(7, 2, DatagramImpairments::ideal());
    bench.kill(1);
    bench.net.borrow_mut().datagram_impairments = datagrams;
    let mut driver = SimDriver::new(&bench.net, 1);
    let unsupported = ErrorKind::Unsupported;
    assert_eq!(driver.open_datagrams(socket()).unwrap_err().kind(), unsupported);
    assert_eq!(driver.datagram_room().unwrap_err().kind(), unsupported);
    assert_eq!(driver.watch_datagrams().unwrap_err().kind(), unsupported);
    bench.send(0, 1, b"no watch");
    bench.pass(DELAY_NS);
    assert!(driver.recv_datagram().unwrap().is_none());
    drop(driver);
    assert_eq!(bench.counts().no_receiver, 1);
}

#[test]
fn steady_state_does_not_allocate() {
    let mut bench = Bench::new(8, 2, DatagramImpairments::ideal());
    let to = bench.locator(1);
    let turn = |bench: &mut Bench| {
        for _ in 0..10 {
            bench.queue(0, to, &[3; 700]);
        }
        bench.flush(0);
        bench.pass(DELAY_NS);
        let driver = bench.drivers[1].as_mut().unwrap();
        for _ in 0..10 {
            assert!(driver.recv_datagram().unwrap().is_some());
        }
        assert!(driver.recv_datagram().unwrap().is_none());
    };
    turn(&mut bench);
    let before = crate::counting::allocations();
    for _ in 0..100 {
        turn(&mut bench);
    }
    assert_eq!(crate::counting::allocations(), before);
}
