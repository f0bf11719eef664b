//! How the messages of a session travel: the table that each send indexes by its length.
//!
//! | row | longest message | travels as |
//! |---|---|---|
//! | [`Route::Segment`] | `segment_max`, with remote data | a frame in a short segment |
//! | [`Route::Stream`] | `stream_max` | a frame in a long segment on the TCP stream |
//! | [`Route::Pull`] | any | a request to send; pulled by a [`PullMethod`] |
//!
//! A row whose transport the session lacks is empty. The table changes with what the session can
//! do, with the length of its segments, and with what is measured of pieces and reads, and with
//! nothing else: what changes from message to message (credit, the eager limit, what is
//! outstanding) decides only between a row and the request to send.

use super::segment::LONG_PAYLOAD_BYTES;
use super::transport::Transport;
use crate::proto::session::rendezvous::limits::PullLimits;
use crate::wire::EAGER_BYTES_MAX;
use crate::wire::eager::EAGER_HEADER_BYTES;
use crate::wire::segment::SEGMENT_HEADER_BYTES;

/// The longest frame that goes in a datagram where TCP uses the same path: a datagram has a tag
/// over all of its bytes, which at 8 KiB costs more than the stream does.
const SHORT_FRAME_BYTES_MAX: usize = 2048;

/// Classes of lengths that are pulled either way, at most.
pub(in crate::proto) const CLASSES: usize = 5;

/// What a session can do. What follows from that is in its [`SendProtocol`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Capabilities {
    /// Segments and chunks on TCP connections have checksums: memory copies need them too, and
    /// neither pieces nor reads from memory have any.
    pub(super) has_checksums: bool,
    /// Datagrams carry segments, too.
    pub(super) has_datagrams: bool,
    /// The peer is this engine.
    is_loopback: bool,
    /// Messages that do not fit a short segment go on the TCP stream, in long ones.
    has_stream: bool,
    /// Both sides have a ring in shared memory.
    has_ring: bool,
    /// The peer can read messages from this process's memory.
    has_cma: bool,
    /// Bulk data goes in datagrams.
    pub(super) has_bulk: bool,
}

impl Capabilities {
    /// Those of a newly established session, whose control connection carries everything.
    pub(super) fn of_connection(is_loopback: bool, has_checksums: bool) -> Self {
        Self { has_stream: true, is_loopback, has_checksums, ..Self::default() }
    }

    /// Datagrams carry segments, and bulk data if `has_bulk`; the stream is not chosen yet.
    pub(super) fn with_datagrams(self, has_bulk: bool) -> Self {
        let has_checksums = self.has_checksums;
        Self { has_datagrams: true, has_bulk, has_checksums, ..Self::default() }
    }

    /// The TCP stream takes long segments, or does not.
    pub(super) fn with_stream(self, is_chosen: bool) -> Self {
        Self { has_stream: is_chosen, ..self }
    }

    /// There is a ring, or none.
    pub(super) fn with_ring(self, is_there: bool) -> Self {
        Self { has_ring: is_there, ..self }
    }

    /// The peer can read this process's memory, or cannot.
    pub(super) fn with_memory_reads(self, is_able: bool) -> Self {
        Self { has_cma: is_able, ..self }
    }

    /// As [`SendProtocol::transport`].
    pub(super) fn transport(self) -> Option<Transport> {
        match self {
            Self { has_ring: true, .. } => Some(Transport::Ring),
            Self { has_datagrams: true, .. } => None,
            _ => Some(Transport::Stream),
        }
    }
}

/// How a message travels.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Route {
    /// Whole, in a segment with others: a datagram, a segment of the ring, or, without datagrams, a
    /// short one on the TCP stream.
    Segment,
    /// Whole, in a long segment on the TCP stream.
    Stream,
    /// The receiver pulls it.
    Pull(PullMethod),
}

/// How the receiver gets the bytes of a message that it pulls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PullMethod {
    /// It reads them from the memory of the sender's process.
    Memory,
    /// The sender writes them into the ring, in pieces.
    Pieces,
    /// The sender writes granted ranges into TCP lanes.
    Lanes,
    /// The sender sends granted ranges in datagrams.
    Datagrams,
}

