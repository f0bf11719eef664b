//! Bulk lanes: queues of granted ranges, in grant order on both sides (RR-RDV-2).

use std::collections::VecDeque;

use zerocopy::{FromBytes, IntoBytes};

use super::super::keys::{LaneKeys, TagKey};
use super::super::rails::rate::Rate;
use super::super::table::Id;
use crate::wire::chunk::{CHUNK_HEADER_BYTES, CHUNK_MAGIC, CHUNK_TAG_BYTES, ChunkHeader};

/// A range this side granted and has not received yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Incoming {
    /// The receive of the range.
    pub(crate) operation: Id,
    /// Offset in the message, in bytes.
    pub(crate) offset: u64,
    /// Length in bytes.
    pub(crate) length: u32,
    /// Number of the chunk on the lane.
    pub(crate) chunk: u32,
    /// When it was granted.
    pub(crate) granted_ns: u64,
}

impl Incoming {
    /// Returns the checksum of a received header, if it is the expected header of this range,
    /// tagged with `key`.
    pub(crate) fn agrees(&self, header: &[u8; CHUNK_HEADER_BYTES], key: &TagKey) -> Option<u32> {
        let header = ChunkHeader::ref_from_bytes(header).ok()?;
        let checksum = header.checksum.get();
        let (name, range) = (self.operation.to_u64(), (self.offset, self.length));
        let expected = header_of(name, range, self.chunk, checksum);
        let untagged = ChunkHeader { tag: [0; CHUNK_TAG_BYTES], ..*header };
        let agrees = untagged == expected && key.fits(tagged_part(header), &header.tag);
        agrees.then_some(checksum)
    }
}

/// A range the peer granted and this side has not sent yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Outgoing {
    /// The send of the range.
    pub(crate) operation: Id,
    /// The receiver's id of the operation.
    pub(crate) receive_operation: u64,
    /// Offset in the message, in bytes.
    pub(crate) offset: u64,
    /// Length in bytes.
    pub(crate) length: u32,
    /// Number of the chunk on the lane.
    pub(crate) chunk: u32,
}

impl Outgoing {
    /// Returns the chunk header, tagged with `key`. `checksum` is that of the bytes, or 0.
    pub(crate) fn header(&self, key: &TagKey, checksum: u32) -> [u8; CHUNK_HEADER_BYTES] {
        let range = (self.offset, self.length);
        let mut header = header_of(self.receive_operation, range, self.chunk, checksum);
        header.tag = key.tag(tagged_part(&header));
        let mut bytes = [0; CHUNK_HEADER_BYTES];
        bytes.copy_from_slice(header.as_bytes());
        bytes
    }
}

fn header_of(
    receive_operation: u64,
    (offset, length): (u64, u32),
    chunk: u32,
    checksum: u32,
) -> ChunkHeader {
    ChunkHeader {
        magic: CHUNK_MAGIC,
        chunk: chunk.into(),
        receive_operation: receive_operation.into(),
        offset: offset.into(),
        length: length.into(),
        checksum: checksum.into(),
        tag: [0; CHUNK_TAG_BYTES],
    }
}

/// Returns the bytes of a header that its tag covers.
fn tagged_part(header: &ChunkHeader) -> &[u8] {
    &header.as_bytes()[..CHUNK_HEADER_BYTES - CHUNK_TAG_BYTES]
}

/// Limit on a lane's granted and unsent, or unreceived, ranges: many more than a horizon has. It
/// bounds the memory of a sender whose peer grants and reads nothing.
pub(in crate::proto) const GRANTED_MAX: usize = 1 << 16;

/// Initial capacity for granted chunks: the horizon of the settings in short chunks, as during slow
/// phases, and again in long ones.
const CHUNKS_USUAL: usize = 32;

/// One bulk lane of a session.
#[derive(Debug)]
pub(crate) struct BulkLane {
    /// Slot of the session.
    pub(crate) session: u32,
    /// Number of the lane in frames, chosen by the side that connected.
    pub(crate) number: u32,
    /// Position of its path among those of the session.
    pub(crate) path: u8,
    /// Longest segment of its connection, if that is less than NICs take.
    pub(crate) segment_bytes: Option<u16>,
    /// What tags the headers of its chunks.
    pub(crate) keys: LaneKeys,
    /// The peer accepted it; it carries chunks.
    pub(crate) is_ready: bool,
    /// No lane of its session has carried a chunk since it was opened: the grants for it may be in
    /// transit.
    pub(crate) is_fresh: bool,
    /// Granted and not received, in order. The front one is in the kernel if `is_receiving`.
    pub(crate) incoming: VecDeque<Incoming>,
    /// The kernel has a recv for the front of `incoming`.
    pub(crate) is_receiving: bool,
    /// Bytes of `incoming`.
    pub(crate) incoming_bytes: u64,
    /// Rate of its arrivals.
    pub(crate) rate: Rate,
    /// It gets grants until its horizon is reached.
    pub(crate) is_refilling: bool,
    /// Number of the next chunk granted.
    pub(crate) next_chunk: u32,
    /// Granted by the peer and not sent, in order. The front one is in the kernel if
    /// `is_sending`.
    pub(crate) outgoing: VecDeque<Outgoing>,
    /// The kernel has a send for the front of `outgoing`.
    pub(crate) is_sending: bool,
    /// Number of the next chunk that the peer may grant.
    pub(crate) expected_chunk: u32,
    /// Grants that arrived before the next expected one, by their numbers.
    pub(crate) early: VecDeque<crate::wire::Grant>,
    /// When it last carried a chunk, or became ready.
    pub(crate) used_ns: u64,
    /// A grant on it could not be served: it is being closed, and one reply reports that.
    pub(crate) is_refused: bool,
    /// It is in the list of lanes that may have a chunk for the driver.
    pub(crate) is_runnable: bool,
}

