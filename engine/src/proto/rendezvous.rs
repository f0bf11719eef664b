//! Rendezvous: the receiver pulls messages by grants.
//!
//! ```text
//!  sender                                   receiver
//!    │ RTS(envelope, length, first bytes)      │
//!    ├──────────────── control ───────────────>│ match
//!    │                      GRANT(lane, range) │
//!    │<─────────────── control ────────────────┤ recv [chunk header | user's buffer]
//!    │ chunk header, bytes                     │
//!    ├───────────────── bulk ─────────────────>│ in place
//!    │                                    DONE │ no recv targets the buffer any more
//!    │<─────────────── control ────────────────┤ the receive completes
//!    │ completes, once the kernel has released │
//!    │ the last chunk                          │
//! ```

use super::bulk::{GRANTED_MAX, Incoming, Outgoing};
use super::core::{Action, Core};
use super::effects::{Arrival, Effects, Ended};
use super::failure::PeerFailure;
use super::hint::Hint;
use super::lanes::Wait;
use super::late::Late;
use super::operation::{Cause, Operation, OperationState, Pulling};
use super::pulls::{Offered, next_range, range_bytes};
use super::rails::schedule::{Choice, Next};
use super::session::{ControlFrame, Session};
use super::table::Id;
use crate::proto::rails::shares::RailUse;
use crate::proto::ready::Work;
use crate::wire::chunk::CHUNK_HEADER_BYTES;
use crate::wire::data::DATAGRAM_LANE;
use crate::wire::done::{STATUS_ABANDONED, STATUS_OK};
use crate::wire::piece::RING_LANE;
use crate::wire::{CHUNK_BYTES_MAX, Done, FrameError, Grant, frame};

/// Messages that arrived within this time make chunks short.
const BUSY_NS: u64 = 1_000_000;

/// Outstanding chunks of messages that yield to others.
const YIELDING_CHUNKS: u32 = 2;

/// Minimum range granted in datagrams when space is short: a grant has 40 bytes.
const SHARE_MIN: u64 = 4096;

/// Consecutive corrupted chunks of a message before the session fails: that indicates a defect, not
/// chance.
pub(crate) const BAD_CHUNKS_MAX: u32 = 8;

/// A chunk for the driver to send.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChunkSend {
    pub(crate) operation: Id,
    pub(crate) offset: u64,
    pub(crate) length: u32,
    pub(crate) header: [u8; CHUNK_HEADER_BYTES],
    /// Another chunk on the same lane is granted.
    pub(crate) is_followed: bool,
}

/// A chunk for the driver to receive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChunkReceive {
    pub(crate) operation: Id,
    pub(crate) offset: u64,
    pub(crate) length: u32,
}

impl Core {
    // ---- The receiver ----

    /// Pulls a matched rendezvous message, whose first bytes are in place.
    ///
    /// RR-RDV-7, RR-RDV-8.
    pub(crate) fn pull(
        &mut self,
        id: Id,
        slot: u32,
        offered: Offered,
        arrival: Arrival,
        effects: &mut impl Effects,
    ) {
        let Offered { send_operation, hint, first, source } = offered;
        let Some(operation) = self.operations.begin_pull(id) else { return };
        let wanted = operation.length.min(arrival.length);
        let in_place = first.min(wanted);
        let ranges = self.segments.pulls.ranges(in_place);
        operation.note_match(slot, &arrival);
        effects.matched(id, &arrival);
        operation.hint = hint;
        let pulling = Pulling::new(send_operation, (arrival.length, wanted), in_place, ranges);
        operation.state = OperationState::Pulling(pulling);
        let is_own = self.is_loopback(slot);
        if in_place == wanted || (is_own && self.copy_rest(id, send_operation, arrival, effects)) {
            self.finish_pull(id, effects);
            return;
        }
        if is_own {
            return;
        }
        if let Some(source) = source {
            return self.pull_by_cma(id, source);
        }
        self.pull_in_ranges(id, slot, hint, wanted - in_place);
    }

