//! Two engines with a session, and a manually controlled network between them.
//!
//! Each side does what an engine's loop does with [`Core`] and [`PathTable`]; datagrams take a
//! fixed time, are lost or held back as the test requires, and the session's TCP connection loses
//! nothing. Messages consist of 8 bytes, their number; receives for them are posted before they are
//! sent.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use super::super::*;
use crate::proto::by_hand::{Memory, connect_with, locator};
use crate::proto::core::{Action, Config, Core};
use crate::proto::effects::{CompletionLevel, Ended};
use crate::proto::failure::PeerFailure;
use crate::proto::hint::Hint;
use crate::proto::keys::{JobKeys, SessionKeys, SessionNames};
use crate::proto::rails::health::Transition;
use crate::proto::rails::{RailInfo, path_number};
use crate::proto::receive::ReceiveRequest;
use crate::proto::send::SendRequest;
use crate::proto::table::Id;
use crate::wire::packet::{FLAG_MTU_PROBE, PACKET_TAG_BYTES, Packet};

/// The side that opens sessions, and the other side.
pub(super) const OPENER: usize = 0;
pub(super) const ACCEPTOR: usize = 1;
/// Rails of each side; a session has one path, or one per rail.
pub(super) const RAILS: usize = 2;
/// Latency of a datagram, and of a segment by TCP.
pub(super) const LATENCY_NS: u64 = 20_000;
pub(super) const STREAM_NS: u64 = 100_000;
pub(super) const MILLI: u64 = 1_000_000;
/// Longest datagram of both sides.
pub(super) const BYTES_MAX: usize = 1472;
/// The first session of a pair.
pub(super) const SESSION: u64 = 77;
/// Number of the path between the second rails of both.
pub(super) const OTHER: u16 = 0x0101;

const ENGINES: [u64; 2] = [11, 12];
/// Datagrams per path and turn.
const BURST: usize = 64;

/// How the network treats the datagrams that a side sends on a rail.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Way {
    Open,
    /// They are lost.
    Cut,
    /// They are kept in [`Pair::held`].
    Held,
}

/// A datagram that was sent.
#[derive(Clone, Debug)]
pub(super) struct Datagram {
    pub(super) by: usize,
    pub(super) rail: usize,
    pub(super) from: SocketAddr,
    pub(super) to: SocketAddr,
    pub(super) bytes: Vec<u8>,
    pub(super) at_ns: u64,
    pub(super) is_summed: bool,
}

impl Datagram {
    pub(super) fn packet(&self) -> Packet<'_> {
        Packet::decode(&self.bytes[..self.bytes.len() - PACKET_TAG_BYTES]).unwrap()
    }

    /// Returns whether it has a segment.
    pub(super) fn has_payload(&self) -> bool {
        let packet = self.packet();
        !packet.payload.is_empty() && !packet.has(FLAG_MTU_PROBE)
    }
}

enum Transit {
    Datagram(Datagram),
    Segment { to: usize, bytes: Vec<u8> },
}

pub(super) struct Side {
    pub(super) core: Core,
    pub(super) paths: PathTable,
    pub(super) memory: Memory,
    pub(super) slot: u32,
    pub(super) peer: Id,
    /// In the order of posting.
    receives: Vec<Id>,
    /// Messages sent.
    pub(super) sent_count: u64,
    /// Segments sent by TCP.
    pub(super) by_stream: usize,
    /// Path events reported to its user: the rail, and the change.
    pub(super) changes: Vec<(u8, Transition)>,
}

pub(super) struct Pair {
    pub(super) sides: [Side; 2],
    pub(super) now_ns: u64,
    /// By side and rail.
    pub(super) ways: [[Way; RAILS]; 2],
    /// Additional latency of a rail, beyond [`LATENCY_NS`].
    pub(super) extra_ns: [u64; RAILS],
    pub(super) held: Vec<Datagram>,
    /// All datagrams in the order of sending.
    pub(super) log: Vec<Datagram>,
    /// Source address of a side's first rail, if translated by a NAT.
    pub(super) seen_at: [Option<SocketAddr>; 2],
    /// By time, then in order of creation.
    in_transit: BTreeMap<(u64, u64), Transit>,
    made: u64,
}

/// Returns the address at which a side receives datagrams.
pub(super) fn home(side: usize, rail: usize) -> SocketAddr {
    let ip: IpAddr = match rail {
        0 => locator().ip(),
        _ => IpAddr::from([10, 0, rail as u8, side as u8 + 1]),
    };
    SocketAddr::new(ip, 7000 + side as u16)
}

