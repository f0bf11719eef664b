//! Attempts that fail, cross, stray and meet replays.

use super::*;

const RETRY: Retry = Retry { timeout_ns: 1000, retries: 2, delay_ns: 10 };

/// RR-CONN-6
#[test]
fn retries_back_off_and_then_name_the_cause() {
    let mut connection = Connection::new(RETRY);
    assert_eq!(connection.want(0), Step::Connect);
    assert_eq!(connection.handle_attempt_failed(5, "refused"), Step::Nothing);
    assert_eq!(connection.deadline_ns(), Some(15));
    assert_eq!(connection.handle_timeout(14), Step::Nothing);
    assert_eq!(connection.handle_timeout(15), Step::Connect);
    assert_eq!(connection.handle_attempt_failed(20, "refused"), Step::Nothing);
    assert_eq!(connection.deadline_ns(), Some(40));
    assert_eq!(connection.handle_timeout(40), Step::Connect);
    let failure = PeerFailure::Unreachable { attempts: 3, cause: "refused".into() };
    assert_eq!(connection.handle_attempt_failed(41, "refused"), Step::Fail(failure));
    assert_eq!(connection.want(50), Step::Nothing);
    connection.reset();
    assert_eq!(connection.want(50), Step::Connect);
}

/// Of the hellos of either side.
const EPOCH: u32 = 7;

/// Two engines that connect to each other at once, and what is on its way between them.
struct Crossing {
    ids: [u64; 2],
    ends: [Connection; 2],
    /// By the side that opened the connection: what travels on it next.
    lines: [Line; 2],
    /// What the accepted hello on the line has answered.
    answered: [u32; 2],
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Line {
    Tcp,
    /// The epoch that it answers.
    Hello(u32),
    Reply(HelloStatus),
    Proof,
    Closed,
    InUse,
}

impl Crossing {
    fn new() -> Self {
        let mut ends = [Connection::new(RETRY), Connection::new(RETRY)];
        for end in &mut ends {
            end.want(0);
        }
        Self { ids: [1, 2], ends, lines: [Line::Tcp; 2], answered: [0; 2] }
    }

