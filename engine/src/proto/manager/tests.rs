//! Two managers, with messages passed between them by hand.

use super::*;

const SECOND: u64 = 1_000_000_000;

fn peer(number: u64) -> Id {
    Id::from_u64(1 << 32 | number)
}

/// Returns the next output of a manager, if it is a message.
fn next_message(manager: &mut Manager) -> Option<(Ends, Vec<u8>)> {
    match manager.poll_output() {
        Some(Output::Send { ends, bytes }) => Some((ends, bytes)),
        other => {
            assert_eq!(other, None);
            None
        }
    }
}

fn deliver(manager: &mut Manager, ends: Ends, bytes: &[u8], now_ns: u64) {
    manager.handle_message(ends, bytes, now_ns, |_| true, || true);
}

/// The requesting side uses endpoint 1, the listener endpoint 2, of an engine each.
struct Two {
    asks: Manager,
    listens: Manager,
}

const ASKS: u16 = 1;
const LISTENS: u16 = 2;

impl Two {
    fn new(backlog: usize) -> Self {
        let mut two = Self { asks: Manager::default(), listens: Manager::default() };
        assert!(two.listens.listen(LISTENS, backlog, 10 * SECOND));
        two
    }

    /// Delivers all messages of both sides.
    fn pass(&mut self, now_ns: u64) -> (Vec<Output>, Vec<Output>) {
        let (mut of_asks, mut of_listens) = (Vec::new(), Vec::new());
        loop {
            if let Some(output) = self.asks.poll_output() {
                match output {
                    Output::Send { bytes, .. } => {
                        deliver(&mut self.listens, (LISTENS, peer(1)), &bytes, now_ns);
                    }
                    other => of_asks.push(other),
                }
            } else if let Some(output) = self.listens.poll_output() {
                match output {
                    Output::Send { bytes, .. } => {
                        deliver(&mut self.asks, (ASKS, peer(2)), &bytes, now_ns);
                    }
                    other => of_listens.push(other),
                }
            } else {
                return (of_asks, of_listens);
            }
        }
    }

    fn ask(&mut self) -> (Id, Id) {
        let link = self.asks.ask((ASKS, peer(2)), b"hello", 0, SECOND).unwrap();
        let (_, at_listener) = self.pass(0);
        let [Output::Asked { ends: (LISTENS, _), request, data }] = &at_listener[..] else {
            panic!("{at_listener:?}")
        };
        assert_eq!(&data[..], b"hello");
        (link, *request)
    }

    fn accept(&mut self, request: Id) -> Id {
        let taken = self.listens.take_request(LISTENS, request).unwrap();
        let accepted = self.listens.accept(taken.ends, &taken, 5 * SECOND).unwrap();
        let bytes = accept_message(accepted, &taken, [3; ADDRESS_BYTES], b"accepted");
        deliver(&mut self.asks, (ASKS, peer(2)), &bytes, 0);
        accepted
    }
}

/// RR-REQ-1
#[test]
fn accepted_connection_opens_after_confirmation() {
    let mut two = Two::new(1);
    let (link, request) = two.ask();
    let accepted = two.accept(request);
    let (at_asker, _) = two.pass(0);
    let [Output::Granted { link: granted, address, data }] = &at_asker[..] else {
        panic!("{at_asker:?}")
    };
    assert_eq!((granted, address, &data[..]), (&link, &[3; ADDRESS_BYTES], &b"accepted"[..]));
    assert_eq!(two.asks.granted(link, peer(2)), Some(ASKS));
    let (_, at_listener) = two.pass(0);
    assert_eq!(at_listener, [Output::Opened { ends: (LISTENS, peer(1)), link: accepted }]);
    assert_eq!(two.listens.poll_output(), None);
    // No deadline is left.
    two.asks.handle_timeout(60 * SECOND);
    two.listens.handle_timeout(60 * SECOND);
    assert_eq!((two.asks.next_deadline_ns(), two.listens.next_deadline_ns()), (None, None));
    assert!(!two.listens.shut_down(ASKS, accepted), "it belongs to another endpoint");
    assert!(two.listens.shut_down(LISTENS, accepted));
    let (at_asker, _) = two.pass(0);
    assert_eq!(at_asker, [Output::Ended { endpoint: ASKS, link, end: End::ShutDown }]);
}

