//! Bulk lanes: queues of granted ranges, in grant order on both sides (RR-RDV-2).

use std::collections::VecDeque;

use zerocopy::{FromBytes, IntoBytes};

use super::hint::Hint;
use super::keys::{LaneKeys, TagKey};
use super::operation::Operation;
use super::rails::rate::Rate;
use super::table::{Id, Table};
use crate::wire::chunk::{CHUNK_HEADER_BYTES, CHUNK_MAGIC, CHUNK_TAG_BYTES, ChunkHeader};

/// A range this side granted and has not received yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Incoming {
    /// The receive it is for.
    pub(crate) operation: Id,
    /// Offset in the message, in bytes.
    pub(crate) offset: u64,
    /// Length in bytes.
    pub(crate) length: u32,
    /// Number on the lane.
    pub(crate) chunk: u32,
    /// When it was granted.
    pub(crate) granted_ns: u64,
}

impl Incoming {
    /// The checksum in a received header, if that is the one that must stand in front of this
    /// range, made by who has `key`.
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
    /// The send it comes from.
    pub(crate) operation: Id,
    /// The receiver's name for the message.
    pub(crate) receive_operation: u64,
    /// Offset in the message, in bytes.
    pub(crate) offset: u64,
    /// Length in bytes.
    pub(crate) length: u32,
    /// Number on the lane.
    pub(crate) chunk: u32,
}

impl Outgoing {
    /// What goes in front of the bytes, tagged with `key`. `checksum` is theirs, or 0.
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

/// What the tag of a header is over.
fn tagged_part(header: &ChunkHeader) -> &[u8] {
    &header.as_bytes()[..CHUNK_HEADER_BYTES - CHUNK_TAG_BYTES]
}

/// Ranges granted on one lane that have not gone, or not come: many more than a horizon has. A peer
/// that grants and reads nothing costs its sender so much memory and no more.
pub(super) const GRANTED_MAX: usize = 1 << 16;

/// Ranges that another one passes at the most: looking at them takes time.
const LOOK_BACK: usize = 256;

/// The place behind the last range whose message has a hint that `stays`.
pub(super) fn place_behind(
    granted: &VecDeque<Outgoing>,
    operations: &Table<Operation>,
    stays: impl Fn(Hint) -> bool,
) -> usize {
    let stays = |range: &Outgoing| operations.get(range.operation).is_some_and(|it| stays(it.hint));
    let from = granted.len().saturating_sub(LOOK_BACK);
    granted.range(from..).rposition(stays).map_or(from, |last| from + last + 1)
}

/// Room for chunks that are granted and not moved yet, before the queues grow: the horizon of the
/// settings in short chunks, as a slow moment leads to, and again in long ones.
const CHUNKS_USUAL: usize = 32;

/// One bulk lane of a session.
#[derive(Debug)]
pub(crate) struct BulkLane {
    /// Slot of the session.
    pub(crate) session: u32,
    /// Its number in frames, chosen by the side that connected.
    pub(crate) number: u32,
    /// Position of its path among those of the session.
    pub(crate) path: u8,
    /// Longest segment of its connection, if that is less than NICs take.
    pub(crate) segment_bytes: Option<u16>,
    /// What tags the headers of its chunks.
    pub(crate) keys: LaneKeys,
    /// The peer accepted it; it carries chunks.
    pub(crate) is_ready: bool,
    /// No lane of its session has carried a chunk since it was opened: the grants that it was
    /// opened for may be on their way.
    pub(crate) is_fresh: bool,
    /// Granted and not received, in order. The front one is in the kernel if `is_receiving`.
    pub(crate) incoming: VecDeque<Incoming>,
    /// The kernel has a recv for the front of `incoming`.
    pub(crate) is_receiving: bool,
    /// Bytes of `incoming`.
    pub(crate) incoming_bytes: u64,
    /// What arrives on it per second.
    pub(crate) rate: Rate,
    /// It is granted chunks until its horizon is reached.
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
    /// Grants that came before the one that is due, by their numbers.
    pub(crate) early: VecDeque<crate::wire::Grant>,
    /// When it last carried a chunk, or was ready to.
    pub(crate) used_ns: u64,
    /// A grant on it could not be served: it is being closed, and one answer says so.
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

    /// Whether it could be closed without disturbing anybody who got it within `patience_ns`:
    /// nothing is granted on it, nor about to be.
    ///
    /// RR-LANE-5.
    pub(crate) fn is_spare(&self, now_ns: u64, patience_ns: u64) -> bool {
        let is_awaited = self.is_fresh && now_ns.saturating_sub(self.used_ns) < patience_ns;
        self.is_ready && self.is_idle() && !is_awaited
    }

    /// Whether nothing is granted in either direction.
    pub(crate) fn is_idle(&self) -> bool {
        self.incoming.is_empty() && self.outgoing.is_empty()
    }
}
