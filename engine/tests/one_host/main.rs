//! Engines of one host that share memory, in one process or in several.

#[path = "../common/mod.rs"]
mod common;

mod one_host;
mod one_host_departed;
mod one_host_many;
mod one_host_pieces;
mod one_host_reads;
