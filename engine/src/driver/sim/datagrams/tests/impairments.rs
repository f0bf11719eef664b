//! Impairments of datagrams in flight.

use super::super::FRAMING_BYTES;
use super::*;

/// Sends `count` numbered datagrams one by one, and returns those that arrive.
fn stream(bench: &mut Bench, count: u64, length: usize) -> Vec<Vec<u8>> {
    let mut received = Vec::new();
    for number in 0..count {
        let mut bytes = vec![0x5a; length];
        bytes[..8].copy_from_slice(&number.to_le_bytes());
        bench.send(0, 1, &bytes);
        bench.pass(MICROSECOND);
        received.extend(bench.receive_all(1));
    }
    bench.pass(100 * MILLISECOND);
    received.extend(bench.receive_all(1));
    received
}

/// Asserts that `hits` of `all` is about `ppm` per million: within five standard deviations.
fn assert_rate(hits: usize, all: u64, ppm: u64) {
    let expected = (all * ppm) as f64 / 1e6;
    let away = (hits as f64 - expected).abs();
    assert!(away <= 5.0 * expected.sqrt(), "{hits} of {all}, expected {expected}");
}

#[test]
fn ideal_network_delivers_once_in_order_and_in_time() {
    let mut bench = Bench::new(1, 2, DatagramImpairments::ideal());
    bench.send(0, 1, b"first");
    bench.send(0, 1, b"");
    bench.send(0, 1, &[7; DATAGRAM_BYTES_MAX]);
    bench.pass(DELAY_NS - 1);
    assert_eq!(bench.receive(1), None);
    bench.pass(1);
    let from = bench.locator(0);
    assert_eq!(bench.receive(1), Some((from, b"first".to_vec())));
    assert_eq!(bench.receive(1), Some((from, Vec::new())));
    assert_eq!(bench.receive(1), Some((from, vec![7; DATAGRAM_BYTES_MAX])));
    assert_eq!(bench.receive(1), None);
    assert_eq!(bench.receive(0), None);
}

#[test]
fn a_host_reaches_itself() {
    let mut bench = Bench::new(1, 1, DatagramImpairments::ideal());
    bench.send(0, 0, b"to myself");
    bench.pass(DELAY_NS);
    assert_eq!(bench.receive_all(0), [b"to myself"]);
}

#[test]
fn jitter_keeps_the_order() {
    let mut bench = Bench::new(2, 2, DatagramImpairments::ideal());
    bench.net.borrow_mut().impairments.jitter_ns = 50 * MICROSECOND;
    let received = stream(&mut bench, 1000, 8);
    let numbers: Vec<u64> = received.iter().map(|bytes| number(bytes)).collect();
    assert_eq!(numbers, (0..1000).collect::<Vec<u64>>());
}

#[test]
fn loss_rate_is_met() {
    let datagrams = DatagramImpairments { loss_ppm: 2_500, ..DatagramImpairments::ideal() };
    let mut bench = Bench::new(3, 2, datagrams);
    let received = stream(&mut bench, 40_000, 8);
    let lost = 40_000 - received.len();
    assert_rate(lost, 40_000, 2_500);
    assert_eq!(bench.counts().lost, lost as u64);
}

#[test]
fn duplication_rate_is_met() {
    let datagrams = DatagramImpairments { duplicate_ppm: 30_000, ..DatagramImpairments::ideal() };
    let mut bench = Bench::new(4, 2, datagrams);
    let mut numbers: Vec<u64> = stream(&mut bench, 20_000, 8).iter().map(|b| number(b)).collect();
    assert_rate(numbers.len() - 20_000, 20_000, 30_000);
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), 20_000);
}

#[test]
fn reordering_rate_is_met() {
    let datagrams = DatagramImpairments {
        late_ppm: 10_000,
        late_ns: 50 * MICROSECOND,
        ..DatagramImpairments::ideal()
    };
    let mut bench = Bench::new(5, 2, datagrams);
    let numbers: Vec<u64> = stream(&mut bench, 20_000, 8).iter().map(|b| number(b)).collect();
    assert_eq!(numbers.len(), 20_000);
    let mut greatest = 0;
    let mut overtaken = 0;
    for number in numbers {
        overtaken += usize::from(number < greatest);
        greatest = greatest.max(number);
    }
    // Nearly all late ones are overtaken: one is sent each microsecond.
    assert!((120..=260).contains(&overtaken), "{overtaken}");
}

#[test]
fn flipped_datagram_differs_in_one_bit() {
    let datagrams = DatagramImpairments { flip_ppm: 50_000, ..DatagramImpairments::ideal() };
    let mut bench = Bench::new(6, 2, datagrams);
    let received = stream(&mut bench, 10_000, 64);
    assert_eq!(received.len(), 10_000);
    let mut flipped = 0;
    for (sent, bytes) in (0u64..).zip(&received) {
        assert_eq!(bytes.len(), 64);
        let in_number = (number(bytes) ^ sent).count_ones();
        let elsewhere: u32 = bytes[8..].iter().map(|byte| (byte ^ 0x5a).count_ones()).sum();
        assert!(in_number + elsewhere <= 1);
        flipped += (in_number + elsewhere) as usize;
    }
    assert_rate(flipped, 10_000, 50_000);
}

