//! Sending: eagerly where the message fits and credit permits, otherwise by a request to send.

use std::collections::VecDeque;

use zerocopy::IntoBytes;

use super::core::{Core, UNTAGGED};
use super::data_bytes::DataBytes;
use super::datagram::stage_in_segment;
use super::effects::{CompletionLevel, Effects, Ended};
use super::failure::PeerFailure;
use super::fence::target_of;
use super::hint::Hint;
use super::operation::{Operation, OperationState, Serving};
use super::table::{Id, Table};
use crate::wire::eager::EAGER_HEADER_BYTES;
use crate::wire::rts::RTS_HEADER_BYTES;
use crate::wire::{DATA_BYTES, EAGER_BYTES_MAX, Eager, Rts, eager, frame};

/// Maximum number of waiting sends that another one overtakes, since the scan takes time.
const LOOK_BACK: usize = 256;
/// Maximum number of sends that overtake one by their hints.
const PASSED_MAX: u8 = 16;

/// A message to send.
#[derive(Clone, Copy, Debug)]
pub struct SendRequest {
    /// Local endpoint.
    pub(crate) endpoint: u16,
    /// Handle of the remote endpoint.
    pub(crate) peer: Id,
    /// Context, with [`UNTAGGED`] for untagged messages.
    pub(crate) context: u64,
    /// Tag.
    pub(crate) tag: u64,
    /// Length in bytes.
    pub(crate) length: u64,
    /// When it completes.
    pub(crate) level: CompletionLevel,
    /// Hint of the message.
    pub(crate) hint: Hint,
    /// Remote data, delivered to the receiver with the message.
    pub(crate) data: Option<u64>,
    /// It starts when all earlier sends of its endpoint to its peer have completed.
    pub(crate) fence: bool,
}

impl SendRequest {
    /// Returns the bytes of remote data after its header.
    #[inline]
    pub(super) fn data_bytes(&self) -> usize {
        self.data.map_or(0, |_| DATA_BYTES)
    }

    /// Returns whether it may be sent without an operation.
    #[inline]
    pub(crate) fn is_plain(&self) -> bool {
        !self.fence
    }
}

/// Why a send was refused.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum SendRefusal {
    /// No such peer in the address vector.
    UnknownPeer,
    /// The peer failed.
    Failed(PeerFailure),
    /// A limit is reached: of this.
    Full(&'static str),
}

impl SendRefusal {
    /// There is no space for another operation.
    pub(crate) const OPERATIONS: Self = Self::Full("outstanding operations of the engine");
    /// Too many sends to the peer wait.
    pub(crate) const WAITING_SENDS: Self = Self::Full("sends that wait for one peer");
}

