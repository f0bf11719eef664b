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
//! As in [`super::core`], with these in addition to `handle_bytes`:
//!
//! 1. [`Core::handle_lone_segment`] for received datagrams;
//! 2. [`Session::handle_segment_acked`] and [`Session::handle_segment_lost`] for packets that the
//!    path of a lane declares acknowledged or lost; a packet may be acknowledged to the peer only
//!    after [`Core::handle_lone_segment`] has handled it. [`Session::resend_all`] when a lane that
//!    carried segments is abandoned;
//! 3. [`Session::poll_segment`] for each session of [`Work::Flush`], while the lane accepts
//!    more; a session whose lane was full is polled again when there is space; for the control
//!    connection [`Session::poll_segment_for_stream`] while no path carries segments;
//! 4. in addition, while a path does and the session's TCP lane is on it ([`Session::use_stream`]),
//!    [`Session::poll_long`] for segments to send on it;
//! 5. [`Core::poll_acknowledgements`] for what was received from streams and rings.

mod acknowledged;
mod fast_path;
mod incoming;
pub(crate) mod order;
mod outgoing;
mod protocol;
mod room;
pub(crate) mod segment;
mod staging;
mod stream;
#[cfg(test)]
mod tests;
mod transport;
pub(in crate::proto) mod uncommon;
pub(crate) mod window;

use self::order::{Chain, ReorderBuffer};
use self::protocol::Capabilities;
use self::segment::{List, Order, SegmentPool};
use self::uncommon::Uncommon;
use self::window::Arrivals;
use super::context::Cx;
use super::core::{Config, Core};
use super::session::Session;
use super::table::Id;
use crate::proto::ready::Work;
use crate::wire::rts::RTS_HEADER_BYTES;
use crate::wire::segment::SEGMENT_HEADER_BYTES;

pub(crate) use self::outgoing::{Asks, Lone, Outgoing, append_segment};
pub(crate) use self::protocol::{PullMethod, Route, SendProtocol};
pub(crate) use self::staging::{stage_in_segment, stage_put};
pub(super) use self::transport::{PendingAck, Transport};

/// A segment has space for an envelope and some payload.
const SEGMENT_BYTES_MIN: usize = SEGMENT_HEADER_BYTES + RTS_HEADER_BYTES + 80;

impl SegmentPool {
    /// Creates a pool. Short and long segments may each use the memory that `staging_bytes` and
    /// `staging_buffers_max` allow, if short ones are filled up to the NIC's datagram length.
    /// Segments for rings may use more.
    pub(super) fn of(config: &Config) -> Self {
        let bytes = config.staging_bytes.saturating_mul(config.staging_buffers_max);
        Self::new(config.segment_buffer_bytes, bytes).with_usual_bytes(config.datagram_bytes, bytes)
    }

    /// Returns the length of segments closest to this that buffers take.
    fn clamp(&self, segment_bytes: usize) -> usize {
        segment_bytes.clamp(SEGMENT_BYTES_MIN, self.buffer_bytes())
    }
}

#[cfg(any(test, feature = "sim"))]
impl Segments {
    /// Returns the number of unacknowledged segments.
    pub(crate) fn outstanding(&self) -> usize {
        self.outstanding.len()
    }

    /// Returns whether nothing is unacknowledged and no received frame is buffered.
    pub(crate) fn is_at_rest(&self) -> bool {
        let lists =
            [&self.outstanding, &self.lost, &self.urgent, &self.ready, &self.slow, &self.long];
        lists.iter().all(|list| list.len() == 0)
            && self.open.is_none()
            && self.reorder_buffer.is_empty()
    }
}

impl Session {
    /// Returns whether a frame has arrived before one that is missing.
    pub(super) fn has_early_frames(&self) -> bool {
        self.segments.as_ref().is_some_and(|segments| segments.arrivals.has_early())
    }

