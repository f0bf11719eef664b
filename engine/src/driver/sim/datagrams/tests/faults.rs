//! Cuts, death, addresses that change, and who is on the way.

use super::*;

/// Whether a datagram comes from one host to another now.
fn passes(bench: &mut Bench, from: usize, to: usize) -> bool {
    bench.send(from, to, b"hello?");
    bench.pass(DELAY_NS);
    let received = bench.receive_all(to);
    assert!(received.len() <= 1);
    received == [b"hello?"]
}

#[test]
fn a_cut_way_loses_datagrams_and_the_way_back_is_open() {
    let mut bench = Bench::new(1, 3, DatagramWeather::fair());
    bench.send(0, 1, b"under way");
    bench.net.borrow_mut().cut_way(0, 1);
    bench.pass(DELAY_NS);
    assert_eq!(bench.receive(1), None);
    assert!(!passes(&mut bench, 0, 1));
    assert!(passes(&mut bench, 1, 0));
    assert!(passes(&mut bench, 0, 2));
    bench.net.borrow_mut().open_way(0, 1);
    // Nothing is held, unlike in a stream.
    assert!(passes(&mut bench, 0, 1));
    assert_eq!(bench.counts().lost, 2);
}

#[test]
fn a_firewall_stops_datagrams_only() {
    let mut bench = Bench::new(2, 2, DatagramWeather::fair());
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
fn cuts_count() {
    let mut bench = Bench::new(2, 2, DatagramWeather::fair());
    bench.net.borrow_mut().cut_datagrams_way(0, 1);
    bench.net.borrow_mut().cut_datagrams_way(0, 1);
    bench.net.borrow_mut().open_datagrams_way(0, 1);
    assert!(!passes(&mut bench, 0, 1));
    bench.net.borrow_mut().open_datagrams_way(0, 1);
    assert!(passes(&mut bench, 0, 1));
}

#[test]
fn a_host_without_power_is_silent() {
    let datagrams = DatagramWeather { ns_per_kib: 1024, ..DatagramWeather::fair() };
    let mut bench = Bench::new(3, 2, datagrams);
    bench.send(0, 1, &[1; 500]);
    bench.send(0, 1, &[2; 500]);
    bench.pass(600);
    bench.net.borrow_mut().darken(0);
    bench.kill(0);
    bench.pass(MILLISECOND);
    // The second one was still before the link.
    assert_eq!(bench.receive_all(1), [[1; 500]]);
    bench.send(1, 0, b"anybody?");
    bench.pass(MILLISECOND);
    bench.net.borrow_mut().datagram_weather = DatagramWeather::fair();
    bench.net.borrow_mut().light(0);
    bench.start(0);
    assert_eq!(bench.receive(0), None);
    assert!(passes(&mut bench, 1, 0));
}

#[test]
fn a_paused_process_finds_what_its_kernel_kept() {
    let datagrams = DatagramWeather { receive_room_bytes: 20, ..DatagramWeather::fair() };
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
fn nobody_gets_what_is_for_nobody() {
    let mut bench = Bench::new(5, 2, DatagramWeather::fair());
    let nobody = SocketAddr::from(([127, 77, 9, 9], 20_000));
    assert!(bench.queue(0, nobody, b"is there anybody?"));
    bench.flush(0);
    bench.pass(MILLISECOND);
    assert_eq!((bench.counts().sent, bench.counts().lost), (1, 1));
}

#[test]
fn a_successor_gets_what_is_under_way_and_nothing_else() {
    let mut bench = Bench::new(6, 2, DatagramWeather::fair());
    bench.send(0, 1, b"arrived");
    bench.pass(DELAY_NS);
    let back = bench.locator(0);
    bench.queue(1, back, b"never flushed");
    bench.kill(1);
    bench.send(0, 1, b"to the dead");
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
    assert_eq!(bench.counts().unheard, 1);
}

#[test]
fn an_orderly_end_flushes_and_a_kill_does_not() {
    let mut bench = Bench::new(6, 2, DatagramWeather::fair());
    let to = bench.locator(1);
    bench.queue(0, to, b"lost");
    bench.kill(0);
    bench.start(0);
    bench.queue(0, to, b"last words");
    assert!(bench.drivers[0].as_mut().unwrap().shutdown(Duration::ZERO));
    bench.pass(DELAY_NS);
    assert_eq!(bench.receive_all(1), [b"last words"]);
}

/// What is queued for the dead does not grow for ever.
#[test]
fn the_dead_gather_nothing() {
    let mut bench = Bench::new(6, 2, DatagramWeather::fair());
    bench.kill(1);
    for _ in 0..1000 {
        bench.send(0, 1, b"x");
        bench.pass(MICROSECOND);
    }
    assert!(bench.net.borrow().hosts[1].socket.under_way.len() < 10);
}

#[test]
fn an_address_that_changed_reaches_its_host_for_a_while() {
    let datagrams = DatagramWeather { rebind_keeps_ns: MILLISECOND, ..DatagramWeather::fair() };
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
    bench.net.borrow_mut().datagram_weather.rebind_keeps_ns = 0;
    bench.net.borrow_mut().rebind(0);
    assert!(!reaches(&mut bench, new));
    // All old addresses are good in a world made whole.
    bench.net.borrow_mut().heal();
    assert!(reaches(&mut bench, new));
    assert!(reaches(&mut bench, old));
}

#[test]
fn addresses_change_at_random_and_a_successor_has_its_locator() {
    let datagrams = DatagramWeather { rebind_ppm: 100_000, ..DatagramWeather::fair() };
    let mut bench = Bench::new(8, 2, datagrams);
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..1000 {
        bench.send(0, 1, b"where am I?");
        bench.pass(DELAY_NS);
        seen.insert(bench.receive(1).unwrap().0);
    }
    assert!((60..=140).contains(&seen.len()), "{}", seen.len());
    assert_eq!(bench.counts().rebinds, seen.len() as u64 - 1);
    bench.net.borrow_mut().datagram_weather.rebind_ppm = 0;
    bench.kill(0);
    bench.start(0);
    bench.send(0, 1, b"at home");
    bench.pass(DELAY_NS);
    assert_eq!(bench.receive(1), Some((bench.locator(0), b"at home".to_vec())));
    assert!(passes(&mut bench, 1, 0));
}

#[test]
fn who_is_on_the_way_reads_along_and_forges() {
    let mut bench = Bench::new(9, 3, DatagramWeather::fair());
    bench.net.borrow_mut().observe_datagrams(4);
    bench.net.borrow_mut().cut_datagrams_way(0, 1);
    for number in 0u64..6 {
        bench.send(0, 1, &number.to_le_bytes());
    }
    let nobody = SocketAddr::from(([127, 77, 9, 9], 20_000));
    bench.queue(0, nobody, &6u64.to_le_bytes());
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
