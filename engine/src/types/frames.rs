//! Datagrams as AF_XDP frames: whether, and what became of them.

/// Whether datagrams go as AF_XDP frames, past the kernel's stack.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub enum FrameState {
    /// The setting `control_lane` asks for none.
    #[default]
    Off,
    /// They do, where the destination is reached by this NIC.
    #[non_exhaustive]
    Up {
        /// The NIC.
        nic: String,
        /// Its queue, which no other process can use.
        queue: u32,
        /// Where the XDP program runs, and whether frames are copied.
        how: String,
        /// What became of frames so far.
        figures: FrameFigures,
    },
    /// They did; all datagrams go by the UDP socket until they are back, which is tried each
    /// second.
    #[non_exhaustive]
    Down {
        /// What ended them, or what is in their way now.
        cause: String,
        /// What became of frames so far.
        figures: FrameFigures,
    },
    /// They could not be had so far; all datagrams go by the UDP socket. Where that may change (a
    /// queue that somebody has, privileges, a NIC that is down) they are asked for again, after a
    /// second and then ever less often, each 32 seconds in the end.
    #[non_exhaustive]
    Refused {
        /// Why, and what would help.
        cause: String,
    },
}

/// What became of frames.
///
/// `frames_free`, `frames_in_hand`, `frames_filled` and `frames_sending` add up to `frames`:
/// anything else is a bug of ringrail's, as is a stray.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct FrameFigures {
    /// Frames that there are.
    pub frames: usize,
    /// Not in use.
    pub frames_free: usize,
    /// Being written or read.
    pub frames_in_hand: usize,
    /// With the kernel, to receive into.
    pub frames_filled: usize,
    /// With the kernel, to be sent.
    pub frames_sending: usize,
    /// Frames that the kernel gave back without having had them.
    pub strays: u64,
    /// Datagrams that were sent in frames.
    pub sent: u64,
    /// Datagrams that came in frames.
    pub received: u64,
    /// Frames that came and were no datagrams: too short, with lengths that contradict each other,
    /// fragments, other protocols, for others.
    pub unfit: u64,
}

/// What the kernel dropped of an AF_XDP socket's frames, and why (`XDP_STATISTICS`), of all sockets
/// that the engine had. Counts of reasons that an old kernel does not know stay 0.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct FrameDrops {
    /// Packets that came and were dropped for a reason that is none of the next two: no frame for
    /// them where frames are copied, mostly.
    pub dropped_received: u64,
    /// Packets that came and found the ring full: the engine did not look for too long.
    pub receive_ring_full: u64,
    /// Times that a packet came and no frame was there to receive it: more `xdp_frames` help.
    pub fill_ring_empty: u64,
    /// Times that the kernel looked for a packet to send and there was none; no loss.
    pub transmit_ring_empty: u64,
    /// Frames handed over to receive that the kernel did not take; more than 0 is a bug.
    pub invalid_filled: u64,
    /// Packets handed over to be sent that the kernel did not take; more than 0 is a bug.
    pub invalid_sent: u64,
}
