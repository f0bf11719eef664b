//! Health evaluations of packet statistics, in the order in which paths produce them.

use super::*;

const MS: u64 = 1_000_000;

fn evidence(probes: u32, probed_ns: u64, answered: Option<u64>) -> Evidence {
    Evidence {
        probes,
        probed_ns,
        answered_sent_ns: answered,
        unanswered_since_ns: probed_ns,
        round_trip_max_ns: 100_000,
        arrived: 0,
        bulk_ns: 0,
        is_stalled: false,
    }
}

fn active() -> RailHealth {
    let mut health = RailHealth::new(0);
    let up = health.observe(MS, &evidence(0, 0, Some(1)), None, false).unwrap();
    assert_eq!((up.from, up.to), (PathPhase::Probing, PathPhase::Active));
    assert!(!health.has_never_answered() && RailHealth::new(0).has_never_answered());
    health
}

fn reference(sent_ns: u64, came_ns: u64) -> Option<ReferenceAck> {
    Some(ReferenceAck { sent_ns, came_ns })
}

/// RR-RAIL-4
#[test]
fn path_is_suspect_once_another_answers_a_later_packet() {
    let mut health = active();
    let owes = evidence(1, 10 * MS, Some(1));
    for harmless in [None, reference(9 * MS, 11 * MS), reference(11 * MS, 12 * MS)] {
        assert_eq!(health.observe(12 * MS + 100_000, &owes, harmless, false), None, "{harmless:?}");
    }
    let quiet = evidence(0, 10 * MS, Some(1));
    assert_eq!(health.observe(20 * MS, &quiet, reference(11 * MS, 12 * MS), false), None);
    let down = health.observe(13 * MS, &owes, reference(11 * MS, 12 * MS), false).unwrap();
    assert_eq!((down.to, down.cause), (PathPhase::Suspect, PathCause::OthersAnswer));
    let down = health.observe(14 * MS, &evidence(3, 10 * MS, Some(1)), None, false).unwrap();
    assert_eq!((down.to, down.cause), (PathPhase::Down, PathCause::ProbesLost));
}

/// RR-RAIL-4
#[test]
fn busy_path_is_a_reference_from_its_first_answer_on() {
    let at = |us: u64| 10 * MS + us * 1000;
    let mut health = active();
    let owes = evidence(1, at(0), Some(1));
    for us in (0..500).step_by(50) {
        let fresh = reference(at(us), at(us + 100));
        assert_eq!(health.observe(at(us + 100), &owes, fresh, false), None, "{us}");
    }
    let fresh = reference(at(500), at(600));
    assert_eq!(health.observe(at(600), &owes, fresh, false).unwrap().to, PathPhase::Suspect);
    // An answer in between restarts that.
    let mut health = active();
    assert_eq!(health.observe(at(100), &owes, reference(at(0), at(100)), false), None);
    let owes_more = evidence(1, at(200), Some(at(0)));
    assert_eq!(health.observe(at(650), &owes_more, reference(at(200), at(300)), false), None);
    let late = health.observe(at(800), &owes_more, reference(at(700), at(800)), false).unwrap();
    assert_eq!(late.to, PathPhase::Suspect);
}

/// RR-RAIL-4
#[test]
fn bulk_data_affects_health() {
    let at = |us: u64| 10 * MS + us * 1000;
    let owes = evidence(1, at(0), Some(1));
    let mut health = active();
    let moving = Evidence { bulk_ns: at(1), ..owes };
    assert_eq!(health.observe(at(900), &moving, reference(at(1), at(2)), false), None);
    assert_eq!(health.observe(at(950), &owes, reference(at(1), at(600)), false), None);
    assert!(health.observe(at(1100), &owes, reference(at(1), at(600)), false).is_some());
    // The learned grace period does not apply where chunks are overdue, too.
    let mut health = active();
    health.learn_lateness(at(0), &owes);
    assert_eq!(health.observe(at(500), &owes, reference(at(0), at(0)), false), None);
    let stalled = Evidence { is_stalled: true, ..owes };
    let suspect = health.observe(at(500), &stalled, reference(at(0), at(0)), false).unwrap();
    assert_eq!(suspect.to, PathPhase::Suspect);
}

