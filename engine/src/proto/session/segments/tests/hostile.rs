//! Frames that a correct peer never sends.

use proptest::prelude::*;
use zerocopy::IntoBytes;

use super::super::window::FRAMES_MAX;
use super::{CONTENT, config, flow, net, segment};
use crate::proto::core::Config;
use crate::proto::effects::CompletionLevel;
use crate::proto::failure::PeerFailure;
use crate::proto::sim::{self, Net};
use crate::wire::{Eager, FrameError, Goodbye, frame, goodbye};

fn message(length: u32, predecessor_distance: u16) -> Vec<u8> {
    let header = Eager {
        predecessor_distance: predecessor_distance.into(),
        context: 1.into(),
        tag: 0.into(),
        ..sim::eager(length)
    };
    let payload = vec![0; length as usize];
    [header.as_bytes(), &payload].concat()
}

/// Handles some frames, each in a segment of its own, and returns the result of the last. Ends the
/// session and checks that nothing leaks.
fn answer(frames: &[(u32, Vec<u8>)]) -> Result<(), FrameError> {
    let mut net = net();
    let (last, before) = frames.split_last().unwrap();
    for (number, frame) in before {
        net.deliver(0, 1, &segment(*number, 0, std::slice::from_ref(frame))).unwrap();
    }
    let answered = net.deliver(0, 1, &segment(last.0, 0, std::slice::from_ref(&last.1)));
    end(net);
    answered
}

fn end(mut net: Net) {
    for engine in &mut net.engines {
        engine.core.fail_session(0, PeerFailure::Removed, &mut engine.memory);
        engine.core.close_endpoint(0, &mut engine.memory);
        assert_eq!(engine.core.shared().reserved(), (0, 0));
    }
    net.check_rest();
}

/// RR-DGRAM-2
#[test]
fn frames_beyond_the_window_close_the_session() {
    assert_eq!(answer(&[(FRAMES_MAX - 1, message(8, 0))]), Ok(()));
    let beyond = answer(&[(FRAMES_MAX, message(8, 0))]);
    assert_eq!(beyond, Err(FrameError::BeyondWindow { expected: 0, got: FRAMES_MAX }));
    let moved = answer(&[(0, message(8, 0)), (FRAMES_MAX, message(8, 0))]);
    assert_eq!(moved, Ok(()));
}

/// RR-DGRAM-5, RR-SEG-1, RR-SEG-4
#[test]
fn datagram_holds_exactly_one_segment() {
    let whole = segment(0, 0, &[message(8, 0)]);
    let longer = [&whole[..], &[0]].concat();
    for bytes in [&whole[..whole.len() - 1], &longer, &whole[..20], &[]] {
        let mut net = net();
        let refused = net.deliver(0, 1, bytes);
        assert_eq!(refused, Err(FrameError::BadSegmentLength(bytes.len() as u32)));
        end(net);
    }
    let mut net = net();
    let mut wrong = whole;
    wrong[4] = 2;
    let refused = net.deliver(0, 1, &wrong);
    assert_eq!(refused, Err(FrameError::WrongCount { announced: 2, held: 1 }));
    end(net);
}

/// RR-DGRAM-4
#[test]
fn two_messages_with_one_predecessor_close_the_session() {
    let twice = answer(&[(5, message(8, 4)), (6, message(8, 5))]);
    assert_eq!(twice, Err(FrameError::FollowsTwice(1)));
}

/// RR-CREDIT-1
#[test]
fn buffered_messages_require_credit() {
    let no_bytes = Err(FrameError::NoCredit("eager byte"));
    // They wait for their turn.
    let mut held: Vec<(u32, Vec<u8>)> = (0..2).map(|at| (10 + at, message(3000, 9))).collect();
    held.push((20, message(2000, 9)));
    assert_eq!(answer(&held), Ok(()));
    held.push((21, message(1, 9)));
    assert_eq!(answer(&held), no_bytes);
    let limited = Config { envelope_credits: 2, ..config() };
    let mut net = Net::new(2, &limited, CONTENT, 1);
    for at in 0..2 {
        net.deliver(0, 1, &segment(10 + at, 0, &[message(1, 9)])).unwrap();
    }
    let refused = net.deliver(0, 1, &segment(12, 0, &[message(1, 9)]));
    assert_eq!(refused, Err(FrameError::NoCredit("envelope")));
    end(net);
}

/// RR-SEG-3
#[test]
fn ack_of_unsent_frames_is_ignored() {
    let mut net = net();
    let send = net.send(flow(1), 8, CompletionLevel::Delivery).unwrap();
    for ack in [1, 2, 1000, u32::MAX] {
        net.deliver(1, 0, &segment(0, ack, &[])).unwrap();
        net.stage(0);
    }
    assert!(net.end_of(0, send).is_none());
    let sent = net.capture(0, 1);
    net.acknowledge(0, 1, sent[0].0 + 1);
    net.lose(0, 1, sent[0].0 ^ 1 << 40);
    assert!(net.end_of(0, send).is_none());
    net.deliver(1, 0, &segment(0, 1, &[])).unwrap();
    assert!(net.end_of(0, send).is_some());
}

/// RR-DGRAM-9
#[test]
fn error_goodbye_is_handled_despite_missing_frames() {
    let goodbye = Goodbye {
        kind: frame::KIND_GOODBYE,
        reason: goodbye::REASON_PROTOCOL,
        reserved: 0.into(),
        reserved_2: 0.into(),
    };
    let mut net = net();
    net.deliver(0, 1, &segment(7, 0, &[goodbye.as_bytes().to_vec()])).unwrap();
    let failure = net.engines[1].core.sessions.at(0).unwrap().ending.failure().cloned();
    assert_eq!(failure, Some(PeerFailure::Rejected));
    end(net);
}

/// Generates frames that are nearly valid.
fn any_frame() -> impl Strategy<Value = (u32, Vec<u8>)> {
    let length = prop_oneof![0u32..300, Just(64u32), Just(3000u32)];
    let kind = prop_oneof![
        (length, 0u16..8).prop_map(|(length, follows)| message(length, follows)),
        (1u8..10, proptest::collection::vec(any::<u8>(), 0..60))
            .prop_map(|(kind, rest)| { [&[kind][..], &rest].concat() }),
    ];
    (0u32..12, kind)
}

proptest! {
    /// RR-END-3
    #[test]
    fn arbitrary_frames_leak_nothing(
        frames in proptest::collection::vec((any_frame(), 0usize..3), 1..40),
    ) {
        let mut net = net();
        for ((number, frame), receives) in frames {
            for _ in 0..receives {
                net.receive_of(flow(1), 200);
            }
            if net.deliver(0, 1, &segment(number, 0, &[frame])).is_err() {
                break;
            }
        }
        end(net);
    }
}
