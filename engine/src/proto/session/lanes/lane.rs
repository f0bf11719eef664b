//! Bulk lanes: queues of granted ranges, in grant order on both sides (RR-RDV-2).

use std::collections::VecDeque;

use zerocopy::{FromBytes, IntoBytes};

use super::super::rails::rate::Rate;
use super::super::segments::window::FRAMES_MAX;
use crate::proto::keys::{LaneKeys, TagKey};
use crate::proto::table::Id;
use crate::wire::chunk::{CHUNK_HEADER_BYTES, CHUNK_MAGIC, CHUNK_TAG_BYTES, ChunkHeader};
use crate::wire::{FrameError, Grant};

/// A range this side granted and has not received yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct GrantedRange {
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

impl GrantedRange {
    /// Returns the checksum of a received header, if it is the expected header of this range,
    /// tagged with `key`.
    pub(crate) fn agrees(&self, header: &[u8; CHUNK_HEADER_BYTES], key: &TagKey) -> Option<u32> {
        let header = ChunkHeader::ref_from_bytes(header).ok()?;
        let checksum = header.checksum.get();
        let (name, range) = (self.operation.to_u64(), (self.offset, self.length));
        let expected = header_of(name, range, self.chunk, checksum);
        let untagged = ChunkHeader { reserved: [0; 24], tag: [0; CHUNK_TAG_BYTES], ..*header };
        let agrees = untagged == expected && key.fits(tagged_part(header), &header.tag);
        agrees.then_some(checksum)
    }
}

/// A range the peer granted and this side has not sent yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ServedRange {
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

impl ServedRange {
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
        reserved: [0; 24],
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
    session: u32,
    /// Number of the lane in frames, chosen by the side that connected.
    number: u32,
    /// Position of its path among those of the session.
    path: u8,
    /// Longest segment of its connection, if that is less than NICs take.
    segment_bytes: Option<u16>,
    /// What tags the headers of its chunks.
    keys: LaneKeys,
    /// The peer accepted it; it carries chunks.
    is_ready: bool,
    /// No lane of its session has carried a chunk since it was opened: the grants for it may be in
    /// transit.
    is_fresh: bool,
    /// Granted and not received, in order. The front one is in the kernel if `is_receiving`.
    incoming: VecDeque<GrantedRange>,
    /// The kernel has a recv for the front of `incoming`.
    is_receiving: bool,
    /// Bytes of `incoming`.
    incoming_bytes: u64,
    /// Rate of its arrivals.
    rate: Rate,
    /// It gets grants until its horizon is reached.
    is_refilling: bool,
    /// Number of the next chunk granted.
    next_chunk: u32,
    /// Granted by the peer and not sent, in order. The front one is in the kernel if
    /// `is_sending`.
    outgoing: VecDeque<ServedRange>,
    /// The kernel has a send for the front of `outgoing`.
    is_sending: bool,
    /// Number of the next chunk that the peer may grant.
    expected_chunk: u32,
    /// Grants that arrived before the next expected one, by their numbers.
    early: VecDeque<Grant>,
    /// When it last carried a chunk, or became ready.
    used_ns: u64,
    /// A grant on it could not be served: it is being closed, and one reply reports that.
    is_refused: bool,
    /// It is in the list of lanes that may have a chunk for the driver.
    is_runnable: bool,
}

/// A chunk that has arrived as it was granted.
#[derive(Clone, Copy, Debug)]
pub(in crate::proto) struct ChunkArrival {
    /// Length in bytes.
    pub(in crate::proto) length: u32,
    /// Checksum of its bytes as its header states it.
    pub(in crate::proto) checksum: u32,
    /// When it was granted.
    pub(in crate::proto) granted_ns: u64,
    /// The lane was idle when it was granted.
    pub(in crate::proto) was_idle: bool,
}