#[test]
fn truncation_rate_is_met() {
    let datagrams = DatagramImpairments { truncate_ppm: 50_000, ..DatagramImpairments::ideal() };
    let mut bench = Bench::new(7, 2, datagrams);
    let received = stream(&mut bench, 10_000, 64);
    assert_eq!(received.len(), 10_000);
    let short = received.iter().filter(|bytes| bytes.len() < 64);
    assert_rate(short.count(), 10_000, 50_000);
    for bytes in &received {
        assert!(bytes.iter().skip(8).all(|&byte| byte == 0x5a));
    }
}

#[test]
fn link_rate_and_queue_limit_apply() {
    // One nanosecond per byte.
    let datagrams = DatagramImpairments { ns_per_kib: 1024, ..DatagramImpairments::ideal() };
    let mut bench = Bench::new(8, 3, datagrams);
    let each = 1000 + FRAMING_BYTES;
    for _ in 0..50 {
        bench.send(0, 1, &[1; 1000]);
        bench.send(0, 2, &[2; 1000]);
    }
    // Both destinations share the link of the sender.
    bench.pass(DELAY_NS + 50 * each - 1);
    assert_eq!(bench.receive_all(1).len() + bench.receive_all(2).len(), 49);
    bench.pass(50 * each);
    assert_eq!(bench.receive_all(1).len() + bench.receive_all(2).len(), 50);
    bench.pass(1);
    assert_eq!(bench.receive_all(1).len() + bench.receive_all(2).len(), 1);

    bench.net.borrow_mut().datagram_impairments.queue_bytes = 10 * each;
    for _ in 0..25 {
        bench.send(0, 1, &[1; 1000]);
    }
    assert_eq!(bench.counts().queue_drops, 15);
    bench.pass(DELAY_NS + 10 * each);
    assert_eq!(bench.receive_all(1).len(), 10);
    // A datagram longer than the queue is sent by an idle link.
    bench.net.borrow_mut().datagram_impairments.queue_bytes = 10;
    bench.send(0, 1, &[1; 1000]);
    bench.send(0, 1, &[1; 1000]);
    bench.pass(MILLISECOND);
    assert_eq!(bench.receive_all(1).len(), 1);
}

#[test]
fn datagrams_above_the_mtu_are_dropped() {
    let datagrams = DatagramImpairments { bytes_max: 1200, ..DatagramImpairments::ideal() };
    let mut bench = Bench::new(9, 2, datagrams);
    bench.send(0, 1, &[1; 1200]);
    bench.send(0, 1, &[1; 1201]);
    bench.pass(DELAY_NS);
    assert_eq!(bench.receive_all(1), [[1; 1200]]);
}

fn everything() -> DatagramImpairments {
    DatagramImpairments {
        ns_per_kib: 500,
        queue_bytes: 100_000,
        send_room_bytes: 20_000,
        receive_room_bytes: 20_000,
        bytes_max: 1500,
        loss_ppm: 20_000,
        duplicate_ppm: 20_000,
        late_ppm: 20_000,
        late_ns: 100_000,
        flip_ppm: 20_000,
        truncate_ppm: 20_000,
        rebind_ppm: 1_000,
        rebind_keeps_ns: 1_000_000,
        unsupported_one_in: 0,
    }
}

#[test]
fn same_seed_gives_the_same_run() {
    let run = |seed| {
        let mut bench = Bench::new(seed, 2, everything());
        let received = stream(&mut bench, 3000, 300);
        let hash = bench.net.borrow().trace_hash();
        (hash, received, bench.counts())
    };
    assert_eq!(run(10), run(10));
    assert_ne!(run(10).0, run(11).0);
}

#[test]
fn no_random_number_is_drawn_without_datagrams() {
    let next = |datagrams: DatagramImpairments| {
        let mut bench = Bench::new(12, 2, datagrams);
        bench.watch(0);
        bench.park(0, MILLISECOND);
        bench.flush(0);
        bench.net.borrow_mut().cut_way(0, 1);
        bench.net.borrow_mut().heal();
        bench.kill(1);
        let mut net = bench.net.borrow_mut();
        let of_hosts = [0, 1].map(|host| net.hosts[host].random.datagrams.next());
        (net.random.next(), of_hosts, net.trace_hash())
    };
    assert_eq!(next(DatagramImpairments::ideal()), next(everything()));
}

#[test]
fn wire_hash_ignores_time_and_impairments() {
    let hash = |pause_ns, impairments: DatagramImpairments, datagrams: &[&[u8]]| {
        let mut bench = Bench::new(3, 2, impairments);
        for datagram in datagrams {
            bench.pass(pause_ns);
            bench.send(0, 1, datagram);
            let from = bench.locator(0);
            bench.net.borrow_mut().inject_datagram(from, 1, &[pause_ns as u8; 60]);
        }
        bench.pass(MILLISECOND);
        bench.net.borrow().wire_hash()
    };
    let (one, other) = ([1; 40], [2; 50]);
    let plain = hash(0, DatagramImpairments::ideal(), &[&one, &other]);
    assert_eq!(plain, hash(7, DatagramImpairments::ideal(), &[&one, &other]));
    assert_eq!(plain, hash(MICROSECOND, everything(), &[&one, &other]));
    assert_ne!(plain, hash(0, DatagramImpairments::ideal(), &[&other, &one]));
    assert_ne!(plain, hash(0, DatagramImpairments::ideal(), &[&one, &[3; 50]]));
}
