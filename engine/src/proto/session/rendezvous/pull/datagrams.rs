//! Bulk data in datagrams, for sessions that need no bulk lane.
//!
//! The receiver grants ranges as usual ([`super::super`]), but on no lane. Granted ranges arrive as
//! DATA frames, in segments of their own, which are sent after those of messages and retransmitted
//! like them. So a range depends on no lane that could fail, is granted once, and its bytes are
//! copied from the datagram directly to the receive's memory.
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

use zerocopy::IntoBytes;

use super::super::super::lanes::lane::GRANTED_MAX;
use super::super::super::segments::SegmentId;
use super::super::super::{ControlFrame, Session};
use super::super::SessionRendezvous;
use super::super::granted::{GrantedRanges, NewRange, QueuedRange, RangeCarrier, RangeQueue};
use super::super::granting::NextRange;
use super::super::pulling::Pulling;
use super::super::serving::Serving;
use super::{AnyCarrier, Carrier, Chunks};
use crate::proto::context::Cx;
use crate::proto::core::Core;
use crate::proto::effects::Effects;
use crate::proto::hint::Hint;
use crate::proto::ready::Work;
use crate::proto::table::Id;
use crate::wire::data::DATA_HEADER_BYTES;
use crate::wire::{CHUNK_BYTES_MAX, Data, FrameError, Grant, GrantOver, frame};

/// Minimum range granted when space is short: a grant has 40 bytes.
const SHARE_MIN: u64 = 4096;

/// Segments of bulk data that wait for their first transmission: as many as one turn sends.
/// Messages staged later are sent before them.
const UNSENT_MAX: usize = 64;

/// Bytes of a message for a datagram: copy the bytes at `offset` of it into `room`.
#[derive(Debug)]
pub(crate) struct StagedData<'a> {
    pub(crate) operation: Id,
    pub(crate) offset: u64,
    pub(crate) room: &'a mut [u8],
}

/// Datagrams, which carry all granted ranges of a session without lanes.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct DatagramCarrier;

impl Carrier for DatagramCarrier {
    /// Grants a chunk within the window of all sessions. A session without space for it is retried
    /// when there is some; one with nothing outstanding always may grant, since no session waits
    /// for the peer of another.
    ///
    /// RR-BULK-3.
    fn grant_next(self, it: &mut Session, cx: &mut Cx<'_>, chunks: Chunks, now_ns: u64) -> bool {
        let (chunk_bytes, count) = chunks;
        let (own, window) = (&mut it.rendezvous, cx.shared.config.datagram_window_bytes);
        // Several sessions share the window, and a long chunk would use all of it.
        let most = chunk_bytes.min((window / 8).max(SHARE_MIN));
        if own.pulled_bytes >= (count * chunk_bytes).max(1) {
            return false;
        }
        if cx.shared.rendezvous.pulled_bytes + most > window && own.pulled_bytes > 0 {
            if own.queue.has_first() {
                cx.add_work(Work::AwaitWindow);
            } else {
                cx.add_work_last(Work::AwaitWindow);
            }
            return false;
        }
        let next = own.next_range(cx, |left| left.min(most), now_ns);
        let Some(NextRange { id, send_operation, offset, length }) = next else { return false };
        own.pulled_bytes += u64::from(length);
        cx.shared.rendezvous.pulled_bytes += u64::from(length);
        let grant = Grant::new(self.over(), send_operation, id.to_u64(), (offset, length));
        it.send_control(cx, ControlFrame::Grant(grant));
        true
    }

    fn window_bytes(self, pulling: &Pulling) -> u64 {
        pulling.granted - pulling.arrived
    }

    fn accept(self, it: &mut Session, cx: &mut Cx<'_>, grant: &Grant) -> Result<(), FrameError> {
        if !it.rendezvous.is_in_datagrams() {
            return Err(grant.error(0));
        }
        it.accept_range(cx, grant, self)
    }
}

impl RangeCarrier for DatagramCarrier {
    const WORK: Work = Work::Data;

    fn over(self) -> GrantOver {
        GrantOver::Datagrams
    }

    /// Granted ranges are retransmitted until they are received, and so none is granted twice.
    ///
    /// RR-BULK-2.
    fn admit(self, serving: &mut Serving, grant: &Grant, message: u64) -> Result<(), FrameError> {
        grant.check_range(message, CHUNK_BYTES_MAX)?;
        let granted = serving.note_granted(grant.length.get());
        if granted <= message { Ok(()) } else { Err(grant.error(message)) }
    }

    fn queue(self, granted: &mut GrantedRanges) -> &mut RangeQueue {
        &mut granted.data
    }

    fn push(self, it: &mut SessionRendezvous, new: &NewRange<'_>) -> Result<bool, FrameError> {
        let queue = &mut it.granted.data;
        if queue.len() >= GRANTED_MAX {
            return Err(FrameError::AnswersWait(queue.len()));
        }
        let is_first = new.hint == Hint::Priority;
        queue.insert(new, |other| is_first && other != Some(Hint::Priority));
        Ok(true)
    }
}

