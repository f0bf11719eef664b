//! Bulk data in datagrams, for sessions that need no bulk lane.
//!
//! The receiver grants ranges as usual ([`super`]), but on the lane of datagrams
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

use super::super::context::Cx;
use super::super::core::Core;
use super::super::effects::Effects;
use super::super::hint::Hint;
use super::super::lanes::lane::{GRANTED_MAX, ServedRange, place_behind};
use super::super::operation::{Operation, OperationState};
use super::super::operations::Operations;
use super::super::ready::Work;
use super::super::session::{ControlFrame, Session};
use super::super::table::Id;
use crate::wire::data::{DATA_HEADER_BYTES, DATAGRAM_LANE};
use crate::wire::{CHUNK_BYTES_MAX, Data, FrameError, Grant, frame};

/// Segments of bulk data that wait for their first transmission: as many as one turn sends.
/// Messages staged later are sent before them.
const UNSENT_MAX: usize = 64;

/// Limit on the disjoint ranges received of a message: more than a window of datagrams leaves when
/// every other one is lost. Each range costs search time.
const RANGES_MAX: usize = 1 << 14;

/// Bulk data of one session in datagrams.
#[derive(Debug, Default)]
pub(super) struct InDatagrams {
    /// Bytes granted to the peer and not received yet.
    pulled_bytes: u64,
    /// Ranges granted by the peer and not fully in segments, in order.
    granted: VecDeque<ServedRange>,
}

impl InDatagrams {
    /// Returns whether nothing is granted in either direction.
    #[cfg(any(test, feature = "sim"))]
    pub(super) fn is_at_rest(&self) -> bool {
        self.granted.is_empty() && self.pulled_bytes == 0
    }

