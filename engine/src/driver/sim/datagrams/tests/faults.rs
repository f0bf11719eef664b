//! Cuts, killed processes, address changes, and an observer.

use super::*;

/// Whether a datagram gets from one host to another now.
fn passes(bench: &mut Bench, from: usize, to: usize) -> bool {
    bench.send(from, to, b"hello?");
    bench.pass(DELAY_NS);
    let received = bench.receive_all(to);
    assert!(received.len() <= 1);
    received == [b"hello?"]
}

#[test]
fn cut_applies_to_one_direction_only() {
    let mut bench = Bench::new(1, 3, DatagramImpairments::ideal());
    bench.send(0, 1, b"under way");
    bench.net.borrow_mut().cut_way(0, 1);
    bench.pass(DELAY_NS);
    assert_eq!(bench.receive(1), None);
    assert!(!passes(&mut bench, 0, 1));
    assert!(passes(&mut bench, 1, 0));
    assert!(passes(&mut bench, 0, 2));
    bench.net.borrow_mut().open_way(0, 1);
    // Datagrams are not held back, unlike streams.
    assert!(passes(&mut bench, 0, 1));
    assert_eq!(bench.counts().lost, 2);
}

#[test]
fn a_firewall_stops_datagrams_only() {
    let mut bench = Bench::new(2, 2, DatagramImpairments::ideal());
    bench.net.borrow_mut().cut_datagrams_way(0, 1);
    assert!(!passes(&mut bench, 0, 1));
    assert!(passes(&mut bench, 1, 0));
    let to = bench.locator(1);
    bench.drivers[0].as_mut().unwrap().connect(to, 0, None).unwrap();
    bench.pass(MILLISECOND);
    assert!(matches!(bench.poll(0)[..], [DriverEvent::Connected { .. }]));
    bench.net.borrow_mut().open_datagrams_way(0, 1);
    assert!(passes(&mut bench, 0, 1));
    bench.net.borrow_mut().cut_datagrams_way(1, 0);
    assert!(!passes(&mut bench, 1, 0));
    bench.net.borrow_mut().heal();
    assert!(passes(&mut bench, 1, 0));
}

#[test]
fn cuts_nest() {
    let mut bench = Bench::new(2, 2, DatagramImpairments::ideal());
    bench.net.borrow_mut().cut_datagrams_way(0, 1);
    bench.net.borrow_mut().cut_datagrams_way(0, 1);
    bench.net.borrow_mut().open_datagrams_way(0, 1);
    assert!(!passes(&mut bench, 0, 1));
    bench.net.borrow_mut().open_datagrams_way(0, 1);
    assert!(passes(&mut bench, 0, 1));
}

#[test]
fn powered_off_host_sends_nothing() {
    let datagrams = DatagramImpairments { ns_per_kib: 1024, ..DatagramImpairments::ideal() };
    let mut bench = Bench::new(3, 2, datagrams);
    bench.send(0, 1, &[1; 500]);
    bench.send(0, 1, &[2; 500]);
    bench.pass(600);
    bench.net.borrow_mut().power_off(0);
    bench.kill(0);
    bench.pass(MILLISECOND);
    // The second one was still queued for the link.
    assert_eq!(bench.receive_all(1), [[1; 500]]);
    bench.send(1, 0, b"received");
    bench.pass(MILLISECOND);
    bench.net.borrow_mut().datagram_impairments = DatagramImpairments::ideal();
    bench.net.borrow_mut().power_on(0);
    bench.start(0);
    assert_eq!(bench.receive(0), None);
    assert!(passes(&mut bench, 1, 0));
}

#[test]
fn paused_process_finds_buffered_datagrams() {
    let datagrams = DatagramImpairments { receive_room_bytes: 20, ..DatagramImpairments::ideal() };
    let mut bench = Bench::new(4, 2, datagrams);
    bench.watch(1);
    let mut events = Vec::new();
    bench.drivers[1].as_mut().unwrap().park(Duration::from_secs(1), &mut events).unwrap();
    bench.net.borrow_mut().pause(1, MILLISECOND);
    for _ in 0..5 {
        bench.send(0, 1, b"12345678");
    }
    bench.pass(MILLISECOND - 1);
    assert!(bench.net.borrow().is_asleep(1));
    bench.pass(1);
    assert!(!bench.net.borrow().is_asleep(1));
    assert_eq!(bench.receive_all(1).len(), 2);
}

#[test]
fn datagram_to_an_unassigned_address_is_lost() {
    let mut bench = Bench::new(5, 2, DatagramImpairments::ideal());
    let unassigned = SocketAddr::from(([127, 77, 9, 9], 20_000));
    assert!(bench.queue(0, unassigned, b"unassigned"));
    bench.flush(0);
    bench.pass(MILLISECOND);
    assert_eq!((bench.counts().sent, bench.counts().lost), (1, 1));
}

