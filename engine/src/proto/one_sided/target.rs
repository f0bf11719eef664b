//! The target of one-sided operations: checks key, range and rights, then executes or refuses.

use zerocopy::IntoBytes;

use super::super::core::Core;
use super::super::effects::{Arrival, Effects};
use super::super::hint::Hint;
use super::super::operation::{NO_REMOTE, Operation, OperationState, Serving};
use super::super::regions::{Access, Granted, Refusal};
use super::super::rendezvous::Offered;
use super::super::segments::window::is_before;
use super::super::send::Staged;
use super::super::session::{ControlFrame, ShortReply};
use super::super::table::Id;
use super::{Role, SHORT_REPLY_BYTES};
use crate::proto::context::Cx;
use crate::proto::ready::Work;
use crate::proto::session::Session;
use crate::wire::cma_source::{CMA_SOURCE_BYTES, FLAG_CMA};
use crate::wire::one_sided::{
    ATOMIC_BYTES_MAX, FLAG_COMPARE, FLAG_FETCH, FLAG_INVALIDATE, OneSided,
};
use crate::wire::reply::{REPLY_HEADER_BYTES, STATUS_DONE};
use crate::wire::reply_rts::REPLY_RTS_BYTES;
use crate::wire::{CmaSource, FrameError, Reply, ReplyRts, frame};

impl Core {
    /// Handles an operation on this engine's memory, received as frame `number`.
    ///
    /// RR-RMA-1, RR-RMA-2, RR-RMA-3, RR-RMA-4, RR-RMA-6, RR-RMA-7.
    pub(in crate::proto) fn handle_one_sided(
        &mut self,
        (slot, number): (u32, u32),
        header: &OneSided,
        data: Option<u64>,
        operands: &[u8],
        now_ns: u64,
        effects: &mut impl Effects,
    ) -> Result<(), FrameError> {
        let Some(session) = self.sessions.at_mut(slot as usize) else { return Ok(()) };
        session.message_ns = now_ns;
        let engine = session.engine;
        let one_sided = session.one_sided.get_or_insert_default();
        if header.operation.get() != 0 || header.kind != frame::KIND_PUT {
            one_sided.check_kept()?;
        }
        if header.kind == frame::KIND_FLUSH {
            one_sided.hold_flush(number, header.operation.get());
            self.with(slot, |it, mut cx| it.answer_flushes(&mut cx));
            return Ok(());
        }
        // Other operations have none, whatever the frame contains.
        let is_put = matches!(header.kind, frame::KIND_PUT | frame::KIND_PUT_RTS);
        let data = data.filter(|_| is_put);
        let access = match header.kind {
            frame::KIND_GET => Access::REMOTE_READ,
            frame::KIND_ATOMIC if header.flags & FLAG_FETCH != 0 => {
                Access::REMOTE_ATOMIC | Access::REMOTE_READ
            }
            frame::KIND_ATOMIC => Access::REMOTE_ATOMIC,
            _ if header.flags & FLAG_INVALIDATE != 0 => {
                Access::REMOTE_WRITE | Access::REMOTE_INVALIDATE
            }
            _ => Access::REMOTE_WRITE,
        };
        let (key, offset, length) = (header.key.get(), header.offset.get(), header.length.get());
        let target = header.target_endpoint.get();
        if !self.shared.endpoints.is_open(target) {
            self.refuse((slot, number), header, Refusal::Endpoint);
            return Ok(());
        }
        let source = header.source_endpoint.get();
        let session = self.sessions.at_mut(slot as usize);
        let known = session.and_then(|it| self.shared.peers.remote_of(slot, it, source));
        let remote = known.ok_or(FrameError::UnknownSource(source))?;
        let granted = match self.shared.regions.check(engine, key, offset, length, access, now_ns) {
            Ok(granted) => granted,
            Err(refused) => {
                self.refuse((slot, number), header, refused);
                return Ok(());
            }
        };
        if data.is_some() && !effects.can_report(target) {
            self.refuse((slot, number), header, Refusal::Busy);
            return Ok(());
        }
        let Some(peer) = self.shared.peers.id_at(remote) else { return Ok(()) };
        let arrival = Arrival { peer, context: 0, tag: key, length, data };
        match header.kind {
            frame::KIND_PUT => {
                let start = granted.start + u64::from(planted!(ShiftPut));
                match effects.put(granted.region, start, operands) {
                    Ok(()) => {
                        self.invalidate(header);
                        let access = Access::REMOTE_WRITE;
                        effects.accessed(granted.region, access, target, &arrival);
                        self.answer(slot, header, &[], effects);
                    }
                    Err(refusal) => self.refuse((slot, number), header, refusal),
                }
            }
            frame::KIND_ATOMIC => {
                self.apply_atomic((slot, number), header, granted, &arrival, operands, effects)
            }
            _ => self.serve((slot, number), header, granted, arrival, operands, effects),
        }
        Ok(())
    }

