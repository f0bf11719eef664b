//! What is counted of paths and NICs.

use std::net::IpAddr;
use std::time::Duration;

use super::address::Address;
use super::rail::{PathCause, PathState};

/// A path between a rail of an engine and one of a peer's, and what it carried since the session
/// began. Plain numbers; differences of two readings of one session mean something.
///
/// Bytes and chunks are those of bulk lanes: what goes in datagrams, messages and, with
/// `bulk_lane = datagram`, long ones, is counted in datagrams.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PathStatistics {
    /// Where the engine of the peer listens.
    pub peer: Address,
    /// The rail of this engine, by its position in [`Endpoint::rails`](crate::Endpoint::rails).
    pub rail: usize,
    /// The NIC of that rail.
    pub nic: String,
    /// What it sends from.
    pub local: IpAddr,
    /// The address of the peer's rail.
    pub remote: IpAddr,
    /// How it fares. The only path of a session is active for as long as there is the session.
    pub state: PathState,
    /// Messages go by it now, in datagrams or by TCP.
    pub carries_messages: bool,
    /// Messages go by it now, and in datagrams.
    pub carries_datagrams: bool,
    /// Bytes of chunks that were handed to the kernel.
    pub bytes_sent: u64,
    /// Bytes of chunks that arrived.
    pub bytes_received: u64,
    /// Chunks that were handed to the kernel.
    pub chunks_sent: u64,
    /// Chunks that arrived.
    pub chunks_received: u64,
    /// Ranges that were granted on it and, as its lane failed, granted again.
    pub regrants: u64,
    /// Datagrams sent, acknowledgements and probes included.
    pub datagrams_sent: u64,
    /// Of these, those taken for lost; what they carried was sent again.
    pub datagrams_lost: u64,
    /// Probes sent because an answer did not come in time.
    pub probes: u64,
    /// Smoothed round trip of its datagrams; `None`: none was answered.
    pub round_trip: Option<Duration>,
    /// The longest message, in bytes, that goes to the peer with its envelope now; see
    /// [`Endpoint::eager_limit_bytes`](crate::Endpoint::eager_limit_bytes).
    pub eager_limit_bytes: u64,
    /// TCP connections that go by it now, as far as the system tells. The kernel is asked when
    /// the statistics are, with one system call each.
    pub lanes: Vec<LaneStatistics>,
    /// Segments that the kernel had sent again on TCP connections of this path that are gone.
    pub retransmits_before: u64,
    /// Times that `state` changed.
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

/// What a NIC counted since it exists, whoever used it. Which losses a driver counts as dropped,
/// as missed or not at all is its own affair.
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
    /// Packets that arrived damaged.
    pub errors_received: u64,
    /// Packets that could not be sent.
    pub errors_sent: u64,
    /// Packets that arrived and were dropped, for want of room say.
    pub dropped_received: u64,
    /// Packets that were dropped on their way out.
    pub dropped_sent: u64,
    /// Packets that the NIC itself had no room for.
    pub missed: u64,
    /// Pause frames, sent and received: one side of a link asked the other to wait. `None`: the
    /// driver does not count them, or the kernel has no way to ask (ethtool by netlink, since 5.6).
    pub pauses: Option<PauseCounters>,
}

/// Frames that ask the other end of a link to wait (IEEE 802.3x). A NIC that sends some cannot take
/// what comes; one that receives some waits for a switch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PauseCounters {
    /// Those that were sent.
    pub sent: u64,
    /// Those that came.
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