    /// Queues the remaining `left` bytes of a message to be granted on lanes.
    pub(super) fn begin_granting(&mut self, id: Id, slot: u32, hint: Hint, left: u64) {
        self.with(slot, |it, cx| it.begin_granting(cx, id, hint, left));
    }

    pub(super) fn mark_granting(&mut self, slot: u32) {
        if self.sessions.at(slot as usize).is_some() {
            self.ready.add(slot, Work::Grant);
        }
    }

    /// Grants ranges to lanes that are idle, or about to be.
    #[inline]
    pub(crate) fn poll_grants(&mut self, now_ns: u64) {
        if self.lanes.may_serve_starved() {
            self.serve_starved(now_ns);
        }
        if self.ready.len(Work::Grant) > 0 {
            let Self { sessions, lanes, rails, shares, .. } = &mut *self;
            shares.refresh(RailUse { sessions, lanes, rails }, now_ns);
        }
        while let Some(slot) = self.ready.take(Work::Grant) {
            let session = self.sessions.at(slot as usize);
            if session.is_some_and(Session::is_connected) {
                self.grant(slot, now_ns);
                self.with(slot, Session::send_delayed_control);
            }
        }
    }

    fn grant(&mut self, slot: u32, now_ns: u64) {
        if let Some((session, mut cx)) = self.enter(slot) {
            session.open_lanes_of_new_paths(&mut cx, now_ns);
        }
        loop {
            let Some((session, mut cx)) = self.enter(slot) else { return };
            if session.pulls.is_empty() && session.missing.is_empty() {
                // The peer may have closed its lane because it needs none: others go first.
                if session.lanes_wanted && session.lanes.is_empty() && !session.lanes_requested {
                    session.request_lanes_later(&mut cx, Wait::Room);
                }
                return;
            }
            let pulls_by_datagram = session.pulls_by_datagram();
            let is_busy = session.message_ns != 0 && now_ns < session.message_ns + BUSY_NS;
            let are_last = session.pulls.are_last();
            let yields = are_last && self.hinted.is_granting(now_ns, BUSY_NS);
            let chunk_bytes = match is_busy || yields {
                true => self.config.busy_chunk_bytes,
                false => self.config.chunk_bytes,
            };
            // Short chunks need a larger number.
            let usual = self.config.horizon_chunks * (self.config.chunk_bytes / chunk_bytes);
            let chunks = if yields { YIELDING_CHUNKS.min(usual) } else { usual };
            let chunk_bytes = if rare!("a chunk of one byte", 10) { 1 } else { chunk_bytes };
            let horizon = u64::from(chunks) * u64::from(chunk_bytes);
            if pulls_by_datagram {
                if !self.grant_by_datagram(slot, chunk_bytes, horizon, now_ns) {
                    return;
                }
                continue;
            }
            let Some(session) = self.sessions.at(slot as usize) else { return };
            let Choice { lane, chunk_bytes, is_last } =
                match self.choose_lane(session, (chunk_bytes.into(), chunks.into()), now_ns) {
                    Next::Now(choice) => choice,
                    Next::Later => return,
                    Next::NoLane => {
                        let Some((session, mut cx)) = self.enter(slot) else { return };
                        return session.request_lanes(&mut cx, now_ns);
                    }
                };
            // Horizons count bytes, and ranges may be short. Arrivals trigger the next attempt.
            if self.lanes.get(lane).is_some_and(|bulk| bulk.incoming.len() >= GRANTED_MAX) {
                return;
            }
            let Some(session) = self.sessions.at_mut(slot as usize) else { return };
            let most = |left| range_bytes(left, chunk_bytes);
            let range = next_range(session, &mut self.operations, &mut self.hinted, most);
            let Some((id, offset, length)) = range else { return };
            let eager_class = session.eager_limit.class();
            self.note_granted(id, now_ns);
            let send_operation = match self.operations.get(id).map(|operation| &operation.state) {
                Some(OperationState::Pulling(pulling)) => pulling.send_operation,
                _ => continue,
            };
            let Some(bulk) = self.lanes.get_mut(lane) else { return };
            let chunk = bulk.next_chunk;
            bulk.next_chunk = chunk.wrapping_add(1);
            let incoming = Incoming { operation: id, offset, length, chunk, granted_ns: now_ns };
            bulk.incoming.push_back(incoming);
            bulk.is_refilling = !is_last;
            bulk.incoming_bytes += u64::from(length);
            bulk.used_ns = now_ns;
            let number = bulk.number;
            self.lanes.mark_runnable(lane);
            let grant = Grant {
                kind: frame::KIND_GRANT,
                eager_class,
                reserved: 0.into(),
                lane: number.into(),
                send_operation: send_operation.into(),
                receive_operation: id.to_u64().into(),
                offset: offset.into(),
                length: length.into(),
                chunk: chunk.into(),
            };
            self.push_control(slot, ControlFrame::Grant(grant));
        }
    }

