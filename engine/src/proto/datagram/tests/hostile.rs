//! Frames that a correct peer never sends.

use proptest::prelude::*;
use zerocopy::{FromZeros, IntoBytes};

use super::super::super::core::Config;
use super::super::super::effects::CompletionLevel;
use super::super::super::failure::PeerFailure;
use super::super::window::FRAMES_MAX;
use super::{CONTENT, config, flow, net, segment};
use crate::proto::sim::{self, Net};
use crate::wire::part::{FLAG_GIVEN_UP, FLAG_LAST};
use crate::wire::{Eager, FrameError, Goodbye, PARTS_BYTES_MAX, Part, eager, frame, goodbye};

fn message(length: u32, predecessor_distance: u16, is_parts: bool) -> Vec<u8> {
    let header = Eager {
        flags: if is_parts { eager::FLAG_PARTS } else { 0 },
        predecessor_distance: predecessor_distance.into(),
        context: 1.into(),
        tag: 0.into(),
        ..sim::eager(length)
    };
    let payload = vec![0; if is_parts { 0 } else { length as usize }];
    [header.as_bytes(), &payload].concat()
}

fn part(flags: u8, message: u32, offset: u32, length: u32) -> Vec<u8> {
    let (message, offset, length_field) = (message.into(), offset.into(), length.into());
    let kind = frame::KIND_PART;
    let header = Part { kind, flags, message, offset, length: length_field, ..Part::new_zeroed() };
    [header.as_bytes(), &vec![0; length as usize]].concat()
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
        assert_eq!((engine.core.reserved_bytes, engine.core.reserved_envelopes), (0, 0));
    }
    net.check_rest();
}

fn refusal(frames: &[(u32, Vec<u8>)]) -> &'static str {
    match answer(frames) {
        Err(FrameError::BadPart { why, .. }) => why,
        other => panic!("{other:?}"),
    }
}

/// RR-DGRAM-2
#[test]
fn frames_beyond_the_window_close_the_session() {
    assert_eq!(answer(&[(FRAMES_MAX - 1, message(8, 0, false))]), Ok(()));
    let beyond = answer(&[(FRAMES_MAX, message(8, 0, false))]);
    assert_eq!(beyond, Err(FrameError::BeyondWindow { expected: 0, got: FRAMES_MAX }));
    let moved = answer(&[(0, message(8, 0, false)), (FRAMES_MAX, message(8, 0, false))]);
    assert_eq!(moved, Ok(()));
}

/// RR-DGRAM-5, RR-SEG-1, RR-SEG-4
#[test]
fn datagram_holds_exactly_one_segment() {
    let whole = segment(0, 0, &[message(8, 0, false)]);
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
    let twice = answer(&[(5, message(8, 4, false)), (6, message(8, 5, false))]);
    assert_eq!(twice, Err(FrameError::FollowsTwice(1)));
}

/// RR-DGRAM-7
#[test]
fn invalid_parts_close_the_session() {
    let whole = |length| (0, message(length, 0, true));
    let overlaps = "overlaps another part";
    assert_eq!(refusal(&[whole(500), (1, part(0, 0, 0, 64)), (2, part(0, 0, 63, 64))]), overlaps);
    assert_eq!(refusal(&[(1, part(0, 0, 64, 64)), (2, part(0, 0, 0, 65))]), overlaps);
    let beyond = "exceeds its message";
    assert_eq!(refusal(&[whole(500), (1, part(FLAG_LAST, 0, 437, 64))]), beyond);
    assert_eq!(refusal(&[whole(500), (1, part(FLAG_LAST, 0, 100, 64))]), beyond);
    assert_eq!(refusal(&[whole(500), (1, part(0, 0, 436, 64))]), beyond);
    let other = "received parts contradict the envelope";
    assert_eq!(refusal(&[(1, part(0, 0, 437, 64)), whole(500)]), other);
    assert_eq!(refusal(&[(1, part(FLAG_LAST, 0, 100, 64)), whole(500)]), other);
    let twice = [(1, part(FLAG_LAST, 0, 100, 1)), (2, part(FLAG_LAST, 0, 200, 1))];
    assert_eq!(refusal(&twice), "two parts are marked as the last");
    let short = "part too short, and not the last one";
    assert_eq!(refusal(&[whole(500), (1, part(0, 0, 0, 63))]), short);
    let empty = "an empty part that is not the end of the message";
    assert_eq!(refusal(&[whole(500), (1, part(FLAG_LAST, 0, 0, 0))]), empty);
    assert_eq!(refusal(&[whole(500), (1, part(FLAG_GIVEN_UP, 0, 0, 64))]), empty);
    let long = "exceeds the longest message in parts";
    assert_eq!(refusal(&[(1, part(0, 0, PARTS_BYTES_MAX as u32 - 63, 64))]), long);
    assert_eq!(refusal(&[(1, part(0, 0, u32::MAX - 3, 64))]), long);
    assert_eq!(refusal(&[whole(0)]), "an empty message has parts");
    let early = "an envelope must precede its parts";
    assert_eq!(refusal(&[(1, part(0, 1, 0, 64))]), early);
    assert_eq!(refusal(&[(1, part(0, 2, 0, 64))]), early);
    let no_envelope = "parts refer to a frame that is not an envelope with parts";
    assert_eq!(refusal(&[(1, part(0, 0, 0, 64)), (0, message(64, 0, false))]), no_envelope);
    assert_eq!(refusal(&[(2, part(0, 1, 0, 64)), (1, part(0, 0, 0, 64))]), no_envelope);
}

