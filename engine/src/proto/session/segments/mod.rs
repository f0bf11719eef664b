//! The message layer above the transports of a session: datagrams, which may be lost, duplicated
//! and reordered, the control connection and a ring in shared memory ([`transport`]).
//!
//! Frames are numbered per session and direction, independent of their transport; frames that were
//! sent together form a *segment* ([`segment::SegmentBuffer`]), which is kept until it is
//! acknowledged, and retransmitted unchanged except for its segment header when it is lost. Every
//! session sends segments; the control connection is the only transport until a path opens
//! ([`Session::use_datagrams`]), and for good where one side takes no datagrams. A datagram carries
//! one segment. A lost frame delays only frames that depend on it:
//!
//! * messages wait for the one before them from the same source to the same target in the same
//!   context ([`order`]);
//! * grants wait for the one before them on their lane;
//! * a goodbye waits for all frames.
//!
//! # Order of calls
//!
//! As in [`crate::proto::core`], with these in addition to `handle_bytes`:
//!
//! 1. [`Core::handle_lone_segment`] for received datagrams;
//! 2. [`Session::handle_segment_acked`] and [`Segments::handle_segment_lost`] for packets that the
//!    path of a lane declares acknowledged or lost; a packet may be acknowledged to the peer only
//!    after [`Core::handle_lone_segment`] has handled it. [`Segments::resend_all`] when a lane that
//!    carried segments is abandoned;
//! 3. [`Session::alone`] for a frame that is sent as soon as it is posted, if nothing is ahead of
//!    it; [`Session::poll_segment`] for each session of [`Work::Flush`], while the lane accepts
//!    more; a session whose lane was full is polled again when there is space; for the control
//!    connection [`Session::poll_segment_for_stream`] while no path carries segments;
//! 4. in addition, while a path does and the session's TCP lane is on it ([`Session::use_stream`]),
//!    [`Session::poll_long`] for segments to send on it;
//! 5. [`Core::poll_acknowledgements`] for what was received from streams and rings.

mod acknowledged;
mod alone;
mod capabilities;
mod fast_path;
mod incoming;
pub(crate) mod order;
mod outgoing;
mod outstanding;
mod placed;
mod protocol;
mod received;
mod ring;
mod room;
pub(crate) mod segment;
mod slots;
mod split;
mod staging;
mod stream;
#[cfg(test)]
mod tests;
mod transport;
pub(in crate::proto) mod uncommon;
pub(crate) mod window;

use std::mem::offset_of;

use self::order::Chain;
use self::protocol::Capabilities;
use self::received::Received;
use self::segment::{SegmentBuffer, SegmentPool};
use self::slots::{SegmentQueue, SegmentSlots};
use self::uncommon::Uncommon;
use super::Limits;
#[cfg(doc)]
use super::Session;
use super::control_frame::ControlFrame;
use super::credit::{ReceiveCredits, SendCredits};
use super::eager_limit::EagerLimit;
use super::late::LateQueue;
use crate::proto::context::{Cx, SharedState};
#[cfg(doc)]
use crate::proto::core::Core;
use crate::proto::question::Questions;
use crate::proto::ready::Work;
use crate::proto::table::Id;
use crate::wire::rts::RTS_HEADER_BYTES;
use crate::wire::segment::SEGMENT_HEADER_BYTES;

pub(in crate::proto) use self::alone::Alone;
pub(crate) use self::alone::{PostedFrame, PostedMessage, PostedPut};
pub(crate) use self::outgoing::{Asks, Outgoing, append_segment};
pub(crate) use self::placed::{Beginning, PlacedMessage};
pub(in crate::proto) use self::protocol::CLASSES;
pub(crate) use self::protocol::{PullMethod, Route, SendProtocol};
pub(crate) use self::segment::StagingLimits;
pub(crate) use self::slots::SegmentId;
pub(in crate::proto) use self::slots::TakenSegment;
pub(crate) use self::split::split;
pub(crate) use self::staging::{stage_in_segment, stage_put};
pub(crate) use self::transport::Transport;

/// A segment has space for an envelope and some payload.
const SEGMENT_BYTES_MIN: usize = SEGMENT_HEADER_BYTES + RTS_HEADER_BYTES + 80;

impl SegmentPool {
    /// Returns the length of segments closest to this that buffers take.
    fn clamp(&self, segment_bytes: usize) -> usize {
        segment_bytes.clamp(SEGMENT_BYTES_MIN, self.buffer_bytes())
    }
}

