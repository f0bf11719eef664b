//! Scenarios of control lanes: events, their times, and the expected decisions.

mod known_paths;

use super::*;
use crate::proto::paths::by_hand::PathsByHand;
use crate::proto::session::rails::{RailPair, path_number};

const MS: u64 = 1_000_000;
const SECOND: u64 = 1000 * MS;
const PEER_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for the reply to a hello.
const HELLO_NS: u64 = 5 * SECOND;

/// A session whose lane uses the path at position 0.
struct Bench {
    monitor: LaneMonitor,
    paths: PathsByHand,
    rails: Rails,
    now_ns: u64,
    is_initiator: bool,
    is_leaving: bool,
    is_goodbye_under_way: bool,
    has_left: bool,
    holds_long: bool,
}

impl Bench {
    fn new(paths: u8) -> Self {
        let mut rails = Rails::new(true);
        let other = |at: u8| RailPair::new(path_number(at, at), Some([192, 0, 2, at].into()), true);
        rails.paths.extend((1..paths).map(other));
        Self {
            monitor: LaneMonitor::new(),
            paths: PathsByHand::new(paths),
            rails,
            now_ns: 100 * SECOND,
            is_initiator: true,
            is_leaving: false,
            is_goodbye_under_way: false,
            has_left: false,
            holds_long: false,
        }
    }

    /// Reports an event, and executes the decision as the loop does.
    fn handle(&mut self, event: LaneEvent) -> Decision {
        let facts = Facts {
            now_ns: self.now_ns,
            peer_timeout: PEER_TIMEOUT,
            is_connected: true,
            is_initiator: self.is_initiator,
            is_leaving: self.is_leaving,
            is_goodbye_under_way: self.is_goodbye_under_way,
            has_left: self.has_left,
            holds_long: self.holds_long,
            rails: &self.rails,
            locator: ([192, 0, 2, 0], 1).into(),
        };
        let decision = self.monitor.handle(event, &facts, &mut self.paths.paths);
        match decision {
            Decision::DropLane | Decision::Suspect => {
                self.monitor.handle_dropped(self.now_ns, self.paths.paths.stream_at());
            }
            Decision::TakeLane { .. } => self.monitor.handle_moved(self.now_ns),
            Decision::DropAttempt => self.monitor.handle_attempt_failed(self.now_ns),
            _ => {}
        }
        decision
    }

    fn after(&mut self, time_ns: u64, event: LaneEvent) -> Decision {
        self.now_ns += time_ns;
        self.handle(event)
    }

    /// Lets the peer answer on each path, so that it knows of them.
    fn meet_peer(&mut self) {
        for at in 0..self.paths.paths.count() as u8 {
            self.paths.answer(at, self.now_ns);
        }
    }

    /// Resets the lane, and opens another one.
    fn reset(&mut self) {
        assert_eq!(self.handle(reset()), Decision::Suspect);
        assert_eq!(self.handle(LaneEvent::MoveDue), Decision::Open { at: 1 });
    }

    /// Makes `count` attempts to open another lane, which fail at once. Returns the path of each,
    /// and its time after the previous failure, in steps of 10 ms.
    fn fail_moves(&mut self, count: usize) -> Vec<(u8, u64)> {
        let mut moves = Vec::new();
        let mut failed_ns = self.now_ns;
        while moves.len() < count {
            if let Decision::Open { at } = self.handle(LaneEvent::MoveDue) {
                moves.push((at, (self.now_ns - failed_ns) / MS));
                self.monitor.handle_attempt_failed(self.now_ns);
                failed_ns = self.now_ns;
            }
            self.now_ns += 10 * MS;
        }
        moves
    }
}

fn reset() -> LaneEvent {
    LaneEvent::Failed { error: "reset".into(), is_of_network: false }
}

fn unreachable() -> LaneEvent {
    LaneEvent::Failed { error: "unreachable".into(), is_of_network: true }
}

fn owed(asked_ms: u64) -> LaneEvent {
    let asked = Duration::from_millis(asked_ms);
    LaneEvent::Unacked(Unacked::Answer { since_answer: asked, since_sent: asked, resent: None })
}

