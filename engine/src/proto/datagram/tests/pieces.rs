//! Long messages sent by rings, in pieces.

use std::collections::VecDeque;

use rand::RngExt;

use super::super::super::core::Config;
use super::super::super::effects::{CompletionLevel, Effects, Ended};
use super::super::super::failure::PeerFailure;
use super::super::super::session::ControlFrame;
use super::super::super::table::Id;
use super::world::{Event, Stream, World};
use crate::wire::piece::{PieceHeader, RING_LANE};
use crate::wire::{FrameError, Grant, frame};

/// Rings of a world, which carry pieces.
#[derive(Debug, Default)]
pub(super) struct Rings {
    /// Number of the newest ring.
    made: u32,
    /// Rings whose content is never read.
    lost: Vec<u32>,
    /// Written and unread pieces: source, target, header, bytes.
    written: VecDeque<(usize, usize, PieceHeader, Vec<u8>)>,
    /// Bytes carried by rings.
    pub(super) bytes: u64,
    /// Suspends all readers.
    pub(super) rest: bool,
}

impl World {
    /// Sends segments and pieces by rings from now on.
    pub(super) fn use_rings(&mut self) {
        self.faults.has_rings = true;
        self.rings.get_or_insert_default().made = 1000;
        self.room_bytes = 2048;
        for (number, node) in self.nodes.iter_mut().enumerate() {
            for (&peer, &slot) in &node.slots {
                let ring = 10 * number.min(peer) + number.max(peer);
                node.core.use_ring(slot, Some(ring as u32));
            }
        }
    }

    /// Ends the ring of two engines and creates another; each learns of that at a time of its own.
    pub(super) fn end_ring(&mut self, one: usize, other: usize) {
        let Some(rings) = &mut self.rings else { return };
        let is_between =
            |to: usize, peer: usize| [(one, other), (other, one)].contains(&(to, peer));
        let is_pending =
            |event: &Event| matches!(*event, Event::Ring { to, peer, .. } if is_between(to, peer));
        if self.scheduled.values().any(is_pending) {
            // They have not learned of the previous ring's end.
            return;
        }
        rings.made += 1;
        let ring = rings.made;
        let last = [(one, other), (other, one)].map(|(from, to)| {
            let node = &self.nodes[from];
            node.core.ring_for_pieces(node.slots[&to])
        });
        if self.random.random_bool(0.5) {
            rings.lost.extend(last.into_iter().flatten());
            rings.written.retain(|(.., header, _)| !rings.lost.contains(&header.ring.get()));
        }
        for (to, peer) in [(one, other), (other, one)] {
            let gone = self.random.random_range(0..20);
            let there = gone + self.random.random_range(0..20);
            self.add(gone, Event::Ring { to, peer, ring: None });
            self.add(there, Event::Ring { to, peer, ring: Some(ring) });
        }
    }

    /// Lets an engine write pieces, and read those of others.
    pub(super) fn move_pieces(&mut self, number: usize) {
        let Some(mut rings) = self.rings.take() else { return };
        let node = &mut self.nodes[number];
        for index in (0..node.core.feeding().len()).rev() {
            let slot = node.core.feeding()[index];
            let peer = *node.slots.iter().find(|(_, it)| **it == slot).unwrap().0;
            for _ in 0..self.random.random_range(0..3) {
                node.core.config.piece_bytes = self.random.random_range(1..3000);
                let Some(piece) = node.core.next_piece(slot) else {
                    node.core.end_feeding(index);
                    break;
                };
                let start = piece.offset as usize;
                let bytes =
                    node.memory.bytes[&piece.operation][start..start + piece.length].to_vec();
                if !rings.lost.contains(&piece.header.ring.get()) {
                    rings.written.push_back((number, peer, piece.header, bytes));
                }
                node.core.handle_piece_written(slot, piece.length);
            }
        }
        let is_its = |rings: &Rings| rings.written.iter().position(|&(_, to, ..)| to == number);
        while !rings.rest
            && self.random.random_bool(0.8)
            && let Some(at) = is_its(&rings)
        {
            let (from, _, header, bytes) = rings.written.remove(at).unwrap();
            let slot = node.slots[&from];
            let piece = node.core.handle_piece(slot, &header, bytes.len()).unwrap();
            let Some(piece) = piece else { continue };
            rings.bytes += bytes.len() as u64;
            node.memory.place(piece.operation, piece.offset as usize, &bytes);
            node.core.note_piece(piece, bytes.len(), &mut node.memory);
        }
        self.rings = Some(rings);
    }
}

