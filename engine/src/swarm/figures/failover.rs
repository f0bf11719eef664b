//! What the loss of one of two rails costs.

use super::rails::{gigabits, settle, usual, world_of};
use super::*;
use crate::driver::sim::rails::RailFault;

/// Rail 0 and rail 1 of host 0 are cut by turns, so often.
const CUTS: usize = 8;
const CUT_NS: u64 = 20 * MILLI;
/// From the end of one cut to the next; a path that fails again and again must answer for 16 ms.
const HEALED_NS: u64 = 60 * MILLI;
/// Times that this may pass once more until both rails are in use: of twelve seeds four need 15 to
/// 40, as a rail that is late again after its cut is asked anew ever less often.
const AGAIN_MAX: usize = 60;
/// Bytes of a message of the stream.
const LENGTH: usize = 256 << 10;

/// The longest time without a message between two times.
fn gap_ns(traffic: &Traffic, from_ns: u64, to_ns: u64) -> u64 {
    let come = traffic.come_ns.iter().copied().filter(|time| (from_ns..to_ns).contains(time));
    let mut times: Vec<u64> = come.chain([from_ns, to_ns]).collect();
    times.sort_unstable();
    times.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(0)
}

/// Mb/s of the stream between two times.
fn rate(traffic: &Traffic, from_ns: u64, to_ns: u64) -> u64 {
    let come = traffic.come_ns.iter().filter(|time| (from_ns..to_ns).contains(time)).count();
    (come * LENGTH) as u64 * 8 * 1000 / (to_ns - from_ns)
}

/// A stream over both rails, and short messages that keep one of them from ever being quiet.
///
/// RR-RAIL-4, RR-RAIL-5, RR-RAIL-6
pub(super) fn a_rail_that_is_cut_is_missed_for_a_few_milliseconds() {
    let links = vec![gigabits(2), gigabits(2)];
    let mut world = world_of(&[links.clone(), links], &usual(), 1);
    settle(&mut world, 1);
    let mut all = [Traffic::new(LENGTH, 16, 10_000), Traffic::new(8, 1, 100_000).in_context(2)];
    let run_for = |world: &mut World, all: &mut [Traffic], for_ns: u64| {
        let end_ns = world.now_ns() + for_ns;
        while step(world, all, end_ns) != Step::Limit {}
    };
    run_for(&mut world, &mut all, HEALED_NS);
    let mut gaps = [Vec::new(), Vec::new()];
    for cut in 0..CUTS {
        let cut_ns = world.now_ns();
        let fault = RailFault::Blackhole { outward: true, inward: true };
        world.net.borrow_mut().set_rail_fault(0, cut % 2, Some(fault));
        run_for(&mut world, &mut all, CUT_NS);
        for (gaps, traffic) in gaps.iter_mut().zip(&all) {
            gaps.push(gap_ns(traffic, cut_ns, cut_ns + CUT_NS));
        }
        world.net.borrow_mut().set_rail_fault(0, cut % 2, None);
        run_for(&mut world, &mut all, HEALED_NS);
        let of_both = |world: &World, all: &[Traffic]| {
            rate(&all[0], world.now_ns() - HEALED_NS / 6, world.now_ns())
        };
        let mut both = of_both(&world, &all);
        // One that is late again at first is asked anew, ever less often.
        for _ in 0..AGAIN_MAX {
            if both <= 3_200 {
                run_for(&mut world, &mut all, HEALED_NS);
                both = of_both(&world, &all);
            }
        }
        assert!(both > 3_200, "after cut {cut}: {both} Mb/s by two rails of 2 Gb/s");
    }
    for gaps in &mut gaps {
        gaps.sort_unstable();
        assert!(percentile(gaps, 50) <= 5 * MILLI, "{gaps:?}");
        assert!(gaps[CUTS - 1] <= 10 * MILLI, "{gaps:?}");
    }
}
