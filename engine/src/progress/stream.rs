//! Segments by the control lane of a session in datagram mode.
//!
//! All of them go there while the session's path carries none; and the long ones while that lane is
//! on this path.
//!
//! ```text
//!  short ──> path, if it is open ──> datagrams
//!      \___ otherwise ___
//!                        v
//!  long  ──────────────> unsent ──> TCP
//! ```
//!
//! A long segment is handed to the kernel from where it was gathered, or, if nothing is in front of
//! it, from the user's memory before it is gathered; `unsent` has what the kernel did not take of
//! it. A turn sends [`LONG_BYTES_PER_TURN`] at the most, and short segments go first. Its receiver
//! acknowledges it with what it sends next, when nothing has come for some turns, or when
//! [`OWED_BYTES_MAX`] have come.

use std::io::ErrorKind;

use super::control::ControlLane;
use super::engine::{Engine, EngineState};
use super::traits::Interest;
use crate::proto::datagram::append_segment;
use crate::proto::hint::Hint;
use crate::proto::paths::CARRIER;
use crate::proto::send::SendRequest;
use crate::proto::table::Id;

/// Bytes of long segments that a session sends in one turn, in whole segments: what short messages
/// wait for.
const LONG_BYTES_PER_TURN: usize = 64 << 10;

/// Bytes that come by the stream before they are acknowledged though more is coming.
const OWED_BYTES_MAX: u32 = 128 << 10;

/// Messages from that length on are sent before they are copied, in bytes: less is copied sooner
/// than a second piece is sent.
const SENT_BEFORE_COPY_BYTES_MIN: usize = 4 << 10;

/// What became of what the kernel had the beginning of.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Rest {
    /// The kernel has it all.
    Taken,
    /// It took no more, or there is no lane.
    Blocked,
    /// The lane failed, and the session with it, perhaps.
    Failed,
}

impl ControlLane {
    /// Bytes of long segments that may still be sent in turn `poll`.
    fn long_bytes_left(&self, poll: u64) -> usize {
        if self.long_poll == poll { self.long_bytes_left } else { LONG_BYTES_PER_TURN }
    }

    /// So many bytes of long segments are sent in turn `poll`.
    pub(super) fn count_long(&mut self, poll: u64, bytes: usize) {
        self.long_bytes_left = self.long_bytes_left(poll).saturating_sub(bytes);
        self.long_poll = poll;
    }
}

impl EngineState {
    /// A long segment went to the stream of a session; the kernel took `sent` bytes of it at once.
    fn note_streamed(&mut self, session: u32, sent: usize) {
        if sent > 0 {
            self.expect_answer(session);
        }
        self.paths.note_streamed(session);
        self.paths.watch_stream(self.now_ns, session);
    }
}

impl Engine {
    /// Whether the kernel takes what is sent by the lane of a session at once, as far as is known,
    /// and nothing is in front of it there, and datagrams take the rest.
    fn is_stream_free(&self, session: u32, control: &ControlLane) -> bool {
        control.lane.is_some()
            && !control.is_blocked
            && control.unsent.is_empty()
            && self.is_by_datagram(session)
    }

    /// Whether a long segment may go by the lane: what waits for a suspect path goes by the next.
    fn may_begin_long(&self, session: u32) -> bool {
        let paths = self.state.paths.of(session);
        paths.is_none_or(|paths| !paths.are_several() || !paths.is_suspect(paths.stream_at()))
    }

    /// Sends the segments of a session in datagram mode, by its path or by its TCP lane.
    pub(super) fn flush_segments(&mut self, session: u32) -> bool {
        let mut happened = false;
        let mut is_by_path = self.is_by_datagram(session);
        if is_by_path {
            let has_long = self.state.core.has_long(session);
            if has_long {
                self.await_something(session);
            }
            // What is sent first says the news, and there may be nothing else for a datagram.
            let is_alone = has_long && !self.state.core.has_short(session);
            if is_alone {
                happened = self.flush_long(session);
            }
            if !is_alone || self.state.core.is_waiting(session) {
                let is_last = self.state.core.is_dirty_alone(session);
                happened |= self.transmit(session, CARRIER, is_last);
            }
            // What was made for longer datagrams than the path takes now goes by TCP.
            is_by_path =
                self.is_by_datagram(session) && !self.is_waiting_too_long_for_path(session);
            if is_by_path && has_long && !is_alone {
                happened |= self.flush_long(session);
            }
        }
        if !is_by_path {
            happened |= self.flush_by_stream(session);
        } else if !self.control(session).unsent.is_empty() {
            happened |= self.send_rest(session) == Rest::Taken;
        }
        self.end_if_left(session) || happened
    }

