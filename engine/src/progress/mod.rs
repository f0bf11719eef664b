//! The engine loop.
//!
//! [`engine::Engine`] owns the protocol ([`crate::proto`]), a driver, and the memory of outstanding
//! operations ([`completions`]). One call of [`engine::Engine::progress`] polls the most active
//! control lanes directly, collects the driver's events, moves bulk data, and sends staged data.

mod abort;
mod at_once;
mod background;
mod before_copy;
mod bulk;
pub(crate) mod caretaker;
pub(crate) mod clock;
mod cma;
pub(crate) mod completions;
mod connect;
mod context;
mod control;
mod control_lanes;
mod copies;
pub(crate) mod counters;
pub(crate) mod datagram;
pub(crate) mod engine;
pub(crate) mod events;
mod failure;
mod handshake;
mod held;
mod interface;
pub(crate) mod leave;
pub(crate) mod listeners;
mod manager;
mod migrate;
mod monitor;
pub(crate) mod one_sided;
pub(crate) mod outside;
pub(crate) mod partial;
mod peers;
mod pieces;
pub(crate) mod post;
pub(crate) mod posting;
mod put_back;
pub(crate) mod rails;
mod receives;
mod regions;
pub(crate) mod registered_memory;
mod roles;
mod segments;
mod send_protocol;
mod setup;
pub(crate) mod shared;
pub(crate) mod shared_engine;
mod silent_peers;
mod sleep;
pub(crate) mod statistics;
mod ticks;
mod transports;
pub(crate) mod wait_object;
mod wakers;
pub(crate) mod zero_copy;

use std::sync::Arc;

use crate::driver::traits;
use crate::memory::Arena;
use crate::proto::core::Core;
use crate::proto::paths::PathTable;
use crate::topology::Placement;

/// Everything of an engine but its driver: the part that moves between threads.
pub(crate) struct EngineState {
    core: Core,
    completions: completions::Completions,
    /// Connections between endpoints.
    requests: manager::Requests,
    config: engine::LoopConfig,
    /// Rings in shared memory.
    rings: datagram::Rings,
    scratch: completions::pieces::Scratch,
    handshakes: handshake::Handshakes,
    arena: Arc<Arena>,
    listeners: listeners::Listeners,
    rails: rails::LocalRails,
    /// Placement of its threads and its memory.
    placement: Arc<Placement>,
    /// Whom it reports to.
    reports: statistics::Reports,
    /// The paths of its sessions.
    paths: PathTable,
    datagrams: datagram::EngineDatagrams,
    roles: roles::Roles,
    controls: control_lanes::ControlLanes,
    bulk: bulk::BulkSockets,
    polls: u64,
    now_ns: u64,
    clock: clock::Clock,
    ticks: ticks::Ticks,
    deferred: engine::DeferredSteps,
    /// When engines of peers are probed.
    engine_questions: monitor::EngineQuestions,
}
