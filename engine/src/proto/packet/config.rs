//! What a path is told when it begins.

/// Longest datagram that passes on any network, in bytes, as QUIC has it (RFC 9000, section 14).
pub(crate) const DATAGRAM_BYTES_MIN: usize = 1200;

/// See the module. The defaults suit a LAN and work on a WAN.
#[derive(Clone, Debug)]
pub(crate) struct PathConfig {
    /// Session id in every header.
    pub(crate) session: u64,
    /// Which path of the session this is.
    pub(crate) path: u16,
    /// Bytes that the caller appends to each datagram, its tag.
    pub(crate) tag_bytes: usize,
    /// Longest datagram that passes on any network: what a path starts with.
    pub(crate) datagram_bytes_min: usize,
    /// Longest datagram that the interface takes (its MTU less IP and UDP headers).
    pub(crate) datagram_bytes_max: usize,
    /// RTT to assume until one is measured, in nanoseconds: that of the handshake, say.
    pub(crate) rtt_initial_ns: u64,
    /// Packets that want an acknowledgement before one goes at once.
    pub(crate) ack_every: u32,
    /// Longest time that an acknowledgement waits, in nanoseconds. The same on both sides.
    pub(crate) ack_delay_ns: u64,
    /// Congestion window at the start, in datagrams of `datagram_bytes_min`.
    pub(crate) window_initial_packets: u32,
    /// Least queueing delay aimed at, in nanoseconds.
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
