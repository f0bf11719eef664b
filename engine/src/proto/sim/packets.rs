//! Carriage by packets: each engine does what its loop does with [`Core`] and [`PathTable`]. Gates
//! hold packets back as a test requires; the control connection loses nothing. Messages
//! consist of 8 bytes, and their receives are posted before they are sent.
//!
//! [`Core`]: crate::proto::core::Core
//! [`PathTable`]: crate::proto::paths::PathTable

use std::net::{IpAddr, SocketAddr};

use super::engine::{Engine, engine_id};
use super::link::{Gate, LinkConfig};
use super::messages::Flow;
use super::net::{Event, Net};
use super::sessions::locator;
use crate::proto::core::{Action, Config};
use crate::proto::effects::CompletionLevel;
use crate::proto::failure::PeerFailure;
use crate::proto::keys::{JobKeys, SessionKeys, SessionNames};
use crate::proto::paths::{Index, PRIMARY, Paths, ReceiveInfo, Timeout, Transmit};
use crate::proto::ready::Work;
use crate::proto::session::rails::{RailInfo, path_number};
use crate::proto::session::segments::PostedMessage;
use crate::wire::packet::{FLAG_MTU_PROBE, PACKET_TAG_BYTES, Packet};

/// Rails of each engine; a session has one path, or one per rail.
pub(crate) const RAILS: usize = 2;
/// Latency of a packet, and of segments on the control connection.
pub(crate) const LATENCY_NS: u64 = 20_000;
pub(crate) const STREAM_NS: u64 = 100_000;
/// Longest packet.
pub(crate) const PACKET_BYTES_MAX: usize = 1472;
/// The first session.
pub(crate) const SESSION: u64 = 77;

/// Packets per path and turn.
const BURST: usize = 64;

/// A packet that was sent.
#[derive(Clone, Debug)]
pub(crate) struct Datagram {
    pub(crate) by: usize,
    pub(crate) rail: usize,
    pub(crate) from: SocketAddr,
    pub(crate) to: SocketAddr,
    pub(crate) bytes: Vec<u8>,
    pub(crate) at_ns: u64,
    pub(crate) is_summed: bool,
}

impl Datagram {
    pub(crate) fn packet(&self) -> Packet<'_> {
        Packet::decode(&self.bytes[..self.bytes.len() - PACKET_TAG_BYTES]).unwrap()
    }

    /// Returns whether it has a segment.
    pub(crate) fn has_payload(&self) -> bool {
        let packet = self.packet();
        !packet.payload.is_empty() && !packet.has(FLAG_MTU_PROBE)
    }
}

/// Returns the address at which an engine receives packets.
pub(crate) fn address_of(engine: usize, rail: usize) -> SocketAddr {
    let ip: IpAddr = match rail {
        0 => locator().ip(),
        _ => IpAddr::from([10, 0, rail as u8, engine as u8 + 1]),
    };
    SocketAddr::new(ip, 7000 + engine as u16)
}

/// Returns the keys of a session that engine 0 opens to engine 1.
pub(crate) fn keys_of(seed: u8) -> SessionKeys {
    JobKeys::new(None).session(&SessionNames {
        initiator: engine_id(0),
        acceptor: engine_id(1),
        initiator_nonce: [seed; 16],
        acceptor_nonce: [seed; 16],
        session: SESSION,
        epoch: 1,
    })
}

impl Net {
    /// Creates two engines with rails of these roles, and no session.
    pub(crate) fn with_rails(roles: &[u8]) -> Self {
        let config = Config { staging_buffers_max: 64, ..Config::for_tests() };
        let configs = [config.clone(), config];
        let mut net = Self::unconnected(&configs, &LinkConfig::fixed(LATENCY_NS), 1);
        (net.has_paths, net.has_data) = (true, false);
        for (number, engine) in net.engines.iter_mut().enumerate() {
            let info = |(rail, &role): (usize, &u8)| RailInfo {
                address: IpAddr::from([10, 0, rail as u8, number as u8 + 1]),
                speed_mbps: 1000,
                role,
            };
            engine.core.shared_mut().rails_mut().set(roles.iter().enumerate().map(info).collect());
        }
        net.stall(1_000_000);
        net
    }

    // ---- The session of engines 0 and 1 ----