    /// Frees memory that its queues do not need.
    fn shrink(&mut self) {
        self.control.shrink();
        self.waiting.shrink_to_fit();
        self.rendezvous.shrink();
        self.lanes.shrink();
    }

    /// Returns whether the peer has acknowledged everything, and nothing waits.
    fn is_acknowledged(&self) -> bool {
        self.control.is_empty()
            && self.segments.as_deref().is_none_or(|it| it.outstanding.len() == 0)
    }

    /// Returns whether a frame waits for its first transmission, or for another one.
    fn has_unsent(&self) -> bool {
        let waits = |it: &Segments| it.waits() || it.long.len() > 0;
        !self.control.is_empty() || self.segments.as_deref().is_some_and(waits)
    }

    /// Returns whether everything is acknowledged, or, without datagrams, appended to the bytes for
    /// the control connection.
    fn is_sent(&self) -> bool {
        if self.has_datagrams() { self.is_acknowledged() } else { !self.has_unsent() }
    }
}

/// The segments of a session, sent and received.
#[derive(Debug)]
pub(crate) struct Segments {
    /// Longest segment built now, header included.
    segment_bytes: usize,
    /// The same without a ring: the smallest segment size of its paths.
    path_bytes: usize,
    /// Limit on segments of messages that wait for their first transmission.
    unsent_max: usize,
    /// All segments.
    outstanding: List,
    /// Segments to be retransmitted.
    lost: List,
    /// Segments to be sent that hold control frames.
    urgent: List,
    /// Other segments to be sent.
    ready: List,
    /// Bulk data, sent when nothing else waits.
    slow: List,
    /// Long segments, to be sent on the stream.
    long: List,
    /// Number of all long segments.
    long_held: usize,
    /// Bytes of acknowledged long segments.
    long_delivered: u64,
    /// A user's send waits for a segment sent since the last acknowledgement request.
    ack_awaited: bool,
    able: Capabilities,
    /// How its messages travel, by what it can do.
    protocol: SendProtocol,
    open: Option<OpenSegment>,
    next_frame: u32,
    /// The first frame that is not known to have arrived: the oldest outstanding one, or else the
    /// next one.
    base: u32,
    chain: Chain,
    /// Credit was announced in a datagram that may be lost, and no later one repeats it, or an
    /// acknowledgement has to be requested.
    update_due: bool,
    /// Reasons to leave the fast paths.
    uncommon: Uncommon,
    /// End of the frames for which the peer has requested an acknowledgement.
    asked_end: u32,
    header_only: [u8; SEGMENT_HEADER_BYTES],

    arrivals: Arrivals,
    reorder_buffer: ReorderBuffer,
    /// Frame and reason of the peer's goodbye.
    goodbye: Option<(u32, u8)>,
    /// Frames that arrived more than once.
    repeated_frames: u64,
}

/// The segment that takes more frames.
#[derive(Clone, Copy, Debug)]
struct OpenSegment {
    id: Id,
    /// Bytes that are free for frames.
    room: usize,
}

/// Returns the limit on segments of messages that wait for their first transmission.
fn unsent_max(segment_bytes: usize, config: &Config) -> usize {
    (config.staging_bytes / segment_bytes).max(1)
}

impl Segments {
    fn new(able: Capabilities, segment_bytes: usize, config: &Config) -> Self {
        let seed = config.hash_seed;
        Self {
            segment_bytes,
            path_bytes: segment_bytes,
            unsent_max: unsent_max(segment_bytes, config),
            outstanding: List::new(Order::Frames),
            lost: List::new(Order::Queue),
            urgent: List::new(Order::Queue),
            ready: List::new(Order::Queue),
            slow: List::new(Order::Queue),
            long: List::new(Order::Queue),
            long_held: 0,
            long_delivered: 0,
            ack_awaited: false,
            able,
            protocol: SendProtocol::of(able, segment_bytes, config),
            open: None,
            next_frame: 0,
            base: 0,
            chain: Chain::new(seed),
            update_due: false,
            uncommon: Uncommon::default(),
            asked_end: 0,
            header_only: [0; SEGMENT_HEADER_BYTES],
            arrivals: Arrivals::default(),
            reorder_buffer: ReorderBuffer::new(seed),
            goodbye: None,
            repeated_frames: 0,
        }
    }
}