/// Returns the keys of a session of these engines.
pub(super) fn keys_of(seed: u8) -> SessionKeys {
    JobKeys::new(None).session(&SessionNames {
        initiator: ENGINES[OPENER],
        acceptor: ENGINES[ACCEPTOR],
        initiator_nonce: [seed; 16],
        acceptor_nonce: [seed; 16],
        session: SESSION,
        epoch: 1,
    })
}

impl Side {
    fn new(engine: usize, rails: usize, roles: [u8; RAILS]) -> Self {
        let config = Config { staging_buffers_max: 64, ..Config::for_tests() };
        let mut core = Core::new(ENGINES[engine], config);
        assert_eq!(core.open_endpoint(), Some(0));
        let peer = core.insert_peer(ENGINES[1 - engine], locator(), 0).unwrap();
        let info = |rail: usize| RailInfo {
            address: IpAddr::from([10, 0, rail as u8, engine as u8 + 1]),
            speed_mbps: 1000,
            role: roles[rail],
        };
        core.set_rails((0..rails).map(info).collect());
        Self {
            core,
            paths: PathTable::default(),
            memory: Memory::default(),
            slot: 0,
            peer,
            receives: Vec::new(),
            sent_count: 0,
            by_stream: 0,
            changes: Vec::new(),
        }
    }

    pub(super) fn paths(&self) -> &Paths {
        self.paths.of(self.slot).unwrap()
    }

    /// Returns the path of a number.
    pub(super) fn path(&self, number: u16) -> &SessionPath {
        self.paths().all().find(|path| path.number == number).unwrap()
    }

    /// Returns the number of the path that carries segments now.
    pub(super) fn carrier(&self) -> Option<u16> {
        self.paths().carrier.as_ref().filter(|path| path.is_open()).map(|path| path.number)
    }

    /// Posts the receive of one more message.
    fn expect(&mut self) {
        let request = ReceiveRequest {
            endpoint: 0,
            peer: Some(self.peer),
            context: 0,
            tag: 0,
            ignore: u64::MAX,
            capacity: 8,
            min_free: None,
        };
        let fast = self.core.post_fast(&request);
        let id = fast.unwrap_or_else(|| self.core.new_receive(&request).unwrap());
        self.memory.bytes.insert(id, vec![0xee; 8]);
        if fast.is_none() {
            self.core.start_receive(id, &mut self.memory);
        }
        self.receives.push(id);
    }

    /// Stages the next message in a segment.
    fn stage(&mut self) {
        let (endpoint, peer, context, hint) = (0, self.peer, 0, Hint::None);
        let level = CompletionLevel::Inject;
        let request = SendRequest {
            endpoint,
            peer,
            context,
            tag: self.sent_count,
            length: 8,
            level,
            hint,
            data: None,
            fence: false,
        };
        let room = self.core.stage_now(self.slot, &request).expect("there is credit");
        room.copy_from_slice(&self.sent_count.to_le_bytes());
        self.sent_count += 1;
    }

    /// Returns the received messages, in the order of their receives.
    pub(super) fn received(&self) -> Vec<u64> {
        let ended = self.receives.iter().map_while(|id| self.memory.ended.get(id));
        let came = ended.filter(|(ended, ..)| matches!(ended, Ended::Received(_)));
        came.map(|(.., bytes)| u64::from_le_bytes(bytes[..].try_into().unwrap())).collect()
    }

    /// Returns the received messages from this number on.
    pub(super) fn received_after(&self, number: u64) -> Vec<u64> {
        let ended = self.receives.iter().filter_map(|id| self.memory.ended.get(id));
        let came = ended.filter(|(ended, ..)| matches!(ended, Ended::Received(_)));
        let numbers = came.map(|(.., bytes)| u64::from_le_bytes(bytes[..].try_into().unwrap()));
        numbers.filter(|&it| it >= number).collect()
    }

    fn accept(&mut self, from: SocketAddr, now_ns: u64, bytes: &[u8]) {
        let Self { core, paths, memory, .. } = self;
        let info = ReceiveInfo { from, now_ns, late_ns: 0 };
        paths.handle_packet(core, info, &mut bytes.to_vec(), memory).unwrap();
    }

