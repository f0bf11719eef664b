//! Transports that lose nothing, and when data received from them is acknowledged.
//!
//! | transport | loses, reorders | longest segment | acknowledged |
//! |---|---|---|---|
//! | datagrams | both | what the path takes | each packet, by [`crate::proto::packet`] |
//! | [`Transport::Stream`] (control connection) | neither | 260 KiB | by its [`AckPolicy`] |
//! | [`Transport::Ring`] | neither | a buffer of the pool | by its [`AckPolicy`] |
//!
//! A sender, or the ring, keeps a segment until its frames are acknowledged, for the case that its
//! transport ends. Every header acknowledges what was received before it, so that an
//! acknowledgement of its own is sent only where no segment with a header follows
//! ([`super::ring`]).
//!
//! RR-DGRAM-12, RR-SHM-8.

use super::Segments;
use super::window::is_before;
use crate::proto::context::Cx;
use crate::proto::core::Core;
use crate::proto::ready::Work;
use crate::wire::FrameRange;
use crate::wire::segment::SEGMENT_HEADER_BYTES;

/// A transport of segments that acknowledges nothing itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Transport {
    /// The TCP connection of the control lane.
    #[default]
    Stream,
    /// A ring in shared memory.
    Ring,
}

/// When received data is acknowledged although no segment is sent: at the first of these.
struct AckPolicy {
    /// So many bytes were received.
    bytes: u32,
    /// So many segments were received: short ones use as much memory of their sender as others.
    segments: u16,
    /// After so many segments it goes with the next segment that is sent, which needs a header for
    /// it.
    carried_segments: u16,
    /// So many turns have passed without a segment, those that only poll rings not counted: some
    /// microseconds, in which the rest of a message arrives, or a reply is sent.
    quiet_turns: u16,
    /// So much time has passed since the first unacknowledged segment, for loops with rare turns.
    delay_ns: u64,
}

/// The policies of [`Transport::Stream`] and [`Transport::Ring`].
static ACK_POLICIES: [AckPolicy; 2] = [
    AckPolicy {
        bytes: 1 << 20,
        segments: 64,
        carried_segments: 1,
        quiet_turns: 48,
        delay_ns: 1_000_000,
    },
    AckPolicy {
        bytes: 16 << 10,
        segments: u16::MAX,
        carried_segments: 32,
        quiet_turns: 4,
        delay_ns: 50_000,
    },
];

impl Transport {
    #[inline]
    fn ack_policy(self) -> &'static AckPolicy {
        &ACK_POLICIES[self as usize]
    }
}

/// What a session has received from such a transport, and not acknowledged.
#[derive(Debug, Default)]
pub(super) struct PendingAck {
    /// When the first segment of it was received.
    since_ns: u64,
    /// Bytes received since the last transmission.
    bytes: u32,
    /// Segments received since then.
    segments: u16,
    /// End of their frames.
    end: u32,
    /// Turns since the last segment.
    turns: u16,
    transport: Transport,
}

impl PendingAck {
    /// Forgets what was received: it is acknowledged now, or its session is a new one. Returns the
    /// end of its frames, if there were any.
    #[inline]
    pub(super) fn clear(&mut self) -> Option<u32> {
        self.segments = 0;
        (std::mem::take(&mut self.bytes) > 0).then_some(self.end)
    }

    /// Notes a segment of `length` bytes.
    #[inline]
    fn note(&mut self, transport: Transport, end: u32, length: usize, now_ns: u64) {
        let bytes = length as u32;
        if self.bytes == 0 {
            let since_ns = now_ns;
            *self = Self { since_ns, bytes, segments: 1, end, turns: 0, transport };
            return;
        }
        if is_before(self.end, end) {
            self.end = end;
        }
        self.bytes = self.bytes.saturating_add(bytes);
        self.segments = self.segments.saturating_add(1);
        (self.turns, self.transport) = (0, transport);
    }

    /// Returns whether the next segment acknowledges it.
    #[inline]
    pub(super) fn is_carried(&self) -> bool {
        self.segments >= self.transport.ack_policy().carried_segments
    }

    /// Returns whether enough was received for an acknowledgement of its own.
    #[inline]
    fn is_much(&self) -> bool {
        let policy = self.transport.ack_policy();
        self.bytes >= policy.bytes || self.segments >= policy.segments
    }

    /// Counts a turn, of which that with the last segment is the first, and returns whether the
    /// acknowledgement is due.
    fn is_due_after_turn(&mut self, now_ns: u64) -> bool {
        let policy = self.transport.ack_policy();
        self.turns = self.turns.saturating_add(1);
        self.turns > policy.quiet_turns || now_ns.saturating_sub(self.since_ns) >= policy.delay_ns
    }
}

impl Segments {
    /// Notes a segment with a body of `length` bytes received from a transport that does not
    /// acknowledge: if it has frames, an acknowledgement is owed. Checksums are not counted.
    #[inline]
    pub(super) fn note_segment_from(
        &mut self,
        cx: &mut Cx<'_>,
        transport: Transport,
        (range, length): (FrameRange, usize),
        now_ns: u64,
    ) {
        if range.count == 0 {
            return;
        }
        let length = SEGMENT_HEADER_BYTES + length;
        let pending = self.received.pending_ack_mut();
        pending.note(transport, range.end(), length, now_ns);
        if pending.is_much() {
            // Handling this segment stages what is due.
            self.ask_to_acknowledge();
        }
        cx.add_work(Work::Acknowledge);
    }