fn is_lost(decision: &Decision, why: &str) -> bool {
    matches!(decision, Decision::Fail(PeerFailure::Lost(cause)) if cause.contains(why))
}

/// RR-RAIL-8
#[test]
fn peer_with_a_reset_lane_survives_if_it_answers() {
    let mut bench = Bench::new(2);
    bench.reset();
    assert!(bench.monitor.is_lost());
    bench.paths.answer(1, bench.now_ns);
    assert_eq!(bench.after(50 * MS, LaneEvent::TickWithout), Decision::AskPaths);
    assert_eq!(bench.after(5 * SECOND, LaneEvent::TickWithout), Decision::AskPaths);
    assert_eq!(bench.after(500 * MS, LaneEvent::TickWithout), Decision::Nothing);
    // Another lane replaces the lost one.
    assert_eq!(bench.handle(LaneEvent::Reply(HelloStatus::Accepted)), Decision::TakeLane { at: 1 });
    assert!(!bench.monitor.is_lost());
    assert_eq!(bench.after(20 * SECOND, LaneEvent::TickWithout), Decision::Nothing);
}

/// RR-RAIL-8
#[test]
fn silent_peer_is_lost_after_a_reset() {
    for (is_received, limit_ns) in [(false, 700 * MS), (true, 10 * SECOND)] {
        let mut bench = Bench::new(2);
        // An answer to an earlier packet is no evidence of the current state.
        bench.paths.answer(0, bench.now_ns - 1);
        bench.reset();
        if is_received {
            bench.monitor.handle_attempt_connected();
        }
        let decision = bench.after(limit_ns, LaneEvent::TickWithout);
        assert!(!matches!(decision, Decision::Fail(_)), "{decision:?}");
        let decision = bench.after(1, LaneEvent::TickWithout);
        assert!(is_lost(&decision, "answers on none of its rails"), "{decision:?}");
    }
}

/// RR-RAIL-8
#[test]
fn refusal_ends_the_session_unless_a_path_answers_a_later_probe() {
    for (answers, is_over) in [(false, true), (true, false)] {
        let mut bench = Bench::new(2);
        bench.paths.answer(1, bench.now_ns - SECOND);
        assert_eq!(bench.handle(unreachable()), Decision::DropLane);
        assert_eq!(bench.handle(LaneEvent::MoveDue), Decision::Open { at: 1 });
        assert_eq!(bench.after(MS, LaneEvent::Refused), Decision::AskPaths);
        assert_eq!(bench.handle(LaneEvent::Refused), Decision::Nothing, "already known");
        if answers {
            bench.paths.answer(1, bench.now_ns);
        }
        let decision = bench.after(99 * MS, LaneEvent::TickWithout);
        assert!(!matches!(decision, Decision::Fail(_)), "{decision:?}");
        let decision = bench.after(MS, LaneEvent::TickWithout);
        assert_eq!(is_lost(&decision, "its process is gone"), is_over, "{decision:?}");
    }
    // The source of a refusal is unknown at an address without answers.
    let mut bench = Bench::new(2);
    bench.reset();
    assert_eq!(bench.handle(LaneEvent::Refused), Decision::Nothing);
}

/// RR-RAIL-8
#[test]
fn replies_to_a_lane_hello_are_evaluated() {
    use HelloStatus as Status;
    let fail = Decision::Fail;
    // Whether the peer has answered there, its reply, and the decision.
    let cases = [
        (false, Status::Accepted, Decision::TakeLane { at: 1 }),
        (false, Status::Busy, Decision::DropAttempt),
        (false, Status::WrongEngine, Decision::DropAttempt),
        (false, Status::Leaving, Decision::DropAttempt),
        (true, Status::Malformed, Decision::DropAttempt),
        (true, Status::WrongEngine, fail(PeerFailure::Restarted)),
        (true, Status::Leaving, fail(PeerFailure::Left)),
    ];
    for (has_answered, status, wanted) in cases {
        let mut bench = Bench::new(2);
        if has_answered {
            bench.paths.answer(1, 1);
        }
        bench.reset();
        assert_eq!(bench.handle(LaneEvent::Reply(status)), wanted, "{status:?}");
        // *Busy* is an answer of the peer.
        let decision = bench.after(SECOND, LaneEvent::TickWithout);
        let lives = matches!(status, Status::Accepted | Status::Busy);
        assert_eq!(!matches!(decision, Decision::Fail(_)), lives, "{status:?}: {decision:?}");
    }
    let mut bench = Bench::new(2);
    bench.reset();
    let decision = bench.handle(LaneEvent::Reply(Status::UnknownSession));
    assert!(is_lost(&decision, "it has ended the session"), "{decision:?}");
}

