//! The origin of one-sided operations: requests and replies.

use zerocopy::IntoBytes;

use super::super::rendezvous::Offered;
use super::super::segments::{Segments, stage_put};
use super::super::{ControlFrame, Session};
use super::frames::DataForm;
use super::{REQUESTS_MAX, Role, SessionOneSided, Verb};
use crate::proto::context::{Cx, SharedState};
use crate::proto::core::Core;
use crate::proto::data_bytes::DataBytes;
use crate::proto::effects::{Arrival, CompletionLevel, Effects, Ended};
use crate::proto::hint::Hint;
use crate::proto::operation::{Cause, Operation, OperationState};
use crate::proto::ready::Work;
use crate::proto::receive::LongMatch;
use crate::proto::regions::Refusal;
use crate::proto::session::send::{SendRefusal, Staged};
use crate::proto::table::Id;
use crate::wire::done::STATUS_ABANDONED;
use crate::wire::one_sided::{FLAG_FETCH, FLAG_INVALIDATE, OneSided};
use crate::wire::reply::STATUS_DONE;
use crate::wire::{
    CmaSource, DATA_BYTES, FrameError, MessageSource, Reply, ReplyRts, eager, frame,
};

/// A one-sided operation on the memory of a peer.
#[derive(Debug)]
pub struct OneSidedRequest {
    /// Local endpoint.
    pub(crate) endpoint: u16,
    /// Handle of the remote endpoint.
    pub(crate) peer: Id,
    pub(crate) verb: Verb,
    pub(crate) key: u64,
    /// Offset in the key's range.
    pub(crate) offset: u64,
    /// Bytes of the peer's memory.
    pub(crate) length: u64,
    /// When it completes: [`CompletionLevel::Inject`] once its memory may be reused, else when it
    /// is done at the target.
    pub(crate) level: CompletionLevel,
    pub(crate) hint: Hint,
    /// Of a put: remote data that the target receives when all of it is placed.
    pub(crate) data: Option<u64>,
    /// It starts when all operations that wait for replies have completed.
    pub(crate) fence: bool,
    /// Of a put: invalidates the key after it.
    pub(crate) invalidates: bool,
    /// Of an atomic operation: the comparands, if it compares, and the operands.
    pub(crate) operands: Box<[u8]>,
}

/// A request until it is sent.
#[derive(Debug)]
pub(crate) struct Asking {
    verb: Verb,
    key: u64,
    offset: u64,
    length: u64,
    level: CompletionLevel,
    invalidates: bool,
    operands: Box<[u8]>,
}

/// Unknown statuses of a later version are mapped to a generic refusal.
fn refusal_of(status: u8) -> Refusal {
    Refusal::from_code(status).unwrap_or(Refusal::Unknown)
}

/// Wire form of an operation.
#[derive(Clone, Copy)]
struct Form {
    kind: u8,
    flags: u8,
    data: DataForm,
}

impl OneSidedRequest {
    /// Returns the header of a put to endpoint `target` that needs no reply.
    #[inline]
    pub(in crate::proto) fn put_header(&self, target: u16) -> OneSided {
        OneSided {
            kind: frame::KIND_PUT,
            flags: 0,
            target_endpoint: target.into(),
            source_endpoint: self.endpoint.into(),
            atomic: 0,
            datatype: 0,
            length: self.length.into(),
            key: self.key.into(),
            offset: self.offset.into(),
            operation: 0.into(),
        }
    }
}

impl Asking {
    /// Returns the form of its frame: `data` is that of what it writes.
    fn form(&self, data: DataForm) -> Form {
        let of_put = if self.invalidates { FLAG_INVALIDATE } else { 0 };
        let nothing = DataForm::Whole(0);
        let (kind, flags, data) = match (self.verb, data) {
            (Verb::Put, DataForm::Whole(_)) => (frame::KIND_PUT, of_put, data),
            (Verb::Put, _) => (frame::KIND_PUT_RTS, of_put | data.flag(), data),
            (Verb::Get, _) => (frame::KIND_GET, 0, nothing),
            (Verb::Atomic { flags, .. }, _) => (frame::KIND_ATOMIC, flags, nothing),
            (Verb::Flush, _) => (frame::KIND_FLUSH, 0, nothing),
        };
        Form { kind, flags, data }
    }

