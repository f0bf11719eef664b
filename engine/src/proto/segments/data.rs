//! Bulk data in datagrams, for sessions that need no bulk lane.
//!
//! The receiver grants ranges as usual ([`super::super::rendezvous`]), but on the lane of datagrams
//! ([`DATAGRAM_LANE`]). Granted ranges arrive as DATA frames, in segments of their own, which are
//! sent after those of messages and retransmitted like them. So a range depends on no lane that
//! could fail, is granted once, and its bytes are copied from the datagram directly to the
//! receive's memory.
//!
//! ```text
//!  grant                        a session below the horizon, with space at the receiver
//!    ──────── GRANT ──────────> granted: ranges in order of arrival
//!                               stage_data: one segment each, up to UNSENT_MAX unsent ones
//!    <──────── DATA ──────────  behind `urgent` and `ready`; `lost` before all
//!  handle_data: place, count
//! ```
//!
//! Costs per datagram: at the sender one copy of user memory into the segment and one into the
//! driver's buffer, at the receiver one copy; no allocation once warm.

use std::collections::VecDeque;

use zerocopy::IntoBytes;

use super::super::bulk::{GRANTED_MAX, Outgoing, place_behind};
use super::super::core::Core;
use super::super::effects::Effects;
use super::super::hint::Hint;
use super::super::operation::{Operation, OperationState};
use super::super::operations::Operations;
use super::super::session::{ControlFrame, Session};
use super::super::table::Id;
use super::ranges::Ranges;
use crate::proto::context::Cx;
use crate::wire::data::{DATA_HEADER_BYTES, DATAGRAM_LANE};
use crate::wire::{CHUNK_BYTES_MAX, Data, FrameError, Grant, frame};

/// Segments of bulk data that wait for their first transmission: as many as one turn sends.
/// Messages staged later are sent before them.
const UNSENT_MAX: usize = 64;

/// Limit on the disjoint ranges received of a message: more than a window of datagrams leaves when
/// every other one is lost. Each range costs search time.
const RANGES_MAX: usize = 1 << 14;

/// State shared by all sessions whose bulk data goes in datagrams.
#[derive(Debug, Default)]
pub(crate) struct Pulls {
    /// Bytes granted to peers and not received yet.
    bytes: u64,
    /// Sessions that wait to grant until fewer bytes are outstanding.
    waiting: VecDeque<u32>,
    /// Sessions with granted ranges and space for segments of them.
    feeding: Vec<u32>,
    /// Memory of completed messages, for reuse.
    idle: Vec<Ranges>,
}

impl Pulls {
    /// Creates a record of the received ranges of a message, with its first bytes.
    pub(crate) fn ranges(&mut self, first: u64) -> Ranges {
        let mut ranges = self.idle.pop().unwrap_or_default();
        if first > 0 {
            ranges.add(0, first);
        }
        ranges
    }

    pub(crate) fn recycle(&mut self, ranges: Ranges) {
        self.idle.push(ranges.emptied());
    }

    /// Returns whether nothing waits to be staged.
    pub(crate) fn is_at_rest(&self) -> bool {
        self.feeding.is_empty()
    }

    /// Returns the bytes granted to all peers and not received yet.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// Bulk state of one session.
#[derive(Debug, Default)]
pub(super) struct Bulk {
    /// Bytes granted to the peer and not received yet.
    pub(super) pulled_bytes: u64,
    is_waiting: bool,
    /// Ranges granted by the peer and not fully in segments, in order.
    pub(super) granted: VecDeque<Outgoing>,
    is_feeding: bool,
}

impl Bulk {
    /// Notes that the session in `slot` may have space for segments of granted ranges.
    #[inline]
    pub(super) fn feed(&mut self, slot: u32, pulls: &mut Pulls) {
        if !self.granted.is_empty() && !self.is_feeding {
            self.is_feeding = true;
            pulls.feeding.push(slot);
        }
    }
}

/// Bytes of a message for a datagram: copy the bytes at `offset` of it into `room`.
#[derive(Debug)]
pub(crate) struct StagedData<'a> {
    pub(crate) operation: Id,
    pub(crate) offset: u64,
    pub(crate) room: &'a mut [u8],
}

