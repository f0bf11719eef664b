//! Long messages sent by rings, in pieces.

use zerocopy::IntoBytes;

use super::super::super::{ControlFrame, Session};
use crate::proto::context::Cx;
use crate::proto::core::Config;
use crate::proto::core::Core;
use crate::proto::effects::{CompletionLevel, Ended};
use crate::proto::failure::PeerFailure;
use crate::proto::ready::Work;
use crate::proto::session::rendezvous::pull::ring::PieceReceive;
use crate::proto::sim::{self, Flow, Net};
use crate::wire::piece::PieceHeader;
use crate::wire::{FrameError, Grant, GrantOver, Refused};

pub(super) const FLOW: Flow = Flow { from: 0, source: 0, to: 1, target: 0, context: 1 };

pub(super) fn net_with_rings() -> Net {
    let mut net = Net::new(2, &Config::for_tests(), 1200, 1);
    net.use_streams(1);
    net.use_rings();
    net
}

/// Returns engines whose messages wait for grants.
fn net() -> Net {
    let mut net = net_with_rings();
    for engine in &mut net.engines {
        for &slot in engine.slots.values() {
            engine.core.with(slot, |it, _| it.rendezvous_mut().wait_for_grants());
        }
    }
    net
}

pub(super) fn handle_piece(
    core: &mut Core,
    slot: u32,
    header: &PieceHeader,
    length: usize,
) -> Result<Option<PieceReceive>, FrameError> {
    core.with(slot, |it, mut cx| it.rendezvous_mut().handle_piece(&mut cx, header, length)).unwrap()
}

fn handle_grant(core: &mut Core, slot: u32, grant: &Grant) -> Result<(), FrameError> {
    let handle = |it: &mut Session, mut cx: Cx<'_>| it.handle_grant(&mut cx, grant, grant.over()?);
    core.with(slot, handle).unwrap()
}

/// Returns the bytes that rings have carried.
pub(super) fn bytes(net: &Net) -> u64 {
    net.rings.as_ref().unwrap().bytes
}

/// RR-SHM-10
#[test]
fn long_messages_go_in_pieces_posted_or_unexpected_and_truncated() {
    let mut net = net();
    let first = u64::from(Config::for_tests().rts_bytes);
    for (number, (length, capacity)) in
        [(1000, 1000), (20_000, 20_000), (20_000, 17_000), (100_000, 100_000), (70_000, 50), (0, 0)]
            .into_iter()
            .enumerate()
    {
        if number % 2 == 0 {
            net.send(FLOW, length, CompletionLevel::Delivery);
            net.steps(10);
            net.receive_of(FLOW, capacity);
        } else {
            net.receive_of(FLOW, capacity);
            net.send(FLOW, length, CompletionLevel::Match);
        }
        net.settle(400);
    }
    assert_eq!(bytes(&net), 20_000 + 17_000 + 100_000 - 3 * first);
    assert_eq!(net.by_stream(), 0, "the stream was not used");
    net.check();
}

/// RR-SHM-10
#[test]
fn pieces_lost_with_a_ring_are_granted_to_lanes() {
    let mut net = net();
    for number in 0..200 {
        net.receive_of(FLOW, 30_000);
        net.send(FLOW, 30_000, CompletionLevel::Delivery);
        // Some messages are partially sent.
        net.steps(number % 40);
        net.end_ring(0, 1);
        net.settle(2000);
    }
    let by_rings = bytes(&net);
    assert!(by_rings > 10 * 30_000 && by_rings < 190 * 30_000, "{by_rings}");
    net.check();
}

/// Both sides learn of a ring's end and of the next ring at any time, independent of grants.
#[test]
fn grant_for_an_unknown_ring_waits_for_it() {
    let mut net = net();
    let [there, here] = [0, 1].map(|engine| net.engines[engine].slots[&(1 - engine)]);
    for engine in [0, 1] {
        let slot = [there, here][engine];
        net.engines[engine].core.with(slot, |it, cx| it.use_ring(cx, None, Some(&[])));
    }
    // The receiver has the ring of number 9, its sender does not know it yet.
    net.engines[1].core.with(here, |it, cx| it.use_ring(cx, Some(9), Some(&[])));
    net.receive_of(FLOW, 50_000);
    net.send(FLOW, 50_000, CompletionLevel::Delivery);
    net.steps(30);
    assert_eq!(bytes(&net), 0);
    assert!(!net.is_at_rest());
    net.engines[0].core.with(there, |it, cx| it.use_ring(cx, Some(9), Some(&[])));
    net.settle(300);
    assert!(bytes(&net) > 49_000);
    net.check();
}

