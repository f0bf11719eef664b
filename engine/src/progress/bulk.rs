//! Bulk lanes: chunks between the driver and the messages' memory.

use std::io;
use std::time::Duration;

use super::engine::Engine;
use super::roles::{Role, Traffic};
use super::traits::{CHUNK_HEADER_BYTES, ChunkSend, CloseMode, Interest, LaneKey, SendMode};
use super::zero_copy::ZeroCopy;
use crate::proto::late::Late;
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

impl Engine {
    /// Handles a lane that both sides agree on.
    pub(super) fn lane_joined(&mut self, key: LaneKey, lane: Id) {
        self.state.roles.insert(key, Role::Bulk { lane, traffic: Late::NONE });
        let now_ns = self.state.now_ns;
        self.state.core.with_lane(lane, |it, cx| it.handle_lane_ready(cx, lane, now_ns));
        self.watch(key, Interest::Readable);
    }

    /// Passes the next chunks of all runnable lanes to the driver.
    pub(super) fn move_chunks(&mut self) -> bool {
        let mut happened = false;
        while let Some(lane) = self.state.core.poll_runnable() {
            happened |= self.receive_next(lane);
            happened |= self.send_next(lane);
        }
        happened
    }

    fn traffic(&mut self, key: LaneKey) -> Option<&mut Late<Traffic>> {
        match self.state.roles.get_mut(key)? {
            Role::Bulk { traffic, .. } | Role::Closing { traffic, .. } => Some(traffic),
            _ => None,
        }
    }

    /// Returns the driver's key of a lane; `None` for a closed one, whose slot may be reused.
    fn key_of(&self, lane: Id) -> Option<LaneKey> {
        self.state.core.lanes().get(lane)?;
        self.state.lane_keys.get(lane.index()).copied().flatten()
    }

    fn receive_next(&mut self, lane: Id) -> bool {
        let Some(key) = self.key_of(lane) else { return false };
        let Some(chunk) = self.state.core.next_receive(lane) else { return false };
        if let Some(traffic) = self.traffic(key) {
            traffic.receiving = Some(chunk);
        }
        let Some(target) = self.state.completions.shape(chunk.operation) else { return false };
        let offset = chunk.offset as usize;
        // SAFETY: the operation keeps its memory until it ends, and the protocol ends no receive
        // while a chunk targets it; granted ranges of a receive never overlap.
        unsafe { self.driver.recv_chunk(key, target, offset, chunk.length as usize) };
        true
    }

