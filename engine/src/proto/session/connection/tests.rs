//! Attempts that fail, cross, take other ways, and face replays.

use super::*;

const RETRY: Retry = Retry { timeout_ns: 1000, retries: 2, delay_ns: 10, silent_ns: 1 };

/// RR-CONN-6
#[test]
fn retries_back_off_and_then_report_the_cause() {
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

/// RR-END-6
#[test]
fn unanswered_hellos_are_retried_until_the_silent_timeout() {
    for number in [1, 2] {
        let ways = ways(number);
        let mut connection = Connection::new(Retry { silent_ns: 50_000, ..RETRY });
        let mut step = connection.want(0);
        let (mut now_ns, mut hellos) = (0, 0);
        let failed = loop {
            match step {
                Step::Connect => {
                    hellos += 1;
                    connection.take_way(now_ns, &ways);
                    connection.handle_connected(now_ns, hellos);
                }
                Step::Nothing => {}
                Step::Fail(failure) => break failure,
            }
            now_ns = connection.deadline_ns().unwrap();
            step = connection.handle_timeout(now_ns);
        };
        // The timeout of a single way doubles each time, up to 16 times the time of an attempt.
        assert!((50_000..68_000).contains(&now_ns), "{now_ns}");
        assert!(if number == 1 { (4..10).contains(&hellos) } else { hellos > 20 }, "{hellos}");
        let PeerFailure::Unreachable { cause, .. } = &failed else { panic!("{failed}") };
        assert!(cause.contains("silent_timeout"), "{cause}");
    }
}

/// RR-END-6
#[test]
fn silence_does_not_consume_attempts() {
    let mut connection = Connection::new(Retry { silent_ns: 0, ..RETRY });
    assert_eq!(connection.want(0), Step::Connect);
    for hello in 1..200 {
        let now_ns = connection.deadline_ns().unwrap() - 1000;
        connection.handle_connected(now_ns, hello);
        let late_ns = connection.deadline_ns().unwrap();
        assert_eq!(connection.handle_timeout(late_ns), Step::Nothing);
        let again_ns = connection.deadline_ns().unwrap();
        assert_eq!(connection.handle_timeout(again_ns), Step::Connect);
    }
    // Its process has ended, and its host refuses.
    let mut now_ns = connection.deadline_ns().unwrap();
    for _ in 0..2 {
        assert_eq!(connection.handle_attempt_failed(now_ns, "refused"), Step::Nothing);
        now_ns = connection.deadline_ns().unwrap();
        assert_eq!(connection.handle_timeout(now_ns), Step::Connect);
    }
    assert!(matches!(connection.handle_attempt_failed(now_ns, "refused"), Step::Fail(_)));
}

/// Epoch of the hellos of either side.
const EPOCH: u32 = 7;

/// Two engines that connect to each other at once, and the messages between them.
struct Crossing {
    ids: [u64; 2],
    ends: [Connection; 2],
    /// By the side that opened the connection: the next message on it.
    lines: [Line; 2],
    /// The epoch answered by the accepted hello on the line.
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

    /// Delivers the next message on the line that `from` opened. Returns `false` if there is none.
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
                assert!(self.ends[to].admit(EPOCH), "an authenticated side is admitted");
                Line::InUse
            }
            Line::Closed | Line::InUse => return false,
        };
        true
    }
}