    /// Establishes session `id`, opened by engine 0, with keys of its own.
    pub(crate) fn begin(&mut self, id: u64, seed: u8) {
        // Both users know how the last session ended.
        let [opener, acceptor] = self.engines.get_disjoint_mut([0, 1]).unwrap();
        opener.core.connect(opener.slots.get(&1).copied().unwrap_or(0), self.events.now_ns);
        let known = acceptor.core.shared().peers().get(acceptor.peers[&(0, 0)]);
        let slot = known.expect("it is inserted").session;
        acceptor.core.with(slot, |it, _| it.ending_mut().note_reported());
        self.connect(0, 1, id, keys_of(seed));
        for number in [0, 1] {
            let peer = 1 - number;
            let Engine { core, paths, slots, .. } = &mut self.engines[number];
            let slot = slots[&peer];
            paths.begin(slot, 0);
            let port = address_of(peer, 0).port();
            paths.open_first_path(core, slot, port, PACKET_BYTES_MAX, false);
            core.with(slot, |it, cx| it.announce_rails(cx));
        }
        for number in [0, 1] {
            self.transmit_path(number, PRIMARY);
            self.turn(number);
        }
    }

    /// Ends the session and its control connection at both engines; packets may still be in
    /// transit.
    pub(crate) fn end(&mut self) {
        for number in [0, 1] {
            let Engine { core, slots, memory, .. } = &mut self.engines[number];
            core.fail_session(slots[&(1 - number)], PeerFailure::Left, memory);
            self.turn(number);
        }
        self.events.retain(|event| matches!(event, Event::Packet(_)));
    }

    /// Sends the next message of an engine, as a loop without other work does. Its receive is
    /// posted before.
    pub(crate) fn send_one(&mut self, from: usize) {
        let to = 1 - from;
        let flow = Flow::between(from, to);
        self.receive_of(flow, 8);
        let (request, bytes) = self.next_message(&flow, 8, CompletionLevel::Inject);
        let (slot, now_ns) = (self.engines[from].slots[&to], self.now_ns());
        let Engine { core, paths, memory, .. } = &mut self.engines[from];
        let mut room = [0; PACKET_BYTES_MAX + 100];
        let fill = |room: &mut [u8]| room.copy_from_slice(&bytes);
        let frame =
            PostedMessage { request: &request, target: flow.target, fill, whole: Some(&bytes) };
        let lone = paths.lone_packet(core, slot, &frame).filter(|packet| packet.may_go(now_ns));
        let Some(out) = lone.and_then(|packet| packet.write(now_ns, &mut room)) else {
            let staged = self.send(flow, 8, CompletionLevel::Inject);
            assert!(staged.is_none(), "there is credit");
            self.engines[from].core.shared_mut().ready_mut().take_if_latest(slot, Work::Flush);
            return self.flush(from, slot);
        };
        paths.end_transmit(core, (slot, PRIMARY), false, memory);
        self.note_sent(flow, 8, None);
        let bytes = room[..out.bytes].to_vec();
        self.send_packet(from, out, bytes);
    }

    /// Checks that both engines have received all messages of the other, once and in order.
    pub(crate) fn assert_all_received(&self) {
        for (number, engine) in self.engines.iter().enumerate() {
            let sent = self.messages(&Flow::between(1 - number, number));
            assert_eq!(self.received(number), (0..sent).collect::<Vec<u64>>());
            assert_eq!(
                (engine.core.shared.unexpected.held_bytes().0, engine.memory.copies.len()),
                (0, 0)
            );
            assert_eq!(engine.core.shared.counters().unexpected_messages, 0);
        }
    }

    // ---- The network ----

    /// Sets the gates of both directions of a rail.
    pub(crate) fn set_gates(&mut self, rail: usize, gate: Gate) {
        self.links.iter_mut().for_each(|links| links[rail].gate = gate);
    }

    fn send_packet(&mut self, by: usize, out: Transmit, bytes: Vec<u8>) {
        let (rail, at_ns, length) = (usize::from(out.rail), self.now_ns(), bytes.len());
        let translated = self.translated[by].filter(|_| rail == 0);
        let from = translated.unwrap_or_else(|| address_of(by, rail));
        let is_summed = out.is_summed;
        let datagram = Datagram { by, rail, from, to: out.to, bytes, at_ns, is_summed };
        self.log.push(datagram.clone());
        let link = &mut self.links[by][rail];
        if link.gate == Gate::Held {
            self.held.push(datagram.clone());
        }
        for arrival_ns in link.send(at_ns, length).into_iter().flatten() {
            self.events.add(arrival_ns, Event::Packet(datagram.clone()));
        }
    }

    /// Returns the engine that receives packets at an address.
    pub(super) fn engine_at(&self, to: SocketAddr) -> Option<usize> {
        let is_there = |engine: usize| {
            (0..RAILS).any(|rail| address_of(engine, rail) == to)
                || self.translated[engine] == Some(to)
        };
        (0..self.engines.len()).find(|&engine| is_there(engine))
    }

