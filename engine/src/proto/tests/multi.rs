//! Receives that take many messages.

use super::*;

impl Bench {
    fn receive_from(&mut self, peer: Option<Id>, capacity: u64, min_free: Option<u64>) -> Id {
        let request = ReceiveRequest { min_free, ..receive_request(peer, 5, 1, capacity) };
        let id = self.core.shared_mut().new_receive(&request).unwrap();
        self.core.start_receive(id, &mut self.results);
        id
    }

    fn receive_many(&mut self, capacity: u64, min_free: u64) -> Id {
        self.receive_from(None, capacity, Some(min_free))
    }

    /// Returns where the messages of a multi-receive were placed: offset and length.
    fn slices(&self, of: Id) -> Vec<(u64, u64)> {
        let its = self.results.slices.iter().filter(|slice| slice.0 == of);
        its.map(|&(_, _, offset, length)| (offset, length)).collect()
    }

    fn has_ended(&self, id: Id) -> bool {
        self.results.ended.contains_key(&id)
    }

    /// Returns the lengths of the messages of slices.
    fn lengths(&self, of: Id) -> Vec<u64> {
        let its = self.results.slices.iter().filter(|slice| slice.0 == of);
        let arrived = its.filter_map(|slice| match self.results.ended.get(&slice.1) {
            Some(Ended::Received(arrival)) => Some(arrival.length),
            _ => None,
        });
        arrived.collect()
    }
}

#[test]
fn messages_are_placed_consecutively_until_the_buffer_is_used() {
    for is_early in [true, false] {
        let mut bench = Bench::new(Config::for_tests());
        let posted = is_early.then(|| bench.receive_many(64, 10));
        for length in [10, 20, 24, 8] {
            bench.deliver(&eager(0, length, 0)).unwrap();
        }
        let many = posted.unwrap_or_else(|| bench.receive_many(64, 10));
        assert_eq!(bench.slices(many), [(0, 10), (10, 20), (30, 24), (54, 8)]);
        assert_eq!(bench.lengths(many), [10, 20, 24, 8]);
        assert_eq!(bench.results.ended[&many], Ended::Released { used: 62 });
        bench.deliver(&eager(0, 1, 0)).unwrap();
        assert_eq!(bench.slices(many).len(), 4, "it is released");
        let next = bench.receive_many(1, 1);
        assert_eq!(bench.slices(next), [(0, 1)], "that message waited");
        assert_eq!(bench.core.shared().operations().len(), 0);
    }
}

#[test]
fn message_longer_than_the_free_space_is_truncated() {
    let mut bench = Bench::new(Config::for_tests());
    let many = bench.receive_many(64, 10);
    bench.deliver(&eager(0, 50, 0)).unwrap();
    bench.deliver(&eager(0, 30, 0)).unwrap();
    assert_eq!(bench.slices(many), [(0, 50), (50, 14)]);
    assert_eq!(bench.lengths(many), [50, 30], "the length as it was sent");
    assert_eq!(bench.results.ended[&many], Ended::Released { used: 64 });
}

#[test]
fn empty_messages_take_no_space() {
    let mut bench = Bench::new(Config::for_tests());
    let many = bench.receive_many(8, 0);
    (0..5).for_each(|_| assert!(bench.deliver(&eager(0, 0, 0)).is_ok()));
    assert!(bench.slices(many).iter().all(|slice| *slice == (0, 0)) && !bench.has_ended(many));
    bench.deliver(&eager(0, 8, 0)).unwrap();
    assert_eq!(bench.results.ended[&many], Ended::Released { used: 8 }, "nothing is free");
}