    /// Returns the bytes granted to the peer and not received yet.
    #[cfg(any(test, feature = "sim"))]
    pub(super) fn pulled_bytes(&self) -> u64 {
        self.pulled_bytes
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
fn place_of(granted: &VecDeque<ServedRange>, operations: &Operations, hint: Hint) -> usize {
    if hint != Hint::Priority {
        return granted.len();
    }
    place_behind(granted, operations, |other| other == Hint::Priority)
}

fn bad(data: &Data, why: &'static str) -> FrameError {
    FrameError::BadData { offset: data.offset.get(), length: data.length.get(), why }
}

/// The receiver.
impl Session {
    /// Returns whether its ranges are granted in datagrams.
    pub(in crate::proto) fn pulls_by_datagram(&self) -> bool {
        self.rendezvous.datagrams.is_some()
    }

    /// Returns whether one more grant of `chunk` bytes may be sent, with at most `horizon` bytes of
    /// the session outstanding; if not, the session is retried when it may. With nothing
    /// outstanding it always may: no session waits for the peer of another.
    ///
    /// RR-BULK-3.
    pub(super) fn may_pull(&self, cx: &mut Cx<'_>, chunk: u64, horizon: u64) -> bool {
        let is_full =
            cx.shared.rendezvous.pulled_bytes + chunk > cx.shared.config.datagram_window_bytes;
        let bulk = debug_assert_some!(&self.rendezvous.datagrams, "it pulls by datagrams");
        let Some(bulk) = bulk else { return false };
        if bulk.pulled_bytes >= horizon.max(1) {
            return false;
        }
        if !is_full || bulk.pulled_bytes == 0 {
            return true;
        }
        if self.rendezvous.queue.has_first() {
            cx.add_work(Work::AwaitWindow);
        } else {
            cx.add_work_last(Work::AwaitWindow);
        }
        false
    }

    /// Grants a range of the message that `id` receives.
    pub(super) fn pull_by_datagram(
        &mut self,
        cx: &mut Cx<'_>,
        id: Id,
        send_operation: u64,
        (offset, length): (u64, u32),
    ) {
        let bulk = debug_assert_some!(&mut self.rendezvous.datagrams, "it pulls by datagrams");
        let Some(bulk) = bulk else { return };
        bulk.pulled_bytes += u64::from(length);
        cx.shared.rendezvous.pulled_bytes += u64::from(length);
        debug_assert!(
            bulk.pulled_bytes <= cx.shared.rendezvous.pulled_bytes,
            "the total is that of all sessions"
        );
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

    /// Subtracts bytes that were granted and have arrived, or never will.
    pub(super) fn note_pulled(&mut self, cx: &mut Cx<'_>, bytes: u64) {
        // Lanes may have carried them.
        let Some(bulk) = &mut self.rendezvous.datagrams else { return };
        debug_assert!(bytes <= bulk.pulled_bytes, "no more arrives than was granted");
        bulk.pulled_bytes -= bytes;
        cx.shared.rendezvous.pulled_bytes -= bytes;
        debug_assert!(
            bulk.pulled_bytes <= cx.shared.rendezvous.pulled_bytes,
            "the total is that of all sessions"
        );
        cx.wake_pulls();
        if !self.rendezvous.queue.is_empty() {
            cx.add_work(Work::Grant);
        }
    }

    /// Ends the grants of a receive, complete or not: missing bytes are no longer expected.
    pub(in crate::proto) fn forget_pull(&mut self, cx: &mut Cx<'_>, id: Id) {
        let found = cx.shared.operations.get_mut(id).map(|operation| &mut operation.state);
        let Some(OperationState::Pulling(pulling)) = found else { return };
        // CMA reads were never granted, and ring pieces do not arrive in datagrams.
        let missing = pulling.granted.saturating_sub(pulling.arrived);
        let missing = if pulling.ring.is_some() { 0 } else { missing };
        let ranges = std::mem::take(&mut pulling.ranges);
        cx.shared.rendezvous.recycle(ranges);
        if missing > 0 {
            self.note_pulled(cx, missing);
        }
    }

    /// Checks bytes of a granted range that arrive for the first time. Returns the receive that
    /// they are for. `None`: it has ended, and the peer will be notified.
    ///
    /// RR-BULK-4, RR-BULK-5.
    fn accept_data(&mut self, cx: &mut Cx<'_>, data: &Data) -> Result<Option<Id>, FrameError> {
        if !self.pulls_by_datagram() {
            return Err(bad(data, "this session uses bulk lanes for data"));
        }
        let (offset, length) = (data.offset.get(), u64::from(data.length.get()));
        let end = offset.checked_add(length).filter(|_| length > 0);
        let end = end.ok_or_else(|| bad(data, "range overflows"))?;
        let id = Id::from_u64(data.receive_operation.get());
        let found = cx.shared.operations.get_mut(id).filter(|found| found.session == cx.slot);
        let pulling = match found.map(|found| &mut found.state) {
            // A chunk of an earlier session that failed may still be written by the kernel.
            Some(OperationState::Pulling(pulling))
                if pulling.failed.is_none() && pulling.targeted == 0 && pulling.ring.is_none() =>
            {
                pulling
            }
            _ => {
                cx.shared.counters.stale_frames += 1;
                return Ok(None);
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
        pulling.note_arrived(length);
        debug_assert!(pulling.arrived <= pulling.granted, "ranges that arrive are granted");
        self.note_pulled(cx, length);
        Ok(Some(id))
    }
}

impl Cx<'_> {
    /// Lets the session that has waited longest grant, if there is space.
    fn wake_pulls(&mut self) {
        if self.shared.rendezvous.pulled_bytes < self.shared.config.datagram_window_bytes {
            self.shared.ready.exchange_next(Work::AwaitWindow, Work::Grant);
        }
    }

    /// Releases what a session that ends has granted.
    pub(super) fn end_datagrams(&mut self, bulk: &InDatagrams) {
        self.shared.rendezvous.pulled_bytes -= bulk.pulled_bytes;
        self.remove_work(Work::AwaitWindow);
        self.remove_work(Work::Data);
        self.wake_pulls();
    }
}

/// The sender.
impl Session {
    /// Handles the peer's grant of a range in datagrams.
    ///
    /// RR-RDV-1, RR-RDV-5, RR-BULK-2.
    pub(super) fn handle_datagram_grant(
        &mut self,
        cx: &mut Cx<'_>,
        grant: &Grant,
    ) -> Result<(), FrameError> {
        let (offset, length) = (grant.offset.get(), grant.length.get());
        let Some(bulk) = &mut self.rendezvous.datagrams else {
            return Err(FrameError::BadGrant { offset, length, message: 0 });
        };
        let id = Id::from_u64(grant.send_operation.get());
        let receive_operation = grant.receive_operation.get();
        let Some((serving, message, hint)) = cx.shared.operations.serving(cx.slot, id) else {
            self.refuse_grant(cx, DATAGRAM_LANE, receive_operation);
            return Ok(());
        };
        let fits = offset.checked_add(u64::from(length)).is_some_and(|end| end <= message);
        serving.granted = serving.granted.saturating_add(u64::from(length));
        // Ranges are granted only once, since granted ranges are retransmitted until received.
        if !fits || length == 0 || length > CHUNK_BYTES_MAX || serving.granted > message {
            return Err(FrameError::BadGrant { offset, length, message });
        }
        if bulk.granted.len() >= GRANTED_MAX {
            return Err(FrameError::AnswersWait(bulk.granted.len()));
        }
        let range = ServedRange { operation: id, receive_operation, offset, length, chunk: 0 };
        let at = place_of(&bulk.granted, &cx.shared.operations, hint);
        bulk.granted.insert(at, range);
        cx.add_work(Work::Data);
        Ok(())
    }

    /// Stages more data, if ranges are granted: there may be space for it.
    #[inline]
    pub(in crate::proto) fn stage_data_later(&self, cx: &mut Cx<'_>) {
        if self.rendezvous.datagrams.as_ref().is_some_and(|bulk| !bulk.granted.is_empty()) {
            cx.add_work(Work::Data);
        }
    }

    /// Stages one segment with the next granted bytes. Returns the send, the offset, the segment
    /// and the length. `None`: there is no space, or nothing is granted.
    fn push_data(&mut self, cx: &mut Cx<'_>) -> Option<(Id, u64, Id, usize)> {
        loop {
            let bulk = self.rendezvous.datagrams.as_mut()?;
            let front = bulk.granted.front_mut()?;
            let range = *front;
            if !cx.shared.operations.get(range.operation).is_some_and(Operation::serves) {
                // The send has ended: its receiver abandoned it, or it failed.
                bulk.granted.pop_front();
                self.refuse_grant(cx, DATAGRAM_LANE, range.receive_operation);
                continue;
            }
            let segments = self.segments.as_deref_mut();
            let segments = debug_assert_some!(segments, "a session with grants is connected")?;
            if segments.unsent_bulk() >= UNSENT_MAX {
                return None;
            }
            let room = segments.frame_bytes_max() - DATA_HEADER_BYTES;
            let length = room.min(range.length as usize);
            let segment =
                segments.push_alone(&mut cx.shared.pool, cx.slot, DATA_HEADER_BYTES + length)?;
            debug_assert!(length > 0, "each segment has bytes");
            front.offset += length as u64;
            front.length -= length as u32;
            if front.length == 0 {
                bulk.granted.pop_front();
            }
            let header = Data {
                kind: frame::KIND_DATA,
                flags: 0,
                reserved: 0.into(),
                length: (length as u32).into(),
                receive_operation: range.receive_operation.into(),
                offset: range.offset.into(),
            };
            let pushed = cx.shared.pool.get_mut(segment);
            let head = debug_assert_some!(pushed, "the segment was just pushed")?
                .newest(DATA_HEADER_BYTES + length);
            head[..DATA_HEADER_BYTES].copy_from_slice(header.as_bytes());
            cx.add_work(Work::Flush);
            return Some((range.operation, range.offset, segment, length));
        }
    }
}

impl Core {
    /// Handles bytes of a granted range.
    pub(in crate::proto) fn handle_data(
        &mut self,
        slot: u32,
        data: &Data,
        bytes: &[u8],
        effects: &mut impl Effects,
    ) -> Result<(), FrameError> {
        let accepted = self.with(slot, |it, mut cx| it.accept_data(&mut cx, data));
        if let Some(id) = accepted.transpose()?.flatten() {
            let offset = data.offset.get();
            let shift = u64::from(planted!(ShiftData) && offset > 0);
            effects.place(id, (offset - shift) as usize, bytes);
            self.continue_pull(id, effects);
        }
        Ok(())
    }

    /// Stages the next bytes of messages that go in datagrams while there is space: sessions are
    /// queued again when segments are sent or acknowledged.
    pub(crate) fn stage_data(&mut self) -> Option<StagedData<'_>> {
        while let Some(slot) = self.shared.ready.latest(Work::Data) {
            let staged = self.with(slot, |it, mut cx| it.push_data(&mut cx)).flatten();
            if let Some((operation, offset, segment, length)) = staged {
                let segment = self.shared.pool.get_mut(segment);
                let segment = debug_assert_some!(segment, "the segment was just pushed")?;
                return Some(StagedData { operation, offset, room: segment.newest(length) });
            }
            self.shared.ready.remove(slot, Work::Data);
        }
        None
    }
}
