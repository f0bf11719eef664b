//! Headers: one file per frame type, drawn, size-asserted. No I/O, no state.
//!
//! All integers are little-endian. A control lane carries a [`hello`] exchange, the [`proof`] of
//! the side that connected, then *segments*: a [`segment::SegmentHeader`] followed by frames, each
//! led by a byte that names its type. A bulk lane carries a hello exchange, then chunks, each led
//! by a [`chunk::ChunkHeader`].

#![forbid(unsafe_code)]

pub(crate) mod ack;
pub(crate) mod address;
pub(crate) mod atomic_op;
pub(crate) mod chunk;
pub(crate) mod cma_source;
pub(crate) mod data;
pub(crate) mod done;
pub(crate) mod eager;
pub(crate) mod frame;
pub(crate) mod frame_range;
#[cfg(test)]
mod fuzz;
pub(crate) mod goodbye;
pub(crate) mod grant;
pub(crate) mod hello;
pub(crate) mod lanes;
pub(crate) mod local_peer;
pub(crate) mod locators;
pub(crate) mod lost;
pub(crate) mod matched;
pub(crate) mod one_sided;
pub(crate) mod packet;
pub(crate) mod piece;
pub(crate) mod process_query;
pub(crate) mod process_status;
pub(crate) mod proof;
pub(crate) mod rail;
pub(crate) mod refused;
pub(crate) mod reply;
pub(crate) mod reply_rts;
pub(crate) mod request;
pub(crate) mod rts;
pub(crate) mod segment;
#[cfg(test)]
mod tests;
pub(crate) mod unsolicited;

pub(crate) use cma_source::CmaSource;
pub(crate) use data::Data;
pub(crate) use done::Done;
pub(crate) use eager::Eager;
pub(crate) use frame::{Frame, FrameError, Frames};
pub(crate) use frame_range::{FrameRange, KeptFrames};
pub(crate) use goodbye::Goodbye;
pub(crate) use grant::{Grant, GrantOver};
pub(crate) use hello::{Hello, HelloReply};
pub(crate) use lanes::LanesWanted;
pub(crate) use lost::LaneLost;
pub(crate) use matched::Matched;
pub(crate) use one_sided::OneSided;
pub(crate) use process_query::ProcessQuery;
pub(crate) use process_status::ProcessStatus;
pub(crate) use proof::Proof;
pub(crate) use rail::RailFrame;
pub(crate) use refused::Refused;
pub(crate) use reply::Reply;
pub(crate) use reply_rts::ReplyRts;
pub(crate) use rts::{MessageSource, Rts};
pub(crate) use unsolicited::UnsolicitedPieces;

/// Version of everything in this room; peers of another version are refused by name.
pub(crate) const VERSION: u16 = 13;

/// Longest segment on a control lane, header included: what a receiver must be able to hold
/// until the rest of it arrives.
pub(crate) const SEGMENT_BYTES_MAX: usize = 260 * 1024;

/// Longest payload of one frame: the longest message that is sent without being asked for.
pub(crate) const EAGER_BYTES_MAX: usize = 256 * 1024;

const _: () = assert!(EAGER_BYTES_MAX + 4096 <= SEGMENT_BYTES_MAX, "with headers");

/// Length of the remote data behind a header with [`eager::FLAG_DATA`], in bytes.
pub(crate) const DATA_BYTES: usize = 8;

/// Longest message, in bytes: keeps every offset and sum far from overflow.
pub(crate) const MESSAGE_BYTES_MAX: u64 = 1 << 46;

/// Longest chunk on a bulk lane, in bytes.
pub(crate) const CHUNK_BYTES_MAX: u32 = 16 << 20;
