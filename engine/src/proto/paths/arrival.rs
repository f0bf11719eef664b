//! Received datagrams: their session, their authenticity, and their content.

use std::fmt;
use std::net::SocketAddr;

use super::super::core::Core;
use super::super::effects::Effects;
use super::super::failure::PeerFailure;
use super::super::packet::Arrival;
use super::path::{Health, SessionPath};
use super::{Index, PRIMARY, PathTable, Paths};
use crate::wire::packet::{
    FLAG_MTU_PROBE, KIND_PACKET, PACKET_HEADER_BYTES, PACKET_TAG_BYTES, Packet,
};

/// A session whose peer violates the protocol, and how.
pub(crate) type Offence = (u32, PeerFailure);

/// Where a datagram came from, and when.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReceiveInfo {
    pub(crate) from: SocketAddr,
    pub(crate) now_ns: u64,
    /// Upper bound of the time between its arrival and `now_ns`.
    pub(crate) late_ns: u64,
}

/// Result of handling a datagram.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// It was dropped without effect.
    Dropped,
    /// It is authentic.
    Genuine {
        /// It carried a segment.
        is_segment: bool,
    },
}

impl PathTable {
    /// Handles one datagram. Returns an error if its sender, the peer of a session, violates the
    /// protocol.
    ///
    /// RR-AUTH-8, RR-PKT-14, RR-PATH-4.
    #[inline(always)]
    pub(crate) fn handle_packet(
        &mut self,
        core: &mut Core,
        info: ReceiveInfo,
        bytes: &mut [u8],
        effects: &mut impl Effects,
    ) -> Result<(), Offence> {
        let Some(length) = bytes.len().checked_sub(PACKET_TAG_BYTES) else {
            self.dropped.malformed += 1;
            return Ok(());
        };
        if length < PACKET_HEADER_BYTES {
            self.dropped.malformed += 1;
            return Ok(());
        }
        let id = u64::from_le_bytes(bytes[8..16].try_into().unwrap_or_default());
        let number = u16::from_le_bytes([bytes[2], bytes[3]]);
        // Usually it belongs to the previous datagram's session, which has a single path.
        let mut session = self.latest;
        let mut paths = self.by_slot.get(session as usize);
        if !paths.is_some_and(|paths| paths.are_of(id)) {
            let Some(&found) = self.by_session.get(&id) else {
                self.dropped.unknown += 1;
                return Ok(());
            };
            (session, self.latest) = (found, found);
            paths = self.by_slot.get(session as usize);
        }
        if paths.is_some_and(|paths| paths.has_only(id, number)) {
            return self.handle_on(core, info, session, PRIMARY, bytes, effects).map(drop);
        }
        self.handle_on_one_of_several(core, info, session, number, bytes, effects)
    }

    /// Handles a packet of one of several paths, or of an unknown path.
    fn handle_on_one_of_several(
        &mut self,
        core: &mut Core,
        info: ReceiveInfo,
        session: u32,
        number: u16,
        bytes: &mut [u8],
        effects: &mut impl Effects,
    ) -> Result<(), Offence> {
        let now_ns = info.now_ns;
        let index_of = |table: &Self| table.of(session).and_then(|it| it.index_of(number));
        if index_of(self).is_none() && !self.meet_path(core, now_ns, session, number, bytes) {
            self.dropped.unknown += 1;
            return Ok(());
        }
        let index = debug_assert_some!(index_of(self), "it is known, or was just opened");
        let Some(index) = index else { return Ok(()) };
        let length = bytes.len() - PACKET_TAG_BYTES;
        let (is_segment, handled) =
            match self.handle_on_path(core, info, session, index, bytes, effects) {
                Ok(Outcome::Dropped) => return Ok(()),
                Ok(Outcome::Genuine { is_segment }) => (is_segment, Ok(())),
                Err(offence) => (false, Err(offence)),
            };
        let paths = self.by_slot.get_mut(session as usize);
        let Some(paths) = debug_assert_some!(paths, "a packet came on one") else { return handled };
        let is_active = paths.get(index).is_some_and(SessionPath::is_active);
        let is_led = is_segment && paths.note_segments(length, index != PRIMARY);
        if paths.is_doubtful || !is_active {
            self.judge_paths(core, now_ns, session);
        }
        let is_due = |it: &Paths| it.choice.as_ref().is_some_and(|it| it.preference.is_due(now_ns));
        if self.of(session).is_some_and(is_due) {
            self.compare_paths(core, now_ns, session);
        }
        let streams_elsewhere =
            |it: &Paths| it.has_streamed && it.primary_at() == Some(it.stream_at);
        if index != PRIMARY && self.of(session).is_some_and(streams_elsewhere) {
            // The peer sends on another path than the stream's, perhaps because that failed.
            self.ask_stream(now_ns, session);
        }
        self.compare_deliveries(core, now_ns, session, is_led.then_some(number));
        handled
    }

