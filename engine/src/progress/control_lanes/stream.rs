//! Segments on the control connection.
//!
//! All of a session use it while no path carries them, or where there is none; long ones also while
//! the connection is on the primary path.
//!
//! ```text
//!  short ──> path, if one is open ──> datagrams
//!      \___ otherwise ___
//!                        v
//!  long  ──────────────> unsent ──> TCP
//! ```
//!
//! A segment that is alone, or long, is passed to the kernel from where it was gathered, or, if
//! nothing is ahead of it, from the user's memory before it is gathered; `unsent` has several short
//! ones, and what the kernel did not take. With a path a turn sends at most
//! [`LONG_BYTES_PER_TURN`], and short segments go first.

use std::io::{self, ErrorKind};

use super::{ControlConnection, ControlLanes};
use crate::driver::AnyDriver;
use crate::progress::context::LaneCx;
use crate::progress::traits::{Interest, LaneKey};
use crate::proto::core::Core;
use crate::proto::ready::Work;
use crate::proto::session::ControlFrame;
use crate::proto::session::segments::{Outgoing, append_segment};

/// Bytes of long segments that a session sends in one turn, in whole segments: they delay short
/// messages.
const LONG_BYTES_PER_TURN: usize = 64 << 10;

/// Approximate number of bytes of short segments that are passed to the kernel in one call.
const CALL_BYTES: usize = 64 << 10;

/// Length from which a segment is passed to the kernel in a call of its own: that costs less than
/// its copy.
const ALONE_BYTES_MIN: usize = 8 << 10;

/// Result of sending the rest of a partially sent segment.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::progress) enum SentRest {
    /// The kernel has it all.
    Taken,
    /// It took no more, or there is no lane.
    Blocked,
}

impl ControlConnection {
    /// Returns the bytes of long segments that may still be sent in turn `poll`.
    pub(in crate::progress) fn long_bytes_left(&self, poll: u64) -> usize {
        if self.long_poll == poll { self.long_bytes_left as usize } else { LONG_BYTES_PER_TURN }
    }

    /// Counts bytes of long segments sent in turn `poll`.
    pub(in crate::progress) fn count_long(&mut self, poll: u64, bytes: usize) {
        self.long_bytes_left = self.long_bytes_left(poll).saturating_sub(bytes) as u32;
        self.long_poll = poll;
    }
}

impl ControlConnection {
    /// Passes a segment to the kernel if nothing is ahead of it and it is worth a call of its own;
    /// `unsent` keeps what the kernel does not take. Returns how much it takes. An error is
    /// detected with the next call.
    #[inline]
    pub(in crate::progress) fn send_segment(
        &mut self,
        driver: &mut AnyDriver,
        lane: LaneKey,
        (segment, has_checksums): (Outgoing<'_>, bool),
    ) -> usize {
        let is_alone = segment.is_last || segment.bytes.len() >= ALONE_BYTES_MIN;
        if has_checksums || !is_alone || !self.unsent.is_empty() {
            append_segment(&mut self.unsent, segment.bytes, has_checksums);
            return 0;
        }
        let sent = driver.send(lane, segment.bytes).unwrap_or(0);
        self.unsent.extend_from_slice(&segment.bytes[sent..]);
        sent
    }
}

impl LaneCx<'_> {
    /// Notes a long segment on the stream of a session.
    pub(in crate::progress) fn note_streamed(&mut self, session: u32) {
        self.paths.note_streamed(session);
        self.paths.watch_stream(*self.now_ns, session);
    }
}

impl ControlLanes {
    /// Notes that data was sent on the control lane of a session.
    fn expect_answer(&mut self, session: u32, core: &mut Core) {
        core.with(session, |it, _| it.control_lane_mut().expect_answer());
        self.await_something(session);
    }

    /// Sends all segments of a session on its control connection. Returns whether there were any;
    /// an error is that of the connection.
    pub(in crate::progress) fn send_segments(
        &mut self,
        session: u32,
        core: &mut Core,
        driver: &mut AnyDriver,
    ) -> io::Result<bool> {
        let mut happened = false;
        while let Some(lane) = self.of(session).writable() {
            let control = self.of(session);
            let mut sent = 0;
            let is_new = control.unsent.is_empty();
            if is_new {
                let entered = core.enter(session);
                let next = entered.and_then(|(it, cx)| it.poll_segment_for_stream(cx));
                let Some(next) = next else { return Ok(happened) };
                sent = control.send_segment(driver, lane, next);
            }
            if sent > 0 {
                happened = true;
                core.with(session, |it, _| it.control_lane_mut().expect_answer());
            }
            let unsent = &mut control.unsent;
            // A long one has a call of its own.
            while !unsent.is_empty()
                && unsent.len() < CALL_BYTES
                && core.with(session, |it, cx| it.append_next_segment(cx, unsent, false))
                    == Some(true)
            {}
            if is_new {
                self.await_something(session);
            }
            match self.send_rest(session, core, driver)? {
                SentRest::Taken => happened = true,
                SentRest::Blocked => break,
            }
        }
        Ok(happened)
    }

