//! Shared memory with engines of the same host: whether, and what became of it.

/// Whether datagrams go by shared memory to engines of the same host.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub enum SharedMemoryState {
    /// The setting `shared_memory` is off.
    #[default]
    Off,
    /// It is offered to engines of this kernel and network namespace that have a session with this
    /// one and the setting on.
    #[non_exhaustive]
    On {
        /// What became of it so far.
        figures: SharedMemoryFigures,
    },
    /// It could not be offered; all datagrams go by the UDP socket.
    #[non_exhaustive]
    Refused {
        /// Why.
        cause: String,
    },
}

/// What became of shared memory.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct SharedMemoryFigures {
    /// Engines that share memory with this one now.
    pub neighbours: usize,
    /// Datagrams that were written for them.
    pub sent: u64,
    /// Datagrams that came from them.
    pub received: u64,
    /// Datagrams for them that found no room, and went by the UDP socket.
    pub full: u64,
    /// Times that one of them slept and was woken.
    pub wakes: u64,
    /// Datagrams from them that were of no session of theirs, and were dropped.
    pub strays: u64,
    /// Offers that came to nothing.
    pub refused: u64,
    /// Neighbours that broke the rules, which go by the UDP socket since.
    pub broken: u64,
    /// Times that memory was shared no more, at the end of a session or before.
    pub ended: u64,
    /// Of the neighbours, those whose memory this engine can read (`process_vm_readv`): their long
    /// messages are copied once, from there.
    pub readable: usize,
    /// Calls that read from it.
    pub read_calls: u64,
    /// Bytes that these brought.
    pub read_bytes: u64,
    /// Calls that failed, whose messages went otherwise.
    pub read_failures: u64,
    /// Pieces of long messages that were copied into the shared memory, for neighbours that do not
    /// read from this process's.
    pub pieces_sent: u64,
    /// Bytes of these.
    pub piece_bytes_sent: u64,
    /// Pieces that came from neighbours whose memory this engine does not read.
    pub pieces_received: u64,
    /// Bytes of these.
    pub piece_bytes_received: u64,
}
