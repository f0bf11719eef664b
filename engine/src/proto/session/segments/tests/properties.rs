//! Compares the frame window and the message order with simple models.

use std::collections::BTreeSet;

use proptest::prelude::*;
use zerocopy::FromZeros;

use super::super::order::{Chain, EnvelopeHeader, Held, ReorderBuffer};
use super::super::window::{Arrivals, Coming, FRAMES_MAX};
use crate::wire::Eager;

/// Generates received frames: near the expected one, near the end of the window, or anywhere.
fn offset() -> impl Strategy<Value = i64> {
    prop_oneof![
        8 => -5i64..40,
        1 => Just(i64::from(FRAMES_MAX) - 1),
        1 => Just(i64::from(FRAMES_MAX)),
        1 => -40_000i64..40_000,
    ]
}

/// Generates first numbers: anywhere, and shortly before they wrap.
fn start() -> impl Strategy<Value = u32> {
    prop_oneof![Just(0u32), any::<u32>(), (0u32..50_000).prop_map(|back| u32::MAX - back)]
}

proptest! {
    /// RR-DGRAM-1, RR-DGRAM-2
    #[test]
    fn window_tracks_received_frames(
        start in start(),
        offsets in proptest::collection::vec(offset(), 1..300),
    ) {
        let mut arrivals = Arrivals::starting_at(start);
        // Frames by their distance from the start.
        let mut seen: BTreeSet<i64> = BTreeSet::new();
        let mut expected = 0i64;
        for offset in offsets {
            let at = expected + offset;
            let frame = start.wrapping_add(at as u32);
            let has = at < expected || seen.contains(&at);
            prop_assert_eq!(arrivals.has(frame), has);
            let coming = if has {
                Coming::Again
            } else if at >= expected + i64::from(FRAMES_MAX) {
                Coming::Beyond
            } else {
                seen.insert(at);
                Coming::Fresh
            };
            prop_assert_eq!(arrivals.note(frame), coming);
            while seen.contains(&expected) {
                expected += 1;
            }
            prop_assert_eq!(arrivals.expected(), start.wrapping_add(expected as u32));
        }
    }

    /// Exactly those messages of each flow are matched before which none is missing, in order.
    /// RR-DGRAM-4
    #[test]
    fn messages_match_as_soon_as_predecessors_have(
        start in start(),
        // For each frame: its flow, and how far the sender lags behind the received frames.
        frames in proptest::collection::vec((0usize..4, 0usize..6), 1..60),
        order in proptest::collection::vec(any::<u16>(), 60),
    ) {
        let (mut chain, mut reorder_buffer) = (Chain::new(1), ReorderBuffer::new(1));
        let mut arrivals = Arrivals::starting_at(start);
        let number = |at: usize| start.wrapping_add(at as u32);
        let mut follows: Vec<u16> = Vec::new();
        let mut has_come: Vec<bool> = Vec::new();
        let mut matched: Vec<usize> = Vec::new();
        // Messages are sent one by one and arrive in any order, some of them much later.
        for turn in 0..3 * frames.len() {
            if follows.len() < frames.len() && turn % 2 == 0 {
                let at = follows.len();
                let known = arrivals.expected().wrapping_sub(start) as usize;
                let base = number(known.saturating_sub(frames[at].1));
                let stream = (0, 0, frames[at].0 as u64);
                follows.push(chain.follow(stream, number(at), base));
                has_come.push(false);
            }
            let missing: Vec<usize> =
                (0..has_come.len()).filter(|&at| !has_come[at]).collect();
            if missing.is_empty() {
                continue;
            }
            let at = missing[usize::from(order[turn % order.len()]) % missing.len()];
            prop_assert_eq!(arrivals.note(number(at)), Coming::Fresh);
            has_come[at] = true;
            let mut header = Eager::new_zeroed();
            header.predecessor_distance = follows[at].into();
            let envelope = EnvelopeHeader::Eager(header, None);
            let mut last = None;
            match reorder_buffer.waits_for(number(at), &envelope, &arrivals) {
                None => {
                    matched.push(at);
                    last = Some(number(at));
                }
                Some(predecessor) => {
                    let payload = Box::default();
                    let held = Held { frame: number(at), envelope, payload, payload_bytes: 0 };
                    prop_assert!(reorder_buffer.insert(predecessor, held).is_ok());
                }
            }
            while let Some(held) = last.and_then(|last| reorder_buffer.take_after(last)) {
                matched.push(held.frame.wrapping_sub(start) as usize);
                last = Some(held.frame);
            }
            for stream in 0..4 {
                let of_stream = |at: &usize| frames[*at].0 == stream;
                let sent = (0..follows.len()).filter(of_stream);
                let expected: Vec<usize> = sent.take_while(|&at| has_come[at]).collect();
                let got: Vec<usize> = matched.iter().copied().filter(of_stream).collect();
                prop_assert_eq!(&got, &expected);
            }
        }
    }
}
