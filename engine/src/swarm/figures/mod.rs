//! What sessions of whole engines carry by datagrams, and how fast, in virtual time.
//!
//! A turn of an engine takes time here, by itself and for every datagram that it handles, as long
//! as on a host: see [`Link::world`]. So a figure measures what the loop makes of a link, not only
//! what the protocol could.
//!
//! Messages of any length go by datagrams here: those that fit no datagram are pulled in datagrams
//! (`bulk_lane = datagram`). With usual settings they go over TCP.

mod failover;
mod goodput;
mod hints;
mod hostile;
mod incast;
mod latency;
mod rails;
mod snapshot;

use super::scenarios::{add_hosts, config, loop_config, pass, peer};
use super::world::{Step, World};
use crate::driver::sim::datagrams::DatagramImpairments;
use crate::driver::sim::net::Impairments;
use crate::memory::Buffer;
use crate::progress::completions::CompletionRoute;
use crate::progress::post::{Memory, PostResult};
use crate::proto::core::Config;
use crate::proto::effects::CompletionLevel;
use crate::proto::hint::Hint;
use crate::proto::receive::ReceiveRequest;
use crate::proto::session::send::SendRequest;
use crate::proto::table::Id;
use crate::snapshot::percentile;

/// The figures of a module by name.
macro_rules! figures {
    ($($module:ident::$figure:ident,)+) => {
        &[$((concat!(stringify!($module), "::", stringify!($figure)), $module::$figure)),+]
    };
}

/// All figures by name. Each panics where it is not what it has to be. They are no tests of this
/// library, where they would take minutes: the swarm runs them, which is optimised
/// (`cargo xtask swarm --figures`).
pub const FIGURES: &[(&str, fn())] = figures! {
    failover::a_rail_that_is_cut_is_missed_for_a_few_milliseconds,
    goodput::random_loss_costs_little_more_than_what_is_lost,
    goodput::a_long_path_is_full_within_three_seconds,
    hints::a_message_of_priority_passes_those_without,
    hints::messages_without_a_hint_pass_those_that_can_wait,
    hints::without_hints_the_order_of_sending_is_that_of_coming,
    hints::in_a_steady_stream_short_messages_come_in_order,
    hints::a_steady_stream_of_short_messages_lets_a_long_one_through,
    hints::a_message_that_is_waited_for_passes_datagrams_that_wait,
    hostile::unauthenticated_floods_slow_live_sessions_by_less_than_a_tenth,
    hostile::copies_that_pass_for_the_senders_own_slow_streams_and_no_small_messages,
    hostile::a_network_that_is_cut_in_one_direction_ends_sessions_with_the_cause_named,
    hostile::a_peer_that_starts_anew_is_another_peer,
    incast::eight_senders_share_the_receiver_s_link_and_fill_it,
    incast::a_sender_that_comes_late_gets_its_share,
    latency::a_lost_tail_costs_at_most_two_round_trips_and_a_little,
    latency::a_lost_acknowledgement_delays_no_message,
    latency::loss_in_one_context_leaves_another_alone,
    rails::unreported_link_rates_are_measured,
    rails::both_ways_of_a_conversation_go_by_the_faster_path,
    rails::a_rail_more_makes_no_short_message_slower,
    rails::a_rail_more_makes_no_long_message_slower,
    rails::a_rail_more_makes_no_stream_slower,
    rails::short_messages_go_by_the_nearest_path_and_stay_there,
    rails::short_messages_leave_a_path_that_became_long,
    snapshot::session_goodput_matches_the_snapshot,
};

const MICRO: u64 = 1_000;
const MILLI: u64 = 1_000_000;
const SECOND: u64 = 1_000_000_000;
const GBIT: u64 = 1_000_000_000;
const MIB: usize = 1 << 20;

/// Time that a turn takes besides that for datagrams: one look at the socket, the ring and the
/// lanes. Half of it to all of it, at random.
const TURN_NS: u64 = 500;
/// Time of the engine's thread for one datagram: its tag, a copy or two, its share of a system
/// call for many.
const DATAGRAM_NS: u64 = 350;
/// Time of the engine's thread for an unauthenticated connection: system calls that accept it,
/// read, answer and close.
const CONNECTION_NS: u64 = 10_000;

/// A network of two hosts: both directions are alike.
#[derive(Clone, Debug)]
struct Link {
    bits_per_second: u64,
    rtt_ns: u64,
    loss_ppm: u64,
    /// Longest datagram that it takes, IP and UDP headers excluded.
    datagram_bytes: usize,
}

impl Link {
    /// An Ethernet of usual frames without loss.
    fn new(bits_per_second: u64, rtt_ns: u64) -> Self {
        Self { bits_per_second, rtt_ns, loss_ppm: 0, datagram_bytes: 1472 }
    }

    fn with_loss(self, loss_ppm: u64) -> Self {
        Self { loss_ppm, ..self }
    }

