//! Bulk lanes: chunks between the driver and the messages' memory.

use std::collections::VecDeque;
use std::io;

use super::context::LaneCx;
use super::roles::ConnectionRole;
use super::traits::{CHUNK_HEADER_BYTES, CloseMode, Interest, LaneKey, OutgoingChunk, SendMode};
use super::zero_copy::{Policy, SendModeSelector};
use crate::proto::core::Core;
use crate::proto::session::lanes::lane::BulkLane;
use crate::proto::session::late::Late;
use crate::proto::silence::{Unacked, patience};
use crate::proto::table::Id;

/// A kernel that sees both ends of a lane send delays acknowledgements for the next segment, for up
/// to 40 ms. That may never be sent, since data in the other direction may use another lane. A
/// zero-copy sender would wait for it; after this time the kernel is requested to acknowledge, in
/// nanoseconds.
const ACK_NS: u64 = 100_000;

/// A chunk of this length may end in the packet of its successor. Its first packet is in flight
/// then, and its acknowledgement sends the rest if the successor is late.
const FOLLOWED_BYTES_MIN: u32 = 64 << 10;

/// Why a bulk lane is closed.
#[derive(Clone, Copy, Debug)]
pub(super) enum LaneEnd<'a> {
    /// It is not needed now.
    Unused,
    /// The peer closed it.
    ByPeer,
    /// Its path is not to be relied on, or it is replaced, which is no failure of the lane.
    Abandoned,
    /// It failed; outstanding chunks need another lane.
    Failed(&'a str),
}

/// The connections of bulk lanes.
#[derive(Debug, Default)]
pub(crate) struct BulkSockets {
    /// The driver's keys, by slot of the protocol's lane table.
    keys: Vec<Option<LaneKey>>,
    /// Lanes whose kernels may delay an acknowledgement, and until when that is harmless.
    acks_due: VecDeque<(LaneKey, u64)>,
    /// Copy or zero copy, by session; from the first chunk on.
    zero_copy: Vec<Option<Box<SendModeSelector>>>,
}

impl BulkSockets {
    /// Replaces the keys of another driver.
    pub(super) fn rename(&mut self, new_key: impl Fn(LaneKey) -> Option<LaneKey>) {
        self.acks_due.clear();
        for key in &mut self.keys {
            *key = key.and_then(&new_key);
        }
    }

    /// Returns whether the kernel of a lane may delay an acknowledgement.
    #[inline(always)]
    pub(super) fn has_acks_due(&self) -> bool {
        !self.acks_due.is_empty()
    }

    /// Lets the driver report when any of them is readable.
    pub(super) fn watch_all(&self, cx: &mut LaneCx<'_>) {
        self.keys.iter().flatten().for_each(|&key| cx.watch(key, Interest::Readable));
    }

    /// Returns the driver's key of a lane; `None` for a closed one, whose slot may be reused.
    pub(super) fn key_of(&self, core: &Core, lane: Id) -> Option<LaneKey> {
        core.shared().lanes().get(lane)?;
        self.keys.get(lane.index()).copied().flatten()
    }

    /// Notes the connection of a lane, or that it has none.
    pub(super) fn set_key(&mut self, core: &Core, lane: Id, key: Option<LaneKey>) {
        if core.shared().lanes().get(lane).is_none() {
            // Late events of a closed lane do not concern its successor.
            return;
        }
        if lane.index() >= self.keys.len() {
            self.keys.resize(lane.index() + 1, None);
        }
        self.keys[lane.index()] = key;
    }

    /// Handles a lane that the peer has opened.
    pub(super) fn handle_accepted(&mut self, key: LaneKey, lane: Id, cx: &mut LaneCx<'_>) {
        self.set_key(cx.core, lane, Some(key));
        cx.handle_joined(key, lane);
    }

    /// Discards what was measured for the previous session in a slot.
    pub(super) fn end_session(&mut self, session: u32) {
        if let Some(zero_copy) = self.zero_copy.get_mut(session as usize) {
            *zero_copy = None;
        }
    }

    fn zero_copy(&mut self, session: u32, policy: Policy) -> &mut SendModeSelector {
        let index = session as usize;
        if index >= self.zero_copy.len() {
            self.zero_copy.resize_with(index + 1, || None);
        }
        self.zero_copy[index].get_or_insert_with(|| Box::new(SendModeSelector::new(policy)))
    }

