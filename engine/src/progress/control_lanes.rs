//! Control connections of sessions: which of them are polled, watched, blocked or missing.

mod place;
mod receive;
mod stream;

use self::place::MessageInPlace;
use super::context::LaneCx;
use super::partial::{Partial, ReceiveBuffer, receive_buffer};
use super::traits::{Interest, LaneKey};
use crate::proto::core::Core;
use crate::proto::paths::{PathTable, Paths};
use crate::proto::ready::Work;
use crate::proto::table::reserve_for;

pub(super) use receive::StreamRead;
pub(super) use stream::SentRest;

/// Turns without bytes after which a polled lane is watched: many more than pass between the
/// messages of an exchange (with 64, of 0.1 us where frames are polled, polling stopped between two
/// of 16 KiB), few enough that a long wait is not spent in system calls.
const COLD_TURNS: u32 = 256;

/// Checks of peers between two checks of a lane without unacknowledged data: with many sessions
/// each round checks a share.
const IDLE_ROUNDS: u32 = 10;

/// The loop's side of a session.
#[derive(Debug, Default)]
pub(crate) struct ControlConnection {
    /// Its control lane.
    lane: Option<LaneKey>,
    /// An attempt to connect it.
    attempt: Option<LaneKey>,
    /// The driver reports when it is readable.
    is_watched: bool,
    /// The socket buffer is full; the driver reports when it is writable.
    is_blocked: bool,
    is_polled: bool,
    idle_turns: u32,
    /// A segment waits for space in its ring.
    is_refused: bool,
    /// It is in the list of sessions that expect data on the control lane.
    is_awaited: bool,
    /// It is in the list of sessions that wait for driver space, on any path.
    awaits_room: bool,
    /// Position of the path of the attempt to connect it.
    attempt_at: u8,
    /// Another control lane that is being opened.
    moving: Option<LaneKey>,
    /// The turn in which a message was last sent at once: the others of a burst coalesce.
    flushed_poll: u64,
    /// Segments for it, or the rest of one, that the kernel has not taken.
    unsent: Vec<u8>,
    /// The session has no datagrams, and is counted as such.
    is_stream: bool,
    /// The turn in which long segments were last sent, and the bytes of them that it still may
    /// send.
    long_poll: u64,
    long_bytes_left: u32,
    /// Long segments use the control lane, and others the path.
    is_streaming: bool,
    /// An incomplete received segment.
    partial: Partial,
    /// A message of which the rest is received into its receive.
    in_place: Option<Box<MessageInPlace>>,
    /// The latest message was received so: a read stops soon after the head of the next one.
    stops_at_heads: bool,
}

impl ControlConnection {
    /// Returns the connection.
    pub(super) fn lane(&self) -> Option<LaneKey> {
        self.lane
    }