#[test]
fn a_request_that_is_accepted_twice_is_granted_once() {
    let mut two = Two::new(1);
    let (link, request) = two.ask();
    let taken = two.listens.take_request(LISTENS, request).unwrap();
    let accepted = two.listens.accept(taken.ends, &taken, 5 * SECOND).unwrap();
    let accept = accept_message(accepted, &taken, [3; ADDRESS_BYTES], b"accepted");
    for _ in 0..2 {
        deliver(&mut two.asks, (ASKS, peer(2)), &accept, 0);
    }
    assert!(matches!(two.asks.poll_output(), Some(Output::Granted { link: it, .. }) if it == link));
    assert_eq!((two.asks.poll_output(), two.asks.invalid()), (None, 1));
    assert_eq!(two.asks.granted(link, peer(2)), Some(ASKS));
}

/// RR-REQ-2
#[test]
fn requests_beyond_the_backlog_are_rejected_without_state() {
    let mut two = Two::new(3);
    let links: Vec<Id> =
        (0..10_000).map(|_| two.asks.ask((ASKS, peer(2)), &[], 0, SECOND).unwrap()).collect();
    let (at_asker, at_listener) = two.pass(0);
    assert_eq!((at_listener.len(), at_asker.len()), (3, links.len() - 3));
    let is_busy =
        |it: &Output| matches!(it, Output::Refused { endpoint: ASKS, reason: Reason::Busy, .. });
    assert!(at_asker.iter().all(is_busy));
    assert_eq!((two.asks.links.len(), two.listens.requests.len()), (3, 3));
    // No space to report it to the user has the same effect.
    two.listens.end_listening(LISTENS);
    two.pass(0);
    assert!(two.listens.listen(LISTENS, 3, SECOND));
    let _ = two.asks.ask((ASKS, peer(2)), &[], 0, SECOND);
    let (_, bytes) = next_message(&mut two.asks).unwrap();
    two.listens.handle_message((LISTENS, peer(1)), &bytes, 0, |_| true, || false);
    let (at_asker, at_listener) = two.pass(0);
    assert!(is_busy(&at_asker[0]) && at_listener.is_empty());
}

/// RR-REQ-3
#[test]
fn unanswered_request_expires_on_both_sides() {
    // On the requesting side, after its timeout.
    let mut two = Two::new(1);
    let (link, request) = two.ask();
    two.asks.handle_timeout(SECOND - 1);
    assert_eq!(two.asks.poll_output(), None);
    two.asks.handle_timeout(SECOND);
    let (at_asker, at_listener) = two.pass(0);
    assert_eq!(at_asker, [Output::Ended { endpoint: ASKS, link, end: End::TimedOut }]);
    assert_eq!(at_listener, [Output::Withdrawn { endpoint: LISTENS, request, end: End::TimedOut }]);
    assert_eq!(two.listens.take_request(LISTENS, request), None);
    // On the listener, which knows the timeout.
    let (link, request) = two.ask();
    two.listens.handle_timeout(SECOND);
    let (at_asker, at_listener) = two.pass(0);
    assert_eq!(at_listener, [Output::Withdrawn { endpoint: LISTENS, request, end: End::TimedOut }]);
    let refused = Output::Refused {
        endpoint: ASKS,
        link,
        reason: Reason::TimedOut,
        data: [].as_slice().into(),
    };
    assert_eq!(at_asker, [refused]);
    // An acceptance after that, and a missing confirmation.
    let (link, request) = two.ask();
    assert!(two.asks.shut_down(ASKS, link));
    let accepted = two.accept(request);
    let (_, at_listener) = two.pass(0);
    let over = Output::Ended { endpoint: LISTENS, link: accepted, end: End::ShutDown };
    assert_eq!(at_listener, [over]);
    let (_, request) = two.ask();
    let accepted = two.accept(request);
    two.listens.handle_timeout(5 * SECOND);
    let late = Output::Ended { endpoint: LISTENS, link: accepted, end: End::TimedOut };
    assert!(matches!(two.listens.poll_output(), Some(Output::Send { .. })));
    assert_eq!(two.listens.poll_output(), Some(late));
}

