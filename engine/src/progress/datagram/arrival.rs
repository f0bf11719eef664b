//! A datagram that has come: whose it is, whether it is genuine, and what it brings.

use std::fmt;
use std::net::SocketAddr;

use super::lane::Health;
use crate::progress::engine::State;
use crate::proto::failure::PeerFailure;
use crate::proto::packet::Arrival;
use crate::wire::packet::{
    FLAG_MTU_PROBE, KIND_PACKET, PACKET_HEADER_BYTES, PACKET_TAG_BYTES, Packet,
};

impl State {
    /// One datagram. An error: its sender, who is the peer of a session, breaks the protocol.
    ///
    /// RR-AUTH-8, RR-PKT-14, RR-PATH-4.
    pub(super) fn handle_datagram(
        &mut self,
        from: SocketAddr,
        bytes: &mut [u8],
    ) -> Result<(), (u32, PeerFailure)> {
        let dropped = &mut self.datagrams.dropped;
        let Some(length) = bytes.len().checked_sub(PACKET_TAG_BYTES) else {
            dropped.malformed += 1;
            return Ok(());
        };
        if length < PACKET_HEADER_BYTES {
            dropped.malformed += 1;
            return Ok(());
        }
        let id = u64::from_le_bytes(bytes[8..16].try_into().unwrap_or_default());
        let path = u16::from_le_bytes([bytes[2], bytes[3]]);
        // Mostly it is of the session of the one before it, and that has one path.
        let latest = self.datagrams.latest;
        let control = self.controls.get(latest as usize);
        if control.is_some_and(|it| it.has_only(id, path)) {
            return self.handle_on_path(latest, from, bytes, length);
        }
        let session = if control.is_some_and(|it| it.is_of(id)) {
            latest
        } else if let Some(&session) = self.datagrams.by_session.get(&id) {
            self.datagrams.latest = session;
            session
        } else {
            dropped.unknown += 1;
            return Ok(());
        };
        if self.controls.get(session as usize).is_some_and(|it| it.has_only(id, path)) {
            return self.handle_on_path(session, from, bytes, length);
        }
        self.handle_on_one_of_several(session, path, from, bytes, length)
    }

    /// A packet of the path whose lane carries the contents of its session.
    pub(super) fn handle_on_path(
        &mut self,
        session: u32,
        from: SocketAddr,
        bytes: &mut [u8],
        length: usize,
    ) -> Result<(), (u32, PeerFailure)> {
        let dropped = &mut self.datagrams.dropped;
        let Some(control) = self.controls.get_mut(session as usize) else { return Ok(()) };
        let Some(lane) = control.datagram.as_deref_mut() else { return Ok(()) };
        if bytes[0] != KIND_PACKET {
            dropped.malformed += 1;
            return Ok(());
        }
        let low = u32::from_le_bytes(bytes[4..8].try_into().unwrap_or_default());
        let number = lane.path.number_of(low);
        if !lane.keys.receive.open_packet(bytes, number) && !planted!(BelieveAnyTag) {
            dropped.forged += 1;
            return Ok(());
        }
        let protocol = |error: &dyn fmt::Display| {
            Err((session, PeerFailure::Protocol(error.to_string().into())))
        };
        let Ok(packet) = Packet::decode(&bytes[..length]) else {
            dropped.malformed += 1;
            return Ok(());
        };
        let late_ns = self.now_ns.saturating_sub(self.datagrams.drained_ns);
        lane.path.start_turn(late_ns);
        let is_home = from == lane.remote;
        let is_known = is_home || lane.is_at(from, &packet);
        if number >= lane.highest {
            lane.highest = number;
            if !is_home {
                lane.handle_address(self.now_ns, from);
            }
            if lane.candidate.as_ref().is_some_and(|candidate| candidate.question.is_none()) {
                lane.wake_at(self.now_ns, session, &mut self.datagrams.timers);
            }
        }
        let arrival = if is_known {
            lane.path.handle_packet(self.now_ns, &packet)
        } else if packet.is_probe() {
            lane.path.handle_stray_probe(self.now_ns, &packet)
        } else {
            dropped.stray += 1;
            return Ok(());
        };
        match arrival {
            Ok(Arrival::Fresh) => {}
            Ok(_) => {
                dropped.repeated += 1;
                return Ok(());
            }
            Err(error) => return protocol(&error),
        }
        if !std::mem::replace(&mut lane.has_news, true) {
            self.datagrams.to_drain.push(session);
        }
        let is_handled = !(planted!(AckUnhandled) && number % 32 == 31);
        if !packet.content.is_empty() && !packet.has(FLAG_MTU_PROBE) && is_handled {
            let now_ns = self.now_ns;
            let completions = &mut self.completions;
            let before = self.core.counters.segments_received;
            let handled = self.core.handle_datagram(session, packet.content, now_ns, completions);
            self.datagrams.segments += self.core.counters.segments_received - before;
            if let Err(error) = handled {
                return protocol(&error);
            }
        }
        if lane.health == Health::Untried
            && !lane.path.is_answered()
            && !std::mem::replace(&mut lane.has_asked_back, true)
        {
            // The peer's question says that it can be asked; ours may have come too early. Once:
            // where answers do not get through two sides would go on for ever.
            lane.path.ask();
            lane.wake_at(self.now_ns, session, &mut self.datagrams.timers);
        }
        Ok(())
    }

    /// What datagrams say of those that were sent, once what they brought is delivered.
    #[inline]
    pub(in crate::progress) fn drain_paths(&mut self) {
        while let Some(session) = self.datagrams.to_drain.pop() {
            self.drain_path_of(session);
        }
    }

    /// The same for all sessions, and for what paths have put off.
    pub(in crate::progress) fn drain_all_paths(&mut self) {
        self.drain_paths();
        for session in 0..self.controls.len() {
            for lane in self.controls[session].lanes_mut() {
                lane.path.apply_deferred_ack();
                lane.has_news = true;
            }
            self.drain_path_of(session as u32);
        }
    }

    fn drain_path_of(&mut self, session: u32) {
        let Some(control) = self.controls.get_mut(session as usize) else { return };
        let mut had_news = false;
        for lane in control.lanes_mut() {
            if std::mem::take(&mut lane.has_news) {
                had_news = true;
                lane.tell(&mut self.core, session, &mut self.completions);
                lane.set_timer(session, &mut self.datagrams.timers);
            }
        }
        if had_news {
            self.core.mark_dirty_if_waiting(session);
        }
    }
}
