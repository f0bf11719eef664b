//! A peer that grants without limit and reads nothing.

use super::*;
use crate::proto::ready::Work;
use crate::proto::session::lanes::lane::GRANTED_MAX;

/// RR-RDV-9
#[test]
fn peer_that_grants_without_reading_is_disconnected() {
    let mut bench = Bench::new(Config::for_tests());
    let lane = bench.lane();
    let send = bench.send(5000, CompletionLevel::Inject);
    bench.transmit();
    for chunk in 0..GRANTED_MAX as u32 {
        bench.deliver(&grant(send, 0, 1, chunk)).unwrap();
    }
    let one_more = grant(send, 0, 1, GRANTED_MAX as u32);
    assert_eq!(bench.deliver(&one_more), Err(FrameError::AnswersWait(GRANTED_MAX)));
    assert_eq!(bench.core.shared.lanes.get(lane).unwrap().ranges_to_send(), GRANTED_MAX);
}

/// A peer may grant on a lane and refuse it then: nothing is sent on it.
#[test]
fn lane_with_grants_of_its_peer_may_be_refused() {
    let mut bench = Bench::new(Config::for_tests());
    let lane = bench.core.join_as_lane(&lane_hello(PEER, SESSION, 3), 0).unwrap();
    let send = bench.send(5000, CompletionLevel::Inject);
    bench.transmit();
    bench.deliver(&grant(send, 0, 1, 0)).unwrap();
    assert!(bench.core.next_send(lane, &bench.results).is_none(), "it is not accepted yet");
    bench.core.refuse_lane(lane, 0);
    assert!(bench.core.shared().lanes().get(lane).is_none());
}

/// RR-RDV-9
#[test]
fn grants_continue_while_some_are_served() {
    let mut bench = Bench::new(Config::for_tests());
    let lane = bench.lane();
    let send = bench.send(5000, CompletionLevel::Inject);
    bench.transmit();
    for chunk in 0..2 * GRANTED_MAX as u32 {
        bench.deliver(&grant(send, 0, 1, chunk)).unwrap();
        assert!(bench.core.next_send(lane, &bench.results).is_some());
        bench.core.with_lane(lane, |it, cx| it.handle_chunk_sent(cx, lane, 0));
        bench.core.handle_chunk_released(send, &mut bench.results);
    }
}

/// RR-RDV-9
#[test]
fn lane_at_its_grant_limit_gets_no_more() {
    let mut bench = Bench::new(Config::for_tests());
    let lane = bench.lane();
    let receive = bench.receive(1);
    // All of them together are far fewer bytes than the horizon.
    bench.core.shared.lanes.get_mut(lane).unwrap().fill(receive);
    bench.deliver(&rts(0, 1)).unwrap();
    assert_eq!(bench.transmit(), [] as [u8; 0]);
    bench.core.shared.lanes.get_mut(lane).unwrap().withdraw_one();
    bench.core.shared.ready.add(bench.slot, Work::Grant);
    assert_eq!(bench.transmit(), [frame::KIND_GRANT]);
}

/// Starts eight messages of a chunk each, the first four of which are granted.
fn eight(bench: &mut Bench) -> Id {
    bench.use_checksums(true);
    let lane = bench.lane();
    for _ in 0..8 {
        bench.receive(4096);
        bench.deliver(&rts(0, 4096)).unwrap();
    }
    assert_eq!(bench.transmit(), [frame::KIND_GRANT; 4]);
    lane
}

fn four_ahead() -> Bench {
    Bench::new(Config { horizon_chunks: 4, ..Config::for_tests() })
}

#[test]
fn done_is_sent_with_the_next_grants() {
    let mut bench = four_ahead();
    let lane = eight(&mut bench);
    let (done, grant) = ([frame::KIND_DONE], [frame::KIND_GRANT]);
    for (dones, grants) in [(0, 0), (2, 2), (0, 0), (2, 2), (1, 0), (1, 0), (1, 0), (1, 0)] {
        assert!(checksums::chunk_comes(&mut bench, lane, true));
        assert_eq!(bench.transmit(), [done.repeat(dones), grant.repeat(grants)].concat());
    }
    assert_eq!(bench.results.ended.len(), 8);
}

#[test]
fn done_is_not_delayed_without_further_grants() {
    let mut bench = four_ahead();
    let lane = eight(&mut bench);
    assert!(checksums::chunk_comes(&mut bench, lane, true));
    assert_eq!(bench.transmit(), [] as [u8; 0]);
    bench.core.lane_lost(lane, false, "closed", 0, &mut bench.results);
    assert!(bench.transmit().contains(&frame::KIND_DONE));
}
