//! The origin of one-sided operations: requests and replies.

use zerocopy::IntoBytes;

use super::super::core::Core;
use super::super::data_bytes::DataBytes;
use super::super::effects::{Arrival, CompletionLevel, Effects, Ended};
use super::super::hint::Hint;
use super::super::operation::{Cause, Operation, OperationState, Serving};
use super::super::regions::Refusal;
use super::super::rendezvous::Offered;
use super::super::segments::stage_put;
use super::super::send::{SendRefusal, Staged};
use super::super::session::Session;
use super::super::table::Id;
use super::{REQUESTS_MAX, Role, Verb};
use crate::proto::ready::Work;
use crate::wire::cma_source::{CMA_SOURCE_BYTES, FLAG_CMA};
use crate::wire::one_sided::{FLAG_FETCH, FLAG_INVALIDATE, OneSided};
use crate::wire::reply::STATUS_DONE;
use crate::wire::{CmaSource, DATA_BYTES, FrameError, Reply, ReplyRts, eager, frame};

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
    /// Bytes after the header: of the operation's memory, or a CMA source.
    payload: usize,
}

impl Asking {
    fn form(&self, whole_max: u64, offers_source: bool) -> Form {
        let of_put = if self.invalidates { FLAG_INVALIDATE } else { 0 };
        let (kind, flags, payload) = match self.verb {
            Verb::Put if self.length <= whole_max => {
                (frame::KIND_PUT, of_put, self.length as usize)
            }
            Verb::Put if offers_source => {
                (frame::KIND_PUT_RTS, of_put | FLAG_CMA, CMA_SOURCE_BYTES)
            }
            Verb::Put => (frame::KIND_PUT_RTS, of_put, 0),
            Verb::Get => (frame::KIND_GET, 0, 0),
            Verb::Atomic { flags, .. } => (frame::KIND_ATOMIC, flags, 0),
            Verb::Flush => (frame::KIND_FLUSH, 0, 0),
        };
        Form { kind, flags, payload }
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
    /// Returns the first waiting entry, of messages and one-sided operations.
    #[inline]
    pub(in crate::proto) fn next_waiting(&self) -> Option<Id> {
        let message = self.waiting.front().copied();
        match self.one_sided.as_deref() {
            None => message,
            Some(one_sided) => one_sided.next(message),
        }
    }

    /// Returns whether something waits to be staged.
    #[inline]
    pub(in crate::proto) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty() || self.has_ready_operations()
    }

    /// Returns whether one-sided operations or replies wait only for space.
    #[inline]
    pub(in crate::proto) fn has_ready_operations(&self) -> bool {
        self.one_sided.as_ref().is_some_and(|it| it.has_ready())
    }

    /// Returns whether nothing waits, for replies included.
    pub(in crate::proto) fn has_all_staged(&self) -> bool {
        let one_sided = self.one_sided.as_deref();
        self.waiting.is_empty()
            && one_sided.is_none_or(|it| it.waiting.is_empty() && it.replies.is_empty())
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
        let session = self.route(request.peer)?;
        let known = self.sessions.at(session as usize);
        let waiting = known.and_then(|it| it.one_sided.as_deref()).map_or(0, |it| it.waiting.len());
        if waiting >= self.shared.config.send_queue_ops {
            return Err(SendRefusal::WAITING_SENDS);
        }
        self.new_admitted_one_sided(request, length)
    }

    /// Creates an operation that its poster has admitted: the limit on waiting ones was applied
    /// there.
    pub(crate) fn new_admitted_one_sided(
        &mut self,
        request: OneSidedRequest,
        length: u64,
    ) -> Result<Id, SendRefusal> {
        let session = self.route(request.peer)?;
        let OneSidedRequest { endpoint, verb, key, offset, level, hint, data, operands, .. } =
            request;
        let (length_there, invalidates) = (request.length, request.invalidates);
        let asking =
            Asking { verb, key, offset, length: length_there, level, invalidates, operands };
        let (remote, fence) = (request.peer.index() as u32, request.fence);
        let state = OperationState::Asking(asking);
        let operation = Operation::new(endpoint, session, remote, state);
        let operation = Operation { length, data, hint, fence, ..operation };
        self.shared.operations.insert(operation).ok_or(SendRefusal::OPERATIONS)
    }

