//! Endpoints that close with operations in progress, and reports when sessions end.

use super::*;
use crate::proto::session::rendezvous::pull::lanes::ChunkReceive;

/// Starts a receive with 4096 bytes in the kernel on a lane.
fn pulling(bench: &mut Bench) -> (Id, Id, ChunkReceive) {
    let lane = bench.lane();
    let receive = bench.receive(6000);
    bench.deliver(&rts(0, 6000)).unwrap();
    assert_eq!(bench.transmit(), [frame::KIND_GRANT; 2]);
    let chunk = bench.core.shared_mut().next_receive(lane).unwrap();
    (lane, receive, chunk)
}

/// RR-RDV-3, RR-RDV-5
#[test]
fn closed_pull_ends_after_the_kernel_and_notifies_its_sender() {
    let mut bench = Bench::new(Config::for_tests());
    let (lane, receive, chunk) = pulling(&mut bench);
    bench.core.close_endpoint(0, &mut bench.results);
    assert!(bench.results.ended.is_empty(), "the kernel may still write");
    assert_eq!(bench.transmit(), [frame::KIND_DONE]);
    assert_eq!(bench.lanes_to_close(), 1, "its peer may never send the rest");
    bench.core.lane_lost(lane, false, "given up", 0, &mut bench.results);
    assert!(bench.core.shared().has_closed());
    bench.core.handle_chunk_received(lane, chunk, None, 0, &mut bench.results);
    assert_eq!(bench.results.ended[&receive], Ended::Cancelled);
    assert!(!bench.core.shared().has_closed());
    assert!(bench.transmit().is_empty(), "missing bytes are not granted again");
}

/// RR-RDV-5
#[test]
fn closed_rendezvous_send_ends_after_the_kernel_and_serves_no_more() {
    let mut bench = Bench::new(Config::for_tests());
    let lane = bench.lane();
    let send = bench.send(5000, CompletionLevel::Inject);
    bench.transmit();
    bench.deliver(&grant(send, 0, 1000, 0)).unwrap();
    bench.deliver(&grant(send, 1000, 1000, 1)).unwrap();
    bench.core.next_send(lane, &bench.results).unwrap();
    bench.core.close_endpoint(0, &mut bench.results);
    assert!(
        bench.results.ended.is_empty() && bench.core.shared().is_sending_of_closed(),
        "it may still be sent"
    );
    assert_eq!(bench.lanes_to_close(), 0);
    bench.core.cancel_closed(|_| true, &mut bench.results);
    assert!(bench.results.ended.is_empty(), "the kernel may still read");
    assert_eq!(bench.lanes_to_close(), 1);
    bench.core.with_lane(lane, |it, cx| it.handle_chunk_sent(cx, lane, 0));
    assert!(bench.core.next_send(lane, &bench.results).is_none(), "granted before the close");
    assert_eq!(bench.lanes_to_close(), 1);
    bench.deliver(&grant(send, 2000, 1000, 2)).unwrap();
    assert_eq!(bench.transmit(), [frame::KIND_REFUSED]);
    bench.core.handle_chunk_released(send, &mut bench.results);
    assert_eq!(bench.results.ended[&send], Ended::Cancelled);
    assert_eq!(bench.core.shared.operations.len(), 0);
}

#[test]
fn cancelled_waiting_sends_unblock_others() {
    let mut bench = Bench::new(Config::for_tests());
    let second = bench.core.shared_mut().endpoints_mut().open().unwrap();
    // The peer has credit for two.
    let sent: Vec<Id> = (0..2).map(|_| bench.send(8, CompletionLevel::Match)).collect();
    assert_eq!(bench.transmit(), [frame::KIND_EAGER; 2]);
    let waiting = bench.send(8, CompletionLevel::Match);
    let request = SendRequest { endpoint: second, ..send_request(bench.peer, 5, 1, 8) };
    let other = bench.core.new_send(&request).unwrap();
    bench.core.enqueue(other, 0);
    assert!(bench.transmit().is_empty());
    bench.core.close_endpoint(0, &mut bench.results);
    assert!(bench.core.shared().is_sending_of_closed());
    bench.core.cancel_closed(|_| true, &mut bench.results);
    for send in [sent[0], sent[1], waiting] {
        assert_eq!(bench.results.ended[&send], Ended::Cancelled);
    }
    // Its envelope of credit goes to the next one.
    bench.announce(3, 3000);
    assert_eq!(bench.transmit(), [frame::KIND_EAGER]);
    bench.acknowledge();
    assert_eq!(bench.results.ended[&other], Ended::Sent { accepted: 8 });
}

/// A message that the peer has needs its sender no more.
#[test]
fn closing_does_not_wait_for_matches() {
    let mut bench = Bench::new(Config::for_tests());
    let send = bench.send(8, CompletionLevel::Match);
    bench.transmit();
    bench.acknowledge();
    bench.core.close_endpoint(0, &mut bench.results);
    assert!(!bench.core.shared().is_sending_of_closed() && bench.core.shared().has_closed());
    bench.core.cancel_closed(|_| true, &mut bench.results);
    assert_eq!(bench.results.ended[&send], Ended::Cancelled);
}

/// RR-END-5
#[test]
fn completed_sends_may_be_lost_until_the_peer_acknowledges_them() {
    let mut bench = Bench::new(Config::for_tests());
    let slot = bench.slot;
    for _ in 0..2 {
        assert!(!bench.core.session(slot).unwrap().segments().may_lose_completed());
        bench.send(10, CompletionLevel::Inject);
        assert_eq!((bench.transmit(), bench.flags), (vec![frame::KIND_EAGER], 0));
        assert!(bench.core.session(slot).unwrap().segments().may_lose_completed());
        bench.acknowledge();
    }
    assert!(!bench.core.session(slot).unwrap().segments().may_lose_completed());
}

/// A peer inserted again for a second endpoint has no session that could still be left.
///
/// RR-END-1, RR-END-5
#[test]
fn sends_to_a_reinserted_peer_end_with_its_session() {
    let mut bench = Bench::new(Config::for_tests());
    assert!(bench.core.remove_peer(bench.peer, &mut bench.results));
    assert_eq!(bench.transmit(), [frame::KIND_GOODBYE]);
    bench.core.fail_session(bench.slot, PeerFailure::Removed, &mut bench.results);
    bench.peer = bench.core.insert_peer(PEER, locator(), 0).unwrap();
    bench.core.insert_peer(PEER, locator(), 1).unwrap();
    let send = bench.send(8, CompletionLevel::Delivery);
    let failure = PeerFailure::Lost("no answer".into());
    bench.core.fail_session(bench.slot, failure.clone(), &mut bench.results);
    let ended = bench.results.ended.get(&send);
    assert!(matches!(ended, Some(Ended::Failed(why, _)) if *why == failure), "{ended:?}");
}

/// The peer leaves while this side does, whose user inserts it again after that.
///
/// RR-END-1
#[test]
fn crossing_goodbyes_are_no_failure_for_a_reinserted_peer() {
    let mut bench = Bench::new(Config::for_tests());
    bench.send(8, CompletionLevel::Inject);
    assert_eq!(bench.transmit(), [frame::KIND_EAGER]);
    assert!(bench.core.remove_peer(bench.peer, &mut bench.results));
    assert_eq!(bench.transmit(), [frame::KIND_GOODBYE]);
    bench.core.fail_session(bench.slot, PeerFailure::Left, &mut bench.results);
    let peer = bench.core.insert_peer(PEER, locator(), 0).unwrap();
    assert!(bench.core.destination(peer).is_ok_and(|to| to.session == bench.slot));
}
