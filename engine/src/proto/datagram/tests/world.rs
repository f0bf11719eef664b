//! Engines that exchange datagrams over a faulty network, and the operations requested of them.
//!
//! Time advances in steps: arrivals, then a turn of every engine. Instead of packet paths, the
//! harness reports acknowledgements and losses to senders some steps later; those reports are lost,
//! too.

use std::collections::{BTreeMap, HashMap, VecDeque};

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use zerocopy::IntoBytes;

use super::super::super::by_hand::{Memory, connect, lane_hello, locator};
use super::super::super::core::{Action, Config, Core};
use super::super::super::effects::{Arrival, CompletionLevel, Effects, Ended};
use super::super::super::hint::Hint;
use super::super::super::receive::ReceiveRequest;
use super::super::super::rendezvous::ChunkReceive;
use super::super::super::send::{SendRequest, Staged};
use super::super::super::table::Id;
use super::super::Asks;
use super::cma::source_of;
use super::pieces::Rings;
use crate::wire::chunk::CHUNK_HEADER_BYTES;

/// Endpoints of each engine.
pub(super) const ENDPOINTS: u16 = 2;

/// Network faults, as probabilities per datagram.
#[derive(Clone, Copy, Debug)]
pub(super) struct Faults {
    pub(super) loss: f64,
    pub(super) duplication: f64,
    /// Of an acknowledgement.
    pub(super) ack_loss: f64,
    /// Maximum additional steps of a datagram.
    pub(super) jitter: u64,
    /// Per session and step: everything is sent again, as when lanes change.
    pub(super) switch: f64,
    /// No acknowledgements or losses are reported, as on a lane that loses nothing.
    pub(super) is_silent: bool,
    /// Segments go by rings: `loss` means that one is full, and `switch` that one ends with all of
    /// its unread content.
    pub(super) has_rings: bool,
}

impl Faults {
    pub(super) const NONE: Self = Self {
        loss: 0.0,
        duplication: 0.0,
        ack_loss: 0.0,
        jitter: 0,
        switch: 0.0,
        is_silent: false,
        has_rings: false,
    };
}

/// Steps after which a datagram without an acknowledgement is declared lost.
const LOSS_STEPS: u64 = 6;

#[derive(Debug)]
pub(super) enum Event {
    Datagram {
        from: usize,
        to: usize,
        bytes: Vec<u8>,
        token: u64,
    },
    Segment {
        from: usize,
        to: usize,
        bytes: Vec<u8>,
    },
    Acked {
        to: usize,
        peer: usize,
        token: u64,
    },
    Lost {
        to: usize,
        peer: usize,
        token: u64,
    },
    /// It has another ring, or none.
    Ring {
        to: usize,
        peer: usize,
        ring: Option<u32>,
    },
}

/// A flow of messages: what a receive of it has to return.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Stream {
    pub(super) from: usize,
    pub(super) source: u16,
    pub(super) to: usize,
    pub(super) target: u16,
    pub(super) context: u64,
}

/// Returns the remote data of a message: one in three has some.
fn data_of(tag: u64, length: usize) -> Option<u64> {
    (tag % 3 == 1).then_some(tag << 32 | length as u64)
}

pub(super) fn segment(stream: &Stream, tag: u64, length: usize) -> Vec<u8> {
    let seed = tag
        .wrapping_mul(31)
        .wrapping_add(stream.context * 7 + stream.from as u64 * 3 + u64::from(stream.source) * 5);
    (0..length as u64).map(|at| (seed ^ at.wrapping_mul(13) ^ (at >> 7)) as u8).collect()
}

/// One direction of a bulk lane: chunks written and not read.
type Pipe = VecDeque<([u8; CHUNK_HEADER_BYTES], Vec<u8>)>;

pub(super) struct Node {
    pub(super) core: Core,
    pub(super) memory: Memory,
    /// Handles of remote endpoints, by engine and endpoint.
    pub(super) peers: HashMap<(usize, u16), Id>,
    /// Slots of sessions, by engine.
    pub(super) slots: BTreeMap<usize, u32>,
    /// Chunks that a lane will receive.
    receiving: HashMap<Id, ChunkReceive>,
    /// Readable content of a lane.
    inbox: HashMap<Id, Pipe>,
    /// The other end of a lane.
    other: HashMap<Id, (usize, Id)>,
    pub(super) actions: Vec<Action>,
    /// Sessions that may have something to send, and their engines.
    wanting: BTreeMap<usize, u32>,
}