    /// Returns a remote endpoint of each session with one-sided operations.
    pub(crate) fn peers_operated_on(&self) -> impl Iterator<Item = Id> {
        let sessions = self.sessions.iter().filter(|(_, it)| it.one_sided.is_some());
        sessions.filter_map(|(_, session)| {
            session.remotes.iter().find_map(|remote| self.shared.peers.id_at(remote))
        })
    }

    /// Queues a new one-sided operation, and connects if necessary.
    pub(crate) fn enqueue_one_sided(&mut self, id: Id, now_ns: u64) {
        let Some(operation) = self.shared.operations.get(id) else { return };
        let slot = operation.session;
        let Some(session) = self.sessions.at_mut(slot as usize) else { return };
        session.one_sided.get_or_insert_default().waiting.push_back(id);
        if session.is_connected() {
            self.shared.ready.add(slot, Work::Stage);
        } else {
            self.want_connection(slot, now_ns);
        }
    }

    /// Returns the longest put, or reply to a get, that is sent with its header, in bytes.
    #[inline]
    pub(super) fn whole_max(&self, session: &Session, header: usize) -> (u64, u64) {
        let eager = u64::from(self.shared.config.eager_limit)
            .min(super::super::segments::segment::LONG_PAYLOAD_BYTES as u64);
        let Some(datagram) = session.segments.as_deref() else { return (0, 0) };
        let short = (datagram.frame_bytes_max() - header) as u64;
        (short, if datagram.protocol().goes_by_stream() { eager.max(short) } else { short })
    }

    /// Fast path: reserves space for a put that completes when it is staged. `None`: use the
    /// general path.
    #[inline]
    pub(crate) fn stage_put_now(
        &mut self,
        slot: u32,
        request: &OneSidedRequest,
    ) -> Option<&mut [u8]> {
        let target = self.shared.peers.get(request.peer)?.endpoint;
        if !self.is_plain_put(slot, request) {
            return None;
        }
        let session = self.sessions.at_mut(slot as usize)?;
        if session.one_sided.as_ref().is_some_and(|it| !it.waiting.is_empty()) {
            return None;
        }
        let header = OneSided {
            kind: frame::KIND_PUT,
            flags: 0,
            target_endpoint: target.into(),
            source_endpoint: request.endpoint.into(),
            atomic: 0,
            datatype: 0,
            length: request.length.into(),
            key: request.key.into(),
            offset: request.offset.into(),
            operation: 0.into(),
        };
        let datagram = session.segments.as_deref_mut()?;
        let pool = &mut self.shared.pool;
        let room = stage_put(datagram, pool, slot, &header, request.hint)?;
        self.shared.ready.add(slot, Work::Flush);
        Some(room)
    }

    /// Returns whether a put completes as soon as it is staged in one frame.
    #[inline]
    fn is_plain_put(&self, slot: u32, request: &OneSidedRequest) -> bool {
        let Some(session) = self.sessions.at(slot as usize) else { return false };
        request.level == CompletionLevel::Inject
            && request.data.is_none()
            && !request.fence
            && !request.invalidates
            && session.is_connected()
            && !session.is_leaving
            && request.length <= self.whole_max(session, size_of::<OneSided>()).1
    }

    /// Returns whether [`Self::stage_put_now`] failed for lack of space only, so that it need not
    /// be copied and queued: a later attempt finds space.
    pub(crate) fn may_put_later(&self, slot: u32, request: &OneSidedRequest) -> bool {
        self.is_plain_put(slot, request)
    }

