//! The target of one-sided operations: checks key, range and rights, then executes or refuses.

use zerocopy::IntoBytes;

use super::super::peer_engine::PeerEngine;
use super::super::rendezvous::Offered;
use super::super::segments::{SegmentId, Segments};
use super::super::{ControlFrame, Session, ShortReply};
use super::frames::DataForm;
use super::{Role, SHORT_REPLY_BYTES, SessionOneSided};
use crate::proto::context::Cx;
use crate::proto::effects::{Arrival, Effects};
use crate::proto::hint::Hint;
use crate::proto::operation::{NO_REMOTE, Operation, OperationState};
use crate::proto::ready::Work;
use crate::proto::receive::{LongMatch, LongMatched};
use crate::proto::regions::{Access, Granted, Refusal, Regions};
use crate::proto::session::send::Staged;
use crate::proto::table::Id;
use crate::wire::one_sided::{
    ATOMIC_BYTES_MAX, FLAG_COMPARE, FLAG_FETCH, FLAG_INVALIDATE, OneSided,
};
use crate::wire::reply::{REPLY_HEADER_BYTES, STATUS_DONE};
use crate::wire::reply_rts::REPLY_RTS_BYTES;
use crate::wire::{CmaSource, FrameError, MessageSource, Reply, ReplyRts, frame};

impl Regions {
    /// Invalidates the key of a put, if that is requested, for later operations.
    fn invalidate_by(&mut self, header: &OneSided) {
        if header.flags & FLAG_INVALIDATE != 0 {
            self.revoke(header.key.get());
        }
    }
}

/// An operation of the peer: its frame number and header.
#[derive(Clone, Copy)]
struct Request<'a> {
    number: u32,
    header: &'a OneSided,
}

impl Request<'_> {
    /// Returns the rights that it needs.
    fn access(self) -> Access {
        let flags = self.header.flags;
        match self.header.kind {
            frame::KIND_GET => Access::REMOTE_READ,
            frame::KIND_ATOMIC if flags & FLAG_FETCH != 0 => {
                Access::REMOTE_ATOMIC | Access::REMOTE_READ
            }
            frame::KIND_ATOMIC => Access::REMOTE_ATOMIC,
            _ if flags & FLAG_INVALIDATE != 0 => Access::REMOTE_WRITE | Access::REMOTE_INVALIDATE,
            _ => Access::REMOTE_WRITE,
        }
    }
}

/// What follows an operation of the peer.
enum Answer {
    Nothing,
    /// A short reply.
    Reply(ShortReply),
    /// The bytes of a put are to be pulled.
    Pull(LongMatch),
}

impl SessionOneSided {
    /// Executes an operation on this engine's memory, which has passed all checks of its header:
    /// `data` is its remote data, `bytes` what follows it.
    fn execute(
        &mut self,
        cx: &mut Cx<'_>,
        header: &OneSided,
        (granted, arrival): (Granted, Arrival),
        bytes: &[u8],
        effects: &mut impl Effects,
    ) -> Result<Answer, Refusal> {
        match header.kind {
            frame::KIND_PUT => self.place_put(cx, header, granted, &arrival, bytes, effects),
            frame::KIND_ATOMIC => self.apply_atomic(cx, header, granted, &arrival, bytes, effects),
            _ => self.serve(cx, header, granted, arrival, bytes, effects),
        }
    }

    fn place_put(
        &mut self,
        cx: &mut Cx<'_>,
        header: &OneSided,
        granted: Granted,
        arrival: &Arrival,
        bytes: &[u8],
        effects: &mut impl Effects,
    ) -> Result<Answer, Refusal> {
        let start = granted.start + u64::from(planted!(ShiftPut));
        effects.put(granted.region, start, bytes)?;
        cx.shared.regions_mut().invalidate_by(header);
        let target = header.target_endpoint.get();
        effects.accessed(granted.region, Access::REMOTE_WRITE, target, arrival);
        Ok(self.answer(cx, header, &[], effects))
    }

    fn apply_atomic(
        &mut self,
        cx: &mut Cx<'_>,
        header: &OneSided,
        granted: Granted,
        arrival: &Arrival,
        operands: &[u8],
        effects: &mut impl Effects,
    ) -> Result<Answer, Refusal> {
        let length = header.length.get() as usize;
        let compared = if header.flags & FLAG_COMPARE != 0 { length } else { 0 };
        let (compare, operands) = operands.split_at(compared.min(operands.len()));
        let mut before = [0; ATOMIC_BYTES_MAX];
        let fetched = if header.flags & FLAG_FETCH != 0 { length } else { 0 };
        let fetched = &mut before[..fetched];
        if fetched.len() > SHORT_REPLY_BYTES && cx.shared.operations.is_full() {
            // An executed operation cannot be refused.
            return Err(Refusal::Busy);
        }
        let codes = (header.atomic, header.datatype);
        let into = (!fetched.is_empty()).then_some(&mut *fetched);
        effects.atomic(granted.region, granted.start, codes, (compare, operands), into)?;
        let target = header.target_endpoint.get();
        effects.accessed(granted.region, Access::REMOTE_ATOMIC, target, arrival);
        Ok(self.answer(cx, header, fetched, effects))
    }

