//! Single faults, and their maximum cost.

use super::*;
use crate::proto::packet::path::Path;
use crate::wire::packet::Packet;

#[test]
fn lost_acknowledgements_do_not_reduce_goodput() {
    let rtt_ns = 100 * MICRO;
    let mut rates = [0; 2];
    for (rate, loss_ppm) in rates.iter_mut().zip([0, 300_000]) {
        let mut links = lossy(10 * GBIT, rtt_ns, 0);
        links[1].loss_ppm = loss_ppm;
        let mut pair = PathPair::new(&config(rtt_ns), links, bulk(), 3);
        pair.run(3 * MILLI, |_| false);
        let before = pair.ends[0].path.counters();
        *rate = goodput(&mut pair, 3 * MILLI, 7 * MILLI);
        let after = pair.ends[0].path.counters();
        assert_eq!((after.lost, after.spurious), (before.lost, before.spurious));
    }
    assert!(rates[1] * 100 >= rates[0] * 95, "{rates:?}");
}

#[test]
fn one_way_outage_recovers_at_once_without_loss() {
    for dead in 0..2 {
        let rtt_ns = 100 * MICRO;
        let mut links = lossy(GBIT, rtt_ns, 0);
        links[dead].dead_ns = 20 * MILLI..40 * MILLI;
        let mut pair = PathPair::new(&config(rtt_ns), links, bulk(), 4);
        let before = goodput(&mut pair, 10 * MILLI, 20 * MILLI);
        pair.run(40 * MILLI, |_| false);
        // The back-off has reached 12.8 ms by then.
        let after = goodput(&mut pair, 70 * MILLI, 80 * MILLI);
        assert!(after * 100 > before * 90, "{dead}: {before} {after}");
    }
}

#[test]
fn reordering_is_adapted_to_and_not_declared_loss() {
    let rtt_ns = 100 * MICRO;
    let mut links = lossy(10 * GBIT, rtt_ns, 0);
    links[0].jitter_ns = 30 * MICRO;
    let mut pair = PathPair::new(&config(rtt_ns), links, bulk(), 5);
    let rate = goodput(&mut pair, 5 * MILLI, 10 * MILLI);
    assert!(rate > 8 * GBIT, "{rate}");
    let before = pair.ends[0].path.counters();
    pair.run(15 * MILLI, |_| false);
    let after = pair.ends[0].path.counters();
    let (sent, lost) = (after.sent - before.sent, after.lost - before.lost);
    assert!(lost * 100 < sent, "{lost} of {sent} declared lost");
}

#[test]
fn sleeping_loop_sends_no_probe_and_loses_nothing() {
    let rtt_ns = 100 * MICRO;
    let links = lossy(GBIT, rtt_ns, 0);
    let mut pair = PathPair::new(&config(rtt_ns), links, bulk(), 6);
    pair.run(10 * MILLI, |_| false);
    let before = pair.ends[0].path.counters();
    pair.ends[0].sleeps = Some((2 * MILLI, 10 * MILLI));
    pair.run(110 * MILLI, |_| false);
    let after = pair.ends[0].path.counters();
    assert_eq!(after.probes - before.probes, 0);
    assert_eq!(after.lost - before.lost, 0);
}

/// RR-PKT-10
#[test]
fn late_turn_fires_no_timer_before_it_is_drained() {
    let config = PathConfig { datagram_bytes_max: 1200, ..config(100 * MICRO) };
    let mut path = Path::new(config);
    let mut out = vec![0; 1472];
    let mut sender = Sender::new(100, 1, 1);
    path.poll_transmit(0, &mut sender, &mut out).unwrap();
    let due_ns = path.poll_timeout().unwrap();
    path.start_turn(5 * MILLI);
    path.handle_timeout(due_ns + 5 * MILLI, false);
    assert_eq!(path.poll_timeout(), Some(due_ns), "due at once");
    assert!(path.poll_transmit(due_ns + 5 * MILLI, &mut sender, &mut out).is_none());
    path.handle_timeout(due_ns + 5 * MILLI, true);
    assert!(path.poll_transmit(due_ns + 5 * MILLI, &mut sender, &mut out).is_some());
    assert_eq!(path.counters().probes, 1);
}

/// RR-PKT-7
#[test]
fn acks_are_not_limited_by_the_window() {
    // Both ends have more to send than their windows allow.
    let rtt_ns = 100 * MICRO;
    let links = lossy(10 * GBIT, rtt_ns, 0);
    let mut pair = PathPair::new(&config(rtt_ns), links, bulk(), 7);
    pair.answer_with(bulk());
    let rate = goodput(&mut pair, 5 * MILLI, 10 * MILLI);
    let back = pair.ends[0].receiver.bytes * 8 * SECOND / pair.now_ns();
    assert!(rate > 8 * GBIT, "{rate}");
    assert!(back > 7 * GBIT, "{back}");
}

/// RR-PKT-13
#[test]
fn mtu_is_found_and_reset_on_a_black_hole() {
    let rtt_ns = 100 * MICRO;
    let jumbo = PathConfig { datagram_bytes_max: 8972, ..config(rtt_ns) };
    let mut pair = PathPair::new(&jumbo, lossy(GBIT, rtt_ns, 0), bulk(), 8);
    pair.run(20 * MILLI, |_| false);
    assert_eq!(pair.ends[0].path.payload_bytes_max(), 8972 - 8 - 20);
    // A route with 4000 bytes.
    pair.links[0].config.bytes_max = 4000;
    let healed = goodput(&mut pair, 400 * MILLI, 420 * MILLI);
    assert!(healed > GBIT / 2, "{healed}");
    assert!(pair.ends[0].sender.payload_bytes_max.unwrap() < 4000);
}