    /// Returns what one path sends now.
    fn transmit(&mut self, index: Index, now_ns: u64) -> Vec<(Transmit, Vec<u8>)> {
        let Self { core, paths, memory, slot, .. } = self;
        let mut all = Vec::new();
        while all.len() < BURST {
            let mut room = [0; BYTES_MAX + 100];
            let Some(out) = paths.poll_transmit(core, (*slot, index), now_ns, &mut room) else {
                break;
            };
            all.push((out, room[..out.bytes].to_vec()));
        }
        paths.end_transmit(core, (*slot, index), false, memory);
        all
    }

    /// Sends the segment staged last by the fast path.
    fn transmit_lone(&mut self, now_ns: u64) -> Option<(Transmit, Vec<u8>)> {
        let Self { core, paths, memory, slot, .. } = self;
        let mut room = [0; BYTES_MAX + 100];
        let out = paths.lone_packet(core, *slot)?.write(now_ns, &mut room)?;
        paths.end_transmit(core, (*slot, CARRIER), false, memory);
        Some((out, room[..out.bytes].to_vec()))
    }

    /// Returns all state that a datagram could have changed, except the drop counters.
    pub(super) fn fingerprint(&self) -> String {
        let paths = self.paths();
        let mut all = format!("{paths:?} {:?} {:?}", self.core.counters, self.core.dirty);
        for path in paths.all() {
            let packets = format!("{:?}", path.packets);
            let seen = (path.highest, &path.candidate, &path.fallback, path.has_asked_back);
            all += &format!("{packets} {seen:?} {} {}", path.has_update, path.is_held);
        }
        let PathTable { to_drain, timers, standing_by, segments, .. } = &self.paths;
        all + &format!("{to_drain:?} {timers:?} {standing_by} {segments} {:?}", self.received())
    }
}

impl Pair {
    /// Creates a session with one path.
    pub(super) fn new() -> Self {
        Self::with_rails(1, [0; RAILS])
    }

    /// Creates a session with two paths, once both can carry segments.
    pub(super) fn of_two_paths(roles: [u8; RAILS]) -> Self {
        let mut pair = Self::with_rails(RAILS, roles);
        pair.run_for(5 * MILLI);
        for side in &pair.sides {
            assert!(side.paths().count() == 2 && side.paths().all().all(SessionPath::is_active));
        }
        pair
    }

    /// Creates a newly established session between engines with `rails` rails.
    pub(super) fn with_rails(rails: usize, roles: [u8; RAILS]) -> Self {
        let mut pair = Self::unconnected(rails, roles);
        pair.begin(SESSION, 1);
        pair
    }

    pub(super) fn unconnected(rails: usize, roles: [u8; RAILS]) -> Self {
        Self {
            sides: [OPENER, ACCEPTOR].map(|side| Side::new(side, rails, roles)),
            now_ns: MILLI,
            ways: [[Way::Open; RAILS]; 2],
            extra_ns: [0; RAILS],
            held: Vec::new(),
            log: Vec::new(),
            seen_at: [None; 2],
            in_transit: BTreeMap::new(),
            made: 0,
        }
    }

    // ---- The session ----

    /// Establishes session `id`, with keys of its own.
    pub(super) fn begin(&mut self, id: u64, seed: u8) {
        let [opener, acceptor] = &mut self.sides;
        // Both users know how the last session ended.
        opener.core.connect(opener.slot, self.now_ns);
        acceptor.core.note_reported(acceptor.peer);
        let ends = [(&mut opener.core, ENGINES[OPENER]), (&mut acceptor.core, ENGINES[ACCEPTOR])];
        let [one, other] = ends;
        let slots = connect_with(one, other, id, keys_of(seed));
        for (number, slot) in slots.into_iter().enumerate() {
            let side = &mut self.sides[number];
            side.slot = slot;
            side.paths.begin(slot, 0);
            let port = home(1 - number, 0).port();
            side.paths.open_first_path(&mut side.core, slot, port, BYTES_MAX, false);
            side.core.announce_rails(slot);
        }
        for side in [OPENER, ACCEPTOR] {
            self.transmit(side, CARRIER);
            self.turn(side);
        }
    }

    /// Ends the session at one side.
    pub(super) fn end_at(&mut self, number: usize) {
        let side = &mut self.sides[number];
        side.core.fail_session(side.slot, PeerFailure::Left, &mut side.memory);
        self.turn(number);
    }

    /// Ends the session and its TCP connection at both sides; datagrams may still be in transit.
    pub(super) fn end(&mut self) {
        self.end_at(OPENER);
        self.end_at(ACCEPTOR);
        self.in_transit.retain(|_, transit| matches!(transit, Transit::Datagram(_)));
    }