/// The segments of a session, sent and received, with the credit of both directions. While the
/// session is not established there are none, and nothing is sent.
///
/// A short message touches the first four cache lines and the first one of `chain`: a send all of
/// them, a receive the first one and those of `received`.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Segments {
    /// Reasons to leave the fast paths.
    uncommon: Uncommon,
    /// Credit or an acknowledgement was announced in a datagram that may be lost, and no later one
    /// repeats it, or an acknowledgement has to be requested.
    update_due: bool,
    /// A user's send waits for a segment sent since the last acknowledgement request.
    ack_awaited: bool,
    next_frame: u32,
    /// The first frame that is not known to have arrived: the oldest outstanding one, or else the
    /// next one.
    base: u32,
    credits: SendCredits,
    open: Option<OpenSegment>,
    /// Longest segment built now, header included.
    segment_bytes: usize,

    /// How its messages travel, by what it can do.
    protocol: SendProtocol,
    /// Longest eager payload that the peer accepts and advises.
    eager_limit: EagerLimit,
    able: Capabilities,
    /// Number of all long segments.
    long_held: u32,
    /// The segment size without a ring: the smallest one of its paths.
    path_bytes: u32,
    /// Limit on segments of messages that wait for their first transmission.
    unsent_max: u32,

    received: Received,
    chain: Chain,

    /// All segments.
    slots: SegmentSlots,
    /// Segments to be retransmitted.
    lost: SegmentQueue,
    /// Segments to be sent that hold control frames.
    urgent: SegmentQueue,
    /// Other segments to be sent.
    ready: SegmentQueue,
    /// Bulk data, sent when nothing else waits.
    slow: SegmentQueue,
    /// Long segments, to be sent on the stream.
    long: SegmentQueue,
    /// Bytes of acknowledged long segments.
    long_delivered: u64,
    /// Control frames that are not in a segment yet. Some may wait before the session begins.
    control: LateQueue<ControlFrame>,
    header_only: [u8; SEGMENT_HEADER_BYTES],
    /// The last segment for the control connection, which acknowledges everything received when a
    /// goodbye ended the session.
    final_ack: Box<[u8]>,
}

const _: () = {
    assert!(offset_of!(Segments, protocol) == 64, "sending begins in the first line");
    assert!(offset_of!(Segments, received) == 128, "the routes are in the second one");
    assert!(offset_of!(Segments, chain).is_multiple_of(64), "the latest flow is in one line");
};

/// The segment that takes more frames.
#[derive(Clone, Copy, Debug)]
struct OpenSegment {
    id: SegmentId,
    /// Bytes that are free for frames.
    room: usize,
}

impl Segments {
    /// Creates the state of a session that is not established.
    pub(super) fn closed() -> Self {
        Self::new(0, Received::new(0, ReceiveCredits::default()))
    }

    fn new(seed: u64, received: Received) -> Self {
        Self {
            uncommon: Uncommon::CLOSED,
            open: None,
            next_frame: 0,
            base: 0,
            credits: SendCredits::default(),
            eager_limit: EagerLimit::new(0, None),
            protocol: SendProtocol::NONE,
            chain: Chain::new(seed),
            received,
            segment_bytes: SEGMENT_HEADER_BYTES,
            path_bytes: SEGMENT_HEADER_BYTES as u32,
            unsent_max: 0,
            able: Capabilities::default(),
            update_due: false,
            ack_awaited: false,
            control: LateQueue::default(),
            slots: SegmentSlots::new(),
            lost: SegmentQueue::new(),
            urgent: SegmentQueue::new(),
            ready: SegmentQueue::new(),
            slow: SegmentQueue::new(),
            long: SegmentQueue::new(),
            long_held: 0,
            long_delivered: 0,
            header_only: [0; SEGMENT_HEADER_BYTES],
            final_ack: Box::default(),
        }
    }

    /// Begins with a newly established session, on its control connection: `ours` was announced,
    /// `theirs` received. That connection is memory where it `is_loopback`: there the receiver
    /// copies long messages from the sends' memory.
    ///
    /// RR-SUM-1.
    pub(super) fn begin(
        &mut self,
        shared: &SharedState,
        ours: Limits,
        theirs: Limits,
        is_loopback: bool,
    ) {
        debug_assert!(!self.is_established(), "the last session has ended");
        let (pool, seed) = (shared.pool(), shared.hash_seed());
        // Buffers are as long as the longest datagram; segments fill what is usual of them.
        let segment_bytes = pool.clamp(pool.datagram_bytes());
        let has_checksums = ours.checksum || theirs.checksum;
        let able = Capabilities::of_connection(is_loopback, has_checksums);
        // A message without credit is pulled, so a short window need not fit the longest.
        let largest = ours.eager_limit.min(ours.byte_limit / 4);
        let windows = ReceiveCredits::new(ours.envelope_limit, ours.byte_limit, largest);
        let received = self.received.successor(seed, windows);
        *self = Self {
            slots: self.slots.successor(),
            // Sends and control frames may have been queued before.
            uncommon: Uncommon::WAITING.union(Uncommon::CONTROL),
            control: std::mem::take(&mut self.control),
            credits: SendCredits::new(theirs.envelope_limit, theirs.byte_limit),
            eager_limit: shared.eager().limit(ours.eager_limit, theirs.eager_limit, is_loopback),
            protocol: SendProtocol::of(able, segment_bytes, shared.rendezvous().limits()),
            able,
            segment_bytes,
            path_bytes: segment_bytes as u32,
            unsent_max: pool.unsent_max(segment_bytes),
            ..Self::new(seed, received)
        };
    }

