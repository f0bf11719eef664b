//! Byte streams of the simulated network: connecting, transfer, reset and close.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;

use super::connection::{Connection, ConnectionName, End};
use super::lane::{PendingEvent, What, cancelled};
use super::net::{GivenUp, Item, Net};
use super::rails::At;
use super::segments;
use super::wire_hash::Channel;
use crate::driver::traits::{CloseMode, DriverEvent, LaneKey};
use crate::wire::hello::HELLO_BYTES;
use crate::wire::proof::PROOF_BYTES;

/// A new socket takes a handshake of so many bytes whole.
const HANDSHAKE_BYTES_MAX: usize = 256;
/// Hello and proof.
const PROVEN_BYTES: u64 = (HELLO_BYTES + PROOF_BYTES) as u64;
/// Time after which the kernel repeats an unanswered connection attempt.
const SYN_REPEAT_NS: u64 = 1_000_000_000;

impl Net {
    pub(super) fn connect(
        &mut self,
        from: At,
        remote: SocketAddr,
        segment_bytes: Option<u16>,
    ) -> LaneKey {
        let host = from.host;
        let process = self.hosts[host].process;
        let called = self.link_at(remote);
        let target = self.relayed(host, called);
        let mut far = End::new(target.map(|at| at.host), 0);
        far.link = target.map_or(0, |at| at.link);
        let mut near = End::new(Some(host), process);
        near.link = from.link;
        let index = self.connections.len();
        let number = self.hosts[host].opened;
        self.hosts[host].opened += 1;
        let opener = self.hosts[host].process_name(host);
        let name = ConnectionName { process: opener, is_visit: false, number };
        self.connections.push(Connection::new(self.seed, name, [near, far]));
        self.connections[index].segment_bytes = segments::within(segment_bytes);
        let key = self.hosts[host].add_lane(index, 0);
        self.connections[index].ends[0].lane = Some((key.index, key.generation));
        let at_ns = self.now_ns + self.delay_of(index, 0);
        // A firewall may drop the first attempt and pass a repeated one.
        let random = &mut self.connections[index].random[0];
        let is_swallowed = random.one_in(self.impairments.swallowed_one_in);
        let late_ns = if is_swallowed { SYN_REPEAT_NS * (1 + random.within(8)) } else { 0 };
        self.plan(at_ns + late_ns, Item::Syn(index));
        key
    }

    pub(super) fn handle_syn(&mut self, index: usize) {
        let connection = &self.connections[index];
        let key = connection.ends[0].lane;
        let (Some(origin), Some((lane, generation))) = (connection.ends[0].host, key) else {
            return;
        };
        let key = LaneKey { index: lane, generation };
        if connection.ends[0].is_closed || connection.ends[0].knows_broken {
            return;
        }
        if connection.ends[0].at().is_some_and(|at| self.is_link_down(at)) {
            self.fail_attempt(origin, key, ErrorKind::NetworkUnreachable);
            return;
        }
        let back_ns = self.delay_of(index, 0);
        let by_other =
            self.connections[index].ends[1].at().is_some_and(|at| self.is_refused_at(at));
        let random = &mut self.connections[index].random[0];
        let is_refused = random.one_in(self.impairments.refused_one_in) || by_other;
        let is_lost = self.loses_handshake(index);
        let target = match self.connections[index].ends[1].host {
            Some(_) if is_lost && !by_other => {
                self.plan(self.now_ns + SYN_REPEAT_NS, Item::Syn(index));
                return;
            }
            Some(target) if self.hosts[target].is_running && !is_refused => target,
            _ => {
                self.fail_attempt(origin, key, ErrorKind::ConnectionRefused);
                return;
            }
        };
        self.connections[index].ends[1].process = self.hosts[target].process;
        if self.connections[index].ends[1].at().is_some_and(|at| self.rail_of(at).is_none()) {
            // To an address of no rail: closed as soon as it is accepted.
            self.connections[index].ends[1].is_closed = true;
            self.reset_peer(index, 1);
        } else {
            let accept =
                PendingEvent { what: What::Accept(index), releases: None, scribbles: false };
            self.post_event(target, None, accept);
        }
        // The answer takes as long as the request.
        let lane = self.hosts[origin].lane_mut(key).expect("an open end has its lane");
        lane.last_event_ns = lane.last_event_ns.max(self.now_ns + back_ns);
        self.post_event(origin, Some(key), DriverEvent::Connected { lane: key });
    }