    /// Notes the grant of a range: bulk messages yield for a while.
    fn note_granted(&mut self, id: Id, now_ns: u64) {
        if self.operations.get(id).is_some_and(|operation| operation.hint != Hint::Bulk) {
            self.hinted.granted_ns = Some(now_ns);
        }
    }

    /// Grants the next range of a session in datagrams. Returns `false` if not possible now.
    fn grant_by_datagram(
        &mut self,
        slot: u32,
        chunk_bytes: u32,
        horizon: u64,
        now_ns: u64,
    ) -> bool {
        // Several sessions share the window, and a long chunk would use all of it.
        let share = (self.config.datagram_window_bytes / 8).max(SHARE_MIN);
        let chunk_bytes = u64::from(chunk_bytes).min(share);
        let Some((session, mut cx)) = self.enter(slot) else { return false };
        if !session.may_pull(&mut cx, chunk_bytes, horizon) {
            return false;
        }
        let Some(session) = self.sessions.at_mut(slot as usize) else { return false };
        let most = |left: u64| left.min(chunk_bytes);
        let range = next_range(session, &mut self.operations, &mut self.hinted, most);
        let Some((id, offset, length)) = range else { return false };
        self.note_granted(id, now_ns);
        let found = self.operations.get(id).map(|operation| &operation.state);
        if let Some(OperationState::Pulling(pulling)) = found {
            let send_operation = pulling.send_operation;
            let range = (offset, length);
            self.with(slot, |it, mut cx| it.pull_by_datagram(&mut cx, id, send_operation, range));
        }
        true
    }

    /// Returns the range that the driver should receive next on a lane, which is receiving then.
    pub(crate) fn next_receive(&mut self, lane: Id) -> Option<ChunkReceive> {
        let bulk = self.lanes.get_mut(lane)?;
        if bulk.is_receiving || !bulk.is_ready {
            return None;
        }
        let &Incoming { operation, offset, length, .. } = bulk.incoming.front()?;
        let found = self.operations.get_mut(operation).map(|operation| &mut operation.state);
        let Some(OperationState::Pulling(pulling)) = found else {
            // The receive has ended, but its bytes will arrive: the lane is not usable any more.
            self.actions.push_back(Action::CloseLane { lane, is_failure: true });
            return None;
        };
        pulling.targeted += 1;
        bulk.is_receiving = true;
        Some(ChunkReceive { operation, offset, length })
    }

