//! Transmission on the paths of a session.

use std::net::SocketAddr;

use super::super::core::Core;
use super::super::effects::Effects;
use super::super::segments::Lone;
use super::context::PathCx;
use super::path::{Health, Outgoing, SessionPath};
use super::{Index, PathTable};
use crate::wire::packet::PACKET_TAG_BYTES;

/// A datagram that is ready to be sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Transmit {
    /// Destination.
    pub(crate) to: SocketAddr,
    /// Rail of this engine.
    pub(crate) rail: u8,
    /// Its length.
    pub(crate) bytes: usize,
    /// The next datagram may share a system call with it, in a GSO batch.
    pub(crate) takes_trains: bool,
    /// It has a UDP checksum, also where the peer uses AF_XDP: nothing proves yet that it arrives
    /// without one.
    ///
    /// RR-PATH-8.
    pub(crate) is_summed: bool,
    /// It carries new data, and nothing else waits.
    pub(crate) is_drained: bool,
    /// The path has more probes to send, independent of waiting data.
    pub(crate) is_probing: bool,
}

/// The only waiting segment of a session, and its path.
pub(crate) struct LonePacket<'a> {
    path: &'a mut SessionPath,
    segment: Lone<'a>,
}

impl LonePacket<'_> {
    /// Writes it into `room`, which holds the longest datagram that a driver takes. `None`: use the
    /// general path; nothing has changed.
    #[inline]
    pub(crate) fn write(mut self, now_ns: u64, room: &mut [u8]) -> Option<Transmit> {
        let packet = self.path.packets.transmit_lone(now_ns, &mut self.segment, room)?;
        Some(self.path.seal(room, packet, true))
    }
}

impl SessionPath {
    /// Appends the tag to a packet of `length` bytes.
    #[inline]
    fn seal(&self, room: &mut [u8], (length, number): (usize, u64), is_drained: bool) -> Transmit {
        self.keys.send.seal_packet(room, length, number);
        let bytes = length + PACKET_TAG_BYTES;
        let (to, rail, takes_trains) = (self.remote, self.rail, self.takes_trains);
        let is_summed = takes_trains || self.needs_sum || self.health != Health::Good;
        let is_probing = self.packets.is_probing();
        Transmit { to, rail, bytes, takes_trains, is_summed, is_drained, is_probing }
    }
}

impl PathTable {
    /// Returns whether a segment waits that exceeds a datagram on the session's primary path.
    pub(crate) fn is_waiting_too_long(&self, core: &Core, slot: u32) -> bool {
        // Usually nothing waits.
        let waiting = core.session(slot).filter(|session| session.is_waiting());
        waiting.zip(self.of(slot)).is_some_and(|(session, paths)| {
            let waiting_bytes = session.waiting_bytes(core.pool());
            // A ring takes all segments built for datagrams.
            let primary = paths.primary.as_deref().filter(|_| !paths.has_ring);
            primary.is_some_and(|path| waiting_bytes > path.packets.payload_bytes_max())
        })
    }

    /// Returns whether the driver sends on a path.
    #[inline]
    pub(crate) fn is_served(&self, slot: u32, index: Index) -> bool {
        let path = self.of(slot).and_then(|paths| paths.get(index));
        path.is_some_and(|path| !path.is_off)
    }

    /// Writes the next datagram of a path into `room`, which holds the longest that a driver takes.
    /// `None`: it has nothing to send now.
    pub(crate) fn poll_transmit(
        &mut self,
        core: &mut Core,
        (slot, index): (u32, Index),
        now_ns: u64,
        room: &mut [u8],
    ) -> Option<Transmit> {
        let (paths, session, PathCx { cx, .. }) = self.enter(core, slot)?;
        let has_ring = paths.has_ring;
        let path = paths.get_mut(index)?;
        // A probe of a new address is sent first.
        if let Some(candidate) = &mut path.candidate
            && candidate.question.is_none()
        {
            let packet = path.packets.poll_question(now_ns, room);
            candidate.question = Some(packet.1);
            let to = candidate.address;
            return Some(Transmit { to, ..path.seal(room, packet, false) });
        }
        let is_open = path.is_open() && !has_ring;
        let mut payload = Outgoing { session, cx, is_open, is_drained: false };
        let packet = path.packets.poll_transmit(now_ns, &mut payload, room)?;
        let is_drained = payload.is_drained;
        Some(path.seal(room, packet, is_drained))
    }

    /// Returns the segment staged last for a session, if nothing else waits and its primary path is
    /// in the common state; [`LonePacket::write`] sends it with fewer checks than
    /// [`Self::poll_transmit`].
    #[inline]
    pub(crate) fn lone_packet<'a>(
        &'a mut self,
        core: &'a mut Core,
        slot: u32,
    ) -> Option<LonePacket<'a>> {
        let (paths, session, PathCx { cx, .. }) = self.enter(core, slot)?;
        let path = paths.primary.as_deref_mut()?;
        if !path.is_open() || path.is_off || path.candidate.is_some() {
            return None;
        }
        Some(LonePacket { path, segment: session.lone_segment(cx)? })
    }

    /// Completes the transmission of a path: acknowledgements may be applied, and its timer is set
    /// unless it waits for driver space (`is_blocked`). Returns `true` if only acknowledgements
    /// were found.
    #[inline(always)]
    pub(crate) fn end_transmit(
        &mut self,
        core: &mut Core,
        (slot, index): (u32, Index),
        is_blocked: bool,
        effects: &mut impl Effects,
    ) -> bool {
        let Self { by_slot, shared } = self;
        let paths = by_slot.get_mut(slot as usize);
        let Some(path) = paths.and_then(|paths| paths.get_mut(index)) else { return true };
        // A window may have gained space by dropping its oldest packets.
        let is_calm = path.is_calm()
            || core
                .with(slot, |session, cx| path.deliver_pending_events(session, cx, effects))
                .unwrap_or(true);
        path.has_update = false;
        if !is_blocked {
            path.set_timer(slot, &mut shared.timers);
        }
        is_calm
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::keys::SessionKeys;
    use crate::proto::packet::{Path, PathConfig};

    /// RR-PATH-8
    #[test]
    fn checksums_stay_on_until_a_path_works_without_them() {
        let keys = SessionKeys::for_tests().path(0, true);
        let packets = Path::new(PathConfig::default());
        let mut path = SessionPath::new(packets, keys, "192.0.2.1:1".parse().unwrap());
        let is_summed = |path: &SessionPath| path.seal(&mut [0; 64], (32, 7), true).is_summed;
        assert!(is_summed(&path), "no acknowledgement yet");
        path.health = Health::Good;
        assert!(!is_summed(&path));
        path.takes_trains = true;
        assert!(is_summed(&path), "the peer's kernel may coalesce datagrams with checksums");
        (path.takes_trains, path.needs_sum) = (false, true);
        assert!(is_summed(&path), "it has failed");
    }
}
