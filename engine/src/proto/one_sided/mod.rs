//! Operations on the memory of a peer: put, get, atomic operations, flush.
//!
//! ```text
//!  origin                                    target
//!  PUT(key, offset, bytes) ────────────────> key good? placed                small put
//!                          <──────────────── REPLY(status), if asked for
//!  PUT RTS(key, offset, length) ───────────> key good? pulls, as a receive   long put
//!                          <──── GRANT … ─── DONE, or REPLY(status)
//!  GET(key, offset, length) ───────────────> key good?
//!                          <──────────────── REPLY(bytes)                    short get
//!                          <──────────────── REPLY RTS                       long get:
//!  pulls, as a receive ───── GRANT … ──────>                                 the origin grants
//!  ATOMIC(key, offset, operands) ──────────> key good? applied
//!                          <──────────────── REPLY(values of before)
//!  FLUSH ──────────────────────────────────> waits for the frames before it
//!                          <──────────────── REPLY(how many were refused)
//! ```
//!
//! None of these takes credit, which a receiver that does not receive may hold for ever: what a PUT
//! brings is placed at once, and the operations that leave something at the target are bounded by
//! [`REQUESTS_MAX`]. So memory is reached whatever becomes of messages.

pub(crate) mod origin;
mod target;

use std::collections::VecDeque;

use super::control_frame::ControlFrame;
use super::regions::KeyName;
use super::table::Id;
use crate::wire::FrameError;

/// Operations of one session that wait for the target's answer, at the most.
///
/// RR-RMA-3.
pub(crate) const REQUESTS_MAX: u32 = 256;

/// How many an engine endures: answers to operations that were given up are on their way.
const ENDURED_MAX: u32 = 4 * REQUESTS_MAX;

/// Longest answer that is kept in a control frame, in bytes.
pub(crate) const SHORT_REPLY_BYTES: usize = 16;

/// What an operation does to the peer's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verb {
    /// Writes the operation's memory there.
    Put,
    /// Reads it into the operation's memory.
    Get,
    /// Applies an atomic operation; the values of before go to the operation's memory if it has
    /// any. The codes and flags are those of [`crate::wire::OneSided`].
    Atomic { atomic: u8, datatype: u8, flags: u8 },
    /// Waits until those before it are done.
    Flush,
}

/// On whose behalf an operation holds something of a session's bound.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) enum Role {
    /// It is a message, or it has not gone out.
    #[default]
    None,
    /// The target will answer.
    Origin,
    /// The same, and the target pulls.
    LongPut,
    /// The peer waits for it, which reaches this engine's memory by a key, or has a copy.
    Target(Option<KeyName>),
}

/// What a session has of one-sided operations.
#[derive(Debug, Default)]
pub(crate) struct SessionOneSided {
    /// Operations of this side that have not gone out.
    pub(super) waiting: VecDeque<Id>,
    /// What the peer gets.
    pub(super) replies: VecDeque<Id>,
    /// The first that waits does so for answers.
    pub(super) is_held: bool,
    /// The first message that waits does so for credit.
    pub(super) messages_wait: bool,
    /// It is the messages' turn.
    pub(super) messages_next: bool,
    /// Operations that wait for an answer.
    pub(super) outstanding: u32,
    /// Those of them that the peer pulls.
    pub(super) long_puts: u32,
    /// Operations of the peer that have not ended here.
    pub(super) served: u32,
    /// Operations of the peer that wanted no answer and were refused, since it last asked.
    pub(super) refused: u64,
    /// Short answers that wait for room.
    pub(in crate::proto) answers: u32,
    /// Flushes of the peer: the frame each came as, and its operation.
    pub(super) flushes: VecDeque<(u32, u64)>,
}

impl SessionOneSided {
    /// Who is to be staged next, if `message` is the first message that waits.
    pub(super) fn next(&self, message: Option<Id>) -> Option<Id> {
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

    /// The first message is tried. Operations are next, if they can go.
    pub(super) fn note_turn_of_messages(&mut self) {
        (self.messages_next, self.messages_wait) = (false, true);
    }

    /// A frame that waited has found room.
    #[inline]
    pub(in crate::proto) fn note_said(known: &mut Option<Box<Self>>, frame: &ControlFrame) {
        if let (ControlFrame::Reply(_), Some(it)) = (frame, known) {
            it.answers = it.answers.saturating_sub(1);
        }
    }

    /// What is kept for the peer: whether it asks for more than it may.
    ///
    /// RR-RMA-3.
    pub(super) fn check_kept(&self) -> Result<(), FrameError> {
        let kept = self.served.saturating_add(self.answers).max(self.flushes.len() as u32);
        if kept >= ENDURED_MAX { Err(FrameError::TooManyRequests(kept)) } else { Ok(()) }
    }

    /// Whether there is something that only waits for room.
    pub(super) fn has_ready(&self) -> bool {
        !self.replies.is_empty() || (!self.waiting.is_empty() && !self.is_held)
    }
}
