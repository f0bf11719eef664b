//! Reassembly of messages that arrive in parts.
//!
//! ```text
//!                   envelope           its turn              a receive
//!   parts only ───────────────> held ──────────> unexpected ───────────> receiving
//!       \___________________________________________________________________^
//! ```
//!
//! Parts are copied directly into the receive's memory once there is one, before that into the
//! buffer of the unexpected message, and before the message's turn into buffers of their own. The
//! whole length of a message is charged to byte credit, when its envelope or an earlier part
//! arrives, and returned when it is matched or dropped. A part of an unknown message whose envelope
//! has arrived belongs to one that was dropped or ended: it is ignored.

use super::super::core::Core;
use super::super::effects::{Arrival, CompletionLevel, Effects, Ended};
use super::super::failure::PeerFailure;
use super::super::operation::OperationState;
use super::super::receive::context_of;
use super::super::session::ControlFrame;
use super::super::table::{Id, Table};
use super::super::unexpected::{Kind, Message, Unexpected, Waiting};
use super::ranges::Ranges;
use super::window::FRAMES_MAX;
use crate::wire::part::{FLAG_GIVEN_UP, FLAG_LAST, PART_BYTES_MIN, Part};
use crate::wire::{Eager, FrameError, PARTS_BYTES_MAX};

/// An eager send whose parts are not all staged or not all acknowledged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fragmenting {
    pub(crate) level: CompletionLevel,
    /// Frame of the envelope.
    pub(crate) frame: u32,
    /// Bytes staged in segments.
    pub(crate) staged: u32,
    /// Segments with bytes of it that are not acknowledged, as far as its level requires.
    pub(crate) unacknowledged: u32,
    /// MATCHED was received.
    pub(crate) is_matched: bool,
}

impl Fragmenting {
    pub(in crate::proto) fn new(level: CompletionLevel, frame: u32) -> Self {
        Self { level, frame, staged: 0, unacknowledged: 0, is_matched: false }
    }
}

/// A receive whose message arrives in parts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reassembling {
    pub(crate) assembly: Id,
    /// The message's envelope.
    pub(crate) arrival: Arrival,
}

/// Destination of a message's parts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Target {
    /// Buffers of their own, since the message has not had its turn.
    Store,
    /// This unexpected message.
    Unexpected(u32),
    /// The memory of this receive.
    Receive(Id),
}

#[derive(Debug)]
struct Piece {
    offset: u32,
    length: u32,
    bytes: Box<[u8]>,
}

/// A message with missing parts.
#[derive(Debug)]
pub(crate) struct Assembly {
    slot: u32,
    /// Frame of the envelope.
    frame: u32,
    /// Length of the message; `None`: the envelope is missing.
    length: Option<u32>,
    /// End of the part that is marked as the last one.
    end: Option<u32>,
    arrived: u32,
    /// Received ranges.
    ranges: Ranges,
    pieces: Vec<Piece>,
    target: Target,
    is_given_up: bool,
}

impl Assembly {
    /// Returns the byte credit that it holds before its turn.
    pub(super) fn stored_credit(&self) -> u32 {
        match self.target {
            Target::Store => self.length.unwrap_or(self.arrived),
            // Returned with the unexpected message, or at the match.
            Target::Unexpected(_) | Target::Receive(_) => 0,
        }
    }

    fn is_whole(&self) -> bool {
        self.length == Some(self.arrived)
    }

    /// Adds a non-empty range. Returns `false` if part of it is present already.
    ///
    /// RR-DGRAM-7.
    fn add_range(&mut self, start: u32, end: u32) -> bool {
        let is_new = self.ranges.add(start.into(), end.into());
        self.arrived += if is_new { end - start } else { 0 };
        is_new
    }
}

/// Messages with missing parts, of all sessions. Their number is bounded by envelope credit and,
/// once they are matched, by the number of operations.
#[derive(Debug)]
pub(crate) struct Assemblies {
    table: Table<Assembly>,
    /// Lists of completed ones, for reuse.
    idle: Vec<(Ranges, Vec<Piece>)>,
}

impl Default for Assemblies {
    fn default() -> Self {
        Self { table: Table::new(usize::MAX), idle: Vec::new() }
    }
}

impl Assemblies {
    fn open(&mut self, slot: u32, frame: u32) -> Id {
        let (ranges, pieces) = self.idle.pop().unwrap_or_default();
        let assembly = Assembly {
            slot,
            frame,
            length: None,
            end: None,
            arrived: 0,
            ranges,
            pieces,
            target: Target::Store,
            is_given_up: false,
        };
        self.table.insert(assembly).expect("the table is unbounded")
    }