/// A receive, in the order of posting.
pub(super) struct Receive {
    pub(super) node: usize,
    pub(super) endpoint: u16,
    pub(super) id: Id,
}

pub(super) struct World {
    pub(super) nodes: Vec<Node>,
    /// Hint of the next sends.
    pub(super) hint: Hint,
    pub(super) faults: Faults,
    /// Datagrams of these numbers are lost, independent of the faults.
    pub(super) doomed: Vec<u64>,
    pub(super) datagrams: u64,
    /// Datagrams per session and turn.
    pub(super) burst: usize,
    pub(super) room_bytes: usize,
    pub(super) now: u64,
    /// By step, then in order of creation.
    pub(super) scheduled: BTreeMap<(u64, u64), Event>,
    made: u64,
    pub(super) random: SmallRng,
    pub(super) sent: BTreeMap<Stream, Vec<(usize, Option<Id>)>>,
    pub(super) receives: Vec<Receive>,
    /// Whether bulk lanes carry chunks.
    pub(super) has_bulk: bool,
    /// Steps that a segment takes on its session's stream; `None`: streams carry nothing.
    pub(super) stream_steps: Option<u64>,
    /// Segments sent on streams.
    pub(super) segments: u64,
    /// Some grants are rejected, which closes their lane.
    pub(super) refuses: bool,
    /// Probability that a read from the sender's memory fails.
    pub(super) cma_failure: f64,
    /// Bytes read that way.
    pub(super) cma_bytes: u64,
    /// Rings for pieces.
    pub(super) rings: Option<Rings>,
}

fn engine_of(node: usize) -> u64 {
    10 + node as u64
}

impl World {
    pub(super) fn new(count: usize, config: &Config, segment_bytes: usize, seed: u64) -> Self {
        Self::of(&vec![config.clone(); count], segment_bytes, seed)
    }

    /// Creates engines with a configuration each.
    pub(super) fn of(configs: &[Config], segment_bytes: usize, seed: u64) -> Self {
        let count = configs.len();
        let nodes = configs.iter().enumerate().map(|(number, config)| {
            let mut core = Core::new(engine_of(number), config.clone());
            for endpoint in 0..ENDPOINTS {
                assert_eq!(core.open_endpoint(), Some(endpoint));
            }
            Node {
                core,
                memory: Memory::default(),
                peers: HashMap::new(),
                slots: BTreeMap::new(),
                receiving: HashMap::new(),
                inbox: HashMap::new(),
                other: HashMap::new(),
                actions: Vec::new(),
                wanting: BTreeMap::new(),
            }
        });
        let mut world = Self {
            nodes: nodes.collect(),
            hint: Hint::None,
            faults: Faults::NONE,
            doomed: Vec::new(),
            datagrams: 0,
            burst: 4,
            room_bytes: segment_bytes,
            now: 0,
            scheduled: BTreeMap::new(),
            made: 0,
            random: SmallRng::seed_from_u64(seed),
            sent: BTreeMap::new(),
            receives: Vec::new(),
            has_bulk: true,
            stream_steps: None,
            segments: 0,
            cma_failure: 0.0,
            refuses: false,
            cma_bytes: 0,
            rings: None,
        };
        for left in 0..count {
            for right in left + 1..count {
                world.connect(left, right, segment_bytes);
            }
        }
        world
    }

    /// Establishes a session in datagram mode, initiated by `left`.
    fn connect(&mut self, left: usize, right: usize, segment_bytes: usize) {
        for (from, to) in [(left, right), (right, left)] {
            for endpoint in 0..ENDPOINTS {
                let node = &mut self.nodes[from];
                let peer = node.core.insert_peer(engine_of(to), locator(), endpoint).unwrap();
                node.peers.insert((to, endpoint), peer);
            }
        }
        let id = 1 + (left * 100 + right) as u64;
        let [opener, acceptor] = self.nodes.get_disjoint_mut([left, right]).unwrap();
        let (from, to) = (engine_of(left), engine_of(right));
        let [slot, other] = connect((&mut opener.core, from), (&mut acceptor.core, to), id);
        for (node, slot, peer) in [(opener, slot, right), (acceptor, other, left)] {
            node.core.use_datagrams(slot, segment_bytes);
            node.slots.insert(peer, slot);
        }
    }

    /// Sends messages that do not fit a datagram on streams, which take this many steps.
    pub(super) fn use_streams(&mut self, steps: u64) {
        self.stream_steps = Some(steps);
        for node in &mut self.nodes {
            node.slots.values().for_each(|&slot| node.core.use_stream(slot, true));
        }
    }

