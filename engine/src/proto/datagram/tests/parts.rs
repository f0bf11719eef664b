//! Messages in parts, in each of their states.

use super::super::super::effects::{CompletionLevel, Ended};
use super::super::super::failure::PeerFailure;
use super::super::super::table::Id;
use super::super::segment::SegmentPool;
use super::{flow, net};
use crate::proto::sim::{Net, content};

const LENGTH: usize = 1000;

/// Returns all orders of `0..count`.
fn permutations(count: usize) -> Vec<Vec<usize>> {
    let mut all = vec![Vec::new()];
    for next in 0..count {
        let longer = |order: &Vec<usize>| {
            (0..=next)
                .map(|at| {
                    let mut order = order.clone();
                    order.insert(at, next);
                    order
                })
                .collect::<Vec<_>>()
        };
        all = all.iter().flat_map(longer).collect();
    }
    all
}

fn received(net: &Net, id: Id) -> bool {
    matches!(net.end_of(1, id), Some(Ended::Received(_)))
}

/// RR-DGRAM-7
#[test]
fn parts_are_reassembled_in_any_order_at_any_receive_time() {
    for order in permutations(4) {
        for posted_after in 0..=4 {
            for capacity in [0, 100, 600, LENGTH, 3000] {
                let mut net = net();
                let send = net.send(flow(1), LENGTH, CompletionLevel::Match).unwrap();
                let parts = net.capture(0, 1);
                assert_eq!(parts.len(), 4);
                let mut receive = None;
                for count in 0..=4 {
                    if count == posted_after {
                        let id = net.receive_of(flow(1), capacity);
                        receive = Some(id);
                        // The first segment has the envelope.
                        let is_matched = order[..count].contains(&0);
                        if is_matched && count < 4 {
                            let engine = &mut net.engines[1];
                            let is_cancelled = engine.core.cancel_receive(id, &mut engine.memory);
                            assert!(!is_cancelled, "its message has arrived");
                        }
                    }
                    if let Some(&part) = order.get(count) {
                        net.deliver(0, 1, &parts[part].1).unwrap();
                    }
                }
                assert!(received(&net, receive.unwrap()), "{order:?} {posted_after}");
                let answer = net.capture(1, 0);
                net.deliver(1, 0, &answer[0].1).unwrap();
                assert_eq!(net.end_of(0, send), Some(&Ended::Sent { accepted: 1000 }));
                for (token, _) in parts {
                    net.acknowledge(0, 1, token);
                }
                net.acknowledge(1, 0, answer[0].0);
                net.check();
            }
        }
    }
}

/// RR-SEG-3
#[test]
fn delivery_level_completes_with_the_last_acked_segment() {
    for last in 0..4 {
        let mut net = net();
        let send = net.send(flow(1), LENGTH, CompletionLevel::Delivery).unwrap();
        let parts = net.capture(0, 1);
        for (at, (token, bytes)) in parts.iter().enumerate() {
            net.deliver(0, 1, bytes).unwrap();
            if at != last {
                net.acknowledge(0, 1, *token);
            }
        }
        assert!(net.end_of(0, send).is_none());
        net.acknowledge(0, 1, parts[last].0);
        assert_eq!(net.end_of(0, send), Some(&Ended::Sent { accepted: 1000 }));
    }
}

/// Returns a net in which a message in parts stalls after two segments, and these segments.
fn half_sent(level: CompletionLevel) -> (Net, Id, Vec<(u64, Vec<u8>)>) {
    let mut net = net();
    net.engines[0].core.datagrams.segments = SegmentPool::new(2048, 4 * 2048);
    let send = net.send(flow(1), LENGTH, level).unwrap();
    let parts = net.capture(0, 1);
    assert_eq!(parts.len(), 2, "limited by the pool");
    let engine = &mut net.engines[0];
    assert!(!engine.core.cancel_send(send, &mut engine.memory));
    (net, send, parts)
}

