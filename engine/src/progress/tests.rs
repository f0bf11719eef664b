//! Whole engines, protocol and loop, over a network in memory that is as unkind as it can be.

mod exchange;
mod fuzz;
mod net;
mod peers;
mod sim;

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use rand::SeedableRng;
use rand::rngs::StdRng;

use self::net::Shared;
use self::sim::SimDriver;
use super::completions::Route;
use super::engine::{Clock, Engine, LoopConfig, State};
use super::lanes::SendMode;
use super::post::{Memory, Posted};
use super::zero_copy::Policy;
use crate::memory::{Arena, Buffer};
use crate::proto::connection::Retry;
use crate::proto::core::Config;
use crate::proto::effects::Level;
use crate::proto::keys::JobKeys;
use crate::proto::receive::ReceiveRequest;
use crate::proto::send::SendRequest;
use crate::proto::table::Id;
use crate::types::{Completion, Error};

/// Everything small, so that every bound is met often.
fn config() -> Config {
    Config {
        eager_limit: 256,
        inject_limit: 256,
        rts_bytes: 32,
        chunk_bytes: 512,
        busy_chunk_bytes: 128,
        horizon_chunks: 3,
        bulk_lanes: 2,
        bulk_lanes_max: 16,
        envelope_credits: 4,
        eager_credit_bytes: 600,
        unexpected_bytes: 1 << 20,
        unexpected_messages: 1 << 10,
        send_queue_ops: 1000,
        operations_max: 4000,
        sessions_max: 16,
        staging_bytes: 8192,
        staging_buffers_max: 4,
        retry: Retry { timeout_ns: 20_000_000_000, retries: 50, delay_ns: 100_000 },
        bulk_idle_ns: 3_600_000_000_000,
        hash_seed: 1,
    }
}

fn loop_config() -> LoopConfig {
    LoopConfig {
        spin: Duration::ZERO,
        hot_lanes: 2,
        receive_buffer_bytes: 4096,
        zero_copy: Policy::Always(SendMode::ZeroCopy),
        peer_timeout: Duration::from_secs(3600),
        handshake_pending_max: 100,
        handshake_timeout: Duration::from_secs(3600),
        linger: Duration::ZERO,
    }
}

fn locator(rank: usize) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 20_000 + rank as u16))
}

fn engine(net: &Shared, rank: usize, config: Config) -> Engine {
    restarted(net, rank, rank as u64 + 1, config)
}

/// An engine of the given id at the place of `rank`.
fn restarted(net: &Shared, rank: usize, id: u64, config: Config) -> Engine {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let arena = Arena::new(4096).unwrap();
    let at = locator(rank);
    let random = StdRng::seed_from_u64(id * 1000);
    let keys = Arc::new(JobKeys::new(None));
    let loops = loop_config();
    let mut state = State::new(id, random, config, loops, keys, 1 << 16, arena, listener, at, None);
    state.clock = Clock::Set(0);
    state.core.open_endpoint();
    state.completions.open_queue();
    let driver = Box::new(SimDriver::new(net, at));
    Engine::attach(Box::new(state), driver, Vec::new()).map_err(|_| "attach").unwrap()
}

/// What `engine` calls endpoint 0 of another one.
fn peer(engine: &mut Engine, rank: usize) -> Id {
    endpoint_of(engine, rank, 0)
}

fn endpoint_of(engine: &mut Engine, rank: usize, endpoint: u16) -> Id {
    engine.state.core.insert_peer(rank as u64 + 1, locator(rank), endpoint).unwrap()
}

/// Bytes that only message `name` has.
fn content(name: u64, length: usize) -> Vec<u8> {
    let mut state = name.wrapping_mul(0x2545_f491_4f6c_dd1d) | 1;
    let bytes = (0..length).map(|_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 24) as u8
    });
    bytes.collect()
}

fn route(context: u64) -> Route {
    Route::Queue { queue: 0, context, on_error_only: false }
}

fn send(engine: &mut Engine, peer: Id, tag: u64, bytes: Vec<u8>, level: Level) -> Sent {
    let length = bytes.len() as u64;
    let request = SendRequest { endpoint: 0, peer, context: 0, tag, length, level };
    let mut buffer = Buffer::Heap(bytes);
    let shape = buffer.shape_for_send().unwrap();
    let memory = Memory { buffer: Some(buffer), shape };
    engine.post_send(&request, memory, route(tag), false).map_err(|(error, _)| error)
}

