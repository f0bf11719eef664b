//! Faults one by one, and what each may cost.

use super::*;

#[test]
fn lost_acknowledgements_cost_nothing() {
    let rtt_ns = 100 * MICRO;
    let mut rates = [0; 2];
    for (rate, loss_ppm) in rates.iter_mut().zip([0, 300_000]) {
        let mut links = lossy(10 * GBIT, rtt_ns, 0);
        links[1].loss_ppm = loss_ppm;
        let mut world = World::new(&config(rtt_ns), links, bulk(), 3);
        world.run(3 * MILLI, |_| false);
        let before = world.ends[0].path.statistics();
        *rate = goodput(&mut world, 3 * MILLI, 7 * MILLI);
        let after = world.ends[0].path.statistics();
        assert_eq!((after.lost, after.spurious), (before.lost, before.spurious));
    }
    assert!(rates[1] * 100 >= rates[0] * 95, "{rates:?}");
}

#[test]
fn an_outage_of_one_direction_loses_nothing_and_ends_at_once() {
    for dead in 0..2 {
        let rtt_ns = 100 * MICRO;
        let mut links = lossy(GBIT, rtt_ns, 0);
        links[dead].dead_ns = 20 * MILLI..40 * MILLI;
        let mut world = World::new(&config(rtt_ns), links, bulk(), 4);
        let before = goodput(&mut world, 10 * MILLI, 20 * MILLI);
        world.run(40 * MILLI, |_| false);
        // The back-off has reached 12.8 ms by then.
        let after = goodput(&mut world, 70 * MILLI, 80 * MILLI);
        assert!(after * 100 > before * 90, "{dead}: {before} {after}");
    }
}

#[test]
fn reordering_is_learnt_and_not_taken_for_loss() {
    let rtt_ns = 100 * MICRO;
    let mut links = lossy(10 * GBIT, rtt_ns, 0);
    links[0].jitter_ns = 30 * MICRO;
    let mut world = World::new(&config(rtt_ns), links, bulk(), 5);
    let rate = goodput(&mut world, 5 * MILLI, 10 * MILLI);
    assert!(rate > 8 * GBIT, "{rate}");
    let before = world.ends[0].path.statistics();
    world.run(15 * MILLI, |_| false);
    let after = world.ends[0].path.statistics();
    let (sent, lost) = (after.sent - before.sent, after.lost - before.lost);
    assert!(lost * 100 < sent, "{lost} of {sent} taken for lost");
}

#[test]
fn a_loop_that_sleeps_sends_no_probe_and_loses_nothing() {
    let rtt_ns = 100 * MICRO;
    let links = lossy(GBIT, rtt_ns, 0);
    let mut world = World::new(&config(rtt_ns), links, bulk(), 6);
    world.run(10 * MILLI, |_| false);
    let before = world.ends[0].path.statistics();
    world.ends[0].sleeps = Some((2 * MILLI, 10 * MILLI));
    world.run(110 * MILLI, |_| false);
    let after = world.ends[0].path.statistics();
    assert_eq!(after.probes - before.probes, 0);
    assert_eq!(after.lost - before.lost, 0);
}

/// RR-PKT-10
#[test]
fn a_late_turn_fires_no_timer_before_the_rest_is_received() {
    use crate::proto::packet::path::Path;
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
    assert_eq!(path.statistics().probes, 1);
}

/// RR-PKT-7
#[test]
fn acknowledgements_do_not_wait_for_the_window() {
    // Both ends have more to send than their windows take.
    let rtt_ns = 100 * MICRO;
    let links = lossy(10 * GBIT, rtt_ns, 0);
    let mut world = World::new(&config(rtt_ns), links, bulk(), 7);
    world.answer_with(bulk());
    let rate = goodput(&mut world, 5 * MILLI, 10 * MILLI);
    let back = world.ends[0].receiver.bytes * 8 * SECOND / world.now_ns;
    assert!(rate > 8 * GBIT, "{rate}");
    assert!(back > 7 * GBIT, "{back}");
}

/// RR-PKT-13
#[test]
fn the_mtu_is_found_and_a_black_hole_is_left() {
    let rtt_ns = 100 * MICRO;
    let jumbo = PathConfig { datagram_bytes_max: 8972, ..config(rtt_ns) };
    let mut world = World::new(&jumbo, lossy(GBIT, rtt_ns, 0), bulk(), 8);
    world.run(20 * MILLI, |_| false);
    assert_eq!(world.ends[0].path.content_bytes_max(), 8972 - 8 - 20);
    // A route with 4000 bytes.
    world.links[0].config.bytes_max = 4000;
    let healed = goodput(&mut world, 400 * MILLI, 420 * MILLI);
    assert!(healed > GBIT / 2, "{healed}");
    assert!(world.ends[0].sender.content_bytes_max.unwrap() < 4000);
}

#[test]
fn loss_of_long_datagrams_and_short_ones_alike_leaves_the_mtu() {
    let rtt_ns = 100 * MICRO;
    let mut world = World::new(&config(rtt_ns), lossy(GBIT, rtt_ns, 300_000), bulk(), 9);
    world.run(100 * MILLI, |_| false);
    assert_eq!(world.ends[0].sender.content_bytes_max, Some(1472 - 8 - 20));
}

#[test]
fn a_window_below_one_datagram_still_moves() {
    // 64 kb/s of a link, shared with nobody: one datagram takes 0.19 s, the round trip 100 µs.
    let mut links = lossy(64_000, 100 * MICRO, 0);
    for link in &mut links {
        link.queue_ns = 10 * SECOND;
    }
    let sender = Sender::new(20_000, 1, 4);
    let mut world = World::new(&config(100 * MICRO), links, sender, 10);
    assert!(world.finish(200 * SECOND));
}

#[test]
fn a_short_queue_is_not_taken_for_a_bad_cable() {
    // 20 µs of queue show no delay that counts; what overflows it is lost.
    let rtt_ns = 100 * MICRO;
    let mut links = lossy(10 * GBIT, rtt_ns, 0);
    links[0].queue_ns = 20 * MICRO;
    let mut world = World::new(&config(rtt_ns), links, bulk(), 11);
    let rate = goodput(&mut world, 10 * MILLI, 20 * MILLI);
    let statistics = world.ends[0].path.statistics();
    assert!(rate > 7 * GBIT, "{rate}");
    assert!(statistics.lost * 10 < statistics.sent, "{statistics:?}");
}

#[test]
fn a_dead_path_is_probed_for_days_and_remembers_little() {
    let rtt_ns = 100 * MICRO;
    let sender = Sender::new(1000, 1, u32::MAX);
    let mut world = World::new(&config(rtt_ns), lossy(GBIT, rtt_ns, 0), sender, 12);
    world.run(MILLI, |_| false);
    let before = world.ends[0].path.capacities();
    world.links.iter_mut().for_each(|link| link.config.loss_ppm = 1_000_000);
    world.run(SECOND * 3600, |_| false);
    let probes = world.ends[0].path.statistics().probes;
    assert!(probes > 10_000, "{probes}");
    assert_eq!(world.ends[0].path.capacities()[0], before[0]);
    world.links.iter_mut().for_each(|link| link.config.loss_ppm = 0);
    let rate = goodput(&mut world, 3601 * SECOND, 3602 * SECOND);
    assert!(rate > 50_000_000, "{rate}");
}
