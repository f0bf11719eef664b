//! Counters of paths and NICs.

use std::net::IpAddr;
use std::time::Duration;

use super::address::Address;
use super::rail::{PathCause, PathState};

/// A path between a rail of this engine and a rail of a peer, with its counters since the session
/// began.
///
/// Bytes and chunks are those of bulk lanes; datagrams, which also carry long messages with
/// `bulk_lane = datagram`, are counted in datagrams.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PathStatistics {
    /// Where the engine of the peer listens.
    pub peer: Address,
    /// The rail of this engine, by its position in [`Endpoint::rails`](crate::Endpoint::rails).
    pub rail: usize,
    /// The NIC of that rail.
    pub nic: String,
    /// The local address.
    pub local: IpAddr,
    /// The address of the peer's rail.
    pub remote: IpAddr,
    /// Its state. The only path of a session is active for as long as the session exists.
    pub state: PathState,
    /// Whether it carries messages now, in datagrams or by TCP.
    pub carries_messages: bool,
    /// Whether it carries messages now, in datagrams.
    pub carries_datagrams: bool,
    /// Bytes of chunks sent (handed to the kernel).
    pub bytes_sent: u64,
    /// Bytes of chunks received.
    pub bytes_received: u64,
    /// Chunks sent (handed to the kernel).
    pub chunks_sent: u64,
    /// Chunks received.
    pub chunks_received: u64,
    /// Ranges that were granted again because a lane of this path failed.
    pub regrants: u64,
    /// Datagrams sent, acknowledgements and probes included.
    pub datagrams_sent: u64,
    /// Those of them that were declared lost; their frames were sent again.
    pub datagrams_lost: u64,
    /// Probes sent (probe time-outs).
    pub probes: u64,
    /// Smoothed round-trip time of its datagrams; `None` before the first acknowledgement.
    pub round_trip: Option<Duration>,
    /// The longest message, in bytes, that is sent eagerly now; see
    /// [`Endpoint::eager_limit_bytes`](crate::Endpoint::eager_limit_bytes).
    pub eager_limit_bytes: u64,
    /// Its TCP connections (`TCP_INFO`). Each is read with one system call when the statistics are
    /// read.
    pub lanes: Vec<LaneStatistics>,
    /// TCP segments that were retransmitted on connections of this path that are closed.
    pub retransmits_before: u64,
    /// Number of changes of `state`.
    pub changes: u64,
    /// The last change.
    pub last_change: Option<PathChange>,
}

/// A change of the state of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PathChange {
    /// Why.
    pub cause: PathCause,
    /// How long ago.
    pub ago: Duration,
}

/// Counters of a NIC since it was created, for all of its users. Which losses count as dropped or
/// as missed depends on the NIC's driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct NicCounters {
    /// Packets that arrived.
    pub packets_received: u64,
    /// Packets that were sent.
    pub packets_sent: u64,
    /// Bytes that arrived.
    pub bytes_received: u64,
    /// Bytes that were sent.
    pub bytes_sent: u64,
    /// Packets received with errors.
    pub errors_received: u64,
    /// Packets that could not be sent.
    pub errors_sent: u64,
    /// Received packets that were dropped, for example for want of memory.
    pub dropped_received: u64,
    /// Packets that were dropped before they were sent.
    pub dropped_sent: u64,
    /// Packets that the NIC dropped for want of buffers.
    pub missed: u64,
    /// Pause frames, sent and received: one side of a link asked the other to wait. `None`: the
    /// driver does not count them, or the kernel has no way to ask (ethtool by netlink, since 5.6).
    pub pauses: Option<PauseCounters>,
}

/// Pause frames (IEEE 802.3x), which ask the other end of a link to stop sending for a while. A NIC
/// sends them when it cannot keep up; a NIC that receives them has to wait for the switch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PauseCounters {
    /// Pause frames sent.
    pub sent: u64,
    /// Pause frames received.
    pub received: u64,
}

/// A TCP connection of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LaneStatistics {
    /// Its number among the bulk lanes of the session; `None`: the control lane.
    pub number: Option<u32>,
    /// Segments that the kernel sent again, since the connection was opened (`TCP_INFO`).
    pub retransmits: u64,
    /// Smoothed round trip as the kernel measures it.
    pub round_trip: Duration,
}