    /// Two engines with a session between them whose path is in use; nothing is lost until then.
    /// The queue in front of a link holds half a round trip, at least 200 µs, as in the figures of
    /// the packet layer.
    fn world(&self, config: &Config, seed: u64) -> World {
        let ns_per_kib = 1024 * 8 * SECOND / self.bits_per_second;
        let queue_ns = (self.rtt_ns / 2).max(200 * MICRO);
        let streams = Impairments {
            delay_ns: self.rtt_ns / 2,
            jitter_ns: 0,
            ns_per_kib,
            capacity: 4 * MIB,
            ..Impairments::ideal()
        };
        let mut world = World::new(seed, streams).unwrap();
        world.net.borrow_mut().datagram_impairments = DatagramImpairments {
            ns_per_kib,
            queue_bytes: (queue_ns << 10) / ns_per_kib,
            bytes_max: self.datagram_bytes,
            ..DatagramImpairments::ideal()
        };
        (world.turn_ns, world.datagram_ns) = (TURN_NS, DATAGRAM_NS);
        world.connection_ns = CONNECTION_NS;
        world.set_datagrams(true).unwrap();
        add_hosts(&mut world, 2, &[], config, loop_config());
        let mut warming = Traffic::new(8, 1, 4);
        warming.run(&mut world, 60 * SECOND, Traffic::is_done);
        pass(&mut world, 10 * MILLI + 20 * self.rtt_ns);
        for host in 0..2 {
            assert!(
                world.look(host).unwrap().state.session_paths().of(0).unwrap().are_open(),
                "{self:?}"
            );
        }
        world.net.borrow_mut().datagram_impairments.loss_ppm = self.loss_ppm;
        world
    }
}

/// Room for everything, and an eager limit that keeps messages of 1 MiB away from bulk lanes.
fn roomy() -> Config {
    Config {
        eager_limit: MIB as u32,
        inject_limit: 256,
        envelope_credits: 16_384,
        eager_credit_bytes: 256 << 20,
        unexpected_bytes: 4 << 30,
        unexpected_messages: 1 << 20,
        staging_bytes: 2 * MIB,
        staging_buffers_max: 128,
        bulk_in_datagrams: true,
        chunk_bytes: MIB as u32,
        busy_chunk_bytes: MIB as u32,
        horizon_chunks: 16,
        datagram_window_bytes: 64 * MIB as u64,
        ..config()
    }
}

/// Distinct contents, apart from the number of the message.
const PATTERNS: usize = 4;
/// Bytes of all of them, but for longer messages.
const LONG: usize = 32 * MIB;

/// Messages of one length from one host to another, so many at once, and what became of them.
///
/// Each receive names a message by the order in which they are posted; a message is verified byte
/// by byte, and by its number, so that nothing lost, doubled, reordered or corrupted passes.
#[derive(Debug)]
struct Traffic {
    /// Sender and receiver.
    hosts: [usize; 2],
    context: u64,
    length: usize,
    at_once: usize,
    count: usize,
    patterns: Vec<Vec<u8>>,
    posted: usize,
    sent: usize,
    received: usize,
    /// When each was posted, by number.
    begun_ns: Vec<u64>,
    /// When each had come, by number; 0: it has not.
    come_ns: Vec<u64>,
    /// The receiver as the sender knows it, and the other way round.
    peers: Option<[Id; 2]>,
}

impl Traffic {
    /// `at_once` of `count` messages from host 0 to host 1 are on their way at any time.
    fn new(length: usize, at_once: usize, count: usize) -> Self {
        let patterns = PATTERNS.min(count).min((LONG / length.max(1)).max(1));
        let patterns = (0..patterns as u64).map(|name| super::form::content(name, length));
        Self {
            hosts: [0, 1],
            context: 1,
            length,
            at_once,
            count,
            patterns: patterns.collect(),
            posted: 0,
            sent: 0,
            received: 0,
            begun_ns: Vec::with_capacity(count),
            come_ns: vec![0; count],
            peers: None,
        }
    }

    /// The same in another context.
    fn in_context(self, context: u64) -> Self {
        Self { context, ..self }
    }

    /// The same between other hosts.
    fn between(self, from: usize, to: usize) -> Self {
        Self { hosts: [from, to], ..self }
    }

    fn bytes(&self, number: usize) -> Vec<u8> {
        let mut bytes = self.patterns[number % self.patterns.len()].clone();
        let name = (number as u64).to_le_bytes();
        let named = name.len().min(bytes.len());
        bytes[..named].copy_from_slice(&name[..named]);
        bytes
    }

    fn is_done(&self) -> bool {
        self.received == self.count && self.sent == self.count
    }

    fn begin(&mut self, world: &mut World) {
        if self.posted == self.count || self.posted - self.sent.min(self.received) >= self.at_once {
            return;
        }
        let [far, near] = match self.peers {
            Some(peers) => peers,
            None => {
                let [from, to] = self.hosts;
                *self.peers.insert([peer(world, from, to), peer(world, to, from)])
            }
        };
        while self.posted < self.count && self.posted - self.sent.min(self.received) < self.at_once
        {
            let number = self.posted;
            self.receive(world, near, number);
            self.begun_ns.push(world.now_ns());
            self.send(world, far, number);
            self.posted += 1;
        }
    }

