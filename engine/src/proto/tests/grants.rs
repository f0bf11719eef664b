//! Grants without an end, of which nothing is read.

use super::super::bulk::{GRANTED_MAX, Incoming};
use super::*;

/// RR-RDV-9
#[test]
fn a_peer_that_grants_and_reads_nothing_is_given_up() {
    let mut bench = Bench::new(Config::for_tests());
    let lane = bench.lane();
    let send = bench.send(5000, CompletionLevel::Inject);
    bench.hear();
    for chunk in 0..GRANTED_MAX as u32 {
        bench.say(&grant(send, 0, 1, chunk)).unwrap();
    }
    let one_more = grant(send, 0, 1, GRANTED_MAX as u32);
    assert_eq!(bench.say(&one_more), Err(FrameError::AnswersWait(GRANTED_MAX)));
    assert_eq!(bench.core.lanes.get(lane).unwrap().outgoing.len(), GRANTED_MAX);
}

/// RR-RDV-9
#[test]
fn grants_go_on_as_long_as_some_of_them_leave() {
    let mut bench = Bench::new(Config::for_tests());
    let lane = bench.lane();
    let send = bench.send(5000, CompletionLevel::Inject);
    bench.hear();
    for chunk in 0..2 * GRANTED_MAX as u32 {
        bench.say(&grant(send, 0, 1, chunk)).unwrap();
        assert!(bench.core.next_send(lane, &bench.ends).is_some());
        bench.core.handle_chunk_sent(lane, 0);
        bench.core.handle_chunk_released(send, &mut bench.ends);
    }
}

/// RR-RDV-9
#[test]
fn a_lane_that_was_granted_as_much_as_may_be_gets_no_more() {
    let mut bench = Bench::new(Config::for_tests());
    let lane = bench.lane();
    let receive = bench.receive(1);
    // All of them together are far less than the horizon has bytes.
    let tiny = Incoming { operation: receive, offset: 0, length: 0, chunk: 0, granted_ns: 0 };
    let full = std::iter::repeat_n(tiny, GRANTED_MAX);
    bench.core.lanes.get_mut(lane).unwrap().incoming.extend(full);
    bench.say(&rts(0, 1)).unwrap();
    assert_eq!(bench.hear(), [] as [u8; 0]);
    bench.core.lanes.get_mut(lane).unwrap().incoming.pop_front();
    bench.core.mark_granting(bench.slot);
    assert_eq!(bench.hear(), [frame::KIND_GRANT]);
}