    /// Handles a packet of any path, as [`Self::handle_on`] does, not inlined.
    fn handle_on_path(
        &mut self,
        core: &mut Core,
        info: ReceiveInfo,
        session: u32,
        index: Index,
        bytes: &mut [u8],
        effects: &mut impl Effects,
    ) -> Result<Outcome, Offence> {
        self.handle_on(core, info, session, index, bytes, effects)
    }

    /// Handles a packet of a path.
    #[inline(always)]
    fn handle_on(
        &mut self,
        core: &mut Core,
        info: ReceiveInfo,
        session: u32,
        index: Index,
        bytes: &mut [u8],
        effects: &mut impl Effects,
    ) -> Result<Outcome, Offence> {
        let ReceiveInfo { from, now_ns, late_ns } = info;
        let dropped = &mut self.dropped;
        let paths = self.by_slot.get_mut(session as usize);
        let path = paths.and_then(|paths| paths.get_mut(index));
        let Some(path) = debug_assert_some!(path, "the path was found by its number") else {
            return Ok(Outcome::Dropped);
        };
        if bytes[0] != KIND_PACKET {
            dropped.malformed += 1;
            return Ok(Outcome::Dropped);
        }
        let low = u32::from_le_bytes(bytes[4..8].try_into().unwrap_or_default());
        let number = path.packets.number_of(low);
        if !path.keys.receive.open_packet(bytes, number) && !planted!(BelieveAnyTag) {
            dropped.forged += 1;
            return Ok(Outcome::Dropped);
        }
        let protocol = |error: &dyn fmt::Display| {
            Err((session, PeerFailure::Protocol(error.to_string().into())))
        };
        let Ok(packet) = Packet::decode(&bytes[..bytes.len() - PACKET_TAG_BYTES]) else {
            dropped.malformed += 1;
            return Ok(Outcome::Dropped);
        };
        path.packets.start_turn(late_ns);
        let is_home = from == path.remote;
        let is_known = is_home || path.is_at(from, &packet);
        if number >= path.highest {
            path.highest = number;
            if !is_home {
                path.handle_address(now_ns, from);
            }
            if path.candidate.as_ref().is_some_and(|candidate| candidate.question.is_none()) {
                path.wake_at(now_ns, session, &mut self.timers);
            }
        }
        let arrival = if is_known {
            path.packets.handle_packet(now_ns, &packet)
        } else if packet.is_probe() {
            path.packets.handle_stray_probe(now_ns, &packet)
        } else {
            dropped.stray += 1;
            return Ok(Outcome::Dropped);
        };
        path.stay_awake(session, &mut self.awake);
        match arrival {
            Ok(Arrival::Fresh) => {}
            Ok(_) => {
                dropped.repeated += 1;
                return Ok(Outcome::Dropped);
            }
            Err(error) => return protocol(&error),
        }
        if !std::mem::replace(&mut path.has_update, true) {
            self.to_drain.push(session);
        }
        if path.health == Health::Untried
            && !path.packets.is_answered()
            && !std::mem::replace(&mut path.has_asked_back, true)
        {
            // The peer's probe shows that it can answer now; this side's own may have been too
            // early. Once only: where answers are lost, two sides would repeat this forever.
            path.packets.ask();
            path.wake_at(now_ns, session, &mut self.timers);
        }
        let is_handled = !(planted!(AckUnhandled) && number % 32 == 31);
        let mut is_segment = false;
        if !packet.payload.is_empty() && !packet.has(FLAG_MTU_PROBE) && is_handled {
            let before = core.shared.counters.segments_received;
            let handled = core.handle_lone_segment(session, packet.payload, now_ns, effects);
            let segments = core.shared.counters.segments_received - before;
            self.segments += segments;
            is_segment = segments > 0;
            if let Err(error) = handled {
                return protocol(&error);
            }
        }
        Ok(Outcome::Genuine { is_segment })
    }

    /// Delivers the events of sent packets, once the content of received ones is delivered.
    #[inline]
    pub(crate) fn drain(&mut self, core: &mut Core, effects: &mut impl Effects) {
        while let Some(session) = self.to_drain.pop() {
            self.drain_paths_of(core, session, effects);
        }
    }

    /// Does the same for all sessions, and for deferred work of paths.
    pub(crate) fn drain_all(&mut self, core: &mut Core, effects: &mut impl Effects) {
        self.drain(core, effects);
        for session in 0..self.slots() {
            for path in self.of_mut(session).all_mut() {
                path.packets.apply_deferred_ack();
                path.has_update = true;
            }
            self.drain_paths_of(core, session, effects);
        }
    }

    #[inline(always)]
    fn drain_paths_of(&mut self, core: &mut Core, session: u32, effects: &mut impl Effects) {
        let paths = self.by_slot.get_mut(session as usize);
        let Some(paths) = debug_assert_some!(paths, "slots of paths stay") else { return };
        let mut had_update = false;
        if let Some(primary) = paths.primary.as_deref_mut() {
            had_update |= primary.drain(core, session, &mut self.timers, effects);
        }
        for path in &mut paths.standby {
            had_update |= path.drain(core, session, &mut self.timers, effects);
        }
        if had_update {
            core.with(session, |it, cx| it.segments.flush_if_waiting(cx));
        }
    }
}
