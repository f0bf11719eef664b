//! Messages that are sent by rings in unsolicited pieces, step by step.

use proptest::prelude::*;

use super::pieces::{FLOW, bytes, handle_piece, net_with_rings};
use crate::proto::effects::{CompletionLevel, Effects, Ended};
use crate::proto::failure::PeerFailure;
use crate::proto::hint::Hint;
use crate::proto::ready::Work;
use crate::proto::session::{ControlFrame, Session};
use crate::proto::sim::{Engine, Net};
use crate::proto::table::Id;
use crate::wire::FrameError;
use crate::wire::piece::{FLAG_UNSOLICITED, PieceHeader};

/// A message of seven pieces.
const LENGTH: usize = 20_000;

/// Messages that wait for their grants after one that was dropped.
const GRANTED_AFTER_DROP: usize = 16;

/// The ring of both engines.
const RING: u32 = 1;

/// A piece in a ring.
type Piece = (PieceHeader, Vec<u8>);

fn send(net: &mut Net, length: usize) -> Id {
    net.send(FLOW, length, CompletionLevel::Delivery).unwrap()
}

/// Carries the segments that engine `from` would send now, and no pieces.
fn carry(net: &mut Net, from: usize) {
    for (_, segment) in net.capture(from, 1 - from) {
        deliver(net, from, &segment);
    }
}

fn deliver(net: &mut Net, from: usize, segment: &[u8]) {
    let now_ns = net.now_ns();
    let Engine { core, memory, slots, .. } = &mut net.engines[1 - from];
    core.handle_ring_segment(slots[&from], segment, now_ns, memory).unwrap();
}

/// Writes at most `most` pieces of engine 0.
fn write(net: &mut Net, most: usize) -> Vec<Piece> {
    let Engine { core, memory, slots, .. } = &mut net.engines[0];
    let slot = slots[&1];
    let mut written = Vec::new();
    while written.len() < most
        && let Some(piece) = core.with(slot, Session::next_piece).flatten()
    {
        let range = piece.offset as usize..piece.offset as usize + piece.length;
        let bytes = if range.is_empty() { &[] } else { &memory.bytes[&piece.operation][range] };
        written.push((piece.header, bytes.to_vec()));
        core.with(slot, |it, cx| it.rendezvous_mut().handle_piece_written(cx, piece.length));
    }
    written
}

/// Lets engine 1 read a piece. Returns whether it has taken it.
fn read(net: &mut Net, (header, bytes): &Piece) -> Result<bool, FrameError> {
    let Engine { core, memory, slots, .. } = &mut net.engines[1];
    let Some(piece) = handle_piece(core, slots[&0], header, bytes.len())? else {
        return Ok(false);
    };
    memory.place(piece.operation, piece.offset as usize, bytes);
    core.note_piece(piece, bytes.len(), memory);
    Ok(true)
}

/// Lets engine 1 read pieces, and checks whether it takes them.
fn read_all(net: &mut Net, pieces: &[Piece], is_taken: bool) {
    for piece in pieces {
        assert_eq!(read(net, piece), Ok(is_taken), "{:?}", piece.0);
    }
}

fn is_unsolicited((header, _): &Piece) -> bool {
    header.flags.get() == FLAG_UNSOLICITED
}

/// Ranges of the grants that an engine is about to send.
fn grants(net: &Net, engine: usize) -> Vec<(u64, u32)> {
    let Engine { core, slots, .. } = &net.engines[engine];
    let control = core.session(slots[&(1 - engine)]).unwrap().segments.control();
    let range = |frame: &ControlFrame| match frame {
        ControlFrame::Grant(grant) => Some((grant.offset.get(), grant.length.get())),
        _ => None,
    };
    control.iter().filter_map(range).collect()
}

/// Carries what both have to say, until all is at rest.
fn finish(net: &mut Net) {
    net.settle(10_000);
    net.check();
}

/// Ends both sessions; nothing leaks.
fn end(net: &mut Net) {
    for engine in 0..2 {
        let Engine { core, memory, slots, .. } = &mut net.engines[engine];
        core.fail_session(slots[&(1 - engine)], PeerFailure::Removed, memory);
        core.close_endpoint(0, memory);
        assert_eq!(core.shared().reserved(), (0, 0));
    }
    net.check_rest();
}

