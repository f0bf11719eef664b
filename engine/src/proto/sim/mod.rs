//! Engines' protocol cores without a loop, the simulated links between them, and virtual time.
//!
//! A [`Net`] has two engines in most tests. Its sessions use one of two kinds of carriage:
//!
//! - segments, each a datagram of its own ([`segments`]): the net itself reports acknowledgements
//!   and losses to senders, as packet paths or rings would;
//! - packets of paths, and the control connection where no path answers ([`packets`]).
//!
//! [`Net::advance_to`] is the only loop: it delivers what is due, and gives every engine a turn.
//! Tests may instead capture, deliver, acknowledge and lose single datagrams. The same seed gives
//! the same run.
//!
//! A [`ScriptedPeer`] has no core: tests write its frames. Whole engines are simulated by
//! `crate::swarm`.

mod bulk_lanes;
mod engine;
mod events;
mod link;
mod memory;
mod messages;
mod net;
mod packets;
mod peer;
mod requests;
mod segments;
mod sessions;
mod shared_memory;

pub(crate) use engine::{ENDPOINTS, Engine};
pub(crate) use events::Events;
pub(crate) use link::{Gate, Link, LinkConfig};
pub(crate) use memory::{Memory, NoEffects};
pub(crate) use messages::{Flow, stage};
pub(crate) use net::Net;
pub(crate) use packets::{Datagram, LATENCY_NS, PACKET_BYTES_MAX, SESSION, STREAM_NS, address_of};
pub(crate) use packets::{RAILS, keys_of};
pub(crate) use peer::{ScriptedPeer, eager, grant, rts};
pub(crate) use requests::{next_bytes, receive_request, send_request, stage_empty};
pub(crate) use sessions::{LIMITS, OWN, accept, connect, core_of, lane_hello, locator};
pub(crate) use shared_memory::RingEntry;
