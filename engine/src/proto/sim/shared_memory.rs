//! Engines of one host: rings that carry pieces or, entry by entry, segments, and reads from the
//! sender's memory (CMA).

use std::collections::VecDeque;

use super::engine::Engine;
use super::memory::Memory;
use super::messages::Flow;
use super::net::{Event, Net};
use crate::proto::context::Cx;
use crate::proto::effects::{CompletionLevel, Effects};
use crate::proto::ready::Work;
use crate::proto::session::Session;
use crate::proto::session::segments::PostedMessage;
use crate::proto::table::Id;
use crate::wire::frame_range::RingBytes;
use crate::wire::piece::PieceHeader;
use crate::wire::{CmaSource, FrameRange};

/// Addresses identify operations, and are never 0.
const FIRST_ADDRESS: u64 = 1 << 40;

/// Returns the location of a send's message.
pub(super) fn source_of(memory: &Memory, id: Id) -> CmaSource {
    let address = FIRST_ADDRESS + id.to_u64();
    CmaSource { address: address.into(), revocations: memory.revocations.into() }
}

/// Rings of all engines, which carry pieces.
#[derive(Debug, Default)]
pub(crate) struct Rings {
    /// Number of the newest ring.
    newest: u32,
    /// Rings whose content is never read.
    lost: Vec<u32>,
    /// Written and unread pieces: source, target, header, bytes.
    pub(crate) written: VecDeque<(usize, usize, PieceHeader, Vec<u8>)>,
    /// Bytes carried by rings.
    pub(crate) bytes: u64,
    /// Suspends all readers.
    pub(crate) is_suspended: bool,
}

/// A segment in a ring: the numbers of its frames, if it has no header, and its bytes.
pub(crate) type RingEntry = (Option<FrameRange>, Vec<u8>);

/// Segments in rings that the test itself carries.
impl Net {
    /// Sends the next message of a flow by a ring, as a loop without other work does.
    pub(crate) fn send_by_ring(&mut self, flow: Flow, length: usize) -> RingEntry {
        let (request, bytes) = self.next_message(&flow, length, CompletionLevel::Inject);
        let Engine { core, slots, .. } = &mut self.engines[flow.from];
        let fill = |room: &mut [u8]| room.copy_from_slice(&bytes);
        let (target, whole) = (flow.target, Some(&bytes[..]));
        let frame = PostedMessage { request: &request, target, fill, whole };
        let alone = core.enter(slots[&flow.to]).and_then(|(it, cx)| it.alone(cx, &frame));
        let mut entry = None;
        let sent = alone.expect("nothing is ahead of it").send_by_ring(|frames, bytes| {
            let bytes = match bytes {
                RingBytes::Short(bytes, length) => bytes[..length].to_vec(),
                RingBytes::Parts(parts) => parts.concat(),
            };
            entry = Some((frames, bytes));
            true
        });
        assert_eq!(sent, Ok(()));
        self.note_sent(flow, length, None);
        entry.expect("it is written")
    }

    /// Writes what waits in an engine into its ring to another.
    pub(crate) fn write_ring(&mut self, from: usize, to: usize) -> Vec<RingEntry> {
        let (slot, room_bytes) = (self.engines[from].slots[&to], self.room_bytes);
        let mut written = Vec::new();
        loop {
            self.stage(from);
            let core = &mut self.engines[from].core;
            let next = core.enter(slot).and_then(|(it, cx)| it.poll_for_ring(cx, room_bytes));
            let Some(segment) = next else { return written };
            let (frames, bytes) = segment.content();
            written.push((frames, bytes.to_vec()));
            segment.note_written();
        }
    }

    /// Reads an entry of a ring.
    pub(crate) fn read_ring(&mut self, from: usize, to: usize, (frames, bytes): &RingEntry) {
        let now_ns = self.now_ns();
        let Engine { core, memory, slots, .. } = &mut self.engines[to];
        let slot = slots[&from];
        let handled = match *frames {
            Some(range) => core.handle_ring_frames(slot, (range, bytes), now_ns, memory),
            None => core.handle_ring_segment(slot, bytes, now_ns, memory),
        };
        assert_eq!(handled, Ok(()));
    }
}

impl Net {
    /// Sends segments and pieces by rings from now on.
    pub(crate) fn use_rings(&mut self) {
        self.has_rings = true;
        self.rings.get_or_insert_default().newest = 1000;
        self.room_bytes = 2048;
        for (number, engine) in self.engines.iter_mut().enumerate() {
            for (&peer, &slot) in &engine.slots {
                let ring = 10 * number.min(peer) + number.max(peer);
                engine
                    .core
                    .with(slot, |it, cx| assert!(it.use_ring(cx, Some(ring as u32), Some(&[]))));
            }
        }
    }