    fn apply_atomic(
        &mut self,
        (slot, number): (u32, u32),
        header: &OneSided,
        granted: Granted,
        arrival: &Arrival,
        operands: &[u8],
        effects: &mut impl Effects,
    ) {
        let length = header.length.get() as usize;
        let compared = if header.flags & FLAG_COMPARE != 0 { length } else { 0 };
        let (compare, operands) = operands.split_at(compared.min(operands.len()));
        let mut before = [0; ATOMIC_BYTES_MAX];
        let fetched = if header.flags & FLAG_FETCH != 0 { length } else { 0 };
        let fetched = &mut before[..fetched];
        if fetched.len() > SHORT_REPLY_BYTES && self.shared.operations.is_full() {
            // An executed operation cannot be refused.
            return self.refuse((slot, number), header, Refusal::Busy);
        }
        let codes = (header.atomic, header.datatype);
        let into = (!fetched.is_empty()).then_some(&mut *fetched);
        match effects.atomic(granted.region, granted.start, codes, (compare, operands), into) {
            Ok(()) => {
                let target = header.target_endpoint.get();
                effects.accessed(granted.region, Access::REMOTE_ATOMIC, target, arrival);
                self.answer(slot, header, fetched, effects);
            }
            Err(refusal) => self.refuse((slot, number), header, refusal),
        }
    }

    /// Starts an operation on this engine's memory that does not complete at once.
    fn serve(
        &mut self,
        (slot, number): (u32, u32),
        header: &OneSided,
        granted: Granted,
        arrival: Arrival,
        source: &[u8],
        effects: &mut impl Effects,
    ) {
        let (length, target) = (header.length.get(), header.target_endpoint.get());
        let to = header.operation.get();
        let (remote, state) = (arrival.peer.index() as u32, OperationState::Replying { to });
        let operation = Operation {
            tag: arrival.tag,
            length,
            data: arrival.data,
            role: Role::Target(Some(granted.key)),
            ..Operation::new(target, slot, remote, state)
        };
        if !self.shared.regions.begin(granted.key, slot) {
            return self.refuse((slot, number), header, Refusal::Key);
        }
        let Some(id) = self.shared.operations.insert(operation) else {
            self.shared.regions.end(granted.key, slot);
            return self.refuse((slot, number), header, Refusal::Busy);
        };
        let is_write = header.kind == frame::KIND_PUT_RTS;
        if let Err(refusal) =
            effects.bind_region(id, granted.region, granted.start, length, (target, is_write))
        {
            self.shared.operations.remove(id);
            self.shared.regions.end(granted.key, slot);
            return self.refuse((slot, number), header, refusal);
        }
        if is_write {
            self.invalidate(header);
        }
        let Some(session) = self.sessions.at_mut(slot as usize) else { return };
        let one_sided = session.one_sided.get_or_insert_default();
        one_sided.served += 1;
        if is_write {
            let source = CmaSource::of_frame(source);
            let offered = Offered { send_operation: to, hint: Hint::None, first: 0, source };
            self.pull(id, slot, offered, arrival, effects);
        } else {
            one_sided.replies.push_back(id);
            self.shared.ready.add(slot, Work::Stage);
        }
    }

    /// Invalidates the key of a put, if requested, for later operations.
    fn invalidate(&mut self, header: &OneSided) {
        if header.flags & FLAG_INVALIDATE != 0 {
            self.shared.regions.revoke(header.key.get());
        }
    }