    /// Returns whether the kernel has not taken all of the segments for it.
    #[inline]
    pub(super) fn has_unsent(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// Returns the connection, if it takes data, as far as is known.
    #[inline]
    pub(super) fn writable(&self) -> Option<LaneKey> {
        self.lane.filter(|_| !self.is_blocked)
    }

    /// Adds the session to those that expect data on the control lane.
    #[inline]
    fn await_something(&mut self, session: u32, awaited: &mut Vec<u32>) {
        if !std::mem::replace(&mut self.is_awaited, true) {
            awaited.push(session);
        }
    }

    /// Returns whether the kernel takes data at once, as far as is known, and nothing is ahead of
    /// it.
    pub(super) fn is_free(&self) -> bool {
        self.lane.is_some() && !self.is_blocked && self.unsent.is_empty()
    }

    /// Returns whether no message was sent at once in turn `poll`.
    pub(super) fn is_unused_in(&self, poll: u64) -> bool {
        self.flushed_poll != poll
    }

    /// Returns whether no message was sent at once in turn `poll`; now one is.
    #[inline]
    pub(super) fn is_first_of_turn(&mut self, poll: u64) -> bool {
        std::mem::replace(&mut self.flushed_poll, poll) != poll
    }

    /// Notes whether a segment waits for space in its ring.
    #[inline]
    pub(super) fn set_refused(&mut self, is_refused: bool) {
        self.is_refused = is_refused;
    }

    /// Returns whether a segment waits for space in its ring.
    pub(super) fn is_refused(&self) -> bool {
        self.is_refused
    }

    /// Notes whether the session waits for driver space. Returns whether it did before.
    pub(super) fn set_awaits_room(&mut self, awaits_room: bool) -> bool {
        std::mem::replace(&mut self.awaits_room, awaits_room)
    }

    /// Returns whether the last received segment is incomplete.
    pub(super) fn has_partial(&self) -> bool {
        !self.partial.is_empty() || self.in_place.is_some()
    }

    /// Returns the incomplete received segment.
    #[cfg(test)]
    pub(crate) fn partial(&self) -> &Partial {
        &self.partial
    }

    /// Returns the bytes of an incomplete message that are in its receive; `None`: it is not
    /// received so.
    #[cfg(test)]
    pub(crate) fn placed_bytes(&self) -> Option<usize> {
        self.in_place.as_ref()?.placed_bytes()
    }

    /// Appends to the incomplete received segment.
    #[cfg(test)]
    pub(crate) fn extend_partial(&mut self, bytes: &[u8]) {
        self.partial.extend(bytes);
    }

    /// Returns the memory for segments that the kernel has not taken.
    #[cfg(test)]
    pub(crate) fn unsent(&self) -> &Vec<u8> {
        &self.unsent
    }

    /// Returns whether there is a connection that would show the peer's end.
    #[cfg(test)]
    pub(crate) fn has_lane(&self) -> bool {
        self.lane.is_some()
    }
}

/// The control connections of all sessions.
#[derive(Debug)]
pub(crate) struct ControlLanes {
    /// By session slot.
    all: Vec<ControlConnection>,
    /// Sessions whose control lane is polled.
    polled: Vec<u32>,
    /// Sessions that expect an acknowledgement, or the rest of a segment, on their control lane.
    awaited: Vec<u32>,
    /// Sessions with one path that have lost their control lane, and some that have one again.
    without_lane: Vec<u32>,
    /// Sessions with a blocked control lane, and some that are writable again.
    blocked: Vec<u32>,
    /// Number of sessions without datagrams: the background thread is not woken when their peers
    /// ask.
    streams: u32,
    /// Number of checks of idle lanes.
    rounds: u32,
    receive_buffer: ReceiveBuffer,
}

#[cold]
fn grow(all: &mut Vec<ControlConnection>, len: usize) {
    reserve_for(all, len);
    all.resize_with(len, ControlConnection::default);
}

impl ControlLanes {
    /// Creates the owner, with a receive buffer of so many bytes.
    pub(super) fn new(receive_buffer_bytes: usize) -> Self {
        Self {
            all: Vec::new(),
            polled: Vec::new(),
            awaited: Vec::new(),
            without_lane: Vec::new(),
            blocked: Vec::new(),
            streams: 0,
            rounds: 0,
            receive_buffer: receive_buffer(receive_buffer_bytes),
        }
    }

    /// Returns the loop's side of a session; `None`: it never had a control lane.
    #[inline]
    pub(crate) fn get(&self, session: u32) -> Option<&ControlConnection> {
        self.all.get(session as usize)
    }

    /// Returns the loop's side of a session, created if there is none.
    #[inline]
    pub(crate) fn of(&mut self, session: u32) -> &mut ControlConnection {
        let index = session as usize;
        if index >= self.all.len() {
            grow(&mut self.all, index + 1);
        }
        &mut self.all[index]
    }

    /// Returns the number of sessions that have had one.
    pub(super) fn slots(&self) -> u32 {
        self.all.len() as u32
    }

    /// Returns the connection of a session.
    pub(super) fn lane_of(&self, session: u32) -> Option<LaneKey> {
        self.get(session)?.lane
    }

    /// Returns whether the kernel has not taken all of the segments for a session.
    pub(super) fn has_unsent(&self, session: u32) -> bool {
        self.get(session).is_some_and(ControlConnection::has_unsent)
    }

    /// Returns whether the kernel has taken all segments of all sessions.
    pub(super) fn are_flushed(&self) -> bool {
        !self.all.iter().any(ControlConnection::has_unsent)
    }

    /// Replaces the keys of another driver, which watches nothing yet.
    pub(super) fn rename(&mut self, new_key: impl Fn(LaneKey) -> Option<LaneKey>) {
        for control in &mut self.all {
            control.lane = control.lane.and_then(&new_key);
            control.is_watched = false;
        }
    }

    /// Frees memory of a session that has become idle.
    pub(super) fn shrink(&mut self, session: u32) {
        if let Some(control) = self.all.get_mut(session as usize)
            && control.unsent.is_empty()
        {
            control.unsent = Vec::new();
        }
    }

    // ---- Connections ----

    /// Notes an attempt to connect a session, by the path at a position.
    pub(super) fn begin_attempt(&mut self, session: u32, key: LaneKey, at: u8) {
        let control = self.of(session);
        (control.attempt, control.attempt_at) = (Some(key), at);
    }

    /// Ends the attempt to connect a session, and returns it.
    pub(super) fn take_attempt(&mut self, session: u32) -> Option<LaneKey> {
        self.of(session).attempt.take()
    }