    /// Returns the bytes received from such a transport since the last transmission.
    #[inline]
    pub(crate) fn unacknowledged_bytes(&self) -> u32 {
        self.received.pending_ack().bytes
    }

    /// Acknowledges data received from such a transport with the next segment, in this turn.
    #[cold]
    pub(crate) fn acknowledge_received(&mut self, mut cx: Cx<'_>) {
        if self.ask_to_acknowledge() {
            cx.add_work(Work::Flush);
        }
    }

    /// Acknowledges data received from such a transport with the next segment. Returns whether that
    /// has to be staged.
    fn ask_to_acknowledge(&mut self) -> bool {
        let Some(end) = self.received.pending_ack_mut().clear() else { return false };
        if !self.is_established() || planted!(ForgetStreamAck) {
            return false;
        }
        self.received.request_ack(end);
        self.has_update()
    }
}

impl Core {
    /// Stages due acknowledgements of data received from streams and rings; call it once a turn.
    /// With `is_last` all are due: there may be no other turn for long. Returns whether there were
    /// any.
    #[inline]
    pub(crate) fn poll_acknowledgements(&mut self, now_ns: u64, is_last: bool) -> bool {
        self.shared.ready.len(Work::Acknowledge) > 0 && self.acknowledge_due(now_ns, is_last)
    }

    fn acknowledge_due(&mut self, now_ns: u64, is_last: bool) -> bool {
        let Self { sessions, shared } = self;
        let (mut index, mut happened) = (0, false);
        while let Some(slot) = shared.ready.nth(Work::Acknowledge, index) {
            if let Some(session) = sessions.at_mut(slot as usize) {
                let segments = &mut session.segments;
                let pending = segments.received.pending_ack_mut();
                if pending.bytes > 0 && !is_last && !pending.is_due_after_turn(now_ns) {
                    index += 1;
                    continue;
                }
                if segments.ask_to_acknowledge() {
                    shared.ready.add(slot, Work::Flush);
                    happened = true;
                }
            }
            shared.ready.swap_remove(Work::Acknowledge, index);
        }
        happened
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Turns until the acknowledgement of what was noted is due, each `turn_ns` long; `None`: more
    /// than 1 000.
    fn turns_until_due(pending: &mut PendingAck, turn_ns: u64) -> Option<u64> {
        (1..1000).find(|turn| pending.is_due_after_turn(turn * turn_ns))
    }

    #[test]
    fn acknowledgement_is_due_after_quiet_turns_or_a_delay() {
        for transport in [Transport::Stream, Transport::Ring] {
            let policy = transport.ack_policy();
            let mut pending = PendingAck::default();
            pending.note(transport, 5, 100, 0);
            assert_eq!(turns_until_due(&mut pending, 1), Some(u64::from(policy.quiet_turns) + 1));
            let mut pending = PendingAck::default();
            pending.note(transport, 5, 100, 0);
            assert_eq!(turns_until_due(&mut pending, policy.delay_ns / 4), Some(4));
        }
    }

    #[test]
    fn a_segment_begins_the_quiet_turns_anew_but_not_the_delay() {
        let policy = Transport::Ring.ack_policy();
        let mut pending = PendingAck::default();
        pending.note(Transport::Ring, 5, 10, 1000);
        for turn in 0..2 * u64::from(policy.quiet_turns) {
            assert!(!pending.is_due_after_turn(1000 + turn));
            pending.note(Transport::Ring, 6, 10, 1000 + turn);
        }
        assert!(pending.is_due_after_turn(1000 + policy.delay_ns));
    }

    #[test]
    fn many_bytes_are_acknowledged_at_once() {
        for transport in [Transport::Stream, Transport::Ring] {
            let mut pending = PendingAck::default();
            pending.note(transport, 5, transport.ack_policy().bytes as usize - 1, 0);
            assert!(!pending.is_much());
            pending.note(transport, 6, 1, 0);
            assert!(pending.is_much());
        }
    }

    #[test]
    fn many_short_segments_of_a_stream_are_acknowledged_at_once() {
        let policy = Transport::Stream.ack_policy();
        let mut pending = PendingAck::default();
        for _ in 0..2 {
            for number in 1..=u32::from(policy.segments) {
                assert!(!pending.is_much(), "{number}");
                pending.note(Transport::Stream, number, 60, 0);
            }
            assert!(pending.is_much());
            pending.clear();
        }
    }

    #[test]
    fn end_is_that_of_the_latest_frames_whatever_their_order() {
        let mut pending = PendingAck::default();
        assert_eq!(pending.clear(), None);
        pending.note(Transport::Stream, u32::MAX, 1, 0);
        pending.note(Transport::Stream, 2, 1, 0);
        pending.note(Transport::Stream, 1, 1, 0);
        assert_eq!(pending.clear(), Some(2));
        assert_eq!(pending.clear(), None, "it was acknowledged");
    }
}