    /// Sends long segments of a session, as many as turn `poll` may. `may_begin`: also new ones.
    pub(in crate::progress) fn send_long(
        &mut self,
        session: u32,
        (poll, may_begin): (u64, bool),
        cx: &mut LaneCx<'_>,
    ) -> io::Result<bool> {
        let mut happened = false;
        while let Some(lane) = self.of(session).writable() {
            let control = self.of(session);
            if control.unsent.is_empty() {
                if !may_begin {
                    break;
                }
                if control.long_bytes_left(poll) == 0 {
                    if cx.core.session(session).is_some_and(|it| it.segments().has_long()) {
                        cx.core.with(session, |_, cx| cx.flush_after_others());
                    }
                    break;
                }
                let entered = cx.core.enter(session);
                let Some((bytes, has_checksums)) = entered.and_then(|(it, cx)| it.poll_long(cx))
                else {
                    break;
                };
                control.count_long(poll, bytes.len());
                let sent = if has_checksums {
                    append_segment(&mut control.unsent, bytes, true);
                    0
                } else {
                    // An error is detected again below.
                    let sent = cx.driver.send(lane, bytes).unwrap_or(0);
                    control.unsent.extend_from_slice(&bytes[sent..]);
                    sent
                };
                happened |= sent > 0;
                let is_whole = control.unsent.is_empty();
                if sent > 0 {
                    self.expect_answer(session, cx.core);
                }
                cx.note_streamed(session);
                if is_whole {
                    continue;
                }
            }
            match self.send_rest(session, cx.core, cx.driver)? {
                SentRest::Taken => happened = true,
                SentRest::Blocked => break,
            }
        }
        Ok(happened)
    }

    /// Sends the long segment staged last, if it is alone, as far as the kernel takes it; then
    /// copies its payload `bytes` into its segment. Ends no operation.
    pub(in crate::progress) fn send_uncopied(
        &mut self,
        session: u32,
        bytes: &[u8],
        cx: &mut LaneCx<'_>,
    ) {
        cx.completions.count_copied(bytes.len() as u64);
        cx.core.shared_mut().ready_mut().take_if_latest(session, Work::Flush);
        let control = self.of(session);
        let (mut sent, mut length) = (0, 0);
        if let Some(lane) = control.lane
            && let Some((it, of_it)) = cx.core.enter(session)
            && let Some((whole, _)) = it.poll_long(of_it)
        {
            length = whole.len();
            let head = &whole[..length - bytes.len()];
            // An error is detected again below.
            sent = cx.driver.send_both(lane, head, bytes).unwrap_or(0);
        }
        let Some((it, _)) = cx.core.enter(session) else {
            debug_assert!(false, "a message was staged for the session");
            return;
        };
        let whole = it.segments_mut().fill_last(bytes);
        if sent < length {
            control.unsent.extend_from_slice(&whole[sent..]);
        }
        if sent > 0 {
            self.expect_answer(session, cx.core);
        }
        cx.note_streamed(session);
        cx.core.with(session, |it, cx| it.segments().flush_if_waiting(cx));
    }

    /// Sends the rest of a partially sent segment, which has to follow, whichever lane is next.
    pub(in crate::progress) fn send_rest(
        &mut self,
        session: u32,
        core: &mut Core,
        driver: &mut AnyDriver,
    ) -> io::Result<SentRest> {
        while let Some(lane) = self.of(session).writable() {
            let control = self.of(session);
            if control.unsent.is_empty() {
                return Ok(SentRest::Taken);
            }
            match driver.send(lane, &control.unsent) {
                Ok(sent) => {
                    control.unsent.drain(..sent);
                    self.expect_answer(session, core);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    control.is_blocked = true;
                    self.blocked.push(session);
                    if !planted!(ForgetWritable)
                        && let Err(error) = driver.watch(lane, Interest::Writable)
                    {
                        tracing::warn!("cannot watch a lane: {error}");
                    }
                    return Ok(SentRest::Blocked);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(SentRest::Blocked)
    }

    /// Sends a goodbye on the control lane of a session, as far as the kernel takes it; the lane is
    /// closed next. Returns `false` if there is none.
    pub(in crate::progress) fn send_goodbye(
        &mut self,
        session: u32,
        goodbye: ControlFrame,
        core: &mut Core,
        driver: &mut AnyDriver,
    ) -> bool {
        core.with(session, |it, mut cx| it.send_control(&mut cx, goodbye));
        let control = self.of(session);
        let Some(lane) = control.lane else { return false };
        // The goodbye has to follow the rest of a partially sent segment. Not `send_segments`: a
        // broken lane would be taken for the cause.
        let unsent = &mut control.unsent;
        while !unsent.is_empty()
            || core.with(session, |it, cx| it.append_next_segment(cx, unsent, true)) == Some(true)
        {
            match driver.send(lane, unsent) {
                Ok(sent) => drop(unsent.drain(..sent)),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        true
    }

    /// Sends the final acknowledgement of a session that a goodbye ended, as far as the kernel
    /// takes it. Its lane is closed next.
    pub(in crate::progress) fn send_final_ack(
        &mut self,
        session: u32,
        core: &mut Core,
        driver: &mut AnyDriver,
    ) {
        let ack =
            core.with(session, |it, _| it.segments_mut().take_final_ack()).unwrap_or_default();
        let control = self.of(session);
        let Some(lane) = control.lane.filter(|_| !ack.is_empty()) else { return };
        // The rest of a partially sent segment has to precede it.
        let mut unsent = std::mem::take(&mut control.unsent);
        unsent.extend_from_slice(&ack);
        let mut at = 0;
        while at < unsent.len() {
            match driver.send(lane, &unsent[at..]) {
                Ok(sent) => at += sent,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return,
            }
        }
    }
}