const STREAM: Stream = Stream { from: 0, source: 0, to: 1, target: 0, context: 1 };

fn world() -> World {
    let mut world = World::new(2, &Config::for_tests(), 1200, 1);
    world.use_streams(1);
    world.use_rings();
    world
}

fn receive(world: &mut World, capacity: usize) -> Id {
    world.receive((1, 0), Some((0, 0)), 1, capacity)
}

fn bytes(world: &World) -> u64 {
    world.rings.as_ref().unwrap().bytes
}

/// RR-SHM-10
#[test]
fn long_messages_go_in_pieces_posted_or_unexpected_and_truncated() {
    let mut world = world();
    let first = u64::from(Config::for_tests().rts_bytes);
    for (number, (length, capacity)) in
        [(1000, 1000), (20_000, 20_000), (20_000, 17_000), (100_000, 100_000), (70_000, 50), (0, 0)]
            .into_iter()
            .enumerate()
    {
        if number % 2 == 0 {
            world.send(STREAM, length, CompletionLevel::Delivery);
            world.steps(10);
            receive(&mut world, capacity);
        } else {
            receive(&mut world, capacity);
            world.send(STREAM, length, CompletionLevel::Match);
        }
        world.settle(400);
    }
    assert_eq!(bytes(&world), 20_000 + 17_000 + 100_000 - 3 * first);
    assert_eq!(world.segments, 0, "the stream was not used");
    world.check();
}

/// RR-SHM-10
#[test]
fn pieces_lost_with_a_ring_are_granted_to_lanes() {
    let mut world = world();
    for number in 0..200 {
        receive(&mut world, 30_000);
        world.send(STREAM, 30_000, CompletionLevel::Delivery);
        // Some messages are partially sent.
        world.steps(number % 40);
        world.end_ring(0, 1);
        world.settle(2000);
    }
    let by_rings = bytes(&world);
    assert!(by_rings > 10 * 30_000 && by_rings < 190 * 30_000, "{by_rings}");
    world.check();
}

/// Both sides learn of a ring's end and of the next ring at any time, independent of grants.
#[test]
fn grant_for_an_unknown_ring_waits_for_it() {
    let mut world = world();
    let [there, here] = [0, 1].map(|node| world.nodes[node].slots[&(1 - node)]);
    for node in [0, 1] {
        let slot = [there, here][node];
        world.nodes[node].core.use_ring(slot, None);
    }
    // The receiver has the ring of number 9, its sender does not know it yet.
    world.nodes[1].core.use_ring(here, Some(9));
    receive(&mut world, 50_000);
    world.send(STREAM, 50_000, CompletionLevel::Delivery);
    world.steps(30);
    assert_eq!(bytes(&world), 0);
    assert!(!world.is_at_rest());
    world.nodes[0].core.use_ring(there, Some(9));
    world.settle(300);
    assert!(bytes(&world) > 49_000);
    world.check();
}

/// RR-RDV-5
#[test]
fn cancelled_piece_send_fails_its_receive() {
    let mut world = world();
    let first = world.send(STREAM, 90_000, CompletionLevel::Delivery).unwrap();
    let got = receive(&mut world, 90_000);
    world.steps(8);
    assert!((1..90_000).contains(&bytes(&world)), "the transfer is in progress");
    let node = &mut world.nodes[0];
    node.core.close_endpoint(0, &mut node.memory);
    node.core.cancel_closed(&mut node.memory);
    assert_eq!(world.end_of(0, first), Some(&Ended::Cancelled));
    world.steps(40);
    let ended = world.end_of(1, got).expect("its sender is closed");
    assert!(matches!(ended, Ended::Failed(PeerFailure::Left, _)), "{ended:?}");
}