    /// Delivers a packet now, from the source that the test gives.
    pub(crate) fn deliver_packet(&mut self, to: usize, from: SocketAddr, bytes: &[u8]) {
        let info = ReceiveInfo { from, now_ns: self.now_ns(), late_ns: 0 };
        let Engine { core, paths, memory, .. } = &mut self.engines[to];
        paths.handle_packet(core, info, &mut bytes.to_vec(), memory).unwrap();
    }

    /// Releases the packets that were held.
    pub(crate) fn release(&mut self) {
        for datagram in std::mem::take(&mut self.held) {
            self.events.add(self.events.now_ns + LATENCY_NS, Event::Packet(datagram));
        }
    }

    /// Returns the packets that an engine has sent on a rail since a time.
    pub(crate) fn packets(&self, by: usize, rail: usize, since_ns: u64) -> Vec<&Datagram> {
        let is_it = |it: &&Datagram| (it.by, it.rail) == (by, rail) && it.at_ns >= since_ns;
        self.log.iter().filter(is_it).collect()
    }

    // ---- The loop ----

    /// Sends what one path has to send.
    pub(crate) fn transmit_path(&mut self, number: usize, index: Index) {
        let now_ns = self.now_ns();
        let mut room = [0; PACKET_BYTES_MAX + 100];
        let slot = self.engines[number].slots[&(1 - number)];
        for _ in 0..BURST {
            let Engine { core, paths, .. } = &mut self.engines[number];
            let Some(out) = paths.poll_transmit(core, (slot, index), now_ns, &mut room) else {
                break;
            };
            let bytes = room[..out.bytes].to_vec();
            self.send_packet(number, out, bytes);
        }
        let Engine { core, paths, memory, .. } = &mut self.engines[number];
        paths.end_transmit(core, (slot, index), false, memory);
    }

    /// Sends a session's segments, on its primary path or by the control connection.
    fn flush(&mut self, number: usize, slot: u32) {
        if self.engines[number].paths.of(slot).is_some_and(Paths::are_open) {
            self.transmit_path(number, PRIMARY);
        }
        let engine = &mut self.engines[number];
        if !engine.paths.uses_stream_now(&engine.core, slot) {
            return;
        }
        let mut bytes = Vec::new();
        while engine.core.with(slot, |it, cx| it.append_next_segment(cx, &mut bytes, true)).unwrap()
        {
            engine.by_stream += 1;
        }
        if !bytes.is_empty() {
            let event = Event::Stream { from: number, to: engine.peer_of(slot), bytes };
            self.events.add(self.events.now_ns + STREAM_NS, event);
        }
    }

    /// Sends what a turn leaves to send, before and after its timers.
    pub(super) fn transmit_packets(&mut self, number: usize) {
        for fires in [true, false] {
            while let Some(slot) =
                self.engines[number].core.shared_mut().ready_mut().take(Work::Flush)
            {
                self.flush(number, slot);
            }
            if fires {
                self.fire(number, (0, true));
            }
        }
    }

    pub(super) fn carry_out_for_paths(&mut self, number: usize, action: Action) {
        let Engine { core, paths, path_changes, .. } = &mut self.engines[number];
        match action {
            // Rails of equal index are paired to paths.
            Action::PairRails { session } => {
                core.with(session, |it, cx| it.rails_mut().describe_first_path(&cx));
                for rail in (1..RAILS as u8).filter(|_| number == 0) {
                    let path = path_number(rail, rail);
                    let at = core
                        .enter(session)
                        .and_then(|(it, cx)| it.rails_mut().add_path(&cx, path))
                        .unwrap();
                    paths.open_other_path(core, self.events.now_ns, session, path, at);
                }
            }
            Action::Ended { session, .. } => {
                if paths.prepare_final_ack(session) {
                    self.transmit_path(number, PRIMARY);
                }
                self.engines[number].paths.close(session);
            }
            Action::PathChanged { rail, change, .. } => path_changes.push((rail, change)),
            _ => {}
        }
    }

    /// Handles expired timers. `late_ns` and `is_drained`: as in [`Timeout`].
    pub(crate) fn fire(&mut self, number: usize, (late_ns, is_drained): (u64, bool)) {
        let now_ns = self.now_ns();
        self.engines[number].paths.begin_timeouts(now_ns);
        while let Some((at_ns, slot)) = self.engines[number].paths.poll_timeout(now_ns) {
            let timeout = Timeout { at_ns, now_ns, late_ns, is_drained };
            for index in 0..self.engines[number].paths.of(slot).map_or(0, Paths::count) {
                let Engine { core, paths, memory, .. } = &mut self.engines[number];
                if paths.handle_timeout(core, (slot, index), timeout, memory) {
                    self.transmit_path(number, index);
                }
            }
            let Engine { core, paths, .. } = &mut self.engines[number];
            paths.judge_after_timeout(core, now_ns, slot);
        }
        self.engines[number].paths.end_timeouts();
    }
}