    /// What completions name: the context, and the number of the message.
    fn route(&self, number: usize) -> CompletionRoute {
        let context = self.context << 32 | number as u64;
        CompletionRoute::Queue { queue: 0, user_data: context, silent: false }
    }

    fn receive(&self, world: &mut World, peer: Id, number: usize) {
        let capacity = self.length as u64;
        let (context, peer) = (self.context, Some(peer));
        let request = ReceiveRequest {
            endpoint: 0,
            peer,
            context,
            tag: 7,
            ignore: 0,
            capacity,
            min_free: None,
        };
        let mut buffer = Buffer::Heap(vec![0; self.length]);
        let shape = buffer.shape_for_recv().unwrap();
        let memory = Memory { buffer: Some(buffer), shape };
        let route = self.route(number);
        let engine = world.engine(self.hosts[1]).unwrap();
        engine.state.post_receive(&request, memory, route).expect("it is posted");
    }

    fn send(&self, world: &mut World, peer: Id, number: usize) {
        let (length, level) = (self.length as u64, CompletionLevel::Delivery);
        let (context, hint) = (self.context, Hint::None);
        let request = SendRequest {
            endpoint: 0,
            peer,
            context,
            tag: 7,
            length,
            level,
            hint,
            data: None,
            fence: false,
        };
        let mut buffer = Buffer::Heap(self.bytes(number));
        let shape = buffer.shape_for_send().unwrap();
        let memory = Memory { buffer: Some(buffer), shape };
        let engine = world.engine(self.hosts[0]).unwrap();
        let posted = engine.post_send(&request, memory, self.route(number), false);
        assert!(matches!(posted, Ok(PostResult::Pending(_))), "{:?}", posted.map(|_| ()));
    }

    /// A completion of one of its hosts. `false`: of other traffic.
    fn handle(&mut self, now_ns: u64, host: usize, completion: &crate::types::Completion) -> bool {
        if completion.user_data >> 32 != self.context {
            return false;
        }
        let number = completion.user_data as u32 as usize;
        let status = completion.result.as_ref().unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(status.length, self.length);
        if host == self.hosts[0] {
            self.sent += 1;
            return true;
        }
        let Some(Buffer::Heap(bytes)) = &completion.buffer else { panic!("the buffer comes back") };
        assert!(*bytes == self.bytes(number), "message {number} is not what was sent");
        assert_eq!(self.come_ns[number], 0, "message {number} has come twice");
        self.come_ns[number] = now_ns;
        self.received += 1;
        true
    }

    /// Goes on until `done`, for `limit_ns` at the most.
    fn run(&mut self, world: &mut World, limit_ns: u64, done: impl Fn(&Self) -> bool) {
        run_all(world, std::slice::from_mut(self), limit_ns, |all| done(&all[0]));
    }

    /// Times from post to completed receive of messages from `first` on, in order.
    fn times_ns(&self, first: usize) -> Vec<u64> {
        let pairs = self.begun_ns.iter().zip(&self.come_ns).skip(first);
        let mut times_ns: Vec<u64> =
            pairs.filter(|(_, come_ns)| **come_ns > 0).map(|(begun, come)| come - begun).collect();
        times_ns.sort_unstable();
        times_ns
    }
}

/// Several kinds of traffic at once.
fn run_all(
    world: &mut World,
    all: &mut [Traffic],
    limit_ns: u64,
    done: impl Fn(&[Traffic]) -> bool,
) {
    let end_ns = world.now_ns() + limit_ns;
    while !done(all) {
        assert_ne!(step(world, all, end_ns), Step::Limit, "not within {limit_ns} ns");
    }
}

/// Traffic until a time.
fn run_until(world: &mut World, traffic: &mut Traffic, end_ns: u64) {
    while step(world, std::slice::from_mut(traffic), end_ns) != Step::Limit {}
}

fn step(world: &mut World, all: &mut [Traffic], end_ns: u64) -> Step {
    all.iter_mut().for_each(|traffic| traffic.begin(world));
    let step = world.step(end_ns);
    assert_eq!(world.net.borrow_mut().take_violation(), None);
    if let Step::Turn(host) = step {
        while let Some(completion) = world.pop(host) {
            let now_ns = world.now_ns();
            let known = all.iter_mut().any(|it| it.handle(now_ns, host, &completion));
            assert!(known, "a completion of nothing: {completion:?}");
        }
    }
    step
}

/// The time after which a lost datagram of a message must have gone again and arrived, on top of
/// the message's own: two round trips and 200 µs.
fn recovery_ns(rtt_ns: u64) -> u64 {
    2 * rtt_ns + 200 * MICRO
}
