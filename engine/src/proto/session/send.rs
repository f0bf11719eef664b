//! Sending: eagerly where the message fits and credit permits, otherwise by a request to send.

use std::collections::VecDeque;

use super::fence::{Fences, target_of};
use super::segments::stage_in_segment;
use crate::proto::context::{Cx, SharedState};
use crate::proto::core::{Core, UNTAGGED};
use crate::proto::effects::{CompletionLevel, Effects, Ended};
use crate::proto::failure::PeerFailure;
use crate::proto::hint::Hint;
use crate::proto::operation::{Operation, OperationState};
use crate::proto::operations::Operations;
use crate::proto::peers::PeerTable;
use crate::proto::ready::Work;
use crate::proto::session::Session;
use crate::proto::session::segments::uncommon::Uncommon;
use crate::proto::table::Id;
use crate::wire::{DATA_BYTES, Eager, Rts, eager, frame};

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
    /// No credit or no space now.
    Blocked,
}

/// Where a message goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendDestination {
    /// The slot of the session with the peer's engine.
    pub(crate) session: u32,
    /// The endpoint there.
    pub(crate) endpoint: u16,
}

impl Cx<'_> {
    /// Handles MATCHED for an eager message that reports its match.
    pub(super) fn handle_matched(
        &mut self,
        fences: &Fences,
        matched: &crate::wire::Matched,
        effects: &mut impl Effects,
    ) {
        let id = Id::from_u64(matched.operation.get());
        match self.shared.operations.get(id) {
            Some(operation)
                if operation.session == self.slot
                    && matches!(operation.state, OperationState::AwaitMatch) =>
            {
                let accepted = operation.length;
                self.shared.operations.remove(id);
                effects.complete(id, Ended::Sent { accepted });
                fences.recheck(self);
            }
            _ => self.shared.note_stale_frame(),
        }
    }
}

impl Operation {
    /// Returns the request of a send, and the remote endpoint.
    pub(super) fn send_request(
        &self,
        level: CompletionLevel,
        peers: &PeerTable,
    ) -> Option<(SendRequest, u16)> {
        let request = SendRequest {
            endpoint: self.endpoint,
            peer: peers.id_at(self.remote)?,
            context: self.context,
            tag: self.tag,
            length: self.length,
            level,
            hint: self.hint,
            data: self.data,
            fence: self.fence,
        };
        Some((request, peers.at(self.remote)?.endpoint))
    }
}

impl SharedState {
    /// Creates the operation of a send on the session in `slot`.
    fn insert_send(&mut self, request: &SendRequest, slot: u32) -> Result<Id, SendRefusal> {
        let (remote, state) =
            (request.peer.index() as u32, OperationState::New { level: request.level });
        let operation = Operation {
            context: request.context,
            tag: request.tag,
            length: request.length,
            data: request.data,
            hint: request.hint,
            fence: request.fence,
            ..Operation::new(request.endpoint, slot, remote, state)
        };
        self.operations.insert(operation).ok_or(SendRefusal::OPERATIONS)
    }
}

impl Core {
    /// Returns the session of a peer that can be sent to, and its endpoint there. After reporting a
    /// refusal, call [`Ending::note_reported`](super::ending::Ending::note_reported).
    #[inline(always)]
    pub(crate) fn destination(&self, peer: Id) -> Result<SendDestination, SendRefusal> {
        self.session_to(peer).map(|(_, to)| to)
    }

    /// Returns the same, and the session itself.
    #[inline(always)]
    pub(super) fn session_to(&self, peer: Id) -> Result<(&Session, SendDestination), SendRefusal> {
        let remote = self.shared.peers.get(peer).ok_or(SendRefusal::UnknownPeer)?;
        let session = self.sessions.at(remote.session as usize).ok_or(SendRefusal::UnknownPeer)?;
        match session.ending.to_report() {
            Some(failure) => Err(SendRefusal::Failed(failure.clone())),
            None => {
                let (slot, endpoint) = (remote.session, remote.endpoint);
                Ok((session, SendDestination { session: slot, endpoint }))
            }
        }
    }

