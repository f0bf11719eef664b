//! The simulated network: virtual time, hosts, and connections between them.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::SocketAddr;

use super::Shared;
use super::connection::Connection;
use super::datagrams::{DatagramImpairments, DatagramNet};
use super::host::Host;
use super::lane::{PendingEvent, Spans, What};
use super::local_peers::LocalPeers;
use super::on_path_attacker::OnPathAttacker;
use super::rails::RailFault;
use super::random::{HostRandom, Random};
use super::wire_hash::WireHashes;
use crate::hooks::simulated;
use crate::memory::Span;

/// Impairments of the network. "One in" so many times; 0: never.
#[derive(Clone, Debug)]
pub(crate) struct Impairments {
    /// Delay, and its jitter.
    pub(crate) delay_ns: u64,
    pub(crate) jitter_ns: u64,
    /// Time of the link per KiB.
    pub(crate) ns_per_kib: u64,
    /// Capacity of a connection per direction, in bytes.
    pub(crate) capacity: usize,
    /// Short reads and writes.
    pub(crate) partial_one_in: usize,
    /// Maximum delay of events.
    pub(crate) late_ns: u64,
    /// Maximum number of events per poll.
    pub(crate) events_per_poll: usize,
    pub(crate) refused_one_in: usize,
    pub(crate) swallowed_one_in: usize,
    pub(crate) interrupted_one_in: usize,
    pub(crate) descriptors_missing_one_in: usize,
    /// Silence after which a kernel resets a connection.
    pub(crate) keep_alive_ns: u64,
}

impl Impairments {
    /// A fast network without faults.
    pub(crate) fn ideal() -> Self {
        Self {
            delay_ns: 5_000,
            jitter_ns: 2_000,
            ns_per_kib: 800,
            capacity: 64 << 10,
            partial_one_in: 0,
            late_ns: 0,
            events_per_poll: 64,
            refused_one_in: 0,
            swallowed_one_in: 0,
            interrupted_one_in: 0,
            descriptors_missing_one_in: 0,
            keep_alive_ns: 10_000_000_000,
        }
    }
}

/// A scheduled action.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Item {
    /// A turn of the engine of a host, unless invalidated.
    Turn { host: usize, turn: u64 },
    /// An action of the owner of the world, by its number.
    Owner(u64),
    /// A connection attempt reaches the listener.
    Syn(usize),
    /// Bytes written by `side` arrive.
    Arrive { connection: usize, side: usize },
    /// The peer of `side` has made room.
    Room { connection: usize, side: usize },
    /// `side` notices that the connection is broken.
    Reset { connection: usize, side: usize },
    /// The keep-alive time between two hosts is over.
    KeepAlive { pair: [usize; 2], epoch: u64 },
    /// A fault of a link begins or ends.
    RailFault { host: usize, link: usize, fault: Option<RailFault> },
    /// The keep-alive time of a link is over.
    RailSilence { host: usize, link: usize, epoch: u64 },
    /// The kernel of a host takes datagrams again.
    DatagramRoom { host: usize, process: u32 },
    /// The engine of a host tries to connect a session's local peer.
    Discovery { host: usize, session: u64, tries: u32 },
    /// The rings of some session end.
    RingEnd,
}

/// A connection whose acceptor had answered the hello, and closed it before the proof came.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GivenUp {
    /// The hosts.
    pub(crate) between: (usize, usize),
    /// Time since the answer.
    pub(crate) waited_ns: u64,
}

/// Memory that a request of the kernel refers to.
#[derive(Debug)]
struct BusyMemory {
    from: usize,
    to: usize,
    writes: bool,
    is_delivered: bool,
}

impl BusyMemory {
    fn overlaps(&self, from: usize, to: usize) -> bool {
        self.from < to && from < self.to
    }
}

#[derive(Debug)]
struct Planned {
    at_ns: u64,
    number: u64,
    item: Item,
}

