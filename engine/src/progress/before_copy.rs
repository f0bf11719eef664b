//! Messages that go on the stream from user memory, and are copied afterwards.
//!
//! A segment is kept until it is acknowledged, so that its payload is copied. If nothing is ahead
//! of it, the copy is made while its receiver handles it already.

use super::control_lanes::ControlConnection;
use super::engine::{Engine, EngineState};
use crate::proto::session::segments::Route;
use crate::proto::session::send::{SendDestination, SendRequest};
use crate::types::Hint;

/// Minimum length of these messages, in bytes: the kernel gathers two pieces, and a copy of less is
/// faster.
const STREAMED_BEFORE_COPY_BYTES_MIN: u64 = 4 << 10;

impl EngineState {
    /// Returns whether nothing is ahead of a newly posted message on the stream.
    fn may_stream_before_copy(&self, session: u32, request: &SendRequest) -> bool {
        let may_send = |it: &ControlConnection| it.is_free() && it.long_bytes_left(self.polls) > 0;
        let is_free = request.hint != Hint::Priority
            && self.controls.get(session).is_some_and(may_send)
            && self.may_begin_long(session);
        let route = self.core.session(session).and_then(|it| it.route_if_next(request));
        is_free && route == Some(Route::Stream) && !rare!("a send before its copy", 4)
    }
}

impl Engine {
    /// Sends a newly posted message with these bytes at once, if it goes on the stream and nothing
    /// is ahead of it. Returns `false`, without effect, if not.
    #[inline(always)]
    pub(super) fn stream_before_copy(
        &mut self,
        to: SendDestination,
        request: &SendRequest,
        bytes: &[u8],
    ) -> bool {
        request.length >= STREAMED_BEFORE_COPY_BYTES_MIN
            && self.state.may_stream_before_copy(to.session, request)
            && self.send_before_copy(to, request, bytes)
    }

    /// Stages and sends the message. Returns `false`, without effect, if it has no credit or space.
    fn send_before_copy(
        &mut self,
        to: SendDestination,
        request: &SendRequest,
        bytes: &[u8],
    ) -> bool {
        if self.state.core.stage_now(to, request).is_none() {
            return false;
        }
        let polls = self.state.polls;
        let mut cx = self.setup();
        cx.controls.of(to.session).count_long(polls, bytes.len());
        cx.controls.send_uncopied(to.session, bytes, &mut cx.lanes);
        self.send_rest(to.session);
        if request.hint == Hint::None {
            // The others of a turn coalesce.
            self.state.is_first_of_turn(to.session);
        }
        true
    }
}