    /// Handles the result of a recv of [`Self::next_receive`]. Returns `false` if the lane is
    /// unusable; its ranges are granted again elsewhere.
    ///
    /// RR-RDV-3, RR-RDV-6, RR-SUM-4, RR-SUM-5.
    pub(crate) fn handle_chunk_received(
        &mut self,
        lane: Id,
        receive: ChunkReceive,
        header: Option<&[u8; CHUNK_HEADER_BYTES]>,
        now_ns: u64,
        effects: &mut impl Effects,
    ) -> bool {
        let operation = receive.operation;
        let mut is_good = false;
        let mut length = 0;
        let mut sent_sum = None;
        if let Some(bulk) = self.lanes.get_mut(lane)
            && let Some(&incoming) = bulk.incoming.front()
            && bulk.is_receiving
        {
            bulk.is_receiving = false;
            bulk.used_ns = now_ns;
            let is_first = bulk.is_fresh;
            let session = self.sessions.at(bulk.session as usize);
            let has_checksums = session.is_some_and(|session| session.has_checksums);
            let checksum = header.and_then(|header| incoming.agrees(header, &bulk.keys.receive));
            is_good = checksum.is_some_and(|checksum| has_checksums || checksum == 0);
            if is_good {
                length = incoming.length;
                let was_idle = bulk.rate.handle_arrival(length.into(), incoming.granted_ns, now_ns);
                bulk.incoming.pop_front();
                bulk.incoming_bytes -= u64::from(length);
                let (slot, path) = (bulk.session, usize::from(bulk.path));
                let (rate, arrival) = (bulk.rate, (length, incoming.granted_ns));
                if let Some(session) = self.sessions.at_mut(slot as usize) {
                    session.lane_failures = Late::NONE;
                    session.rails.handle_arrival(path, length, rate);
                    sent_sum = checksum.filter(|_| has_checksums);
                    session.handle_chunk_time(was_idle, &rate, effects.copy_speed());
                    self.shares.note_chunk(session, path as u8, arrival, now_ns);
                }
                if is_first {
                    self.note_lanes_in_use(lane);
                }
                self.mark_granting(slot);
                self.lanes.mark_runnable(lane);
            }
        }
        let is_lane_gone = self.lanes.get(lane).is_none();
        let Some(found) = self.operations.get_mut(operation) else { return is_good };
        let OperationState::Pulling(pulling) = &mut found.state else { return is_good };
        pulling.targeted -= 1;
        if is_lane_gone && pulling.failed.is_none() {
            // Another lane may write the range only after the kernel has released it.
            let slot = found.session;
            if let Some(session) = self.sessions.at_mut(slot as usize) {
                let range = (operation, receive.offset, u64::from(receive.length));
                session.missing.push_back(range);
            }
            self.mark_granting(slot);
            return is_good;
        }
        if let Some(sent) = sent_sum
            && pulling.failed.is_none()
        {
            if effects.checksum(operation, receive.offset, length) != sent
                && !planted!(SkipChunkSum)
            {
                self.regrant_corrupted(receive);
                return is_good;
            }
            pulling.bad_chunks = 0;
        }
        pulling.arrived += u64::from(length);
        let is_whole = pulling.arrived == pulling.wanted
            || (planted!(EarlyDone) && pulling.granted == pulling.wanted);
        if pulling.targeted == 0 {
            if let Some(cause) = pulling.failed.take() {
                let (remote, slice_of) = (found.remote, found.slice_of);
                self.remove_operation(operation);
                let ended = cause.ended(self.name_of(remote));
                self.end_receive(operation, slice_of, ended, effects);
            } else if is_whole {
                self.finish_pull(operation, effects);
            } else {
                self.go_on_by_ring(operation);
            }
        }
        is_good
    }

    /// Grants a corrupted chunk, which arrived completely, again on any lane.
    ///
    /// RR-SUM-5.
    #[cold]
    fn regrant_corrupted(&mut self, receive: ChunkReceive) {
        self.counters.corrupted_chunks += 1;
        let Some(found) = self.operations.get_mut(receive.operation) else { return };
        let OperationState::Pulling(pulling) = &mut found.state else { return };
        pulling.bad_chunks += 1;
        let (slot, is_hopeless) = (found.session, pulling.bad_chunks == BAD_CHUNKS_MAX);
        let ChunkReceive { operation, offset, length } = receive;
        if let Some(session) = self.sessions.at_mut(slot as usize) {
            session.missing.push_back((operation, offset, u64::from(length)));
        }
        self.mark_granting(slot);
        if is_hopeless {
            let cause = format!(
                "{BAD_CHUNKS_MAX} chunks of a message in a row differ from what was sent (CRC32C), \
                 the last one of {length} bytes at {offset}"
            );
            let failure = PeerFailure::Corrupted(cause.into());
            self.actions.push_back(Action::GiveUp { session: slot, failure });
        }
    }