    /// Fast path: reserves space for a whole message that is sent now, without an operation.
    /// `None`: not connected, earlier sends wait, no credit, no space, or too long. The request is
    /// plain; its remote data is before the space.
    ///
    /// RR-CREDIT-1.
    #[inline(always)]
    pub(crate) fn stage_now(
        &mut self,
        to: SendDestination,
        request: &SendRequest,
    ) -> Option<&mut [u8]> {
        debug_assert!(request.is_plain(), "its header would lack something");
        let SendDestination { session, endpoint: target } = to;
        let known = self.sessions.at_mut(session as usize)?;
        let pool = &mut self.shared.pool;
        let room = stage_in_segment(known, pool, request, target)?;
        self.shared.ready.add(session, Work::Flush);
        Some(room)
    }

    /// Whether a message cannot be sent at once: it exceeds the peer's window for eager bytes (it
    /// can only be pulled), takes more than one segment, or waits for others.
    pub(crate) fn needs_operation(&self, request: &SendRequest) -> bool {
        if !request.is_plain() {
            return true;
        }
        let remote = self.shared.peers.get(request.peer);
        let session = remote.and_then(|remote| self.sessions.at(remote.session as usize));
        session.is_some_and(|session| {
            let segments = &session.segments;
            let window = segments.send_credits().window_bytes();
            let window = u64::from(window.min(segments.eager_limit_now()));
            let is_whole =
                segments.takes_whole(request) && !segments.pulls(&self.shared.pool, request.length);
            session.is_connected() && (window < request.length || !is_whole)
        })
    }

    /// Creates an operation for a send that could not be sent at once. Start it with
    /// [`Self::enqueue`] when its buffer is ready.
    pub(crate) fn new_send(&mut self, request: &SendRequest) -> Result<Id, SendRefusal> {
        let (session, to) = self.session_to(request.peer)?;
        if session.waiting.len() >= self.shared.operations.waiting_max() {
            return Err(SendRefusal::WAITING_SENDS);
        }
        self.shared.insert_send(request, to.session)
    }

    /// Creates an operation for a send that its poster has admitted: the limit on waiting sends was
    /// applied there.
    pub(crate) fn new_admitted_send(&mut self, request: &SendRequest) -> Result<Id, SendRefusal> {
        let session = self.destination(request.peer)?.session;
        self.shared.insert_send(request, session)
    }

    /// Queues a new send and connects if necessary. [`Self::poll_waiting`] returns it.
    pub(crate) fn enqueue(&mut self, id: Id, now_ns: u64) {
        let slot = self.shared.operations.begin_waiting(id);
        self.with_known(slot, |it, mut cx| {
            let operations = &mut cx.shared.operations;
            let at = place_in_line(&it.waiting, operations, id);
            it.waiting.insert(at, id);
            it.segments.add_uncommon(Uncommon::WAITING);
            for &passed in it.waiting.range(at + 1..) {
                if let Some(passed) = operations.get_mut(passed) {
                    passed.passed += 1;
                }
            }
            let is_fenced = operations.get(id).is_some_and(|operation| operation.fence);
            if it.is_connected() {
                cx.add_work(Work::Stage);
            } else {
                it.connection.connect(&mut cx, now_ns);
            }
            if is_fenced {
                it.fences.add(&cx, id);
            }
        });
    }

    /// Returns the next waiting send to try with [`Self::stage`]. Blocked sessions return when
    /// credit or space does. Sends posted after a goodbye end with the session: the peer would
    /// acknowledge them, and not deliver them if it lacks an earlier one.
    ///
    /// RR-END-1.
    #[inline]
    pub(crate) fn poll_waiting(&mut self) -> Option<Id> {
        while let Some(slot) = self.shared.ready.latest(Work::Stage) {
            if let Some((session, mut cx)) = self.enter(slot)
                && session.is_connected()
                && !session.ending.is_leaving()
                && let Some(id) = session.one_sided.next(session.waiting.front().copied())
            {
                let is_message = session.waiting.front() == Some(&id);
                if !is_message || session.fences.is_empty() || planted!(IgnoreFence) {
                    return Some(id);
                }
                let Session { fences, segments, waiting, epoch, .. } = session;
                if let Some(id) = fences.first_unfenced(&mut cx, (segments, *epoch), waiting) {
                    return Some(id);
                }
                // Fences hold messages only.
                if let Some(id) = session.one_sided.next(None) {
                    return Some(id);
                }
            }
            self.shared.ready.remove(slot, Work::Stage);
        }
        None
    }