/// RR-REQ-2
#[test]
fn foreign_ids_and_invalid_messages_are_dropped() {
    let mut two = Two::new(1);
    let (link, request) = two.ask();
    let taken = two.listens.take_request(LISTENS, request).unwrap();
    let accepted = two.listens.accept(taken.ends, &taken, SECOND).unwrap();
    let grants = accept_message(accepted, &taken, [3; ADDRESS_BYTES], b"");
    let unknown_peer = peer(9);
    let of_other_peer = |_: &[u8; ADDRESS_BYTES]| false;
    two.asks.handle_message((ASKS, unknown_peer), &grants, 0, of_other_peer, || true);
    for kind in [KIND_REFUSE, KIND_SHUT_DOWN] {
        let bytes = message(header(kind, 0, link.to_u64()), &[]);
        deliver(&mut two.asks, (ASKS, unknown_peer), &bytes, 0);
    }
    // A pending connection is not shut down by its listener.
    let bytes = message(header(KIND_SHUT_DOWN, 0, link.to_u64()), &[]);
    deliver(&mut two.asks, (ASKS, peer(2)), &bytes, 0);
    assert!(two.asks.poll_output().is_none() && two.asks.links.get(link).is_some());
    // Only the requesting side confirms.
    let confirms = message(header(KIND_CONFIRM, link.to_u64(), accepted.to_u64()), &[]);
    deliver(&mut two.listens, (LISTENS, unknown_peer), &confirms, 0);
    let answer = two.listens.poll_output();
    assert!(matches!(answer, Some(Output::Send { ends: (LISTENS, to), .. }) if to == unknown_peer));
    assert_eq!(two.listens.links.get(accepted).unwrap().state, LinkState::Accepted(SECOND));
    // Every byte of a message, corrupted, and every length of it.
    let good = message(header(KIND_ASK, 5, 0), b"some data");
    for at in 0..good.len() {
        deliver(&mut two.listens, (7, unknown_peer), &good[..at], 0);
        assert_eq!(two.listens.poll_output(), None, "{at}");
    }
    for (kind, length) in [(0, 9), (7, 9), (255, 9), (KIND_ASK, 8), (KIND_ASK, 10)] {
        let mut bytes = good.clone();
        (bytes[0], bytes[2]) = (kind, length);
        deliver(&mut two.listens, (7, unknown_peer), &bytes, 0);
        assert_eq!(two.listens.poll_output(), None, "{kind} {length}");
    }
    let longest = vec![0; DATA_MAX + 1];
    let too_long = message(header(KIND_ASK, 5, 0), &longest);
    deliver(&mut two.listens, (7, unknown_peer), &too_long, 0);
    assert_eq!(two.listens.poll_output(), None);
    assert_eq!(two.listens.invalid(), good.len() as u64 + 5 + 1);
    deliver(&mut two.listens, (7, unknown_peer), &good, 0);
    let (ends, bytes) = next_message(&mut two.listens).unwrap();
    let (refusal, _) = split(&bytes).unwrap();
    assert_eq!((ends, refusal.kind, refusal.peer.get()), ((7, unknown_peer), KIND_REFUSE, 5));
    assert_eq!(Reason::from_wire(refusal.reason), Reason::NotListening);
}

#[test]
fn failed_peer_ends_its_requests_and_connections() {
    let mut two = Two::new(2);
    let (link, request) = two.ask();
    two.accept(request);
    let (_, waits) = two.ask();
    let failure = PeerFailure::Left;
    two.listens.end_of_peers(|other| other == peer(8), &failure);
    assert_eq!(two.listens.poll_output(), None);
    two.listens.end_of_peers(|other| other == peer(1), &failure);
    let end = End::Peer(failure.clone());
    let withdrawn = Output::Withdrawn { endpoint: LISTENS, request: waits, end: end.clone() };
    assert_eq!(two.listens.poll_output(), Some(withdrawn));
    assert!(matches!(two.listens.poll_output(), Some(Output::Ended { endpoint: LISTENS, .. })));
    assert_eq!(two.listens.poll_output(), None);
    assert_eq!((two.listens.links.len(), two.listens.requests.len()), (0, 0));
    two.asks.end_of_peers(|_| true, &failure);
    let mut outputs = Vec::new();
    while let Some(output) = two.asks.poll_output() {
        outputs.push(output);
    }
    assert!(outputs.contains(&Output::Ended { endpoint: ASKS, link, end }), "{outputs:?}");
}