    /// Starts an operation on this engine's memory that does not complete at once.
    fn serve(
        &mut self,
        cx: &mut Cx<'_>,
        header: &OneSided,
        granted: Granted,
        arrival: Arrival,
        source: &[u8],
        effects: &mut impl Effects,
    ) -> Result<Answer, Refusal> {
        let (length, target) = (header.length.get(), header.target_endpoint.get());
        let to = header.operation.get();
        let (remote, state) = (arrival.peer.index() as u32, OperationState::QueuedReply { to });
        let operation = Operation {
            tag: arrival.tag,
            length,
            data: arrival.data,
            role: Role::Target(Some(granted.key)),
            ..Operation::new(target, cx.slot, remote, state)
        };
        if !cx.shared.regions_mut().begin(granted.key, cx.slot) {
            return Err(Refusal::Key);
        }
        let is_write = header.kind == frame::KIND_PUT_RTS;
        let Some(id) = cx.shared.operations.insert(operation) else {
            cx.shared.regions_mut().end(granted.key, cx.slot);
            return Err(Refusal::Busy);
        };
        let (region, start) = (granted.region, granted.start);
        if let Err(refusal) = effects.bind_region(id, region, start, length, (target, is_write)) {
            cx.shared.operations.remove(id);
            cx.shared.regions_mut().end(granted.key, cx.slot);
            return Err(refusal);
        }
        if is_write {
            self.state().served += 1;
            cx.shared.regions_mut().invalidate_by(header);
            let source = CmaSource::of_frame(source).map(MessageSource::Memory);
            let offered = Offered { send_operation: to, hint: Hint::None, first: 0, source };
            return Ok(Answer::Pull(LongMatch { id, offered, arrival }));
        }
        self.push_reply(cx, id);
        Ok(Answer::Nothing)
    }

    /// Queues a reply with data.
    fn push_reply(&mut self, cx: &mut Cx<'_>, id: Id) {
        let state = self.state();
        state.served += 1;
        state.replies.push_back(id);
        cx.add_work(Work::Stage);
    }

    /// Refuses an operation of the peer: the origin gets a reply, if it waits; if not, the flush
    /// after it reports the refusal. All frames before `expected` have arrived.
    fn refuse(
        &mut self,
        cx: &mut Cx<'_>,
        request: Request<'_>,
        refusal: Refusal,
        expected: u32,
    ) -> Answer {
        cx.shared.note_refused_access();
        let operation = request.header.operation.get();
        if operation != 0 {
            return Answer::Reply(ShortReply::new(operation, refusal.code(), &[]));
        }
        self.state().note_refused(request.number, expected);
        Answer::Nothing
    }

    /// Replies to an operation that is done, if the origin waits.
    fn answer(
        &mut self,
        cx: &mut Cx<'_>,
        header: &OneSided,
        bytes: &[u8],
        effects: &mut impl Effects,
    ) -> Answer {
        let to = header.operation.get();
        if to == 0 {
            return Answer::Nothing;
        }
        if bytes.len() <= SHORT_REPLY_BYTES {
            return Answer::Reply(ShortReply::new(to, STATUS_DONE, bytes));
        }
        let (endpoint, state) = (header.target_endpoint.get(), OperationState::QueuedReply { to });
        let operation = Operation {
            length: bytes.len() as u64,
            role: Role::Target(None),
            ..Operation::new(endpoint, cx.slot, NO_REMOTE, state)
        };
        let inserted = cx.shared.operations.insert(operation);
        let inserted = debug_assert_some!(inserted, "space was checked before execution");
        if let Some(id) = inserted {
            effects.keep(id, bytes);
            self.push_reply(cx, id);
        }
        Answer::Nothing
    }

    /// Reserves the frame of reply `id` to operation `to` of the peer. Returns its segment, and how
    /// the data goes. `None`: no space now.
    fn stage_reply(
        &mut self,
        cx: &mut Cx<'_>,
        segments: &mut Segments,
        id: Id,
        to: u64,
    ) -> Option<(SegmentId, DataForm)> {
        let found = cx.shared.operations.get_mut(id);
        let operation = debug_assert_some!(found, "what waits has not ended")?;
        let (length, hint) = (operation.length, operation.hint);
        let (short, whole) = segments.whole_max(REPLY_HEADER_BYTES);
        let form = segments.data_form(length, whole);
        let (payload, is_whole) = (form.payload(), matches!(form, DataForm::Whole(_)));
        let reply = Reply {
            kind: frame::KIND_REPLY,
            status: STATUS_DONE,
            reserved: 0.into(),
            length: (payload as u32).into(),
            operation: to.into(),
        };
        let rts = ReplyRts {
            kind: frame::KIND_REPLY_RTS,
            flags: form.flag(),
            reserved: 0.into(),
            reserved_2: 0.into(),
            operation: to.into(),
            send_operation: id.to_u64().into(),
        };
        const _: () = assert!(REPLY_RTS_BYTES >= REPLY_HEADER_BYTES);
        let header = if is_whole { reply.as_bytes() } else { rts.as_bytes() };
        let is_long = payload as u64 > short;
        let pool = &mut cx.shared.pool;
        let segment = segments.push_one_sided(pool, [header, &[]], payload, hint, is_long)?;
        if !is_whole {
            operation.state = form.serving();
        }
        cx.add_work(Work::Flush);
        self.note_replied(id);
        Some((segment, form))
    }
}

