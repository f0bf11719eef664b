//! The configuration of a simulated engine, in one record: tests vary single values.

use super::super::session::Limits;
use super::super::session::connection::Retry;
use super::super::session::eager_limit::EagerPolicy;
use super::super::session::lanes::LaneLimits;
use super::super::session::offers::CreditLimits;
use super::super::session::rendezvous::limits::{ChunkLimits, PieceLimits, PullLimits};
use super::super::session::segments::StagingLimits;
use super::CoreConfig;
use super::RegionLimits;

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    /// Longest eager payload, in bytes.
    pub(crate) eager_limit: u32,
    /// Whether `eager_limit` is an upper bound, below which each session follows its peer's advice.
    pub(crate) is_eager_limit_advised: bool,
    /// Longest message that can be injected, in bytes.
    pub(crate) inject_limit: u32,
    /// Bytes that go with an RTS.
    pub(crate) rts_bytes: u32,
    /// Chunk length while only bulk data flows, in bytes.
    pub(crate) chunk_bytes: u32,
    /// Chunk length while messages arrive as well.
    pub(crate) busy_chunk_bytes: u32,
    /// Chunks granted ahead per lane.
    pub(crate) horizon_chunks: u32,
    /// Bulk lanes per session.
    pub(crate) bulk_lanes: u32,
    /// Bulk lanes of the engine.
    pub(crate) bulk_lanes_max: usize,
    /// Envelope credit per peer.
    pub(crate) envelope_credits: u32,
    /// Eager byte credit per peer.
    pub(crate) eager_credit_bytes: u32,
    /// Bound of all byte credits together.
    pub(crate) unexpected_bytes: u64,
    /// Bound of all envelope credits together.
    pub(crate) unexpected_messages: u64,
    /// Sends that may wait per session.
    pub(crate) send_queue_ops: usize,
    /// Outstanding operations.
    pub(crate) operations_max: usize,
    /// Sessions.
    pub(crate) sessions_max: usize,
    /// Memory for segments, as a number of buffers of this length.
    pub(crate) staging_bytes: usize,
    /// Number of these buffers.
    pub(crate) staging_buffers_max: usize,
    /// Connection attempts.
    pub(crate) retry: Retry,
    /// Duration of network outages that end no session although bulk lanes fail.
    pub(crate) outage_ns: u64,
    /// Idle time after which a bulk lane is closed.
    pub(crate) bulk_idle_ns: u64,
    /// Seed of the hash tables whose keys peers choose.
    pub(crate) hash_seed: u64,
    /// Limits on the memory that peers may access.
    pub(crate) regions: RegionLimits,
    /// Requires checksums in all sessions.
    pub(crate) checksum: bool,
    /// The engine answers questions although its owner makes no call.
    pub(crate) answers: bool,
    /// It answers questions about processes of its host.
    pub(crate) process_status: bool,
    /// The longest datagram that the NIC carries, in bytes.
    pub(crate) datagram_bytes: usize,
    /// Bytes of a buffer for a segment of one datagram, or of a ring; no less.
    pub(crate) segment_buffer_bytes: usize,
    /// Bulk data goes in datagrams, in all sessions.
    pub(crate) bulk_in_datagrams: bool,
    /// Eager messages that do not fit a datagram use the session's stream.
    pub(crate) eager_by_stream: bool,
    /// Longest message that is pulled by a ring although CMA could read it, in bytes.
    pub(crate) pieces_bytes_max: u32,
    /// Longest piece of a message that is copied through a ring, in bytes.
    pub(crate) piece_bytes: usize,
    /// Limit on bytes granted to all peers and outstanding in datagrams: the receive buffer space.
    pub(crate) datagram_window_bytes: u64,
}

impl Config {
    /// Returns small limits, and one bulk lane.
    pub(crate) const fn for_tests() -> Self {
        Self {
            eager_limit: 1000,
            is_eager_limit_advised: false,
            inject_limit: 1000,
            rts_bytes: 100,
            chunk_bytes: 4096,
            busy_chunk_bytes: 4096,
            horizon_chunks: 2,
            bulk_lanes: 1,
            bulk_lanes_max: 1,
            envelope_credits: 64,
            eager_credit_bytes: 4096,
            unexpected_bytes: 1 << 20,
            unexpected_messages: 1 << 10,
            send_queue_ops: 100,
            operations_max: 1000,
            sessions_max: 4,
            staging_bytes: 4096,
            staging_buffers_max: 4,
            retry: Retry { timeout_ns: 1000, retries: 1, delay_ns: 100, silent_ns: 1 },
            outage_ns: 5000,
            bulk_idle_ns: 1000,
            hash_seed: 1,
            regions: RegionLimits::DEFAULT,
            checksum: false,
            answers: true,
            process_status: true,
            datagram_bytes: 2048,
            segment_buffer_bytes: 2048,
            bulk_in_datagrams: false,
            eager_by_stream: false,
            pieces_bytes_max: 0,
            piece_bytes: 3000,
            datagram_window_bytes: 1 << 20,
        }
    }
}

impl From<Config> for CoreConfig {
    fn from(config: Config) -> Self {
        let most = Limits {
            session: 0,
            envelope_limit: config.envelope_credits,
            byte_limit: config.eager_credit_bytes,
            eager_limit: config.eager_limit,
            checksum: config.checksum,
            bulk_in_datagrams: config.bulk_in_datagrams,
            answers: config.answers,
            process_status: config.process_status,
        };
        Self {
            hash_seed: config.hash_seed,
            sessions_max: config.sessions_max,
            operations_max: config.operations_max,
            waiting_max: config.send_queue_ops,
            retry: config.retry,
            regions: config.regions,
            credit: CreditLimits::new(most, config.unexpected_messages, config.unexpected_bytes),
            eager: EagerPolicy::new(
                config.inject_limit,
                config.is_eager_limit_advised,
                config.eager_by_stream,
            ),
            pull: PullLimits::new(
                config.rts_bytes,
                ChunkLimits::new(
                    config.chunk_bytes,
                    config.busy_chunk_bytes,
                    config.horizon_chunks,
                ),
                PieceLimits::new(
                    (config.pieces_bytes_max, config.pieces_bytes_max.saturating_mul(4)),
                    config.piece_bytes,
                ),
                config.datagram_window_bytes,
            ),
            lanes: LaneLimits::new(
                config.bulk_lanes,
                config.bulk_lanes_max,
                config.bulk_idle_ns,
                config.retry.timeout_ns,
                config.outage_ns,
            ),
            staging: StagingLimits::new(
                config.staging_bytes,
                config.staging_buffers_max,
                config.datagram_bytes,
                config.segment_buffer_bytes,
            ),
        }
    }
}
