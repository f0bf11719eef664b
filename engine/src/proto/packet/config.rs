//! Initial configuration of a path.

/// Longest datagram that any network takes, in bytes, as in QUIC (RFC 9000, section 14).
pub(crate) const DATAGRAM_BYTES_MIN: usize = 1200;

/// Configuration of a path. The defaults suit a LAN and work on a WAN.
#[derive(Clone, Debug)]
pub(crate) struct PathConfig {
    /// Session id in every header.
    pub(crate) session: u64,
    /// Number of the path within the session.
    pub(crate) path: u16,
    /// Bytes of the authentication tag that the caller appends to each datagram.
    pub(crate) tag_bytes: usize,
    /// Longest datagram that any network takes: the initial length of a path.
    pub(crate) datagram_bytes_min: usize,
    /// Longest datagram that the interface takes (its MTU less IP and UDP headers).
    pub(crate) datagram_bytes_max: usize,
    /// RTT to assume until one is measured, in nanoseconds, such as that of the handshake.
    pub(crate) rtt_initial_ns: u64,
    /// Ack-eliciting packets after which an acknowledgement is sent at once.
    pub(crate) ack_every: u32,
    /// Maximum acknowledgement delay, in nanoseconds. The same on both sides.
    pub(crate) ack_delay_ns: u64,
    /// Initial congestion window, in datagrams of `datagram_bytes_min`.
    pub(crate) window_initial_packets: u32,
    /// Minimum of the target queueing delay, in nanoseconds.
    pub(crate) queue_target_ns: u64,
}

impl Default for PathConfig {
    fn default() -> Self {
        Self {
            session: 0,
            path: 0,
            tag_bytes: 8,
            datagram_bytes_min: DATAGRAM_BYTES_MIN,
            datagram_bytes_max: 1472,
            rtt_initial_ns: 1_000_000,
            ack_every: 16,
            ack_delay_ns: 25_000,
            window_initial_packets: 32,
            queue_target_ns: 25_000,
        }
    }
}
