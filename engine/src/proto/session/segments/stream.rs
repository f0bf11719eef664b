//! Long segments: what a session with datagrams sends on its control connection beside them.

use super::super::Session;
use super::Segments;
use super::protocol::Route;
use super::segment::LONG_PAYLOAD_BYTES;
use super::uncommon::Uncommon;
use crate::proto::context::Cx;
use crate::proto::ready::Work;
use crate::proto::session::send::SendRequest;

impl Session {
    /// Returns the route of a message that would be the next segment, whole and alone, without
    /// checksums, and before anything else. `None`: something is ahead of it.
    pub(crate) fn route_if_next(&self, request: &SendRequest) -> Option<Route> {
        let segments = &self.segments;
        let is_next = self.is_now_free_of(Uncommon::SENDING)
            && !self.one_sided.has_ready()
            && segments.open.is_none()
            && !segments.has_checksums();
        is_next.then(|| segments.protocol.route(request.length, request.data_bytes()))
    }

    /// Returns the next long segment, for the stream while a path carries the others. The peer
    /// acknowledges it after a delay, or with data that it sends, and is asked to at once where a
    /// user's send, or space for the next segment, waits for that. `true` beside it: it has
    /// checksums ([`super::append_segment`]).
    ///
    /// RR-DGRAM-12.
    pub(crate) fn poll_long(&mut self, mut cx: Cx<'_>) -> Option<(&[u8], bool)> {
        if !self.is_connected() {
            return None;
        }
        let id = self.segments.next_long()?;
        if self.has_waiting() {
            cx.add_work(Work::Stage);
        }
        let segments = &mut self.segments;
        let pool = &cx.shared.pool;
        let is_last = segments.long.len() == 0;
        let is_full = !pool.has_room_for_long(segments.long_held as usize, LONG_PAYLOAD_BYTES);
        let is_awaited = segments.slots.get(id).is_some_and(|it| !it.operations.is_empty());
        let asks = segments.asks_when_awaited(is_awaited || is_full, is_last || is_full);
        let has_checksums = segments.has_checksums();
        Some((segments.seal_first(id, asks), has_checksums))
    }
}

impl Segments {
    /// Writes the payload of the message staged last to the end of its segment; returns the whole
    /// segment.
    pub(crate) fn fill_last(&mut self, payload: &[u8]) -> &[u8] {
        let newest = self.slots.newest();
        let Some(segment) = newest.and_then(|id| self.slots.get_mut(id)) else {
            debug_assert!(false, "a staged message is in a segment");
            return &[];
        };
        segment.newest(payload.len()).copy_from_slice(payload);
        segment.whole()
    }

    /// Returns the bytes of long segments acknowledged since the session began.
    pub(crate) fn delivered_by_stream(&self) -> u64 {
        self.long_delivered
    }
}
