//! The packet layer: one [`Path`] makes datagrams of one path reliable enough to build on.
//!
//! A path numbers packets, acknowledges, measures round trips, finds losses, and decides when how
//! much may go. It keeps no payload: what a packet carries has a *token* of the caller's, and the
//! path reports which tokens arrived and which were lost. A lost one goes again under a new packet
//! number, on this path or on another. What arrives is handed up at once and in no order.
//!
//! Time comes in with calls, in nanoseconds of any monotonic clock. A turn of an engine's loop:
//!
//! 1. [`Path::start_turn`], with how late the loop is;
//! 2. [`Path::handle_packet`] for what is received, until nothing is left or the turn's share is
//!    used;
//! 3. [`Path::handle_timeout`], with whether the receiving side was drained;
//! 4. [`Path::poll_known_event`] until there is none: tokens acknowledged and lost;
//! 5. [`Path::poll_transmit`] until there is nothing to send;
//! 6. [`Path::poll_timeout`] says when the next turn is due at the latest.
//!
//! A datagram that the kernel refuses is dropped by the caller like one that the network lost.

mod acknowledged;
pub(crate) mod config;
mod congestion;
mod delivery;
mod fast_path;
mod loss;
mod mtu;
mod numbers;
mod pacing;
pub(crate) mod path;
pub(crate) mod received;
mod rtt;
mod sent;
#[cfg(test)]
mod tests;
mod transmit;

pub(crate) use config::{DATAGRAM_BYTES_MIN, PathConfig};
pub(crate) use delivery::Delivered;
pub(crate) use path::{PacketEvent, Path};
pub(crate) use received::Arrival;
pub(crate) use transmit::{Filled, Payload};