    pub(super) fn finish_pull(&mut self, id: Id, effects: &mut impl Effects) {
        let Some(operation) = self.remove_operation(id) else { return };
        let OperationState::Pulling(pulling) = operation.state else { return };
        self.segments.pulls.recycle(pulling.ranges);
        debug_assert_eq!(pulling.targeted, 0, "RR-RDV-3: all are reaped before DONE");
        let done = ControlFrame::done(pulling.send_operation, STATUS_OK, pulling.wanted);
        let slot = operation.session;
        self.with(slot, |it, cx| it.send_done(cx, done));
        let Some(peer) = self.peers.id_at(operation.remote) else { return };
        let Operation { context, tag, data, slice_of, .. } = operation;
        let arrival = Arrival { peer, context, tag, length: pulling.length, data };
        self.end_receive(id, slice_of, Ended::Received(arrival), effects);
    }

    // ---- The sender ----

    /// RR-RDV-1, RR-RDV-5, RR-RDV-9
    pub(crate) fn handle_grant(&mut self, slot: u32, grant: &Grant) -> Result<(), FrameError> {
        match grant.lane.get() {
            DATAGRAM_LANE => return self.handle_datagram_grant(slot, grant),
            RING_LANE => return self.handle_ring_grant(slot, grant),
            _ => {}
        }
        let id = Id::from_u64(grant.send_operation.get());
        let (offset, length) = (grant.offset.get(), grant.length.get());
        let number = grant.lane.get();
        let is_serving = self
            .operations
            .get(id)
            .is_some_and(|operation| operation.session == slot && operation.serves());
        let session = self.sessions.at(slot as usize);
        let lane = session.and_then(|it| self.lanes.named(&it.lanes, number));
        // A lane that failed here while the grant was in transit fails there, too.
        let Some((lane, bulk)) = lane.and_then(|lane| Some((lane, self.lanes.get_mut(lane)?)))
        else {
            return Ok(());
        };
        if bulk.is_refused {
            return Ok(());
        }
        if !is_serving {
            bulk.is_refused = true;
            self.refuse_grant(slot, number, grant.receive_operation.get());
            self.actions.push_back(Action::CloseLane { lane, is_failure: true });
            return Ok(());
        }
        let message = self.operations.get(id).map_or(0, |operation| operation.length);
        let fits = offset.checked_add(u64::from(length)).is_some_and(|end| end <= message);
        if !fits || length == 0 || length > CHUNK_BYTES_MAX {
            return Err(FrameError::BadGrant { offset, length, message });
        }
        if grant.chunk.get() != bulk.expected_chunk {
            let (expected, got) = (bulk.expected_chunk, grant.chunk.get());
            return Err(FrameError::BadChunkNumber { expected, got });
        }
        if bulk.outgoing.len() >= GRANTED_MAX {
            return Err(FrameError::AnswersWait(bulk.outgoing.len()));
        }
        bulk.expected_chunk = bulk.expected_chunk.wrapping_add(1);
        bulk.outgoing.push_back(Outgoing {
            operation: id,
            receive_operation: grant.receive_operation.get(),
            offset,
            length,
            chunk: grant.chunk.get(),
        });
        let number = bulk.number;
        if let Some(session) = self.sessions.at_mut(slot as usize) {
            session.eager_limit.follow(grant.eager_class);
            // In datagrams it may have been sent before the peer lost the lane and requested one.
            session.lanes_wanted &= session.has_datagrams() && number < session.wanted_before_lane;
        }
        self.lanes.mark_runnable(lane);
        Ok(())
    }

