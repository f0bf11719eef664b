//! Operations on the memory of a peer: put, get, atomic operations, flush.
//!
//! ```text
//!  origin                                    target
//!  PUT(key, offset, bytes) ────────────────> key valid? placed               small put
//!                          <──────────────── REPLY(status), if requested
//!  PUT RTS(key, offset, length) ───────────> key valid? pulls, as a receive  long put
//!                          <──── GRANT … ─── DONE, or REPLY(status)
//!  GET(key, offset, length) ───────────────> key valid?
//!                          <──────────────── REPLY(bytes)                    short get
//!                          <──────────────── REPLY RTS                       long get:
//!  pulls, as a receive ───── GRANT … ──────>                                 the origin grants
//!  ATOMIC(key, offset, operands) ──────────> key valid? applied
//!                          <──────────────── REPLY(previous values)
//!  FLUSH ──────────────────────────────────> waits for the frames before it
//!                          <──────────────── REPLY(number of refusals)
//! ```
//!
//! None of these takes credit, which a receiver without posted receives may hold indefinitely: the
//! data of a PUT is placed at once, and operations that need state at the target are bounded by
//! [`REQUESTS_MAX`]. So one-sided operations make progress independent of messages.

mod frames;
pub(crate) mod origin;
mod target;

use std::collections::VecDeque;

use super::control_frame::ControlFrame;
use super::segments::window::is_before;
use crate::proto::context::Cx;
use crate::proto::ready::Work;
use crate::proto::regions::KeyName;
use crate::proto::table::Id;
use crate::wire::FrameError;

/// Maximum number of a session's operations that wait for the target's reply.
///
/// RR-RMA-3.
pub(crate) const REQUESTS_MAX: u32 = 256;

/// Limit on a peer's operations at the target: replies to abandoned operations may be in transit.
const ENDURED_MAX: u32 = 4 * REQUESTS_MAX;

/// Longest reply that is kept in a control frame, in bytes.
pub(crate) const SHORT_REPLY_BYTES: usize = 16;

/// What an operation does to the peer's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verb {
    /// Writes the operation's memory there.
    Put,
    /// Reads it into the operation's memory.
    Get,
    /// Applies an atomic operation; the previous values are stored in the operation's memory if it
    /// has any. The codes and flags are those of [`crate::wire::OneSided`].
    Atomic { atomic: u8, datatype: u8, flags: u8 },
    /// Waits for the completion of earlier operations.
    Flush,
}

/// Role by which an operation counts toward a session's limits.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) enum Role {
    /// It is a message, or it was not sent.
    #[default]
    None,
    /// The target will reply.
    Origin,
    /// The same, and the target pulls.
    LongPut,
    /// The peer waits for it; it accesses this engine's memory by a key, or uses a copy.
    Target(Option<KeyName>),
}

/// One-sided state of a session, allocated with the first operation.
#[derive(Debug, Default)]
pub(crate) struct SessionOneSided(Option<Box<OneSidedState>>);

/// The same, of a session that has had an operation.
#[derive(Debug, Default)]
struct OneSidedState {
    /// Operations of this side that were not sent.
    waiting: VecDeque<Id>,
    /// Replies with data for the peer.
    replies: VecDeque<Id>,
    /// The first waiting operation is blocked until replies arrive.
    is_held: bool,
    /// The first waiting message is blocked until credit arrives.
    messages_wait: bool,
    /// A message is next.
    messages_next: bool,
    /// Operations that wait for a reply.
    outstanding: u32,
    /// Those of them that the peer pulls.
    long_puts: u32,
    /// Operations of the peer that have not ended here.
    served: u32,
    /// Refused operations of the peer without a reply, since its last flush.
    refused: Refused,
    /// Short replies that wait for space.
    answers: u32,
    /// Flushes of the peer, in order: the frame number of each, and its operation.
    flushes: VecDeque<(u32, u64)>,
}

/// Refusals that were not reported to the peer's flushes: each is reported by the first flush after
/// it.
#[derive(Debug, Default)]
struct Refused {
    /// Refusals that precede every unanswered flush.
    settled: u64,
    /// Frames refused before an earlier flush could be answered. They are in the window of frames
    /// that may arrive early, which bounds them.
    early: Vec<u32>,
}

impl Refused {
    /// Takes the refusals that a flush received as frame `number` reports.
    fn take_before(&mut self, number: u32) -> u64 {
        let unreported = self.early.len();
        self.early.retain(|&refused| !is_before(refused, number));
        std::mem::take(&mut self.settled) + (unreported - self.early.len()) as u64
    }
}

impl OneSidedState {
    /// Returns whether something waits only for space.
    fn has_ready(&self) -> bool {
        !self.replies.is_empty() || (!self.waiting.is_empty() && !self.is_held)
    }

