//! What comes through, in bits per second of messages.

use super::*;

/// Messages of 1 MiB at once.
const AT_ONCE: usize = 8;

/// Bits per second of whole messages between `from` and `until` of them.
fn goodput(world: &mut World, traffic: &mut Traffic, from: usize, until: usize) -> u64 {
    let marks = [from, until].map(|mark| {
        traffic.run(world, 600 * SECOND, |it| it.received >= mark);
        (world.now_ns(), traffic.received)
    });
    let [(from_ns, from), (until_ns, until)] = marks;
    (until - from) as u64 * traffic.length as u64 * 8 * SECOND / (until_ns - from_ns)
}

fn bulk_goodput(link: &Link, seed: u64) -> u64 {
    let mut world = link.world(&roomy(), seed);
    let mut traffic = Traffic::new(MIB, AT_ONCE, 28);
    let rate = goodput(&mut world, &mut traffic, 8, 24);
    traffic.run(&mut world, 600 * SECOND, Traffic::is_done);
    assert!(
        world.look(0).unwrap().state.session_paths().of(0).unwrap().are_open(),
        "the path was in use"
    );
    rate
}

pub(super) fn random_loss_costs_little_more_than_what_is_lost() {
    let link = Link::new(10 * GBIT, 100 * MICRO);
    let clean = bulk_goodput(&link, 1);
    // Of 1538 bytes on the wire 1400 are the message's, and there are acknowledgements to wait for.
    assert!(clean > 10 * GBIT * 88 / 100, "{clean}");
    for (loss_ppm, percent) in [(10_000, 90), (100_000, 50), (300_000, 35)] {
        let lossy = bulk_goodput(&link.clone().with_loss(loss_ppm), 2);
        assert!(lossy * 100 >= clean * percent, "{loss_ppm} ppm: {lossy} of {clean}");
    }
}

pub(super) fn a_long_path_is_full_within_three_seconds() {
    let mut world = Link::new(GBIT, 100 * MILLI).world(&roomy(), 1);
    let mut traffic = Traffic::new(MIB, 32, 2000);
    let start_ns = world.now_ns();
    let mut before = 0;
    let mut full_ns = None;
    while world.now_ns() < start_ns + 3 * SECOND && full_ns.is_none() {
        let end_ns = world.now_ns() + 200 * MILLI;
        run_until(&mut world, &mut traffic, end_ns);
        let rate = (traffic.received - before) as u64 * MIB as u64 * 8 * 5;
        before = traffic.received;
        full_ns = (rate > GBIT * 85 / 100).then_some(world.now_ns() - start_ns);
    }
    assert!(full_ns.is_some(), "never full");
}