/// RR-RAIL-7
#[test]
fn failed_attempts_double_the_pause_unless_the_peer_is_suspect() {
    let mut bench = Bench::new(2);
    assert_eq!(bench.handle(unreachable()), Decision::DropLane);
    let pauses = |moves: Vec<(u8, u64)>| moves.into_iter().map(|(_, ms)| ms).collect::<Vec<_>>();
    assert_eq!(pauses(bench.fail_moves(6)), [0, 190, 370, 730, 730, 730]);
    let mut bench = Bench::new(2);
    assert_eq!(bench.handle(reset()), Decision::Suspect);
    assert_eq!(pauses(bench.fail_moves(4)), [0, 100, 100, 100]);
}

/// RR-RAIL-7
#[test]
fn connect_timeout_grows_with_each_failed_attempt() {
    let mut bench = Bench::new(2);
    assert_eq!(bench.handle(unreachable()), Decision::DropLane);
    for limit_ns in [250, 500, 1000, 2000, 4000, 5000, 5000].map(|ms| ms * MS) {
        bench.now_ns += SECOND;
        assert!(matches!(bench.handle(LaneEvent::MoveDue), Decision::Open { .. }));
        let is_late = |bench: &Bench, time_ns: u64| {
            bench.monitor.is_attempt_late(bench.now_ns + time_ns, HELLO_NS, 10 * SECOND)
        };
        assert!(!is_late(&bench, limit_ns) && is_late(&bench, limit_ns + 1), "{limit_ns}");
        bench.monitor.handle_attempt_failed(bench.now_ns);
    }
    // The peer may be suspended, if its lane was reset.
    for (event, limit_ns) in [(unreachable(), HELLO_NS), (reset(), 10 * SECOND)] {
        let mut bench = Bench::new(2);
        bench.handle(event);
        bench.handle(LaneEvent::MoveDue);
        bench.monitor.handle_attempt_connected();
        for (time_ns, is_late) in [(limit_ns, false), (limit_ns + 1, true)] {
            let at_ns = bench.now_ns + time_ns;
            assert_eq!(bench.monitor.is_attempt_late(at_ns, HELLO_NS, 10 * SECOND), is_late);
        }
    }
}

/// RR-RAIL-8
#[test]
fn paths_are_tried_in_turn_without_a_lane() {
    // Paths that are down, and the order of attempts: the lane was at 0.
    let cases: [(&[u8], [u8; 5]); 3] =
        [(&[], [1, 2, 3, 0, 1]), (&[1, 3], [2, 0, 2, 0, 2]), (&[0, 1, 2, 3], [1, 2, 3, 0, 1])];
    for (down, turns) in cases {
        let mut bench = Bench::new(4);
        assert_eq!(bench.handle(reset()), Decision::Suspect);
        down.iter().for_each(|&at| bench.paths.fail(bench.now_ns, at));
        let moves = bench.fail_moves(5).into_iter().map(|(at, _)| at);
        assert!(moves.eq(turns), "{down:?}");
    }
}

