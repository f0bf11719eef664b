//! Grants of ranges: which message is granted next, on what, and how much of it at once.

use super::super::lanes::{BulkLanes, SessionLanes, Wait};
use super::super::{ControlFrame, Session};
use super::SessionRendezvous;
use super::pull::{AnyCarrier, Carrier};
use crate::proto::context::Cx;
use crate::proto::core::Core;
use crate::proto::hint::Hint;
use crate::proto::ready::Work;
use crate::proto::table::Id;
use crate::wire::{CHUNK_BYTES_MAX, Grant};

/// Messages that arrived within this time make chunks short.
const BUSY_NS: u64 = 1_000_000;

/// Outstanding chunks of messages that yield to others.
const YIELDING_CHUNKS: u32 = 2;

/// A range to grant.
#[derive(Clone, Copy, Debug)]
pub(super) struct NextRange {
    pub(super) id: Id,
    /// The sender's id of the message.
    pub(super) send_operation: u64,
    pub(super) offset: u64,
    pub(super) length: u32,
}

/// Returns how much of `left` bytes to grant at once: a chunk, or all if no more than a quarter of
/// a chunk would be left, since the cost per chunk is mostly fixed.
pub(super) fn range_bytes(left: u64, chunk_bytes: u64) -> u64 {
    let most = (chunk_bytes + chunk_bytes / 4).min(CHUNK_BYTES_MAX.into());
    if left <= most { left } else { chunk_bytes }
}

impl Core {
    /// Grants ranges to lanes that are idle, or about to be.
    #[inline]
    pub(crate) fn poll_grants(&mut self, now_ns: u64) {
        if self.shared.lanes.may_serve_starved() {
            self.serve_starved(now_ns);
        }
        if self.shared.ready.len(Work::Grant) > 0 {
            self.shared.split_rails(&self.sessions, now_ns);
        }
        while let Some(slot) = self.shared.ready.take(Work::Grant) {
            if let Some((session, mut cx)) = self.enter(slot)
                && session.is_connected()
            {
                session.open_lanes_of_new_paths(&mut cx, now_ns);
                while session.grant_next(&mut cx, now_ns) {}
                if !session.segments.control().is_empty() {
                    session.rendezvous.flush_unless_granting(cx, &session.lanes);
                }
            }
        }
    }
}

impl SessionRendezvous {
    /// Queues what is left of a message to be granted in turn, on `carrier`.
    pub(super) fn queue_for_grants(&mut self, cx: &mut Cx<'_>, id: Id, carrier: AnyCarrier) {
        let pulled = cx.shared.operations.pulling(cx.slot, id);
        let Some((pulling, hint)) = debug_assert_some!(pulled, "it pulls") else { return };
        pulling.carrier = carrier;
        let left = pulling.ungranted();
        debug_assert!(left > 0, "some of it is not granted");
        let is_short =
            range_bytes(left, cx.shared.rendezvous.limits.chunks().bytes().into()) == left;
        self.queue.push(id, hint, is_short);
        cx.add_work(Work::Grant);
    }

    /// Returns the length of chunks, and how many of them may be outstanding, where
    /// an eager message last arrived at `message_ns`.
    fn chunks_now(&self, cx: &Cx<'_>, message_ns: u64, now_ns: u64) -> (u64, u64) {
        let is_busy = message_ns != 0 && now_ns < message_ns + BUSY_NS;
        let are_last = self.queue.are_last();
        let yields = are_last && cx.shared.rendezvous.hinted.is_granting(now_ns, BUSY_NS);
        let is_short = is_busy || yields;
        let (chunk_bytes, usual) = cx.shared.rendezvous.limits.chunks().now(is_short);
        let chunks = if yields { YIELDING_CHUNKS.min(usual) } else { usual };
        let chunk_bytes = if rare!("a chunk of one byte", 10) { 1 } else { chunk_bytes };
        (chunk_bytes.into(), chunks.into())
    }