/// RR-SHM-14
#[test]
fn pieces_need_no_grant_where_a_receive_is_posted_or_comes_before_them() {
    for is_posted in [true, false] {
        let mut net = net_with_rings();
        for number in 0..3 {
            let receive = |net: &mut Net, now: bool| now.then(|| net.receive_of(FLOW, LENGTH));
            let before = receive(&mut net, is_posted);
            let sent = send(&mut net, LENGTH);
            carry(&mut net, 0);
            let got = before.or(receive(&mut net, !is_posted)).unwrap();
            assert_eq!(grants(&net, 1), []);
            let pieces = write(&mut net, usize::MAX);
            assert!(pieces.len() > 1 && pieces.iter().all(is_unsolicited));
            assert!(pieces.iter().all(|it| it.0.operation.get() == number));
            read_all(&mut net, &pieces, true);
            assert!(matches!(net.end_of(1, got), Some(Ended::Received(_))));
            carry(&mut net, 1);
            assert!(matches!(net.end_of(0, sent), Some(Ended::Sent { .. })));
        }
        finish(&mut net);
    }
}

/// RR-SHM-14
#[test]
fn pieces_of_an_unexpected_message_are_dropped_and_later_messages_wait() {
    let mut net = net_with_rings();
    send(&mut net, LENGTH);
    carry(&mut net, 0);
    let dropped = write(&mut net, 2);
    assert!(dropped.iter().all(is_unsolicited));
    read_all(&mut net, &dropped, false);
    net.receive_of(FLOW, LENGTH);
    assert_eq!(grants(&net, 1), [(0, LENGTH as u32)]);
    carry(&mut net, 1);
    let granted = write(&mut net, usize::MAX);
    assert!(!granted.iter().any(is_unsolicited), "the others of the first ones are not written");
    assert_eq!(granted[0].0.offset.get(), 0);
    read_all(&mut net, &granted, true);
    for number in 0..=GRANTED_AFTER_DROP {
        carry(&mut net, 1);
        net.receive_of(FLOW, LENGTH);
        send(&mut net, LENGTH);
        carry(&mut net, 0);
        let waits = number < GRANTED_AFTER_DROP;
        assert_eq!(grants(&net, 1).len(), usize::from(waits), "message {number}");
        carry(&mut net, 1);
        let pieces = write(&mut net, usize::MAX);
        assert!(pieces.iter().all(|it| is_unsolicited(it) != waits));
        read_all(&mut net, &pieces, true);
    }
    finish(&mut net);
}

/// A message that is not sent earlier than its pieces, by another transport.
///
/// RR-SHM-14
#[test]
fn pieces_before_their_message_are_dropped() {
    let mut net = net_with_rings();
    net.receive_of(FLOW, LENGTH);
    send(&mut net, LENGTH);
    let late = net.capture(0, 1);
    let pieces = write(&mut net, 1);
    read_all(&mut net, &pieces, false);
    for (_, segment) in late {
        deliver(&mut net, 0, &segment);
    }
    assert_eq!(grants(&net, 1), [(0, LENGTH as u32)]);
    let others = write(&mut net, usize::MAX);
    read_all(&mut net, &others, false);
    finish(&mut net);
}

/// RR-SHM-14
#[test]
fn message_is_granted_after_a_piece_of_a_later_one() {
    let mut net = net_with_rings();
    send(&mut net, LENGTH);
    net.hint = Hint::Priority;
    send(&mut net, LENGTH);
    carry(&mut net, 0);
    let later = write(&mut net, 1);
    assert_eq!(later[0].0.operation.get(), 1);
    read_all(&mut net, &later, false);
    net.receive_of(FLOW, LENGTH);
    assert_eq!(grants(&net, 1).len(), 1);
    net.receive_of(FLOW, LENGTH);
    finish(&mut net);
}

/// RR-SHM-14
#[test]
fn receive_that_is_too_short_is_granted() {
    let mut net = net_with_rings();
    net.receive_of(FLOW, 5000);
    send(&mut net, LENGTH);
    carry(&mut net, 0);
    assert_eq!(grants(&net, 1), [(0, 5000)]);
    let pieces = write(&mut net, 1);
    read_all(&mut net, &pieces, false);
    carry(&mut net, 1);
    let pieces = write(&mut net, usize::MAX);
    assert!(!pieces.iter().any(is_unsolicited));
    assert_eq!(pieces.iter().map(|(_, bytes)| bytes.len()).sum::<usize>(), 5000);
    read_all(&mut net, &pieces, true);
    finish(&mut net);
}