    /// Connects a lane.
    pub(super) fn connect(&mut self, lane: Id, cx: &mut LaneCx<'_>) {
        let way = cx.core.lane(lane).and_then(|(session, bulk)| {
            let way = session.rails().way(bulk.path(), session.peer().locators().first())?;
            Some((bulk.session(), bulk.path(), way))
        });
        // It may have been closed, or lost its path, before its turn.
        let Some((session, at, (remote, rail))) = way else { return };
        let remote = cx.paths.scoped(rail, remote);
        let segment_bytes = cx.segment_limit(session, at);
        cx.core.shared_mut().lanes_mut().limit_segments(lane, segment_bytes);
        match cx.driver.connect(remote, rail, segment_bytes) {
            Ok(key) => {
                self.set_key(cx.core, lane, Some(key));
                cx.roles.insert(key, ConnectionRole::LaneConnecting { lane, remote });
            }
            Err(error) => cx.lane_lost(lane, true, &error.to_string()),
        }
    }

    /// Passes the next chunks of a runnable lane to the driver. Returns whether there were any.
    pub(super) fn move_chunks(&mut self, lane: Id, cx: &mut LaneCx<'_>) -> bool {
        let key = debug_assert_some!(self.key_of(cx.core, lane), "a lane with work is connected");
        key.is_some_and(|key| {
            let is_receiving = Self::receive_next(lane, key, cx);
            self.send_next(lane, key, cx) || is_receiving
        })
    }

    fn receive_next(lane: Id, key: LaneKey, cx: &mut LaneCx<'_>) -> bool {
        let Some(chunk) = cx.core.shared_mut().next_receive(lane) else { return false };
        if let Some(traffic) = cx.traffic(key) {
            traffic.receiving = Some(chunk);
        }
        let Some(target) = cx.completions.shape(chunk.operation) else {
            debug_assert!(false, "an operation with an outstanding chunk has memory");
            return false;
        };
        let offset = chunk.offset as usize;
        // SAFETY: the operation keeps its memory until it ends, and the protocol ends no receive
        // while a chunk targets it; granted ranges of a receive never overlap.
        unsafe { cx.driver.recv_chunk(key, target, offset, chunk.length as usize) };
        true
    }

    fn send_next(&mut self, lane: Id, key: LaneKey, cx: &mut LaneCx<'_>) -> bool {
        let Some(chunk) = cx.core.next_send(lane, cx.completions) else { return false };
        let session = cx.core.shared().lanes().get(lane).map_or(0, BulkLane::session);
        let mode = self.zero_copy(session, cx.config.zero_copy).mode(chunk.length);
        let is_more = mode == SendMode::Copy
            && chunk.is_followed
            && chunk.length >= FOLLOWED_BYTES_MIN
            && !rare!("a chunk without more behind it", 20);
        let now_ns = cx.read_clock();
        if let Some(traffic) = cx.traffic(key) {
            traffic.sending = Some((chunk.length, now_ns, mode));
            (traffic.has_sent, traffic.is_ack_due) = (true, false);
            traffic.silence.expect_answer();
        }
        let Some(source) = cx.completions.shape(chunk.operation) else {
            debug_assert!(false, "an operation with an outstanding chunk has memory");
            return false;
        };
        let shift = usize::from(planted!(ShiftChunk) && chunk.offset > 0);
        let (token, offset) = (chunk.operation.to_u64(), chunk.offset as usize - shift);
        let chunk = OutgoingChunk {
            lane: key,
            token,
            header: &chunk.header,
            source,
            offset,
            length: chunk.length as usize,
            mode: if is_more { SendMode::CopyMore } else { mode },
        };
        // SAFETY: the operation keeps its memory until it ends, and the protocol ends no send
        // while a chunk of it is unreleased.
        unsafe { cx.driver.send_chunk(&chunk) };
        true
    }

    /// Handles the end of sending a chunk.
    pub(super) fn handle_sent(
        &mut self,
        key: LaneKey,
        result: io::Result<()>,
        cx: &mut LaneCx<'_>,
    ) {
        let now_ns = cx.read_clock();
        let sent = cx.traffic(key).and_then(|traffic| {
            // The kernel has sent until now.
            traffic.has_sent = true;
            traffic.sending.take()
        });
        match (cx.roles.get_mut(key), result) {
            (Some(&mut ConnectionRole::Bulk { lane, .. }), Ok(())) => {
                cx.core.with_lane(lane, |it, cx| it.handle_chunk_sent(cx, lane, now_ns));
                let session = cx.core.shared().lanes().get(lane).map_or(0, BulkLane::session);
                let zero_copy = self.zero_copy.get_mut(session as usize);
                if let (Some((length, since_ns, mode)), Some(Some(zero_copy))) = (sent, zero_copy) {
                    zero_copy.handle_sent(mode, length, now_ns - since_ns);
                }
            }
            (Some(&mut ConnectionRole::Bulk { lane, .. }), Err(error)) => {
                self.close(lane, LaneEnd::Failed(&error.to_string()), cx);
            }
            // It is being closed.
            _ => {}
        }
    }

