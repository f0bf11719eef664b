//! Packets that have come on a path.

use std::fmt;
use std::net::SocketAddr;

use super::super::arrival::{Offence, Outcome, ReceiveInfo};
use super::super::{SharedPathState, Timers};
use super::uncommon::PathReasons;
use super::{PathValidation, SessionPath};
use crate::proto::core::Core;
use crate::proto::effects::Effects;
use crate::proto::failure::PeerFailure;
use crate::proto::packet::ReplayCheck;
use crate::wire::packet::{FLAG_MTU_PROBE, KIND_PACKET, PACKET_TAG_BYTES, Packet};

impl SessionPath {
    /// Handles a packet of one of several paths, as [`Self::handle_packet`] does, not inlined.
    pub(in crate::proto::paths) fn handle_packet_of_several(
        &mut self,
        shared: &mut SharedPathState,
        core: &mut Core,
        arrival: (u32, &ReceiveInfo),
        bytes: &mut [u8],
        effects: &mut impl Effects,
    ) -> Result<Outcome, Offence> {
        self.handle_packet(shared, core, arrival, bytes, effects)
    }

    /// Handles a packet of the session in a slot that has come on this path.
    #[inline(always)]
    pub(in crate::proto::paths) fn handle_packet(
        &mut self,
        shared: &mut SharedPathState,
        core: &mut Core,
        (slot, info): (u32, &ReceiveInfo),
        bytes: &mut [u8],
        effects: &mut impl Effects,
    ) -> Result<Outcome, Offence> {
        if bytes[0] != KIND_PACKET {
            shared.dropped.malformed += 1;
            return Ok(Outcome::Dropped);
        }
        let low = u32::from_le_bytes(bytes[4..8].try_into().unwrap_or_default());
        let number = self.packets.number_of(low);
        if !self.keys.receive.open_packet(bytes, number) && !planted!(BelieveAnyTag) {
            shared.dropped.forged += 1;
            return Ok(Outcome::Dropped);
        }
        let content = &bytes[..bytes.len() - PACKET_TAG_BYTES];
        let payload = match self.handle_next(info, number, content) {
            Some(payload) => payload,
            None => match self.handle_any(shared, (slot, info), number, content)? {
                Some(payload) => payload,
                None => return Ok(Outcome::Dropped),
            },
        };
        self.visits.stay_awake(slot, &mut shared.awake);
        self.visits.note_update(slot, &mut shared.to_drain);
        let is_handled = !(planted!(AckUnhandled) && number % 32 == 31);
        let mut is_segment = false;
        if !payload.is_empty() && is_handled {
            let before = core.shared.counters().segments_received;
            let handled = core.handle_lone_segment(slot, payload, info.now_ns, effects);
            let segments = core.shared.counters().segments_received - before;
            shared.segments += segments;
            is_segment = segments > 0;
            if let Err(error) = handled {
                return Err(offence(slot, &error));
            }
        }
        Ok(Outcome::Genuine { is_segment })
    }

    /// Handles an authentic packet that is the next one and from the peer's address, in the common
    /// state of the path. Returns its payload. `None`: use [`Self::handle_any`]; only the lateness
    /// of this turn is noted, which that notes, too.
    #[inline(never)]
    fn handle_next<'a>(
        &mut self,
        info: &ReceiveInfo,
        number: u64,
        bytes: &'a [u8],
    ) -> Option<&'a [u8]> {
        let packet = Packet::decode(bytes).ok()?;
        let is_common = self.is_free_of(PathReasons::RECEIVING)
            && self.peer.is_current(&info.from)
            && !packet.has(FLAG_MTU_PROBE);
        if !is_common {
            return None;
        }
        self.packets.start_turn(info.late_ns);
        if !self.packets.handle_next(info.now_ns, number, &packet) {
            return None;
        }
        self.highest = self.highest.max(number);
        Some(packet.payload)
    }

    /// Handles any authentic packet. Returns its payload, if that counts.
    #[inline(never)]
    fn handle_any<'a>(
        &mut self,
        shared: &mut SharedPathState,
        (slot, info): (u32, &ReceiveInfo),
        number: u64,
        bytes: &'a [u8],
    ) -> Result<Option<&'a [u8]>, Offence> {
        let &ReceiveInfo { from, now_ns, late_ns } = info;
        let Ok(packet) = Packet::decode(bytes) else {
            shared.dropped.malformed += 1;
            return Ok(None);
        };
        self.packets.start_turn(late_ns);
        let is_home = self.peer.is_current(&from);
        let is_known = is_home || self.is_at(from, &packet);
        if number >= self.highest {
            self.highest = number;
            if !is_home {
                self.peer.note_source(now_ns, from);
                self.set_reason(PathReasons::CANDIDATE, self.peer.has_candidate());
            }
            if !self.is_free_of(PathReasons::CANDIDATE) && self.peer.is_probe_due() {
                self.visits.wake_at(now_ns, slot, &mut shared.timers);
            }
        }
        let checked = if is_known {
            self.packets.handle_any(now_ns, number, &packet)
        } else if packet.is_probe() {
            self.packets.handle_stray_probe(now_ns, number, &packet)
        } else {
            shared.dropped.stray += 1;
            return Ok(None);
        };
        self.visits.stay_awake(slot, &mut shared.awake);
        if checked.map_err(|error| offence(slot, &error))? != ReplayCheck::Fresh {
            shared.dropped.repeated += 1;
            return Ok(None);
        }
        if !self.is_free_of(PathReasons::UNPROVEN) {
            self.probe_back(now_ns, slot, &mut shared.timers);
        }
        Ok(Some(if packet.has(FLAG_MTU_PROBE) { &[] } else { packet.payload }))
    }

    /// Returns whether the address from which a packet arrived is the peer's known one. An answer
    /// to the probe sent to an address validates it.
    ///
    /// RR-PATH-4.
    fn is_at(&mut self, from: SocketAddr, packet: &Packet<'_>) -> bool {
        if self.peer.is_known(from) || planted!(MoveUnasked) {
            return true;
        }
        // A copy of an acknowledgement that arrived already proves nothing.
        self.packets.apply_deferred_ack();
        let is_answer = self.peer.validate(from, |number| self.packets.is_answer(packet, number));
        self.set_reason(PathReasons::CANDIDATE, self.peer.has_candidate());
        is_answer
    }

    /// Probes a path that was never acknowledged, since the peer's packet shows that it can answer
    /// now: this side's own probe may have been too early. Once only: where answers are lost, two
    /// sides would repeat this forever.
    fn probe_back(&mut self, now_ns: u64, slot: u32, timers: &mut Timers) {
        if self.validation == PathValidation::Untried
            && !self.packets.is_answered()
            && !std::mem::replace(&mut self.has_probed_back, true)
        {
            self.probe(now_ns, slot, timers);
        }
    }
}

/// Returns the failure of a session whose peer violates the protocol.
#[cold]
fn offence(slot: u32, error: &dyn fmt::Display) -> Offence {
    (slot, PeerFailure::Protocol(error.to_string().into()))
}