    pub(super) fn add(&mut self, steps: u64, event: Event) {
        self.made += 1;
        self.scheduled.insert((self.now + steps, self.made), event);
    }

    fn happens(&mut self, probability: f64) -> bool {
        probability > 0.0 && self.random.random_bool(probability)
    }

    // ---- User operations ----

    /// Sends the next message of a flow; its tag is its number there.
    pub(super) fn send(
        &mut self,
        stream: Stream,
        length: usize,
        level: CompletionLevel,
    ) -> Option<Id> {
        let tag = self.sent.get(&stream).map_or(0, Vec::len) as u64;
        let bytes = segment(&stream, tag, length);
        let node = &mut self.nodes[stream.from];
        let request = SendRequest {
            endpoint: stream.source,
            peer: node.peers[&(stream.to, stream.target)],
            context: stream.context,
            tag,
            length: length as u64,
            level,
            hint: self.hint,
            data: data_of(tag, length),
            fence: false,
        };
        let slot = node.slots[&stream.to];
        if level == CompletionLevel::Inject
            && request.is_plain()
            && let Some(room) = node.core.stage_now(slot, &request)
        {
            room.copy_from_slice(&bytes);
            self.sent.entry(stream).or_default().push((length, None));
            return None;
        }
        let id = node.core.new_send(&request).unwrap();
        node.memory.bytes.insert(id, bytes);
        node.core.enqueue(id, self.now);
        self.sent.entry(stream).or_default().push((length, Some(id)));
        Some(id)
    }

    /// Posts a receive of any tag from `peer`.
    pub(super) fn receive(
        &mut self,
        (node, endpoint): (usize, u16),
        peer: Option<(usize, u16)>,
        context: u64,
        capacity: usize,
    ) -> Id {
        let here = &mut self.nodes[node];
        let request = ReceiveRequest {
            endpoint,
            peer: peer.map(|peer| here.peers[&peer]),
            context,
            tag: 0,
            ignore: u64::MAX,
            capacity: capacity as u64,
            min_free: None,
        };
        let fast = here.core.post_fast(&request);
        let id = fast.unwrap_or_else(|| here.core.new_receive(&request).unwrap());
        here.memory.bytes.insert(id, vec![0xee; capacity]);
        if fast.is_none() {
            here.core.start_receive(id, &mut here.memory);
        }
        self.receives.push(Receive { node, endpoint, id });
        id
    }

    // ---- Steps ----

    pub(super) fn step(&mut self) {
        self.now += 1;
        while let Some(entry) = self.scheduled.first_entry() {
            if entry.key().0 > self.now {
                break;
            }
            let event = entry.remove();
            self.handle(event);
        }
        for node in 0..self.nodes.len() {
            self.nodes[node].memory.now = self.now;
            self.turn(node);
        }
    }