/// RR-DGRAM-8
#[test]
fn receive_fails_when_the_sender_cancels() {
    for order in permutations(3) {
        for posted_after in 0..=3 {
            let (mut net, send, mut all) = half_sent(CompletionLevel::Match);
            let peer = net.engines[0].peers[&(1, 0)];
            let engine = &mut net.engines[0];
            assert!(engine.core.remove_peer(peer, &mut engine.memory));
            let ended = net.end_of(0, send);
            assert!(matches!(ended, Some(Ended::Failed(PeerFailure::Removed, _))), "{ended:?}");
            all.extend(net.capture(0, 1));
            assert_eq!(all.len(), 3, "two segments, and the cancellation");
            let mut receive = None;
            for count in 0..=3 {
                if count == posted_after {
                    receive = Some(net.receive_of(flow(1), LENGTH));
                }
                if let Some(&next) = order.get(count) {
                    net.deliver(0, 1, &all[next].1).unwrap();
                }
            }
            let ended = net.end_of(1, receive.unwrap());
            assert!(
                matches!(ended, Some(Ended::Failed(PeerFailure::Left, Some(_)))),
                "{order:?} {posted_after}: {ended:?}"
            );
            for (token, _) in all {
                net.acknowledge(0, 1, token);
            }
            // The next message is not affected.
            let back = super::Flow { from: 1, source: 1, to: 0, ..flow(1) };
            net.receive((0, 0), Some((1, 1)), 1, LENGTH);
            net.send(back, LENGTH, CompletionLevel::Delivery);
            net.settle(20);
            net.check_rest();
        }
    }
}

/// RR-MATCH-3, RR-DGRAM-7
#[test]
fn partially_sent_message_ends_when_its_target_endpoint_closes() {
    for order in [[0, 1], [1, 0]] {
        let (mut net, send, parts) = half_sent(CompletionLevel::Match);
        net.deliver(0, 1, &parts[order[0]].1).unwrap();
        let engine = &mut net.engines[1];
        engine.core.close_endpoint(0, &mut engine.memory);
        net.deliver(0, 1, &parts[order[1]].1).unwrap();
        let answer = net.capture(1, 0);
        net.deliver(1, 0, &answer[0].1).unwrap();
        let ended = net.end_of(0, send);
        assert!(matches!(ended, Some(Ended::Failed(PeerFailure::Left, Some(_)))), "{ended:?}");
        for (token, _) in parts {
            net.acknowledge(0, 1, token);
        }
        net.acknowledge(1, 0, answer[0].0);
        assert!(net.capture(0, 1).is_empty(), "the rest is not sent");
        net.check_rest();
    }
}

/// If no receive waits, the rest of a message is received and dropped.
/// RR-DGRAM-8
#[test]
fn later_parts_of_a_dropped_message_are_dropped() {
    let (mut net, _, parts) = half_sent(CompletionLevel::Inject);
    net.deliver(0, 1, &parts[0].1).unwrap();
    let engine = &mut net.engines[1];
    engine.core.close_endpoint(0, &mut engine.memory);
    net.deliver(0, 1, &parts[1].1).unwrap();
    for (token, _) in parts {
        net.acknowledge(0, 1, token);
    }
    net.settle(20);
    net.check_rest();
    assert!(net.engines[1].core.counters.stale_frames >= 3);
}

/// RR-DGRAM-9, RR-END-2
#[test]
fn partial_messages_end_with_the_session() {
    for posted_after in 0..=2 {
        let (mut net, send, parts) = half_sent(CompletionLevel::Delivery);
        let mut receive = None;
        for count in 0..=2 {
            if count == posted_after {
                receive = Some(net.receive_of(flow(1), LENGTH));
            }
            if let Some((_, bytes)) = parts.get(count) {
                net.deliver(0, 1, bytes).unwrap();
            }
        }
        for engine in &mut net.engines {
            engine.core.fail_session(0, PeerFailure::Lost("cut".into()), &mut engine.memory);
        }
        for (engine, id) in [(0, send), (1, receive.unwrap())] {
            let ended = net.end_of(engine, id);
            assert!(matches!(ended, Some(Ended::Failed(PeerFailure::Lost(_), _))), "{ended:?}");
        }
        net.check_rest();
    }
}

#[test]
fn truncated_message_does_not_write_past_its_buffer() {
    let mut net = net();
    net.send(flow(1), LENGTH, CompletionLevel::Inject);
    let parts = net.capture(0, 1);
    let receive = net.receive_of(flow(1), 300);
    for (_, bytes) in parts.iter().rev() {
        net.deliver(0, 1, bytes).unwrap();
    }
    let (_, _, bytes) = &net.engines[1].memory.ended[&receive];
    assert_eq!(bytes[..], content(&flow(1), 0, LENGTH)[..300]);
}