    /// What is next on the line that `from` opened arrives; `false`: nothing is.
    fn deliver(&mut self, from: usize) -> bool {
        let to = 1 - from;
        self.lines[from] = match self.lines[from] {
            // The attempt is dropped when the other one is in use.
            Line::Tcp if self.ends[from].phase() == Phase::Connected => Line::Closed,
            Line::Tcp => {
                self.ends[from].handle_connected(0, EPOCH);
                Line::Hello(self.ends[from].answered())
            }
            Line::Hello(answered) => {
                let status = self.ends[to].judge_hello(self.ids[to], self.ids[from]);
                if status == HelloStatus::Accepted {
                    let peer_wins = self.ids[from] > self.ids[to];
                    self.ends[to].expect_peer(peer_wins, EPOCH, answered);
                    self.answered[from] = answered;
                }
                Line::Reply(status)
            }
            Line::Reply(status) => {
                let before = self.ends[from].phase();
                assert_eq!(self.ends[from].handle_reply(1, status), Step::Nothing);
                let is_up = self.ends[from].phase() == Phase::Connected;
                if is_up && before == Phase::ConnectAck {
                    Line::Proof
                } else {
                    if status == HelloStatus::Accepted {
                        self.ends[to].forget_peer(self.answered[from]);
                    }
                    Line::Closed
                }
            }
            Line::Proof => {
                self.ends[to].forget_peer(self.answered[from]);
                assert!(self.ends[to].admit(), "the side that proved itself is connected");
                Line::InUse
            }
            Line::Closed | Line::InUse => return false,
        };
        true
    }
}

/// RR-CONN-4
#[test]
fn exactly_one_of_two_crossing_connections_survives_in_every_order() {
    // Each line has four arrivals; bit by bit, the order says whose is next.
    for order in 0..256u32 {
        let mut crossing = Crossing::new();
        for step in 0..8 {
            crossing.deliver((order >> step & 1) as usize);
        }
        for _ in 0..4 {
            crossing.deliver(0);
            crossing.deliver(1);
        }
        let [low, high] = &crossing.ends;
        assert_eq!((low.phase(), high.phase()), (Phase::Connected, Phase::Connected), "{order}");
        assert_ne!(low.is_initiator(), high.is_initiator(), "{order}");
        let in_use = crossing.lines.iter().filter(|line| **line == Line::InUse).count();
        assert_eq!(in_use, 1, "{order}: {:?}", crossing.lines);
        assert_eq!((low.due, high.due), (0, 0), "{order}");
        assert_eq!((low.crossing, high.crossing), (0, 0), "{order}");
    }
}

/// RR-CONN-4
#[test]
fn an_attempt_that_never_gets_through_keeps_nobody_out() {
    for through in [0, 1] {
        let mut crossing = Crossing::new();
        while crossing.deliver(through) {}
        assert_eq!(crossing.lines[through], Line::InUse);
        assert!(crossing.ends.iter().all(|end| end.phase() == Phase::Connected), "{through}");
        assert!(
            crossing.ends[through].is_initiator() && !crossing.ends[1 - through].is_initiator()
        );
    }
}

#[test]
fn a_hello_without_its_proof_changes_nothing() {
    let mut connection = Connection::new(RETRY);
    connection.want(0);
    connection.handle_connected(0, 1);
    assert_eq!(connection.judge_hello(1, 2), HelloStatus::Accepted);
    connection.expect_peer(true, 1, 1);
    assert_eq!(connection.phase(), Phase::ConnectAck);
    connection.forget_peer(1);
    connection.handle_reply(1, HelloStatus::Accepted);
    assert!(connection.phase() == Phase::Connected && connection.is_initiator());
    assert!(!connection.admit());
}

/// RR-CONN-4
#[test]
fn an_accepted_attempt_yields_only_to_a_hello_that_answers_its_own() {
    for (answered, yields) in [(0, false), (4, false), (5, true)] {
        let mut connection = Connection::new(RETRY);
        connection.want(0);
        connection.handle_connected(0, 4);
        // One that answers the attempt before, and is held open.
        connection.expect_peer(true, 1, 4);
        connection.handle_attempt_failed(1, "refused");
        connection.handle_timeout(11);
        connection.handle_connected(12, 5);
        connection.expect_peer(true, 2, answered);
        assert_eq!(connection.answered(), 2);
        connection.handle_reply(13, HelloStatus::Accepted);
        let expected = if yields { Phase::WaitPeer } else { Phase::Connected };
        assert_eq!(connection.phase(), expected, "{answered}");
    }
}

#[test]
fn the_loser_waits_and_tries_again_when_the_winner_never_comes() {
    let mut connection = Connection::new(RETRY);
    connection.want(0);
    connection.handle_connected(0, 1);
    connection.handle_reply(1, HelloStatus::ElectionLost);
    assert_eq!(connection.phase(), Phase::WaitPeer);
    assert_eq!(connection.handle_timeout(1001), Step::Nothing);
    assert_eq!(connection.phase(), Phase::Backoff);
    assert_eq!(connection.handle_timeout(1011), Step::Connect);
}

/// RR-CONN-6
#[test]
fn a_round_of_all_ways_is_one_attempt() {
    const SECOND: u64 = 1_000_000_000;
    let retry = Retry { timeout_ns: 2 * SECOND, retries: 1, delay_ns: 10 };
    let mut connection = Connection::new(retry);
    let mut now_ns = 0;
    assert_eq!(connection.want(now_ns), Step::Connect);
    let mut taken = Vec::new();
    let failure = loop {
        let begun_ns = now_ns;
        taken.push(connection.take_way(now_ns, 3));
        now_ns = connection.deadline_ns().unwrap();
        // The time for one of three ways doubles with the round, up to its share.
        let limit_ns = if taken.len() <= 3 { WAY_NS } else { WAY_MAX_NS };
        assert_eq!(now_ns - begun_ns, limit_ns);
        if let Step::Fail(failure) = connection.handle_timeout(now_ns) {
            break failure;
        }
        now_ns = connection.deadline_ns().unwrap();
        assert_eq!(connection.handle_timeout(now_ns), Step::Connect);
    };
    assert_eq!(taken, [0, 1, 2, 0, 1, 2]);
    let cause = "no answer in time (3 ways were tried each time)".into();
    assert_eq!(failure, PeerFailure::Unreachable { attempts: 2, cause });
    // Next time, too; and what is refused is asked again by the same way, and counts.
    connection.reset();
    connection.want(now_ns);
    assert_eq!(connection.take_way(now_ns, 3), 0);
    connection.handle_attempt_failed(now_ns, "refused");
    connection.handle_timeout(connection.deadline_ns().unwrap());
    assert_eq!(connection.take_way(now_ns, 3), 0);
    let step = connection.handle_attempt_failed(now_ns, "refused");
    assert!(matches!(step, Step::Fail(PeerFailure::Unreachable { attempts: 2, .. })));
}

/// RR-CONN-3
#[test]
fn another_process_at_another_address_is_no_successor() {
    let mut connection = Connection::new(RETRY);
    connection.want(0);
    connection.take_way(0, 2);
    connection.handle_timeout(1000);
    connection.handle_timeout(1010);
    assert_eq!(connection.take_way(1010, 2), 1);
    connection.stray();
    connection.handle_connected(1011, 1);
    assert_eq!(connection.handle_reply(1012, HelloStatus::WrongEngine), Step::Nothing);
    assert_eq!(connection.handle_timeout(2000), Step::Connect);
    assert_eq!(connection.take_way(2000, 2), 0);
    connection.handle_connected(2001, 2);
    let step = connection.handle_reply(2002, HelloStatus::WrongEngine);
    assert_eq!(step, Step::Fail(PeerFailure::Restarted));
}

#[test]
fn a_restarted_peer_is_known_at_once() {
    let mut connection = Connection::new(RETRY);
    connection.want(0);
    connection.handle_connected(0, 1);
    let step = connection.handle_reply(1, HelloStatus::WrongEngine);
    assert_eq!(step, Step::Fail(PeerFailure::Restarted));
}