    pub(super) fn steps(&mut self, count: u64) {
        (0..count).for_each(|_| self.step());
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Datagram { from, to, bytes, token } => {
                let node = &mut self.nodes[to];
                node.memory.now = self.now;
                let slot = node.slots[&from];
                if self.faults.has_rings {
                    let handled =
                        node.core.handle_ring_segment(slot, &bytes, self.now, &mut node.memory);
                    return handled.unwrap();
                }
                let handled = node.core.handle_datagram(slot, &bytes, self.now, &mut node.memory);
                handled.unwrap();
                let steps = 1 + self.random.random_range(0..=self.faults.jitter);
                if self.faults.is_silent {
                    return;
                }
                if self.happens(self.faults.ack_loss) {
                    self.add(LOSS_STEPS, Event::Lost { to: from, peer: to, token });
                } else {
                    self.add(steps, Event::Acked { to: from, peer: to, token });
                }
            }
            Event::Segment { from, to, bytes } => {
                let node = &mut self.nodes[to];
                node.memory.now = self.now;
                let slot = node.slots[&from];
                let used = node.core.handle_bytes(slot, &bytes, self.now, &mut node.memory);
                assert_eq!(used, Ok(bytes.len()));
            }
            Event::Acked { to, peer, token } => {
                let node = &mut self.nodes[to];
                node.memory.now = self.now;
                let slot = node.slots[&peer];
                node.core.handle_segment_acked(slot, token, &mut node.memory);
            }
            Event::Ring { to, peer, ring } => {
                let node = &mut self.nodes[to];
                node.core.use_ring(node.slots[&peer], ring);
            }
            Event::Lost { to, peer, token } => {
                let node = &mut self.nodes[to];
                let slot = node.slots[&peer];
                node.core.handle_segment_lost(slot, token);
            }
        }
    }

    pub(super) fn stage(&mut self, number: usize) {
        let node = &mut self.nodes[number];
        while let Some(id) = node.core.poll_waiting() {
            let completed = match node.core.stage(id) {
                Staged::Eager { room, completes } => {
                    room.copy_from_slice(&node.memory.bytes[&id]);
                    completes
                }
                Staged::Rts { room } => {
                    room.copy_from_slice(&node.memory.bytes[&id][..room.len()]);
                    false
                }
                Staged::Source { room } => {
                    room.copy_from_slice(source_of(&node.memory, id).as_bytes());
                    false
                }
                Staged::Part { room, offset, completes } => {
                    let end = offset + room.len();
                    room.copy_from_slice(&node.memory.bytes[&id][offset..end]);
                    completes
                }
                // Blocked sessions are not returned again.
                Staged::Blocked => continue,
            };
            if completed {
                node.memory.complete(id, Ended::Sent { accepted: 0 });
            }
        }
        while let Some(data) = node.core.stage_data() {
            let (start, length) = (data.offset as usize, data.room.len());
            let bytes = &node.memory.bytes[&data.operation];
            data.room.copy_from_slice(&bytes[start..start + length]);
        }
    }

    fn turn(&mut self, number: usize) {
        self.stage(number);
        self.nodes[number].core.poll_grants(self.now);
        self.read_by_cma(number);
        self.move_pieces(number);
        self.carry_out(number);
        if self.has_bulk {
            self.move_chunks(number);
        }
        let slots: Vec<(usize, u32)> =
            self.nodes[number].slots.iter().map(|(&peer, &slot)| (peer, slot)).collect();
        for &(peer, slot) in &slots {
            if self.happens(self.faults.switch) {
                if self.faults.has_rings {
                    self.scheduled.retain(|_, event| {
                        !matches!(event, Event::Datagram { from, to, .. }
                            if (*from, *to) == (number, peer))
                    });
                }
                self.nodes[number].core.resend_all(slot, false);
                self.end_ring(number, peer);
            }
        }
        for &(peer, slot) in &slots {
            self.transmit_by_stream(number, peer, slot);
        }
        let node = &mut self.nodes[number];
        while let Some(dirty) = node.core.poll_dirty() {
            let peer = slots.iter().find(|(_, slot)| *slot == dirty).unwrap().0;
            node.wanting.insert(peer, dirty);
        }
        for (peer, slot) in node.wanting.clone() {
            for _ in 0..self.burst {
                if !self.transmit(number, peer, slot) {
                    self.nodes[number].wanting.remove(&peer);
                    break;
                }
                self.stage(number);
            }
        }
    }

    /// Sends one datagram. Returns `false` if there is none.
    pub(super) fn transmit(&mut self, from: usize, to: usize, slot: u32) -> bool {
        let core = &mut self.nodes[from].core;
        let waiting = core.waiting_bytes(slot);
        let asks = match (self.faults.has_rings, self.faults.is_silent) {
            (true, _) => Asks::WhenAwaited,
            (false, true) => Asks::Always,
            (false, false) => Asks::Never,
        };
        let Some(out) = core.poll_segment(slot, self.room_bytes, asks) else { return false };
        assert!(waiting > 0 && out.bytes.len() <= self.room_bytes);
        let (token, bytes) = (out.token, out.bytes.to_vec());
        self.datagrams += 1;
        if self.faults.has_rings && self.happens(self.faults.loss) {
            self.nodes[from].core.handle_segment_refused(slot, token);
            return false;
        }
        if self.doomed.contains(&self.datagrams) || self.happens(self.faults.loss) {
            self.add(LOSS_STEPS, Event::Lost { to: from, peer: to, token });
            return true;
        }
        let copies = 1 + usize::from(self.happens(self.faults.duplication));
        for _ in 0..copies {
            let steps = 1 + self.random.random_range(0..=self.faults.jitter);
            self.add(steps, Event::Datagram { from, to, bytes: bytes.clone(), token });
        }
        true
    }

    /// Sends waiting stream segments, and acknowledges received ones.
    fn transmit_by_stream(&mut self, from: usize, to: usize, slot: u32) {
        if self.faults.has_rings && self.now.is_multiple_of(4) {
            self.nodes[from].core.acknowledge_stream(slot);
        }
        let Some(steps) = self.stream_steps else { return };
        if self.nodes[from].core.owed_by_stream(slot) > 0 {
            self.nodes[from].core.acknowledge_stream(slot);
        }
        while let Some((bytes, _)) = self.nodes[from].core.poll_long(slot) {
            let bytes = bytes.to_vec();
            self.segments += 1;
            self.add(steps, Event::Segment { from, to, bytes });
            self.stage(from);
        }
    }

    fn carry_out(&mut self, number: usize) {
        while let Some(action) = self.nodes[number].core.poll_action() {
            if let Action::OpenLane { session, lane } = action {
                self.open_lane(number, session, lane);
            } else if let Action::CloseLane { lane, .. } = action
                && !self.refuses
            {
                panic!("lane {lane:?} closed: it is valid");
            } else {
                self.nodes[number].actions.push(action);
            }
        }
    }

    fn open_lane(&mut self, number: usize, slot: u32, lane: Id) {
        let here = &self.nodes[number];
        let Some(peer) = here.slots.iter().find(|(_, at)| **at == slot).map(|(peer, _)| *peer)
        else {
            return;
        };
        let session = here.core.sessions.at(slot as usize).unwrap().id;
        let name = here.core.lanes.get(lane).unwrap().number;
        let there = &mut self.nodes[peer].core;
        let hello = lane_hello(engine_of(number), session, name);
        let other = there.handle_lane_hello(&hello, self.now).unwrap();
        there.lane_ready(other, self.now);
        self.nodes[number].core.lane_ready(lane, self.now);
        self.nodes[number].other.insert(lane, (peer, other));
        self.nodes[peer].other.insert(other, (number, lane));
    }

    fn move_chunks(&mut self, number: usize) {
        while let Some(lane) = self.nodes[number].core.poll_runnable() {
            let now = self.now;
            let node = &mut self.nodes[number];
            if let Some(receive) = node.core.next_receive(lane) {
                node.receiving.insert(lane, receive);
            }
            if let Some(chunk) = node.core.next_send(lane, &node.memory) {
                let range = chunk.offset as usize..chunk.offset as usize + chunk.length as usize;
                let bytes = node.memory.bytes[&chunk.operation][range].to_vec();
                node.core.handle_chunk_sent(lane, now);
                node.core.handle_chunk_released(chunk.operation, &mut node.memory);
                let (peer, other) = node.other[&lane];
                self.nodes[peer].inbox.entry(other).or_default().push_back((chunk.header, bytes));
            }
        }
        let node = &mut self.nodes[number];
        let mut ready: Vec<Id> = node.receiving.keys().copied().collect();
        ready.sort_unstable();
        for lane in ready {
            let chunk = node.inbox.get_mut(&lane).and_then(VecDeque::pop_front);
            let Some((header, bytes)) = chunk else { continue };
            let receive = node.receiving.remove(&lane).unwrap();
            node.memory.place(receive.operation, receive.offset as usize, &bytes);
            let is_good = node.core.handle_chunk_received(
                lane,
                receive,
                Some(&header),
                self.now,
                &mut node.memory,
            );
            assert!(is_good, "chunks arrive in grant order");
        }
    }

    // ---- Manual steps ----

    /// Returns everything that an engine would send to another now, with the tokens.
    pub(super) fn capture(&mut self, from: usize, to: usize) -> Vec<(u64, Vec<u8>)> {
        self.stage(from);
        let slot = self.nodes[from].slots[&to];
        let mut all = Vec::new();
        let room_bytes = self.room_bytes;
        while let Some(out) = self.nodes[from].core.poll_segment(slot, room_bytes, Asks::Never) {
            all.push((out.token, out.bytes.to_vec()));
            self.stage(from);
        }
        all
    }

    /// Delivers a datagram.
    pub(super) fn deliver(
        &mut self,
        from: usize,
        to: usize,
        bytes: &[u8],
    ) -> Result<(), crate::wire::FrameError> {
        let node = &mut self.nodes[to];
        let slot = node.slots[&from];
        node.core.handle_datagram(slot, bytes, self.now, &mut node.memory)
    }

    /// Reports to the sender that a datagram has arrived.
    pub(super) fn acknowledge(&mut self, from: usize, to: usize, token: u64) {
        let node = &mut self.nodes[from];
        let slot = node.slots[&to];
        node.core.handle_segment_acked(slot, token, &mut node.memory);
    }

    /// Reports to the sender that a datagram was lost.
    pub(super) fn lose(&mut self, from: usize, to: usize, token: u64) {
        let slot = self.nodes[from].slots[&to];
        self.nodes[from].core.handle_segment_lost(slot, token);
    }

    pub(super) fn end_of(&self, node: usize, id: Id) -> Option<&Ended> {
        self.nodes[node].memory.ended.get(&id).map(|(ended, ..)| ended)
    }

    // ---- Checks ----

    /// Returns whether every operation has ended and nothing is outstanding.
    pub(super) fn is_at_rest(&self) -> bool {
        self.scheduled.is_empty()
            && self.nodes.iter().all(|node| {
                node.memory.bytes.is_empty()
                    && node.slots.values().all(|&slot| {
                        node.core.is_settled(slot) && node.core.waiting_bytes(slot) == 0
                    })
            })
    }

    /// Runs steps until everything is at rest, at most `limit`.
    pub(super) fn settle(&mut self, limit: u64) -> u64 {
        let start = self.now;
        while !self.is_at_rest() {
            assert!(self.now - start < limit, "not at rest after {limit} steps");
            self.step();
        }
        self.now - start
    }

    /// Checks that every message arrived once, complete, at the right receive, and that all
    /// resources are returned.
    pub(super) fn check(&self) {
        let mut next: BTreeMap<Stream, u64> = BTreeMap::new();
        for receive in &self.receives {
            let here = &self.nodes[receive.node];
            let (ended, _, bytes) = &here.memory.ended[&receive.id];
            let Ended::Received(arrival) = ended else { panic!("{ended:?}") };
            let stream = self.stream_of(receive, arrival);
            let tag = next.entry(stream).or_default();
            assert_eq!(arrival.tag, *tag, "{stream:?}");
            let length = self.sent[&stream][*tag as usize].0;
            assert_eq!(arrival.length, length as u64);
            assert_eq!(arrival.data, data_of(*tag, length), "RR-DATA-1");
            let fits = length.min(bytes.len());
            assert!(bytes[..fits] == segment(&stream, *tag, length)[..fits], "{stream:?} {tag}");
            assert!(bytes[fits..].iter().all(|&byte| byte == 0xee));
            *tag += 1;
        }
        for (stream, messages) in &self.sent {
            assert_eq!(next.get(stream).copied().unwrap_or(0), messages.len() as u64);
            for id in messages.iter().filter_map(|(_, id)| *id) {
                let (ended, ..) = &self.nodes[stream.from].memory.ended[&id];
                assert!(matches!(ended, Ended::Sent { .. }), "{ended:?}");
            }
        }
        self.check_rest();
    }

    fn stream_of(&self, receive: &Receive, arrival: &Arrival) -> Stream {
        let peers = &self.nodes[receive.node].peers;
        let (&(from, source), _) = peers.iter().find(|(_, id)| **id == arrival.peer).unwrap();
        let (to, target, context) = (receive.node, receive.endpoint, arrival.context);
        Stream { from, source, to, target, context }
    }

    /// Checks that no resource is in use.
    pub(super) fn check_rest(&self) {
        for (number, node) in self.nodes.iter().enumerate() {
            let core = &node.core;
            assert_eq!(core.operations.len(), 0);
            assert_eq!(core.datagrams.segments.allocated_bytes().1, 0);
            assert_eq!(core.datagrams.assemblies.len(), 0);
            assert_eq!(core.datagrams.pulls.bytes(), 0);
            assert_eq!(core.unexpected.held_bytes().0, 0);
            for (&peer, &slot) in &node.slots {
                let session = core.sessions.at(slot as usize).unwrap();
                // Messages that were unexpected when a session ended are no longer counted there.
                let Some(datagram) = session.datagram.as_deref() else { continue };
                assert_eq!((session.envelopes.held(), session.bytes.held()), (0, 0));
                assert!(datagram.assemblies.is_empty() && datagram.orphans == 0);
                let other = &self.nodes[peer];
                let there = other.core.sessions.at(other.slots[&number] as usize).unwrap();
                let theirs = there.datagram.as_deref().unwrap();
                assert_eq!(datagram.next_frame, theirs.arrivals.expected());
                assert_eq!(session.byte_credit.available(), there.bytes.left());
                assert_eq!(session.envelope_credit.available(), there.envelopes.left());
            }
        }
    }
}