    /// A path carries segments no more, or takes shorter ones than wait: these go by the TCP lane.
    #[cold]
    pub(super) fn flush_what_no_path_takes(&mut self, session: u32) {
        if !self.is_by_datagram(session) || self.is_waiting_too_long_for_path(session) {
            self.flush_by_stream(session);
        }
    }

    fn await_something(&mut self, session: u32) {
        let state = &mut *self.state;
        if let Some(control) = state.controls.get_mut(session as usize) {
            control.await_something(session, &mut state.awaited);
        }
    }

    /// Sends all segments by the TCP lane.
    fn flush_by_stream(&mut self, session: u32) -> bool {
        let mut happened = false;
        self.await_something(session);
        loop {
            let state = &mut *self.state;
            let Some(control) = state.controls.get_mut(session as usize) else { return happened };
            if control.lane.is_none() || control.is_blocked {
                return happened;
            }
            let unsent = &mut control.unsent;
            if unsent.is_empty() && !state.core.poll_segment_for_stream(session, unsent) {
                return happened;
            }
            match self.send_rest(session) {
                Rest::Taken => happened = true,
                Rest::Blocked => return happened,
                Rest::Failed => return true,
            }
        }
    }

    /// Sends long segments, as many as this turn may.
    fn flush_long(&mut self, session: u32) -> bool {
        let mut happened = false;
        let poll = self.state.polls;
        let may_begin = self.may_begin_long(session);
        loop {
            let state = &mut *self.state;
            let Some(control) = state.controls.get_mut(session as usize) else { return happened };
            let Some(lane) = control.lane.filter(|_| !control.is_blocked) else { return happened };
            if control.unsent.is_empty() {
                if !may_begin {
                    return happened;
                }
                if control.long_bytes_left(poll) == 0 {
                    if state.core.has_long(session) {
                        state.core.mark_dirty_last(session);
                    }
                    return happened;
                }
                let Some((bytes, has_checksums)) = state.core.poll_long(session) else {
                    return happened;
                };
                control.count_long(poll, bytes.len());
                let sent = if has_checksums {
                    append_segment(&mut control.unsent, bytes, true);
                    0
                } else {
                    // What became of an error is asked again below.
                    let sent = self.driver.send(lane, bytes).unwrap_or(0);
                    control.unsent.extend_from_slice(&bytes[sent..]);
                    sent
                };
                happened |= sent > 0;
                let is_whole = control.unsent.is_empty();
                state.note_streamed(session, sent);
                if is_whole {
                    continue;
                }
            }
            match self.send_rest(session) {
                Rest::Taken => happened = true,
                Rest::Blocked => return happened,
                Rest::Failed => return true,
            }
        }
    }

    /// Whether a message that is posted now may go by the stream from where it lies, and be copied
    /// after that, while its receiver works on it: nothing is in front of it.
    pub(super) fn may_send_before_copy(
        &self,
        session: u32,
        request: &SendRequest,
        more: bool,
    ) -> bool {
        let state = &*self.state;
        if request.length < SENT_BEFORE_COPY_BYTES_MIN as u64 {
            return false;
        }
        let Some(control) = state.controls.get(session as usize) else { return false };
        // The others of a turn coalesce.
        let goes_now = !more && request.hint == Hint::None && control.flushed_poll != state.polls;
        self.is_stream_free(session, control)
            && goes_now
            && shortcut!("a send by a stream at once")
            && state.core.is_next_by_stream(session, request.length)
    }

    /// The session by whose stream the next part of a send may go from where it lies.
    pub(super) fn may_send_part_before_copy(&self, id: Id) -> Option<u32> {
        let state = &*self.state;
        let session = state.core.next_part_by_stream(id)?;
        let control = state.controls.get(session as usize)?;
        let is_free = self.is_stream_free(session, control) && self.may_begin_long(session);
        // What other sessions have staged is sent first.
        let has_turn = control.long_bytes_left(state.polls) > 0
            && state.core.dirty().iter().all(|&dirty| dirty == session);
        (is_free && has_turn && shortcut!("a part by a stream at once")).then_some(session)
    }