    /// Returns the length of the expected reply; `None`: it completes when it is sent.
    fn reply_bytes(&self) -> Option<u64> {
        match self.verb {
            Verb::Get => Some(self.length),
            Verb::Atomic { flags, .. } if flags & FLAG_FETCH != 0 => Some(self.length),
            Verb::Flush => Some(size_of::<u64>() as u64),
            Verb::Put | Verb::Atomic { .. } => (self.level != CompletionLevel::Inject).then_some(0),
        }
    }
}

impl Session {
    /// Returns whether something waits to be staged.
    #[inline]
    pub(in crate::proto) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty() || self.one_sided.has_ready()
    }
}

impl OneSidedRequest {
    /// Returns its operation on the session in `slot`, with `length` bytes of own memory.
    fn into_operation(self, slot: u32, length: u64) -> Operation {
        let Self { endpoint, peer, verb, key, offset, level, hint, data, .. } = self;
        let Self { length: bytes, fence, invalidates, operands, .. } = self;
        let asking = Asking { verb, key, offset, length: bytes, level, invalidates, operands };
        let (remote, state) = (peer.index() as u32, OperationState::QueuedRequest(asking));
        Operation { length, data, hint, fence, ..Operation::new(endpoint, slot, remote, state) }
    }
}

impl Core {
    /// Creates a one-sided operation. Start it with [`Self::enqueue_one_sided`] when its own
    /// memory, which has `length` bytes, is ready.
    pub(crate) fn new_one_sided(
        &mut self,
        request: OneSidedRequest,
        length: u64,
    ) -> Result<Id, SendRefusal> {
        let (session, to) = self.session_to(request.peer)?;
        if session.one_sided.waiting_count() >= self.shared.operations.waiting_max() {
            return Err(SendRefusal::WAITING_SENDS);
        }
        let operation = request.into_operation(to.session, length);
        self.shared.operations.insert(operation).ok_or(SendRefusal::OPERATIONS)
    }

    /// Creates an operation that its poster has admitted: the limit on waiting ones was applied
    /// there.
    pub(crate) fn new_admitted_one_sided(
        &mut self,
        request: OneSidedRequest,
        length: u64,
    ) -> Result<Id, SendRefusal> {
        let slot = self.destination(request.peer)?.session;
        let operation = request.into_operation(slot, length);
        self.shared.operations.insert(operation).ok_or(SendRefusal::OPERATIONS)
    }

    /// Returns a remote endpoint of each session with one-sided operations.
    pub(crate) fn peers_operated_on(&self) -> impl Iterator<Item = Id> {
        let sessions = self.sessions.iter().filter(|(_, it)| it.one_sided.is_used());
        sessions.filter_map(|(_, session)| {
            session.peer.remotes().iter().find_map(|remote| self.shared.peers.id_at(remote))
        })
    }

    /// Queues a new one-sided operation, and connects if necessary.
    pub(crate) fn enqueue_one_sided(&mut self, id: Id, now_ns: u64) {
        let slot = self.shared.operations.slot_of(id);
        self.with_known(slot, |it, mut cx| {
            it.one_sided.push_waiting(id);
            if it.is_connected() {
                cx.add_work(Work::Stage);
            } else {
                it.connection.connect(&mut cx, now_ns);
            }
        });
    }

    /// Handles the reply to an operation.
    ///
    /// RR-RMA-2.
    pub(in crate::proto) fn handle_reply(
        &mut self,
        slot: u32,
        reply: &Reply,
        payload: &[u8],
        effects: &mut impl Effects,
    ) -> Result<(), FrameError> {
        let (session, mut cx) = self.enter_receiving(slot)?;
        if let Some(refused_put) = session.handle_reply(&mut cx, reply, payload, effects)? {
            self.finish_serving(refused_put, effects);
        }
        Ok(())
    }

    /// Removes an operation, and releases what it counts toward its session's limits.
    pub(in crate::proto) fn remove_operation(&mut self, id: Id) -> Option<Operation> {
        let operation = self.shared.operations.remove(id)?;
        if operation.role != Role::None {
            self.with(operation.session, |it, mut cx| it.release_role(&mut cx, operation.role));
        }
        Some(operation)
    }
}

