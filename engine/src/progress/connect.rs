//! Begin and end of sessions, and of their control connections.

use std::io;

use super::datagram::Announced;
use super::engine::{Engine, EngineState};
use super::roles::ConnectionRole;
use super::traits::{CloseMode, LaneKey};
use crate::proto::failure::PeerFailure;
use crate::proto::session::control_lane::LaneEvent;
use crate::types::{Address, Event};

impl Engine {
    /// Handles a failed connection. If it was for another control lane a refusal may end the
    /// session.
    pub(super) fn handle_unreachable(&mut self, key: LaneKey, error: &io::Error) {
        if error.kind() == io::ErrorKind::ConnectionRefused
            && let Some(&mut ConnectionRole::MoveConnecting { session, .. }) =
                self.state.roles.get_mut(key)
            && self.setup().is_refusal_of_peer(session)
        {
            self.handle_lane_event(session, LaneEvent::Refused);
        }
        self.setup().handle_connect_failed(key, &error.to_string());
    }

    /// Begins an established session, whose control lane is `key`.
    pub(super) fn begin_session(&mut self, session: u32, key: LaneKey, datagrams: Announced) {
        self.state.roles.insert(key, ConnectionRole::Control { session });
        self.close_path(session);
        let mut cx = self.setup();
        let lane_at = cx.position_of(session, key);
        cx.lanes.paths.begin(session, lane_at);
        cx.bulk.end_session(session);
        cx.controls.begin(session, key);
        cx.controls.poll(session, &mut cx.lanes);
        self.open_path(session, datagrams);
    }

    /// Ends an attempt to connect a session; and its control lane, if it has ended.
    pub(super) fn close_control(&mut self, session: u32, is_failure: bool) {
        let mut cx = self.setup();
        cx.drop_attempt(session);
        if !is_failure {
            return;
        }
        if let Some(key) = cx.controls.take_moving(session) {
            cx.lanes.close(key, CloseMode::Reset);
        }
        self.close_path(session);
        let mut cx = self.setup();
        cx.controls.send_final_ack(session, cx.lanes.core, cx.lanes.driver);
        cx.bulk.end_session(session);
        cx.lanes.completions.forget_placed(session);
        if let Some(key) = cx.controls.end(session) {
            cx.lanes.close(key, CloseMode::Graceful);
        }
    }

    /// Reports a session that begins.
    pub(super) fn report_established(&mut self, session: u32) {
        let Some(known) = self.state.core.session(session) else {
            debug_assert!(false, "an outstanding action keeps the slot of its session in use");
            return;
        };
        let address = Address::new(known.peer().id(), *known.peer().locators(), 0);
        if !known.segments().has_datagrams() {
            self.state.controls.begin_stream(session);
        }
        self.state.note_transport(&self.driver, session, false);
        self.state.completions.events_mut().push(&Event::Connected { address });
        let (now_ns, timeout) = (self.state.now_ns, self.state.config.silent_timeout);
        self.state.engine_questions.begin(now_ns, timeout);
    }
}

impl EngineState {
    /// Reports a session that has ended; the log has it already where this side's driver has
    /// failed.
    pub(super) fn report_ended(
        &mut self,
        session: u32,
        failure: PeerFailure,
        has_driver_failed: bool,
    ) {
        let Some(known) = self.core.session(session) else {
            debug_assert!(false, "an outstanding action keeps the slot of its session in use");
            return;
        };
        let address = Address::new(known.peer().id(), *known.peer().locators(), 0);
        let is_known = matches!(failure, PeerFailure::Left | PeerFailure::Removed);
        if !is_known && !has_driver_failed {
            self.config.log_failure(&format!("peer {address} {failure}"));
        }
        self.completions.events_mut().push(&Event::Disconnected { address, failure });
    }
}
