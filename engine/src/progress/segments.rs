//! Connections whose segments are too long for a switch on the way: they are noticed, replaced, and
//! others of the pair of rails are opened with shorter ones
//! ([`crate::proto::session::rails::segments`]).

use super::context::LaneCx;
use super::engine::Engine;
use super::traits::{LaneKey, Unacked};
use crate::proto::session::control_lane::LaneEvent;
use crate::proto::session::rails::segments::{Reachability, are_too_long, describe};

/// Segments of a connection that are lost.
#[derive(Debug)]
pub(super) struct Lost {
    /// Their length.
    pub(super) bytes: u16,
    /// What was observed.
    pub(super) cause: String,
    /// Short packets pass meanwhile.
    is_sure: bool,
}

impl LaneCx<'_> {
    /// Longest segment of a connection of a session that is to be opened by the path at a position;
    /// `None`: as NICs take it.
    pub(super) fn segment_limit(&mut self, session: u32, at: u8) -> Option<u16> {
        let passing = self.paths.passing(session, at);
        let now_ns = *self.now_ns;
        let session = self.core.session(session)?;
        let pair = session.rails().pair(at, session.peer().locators().first())?;
        self.core.shared().rails().segment_limits().limit(pair, passing, now_ns)
    }

    /// Looks whether a connection of a session, on the path at a position, stands still because its
    /// segments are too long. `is_over`: it is given up in any case.
    ///
    /// RR-LANE-8.
    pub(super) fn find_lost_segments(
        &mut self,
        key: LaneKey,
        (session, at): (u32, u8),
        owed: Unacked,
        is_over: bool,
    ) -> Option<Lost> {
        let Unacked::Answer { resent: Some(resent), .. } = owed else { return None };
        let passing = self.paths.passing(session, at);
        let reachability = self.paths.reachability(*self.now_ns, session, at);
        if !are_too_long(resent, passing, reachability, is_over) {
            // The answers decide next time.
            self.paths.ask_all_paths(*self.now_ns, session);
            return None;
        }
        let ends = self.driver.addresses(key).map(|(near, far)| (near.ip(), far.ip()));
        let bytes = resent.segment_bytes.min(u16::MAX.into()) as u16;
        let cause = describe(resent, passing, reachability, ends);
        let is_sure =
            passing.is_some_and(|it| it.is_all) || reachability == Reachability::Reachable;
        Some(Lost { bytes, cause, is_sure })
    }

    /// Segments of so many bytes are lost on the path at a position: this side has seen it, or the
    /// peer reports it.
    pub(super) fn note_segments_lost(
        &mut self,
        (session, at): (u32, u8),
        bytes: u16,
        seen: Option<&Lost>,
    ) {
        let now_ns = *self.now_ns;
        let noted = self.core.with(session, |it, cx| it.note_segments_lost(cx, at, bytes, now_ns));
        let is_new = noted == Some(true);
        match seen.filter(|_| is_new) {
            Some(Lost { cause, is_sure: true, .. }) => tracing::warn!(
                "{cause} TCP connections there have shorter packets now; set the same MTU on \
                 hosts and switches"
            ),
            Some(Lost { cause, .. }) => tracing::debug!("{cause} Shorter ones are tried"),
            None => {}
        }
    }
}

impl Engine {
    /// The peer has seen that segments of so many bytes are lost, on the path at a position or on
    /// the control lane.
    pub(super) fn handle_segments_lost(&mut self, session: u32, at: Option<u8>, bytes: u16) {
        if let Some(at) = at {
            return self.setup().lanes.note_segments_lost((session, at), bytes, None);
        }
        let at = self.state.paths.of_mut(session).stream_at();
        self.setup().lanes.note_segments_lost((session, at), bytes, None);
        self.handle_lane_event(session, LaneEvent::SegmentsLost { bytes, cause: None });
    }

    /// The control lane of a session is replaced by one with shorter segments, where that can be.
    pub(super) fn replace_control_lane(&mut self, session: u32, at: u8, lost: Lost) {
        self.setup().lanes.note_segments_lost((session, at), lost.bytes, Some(&lost));
        let Lost { bytes, cause, .. } = lost;
        self.handle_lane_event(session, LaneEvent::SegmentsLost { bytes, cause: Some(cause) });
    }
}