/// RR-MATCH-2
#[test]
fn multi_receive_keeps_its_matching_order() {
    let mut bench = Bench::new(Config::for_tests());
    let peer = Some(bench.peer);
    let before = bench.receive_from(peer, 8, None);
    let many = bench.receive_many(16, 1);
    let after = bench.receive_from(peer, 8, None);
    bench.deliver(&eager(0, 8, 0)).unwrap();
    assert!(bench.has_ended(before) && bench.slices(many).is_empty());
    bench.deliver(&eager(0, 8, 0)).unwrap();
    bench.deliver(&eager(0, 8, 0)).unwrap();
    assert!(bench.slices(many).len() == 2 && bench.has_ended(many) && !bench.has_ended(after));
    bench.deliver(&eager(0, 8, 0)).unwrap();
    assert!(bench.has_ended(after));
}

#[test]
fn pulled_message_keeps_its_slice_and_the_buffer() {
    for is_cancelled in [false, true] {
        let mut bench = Bench::new(Config::for_tests());
        let many = bench.receive_many(64, 10);
        bench.deliver(&rts(0, 30)).unwrap();
        bench.deliver(&eager(0, 34, 0)).unwrap();
        assert_eq!(bench.slices(many), [(0, 30), (30, 34)]);
        assert_eq!(bench.lengths(many), [34], "the other one is in progress");
        let may_cancel = bench.core.shared_mut().cancel_receive(many, &mut bench.results);
        assert!(!may_cancel && !bench.has_ended(many), "it is used up, and not released");
        if is_cancelled {
            bench.core.close_endpoint(0, &mut bench.results);
        } else {
            let failure = PeerFailure::Lost("gone".into());
            bench.core.fail_session(bench.slot, failure, &mut bench.results);
        }
        let pulled = bench.results.slices[0].1;
        assert!(bench.has_ended(pulled) && bench.lengths(many) == [34]);
        assert_eq!(bench.results.ended[&many], Ended::Released { used: 64 });
        assert_eq!(bench.core.shared().operations().len(), 0);
    }
}

#[test]
fn cancelled_multi_receive_ends_after_its_matched_messages() {
    let mut bench = Bench::new(Config::for_tests());
    let many = bench.receive_many(64, 10);
    bench.deliver(&rts(0, 30)).unwrap();
    assert!(bench.core.shared_mut().cancel_receive(many, &mut bench.results));
    assert!(
        !bench.has_ended(many) && !bench.core.shared_mut().cancel_receive(many, &mut bench.results)
    );
    bench.deliver(&eager(0, 8, 0)).unwrap();
    assert_eq!(bench.slices(many).len(), 1, "it matches no more");
    bench.core.fail_session(bench.slot, PeerFailure::Left, &mut bench.results);
    assert_eq!(bench.results.ended[&many], Ended::Cancelled);
}

/// RR-CREDIT-4
#[test]
fn multi_receive_is_released_if_no_end_can_be_reported() {
    let mut bench = Bench::new(Config::for_tests());
    let many = bench.receive_many(64, 10);
    bench.deliver(&eager(0, 8, 0)).unwrap();
    bench.results.is_full = true;
    bench.deliver(&eager(0, 9, 0)).unwrap();
    assert_eq!(bench.results.ended[&many], Ended::Released { used: 8 });
    let next = bench.receive_many(64, 10);
    assert_eq!(bench.results.ended[&next], Ended::Released { used: 0 }, "there is still no space");
    bench.results.is_full = false;
    let next = bench.receive_many(64, 10);
    assert_eq!(bench.lengths(next), [9], "no message is lost");
}

#[test]
fn directed_multi_receive_ends_with_its_peer() {
    let mut bench = Bench::new(Config::for_tests());
    let many = bench.receive_from(Some(bench.peer), 64, Some(10));
    bench.deliver(&eager(0, 8, 0)).unwrap();
    bench.core.fail_session(bench.slot, PeerFailure::Left, &mut bench.results);
    assert!(matches!(bench.results.ended[&many], Ended::Failed(PeerFailure::Left, Some(_))));
    let late = bench.receive_from(Some(bench.peer), 64, Some(10));
    assert!(matches!(bench.results.ended[&late], Ended::Failed(PeerFailure::Left, Some(_))));
}