    /// Tries to stage the send that [`Self::poll_waiting`] returned.
    pub(crate) fn stage(&mut self, id: Id, now_ns: u64) -> Staged<'_> {
        let slot = self.shared.operations.slot_of(id);
        let entered = debug_assert_some!(self.enter(slot), "a send that waits has a session");
        let Some((session, mut cx)) = entered else { return Staged::Blocked };
        match cx.shared.operations.get(id).map(|operation| &operation.state) {
            Some(OperationState::QueuedRequest(_)) => {
                session.one_sided.stage_request(cx, &mut session.segments, id)
            }
            Some(&OperationState::QueuedReply { to }) => session.stage_reply(cx, id, to),
            Some(&OperationState::Queued { level }) => {
                session.one_sided.note_turn_of_messages();
                session.stage_message(cx, (id, level), now_ns)
            }
            state => {
                debug_assert!(false, "{state:?} is no state of what waits");
                // Otherwise the sends of other sessions would never be staged.
                cx.remove_work(Work::Stage);
                Staged::Blocked
            }
        }
    }

    /// Cancels a send that was not sent. Returns `false` if it was, and will complete.
    pub(crate) fn cancel_send(&mut self, id: Id, effects: &mut impl Effects) -> bool {
        let Some(operation) = self.shared.operations.get(id) else { return false };
        if !matches!(
            operation.state,
            OperationState::Queued { .. }
                | OperationState::New { .. }
                | OperationState::QueuedRequest(_)
        ) {
            return false;
        }
        let slot = operation.session;
        if let Some(session) = self.sessions.at_mut(slot as usize) {
            session.waiting.retain(|&waiting| waiting != id);
            // The first waiting send may need less than the previous one.
            session.one_sided.remove_waiting(id);
            if session.is_connected() && session.has_waiting() {
                self.shared.ready.add(slot, Work::Stage);
            }
        }
        self.shared.operations.remove(id);
        effects.complete(id, Ended::Cancelled);
        true
    }
}

/// Returns the queue position of a send: after its own flow and those that its hint does not
/// overtake, at most [`LOOK_BACK`] before the end. One that [`PASSED_MAX`] have overtaken is not
/// overtaken again: they take credit that may return with its receive.
///
/// RR-MATCH-1.
fn place_in_line(waiting: &VecDeque<Id>, operations: &Operations, id: Id) -> usize {
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
        })
    };
    let from = waiting.len().saturating_sub(LOOK_BACK);
    waiting.range(from..).rposition(stays).map_or(from, |last| from + last + 1)
}

/// Returns whether a simulation lets a message wait that could be sent now.
#[inline(always)]
pub(crate) fn must_wait() -> bool {
    rare!("a send that waits", 20)
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

    struct Line(VecDeque<Id>, Operations);

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
        let mut line = Line(VecDeque::new(), Operations::new(1000, 1000));
        assert_eq!([line.post(1, Hint::None), line.post(1, Hint::Bulk)], [0, 1]);
        for number in 0..usize::from(PASSED_MAX) {
            assert_eq!(line.post(2, Hint::Priority), number);
        }
        let behind = usize::from(PASSED_MAX) + 2;
        assert_eq!(line.post(3, Hint::Priority), behind, "all of them were overtaken enough");
        let mut line = Line(VecDeque::new(), Operations::new(1000, 1000));
        assert_eq!([line.post(1, Hint::None), line.post(1, Hint::Priority)], [0, 1]);
    }
}
