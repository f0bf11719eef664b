//! Packets that a path sends.

use super::super::transmit::Transmit;
use super::uncommon::PathReasons;
use super::{PathValidation, SessionPath};
use crate::proto::context::Cx;
use crate::proto::packet::{Filled, PayloadSource};
use crate::proto::session::Session;
use crate::proto::session::segments::{Alone, Asks, PostedFrame, Transport};
use crate::wire::packet::PACKET_TAG_BYTES;

/// Segments of a session, for its path to send.
struct SegmentSource<'a> {
    session: &'a mut Session,
    cx: Cx<'a>,
    /// The path carries them; otherwise it only sends probes.
    is_open: bool,
    /// New data was sent, and nothing else waits.
    is_drained: bool,
}

impl PayloadSource for SegmentSource<'_> {
    fn waiting_bytes(&self) -> usize {
        if self.is_open { self.session.segments().waiting_bytes() } else { 0 }
    }

    fn fill(&mut self, room: &mut [u8]) -> Option<Filled> {
        let segment = self.session.poll_segment(self.cx.reborrow(), room.len(), Asks::Never)?;
        room[..segment.bytes.len()].copy_from_slice(segment.bytes);
        self.is_drained = segment.is_last;
        let (token, bytes) = (segment.token, segment.bytes.len());
        Some(Filled { token, bytes, ack_now: segment.is_last && segment.is_awaited })
    }

    fn fill_again(&mut self, token: u64, room: &mut [u8]) -> Option<Filled> {
        if !self.is_open && !planted!(StealByProbe) {
            // It uses TCP; on a path that carries nothing it would count as sent.
            return None;
        }
        let segment = self.session.segments_mut().poll_segment_again(token, room.len(), false)?;
        room[..segment.bytes.len()].copy_from_slice(segment.bytes);
        Some(Filled { token, bytes: segment.bytes.len(), ack_now: true })
    }
}

impl SessionPath {
    /// Returns whether it is in the common state.
    #[inline(always)]
    pub(in crate::proto::paths) fn may_transmit_alone(&self) -> bool {
        self.is_free_of(PathReasons::SENDING)
    }

    /// Writes a frame that goes alone, in the common state.
    #[inline(always)]
    pub(in crate::proto::paths) fn transmit_alone<P: PostedFrame>(
        &mut self,
        frame: &mut Alone<'_, P>,
        now_ns: u64,
        room: &mut [u8],
    ) -> Option<Transmit> {
        let packet = self.packets.transmit_alone(now_ns, frame, room)?;
        Some(self.seal(room, packet, true))
    }

    /// Writes the next datagram. `None`: it has nothing to send now.
    pub(in crate::proto::paths) fn poll_transmit(
        &mut self,
        (session, cx): (&mut Session, Cx<'_>),
        now_ns: u64,
        room: &mut [u8],
    ) -> Option<Transmit> {
        // A probe of a new address is sent first.
        if self.peer.is_probe_due() {
            let packet = self.packets.poll_question(now_ns, room);
            let to = self.peer.handle_probe_sent(packet.1);
            return Some(Transmit { to, ..self.seal(room, packet, false) });
        }
        let transport = session.segments().protocol().transport();
        let is_open = self.is_open() && transport != Some(Transport::Ring);
        let mut source = SegmentSource { session, cx, is_open, is_drained: false };
        let packet = self.packets.poll_transmit(now_ns, &mut source, room)?;
        let is_drained = source.is_drained;
        Some(self.seal(room, packet, is_drained))
    }

    /// Appends the tag to a packet of `length` bytes.
    #[inline]
    fn seal(&self, room: &mut [u8], (length, number): (usize, u64), is_drained: bool) -> Transmit {
        self.keys.send.seal_packet(room, length, number);
        let bytes = length + PACKET_TAG_BYTES;
        let (to, rail, takes_trains) = (self.peer.current(), self.id.rail, self.takes_trains);
        let is_proven = self.validation == PathValidation::Good;
        let is_summed = takes_trains || self.needs_sum || !is_proven;
        let is_probing = self.packets.is_probing();
        Transmit { to, rail, bytes, takes_trains, is_summed, is_drained, is_probing }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::paths::by_hand::new_path;

    /// RR-PATH-8
    #[test]
    fn checksums_stay_on_until_a_path_works_without_them() {
        let mut path = new_path(0);
        let is_summed = |path: &SessionPath| path.seal(&mut [0; 64], (32, 7), true).is_summed;
        assert!(is_summed(&path), "no acknowledgement yet");
        path.set_validation(PathValidation::Good);
        assert!(!is_summed(&path));
        path.takes_trains = true;
        assert!(is_summed(&path), "the peer's kernel may coalesce datagrams with checksums");
        (path.takes_trains, path.needs_sum) = (false, true);
        assert!(is_summed(&path), "it has failed");
    }
}
