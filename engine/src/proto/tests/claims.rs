//! Claimed messages.

use super::*;
use crate::proto::effects::Arrival;

impl Bench {
    fn wish(&self) -> ReceiveRequest {
        receive_request(None, 5, 1, 0)
    }

    fn claim(&mut self) -> Option<(Id, Arrival)> {
        let wish = self.wish();
        self.core.claim(&wish).unwrap()
    }

    fn receive_claimed(&mut self, claim: Id, capacity: u64) -> Id {
        let id = self.core.shared_mut().new_claimed_receive(claim, capacity).unwrap().unwrap();
        self.core.start_claimed(id, claim, &mut self.results);
        id
    }
}

#[test]
fn claimed_message_is_reserved_for_its_claim() {
    let mut bench = Bench::new(Config::for_tests());
    assert_eq!(bench.claim(), None);
    bench.deliver(&eager(0, 10, 0)).unwrap();
    bench.deliver(&eager(0, 20, 0)).unwrap();
    let wish = bench.wish();
    let seen = bench.core.peek(&wish).unwrap();
    let (claim, arrival) = bench.claim().unwrap();
    assert_eq!((seen, arrival.length), (Some(arrival), 10));
    let other = bench.receive(30);
    assert!(matches!(bench.results.ended[&other], Ended::Received(it) if it.length == 20));
    let mine = bench.receive_claimed(claim, 5);
    assert_eq!(bench.results.ended[&mine], Ended::Received(arrival), "truncated, like any other");
    assert!(bench.core.shared_mut().new_claimed_receive(claim, 5).is_none(), "the claim has ended");
    assert!(!bench.core.discard_claimed(claim));
    assert_eq!(bench.core.shared().operations().len(), 0);
}

/// RR-CREDIT-4
#[test]
fn claimed_message_holds_credit_until_received_or_discarded() {
    for is_discarded in [false, true] {
        let mut bench = Bench::new(Config::for_tests());
        bench.deliver(&eager(0, 100, 77)).unwrap();
        let (claim, _) = bench.claim().unwrap();
        assert!(bench.core.shared().unexpected().held_bytes().0 > 0);
        assert!(bench.transmit().is_empty(), "it is not matched");
        if is_discarded {
            assert!(bench.core.discard_claimed(claim));
        } else {
            bench.receive_claimed(claim, 100);
        }
        assert_eq!(bench.core.shared().unexpected().held_bytes().0, 0);
        assert_eq!(bench.transmit(), [frame::KIND_MATCHED], "its send completes as well");
    }
}

/// RR-RDV-5
#[test]
fn claimed_rendezvous_is_pulled_or_its_send_completes() {
    for is_discarded in [false, true] {
        let mut bench = Bench::new(Config::for_tests());
        bench.deliver(&rts(0, 6000)).unwrap();
        let (claim, arrival) = bench.claim().unwrap();
        assert_eq!(arrival.length, 6000);
        if is_discarded {
            assert!(bench.core.discard_claimed(claim));
            assert_eq!(bench.transmit(), [frame::KIND_DONE]);
        } else {
            bench.lane();
            let id = bench.receive_claimed(claim, 6000);
            assert_eq!(bench.transmit(), [frame::KIND_GRANT; 2]);
            assert!(!bench.results.ended.contains_key(&id));
        }
    }
}

/// RR-END-2
#[test]
fn claims_outlive_their_session_and_report_its_failure() {
    for length in [10, 5000] {
        let mut bench = Bench::new(Config::for_tests());
        let body = if length == 10 { eager(0, 10, 0) } else { rts(0, length) };
        bench.deliver(&body).unwrap();
        let (claim, arrival) = bench.claim().unwrap();
        bench.core.fail_session(bench.slot, PeerFailure::Left, &mut bench.results);
        let id = bench.receive_claimed(claim, 100);
        match &bench.results.ended[&id] {
            Ended::Received(got) => {
                assert_eq!((*got, length), (arrival, 10), "it had arrived completely")
            }
            ended => assert!(length == 5000 && is_lost(ended, &PeerFailure::Left), "{ended:?}"),
        }
    }
}

fn is_lost(ended: &Ended, why: &PeerFailure) -> bool {
    matches!(ended, Ended::Failed(failure, Some(name)) if failure == why && name.engine == PEER)
}

#[test]
fn claims_end_with_their_endpoint_and_report_removed_peers() {
    let mut bench = Bench::new(Config::for_tests());
    bench.deliver(&rts(0, 5000)).unwrap();
    bench.deliver(&eager(0, 8, 3)).unwrap();
    let claims = [bench.claim().unwrap().0, bench.claim().unwrap().0];
    assert!(bench.core.remove_peer(bench.peer, &mut bench.results));
    let id = bench.receive_claimed(claims[0], 100);
    assert!(is_lost(&bench.results.ended[&id], &PeerFailure::Removed));
    bench.core.close_endpoint(0, &mut bench.results);
    assert!(bench.core.shared_mut().new_claimed_receive(claims[1], 100).is_none());
    let mut bench = Bench::new(Config::for_tests());
    bench.deliver(&rts(0, 5000)).unwrap();
    let (claim, _) = bench.claim().unwrap();
    bench.core.close_endpoint(0, &mut bench.results);
    assert_eq!(bench.transmit(), [frame::KIND_DONE], "its sender is notified of the discard");
    assert!(!bench.core.discard_claimed(claim));
}