impl PartialEq for Planned {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Planned {}

impl PartialOrd for Planned {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Planned {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at_ns, self.number).cmp(&(other.at_ns, other.number))
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Net {
    pub(super) seed: u64,
    /// For everything that belongs to no single host.
    pub(crate) random: Random,
    pub(crate) impairments: Impairments,
    pub(crate) datagram_impairments: DatagramImpairments,
    pub(super) now_ns: u64,
    number: u64,
    queue: BinaryHeap<Reverse<Planned>>,
    pub(super) hosts: Vec<Host>,
    pub(crate) connections: Vec<Connection>,
    pub(super) datagram_net: DatagramNet,
    pub(super) local_peers: LocalPeers,
    /// Number of [`quickack`](crate::driver::traits::ConnectionIo::quickack) calls.
    pub(crate) quickacks: u64,
    /// Directions between two hosts that are cut, with the epochs of the cuts.
    pub(super) cuts: Vec<(usize, usize, u64)>,
    pub(super) attacker: OnPathAttacker,
    /// Counts the cuts, to identify their keep-alive timers.
    pub(super) epoch: u64,
    /// Memory that requests of the kernel refer to.
    busy: Vec<BusyMemory>,
    /// Memory where that is the user's doing.
    racy: Vec<(usize, usize)>,
    violations: Vec<String>,
    pub(super) given_up: Vec<GivenUp>,
    hash: u64,
    pub(super) wire: WireHashes,
}

impl Net {
    pub(crate) fn new(seed: u64, impairments: Impairments) -> Shared {
        simulated::set_now_ns(0);
        std::rc::Rc::new(std::cell::RefCell::new(Self {
            seed,
            random: Random::new(seed),
            impairments,
            datagram_impairments: DatagramImpairments::ideal(),
            now_ns: 0,
            number: 0,
            queue: BinaryHeap::new(),
            hosts: Vec::new(),
            connections: Vec::new(),
            datagram_net: DatagramNet::default(),
            local_peers: LocalPeers::default(),
            quickacks: 0,
            cuts: Vec::new(),
            attacker: OnPathAttacker::default(),
            epoch: 0,
            busy: Vec::new(),
            racy: Vec::new(),
            violations: Vec::new(),
            given_up: Vec::new(),
            hash: 0,
            wire: WireHashes::default(),
        }))
    }

    // ---- Time ----

    pub(crate) fn now_ns(&self) -> u64 {
        self.now_ns
    }

    pub(super) fn next_number(&mut self) -> u64 {
        self.number += 1;
        self.number
    }

    pub(crate) fn plan(&mut self, at_ns: u64, item: Item) {
        let (at_ns, number) = (at_ns.max(self.now_ns), self.next_number());
        self.queue.push(Reverse(Planned { at_ns, number, item }));
    }

    /// Cancels scheduled faults of links.
    pub(super) fn forget_rail_faults(&mut self) {
        self.queue.retain(|Reverse(planned)| !matches!(planned.item, Item::RailFault { .. }));
    }

    /// Advances time until the next action that is not internal to the network, or until
    /// `limit_ns`.
    pub(crate) fn next(&mut self, limit_ns: u64) -> Option<Item> {
        loop {
            let first = self.queue.peek().filter(|Reverse(first)| first.at_ns <= limit_ns);
            if first.is_none() {
                self.set_now(limit_ns.max(self.now_ns));
                return None;
            }
            let Reverse(Planned { at_ns, item, .. }) = self.queue.pop()?;
            self.set_now(at_ns);
            match item {
                Item::Turn { host, turn } if !self.begins_turn(host, turn) => {}
                Item::Turn { .. } | Item::Owner(_) => return Some(item),
                Item::Syn(connection) => self.handle_syn(connection),
                Item::Arrive { connection, side } => self.handle_arrival(connection, side),
                Item::Room { connection, side } => self.look_at(connection, side),
                Item::Reset { connection, side } => self.handle_reset(connection, side),
                Item::KeepAlive { pair, epoch } => self.handle_keep_alive(pair, epoch),
                Item::RailFault { host, link, fault } => self.set_rail_fault(host, link, fault),
                Item::RailSilence { host, link, epoch } => {
                    self.handle_rail_silence(host, link, epoch);
                }
                Item::DatagramRoom { host, process } => self.handle_datagram_room(host, process),
                Item::Discovery { host, session, tries } => {
                    self.handle_discovery(host, session, tries)
                }
                Item::RingEnd => self.handle_ring_end(),
            }
        }
    }