/// The table of a session; see the module.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SendProtocol {
    segment_max: u32,
    stream_max: u32,
    /// Longer messages on the stream are pulled while a long segment is unacknowledged: a single
    /// one would wait for its grant, and of several each is copied less if it is pulled.
    stream_shared_max: u32,
    /// Shorter pulled messages, and longer ones.
    pull: [PullMethod; 2],
    /// The longest of the shorter ones.
    pull_short_max: u32,
    /// The longest of those that are pulled either way, as measured; 0: there are none.
    either_max: u32,
    /// Classes of these that are pulled in pieces ([`Self::class_of`]), a bit each.
    classes_in_pieces: u8,
    /// As [`Self::transport`].
    transport: Option<Transport>,
}

impl SendProtocol {
    /// The table of a session that is not established: nothing is sent.
    pub(super) const NONE: Self = Self {
        segment_max: 0,
        stream_max: 0,
        stream_shared_max: 0,
        pull: [PullMethod::Lanes; 2],
        pull_short_max: 0,
        either_max: 0,
        classes_in_pieces: 0,
        transport: Some(Transport::Stream),
    };

    /// Computes the table of a session whose segments have at most `segment_bytes`.
    pub(super) fn of(able: Capabilities, segment_bytes: usize, limits: &PullLimits) -> Self {
        let transport = able.transport();
        let is_by_ring = transport == Some(Transport::Ring);
        let (in_pieces, from_memory) =
            (is_by_ring && !able.has_checksums, able.has_cma && !able.has_checksums);
        // A ring takes everything that fits a segment: up to there it is faster than a read from
        // memory.
        let has_better_way = able.has_stream && !is_by_ring;
        let most = if has_better_way { SHORT_FRAME_BYTES_MAX } else { usize::MAX };
        let frame_max = (segment_bytes - SEGMENT_HEADER_BYTES).min(most);
        let segment_max = (frame_max - EAGER_HEADER_BYTES) as u32;
        // Where both sides share memory, other ways are faster than the stream.
        let by_stream = able.has_stream && !in_pieces && !from_memory;
        // What a session with itself pulls is copied once, from the send's memory. Grants of bulk
        // data in datagrams would share the path with it.
        let (stream_max, stream_shared_max) = match by_stream {
            false => (0, 0),
            true if able.is_loopback => (LONG_PAYLOAD_BYTES, LONG_PAYLOAD_BYTES),
            true if able.has_bulk => (EAGER_BYTES_MAX, EAGER_BYTES_MAX),
            true => (EAGER_BYTES_MAX, LONG_PAYLOAD_BYTES),
        };
        let other = match (in_pieces, able.has_bulk) {
            (true, _) => PullMethod::Pieces,
            (false, true) => PullMethod::Datagrams,
            (false, false) => PullMethod::Lanes,
        };
        // Two copies of a short message by the ring are faster than one by a system call.
        let pull_short_max = if in_pieces { limits.by_ring_max() } else { 0 };
        let either_max = match in_pieces && from_memory {
            true => limits.by_ring_if_faster_max().min(pull_short_max.saturating_mul(1 << CLASSES)),
            false => 0,
        };
        Self {
            segment_max,
            stream_max: stream_max as u32,
            stream_shared_max: stream_shared_max as u32,
            pull: if from_memory { [other, PullMethod::Memory] } else { [other; 2] },
            pull_short_max,
            either_max,
            classes_in_pieces: 0,
            transport,
        }
    }

    /// Returns what carries short segments, if that loses nothing and acknowledges nothing itself;
    /// `None`: datagrams. While no path is open, it is the stream instead of these.
    #[inline]
    pub(crate) fn transport(&self) -> Option<Transport> {
        self.transport
    }