    pub(super) fn remove(&mut self, id: Id) -> Option<Assembly> {
        self.table.remove(id)
    }

    /// Keeps the memory of a removed one for reuse.
    pub(super) fn recycle(&mut self, assembly: Assembly, store: &mut Unexpected) {
        let Assembly { ranges, mut pieces, .. } = assembly;
        for piece in pieces.drain(..) {
            store.give_back(piece.bytes);
        }
        self.idle.push((ranges.emptied(), pieces));
    }

    #[cfg(any(test, feature = "sim"))]
    pub(super) fn len(&self) -> usize {
        self.table.len()
    }
}

fn bad(part: &Part, why: &'static str) -> FrameError {
    let (message, offset) = (part.message.get(), part.offset.get());
    FrameError::BadPart { message, offset, length: part.length.get(), why }
}

impl Core {
    /// Drops a message in parts; later parts are ignored.
    pub(crate) fn drop_assembly(&mut self, id: Id) {
        let Some(assembly) = self.datagrams.assemblies.remove(id) else { return };
        let session = self.sessions.at_mut(assembly.slot as usize);
        if let Some(datagram) = session.and_then(|session| session.datagram.as_deref_mut()) {
            datagram.assemblies.remove(assembly.frame);
        }
        self.datagrams.assemblies.recycle(assembly, &mut self.unexpected);
    }

    /// Handles the envelope of a message in parts, received as `frame`; its turn may be later.
    ///
    /// RR-DGRAM-7, RR-CREDIT-1.
    pub(super) fn announce_parts(
        &mut self,
        slot: u32,
        frame: u32,
        header: &Eager,
    ) -> Result<(), FrameError> {
        let length = header.length.get();
        let error = |why| FrameError::BadPart { message: frame, offset: 0, length, why };
        if length == 0 {
            return Err(error("an empty message has parts"));
        }
        let Some(session) = self.sessions.at_mut(slot as usize) else { return Ok(()) };
        let Some(datagram) = session.datagram.as_deref_mut() else { return Ok(()) };
        let assemblies = &mut self.datagrams.assemblies;
        let id = match datagram.assemblies.get(frame) {
            Some(&id) => {
                datagram.orphans -= 1;
                id
            }
            None => {
                let id = assemblies.open(slot, frame);
                datagram.assemblies.insert(frame, id);
                id
            }
        };
        let Some(assembly) = assemblies.table.get_mut(id) else { return Ok(()) };
        let is_beyond = assembly.ranges.end() > u64::from(length);
        if is_beyond || assembly.end.is_some_and(|end| end != length) {
            return Err(error("received parts contradict the envelope"));
        }
        if !session.bytes.handle_arrival(length - assembly.arrived) {
            return Err(FrameError::NoCredit("eager byte"));
        }
        // From here on the whole message is charged.
        assembly.length = Some(length);
        Ok(())
    }

    /// Takes a message in parts whose turn it is.
    ///
    /// RR-MATCH-3, RR-DGRAM-7.
    pub(super) fn take_parts(
        &mut self,
        slot: u32,
        frame: u32,
        header: &Eager,
        data: Option<u64>,
        effects: &mut impl Effects,
    ) -> Result<(), FrameError> {
        let session = self.sessions.at(slot as usize);
        let Some(datagram) = session.and_then(|session| session.datagram.as_deref()) else {
            return Ok(());
        };
        let Some(&assembly) = datagram.assemblies.get(frame) else { return Ok(()) };
        let (length, report) = (header.length.get(), header.operation.get());
        let (target, source) = (header.target_endpoint.get(), header.source_endpoint.get());
        let admitted = self.admit(slot, target, source, length as usize);
        if !matches!(admitted, Ok(Some(_))) {
            // Its credit was returned.
            self.drop_assembly(assembly);
        }
        let Some((remote, epoch)) = admitted? else {
            if report != 0 {
                let status = crate::wire::done::STATUS_ABANDONED;
                self.push_control(slot, ControlFrame::done(report, status, 0));
            }
            return Ok(());
        };
        let context = context_of(header.context.get(), header.flags);
        let tag = header.tag.get();
        let envelope = super::super::matching::MatchEnvelope { source: remote, context, tag };
        let whole = u64::from(length);
        let Some(id) = self.match_arrival(target, &envelope, whole, effects) else {
            let kind = Kind::Parts { report, assembly };
            let message = Waiting { came_by: (slot, epoch), data, kind };
            let message = self.unexpected.insert_parts(message, length);
            let message = message.ok_or(FrameError::NoCredit("unexpected message"))?;
            if let Some(matcher) = self.endpoints.get_mut(target) {
                matcher.insert_unexpected(&envelope, message.index() as u32);
            }
            self.note_unexpected(slot, context);
            self.store_pieces(assembly, message.index() as u32);
            return Ok(());
        };
        self.return_credit(slot, length as usize);
        if report != 0 {
            self.push_control(slot, ControlFrame::matched(report));
        }
        let Some(peer) = self.remotes.id_at(remote as usize) else { return Ok(()) };
        let arrival = Arrival { peer, context, tag, length: whole, data };
        effects.matched(id, &arrival);
        self.receive_parts(id, slot, assembly, arrival);
        let capacity = self.capacity_of(id);
        let Some(found) = self.datagrams.assemblies.table.get_mut(assembly) else {
            return Ok(());
        };
        for piece in found.pieces.drain(..) {
            place(effects, id, capacity, piece.offset, &piece.bytes[..piece.length as usize]);
            self.unexpected.give_back(piece.bytes);
        }
        self.finish_parts(assembly, effects);
        Ok(())
    }

