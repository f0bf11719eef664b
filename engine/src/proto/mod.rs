//! The protocol, sans-IO.
//!
//! This module makes no system call, reads no clock, draws no random number and accesses no user
//! memory: time, randomness and bytes are arguments, and effects on user memory go through
//! [`effects::Effects`]. Methods for input from a peer are named `handle_*`, for output `poll_*` or
//! `stage_*`, for requests of a user by a plain verb. [`core::Core`] documents the order in which
//! an engine loop calls them.

#![forbid(unsafe_code)]

mod abort;
mod claims;
mod config;
#[cfg(any(test, feature = "sim"))]
mod consistency;
pub(crate) mod context;
pub(crate) mod core;
mod data_bytes;
pub(crate) mod effects;
mod endpoints;
pub(crate) mod failure;
pub(crate) mod faster_of_two;
pub(crate) mod handshake;
pub(crate) mod hint;
pub(crate) mod keys;
pub(crate) mod manager;
pub(crate) mod matching;
pub(crate) mod multi;
mod no_peer_left;
pub(crate) mod operation;
pub(crate) mod operations;
pub(crate) mod packet;
pub(crate) mod paths;
pub(crate) mod peers;
pub(crate) mod process_status;
mod put_back;
mod question;
pub(crate) mod ready;
pub(crate) mod receive;
pub(crate) mod regions;
pub(crate) mod session;
pub(crate) mod silence;
pub(crate) mod table;
pub(crate) mod unexpected;

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod sim;
#[cfg(test)]
mod tests;
