//! Messages on the stream whose payload is received into the memory of their receive.
//!
//! The receive is found when the head of such a message has arrived. It stays posted until the
//! message is whole, and takes it then. No message that arrives can match it meanwhile: it accepts
//! none of other peers, and this one is the next frame. If it ends before, or takes a message that
//! was put back, the loop keeps the bytes elsewhere first, and the message is handled as others
//! are.

use zerocopy::FromBytes;

use super::fast_path::{HEADER_AND_DATA_BYTES, is_plain};
use super::transport::Transport;
use super::uncommon::Uncommon;
use crate::proto::context::SharedState;
use crate::proto::core::Core;
use crate::proto::effects::{Arrival, Effects};
use crate::proto::matching::{MatchEnvelope, OperationSlot};
use crate::proto::receive::context_of;
use crate::proto::table::Id;
use crate::wire::eager::{EAGER_HEADER_BYTES, FLAG_DATA};
use crate::wire::segment::{SEGMENT_HEADER_BYTES, SegmentHeader};
use crate::wire::{Eager, FrameError, SEGMENT_BYTES_MAX};

/// The longest head: headers of the segment and of the message, remote data.
const HEAD_BYTES_MAX: usize = SEGMENT_HEADER_BYTES + HEADER_AND_DATA_BYTES;

/// Missing bytes from which on the rest of a message is received into its receive: that takes a
/// call of its own.
const MISSING_BYTES_MIN: usize = 8 << 10;

/// Length of a segment from which on most of it would be received into its receive, if a read had
/// stopped at its head.
const LONG_SEGMENT_BYTES_MIN: usize = 2 * MISSING_BYTES_MIN;

/// What is known of a message by its beginning.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Beginning {
    /// The rest is received into its receive.
    Placed(PlacedMessage),
    /// It is long and has a receive, but little of it is missing.
    AlmostWhole,
}

/// A message of which the rest is received into its receive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlacedMessage {
    receive: Id,
    head: [u8; HEAD_BYTES_MAX],
    head_bytes: usize,
    length: usize,
}

impl PlacedMessage {
    /// Returns the receive.
    pub(crate) fn receive(&self) -> Id {
        self.receive
    }

    /// Returns the bytes of its segment before the payload.
    pub(crate) fn head(&self) -> &[u8] {
        &self.head[..self.head_bytes]
    }

    /// Returns the length of its payload, in bytes.
    pub(crate) fn length(&self) -> usize {
        self.length
    }

    /// Returns the header of its segment, and what follows that.
    fn split(&self) -> Result<(&SegmentHeader, &[u8]), FrameError> {
        let split = SegmentHeader::ref_from_prefix(self.head());
        split.map_err(|_| FrameError::BadSegmentLength(self.head_bytes as u32))
    }
}

impl Core {
    /// Finds the receive of the message that a session's stream continues with, of which `bytes`
    /// have arrived. `None`: it is not the next frame, is not plain, is short, or has a checksum;
    /// or no receive is posted that takes it as a whole, and only messages of this peer. Nothing
    /// changes.
    pub(crate) fn find_receive(&mut self, slot: u32, bytes: &[u8]) -> Option<Beginning> {
        let (session, cx) = self.enter(slot)?;
        let (header, body) = SegmentHeader::ref_from_prefix(bytes).ok()?;
        let length = header.length.get() as usize;
        let (eager, _) = Eager::ref_from_prefix(body).ok()?;
        let has_data = eager.flags & FLAG_DATA != 0;
        let head_bytes = SEGMENT_HEADER_BYTES
            + if has_data { HEADER_AND_DATA_BYTES } else { EAGER_HEADER_BYTES };
        let payload = eager.length.get();
        let is_placed = session.is_connected()
            && session.is_free_of(Uncommon::EARLY)
            && !session.segments.has_checksums()
            && header.frames.get() == 1
            && length <= SEGMENT_BYTES_MAX
            && bytes.len() >= head_bytes
            && length > bytes.len()
            && head_bytes + payload as usize == length
            && session.segments.expected_frame() == header.first_frame.get()
            && is_plain(eager, session.segments.receive_credits().left())
            && !rare!("a message that is kept beside its receive", 4);
        let is_much = length >= bytes.len() + MISSING_BYTES_MIN
            || (is_placed && rare!("a message of which little is missing", 2));
        if !is_placed || !(is_much || length >= LONG_SEGMENT_BYTES_MIN) {
            return None;
        }
        let source = session.peer.remotes().index_of(eager.source_endpoint.get());
        let SharedState { endpoints, operations, .. } = &mut *cx.shared;
        let matcher = endpoints.get_mut(eager.target_endpoint.get())?;
        let context = context_of(eager.context.get(), eager.flags);
        let envelope = MatchEnvelope { source, context, tag: eager.tag.get() };
        let slots = &operations.slots;
        let index = matcher.find_posted(slots, &envelope)?;
        // A shorter message of another peer would leave bytes of this one behind it.
        let takes_it = |it: &OperationSlot| {
            it.source().is_some() && !it.is_multi() && it.capacity() >= u64::from(payload)
        };
        let receive = slots.id_at(index as usize).filter(|_| takes_it(slots.at(index)))?;
        if !is_much {
            return Some(Beginning::AlmostWhole);
        }
        let mut head = [0; HEAD_BYTES_MAX];
        head[..head_bytes].copy_from_slice(&bytes[..head_bytes]);
        let message = PlacedMessage { receive, head, head_bytes, length: payload as usize };
        Some(Beginning::Placed(message))
    }

    /// Returns whether a message is still the next frame of its session; `false`: it has arrived in
    /// another way, or the session has ended.
    pub(crate) fn is_next(&self, slot: u32, message: &PlacedMessage) -> bool {
        let first = message.split().map(|(header, _)| header.first_frame.get());
        let session = self.session(slot).filter(|it| it.is_connected());
        session.is_some_and(|it| first.is_ok_and(|first| it.segments().expected_frame() == first))
    }

    /// Handles the segment of a message that has been received whole. Returns its receive, usually
    /// the one that was found, and the message, which completes that. `None`: nothing has changed,
    /// handle the bytes of the segment; later messages may wait for it, or it has no receive.
    ///
    /// RR-DGRAM-1, RR-DGRAM-5, RR-SEG-1.
    pub(crate) fn handle_placed(
        &mut self,
        slot: u32,
        message: &PlacedMessage,
        now_ns: u64,
        effects: &mut impl Effects,
    ) -> Result<Option<(Id, Arrival)>, FrameError> {
        let (header, head) = message.split()?;
        let (session, mut cx) = self.enter_receiving(slot)?;
        let is_fast = session.is_connected()
            && session.is_free_of(Uncommon::EARLY)
            && !session.has_replies_due();
        if !is_fast {
            return Ok(None);
        }
        let (range, length) = (header.range(), head.len() + message.length);
        let Some((id, _, arrival)) = session.match_next(&mut cx, range, (head, length), now_ns)
        else {
            return Ok(None);
        };
        session.segments.note_segment_from(&mut cx, Transport::Stream, (range, length), now_ns);
        session.handle_header(&mut cx, header);
        session.handle_frame_ack(&mut cx, header.ack.get(), effects);
        session.segments.flush_update(&mut cx);
        Ok(Some((id, arrival)))
    }
}