/// RR-RAIL-8
#[test]
fn acceptor_connects_only_to_addresses_that_answered() {
    let mut bench = Bench::new(3);
    bench.is_initiator = false;
    bench.paths.fail(bench.now_ns, 0);
    assert_eq!(bench.handle(LaneEvent::MoveDue), Decision::Nothing, "reserved for the opener");
    assert_eq!(bench.handle(reset()), Decision::Suspect);
    assert_eq!(bench.handle(LaneEvent::MoveDue), Decision::Nothing, "no address has answered");
    bench.paths.answer(2, bench.now_ns);
    assert_eq!(bench.handle(LaneEvent::MoveDue), Decision::Open { at: 2 });
    // The reply is *busy* at most.
    assert_eq!(bench.handle(LaneEvent::Reply(HelloStatus::Accepted)), Decision::DropAttempt);
    // Behind a NAT an announced address may be another host's.
    bench.now_ns += SECOND;
    bench.rails.paths[2].remote = Some([198, 51, 100, 1].into());
    assert_eq!(bench.handle(LaneEvent::MoveDue), Decision::Nothing);
}

/// RR-RAIL-7
#[test]
fn lane_leaves_a_failed_path() {
    let mut bench = Bench::new(2);
    bench.paths.carry(bench.now_ns, 1);
    assert_eq!(bench.after(60 * SECOND, LaneEvent::MoveDue), Decision::Nothing);
    bench.paths.doubt(bench.now_ns, 0);
    assert_eq!(bench.handle(LaneEvent::MoveDue), Decision::Nothing, "no long messages use it");
    bench.paths.fail(bench.now_ns, 0);
    assert_eq!(bench.handle(LaneEvent::MoveDue), Decision::Open { at: 1 });
    assert_eq!(bench.handle(LaneEvent::MoveDue), Decision::Nothing, "in progress");
    let mut bench = Bench::new(2);
    bench.paths.carry(bench.now_ns, 1);
    bench.paths.stream(0);
    bench.paths.doubt(bench.now_ns, 0);
    assert_eq!(bench.handle(LaneEvent::MoveDue), Decision::Open { at: 1 });
}

/// RR-RAIL-7
#[test]
fn lane_of_long_segments_follows_a_settled_primary_path() {
    let mut bench = Bench::new(2);
    bench.paths.stream(0);
    assert!(!bench.paths.paths.is_stream_elsewhere());
    bench.paths.carry(bench.now_ns, 1);
    assert!(bench.paths.paths.is_stream_elsewhere());
    assert_eq!(bench.after(50 * MS, LaneEvent::MoveDue), Decision::Nothing);
    bench.is_leaving = true;
    assert_eq!(bench.after(1, LaneEvent::MoveDue), Decision::Nothing);
    bench.is_leaving = false;
    assert_eq!(bench.handle(LaneEvent::MoveDue), Decision::Open { at: 1 });
    // Where it could not connect it is not needed either, for some time.
    bench.monitor.handle_attempt_failed(bench.now_ns);
    assert_eq!(bench.after(30 * SECOND, LaneEvent::MoveDue), Decision::Nothing);
    assert_eq!(bench.after(1, LaneEvent::MoveDue), Decision::Open { at: 1 });
    bench.monitor.handle_dropped(bench.now_ns, 0);
    bench.monitor.handle_moved(bench.now_ns);
    bench.paths.stream(1);
    assert_eq!(bench.after(SECOND, LaneEvent::MoveDue), Decision::Nothing);
}

/// RR-RAIL-7
#[test]
fn session_without_a_lane_ends_if_it_needs_tcp_or_no_path_answers() {
    let mut bench = Bench::new(2);
    assert_eq!(bench.handle(unreachable()), Decision::DropLane);
    bench.now_ns += 10 * SECOND + 1;
    assert_eq!(bench.handle(LaneEvent::TickWithout), Decision::AskPaths);
    bench.holds_long = true;
    let decision = bench.handle(LaneEvent::TickWithout);
    assert!(is_lost(&decision, "look for a filter of TCP"), "{decision:?}");

    // The time between the last answer and the first unanswered probe counts.
    for (answered_ms, limit_ms) in [(0, 10_000), (6_000, 4_000), (7_000, 10_000)] {
        let mut bench = Bench::new(2);
        bench.paths.answer(0, bench.now_ns - answered_ms * MS);
        assert_eq!(bench.handle(unreachable()), Decision::DropLane);
        bench.paths.fail(bench.now_ns, 0);
        bench.paths.fail(bench.now_ns, 1);
        let decision = bench.after(limit_ms * MS, LaneEvent::TickWithout);
        assert!(!matches!(decision, Decision::Fail(_)), "{answered_ms}: {decision:?}");
        let decision = bench.after(1, LaneEvent::TickWithout);
        assert!(is_lost(&decision, "has answered for 10000 ms"), "{answered_ms}: {decision:?}");
    }
}

