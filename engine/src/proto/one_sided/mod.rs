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

pub(crate) mod origin;
mod target;

use std::collections::VecDeque;

use super::control_frame::ControlFrame;
use super::regions::KeyName;
use super::segments::window::is_before;
use super::table::Id;
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

/// One-sided state of a session.
#[derive(Debug, Default)]
pub(crate) struct SessionOneSided {
    /// Operations of this side that were not sent.
    pub(super) waiting: VecDeque<Id>,
    /// Replies with data for the peer.
    pub(super) replies: VecDeque<Id>,
    /// The first waiting operation is blocked until replies arrive.
    pub(super) is_held: bool,
    /// The first waiting message is blocked until credit arrives.
    pub(super) messages_wait: bool,
    /// A message is next.
    pub(super) messages_next: bool,
    /// Operations that wait for a reply.
    pub(super) outstanding: u32,
    /// Those of them that the peer pulls.
    pub(super) long_puts: u32,
    /// Operations of the peer that have not ended here.
    pub(super) served: u32,
    /// Refused operations of the peer without a reply, since its last flush.
    refused: Refused,
    /// Short replies that wait for space.
    pub(in crate::proto) answers: u32,
    /// Flushes of the peer, in order: the frame number of each, and its operation.
    pub(super) flushes: VecDeque<(u32, u64)>,
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

impl SessionOneSided {
    /// Returns the operation to stage next, if `message` is the first waiting message.
    pub(in crate::proto) fn next(&self, message: Option<Id>) -> Option<Id> {
        if let Some(&reply) = self.replies.front() {
            return Some(reply);
        }
        let operation = self.waiting.front().copied().filter(|_| !self.is_held);
        match (operation, message) {
            (Some(operation), Some(message)) => {
                let is_messages = self.messages_next && !self.messages_wait;
                Some(if is_messages { message } else { operation })
            }
            (operation, message) => operation.or(message),
        }
    }

    /// Removes and returns the operations of this side, not sent yet, that `is_hit` selects.
    pub(in crate::proto) fn take_waiting(&mut self, is_hit: impl Fn(&Id) -> bool) -> VecDeque<Id> {
        let (hit, kept) = std::mem::take(&mut self.waiting).into_iter().partition(is_hit);
        self.waiting = kept;
        hit
    }

    /// Removes an operation from those that were not sent.
    pub(in crate::proto) fn forget(&mut self, id: Id) {
        self.waiting.retain(|&waiting| waiting != id);
        self.replies.retain(|&waiting| waiting != id);
    }

    /// Appends operations of this side, not sent yet.
    pub(in crate::proto) fn add_waiting(&mut self, operations: VecDeque<Id>) {
        self.waiting.extend(operations);
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

    /// Notes that the first message is tried. Operations are next, if they can be sent.
    pub(super) fn note_turn_of_messages(&mut self) {
        (self.messages_next, self.messages_wait) = (false, true);
    }

    /// Notes that a waiting frame was staged.
    #[inline]
    pub(in crate::proto) fn note_reply_staged(known: &mut Option<Box<Self>>, frame: &ControlFrame) {
        if let (ControlFrame::Reply(_), Some(it)) = (frame, known) {
            it.answers = it.answers.saturating_sub(1);
        }
    }

    /// Returns an error if the peer has more operations outstanding than it may.
    ///
    /// RR-RMA-3.
    pub(super) fn check_kept(&self) -> Result<(), FrameError> {
        let kept = self.served.saturating_add(self.answers).max(self.flushes.len() as u32);
        if kept >= ENDURED_MAX { Err(FrameError::TooManyRequests(kept)) } else { Ok(()) }
    }

    /// Returns whether something waits only for space.
    pub(super) fn has_ready(&self) -> bool {
        !self.replies.is_empty() || (!self.waiting.is_empty() && !self.is_held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the number reported by a flush received as frame `number`, as the oldest one.
    fn reported_refusals(one_sided: &mut SessionOneSided, number: u32) -> u64 {
        assert_eq!(one_sided.flushes.pop_front().map(|(first, _)| first), Some(number));
        one_sided.refused.take_before(number)
    }

    /// Frames 10, 11 and 13 are refused; 12 and 15, flushes, wait for 9, which arrives last. The
    /// later flush arrives first.
    #[test]
    fn refusal_is_reported_by_the_first_later_flush() {
        let mut one_sided = SessionOneSided::default();
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
        let mut one_sided = SessionOneSided::default();
        for number in 0..1000 {
            one_sided.note_refused(number, number & !7);
            assert!(one_sided.refused.early.len() <= 8);
        }
        one_sided.hold_flush(1000, 1);
        assert_eq!(reported_refusals(&mut one_sided, 1000), 1000);
    }

    #[test]
    fn frame_numbers_wrap_around() {
        let mut one_sided = SessionOneSided::default();
        one_sided.note_refused(u32::MAX, u32::MAX - 1);
        one_sided.hold_flush(1, 1);
        one_sided.hold_flush(u32::MAX - 1, 2);
        assert_eq!(reported_refusals(&mut one_sided, u32::MAX - 1), 0);
        assert_eq!(reported_refusals(&mut one_sided, 1), 1);
    }
}