/// RR-RDV-5
#[test]
fn cancelled_piece_send_fails_its_receive() {
    let mut net = net();
    let first = net.send(FLOW, 90_000, CompletionLevel::Delivery).unwrap();
    let got = net.receive_of(FLOW, 90_000);
    net.steps(8);
    assert!((1..90_000).contains(&bytes(&net)), "the transfer is in progress");
    let engine = &mut net.engines[0];
    engine.core.close_endpoint(0, &mut engine.memory);
    engine.core.cancel_closed(|_| true, &mut engine.memory);
    assert_eq!(net.end_of(0, first), Some(&Ended::Cancelled));
    net.steps(40);
    let ended = net.end_of(1, got).expect("its sender is closed");
    assert!(matches!(ended, Ended::Failed(PeerFailure::Left, _)), "{ended:?}");
}

/// The same on the receiver's side: pieces left in the ring are discarded.
#[test]
fn cancelled_piece_receive_ends_the_send() {
    let mut net = net();
    let sent = net.send(FLOW, 90_000, CompletionLevel::Delivery).unwrap();
    net.receive_of(FLOW, 90_000);
    net.steps(8);
    assert!((1..90_000).contains(&bytes(&net)), "the transfer is in progress");
    let engine = &mut net.engines[1];
    engine.core.close_endpoint(0, &mut engine.memory);
    engine.core.cancel_closed(|_| true, &mut engine.memory);
    net.steps(60);
    assert!(net.engines[0].memory.ended.contains_key(&sent));
    assert!(net.engines[0].core.shared().ready().len(Work::Piece) == 0);
    assert!(net.engines[1].core.shared().counters().stale_frames > 0, "pieces without a receive");
}

/// RR-SHM-10: a peer may write any piece into the ring.
#[test]
fn out_of_order_or_ungranted_pieces_close_the_session() {
    let pulls = |net: &mut Net| {
        net.rings.as_mut().unwrap().is_suspended = true;
        let got = net.receive_of(FLOW, 50_000);
        net.send(FLOW, 50_000, CompletionLevel::Delivery);
        net.steps(10);
        let in_ring = &net.rings.as_ref().unwrap().written;
        let (_, _, header, bytes) = in_ring.front().expect("the first one").clone();
        (got, header, bytes.len())
    };
    let mut net = net();
    let (_, header, length) = pulls(&mut net);
    let slot = net.engines[1].slots[&0];
    let core = &mut net.engines[1].core;
    let left = 50_000 - header.offset.get() as usize;
    let bad = |result| matches!(result, Err(FrameError::BadData { .. }));
    let with = |offset: u64| PieceHeader { offset: offset.into(), ..header };
    assert!(bad(handle_piece(core, slot, &header, 0)));
    assert!(bad(handle_piece(core, slot, &header, left + 1)));
    assert!(bad(handle_piece(core, slot, &with(header.offset.get() + 1), length)));
    assert!(bad(handle_piece(core, slot, &with(0), length)));
    assert!(bad(handle_piece(core, slot, &with(u64::MAX), length)));
    // A piece of another ring, or for another receive, is stale.
    let late = PieceHeader { ring: 2.into(), ..header };
    assert!(handle_piece(core, slot, &late, length).unwrap().is_none());
    let late = PieceHeader { operation: u64::MAX.into(), ..header };
    assert!(handle_piece(core, slot, &late, length).unwrap().is_none());
    assert!(handle_piece(core, slot, &header, length).unwrap().is_some());
}

/// RR-SHM-10: a peer may send any grant.
#[test]
fn invalid_ring_grants_are_bounded_by_sends() {
    let mut net = net();
    let sent = net.send(FLOW, 50_000, CompletionLevel::Delivery).unwrap();
    net.steps(10);
    let slot = net.engines[0].slots[&1];
    let core = &mut net.engines[0].core;
    let grant = |offset: u64, length: u32, ring: u32| {
        sim::grant(GrantOver::Ring(ring), sent, offset, length)
    };
    let is_bad = |result| matches!(result, Err(FrameError::BadGrant { .. }));
    assert!(is_bad(handle_grant(core, slot, &grant(50_000, 1, 1))));
    assert!(is_bad(handle_grant(core, slot, &grant(u64::MAX, 1, 1))));
    assert!(is_bad(handle_grant(core, slot, &grant(0, 0, 1))));
    assert_eq!(handle_grant(core, slot, &grant(0, 50_000, 77)), Ok(()));
    assert!(is_bad(handle_grant(core, slot, &grant(0, 50_000, 77))), "granted twice");
    assert!(is_bad(handle_grant(core, slot, &grant(0, 50_000, 1))));
    assert!(core.shared().ready().len(Work::Piece) == 0, "for a ring that does not exist");
    // For no send.
    let nothing = Grant { send_operation: u64::MAX.into(), ..grant(0, 1, 1) };
    assert_eq!(handle_grant(core, slot, &nothing), Ok(()));
    let control = core.session(slot).unwrap().segments.control().front().copied();
    let refused = Refused::new(GrantOver::Ring(1), nothing.receive_operation.get());
    let is_refused = |it: &Refused| it.as_bytes() == refused.as_bytes();
    assert!(matches!(control, Some(ControlFrame::Refused(it)) if is_refused(&it)));
}