impl BulkLane {
    /// Creates a lane of the session in slot `session`, on the path at `path`. `rate` is the
    /// initial one.
    pub(super) fn new(
        session: u32,
        (path, number): (u8, u32),
        keys: LaneKeys,
        rate: Rate,
        now_ns: u64,
    ) -> Self {
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
            rate,
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

    /// Returns the slot of its session.
    #[inline]
    pub(crate) fn session(&self) -> u32 {
        self.session
    }

    /// Returns its number in frames.
    #[inline]
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// Returns the position of its path among those of the session.
    #[inline]
    pub(crate) fn path(&self) -> u8 {
        self.path
    }

    /// Returns whether both sides agree on it.
    #[inline]
    pub(crate) fn is_ready(&self) -> bool {
        self.is_ready
    }

    /// Returns whether nothing is granted in either direction.
    pub(crate) fn is_idle(&self) -> bool {
        self.incoming.is_empty() && self.outgoing.is_empty()
    }

    /// Returns when it last carried a chunk, became ready or was opened.
    pub(crate) fn used_ns(&self) -> u64 {
        self.used_ns
    }

    /// Returns whether it has carried a chunk within the last `in_use_ns`. What a lane of its
    /// session has carried since it was opened counts.
    pub(super) fn is_in_use(&self, now_ns: u64, in_use_ns: u64) -> bool {
        self.is_ready && !self.is_fresh && now_ns.saturating_sub(self.used_ns) < in_use_ns
    }

    /// Returns whether no lane of its session has carried a chunk since it was opened.
    pub(super) fn is_fresh(&self) -> bool {
        self.is_fresh
    }

    /// Notes that a lane of its session has carried a chunk.
    pub(super) fn note_use(&mut self) {
        self.is_fresh = false;
    }

    /// Notes that both sides agree on it.
    pub(super) fn handle_ready(&mut self, now_ns: u64) {
        (self.is_ready, self.used_ns) = (true, now_ns);
    }

    /// Limits the segments of its connection, which is to be opened.
    pub(super) fn limit_segments(&mut self, limit: Option<u16>) {
        self.segment_bytes = limit;
    }

    /// Returns whether the segments of its connection are shorter than NICs take.
    pub(in crate::proto) fn has_segment_limit(&self) -> bool {
        self.segment_bytes.is_some()
    }

    /// Returns whether its connection may have segments of more than `bytes`.
    pub(in crate::proto) fn has_segments_above(&self, bytes: u16) -> bool {
        self.segment_bytes.is_none_or(|limit| limit > bytes)
    }

    /// Adds it to the list of lanes that may have a chunk for the driver. Returns `false` if it is
    /// there already.
    #[inline]
    pub(super) fn mark_runnable(&mut self) -> bool {
        !std::mem::replace(&mut self.is_runnable, true)
    }

    /// Removes it from that list.
    #[inline]
    pub(super) fn take_runnable(&mut self) {
        debug_assert!(self.is_runnable, "a lane is in the list once");
        self.is_runnable = false;
    }

    /// Returns whether it can be closed without affecting a user that got it within `patience_ns`:
    /// no grant is outstanding on it, nor expected.
    ///
    /// RR-LANE-5.
    pub(super) fn is_spare(&self, now_ns: u64, patience_ns: u64) -> bool {
        let is_awaited = self.is_fresh && now_ns.saturating_sub(self.used_ns) < patience_ns;
        self.is_ready && self.is_idle() && !is_awaited
    }
}

/// What this side receives.
impl BulkLane {
    /// Returns the first range that is granted and has not arrived.
    #[inline]
    pub(in crate::proto) fn first_granted(&self) -> Option<&GrantedRange> {
        self.incoming.front()
    }

    /// Returns whether a granted range has not arrived.
    #[inline]
    pub(crate) fn expects_chunk(&self) -> bool {
        !self.incoming.is_empty()
    }

    /// Returns whether a granted range of an operation has not arrived.
    pub(in crate::proto) fn expects_chunk_of(&self, operation: Id) -> bool {
        self.incoming.iter().any(|range| range.operation == operation)
    }

    /// Returns the bytes that are granted and have not arrived.
    #[inline]
    pub(in crate::proto) fn outstanding_bytes(&self) -> u64 {
        self.incoming_bytes
    }

    /// Returns the rate of its arrivals.
    #[inline]
    pub(in crate::proto) fn rate(&self) -> &Rate {
        &self.rate
    }

    /// Returns whether it gets grants until its horizon is reached.
    #[inline]
    pub(in crate::proto) fn is_refilling(&self) -> bool {
        self.is_refilling
    }