/// The rest of a send that ends is granted, and the grant refused.
///
/// RR-SHM-14, RR-RDV-5
#[test]
fn send_that_ends_writes_a_piece_without_bytes() {
    for is_posted in [true, false] {
        let mut net = net_with_rings();
        let mut got = is_posted.then(|| net.receive_of(FLOW, LENGTH));
        let sent = send(&mut net, LENGTH);
        carry(&mut net, 0);
        let pieces = write(&mut net, 2);
        read_all(&mut net, &pieces, is_posted);
        let Engine { core, memory, .. } = &mut net.engines[0];
        core.close_endpoint(0, memory);
        core.cancel_closed(|_| true, memory);
        assert_eq!(net.end_of(0, sent), Some(&Ended::Cancelled));
        let last = write(&mut net, usize::MAX);
        assert!(matches!(&last[..], [piece] if is_unsolicited(piece) && piece.1.is_empty()));
        read_all(&mut net, &last, is_posted);
        let got = *got.get_or_insert_with(|| net.receive_of(FLOW, LENGTH));
        let in_place: usize = pieces.iter().map(|(_, bytes)| bytes.len()).sum();
        let from = if is_posted { in_place } else { 0 };
        assert_eq!(grants(&net, 1), [(from as u64, (LENGTH - from) as u32)]);
        assert!(net.end_of(1, got).is_none());
        carry(&mut net, 1);
        assert!(write(&mut net, usize::MAX).is_empty());
        carry(&mut net, 0);
        let ended = net.end_of(1, got).expect("its send has ended");
        assert!(matches!(ended, Ended::Failed(PeerFailure::Left, _)), "{ended:?}");
    }
}

/// RR-SHM-14
#[test]
fn pieces_without_a_receive_any_more_are_dropped() {
    let mut net = net_with_rings();
    net.receive_of(FLOW, LENGTH);
    let sent = send(&mut net, LENGTH);
    carry(&mut net, 0);
    let pieces = write(&mut net, 2);
    read_all(&mut net, &pieces, true);
    let Engine { core, memory, .. } = &mut net.engines[1];
    core.close_endpoint(0, memory);
    core.cancel_closed(|_| true, memory);
    let pieces = write(&mut net, 1);
    read_all(&mut net, &pieces, false);
    carry(&mut net, 1);
    assert!(net.end_of(0, sent).is_some());
    let last = write(&mut net, usize::MAX);
    assert!(matches!(&last[..], [piece] if piece.1.is_empty()), "{last:?}");
    read_all(&mut net, &last, false);
    assert_eq!(net.engines[0].core.shared().ready().len(Work::Piece), 1);
    net.steps(10);
    assert_eq!(net.engines[0].core.shared().ready().len(Work::Piece), 0);
}

/// RR-SHM-14
#[test]
fn long_messages_and_many_at_once_wait_for_grants() {
    let mut net = net_with_rings();
    send(&mut net, (256 << 10) + 1);
    carry(&mut net, 0);
    assert!(write(&mut net, 1).is_empty());
    net.receive_of(FLOW, (256 << 10) + 1);
    finish(&mut net);
    for _ in 0..80 {
        net.receive_of(FLOW, LENGTH);
    }
    for _ in 0..80 {
        send(&mut net, LENGTH);
    }
    let before = bytes(&net);
    let mut granted = 0;
    for _ in 0..10 {
        carry(&mut net, 0);
        granted += grants(&net, 1).len();
        carry(&mut net, 1);
    }
    assert_eq!(granted, 64, "16 are sent beyond the newest that has arrived");
    finish(&mut net);
    let first = 80 * LENGTH as u64 - (bytes(&net) - before);
    assert!((1..=64 * 100).contains(&first), "64 have first bytes, as credit permits: {first}");
}

/// RR-SHM-10, RR-SHM-14
#[test]
fn pieces_lost_with_a_ring_are_granted() {
    let mut net = net_with_rings();
    let mut posted = 0;
    for number in 0..400 {
        net.hint = [Hint::None, Hint::Priority, Hint::Bulk][number % 3];
        for message in 0..3 {
            if (number + message) % 4 > 0 {
                net.receive_of(FLOW, 30_000);
                posted += 1;
            }
            send(&mut net, 30_000);
        }
        // Some messages are partially sent.
        net.steps(number as u64 % 40);
        net.end_ring(0, 1);
        net.steps(number as u64 % 7);
        send(&mut net, 30_000);
        net.steps(number as u64 % 31);
        while posted < net.messages(&FLOW) {
            net.receive_of(FLOW, 30_000);
            posted += 1;
        }
        net.settle(4000);
    }
    assert!(bytes(&net) > 100 * 30_000);
    net.check();
}

/// Both sides learn of a ring at a time of their own.
///
/// RR-SHM-14
#[test]
fn pieces_ahead_of_their_ring_are_dropped() {
    let mut net = net_with_rings();
    let [there, here] = [0, 1].map(|engine| net.engines[engine].slots[&(1 - engine)]);
    let change = |net: &mut Net, engine: usize, ring| {
        let slot = [there, here][engine];
        net.engines[engine].core.with(slot, |it, cx| it.use_ring(cx, ring, Some(&[])));
    };
    for most in [1, usize::MAX] {
        for engine in [0, 1] {
            change(&mut net, engine, None);
        }
        change(&mut net, 0, Some(9));
        send(&mut net, LENGTH);
        carry(&mut net, 0);
        let early = write(&mut net, most);
        assert!(early.iter().all(|it| is_unsolicited(it) && it.0.ring.get() == 9));
        read_all(&mut net, &early, false);
        change(&mut net, 1, Some(9));
        net.receive_of(FLOW, LENGTH);
        assert_eq!(grants(&net, 1).len(), 1);
        let others = write(&mut net, usize::MAX);
        read_all(&mut net, &others, false);
        net.settle(1000);
        // The next ones are not to wait.
        for _ in 0..GRANTED_AFTER_DROP {
            net.receive_of(FLOW, LENGTH);
            send(&mut net, LENGTH);
            net.settle(1000);
        }
    }
    net.check();
}