    /// Lets a receive take over an unexpected message in parts: received bytes are copied, and
    /// later parts go to the receive's memory.
    ///
    /// RR-DGRAM-7.
    pub(crate) fn take_over(
        &mut self,
        id: Id,
        message: Message,
        (report, assembly): (u64, Id),
        arrival: Arrival,
        effects: &mut impl Effects,
    ) {
        let capacity = self.capacity_of(id);
        if let Some(found) = self.datagrams.assemblies.table.get(assembly) {
            for (start, end) in found.ranges.iter() {
                let bytes = &message.payload()[start as usize..end as usize];
                place(effects, id, capacity, start as u32, bytes);
            }
        }
        self.return_credit_of(&message);
        if report != 0 {
            self.push_control(message.session, ControlFrame::matched(report));
        }
        effects.matched(id, &arrival);
        self.receive_parts(id, message.session, assembly, arrival);
        self.unexpected.recycle(message);
        self.finish_parts(assembly, effects);
    }

    fn capacity_of(&self, id: Id) -> u64 {
        self.operations.get(id).map_or(0, |operation| operation.length)
    }

    fn receive_parts(&mut self, id: Id, slot: u32, assembly: Id, arrival: Arrival) {
        let Some(operation) = self.operations.get_mut(id) else { return };
        operation.note_match(slot, &arrival);
        operation.state = OperationState::Reassembling(Reassembling { assembly, arrival });
        if let Some(assembly) = self.datagrams.assemblies.table.get_mut(assembly) {
            assembly.target = Target::Receive(id);
        }
    }

    /// Moves the stored parts of a message to its unexpected buffer after its turn.
    fn store_pieces(&mut self, assembly: Id, message: u32) {
        let Some(found) = self.datagrams.assemblies.table.get_mut(assembly) else { return };
        found.target = Target::Unexpected(message);
        for piece in found.pieces.drain(..) {
            let bytes = &piece.bytes[..piece.length as usize];
            self.unexpected.write(message, piece.offset as usize, bytes);
            self.unexpected.give_back(piece.bytes);
        }
        if found.is_whole() {
            self.unexpected.make_whole(message);
            self.drop_assembly(assembly);
        }
    }

    /// Ends a receive whose message is complete, or will never be.
    fn finish_parts(&mut self, assembly: Id, effects: &mut impl Effects) {
        let Some(found) = self.datagrams.assemblies.table.get(assembly) else { return };
        let Target::Receive(id) = found.target else { return };
        let is_given_up = found.is_given_up;
        if !is_given_up && !found.is_whole() {
            return;
        }
        self.drop_assembly(assembly);
        let Some(operation) = self.operations.remove(id) else { return };
        let OperationState::Reassembling(Reassembling { arrival, .. }) = operation.state else {
            return;
        };
        if is_given_up {
            let name = self.name_of(operation.remote);
            let ended = Ended::Failed(PeerFailure::Left, name);
            self.end_receive(id, operation.slice_of, ended, effects);
        } else {
            self.end_receive(id, operation.slice_of, Ended::Received(arrival), effects);
        }
    }