/// Result of [`Core::stage`].
#[derive(Debug)]
pub(crate) enum Staged<'a> {
    /// Copy the whole message here. `completes`: the operation has ended with that.
    Eager { room: &'a mut [u8], completes: bool },
    /// Copy the first bytes of the message here.
    Rts { room: &'a mut [u8] },
    /// Write the location of the message here, as [`crate::wire::CmaSource`].
    Source { room: &'a mut [u8] },
    /// Copy the bytes at `offset` of the message here, to the length of `room`. `completes`: the
    /// operation has ended with that.
    Part { room: &'a mut [u8], offset: usize, completes: bool },
    /// No credit or no space now.
    Blocked,
}

impl Core {
    /// Returns the longest message that is sent eagerly to a session's peer, in bytes. `None`: it
    /// is not connected.
    pub(crate) fn eager_limit_of(&self, slot: u32) -> Option<u64> {
        let session = self.sessions.at(slot as usize).filter(|session| session.is_connected())?;
        Some(u64::from(self.eager_limit_for(session)))
    }

    /// Returns the session of a peer that can be sent to. After reporting a refusal, call
    /// [`Self::note_reported`].
    #[inline]
    pub(crate) fn route(&self, peer: Id) -> Result<u32, SendRefusal> {
        let remote = self.remotes.get(peer).ok_or(SendRefusal::UnknownPeer)?;
        let session = self.sessions.at(remote.session as usize).ok_or(SendRefusal::UnknownPeer)?;
        match session.failure_to_report() {
            Some(failure) => Err(SendRefusal::Failed(failure.clone())),
            None => Ok(remote.session),
        }
    }

    /// Notes that the owner received the reason why the session of a peer ended.
    ///
    /// RR-END-5.
    pub(crate) fn note_reported(&mut self, peer: Id) {
        let session = self.remotes.get(peer).map(|remote| remote.session as usize);
        if let Some(session) = session.and_then(|slot| self.sessions.at_mut(slot)) {
            session.unreported = None;
        }
    }

    /// Requests an acknowledgement in stream mode from a process whose host has acknowledged
    /// everything for a while, so that the end of the session does not leave deliveries unknown.
    ///
    /// RR-END-5.
    pub(crate) fn ask_for_ack(&mut self, slot: u32) {
        if let Some(session) = self.sessions.at_mut(slot as usize)
            && session.ask_for_ack()
            && !std::mem::replace(&mut session.is_dirty, true)
        {
            self.dirty.push(slot);
        }
    }

    /// Fast path: reserves space for a whole message that is sent now, without an operation.
    /// `None`: not connected, earlier sends wait, no credit, no space, or too long. The request is
    /// plain; its remote data is before the space.
    ///
    /// RR-CREDIT-1.
    #[inline]
    pub(crate) fn stage_now(&mut self, session: u32, request: &SendRequest) -> Option<&mut [u8]> {
        debug_assert!(request.is_plain(), "its header would lack something");
        let target = self.remotes.get(request.peer)?.endpoint;
        let known = self.sessions.at_mut(session as usize)?;
        if known.datagram.is_some() {
            let limit = self.config.eager_limit;
            let pool = &mut self.datagrams.segments;
            let staged = stage_in_segment(known, pool, session, request, target, limit);
            let (room, is_first) = staged?;
            if is_first {
                self.dirty.push(session);
            }
            return Some(room);
        }
        let eager_limit = self.config.eager_limit.min(EAGER_BYTES_MAX as u32);
        if rare!("a send that waits", 20) || !known.may_send_now(request.length, eager_limit) {
            return None;
        }
        let length = request.length as usize;
        let data = DataBytes::of(request.data);
        let data = data.as_slice();
        let bytes = EAGER_HEADER_BYTES + data.len() + length;
        if !known.outbox.has_room(&self.staging, bytes) {
            return None;
        }
        known.envelope_credit.spend(1);
        known.byte_credit.spend(length as u32);
        if !known.is_dirty {
            known.is_dirty = true;
            self.dirty.push(session);
        }
        let header = eager_header(request, target, 0, 0);
        if known.outbox.has_checksums() {
            known.outbox.add_to_sum(|sum| {
                crc32c::crc32c_append(crc32c::crc32c_append(sum, header.as_bytes()), data)
            });
            self.unsummed = Some(session);
        }
        known.completed_frame = Some(known.last_frame().wrapping_add(1));
        let room = known.push_message(&mut self.staging, bytes)?;
        let (head, room) = room.split_at_mut(EAGER_HEADER_BYTES);
        head.copy_from_slice(header.as_bytes());
        let (behind, payload) = room.split_at_mut(data.len());
        behind.copy_from_slice(data);
        Some(payload)
    }

    /// Whether a message cannot be sent at once: it exceeds the peer's window for eager bytes (it
    /// can only be pulled), takes more than one datagram, or waits for others.
    pub(crate) fn needs_operation(&self, request: &SendRequest) -> bool {
        if !request.is_plain() {
            return true;
        }
        let remote = self.remotes.get(request.peer);
        let session = remote.and_then(|remote| self.sessions.at(remote.session as usize));
        session.is_some_and(|session| {
            // The window is at least the first one; if it has grown, what is left of it is known.
            let window = session.eager_window.max(session.byte_credit.available());
            let window = u64::from(window.min(self.eager_limit_for(session)));
            let datagram = session.datagram.as_deref();
            let is_whole = datagram.is_none_or(|it| it.takes_whole(request));
            session.is_connected() && (window < request.length || !is_whole)
        })
    }

    /// Creates an operation for a send that could not be sent at once. Start it with
    /// [`Self::enqueue`] when its buffer is ready.
    pub(crate) fn new_send(&mut self, request: &SendRequest) -> Result<Id, SendRefusal> {
        let session = self.route(request.peer)?;
        if let Some(known) = self.sessions.at(session as usize)
            && known.waiting.len() >= self.config.send_queue_ops
        {
            return Err(SendRefusal::WAITING_SENDS);
        }
        self.new_admitted_send(request)
    }

    /// Creates an operation for a send that its poster has admitted: the limit on waiting sends was
    /// applied there.
    pub(crate) fn new_admitted_send(&mut self, request: &SendRequest) -> Result<Id, SendRefusal> {
        let session = self.route(request.peer)?;
        let (remote, state) =
            (request.peer.index() as u32, OperationState::New { level: request.level });
        let operation = Operation {
            context: request.context,
            tag: request.tag,
            length: request.length,
            data: request.data,
            hint: request.hint,
            fence: request.fence,
            ..Operation::new(request.endpoint, session, remote, state)
        };
        self.operations.insert(operation).map_err(|_| SendRefusal::OPERATIONS)
    }

    /// Queues a new send and connects if necessary. [`Self::poll_waiting`] returns it.
    pub(crate) fn enqueue(&mut self, id: Id, now_ns: u64) {
        let Some(operation) = self.operations.get_mut(id) else { return };
        let OperationState::New { level } = operation.state else { return };
        operation.state = OperationState::Queued { level };
        let slot = operation.session;
        let Some(session) = self.sessions.at_mut(slot as usize) else { return };
        let at = place_in_line(&session.waiting, &self.operations, id);
        session.waiting.insert(at, id);
        for &passed in session.waiting.range(at + 1..) {
            if let Some(passed) = self.operations.get_mut(passed) {
                passed.passed += 1;
            }
        }
        if session.is_connected() {
            if self.unblocked.last() != Some(&slot) {
                self.unblocked.push(slot);
            }
        } else {
            self.want_connection(slot, now_ns);
        }
        if self.operations.get(id).is_some_and(|operation| operation.fence) {
            self.fence(id);
        }
    }

    /// Returns the next waiting send to try with [`Self::stage`]. Blocked sessions return when
    /// credit or space does. Sends posted after a goodbye end with the session: the peer would
    /// acknowledge them, and not deliver them if it lacks an earlier one.
    ///
    /// RR-END-1.
    #[inline]
    pub(crate) fn poll_waiting(&mut self) -> Option<Id> {
        while let Some(&slot) = self.unblocked.last() {
            if let Some(session) = self.sessions.at(slot as usize)
                && session.is_connected()
                && !session.is_leaving
                && let Some(id) = session.next_waiting()
            {
                let is_message = session.waiting.front() == Some(&id);
                if !is_message || session.fences.is_empty() || planted!(IgnoreFence) {
                    return Some(id);
                }
                if let Some(id) = self.first_unfenced(slot) {
                    return Some(id);
                }
                // Fences hold messages only.
                let session = self.sessions.at(slot as usize);
                let one_sided = session.and_then(|it| it.one_sided.as_ref());
                if let Some(id) = one_sided.and_then(|it| it.next(None)) {
                    return Some(id);
                }
            }
            self.unblocked.pop();
        }
        None
    }

    /// Returns the request of a send operation, and the remote endpoint.
    pub(super) fn request_of(
        &self,
        operation: &Operation,
        level: CompletionLevel,
    ) -> Option<(SendRequest, u16)> {
        let remote = operation.remote as usize;
        let request = SendRequest {
            endpoint: operation.endpoint,
            peer: self.remotes.id_at(remote)?,
            context: operation.context,
            tag: operation.tag,
            length: operation.length,
            level,
            hint: operation.hint,
            data: operation.data,
            fence: operation.fence,
        };
        Some((request, self.remotes.at(remote)?.endpoint))
    }

    /// Tries to stage the send that [`Self::poll_waiting`] returned.
    pub(crate) fn stage(&mut self, id: Id) -> Staged<'_> {
        let Some(operation) = self.operations.get(id) else { return Staged::Blocked };
        if matches!(operation.state, OperationState::Asking(_) | OperationState::Replying { .. }) {
            return self.stage_one_sided(id);
        }
        let slot = operation.session as usize;
        if let Some(one_sided) = self.sessions.at_mut(slot).and_then(|it| it.one_sided.as_mut()) {
            one_sided.note_turn_of_messages();
        }
        if self.is_by_datagram(id) {
            return self.stage_by_datagram(id);
        }
        // The block decides, the rest records: one look-up of the returned space.
        let Some(operation) = self.operations.get(id) else { return Staged::Blocked };
        let OperationState::Queued { level } = operation.state else { return Staged::Blocked };
        let (slot, length) = (operation.session, operation.length);
        let Some((request, target)) = self.request_of(operation, level) else {
            return Staged::Blocked;
        };
        let Some(session) = self.sessions.at(slot as usize) else { return Staged::Blocked };
        let eager_limit = u64::from(self.eager_limit_for(session));
        let Some(session) = self.sessions.at_mut(slot as usize) else { return Staged::Blocked };
        let bytes_left = u64::from(session.byte_credit.available());
        let whole_limit = request.hint.eager_limit(eager_limit);
        // A peer may pull messages that could have been sent eagerly.
        let is_eager = length <= whole_limit
            && length <= bytes_left
            && !rare!("a short message that is pulled", 20);
        let first = u64::from(self.config.rts_bytes).min(length).min(bytes_left).min(eager_limit);
        let data = DataBytes::of(request.data);
        let data = data.as_slice();
        let (header, payload) = if is_eager {
            (EAGER_HEADER_BYTES + data.len(), length as usize)
        } else {
            (RTS_HEADER_BYTES + data.len(), first as usize)
        };
        if session.envelope_credit.available() == 0
            || !session.outbox.has_room(&self.staging, header + payload)
        {
            let is_room_elsewhere =
                session.outbox.is_empty() && session.envelope_credit.available() > 0;
            let may_others = session.one_sided.as_ref().is_some_and(|it| it.has_ready());
            if !may_others {
                self.unblocked.retain(|&unblocked| unblocked != slot);
            }
            if is_room_elsewhere {
                // Another session holds the staging buffers: retry in the next poll.
                self.unblocked.insert(0, slot);
            }
            return Staged::Blocked;
        }
        if !planted!(SkipCredit) {
            session.envelope_credit.spend(1);
        }
        session.byte_credit.spend(payload as u32);
        session.waiting.pop_front();
        let frame_number = session.last_frame().wrapping_add(1);
        if let Some(operation) = self.operations.get_mut(id) {
            operation.state = match (is_eager, level) {
                (false, _) => OperationState::Serving(Serving::default()),
                (true, CompletionLevel::Match) => OperationState::AwaitMatch,
                (true, _) => OperationState::AwaitDelivery,
            };
        }
        let completes = is_eager && level == CompletionLevel::Inject;
        if completes {
            self.operations.remove(id);
            session.completed_frame = Some(frame_number);
        } else if is_eager && level == CompletionLevel::Delivery {
            session.awaiting_delivery.push_back((frame_number, id));
        }
        if !session.is_dirty {
            session.is_dirty = true;
            self.dirty.push(slot);
        }
        let report = is_eager && level == CompletionLevel::Match;
        let (flags, operation) =
            if report { (eager::FLAG_REPORT_MATCH, id.to_u64()) } else { (0, 0) };
        let eager = eager_header(&request, target, flags, operation);
        let rts = rts_header(&request, target, id, payload as u32);
        let header = if is_eager { eager.as_bytes() } else { rts.as_bytes() };
        if session.outbox.has_checksums() {
            let sum_of = |sum| crc32c::crc32c_append(crc32c::crc32c_append(sum, header), data);
            session.outbox.add_to_sum(sum_of);
            self.unsummed = Some(slot);
        }
        let length = header.len() + data.len() + payload;
        let Some(room) = session.push_message(&mut self.staging, length) else {
            unreachable!("has_room was asked for the same length")
        };
        let (head, room) = room.split_at_mut(header.len());
        head.copy_from_slice(header);
        let (behind, room) = room.split_at_mut(data.len());
        behind.copy_from_slice(data);
        if is_eager { Staged::Eager { room, completes } } else { Staged::Rts { room } }
    }

    /// Blocks the messages of a session, for lack of credit or space; frames without credit may go.
    pub(super) fn block_messages(&mut self, slot: u32) {
        let session = self.sessions.at(slot as usize);
        let is_ready =
            session.and_then(|it| it.one_sided.as_ref()).is_some_and(|it| it.has_ready());
        if !is_ready {
            self.unblocked.retain(|&unblocked| unblocked != slot);
        }
    }

    /// Cancels a send that was not sent. Returns `false` if it was, and will complete.
    pub(crate) fn cancel_send(&mut self, id: Id, effects: &mut impl Effects) -> bool {
        let Some(operation) = self.operations.get(id) else { return false };
        if !matches!(
            operation.state,
            OperationState::Queued { .. } | OperationState::New { .. } | OperationState::Asking(_)
        ) {
            return false;
        }
        let slot = operation.session;
        if let Some(session) = self.sessions.at_mut(slot as usize) {
            session.waiting.retain(|&waiting| waiting != id);
            // The first waiting send may need less than the previous one.
            if let Some(one_sided) = session.one_sided.as_deref_mut() {
                one_sided.waiting.retain(|&waiting| waiting != id);
            }
            if session.is_connected() && session.has_waiting() {
                self.unblocked.push(slot);
            }
        }
        self.operations.remove(id);
        effects.complete(id, Ended::Cancelled);
        true
    }

    /// Handles MATCHED for an eager message that reports its match.
    pub(crate) fn handle_matched(
        &mut self,
        session: u32,
        matched: &crate::wire::Matched,
        effects: &mut impl Effects,
    ) {
        let id = Id::from_u64(matched.operation.get());
        match self.operations.get(id) {
            Some(operation)
                if operation.session == session
                    && matches!(operation.state, OperationState::AwaitMatch) =>
            {
                let accepted = operation.length;
                self.operations.remove(id);
                effects.complete(id, Ended::Sent { accepted });
                self.look_at_fences(session);
            }
            _ => self.counters.stale_frames += 1,
        }
    }
}

/// Returns the queue position of a send: after its own flow and those that its hint does not
/// overtake, at most [`LOOK_BACK`] before the end. A partially sent message is not overtaken, nor
/// one that [`PASSED_MAX`] have overtaken: they take credit that may return with its receive.
///
/// RR-MATCH-1, RR-DGRAM-6.
fn place_in_line(waiting: &VecDeque<Id>, operations: &Table<Operation>, id: Id) -> usize {
    let Some(new) = operations.get(id).filter(|new| new.hint != Hint::Bulk) else {
        return waiting.len();
    };
    let stream = |it: &Operation| (it.endpoint, it.remote, it.context);
    let stays = |&other: &Id| {
        operations.get(other).is_some_and(|other| {
            (stream(other) == stream(new) && !planted!(OvertakeStream))
                || ((other.fence || new.fence) && target_of(other) == target_of(new))
                || !new.hint.passes(other.hint)
                || other.passed >= PASSED_MAX
                || matches!(other.state, OperationState::Fragmenting(_))
        })
    };
    let from = waiting.len().saturating_sub(LOOK_BACK);
    waiting.range(from..).rposition(stays).map_or(from, |last| from + last + 1)
}

/// Returns the common flags of EAGER and RTS.
#[inline]
fn flags_of(request: &SendRequest) -> u8 {
    let untagged = if request.context & UNTAGGED != 0 { eager::FLAG_UNTAGGED } else { 0 };
    if request.data.is_some() { untagged | eager::FLAG_DATA } else { untagged }
}

#[inline]
pub(super) fn eager_header(request: &SendRequest, target: u16, flags: u8, operation: u64) -> Eager {
    Eager {
        kind: frame::KIND_EAGER,
        flags: flags | flags_of(request),
        target_endpoint: target.into(),
        source_endpoint: request.endpoint.into(),
        predecessor_distance: 0.into(),
        context: (request.context as u32).into(),
        length: (request.length as u32).into(),
        tag: request.tag.into(),
        operation: operation.into(),
    }
}

pub(super) fn rts_header(
    request: &SendRequest,
    target: u16,
    operation: Id,
    first_bytes: u32,
) -> Rts {
    Rts {
        kind: frame::KIND_RTS,
        flags: flags_of(request) | request.hint.flags(),
        target_endpoint: target.into(),
        source_endpoint: request.endpoint.into(),
        predecessor_distance: 0.into(),
        context: (request.context as u32).into(),
        first_bytes: first_bytes.into(),
        tag: request.tag.into(),
        operation: operation.to_u64().into(),
        length: request.length.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::datagram::Fragmenting;

    struct Line(VecDeque<Id>, Table<Operation>);

    impl Line {
        fn post(&mut self, context: u64, hint: Hint) -> usize {
            let state = OperationState::Queued { level: CompletionLevel::Delivery };
            let operation =
                Operation { context, length: 8, hint, ..Operation::new(0, 0, 1, state) };
            let id = self.1.insert(operation).unwrap();
            let at = place_in_line(&self.0, &self.1, id);
            self.0.insert(at, id);
            for &passed in self.0.range(at + 1..) {
                self.1.get_mut(passed).unwrap().passed += 1;
            }
            at
        }
    }

    /// RR-MATCH-1
    #[test]
    fn hints_overtake_other_flows_a_limited_number_of_times() {
        let mut line = Line(VecDeque::new(), Table::new(1000));
        assert_eq!([line.post(1, Hint::None), line.post(1, Hint::Bulk)], [0, 1]);
        for number in 0..usize::from(PASSED_MAX) {
            assert_eq!(line.post(2, Hint::Priority), number);
        }
        let behind = usize::from(PASSED_MAX) + 2;
        assert_eq!(line.post(3, Hint::Priority), behind, "all of them were overtaken enough");
        let mut line = Line(VecDeque::new(), Table::new(1000));
        assert_eq!([line.post(1, Hint::None), line.post(1, Hint::Priority)], [0, 1]);
    }

    /// RR-DGRAM-6
    #[test]
    fn partially_sent_message_is_not_overtaken() {
        let mut line = Line(VecDeque::new(), Table::new(1000));
        line.post(1, Hint::None);
        let first = line.0[0];
        let fragmenting = Fragmenting::new(CompletionLevel::Delivery, 7);
        line.1.get_mut(first).unwrap().state = OperationState::Fragmenting(fragmenting);
        assert_eq!(line.post(2, Hint::Priority), 1);
    }
}
