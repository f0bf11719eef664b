//! Shared memory with engines of the same host: state and counters.

/// Whether datagrams to engines of the same host are carried by shared memory.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub enum SharedMemoryState {
    /// The setting `shared_memory` is off.
    #[default]
    Off,
    /// It is offered to engines of this kernel and network namespace that have a session with this
    /// one, and that have the setting on, too.
    #[non_exhaustive]
    On {
        /// Its counters.
        figures: SharedMemoryFigures,
    },
    /// It could not be set up; all datagrams are carried by the UDP socket.
    #[non_exhaustive]
    Refused {
        /// Why.
        cause: String,
    },
}

/// Counters of shared memory.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct SharedMemoryFigures {
    /// Engines that share memory with this one now.
    pub local_peers: usize,
    /// Datagrams sent through shared memory.
    pub sent: u64,
    /// Datagrams received through shared memory.
    pub received: u64,
    /// Datagrams that were carried by the UDP socket because the shared memory was full.
    pub full: u64,
    /// Wake-ups sent to peers that slept.
    pub wakes: u64,
    /// Received datagrams that belonged to no session with their sender, and were dropped.
    pub strays: u64,
    /// Offers that were refused.
    pub refused: u64,
    /// Peers that violated the protocol; their datagrams are carried by the UDP socket since.
    pub broken: u64,
    /// Times that sharing ended, at the end of a session or before.
    pub ended: u64,
    /// Peers whose memory this engine can read (`process_vm_readv`): their long messages are copied
    /// once.
    pub readable: usize,
    /// System calls that read the memory of peers.
    pub read_calls: u64,
    /// Bytes read by these calls.
    pub read_bytes: u64,
    /// Such calls that failed; their messages were carried otherwise.
    pub read_failures: u64,
    /// Fragments of long messages that were copied through shared memory, for peers that cannot
    /// read the memory of this process.
    pub pieces_sent: u64,
    /// Bytes of these.
    pub piece_bytes_sent: u64,
    /// Fragments received from peers whose memory this engine cannot read.
    pub pieces_received: u64,
    /// Bytes of these.
    pub piece_bytes_received: u64,
}
