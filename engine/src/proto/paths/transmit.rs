//! What goes out by the paths of a session.

use std::net::SocketAddr;

use super::super::core::Core;
use super::super::datagram::Lone;
use super::super::effects::Effects;
use super::path::{Health, Outgoing, SessionPath};
use super::{Index, PathTable};
use crate::wire::packet::PACKET_TAG_BYTES;

/// A datagram that was written, to be sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Transmit {
    /// Where to.
    pub(crate) to: SocketAddr,
    /// By which rail of this engine.
    pub(crate) rail: u8,
    /// Its length.
    pub(crate) bytes: usize,
    /// The next one may share a system call with it as one of a train.
    pub(crate) takes_trains: bool,
    /// It has UDP's checksum, also where the peer takes frames: nothing shows yet that it comes
    /// without.
    ///
    /// RR-PATH-8.
    pub(crate) is_summed: bool,
    /// Something new was in it, and nothing else waits.
    pub(crate) is_drained: bool,
    /// The path has more to ask, whatever waits.
    pub(crate) is_probing: bool,
}

/// The only segment of a session that waits, and the path that it goes by.
pub(crate) struct LonePacket<'a> {
    path: &'a mut SessionPath,
    segment: Lone<'a>,
}

impl LonePacket<'_> {
    /// Writes it into `room`, which holds the longest datagram that a driver takes. `None`: it is
    /// to go the general way, and nothing happened.
    #[inline]
    pub(crate) fn write(mut self, now_ns: u64, room: &mut [u8]) -> Option<Transmit> {
        let packet = self.path.packets.transmit_lone(now_ns, &mut self.segment, room)?;
        Some(self.path.seal(room, packet, true))
    }
}

impl SessionPath {
    /// Its tag is put behind a packet of `length` bytes.
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
    /// Whether something waits that fits no datagram of a session's carrier.
    pub(crate) fn is_waiting_too_long(&self, core: &Core, session: u32) -> bool {
        // Mostly nothing waits; and a ring takes all that is made for datagrams.
        if !core.is_waiting(session) || self.of(session).is_some_and(|paths| paths.has_ring) {
            return false;
        }
        let carrier = self.of(session).and_then(|paths| paths.carrier.as_deref());
        carrier.is_some_and(|path| core.waiting_bytes(session) > path.packets.payload_bytes_max())
    }

    /// Whether the driver sends by a path.
    #[inline]
    pub(crate) fn is_served(&self, session: u32, index: Index) -> bool {
        let path = self.of(session).and_then(|paths| paths.get(index));
        path.is_some_and(|path| !path.is_off)
    }

    /// Writes the next datagram of a path into `room`, which holds the longest that a driver takes.
    /// `None`: it wants to send nothing now.
    pub(crate) fn poll_transmit(
        &mut self,
        core: &mut Core,
        (session, index): (u32, Index),
        now_ns: u64,
        room: &mut [u8],
    ) -> Option<Transmit> {
        let paths = self.by_slot.get_mut(session as usize)?;
        let has_ring = paths.has_ring;
        let path = paths.get_mut(index)?;
        // A question to a new address is the first of what goes.
        if let Some(candidate) = &mut path.candidate
            && candidate.question.is_none()
        {
            let packet = path.packets.poll_question(now_ns, room);
            candidate.question = Some(packet.1);
            let to = candidate.address;
            return Some(Transmit { to, ..path.seal(room, packet, false) });
        }
        let is_open = path.is_open() && !has_ring;
        let mut payload = Outgoing { core, session, is_open, is_drained: false };
        let packet = path.packets.poll_transmit(now_ns, &mut payload, room)?;
        let is_drained = payload.is_drained;
        Some(path.seal(room, packet, is_drained))
    }

    /// What was just staged for a session, if nothing else waits and nothing is uncommon about its
    /// carrier; [`LonePacket::write`] sends it with fewer questions than [`Self::poll_transmit`].
    #[inline]
    pub(crate) fn lone_packet<'a>(
        &'a mut self,
        core: &'a mut Core,
        session: u32,
    ) -> Option<LonePacket<'a>> {
        let path = self.by_slot.get_mut(session as usize)?.carrier.as_deref_mut()?;
        if !path.is_open() || path.is_off || path.candidate.is_some() {
            return None;
        }
        Some(LonePacket { path, segment: core.lone_segment(session)? })
    }

    /// A path has sent what it wanted: acknowledgements may be applied, and its timer is set unless
    /// it waits for room (`is_blocked`). `true`: nothing is known now that was not before, but what
    /// arrived.
    #[inline(always)]
    pub(crate) fn end_transmit(
        &mut self,
        core: &mut Core,
        (session, index): (u32, Index),
        is_blocked: bool,
        effects: &mut impl Effects,
    ) -> bool {
        let paths = self.by_slot.get_mut(session as usize);
        let Some(path) = paths.and_then(|paths| paths.get_mut(index)) else { return true };
        // A window may have made room by giving up what held it.
        let is_calm = path.tell(core, session, effects);
        path.has_update = false;
        if !is_blocked {
            path.set_timer(session, &mut self.timers);
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
    fn datagrams_have_checksums_until_a_path_has_shown_that_it_does_without() {
        let keys = SessionKeys::for_tests().path(0, true);
        let packets = Path::new(PathConfig::default());
        let mut path = SessionPath::new(packets, keys, "192.0.2.1:1".parse().unwrap());
        let is_summed = |path: &SessionPath| path.seal(&mut [0; 64], (32, 7), true).is_summed;
        assert!(is_summed(&path), "it has not answered");
        path.health = Health::Good;
        assert!(!is_summed(&path));
        path.takes_trains = true;
        assert!(is_summed(&path), "the peer's kernel may join what has one");
        (path.takes_trains, path.needs_sum) = (false, true);
        assert!(is_summed(&path), "it has failed");
    }
}