    // ---- Messages ----

    /// Sends the next message of a side, as a loop without other work does.
    pub(super) fn say(&mut self, side: usize) {
        self.sides[1 - side].expect();
        let here = &mut self.sides[side];
        here.stage();
        here.core.clean(here.slot);
        match here.transmit_lone(self.now_ns) {
            Some((out, bytes)) => self.send(side, out, bytes),
            None => self.flush(side),
        }
    }

    /// Checks that both sides have received all messages of the other, once and in order.
    pub(super) fn assert_all_received(&self) {
        for (number, side) in self.sides.iter().enumerate() {
            let sent: Vec<u64> = (0..self.sides[1 - number].sent_count).collect();
            assert_eq!(side.received(), sent);
            assert_eq!(side.core.unexpected.held_bytes().0, 0);
            assert_eq!(side.core.counters.unexpected_messages, 0);
        }
    }

    // ---- The network ----

    fn add(&mut self, after_ns: u64, transit: Transit) {
        self.made += 1;
        self.in_transit.insert((self.now_ns + after_ns, self.made), transit);
    }

    fn send(&mut self, side: usize, out: Transmit, bytes: Vec<u8>) {
        let rail = usize::from(out.rail);
        let seen_at = self.seen_at[side].filter(|_| rail == 0);
        let from = seen_at.unwrap_or_else(|| home(side, rail));
        let (at_ns, is_summed) = (self.now_ns, out.is_summed);
        let datagram = Datagram { by: side, rail, from, to: out.to, bytes, at_ns, is_summed };
        self.log.push(datagram.clone());
        match self.ways[side][rail] {
            Way::Open => self.add(LATENCY_NS + self.extra_ns[rail], Transit::Datagram(datagram)),
            Way::Cut => {}
            Way::Held => self.held.push(datagram),
        }
    }

    /// Returns the side that receives datagrams at an address.
    fn side_at(&self, to: SocketAddr) -> Option<usize> {
        let is_there = |side: usize| {
            (0..RAILS).any(|at| home(side, at) == to) || self.seen_at[side] == Some(to)
        };
        [OPENER, ACCEPTOR].into_iter().find(|&side| is_there(side))
    }

    /// Delivers a datagram now, from the source that the test gives.
    pub(super) fn deliver(&mut self, to: usize, from: SocketAddr, bytes: &[u8]) {
        self.sides[to].accept(from, self.now_ns, bytes);
    }

    /// Releases the datagrams that were held back.
    pub(super) fn release(&mut self) {
        for datagram in std::mem::take(&mut self.held) {
            self.add(LATENCY_NS, Transit::Datagram(datagram));
        }
    }

    /// Sets both directions of a rail.
    pub(super) fn set_rail(&mut self, rail: usize, way: Way) {
        for ways in &mut self.ways {
            ways[rail] = way;
        }
    }

    /// Returns the datagrams that a side has sent on a rail since a time.
    pub(super) fn sent(&self, side: usize, rail: usize, since_ns: u64) -> Vec<&Datagram> {
        let is_it = |it: &&Datagram| (it.by, it.rail) == (side, rail) && it.at_ns >= since_ns;
        self.log.iter().filter(is_it).collect()
    }

    // ---- The loops ----

    pub(super) fn transmit(&mut self, side: usize, index: Index) {
        for (out, bytes) in self.sides[side].transmit(index, self.now_ns) {
            self.send(side, out, bytes);
        }
    }

    /// Sends a session's segments, on its primary path or by TCP.
    fn flush(&mut self, number: usize) {
        let is_open = |side: &Side| side.paths.of(side.slot).is_some_and(Paths::are_open);
        if is_open(&self.sides[number]) {
            self.transmit(number, CARRIER);
        }
        let side = &mut self.sides[number];
        if is_open(side) && !side.paths.is_waiting_too_long(&side.core, side.slot) {
            return;
        }
        let (mut bytes, slot) = (Vec::new(), side.slot);
        while side.core.poll_segment_for_stream(slot, &mut bytes) {
            side.by_stream += 1;
        }
        if !bytes.is_empty() {
            self.add(STREAM_NS, Transit::Segment { to: 1 - number, bytes });
        }
    }