    /// Whether a handshake is lost, in either direction.
    fn loses_handshake(&mut self, index: usize) -> bool {
        let ends = &self.connections[index].ends;
        let (Some(near), Some(far)) = (ends[0].at(), ends[1].at()) else { return false };
        if self.is_path_cut(index, 0) || self.is_path_cut(index, 1) {
            return true;
        }
        let loss_ppm = self.way_loss_ppm(near, far) + self.way_loss_ppm(far, near);
        self.connections[index].random[0].hits(loss_ppm)
    }

    fn fail_attempt(&mut self, host: usize, key: LaneKey, kind: ErrorKind) {
        self.post_event(
            host,
            Some(key),
            DriverEvent::ConnectFailed { lane: key, error: kind.into() },
        );
        self.report_closed(host, key);
    }

    fn report_closed(&mut self, host: usize, key: LaneKey) {
        let Some(lane) = self.hosts[host].lane_mut(key) else { return };
        lane.is_closing = true;
        let (connection, side) = (lane.connection, lane.side);
        self.connections[connection].ends[side].is_closed = true;
        self.post_event(host, Some(key), DriverEvent::Closed { lane: key });
    }

    pub(super) fn mark_bulk(&mut self, connection: usize) {
        self.connections[connection].is_bulk = true;
    }

    pub(super) fn write(&mut self, index: usize, side: usize, bytes: &[u8]) -> io::Result<usize> {
        let delay_ns = self.delay_of(index, side);
        let connection = &mut self.connections[index];
        if connection.ends[side].knows_broken {
            return Err(ErrorKind::ConnectionReset.into());
        }
        let channel = Channel::Connection { name: connection.name, side };
        if connection.is_mute {
            connection.pipes[side].write_nowhere(self.now_ns);
            self.wire.add_stream(channel, bytes);
            return Ok(bytes.len());
        }
        let pipe = &mut connection.pipes[side];
        let room = pipe.room(self.impairments.capacity).min(bytes.len());
        pipe.wants_room = room < bytes.len();
        if room == 0 {
            return Err(ErrorKind::WouldBlock.into());
        }
        let random = &mut connection.random[side];
        let is_short = random.one_in(self.impairments.partial_one_in);
        // A handshake is written whole, as it fits into a new socket's buffer.
        let count =
            if is_short && room > HANDSHAKE_BYTES_MAX { 1 + random.below(room) } else { room };
        self.wire.add_stream(channel, &bytes[..count]);
        let now_ns = self.now_ns;
        if self.swallows(index, side, count) {
            self.connections[index].pipes[side].hold(now_ns, &bytes[..count]);
            return Ok(count);
        }
        let connection = &self.connections[index];
        let way = connection.ends[side].at().zip(connection.ends[1 - side].at());
        let arrival_ns = way.and_then(|(from, to)| self.stream_arrival_ns(from, to, count));
        if side == 1 {
            self.connections[index].answered_ns.get_or_insert(now_ns);
        }
        let pipe = &mut self.connections[index].pipes[side];
        let at_ns = match arrival_ns {
            Some(arrival_ns) => pipe.write_until(now_ns, &bytes[..count], arrival_ns),
            None => {
                let cost_ns = (count as u64 * self.impairments.ns_per_kib) >> 10;
                pipe.write(now_ns, &bytes[..count], cost_ns, delay_ns)
            }
        };
        self.plan(at_ns, Item::Arrive { connection: index, side });
        if side == 0 {
            self.observe_hello(index, bytes);
        }
        Ok(count)
    }

    pub(super) fn read(&mut self, index: usize, side: usize, into: &mut [u8]) -> io::Result<usize> {
        let connection = &mut self.connections[index];
        let pipe = &mut connection.pipes[1 - side];
        if pipe.has_arrived() {
            let random = &mut connection.random[side];
            let is_short = random.one_in(self.impairments.partial_one_in);
            let most = if is_short { 1 + random.below(into.len()) } else { into.len() };
            let count = pipe.read(&mut into[..most]);
            if std::mem::take(&mut pipe.wants_room) {
                let at_ns = self.now_ns + self.impairments.delay_ns;
                self.plan(at_ns, Item::Room { connection: index, side: 1 - side });
            }
            return Ok(count);
        }
        if connection.ends[side].knows_broken {
            Err(ErrorKind::ConnectionReset.into())
        } else if pipe.is_over() {
            Ok(0)
        } else {
            Err(ErrorKind::WouldBlock.into())
        }
    }