/// RR-DGRAM-8
#[test]
fn parts_of_ended_messages_are_ignored() {
    let whole = [(0, message(8, 0, false)), (1, part(0, 0, 0, 64))];
    assert_eq!(answer(&whole), Ok(()));
    let done = [(0, message(64, 0, true)), (1, part(FLAG_LAST, 0, 0, 64)), (2, part(0, 0, 0, 64))];
    assert_eq!(answer(&done), Ok(()));
    let old = [(0, message(8, 0, false)), (1, part(0, u32::MAX - 7, 0, 64))];
    assert_eq!(answer(&old), Ok(()));
}

/// RR-CREDIT-1, RR-DGRAM-7
#[test]
fn buffered_and_partial_messages_require_credit() {
    let no_bytes = Err(FrameError::NoCredit("eager byte"));
    // A message that waits for its turn, and parts that wait for their envelope.
    let mut held: Vec<(u32, Vec<u8>)> =
        (0..2).map(|at| (10 + at, message(3000, 9, false))).collect();
    held.push((20, message(2000, 9, false)));
    assert_eq!(answer(&held), Ok(()));
    held.push((21, message(1, 9, false)));
    assert_eq!(answer(&held), no_bytes);
    let parts: Vec<(u32, Vec<u8>)> =
        (0..4).map(|at| (10 + at, part(0, 1, at * 2000, 2000))).collect();
    assert_eq!(answer(&parts), Ok(()));
    let more = [&parts[..], &[(20, part(0, 1, 8000, 64))]].concat();
    assert_eq!(answer(&more), no_bytes);
    let rest = [&parts[..], &[(1, message(8001, 0, true))]].concat();
    assert_eq!(answer(&rest), no_bytes);
    // The whole message is charged with its envelope.
    let beyond_credit = [(0, message(8000, 0, true)), (1, message(1, 0, false))];
    assert_eq!(answer(&beyond_credit), no_bytes);
    // Each missing envelope needs credit.
    let limited = Config { envelope_credits: 2, ..config() };
    let mut net = Net::new(2, &limited, CONTENT, 1);
    for message in 0..2 {
        let frame = part(FLAG_LAST, message, 0, 1);
        net.deliver(0, 1, &segment(10 + message, 0, &[frame])).unwrap();
    }
    let refused = net.deliver(0, 1, &segment(12, 0, &[part(FLAG_LAST, 2, 0, 1)]));
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
    let failure = net.engines[1].core.sessions.at(0).unwrap().failure.clone();
    assert_eq!(failure, Some(PeerFailure::Rejected));
    end(net);
}

/// Generates frames that are nearly valid.
fn any_frame() -> impl Strategy<Value = (u32, Vec<u8>)> {
    let length = prop_oneof![0u32..300, Just(64u32), Just(3000u32)];
    let kind = prop_oneof![
        (length, 0u16..8, any::<bool>())
            .prop_map(|(length, follows, is_parts)| { message(length, follows, is_parts) }),
        (0u8..4, 0u32..12, 0u32..4, 0u32..3).prop_map(|(flags, message, offset, length)| {
            part(flags, message, offset * 64, length * 64)
        }),
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