/// Returns the position of a range of the message among the earlier granted ones.
fn place_of(granted: &VecDeque<Outgoing>, operations: &Operations, hint: Hint) -> usize {
    if hint != Hint::Priority {
        return granted.len();
    }
    place_behind(granted, operations, |other| other == Hint::Priority)
}

fn bad(data: &Data, why: &'static str) -> FrameError {
    FrameError::BadData { offset: data.offset.get(), length: data.length.get(), why }
}

impl Session {
    /// Returns whether its ranges are granted in datagrams.
    pub(in crate::proto) fn pulls_by_datagram(&self) -> bool {
        self.segments.as_deref().is_some_and(|segments| segments.bulk.is_some())
    }

    /// Returns the bulk state, if bulk data goes in datagrams.
    fn bulk(&mut self) -> Option<&mut Bulk> {
        self.segments.as_deref_mut()?.bulk.as_deref_mut()
    }

    /// Returns whether one more grant of `chunk` bytes may be sent, with at most `horizon` bytes of
    /// the session outstanding; if not, the session is retried when it may. With nothing
    /// outstanding it always may: no session waits for the peer of another.
    ///
    /// RR-BULK-3.
    pub(in crate::proto) fn may_pull(&mut self, cx: &mut Cx<'_>, chunk: u64, horizon: u64) -> bool {
        let is_full = cx.segments.pulls.bytes + chunk > cx.config.datagram_window_bytes;
        let is_first = self.pulls.has_first();
        let Some(bulk) = self.bulk() else { return false };
        if bulk.pulled_bytes >= horizon.max(1) {
            return false;
        }
        if !is_full || bulk.pulled_bytes == 0 {
            return true;
        }
        if !std::mem::replace(&mut bulk.is_waiting, true) {
            let waiting = &mut cx.segments.pulls.waiting;
            if is_first { waiting.push_front(cx.slot) } else { waiting.push_back(cx.slot) }
        }
        false
    }

    /// Grants a range of the message that `id` receives.
    pub(in crate::proto) fn pull_by_datagram(
        &mut self,
        cx: &mut Cx<'_>,
        id: Id,
        send_operation: u64,
        (offset, length): (u64, u32),
    ) {
        let Some(bulk) = self.bulk() else { return };
        bulk.pulled_bytes += u64::from(length);
        cx.segments.pulls.bytes += u64::from(length);
        let grant = Grant {
            kind: frame::KIND_GRANT,
            eager_class: 0,
            reserved: 0.into(),
            lane: DATAGRAM_LANE.into(),
            send_operation: send_operation.into(),
            receive_operation: id.to_u64().into(),
            offset: offset.into(),
            length: length.into(),
            chunk: 0.into(),
        };
        self.send_control(cx, ControlFrame::Grant(grant));
    }
}

impl Core {
    // ---- The receiver ----

    /// Subtracts bytes that were granted and have arrived, or never will.
    fn note_pulled(&mut self, slot: u32, bytes: u64) {
        let Some(session) = self.sessions.at_mut(slot as usize) else { return };
        let Some(bulk) = session.bulk() else { return };
        bulk.pulled_bytes -= bytes;
        let is_pulling = !session.pulls.is_empty();
        self.segments.pulls.bytes -= bytes;
        self.wake_pulls();
        if is_pulling {
            self.mark_granting(slot);
        }
    }