impl Segments {
    /// Sets the length of new segments to what their transport takes: a ring takes any.
    fn fit_segments(&mut self, pool: &mut SegmentPool, config: &Config) {
        self.close_open(pool);
        self.segment_bytes = if self.able.has_ring { pool.buffer_bytes() } else { self.path_bytes };
        self.protocol = SendProtocol::of(self.able, self.segment_bytes, config);
    }

    /// Sets what the session can do. Returns whether that has changed.
    fn set_capabilities(&mut self, able: Capabilities, config: &Config) -> bool {
        self.protocol = SendProtocol::of(able, self.segment_bytes, config);
        std::mem::replace(&mut self.able, able) != able
    }

    /// Returns whether datagrams carry segments, too.
    #[inline]
    pub(crate) fn has_datagrams(&self) -> bool {
        self.able.has_datagrams
    }

    /// Returns how its messages travel.
    #[inline]
    pub(crate) fn protocol(&self) -> &SendProtocol {
        &self.protocol
    }

    /// Returns whether segments go by a ring in shared memory.
    pub(crate) fn has_ring(&self) -> bool {
        self.able.has_ring
    }

    /// Notes that credit was announced in a datagram that may be lost, and no later one repeats it,
    /// or that an acknowledgement has to be requested.
    fn note_update_due(&mut self) {
        self.update_due = true;
        self.uncommon.add(Uncommon::UPDATE);
    }

    /// Returns whether a segment without frames has to be sent.
    pub(in crate::proto) fn has_update_due(&self) -> bool {
        self.update_due
    }

    /// Sets whether the peer can read messages from this process's memory.
    pub(super) fn set_cma(&mut self, has_cma: bool, config: &Config) {
        self.set_capabilities(Capabilities { has_cma, ..self.able }, config);
    }
}

/// Queries of fences.
impl Segments {
    /// Returns the number of the next frame.
    pub(in crate::proto) fn next_frame(&self) -> u32 {
        self.next_frame
    }

    /// Returns whether the peer has acknowledged all frames before `end`.
    pub(in crate::proto) fn has_acked_before(&self, pool: &SegmentPool, end: u32) -> bool {
        debug_assert!(self.is_base_current(pool));
        self.outstanding.len() == 0 || !window::is_before(self.base, end)
    }

    /// Returns the first frame that the peer has not acknowledged.
    pub(in crate::proto) fn acknowledged_before(&self) -> u32 {
        self.base
    }

    /// Requests an early acknowledgement of unacknowledged frames: send `id` waits for it.
    pub(in crate::proto) fn request_early_ack(&mut self, pool: &mut SegmentPool, id: Id) {
        if self.outstanding.len() == 0 {
            return;
        }
        let is_lossless = self.able.has_ring || !self.able.has_datagrams;
        self.ack_awaited |= self.long.len() > 0 || is_lossless;
        // Segments sent by a transport that loses none have requested none.
        if is_lossless {
            self.note_update_due();
        }
        let newest = self.outstanding.last(pool).and_then(|newest| pool.get_mut(newest));
        if let Some(segment) = newest {
            segment.operations.push(id);
        }
    }
}

impl Session {
    /// Lets the newly established session send segments, by its control connection. That is memory
    /// where it `is_loopback`: there the receiver copies long messages from the sends' memory.
    pub(in crate::proto) fn begin_segments(&mut self, cx: &mut Cx<'_>, is_loopback: bool) {
        // Buffers are as long as the longest datagram; segments fill what is usual of them.
        let segment_bytes = cx.shared.pool.clamp(cx.shared.config.datagram_bytes);
        let able = Capabilities { has_stream: true, is_loopback, ..Capabilities::default() };
        debug_assert!(self.segments.is_none(), "the last session has ended");
        let mut segments = Segments::new(able, segment_bytes, &cx.shared.config);
        // Sends and control frames may have been queued before.
        segments.uncommon.add(Uncommon::WAITING);
        segments.uncommon.add(Uncommon::CONTROL);
        self.segments = Some(Box::new(segments));
    }