    /// Returns the next range to grant: lost ones first, then the next bytes of the message whose
    /// turn it is. `most` returns the maximum for a remaining length.
    ///
    /// RR-RDV-8.
    pub(super) fn next_range(
        &mut self,
        cx: &mut Cx<'_>,
        most: impl Fn(u64) -> u64,
        now_ns: u64,
    ) -> Option<NextRange> {
        let hinted = &mut cx.shared.rendezvous.hinted;
        let mut note = |hint| {
            // Bulk messages yield for a while.
            if hint != Hint::Bulk {
                hinted.granted_ns = Some(now_ns);
            }
        };
        while let Some((id, offset, length)) = self.missing.pop_front() {
            let found = cx.shared.operations.pulling(cx.slot, id);
            let Some((pulling, hint)) = found.filter(|(it, _)| !it.has_failed()) else {
                continue;
            };
            let granted = most(length);
            debug_assert!(offset + length <= pulling.granted, "what is missing was granted");
            if granted < length {
                self.missing.push_front((id, offset + granted, length - granted));
            }
            note(hint);
            let (send_operation, length) = (pulling.send_operation, granted as u32);
            return Some(NextRange { id, send_operation, offset, length });
        }
        while let Some((place, id)) = self.queue.next() {
            if let Some((pulling, hint)) = cx.shared.operations.pulling(cx.slot, id)
                && pulling.granted < pulling.wanted
            {
                let left = pulling.ungranted();
                let length = most(left);
                let offset = pulling.grant(length);
                note(hint);
                hinted.grants_ahead += u64::from(self.queue.note_grant(place));
                if length == left {
                    self.queue.pop(place);
                }
                let (send_operation, length) = (pulling.send_operation, length as u32);
                return Some(NextRange { id, send_operation, offset, length });
            }
            self.queue.pop(place);
        }
        None
    }

    /// Returns whether the session, whose lanes are `lanes`, grants again after a few more chunks:
    /// then DONE can wait for that datagram, since one for each completed message costs both sides
    /// as much as 8 KiB of bulk data.
    fn grants_soon(&self, lanes: &SessionLanes, table: &BulkLanes) -> bool {
        !self.queue.is_empty() && lanes.has_granted_chunks(table)
    }

    /// Flushes control frames of the session now, unless they can wait for the next grants.
    fn flush_unless_granting(&self, mut cx: Cx<'_>, lanes: &SessionLanes) {
        if !self.grants_soon(lanes, &cx.shared.lanes) {
            cx.add_work(Work::Flush);
        }
    }
}

impl Session {
    /// Grants what `next` returns, if anything.
    pub(super) fn grant_by(
        &mut self,
        cx: &mut Cx<'_>,
        next: impl FnOnce(&mut SessionRendezvous, &mut Cx<'_>) -> Option<Grant>,
    ) {
        if let Some(grant) = next(&mut self.rendezvous, cx) {
            self.send_control(cx, ControlFrame::Grant(grant));
        }
    }

    /// Grants one range. Returns `false` if nothing remains to be granted, or not now.
    fn grant_next(&mut self, cx: &mut Cx<'_>, now_ns: u64) -> bool {
        if self.rendezvous.is_empty() {
            // The peer may have closed its lane because it needs none: others go first.
            if self.lanes.lacks_wanted_lanes() {
                self.lanes.wait(cx, Wait::Room);
            }
            return false;
        }
        let chunks = self.rendezvous.chunks_now(cx, self.segments.message_ns(), now_ns);
        let carrier = self.rendezvous.network;
        carrier.grant_next(self, cx, chunks, now_ns)
    }

    /// Sends DONE with the next grants, or at once if there will be none soon.
    pub(super) fn send_done(&mut self, cx: Cx<'_>, done: ControlFrame) {
        if self.is_connected() {
            self.push_control(done);
            self.rendezvous.flush_unless_granting(cx, &self.lanes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_short_range_remains() {
        let granted = |left| range_bytes(left, 1000);
        assert_eq!([1, 1000, 1250, 1251, 5000].map(granted), [1, 1000, 1250, 1000, 1000]);
        let most = u64::from(CHUNK_BYTES_MAX);
        assert_eq!(range_bytes(most + 1, most), most, "protocol maximum");
    }
}
