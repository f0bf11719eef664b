//! Datagrams as AF_XDP frames: state and counters.

/// Whether datagrams are sent and received as AF_XDP frames, bypassing the kernel's network stack.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub enum FrameState {
    /// The setting `control_lane` does not enable them.
    #[default]
    Off,
    /// Datagrams to destinations that are reached by this NIC are AF_XDP frames.
    #[non_exhaustive]
    Up {
        /// The NIC.
        nic: String,
        /// Its queue, which no other process can use.
        queue: u32,
        /// Where the XDP program runs, and whether frames are copied.
        how: String,
        /// Their counters.
        figures: FrameFigures,
    },
    /// They failed; all datagrams are carried by the UDP socket until the AF_XDP socket is open
    /// again, which is tried each second.
    #[non_exhaustive]
    Down {
        /// The cause of the failure, or of that of the last attempt.
        cause: String,
        /// Their counters.
        figures: FrameFigures,
    },
    /// The AF_XDP socket could not be opened; all datagrams are carried by the UDP socket. Where
    /// the cause may go away (the queue is in use, privileges, a NIC that is down) the attempt is
    /// repeated, after one second and then with a growing interval of up to 32 seconds.
    #[non_exhaustive]
    Refused {
        /// Cause and cure.
        cause: String,
    },
}

/// Counters of AF_XDP frames.
///
/// `frames_free`, `frames_in_hand`, `frames_filled` and `frames_sending` add up to `frames`;
/// anything else, and each stray, is a bug of ringrail.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct FrameFigures {
    /// Frames of the UMEM.
    pub frames: usize,
    /// Not in use.
    pub frames_free: usize,
    /// Being written or read by the engine.
    pub frames_in_hand: usize,
    /// Owned by the kernel, to be received into.
    pub frames_filled: usize,
    /// Owned by the kernel, to be sent.
    pub frames_sending: usize,
    /// Frames that the kernel returned without having owned them.
    pub strays: u64,
    /// Datagrams sent.
    pub sent: u64,
    /// Datagrams received.
    pub received: u64,
    /// Received frames that were no datagrams for this engine: too short, inconsistent lengths, IP
    /// fragments, other protocols, other destinations.
    pub unfit: u64,
}

/// Frames that the kernel dropped, by cause (`XDP_STATISTICS`), over all AF_XDP sockets of the
/// engine. Counters that an old kernel does not have stay 0.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct FrameDrops {
    /// Received packets that were dropped for another cause than the next two: mostly, in copy
    /// mode, for want of a frame.
    pub dropped_received: u64,
    /// Received packets that found the RX ring full: the engine did not poll for too long.
    pub receive_ring_full: u64,
    /// Times that a packet arrived and the fill ring was empty.
    pub fill_ring_empty: u64,
    /// Times that the kernel found the TX ring empty; no loss.
    pub transmit_ring_empty: u64,
    /// Descriptors of the fill ring that the kernel rejected; more than 0 is a bug.
    pub invalid_filled: u64,
    /// Descriptors of the TX ring that the kernel rejected; more than 0 is a bug.
    pub invalid_sent: u64,
}