/// RR-RAIL-7, RR-RAIL-8
#[test]
fn lane_ends_are_evaluated() {
    let why = |decision: &Decision, why: &str| is_lost(decision, why);
    // With one path the session ends with its lane.
    for (event, cause) in [
        (reset(), "reset"),
        (unreachable(), "its host does not answer: unreachable"),
        (LaneEvent::EndOfStream, "without a goodbye"),
    ] {
        let mut bench = Bench::new(1);
        let decision = bench.handle(event.clone());
        assert!(why(&decision, cause), "{decision:?}");
        // A peer that has our goodbye may close it this way.
        for paths in [1, 2] {
            let mut bench = Bench::new(paths);
            bench.is_goodbye_under_way = true;
            let is_dropped =
                paths > 1 && matches!(event, LaneEvent::Failed { is_of_network: true, .. });
            let removed = Decision::Fail(PeerFailure::Removed);
            let wanted = if is_dropped { Decision::DropLane } else { removed };
            assert_eq!(bench.handle(event.clone()), wanted);
        }
    }
    let mut bench = Bench::new(2);
    assert!(why(&bench.handle(LaneEvent::EndOfStream), "without a goodbye"));
    // The peer may already have another one.
    bench.paths.carry(bench.now_ns, 1);
    bench.paths.fail(bench.now_ns, 0);
    assert_eq!(bench.handle(LaneEvent::MoveDue), Decision::Open { at: 1 });
    assert_eq!(bench.handle(LaneEvent::EndOfStream), Decision::Suspect);
    // No path is healthy when the kernel abandons the lane.
    let mut bench = Bench::new(2);
    bench.paths.fail(bench.now_ns, 0);
    bench.paths.fail(bench.now_ns, 1);
    let decision = bench.handle(unreachable());
    assert!(why(&decision, "does not answer"), "{decision:?}");
}

/// RR-END-2
#[test]
fn silent_host_is_lost_after_the_peer_timeout() {
    // Paths, whether the lane holds data that nothing else carries, and the time limit.
    for (paths, holds_long, limit_ms) in [(1, true, 10_000), (2, false, 10_000), (2, true, 1_000)] {
        let mut bench = Bench::new(paths);
        bench.holds_long = holds_long;
        bench.meet_peer();
        assert_eq!(bench.handle(owed(0)), Decision::Nothing);
        assert_eq!(bench.after(limit_ms * MS, owed(limit_ms)), Decision::Nothing);
        let decision = bench.after(MS, owed(limit_ms + 1));
        match paths {
            1 => assert!(is_lost(&decision, "answered for 10001 ms"), "{decision:?}"),
            _ => assert_eq!(decision, Decision::DropLane, "{limit_ms}"),
        }
    }
    let mut bench = Bench::new(1);
    assert_eq!(bench.handle(LaneEvent::Unacked(Unacked::Later)), Decision::Nothing);
    assert_eq!(bench.handle(LaneEvent::Unacked(Unacked::Nothing)), Decision::Nothing);
    bench.has_left = true;
    let removed = Decision::Fail(PeerFailure::Removed);
    assert_eq!(bench.handle(LaneEvent::Unacked(Unacked::Nothing)), removed);
}

