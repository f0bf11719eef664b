//! The packet layer: a [`Path`] adds acknowledgement and loss detection to datagrams of one path.
//!
//! A path numbers packets, acknowledges them, measures round trips, detects losses, and controls
//! when data may be sent. It stores no payload: the payload of a packet is identified by a *token*
//! of the caller's, and the path reports which tokens were acknowledged and which were lost. Lost
//! payload is sent again under a new packet number, on this path or on another. Received payload is
//! passed up at once and unordered.
//!
//! Time is an argument of calls, in nanoseconds of any monotonic clock. A turn of an engine's loop:
//!
//! 1. [`Path::start_turn`], with how late the loop is;
//! 2. [`Path::handle_next`] for received packets, or [`Path::handle_any`], until none is left or
//!    the turn's share is used;
//! 3. [`Path::handle_timeout`], with whether all received packets are handled;
//! 4. [`Path::apply_deferred_ack_if_due`], then [`Path::poll_known_event`] until it returns none:
//!    tokens acknowledged and lost;
//! 5. [`Path::poll_transmit`] until there is nothing to send;
//! 6. [`Path::poll_timeout`] returns when the next turn is due at the latest.
//!
//! The caller drops a datagram that the kernel rejects, like one that the network loses.

pub(crate) mod config;
mod congestion;
mod delivery;
mod loss;
mod loss_timer;
mod mtu;
mod numbers;
mod pacing;
pub(crate) mod path;
mod peer_acks;
pub(crate) mod received;
mod rtt;
mod sent;
#[cfg(test)]
mod tests;

pub(crate) use config::{DATAGRAM_BYTES_MIN, PathConfig};
pub(crate) use delivery::Delivered;
pub(crate) use path::{Filled, PacketEvent, Path, PayloadSource};
pub(crate) use received::ReplayCheck;
