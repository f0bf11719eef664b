//! Receive fast path for the common case: complete messages, followed by short puts without a
//! reply, each of which is the next frame of a session in which no frame is missing or buffered.
//! Lookups that the general path repeats at each step are done once here; all other frames are left
//! to the general path. Both paths have the same effects.

use zerocopy::FromBytes;
use zerocopy::little_endian::U16;

use super::transport::Transport;
use super::uncommon::Uncommon;
use crate::proto::context::{Cx, SharedState};
use crate::proto::core::Core;
use crate::proto::effects::{Arrival, Effects};
use crate::proto::matching::{MatchEnvelope, Matcher};
use crate::proto::receive::context_of;
use crate::proto::regions::Access;
use crate::proto::session::Session;
use crate::proto::table::Id;
use crate::proto::unexpected::{Kind, Waiting};
use crate::wire::FrameRange;
use crate::wire::eager::{EAGER_HEADER_BYTES, FLAG_DATA};
use crate::wire::frame_range::{RingHead, RingMessage};
use crate::wire::one_sided::OneSided;
use crate::wire::{DATA_BYTES, EAGER_BYTES_MAX, Eager, FrameError, frame};

/// Bytes before the payload of a message that has remote data.
pub(super) const HEADER_AND_DATA_BYTES: usize = EAGER_HEADER_BYTES + DATA_BYTES;

const _: () = assert!(
    RingHead::Header.bytes() == EAGER_HEADER_BYTES
        && RingHead::HeaderAndData.bytes() == HEADER_AND_DATA_BYTES,
    "a ring's first line has what precedes a payload"
);

/// Frames taken off the front of a segment's body.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Taken {
    /// Number of frames.
    pub(super) frames: u16,
    /// Bytes of the frames, headers included.
    pub(super) bytes: usize,
}

impl Taken {
    /// Returns whether they are all frames of a segment.
    #[inline(always)]
    pub(super) fn is_all_of(self, (range, body): (FrameRange, &[u8])) -> bool {
        self.bytes == body.len() && self.frames == range.count
    }
}

/// Endpoints of a message: the header's fields, and what they refer to here.
struct Ends<'a> {
    named: u32,
    remote: u32,
    peer: Id,
    matcher: &'a mut Matcher,
}

/// Returns whether this is a message that requests no report, within what is left of the credit.
#[inline(always)]
pub(super) fn is_plain(header: &Eager, (envelopes_left, bytes_left): (u32, u32)) -> bool {
    let length = header.length.get();
    header.kind == frame::KIND_EAGER
        && header.operation.get() == 0
        && length as usize <= EAGER_BYTES_MAX
        && envelopes_left > 0
        && bytes_left >= length
}

impl Core {
    /// Matches a message that a ring contains, as [`PathTable::match_in_ring`] does: if it is the
    /// next frame, requests no report, and nothing is due to its sender.
    ///
    /// RR-DGRAM-1, RR-DGRAM-4, RR-CREDIT-1, RR-MATCH-3.
    ///
    /// [`PathTable::match_in_ring`]: crate::proto::paths::PathTable::match_in_ring
    #[inline]
    pub(crate) fn match_in_ring(
        &mut self,
        slot: u32,
        message: &RingMessage,
        now_ns: u64,
    ) -> Result<Option<(Id, usize, Arrival)>, FrameError> {
        let (session, mut cx) = self.enter_receiving(slot)?;
        let is_fast = shortcut!("a message copied from its ring")
            && session.is_connected()
            && session.is_free_of(Uncommon::EARLY)
            && !session.has_replies_due();
        if !is_fast {
            return Ok(None);
        }
        let (range, length) = (message.range, message.length);
        let Some(matched) = session.match_next(&mut cx, range, (message.head(), length), now_ns)
        else {
            return Ok(None);
        };
        cx.shared.note_segment();
        session.segments.note_segment_from(&mut cx, Transport::Ring, (range, length), now_ns);
        session.segments.flush_update(&mut cx);
        Ok(Some(matched))
    }
}