/// The same on the receiver's side: pieces left in the ring are discarded.
#[test]
fn cancelled_piece_receive_ends_the_send() {
    let mut world = world();
    let sent = world.send(STREAM, 90_000, CompletionLevel::Delivery).unwrap();
    receive(&mut world, 90_000);
    world.steps(8);
    assert!((1..90_000).contains(&bytes(&world)), "the transfer is in progress");
    let node = &mut world.nodes[1];
    node.core.close_endpoint(0, &mut node.memory);
    node.core.cancel_closed(&mut node.memory);
    world.steps(60);
    assert!(world.nodes[0].memory.ended.contains_key(&sent));
    assert!(world.nodes[0].core.feeding().is_empty());
    assert!(world.nodes[1].core.counters().stale_frames > 0, "pieces without a receive");
}

/// RR-SHM-10: a peer may write any piece into the ring.
#[test]
fn out_of_order_or_ungranted_pieces_close_the_session() {
    let pulls = |world: &mut World| {
        world.rings.as_mut().unwrap().rest = true;
        let got = receive(world, 50_000);
        world.send(STREAM, 50_000, CompletionLevel::Delivery);
        world.steps(10);
        let in_ring = &world.rings.as_ref().unwrap().written;
        let (_, _, header, bytes) = in_ring.front().expect("the first one").clone();
        (got, header, bytes.len())
    };
    let mut world = world();
    let (_, header, length) = pulls(&mut world);
    let slot = world.nodes[1].slots[&0];
    let core = &mut world.nodes[1].core;
    let left = 50_000 - header.offset.get() as usize;
    let bad = |result| matches!(result, Err(FrameError::BadData { .. }));
    let with = |offset: u64| PieceHeader { offset: offset.into(), ..header };
    assert!(bad(core.handle_piece(slot, &header, 0)));
    assert!(bad(core.handle_piece(slot, &header, left + 1)));
    assert!(bad(core.handle_piece(slot, &with(header.offset.get() + 1), length)));
    assert!(bad(core.handle_piece(slot, &with(0), length)));
    assert!(bad(core.handle_piece(slot, &with(u64::MAX), length)));
    // A piece of another ring, or for another receive, is stale.
    let late = PieceHeader { ring: 2.into(), ..header };
    assert!(core.handle_piece(slot, &late, length).unwrap().is_none());
    let late = PieceHeader { receive_operation: u64::MAX.into(), ..header };
    assert!(core.handle_piece(slot, &late, length).unwrap().is_none());
    assert!(core.handle_piece(slot, &header, length).unwrap().is_some());
}

/// RR-SHM-10: a peer may send any grant.
#[test]
fn invalid_ring_grants_are_bounded_by_sends() {
    let mut world = world();
    let sent = world.send(STREAM, 50_000, CompletionLevel::Delivery).unwrap();
    world.steps(10);
    let slot = world.nodes[0].slots[&1];
    let core = &mut world.nodes[0].core;
    let grant = |offset: u64, length: u32, ring: u32| Grant {
        kind: frame::KIND_GRANT,
        eager_class: 0,
        reserved: 0.into(),
        lane: RING_LANE.into(),
        send_operation: sent.to_u64().into(),
        receive_operation: 1.into(),
        offset: offset.into(),
        length: length.into(),
        chunk: ring.into(),
    };
    let is_bad = |result| matches!(result, Err(FrameError::BadGrant { .. }));
    assert!(is_bad(core.handle_grant(slot, &grant(50_000, 1, 1))));
    assert!(is_bad(core.handle_grant(slot, &grant(u64::MAX, 1, 1))));
    assert!(is_bad(core.handle_grant(slot, &grant(0, 0, 1))));
    assert_eq!(core.handle_grant(slot, &grant(0, 50_000, 77)), Ok(()));
    assert!(is_bad(core.handle_grant(slot, &grant(0, 50_000, 77))), "granted twice");
    assert!(is_bad(core.handle_grant(slot, &grant(0, 50_000, 1))));
    assert!(core.feeding().is_empty(), "for a ring that does not exist");
    // For no send.
    let nothing = Grant { send_operation: u64::MAX.into(), ..grant(0, 1, 1) };
    assert_eq!(core.handle_grant(slot, &nothing), Ok(()));
    let control = core.session(slot).unwrap().control.front().copied();
    assert!(matches!(control, Some(ControlFrame::Refused(it)) if it.lane.get() == RING_LANE));
}
