//! Statistics of an engine, and their export.

pub(crate) mod exporter;
mod prometheus;
pub(crate) mod transports;

use crate::types::address::Address;
use crate::types::frames::FrameDrops;
use crate::types::rail::Rail;
use crate::types::statistics::{NicCounters, PathStatistics};

pub use prometheus::prometheus;

/// All statistics of an engine.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Statistics {
    /// The first endpoint of the engine.
    pub endpoint: Address,
    /// The counters of the engine.
    pub counters: Counters,
    /// The rails that it uses, with the counters of their NICs as far as those report them.
    pub rails: Vec<(Rail, Option<NicCounters>)>,
    /// The paths of its sessions.
    pub paths: Vec<PathStatistics>,
    /// The number of paths that were left out because there are too many.
    pub paths_omitted: usize,
    /// AF_XDP frames that the kernel dropped; `None` if AF_XDP is not used.
    pub frame_drops: Option<FrameDrops>,
}

/// Counters of an endpoint's engine, as plain numbers; use the difference of two readings.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Counters {
    /// System calls, those that found nothing to do included.
    pub syscalls: u64,
    /// Bytes copied in user space: into and out of segments and receive buffers.
    pub copied_bytes: u64,
    /// Segments received on control lanes.
    pub segments_received: u64,
    /// Of these, those that came in datagrams; the others came by TCP.
    pub segments_by_datagram: u64,
    /// Frames received.
    pub frames_received: u64,
    /// Messages that came before their receive.
    pub unexpected_messages: u64,
    /// Chunks sent with zero copy, and how many of them the kernel copied after all.
    pub zero_copy_sends: u64,
    /// Of these, how many the kernel copied after all.
    pub zero_copy_copied: u64,
    /// Chunks sent by the registration of their memory.
    pub registered_sends: u64,
    /// Completions whose operation was gone already; dropped.
    pub stale_completions: u64,
    /// Overflows of the completion ring of io_uring; nothing is lost.
    pub cq_overflows: u64,
    /// Messages that were sent with [`Hint::Latency`](crate::Hint::Latency).
    pub latency_sends: u64,
    /// Messages that were sent with [`Hint::Bulk`](crate::Hint::Bulk).
    pub bulk_sends: u64,
    /// Messages that were sent with [`Hint::Priority`](crate::Hint::Priority).
    pub priority_sends: u64,
    /// Ranges of long messages that were asked for before those of others, which had come before
    /// or not, as the hints of their senders say.
    pub grants_ahead: u64,
    /// Bulk lanes that failed.
    pub lane_failures: u64,
    /// Chunks that arrived whole but not as they were sent (setting `checksum`), and were asked for
    /// again.
    pub corrupted_chunks: u64,
    /// Operations of peers on this engine's memory that were refused, for whatever reason.
    pub accesses_refused: u64,
    /// Of these, those whose key was wrong, or that came after too many such.
    pub wrong_keys: u64,
    /// Frames for operations that are not outstanding, messages for endpoints not open, and invalid
    /// requests for connections.
    pub dropped_frames: u64,
    /// Most bytes that unexpected messages ever took.
    pub unexpected_bytes_max: u64,
    /// Bytes of all segment buffers made so far.
    pub staging_bytes: u64,
    /// Datagrams sent, acknowledgements and probes included.
    pub datagrams_sent: u64,
    /// Of these, those that were taken for lost; what they carried was sent again.
    pub datagrams_lost: u64,
    /// Datagrams that were received and dropped: garbled, forged, repeated, too long, or of no
    /// session. [`Endpoint::datagrams`](crate::Endpoint::datagrams) has them by reason.
    pub datagrams_dropped: u64,
}
