//! Long segments: what a session with datagrams sends on its control connection beside them.

use super::super::core::Core;
use super::super::send::SendRequest;
use super::super::session::Session;
use super::Segments;
use super::protocol::Route;
use super::segment::{LONG_PAYLOAD_BYTES, Place};
use crate::proto::ready::Work;

/// Returns whether a segment staged next for a session's stream would be sent next, and alone.
fn is_next_alone(session: &Session, segments: &Segments) -> bool {
    session.is_connected()
        && segments.long.len() == 0
        && !segments.waits()
        && session.control.is_empty()
        && !session.has_checksums
}

impl Core {
    /// Returns the route of a message that would be the next segment of its session, whole and
    /// alone, without checksums, and before anything else. `None`: something is ahead of it.
    pub(crate) fn route_if_next(&self, slot: u32, request: &SendRequest) -> Option<Route> {
        let session = self.sessions.at(slot as usize)?;
        let segments = session.segments.as_deref()?;
        let is_next = is_next_alone(session, segments)
            && segments.bulk.is_none()
            && !session.has_waiting()
            && !session.is_leaving;
        is_next.then(|| segments.protocol.route(request.length, request.data_bytes()))
    }

    /// Writes the payload of the message staged last to the end of its segment; returns the whole
    /// segment.
    pub(crate) fn fill_last(&mut self, slot: u32, payload: &[u8]) -> &[u8] {
        let session = self.sessions.at(slot as usize);
        let segments = session.and_then(|session| session.segments.as_deref());
        let pool = &mut self.segments.pool;
        let last = segments.and_then(|segments| segments.outstanding.last(pool));
        let Some(segment) = last.and_then(|id| pool.get_mut(id)) else {
            debug_assert!(false, "a staged message is in a segment");
            return &[];
        };
        segment.newest(payload.len()).copy_from_slice(payload);
        segment.whole()
    }

    /// Returns the bytes of long segments acknowledged since a session began.
    pub(crate) fn delivered_by_stream(&self, slot: u32) -> u64 {
        let session = self.sessions.at(slot as usize);
        let segments = session.and_then(|session| session.segments.as_deref());
        segments.map_or(0, |segments| segments.long_delivered)
    }

    /// Returns the next long segment of a session, for its stream while its path carries the
    /// others. The peer acknowledges it after a delay, or with data that it sends, and is asked to
    /// at once where a user's send, or space for the next segment, waits for that. `true` beside
    /// it: it has checksums ([`super::append_segment`]).
    ///
    /// RR-DGRAM-12.
    pub(crate) fn poll_long(&mut self, slot: u32) -> Option<(&[u8], bool)> {
        let session = self.sessions.at_mut(slot as usize).filter(|it| it.is_connected())?;
        let segments = session.segments.as_deref_mut()?;
        let pool = &mut self.segments.pool;
        let id = segments.next_long(pool)?;
        let is_last = segments.long.len() == 0;
        let is_full = !pool.has_room_for_long(segments.long_held, LONG_PAYLOAD_BYTES);
        let segment = pool.get_mut(id)?;
        let is_awaited = !segment.operations.is_empty();
        let asks = segments.asks_when_awaited(is_awaited || is_full, is_last || is_full);
        if session.has_waiting() {
            self.ready.add(slot, Work::Stage);
        }
        let header = session.segment_header(asks);
        segment.place = Place::Flying;
        Some((segment.seal(header), session.has_checksums))
    }
}