    /// Notes that an operation has ended that counted in a role. Returns whether operations that
    /// were held may be sent.
    fn note_ended(&mut self, role: Role) -> bool {
        let (served, outstanding, long_puts) = match role {
            Role::None => return false,
            Role::Target(_) => (1, 0, 0),
            Role::Origin => (0, 1, 0),
            Role::LongPut => (0, 1, 1),
        };
        // Operations of the session before this one may end late.
        self.served = self.served.saturating_sub(served);
        self.outstanding = self.outstanding.saturating_sub(outstanding);
        self.long_puts = self.long_puts.saturating_sub(long_puts);
        outstanding > 0 && std::mem::take(&mut self.is_held)
    }

    /// Notes that frame `number` was refused; all frames before `expected` have arrived.
    fn note_refused(&mut self, number: u32, expected: u32) {
        let Refused { settled, early } = &mut self.refused;
        early.push(number);
        if self.flushes.is_empty() {
            let unreported = early.len();
            early.retain(|&refused| !is_before(refused, expected));
            *settled += (unreported - early.len()) as u64;
        }
    }

    /// Holds a flush of the peer until the frames before it have arrived.
    fn hold_flush(&mut self, number: u32, operation: u64) {
        let at = self.flushes.partition_point(|&(earlier, _)| !is_before(number, earlier));
        self.flushes.insert(at, (number, operation));
    }

    /// Removes the first flush of the peer, if all frames before it have arrived, as all before
    /// `expected` have. Returns its operation, and the refusals that it reports.
    ///
    /// RR-RMA-5.
    fn take_flush(&mut self, expected: u32) -> Option<(u64, u64)> {
        let &(number, operation) = self.flushes.front()?;
        if !is_before(number, expected) && !planted!(FlushEarly) {
            return None;
        }
        self.flushes.pop_front();
        Some((operation, self.refused.take_before(number)))
    }

    /// Returns an error if the peer has more operations outstanding than it may.
    ///
    /// RR-RMA-3.
    fn check_kept(&self) -> Result<(), FrameError> {
        let kept = self.served.saturating_add(self.answers).max(self.flushes.len() as u32);
        if kept >= ENDURED_MAX { Err(FrameError::TooManyRequests(kept)) } else { Ok(()) }
    }
}

impl SessionOneSided {
    /// Blocks messages, for lack of credit or space; frames without credit may go.
    pub(super) fn block_messages(&self, cx: &mut Cx<'_>) {
        if !self.has_ready() {
            cx.remove_work(Work::Stage);
        }
    }

    /// Returns the state, which exists from now on.
    fn state(&mut self) -> &mut OneSidedState {
        self.0.get_or_insert_default()
    }

    /// Returns whether there were operations, of either side, since the session was established.
    fn is_used(&self) -> bool {
        self.0.is_some()
    }

    /// Returns the operation to stage next, if `message` is the first waiting message.
    #[inline]
    pub(in crate::proto) fn next(&self, message: Option<Id>) -> Option<Id> {
        let Some(state) = &self.0 else { return message };
        if let Some(&reply) = state.replies.front() {
            return Some(reply);
        }
        let operation = state.waiting.front().copied().filter(|_| !state.is_held);
        match (operation, message) {
            (Some(operation), Some(message)) => {
                let is_messages = state.messages_next && !state.messages_wait;
                Some(if is_messages { message } else { operation })
            }
            (operation, message) => operation.or(message),
        }
    }

    /// Returns whether operations or replies wait only for space.
    #[inline]
    pub(in crate::proto) fn has_ready(&self) -> bool {
        self.0.as_ref().is_some_and(|it| it.has_ready())
    }

    /// Returns whether no operation waits to be sent, and no reply.
    pub(in crate::proto) fn has_all_staged(&self) -> bool {
        self.0.as_ref().is_none_or(|it| it.waiting.is_empty() && it.replies.is_empty())
    }

    /// Returns the number of operations of this side that were not sent.
    #[inline]
    pub(super) fn waiting_count(&self) -> usize {
        self.0.as_ref().map_or(0, |it| it.waiting.len())
    }

    /// Appends an operation of this side, not sent yet.
    fn push_waiting(&mut self, id: Id) {
        self.state().waiting.push_back(id);
    }

    /// Removes and returns the operations of this side, not sent yet, that `is_hit` selects.
    pub(in crate::proto) fn take_waiting(&mut self, is_hit: impl Fn(&Id) -> bool) -> VecDeque<Id> {
        let Some(state) = &mut self.0 else { return VecDeque::new() };
        let (hit, kept) = std::mem::take(&mut state.waiting).into_iter().partition(is_hit);
        state.waiting = kept;
        hit
    }

