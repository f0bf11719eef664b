//! Replaces a session's control connection by another one, on request of
//! [`crate::proto::session::control_lane`] or of the peer.

use super::engine::Engine;
use super::roles::ConnectionRole;
use super::setup::SetupCx;
use super::traits::{CloseMode, LaneKey};
use crate::proto::paths::Paths;
use crate::proto::session::control_lane::LaneEvent;

impl Engine {
    /// Moves the control lane of long messages to another path as soon as it should.
    ///
    /// RR-RAIL-7.
    pub(super) fn move_stream(&mut self, session: u32) {
        if self.state.paths.of(session).is_some_and(Paths::is_stream_elsewhere) {
            self.handle_lane_event(session, LaneEvent::MoveDue);
        }
    }
}

impl SetupCx<'_> {
    /// Makes another connection the control lane of a session.
    pub(super) fn control_moved(&mut self, session: u32, key: LaneKey, at: u8) {
        tracing::info!(session, path = at, "another connection is its control lane");
        self.drop_control_lane(session);
        self.controls.replace(session, key);
        let cx = &mut self.lanes;
        if let Some(asking) = self.controls.take_moving(session).filter(|&other| other != key) {
            // The reply has arrived on the peer's own connection.
            cx.close(asking, CloseMode::Reset);
        }
        cx.paths.set_stream(session, at);
        if let Some((known, _)) = cx.core.enter(session) {
            known.control_lane_mut().handle_moved(*cx.now_ns);
        }
        // Whether long messages use it.
        cx.paths.choose_stream(cx.core, session);
        cx.roles.insert(key, ConnectionRole::Control { session });
        self.controls.poll(session, cx);
    }

    /// Drops a session's control lane; it continues without until it has another one.
    pub(crate) fn drop_control_lane(&mut self, session: u32) {
        let cx = &mut self.lanes;
        let at = cx.paths.of_mut(session).stream_at();
        cx.completions.restart_placed(session);
        if let Some(lane) = self.controls.take_lane(session) {
            cx.keep_figures(session, at, lane);
            cx.close(lane, CloseMode::Reset);
        }
        if let Some((known, _)) = cx.core.enter(session) {
            known.control_lane_mut().handle_dropped(*cx.now_ns, at);
        }
        if !cx.paths.of_mut(session).are_several() {
            self.controls.note_without_lane(session);
        }
        cx.paths.choose_stream(cx.core, session);
        cx.core.with(session, |it, cx| it.segments_mut().acknowledge_received(cx));
        cx.core.with(session, |it, cx| it.segments_mut().resend_all(cx));
    }
}