/// RR-SEG-6
#[test]
fn lane_with_an_incomplete_segment_is_replaced_or_ends_the_session() {
    // Probes at a quarter of the peer timeout, and so on; without paths there are no datagrams.
    for paths in 0..3 {
        let mut bench = Bench::new(paths);
        bench.meet_peer();
        let event = LaneEvent::RestMissing;
        bench.monitor.note_bytes(true);
        let mut seen = Vec::new();
        for _ in 0..235 {
            let decision = bench.after(100 * MS, event.clone());
            let is_last = !matches!(decision, Decision::Nothing | Decision::AskForAnswer);
            if decision != Decision::Nothing {
                seen.push(decision);
                if is_last {
                    break;
                }
                // The peer sends something, but not the rest.
                match paths {
                    0 => bench.monitor.note_bytes(false),
                    _ => bench.paths.answer(0, bench.now_ns),
                }
            }
        }
        use PeerFailure::{Corrupted, Lost};
        match &seen[..] {
            [Decision::DropLane] => assert_eq!(paths, 2),
            [Decision::AskForAnswer, Decision::AskForAnswer, Decision::GiveUp(Corrupted(_))] => {
                assert_eq!(paths, 0);
            }
            [Decision::AskForAnswer, Decision::AskForAnswer, Decision::Fail(Lost(_))] => {
                assert_eq!(paths, 1);
            }
            _ => panic!("{paths}: {seen:?}"),
        }
    }
}

/// RR-RAIL-8
#[test]
fn idle_paths_are_probed_four_times_in_a_peer_timeout() {
    let mut bench = Bench::new(2);
    let mut asked = 0;
    for _ in 0..100 {
        let decision = bench.after(100 * MS, LaneEvent::TickIdle);
        if decision != Decision::Nothing {
            let since_ns = bench.now_ns - 2500 * MS;
            assert_eq!(decision, Decision::AskQuietPaths { since_ns });
            asked += 1;
        }
    }
    assert_eq!(asked, 4);
    assert_eq!(Bench::new(1).handle(LaneEvent::TickIdle), Decision::Nothing);
}

/// A peer on this host that shares memory needs no NIC.
///
/// RR-END-2, RR-SHM-8
#[test]
fn shared_memory_session_outlives_its_control_lane() {
    let silent = |seconds| {
        LaneEvent::Unacked(Unacked::Answer {
            since_answer: Duration::from_secs(seconds),
            since_sent: Duration::from_secs(seconds),
            resent: None,
        })
    };
    // Either the engine abandons the lane, or the kernel does.
    for by_kernel in [false, true] {
        let mut bench = Bench::new(1);
        bench.paths.share(true);
        if by_kernel {
            assert_eq!(bench.handle(unreachable()), Decision::DropLane);
        } else {
            assert_eq!(bench.handle(silent(4)), Decision::Nothing);
            assert_eq!(bench.after(11 * SECOND, silent(15)), Decision::DropLane);
        }
        for _ in 0..100 {
            assert_eq!(bench.after(SECOND, LaneEvent::TickWithout), Decision::Nothing);
        }
        assert_eq!(bench.handle(LaneEvent::MoveDue), Decision::Open { at: 0 });
        bench.monitor.handle_attempt_failed(bench.now_ns);
        // The memory ends, and nothing else shows that the peer is alive.
        bench.paths.share(false);
        assert_eq!(bench.handle(LaneEvent::RingEnded), Decision::Nothing, "a thread may be left");
        bench.paths.answer(0, bench.now_ns + SECOND);
        let decision = bench.after(9 * SECOND, LaneEvent::TickWithout);
        assert!(!matches!(decision, Decision::Fail(_)), "{decision:?}");
        let decision = bench.after(9 * SECOND, LaneEvent::TickWithout);
        assert!(!matches!(decision, Decision::Fail(_)), "{decision:?}");
        let decision = bench.after(2 * SECOND, LaneEvent::TickWithout);
        assert!(is_lost(&decision, "so has the memory that it shared"), "{decision:?}");
    }
}

