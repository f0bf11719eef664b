//! Connections whose segments are too long for a switch on the way: they are noticed, replaced, and
//! others of the pair of rails are opened with shorter ones ([`crate::proto::rails::segments`]).

use super::bulk::LaneEnd;
use super::engine::Engine;
use super::traits::{LaneKey, Unacked};
use crate::proto::control_lane::LaneEvent;
use crate::proto::rails::segments::{Reachability, SEGMENT_BYTES_USUAL, are_too_long, describe};
use crate::proto::table::Id;

/// Segments of a connection that are lost.
#[derive(Debug)]
pub(super) struct Lost {
    /// Their length.
    bytes: u16,
    /// What was observed.
    cause: String,
    /// Short packets pass meanwhile.
    is_sure: bool,
}

impl Engine {
    /// Longest segment of a connection of a session that is to be opened by the path at a position;
    /// `None`: as NICs take it.
    pub(super) fn segment_limit(&mut self, session: u32, at: u8) -> Option<u16> {
        let state = &mut *self.state;
        let passing = state.paths.passing(session, at);
        let now_ns = state.now_ns;
        state.core.with(session, |it, cx| it.segment_limit(&cx, at, passing, now_ns)).flatten()
    }

    /// The same of the first connection to a peer. Without datagrams it cannot be replaced, so its
    /// segments are of the usual length from the start.
    pub(super) fn first_segment_limit(&self, rail: u8, remote: std::net::IpAddr) -> Option<u16> {
        let state = &*self.state;
        let known = state.core.segment_limits().limit((rail, remote), None, state.now_ns);
        let is_replaceable = state.datagrams.announced.port != 0;
        let is_here = state.locators.iter().any(|own| own.ip() == remote);
        known.or((!is_replaceable && !is_here).then_some(SEGMENT_BYTES_USUAL))
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
        let state = &mut *self.state;
        let passing = state.paths.passing(session, at);
        let reachability = state.paths.reachability(state.now_ns, session, at);
        if !are_too_long(resent, passing, reachability, is_over) {
            // The answers decide next time.
            state.paths.ask_all_paths(state.now_ns, session);
            return None;
        }
        let ends = self.driver.addresses(key).map(|(near, far)| (near.ip(), far.ip()));
        let bytes = resent.segment_bytes.min(u16::MAX.into()) as u16;
        let cause = describe(resent, passing, reachability, ends);
        let is_sure =
            passing.is_some_and(|it| it.is_all) || reachability == Reachability::Reachable;
        Some(Lost { bytes, cause, is_sure })
    }

    /// A bulk lane is replaced by one with shorter segments, and so are the others of its path.
    pub(super) fn replace_lane(&mut self, lane: Id, lost: &Lost) {
        let Some(bulk) = self.state.core.lanes().get(lane) else { return };
        let (session, at, number) = (bulk.session, bulk.path, bulk.number);
        self.state.core.with(session, |it, cx| it.announce_segments_lost(cx, number, lost.bytes));
        self.note_segments_lost(session, at, lost.bytes, Some(lost));
        self.close_lane(lane, LaneEnd::Failed(&lost.cause));
    }

    /// Segments of so many bytes are lost on the path at a position: this side has seen it, or the
    /// peer reports it.
    pub(super) fn note_segments_lost(
        &mut self,
        session: u32,
        at: u8,
        bytes: u16,
        seen: Option<&Lost>,
    ) {
        let state = &mut *self.state;
        let now_ns = state.now_ns;
        let noted = state.core.with(session, |it, cx| it.note_segments_lost(cx, at, bytes, now_ns));
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

    /// The peer has seen that segments of so many bytes are lost, on the path at a position or on
    /// the control lane.
    pub(super) fn handle_segments_lost(&mut self, session: u32, at: Option<u8>, bytes: u16) {
        if let Some(at) = at {
            return self.note_segments_lost(session, at, bytes, None);
        }
        let at = self.state.paths.of_mut(session).stream_at();
        self.note_segments_lost(session, at, bytes, None);
        self.handle_lane_event(session, LaneEvent::SegmentsLost { bytes, cause: None });
    }

    /// The control lane of a session is replaced by one with shorter segments, where that can be.
    pub(super) fn replace_control_lane(&mut self, session: u32, at: u8, lost: Lost) {
        self.note_segments_lost(session, at, lost.bytes, Some(&lost));
        let Lost { bytes, cause, .. } = lost;
        self.handle_lane_event(session, LaneEvent::SegmentsLost { bytes, cause: Some(cause) });
    }
}