/// RR-CONN-4
#[test]
fn exactly_one_of_two_crossing_connections_survives() {
    // Each line has four arrivals; the bits of `order` select the next line.
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
fn blocked_attempt_does_not_block_the_peer() {
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
fn hello_without_proof_has_no_effect() {
    let mut connection = Connection::new(RETRY);
    connection.want(0);
    connection.handle_connected(0, 1);
    assert_eq!(connection.judge_hello(1, 2), HelloStatus::Accepted);
    connection.expect_peer(true, 1, 1);
    assert_eq!(connection.phase(), Phase::ConnectAck);
    connection.forget_peer(1);
    connection.handle_reply(1, HelloStatus::Accepted);
    assert!(connection.phase() == Phase::Connected && connection.is_initiator());
    assert!(!connection.admit(2));
}

/// RR-CONN-4
#[test]
fn accepted_attempt_yields_only_to_an_answering_hello() {
    for (answered, yields) in [(0, false), (4, false), (5, true)] {
        let mut connection = Connection::new(RETRY);
        connection.want(0);
        connection.handle_connected(0, 4);
        // One that answers the previous attempt, and is held open.
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
fn election_loser_retries_if_the_winner_never_arrives() {
    let mut connection = Connection::new(RETRY);
    connection.want(0);
    connection.handle_connected(0, 1);
    connection.handle_reply(1, HelloStatus::ElectionLost);
    assert_eq!(connection.phase(), Phase::WaitPeer);
    assert_eq!(connection.handle_timeout(1001), Step::Nothing);
    assert_eq!(connection.phase(), Phase::Backoff);
    assert_eq!(connection.handle_timeout(1011), Step::Connect);
}

/// Returns `number` ways, to addresses of which only the first one identifies a successor.
fn ways(number: u8) -> Vec<Way> {
    let way = |at: u8| Way {
        remote: ([10, 0, at, 15], 7).into(),
        rail: at,
        is_own: false,
        shows_successor: at == 0,
    };
    (0..number).map(way).collect()
}

/// RR-CONN-6
#[test]
fn round_of_all_ways_counts_as_one_attempt() {
    const SECOND: u64 = 1_000_000_000;
    let retry = Retry { timeout_ns: 2 * SECOND, retries: 1, delay_ns: 10, silent_ns: 1 };
    let ways = ways(3);
    let mut connection = Connection::new(retry);
    let mut now_ns = 0;
    assert_eq!(connection.want(now_ns), Step::Connect);
    let mut taken = Vec::new();
    let failure = loop {
        let begun_ns = now_ns;
        taken.push(connection.take_way(now_ns, &ways).unwrap().rail);
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
    let cause = "3 ways were tried: 10.0.0.15:7 by rail 0: no answer in time; 10.0.1.15:7 by rail \
                 1: no answer in time; 10.0.2.15:7 by rail 2: no answer in time";
    assert_eq!(failure, PeerFailure::Unreachable { attempts: 2, cause: cause.into() });
}

/// A refusal by this host, a gateway or another host is no evidence about the peer.
///
/// RR-CONN-6
#[test]
fn every_way_is_tried_despite_refusals() {
    let mut ways = ways(3);
    ways[0].is_own = true;
    let mut connection =
        Connection::new(Retry { timeout_ns: 1000, retries: 1, delay_ns: 10, silent_ns: 1 });
    connection.want(0);
    let mut taken = Vec::new();
    let failure = loop {
        let now_ns = 20 * taken.len() as u64;
        taken.push(connection.take_way(now_ns, &ways).unwrap().rail);
        let step = match taken.last() {
            Some(0) => connection.handle_attempt_failed(now_ns, "refused"),
            Some(1) => {
                connection.handle_connected(now_ns, 1);
                connection.handle_attempt_ended(now_ns, PeerFailure::WrongSecret)
            }
            _ => connection.handle_attempt_failed(now_ns, "no route"),
        };
        if let Step::Fail(failure) = step {
            break failure;
        }
        // Pauses are between rounds only.
        let pause_ns = if taken.len() == 3 { 10 } else { 0 };
        assert_eq!(connection.deadline_ns(), Some(now_ns + pause_ns));
        assert_eq!(connection.handle_timeout(now_ns + pause_ns), Step::Connect);
    };
    assert_eq!(taken, [0, 1, 2, 0, 1, 2]);
    let PeerFailure::Unreachable { attempts: 2, cause } = failure else { panic!("{failure}") };
    let first = "3 ways were tried: 10.0.0.15:7 by rail 0 (this host has that address, too): \
                 refused; 10.0.1.15:7 by rail 1: is not authenticated";
    assert!(cause.starts_with(first) && cause.ends_with("by rail 2: no route"), "{cause}");
}

/// A cause common to all ways is reported alone.
#[test]
fn common_cause_of_all_ways_is_reported_once() {
    let mut connection =
        Connection::new(Retry { timeout_ns: 1000, retries: 0, delay_ns: 10, silent_ns: 1 });
    connection.want(0);
    connection.take_way(0, &ways(2));
    assert_eq!(connection.handle_attempt_ended(0, PeerFailure::WrongSecret), Step::Nothing);
    connection.handle_timeout(0);
    connection.take_way(0, &ways(2));
    let step = connection.handle_attempt_ended(0, PeerFailure::WrongSecret);
    assert_eq!(step, Step::Fail(PeerFailure::WrongSecret));
}

/// The peer itself answered on that way: the next attempt uses it again, after a pause.
///
/// RR-CONN-6
#[test]
fn answering_peer_is_retried_on_the_same_way() {
    let mut connection = Connection::new(RETRY);
    connection.want(0);
    for round in 0..3 {
        let now_ns = 100 * round;
        assert_eq!(connection.take_way(now_ns, &ways(3)).unwrap().rail, 0);
        connection.handle_connected(now_ns, 1);
        let step = connection.handle_reply(now_ns, HelloStatus::Busy);
        if round < 2 {
            assert_eq!(step, Step::Nothing);
            assert_eq!(connection.handle_timeout(now_ns), Step::Nothing);
            assert_eq!(connection.handle_timeout(now_ns + 100), Step::Connect);
        } else {
            assert_eq!(step, Step::Fail(PeerFailure::Full { attempts: 3 }));
        }
    }
}

/// RR-CONN-3
#[test]
fn process_at_a_secondary_address_is_no_successor() {
    let mut connection = Connection::new(RETRY);
    connection.want(0);
    connection.take_way(0, &ways(2));
    connection.handle_timeout(1000);
    connection.handle_timeout(1000);
    assert_eq!(connection.take_way(1010, &ways(2)).unwrap().rail, 1);
    connection.handle_connected(1011, 1);
    assert_eq!(connection.handle_reply(1012, HelloStatus::WrongEngine), Step::Nothing);
    assert_eq!(connection.handle_timeout(2000), Step::Connect);
    // One at the first address is, unless the peer is reached by another way.
    assert_eq!(connection.take_way(2000, &ways(2)).unwrap().rail, 0);
    connection.handle_connected(2001, 2);
    assert_eq!(connection.handle_reply(2002, HelloStatus::WrongEngine), Step::Nothing);
    assert_eq!(connection.handle_timeout(2002), Step::Connect);
    assert_eq!(connection.take_way(2002, &ways(2)).unwrap().rail, 1);
    let step = connection.handle_attempt_failed(2003, "refused");
    assert_eq!(step, Step::Fail(PeerFailure::Restarted));
}

#[test]
fn restarted_peer_is_detected_at_once() {
    let mut connection = Connection::new(RETRY);
    connection.want(0);
    connection.handle_connected(0, 1);
    let step = connection.handle_reply(1, HelloStatus::WrongEngine);
    assert_eq!(step, Step::Fail(PeerFailure::Restarted));
}