    /// Lets the session that has waited longest grant, if there is space.
    fn wake_pulls(&mut self) {
        if self.segments.pulls.bytes >= self.config.datagram_window_bytes {
            return;
        }
        if let Some(slot) = self.segments.pulls.waiting.pop_front() {
            let session = self.sessions.at_mut(slot as usize);
            if let Some(bulk) = session.and_then(Session::bulk) {
                bulk.is_waiting = false;
            }
            self.mark_granting(slot);
        }
    }

    /// Handles bytes of a granted range that arrive for the first time.
    ///
    /// RR-BULK-4, RR-BULK-5.
    pub(super) fn handle_data(
        &mut self,
        slot: u32,
        data: &Data,
        bytes: &[u8],
        effects: &mut impl Effects,
    ) -> Result<(), FrameError> {
        let session = self.sessions.at(slot as usize);
        if !session.is_some_and(Session::pulls_by_datagram) {
            return Err(bad(data, "this session uses bulk lanes for data"));
        }
        let (offset, length) = (data.offset.get(), u64::from(data.length.get()));
        let end = offset.checked_add(length).filter(|_| length > 0);
        let end = end.ok_or_else(|| bad(data, "range overflows"))?;
        let id = Id::from_u64(data.receive_operation.get());
        let found = self.operations.get_mut(id).filter(|found| found.session == slot);
        let pulling = match found.map(|found| &mut found.state) {
            // A chunk of an earlier session that failed may still be written by the kernel.
            Some(OperationState::Pulling(pulling))
                if pulling.failed.is_none() && pulling.targeted == 0 && pulling.ring.is_none() =>
            {
                pulling
            }
            // The receive has ended, and the peer will be notified.
            _ => {
                self.counters.stale_frames += 1;
                return Ok(());
            }
        };
        if end > pulling.granted {
            return Err(bad(data, "range was not granted"));
        }
        if !pulling.ranges.add(offset, end) {
            return Err(bad(data, "range overlaps received data"));
        }
        if pulling.ranges.count() > RANGES_MAX {
            return Err(bad(data, "too many disjoint ranges"));
        }
        pulling.arrived += length;
        let is_whole = pulling.arrived == pulling.wanted;
        let shift = u64::from(planted!(ShiftData) && offset > 0);
        effects.place(id, (offset - shift) as usize, bytes);
        self.note_pulled(slot, length);
        if is_whole {
            self.finish_pull(id, effects);
        } else {
            self.go_on_by_ring(id);
        }
        Ok(())
    }

    /// Ends the grants of a receive, complete or not: missing bytes are no longer expected.
    pub(crate) fn forget_pull(&mut self, id: Id) {
        let Some(operation) = self.operations.get_mut(id) else { return };
        let slot = operation.session;
        let OperationState::Pulling(pulling) = &mut operation.state else { return };
        // CMA reads were never granted, and ring pieces do not arrive in datagrams.
        let missing = pulling.granted.saturating_sub(pulling.arrived);
        let missing = if pulling.ring.is_some() { 0 } else { missing };
        let ranges = std::mem::take(&mut pulling.ranges);
        self.segments.pulls.recycle(ranges);
        if missing > 0 {
            self.note_pulled(slot, missing);
        }
    }

    /// Releases the outstanding grants of a session that ends.
    pub(super) fn end_bulk(&mut self, bulk: &Bulk) {
        self.segments.pulls.bytes -= bulk.pulled_bytes;
        self.wake_pulls();
    }

    // ---- The sender ----