    /// Returns the chunk that the driver should send next on a lane, which is sending then.
    ///
    /// RR-RDV-2, RR-SUM-4.
    pub(crate) fn next_send(&mut self, lane: Id, effects: &impl Effects) -> Option<ChunkSend> {
        let bulk = self.lanes.get_mut(lane)?;
        if bulk.is_sending || !bulk.is_ready {
            return None;
        }
        let &outgoing = bulk.outgoing.front()?;
        let found = self.operations.get_mut(outgoing.operation).filter(|found| found.serves());
        let Some(OperationState::Serving(serving)) = found.map(|found| &mut found.state) else {
            self.actions.push_back(Action::CloseLane { lane, is_failure: true });
            return None;
        };
        serving.unreleased += 1;
        bulk.is_sending = true;
        let Outgoing { operation, offset, length, .. } = outgoing;
        let session = self.sessions.at(bulk.session as usize);
        let checksum = if session.is_some_and(|session| session.has_checksums) {
            effects.checksum(operation, offset, length)
        } else {
            0
        };
        let header = outgoing.header(&bulk.keys.send, checksum);
        Some(ChunkSend { operation, offset, length, header, is_followed: bulk.outgoing.len() > 1 })
    }

    /// Notes that the kernel has all bytes of the chunk of [`Self::next_send`], or the lane failed.
    pub(crate) fn handle_chunk_sent(&mut self, lane: Id, now_ns: u64) {
        if let Some(bulk) = self.lanes.get_mut(lane)
            && bulk.is_sending
        {
            bulk.is_sending = false;
            bulk.used_ns = now_ns;
            let (is_first, path) = (bulk.is_fresh, usize::from(bulk.path));
            let length = bulk.outgoing.pop_front().map_or(0, |outgoing| outgoing.length);
            // The receiver decides whether chunks arrive completely; a side that only sends would
            // accumulate failures over its whole lifetime.
            if let Some(session) = self.sessions.at_mut(bulk.session as usize) {
                session.lane_failures = Late::NONE;
                session.rails.handle_sent(path, length);
            }
            if is_first {
                self.note_lanes_in_use(lane);
            }
            self.lanes.mark_runnable(lane);
        }
    }

    /// Notes that the kernel has released a sent chunk.
    pub(crate) fn handle_chunk_released(&mut self, operation: Id, effects: &mut impl Effects) {
        let Some(found) = self.operations.get_mut(operation) else { return };
        let OperationState::Serving(serving) = &mut found.state else { return };
        serving.unreleased -= 1;
        self.finish_serving(operation, effects);
    }

    /// RR-FRAME-2
    pub(crate) fn handle_done(&mut self, slot: u32, done: &Done, effects: &mut impl Effects) {
        let id = Id::from_u64(done.operation.get());
        let Some(operation) = self.operations.get_mut(id).filter(|op| op.session == slot) else {
            self.counters.stale_frames += 1;
            return;
        };
        let is_abandoned = done.status == STATUS_ABANDONED;
        match &mut operation.state {
            OperationState::Serving(serving) => {
                if is_abandoned {
                    serving.failed.get_or_insert(Cause::Peer(PeerFailure::Left));
                } else {
                    serving.done = Some(done.accepted.get());
                }
                self.finish_serving(id, effects);
            }
            OperationState::AwaitMatch if is_abandoned => {
                let remote = operation.remote;
                self.operations.remove(id);
                effects.complete(id, Ended::Failed(PeerFailure::Left, self.name_of(remote)));
                self.with(slot, |it, mut cx| it.look_at_fences(&mut cx));
            }
            _ => self.counters.stale_frames += 1,
        }
    }

    /// RR-RDV-4
    pub(super) fn finish_serving(&mut self, id: Id, effects: &mut impl Effects) {
        let Some(operation) = self.operations.get_mut(id) else { return };
        let OperationState::Serving(serving) = &mut operation.state else { return };
        if serving.unreleased > 0 && !planted!(IgnoreRelease) {
            return;
        }
        let (failed, done, has_source) = (serving.failed.take(), serving.done, serving.has_source);
        let (slot, remote) = (operation.session, operation.remote);
        let ended = match (failed, done) {
            (Some(cause), _) => {
                if has_source {
                    effects.revoke();
                }
                cause.ended(self.name_of(remote))
            }
            (None, Some(accepted)) => Ended::Sent { accepted },
            (None, None) => return,
        };
        self.remove_operation(id);
        effects.complete(id, ended);
        self.with(slot, |it, mut cx| it.look_at_fences(&mut cx));
    }
}