impl SessionOneSided {
    /// Tries to stage its operation `id`, which [`Core::poll_waiting`] returned.
    pub(in crate::proto) fn stage_request<'a>(
        &mut self,
        cx: Cx<'_>,
        segments: &'a mut Segments,
        id: Id,
    ) -> Staged<'a> {
        let Cx { slot, shared: SharedState { operations, peers, pool, ready, .. } } = cx;
        let found = debug_assert_some!(operations.get_mut(id), "what waits has not ended");
        let Some(operation) = found else {
            ready.remove(slot, Work::Stage);
            return Staged::Blocked;
        };
        let target = peers.at(operation.remote);
        let target = debug_assert_some!(target, "operations end before their peer is removed");
        let (OperationState::QueuedRequest(asking), Some(target)) = (&operation.state, target)
        else {
            debug_assert!(false, "operations that wait were not sent");
            ready.remove(slot, Work::Stage);
            return Staged::Blocked;
        };
        let state = self.state();
        let data = DataBytes::of(operation.data);
        let extra = size_of::<OneSided>() + data.as_slice().len();
        let is_flush_early =
            asking.verb == Verb::Flush && state.long_puts > 0 && !planted!(OvertakePulls);
        let (short, whole) = segments.whole_max(extra);
        let form = asking.form(segments.data_form(asking.length, whole));
        let is_pulled = !matches!(form.data, DataForm::Whole(_));
        let reply_bytes = if is_pulled { Some(0) } else { asking.reply_bytes() };
        let most = if operation.fence { 1 } else { REQUESTS_MAX };
        let is_full = (operation.fence || reply_bytes.is_some()) && state.outstanding >= most;
        if is_full || is_flush_early {
            state.is_held = true;
            return Staged::Blocked;
        }
        let (atomic, datatype) = match asking.verb {
            Verb::Atomic { atomic, datatype, .. } => (atomic, datatype),
            _ => (0, 0),
        };
        let has_data = if operation.data.is_some() { eager::FLAG_DATA } else { 0 };
        let name = if reply_bytes.is_some() { id.to_u64() } else { 0 };
        let header = OneSided {
            kind: form.kind,
            flags: form.flags | has_data,
            target_endpoint: target.endpoint.into(),
            source_endpoint: operation.endpoint.into(),
            atomic,
            datatype,
            length: asking.length.into(),
            key: asking.key.into(),
            offset: asking.offset.into(),
            operation: name.into(),
        };
        let mut head = [0; size_of::<OneSided>() + DATA_BYTES];
        head[..size_of::<OneSided>()].copy_from_slice(header.as_bytes());
        head[size_of::<OneSided>()..extra].copy_from_slice(data.as_slice());
        let pieces = [&head[..extra], &asking.operands];
        let (payload, hint) = (form.data.payload(), operation.hint);
        let is_long = payload as u64 > short;
        let staged = segments.push_one_sided(pool, pieces, payload, hint, is_long);
        let Some(segment) = staged.and_then(|id| segments.segment_mut(id)) else {
            // Acknowledgements and sent segments resume it.
            ready.remove(slot, Work::Stage);
            return Staged::Blocked;
        };
        ready.add(slot, Work::Flush);
        let role = match reply_bytes {
            None => Role::None,
            Some(_) if is_pulled => Role::LongPut,
            Some(_) => Role::Origin,
        };
        self.note_sent(id, role);
        let completes = role == Role::None;
        if completes {
            operations.remove(id);
            segment.completes_unacked = true;
        } else {
            operation.role = role;
            operation.state = match is_pulled {
                true => form.data.serving(),
                false => OperationState::AwaitReply { bytes: reply_bytes.unwrap_or(0) },
            };
        }
        let room = segment.newest(payload);
        match form.data {
            DataForm::Located => Staged::Source { room },
            _ if payload == 0 && !completes => Staged::Rts { room },
            _ => Staged::Eager { room, completes },
        }
    }
}

impl Session {
    /// Fast path: reserves space for a put to endpoint `target` that completes when it is staged.
    /// `None`: use the general path.
    #[inline]
    pub(crate) fn stage_put_now(
        &mut self,
        cx: Cx<'_>,
        target: u16,
        request: &OneSidedRequest,
    ) -> Option<&mut [u8]> {
        let Cx { slot, shared: SharedState { pool, ready, .. } } = cx;
        if !self.is_plain_put(request) || self.one_sided.waiting_count() > 0 {
            return None;
        }
        let header = request.put_header(target);
        let segments = &mut self.segments;
        let room = stage_put(segments, pool, &header, request.hint)?;
        ready.add(slot, Work::Flush);
        Some(room)
    }

