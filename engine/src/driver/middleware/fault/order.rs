//! Which events keep their order though they are held back.

use crate::driver::lanes::{Event, LaneKey};

/// The lane that an event is of.
pub(super) fn lane_of(event: &Event) -> Option<LaneKey> {
    match *event {
        Event::Accepted { lane, .. }
        | Event::Connected { lane }
        | Event::ConnectFailed { lane, .. }
        | Event::Readable { lane }
        | Event::Writable { lane }
        | Event::ChunkSent { lane, .. }
        | Event::ChunkReceived { lane, .. }
        | Event::Closed { lane } => Some(lane),
        Event::ChunkReleased { .. }
        | Event::DatagramsReadable
        | Event::DatagramsWritable
        | Event::RailChanged { .. } => None,
    }
}

/// Whether `later` may not be told before `earlier`. A release names no lane, so that it follows
/// the end of every send, and every `Closed` follows it.
pub(super) fn must_follow(later: &Event, earlier: &Event) -> bool {
    match (later, earlier) {
        (Event::ChunkReleased { .. }, Event::ChunkSent { .. })
        | (Event::Closed { .. }, Event::ChunkReleased { .. }) => true,
        _ => lane_of(later).is_some() && lane_of(later) == lane_of(earlier),
    }
}