    /// Returns whether as many ranges are granted as may be.
    #[inline]
    pub(in crate::proto) fn is_full(&self) -> bool {
        self.incoming.len() >= GRANTED_MAX
    }

    /// Grants a range. `is_last`: its horizon is reached with that. Returns the number of the
    /// chunk.
    pub(in crate::proto) fn grant(
        &mut self,
        operation: Id,
        (offset, length): (u64, u32),
        is_last: bool,
        now_ns: u64,
    ) -> u32 {
        debug_assert!(self.is_ready, "both sides agree on a lane with grants");
        debug_assert!(self.incoming.len() < GRANTED_MAX && length > 0, "its sender takes it");
        let chunk = self.next_chunk;
        self.next_chunk = chunk.wrapping_add(1);
        self.incoming.push_back(GrantedRange {
            operation,
            offset,
            length,
            chunk,
            granted_ns: now_ns,
        });
        self.incoming_bytes += u64::from(length);
        (self.is_refilling, self.used_ns) = (!is_last, now_ns);
        chunk
    }

    /// Returns the range that the kernel should receive next, if it receives none.
    pub(in crate::proto) fn next_receive(&self) -> Option<GrantedRange> {
        self.incoming.front().copied().filter(|_| self.is_ready && !self.is_receiving)
    }

    /// Notes that the kernel has the recv of [`Self::next_receive`].
    pub(in crate::proto) fn begin_receive(&mut self) {
        debug_assert!(self.next_receive().is_some(), "the kernel gets a granted range");
        self.is_receiving = true;
    }

    /// Handles the end of a recv, and the header of its chunk. `None`: that is not the one of the
    /// granted range, or there is none. `has_checksums`: the session has.
    pub(in crate::proto) fn end_receive(
        &mut self,
        header: Option<&[u8; CHUNK_HEADER_BYTES]>,
        has_checksums: bool,
        now_ns: u64,
    ) -> Option<ChunkArrival> {
        let incoming = *self.incoming.front()?;
        if !self.is_receiving {
            return None;
        }
        (self.is_receiving, self.used_ns) = (false, now_ns);
        debug_assert!(self.is_ready, "only lanes that are ready carry chunks");
        let checksum = incoming.agrees(header?, &self.keys.receive)?;
        if !has_checksums && checksum != 0 {
            return None;
        }
        let GrantedRange { length, granted_ns, .. } = incoming;
        let was_idle = self.rate.handle_arrival(length.into(), granted_ns, now_ns);
        self.pop_incoming();
        Some(ChunkArrival { length, checksum, granted_ns, was_idle })
    }

    /// Removes the first granted range, which has arrived.
    fn pop_incoming(&mut self) {
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

    /// Ends it: returns the number of ranges that will not arrive, and those of them that the
    /// kernel does not receive.
    pub(super) fn into_granted(self) -> (usize, impl Iterator<Item = GrantedRange>) {
        let in_kernel = usize::from(self.is_receiving && !planted!(ForgetReap));
        (self.incoming.len(), self.incoming.into_iter().skip(in_kernel))
    }
}

/// What this side sends.
impl BulkLane {
    /// Returns whether a grant on it could not be served.
    #[inline]
    pub(in crate::proto) fn is_refused(&self) -> bool {
        self.is_refused
    }

    /// Notes that a grant on it cannot be served.
    pub(in crate::proto) fn refuse(&mut self) {
        self.is_refused = true;
    }

    /// Returns whether a grant of the peer is the next one. Others are kept until it is their turn.
    ///
    /// RR-DGRAM-10.
    pub(in crate::proto) fn reorder(&mut self, grant: &Grant) -> Result<bool, FrameError> {
        let (expected, got) = (self.expected_chunk, grant.chunk());
        let ahead = got.wrapping_sub(expected);
        if ahead == 0 || planted!(GrantsAsTheyCome) {
            return Ok(true);
        }
        let ahead_of = |early: &Grant| early.chunk().wrapping_sub(expected);
        let at = self.early.partition_point(|early| ahead_of(early) < ahead);
        let is_there = self.early.get(at).is_some_and(|early| early.chunk() == got);
        // At most as many frames can be missing.
        if ahead >= FRAMES_MAX || is_there {
            return Err(FrameError::BadChunkNumber { expected, got });
        }
        self.early.insert(at, *grant);
        Ok(false)
    }