    /// Appends operations of this side, not sent yet.
    pub(in crate::proto) fn add_waiting(&mut self, operations: VecDeque<Id>) {
        if !operations.is_empty() {
            self.state().waiting.extend(operations);
        }
    }

    /// Removes an operation from those that were not sent.
    pub(in crate::proto) fn remove_waiting(&mut self, id: Id) {
        if let Some(state) = &mut self.0 {
            state.waiting.retain(|&waiting| waiting != id);
            state.replies.retain(|&waiting| waiting != id);
        }
    }

    /// Drops everything: the session has ended.
    pub(in crate::proto) fn end(&mut self) {
        self.0 = None;
    }

    /// Notes that the first waiting operation was sent, and how it counts until its reply; messages
    /// are next.
    fn note_sent(&mut self, id: Id, role: Role) {
        let state = self.state();
        let sent = state.waiting.pop_front();
        debug_assert_eq!(sent, Some(id), "operations are sent in order");
        (state.messages_next, state.messages_wait) = (true, false);
        state.outstanding += u32::from(role != Role::None);
        state.long_puts += u32::from(role == Role::LongPut);
    }

    /// Notes that the first reply was staged.
    fn note_replied(&mut self, id: Id) {
        let staged = self.state().replies.pop_front();
        debug_assert_eq!(staged, Some(id), "replies are sent in order");
    }

    /// Notes that an operation has ended that counted in a role. Returns whether operations that
    /// were held may be sent. The state of a session that fails is dropped before its operations
    /// end.
    fn note_ended(&mut self, role: Role) -> bool {
        self.0.as_mut().is_some_and(|it| it.note_ended(role))
    }

    /// Removes the first flush of the peer, as [`OneSidedState::take_flush`] does.
    fn take_flush(&mut self, expected: u32) -> Option<(u64, u64)> {
        self.0.as_mut()?.take_flush(expected)
    }

    /// Counts a frame that waits for space, if it is a short reply.
    pub(in crate::proto) fn note_queued(&mut self, frame: &ControlFrame) {
        if let (ControlFrame::Reply(_), Some(state)) = (frame, &mut self.0) {
            state.answers += 1;
        }
    }

    /// Notes that such a frame was staged.
    #[inline]
    pub(in crate::proto) fn note_staged(&mut self, frame: &ControlFrame) {
        if let (ControlFrame::Reply(_), Some(state)) = (frame, &mut self.0) {
            state.answers = state.answers.saturating_sub(1);
        }
    }

    /// Returns whether flushes of the peer wait for frames before them.
    #[inline]
    pub(in crate::proto) fn has_flushes(&self) -> bool {
        self.0.as_ref().is_some_and(|it| !it.flushes.is_empty())
    }

    /// Notes that the first message is tried. Operations are next, if they can be sent.
    pub(in crate::proto) fn note_turn_of_messages(&mut self) {
        if let Some(state) = &mut self.0 {
            (state.messages_next, state.messages_wait) = (false, true);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the number reported by a flush received as frame `number`, as the oldest one.
    fn reported_refusals(one_sided: &mut OneSidedState, number: u32) -> u64 {
        assert_eq!(one_sided.flushes.front().map(|&(first, _)| first), Some(number));
        one_sided.take_flush(number.wrapping_add(1)).unwrap().1
    }

    /// Frames 10, 11 and 13 are refused; 12 and 15, flushes, wait for 9, which arrives last. The
    /// later flush arrives first.
    #[test]
    fn refusal_is_reported_by_the_first_later_flush() {
        let mut one_sided = OneSidedState::default();
        one_sided.note_refused(7, 8);
        one_sided.note_refused(13, 9);
        one_sided.hold_flush(15, 1);
        one_sided.hold_flush(12, 2);
        one_sided.note_refused(10, 9);
        one_sided.note_refused(11, 9);
        assert_eq!(reported_refusals(&mut one_sided, 12), 3, "7, 10, 11");
        assert_eq!(reported_refusals(&mut one_sided, 15), 1, "13");
    }

    #[test]
    fn unflushed_refusals_are_counted_without_state() {
        let mut one_sided = OneSidedState::default();
        for number in 0..1000 {
            one_sided.note_refused(number, number & !7);
            assert!(one_sided.refused.early.len() <= 8);
        }
        one_sided.hold_flush(1000, 1);
        assert_eq!(reported_refusals(&mut one_sided, 1000), 1000);
    }

    #[test]
    fn frame_numbers_wrap_around() {
        let mut one_sided = OneSidedState::default();
        one_sided.note_refused(u32::MAX, u32::MAX - 1);
        one_sided.hold_flush(1, 1);
        one_sided.hold_flush(u32::MAX - 1, 2);
        assert_eq!(reported_refusals(&mut one_sided, u32::MAX - 1), 0);
        assert_eq!(reported_refusals(&mut one_sided, 1), 1);
    }
}
