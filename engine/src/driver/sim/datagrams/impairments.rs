//! How the network treats datagrams.

/// What happens to datagrams only. How long a datagram is on its way [`super::super::net::Impairments`]
/// says, for streams and datagrams alike.
///
/// `_ppm`: so many of a million datagrams. 0 always means that there is no such thing: no fault,
/// no limit, no time.
#[derive(Clone, Default, Debug)]
pub(crate) struct DatagramImpairments {
    /// Time that the link of the sending host takes per KiB, headers included; datagrams of one
    /// host take it one after the other.
    pub(crate) ns_per_kib: u64,
    /// Bytes that wait for that link at the most, headers included. What finds no room is lost.
    pub(crate) queue_bytes: u64,
    /// Bytes that wait for that link, headers included, when the sending kernel takes no more.
    /// Without `ns_per_kib` nothing waits.
    pub(crate) send_room_bytes: u64,
    /// Bytes that the receiving kernel keeps for a process that does not read. What finds no
    /// room is lost.
    pub(crate) receive_room_bytes: usize,
    /// Longer datagrams are lost on the way.
    pub(crate) bytes_max: usize,
    pub(crate) loss_ppm: u64,
    pub(crate) duplicate_ppm: u64,
    /// Datagrams that take up to `late_ns` longer and may be overtaken. All others of one host to
    /// another keep their order.
    pub(crate) late_ppm: u64,
    pub(crate) late_ns: u64,
    /// Datagrams with one bit turned over.
    pub(crate) flip_ppm: u64,
    /// Datagrams that lose their end.
    pub(crate) truncate_ppm: u64,
    /// Datagrams before which the address of the sending host changes, as seen from outside.
    pub(crate) rebind_ppm: u64,
    /// Time that an address, the host's locator included, reaches the host after it changed.
    pub(crate) rebind_keeps_ns: u64,
    /// Sockets that cannot be opened, one in so many.
    pub(crate) unsupported_one_in: usize,
}

impl DatagramImpairments {
    /// Nothing disturbs datagrams.
    pub(crate) fn ideal() -> Self {
        Self::default()
    }
}