    /// Removes and returns the next grant of the peer, if it arrived early.
    pub(in crate::proto) fn take_early(&mut self) -> Option<Grant> {
        let is_next = |early: &Grant| early.chunk() == self.expected_chunk;
        self.early.front().is_some_and(is_next).then(|| self.early.pop_front())?
    }

    /// Appends a range that the peer has granted: the next one.
    ///
    /// RR-RDV-9.
    pub(in crate::proto) fn serve(&mut self, range: ServedRange) -> Result<(), FrameError> {
        let (expected, got) = (self.expected_chunk, range.chunk);
        if got != expected {
            return Err(FrameError::BadChunkNumber { expected, got });
        }
        if self.outgoing.len() >= GRANTED_MAX {
            return Err(FrameError::AnswersWait(self.outgoing.len()));
        }
        self.expected_chunk = expected.wrapping_add(1);
        self.outgoing.push_back(range);
        Ok(())
    }

    /// Returns the range that the kernel should send next, if it sends none.
    pub(in crate::proto) fn next_send(&self) -> Option<ServedRange> {
        self.outgoing.front().copied().filter(|_| self.is_ready && !self.is_sending)
    }

    /// Notes that the kernel has the send of [`Self::next_send`]. `checksum` is that of its bytes,
    /// or 0. Returns the header of the chunk, and whether another one is granted.
    pub(in crate::proto) fn begin_send(
        &mut self,
        checksum: u32,
    ) -> Option<([u8; CHUNK_HEADER_BYTES], bool)> {
        let next = debug_assert_some!(self.next_send(), "the kernel gets a granted range")?;
        self.is_sending = true;
        Some((next.header(&self.keys.send, checksum), self.outgoing.len() > 1))
    }

    /// Removes the range that the kernel has sent. Returns its length in bytes.
    pub(in crate::proto) fn end_send(&mut self, now_ns: u64) -> Option<u32> {
        debug_assert!(self.is_sending, "the kernel was given a range");
        if !std::mem::replace(&mut self.is_sending, false) {
            return None;
        }
        self.used_ns = now_ns;
        let sent = self.outgoing.pop_front();
        debug_assert_some!(sent, "what is sent was granted").map(|range| range.length)
    }
}

/// For tests.
#[cfg(any(test, feature = "sim"))]
impl BulkLane {
    /// Checks that its fields agree.
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
        let ahead = |grant: &Grant| grant.chunk().wrapping_sub(self.expected_chunk);
        let early = self.early.iter().map(ahead);
        assert!(early.is_sorted_by(|one, other| one < other), "early grants are in order, once");
    }

    /// Returns whether it is in the list of lanes that may have a chunk for the driver.
    pub(super) fn is_runnable(&self) -> bool {
        self.is_runnable
    }
}

#[cfg(test)]
impl BulkLane {
    /// Returns the header of the chunk that its peer sends for the first granted range.
    pub(in crate::proto) fn first_header(&self, checksum: u32) -> Option<[u8; CHUNK_HEADER_BYTES]> {
        let &GrantedRange { operation, offset, length, chunk, .. } = self.incoming.front()?;
        let receive_operation = operation.to_u64();
        let sent = ServedRange { operation, receive_operation, offset, length, chunk };
        Some(sent.header(&self.keys.receive, checksum))
    }

    /// Returns the number of ranges that the peer has granted and that are not sent.
    pub(in crate::proto) fn ranges_to_send(&self) -> usize {
        self.outgoing.len()
    }

    /// Returns whether a grant waits for an earlier one.
    pub(in crate::proto) fn has_early_grants(&self) -> bool {
        !self.early.is_empty()
    }

    /// Grants as many ranges without bytes as may be granted.
    pub(in crate::proto) fn fill(&mut self, operation: Id) {
        let empty = GrantedRange { operation, offset: 0, length: 0, chunk: 0, granted_ns: 0 };
        self.incoming.resize(GRANTED_MAX, empty);
    }

    /// Removes one of them.
    pub(in crate::proto) fn withdraw_one(&mut self) {
        self.incoming.pop_front();
    }
}