    /// Returns the route of a message of `length` bytes with `data_bytes` of remote data, before
    /// limits that change from message to message.
    #[inline]
    pub(crate) fn route(&self, length: u64, data_bytes: usize) -> Route {
        if length.saturating_add(data_bytes as u64) <= u64::from(self.segment_max) {
            Route::Segment
        } else if length <= u64::from(self.stream_max) {
            Route::Stream
        } else {
            Route::Pull(self.pull_method(length))
        }
    }

    /// Returns how the receiver pulls a message of `length` bytes.
    #[inline]
    pub(crate) fn pull_method(&self, length: u64) -> PullMethod {
        match self.class_of(length) {
            Some(class) if self.classes_in_pieces >> class & 1 == 1 => self.granted_by(),
            _ => self.one_sided_method(length),
        }
    }

    /// Returns how `length` bytes of a put or get are pulled: what is measured of messages does not
    /// apply, as these are granted first if they go in pieces.
    pub(in crate::proto) fn one_sided_method(&self, length: u64) -> PullMethod {
        self.pull[usize::from(length > self.pull_short_max.into())]
    }

    /// Returns the class of a message of `length` bytes that is pulled either way, as measured: up
    /// to twice, four times ... the longest of the shorter ones. `None`: it is pulled one way.
    pub(in crate::proto) fn class_of(&self, length: u64) -> Option<usize> {
        let shorter = u64::from(self.pull_short_max);
        let is_either = length > shorter && length <= self.either_max.into();
        is_either.then(|| ((length - 1) / shorter).ilog2() as usize)
    }

    /// Sets whether messages of a class are pulled as the shorter ones, in pieces.
    pub(in crate::proto) fn set_pieces(&mut self, class: usize, are_pieces: bool) {
        let bit = 1 << class;
        self.classes_in_pieces = self.classes_in_pieces & !bit | if are_pieces { bit } else { 0 };
    }

    /// Returns how the receiver gets what it cannot read from the sender's memory.
    #[inline]
    pub(super) fn granted_by(&self) -> PullMethod {
        let [granted, _] = self.pull;
        debug_assert!(granted != PullMethod::Memory, "memory is announced, not granted");
        granted
    }

    /// Returns whether a message of [`Route::Stream`] is pulled while `long` long segments are
    /// unacknowledged.
    #[inline]
    pub(super) fn pulls_beside(&self, length: u64, long: usize) -> bool {
        long > 0 && length > u64::from(self.stream_shared_max)
    }

    /// Returns the ranges of lengths that take the same route, each with its longest message,
    /// without remote data; the last one is unlimited. Messages above `eager_limit` are pulled.
    pub(crate) fn ranges(&self, eager_limit: u64) -> Vec<(u64, Route)> {
        let eager = [(self.segment_max, Route::Segment), (self.stream_max, Route::Stream)];
        let eager = eager.map(|(longest, route)| (u64::from(longest).min(eager_limit), route));
        let shorter = u64::from(self.pull_short_max);
        let doubled = (1..=CLASSES).map(|class| shorter << class);
        let bounds = std::iter::once(shorter)
            .chain(doubled.take_while(|&longest| longest <= self.either_max.into()))
            .chain((self.either_max > self.pull_short_max).then(|| self.either_max.into()))
            .chain([u64::MAX]);
        let pulled = bounds.map(|longest| (longest, Route::Pull(self.pull_method(longest))));
        let mut ranges: Vec<(u64, Route)> = Vec::new();
        for (longest, route) in eager.into_iter().chain(pulled) {
            match ranges.last_mut() {
                Some(last) if last.0 >= longest => {}
                Some(last) if last.1 == route => last.0 = longest,
                _ => ranges.push((longest, route)),
            }
        }
        ranges
    }

    /// Returns the longest payload of a frame, of which `short` bytes fit a segment: a long one on
    /// the stream takes up to `long`.
    #[inline]
    pub(in crate::proto) fn payload_max(&self, short: u64, long: u64) -> u64 {
        if self.stream_max > 0 { long.max(short) } else { short }
    }