#[test]
fn restarted_process_gets_only_datagrams_in_flight() {
    let mut bench = Bench::new(6, 2, DatagramImpairments::ideal());
    bench.send(0, 1, b"arrived");
    bench.pass(DELAY_NS);
    let back = bench.locator(0);
    bench.queue(1, back, b"never flushed");
    bench.kill(1);
    bench.send(0, 1, b"to the killed one");
    bench.pass(DELAY_NS);
    bench.send(0, 1, b"to the next");
    bench.pass(DELAY_NS / 2);
    bench.start(1);
    assert_eq!(bench.receive(1), None);
    bench.pass(DELAY_NS);
    assert_eq!(bench.receive_all(1), [b"to the next"]);
    bench.flush(1);
    bench.pass(DELAY_NS);
    assert_eq!(bench.receive(0), None);
    assert_eq!(bench.counts().no_receiver, 1);
}

#[test]
fn shutdown_flushes_and_kill_does_not() {
    let mut bench = Bench::new(6, 2, DatagramImpairments::ideal());
    let to = bench.locator(1);
    bench.queue(0, to, b"lost");
    bench.kill(0);
    bench.start(0);
    bench.queue(0, to, b"last words");
    assert!(bench.drivers[0].as_mut().unwrap().shutdown(Duration::ZERO));
    bench.pass(DELAY_NS);
    assert_eq!(bench.receive_all(1), [b"last words"]);
}

/// The queue of a killed process does not grow.
#[test]
fn killed_process_queues_nothing() {
    let mut bench = Bench::new(6, 2, DatagramImpairments::ideal());
    bench.kill(1);
    for _ in 0..1000 {
        bench.send(0, 1, b"x");
        bench.pass(MICROSECOND);
    }
    assert!(bench.net.borrow().hosts[1].socket.under_way.len() < 10);
}

#[test]
fn old_address_reaches_its_host_for_a_while() {
    let datagrams =
        DatagramImpairments { rebind_keeps_ns: MILLISECOND, ..DatagramImpairments::ideal() };
    let mut bench = Bench::new(7, 2, datagrams);
    let old = bench.locator(0);
    bench.net.borrow_mut().rebind(0);
    bench.send(0, 1, b"from elsewhere");
    bench.pass(DELAY_NS);
    let (new, _) = bench.receive(1).unwrap();
    assert_ne!(new, old);
    let reaches = |bench: &mut Bench, address| {
        assert!(bench.queue(1, address, b"back"));
        bench.flush(1);
        bench.pass(DELAY_NS);
        !bench.receive_all(0).is_empty()
    };
    assert!(reaches(&mut bench, new));
    assert!(reaches(&mut bench, old));
    bench.pass(MILLISECOND);
    assert!(reaches(&mut bench, new));
    assert!(!reaches(&mut bench, old));
    bench.net.borrow_mut().datagram_impairments.rebind_keeps_ns = 0;
    bench.net.borrow_mut().rebind(0);
    assert!(!reaches(&mut bench, new));
    // All old addresses are valid in a healed network.
    bench.net.borrow_mut().heal();
    assert!(reaches(&mut bench, new));
    assert!(reaches(&mut bench, old));
}

#[test]
fn random_rebinds_keep_the_locator_for_a_restart() {
    let datagrams = DatagramImpairments { rebind_ppm: 100_000, ..DatagramImpairments::ideal() };
    let mut bench = Bench::new(8, 2, datagrams);
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..1000 {
        bench.send(0, 1, b"where am I?");
        bench.pass(DELAY_NS);
        seen.insert(bench.receive(1).unwrap().0);
    }
    assert!((60..=140).contains(&seen.len()), "{}", seen.len());
    assert_eq!(bench.counts().rebinds, seen.len() as u64 - 1);
    bench.net.borrow_mut().datagram_impairments.rebind_ppm = 0;
    bench.kill(0);
    bench.start(0);
    bench.send(0, 1, b"at home");
    bench.pass(DELAY_NS);
    assert_eq!(bench.receive(1), Some((bench.locator(0), b"at home".to_vec())));
    assert!(passes(&mut bench, 1, 0));
}

#[test]
fn observer_records_and_injects_datagrams() {
    let mut bench = Bench::new(9, 3, DatagramImpairments::ideal());
    bench.net.borrow_mut().observe_datagrams(4);
    bench.net.borrow_mut().cut_datagrams_way(0, 1);
    for number in 0u64..6 {
        bench.send(0, 1, &number.to_le_bytes());
    }
    let unassigned = SocketAddr::from(([127, 77, 9, 9], 20_000));
    bench.queue(0, unassigned, &6u64.to_le_bytes());
    bench.flush(0);
    let from = bench.locator(0);
    {
        let net = bench.net.borrow();
        let mut numbers: Vec<_> =
            net.sightings().iter().map(|it| (number(&it.bytes), it.target)).collect();
        numbers.sort_unstable();
        assert_eq!(numbers, [(3, Some(1)), (4, Some(1)), (5, Some(1)), (6, None)]);
        assert!(net.sightings().iter().all(|it| (it.sender, it.from) == (0, from)));
    }
    let mut net = bench.net.borrow_mut();
    net.inject_datagram(from, 2, b"forged");
    net.inject_datagram(from, 2, &[0; DATAGRAM_BYTES_MAX + 1]);
    drop(net);
    bench.pass(DELAY_NS);
    assert_eq!(bench.receive(2), Some((from, b"forged".to_vec())));
    assert_eq!(bench.receive(2), None);
    bench.net.borrow_mut().observe_datagrams(0);
    bench.send(0, 2, b"unseen");
    assert!(bench.net.borrow().sightings().is_empty());
}
