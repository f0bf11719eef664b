//! Performance guarantees of a path, in virtual time.

use super::*;

fn bulk_goodput(rtt_ns: u64, loss_ppm: u64, seed: u64) -> u64 {
    let links = lossy(10 * GBIT, rtt_ns, loss_ppm);
    let mut pair = PathPair::new(&config(rtt_ns), links, bulk(), seed);
    goodput(&mut pair, 3 * MILLI, 8 * MILLI)
}

/// RR-PKT-12
#[test]
fn random_loss_costs_little_more_than_the_lost_share() {
    let clean = bulk_goodput(100 * MICRO, 0, 1);
    assert!(clean > 9 * GBIT, "{clean}");
    for (loss_ppm, percent) in [(10_000, 90), (100_000, 50), (300_000, 35)] {
        let lossy = bulk_goodput(100 * MICRO, loss_ppm, 2);
        assert!(lossy * 100 >= clean * percent, "{loss_ppm} ppm: {lossy} of {clean}");
    }
}

#[test]
fn long_path_is_full_within_three_seconds() {
    let links = lossy(GBIT, 100 * MILLI, 0);
    let sender = Sender::new(1 << 20, 64, u32::MAX);
    let mut pair = PathPair::new(&config(100 * MILLI), links, sender, 1);
    let rate = goodput(&mut pair, 2800 * MILLI, 3000 * MILLI);
    assert!(rate > GBIT * 88 / 100, "{rate}");
}

/// Returns the time until one message is complete, where the link drops the given datagrams.
fn one_message(rtt_ns: u64, bytes: u32, dropped: Vec<u64>) -> u64 {
    let mut pair = PathPair::new(&config(rtt_ns), lossy(10 * GBIT, rtt_ns, 0), bulk(), 1);
    // The path has measured its round trip.
    pair.ends[0].sender = Sender::new(bytes, 1, 51);
    pair.answer_with(Sender::new(1, 0, 0));
    pair.ends[1].receiver = traffic::Receiver::new(bytes);
    assert!(pair.run(60 * SECOND, |pair| pair.ends[1].receiver.whole.len() == 50));
    let next = pair.links[0].sent();
    pair.links[0].dropped = dropped.iter().map(|after| next + after).collect();
    assert!(pair.run(60 * SECOND, |pair| pair.ends[1].receiver.whole.len() == 51));
    pair.now_ns() - pair.ends[0].sender.begun_ns[50]
}

#[test]
fn lost_tail_costs_at_most_two_round_trips_and_slack() {
    for rtt_ns in [10 * MICRO, 100 * MICRO, MILLI, 10 * MILLI, 100 * MILLI] {
        for bytes in [64, 16 << 10] {
            let clean = one_message(rtt_ns, bytes, vec![]);
            // The last datagram of the message: the previous one arrived, or there is none.
            let tail = u64::from(bytes) / 1444;
            let lossy = one_message(rtt_ns, bytes, vec![tail]);
            assert!(lossy > clean, "the tail was lost");
            let cost = lossy - clean;
            assert!(cost <= 2 * rtt_ns + 200 * MICRO, "{rtt_ns} {bytes}: {cost}");
        }
    }
}

#[test]
fn long_fat_path_is_used_despite_loss() {
    // 10 Gb/s over 200 ms: 250 MB in flight, with one datagram in a hundred lost.
    let rtt_ns = 200 * MILLI;
    let jumbo = PathConfig { datagram_bytes_max: 8972, ..config(rtt_ns) };
    let sender = Sender::new(16 << 20, 40, u32::MAX);
    let mut pair = PathPair::new(&jumbo, lossy(10 * GBIT, rtt_ns, 10_000), sender, 12);
    let rate = goodput(&mut pair, 5000 * MILLI, 5200 * MILLI);
    assert!(rate > 8 * GBIT, "{rate}");
}

#[test]
fn acknowledgements_are_rare() {
    let rtt_ns = 100 * MICRO;
    let mut pair = PathPair::new(&config(rtt_ns), lossy(10 * GBIT, rtt_ns, 0), bulk(), 13);
    pair.run(10 * MILLI, |_| false);
    let (data, acks) = (pair.links[0].sent(), pair.links[1].sent());
    assert!(acks * 12 < data, "{acks} acknowledgements of {data}");
    assert_eq!(pair.ends[1].path.counters().acks_alone, acks);
}

#[test]
fn memory_does_not_grow_once_warm() {
    let rtt_ns = 100 * MICRO;
    let links = lossy(10 * GBIT, rtt_ns, 10_000);
    let mut pair = PathPair::new(&config(rtt_ns), links, bulk(), 14);
    pair.run(10 * MILLI, |_| false);
    let before = [0, 1].map(|end| pair.ends[end].path.capacities());
    pair.run(20 * MILLI, |_| false);
    assert_eq!([0, 1].map(|end| pair.ends[end].path.capacities()), before);
}