    /// Ends with the session: segments return to the pool; messages that wait for earlier ones are
    /// dropped, since those will not arrive. Credit of the peer stays until its unexpected messages
    /// are received.
    ///
    /// RR-DGRAM-9.
    pub(super) fn end(&mut self, shared: &mut SharedState) {
        if !self.is_established() {
            return;
        }
        let pool = &mut shared.pool;
        while let Some(taken) = self.slots.take_oldest() {
            if let TakenSegment::Buffer(segment) = taken
                && !planted!(LeakSegments)
            {
                pool.recycle(segment);
            }
        }
        self.received.drop_early(&mut shared.unexpected);
        let received = self.received.successor(0, *self.received.credits());
        let final_ack = std::mem::take(&mut self.final_ack);
        let slots = self.slots.successor();
        *self = Self { final_ack, slots, ..Self::new(0, received) };
    }

    /// Returns whether the session is established.
    #[inline]
    pub(super) fn is_established(&self) -> bool {
        !self.uncommon.contains(Uncommon::CLOSED)
    }
}

impl Segments {
    /// Returns whether datagrams carry segments, too. Without them the control connection is the
    /// only transport, and the session ends with it.
    #[inline]
    pub(crate) fn has_datagrams(&self) -> bool {
        self.able.has_datagrams
    }

    /// Returns how its messages travel.
    #[inline]
    pub(crate) fn protocol(&self) -> &SendProtocol {
        &self.protocol
    }

    /// Returns the same, mutable.
    pub(in crate::proto) fn protocol_mut(&mut self) -> &mut SendProtocol {
        &mut self.protocol
    }

    /// Notes that credit or an acknowledgement was announced in a datagram that may be lost, and no
    /// later one repeats it, or that an acknowledgement has to be requested.
    fn note_update_due(&mut self) {
        self.update_due = true;
        self.uncommon.add(Uncommon::UPDATE);
    }

    /// Returns whether a segment without frames has to be sent.
    pub(in crate::proto) fn has_update_due(&self) -> bool {
        self.update_due
    }

    /// Returns whether acknowledgements or credit should be sent without waiting for traffic.
    ///
    /// RR-SEG-5.
    #[inline(always)]
    pub(crate) fn has_update(&self) -> bool {
        self.update_due || self.received.has_update()
    }

    /// Returns whether segments and chunks on TCP connections have checksums.
    #[inline]
    pub(crate) fn has_checksums(&self) -> bool {
        self.able.has_checksums
    }

    /// Returns the control frames that are not in a segment yet.
    pub(crate) fn control(&self) -> &LateQueue<ControlFrame> {
        &self.control
    }

    /// Queues a control frame for the next segment.
    ///
    /// RR-CREDIT-3.
    pub(super) fn push_control(&mut self, control: ControlFrame) {
        self.control.push_back(control);
        self.uncommon.add(Uncommon::CONTROL);
    }

    /// Drops the control frames that are not in a segment yet.
    pub(super) fn clear_control(&mut self) {
        self.control.clear();
    }

    /// Returns the limits on what the peer may be sent eagerly, as it advises.
    pub(super) fn eager_limit(&self) -> &EagerLimit {
        &self.eager_limit
    }

    /// Returns the same, mutable.
    pub(super) fn eager_limit_mut(&mut self) -> &mut EagerLimit {
        &mut self.eager_limit
    }

    /// Returns the longest message that is sent eagerly to the peer now, in bytes.
    pub(crate) fn eager_limit_now(&self) -> u32 {
        self.protocol.eager_max().min(self.eager_limit.bytes())
    }

    /// Returns the credit of messages to the peer.
    pub(crate) fn send_credits(&self) -> &SendCredits {
        &self.credits
    }

    /// Returns the credit of messages from the peer.
    pub(crate) fn receive_credits(&self) -> &ReceiveCredits {
        self.received.credits()
    }

    /// Returns the same, mutable.
    #[inline]
    pub(in crate::proto) fn receive_credits_mut(&mut self) -> &mut ReceiveCredits {
        self.received.credits_mut()
    }
}

