//! The engine loop.
//!
//! [`engine::Engine`] owns the protocol ([`crate::proto`]), a driver, and the memory of outstanding
//! operations ([`completions`]). One call of [`engine::Engine::progress`] polls the most active
//! control lanes directly, collects the driver's events, moves bulk data, and sends staged data.

mod abort;
mod background;
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

use crate::driver::traits;
