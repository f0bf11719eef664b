//! What both drivers do to a TCP socket: set-up, direct calls, `TCP_INFO`, abort.
//!
//! Every function that makes system calls documents or returns their number, so that drivers can
//! count them.

mod congestion;
mod direct;
mod info;
mod listen;
mod nic;
mod setup;

#[cfg(feature = "uring")]
pub(crate) use direct::dissolve;
pub(crate) use direct::{abort, finish, receive, receive_pieces, send, send_both, send_pieces};
pub(crate) use info::{addresses, figures, unacked};
pub(crate) use listen::{accept_some, listener, listeners_of_rails};
pub(crate) use nic::{address_of, bind as bind_to_nic, keep_to_nic};
pub(crate) use setup::{Binding, LaneOptions, connect_error, established, open, prepare, quickack};
