//! Replaces a session's control connection by another one, on request of
//! [`crate::proto::control_lane`] or of the peer.

use super::engine::Engine;
use super::roles::Role;
use super::traits::{CloseMode, LaneKey};
use crate::proto::control_lane::LaneEvent;
use crate::proto::paths::Paths;

impl Engine {
    /// Moves the control lane of long messages to another path as soon as it should.
    ///
    /// RR-RAIL-7.
    pub(super) fn move_stream(&mut self, session: u32) {
        if self.state.paths.of(session).is_some_and(Paths::is_stream_elsewhere) {
            self.handle_lane_event(session, LaneEvent::MoveDue);
        }
    }

    /// Makes another connection the control lane of a session.
    pub(super) fn control_moved(&mut self, session: u32, key: LaneKey, at: u8) {
        tracing::info!(session, path = at, "another connection is its control lane");
        self.drop_control_lane(session);
        let (controls, mut cx) = self.controls();
        controls.replace(session, key);
        if let Some(asking) = controls.take_moving(session).filter(|&other| other != key) {
            // The reply has arrived on the peer's own connection.
            cx.close(asking, CloseMode::Reset);
        }
        cx.paths.set_stream(session, at);
        if let Some(monitor) = cx.core.lane_monitor(session) {
            monitor.handle_moved(*cx.now_ns);
        }
        cx.paths.choose_stream(cx.core, session);
        cx.roles.insert(key, Role::Control { session });
        controls.poll(session, &mut cx);
    }
}