    /// Returns the position of the path of the last attempt to connect a session.
    pub(super) fn attempt_at(&mut self, session: u32) -> u8 {
        self.of(session).attempt_at
    }

    /// Returns the other control lane of a session that is being opened.
    pub(super) fn moving(&self, session: u32) -> Option<LaneKey> {
        self.get(session)?.moving
    }

    /// Notes another control lane of a session that is being opened.
    pub(super) fn begin_move(&mut self, session: u32, key: LaneKey) {
        self.of(session).moving = Some(key);
    }

    /// Notes that no other control lane of a session is being opened any more; returns that one.
    pub(super) fn take_moving(&mut self, session: u32) -> Option<LaneKey> {
        self.of(session).moving.take()
    }

    /// Begins a session on a connection.
    pub(super) fn begin(&mut self, session: u32, key: LaneKey) {
        self.end_stream(session);
        let control = self.of(session);
        let attempt = control.attempt;
        *control = ControlConnection {
            lane: Some(key),
            attempt,
            is_awaited: true,
            ..ControlConnection::default()
        };
        self.awaited.push(session);
        self.polled.retain(|&it| it != session);
    }

    /// Makes a connection the control lane of a session that has none.
    pub(super) fn replace(&mut self, session: u32, key: LaneKey) {
        self.of(session).lane = Some(key);
    }

    /// Removes the control lane of a session, which continues without it.
    pub(super) fn take_lane(&mut self, session: u32) -> Option<LaneKey> {
        self.polled.retain(|&it| it != session);
        self.blocked.retain(|&it| it != session);
        let control = self.of(session);
        (control.is_polled, control.is_watched, control.is_blocked) = (false, false, false);
        control.partial = Partial::default();
        control.in_place = None;
        control.unsent.clear();
        control.lane.take()
    }

    /// Ends a session. Returns its control lane.
    pub(super) fn end(&mut self, session: u32) -> Option<LaneKey> {
        self.polled.retain(|&it| it != session);
        self.blocked.retain(|&it| it != session);
        self.end_stream(session);
        std::mem::take(self.of(session)).lane
    }

    /// Counts a session as one without datagrams.
    pub(super) fn begin_stream(&mut self, session: u32) {
        if !std::mem::replace(&mut self.of(session).is_stream, true) {
            self.streams += 1;
        }
    }

    fn end_stream(&mut self, session: u32) {
        if std::mem::take(&mut self.of(session).is_stream) {
            self.streams -= 1;
        }
    }

    /// Returns whether there is a session without datagrams.
    pub(super) fn has_streams(&self) -> bool {
        self.streams > 0
    }

    // ---- Polling and watching ----

    /// Returns the session at a position among those whose control lane is polled.
    #[inline]
    pub(super) fn polled(&self, index: usize) -> Option<u32> {
        self.polled.get(index).copied()
    }

    /// Notes that a polled lane was read, and whether it had bytes. Returns whether it is polled
    /// no more.
    #[inline]
    pub(super) fn stops_polling(
        &mut self,
        session: u32,
        got: bool,
        has_path: bool,
        polls_for_free: bool,
    ) -> bool {
        // A driver whose empty polls cost a system call gains nothing by watching one lane.
        let may_stop = self.polled.len() > 1 || polls_for_free || has_path;
        let control = self.of(session);
        control.idle_turns = if got { 0 } else { control.idle_turns + 1 };
        let is_cold = (may_stop
            && (control.idle_turns > COLD_TURNS || rare!("a cold control lane", 50)))
            || (has_path && !control.is_streaming);
        is_cold || !control.is_polled
    }

    /// Watches a lane instead of polling it.
    pub(super) fn stop_polling(&mut self, session: u32, cx: &mut LaneCx<'_>) {
        self.polled.retain(|&it| it != session);
        let control = self.of(session);
        (control.is_polled, control.is_streaming) = (false, false);
        control.unsent.shrink_to(1024);
        cx.acknowledge_received(session);
        self.watch(session, cx);
    }

    /// Polls a lane if the limit permits, or watches it.
    pub(super) fn poll(&mut self, session: u32, cx: &mut LaneCx<'_>) {
        let control = self.of(session);
        if control.is_polled || control.lane.is_none() {
            return;
        }
        let is_wanted = control.is_streaming || !cx.paths.of(session).is_some_and(Paths::are_open);
        if is_wanted && self.polled.len() < cx.config.hot_lanes.max(1) {
            let control = self.of(session);
            (control.is_polled, control.idle_turns) = (true, 0);
            self.polled.push(session);
        } else {
            cx.acknowledge_received(session);
            self.watch(session, cx);
        }
    }

