//! The protocol, sans-IO: time, randomness and buffers come in as arguments.
#![forbid(unsafe_code)]

pub(crate) mod matching;