    /// Completes a turn, once received datagrams are handled.
    pub(super) fn turn(&mut self, number: usize) {
        let side = &mut self.sides[number];
        side.paths.drain(&mut side.core, &mut side.memory);
        while let Some(action) = self.sides[number].core.poll_action() {
            self.carry_out(number, action);
        }
        while self.sides[number].core.poll_dirty().is_some() {
            self.flush(number);
        }
        self.fire(number, (0, true));
        while self.sides[number].core.poll_dirty().is_some() {
            self.flush(number);
        }
    }

    fn carry_out(&mut self, number: usize, action: Action) {
        let side = &mut self.sides[number];
        let slot = side.slot;
        match action {
            Action::PairRails { .. } => self.pair_rails(number),
            Action::Ended { .. } => {
                if side.paths.prepare_final_ack(slot) {
                    self.transmit(number, CARRIER);
                }
                self.sides[number].paths.close(slot);
            }
            Action::PathChanged { rail, change, .. } => side.changes.push((rail, change)),
            _ => {}
        }
    }

    /// Pairs rails of equal index to paths.
    fn pair_rails(&mut self, number: usize) {
        let Side { core, paths, slot, .. } = &mut self.sides[number];
        core.describe_first_path(*slot);
        if number == OPENER {
            for rail in 1..RAILS as u8 {
                let path = path_number(rail, rail);
                let at = core.add_path(*slot, path).unwrap();
                paths.open_other_path(core, self.now_ns, *slot, path, at);
            }
        }
    }

    /// Handles expired timers. `late_ns` and `is_drained`: as in [`Timeout`].
    pub(super) fn fire(&mut self, number: usize, (late_ns, is_drained): (u64, bool)) {
        let now_ns = self.now_ns;
        self.sides[number].paths.begin_timeouts(now_ns);
        while let Some((at_ns, slot)) = self.sides[number].paths.poll_timeout(now_ns) {
            let timeout = Timeout { at_ns, now_ns, late_ns, is_drained };
            for index in 0..self.sides[number].paths.of(slot).map_or(0, Paths::count) {
                let Side { core, paths, memory, .. } = &mut self.sides[number];
                if paths.handle_timeout(core, (slot, index), timeout, memory) {
                    self.transmit(number, index);
                }
            }
            let Side { core, paths, .. } = &mut self.sides[number];
            paths.judge_after_timeout(core, now_ns, slot);
        }
        self.sides[number].paths.end_timeouts();
    }

    /// Returns the time of the next event.
    pub(super) fn next_ns(&mut self) -> Option<u64> {
        let arrival_ns = self.in_transit.first_key_value().map(|(&(at_ns, _), _)| at_ns);
        let timers = self.sides.iter_mut().filter_map(|side| side.paths.next_timer_ns());
        timers.chain(arrival_ns).min()
    }

    /// Runs all events until then.
    pub(super) fn run_until(&mut self, until_ns: u64) {
        let mut count = 0;
        while let Some(next_ns) = self.next_ns().filter(|&next_ns| next_ns <= until_ns) {
            count += 1;
            assert!(count < 100_000, "too many events");
            self.now_ns = self.now_ns.max(next_ns);
            while let Some(first) = self.in_transit.first_entry() {
                if first.key().0 > self.now_ns {
                    break;
                }
                let transit = first.remove();
                self.handle(transit);
            }
            self.turn(OPENER);
            self.turn(ACCEPTOR);
        }
        self.now_ns = until_ns;
    }

    pub(super) fn run_for(&mut self, for_ns: u64) {
        self.run_until(self.now_ns + for_ns);
    }

    /// Runs until `is_reached`, which has to hold within `limit_ns`. Returns the time that it took.
    pub(super) fn run_to(&mut self, limit_ns: u64, is_reached: impl Fn(&Self) -> bool) -> u64 {
        let begin_ns = self.now_ns;
        while !is_reached(self) {
            assert!(self.now_ns < begin_ns + limit_ns, "not within {limit_ns} ns");
            self.run_for(10_000);
        }
        self.now_ns - begin_ns
    }

    fn handle(&mut self, transit: Transit) {
        match transit {
            Transit::Datagram(datagram) => {
                if let Some(to) = self.side_at(datagram.to) {
                    self.deliver(to, datagram.from, &datagram.bytes);
                }
            }
            Transit::Segment { to, bytes } => {
                let Side { core, memory, slot, .. } = &mut self.sides[to];
                let used = core.handle_bytes(*slot, &bytes, self.now_ns, memory);
                assert_eq!(used, Ok(bytes.len()));
                core.acknowledge_stream(*slot);
            }
        }
    }
}