    /// Lets the newly established session, which has sent nothing, use datagrams. `segment_bytes`:
    /// the smallest size among its lanes of one datagram's content.
    pub(crate) fn use_datagrams(&mut self, cx: Cx<'_>, segment_bytes: usize) {
        let segment_bytes = cx.shared.pool.clamp(segment_bytes);
        let has_bulk = self.bulk_in_datagrams;
        let Some(segments) = self.segments.as_deref_mut() else { return };
        debug_assert!(segments.next_frame == 0, "its first segments are built for its paths");
        segments.able = Capabilities { has_datagrams: true, has_bulk, ..Capabilities::default() };
        if has_bulk {
            self.rendezvous.use_datagrams();
            segments.uncommon.add(Uncommon::BULK);
        }
        segments.path_bytes = segment_bytes;
        segments.unsent_max = unsent_max(segment_bytes, &cx.shared.config);
        segments.fit_segments(&mut cx.shared.pool, &cx.shared.config);
    }

    /// Sets the smallest datagram content of its lanes. Longer segments built before use a lane
    /// that takes them: a stream takes any.
    pub(crate) fn set_segment_bytes(&mut self, cx: Cx<'_>, segment_bytes: usize) {
        let segment_bytes = cx.shared.pool.clamp(segment_bytes);
        if let Some(segments) = self.segments.as_deref_mut() {
            segments.path_bytes = segment_bytes;
            segments.fit_segments(&mut cx.shared.pool, &cx.shared.config);
        }
    }

    /// Sets whether messages that do not fit a datagram use the session's stream. Segments already
    /// built for the stream wait for one.
    ///
    /// RR-DGRAM-12.
    pub(crate) fn use_stream(&mut self, mut cx: Cx<'_>, has_stream: bool) {
        let has_waiting = self.has_waiting();
        let Some(segments) = self.segments.as_deref_mut() else { return };
        if !segments.able.has_datagrams {
            return;
        }
        let able = Capabilities { has_stream, ..segments.able };
        if segments.set_capabilities(able, &cx.shared.config) && has_waiting {
            // Waiting sends may have another transport now.
            cx.add_work(Work::Stage);
        }
    }

    /// Returns the longest message that is sent eagerly to the peer now, in bytes.
    pub(crate) fn eager_limit_now(&self, config: &Config) -> u32 {
        let limit = self.segments.as_deref().map_or(0, |it| it.protocol.eager_max());
        limit.min(config.eager_limit).min(self.eager_limit.bytes())
    }

    /// Returns the same; `None`: the session is not connected.
    pub(crate) fn eager_limit_if_connected(&self, config: &Config) -> Option<u64> {
        self.is_connected().then(|| self.eager_limit_now(config).into())
    }

    /// Returns whether it has nothing queued, and everything sent is acknowledged, or, without
    /// datagrams, appended to the bytes for its control connection.
    pub(crate) fn is_settled(&self) -> bool {
        self.has_all_staged() && self.is_sent()
    }

    /// Returns whether the peer has acknowledged the goodbye of [`Core::leave`], and everything
    /// before it. Without datagrams the session also ends when the peer's kernel has all of that.
    ///
    /// RR-END-1.
    pub(crate) fn has_left(&self) -> bool {
        self.is_leaving && self.is_connected() && self.is_acknowledged()
    }

    /// Returns whether the goodbye of [`Core::leave`] and everything before it is appended to the
    /// bytes for the control connection.
    pub(in crate::proto) fn has_staged_goodbye(&self) -> bool {
        self.is_leaving && self.is_connected() && !self.has_unsent()
    }