    /// Sends the message that was staged last, and is alone. `bytes` are its payload, which is not
    /// in its segment yet.
    pub(super) fn send_before_copy(&mut self, session: u32, bytes: &[u8]) {
        let polls = self.state.polls;
        self.control(session).flushed_poll = polls;
        self.send_uncopied(session, bytes);
        self.send_rest(session);
    }

    /// Sends what was staged last, and is alone, as far as the kernel takes it; then puts its
    /// payload `bytes` into its segment. Ends no operation.
    pub(super) fn send_uncopied(&mut self, session: u32, bytes: &[u8]) {
        let state = &mut *self.state;
        state.completions.copied_bytes += bytes.len() as u64;
        state.core.clean(session);
        let lane = state.controls.get(session as usize).and_then(|control| control.lane);
        let (mut sent, mut length) = (0, 0);
        if let Some(lane) = lane
            && let Some((whole, _)) = state.core.poll_long(session)
        {
            length = whole.len();
            let head = &whole[..length - bytes.len()];
            // What became of an error is asked again below.
            sent = self.driver.send_both(lane, head, bytes).unwrap_or(0);
        }
        let whole = state.core.fill_last(session, bytes);
        if sent < length
            && let Some(control) = state.controls.get_mut(session as usize)
        {
            control.unsent.extend_from_slice(&whole[sent..]);
        }
        state.note_streamed(session, sent);
        state.core.mark_dirty_if_waiting(session);
    }

    /// Sends what the kernel has the beginning of: that has to follow, whatever lane comes next.
    pub(super) fn send_rest(&mut self, session: u32) -> Rest {
        loop {
            let Some(control) = self.state.controls.get_mut(session as usize) else {
                return Rest::Failed;
            };
            let Some(lane) = control.lane.filter(|_| !control.is_blocked) else {
                return Rest::Blocked;
            };
            if control.unsent.is_empty() {
                return Rest::Taken;
            }
            match self.driver.send(lane, &control.unsent) {
                Ok(sent) => {
                    control.unsent.drain(..sent);
                    self.state.expect_answer(session);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    control.block(session, &mut self.state.blocked);
                    self.watch(lane, Interest::Writable);
                    return Rest::Blocked;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => {
                    self.handle_unsendable(session, &error);
                    return Rest::Failed;
                }
            }
        }
    }

    /// The final acknowledgement of a session that a goodbye ended, as far as the kernel takes it.
    /// Its lane is closed next.
    pub(super) fn send_final_ack(&mut self, session: u32) {
        let ack = self.state.core.take_final_ack(session);
        let control = self.control(session);
        let Some(lane) = control.lane.filter(|_| !ack.is_empty()) else { return };
        // Nothing is understood before the rest of what the peer has the beginning of.
        let mut unsent = std::mem::take(&mut control.unsent);
        unsent.extend_from_slice(&ack);
        let mut at = 0;
        while at < unsent.len() {
            match self.driver.send(lane, &unsent[at..]) {
                Ok(sent) => at += sent,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return,
            }
        }
    }

    /// Acknowledges what came by the stream of a session if nothing came for a while (`is_quiet`),
    /// or if it is much.
    ///
    /// RR-DGRAM-12.
    #[inline]
    pub(super) fn acknowledge_if_due(&mut self, session: u32, is_quiet: bool) {
        let owed = self.state.core.owed_by_stream(session);
        if owed >= OWED_BYTES_MAX || (owed > 0 && is_quiet) {
            self.state.core.acknowledge_stream(session);
        }
    }

    /// The same for all hot lanes, at once: there may be no other turn for long.
    pub(super) fn acknowledge_hot(&mut self) {
        let mut index = 0;
        while let Some(&session) = self.state.hot.get(index) {
            if self.state.core.owed_by_stream(session) > 0 {
                self.state.core.acknowledge_stream(session);
                self.flush(session);
                self.driver.flush_datagrams();
            }
            // A lane that fails is not among them any more.
            index += usize::from(self.state.hot.get(index) == Some(&session));
        }
    }
}