    /// Handles the peer's grant of a range in datagrams.
    ///
    /// RR-RDV-1, RR-RDV-5, RR-BULK-2.
    pub(crate) fn handle_datagram_grant(
        &mut self,
        slot: u32,
        grant: &Grant,
    ) -> Result<(), FrameError> {
        let (offset, length) = (grant.offset.get(), grant.length.get());
        let session = self.sessions.at(slot as usize);
        if !session.is_some_and(Session::pulls_by_datagram) {
            return Err(FrameError::BadGrant { offset, length, message: 0 });
        }
        let id = Id::from_u64(grant.send_operation.get());
        let receive_operation = grant.receive_operation.get();
        let Some((serving, message, hint)) = self.served_by(slot, id) else {
            self.refuse_grant(slot, DATAGRAM_LANE, receive_operation);
            return Ok(());
        };
        let fits = offset.checked_add(u64::from(length)).is_some_and(|end| end <= message);
        serving.granted = serving.granted.saturating_add(u64::from(length));
        // Ranges are granted only once, since granted ranges are retransmitted until received.
        if !fits || length == 0 || length > CHUNK_BYTES_MAX || serving.granted > message {
            return Err(FrameError::BadGrant { offset, length, message });
        }
        let range = Outgoing { operation: id, receive_operation, offset, length, chunk: 0 };
        let session = self.sessions.at_mut(slot as usize);
        let segments = session.and_then(|session| session.segments.as_deref_mut());
        if let Some(bulk) = segments.and_then(|segments| segments.bulk.as_deref_mut()) {
            if bulk.granted.len() >= GRANTED_MAX {
                return Err(FrameError::AnswersWait(bulk.granted.len()));
            }
            let at = place_of(&bulk.granted, &self.operations, hint);
            bulk.granted.insert(at, range);
            bulk.feed(slot, &mut self.segments.pulls);
        }
        Ok(())
    }

    /// Stages the next bytes of messages that go in datagrams while there is space: sessions are
    /// queued again when segments are sent or acknowledged.
    pub(crate) fn stage_data(&mut self) -> Option<StagedData<'_>> {
        while let Some(&slot) = self.segments.pulls.feeding.last() {
            if let Some((operation, offset, segment, length)) = self.push_data(slot) {
                let segment = self.segments.pool.get_mut(segment)?;
                return Some(StagedData { operation, offset, room: segment.newest(length) });
            }
            self.segments.pulls.feeding.pop();
            let session = self.sessions.at_mut(slot as usize);
            if let Some(bulk) = session.and_then(Session::bulk) {
                bulk.is_feeding = false;
            }
        }
        None
    }

    /// Stages one segment with the next granted bytes of a session. Returns the send, the offset,
    /// the segment and the length.
    fn push_data(&mut self, slot: u32) -> Option<(Id, u64, Id, usize)> {
        loop {
            let session = self.sessions.at_mut(slot as usize)?;
            let segments = session.segments.as_deref_mut()?;
            let front = segments.bulk.as_deref_mut()?.granted.front_mut()?;
            let range = *front;
            let found = self.operations.get(range.operation);
            if !found.is_some_and(Operation::serves) {
                // The send has ended: its receiver abandoned it, or it failed.
                segments.bulk.as_deref_mut()?.granted.pop_front();
                self.refuse_grant(slot, DATAGRAM_LANE, range.receive_operation);
                continue;
            }
            let pool = &mut self.segments.pool;
            if segments.unsent_bulk() >= UNSENT_MAX {
                return None;
            }
            let room = segments.frame_bytes_max() - DATA_HEADER_BYTES;
            let length = room.min(range.length as usize);
            let segment = segments.push_alone(pool, slot, DATA_HEADER_BYTES + length)?;
            let front = segments.bulk.as_deref_mut()?.granted.front_mut()?;
            front.offset += length as u64;
            front.length -= length as u32;
            if front.length == 0 {
                segments.bulk.as_deref_mut()?.granted.pop_front();
            }
            let header = Data {
                kind: frame::KIND_DATA,
                flags: 0,
                reserved: 0.into(),
                length: (length as u32).into(),
                receive_operation: range.receive_operation.into(),
                offset: range.offset.into(),
            };
            let head = pool.get_mut(segment)?.newest(DATA_HEADER_BYTES + length);
            head[..DATA_HEADER_BYTES].copy_from_slice(header.as_bytes());
            self.mark_dirty(slot);
            return Some((range.operation, range.offset, segment, length));
        }
    }
}