    /// Reports a refusal to the origin, if it waits, or counts it for the flush after frame
    /// `number`.
    fn refuse(&mut self, (slot, number): (u32, u32), header: &OneSided, refusal: Refusal) {
        self.shared.counters.refused_accesses += 1;
        let operation = header.operation.get();
        if operation != 0 {
            let reply = ShortReply::new(operation, refusal.code(), &[]);
            return self.push_control(slot, ControlFrame::Reply(reply));
        }
        let Some(session) = self.sessions.at_mut(slot as usize) else { return };
        let expected = session.expected_frame;
        let Some(one_sided) = session.one_sided.as_deref_mut() else { return };
        one_sided.note_refused(number, expected);
    }

    /// Completes an operation, and replies if the origin waits.
    fn answer(&mut self, slot: u32, header: &OneSided, bytes: &[u8], effects: &mut impl Effects) {
        let to = header.operation.get();
        if to == 0 {
            return;
        }
        if bytes.len() <= SHORT_REPLY_BYTES {
            let reply = ShortReply::new(to, STATUS_DONE, bytes);
            return self.push_control(slot, ControlFrame::Reply(reply));
        }
        let (endpoint, state) = (header.target_endpoint.get(), OperationState::Replying { to });
        let operation = Operation {
            length: bytes.len() as u64,
            role: Role::Target(None),
            ..Operation::new(endpoint, slot, NO_REMOTE, state)
        };
        let Some(id) = self.shared.operations.insert(operation) else {
            debug_assert!(false, "space was checked before execution");
            return;
        };
        effects.keep(id, bytes);
        let Some(session) = self.sessions.at_mut(slot as usize) else { return };
        let one_sided = session.one_sided.get_or_insert_default();
        one_sided.served += 1;
        one_sided.replies.push_back(id);
        self.shared.ready.add(slot, Work::Stage);
    }

    /// Stages the data of a reply.
    pub(super) fn stage_reply(&mut self, id: Id) -> Staged<'_> {
        let Some(operation) = self.shared.operations.get(id) else { return Staged::Blocked };
        let &OperationState::Replying { to } = &operation.state else { return Staged::Blocked };
        let (slot, length, hint) = (operation.session, operation.length, operation.hint);
        let Some(session) = self.sessions.at(slot as usize) else { return Staged::Blocked };
        let (short, whole) = self.whole_max(session, REPLY_HEADER_BYTES);
        let is_whole = length <= whole;
        let has_source = !is_whole && session.offers_source(length);
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
        let Some((session, mut cx)) = self.enter(slot) else { return Staged::Blocked };
        let staged = session.push_one_sided(&mut cx, [header, &[]], payload, hint, is_long);
        let Some(segment) = staged else { return self.wait_for_room(slot) };
        if let Some(one_sided) = session.one_sided.as_deref_mut() {
            one_sided.replies.pop_front();
        }
        if is_whole {
            self.remove_operation(id);
        } else if let Some(operation) = self.shared.operations.get_mut(id) {
            operation.state = OperationState::Serving(Serving { has_source, ..Serving::default() });
        }
        let Some(segment) = self.shared.pool.get_mut(segment) else {
            return Staged::Blocked;
        };
        let room = segment.newest(payload);
        match (is_whole, has_source) {
            (true, _) => Staged::Eager { room, completes: true },
            (false, true) => Staged::Source { room },
            (false, false) => Staged::Rts { room },
        }
    }
}

impl Session {
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
        cx: &mut Cx<'_>,
        pieces: [&[u8]; 2],
        payload: usize,
        hint: Hint,
        is_long: bool,
    ) -> Option<Id> {
        let head = pieces[0].len() + pieces[1].len();
        let length = head + payload;
        let segments = self.segments.as_deref_mut()?;
        let pool = &mut cx.shared.pool;
        let id = segments.push_for(pool, cx.slot, length, hint, is_long)?;
        let room = pool.get_mut(id)?.push(length);
        let (first, second) = room[..head].split_at_mut(pieces[0].len());
        first.copy_from_slice(pieces[0]);
        second.copy_from_slice(pieces[1]);
        cx.add_work(Work::Flush);
        Some(id)
    }
}
