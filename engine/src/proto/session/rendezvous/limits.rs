//! Limits on how messages are pulled, which all sessions share.

/// Limits of granted chunks.
#[derive(Clone, Debug)]
pub(crate) struct ChunkLimits {
    /// Length while only bulk data flows, in bytes.
    bytes: u32,
    /// Length while messages arrive as well.
    busy_bytes: u32,
    /// Chunks of the first length that are granted ahead per lane.
    horizon: u32,
}

impl ChunkLimits {
    /// Chunks of `bytes`, of which `horizon` are granted ahead; of `busy_bytes` while messages
    /// arrive as well.
    pub(crate) const fn new(bytes: u32, busy_bytes: u32, horizon: u32) -> Self {
        Self { bytes, busy_bytes, horizon }
    }

    /// Returns the length of chunks while only bulk data flows, in bytes.
    pub(super) fn bytes(&self) -> u32 {
        self.bytes
    }

    /// Returns the length of chunks, and how many of them may be outstanding: of short ones more.
    pub(super) fn now(&self, are_short: bool) -> (u32, u32) {
        let bytes = if are_short { self.busy_bytes } else { self.bytes };
        (bytes, self.horizon * (self.bytes / bytes))
    }
}

/// Limits of pieces, which a ring carries.
#[derive(Clone, Debug)]
pub(crate) struct PieceLimits {
    /// Longest message that is pulled by a ring although CMA could read it, in bytes.
    message_bytes_max: u32,
    /// The same where that is measured to be faster.
    faster_bytes_max: u32,
    /// Longest piece, in bytes.
    bytes: usize,
}

impl PieceLimits {
    /// Pieces of `bytes`; of messages that CMA could read, those up to `message_bytes_max` use
    /// them, and those up to `faster_bytes_max` where they are measured to be faster.
    pub(crate) const fn new(
        (message_bytes_max, faster_bytes_max): (u32, u32),
        bytes: usize,
    ) -> Self {
        Self { message_bytes_max, faster_bytes_max, bytes }
    }
}

/// Limits on how messages are pulled; see the module.
#[derive(Clone, Debug)]
pub(crate) struct PullLimits {
    /// Bytes that go with an RTS.
    first_bytes: u32,
    chunks: ChunkLimits,
    pieces: PieceLimits,
    /// Bytes granted to all peers and outstanding in datagrams: the receive buffer space.
    window_bytes: u64,
}

impl PullLimits {
    /// `first_bytes` go with an RTS; at most `window_bytes` are outstanding in datagrams of all
    /// peers.
    pub(crate) const fn new(
        first_bytes: u32,
        chunks: ChunkLimits,
        pieces: PieceLimits,
        window_bytes: u64,
    ) -> Self {
        Self { first_bytes, chunks, pieces, window_bytes }
    }

    /// Returns how many bytes of a message go with its RTS, space and credit permitting.
    pub(in crate::proto) fn first_of(&self, length: u64) -> u64 {
        u64::from(self.first_bytes).min(length)
    }

    /// Returns the longest message that is pulled by a ring although CMA could read it, in bytes.
    pub(in crate::proto) fn by_ring_max(&self) -> u32 {
        self.pieces.message_bytes_max
    }

    /// Returns the same where pieces are measured to be faster.
    pub(in crate::proto) fn by_ring_if_faster_max(&self) -> u32 {
        self.pieces.faster_bytes_max.max(self.by_ring_max())
    }

    /// Returns the limits of chunks.
    pub(super) fn chunks(&self) -> &ChunkLimits {
        &self.chunks
    }

    /// Returns the longest piece, in bytes.
    pub(super) fn piece_bytes(&self) -> usize {
        self.pieces.bytes
    }

    /// Returns how many bytes may be granted to all peers and outstanding in datagrams.
    pub(super) fn window_bytes(&self) -> u64 {
        self.window_bytes
    }

    /// Sets that, as the driver's buffers have changed.
    pub(super) fn set_window_bytes(&mut self, bytes: u64) {
        self.window_bytes = bytes;
    }

    /// Sets the longest piece, in bytes.
    #[cfg(test)]
    pub(super) fn set_piece_bytes(&mut self, bytes: usize) {
        self.pieces.bytes = bytes;
    }
}