    fn set_now(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
        simulated::set_now_ns(now_ns);
    }

    /// Adds an action to the trace hash.
    pub(crate) fn trace(&mut self, what: &[u64]) {
        for &word in [self.now_ns].iter().chain(what) {
            let mixed = (self.hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            self.hash = mixed.rotate_left(29) ^ (mixed >> 32);
        }
    }

    pub(crate) fn trace_hash(&self) -> u64 {
        self.hash
    }

    /// The hash of all bytes that engines sent (see `wire_hash`).
    pub(crate) fn wire_hash(&self) -> u64 {
        self.wire.total()
    }

    /// Logs everything that engines send from now on.
    pub(crate) fn log_wire(&mut self, file: std::fs::File) {
        self.wire.log_to(file);
    }

    pub(crate) fn draw(&mut self, one_in: usize) -> bool {
        self.random.one_in(one_in)
    }

    /// Random numbers for the duration of turns of `host`.
    pub(crate) fn turn_random(&mut self, host: usize) -> &mut Random {
        &mut self.hosts[host].random.turns
    }

    pub(super) fn lateness_ns(&mut self, host: usize) -> u64 {
        let late_ns = self.impairments.late_ns;
        if late_ns == 0 { 0 } else { self.hosts[host].random.events.within(late_ns) }
    }

    pub(super) fn delay_ns(&mut self) -> u64 {
        self.impairments.delay_ns + self.random.within(self.impairments.jitter_ns)
    }

    /// The same for one side of a connection.
    pub(super) fn delay_of(&mut self, connection: usize, side: usize) -> u64 {
        let jitter_ns =
            self.connections[connection].random[side].within(self.impairments.jitter_ns);
        self.impairments.delay_ns + jitter_ns
    }

    // ---- Violations ----

    pub(crate) fn violation(&mut self, what: impl Into<String>) {
        self.violations.push(what.into());
    }

    pub(crate) fn take_violation(&mut self) -> Option<String> {
        (!self.violations.is_empty()).then(|| self.violations.remove(0))
    }

    // ---- Activity ----

    /// Whether bytes of a stream are in flight to an open reader, including retransmissions: their
    /// time was drawn when they were written.
    pub(crate) fn has_bytes_under_way(&self) -> bool {
        self.connections.iter().any(Connection::has_bytes_under_way)
    }

    /// Connections given up since the last call.
    pub(crate) fn take_given_up(&mut self) -> Vec<GivenUp> {
        std::mem::take(&mut self.given_up)
    }

    /// A request references memory. Memory that one writes must not be shared.
    pub(super) fn take_memory(&mut self, spans: &Spans, writes: bool) {
        for span in spans {
            let (from, to) = (span.ptr.addr(), span.ptr.addr() + span.len);
            let is_shared = self.busy.iter().any(|busy| {
                (writes || busy.writes) && !busy.is_delivered && busy.overlaps(from, to)
            });
            let is_racy = |&(racy_from, racy_to): &_| racy_from <= from && to <= racy_to;
            if is_shared && !self.racy.iter().any(is_racy) {
                self.violation("two requests of the kernel share memory that one of them writes");
            }
            self.busy.push(BusyMemory { from, to, writes, is_delivered: false });
        }
    }

    /// The peer has the bytes of this memory: a request that still reads there, because its
    /// completion is late, does not matter to those that write from now on.
    pub(crate) fn mark_delivered(&mut self, span: Span) {
        let (from, to) = (span.ptr.addr(), span.ptr.addr() + span.len);
        let reads = self.busy.iter_mut().filter(|busy| !busy.writes);
        for busy in reads.filter(|busy| from <= busy.from && busy.to <= to) {
            busy.is_delivered = true;
        }
    }

    /// Lets requests share this memory from now on: an operation of a user may be late there.
    pub(crate) fn allow_races(&mut self, span: Span) {
        self.racy.push((span.ptr.addr(), span.ptr.addr() + span.len));
    }

    /// Releases memory. A cancelled request overwrites it until now.
    pub(super) fn release_memory(&mut self, spans: &Spans, scribbles: bool) {
        for span in spans {
            let (from, to) = (span.ptr.addr(), span.ptr.addr() + span.len);
            let found = self.busy.iter().position(|busy| (busy.from, busy.to) == (from, to));
            self.busy.swap_remove(found.expect("what is released was taken"));
            if scribbles {
                // SAFETY: the caller of `recv_chunk` guarantees the memory until `ChunkReceived`,
                // which is delivered right after this.
                unsafe { std::slice::from_raw_parts_mut(span.ptr, span.len) }.fill(0xee);
            }
        }
    }

    /// Whether a request still references one of these bytes (RR-RDV-3).
    pub(crate) fn is_busy(&self, bytes: &[u8]) -> bool {
        let (from, to) = (bytes.as_ptr().addr(), bytes.as_ptr().addr() + bytes.len());
        self.busy.iter().any(|busy| busy.overlaps(from, to))
    }

    /// Number of memory ranges referenced by requests.
    pub(crate) fn busy_pieces(&self) -> usize {
        self.busy.len()
    }

    // ---- Processes ----

    /// Adds a host; returns its number.
    pub(crate) fn add_host(&mut self, locator: SocketAddr) -> usize {
        let host = self.hosts.len();
        self.hosts.push(Host::new(locator, HostRandom::new(self.seed, host)));
        self.add_route(host, 0);
        host
    }

    pub(super) fn start_process(&mut self, host: usize) {
        self.hosts[host].start();
        let now_ns = self.now_ns;
        self.plan_turn(host, now_ns);
    }

    pub(super) fn end_process(&mut self, host: usize) {
        self.close_datagrams(host);
        self.leave_local_peers(host);
        let (lanes, pending) = self.hosts[host].stop();
        for PendingEvent { what, releases, .. } in pending {
            if let Some(spans) = releases {
                self.release_memory(&spans, false);
            }
            if let What::Accept(connection) = what {
                self.abandon(connection, 1, true);
            }
        }
        for lane in lanes {
            let sending = lane.sending.filter(|_| !lane.send_is_over);
            let receiving = lane.receiving.filter(|_| !lane.receive_is_over);
            for chunk in sending.into_iter().chain(receiving) {
                self.release_memory(&chunk.spans, false);
            }
            if !lane.is_closing {
                let is_reset = self.connections[lane.connection].random[lane.side].one_in(2);
                self.abandon(lane.connection, lane.side, is_reset);
            }
        }
    }

    /// Closes one side of a connection, as its process ended: FIN, or RST if bytes were unread.
    fn abandon(&mut self, index: usize, side: usize, is_reset: bool) {
        let is_powered_off = self.connections[index].ends[side]
            .host
            .is_some_and(|host| self.hosts[host].is_powered_off);
        let connection = &mut self.connections[index];
        connection.ends[side].is_closed = true;
        if is_powered_off {
            connection.ends[side].is_forgotten = true;
            return;
        }
        if is_reset || connection.pipes[1 - side].has_arrived() {
            self.reset_peer(index, side);
        } else {
            self.end_stream(index, side);
        }
    }
}