    /// Handles a part received as `frame`.
    ///
    /// RR-DGRAM-7, RR-DGRAM-8.
    pub(super) fn handle_part(
        &mut self,
        slot: u32,
        frame: u32,
        part: &Part,
        bytes: &[u8],
        effects: &mut impl Effects,
    ) -> Result<(), FrameError> {
        let (start, length) = (part.offset.get(), part.length.get());
        let is_given_up = part.flags & FLAG_GIVEN_UP != 0;
        let is_last = part.flags & FLAG_LAST != 0;
        if is_given_up != (length == 0) {
            return Err(bad(part, "an empty part that is not the end of the message"));
        }
        if !is_given_up && !is_last && (length as usize) < PART_BYTES_MIN {
            return Err(bad(part, "part too short, and not the last one"));
        }
        let end = start.checked_add(length).filter(|&end| end as usize <= PARTS_BYTES_MAX);
        let end = end.ok_or_else(|| bad(part, "exceeds the longest message in parts"))?;
        let Some(id) = self.assembly_of(slot, frame, part)? else {
            self.counters.stale_frames += 1;
            return Ok(());
        };
        let Some(session) = self.sessions.at_mut(slot as usize) else { return Ok(()) };
        let Some(assembly) = self.datagrams.assemblies.table.get_mut(id) else { return Ok(()) };
        if is_given_up {
            assembly.is_given_up = true;
            self.finish_parts(id, effects);
            return Ok(());
        }
        match assembly.length {
            Some(whole) if end > whole || is_last != (end == whole) => {
                return Err(bad(part, "exceeds its message"));
            }
            Some(_) => {}
            None if is_last && assembly.end.replace(end).is_some() => {
                return Err(bad(part, "two parts are marked as the last"));
            }
            None if !session.bytes.handle_arrival(length) => {
                return Err(FrameError::NoCredit("eager byte"));
            }
            None => {}
        }
        if !assembly.add_range(start, end) {
            if assembly.length.is_none() {
                session.bytes.consume(length);
            }
            return Err(bad(part, "overlaps another part"));
        }
        let is_whole = assembly.is_whole();
        match assembly.target {
            Target::Store => {
                let bytes = self.unexpected.keep(bytes);
                assembly.pieces.push(Piece { offset: start, length, bytes });
            }
            Target::Unexpected(message) => {
                self.unexpected.write(message, start as usize, bytes);
                if is_whole {
                    self.unexpected.make_whole(message);
                    self.drop_assembly(id);
                }
            }
            Target::Receive(receive) => {
                let capacity = self.capacity_of(receive);
                let shift = u32::from(planted!(ShiftPart) && start > 0);
                place(effects, receive, capacity, start - shift, bytes);
                self.finish_parts(id, effects);
            }
        }
        Ok(())
    }

    /// Returns the message of a part that arrived as `frame`, and creates it if this is its first
    /// frame. `None`: it has ended.
    ///
    /// RR-DGRAM-8.
    fn assembly_of(
        &mut self,
        slot: u32,
        frame: u32,
        part: &Part,
    ) -> Result<Option<Id>, FrameError> {
        let Some(session) = self.sessions.at_mut(slot as usize) else { return Ok(None) };
        let Some(datagram) = session.datagram.as_deref_mut() else { return Ok(None) };
        let message = part.message.get();
        if let Some(&id) = datagram.assemblies.get(message) {
            return Ok(Some(id));
        }
        let before = frame.wrapping_sub(message);
        if before == 0 || before > u32::MAX / 2 {
            return Err(bad(part, "an envelope must precede its parts"));
        }
        if datagram.arrivals.has(message) {
            return Ok(None);
        }
        debug_assert!(before < FRAMES_MAX, "both frames are in one window");
        // Each missing envelope was sent with credit.
        if datagram.orphans >= session.envelopes.left() {
            return Err(FrameError::NoCredit("envelope"));
        }
        datagram.orphans += 1;
        let id = self.datagrams.assemblies.open(slot, message);
        datagram.assemblies.insert(message, id);
        Ok(Some(id))
    }
}

/// Copies the bytes that fit the receive.
fn place(effects: &mut impl Effects, id: Id, capacity: u64, offset: u32, bytes: &[u8]) {
    let fits = capacity.saturating_sub(u64::from(offset)).min(bytes.len() as u64) as usize;
    if fits > 0 {
        effects.place(id, offset as usize, &bytes[..fits]);
    }
}