impl Session {
    /// Matches the message of a frame of which `head` precedes the payload, with which it has
    /// `length` bytes. Returns its receive, how many bytes of its payload fit that, and the
    /// message. `None`: nothing has changed; it is not plain, not the next frame, or no receive
    /// that it completes is posted.
    ///
    /// RR-DGRAM-1, RR-DGRAM-4, RR-CREDIT-1, RR-MATCH-3.
    #[inline]
    pub(super) fn match_next(
        &mut self,
        cx: &mut Cx<'_>,
        range: FrameRange,
        (head, length): (&[u8], usize),
        now_ns: u64,
    ) -> Option<(Id, usize, Arrival)> {
        let (header, data) = Eager::ref_from_prefix(head).ok()?;
        let has_data = header.flags & FLAG_DATA != 0;
        let data = data.first_chunk().filter(|_| has_data).map(|data| u64::from_le_bytes(*data));
        let payload = header.length.get();
        let received = &self.segments.received;
        let is_next = received.expected() == range.first
            && is_plain(header, received.credits().left())
            && head.len() == if has_data { HEADER_AND_DATA_BYTES } else { EAGER_HEADER_BYTES }
            && payload as usize + head.len() == length;
        if !is_next {
            return None;
        }
        let source = self.peer.remotes().index_of(header.source_endpoint.get());
        let SharedState { peers, endpoints, operations, .. } = &mut *cx.shared;
        let peer = peers.id_at(source)?;
        let matcher = endpoints.get_mut(header.target_endpoint.get())?;
        let context = context_of(header.context.get(), header.flags);
        let tag = header.tag.get();
        let envelope = MatchEnvelope { source, context, tag };
        // A receive of several messages is left to the general path.
        let (id, capacity) = matcher.take_whole(&mut operations.slots, &envelope).flatten()?;
        cx.shared.note_frames(1);
        let received = &mut self.segments.received;
        received.credits_mut().pass(1, payload);
        received.note_next_frames(1, now_ns);
        let length = u64::from(payload);
        let arrival = Arrival { peer, context, tag, length, data };
        Some((id, capacity.min(length) as usize, arrival))
    }
}

impl Session {
    /// Takes messages off the front of a segment's body, as long as each is complete, requests no
    /// report, and is the next frame. Leaves the first other or invalid frame, and all frames after
    /// it, to the general path.
    ///
    /// RR-DGRAM-1, RR-DGRAM-4, RR-CREDIT-1, RR-MATCH-3.
    #[inline(always)]
    pub(super) fn receive_fast(
        &mut self,
        cx: &mut Cx<'_>,
        (range, body): (FrameRange, &[u8]),
        now_ns: u64,
        effects: &mut impl Effects,
    ) -> Taken {
        if !shortcut!("a segment received in order") || !self.is_free_of(Uncommon::EARLY) {
            return Taken::default();
        }
        // With no buffered and no missing message, each is next in order.
        if self.segments.received.expected() != range.first {
            return Taken::default();
        }
        let limits = self.segments.received.credits().left();
        let (mut envelopes_left, mut bytes_left) = limits;
        // What was left when a message was last charged: receives have taken those since.
        let mut charged = limits;
        // Usually all are from one sender and to one receiver.
        let mut ends = None;
        let mut left = body;
        while let Ok((header, rest)) = Eager::ref_from_prefix(left) {
            let length = header.length.get() as usize;
            if !is_plain(header, (envelopes_left, bytes_left)) {
                break;
            }
            let (data, rest) = match header.flags & FLAG_DATA {
                0 => (None, rest),
                _ => {
                    let Some((data, rest)) = rest.split_first_chunk() else { break };
                    (Some(u64::from_le_bytes(*data)), rest)
                }
            };
            let Some((payload, rest)) = rest.split_at_checked(length) else { break };
            let (target, source) = (header.target_endpoint.get(), header.source_endpoint.get());
            let named = u32::from(target) | u32::from(source) << 16;
            if !matches!(&ends, Some(Ends { named: before, .. }) if *before == named) {
                let remote = self.peer.remotes().index_of(source);
                let peer = cx.shared.peers.id_at(remote);
                let found = peer.zip(cx.shared.endpoints.get_mut(target));
                let Some((peer, matcher)) = found else { break };
                ends = Some(Ends { named, remote, peer, matcher });
            }
            let Some(Ends { remote, peer, matcher, .. }) = &mut ends else { break };
            let context = context_of(header.context.get(), header.flags);
            let tag = header.tag.get();
            let envelope = MatchEnvelope { source: *remote, context, tag };
            let receives = &mut cx.shared.operations.slots;
            if let Some(receive) = matcher.take_whole(receives, &envelope) {
                let Some((id, capacity)) = receive else { break }; // a multi-receive
                let fits = capacity.min(length as u64) as usize;
                let arrival = Arrival { peer: *peer, context, tag, length: length as u64, data };
                (envelopes_left, bytes_left) = (envelopes_left - 1, bytes_left - length as u32);
                effects.deliver(id, &payload[..fits], arrival);
            } else {
                ends = None;
                let passed = (charged.0 - envelopes_left, charged.1 - bytes_left);
                // A copy, so that the envelopes of other messages stay in registers.
                let envelope = MatchEnvelope { ..envelope };
                if !self.keep_next(cx, target, &envelope, (data, payload), passed) {
                    break;
                }
                (envelopes_left, bytes_left) = (envelopes_left - 1, bytes_left - length as u32);
                charged = (envelopes_left, bytes_left);
            }
            left = rest;
        }
        let frames = (limits.0 - envelopes_left) as u16;
        if frames > 0 {
            let received = &mut self.segments.received;
            received.credits_mut().pass(charged.0 - envelopes_left, charged.1 - bytes_left);
            received.note_next_frames(frames, now_ns);
        }
        Taken { frames, bytes: body.len() - left.len() }
    }