    /// Handles the end of receiving a chunk.
    pub(super) fn handle_received(
        &mut self,
        key: LaneKey,
        result: io::Result<[u8; CHUNK_HEADER_BYTES]>,
        cx: &mut LaneCx<'_>,
    ) {
        let (lane, is_open, traffic) = match cx.roles.get_mut(key) {
            Some(ConnectionRole::Bulk { lane, traffic }) => (*lane, true, traffic),
            Some(ConnectionRole::Closing { lane: Some(lane), traffic }) => (*lane, false, traffic),
            role => {
                debug_assert!(false, "no chunk was expected: {role:?}");
                return;
            }
        };
        let chunk = debug_assert_some!(traffic.receiving.take(), "a chunk was expected");
        let Some(chunk) = chunk else { return };
        let header = result.as_ref().ok();
        let now_ns = *cx.now_ns;
        let is_good = cx.core.handle_chunk_received(lane, chunk, header, now_ns, cx.completions);
        let is_idle = cx.core.shared().lanes().get(lane).is_some_and(|lane| !lane.expects_chunk());
        if is_open && is_good && is_idle {
            // Idle lanes are watched only, for their end.
            cx.watch(key, Interest::Readable);
            self.plan_ack(key, cx);
        } else if is_open && !is_good {
            let cause = match result {
                Ok(_) => "its stream is out of sync".to_owned(),
                Err(error) => error.to_string(),
            };
            self.close(lane, LaneEnd::Failed(&cause), cx);
        }
    }

    /// Schedules an acknowledgement of received chunks, as nothing may be sent soon.
    fn plan_ack(&mut self, key: LaneKey, cx: &mut LaneCx<'_>) {
        if let Some(traffic) = cx.traffic(key)
            && std::mem::take(&mut traffic.has_sent)
            && !std::mem::replace(&mut traffic.is_ack_due, true)
        {
            self.acks_due.push_back((key, *cx.now_ns + ACK_NS));
        }
    }

    /// Makes kernels acknowledge chunks on lanes where nothing was sent since.
    pub(super) fn quickack(&mut self, until_ns: u64, cx: &mut LaneCx<'_>) {
        while let Some(&(key, due_ns)) = self.acks_due.front()
            && due_ns <= until_ns
        {
            self.acks_due.pop_front();
            let traffic = cx.traffic(key);
            if traffic.is_some_and(|traffic| std::mem::take(&mut traffic.is_ack_due)) {
                cx.driver.quickack(key);
            }
        }
    }

    /// Closes lanes whose chunks are not acknowledged: a path may pass short packets and drop long
    /// ones, and a network may drop a single connection. A suspended peer acknowledges, since its
    /// kernel does. Ranges granted by the peer on them are granted again, and a send that waits for
    /// nothing else ends.
    ///
    /// RR-LANE-7, RR-LANE-8.
    pub(super) fn check(&mut self, cx: &mut LaneCx<'_>) {
        for index in 0..self.keys.len() {
            if let Some((lane, key)) = self.owing(index, cx) {
                match cx.driver.unacked(key) {
                    Ok(owed) => self.observe(lane, key, owed, cx),
                    Err(error) => self.close(lane, LaneEnd::Failed(&error.to_string()), cx),
                }
            }
        }
    }

    /// Returns the lane at `index` and its connection, if bytes of it are unacknowledged.
    fn owing(&self, index: usize, cx: &mut LaneCx<'_>) -> Option<(Id, LaneKey)> {
        let key = (*self.keys.get(index)?)?;
        match cx.roles.get_mut(key) {
            Some(ConnectionRole::Bulk { lane, traffic }) => {
                traffic.silence.is_owed().then_some((*lane, key))
            }
            _ => None,
        }
    }