/// RR-SHM-14
#[test]
fn message_for_another_ring_is_granted() {
    let mut net = net_with_rings();
    send(&mut net, LENGTH);
    carry(&mut net, 0);
    let slot = net.engines[1].slots[&0];
    for ring in [None, Some(9)] {
        net.engines[1].core.with(slot, |it, cx| it.use_ring(cx, ring, Some(&[])));
    }
    net.receive_of(FLOW, LENGTH);
    assert_eq!(grants(&net, 1).len(), 1);
    let pieces = write(&mut net, 1);
    read_all(&mut net, &pieces, false);
    let slot = net.engines[0].slots[&1];
    for ring in [None, Some(9)] {
        net.engines[0].core.with(slot, |it, cx| it.use_ring(cx, ring, Some(&[])));
    }
    finish(&mut net);
}

/// A peer may write any piece into the ring.
///
/// RR-SHM-14
#[test]
fn wrong_unsolicited_pieces_close_the_session_or_are_dropped() {
    let mut net = net_with_rings();
    let got = net.receive_of(FLOW, LENGTH);
    send(&mut net, LENGTH);
    carry(&mut net, 0);
    let (header, bytes) = write(&mut net, 1).remove(0);
    let is_bad = |result| matches!(result, Err(FrameError::BadData { .. }));
    for flags in [2, 3, 1 << 31] {
        let header = PieceHeader { flags: flags.into(), ..header };
        assert!(is_bad(read(&mut net, &(header, bytes.clone()))));
    }
    for offset in [1, LENGTH as u64, u64::MAX] {
        let header = PieceHeader { offset: offset.into(), ..header };
        assert!(is_bad(read(&mut net, &(header, bytes.clone()))));
    }
    assert!(is_bad(read(&mut net, &(header, vec![0; LENGTH + 1]))));
    // Of a message that was not announced, of another ring, or granted to a receive of that number.
    let number = |number: u64| PieceHeader { operation: number.into(), ..header };
    let ring = PieceHeader { ring: (RING + 1).into(), ..header };
    let granted = PieceHeader { flags: 0.into(), ..header };
    for header in [number(1), number(1 << 32), number(u64::MAX), ring, granted] {
        assert_eq!(read(&mut net, &(header, bytes.clone())), Ok(false));
    }
    // After the last number each message is granted.
    assert_eq!(read(&mut net, &(header, bytes.clone())), Ok(true));
    assert!(is_bad(read(&mut net, &(header, bytes))), "twice");
    let others = write(&mut net, usize::MAX);
    read_all(&mut net, &others, true);
    read_all(&mut net, &others, false);
    assert!(matches!(net.end_of(1, got), Some(Ended::Received(_))));
    net.receive_of(FLOW, LENGTH);
    send(&mut net, LENGTH);
    carry(&mut net, 0);
    assert_eq!(grants(&net, 1).len(), 1);
    finish(&mut net);
}

proptest! {
    /// Whatever pieces a peer writes, they reach no other memory than that of their message, and
    /// nothing is left of them.
    ///
    /// RR-SHM-14
    #[test]
    fn no_piece_harms(
        pieces in proptest::collection::vec(
            (0u32..3, 0u64..5, 0u64..3, RING..RING + 2, 0usize..5000),
            1..40,
        ),
    ) {
        let mut net = net_with_rings();
        for number in 0..4 {
            if number < 2 {
                net.receive_of(FLOW, 3000);
            }
            send(&mut net, 3000);
        }
        carry(&mut net, 0);
        let mut next = [0; 5];
        for (flags, number, shift, ring, length) in pieces {
            let offset = next[number as usize] + shift / 2;
            let header = PieceHeader {
                operation: number.into(),
                offset: offset.into(),
                ring: ring.into(),
                flags: flags.into(),
            };
            let length = if shift == 0 { length.min(1000) } else { length };
            match read(&mut net, &(header, vec![7; length])) {
                Ok(true) => next[number as usize] += length as u64,
                Ok(false) => {}
                Err(_) => break,
            }
            net.receive_of(FLOW, 3000);
        }
        end(&mut net);
    }
}