    pub(super) fn handle_arrival(&mut self, index: usize, side: usize) {
        let connection = &self.connections[index];
        if connection.is_mute || self.is_path_cut(index, side) {
            // Held back until the direction is open again.
            return;
        }
        let until_ns = connection.stalled_until_ns;
        if until_ns > self.now_ns {
            self.plan(until_ns, Item::Arrive { connection: index, side });
            return;
        }
        let is_acknowledged = !self.is_path_cut(index, 1 - side);
        let is_way_back_cut = self.is_rail_path_cut(index, 1 - side);
        let connection = &mut self.connections[index];
        if connection.is_broken || connection.ends[1 - side].knows_broken {
            // A stream has no holes: bytes after a loss are lost as well.
            connection.pipes[side].lose(true);
            return;
        }
        let now_ns = self.now_ns;
        let makes_room = connection.pipes[side].arrive(now_ns, is_acknowledged, is_way_back_cut);
        if makes_room {
            self.plan(now_ns, Item::Room { connection: index, side });
        }
        let connection = &mut self.connections[index];
        let far = &connection.ends[1 - side];
        if far.is_closed || far.is_forgotten {
            // The reader is closed.
            if connection.pipes[side].has_arrived() {
                connection.pipes[side].lose(false);
                let at_ns = self.now_ns + self.delay_of(index, 1 - side);
                self.plan(at_ns, Item::Reset { connection: index, side });
            }
            return;
        }
        self.look_at(index, 1 - side);
    }

    /// Notifies the other side that the connection is broken.
    pub(super) fn reset_peer(&mut self, index: usize, side: usize) {
        let connection = &mut self.connections[index];
        connection.ends[side].is_forgotten = true;
        connection.pipes[side].lose(true);
        let at_ns = self.now_ns + self.delay_of(index, side);
        self.plan(at_ns, Item::Reset { connection: index, side: 1 - side });
    }

    pub(super) fn end_stream(&mut self, index: usize, side: usize) {
        let delay_ns = self.delay_of(index, side);
        let pipe = &mut self.connections[index].pipes[side];
        pipe.end();
        let at_ns = pipe.write(self.now_ns, &[], 0, delay_ns);
        self.plan(at_ns, Item::Arrive { connection: index, side });
    }

    pub(super) fn handle_reset(&mut self, index: usize, side: usize) {
        let connection = &self.connections[index];
        let is_held = !connection.is_broken && self.is_path_cut(index, 1 - side);
        if connection.is_mute || is_held {
            return;
        }
        self.break_end(index, side);
    }

    /// The kernel of `side` notices that the connection is broken.
    pub(super) fn break_end(&mut self, index: usize, side: usize) {
        let connection = &mut self.connections[index];
        let keeps_arrived = connection.random[side].one_in(2);
        connection.ends[side].knows_broken = true;
        connection.pipes[1 - side].lose(keeps_arrived);
        connection.pipes[side].lose(true);
        self.look_at(index, side);
    }

    /// The acceptor closes a connection. After a hello, without the proof that follows the answer,
    /// that ends the session for the other side, if it has sent the proof by then.
    fn note_given_up(&mut self, index: usize) {
        let connection = &self.connections[index];
        let is_proof_due = !connection.is_bulk && connection.is_whole();
        let Some(answered_ns) = connection.answered_ns.filter(|_| is_proof_due) else { return };
        if connection.pipes[0].read_bytes() < PROVEN_BYTES
            && let Some(between) = self.pair_of(index)
        {
            self.given_up.push(GivenUp { between, waited_ns: self.now_ns - answered_ns });
        }
    }

    pub(super) fn close(&mut self, host: usize, key: LaneKey, mode: CloseMode) {
        // After `ConnectFailed` the lane may be closed already.
        let Some(lane) = self.find_lane(host, key).filter(|lane| !lane.is_closing) else { return };
        lane.is_closing = true;
        let (index, side, is_connecting) = (lane.connection, lane.side, lane.is_connecting);
        let sending = lane.sending.take_if(|_| !lane.send_is_over);
        let receiving = lane.receiving.take_if(|_| !lane.receive_is_over);
        let is_cut_short = sending.is_some();
        if let Some(chunk) = sending {
            self.report_sent(host, key, &chunk, Err(cancelled()));
        }
        if let Some(chunk) = receiving {
            let event = DriverEvent::ChunkReceived { lane: key, result: Err(cancelled()) };
            let (what, releases) = (What::DriverEvent(event), Some(chunk.spans));
            self.post_event(host, Some(key), PendingEvent { what, releases, scribbles: true });
        }
        if side == 1 {
            self.note_given_up(index);
        }
        let connection = &mut self.connections[index];
        connection.ends[side].is_closed = true;
        let is_unread = connection.pipes[1 - side].has_arrived();
        if mode == CloseMode::Reset || is_cut_short || is_unread || is_connecting {
            self.reset_peer(index, side);
        } else if !connection.pipes[side].is_ended() {
            self.end_stream(index, side);
        }
        self.post_event(host, Some(key), DriverEvent::Closed { lane: key });
    }
}