#[test]
fn length_independent_loss_keeps_the_mtu() {
    let rtt_ns = 100 * MICRO;
    let mut pair = PathPair::new(&config(rtt_ns), lossy(GBIT, rtt_ns, 300_000), bulk(), 9);
    pair.run(100 * MILLI, |_| false);
    assert_eq!(pair.ends[0].sender.payload_bytes_max, Some(1472 - 8 - 20));
}

#[test]
fn window_below_one_datagram_makes_progress() {
    // 64 kb/s of an otherwise idle link: one datagram takes 0.19 s, the round trip 100 µs.
    let mut links = lossy(64_000, 100 * MICRO, 0);
    for link in &mut links {
        link.queue_ns = 10 * SECOND;
    }
    let sender = Sender::new(20_000, 1, 4);
    let mut pair = PathPair::new(&config(100 * MICRO), links, sender, 10);
    assert!(pair.finish(200 * SECOND));
}

#[test]
fn short_queue_overflow_is_not_usual_loss() {
    // 20 µs of queue show no significant delay; its overflow is lost.
    let rtt_ns = 100 * MICRO;
    let mut links = lossy(10 * GBIT, rtt_ns, 0);
    links[0].queue_ns = 20 * MICRO;
    let mut pair = PathPair::new(&config(rtt_ns), links, bulk(), 11);
    let rate = goodput(&mut pair, 10 * MILLI, 20 * MILLI);
    let statistics = pair.ends[0].path.counters();
    assert!(rate > 7 * GBIT, "{rate}");
    assert!(statistics.lost * 10 < statistics.sent, "{statistics:?}");
}

#[test]
fn dead_path_is_probed_for_days_with_bounded_memory() {
    let rtt_ns = 100 * MICRO;
    let sender = Sender::new(1000, 1, u32::MAX);
    let mut pair = PathPair::new(&config(rtt_ns), lossy(GBIT, rtt_ns, 0), sender, 12);
    pair.run(MILLI, |_| false);
    pair.links.iter_mut().for_each(|link| link.config.loss_ppm = 1_000_000);
    pair.run(SECOND * 3600, |_| false);
    let probes = pair.ends[0].path.counters().probes;
    assert!(probes > 10_000, "{probes}");
    let records = pair.ends[0].path.capacities()[0];
    assert!(records <= 256, "{records}");
    pair.links.iter_mut().for_each(|link| link.config.loss_ppm = 0);
    let rate = goodput(&mut pair, 3601 * SECOND, 3602 * SECOND);
    assert!(rate > 50_000_000, "{rate}");
}

/// Returns a path that answered after each of these times, and the time then.
fn answered(round_trips_ns: &[u64]) -> (Path, u64) {
    let config = PathConfig { datagram_bytes_max: 1200, ..config(100 * MICRO) };
    let (mut near, mut far) = (Path::new(config.clone()), Path::new(config));
    let mut out = vec![0; 1472];
    let mut now_ns = 0;
    for rtt_ns in round_trips_ns {
        let (length, _) = near.poll_transmit(now_ns, &mut Bytes(1), &mut out).unwrap();
        now_ns += rtt_ns;
        far.handle_packet(now_ns, &Packet::decode(&out[..length]).unwrap()).unwrap();
        let (length, _) = far.poll_transmit(now_ns, &mut Bytes(1), &mut out).unwrap();
        near.handle_packet(now_ns, &Packet::decode(&out[..length]).unwrap()).unwrap();
        while near.poll_event().is_some() || far.poll_event().is_some() {}
    }
    (near, now_ns)
}

/// Returns the time until a path without further answers is silent, if a packet is sent every
/// `pause_ns`.
fn time_to_silence(mut path: Path, from_ns: u64, pause_ns: u64) -> u64 {
    let mut out = vec![0; 1472];
    let step_ns = (pause_ns / 8).min(MILLI);
    for turn in 0..1_000_000 {
        let now_ns = from_ns + turn * step_ns;
        path.handle_timeout(now_ns, true);
        let mut payload = Bytes((turn * step_ns).is_multiple_of(pause_ns).into());
        while path.poll_transmit(now_ns, &mut payload, &mut out).is_some() {}
        if path.is_silent() {
            return now_ns - from_ns;
        }
    }
    panic!("never silent: {path:?}");
}

/// RR-PKT-9, RR-PATH-3
#[test]
fn continuous_sending_does_not_hide_a_dead_path() {
    let (path, now_ns) = answered(&[100 * MICRO; 10]);
    let alone_ns = time_to_silence(path, now_ns, 10 * SECOND);
    assert!(alone_ns < 10 * MILLI, "{alone_ns}");
    // More often than a probe timeout, so that each payload would defer the next one.
    let (path, now_ns) = answered(&[100 * MICRO; 10]);
    let ns = time_to_silence(path, now_ns, 80 * MICRO);
    assert!(ns < alone_ns + 4 * MILLI, "{ns} instead of {alone_ns}");
}

/// RR-PATH-3
#[test]
fn suspended_peer_samples_do_not_hide_a_dead_path() {
    let (path, now_ns) = answered(&[5 * SECOND; 10]);
    assert!(path.round_trip_ns() > SECOND);
    let (near, at_ns) = answered(&[100 * MICRO, 100 * MICRO, 5 * SECOND]);
    assert!(near.round_trip_ns() > 500 * MILLI);
    let ns = time_to_silence(near, at_ns, 100 * MILLI);
    assert!(ns < 5 * SECOND, "{ns}");
    // A path that is as long as that is given its time.
    let ns = time_to_silence(path, now_ns, SECOND);
    assert!(ns > 10 * SECOND, "{ns}");
}