impl Cx<'_> {
    /// Returns what an operation may access, and from where it comes with which remote `data`; or
    /// why it may not.
    fn check_access(
        &mut self,
        from: &mut PeerEngine,
        request: Request<'_>,
        data: Option<u64>,
        now_ns: u64,
        effects: &mut impl Effects,
    ) -> Result<Result<(Granted, Arrival), Refusal>, FrameError> {
        let header = request.header;
        let target = header.target_endpoint.get();
        if !self.shared.endpoints.is_open(target) {
            return Ok(Err(Refusal::Endpoint));
        }
        let source = header.source_endpoint.get();
        let remote = self.shared.peers.remote_of(self.slot, from, source);
        let remote = remote.ok_or(FrameError::UnknownSource(source))?;
        let peer = debug_assert_some!(self.shared.peers.id_at(remote), "a source is known");
        let peer = peer.ok_or(FrameError::UnknownSource(source))?;
        // Other operations have none, whatever the frame contains.
        let is_put = matches!(header.kind, frame::KIND_PUT | frame::KIND_PUT_RTS);
        let data = data.filter(|_| is_put);
        let (key, offset, length) = (header.key.get(), header.offset.get(), header.length.get());
        let regions = self.shared.regions_mut();
        let granted = regions.check(from.id(), key, offset, length, request.access(), now_ns);
        let granted = granted.and_then(|granted| match data {
            Some(_) if !effects.can_report(target) => Err(Refusal::Busy),
            _ => Ok(granted),
        });
        Ok(granted.map(|it| (it, Arrival { peer, context: 0, tag: key, length, data })))
    }
}

impl Session {
    /// Handles an operation on this engine's memory, received as frame `number`. Returns a put
    /// whose bytes are to be pulled.
    ///
    /// RR-RMA-1, RR-RMA-2, RR-RMA-3, RR-RMA-4, RR-RMA-6, RR-RMA-7.
    pub(in crate::proto) fn handle_one_sided(
        &mut self,
        cx: &mut Cx<'_>,
        (number, header): (u32, &OneSided),
        (data, operands): (Option<u64>, &[u8]),
        now_ns: u64,
        effects: &mut impl Effects,
    ) -> LongMatched {
        self.segments.note_message(now_ns);
        let state = self.one_sided.state();
        if header.operation.get() != 0 || header.kind != frame::KIND_PUT {
            state.check_kept()?;
        }
        if header.kind == frame::KIND_FLUSH {
            state.hold_flush(number, header.operation.get());
            self.answer_flushes(cx);
            return Ok(None);
        }
        let request = Request { number, header };
        let checked = cx.check_access(&mut self.peer, request, data, now_ns, effects)?;
        let done = checked
            .and_then(|checked| self.one_sided.execute(cx, header, checked, operands, effects));
        let answer = done.unwrap_or_else(|refusal| {
            self.one_sided.refuse(cx, request, refusal, self.segments.expected_frame())
        });
        match answer {
            Answer::Nothing => Ok(None),
            Answer::Pull(put) => Ok(Some(put)),
            Answer::Reply(reply) => {
                self.send_control(cx, ControlFrame::Reply(reply));
                Ok(None)
            }
        }
    }

    /// Tries to stage the data of reply `id` to operation `to` of the peer.
    pub(in crate::proto) fn stage_reply(&mut self, mut cx: Cx<'_>, id: Id, to: u64) -> Staged<'_> {
        let staged = self.one_sided.stage_reply(&mut cx, &mut self.segments, id, to);
        let Some((segment, form)) = staged else {
            // Acknowledgements and sent segments resume it.
            cx.remove_work(Work::Stage);
            return Staged::Blocked;
        };
        if let DataForm::Whole(_) = form {
            self.remove_operation(&mut cx, id);
        }
        let segment = self.segments.segment_mut(segment);
        let Some(segment) = debug_assert_some!(segment, "the segment was just pushed") else {
            return Staged::Blocked;
        };
        let room = segment.newest(form.payload());
        match form {
            DataForm::Whole(_) => Staged::Eager { room, completes: true },
            DataForm::Located => Staged::Source { room },
            DataForm::Granted => Staged::Rts { room },
        }
    }

    /// Answers flushes for which all earlier frames have arrived.
    ///
    /// RR-RMA-5.
    pub(in crate::proto) fn answer_flushes(&mut self, cx: &mut Cx<'_>) {
        while let Some((to, refused)) = self.one_sided.take_flush(self.segments.expected_frame()) {
            let reply = ShortReply::new(to, STATUS_DONE, &refused.to_le_bytes());
            self.send_control(cx, ControlFrame::Reply(reply));
        }
    }
}