type Sent = Result<Posted, Error>;

fn receive(engine: &mut Engine, peer: Option<Id>, tag: u64, capacity: usize) -> Id {
    receive_as(engine, peer, tag, capacity, tag)
}

/// A receive whose completion has the context `name`.
fn receive_as(engine: &mut Engine, peer: Option<Id>, tag: u64, capacity: usize, name: u64) -> Id {
    try_receive(engine, peer, tag, capacity, name).unwrap()
}

fn try_receive(
    engine: &mut Engine,
    peer: Option<Id>,
    tag: u64,
    capacity: usize,
    name: u64,
) -> Result<Id, Error> {
    let request =
        ReceiveRequest { endpoint: 0, peer, context: 0, tag, ignore: 0, capacity: capacity as u64 };
    let mut buffer = Buffer::Heap(vec![0; capacity]);
    let shape = buffer.shape_for_recv().unwrap();
    let memory = Memory { buffer: Some(buffer), shape };
    engine.post_receive(&request, memory, route(name)).map_err(|(error, _)| error)
}

/// Completions that have come; memory that a chunk still refers to is an error (DESIGN D9).
fn drain(net: &Shared, engine: &mut Engine) -> Vec<Completion> {
    let mut all = Vec::new();
    while let Some(completion) = engine.state.completions.pop(0) {
        if let Some(Buffer::Heap(bytes)) = &completion.buffer {
            assert!(!net.borrow().is_busy(bytes), "ended while the kernel has the buffer");
        }
        all.push(completion);
    }
    all
}

/// Simulated time of one turn of an engine.
const TURN_NS: u64 = 20_000;

fn turn(engine: &mut Engine) {
    pass_time(std::slice::from_mut(engine), TURN_NS);
    engine.progress().unwrap();
}

/// Moves the clocks on.
fn pass_time(engines: &mut [Engine], by_ns: u64) {
    for engine in engines {
        match &mut engine.state.clock {
            Clock::Set(now_ns) => *now_ns += by_ns,
            _ => panic!("a test's engine has a test's clock"),
        }
    }
}

/// Runs all engines until `done`, and fails with `what` when that takes too long.
fn run(engines: &mut [Engine], what: &str, mut done: impl FnMut(&mut [Engine]) -> bool) {
    for _ in 0..100_000 {
        turns(engines, 1);
        if done(engines) {
            return;
        }
    }
    engines.iter().for_each(report);
    panic!("it never happens: {what}");
}

fn turns(engines: &mut [Engine], count: usize) {
    for _ in 0..count {
        engines.iter_mut().for_each(turn);
    }
}

/// Runs `test` with many seeds, and names the one that fails.
fn with_seeds(count: u64, test: impl Fn(u64)) {
    struct Named(u64);
    impl Drop for Named {
        fn drop(&mut self) {
            if std::thread::panicking() {
                eprintln!("the seed is {}", self.0);
            }
        }
    }
    for seed in 0..count {
        let _named = Named(seed);
        test(seed);
    }
}

fn report(engine: &Engine) {
    let core = &engine.state.core;
    eprintln!("engine {}: {:?}", core.engine, core.counters);
    for (id, operation) in core.operations.iter().take(20) {
        eprintln!("  {id:?} {operation:?}");
    }
    for (id, session) in core.sessions.iter() {
        eprintln!("  session {id:?}: {session:?}");
    }
    for (id, lane) in core.lanes.iter() {
        eprintln!("  lane {id:?}: {lane:?}");
    }
}

/// What holds when nothing is under way: nothing is kept, and all credit is back.
fn assert_at_rest(engine: &Engine) {
    let core = &engine.state.core;
    let is_idle = core.operations.len() == 0
        && core.unexpected.held_bytes().0 == 0
        && core.lanes.iter().all(|(_, lane)| lane.is_idle())
        && core.sessions.iter().all(|(_, session)| {
            session.pulls.is_empty()
                && session.missing.is_empty()
                && session.waiting.is_empty()
                && session.control.is_empty()
                && session.awaiting_delivery.is_empty()
                && session.envelopes.held() == 0
                && session.bytes.held() == 0
        });
    if !is_idle {
        report(engine);
        panic!("something is left");
    }
}