/// Queries of fences.
impl Segments {
    /// Returns the number of the next frame.
    pub(in crate::proto) fn next_frame(&self) -> u32 {
        self.next_frame
    }

    /// Returns whether the peer has acknowledged all frames before `end`.
    pub(in crate::proto) fn has_acked_before(&self, end: u32) -> bool {
        debug_assert!(self.is_base_current());
        self.slots.len() == 0 || !window::is_before(self.base, end)
    }

    /// Requests an early acknowledgement of unacknowledged frames: send `id` waits for it.
    pub(in crate::proto) fn request_early_ack(&mut self, id: Id) {
        if self.slots.len() == 0 {
            return;
        }
        let is_lossless = self.protocol.transport().is_some();
        self.ack_awaited |= self.long.len() > 0 || is_lossless;
        // Segments sent by a transport that loses none have requested none.
        if is_lossless {
            self.note_update_due();
        }
        let newest = self.slots.newest().and_then(|newest| self.slots.get_mut(newest));
        if let Some(segment) = newest {
            segment.operations.push(id);
        }
    }
}

/// The state of both directions.
impl Segments {
    /// Returns the first missing frame of the peer, which is the cumulative acknowledgement.
    #[inline]
    pub(in crate::proto) fn expected_frame(&self) -> u32 {
        self.received.expected()
    }

    /// Returns the frames before which this side, and the peer, have received all: they change only
    /// while the peer's engine runs.
    pub(in crate::proto) fn frames_received(&self) -> (u32, u32) {
        (self.expected_frame(), self.base)
    }

    /// Requests a segment from the peer, to check that the stream is usable.
    ///
    /// RR-SEG-6.
    pub(crate) fn ask_for_answer(&mut self, mut cx: Cx<'_>) {
        if self.is_established() {
            self.received.questions_mut().ask();
            cx.add_work(Work::Flush);
        }
    }

    /// Returns the number of frames made and received.
    pub(in crate::proto) fn frames_moved(&self) -> u64 {
        u64::from(self.next_frame) + u64::from(self.expected_frame())
    }

    /// Returns when a message of the peer last arrived; 0: none has.
    pub(in crate::proto) fn message_ns(&self) -> u64 {
        self.received.message_ns()
    }

    /// Notes that a message of the peer has arrived.
    #[inline]
    pub(in crate::proto) fn note_message(&mut self, now_ns: u64) {
        self.received.note_message(now_ns);
    }

    /// Returns the questions between the two engines.
    pub(in crate::proto) fn questions(&self) -> &Questions {
        self.received.questions()
    }

    /// Returns the same, mutable.
    pub(in crate::proto) fn questions_mut(&mut self) -> &mut Questions {
        self.received.questions_mut()
    }

    /// Notes a reason to leave the fast paths.
    #[inline]
    pub(in crate::proto) fn add_uncommon(&mut self, reason: Uncommon) {
        self.uncommon.add(reason);
    }

    /// Returns an unacknowledged segment, mutable.
    #[inline]
    pub(in crate::proto) fn segment_mut(&mut self, id: SegmentId) -> Option<&mut SegmentBuffer> {
        self.slots.get_mut(id)
    }

    /// Frees memory that an idle session does not need.
    pub(in crate::proto) fn shrink(&mut self) {
        self.control.shrink();
        if self.is_established() && self.slots.len() == 0 {
            self.slots.shrink();
            self.chain.shrink(self.next_frame);
            self.received.shrink();
        }
    }
}

#[cfg(any(test, feature = "sim"))]
impl Segments {
    /// Returns the number of unacknowledged segments.
    pub(crate) fn outstanding(&self) -> usize {
        self.slots.len()
    }

    /// Returns whether nothing is unacknowledged and no received frame is buffered.
    pub(crate) fn is_at_rest(&self) -> bool {
        let queues = [&self.lost, &self.urgent, &self.ready, &self.slow, &self.long];
        queues.iter().all(|queue| queue.len() == 0)
            && self.slots.len() == 0
            && self.open.is_none()
            && self.received.is_in_order()
    }

    /// Replaces the credit of messages to the peer and, unless it is 0, the limit that it advises.
    #[cfg(test)]
    pub(crate) fn set_send_credits(&mut self, credits: SendCredits, eager_limit: u32) {
        self.credits = credits;
        if eager_limit > 0 {
            self.eager_limit = self.eager_limit.with_most(eager_limit);
        }
    }

    /// Sets the first window of the peer to nothing, as if it granted it later.
    #[cfg(test)]
    pub(in crate::proto) fn forget_window(&mut self) {
        self.credits.forget_window();
    }

    /// Sets whether segments have checksums.
    #[cfg(test)]
    pub(in crate::proto) fn set_checksums(&mut self, has_checksums: bool) {
        self.able.has_checksums = has_checksums;
    }
}