    fn send_next(&mut self, lane: Id) -> bool {
        let Some(key) = self.key_of(lane) else { return false };
        let Some(chunk) = self.state.core.next_send(lane, &self.state.completions) else {
            return false;
        };
        let session = self.state.core.lanes().get(lane).map_or(0, |lane| lane.session);
        let policy = self.state.config.zero_copy;
        let zero_copy = &mut self.control(session).zero_copy;
        let zero_copy = zero_copy.get_or_insert_with(|| Box::new(ZeroCopy::new(policy)));
        let mode = zero_copy.mode(chunk.length);
        let is_more = mode == SendMode::Copy
            && chunk.is_followed
            && chunk.length >= FOLLOWED_BYTES_MIN
            && !rare!("a chunk without more behind it", 20);
        self.read_clock();
        let now_ns = self.state.now_ns;
        if let Some(traffic) = self.traffic(key) {
            traffic.sending = Some((chunk.length, now_ns, mode));
            (traffic.has_sent, traffic.is_ack_due) = (true, false);
            traffic.silence.expect_answer();
        }
        let Some(source) = self.state.completions.shape(chunk.operation) else { return false };
        let shift = usize::from(planted!(ShiftChunk) && chunk.offset > 0);
        let (token, offset) = (chunk.operation.to_u64(), chunk.offset as usize - shift);
        let chunk = ChunkSend {
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
        unsafe { self.driver.send_chunk(&chunk) };
        true
    }

    pub(super) fn handle_sent(&mut self, key: LaneKey, result: io::Result<()>) {
        self.read_clock();
        let now_ns = self.state.now_ns;
        let sent = self.traffic(key).and_then(|traffic| {
            // The kernel has sent until now.
            traffic.has_sent = true;
            traffic.sending.take()
        });
        let Some(&mut Role::Bulk { lane, .. }) = self.state.roles.get_mut(key) else { return };
        match result {
            Ok(()) => {
                self.state.core.with_lane(lane, |it, cx| it.handle_chunk_sent(cx, lane, now_ns));
                let session = self.state.core.lanes().get(lane).map_or(0, |lane| lane.session);
                if let (Some((length, since_ns, mode)), Some(zero_copy)) =
                    (sent, self.control(session).zero_copy.as_mut())
                {
                    zero_copy.handle_sent(mode, length, now_ns - since_ns);
                }
            }
            Err(error) => self.close_lane(lane, LaneEnd::Failed(&error.to_string())),
        }
    }

    pub(super) fn handle_received(
        &mut self,
        key: LaneKey,
        result: io::Result<[u8; CHUNK_HEADER_BYTES]>,
    ) {
        let Some(chunk) = self.traffic(key).and_then(|traffic| traffic.receiving.take()) else {
            return;
        };
        let (lane, is_open) = match self.state.roles.get_mut(key) {
            Some(&mut Role::Bulk { lane, .. }) => (Some(lane), true),
            Some(&mut Role::Closing { lane, .. }) => (lane, false),
            _ => (None, false),
        };
        let Some(lane) = lane else { return };
        let state = &mut *self.state;
        let header = result.as_ref().ok();
        let is_good = state.core.handle_chunk_received(
            lane,
            chunk,
            header,
            state.now_ns,
            &mut state.completions,
        );
        let is_idle = state.core.lanes().get(lane).is_some_and(|lane| lane.incoming.is_empty());
        if is_open && is_good && is_idle {
            // Idle lanes are watched only, for their end.
            self.watch(key, Interest::Readable);
            self.plan_ack(key);
        } else if is_open && !is_good {
            let cause = match result {
                Ok(_) => "its stream is out of sync".to_owned(),
                Err(error) => error.to_string(),
            };
            self.close_lane(lane, LaneEnd::Failed(&cause));
        }
    }

    /// Schedules an acknowledgement of received chunks, as nothing may be sent soon.
    fn plan_ack(&mut self, key: LaneKey) {
        let due_ns = self.state.now_ns + ACK_NS;
        let Some(traffic) = self.traffic(key) else { return };
        if std::mem::take(&mut traffic.has_sent) && !traffic.is_ack_due {
            traffic.is_ack_due = true;
            self.state.acks_due.push_back((key, due_ns));
        }
    }

    /// Makes kernels acknowledge chunks on lanes where nothing was sent since.
    pub(super) fn quickack_lanes(&mut self, until_ns: u64) {
        while let Some(&(key, due_ns)) = self.state.acks_due.front()
            && due_ns <= until_ns
        {
            self.state.acks_due.pop_front();
            let traffic = self.traffic(key);
            if traffic.is_some_and(|traffic| std::mem::take(&mut traffic.is_ack_due)) {
                self.driver.quickack(key);
            }
        }
    }

    /// Closes lanes whose chunks are not acknowledged: a path may pass short packets and drop long
    /// ones, and a network may drop a single connection. A suspended peer acknowledges, since its
    /// kernel does. Ranges granted by the peer on them are granted again, and a send that waits for
    /// nothing else ends.
    ///
    /// RR-LANE-7, RR-LANE-8.
    pub(super) fn check_lanes(&mut self) {
        for index in 0..self.state.lane_keys.len() {
            let Some(key) = self.state.lane_keys[index] else { continue };
            let Some(Role::Bulk { lane, traffic }) = self.state.roles.get_mut(key) else {
                continue;
            };
            let lane = *lane;
            if !traffic.silence.is_owed() {
                continue;
            }
            let owed = match self.driver.unacked(key) {
                Ok(owed) => owed,
                Err(error) => {
                    self.close_lane(lane, LaneEnd::Failed(&error.to_string()));
                    continue;
                }
            };
            let (now_ns, patience) = (self.state.now_ns, self.patience_with(lane));
            let Some(traffic) = self.traffic(key) else { continue };
            let silence = traffic.silence.observe(now_ns, owed, patience);
            let over = silence.filter(|&silence| silence >= patience);
            let Some(bulk) = self.state.core.lanes().get(lane) else { continue };
            let (place, number) = ((bulk.session, bulk.path), bulk.number);
            if let Some(lost) = self.find_lost_segments(key, place, owed, over.is_some()) {
                self.replace_lane(lane, &lost);
            } else if let Some(silence) = over {
                self.state.core.with(place.0, |it, cx| it.announce_lane_lost(cx, number));
                let cause = format!("unacknowledged for {} ms", silence.as_millis());
                self.close_lane(lane, LaneEnd::Failed(&cause));
            }
        }
    }

    fn patience_with(&self, lane: Id) -> Duration {
        let lane = self.state.core.lane(lane);
        let has_another = lane.is_some_and(|(it, bulk)| it.rails.has_usable_beside(bulk.path));
        patience(self.state.config.peer_timeout, has_another)
    }

    /// Handles an idle bulk lane that became readable: it was closed, or is out of sync.
    ///
    /// RR-LANE-3.
    pub(super) fn handle_bulk_readable(&mut self, key: LaneKey, lane: Id, is_receiving: bool) {
        let is_expecting =
            self.state.core.lanes().get(lane).is_some_and(|lane| !lane.incoming.is_empty());
        if is_receiving || is_expecting {
            // The recv of the chunk reports the result.
            return;
        }
        let mut byte = [0];
        match self.driver.recv(key, &mut byte) {
            Ok(0) => self.close_lane(lane, LaneEnd::ByPeer),
            Ok(_) => self.close_lane(lane, LaneEnd::Failed("unexpected data")),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.watch(key, Interest::Readable);
            }
            Err(error) => self.close_lane(lane, LaneEnd::Failed(&error.to_string())),
        }
    }