    /// Ends the ring of two engines and creates another; each learns of that at a time of its own.
    pub(crate) fn end_ring(&mut self, one: usize, other: usize) {
        let Some(rings) = &mut self.rings else { return };
        let ends = [(one, other), (other, one)];
        let is_of_it = |to: usize, peer: usize| ends.contains(&(to, peer));
        let is_change =
            |event: &Event| matches!(*event, Event::Ring { to, peer, .. } if is_of_it(to, peer));
        if self.events.iter().any(is_change) {
            // They have not learned of the previous ring's end.
            return;
        }
        rings.newest += 1;
        let ring = rings.newest;
        let last = ends.map(|(from, to)| {
            let engine = &self.engines[from];
            engine.core.session(engine.slots[&to]).and_then(|it| it.rendezvous().ring())
        });
        if self.random.hits(500_000) {
            rings.lost.extend(last.into_iter().flatten());
            rings.written.retain(|(.., header, _)| !rings.lost.contains(&header.ring.get()));
        }
        for (to, peer) in ends {
            let end_ns = self.events.now_ns + self.random.below(20);
            let next_ns = end_ns + self.random.below(20);
            self.events.add(end_ns, Event::Ring { to, peer, ring: None });
            self.events.add(next_ns, Event::Ring { to, peer, ring: Some(ring) });
        }
    }

    /// Lets an engine write pieces, and read those of others.
    pub(super) fn move_pieces(&mut self, number: usize) {
        let Some(rings) = &mut self.rings else { return };
        let engine = &mut self.engines[number];
        for _ in 0..engine.core.shared().ready().len(Work::Piece) {
            let Some(slot) = engine.core.shared_mut().ready_mut().take(Work::Piece) else { break };
            let peer = engine.peer_of(slot);
            let mut has_more = true;
            for _ in 0..self.random.below(3) {
                let piece_bytes = 1 + self.random.below(2999) as usize;
                engine.core.shared.rendezvous.set_piece_bytes(piece_bytes);
                let piece = engine.core.with(slot, Session::next_piece).flatten();
                has_more = piece.is_some();
                let Some(piece) = piece else { break };
                let range = piece.offset as usize..piece.offset as usize + piece.length;
                let bytes = match piece.length {
                    0 => Vec::new(),
                    _ => engine.memory.bytes[&piece.operation][range].to_vec(),
                };
                if !rings.lost.contains(&piece.header.ring.get()) {
                    rings.written.push_back((number, peer, piece.header, bytes));
                }
                engine.core.with(slot, |it, cx| {
                    it.rendezvous_mut().handle_piece_written(cx, piece.length)
                });
            }
            if has_more {
                engine.core.shared_mut().ready_mut().add_last(slot, Work::Piece);
            }
        }
        while !rings.is_suspended
            && self.random.hits(800_000)
            && let Some(at) = rings.written.iter().position(|&(_, to, ..)| to == number)
        {
            let (from, _, header, bytes) = rings.written.remove(at).unwrap();
            let Engine { core, memory, slots, .. } = &mut *engine;
            let handle = |it: &mut Session, mut cx: Cx<'_>| {
                it.rendezvous_mut().handle_piece(&mut cx, &header, bytes.len())
            };
            let piece = core.with(slots[&from], handle).unwrap().unwrap();
            let Some(piece) = piece else { continue };
            rings.bytes += bytes.len() as u64;
            memory.place(piece.operation, piece.offset as usize, &bytes);
            core.note_piece(piece, bytes.len(), memory);
        }
    }

    /// Sets whether all engines can read each other's memory.
    pub(crate) fn use_cma(&mut self, is_able: bool) {
        for engine in &mut self.engines {
            for &slot in engine.slots.values() {
                engine.core.with(slot, |it, cx| it.use_memory_reads(cx, is_able));
            }
        }
    }

    /// Lets an engine read pieces of its matched messages.
    pub(super) fn read_by_cma(&mut self, number: usize) {
        let most = 1 + self.random.below(2999);
        for _ in 0..2 {
            let Some(read) = self.engines[number].core.shared_mut().next_cma(most) else { return };
            let peer = self.engines[number].peer_of(read.session);
            let id = Id::from_u64(read.source.address.get() - FIRST_ADDRESS);
            let theirs = &self.engines[peer].memory;
            let range = read.offset as usize..(read.offset + read.length) as usize;
            let bytes = theirs.bytes.get(&id).map(|message| message[range].to_vec());
            let is_valid = read.source.revocations.get() == theirs.revocations;
            assert!(bytes.is_some() || !is_valid, "memory is valid until DONE or revocation");
            let fails = self.random.hits(self.cma_failure_ppm);
            let bytes = bytes.filter(|_| is_valid && !fails);
            let engine = &mut self.engines[number];
            if let Some(bytes) = &bytes {
                self.cma_bytes += read.length;
                engine.memory.place(read.operation, read.offset as usize, bytes);
            } else {
                engine.memory.begin_anew(read.operation);
            }
            engine.core.handle_cma(read, bytes.is_some(), &mut engine.memory);
        }
    }
}
