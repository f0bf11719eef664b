//! Resets of a control lane whose peer does not know another path yet.

use super::*;

/// A peer that has no packet of another path takes a reset as the end of the session.
///
/// RR-RAIL-8
#[test]
fn lane_is_kept_until_the_peer_knows_another_path() {
    for (is_initiator, is_known) in [(true, false), (true, true), (false, false)] {
        let is_kept = is_initiator && !is_known;
        let bench = || {
            let mut bench = Bench::new(2);
            (bench.is_initiator, bench.holds_long) = (is_initiator, true);
            bench.paths.answer(0, bench.now_ns);
            if is_known {
                bench.meet_peer();
            }
            bench
        };
        let mut silent = bench();
        assert_eq!(silent.handle(owed(0)), Decision::Nothing);
        let decision = silent.after(2 * SECOND, owed(2000));
        assert_eq!(decision, if is_kept { Decision::Nothing } else { Decision::DropLane });
        let decision = silent.after(9 * SECOND, owed(11_000));
        assert!(!is_kept || is_lost(&decision, "answered for 11000 ms"), "{decision:?}");

        let mut unfinished = bench();
        unfinished.monitor.note_bytes(true);
        let event = LaneEvent::RestMissing;
        let mut looks = (0..80).map(|_| unfinished.after(100 * MS, event.clone()));
        let is_dropped = looks.any(|decision| decision == Decision::DropLane);
        assert_eq!(is_dropped, !is_kept);
    }
}
