//! Messages that are sent from user memory, and copied afterwards.
//!
//! A segment is kept until it is acknowledged, so that its payload is copied. If nothing is ahead
//! of it, the copy is made while its receiver handles it already.

use super::super::engine::Engine;
use crate::proto::ready::Work;
use crate::proto::segments::{Lone, Route};
use crate::proto::send::SendRequest;
use crate::types::Hint;

/// Minimum length of messages that are sent before they are copied, in bytes: shorter ones gain
/// nothing.
pub(in crate::progress) const SENT_BEFORE_COPY_BYTES_MIN: u64 = 2 << 10;

/// The same on a stream, where the kernel gathers two pieces: a copy of less is faster.
const STREAMED_BEFORE_COPY_BYTES_MIN: u64 = 4 << 10;

/// What carries a message that is sent before it is copied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::progress) enum LoneTransport {
    Stream,
    /// The ring of this number.
    Ring(u64),
}

impl Engine {
    /// Returns what a newly posted message of [`SENT_BEFORE_COPY_BYTES_MIN`] or more may be sent on
    /// from user memory. `None`: something is ahead of it, or its transport needs a copy.
    pub(in crate::progress) fn transport_before_copy(
        &self,
        session: u32,
        request: &SendRequest,
        more: bool,
    ) -> Option<LoneTransport> {
        let state = &*self.state;
        let control = state.controls.get(session)?;
        let goes_now = match request.hint {
            // The others of a turn coalesce.
            Hint::None => !more && control.is_unused_in(state.polls),
            Hint::Latency => true,
            Hint::Priority | Hint::Bulk => false,
        };
        if !goes_now || control.has_unsent() || !shortcut!("a send before its copy") {
            return None;
        }
        match state.core.session(session)?.route_if_next(request)? {
            Route::Segment if !state.datagrams.is_blocked => {
                state.paths.ring_of(session).map(LoneTransport::Ring)
            }
            Route::Stream if request.length >= STREAMED_BEFORE_COPY_BYTES_MIN => {
                let has_turn = control.long_bytes_left(state.polls) > 0;
                let is_free = control.is_free()
                    && state.is_by_datagram(session)
                    && state.may_begin_long(session);
                (has_turn && is_free).then_some(LoneTransport::Stream)
            }
            _ => None,
        }
    }

    /// Sends the message that was staged last, and is alone. `bytes` are its payload, which is not
    /// in its segment yet.
    pub(in crate::progress) fn send_before_copy(
        &mut self,
        session: u32,
        transport: LoneTransport,
        hint: Hint,
        bytes: &[u8],
    ) {
        match transport {
            LoneTransport::Ring(ring) => self.write_before_copy(session, ring, hint, bytes),
            LoneTransport::Stream => {
                let polls = self.state.polls;
                let mut cx = self.setup();
                cx.controls.of(session).count_long(polls, bytes.len());
                cx.controls.send_uncopied(session, bytes, &mut cx.lanes);
                self.send_rest(session);
            }
        }
        if hint == Hint::None {
            // The others of a turn coalesce.
            self.state.is_first_of_turn(session);
        }
    }

    /// Writes the message that was staged last, and is alone, into its ring; then copies its
    /// payload `bytes` into its segment, for a possible retransmission.
    fn write_before_copy(&mut self, session: u32, ring: u64, hint: Hint, bytes: &[u8]) {
        let state = &mut *self.state;
        state.completions.count_copied(bytes.len() as u64);
        let entered = state.core.enter(session);
        let lone = entered.and_then(|(it, _)| it.lone_segment());
        let Some(segment) = lone.map(Lone::take) else {
            self.state.core.with(session, |it, _| _ = it.segments.fill_last(bytes));
            return self.flush_posted(session, hint, false);
        };
        let (token, length) = (segment.token, segment.bytes.len());
        let head = &segment.bytes[..length - bytes.len()];
        let is_written = self.driver.write_segment(ring, [head, bytes]);
        if is_written {
            self.driver.flush_datagrams();
        }
        self.state.core.with(session, |it, _| _ = it.segments.fill_last(bytes));
        self.state.core.ready_mut().take_if_latest(session, Work::Flush);
        if !is_written {
            let state = &mut *self.state;
            state.rings.refuse(session, token, &mut state.core, &mut state.controls);
        }
    }
}
