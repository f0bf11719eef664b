//! Impairments of datagrams.

/// Impairments of datagrams only; [`Impairments`](super::super::net::Impairments) has the delay of
/// streams and datagrams.
///
/// `_ppm`: per million datagrams. 0 always disables: no fault, no limit, no time.
#[derive(Clone, Default, Debug)]
pub(crate) struct DatagramImpairments {
    /// Time per KiB on the sender's link, headers included; datagrams of one host are serialised.
    pub(crate) ns_per_kib: u64,
    /// Queue of that link in bytes, headers included. Datagrams beyond are dropped.
    pub(crate) queue_bytes: u64,
    /// Bytes queued for that link, headers included, at which the sending kernel blocks. Without
    /// `ns_per_kib` there is no queue.
    pub(crate) send_room_bytes: u64,
    /// Receive buffer of the kernel, in bytes. Datagrams beyond are dropped.
    pub(crate) receive_room_bytes: usize,
    /// Path MTU: longer datagrams are dropped.
    pub(crate) bytes_max: usize,
    pub(crate) loss_ppm: u64,
    pub(crate) duplicate_ppm: u64,
    /// Datagrams delayed by up to `late_ns` and possibly reordered. All others between two hosts
    /// keep their order.
    pub(crate) late_ppm: u64,
    pub(crate) late_ns: u64,
    /// Datagrams with one bit flipped.
    pub(crate) flip_ppm: u64,
    /// Truncated datagrams.
    pub(crate) truncate_ppm: u64,
    /// Datagrams before which the public address of the sending host changes (NAT rebinding).
    pub(crate) rebind_ppm: u64,
    /// How long an old address, including the locator, still reaches the host.
    pub(crate) rebind_keeps_ns: u64,
    /// One in so many sockets cannot be opened.
    pub(crate) unsupported_one_in: usize,
}

impl DatagramImpairments {
    /// No impairments.
    pub(crate) fn ideal() -> Self {
        Self::default()
    }
}