/// RR-RAIL-5
#[test]
fn path_reported_by_the_peer_is_suspect_if_another_is_active() {
    let mut health = active();
    let (quiet, other) = (evidence(0, 0, Some(1)), reference(9 * MS, 9 * MS));
    health.suspect();
    assert_eq!(health.observe(10 * MS, &quiet, None, false), None);
    assert_eq!(health.observe(10 * MS, &quiet, other, false), None, "already evaluated");
    health.suspect();
    let doubted = health.observe(10 * MS, &quiet, other, false).unwrap();
    assert_eq!((doubted.to, doubted.cause), (PathPhase::Suspect, PathCause::PeerDoubts));
    // Earlier data is no evidence of the current state.
    let old = evidence(0, 0, Some(9 * MS));
    let back = health.observe(11 * MS, &old, other, false).unwrap();
    assert_eq!((back.to, back.cause), (PathPhase::Probing, PathCause::Answered));
}

/// RR-RAIL-4, RR-RAIL-6
#[test]
fn late_answers_raise_the_grace_period() {
    let mut health = active();
    let (mut sent_ns, mut graces) = (10 * MS, Vec::new());
    for _ in 0..6 {
        let owes = evidence(1, sent_ns, Some(sent_ns - 5 * MS));
        let grace_ns = (0..100 * MS)
            .step_by(10_000)
            .find(|&after_ns| {
                let other = reference(sent_ns + 1, sent_ns + 1);
                health.observe(sent_ns + 1 + after_ns, &owes, other, false).is_some()
            })
            .unwrap();
        graces.push(grace_ns);
        let late = evidence(0, sent_ns, Some(sent_ns));
        let now_ns = sent_ns + grace_ns + MS;
        let back = health.observe(now_ns, &late, None, false).unwrap();
        assert_eq!((back.to, back.cause), (PathPhase::Active, PathCause::Late));
        sent_ns = now_ns + 5 * MS;
    }
    let twice: Vec<u64> = (0..6).map(|times| GRACE_MIN_NS << times).collect();
    assert_eq!(graces, twice);
    let owes = evidence(1, sent_ns, Some(1));
    assert_eq!(health.lateness_ns(sent_ns), GRACE_MAX_NS);
    assert_eq!(health.lateness_ns(sent_ns + 3 * GRACE_HALF_LIFE_NS), GRACE_MAX_NS / 8);
    // An answer to a packet sent after the suspicion does not end it.
    let suspected_ns = sent_ns + 40 * MS;
    health.observe(suspected_ns, &owes, reference(sent_ns, sent_ns), false).unwrap();
    let young = evidence(0, sent_ns, Some(suspected_ns + 1));
    let back = health.observe(suspected_ns + MS, &young, None, false).unwrap();
    assert_eq!((back.to, back.cause), (PathPhase::Probing, PathCause::Answered));
}

/// RR-RAIL-4
#[test]
fn suspended_peer_makes_no_path_suspect() {
    let (mut one, mut two) = (active(), active());
    for probes in 1..4 {
        let now_ns = 10 * MS + u64::from(probes) * 10 * MS;
        let owes = evidence(probes, 10 * MS, Some(1));
        assert_eq!(one.observe(now_ns, &owes, two.reference(), false), None);
        assert_eq!(two.observe(now_ns, &owes, one.reference(), false), None);
    }
    let owes = evidence(5, 10 * MS, Some(1));
    assert_eq!(one.observe(109 * MS, &owes, two.reference(), false), None);
    assert_eq!(one.observe(110 * MS, &owes, two.reference(), false).unwrap().to, PathPhase::Down);
}