    /// Charges and keeps a message that no receive accepts yet. Before it, receives have taken
    /// messages and bytes that are not charged yet. `false`: it was not kept, and nothing is
    /// charged.
    #[inline(never)]
    fn keep_next(
        &mut self,
        cx: &mut Cx<'_>,
        target: u16,
        envelope: &MatchEnvelope,
        (data, payload): (Option<u64>, &[u8]),
        (envelopes, bytes): (u32, u32),
    ) -> bool {
        let kind = Kind::Eager { report: 0, put_back: 0 };
        let message = Waiting { came_by: (cx.slot, self.epoch), data, kind };
        // Credit prevents that there is no space; the general path reports the violation.
        if !cx.shared.keep_unexpected(target, envelope, message, payload) {
            return false;
        }
        let credits = self.segments.received.credits_mut();
        credits.pass(envelopes, bytes);
        let charged = credits.charge(payload.len() as u32);
        debug_assert!(charged.is_ok(), "credit was checked before");
        cx.extend_windows(credits, self.peer.id());
        true
    }

    /// Takes puts off the front of the frames that [`Self::receive_fast`] has left, as long as each
    /// needs no reply, has no remote data, is permitted, and is the next frame. Other frames are
    /// left to the general path.
    ///
    /// RR-DGRAM-1, RR-RMA-1, RR-RMA-2.
    #[inline]
    pub(super) fn receive_puts(
        &mut self,
        cx: &mut Cx<'_>,
        (range, body): (FrameRange, &[u8]),
        mut taken: Taken,
        now_ns: u64,
        effects: &mut impl Effects,
    ) -> Taken {
        if body.get(taken.bytes) != Some(&frame::KIND_PUT)
            || !shortcut!("a train of puts")
            || !self.is_free_of(Uncommon::EARLY)
        {
            return taken;
        }
        let received = &mut self.segments.received;
        let first = range.first.wrapping_add(u32::from(taken.frames));
        if received.expected() != first {
            return taken;
        }
        let before = taken.frames;
        // Usually all are from one endpoint and to one endpoint.
        let mut ends: Option<((U16, U16), Id)> = None;
        while let Ok((header, rest)) = OneSided::ref_from_prefix(&body[taken.bytes..]) {
            let length = header.length.get();
            let is_plain = header.kind == frame::KIND_PUT
                && header.flags == 0
                && header.operation.get() == 0
                && length <= EAGER_BYTES_MAX as u64;
            let (true, Some(bytes)) = (is_plain, rest.get(..length as usize)) else { break };
            let named = (header.source_endpoint, header.target_endpoint);
            let peer = match ends {
                Some((known, peer)) if known == named => peer,
                _ => {
                    let remote = self.peer.remotes().index_of(named.0.get());
                    let Some(peer) = cx.shared.peers.id_at(remote) else { break };
                    if !cx.shared.endpoints.is_open(named.1.get()) {
                        break;
                    }
                    ends = Some((named, peer));
                    peer
                }
            };
            let (key, access) = (header.key.get(), Access::REMOTE_WRITE);
            let offset = header.offset.get();
            let granted =
                cx.shared.regions_mut().grant(self.peer.id(), key, offset, length, access);
            let Some((region, start)) = granted else { break };
            // A put that cannot be written is repeated, and rejected, by the general path.
            if effects.put(region, start, bytes).is_err() {
                break;
            }
            let arrival = Arrival { peer, context: 0, tag: key, length, data: None };
            effects.accessed(region, access, named.1.get(), &arrival);
            taken.frames += 1;
            taken.bytes += size_of::<OneSided>() + bytes.len();
        }
        if taken.frames > before {
            received.note_next_frames(taken.frames - before, now_ns);
        }
        taken
    }
}