/// The receiver.
impl SessionRendezvous {
    /// Returns whether granted ranges come in datagrams: the session has no lanes.
    pub(in crate::proto) fn is_in_datagrams(&self) -> bool {
        matches!(self.network, AnyCarrier::Datagrams(_))
    }

    /// Subtracts bytes that were granted and have arrived, or never will.
    fn note_pulled(&mut self, cx: &mut Cx<'_>, bytes: u64) {
        // The session may have ended, and these with it.
        if !self.is_in_datagrams() {
            return;
        }
        debug_assert!(bytes <= self.pulled_bytes, "no more arrives than was granted");
        self.pulled_bytes -= bytes;
        cx.shared.rendezvous.pulled_bytes -= bytes;
        cx.wake_pulls();
        if !self.queue.is_empty() {
            cx.add_work(Work::Grant);
        }
    }

    /// Ends the grants of an operation, if it is a receive that pulls: missing bytes are no longer
    /// expected.
    pub(in crate::proto) fn release_granted(&mut self, cx: &mut Cx<'_>, id: Id) {
        if let Some((pulling, _)) = cx.shared.operations.pulling(cx.slot, id) {
            let (ranges, missing) = pulling.end();
            cx.shared.rendezvous.recycle(ranges);
            if missing > 0 {
                self.note_pulled(cx, missing);
            }
        }
    }

    /// Checks bytes of a granted range that arrive for the first time. Returns the receive that
    /// they are for. `None`: it has ended, and the peer will be notified.
    ///
    /// RR-BULK-4, RR-BULK-5.
    fn accept_data(&mut self, cx: &mut Cx<'_>, data: &Data) -> Result<Option<Id>, FrameError> {
        let (offset, length) = (data.offset.get(), data.length.get());
        let bad = |why| FrameError::BadData { offset, length, why };
        if !self.is_in_datagrams() {
            return Err(bad("this session uses bulk lanes for data"));
        }
        let end = offset.checked_add(length.into()).filter(|_| length > 0);
        let end = end.ok_or_else(|| bad("range overflows"))?;
        let id = Id::from_u64(data.receive_operation.get());
        let found = cx.shared.operations.pulling(cx.slot, id).map(|(pulling, _)| pulling);
        let Some(pulling) = found.filter(|pulling| pulling.takes_data()) else {
            cx.shared.counters.stale_frames += 1;
            return Ok(None);
        };
        pulling.accept_data(offset, end).map_err(bad)?;
        self.note_pulled(cx, length.into());
        Ok(Some(id))
    }

    /// Releases what the session, which ends, has granted.
    pub(in super::super) fn end_datagrams(&self, cx: &mut Cx<'_>) {
        if self.is_in_datagrams() {
            cx.shared.rendezvous.pulled_bytes -= self.pulled_bytes;
            cx.remove_work(Work::AwaitWindow);
            cx.remove_work(Work::Data);
            cx.wake_pulls();
        }
    }
}

impl Cx<'_> {
    /// Lets the session that has waited longest grant, if there is space.
    fn wake_pulls(&mut self) {
        if self.shared.rendezvous.pulled_bytes < self.shared.config.datagram_window_bytes {
            self.shared.ready.exchange_next(Work::AwaitWindow, Work::Grant);
        }
    }
}

/// The sender.
impl Session {
    /// Stages one segment with the next granted bytes. Returns the send, the offset, the segment
    /// and the length. `None`: there is no space, or nothing is granted.
    fn push_data(&mut self, cx: &mut Cx<'_>) -> Option<(Id, u64, SegmentId, usize)> {
        let range = self.next_granted(cx, DatagramCarrier)?;
        let QueuedRange { operation, receive_operation, offset, length, .. } = range;
        let segments = &mut self.segments;
        debug_assert!(segments.is_established(), "a session with grants is established");
        if segments.unsent_bulk() >= UNSENT_MAX {
            return None;
        }
        let room = segments.frame_bytes_max() - DATA_HEADER_BYTES;
        let length = room.min(length as usize);
        let whole = DATA_HEADER_BYTES + length;
        let segment = segments.push_alone(&mut cx.shared.pool, whole)?;
        self.rendezvous.note_sent(cx, DatagramCarrier, length);
        let header = Data {
            kind: frame::KIND_DATA,
            flags: 0,
            reserved: 0.into(),
            length: (length as u32).into(),
            receive_operation: receive_operation.into(),
            offset: offset.into(),
        };
        let pushed = segments.segment_mut(segment);
        let head = debug_assert_some!(pushed, "the segment was just pushed")?.newest(whole);
        head[..DATA_HEADER_BYTES].copy_from_slice(header.as_bytes());
        cx.add_work(Work::Flush);
        Some((operation, offset, segment, length))
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
        let accept = |it: &mut Session, mut cx: Cx<'_>| it.rendezvous.accept_data(&mut cx, data);
        let accepted = self.with(slot, accept);
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
                let session = self.sessions.at_mut(slot as usize)?;
                let segment = session.segments.segment_mut(segment);
                let segment = debug_assert_some!(segment, "the segment was just pushed")?;
                return Some(StagedData { operation, offset, room: segment.newest(length) });
            }
            self.shared.ready.remove(slot, Work::Data);
        }
        None
    }
}