impl BulkLane {
    pub(crate) fn new(session: u32, path: u8, number: u32, keys: LaneKeys, now_ns: u64) -> Self {
        Self {
            session,
            number,
            path,
            segment_bytes: None,
            keys,
            is_ready: false,
            is_fresh: true,
            incoming: VecDeque::with_capacity(CHUNKS_USUAL),
            is_receiving: false,
            incoming_bytes: 0,
            rate: Rate::default(),
            is_refilling: false,
            next_chunk: 0,
            outgoing: VecDeque::with_capacity(CHUNKS_USUAL),
            is_sending: false,
            expected_chunk: 0,
            early: VecDeque::new(),
            used_ns: now_ns,
            is_refused: false,
            is_runnable: false,
        }
    }

    /// Appends a range that is granted now. Returns the number of its chunk.
    pub(in crate::proto) fn push_incoming(
        &mut self,
        operation: Id,
        (offset, length): (u64, u32),
        now_ns: u64,
    ) -> u32 {
        debug_assert!(self.is_ready, "both sides agree on a lane with grants");
        debug_assert!(self.incoming.len() < GRANTED_MAX && length > 0, "its sender takes it");
        let chunk = self.next_chunk;
        self.next_chunk = chunk.wrapping_add(1);
        self.incoming.push_back(Incoming { operation, offset, length, chunk, granted_ns: now_ns });
        self.incoming_bytes += u64::from(length);
        self.used_ns = now_ns;
        chunk
    }

    /// Removes the first granted range, which has arrived.
    pub(in crate::proto) fn pop_incoming(&mut self) {
        debug_assert!(!self.is_receiving, "the kernel has released it");
        let received = self.incoming.pop_front();
        let received = debug_assert_some!(received, "what arrives was granted");
        self.incoming_bytes -= received.map_or(0, |range| range.length.into());
        debug_assert_eq!(
            self.incoming.is_empty(),
            self.incoming_bytes == 0,
            "the bytes are those of the ranges"
        );
    }

    /// Appends a range that the peer has granted: the next one.
    pub(in crate::proto) fn push_outgoing(&mut self, range: Outgoing) {
        debug_assert_eq!(range.chunk, self.expected_chunk, "ranges are sent in grant order");
        self.expected_chunk = self.expected_chunk.wrapping_add(1);
        self.outgoing.push_back(range);
        debug_assert!(self.outgoing.len() <= GRANTED_MAX, "more grants are refused");
    }

    /// Removes the first range that the peer has granted, which the kernel has. Returns its length
    /// in bytes.
    pub(in crate::proto) fn pop_outgoing(&mut self, now_ns: u64) -> u32 {
        debug_assert!(self.is_sending, "the kernel was given a range");
        (self.is_sending, self.used_ns) = (false, now_ns);
        let sent = self.outgoing.pop_front();
        debug_assert_some!(sent, "what is sent was granted").map_or(0, |range| range.length)
    }

    /// Returns whether it can be closed without affecting a user that got it within `patience_ns`:
    /// no grant is outstanding on it, nor expected.
    ///
    /// RR-LANE-5.
    pub(crate) fn is_spare(&self, now_ns: u64, patience_ns: u64) -> bool {
        let is_awaited = self.is_fresh && now_ns.saturating_sub(self.used_ns) < patience_ns;
        self.is_ready && self.is_idle() && !is_awaited
    }

    /// Checks that its fields agree.
    #[cfg(any(test, feature = "sim"))]
    pub(super) fn check(&self) {
        let bytes: u64 = self.incoming.iter().map(|range| u64::from(range.length)).sum();
        assert_eq!(bytes, self.incoming_bytes, "the bytes are those of the ranges");
        let mut chunk = self.next_chunk.wrapping_sub(self.incoming.len() as u32);
        for range in &self.incoming {
            assert_eq!(range.chunk, chunk, "granted chunks have numbers in a row");
            chunk = chunk.wrapping_add(1);
        }
        let mut chunk = self.expected_chunk.wrapping_sub(self.outgoing.len() as u32);
        for range in &self.outgoing {
            assert_eq!(range.chunk, chunk, "chunks to send have numbers in a row");
            chunk = chunk.wrapping_add(1);
        }
        assert!(!self.is_receiving || !self.incoming.is_empty(), "the kernel has the first range");
        assert!(!self.is_sending || !self.outgoing.is_empty(), "the kernel has the first range");
        // The peer's grants may come before its acceptance.
        assert!(self.is_ready || self.incoming.is_empty(), "a lane with grants is ready");
        let ahead =
            |grant: &crate::wire::Grant| grant.chunk.get().wrapping_sub(self.expected_chunk);
        let early = self.early.iter().map(ahead);
        assert!(early.is_sorted_by(|one, other| one < other), "early grants are in order, once");
    }

    /// Returns whether nothing is granted in either direction.
    pub(crate) fn is_idle(&self) -> bool {
        self.incoming.is_empty() && self.outgoing.is_empty()
    }
}