    /// Ends a lane because its path is unreliable, as the peer reports if it `is_reported`, or
    /// because another one replaces it.
    pub(super) fn abandon_lane(&mut self, lane: Id, is_reported: bool) {
        if is_reported {
            let state = &mut *self.state;
            state.paths.suspect_path_of(&mut state.core, state.now_ns, lane);
        }
        self.close_lane(lane, LaneEnd::Abandoned);
    }

    /// Closes a lane that is not used any more. A lane whose bytes the peer's kernel has not
    /// acknowledged stays: they may be lost, which [`Self::check_lanes`] finds out, while nothing
    /// would report a connection that is closed with them.
    ///
    /// RR-LANE-5.
    pub(super) fn close_unused_lane(&mut self, lane: Id) {
        let key = self.key_of(lane);
        let owing = key.filter(|&key| self.traffic(key).is_some_and(|it| it.silence.is_owed()));
        let unacked = owing.map(|key| self.driver.unacked(key));
        if !matches!(unacked, Some(Ok(Unacked::Answer { .. } | Unacked::Later))) {
            self.close_lane(lane, LaneEnd::Unused);
        }
    }

    pub(super) fn close_lane(&mut self, lane: Id, end: LaneEnd<'_>) {
        if let Some(key) = self.key_of(lane) {
            if let Some(bulk) = self.state.core.lanes().get(lane) {
                let (session, at) = (bulk.session, bulk.path);
                self.keep_figures(session, at, key);
            }
            self.set_lane_key(lane, None);
            let traffic = self.traffic(key).map_or(Late::NONE, std::mem::take);
            self.state.roles.insert(key, Role::Closing { lane: Some(lane), traffic });
            let mode = match end {
                LaneEnd::Unused => CloseMode::Graceful,
                // A peer that closed reads no more: data left in the socket would keep memory from
                // being released for as long as the path delays it.
                LaneEnd::ByPeer | LaneEnd::Abandoned | LaneEnd::Failed(_) => CloseMode::Reset,
            };
            self.driver.close(key, mode);
        }
        let (is_failure, cause) = match end {
            LaneEnd::Unused => (false, "idle"),
            LaneEnd::ByPeer => (false, "closed by the peer"),
            LaneEnd::Abandoned => (false, "its path fails, or it is replaced"),
            LaneEnd::Failed(cause) => (true, cause),
        };
        tracing::debug!(is_failure, "bulk lane closed: {cause}");
        let state = &mut *self.state;
        let now_ns = state.now_ns;
        state.core.lane_lost(lane, is_failure, cause, now_ns, &mut state.completions);
    }

    pub(super) fn handle_writable(&mut self, key: LaneKey) {
        if let Some(&mut Role::Control { session }) = self.state.roles.get_mut(key) {
            self.control(session).is_blocked = false;
            self.state.blocked.retain(|&it| it != session);
            self.flush(session);
            self.driver.flush_datagrams();
        }
    }
}