/// Killed process: its kernel resets the lane, and ends the memory.
///
/// RR-END-2, RR-SHM-8
#[test]
fn reset_and_end_of_shared_memory_end_the_session_at_once() {
    let mut bench = Bench::new(1);
    bench.paths.share(true);
    assert_eq!(bench.handle(reset()), Decision::Suspect);
    assert_eq!(bench.after(100 * MS, LaneEvent::TickWithout), Decision::Nothing);
    bench.paths.share(false);
    let decision = bench.after(100 * MS, LaneEvent::RingEnded);
    assert!(is_lost(&decision, "reset"), "{decision:?}");
    // The peer abandoned the lane, and is alive.
    let mut bench = Bench::new(1);
    bench.paths.share(true);
    assert_eq!(bench.handle(reset()), Decision::Suspect);
    assert_eq!(bench.after(2 * SECOND, LaneEvent::TickWithout), Decision::Nothing);
    bench.paths.share(false);
    assert_eq!(bench.handle(LaneEvent::RingEnded), Decision::Nothing);
}

/// The peer answered after its lane was reset; then its memory ended, between two checks, and it no
/// longer answers.
///
/// RR-END-2
#[test]
fn session_without_lane_and_memory_ends_without_answers() {
    let mut bench = Bench::new(1);
    bench.paths.share(true);
    assert_eq!(bench.handle(reset()), Decision::Suspect);
    bench.paths.share(false);
    bench.paths.answer(0, bench.now_ns);
    for _ in 0..10 {
        let decision = bench.after(SECOND, LaneEvent::TickWithout);
        assert!(!matches!(decision, Decision::Fail(_)), "{decision:?}");
    }
    let decision = bench.after(2 * SECOND, LaneEvent::TickWithout);
    assert!(is_lost(&decision, "not answered for 10000 ms"), "{decision:?}");
}

fn segments_lost() -> LaneEvent {
    LaneEvent::SegmentsLost { bytes: 8948, cause: Some("packets are too long".into()) }
}

/// A lane whose segments are too long is replaced on its own path, also where there is no other,
/// and its end on the way is no end of the session.
///
/// RR-LANE-8
#[test]
fn a_lane_with_too_long_segments_is_replaced_on_its_path() {
    for paths in [1, 2] {
        let mut bench = Bench::new(paths);
        assert_eq!(bench.handle(segments_lost()), Decision::Open { at: 0 });
        assert_eq!(bench.after(100 * MS, segments_lost()), Decision::Nothing, "one at a time");
        // The peer closes the old one as soon as it has the other.
        assert_eq!(bench.handle(reset()), Decision::Suspect);
        let accepted = LaneEvent::Reply(HelloStatus::Accepted);
        assert_eq!(bench.handle(accepted), Decision::TakeLane { at: 0 });
        assert!(!bench.monitor.is_lost());
    }
}

/// RR-LANE-8
#[test]
fn acceptor_reports_too_long_segments_at_intervals() {
    let mut bench = Bench::new(1);
    bench.is_initiator = false;
    let report = Decision::ReportSegmentsLost { bytes: 8948 };
    assert_eq!(bench.handle(segments_lost()), report);
    assert_eq!(bench.after(900 * MS, segments_lost()), Decision::Nothing);
    assert_eq!(bench.after(200 * MS, segments_lost()), report);
    // What it has seen is the cause in the end, as short datagrams pass.
    bench.handle(owed(0));
    bench.paths.answer(0, bench.now_ns + SECOND);
    let decision = bench.after(11 * SECOND, owed(11_000));
    assert!(is_lost(&decision, "not acknowledged what was sent"), "{decision:?}");
    assert!(is_lost(&decision, "packets are too long"), "{decision:?}");
}

/// Long segments that are lost show nothing while everything else is lost, too.
///
/// RR-END-2, RR-LANE-8
#[test]
fn a_host_that_answers_nothing_is_silent_whatever_the_length_of_what_was_sent() {
    for answered_before in [false, true] {
        let mut bench = Bench::new(1);
        if answered_before {
            bench.paths.answer(0, bench.now_ns);
        }
        bench.after(SECOND, owed(0));
        bench.after(4 * SECOND, segments_lost());
        let decision = bench.after(7 * SECOND, owed(11_000));
        assert!(is_lost(&decision, "its host has not answered for 11"), "{decision:?}");
    }
}