/// RR-RAIL-6
#[test]
fn flapping_path_returns_after_increasing_hold_times() {
    let mut health = active();
    let (mut now_ns, mut sent_ns, mut last_hold_ns) = (5_000 * MS, 2, 0);
    for round in 0..8 {
        let owes = evidence(1, now_ns, Some(sent_ns));
        now_ns += 5 * MS;
        health.observe(now_ns, &owes, reference(now_ns - MS, now_ns - MS), false).unwrap();
        let failed_ns = now_ns;
        while !health.is_active() {
            assert!(now_ns - failed_ns < 10_000 * MS);
            now_ns += MS;
            if health.take_probe(now_ns) {
                sent_ns = now_ns;
                health.observe(now_ns, &evidence(0, now_ns, Some(sent_ns)), None, false);
            } else {
                health.observe(now_ns, &evidence(0, now_ns, Some(sent_ns)), None, false);
            }
        }
        let hold_ns = now_ns - failed_ns;
        assert!(hold_ns >= last_hold_ns, "{round}: {hold_ns} after {last_hold_ns}");
        last_hold_ns = hold_ns;
    }
    assert!(last_hold_ns >= 200 * MS, "{last_hold_ns}");
    // A failure long after that counts as the first one again.
    now_ns += 2 * RELAPSE_NS;
    health.observe(
        now_ns,
        &evidence(1, 1, Some(sent_ns)),
        reference(now_ns - MS, now_ns - MS),
        false,
    );
    assert_eq!(health.hold_ns, HOLD_MIN_NS);
}

/// RR-RAIL-6
#[test]
fn only_answering_path_is_active_at_once() {
    let mut health = active();
    let owes = evidence(5, MS, Some(1));
    assert_eq!(health.observe(200 * MS, &owes, None, true).unwrap().to, PathPhase::Down);
    let answers = evidence(0, MS, Some(200 * MS));
    assert_eq!(health.observe(201 * MS, &answers, None, true).unwrap().to, PathPhase::Active);
}

/// RR-RAIL-4
#[test]
fn carrier_loss_and_one_way_failure_are_distinguished() {
    let mut health = active();
    health.handle_link(10 * MS, false);
    assert_eq!(health.observe(10 * MS, &evidence(0, 0, Some(1)), None, false), None);
    let down = health.observe(10 * MS, &evidence(0, 0, Some(1)), reference(0, 0), false).unwrap();
    assert_eq!((down.to, down.cause), (PathPhase::Down, PathCause::NoLink));
    let mut health = active();
    let silent = Evidence { arrived: 9, ..evidence(5, MS, Some(1)) };
    assert_eq!(health.observe(200 * MS, &silent, None, false).unwrap().cause, PathCause::OneWay);
}

/// RR-RAIL-4
#[test]
fn path_that_never_answers_is_reported_down() {
    let unanswered = |probes, arrived| Evidence { arrived, ..evidence(probes, MS, None) };
    for (arrived, cause) in [(0, PathCause::ProbesLost), (5, PathCause::OneWay)] {
        let mut health = RailHealth::new(0);
        let asked = unanswered(3, arrived);
        assert_eq!(health.observe(100 * MS, &asked, reference(MS, 2 * MS), false), None, "soon");
        // Without another path that answers the peer may be the one that is silent.
        assert_eq!(health.observe(1000 * MS, &asked, None, false), None);
        let down = health.observe(1000 * MS, &asked, reference(MS, 2 * MS), false).unwrap();
        assert_eq!((down.to, down.cause), (PathPhase::Down, cause));
        assert!(health.has_never_answered(), "its state is unchanged for others");
        let answered = evidence(0, MS, Some(1001 * MS));
        assert!(health.observe(1002 * MS, &answered, reference(MS, 2 * MS), false).is_some());
        assert!(!health.has_never_answered() && health.phase() == PathPhase::Probing);
    }
    let mut health = RailHealth::new(0);
    assert!(health.observe(1001 * MS, &unanswered(3, 0), None, false).is_some(), "it is silent");
}

#[test]
fn probes_slow_down_but_never_stop() {
    let mut health = active();
    health.observe(200 * MS, &evidence(5, MS, Some(1)), None, false);
    let probes: Vec<u64> = (200 * MS..2200 * MS)
        .step_by(100_000)
        .filter(|&now_ns| health.take_probe(now_ns))
        .collect();
    assert!((40..80).contains(&probes.len()), "{}", probes.len());
    assert!(probes.windows(2).all(|pair| pair[1] - pair[0] <= PROBE_PAUSE_MAX_NS + MS));
}
