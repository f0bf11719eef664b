//! Engines and the links between them.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use super::engine::{ENDPOINTS, Engine, engine_id};
use super::events::Events;
use super::link::{Link, LinkConfig, Random};
use super::messages::{Flow, Receive};
use super::packets::{Datagram, RAILS};
use super::sessions::{connect, locator};
use super::shared_memory::Rings;
use crate::proto::core::{Action, Config};
use crate::proto::hint::Hint;
use crate::proto::keys::SessionKeys;
use crate::proto::table::Id;

/// What links, connections and lower layers bring to an engine.
#[derive(Debug)]
pub(super) enum Event {
    /// A packet of a path.
    Packet(Datagram),
    /// A datagram that is a segment.
    Segment { from: usize, to: usize, bytes: Vec<u8>, token: u64 },
    /// Segments of a session's stream.
    Stream { from: usize, to: usize, bytes: Vec<u8> },
    /// A segment that `to` has sent to `peer` was acknowledged.
    Acked { to: usize, peer: usize, token: u64 },
    /// The same, lost.
    Lost { to: usize, peer: usize, token: u64 },
    /// An engine has another ring to a peer, or none.
    Ring { to: usize, peer: usize, ring: Option<u32> },
}

/// See the [module](super).
pub(crate) struct Net {
    pub(crate) engines: Vec<Engine>,
    /// What an engine's rails send, by engine and rail.
    pub(crate) links: Vec<[Link; RAILS]>,
    pub(super) events: Events<Event>,
    pub(super) random: Random,
    /// Sessions have packet paths.
    pub(super) has_paths: bool,

    // Messages.
    /// Hint of the next sends.
    pub(crate) hint: Hint,
    /// One message in three has remote data.
    pub(super) has_data: bool,
    /// Lengths, and operations of sends.
    pub(super) sent: BTreeMap<Flow, Vec<(usize, Option<Id>)>>,
    pub(super) receives: Vec<Receive>,

    // Carriage by segments.
    /// Reports of acknowledgements to senders.
    pub(crate) acks: Link,
    /// No acknowledgements or losses are reported, as on a lane that loses nothing.
    pub(crate) is_silent: bool,
    /// Segments use rings, which are full now and then.
    pub(crate) has_rings: bool,
    pub(crate) ring_full_ppm: u64,
    /// Per session and step: everything is sent again, as when lanes change; a ring ends with all
    /// its unread content.
    pub(crate) switch_ppm: u64,
    /// Datagrams per session and turn.
    pub(crate) burst: usize,
    /// Longest segment that a datagram holds.
    pub(crate) room_bytes: usize,
    /// Time of a segment on its session's stream; `None`: streams carry nothing.
    pub(super) stream_ns: Option<u64>,
    /// Whether bulk lanes carry chunks.
    pub(crate) has_bulk: bool,
    /// Some grants are rejected, which closes their lane.
    pub(crate) has_refused_grants: bool,

    // Shared memory.
    /// Reads from the sender's memory that fail.
    pub(crate) cma_failure_ppm: u64,
    /// Bytes read that way.
    pub(crate) cma_bytes: u64,
    /// Rings for pieces.
    pub(crate) rings: Option<Rings>,

    // Carriage by packets.
    /// Packets of closed [gates](super::Gate) that are held.
    pub(crate) held: Vec<Datagram>,
    /// All packets in the order of sending.
    pub(crate) log: Vec<Datagram>,
    /// Source address of an engine's first rail, if translated by a NAT.
    pub(crate) translated: Vec<Option<SocketAddr>>,
}

impl Net {
    /// Creates engines without sessions.
    pub(super) fn unconnected(configs: &[Config], link: &LinkConfig, seed: u64) -> Self {
        let engine = |(number, config)| Engine::new(number, config);
        let mut engines: Vec<Engine> = configs.iter().enumerate().map(engine).collect();
        let count = engines.len();
        for (number, engine) in engines.iter_mut().enumerate() {
            for (to, endpoint) in (0..count).flat_map(|to| (0..ENDPOINTS).map(move |at| (to, at))) {
                if to != number {
                    let peer = engine.core.insert_peer(engine_id(to), locator(), endpoint).unwrap();
                    engine.peers.insert((to, endpoint), peer);
                }
            }
        }
        let mut random = Random(seed);
        let mut new_link = || Link::new(link.clone(), random.next());
        Self {
            engines,
            links: (0..count).map(|_| [new_link(), new_link()]).collect(),
            acks: new_link(),
            events: Events::new(0),
            random,
            has_paths: false,
            hint: Hint::None,
            has_data: true,
            sent: BTreeMap::new(),
            receives: Vec::new(),
            is_silent: false,
            has_rings: false,
            ring_full_ppm: 0,
            switch_ppm: 0,
            burst: 4,
            room_bytes: 0,
            stream_ns: None,
            has_bulk: true,
            has_refused_grants: false,
            cma_failure_ppm: 0,
            cma_bytes: 0,
            rings: None,
            held: Vec::new(),
            log: Vec::new(),
            translated: vec![None; count],
        }
    }