    /// Tries to stage the operation returned by [`Self::poll_waiting`], if it is no message.
    pub(in crate::proto) fn stage_one_sided(&mut self, id: Id) -> Staged<'_> {
        let Some(operation) = self.shared.operations.get(id) else { return Staged::Blocked };
        let slot = operation.session;
        if matches!(operation.state, OperationState::Replying { .. }) {
            return self.stage_reply(id);
        }
        let OperationState::Asking(asking) = &operation.state else { return Staged::Blocked };
        let Some(session) = self.sessions.at(slot as usize) else { return Staged::Blocked };
        let Some(one_sided) = session.one_sided.as_deref() else { return Staged::Blocked };
        let data = DataBytes::of(operation.data);
        let extra = size_of::<OneSided>() + data.as_slice().len();
        let (short, whole) = self.whole_max(session, extra);
        let form = asking.form(whole, session.offers_source(operation.length));
        let has_source = form.kind == frame::KIND_PUT_RTS && form.flags & FLAG_CMA != 0;
        let reply_bytes = match form.kind {
            frame::KIND_PUT_RTS => Some(0),
            _ => asking.reply_bytes(),
        };
        let most = if operation.fence { 1 } else { REQUESTS_MAX };
        let waits = operation.fence || reply_bytes.is_some();
        let is_full = waits && one_sided.outstanding >= most;
        let waits_for_pulls =
            asking.verb == Verb::Flush && one_sided.long_puts > 0 && !planted!(OvertakePulls);
        if is_full || waits_for_pulls {
            if let Some(it) =
                self.sessions.at_mut(slot as usize).and_then(|it| it.one_sided.as_mut())
            {
                it.is_held = true;
            }
            return Staged::Blocked;
        }
        let (atomic, datatype) = match asking.verb {
            Verb::Atomic { atomic, datatype, .. } => (atomic, datatype),
            _ => (0, 0),
        };
        let has_data = if operation.data.is_some() { eager::FLAG_DATA } else { 0 };
        let Some(target) = self.shared.peers.at(operation.remote) else {
            return Staged::Blocked;
        };
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
        let hint = operation.hint;
        let is_long = form.payload as u64 > short;
        let Some(OperationState::Asking(asking)) =
            self.shared.operations.get_mut(id).map(|operation| &mut operation.state)
        else {
            return Staged::Blocked;
        };
        // Its slot is used by nothing else until it is staged.
        let operands = std::mem::take(&mut asking.operands);
        let pieces = [&head[..extra], &operands];
        let staged = self.enter(slot).and_then(|(session, mut cx)| {
            session.push_one_sided(&mut cx, pieces, form.payload, hint, is_long)
        });
        let Some(segment) = staged else {
            if let Some(OperationState::Asking(asking)) =
                self.shared.operations.get_mut(id).map(|operation| &mut operation.state)
            {
                asking.operands = operands;
            }
            return self.wait_for_room(slot);
        };
        if let Some(one_sided) =
            self.sessions.at_mut(slot as usize).and_then(|it| it.one_sided.as_deref_mut())
        {
            one_sided.waiting.pop_front();
            (one_sided.messages_next, one_sided.messages_wait) = (true, false);
            one_sided.outstanding += u32::from(reply_bytes.is_some());
            one_sided.long_puts += u32::from(form.kind == frame::KIND_PUT_RTS);
        }
        let completes = reply_bytes.is_none();
        if completes {
            self.shared.operations.remove(id);
            if let Some(segment) = self.shared.pool.get_mut(segment) {
                segment.completes_unacked = true;
            }
        } else if let Some(operation) = self.shared.operations.get_mut(id) {
            let is_pulled = form.kind == frame::KIND_PUT_RTS;
            operation.role = if is_pulled { Role::LongPut } else { Role::Origin };
            operation.state = match is_pulled {
                true => OperationState::Serving(Serving { has_source, ..Serving::default() }),
                false => OperationState::AwaitReply { bytes: reply_bytes.unwrap_or(0) },
            };
        }
        let Some(segment) = self.shared.pool.get_mut(segment) else {
            return Staged::Blocked;
        };
        let room = segment.newest(form.payload);
        match form.payload {
            _ if has_source => Staged::Source { room },
            0 if !completes => Staged::Rts { room },
            _ => Staged::Eager { room, completes },
        }
    }

    /// Blocks a session that cannot stage anything; acknowledgements and sent segments resume it.
    pub(super) fn wait_for_room(&mut self, slot: u32) -> Staged<'_> {
        self.shared.ready.remove(slot, Work::Stage);
        Staged::Blocked
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
        let id = Id::from_u64(reply.operation.get());
        let Some(operation) = self.shared.operations.get_mut(id).filter(|it| it.session == slot)
        else {
            self.shared.counters.stale_frames += 1;
            return Ok(());
        };
        let (remote, status) = (operation.remote, reply.status);
        match &mut operation.state {
            OperationState::Serving(serving) if operation.role == Role::LongPut => {
                if status != STATUS_DONE {
                    serving.failed.get_or_insert(Cause::Refused(refusal_of(status)));
                    self.finish_serving(id, effects);
                }
            }
            OperationState::AwaitReply { .. } if status != STATUS_DONE => {
                self.remove_operation(id);
                let refusal = refusal_of(status);
                effects.complete(id, Ended::Refused(refusal, self.name_of(remote)));
            }
            &mut OperationState::AwaitReply { bytes } => {
                let got = payload.len() as u64;
                if got != bytes {
                    return Err(FrameError::BadReply { got, wanted: bytes });
                }
                let (takes, accepted) = (operation.length > 0, operation.length);
                self.remove_operation(id);
                if takes && got > 0 {
                    effects.place(id, 0, payload);
                }
                let ended = match payload.first_chunk() {
                    Some(count) if !takes && u64::from_le_bytes(*count) > 0 => {
                        Ended::Unflushed(u64::from_le_bytes(*count))
                    }
                    _ => Ended::Sent { accepted },
                };
                effects.complete(id, ended);
            }
            _ => self.shared.counters.stale_frames += 1,
        }
        Ok(())
    }

    /// Handles a reply whose data is to be pulled.
    ///
    /// RR-RMA-2.
    pub(in crate::proto) fn handle_reply_rts(
        &mut self,
        slot: u32,
        reply: &ReplyRts,
        source: &[u8],
        effects: &mut impl Effects,
    ) {
        let id = Id::from_u64(reply.operation.get());
        let send_operation = reply.send_operation.get();
        let found = self.shared.operations.get(id).filter(|it| it.session == slot);
        let (Some(operation), true) = (found, found.is_some_and(Operation::awaits_bytes)) else {
            self.shared.counters.stale_frames += 1;
            let status = crate::wire::done::STATUS_ABANDONED;
            let done = super::super::session::ControlFrame::done(send_operation, status, 0);
            return self.push_control(slot, done);
        };
        let (length, hint) = (operation.length, operation.hint);
        let Some(peer) = self.shared.peers.id_at(operation.remote) else { return };
        let arrival = Arrival { peer, context: 0, tag: 0, length, data: None };
        let source = CmaSource::of_frame(source);
        let offered = Offered { send_operation, hint, first: 0, source };
        self.pull(id, slot, offered, arrival, effects);
    }

    /// Removes an operation, and releases what it counts toward its session's limits.
    pub(in crate::proto) fn remove_operation(&mut self, id: Id) -> Option<Operation> {
        let operation = self.shared.operations.remove(id)?;
        if operation.role != Role::None {
            self.release_bound(operation.session, operation.role);
            self.with(operation.session, |it, mut cx| it.look_at_fences(&mut cx));
        }
        Some(operation)
    }

    #[cold]
    fn release_bound(&mut self, slot: u32, role: Role) {
        let session = self.sessions.at_mut(slot as usize);
        let Some(session) = session else { return };
        // It is sent with the session.
        let one_sided = session.one_sided.get_or_insert_default();
        match role {
            Role::None => {}
            Role::Target(key) => {
                one_sided.served = one_sided.served.saturating_sub(1);
                if let Some(key) = key {
                    self.shared.regions.end(key, slot);
                }
            }
            Role::Origin | Role::LongPut => {
                one_sided.outstanding = one_sided.outstanding.saturating_sub(1);
                if role == Role::LongPut {
                    one_sided.long_puts = one_sided.long_puts.saturating_sub(1);
                }
                if std::mem::take(&mut one_sided.is_held) && session.is_connected() {
                    self.shared.ready.add(slot, Work::Stage);
                }
            }
        }
    }
}
