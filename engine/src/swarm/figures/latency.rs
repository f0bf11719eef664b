//! What a message waits for, and what it does not.

use std::cell::Cell;
use std::rc::Rc;

use super::*;
use crate::wire::packet::{FLAG_ELICITS, PACKET_TAG_BYTES, Packet};
use crate::wire::segment::SegmentHeader;
use crate::wire::{Eager, frame};
use zerocopy::FromBytes;

/// Which datagrams that want an acknowledgement a host has sent are lost, counted from now.
fn lose(world: &mut World, host: usize, elicits: bool, lost: impl Fn(u64) -> bool + 'static) {
    let count = Cell::new(0);
    let chosen = move |sender: usize, bytes: &[u8]| {
        if sender != host || (bytes[1] & FLAG_ELICITS != 0) != elicits {
            return false;
        }
        let number = count.replace(count.get() + 1);
        lost(number)
    };
    world.net.borrow_mut().drop_matching_datagrams(Some(Box::new(chosen)));
}

/// The longest of some lone messages of a length, each beginning when all before it is long over.
/// `before_each` prepares the network.
fn lone(
    world: &mut World,
    length: usize,
    rtt_ns: u64,
    mut before_each: impl FnMut(&mut World),
) -> u64 {
    let mut longest_ns = 0;
    for _ in 0..5 {
        before_each(world);
        let mut one = Traffic::new(length, 1, 1);
        one.run(world, 60 * SECOND, |it| it.received == 1);
        longest_ns = longest_ns.max(one.times_ns(0)[0]);
        one.run(world, 60 * SECOND, Traffic::is_done);
        world.net.borrow_mut().drop_matching_datagrams(None);
        pass(world, 5 * rtt_ns + MILLI);
    }
    longest_ns
}

pub(super) fn a_lost_tail_costs_at_most_two_round_trips_and_a_little() {
    for rtt_ns in [10 * MICRO, 100 * MICRO, MILLI, 10 * MILLI, 100 * MILLI] {
        // One datagram; and some, the last of which is lost: a request, and 1400 bytes each.
        for (length, tail) in [(8, 0), (16 << 10, 12)] {
            let mut world = Link::new(10 * GBIT, rtt_ns).world(&roomy(), 3);
            let clean_ns = lone(&mut world, length, rtt_ns, |_| {});
            let lost_ns = lone(&mut world, length, rtt_ns, |world| {
                lose(world, 0, true, move |number| number == tail);
            });
            assert!(lost_ns > clean_ns + rtt_ns / 2, "{rtt_ns} {length}: the tail was lost");
            let cost_ns = lost_ns - clean_ns;
            assert!(cost_ns <= recovery_ns(rtt_ns), "{rtt_ns} ns, {length} B: {cost_ns} ns");
        }
    }
}

pub(super) fn a_lost_acknowledgement_delays_no_message() {
    let rtt_ns = 100 * MICRO;
    // Whatever acknowledgement of a stream is lost, the next one repeats it.
    let stream = |lost: Option<u64>| {
        // Long enough for each question how long a datagram may be.
        let link = Link { datagram_bytes: 2048, ..Link::new(10 * GBIT, rtt_ns) };
        let mut world = link.world(&roomy(), 4);
        if let Some(period) = lost {
            lose(&mut world, 1, false, move |number| number % period == 1);
        }
        let mut traffic = Traffic::new(4096, 8, 300);
        let lost = |world: &World| world.look(0).unwrap().state.session_paths().counters().lost;
        let before = lost(&world);
        traffic.run(&mut world, SECOND, Traffic::is_done);
        assert_eq!(lost(&world), before, "nothing is taken for lost");
        (percentile(&traffic.times_ns(0), 50), percentile(&traffic.times_ns(0), 99))
    };
    let clean = stream(None);
    for period in [2, 5, 20] {
        let lossy = stream(Some(period));
        assert!(lossy.0 <= clean.0 + 5 * MICRO, "one in {period}: {lossy:?}, else {clean:?}");
        assert!(lossy.1 <= clean.1 + 5 * MICRO, "one in {period}: {lossy:?}, else {clean:?}");
    }
    // After a lone message nothing follows, and its receiver sees nothing of it; the sender learns
    // that it is delivered when it probes.
    let mut world = Link::new(10 * GBIT, rtt_ns).world(&roomy(), 5);
    let mut times = [0, 0];
    for (time, is_lost) in times.iter_mut().zip([false, true]) {
        if is_lost {
            lose(&mut world, 1, false, |number| number == 0);
        }
        let mut one = Traffic::new(100, 1, 1);
        one.run(&mut world, SECOND, |it| it.received == 1);
        assert!(one.times_ns(0)[0] < rtt_ns, "{:?}", one.times_ns(0));
        one.run(&mut world, SECOND, Traffic::is_done);
        *time = world.now_ns() - one.begun_ns[0];
        pass(&mut world, MILLI);
    }
    assert!(times[1] > times[0] + rtt_ns / 2, "the acknowledgement was lost: {times:?}");
    assert!(times[1] - times[0] <= recovery_ns(rtt_ns), "{times:?}");
}

/// Whether a datagram carries a message of this context.
fn carries(bytes: &[u8], context: u32) -> bool {
    let Ok(packet) = Packet::decode(&bytes[..bytes.len() - PACKET_TAG_BYTES]) else { return false };
    let Ok((_, frames)) = SegmentHeader::ref_from_prefix(packet.payload) else { return false };
    let Ok((eager, _)) = Eager::ref_from_prefix(frames) else { return false };
    eager.kind == frame::KIND_EAGER && eager.context.get() == context
}

pub(super) fn loss_in_one_context_leaves_another_alone() {
    // Lengths of which no two messages share a datagram.
    let run = |one_in: u64| {
        let mut world = Link::new(10 * GBIT, 100 * MICRO).world(&roomy(), 6);
        let lost = Rc::new(Cell::new(0));
        if one_in > 0 {
            let (count, lost) = (Cell::new(0), Rc::clone(&lost));
            let chosen = move |sender: usize, bytes: &[u8]| {
                if sender != 0 || !carries(bytes, 1) {
                    return false;
                }
                count.set(count.get() + 1);
                let is_lost = count.get() % one_in == 0;
                lost.set(lost.get() + u64::from(is_lost));
                is_lost
            };
            world.net.borrow_mut().drop_matching_datagrams(Some(Box::new(chosen)));
        }
        let first = Traffic::new(1000, 4, 600).in_context(1);
        let second = Traffic::new(800, 4, 600).in_context(2);
        let mut all = [first, second];
        run_all(&mut world, &mut all, SECOND, |all| all.iter().all(Traffic::is_done));
        let p99s = all.map(|traffic| percentile(&traffic.times_ns(0), 99));
        (p99s, lost.get())
    };
    let (clean, lost) = run(0);
    assert_eq!(lost, 0);
    for one_in in [100, 10] {
        let (lossy, lost) = run(one_in);
        assert!(lost > 5, "{lost} lost");
        assert!(lossy[0] > clean[0] + 50 * MICRO || one_in == 100, "{lossy:?}, else {clean:?}");
        let difference_ns = lossy[1].abs_diff(clean[1]);
        assert!(difference_ns * 20 <= clean[1], "one in {one_in}: {lossy:?}, else {clean:?}");
    }
}