    /// Returns whether a message whose send has completed may be lost with the session, because
    /// the peer has not acknowledged all of it.
    ///
    /// RR-END-5.
    pub(in crate::proto) fn may_lose_completed(&self, pool: &SegmentPool) -> bool {
        let Some(segments) = self.segments.as_deref() else { return false };
        let first = segments.outstanding.first(pool);
        let mut outstanding =
            std::iter::successors(first, |&id| segments.outstanding.next(pool, id));
        outstanding.any(|id| pool.get(id).is_some_and(|segment| segment.completes_unacked))
    }

    /// Returns whether a peer that ends the session now has everything except the goodbye: that is
    /// acknowledged, or, without datagrams, appended to the bytes for the connection.
    pub(crate) fn is_goodbye_under_way(&self) -> bool {
        let is_under_way = match self.segments.as_deref() {
            Some(it) if it.able.has_datagrams => it.outstanding.len() <= 1,
            _ => !self.has_unsent(),
        };
        self.is_leaving && self.control.is_empty() && is_under_way
    }

    /// Returns the number of frames made and received.
    pub(in crate::proto) fn frames_moved(&self) -> u64 {
        let made = self.segments.as_deref().map_or(0, |segments| segments.next_frame);
        u64::from(made) + u64::from(self.expected_frame)
    }

    /// Frees memory that an idle session does not need.
    pub(crate) fn shrink_idle(&mut self) {
        self.shrink();
        if let Some(segments) = self.segments.as_deref_mut()
            && segments.outstanding.len() == 0
        {
            segments.chain.shrink(segments.next_frame);
            segments.arrivals.shrink();
            segments.reorder_buffer.shrink();
        }
    }
}

impl Core {
    /// Selects the ring for segments, or none: then unacknowledged segments are sent again.
    ///
    /// RR-SHM-8.
    pub(crate) fn use_ring(&mut self, slot: u32, ring: Option<u32>) {
        let Some(session) = self.sessions.at_mut(slot as usize) else { return };
        let Some(segments) = session.segments.as_deref_mut() else { return };
        // Sessions with checksums need them on memory copies too, and pieces have none.
        let piece_ring = ring.filter(|_| !session.has_checksums);
        let before = segments.able;
        let (has_ring, takes_pieces) = (ring.is_some(), piece_ring.is_some());
        segments.able = Capabilities { has_ring, takes_pieces, ..before };
        segments.fit_segments(&mut self.shared.pool, &self.shared.config);
        if before.takes_pieces != takes_pieces && session.has_waiting() {
            // Waiting sends may have another transport now.
            self.shared.ready.add(slot, Work::Stage);
        }
        self.with(slot, |it, mut cx| it.use_ring_for_pieces(&mut cx, piece_ring));
        if before.has_ring && !has_ring && !planted!(ForgetRing) {
            self.with(slot, |it, cx| it.resend_all(cx, true));
        }
    }

    /// Ends the segments of a session: they return to the pool; buffered messages are dropped,
    /// since the frames that they wait for will not arrive.
    ///
    /// RR-DGRAM-9.
    pub(super) fn drop_segments(&mut self, slot: u32) {
        let Some(session) = self.sessions.at_mut(slot as usize) else { return };
        let Some(mut segments) = session.segments.take() else { return };
        let pool = &mut self.shared.pool;
        while let Some(id) = segments.outstanding.first(pool) {
            segments.outstanding.unlink(pool, id);
            if planted!(LeakSegments) {
                continue;
            }
            if let Some(segment) = pool.take(id) {
                pool.recycle(segment);
            }
        }
        for held in segments.reorder_buffer.drain() {
            session.envelopes.consume(1);
            session.bytes.consume(held.payload_bytes as u32);
            self.shared.unexpected.give_back(held.payload);
        }
    }
}