    /// Establishes session `id`, initiated by `opener`.
    pub(super) fn connect(&mut self, opener: usize, acceptor: usize, id: u64, keys: SessionKeys) {
        let [one, other] = self.engines.get_disjoint_mut([opener, acceptor]).unwrap();
        let from = (&mut one.core, engine_id(opener));
        let [slot, there] = connect(from, (&mut other.core, engine_id(acceptor)), id, keys);
        one.slots.insert(acceptor, slot);
        other.slots.insert(opener, there);
    }

    /// Sets the properties of all links and of the reports of acknowledgements, which are neither
    /// lost nor duplicated.
    pub(crate) fn set_links(&mut self, config: &LinkConfig) {
        self.links.iter_mut().flatten().for_each(|link| link.config = config.clone());
        self.acks.config = LinkConfig { loss_ppm: 0, duplicate_ppm: 0, ..config.clone() };
    }

    // ---- Time ----

    pub(crate) fn now_ns(&self) -> u64 {
        self.events.now_ns
    }

    /// Lets time pass in which no engine has a turn.
    pub(crate) fn stall(&mut self, for_ns: u64) {
        self.events.now_ns += for_ns;
    }

    /// Advances to a time: delivers what is due, then gives each engine a turn.
    fn advance_to(&mut self, now_ns: u64) {
        self.events.now_ns = now_ns;
        self.engines.iter_mut().for_each(|engine| engine.memory.now = now_ns);
        while let Some(event) = self.events.pop_due() {
            self.handle(event);
        }
        (0..self.engines.len()).for_each(|number| self.turn(number));
    }

    /// Advances by steps of 1 ns, in each of which all engines have a turn.
    pub(crate) fn steps(&mut self, count: u64) {
        (0..count).for_each(|_| self.advance_to(self.now_ns() + 1));
    }

    pub(crate) fn step(&mut self) {
        self.steps(1);
    }

    /// Returns the time of the next event or timer.
    fn next_ns(&mut self) -> Option<u64> {
        let timers = self.engines.iter_mut().filter_map(|engine| engine.paths.next_timer_ns());
        timers.chain(self.events.next_ns()).min()
    }

    /// Advances to each event until then.
    pub(crate) fn run_until(&mut self, until_ns: u64) {
        let mut count = 0;
        while let Some(next_ns) = self.next_ns().filter(|&next_ns| next_ns <= until_ns) {
            count += 1;
            assert!(count < 100_000, "too many events");
            self.advance_to(next_ns.max(self.now_ns()));
        }
        self.events.now_ns = until_ns;
    }

    pub(crate) fn run_for(&mut self, for_ns: u64) {
        self.run_until(self.now_ns() + for_ns);
    }

    /// Runs until `is_reached`, which has to hold within `limit_ns`. Returns the time that it took.
    pub(crate) fn run_to(&mut self, limit_ns: u64, is_reached: impl Fn(&Self) -> bool) -> u64 {
        let begin_ns = self.now_ns();
        while !is_reached(self) {
            assert!(self.now_ns() < begin_ns + limit_ns, "not within {limit_ns} ns");
            self.run_for(10_000);
        }
        self.now_ns() - begin_ns
    }

    // ---- Deliveries and turns ----

    fn handle(&mut self, event: Event) {
        let now_ns = self.now_ns();
        match event {
            Event::Packet(datagram) => {
                if let Some(to) = self.engine_at(datagram.to) {
                    self.deliver_packet(to, datagram.from, &datagram.bytes);
                }
            }
            Event::Segment { from, to, bytes, token } => self.arrive(from, to, &bytes, token),
            Event::Stream { from, to, bytes } => {
                let Engine { core, memory, slots, .. } = &mut self.engines[to];
                let used = core.handle_bytes(slots[&from], &bytes, now_ns, memory);
                assert_eq!(used, Ok(bytes.len()));
                core.with(slots[&from], |it, cx| it.segments_mut().acknowledge_received(cx));
            }
            Event::Acked { to, peer, token } => self.acknowledge(to, peer, token),
            Event::Lost { to, peer, token } => self.lose(to, peer, token),
            Event::Ring { to, peer, ring } => {
                let Engine { core, slots, .. } = &mut self.engines[to];
                core.with(slots[&peer], |it, cx| assert!(it.use_ring(cx, ring, Some(&[]))));
            }
        }
    }

    /// Completes a turn, once received datagrams are handled.
    pub(crate) fn turn(&mut self, number: usize) {
        let now_ns = self.events.now_ns;
        let Engine { core, paths, memory, .. } = &mut self.engines[number];
        core.poll_acknowledgements(now_ns, false);
        paths.drain(core, memory);
        self.stage(number);
        self.engines[number].core.poll_grants(self.events.now_ns);
        self.read_by_cma(number);
        self.move_pieces(number);
        self.carry_out(number);
        if self.has_bulk {
            self.move_chunks(number);
        }
        if self.has_paths {
            self.transmit_packets(number);
        } else {
            self.transmit_segments(number);
        }
    }

    fn carry_out(&mut self, number: usize) {
        while let Some(action) = self.engines[number].core.shared_mut().poll_action() {
            match action {
                Action::OpenLane { session, lane } => self.open_lane(number, session, lane),
                Action::CloseLane { lane, .. } if !self.has_refused_grants => {
                    panic!("lane {lane:?} closed: it is valid")
                }
                _ if self.has_paths => self.carry_out_for_paths(number, action),
                _ => {}
            }
        }
    }
}
