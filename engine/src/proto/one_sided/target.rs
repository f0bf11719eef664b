//! The target of one-sided operations: checks key, range and rights, then executes or refuses.

use zerocopy::IntoBytes;

use super::super::context::{Cx, SharedState};
use super::super::effects::{Arrival, Effects};
use super::super::hint::Hint;
use super::super::operation::{NO_REMOTE, Operation, OperationState};
use super::super::receive::{LongMatch, LongMatched};
use super::super::regions::{Access, Granted, Refusal, Regions};
use super::super::rendezvous::Offered;
use super::super::rendezvous::serving::Serving;
use super::super::segments::segment::SegmentPool;
use super::super::segments::window::is_before;
use super::super::send::Staged;
use super::super::session::{ControlFrame, Session, ShortReply};
use super::super::table::Id;
use super::{Role, SHORT_REPLY_BYTES};
use crate::proto::ready::Work;
use crate::wire::cma_source::{CMA_SOURCE_BYTES, FLAG_CMA};
use crate::wire::one_sided::{
    ATOMIC_BYTES_MAX, FLAG_COMPARE, FLAG_FETCH, FLAG_INVALIDATE, OneSided,
};
use crate::wire::reply::{REPLY_HEADER_BYTES, STATUS_DONE};
use crate::wire::reply_rts::REPLY_RTS_BYTES;
use crate::wire::{CmaSource, FrameError, Reply, ReplyRts, frame};

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
        self.message_ns = now_ns;
        let one_sided = self.one_sided.get_or_insert_default();
        if header.operation.get() != 0 || header.kind != frame::KIND_PUT {
            one_sided.check_kept()?;
        }
        if header.kind == frame::KIND_FLUSH {
            one_sided.hold_flush(number, header.operation.get());
            self.answer_flushes(cx);
            return Ok(None);
        }
        let target = header.target_endpoint.get();
        let request = Request { number, header };
        if !cx.shared.endpoints.is_open(target) {
            self.refuse(cx, request, Refusal::Endpoint);
            return Ok(None);
        }
        let source = header.source_endpoint.get();
        let remote = cx.shared.peers.remote_of(cx.slot, self, source);
        let remote = remote.ok_or(FrameError::UnknownSource(source))?;
        // Other operations have none, whatever the frame contains.
        let is_put = matches!(header.kind, frame::KIND_PUT | frame::KIND_PUT_RTS);
        let data = data.filter(|_| is_put);
        let (key, offset, length) = (header.key.get(), header.offset.get(), header.length.get());
        let SharedState { regions, peers, .. } = &mut *cx.shared;
        let granted = regions.check(self.engine, key, offset, length, request.access(), now_ns);
        let granted = granted.and_then(|granted| match data {
            Some(_) if !effects.can_report(target) => Err(Refusal::Busy),
            _ => Ok(granted),
        });
        let granted = match granted {
            Ok(granted) => granted,
            Err(refusal) => {
                self.refuse(cx, request, refusal);
                return Ok(None);
            }
        };
        let peer = peers.id_at(remote);
        debug_assert!(peer.is_some(), "a source is known");
        let Some(peer) = peer else { return Ok(None) };
        let arrival = Arrival { peer, context: 0, tag: key, length, data };
        let done = match header.kind {
            frame::KIND_PUT => self.place_put(cx, header, granted, &arrival, operands, effects),
            frame::KIND_ATOMIC => {
                self.apply_atomic(cx, header, granted, &arrival, operands, effects)
            }
            _ => self.serve(cx, header, granted, arrival, operands, effects),
        };
        Ok(done.unwrap_or_else(|refusal| {
            self.refuse(cx, request, refusal);
            None
        }))
    }

    fn place_put(
        &mut self,
        cx: &mut Cx<'_>,
        header: &OneSided,
        granted: Granted,
        arrival: &Arrival,
        bytes: &[u8],
        effects: &mut impl Effects,
    ) -> Result<Option<LongMatch>, Refusal> {
        let start = granted.start + u64::from(planted!(ShiftPut));
        effects.put(granted.region, start, bytes)?;
        cx.shared.regions.invalidate_by(header);
        let target = header.target_endpoint.get();
        effects.accessed(granted.region, Access::REMOTE_WRITE, target, arrival);
        self.answer(cx, header, &[], effects);
        Ok(None)
    }

    fn apply_atomic(
        &mut self,
        cx: &mut Cx<'_>,
        header: &OneSided,
        granted: Granted,
        arrival: &Arrival,
        operands: &[u8],
        effects: &mut impl Effects,
    ) -> Result<Option<LongMatch>, Refusal> {
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
        self.answer(cx, header, fetched, effects);
        Ok(None)
    }

    /// Starts an operation on this engine's memory that does not complete at once. Returns a put,
    /// whose bytes are to be pulled.
    fn serve(
        &mut self,
        cx: &mut Cx<'_>,
        header: &OneSided,
        granted: Granted,
        arrival: Arrival,
        source: &[u8],
        effects: &mut impl Effects,
    ) -> Result<Option<LongMatch>, Refusal> {
        let SharedState { regions, operations, .. } = &mut *cx.shared;
        let (length, target) = (header.length.get(), header.target_endpoint.get());
        let to = header.operation.get();
        let (remote, state) = (arrival.peer.index() as u32, OperationState::Replying { to });
        let operation = Operation {
            tag: arrival.tag,
            length,
            data: arrival.data,
            role: Role::Target(Some(granted.key)),
            ..Operation::new(target, cx.slot, remote, state)
        };
        if !regions.begin(granted.key, cx.slot) {
            return Err(Refusal::Key);
        }
        let is_write = header.kind == frame::KIND_PUT_RTS;
        let Some(id) = operations.insert(operation) else {
            regions.end(granted.key, cx.slot);
            return Err(Refusal::Busy);
        };
        let (region, start) = (granted.region, granted.start);
        if let Err(refusal) = effects.bind_region(id, region, start, length, (target, is_write)) {
            operations.remove(id);
            regions.end(granted.key, cx.slot);
            return Err(refusal);
        }
        let one_sided = self.one_sided.get_or_insert_default();
        one_sided.served += 1;
        if is_write {
            regions.invalidate_by(header);
            let source = CmaSource::of_frame(source);
            let offered = Offered { send_operation: to, hint: Hint::None, first: 0, source };
            return Ok(Some(LongMatch { id, offered, arrival }));
        }
        one_sided.replies.push_back(id);
        cx.add_work(Work::Stage);
        Ok(None)
    }

    /// Reports a refusal to the origin, if it waits, or counts it for the flush after it.
    fn refuse(&mut self, cx: &mut Cx<'_>, request: Request<'_>, refusal: Refusal) {
        cx.shared.counters.refused_accesses += 1;
        let operation = request.header.operation.get();
        if operation != 0 {
            let reply = ShortReply::new(operation, refusal.code(), &[]);
            return self.send_control(cx, ControlFrame::Reply(reply));
        }
        let one_sided = self.one_sided.get_or_insert_default();
        one_sided.note_refused(request.number, self.expected_frame);
    }

    /// Replies to an operation that is done, if the origin waits.
    fn answer(
        &mut self,
        cx: &mut Cx<'_>,
        header: &OneSided,
        bytes: &[u8],
        effects: &mut impl Effects,
    ) {
        let to = header.operation.get();
        if to == 0 {
            return;
        }
        if bytes.len() <= SHORT_REPLY_BYTES {
            let reply = ShortReply::new(to, STATUS_DONE, bytes);
            return self.send_control(cx, ControlFrame::Reply(reply));
        }
        let (endpoint, state) = (header.target_endpoint.get(), OperationState::Replying { to });
        let operation = Operation {
            length: bytes.len() as u64,
            role: Role::Target(None),
            ..Operation::new(endpoint, cx.slot, NO_REMOTE, state)
        };
        let Some(id) = cx.shared.operations.insert(operation) else {
            debug_assert!(false, "space was checked before execution");
            return;
        };
        effects.keep(id, bytes);
        let one_sided = self.one_sided.get_or_insert_default();
        one_sided.served += 1;
        one_sided.replies.push_back(id);
        cx.add_work(Work::Stage);
    }

    /// Tries to stage the data of reply `id` to operation `to` of the peer.
    pub(in crate::proto) fn stage_reply<'a>(
        &mut self,
        mut cx: Cx<'a>,
        id: Id,
        to: u64,
    ) -> Staged<'a> {
        let Some(operation) = cx.shared.operations.get(id) else {
            debug_assert!(false, "what waits has not ended");
            return Staged::Blocked;
        };
        let (length, hint) = (operation.length, operation.hint);
        let (short, whole) = self.whole_max(&cx.shared.config, REPLY_HEADER_BYTES);
        let is_whole = length <= whole;
        let has_source = !is_whole && self.offers_source(length);
        let payload = match (is_whole, has_source) {
            (true, _) => length as usize,
            (false, true) => CMA_SOURCE_BYTES,
            (false, false) => 0,
        };
        let reply = Reply {
            kind: frame::KIND_REPLY,
            status: STATUS_DONE,
            reserved: 0.into(),
            length: (payload as u32).into(),
            operation: to.into(),
        };
        let rts = ReplyRts {
            kind: frame::KIND_REPLY_RTS,
            flags: if has_source { FLAG_CMA } else { 0 },
            reserved: 0.into(),
            reserved_2: 0.into(),
            operation: to.into(),
            send_operation: id.to_u64().into(),
        };
        const _: () = assert!(REPLY_RTS_BYTES >= REPLY_HEADER_BYTES);
        let header = if is_whole { reply.as_bytes() } else { rts.as_bytes() };
        let is_long = payload as u64 > short;
        let pool = (&mut cx.shared.pool, cx.slot);
        let staged = self.push_one_sided(pool, [header, &[]], payload, hint, is_long);
        let Some(segment) = staged else {
            // Acknowledgements and sent segments resume it.
            cx.remove_work(Work::Stage);
            return Staged::Blocked;
        };
        cx.add_work(Work::Flush);
        self.one_sided.get_or_insert_default().note_replied(id);
        if is_whole {
            self.remove_operation(&mut cx, id);
        } else if let Some(operation) = cx.shared.operations.get_mut(id) {
            operation.state = OperationState::Serving(Serving::new(has_source));
        }
        let Some(segment) = cx.shared.pool.get_mut(segment) else { return Staged::Blocked };
        let room = segment.newest(payload);
        match (is_whole, has_source) {
            (true, _) => Staged::Eager { room, completes: true },
            (false, true) => Staged::Source { room },
            (false, false) => Staged::Rts { room },
        }
    }

    /// Answers flushes for which all earlier frames have arrived.
    ///
    /// RR-RMA-5.
    pub(in crate::proto) fn answer_flushes(&mut self, cx: &mut Cx<'_>) {
        while let Some(one_sided) = self.one_sided.as_deref_mut()
            && let Some(&(number, to)) = one_sided.flushes.front()
            && (is_before(number, self.expected_frame) || planted!(FlushEarly))
        {
            one_sided.flushes.pop_front();
            let refused = one_sided.refused.take_before(number);
            let reply = ShortReply::new(to, STATUS_DONE, &refused.to_le_bytes());
            self.send_control(cx, ControlFrame::Reply(reply));
        }
    }

    /// Reserves a frame of a one-sided operation: `pieces`, and `payload` bytes of space after
    /// them. Returns its segment; `None`: no space now.
    pub(super) fn push_one_sided(
        &mut self,
        (pool, slot): (&mut SegmentPool, u32),
        pieces: [&[u8]; 2],
        payload: usize,
        hint: Hint,
        is_long: bool,
    ) -> Option<Id> {
        let head = pieces[0].len() + pieces[1].len();
        let length = head + payload;
        let segments = self.segments.as_deref_mut()?;
        let id = segments.push_for(pool, slot, length, hint, is_long)?;
        let room = pool.get_mut(id)?.push(length);
        let (first, second) = room[..head].split_at_mut(pieces[0].len());
        first.copy_from_slice(pieces[0]);
        second.copy_from_slice(pieces[1]);
        Some(id)
    }
}
