//! Grants of ranges: which message is granted next, on what, and how much of it at once.

use super::super::lanes::lane::BulkLane;
use super::super::lanes::{BulkLanes, SessionLanes, Wait};
use super::super::rails::schedule::{GrantTarget, LaneSchedule, Next};
use super::super::{ControlFrame, Session};
use super::SessionRendezvous;
use crate::proto::context::Cx;
use crate::proto::core::Core;
use crate::proto::hint::Hint;
use crate::proto::ready::Work;
use crate::proto::table::Id;
use crate::wire::{CHUNK_BYTES_MAX, Grant, GrantOver};

/// Messages that arrived within this time make chunks short.
const BUSY_NS: u64 = 1_000_000;

/// Outstanding chunks of messages that yield to others.
const YIELDING_CHUNKS: u32 = 2;

/// Minimum range granted in datagrams when space is short: a grant has 40 bytes.
const SHARE_MIN: u64 = 4096;

/// A range to grant.
#[derive(Clone, Copy, Debug)]
struct NextRange {
    id: Id,
    /// The sender's id of the message.
    send_operation: u64,
    offset: u64,
    length: u32,
}

/// Returns how much of `left` bytes to grant at once: a chunk, or all if no more than a quarter of
/// a chunk would be left, since the cost per chunk is mostly fixed.
fn range_bytes(left: u64, chunk_bytes: u64) -> u64 {
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
    /// Queues what is left of a message to be granted on lanes, or in datagrams.
    pub(super) fn begin_granting(&mut self, cx: &mut Cx<'_>, id: Id) {
        let pulled = cx.shared.operations.pulling(cx.slot, id);
        let Some((pulling, hint)) = debug_assert_some!(pulled, "it pulls") else { return };
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

    /// Returns the grant of the next range in datagrams. `None`: enough is granted.
    fn grant_in_datagrams(
        &mut self,
        cx: &mut Cx<'_>,
        (chunk_bytes, chunks): (u64, u64),
        now_ns: u64,
    ) -> Option<Grant> {
        // Several sessions share the window, and a long chunk would use all of it.
        let share = (cx.shared.rendezvous.limits.window_bytes() / 8).max(SHARE_MIN);
        let horizon = chunks * chunk_bytes;
        let chunk_bytes = chunk_bytes.min(share);
        if !self.may_grant_in_datagrams(cx, chunk_bytes, horizon) {
            return None;
        }
        let next = self.next_range(cx, |left| left.min(chunk_bytes), now_ns);
        let NextRange { id, send_operation, offset, length } = next?;
        Some(self.pull_by_datagram(cx, id, send_operation, (offset, length)))
    }

    /// Returns the next range to grant: lost ones first, then the next bytes of the message whose
    /// turn it is. `most` returns the maximum for a remaining length.
    ///
    /// RR-RDV-8.
    fn next_range(
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
    /// Grants what `next` returns, if anything. Returns whether that is so.
    pub(super) fn grant_by(
        &mut self,
        cx: &mut Cx<'_>,
        next: impl FnOnce(&mut SessionRendezvous, &mut Cx<'_>) -> Option<Grant>,
    ) -> bool {
        let grant = next(&mut self.rendezvous, cx);
        if let Some(grant) = grant {
            self.send_control(cx, ControlFrame::Grant(grant));
        }
        grant.is_some()
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
        if self.rendezvous.is_in_datagrams() {
            self.grant_by(cx, |it, cx| it.grant_in_datagrams(cx, chunks, now_ns))
        } else {
            self.grant_on_lane(cx, chunks, now_ns)
        }
    }

    /// Grants the next range on the lane that would deliver it first. Returns `false` if there is
    /// none, or enough is granted on all.
    fn grant_on_lane(&mut self, cx: &mut Cx<'_>, chunks: (u64, u64), now_ns: u64) -> bool {
        let left = self.rendezvous.ungranted(&cx.shared.operations);
        let (lanes, shares) = (&cx.shared.lanes, cx.shared.rails().shares());
        let schedule = LaneSchedule::new((&self.lanes, &self.rails), lanes, shares, now_ns);
        let GrantTarget { lane, chunk_bytes, is_last } = match schedule.choose(left, chunks) {
            Next::Now(choice) => choice,
            Next::Later => return false,
            Next::NoLane => {
                self.request_lanes(cx, now_ns);
                return false;
            }
        };
        // Horizons count bytes, and ranges may be short. Arrivals trigger the next attempt.
        if cx.shared.lanes.get(lane).is_some_and(BulkLane::is_full) {
            return false;
        }
        let next = self.rendezvous.next_range(cx, |left| range_bytes(left, chunk_bytes), now_ns);
        let bulk = debug_assert_some!(cx.shared.lanes.get_mut(lane), "the chosen lane exists");
        let Some((next, bulk)) = next.zip(bulk) else { return false };
        let NextRange { id, send_operation, offset, length } = next;
        let chunk = bulk.grant(id, (offset, length), is_last, now_ns);
        let number = bulk.number();
        cx.shared.lanes.mark_runnable(lane);
        let over = GrantOver::Lane { lane: number, chunk };
        let grant = Grant {
            eager_class: self.segments.eager_limit().class(),
            ..Grant::new(over, send_operation, id.to_u64(), (offset, length))
        };
        self.send_control(cx, ControlFrame::Grant(grant));
        true
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