    /// Lets the driver report when a lane is readable.
    pub(super) fn watch(&mut self, session: u32, cx: &mut LaneCx<'_>) {
        let control = self.of(session);
        if let Some(lane) = control.lane
            && !control.is_watched
        {
            control.is_watched = true;
            control.partial.shrink();
            cx.watch(lane, Interest::Readable);
        }
    }

    /// Watches everything that is polled. Bytes that arrived meanwhile are reported at once,
    /// because a watch is level-triggered.
    pub(super) fn watch_polled(&mut self, cx: &mut LaneCx<'_>) {
        let mut polled = std::mem::take(&mut self.polled);
        for session in polled.drain(..) {
            self.of(session).is_polled = false;
            self.watch(session, cx);
        }
        polled.append(&mut self.polled);
        self.polled = polled;
    }

    /// Notes that the driver has reported a readable lane, which it watches no more.
    pub(super) fn note_readable(&mut self, session: u32) {
        self.of(session).is_watched = false;
    }

    // ---- Full sockets ----

    /// Notes that the kernel takes data of a session again.
    pub(super) fn unblock(&mut self, session: u32) {
        self.of(session).is_blocked = false;
        self.blocked.retain(|&it| it != session);
    }

    /// Retries all lanes that were full.
    pub(super) fn unblock_all(&mut self, core: &mut Core) {
        let mut blocked = std::mem::take(&mut self.blocked);
        for session in blocked.drain(..) {
            if std::mem::take(&mut self.of(session).is_blocked) {
                core.shared_mut().ready_mut().add(session, Work::Flush);
            }
        }
        blocked.append(&mut self.blocked);
        self.blocked = blocked;
    }

    /// Returns whether the kernel takes no data of some session.
    pub(super) fn are_some_blocked(&self) -> bool {
        self.blocked.iter().any(|&it| self.all[it as usize].is_blocked)
    }

    // ---- Checks ----

    /// Adds a session to those that expect data on the control lane, until none is expected.
    #[inline]
    pub(super) fn await_something(&mut self, session: u32) {
        let index = session as usize;
        if index >= self.all.len() {
            grow(&mut self.all, index + 1);
        }
        self.all[index].await_something(session, &mut self.awaited);
    }

    /// Takes the sessions that expect data on their control lane, in order; [`Self::keep_awaited`]
    /// puts back those that still do.
    pub(super) fn take_awaited(&mut self) -> Vec<u32> {
        let mut awaited = std::mem::take(&mut self.awaited);
        awaited.sort_unstable();
        awaited.dedup();
        awaited
    }

    /// Returns whether a session among these still expects data.
    pub(super) fn awaits_more(&mut self, session: u32, core: &Core) -> bool {
        let known = core.session(session);
        let control = self.of(session);
        control.is_awaited = (control.lane.is_some()
            && known.is_some_and(|it| it.control_lane().is_answer_due()))
            || control.has_partial()
            || known.is_some_and(|it| it.segments().holds_long());
        control.is_awaited
    }

    /// Puts sessions back that still expect data.
    pub(super) fn keep_awaited(&mut self, mut awaited: Vec<u32>) {
        awaited.append(&mut self.awaited);
        self.awaited = awaited;
    }

    /// Returns the sessions whose lanes this round checks although they are idle.
    pub(super) fn next_idle_share(&mut self) -> impl Iterator<Item = u32> + use<> {
        self.rounds = self.rounds.wrapping_add(1);
        let first = (IDLE_ROUNDS - self.rounds % IDLE_ROUNDS) % IDLE_ROUNDS;
        (first..self.slots()).step_by(IDLE_ROUNDS as usize)
    }

    /// Notes that a session with one path has lost its control lane.
    pub(super) fn note_without_lane(&mut self, session: u32) {
        self.without_lane.push(session);
    }

    /// Returns sessions with one path that have lost their control lane.
    pub(super) fn without_lane(&mut self, core: &Core, paths: &PathTable) -> Vec<u32> {
        self.without_lane.sort_unstable();
        self.without_lane.dedup();
        self.without_lane.retain(|&session| {
            core.session(session).is_some_and(|known| known.is_outlived())
                && paths.of(session).is_some_and(|paths| !paths.are_several())
        });
        self.without_lane.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_without_datagrams_are_counted_once() {
        let mut controls = ControlLanes::new(0);
        assert!(!controls.has_streams());
        for session in 0..2 {
            controls.begin_stream(session);
            controls.begin_stream(session);
        }
        for session in 0..2 {
            assert!(controls.has_streams());
            controls.end(session);
            controls.end(session);
        }
        assert!(!controls.has_streams());
    }
}