    /// Returns whether a put completes as soon as it is staged in one frame.
    #[inline]
    pub(crate) fn is_plain_put(&self, request: &OneSidedRequest) -> bool {
        request.level == CompletionLevel::Inject
            && request.data.is_none()
            && !request.fence
            && !request.invalidates
            && self.is_connected()
            && !self.ending.is_leaving()
            && request.length <= self.segments.whole_max(size_of::<OneSided>()).1
    }

    /// Handles the reply to an operation. Returns a long put that was refused: it ends when the
    /// kernel has released its memory.
    fn handle_reply(
        &mut self,
        cx: &mut Cx<'_>,
        reply: &Reply,
        payload: &[u8],
        effects: &mut impl Effects,
    ) -> Result<Option<Id>, FrameError> {
        let id = Id::from_u64(reply.operation.get());
        let found = cx.shared.operations.get_mut(id).filter(|it| it.session == cx.slot);
        let Some(operation) = found else {
            cx.shared.note_stale_frame();
            return Ok(None);
        };
        let (remote, accepted) = (operation.remote, operation.length);
        let refusal = (reply.status != STATUS_DONE).then(|| refusal_of(reply.status));
        let ended = match (&mut operation.state, refusal) {
            (OperationState::AwaitPull(serving), Some(refusal))
                if operation.role == Role::LongPut =>
            {
                serving.fail(Cause::Refused(refusal));
                return Ok(Some(id));
            }
            (OperationState::AwaitReply { .. }, Some(refusal)) => {
                Ended::Refused(refusal, self.peer.name_of(&cx.shared.peers, remote))
            }
            (&mut OperationState::AwaitReply { bytes: wanted }, None) => {
                let got = payload.len() as u64;
                if got != wanted {
                    return Err(FrameError::BadReply { got, wanted });
                }
                let takes = accepted > 0;
                if takes && got > 0 {
                    effects.place(id, 0, payload);
                }
                match payload.first_chunk().map(|count| u64::from_le_bytes(*count)) {
                    Some(refused) if !takes && refused > 0 => Ended::Unflushed(refused),
                    _ => Ended::Sent { accepted },
                }
            }
            _ => {
                cx.shared.note_stale_frame();
                return Ok(None);
            }
        };
        self.remove_operation(cx, id);
        effects.complete(id, ended);
        Ok(None)
    }

    /// Handles a reply whose data is to be pulled.
    ///
    /// RR-RMA-2.
    pub(in crate::proto) fn handle_reply_rts(
        &mut self,
        cx: &mut Cx<'_>,
        reply: &ReplyRts,
        source: &[u8],
    ) -> Option<LongMatch> {
        let id = Id::from_u64(reply.operation.get());
        let send_operation = reply.send_operation.get();
        let SharedState { operations, peers, .. } = &*cx.shared;
        let found = operations.get(id).filter(|it| it.session == cx.slot && it.awaits_bytes());
        let Some(operation) = found else {
            cx.shared.note_stale_frame();
            self.send_control(cx, ControlFrame::done(send_operation, STATUS_ABANDONED, 0));
            return None;
        };
        let (length, hint) = (operation.length, operation.hint);
        let peer = peers.id_at(operation.remote);
        let peer = debug_assert_some!(peer, "operations end before their peer is removed")?;
        let arrival = Arrival { peer, context: 0, tag: 0, length, data: None };
        let source = CmaSource::of_frame(source).map(MessageSource::Memory);
        Some(LongMatch { id, offered: Offered { send_operation, hint, first: 0, source }, arrival })
    }

    /// Removes an operation of the session, and releases what it counts toward its limits.
    pub(super) fn remove_operation(&mut self, cx: &mut Cx<'_>, id: Id) {
        let removed = cx.shared.operations.remove(id);
        debug_assert!(
            removed.as_ref().is_some_and(|it| it.session == cx.slot),
            "{id:?} is its own"
        );
        if let Some(Operation { role, .. }) = removed
            && role != Role::None
        {
            self.release_role(cx, role);
        }
    }

    /// Releases what an ended operation counted toward the limits of the session.
    #[cold]
    fn release_role(&mut self, cx: &mut Cx<'_>, role: Role) {
        let may_send = self.one_sided.note_ended(role);
        if let Role::Target(Some(key)) = role {
            cx.shared.regions_mut().end(key, cx.slot);
        }
        if may_send && self.is_connected() {
            cx.add_work(Work::Stage);
        }
        self.fences.recheck(cx);
    }
}