    /// Closes a lane whose kernel reports these bytes as unacknowledged for too long.
    fn observe(&mut self, lane: Id, key: LaneKey, owed: Unacked, cx: &mut LaneCx<'_>) {
        let now_ns = *cx.now_ns;
        // The lanes of a session that has ended are closed next.
        let Some((session, bulk)) = cx.core.lane(lane) else { return };
        let has_another = session.rails().has_usable_beside(bulk.path());
        let (place, number) = ((bulk.session(), bulk.path()), bulk.number());
        let patience = patience(cx.config.peer_timeout, has_another);
        let traffic = cx.traffic(key);
        let silence = traffic.and_then(|it| it.silence.observe(now_ns, owed, patience));
        let over = silence.filter(|&silence| silence >= patience);
        if let Some(lost) = cx.find_lost_segments(key, place, owed, over.is_some()) {
            let bytes = lost.bytes;
            cx.core.with(place.0, |it, cx| it.announce_lane_lost(cx, Some(number), Some(bytes)));
            cx.note_segments_lost(place, lost.bytes, Some(&lost));
            self.close(lane, LaneEnd::Failed(&lost.cause), cx);
        } else if let Some(silence) = over {
            cx.core.with(place.0, |it, cx| it.announce_lane_lost(cx, Some(number), None));
            let cause = format!("unacknowledged for {} ms", silence.as_millis());
            self.close(lane, LaneEnd::Failed(&cause), cx);
        }
    }

    /// Handles an idle bulk lane that became readable: it was closed, or is out of sync.
    ///
    /// RR-LANE-3.
    pub(super) fn handle_readable(
        &mut self,
        key: LaneKey,
        (lane, is_receiving): (Id, bool),
        cx: &mut LaneCx<'_>,
    ) {
        let is_expecting = cx.core.shared().lanes().get(lane).is_some_and(BulkLane::expects_chunk);
        if is_receiving || is_expecting {
            // The recv of the chunk reports the result.
            return;
        }
        let mut byte = [0];
        match cx.driver.recv(key, &mut byte) {
            Ok(0) => self.close(lane, LaneEnd::ByPeer, cx),
            Ok(_) => self.close(lane, LaneEnd::Failed("unexpected data"), cx),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                cx.watch(key, Interest::Readable);
            }
            Err(error) => self.close(lane, LaneEnd::Failed(&error.to_string()), cx),
        }
    }

    /// Ends a lane because its path is unreliable, as the peer reports if it `is_reported`, or
    /// because another one replaces it.
    pub(super) fn abandon(&mut self, lane: Id, is_reported: bool, cx: &mut LaneCx<'_>) {
        if is_reported {
            cx.paths.suspect_path_of(cx.core, *cx.now_ns, lane);
        }
        self.close(lane, LaneEnd::Abandoned, cx);
    }

    /// Closes a lane that is not used any more. A lane whose bytes the peer's kernel has not
    /// acknowledged stays: they may be lost, which [`Self::check`] finds out, while nothing
    /// would report a connection that is closed with them.
    ///
    /// RR-LANE-5.
    pub(super) fn close_unused(&mut self, lane: Id, cx: &mut LaneCx<'_>) {
        let key = self.key_of(cx.core, lane);
        let owing = key.filter(|&key| cx.traffic(key).is_some_and(|it| it.silence.is_owed()));
        let unacked = owing.map(|key| cx.driver.unacked(key));
        if !matches!(unacked, Some(Ok(Unacked::Answer { .. } | Unacked::Later))) {
            self.close(lane, LaneEnd::Unused, cx);
        }
    }

    /// Closes a lane.
    pub(super) fn close(&mut self, lane: Id, end: LaneEnd<'_>, cx: &mut LaneCx<'_>) {
        if let Some(key) = self.key_of(cx.core, lane) {
            if let Some(bulk) = cx.core.shared().lanes().get(lane) {
                let (session, at) = (bulk.session(), bulk.path());
                cx.keep_figures(session, at, key);
            }
            self.set_key(cx.core, lane, None);
            let traffic = cx.traffic(key).map_or(Late::NONE, std::mem::take);
            cx.roles.insert(key, ConnectionRole::Closing { lane: Some(lane), traffic });
            let mode = match end {
                LaneEnd::Unused => CloseMode::Graceful,
                // A peer that closed reads no more: data left in the socket would keep memory from
                // being released for as long as the path delays it.
                LaneEnd::ByPeer | LaneEnd::Abandoned | LaneEnd::Failed(_) => CloseMode::Reset,
            };
            cx.driver.close(key, mode);
        }
        let (is_failure, cause) = match end {
            LaneEnd::Unused => (false, "idle"),
            LaneEnd::ByPeer => (false, "closed by the peer"),
            LaneEnd::Abandoned => (false, "its path fails, or it is replaced"),
            LaneEnd::Failed(cause) => (true, cause),
        };
        tracing::debug!(is_failure, "bulk lane closed: {cause}");
        cx.lane_lost(lane, is_failure, cause);
    }
}