    /// Returns the longest message that is sent without a pull, whatever its credit is, in bytes.
    #[inline]
    pub(super) fn eager_max(&self) -> u32 {
        self.stream_max.max(self.segment_max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::session::rendezvous::limits::{ChunkLimits, PieceLimits};

    /// What fits a datagram of an Ethernet frame.
    const PATH: usize = 1400;
    /// A segment of a ring.
    const RING: usize = 9000;
    const PIECES_MAX: u64 = 32 << 10;

    fn limits() -> PullLimits {
        let pieces = PieceLimits::new((PIECES_MAX as u32, 4 * PIECES_MAX as u32), 3000);
        PullLimits::new(0, ChunkLimits::new(4096, 4096, 2), pieces, 1 << 20)
    }

    fn protocol(able: Capabilities, segment_bytes: usize) -> SendProtocol {
        SendProtocol::of(able, segment_bytes, &limits())
    }

    /// The longest message without remote data that one segment takes.
    fn in_segment(bytes: usize) -> u64 {
        (bytes - SEGMENT_HEADER_BYTES - EAGER_HEADER_BYTES) as u64
    }

    /// The routes of lengths, each with the last length that takes it.
    fn rows(protocol: &SendProtocol) -> Vec<(u64, Route)> {
        let mut rows: Vec<(u64, Route)> = Vec::new();
        for length in 0..=2 * EAGER_BYTES_MAX as u64 {
            let route = protocol.route(length, 0);
            match rows.last_mut() {
                Some(row) if row.1 == route => row.0 = length,
                _ => rows.push((length, route)),
            }
        }
        rows.last_mut().unwrap().0 = u64::MAX;
        assert_eq!(protocol.route(u64::MAX, 8), rows.last().unwrap().1);
        assert_eq!(protocol.ranges(u64::MAX), rows);
        rows
    }

    #[test]
    fn without_a_stream_longer_messages_are_pulled_over_lanes() {
        let pull = Route::Pull(PullMethod::Lanes);
        assert_eq!(
            rows(&protocol(Capabilities::default(), PATH)),
            [(in_segment(PATH), Route::Segment), (u64::MAX, pull)]
        );
        let bulk = Capabilities { has_bulk: true, ..Capabilities::default() };
        let pull = protocol(bulk, PATH).pull_method(1 << 20);
        assert_eq!(pull, PullMethod::Datagrams);
    }

    #[test]
    fn a_stream_takes_what_fits_no_datagram() {
        let able = Capabilities { has_stream: true, ..Capabilities::default() };
        let table = protocol(able, PATH);
        let expected = [
            (in_segment(PATH), Route::Segment),
            (EAGER_BYTES_MAX as u64, Route::Stream),
            (u64::MAX, Route::Pull(PullMethod::Lanes)),
        ];
        assert_eq!(rows(&table), expected);
        assert_eq!(table.eager_max() as usize, EAGER_BYTES_MAX);
        assert_eq!([table.payload_max(8, 20), table.payload_max(30, 20)], [20, 30]);
        let long = protocol(able, RING);
        assert_eq!(rows(&long)[0].0, (SHORT_FRAME_BYTES_MAX - EAGER_HEADER_BYTES) as u64);
        let shared = LONG_PAYLOAD_BYTES as u64;
        for (length, long, is_pulled) in
            [(shared, 1, false), (shared + 1, 0, false), (shared + 1, 1, true)]
        {
            assert_eq!(table.pulls_beside(length, long), is_pulled);
            let bulk = protocol(Capabilities { has_bulk: true, ..able }, PATH);
            assert!(!bulk.pulls_beside(length, long), "grants would share the path");
        }
    }

    #[test]
    fn a_ring_takes_whole_segments() {
        for (has_cma, has_stream) in [(false, false), (true, false), (true, true)] {
            let able =
                Capabilities { has_stream, has_ring: true, has_cma, ..Capabilities::default() };
            let table = protocol(able, RING);
            let mut expected = vec![(in_segment(RING), Route::Segment)];
            if has_cma {
                expected.push((PIECES_MAX, Route::Pull(PullMethod::Pieces)));
            }
            let last = if has_cma { PullMethod::Memory } else { PullMethod::Pieces };
            expected.push((u64::MAX, Route::Pull(last)));
            assert_eq!(rows(&table), expected, "stream: {has_stream}");
            assert_eq!(table.payload_max(8, 20), 8, "frames that fit no segment are pulled");
            assert_eq!(table.transport(), Some(Transport::Ring));
        }
    }

    #[test]
    fn longer_messages_of_a_ring_go_in_pieces_where_these_are_faster_than_reads() {
        let able = Capabilities { has_ring: true, has_cma: true, ..Capabilities::default() };
        let mut table = protocol(able, RING);
        let before = table;
        let classes = [1, 2, 3, 4, 5].map(|times| table.class_of(times * PIECES_MAX));
        assert_eq!(classes, [None, Some(0), Some(1), Some(1), None]);
        assert_eq!(table.class_of(PIECES_MAX + 1), Some(0));
        let (pieces, memory) = (Route::Pull(PullMethod::Pieces), Route::Pull(PullMethod::Memory));
        let segment = (in_segment(RING), Route::Segment);
        table.set_pieces(1, true);
        assert_eq!(
            rows(&table),
            [
                segment,
                (PIECES_MAX, pieces),
                (2 * PIECES_MAX, memory),
                (4 * PIECES_MAX, pieces),
                (u64::MAX, memory)
            ]
        );
        table.set_pieces(0, true);
        assert_eq!(rows(&table), [segment, (4 * PIECES_MAX, pieces), (u64::MAX, memory)]);
        let of_puts = [PIECES_MAX, PIECES_MAX + 1].map(|length| table.one_sided_method(length));
        assert_eq!(
            of_puts,
            [PullMethod::Pieces, PullMethod::Memory],
            "nothing is measured of them"
        );
        (0..2).for_each(|class| table.set_pieces(class, false));
        assert_eq!(table, before);
        let alone = protocol(Capabilities { has_cma: false, ..able }, RING);
        assert_eq!(alone.class_of(PIECES_MAX + 1), None, "there is one way");
    }

    /// RR-SUM-1
    #[test]
    fn checksums_keep_long_messages_from_shared_memory() {
        let able = Capabilities {
            has_checksums: true,
            has_datagrams: true,
            has_ring: true,
            has_cma: true,
            ..Capabilities::default()
        };
        let table = protocol(able, RING);
        let pull = Route::Pull(PullMethod::Lanes);
        assert_eq!(rows(&table), [(in_segment(RING), Route::Segment), (u64::MAX, pull)]);
        assert_eq!(table.transport(), Some(Transport::Ring));
    }

    #[test]
    fn a_session_with_itself_copies_what_is_longer_than_a_segment() {
        let able = Capabilities { has_stream: true, is_loopback: true, ..Capabilities::default() };
        let table = protocol(able, PATH);
        assert_eq!(table.route(LONG_PAYLOAD_BYTES as u64, 8), Route::Stream);
        let beyond = LONG_PAYLOAD_BYTES as u64 + 1;
        assert_eq!(table.route(beyond, 0), Route::Pull(PullMethod::Lanes));
        assert_eq!(u64::from(table.eager_max()), beyond - 1);
    }

    #[test]
    fn memory_of_the_sender_is_read_where_nothing_else_is_shared() {
        let able = Capabilities { has_cma: true, has_stream: true, ..Capabilities::default() };
        let table = protocol(able, PATH);
        let pull = Route::Pull(PullMethod::Memory);
        assert_eq!(rows(&table), [(in_segment(PATH), Route::Segment), (u64::MAX, pull)]);
        assert_eq!(u64::from(table.eager_max()), in_segment(PATH));
    }

    #[test]
    fn remote_data_counts_where_a_message_shares_a_segment() {
        let table = protocol(Capabilities::default(), PATH);
        let most = in_segment(PATH);
        assert_eq!(table.route(most - 8, 8), Route::Segment);
        assert_eq!(table.route(most - 7, 8), Route::Pull(PullMethod::Lanes));
    }
}
